//! Changes of the catalog: each takes constant time, at any size of a volume.

use std::collections::BTreeSet;

use super::{GENERATION_MAX, PoolCatalog, PoolVolumeKind, VERSIONS_MAX, Version};
use crate::api::{PoolChange, PoolError, VolumeId};
use crate::block::BLOCK_BYTES;
use crate::map::moments::{MOMENT_FIRST, is_moment};
use crate::map::space::{BLOCKS_MAX, VersionSpace};
use pool_stream::{NAME_CHARS_MAX, VOLUME_BLOCKS_MAX, VolumeReceive, is_name};

impl PoolCatalog {
    /// The id that a change will make or is about.
    ///
    /// # Errors
    /// If the change is not possible.
    pub(in crate::map) fn check(&self, change: &PoolChange) -> Result<VolumeId, PoolError> {
        // A row has one block for the change.
        let bytes = serde_json::to_vec(change).map_or(usize::MAX, |json| json.len());
        if bytes > BLOCK_BYTES {
            let text = "the change is longer than a block: name fewer volumes at once";
            return Err(PoolError::Invalid(text.to_owned()));
        }
        match change {
            PoolChange::Create { name, blocks } => {
                check_size(*blocks)?;
                self.check_new_volume(name)
            }
            PoolChange::Resize { volume, blocks } => {
                let smaller = *blocks < self.head(*volume)?.blocks;
                check_size(*blocks)?;
                self.check_room(usize::from(smaller), smaller)?;
                Ok(*volume)
            }
            PoolChange::Rename { volume, name } => {
                self.head(*volume)?;
                check_name(name)?;
                self.check_volume_name(name, Some(*volume))?;
                Ok(*volume)
            }
            PoolChange::Snapshot { volumes, name, .. } => self.check_snapshot(volumes, name),
            PoolChange::Clone { snapshot, name } => {
                self.snapshot(*snapshot)?;
                self.check_new_volume(name)
            }
            PoolChange::Rollback { volume, snapshot } => {
                self.head(*volume)?;
                self.snapshot(*snapshot)?;
                if !self.is_ancestor(snapshot.0, volume.0) {
                    let why = "a snapshot that the volume does not come from: clone it instead";
                    return Err(PoolError::WrongKind(*snapshot, why));
                }
                self.check_room(1, false)?;
                Ok(*volume)
            }
            PoolChange::Quota { volume, reservation, limit } => {
                self.head(*volume)?;
                check_quota(*reservation, *limit)?;
                Ok(*volume)
            }
            PoolChange::Remove { volume } => {
                let named = self.visible(volume.0).filter(|version| !is_moment(version.id));
                named.ok_or(PoolError::NoVolume(*volume))?;
                Ok(*volume)
            }
            PoolChange::CreateSealed { name, blocks, family, key } => {
                check_size(*blocks)?;
                self.check_new_family(family, key)?;
                self.check_new_volume(name)
            }
            PoolChange::Rewrap { volume, keys } => self.check_rewrap(*volume, keys),
            PoolChange::Rekey { volume, key } => self.check_rekey(*volume, key),
            PoolChange::Resealed { volume, version } => self.check_resealed(*volume, *version),
            PoolChange::Shred { volume, all } => self.check_shred(*volume, *all),
            PoolChange::Clear { volume } => {
                self.head(*volume)?;
                self.check_room(1, false)?;
                Ok(*volume)
            }
            PoolChange::Compression { volume, .. } => {
                self.head(*volume)?;
                Ok(*volume)
            }
            PoolChange::ReceiveNew { volume_name, receive } => {
                check_receive(receive)?;
                self.check_new_volume(volume_name)
            }
            PoolChange::History { volume, history } => {
                self.check_history(*volume, history.as_ref())
            }
            PoolChange::Receive { volume, receive } => self.check_receive(*volume, receive),
            PoolChange::Received { volume } => self.check_received(*volume),
        }
    }

