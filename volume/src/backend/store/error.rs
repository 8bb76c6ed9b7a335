//! Why a pool is not made or opened.

use std::io;
use std::path::PathBuf;

use store::format::{DEVICES_MAX, SuperblockError};

use crate::backend::file::open::FileError;

/// Why a pool is not made or opened. Each text has the way out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StorePoolError {
    /// No devices, or too many.
    #[error("a pool has one to {DEVICES_MAX} devices, and {count} are named")]
    Count {
        /// How many were named.
        count: usize,
    },
    /// A device cannot be opened or locked.
    #[error(transparent)]
    File(FileError),
    /// There is no such file.
    #[error(
        "{}: no such file; plug the device in, mount its file system, or correct the path; a \
         device that has left the pool, or never joined it, is taken out of \"devices\" (only a \
         pool that never was is made with `vrio pool create`)",
        path.display()
    )]
    Missing {
        /// The path.
        path: PathBuf,
    },
    /// The device has no superblock.
    #[error(
        "{}: holds no pool; name the pool's own device, or restore it from a backup (`vrio pool \
         create` would make an empty one and overwrite what is there)",
        path.display()
    )]
    NoPool {
        /// The device.
        path: PathBuf,
    },
    /// No superblock of the device can be used.
    #[error("{}: {error}", path.display())]
    Superblock {
        /// The device.
        path: PathBuf,
        /// Why.
        error: SuperblockError,
    },
    /// Two paths lead to one device.
    #[error(
        "{} and {} are the same device; name each device of the pool once",
        other.display(), path.display()
    )]
    Twice {
        /// The later path.
        path: PathBuf,
        /// The earlier path.
        other: PathBuf,
    },
    /// Two devices say that they are the same device of the pool.
    #[error(
        "{} and {} say that they are the same device of the pool: one is a copy; name the original \
         only", other.display(), path.display()
    )]
    Copy {
        /// One of them.
        path: PathBuf,
        /// The other one.
        other: PathBuf,
    },
    /// A device is of another pool.
    #[error(
        "{}: belongs to another pool than {}; name the devices of one pool",
        path.display(), other.display()
    )]
    Foreign {
        /// The device.
        path: PathBuf,
        /// A device of the pool.
        other: PathBuf,
    },
    /// A device says that it is of the pool, and the pool has another one in its place.
    #[error(
        "{}: is not the device that the pool of {} has in its place; name the device that was \
         used last", path.display(), other.display()
    )]
    Replaced {
        /// The device.
        path: PathBuf,
        /// A device of the pool.
        other: PathBuf,
    },
    /// A device has missed checkpoints.
    #[error(
        "{}: is an older state of the device (checkpoint {had}, and the pool has {has}): it was \
         restored from a copy or was not there for a while; name the device that was used last, or \
         restore all devices from copies of one moment", path.display()
    )]
    Old {
        /// The device.
        path: PathBuf,
        /// Its last checkpoint.
        had: u64,
        /// The pool's last checkpoint.
        has: u64,
    },
    /// A device was to join a pool, and no device of the pool is named.
    #[error(
        "{}: was about to join a pool, and no other device of that pool is named; name the pool's \
         own devices", path.display()
    )]
    NotJoined {
        /// The device.
        path: PathBuf,
    },
    /// The pool does not change its devices as asked.
    #[error("pool {pool:?}: {why}")]
    Devices {
        /// The pool.
        pool: String,
        /// Why, and the way out.
        why: String,
    },
    /// Not all devices of the pool are named.
    #[error(
        "the pool has {devices} devices, and these are not named: number {missing}; add the paths \
         of all devices"
    )]
    Incomplete {
        /// How many devices it has.
        devices: u8,
        /// The numbers of those that are missing.
        missing: String,
    },
    /// A device has become shorter.
    #[error(
        "{}: has {actual_bytes} bytes, and its pool uses {wanted_bytes}: it was cut, and what was \
         there is lost; restore the device, or correct the path", path.display()
    )]
    Short {
        /// The device.
        path: PathBuf,
        /// Its length.
        actual_bytes: u64,
        /// The length that the pool needs.
        wanted_bytes: u64,
    },
    /// The device is in use by a pool or for something else, and must not be overwritten.
    #[error(
        "{}: holds {what}; choose another device, or force it if all of that may be lost",
        path.display()
    )]
    InUse {
        /// The device.
        path: PathBuf,
        /// Its content.
        what: &'static str,
    },
    /// A file was to be made, and is there.
    #[error("{}: is there already; leave the size out to use it as it is", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// A file has no length, and none was given.
    #[error("{}: is an empty or new file; say how large it must be", path.display())]
    NoSize {
        /// The file.
        path: PathBuf,
    },
    /// A device is too small for a pool.
    #[error(
        "{}: has {actual_bytes} bytes, and a pool with segments of {segment_bytes} bytes needs \
         {wanted_bytes}; choose a larger device, or smaller segments", path.display()
    )]
    TooSmall {
        /// The device.
        path: PathBuf,
        /// Its length.
        actual_bytes: u64,
        /// The least length.
        wanted_bytes: u64,
        /// The length of a segment.
        segment_bytes: u64,
    },
    /// No segments are so long.
    #[error(
        "segments of {segment_bytes} bytes: write a multiple of 4096 from {min_bytes} to \
         {max_bytes}, or leave it to the pool's size"
    )]
    Segment {
        /// The wanted length.
        segment_bytes: u64,
        /// The least length.
        min_bytes: u64,
        /// The greatest length.
        max_bytes: u64,
    },
    /// The engine does not open the pool.
    #[error("pool {pool:?}: {error}")]
    Engine {
        /// The pool.
        pool: String,
        /// Why.
        error: store::PoolOpenError,
    },
    /// The pool did not stop in time.
    #[error(
        "pool {pool:?} has not completed its last requests within {waited_s} s; its devices may \
         be stuck"
    )]
    Stuck {
        /// The pool.
        pool: String,
        /// How long it was waited for.
        waited_s: u64,
    },
    /// A device failed before.
    #[error(
        "pool {pool:?}: a device failed, so acknowledged writes may be lost; check the devices, \
         and restart the node"
    )]
    Failed {
        /// The pool.
        pool: String,
    },
    /// Anything else that the system refused.
    #[error("{}: cannot {what}: {source}", path.display())]
    System {
        /// The device, or the pool's name.
        path: PathBuf,
        /// The step that failed.
        what: &'static str,
        /// The system's answer.
        r#source: io::Error,
    },
}
