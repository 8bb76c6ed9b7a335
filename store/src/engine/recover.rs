//! Making a pool, and opening one: superblocks, the checkpoint's state, and the rows behind it.

use super::checkpoint::Checkpointer;
use super::core::EngineCore;
use super::replay::{FoundRow, LogOwner, LogReader, StreamWalk, WINDOW_BLOCKS, read_patiently};
use super::rows::{RowLog, crc_of};
use super::scrub::ScrubState;
use super::segments::SegmentTable;
use super::state;
use crate::api::{DeviceIo, DeviceOp, PoolChange, PoolDeviceError, PoolDevices};
use crate::block::{BLOCK_BYTES, Block, BlockBuffer};
use crate::format::{
    BLOCK_SECTORS, BlockPlace, DEVICE_HEADER_BLOCKS, DEVICES_MAX, DeviceRecord, LogRecord,
    PageEntry, PayloadPlace, SEGMENT_BLOCKS_MAX, SEGMENTS_PER_DEVICE_MAX, STREAMS, Superblock,
    SuperblockError, TagDomain, payload_places, superblock_blocks, tag_crc, tag_of,
};
use crate::layout::{CACHE_BLOCKS_MIN, PoolLayout, PoolOpenError, PoolOptions};
use crate::map::{LiveBlocks, MapError, PoolMap};

/// The fewest segments of a pool: those of the streams, of a checkpoint, of an opening after a
/// crash and of collection, and some for data.
pub const SEGMENTS_MIN: u64 = 32;

/// The fewest blocks of a segment. Smaller ones are for tests alone.
const SEGMENT_BLOCKS_MIN: u32 = 8;

/// Rows are found until they have so many records, and applied then: so many that a device has work
/// while their pages of the map are read.
const RECORDS_TOGETHER: usize = 1024;

/// Pages of the map that are read together: as many as keep a device busy.
const LOADS_TOGETHER: usize = 128;

/// Levels of the map from a root to a page of data: four nodes with an entry each, and the page
/// table.
const MAP_LEVELS_MAX: usize = 16;

/// Makes a pool: writes its first superblocks. All that the devices had is lost.
///
/// # Errors
/// If the layout is impossible or a device fails.
pub fn format_pool(
    devices: &mut dyn PoolDevices,
    layout: &PoolLayout,
) -> Result<(), PoolOpenError> {
    let refuse = |text: String| Err(PoolOpenError::Devices(text));
    let count = layout.devices.len();
    if count == 0 || count > DEVICES_MAX {
        return refuse(format!("a pool has 1 to {DEVICES_MAX} devices, not {count}"));
    }
    if !(SEGMENT_BLOCKS_MIN..=SEGMENT_BLOCKS_MAX).contains(&layout.segment_blocks) {
        return refuse(format!(
            "a segment has {SEGMENT_BLOCKS_MIN} to {SEGMENT_BLOCKS_MAX} blocks"
        ));
    }
    let mut superblock = Superblock::new(layout.uuid, layout.segment_blocks);
    superblock.devices = count as u8;
    let mut total = 0;
    for (record, device) in superblock.device_table.iter_mut().zip(&layout.devices) {
        let blocks = device.blocks.saturating_sub(DEVICE_HEADER_BLOCKS);
        let segments = blocks / u64::from(layout.segment_blocks);
        let segments = segments.min(u64::from(SEGMENTS_PER_DEVICE_MAX) - 1);
        total += segments;
        *record = DeviceRecord::new(device.uuid, segments as u32);
    }
    if total < SEGMENTS_MIN {
        return refuse(format!(
            "the devices have room for {total} segments, and a pool needs {SEGMENTS_MIN}: make \
             them larger or the segments smaller"
        ));
    }
    let mut buffer = BlockBuffer::new(1);
    for device in 0..count as u8 {
        superblock.device = device;
        let failed = |error| PoolOpenError::Device { device, error };
        superblock.encode(&mut buffer.blocks_mut()[0]);
        // In the places of the next checkpoint's superblock as well: a place without a whole
        // superblock has always lost one.
        for block in [0, 1].into_iter().flat_map(superblock_blocks) {
            devices.write(device, block, &buffer, 1).map_err(failed)?;
        }
        devices.sync(device).map_err(failed)?;
    }
    Ok(())
}

