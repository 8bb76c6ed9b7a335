//! Checkpoints: the map is written into the log, and the superblock names it.
//!
//! Dirty pages are written once while guests go on. Then no more rows are applied: the pages that
//! have become dirty meanwhile, the page tables level by level, and the state are written, then
//! the superblocks. So the pages of a checkpoint are those of one moment without copies of them,
//! and the halt is as long as the pages take that became dirty in the first part.

use super::core::{EngineCore, IoPurpose};
use super::rows::{ROWS_MAX, RecordOwner, Row, RowStream, crc_of};
use super::state::{INDEX_ENTRIES, encode, encode_index};
use crate::api::{DeviceOp, PoolDeviceError};
use crate::block::BLOCK_BYTES;
use crate::format::{
    BLOCK_SECTORS, BlockPlace, DeviceRecord, LogRecord, PageEntry, PayloadPlace, STREAMS,
    SegmentId, StreamPosition, Superblock, superblock_blocks,
};
use crate::map::{LiveBlocks, MapError, MapPass};

/// How far a checkpoint is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Idle,
    /// Guests go on.
    Early(MapPass),
    /// Nothing is applied.
    Halted(MapPass),
    State,
    Index,
    SyncPages(u64),
    /// The first or the second block of each device's superblock.
    Superblocks(usize),
    SyncSuperblocks(usize, u64),
}

/// The state while it is written.
#[derive(Debug, Default)]
struct StateCopy {
    entries: Vec<PageEntry>,
    /// The index blocks that are not written yet, and the entry of the block written last.
    index_left: usize,
    next: PageEntry,
    is_waiting: bool,
}

/// The fields that all superblocks of an opening share.
#[derive(Clone, Debug)]
pub(crate) struct SuperblockBase {
    /// A superblock with the pool's UUID, its devices and sizes, this opening and its salt.
    pub(crate) superblock: Superblock,
    /// The devices.
    pub(crate) devices: Vec<DeviceRecord>,
}

/// Writes checkpoints.
#[derive(Debug)]
pub(crate) struct Checkpointer {
    base: SuperblockBase,
    /// The last durable checkpoint.
    number: u64,
    step: Step,
    wanted: bool,
    bytes: Vec<u8>,
    pushed: usize,
    copies: [StateCopy; 2],
    /// Blocks of the state of the durable checkpoint, and of the checkpoint under way.
    places: Vec<BlockPlace>,
    new_places: Vec<BlockPlace>,
    emptied: Vec<SegmentId>,
    sequence: u64,
    positions: [StreamPosition; STREAMS],
    superblocks_left: usize,
}

impl Checkpointer {
    /// For a pool whose durable checkpoint is `number`, with its state at `places`.
    pub(crate) fn new(base: SuperblockBase, number: u64, places: Vec<BlockPlace>) -> Self {
        Self {
            base,
            number,
            step: Step::Idle,
            wanted: false,
            bytes: Vec::new(),
            pushed: 0,
            copies: Default::default(),
            places,
            new_places: Vec::new(),
            emptied: Vec::new(),
            sequence: 0,
            positions: [StreamPosition::NONE; STREAMS],
            superblocks_left: 0,
        }
    }

    /// A checkpoint will begin when none is under way.
    pub(crate) fn want(&mut self) {
        self.wanted = true;
    }

    /// A checkpoint will begin unless one is under way.
    pub(crate) fn want_once(&mut self) {
        self.wanted |= self.step == Step::Idle;
    }

    /// Whether one is under way or wanted.
    pub(crate) fn is_busy(&self) -> bool {
        self.step != Step::Idle || self.wanted
    }

    /// The durable checkpoint.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Goes on as far as devices have answered.
    pub(crate) fn poll(&mut self, core: &mut EngineCore) {
        if core.failed.is_some() {
            return;
        }
        while self.advance(core) {}
    }

