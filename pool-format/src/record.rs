//! Records: the changes of a row.

use thiserror::Error;

use super::place::{BLOCK_SECTORS, BlockPlace, PageForm, SegmentId};
use crate::block::BLOCK_BYTES;

/// Bytes of a record.
pub const RECORD_BYTES: usize = 40;

/// The most blocks of a record [`LogRecord::Zero`]. They lie in an aligned group of as many, so
/// that each record needs few blocks of the page table.
pub const ZERO_BLOCKS_MAX: u64 = 64;

/// The highest number of a page; 0 is none. A word of a tree has a birth beside it.
pub const NUMBER_MAX: u64 = (1 << 36) - 1;

/// The most volumes of a record [`LogRecord::Moment`].
pub const MOMENT_VOLUMES_MAX: usize = 7;

/// No volume, in a record [`LogRecord::Moment`].
pub const NO_VOLUME: u32 = u32::MAX;

/// Which of the two page tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TableKind {
    /// Pages of guests' data.
    Data = 0,
    /// Nodes of trees.
    Nodes = 1,
}

/// The tag of AES-256-GCM.
pub type SealTag = [u8; 16];

/// One change. A record with a payload has one block of its row, or some sectors if its page is
/// packed; [`super::payload_places`] says which.
///
/// ```text
/// byte 0  kind   1 flag   2..4 blocks   4..8 volume   8..16 block
/// 16..24 number  24..32 crc  32..40 place
/// ```
///
/// Records of sealed pages have no room for words, and fields of their own:
///
/// ```text
/// Sealed    byte 0 kind   1 version   2..6 volume   6..11 block       11..16 number
/// Resealed  byte 0 kind   1 version   2..4 block    4..8 segment      8..16 number
/// both      16..24 crc   24..40 tag
/// Moment    byte 0 kind   4..12 time      12..40 volumes, from the lowest number to the highest
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogRecord {
    /// A block of a volume was written: the payload is its page `number`.
    Write {
        /// The volume.
        volume: u32,
        /// The block of the volume.
        block: u64,
        /// The number of the page.
        number: u64,
        /// The page's check.
        crc: u64,
    },
    /// Blocks of a volume read as zeroes from here on. They lie in an aligned group of
    /// [`ZERO_BLOCKS_MAX`]. No payload.
    Zero {
        /// The volume.
        volume: u32,
        /// The first block.
        block: u64,
        /// How many.
        blocks: u16,
    },
    /// A block of an encrypted volume was written: the payload is its page `number`, sealed.
    Sealed {
        /// The volume.
        volume: u32,
        /// The block of the volume.
        block: u64,
        /// The number of the page.
        number: u64,
        /// The check of the sealed page, which needs no key.
        crc: u64,
        /// The cipher's tag.
        tag: SealTag,
        /// The lowest bits of the count of the key that sealed it.
        version: u8,
    },
    /// The page `number` was sealed anew with the newest key of its family: the payload is the
    /// sealed page. The record counts only while the page is still at `from`.
    Resealed {
        /// The number of the page.
        number: u64,
        /// The check of the sealed page, which needs no key.
        crc: u64,
        /// Where it was.
        from: BlockPlace,
        /// The cipher's tag.
        tag: SealTag,
        /// The lowest bits of the count of the key that sealed it.
        version: u8,
    },
    /// The page `number` was copied: the payload is the page. The record counts only while the
    /// page is still at `from`.
    Move {
        /// The number of the page.
        number: u64,
        /// The page's check, in this row.
        crc: u64,
        /// Where it was.
        from: BlockPlace,
        /// The volume that had written it.
        volume: u32,
        /// How it is stored in this row.
        form: PageForm,
    },
    /// The page `number` was not readable when it had to be moved. No payload.
    Lost {
        /// The number of the page.
        number: u64,
        /// Where it was.
        from: BlockPlace,
    },
    /// The page `number` has the content of the page `shared`, or zeroes. The record counts only
    /// while the page is still at `from`. No payload.
    Alias {
        /// The number of the page.
        number: u64,
        /// Where it was.
        from: BlockPlace,
        /// The page whose content it has; 0 for zeroes.
        shared: u64,
        /// The check of the content, [`super::TagDomain::Alias`]; 0 for zeroes.
        crc: u64,
    },
    /// A change of the catalog: the payload is JSON, and zeroes behind it.
    Change {
        /// How many bytes the JSON has.
        bytes: u16,
        /// The payload's check.
        crc: u64,
        /// The second of two equal records, which counts if the first one's payload is damaged.
        is_copy: bool,
    },
    /// The removal of a snapshot is done with its blocks below `block`. No payload.
    Removal {
        /// The snapshot.
        snapshot: u32,
        /// Where the removal goes on; a multiple of [`ZERO_BLOCKS_MAX`].
        block: u64,
    },
    /// A moment of the history of each of these volumes. No payload.
    Moment {
        /// The time, in nanoseconds since 1970.
        at_ns: u64,
        /// The volumes, from the lowest number to the highest; [`NO_VOLUME`] behind them.
        volumes: [u32; MOMENT_VOLUMES_MAX],
    },
    /// The moments of a volume's history up to this generation are removed. No payload.
    Forget {
        /// The volume, which may be gone.
        volume: u32,
        /// The generation of the last moment that goes.
        generation: u64,
        /// The history is shorter than it was to be: the pool or the volume was full.
        is_early: bool,
    },
    /// A node of a tree. Only a checkpoint that refers to it gives it a meaning.
    Node {
        /// The number of the node.
        number: u64,
        /// The node's check.
        crc: u64,
    },
    /// A block of a page table. Only a checkpoint that refers to it gives it a meaning.
    Table {
        /// Which table.
        kind: TableKind,
        /// The level, 0 for the entries of pages.
        level: u8,
        /// Which block of the level.
        index: u64,
        /// The block's check.
        crc: u64,
    },
    /// A block of a checkpoint's state or of its index.
    State {
        /// Which block of the state; [`LogRecord::STATE_INDEX`] for one of the index.
        index: u64,
        /// The block's check.
        crc: u64,
    },
}