/// Opens a pool up to the point at which a checkpoint of the new opening must be written.
pub(crate) fn open(
    devices: &mut dyn PoolDevices,
    sizes_blocks: &[u64],
    options: &PoolOptions,
    salt: u128,
) -> Result<(EngineCore, Checkpointer), PoolOpenError> {
    assert!(options.cache_blocks >= CACHE_BLOCKS_MIN);
    let superblock = read_superblocks(devices, sizes_blocks)?;
    let mut recovery = Recovery {
        uuid: superblock.uuid,
        segments: table_of_segments(&superblock),
        map: PoolMap::new(superblock.uuid, options.cache_blocks),
        state_places: Vec::new(),
        scrub: None,
        reader: LogReader::new(devices),
        wants_copy: false,
        asks_ahead: false,
    };
    if superblock.state_bytes.get() > 0 {
        recovery.load_state(&superblock, options.cache_blocks)?;
    }
    recovery.map.set_salt(superblock.salt.get());
    let last = recovery.replay(&superblock)?;
    let Recovery { mut segments, mut map, state_places, scrub, .. } = recovery;
    map.set_salt(salt);
    let opening = superblock.opening.get() + 1;
    let log = RowLog::new(superblock.uuid, salt as u64, opening, last, &mut segments);
    let log = log.ok_or(PoolOpenError::NoRoom)?;
    let mut base = superblock;
    base.opening = opening.into();
    base.salt = salt.into();
    let number = superblock.checkpoint.get();
    let devices = superblock.numbers().collect();
    let mut core = EngineCore::new(superblock.uuid, salt, devices, map, segments, log);
    core.scrub = scrub;
    Ok((core, Checkpointer::new(base, number, state_places)))
}

/// All segments of a pool, as free ones.
fn table_of_segments(superblock: &Superblock) -> SegmentTable {
    let table = &superblock.device_table[..usize::from(superblock.devices)];
    let counts: Vec<u32> = table.iter().map(|device| device.segments.get()).collect();
    let mut segments = SegmentTable::new(superblock.segment_blocks.get(), &counts);
    for number in superblock.numbers() {
        let is_leaving = table[usize::from(number)].is_leaving();
        segments.set_leaving(number, is_leaving);
    }
    segments
}

/// The superblock of a device.
struct FoundSuperblock {
    newest: Result<Superblock, PoolOpenError>,
    /// The slots of which no block has a superblock.
    damaged: [bool; 2],
}

impl FoundSuperblock {
    /// The superblock, if it counts for the pool: a device that joins may not have come so far.
    fn joined(&self) -> Option<&Superblock> {
        self.newest.as_ref().ok().filter(|superblock| superblock.joining == 0)
    }
}

/// The newest superblock, which all of the pool's devices have when this returns.
fn read_superblocks(
    devices: &mut dyn PoolDevices,
    sizes_blocks: &[u64],
) -> Result<Superblock, PoolOpenError> {
    let mut found: Vec<Option<FoundSuperblock>> = Vec::new();
    for (device, &blocks) in (0u8..).zip(sizes_blocks) {
        let is_there = blocks > 0;
        found.push(is_there.then(|| read_superblock(devices, device)));
    }
    if found.iter().all(Option::is_none) {
        return Err(PoolOpenError::Devices("a pool has at least one device".into()));
    }
    let whole = found.iter().flatten().filter_map(FoundSuperblock::joined);
    let newest = whole.max_by_key(|superblock| superblock.checkpoint.get()).copied();
    let Some(newest) = newest else {
        let error = found.into_iter().flatten().find_map(|found| found.newest.err());
        return Err(error.unwrap_or_else(|| {
            PoolOpenError::Devices("the devices joined a pool whose own devices are missing".into())
        }));
    };
    for number in newest.numbers() {
        let own = found.get(usize::from(number)).and_then(Option::as_ref);
        if let Some(FoundSuperblock { newest: Err(error), .. }) = own {
            return Err(error.clone());
        }
    }
    // Other devices do not count: they were to join, or have left.
    let is_damaged = |slot: usize| {
        let mut own = newest.numbers().filter_map(|number| found.get(usize::from(number)));
        own.any(|found| found.as_ref().is_some_and(|found| found.damaged[slot]))
    };
    // The two blocks are written one after the other, so a power cut damages one at most.
    if is_damaged((newest.checkpoint.get() + 1) as usize % 2) {
        return Err(PoolOpenError::Damaged(format!(
            "both copies of a superblock are damaged, which may be newer than the one that is \
             left, of the checkpoint {}: take the pool from a backup",
            newest.checkpoint
        )));
    }
    let found = check_devices(&newest, found, sizes_blocks)?;
    for (device, superblock) in found {
        let failed = |error| PoolOpenError::Device { device, error };
        if superblock.checkpoint != newest.checkpoint || superblock.joining != 0 {
            let mut buffer = BlockBuffer::new(1);
            let mut own = newest;
            own.device = device;
            own.encode(&mut buffer.blocks_mut()[0]);
            // One after the other, as a checkpoint writes them: a power cut damages one at most.
            for block in superblock_blocks(newest.checkpoint.get()) {
                devices.write(device, block, &buffer, 1).map_err(failed)?;
                devices.sync(device).map_err(failed)?;
            }
        }
        // A checkpoint that was read may be in a volatile cache, and segments that it frees will
        // be written: it must not be lost.
        devices.sync(device).map_err(failed)?;
    }
    Ok(newest)
}

