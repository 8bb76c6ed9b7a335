//! Places of blocks, and the entries of page tables.

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The most devices of a pool.
pub const DEVICES_MAX: usize = 16;

/// The most segments of one device: 24 bits, beside the device's number in a [`SegmentId`].
/// With segments of 32 MiB this is 512 TiB.
pub const SEGMENTS_PER_DEVICE_MAX: u32 = 1 << 24;

/// The most blocks of a segment: a block's index in its segment has 16 bits.
pub const SEGMENT_BLOCKS_MAX: u32 = 1 << 16;

/// The fewest blocks of a segment: a few rows, so that a stream gets on.
pub const SEGMENT_BLOCKS_MIN: u32 = 8;

/// "No segment", where a segment is named.
pub const NO_SEGMENT: u32 = u32::MAX;

/// A segment: eight bits for the device, 24 for the segment on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SegmentId(pub u32);

impl SegmentId {
    /// The segment `index` of the device `device`.
    pub fn new(device: u8, index: u32) -> Self {
        debug_assert!(usize::from(device) < DEVICES_MAX && index < SEGMENTS_PER_DEVICE_MAX);
        Self(u32::from(device) << 24 | index)
    }

    /// The device that has it.
    pub fn device(self) -> u8 {
        (self.0 >> 24) as u8
    }

    /// Which of the device's segments it is.
    pub fn index(self) -> u32 {
        self.0 & (SEGMENTS_PER_DEVICE_MAX - 1)
    }

    /// Whether some pool has such a segment: whether this one has it, its superblock says.
    pub fn is_possible(self) -> bool {
        usize::from(self.device()) < DEVICES_MAX
    }
}

/// A block of a segment. In memory and on the medium it is one word: bit 63 is set for a place,
/// bits 62 to 48 are 0, then the segment in 32 bits and the block in it in 16. A word can name a
/// segment that this pool does not have; [`super::Superblock::has_segment`] says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockPlace {
    /// The segment.
    pub segment: SegmentId,
    /// The block in the segment, from its start.
    pub block: u16,
}

impl BlockPlace {
    const USED: u64 = 1 << 63;

    /// The place as a word.
    pub fn word(self) -> u64 {
        Self::USED | u64::from(self.segment.0) << 16 | u64::from(self.block)
    }

    /// The place that a word names; `None` for a word that names none.
    pub fn from_word(word: u64) -> Option<Self> {
        let place = Self { segment: SegmentId((word >> 16) as u32), block: word as u16 };
        (word >> 48 == Self::USED >> 48 && place.segment.is_possible()).then_some(place)
    }
}

/// An entry of a page table: where a page is, and what proves it. All zero: the number is free.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct PageEntry {
    /// The place as [`BlockPlace::word`], 0 for none, [`PageEntry::LOST`] for a lost page.
    pub place: U64,
    /// The page's check, [`super::tag_crc`].
    pub crc: U64,
    /// The sequence of the row that has the page.
    pub sequence: U64,
    /// A word about the form of the page; 0 for a page that is there as it is.
    pub extra: U64,
}

impl PageEntry {
    /// No page: the number is free.
    pub const FREE: Self =
        Self { place: U64::ZERO, crc: U64::ZERO, sequence: U64::ZERO, extra: U64::ZERO };

    /// The word of a page whose content was lost: reading it is an error with a name.
    pub const LOST: u64 = 1 << 62;

    /// A page that is at `place`.
    pub fn at(place: BlockPlace, crc: u64, sequence: u64) -> Self {
        let (crc, sequence) = (crc.into(), sequence.into());
        Self { place: place.word().into(), crc, sequence, extra: U64::ZERO }
    }

    /// A page whose content is lost; it keeps its number until it is overwritten.
    pub fn lost() -> Self {
        Self { place: Self::LOST.into(), ..Self::FREE }
    }

    /// Whether the number is free.
    pub fn is_free(&self) -> bool {
        self.place.get() == 0
    }

    /// Where the page is; `None` for a free or lost one.
    pub fn place(&self) -> Option<BlockPlace> {
        BlockPlace::from_word(self.place.get())
    }
}
