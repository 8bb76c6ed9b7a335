//! The inflight region: which chains a device has taken and not yet given back, in memory that
//! outlives the device's process, in the layouts of the vhost-user specification ("Inflight I/O
//! tracking"): one for split rings, one for packed ones. Each queue has a part of the region, at a
//! multiple of 64 bytes.
//!
//! The order of stores is what makes it work, and is argued where each layout is: `SplitLog`,
//! `PackedLog`. Every store is a stopping point of the test in `tests/recovery.rs`.

mod packed;
mod split;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use crate::budget::Account;
use crate::error::InflightError;
use crate::hand_over::Inflight;
use crate::mapping::{MapError, Mapping};
use crate::ring::RingKind;
use crate::shared::Area;
use crate::{QUEUE_SIZE_MAX, QUEUES_MAX};

pub(crate) use packed::PackedLog;
pub(crate) use split::SplitLog;

/// Queues of the region begin at multiples of a cache line, since different cores own them.
const QUEUE_ALIGN_BYTES: usize = 64;
const VERSION: u16 = 1;

/// Both layouts begin with features u64 (0), version u16 (1; 0 = not made yet), desc_num u16.
const AT_VERSION: usize = 8;
const AT_DESC_NUM: usize = 10;

impl From<MapError> for InflightError {
    fn from(error: MapError) -> Self {
        Self::Map(error)
    }
}

/// The length of a single queue's part of a region, in bytes.
fn stride_bytes(kind: RingKind, size: u16) -> usize {
    let bytes = match kind {
        RingKind::Split => split::bytes(size),
        RingKind::Packed => packed::bytes(size),
    };
    bytes.next_multiple_of(QUEUE_ALIGN_BYTES)
}

fn check_shape(kind: RingKind, queues: u16, size: u16) -> Result<u64, InflightError> {
    let fits = (1..=QUEUES_MAX).contains(&usize::from(queues));
    if !fits || !(1..=QUEUE_SIZE_MAX).contains(&size) {
        return Err(InflightError::Shape { queues, size });
    }
    Ok(stride_bytes(kind, size) as u64 * u64::from(queues))
}

/// A mapped inflight region of one device.
#[derive(Clone, Debug)]
pub struct InflightRegion {
    mapping: Arc<Mapping>,
    kind: RingKind,
    queues: u16,
    size: u16,
    /// Some queue had completed requests when the region was mapped.
    resumes: bool,
    /// Its file, where it begins there and how long it was said to be: for a process that goes on
    /// in this one's place.
    file: Option<(Arc<OwnedFd>, u64, u64)>,
}

