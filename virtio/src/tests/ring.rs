//! A ring in private memory, and a driver that does what it is told.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::chain::{Chain, ChainHead};
use crate::dirty::Logging;
use crate::inflight::{InflightQueue, InflightRegion};
use crate::mapping::Mapping;
use crate::memory::{Memory, Region};
use crate::queue::{Queue, QueueConfig};
use crate::ring::RingKind;
use crate::shared::{Area, Stores};

/// Where the ring's memory is in the guest.
pub(super) const BASE: u64 = 0x4000_0000;
/// Its length; the second region adjoins.
pub(super) const LEN: usize = 0x10000;
/// Where buffers may be.
pub(super) const DATA: u64 = BASE + 0x8000;

pub(super) const NEXT: u16 = 1;
pub(super) const WRITE: u16 = 2;
pub(super) const INDIRECT: u16 = 4;

const DESC: usize = 0;
const AVAIL: usize = 0x4000;
const USED: usize = 0x5000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Descriptor {
    pub(super) addr: u64,
    pub(super) len: u32,
    pub(super) flags: u16,
    pub(super) next: u16,
}

pub(super) fn descriptor(addr: u64, len: u32, flags: u16, next: u16) -> Descriptor {
    Descriptor { addr, len, flags, next }
}

/// A slot of a packed ring and the wrap counter there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    slot: u16,
    wrap: bool,
}

impl Place {
    fn advance(&mut self, slots: usize, size: u16) {
        for _ in 0..slots {
            self.slot += 1;
            if self.slot == size {
                *self = Self { slot: 0, wrap: !self.wrap };
            }
        }
    }

    fn bits(self) -> u16 {
        self.slot | u16::from(self.wrap) << 15
    }
}

/// The driver's view of a packed ring.
#[derive(Debug)]
struct PackedSide {
    next: Place,
    used: Place,
    /// By id.
    chains: BTreeMap<u16, Vec<Descriptor>>,
}

/// The driver's view.
#[derive(Debug)]
pub(super) struct TestRing {
    pub(super) memory: Arc<Memory>,
    /// The state of a packed ring's driver; none for a split one.
    packed: Option<PackedSide>,
    pub(super) size: u16,
    pub(super) area: Area,
    pub(super) event_idx: bool,
    stores: Stores,
    pub(super) avail_idx: u16,
    pub(super) used_seen: u16,
}

impl TestRing {
    /// In private memory.
    pub(super) fn new(size: u16) -> Self {
        let part = || Arc::new(Mapping::anonymous(LEN).unwrap());
        Self::over(size, part(), part())
    }

    /// A packed one.
    pub(super) fn packed(size: u16) -> Self {
        Self::new(size).into_packed()
    }

    /// Before anything was offered.
    pub(super) fn into_packed(self) -> Self {
        let first = Place { slot: 0, wrap: true };
        let side = PackedSide { next: first, used: first, chains: BTreeMap::new() };
        Self { packed: Some(side), ..self }
    }

    pub(super) fn of_kind(kind: RingKind, size: u16) -> Self {
        match kind {
            RingKind::Split => Self::new(size),
            RingKind::Packed => Self::packed(size),
        }
    }

    pub(super) fn kind(&self) -> RingKind {
        if self.packed.is_some() { RingKind::Packed } else { RingKind::Split }
    }

    /// In a memory file of twice `LEN` bytes.
    pub(super) fn in_file(size: u16, file: &OwnedFd) -> Self {
        let part = |at| Arc::new(Mapping::of_file(file.as_fd(), at, LEN as u64).unwrap());
        Self::over(size, part(0), part(LEN as u64))
    }

    fn over(size: u16, first: Arc<Mapping>, second: Arc<Mapping>) -> Self {
        let area = Area::new(&first, 0, LEN).unwrap();
        let first = Region::from_mapping(BASE, first).unwrap();
        let second = Region::from_mapping(BASE + LEN as u64, second).unwrap();
        let memory = Memory::new(vec![Arc::new(second), Arc::new(first)]).unwrap();
        Self {
            memory: Arc::new(memory),
            packed: None,
            size,
            area,
            event_idx: false,
            stores: Stores::new(),
            avail_idx: 0,
            used_seen: 0,
        }
    }

    pub(super) fn config(&self, inflight: Option<InflightQueue>) -> QueueConfig {
        QueueConfig {
            index: 0,
            kind: self.kind(),
            size: self.size,
            memory: Arc::clone(&self.memory),
            desc: BASE + DESC as u64,
            avail: BASE + AVAIL as u64,
            used: BASE + USED as u64,
            base: self.kind().base_fresh(),
            event_idx: self.event_idx,
            indirect: true,
            kick: None,
            call: None,
            err: None,
            in_order: false,
            reads_only: false,
            inflight,
            logging: Logging::default(),
            allowance: Arc::default(),
        }
    }

