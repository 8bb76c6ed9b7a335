//! A vhost-user-blk front end that keeps its guest alive over the back end's deaths, as QEMU does.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use super::disk::{DiskInfo, feature, has, mask};
use super::elements::Reuse;
use super::error::FrontEndError;
use super::event::{drain, signal};
use super::guest::{DriverGuest, GuestPlan};
use super::log::DirtyPages;
use super::memory::GuestMemory;
use super::message::Conversation;
use super::packed::NOTED;
use super::ring::{RingDriver, RingOptions};
use super::socket::{FrontEndSocket, SocketRole};
use super::start::{self, Inflight, Negotiated};
use crate::ring::RingKind;

/// How long a back end may take for an answer. None of its answers waits for storage.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The pause after the first failed try to reconnect; it doubles up to the next one.
const BACK_OFF_FIRST: Duration = Duration::from_millis(1);

/// The longest pause between two tries. QEMU's is a second; tests have no such time.
const BACK_OFF_MAX: Duration = Duration::from_millis(100);

/// The features of a back end that the front end uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsedFeatures {
    /// Events by index.
    pub event_idx: bool,
    /// Indirect descriptors.
    pub indirect: bool,
    /// Packed rings instead of split ones.
    pub packed: bool,
    /// The flush; without it every write is durable.
    pub flush: bool,
    /// The inflight region.
    pub inflight: bool,
    /// Acknowledgements of all messages.
    pub acknowledged: bool,
    /// The back-channel, by which a back end says that its disk has changed.
    pub back_channel: bool,
    /// Regions one by one (ADD_MEM_REG) instead of a table.
    pub memory_slots: bool,
    /// The log of dirty pages, once one is started.
    pub log: bool,
    /// Kick every queue after a start; a back end should look at its rings anyway.
    pub kick_on_start: bool,
    /// Go on after a reconnect although requests are outstanding and there is no inflight region:
    /// some may be done twice and some never. Packed rings cannot go on like this: they do not keep
    /// outstanding chains.
    pub resume_blindly: bool,
}

impl Default for UsedFeatures {
    /// Everything but packed rings and going on blindly.
    fn default() -> Self {
        Self {
            event_idx: true,
            indirect: true,
            packed: false,
            flush: true,
            inflight: true,
            acknowledged: true,
            back_channel: true,
            memory_slots: true,
            log: true,
            kick_on_start: true,
            resume_blindly: false,
        }
    }
}

/// The settings of a front end.
#[derive(Clone, Debug)]
pub struct FrontEndConfig {
    /// The way to the back end.
    pub role: SocketRole,
    /// Memory and queues.
    pub guest: GuestPlan,
    /// The features to use.
    pub wanted: UsedFeatures,
    /// The slots and descriptors that its rings take next.
    pub reuse: Reuse,
    /// How long the back end may take for an answer.
    pub answer_timeout: Duration,
}

impl FrontEndConfig {
    /// One queue of the usual size, everything that is offered, over the back end's socket.
    pub fn new(role: SocketRole) -> Self {
        let (guest, wanted, reuse) = Default::default();
        Self { role, guest, wanted, reuse, answer_timeout: ANSWER_TIMEOUT }
    }
}

/// A queue's event descriptors, shared with its ring.
#[derive(Debug)]
pub(super) struct Events {
    pub(super) kick: Arc<OwnedFd>,
    pub(super) call: Arc<OwnedFd>,
    pub(super) err: OwnedFd,
}

impl Events {
    pub(super) fn new() -> Result<Self, FrontEndError> {
        let event = || {
            let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            eventfd(0, flags).map_err(|errno| FrontEndError::Memory(errno.into()))
        };
        Ok(Self { kick: Arc::new(event()?), call: Arc::new(event()?), err: event()? })
    }
}

/// The state that a start found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resumption {
    /// How many tries it took.
    pub attempts: u32,
    /// Requests that were outstanding, on all queues.
    pub outstanding: u32,
    /// An inflight region says what became of them.
    pub inflight: bool,
}