/// The newest superblock of a device.
fn read_superblock(devices: &mut dyn PoolDevices, device: u8) -> FoundSuperblock {
    let mut damaged = [false; 2];
    let mut buffer = BlockBuffer::new(1);
    let mut best: Option<Superblock> = None;
    let mut reason = PoolOpenError::Superblock { device, error: SuperblockError::NoPool };
    for (slot, is_damaged) in (0..).zip(&mut damaged) {
        let mut is_whole = false;
        for block in superblock_blocks(slot) {
            let read = read_patiently(devices, device, block, &mut buffer);
            let superblock = read.and_then(|()| {
                let found = Superblock::decode(&buffer.blocks()[0]);
                found.map_err(|error| PoolOpenError::Superblock { device, error })
            });
            match superblock {
                Ok(superblock) => {
                    is_whole = true;
                    // A device that joined says so in one slot, and not yet in the other slot.
                    let age = |it: &Superblock| (it.checkpoint.get(), it.joining == 0);
                    let is_newer = |best: &Superblock| age(&superblock) > age(best);
                    if best.as_ref().is_none_or(is_newer) {
                        best = Some(superblock);
                    }
                }
                // A slot that was never written is no reason.
                Err(PoolOpenError::Superblock { error: SuperblockError::NoPool, .. }) => {}
                Err(error) => reason = error,
            }
        }
        *is_damaged = !is_whole;
    }
    FoundSuperblock { newest: best.ok_or(reason), damaged }
}

/// The devices of the pool, which must be all there, each in its place, and long enough. Others
/// that are given are of no interest.
fn check_devices(
    newest: &Superblock,
    found: Vec<Option<FoundSuperblock>>,
    sizes_blocks: &[u64],
) -> Result<Vec<(u8, Superblock)>, PoolOpenError> {
    let refuse = |text: String| Err(PoolOpenError::Devices(text));
    let mut of_pool = Vec::new();
    let mut found: Vec<_> = found.into_iter().map(|found| found.map(|it| it.newest)).collect();
    for number in newest.numbers() {
        let index = usize::from(number);
        let Some(superblock) = found.get_mut(index).and_then(Option::take) else {
            let (count, given) = (newest.numbers().count(), sizes_blocks.len());
            return refuse(format!(
                "the pool has {count} devices, and {given} are given: number {index} is missing"
            ));
        };
        let superblock = superblock?;
        if superblock.uuid != newest.uuid {
            return refuse(format!("device {index} belongs to another pool"));
        }
        let place = usize::from(superblock.device);
        if place != index {
            return refuse(format!(
                "device {index} is the pool's device {place}: it is listed twice or in the wrong \
                 order"
            ));
        }
        if !newest.has_device(number, superblock.own_uuid()) {
            return refuse(format!("device {index} was replaced by another one"));
        }
        if superblock.checkpoint.get() + 1 < newest.checkpoint.get() {
            return refuse(format!(
                "device {index} is an old copy: its checkpoint is {} and that of the pool {}",
                superblock.checkpoint, newest.checkpoint
            ));
        }
        let segments = newest.device_table[index].segments.get();
        let needed =
            DEVICE_HEADER_BLOCKS + u64::from(segments) * u64::from(newest.segment_blocks.get());
        let blocks = sizes_blocks[index];
        if blocks < needed {
            return refuse(format!(
                "device {index} has {blocks} blocks and had at least {needed}: it was cut off"
            ));
        }
        of_pool.push((number, superblock));
    }
    if of_pool.is_empty() {
        return refuse("the superblock has no devices".into());
    }
    Ok(of_pool)
}

