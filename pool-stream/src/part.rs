//! A part of a stream: the changes in a range of blocks.

use super::header::StreamId;
use super::{CHECK, StreamError, StreamPlace, check_of, u32_at, u64_at};
use pool_format::block::BLOCK_BYTES;

/// The most blocks of data of a part, 8 MiB: a reader has all of a part in memory, proves it, and
/// then uses it.
pub const PART_DATA_BLOCKS_MAX: usize = 2048;

/// The most runs of a part: as many as if each block of data were a run.
pub const PART_RUNS_MAX: usize = 2048;

/// The most blocks of zeroes of a part, 4 GiB: they cost a record for each 64, and a reader says
/// between parts how far it is.
pub const PART_ZERO_BLOCKS_MAX: u64 = 1 << 20;

/// Bytes before the runs; the end of a stream has as many.
pub(super) const PART_HEAD_BYTES: usize = 40;

const RUN_BYTES: usize = 16;

/// Blocks that differ between two versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangedRun {
    /// The first block.
    pub block: u64,
    /// How many.
    pub blocks: u64,
    /// They read as zeroes in the later version.
    pub is_hole: bool,
}

/// The longest part.
pub const PART_BYTES_MAX: usize =
    PART_HEAD_BYTES + PART_RUNS_MAX * RUN_BYTES + PART_DATA_BLOCKS_MAX * BLOCK_BYTES;

pub(super) const MAGIC: &[u8; 8] = b"vrioPart";

/// The bit in a run's count that stands for zeroes.
const ZEROES: u64 = 1 << 63;

/// The length of a part, from its first bytes.
pub(super) fn length(head: &[u8; PART_HEAD_BYTES]) -> Result<usize, StreamError> {
    let length = u32_at(head, 16) as usize;
    match (PART_HEAD_BYTES..=PART_BYTES_MAX).contains(&length) {
        true => Ok(length),
        false => Err(StreamError::Damaged(StreamPlace::Part(u64_at(head, 24)))),
    }
}

/// A part that was read and proved.
#[derive(Debug, PartialEq, Eq)]
pub struct StreamPart<'a> {
    /// The first block that it covers.
    pub start: u64,
    /// The block at which the next part begins.
    pub end: u64,
    /// The changes, in the order of blocks. Blocks in no run are as in the base, or zeroes.
    pub runs: Vec<ChangedRun>,
    /// The data of the runs that are no zeroes, one behind the other.
    pub data: &'a [u8],
    /// The part's check.
    pub(super) check: u64,
}

impl<'a> StreamPart<'a> {
    /// Reads and proves a part of the stream `id`.
    ///
    /// # Errors
    /// [`StreamError`]: these bytes are none.
    pub fn read(id: &StreamId, bytes: &'a [u8]) -> Result<Self, StreamError> {
        let Some(head) = bytes.first_chunk::<PART_HEAD_BYTES>() else {
            return Err(StreamError::NoStream);
        };
        if head[..8] != MAGIC[..] {
            return Err(StreamError::NoStream);
        }
        let (start, end) = (u64_at(head, 24), u64_at(head, 32));
        let check = u64_at(head, CHECK.start);
        let is_whole = length(head)? == bytes.len();
        if !is_whole || check != check_of(&id.front(), bytes) {
            return Err(StreamError::Damaged(StreamPlace::Part(start)));
        }
        let wrong = |field| StreamError::Impossible(StreamPlace::Part(start), field);
        let count = u32_at(head, 20) as usize;
        let data_at = PART_HEAD_BYTES + count.min(PART_RUNS_MAX + 1) * RUN_BYTES;
        if count > PART_RUNS_MAX || data_at > bytes.len() {
            return Err(wrong("count of runs"));
        }
        if start >= end || end > id.blocks {
            return Err(wrong("range"));
        }
        let mut part = Self { start, end, runs: Vec::with_capacity(count), data: &[], check };
        let mut at = start;
        for run in bytes[PART_HEAD_BYTES..data_at].chunks_exact(RUN_BYTES) {
            let (block, word) = (u64_at(run, 0), u64_at(run, 8));
            let (blocks, is_hole) = (word & !ZEROES, word & ZEROES != 0);
            let run_end = block.checked_add(blocks).filter(|_| blocks > 0 && block >= at);
            at = run_end.filter(|run_end| *run_end <= end).ok_or_else(|| wrong("run"))?;
            part.runs.push(ChangedRun { block, blocks, is_hole });
        }
        let (data_blocks, zero_blocks) = part.counts();
        part.data = &bytes[data_at..];
        if part.data.len() as u64 != data_blocks.saturating_mul(BLOCK_BYTES as u64) {
            return Err(wrong("length"));
        }
        if zero_blocks > PART_ZERO_BLOCKS_MAX {
            return Err(wrong("count of zeroes"));
        }
        Ok(part)
    }

