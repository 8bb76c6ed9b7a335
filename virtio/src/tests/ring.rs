//! A ring in private memory, and a driver that does what it is told.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::chain::{Chain, Head};
use crate::inflight::{InflightQueue, InflightRegion};
use crate::mapping::Mapping;
use crate::memory::{Memory, Region};
use crate::shared::{Area, Stores};
use crate::split::{Queue, QueueConfig};

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

/// The driver's view.
#[derive(Debug)]
pub(super) struct TestRing {
    pub(super) memory: Arc<Memory>,
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
            size: self.size,
            memory: Arc::clone(&self.memory),
            desc: BASE + DESC as u64,
            avail: BASE + AVAIL as u64,
            used: BASE + USED as u64,
            base: 0,
            event_idx: self.event_idx,
            indirect: true,
            kick: None,
            call: None,
            err: None,
            inflight,
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

    /// Makes a chain available.
    pub(super) fn offer(&mut self, head: u16) {
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

    /// The next used element, if there is one.
    pub(super) fn reap(&mut self) -> Option<(u16, u32)> {
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
        let mapping = Arc::new(Mapping::anonymous(0x10000).unwrap());
        Self { region: InflightRegion::from_mapping(mapping, 1, size) }
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
pub(super) fn take(queue: &mut Queue, chain: &mut Chain) -> Head {
    queue.take(chain).unwrap().expect("a chain")
}

/// Small, seeded, good enough to be different each time.
#[derive(Debug)]
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Less than `n`.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.roll() % n
    }

    pub(super) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}
