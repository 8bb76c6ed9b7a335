//! The packed ring, device side: one ring of descriptors, which the driver makes available in
//! order and the device overwrites with the ids of what it has used.
//!
//! Each side goes round the ring with a *wrap counter* that flips at its end. A descriptor whose
//! AVAIL bit is the driver's counter and whose USED bit is not is available; a descriptor is used
//! when both bits are the device's counter. A chain takes as many slots as it has descriptors. Its
//! used element gives that many back, at the next used slot, which need not be a slot of the chain.
//! So the device never reads an outstanding chain from the ring again, but from the inflight
//! region.

pub(crate) mod position;
mod resume;

use self::position::{AT_FLAGS, AT_LENGTH, AVAIL, PackedPosition, USED, WRAP, flags_at};
use crate::chain::{Chain, Segment};
use crate::descriptor::SinglesWanted;
use crate::descriptor::{DESCRIPTOR_BYTES, Descriptor, NEXT, Reader, WRITE};
use crate::error::RingError;
use crate::inflight::{InflightQueue, PackedLog};
use crate::memory::Memory;
use crate::ring::{BASE_FRESH, Chains, RingPlan, TakenChain};
use crate::shared::{Area, Stores};

/// An event structure: a slot with a wrap counter, then what is wanted.
const EVENT_BYTES: usize = 4;
const EVENTS_ALL: u32 = 0;
const EVENTS_NONE: u32 = 1;
/// Only when the slot is passed; with EVENT_IDX.
const EVENTS_AT_SLOT: u32 = 2;
const EVENTS_MASK: u32 = 3;

/// The parts of a ring in this process's memory.
#[derive(Debug)]
struct PackedParts {
    ring: Area,
    driver: Area,
    device: Area,
}

impl PackedParts {
    fn find(memory: &Memory, shape: &RingPlan) -> Result<Self, RingError> {
        let len = DESCRIPTOR_BYTES * usize::from(shape.size);
        let ring = memory.ring_part("descriptor ring", shape.desc, len, 16)?;
        let driver = memory.ring_part("driver's events", shape.avail, EVENT_BYTES, 4)?;
        let device = memory.ring_part("device's events", shape.used, EVENT_BYTES, 4)?;
        Ok(Self {
            ring,
            driver,
            device: device.logged_at(shape.used_logged_at.unwrap_or(shape.used)),
        })
    }
}

/// The device's record of an outstanding chain.
#[derive(Clone, Copy, Debug, Default)]
struct Outstanding {
    /// Slots of the ring that it took.
    slots: u16,
    /// Bytes that were written into it, once it was put.
    written: u32,
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct PackedRing {
    shape: RingPlan,
    parts: PackedParts,
    /// The next descriptor to take.
    avail: PackedPosition,
    /// The next slot to write a used element into.
    used: PackedPosition,
    /// Slots that the driver may fill: all but those from `used` to `avail`.
    free: u16,
    /// Slots that were used since it was last decided whether to call; no more than there are.
    uncalled: u16,
    /// By buffer id.
    outstanding: Vec<Outstanding>,
    /// The descriptors of the chain that is being taken; kept for its room.
    list: Vec<Descriptor>,
    /// Chains that must be done again, as the inflight region records them, last one first.
    redo: Vec<u16>,
    log: Option<PackedLog>,
    /// Chains are used in the order in which they were taken, and each slot says so.
    in_order: bool,
    /// The ring was not at its beginning, or did not look like a new one.
    resumes: bool,
}

impl PackedRing {
    /// A buffer's id must be below the ring's size, as those of all known drivers are: the tables
    /// of chains are made with the queue.
    pub(crate) fn new(
        shape: RingPlan,
        memory: &Memory,
        base: u32,
        in_order: bool,
        inflight: Option<InflightQueue>,
        stores: &mut Stores,
    ) -> Result<Self, RingError> {
        let size = shape.size;
        let parts = PackedParts::find(memory, &shape)?;
        let found = (in_order && inflight.is_none()).then(|| resume::find(&parts.ring, size));
        let found = found.flatten().and_then(|found| found.give_back(&parts.ring, stores));
        let both = |bits: u16| u32::from(bits) * 0x1_0001;
        let base = match found {
            Some(place) => both(place.bits()),
            // A front end that keeps no account of what was used says nothing of it: DPDK's. Of a
            // device that gives back in another order the same word can be true: all is out.
            None if in_order
                && inflight.is_none()
                && base >> 16 == 0
                && base as u16 & WRAP != 0 =>
            {
                both(base as u16)
            }
            None => base,
        };
        let (avail, used) = (
            PackedPosition::from_bits(base as u16),
            PackedPosition::from_bits((base >> 16) as u16),
        );
        let between = slots_between(used, avail, size).ok_or(RingError::Base { base, size })?;
        let mut ring = Self {
            shape,
            parts,
            avail,
            used,
            free: size - between,
            uncalled: 0,
            outstanding: vec![Outstanding::default(); usize::from(size)],
            list: Vec::with_capacity(usize::from(size)),
            redo: Vec::new(),
            log: None,
            in_order: in_order && inflight.is_none(),
            resumes: base != BASE_FRESH,
        };
        // After an even number of rounds a ring is where a new one is, but its slots have flags.
        ring.resumes |= (0..size).any(|slot| {
            let flags = flags_at(&ring.parts.ring, slot);
            flags != 0 && !avail.is_available(flags)
        });
        if let Some(inflight) = inflight {
            ring.recover(inflight, stores)?;
        }
        Ok(ring)
    }

