//! The driver's end of a packed ring: which slots and buffer ids are free, and what was made
//! available.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::elements::{RequestBuffer, Reuse, UsedElement, event_crossed};
use super::layout::{DESCRIPTOR_BYTES, QueueLayout};
use super::memory::GuestMemory;
use super::request::Breach;

/// Descriptor flag: the chain goes on.
const NEXT: u16 = 1;
/// Descriptor flag: the device writes.
const WRITE: u16 = 2;
/// Descriptor flag: a table of descriptors.
const INDIRECT: u16 = 4;
/// Descriptor flags: each side's wrap counter.
const AVAIL: u16 = 1 << 7;
const USED: u16 = 1 << 15;

/// In an event structure, above the slot: its wrap counter.
const WRAP: u16 = 1 << 15;
/// The wish for events, in the second half of an event structure.
const EVENTS_ALL: u32 = 0;
const EVENTS_NONE: u32 = 1;
const EVENTS_AT_SLOT: u32 = 2;

/// In the driver's note, above the count of requests: there is a driver.
pub(super) const NOTED: u64 = 1 << 16;

/// A slot and the wrap counter there.
#[derive(Clone, Copy, Debug)]
struct PackedPosition {
    slot: u16,
    wrap: bool,
}

impl PackedPosition {
    const FIRST: Self = Self { slot: 0, wrap: true };

    fn bits(self) -> u16 {
        self.slot | if self.wrap { WRAP } else { 0 }
    }

    fn advance(&mut self, slots: u16, size: u16) {
        self.slot += slots;
        if self.slot >= size {
            self.slot -= size;
            self.wrap = !self.wrap;
        }
    }
}

/// Our state of a buffer id, outside the device's reach.
#[derive(Clone, Copy, Debug)]
enum Id {
    Unused,
    Completed,
    /// An outstanding request and how many slots of the ring it takes.
    Out {
        slot: u16,
        count: u16,
    },
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct PackedDriver {
    memory: Arc<GuestMemory>,
    layout: QueueLayout,
    event_idx: bool,
    /// For tables; ids are always taken last in, first out, and descriptors stored.
    reuse: Reuse,
    ids: Box<[Id]>,
    ids_free: Vec<u16>,
    free: u16,
    /// Where the next descriptor goes.
    next: PackedPosition,
    /// Where the next used element is.
    used: PackedPosition,
    /// The first staged descriptor and its flags, which are stored last: without it the device
    /// sees none of those that follow.
    staged: Option<(u16, u16)>,
    staged_slots: u16,
    staged_requests: u16,
    outstanding: u16,
}

impl PackedDriver {
    pub(super) fn new(
        memory: Arc<GuestMemory>,
        layout: QueueLayout,
        event_idx: bool,
        reuse: Reuse,
    ) -> Self {
        let size = layout.shape.size;
        let driver = Self {
            memory,
            layout,
            event_idx,
            reuse,
            ids: vec![Id::Unused; usize::from(size)].into(),
            ids_free: (0..size).rev().collect(),
            free: size,
            next: PackedPosition::FIRST,
            used: PackedPosition::FIRST,
            staged: None,
            staged_slots: 0,
            staged_requests: 0,
            outstanding: 0,
        };
        driver.note();
        driver
    }

    /// Leaves word of where the driver is, for a front end that connects again: nothing in a
    /// packed ring says it.
    fn note(&self) {
        let place = u64::from(self.used.bits());
        let requests = u64::from(self.outstanding - self.staged_requests);
        let word = place << 48 | place << 32 | NOTED | requests;
        self.memory.u64_at(self.layout.note).store(word, Ordering::Release);
    }

    pub(super) fn outstanding(&self) -> u16 {
        self.outstanding
    }

    /// Where the device is with its used elements, as the ring says, and how many requests it has
    /// given back that were not taken yet.
    fn used_by_device(&self) -> (PackedPosition, u16) {
        let (mut place, mut requests) = (self.used, 0);
        while requests < self.outstanding && self.is_used(place) {
            let word = self.memory.u64_at(self.at(place.slot) + 8).load(Ordering::Relaxed);
            match self.ids.get(usize::from((word >> 32) as u16)) {
                Some(Id::Out { count, .. }) => place.advance(*count, self.layout.shape.size),
                _ => break,
            }
            requests += 1;
        }
        (place, requests)
    }

    pub(super) fn held_by_device(&self) -> u16 {
        (self.outstanding - self.staged_requests).saturating_sub(self.used_by_device().1)
    }

    /// Where a device without an inflight region starts anew.
    pub(super) fn base(&self) -> u32 {
        let place = u32::from(self.used_by_device().0.bits());
        place | place << 16
    }

    pub(super) fn free(&self) -> u16 {
        self.free
    }

    fn at(&self, slot: u16) -> usize {
        self.layout.descriptors + usize::from(slot) * DESCRIPTOR_BYTES
    }

