//! The description that every backend has of itself.

use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sidecore::CounterText;
use store::VolumeId;

use super::store::compression::VolumeCompression;
use super::store::history::VolumeHistory;
use super::store::pool::StorePool;
use super::store::pools::Pools;
use crate::record::{FileRecords, RecordError};
use crate::settings::{SettingKey, Settings};
use crate::stage::VolumeKey;
use crate::volume::{Durability, Incarnation, SECTOR_BYTES, Topology, Volume};

/// A backend as it is configured. Every file in `backend/` has one.
pub trait VolumeBackend: Clone + fmt::Debug + PartialEq + Eq {
    /// The key that chooses the backend. It is also the first of [`Self::KEYS`].
    const NAME: &'static str;
    /// An example of this key, as TOML.
    const EXAMPLE: &'static str;
    /// The keys of its table.
    const KEYS: &'static [SettingKey];
    /// The needs that the sidecores and the process of the node must meet.
    const NEEDS: BackendNeeds;
    /// Whether the operator may say what guests are told of the storage's layout.
    const HAS_LAYOUT: bool = false;
    /// Why a volume on it cannot be read-only, if it cannot.
    const NOT_READ_ONLY: Option<&'static str> = None;
    /// Its counters. In the status and the metrics [`Self::NAME`] stands before their names.
    const COUNTERS: &'static [CounterText] = &[];

    /// The backend from its table; `None` where something is wrong, which is noted. `file` reads
    /// the path at a key, which must lie inside of the directories for volumes.
    fn read(settings: &dyn Settings, file: FileAt<'_>) -> Option<Self>;

    /// The file or block device that belongs to the volume.
    fn file(&self) -> Option<BackendFile<'_>> {
        None
    }

    /// The pool that the volume is cut from.
    fn pool(&self) -> Option<BackendPool<'_>> {
        None
    }

    /// The file of the key that encrypts it, if the backend itself does.
    fn key_file(&self) -> Option<&Path> {
        None
    }

    /// The same backend with another file of its key; `None` for a backend that has none.
    fn with_key(&self, _key: &Path) -> Option<Self> {
        None
    }

    /// The same backend with another configured size; `None` for a backend that keeps its size.
    fn with_size(&self, _size_bytes: u64) -> Option<Self> {
        None
    }

    /// Opens it, or goes on with the blocks of another process. Waits for the lock of a file, so
    /// this is for control threads.
    ///
    /// # Errors
    /// The problem and the way out, for the operator.
    fn open(
        &self,
        opening: &Opening<'_>,
        handed: Option<HandedBlocks>,
    ) -> Result<Box<dyn BackendVolume>, String>;
}

/// Reads the path of a file at a key of the backend's table.
pub type FileAt<'a> = &'a dyn Fn(&str) -> Option<PathBuf>;

/// The needs of a backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackendNeeds {
    /// An io_uring on each sidecore ([`crate::uring`]).
    pub uring: bool,
    /// The system calls of its own that the node's filter must let through, by number.
    pub calls: &'static [i64],
}

/// The file or block device of a backend, as configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendFile<'a> {
    /// Its absolute path.
    pub path: &'a Path,
    /// How much of it is used; `None` for all of it.
    pub size_bytes: Option<u64>,
}

/// The pool of a backend, as configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendPool<'a> {
    /// Its name on the node.
    pub name: &'a str,
    /// The least size of the volume; `None` for the size that it has.
    pub size_bytes: Option<u64>,
    /// The space that others cannot take; `None`: it keeps its reservation.
    pub reservation_bytes: Option<u64>,
    /// The space that the volume and its snapshots may have; `None`: they keep their limit.
    pub limit_bytes: Option<u64>,
    /// The compression of the volume; `None`: it keeps its compression.
    pub compression: Option<VolumeCompression>,
    /// The history of the volume; `None`: it keeps its history.
    pub history: Option<VolumeHistory>,
}

/// The way to open a backend, as far as the volume and not the backend says it.
#[derive(Clone, Copy, Debug)]
pub struct Opening<'a> {
    /// The volume's name on the node.
    pub name: &'a str,
    /// The node's pools.
    pub pools: &'a Pools,
    /// The loss that a completed write survives.
    pub durability: Durability,
    /// Refuse writes.
    pub read_only: bool,
    /// The layout of the storage as guests are told of it; a 0 is found out.
    pub topology: Topology,
    /// No guest has used the volume yet, so that its content may be looked at.
    pub is_new: bool,
    /// The key of [`VolumeBackend::key_file`], or why there is none.
    pub key: Option<Result<&'a VolumeKey, &'a str>>,
}

/// The blocks of a volume of another process, which has stopped using them.
#[derive(Debug)]
pub struct HandedBlocks {
    /// The descriptor that [`BackendVolume::descriptor`] gave there.
    pub descriptor: OwnedFd,
    /// The volume's incarnation there.
    pub incarnation: Incarnation,
    /// The content was in the memory of that process ([`crate::VolumeInfo::volatile`]).
    pub volatile: bool,
    /// A sync has failed there.
    pub failed: bool,
}

/// A volume as its backend has opened it.
pub trait BackendVolume: Volume {
    /// The backend in a few words, for the status.
    fn describe(&self) -> String;

