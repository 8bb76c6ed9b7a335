//! A virtqueue, device side: takes chains in batches, puts them back in batches.
//!
//! The common part of split and packed rings is here: the outstanding chains, the memory that they
//! keep, the driver's call descriptor, the failure of a queue. How chains come and go is in
//! `SplitRing` and `PackedRing`; the kind of the ring is decided when the queue is made.
//!
//! A queue belongs to one thread. After [`Queue::new`] nothing here allocates, and the only system
//! call on the way of a request is the write to the call descriptor when the driver wants one.

mod singles;

pub use singles::Single;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use sidecore::foreign::Allowance;

use crate::QUEUE_SIZE_MAX;
use crate::chain::{Chain, ChainHead, Segment, each_piece};
use crate::descriptor::{Lenience, Reader};
use crate::dirty::{DirtyLog, Logging};
use crate::error::RingError;
use crate::inflight::InflightQueue;
use crate::memory::Memory;
use crate::notify::Signal;
use crate::packed::PackedRing;
use crate::prefetch;
use crate::ring::{ChainState, Chains, RingKind, RingPlan, TakenChain};
use crate::shared::{Area, Stores};
use crate::sigbus;
use crate::split::SplitRing;

/// All that a queue needs to start. Addresses are the guest's.
#[derive(Debug)]
pub struct QueueConfig {
    /// Which queue of its device.
    pub index: usize,
    /// How the ring is laid out.
    pub kind: RingKind,
    /// How many descriptors, a power of two.
    pub size: u16,
    /// The guest's memory.
    pub memory: Arc<Memory>,
    /// Where the descriptors are.
    pub desc: u64,
    /// Where the driver's part is: the available ring, or the driver's event structure.
    pub avail: u64,
    /// Where the device's part is: the used ring, or the device's event structure.
    pub used: u64,
    /// Where to go on, as SET_VRING_BASE has it. On a split ring the available index. On a packed
    /// ring the slot of the next available descriptor and its wrap counter (bit 15), and 16 bits
    /// higher the same of the next used one. Where the inflight region was in use before, it knows
    /// better and is believed.
    pub base: u32,
    /// Notifications are asked for by index (EVENT_IDX was negotiated).
    pub event_idx: bool,
    /// Indirect tables were negotiated.
    pub indirect: bool,
    /// Readable when the driver made chains available; none when it expects to be polled.
    pub kick: Option<OwnedFd>,
    /// To write to when chains were used; none when the driver polls.
    pub call: Option<OwnedFd>,
    /// To write to when the queue fails.
    pub err: Option<OwnedFd>,
    /// The device gives chains back in the order in which it takes them. Then the ring itself says
    /// where to go on and is believed sooner than `base`, for a front end may not know after a
    /// kill: a split ring by its used index, a packed one if it looks as such a device leaves it.
    /// For rings without an inflight region.
    pub in_order: bool,
    /// The device only reads what it is given. Then a descriptor's write flag and a piece of no
    /// bytes say nothing: both are passed over and counted, as other back ends pass over them.
    /// DPDK sets the flag on the header of chains that it puts into indirect tables of packed
    /// rings.
    pub reads_only: bool,
    /// The queue's part of the inflight region.
    pub inflight: Option<InflightQueue>,
    /// The log of dirty pages, and the pages that are marked there.
    pub logging: Logging,
    /// The time that signals to this front end and taking its kicks may cost.
    pub allowance: Arc<Allowance>,
}

/// The counts of a queue since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounters {
    /// Chains taken.
    pub taken: u64,
    /// Of these, chains found in the inflight region.
    pub redone: u64,
    /// Chains given back to the driver.
    pub used: u64,
    /// Batches published.
    pub batches: u64,
    /// Calls: writes to the call descriptor.
    pub calls: u64,
    /// Times that it was looked whether the driver wants a call, and it did not.
    pub calls_saved: u64,
    /// Descriptors that were taken although they break a rule; see [`QueueConfig::reads_only`].
    pub tolerated: u64,
}