struct Recovery<'a> {
    uuid: [u8; 16],
    segments: SegmentTable,
    map: PoolMap,
    state_places: Vec<BlockPlace>,
    scrub: Option<ScrubState>,
    reader: LogReader<'a>,
    /// The last change was damaged: its copy follows.
    wants_copy: bool,
    /// No page was missing since rows were found: the pages of all of them are loaded with the
    /// first missing page.
    asks_ahead: bool,
}

fn lost_change(sequence: u64) -> PoolOpenError {
    PoolOpenError::Damaged(format!(
        "both copies of the change in row {sequence} are damaged: take the pool from a backup"
    ))
}

impl Recovery<'_> {
    /// A block of the state, proved by its entry.
    fn state_block(&mut self, entry: &PageEntry, index: u64) -> Option<Block> {
        let place = entry.place()?;
        let mut block = Block::ZERO;
        self.reader.read(&self.segments, place, &mut block);
        let sequence = entry.sequence.get();
        let crc = tag_crc(&self.uuid, TagDomain::State, index, sequence, &block.0);
        (crc == entry.crc.get()).then_some(block)
    }

    /// The entries of a copy's blocks, and the places of its index; `None` for a damaged index.
    fn state_index(&mut self, first: PageEntry, blocks: usize) -> Option<Vec<PageEntry>> {
        let mut entries = Vec::new();
        let mut next = first;
        for index in 0..blocks.div_ceil(state::INDEX_ENTRIES) as u64 {
            let block = self.state_block(&next, LogRecord::STATE_INDEX | index)?;
            self.state_places.extend(next.place());
            let (more, following) = state::decode_index(&block);
            entries.extend(more);
            next = following;
        }
        (entries.len() == blocks).then_some(entries)
    }

    fn load_state(
        &mut self,
        superblock: &Superblock,
        cache_blocks: usize,
    ) -> Result<(), PoolOpenError> {
        let damaged = |text: &str| {
            PoolOpenError::Damaged(format!(
                "the checkpoint {} {text}: take the pool from a backup",
                superblock.checkpoint
            ))
        };
        let length = usize::try_from(superblock.state_bytes.get()).unwrap_or(usize::MAX);
        let blocks = length.div_ceil(BLOCK_BYTES);
        let pool = self.segments.total() * self.segments.segment_blocks() as usize;
        if blocks > pool {
            return Err(damaged("says that it is longer than the pool"));
        }
        let copies = superblock.state.map(|first| self.state_index(first, blocks));
        let mut bytes = Vec::with_capacity(blocks * BLOCK_BYTES);
        for index in 0..blocks {
            let entries: Vec<PageEntry> =
                copies.iter().flatten().map(|entries| entries[index]).collect();
            let block = entries.iter().find_map(|entry| self.state_block(entry, index as u64));
            // A copy that cannot be read is no loss while the other one can.
            let failed = self.reader.check();
            if block.is_none() {
                failed?;
            }
            let block = block.ok_or_else(|| damaged("is damaged in both copies"))?;
            bytes.extend_from_slice(&block.0);
            self.state_places.extend(entries.iter().filter_map(PageEntry::place));
        }
        bytes.truncate(length);
        let state::DecodedState { map, scrub, segments: records } =
            state::decode(&bytes).map_err(|text| damaged(&text))?;
        self.scrub = scrub;
        self.map =
            PoolMap::from_state(self.uuid, cache_blocks, map).map_err(|text| damaged(&text))?;
        let sequence = superblock.sequence.get();
        self.segments.restore(&records, sequence).map_err(|text| damaged(&text))?;
        let end = self.segments.segment_blocks();
        for &place in &self.state_places {
            if self.segments.has(place) {
                self.segments.found_used(place.segment);
                // How far it is written is not known: the state was written after its own list.
                self.segments.note_row(place.segment, end, superblock.sequence.get());
                self.segments.gain(place, BLOCK_SECTORS);
            }
        }
        Ok(())
    }

    /// Applies all rows behind the checkpoint; the sequence of the last one.
    fn replay(&mut self, superblock: &Superblock) -> Result<u64, PoolOpenError> {
        let durable = self.durable_mark(superblock);
        let mut last = superblock.sequence.get();
        let mut walks = walks(superblock);
        loop {
            let (rows, has_ended) = self.next_rows(&mut walks, last, durable);
            self.reader.check()?;
            self.asks_ahead = true;
            for (index, row) in rows.iter().enumerate() {
                self.apply_row(&rows[index..])?;
                last = row.sequence;
            }
            if !has_ended {
                continue;
            }
            if last >= durable {
                return if self.wants_copy { Err(lost_change(last)) } else { Ok(last) };
            }
            return Err(PoolOpenError::Damaged(format!(
                "the head of row {} and its copy are damaged, and rows up to {durable} were \
                 flushed: take the pool from a backup",
                last + 1
            )));
        }
    }

    /// Some rows behind the row `last`, and whether the log ends there.
    fn next_rows(
        &mut self,
        walks: &mut [StreamWalk],
        mut last: u64,
        durable: u64,
    ) -> (Vec<FoundRow>, bool) {
        let (mut rows, mut records) = (Vec::new(), 0);
        while records < RECORDS_TOGETHER {
            let expected = last + 1;
            let mut has_row = None;
            for (index, walk) in walks.iter_mut().enumerate() {
                walk.proves = expected > durable;
                let row = walk.peek(&mut self.reader, &self.segments);
                if row.is_some_and(|row| row.sequence == expected) {
                    has_row = Some(index);
                }
            }
            let row = has_row.map(|index| walks[index].advance(&self.segments));
            let is_proved = expected <= durable;
            let row = row.filter(|row| is_proved || (!row.is_copy && self.is_whole(row)));
            let Some(row) = row else { return (rows, true) };
            records += 1 + row.records.len();
            rows.push(row);
            last = expected;
        }
        (rows, false)
    }

    /// The highest row that a head behind the checkpoint calls durable. A stream's later heads
    /// never say less, so one head of each segment is enough, and all heads of the last one.
    fn durable_mark(&mut self, superblock: &Superblock) -> u64 {
        let mut mark = superblock.sequence.get();
        for walk in &mut walks(superblock) {
            let mut segment = None;
            while let Some(row) = walk.peek(&mut self.reader, &self.segments) {
                mark = mark.max(row.durable);
                let is_new = segment.replace(row.place.segment) != Some(row.place.segment);
                if !is_new || !walk.skip_segment(&mut self.reader, &self.segments) {
                    walk.advance(&self.segments);
                }
            }
        }
        mark
    }

    /// Whether each payload of a row is there.
    fn is_whole(&mut self, row: &FoundRow) -> bool {
        let blocks = 1 + u32::from(row.payload);
        let ahead = WINDOW_BLOCKS;
        let found = self.reader.ahead(&self.segments, row.stream, row.place, blocks, ahead);
        let with_places = || with_places(row).filter(|(record, _)| record.has_payload());
        let wrong: Vec<_> = with_places()
            .filter(|(record, at)| {
                let behind = usize::from(at.place.block - row.place.block);
                !is_payload(&self.uuid, record, row.sequence, *at, &found[behind..])
            })
            .collect();
        // A transfer may have been disturbed: the medium is asked once more.
        wrong.iter().all(|(record, at)| {
            let mut blocks = [Block::ZERO, Block::ZERO];
            let span = record.form().map_or(0, |form| form.span(at.offset));
            for (behind, block) in (0..span as u16).zip(&mut blocks) {
                let place = BlockPlace { block: at.place.block + behind, ..at.place };
                self.reader.read(&self.segments, place, block);
            }
            is_payload(&self.uuid, record, row.sequence, *at, &blocks)
        })
    }

    /// Applies the first one of these rows. The others follow.
    fn apply_row(&mut self, rows: &[FoundRow]) -> Result<(), PoolOpenError> {
        let row = &rows[0];
        let end = u32::from(row.place.block) + 1 + u32::from(row.payload);
        if row.place.block == 0 {
            self.segments.begin_again(row.place.segment);
        }
        self.segments.found_used(row.place.segment);
        self.segments.note_row(row.place.segment, end, row.sequence);
        self.segments.note_ordered(row.place.segment);
        for (record, at) in with_places(row) {
            let mut change = None;
            if let LogRecord::Change { is_copy, .. } = record {
                if is_copy && !self.wants_copy {
                    continue;
                }
                change = self.change(row, &record, at.place);
                // The copy may be in the next row, if a segment ends between the two.
                self.wants_copy = change.is_none();
                match (&change, is_copy) {
                    (Some(_), _) => {}
                    (None, false) => continue,
                    (None, true) => return Err(lost_change(row.sequence)),
                }
            }
            // A damaged page of the map costs the request that needs it, as it did before.
            while let Err(MapError::Missing) =
                self.map.apply(&record, at, row.sequence, change.as_ref(), &mut self.segments)
            {
                self.load_pages();
                if std::mem::take(&mut self.asks_ahead) {
                    self.load_ahead(rows);
                }
            }
            self.reader.check()?;
        }
        self.map.evict();
        Ok(())
    }

    /// Loads what these rows need, a level of the map after the other: the reads of a level are
    /// done together.
    fn load_ahead(&mut self, rows: &[FoundRow]) {
        for _ in 0..MAP_LEVELS_MAX {
            let records = rows.iter().flat_map(|row| &row.records);
            records.for_each(|record| self.map.ask_for(record));
            if self.load_pages() == 0 {
                return;
            }
        }
    }

    fn change(
        &mut self,
        row: &FoundRow,
        record: &LogRecord,
        place: BlockPlace,
    ) -> Option<PoolChange> {
        let LogRecord::Change { bytes, crc, .. } = *record else { return None };
        let mut block = Block::ZERO;
        self.reader.read(&self.segments, place, &mut block);
        let found = tag_crc(&self.uuid, TagDomain::Change, 0, row.sequence, &block.0);
        let json = block.0.get(..usize::from(bytes)).filter(|_| found == crc)?;
        serde_json::from_slice(json).ok()
    }

    /// Loads the pages that the map waits for; how many.
    fn load_pages(&mut self) -> usize {
        let mut loaded = 0;
        loop {
            let wanted = std::iter::from_fn(|| self.map.next_load());
            let wanted: Vec<_> = wanted.take(LOADS_TOGETHER).collect();
            if wanted.is_empty() {
                return loaded;
            }
            loaded += wanted.len();
            let places: Vec<_> = wanted.iter().map(|(_, entry)| entry.place()).collect();
            let map = &mut self.map;
            self.reader.read_all(&self.segments, &places, |index, block| {
                map.loaded(wanted[index].0, Some(block));
            });
        }
    }
}

