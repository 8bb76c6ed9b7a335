//! Users that receive streams: into new volumes and onto snapshots. Guests' writes to such a volume
//! stand for the data of the stream.

use store::{PoolChange, SnapshotOrigin, VolumeId, VolumeReceive};

use super::World;
use super::life::Ask;

impl World {
    /// Begins a stream, or takes one a step further.
    pub(crate) fn receive(&mut self, may_add: bool) {
        let under_way: Vec<(VolumeId, VolumeReceive)> = self
            .model
            .volumes
            .iter()
            .filter(|(_, volume)| !volume.is_hidden)
            .filter_map(|(&id, volume)| Some((id, volume.receive.clone()?)))
            .collect();
        let at = self.random.below(under_way.len() as u64 + 1) as usize;
        if let Some((volume, receive)) = under_way.get(at) {
            self.receive_more(*volume, receive.clone());
        } else if may_add && self.random.one_in(2) {
            let blocks = self.random.between(1, 200);
            let (volume_name, receive) = (self.free_name("v"), self.stream(blocks, None));
            self.change(PoolChange::ReceiveNew { volume_name, receive });
        } else if may_add {
            self.receive_onto();
        }
    }

    fn stream(&mut self, blocks: u64, onto: Option<VolumeId>) -> VolumeReceive {
        let origin =
            |id: u64| SnapshotOrigin { pool: [9; 16], id: id as u32, generation: 1, at_s: 2 };
        VolumeReceive {
            name: self.free_name("s"),
            origin: origin(self.random.below(1 << 20)),
            base: onto.map(|_| origin(self.random.below(1 << 20))),
            onto,
            blocks,
            next_block: 0,
        }
    }

    fn receive_more(&mut self, volume: VolumeId, mut receive: VolumeReceive) {
        if receive.next_block == receive.blocks {
            self.change(PoolChange::Received { volume });
            return;
        }
        receive.next_block = match self.random.one_in(2) {
            true => receive.blocks,
            false => self.random.between(receive.next_block + 1, receive.blocks),
        };
        self.change(PoolChange::Receive { volume, receive });
    }

    /// Onto a snapshot of the volume, which may have been changed since.
    fn receive_onto(&mut self) {
        let Some(snapshot) = self.known_snapshot() else { return };
        let (of, blocks) = (self.model.volumes[&snapshot].of, self.model.volumes[&snapshot].blocks);
        let Some(volume) = of.filter(|&of| self.model.descends(of, snapshot)) else { return };
        let is_busy = self.requests.values().any(|request| match &request.ask {
            Ask::Write { volume: its, .. } => *its == volume,
            _ => false,
        });
        let known = &self.model.volumes[&volume];
        if !is_busy && known.receive.is_none() && !known.is_hidden && !known.is_changing {
            let receive = self.stream(blocks, Some(snapshot));
            self.change(PoolChange::Receive { volume, receive });
        }
    }
}