    pub(super) fn queue(&self) -> Queue {
        Queue::new(self.config(None)).unwrap()
    }

    /// Puts a descriptor at an address of the first region.
    pub(super) fn write_at(&mut self, addr: u64, descriptor: Descriptor) {
        let at = usize::try_from(addr - BASE).unwrap();
        let rest = u64::from(descriptor.len)
            | u64::from(descriptor.flags) << 32
            | u64::from(descriptor.next) << 48;
        let bytes = [descriptor.addr.to_le_bytes(), rest.to_le_bytes()].concat();
        self.bytes(at, &bytes);
    }

    pub(super) fn bytes(&mut self, at: usize, bytes: &[u8]) {
        for (i, &byte) in bytes.iter().enumerate() {
            self.stores.u8(&self.area, at + i, byte);
        }
    }

    pub(super) fn describe(&mut self, index: u16, descriptor: Descriptor) {
        self.write_at(BASE + 16 * u64::from(index), descriptor);
    }

    /// Says what a chain is: on a split ring, descriptors from `head` on.
    pub(super) fn chain(&mut self, head: u16, pieces: &[Descriptor]) {
        if let Some(side) = &mut self.packed {
            side.chains.insert(head, pieces.to_vec());
            return;
        }
        for (index, piece) in (head..).zip(pieces) {
            let is_last = usize::from(index - head) + 1 == pieces.len();
            let flags = piece.flags | if is_last { 0 } else { NEXT };
            self.describe(index, Descriptor { flags, next: index + 1, ..*piece });
        }
    }

    /// Where a device goes on when nothing is outstanding.
    pub(super) fn base(&self) -> u32 {
        match &self.packed {
            None => u32::from(self.avail_idx),
            Some(side) => u32::from(side.next.bits()) | u32::from(side.used.bits()) << 16,
        }
    }

    /// Fills the next slot of a packed ring, at once.
    pub(super) fn push(&mut self, piece: Descriptor) {
        let side = self.packed.as_mut().expect("a packed ring");
        let at = 16 * usize::from(side.next.slot);
        let flags = piece.flags | if side.next.wrap { 1 << 7 } else { 1 << 15 };
        side.next.advance(1, self.size);
        let rest = u64::from(piece.len) | u64::from(piece.next) << 32 | u64::from(flags) << 48;
        self.stores.u64(&self.area, at, piece.addr);
        self.stores.u64(&self.area, at + 8, rest);
    }

    fn offer_packed(&mut self, id: u16) {
        let side = self.packed.as_ref().expect("a packed ring");
        let pieces = side.chains[&id].clone();
        for (index, piece) in pieces.iter().enumerate() {
            let goes_on = index + 1 < pieces.len();
            let flags = piece.flags | if goes_on { NEXT } else { 0 };
            self.push(Descriptor { flags, next: id, ..*piece });
        }
    }

    fn next_used(&self, place: Place) -> Option<(u16, u32)> {
        let flags = self.area.load_u16(16 * usize::from(place.slot) + 14);
        let wraps = [1 << 7, 1 << 15].map(|bit| flags & bit != 0);
        let word = self.area.load_pair(16 * usize::from(place.slot))[1];
        (wraps == [place.wrap; 2]).then_some(((word >> 32) as u16, word as u32))
    }

    /// Makes a chain available.
    pub(super) fn offer(&mut self, head: u16) {
        if self.packed.is_some() {
            return self.offer_packed(head);
        }
        let slot = usize::from(self.avail_idx & (self.size - 1));
        self.stores.u16(&self.area, AVAIL + 4 + 2 * slot, head);
        self.avail_idx = self.avail_idx.wrapping_add(1);
        self.stores.u16(&self.area, AVAIL + 2, self.avail_idx);
    }

    pub(super) fn set_avail_idx(&mut self, index: u16) {
        self.avail_idx = index;
        self.stores.u16(&self.area, AVAIL + 2, index);
    }

    pub(super) fn set_used_idx(&mut self, index: u16) {
        self.used_seen = index;
        self.stores.u16(&self.area, USED + 2, index);
    }

    pub(super) fn used_idx(&self) -> u16 {
        self.area.load_u16_acquire(USED + 2)
    }

