//! The round that sends dirty blocks to the remote volume. One channel of the disk does it, on
//! behalf of all.
//!
//! ```text
//!   a batch:  runs of dirty blocks are read ──▶ written to the volume below ──▶ one flush
//!             ──▶ blocks that were not written meanwhile are clean, and discarded
//! ```
//!
//! A run that the pool cannot read is read again block by block, so that its damaged blocks stay
//! dirty and hold up no other block. A guest waits for a run only while the run is read, and while
//! its blocks are discarded.

use std::sync::atomic::Ordering::SeqCst;

use sidecore::Progress;
use virtio::Segment;
use volume::{Op, Status};

use super::DamagedBlocks;
use super::channel::{OF_SWEEP, SubRequest, Ways};
use crate::map::{BLOCK_BYTES, Blocks};

/// Runs of a batch: enough to keep a network and the storage behind it busy, few enough that a
/// flush comes often.
pub(super) const RUNS_MAX: u16 = 16;

/// Blocks of a run: 128 KiB.
const RUN_BLOCKS_MAX: u64 = 32;

const RUN_BYTES: usize = (RUN_BLOCKS_MAX * BLOCK_BYTES) as usize;

/// The flush of a batch, among the owners of its requests.
const OF_FLUSH: u64 = OF_SWEEP | RUNS_MAX as u64;

/// How soon a batch that failed is tried again.
const TRY_AGAIN_NS: u64 = 1_000_000_000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum RunStand {
    /// It is being read, with the busy bits of its blocks.
    #[default]
    Reading,
    /// The volume below has not answered.
    Writing,
    /// The volume below has it, and may lose it.
    Sent,
    /// Its blocks stay dirty.
    Over,
}

#[derive(Clone, Copy, Debug, Default)]
struct Run {
    blocks: Blocks,
    stand: RunStand,
    /// The blocks before this block are clean, or stay dirty.
    next: u64,
    /// Blocks that are being discarded, with their busy bits.
    discarding: Blocks,
    /// Its only block cannot be read.
    is_damaged: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SweepPhase {
    /// No batch is under way.
    #[default]
    Idle,
    Sending,
    Flushing,
    Cleaning,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    leads: bool,
    /// The number of the round, without which nothing is written.
    number: u64,
    phase: SweepPhase,
    /// The next block of the round.
    at: u64,
    runs: Vec<Run>,
    /// Room for the data of a batch. Its pages take memory when they are used first.
    memory: Vec<u8>,
    /// The changes of users that the flush covers.
    covers: u64,
    /// Before this block runs have one block: one of a longer run could not be read.
    single_end: u64,
    /// Blocks that the round could not read.
    damaged: DamagedBlocks,
    /// Something of the round has failed beside reads.
    has_failed: bool,
    waits: bool,
    try_at_ns: u64,
    now_ns: u64,
}

impl Sweep {
    /// Whether it must look again soon for blocks that other requests work on.
    pub(super) fn waits_for_blocks(&self) -> bool {
        self.waits
    }

    /// Does what can be done now. The dirty volume is open.
    pub(super) fn step(&mut self, ways: &mut Ways, now_ns: u64) -> Progress {
        (self.now_ns, self.waits) = (now_ns, false);
        match self.phase {
            SweepPhase::Idle => self.begin_batch(ways),
            SweepPhase::Sending | SweepPhase::Flushing => Progress::Idle,
            SweepPhase::Cleaning => self.clean(ways),
        }
    }

    fn begin_batch(&mut self, ways: &mut Ways) -> Progress {
        if !ways.lower.is_open() || self.now_ns < self.try_at_ns {
            return Progress::Idle;
        }
        if !self.leads {
            if !ways.dirty.is_due(self.now_ns) || !ways.dirty.try_lead(ways.index) {
                return Progress::Idle;
            }
            (self.leads, self.at, self.has_failed) = (true, 0, false);
            (self.single_end, self.damaged) = (0, DamagedBlocks::default());
            if self.memory.is_empty() {
                self.memory = vec![0; usize::from(RUNS_MAX) * RUN_BYTES];
                self.runs.reserve(usize::from(RUNS_MAX));
            }
            ways.dirty.begin_round();
            self.number = ways.dirty.ask_number();
        }
        if !ways.dirty.has_number(self.number) {
            self.waits = true;
            return Progress::Idle;
        }
        self.gather(ways);
        if !self.runs.is_empty() {
            self.phase = SweepPhase::Sending;
            return Progress::Busy;
        }
        if self.at >= ways.dirty.map.blocks.blocks() {
            if ways.dirty.note_damaged(self.damaged) {
                // They are tried again, and no round after round does nothing else.
                self.try_at_ns = self.now_ns + TRY_AGAIN_NS;
            }
            ways.dirty.end_round(self.now_ns, self.has_failed);
            self.rest(ways);
            return Progress::Busy;
        }
        self.waits = true;
        Progress::Idle
    }