    /// Makes a change that [`Self::check`] found possible.
    pub(in crate::map) fn change(&mut self, change: &PoolChange) {
        match change {
            PoolChange::Create { name, blocks } => {
                let id = self.take_id();
                self.insert(Version { name: name.clone(), blocks: *blocks, ..volume(id) });
            }
            PoolChange::Resize { volume, blocks } => {
                if *blocks < self.versions[&volume.0].blocks {
                    // The tail is what the old tree has and the new one has not.
                    let old = self.split(volume.0, PoolVolumeKind::Removing);
                    self.set_parent(volume.0, Some(old));
                    self.get_mut(volume.0).snapshot_floor = self.generation;
                    self.generation += 1;
                }
                self.get_mut(volume.0).blocks = *blocks;
            }
            PoolChange::Rename { volume, name } => self.get_mut(volume.0).name.clone_from(name),
            PoolChange::Snapshot { volumes, name, at_s } => {
                for volume in volumes {
                    let id = self.split(volume.0, PoolVolumeKind::Snapshot);
                    self.set_parent(volume.0, Some(id));
                    let snapshot = self.get_mut(id);
                    (snapshot.name, snapshot.at_s) = (name.clone(), *at_s);
                    self.get_mut(volume.0).snapshot_floor = self.generation;
                }
                self.generation += 1;
            }
            PoolChange::Clone { snapshot, name } => {
                let id = self.take_id();
                let Version { root, blocks, compression, family, space, generation, of, .. } =
                    self.versions[&snapshot.0];
                let of = of.and_then(|of| self.compression(of));
                let compression = if is_moment(snapshot.0) { of } else { compression };
                let parent = Some(snapshot.0);
                let name = name.clone();
                let space = VersionSpace { refers: space.refers, ..VersionSpace::NONE };
                let new = Version { name, root, blocks, parent, ..volume(id) };
                let snapshot_floor = generation;
                self.insert(Version { compression, family, space, snapshot_floor, ..new });
            }
            PoolChange::Rollback { volume, snapshot } => {
                self.leave_all(volume.0);
                self.split(volume.0, PoolVolumeKind::Removing);
                let Version { root, blocks, space, generation, .. } = self.versions[&snapshot.0];
                self.set_parent(volume.0, Some(snapshot.0));
                let volume = self.get_mut(volume.0);
                (volume.root, volume.blocks, volume.receive) = (root, blocks, None);
                (volume.space.refers, volume.snapshot_floor) = (space.refers, generation);
            }
            PoolChange::Quota { volume, reservation, limit } => {
                self.set_quota(volume.0, *reservation, *limit);
            }
            PoolChange::Remove { volume } => self.begin_removal(volume.0),
            PoolChange::CreateSealed { name, blocks, family, key } => {
                let family = Some(self.new_family(family, key));
                let id = self.take_id();
                let (name, blocks) = (name.clone(), *blocks);
                self.insert(Version { name, blocks, family, ..volume(id) });
            }
            PoolChange::Rewrap { volume, keys } => self.rewrap(volume.0, keys),
            PoolChange::Rekey { volume, key } => self.rekey(volume.0, key),
            PoolChange::Resealed { volume, version } => self.resealed(volume.0, *version),
            PoolChange::Shred { volume, .. } => self.shred(volume.0),
            PoolChange::Clear { volume } => {
                self.leave_all(volume.0);
                self.split(volume.0, PoolVolumeKind::Removing);
                // A removal that runs has one child, and its old tree is that child from now on.
                let parent = self.visible_ancestor(self.versions[&volume.0].parent);
                self.set_parent(volume.0, parent);
                let volume = self.get_mut(volume.0);
                (volume.root, volume.receive) = (0, None);
                volume.space.refers = Some(0);
            }
            PoolChange::Compression { volume, compression } => {
                let version = self.get_mut(volume.0);
                let before = std::mem::replace(&mut version.compression, *compression);
                self.compressed -= usize::from(before.is_some());
                self.compressed += usize::from(compression.is_some());
                self.compression_changes += 1;
            }
            PoolChange::History { volume, history } => self.set_history(volume.0, *history),
            PoolChange::ReceiveNew { volume_name, receive } => {
                let id = self.take_id();
                let (name, blocks) = (volume_name.clone(), receive.blocks);
                let receive = Some(Box::new(receive.clone()));
                self.insert(Version { name, blocks, receive, ..volume(id) });
            }
            PoolChange::Receive { volume, receive } => {
                self.get_mut(volume.0).receive = Some(Box::new(receive.clone()));
            }
            PoolChange::Received { volume } => self.received(volume.0),
        }
    }

