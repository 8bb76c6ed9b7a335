//! Superblocks: which checkpoint a pool has.

use crc_fast::{CrcAlgorithm, checksum};
use thiserror::Error;
use zerocopy::little_endian::{U32, U64, U128};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::place::{
    BlockPlace, DEVICES_MAX, NO_SEGMENT, PageEntry, SEGMENT_BLOCKS_MAX, SEGMENT_BLOCKS_MIN,
    SEGMENTS_PER_DEVICE_MAX, SegmentId,
};
use crate::block::{BLOCK_BYTES, Block};

/// The version of this format. A pool of another version is refused.
pub const FORMAT_VERSION: u32 = 5;

/// Blocks before a device's first segment.
pub const DEVICE_HEADER_BLOCKS: u64 = 16;

/// Streams of rows: guests' writes, moved pages, and pages of the map. Each has its own segments,
/// because what dies together is cheap to collect.
pub const STREAMS: usize = 3;

/// The stream of the map's pages. Its rows have a count of their own, because recovery does not
/// apply them.
pub const MAP_STREAM: u8 = 2;

/// The highest count that a medium may have, of openings, checkpoints and rows: the next ones of a
/// pool that a hostile medium describes are numbers as well.
pub const COUNT_MAX: u64 = 1 << 62;

const MAGIC: u64 = u64::from_le_bytes(*b"vrioPool");

/// The two blocks of a device that have the superblock of the checkpoint `checkpoint`. The next
/// checkpoint has the two others, so that a whole superblock is there at any moment.
pub fn superblock_blocks(checkpoint: u64) -> [u64; 2] {
    let slot = checkpoint % 2;
    [slot * 4, 8 + slot * 4]
}

/// A device as the superblock knows it.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct DeviceRecord {
    /// The device's own UUID, in its superblock as well.
    pub uuid: [u8; 16],
    /// Its segments.
    pub segments: U32,
    /// 0, or [`DeviceRecord::LEAVING`].
    pub state: U32,
}

impl DeviceRecord {
    /// The pool moves all that the device has to the others, and then lets it go.
    pub const LEAVING: u32 = 1;

    /// A place of the table that no device has.
    pub const NONE: Self = Self { uuid: [0; 16], segments: U32::ZERO, state: U32::ZERO };

    /// A device of so many segments.
    pub fn new(uuid: [u8; 16], segments: u32) -> Self {
        Self { uuid, segments: segments.into(), state: U32::ZERO }
    }

    /// Whether a device has this place of the table.
    pub fn is_used(&self) -> bool {
        *self != Self::NONE
    }

    /// Whether the device is leaving the pool.
    pub fn is_leaving(&self) -> bool {
        self.state.get() == Self::LEAVING
    }
}

/// Where a stream's first row behind a checkpoint is, if there is one.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct StreamPosition {
    /// The segment, [`NO_SEGMENT`] for a stream that has none.
    pub segment: U32,
    /// The block in it.
    pub block: U32,
    /// The segment in which the stream goes on, [`NO_SEGMENT`] for none.
    pub next: U32,
    reserved: U32,
}

impl StreamPosition {
    /// A stream that has no rows.
    pub const NONE: Self = Self {
        segment: U32::from_bytes(NO_SEGMENT.to_le_bytes()),
        block: U32::ZERO,
        next: U32::from_bytes(NO_SEGMENT.to_le_bytes()),
        reserved: U32::ZERO,
    };

    /// The position at `block` of `segment`, in front of the segment `next`.
    pub fn new(segment: u32, block: u32, next: u32) -> Self {
        Self {
            segment: segment.into(),
            block: block.into(),
            next: next.into(),
            reserved: U32::ZERO,
        }
    }
}