/// A guest with a connection to its device.
#[derive(Debug)]
pub struct FrontEnd {
    config: FrontEndConfig,
    door: FrontEndSocket,
    guest: DriverGuest,
    plugged: Vec<Arc<GuestMemory>>,
    events: Vec<Events>,
    rings: Vec<Option<RingDriver>>,
    /// Where a queue goes on that was stopped in an orderly way.
    bases: Vec<Option<u32>>,
    negotiated: Negotiated,
    inflight: Option<Inflight>,
    /// The log in which the device must mark its writes, while there is one.
    log: Option<Arc<DirtyPages>>,
    conversation: Option<Conversation>,
    back_channel: Option<OwnedFd>,
}

impl FrontEnd {
    /// Makes a guest and connects it, trying again for at most `wait`.
    ///
    /// # Errors
    /// When there is no back end in that time, or it lacks what is needed.
    pub fn connect(config: FrontEndConfig, wait: Duration) -> Result<Self, FrontEndError> {
        let guest = DriverGuest::new(&config.guest).map_err(FrontEndError::Memory)?;
        let queues = usize::from(config.guest.queues);
        let events = (0..queues).map(|_| Events::new()).collect::<Result<_, _>>()?;
        let mut front_end = Self {
            door: FrontEndSocket::new(config.role.clone())?,
            config,
            guest,
            plugged: Vec::new(),
            events,
            rings: Vec::new(),
            bases: vec![None; queues],
            negotiated: Negotiated::default(),
            inflight: None,
            log: None,
            conversation: None,
            back_channel: None,
        };
        front_end.reconnect(wait)?;
        front_end.rings = (0..front_end.config.guest.queues)
            .map(|index| Some(front_end.guest.ring(index, front_end.ring_options(index))))
            .collect();
        Ok(front_end)
    }

    fn ring_options(&self, index: u16) -> RingOptions {
        let events = &self.events[usize::from(index)];
        RingOptions {
            kind: self.ring_kind(),
            event_idx: has(self.negotiated.features, feature::EVENT_IDX),
            indirect: has(self.negotiated.features, feature::INDIRECT_DESC),
            kick: Some(Arc::clone(&events.kick)),
            call: Some(Arc::clone(&events.call)),
            reuse: self.config.reuse,
        }
    }

    /// How its rings are laid out.
    pub fn ring_kind(&self) -> RingKind {
        match has(self.negotiated.features, feature::RING_PACKED) {
            false => RingKind::Split,
            true => RingKind::Packed,
        }
    }

    /// The disk's properties, as the device reports them.
    pub fn disk(&self) -> &DiskInfo {
        &self.negotiated.disk
    }

    /// Whether the back end has said that the disk has changed, since the last time; then
    /// [`FrontEnd::disk`] is what it is now.
    ///
    /// # Errors
    /// When the back end says anything else, or does not answer.
    pub fn disk_changed(&mut self) -> Result<bool, FrontEndError> {
        let Some(channel) = &self.back_channel else { return Ok(false) };
        let mut message = [0; 12];
        let word = |at: usize, message: &[u8; 12]| {
            u32::from_ne_bytes([0, 1, 2, 3].map(|byte| message[at + byte]))
        };
        match rustix::io::read(channel, &mut message) {
            Err(rustix::io::Errno::AGAIN) => return Ok(false),
            Ok(12) if [0, 4, 8].map(|at| word(at, &message)) == [2, 1, 0] => {}
            _ => return Err(FrontEndError::Missing("a change of the disk on the back-channel")),
        }
        let features = self.negotiated.features;
        self.negotiated.disk = start::get_config(self.connected()?, features)?;
        Ok(true)
    }

    /// The virtio features in use; see [`feature`].
    pub fn features(&self) -> u64 {
        self.negotiated.features
    }

    /// The protocol features in use; see [`protocol`](super::protocol).
    pub fn protocol_features(&self) -> u64 {
        self.negotiated.protocol
    }

    /// The guest's memory.
    pub fn memory(&self) -> &Arc<GuestMemory> {
        self.guest.memory()
    }

