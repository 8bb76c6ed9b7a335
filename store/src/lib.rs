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

mod engine;
pub use engine::{PoolEngine, PoolStatus, PoolVolume, PoolVolumeKind, format_pool};
