//! The engine of a pool: requests in, requests to devices out, completions out.
//!
//! ```text
//! write ─▶ row (rows) ─▶ device ─▶ written ─▶ applied, in order (map) ─▶ Done
//! read  ─▶ map ─▶ device ─▶ proved ─▶ Data, Done
//! flush ─▶ sync of all devices ─▶ Done
//! ```
//!
//! In the background: collection makes free segments, checkpoints write the map, removals free
//! the pages of a removed snapshot. Each does a bounded amount of work in a round.

mod background;
mod changed;
mod checkpoint;
mod collect;
mod core;
mod dedup;
mod devices;
mod early;
mod history;
mod keeper;
mod packing;
mod parts;
mod reads;
mod recover;
mod replay;
mod request;
mod reseal;
mod rows;
mod scrub;
mod sealing;
mod segments;
mod slab;
mod state;
mod status;
mod sync;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

pub use self::core::PoolCounters;
pub use devices::{DeviceChange, PoolDevice};
pub use recover::{SEGMENTS_MIN, format_pool};
pub use scrub::{DamagedBlock, ScrubPace, ScrubStatus};
pub use segments::SegmentCounts;
pub use status::{DedupStatus, PoolStatus};

use self::core::{EngineCore, IoPurpose};
use crate::api::{
    Admission, DeviceIo, PoolChange, PoolCompletion, PoolDeviceError, PoolDevices, PoolError,
    RequestTag, VolumeId,
};
use crate::block::{BLOCK_BYTES, Block, BlockBuffer};
use crate::contents::DedupOptions;
use crate::format::{
    LogRecord, PayloadPlace, RECORDS_MAX, ROW_PAYLOAD_MAX, SealTag, ZERO_BLOCKS_MAX,
};
use crate::layout::{PoolOpenError, PoolOptions};
use crate::map::{Applied, ChangedBlocks, MapError, PoolVolume};
use changed::Differences;
use checkpoint::Checkpointer;
use collect::Collector;
use devices::DeviceWork;
use early::EarlySegments;
use keeper::HistoryKeeper;
use packing::IdlePacking;
use parts::PartialWrites;
use reads::{ReadFor, Reads};
use request::{RequestKind, Requests};
use reseal::Resealer;
use rows::{ROWS_MAX, RecordOwner, RowLog, RowStream};
use scrub::Scrubber;
use seal::PageKey;

/// The most blocks of a read or write: 1 MiB that begins in the middle of a block.
pub const IO_BLOCKS_MAX: u32 = 257;

/// The most blocks of a zeroed range: 16 MiB that begin in the middle of a block.
pub const RANGE_BLOCKS_MAX: u32 = 4097;

/// Numbers of pages that are reserved ahead, so that a write never waits for the page table.
const NUMBERS_AHEAD: usize = 1024;

/// The pause after which a flush is marked: a guest that goes on marks it with its next row.
const MARK_PAUSE_NS: u64 = 20_000_000;

/// Rows that guests leave to collection and checkpoints.
const ROWS_KEPT: usize = 16;

/// A pool that is open.
#[derive(Debug)]
pub struct PoolEngine {
    core: EngineCore,
    options: PoolOptions,
    requests: Requests,
    reads: Reads,
    parts: PartialWrites,
    checkpointer: Checkpointer,
    collector: Collector,
    early: EarlySegments,
    packing: IdlePacking,
    differences: Differences,
    scrubber: Scrubber,
    /// The checkpoint that has the state of the pass.
    scrub_saved_by: u64,
    device_work: DeviceWork,
    resealer: Resealer,
    numbers: VecDeque<u64>,
    /// The page table is so damaged that no more numbers are found.
    has_no_numbers: bool,
    /// The largest write that there was no room for, until one of its size is taken.
    refused_blocks: usize,
    removal_under_way: bool,
    history: HistoryKeeper,
    is_closing: bool,
    /// The engine has told all requests of a failure.
    has_abandoned: bool,
    /// Collection found nothing to gain, and guests' rows have these many blocks since.
    rests_at: Option<u64>,
    /// Free segments, and blocks of guests' rows, at the last checkpoint that was for space.
    space_before: (usize, u64),
    /// Checkpoints for space in a row that gained none.
    futile_checkpoints: u32,
    /// Segments that were collected since more were free than ever.
    futile_victims: usize,
    /// When the last flush will be marked.
    mark_at_ns: Option<u64>,
}