    /// The volume or snapshot is of the kind that is removed in the background.
    pub(super) fn begin_removal(&mut self, id: u32) {
        if self.versions[&id].kind == PoolVolumeKind::Volume {
            self.set_quota(id, 0, None);
        }
        self.leave_history(id);
        let generation = self.generation;
        let version = self.get_mut(id);
        version.name.clear();
        (version.origin, version.receive, version.history) = (None, None, None);
        version.snapshot_floor = 0;
        if version.kind == PoolVolumeKind::Volume {
            version.generation = generation;
        }
        version.kind = PoolVolumeKind::Removing;
        self.removing.insert(id);
    }

    /// A new version with the tree that a volume has now, and with the volume's parent.
    pub(super) fn split(&mut self, volume: u32, kind: PoolVolumeKind) -> u32 {
        let id = self.take_id();
        self.split_into(id, volume, kind);
        id
    }

    /// The same with this number.
    pub(super) fn split_into(&mut self, id: u32, volume: u32, kind: PoolVolumeKind) {
        let of = &self.versions[&volume];
        let version = Version {
            id,
            kind,
            name: String::new(),
            of: Some(volume),
            generation: self.generation,
            receive: None,
            history: None,
            snapshot_floor: 0,
            compression: of.compression.filter(|_| !is_moment(id)),
            space: VersionSpace { refers: of.space.refers, ..VersionSpace::NONE },
            ..of.clone()
        };
        self.insert(version);
        // The volume's pages are the new version's, since it is older now.
        self.hand_on(volume, id);
    }

    fn take_id(&mut self) -> u32 {
        let id = self.next_id;
        self.next_id += 1;
        id
    }

    pub(super) fn get_mut(&mut self, id: u32) -> &mut Version {
        self.versions.get_mut(&id).expect("the change was checked")
    }

    pub(super) fn head(&self, id: VolumeId) -> Result<&Version, PoolError> {
        let version = self.visible(id.0).ok_or(PoolError::NoVolume(id))?;
        if version.kind != PoolVolumeKind::Volume {
            return Err(PoolError::WrongKind(id, "a snapshot: name a volume"));
        }
        Ok(version)
    }

    pub(super) fn snapshot(&self, id: VolumeId) -> Result<&Version, PoolError> {
        let version = self.visible(id.0).ok_or(PoolError::NoVolume(id))?;
        if version.kind != PoolVolumeKind::Snapshot {
            return Err(PoolError::WrongKind(id, "a volume: name a snapshot"));
        }
        // The moments of a volume that is being removed go as well.
        match version.of {
            Some(of) if is_moment(id.0) && self.volume(of).is_none() => {
                Err(PoolError::NoVolume(id))
            }
            _ => Ok(version),
        }
    }

    pub(super) fn is_ancestor(&self, ancestor: u32, of: u32) -> bool {
        let mut at = self.versions[&of].parent;
        while let Some(id) = at
            && id != ancestor
        {
            at = self.versions[&id].parent;
        }
        at.is_some()
    }

    fn check_new_volume(&self, name: &str) -> Result<VolumeId, PoolError> {
        check_name(name)?;
        self.check_volume_name(name, None)?;
        self.check_room(1, false)?;
        Ok(VolumeId(self.next_id))
    }

    fn check_volume_name(&self, name: &str, of: Option<VolumeId>) -> Result<(), PoolError> {
        let has =
            |version: &&Version| version.kind == PoolVolumeKind::Volume && version.name == name;
        match self.named().find(has) {
            Some(other) if Some(VolumeId(other.id)) != of => {
                Err(PoolError::NameTaken(name.to_owned()))
            }
            _ => Ok(()),
        }
    }

