//! The driver's end of a split ring: which descriptors are free, and what was made available.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::elements::{RequestBuffer, Reuse, UsedElement, event_crossed};
use super::layout::{DESCRIPTOR_BYTES, QueueLayout, RING_SIZE_MAX};
use super::memory::GuestMemory;
use super::request::Breach;

/// Descriptor flag: the chain goes on.
const NEXT: u16 = 1;
/// Descriptor flag: the device writes.
const WRITE: u16 = 2;
/// Descriptor flag: a table of descriptors.
const INDIRECT: u16 = 4;
/// Used flag: no kicks, please.
const NO_NOTIFY: u16 = 1;
/// Available flag: no calls, please.
const NO_INTERRUPT: u16 = 1;

/// How many requests' records are asked for before the first of them is read.
const AHEAD: u16 = 4;

/// When calls are suppressed by a used event that has passed, it is moved on after this many
/// completions, long before the 16-bit index comes round to it.
const EVENT_REFRESH: u16 = 1 << 14;

/// How far behind the used index that event is put. With the largest ring full of completions, and
/// just before it is moved on, the index has still not come round to it.
const EVENT_BEHIND: u16 = 1 << 13;

const _: () = assert!(EVENT_BEHIND as u32 + EVENT_REFRESH as u32 + RING_SIZE_MAX as u32 <= 1 << 16);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DescriptorState {
    /// Free, and not the head of the last chain it was in.
    Unused,
    /// Free, and the head of a chain that was completed.
    Completed,
    /// The head of an outstanding chain.
    Head,
    /// Further on in an outstanding chain.
    Inner,
}

/// Our state of a descriptor, outside the device's reach.
#[derive(Clone, Copy, Debug)]
struct DriverDescriptor {
    next: u16,
    state: DescriptorState,
    /// For heads: the request, and how many descriptors it takes.
    slot: u16,
    count: u16,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct SplitDriver {
    memory: Arc<GuestMemory>,
    layout: QueueLayout,
    event_idx: bool,
    reuse: Reuse,
    descriptors: Box<[DriverDescriptor]>,
    /// The free ones, in the order in which they are taken.
    free_first: u16,
    free_last: u16,
    free: u16,
    /// The available index with, and without, what is staged.
    available: u16,
    published: u16,
    /// The used index up to which completions were given, and the last one read.
    used_seen: u16,
    used_known: u16,
    /// Up to which used element the lines of the requests' records were asked for.
    asked_for: u16,
    /// The used index when calls were last put off.
    calls_off_at: u16,
}

impl SplitDriver {
    pub(super) fn new(
        memory: Arc<GuestMemory>,
        layout: QueueLayout,
        event_idx: bool,
        reuse: Reuse,
    ) -> Self {
        let size = layout.shape.size;
        let descriptor = |at| DriverDescriptor {
            next: at + 1,
            state: DescriptorState::Unused,
            slot: 0,
            count: 0,
        };
        Self {
            memory,
            layout,
            event_idx,
            reuse,
            descriptors: (0..size).map(descriptor).collect(),
            free_first: 0,
            free_last: size - 1,
            free: size,
            available: 0,
            published: 0,
            used_seen: 0,
            used_known: 0,
            asked_for: 0,
            calls_off_at: 0,
        }
    }

    pub(super) fn outstanding(&self) -> u16 {
        self.available.wrapping_sub(self.used_seen)
    }

    pub(super) fn held_by_device(&self) -> u16 {
        self.published.wrapping_sub(self.used_index())
    }

    /// The used index in shared memory.
    pub(super) fn used_index(&self) -> u16 {
        self.memory.u16_at(self.layout.used_index_at()).load(Ordering::Acquire)
    }

    pub(super) fn free(&self) -> u16 {
        self.free
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
        let head = self.free_first;
        let mut at = if table.is_some() { 0 } else { head };
        for position in 0..count {
            let next = match table {
                Some(_) => at + 1,
                None => self.descriptors[usize::from(at)].next,
            };
            let RequestBuffer { address, len, inward } = buffer(position);
            let goes_on = position + 1 < count;
            let flags = if goes_on { NEXT } else { 0 } | if inward { WRITE } else { 0 };
            let link = if goes_on { next } else { 0 };
            let into = table.map_or(self.layout.descriptors, |(table, _)| table);
            self.write(into, at, address, len, flags, link);
            if table.is_none() {
                self.descriptors[usize::from(at)].state = DescriptorState::Inner;
            }
            at = next;
        }
        let taken = match table {
            Some((_, address)) => {
                let len = count * DESCRIPTOR_BYTES;
                self.write(self.layout.descriptors, head, address, len as u32, INDIRECT, 0);
                at = self.descriptors[usize::from(head)].next;
                1
            }
            None => count as u16,
        };
        let first = &mut self.descriptors[usize::from(head)];
        *first = DriverDescriptor { state: DescriptorState::Head, slot, count: taken, ..*first };
        self.free_first = at;
        self.free -= taken;
        let entry = self.layout.available_entry_at(self.available);
        match self.reuse {
            Reuse::InOrder => self.memory.settle_u16(entry, head),
            Reuse::AsLinux => self.memory.u16_at(entry).store(head, Ordering::Relaxed),
        }
        self.available = self.available.wrapping_add(1);
    }