    /// Whether a step was finished.
    fn advance(&mut self, core: &mut EngineCore) -> bool {
        match self.step {
            Step::Idle if self.wanted => {
                self.wanted = false;
                core.map.begin_pass();
                self.step = Step::Early(MapPass::Nodes);
                true
            }
            Step::Idle => false,
            Step::Early(pass) => {
                if !write_pass(core, pass) {
                    return false;
                }
                self.step = match pass {
                    MapPass::Nodes => Step::Early(MapPass::Tables(0)),
                    // The cut is between rows: a row that is applied in part goes on first.
                    MapPass::Tables(_) if core.log.is_inside_row() => return false,
                    MapPass::Tables(_) => self.halt(core),
                };
                true
            }
            Step::Halted(pass) => {
                if !write_pass(core, pass) {
                    return false;
                }
                let level = match pass {
                    MapPass::Nodes => 0,
                    MapPass::Tables(level) => level + 1,
                };
                core.map.begin_pass();
                self.step = match level < core.map.tables_levels() {
                    true => Step::Halted(MapPass::Tables(level)),
                    false => self.begin_state(core),
                };
                true
            }
            Step::State => self.write_state(core),
            Step::Index => self.write_index(core),
            Step::SyncPages(ticket) => {
                let is_done = core.syncs.is_done(ticket);
                if is_done {
                    self.write_superblocks(core, 0);
                    self.step = Step::Superblocks(0);
                }
                is_done
            }
            Step::Superblocks(half) => {
                let is_done = self.superblocks_left == 0;
                if is_done {
                    self.step = Step::SyncSuperblocks(half, core.syncs.ticket());
                }
                is_done
            }
            Step::SyncSuperblocks(half, ticket) => {
                let is_done = core.syncs.is_done(ticket);
                if is_done && half == 0 {
                    // One after the other: a power cut damages one of the two at most.
                    self.write_superblocks(core, 1);
                    self.step = Step::Superblocks(1);
                } else if is_done {
                    self.finish(core);
                }
                is_done
            }
        }
    }

    /// The cut: from here on no row is applied.
    fn halt(&mut self, core: &mut EngineCore) -> Step {
        core.is_halted = true;
        core.log.cut();
        self.sequence = core.applied;
        self.positions = core.log.positions();
        core.map.begin_pass();
        Step::Halted(MapPass::Nodes)
    }

    fn begin_state(&mut self, core: &EngineCore) -> Step {
        self.emptied = core.segments.emptied(self.sequence).collect();
        self.bytes = encode(&core.map.state(), &core.segments.records(self.sequence, &self.places));
        let blocks = self.bytes.len().div_ceil(BLOCK_BYTES);
        let copy = || StateCopy {
            entries: vec![PageEntry::FREE; blocks],
            index_left: blocks.div_ceil(INDEX_ENTRIES),
            next: PageEntry::FREE,
            is_waiting: false,
        };
        self.copies = [copy(), copy()];
        self.pushed = 0;
        Step::State
    }

    fn write_state(&mut self, core: &mut EngineCore) -> bool {
        let blocks = self.copies[0].entries.len();
        while self.pushed < 2 * blocks {
            if !may_push(core) {
                return false;
            }
            let (copy, index) = (self.pushed / blocks, self.pushed % blocks);
            let rest = &self.bytes[index * BLOCK_BYTES..];
            let rest = &rest[..rest.len().min(BLOCK_BYTES)];
            let record = LogRecord::State { index: index as u64, crc: 0 };
            let owner = RecordOwner::State { copy: copy as u8, index: index as u64 };
            push(core, record, owner, |block| {
                block[..rest.len()].copy_from_slice(rest);
                block[rest.len()..].fill(0);
            });
            self.pushed += 1;
        }
        core.close_row(RowStream::Map);
        let is_done = core.map_rows_under_way() == 0;
        if is_done {
            self.step = Step::Index;
        }
        is_done
    }

    /// Index blocks are written from the last to the first, because each has the next one's entry.
    fn write_index(&mut self, core: &mut EngineCore) -> bool {
        for (number, copy) in (0u8..).zip(&mut self.copies) {
            if copy.is_waiting || copy.index_left == 0 || !may_push(core) {
                continue;
            }
            let index = copy.index_left - 1;
            let entries = copy.entries.chunks(INDEX_ENTRIES).nth(index).expect("one of the chunks");
            let word = LogRecord::STATE_INDEX | index as u64;
            let record = LogRecord::State { index: word, crc: 0 };
            let owner = RecordOwner::State { copy: number, index: word };
            let next = copy.next;
            copy.is_waiting = true;
            let mut whole = crate::block::Block::ZERO;
            encode_index(entries, next, &mut whole);
            push(core, record, owner, |block| block.copy_from_slice(&whole.0));
        }
        core.close_row(RowStream::Map);
        let is_done = self.copies.iter().all(|copy| copy.index_left == 0);
        if is_done {
            self.step = Step::SyncPages(core.syncs.ticket());
        }
        is_done
    }

