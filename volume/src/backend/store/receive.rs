//! Streams into volumes of a pool.
//!
//! ```text
//! begin ─▶ the catalog notes the stream ─▶ parts ─▶ each is written, then noted as received
//!                                            ▲ │                                     │
//!                                            └─┴── again, after a crash too          ▼
//!                                                       end ─▶ the volume has the snapshot
//! ```
//!
//! Nothing of this is in memory: each request finds in the catalog how far the stream is, so it
//! goes on after a crash, in a successor, or a week later. A part is noted in the log behind its
//! data, and so it is never noted without them.

use store::block::{BLOCK_BYTES, Block};
use store::stream::{StreamError, StreamHeader, StreamId, StreamPart, StreamToken};
use store::{
    ChangedRun, PoolChange, PoolError, PoolVolume, PoolVolumeKind, RANGE_BLOCKS_MAX, VolumeId,
    VolumeReceive,
};

use super::lane::ControlLane;
use super::own_names::check_new_name;
use super::pool::StorePool;
use super::send::{RequestPiece, pieces};

/// How far a stream is received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedState {
    /// Where it goes on.
    pub token: StreamToken,
    /// The size of the snapshot.
    pub blocks: u64,
    /// The name of the snapshot.
    pub snapshot: String,
    /// It is complete, and the volume has the snapshot.
    pub is_complete: bool,
}

/// Why a stream is not received.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// The stream is of no use.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// The pool refuses.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The volume does not have the base.
    #[error(
        "volume {0:?} does not have the snapshot on which the stream builds: receive that \
         snapshot first, or send the whole snapshot into a new volume"
    )]
    NoBase(String),
    /// A whole snapshot, for a volume that is there.
    #[error(
        "there is a volume {0:?} already, and the stream is a whole snapshot: receive it into a \
         new volume, or send the difference from a snapshot that this volume has"
    )]
    Exists(String),
    /// The stream begins too late.
    #[error(
        "the stream begins at block {start}, and all from block {next} on is missing: send it \
         with `vrio volume send --resume {token}`"
    )]
    StartsLate {
        /// Its first block.
        start: u64,
        /// The first block that is missing.
        next: u64,
        /// The token of the stream that is wanted.
        token: Box<StreamToken>,
    },
    /// Another stream is being received.
    #[error(
        "another stream is being received into volume {name:?}: go on with `vrio volume send \
         --resume {token}`, or end it with `vrio volume receive --give-up`"
    )]
    OtherStream {
        /// The volume.
        name: String,
        /// The token of that stream.
        token: Box<StreamToken>,
    },
    /// No stream is being received.
    #[error("no stream is being received into volume {0:?}: begin one with `vrio volume receive`")]
    NotReceiving(String),
    /// The volume is there, and no stream is being received any more.
    #[error(
        "volume {0:?} receives no stream: its last one has ended, or was given up; `vrio volume \
         snapshots {0}` lists what it has, and `vrio volume receive` begins another one"
    )]
    Ended(String),
    /// Another request is at work.
    #[error("another request receives into volume {0:?} at this moment: wait for its end")]
    InUse(String),
}

/// Requests that are at work on a volume, by its name: one at a time.
struct ReceiveTurn<'a> {
    pool: &'a StorePool,
    name: &'a str,
}

impl Drop for ReceiveTurn<'_> {
    fn drop(&mut self) {
        self.pool.inside().receiving.lock().remove(self.name);
    }
}

impl StorePool {
    fn receive_turn<'a>(&'a self, name: &'a str) -> Result<ReceiveTurn<'a>, ReceiveError> {
        match self.inside().receiving.lock().insert(name.to_owned()) {
            true => Ok(ReceiveTurn { pool: self, name }),
            false => Err(ReceiveError::InUse(name.to_owned())),
        }
    }

    /// The volume of this name.
    pub fn volume_named(&self, name: &str) -> Option<PoolVolume> {
        let is_it = |it: &PoolVolume| it.kind == PoolVolumeKind::Volume && it.name == name;
        self.volumes().into_iter().find(is_it)
    }

