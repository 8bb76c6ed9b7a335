//! The check of a page.

use crc_fast::{CrcAlgorithm, Digest};

use super::record::LogRecord;

/// The kind of a block that has a check: a block of one kind never passes for one of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagDomain {
    /// A page of a guest's data.
    Data,
    /// A node of a tree.
    Node,
    /// A block of a page table, at a level.
    Table(u8),
    /// A block of a checkpoint's state or of its index.
    State,
    /// A change of the catalog, in a row.
    Change,
    /// The content of a page that is an alias: the number of the page that has the content is in
    /// place of a sequence.
    Alias,
}

impl TagDomain {
    /// The domain as a word on the medium.
    pub fn word(self) -> u64 {
        match self {
            Self::Data => 1,
            Self::Node => 2,
            Self::Table(level) => 3 | u64::from(level) << 8,
            Self::State => 4,
            Self::Change => 5,
            Self::Alias => 6,
        }
    }
}

/// CRC-64/NVME over the pool's UUID, the domain, the page's number, the sequence of the row that
/// has the page, and the page. A block that is flipped, stale, swapped or from another place or
/// pool does not match.
pub fn tag_crc(uuid: &[u8; 16], domain: TagDomain, number: u64, sequence: u64, page: &[u8]) -> u64 {
    let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
    let mut front = [0; 40];
    front[..16].copy_from_slice(uuid);
    front[16..24].copy_from_slice(&domain.word().to_le_bytes());
    front[24..32].copy_from_slice(&number.to_le_bytes());
    front[32..].copy_from_slice(&sequence.to_le_bytes());
    digest.update(&front);
    digest.update(page);
    digest.finalize()
}

/// The domain and the number in the check of a record's payload. The blocks of the two page tables
/// have numbers of their own, and so do the blocks of a checkpoint's state and of its index.
pub fn tag_of(record: &LogRecord) -> (TagDomain, u64) {
    match *record {
        LogRecord::Write { number, .. }
        | LogRecord::Sealed { number, .. }
        | LogRecord::Resealed { number, .. }
        | LogRecord::Move { number, .. } => (TagDomain::Data, number),
        LogRecord::Node { number, .. } => (TagDomain::Node, number),
        LogRecord::Table { kind, level, index, .. } => {
            (TagDomain::Table(level), index << 1 | kind as u64)
        }
        LogRecord::State { index, .. } => (TagDomain::State, index),
        LogRecord::Change { .. }
        | LogRecord::Zero { .. }
        | LogRecord::Lost { .. }
        | LogRecord::Alias { .. }
        | LogRecord::Moment { .. }
        | LogRecord::Forget { .. }
        | LogRecord::Removal { .. } => (TagDomain::Change, 0),
    }
}
