//! The chains of a queue, made of checked pieces of guest memory.

use std::ptr;
use std::sync::atomic::{Ordering::SeqCst, compiler_fence};

use crate::SEGMENTS_MAX;

/// A checked piece of guest memory, as an address of this process. It is valid as long as the
/// queue it came from counts its chain as outstanding, or the [`crate::Retained`] of that queue
/// lives. The guest may change the bytes at any time: read them once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its first byte.
    pub addr: *mut u8,
    /// Its length in bytes.
    pub len: u32,
}

impl Segment {
    /// Copies its first bytes, if there are as many: a header that is in one piece.
    ///
    /// # Safety
    /// The segment must still be valid.
    #[inline]
    pub unsafe fn read<const BYTES: usize>(&self, into: &mut [u8; BYTES]) -> bool {
        if (self.len as usize) < BYTES {
            return false;
        }
        // SAFETY: the caller's promise, and there are as many; guest memory and `into` do not
        // overlap, for one is mapped from the guest's file.
        unsafe { ptr::copy_nonoverlapping(self.addr, into.as_mut_ptr(), BYTES) };
        // The guest may write there now. The fence keeps the compiler from reading the memory
        // again.
        compiler_fence(SeqCst);
        true
    }
}

// SAFETY: a segment is an address and a length; using it is unsafe and has its own conditions.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

/// One request of the driver: first the pieces that the device may read, then the pieces that it
/// may write. Made once and reused; it never grows beyond [`SEGMENTS_MAX`] pieces.
#[derive(Debug)]
pub struct Chain {
    /// Pieces to read, in order.
    pub readable: Vec<Segment>,
    /// Pieces to write, in order.
    pub writable: Vec<Segment>,
}

impl Chain {
    /// A chain with room for the longest there can be, so that it never allocates again.
    pub fn new() -> Self {
        Self {
            readable: Vec::with_capacity(SEGMENTS_MAX),
            writable: Vec::with_capacity(SEGMENTS_MAX),
        }
    }

    /// Empties it and keeps the room.
    pub fn clear(&mut self) {
        self.readable.clear();
        self.writable.clear();
    }

    /// The total length of what the device may read, in bytes.
    pub fn readable_bytes(&self) -> u32 {
        total_bytes(&self.readable)
    }

    /// The total length of what the device may write, in bytes.
    pub fn writable_bytes(&self) -> u32 {
        total_bytes(&self.writable)
    }
}

impl Default for Chain {
    fn default() -> Self {
        Self::new()
    }
}

/// A chain's total was checked to fit 32 bits when it was taken.
fn total_bytes(segments: &[Segment]) -> u32 {
    segments.iter().fold(0, |total, segment| total.saturating_add(segment.len))
}

/// Names an outstanding chain of one queue: the index of its first descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChainHead(u16);

impl ChainHead {
    /// From [`ChainHead::index`], for a device that had to keep it in a word of its own. An
    /// assertion refuses a head that is not outstanding when it is put.
    pub fn from_index(index: u16) -> Self {
        Self(index)
    }

    /// The index of the chain's first descriptor.
    pub fn index(self) -> u16 {
        self.0
    }
}

/// Copies bytes out of the segments, from `skip` bytes after their beginning, into `into`. Gives
/// how many there were: less than asked where the segments end.
///
/// # Safety
/// The segments must still be valid; see [`Segment`].
pub unsafe fn gather(segments: &[Segment], skip: usize, into: &mut [u8]) -> usize {
    let mut done = 0;
    each_piece(segments, skip, into.len(), |addr, len| {
        // SAFETY: the piece lies in a valid segment (the caller's promise) and `into` has room for
        // it; guest memory and `into` do not overlap, for one is mapped from the guest's file.
        unsafe { ptr::copy_nonoverlapping(addr, into[done..done + len].as_mut_ptr(), len) };
        done += len;
    });
    done
}

/// Copies `from` into the segments, from `skip` bytes after their beginning. Gives how many bytes
/// there was room for.
///
/// # Safety
/// The segments must still be valid; see [`Segment`].
pub unsafe fn scatter(segments: &[Segment], skip: usize, from: &[u8]) -> usize {
    let mut done = 0;
    each_piece(segments, skip, from.len(), |addr, len| {
        // SAFETY: as in `gather`, the other way.
        unsafe { ptr::copy_nonoverlapping(from[done..done + len].as_ptr(), addr, len) };
        done += len;
    });
    done
}

/// Calls `piece` for each stretch of the range of `len` bytes after the first `skip`.
pub(crate) fn each_piece(
    segments: &[Segment],
    mut skip: usize,
    mut len: usize,
    mut piece: impl FnMut(*mut u8, usize),
) {
    for segment in segments {
        let have = segment.len as usize;
        if skip >= have {
            skip -= have;
            continue;
        }
        if len == 0 {
            return;
        }
        let part = len.min(have - skip);
        piece(segment.addr.wrapping_add(skip), part);
        len -= part;
        skip = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(bytes: &mut [u8]) -> Segment {
        Segment { addr: bytes.as_mut_ptr(), len: bytes.len() as u32 }
    }

    #[test]
    fn copies_across_pieces_and_stops_at_the_end() {
        let (mut a, mut b, mut c) = ([1u8, 2, 3], [4u8], [5u8, 6]);
        let segments = [segment(&mut a), segment(&mut b), segment(&mut c)];
        let mut out = [0u8; 8];
        // SAFETY: the segments point at arrays that live to the end of the test.
        unsafe {
            assert_eq!(gather(&segments, 2, &mut out), 4);
            assert_eq!(out[..4], [3, 4, 5, 6]);
            assert_eq!(gather(&segments, 6, &mut out), 0);
            assert_eq!(gather(&segments, 0, &mut out[..1]), 1);
            assert_eq!(scatter(&segments, 1, &[9, 9, 9, 9]), 4);
            assert_eq!(scatter(&segments, 5, &[7, 7]), 1);
        }
        assert_eq!((a, b, c), ([1, 9, 9], [9], [9, 7]));
    }
}
