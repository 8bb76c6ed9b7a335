//! The state of a disk that its shares on all sidecores, its control side and its observers have in
//! common.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};

use parking_lot::{Mutex, MutexGuard};
use sidecore::Counter;

use crate::attachment::{Attachment, Phase};
use crate::request::{self, ID_BYTES};
use volume::Op;
use volume::latency::Latencies;

sidecore::counters! {
    /// The counters of one queue, over all its starts. Only the queue's sidecore writes them. When
    /// the queue moves, the next sidecore sees what the last sidecore wrote, because the queue
    /// itself comes from there.
    #[repr(align(128))]
    pub struct QueueCounters {
        starts: "Starts of queues.",
        moves: "Times that a running queue moved to another sidecore.",
        moves_refused: "Moves that failed: the queue did not drain, or the volume was paused.",
        requests: "Requests of the guest.",
        read_bytes: "Bytes of reads that succeeded.",
        written_bytes: "Bytes of writes that succeeded.",
        flushes: "Flushes that succeeded.",
        discarded_bytes: "Bytes of discards that succeeded.",
        zeroed_bytes: "Bytes of write-zeroes that succeeded.",
        errors: "Requests that were answered with an error.",
        batches: "Batches of answers that were published.",
        calls: "Of these, batches for which the guest was interrupted.",
        /// Also instead of a sleep.
        kick_reads: "System calls to take the guest's kicks, after a sleep.",
        full: "Rounds in which a queue had to wait because the table of requests was full.",
    }
    and {
        /// The sidecore that serves it, or did last.
        pub sidecore: Counter,
        /// How long reads took, those that failed included: from the round that took the request to
        /// the round that answered it.
        pub read_latencies: Latencies,
        /// The same of writes.
        pub write_latencies: Latencies,
        /// The same of flushes.
        pub flush_latencies: Latencies,
        /// The same of discards.
        pub discard_latencies: Latencies,
        /// The same of write-zeroes.
        pub write_zeroes_latencies: Latencies,
    }
}

impl QueueCounters {
    /// How long requests of one kind took.
    pub fn latencies(&self, op: Op) -> &Latencies {
        match op {
            Op::Read => &self.read_latencies,
            Op::Write => &self.write_latencies,
            Op::Flush => &self.flush_latencies,
            Op::Discard => &self.discard_latencies,
            Op::WriteZeroes => &self.write_zeroes_latencies,
        }
    }
}

/// The work of one sidecore for a disk, over all the disk's starts. Written by that sidecore only.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct ShareCounters {
    sidecore: u16,
    /// Requests taken.
    pub requests: Counter,
}

impl ShareCounters {
    /// Which sidecore.
    pub fn sidecore(&self) -> u16 {
        self.sidecore
    }
}

/// One disk, seen from anywhere.
#[derive(Debug)]
pub struct DiskCore {
    pub(super) name: String,
    pub(super) serial: [u8; ID_BYTES],
    counters: Vec<Arc<QueueCounters>>,
    broken: AtomicBool,
    /// Its next start takes the volume over.
    takes_next: AtomicBool,
    /// Requests of stopped queues that have not ended, on all sidecores.
    pub(super) orphans: AtomicUsize,
    /// Channels that were opened and have not let go, of all starts.
    pub(super) channels: AtomicUsize,
    /// Control path only.
    story: Mutex<DiskHistory>,
}

#[derive(Debug, Default)]
struct DiskHistory {
    broken: Option<String>,
    /// How often the guest broke which rule: as many entries as there are names.
    failures: BTreeMap<&'static str, u64>,
    attachment: Option<Arc<Attachment>>,
    /// One for each sidecore that ever had a share; at most as many as there are sidecores.
    shares: Vec<Arc<ShareCounters>>,
}

impl DiskCore {
    /// The disk's name in a sidecore's report of its work.
    pub(super) fn label(&self) -> String {
        format!("disk {:?}", self.name)
    }

    /// A disk called `name` with at most this many queues. The beginning of the name is its serial
    /// number.
    pub fn new(name: &str, queues: u16) -> Arc<Self> {
        Arc::new(Self {
            name: name.to_owned(),
            serial: request::serial(name),
            counters: (0..queues).map(|_| Arc::default()).collect(),
            broken: AtomicBool::new(false),
            takes_next: AtomicBool::new(false),
            orphans: AtomicUsize::new(0),
            channels: AtomicUsize::new(0),
            story: Mutex::default(),
        })
    }