    fn recover(&mut self, queue: InflightQueue, stores: &mut Stores) -> Result<(), RingError> {
        let size = self.shape.size;
        let (log, recovered) =
            PackedLog::recover(queue, stores, &self.parts.ring, size, self.used)?;
        if recovered.used_before {
            let slots = recovered.redo.iter().map(|&id| log.slots(id)).sum();
            self.used = recovered.used;
            // Chains are taken in order, so what was taken is used or still inflight.
            self.avail = self.used.after(slots, size);
            self.free = size - slots;
            self.clear_unpublished(stores, slots);
        }
        for &id in &recovered.redo {
            self.outstanding[usize::from(id)].slots = log.slots(id);
        }
        (self.redo, self.log) = (recovered.redo, Some(log));
        Ok(())
    }

    /// A batch's first used element is the last to be marked as used, so that the driver sees all
    /// or none of it. A predecessor may have died after it had marked others: these would be
    /// believed as soon as the driver comes to them, although what is there then may be another
    /// chain's slot. They belong to us; they are made what they were.
    fn clear_unpublished(&self, stores: &mut Stores, slots: u16) {
        let mut place = self.used;
        for _ in 0..slots {
            let flags = flags_at(&self.parts.ring, place.slot);
            if place.is_used(flags) {
                let at = usize::from(place.slot) * DESCRIPTOR_BYTES + AT_FLAGS;
                stores.u16(&self.parts.ring, at, flags ^ USED);
            }
            place = place.after(1, self.shape.size);
        }
    }

    /// The log of dirty pages has the device's events here.
    pub(crate) fn log_used_at(&mut self, addr: Option<u64>) {
        self.shape.used_logged_at = addr;
        let addr = addr.unwrap_or(self.shape.used);
        self.parts.device = self.parts.device.clone().logged_at(addr);
    }

    /// Marks all that the device ever stores into.
    pub(crate) fn mark_all(&self, stores: &mut Stores) {
        stores.mark_all(&self.parts.ring);
        stores.mark_all(&self.parts.device);
    }

    /// Looks its parts up in another memory.
    pub(crate) fn find(&mut self, memory: &Memory) -> Result<(), RingError> {
        self.parts = PackedParts::find(memory, &self.shape)?;
        Ok(())
    }

