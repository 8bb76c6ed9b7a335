//! The catalog in a checkpoint. A checkpoint is proved by checks, but a pool's devices may come
//! from anywhere: each field is looked at before it is believed.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::changes::{check_name, check_receive, check_size};
use super::{GENERATION_MAX, PoolCatalog, PoolVolumeKind, SealFamily, VERSIONS_MAX, Version};
use crate::format::ZERO_BLOCKS_MAX;
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
}

/// A pool that never had an encrypted volume has the state of pools that cannot have any.
fn is_none_yet(next_family: &u32) -> bool {
    *next_family == 0
}

impl PoolCatalog {
    pub(in crate::map) fn state(&self) -> CatalogState {
        CatalogState {
            generation: self.generation,
            next_id: self.next_id,
            running: self.running,
            versions: self.versions.values().cloned().collect(),
            families: self.families.values().cloned().collect(),
            next_family: self.next_family,
        }
    }

    /// The catalog of a checkpoint whose nodes have the numbers below `nodes`.
    ///
    /// # Errors
    /// If a field has a value that it cannot have.
    pub(in crate::map) fn from_state(state: CatalogState, nodes: u64) -> Result<Self, String> {
        let mut catalog = Self::new();
        ensure((1..=GENERATION_MAX).contains(&state.generation), "the generation")?;
        ensure(state.versions.len() <= VERSIONS_MAX, "the count of volumes")?;
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
        catalog.check_family()?;
        if let Some(running) = state.running {
            let may = catalog.removing.contains(&running) && !catalog.waits(running);
            ensure(may, "the running removal")?;
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

fn check_version(version: &Version, generation: &u64, nodes: u64) -> Result<(), &'static str> {
    let root = TreeWord(version.root);
    let is_node = (1..nodes).contains(&root.number()) && (1..=*generation).contains(&root.birth());
    if !root.is_hole() && !is_node {
        return Err("root");
    }
    check_size(version.blocks).map_err(|_| "size")?;
    let is_right = match version.kind {
        PoolVolumeKind::Removing => version.name.is_empty(),
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
    let below = version.removed_below;
    let may_be = version.kind == PoolVolumeKind::Removing
        && below < VOLUME_BLOCKS_MAX
        && below.is_multiple_of(ZERO_BLOCKS_MAX);
    if below > 0 && !may_be {
        return Err("place of its removal");
    }
    Ok(())
}

/// Whether a version of a checkpoint has an origin only if it is a snapshot, and receives only if
/// it is a volume.
fn has_its_fields(version: &Version) -> bool {
    let may_receive = version.kind == PoolVolumeKind::Volume;
    let is_right = |receive: &VolumeReceive| may_receive && check_receive(receive).is_ok();
    version.receive.as_deref().is_none_or(is_right)
        && (version.origin.is_none() || version.kind == PoolVolumeKind::Snapshot)
}

fn ensure(holds: bool, field: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(format!("the checkpoint's catalog is senseless: {field}")) }
}