/// The memory that outstanding requests of a former queue may still point into. Dropping it may
/// unmap guest memory: keep it until the last of these requests has ended.
#[derive(Debug)]
pub struct Retained {
    /// The tables; they are public for a look.
    pub tables: Vec<Arc<Memory>>,
}

/// A table and how many outstanding chains were translated by it.
#[derive(Debug)]
struct TableInUse {
    memory: Option<Arc<Memory>>,
    out: u16,
}

/// The memory tables that outstanding chains were translated by; at most one more than there can
/// be outstanding chains, for only the present one may have none.
#[derive(Debug)]
struct Tables {
    tables: Vec<TableInUse>,
    present: u16,
    /// The region of the last translation.
    hint: usize,
    lenience: Lenience,
}

impl Tables {
    fn new(memory: Arc<Memory>, lenience: Lenience) -> Self {
        Self {
            tables: vec![TableInUse { memory: Some(memory), out: 0 }],
            present: 0,
            hint: 0,
            lenience,
        }
    }

    fn memory(&self) -> &Arc<Memory> {
        let memory = self.tables[usize::from(self.present)].memory.as_ref();
        memory.expect("the present table is kept")
    }

    #[inline]
    fn reader(&mut self, indirect: bool) -> Reader<'_> {
        let memory = self.tables[usize::from(self.present)].memory.as_ref();
        let memory = memory.expect("the present table is kept");
        Reader { memory, hint: &mut self.hint, lenience: &mut self.lenience, indirect }
    }

    fn lost_from(&self) -> Option<u64> {
        let mut memories = self.tables.iter().filter_map(|table| table.memory.as_ref());
        memories.find_map(|memory| memory.lost_from())
    }

    /// Another memory for chains of the future.
    fn replace(&mut self, memory: Arc<Memory>, size: u16) {
        self.hint = 0;
        let present = &mut self.tables[usize::from(self.present)];
        if present.out == 0 {
            present.memory = Some(memory);
            return;
        }
        let free = self.tables.iter().position(|table| table.memory.is_none());
        let at = free.unwrap_or(self.tables.len());
        let table = TableInUse { memory: Some(memory), out: 0 };
        if at < self.tables.len() {
            self.tables[at] = table;
        } else {
            self.tables.push(table);
        }
        assert!(self.tables.len() <= usize::from(size) + 1);
        self.present = at as u16;
    }

    /// Where the guest has what this process has at `host`; any table will do, for two regions that
    /// are mapped are at two places.
    fn guest_addr_of(&self, host: *const u8) -> Option<(u64, u64)> {
        let memories = self.tables.iter().filter_map(|table| table.memory.as_ref());
        let mut found = memories.filter_map(|memory| memory.guest_addr_of_host(host));
        found.next()
    }

    /// One chain less was translated by this table; a table of the past goes with its last one.
    #[inline]
    fn release(&mut self, table: u16) {
        let entry = &mut self.tables[usize::from(table)];
        entry.out -= 1;
        if entry.out == 0 && table != self.present {
            entry.memory = None;
        }
    }
}

/// The ring itself.
#[derive(Debug)]
enum QueueRing {
    Split(SplitRing),
    Packed(PackedRing),
}

/// The same on either kind of ring.
macro_rules! either {
    ($queue:expr, $ring:ident => $do:expr) => {
        match $queue {
            QueueRing::Split($ring) => $do,
            QueueRing::Packed($ring) => $do,
        }
    };
}
use either;

/// One queue. See the module's text.
#[derive(Debug)]
pub struct Queue {
    index: usize,
    size: u16,
    indirect: bool,
    ring: QueueRing,
    stores: Stores,
    /// Writes to buffers are marked as dirty.
    logs_buffers: bool,
    tables: Tables,
    chains: Chains,
    /// Chains that were put and not yet published, in order.
    staged: Vec<u16>,
    outstanding: u16,
    /// Some queue of the inflight region had completed requests when that was mapped.
    region_resumes: bool,
    /// This queue's part of it.
    inflight: Option<Area>,
    kick: Option<OwnedFd>,
    call: Option<Signal>,
    err: Option<Signal>,
    allowance: Arc<Allowance>,
    failed: Option<RingError>,
    /// How often anybody's memory was lost when this queue last looked at its own; zero for a
    /// queue that has not looked yet.
    losses: u64,
    counters: QueueCounters,
}

