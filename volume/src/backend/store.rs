//! A volume of a pool: thin, with snapshots and clones. The crate `store` decides, and this code
//! gives it time, devices and guest memory.

mod absent;
mod configured;
mod pool;
mod pools;

pub use absent::AbsentVolume;
pub use configured::{StoreBackend, snapshot_of};
pub use pool::{
    PoolPlan, SEGMENT_BYTES, StorePool, StorePoolError, StoreRing, StoreSettings, StoreVolume,
};
pub use pools::{OpenedPool, Pools};