    /// Whether the back end keeps an inflight region.
    pub fn has_inflight(&self) -> bool {
        self.inflight.is_some()
    }

    /// A queue's ring, unless it was taken.
    pub fn ring(&mut self, index: u16) -> &mut RingDriver {
        let ring = self.rings[usize::from(index)].as_mut();
        ring.expect("the ring was taken")
    }

    /// Takes a queue's ring, for use on another thread. Reconnects do not need it.
    pub fn take_ring(&mut self, index: u16) -> RingDriver {
        self.rings[usize::from(index)].take().expect("the ring was taken")
    }

    /// Whether there is no back end at the moment.
    pub fn hung_up(&self) -> bool {
        self.conversation.as_ref().is_none_or(Conversation::hung_up)
    }

    pub(super) fn conversation(&self) -> Option<&Conversation> {
        self.conversation.as_ref()
    }

    /// Lets go of the back end without a word, as a dying VMM does.
    pub fn hang_up(&mut self) {
        self.conversation = None;
    }

    /// Goes elsewhere for the next reconnect: another back end of the same disk, as after a
    /// migration.
    ///
    /// # Errors
    /// When the new socket cannot be listened at.
    pub fn redirect(&mut self, role: SocketRole) -> Result<(), FrontEndError> {
        self.hang_up();
        self.door = FrontEndSocket::new(role)?;
        Ok(())
    }

    /// Connects anew, trying for at most `wait`, and goes on where the rings are: with the same
    /// memory and the same inflight region, and from the used index unless the queue was stopped.
    ///
    /// # Errors
    /// When there is no back end in that time (the last try's reason), or going on is impossible.
    pub fn reconnect(&mut self, wait: Duration) -> Result<Resumption, FrontEndError> {
        let deadline = Instant::now() + wait;
        let mut pause = BACK_OFF_FIRST;
        let mut attempts = 0;
        loop {
            attempts += 1;
            let left = deadline.saturating_duration_since(Instant::now());
            let error = match self.attempt(left) {
                Ok(mut resumption) => {
                    resumption.attempts = attempts;
                    return Ok(resumption);
                }
                Err(error) => error,
            };
            self.conversation = None;
            let left = deadline.saturating_duration_since(Instant::now());
            if !error.is_passing() || left.is_zero() {
                return Err(error);
            }
            std::thread::sleep(pause.min(left));
            pause = (pause * 2).min(BACK_OFF_MAX);
        }
    }

    fn attempt(&mut self, wait: Duration) -> Result<Resumption, FrontEndError> {
        self.conversation = None;
        let stream = self.door.enter(wait)?;
        let mut conversation = Conversation::new(stream, self.config.answer_timeout);
        let queues = self.config.guest.queues;
        let negotiated = start::negotiate(&mut conversation, &self.config.wanted, queues)?;
        self.negotiated = negotiated.resume(&self.negotiated)?;
        start::set_features(&conversation, self.features_told())?;
        let has_channel = has(self.negotiated.protocol, super::protocol::BACKEND_REQ);
        self.back_channel =
            has_channel.then(|| start::set_back_channel(&conversation)).transpose()?;
        let outstanding = self.prepare_inflight(&conversation)?;
        let memories = || std::iter::once(self.guest.memory()).chain(&self.plugged);
        start::set_memory(&conversation, self.negotiated.protocol, memories())?;
        for (layout, events) in self.guest.queues().iter().zip(&self.events) {
            let (base, logged) = (self.base(layout.index), self.log.is_some());
            start::set_ring(&conversation, self.guest.memory(), layout, base, events, logged)?;
        }
        if let Some(log) = &self.log {
            start::set_log(&conversation, log)?;
        }
        for index in 0..queues {
            start::enable_ring(&conversation, index, true)?;
        }
        self.bases.fill(None);
        if self.config.wanted.kick_on_start {
            self.events.iter().for_each(|events| signal(&events.kick));
        }
        self.conversation = Some(conversation);
        Ok(Resumption { attempts: 0, outstanding, inflight: self.inflight.is_some() })
    }

