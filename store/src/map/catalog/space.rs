//! The space of volumes: how many pages each version owns, and what volumes may have.
//!
//! Each page of data has one owner: the oldest version that has it. A volume and its snapshots have
//! one *account*, which has a reservation and a limit. All is counted when a record is applied, so
//! an admission is a look at two numbers, and a replay comes to the same counts.

use super::{PoolCatalog, PoolVolumeKind, Version};
use crate::api::{QuotaWait, VolumeId};
use crate::map::space::{GoneWords, SpaceAccount, VersionSpace, with_map};

/// Blocks that a volume at its limit may have under way: it can go on to overwrite what it has. So
/// it owns so many more than its limit at most.
const OVERWRITTEN_BLOCKS: u64 = 1024;

fn account_of(version: &Version) -> u32 {
    version.of.unwrap_or(version.id)
}

impl PoolCatalog {
    fn with_account<T>(&mut self, id: u32, change: impl FnOnce(&mut SpaceAccount) -> T) -> T {
        let account = self.accounts.entry(id).or_default();
        self.promised -= account.promised();
        self.lent -= account.lent();
        let result = change(account);
        self.promised += account.promised();
        self.lent += account.lent();
        if account.versions == 0 && account.under_way == 0 {
            self.promised -= account.promised();
            self.lent -= account.lent();
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

    /// A version owns more or fewer pages. After damage counts may be too low: they stay counts.
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
        let GoneWords { referred, owned, of_parent, of_history } = gone;
        self.charge(volume, came, owned);
        if of_parent > 0
            && let Some(running) = self.running
        {
            self.charge(running, 0, of_parent);
        }
        if of_history > 0
            && let Some(parent) = self.versions.get(&volume).and_then(|version| version.parent)
        {
            self.hold(parent, of_history, 0);
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
        self.hold(version, 0, pages);
    }

    /// The pages of one version are another version's from here on.
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
            (account.reservation, account.limit, account.refused) = (reservation, limit, None);
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

    /// Blocks that are kept free because volumes with a reservation may write pages anew that share
    /// their content now: that is what sharing has `saved`, or all of these volumes' pages. One
    /// volume may have another reservation.
    pub(in crate::map) fn lent(&self, saved: u64, with: Option<(VolumeId, u64)>) -> u64 {
        let Some((volume, reservation)) = with else { return with_map(saved.min(self.lent)) };
        let account = self.accounts.get(&volume.0).copied().unwrap_or_default();
        let changed = SpaceAccount { reservation, ..account };
        with_map(saved.min(self.lent - account.lent() + changed.lent()))
    }

    /// Why a volume may not write so many blocks now, if the pool has `room` for so many more, and
    /// sharing has `saved` so many.
    pub(in crate::map) fn quota_wait(
        &self,
        volume: VolumeId,
        blocks: u64,
        (room, saved): (u64, u64),
    ) -> Option<QuotaWait> {
        let account = self.accounts.get(&volume.0)?;
        let under_way = account.under_way + blocks;
        if let Some(limit) = account.limit {
            let may_overwrite = account.owned <= limit && under_way <= OVERWRITTEN_BLOCKS;
            if account.owned + under_way > limit && !may_overwrite {
                return Some(QuotaWait::Limit);
            }
        }
        // The savings of volumes with a reservation are there for all of these volumes.
        let is_reserved = account.owned <= account.reservation && under_way <= OVERWRITTEN_BLOCKS;
        let is_reserved = is_reserved && account.reservation > 0;
        let lent = if is_reserved { 0 } else { saved.min(self.lent - account.lent()) };
        let lent = with_map(lent);
        let others = self.promised - account.promised() + lent;
        (others > 0 && room < others).then_some(QuotaWait::Reserved)
    }

    /// The last write of a volume was refused for this reason, or was not refused.
    pub(in crate::map) fn set_refused(&mut self, volume: VolumeId, to: Option<(QuotaWait, u64)>) {
        if let Some(account) = self.accounts.get_mut(&volume.0) {
            account.refused = to;
        }
    }

    /// The reason for which a volume waits, if the pool has `room` for so many blocks and sharing
    /// has `saved` so many: its last write was refused, and would be refused again.
    pub(in crate::map) fn wait_of(
        &self,
        volume: VolumeId,
        (room, saved): (u64, u64),
    ) -> Option<QuotaWait> {
        let is_head = self.versions.get(&volume.0)?.kind == PoolVolumeKind::Volume;
        let (_, blocks) = self.accounts.get(&volume.0).filter(|_| is_head)?.refused?;
        self.quota_wait(volume, blocks, (room.saturating_sub(blocks), saved))
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
