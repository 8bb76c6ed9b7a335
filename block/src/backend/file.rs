//! A volume in a raw file or on a block device, through io_uring.
//!
//! Direct (`O_DIRECT`) or buffered as a whole, chosen when it is opened. All I/O goes through one
//! file description that holds the file's lock, so whatever a killed predecessor still had in the
//! kernel has landed before this one begins.
//!
//! What it promises on a crash: a completed flush, or a completed durable write, is on the medium.
//! A failed sync means that acknowledged data may be lost, and the kernel says so only once; from
//! then on the volume has failed and every request is an error, until it is opened anew.

mod bounce;
mod channel;
mod failures;
mod format;
mod locks;
mod open;
mod resize;
mod witness;
mod zeroing;

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, Mutex, OnceLock};

use crate::record::{FileRecords, IncarnationNote, RecordError};
use crate::size::Size;
use crate::uring::Uring;
use crate::volume::{Channel, Incarnation, Open, OpenError, Volume, VolumeInfo};

pub use open::{FileError, FileOptions, LOCK_TIMEOUT};
pub use resize::{Remembered, ResizeError};

use bounce::Buffer;
use channel::FileChannel;

/// A failing disk fails many requests a second; one line in this time says enough.
const ERROR_LOG_INTERVAL_NS: u64 = 10_000_000_000;

/// What all channels of a file volume counted. Any of them adds, so these are for what is rare.
#[derive(Debug, Default)]
pub struct FileCounters {
    /// Requests that the system failed.
    pub errors: AtomicU64,
    /// Of these, for want of space.
    pub no_space: AtomicU64,
    /// Requests that went through aligned memory because the guest's was not.
    pub bounced: AtomicU64,
    /// Reads and writes that the sidecore did by itself, because the file is in memory.
    pub in_place: AtomicU64,
    /// Requests that waited for the ring or for such memory.
    pub waited: AtomicU64,
    /// Requests that the system did in part and that were continued.
    pub continued: AtomicU64,
    /// Syncs that were asked of the system.
    pub syncs: AtomicU64,
    /// Flushes that another one's sync answered.
    pub syncs_shared: AtomicU64,
    /// Ranges that were zeroed by writing zeroes: the file system has no other way, or failed.
    pub zeroes_written: AtomicU64,
}

/// A raw file or block device, opened and locked.
#[derive(Clone, Debug)]
pub struct FileVolume {
    shared: Arc<Shared>,
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
    /// `adopted`: it goes on under the one that it has. For who has opened it and not used it.
    ///
    /// # Errors
    /// When that cannot be kept.
    pub fn remember_by(&mut self, records: &FileRecords, adopted: bool) -> Result<(), RecordError> {
        let shared = Arc::get_mut(&mut self.shared).expect("nobody uses it yet");
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

    /// What its channels counted.
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

    fn open(&self, open: &Open<'_>) -> Result<Box<dyn Channel>, OpenError> {
        let uring = open.services.get::<Uring>().ok_or(OpenError::NoService("io_uring"))?;
        Ok(Box::new(FileChannel::new(Arc::clone(&self.shared), uring, open.depth)))
    }
}

/// What the channels share.
struct Shared {
    path: PathBuf,
    file: OwnedFd,
    /// What it was when it was opened.
    info: VolumeInfo,
    size: Size,
    is_block_device: bool,
    /// Held while the size changes.
    resizing: Mutex<()>,
    direct: bool,
    /// The file system is memory (tmpfs): a read or a write is a copy, and waits for nothing but
    /// pages that were swapped out, as a `memory` volume does.
    in_memory: bool,
    /// What the address of a buffer must be a multiple of under direct I/O.
    align_bytes: u32,
    failed: AtomicBool,
    /// What was seen of the host when it was opened.
    witnessed: [u8; 16],
    /// Where a failed sync is noted beside the file.
    note: Option<IncarnationNote>,
    syncs: Syncs,
    counters: FileCounters,
    /// The file system cannot zero a range by itself.
    cannot_zero: AtomicBool,
    /// What zeroes are written from: there, and where it has failed to.
    zeroes: OnceLock<Buffer>,
    /// When an error was last logged; 0 before the first.
    logged_ns: AtomicU64,
    /// Errors since then.
    unlogged: AtomicU64,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("path", &self.path)
            .field("direct", &self.direct)
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

/// What went wrong with which request; for the log.
#[derive(Clone, Copy, Debug)]
struct Failure {
    what: &'static str,
    offset_bytes: u64,
    len_bytes: u32,
    error: rustix::io::Errno,
}

impl Shared {
    fn has_failed(&self) -> bool {
        self.failed.load(Acquire)
    }

