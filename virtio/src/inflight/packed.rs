//! The records of a packed ring's queue in its part of the inflight region.

use super::{AT_DESC_NUM, AT_VERSION, InflightQueue, VERSION};
use crate::descriptor::Descriptor;
use crate::error::InflightError;
use crate::packed::position::{PackedPosition, flags_at};
use crate::ring::RingKind;
use crate::shared::{Area, Stores};

const HEADER_BYTES: usize = 32;
const ENTRY_BYTES: usize = 32;

/// Two fields each that are stored as one word: the free list's head and its old value; then used
/// slot, old used slot, used wrap counter and old used wrap counter, with two unused bytes.
const AT_FREE_HEAD: usize = 12;
const AT_OLD_FREE_HEAD: usize = 14;
const AT_USED: usize = 16;

const ENTRY_INFLIGHT: usize = 0;
const ENTRY_NEXT: usize = 2;
/// The last entry of the chain, and how many there are, as one word.
const ENTRY_LAST: usize = 4;
const ENTRY_COUNTER: usize = 8;
/// Id, flags and length, as one word.
const ENTRY_ID: usize = 16;
const ENTRY_ADDR: usize = 24;

/// The first chain's number; an entry that was never used has a smaller one.
const COUNTER_FIRST: u64 = 1;

/// The bytes of a queue's part.
pub(super) fn bytes(size: u16) -> usize {
    HEADER_BYTES + ENTRY_BYTES * usize::from(size)
}

/// Whether chains were given back. The used slot may be the first one again, so chains are
/// counted, too: more were taken than are inflight.
pub(super) fn has_completed(queue: &InflightQueue) -> bool {
    let area = &queue.area;
    if area.load_u16(AT_VERSION) == 0 {
        return false;
    }
    let fields = |at| (0..queue.size).map(move |index| area.load_u64(entry(index, at)));
    let taken = fields(ENTRY_COUNTER).max().unwrap_or(0);
    let inflight = fields(ENTRY_INFLIGHT).filter(|word| word & 0xff != 0).count() as u64;
    taken > inflight || UsedPosition::load(area).now != PackedPosition { slot: 0, wrap: true }
}

fn entry(index: u16, field: usize) -> usize {
    HEADER_BYTES + ENTRY_BYTES * usize::from(index) + field
}

/// Where the device is with giving back, and where it was before the present batch.
#[derive(Clone, Copy, Debug)]
struct UsedPosition {
    now: PackedPosition,
    old: PackedPosition,
}

impl UsedPosition {
    fn load(area: &Area) -> Self {
        let word = area.load_u64(AT_USED);
        let place =
            |slot: u64, wrap: u64| PackedPosition { slot: slot as u16, wrap: wrap & 0xff != 0 };
        Self { now: place(word, word >> 32), old: place(word >> 16, word >> 40) }
    }

    fn store(self, stores: &mut Stores, area: &Area) {
        let slots = u64::from(self.now.slot) | u64::from(self.old.slot) << 16;
        let wraps = u64::from(self.now.wrap) << 32 | u64::from(self.old.wrap) << 40;
        stores.u64(area, AT_USED, slots | wraps);
    }
}

/// The state that a queue finds in its part of the region when it starts.
#[derive(Debug)]
pub(crate) struct Recovered {
    /// Buffer ids of chains that were taken and not given back, last one first.
    pub(crate) redo: Vec<u16>,
    /// The next used slot.
    pub(crate) used: PackedPosition,
    /// Whether the region had been in use before.
    pub(crate) used_before: bool,
}

/// The entries of an outstanding chain.
#[derive(Clone, Copy, Debug, Default)]
struct Entries {
    first: u16,
    last: u16,
    count: u16,
}

/// The part of a packed ring. The ring does not keep the descriptors of what is outstanding, so
/// the region does; entries that no chain has are in a list.
///
/// ```text
///   0  features u64 (0)
///   8  version u16 (1; 0 = not made yet)   10 desc_num u16
///  12  free_head u16                       14 old_free_head u16
///  16  used_idx u16                        18 old_used_idx u16
///  20  used_wrap_counter u8                21 old_used_wrap_counter u8   22 10 unused
///  32  per descriptor: inflight u8, 1 unused, next u16, last u16, num u16, counter u64,
///      id u16, flags u16, len u32, addr u64
/// ```
///
/// Taking a chain: everything about it into the entries at the head of the free list, inflight = 1
/// with the first of them, then free_head, then old_free_head, which is the moment from which the
/// chain is taken. A successor that finds old_free_head unchanged forgets the chain, takes the
/// mark back, and finds the chain in the ring again.
///
/// Giving a batch back: its entries join the free list, then free_head, then the used fields, with
/// the old values beside the new ones; then the ring, the batch's first slot last; then
/// inflight = 0 for all of the batch, then old_free_head, then the old used fields. A successor
/// that finds the used fields apart looks at the slot where the batch begins. If that is still
/// available as the driver left it, the driver has seen nothing, and all goes back to the old
/// values: the batch's chains are still marked, and the entries that lead from a chain's first to
/// its last were not changed. If it is anything else, even available for the next round since the
/// driver was quick, the batch was published, and the rest is done now. Fields that belong
/// together are one store, so a slot is never seen with another slot's wrap counter. And
/// old_free_head comes before the old used fields, since as long as these are apart a successor
/// takes the new list anyway.
#[derive(Debug)]
pub(crate) struct PackedLog {
    area: Area,
    /// The number of the next chain.
    counter: u64,
    /// The links from each entry to the next, and the list's head: our own copy, which the front
    /// end cannot change.
    next: Vec<u16>,
    free_head: u16,
    /// By buffer id.
    chains: Vec<Entries>,
}