    /// Stages a request of `count` buffers; in an indirect table at `table`, an offset and
    /// an address, if there is one.
    pub(super) fn add(
        &mut self,
        slot: u16,
        table: Option<(usize, u64)>,
        count: usize,
        buffer: impl Fn(usize) -> RequestBuffer,
    ) {
        let id = self.ids_free.pop().expect("as many ids as descriptors");
        let taken = match table {
            Some((table, address)) => {
                for position in 0..count {
                    let RequestBuffer { address, len, inward } = buffer(position);
                    let flags = if inward { WRITE } else { 0 };
                    let at = table + position * DESCRIPTOR_BYTES;
                    let word = u64::from(len) | u64::from(flags) << 48;
                    self.memory.put_pair(at, [address.to_le(), word], self.reuse);
                }
                let len = count * DESCRIPTOR_BYTES;
                self.push(address, len as u32, id, INDIRECT);
                1
            }
            None => {
                for position in 0..count {
                    let RequestBuffer { address, len, inward } = buffer(position);
                    let goes_on = if position + 1 < count { NEXT } else { 0 };
                    self.push(address, len, id, goes_on | if inward { WRITE } else { 0 });
                }
                count as u16
            }
        };
        self.ids[usize::from(id)] = Id::Out { slot, count: taken };
        self.free -= taken;
        self.outstanding += 1;
        self.staged_requests += 1;
        self.staged_slots += taken;
    }

    /// Fills the next slot; available at once, unless it is the first of what is staged.
    fn push(&mut self, address: u64, len: u32, id: u16, flags: u16) {
        let PackedPosition { slot, wrap } = self.next;
        let flags = flags | if wrap { AVAIL } else { USED };
        let at = self.at(slot);
        self.memory.u64_at(at).store(address.to_le(), Ordering::Relaxed);
        self.memory.u32_at(at + 8).store(len, Ordering::Relaxed);
        self.memory.u16_at(at + 12).store(id, Ordering::Relaxed);
        match self.staged {
            Some(_) => self.memory.u16_at(at + 14).store(flags, Ordering::Relaxed),
            None => self.staged = Some((slot, flags)),
        }
        self.next.advance(1, self.layout.shape.size);
    }

    /// Stores a descriptor as it is.
    pub(super) fn write(&self, slot: u16, address: u64, len: u32, flags: u16, id: u16) {
        let at = self.at(slot);
        self.memory.u64_at(at).store(address.to_le(), Ordering::Relaxed);
        let word = u64::from(len) | u64::from(id) << 32 | u64::from(flags) << 48;
        self.memory.u64_at(at + 8).store(word, Ordering::Release);
    }

    /// Shows the device what is staged. Whether it asked for a kick.
    pub(super) fn publish(&mut self) -> bool {
        let Some((slot, flags)) = self.staged.take() else { return false };
        self.memory.u16_at(self.at(slot) + 14).store(flags, Ordering::Release);
        let batch = std::mem::take(&mut self.staged_slots);
        self.staged_requests = 0;
        self.note();
        // The flags must be seen before the device's wish is read, or both sides fall asleep.
        fence(Ordering::SeqCst);
        let events = self.memory.u32_at(self.layout.used).load(Ordering::Relaxed);
        match (events >> 16) & 3 {
            EVENTS_NONE => false,
            EVENTS_AT_SLOT if self.event_idx => {
                let (slot, wrap) = (events as u16 & !WRAP, events as u16 & WRAP != 0);
                let before = if wrap == self.next.wrap { 0 } else { self.layout.shape.size };
                event_crossed(slot.wrapping_sub(before), self.next.slot, batch)
            }
            _ => true,
        }
    }

    pub(super) fn ask_for_calls(&mut self) {
        let wanted = if self.event_idx { EVENTS_AT_SLOT } else { EVENTS_ALL };
        let word = u32::from(self.used.bits()) | wanted << 16;
        self.memory.u32_at(self.layout.available).store(word, Ordering::Relaxed);
    }

    pub(super) fn refuse_calls(&mut self) {
        let word = EVENTS_NONE << 16;
        self.memory.u32_at(self.layout.available).store(word, Ordering::Relaxed);
    }

    fn is_used(&self, place: PackedPosition) -> bool {
        let flags = self.memory.u16_at(self.at(place.slot) + 14).load(Ordering::Acquire);
        (flags & AVAIL != 0) == place.wrap && (flags & USED != 0) == place.wrap
    }

    /// Whether there is a used element to take.
    pub(super) fn look(&mut self) -> Result<bool, Breach> {
        Ok(self.is_used(self.used))
    }

    /// Takes the next used element, which exists.
    pub(super) fn take_used(&mut self) -> Result<UsedElement, Breach> {
        let (queue, position) = (self.layout.index, self.used.slot);
        let word = self.memory.u64_at(self.at(position) + 8).load(Ordering::Relaxed);
        let (written_bytes, id) = (word as u32, (word >> 32) as u16);
        let (slot, count) = match self.ids.get(usize::from(id)) {
            None => return Err(Breach::UsedIdUnknown { queue, position, id: id.into() }),
            Some(Id::Unused) => {
                return Err(Breach::UsedIdNotOutstanding { queue, position, id });
            }
            Some(Id::Completed) => return Err(Breach::CompletedTwice { queue, position, id }),
            Some(Id::Out { slot, count }) => (*slot, *count),
        };
        self.ids[usize::from(id)] = Id::Completed;
        self.ids_free.push(id);
        self.free += count;
        self.used.advance(count, self.layout.shape.size);
        self.outstanding -= 1;
        self.note();
        Ok(UsedElement { slot, written_bytes })
    }
}
