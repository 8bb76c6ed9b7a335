//! Rows: filled, written, and then applied in the order of their sequence.

use std::collections::VecDeque;
use std::sync::Arc;

use super::segments::SegmentTable;
use crate::block::{BLOCK_BYTES, Block, BlockBuffer};
use crate::format::{
    BLOCK_SECTORS, BlockPlace, LogRecord, PageForm, PayloadPlace, RECORDS_MAX, ROW_BLOCKS_MAX,
    ROW_PAYLOAD_MAX, RowHead, RowPosition, SECTOR_BYTES, STREAMS, SegmentId, StreamPosition,
    payload_places, tag_crc, tag_of,
};
use crate::map::{MapPage, WriteToken};
use seal::PageKey;

/// The most rows that are filled or written at once, of all streams: 12.5 MiB of buffers, enough
/// to keep a device busy with writes of 200 KiB.
pub(crate) const ROWS_MAX: usize = 64;

/// A stream of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowStream {
    /// Guests' writes, and all changes without pages.
    Guests = 0,
    /// Pages that collection has moved.
    Moved = 1,
    /// Pages of the map, and checkpoints' states.
    Map = 2,
}

/// Where the thing of a record came from, and goes when the record is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordOwner {
    /// Nothing waits for it.
    None,
    /// A request: its token.
    Request(u64),
    /// A page of the map that is being written.
    Page(MapPage, WriteToken),
    /// A block of the checkpoint's state.
    State {
        /// Which of the two copies.
        copy: u8,
        /// Which block, as in the record.
        index: u64,
    },
    /// A step of a removal.
    Removal,
    /// A record of a history.
    History,
    /// A move of a collection.
    Move,
    /// A page that is sealed anew.
    Reseal,
}

/// A row: being filled, written, or waiting for the rows before it.
#[derive(Debug)]
pub(crate) struct Row {
    /// The blocks: the head, then the payload. `None` while a device has it.
    pub(crate) buffer: Option<BlockBuffer>,
    /// The changes.
    pub(crate) records: Vec<LogRecord>,
    /// The owner of each record.
    pub(crate) owners: Vec<RecordOwner>,
    /// The keys of the records that are sealed, in their order.
    keys: Vec<Arc<PageKey>>,
    /// Blocks of payload.
    pub(crate) payload: u8,
    /// Those of whole pages.
    whole: u8,
    /// Sectors of packed pages.
    packed: u16,
    /// Where it is, once it is closed.
    pub(crate) position: RowPosition,
    /// The segment behind its own.
    pub(crate) next: SegmentId,
    /// Its stream.
    pub(crate) stream: RowStream,
    /// Whether the device has written it.
    pub(crate) is_written: bool,
    /// How many records are applied.
    pub(crate) applied: usize,
    /// The next one has waited for a page of the map.
    pub(crate) has_waited: bool,
    /// The number of writes that failed.
    pub(crate) failures: u8,
}

impl Row {
    /// The place of each record's payload; of the head for a record that has none.
    pub(crate) fn places(&self) -> impl Iterator<Item = PayloadPlace> + '_ {
        payload_places(self.position.place, &self.records)
    }

    /// Takes room for a payload of this form.
    fn take(&mut self, form: PageForm) -> PackedRoom {
        let from = usize::from(self.packed);
        match form.is_packed() {
            true => self.packed += u16::from(form.sectors),
            false => self.whole += 1,
        }
        let packed = self.packed.div_ceil(u16::from(BLOCK_SECTORS));
        let grown = self.whole + packed as u8 - self.payload;
        self.payload += grown;
        PackedRoom { from, grown }
    }

    fn has_room(&self, limit: usize, with_payload: bool) -> bool {
        self.records.len() < RECORDS_MAX && (!with_payload || usize::from(self.payload) < limit)
    }
}

/// Room that a payload has taken in a row.
struct PackedRoom {
    /// Sectors of packed pages before it.
    from: usize,
    /// Blocks that the payload of the row has grown by.
    grown: u8,
}

#[derive(Debug)]
struct Stream {
    segment: SegmentId,
    next: SegmentId,
    block: u32,
    previous: Option<RowPosition>,
    previous_records: Vec<LogRecord>,
    open: Option<Row>,
}