    /// Begins to read the next dirty blocks.
    fn gather(&mut self, ways: &mut Ways) {
        while self.runs.len() < usize::from(RUNS_MAX) {
            let map = &ways.dirty.map;
            let end = map.blocks.blocks();
            let left = Blocks { first: self.at, count: end - self.at };
            let most = if self.at < self.single_end { 1 } else { RUN_BLOCKS_MAX };
            let Some(mut run) = map.first_dirty(left, most) else {
                self.at = end;
                return;
            };
            if !map.blocks.acquire(run) {
                run.count = 1;
                if !map.blocks.acquire(run) {
                    // It is a guest's turn: later.
                    self.at = run.first;
                    return;
                }
            }
            if map.blocks.count(run) != run.count {
                // They were zeroed before the bits were taken.
                map.blocks.release(run);
                continue;
            }
            map.begin_send(run);
            self.at = run.end();
            let at = self.runs.len();
            self.runs.push(Run { blocks: run, next: run.first, ..Run::default() });
            let piece = self.piece(at, run);
            ways.ask_here(&request(Op::Read, run, at), std::iter::once(piece));
        }
    }

    fn piece(&mut self, at: usize, blocks: Blocks) -> Segment {
        let len = (blocks.count * BLOCK_BYTES) as usize;
        let piece = &mut self.memory[at * RUN_BYTES..at * RUN_BYTES + len];
        Segment { addr: piece.as_mut_ptr(), len: len as u32 }
    }

    /// The dirty volume has ended a request of the batch. `is_over`: nothing more is begun. Gives
    /// whether a change has failed.
    pub(super) fn here_ended(
        &mut self,
        ways: &mut Ways,
        owner: u64,
        status: Status,
        is_over: bool,
    ) -> bool {
        let at = (owner & !OF_SWEEP) as usize;
        let run = self.runs[at];
        let map = &ways.dirty.map;
        let is_done = status == Status::Done;
        if run.stand == RunStand::Sent {
            // Discarded.
            self.runs[at].discarding = Blocks::default();
            self.runs[at].next = run.discarding.end();
            if is_done {
                map.blocks.give_back(run.discarding.count);
            }
            map.end_send(run.discarding);
            map.blocks.release(run.discarding);
            return !is_done;
        }
        map.blocks.release(run.blocks);
        if is_over {
            self.give_up(ways, at);
        } else if !is_done {
            ways.dirty.counters(ways.index).errors.add(1);
            self.meet_damage(ways, at);
        } else {
            self.runs[at].stand = RunStand::Writing;
            let piece = self.piece(at, run.blocks);
            ways.ask_below(&request(Op::Write, run.blocks, at), std::iter::once(piece));
        }
        self.flush_if_sent(ways);
        false
    }

    /// A run could not be read: it is read again block by block, and a block stays dirty.
    fn meet_damage(&mut self, ways: &Ways, at: usize) {
        let run = &mut self.runs[at];
        ways.dirty.map.end_send(run.blocks);
        run.stand = RunStand::Over;
        if run.blocks.count == 1 {
            run.is_damaged = true;
        } else {
            self.at = self.at.min(run.blocks.first);
            self.single_end = self.single_end.max(run.blocks.end());
        }
    }

    /// The blocks of a run stay dirty.
    fn give_up(&mut self, ways: &Ways, at: usize) {
        let run = &mut self.runs[at];
        let left = Blocks { first: run.next, count: run.blocks.end() - run.next };
        ways.dirty.map.end_send(left);
        run.stand = RunStand::Over;
        self.has_failed = true;
    }

    /// The volume below has ended a request of the batch.
    pub(super) fn below_ended(&mut self, ways: &mut Ways, owner: u64, status: Status) {
        let is_done = status == Status::Done;
        if !is_done {
            ways.dirty.counters(ways.index).errors.add(1);
        }
        if owner == OF_FLUSH {
            if is_done {
                ways.dirty.flushed.fetch_max(self.covers, SeqCst);
            } else {
                for at in 0..self.runs.len() {
                    self.give_up(ways, at);
                }
            }
            self.phase = SweepPhase::Cleaning;
            return;
        }
        let at = (owner & !OF_SWEEP) as usize;
        if is_done {
            self.runs[at].stand = RunStand::Sent;
            let bytes = self.runs[at].blocks.count * BLOCK_BYTES;
            ways.dirty.counters(ways.index).sent_bytes.add(bytes);
        } else {
            self.give_up(ways, at);
        }
        self.flush_if_sent(ways);
    }