impl PackedLog {
    /// Brings the region into step with the ring, of `size` descriptors, and finds out what has to
    /// be done again. A region that was never used begins at the slot `base`. May be stopped at
    /// any store and be done again.
    pub(crate) fn recover(
        queue: InflightQueue,
        stores: &mut Stores,
        ring: &Area,
        size: u16,
        base: PackedPosition,
    ) -> Result<(Self, Recovered), InflightError> {
        let used_before = queue.check(RingKind::Packed, size)?;
        let mut log = Self {
            area: queue.area,
            counter: COUNTER_FIRST,
            next: (1..=size).collect(),
            free_head: 0,
            chains: vec![Entries::default(); usize::from(size)],
        };
        if !used_before {
            log.initialise(stores, size, base);
            return Ok((log, Recovered { redo: Vec::new(), used: base, used_before }));
        }
        let used = log.finish_batch(stores, ring, size)?;
        let mut known = vec![false; usize::from(size)];
        log.read_free_list(stores, &mut known)?;
        let redo = log.read_chains(&mut known)?;
        if let Some(lost) = known.iter().position(|known| !known) {
            return Err(InflightError::LostEntry(lost as u16));
        }
        Ok((log, Recovered { redo, used, used_before }))
    }

    /// The version comes last: a region that was stopped before that is made anew.
    fn initialise(&self, stores: &mut Stores, size: u16, base: PackedPosition) {
        for (index, &next) in (0..size).zip(&self.next) {
            stores.u16(&self.area, entry(index, ENTRY_NEXT), next);
            if self.area.load_u8(entry(index, ENTRY_INFLIGHT)) != 0 {
                stores.u8(&self.area, entry(index, ENTRY_INFLIGHT), 0);
            }
            if self.area.load_u64(entry(index, ENTRY_COUNTER)) != 0 {
                stores.u64(&self.area, entry(index, ENTRY_COUNTER), 0);
            }
        }
        self.store_free_heads(stores);
        UsedPosition { now: base, old: base }.store(stores, &self.area);
        stores.u16(&self.area, AT_DESC_NUM, size);
        stores.u16(&self.area, AT_VERSION, VERSION);
    }

    fn store_free_heads(&self, stores: &mut Stores) {
        let head = u32::from(self.free_head);
        stores.u32(&self.area, AT_FREE_HEAD, head | head << 16);
    }

    /// Finishes what was begun, or takes it back; see the type's text. Gives the next used slot.
    fn finish_batch(
        &mut self,
        stores: &mut Stores,
        ring: &Area,
        size: u16,
    ) -> Result<PackedPosition, InflightError> {
        let UsedPosition { now, old } = UsedPosition::load(&self.area);
        if let Some(place) = [now, old].into_iter().find(|place| place.slot >= size) {
            return Err(InflightError::UsedSlot(place.slot));
        }
        let published = now != old && !old.is_available(flags_at(ring, old.slot));
        let (used, head_at) = match published {
            true => (now, AT_FREE_HEAD),
            false => (old, AT_OLD_FREE_HEAD),
        };
        self.free_head = self.area.load_u16(head_at);
        self.store_free_heads(stores);
        UsedPosition { now: used, old: used }.store(stores, &self.area);
        Ok(used)
    }

    /// Notes each entry's successor and which entries are free; the marks of free entries are
    /// cleared.
    fn read_free_list(
        &mut self,
        stores: &mut Stores,
        known: &mut [bool],
    ) -> Result<(), InflightError> {
        for (next, index) in self.next.iter_mut().zip(0..) {
            *next = self.area.load_u16(entry(index, ENTRY_NEXT));
        }
        let mut index = self.free_head;
        // Each turn makes an entry known.
        while let Some(known) = known.get_mut(usize::from(index)) {
            if std::mem::replace(known, true) {
                return Err(InflightError::FreeList(index));
            }
            if self.area.load_u8(entry(index, ENTRY_INFLIGHT)) != 0 {
                stores.u8(&self.area, entry(index, ENTRY_INFLIGHT), 0);
            }
            index = self.next[usize::from(index)];
        }
        Ok(())
    }