/// Whether a record's payload, which begins in the first of these blocks, has its check.
fn is_payload(
    uuid: &[u8; 16],
    record: &LogRecord,
    row: u64,
    at: PayloadPlace,
    blocks: &[Block],
) -> bool {
    let Some(form) = record.form() else { return true };
    let (domain, number) = tag_of(record);
    tag_crc(uuid, domain, number, row, form.bytes_in(at.offset, blocks)) == crc_of(record)
}

fn walks(superblock: &Superblock) -> [StreamWalk; STREAMS - 1] {
    let owner = LogOwner {
        uuid: superblock.uuid,
        salt: superblock.salt.get() as u64,
        opening: superblock.opening.get(),
    };
    let last = superblock.sequence.get();
    [0, 1]
        .map(|stream| StreamWalk::new(owner, stream, superblock.streams[usize::from(stream)], last))
}

/// The records of a row, with the places of their payloads.
fn with_places(row: &FoundRow) -> impl Iterator<Item = (LogRecord, PayloadPlace)> + '_ {
    row.records.iter().copied().zip(payload_places(row.place, &row.records))
}

/// Does a request on devices that answer at once.
pub(crate) fn perform(
    devices: &mut dyn PoolDevices,
    io: DeviceIo,
) -> (Option<BlockBuffer>, Result<(), PoolDeviceError>) {
    let device = io.device;
    match io.op {
        DeviceOp::Read { block, mut buffer, blocks } => {
            let result = devices.read(device, block, &mut buffer, blocks);
            (Some(buffer), result)
        }
        DeviceOp::Write { block, buffer, blocks } => {
            let result = devices.write(device, block, &buffer, blocks);
            (Some(buffer), result)
        }
        DeviceOp::Sync => (None, devices.sync(device)),
    }
}