    /// Begins to receive a stream into a volume, which must not be in use, or goes on with it. A
    /// whole snapshot makes the volume. This is for control threads only, as all below.
    ///
    /// # Errors
    /// [`ReceiveError`]: nothing was changed.
    pub fn begin_receive(
        &self,
        name: &str,
        header: &StreamHeader,
    ) -> Result<ReceivedState, ReceiveError> {
        let _turn = self.receive_turn(name)?;
        let volume = self.volume_named(name);
        if let Some(volume) = &volume {
            if let Some(receive) = &volume.receive {
                let state = state_of_this(receive, name, header)?;
                check_start(header, state.token.next_block)?;
                self.set_size(volume, receive.blocks)?;
                return Ok(state);
            }
            if let Some(state) = self.received_state(volume, header) {
                return Ok(state);
            }
        }
        check_start(header, 0)?;
        let StreamId { origin, base, blocks } = header.id;
        let mut receive = VolumeReceive {
            name: header.name.clone(),
            origin,
            base,
            onto: None,
            blocks,
            next_block: 0,
        };
        match (volume, base) {
            (None, None) => {
                check_new_name(name).map_err(PoolError::Invalid)?;
                let volume_name = name.to_owned();
                let receive = receive.clone();
                self.change(PoolChange::ReceiveNew { volume_name, receive })?;
            }
            (Some(_), None) => return Err(ReceiveError::Exists(name.to_owned())),
            (None, Some(_)) => return Err(ReceiveError::NoBase(name.to_owned())),
            (Some(volume), Some(base)) => {
                let is_base = |it: &PoolVolume| {
                    it.kind == PoolVolumeKind::Snapshot
                        && it.of == Some(volume.id)
                        && self.identity(it) == base
                };
                let found = self.volumes().into_iter().find(is_base);
                let found = found.ok_or_else(|| ReceiveError::NoBase(name.to_owned()))?;
                receive.onto = Some(found.id);
                let change = PoolChange::Receive { volume: volume.id, receive: receive.clone() };
                self.change(change)?;
                self.set_size(&volume, blocks)?;
            }
        }
        Ok(state_of(&receive))
    }

    /// The volume gets the size of the stream's snapshot. Doing it again has no effect.
    fn set_size(&self, volume: &PoolVolume, blocks: u64) -> Result<(), PoolError> {
        if volume.blocks != blocks {
            self.change(PoolChange::Resize { volume: volume.id, blocks })?;
        }
        Ok(())
    }

    /// If the volume has the snapshot already: that this is so.
    fn received_state(&self, volume: &PoolVolume, header: &StreamHeader) -> Option<ReceivedState> {
        let StreamId { origin, blocks, .. } = header.id;
        let is_it = |it: &PoolVolume| {
            it.kind == PoolVolumeKind::Snapshot
                && it.of == Some(volume.id)
                && self.identity(it) == origin
        };
        let found = self.volumes().into_iter().find(is_it)?;
        let token = header.id.token(blocks);
        Some(ReceivedState { token, blocks, snapshot: found.name, is_complete: true })
    }

    /// How far the stream is that is being received into a volume.
    pub fn receiving(&self, volume: &PoolVolume) -> Option<ReceivedState> {
        volume.receive.as_ref().map(state_of)
    }

    /// A volume into which a stream is being received.
    fn target_of(&self, name: &str) -> Result<(VolumeId, VolumeReceive), ReceiveError> {
        let volume = self.volume_named(name);
        let volume = volume.ok_or_else(|| ReceiveError::NotReceiving(name.to_owned()))?;
        let ended = || ReceiveError::Ended(name.to_owned());
        Ok((volume.id, volume.receive.ok_or_else(ended)?))
    }

    /// Receives a part: it survives a power cut when this returns. A part that was received before
    /// has no effect.
    ///
    /// # Errors
    /// [`ReceiveError`]: the part is not received, and can be sent again.
    pub fn receive_part(&self, name: &str, bytes: &[u8]) -> Result<ReceivedState, ReceiveError> {
        let _turn = self.receive_turn(name)?;
        let (volume, mut receive) = self.target_of(name)?;
        let part = StreamPart::read(&id_of(&receive), bytes)?;
        if part.end <= receive.next_block {
            return Ok(state_of(&receive));
        }
        if part.start > receive.next_block {
            let (wanted, found) = (receive.next_block, part.start);
            return Err(StreamError::NotNext { wanted, found }.into());
        }
        self.write_part(volume, &part)?;
        receive.next_block = part.end;
        let state = state_of(&receive);
        self.change(PoolChange::Receive { volume, receive })?;
        Ok(state)
    }

