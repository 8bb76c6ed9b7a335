//! Heads of rows.

use crc_fast::{CrcAlgorithm, checksum};
use thiserror::Error;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::payload::payload_blocks;
use super::place::{BlockPlace, NO_SEGMENT, SEGMENT_BLOCKS_MAX, SegmentId};
use super::record::{LogRecord, RECORD_BYTES};
use super::superblock::{COUNT_MAX, MAP_STREAM, STREAMS};
use crate::block::{BLOCK_BYTES, Block};

/// The most blocks of payload of a row.
pub const ROW_PAYLOAD_MAX: usize = 49;

/// The most blocks of a row, with its head.
pub const ROW_BLOCKS_MAX: usize = ROW_PAYLOAD_MAX + 1;

/// The most records of a row: a head has room for those of two rows.
pub const RECORDS_MAX: usize = 50;

const MAGIC: u64 = u64::from_le_bytes(*b"vrio-row");
const FRONT_BYTES: usize = 96;
const _: () = assert!(FRONT_BYTES + 2 * RECORDS_MAX * RECORD_BYTES == BLOCK_BYTES);
const _: () = assert!(size_of::<Front>() == FRONT_BYTES);

/// A row of a stream: its sequence, where it starts, and how long it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowPosition {
    /// The row's sequence.
    pub sequence: u64,
    /// The place of its head.
    pub place: BlockPlace,
    /// Its blocks of payload.
    pub payload: u8,
}

/// A head of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowHead {
    /// The lower half of the salt of the opening that wrote the row.
    pub salt: u64,
    /// The number of that opening.
    pub opening: u64,
    /// The row's sequence: the rows of guests' writes and of moved pages are counted together over
    /// the pool's life, those of the map by themselves in each opening.
    pub sequence: u64,
    /// All rows of guests' writes and moved pages up to this sequence were durable when this row
    /// was written.
    pub durable: u64,
    /// The place of this head.
    pub place: BlockPlace,
    /// The stream of the row.
    pub stream: u8,
    /// How many blocks of payload follow.
    pub payload: u8,
    /// The segment in which the stream goes on when this one has fewer than two blocks left;
    /// [`NO_SEGMENT`] for none.
    pub next: SegmentId,
    /// The stream's row before this one, if this opening wrote one.
    pub previous: Option<RowPosition>,
    /// The row's changes.
    pub records: Vec<LogRecord>,
    /// The records of the stream's previous row, for the case that its head is damaged.
    pub previous_records: Vec<LogRecord>,
}

/// A block that is no head of a row that is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum HeadError {
    /// The block does not begin as a head does.
    #[error("the block is no head of a row")]
    NoHead,
    /// The block's check does not match its content.
    #[error("the head of a row is damaged")]
    Damaged,
    /// The head is whole and has a value that none can have.
    #[error("the head of a row has the value {value} for its {field}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy)]
#[repr(C)]
struct Front {
    magic: U64,
    crc: U64,
    uuid: [u8; 16],
    salt: U64,
    opening: U64,
    sequence: U64,
    durable: U64,
    segment: U32,
    block: U16,
    stream: u8,
    payload: u8,
    next: U32,
    records: u8,
    previous_records: u8,
    previous_payload: u8,
    has_previous: u8,
    previous_place: U64,
    previous_sequence: U64,
}

impl RowHead {
    /// Writes the head into `block`.
    ///
    /// # Panics
    /// If it has more records or payload than a row has room for, or another payload than its
    /// records have.
    pub fn encode(&self, uuid: &[u8; 16], block: &mut Block) {
        assert!(self.records.len() <= RECORDS_MAX && self.previous_records.len() <= RECORDS_MAX);
        assert!(usize::from(self.payload) <= ROW_PAYLOAD_MAX);
        assert_eq!(payload_of(&self.records), usize::from(self.payload));
        let front = Front {
            magic: MAGIC.into(),
            crc: U64::ZERO,
            uuid: *uuid,
            salt: self.salt.into(),
            opening: self.opening.into(),
            sequence: self.sequence.into(),
            durable: self.durable.into(),
            segment: self.place.segment.0.into(),
            block: self.place.block.into(),
            stream: self.stream,
            payload: self.payload,
            next: self.next.0.into(),
            records: self.records.len() as u8,
            previous_records: self.previous_records.len() as u8,
            previous_payload: self.previous.map_or(0, |row| row.payload),
            has_previous: u8::from(self.previous.is_some()),
            previous_place: self.previous.map_or(0, |row| row.place.word()).into(),
            previous_sequence: self.previous.map_or(0, |row| row.sequence).into(),
        };
        block.0[..FRONT_BYTES].copy_from_slice(front.as_bytes());
        let mut at = FRONT_BYTES;
        for record in self.records.iter().chain(&self.previous_records) {
            block.0[at..at + RECORD_BYTES].copy_from_slice(&record.encode());
            at += RECORD_BYTES;
        }
        block.0[at..].fill(0);
        let crc = checksum(CrcAlgorithm::Crc64Nvme, &block.0);
        block.0[8..16].copy_from_slice(&crc.to_le_bytes());
    }

