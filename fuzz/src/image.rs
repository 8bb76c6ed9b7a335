//! A driver's memory: three regions of one memory file, two of which adjoin, and a ring in them.
//! The ring is written descriptor by descriptor, with the mistakes that the input chooses.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use arbitrary::Arbitrary;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use virtio::{InflightRegion, Logging, Memory, QueueConfig, Region, RingKind};

/// The bytes of each region.
pub(crate) const REGION_BYTES: u64 = 32 << 10;
/// Where the regions are in the guest. The first two adjoin.
pub(crate) const REGIONS_AT: [u64; 3] = [BASE, BASE + REGION_BYTES, BASE + 4 * REGION_BYTES];
/// The first guest address.
pub(crate) const BASE: u64 = 0x1_0000;

/// The ring's usual place; the input may choose another one.
const DESC: u64 = BASE;
const AVAIL: u64 = BASE + 0x1000;
const USED: u64 = BASE + 0x1800;
/// The place of indirect tables and buffers.
const FREE: u64 = BASE + 0x2000;
/// Where descriptors may point to tables.
pub(crate) const TABLES_AT: u64 = FREE;

/// The largest ring: few descriptors are enough to reach all code.
const SIZE_EXPONENT_MAX: u8 = 6;

pub(crate) const NEXT: u16 = 1;
pub(crate) const WRITE: u16 = 2;
pub(crate) const INDIRECT: u16 = 4;

/// An address that is rarely wrong: with wrong addresses most code is never reached.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(crate) enum Addr {
    Free(u16),
    Table(u8),
    Ring(u16),
    /// Near the end of a region.
    Edge(u8, i8),
    Any(u64),
}

impl Addr {
    pub(crate) fn guest(self) -> u64 {
        match self {
            Self::Free(at) => FREE + u64::from(at) % (2 * REGION_BYTES - (FREE - BASE)),
            Self::Table(at) => FREE + 16 * u64::from(at),
            Self::Ring(at) => BASE + u64::from(at) % 0x2000,
            Self::Edge(region, by) => {
                let end = REGIONS_AT[usize::from(region % 3)] + REGION_BYTES;
                end.wrapping_add_signed(by.into())
            }
            Self::Any(addr) => addr,
        }
    }
}

#[derive(Arbitrary, Clone, Copy, Debug)]
pub(crate) enum Len {
    Small(u8),
    Table(u8),
    Any(u32),
    /// At this distance below 4 GiB.
    Huge(u8),
}

impl Len {
    fn bytes(self) -> u32 {
        match self {
            Self::Small(len) => len.into(),
            Self::Table(count) => 16 * u32::from(count),
            Self::Any(len) => len,
            Self::Huge(by) => u32::MAX - u32::from(by),
        }
    }
}

/// A descriptor as the driver writes it.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(crate) struct ImageDescriptor {
    pub(crate) addr: Addr,
    pub(crate) len: Len,
    pub(crate) flags: u8,
    pub(crate) next: u8,
}

impl ImageDescriptor {
    /// Makes flags that usually exist, and neighbours that usually exist.
    fn bytes(self, size: u16) -> [u8; 16] {
        let odd = self.flags & 0xc0 == 0xc0;
        let flags = if odd { u16::from(self.flags) << 3 } else { u16::from(self.flags & 7) };
        let next = u16::from(self.next);
        let next = if next == 255 { u16::MAX } else { next % (size + 1) };
        raw_descriptor(self.addr.guest(), self.len.bytes(), flags, next)
    }
}

impl ImageDescriptor {
    /// Its flags in a packed ring, without the wrap counters; usually flags that exist.
    fn packed_flags(self) -> u16 {
        let flags = u16::from(self.flags & 7);
        // More often than not the last of a list: otherwise lists would not end.
        if self.flags & 0x30 == 0 { flags } else { flags & !NEXT }
    }

