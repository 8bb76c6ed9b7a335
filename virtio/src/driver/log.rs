//! The log in which a device marks the pages that it has written.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use super::memory::GuestMemory;
use crate::dirty::{DirtyLog, LOG_PAGE_BYTES, LogError};
use crate::mapping::Mapping;

/// Pages in a word of the log.
const WORD_PAGES: u64 = u64::BITS as u64;

/// A log for all of a guest's memory, in a file of its own. Its last word is kept empty.
#[derive(Debug)]
pub struct DirtyPages {
    file: OwnedFd,
    mapping: Mapping,
}

impl DirtyPages {
    /// A log in which no page is marked, for these memories.
    ///
    /// # Errors
    /// When the system has no memory or no descriptor left.
    pub fn new<'a>(memories: impl IntoIterator<Item = &'a GuestMemory>) -> io::Result<Self> {
        let regions = memories.into_iter().flat_map(GuestMemory::regions);
        let end = regions.map(|region| region.guest_address + region.len).max().unwrap_or(0);
        let words = end.div_ceil(LOG_PAGE_BYTES * WORD_PAGES);
        let file_bytes = (words + 1) * u64::from(u64::BITS / 8);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("vrio-guest-log", flags)?;
        ftruncate(&file, file_bytes)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let mapping = Mapping::of_file(file.as_fd(), 0, file_bytes).map_err(io::Error::other)?;
        Ok(Self { file, mapping })
    }

    /// Its file, to be handed over.
    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// How much of the file is handed over.
    pub(super) fn len_bytes(&self) -> u64 {
        self.mapping.len() as u64 - u64::from(u64::BITS / 8)
    }

    /// The same log for a device in this process.
    ///
    /// # Errors
    /// When the system refuses the mapping.
    pub fn device_log(&self) -> Result<DirtyLog, LogError> {
        DirtyLog::map(self.file(), 0, self.len_bytes())
    }

    /// Takes all marks away and gives the pages that had one, by their numbers: guest addresses
    /// divided by [`LOG_PAGE_BYTES`].
    pub fn take(&self) -> BTreeSet<u64> {
        let words = self.mapping.len() / size_of::<u64>();
        let mut pages = BTreeSet::new();
        for at in 0..words {
            // SAFETY: the word lies in the mapping, which begins at a page; it is accessed by
            // atomics only.
            let word = unsafe {
                let word = self.mapping.start().as_ptr().cast::<u64>().add(at);
                AtomicU64::from_ptr(word)
            };
            let mut bits = word.swap(0, Ordering::SeqCst);
            assert!(bits == 0 || at + 1 < words, "a mark beyond the log");
            while bits != 0 {
                pages.insert(at as u64 * WORD_PAGES + u64::from(bits.trailing_zeros()));
                bits &= bits - 1;
            }
        }
        pages
    }
}
