//! The state that all parts of the engine work on, and its devices.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::rows::{RecordOwner, Row, RowLog, RowStream};
use super::scrub::ScrubState;
use super::segments::{SegmentRecord, SegmentTable};
use super::slab::TokenTable;
use super::sync::SyncRounds;
use crate::api::{
    DeviceIo, DeviceOp, PoolCompletion, PoolDeviceError, PoolError, RequestTag, VolumeId,
};
use crate::block::{Block, BlockBuffer};
use crate::contents::Contents;
use crate::format::{
    BlockPlace, DEVICE_HEADER_BLOCKS, DEVICES_MAX, LogRecord, PageEntry, RowPosition, STREAMS,
    TableKind,
};
use crate::map::{MapError, MapPage, MomentRecord, PageAlias, PoolMap};
use crate::pack::Packer;
use seal::{PageKey, SealKeys};

/// Writes of a row that fail before the pool stops taking changes. A device that fails once may
/// recover; the place of the row is the same each time, since the log has no holes.
const ROW_FAILURES_MAX: u8 = 3;

/// The pause before a write is tried again for which the host had no space.
const NO_SPACE_PAUSE_NS: u64 = 100_000_000;

/// Buffers of one size that are kept: those of the requests that are under way together.
const SPARE_BUFFERS_MAX: usize = 256;

/// A page that is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadPage {
    /// Its number.
    pub(crate) number: u64,
    /// Its entry.
    pub(crate) entry: PageEntry,
    /// The alias of it that the block has.
    pub(crate) alias: Option<PageAlias>,
}

/// A part of a read that a device works on.
#[derive(Debug)]
pub(crate) struct ReadPart {
    /// The read.
    pub(crate) read: u64,
    /// The first block, counted from the read's start.
    pub(crate) first: u32,
    /// The key of the pages, which have all the same seal context; `None` for plain ones.
    pub(crate) key: Option<Arc<PageKey>>,
    /// The pages, in their order.
    pub(crate) pages: Vec<ReadPage>,
    /// Whether it was read again after a check had failed.
    pub(crate) is_second: bool,
}

/// A page that is scrubbed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScrubPage {
    /// The table that refers to it.
    pub(crate) kind: TableKind,
    /// Its number.
    pub(crate) number: u64,
    /// Its entry when it was asked for.
    pub(crate) entry: PageEntry,
    /// Whether it was read again after its check had failed.
    pub(crate) is_second: bool,
}

/// A page that is read to be sealed anew.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResealPage {
    pub(crate) number: u64,
    pub(crate) entry: PageEntry,
    pub(crate) family: u32,
}

/// A page that is read to be compared with another page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TwinRead {
    /// Which payload of the row in the window may have its content.
    pub(crate) payload: usize,
    /// The entry of that payload's page.
    pub(crate) page: PageEntry,
    /// The page that is read.
    pub(crate) number: u64,
    /// Its entry.
    pub(crate) entry: PageEntry,
    /// The hash of both contents.
    pub(crate) hash: u64,
    /// The number of the payload's page.
    pub(crate) of: u64,
}

/// The reason of a request to a device.
#[derive(Debug)]
pub(crate) enum IoPurpose {
    /// A row of guests or moved pages, by its sequence.
    OrderedRow(u64),
    /// A row of the map.
    MapRow(Box<Row>),
    /// A part of a read.
    Read(ReadPart),
    /// A page of the map, with its place; whether it is the second read.
    Load(MapPage, BlockPlace, bool),
    /// A device's part of a round.
    Sync,
    /// A superblock.
    Superblock,
    /// The word to a device that it has left the pool.
    Farewell,
    /// A page that is scrubbed.
    Scrub(ScrubPage),
    /// A page that is sealed anew.
    Reseal(ResealPage),
    /// A page that is compared with another page.
    Twin(TwinRead),
    /// A piece of a segment that is collected.
    Window,
}

