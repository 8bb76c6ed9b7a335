//! The requests and answers of the pool's engine.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::block::BlockBuffer;
use crate::history::HistoryOptions;
use crate::pack::PageCompression;
pub use pool_stream::VolumeId;
use pool_stream::VolumeReceive;
use seal::WrappedKey;

/// The caller's word for a request; it comes back with the completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestTag(pub u64);

/// Whether the engine took a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Admission {
    /// It did, and one [`PoolCompletion::Done`] follows.
    Taken,
    /// It did not, and nothing was changed: a queue or the pool is full. Offer it again later.
    Busy,
}

/// Something that the engine has for the caller.
#[derive(Debug)]
pub enum PoolCompletion {
    /// Blocks of a read: `blocks` of them, from the request's block `first` on. All blocks of a
    /// read come before its `Done`. Give the buffer back with `recycle`.
    Data {
        /// The request.
        tag: RequestTag,
        /// The first block, counted from the request's start.
        first: u32,
        /// How many.
        blocks: u32,
        /// The content; `None` for zeroes.
        buffer: Option<BlockBuffer>,
    },
    /// A request's end.
    Done {
        /// The request.
        tag: RequestTag,
        /// How it ended; of a change, the id of the volume or snapshot that it made or was about.
        result: Result<VolumeId, PoolError>,
    },
}

/// A request of the engine to a device.
#[derive(Debug)]
pub struct DeviceIo {
    /// The engine's word for it: it goes back with the answer.
    pub token: u64,
    /// The device.
    pub device: u8,
    /// The operation.
    pub op: DeviceOp,
}

/// An operation of a device. Buffers go back with each answer, also with an error.
#[derive(Debug)]
pub enum DeviceOp {
    /// Fill the first `blocks` of the buffer.
    Read {
        /// The first block, counted from the device's start.
        block: u64,
        /// Where to.
        buffer: BlockBuffer,
        /// How many blocks.
        blocks: u32,
    },
    /// Write the first `blocks` of the buffer.
    Write {
        /// The first block, counted from the device's start.
        block: u64,
        /// The content.
        buffer: BlockBuffer,
        /// How many blocks.
        blocks: u32,
    },
    /// Make all writes that were answered before this was handed out survive a power cut.
    Sync,
}

/// Why a device did not do as it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolDeviceError {
    /// There is no space under the device: ENOSPC or EDQUOT of a pool's file.
    NoSpace,
    /// The device ends before the blocks that the pool has on it.
    Shorter,
    /// Anything else, by its errno.
    Failed(i32),
}

impl fmt::Display for PoolDeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSpace => write!(f, "no space"),
            Self::Shorter => write!(f, "the device is shorter than the pool on it"),
            Self::Failed(errno) => write!(f, "error {errno}"),
        }
    }
}

/// One of several reads that need not be done one after the other.
#[derive(Debug)]
pub struct DeviceRead {
    /// The device.
    pub device: u8,
    /// The first block, counted from the device's start.
    pub block: u64,
    /// Where to.
    pub buffer: BlockBuffer,
    /// How many blocks.
    pub blocks: u32,
    /// How it ended.
    pub result: Result<(), PoolDeviceError>,
}

/// Devices that answer at once: for opening a pool, and for tests.
pub trait PoolDevices {
    /// Fills the first `blocks` blocks of the buffer from the device's block `block` on.
    ///
    /// # Errors
    /// If the device cannot.
    fn read(
        &mut self,
        device: u8,
        block: u64,
        buffer: &mut BlockBuffer,
        blocks: u32,
    ) -> Result<(), PoolDeviceError>;

    /// Does some reads in any order, and notes how each ended. A device that does several at once
    /// is faster with them.
    fn read_all(&mut self, reads: &mut [DeviceRead]) {
        for read in reads {
            read.result = self.read(read.device, read.block, &mut read.buffer, read.blocks);
        }
    }

    /// Writes the first `blocks` blocks of the buffer.
    ///
    /// # Errors
    /// If the device cannot.
    fn write(
        &mut self,
        device: u8,
        block: u64,
        buffer: &BlockBuffer,
        blocks: u32,
    ) -> Result<(), PoolDeviceError>;