impl InflightRegion {
    /// Makes a fresh region for `queues` rings of at most `size` descriptors: a memory file,
    /// sealed against any change of its size, and its length in bytes.
    ///
    /// # Errors
    /// When the shape is beyond the limits or the system refuses.
    pub fn create(
        (kind, queues, size): (RingKind, u16, u16),
    ) -> Result<(OwnedFd, u64), InflightError> {
        let len = check_shape(kind, queues, size)?;
        let failed = |what| move |errno| MapError::System { what, errno };
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create("vrio-inflight", flags).map_err(failed("memfd_create"))?;
        ftruncate(&fd, len).map_err(failed("ftruncate"))?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&fd, seals).map_err(failed("fcntl"))?;
        Ok((fd, len))
    }

    /// Maps a region that this process kept: `len` bytes of the file from `offset` on, for so many
    /// rings of a kind, each of at most `size` descriptors.
    ///
    /// # Errors
    /// When shape, length, alignment or file are not what a region needs.
    pub fn map(
        fd: BorrowedFd<'_>,
        offset: u64,
        len: u64,
        shape: (RingKind, u16, u16),
    ) -> Result<Self, InflightError> {
        Self::of(fd, offset, len, shape, None)
    }

    /// The same that a front end kept, on its account, or this process.
    pub(crate) fn of(
        fd: BorrowedFd<'_>,
        offset: u64,
        len: u64,
        (kind, queues, size): (RingKind, u16, u16),
        account: Option<&Arc<Account>>,
    ) -> Result<Self, InflightError> {
        let need = check_shape(kind, queues, size)?;
        if len < need {
            return Err(InflightError::TooSmall { have: len, need });
        }
        if !offset.is_multiple_of(QUEUE_ALIGN_BYTES as u64) {
            return Err(InflightError::Misaligned(offset));
        }
        // Only what the queues need: the front end may claim any length.
        let mapping = Mapping::of(fd.as_fd(), offset, need, account)?;
        if !mapping.is_sealed() {
            return Err(InflightError::NotSealed);
        }
        let mapping = Arc::new(mapping);
        let file = rustix::io::fcntl_dupfd_cloexec(fd, 0)
            .map_err(|errno| MapError::System { what: "fcntl", errno })?;
        let file = Some((Arc::new(file), offset, len));
        let mut region = Self { mapping, kind, queues, size, resumes: false, file };
        // Now, before any queue of this process touches it.
        region.resumes = (0..usize::from(queues)).any(|index| {
            let queue = region.queue(index);
            queue.is_some_and(|queue| match kind {
                RingKind::Split => split::has_completed(&queue),
                RingKind::Packed => packed::has_completed(&queue),
            })
        });
        // By that look its first pages are found, or not.
        if region.mapping.is_lost() {
            return Err(InflightError::Lost);
        }
        Ok(region)
    }

    /// A region in memory that is already mapped.
    #[cfg(test)]
    pub(crate) fn from_mapping(
        mapping: Arc<Mapping>,
        (kind, queues, size): (RingKind, u16, u16),
    ) -> Self {
        Self { mapping, kind, queues, size, resumes: false, file: None }
    }

    /// The file and the numbers with which another process maps the region.
    pub(crate) fn take_down(&self) -> io::Result<Inflight<OwnedFd>> {
        let (file, offset, len) = self.file.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let (file, queues, size) = (file.try_clone()?, self.queues, self.size);
        Ok(Inflight { file, offset_bytes: *offset, len_bytes: *len, queues, size })
    }

    /// Whether the region has a part for this queue.
    pub(crate) fn covers(&self, index: usize) -> bool {
        index < usize::from(self.queues)
    }

    /// The part of one queue, if the region has it.
    pub fn queue(&self, index: usize) -> Option<InflightQueue> {
        if !self.covers(index) {
            return None;
        }
        let stride = stride_bytes(self.kind, self.size);
        let area = Area::new(&self.mapping, index * stride, stride)?;
        Some(InflightQueue { area, kind: self.kind, size: self.size, resumes: self.resumes })
    }
}

/// One queue's part of an inflight region.
#[derive(Debug)]
pub struct InflightQueue {
    area: Area,
    kind: RingKind,
    /// How many descriptors there is room for.
    size: u16,
    resumes: bool,
}

impl InflightQueue {
    /// Whether any queue of the region had completed requests when the region was mapped.
    pub(crate) fn resumes(&self) -> bool {
        self.resumes
    }

    /// Its bytes.
    pub(crate) fn area(&self) -> &Area {
        &self.area
    }

    /// Whether the part was in use before; an error when it is not for a ring like this.
    fn check(&self, kind: RingKind, size: u16) -> Result<bool, InflightError> {
        if self.kind != kind {
            return Err(InflightError::Kind { found: self.kind, kind });
        }
        if size > self.size {
            return Err(InflightError::DescNum { found: self.size, size });
        }
        match self.area.load_u16(AT_VERSION) {
            0 => return Ok(false),
            VERSION => {}
            other => return Err(InflightError::Version(other)),
        }
        let found = self.area.load_u16(AT_DESC_NUM);
        if found != size {
            return Err(InflightError::DescNum { found, size });
        }
        Ok(true)
    }
}