/// A row whose write will be tried again.
#[derive(Debug)]
enum WaitingRow {
    Ordered(u64),
    Map(Box<Row>),
}

/// The counts of a pool since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolCounters {
    /// Blocks that guests have written.
    pub guest_blocks: u64,
    /// Blocks of rows that were written for guests, heads included.
    pub guest_row_blocks: u64,
    /// The same for moved pages.
    pub moved_row_blocks: u64,
    /// The same for pages of the map.
    pub map_row_blocks: u64,
    /// Pages that collection has moved.
    pub moved_pages: u64,
    /// Those that a codec has made smaller: each was acknowledged long before.
    pub compressed_pages: u64,
    /// Those on which a codec gained nothing.
    pub incompressible_pages: u64,
    /// Pages whose content was looked for, each long after it was acknowledged.
    pub hashed_pages: u64,
    /// Pages that were read because their content seemed to be the same.
    pub compared_pages: u64,
    /// Those that differed.
    pub different_pages: u64,
    /// Pages that share the content of another page, or are zeroes, from then on.
    pub shared_pages: u64,
    /// Segments that were collected.
    pub collected_segments: u64,
    /// Checkpoints.
    pub checkpoints: u64,
    /// Rounds of syncs.
    pub syncs: u64,
    /// Blocks that were looked up for a read or a write and had all of their pages of the map in
    /// memory.
    pub map_hits: u64,
    /// The same of blocks that had to wait for a page of the map.
    pub map_misses: u64,
    /// Reads of pages of the map.
    pub map_loads: u64,
    /// Blocks whose content did not match their check, on two reads.
    pub damaged_blocks: u64,
    /// Requests that were not taken because the pool was full.
    pub full_refusals: u64,
    /// Requests that were not taken because of their volume's limit, or of others' reservations.
    pub quota_refusals: u64,
}

/// The state that the parts of the engine share.
#[derive(Debug)]
pub(crate) struct EngineCore {
    pub(crate) uuid: [u8; 16],
    /// The salt of this opening.
    pub(crate) salt: u128,
    /// The keys of encrypted volumes.
    pub(crate) keys: SealKeys,
    /// The numbers of the devices.
    pub(crate) devices: Vec<u8>,
    pub(crate) map: PoolMap,
    pub(crate) segments: SegmentTable,
    pub(crate) log: RowLog,
    pub(crate) syncs: SyncRounds,
    pub(crate) packer: Packer,
    /// Finds pages with the same content.
    pub(crate) contents: Contents,
    /// Aliases that are pushed and not applied.
    pub(crate) aliases_under_way: usize,
    /// The pass over all pages, as checkpoints keep it.
    pub(crate) scrub: Option<ScrubState>,
    pub(crate) counters: PoolCounters,
    pub(crate) now_ns: u64,
    /// All rows up to this one have changed the map.
    pub(crate) applied: u64,
    /// All rows up to this one survive a power cut.
    pub(crate) durable: u64,
    /// All rows up to this are in the durable checkpoint of this opening; 0 before there is one.
    pub(crate) checkpointed: u64,
    /// A checkpoint's cut is being written: no row is applied.
    pub(crate) is_halted: bool,
    /// A device failed: no more changes.
    pub(crate) failed: Option<PoolDeviceError>,
    /// The host has no space for a row.
    pub(crate) no_space: bool,
    /// Segments that the next checkpoint will list beside those of now.
    pub(crate) announced: usize,
    /// Pages that were sealed anew since the pool was opened.
    pub(crate) resealed: u64,
    ios: TokenTable<(u8, IoPurpose)>,
    /// How many of them each device has.
    device_ios: [u32; DEVICES_MAX],
    out: VecDeque<DeviceIo>,
    completions: VecDeque<PoolCompletion>,
    waiting_rows: Vec<(u64, WaitingRow)>,
    loads: usize,
    map_rows: usize,
    spare_single: Vec<BlockBuffer>,
    spare_run: Vec<BlockBuffer>,
}

