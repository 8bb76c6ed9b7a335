//! The virtio-blk disk: a [`virtio::Device`] on the control side, and on each of its sidecores a
//! share ([`DiskQueues`]) that does the work.
//!
//! ```text
//!   session thread: Disk ── call ──▶ sidecore: Part ─▶ DiskQueues ─▶ Channel
//!                     ◀── Stopped ──
//! ```
//!
//! Queue `i` starts on sidecore `i` modulo their number, and may be moved while it runs; which
//! sidecore has which queue is in the disk's [`Placement`]. The first queue that starts begins a
//! new attachment, the last one that stops closes it; in between, queues come and go as they like.

mod core;
mod part;
mod placement;
mod queues;
mod served;

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::MutexGuard;
use rustix::event::{EventfdFlags, eventfd};
use rustix::rand::{GetRandomFlags, getrandom};
use sidecore::{CallError, Sidecore};
use virtio::{Device, DeviceError, Logging, Memory, Queue, QueueConfig};

use crate::attach::Attach;
use crate::attachment::{AttachOptions, Attachment, AttachmentSnapshot, CHANNELS_MAX, Remembered};
use crate::request::{self, feature};

pub use self::core::{DiskCore, QueueCounters, ShareCounters};
pub use placement::{Ended, MoveError, Placement};
pub use queues::{DiskQueues, LEAVE, NotMoved, Stopped, TAKE_MAX};

use part::{Start, add_queue, with};
use placement::{Paused, Places, RunningStart};

/// How long queues that are being stopped drain, all of a disk together. QEMU's main lock is held
/// meanwhile, so the guest stands still. Requests that do not end in time stay in the inflight
/// region.
pub const DRAIN: Duration = Duration::from_secs(2);

/// Requests of one disk on one sidecore at once. Two full rings of QEMU's default.
pub const DEPTH: u16 = 256;

/// Numbers for shares; never used twice in a process.
static PART_NEXT: AtomicU64 = AtomicU64::new(0);

/// The options of a disk.
#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// Its name, for the log, for status, and as its serial number.
    pub name: String,
    /// The attachment's name, as the server's records have it.
    pub attachment: String,
    /// How many queues the guest may use.
    pub queues: u16,
    /// Requests at once on one sidecore; [`DEPTH`] unless there is a reason.
    pub depth: u16,
    /// The operator accepts that acknowledged, unflushed writes may be gone.
    pub accept_loss: bool,
    /// Requests end in an error after this time without their server; `None` waits for ever.
    pub error_after_ns: Option<u64>,
    /// Queues start on the first so many of its sidecores. A controller of several disks sets it;
    /// without a controller it is all of them.
    pub active: Arc<AtomicUsize>,
    /// The records of the attachment that this node keeps across its processes.
    pub remembered: Option<Arc<Remembered>>,
}

impl DiskOptions {
    /// A disk with one queue that waits for ever.
    pub fn new(name: impl Into<String>) -> Self {
        let name = name.into();
        Self {
            attachment: name.clone(),
            name,
            queues: 1,
            depth: DEPTH,
            accept_loss: false,
            error_after_ns: None,
            active: Arc::new(AtomicUsize::new(usize::MAX)),
            remembered: None,
        }
    }

    fn attach(&self, claimant: u64, resume: bool) -> AttachOptions {
        let (accept_loss, error_after_ns) = (self.accept_loss, self.error_after_ns);
        AttachOptions { resume, accept_loss, error_after_ns, ..AttachOptions::new(claimant) }
    }
}

/// Why a queue was not started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The disk has fewer queues.
    #[error("disk {disk} has {queues} queues")]
    NoSuchQueue {
        /// The disk.
        disk: String,
        /// The number of its queues.
        queues: u16,
    },
    /// The ring is unusable.
    #[error("disk {disk}: {source}")]
    Ring {
        /// The disk.
        disk: String,
        /// The fault.
        r#source: virtio::RingError,
    },
    /// The sidecore is gone.
    #[error("disk {disk}: {source}")]
    Sidecore {
        /// The disk.
        disk: String,
        /// The sidecore's answer.
        r#source: CallError,
    },
}