    /// Counts a failed request and logs it, unless one was logged lately.
    fn note(&self, failure: Failure, now_ns: u64) {
        self.counters.errors.fetch_add(1, Relaxed);
        if is_no_space(failure.error) {
            self.counters.no_space.fetch_add(1, Relaxed);
        }
        let logged_ns = self.logged_ns.load(Relaxed);
        if logged_ns != 0 && now_ns.saturating_sub(logged_ns) < ERROR_LOG_INTERVAL_NS {
            self.unlogged.fetch_add(1, Relaxed);
            return;
        }
        self.logged_ns.store(now_ns.max(1), Relaxed);
        let earlier = self.unlogged.swap(0, Relaxed);
        tracing::error!(
            file = %self.path.display(),
            what = failure.what,
            offset_bytes = failure.offset_bytes,
            len_bytes = failure.len_bytes,
            error = %failure.error,
            earlier,
            "the storage failed a request; the guest sees an I/O error"
        );
    }

    /// A sync failed: data that was acknowledged may be gone, and the kernel will not say so
    /// again.
    fn fail(&self, failure: Failure) {
        if !self.failed.swap(true, Release) {
            tracing::error!(
                file = %self.path.display(),
                what = failure.what,
                error = %failure.error,
                "a sync failed, so acknowledged writes may be lost: the volume has failed and \
                 every request on it is an error until the node is restarted; check the storage \
                 and the guest's file system first"
            );
            // Both, as one of them may be on what has failed.
            let noted = [
                failures::note(&self.file).map_err(Into::into),
                self.note.as_ref().map_or(Ok(()), IncarnationNote::spoil),
            ];
            for error in noted.into_iter().filter_map(Result::err) {
                let file = self.path.display();
                tracing::warn!(%file, %error, "one of the two notes of the failure cannot be kept");
            }
        }
    }
}

fn is_no_space(error: rustix::io::Errno) -> bool {
    use rustix::io::Errno;
    [Errno::NOSPC, Errno::DQUOT, Errno::FBIG].contains(&error)
}

/// The order of syncs over all channels of one file description.
///
/// The kernel reports a write-back error to *one* sync per file description. If two could overlap,
/// the one that succeeds might be believed while the other has the error. So there is one at a
/// time, and a flush is answered by any sync that *began* after the flush was submitted:
///
/// ```text
///   even: nobody syncs.  odd: somebody does.     +1 by whoever begins, +1 by whoever ends
///
///   flush submitted at 4 ──▶ answered at 6 (5 is a sync that begins later)
///   flush submitted at 5 ──▶ answered at 8 (the sync under way may have missed its writes)
/// ```
#[derive(Debug, Default)]
struct Syncs(AtomicU64);

impl Syncs {
    /// Where the order stands.
    fn now(&self) -> u64 {
        self.0.load(Acquire)
    }

    /// Where it must stand for a flush that is submitted now to be answered.
    fn target(&self) -> u64 {
        (self.now() + 3) & !1
    }

    /// Takes the turn if nobody has it.
    fn try_begin(&self) -> bool {
        let now = self.now();
        now.is_multiple_of(2) && self.0.compare_exchange(now, now + 1, Acquire, Relaxed).is_ok()
    }

    /// The turn is over; what was to be told about its outcome is stored before.
    fn end(&self) {
        let before = self.0.fetch_add(1, Release);
        assert!(!before.is_multiple_of(2), "whoever ends a sync began it");
    }

    /// The turn was taken and nothing came of it.
    fn cancel(&self) {
        let before = self.0.fetch_sub(1, Release);
        assert!(!before.is_multiple_of(2), "whoever cancels a sync began it");
    }
}

#[cfg(test)]
mod tests;