impl PoolEngine {
    /// Opens a pool: recovers its state and writes a checkpoint of a new opening.
    ///
    /// `sizes_blocks` has the length of each device. `salt` comes from a random source.
    ///
    /// # Errors
    /// If the devices are not a whole pool, or one fails.
    pub fn open(
        devices: &mut dyn PoolDevices,
        sizes_blocks: &[u64],
        options: PoolOptions,
        salt: u128,
        now_ns: u64,
    ) -> Result<Self, PoolOpenError> {
        let (mut core, checkpointer) = recover::open(devices, sizes_blocks, &options, salt)?;
        core.now_ns = now_ns;
        let scrub = core.scrub.clone();
        let mut engine = Self {
            core,
            options,
            requests: Requests::new(),
            reads: Reads::new(),
            parts: PartialWrites::new(),
            checkpointer,
            collector: Collector::default(),
            early: EarlySegments::default(),
            packing: IdlePacking::default(),
            differences: Differences::default(),
            scrubber: Scrubber::resumed(scrub, now_ns),
            scrub_saved_by: 0,
            device_work: DeviceWork::default(),
            resealer: Resealer::default(),
            numbers: VecDeque::with_capacity(NUMBERS_AHEAD),
            has_no_numbers: false,
            refused_blocks: 0,
            removal_under_way: false,
            history: HistoryKeeper::new(),
            is_closing: false,
            has_abandoned: false,
            rests_at: None,
            space_before: (0, 0),
            futile_checkpoints: 0,
            futile_victims: 0,
            mark_at_ns: None,
        };
        engine.checkpointer.want();
        while engine.checkpointer.is_busy() {
            engine.checkpointer.poll(&mut engine.core);
            engine.core.begin_sync();
            engine.core.load_pages();
            if let Some(error) = engine.core.failed {
                return Err(PoolOpenError::Device { device: 0, error });
            }
            while let Some(io) = engine.core.next_io() {
                let (device, token) = (io.device, io.token);
                let (buffer, result) = recover::perform(devices, io);
                if let Err(error) = result {
                    return Err(PoolOpenError::Device { device, error });
                }
                engine.complete_io(token, buffer, result);
            }
        }
        Ok(engine)
    }

    /// Why a request cannot be, if so.
    fn refusal(&self, volume: VolumeId, block: u64, blocks: u32, max: u32) -> Option<PoolError> {
        if self.is_closing {
            return Some(PoolError::Closed);
        }
        let Some(size) = self.core.map.volume_blocks(volume) else {
            return Some(PoolError::NoVolume(volume));
        };
        let end = block.checked_add(blocks.into());
        let is_inside = end.is_some_and(|end| end <= size) && (1..=max).contains(&blocks);
        (!is_inside).then_some(PoolError::BeyondEnd)
    }

    /// The same for a write, which needs a number for each block.
    fn write_refusal(
        &self,
        volume: VolumeId,
        block: u64,
        blocks: u32,
        max: u32,
    ) -> Option<PoolError> {
        let lacks_numbers = self.has_no_numbers && self.numbers.len() < blocks as usize;
        let refusal = self.change_refusal(volume, block, blocks, max);
        refusal
            .or(lacks_numbers.then_some(PoolError::MapDamaged))
            .or_else(|| self.core.lock_of(volume))
            .or_else(|| self.core.seal_refusal(volume))
    }

    fn change_refusal(
        &self,
        volume: VolumeId,
        block: u64,
        blocks: u32,
        max: u32,
    ) -> Option<PoolError> {
        if let Some(error) = self.core.failed {
            return Some(PoolError::DeviceFailed(error));
        }
        self.refusal(volume, block, blocks, max).or_else(|| {
            let is_head = self.core.map.is_head(volume);
            (!is_head)
                .then_some(PoolError::WrongKind(volume, "a snapshot, which cannot be written"))
        })
    }

