//! The store: thin volumes, snapshots and clones, in one log for a pool of devices.
//!
//! Nothing here does I/O: time, devices and guest memory are arguments, so that all of it runs in
//! a simulation. The design and its words are in `docs/decisions/067-the-store.md`.

mod api;
pub mod block;
pub mod format;
mod layout;

pub use api::{
    Admission, DeviceError, DeviceIo, DeviceOp, PoolChange, PoolCompletion, PoolDevices, PoolError,
    RequestTag, VolumeId,
};
pub use layout::{CACHE_BLOCKS_MIN, DeviceLayout, OpenError, PoolLayout, PoolOptions};

/// stub
#[derive(Clone, Debug, Default)]
pub struct PoolStatus {
    /// stub
    pub size_blocks: u64,
    /// stub
    pub used_blocks: u64,
    /// stub
    pub free_segments: u64,
    /// stub
    pub is_full: bool,
    /// stub
    pub no_space: bool,
    /// stub
    pub failed: Option<String>,
}
/// stub
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PoolVolumeKind {
    /// stub
    Volume,
    /// stub
    Snapshot,
    /// stub
    Removing,
}
/// stub
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolVolume {
    /// stub
    pub id: VolumeId,
    /// stub
    pub name: String,
    /// stub
    pub kind: PoolVolumeKind,
    /// stub
    pub of: Option<VolumeId>,
    /// stub
    pub parent: Option<VolumeId>,
    /// stub
    pub blocks: u64,
    /// stub
    pub at_s: u64,
}
impl PoolVolume {
    /// stub
    pub fn size_bytes(&self) -> u64 {
        self.blocks * 4096
    }
}