    /// Blocks of data and of zeroes.
    pub fn counts(&self) -> (u64, u64) {
        let sum = |is_hole: bool| {
            let runs = self.runs.iter().filter(|run| run.is_hole == is_hole);
            runs.fold(0, |sum: u64, run| sum.saturating_add(run.blocks))
        };
        (sum(false), sum(true))
    }
}

/// A part that is being made.
#[derive(Clone, Debug)]
pub struct PartBuilder {
    start: u64,
    runs: Vec<ChangedRun>,
    data_blocks: u64,
    zero_blocks: u64,
}

impl PartBuilder {
    /// A part that begins at this block.
    pub fn new(start: u64) -> Self {
        Self { start, runs: Vec::new(), data_blocks: 0, zero_blocks: 0 }
    }

    /// Takes a run, or as much of it as there is room for: then the part is full, and this gives
    /// the block at which it must end.
    ///
    /// # Panics
    /// If the run is not behind those before.
    pub fn push(&mut self, run: &ChangedRun) -> Option<u64> {
        let after = self.runs.last().map_or(self.start, |last| last.block + last.blocks);
        assert!(run.block >= after, "runs come in their order");
        let goes_on =
            self.runs.last().is_some_and(|last| last.is_hole == run.is_hole && after == run.block);
        if self.runs.len() == PART_RUNS_MAX && !goes_on {
            return Some(run.block);
        }
        let (used, max) = match run.is_hole {
            true => (&mut self.zero_blocks, PART_ZERO_BLOCKS_MAX),
            false => (&mut self.data_blocks, PART_DATA_BLOCKS_MAX as u64),
        };
        let blocks = run.blocks.min(max - *used);
        *used += blocks;
        match self.runs.last_mut().filter(|_| goes_on) {
            Some(last) => last.blocks += blocks,
            None if blocks > 0 => self.runs.push(ChangedRun { blocks, ..*run }),
            None => {}
        }
        (blocks < run.blocks).then_some(run.block + blocks)
    }

    /// The runs that it took.
    pub fn runs(&self) -> &[ChangedRun] {
        &self.runs
    }

    /// Bytes of data that its runs need.
    pub fn data_bytes(&self) -> usize {
        self.data_blocks as usize * BLOCK_BYTES
    }

    /// The part as bytes; it covers the blocks up to `end`.
    ///
    /// # Panics
    /// If the data is not what the runs need.
    pub fn finish(self, id: &StreamId, end: u64, data: &[u8]) -> Vec<u8> {
        assert_eq!(data.len(), self.data_bytes(), "the data of all runs");
        let length = PART_HEAD_BYTES + self.runs.len() * RUN_BYTES + data.len();
        let mut bytes = Vec::with_capacity(length);
        bytes.extend(MAGIC);
        bytes.extend([0; 8]);
        bytes.extend((length as u32).to_le_bytes());
        bytes.extend((self.runs.len() as u32).to_le_bytes());
        bytes.extend(self.start.to_le_bytes());
        bytes.extend(end.to_le_bytes());
        for run in &self.runs {
            let zeroes = if run.is_hole { ZEROES } else { 0 };
            bytes.extend(run.block.to_le_bytes());
            bytes.extend((run.blocks | zeroes).to_le_bytes());
        }
        bytes.extend(data);
        let check = check_of(&id.front(), &bytes);
        bytes[CHECK].copy_from_slice(&check.to_le_bytes());
        bytes
    }
}
