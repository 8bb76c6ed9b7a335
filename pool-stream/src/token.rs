//! The place where a stream goes on, as a text.

use std::fmt;
use std::str::FromStr;

use crc_fast::{CrcAlgorithm, Digest};
use thiserror::Error;

use super::origin::{ORIGIN_BYTES, SnapshotOrigin};
use super::u64_at;

/// The front of a token's text; the number is its version.
const TOKEN_FRONT: &str = "vrio1-";

/// Bytes of a token: two origins, the next block, a check.
const TOKEN_BYTES: usize = 2 * ORIGIN_BYTES + 16;

/// Where a stream goes on: `vrio volume send --resume` takes its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamToken {
    /// The snapshot.
    pub origin: SnapshotOrigin,
    /// The snapshot from which the stream is the difference.
    pub base: Option<SnapshotOrigin>,
    /// The first block that is missing.
    pub next_block: u64,
}

/// A text is no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("this is no token of a stream, or not all of it: `vrio volume receive --status` prints it")]
pub struct StreamTokenError;

fn crc(bytes: &[u8]) -> u64 {
    let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
    digest.update(bytes);
    digest.finalize()
}

impl fmt::Display for StreamToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = Vec::with_capacity(TOKEN_BYTES);
        bytes.extend(self.origin.to_bytes());
        bytes.extend(SnapshotOrigin::base_bytes(self.base));
        bytes.extend(self.next_block.to_le_bytes());
        bytes.extend(crc(&bytes).to_le_bytes());
        write!(f, "{TOKEN_FRONT}")?;
        bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for StreamToken {
    type Err = StreamTokenError;

    fn from_str(text: &str) -> Result<Self, StreamTokenError> {
        let digits = text.trim().strip_prefix(TOKEN_FRONT).ok_or(StreamTokenError)?;
        if digits.len() != 2 * TOKEN_BYTES || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(StreamTokenError);
        }
        let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16);
        let bytes: Result<Vec<u8>, _> = (0..digits.len()).step_by(2).map(byte).collect();
        let bytes = bytes.map_err(|_| StreamTokenError)?;
        let (content, check) = bytes.split_at(TOKEN_BYTES - 8);
        if crc(content) != u64_at(check, 0) {
            return Err(StreamTokenError);
        }
        let origin = SnapshotOrigin::of_bytes(content).ok_or(StreamTokenError)?;
        let base = SnapshotOrigin::base_of(&content[ORIGIN_BYTES..]).ok_or(StreamTokenError)?;
        Ok(Self { origin, base, next_block: u64_at(content, 2 * ORIGIN_BYTES) })
    }
}