    fn write_part(&self, volume: VolumeId, part: &StreamPart<'_>) -> Result<(), PoolError> {
        let (data, zeroes) = (pieces(&part.runs), zeroes(&part.runs));
        let mut lane = ControlLane::enter(self.inside())?;
        let begin_data = |engine: &mut store::PoolEngine, tag, number: u32| {
            let RequestPiece { block, blocks, at } = data[number as usize];
            let content = &part.data[at * BLOCK_BYTES..];
            let mut fill = |index: u32, block: &mut Block| {
                let from = index as usize * BLOCK_BYTES;
                block.0.copy_from_slice(&content[from..from + BLOCK_BYTES]);
            };
            engine.write(tag, volume, block, blocks, &mut fill)
        };
        lane.run(data.len() as u32, begin_data, |_, _, _, _| {})?;
        let begin_zeroes = |engine: &mut store::PoolEngine, tag, number: u32| {
            let (block, blocks) = zeroes[number as usize];
            engine.zero(tag, volume, block, blocks)
        };
        lane.run(zeroes.len() as u32, begin_zeroes, |_, _, _, _| {})
    }

    /// The stream has ended: if all of it is there, the volume has the snapshot.
    ///
    /// # Errors
    /// [`ReceiveError`]: the stream is not complete, or it is another stream.
    pub fn end_receive(
        &self,
        name: &str,
        header: &StreamHeader,
    ) -> Result<ReceivedState, ReceiveError> {
        let _turn = self.receive_turn(name)?;
        let volume = self.volume_named(name);
        let volume = volume.ok_or_else(|| ReceiveError::NotReceiving(name.to_owned()))?;
        let Some(receive) = &volume.receive else {
            // The answer to the first of two requests may have been lost.
            let ended = || ReceiveError::Ended(name.to_owned());
            return self.received_state(&volume, header).ok_or_else(ended);
        };
        let state = state_of_this(receive, name, header)?;
        self.change(PoolChange::Received { volume: volume.id })?;
        Ok(ReceivedState { is_complete: true, ..state })
    }

    /// Gives a stream up: a new volume goes, and an old volume is again as its base. Gives if
    /// the volume is still there.
    ///
    /// # Errors
    /// [`ReceiveError`]: there is none, or the base was removed meanwhile.
    pub fn give_up_receive(&self, name: &str) -> Result<bool, ReceiveError> {
        let _turn = self.receive_turn(name)?;
        let (volume, receive) = self.target_of(name)?;
        let change = match receive.onto {
            None => PoolChange::Remove { volume },
            Some(snapshot) => PoolChange::Rollback { volume, snapshot },
        };
        self.change(change)?;
        Ok(receive.onto.is_some())
    }
}

fn id_of(receive: &VolumeReceive) -> StreamId {
    let VolumeReceive { origin, base, blocks, .. } = *receive;
    StreamId { origin, base, blocks }
}

fn state_of(receive: &VolumeReceive) -> ReceivedState {
    let (token, blocks) = (id_of(receive).token(receive.next_block), receive.blocks);
    ReceivedState { token, blocks, snapshot: receive.name.clone(), is_complete: false }
}

/// How far the stream is, if it is the stream of this header.
fn state_of_this(
    receive: &VolumeReceive,
    name: &str,
    header: &StreamHeader,
) -> Result<ReceivedState, ReceiveError> {
    let state = state_of(receive);
    if id_of(receive) == header.id {
        return Ok(state);
    }
    let (name, token) = (name.to_owned(), Box::new(state.token));
    Err(ReceiveError::OtherStream { name, token })
}

fn check_start(header: &StreamHeader, next: u64) -> Result<(), ReceiveError> {
    if header.start_block <= next {
        return Ok(());
    }
    let token = Box::new(header.id.token(next));
    Err(ReceiveError::StartsLate { start: header.start_block, next, token })
}

/// The requests for the zeroes of these runs.
fn zeroes(runs: &[ChangedRun]) -> Vec<(u64, u32)> {
    // Whole groups of 64 blocks, which take one record each.
    let length = u64::from(RANGE_BLOCKS_MAX - 1);
    let mut requests = Vec::new();
    for run in runs.iter().filter(|run| run.is_hole) {
        let (mut block, end) = (run.block, run.block + run.blocks);
        while block < end {
            let next = ((block / length + 1) * length).min(end);
            requests.push((block, (next - block) as u32));
            block = next;
        }
    }
    requests
}
