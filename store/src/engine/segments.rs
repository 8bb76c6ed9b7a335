//! Segments: which are free, how much of each is alive, and which is worth collecting.

use std::collections::{BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::format::{
    BLOCK_SECTORS, BlockPlace, PageEntry, RECORDS_MAX, ROW_BLOCKS_MAX, ROW_PAYLOAD_MAX, SegmentId,
};
use crate::map::LiveBlocks;

/// A collection has to gain at least this part of a segment, so that collecting ends.
const GAIN_PART_MIN: u32 = 16;

/// The life of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SegmentState {
    /// No durable superblock has it yet.
    Coming,
    /// Nothing that any durable checkpoint refers to is in it.
    Free,
    /// A stream writes to it, or has it reserved.
    Open,
    /// It is written, and may be collected.
    Closed,
    /// It was collected; the next checkpoint frees it if nothing in it is alive then.
    Collected,
    /// It was collected, and something in it is alive that no readable head names.
    Kept,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    state: SegmentState,
    /// Sectors of live pages.
    live: u32,
    /// The packed ones among these pages, and their sectors.
    packed: u32,
    packed_sectors: u32,
    /// Blocks that are written.
    filled: u32,
    readers: u32,
    /// The last row's sequence, or for a row of the map the sequence at which it was written.
    last: u64,
    /// All its rows are known to be of guests' writes or moved pages: none has a page of the map.
    is_ordered: bool,
    /// It is free by the log, and the durable checkpoint says that it is used.
    is_early: bool,
}

impl Segment {
    const FREE: Self = Self {
        state: SegmentState::Free,
        live: 0,
        packed: 0,
        packed_sectors: 0,
        filled: 0,
        readers: 0,
        last: 0,
        is_ordered: false,
        is_early: false,
    };

    /// The segment without a page of so many sectors; `None` if it cannot have had that.
    fn without(&self, sectors: u8) -> Option<Self> {
        let live = self.live.checked_sub(sectors.into())?;
        let packed = self.packed.checked_sub(u32::from(sectors < BLOCK_SECTORS))?;
        let packed_sectors = self.packed_sectors.checked_sub(packed_sectors(sectors))?;
        let is_possible = packed <= packed_sectors && packed_sectors <= live;
        is_possible.then_some(Self { live, packed, packed_sectors, ..*self })
    }

    /// Blocks of live pages.
    fn live_blocks(&self) -> u32 {
        self.live.div_ceil(BLOCK_SECTORS.into())
    }

    /// Blocks that the live pages take when they are moved, with the heads of their rows. Rows of
    /// packed pages are short, since a head has few records, and their last block is not full.
    fn moved_blocks(&self) -> u32 {
        let blocks = self.live_blocks();
        blocks + blocks.div_ceil(ROW_PAYLOAD_MAX as u32) + packing_blocks(self.packed.into()) as u32
    }

    /// Written, and nothing in it is alive.
    fn is_empty(&self) -> bool {
        use SegmentState::{Coming, Free, Open};
        let is_written = !matches!(self.state, Coming | Free | Open);
        is_written && self.live == 0
    }

    /// Nothing in it is alive, and the log says so: the checkpoint after the row `checkpointed`
    /// refers to pages of data in it alone, which rows behind that row have freed or moved, and no
    /// row in it is replayed.
    fn is_empty_by_log(&self, checkpointed: u64) -> bool {
        self.is_empty() && self.is_ordered && self.last <= checkpointed && self.readers == 0
    }

    /// Whether a collection may give enough back, if so few blocks are alive at most.
    fn is_gainful(&self, live_max: u32) -> bool {
        self.state == SegmentState::Closed && (1..=live_max).contains(&self.live_blocks())
    }
}

/// Blocks that so many packed pages take beside their sectors: a head for each [`RECORDS_MAX`] of
/// them, and half of a block that their row does not fill.
pub(crate) fn packing_blocks(packed: u64) -> u64 {
    (packed * 3).div_ceil(2 * RECORDS_MAX as u64)
}

/// A segment as a checkpoint has it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub(crate) struct SegmentRecord {
    /// Sectors of live pages in it; the checkpoint's own state is not counted.
    pub(crate) live: U32,
    /// The packed ones among these pages.
    pub(crate) packed: U32,
    /// The sectors of those.
    pub(crate) packed_sectors: U32,
    /// Blocks that are written; 0 for a free segment.
    pub(crate) filled: U32,
    /// The sequence of its last row.
    pub(crate) last: U64,
}