/// A record that no version of this format writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a record of the kind {kind} is unknown or has fields that it cannot have")]
pub struct RecordError {
    /// Its first byte.
    pub kind: u8,
}

impl LogRecord {
    /// Added to the index of a block of the state's index.
    pub const STATE_INDEX: u64 = 1 << 63;

    /// Whether a part of the row's payload belongs to it.
    pub fn has_payload(&self) -> bool {
        self.form().is_some()
    }

    /// The form of its payload; `None` if it has none.
    pub fn form(&self) -> Option<PageForm> {
        match *self {
            Self::Zero { .. }
            | Self::Lost { .. }
            | Self::Alias { .. }
            | Self::Removal { .. }
            | Self::Moment { .. }
            | Self::Forget { .. } => None,
            Self::Move { form, .. } => Some(form),
            _ => Some(PageForm::PLAIN),
        }
    }

    /// Whether recovery applies it. The others are pages of the map, which a checkpoint refers to.
    pub fn is_replayed(&self) -> bool {
        !matches!(self, Self::Node { .. } | Self::Table { .. } | Self::State { .. })
    }

    /// The record on the medium.
    pub fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut raw = Raw::default();
        match *self {
            Self::Sealed { volume, block, number, crc, tag, version } => {
                let mut bytes = sealed_bytes(10, version, crc, tag);
                bytes[2..6].copy_from_slice(&volume.to_le_bytes());
                bytes[6..11].copy_from_slice(&block.to_le_bytes()[..5]);
                bytes[11..16].copy_from_slice(&number.to_le_bytes()[..5]);
                return bytes;
            }
            Self::Resealed { number, crc, from, tag, version } => {
                let mut bytes = sealed_bytes(11, version, crc, tag);
                bytes[2..4].copy_from_slice(&from.block.to_le_bytes());
                bytes[4..8].copy_from_slice(&from.segment.0.to_le_bytes());
                bytes[8..16].copy_from_slice(&number.to_le_bytes());
                return bytes;
            }
            Self::Moment { at_ns, volumes } => return moment_bytes(at_ns, &volumes),
            Self::Forget { volume, generation: number, is_early } => {
                raw = Raw { kind: 14, flag: u8::from(is_early), volume, number, ..raw };
            }
            Self::Write { volume, block, number, crc } => {
                raw = Raw { kind: 1, volume, block, number, crc, ..raw };
            }
            Self::Zero { volume, block, blocks } => {
                raw = Raw { kind: 2, volume, block, blocks, ..raw };
            }
            Self::Move { number, crc, from, volume, form } => {
                let (flag, blocks) = (form.codec as u8, u16::from(form.sectors % BLOCK_SECTORS));
                let place = from.word();
                raw = Raw { kind: 3, flag, blocks, volume, number, crc, place, ..raw };
            }
            Self::Lost { number, from } => raw = Raw { kind: 4, number, place: from.word(), ..raw },
            Self::Alias { number, from, shared, crc } => {
                let place = from.word();
                raw = Raw { kind: 13, block: shared, number, crc, place, ..raw };
            }
            Self::Change { bytes, crc, is_copy } => {
                raw = Raw { kind: 5, flag: u8::from(is_copy), blocks: bytes, crc, ..raw };
            }
            Self::Removal { snapshot, block } => {
                raw = Raw { kind: 6, volume: snapshot, block, ..raw }
            }
            Self::Node { number, crc } => raw = Raw { kind: 7, number, crc, ..raw },
            Self::Table { kind, level, index, crc } => {
                let volume = u32::from(level);
                raw = Raw { kind: 8, flag: kind as u8, volume, number: index, crc, ..raw };
            }
            Self::State { index, crc } => raw = Raw { kind: 9, number: index, crc, ..raw },
        }
        raw.encode()
    }

    /// The record that `bytes` are.
    ///
    /// # Errors
    /// If the kind is unknown or a field has a value that the kind cannot have.
    pub fn decode(bytes: &[u8; RECORD_BYTES]) -> Result<Self, RecordError> {
        let raw = Raw::decode(bytes);
        let Raw { kind, volume, block, number, crc, .. } = raw;
        let wrong = RecordError { kind };
        let place = || BlockPlace::from_word(raw.place).ok_or(wrong);
        let record = match kind {
            1 => Self::Write { volume, block, number, crc },
            2 => Self::Zero { volume, block, blocks: raw.blocks },
            3 => {
                let sectors = u8::try_from(raw.blocks).map_err(|_| wrong)?;
                let form = PageForm::new(raw.flag, sectors).ok_or(wrong)?;
                Self::Move { number, crc, from: place()?, volume, form }
            }
            4 => Self::Lost { number, from: place()? },
            5 => Self::Change { bytes: raw.blocks, crc, is_copy: raw.flag == 1 },
            6 => Self::Removal { snapshot: volume, block },
            7 => Self::Node { number, crc },
            8 => Self::Table {
                kind: match raw.flag {
                    0 => TableKind::Data,
                    1 => TableKind::Nodes,
                    _ => return Err(wrong),
                },
                level: u8::try_from(volume).map_err(|_| wrong)?,
                index: number,
                crc,
            },
            9 => Self::State { index: number, crc },
            10 | 11 => Self::decode_sealed(bytes),
            12 => Self::decode_moment(bytes),
            13 => Self::Alias { number, from: place()?, shared: block, crc },
            14 => Self::Forget { volume, generation: number, is_early: raw.flag == 1 },
            _ => return Err(wrong),
        };
        // A field that the kind does not have is 0: there is one encoding of each record.
        if record.is_possible() && record.encode() == *bytes { Ok(record) } else { Err(wrong) }
    }

    fn decode_moment(bytes: &[u8; RECORD_BYTES]) -> Self {
        let at_ns = u64::from_le_bytes(bytes[4..12].try_into().expect("8 bytes"));
        let volume = |at: usize| {
            let bytes = &bytes[MOMENT_VOLUMES_AT + 4 * at..][..4];
            u32::from_le_bytes(bytes.try_into().expect("4 bytes"))
        };
        Self::Moment { at_ns, volumes: std::array::from_fn(volume) }
    }

    fn decode_sealed(bytes: &[u8; RECORD_BYTES]) -> Self {
        let word = |at: usize, len: usize| {
            let mut word = [0; 8];
            word[..len].copy_from_slice(&bytes[at..at + len]);
            u64::from_le_bytes(word)
        };
        let (crc, version) = (word(16, 8), bytes[1]);
        let tag = bytes[24..].try_into().expect("16 bytes");
        match bytes[0] {
            10 => {
                let (volume, block, number) = (word(2, 4) as u32, word(6, 5), word(11, 5));
                Self::Sealed { volume, block, number, crc, tag, version }
            }
            _ => {
                let segment = SegmentId(word(4, 4) as u32);
                let from = BlockPlace { segment, block: word(2, 2) as u16 };
                Self::Resealed { number: word(8, 8), crc, from, tag, version }
            }
        }
    }

    fn is_possible(&self) -> bool {
        match *self {
            Self::Resealed { number, from, .. } => {
                (1..=NUMBER_MAX).contains(&number) && from.segment.is_possible()
            }
            Self::Alias { number, shared, crc, .. } => {
                let is_possible = shared <= NUMBER_MAX && shared != number;
                (1..=NUMBER_MAX).contains(&number) && is_possible && (shared > 0 || crc == 0)
            }
            Self::Write { number, .. }
            | Self::Sealed { number, .. }
            | Self::Move { number, .. }
            | Self::Lost { number, .. }
            | Self::Node { number, .. } => (1..=NUMBER_MAX).contains(&number),
            Self::Zero { block, blocks, .. } => {
                blocks > 0 && block % ZERO_BLOCKS_MAX + u64::from(blocks) <= ZERO_BLOCKS_MAX
            }
            Self::Change { bytes, .. } => usize::from(bytes) <= BLOCK_BYTES,
            // An index is shifted by one bit in the check.
            Self::Table { index, .. } => index <= NUMBER_MAX,
            // One volume at least, and each of them once.
            Self::Moment { volumes, .. } => {
                volumes[0] != NO_VOLUME
                    && volumes.windows(2).all(|pair| pair[0] < pair[1] || pair[1] == NO_VOLUME)
            }
            Self::Removal { .. } | Self::Forget { .. } | Self::State { .. } => true,
        }
    }
}

