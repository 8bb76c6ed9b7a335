//! Places of blocks, and the entries of page tables.

use super::record::SealTag;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::block::Block;

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

/// Bytes of a sector: a packed page takes whole ones.
pub const SECTOR_BYTES: usize = 512;

/// Sectors of a block.
pub const BLOCK_SECTORS: u8 = 8;

/// The most sectors of a packed page.
pub const PACKED_SECTORS_MAX: u8 = BLOCK_SECTORS - 1;

/// The codec of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PageCodec {
    /// None.
    #[default]
    Plain = 0,
    /// LZ4.
    Lz4 = 1,
    /// Zstandard.
    Zstd = 2,
}

/// How a page is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageForm {
    /// Its codec; of a whole page, the codec that has gained nothing on it.
    pub codec: PageCodec,
    /// Its sectors: [`BLOCK_SECTORS`] for a whole page, fewer for a packed one.
    pub sectors: u8,
}

impl PageForm {
    /// A whole page that no codec was tried on.
    pub const PLAIN: Self = Self { codec: PageCodec::Plain, sectors: BLOCK_SECTORS };

    /// Whether the page is packed.
    pub fn is_packed(self) -> bool {
        self.sectors < BLOCK_SECTORS
    }

    /// The blocks that a page touches which begins at the sector `offset` of a block: two if it is
    /// packed and does not end in the block in which it begins.
    pub fn span(self, offset: u8) -> u32 {
        u32::from(offset + self.sectors).div_ceil(u32::from(BLOCK_SECTORS))
    }

    /// The bytes of a page that begins at the sector `offset` of the first of these blocks.
    pub fn bytes_in(self, offset: u8, blocks: &[Block]) -> &[u8] {
        let from = usize::from(offset) * SECTOR_BYTES;
        &blocks.as_bytes()[from..from + usize::from(self.sectors) * SECTOR_BYTES]
    }

    /// The form of a codec's number and a count of sectors, which is 0 for a whole page.
    pub(super) fn new(codec: u8, sectors: u8) -> Option<Self> {
        let codec = match codec {
            0 => PageCodec::Plain,
            1 => PageCodec::Lz4,
            2 => PageCodec::Zstd,
            _ => return None,
        };
        match sectors {
            0 => Some(Self { codec, sectors: BLOCK_SECTORS }),
            1..=PACKED_SECTORS_MAX if codec != PageCodec::Plain => Some(Self { codec, sectors }),
            _ => None,
        }
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

/// The bits of an entry's place that have the page's form: its first sector in its block in three
/// bits, its sectors in three (0 for a whole page), its codec in eight.
const FORM_AT: u32 = 48;
const FORM_MASK: u64 = ((1 << 14) - 1) << FORM_AT;

/// Bits of a page entry's last word that have the sequence in which the page was sealed.
const SEQUENCE_BITS: u32 = 48;

/// The last row in which a page can be sealed: at 100,000 rows in a second, after 89 years.
pub const SEAL_SEQUENCE_MAX: u64 = (1 << SEQUENCE_BITS) - 1;

/// How a page was sealed: with the page's number this is all of the cipher's nonce and tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageSeal {
    /// The seal context, which has the family, the key and the salt; from 1 on.
    pub context: u16,
    /// The sequence of the row in which it was sealed.
    pub sequence: u64,
    /// The cipher's tag.
    pub tag: SealTag,
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
    /// The page's check, [`super::tag_crc`]; of a sealed page the front half of the tag.
    pub crc: U64,
    /// The sequence of the row that has the page; of a sealed page the back half of the tag.
    pub sequence: U64,
    /// Of a sealed page its context and the sequence in which it was sealed; of a shared page how
    /// many aliases it has, [`super::PageShares`]; else 0.
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

    /// A sealed page that is at `place`.
    pub fn sealed(place: BlockPlace, seal: PageSeal) -> Self {
        debug_assert!(seal.context > 0 && seal.sequence <= SEAL_SEQUENCE_MAX);
        let (front, back) = seal.tag.split_at(8);
        let word = |half: &[u8]| U64::from_bytes(half.try_into().expect("half of 16 bytes"));
        Self {
            place: place.word().into(),
            crc: word(front),
            sequence: word(back),
            extra: (u64::from(seal.context) << SEQUENCE_BITS | seal.sequence).into(),
        }
    }

    /// How the page was sealed; `None` for a page that is not.
    pub fn seal(&self) -> Option<PageSeal> {
        let extra = self.extra.get();
        let mut tag = [0; 16];
        tag[..8].copy_from_slice(self.crc.as_bytes());
        tag[8..].copy_from_slice(self.sequence.as_bytes());
        let (context, sequence) = ((extra >> SEQUENCE_BITS) as u16, extra & SEAL_SEQUENCE_MAX);
        (context != 0).then_some(PageSeal { context, sequence, tag })
    }

    /// The same sealed page at another place: its tag proves it wherever it is.
    pub fn moved_to(self, place: BlockPlace) -> Self {
        Self { place: place.word().into(), ..self }
    }

    /// Whether the number is free.
    pub fn is_free(&self) -> bool {
        self.place.get() == 0
    }

    /// This entry for a page in that form, which begins at the sector `offset` of its block.
    #[must_use]
    pub fn in_form(self, form: PageForm, offset: u8) -> Self {
        debug_assert!(offset < BLOCK_SECTORS && (form.is_packed() || offset == 0));
        let sectors = u64::from(form.sectors % BLOCK_SECTORS);
        let bits = u64::from(offset) | sectors << 3 | (form.codec as u64) << 6;
        Self { place: (self.place.get() | bits << FORM_AT).into(), ..self }
    }

    /// Where the page is, or begins; `None` for a free or lost one.
    pub fn place(&self) -> Option<BlockPlace> {
        let word = self.place.get();
        self.form().and_then(|_| BlockPlace::from_word(word & !FORM_MASK))
    }

    /// The form of the page and its first sector in its block; `None` for what no page has.
    pub fn form(&self) -> Option<(PageForm, u8)> {
        let bits = (self.place.get() & FORM_MASK) >> FORM_AT;
        let offset = (bits & 7) as u8;
        let form = PageForm::new((bits >> 6) as u8, (bits >> 3 & 7) as u8)?;
        (form.is_packed() || offset == 0).then_some((form, offset))
    }

    /// Whether the page is packed.
    pub fn is_packed(&self) -> bool {
        self.form().is_some_and(|(form, _)| form.is_packed())
    }

    /// The blocks that the page touches.
    pub fn span(&self) -> u32 {
        self.form().map_or(1, |(form, offset)| form.span(offset))
    }

    /// The bytes of the page in its blocks.
    pub fn bytes_in<'a>(&self, blocks: &'a [Block]) -> &'a [u8] {
        let (form, offset) = self.form().unwrap_or((PageForm::PLAIN, 0));
        form.bytes_in(offset, blocks)
    }
}
