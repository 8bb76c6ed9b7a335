//! Snapshots as streams.
//!
//! No stream has state in a node's memory: a part is asked for by a token, which says all, and a
//! stream that is received has its place in the pool's catalog. So a restart, a hand-over or a kill
//! costs a caller one request, which it makes again.

use std::sync::Arc;

use store::block::BLOCK_BYTES;
use store::stream::{StreamError, StreamHeader, StreamId, StreamToken};
use store::{PoolError, PoolVolume};
use volume::backend::store::{ReceiveError, ReceivedState, StorePool};

use super::snapshots::{done, refused};
use crate::wiring::inside::Inside;
use api::{API_VERSION, Done, ReceiveProgress, ReceiveStep, Refused, RefusedKind, WantedStream};

/// A snapshot to send: its pool, itself, and the base in the same pool.
type StreamSource = (Arc<StorePool>, PoolVolume, Option<PoolVolume>);

impl Inside {
    /// The header of a stream.
    pub(crate) fn stream_header(&self, wanted: &WantedStream) -> Result<Vec<u8>, Refused> {
        let ((pool, to, from), start_block) = match wanted {
            WantedStream::Named { to, from } => {
                let (pool, to) = self.snapshot(to)?;
                let beside = |from: &String| self.snapshot_beside(&pool, from);
                let from = from.as_ref().map(beside).transpose()?;
                ((pool, to, from), 0)
            }
            WantedStream::Rest(token) => {
                let token = token_of(token)?;
                (self.source(&token)?, token.next_block)
            }
        };
        let header = pool.stream_header(from.as_ref(), &to, start_block);
        let header = header.map_err(|error| not_sent(&error))?;
        Ok(header.to_bytes().to_vec())
    }

    /// A part of a stream.
    pub(crate) fn stream_part(&self, token: &str) -> Result<Vec<u8>, Refused> {
        let token = token_of(token)?;
        let (pool, to, from) = self.source(&token)?;
        let id = StreamId { origin: token.origin, base: token.base, blocks: to.blocks };
        let from = from.map(|from| from.id);
        let part = pool.stream_part(from, to.id, &id, token.next_block);
        part.map_err(|error| not_sent(&error))
    }

    /// The pool that has the snapshots of a token.
    fn source(&self, token: &StreamToken) -> Result<StreamSource, Refused> {
        let pools = self.volumes.stock().pools().opened();
        let found = pools.into_iter().find_map(|pool| {
            let to = pool.snapshot_of_identity(&token.origin)?;
            let from = match &token.base {
                Some(base) => Some(pool.snapshot_of_identity(base)?),
                None => None,
            };
            Some((pool, to, from))
        });
        found.ok_or_else(|| {
            let error = "no pool of this node has the snapshots of this stream: they were removed, \
                         or their pool is not open";
            let way_out = "look at `vrio pool show`; without them, give the stream up with `vrio \
                           volume receive --give-up` and send another one";
            Refused::new(RefusedKind::Unknown, error, way_out)
        })
    }

    /// A step of receiving a stream.
    pub(crate) fn receive(
        &self,
        step: ReceiveStep,
        pool: &str,
        name: &str,
        bytes: &[u8],
    ) -> Result<ReceiveProgress, Refused> {
        let state = match step {
            ReceiveStep::Part => self.open_pool(pool)?.receive_part(name, bytes),
            ReceiveStep::Begin | ReceiveStep::End => {
                let header =
                    StreamHeader::read(bytes).map_err(|error| not_received(&error.into()))?;
                let _turn = self.turn()?;
                let pool = self.open_pool(pool)?;
                if step == ReceiveStep::Begin {
                    self.refuse_served(&pool, name)?;
                    pool.begin_receive(name, &header)
                } else {
                    pool.end_receive(name, &header)
                }
            }
        };
        let state = state.map_err(|error| not_received(&error))?;
        if step != ReceiveStep::Part {
            let ReceivedState { snapshot, token, blocks, is_complete } = &state;
            let next_block = token.next_block;
            tracing::info!(
                pool,
                volume = name,
                snapshot,
                next_block,
                blocks,
                is_complete,
                "receive"
            );
        }
        Ok(progress(name, &state))
    }

    /// Ends a stream before it is complete.
    pub(crate) fn give_up_receive(&self, pool: &str, name: &str) -> Result<Done, Refused> {
        let _turn = self.turn()?;
        let stays = self.open_pool(pool)?.give_up_receive(name);
        let what = match stays.map_err(|error| not_received(&error))? {
            true => format!("make volume {name:?} again what it was before the stream"),
            false => format!("remove volume {name:?}, which was new"),
        };
        Ok(done(vec![what]))
    }

    /// A volume that guests may use is not received into.
    fn refuse_served(&self, pool: &Arc<StorePool>, name: &str) -> Result<(), Refused> {
        let Some(volume) = pool.volume_named(name) else { return Ok(()) };
        let served = self.objects().volumes.clone();
        let is_it = served.iter().find(|it| {
            let of = it.backend.in_pool();
            of.is_some_and(|(of, its)| Arc::ptr_eq(of, pool) && its == volume.id)
        });
        match is_it {
            None => Ok(()),
            Some(served) => {
                let served = served.export.name();
                let error = format!("this node serves it as volume {served:?}");
                let way_out = format!(
                    "`vrio volume remove {served}` first, which keeps its data, and add it again \
                     afterwards; or receive into another volume"
                );
                Err(Refused::new(RefusedKind::Conflict, error, way_out))
            }
        }
    }
}

pub(super) fn progress(name: &str, state: &ReceivedState) -> ReceiveProgress {
    let block_bytes = BLOCK_BYTES as u64;
    ReceiveProgress {
        version: API_VERSION,
        snapshot: format!("{name}@{}", state.snapshot),
        received_bytes: state.token.next_block * block_bytes,
        size_bytes: state.blocks * block_bytes,
        complete: state.is_complete,
        token: state.token.to_string(),
    }
}

fn token_of(text: &str) -> Result<StreamToken, Refused> {
    text.parse().map_err(|error: store::stream::StreamTokenError| {
        Refused::new(RefusedKind::Bad, error.to_string(), "copy all of it")
    })
}

fn not_sent(error: &PoolError) -> Refused {
    match error {
        PoolError::Closed => closed(),
        _ => refused("the stream", error),
    }
}

/// The pool is between two processes, or at its end.
fn closed() -> Refused {
    Refused::new(RefusedKind::Busy, "the pool is closed at this moment", "try again soon")
}

fn not_received(error: &ReceiveError) -> Refused {
    let kind = match error {
        ReceiveError::Pool(PoolError::Closed) => return closed(),
        ReceiveError::InUse(_) => RefusedKind::Busy,
        ReceiveError::Pool(error) => return refused("the stream", error),
        ReceiveError::Stream(StreamError::NotNext { .. }) => RefusedKind::Conflict,
        ReceiveError::Stream(_) => RefusedKind::Bad,
        ReceiveError::NotReceiving(_) => RefusedKind::Unknown,
        _ => RefusedKind::Conflict,
    };
    Refused::new(kind, error.to_string(), "the volume is as it was")
}
