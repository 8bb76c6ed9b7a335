//! The pages of the map, and the words that its parts speak with each other.

use std::fmt;
use std::hash::{BuildHasherDefault, Hash, Hasher};

use crate::block::Block;
use crate::format::{BlockPlace, LogRecord, PageEntry, TableKind, TagDomain, tag_crc, tag_of};

/// Entries of a block of a page table.
pub(crate) const TABLE_ENTRIES: u64 = 128;

/// Bytes of an entry.
const ENTRY_BYTES: usize = size_of::<PageEntry>();

/// Words of a node.
pub(crate) const NODE_WORDS: usize = 512;

/// Counts live pages: the table of segments does it.
pub(crate) trait LiveBlocks {
    /// The page of so many sectors at this place is referred to from here on.
    fn gain(&mut self, place: BlockPlace, sectors: u8);
    /// The page at this place is not referred to any more.
    fn lose(&mut self, place: BlockPlace, sectors: u8);
}

/// Why the map has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MapError {
    /// A page is not in memory: `next_load` says which.
    Missing,
    /// A page that is needed is damaged.
    Damaged,
}

/// A page of the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MapPage {
    /// A node of a tree, by its number.
    Node(u64),
    /// A block of a page table.
    Table {
        /// Which table.
        kind: TableKind,
        /// The level, 0 for the entries of pages.
        level: u8,
        /// Which block of the level.
        index: u64,
    },
}

impl Hash for MapPage {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // One word for a look-up: numbers have 40 bits, and so have indices.
        state.write_u64(match *self {
            Self::Node(number) => number,
            Self::Table { kind, level, index } => {
                1 << 63 | (kind as u64) << 62 | u64::from(level) << 48 | index
            }
        });
    }
}

/// Makes the hashes of pages and numbers. A request looks some 30 of them up, and no guest chooses
/// them: so they are spread by one multiplication, and not guarded against collisions.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NumberHasher(u64);

/// The hasher of maps and sets of pages and numbers.
pub(super) type NumberHash = BuildHasherDefault<NumberHasher>;

impl Hasher for NumberHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(byte.into());
        }
    }

    fn write_u64(&mut self, word: u64) {
        // The digits of the golden ratio. Both halves of the product count, as a table takes the
        // hash's lowest and highest bits.
        let product = u128::from(self.0 ^ word) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl MapPage {
    /// The domain and the number of the page's check.
    pub(crate) fn tag(&self) -> (TagDomain, u64) {
        tag_of(&self.record(0))
    }

    /// The check of the page's content in the row `sequence`.
    pub(crate) fn crc(&self, uuid: &[u8; 16], sequence: u64, content: &Block) -> u64 {
        let (domain, number) = self.tag();
        tag_crc(uuid, domain, number, sequence, &content.0)
    }

    /// The record of the page, in a row of the stream of the map.
    pub(crate) fn record(&self, crc: u64) -> LogRecord {
        match *self {
            Self::Node(number) => LogRecord::Node { number, crc },
            Self::Table { kind, level, index } => LogRecord::Table { kind, level, index, crc },
        }
    }

    /// The page that a record has; `None` if the record has no page of the map.
    pub(crate) fn of_record(record: &LogRecord) -> Option<Self> {
        match *record {
            LogRecord::Node { number, .. } => Some(Self::Node(number)),
            LogRecord::Table { kind, level, index, .. } => Some(Self::Table { kind, level, index }),
            _ => None,
        }
    }

    /// The pass of a checkpoint that writes the page.
    pub(crate) fn pass(&self) -> MapPass {
        match *self {
            Self::Node(_) => MapPass::Nodes,
            Self::Table { level, .. } => MapPass::Tables(level),
        }
    }
}

/// The pages of the map that a checkpoint writes at once, in this order: each pass changes pages
/// of the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MapPass {
    /// All nodes.
    Nodes,
    /// The blocks of both page tables at this level.
    Tables(u8),
}

/// A page as it was copied for a write. The answer to the write counts only for this copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WriteToken(pub(super) u64);

/// A page that has the content of another page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageAlias {
    /// Its own number.
    pub(crate) number: u64,
    /// The check of the content.
    pub(crate) crc: u64,
}

/// The content of a block of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Located {
    /// Zeroes.
    Hole,
    /// A page.
    Page {
        /// Its number.
        number: u64,
        /// Where it is.
        entry: PageEntry,
        /// The alias that the block has.
        alias: Option<PageAlias>,
    },
    /// A page whose content is lost.
    Lost,
}

/// The effect of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Applied {
    /// It took effect.
    Done,
    /// It came too late, or it is about something that is gone: it had no effect.
    Dropped,
}

/// A word of a node: the generation of an entry's birth, and the number of its page. 0 is a hole.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct TreeWord(pub(super) u64);

const NUMBER_BITS: u32 = 36;

impl TreeWord {
    pub(super) const HOLE: Self = Self(0);

    /// A block whose page could not be noted: no page has the number 0.
    pub(super) fn lost(birth: u64) -> Self {
        Self::new(birth, 0)
    }

    pub(super) fn is_lost(self) -> bool {
        !self.is_hole() && self.number() == 0
    }

    pub(super) fn new(birth: u64, number: u64) -> Self {
        debug_assert!(number >> NUMBER_BITS == 0 && birth >> (64 - NUMBER_BITS) == 0);
        Self(birth << NUMBER_BITS | number)
    }

    pub(super) fn is_hole(self) -> bool {
        self.0 == 0
    }

    pub(super) fn birth(self) -> u64 {
        self.0 >> NUMBER_BITS
    }

    pub(super) fn number(self) -> u64 {
        self.0 & ((1 << NUMBER_BITS) - 1)
    }
}

impl fmt::Debug for TreeWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.number(), self.birth())
    }
}

pub(super) fn node_word(node: &Block, at: usize) -> TreeWord {
    let bytes = &node.0[at * 8..at * 8 + 8];
    TreeWord(u64::from_le_bytes(bytes.try_into().expect("8 bytes")))
}

pub(super) fn set_node_word(node: &mut Block, at: usize, word: TreeWord) {
    node.0[at * 8..at * 8 + 8].copy_from_slice(&word.0.to_le_bytes());
}

pub(super) fn table_entry(block: &Block, slot: usize) -> PageEntry {
    let bytes = &block.0[slot * ENTRY_BYTES..][..ENTRY_BYTES];
    zerocopy::FromBytes::read_from_bytes(bytes).expect("an entry's bytes")
}

pub(super) fn set_table_entry(block: &mut Block, slot: usize, entry: PageEntry) {
    let bytes = &mut block.0[slot * ENTRY_BYTES..][..ENTRY_BYTES];
    bytes.copy_from_slice(zerocopy::IntoBytes::as_bytes(&entry));
}
