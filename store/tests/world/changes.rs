//! Changes of the catalog, as the model has them: when they complete, and after a crash.

use std::collections::BTreeSet;

use store::{PageCompression, PoolChange, PoolVolume, PoolVolumeKind, VolumeId};

use super::Failure;
use super::model::{Model, ModelVolume};

/// The volumes and snapshots that a change is about.
pub(crate) fn subjects(change: &PoolChange) -> Vec<VolumeId> {
    match change {
        PoolChange::Create { .. }
        | PoolChange::CreateSealed { .. }
        | PoolChange::ReceiveNew { .. } => Vec::new(),
        PoolChange::Snapshot { volumes, .. } => volumes.clone(),
        PoolChange::Clone { snapshot, .. } => vec![*snapshot],
        PoolChange::Rollback { volume, snapshot } => vec![*volume, *snapshot],
        PoolChange::Resize { volume, .. }
        | PoolChange::Quota { volume, .. }
        | PoolChange::Rename { volume, .. }
        | PoolChange::Remove { volume }
        | PoolChange::Rewrap { volume, .. }
        | PoolChange::Rekey { volume, .. }
        | PoolChange::Resealed { volume, .. }
        | PoolChange::Shred { volume, .. }
        | PoolChange::Compression { volume, .. }
        | PoolChange::History { volume, .. }
        | PoolChange::Receive { volume, .. }
        | PoolChange::Received { volume }
        | PoolChange::Clear { volume } => vec![*volume],
    }
}

/// The name that a change gives.
pub(crate) fn new_name(change: &PoolChange) -> Option<&String> {
    match change {
        PoolChange::Create { name, .. }
        | PoolChange::CreateSealed { name, .. }
        | PoolChange::Snapshot { name, .. }
        | PoolChange::Clone { name, .. }
        | PoolChange::Rename { name, .. }
        | PoolChange::ReceiveNew { volume_name: name, .. } => Some(name),
        _ => None,
    }
}

impl Model {
    /// Whether guests begin nothing on the subjects while the change is under way, because it may
    /// be refused. Requests that are under way may go on: their order is that of admission.
    fn needs_quiet(&self, change: &PoolChange) -> bool {
        match change {
            PoolChange::Resize { .. } | PoolChange::Remove { .. } | PoolChange::Shred { .. } => {
                true
            }
            // The first one: a volume that was changed is not received into.
            PoolChange::Receive { receive, .. } => receive.next_block == 0,
            PoolChange::Rollback { volume, snapshot } => {
                self.volumes[volume].blocks != self.volumes[snapshot].blocks
            }
            _ => false,
        }
    }

    /// A change was admitted.
    pub(crate) fn begin_change(&mut self, stamp: u64, change: &PoolChange) {
        let is_quiet = self.needs_quiet(change);
        for id in subjects(change) {
            let volume = self.known(id);
            (volume.is_changing, volume.is_quiet) = (true, is_quiet);
        }
        match change {
            PoolChange::Snapshot { .. } | PoolChange::Received { .. } => self.watch(stamp),
            PoolChange::Clear { volume } => self.replace(stamp, *volume, 0, None),
            PoolChange::Rollback { volume, snapshot } => {
                self.replace(stamp, *volume, 0, Some(*snapshot));
            }
            PoolChange::Resize { volume, blocks } => self.replace(stamp, *volume, *blocks, None),
            _ => {}
        }
    }

