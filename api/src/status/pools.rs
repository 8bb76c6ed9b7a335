//! Pools, and the volumes and snapshots in them.

use serde::{Deserialize, Serialize};

use super::{Counters, Origin};
use crate::ReceiveProgress;

/// A pool of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoragePoolStatus {
    /// Its name.
    pub name: String,
    /// The kind of its devices, as the configuration names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// One word: see [`PoolState`].
    pub state: PoolState,
    /// The fault and the way out; empty if there is none.
    pub detail: String,
    /// How long it has taken no writes, in whole seconds; none while it takes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full_for_s: Option<u64>,
    /// The paths of its devices.
    pub devices: Vec<String>,
    /// The devices of an open pool.
    #[serde(default)]
    pub device_list: Vec<PoolDeviceStatus>,
    /// The most that it can hold.
    pub size_bytes: u64,
    /// How much of that is in use, by volumes and snapshots.
    pub used_bytes: u64,
    /// Its compressed blocks.
    #[serde(default)]
    pub packed: PackedReport,
    /// Its blocks that share their content.
    #[serde(default, skip_serializing_if = "SharedReport::is_empty")]
    pub shared: SharedReport,
    /// Its volumes and snapshots.
    pub volumes: Vec<PooledStatus>,
    /// The pass that proves all its blocks: the pass under way, or the last pass.
    #[serde(default)]
    pub scrub: ScrubReport,
    /// Numbers about it, by name.
    pub counters: Counters,
    /// Where it came from.
    #[serde(default)]
    pub origin: Origin,
}

/// A device of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolDeviceStatus {
    /// Its path.
    pub path: String,
    /// Its number in the pool.
    pub number: u8,
    /// The length that the pool uses.
    pub size_bytes: u64,
    /// The data and the map on it.
    pub used_bytes: u64,
    /// All of that is moved to the other devices, and then it leaves.
    pub leaving: bool,
    /// The move does not get on: the other devices have no room, or damage holds blocks here.
    pub stuck: bool,
    /// How long the rest of the move takes, by the time that it took until now.
    pub left_s: Option<u64>,
}

/// Whether a pool works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PoolState {
    /// It does.
    #[default]
    Ok,
    /// Writes wait for a moment, until collection has made room for them.
    Collecting,
    /// It has no space for new data: writes wait until some is removed.
    Full,
    /// It cannot be used, or takes no changes.
    Failed,
}

impl std::fmt::Display for PoolState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Ok => "ok",
            Self::Collecting => "collecting",
            Self::Full => "full",
            Self::Failed => "failed",
        })
    }
}

/// The proof of all blocks of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubReport {
    /// Whether it is under way.
    pub is_running: bool,
    /// Whether it rests until it is asked to go on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_paused: bool,
    /// How often it came to its end.
    pub passes: u64,
    /// Bytes that were proved.
    pub checked_bytes: u64,
    /// Bytes there were when it began.
    pub total_bytes: u64,
    /// How long the rest takes, by the time that it took until now.
    pub left_s: Option<u64>,
    /// Bytes of encrypted volumes whose keys the pool was not given: read, and not proved.
    #[serde(default)]
    pub unproved_bytes: u64,
    /// Damaged blocks of guests' data.
    pub damaged_blocks: u64,
    /// Damaged blocks of the map.
    pub damaged_map_blocks: u64,
    /// Places of the first of them, as `alice at 4096`: a volume or snapshot and an offset.
    pub found: Vec<String>,
}

/// The compressed blocks of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackedReport {
    /// Their size for guests.
    pub data_bytes: u64,
    /// The space that they take.
    pub used_bytes: u64,
    /// The size for guests of all data in the pool, compressed or not.
    pub all_bytes: u64,
}

/// The deduplication of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedReport {
    /// Whether blocks with the same content are looked for.
    pub is_on: bool,
    /// Data that would take space, as guests see it, and takes none.
    pub saved_bytes: u64,
    /// Data that was zeroes, among it.
    pub zero_bytes: u64,
    /// The part of the pool, in percent, that the search of the idle pool has come past.
    pub looked_at_percent: u8,
    /// Data that it knows the content of, and the most that it has memory for.
    pub known_bytes: u64,
    /// See `known_bytes`.
    pub known_bytes_max: u64,
}

impl SharedReport {
    /// Whether there is nothing to say.
    pub fn is_empty(&self) -> bool {
        !self.is_on && self.saved_bytes == 0
    }
}

/// A volume or snapshot in a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PooledStatus {
    /// Its number in the pool.
    pub number: u32,
    /// As commands name it: `alice`, `alice@monday`, or `p:17`.
    pub name: String,
    /// `volume`, `snapshot` or `removing`.
    pub kind: String,
    /// Its size.
    pub size_bytes: u64,
    /// The snapshot that it comes from, as commands name it.
    pub from: Option<String>,
    /// When a snapshot was taken.
    pub taken: Option<String>,
    /// Whether this node serves it.
    pub served: bool,
    /// The data that it owns: its parent does not have it.
    #[serde(default)]
    pub owned_bytes: u64,
    /// The data that it has, its own and that of others; none if that is not known.
    #[serde(default)]
    pub referred_bytes: Option<u64>,
    /// Of a volume, the data that it and its snapshots own.
    #[serde(default)]
    pub account_bytes: u64,
    /// Of a volume, the space that others cannot take.
    #[serde(default)]
    pub reservation_bytes: u64,
    /// Of a volume, the space that it and its snapshots may have.
    #[serde(default)]
    pub limit_bytes: Option<u64>,
    /// Why the writes of this volume wait, while others go on.
    #[serde(default)]
    pub waits: Option<String>,
    /// The check value of the key that encrypts it.
    #[serde(default)]
    pub key: Option<String>,
    /// Bytes that are still under an old data key, of it and all volumes that share its key.
    #[serde(default)]
    pub old_key_bytes: u64,
    /// How its blocks are compressed: `lz4`, or `zstd:3`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression: Option<String>,
    /// The history of a volume, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<HistoryReport>,
    /// The stream that is being received into it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receiving: Option<ReceiveProgress>,
}

/// The history of a volume of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryReport {
    /// How it is kept, `2h with a step of 1s`; or `none`, while its moments go.
    pub keeps: String,
    /// Its moments.
    pub moments: u64,
    /// The time of the oldest one: so far the history reaches back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest: Option<String>,
    /// The time of the newest one: the volume was not written since its step after that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newest: Option<String>,
    /// The data that only it has.
    #[serde(default, skip_serializing_if = "is_none_yet")]
    pub bytes: u64,
    /// Moments up to this time gave way to a full pool or limit, although they were not old.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shortened: Option<String>,
    /// Why no moments are taken now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rests: Option<String>,
}

/// Fields are left out that say nothing.
fn is_none_yet(bytes: &u64) -> bool {
    *bytes == 0
}