    /// The chains that are inflight, last one first.
    fn read_chains(&mut self, known: &mut [bool]) -> Result<Vec<u16>, InflightError> {
        let size = known.len() as u16;
        let is_free = known.to_vec();
        let mut redo = Vec::new();
        for first in 0..size {
            let counter = self.area.load_u64(entry(first, ENTRY_COUNTER));
            self.counter = self.counter.max(counter.wrapping_add(1));
            let marked = self.area.load_u8(entry(first, ENTRY_INFLIGHT)) != 0;
            if is_free[usize::from(first)] || !marked {
                continue;
            }
            let broken = InflightError::BrokenChain(first);
            let word = self.area.load_u32(entry(first, ENTRY_LAST));
            let (last, count) = (word as u16, (word >> 16) as u16);
            let (mut index, mut at) = (first, first);
            for _ in 0..count {
                let known = known.get_mut(usize::from(index)).ok_or(broken)?;
                if std::mem::replace(known, true) {
                    return Err(broken);
                }
                (at, index) = (index, self.next[usize::from(index)]);
            }
            let id = self.area.load_u64(entry(at, ENTRY_ID)) as u16;
            let chain = self.chains.get_mut(usize::from(id)).ok_or(broken)?;
            if count == 0 || at != last || chain.count != 0 {
                return Err(broken);
            }
            *chain = Entries { first, last, count };
            redo.push((counter, id));
        }
        redo.sort_unstable_by(|a, b| b.cmp(a));
        Ok(redo.into_iter().map(|(_, id)| id).collect())
    }

    /// Slots of the ring that an outstanding chain took.
    pub(crate) fn slots(&self, id: u16) -> u16 {
        self.chains[usize::from(id)].count
    }

    /// Reads an outstanding chain's descriptors into `list`.
    pub(crate) fn read(&self, id: u16, list: &mut Vec<Descriptor>) {
        let Entries { first, count, .. } = self.chains[usize::from(id)];
        list.clear();
        let mut index = first;
        for _ in 0..count {
            let addr = self.area.load_u64(entry(index, ENTRY_ADDR));
            let word = self.area.load_u64(entry(index, ENTRY_ID));
            let (flags, len) = ((word >> 16) as u16, (word >> 32) as u32);
            list.push(Descriptor { addr, len, flags, link: word as u16 });
            index = self.next[usize::from(index)];
        }
    }

    /// A chain was taken; there are as many free entries as the driver had free slots.
    pub(crate) fn take(&mut self, stores: &mut Stores, id: u16, list: &[Descriptor]) {
        let (first, mut last) = (self.free_head, self.free_head);
        for descriptor in list {
            let Descriptor { addr, len, flags, link } = *descriptor;
            let word = u64::from(link) | u64::from(flags) << 16 | u64::from(len) << 32;
            last = self.free_head;
            stores.u64(&self.area, entry(last, ENTRY_ADDR), addr);
            stores.u64(&self.area, entry(last, ENTRY_ID), word);
            self.free_head = self.next[usize::from(last)];
        }
        let count = list.len() as u16;
        let ends = u32::from(last) | u32::from(count) << 16;
        stores.u32(&self.area, entry(first, ENTRY_LAST), ends);
        stores.u64(&self.area, entry(first, ENTRY_COUNTER), self.counter);
        stores.u8(&self.area, entry(first, ENTRY_INFLIGHT), 1);
        stores.u16(&self.area, AT_FREE_HEAD, self.free_head);
        stores.u16(&self.area, AT_OLD_FREE_HEAD, self.free_head);
        self.counter = self.counter.wrapping_add(1);
        self.chains[usize::from(id)] = Entries { first, last, count };
    }

    /// The batch is about to be published, from one slot to another.
    pub(crate) fn give_back(
        &mut self,
        stores: &mut Stores,
        batch: &[u16],
        begin: PackedPosition,
        end: PackedPosition,
    ) {
        for &id in batch {
            let Entries { first, last, .. } = self.chains[usize::from(id)];
            stores.u16(&self.area, entry(last, ENTRY_NEXT), self.free_head);
            self.next[usize::from(last)] = self.free_head;
            self.free_head = first;
        }
        stores.u16(&self.area, AT_FREE_HEAD, self.free_head);
        UsedPosition { now: end, old: begin }.store(stores, &self.area);
    }

    /// The batch was published.
    pub(crate) fn given_back(&mut self, stores: &mut Stores, batch: &[u16], end: PackedPosition) {
        for &id in batch {
            let Entries { first, .. } = self.chains[usize::from(id)];
            stores.u8(&self.area, entry(first, ENTRY_INFLIGHT), 0);
        }
        stores.u16(&self.area, AT_OLD_FREE_HEAD, self.free_head);
        UsedPosition { now: end, old: end }.store(stores, &self.area);
    }
}