/// How many segments there are of each sort.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentCounts {
    /// All.
    pub total: u64,
    /// Free ones.
    pub free: u64,
    /// Those among them that the log has freed, without a checkpoint.
    #[serde(default, skip_serializing_if = "is_none")]
    pub early: u64,
    /// Those that the next checkpoint frees.
    pub emptied: u64,
    /// Those that cannot be freed, because a damaged head hides what is in them.
    pub kept: u64,
}

fn is_none(count: &u64) -> bool {
    *count == 0
}

/// The segments of one device; none in a place of the pool's table that no device has.
#[derive(Debug, Default)]
struct DeviceSegments {
    segments: Vec<Segment>,
    /// The newest free segment is used last.
    free: VecDeque<SegmentId>,
    /// Those that are free by the log alone, which are used first.
    early: VecDeque<SegmentId>,
    /// Nothing new comes to it, if there is room on the other devices.
    is_leaving: bool,
    /// Sectors of live pages.
    live: u64,
    /// Segments that no durable superblock has yet.
    coming: usize,
}

impl DeviceSegments {
    /// How many segments are free.
    fn free(&self) -> usize {
        self.free.len() + self.early.len()
    }
}

/// The counts of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeviceCounts {
    /// All its segments.
    pub(crate) segments: u32,
    /// Free ones among them.
    pub(crate) free: u32,
    /// Live blocks.
    pub(crate) live_blocks: u64,
    /// The pool is leaving it.
    pub(crate) is_leaving: bool,
}

/// The segments of a pool.
#[derive(Debug)]
pub(crate) struct SegmentTable {
    segment_blocks: u32,
    devices: Vec<DeviceSegments>,
    /// Free segments of all devices.
    free_count: usize,
    /// Those among them that are free by the log alone.
    early_count: usize,
    next_device: usize,
    /// Sectors of live pages.
    live: u64,
    /// Packed pages, and their sectors.
    packed: u64,
    packed_sectors: u64,
    /// Written segments in which nothing is alive. These lists and counts save a look at each
    /// segment in every round: a large pool has 100,000 of them.
    empty: BTreeSet<SegmentId>,
    /// Closed segments that may be worth a collection.
    gainful: usize,
    /// Segments that are collected.
    collected: usize,
    /// Segments that are kept although they were collected.
    kept: usize,
}

impl SegmentTable {
    /// A table of free segments, so many on each device.
    pub(crate) fn new(segment_blocks: u32, devices: &[u32]) -> Self {
        let of_device = |(device, &count): (u8, &u32)| DeviceSegments {
            segments: vec![Segment::FREE; count as usize],
            free: (0..count).map(|index| SegmentId::new(device, index)).collect(),
            ..DeviceSegments::default()
        };
        Self {
            segment_blocks,
            devices: (0u8..).zip(devices).map(of_device).collect(),
            free_count: devices.iter().map(|&count| count as usize).sum(),
            early_count: 0,
            next_device: 0,
            live: 0,
            packed: 0,
            packed_sectors: 0,
            empty: BTreeSet::new(),
            gainful: 0,
            collected: 0,
            kept: 0,
        }
    }

    /// Changes a segment, and the lists and counts with it.
    fn change<T>(&mut self, id: SegmentId, change: impl FnOnce(&mut Segment) -> T) -> T {
        let live_max = self.live_max();
        let segment = self.at_mut(id);
        let before = *segment;
        let result = change(segment);
        let after = *segment;
        if before.state == after.state && before.live == after.live {
            return result;
        }
        let count = |count: &mut usize, of: &dyn Fn(&Segment) -> bool| {
            *count = *count + usize::from(of(&after)) - usize::from(of(&before));
        };
        count(&mut self.gainful, &|segment| segment.is_gainful(live_max));
        count(&mut self.collected, &|segment| segment.state == SegmentState::Collected);
        count(&mut self.kept, &|segment| segment.state == SegmentState::Kept && segment.live > 0);
        match (before.is_empty(), after.is_empty()) {
            (false, true) => drop(self.empty.insert(id)),
            (true, false) => drop(self.empty.remove(&id)),
            _ => {}
        }
        result
    }

