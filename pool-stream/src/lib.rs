//! A snapshot as a stream of bytes, which a pipe, a file or another node takes.
//!
//! ```text
//! header   256 bytes: the snapshot, the base if it is a difference, the size
//! part     40 bytes, its runs, their data: all that the blocks from `start` to `end` need
//! ..
//! end      40 bytes: counts, and a check over all
//! ```
//!
//! Each part stands alone and says which blocks it covers, and the next one goes on there. So the
//! place of a block is also the running number of its part: a part that is lost, repeated or
//! exchanged does not begin where the part before has ended. The check of a part begins with the
//! identity of the stream, so a part of another stream does not fit. Snapshots never
//! change: two streams of one identity have the same content, and one goes on where the other was
//! cut. `docs/store-format.md` has the same byte by byte.

mod decoder;
mod header;
mod origin;
mod part;
#[cfg(test)]
mod tests;
mod token;

use crc_fast::{CrcAlgorithm, Digest};
use thiserror::Error;

pub use decoder::{StreamCounts, StreamDecoder, StreamItem, StreamTally};
pub use header::{STREAM_HEADER_BYTES, STREAM_VERSION, StreamHeader, StreamId};
pub use origin::{
    NAME_CHARS_MAX, SnapshotOrigin, VOLUME_BLOCKS_MAX, VolumeId, VolumeReceive, is_name,
};
pub use part::{
    ChangedRun, PART_BYTES_MAX, PART_DATA_BLOCKS_MAX, PART_RUNS_MAX, PART_ZERO_BLOCKS_MAX,
    PartBuilder, StreamPart,
};
pub use token::{StreamToken, StreamTokenError};

/// Why bytes are no stream, or not the wanted stream.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StreamError {
    /// The bytes do not begin as a stream does.
    #[error("this is no stream of a volume: `vrio volume send` makes one")]
    NoStream,
    /// The stream has another version.
    #[error(
        "the stream has version {0}, and this program reads version {STREAM_VERSION}: use one \
             release on both sides"
    )]
    Version(u32),
    /// A check does not match.
    #[error("{0} is damaged, or of another stream: send it again from there")]
    Damaged(StreamPlace),
    /// A field has a value that it cannot have, although the check matches.
    #[error("{0} has an impossible {1}: another program has made the stream")]
    Impossible(StreamPlace, &'static str),
    /// A part does not go on where the part before has ended.
    #[error(
        "a part begins at block {found}, and block {wanted} must follow: a part was lost, repeated \
         or exchanged; send the stream again from there"
    )]
    NotNext {
        /// Where the part must begin.
        wanted: u64,
        /// Where it begins.
        found: u64,
    },
    /// The stream has no end.
    #[error("the stream was cut at block {0}: send the rest")]
    Cut(u64),
    /// Bytes follow the end.
    #[error("more bytes follow the end of the stream: each file and pipe has one stream")]
    Trailing,
}

/// A place in a stream, for errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamPlace {
    /// The header.
    Header,
    /// The part that begins at this block.
    Part(u64),
    /// The end.
    End,
}

impl std::fmt::Display for StreamPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Header => write!(f, "the stream's header"),
            Self::Part(block) => write!(f, "the stream's part at block {block}"),
            Self::End => write!(f, "the stream's end"),
        }
    }
}

/// The bytes of a check, which are zeroes while the check is made.
const CHECK: std::ops::Range<usize> = 8..16;

/// CRC-64/NVME over `front` and then `bytes`, with zeroes where the check is.
fn check_of(front: &[u8], bytes: &[u8]) -> u64 {
    let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
    digest.update(front);
    digest.update(&bytes[..CHECK.start]);
    digest.update(&[0; 8]);
    digest.update(&bytes[CHECK.end..]);
    digest.finalize()
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}
