//! A volume in a raw file or on a block device, through io_uring.
//!
//! Direct (`O_DIRECT`) or buffered as a whole, chosen when it is opened. All I/O goes through one
//! file description that holds the file's lock. So all requests that a killed predecessor still had
//! in the kernel have landed before this one begins.
//!
//! The promise on a crash: a completed flush, or a completed durable write, is on the medium. A
//! failed sync means that acknowledged data may be lost, and the kernel says so only once. From
//! then on the volume has failed and every request is an error, until it is opened anew.

mod bounce;
mod channel;
mod configured;
mod failures;
mod format;
mod locks;
pub(super) mod open;
mod resize;
mod shared;
mod witness;
mod zeroing;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};

use crate::record::{FileRecords, RecordError};
use crate::size::Size;
use crate::uring::Uring;
use crate::volume::{Channel, Incarnation, OpenArguments, OpenError, Volume, VolumeInfo};

pub use configured::FileBackend;
pub use open::{FileError, FileOptions, LOCK_TIMEOUT};
pub use shared::FileCounters;

use channel::FileChannel;
use shared::FileShared;

/// A raw file or block device, opened and locked.
#[derive(Clone, Debug)]
pub struct FileVolume {
    shared: Arc<FileShared>,
}

impl FileVolume {
    /// Opens, creates (where a size was given and there is no file) and locks a file. Waits for
    /// the lock as long as the options say, so this is for control threads only.
    ///
    /// # Errors
    /// [`FileError`] names the file and says what to do.
    pub fn open(options: &FileOptions) -> Result<Self, FileError> {
        Ok(Self { shared: Arc::new(open::open(options, None)?) })
    }

    /// Goes on with the file of another process, which has nothing on its way to it any more: the
    /// locked description itself, so that the lock is never free, and so the same incarnation.
    /// `failed`: a sync had failed.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn adopt(
        options: &FileOptions,
        file: OwnedFd,
        incarnation: Incarnation,
        failed: bool,
    ) -> Result<Self, FileError> {
        let mut shared = open::open(options, Some(file))?;
        shared.info.incarnation = incarnation;
        shared.failed.store(failed, Release);
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Has the volume's records say which incarnation this is, and remember when a sync fails.
    /// `adopted`: the volume keeps its incarnation. The volume must be open and not used yet.
    ///
    /// When that cannot be recorded.
    /// When that cannot be kept.
    pub fn remember_by(&mut self, records: &FileRecords, adopted: bool) -> Result<(), RecordError> {
        let shared = Arc::get_mut(&mut self.shared).expect("no disk uses it yet");
        let (seen, now) = (shared.witnessed, shared.info.incarnation);
        let (incarnation, note) = if adopted {
            (now, records.keep_incarnation(seen, now, shared.failed.load(Acquire))?)
        } else {
            records.incarnation(seen, now)?
        };
        shared.info.incarnation = incarnation;
        shared.note = Some(note);
        Ok(())
    }

    /// The locked file.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.shared.file.as_fd()
    }

    /// The file's path, as it was configured.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// Whether it is opened around the page cache.
    pub fn is_direct(&self) -> bool {
        self.shared.direct
    }

    /// Whether a sync failed, so that every request is an error.
    pub fn has_failed(&self) -> bool {
        self.shared.has_failed()
    }

    /// The counters of all its channels.
    pub fn counters(&self) -> &FileCounters {
        &self.shared.counters
    }
}

impl Volume for FileVolume {
    fn info(&self) -> VolumeInfo {
        VolumeInfo { size_bytes: self.shared.size.get(), ..self.shared.info.clone() }
    }

    fn size(&self) -> Size {
        self.shared.size.clone()
    }

    fn open(&self, open: &OpenArguments<'_>) -> Result<Box<dyn Channel>, OpenError> {
        let uring = open.services.get::<Uring>().ok_or(OpenError::NoService("io_uring"))?;
        Ok(Box::new(FileChannel::new(Arc::clone(&self.shared), uring, open.depth)))
    }
}

#[cfg(test)]
mod tests;
