//! Checkpoints: the map is written into the log, and the superblock names it.
//!
//! Dirty pages are written once while guests go on. Then no more rows are applied: the pages that
//! have become dirty meanwhile, the page tables level by level, and the state are written. So the
//! pages of a checkpoint are those of one moment without copies of them, and the halt is as long as
//! the pages take that became dirty in the first part. While the superblocks are written and
//! synced, rows are applied again.

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
    /// The superblock of a device that joins, before any other device says that it is there.
    Joining,
    SyncJoining(u64),
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

/// Another record for a place of the table of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableChange {
    /// The device's number.
    pub(crate) number: u8,
    /// The record that it has from then on.
    pub(crate) record: DeviceRecord,
}

/// Writes checkpoints.
#[derive(Debug)]
pub(crate) struct Checkpointer {
    /// A superblock with the pool's UUID, its devices and sizes, this opening and its salt.
    base: Superblock,
    /// The change of the table that the next checkpoint brings.
    wanted_change: Option<TableChange>,
    /// The change of the checkpoint under way, and the change of the last one.
    change: Option<TableChange>,
    pub(crate) changed: Option<TableChange>,
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
    pub(crate) fn new(base: Superblock, number: u64, places: Vec<BlockPlace>) -> Self {
        Self {
            base,
            wanted_change: None,
            change: None,
            changed: None,
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

    /// The next checkpoint changes the table of devices; `changed` has the change when that is
    /// durable. One change at a time.
    pub(crate) fn want_change(&mut self, change: TableChange) {
        debug_assert!(!self.has_change());
        self.wanted_change = Some(change);
        self.wanted = true;
    }

    /// Whether a change of the table is wanted or under way.
    pub(crate) fn has_change(&self) -> bool {
        self.wanted_change.is_some() || self.change.is_some()
    }

    /// Whether such a change is about a device.
    pub(crate) fn changes_device(&self, number: u8) -> bool {
        let changes = self.wanted_change.iter().chain(&self.change);
        changes.into_iter().any(|change| change.number == number)
    }

    /// The devices, as the durable checkpoint has them.
    pub(crate) fn table(&self) -> &Superblock {
        &self.base
    }

    /// Whether one is under way or wanted.
    pub(crate) fn is_busy(&self) -> bool {
        self.step != Step::Idle || self.wanted
    }

    /// The first checkpoint that has everything of now.
    pub(crate) fn next_number(&self) -> u64 {
        self.number + if self.step == Step::Idle { 1 } else { 2 }
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
            _ => self.advance_superblocks(core),
        }
    }

    /// The steps behind the index: superblocks and their syncs.
    fn advance_superblocks(&mut self, core: &mut EngineCore) -> bool {
        match self.step {
            Step::SyncPages(ticket) => {
                let is_done = core.syncs.is_done(ticket);
                if is_done {
                    self.step = self.first_superblocks(core);
                }
                is_done
            }
            Step::Joining => {
                let is_done = self.superblocks_left == 0;
                if is_done {
                    self.step = Step::SyncJoining(core.syncs.ticket());
                }
                is_done
            }
            Step::SyncJoining(ticket) => {
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
            step => unreachable!("{step:?} is no step of superblocks"),
        }
    }

    /// The cut: from here on no row is applied.
    fn halt(&mut self, core: &mut EngineCore) -> Step {
        core.is_halted = true;
        core.log.cut();
        let floor = core.moved_floor();
        core.log.leave(&mut core.segments, |segments| segments.free_staying() > floor);
        self.begin_change(core);
        self.sequence = core.applied;
        self.positions = core.log.positions();
        core.map.begin_pass();
        Step::Halted(MapPass::Nodes)
    }

    /// The change of the table of devices is part of this checkpoint.
    fn begin_change(&mut self, core: &mut EngineCore) {
        let Some(change) = self.wanted_change.take() else { return };
        let TableChange { number, record } = change;
        // Its free segments count until here, so guests may have taken the other devices' segments.
        let has_room = core.segments.free_staying() >= core.guest_floor();
        if record.is_used() {
            core.segments.announce(number, record.segments.get());
            core.announced = 0;
        } else if core.segments.is_clear(number) && has_room {
            // No stream may begin a segment there any more.
            core.segments.withdraw(number);
        } else {
            // Something came to it or the others' room went meanwhile, and it is left later.
            return;
        }
        self.change = Some(change);
    }

    /// The table of devices of the checkpoint under way.
    fn new_table(&self) -> Superblock {
        let mut table = self.base;
        if let Some(TableChange { number, record }) = self.change {
            table.set_device(number, record);
        }
        table
    }

    /// The device that joins with this checkpoint.
    fn joining(&self) -> Option<u8> {
        let TableChange { number, record } = self.change?;
        let known = &self.base.device_table[usize::from(number)];
        (record.is_used() && !known.is_used()).then_some(number)
    }

    /// A device that joins has its superblocks first: when any other device says that it is there,
    /// it knows so itself.
    fn first_superblocks(&mut self, core: &mut EngineCore) -> Step {
        let Some(device) = self.joining() else {
            self.write_superblocks(core, 0);
            return Step::Superblocks(0);
        };
        // It is synced from now on.
        core.devices.push(device);
        core.devices.sort_unstable();
        let mut superblock = self.new_superblock();
        superblock.joining = 1;
        // In the places of the next checkpoint's superblock as well, as in a new pool.
        for block in [0, 1].into_iter().flat_map(superblock_blocks) {
            self.write_superblock(core, &mut superblock, device, block);
        }
        Step::Joining
    }

    fn begin_state(&mut self, core: &EngineCore) -> Step {
        self.emptied = core.segments.emptied(self.sequence).collect();
        let records = core.segments.records(self.sequence, &self.places);
        self.bytes = encode(&core.map.state(), core.scrub.as_ref(), &records);
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
            // All that this checkpoint has is written, or kept here for the superblock: guests need
            // not wait for three syncs. Rows that are applied now are replayed behind it.
            core.is_halted = false;
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

    /// The superblock of the checkpoint under way.
    fn new_superblock(&self) -> Superblock {
        let mut superblock = self.new_table();
        superblock.checkpoint = (self.number + 1).into();
        superblock.sequence = self.sequence.into();
        superblock.state = [self.copies[0].next, self.copies[1].next];
        superblock.state_bytes = (self.bytes.len() as u64).into();
        superblock.streams = self.positions;
        superblock
    }

    fn write_superblocks(&mut self, core: &mut EngineCore, half: usize) {
        let mut superblock = self.new_superblock();
        let devices: Vec<u8> = superblock.numbers().collect();
        for device in devices {
            let block = superblock_blocks(self.number + 1)[half];
            self.write_superblock(core, &mut superblock, device, block);
        }
    }

    fn write_superblock(
        &mut self,
        core: &mut EngineCore,
        superblock: &mut Superblock,
        device: u8,
        block: u64,
    ) {
        let op = superblock_write(core, superblock, device, block);
        core.submit(device, op, IoPurpose::Superblock);
        self.superblocks_left += 1;
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

    /// The table of devices is durable: its devices and segments are used, and no others.
    fn finish_change(&mut self, core: &mut EngineCore) {
        let mut last = self.new_superblock();
        self.base = self.new_table();
        let Some(change) = self.change.take() else { return };
        self.changed = Some(change);
        let TableChange { number, record } = change;
        if record.is_used() {
            core.segments.arrive(number);
            core.segments.set_leaving(number, record.is_leaving());
            return;
        }
        core.devices.retain(|&device| device != number);
        // The device is told, so that it can be used for another pool. Nothing depends on it.
        last.devices = last.devices.max(number + 1);
        for block in [0, 1].into_iter().flat_map(superblock_blocks) {
            let op = superblock_write(core, &mut last, number, block);
            core.submit(number, op, IoPurpose::Farewell);
        }
    }

    fn finish(&mut self, core: &mut EngineCore) {
        self.finish_change(core);
        self.number += 1;
        core.counters.checkpoints += 1;
        core.durable = core.durable.max(self.sequence);
        core.log.is_marked(self.sequence);
        core.checkpointed = self.sequence;
        core.segments.release(&self.emptied);
        core.segments.settle_early();
        for place in std::mem::replace(&mut self.places, std::mem::take(&mut self.new_places)) {
            core.segments.lose(place, BLOCK_SECTORS);
        }
        core.segments.reopen_collected();
        self.step = Step::Idle;
    }
}

/// The write of a device's superblock.
fn superblock_write(
    core: &mut EngineCore,
    superblock: &mut Superblock,
    device: u8,
    block: u64,
) -> DeviceOp {
    superblock.device = device;
    let mut buffer = core.buffer(1);
    superblock.encode(&mut buffer.blocks_mut()[0]);
    DeviceOp::Write { block, buffer, blocks: 1 }
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
