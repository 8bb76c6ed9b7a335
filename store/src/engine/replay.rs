//! Finding the rows behind a checkpoint.
//!
//! Each of the two ordered streams is followed from its position in the superblock: a row lies
//! behind the row before it, or at the start of the segment that the head before it names. A row
//! whose head is damaged is known by the copy of its records in the stream's next head.
//!
//! Where rows are short, 1 MiB of the log is read at once; where they are long, their heads alone:
//! both take a device about the same time for each row, and one of them is far better for others.

use super::core::device_block;
use super::segments::SegmentTable;
use crate::api::{DeviceRead, PoolDevices};
use crate::block::{Block, BlockBuffer};
use crate::format::{
    BlockPlace, LogRecord, NO_SEGMENT, ROW_BLOCKS_MAX, RowHead, STREAMS, SegmentId, StreamPosition,
};
use crate::layout::PoolOpenError;

/// The opening whose rows are looked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogOwner {
    /// The pool.
    pub(crate) uuid: [u8; 16],
    /// The opening's salt.
    pub(crate) salt: u64,
    /// The opening.
    pub(crate) opening: u64,
}

/// A row that was found.
#[derive(Clone, Debug)]
pub(crate) struct FoundRow {
    /// Its sequence.
    pub(crate) sequence: u64,
    /// The place of its head.
    pub(crate) place: BlockPlace,
    /// Its blocks of payload.
    pub(crate) payload: u8,
    /// Its records.
    pub(crate) records: Vec<LogRecord>,
    /// Rows up to this one were durable when it was written.
    pub(crate) durable: u64,
    /// Its stream.
    pub(crate) stream: u8,
    /// The segment behind its own.
    next: u32,
    /// Its head is damaged, and the records come from the next row's.
    pub(crate) is_copy: bool,
}

/// Follows a stream.
#[derive(Debug)]
pub(crate) struct StreamWalk {
    owner: LogOwner,
    stream: u8,
    segment: u32,
    block: u32,
    next: u32,
    /// The sequence of the last row, or of the checkpoint.
    last: u64,
    found: Option<FoundRow>,
    /// There is no other row.
    has_ended: bool,
    /// The mean length of the last rows, with their heads, times [`MEAN_OF`].
    length: u32,
    /// The payload of rows is read as well.
    pub(crate) proves: bool,
}

/// The rows of the mean length: enough to tell streams of long rows from others.
const MEAN_OF: u32 = 8;

/// The mean length from which on the heads are read alone.
const LONG_ROW_BLOCKS: u32 = 24;

/// Blocks that are read at once where rows are short, or all that they have is proved.
pub(crate) const WINDOW_BLOCKS: u32 = 256;
const _: () = assert!(WINDOW_BLOCKS as usize > 2 * ROW_BLOCKS_MAX);

impl StreamWalk {
    /// From a position behind the row `last`.
    pub(crate) fn new(owner: LogOwner, stream: u8, position: StreamPosition, last: u64) -> Self {
        Self {
            owner,
            stream,
            segment: position.segment.get(),
            block: position.block.get(),
            next: position.next.get(),
            last,
            found: None,
            has_ended: false,
            // The first head is read alone, and its row says how to go on.
            length: MEAN_OF * LONG_ROW_BLOCKS,
            proves: false,
        }
    }

    /// The stream's next row, if there is one.
    pub(crate) fn peek(
        &mut self,
        reader: &mut LogReader<'_>,
        segments: &SegmentTable,
    ) -> Option<&FoundRow> {
        if self.found.is_none() && !self.has_ended {
            self.found = self.find(reader, segments);
            self.has_ended = self.found.is_none();
        }
        self.found.as_ref()
    }

    /// Takes the row that was peeked at, and goes on behind it.
    pub(crate) fn advance(&mut self, segments: &SegmentTable) -> FoundRow {
        let row = self.found.take().expect("a row was found");
        self.last = row.sequence;
        self.length = self.length - self.length / MEAN_OF + 1 + u32::from(row.payload);
        self.block = u32::from(row.place.block) + 1 + u32::from(row.payload);
        self.next = row.next;
        if segments.segment_blocks().saturating_sub(self.block) < 2 {
            self.segment = self.next;
            self.block = 0;
            self.next = NO_SEGMENT;
        }
        row
    }

    /// The blocks to read where a row is looked for.
    fn ahead(&self) -> u32 {
        let reads_all = self.proves || self.length / MEAN_OF < LONG_ROW_BLOCKS;
        if reads_all { WINDOW_BLOCKS } else { 1 }
    }

