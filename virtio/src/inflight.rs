//! The inflight region: which chains a device has taken and not yet given back, in memory that
//! outlives the device's process, in the split-ring layout of the vhost-user specification
//! ("Inflight I/O tracking").
//!
//! ```text
//! per queue, each at a multiple of 64 bytes:
//!   0  features u64 (0)
//!   8  version u16 (1; 0 = not made yet)   10 desc_num u16
//!  12  last_batch_head u16                 14 used_idx u16
//!  16  per descriptor: inflight u8, 5 unused, next u16, counter u64
//! ```
//!
//! The order of stores is what makes it work. Taking: counter, then inflight = 1. Giving back:
//! used elements and the list of the batch, then the used ring's index, then inflight = 0 for all
//! of the batch, then used_idx. So whoever comes after a death sees from `used_idx` and the ring's
//! index whether a batch was published whose marks were not cleared yet, and clears them. Every
//! store in between is a stopping point of the test in `split`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use crate::mapping::{MapError, Mapping};
use crate::shared::{Area, Stores};
use crate::{QUEUE_SIZE_MAX, QUEUES_MAX};

/// Queues of the region begin at multiples of a cache line, since different cores own them.
const QUEUE_ALIGN_BYTES: usize = 64;
const HEADER_BYTES: usize = 16;
const ENTRY_BYTES: usize = 16;
const VERSION: u16 = 1;

const AT_VERSION: usize = 8;
const AT_DESC_NUM: usize = 10;
const AT_LAST_BATCH_HEAD: usize = 12;
const AT_USED_IDX: usize = 14;
const ENTRY_INFLIGHT: usize = 0;
const ENTRY_NEXT: usize = 6;
const ENTRY_COUNTER: usize = 8;

/// What is wrong with an inflight region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InflightError {
    /// The file cannot be made or mapped.
    #[error("inflight region: {0}")]
    Map(#[from] MapError),
    /// No queues, too many, or too large ones.
    #[error("inflight region for {queues} queues of {size}")]
    Shape {
        /// How many queues were asked for.
        queues: u16,
        /// How many descriptors each.
        size: u16,
    },
    /// The region is shorter than its queues need.
    #[error("inflight region of {have} bytes, its queues need {need}")]
    TooSmall {
        /// The length that the front end gave, in bytes.
        have: u64,
        /// What the queues need, in bytes.
        need: u64,
    },
    /// It begins at an odd place in its file.
    #[error("inflight region at the misaligned offset {0:#x}")]
    Misaligned(u64),
    /// The file can be truncated under our feet. We make it sealed, and so do others.
    #[error("inflight region in a file that is not sealed against shrinking")]
    NotSealed,
    /// A layout that we do not know.
    #[error("inflight region of version {0}")]
    Version(u16),
    /// The region was kept for a ring of another size.
    #[error("inflight region for a ring of {found}, the ring has {size}")]
    DescNum {
        /// What the region says.
        found: u16,
        /// The ring's size.
        size: u16,
    },
    /// The used index of the ring is not within one batch of the recorded one.
    #[error("inflight region ends at used index {recorded}, the ring at {ring}")]
    UsedIndex {
        /// What the region says.
        recorded: u16,
        /// What the ring says.
        ring: u16,
    },
    /// The list of the last batch leaves the table.
    #[error("inflight region lists descriptor {0}")]
    BatchList(u16),
}

/// The bytes that one queue takes in a region.
fn stride_bytes(size: u16) -> usize {
    (HEADER_BYTES + ENTRY_BYTES * usize::from(size)).next_multiple_of(QUEUE_ALIGN_BYTES)
}

fn check_shape(queues: u16, size: u16) -> Result<u64, InflightError> {
    let fits = (1..=QUEUES_MAX).contains(&usize::from(queues));
    if !fits || !(1..=QUEUE_SIZE_MAX).contains(&size) {
        return Err(InflightError::Shape { queues, size });
    }
    Ok(stride_bytes(size) as u64 * u64::from(queues))
}