    /// Hands the inflight region over, or asks for one; counts what is outstanding.
    fn prepare_inflight(&mut self, conversation: &Conversation) -> Result<u32, FrontEndError> {
        let (wanted, plan) = (&self.config.wanted, &self.config.guest);
        let offered = has(self.negotiated.protocol, super::protocol::INFLIGHT_SHMFD);
        let mut outstanding = 0;
        for layout in self.guest.queues() {
            let waiting = self.outstanding(layout.index);
            outstanding += u32::from(waiting);
            let blindly = wanted.resume_blindly && self.ring_kind() == RingKind::Split;
            let known = self.inflight.is_some() && offered || blindly;
            // A queue that was stopped was drained, or says in the region what is left.
            if waiting > 0 && !known && self.bases[usize::from(layout.index)].is_none() {
                let (queue, outstanding) = (layout.index, waiting);
                return Err(FrontEndError::ResumeUnsafe { queue, outstanding });
            }
        }
        if !offered {
            self.inflight = None;
            return Ok(outstanding);
        }
        if self.inflight.is_none() {
            self.inflight = Some(start::get_inflight(conversation, plan)?);
        }
        if let Some(inflight) = &self.inflight {
            start::set_inflight(conversation, inflight)?;
        }
        Ok(outstanding)
    }

    /// Requests between the used and the available index in shared memory; on a packed ring those
    /// that its driver has not seen completed.
    fn outstanding(&self, index: u16) -> u16 {
        let layout = &self.guest.queues()[usize::from(index)];
        let at = |offset| self.guest.memory().u16_at(offset).load(Ordering::Acquire);
        match self.ring_kind() {
            RingKind::Split => {
                at(layout.available_index_at()).wrapping_sub(at(layout.used_index_at()))
            }
            RingKind::Packed => self.note(index) as u16,
        }
    }

    /// Where a queue goes on: where it was stopped, or after what was used. Where the inflight
    /// region knows better, the device believes that.
    fn base(&self, index: u16) -> u32 {
        let layout = &self.guest.queues()[usize::from(index)];
        let used = || match self.ring_kind() {
            RingKind::Split => {
                let used = self.guest.memory().u16_at(layout.used_index_at());
                u32::from(used.load(Ordering::Acquire))
            }
            RingKind::Packed => match self.note(index) {
                note if note & NOTED != 0 => (note >> 32) as u32,
                _ => RingKind::Packed.base_fresh(),
            },
        };
        self.bases[usize::from(index)].unwrap_or_else(used)
    }

    /// The note that the driver of a packed ring has left.
    fn note(&self, index: u16) -> u64 {
        let layout = &self.guest.queues()[usize::from(index)];
        self.guest.memory().u64_at(layout.note).load(Ordering::Acquire)
    }

    fn connected(&self) -> Result<&Conversation, FrontEndError> {
        self.conversation.as_ref().ok_or(FrontEndError::HungUp { ask: "nothing" })
    }

    /// Stops a queue and gives the base at which the device stopped. The device touches the ring no
    /// more.
    ///
    /// # Errors
    /// When the back end fails to answer.
    pub fn stop_ring(&mut self, index: u16) -> Result<u32, FrontEndError> {
        let conversation = self.connected()?;
        start::enable_ring(conversation, index, false)?;
        let base = start::get_base(conversation, index)?;
        self.bases[usize::from(index)] = Some(base);
        Ok(base)
    }

    /// Starts a queue that was stopped where it stopped.
    ///
    /// # Errors
    /// When the back end refuses or does not answer.
    pub fn start_ring(&mut self, index: u16) -> Result<(), FrontEndError> {
        let place = usize::from(index);
        let (layout, memory) = (&self.guest.queues()[place], self.guest.memory());
        let (conversation, events) = (self.connected()?, &self.events[place]);
        let logged = self.log.is_some();
        start::set_ring(conversation, memory, layout, self.base(index), events, logged)?;
        start::enable_ring(conversation, index, true)?;
        self.bases[place] = None;
        if self.config.wanted.kick_on_start {
            signal(&self.events[place].kick);
        }
        Ok(())
    }

