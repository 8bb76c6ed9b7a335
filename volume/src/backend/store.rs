//! A volume of a pool: thin, with snapshots and clones. The crate `store` decides, and this code
//! gives it time, devices and guest memory.
//!
//! | file | has |
//! | --- | --- |
//! | `pool` | a pool that is open, for control threads |
//! | `drive` | the engine and its devices behind the pool's lock, and a round of them |
//! | `channel` | a sidecore's way to a volume: it does rounds itself |
//! | `thread` | the pool's thread, which does rounds when no sidecore does |
//! | `send`, `receive`, `lane` | snapshots as streams, for control threads |
//! | `devices`, `create` | files and block devices, their locks, which is which |
//! | `change` | devices that become longer, join and leave while the pool is open |
//!
//! A polled sidecore has its answers without a wake-up of another thread. Only the lock is shared;
//! a sidecore that finds it taken goes on with other work and comes again in its next round.

mod absent;
mod change;
mod channel;
pub(super) mod compression;
mod configured;
mod counts;
mod create;
mod cut;
mod devices;
mod drive;
mod error;
mod failure;
mod guest;
pub(super) mod history;
mod lane;
mod own_names;
pub(super) mod pool;
pub(super) mod pools;
mod receive;
mod ring;
mod send;
mod signs;
#[cfg(test)]
mod tests;
mod thread;
mod volume;

pub use absent::AbsentVolume;
pub use change::PooledDevice;
pub use compression::VolumeCompression;
pub use configured::{StoreBackend, snapshot_of};
pub use counts::PoolCounts;
pub use create::PoolPlan;
pub use error::StorePoolError;
pub use failure::reason_of_full;
pub use history::VolumeHistory;
pub use pool::{StorePool, StoreSettings};
pub use pools::{OpenedPool, Pools};
pub use receive::{ReceiveError, ReceivedState};
pub use ring::StoreRing;
pub use volume::{StoreCounters, StoreVolume};
