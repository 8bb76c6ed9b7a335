//! The cache of a remote volume: blocks that a VMhost's guest has read or written lately, in a
//! volume of a pool of the VMhost. Reads of these blocks do not go over the network.
//!
//! ```text
//!   disk ─▶ CachedChannel ─┬─ all changes, and reads of other blocks ─▶ remote volume
//!                          └─ reads of cached blocks, blocks to keep ─▶ volume of a local pool
//! ```
//!
//! The remote volume has every write before the guest is told of it: the cache promises nothing,
//! and its loss loses nothing. But it must never answer with an old block. With *write-back*
//! (`dirty`) a write completes in the pool, and the remote volume gets it later.
//!
//! | file | has |
//! | --- | --- |
//! | `map` | which blocks are cached, and which a request is at work on |
//! | `gate` | which epoch of the remote volume they are right for |
//! | `plug` | adding the cache to a disk whose guest runs, and taking it away |
//! | `works` | requests of the cache's own: blocks to keep, and blocks that go |
//! | `channel` | a sidecore's way to the cached volume |
//! | `keeper` | the thread that empties the cache and opens it |
//! | `pool` | the volume of the pool, and the mark of a clean end in it |
//! | `dirty` | write-back: a layer of its own over all of this |
//! | `slot` | the cache of a disk, wanted or there |
//!
//! Why it is so: `docs/decisions/076-caches.md`.

mod channel;
mod counters;
mod dirty;
mod gate;
mod keeper;
mod map;
mod plug;
mod pool;
mod slot;
mod works;

pub use counters::{CacheCounters, DirtyCounters};
pub use dirty::{
    ANY_PEERS, DamagedBlocks, Dirty, DirtyBounds, DirtyKeeper, DirtyOwner, DirtyRest, DirtyStorage,
    DirtyStore, RoundNotes, WRITE_BACK_DISK_NAME_MAX, WriteBackVolume, kept_for, numbers_rounds_of,
    writes_of,
};
pub use gate::{Gate, HeldEpoch, Pass};
pub use keeper::{CacheKeeper, CacheStorage};
pub use map::{BLOCK_BYTES, Blocks, CacheMap};
pub use plug::{Cache, CachedRemote, CachedVolume};
pub use pool::{PoolStorage, cache_volume_name};
pub use slot::{CachePlan, CacheSlot, WriteBackPlan};