    fn check_snapshot(&self, volumes: &[VolumeId], name: &str) -> Result<VolumeId, PoolError> {
        check_name(name)?;
        let set: BTreeSet<u32> = volumes.iter().map(|volume| volume.0).collect();
        if set.is_empty() || set.len() < volumes.len() {
            let text = "a snapshot is of one or more volumes, and of each of them once";
            return Err(PoolError::Invalid(text.to_owned()));
        }
        for &volume in volumes {
            if self.head(volume)?.receive.is_some() {
                return Err(PoolError::BeingReceived(volume));
            }
        }
        self.check_snapshot_name(&set, name)?;
        self.check_room(volumes.len(), true)?;
        Ok(VolumeId(self.next_id))
    }

    /// Whether no snapshot of these volumes has the name.
    pub(super) fn check_snapshot_name(
        &self,
        volumes: &BTreeSet<u32>,
        name: &str,
    ) -> Result<(), PoolError> {
        let is_taken = self.named().any(|version| {
            version.kind == PoolVolumeKind::Snapshot
                && version.name == name
                && version.of.is_some_and(|of| volumes.contains(&of))
        });
        if is_taken { Err(PoolError::NameTaken(name.to_owned())) } else { Ok(()) }
    }

    /// Whether there is room for more versions, and for a generation.
    pub(super) fn check_room(
        &self,
        versions: usize,
        has_generation: bool,
    ) -> Result<(), PoolError> {
        if self.count() + versions > VERSIONS_MAX {
            return Err(PoolError::TooMany("16,384 volumes and snapshots"));
        }
        if has_generation && self.generation >= GENERATION_MAX {
            return Err(PoolError::TooMany("had 268,435,455 snapshots and moments in its life"));
        }
        if MOMENT_FIRST - self.next_id < VERSIONS_MAX as u32 {
            return Err(PoolError::TooMany("had two thousand million volumes in its life"));
        }
        Ok(())
    }
}

/// A volume without blocks.
pub(super) fn volume(id: u32) -> Version {
    Version {
        id,
        kind: PoolVolumeKind::Volume,
        name: String::new(),
        of: None,
        parent: None,
        generation: 0,
        blocks: 0,
        root: 0,
        at_s: 0,
        removed_below: 0,
        space: VersionSpace::NONE,
        family: None,
        compression: None,
        origin: None,
        receive: None,
        history: None,
        snapshot_floor: 0,
        at_ns: 0,
        held: 0,
    }
}

fn check_quota(reservation: u64, limit: Option<u64>) -> Result<(), PoolError> {
    if let Some(limit) = limit.filter(|limit| *limit < reservation) {
        let [limit, reservation] = [limit, reservation].map(|blocks| blocks.saturating_mul(4));
        let text = format!(
            "a limit of {limit} KiB is less than the reservation of {reservation} KiB: make it \
             larger"
        );
        return Err(PoolError::Invalid(text));
    }
    if reservation.max(limit.unwrap_or(0)) > BLOCKS_MAX {
        let text = "no pool has so many blocks: make the reservation or the limit smaller";
        return Err(PoolError::Invalid(text.to_owned()));
    }
    Ok(())
}

pub(super) fn check_size(blocks: u64) -> Result<(), PoolError> {
    if (1..=VOLUME_BLOCKS_MAX).contains(&blocks) {
        return Ok(());
    }
    let text = format!("a volume has 1 to {VOLUME_BLOCKS_MAX} blocks of 4 KiB, not {blocks}");
    Err(PoolError::Invalid(text))
}

pub(super) fn check_name(name: &str) -> Result<(), PoolError> {
    if is_name(name) {
        return Ok(());
    }
    let text = format!(
        "{name:?} is no name: a name has 1 to {NAME_CHARS_MAX} letters, digits, '-', '_' and '.', \
         and begins with a letter or digit"
    );
    Err(PoolError::Invalid(text))
}

/// Whether each field has a value that it can have.
pub(super) fn check_receive(receive: &VolumeReceive) -> Result<(), PoolError> {
    check_size(receive.blocks)?;
    check_name(&receive.name)?;
    if receive.next_block > receive.blocks {
        return Err(PoolError::BeyondEnd);
    }
    Ok(())
}
