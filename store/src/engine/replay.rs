//! Finding the rows behind a checkpoint.
//!
//! Each of the two ordered streams is followed from its position in the superblock: a row lies
//! behind the row before it, or at the start of the segment that the head before it names. A row
//! whose head is damaged is known by the copy of its records in the stream's next head.

use super::core::device_block;
use super::segments::SegmentTable;
use crate::api::PoolDevices;
use crate::block::{Block, BlockBuffer};
use crate::format::{
    BlockPlace, LogRecord, NO_SEGMENT, ROW_BLOCKS_MAX, RowHead, SegmentId, StreamPosition,
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
}

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
        }
    }

    /// The stream's next row, if there is one.
    pub(crate) fn peek(
        &mut self,
        reader: &mut LogReader<'_>,
        segments: &SegmentTable,
    ) -> Option<&FoundRow> {
        if self.found.is_none() {
            self.found = self.find(reader, segments);
        }
        self.found.as_ref()
    }

    /// Takes the row that was peeked at, and goes on behind it.
    pub(crate) fn advance(&mut self, segments: &SegmentTable) -> FoundRow {
        let row = self.found.take().expect("a row was found");
        self.last = row.sequence;
        self.block = u32::from(row.place.block) + 1 + u32::from(row.payload);
        self.next = row.next;
        if segments.segment_blocks().saturating_sub(self.block) < 2 {
            self.segment = self.next;
            self.block = 0;
            self.next = NO_SEGMENT;
        }
        row
    }

    fn find(&self, reader: &mut LogReader<'_>, segments: &SegmentTable) -> Option<FoundRow> {
        let place = self.place(self.segment, self.block, segments)?;
        if let Some(head) = self.head_at(reader, segments, place) {
            return Some(FoundRow {
                sequence: head.sequence,
                place,
                payload: head.payload,
                records: head.records,
                durable: head.durable,
                next: head.next.0,
                is_copy: false,
            });
        }
        // The stream's next row is within a row's length, or at the start of the next segment.
        let behind = (1..=ROW_BLOCKS_MAX as u32)
            .filter_map(|behind| self.place(self.segment, self.block + behind, segments))
            .chain(self.place(self.next, 0, segments));
        for at in behind {
            let Some(head) = self.head_at(reader, segments, at) else { continue };
            let row = head.previous.filter(|row| row.place == place && row.sequence > self.last)?;
            let next = if at.segment == place.segment { head.next.0 } else { at.segment.0 };
            return Some(FoundRow {
                sequence: row.sequence,
                place,
                payload: row.payload,
                records: head.previous_records,
                durable: head.durable,
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
    ) -> Option<RowHead> {
        let mut block = Block::ZERO;
        reader.read(segments, place, &mut block);
        let head = RowHead::decode(&self.owner.uuid, &block).ok()?;
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
}

impl<'a> LogReader<'a> {
    /// A reader of these devices.
    pub(crate) fn new(devices: &'a mut dyn PoolDevices) -> Self {
        Self { devices, failed: None, buffer: BlockBuffer::new(1) }
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
