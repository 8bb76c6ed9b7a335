//! The table of moments of a checkpoint's state: thousands of moments are no JSON.

use zerocopy::little_endian::U32;

use super::changes::volume;
use super::state::{check_version, ensure};
use super::{PoolCatalog, PoolVolumeKind, Version};
use crate::format::NO_VOLUME;
use crate::history::HistoryOptions;
use crate::map::moments::{MOMENT_FIRST, MomentRecord, is_moment};
use crate::map::space::VersionSpace;

/// The bit of a moment that is being removed.
const REMOVING: u32 = 1 << 31;

/// A count that is not known.
const UNKNOWN: u64 = u64::MAX;

impl MomentRecord {
    fn of(version: &Version) -> Self {
        let is_removing = version.kind == PoolVolumeKind::Removing;
        let flags = if is_removing { REMOVING } else { 0 };
        Self {
            id: version.id.into(),
            of: version.of.unwrap_or(NO_VOLUME).into(),
            parent: version.parent.unwrap_or(NO_VOLUME).into(),
            generation: (version.generation as u32 | flags).into(),
            at_ns: version.at_ns.into(),
            root: version.root.into(),
            blocks: version.blocks.into(),
            owned: version.space.owned.into(),
            refers: version.space.refers.unwrap_or(UNKNOWN).into(),
            held: (version.held.min(u32::MAX.into()) as u32).into(),
            family: version.family.unwrap_or(NO_VOLUME).into(),
        }
    }

    fn version(&self) -> Version {
        let some = |id: U32| Some(id.get()).filter(|&id| id != NO_VOLUME);
        let generation = self.generation.get();
        let is_removing = generation & REMOVING != 0;
        let refers = Some(self.refers.get()).filter(|&refers| refers != UNKNOWN);
        Version {
            kind: if is_removing { PoolVolumeKind::Removing } else { PoolVolumeKind::Snapshot },
            of: some(self.of),
            parent: some(self.parent),
            generation: u64::from(generation & !REMOVING),
            blocks: self.blocks.get(),
            root: self.root.get(),
            space: VersionSpace { owned: self.owned.get(), refers, ..VersionSpace::NONE },
            family: some(self.family),
            at_ns: self.at_ns.get(),
            held: self.held.get().into(),
            ..volume(self.id.get())
        }
    }
}

impl PoolCatalog {
    pub(super) fn moment_records(&self) -> impl Iterator<Item = MomentRecord> {
        self.versions.range(MOMENT_FIRST..).map(|(_, version)| MomentRecord::of(version))
    }

    /// The moments of a checkpoint.
    ///
    /// # Errors
    /// If a field has a value that it cannot have.
    pub(super) fn restore_moments(
        &mut self,
        table: &[MomentRecord],
        (last_moment, nodes): (u32, u64),
    ) -> Result<(), String> {
        let has_room = table.len() as u64 <= HistoryOptions::POOL_MOMENTS_MAX;
        ensure(has_room, "the count of moments")?;
        ensure(last_moment == 0 || is_moment(last_moment), "the last moment")?;
        self.last_moment = last_moment;
        for record in table {
            let version = record.version();
            let id = version.id;
            check_version(&version, &self.generation, nodes)
                .map_err(|field| format!("moment {id} has an impossible {field}"))?;
            let is_right = is_moment(id)
                && id != NO_VOLUME
                && version.of.is_some_and(|of| of < self.next_id)
                && version.family.is_none_or(|family| self.families.contains_key(&family))
                && !self.versions.contains_key(&id);
            ensure(is_right, "a moment")?;
            let of = version.of.unwrap_or_default();
            let has_twin = self.has_moment_of(of, version.generation);
            ensure(version.kind == PoolVolumeKind::Removing || !has_twin, "a moment twice")?;
            self.insert(version);
        }
        ensure(self.are_moments_in_order(), "the order of moments")
    }
}