    /// The descriptor with which a successor goes on; none if there is nothing to go on with.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// The path of the file or device.
    fn path(&self) -> Option<&Path> {
        None
    }

    /// Whether a sync failed, so that every request is an error.
    fn has_failed(&self) -> bool {
        false
    }

    /// Why there is no storage behind it, so that it admits no client.
    fn absent(&self) -> Option<String> {
        None
    }

    /// Its pool, and its number there.
    fn in_pool(&self) -> Option<(&Arc<StorePool>, VolumeId)> {
        None
    }

    /// Gives its counters, by their names in the status.
    fn counted(&self, _put: &mut dyn FnMut(&str, u64)) {}

    /// Has the volume's records say which incarnation this is, and remember when a sync fails.
    /// `adopted`: it goes on under the incarnation that it has. For a caller that has opened it
    /// and not used it.
    ///
    /// # Errors
    /// When that cannot be kept.
    fn remember_by(&mut self, _records: &FileRecords, _adopted: bool) -> Result<(), RecordError> {
        Ok(())
    }

    /// The volume as one whose size can be changed, if it can.
    fn as_resizable(&self) -> Option<&dyn Resizable> {
        None
    }
}

/// A volume that can be made larger and smaller while it is open.
pub trait Resizable {
    /// Makes it `size_bytes` long. `configured_bytes` is the size in the configuration, `shrink`
    /// the caller's word that no user of the volume is there.
    ///
    /// # Errors
    /// [`ResizeError`]; nothing was changed.
    fn resize(
        &self,
        size_bytes: u64,
        configured_bytes: Option<u64>,
        shrink: bool,
    ) -> Result<Remembered, ResizeError>;
}

/// Whether a new size outlives the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remembered {
    /// By the file or the configuration.
    Yes,
    /// The file's system keeps no attributes: the configuration has to say it.
    No,
}

/// The reason that a volume was not resized. Nothing is changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResizeError {
    /// No whole number of blocks.
    #[error("a size of {size_bytes} bytes is not a multiple of its blocks of {block_bytes}")]
    NotWhole {
        /// The wanted size.
        size_bytes: u64,
        /// The block.
        block_bytes: u32,
    },
    /// The device is no larger.
    #[error("its block device has {actual_bytes} bytes; extend the device first")]
    DeviceTooSmall {
        /// Its size.
        actual_bytes: u64,
    },
    /// A volume that is not written to.
    #[error("it is read-only")]
    ReadOnly,
    /// Not larger, and that it may be smaller was not said.
    #[error("it has {now_bytes} bytes: data beyond the new end would be lost")]
    Shrinks {
        /// Its size.
        now_bytes: u64,
    },
    /// Anything that the system refused.
    #[error("cannot {what}: {source}")]
    System {
        /// The step that failed.
        what: &'static str,
        /// The system's answer.
        r#source: std::io::Error,
    },
}

/// One kind of backend: its line of the table.
#[derive(Clone, Copy)]
pub struct BackendKind<C: 'static> {
    /// [`VolumeBackend::NAME`].
    pub name: &'static str,
    /// [`VolumeBackend::EXAMPLE`].
    pub example: &'static str,
    /// [`VolumeBackend::KEYS`].
    pub keys: &'static [SettingKey],
    /// [`VolumeBackend::NEEDS`].
    pub needs: BackendNeeds,
    /// [`VolumeBackend::HAS_LAYOUT`].
    pub has_layout: bool,
    /// [`VolumeBackend::NOT_READ_ONLY`].
    pub not_read_only: Option<&'static str>,
    /// [`VolumeBackend::COUNTERS`].
    pub counters: &'static [CounterText],
    /// [`VolumeBackend::read`].
    pub read: fn(&dyn Settings, FileAt<'_>) -> Option<C>,
}

impl<C> BackendKind<C> {
    pub(super) const fn of<B: VolumeBackend + Into<C>>() -> Self {
        Self {
            name: B::NAME,
            example: B::EXAMPLE,
            keys: B::KEYS,
            needs: B::NEEDS,
            has_layout: B::HAS_LAYOUT,
            not_read_only: B::NOT_READ_ONLY,
            counters: B::COUNTERS,
            read: |settings, file| B::read(settings, file).map(Into::into),
        }
    }

    /// Whether the key belongs to this backend.
    pub fn has(&self, key: &str) -> bool {
        self.keys.iter().any(|it| it.name == key)
    }
}

impl<C> fmt::Debug for BackendKind<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Checks that a size can be a volume's: whole sectors, and at least one.
///
/// # Errors
/// The problem, for the operator.
pub fn whole_sectors(bytes: u64) -> Result<u64, String> {
    if bytes == 0 || !bytes.is_multiple_of(SECTOR_BYTES) {
        return Err(format!(
            "{bytes} bytes are not a whole number of sectors ({SECTOR_BYTES} bytes)"
        ));
    }
    Ok(bytes)
}

/// Reads the size of a volume at a key.
pub(super) fn volume_bytes(settings: &dyn Settings, key: &str) -> Option<u64> {
    let checked = whole_sectors(settings.bytes(key)?);
    checked.map_err(|text| settings.fail_key(key, format!("{key:?}: {text}"))).ok()
}
