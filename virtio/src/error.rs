//! The faults of rings, guest memory and inflight regions, all caused from outside.

use crate::mapping::MapError;
use crate::ring::RingKind;
use crate::{MEMORY_BYTES_MAX, REGIONS_MAX, SEGMENTS_MAX};

/// Why a queue stopped. All of these are caused from outside, by a guest or its front end; the
/// device they belong to stops, and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// The size is no power of two, zero or beyond the limit.
    #[error("a ring of {0} descriptors: not a power of two between 1 and {max}",
        max = crate::QUEUE_SIZE_MAX)]
    Size(u32),
    /// A part of the ring lies outside the guest's memory, or across two regions of it.
    #[error("the {part} at {addr:#x} is not in one region of the guest's memory")]
    Unmapped {
        /// Which part, by name.
        part: &'static str,
        /// The guest address that was given.
        addr: u64,
    },
    /// A part of the ring is not aligned as the specification demands.
    #[error("the {part} at {addr:#x} is misaligned")]
    Misaligned {
        /// Which part, by name.
        part: &'static str,
        /// The guest address that was given.
        addr: u64,
    },
    /// The place to go on from does not exist in the ring.
    #[error("base {base:#x} on a ring of {size}")]
    Base {
        /// The base that the front end gave.
        base: u32,
        /// The ring's size.
        size: u16,
    },
    /// More was made available on a packed ring than the ring has room for.
    #[error("slot {slot} was made available while all {size} descriptors are outstanding")]
    Overrun {
        /// The slot.
        slot: u16,
        /// The ring's size.
        size: u16,
    },
    /// The available index is further ahead than the ring is long.
    #[error("the available index jumped from {seen} to {found} on a ring of {size}")]
    IndexJump {
        /// Up to where chains were taken.
        seen: u16,
        /// The index that the driver wrote.
        found: u16,
        /// The ring's size.
        size: u16,
    },
    /// The available ring or a descriptor names a descriptor that does not exist.
    #[error("descriptor {index} of a table of {size}")]
    OutOfRange {
        /// The index that was found.
        index: u16,
        /// The table's size.
        size: u16,
    },
    /// The driver made a chain available again before it was used.
    #[error("chain {head} was made available while it was outstanding")]
    HeadInUse {
        /// The chain's name: its first descriptor, or its buffer id on a packed ring.
        head: u16,
    },
    /// The chain comes back to itself, or is longer than the limit.
    #[error("chain {head} does not end within {limit} descriptors")]
    Loop {
        /// The chain's name: its first descriptor, or its buffer id on a packed ring.
        head: u16,
        /// How many descriptors were allowed.
        limit: u16,
    },
    /// A buffer of no bytes, which the specification forbids.
    #[error("chain {head} has a buffer of zero bytes")]
    ZeroLength {
        /// The chain's name: its first descriptor, or its buffer id on a packed ring.
        head: u16,
    },
    /// The chain describes 4 GiB or more.
    #[error("chain {head} describes 4 GiB or more")]
    TooLong {
        /// The chain's name: its first descriptor, or its buffer id on a packed ring.
        head: u16,
    },
    /// The chain is in too many pieces.
    #[error("chain {head} is in more than {max} pieces", max = crate::SEGMENTS_MAX)]
    TooManySegments {
        /// The chain's name: its first descriptor, or its buffer id on a packed ring.
        head: u16,
    },
    /// A buffer to read after a buffer to write.
    #[error("chain {head} has a readable buffer after a writable one")]
    Order {
        /// The chain's name: its first descriptor, or its buffer id on a packed ring.
        head: u16,
    },
    /// An indirect table where none is allowed: not negotiated, inside another, or chained on.
    #[error("chain {head} has an indirect table where none is allowed")]
    IndirectMisplaced {
        /// The chain's name: its first descriptor, or its buffer id on a packed ring.
        head: u16,
    },
    /// An indirect table whose length is no multiple of a descriptor, zero, or beyond the limit.
    #[error("chain {head} has an indirect table of {len} bytes")]
    IndirectLength {
        /// The chain's name: its first descriptor, or its buffer id on a packed ring.
        head: u16,
        /// The table's length in bytes.
        len: u32,
    },
    /// A buffer outside the guest's memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A page of the guest's memory, of the inflight region or of the dirty log was not to be had.
    #[error(
        "the front end's memory is lost: the file of its {part} has no page at byte {offset:#x}, \
         since it was truncated, has a hole for which the system has no (huge) page, or could not \
         be read; no program may shorten or punch that file, and it needs huge pages for all of it \
         (QEMU: prealloc=on); then restart the guest"
    )]
    MemoryLost {
        /// The use of the lost memory.
        part: &'static str,
        /// Where in its file the loss begins.
        offset: u64,
    },
    /// The front end's log of dirty pages does not have a page that was written.
    #[error("the dirty log ends before {len:#x} bytes at {addr:#x}, which were written")]
    LogTooShort {
        /// The guest address.
        addr: u64,
        /// The length in bytes.
        len: u64,
    },
    /// The inflight region contradicts the ring.
    #[error(transparent)]
    Inflight(#[from] InflightError),
}

impl RingError {
    /// Whether the front end has taken memory away, and the guest broke no rule.
    pub fn is_memory_lost(&self) -> bool {
        matches!(self, Self::MemoryLost { .. })
    }