/// A disk. Hand it to [`virtio::serve`]; keep its [`DiskCore`] to see what it does.
pub struct Disk {
    options: DiskOptions,
    core: Arc<DiskCore>,
    volume: Arc<dyn Attach>,
    placement: Arc<Placement>,
    acked: u64,
    /// Told by the volume when its size changes.
    changes: Option<Arc<OwnedFd>>,
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Disk")
            .field("name", &self.options.name)
            .field("volume", &self.volume)
            .field("sidecores", &self.placement.sidecores.len())
            .finish_non_exhaustive()
    }
}

impl Disk {
    /// A disk on `volume`, served by these sidecores.
    ///
    /// # Panics
    /// When there are no queues, no sidecores or more than [`CHANNELS_MAX`], or no depth; the
    /// configuration checks that first.
    pub fn new(options: DiskOptions, volume: Arc<dyn Attach>, sidecores: Vec<Sidecore>) -> Self {
        assert!((1..=CHANNELS_MAX).contains(&sidecores.len()), "a disk needs sidecores");
        assert!((1..=virtio::QUEUES_MAX).contains(&usize::from(options.queues)), "and queues");
        assert!(options.depth > 0, "and room for requests");
        let core = DiskCore::new(&options.name, options.queues);
        let changes = watch(&options.name, &*volume);
        let active = Arc::clone(&options.active);
        let placement = Arc::new(Placement::new(sidecores, options.queues, active));
        Self { options, core, volume, placement, acked: 0, changes }
    }

    /// The disk's state, for observers.
    pub fn core(&self) -> Arc<DiskCore> {
        Arc::clone(&self.core)
    }

    /// Which sidecore has which queue, for a controller that moves queues.
    pub fn placement(&self) -> Arc<Placement> {
        Arc::clone(&self.placement)
    }

    /// Its queues are about to be started as another process had them, whose attachment stood like
    /// this. `false`: that cannot be.
    pub fn go_on(&self, standing: &AttachmentSnapshot) -> bool {
        let options = self.options.attach(standing.claimant, standing.resume);
        let it = Attachment::going_on(&self.options.attachment, options, standing);
        let remembered = self.options.remembered.clone();
        let attachment = it.map(|it| Arc::new(it.remembered_in(remembered)));
        let is_possible = attachment.is_some();
        self.placement.places().paused = attachment.map(|it| Paused { attachment: Some(it) });
        is_possible
    }

    /// A start that has no queue yet.
    fn new_start(&self, paused: Option<Paused>, before: Option<(u64, u64)>) -> RunningStart {
        // A new start of the guest is a new chance, and a pause is none.
        if paused.is_none() {
            self.core.mend();
        }
        let heir = paused.and_then(|paused| paused.attachment);
        let start = Start {
            core: Arc::clone(&self.core),
            volume: Arc::clone(&self.volume),
            depth: self.options.depth,
            durable: self.acked & feature::FLUSH == 0,
            new_attachment: attach(&self.options, &self.core, heir.clone(), before),
            attachment: OnceLock::new(),
            resume: AtomicBool::new(false),
            queues: AtomicUsize::new(0),
            latest_ns: AtomicU64::new(0),
        };
        RunningStart {
            start: Arc::new(start),
            id: PART_NEXT.fetch_add(1, Relaxed),
            queues: vec![false; usize::from(self.options.queues)],
            drain_until_ns: None,
            heir,
        }
    }

    fn start_queue(&mut self, config: QueueConfig) -> Result<(), StartError> {
        let disk = self.options.name.clone();
        let index = config.index;
        if index >= usize::from(self.options.queues) {
            return Err(StartError::NoSuchQueue { disk, queues: self.options.queues });
        }
        let places = &mut *self.placement.places();
        let owner = self.placement.home(index, places.owners[index]);
        let (paused, before) = (&mut places.paused, places.before);
        let running = places.running.get_or_insert_with(|| self.new_start(paused.take(), before));
        let (start, id) = (Arc::clone(&running.start), running.id);
        let started = self.placement.sidecores[owner].call(move |local| {
            local.changes(|| start.core.label());
            Queue::new(config).map(|queue| add_queue(local, id, &start, queue))
        });
        let result = match started {
            Ok(Ok(())) => {
                running.queues[index] = true;
                running.drain_until_ns = None;
                places.owners[index] = owner;
                return Ok(());
            }
            Ok(Err(source)) => {
                self.core.note_failure(source.name());
                StartError::Ring { disk, source }
            }
            Err(source) => StartError::Sidecore { disk, source },
        };
        self.end_if_last(places);
        Err(result)
    }