/// The content of a superblock.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Superblock {
    magic: U64,
    crc: U64,
    version: U32,
    /// Blocks of a segment.
    pub segment_blocks: U32,
    /// The pool.
    pub uuid: [u8; 16],
    /// Which of the pool's devices this one is.
    pub device: u8,
    /// Places of the table that are looked at: the last of them has a device.
    pub devices: u8,
    /// 1 on a device that joins with this checkpoint: it counts if another device has it as well.
    pub joining: u8,
    reserved: [u8; 5],
    /// The count of openings.
    pub opening: U64,
    /// The salt of this opening, from a random source.
    pub salt: U128,
    /// The count of checkpoints.
    pub checkpoint: U64,
    /// The last row whose effect is in the checkpoint.
    pub sequence: U64,
    /// The first block of the index of the checkpoint's state, in two copies; free entries for
    /// the empty state of a new pool.
    pub state: [PageEntry; 2],
    /// The bytes of the state.
    pub state_bytes: U64,
    /// Where the streams go on.
    pub streams: [StreamPosition; STREAMS],
    /// The devices.
    pub device_table: [DeviceRecord; DEVICES_MAX],
}

/// A block that is no superblock that can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SuperblockError {
    /// The block does not begin as a superblock does.
    #[error("this is no device of a pool")]
    NoPool,
    /// The block's check does not match its content.
    #[error("the superblock is damaged")]
    Damaged,
    /// The superblock is of another version.
    #[error(
        "the pool has the format {found}, and this program reads {FORMAT_VERSION}: \
         use the program that made it"
    )]
    Version {
        /// The version of the pool.
        found: u32,
    },
    /// The superblock is whole and has a value that none can have.
    #[error("the superblock has the value {value} for its {field}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
}

impl Superblock {
    /// A superblock of an empty pool: all else is set by its fields.
    pub fn new(uuid: [u8; 16], segment_blocks: u32) -> Self {
        let mut superblock = Self::new_zeroed();
        superblock.magic = MAGIC.into();
        superblock.version = FORMAT_VERSION.into();
        superblock.uuid = uuid;
        superblock.segment_blocks = segment_blocks.into();
        superblock.streams = [StreamPosition::NONE; STREAMS];
        superblock
    }

    /// Writes the superblock into `block`.
    pub fn encode(&self, block: &mut Block) {
        let mut whole = *self;
        whole.crc = U64::ZERO;
        let length = size_of::<Self>();
        block.0[..length].copy_from_slice(whole.as_bytes());
        block.0[length..].fill(0);
        let crc = checksum(CrcAlgorithm::Crc64Nvme, &block.0);
        block.0[8..16].copy_from_slice(&crc.to_le_bytes());
    }

    /// The superblock that `block` is.
    ///
    /// # Errors
    /// If it is none, damaged, of another version, or has values that none has.
    pub fn decode(block: &Block) -> Result<Self, SuperblockError> {
        let (mut found, _) = Self::read_from_prefix(&block.0).expect("a block is longer");
        if found.magic.get() != MAGIC {
            return Err(SuperblockError::NoPool);
        }
        let mut digest = crc_fast::Digest::new(CrcAlgorithm::Crc64Nvme);
        digest.update(&block.0[..8]);
        digest.update(&[0; 8]);
        digest.update(&block.0[16..]);
        if digest.finalize() != found.crc.get() {
            return Err(SuperblockError::Damaged);
        }
        if found.version.get() != FORMAT_VERSION {
            return Err(SuperblockError::Version { found: found.version.get() });
        }
        found.crc = U64::ZERO;
        found.check()?;
        Ok(found)
    }