    /// Its bytes in a packed ring.
    fn packed_bytes(self, id: u16, flags: u16) -> [u8; 16] {
        // The third and the fourth field are swapped.
        raw_descriptor(self.addr.guest(), self.len.bytes(), id, flags)
    }
}

/// A descriptor's bytes.
pub(crate) fn raw_descriptor(addr: u64, len: u32, flags: u16, next: u16) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&addr.to_le_bytes());
    bytes[8..12].copy_from_slice(&len.to_le_bytes());
    bytes[12..14].copy_from_slice(&flags.to_le_bytes());
    bytes[14..].copy_from_slice(&next.to_le_bytes());
    bytes
}

const PACKED_AVAIL: u16 = 1 << 7;
const PACKED_USED: u16 = 1 << 15;
/// The flags that say whether a slot of a packed ring is the driver's or the device's.
pub(crate) const MARKS: u16 = PACKED_AVAIL | PACKED_USED;
/// The wrap counter of a packed ring's place.
const WRAP: u32 = 1 << 15;

/// A slot of a packed ring, and the wrap counter there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ImagePlace {
    pub(crate) slot: u16,
    pub(crate) wrap: bool,
}

impl ImagePlace {
    pub(crate) const FIRST: Self = Self { slot: 0, wrap: true };

    pub(crate) fn advance(&mut self, slots: usize, size: u16) {
        for _ in 0..slots {
            self.slot += 1;
            if self.slot == size {
                *self = Self { slot: 0, wrap: !self.wrap };
            }
        }
    }

    pub(crate) fn bits(self) -> u32 {
        u32::from(self.slot) | if self.wrap { WRAP } else { 0 }
    }

    /// The flags of a descriptor there that is available, or used.
    pub(crate) fn flags(self, available: bool) -> u16 {
        let avail = if self.wrap { PACKED_AVAIL } else { 0 };
        avail | if self.wrap != available { PACKED_USED } else { 0 }
    }
}

/// How the ring is made.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(crate) struct ImageShape {
    size_exponent: u8,
    pub(crate) event_idx: bool,
    pub(crate) indirect: bool,
    pub(crate) inflight: bool,
    /// Places of the ring's parts instead of the usual ones: overlapping, outside, unaligned.
    elsewhere: Option<[Addr; 3]>,
}

impl ImageShape {
    /// A ring without an inflight region; with `usual` its parts are at their usual places.
    pub(crate) fn make_plain(&mut self, usual: bool) {
        self.inflight = false;
        self.elsewhere = self.elsewhere.filter(|_| !usual);
    }
}

/// A write of the driver.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(crate) enum ImageStore {
    Describe {
        index: u8,
        descriptor: ImageDescriptor,
    },
    /// An entry of a possible indirect table.
    Tabulate {
        at: u8,
        descriptor: ImageDescriptor,
    },
    Offer {
        head: u8,
    },
    SetAvail(u16),
    SetUsed(u16),
    SetEvent(u16),
    Scribble {
        at: Addr,
        word: u64,
    },
}

/// A write of the driver to a packed ring.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(crate) enum PackedStore {
    /// The next slot, filled as a driver does.
    Push {
        descriptor: ImageDescriptor,
        id: u8,
    },
    /// Any slot, with the wrap counter of any round.
    Describe {
        slot: u8,
        descriptor: ImageDescriptor,
        id: u8,
        flags: u16,
    },
    /// An entry of a possible indirect table.
    Tabulate {
        at: u8,
        descriptor: ImageDescriptor,
        flags: u16,
    },
    SetEvents(u32),
    Scribble {
        at: Addr,
        word: u64,
    },
}

/// The driver's side of a ring.
#[derive(Debug)]
pub(crate) struct Image {
    file: File,
    kind: RingKind,
    pub(crate) memory: Arc<Memory>,
    pub(crate) size: u16,
    pub(crate) shape: ImageShape,
    pub(crate) desc: u64,
    pub(crate) avail: u64,
    pub(crate) used: u64,
    avail_idx: u16,
    /// Where the driver of a packed ring fills the next slot.
    pub(crate) pushed: ImagePlace,
    region: Option<InflightRegion>,
    /// Whether the driver wrote at a place that only the device may write.
    pub(crate) is_used_damaged: bool,
}