    /// Stores a descriptor into a table.
    pub(super) fn write(
        &self,
        table: usize,
        at: u16,
        address: u64,
        len: u32,
        flags: u16,
        next: u16,
    ) {
        let place = table + usize::from(at) * DESCRIPTOR_BYTES;
        let rest = u64::from(len) | u64::from(flags) << 32 | u64::from(next) << 48;
        self.memory.put_pair(place, [address.to_le(), rest.to_le()], self.reuse);
    }

    /// Shows the device what is staged. Whether it asked for a kick.
    pub(super) fn publish(&mut self) -> bool {
        let old = self.published;
        if old == self.available {
            return false;
        }
        self.published = self.available;
        let index = self.memory.u16_at(self.layout.available_index_at());
        index.store(self.published, Ordering::Release);
        // The index must be seen before the device's wish is read, or both sides fall asleep.
        fence(Ordering::SeqCst);
        if self.event_idx {
            let event = self.memory.u16_at(self.layout.available_event_at());
            let batch = self.published.wrapping_sub(old);
            event_crossed(event.load(Ordering::Relaxed), self.published, batch)
        } else {
            self.memory.u16_at(self.layout.used).load(Ordering::Relaxed) & NO_NOTIFY == 0
        }
    }

    pub(super) fn ask_for_calls(&mut self) {
        if self.event_idx {
            let event = self.memory.u16_at(self.layout.used_event_at());
            event.store(self.used_seen, Ordering::Relaxed);
        } else {
            self.memory.u16_at(self.layout.available).store(0, Ordering::Relaxed);
        }
    }

    pub(super) fn refuse_calls(&mut self) {
        if self.event_idx {
            // Passed, and not just now: a device that decides on calls once a round would take it
            // for one that was passed in this round.
            self.calls_off_at = self.used_seen;
            let event = self.memory.u16_at(self.layout.used_event_at());
            event.store(self.used_seen.wrapping_sub(EVENT_BEHIND), Ordering::Relaxed);
        } else {
            let flags = self.memory.u16_at(self.layout.available);
            flags.store(NO_INTERRUPT, Ordering::Relaxed);
        }
    }

    /// Whether there is a used element to take.
    pub(super) fn look(&mut self) -> Result<bool, Breach> {
        if self.used_seen != self.used_known {
            return Ok(true);
        }
        let now = self.used_index();
        let outstanding = self.published.wrapping_sub(self.used_seen);
        if now.wrapping_sub(self.used_seen) > outstanding {
            let (queue, seen) = (self.layout.index, self.used_seen);
            return Err(Breach::UsedIndexJump { queue, seen, now, outstanding });
        }
        self.used_known = now;
        self.asked_for = self.used_seen;
        Ok(now != self.used_seen)
    }

    /// Has the records' lines come, of the next request that is done and some that follow: their
    /// status is going to be read, and their header to be written again.
    fn ask_ahead(&mut self) {
        let ahead = self.used_known.wrapping_sub(self.used_seen).min(AHEAD);
        let end = self.used_seen.wrapping_add(ahead);
        while self.asked_for != end {
            let at = self.layout.used_entry_at(self.asked_for);
            let id = self.memory.u32_at(at).load(Ordering::Relaxed);
            if let Some(descriptor) = self.descriptors.get(id as usize) {
                self.memory.ask_for(self.layout.header_at(descriptor.slot));
            }
            self.asked_for = self.asked_for.wrapping_add(1);
        }
    }

    /// Takes the next used element, which exists.
    pub(super) fn take_used(&mut self) -> Result<UsedElement, Breach> {
        self.ask_ahead();
        let (queue, position) = (self.layout.index, self.used_seen);
        let at = self.layout.used_entry_at(position);
        let id = self.memory.u32_at(at).load(Ordering::Relaxed);
        let written_bytes = self.memory.u32_at(at + 4).load(Ordering::Relaxed);
        if id >= u32::from(self.layout.shape.size) {
            return Err(Breach::UsedIdUnknown { queue, position, id });
        }
        let id = id as u16;
        let DriverDescriptor { state, slot, count, .. } = self.descriptors[usize::from(id)];
        match state {
            DescriptorState::Head => {}
            DescriptorState::Completed => {
                return Err(Breach::CompletedTwice { queue, position, id });
            }
            DescriptorState::Unused | DescriptorState::Inner => {
                return Err(Breach::UsedIdNotOutstanding { queue, position, id });
            }
        }
        self.free_chain(id, count);
        self.used_seen = position.wrapping_add(1);
        if self.event_idx && self.used_seen.wrapping_sub(self.calls_off_at) >= EVENT_REFRESH {
            self.refuse_calls();
        }
        Ok(UsedElement { slot, written_bytes })
    }

    fn free_chain(&mut self, head: u16, count: u16) {
        let mut last = head;
        for _ in 1..count {
            last = self.descriptors[usize::from(last)].next;
            self.descriptors[usize::from(last)].state = DescriptorState::Unused;
        }
        self.descriptors[usize::from(head)].state = DescriptorState::Completed;
        match self.reuse {
            _ if self.free == 0 => (self.free_first, self.free_last) = (head, last),
            Reuse::InOrder => {
                self.descriptors[usize::from(self.free_last)].next = head;
                self.free_last = last;
            }
            Reuse::AsLinux => {
                self.descriptors[usize::from(last)].next = self.free_first;
                self.free_first = head;
            }
        }
        self.free += count;
    }
}
