//! The store: thin volumes, snapshots and clones, in one log for a pool of devices.
//!
//! Nothing here does I/O: time, devices and guest memory are arguments, so that all of it runs in
//! a simulation. The design and its words are in `docs/decisions/067-the-store.md`.

// The devices of tests are one file, which names this crate as other crates do.
#[cfg(test)]
extern crate self as store;

mod api;
mod contents;
mod engine;
mod history;
mod layout;
mod map;
mod pack;

pub use api::{
    Admission, DeviceIo, DeviceOp, DeviceRead, PoolChange, PoolCompletion, PoolDeviceError,
    PoolDevices, PoolError, QuotaWait, RequestTag, VolumeId,
};
pub use contents::{CONTENT_BYTES, DedupOptions};
pub use engine::{
    DamagedBlock, DedupStatus, DeviceChange, IO_BLOCKS_MAX, PoolCounters, PoolDevice, PoolEngine,
    PoolStatus, RANGE_BLOCKS_MAX, SEGMENTS_MIN, ScrubPace, ScrubStatus, SegmentCounts, format_pool,
};
pub use history::{HistoryOptions, HistoryRest, PoolHistory, PoolMoment};
pub use layout::{CACHE_BLOCKS_MIN, DeviceLayout, PoolLayout, PoolOpenError, PoolOptions};
pub use map::{ChangedBlocks, PoolSeal, PoolVolume, PoolVolumeKind, SharedPages};
pub use pack::PageCompression;
pub use pool_format::{self as format, block};
pub use pool_stream::{self as stream, ChangedRun, SnapshotOrigin, VolumeReceive};
pub use seal::{SealEntropy, WrappedKey, WrappingKey};