/// The longest run of pages that a single read of a device takes.
pub(crate) const RUN_BLOCKS_MAX: usize = 32;

/// The most reads of pages of the map at once.
const LOADS_MAX: usize = 64;

impl EngineCore {
    /// The shared state of a pool whose map, segments and log are ready.
    pub(crate) fn new(
        uuid: [u8; 16],
        salt: u128,
        devices: Vec<u8>,
        map: PoolMap,
        segments: SegmentTable,
        log: RowLog,
    ) -> Self {
        let applied = log.sequence();
        Self {
            uuid,
            salt,
            keys: SealKeys::default(),
            devices,
            map,
            segments,
            log,
            syncs: SyncRounds::default(),
            packer: Packer::new(),
            contents: Contents::new(salt),
            aliases_under_way: 0,
            scrub: None,
            counters: PoolCounters::default(),
            now_ns: 0,
            applied,
            durable: applied,
            checkpointed: 0,
            is_halted: false,
            failed: None,
            no_space: false,
            announced: 0,
            resealed: 0,
            ios: TokenTable::new(),
            device_ios: [0; DEVICES_MAX],
            out: VecDeque::new(),
            completions: VecDeque::new(),
            waiting_rows: Vec::new(),
            loads: 0,
            map_rows: 0,
            spare_single: Vec::new(),
            spare_run: Vec::new(),
        }
    }

    /// The block of the device that a place is.
    pub(crate) fn device_block(&self, place: BlockPlace) -> u64 {
        device_block(place, self.segments.segment_blocks())
    }

    /// A request to a device.
    pub(crate) fn submit(&mut self, device: u8, op: DeviceOp, purpose: IoPurpose) {
        let token = self.ios.insert((device, purpose));
        self.device_ios[usize::from(device)] += 1;
        self.out.push_back(DeviceIo { token, device, op });
    }

    /// A read of a place and what is behind it.
    pub(crate) fn submit_read(
        &mut self,
        place: BlockPlace,
        buffer: BlockBuffer,
        blocks: u32,
        purpose: IoPurpose,
    ) {
        let block = self.device_block(place);
        self.submit(place.segment.device(), DeviceOp::Read { block, buffer, blocks }, purpose);
    }

    /// The next request to a device.
    pub(crate) fn next_io(&mut self) -> Option<DeviceIo> {
        self.out.pop_front()
    }

    /// The request of a token, which a device has answered.
    pub(crate) fn answered(&mut self, token: u64) -> Option<IoPurpose> {
        let (device, purpose) = self.ios.remove(token)?;
        self.device_ios[usize::from(device)] -= 1;
        Some(purpose)
    }

    /// Whether a device is one of the pool's, or has requests that it has not answered.
    pub(crate) fn uses(&self, device: u8) -> bool {
        let ios = self.device_ios.get(usize::from(device));
        self.devices.contains(&device) || ios.is_some_and(|&ios| ios > 0)
    }

    /// Requests that devices have or will get, and rows that wait to be written again.
    pub(crate) fn ios_under_way(&self) -> usize {
        self.ios.len() + self.waiting_rows.len()
    }

    /// Closes a stream's open row, if it has one, and writes it.
    pub(crate) fn close_row(&mut self, stream: RowStream) {
        if !self.log.has_open(stream) || self.failed.is_some() {
            return;
        }
        let row = self.log.close(stream, self.durable, &mut self.segments);
        let blocks = 1 + u64::from(row.payload);
        match stream {
            RowStream::Guests => self.counters.guest_row_blocks += blocks,
            RowStream::Moved => self.counters.moved_row_blocks += blocks,
            RowStream::Map => self.counters.map_row_blocks += blocks,
        }
        if stream == RowStream::Map {
            self.map_rows += 1;
            self.write_map_row(Box::new(row));
        } else {
            let sequence = row.position.sequence;
            self.log.ordered.push_back(row);
            self.write_ordered_row(sequence);
        }
    }