    /// A change is there; `list` is what the pool lists.
    pub(crate) fn end_change(
        &mut self,
        stamp: u64,
        change: &PoolChange,
        list: &[PoolVolume],
    ) -> Result<(), Failure> {
        subjects(change).into_iter().for_each(|id| self.known(id).changed_by(change));
        match change {
            PoolChange::Create { name, blocks } | PoolChange::CreateSealed { name, blocks, .. } => {
                let id = self.find_new(list, name, None)?;
                self.volumes.insert(id, ModelVolume::new(name, *blocks));
            }
            PoolChange::Clone { snapshot, name } => {
                let id = self.find_new(list, name, None)?;
                self.clone_of(*snapshot, name, id);
            }
            PoolChange::Snapshot { volumes, name, .. } => {
                let mut made = Vec::new();
                for &of in volumes {
                    made.push((of, self.find_new(list, name, Some(of))?));
                }
                self.snapshot(stamp, name, &made);
                self.unwatch(stamp);
            }
            PoolChange::ReceiveNew { volume_name, receive } => {
                let id = self.find_new(list, volume_name, None)?;
                let volume = ModelVolume::new(volume_name, receive.blocks);
                self.volumes.insert(id, volume);
                self.known(id).receive = Some(receive.clone());
            }
            PoolChange::Receive { volume, receive } => {
                self.known(*volume).receive = Some(receive.clone());
            }
            PoolChange::Received { volume } => self.end_receive(stamp, *volume, list)?,
            PoolChange::Rename { volume, name } => self.known(*volume).name.clone_from(name),
            PoolChange::Quota { .. } | PoolChange::History { .. } => {}
            PoolChange::Remove { volume } | PoolChange::Shred { volume, .. } => {
                self.remove(*volume);
            }
            PoolChange::Rewrap { .. } | PoolChange::Rekey { .. } | PoolChange::Resealed { .. } => {}
            PoolChange::Compression { volume, compression } => self.compress(*volume, *compression),
            PoolChange::Resize { volume, blocks } => {
                self.complete(stamp, *volume, 0..u64::MAX);
                let volume = self.known(*volume);
                (volume.blocks, volume.whole) = (*blocks, None);
            }
            PoolChange::Clear { volume } => {
                self.complete(stamp, *volume, 0..u64::MAX);
                let parent = self.visible_ancestor(*volume);
                self.began_again(*volume, parent);
            }
            PoolChange::Rollback { volume, snapshot } => {
                self.complete(stamp, *volume, 0..u64::MAX);
                let blocks = self.volumes[snapshot].blocks;
                self.known(*volume).blocks = blocks;
                self.began_again(*volume, Some(*snapshot));
            }
        }
        Ok(())
    }

    fn began_again(&mut self, volume: VolumeId, parent: Option<VolumeId>) {
        let volume = self.known(volume);
        (volume.whole, volume.parent, volume.receive) = (None, parent, None);
        self.drop_hidden();
    }

    fn compress(&mut self, volume: VolumeId, compression: Option<PageCompression>) {
        self.known(volume).compression = compression;
    }

    /// The stream into a volume has ended: it is a snapshot.
    fn end_receive(
        &mut self,
        stamp: u64,
        volume: VolumeId,
        list: &[PoolVolume],
    ) -> Result<(), Failure> {
        let receive = self.known(volume).receive.take().expect("the world asked for it");
        let id = self.find_new(list, &receive.name, Some(volume))?;
        self.snapshot(stamp, &receive.name, &[(volume, id)]);
        self.known(id).origin = Some(receive.origin);
        self.unwatch(stamp);
        Ok(())
    }

    fn known(&mut self, id: VolumeId) -> &mut ModelVolume {
        self.volumes.get_mut(&id).expect("a subject is there")
    }

    /// The volume or snapshot of this name that the model does not have yet.
    fn find_new(
        &self,
        list: &[PoolVolume],
        name: &str,
        of: Option<VolumeId>,
    ) -> Result<VolumeId, Failure> {
        self.search_new(list, name, of).ok_or_else(|| {
            let text = format!("{name} (of {of:?}) is not in the list: {list:?}");
            Failure::new("a change is not listed", text)
        })
    }

    fn search_new(
        &self,
        list: &[PoolVolume],
        name: &str,
        of: Option<VolumeId>,
    ) -> Option<VolumeId> {
        let kind = match of {
            Some(_) => PoolVolumeKind::Snapshot,
            None => PoolVolumeKind::Volume,
        };
        let is_new = |entry: &&PoolVolume| {
            entry.name == name
                && entry.kind == kind
                && entry.of == of
                && !self.volumes.contains_key(&entry.id)
        };
        list.iter().find(is_new).map(|entry| entry.id)
    }

