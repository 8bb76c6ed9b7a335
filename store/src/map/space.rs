//! Counts of pages and quotas, for checkpoints and for the admission of writes.

use serde::{Deserialize, Serialize};

use crate::api::QuotaWait;

/// The part of a reservation that is added to it for the map: 40 bytes for a block of 4,096, and
/// more where blocks are few and far between.
const MAP_PART: u64 = 32;

/// The space of a version, as a checkpoint has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct VersionSpace {
    /// Pages of data that it owns.
    pub(super) owned: u64,
    /// Blocks that have a page; `None` when that is not known, since the volume was made smaller.
    pub(super) refers: Option<u64>,
    /// Of a volume, blocks that others cannot take.
    pub(super) reservation: u64,
    /// Of a volume, blocks that it and its snapshots may own.
    pub(super) limit: Option<u64>,
}

impl VersionSpace {
    /// Of a new volume.
    pub(super) const NONE: Self = Self { owned: 0, refers: Some(0), reservation: 0, limit: None };

    /// Whether a checkpoint may have it; only a head has a quota.
    pub(super) fn is_possible(&self, is_head: bool) -> bool {
        let numbers = [self.owned, self.refers.unwrap_or(0), self.reservation];
        let all = numbers.into_iter().chain(self.limit);
        let has_quota = self.reservation > 0 || self.limit.is_some();
        all.max().is_some_and(|most| most <= BLOCKS_MAX) && (!has_quota || is_head)
    }
}

/// More blocks than a pool can have: 16 devices of 2^24 segments of 2^16 blocks.
pub(super) const BLOCKS_MAX: u64 = 1 << 44;

/// Words of a tree that a change has taken away.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GoneWords {
    /// Those with a page.
    pub(super) referred: u64,
    /// Pages among them that the volume owned.
    pub(super) owned: u64,
    /// Pages among them that its parent owned, which is being removed.
    pub(super) of_parent: u64,
    /// Pages among them that only its history has from here on.
    pub(super) of_history: u64,
}

/// A volume and its snapshots.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SpaceAccount {
    /// Versions that have it; 0 after the last one is gone.
    pub(super) versions: u64,
    /// Their pages.
    pub(super) owned: u64,
    /// Blocks of writes that are admitted and not applied.
    pub(super) under_way: u64,
    /// The head's reservation.
    pub(super) reservation: u64,
    /// The head's limit.
    pub(super) limit: Option<u64>,
    /// The reason for which a write of the head was refused, and its blocks.
    pub(super) refused: Option<(QuotaWait, u64)>,
}

impl SpaceAccount {
    /// Blocks that are kept free for it, with their map.
    pub(super) fn promised(&self) -> u64 {
        with_map(self.reservation.saturating_sub(self.owned))
    }

    /// Blocks of its reservation that have pages. Those that share their content would take room
    /// if they were written again.
    pub(super) fn lent(&self) -> u64 {
        self.reservation.min(self.owned)
    }
}

/// Blocks with what the map takes for them at most, where they lie together.
pub(super) fn with_map(blocks: u64) -> u64 {
    blocks + blocks.div_ceil(MAP_PART)
}