    /// Writes blocks of a volume; `fill` is called once for each block, with its count from 0.
    ///
    /// A block's content is copied before this returns. The request is done when its row and all
    /// rows before it are on their devices, though perhaps in a device's volatile cache.
    pub fn write(
        &mut self,
        tag: RequestTag,
        volume: VolumeId,
        block: u64,
        blocks: u32,
        fill: &mut dyn FnMut(u32, &mut Block),
    ) -> Admission {
        if let Some(error) = self.write_refusal(volume, block, blocks, IO_BLOCKS_MAX) {
            self.core.done(tag, Err(error));
            return Admission::Taken;
        }
        if !self.admits(volume, blocks as usize) || self.parts.covers(volume, block, blocks.into())
        {
            return Admission::Busy;
        }
        let key = match self.core.seal_key(volume) {
            Ok(key) => key,
            Err(error) => {
                self.core.done(tag, Err(error));
                return Admission::Taken;
            }
        };
        let token = self.requests.begin(RequestKind::Blocks(tag), volume, blocks);
        for index in 0..blocks {
            let block = block + u64::from(index);
            self.push_write(token, volume, block, key.as_ref(), |page| fill(index, page));
        }
        Admission::Taken
    }

    /// Whether there are rows, numbers and room for so many blocks.
    fn admits(&mut self, volume: VolumeId, blocks: usize) -> bool {
        let rows = blocks.div_ceil(ROW_PAYLOAD_MAX)
            + 1
            + RowLog::segments_for(blocks, &self.core.segments);
        if self.core.log.rows() + rows > ROWS_MAX - ROWS_KEPT || self.numbers.len() < blocks {
            return false;
        }
        // Partial writes that are under way will need a block each.
        let wanted = blocks + self.parts.len();
        if self.core.waits_for_quota(volume, wanted as u64) {
            return false;
        }
        let has_room = self.core.has_room(wanted);
        if !has_room {
            self.refused_blocks = self.refused_blocks.max(blocks);
            self.core.counters.full_refusals += 1;
        } else if blocks >= self.refused_blocks {
            self.refused_blocks = 0;
        }
        has_room
    }

    fn push_write(
        &mut self,
        token: u64,
        volume: VolumeId,
        block: u64,
        key: Option<&Arc<PageKey>>,
        fill: impl FnOnce(&mut Block),
    ) {
        let number = self.numbers.pop_front().expect("numbers were counted");
        let (volume, crc, owner) = (volume.0, 0, RecordOwner::Request(token));
        self.core.counters.guest_blocks += 1;
        self.core.map.write_begins(VolumeId(volume));
        let Some(key) = key else {
            return self.push(LogRecord::Write { volume, block, number, crc }, owner, fill);
        };
        let (tag, version) = (SealTag::default(), 0);
        let record = LogRecord::Sealed { volume, block, number, crc, tag, version };
        self.core.push_sealed(RowStream::Guests, record, owner, Arc::clone(key), fill);
    }

    fn push(&mut self, record: LogRecord, owner: RecordOwner, fill: impl FnOnce(&mut Block)) {
        let EngineCore { log, segments, .. } = &mut self.core;
        if log.push(RowStream::Guests, record, owner, fill, segments) {
            self.core.close_row(RowStream::Guests);
        }
    }

    /// Writes `bytes` into a block of a volume, from its byte `from` on; the rest of the block
    /// stays. Ends like a write.
    ///
    /// # Panics
    /// If the bytes do not fit in the block.
    pub fn write_part(
        &mut self,
        tag: RequestTag,
        volume: VolumeId,
        block: u64,
        from: usize,
        bytes: &[u8],
    ) -> Admission {
        assert!(from + bytes.len() <= BLOCK_BYTES);
        if let Some(error) = self.write_refusal(volume, block, 1, 1) {
            self.core.done(tag, Err(error));
            return Admission::Taken;
        }
        let is_covered = self.parts.covers(volume, block, 1);
        if !self.parts.has_room()
            || self.requests.has_change
            || is_covered
            || !self.admits(volume, 1)
        {
            return Admission::Busy;
        }
        // The block is read when all that was admitted before is applied.
        self.core.close_row(RowStream::Guests);
        let barrier = self.core.log.sequence();
        self.parts.begin(tag, volume, block, (from, bytes), barrier);
        Admission::Taken
    }