/// The end of the log.
#[derive(Debug)]
pub(crate) struct RowLog {
    uuid: [u8; 16],
    /// The lower half of the opening's salt: that is enough to tell its rows from others.
    salt: u64,
    opening: u64,
    /// The last sequence that was given to a row of guests or a moved one.
    sequence: u64,
    /// The same for rows of the map.
    map_sequence: u64,
    streams: [Stream; STREAMS],
    /// Closed rows of the two ordered streams, by their sequence, until they are applied.
    pub(crate) ordered: VecDeque<Row>,
    spare: Vec<Row>,
    /// Packed pages of the open row of moved pages: they follow its whole ones, whose number is
    /// known when the row is closed.
    packed: BlockBuffer,
    rows: usize,
    payload_under_way: u64,
    /// The last ordered row that has a record.
    last_filled: u64,
    /// The durable mark in the last head.
    marked: u64,
    /// Blocks of ordered rows since the last checkpoint.
    pub(crate) blocks: u64,
}

impl RowLog {
    /// The log of an opening, behind the row `sequence`; every stream is in new segments.
    /// `None` if there are too few.
    pub(crate) fn new(
        uuid: [u8; 16],
        salt: u64,
        opening: u64,
        sequence: u64,
        segments: &mut SegmentTable,
    ) -> Option<Self> {
        let mut stream = || {
            Some(Stream {
                segment: segments.take()?,
                next: segments.take()?,
                block: 0,
                previous: None,
                previous_records: Vec::new(),
                open: None,
            })
        };
        let streams = [stream()?, stream()?, stream()?];
        Some(Self {
            uuid,
            salt,
            opening,
            sequence,
            map_sequence: 0,
            streams,
            ordered: VecDeque::new(),
            spare: Vec::new(),
            packed: BlockBuffer::new(ROW_PAYLOAD_MAX),
            rows: 0,
            payload_under_way: 0,
            last_filled: 0,
            marked: sequence,
            blocks: 0,
        })
    }

    /// Streams go away from devices that the pool is leaving, as far as there is room. Only for a
    /// checkpoint's cut: its superblock says where a stream goes on. A stream with rows that are
    /// not applied stays, because the heads of these rows say where it goes on. Whether a stream
    /// went: then only that superblock leads to its next rows.
    pub(crate) fn leave(
        &mut self,
        segments: &mut SegmentTable,
        may: impl Fn(&SegmentTable) -> bool,
    ) -> bool {
        let mut has_left = false;
        for (index, stream) in self.streams.iter_mut().enumerate() {
            let waits = self.ordered.iter().any(|row| row.stream as usize == index);
            if waits || !may(segments) {
                continue;
            }
            if segments.is_leaving(stream.next)
                && let Some(next) = segments.take_staying()
            {
                segments.give_back(stream.next);
                stream.next = next;
                has_left = true;
            }
            let is_in = segments.is_leaving(stream.segment) && !segments.is_leaving(stream.next);
            let next = if is_in { segments.take_staying() } else { None };
            if let Some(next) = next {
                match stream.block {
                    0 => segments.give_back(stream.segment),
                    _ => segments.close(stream.segment),
                }
                (stream.segment, stream.block, stream.next) = (stream.next, 0, next);
                has_left = true;
            }
        }
        has_left
    }

    /// A checkpoint covers all rows that are applied: those behind it are the log from here on.
    pub(crate) fn cut(&mut self) {
        self.blocks = self.ordered.iter().map(|row| 1 + u64::from(row.payload)).sum();
    }

    /// The last sequence that was given.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Rows that are filled or under way.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Blocks of payload of the ordered rows that are not applied yet.
    pub(crate) fn payload_under_way(&self) -> u64 {
        self.payload_under_way
    }

    /// Whether some records of the first row are applied, and others not yet.
    pub(crate) fn is_inside_row(&self) -> bool {
        self.ordered.front().is_some_and(|row| row.applied > 0)
    }

