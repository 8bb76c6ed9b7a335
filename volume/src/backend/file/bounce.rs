//! Aligned memory for requests whose own buffers are not, under direct I/O.

use std::io;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::volume::IO_BYTES_MAX;

/// Buffers of one channel. Misaligned guests are rare (firmware, odd drivers) and slow anyhow;
/// eight of the longest requests at once keep a disk busy, and bound the memory to 8 MiB.
pub(super) const BUFFERS_MAX: usize = 8;

/// A page-aligned piece of memory, long enough for any request.
#[derive(Debug)]
pub(super) struct Buffer {
    base: NonNull<u8>,
}

// SAFETY: plain memory that lives as long as this value; all that is given out is its address.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Maps one.
    ///
    /// # Errors
    /// When the system has no memory.
    pub(super) fn new() -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let base = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                IO_BYTES_MAX as usize,
                protection,
                MapFlags::PRIVATE,
            )?
        };
        Ok(Self { base: NonNull::new(base.cast()).expect("a mapping is never at zero") })
    }

    /// The first of its [`IO_BYTES_MAX`] bytes.
    pub(super) fn start(&self) -> *mut u8 {
        self.base.as_ptr()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: our own mapping; its user waited for the kernel before letting go.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), IO_BYTES_MAX as usize) };
        debug_assert!(unmapped.is_ok());
    }
}

/// A channel's buffers, mapped as they are needed and then kept.
#[derive(Debug, Default)]
pub(super) struct BouncePool {
    free: Vec<Buffer>,
    mapped: usize,
}

impl BouncePool {
    /// A buffer, unless all are in use (or the system has no memory: the request waits too).
    pub(super) fn take(&mut self) -> Option<Buffer> {
        if let Some(buffer) = self.free.pop() {
            return Some(buffer);
        }
        if self.mapped == BUFFERS_MAX {
            return None;
        }
        let buffer = Buffer::new().ok()?;
        self.mapped += 1;
        self.free.reserve(BUFFERS_MAX);
        Some(buffer)
    }

    /// Takes one back.
    pub(super) fn give(&mut self, buffer: Buffer) {
        self.free.push(buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pool_is_bounded_and_keeps_what_it_mapped() {
        let mut pool = BouncePool::default();
        let buffers: Vec<_> = (0..BUFFERS_MAX).map(|_| pool.take().expect("room")).collect();
        assert!(pool.take().is_none());
        let places: Vec<_> = buffers.iter().map(Buffer::start).collect();
        assert!(places.iter().all(|place| place.addr() % 4096 == 0));
        buffers.into_iter().for_each(|buffer| pool.give(buffer));
        assert!(places.contains(&pool.take().expect("given back").start()));
    }
}