    /// Asks a queue to stop; the answer comes when it has drained.
    fn begin_stop(&self, places: &mut Places, index: usize) -> Option<Receiver<Stopped>> {
        let running = places.running.as_mut()?;
        if !std::mem::take(running.queues.get_mut(index)?) {
            return None;
        }
        let drain_ns = DRAIN.as_nanos() as u64;
        let until_ns = *running.drain_until_ns.get_or_insert_with(|| sidecore::now_ns() + drain_ns);
        let (reply, stopped) = sync_channel(1);
        let id = running.id;
        let asked = self.placement.sidecores[places.owners[index]]
            .call(move |local| with(local, id, |part| part.begin_stop(index, until_ns, reply)));
        // Without the sidecore the sender is gone too, and so says the receiver.
        asked.ok().map(|_| stopped)
    }

    /// Waits for a queue that was asked to stop. Its sidecore answers at the deadline at the
    /// latest, or is gone.
    fn end_stop(&self, index: usize, stopped: Option<Receiver<Stopped>>) -> u32 {
        let Some(Stopped { base, left, .. }) = stopped.and_then(|stopped| stopped.recv().ok())
        else {
            return 0;
        };
        if left > 0 {
            tracing::warn!(
                disk = %self.options.name,
                queue = index,
                left,
                "the queue stopped before its requests were done; they will be done again"
            );
        }
        base
    }

    /// The attachment of a guest whose last queue has stopped.
    fn ending(places: &Places) -> Option<Arc<Attachment>> {
        let running = places.running.as_ref().filter(|running| !running.queues.contains(&true));
        running.and_then(|running| running.start.attachment.get()).map(Arc::clone)
    }

    /// After the last queue of a guest that has gone, its volume gets all that the guest was told
    /// of, and the attachment is closed.
    fn settle_and_end(&self, places: MutexGuard<'_, Places>) -> MutexGuard<'_, Places> {
        let ending = Self::ending(&places);
        // It may take minutes, and no other thread may wait for that.
        drop(places);
        ending.iter().for_each(|attachment| self.volume.settle(attachment));
        let mut places = self.placement.places();
        self.end_if_last(&mut places);
        places
    }

    /// After the last queue, the attachment is closed and all sidecores let go.
    fn end_if_last(&self, places: &mut Places) {
        let ended = places.running.take_if(|running| !running.queues.contains(&true));
        let Some(running) = ended else { return };
        if let Some(attachment) = running.start.attachment.get() {
            places.before = Some((attachment.options().claimant, attachment.view().epoch));
            attachment.close();
        }
        for sidecore in &self.placement.sidecores {
            let id = running.id;
            // A sidecore that has stopped has let go already.
            let _ = sidecore.call(move |local| {
                with(local, id, part::DiskPart::let_go);
            });
        }
    }

    /// Runs `f` on a running queue.
    fn change(&self, index: usize, f: impl FnOnce(&mut Queue) + Send + 'static) {
        let places = self.placement.places();
        let Some(running) = &places.running else { return };
        let id = running.id;
        let _ = self.placement.sidecores[places.owners[index]].call(move |local| {
            with(local, id, |part| part.queue(index).map(f));
        });
    }
}

/// An eventfd that the volume makes readable when its size changes.
fn watch(disk: &str, volume: &dyn Attach) -> Option<Arc<OwnedFd>> {
    match eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK) {
        Ok(event) => {
            let event = Arc::new(event);
            volume.size().watch(&event);
            Some(event)
        }
        Err(error) => {
            tracing::warn!(disk, %error, "its guest will not learn of a new size of the disk");
            None
        }
    }
}