    /// The most live blocks of a segment that is worth a collection.
    fn live_max(&self) -> u32 {
        let room = self.segment_blocks - self.gain_min();
        // Each row of live blocks has a head.
        room - room.div_ceil(ROW_BLOCKS_MAX as u32)
    }

    /// The least that a collection must give back.
    fn gain_min(&self) -> u32 {
        (self.segment_blocks / GAIN_PART_MIN).max(2)
    }

    /// Whether there is such a segment and block.
    pub(crate) fn has(&self, place: BlockPlace) -> bool {
        u32::from(place.block) < self.segment_blocks && self.has_segment(place.segment)
    }

    /// Whether there is such a segment.
    pub(crate) fn has_segment(&self, id: SegmentId) -> bool {
        self.devices
            .get(usize::from(id.device()))
            .is_some_and(|device| (id.index() as usize) < device.segments.len())
    }

    fn at(&self, id: SegmentId) -> &Segment {
        &self.devices[usize::from(id.device())].segments[id.index() as usize]
    }

    fn at_mut(&mut self, id: SegmentId) -> &mut Segment {
        &mut self.devices[usize::from(id.device())].segments[id.index() as usize]
    }

    fn ids(&self) -> impl Iterator<Item = SegmentId> + '_ {
        (0..self.devices.len() as u8).flat_map(|device| self.ids_of(device))
    }

    fn ids_of(&self, device: u8) -> impl Iterator<Item = SegmentId> + use<> {
        let count = self.devices[usize::from(device)].segments.len() as u32;
        (0..count).map(move |index| SegmentId::new(device, index))
    }

    /// The segments before this segment, of all devices.
    pub(crate) fn position(&self, id: SegmentId) -> usize {
        let before = self.devices.iter().take(id.device().into());
        before.map(|device| device.segments.len()).sum::<usize>() + id.index() as usize
    }

    /// Blocks of a segment.
    pub(crate) fn segment_blocks(&self) -> u32 {
        self.segment_blocks
    }

    /// All segments.
    pub(crate) fn total(&self) -> usize {
        self.devices.iter().map(|device| device.segments.len()).sum()
    }

    /// Free segments.
    pub(crate) fn free_count(&self) -> usize {
        self.free_count
    }

    /// Those that an opening would find free, even if pages of the map were damaged.
    pub(crate) fn sure_count(&self) -> usize {
        self.free_count - self.early_count
    }

    /// Blocks that the pool's live pages take, with what rows of packed pages take more.
    pub(crate) fn live(&self) -> u64 {
        self.live.div_ceil(BLOCK_SECTORS.into()) + packing_blocks(self.packed)
    }

    /// Packed pages, and blocks that they take.
    pub(crate) fn packed(&self) -> (u64, u64) {
        let blocks = self.packed_sectors.div_ceil(BLOCK_SECTORS.into());
        (self.packed, blocks + packing_blocks(self.packed))
    }

    /// Where an entry's page is, if there is such a place.
    pub(crate) fn place_of(&self, entry: &PageEntry) -> Option<BlockPlace> {
        let place = entry.place()?;
        let end = u32::from(place.block) + entry.span();
        (end <= self.segment_blocks && self.has_segment(place.segment)).then_some(place)
    }

    /// Blocks of payload that a segment has room for, in full rows.
    pub(crate) fn payload_blocks(&self) -> u32 {
        self.segment_blocks - self.segment_blocks.div_ceil(ROW_BLOCKS_MAX as u32)
    }

    /// Takes a free segment for a stream; devices take turns. One of a device that the pool is
    /// leaving is taken only if there is no other: so a crash finds room in any case.
    pub(crate) fn take(&mut self) -> Option<SegmentId> {
        self.take_staying().or_else(|| self.take_where(|_| true))
    }

    /// The same, but never of a device that the pool is leaving.
    pub(crate) fn take_staying(&mut self) -> Option<SegmentId> {
        self.take_where(|device| !device.is_leaving)
    }

    fn take_where(&mut self, may: impl Fn(&DeviceSegments) -> bool) -> Option<SegmentId> {
        let count = self.devices.len();
        for turn in 0..2 * count {
            let device = self.next_device;
            self.next_device = (device + 1) % count;
            if !may(&self.devices[device]) {
                continue;
            }
            let DeviceSegments { free, early, .. } = &mut self.devices[device];
            let list = if turn < count { early } else { free };
            if let Some(id) = list.pop_front() {
                self.free_count -= 1;
                self.change(id, |segment| {
                    debug_assert!(segment.state == SegmentState::Free && segment.live == 0);
                    // A late or senseless entry of a page table has a free segment read.
                    let Segment { readers, is_early, .. } = *segment;
                    let state = SegmentState::Open;
                    *segment = Segment { state, readers, is_early, ..Segment::FREE };
                });
                self.early_count -= usize::from(turn < count);
                return Some(id);
            }
        }
        None
    }

    /// A row of `blocks` blocks is in it now, up to the block `end`.
    pub(crate) fn note_row(&mut self, id: SegmentId, end: u32, sequence: u64) {
        let segment = self.at_mut(id);
        segment.filled = segment.filled.max(end);
        segment.last = segment.last.max(sequence);
    }

    /// All its rows are of guests' writes or moved pages.
    pub(crate) fn note_ordered(&mut self, id: SegmentId) {
        self.at_mut(id).is_ordered = true;
    }

    /// A replay has come to the first row of a segment. The checkpoint may have it as a used one,
    /// if the log had freed it; all that was alive in it has gone by rows before this row, unless
    /// pages of the map are damaged.
    pub(crate) fn begin_again(&mut self, id: SegmentId) {
        let Segment { state, live, packed, packed_sectors, readers, .. } = *self.at(id);
        if state == SegmentState::Free {
            return;
        }
        self.live -= u64::from(live);
        self.devices[usize::from(id.device())].live -= u64::from(live);
        self.packed -= u64::from(packed);
        self.packed_sectors -= u64::from(packed_sectors);
        self.change(id, |segment| *segment = Segment { state, readers, ..Segment::FREE });
    }

    /// A stream has left it.
    pub(crate) fn close(&mut self, id: SegmentId) {
        self.change(id, |segment| segment.state = SegmentState::Closed);
    }

    /// Recovery found rows or blocks of the state in it: a free one is closed.
    pub(crate) fn found_used(&mut self, id: SegmentId) {
        if self.at(id).state == SegmentState::Free {
            self.devices[usize::from(id.device())].free.retain(|free| *free != id);
            self.free_count -= 1;
            self.close(id);
        }
    }

    /// A read of it begins: it is not used again until the read ends.
    pub(crate) fn pin(&mut self, id: SegmentId) {
        self.at_mut(id).readers += 1;
    }

    /// A read of it has ended.
    pub(crate) fn unpin(&mut self, id: SegmentId) {
        // A device that a damaged table still refers to may have left the pool.
        if self.has_segment(id) {
            self.at_mut(id).readers -= 1;
        }
    }

    /// How far it is written.
    pub(crate) fn filled(&self, id: SegmentId) -> u32 {
        self.at(id).filled
    }

    /// Sectors of live pages in it.
    pub(crate) fn live_in(&self, id: SegmentId) -> u32 {
        self.at(id).live
    }

    /// Segments that a checkpoint after the row `applied` frees, in their order.
    pub(crate) fn emptied(&self, applied: u64) -> impl Iterator<Item = SegmentId> {
        self.empty.iter().copied().filter(move |&id| self.at(id).last <= applied)
    }

    /// Segments that the log has emptied, if the row `checkpointed` is the last one of the durable
    /// checkpoint.
    pub(crate) fn emptied_by_log(&self, checkpointed: u64) -> impl Iterator<Item = SegmentId> {
        let is_empty = move |id: &SegmentId| self.at(*id).is_empty_by_log(checkpointed);
        self.empty.iter().copied().filter(is_empty)
    }

    /// Frees segments that the log has emptied, by rows that are durable.
    pub(crate) fn release_early(&mut self, ids: &[SegmentId], checkpointed: u64) {
        for &id in ids {
            if self.at(id).is_empty_by_log(checkpointed) {
                self.change(id, |segment| *segment = Segment { is_early: true, ..Segment::FREE });
                self.add_free(id);
            }
        }
    }

    /// A checkpoint is durable that has all free segments as free ones.
    pub(crate) fn settle_early(&mut self) {
        for device in 0..self.devices.len() {
            while let Some(id) = self.devices[device].early.pop_front() {
                self.early_count -= 1;
                self.at_mut(id).is_early = false;
                self.devices[device].free.push_back(id);
            }
        }
    }

    /// How many segments there are of each sort.
    pub(crate) fn counts(&self, applied: u64) -> SegmentCounts {
        SegmentCounts {
            total: self.total() as u64,
            free: self.free_count as u64,
            early: self.early_count as u64,
            emptied: self.emptied(applied).count() as u64,
            kept: self.kept as u64,
        }
    }

    /// The table as a checkpoint after the row `applied` has it: segments that it frees are free
    /// in it, and blocks of the last state, which are at `state`, are not counted.
    pub(crate) fn records(&self, applied: u64, state: &[BlockPlace]) -> Vec<SegmentRecord> {
        let mut first = vec![0; self.devices.len()];
        for device in 1..first.len() {
            first[device] = first[device - 1] + self.devices[device - 1].segments.len();
        }
        let record = |id| {
            let segment = self.at(id);
            let is_emptied = segment.is_empty() && segment.last <= applied;
            let is_free = matches!(segment.state, SegmentState::Free | SegmentState::Coming);
            let free = is_free || is_emptied;
            // A reserved segment without a row is free for a recovery.
            let unused = segment.state == SegmentState::Open && segment.filled == 0;
            match free || unused {
                true => SegmentRecord::new_zeroed(),
                false => SegmentRecord {
                    live: segment.live.into(),
                    packed: segment.packed.into(),
                    packed_sectors: segment.packed_sectors.into(),
                    filled: segment.filled.into(),
                    last: segment.last.into(),
                },
            }
        };
        let mut records: Vec<SegmentRecord> = self.ids().map(record).collect();
        for place in state.iter().filter(|place| self.has(**place)) {
            let at = first[usize::from(place.segment.device())] + place.segment.index() as usize;
            let live = records[at].live.get();
            records[at].live = live.saturating_sub(BLOCK_SECTORS.into()).into();
        }
        records
    }

    /// Puts the records of the checkpoint after the row `applied` into a table of free segments.
    /// Rows behind it were written already; the replay finds those that are there.
    ///
    /// # Errors
    /// If a record says more than a segment can have.
    pub(crate) fn restore(
        &mut self,
        records: &[SegmentRecord],
        applied: u64,
    ) -> Result<(), String> {
        let ids: Vec<_> = self.ids().collect();
        if ids.len() != records.len() {
            return Err(format!("{} segments in the state of {}", records.len(), ids.len()));
        }
        for (id, record) in ids.into_iter().zip(records) {
            let (live, filled) = (record.live.get(), record.filled.get());
            let (packed, packed_sectors) = (record.packed.get(), record.packed_sectors.get());
            let sectors = u64::from(filled) * u64::from(BLOCK_SECTORS);
            let is_possible = packed <= packed_sectors && packed_sectors <= live;
            if u64::from(live) > sectors || !is_possible || filled > self.segment_blocks {
                return Err(format!("{live} live sectors of {filled} blocks in a segment"));
            }
            if filled > 0 {
                self.live += u64::from(live);
                self.devices[usize::from(id.device())].live += u64::from(live);
                self.packed += u64::from(packed);
                self.packed_sectors += u64::from(packed_sectors);
                let last = record.last.get().min(applied);
                let state = SegmentState::Closed;
                self.change(id, |segment| {
                    *segment = Segment {
                        state,
                        live,
                        packed,
                        packed_sectors,
                        filled,
                        last,
                        ..Segment::FREE
                    };
                });
            }
        }
        for DeviceSegments { free, segments, .. } in &mut self.devices {
            free.retain(|id| segments[id.index() as usize].state == SegmentState::Free);
        }
        self.free_count = self.devices.iter().map(|device| device.free.len()).sum();
        Ok(())
    }

    /// Frees segments that a durable checkpoint has freed. A segment under a read stays until a
    /// later checkpoint.
    pub(crate) fn release(&mut self, ids: &[SegmentId]) {
        for &id in ids {
            debug_assert_eq!(self.at(id).live, 0);
            if self.at(id).readers == 0 {
                self.change(id, |segment| *segment = Segment::FREE);
                self.add_free(id);
            }
        }
    }

    /// Blocks that a collection of the segment gives back.
    fn gain(&self, segment: &Segment) -> u32 {
        segment.filled.max(1).saturating_sub(segment.moved_blocks())
    }

    /// Another segment that is worth collecting: the most space for the least work, and old ones
    /// first, because what is alive in them stays alive (the cost-benefit rule of log-structured
    /// file systems). `None` if none gives enough.
    /// In an emergency age does not count: the segments that kills have left behind are young.
    pub(crate) fn victim(&self, applied: u64, is_emergency: bool) -> Option<SegmentId> {
        if self.gainful == 0 { None } else { self.best(applied, is_emergency) }
    }

    fn best(&self, applied: u64, is_emergency: bool) -> Option<SegmentId> {
        let least = self.gain_min();
        let score = |id: SegmentId| {
            let segment = self.at(id);
            let gain = self.gain(segment);
            let fits = segment.state == SegmentState::Closed
                && segment.live > 0
                && !self.is_leaving(id)
                && segment.last <= applied
                // The end of a segment that no row fills is gained as well.
                && gain + (self.segment_blocks - segment.filled) >= least;
            fits.then(|| {
                let age = if is_emergency { 1 } else { applied - segment.last + 1 };
                let live = segment.live_blocks();
                let gained = u64::from(self.segment_blocks - live);
                u128::from(gained) * u128::from(age) * 1024 / u128::from(live + 1)
            })
        };
        self.ids().filter_map(|id| Some((score(id)?, id))).max().map(|(_, id)| id)
    }

    fn add_free(&mut self, id: SegmentId) {
        let is_early = self.at(id).is_early;
        let DeviceSegments { free, early, .. } = &mut self.devices[usize::from(id.device())];
        if is_early { early } else { free }.push_back(id);
        self.free_count += 1;
        self.early_count += usize::from(is_early);
    }

    /// Segments of devices that stay, as far as a durable superblock has them.
    pub(crate) fn staying(&self) -> usize {
        let stay = self.devices.iter().filter(|device| !device.is_leaving);
        stay.map(|device| device.segments.len() - device.coming).sum()
    }

    /// Free segments of devices that stay.
    pub(crate) fn free_staying(&self) -> usize {
        let leaving = self.devices.iter().filter(|device| device.is_leaving);
        self.free_count - leaving.map(DeviceSegments::free).sum::<usize>()
    }

    /// Whether the pool is leaving the device of a segment.
    pub(crate) fn is_leaving(&self, id: SegmentId) -> bool {
        self.devices.get(usize::from(id.device())).is_some_and(|device| device.is_leaving)
    }

    /// Whether the pool is leaving any device.
    pub(crate) fn has_leaving(&self) -> bool {
        self.devices.iter().any(|device| device.is_leaving)
    }

    /// The pool leaves a device, or keeps it after all.
    pub(crate) fn set_leaving(&mut self, device: u8, is_leaving: bool) {
        self.devices[usize::from(device)].is_leaving = is_leaving;
    }

    /// A device will have more segments, or will be there, when a superblock that says so is
    /// durable.
    pub(crate) fn announce(&mut self, device: u8, segments: u32) {
        let device = usize::from(device);
        if self.devices.len() <= device {
            self.devices.resize_with(device + 1, DeviceSegments::default);
        }
        let coming = Segment { state: SegmentState::Coming, ..Segment::FREE };
        let device = &mut self.devices[device];
        device.coming = segments as usize - device.segments.len();
        device.segments.resize(segments as usize, coming);
    }

    /// A superblock that has the announced segments of a device is durable.
    pub(crate) fn arrive(&mut self, device: u8) {
        let ids = self.ids_of(device);
        let coming = std::mem::take(&mut self.devices[usize::from(device)].coming);
        for id in ids.skip(self.devices[usize::from(device)].segments.len() - coming) {
            self.at_mut(id).state = SegmentState::Free;
            self.add_free(id);
        }
    }

    /// Whether a device is empty, and no read of it is under way.
    pub(crate) fn is_clear(&self, device: u8) -> bool {
        let DeviceSegments { segments, live, .. } = &self.devices[usize::from(device)];
        let is_clear = |it: &Segment| it.state == SegmentState::Free && it.readers == 0;
        *live == 0 && segments.iter().all(is_clear)
    }

    /// A device that is clear goes: from here on, none of its segments is taken.
    pub(crate) fn withdraw(&mut self, device: u8) {
        debug_assert!(self.is_clear(device));
        let gone = std::mem::take(&mut self.devices[usize::from(device)]);
        self.free_count -= gone.free();
        self.early_count -= gone.early.len();
        while self.devices.last().is_some_and(|device| device.segments.is_empty()) {
            self.devices.pop();
        }
        self.next_device = 0;
    }

    /// Sectors of live pages, and free segments, of the devices that the pool is leaving.
    pub(crate) fn left(&self) -> (u64, usize) {
        let leaving = self.devices.iter().filter(|device| device.is_leaving);
        leaving.fold((0, 0), |(live, free), device| (live + device.live, free + device.free()))
    }

    /// A device that the pool is leaving, and in which nothing is.
    pub(crate) fn left_device(&self) -> Option<u8> {
        let leaving = (0u8..).zip(&self.devices).filter(|(_, device)| device.is_leaving);
        leaving.map(|(number, _)| number).find(|&number| self.is_clear(number))
    }

    /// A segment of a device that the pool is leaving, with blocks that have to be moved.
    pub(crate) fn next_to_leave(&self, applied: u64) -> Option<SegmentId> {
        let leaving = (0u8..).zip(&self.devices).filter(|(_, device)| device.is_leaving);
        let mut ids = leaving.flat_map(|(device, _)| self.ids_of(device));
        ids.find(|&id| {
            let Segment { state, live, last, .. } = *self.at(id);
            state == SegmentState::Closed && live > 0 && last <= applied
        })
    }

    /// A reserved segment in which nothing is written is free again.
    pub(crate) fn give_back(&mut self, id: SegmentId) {
        debug_assert!(self.at(id).state == SegmentState::Open && self.at(id).filled == 0);
        self.change(id, |segment| segment.state = SegmentState::Free);
        self.add_free(id);
    }

    /// The counts of a device.
    pub(crate) fn of_device(&self, device: u8) -> DeviceCounts {
        self.devices.get(usize::from(device)).map_or_else(DeviceCounts::default, |device| {
            DeviceCounts {
                segments: device.segments.len() as u32,
                free: device.free() as u32,
                live_blocks: device.live.div_ceil(BLOCK_SECTORS.into()),
                is_leaving: device.is_leaving,
            }
        })
    }

    /// The first written segment behind `after` that has live pages, and whose last row is behind
    /// `from` and not behind `to`.
    pub(crate) fn next_written(
        &self,
        after: Option<SegmentId>,
        from: u64,
        to: u64,
    ) -> Option<SegmentId> {
        let first = after.map_or(0, |after| usize::from(after.device()));
        let devices = (0u8..).zip(&self.devices).skip(first);
        for (device, of) in devices.filter(|(_, of)| !of.is_leaving) {
            let before = after.filter(|after| after.device() == device);
            let begin = before.map_or(0, |before| before.index() as usize + 1);
            let fits = |segment: &Segment| {
                segment.state == SegmentState::Closed
                    && segment.live > 0
                    && segment.last > from
                    && segment.last <= to
            };
            let mut rest = of.segments.iter().enumerate().skip(begin);
            if let Some((index, _)) = rest.find(|(_, segment)| fits(segment)) {
                return Some(SegmentId::new(device, index as u32));
            }
        }
        None
    }

    /// Checks the lists and counts against a look at each segment.
    #[cfg(test)]
    pub(crate) fn check(&self, applied: u64) {
        let count =
            |of: &dyn Fn(&Segment) -> bool| self.ids().filter(|&id| of(self.at(id))).count();
        let live_max = self.live_max();
        let empty: BTreeSet<_> = self.ids().filter(|&id| self.at(id).is_empty()).collect();
        assert_eq!(self.empty, empty);
        assert_eq!(self.gainful, count(&|segment| segment.is_gainful(live_max)));
        assert_eq!(self.collected, count(&|segment| segment.state == SegmentState::Collected));
        let is_kept = |segment: &Segment| segment.state == SegmentState::Kept && segment.live > 0;
        assert_eq!(self.kept, count(&is_kept));
        assert_eq!(self.victim(applied, false), self.best(applied, false));
        assert_eq!(self.free_count, count(&|segment| segment.state == SegmentState::Free));
        let is_early = |it: &Segment| it.state == SegmentState::Free && it.is_early;
        assert_eq!(self.early_count, count(&is_early));
        let lists = |of: fn(&DeviceSegments) -> &VecDeque<SegmentId>| {
            self.devices.iter().map(|device| of(device).len()).sum::<usize>()
        };
        assert_eq!(lists(|device| &device.early), self.early_count);
        assert_eq!(lists(|device| &device.free), self.sure_count());
        for (number, device) in (0u8..).zip(&self.devices) {
            let live = self.ids_of(number).map(|id| u64::from(self.at(id).live)).sum::<u64>();
            assert_eq!(device.live, live);
        }
    }

    /// It was collected: all that is alive in it is on its way to another place.
    pub(crate) fn collected(&mut self, id: SegmentId, complete: bool) {
        let state = if complete { SegmentState::Collected } else { SegmentState::Kept };
        self.change(id, |segment| segment.state = state);
    }

    /// Collected segments in which something is alive may be collected again.
    pub(crate) fn reopen_collected(&mut self) {
        let again =
            |segment: &Segment| segment.state == SegmentState::Collected && segment.live > 0;
        let ids: Vec<_> = self.ids().filter(|&id| again(self.at(id))).collect();
        for id in ids {
            self.close(id);
        }
    }

    /// Segments of devices that stay, which the checkpoint after the row `applied` frees or may
    /// free, because they were collected.
    pub(crate) fn coming(&self, applied: u64) -> usize {
        let stays = |id: &SegmentId| !self.is_leaving(*id);
        let emptied = self.emptied(applied).filter(stays).count();
        let is_collected = |id: &SegmentId| self.at(*id).state == SegmentState::Collected;
        let collected = match self.has_leaving() {
            true => self.ids().filter(|id| is_collected(id) && stays(id)).count(),
            false => self.collected,
        };
        emptied + collected
    }
}

