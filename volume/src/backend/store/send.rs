//! Snapshots as streams: finding them by their identity, and making parts.

use std::time::{Duration, Instant};

use store::block::BLOCK_BYTES;
use store::stream::{PartBuilder, StreamHeader, StreamId};
use store::{ChangedRun, PoolError, PoolVolume, PoolVolumeKind, SnapshotOrigin, VolumeId};

use super::lane::ControlLane;
use super::pool::StorePool;

/// Blocks of a request. The pool is locked while they are copied, so they are few; and they are
/// enough for a device to read them at its speed.
const REQUEST_BLOCKS: u64 = 64;

/// How long a part, or a forecast, looks for differences. The next part goes on from there.
const LOOK_TIME: Duration = Duration::from_secs(5);

/// A run of blocks in one request.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestPiece {
    pub(super) block: u64,
    pub(super) blocks: u32,
    /// Blocks of data of the part before it.
    pub(super) at: usize,
}

/// The requests for the data of these runs.
pub(super) fn pieces(runs: &[ChangedRun]) -> Vec<RequestPiece> {
    let (mut pieces, mut at) = (Vec::new(), 0);
    for run in runs.iter().filter(|run| !run.is_hole) {
        let (mut block, end) = (run.block, run.block + run.blocks);
        while block < end {
            let blocks = (end - block).min(REQUEST_BLOCKS);
            pieces.push(RequestPiece { block, blocks: blocks as u32, at });
            (block, at) = (block + blocks, at + blocks as usize);
        }
    }
    pieces
}

impl StorePool {
    /// The identity of a snapshot of this pool.
    pub fn identity(&self, snapshot: &PoolVolume) -> SnapshotOrigin {
        snapshot.identity(self.uuid())
    }

    /// The snapshot of this identity, if the pool has it.
    pub fn snapshot_of_identity(&self, origin: &SnapshotOrigin) -> Option<PoolVolume> {
        let is_it =
            |it: &PoolVolume| it.kind == PoolVolumeKind::Snapshot && self.identity(it) == *origin;
        self.volumes().into_iter().find(is_it)
    }

    /// The header of a stream of a snapshot, from a block on. Counts for a while the bytes
    /// that it will send; waits for the devices, so this is for control threads only.
    ///
    /// # Errors
    /// [`PoolError`]: they are no snapshots, or the map cannot be read.
    pub fn stream_header(
        &self,
        base: Option<&PoolVolume>,
        snapshot: &PoolVolume,
        start_block: u64,
    ) -> Result<StreamHeader, PoolError> {
        let origin = self.identity(snapshot);
        let base_origin = base.map(|base| self.identity(base));
        let id = StreamId { origin, base: base_origin, blocks: snapshot.blocks };
        if start_block > id.blocks {
            return Err(PoolError::BeyondEnd);
        }
        let (began, mut next, mut data_blocks) = (Instant::now(), Some(start_block), 0);
        while let Some(block) = next {
            if began.elapsed() >= LOOK_TIME {
                data_blocks = 0;
                break;
            }
            let found = self.changed(base.map(|base| base.id), snapshot.id, block)?;
            let data = found.runs.iter().filter(|run| !run.is_hole);
            data_blocks += data.map(|run| run.blocks).sum::<u64>();
            next = found.next_block;
        }
        let name = snapshot.name.clone();
        Ok(StreamHeader { id, name, start_block, expected_blocks: data_blocks })
    }

    /// The part of a stream that begins at a block. Waits for the devices, so this is for control
    /// threads only.
    ///
    /// # Errors
    /// [`PoolError`]: they are no snapshots, or a block is damaged.
    pub fn stream_part(
        &self,
        base: Option<VolumeId>,
        snapshot: VolumeId,
        id: &StreamId,
        start_block: u64,
    ) -> Result<Vec<u8>, PoolError> {
        if start_block >= id.blocks {
            return Err(PoolError::BeyondEnd);
        }
        let (began, mut part) = (Instant::now(), PartBuilder::new(start_block));
        let (mut next, mut end) = (Some(start_block), None);
        while let (Some(block), None) = (next, end) {
            if block > start_block && began.elapsed() >= LOOK_TIME {
                break;
            }
            let found = self.changed(base, snapshot, block)?;
            end = found.runs.iter().find_map(|run| part.push(run));
            next = found.next_block;
        }
        let end = end.or(next).unwrap_or(id.blocks);
        let mut bytes = vec![0; part.data_bytes()];
        self.read_pieces(snapshot, &pieces(part.runs()), &mut bytes)?;
        Ok(part.finish(id, end, &bytes))
    }

    /// Reads data of a snapshot into `bytes`, which has zeroes.
    fn read_pieces(
        &self,
        snapshot: VolumeId,
        pieces: &[RequestPiece],
        bytes: &mut [u8],
    ) -> Result<(), PoolError> {
        let piece = |number: u32| pieces[number as usize];
        ControlLane::enter(self.inside())?.run(
            pieces.len() as u32,
            |engine, tag, number| {
                let RequestPiece { block, blocks, .. } = piece(number);
                engine.read(tag, snapshot, block, blocks)
            },
            |number, first, blocks, content| {
                let Some(content) = content else { return };
                let from = (piece(number).at + first as usize) * BLOCK_BYTES;
                let length = blocks as usize * BLOCK_BYTES;
                bytes[from..from + length].copy_from_slice(&content[..length]);
            },
        )
    }
}