    pub(crate) fn take(
        &mut self,
        stores: &mut Stores,
        chains: &Chains,
        reader: &mut Reader<'_>,
        chain: &mut Chain,
    ) -> Result<Option<TakenChain>, RingError> {
        if let (Some(&head), Some(log)) = (self.redo.last(), &self.log) {
            chains.check_free(head)?;
            log.read(head, &mut self.list);
            reader.read_packed(&self.list, head, chain)?;
            self.redo.pop();
            return Ok(Some(TakenChain { head, redone: true }));
        }
        if !self.is_available() {
            return Ok(None);
        }
        let head = self.read_list()?;
        chains.check_free(head)?;
        reader.read_packed(&self.list, head, chain)?;
        // At most the ring's size.
        let slots = self.list.len() as u16;
        self.avail = self.avail.after(slots, self.shape.size);
        self.free -= slots;
        self.outstanding[usize::from(head)].slots = slots;
        if let Some(log) = &mut self.log {
            log.take(stores, head, &self.list);
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
        let mut bytes = 0;
        for _ in 0..wanted.most.min(usize::from(self.free)) {
            if bytes >= wanted.bytes || !self.is_available() {
                return;
            }
            let descriptor = Descriptor::load_packed(self.parts.ring.pairs(), self.avail.slot);
            let head = descriptor.link;
            let Some(segment) = descriptor.single(wanted) else { return };
            if !take(head, segment) {
                return;
            }
            bytes += segment.len as usize;
            self.avail = self.avail.after(1, self.shape.size);
            self.free -= 1;
            self.outstanding[usize::from(head)].slots = 1;
        }
    }

    fn is_available(&self) -> bool {
        self.avail.is_available(flags_at(&self.parts.ring, self.avail.slot))
    }

    /// Reads the descriptors of the next chain into `list`, each once, and gives the buffer's id,
    /// which is in the last. They cannot be more than the driver has slots.
    fn read_list(&mut self) -> Result<u16, RingError> {
        let size = self.shape.size;
        self.list.clear();
        let mut place = self.avail;
        let mut head = 0;
        for _ in 0..self.free {
            let descriptor = Descriptor::load_packed(self.parts.ring.pairs(), place.slot);
            self.list.push(descriptor);
            head = descriptor.link;
            if descriptor.flags & NEXT == 0 {
                return Ok(head);
            }
            place = place.after(1, size);
        }
        Err(match self.free {
            0 => RingError::Overrun { slot: self.avail.slot, size },
            limit => RingError::Loop { head, limit },
        })
    }

    /// Nothing is stored before the batch is published.
    pub(crate) fn put(&mut self, head: u16, written: u32) {
        self.outstanding[usize::from(head)].written = written;
    }

    pub(crate) fn publish(&mut self, stores: &mut Stores, staged: &[u16]) {
        let Some((&first, others)) = staged.split_first() else { return };
        let (size, begin) = (self.shape.size, self.used);
        let batch = staged.iter().map(|&id| self.outstanding[usize::from(id)].slots).sum();
        self.uncalled = self.uncalled.saturating_add(batch).min(size);
        let end = begin.after(batch, size);
        if let Some(log) = &mut self.log {
            log.give_back(stores, staged, begin, end);
        }
        if self.in_order {
            self.write_backwards(stores, staged, begin, batch);
        } else {
            let mut place = begin.after(self.outstanding[usize::from(first)].slots, size);
            for &id in others {
                self.write_used(stores, place, id);
                place = place.after(self.outstanding[usize::from(id)].slots, size);
            }
            // The driver does not look beyond the first before that is used.
            self.write_used(stores, begin, first);
        }
        if let Some(log) = &mut self.log {
            log.given_back(stores, staged, end);
        }
        self.used = end;
        self.free += batch;
    }

    /// Writes the used elements of a batch so that the ring itself says where to go on, whenever
    /// we are killed ([`resume`]): slot by slot from its end, also those that a chain has behind
    /// its first. Drivers do not look at these, for they are behind a used element.
    fn write_backwards(
        &self,
        stores: &mut Stores,
        staged: &[u16],
        begin: PackedPosition,
        batch: u16,
    ) {
        let size = self.shape.size;
        let mut left = batch;
        for &id in staged.iter().rev() {
            let slots = self.outstanding[usize::from(id)].slots;
            left -= slots;
            let place = begin.after(left, size);
            for rest in (1..slots).rev().map(|at| place.after(at, size)) {
                rest.mark_used(&self.parts.ring, stores);
            }
            self.write_used(stores, place, id);
        }
    }

    /// Length, id and flags in one store.
    fn write_used(&self, stores: &mut Stores, place: PackedPosition, id: u16) {
        let written = self.outstanding[usize::from(id)].written;
        let mut flags = if place.wrap { AVAIL | USED } else { 0 };
        if written > 0 {
            flags |= WRITE;
        }
        let word = u64::from(written) | u64::from(id) << 32 | u64::from(flags) << 48;
        let at = usize::from(place.slot) * DESCRIPTOR_BYTES + AT_LENGTH;
        stores.u64(&self.parts.ring, at, word);
    }

    /// Whether the driver wants to be called for what was published since this was last asked.
    pub(crate) fn call_wanted(&mut self) -> bool {
        let uncalled = std::mem::take(&mut self.uncalled);
        let events = self.parts.driver.load_u32(0);
        match (events >> 16) & EVENTS_MASK {
            EVENTS_NONE => false,
            EVENTS_AT_SLOT if self.shape.event_idx => {
                let event = PackedPosition::from_bits(events as u16);
                let before = if event.wrap == self.used.wrap { 0 } else { self.shape.size };
                let event = event.slot.wrapping_sub(before);
                // Whether they went past the event's slot.
                self.used.slot.wrapping_sub(event).wrapping_sub(1) < uncalled
            }
            _ => true,
        }
    }

    pub(crate) fn ask_for_kicks(&mut self, stores: &mut Stores) {
        let wanted = if self.shape.event_idx { EVENTS_AT_SLOT } else { EVENTS_ALL };
        stores.u32(&self.parts.device, 0, u32::from(self.avail.bits()) | wanted << 16);
    }

    pub(crate) fn refuse_kicks(&mut self, stores: &mut Stores) {
        stores.u32(&self.parts.device, 0, EVENTS_NONE << 16);
    }

    /// Whether `take` has something to say.
    pub(crate) fn has_work(&self) -> bool {
        !self.redo.is_empty() || self.is_available()
    }

    pub(crate) fn base(&self) -> u32 {
        u32::from(self.avail.bits()) | u32::from(self.used.bits()) << 16
    }

    pub(crate) fn resumes(&self) -> bool {
        self.resumes || self.base() != BASE_FRESH
    }
}

/// Slots from one place to another that is at most once around further on, if it is.
fn slots_between(from: PackedPosition, to: PackedPosition, size: u16) -> Option<u16> {
    let around = if from.wrap == to.wrap { 0 } else { size };
    let exist = from.slot < size && to.slot < size;
    let slots = exist.then(|| (to.slot + around).checked_sub(from.slot));
    slots.flatten().filter(|slots| *slots <= size)
}