    /// Reads blocks of a volume or snapshot: `Data` for all of them, then `Done`.
    pub fn read(
        &mut self,
        tag: RequestTag,
        volume: VolumeId,
        block: u64,
        blocks: u32,
    ) -> Admission {
        let refusal = self.refusal(volume, block, blocks, IO_BLOCKS_MAX);
        if let Some(error) = refusal.or_else(|| self.core.lock_of(volume)) {
            self.core.done(tag, Err(error));
            return Admission::Taken;
        }
        if !self.reads.has_room(blocks) {
            return Admission::Busy;
        }
        self.reads.begin(&mut self.core, ReadFor::Request(tag), volume, block, blocks);
        Admission::Taken
    }

    /// Looks for the blocks from `start` on that differ between two snapshots; without `from`, for
    /// those that the snapshot has. When the request is done, [`Self::take_changed`] has a part of
    /// them; its `next_block` says where the next request begins.
    pub fn changed(
        &mut self,
        tag: RequestTag,
        from: Option<VolumeId>,
        to: VolumeId,
        start: u64,
    ) -> Admission {
        if let Some(error) = changed::refusal(&self.core, from, to) {
            self.core.done(tag, Err(error));
            return Admission::Taken;
        }
        if self.is_closing {
            self.core.done(tag, Err(PoolError::Closed));
            return Admission::Taken;
        }
        if !self.differences.has_room() {
            return Admission::Busy;
        }
        self.differences.begin(tag, from, to, start);
        Admission::Taken
    }

    /// The answer to a request of [`Self::changed`] that is done.
    pub fn take_changed(&mut self, tag: RequestTag) -> Option<ChangedBlocks> {
        self.differences.take(tag)
    }

    /// Has the pool look for pages with the same content from here on, or not any more. Pages that
    /// share their content stay as they are.
    pub fn set_dedup(&mut self, options: Option<DedupOptions>) {
        self.core.contents.set(options);
    }

    /// Begins to read and prove all pages at a pace, or has the pass under way go on, at this pace
    /// or its own. A new pass without a pace reads one page in a second. The status says how far it
    /// is and which damage it has found. The pool goes on with the pass when it is opened again.
    pub fn scrub(&mut self, pace: Option<ScrubPace>) {
        if !self.is_closing && self.core.failed.is_none() {
            self.scrubber.start(&self.core, pace);
        }
    }

    /// Has the pass rest until [`Self::scrub`].
    pub fn pause_scrub(&mut self) {
        self.scrubber.pause();
    }

    /// Ends a pass of [`Self::scrub`] early.
    pub fn stop_scrub(&mut self) {
        self.scrubber.stop();
    }

    /// Whether a pool that is opened again would do with the pass as it was asked to here; or the
    /// pool has failed.
    pub fn is_scrub_saved(&self) -> bool {
        let is_saved = self.checkpointer.number() >= self.scrub_saved_by;
        self.core.failed.is_some() || (is_saved && !self.scrubber.is_unsaved())
    }

    /// Makes blocks of a volume read as zeroes, and gives their space back. Ends like a write.
    pub fn zero(
        &mut self,
        tag: RequestTag,
        volume: VolumeId,
        block: u64,
        blocks: u32,
    ) -> Admission {
        if let Some(error) = self.change_refusal(volume, block, blocks, RANGE_BLOCKS_MAX) {
            self.core.done(tag, Err(error));
            return Admission::Taken;
        }
        let end = block + u64::from(blocks);
        let records = end.div_ceil(ZERO_BLOCKS_MAX) - block / ZERO_BLOCKS_MAX;
        if !self.admits_freeing(records as usize) || self.parts.covers(volume, block, blocks.into())
        {
            return Admission::Busy;
        }
        let token = self.requests.begin(RequestKind::Blocks(tag), volume, records as u32);
        let mut at = block;
        while at < end {
            let next = ((at / ZERO_BLOCKS_MAX + 1) * ZERO_BLOCKS_MAX).min(end);
            let record =
                LogRecord::Zero { volume: volume.0, block: at, blocks: (next - at) as u16 };
            self.push(record, RecordOwner::Request(token), |_| {});
            at = next;
        }
        Admission::Taken
    }