    /// Goes on with the first row of the next segment, if it is there. The rows between are not
    /// looked at.
    pub(crate) fn skip_segment(
        &mut self,
        reader: &mut LogReader<'_>,
        segments: &SegmentTable,
    ) -> bool {
        let next = self.found.as_ref().map_or(NO_SEGMENT, |row| row.next);
        let Some(place) = self.place(next, 0, segments) else { return false };
        let mut block = Block::ZERO;
        reader.read(segments, place, &mut block);
        if self.head_in(&block, place, segments).is_none() {
            return false;
        }
        self.found = None;
        (self.segment, self.block, self.next) = (next, 0, NO_SEGMENT);
        true
    }

    fn find(&self, reader: &mut LogReader<'_>, segments: &SegmentTable) -> Option<FoundRow> {
        let place = self.place(self.segment, self.block, segments)?;
        let mut head = self.head_at(reader, segments, place, self.ahead());
        if head.is_none() {
            // A transfer may have been disturbed: the medium is asked once more.
            let mut block = Block::ZERO;
            reader.read(segments, place, &mut block);
            head = self.head_in(&block, place, segments);
        }
        if let Some(head) = head {
            return Some(FoundRow {
                sequence: head.sequence,
                place,
                payload: head.payload,
                records: head.records,
                durable: head.durable,
                stream: self.stream,
                next: head.next.0,
                is_copy: false,
            });
        }
        // The stream's next row is within a row's length, or at the start of the next segment.
        let behind = (1..=ROW_BLOCKS_MAX as u32)
            .filter_map(|behind| self.place(self.segment, self.block + behind, segments))
            .chain(self.place(self.next, 0, segments));
        for at in behind {
            let Some(head) = self.head_at(reader, segments, at, ROW_BLOCKS_MAX as u32) else {
                continue;
            };
            let row = head.previous.filter(|row| row.place == place && row.sequence > self.last)?;
            let next = if at.segment == place.segment { head.next.0 } else { at.segment.0 };
            return Some(FoundRow {
                sequence: row.sequence,
                place,
                payload: row.payload,
                records: head.previous_records,
                durable: head.durable,
                stream: self.stream,
                next,
                is_copy: true,
            });
        }
        None
    }

    fn place(&self, segment: u32, block: u32, segments: &SegmentTable) -> Option<BlockPlace> {
        let place = BlockPlace { segment: SegmentId(segment), block: u16::try_from(block).ok()? };
        (segment != NO_SEGMENT && segments.has(place)).then_some(place)
    }

    fn head_at(
        &self,
        reader: &mut LogReader<'_>,
        segments: &SegmentTable,
        place: BlockPlace,
        ahead: u32,
    ) -> Option<RowHead> {
        let blocks = reader.ahead(segments, self.stream, place, 1, ahead);
        self.head_in(&blocks[0], place, segments)
    }

    /// The head that a block is, if it is one of this stream behind the last one.
    fn head_in(
        &self,
        block: &Block,
        place: BlockPlace,
        segments: &SegmentTable,
    ) -> Option<RowHead> {
        let head = RowHead::decode(&self.owner.uuid, block).ok()?;
        let is_of_stream = head.salt == self.owner.salt
            && head.opening == self.owner.opening
            && head.stream == self.stream
            && head.place == place
            && head.sequence > self.last;
        let end = u32::from(place.block) + 1 + u32::from(head.payload);
        (is_of_stream && end <= segments.segment_blocks()).then_some(head)
    }
}

/// Tries of a read in a recovery. A transfer may be disturbed once; a row that cannot be read must
/// not pass for one that was never written.
const TRIES_MAX: usize = 3;

/// The devices of a recovery, and the first read that failed on all tries.
pub(crate) struct LogReader<'a> {
    /// The devices.
    pub(crate) devices: &'a mut dyn PoolDevices,
    failed: Option<PoolOpenError>,
    buffer: BlockBuffer,
    /// Blocks of each stream that were read ahead.
    windows: [LogWindow; STREAMS - 1],
    spare: Vec<BlockBuffer>,
}

/// Blocks of a segment that were read together.
struct LogWindow {
    start: BlockPlace,
    blocks: u32,
    buffer: BlockBuffer,
}

impl LogWindow {
    fn new() -> Self {
        let start = BlockPlace { segment: SegmentId(NO_SEGMENT), block: 0 };
        Self { start, blocks: 0, buffer: BlockBuffer::new(WINDOW_BLOCKS as usize) }
    }

    /// The blocks from a place on, if as many are here.
    fn position(&self, place: BlockPlace, blocks: u32) -> Option<usize> {
        let from = u32::from(place.block).checked_sub(u32::from(self.start.block))?;
        let has = self.start.segment == place.segment && from + blocks <= self.blocks;
        has.then_some(from as usize)
    }
}