    /// The features in use, with the log's.
    fn features_told(&self) -> u64 {
        self.negotiated.features | self.log.as_ref().map_or(0, |_| mask(feature::LOG_ALL))
    }

    /// Has all pages that the device writes marked in a log, as a VMM does that migrates its guest.
    /// Where one is in use already, the new one takes its place: the other has all its marks.
    ///
    /// # Errors
    /// When the back end has no log, refuses or does not answer.
    pub fn start_log(&mut self) -> Result<Arc<DirtyPages>, FrontEndError> {
        if !has(self.negotiated.protocol, super::protocol::LOG_SHMFD) {
            return Err(FrontEndError::Missing("the log of dirty pages (LOG_SHMFD)"));
        }
        let memories = std::iter::once(self.guest.memory()).chain(&self.plugged);
        let log = DirtyPages::new(memories.map(|memory| &**memory));
        let log = Arc::new(log.map_err(FrontEndError::Memory)?);
        start::set_log(self.connected()?, &log)?;
        if self.log.replace(Arc::clone(&log)).is_none() {
            self.tell_log()?;
        }
        Ok(log)
    }

    /// Nothing is marked any more.
    ///
    /// # Errors
    /// When the back end refuses or does not answer.
    pub fn stop_log(&mut self) -> Result<(), FrontEndError> {
        self.log = None;
        self.tell_log()
    }

    /// Says whether pages must be marked, in QEMU's order.
    fn tell_log(&self) -> Result<(), FrontEndError> {
        let (conversation, logged) = (self.connected()?, self.log.is_some());
        start::set_features(conversation, self.features_told())?;
        self.guest.queues().iter().try_for_each(|layout| {
            start::set_addresses(conversation, self.guest.memory(), layout, logged)
        })
    }

    /// Has `event` signalled when pages were marked.
    ///
    /// # Errors
    /// When the back end refuses or does not answer.
    pub fn set_log_signal(&mut self, event: &OwnedFd) -> Result<(), FrontEndError> {
        start::set_log_signal(self.connected()?, event)
    }

    /// Adds memory to the guest. Its addresses must be free.
    ///
    /// # Errors
    /// When the back end refuses or does not answer.
    pub fn plug(&mut self, memory: Arc<GuestMemory>) -> Result<(), FrontEndError> {
        let conversation = self.connected()?;
        if has(self.negotiated.protocol, super::protocol::CONFIGURE_MEM_SLOTS) {
            start::add_memory(conversation, &memory)?;
        } else {
            let memories = std::iter::once(self.guest.memory()).chain(&self.plugged);
            start::set_memory(conversation, self.negotiated.protocol, memories.chain([&memory]))?;
        }
        self.plugged.push(memory);
        Ok(())
    }

    /// Takes the memory that was plugged last away from the back end; nothing outstanding may use
    /// it.
    ///
    /// # Errors
    /// When the back end refuses or does not answer.
    pub fn unplug(&mut self) -> Result<Option<Arc<GuestMemory>>, FrontEndError> {
        let Some(memory) = self.plugged.pop() else { return Ok(None) };
        let conversation = self.connected()?;
        if has(self.negotiated.protocol, super::protocol::CONFIGURE_MEM_SLOTS) {
            start::remove_memory(conversation, &memory)?;
        } else {
            let memories = std::iter::once(self.guest.memory()).chain(&self.plugged);
            start::set_memory(conversation, self.negotiated.protocol, memories)?;
        }
        Ok(Some(memory))
    }

    /// Whether the device has said, since the last time, that a queue is broken.
    pub fn ring_failed(&self, index: u16) -> bool {
        drain(&self.events[usize::from(index)].err) > 0
    }

    /// The inflight region's descriptor, for a look into it.
    pub fn inflight_file(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.inflight.as_ref().map(|inflight| inflight.file.as_fd())
    }

    /// The way to the back end.
    pub fn role(&self) -> &SocketRole {
        self.door.role()
    }
}