    /// One word for the kind of mistake, for counters.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Size(_) => "size",
            Self::Unmapped { .. } => "ring_unmapped",
            Self::Misaligned { .. } => "misaligned",
            Self::Base { .. } => "base",
            Self::Overrun { .. } => "overrun",
            Self::IndexJump { .. } => "index_jump",
            Self::OutOfRange { .. } => "out_of_range",
            Self::HeadInUse { .. } => "head_in_use",
            Self::Loop { .. } => "loop",
            Self::ZeroLength { .. } => "zero_length",
            Self::TooLong { .. } => "too_long",
            Self::TooManySegments { .. } => "too_many_segments",
            Self::Order { .. } => "order",
            Self::IndirectMisplaced { .. } => "indirect_misplaced",
            Self::IndirectLength { .. } => "indirect_length",
            Self::Memory(_) => "unmapped",
            Self::MemoryLost { .. } => "memory_lost",
            Self::LogTooShort { .. } => "log_too_short",
            Self::Inflight(_) => "inflight",
        }
    }
}

/// The fault of a memory table, or of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The file behind a region cannot be mapped.
    #[error("guest memory at {guest_addr:#x}: {source}")]
    Map {
        /// Where the region is in the guest.
        guest_addr: u64,
        /// The reason.
        r#source: MapError,
    },
    /// A region's addresses do not fit 64 bits.
    #[error("guest memory at {guest_addr:#x}: {len:#x} bytes from there overflow")]
    Overflow {
        /// Where the region is in the guest.
        guest_addr: u64,
        /// Its length in bytes.
        len: u64,
    },
    /// Two regions share guest addresses.
    #[error("guest memory at {guest_addr:#x} overlaps the region at {other:#x}")]
    Overlap {
        /// Where the region is in the guest.
        guest_addr: u64,
        /// Where the other one begins.
        other: u64,
    },
    /// More regions than allowed.
    #[error("more than {max} regions of guest memory", max = REGIONS_MAX)]
    TooManyRegions,
    /// More memory than allowed.
    #[error("{len:#x} bytes of guest memory, more than {max:#x}", max = MEMORY_BYTES_MAX)]
    TooLarge {
        /// How much there would be.
        len: u64,
    },
    /// The region that must be removed is not there.
    #[error("no region of guest memory at {guest_addr:#x} with {len:#x} bytes")]
    NoRegion {
        /// Where it was said to be.
        guest_addr: u64,
        /// How long it was said to be, in bytes.
        len: u64,
    },
    /// An address range that is not, or not wholly, in the guest's memory.
    #[error("{len:#x} bytes at {addr:#x} are outside the guest's memory")]
    Unmapped {
        /// The guest address.
        addr: u64,
        /// The length in bytes.
        len: u64,
    },
    /// A range is in more pieces than there is room for.
    #[error("more than {max} pieces of guest memory", max = SEGMENTS_MAX)]
    TooManySegments,
}

/// The fault of an inflight region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InflightError {
    /// The file cannot be made or mapped.
    #[error("inflight region: {0}")]
    Map(MapError),
    /// No queues, too many, or too large ones.
    #[error("inflight region for {queues} queues of {size}")]
    Shape {
        /// How many queues were asked for.
        queues: u16,
        /// How many descriptors each.
        size: u16,
    },
    /// The region is shorter than its queues need.
    #[error("inflight region of {have} bytes, its queues need {need}")]
    TooSmall {
        /// The length that the front end gave, in bytes.
        have: u64,
        /// The length that the queues need, in bytes.
        need: u64,
    },
    /// It begins at an odd place in its file.
    #[error("inflight region at the misaligned offset {0:#x}")]
    Misaligned(u64),
    /// The file can be truncated under our feet. We make it sealed, and so do others.
    #[error("inflight region in a file that is not sealed against shrinking")]
    NotSealed,
    /// A page of it was not to be had.
    #[error(
        "a page of the inflight region is not there: its file was truncated or has a hole, and \
         the system no page for it"
    )]
    Lost,
    /// A layout that we do not know.
    #[error("inflight region of version {0}")]
    Version(u16),
    /// The region was kept for a ring of another size.
    #[error("inflight region for a ring of {found}, the ring has {size}")]
    DescNum {
        /// The size that the region has.
        found: u16,
        /// The ring's size.
        size: u16,
    },
    /// The used index of the ring is not within one batch of the recorded one.
    #[error("inflight region ends at used index {recorded}, the ring at {ring}")]
    UsedIndex {
        /// The used index that the region records.
        recorded: u16,
        /// The ring's used index.
        ring: u16,
    },
    /// The list of the last batch leaves the table.
    #[error("inflight region lists descriptor {0}")]
    BatchList(u16),
    /// The region was kept for the other kind of ring.
    #[error("inflight region for a {found:?} ring, the ring is {kind:?}")]
    Kind {
        /// The kind of ring for which the region was kept.
        found: RingKind,
        /// The kind of the ring.
        kind: RingKind,
    },
    /// The used slot of a packed ring does not exist.
    #[error("inflight region ends at the used slot {0}")]
    UsedSlot(u16),
    /// The free list of a packed ring comes back to an entry.
    #[error("inflight region lists entry {0} as free twice")]
    FreeList(u16),
    /// A chain of a packed ring has entries that are free, another chain's, or do not exist; or
    /// another chain's id.
    #[error("inflight region has a broken chain at entry {0}")]
    BrokenChain(u16),
    /// An entry of a packed ring is neither free nor in a chain.
    #[error("inflight region has lost entry {0}")]
    LostEntry(u16),
}
