//! The words of a scrub: proofs of blocks, an operator's orders, and what was found.

use crate::extent::Extent;
use crate::record::MemberId;

/// Ranges of a scrub that are under way at a time: far fewer than the requests of one disk, which
/// go first so.
pub const SCRUB_RANGES_MAX: usize = 4;

/// Blocks of a range: a member that makes digests of them does so for a tenth of a millisecond.
pub const SCRUB_BLOCKS_MAX: u32 = 16;

/// Looks that end one after the other without an answer of the same member. It answers none: each
/// further range would be waited for, and the scrub would have no end. Ranges that are under way
/// end together, so this is twice their number.
pub(crate) const SCRUB_SILENT_LOOKS_MAX: u32 = 2 * SCRUB_RANGES_MAX as u32;

/// The key of the digests of one scrub: random bytes.
pub type ScrubKey = [u8; 16];

/// A digest of a block's content under a scrub's key. By chance, two contents have the same digest
/// once in 2^128 times.
pub type BlockDigest = [u8; 16];

/// A member's proof of a block; none if the member cannot read it.
pub type BlockProof = Option<BlockDigest>;

/// The member that has asked for proofs, the reign in which it did, and the number of the question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProofQuestion {
    /// The primary.
    pub asker: MemberId,
    /// Its reign.
    pub reign: u64,
    /// The number of the question in this reign.
    pub number: u64,
}

/// An operator's word about a scrub.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ScrubOrder {
    /// A scrub begins, if none is under way.
    Start {
        /// The key of its digests.
        key: ScrubKey,
        /// The sectors of the volume.
        sectors: u64,
        /// How fast it goes.
        bytes_per_s: u64,
    },
    /// It begins no further range until it goes on.
    Pause,
    /// It goes on.
    GoOn {
        /// How fast, if it is another pace.
        bytes_per_s: Option<u64>,
    },
    /// It ends.
    Stop,
}

/// How far a scrub is, or how the last one has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ScrubStage {
    /// It goes on.
    #[default]
    Runs,
    /// It begins no further range.
    Paused,
    /// It has looked at all of the volume.
    Done,
    /// An operator has stopped it.
    Stopped,
}

/// A scrub, as far as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ScrubReport {
    /// How far it is.
    pub stage: ScrubStage,
    /// The sectors of the volume.
    pub sectors: u64,
    /// The sectors that were looked at.
    pub looked_at: u64,
    /// The backups that are compared: each was in sync when the scrub began, and ever since.
    pub members: Vec<MemberId>,
    /// The backups that have left since the scrub began, or did not answer: they are not proved.
    pub left: Vec<MemberId>,
    /// Blocks of copies that could not be read, and were written again.
    pub repaired: u64,
    /// Blocks of copies that had other content, and were written again.
    pub differed: u64,
    /// Blocks that no member in sync can read, or that the primary cannot read again and again,
    /// though they were mended.
    pub lost: u64,
    /// Blocks that the primary cannot read and that backups have with different content.
    pub unsettled: u64,
    /// Blocks that were not proved: each time operations came before all members had answered, or a
    /// member did not answer.
    pub busy: u64,
}

/// A block that some copies do not have as the primary has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ScrubFinding {
    /// The block.
    pub block: Extent,
    /// The members that have other content.
    pub differ: Vec<MemberId>,
    /// The members that cannot read it, perhaps the primary among them.
    pub unread: Vec<MemberId>,
    /// How many copies have the primary's content, its own among them.
    pub agree: usize,
    /// The primary cannot read it, and the other copies have different content.
    pub is_unsettled: bool,
}