impl<'a> LogReader<'a> {
    /// A reader of these devices.
    pub(crate) fn new(devices: &'a mut dyn PoolDevices) -> Self {
        let windows = std::array::from_fn(|_| LogWindow::new());
        Self { devices, failed: None, buffer: BlockBuffer::new(1), windows, spare: Vec::new() }
    }

    /// Blocks of a stream, from a place on. If they were not read before, up to `ahead` blocks are
    /// read together. Those that a device cannot read are zeroes, as with [`Self::read`].
    pub(crate) fn ahead(
        &mut self,
        segments: &SegmentTable,
        stream: u8,
        place: BlockPlace,
        blocks: u32,
        ahead: u32,
    ) -> &[Block] {
        let index = usize::from(stream);
        let mut at = self.windows[index].position(place, blocks);
        if at.is_none() {
            self.fill(segments, index, place, blocks, ahead);
            at = Some(0);
        }
        let from = at.unwrap_or(0);
        &self.windows[index].buffer.blocks()[from..from + blocks as usize]
    }

    fn fill(
        &mut self,
        segments: &SegmentTable,
        index: usize,
        place: BlockPlace,
        blocks: u32,
        ahead: u32,
    ) {
        let rest = segments.segment_blocks().saturating_sub(place.block.into());
        let count = ahead.clamp(blocks, WINDOW_BLOCKS).min(rest.max(blocks));
        let at = device_block(place, segments.segment_blocks());
        let device = place.segment.device();
        let has = segments.has(place) && count <= rest;
        let window = &mut self.windows[index];
        (window.start, window.blocks) = (place, count);
        if has && self.devices.read(device, at, &mut window.buffer, count).is_ok() {
            return;
        }
        // One block that cannot be read must not hide the others.
        self.windows[index].blocks = blocks;
        for offset in 0..blocks as u16 {
            let mut block = Block::ZERO;
            let place = BlockPlace { block: place.block.saturating_add(offset), ..place };
            self.read(segments, place, &mut block);
            self.windows[index].buffer.blocks_mut()[usize::from(offset)].0 = block.0;
        }
    }

    /// Reads a block; zeroes, which match no check, if there is no such place or the device
    /// cannot. A device that cannot is remembered for `check`.
    pub(crate) fn read(&mut self, segments: &SegmentTable, place: BlockPlace, block: &mut Block) {
        block.0.fill(0);
        if !segments.has(place) {
            return;
        }
        let at = device_block(place, segments.segment_blocks());
        let device = place.segment.device();
        match read_patiently(self.devices, device, at, &mut self.buffer) {
            Ok(()) => block.0.copy_from_slice(&self.buffer.blocks()[0].0),
            Err(error) => {
                self.failed.get_or_insert(error);
            }
        }
    }

    /// Reads single blocks, in any order, and hands each of them out as [`Self::read`] does.
    pub(crate) fn read_all(
        &mut self,
        segments: &SegmentTable,
        places: &[Option<BlockPlace>],
        mut found: impl FnMut(usize, &Block),
    ) {
        let (mut reads, mut indices) = (Vec::new(), Vec::new());
        for (index, place) in places.iter().enumerate() {
            if let Some(place) = place.filter(|&place| segments.has(place)) {
                let block = device_block(place, segments.segment_blocks());
                let buffer = self.spare.pop().unwrap_or_else(|| BlockBuffer::new(1));
                reads.push(DeviceRead {
                    device: place.segment.device(),
                    block,
                    buffer,
                    blocks: 1,
                    result: Ok(()),
                });
                indices.push(index);
            }
        }
        self.devices.read_all(&mut reads);
        for (read, index) in reads.into_iter().zip(indices) {
            if let (Err(_), Some(place)) = (read.result, places[index]) {
                let mut block = Block::ZERO;
                self.read(segments, place, &mut block);
                found(index, &block);
            } else {
                found(index, &read.buffer.blocks()[0]);
            }
            self.spare.push(read.buffer);
        }
    }

    /// Whether all reads since the last call were done.
    ///
    /// # Errors
    /// The first one that was not.
    pub(crate) fn check(&mut self) -> Result<(), PoolOpenError> {
        self.failed.take().map_or(Ok(()), Err)
    }
}

/// Reads a block of a device, with some tries.
///
/// # Errors
/// If none succeeds.
pub(crate) fn read_patiently(
    devices: &mut dyn PoolDevices,
    device: u8,
    block: u64,
    buffer: &mut BlockBuffer,
) -> Result<(), PoolOpenError> {
    let read = |_| devices.read(device, block, buffer, 1).err();
    let errors: Vec<_> = (0..TRIES_MAX).map_while(read).collect();
    match errors.last() {
        Some(&error) if errors.len() == TRIES_MAX => Err(PoolOpenError::Device { device, error }),
        _ => Ok(()),
    }
}
