//! The pieces of memory that a call names.

use crate::abi::IoVec;
use fabric::{MemoryPiece, PARTS_MAX};
use std::ffi::c_void;
use std::ptr;

/// The pieces of memory of a call that has a list of them.
pub(super) struct CallPieces {
    parts: [MemoryPiece; PARTS_MAX],
    count: usize,
}

/// The memory of a call that has one piece of it, as most have.
pub(super) fn one_piece(start: *mut c_void, bytes: usize) -> [MemoryPiece; 1] {
    [MemoryPiece { start: start.cast(), bytes }]
}

impl CallPieces {
    /// Copies the list, unless it is too long.
    ///
    /// # Safety
    /// There are `count` pieces in the list.
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

    /// The pieces. None: there are too many.
    pub(super) fn parts(&self) -> Option<&[MemoryPiece]> {
        self.parts.get(..self.count)
    }
}