    /// Whether a stream has a row that is being filled.
    pub(crate) fn has_open(&self, stream: RowStream) -> bool {
        self.streams[stream as usize].open.is_some()
    }

    /// Adds a record, and its block of payload, which `fill` writes; opens a row if none is open.
    /// The caller has made sure of a row and of segments. A row that is full now is given back,
    /// to be written.
    pub(crate) fn push(
        &mut self,
        stream: RowStream,
        record: LogRecord,
        owner: RecordOwner,
        fill: impl FnOnce(&mut Block),
        segments: &SegmentTable,
    ) -> bool {
        self.push_in(stream, record, owner, segments, |row, _, _| {
            let buffer = row.buffer.as_mut().expect("an open row has its buffer");
            fill(&mut buffer.blocks_mut()[usize::from(row.whole)]);
        })
    }

    /// Adds a record with a packed page to the row of moved pages: `bytes` are its sectors.
    pub(crate) fn push_packed(
        &mut self,
        record: LogRecord,
        owner: RecordOwner,
        bytes: &[u8],
        segments: &SegmentTable,
    ) -> bool {
        self.push_in(RowStream::Moved, record, owner, segments, |_, packed, room| {
            let from = room.from * SECTOR_BYTES;
            packed.bytes_mut()[from..from + bytes.len()].copy_from_slice(bytes);
        })
    }

    fn push_in(
        &mut self,
        stream: RowStream,
        record: LogRecord,
        owner: RecordOwner,
        segments: &SegmentTable,
        fill: impl FnOnce(&mut Row, &mut BlockBuffer, &PackedRoom),
    ) -> bool {
        let at = &mut self.streams[stream as usize];
        let limit = (segments.segment_blocks() - at.block - 1).min(ROW_PAYLOAD_MAX as u32) as usize;
        let row = at.open.get_or_insert_with(|| {
            self.rows += 1;
            let mut row = self.spare.pop().unwrap_or_else(Self::blank);
            row.stream = stream;
            row
        });
        debug_assert!(row.has_room(limit, record.has_payload()));
        if let Some(form) = record.form() {
            let room = row.take(form);
            self.payload_under_way += u64::from(room.grown) * u64::from(stream != RowStream::Map);
            fill(row, &mut self.packed, &room);
        }
        row.records.push(record);
        row.owners.push(owner);
        !row.has_room(limit, true)
    }

    /// Opens a row without records, whose head says how far the log is durable.
    pub(crate) fn open_mark(&mut self) {
        self.rows += 1;
        let mut row = self.spare.pop().unwrap_or_else(Self::blank);
        row.stream = RowStream::Guests;
        let open = &mut self.streams[RowStream::Guests as usize].open;
        debug_assert!(open.is_none());
        *open = Some(row);
    }

    /// Whether rows are durable of which no head says so.
    pub(crate) fn needs_mark(&self, durable: u64) -> bool {
        durable.min(self.last_filled) > self.marked
    }

    /// A checkpoint says that rows up to this one are durable.
    pub(crate) fn is_marked(&mut self, durable: u64) {
        self.marked = self.marked.max(durable);
    }

    fn blank() -> Row {
        let none = BlockPlace { segment: SegmentId(0), block: 0 };
        Row {
            buffer: Some(BlockBuffer::new(ROW_BLOCKS_MAX)),
            records: Vec::with_capacity(RECORDS_MAX),
            owners: Vec::with_capacity(RECORDS_MAX),
            keys: Vec::with_capacity(RECORDS_MAX),
            payload: 0,
            whole: 0,
            packed: 0,
            position: RowPosition { sequence: 0, place: none, payload: 0 },
            next: SegmentId(0),
            stream: RowStream::Guests,
            is_written: false,
            applied: 0,
            has_waited: false,
            failures: 0,
        }
    }

    /// Sets the key of the record that was pushed last, whose page will be sealed.
    pub(crate) fn set_key(&mut self, stream: RowStream, key: Arc<PageKey>) {
        let row = self.streams[stream as usize].open.as_mut().expect("an open row");
        row.keys.push(key);
    }