impl Image {
    pub(crate) fn new(kind: RingKind, shape: ImageShape) -> Self {
        let file = memfd_create("fuzz", MemfdFlags::CLOEXEC).expect("a memory file");
        ftruncate(&file, 3 * REGION_BYTES).expect("a size");
        let file = File::from(file);
        let memory = memory_of(&file);
        let size = 1 << (shape.size_exponent % (SIZE_EXPONENT_MAX + 1));
        let [desc, avail, used] = match shape.elsewhere {
            Some(addrs) => addrs.map(Addr::guest),
            None => [DESC, AVAIL, USED],
        };
        let region = shape.inflight.then(|| {
            let shape = (kind, 1, size);
            let (file, len) = InflightRegion::create(shape).expect("a memory file");
            InflightRegion::map(file.as_fd(), 0, len, shape).expect("just made")
        });
        let is_used_damaged = shape.elsewhere.is_some();
        Self {
            file,
            kind,
            memory,
            size,
            shape,
            desc,
            avail,
            used,
            avail_idx: 0,
            pushed: ImagePlace::FIRST,
            region,
            is_used_damaged,
        }
    }

    /// Whether the ring's parts are at wrong places.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.shape.elsewhere.is_some()
    }

    /// The same memory, mapped again.
    pub(crate) fn mapped_again(&self) -> Arc<Memory> {
        memory_of(&self.file)
    }

    pub(crate) fn config(&self, base: u32) -> QueueConfig {
        QueueConfig {
            index: 0,
            kind: self.kind,
            size: self.size,
            memory: Arc::clone(&self.memory),
            desc: self.desc,
            avail: self.avail,
            used: self.used,
            base,
            event_idx: self.shape.event_idx,
            indirect: self.shape.indirect,
            kick: None,
            call: None,
            err: None,
            in_order: false,
            reads_only: false,
            inflight: self.region.as_ref().and_then(|region| region.queue(0)),
            logging: Logging::default(),
            allowance: Arc::default(),
        }
    }

    pub(crate) fn store(&mut self, store: ImageStore) {
        match store {
            ImageStore::Describe { index, descriptor } => {
                let at = self.slot_at(u16::from(index) % self.size);
                self.write(at, &descriptor.bytes(self.size));
            }
            ImageStore::Tabulate { at, descriptor } => {
                self.write(FREE + 16 * u64::from(at), &descriptor.bytes(64));
            }
            ImageStore::Offer { head } => {
                // One in 256 does not exist.
                let head = u16::from(head);
                self.offer(if head == 255 { self.size + 3 } else { head % self.size });
            }
            ImageStore::SetAvail(index) => {
                self.avail_idx = index;
                self.write(self.avail.wrapping_add(2), &index.to_le_bytes());
            }
            ImageStore::SetUsed(index) => {
                self.write(self.used.wrapping_add(2), &index.to_le_bytes());
            }
            ImageStore::SetEvent(index) => {
                let at = 4 + 2 * u64::from(self.size);
                self.write(self.avail.wrapping_add(at), &index.to_le_bytes());
            }
            ImageStore::Scribble { at, word } => self.write(at.guest(), &word.to_le_bytes()),
        }
    }

    pub(crate) fn store_packed(&mut self, store: PackedStore) {
        let size = self.size;
        // One id in 256 does not exist.
        let id = |id: u8| if id == 255 { size + 3 } else { u16::from(id) % size };
        match store {
            PackedStore::Push { descriptor, id: named } => {
                let (addr, len) = (descriptor.addr.guest(), descriptor.len.bytes());
                self.push(addr, len, descriptor.packed_flags(), id(named));
            }
            PackedStore::Describe { slot, descriptor, id: named, flags } => {
                let bytes = descriptor.packed_bytes(id(named), flags);
                self.write(self.slot_at(u16::from(slot) % size), &bytes);
            }
            PackedStore::Tabulate { at, descriptor, flags } => {
                // Usually readable or writable.
                let flags = if flags & 0xf000 == 0xf000 { flags } else { flags & WRITE };
                let bytes = descriptor.packed_bytes(0, flags);
                self.write(TABLES_AT + 16 * u64::from(at), &bytes);
            }
            PackedStore::SetEvents(word) => self.write(self.avail, &word.to_le_bytes()),
            PackedStore::Scribble { at, word } => self.write(at.guest(), &word.to_le_bytes()),
        }
    }

    /// Fills the next slot of a packed ring, and makes it available.
    pub(crate) fn push(&mut self, addr: u64, len: u32, flags: u16, id: u16) {
        let bytes = raw_descriptor(addr, len, id, flags | self.pushed.flags(true));
        self.write(self.slot_at(self.pushed.slot), &bytes);
        self.pushed.advance(1, self.size);
    }

    /// Where a slot is, or an entry of the descriptor table.
    pub(crate) fn slot_at(&self, slot: u16) -> u64 {
        self.desc.wrapping_add(16 * u64::from(slot))
    }

    /// Makes a chain available.
    pub(crate) fn offer(&mut self, head: u16) {
        let slot = u64::from(self.avail_idx & (self.size - 1));
        self.write(self.avail.wrapping_add(4 + 2 * slot), &head.to_le_bytes());
        self.avail_idx = self.avail_idx.wrapping_add(1);
        self.write(self.avail.wrapping_add(2), &self.avail_idx.to_le_bytes());
    }

    /// Writes pieces (address, length; flags) into descriptors, from `head` on or in the next
    /// slots, and makes them available as one chain.
    pub(crate) fn offer_chain(&mut self, head: u16, pieces: &[((u64, u32), u16)]) {
        if self.kind == RingKind::Packed {
            for &((addr, len), flags) in pieces {
                self.push(addr, len, flags, head);
            }
            return;
        }
        for (place, &((addr, len), flags)) in (0..).zip(pieces) {
            let index = (head + place) % self.size;
            let descriptor = raw_descriptor(addr, len, flags, (index + 1) % self.size);
            self.write(self.slot_at(index), &descriptor);
        }
        self.offer(head);
    }

    pub(crate) fn write(&mut self, addr: u64, bytes: &[u8]) {
        let used_end = self.used.saturating_add(4 + 8 * u64::from(self.size) + 2);
        let end = addr.saturating_add(bytes.len() as u64);
        self.is_used_damaged |= addr < used_end && end > self.used;
        if let Some(at) = offset(addr, bytes.len()) {
            self.file.write_all_at(bytes, at).expect("memory");
        }
    }

    pub(crate) fn read<const N: usize>(&self, addr: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.file.read_exact_at(&mut bytes, offset(addr, N)?).expect("memory");
        Some(bytes)
    }

    pub(crate) fn read_u16(&self, addr: u64) -> Option<u16> {
        self.read(addr).map(u16::from_le_bytes)
    }
}

/// Where guest memory is in the file, if all of it is in one region.
fn offset(addr: u64, len: usize) -> Option<u64> {
    REGIONS_AT.iter().zip(0..).find_map(|(&start, index)| {
        let at = addr.checked_sub(start)?;
        (at < REGION_BYTES && at + len as u64 <= REGION_BYTES).then_some(index * REGION_BYTES + at)
    })
}

fn memory_of(file: &File) -> Arc<Memory> {
    let region = |(&start, index): (&u64, u64)| {
        let offset = index * REGION_BYTES;
        Arc::new(Region::map(file.as_fd(), offset, start, REGION_BYTES, start).expect("memory"))
    };
    let regions = REGIONS_AT.iter().zip(0..).map(region).collect();
    Arc::new(Memory::new(regions).expect("a good table"))
}