/// A mapped inflight region of one device.
#[derive(Clone, Debug)]
pub struct InflightRegion {
    mapping: Arc<Mapping>,
    queues: u16,
    size: u16,
    /// Some queue had completed requests when the region was mapped.
    resumes: bool,
}

impl InflightRegion {
    /// Makes a fresh region for `queues` queues of at most `size` descriptors: a memory file,
    /// sealed against any change of its size, and its length in bytes.
    ///
    /// # Errors
    /// When the shape is beyond the limits or the system refuses.
    pub fn create(queues: u16, size: u16) -> Result<(OwnedFd, u64), InflightError> {
        let len = check_shape(queues, size)?;
        let failed = |what| move |errno| MapError::System { what, errno };
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = memfd_create("vrio-inflight", flags).map_err(failed("memfd_create"))?;
        ftruncate(&fd, len).map_err(failed("ftruncate"))?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&fd, seals).map_err(failed("fcntl"))?;
        Ok((fd, len))
    }

    /// Maps a region that the front end kept: `len` bytes of the file from `offset` on, for
    /// `queues` queues of at most `size` descriptors.
    ///
    /// # Errors
    /// When shape, length, alignment or file are not what a region needs.
    pub fn map(
        fd: BorrowedFd<'_>,
        offset: u64,
        len: u64,
        queues: u16,
        size: u16,
    ) -> Result<Self, InflightError> {
        let need = check_shape(queues, size)?;
        if len < need {
            return Err(InflightError::TooSmall { have: len, need });
        }
        if !offset.is_multiple_of(QUEUE_ALIGN_BYTES as u64) {
            return Err(InflightError::Misaligned(offset));
        }
        // Only what the queues need: the front end may claim any length.
        let mapping = Mapping::of_file(fd.as_fd(), offset, need)?;
        if mapping.can_shrink() {
            return Err(InflightError::NotSealed);
        }
        let mut region = Self { mapping: Arc::new(mapping), queues, size, resumes: false };
        // Now, before any queue of this process touches it.
        region.resumes = (0..usize::from(queues)).any(|index| {
            let queue = region.queue(index);
            queue.is_some_and(|queue| queue.area.load_u16(AT_USED_IDX) != 0)
        });
        Ok(region)
    }

    /// A region in memory that is already mapped.
    #[cfg(test)]
    pub(crate) fn from_mapping(mapping: Arc<Mapping>, queues: u16, size: u16) -> Self {
        Self { mapping, queues, size, resumes: false }
    }

    /// The part of one queue, if the region has it.
    pub fn queue(&self, index: usize) -> Option<InflightQueue> {
        if index >= usize::from(self.queues) {
            return None;
        }
        let stride = stride_bytes(self.size);
        let area = Area::new(&self.mapping, index * stride, stride)?;
        Some(InflightQueue { area, size: self.size, resumes: self.resumes })
    }
}

/// What a queue finds in its part of the region when it starts.
#[derive(Debug)]
pub(crate) struct Recovered {
    /// Chains that were taken and not given back, last one first.
    pub(crate) redo: Vec<u16>,
    /// The number for the next chain.
    pub(crate) counter: u64,
    /// Whether the region had been in use before.
    pub(crate) used_before: bool,
}

/// One queue's part of an inflight region.
#[derive(Debug)]
pub struct InflightQueue {
    area: Area,
    /// How many descriptors there is room for.
    size: u16,
    resumes: bool,
}

impl InflightQueue {
    /// Whether any queue of the region had completed requests when the region was mapped.
    pub(crate) fn resumes(&self) -> bool {
        self.resumes
    }

    /// Its bytes, to be scribbled on.
    #[cfg(test)]
    pub(crate) fn area(&self) -> &Area {
        &self.area
    }

    fn entry(head: u16, field: usize) -> usize {
        HEADER_BYTES + ENTRY_BYTES * usize::from(head) + field
    }

