//! A guest that works on a thread of its own, and is checked.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use random::Random;
use testbed::stand_in::{RingKind, StandIn};
use workload::Mix;

/// The blocks of 4 KiB that a guest uses.
const BLOCKS: u64 = 1024;

/// The guest's own pause after requests have completed. Without it the guests would take all of the
/// machine, and faults of timing would be those of a busy machine alone.
const PACE: Duration = Duration::from_millis(10);

/// The guest's figures, for other threads.
#[derive(Default)]
struct Figures {
    completed: AtomicU64,
    errors: AtomicU64,
    longest_us: AtomicU64,
    failure: Mutex<Option<String>>,
}

/// Reads all of the disk, and answers.
struct ReadAll(Sender<()>);

/// A guest at work until the value is dropped.
pub(super) struct Load {
    pub(super) volume: &'static str,
    figures: Arc<Figures>,
    tasks: Option<Sender<ReadAll>>,
    thread: Option<JoinHandle<()>>,
}

impl Load {
    /// Connects to a disk of zeroes.
    pub(super) fn start(volume: &'static str, socket: PathBuf, mut random: Random) -> Self {
        let figures = Arc::<Figures>::default();
        let (tasks, received) = channel();
        let inside = Arc::clone(&figures);
        let run = move || {
            let kind = RingKind::Split;
            let guest = StandIn::connect_with(&socket, kind, 2, Mix::OF_ALL, BLOCKS, &mut random);
            let done = guest.and_then(|mut guest| {
                let done = work(&mut guest, &inside, &received);
                guest.disconnect();
                done
            });
            if let Err(error) = done {
                *inside.failure.lock().expect("no panic") = Some(format!("{error:#}"));
            }
        };
        let thread = std::thread::spawn(run);
        Self { volume, figures, tasks: Some(tasks), thread: Some(thread) }
    }

    /// Requests that were answered well.
    pub(super) fn completed(&self) -> u64 {
        self.figures.completed.load(Relaxed)
    }

    /// The longest time without an answer since the last call.
    pub(super) fn take_longest_pause(&self) -> Duration {
        Duration::from_micros(self.figures.longest_us.swap(0, Relaxed))
    }

    /// A read that is not as promised, a request that failed, or a disk that stands still.
    pub(super) fn problem(&self) -> Option<String> {
        let failure = self.figures.failure.lock().expect("no panic").clone();
        let errors = self.figures.errors.load(Relaxed);
        let errors = (errors > 0).then(|| format!("{errors} requests have failed"));
        failure.or(errors).map(|why| format!("the guest of {}: {why}", self.volume))
    }

    /// Reads all of the disk, between other requests. A problem is [`Self::problem`].
    pub(super) fn read_all(&self) {
        let (sender, done) = channel();
        let tasks = self.tasks.as_ref().expect("it works");
        // Without an answer the guest has a problem.
        let _ = tasks.send(ReadAll(sender));
        let _ = done.recv();
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.tasks = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed.
            let _ = thread.join();
        }
    }
}

/// Works until the other end of the tasks is gone, or something is wrong.
fn work(guest: &mut StandIn, figures: &Figures, tasks: &Receiver<ReadAll>) -> anyhow::Result<()> {
    let (mut answered, mut moved) = (0, Instant::now());
    loop {
        let mut task = None;
        guest.work(|guest| {
            let counts = guest.workload.counts;
            if counts.completed + counts.errors > answered {
                answered = counts.completed + counts.errors;
                figures.completed.store(counts.completed, Relaxed);
                figures.errors.store(counts.errors, Relaxed);
                figures.longest_us.fetch_max(moved.elapsed().as_micros() as u64, Relaxed);
                moved = Instant::now();
                std::thread::sleep(PACE);
            }
            task = Some(tasks.try_recv());
            !matches!(task, Some(Err(std::sync::mpsc::TryRecvError::Empty)))
        })?;
        let Some(Ok(ReadAll(done))) = task else { return Ok(()) };
        guest.read_all()?;
        moved = Instant::now();
        // The other end waits for it.
        let _ = done.send(());
    }
}
