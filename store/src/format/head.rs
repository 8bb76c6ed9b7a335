//! Heads of rows.

use crc_fast::{CrcAlgorithm, checksum};
use thiserror::Error;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::place::{BlockPlace, SegmentId};
use super::record::{LogRecord, RECORD_BYTES};
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
    /// The salt of the opening that wrote the row.
    pub salt: u64,
    /// The number of that opening.
    pub opening: u64,
    /// The row's sequence, which no other row of the pool has.
    pub sequence: u64,
    /// All rows up to this sequence were durable when this row was written.
    pub durable: u64,
    /// The place of this head.
    pub place: BlockPlace,
    /// The stream of the row.
    pub stream: u8,
    /// How many blocks of payload follow.
    pub payload: u8,
    /// The segment in which the stream goes on when this one has fewer than two blocks left.
    pub next: SegmentId,
    /// The stream's row before this one, if this opening wrote one.
    pub previous: Option<RowPosition>,
    /// What the row changes.
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
    /// If it has more records or payload than a row has room for.
    pub fn encode(&self, uuid: &[u8; 16], block: &mut Block) {
        assert!(self.records.len() <= RECORDS_MAX && self.previous_records.len() <= RECORDS_MAX);
        assert!(usize::from(self.payload) <= ROW_PAYLOAD_MAX);
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
        let invalid = |field, value| HeadError::Invalid { field, value };
        let counts = [usize::from(front.records), usize::from(front.previous_records)];
        if let Some(&count) = counts.iter().find(|&&count| count > RECORDS_MAX) {
            return Err(invalid("records", count as u64));
        }
        let mut records = rest.chunks_exact(RECORD_BYTES).map(|bytes| {
            LogRecord::decode(bytes.try_into().expect("a record's bytes"))
                .map_err(|error| invalid("kind of record", error.kind.into()))
        });
        let own = records.by_ref().take(counts[0]).collect::<Result<Vec<_>, _>>()?;
        let previous_records = records.take(counts[1]).collect::<Result<Vec<_>, _>>()?;
        let payload = own.iter().filter(|record| record.has_payload()).count();
        if payload != usize::from(front.payload) || payload > ROW_PAYLOAD_MAX {
            return Err(invalid("payload", front.payload.into()));
        }
        let previous = match front.has_previous {
            0 => None,
            _ => Some(RowPosition {
                sequence: front.previous_sequence.get(),
                place: BlockPlace::from_word(front.previous_place.get())
                    .ok_or(invalid("previous place", front.previous_place.get()))?,
                payload: front.previous_payload,
            }),
        };
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
            records: own,
            previous_records,
        })
    }
}