    /// Sets the owner of the record that was pushed last.
    pub(crate) fn set_owner(&mut self, stream: RowStream, owner: RecordOwner) {
        let row = self.streams[stream as usize].open.as_mut().expect("an open row");
        *row.owners.last_mut().expect("a record was pushed") = owner;
    }

    /// Closes the stream's open row: it gets its sequence, its place, its checks and its head.
    /// The stream moves on; the caller has made sure of a free segment for the case that the
    /// stream needs another one.
    ///
    /// # Panics
    /// If no row is open or no segment is free.
    pub(crate) fn close(
        &mut self,
        stream: RowStream,
        durable: u64,
        segments: &mut SegmentTable,
    ) -> Row {
        let counter = match stream {
            RowStream::Map => &mut self.map_sequence,
            RowStream::Guests | RowStream::Moved => &mut self.sequence,
        };
        *counter += 1;
        let sequence = *counter;
        let at = &mut self.streams[stream as usize];
        let mut row = at.open.take().expect("an open row");
        let place = BlockPlace { segment: at.segment, block: at.block as u16 };
        row.position = RowPosition { sequence, place, payload: row.payload };
        row.next = at.next;
        let mut buffer = row.buffer.take().expect("an open row has its buffer");
        if row.packed > 0 {
            let used = usize::from(row.packed) * SECTOR_BYTES;
            let (from, end) = (1 + usize::from(row.whole), 1 + usize::from(row.payload));
            let packed = &mut buffer.bytes_mut()[from * BLOCK_BYTES..end * BLOCK_BYTES];
            packed[..used].copy_from_slice(&self.packed.bytes()[..used]);
            packed[used..].fill(0);
        }
        seal_pages(sequence, &mut row, &mut buffer.blocks_mut()[1..]);
        set_checks(&self.uuid, sequence, place, &mut row.records, buffer.blocks());
        let head = RowHead {
            salt: self.salt,
            opening: self.opening,
            sequence,
            durable,
            place,
            stream: stream as u8,
            payload: row.payload,
            next: at.next,
            previous: at.previous,
            records: std::mem::take(&mut row.records),
            previous_records: std::mem::take(&mut at.previous_records),
        };
        head.encode(&self.uuid, &mut buffer.blocks_mut()[0]);
        row.buffer = Some(buffer);
        row.records = head.records;
        at.previous_records = head.previous_records;
        at.previous_records.clone_from(&row.records);
        at.previous = Some(row.position);
        at.block += 1 + u32::from(row.payload);
        if stream != RowStream::Map {
            self.marked = durable;
            if !row.records.is_empty() {
                self.last_filled = sequence;
            }
            self.blocks += 1 + u64::from(row.payload);
        }
        segments.note_row(at.segment, at.block, self.sequence);
        if stream != RowStream::Map {
            segments.note_ordered(at.segment);
        }
        if segments.segment_blocks() - at.block < 2 {
            segments.close(at.segment);
            at.segment = at.next;
            at.block = 0;
            at.next = segments.take().expect("a free segment was made sure of");
        }
        row
    }

    /// A row is done with: its memory is used again.
    pub(crate) fn retire(&mut self, mut row: Row) {
        self.rows -= 1;
        if row.stream != RowStream::Map {
            self.payload_under_way -= u64::from(row.payload);
        }
        row.records.clear();
        row.owners.clear();
        row.keys.clear();
        (row.payload, row.whole, row.packed) = (0, 0, 0);
        row.is_written = false;
        row.applied = 0;
        row.has_waited = false;
        row.failures = 0;
        if row.buffer.is_some() {
            self.spare.push(row);
        }
    }

    /// Where a recovery finds the first row behind the last applied one, for each stream.
    pub(crate) fn positions(&self) -> [StreamPosition; STREAMS] {
        let mut positions = [StreamPosition::NONE; STREAMS];
        for (index, stream) in self.streams[..2].iter().enumerate() {
            let waiting = self.ordered.iter().find(|row| row.stream as usize == index);
            positions[index] = match waiting {
                Some(row) => {
                    let place = row.position.place;
                    StreamPosition::new(place.segment.0, place.block.into(), row.next.0)
                }
                None => StreamPosition::new(stream.segment.0, stream.block, stream.next.0),
            };
        }
        positions
    }