    /// Whether there are rows and segments for records that free space. They may use segments
    /// that writes must leave, so that a full pool can be cleaned up.
    fn admits_freeing(&self, records: usize) -> bool {
        let rows = records.div_ceil(RECORDS_MAX) + 1;
        self.core.log.rows() + rows < ROWS_MAX - ROWS_KEPT / 2
            && self.core.has_free(
                self.core.moved_floor() + RowLog::segments_for(rows, &self.core.segments) + 1,
            )
    }

    /// Makes all that completed before this call survive a power cut.
    pub fn flush(&mut self, tag: RequestTag) -> Admission {
        match (self.core.failed, self.is_closing) {
            (Some(error), _) => self.core.done(tag, Err(PoolError::DeviceFailed(error))),
            (None, true) => self.core.done(tag, Err(PoolError::Closed)),
            // Completed requests are applied, and applied rows are written: a sync is enough.
            (None, false) => self.requests.flush(&mut self.core, tag),
        }
        Admission::Taken
    }

    /// Changes the catalog; the change is durable when it is done.
    pub fn change(&mut self, tag: RequestTag, change: PoolChange) -> Admission {
        let failed = self.core.failed.map(PoolError::DeviceFailed);
        if let Some(error) = failed.or(self.is_closing.then_some(PoolError::Closed)) {
            self.core.done(tag, Err(error));
            return Admission::Taken;
        }
        if !self.admits_change() {
            return Admission::Busy;
        }
        let volume = match self.check(&change) {
            Ok(volume) => volume,
            Err(error) => {
                self.core.done(tag, Err(error));
                return Admission::Taken;
            }
        };
        self.push_change(Some(tag), volume, change);
        Admission::Taken
    }

    /// Whether a change of the catalog is possible now, and the volume that it is about.
    ///
    /// # Errors
    /// Why it is not.
    pub fn check(&self, change: &PoolChange) -> Result<VolumeId, PoolError> {
        let volume = self.core.map.check(change)?;
        match *change {
            PoolChange::Quota { volume: of, reservation, .. } => {
                self.core.check_promise(of, reservation).map(|()| volume)
            }
            _ => Ok(volume),
        }
    }

    fn admits_change(&self) -> bool {
        // A change is checked against the moments that there are.
        let is_alone = !self.requests.has_change && !self.history.is_working();
        is_alone && self.parts.len() == 0 && self.admits_freeing(2)
    }

    /// Pushes a change that was checked; its check has seen that it fits in a block.
    fn push_change(&mut self, tag: Option<RequestTag>, volume: VolumeId, change: PoolChange) {
        let json = serde_json::to_vec(&change).expect("numbers and names are JSON");
        // A row of its own, for the change and its copy: the copy makes up for a damaged block.
        self.core.close_row(RowStream::Guests);
        let token = self.requests.begin(RequestKind::Change(tag, change), volume, 1);
        for (is_copy, owner) in [(false, RecordOwner::Request(token)), (true, RecordOwner::None)] {
            let record = LogRecord::Change { bytes: json.len() as u16, crc: 0, is_copy };
            self.push(record, owner, |block| {
                block.0[..json.len()].copy_from_slice(&json);
                block.0[json.len()..].fill(0);
            });
        }
    }