    /// Makes all that was written survive a power cut.
    ///
    /// # Errors
    /// If the device cannot.
    fn sync(&mut self, device: u8) -> Result<(), PoolDeviceError>;
}

/// A change of the catalog. It is logged as JSON, so a field's name is part of the format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum PoolChange {
    /// A new volume, all zeroes.
    Create {
        /// Its name, which no other volume of the pool has.
        name: String,
        /// Its size.
        blocks: u64,
    },
    /// Another size. Blocks beyond a smaller size are freed in the background.
    Resize {
        /// The volume.
        volume: VolumeId,
        /// The new size.
        blocks: u64,
    },
    /// Another name.
    Rename {
        /// The volume.
        volume: VolumeId,
        /// Its new name.
        name: String,
    },
    /// A snapshot of each of these volumes, all of one moment.
    Snapshot {
        /// The volumes.
        volumes: Vec<VolumeId>,
        /// The name of the snapshots; no snapshot of these volumes has it.
        name: String,
        /// The time, in seconds since 1970.
        at_s: u64,
    },
    /// A volume that begins as a copy of a snapshot.
    Clone {
        /// The snapshot.
        snapshot: VolumeId,
        /// The name of the new volume.
        name: String,
    },
    /// A volume is again what it was at a snapshot of its own line.
    Rollback {
        /// The volume.
        volume: VolumeId,
        /// The snapshot.
        snapshot: VolumeId,
    },
    /// The space of a volume and its snapshots together, in blocks of data.
    Quota {
        /// The volume.
        volume: VolumeId,
        /// Blocks that others cannot take; 0 for none.
        reservation: u64,
        /// Blocks that they may own; `None` for as many as the pool has.
        limit: Option<u64>,
    },
    /// The volume or snapshot goes; its space comes back in the background. Volumes and snapshots
    /// that came from it stay as they are.
    Remove {
        /// The volume or snapshot.
        volume: VolumeId,
    },
    /// A new encrypted volume, all zeroes, of a family of its own.
    CreateSealed {
        /// Its name, which no other volume of the pool has.
        name: String,
        /// Its size.
        blocks: u64,
        /// The family's name over all pools: 32 random hexadecimal digits.
        family: String,
        /// The family's data key.
        key: WrappedKey,
    },
    /// The data keys of a volume's family are under another wrapping key.
    Rewrap {
        /// A volume or snapshot of the family.
        volume: VolumeId,
        /// The same data keys, wrapped anew.
        keys: Vec<WrappedKey>,
    },
    /// A volume's family has another data key. Its pages are sealed anew in the background.
    Rekey {
        /// A volume or snapshot of the family.
        volume: VolumeId,
        /// The data key.
        key: WrappedKey,
    },
    /// No page is under an old data key of a volume's family any more: the key is forgotten.
    Resealed {
        /// A volume or snapshot of the family.
        volume: VolumeId,
        /// The old data key.
        version: u32,
    },
    /// The data keys of a volume's family are forgotten, and all of its volumes and snapshots go.
    Shred {
        /// A volume or snapshot of the family.
        volume: VolumeId,
        /// Without it, a family that has other volumes or snapshots is left as it is.
        all: bool,
    },
    /// All blocks of a volume read as zeroes, at once.
    Clear {
        /// The volume.
        volume: VolumeId,
    },
    /// Another compression of a volume's pages. It holds for pages that move later.
    Compression {
        /// The volume.
        volume: VolumeId,
        /// The compression; none for pages as they are.
        compression: Option<PageCompression>,
    },
    /// A volume keeps a history from here on, or another history, or no history: then its moments
    /// go.
    History {
        /// The volume.
        volume: VolumeId,
        /// How it is kept.
        history: Option<HistoryOptions>,
    },
    /// A new volume, all zeroes, into which a stream is received.
    ReceiveNew {
        /// Its name.
        volume_name: String,
        /// The stream.
        receive: VolumeReceive,
    },
    /// A stream is received into a volume that is as its snapshot `onto`; or a stream that is being
    /// received has come as far as the change says.
    Receive {
        /// The volume.
        volume: VolumeId,
        /// The stream.
        receive: VolumeReceive,
    },
    /// All of a stream is received: the volume has the snapshot, and can be used again.
    Received {
        /// The volume.
        volume: VolumeId,
    },
}

