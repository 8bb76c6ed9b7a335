//! The split ring, device side: a table of descriptors, a ring in which the driver names chains,
//! and a ring in which the device names them back.

use crate::chain::{Chain, Segment};
use crate::descriptor::SinglesWanted;
use crate::descriptor::{DESCRIPTOR_BYTES, Descriptor, Reader};
use crate::error::RingError;
use crate::inflight::{InflightQueue, SplitLog};
use crate::memory::Memory;
use crate::ring::{Chains, RingPlan, TakenChain};
use crate::shared::{Area, Stores};

/// Both rings begin with flags and an index; then come the elements, then an event index.
const AT_FLAGS: usize = 0;
const AT_INDEX: usize = 2;
const AT_ELEMENTS: usize = 4;
const AVAIL_ELEMENT_BYTES: usize = 2;
const USED_ELEMENT_BYTES: usize = 8;
const EVENT_BYTES: usize = 2;

/// How far the index may run ahead of an event index that the driver must not pass. Then the event
/// index is moved after the index: the index would come round and pass it, after 2^16 chains.
const EVENT_BEHIND_MAX: u16 = 1 << 15;

/// How many chains' headers are asked for before the first of them is read: about as many as one
/// fetch from another core takes to serve.
const AHEAD: u16 = 4;

/// The driver's flag: do not call me. The device's flag: do not kick me.
const NO_NOTIFICATION: u16 = 1;

/// The three parts of a ring in this process's memory.
#[derive(Debug)]
struct SplitParts {
    desc: Area,
    avail: Area,
    used: Area,
}

impl SplitParts {
    fn find(memory: &Memory, shape: &RingPlan) -> Result<Self, RingError> {
        let size = usize::from(shape.size);
        let event = if shape.event_idx { EVENT_BYTES } else { 0 };
        let avail_len = AT_ELEMENTS + AVAIL_ELEMENT_BYTES * size + event;
        let used_len = AT_ELEMENTS + USED_ELEMENT_BYTES * size + event;
        let part = |part, addr, len, align| memory.ring_part(part, addr, len, align);
        let desc = part("descriptor table", shape.desc, DESCRIPTOR_BYTES * size, 16)?;
        let avail = part("available ring", shape.avail, avail_len, 2)?;
        let used = part("used ring", shape.used, used_len, 4)?;
        Ok(Self { desc, avail, used: used.logged_at(shape.used_logged_at.unwrap_or(shape.used)) })
    }
}

