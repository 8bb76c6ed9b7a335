//! Copies between guest memory and memory of this process, by raw pointers.
//!
//! The functions are unsafe because they trust addresses: guest memory has no type that proves that
//! it is mapped, so each caller says why its segments are.
//!
//! A guest may change its memory at any time, so no Rust reference to it is ever made. A copy has
//! the bytes of its moment, and only the copy is looked at.

use std::ptr;

use virtio::{Segment, prefetch};

/// The total length of some segments.
pub fn total_bytes(segments: &[Segment]) -> u64 {
    segments.iter().map(|segment| u64::from(segment.len)).sum()
}

/// A cache line.
const LINE_BYTES: usize = 64;

/// Memory that is asked for, a line at a time, while something else is copied: a random block is in
/// no cache, and a processor that copies it has a few lines under way at a time and none of the
/// next block, until it gets there.
#[derive(Debug)]
pub struct Prefetch {
    next: *const u8,
    lines: usize,
    to_write: bool,
}

impl Prefetch {
    /// Nothing.
    pub const NONE: Self = Self { next: ptr::null(), lines: 0, to_write: false };

    /// So many bytes at this address, which need not be anybody's.
    pub fn of(at: *const u8, len: usize, to_write: bool) -> Self {
        Self { next: at, lines: len.div_ceil(LINE_BYTES), to_write }
    }

    /// Asks for the next line.
    #[inline(always)]
    fn ask(&mut self) {
        if self.to_write {
            prefetch::for_writing(self.next);
        } else {
            prefetch::for_reading(self.next);
        }
        self.next = self.next.wrapping_add(LINE_BYTES);
        self.lines -= 1;
    }

    /// Asks for up to so many lines.
    pub fn ask_for(&mut self, lines: usize) {
        (0..lines.min(self.lines)).for_each(|_| self.ask());
    }
}

/// Copies, and asks for a line ahead with each line that is copied.
///
/// # Safety
/// Both sides have `len` bytes and do not overlap.
#[inline]
unsafe fn copy(mut from: *const u8, mut to: *mut u8, mut len: usize, ahead: &mut Prefetch) {
    // SAFETY: the caller's promise; both sides move by what was copied, of which there are `len`
    // bytes in all.
    unsafe {
        while ahead.lines > 0 && len >= LINE_BYTES {
            ahead.ask();
            ptr::copy_nonoverlapping(from, to, LINE_BYTES);
            (from, to) = (from.add(LINE_BYTES), to.add(LINE_BYTES));
            len -= LINE_BYTES;
        }
        ptr::copy_nonoverlapping(from, to, len);
    }
}

/// Copies all segments to `to`, one after the other, and asks for what is ahead meanwhile.
///
/// # Safety
/// The segments are mapped, `to` has room for their total, and the two do not overlap.
pub unsafe fn gather(segments: &[Segment], mut to: *mut u8, mut ahead: Prefetch) {
    for segment in segments {
        let len = segment.len as usize;
        // SAFETY: the caller's promise; `to` stays inside because it moves by what was copied.
        unsafe {
            copy(segment.addr, to, len, &mut ahead);
            to = to.add(len);
        }
    }
}

/// Fills all segments from `from`, one after the other, and asks for what is ahead meanwhile.
///
/// # Safety
/// The segments are mapped, `from` has their total, and the two do not overlap.
pub unsafe fn scatter(mut from: *const u8, segments: &[Segment], mut ahead: Prefetch) {
    for segment in segments {
        let len = segment.len as usize;
        // SAFETY: as in `gather`.
        unsafe {
            copy(from, segment.addr, len, &mut ahead);
            from = from.add(len);
        }
    }
}

/// Fills all segments with zeroes.
///
/// # Safety
/// The segments are mapped.
pub(crate) unsafe fn zero(segments: &[Segment]) {
    for segment in segments {
        // SAFETY: the caller's promise.
        unsafe { ptr::write_bytes(segment.addr, 0, segment.len as usize) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gathered_bytes_are_scattered_again() {
        let mut guest = [1u8, 2, 3, 4, 5, 6];
        let base = guest.as_mut_ptr();
        // SAFETY: inside the array.
        let far = unsafe { base.add(4) };
        let segments = [Segment { addr: far, len: 2 }, Segment { addr: base, len: 3 }];
        assert_eq!(total_bytes(&segments), 5);
        let mut own = [0u8; 5];
        // SAFETY: the array holds the segments, and `own` their total.
        unsafe { gather(&segments, own.as_mut_ptr(), Prefetch::NONE) };
        assert_eq!(own, [5, 6, 1, 2, 3]);
        // SAFETY: as above.
        unsafe {
            zero(&segments);
            scatter([9u8, 8, 7, 6, 5].as_ptr(), &segments, Prefetch::NONE);
        }
        assert_eq!(guest, [7, 6, 5, 4, 9, 8]);
    }

    #[test]
    fn the_choice_of_a_copy_changes_no_data() {
        let from: Vec<u8> = (0..1000).map(|at| at as u8).collect();
        for (len, lines) in [(0, 0), (63, 1), (64, 0), (200, 1), (1000, 3), (1000, 100)] {
            let mut to = vec![0; 1000];
            // Nobody's memory: a hint does not fault.
            let mut ahead = Prefetch::of(ptr::without_provenance(1 << 20), lines * 64, lines == 3);
            // SAFETY: both have a thousand bytes.
            unsafe { copy(from.as_ptr(), to.as_mut_ptr(), len, &mut ahead) };
            assert_eq!((&to[..len], &to[len..]), (&from[..len], &vec![0; 1000 - len][..]));
            assert_eq!(ahead.lines, lines.saturating_sub(len / 64));
        }
    }
}
