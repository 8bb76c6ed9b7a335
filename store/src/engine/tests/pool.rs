//! A pool in memory for tests: devices that answer at once, and requests that are waited for.

use std::collections::HashMap;

use super::memory::MemoryDevices;
use crate::api::{Admission, PoolChange, PoolCompletion, PoolError, RequestTag, VolumeId};
use crate::block::{BLOCK_BYTES, Block};
use crate::engine::{PoolEngine, format_pool};
use crate::layout::{CACHE_BLOCKS_MIN, DeviceLayout, PoolLayout, PoolOpenError, PoolOptions};

/// Rounds after which a test gives up: far more than any request here takes.
const ROUNDS_MAX: usize = 200_000;

/// Refusals of one write after which the pool counts as full: collection has had its time.
const REFUSALS_MAX: usize = 2_000;

/// A block of a read: its count in the request, and its content unless it is zeroes.
type Piece = (u32, Option<Vec<u8>>);

/// A pool and its devices.
#[derive(Debug)]
pub(crate) struct TestPool {
    pub(crate) devices: MemoryDevices,
    pub(crate) engine: PoolEngine,
    pub(crate) now_ns: u64,
    next_tag: u64,
    done: HashMap<RequestTag, Result<VolumeId, PoolError>>,
    data: HashMap<RequestTag, Vec<Piece>>,
}

/// Options for tests: the least memory, and long stretches between checkpoints.
pub(crate) const OPTIONS: PoolOptions =
    PoolOptions { cache_blocks: CACHE_BLOCKS_MIN, log_blocks_max: 100_000 };

impl TestPool {
    /// A new pool of equal devices.
    pub(crate) fn new(devices: usize, segments: u64, segment_blocks: u32) -> Self {
        let blocks = 16 + segments * u64::from(segment_blocks);
        let layout = PoolLayout {
            uuid: [7; 16],
            segment_blocks,
            devices: (0..devices as u8)
                .map(|i| DeviceLayout { uuid: [i + 1; 16], blocks })
                .collect(),
        };
        let mut devices = MemoryDevices::new(devices, blocks);
        format_pool(&mut devices, &layout).expect("a pool");
        Self::open(devices, 1).expect("a pool that was just made")
    }

    /// Opens a pool on devices.
    pub(crate) fn open(mut devices: MemoryDevices, salt: u64) -> Result<Self, PoolOpenError> {
        let sizes = devices.sizes();
        let engine = PoolEngine::open(&mut devices, &sizes, OPTIONS, salt.into(), 0)?;
        let (done, data) = (HashMap::new(), HashMap::new());
        Ok(Self { devices, engine, now_ns: 0, next_tag: 0, done, data })
    }

    /// The pool after a kill: requests under way are gone, all writes that were answered stay.
    pub(crate) fn reopened(self, salt: u64) -> Self {
        Self::open(self.devices, salt).expect("the pool opens again")
    }

    /// One round.
    pub(crate) fn round(&mut self) {
        self.now_ns += 1_000_000;
        self.engine.poll(self.now_ns);
        self.devices.serve(&mut self.engine);
        self.take_completions();
    }

    /// Takes what the engine has for its callers.
    pub(crate) fn take_completions(&mut self) {
        while let Some(completion) = self.engine.next_completion() {
            match completion {
                PoolCompletion::Data { tag, first, blocks, buffer } => {
                    let bytes = buffer
                        .as_ref()
                        .map(|buffer| buffer.bytes()[..blocks as usize * BLOCK_BYTES].to_vec());
                    let pieces = self.data.entry(tag).or_default();
                    match bytes {
                        Some(bytes) => {
                            for (index, block) in bytes.chunks(BLOCK_BYTES).enumerate() {
                                pieces.push((first + index as u32, Some(block.to_vec())));
                            }
                        }
                        None => pieces.extend((first..first + blocks).map(|block| (block, None))),
                    }
                    if let Some(buffer) = buffer {
                        self.engine.recycle(buffer);
                    }
                }
                PoolCompletion::Done { tag, result } => {
                    assert!(self.done.insert(tag, result).is_none(), "one end for each request");
                }
            }
        }
    }

    pub(crate) fn tag(&mut self) -> RequestTag {
        self.next_tag += 1;
        RequestTag(self.next_tag)
    }

    /// The end of a request that was taken, if it has come.
    pub(crate) fn end(&mut self, tag: RequestTag) -> Option<Result<VolumeId, PoolError>> {
        self.done.remove(&tag)
    }

