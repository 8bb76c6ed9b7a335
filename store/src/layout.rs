//! How a pool is laid out and opened.

use thiserror::Error;

use crate::api::PoolDeviceError;
use crate::format::SuperblockError;

/// A pool as it is made.
#[derive(Clone, Debug)]
pub struct PoolLayout {
    /// The pool's UUID, from a random source.
    pub uuid: [u8; 16],
    /// Blocks of a segment.
    pub segment_blocks: u32,
    /// Its devices.
    pub devices: Vec<DeviceLayout>,
}

/// A device of a pool as it is made.
#[derive(Clone, Debug)]
pub struct DeviceLayout {
    /// The device's UUID, from a random source.
    pub uuid: [u8; 16],
    /// Its whole length.
    pub blocks: u64,
}

/// How an engine uses memory and the log.
#[derive(Clone, Copy, Debug)]
pub struct PoolOptions {
    /// The most pages of the map in memory, from [`CACHE_BLOCKS_MIN`] on.
    pub cache_blocks: usize,
    /// Blocks of rows after which a checkpoint begins: it bounds the time of a recovery.
    pub log_blocks_max: u64,
}

/// The least [`PoolOptions::cache_blocks`]: one record needs up to 64 blocks of the page table and
/// two paths through trees at once, and some records and reads are under way together.
pub const CACHE_BLOCKS_MIN: usize = 512;

/// Why a pool is not opened.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PoolOpenError {
    /// The devices are no pool, or are not all of it.
    #[error("{0}")]
    Devices(String),
    /// A superblock cannot be used.
    #[error("device {device}: {error}")]
    Superblock {
        /// The device.
        device: u8,
        /// Why.
        error: SuperblockError,
    },
    /// A device failed.
    #[error("device {device} failed: {error}")]
    Device {
        /// The device.
        device: u8,
        /// How.
        error: PoolDeviceError,
    },
    /// The log or the checkpoint is damaged in a way that no copy makes up for.
    #[error("{0}")]
    Damaged(String),
    /// There is no room for the checkpoint that an opening writes.
    #[error("the pool has no free segment left for an opening: this is a fault, please report it")]
    NoRoom,
}