    /// Does what can be done now: a bounded amount. Call it after requests and answers.
    pub fn poll(&mut self, now_ns: u64) {
        self.core.now_ns = now_ns;
        self.core.write_again();
        self.apply_rows();
        self.reads.poll(&mut self.core);
        self.parts.poll(&mut self.core, &mut self.reads);
        self.differences.poll(&mut self.core);
        self.scrubber.poll(&mut self.core);
        self.save_scrub();
        self.write_merged();
        self.checkpoint_if_due();
        self.checkpointer.poll(&mut self.core);
        // The end of a checkpoint lets rows be applied again.
        self.apply_rows();
        self.reseal();
        self.release_early();
        self.collect();
        self.work_on_devices();
        self.keep_history();
        self.remove();
        self.mark_if_idle();
        self.core.close_row(RowStream::Guests);
        self.requests.poll(&mut self.core);
        self.core.begin_sync();
        self.reserve_numbers();
        self.core.load_pages();
        self.core.map.evict();
        self.abandon_if_failed();
    }

    fn apply_rows(&mut self) {
        let dirty_max = self.options.cache_blocks / 4 * 3;
        while !self.core.is_halted && self.core.failed.is_none() {
            // Only a checkpoint makes room for more dirty pages.
            if self.core.map.dirty_blocks() > dirty_max && !self.core.log.is_inside_row() {
                self.checkpointer.want_once();
                return;
            }
            let is_written = self.core.log.ordered.front().is_some_and(|row| row.is_written);
            let row = if is_written { self.core.log.ordered.pop_front() } else { None };
            let Some(mut row) = row else { return };
            let sequence = row.position.sequence;
            let mut has_waited = std::mem::take(&mut row.has_waited);
            let missing = row.places().enumerate().skip(row.applied).find(|&(index, at)| {
                let record = &row.records[index];
                let is_applied = self.apply(record, row.owners[index], at, sequence);
                match (is_applied, record) {
                    (true, LogRecord::Write { .. } | LogRecord::Sealed { .. }) => {
                        self.core.count_look_up(&mut has_waited);
                    }
                    (true, _) => has_waited = false,
                    (false, _) => {}
                }
                !is_applied
            });
            if let Some((index, _)) = missing {
                (row.applied, row.has_waited) = (index, true);
                self.core.log.ordered.push_front(row);
                return;
            }
            self.core.applied = sequence;
            self.core.log.retire(row);
        }
    }

    /// Applies a record; whether it did, or a page is missing.
    fn apply(
        &mut self,
        record: &LogRecord,
        owner: RecordOwner,
        at: PayloadPlace,
        sequence: u64,
    ) -> bool {
        if matches!(record, LogRecord::Change { is_copy: true, .. }) {
            return true;
        }
        let change = match (record, owner) {
            (LogRecord::Change { .. }, RecordOwner::Request(token)) => self.requests.change(token),
            _ => None,
        };
        let EngineCore { map, segments, .. } = &mut self.core;
        let result = match map.apply(record, at, sequence, change.as_ref(), segments) {
            Err(MapError::Missing) => return false,
            Err(MapError::Damaged) => Err(PoolError::MapDamaged),
            Ok(Applied::Done) => Ok(()),
            Ok(Applied::Dropped) => Err(match *record {
                LogRecord::Write { volume, .. }
                | LogRecord::Sealed { volume, .. }
                | LogRecord::Zero { volume, .. } => PoolError::NoVolume(VolumeId(volume)),
                _ => PoolError::Invalid("the change was not possible any more".into()),
            }),
        };
        match *record {
            LogRecord::Write { volume, .. } | LogRecord::Sealed { volume, .. } => {
                self.core.map.write_ends(VolumeId(volume));
            }
            LogRecord::Alias { shared, .. } => self.core.alias_applied(shared, result.is_ok()),
            _ => {}
        }
        if let Some(change) = &change {
            self.core.follow_keys(change);
            self.resealer.wake();
            self.history.wake();
        }
        match owner {
            RecordOwner::Request(token) => {
                self.requests.applied(&mut self.core, &mut self.parts, token, result);
            }
            RecordOwner::Removal => self.removal_under_way = false,
            RecordOwner::History => self.history_applied(),
            RecordOwner::Move => self.collector.moves_under_way -= 1,
            RecordOwner::Reseal => {
                self.resealer.pushed -= 1;
                self.core.resealed += 1;
            }
            RecordOwner::None | RecordOwner::Page(..) | RecordOwner::State { .. } => {}
        }
        true
    }

