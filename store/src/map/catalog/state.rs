//! The catalog in a checkpoint. A checkpoint is proved by checks, but a pool's devices may come
//! from anywhere: each field is looked at before it is believed.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::changes::{check_name, check_receive, check_size};
use super::{GENERATION_MAX, PoolCatalog, PoolVolumeKind, SealFamily, VERSIONS_MAX, Version};
use crate::format::ZERO_BLOCKS_MAX;
use crate::history::{VolumeHistory, is_zero};
use crate::map::moments::{MOMENT_FIRST, MomentRecord, is_moment};
use crate::map::page::TreeWord;
use pool_stream::{VOLUME_BLOCKS_MAX, VolumeReceive};

/// The catalog, as a checkpoint has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CatalogState {
    generation: u64,
    next_id: u32,
    running: Option<u32>,
    versions: Vec<Version>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    families: Vec<SealFamily>,
    #[serde(default, skip_serializing_if = "is_none_yet")]
    next_family: u32,
    /// Moments of histories, in the table behind the JSON.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) moments: u64,
    /// The number of the last one that was taken.
    #[serde(default, skip_serializing_if = "is_none_yet")]
    last_moment: u32,
    /// How far the removal is that runs, if it is that of a moment.
    #[serde(default, skip_serializing_if = "is_zero")]
    moment_removed_below: u64,
    /// The table.
    #[serde(skip)]
    pub(crate) table: Vec<MomentRecord>,
}

/// A pool that never had an encrypted volume, or a moment, has the state of pools that cannot have
/// any.
fn is_none_yet(number: &u32) -> bool {
    *number == 0
}

impl PoolCatalog {
    pub(in crate::map) fn state(&self) -> CatalogState {
        CatalogState {
            generation: self.generation,
            next_id: self.next_id,
            running: self.running,
            versions: self.named().cloned().collect(),
            families: self.families.values().cloned().collect(),
            next_family: self.next_family,
            moments: self.moments as u64,
            last_moment: self.last_moment,
            moment_removed_below: self.removed_of_moment(),
            table: self.moment_records().collect(),
        }
    }

    fn removed_of_moment(&self) -> u64 {
        let running = self.running.filter(|&running| is_moment(running));
        running.map_or(0, |running| self.versions[&running].removed_below)
    }

    /// The catalog of a checkpoint whose nodes have the numbers below `nodes`.
    ///
    /// # Errors
    /// If a field has a value that it cannot have.
    pub(in crate::map) fn from_state(state: CatalogState, nodes: u64) -> Result<Self, String> {
        let mut catalog = Self::new();
        ensure((1..=GENERATION_MAX).contains(&state.generation), "the generation")?;
        ensure(state.versions.len() <= VERSIONS_MAX, "the count of volumes")?;
        ensure(state.next_id < MOMENT_FIRST, "the next id")?;
        ensure(state.table.len() as u64 == state.moments, "the count of moments")?;
        catalog.generation = state.generation;
        catalog.next_id = state.next_id;
        catalog.restore_families(state.families, state.next_family)?;
        let mut names = BTreeSet::new();
        for version in state.versions {
            let id = version.id;
            check_version(&version, &state.generation, nodes)
                .map_err(|field| format!("volume {id} has an impossible {field}"))?;
            let is_known =
                version.family.is_none_or(|family| catalog.families.contains_key(&family));
            ensure(is_known, "a family of encrypted volumes")?;
            ensure(id < state.next_id && !catalog.versions.contains_key(&id), "an id")?;
            // Snapshots of one volume have different names, and so have volumes.
            let of = (version.kind == PoolVolumeKind::Snapshot).then_some(version.of);
            let is_named = version.kind != PoolVolumeKind::Removing;
            ensure(!is_named || names.insert((of, version.name.clone())), "a name twice")?;
            catalog.insert(version);
        }
        catalog.restore_moments(&state.table, (state.last_moment, nodes))?;
        catalog.check_family()?;
        if let Some(running) = state.running {
            let may = catalog.removing.contains(&running) && !catalog.waits(running);
            ensure(may, "the running removal")?;
        }
        if let Some(running) = state.running.filter(|&running| is_moment(running)) {
            let below = state.moment_removed_below;
            ensure(may_be_removed_below(below), "the place of a moment's removal")?;
            catalog.get_mut(running).removed_below = below;
        }
        let stands =
            |version: &Version| version.removed_below == 0 || Some(version.id) == state.running;
        ensure(catalog.versions.values().all(stands), "the place of a removal")?;
        catalog.running = state.running;
        Ok(catalog)
    }

