//! The split ring, device side: takes chains in batches, puts them back in batches.
//!
//! A queue belongs to one thread. After [`Queue::new`] nothing here allocates, and the only system
//! call on the way of a request is the write to the call descriptor when the driver wants one.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use crate::QUEUE_SIZE_MAX;
use crate::chain::{Chain, Head};
use crate::descriptor::{DESCRIPTOR_BYTES, Source};
use crate::error::RingError;
use crate::inflight::InflightQueue;
use crate::memory::Memory;
use crate::notify::{self, Signal};
use crate::shared::{Area, Stores};
use crate::sigbus;

/// Both rings begin with flags and an index; then come the elements, then an event index.
const AT_FLAGS: usize = 0;
const AT_INDEX: usize = 2;
const AT_ELEMENTS: usize = 4;
const AVAIL_ELEMENT_BYTES: usize = 2;
const USED_ELEMENT_BYTES: usize = 8;
const EVENT_BYTES: usize = 2;

/// The driver's flag: do not call me. The device's flag: do not kick me.
const NO_NOTIFICATION: u16 = 1;

/// All that a queue needs to start. Addresses are the guest's.
#[derive(Debug)]
pub struct QueueConfig {
    /// Which queue of its device.
    pub index: usize,
    /// How many descriptors, a power of two.
    pub size: u16,
    /// The guest's memory.
    pub memory: Arc<Memory>,
    /// Where the descriptor table is.
    pub desc: u64,
    /// Where the available ring is.
    pub avail: u64,
    /// Where the used ring is.
    pub used: u64,
    /// The available index to go on from. Where the inflight region was in use before, it knows
    /// better and is believed.
    pub base: u16,
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
    /// The queue's part of the inflight region.
    pub inflight: Option<InflightQueue>,
}

/// What a queue has counted since it was made.
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
    /// Batches for which the driver wanted no call.
    pub calls_saved: u64,
}

/// What a queue leaves behind that outstanding requests may still point into. Dropping it may
/// unmap guest memory: keep it until the last of them has ended.
#[derive(Debug)]
pub struct Retained {
    /// The tables, for whoever wants to look.
    pub tables: Vec<Arc<Memory>>,
}

/// Where a descriptor's chain is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// With the driver.
    Free,
    /// Handed out by `take`, translated by the table of this number.
    Out { table: u16 },
    /// Put, not yet published.
    Staged,
}

/// A table and how many outstanding chains were translated by it.
#[derive(Debug)]
struct Table {
    memory: Option<Arc<Memory>>,
    out: u16,
}

/// Guest addresses of a ring, and its size and features.
#[derive(Clone, Copy, Debug)]
struct Shape {
    desc: u64,
    avail: u64,
    used: u64,
    size: u16,
    event_idx: bool,
}

/// The three parts of a ring in this process's memory.
#[derive(Debug)]
struct Parts {
    desc: Area,
    avail: Area,
    used: Area,
}

impl Parts {
    fn find(memory: &Memory, shape: &Shape) -> Result<Self, RingError> {
        let size = usize::from(shape.size);
        let event = if shape.event_idx { EVENT_BYTES } else { 0 };
        let avail_len = AT_ELEMENTS + AVAIL_ELEMENT_BYTES * size + event;
        let used_len = AT_ELEMENTS + USED_ELEMENT_BYTES * size + event;
        let part = |part, addr, len, align| {
            let area: Area = memory.area(addr, len).ok_or(RingError::Unmapped { part, addr })?;
            let fine = area.is_aligned_to(align);
            if fine { Ok(area) } else { Err(RingError::Misaligned { part, addr }) }
        };
        Ok(Self {
            desc: part("descriptor table", shape.desc, DESCRIPTOR_BYTES * size, 16)?,
            avail: part("available ring", shape.avail, avail_len, 2)?,
            used: part("used ring", shape.used, used_len, 4)?,
        })
    }
}