    fn write_merged(&mut self) {
        while let Some(merged) = self.parts.next_merged() {
            if self.has_no_numbers && self.numbers.is_empty() {
                self.parts.end(&mut self.core, merged.part, Err(PoolError::MapDamaged));
                continue;
            }
            // There was room at its admission: it must not wait for more now.
            let can_write = self.admits_freeing(1) && !self.numbers.is_empty();
            if self.core.failed.is_some() || !can_write {
                return;
            }
            let key = match self.core.seal_key(merged.volume) {
                Ok(key) => key,
                Err(error) => {
                    self.parts.end(&mut self.core, merged.part, Err(error));
                    continue;
                }
            };
            let buffer = self.parts.take_merged(merged.part);
            let kind = RequestKind::Part(merged.part);
            let token = self.requests.begin(kind, merged.volume, 1);
            self.push_write(token, merged.volume, merged.block, key.as_ref(), |page| {
                page.0.copy_from_slice(&buffer.blocks()[0].0);
            });
            self.core.recycle(buffer);
        }
    }

    fn remove(&mut self) {
        // A removal goes on after the next opening.
        if self.removal_under_way
            || self.is_closing
            || self.core.is_halted
            || self.core.failed.is_some()
            || !self.admits_freeing(1)
        {
            return;
        }
        if let Ok(Some(record)) = self.core.map.removal_step() {
            self.removal_under_way = true;
            self.push(record, RecordOwner::Removal, |_| {});
        }
    }

    /// After a flush and a pause, a row without records says that the log is durable up to here.
    /// Without it, damage of the last rows would look like a row that a crash has cut off.
    fn mark_if_idle(&mut self) {
        if self.is_working() || !self.may_mark() {
            self.mark_at_ns = None;
            return;
        }
        let at_ns = *self.mark_at_ns.get_or_insert(self.core.now_ns + MARK_PAUSE_NS);
        if self.core.now_ns >= at_ns {
            self.mark_at_ns = None;
            self.core.log.open_mark();
        }
    }

    fn may_mark(&self) -> bool {
        self.core.log.needs_mark(self.core.durable)
            && self.core.failed.is_none()
            && !self.is_closing
            && self.admits_freeing(0)
    }

    fn reserve_numbers(&mut self) {
        self.has_no_numbers = false;
        while self.numbers.len() < NUMBERS_AHEAD {
            match self.core.map.take_number() {
                Ok(number) => self.numbers.push_back(number),
                Err(error) => {
                    self.has_no_numbers = error == MapError::Damaged;
                    return;
                }
            }
        }
    }

    fn abandon_if_failed(&mut self) {
        let Some(error) = self.core.failed else { return };
        if self.has_abandoned && self.requests.len() == 0 && self.parts.len() == 0 {
            return;
        }
        self.has_abandoned = true;
        let error = PoolError::DeviceFailed(error);
        self.requests.abandon(&mut self.core, &error);
        self.parts.abandon(&mut self.core, &error);
    }

    /// The next request to a device.
    pub fn next_io(&mut self) -> Option<DeviceIo> {
        self.core.next_io()
    }