impl Queue {
    /// Checks the ring and, where there is an inflight region, finds out what has to be done
    /// again: `take` gives that first, in its old order. Signals the driver once, since a
    /// predecessor may have died between publishing and calling.
    ///
    /// # Errors
    /// When the ring is not usable or contradicts the inflight region.
    pub fn new(config: QueueConfig) -> Result<Self, RingError> {
        Self::with_stores(config, Stores::new())
    }

    /// As `new`, and from the `stores_max`th store on nothing reaches shared memory any more, as
    /// if the process had been killed there.
    ///
    /// # Errors
    /// As for `new`.
    #[cfg(any(test, feature = "stopping-points"))]
    pub fn new_stopping(config: QueueConfig, stores_max: u64) -> Result<Self, RingError> {
        let mut stores = Stores::new();
        stores.stop_after(stores_max);
        Self::with_stores(config, stores)
    }

    fn with_stores(config: QueueConfig, mut stores: Stores) -> Result<Self, RingError> {
        let size = config.size;
        if !size.is_power_of_two() || size > QUEUE_SIZE_MAX {
            return Err(RingError::Size(u32::from(size)));
        }
        let QueueConfig { desc, avail, used, event_idx, base, in_order, reads_only, .. } = config;
        let Logging { log, buffers, ring: used_logged_at } = config.logging;
        let logs_buffers = buffers && log.is_some();
        stores.set_log(log, used_logged_at.is_some());
        let shape = RingPlan { desc, avail, used, size, event_idx, used_logged_at };
        let region_resumes = config.inflight.as_ref().is_some_and(InflightQueue::resumes);
        let (memory, inflight) = (&config.memory, config.inflight);
        let inflight_area = inflight.as_ref().map(|queue| queue.area().clone());
        let ring = match config.kind {
            RingKind::Split => QueueRing::Split(SplitRing::new(
                shape,
                memory,
                base,
                in_order,
                inflight,
                &mut stores,
            )?),
            RingKind::Packed => QueueRing::Packed(PackedRing::new(
                shape,
                memory,
                base,
                in_order,
                inflight,
                &mut stores,
            )?),
        };
        let allowance = config.allowance;
        let mut queue = Self {
            index: config.index,
            size,
            indirect: config.indirect,
            ring,
            stores,
            logs_buffers,
            tables: Tables::new(config.memory, Lenience::new(reads_only)),
            chains: Chains(vec![ChainState::Free; usize::from(size)]),
            staged: Vec::with_capacity(usize::from(size)),
            outstanding: 0,
            region_resumes,
            inflight: inflight_area,
            kick: config.kick,
            call: config.call.map(|call| Signal::new(call, &allowance)),
            err: config.err.map(|err| Signal::new(err, &allowance)),
            allowance,
            failed: None,
            losses: 0,
            counters: QueueCounters::default(),
        };
        either!(&queue.ring, ring => ring.mark_all(&mut queue.stores));
        queue.signal();
        Ok(queue)
    }

    /// Which queue of its device this is.
    pub fn index(&self) -> usize {
        self.index
    }

    /// How many descriptors the ring has.
    pub fn size(&self) -> u16 {
        self.size
    }

    /// How the ring is laid out.
    pub fn kind(&self) -> RingKind {
        match self.ring {
            QueueRing::Split(_) => RingKind::Split,
            QueueRing::Packed(_) => RingKind::Packed,
        }
    }

