//! Shared mappings of files: a guest's memory, the inflight region.

use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use crate::backing::{Backing, GuestFiles};
use crate::budget::{Account, BudgetError, Charge, memory_rules};
use crate::sigbus::Watch;

/// How many mappings of this process are alive; for tests that nothing leaks.
static LIVE: AtomicUsize = AtomicUsize::new(0);

/// Why a file could not be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// Nothing to map.
    #[error("the range is empty")]
    Empty,
    /// Offset and length do not fit 64 bits, or not the address space.
    #[error("offset {offset:#x} plus length {len:#x} overflows")]
    Overflow {
        /// Where the range begins in the file.
        offset: u64,
        /// Its length in bytes.
        len: u64,
    },
    /// A device, a pipe or a socket: an access could block or fail at any time.
    #[error("the descriptor is not a regular or memory file")]
    NotAFile,
    /// A file system that may let an access wait for as long as it likes.
    #[error(
        "the file is not in memory: its file system may stall each access to the guest's memory; \
         give the guest a memfd, or a file in tmpfs (/dev/shm) or hugetlbfs, or write guest-files \
         = \"any\" in [memory] if all front ends are trusted"
    )]
    FileSystem,
    /// The front end, or all of them, have as much as they may.
    #[error(transparent)]
    Budget(#[from] BudgetError),
    /// An access beyond the end of the file would kill the process.
    #[error("the file has {have} bytes, the range ends at byte {need}")]
    FileTooSmall {
        /// The file's size in bytes.
        have: u64,
        /// Where the range ends.
        need: u64,
    },
    /// The process has more mappings than can be watched.
    #[error("too many mappings in this process")]
    TooMany,
    /// The system refused.
    #[error("{what} failed: {errno}")]
    System {
        /// The system call.
        what: &'static str,
        /// Its answer.
        errno: Errno,
    },
}

/// A range of a file, mapped shared and writable, unmapped when the last owner lets go. It is
/// never locked or pinned: the guest's memory stays swappable.
///
/// Any page of a file may be gone, or not to be had, when it is touched: the file is truncated, a
/// hole of it finds no free huge page, its file system fails. The access would end the process. It
/// is caught, finds zeroes, and the mapping is marked as lost. No seal of a file excludes all of
/// these cases.
#[derive(Debug)]
pub struct Mapping {
    map: NonNull<u8>,
    map_len: NonZeroUsize,
    /// Where the asked range begins in the mapping, which starts at a page.
    skip: usize,
    len: usize,
    /// Where the mapping begins in its file.
    file_start: u64,
    /// None for memory that has no file.
    watch: Option<Watch>,
    is_sealed: bool,
    /// Its part of the budget, given back when it is unmapped.
    charge: Option<Charge>,
}

