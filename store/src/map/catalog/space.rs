//! The space of volumes: how many pages each version owns, and what volumes may have.
//!
//! Each page of data has one owner: the oldest version that has it. A volume and its snapshots have
//! one *account*, which has a reservation and a limit. All is counted when a record is applied, so
//! an admission is a look at two numbers, and a replay comes to the same counts.

use serde::{Deserialize, Serialize};

use super::{PoolCatalog, PoolVolumeKind, VOLUME_BLOCKS_MAX, Version};
use crate::api::{QuotaWait, VolumeId};

/// Blocks that a volume at its limit may have under way: it can go on to overwrite what it has. So
/// it owns so many more than its limit at most.
const OVERWRITTEN_BLOCKS: u64 = 1024;

/// The part of a reservation that is added to it for the map: 40 bytes for a block of 4,096, and
/// more where blocks are few and far between.
const MAP_PART: u64 = 32;

/// The space of a version, as a checkpoint has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::map) struct VersionSpace {
    /// Pages of data that it owns.
    pub(in crate::map) owned: u64,
    /// Blocks that have a page; `None` when that is not known, since the volume was made smaller.
    pub(in crate::map) refers: Option<u64>,
    /// Of a volume, blocks that others cannot take.
    pub(in crate::map) reservation: u64,
    /// Of a volume, blocks that it and its snapshots may own.
    pub(in crate::map) limit: Option<u64>,
}

impl VersionSpace {
    pub(super) const NONE: Self = Self { owned: 0, refers: Some(0), reservation: 0, limit: None };

    pub(super) fn is_possible(&self, kind: PoolVolumeKind) -> bool {
        let numbers = [self.owned, self.refers.unwrap_or(0), self.reservation];
        let all = numbers.into_iter().chain(self.limit);
        let has_quota = self.reservation > 0 || self.limit.is_some();
        all.max().is_some_and(|most| most <= BLOCKS_MAX)
            && (!has_quota || kind == PoolVolumeKind::Volume)
    }
}

/// More blocks than a pool can have: 16 devices of 2^24 segments of 2^16 blocks.
pub(super) const BLOCKS_MAX: u64 = VOLUME_BLOCKS_MAX << 8;

/// Words of a tree that a change has taken away.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::map) struct GoneWords {
    /// Those with a page.
    pub(in crate::map) referred: u64,
    /// Pages among them that the volume owned.
    pub(in crate::map) owned: u64,
    /// Pages among them that its parent owned, which is being removed.
    pub(in crate::map) of_parent: u64,
}

/// A volume and its snapshots.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SpaceAccount {
    /// Versions that have it; 0 after the last one is gone.
    versions: u64,
    owned: u64,
    /// Blocks of writes that are admitted and not applied.
    under_way: u64,
    reservation: u64,
    limit: Option<u64>,
    wait: Option<QuotaWait>,
}

impl SpaceAccount {
    /// Blocks that are kept free for it, with their map.
    fn promised(&self) -> u64 {
        let left = self.reservation.saturating_sub(self.owned);
        left + left.div_ceil(MAP_PART)
    }
}

fn account_of(version: &Version) -> u32 {
    version.of.unwrap_or(version.id)
}

impl PoolCatalog {
    fn with_account<T>(&mut self, id: u32, change: impl FnOnce(&mut SpaceAccount) -> T) -> T {
        let account = self.accounts.entry(id).or_default();
        self.promised -= account.promised();
        let result = change(account);
        self.promised += account.promised();
        if account.versions == 0 && account.under_way == 0 {
            self.promised -= account.promised();
            self.accounts.remove(&id);
        }
        result
    }

    /// A version is there.
    pub(super) fn open_account(&mut self, version: &Version) {
        let VersionSpace { owned, reservation, limit, .. } = version.space;
        let is_head = version.kind == PoolVolumeKind::Volume;
        self.with_account(account_of(version), |account| {
            account.versions += 1;
            account.owned += owned;
            if is_head {
                (account.reservation, account.limit) = (reservation, limit);
            }
        });
    }

    /// A version is gone.
    pub(super) fn close_account(&mut self, version: &Version) {
        let owned = version.space.owned;
        self.with_account(account_of(version), |account| {
            account.versions -= 1;
            account.owned = account.owned.saturating_sub(owned);
        });
    }