/// Makes the attachment of a start, with a claimant of its own unless it goes on with another one,
/// or its guest resumes where it was; `before` is what the front end that is there had.
fn attach(
    options: &DiskOptions,
    core: &Arc<DiskCore>,
    heir: Option<Arc<Attachment>>,
    before: Option<(u64, u64)>,
) -> part::NewAttachment {
    let (options, core) = (options.clone(), Arc::clone(core));
    Box::new(move |resume| {
        if let Some(heir) = &heir {
            return heir.go_on();
        }
        let mut claimant = [0; 8];
        // Without random numbers the clock still tells two starts of one host apart.
        if getrandom(&mut claimant, GetRandomFlags::empty()).is_err() {
            claimant = sidecore::now_ns().to_le_bytes();
        }
        let drawn = u64::from_le_bytes(claimant);
        let (claimant, known) = match &options.remembered {
            Some(remembered) => remembered.begin(resume, before.map(|it| it.0), drawn),
            None => before.filter(|_| resume).unwrap_or((drawn, 0)),
        };
        let attach = AttachOptions { known, ..options.attach(claimant, resume) };
        let it = Attachment::new(&options.attachment, attach);
        if core.takes_now() {
            it.take_over();
        }
        Arc::new(it.remembered_in(options.remembered.clone()))
    })
}

impl Device for Disk {
    fn features(&self) -> u64 {
        request::features(&self.volume.info(), self.options.queues)
    }

    fn config(&self) -> Vec<u8> {
        request::config(&self.volume.info(), self.options.queues)
    }

    fn config_event(&self) -> Option<Arc<OwnedFd>> {
        self.changes.clone()
    }

    fn queues_max(&self) -> usize {
        usize::from(self.options.queues)
    }

    fn set_features(&mut self, acked: u64) {
        self.acked = acked;
    }

    fn start(&mut self, queue: QueueConfig) -> Result<(), DeviceError> {
        Ok(self.start_queue(queue)?)
    }

    fn stop(&mut self, index: usize) -> u32 {
        let mut places = self.placement.places();
        let stopped = self.begin_stop(&mut places, index);
        let base = self.end_stop(index, stopped);
        drop(self.settle_and_end(places));
        base
    }

    fn set_memory(&mut self, memory: Arc<Memory>) {
        let places = self.placement.places();
        let Some(running) = &places.running else { return };
        for sidecore in &self.placement.sidecores {
            let (id, memory) = (running.id, Arc::clone(&memory));
            let _ = sidecore.call(move |local| with(local, id, |part| part.set_memory(&memory)));
        }
    }

    fn set_logging(&mut self, index: usize, logging: Logging) {
        self.change(index, |queue| queue.set_logging(logging));
    }

    fn set_call(&mut self, index: usize, call: Option<OwnedFd>) {
        self.change(index, |queue| queue.set_call(call));
    }

    fn set_kick(&mut self, index: usize, kick: Option<OwnedFd>) {
        self.change(index, |queue| queue.set_kick(kick));
    }

    fn pause(&mut self, queues: &[usize], drain: Duration) -> Vec<u32> {
        let places = &mut *self.placement.places();
        if let Some(running) = &mut places.running {
            running.drain_until_ns = Some(sidecore::now_ns() + drain.as_nanos() as u64);
        }
        // All at once, so that they drain together.
        let stopped = queues.iter().map(|&index| (index, self.begin_stop(places, index)));
        let stopped: Vec<_> = stopped.collect();
        let ended = stopped.into_iter().map(|(index, stopped)| self.end_stop(index, stopped));
        let bases = ended.collect();
        // Now no sidecore makes an attachment any more.
        if let Some(running) = &places.running {
            places.paused = Some(running.pause());
        }
        self.end_if_last(places);
        bases
    }

    fn disconnected(&mut self) {
        let mut places = self.placement.places();
        // All at once, so that they drain together.
        let queues = 0..self.queues_max();
        let stopped: Vec<_> = queues.map(|index| self.begin_stop(&mut places, index)).collect();
        for (index, stopped) in stopped.into_iter().enumerate() {
            self.end_stop(index, stopped);
        }
        let mut places = self.settle_and_end(places);
        (places.paused, places.before) = (None, None);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.disconnected();
    }
}

#[cfg(test)]
mod tests;