/// The place in the used part of the index at which the driver must kick.
fn event_at(shape: &RingPlan) -> usize {
    AT_ELEMENTS + USED_ELEMENT_BYTES * usize::from(shape.size)
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct SplitRing {
    shape: RingPlan,
    parts: SplitParts,
    /// The next available element to take.
    next_avail: u16,
    /// The available index as last read.
    seen_avail: u16,
    /// Up to which available element the lines of headers were asked for; from `next_avail` to
    /// `seen_avail`, and one beyond where nothing is left.
    asked_for: u16,
    /// The used index as published.
    used: u16,
    /// Chains that were published since it was last decided whether to call.
    uncalled: u16,
    /// Chains that must be done again, as the inflight region records them, last one first.
    redo: Vec<u16>,
    log: Option<SplitLog>,
    /// The index at which the driver was last told to kick, and whether that is over.
    event: u16,
    kicks_refused: bool,
}

impl SplitRing {
    pub(crate) fn new(
        shape: RingPlan,
        memory: &Memory,
        base: u32,
        in_order: bool,
        inflight: Option<InflightQueue>,
        stores: &mut Stores,
    ) -> Result<Self, RingError> {
        let size = shape.size;
        let parts = SplitParts::find(memory, &shape)?;
        let used = parts.used.load_u16(AT_INDEX);
        let wrong = RingError::Base { base, size };
        let base = u16::try_from(base).map_err(|_| wrong)?;
        // Chains that are used in order: all chains before the used index are done and no others,
        // even if the front end gives another base. Chains that end in any order: only an inflight
        // region records which are done, and chains before the used index are not begun a second
        // time.
        let start = if in_order { used } else { base };
        if inflight.is_none() && start.wrapping_sub(used) > size {
            return Err(wrong);
        }
        let (mut next_avail, mut redo, mut log) = (start, Vec::new(), None);
        if let Some(inflight) = inflight {
            next_avail = base;
            let (found, recovered) = SplitLog::recover(inflight, stores, size, used)?;
            if recovered.used_before {
                // Chains are taken in order, so what was taken is used or still inflight.
                next_avail = used.wrapping_add(recovered.redo.len() as u16);
            }
            (redo, log) = (recovered.redo, Some(found));
        }
        let event = if shape.event_idx { parts.used.load_u16(event_at(&shape)) } else { 0 };
        Ok(Self {
            shape,
            parts,
            next_avail,
            seen_avail: next_avail,
            asked_for: next_avail,
            used,
            uncalled: 0,
            redo,
            log,
            event,
            kicks_refused: false,
        })
    }

    /// The log of dirty pages has the used ring here.
    pub(crate) fn log_used_at(&mut self, addr: Option<u64>) {
        self.shape.used_logged_at = addr;
        let addr = addr.unwrap_or(self.shape.used);
        self.parts.used = self.parts.used.clone().logged_at(addr);
    }

    /// Marks all that the device ever stores into.
    pub(crate) fn mark_all(&self, stores: &mut Stores) {
        stores.mark_all(&self.parts.used);
    }

    /// Looks its parts up in another memory.
    pub(crate) fn find(&mut self, memory: &Memory) -> Result<(), RingError> {
        self.parts = SplitParts::find(memory, &self.shape)?;
        Ok(())
    }

    #[inline]
    pub(crate) fn take(
        &mut self,
        stores: &mut Stores,
        chains: &Chains,
        reader: &mut Reader<'_>,
        chain: &mut Chain,
    ) -> Result<Option<TakenChain>, RingError> {
        let (table, size) = (self.parts.desc.pairs(), self.shape.size);
        if let Some(&head) = self.redo.last() {
            chains.check_free(head)?;
            reader.read_split(table, size, head, chain)?;
            self.redo.pop();
            return Ok(Some(TakenChain { head, redone: true }));
        }
        if self.next_avail == self.seen_avail {
            let found = self.look()?;
            if found == self.next_avail {
                return Ok(None);
            }
            self.seen_avail = found;
            // This one is asked for when it has been read.
            self.asked_for = self.next_avail.wrapping_add(1);
        }
        let head = self.head_at(self.next_avail);
        chains.check_free(head)?;
        reader.read_split(self.parts.desc.pairs(), size, head, chain)?;
        self.next_avail = self.next_avail.wrapping_add(1);
        self.ask_ahead(reader);
        if let Some(log) = &mut self.log {
            log.take(stores, head);
        }
        Ok(Some(TakenChain { head, redone: false }))
    }

    /// Gives `take` the next chains of one piece until it or what is wanted says that it is enough.
    #[inline]
    pub(crate) fn take_singles(
        &mut self,
        wanted: &SinglesWanted,
        take: &mut impl FnMut(u16, Segment) -> bool,
    ) {
        if !self.redo.is_empty() || self.log.is_some() {
            return;
        }
        if self.next_avail == self.seen_avail {
            let Ok(found) = self.look() else { return };
            self.seen_avail = found;
        }
        let size = self.shape.size;
        let table = self.parts.desc.pairs();
        let count = usize::from(self.seen_avail.wrapping_sub(self.next_avail)).min(wanted.most);
        let (mut next, mut bytes) = (self.next_avail, 0);
        for _ in 0..count {
            let head = self.head_at(next);
            if bytes >= wanted.bytes || head >= size {
                break;
            }
            let Some(segment) = Descriptor::load(table, head).single(wanted) else { break };
            if !take(head, segment) {
                break;
            }
            bytes += segment.len as usize;
            next = next.wrapping_add(1);
        }
        self.next_avail = next;
        self.asked_for = next;
    }

    /// Reads the driver's index.
    #[inline]
    fn look(&self) -> Result<u16, RingError> {
        let (seen, size) = (self.next_avail, self.shape.size);
        let found = self.parts.avail.load_u16_acquire(AT_INDEX);
        let jumped = found.wrapping_sub(seen) > size;
        if jumped { Err(RingError::IndexJump { seen, found, size }) } else { Ok(found) }
    }

    /// The chain that the driver named here.
    #[inline]
    fn head_at(&self, position: u16) -> u16 {
        let slot = usize::from(position & (self.shape.size - 1));
        self.parts.avail.load_u16(AT_ELEMENTS + AVAIL_ELEMENT_BYTES * slot)
    }

    /// Has the lines of requests' headers come, of some chains that are taken next.
    #[inline]
    fn ask_ahead(&mut self, reader: &mut Reader<'_>) {
        let ahead = self.seen_avail.wrapping_sub(self.next_avail).min(AHEAD);
        let end = self.next_avail.wrapping_add(ahead);
        while self.asked_for != end {
            let head = self.head_at(self.asked_for);
            if head < self.shape.size {
                reader.ask_for_split(self.parts.desc.pairs(), head);
            }
            self.asked_for = self.asked_for.wrapping_add(1);
        }
    }

    /// Writes the used element of a chain that is published after `staged` others. Where it is what
    /// was there before, as it is when chains go round and round in one order, it is not stored
    /// again: the line need not be fetched back from the driver.
    #[inline]
    pub(crate) fn put(&mut self, stores: &mut Stores, head: u16, written: u32, staged: usize) {
        let place = self.used.wrapping_add(staged as u16) & (self.shape.size - 1);
        let at = AT_ELEMENTS + USED_ELEMENT_BYTES * usize::from(place);
        for (at, word) in [(at, u32::from(head)), (at + 4, written)] {
            if self.parts.used.load_u32(at) != word {
                stores.u32(&self.parts.used, at, word);
            }
        }
        if let Some(log) = &mut self.log {
            log.stage(stores, head);
        }
    }

    pub(crate) fn publish(&mut self, stores: &mut Stores, staged: &[u16]) {
        let batch = staged.len() as u16;
        self.uncalled = self.uncalled.saturating_add(batch);
        self.used = self.used.wrapping_add(batch);
        stores.u16(&self.parts.used, AT_INDEX, self.used);
        if let Some(log) = &self.log {
            log.published(stores, staged, self.used);
        }
        if self.kicks_refused {
            self.keep_event_behind(stores);
        }
    }

    /// Moves the event index after the driver's, to where no batch that is under way began.
    fn keep_event_behind(&mut self, stores: &mut Stores) {
        let behind = self.next_avail.wrapping_sub(self.event);
        if behind >= EVENT_BEHIND_MAX && self.shape.size < EVENT_BEHIND_MAX {
            self.set_event(stores, self.next_avail.wrapping_sub(self.shape.size + 1));
        }
    }

    fn set_event(&mut self, stores: &mut Stores, event: u16) {
        stores.u16(&self.parts.used, event_at(&self.shape), event);
        self.event = event;
    }

    /// Whether the driver wants to be called for what was published since this was last asked.
    pub(crate) fn call_wanted(&mut self) -> bool {
        let uncalled = std::mem::take(&mut self.uncalled);
        if !self.shape.event_idx {
            return self.parts.avail.load_u16(AT_FLAGS) & NO_NOTIFICATION == 0;
        }
        let at = AT_ELEMENTS + AVAIL_ELEMENT_BYTES * usize::from(self.shape.size);
        let event = self.parts.avail.load_u16(at);
        // Whether the index went past the event with these, modulo 2^16.
        self.used.wrapping_sub(event).wrapping_sub(1) < uncalled
    }

    pub(crate) fn ask_for_kicks(&mut self, stores: &mut Stores) {
        if self.shape.event_idx {
            self.set_event(stores, self.next_avail);
            self.kicks_refused = false;
        } else {
            stores.u16(&self.parts.used, AT_FLAGS, 0);
        }
    }

    /// By index there is nothing to say now: the driver kicks once when it passes the event index,
    /// and not again until the next one is set, or the index comes round.
    pub(crate) fn refuse_kicks(&mut self, stores: &mut Stores) {
        if self.shape.event_idx {
            self.kicks_refused = true;
        } else {
            stores.u16(&self.parts.used, AT_FLAGS, NO_NOTIFICATION);
        }
    }

    /// Whether `take` has something to say. An index that jumped is something.
    pub(crate) fn has_work(&self) -> bool {
        !self.redo.is_empty() || self.parts.avail.load_u16_acquire(AT_INDEX) != self.next_avail
    }

    pub(crate) fn base(&self) -> u32 {
        u32::from(self.next_avail)
    }

    pub(crate) fn resumes(&self) -> bool {
        self.next_avail != 0
    }
}