/// Why the writes of a volume wait while others go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QuotaWait {
    /// The volume and its snapshots have reached their limit.
    Limit,
    /// The rest of the pool is reserved for other volumes.
    Reserved,
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PoolError {
    /// There is no volume of this id.
    #[error("the pool has no volume with the number {0}: list its volumes")]
    NoVolume(VolumeId),
    /// The request changes blocks of a snapshot, or needs a snapshot and names a volume.
    #[error("number {0} is {1}")]
    WrongKind(VolumeId, &'static str),
    /// The volume is encrypted, and the pool was not given its key.
    #[error("the volume is encrypted, and its key {key_id} was not given: name its file")]
    Locked {
        /// The name of the key.
        key_id: String,
    },
    /// The key is that of another volume.
    #[error(
        "the key {given} is not the volume's, whose data key is kept under {wanted}: name the file \
         of that key (`vrio key show FILE` prints a file's)"
    )]
    WrongKey {
        /// The name of the key that was given.
        given: String,
        /// The name of the key that is wanted.
        wanted: String,
    },
    /// A wrapped data key does not open with the right wrapping key.
    #[error("the data key of the volume is damaged in the pool: restore the pool from a backup")]
    KeyDamaged,
    /// The request reaches beyond the volume's end.
    #[error("the request reaches beyond the volume's end")]
    BeyondEnd,
    /// The name is in use.
    #[error("the name {0:?} is in use: choose another")]
    NameTaken(String),
    /// A name or a size that none can have.
    #[error("{0}")]
    Invalid(String),
    /// A stream is being received into the volume.
    #[error(
        "a stream is being received into volume number {0}: let `vrio volume receive` go on, or \
         end it with its --give-up"
    )]
    BeingReceived(VolumeId),
    /// No stream is being received into the volume, or another stream.
    #[error(
        "another stream or none is being received into volume number {0}: \
         `vrio volume receive --status` says which"
    )]
    NotReceived(VolumeId),
    /// The volume is not as the stream's base.
    #[error(
        "volume number {0} was changed since the snapshot on which the stream builds: make it \
         again what it was with `vrio volume rollback`, or receive into another volume"
    )]
    ChangedSinceBase(VolumeId),
    /// The volume has no history.
    #[error(
        "volume number {0} has no history: give it one with `vrio volume history NAME 2h`, or with \
         the key history; it begins then"
    )]
    NoHistory(VolumeId),
    /// The history does not reach so far back.
    #[error("the volume's history does not reach back so far: it begins {oldest_ns} ns after 1970")]
    BeforeHistory {
        /// The time of its oldest moment.
        oldest_ns: u64,
    },
    /// Blocks of the stream are missing.
    #[error("the stream is received up to block {next_block} of {blocks}: send the rest")]
    Incomplete {
        /// The first block that is missing.
        next_block: u64,
        /// All blocks.
        blocks: u64,
    },
    /// The pool cannot keep so much free for a volume.
    #[error(
        "the pool has {free_bytes} bytes that are free and not reserved, which is too little for \
         this reservation: make it smaller, or make room or the pool larger"
    )]
    NoPromise {
        /// Bytes that are free, and reserved for none.
        free_bytes: u64,
    },
    /// A bound of the pool is reached.
    #[error("the pool has {0} already: remove some first")]
    TooMany(&'static str),
    /// The content of a block is not what was written: the medium has damaged or lost it.
    #[error("block {block} is damaged on the medium: write it again, or restore it from a backup")]
    Damaged {
        /// The block of the volume.
        block: u64,
    },
    /// A page of the map is not readable, and the blocks that it maps are not reachable.
    #[error("a page of the pool's map is damaged, and this block cannot be found")]
    MapDamaged,
    /// A device failed; the pool takes no more changes until it is opened again.
    #[error(
        "a device of the pool failed ({0}): the pool takes no changes until it is opened again"
    )]
    DeviceFailed(PoolDeviceError),
    /// The pool is being closed.
    #[error("the pool is closed")]
    Closed,
}