    /// Whether one more moved page leaves its stream in the segment where it is.
    pub(crate) fn stays_with_moved(&self, segments: &SegmentTable) -> bool {
        let Stream { block, open, .. } = &self.streams[RowStream::Moved as usize];
        let payload = open.as_ref().map_or(0, |row| u32::from(row.payload));
        // The row's head, its payload with the page, and the two blocks of the shortest row.
        block + 1 + payload + 1 + 2 <= segments.segment_blocks()
    }

    /// Free segments that a stream may take until `blocks` more blocks of payload, each with a
    /// head of its own at worst, are written.
    pub(crate) fn segments_for(blocks: usize, segments: &SegmentTable) -> usize {
        blocks.div_ceil(segments.payload_blocks() as usize) + 1
    }
}

/// Seals the pages of encrypted volumes where they are; all of them are whole, and lie in front of
/// packed ones. It is done when the row's sequence is known, which no other row has: the nonce
/// follows from it.
fn seal_pages(sequence: u64, row: &mut Row, payload: &mut [Block]) {
    let mut payload = payload.iter_mut();
    let mut keys = row.keys.drain(..);
    for record in &mut row.records {
        let is_whole = record.form().is_some_and(|form| !form.is_packed());
        let page = match is_whole {
            true => payload.next(),
            false => continue,
        };
        if let LogRecord::Sealed { number, tag, version, .. }
        | LogRecord::Resealed { number, tag, version, .. } = record
        {
            let page = page.expect("a block for each sealed page");
            let key = keys.next().expect("a key for each sealed page");
            *version = key.version as u8;
            *tag = key.seal(*number, sequence, &mut page.0);
        }
    }
    assert!(keys.next().is_none(), "a sealed page for each key");
}

/// Sets the checks of the records' payloads, which are in the blocks of the row.
fn set_checks(
    uuid: &[u8; 16],
    row: u64,
    head: BlockPlace,
    records: &mut [LogRecord],
    blocks: &[Block],
) {
    let mut checks = [0; RECORDS_MAX];
    for ((check, record), at) in checks.iter_mut().zip(&*records).zip(payload_places(head, records))
    {
        let Some(form) = record.form() else { continue };
        let behind = usize::from(at.place.block - head.block);
        let bytes = form.bytes_in(at.offset, &blocks[behind..]);
        let (domain, number) = tag_of(record);
        *check = tag_crc(uuid, domain, number, row, bytes);
    }
    for (record, value) in records.iter_mut().zip(checks) {
        match record {
            LogRecord::Write { crc, .. }
            | LogRecord::Sealed { crc, .. }
            | LogRecord::Resealed { crc, .. }
            | LogRecord::Move { crc, .. }
            | LogRecord::Change { crc, .. }
            | LogRecord::Node { crc, .. }
            | LogRecord::Table { crc, .. }
            | LogRecord::State { crc, .. } => *crc = value,
            LogRecord::Zero { .. }
            | LogRecord::Lost { .. }
            | LogRecord::Alias { .. }
            | LogRecord::Removal { .. }
            | LogRecord::Moment { .. }
            | LogRecord::Forget { .. } => {}
        }
    }
}

/// The check in a record; 0 for a record without a payload.
pub(crate) fn crc_of(record: &LogRecord) -> u64 {
    match *record {
        LogRecord::Write { crc, .. }
        | LogRecord::Sealed { crc, .. }
        | LogRecord::Resealed { crc, .. }
        | LogRecord::Move { crc, .. }
        | LogRecord::Change { crc, .. }
        | LogRecord::Node { crc, .. }
        | LogRecord::Table { crc, .. }
        | LogRecord::State { crc, .. } => crc,
        LogRecord::Zero { .. }
        | LogRecord::Lost { .. }
        | LogRecord::Alias { .. }
        | LogRecord::Removal { .. }
        | LogRecord::Moment { .. }
        | LogRecord::Forget { .. } => 0,
    }
}

/// Segments that the streams hold: one to write to and one reserved, each.
pub(crate) const STREAM_SEGMENTS: usize = 2 * STREAMS;
