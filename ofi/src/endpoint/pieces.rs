//! The memory of a call: the pieces that the program names.

use crate::abi::IoVec;
use fabric::{MemoryPiece, PARTS_MAX};
use std::ffi::c_void;
use std::ptr;

/// The pieces of memory of a call.
pub(super) struct CallPieces {
    parts: [MemoryPiece; PARTS_MAX],
    count: usize,
}

/// A call's memory if it is one piece, as most is.
pub(super) fn one(start: *mut c_void, bytes: usize) -> [MemoryPiece; 1] {
    [MemoryPiece { start: start.cast(), bytes }]
}

impl CallPieces {
    /// Of more than there may be none is looked at.
    ///
    /// # Safety
    /// There are so many.
    pub(super) unsafe fn new(list: *const IoVec, count: usize) -> Self {
        let mut parts = [MemoryPiece { start: ptr::null_mut(), bytes: 0 }; PARTS_MAX];
        if count <= PARTS_MAX {
            for (index, part) in parts.iter_mut().take(count).enumerate() {
                // SAFETY: the caller's.
                let piece = unsafe { &*list.add(index) };
                *part = MemoryPiece { start: piece.iov_base.cast(), bytes: piece.iov_len };
            }
        }
        Self { parts, count }
    }

    /// None if they are too many.
    pub(super) fn parts(&self) -> Option<&[MemoryPiece]> {
        self.parts.get(..self.count)
    }
}