    /// Offers a request until it is taken, and waits for its end.
    pub(crate) fn wait(
        &mut self,
        mut offer: impl FnMut(&mut PoolEngine, RequestTag) -> Admission,
    ) -> (RequestTag, Result<VolumeId, PoolError>) {
        let tag = self.tag();
        let mut is_taken = false;
        for _ in 0..ROUNDS_MAX {
            is_taken = is_taken || offer(&mut self.engine, tag) == Admission::Taken;
            self.round();
            if let Some(result) = self.end(tag) {
                return (tag, result);
            }
        }
        panic!("the request does not end: {:#?}", self.engine.status());
    }

    /// Writes new blocks from one on, until a write is refused for a long time: the block of that
    /// write, or `end`.
    pub(crate) fn fill(&mut self, disk: VolumeId, from: u64, end: u64) -> u64 {
        for block in from..end {
            let tag = self.tag();
            let mut refused = 0;
            while {
                let taken = self.engine.write(tag, disk, block, 1, &mut |_, page| page.0.fill(1));
                self.round();
                taken != Admission::Taken
            } {
                refused += 1;
                if refused > REFUSALS_MAX {
                    return block;
                }
            }
        }
        end
    }

    pub(crate) fn change(&mut self, change: PoolChange) -> Result<VolumeId, PoolError> {
        self.wait(|engine, tag| engine.change(tag, change.clone())).1
    }

    pub(crate) fn create(&mut self, name: &str, blocks: u64) -> VolumeId {
        self.change(PoolChange::Create { name: name.into(), blocks }).expect("a volume")
    }

    pub(crate) fn snapshot(&mut self, volume: VolumeId, name: &str) -> VolumeId {
        let change = PoolChange::Snapshot { volumes: vec![volume], name: name.into(), at_s: 1 };
        self.change(change).expect("a snapshot")
    }

    /// Writes a word into each of some blocks.
    pub(crate) fn write(
        &mut self,
        volume: VolumeId,
        block: u64,
        blocks: u32,
        word: u64,
    ) -> Result<(), PoolError> {
        let mut fill = |index: u32, page: &mut Block| stamp(page, word, block + u64::from(index));
        self.wait(|engine, tag| engine.write(tag, volume, block, blocks, &mut fill)).1.map(drop)
    }

    pub(crate) fn zero(&mut self, volume: VolumeId, block: u64, blocks: u32) {
        let zero = self.wait(|engine, tag| engine.zero(tag, volume, block, blocks)).1;
        zero.expect("zeroes");
    }

    pub(crate) fn flush(&mut self) {
        self.wait(PoolEngine::flush).1.expect("a flush");
    }

    /// The words of some blocks, 0 for zeroes.
    pub(crate) fn read(
        &mut self,
        volume: VolumeId,
        block: u64,
        blocks: u32,
    ) -> Result<Vec<u64>, PoolError> {
        let (tag, result) = self.wait(|engine, tag| engine.read(tag, volume, block, blocks));
        let mut pieces = self.data.remove(&tag).unwrap_or_default();
        result?;
        pieces.sort_by_key(|(index, _)| *index);
        let indexes: Vec<u32> = pieces.iter().map(|(index, _)| *index).collect();
        assert_eq!(indexes, (0..blocks).collect::<Vec<_>>(), "each block comes once");
        Ok(pieces
            .into_iter()
            .map(|(index, bytes)| bytes.map_or(0, |bytes| check(&bytes, block + u64::from(index))))
            .collect())
    }

    /// The bytes of a read of one block.
    pub(crate) fn bytes(&mut self, tag: RequestTag) -> Vec<u8> {
        let mut pieces = self.data.remove(&tag).expect("a read has data");
        pieces.pop().expect("one block").1.unwrap_or(vec![0; BLOCK_BYTES])
    }

    /// Goes on until nothing is left to do.
    pub(crate) fn rest(&mut self) {
        for _ in 0..ROUNDS_MAX {
            if !self.engine.is_busy() {
                return;
            }
            self.round();
        }
        panic!("the pool does not come to rest: {:#?}", self.engine.status());
    }

    /// Closes the pool and opens it again.
    pub(crate) fn close_and_open(mut self, salt: u64) -> Self {
        self.engine.close();
        for _ in 0..ROUNDS_MAX {
            if self.engine.is_closed() {
                return self.reopened(salt);
            }
            self.round();
        }
        panic!("the pool does not close: {:#?}", self.engine.status());
    }
}

fn stamp(page: &mut Block, word: u64, block: u64) {
    for (at, chunk) in page.0.chunks_mut(16).enumerate() {
        chunk[..8].copy_from_slice(&word.to_le_bytes());
        chunk[8..].copy_from_slice(&(block << 16 | at as u64).to_le_bytes());
    }
}

fn check(bytes: &[u8], block: u64) -> u64 {
    let word = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
    let mut page = Block::ZERO;
    if word != 0 {
        stamp(&mut page, word, block);
    }
    assert_eq!(page.0[..], *bytes, "a block is not a mixture");
    word
}