    /// After an opening: which of the changes that were under way happened, and whether all else
    /// is listed as it must be.
    pub(crate) fn reconcile(&mut self, list: &[PoolVolume]) -> Result<(), Failure> {
        for (stamp, change) in self.take_maybe() {
            if self.has_happened(&change, list) {
                let is_told = self.is_told(&change);
                self.end_change(stamp, &change, list)?;
                // A change that changes nothing may not have happened: it makes nothing durable.
                if is_told {
                    self.note_in(stamp);
                    self.durable(stamp);
                }
            } else if let PoolChange::Clear { volume } = change {
                // Only the blocks can tell.
                self.is_vague |= self.volumes[&volume].parent != self.visible_ancestor(volume);
                self.given_up(volume, list)?;
            } else if let PoolChange::Rollback { volume, snapshot } = change {
                let entry = find(volume, list)?;
                let (before, parent) = (self.visible_ancestor(volume), entry.parent);
                self.given_up(volume, list)?;
                let known = self.known(volume);
                known.blocks = entry.blocks;
                if before != parent {
                    known.parent = Some(snapshot);
                    self.drop_hidden();
                } else {
                    self.is_vague |= parent == Some(snapshot) && known.parent != parent;
                }
            } else {
                self.forget(stamp, &change);
            }
        }
        self.check_list(list)
    }

    /// Whether a list with what the change makes tells that the change has happened: a volume may
    /// have had all of it before.
    fn is_told(&self, change: &PoolChange) -> bool {
        let known = |volume: &VolumeId| &self.volumes[volume];
        match change {
            PoolChange::Quota { volume, reservation, limit } => {
                known(volume).quota != (*reservation, *limit)
            }
            PoolChange::Compression { volume, compression } => {
                known(volume).compression != *compression
            }
            PoolChange::Resize { volume, blocks } => known(volume).blocks != *blocks,
            PoolChange::History { volume, history } => known(volume).reach != *history,
            _ => true,
        }
    }

    /// A change that ends a stream may have happened.
    fn given_up(&mut self, volume: VolumeId, list: &[PoolVolume]) -> Result<(), Failure> {
        if find(volume, list)?.receive.is_none() {
            self.known(volume).receive = None;
        }
        Ok(())
    }

    /// A change was refused, and has no effect.
    pub(crate) fn refused(&mut self, change: &PoolChange) {
        for id in subjects(change) {
            let volume = self.known(id);
            (volume.is_changing, volume.is_quiet) = (false, false);
        }
    }

    /// Whether a volume has another content than a snapshot, for sure: each page differs in which
    /// request wrote it.
    pub(crate) fn differs(&self, volume: VolumeId, snapshot: VolumeId) -> bool {
        let (volume, snapshot) = (&self.volumes[&volume], &self.volumes[&snapshot]);
        let blocks: BTreeSet<u64> =
            volume.touched().into_iter().chain(snapshot.touched()).collect();
        let page = |of: &ModelVolume, block| of.newest(block).0.page();
        // Pages of zeroes have no names that a content tells.
        let has_names = !self.has_zeroes;
        volume.blocks != snapshot.blocks
            || has_names
                && blocks.into_iter().any(|block| page(volume, block) != page(snapshot, block))
    }

    /// Each version owns the pages that it must own, when the pool is at rest.
    pub(crate) fn check_space(&self, list: &[PoolVolume]) -> Result<(), Failure> {
        let listed = |volume: &ModelVolume| !volume.is_hidden && volume.at_ns.is_none();
        for (&id, _) in self.volumes.iter().filter(|(_, volume)| listed(volume)) {
            let (Some((owned, has)), entry) = (self.space_of(id), find(id, list)?) else {
                return Ok(());
            };
            let is_right = entry.owned_blocks == owned
                && entry.referred_blocks.is_none_or(|referred| referred == has);
            if !is_right {
                let text = format!("it must own {owned} and have {has} pages: {entry:?}");
                return Err(Failure::new("a version's pages are counted wrongly", text));
            }
        }
        Ok(())
    }