    /// Brings the region into step with the ring, of `size` descriptors and with `ring_used` in
    /// its used index, and finds out what has to be done again. May be stopped at any store and
    /// be done again.
    pub(crate) fn recover(
        &self,
        stores: &mut Stores,
        size: u16,
        ring_used: u16,
    ) -> Result<Recovered, InflightError> {
        if size > self.size {
            return Err(InflightError::DescNum { found: self.size, size });
        }
        match self.area.load_u16(AT_VERSION) {
            0 => {
                self.initialise(stores, size, ring_used);
                return Ok(Recovered { redo: Vec::new(), counter: 0, used_before: false });
            }
            VERSION => {}
            other => return Err(InflightError::Version(other)),
        }
        let found = self.area.load_u16(AT_DESC_NUM);
        if found != size {
            return Err(InflightError::DescNum { found, size });
        }
        self.finish_batch(stores, size, ring_used)?;
        let mut entries: Vec<(u64, u16)> = (0..size)
            .filter(|&head| self.area.load_u8(Self::entry(head, ENTRY_INFLIGHT)) != 0)
            .map(|head| (self.area.load_u64(Self::entry(head, ENTRY_COUNTER)), head))
            .collect();
        entries.sort_unstable_by(|a, b| b.cmp(a));
        let counter = entries.first().map_or(0, |&(counter, _)| counter.wrapping_add(1));
        let redo = entries.into_iter().map(|(_, head)| head).collect();
        Ok(Recovered { redo, counter, used_before: true })
    }

    /// The version comes last: a region that was stopped before that is made anew.
    fn initialise(&self, stores: &mut Stores, size: u16, ring_used: u16) {
        for head in 0..size {
            let mark = Self::entry(head, ENTRY_INFLIGHT);
            if self.area.load_u8(mark) != 0 {
                stores.u8(&self.area, mark, 0);
            }
        }
        stores.u16(&self.area, AT_DESC_NUM, size);
        stores.u16(&self.area, AT_USED_IDX, ring_used);
        stores.u16(&self.area, AT_VERSION, VERSION);
    }

    /// If the last batch was published and its marks were perhaps not cleared: clears them.
    fn finish_batch(
        &self,
        stores: &mut Stores,
        size: u16,
        ring_used: u16,
    ) -> Result<(), InflightError> {
        let recorded = self.area.load_u16(AT_USED_IDX);
        let batch = ring_used.wrapping_sub(recorded);
        if batch == 0 {
            return Ok(());
        }
        if batch > size {
            return Err(InflightError::UsedIndex { recorded, ring: ring_used });
        }
        let mut head = self.area.load_u16(AT_LAST_BATCH_HEAD);
        for _ in 0..batch {
            if head >= size {
                return Err(InflightError::BatchList(head));
            }
            stores.u8(&self.area, Self::entry(head, ENTRY_INFLIGHT), 0);
            head = self.area.load_u16(Self::entry(head, ENTRY_NEXT));
        }
        stores.u16(&self.area, AT_USED_IDX, ring_used);
        Ok(())
    }

    /// A chain was taken.
    pub(crate) fn take(&self, stores: &mut Stores, head: u16, counter: u64) {
        stores.u64(&self.area, Self::entry(head, ENTRY_COUNTER), counter);
        stores.u8(&self.area, Self::entry(head, ENTRY_INFLIGHT), 1);
    }

    /// A chain joins the batch that is published next; `previous` joined before it.
    pub(crate) fn stage(&self, stores: &mut Stores, head: u16, previous: u16) {
        stores.u16(&self.area, Self::entry(head, ENTRY_NEXT), previous);
        stores.u16(&self.area, AT_LAST_BATCH_HEAD, head);
    }

    /// The batch was published: the ring's used index is `ring_used`.
    pub(crate) fn published(&self, stores: &mut Stores, batch: &[u16], ring_used: u16) {
        for &head in batch {
            stores.u8(&self.area, Self::entry(head, ENTRY_INFLIGHT), 0);
        }
        stores.u16(&self.area, AT_USED_IDX, ring_used);
    }
}
