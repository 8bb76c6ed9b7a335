//! The memory that two processes of one machine share: a ring in each direction.
//!
//! ```text
//!        0  magic u64, version u32, ring bytes u32
//!     4096  ring from the dialling side to the answering one
//!           its control page (see `ring`), then its bytes
//!      ...  ring the other way, likewise
//! ```
//!
//! The dialling side makes the file and seals it, so that no process can take pages away from under
//! a mapping. The answering side checks all of that before it relies on it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Bytes of one ring: twice what a session has in flight on a machine's own memory (1 MiB is 30 us
/// there), and small enough for its hot part to stay in a cache. Pages are taken when first used.
pub(super) const RING_BYTES: usize = 2 << 20;

/// A page for what both sides write, in front of each ring.
pub(super) const CONTROL_BYTES: usize = 4096;

const HEADER_BYTES: usize = 4096;
const REGION_BYTES: usize = HEADER_BYTES + 2 * (CONTROL_BYTES + RING_BYTES);

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Why memory cannot be shared with a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RegionError {
    /// The system refused.
    #[error("cannot {0} shared memory: {1}")]
    System(&'static str, Errno),
    /// The peer's file can be truncated, or has another length.
    #[error("the peer's memory has {bytes} bytes and seals {seals:#x}")]
    Unsound { bytes: u64, seals: u32 },
}

/// A mapping of the whole region.
#[derive(Debug)]
pub(super) struct ShmRegion {
    start: NonNull<u8>,
}

// SAFETY: the mapping belongs to the value and is unmapped with it, on whichever thread.
unsafe impl Send for ShmRegion {}
// SAFETY: a shared region only tells where its rings are; the code that uses the memory argues for
// itself.
unsafe impl Sync for ShmRegion {}

impl ShmRegion {
    /// Makes a region, and the descriptor to hand to the peer.
    pub(super) fn create() -> Result<(Self, OwnedFd), RegionError> {
        let refuse = |what| move |errno| RegionError::System(what, errno);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("vrio-shm", flags).map_err(refuse("make"))?;
        ftruncate(&fd, REGION_BYTES as u64).map_err(refuse("size"))?;
        fcntl_add_seals(&fd, SEALS).map_err(refuse("seal"))?;
        Ok((Self::map(fd.as_fd())?, fd))
    }

    /// Maps what a peer made, when it cannot be taken away.
    pub(super) fn of_peer(fd: BorrowedFd<'_>) -> Result<Self, RegionError> {
        let refuse = |what| move |errno| RegionError::System(what, errno);
        let seals = fcntl_get_seals(fd).map_err(refuse("look at"))?;
        let bytes = fstat(fd).map_err(refuse("measure"))?.st_size.cast_unsigned();
        if bytes != REGION_BYTES as u64 || !seals.contains(SealFlags::SHRINK) {
            return Err(RegionError::Unsound { bytes, seals: seals.bits() });
        }
        Self::map(fd)
    }

    fn map(fd: BorrowedFd<'_>) -> Result<Self, RegionError> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at a place of the kernel's choice touches nothing of ours.
        let start = unsafe { mmap(std::ptr::null_mut(), REGION_BYTES, protection, flags, fd, 0) };
        let start = start.map_err(|errno| RegionError::System("map", errno))?;
        Ok(Self { start: NonNull::new(start.cast()).expect("a mapping is not at 0") })
    }

    /// Where ring number `index` (0: from the dialling side) begins: its control page, followed by
    /// its bytes. Valid as long as the region lives.
    pub(super) fn ring(&self, index: usize) -> NonNull<u8> {
        assert!(index < 2, "two rings");
        let at = HEADER_BYTES + index * (CONTROL_BYTES + RING_BYTES);
        // SAFETY: both rings lie inside the mapping, whose length is REGION_BYTES.
        unsafe { self.start.add(at) }
    }
}

impl Drop for ShmRegion {
    fn drop(&mut self) {
        // SAFETY: this is our mapping, made in `map`; rings keep the region they point into.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), REGION_BYTES) };
        debug_assert!(unmapped.is_ok(), "our own mapping");
    }
}