/// One split ring. See the module's text.
#[derive(Debug)]
pub struct Queue {
    index: usize,
    shape: Shape,
    indirect: bool,
    parts: Parts,
    stores: Stores,
    /// Tables that outstanding chains were translated by; at most one more than there can be
    /// outstanding chains, for only the present one may have none.
    tables: Vec<Table>,
    table: u16,
    hint: usize,
    heads: Vec<State>,
    /// The next available element to take.
    next_avail: u16,
    /// The available index as last read.
    seen_avail: u16,
    /// The used index as published.
    used: u16,
    /// Chains that were put and not yet published, in order.
    staged: Vec<u16>,
    /// The last chain that joined a batch.
    last_staged: u16,
    outstanding: u16,
    /// What the inflight region said is to be done again, last one first.
    redo: Vec<u16>,
    /// The number of the next chain.
    counter: u64,
    inflight: Option<InflightQueue>,
    kick: Option<OwnedFd>,
    call: Option<Signal>,
    err: Option<Signal>,
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
        let QueueConfig { desc, avail, used, event_idx, .. } = config;
        let shape = Shape { desc, avail, used, size, event_idx };
        let parts = Parts::find(&config.memory, &shape)?;
        let used = parts.used.load_u16(AT_INDEX);
        let (mut next_avail, mut redo, mut counter) = (config.base, Vec::new(), 0);
        if let Some(inflight) = &config.inflight {
            let recovered = inflight.recover(&mut stores, size, used)?;
            if recovered.used_before {
                // Chains are taken in order, so what was taken is used or still inflight.
                next_avail = used.wrapping_add(recovered.redo.len() as u16);
            }
            (redo, counter) = (recovered.redo, recovered.counter);
        }
        let mut queue = Self {
            index: config.index,
            shape,
            indirect: config.indirect,
            parts,
            stores,
            tables: vec![Table { memory: Some(config.memory), out: 0 }],
            table: 0,
            hint: 0,
            heads: vec![State::Free; usize::from(size)],
            next_avail,
            seen_avail: next_avail,
            used,
            staged: Vec::with_capacity(usize::from(size)),
            last_staged: 0,
            outstanding: 0,
            redo,
            counter,
            inflight: config.inflight,
            kick: config.kick,
            call: config.call.map(Signal::new),
            err: config.err.map(Signal::new),
            failed: None,
            losses: 0,
            counters: QueueCounters::default(),
        };
        queue.signal();
        Ok(queue)
    }

    /// Which queue of its device this is.
    pub fn index(&self) -> usize {
        self.index
    }

    /// How many descriptors the ring has.
    pub fn size(&self) -> u16 {
        self.shape.size
    }

    /// Takes the next chain, if there is one; call it until there is none. `chain` is overwritten.
    ///
    /// # Errors
    /// When the driver broke the rules. The queue gives the same error from then on, and has told
    /// the front end by its error descriptor; chains that are outstanding may still be put.
    pub fn take(&mut self, chain: &mut Chain) -> Result<Option<Head>, RingError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        chain.clear();
        let result = self.take_next(chain);
        if let Err(error) = result {
            chain.clear();
            self.failed = Some(error);
            if let Some(err) = &self.err
                && !self.stores.stopped()
            {
                err.signal();
            }
        }
        result
    }

    fn take_next(&mut self, chain: &mut Chain) -> Result<Option<Head>, RingError> {
        if sigbus::losses() != self.losses {
            self.look_for_losses()?;
        }
        if let Some(&head) = self.redo.last() {
            self.read(head, chain)?;
            self.redo.pop();
            self.counters.redone += 1;
            return Ok(Some(self.hand_out(head)));
        }
        if self.next_avail == self.seen_avail && !self.look()? {
            return Ok(None);
        }
        let slot = usize::from(self.next_avail & (self.shape.size - 1));
        let head = self.parts.avail.load_u16(AT_ELEMENTS + AVAIL_ELEMENT_BYTES * slot);
        self.read(head, chain)?;
        self.next_avail = self.next_avail.wrapping_add(1);
        if let Some(inflight) = &self.inflight {
            inflight.take(&mut self.stores, head, self.counter);
            self.counter = self.counter.wrapping_add(1);
        }
        Ok(Some(self.hand_out(head)))
    }

    /// Memory was lost somewhere: ours?
    fn look_for_losses(&mut self) -> Result<(), RingError> {
        self.losses = sigbus::losses();
        let mut memories = self.tables.iter().filter_map(|table| table.memory.as_ref());
        if memories.any(|memory| memory.is_lost()) {
            return Err(RingError::MemoryLost);
        }
        Ok(())
    }

    /// Reads the driver's index; true when there is something to take.
    fn look(&mut self) -> Result<bool, RingError> {
        let found = self.parts.avail.load_u16_acquire(AT_INDEX);
        let seen = self.next_avail;
        if found.wrapping_sub(seen) > self.shape.size {
            return Err(RingError::IndexJump { seen, found, size: self.shape.size });
        }
        self.seen_avail = found;
        Ok(found != seen)
    }

    /// Reads a chain that the driver may legally have made available.
    fn read(&mut self, head: u16, chain: &mut Chain) -> Result<(), RingError> {
        let size = self.shape.size;
        match self.heads.get(usize::from(head)) {
            Some(State::Free) => {}
            Some(_) => return Err(RingError::HeadInUse { head }),
            None => return Err(RingError::OutOfRange { index: head, size }),
        }
        let memory = self.tables[usize::from(self.table)].memory.as_ref();
        let memory = memory.expect("the present table is kept");
        let indirect = self.indirect;
        let table = &self.parts.desc;
        Source { memory, hint: &mut self.hint, table, size, indirect }.read(head, chain)
    }

    fn hand_out(&mut self, head: u16) -> Head {
        self.heads[usize::from(head)] = State::Out { table: self.table };
        self.tables[usize::from(self.table)].out += 1;
        self.outstanding += 1;
        self.counters.taken += 1;
        Head::from_index(head)
    }

    /// Gives a chain back, into whose writable pieces `written` bytes were written. The driver
    /// sees it with the next `publish`; its segments are no longer valid.
    pub fn put(&mut self, head: Head, written: u32) {
        let head = head.index();
        let State::Out { table } = self.heads[usize::from(head)] else {
            panic!("chain {head} of queue {} is put but was not outstanding", self.index);
        };
        self.release(table);
        self.heads[usize::from(head)] = State::Staged;
        let place = self.used.wrapping_add(self.staged.len() as u16) & (self.shape.size - 1);
        let at = AT_ELEMENTS + USED_ELEMENT_BYTES * usize::from(place);
        self.stores.u32(&self.parts.used, at, u32::from(head));
        self.stores.u32(&self.parts.used, at + 4, written);
        if let Some(inflight) = &self.inflight {
            inflight.stage(&mut self.stores, head, self.last_staged);
            self.last_staged = head;
        }
        self.staged.push(head);
        self.outstanding -= 1;
    }

    /// One chain less was translated by this table; a table of the past goes with its last one.
    fn release(&mut self, table: u16) {
        let entry = &mut self.tables[usize::from(table)];
        entry.out -= 1;
        if entry.out == 0 && table != self.table {
            entry.memory = None;
        }
    }

    /// Shows the driver all that was put, with one store, and calls it if it wants to be called.
    /// True when it did.
    pub fn publish(&mut self) -> bool {
        if self.staged.is_empty() {
            return false;
        }
        let old = self.used;
        let new = old.wrapping_add(self.staged.len() as u16);
        self.stores.u16(&self.parts.used, AT_INDEX, new);
        self.used = new;
        if let Some(inflight) = &self.inflight {
            inflight.published(&mut self.stores, &self.staged, new);
        }
        for &head in &self.staged {
            self.heads[usize::from(head)] = State::Free;
        }
        self.counters.used += self.staged.len() as u64;
        self.counters.batches += 1;
        self.staged.clear();
        // The driver first says where it wants a call and then looks at the index; we the other
        // way round. The fence makes sure that one of us sees the other.
        fence(Ordering::SeqCst);
        let wanted = self.call_wanted(old, new);
        if wanted {
            self.signal();
        } else {
            self.counters.calls_saved += 1;
        }
        wanted
    }

    fn call_wanted(&self, old: u16, new: u16) -> bool {
        if !self.shape.event_idx {
            return self.parts.avail.load_u16(AT_FLAGS) & NO_NOTIFICATION == 0;
        }
        let at = AT_ELEMENTS + AVAIL_ELEMENT_BYTES * usize::from(self.shape.size);
        let event = self.parts.avail.load_u16(at);
        // Whether the index went past the event with this batch, modulo 2^16.
        new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
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
        if self.shape.event_idx {
            let at = AT_ELEMENTS + USED_ELEMENT_BYTES * usize::from(self.shape.size);
            self.stores.u16(&self.parts.used, at, self.next_avail);
        } else {
            self.stores.u16(&self.parts.used, AT_FLAGS, 0);
        }
        fence(Ordering::SeqCst);
        // An index that jumped is work too: `take` will say so.
        !self.redo.is_empty() || self.parts.avail.load_u16_acquire(AT_INDEX) != self.next_avail
    }

    /// Asks the driver not to kick any more, and forgets kicks that came. Call it when polling
    /// begins and after a sleep.
    pub fn disarm(&mut self) {
        if let Some(kick) = &self.kick {
            notify::drain(kick.as_fd());
        }
        // By index there is nothing to say: the driver kicks once when it passes the event index,
        // and not again until the next one is set.
        if self.failed.is_none() && !self.shape.event_idx {
            self.stores.u16(&self.parts.used, AT_FLAGS, NO_NOTIFICATION);
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

    /// The available index to go on from: what GET_VRING_BASE answers.
    pub fn base(&self) -> u16 {
        self.next_avail
    }

    /// Whether the guest remembers answers from before this start: this queue's index is not at
    /// zero, or the inflight region showed completed requests of any queue when it was mapped.
    pub fn resumes(&self) -> bool {
        self.next_avail != 0 || self.inflight.as_ref().is_some_and(InflightQueue::resumes)
    }

    /// Why the queue stopped, if it did.
    pub fn failed(&self) -> Option<RingError> {
        self.failed
    }

    /// What was counted so far.
    pub fn counters(&self) -> QueueCounters {
        self.counters
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
        let memory = self.tables[usize::from(self.table)].memory.as_ref();
        memory.expect("the present table is kept")
    }

    /// From now on chains are looked up in this memory. The old table is kept until the last
    /// chain that was translated by it is put.
    ///
    /// # Errors
    /// When the ring itself is not in the new memory; the queue has failed then.
    pub fn set_memory(&mut self, memory: Arc<Memory>) -> Result<(), RingError> {
        match Parts::find(&memory, &self.shape) {
            Ok(parts) => self.parts = parts,
            Err(error) => {
                self.failed.get_or_insert(error);
                return Err(error);
            }
        }
        (self.hint, self.losses) = (0, 0);
        let present = &mut self.tables[usize::from(self.table)];
        if present.out == 0 {
            present.memory = Some(memory);
            return Ok(());
        }
        let free = self.tables.iter().position(|table| table.memory.is_none());
        let at = free.unwrap_or(self.tables.len());
        let table = Table { memory: Some(memory), out: 0 };
        if at < self.tables.len() {
            self.tables[at] = table;
        } else {
            self.tables.push(table);
        }
        assert!(self.tables.len() <= usize::from(self.shape.size) + 1);
        self.table = at as u16;
        Ok(())
    }

    /// Signals here from now on; and once now, since a signal to the old place may be lost.
    pub fn set_call(&mut self, call: Option<OwnedFd>) {
        self.call = call.map(Signal::new);
        self.signal();
    }

    /// Is kicked here from now on. A kick of the old place may be lost: look before sleeping.
    pub fn set_kick(&mut self, kick: Option<OwnedFd>) {
        self.kick = kick;
    }

    /// Gives the ring up without touching it again: what is staged and not published stays
    /// unpublished, what is outstanding stays in the inflight region. (Dropping the queue does
    /// the same; this keeps the memory that outstanding requests may still use.)
    pub fn fence(self) -> Retained {
        Retained { tables: self.tables.into_iter().filter_map(|table| table.memory).collect() }
    }
}