    /// The disk's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many queues it has.
    pub fn queues_max(&self) -> usize {
        self.counters.len()
    }

    /// The counters of a queue.
    ///
    /// # Panics
    /// When the disk has no such queue.
    pub fn counters(&self, queue: usize) -> Arc<QueueCounters> {
        Arc::clone(&self.counters[queue])
    }

    /// The counters of each sidecore that ever had queues of this disk, in the sidecores' order.
    pub fn shares(&self) -> Vec<Arc<ShareCounters>> {
        self.story().shares.clone()
    }

    /// The counters of a sidecore.
    pub(super) fn share(&self, sidecore: u16) -> Arc<ShareCounters> {
        let shares = &mut self.story().shares;
        let at = shares.partition_point(|share| share.sidecore < sidecore);
        if shares.get(at).is_none_or(|share| share.sidecore != sidecore) {
            shares.insert(at, Arc::new(ShareCounters { sidecore, ..ShareCounters::default() }));
        }
        Arc::clone(&shares[at])
    }

    /// Requests of stopped queues that have not ended.
    pub fn orphans(&self) -> usize {
        self.orphans.load(SeqCst)
    }

    /// Channels to the volume that are open, or closed but still letting go: a clean stop of the
    /// node waits until there are none before it stops its sidecores.
    pub fn channels(&self) -> usize {
        self.channels.load(SeqCst)
    }

    /// The guest handed over garbage, and the disk stopped until it is started anew.
    pub fn is_broken(&self) -> bool {
        self.broken.load(Relaxed)
    }

    /// The garbage that stopped the disk.
    pub fn broken_why(&self) -> Option<String> {
        self.story().broken.clone()
    }

    /// How often the guest handed over which kind of garbage, over all its starts.
    pub fn failures(&self) -> Vec<(&'static str, u64)> {
        self.story().failures.iter().map(|(name, count)| (*name, *count)).collect()
    }

    /// The present attachment, or the last one.
    pub fn attachment(&self) -> Option<Arc<Attachment>> {
        self.story().attachment.clone()
    }

    /// An operator gives the volume to this disk's guest, whichever client holds it: at once if the
    /// disk waits for it, else at the next start of its rings. Returns whether the disk waits.
    pub fn take_over(&self) -> bool {
        let waits = self.attachment().filter(|it| {
            let view = it.view();
            view.phase == Phase::Unclaimed && view.epoch == 0
        });
        match &waits {
            Some(attachment) => attachment.take_over(),
            None => self.takes_next.store(true, SeqCst),
        }
        waits.is_some()
    }

    /// Whether a start takes the volume over; once.
    pub(super) fn takes_now(&self) -> bool {
        self.takes_next.swap(false, SeqCst)
    }

    pub(super) fn set_attachment(&self, attachment: Arc<Attachment>) {
        self.story().attachment = Some(attachment);
    }

    /// Counts garbage of this kind; gives how often there has been some.
    pub(super) fn note_failure(&self, name: &'static str) -> u64 {
        let mut story = self.story();
        let count = story.failures.entry(name).or_default();
        *count += 1;
        *count
    }

    /// Stops the disk, and only the disk. `name` is the kind of garbage, for the counters.
    pub(super) fn broke(&self, queue: usize, name: &'static str, garbage: &dyn fmt::Display) {
        let times = self.note_failure(name);
        let mut story = self.story();
        if story.broken.is_some() {
            return;
        }
        story.broken = Some(format!("queue {queue}: {garbage}"));
        self.broken.store(true, SeqCst);
        drop(story);
        // A guest that does it again and again does not get a line each time.
        if !times.is_power_of_two() {
            return;
        }
        tracing::error!(
            disk = %self.name,
            queue,
            times,
            error = %garbage,
            "a ring of the guest is broken: this disk stops until the guest restarts it; other \
             disks and nics are not affected"
        );
    }

    /// The volume cannot be opened on a sidecore: the configuration is wrong.
    pub(super) fn cannot_open(&self, error: &dyn fmt::Display) {
        tracing::error!(disk = %self.name, %error, "the disk's volume cannot be opened");
        self.story().broken.get_or_insert(error.to_string());
        self.broken.store(true, SeqCst);
    }

    /// A new start of the guest is a new chance.
    pub(super) fn mend(&self) {
        self.story().broken = None;
        self.broken.store(false, SeqCst);
    }

    fn story(&self) -> MutexGuard<'_, DiskHistory> {
        // Nothing that holds this lock can leave the story half-told.
        self.story.lock()
    }
}