    /// Flushes the volume below when it has all runs.
    fn flush_if_sent(&mut self, ways: &mut Ways) {
        let is_under_way = |run: &Run| matches!(run.stand, RunStand::Reading | RunStand::Writing);
        if self.phase != SweepPhase::Sending || self.runs.iter().any(is_under_way) {
            return;
        }
        if self.runs.iter().all(|run| run.stand == RunStand::Over) {
            self.phase = SweepPhase::Cleaning;
            return;
        }
        self.phase = SweepPhase::Flushing;
        self.covers = ways.dirty.passed.load(SeqCst);
        let flush = SubRequest { owner: OF_FLUSH, ..request(Op::Flush, Blocks::default(), 0) };
        ways.ask_below(&flush, std::iter::empty());
    }

    /// Discards the blocks that the volume below has durably, and that are as they were sent.
    fn clean(&mut self, ways: &mut Ways) -> Progress {
        let mut is_under_way = false;
        for at in 0..self.runs.len() {
            if self.runs[at].stand != RunStand::Sent {
                continue;
            }
            if !self.runs[at].discarding.is_empty() {
                is_under_way = true;
                continue;
            }
            match self.take_unchanged(ways, at) {
                Some(blocks) => {
                    ways.dirty.map.clean(blocks);
                    self.runs[at].discarding = blocks;
                    ways.ask_here(&request(Op::Discard, blocks, at), std::iter::empty());
                    is_under_way = true;
                }
                None if self.runs[at].next == self.runs[at].blocks.end() => {
                    self.runs[at].stand = RunStand::Over;
                }
                None => (self.waits, is_under_way) = (true, true),
            }
        }
        if is_under_way {
            return Progress::Idle;
        }
        // A block at or behind the next one is read again.
        let damaged = self.runs.iter().filter(|it| it.is_damaged && it.blocks.first < self.at);
        damaged.for_each(|it| self.damaged.add(it.blocks.first));
        self.runs.clear();
        self.phase = SweepPhase::Idle;
        if self.has_failed {
            ways.dirty.end_round(self.now_ns, true);
            self.try_at_ns = self.now_ns + TRY_AGAIN_NS;
            self.rest(ways);
        }
        Progress::Busy
    }

    /// The next blocks of a run that were not written since they were read, with their busy bits.
    /// Passes over the blocks that were.
    fn take_unchanged(&mut self, ways: &Ways, at: usize) -> Option<Blocks> {
        let map = &ways.dirty.map;
        let run = &mut self.runs[at];
        let mut found = Blocks { first: run.next, count: 0 };
        while found.end() < run.blocks.end() {
            let block = Blocks { first: found.end(), count: 1 };
            let is_changed = map.is_rewritten(block);
            if !is_changed && map.blocks.acquire(block) {
                if !map.is_rewritten(block) {
                    found.count += 1;
                    continue;
                }
                map.blocks.release(block);
            }
            if !found.is_empty() {
                break;
            }
            if !map.is_rewritten(block) {
                // Another request works on it.
                return None;
            }
            map.end_send(block);
            run.next = block.end();
            found.first = run.next;
        }
        (!found.is_empty()).then_some(found)
    }

    fn rest(&mut self, ways: &Ways) {
        self.leads = false;
        ways.dirty.release_lead(ways.index);
    }

    /// The channel lets go. Nothing of the batch is in the dirty volume.
    pub(super) fn end(&mut self, ways: &mut Ways, now_ns: u64) {
        if !std::mem::take(&mut self.leads) {
            return;
        }
        for at in 0..self.runs.len() {
            if self.runs[at].stand != RunStand::Over {
                self.give_up(ways, at);
            }
        }
        // Their memory stays: the volume below may have it still.
        self.runs.clear();
        self.phase = SweepPhase::Idle;
        ways.dirty.end_round(now_ns, true);
        ways.dirty.release_lead(ways.index);
    }
}

fn request(op: Op, blocks: Blocks, at: usize) -> SubRequest {
    SubRequest {
        op,
        offset_bytes: blocks.first * BLOCK_BYTES,
        len_bytes: blocks.count * BLOCK_BYTES,
        durable: false,
        owner: OF_SWEEP | at as u64,
    }
}
