//! The thread of snapshots by time, and the problems that it had.

use std::collections::BTreeMap;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The pause after a problem. A full pool may take seconds to refuse a change, and the changes of
/// people wait for that, also the removals that make room.
const PROBLEM_PAUSE: Duration = Duration::from_secs(60);

/// The thread that takes snapshots, and the channel that ends it.
type SnapshotThread = (Sender<()>, JoinHandle<()>);

/// Snapshots by time of a node ([`super::timed`]).
#[derive(Debug, Default)]
pub(crate) struct TimedSnapshots {
    worker: Mutex<Option<SnapshotThread>>,
    problems: Mutex<BTreeMap<String, SnapshotProblem>>,
}

/// Why a snapshot of a volume was not taken or not removed, and when.
#[derive(Debug)]
struct SnapshotProblem {
    text: String,
    at: Instant,
}

impl TimedSnapshots {
    /// Keeps the thread until it is stopped.
    pub(super) fn keep(&self, worker: SnapshotThread) {
        *self.worker.lock() = Some(worker);
    }

    /// Ends the thread. A second call has no effect.
    pub(crate) fn stop(&self) {
        let Some((stop, thread)) = self.worker.lock().take() else { return };
        drop(stop);
        if thread.join().is_err() {
            tracing::error!("the thread of snapshots by time panicked");
        }
    }

    /// Why the last snapshot of this volume was not taken or not removed.
    pub(crate) fn problem(&self, volume: &str) -> Option<String> {
        self.problems.lock().get(volume).map(|problem| problem.text.clone())
    }

    /// Whether a volume had a problem a moment ago, and is left alone for now.
    pub(super) fn pauses(&self, volume: &str) -> bool {
        let problems = self.problems.lock();
        problems.get(volume).is_some_and(|problem| problem.at.elapsed() < PROBLEM_PAUSE)
    }

    /// Notes how the last look at a volume ended. The log has each problem once.
    pub(super) fn note(&self, volume: &str, problem: Option<String>) {
        let mut problems = self.problems.lock();
        let Some(text) = problem else {
            problems.remove(volume);
            return;
        };
        if problems.get(volume).is_none_or(|known| known.text != text) {
            tracing::error!(volume, problem = text, "snapshots by time");
        }
        problems.insert(volume.to_owned(), SnapshotProblem { text, at: Instant::now() });
    }

    /// Forgets the problems of volumes that are gone or have no rules any more.
    pub(super) fn forget(&self, is_gone: impl Fn(&str) -> bool) {
        self.problems.lock().retain(|volume, _| !is_gone(volume));
    }
}
