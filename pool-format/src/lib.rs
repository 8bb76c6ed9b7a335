//! A pool on its devices. `docs/store-format.md` has the same byte by byte.
//!
//! ```text
//! device   superblocks (16 blocks), then segments
//! segment  rows, one behind the other, until fewer than two blocks are left
//! row      a head, then up to 49 blocks of payload: whole pages, then packed ones
//! head     96 bytes, then its records, then again the records of the stream's previous row
//! ```
//!
//! All numbers are little-endian.

pub mod block;
mod head;
mod payload;
mod place;
mod record;
mod shared;
mod superblock;
mod tag;
#[cfg(test)]
mod tests;

pub use head::{HeadError, RECORDS_MAX, ROW_BLOCKS_MAX, ROW_PAYLOAD_MAX, RowHead, RowPosition};
pub use payload::{PayloadPlace, payload_blocks, payload_places};
pub use place::{
    BLOCK_SECTORS, BlockPlace, DEVICES_MAX, NO_SEGMENT, PACKED_SECTORS_MAX, PageCodec, PageEntry,
    PageForm, PageSeal, SEAL_SEQUENCE_MAX, SECTOR_BYTES, SEGMENT_BLOCKS_MAX, SEGMENT_BLOCKS_MIN,
    SEGMENTS_PER_DEVICE_MAX, SegmentId,
};
pub use record::{
    LogRecord, MOMENT_VOLUMES_MAX, NO_VOLUME, NUMBER_MAX, RECORD_BYTES, RecordError, SealTag,
    TableKind, ZERO_BLOCKS_MAX,
};
pub use shared::PageShares;
pub use superblock::{
    COUNT_MAX, DEVICE_HEADER_BLOCKS, DeviceRecord, FORMAT_VERSION, MAP_STREAM, STREAMS,
    StreamPosition, Superblock, SuperblockError, superblock_blocks,
};
pub use tag::{TagDomain, tag_crc, tag_of};
