//! Changes of a volume into which a stream is received.

use std::collections::BTreeSet;

use super::changes::check_receive;
use super::{PoolCatalog, PoolVolumeKind};
use crate::api::{PoolError, VolumeId};
use pool_stream::VolumeReceive;

impl PoolCatalog {
    /// Whether a stream can begin here, or go on.
    pub(super) fn check_receive(
        &self,
        volume: VolumeId,
        receive: &VolumeReceive,
    ) -> Result<VolumeId, PoolError> {
        check_receive(receive)?;
        let version = self.head(volume)?;
        if let Some(before) = &version.receive {
            let goes_on = before.is_of(receive) && before.next_block <= receive.next_block;
            return if goes_on { Ok(volume) } else { Err(PoolError::NotReceived(volume)) };
        }
        let onto = receive.onto.ok_or(PoolError::NotReceived(volume))?;
        let base = self.snapshot(onto)?;
        // A tree of a snapshot never changes, so the same root is the same content.
        let is_same = (base.root, base.blocks) == (version.root, version.blocks);
        if !is_same || !self.is_ancestor(onto.0, volume.0) {
            return Err(PoolError::ChangedSinceBase(volume));
        }
        self.check_snapshot_name(&BTreeSet::from([volume.0]), &receive.name)?;
        self.check_room(1, true)?;
        Ok(volume)
    }

    /// Whether all of a stream is there. Gives the id that its snapshot will have.
    pub(super) fn check_received(&self, volume: VolumeId) -> Result<VolumeId, PoolError> {
        let version = self.head(volume)?;
        let receive = version.receive.as_ref().ok_or(PoolError::NotReceived(volume))?;
        let VolumeReceive { next_block, blocks, .. } = **receive;
        if next_block < blocks || version.blocks != blocks {
            return Err(PoolError::Incomplete { next_block, blocks });
        }
        self.check_snapshot_name(&BTreeSet::from([volume.0]), &receive.name)?;
        self.check_room(1, true)?;
        Ok(VolumeId(self.next_id))
    }

    /// The volume has the snapshot that was received.
    pub(super) fn received(&mut self, volume: u32) {
        let receive = self.get_mut(volume).receive.take().expect("the change was checked");
        let id = self.split(volume, PoolVolumeKind::Snapshot);
        self.set_parent(volume, Some(id));
        let snapshot = self.get_mut(id);
        (snapshot.name, snapshot.at_s) = (receive.name, receive.origin.at_s);
        snapshot.origin = Some(receive.origin);
        self.get_mut(volume).snapshot_floor = self.generation;
        self.generation += 1;
    }
}