    /// A record of an alias was applied, with or without an effect.
    pub(crate) fn alias_applied(&mut self, shared: u64, is_done: bool) {
        self.aliases_under_way -= 1;
        self.counters.shared_pages += u64::from(is_done);
        if shared > 0 {
            self.map.release_number(shared);
        }
    }

    /// Adds a record whose page is sealed with `key` when its row is closed.
    pub(crate) fn push_sealed(
        &mut self,
        stream: RowStream,
        record: LogRecord,
        owner: RecordOwner,
        key: Arc<PageKey>,
        fill: impl FnOnce(&mut Block),
    ) {
        let is_full = self.log.push(stream, record, owner, fill, &self.segments);
        self.log.set_key(stream, key);
        if is_full {
            self.close_row(stream);
        }
    }

    /// Grows whenever pages are written that leave older pages behind: pages of guests, and pages
    /// that are sealed anew. Collection that gained nothing rests until then.
    pub(crate) fn rewritten(&self) -> u64 {
        self.counters.guest_row_blocks + self.resealed
    }

    fn write_op(&self, position: &RowPosition, buffer: BlockBuffer) -> (u8, DeviceOp) {
        let block = self.device_block(position.place);
        let blocks = 1 + u32::from(position.payload);
        (position.place.segment.device(), DeviceOp::Write { block, buffer, blocks })
    }

    fn write_map_row(&mut self, mut row: Box<Row>) {
        let buffer = row.buffer.take().expect("a row that is not under way has its buffer");
        let (device, op) = self.write_op(&row.position, buffer);
        self.submit(device, op, IoPurpose::MapRow(row));
    }

    fn ordered_row(&mut self, sequence: u64) -> &mut Row {
        let first = self.log.ordered.front().expect("a row is under way").position.sequence;
        &mut self.log.ordered[(sequence - first) as usize]
    }

    fn write_ordered_row(&mut self, sequence: u64) {
        let row = self.ordered_row(sequence);
        let buffer = row.buffer.take().expect("a row that is not under way has its buffer");
        let position = row.position;
        let (device, op) = self.write_op(&position, buffer);
        self.submit(device, op, IoPurpose::OrderedRow(sequence));
    }

    /// The answer for an ordered row.
    pub(crate) fn ordered_row_answered(
        &mut self,
        sequence: u64,
        buffer: Option<BlockBuffer>,
        result: Result<(), PoolDeviceError>,
    ) {
        let row = self.ordered_row(sequence);
        row.buffer = buffer;
        match result {
            Ok(()) => row.is_written = true,
            Err(error) => {
                row.failures += u8::from(error != PoolDeviceError::NoSpace);
                let failures = row.failures;
                self.row_failed(error, failures, WaitingRow::Ordered(sequence));
            }
        }
    }

    /// The answer for a row of the map: the row, if it is written.
    pub(crate) fn map_row_answered(
        &mut self,
        mut row: Box<Row>,
        buffer: Option<BlockBuffer>,
        result: Result<(), PoolDeviceError>,
    ) -> Option<Box<Row>> {
        row.buffer = buffer;
        let Err(error) = result else {
            self.map_rows -= 1;
            return Some(row);
        };
        row.failures += u8::from(error != PoolDeviceError::NoSpace);
        let failures = row.failures;
        self.row_failed(error, failures, WaitingRow::Map(row));
        None
    }

    fn row_failed(&mut self, error: PoolDeviceError, failures: u8, row: WaitingRow) {
        let pause = match error {
            PoolDeviceError::NoSpace => {
                self.no_space = true;
                NO_SPACE_PAUSE_NS
            }
            PoolDeviceError::Failed(_) if failures < ROW_FAILURES_MAX => 0,
            PoolDeviceError::Failed(_) | PoolDeviceError::Shorter => {
                self.failed = Some(error);
                return;
            }
        };
        self.waiting_rows.push((self.now_ns + pause, row));
    }