    /// A device's answer; of a read or write with its buffer. An unknown token is ignored.
    pub fn complete_io(
        &mut self,
        token: u64,
        buffer: Option<BlockBuffer>,
        result: Result<(), PoolDeviceError>,
    ) {
        let purpose = self.core.answered(token);
        if let Err(error @ PoolDeviceError::Shorter) = result
            && !matches!(purpose, None | Some(IoPurpose::Farewell))
        {
            // Pages of the map may be gone that are in memory still: blocks that are written below
            // them would be lost when the pool is opened again.
            self.core.failed.get_or_insert(error);
        }
        match purpose {
            None => {}
            Some(IoPurpose::OrderedRow(sequence)) => {
                self.core.ordered_row_answered(sequence, buffer, result);
            }
            Some(IoPurpose::MapRow(row)) => {
                if let Some(row) = self.core.map_row_answered(row, buffer, result) {
                    self.checkpointer.row_written(&mut self.core, *row);
                }
            }
            Some(IoPurpose::Read(part)) => {
                self.reads.answered(&mut self.core, part, buffer, result);
            }
            Some(IoPurpose::Load(page, place, is_second)) => {
                self.core.page_answered((page, place, is_second), buffer, result);
            }
            Some(IoPurpose::Sync) => self.core.sync_answered(result),
            // The device has left, and its answer has no effect.
            Some(IoPurpose::Farewell) => buffer.into_iter().for_each(|it| self.core.recycle(it)),
            Some(IoPurpose::Superblock) => {
                if let Some(buffer) = buffer {
                    self.core.recycle(buffer);
                }
                self.checkpointer.superblock_answered(&mut self.core, result);
            }
            Some(IoPurpose::Scrub(page)) => {
                self.scrubber.answered(&mut self.core, page, buffer, result);
            }
            Some(IoPurpose::Reseal(page)) => {
                self.resealer.answered(&mut self.core, page, buffer, result);
            }
            Some(IoPurpose::Twin(read)) => {
                self.collector.twin_answered(&mut self.core, read, buffer, result);
            }
            Some(IoPurpose::Window) => self.collector.answered(&mut self.core, buffer, result),
        }
    }

    /// The next data or end of a request.
    pub fn next_completion(&mut self) -> Option<PoolCompletion> {
        self.core.next_completion()
    }

    /// Takes a buffer of a `Data` back.
    pub fn recycle(&mut self, buffer: BlockBuffer) {
        self.core.recycle(buffer);
    }

    /// Whether requests or background work, other than a checkpoint, are under way.
    fn is_working(&self) -> bool {
        self.requests.len() > 0
            || self.reads.len() > 0
            || self.parts.len() > 0
            || self.differences.len() > 0
            || !self.core.log.ordered.is_empty()
            || self.core.log.has_open(RowStream::Guests)
            || self.core.log.has_open(RowStream::Moved)
            || self.collector.is_busy()
            || self.resealer.is_working()
    }

    /// Whether to poll again soon: something is under way, or there is background work.
    pub fn is_busy(&self) -> bool {
        let is_removing = self.core.map.has_removal() && self.core.failed.is_none();
        let collects = self.is_short() && self.rests_at != Some(self.core.rewritten());
        self.core.ios_under_way() > 0
            || (self.core.failed.is_none()
                && (self.is_working()
                    || self.checkpointer.is_busy()
                    || self.core.syncs.is_busy()
                    || self.early.is_waiting()
                    || self.may_mark()
                    || self.scrubber.is_unsaved()
                    || self.has_history_work()
                    // A write that was refused for want of numbers is taken soon.
                    || (self.numbers.len() < IO_BLOCKS_MAX as usize && !self.has_no_numbers)
                    || collects))
            || is_removing
            || (self.is_leaving() && self.core.failed.is_none())
            || self.reads.len() > 0
            || self.differences.len() > 0
            || self.scrubber.works()
            || (self.resealer.is_busy() && self.core.failed.is_none() && self.core.has_room(1))
            || self.packs_soon()
    }

    /// Whether the pool will pack pages when it is idle.
    fn packs_soon(&self) -> bool {
        !self.is_short()
            && !self.is_closing
            && self.core.failed.is_none()
            && self.packing.is_due(&self.core)
    }

    /// Takes no more requests, and writes a last checkpoint, so that the next opening has no log
    /// to read.
    pub fn close(&mut self) {
        self.is_closing = true;
        self.scrubber.close();
        self.save_scrub();
        self.resealer.stop();
    }

    /// Whether the last checkpoint is durable, or a device failed; no request is under way.
    pub fn is_closed(&self) -> bool {
        let is_done = !self.is_working() && !self.checkpointer.is_busy();
        let is_written = self.core.log.blocks == 0 && is_done;
        self.is_closing
            && self.core.ios_under_way() == 0
            && (is_written || self.core.failed.is_some())
    }

    /// The volumes and snapshots.
    pub fn volumes(&self) -> Vec<PoolVolume> {
        let mut list = self.core.map.volumes_with(self.core.room());
        self.note_rest(&mut list);
        list
    }
}