    /// Whether there is something to reap.
    pub(super) fn has_used(&self) -> bool {
        match &self.packed {
            None => self.used_idx() != self.used_seen,
            Some(side) => self.next_used(side.used).is_some(),
        }
    }

    /// The next used element, if there is one.
    pub(super) fn reap(&mut self) -> Option<(u16, u32)> {
        if let Some(place) = self.packed.as_ref().map(|side| side.used) {
            let used = self.next_used(place)?;
            let side = self.packed.as_mut().expect("as above");
            side.used.advance(side.chains[&used.0].len(), self.size);
            return Some(used);
        }
        if self.used_idx() == self.used_seen {
            return None;
        }
        let slot = usize::from(self.used_seen & (self.size - 1));
        let element = self.area.load_pair(USED + 4 + 8 * slot)[0];
        self.used_seen = self.used_seen.wrapping_add(1);
        Some((u16::try_from(element & 0xffff_ffff).unwrap(), (element >> 32) as u32))
    }

    /// The chains that are visibly used and were not reaped.
    pub(super) fn unreaped(&self) -> Vec<u16> {
        if let Some(side) = &self.packed {
            let mut place = side.used;
            let used = std::iter::from_fn(|| {
                let (id, _) = self.next_used(place)?;
                place.advance(side.chains[&id].len(), self.size);
                Some(id)
            });
            return used.take(usize::from(self.size)).collect();
        }
        let count = self.used_idx().wrapping_sub(self.used_seen);
        let slot = |i: u16| usize::from(self.used_seen.wrapping_add(i) & (self.size - 1));
        (0..count).map(|i| self.area.load_u16(USED + 4 + 8 * slot(i))).collect()
    }

    /// "Call me" (0) or "do not" (1).
    pub(super) fn set_avail_flags(&mut self, flags: u16) {
        self.stores.u16(&self.area, AVAIL, flags);
    }

    /// "Call me when the used index passes this."
    pub(super) fn set_used_event(&mut self, index: u16) {
        self.stores.u16(&self.area, AVAIL + 4 + 2 * usize::from(self.size), index);
    }

    /// "Call me at the next used element."
    pub(super) fn ask_for_calls(&mut self) {
        let Some(side) = &self.packed else { return self.set_used_event(self.used_seen) };
        let wanted = if self.event_idx { 2 << 16 } else { 0 };
        let word = u32::from(side.used.bits()) | wanted;
        self.stores.u32(&self.area, AVAIL, word);
    }

    /// The device's event structure of a packed ring.
    pub(super) fn device_events(&self) -> (u16, u16) {
        (self.area.load_u16(USED), self.area.load_u16(USED + 2))
    }

    /// When it wants to be called: `wanted` is 0 (always), 1 (never) or 2 (at the slot).
    pub(super) fn set_driver_events(&mut self, slot: u16, wrap: bool, wanted: u32) {
        let word = u32::from(slot) | u32::from(wrap) << 15 | wanted << 16;
        self.stores.u32(&self.area, AVAIL, word);
    }

    pub(super) fn used_flags(&self) -> u16 {
        self.area.load_u16(USED)
    }

    /// "Kick me when the available index passes this."
    pub(super) fn avail_event(&self) -> u16 {
        self.area.load_u16(USED + 4 + 8 * usize::from(self.size))
    }
}

/// A memory file of so many bytes, not sealed.
pub(super) fn memory_file(len: u64) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("guest", flags).unwrap();
    ftruncate(&file, len).unwrap();
    file
}

/// A region for one queue of this size, in private memory; and the same again, as a successor
/// maps it.
#[derive(Debug)]
pub(super) struct TestInflight {
    region: InflightRegion,
}

impl TestInflight {
    pub(super) fn new(size: u16) -> Self {
        Self::of_kind(RingKind::Split, size)
    }

    pub(super) fn of_kind(kind: RingKind, size: u16) -> Self {
        let mapping = Arc::new(Mapping::anonymous(0x10000).unwrap());
        Self { region: InflightRegion::from_mapping(mapping, (kind, 1, size)) }
    }

    pub(super) fn queue(&self) -> InflightQueue {
        self.region.queue(0).unwrap()
    }

    /// A queue that the region does not have.
    pub(super) fn beyond(&self) -> Option<InflightQueue> {
        self.region.queue(1)
    }

    /// The bytes of the queue's part.
    pub(super) fn area(&self) -> Area {
        self.queue().area().clone()
    }
}

/// Takes a chain that must be there.
pub(super) fn take(queue: &mut Queue, chain: &mut Chain) -> ChainHead {
    queue.take(chain).unwrap().expect("a chain")
}