/// Where the volumes of a moment are in its record.
const MOMENT_VOLUMES_AT: usize = RECORD_BYTES - 4 * MOMENT_VOLUMES_MAX;

fn moment_bytes(at_ns: u64, volumes: &[u32; MOMENT_VOLUMES_MAX]) -> [u8; RECORD_BYTES] {
    let mut bytes = [0; RECORD_BYTES];
    bytes[0] = 12;
    bytes[4..MOMENT_VOLUMES_AT].copy_from_slice(&at_ns.to_le_bytes());
    for (place, volume) in bytes[MOMENT_VOLUMES_AT..].chunks_exact_mut(4).zip(volumes) {
        place.copy_from_slice(&volume.to_le_bytes());
    }
    bytes
}

fn sealed_bytes(kind: u8, version: u8, crc: u64, tag: SealTag) -> [u8; RECORD_BYTES] {
    let mut bytes = [0; RECORD_BYTES];
    (bytes[0], bytes[1]) = (kind, version);
    bytes[16..24].copy_from_slice(&crc.to_le_bytes());
    bytes[24..].copy_from_slice(&tag);
    bytes
}

/// A record's fields, as most kinds have them.
#[derive(Clone, Copy, Debug, Default)]
struct Raw {
    kind: u8,
    flag: u8,
    blocks: u16,
    volume: u32,
    block: u64,
    number: u64,
    crc: u64,
    place: u64,
}

impl Raw {
    fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[0] = self.kind;
        bytes[1] = self.flag;
        bytes[2..4].copy_from_slice(&self.blocks.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.volume.to_le_bytes());
        for (at, word) in [(8, self.block), (16, self.number), (24, self.crc), (32, self.place)] {
            bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    fn decode(bytes: &[u8; RECORD_BYTES]) -> Self {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let first = word(0);
        Self {
            kind: bytes[0],
            flag: bytes[1],
            blocks: (first >> 16) as u16,
            volume: (first >> 32) as u32,
            block: word(8),
            number: word(16),
            crc: word(24),
            place: word(32),
        }
    }
}