// SAFETY: a mapping is an address range that is valid from any thread until it is dropped; the code
// that reads or writes its bytes answers for these uses.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` gives out addresses only.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of a file of this process's own from `offset` on, both in bytes, shared,
    /// for reading and writing.
    ///
    /// # Errors
    /// When the range makes no sense, the descriptor is no file, the file ends earlier, or the
    /// system refuses.
    pub fn of_file(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<Self, MapError> {
        Self::of(fd, offset, len, None)
    }

    /// The same, of a file that a front end has handed over where there is an account: then it has
    /// to be one that the rules allow, and the mapping is charged.
    pub(crate) fn of(
        fd: BorrowedFd<'_>,
        offset: u64,
        len: u64,
        account: Option<&Arc<Account>>,
    ) -> Result<Self, MapError> {
        if len == 0 {
            return Err(MapError::Empty);
        }
        let overflow = MapError::Overflow { offset, len };
        let end = offset.checked_add(len).ok_or(overflow)?;
        let files = account.map_or(GuestFiles::Any, |_| memory_rules().files);
        let Backing { bytes, page_bytes: page, is_sealed } = Backing::of(fd, files)?;
        if let Some(have) = bytes.filter(|have| end > *have) {
            return Err(MapError::FileTooSmall { have, need: end });
        }
        let start = offset & !(page - 1);
        let map_end = end.checked_add(page - 1).ok_or(overflow)? & !(page - 1);
        let map_len = usize::try_from(map_end - start).map_err(|_| overflow)?;
        let charge = account.map(|account| account.charge(map_end - start)).transpose()?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory of ours.
        let map = unsafe { mmap(ptr::null_mut(), map_len, protection, flags, fd, start) }
            .map_err(|errno| MapError::System { what: "mmap", errno })?;
        let skip = usize::try_from(offset - start).map_err(|_| overflow)?;
        let len = usize::try_from(len).map_err(|_| overflow)?;
        let mut mapping = Self::adopt(map.cast(), map_len, skip, len)?;
        (mapping.is_sealed, mapping.charge) = (is_sealed, charge);
        mapping.file_start = start;
        // Exposed, since the handler makes its pointers from the addresses of faults.
        let start = map.expose_provenance();
        let page = usize::try_from(page).map_err(|_| overflow)?;
        mapping.watch = Some(Watch::new(start, map_len, page).ok_or(MapError::TooMany)?);
        Ok(mapping)
    }

    /// Maps `len` bytes of fresh private memory; for tests that need no file.
    ///
    /// # Errors
    /// When the length is zero or the system refuses.
    pub fn anonymous(len: usize) -> Result<Self, MapError> {
        if len == 0 {
            return Err(MapError::Empty);
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory of ours.
        let map = unsafe { mmap_anonymous(ptr::null_mut(), len, protection, MapFlags::PRIVATE) }
            .map_err(|errno| MapError::System { what: "mmap", errno })?;
        Self::adopt(map.cast(), len, 0, len)
    }

    fn adopt(map: *mut u8, map_len: usize, skip: usize, len: usize) -> Result<Self, MapError> {
        let (Some(map), Some(map_len)) = (NonNull::new(map), NonZeroUsize::new(map_len)) else {
            return Err(MapError::Empty);
        };
        assert!(skip <= map_len.get() && len <= map_len.get() - skip);
        // A core dump of ours is no place for a guest's memory. Advice only: a kernel that does
        // not take it serves the guest all the same.
        // SAFETY: the range is the mapping that was just made.
        let _ = unsafe { madvise(map.as_ptr().cast(), map_len.get(), Advice::LinuxDontDump) };
        LIVE.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            map,
            map_len,
            skip,
            len,
            file_start: 0,
            watch: None,
            is_sealed: false,
            charge: None,
        })
    }

    /// The first byte of the range.
    pub fn start(&self) -> NonNull<u8> {
        // SAFETY: `skip` lies inside the mapping (asserted when it was made).
        unsafe { self.map.add(self.skip) }
    }

    /// The length of the range in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: an empty range is not mapped.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the file is sealed against being made smaller. Its pages may be lost all the same.
    pub fn is_sealed(&self) -> bool {
        self.is_sealed
    }

    /// Whether a page was not to be had, and an access found out.
    pub fn is_lost(&self) -> bool {
        self.watch.as_ref().is_some_and(Watch::is_lost)
    }

    /// The byte of its file from which on that is so.
    pub fn lost_from(&self) -> Option<u64> {
        Some(self.file_start + self.watch.as_ref()?.lost_from()? as u64)
    }

    /// How many mappings of this process are alive; for tests.
    pub fn live() -> usize {
        LIVE.load(Ordering::Relaxed)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // First, for another mapping may have these addresses as soon as they are free.
        self.watch = None;
        // SAFETY: the range was mapped by this value, and all that points into it holds an `Arc`
        // of it (areas, regions) or is bound by contract to (segments).
        let result = unsafe { munmap(self.map.as_ptr().cast(), self.map_len.get()) };
        debug_assert!(result.is_ok(), "munmap of our own mapping: {result:?}");
        self.charge = None;
        LIVE.fetch_sub(1, Ordering::Relaxed);
    }
}
