//! The state that all channels of a file volume share: its file, its counters, the note of a sync
//! that failed, and the order of syncs.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use parking_lot::Mutex;

use super::bounce::Buffer;
use super::failures;
use crate::record::IncarnationNote;
use crate::size::Size;
use crate::volume::VolumeInfo;

/// A failing disk fails many requests a second; one line in this time says enough.
pub(super) const ERROR_LOG_INTERVAL_NS: u64 = 10_000_000_000;

sidecore::counters! {
    /// The counters of a file volume. All its channels add to them, so they count rare events only.
    pub struct FileCounters of AtomicU64 {
        errors: "Requests that the file's storage failed.",
        /// Requests that failed for want of space; they are among the errors.
        no_space,
        /// Requests that went through aligned memory because the guest's was not.
        bounced,
        /// Reads and writes that the sidecore did by itself, because the file is in memory.
        in_place,
        /// Requests that waited for the ring or for such memory.
        waited,
        /// Requests that the system did in part and that were continued.
        continued,
        syncs: "Syncs of the file.",
        /// Flushes that the sync of another flush answered.
        syncs_shared,
        /// The file system has no other way, or the way has failed.
        zeroes_written: "Ranges zeroed by writing zeroes, because the file system \
                         cannot zero them.",
    }
}

/// The state of a file volume that its channels share.
pub(super) struct FileShared {
    pub(super) path: PathBuf,
    pub(super) file: OwnedFd,
    /// The volume as it was opened.
    pub(super) info: VolumeInfo,
    pub(super) size: Size,
    pub(super) is_block_device: bool,
    /// Held while the size changes.
    pub(super) resizing: Mutex<()>,
    pub(super) direct: bool,
    /// The file system is memory (tmpfs): a read or a write is a copy, and waits for nothing but
    /// pages that were swapped out, as a `memory` volume does.
    pub(super) in_memory: bool,
    /// Under direct I/O the address of a buffer must be a multiple of this.
    pub(super) align_bytes: u32,
    pub(super) failed: AtomicBool,
    /// The host's state when the file was opened: [`super::witness`].
    pub(super) witnessed: [u8; 16],
    /// Where a failed sync is noted beside the file.
    pub(super) note: Option<IncarnationNote>,
    pub(super) syncs: Syncs,
    pub(super) counters: FileCounters,
    /// The file system cannot zero a range by itself.
    pub(super) cannot_zero: AtomicBool,
    /// The source of zeroes that are written: on such a file system, and on one that failed to zero
    /// a range.
    pub(super) zeroes: OnceLock<Buffer>,
    /// When an error was last logged; 0 before the first.
    pub(super) logged_ns: AtomicU64,
    /// Errors since then.
    pub(super) unlogged: AtomicU64,
}

impl fmt::Debug for FileShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("path", &self.path)
            .field("direct", &self.direct)
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

/// A request that failed, for the log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failure {
    pub(super) what: &'static str,
    pub(super) offset_bytes: u64,
    pub(super) len_bytes: u32,
    pub(super) error: rustix::io::Errno,
}

impl FileShared {
    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Acquire)
    }

    /// Counts a failed request and logs it, unless one was logged lately.
    pub(super) fn note(&self, failure: Failure, now_ns: u64) {
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
    pub(super) fn fail(&self, failure: Failure) {
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
                tracing::warn!(%file, %error, "one of the two notes of the failure cannot be \
                                               written");
            }
        }
    }
}

pub(super) fn is_no_space(error: rustix::io::Errno) -> bool {
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
///   even: no sync.  odd: a sync is under way.    +1 when it begins, +1 when it ends
///
///   flush submitted at 4 ──▶ answered at 6 (5 is a sync that begins later)
///   flush submitted at 5 ──▶ answered at 8 (the sync under way may have missed its writes)
/// ```
#[derive(Debug, Default)]
pub(super) struct Syncs(AtomicU64);

impl Syncs {
    /// Where the order stands.
    pub(super) fn now(&self) -> u64 {
        self.0.load(Acquire)
    }

    /// Where it must stand for a flush that is submitted now to be answered.
    pub(super) fn target(&self) -> u64 {
        (self.now() + 3) & !1
    }

    /// Takes the turn if it is free.
    pub(super) fn try_begin(&self) -> bool {
        let now = self.now();
        now.is_multiple_of(2) && self.0.compare_exchange(now, now + 1, Acquire, Relaxed).is_ok()
    }

    /// The turn is over. The outcome of the sync is stored before.
    pub(super) fn end(&self) {
        let before = self.0.fetch_add(1, Release);
        assert!(!before.is_multiple_of(2), "a sync that ends has begun");
    }

    /// The turn was taken and nothing came of it.
    pub(super) fn cancel(&self) {
        let before = self.0.fetch_sub(1, Release);
        assert!(!before.is_multiple_of(2), "a sync that is cancelled has begun");
    }
}