    /// Takes the next chain, if there is one; call it until there is none. `chain` is overwritten.
    ///
    /// # Errors
    /// When the driver broke the rules. The queue gives the same error from then on, and has told
    /// the front end by its error descriptor; chains that are outstanding may still be put.
    #[inline]
    pub fn take(&mut self, chain: &mut Chain) -> Result<Option<ChainHead>, RingError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        chain.clear();
        let result = self.take_next(chain);
        if let Err(error) = result {
            chain.clear();
            self.fail(error);
        }
        result
    }

    #[cold]
    fn fail(&mut self, error: RingError) {
        self.failed = Some(error);
        if let Some(err) = &self.err
            && !self.stores.stopped()
        {
            err.signal();
        }
    }

    /// Whether memory that this queue uses was lost since the last look.
    #[inline]
    fn look_for_losses(&mut self) -> Result<(), RingError> {
        let losses = sigbus::losses();
        if losses == self.losses {
            return Ok(());
        }
        self.losses = losses;
        // Memory was lost somewhere: ours?
        let parts = [
            ("guest's memory", self.tables.lost_from()),
            ("inflight region", self.inflight.as_ref().and_then(Area::lost_from)),
            ("dirty log", self.stores.log().and_then(DirtyLog::lost_from)),
        ];
        for (part, lost_from) in parts {
            if let Some(offset) = lost_from {
                return Err(RingError::MemoryLost { part, offset });
            }
        }
        Ok(())
    }

    #[inline]
    fn take_next(&mut self, chain: &mut Chain) -> Result<Option<ChainHead>, RingError> {
        self.look_for_losses()?;
        let mut reader = self.tables.reader(self.indirect);
        let (stores, chains) = (&mut self.stores, &self.chains);
        let taken = either!(&mut self.ring, ring => ring.take(stores, chains, &mut reader, chain))?;
        let Some(TakenChain { head, redone }) = taken else { return Ok(None) };
        // A request's header. Nearly always the status is in the same line, so it is asked for to
        // be written: read first, it would have to be fetched twice.
        if let Some(first) = chain.readable.first() {
            prefetch::for_writing(first.addr);
        }
        let table = self.tables.present;
        self.chains.0[usize::from(head)] = ChainState::Out { table };
        self.tables.tables[usize::from(table)].out += 1;
        self.outstanding += 1;
        self.counters.taken += 1;
        self.counters.redone += u64::from(redone);
        Ok(Some(ChainHead::from_index(head)))
    }

    /// Stores a byte into a writable piece of a chain that is outstanding: its status.
    ///
    /// # Safety
    /// `at` must lie in a segment of such a chain of this queue.
    pub unsafe fn answer(&mut self, at: *mut u8, value: u8) {
        // SAFETY: the caller's promise.
        unsafe { self.stores.byte(at, value) }
        self.wrote(&[Segment { addr: at, len: 1 }]);
    }

    /// Stores `from` into the segments of a chain that is outstanding, as [`crate::scatter`] does,
    /// byte by byte: for short answers that the device makes itself. Gives how many bytes there
    /// was room for.
    ///
    /// # Safety
    /// The segments must be of such a chain of this queue.
    pub unsafe fn answer_bytes(&mut self, segments: &[Segment], from: &[u8]) -> usize {
        let mut done = 0;
        each_piece(segments, 0, from.len(), |addr, len| {
            for at in 0..len {
                // SAFETY: the caller's promise; the piece lies in a segment.
                unsafe { self.stores.byte(addr.wrapping_add(at), from[done + at]) };
            }
            // A piece is not longer than its segment.
            self.wrote(&[Segment { addr, len: len as u32 }]);
            done += len;
        });
        done
    }

    /// Marks the pages of these pieces as dirty, while there is a log. The device must call this
    /// after a copy or the kernel has written into an outstanding chain, and before the chain is
    /// put. Bytes that the queue itself writes are marked already.
    #[inline]
    pub fn wrote(&mut self, segments: &[Segment]) {
        if !self.logs_buffers {
            return;
        }
        for segment in segments {
            // Our own mistake if it is nowhere: outstanding chains keep their memory.
            let (addr, left) = self.tables.guest_addr_of(segment.addr).expect("guest memory");
            assert!(u64::from(segment.len) <= left, "a piece lies in one region");
            self.stores.mark(addr, u64::from(segment.len));
        }
    }

    /// Gives a chain back, into whose writable pieces `written` bytes were written. The driver
    /// sees it with the next `publish`; its segments are no longer valid.
    #[inline]
    pub fn put(&mut self, head: ChainHead, written: u32) {
        let head = head.index();
        let ChainState::Out { table } = self.chains.0[usize::from(head)] else {
            panic!("chain {head} of queue {} is put but was not outstanding", self.index);
        };
        self.tables.release(table);
        self.chains.0[usize::from(head)] = ChainState::Staged;
        match &mut self.ring {
            QueueRing::Split(ring) => ring.put(&mut self.stores, head, written, self.staged.len()),
            QueueRing::Packed(ring) => ring.put(head, written),
        }
        self.staged.push(head);
        self.outstanding -= 1;
    }

    /// Shows the driver all that was put, with one store, and calls it if it wants to be called.
    /// True when it did.
    pub fn publish(&mut self) -> bool {
        self.show() && self.call()
    }

    /// Shows the driver all that was put, with one store, and leaves it to [`Queue::call`] whether
    /// to call it. False when there was nothing, and when memory was lost: then the queue has
    /// failed.
    pub fn show(&mut self) -> bool {
        if self.staged.is_empty() {
            return false;
        }
        // A request whose memory was lost meanwhile has not been done as it says: a write may have
        // stored zeroes. It gets no answer, nor does what would be shown together with it.
        if self.failed.is_none()
            && let Err(error) = self.look_for_losses()
        {
            self.fail(error);
        }
        if self.failed.is_some_and(|error| error.is_memory_lost()) {
            return false;
        }
        either!(&mut self.ring, ring => ring.publish(&mut self.stores, &self.staged));
        for &head in &self.staged {
            self.chains.0[usize::from(head)] = ChainState::Free;
        }
        self.counters.used += self.staged.len() as u64;
        self.counters.batches += 1;
        self.staged.clear();
        self.close_log();
        true
    }

    /// Calls the driver if it wants to be called for the chains that were shown since the last
    /// time. Returns true when it did. Must be called before the polling thread sleeps.
    pub fn call(&mut self) -> bool {
        // The driver first says where it wants a call and then looks at the ring; we do these in
        // the other order. The fence makes sure that at least one
        // side sees the other.
        fence(Ordering::SeqCst);
        let wanted = either!(&mut self.ring, ring => ring.call_wanted());
        if wanted {
            self.signal();
        } else {
            self.counters.calls_saved += 1;
        }
        wanted
    }

    /// A batch is in the log, if there is one. A queue of which a page is not has failed.
    fn close_log(&mut self) {
        let Some(log) = self.stores.log() else { return };
        if !self.stores.stopped() {
            log.tell();
        }
        if let (Some(error), None) = (self.stores.unmarked(), self.failed) {
            self.fail(error);
        }
    }

    fn signal(&mut self) {
        if let Some(call) = &self.call
            && self.stores.effect()
        {
            call.signal();
            self.counters.calls += 1;
        }
    }

    /// Asks the driver for kicks from now on, and looks once more: true when there is work
    /// already and one should not sleep. False for a queue that failed.
    pub fn arm(&mut self) -> bool {
        if self.failed.is_some() {
            return false;
        }
        either!(&mut self.ring, ring => ring.ask_for_kicks(&mut self.stores));
        fence(Ordering::SeqCst);
        either!(&self.ring, ring => ring.has_work())
    }

    /// Asks the driver not to kick any more, and forgets kicks that came. Call it when polling
    /// begins and after a sleep.
    pub fn disarm(&mut self) {
        self.forget_kicks();
        self.refuse_kicks();
    }

    /// Forgets kicks that came. Touches no memory of the guest.
    pub fn forget_kicks(&mut self) {
        if let Some(kick) = &self.kick {
            self.allowance.silence(kick.as_fd());
        }
    }

    /// Asks the driver not to kick any more.
    pub fn refuse_kicks(&mut self) {
        if self.failed.is_none() {
            either!(&mut self.ring, ring => ring.refuse_kicks(&mut self.stores));
        }
    }

    /// Readable when the driver kicked. None when it will not kick; such a queue has to be polled.
    pub fn kick_fd(&self) -> Option<BorrowedFd<'_>> {
        self.kick.as_ref().map(OwnedFd::as_fd)
    }

    /// How many chains were taken and not yet put.
    pub fn outstanding(&self) -> u16 {
        self.outstanding
    }

    /// The place to go on: the answer to GET_VRING_BASE. See [`QueueConfig::base`].
    pub fn base(&self) -> u32 {
        either!(&self.ring, ring => ring.base())
    }

    /// Whether the guest remembers answers from before this start: this queue is not at its
    /// beginning, or the inflight region showed completed requests of any queue when it was
    /// mapped.
    pub fn resumes(&self) -> bool {
        self.region_resumes || either!(&self.ring, ring => ring.resumes())
    }

    /// Why the queue stopped, if it did.
    pub fn failed(&self) -> Option<RingError> {
        self.failed
    }

    /// The counts so far.
    pub fn counters(&self) -> QueueCounters {
        QueueCounters { tolerated: self.tolerated(), ..self.counters }
    }

    /// Descriptors that were taken although they break a rule, so far.
    #[inline]
    pub fn tolerated(&self) -> u64 {
        self.tables.lenience.tolerated
    }

    /// How many stores to shared memory and signals there were.
    pub fn stores(&self) -> u64 {
        self.stores.made()
    }

    /// Whether the stopping point is behind: nothing that the queue did since has happened.
    #[cfg(any(test, feature = "stopping-points"))]
    pub fn stopped(&self) -> bool {
        self.stores.stopped()
    }

    /// The guest's memory as it is now.
    pub fn memory(&self) -> &Arc<Memory> {
        self.tables.memory()
    }

    /// From now on chains are looked up in this memory. The old table is kept until the last
    /// chain that was translated by it is put.
    ///
    /// # Errors
    /// When the ring itself is not in the new memory; the queue has failed then.
    pub fn set_memory(&mut self, memory: Arc<Memory>) -> Result<(), RingError> {
        if let Err(error) = either!(&mut self.ring, ring => ring.find(&memory)) {
            self.failed.get_or_insert(error);
            return Err(error);
        }
        self.losses = 0;
        self.tables.replace(memory, self.size);
        Ok(())
    }

    /// Sets the pages that are marked as dirty from now on, and their log. Outstanding chains are
    /// marked when they are put, in the log of that time.
    pub fn set_logging(&mut self, logging: Logging) {
        let Logging { log, buffers, ring } = logging;
        self.logs_buffers = buffers && log.is_some();
        self.stores.set_log(log, ring.is_some());
        either!(&mut self.ring, of_kind => of_kind.log_used_at(ring));
    }

    /// Signals here from now on; and once now, since a signal to the old place may be lost.
    pub fn set_call(&mut self, call: Option<OwnedFd>) {
        self.call = call.map(|call| Signal::new(call, &self.allowance));
        self.signal();
    }

    /// Is kicked here from now on. A kick of the old place may be lost: look before sleeping.
    pub fn set_kick(&mut self, kick: Option<OwnedFd>) {
        self.kick = kick;
    }

    /// Gives the ring up without touching it again: staged chains stay unpublished, outstanding
    /// chains stay in the inflight region. (Dropping the queue does the same; this keeps the memory
    /// that outstanding requests may still use.)
    pub fn fence(self) -> Retained {
        let tables = self.tables.tables.into_iter();
        Retained { tables: tables.filter_map(|table| table.memory).collect() }
    }
}