    /// Writes rows again whose pause is over.
    pub(crate) fn write_again(&mut self) {
        if self.failed.is_some() {
            self.waiting_rows.clear();
        }
        let mut index = 0;
        while index < self.waiting_rows.len() {
            if self.waiting_rows[index].0 > self.now_ns {
                index += 1;
                continue;
            }
            match self.waiting_rows.swap_remove(index).1 {
                WaitingRow::Ordered(sequence) => self.write_ordered_row(sequence),
                WaitingRow::Map(row) => self.write_map_row(row),
            }
        }
        self.no_space = !self.waiting_rows.is_empty();
    }

    /// Rows of the map that are not written yet.
    pub(crate) fn map_rows_under_way(&self) -> usize {
        self.map_rows
    }

    /// Asks for the pages of the map that something waits for.
    pub(crate) fn load_pages(&mut self) {
        while self.loads < LOADS_MAX {
            let Some((page, entry)) = self.map.next_load() else { return };
            // A page of the map is never packed.
            let place = self.segments.place_of(&entry).filter(|_| !entry.is_packed());
            let Some(place) = place else {
                self.map.loaded(page, None);
                continue;
            };
            self.counters.map_loads += 1;
            self.loads += 1;
            self.segments.pin(place.segment);
            let buffer = self.buffer(1);
            self.submit_read(place, buffer, 1, IoPurpose::Load(page, place, false));
        }
    }

    /// The answer for a page of the map.
    pub(crate) fn page_answered(
        &mut self,
        (page, place, is_second): (MapPage, BlockPlace, bool),
        buffer: Option<BlockBuffer>,
        result: Result<(), PoolDeviceError>,
    ) {
        let buffer = buffer.expect("a read's buffer comes back");
        if result.is_err() && !is_second {
            // A page that cannot be read is damaged from here on: the device is asked once more.
            self.submit_read(place, buffer, 1, IoPurpose::Load(page, place, true));
            return;
        }
        self.loads -= 1;
        self.segments.unpin(place.segment);
        self.map.loaded(page, result.is_ok().then(|| &buffer.blocks()[0]));
        self.recycle(buffer);
    }

    /// Begins a round of syncs if one is wanted.
    pub(crate) fn begin_sync(&mut self) {
        if self.failed.is_some() || !self.syncs.begin(self.devices.len(), self.applied) {
            return;
        }
        self.counters.syncs += 1;
        for at in 0..self.devices.len() {
            self.submit(self.devices[at], DeviceOp::Sync, IoPurpose::Sync);
        }
    }

    /// The answer of a device to a sync. A sync that failed is final: the writes that it was for
    /// may be lost, even if a later sync succeeds.
    pub(crate) fn sync_answered(&mut self, result: Result<(), PoolDeviceError>) {
        if let Err(error) = result {
            self.failed = Some(error);
        } else if let Some(covers) = self.syncs.device_done() {
            self.durable = self.durable.max(covers);
        }
    }

    /// A buffer of one block, or of [`RUN_BLOCKS_MAX`].
    pub(crate) fn buffer(&mut self, blocks: usize) -> BlockBuffer {
        if blocks == 1 {
            self.spare_single.pop().unwrap_or_else(|| BlockBuffer::new(1))
        } else {
            self.spare_run.pop().unwrap_or_else(|| BlockBuffer::new(RUN_BLOCKS_MAX))
        }
    }

    /// Keeps a buffer for the next request.
    pub(crate) fn recycle(&mut self, buffer: BlockBuffer) {
        let stock = match buffer.blocks().len() {
            1 => &mut self.spare_single,
            RUN_BLOCKS_MAX => &mut self.spare_run,
            _ => return,
        };
        if stock.len() < SPARE_BUFFERS_MAX {
            stock.push(buffer);
        }
    }