    /// Each parent is an older snapshot, so that there is no circle of parents.
    fn check_family(&self) -> Result<(), String> {
        for version in self.versions.values() {
            let Some(parent) = version.parent else { continue };
            let is_older = self.versions.get(&parent).is_some_and(|parent| {
                let is_volume = version.kind == PoolVolumeKind::Volume;
                let generation = if is_volume { self.generation } else { version.generation };
                parent.kind != PoolVolumeKind::Volume && parent.generation < generation
            });
            ensure(is_older, "a parent")?;
        }
        Ok(())
    }
}

pub(super) fn check_version(
    version: &Version,
    generation: &u64,
    nodes: u64,
) -> Result<(), &'static str> {
    let root = TreeWord(version.root);
    let is_node = (1..nodes).contains(&root.number()) && (1..=*generation).contains(&root.birth());
    if !root.is_hole() && !is_node {
        return Err("root");
    }
    check_size(version.blocks).map_err(|_| "size")?;
    let is_right = match version.kind {
        PoolVolumeKind::Removing => version.name.is_empty(),
        _ if is_moment(version.id) => version.name.is_empty(),
        _ => check_name(&version.name).is_ok(),
    };
    if !is_right {
        return Err("name");
    }
    let is_right = match version.kind {
        PoolVolumeKind::Volume => version.generation == 0 && version.of.is_none(),
        PoolVolumeKind::Snapshot => version.generation < *generation && version.of.is_some(),
        PoolVolumeKind::Removing => version.generation <= *generation,
    };
    if !is_right {
        return Err("generation");
    }
    if !version.space.is_possible(version.kind == PoolVolumeKind::Volume) {
        return Err("space");
    }
    if !has_its_fields(version) {
        return Err("stream");
    }
    if !has_its_history(version, *generation) {
        return Err("history");
    }
    let below = version.removed_below;
    let may_be = version.kind == PoolVolumeKind::Removing && may_be_removed_below(below);
    if below > 0 && !may_be {
        return Err("place of its removal");
    }
    Ok(())
}

fn may_be_removed_below(block: u64) -> bool {
    block < VOLUME_BLOCKS_MAX && block.is_multiple_of(ZERO_BLOCKS_MAX)
}

/// Whether a version of a checkpoint has an origin only if it is a snapshot, and receives only if
/// it is a volume.
fn has_its_fields(version: &Version) -> bool {
    let may_receive = version.kind == PoolVolumeKind::Volume;
    let is_right = |receive: &VolumeReceive| may_receive && check_receive(receive).is_ok();
    version.receive.as_deref().is_none_or(is_right)
        && (version.origin.is_none() || version.kind == PoolVolumeKind::Snapshot)
}

/// Whether only a volume has a history, which is one that it may have.
fn has_its_history(version: &Version, generation: u64) -> bool {
    let is_right = |history: VolumeHistory| history.options().check().is_ok();
    let is_volume = version.kind == PoolVolumeKind::Volume;
    let has_none = version.history.is_none() && version.snapshot_floor == 0;
    version.snapshot_floor < generation.max(1)
        && version.history.is_none_or(is_right)
        && (is_volume || has_none)
}

pub(super) fn ensure(holds: bool, field: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(format!("the checkpoint's catalog is senseless: {field}")) }
}