impl LiveBlocks for SegmentTable {
    fn gain(&mut self, place: BlockPlace, sectors: u8) {
        // A damaged or hostile table may name any place, and one place for many pages.
        if !self.has(place) {
            return;
        }
        let Segment { live, filled, .. } = *self.at(place.segment);
        if live + u32::from(sectors) > filled * u32::from(BLOCK_SECTORS) {
            return;
        }
        self.change(place.segment, |segment| {
            segment.live += u32::from(sectors);
            segment.packed += u32::from(sectors < BLOCK_SECTORS);
            segment.packed_sectors += packed_sectors(sectors);
        });
        self.live += u64::from(sectors);
        self.devices[usize::from(place.segment.device())].live += u64::from(sectors);
        self.packed += u64::from(sectors < BLOCK_SECTORS);
        self.packed_sectors += u64::from(packed_sectors(sectors));
    }

    fn lose(&mut self, place: BlockPlace, sectors: u8) {
        if !self.has(place) {
            return;
        }
        // A damaged table may name a place that was not counted: the count stays a count.
        let packed = u32::from(sectors < BLOCK_SECTORS);
        let before = *self.at(place.segment);
        let Some(after) = before.without(sectors) else { return };
        self.change(place.segment, |segment| *segment = after);
        self.live -= u64::from(sectors);
        self.devices[usize::from(place.segment.device())].live -= u64::from(sectors);
        self.packed -= u64::from(packed);
        self.packed_sectors -= u64::from(packed_sectors(sectors));
    }
}

/// The sectors of a page that count as packed.
fn packed_sectors(sectors: u8) -> u32 {
    if sectors < BLOCK_SECTORS { sectors.into() } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The entry of a page that is gone names a segment that is free by now.
    #[test]
    fn a_read_of_a_free_segment_ends_after_the_segment_was_taken() {
        let mut segments = SegmentTable::new(8, &[2]);
        let id = SegmentId::new(0, 0);
        segments.pin(id);
        assert_eq!(segments.take(), Some(id));
        segments.note_row(id, 8, 5);
        segments.close(id);
        assert!(segments.emptied(5).eq([id]));
        segments.release(&[id]);
        assert_eq!(segments.free_count(), 1, "the read holds it back");
        segments.unpin(id);
        segments.release(&[id]);
        assert_eq!(segments.free_count(), 2);
    }
}