    /// Counts a block that was looked up, and forgets whether it had to wait.
    pub(crate) fn count_look_up(&mut self, has_waited: &mut bool) {
        match std::mem::take(has_waited) {
            true => self.counters.map_misses += 1,
            false => self.counters.map_hits += 1,
        }
    }

    /// Something for the caller.
    pub(crate) fn complete(&mut self, completion: PoolCompletion) {
        self.completions.push_back(completion);
    }

    /// A request's end, for the caller.
    pub(crate) fn done(&mut self, tag: RequestTag, result: Result<VolumeId, PoolError>) {
        self.complete(PoolCompletion::Done { tag, result });
    }

    /// The next thing for the caller.
    pub(crate) fn next_completion(&mut self) -> Option<PoolCompletion> {
        self.completions.pop_front()
    }

    /// Free segments that guests' rows must leave: for the next checkpoint, for collection, and
    /// for an opening after a crash, which begins all streams in new segments and writes a
    /// checkpoint of its own.
    pub(crate) fn guest_floor(&self) -> usize {
        self.moved_floor() + KEPT_FOR_COLLECTION + KEPT_FOR_RESTART
    }

    /// The same for rows of moved pages, and for rows that give space back.
    pub(crate) fn moved_floor(&self) -> usize {
        KEPT_FOR_OPENING + 2 * self.next_checkpoint_segments()
    }

    /// Segments that the next checkpoint takes at most.
    fn next_checkpoint_segments(&self) -> usize {
        // Rows under way dirty a leaf and a block of the table for each block, and one more if it
        // was shared; an alias two. Each comes with a block above it, at most all pages that are
        // clean now. A dirty page has all pages above it among the dirty ones.
        let each = if self.map.shared().is_none() { 4 } else { 6 };
        let under_way = each * self.log.payload_under_way() as usize + 4 * self.aliases_under_way;
        let dirty = self.map.dirty_blocks();
        let clean = 2 * (self.map.cached_blocks() + 8 - dirty);
        self.checkpoint_segments(dirty + under_way.min(clean))
    }

    /// Segments that a checkpoint with so many dirty pages takes at most.
    fn checkpoint_segments(&self, dirty: usize) -> usize {
        // Tables may grow by a level.
        let roots = 2 * usize::from(self.map.tables_levels()) + 2;
        let segments = self.segments.total() + self.announced;
        let state = 2
            * (self.map.volume_count() * STATE_BYTES_PER_VOLUME
                + self.map.moments() * size_of::<MomentRecord>()
                + self.map.families() * STATE_BYTES_PER_FAMILY
                + self.map.contexts() * STATE_BYTES_PER_CONTEXT
                + segments * size_of::<SegmentRecord>()
                + STATE_BYTES_OF_SHARED)
                .div_ceil(crate::block::BLOCK_BYTES)
            + 6;
        RowLog::segments_for(dirty + roots + state, &self.segments)
    }

    /// Whether guests may write `blocks` more blocks now.
    pub(crate) fn has_room(&self, blocks: usize) -> bool {
        let wanted = RowLog::segments_for(blocks, &self.segments);
        let live = self.segments.live() + self.log.payload_under_way() + blocks as u64;
        self.has_free(self.guest_floor() + wanted) && live <= self.usable_blocks()
    }

    /// Whether so many segments are free. Those that the log alone has freed count, but not for
    /// an opening and its checkpoint: an opening may find them used.
    pub(crate) fn has_free(&self, segments: usize) -> bool {
        self.segments.free_count() >= segments && self.segments.sure_count() >= self.moved_floor()
    }

    /// Whether collection may go on and take so many segments: an opening finds what it needs then,
    /// because each stream gives back the segment that it has reserved, and a checkpoint that a
    /// crash cuts off gives back all that it took.
    pub(crate) fn has_free_for_collection(&self, takes: usize) -> bool {
        let floor = KEPT_FOR_OPENING - STREAMS + self.next_checkpoint_segments();
        self.segments.free_count() >= floor + takes && self.segments.sure_count() >= floor
    }