    fn has_happened(&self, change: &PoolChange, list: &[PoolVolume]) -> bool {
        let entry = |id: &VolumeId| list.iter().find(|entry| entry.id == *id);
        match change {
            PoolChange::Create { name, .. }
            | PoolChange::CreateSealed { name, .. }
            | PoolChange::Clone { name, .. } => self.search_new(list, name, None).is_some(),
            PoolChange::ReceiveNew { volume_name, .. } => {
                self.search_new(list, volume_name, None).is_some()
            }
            PoolChange::Receive { volume, receive } => {
                entry(volume).is_some_and(|entry| entry.receive.as_ref() == Some(receive))
            }
            PoolChange::Received { volume } => {
                let receive = self.volumes[volume].receive.as_ref();
                receive.is_some_and(|it| self.search_new(list, &it.name, Some(*volume)).is_some())
            }
            PoolChange::Snapshot { volumes, name, .. } => {
                volumes.iter().any(|&of| self.search_new(list, name, Some(of)).is_some())
            }
            PoolChange::Rename { volume, name } => {
                entry(volume).is_some_and(|entry| entry.name == *name)
            }
            PoolChange::Resize { volume, blocks } => {
                entry(volume).is_some_and(|entry| entry.blocks == *blocks)
            }
            PoolChange::Remove { volume } | PoolChange::Shred { volume, .. } => {
                entry(volume).is_none_or(|entry| entry.kind == PoolVolumeKind::Removing)
            }
            PoolChange::Quota { volume, reservation, limit } => entry(volume).is_some_and(|it| {
                (it.reservation_blocks, it.limit_blocks) == (*reservation, *limit)
            }),
            PoolChange::History { volume, history } => entry(volume)
                .is_some_and(|entry| entry.history.and_then(|found| found.options) == *history),
            PoolChange::Compression { volume, compression } => {
                entry(volume).is_some_and(|entry| entry.compression == *compression)
            }
            // Blocks tell of the first two, and no guest sees the others.
            PoolChange::Clear { .. }
            | PoolChange::Rollback { .. }
            | PoolChange::Rewrap { .. }
            | PoolChange::Rekey { .. }
            | PoolChange::Resealed { .. } => false,
        }
    }

    /// The list has all that the model has, and nothing else.
    pub(crate) fn check_list(&self, list: &[PoolVolume]) -> Result<(), Failure> {
        let visible = |entry: &&PoolVolume| entry.kind != PoolVolumeKind::Removing;
        let listed: BTreeSet<VolumeId> =
            list.iter().filter(visible).map(|entry| entry.id).collect();
        let is_listed = |volume: &ModelVolume| !volume.is_hidden && volume.at_ns.is_none();
        for (id, volume) in self.volumes.iter().filter(|(_, volume)| is_listed(volume)) {
            let entry = list.iter().filter(visible).find(|entry| entry.id == *id);
            let entry = entry.ok_or_else(|| missing(*id, list))?;
            let is_snapshot = entry.kind == PoolVolumeKind::Snapshot;
            let found = (&entry.name, entry.blocks, is_snapshot, entry.of, entry.compression);
            let wanted =
                (&volume.name, volume.blocks, volume.is_snapshot, volume.of, volume.compression);
            if found != wanted {
                let text = format!("{id:?} is {found:?} and must be {wanted:?}");
                return Err(Failure::new("a volume is listed wrongly", text));
            }
            let found = (entry.reservation_blocks, entry.limit_blocks);
            if found != volume.quota {
                let text = format!("{id:?} has {found:?} and must have {:?}", volume.quota);
                return Err(Failure::new("a quota is listed wrongly", text));
            }
            let found = entry.history.and_then(|history| history.options);
            if found != volume.reach {
                let text = format!("{id:?} has {found:?} and must have {:?}", volume.reach);
                return Err(Failure::new("a history is listed wrongly", text));
            }
            let found = (&entry.receive, &entry.origin);
            let wanted = (&volume.receive, &volume.origin);
            if found != wanted {
                let text = format!("{id:?} has {found:?} and must have {wanted:?}");
                return Err(Failure::new("a stream is listed wrongly", text));
            }
        }
        let is_visible = |id: &VolumeId| self.volumes.get(id).is_some_and(is_listed);
        match listed.iter().find(|id| !is_visible(id)) {
            None => Ok(()),
            Some(id) => {
                let text = format!("{id:?} must not be there: {list:?}");
                Err(Failure::new("a volume is back, or unknown", text))
            }
        }
    }
}

fn find(id: VolumeId, list: &[PoolVolume]) -> Result<&PoolVolume, Failure> {
    list.iter().find(|entry| entry.id == id).ok_or_else(|| missing(id, list))
}

fn missing(id: VolumeId, list: &[PoolVolume]) -> Failure {
    Failure::new("a volume or snapshot is lost", format!("{id:?} is not in {list:?}"))
}