    /// The head that `block` is.
    ///
    /// # Errors
    /// If it is none of this pool, damaged, or has values that no head has.
    pub fn decode(uuid: &[u8; 16], block: &Block) -> Result<Self, HeadError> {
        let (front, rest) = Front::read_from_prefix(&block.0).expect("a block is longer");
        if front.magic.get() != MAGIC || front.uuid != *uuid {
            return Err(HeadError::NoHead);
        }
        let mut digest = crc_fast::Digest::new(CrcAlgorithm::Crc64Nvme);
        digest.update(&block.0[..8]);
        digest.update(&[0; 8]);
        digest.update(&block.0[16..]);
        if digest.finalize() != front.crc.get() {
            return Err(HeadError::Damaged);
        }
        let (records, previous_records) = front.records(rest)?;
        let previous = front.previous(&previous_records)?;
        front.check()?;
        Ok(Self {
            salt: front.salt.get(),
            opening: front.opening.get(),
            sequence: front.sequence.get(),
            durable: front.durable.get(),
            place: BlockPlace { segment: SegmentId(front.segment.get()), block: front.block.get() },
            stream: front.stream,
            payload: front.payload,
            next: SegmentId(front.next.get()),
            previous,
            records,
            previous_records,
        })
    }
}

fn payload_of(records: &[LogRecord]) -> usize {
    payload_blocks(records) as usize
}

fn ensure(holds: bool, field: &'static str, value: u64) -> Result<(), HeadError> {
    if holds { Ok(()) } else { Err(HeadError::Invalid { field, value }) }
}

/// A head that passes has one encoding: these values, and zeroes behind the records.
impl Front {
    fn check(&self) -> Result<(), HeadError> {
        let sequence = self.sequence.get();
        ensure((1..=COUNT_MAX).contains(&sequence), "sequence", sequence)?;
        let durable = self.durable.get();
        // Rows of the map are counted apart; any other row is not durable before it is written.
        let possible = self.stream == MAP_STREAM || durable < sequence;
        ensure(possible && durable <= COUNT_MAX, "durable", durable)?;
        ensure(usize::from(self.stream) < STREAMS, "stream", self.stream.into())?;
        let segment = SegmentId(self.segment.get());
        ensure(segment.is_possible(), "segment", segment.0.into())?;
        let end = u32::from(self.block.get()) + 1 + u32::from(self.payload);
        ensure(end <= SEGMENT_BLOCKS_MAX, "block", self.block.get().into())?;
        let next = SegmentId(self.next.get());
        ensure(next.0 == NO_SEGMENT || next.is_possible(), "next", next.0.into())
    }

    fn records(&self, bytes: &[u8]) -> Result<(Vec<LogRecord>, Vec<LogRecord>), HeadError> {
        let (own, previous) = (usize::from(self.records), usize::from(self.previous_records));
        ensure(own <= RECORDS_MAX, "records", own as u64)?;
        ensure(previous <= RECORDS_MAX, "previous records", previous as u64)?;
        let (used, unused) = bytes.split_at((own + previous) * RECORD_BYTES);
        ensure(unused.iter().all(|&byte| byte == 0), "bytes behind the records", 1)?;
        let mut records = Vec::with_capacity(own);
        let mut previous_records = Vec::with_capacity(previous);
        for (at, bytes) in used.chunks_exact(RECORD_BYTES).enumerate() {
            let record = LogRecord::decode(bytes.try_into().expect("a record's bytes"));
            let record = record.map_err(|error| HeadError::Invalid {
                field: "kind of record",
                value: error.kind.into(),
            })?;
            if at < own { &mut records } else { &mut previous_records }.push(record);
        }
        let payload = usize::from(self.payload);
        ensure(payload <= ROW_PAYLOAD_MAX, "payload", payload as u64)?;
        ensure(payload == payload_of(&records), "payload", payload as u64)?;
        Ok((records, previous_records))
    }

    fn previous(&self, records: &[LogRecord]) -> Result<Option<RowPosition>, HeadError> {
        let (sequence, place) = (self.previous_sequence.get(), self.previous_place.get());
        let payload = usize::from(self.previous_payload);
        ensure(self.has_previous <= 1, "has previous", self.has_previous.into())?;
        ensure(payload <= ROW_PAYLOAD_MAX, "previous payload", payload as u64)?;
        ensure(payload == payload_of(records), "previous payload", payload as u64)?;
        if self.has_previous == 0 {
            ensure(records.is_empty(), "previous records", records.len() as u64)?;
            ensure(place == 0, "previous place", place)?;
            ensure(sequence == 0, "previous sequence", sequence)?;
            return Ok(None);
        }
        ensure((1..self.sequence.get()).contains(&sequence), "previous sequence", sequence)?;
        let invalid = HeadError::Invalid { field: "previous place", value: place };
        let place = BlockPlace::from_word(place).ok_or(invalid)?;
        let end = usize::from(place.block) + 1 + payload;
        ensure(end <= SEGMENT_BLOCKS_MAX as usize, "previous place", place.word())?;
        Ok(Some(RowPosition { sequence, place, payload: self.previous_payload }))
    }
}
