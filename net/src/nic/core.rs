//! The state of a nic that other threads read: its counters, its link, and whether its guest broke
//! a ring.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};

use parking_lot::{Mutex, MutexGuard};
use rustix::event::{EventfdFlags, eventfd};
use sidecore::Counter;

use crate::port::PortCounters;

/// One nic, seen from anywhere.
#[derive(Debug)]
pub struct NicCore {
    name: String,
    counters: Arc<PortCounters>,
    /// Written by its sidecore only.
    pub(super) tolerated: Counter,
    broken: AtomicBool,
    link: AtomicBool,
    /// Queues that run.
    queues: AtomicU64,
    /// Told when what the guest reads of its nic has changed.
    changes: Option<Arc<OwnedFd>>,
    /// Control path only.
    story: Mutex<NicHistory>,
}

#[derive(Debug, Default)]
struct NicHistory {
    broken: Option<String>,
    /// How often the guest broke which rule: as many entries as there are names.
    failures: BTreeMap<&'static str, u64>,
}

impl NicCore {
    /// A nic called `name` that has counted nothing yet.
    pub fn new(name: &str) -> Arc<Self> {
        Arc::new(Self {
            name: name.to_owned(),
            counters: Arc::default(),
            tolerated: Counter::default(),
            broken: AtomicBool::new(false),
            link: AtomicBool::new(true),
            queues: AtomicU64::new(0),
            changes: watch(name),
            story: Mutex::default(),
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its counters.
    pub fn counters(&self) -> &Arc<PortCounters> {
        &self.counters
    }

    /// Descriptors of what the guest sent that break a rule which does not matter there, and were
    /// taken all the same: marked as to be written, or of no bytes.
    pub fn tolerated(&self) -> u64 {
        self.tolerated.get()
    }

    /// How many of its queues run.
    pub fn queues(&self) -> u64 {
        self.queues.load(Relaxed)
    }

    /// Whether the guest is told that its cable is plugged in.
    pub fn link(&self) -> bool {
        self.link.load(SeqCst)
    }

    /// Plugs the guest's cable in, or out. A front end that keeps the configuration itself, as QEMU
    /// does for nics, does not show that to its guest.
    pub fn set_link(&self, up: bool) {
        if self.link.swap(up, SeqCst) != up
            && let Some(changes) = &self.changes
        {
            // It does not block; a counter that is full is a change that was not looked at yet.
            let _ = rustix::io::write(changes, &1u64.to_ne_bytes());
        }
    }

    /// The guest handed over garbage, and the nic stopped until it is started anew.
    #[inline]
    pub fn is_broken(&self) -> bool {
        self.broken.load(Relaxed)
    }

    /// The garbage that stopped it.
    pub fn broken_why(&self) -> Option<String> {
        self.story().broken.clone()
    }

    /// How often the guest handed over which kind of garbage, over all its starts.
    pub fn failures(&self) -> Vec<(&'static str, u64)> {
        self.story().failures.iter().map(|(name, count)| (*name, *count)).collect()
    }

    /// Notes that a queue runs.
    pub(super) fn queue_started(&self) {
        self.queues.fetch_add(1, Relaxed);
    }

    /// Notes that a queue runs no more.
    pub(super) fn queue_stopped(&self) {
        self.queues.fetch_sub(1, Relaxed);
    }

    /// Readable when the configuration that the guest reads has changed.
    pub(super) fn changes(&self) -> Option<Arc<OwnedFd>> {
        self.changes.clone()
    }

    /// Counts garbage for which a queue did not start.
    pub(super) fn count_failure(&self, name: &'static str) {
        *self.story().failures.entry(name).or_default() += 1;
    }

    /// Stops the nic, and only the nic. `name` is the kind of garbage, for the counters.
    pub(super) fn broke(&self, queue: usize, name: &'static str, garbage: &dyn fmt::Display) {
        let mut story = self.story();
        let times = story.failures.entry(name).or_default();
        *times += 1;
        let times = *times;
        if story.broken.is_some() {
            return;
        }
        story.broken = Some(format!("queue {queue}: {garbage}"));
        self.broken.store(true, SeqCst);
        drop(story);
        // A guest that does it again and again does not get a line each time.
        if times.is_power_of_two() {
            tracing::error!(
                nic = %self.name,
                queue,
                times,
                error = %garbage,
                "a ring of the guest is broken: this nic stops until the guest restarts it; other \
                 disks and nics are not affected"
            );
        }
    }

    /// A new start of the guest is a new chance.
    pub fn mend(&self) {
        self.story().broken = None;
        self.broken.store(false, SeqCst);
    }

    fn story(&self) -> MutexGuard<'_, NicHistory> {
        // Nothing that holds this lock can leave the story half-told.
        self.story.lock()
    }
}

fn watch(nic: &str) -> Option<Arc<OwnedFd>> {
    match eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK) {
        Ok(event) => Some(Arc::new(event)),
        Err(error) => {
            tracing::warn!(nic, %error, "its guest will not learn of changes of its link");
            None
        }
    }
}
