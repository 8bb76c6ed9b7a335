//! The front of a stream.

use super::origin::{ORIGIN_BYTES, SnapshotOrigin, VOLUME_BLOCKS_MAX, is_name};
use super::token::StreamToken;
use super::{CHECK, StreamError, StreamPlace, check_of, u32_at, u64_at};

/// The version of the format.
pub const STREAM_VERSION: u32 = 1;

/// Bytes of a header.
pub const STREAM_HEADER_BYTES: usize = 256;

const MAGIC: &[u8; 8] = b"vrioStrm";

/// Where the name of the snapshot is.
const NAME: std::ops::Range<usize> = 112..176;

/// The identity of a stream's content: a snapshot, all of it or its difference from a base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamId {
    /// The snapshot.
    pub origin: SnapshotOrigin,
    /// The snapshot from which this is the difference; none for all of it.
    pub base: Option<SnapshotOrigin>,
    /// The snapshot's size.
    pub blocks: u64,
}

impl StreamId {
    /// The bytes with which the check of each part begins.
    pub(super) fn front(&self) -> [u8; 2 * ORIGIN_BYTES + 8] {
        let mut bytes = [0; 2 * ORIGIN_BYTES + 8];
        bytes[..ORIGIN_BYTES].copy_from_slice(&self.origin.to_bytes());
        let base = SnapshotOrigin::base_bytes(self.base);
        bytes[ORIGIN_BYTES..2 * ORIGIN_BYTES].copy_from_slice(&base);
        bytes[2 * ORIGIN_BYTES..].copy_from_slice(&self.blocks.to_le_bytes());
        bytes
    }

    /// The token of the stream from a block on.
    pub fn token(&self, next_block: u64) -> StreamToken {
        StreamToken { origin: self.origin, base: self.base, next_block }
    }
}

/// A stream's header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamHeader {
    /// The content.
    pub id: StreamId,
    /// The name of the snapshot, which it also has where it is received.
    pub name: String,
    /// The first block that the stream covers: 0 unless it goes on where another stream was cut.
    pub start_block: u64,
    /// About how many blocks of data follow, for a forecast; 0 if that is not known.
    pub expected_blocks: u64,
}

impl StreamHeader {
    /// The header as bytes.
    pub fn to_bytes(&self) -> [u8; STREAM_HEADER_BYTES] {
        let mut bytes = [0; STREAM_HEADER_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[16..20].copy_from_slice(&STREAM_VERSION.to_le_bytes());
        bytes[24..112].copy_from_slice(&self.id.front());
        let name = self.name.as_bytes();
        bytes[NAME.start..NAME.start + name.len()].copy_from_slice(name);
        bytes[176..184].copy_from_slice(&self.start_block.to_le_bytes());
        bytes[184..192].copy_from_slice(&self.expected_blocks.to_le_bytes());
        let check = check_of(&[], &bytes);
        bytes[CHECK].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// Reads a header.
    ///
    /// # Errors
    /// [`StreamError`]: these bytes are none.
    pub fn read(bytes: &[u8]) -> Result<Self, StreamError> {
        let place = StreamPlace::Header;
        if bytes.len() != STREAM_HEADER_BYTES || bytes[..8] != MAGIC[..] {
            return Err(StreamError::NoStream);
        }
        if u64_at(bytes, CHECK.start) != check_of(&[], bytes) {
            return Err(StreamError::Damaged(place));
        }
        let version = u32_at(bytes, 16);
        if version != STREAM_VERSION {
            return Err(StreamError::Version(version));
        }
        let wrong = |field| StreamError::Impossible(place, field);
        let origin = SnapshotOrigin::of_bytes(&bytes[24..]);
        let base = SnapshotOrigin::base_of(&bytes[24 + ORIGIN_BYTES..]);
        let blocks = u64_at(bytes, 24 + 2 * ORIGIN_BYTES);
        let id = StreamId {
            origin: origin.ok_or_else(|| wrong("snapshot"))?,
            base: base.ok_or_else(|| wrong("base"))?,
            blocks,
        };
        let name = std::str::from_utf8(&bytes[NAME]).map_err(|_| wrong("name"))?;
        let name = name.trim_end_matches('\0').to_owned();
        let (start_block, expected_blocks) = (u64_at(bytes, 176), u64_at(bytes, 184));
        for (holds, field) in [
            ((1..=VOLUME_BLOCKS_MAX).contains(&blocks), "size"),
            (is_name(&name), "name"),
            (start_block <= blocks, "start"),
            (expected_blocks <= blocks, "forecast"),
            (bytes[20..24].iter().chain(&bytes[192..]).all(|byte| *byte == 0), "reserved byte"),
        ] {
            if !holds {
                return Err(wrong(field));
            }
        }
        Ok(Self { id, name, start_block, expected_blocks })
    }
}
