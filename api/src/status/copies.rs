//! The scrub of a volume with copies on several nodes.

use serde::{Deserialize, Serialize};

use super::is_zero;

/// The scrub of a volume's copies in sync, on the node that serves the volume: the scrub that is
/// under way, or the last one since the node serves it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyScrub {
    /// Whether it is under way.
    pub is_running: bool,
    /// Whether it rests until it is asked to go on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_paused: bool,
    /// Whether it was stopped before it was through.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_stopped: bool,
    /// Bytes of the volume that were looked at, on each copy.
    pub checked_bytes: u64,
    /// The volume's bytes when it began.
    pub total_bytes: u64,
    /// How long the rest takes, by the time that it took until now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_s: Option<u64>,
    /// The nodes with copies that are compared with the copy that serves: they are in sync since it
    /// began.
    pub copies: Vec<String>,
    /// The nodes with copies that have left since it began, or did not answer: they are not proved.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<String>,
    /// Blocks of 4 KiB of copies that could not be read, and were written again.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub repaired_blocks: u64,
    /// Blocks of copies that had other content than the copy that serves, and were written again.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub differed_blocks: u64,
    /// Blocks that no copy in sync can be read at, or that the copy that serves cannot read again
    /// and again.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost_blocks: u64,
    /// Blocks that the copy that serves cannot read and that other copies have with different
    /// content: they were left so.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unsettled_blocks: u64,
    /// Blocks that were not proved: they were written again and again, or a copy did not answer.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub busy_blocks: u64,
    /// The first 64 blocks that differed, each named when it was found.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differing: Vec<CopyDifference>,
}

/// A block that some copies had with other content than the copy that serves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyDifference {
    /// Its offset in the volume.
    pub offset_bytes: u64,
    /// The nodes with these copies; none if it is an unsettled block.
    pub nodes: Vec<String>,
    /// How many copies had the content of the copy that serves, that copy among them.
    pub agree: u64,
}