    /// A row of the map is written: its pages are there from now on.
    pub(crate) fn row_written(&mut self, core: &mut EngineCore, row: Row) {
        let sequence = row.position.sequence;
        let places = row.places();
        for ((record, owner), PayloadPlace { place, .. }) in
            row.records.iter().zip(&row.owners).zip(places)
        {
            let entry = PageEntry::at(place, crc_of(record), sequence);
            match *owner {
                RecordOwner::Page(page, token) => {
                    core.map.written(page, token, entry, &mut core.segments);
                }
                RecordOwner::State { copy, index } => {
                    core.segments.gain(place, BLOCK_SECTORS);
                    self.new_places.push(place);
                    let copy = &mut self.copies[usize::from(copy)];
                    if index & LogRecord::STATE_INDEX == 0 {
                        copy.entries[index as usize] = entry;
                    } else {
                        copy.next = entry;
                        copy.index_left -= 1;
                        copy.is_waiting = false;
                    }
                }
                _ => unreachable!("a row of the map has nothing else"),
            }
        }
        core.log.retire(row);
    }

    fn write_superblocks(&mut self, core: &mut EngineCore, half: usize) {
        let mut superblock = self.base.superblock;
        superblock.checkpoint = (self.number + 1).into();
        superblock.sequence = self.sequence.into();
        superblock.state = [self.copies[0].next, self.copies[1].next];
        superblock.state_bytes = (self.bytes.len() as u64).into();
        superblock.streams = self.positions;
        for device in 0..self.base.devices.len() as u8 {
            superblock.device = device;
            let block = superblock_blocks(self.number + 1)[half];
            let mut buffer = core.buffer(1);
            superblock.encode(&mut buffer.blocks_mut()[0]);
            let op = DeviceOp::Write { block, buffer, blocks: 1 };
            core.submit(device, op, IoPurpose::Superblock);
            self.superblocks_left += 1;
        }
    }

    /// A device's answer for a superblock.
    pub(crate) fn superblock_answered(
        &mut self,
        core: &mut EngineCore,
        result: Result<(), PoolDeviceError>,
    ) {
        match result {
            Ok(()) => self.superblocks_left -= 1,
            Err(error) => core.failed = Some(error),
        }
    }

    fn finish(&mut self, core: &mut EngineCore) {
        self.number += 1;
        core.counters.checkpoints += 1;
        core.durable = core.durable.max(self.sequence);
        core.log.is_marked(self.sequence);
        core.is_halted = false;
        core.segments.release(&self.emptied);
        for place in std::mem::replace(&mut self.places, std::mem::take(&mut self.new_places)) {
            core.segments.lose(place, BLOCK_SECTORS);
        }
        core.segments.reopen_collected();
        self.step = Step::Idle;
    }
}

/// Whether a row has room for a page of the map.
fn may_push(core: &mut EngineCore) -> bool {
    if core.log.has_open(RowStream::Map) {
        return true;
    }
    if core.segments.free_count() == 0 {
        debug_assert!(false, "the floor for guests leaves segments for a checkpoint");
        core.failed = Some(PoolDeviceError::NoSpace);
        return false;
    }
    core.log.rows() < ROWS_MAX
}

fn push(
    core: &mut EngineCore,
    record: LogRecord,
    owner: RecordOwner,
    fill: impl FnOnce(&mut [u8; BLOCK_BYTES]),
) {
    let segments = &core.segments;
    let fill = |block: &mut crate::block::Block| fill(&mut block.0);
    if core.log.push(RowStream::Map, record, owner, fill, segments) {
        core.close_row(RowStream::Map);
    }
}

/// Writes the pages of a pass; whether all of them are written.
fn write_pass(core: &mut EngineCore, pass: MapPass) -> bool {
    loop {
        if !may_push(core) {
            return false;
        }
        match core.map.next_dirty(pass) {
            Ok(Some(page)) => {
                let record = page.record(0);
                let mut token = None;
                let EngineCore { map, log, segments, .. } = core;
                let owner = RecordOwner::None;
                let fill =
                    |block: &mut crate::block::Block| token = Some(map.copy_out(page, block));
                let is_full = log.push(RowStream::Map, record, owner, fill, segments);
                let token = token.expect("the page was copied");
                log.set_owner(RowStream::Map, RecordOwner::Page(page, token));
                if is_full {
                    core.close_row(RowStream::Map);
                }
            }
            Ok(None) => break,
            Err(MapError::Missing) => return false,
            // The map drops a page whose parent is damaged.
            Err(MapError::Damaged) => unreachable!("a page without a parent is not dirty"),
        }
    }
    core.close_row(RowStream::Map);
    core.map_rows_under_way() == 0
}