    /// The numbers of the pool's devices.
    pub fn numbers(&self) -> impl Iterator<Item = u8> + '_ {
        let table = &self.device_table[..usize::from(self.devices)];
        (0..).zip(table).filter(|(_, device)| device.is_used()).map(|(number, _)| number)
    }

    /// Whether the device of this number and UUID is one of the pool's.
    pub fn has_device(&self, number: u8, uuid: &[u8; 16]) -> bool {
        let mut numbers = self.numbers();
        numbers.any(|it| it == number) && self.device_table[usize::from(number)].uuid == *uuid
    }

    /// The UUID of the device that has this superblock; all 0 if it has left the pool.
    pub fn own_uuid(&self) -> &[u8; 16] {
        &self.device_table[usize::from(self.device)].uuid
    }

    /// Whether the device that has this superblock has left the pool, and knows it.
    pub fn has_left(&self) -> bool {
        !self.device_table[usize::from(self.device)].is_used()
    }

    /// Puts a record into the table, and counts its places anew.
    pub fn set_device(&mut self, number: u8, record: DeviceRecord) {
        self.device_table[usize::from(number)] = record;
        let last = self.device_table.iter().rposition(DeviceRecord::is_used);
        self.devices = last.map_or(0, |last| last as u8 + 1);
    }

    /// Whether the pool has this segment.
    pub fn has_segment(&self, segment: SegmentId) -> bool {
        let device = usize::from(segment.device());
        device < usize::from(self.devices)
            && segment.index() < self.device_table[device].segments.get()
    }

    /// Whether the pool has this block.
    pub fn has_place(&self, place: BlockPlace) -> bool {
        self.has_segment(place.segment) && u32::from(place.block) < self.segment_blocks.get()
    }

    fn check(&self) -> Result<(), SuperblockError> {
        let blocks = self.segment_blocks.get();
        let possible = (SEGMENT_BLOCKS_MIN..=SEGMENT_BLOCKS_MAX).contains(&blocks);
        ensure(possible, "segment_blocks", blocks.into())?;
        let devices = usize::from(self.devices);
        ensure((1..=DEVICES_MAX).contains(&devices), "devices", devices as u64)?;
        ensure(self.device < self.devices, "device", self.device.into())?;
        ensure(self.joining <= 1, "joining", self.joining.into())?;
        for device in &self.device_table[..devices] {
            let (segments, state) = (device.segments.get(), device.state.get());
            ensure(segments <= SEGMENTS_PER_DEVICE_MAX, "segments", segments.into())?;
            ensure(state <= DeviceRecord::LEAVING, "state of a device", state.into())?;
        }
        ensure(self.opening.get() <= COUNT_MAX, "opening", self.opening.get())?;
        ensure(self.checkpoint.get() <= COUNT_MAX, "checkpoint", self.checkpoint.get())?;
        ensure(self.sequence.get() <= COUNT_MAX, "sequence", self.sequence.get())?;
        self.check_state()?;
        self.streams.iter().try_for_each(|stream| self.check_stream(stream))
    }

    fn check_state(&self) -> Result<(), SuperblockError> {
        let devices = &self.device_table[..usize::from(self.devices)];
        let pool: u64 = devices.iter().map(|device| u64::from(device.segments.get())).sum();
        let bytes = self.state_bytes.get();
        let most = pool * u64::from(self.segment_blocks.get()) * BLOCK_BYTES as u64;
        ensure(bytes <= most, "state_bytes", bytes)?;
        for entry in &self.state {
            let there = entry.place().is_some_and(|place| self.has_place(place));
            let right = if bytes == 0 { entry.is_free() } else { there };
            ensure(right, "state", entry.place.get())?;
        }
        Ok(())
    }

    fn check_stream(&self, stream: &StreamPosition) -> Result<(), SuperblockError> {
        let block = stream.block.get();
        ensure(block <= self.segment_blocks.get(), "block of a stream", block.into())?;
        for segment in [stream.segment.get(), stream.next.get()] {
            let right = segment == NO_SEGMENT || self.has_segment(SegmentId(segment));
            ensure(right, "segment of a stream", segment.into())?;
        }
        Ok(())
    }
}

fn ensure(holds: bool, field: &'static str, value: u64) -> Result<(), SuperblockError> {
    if holds { Ok(()) } else { Err(SuperblockError::Invalid { field, value }) }
}