    /// Whether openings have taken what guests leave for them, and collection has not got it back.
    pub(crate) fn lacks_reserve(&self) -> bool {
        self.segments.free_staying() < self.moved_floor() + KEPT_FOR_RESTART
    }

    /// Blocks that could be written now, if there are free segments for them.
    pub(crate) fn room(&self) -> u64 {
        let used = self.segments.live() + self.log.payload_under_way();
        self.usable_blocks().saturating_sub(used)
    }

    /// Whether a write must wait for its volume's limit, or for what others have reserved.
    pub(crate) fn waits_for_quota(&mut self, volume: VolumeId, blocks: u64) -> bool {
        let room = self.room().saturating_sub(blocks);
        let wait = self.map.quota_wait(volume, blocks, room);
        self.counters.quota_refusals += u64::from(wait.is_some());
        wait.is_some()
    }

    /// Whether the pool can keep so much free for a volume.
    ///
    /// # Errors
    /// If it cannot, and would have to keep more free than now.
    pub(crate) fn check_promise(
        &self,
        volume: VolumeId,
        reservation: u64,
    ) -> Result<(), PoolError> {
        let (now, wanted) = (self.map.promised(), self.map.promised_with(volume, reservation));
        let room = self.room();
        if wanted <= now || wanted <= room {
            return Ok(());
        }
        let free_bytes = room.saturating_sub(now) * crate::block::BLOCK_BYTES as u64;
        Err(PoolError::NoPromise { free_bytes })
    }

    /// Blocks that may be alive: nine tenths of the segments that are left when nothing is dirty,
    /// so that collection always finds segments with a tenth to gain.
    pub(crate) fn usable_blocks(&self) -> u64 {
        self.usable_in(self.segments.staying())
    }

    /// The same for a pool of so many segments.
    pub(crate) fn usable_in(&self, segments: usize) -> u64 {
        let kept = KEPT_FOR_OPENING
            + 2 * self.checkpoint_segments(0)
            + KEPT_FOR_COLLECTION
            + KEPT_FOR_RESTART
            + super::rows::STREAM_SEGMENTS
            + RowLog::segments_for(1, &self.segments);
        let segments = segments.saturating_sub(kept) as u64;
        segments * u64::from(self.segments.payload_blocks()) * 9 / 10
    }
}

/// Segments that an opening takes before it frees any: two for each stream.
pub(crate) const KEPT_FOR_OPENING: usize = super::rows::STREAM_SEGMENTS;

/// Segments that only moved pages may take.
const KEPT_FOR_COLLECTION: usize = 3;

/// Segments that an opening leaves behind: those that the streams wrote to before the crash, and
/// the one with its own checkpoint. Collection gets them back, for which it needs room itself.
const KEPT_FOR_RESTART: usize = 4;

/// The most bytes that a volume takes in the state's JSON, names included.
const STATE_BYTES_PER_VOLUME: usize = 640;

/// The most bytes that a family of encrypted volumes takes there, with two data keys.
const STATE_BYTES_PER_FAMILY: usize = 560;

/// The most bytes that a seal context takes there.
const STATE_BYTES_PER_CONTEXT: usize = 112;

/// The most bytes that the counts of shared pages take there.
const STATE_BYTES_OF_SHARED: usize = 160;

/// The block of the device that a place is.
pub(crate) fn device_block(place: BlockPlace, segment_blocks: u32) -> u64 {
    let before = u64::from(place.segment.index()) * u64::from(segment_blocks);
    DEVICE_HEADER_BLOCKS + before + u64::from(place.block)
}

/// Whether a page of the map is missing; a damaged one is an answer.
pub(crate) fn unless_missing<T>(result: Result<T, MapError>) -> Option<Result<T, PoolError>> {
    match result {
        Ok(found) => Some(Ok(found)),
        Err(MapError::Damaged) => Some(Err(PoolError::MapDamaged)),
        Err(MapError::Missing) => None,
    }
}
