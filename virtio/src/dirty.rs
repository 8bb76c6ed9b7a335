//! The log of dirty pages: a bit for each page of guest memory, in memory of the front end's, set
//! for what the device has written. A front end that migrates its guest takes the bits away, now
//! and then, and copies those pages once more.
//!
//! A bit is set after its page was written: a front end that takes the bit sees the bytes that were
//! stored before it. The bit is also set before the guest or the front end learns that the page was
//! written. So the pages of everything that the guest knows of are marked when its queues have
//! stopped.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use sidecore::foreign::Allowance;

use crate::budget::Account;
use crate::hand_over::Log;
use crate::mapping::{MapError, Mapping};
use crate::notify::Signal;
use crate::shared::Area;

/// The unit of the log in bytes, for all page sizes of the machine: VHOST_LOG_PAGE.
pub const LOG_PAGE_BYTES: u64 = 4096;

/// The longest log: 32 TiB of guest addresses, twice the memory that a device can have, for
/// there are holes between its regions.
pub const LOG_BYTES_MAX: u64 = 1 << 30;

const PAGES_PER_BYTE: u64 = u8::BITS as u64;

/// Why a log was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// Longer than any guest's memory needs.
    #[error("a dirty log of {len:#x} bytes, more than {max:#x}", max = LOG_BYTES_MAX)]
    TooLong {
        /// Its length in bytes.
        len: u64,
    },
    /// Its file cannot be mapped.
    #[error("the dirty log: {0}")]
    Map(MapError),
}

impl From<MapError> for LogError {
    fn from(error: MapError) -> Self {
        Self::Map(error)
    }
}

/// A front end's log. Its clones are the same log, for one queue each.
#[derive(Clone, Debug)]
pub struct DirtyLog {
    bits: Area,
    mapping: Arc<Mapping>,
    /// And where it begins there, for another process.
    file: Arc<OwnedFd>,
    offset: u64,
    /// To be told that there are new bits.
    changed: Option<Arc<Signal>>,
}

impl DirtyLog {
    /// The log that is in `len` bytes of this process's own file from `offset` on. Its first bit is
    /// that of the page at the guest's address zero.
    ///
    /// # Errors
    /// When it is too long or the file cannot be mapped.
    pub fn map(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<Self, LogError> {
        Self::of(fd, offset, len, None)
    }

    /// The same in a front end's file, on its account, or in a file of this process's own.
    pub(crate) fn of(
        fd: BorrowedFd<'_>,
        offset: u64,
        len: u64,
        account: Option<&Arc<Account>>,
    ) -> Result<Self, LogError> {
        if len > LOG_BYTES_MAX {
            return Err(LogError::TooLong { len });
        }
        let mapping = Arc::new(Mapping::of(fd, offset, len, account)?);
        let bits = Area::new(&mapping, 0, mapping.len()).expect("the whole of it");
        let file = fd.try_clone_to_owned().map_err(|error| MapError::System {
            what: "dup",
            errno: Errno::from_io_error(&error).unwrap_or(Errno::MFILE),
        })?;
        Ok(Self { bits, mapping, file: Arc::new(file), offset, changed: None })
    }

    /// Its file, for another process.
    pub(crate) fn take_down(&self) -> io::Result<Log<OwnedFd>> {
        let (file, len_bytes) = (self.file.try_clone()?, self.mapping.len() as u64);
        Ok(Log { file, offset_bytes: self.offset, len_bytes })
    }

    /// From now on, `changed` is written to when pages were marked.
    pub(crate) fn set_signal(&mut self, changed: Option<OwnedFd>, allowance: &Arc<Allowance>) {
        self.changed = changed.map(|changed| Arc::new(Signal::new(changed, allowance)));
    }

    /// Marks the pages of `len` bytes, not none, from a guest address on. `false`, and none is
    /// marked, where the log does not have all of them.
    pub(crate) fn mark(&self, addr: u64, len: u64) -> bool {
        let Some(end) = addr.checked_add(len - 1) else { return false };
        let (first, last) = (addr / LOG_PAGE_BYTES, end / LOG_PAGE_BYTES);
        let (from, to) = (first / PAGES_PER_BYTE, last / PAGES_PER_BYTE);
        if to >= self.mapping.len() as u64 {
            return false;
        }
        for at in from..=to {
            let mut bits = u8::MAX;
            if at == from {
                bits &= u8::MAX << (first % PAGES_PER_BYTE);
            }
            if at == to {
                bits &= u8::MAX >> (PAGES_PER_BYTE - 1 - last % PAGES_PER_BYTE);
            }
            // It fits, for the log does.
            self.bits.set_bits(at as usize, bits);
        }
        true
    }

    /// Signals the front end's eventfd, if it has one, that pages were marked.
    pub(crate) fn tell(&self) {
        if let Some(changed) = &self.changed {
            changed.signal();
        }
    }

    /// The byte of its file from which on pages were not to be had.
    pub(crate) fn lost_from(&self) -> Option<u64> {
        self.mapping.lost_from()
    }
}

/// The log of a queue, and the pages that it marks there.
#[derive(Clone, Debug, Default)]
pub struct Logging {
    /// Without one, nothing is marked.
    pub log: Option<DirtyLog>,
    /// Mark what is written into the buffers of chains (VHOST_F_LOG_ALL).
    pub buffers: bool,
    /// Mark what is written into the ring (VHOST_VRING_F_LOG), the device's part of it as if it
    /// began at this guest address. A packed ring's descriptors, which have no such address, are
    /// marked where they are.
    pub ring: Option<u64>,
}
