//! Writes of a part of a block: the block is read, the bytes are merged, the block is written.

use super::core::EngineCore;
use super::reads::{PartRead, ReadFor, Reads};
use super::slab::TokenTable;
use crate::api::{PoolError, RequestTag, VolumeId};
use crate::block::BlockBuffer;

/// The most partial writes at once. Guests that are told the block's size make none.
const PARTS_MAX: usize = 64;

#[derive(Debug)]
enum PartStep {
    /// Rows up to this one have to be applied before the block is read.
    Waits(u64),
    Reads,
    /// The block is merged and will be written.
    Merged(Option<BlockBuffer>),
    /// The write is under way.
    Written,
}

#[derive(Debug)]
struct PartialWrite {
    tag: RequestTag,
    volume: VolumeId,
    block: u64,
    from: usize,
    bytes: Vec<u8>,
    step: PartStep,
}

/// A merged block that has to be written.
#[derive(Debug)]
pub(crate) struct MergedBlock {
    /// The partial write.
    pub(crate) part: u64,
    /// The volume.
    pub(crate) volume: VolumeId,
    /// The block.
    pub(crate) block: u64,
}

/// The partial writes under way. While one is, no other write of its block is taken, so the merge
/// loses nothing.
#[derive(Debug)]
pub(crate) struct PartialWrites {
    parts: TokenTable<PartialWrite>,
    tokens: Vec<u64>,
}

impl PartialWrites {
    /// None.
    pub(crate) fn new() -> Self {
        Self { parts: TokenTable::new(), tokens: Vec::new() }
    }

    /// How many are under way.
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether another one is taken.
    pub(crate) fn has_room(&self) -> bool {
        self.tokens.len() < PARTS_MAX
    }

    /// Whether one of these blocks is being written in part.
    pub(crate) fn covers(&mut self, volume: VolumeId, block: u64, blocks: u64) -> bool {
        self.tokens.iter().any(|&token| {
            let part = self.parts.get_mut(token).expect("a listed part");
            part.volume == volume && (block..block + blocks).contains(&part.block)
        })
    }

    /// Takes one, behind all rows up to `barrier`.
    pub(crate) fn begin(
        &mut self,
        tag: RequestTag,
        volume: VolumeId,
        block: u64,
        (from, bytes): (usize, &[u8]),
        barrier: u64,
    ) {
        let step = PartStep::Waits(barrier);
        let part = PartialWrite { tag, volume, block, from, bytes: bytes.to_vec(), step };
        self.tokens.push(self.parts.insert(part));
    }

    /// Begins reads, and merges what was read.
    pub(crate) fn poll(&mut self, core: &mut EngineCore, reads: &mut Reads) {
        for &token in &self.tokens {
            let part = self.parts.get_mut(token).expect("a listed part");
            if matches!(part.step, PartStep::Waits(barrier) if core.applied >= barrier)
                && reads.has_room(1)
            {
                part.step = PartStep::Reads;
                reads.begin(core, ReadFor::Part(token), part.volume, part.block, 1);
            }
        }
        for PartRead { part: token, content } in std::mem::take(&mut reads.for_parts) {
            let Some(part) = self.parts.get_mut(token) else { continue };
            match content {
                Ok(buffer) => {
                    let mut buffer = buffer.unwrap_or_else(|| {
                        let mut zeroes = core.buffer(1);
                        zeroes.bytes_mut().fill(0);
                        zeroes
                    });
                    let end = part.from + part.bytes.len();
                    buffer.blocks_mut()[0].0[part.from..end].copy_from_slice(&part.bytes);
                    part.step = PartStep::Merged(Some(buffer));
                }
                Err(error) => self.end(core, token, Err(error)),
            }
        }
    }

    /// The next merged block that was not written.
    pub(crate) fn next_merged(&mut self) -> Option<MergedBlock> {
        self.tokens.iter().find_map(|&token| {
            let part = self.parts.get_mut(token).expect("a listed part");
            let PartialWrite { volume, block, .. } = *part;
            matches!(part.step, PartStep::Merged(_)).then_some(MergedBlock {
                part: token,
                volume,
                block,
            })
        })
    }

    /// Takes the content of a merged block, whose write begins.
    pub(crate) fn take_merged(&mut self, token: u64) -> BlockBuffer {
        let part = self.parts.get_mut(token).expect("a listed part");
        match std::mem::replace(&mut part.step, PartStep::Written) {
            PartStep::Merged(Some(buffer)) => buffer,
            step => unreachable!("the part is at {step:?}"),
        }
    }

    /// A partial write has ended.
    pub(crate) fn end(&mut self, core: &mut EngineCore, token: u64, result: Result<(), PoolError>) {
        let Some(part) = self.parts.remove(token) else { return };
        self.tokens.retain(|listed| *listed != token);
        core.done(part.tag, result.map(|()| part.volume));
    }

    /// The pool is done with: every partial write ends.
    pub(crate) fn abandon(&mut self, core: &mut EngineCore, error: &PoolError) {
        for token in std::mem::take(&mut self.tokens) {
            self.end(core, token, Err(error.clone()));
        }
    }
}