    /// A version owns more or fewer pages. After damage the counts may be too low: they stay counts.
    fn charge(&mut self, id: u32, more: u64, fewer: u64) {
        let Some(version) = self.versions.get_mut(&id) else { return };
        let before = version.space.owned;
        version.space.owned = (before + more).saturating_sub(fewer);
        let (after, account) = (version.space.owned, account_of(version));
        if after != before {
            self.with_account(account, |it| it.owned = (it.owned + after).saturating_sub(before));
        }
    }

    /// A change of a volume's tree: so many pages came, and these words went.
    pub(in crate::map) fn note_change(&mut self, volume: u32, came: u64, gone: GoneWords) {
        let GoneWords { referred, owned, of_parent } = gone;
        self.charge(volume, came, owned);
        if of_parent > 0
            && let Some(running) = self.running
        {
            self.charge(running, 0, of_parent);
        }
        if let Some(version) = self.versions.get_mut(&volume) {
            let refers = &mut version.space.refers;
            *refers = refers.map(|refers| (refers + came).saturating_sub(referred));
        }
    }

    /// It is not known any more how many blocks of a volume have pages.
    pub(in crate::map) fn forget_refers(&mut self, volume: u32) {
        if let Some(version) = self.versions.get_mut(&volume) {
            version.space.refers = None;
        }
    }

    /// A removal has freed pages of its version.
    pub(in crate::map) fn note_freed(&mut self, version: u32, pages: u64) {
        self.charge(version, 0, pages);
    }

    /// The pages of one version are another one's from here on.
    pub(super) fn hand_on(&mut self, from: u32, to: u32) {
        let owned = self.versions[&from].space.owned;
        self.charge(from, 0, owned);
        self.charge(to, owned, 0);
    }

    /// A volume gets another reservation and another limit.
    pub(super) fn set_quota(&mut self, volume: u32, reservation: u64, limit: Option<u64>) {
        let version = self.get_mut(volume);
        (version.space.reservation, version.space.limit) = (reservation, limit);
        self.with_account(volume, |account| {
            (account.reservation, account.limit, account.wait) = (reservation, limit, None);
        });
    }

    /// Blocks that are kept free for volumes with a reservation.
    pub(in crate::map) fn promised(&self) -> u64 {
        self.promised
    }

    /// The same if a volume had another reservation.
    pub(in crate::map) fn promised_with(&self, volume: VolumeId, reservation: u64) -> u64 {
        let account = self.accounts.get(&volume.0).copied().unwrap_or_default();
        let changed = SpaceAccount { reservation, ..account };
        self.promised - account.promised() + changed.promised()
    }

    /// Why a volume may not write so many blocks now, if the pool has `room` for so many.
    pub(in crate::map) fn quota_wait(
        &self,
        volume: VolumeId,
        blocks: u64,
        room: u64,
    ) -> Option<QuotaWait> {
        let account = self.accounts.get(&volume.0)?;
        let under_way = account.under_way + blocks;
        if let Some(limit) = account.limit {
            let may_overwrite = account.owned <= limit && under_way <= OVERWRITTEN_BLOCKS;
            if account.owned + under_way > limit && !may_overwrite {
                return Some(QuotaWait::Limit);
            }
        }
        let others = self.promised - account.promised();
        (others > 0 && room < others).then_some(QuotaWait::Reserved)
    }

    /// What a volume waits for from here on.
    pub(in crate::map) fn set_wait(&mut self, volume: VolumeId, wait: Option<QuotaWait>) {
        if let Some(account) = self.accounts.get_mut(&volume.0) {
            account.wait = wait;
        }
    }

    /// What a volume waits for.
    pub(super) fn wait_of(&self, version: &Version) -> Option<QuotaWait> {
        let is_head = version.kind == PoolVolumeKind::Volume;
        self.accounts.get(&version.id).filter(|_| is_head)?.wait
    }

    /// The pages of a volume and its snapshots.
    pub(super) fn account_blocks(&self, version: &Version) -> u64 {
        self.accounts.get(&account_of(version)).map_or(0, |account| account.owned)
    }

    /// A write of a block was admitted.
    pub(in crate::map) fn write_begins(&mut self, volume: VolumeId) {
        self.with_account(volume.0, |account| account.under_way += 1);
    }

    /// A write of a block was applied.
    pub(in crate::map) fn write_ends(&mut self, volume: VolumeId) {
        self.with_account(volume.0, |account| {
            account.under_way = account.under_way.saturating_sub(1);
        });
    }
}
