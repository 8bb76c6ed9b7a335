//! Copies between guest memory and our own, by raw pointers.
//!
//! A guest may change its memory at any time, so no Rust reference to it is ever made: what is
//! copied is whatever was there, and only the copy is looked at.

use virtio::Segment;

/// The total length of some segments.
pub(crate) fn total_bytes(segments: &[Segment]) -> u64 {
    segments.iter().map(|segment| u64::from(segment.len)).sum()
}

/// Copies all segments to `to`, one after the other.
///
/// # Safety
/// The segments are mapped, `to` has room for their total, and the two do not overlap.
pub(crate) unsafe fn gather(segments: &[Segment], mut to: *mut u8) {
    for segment in segments {
        let len = segment.len as usize;
        // SAFETY: the caller's promise; `to` stays inside because it moves by what was copied.
        unsafe {
            std::ptr::copy_nonoverlapping(segment.addr, to, len);
            to = to.add(len);
        }
    }
}

/// Fills all segments from `from`, one after the other.
///
/// # Safety
/// The segments are mapped, `from` has their total, and the two do not overlap.
pub(crate) unsafe fn scatter(mut from: *const u8, segments: &[Segment]) {
    for segment in segments {
        let len = segment.len as usize;
        // SAFETY: as in `gather`.
        unsafe {
            std::ptr::copy_nonoverlapping(from, segment.addr, len);
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
        unsafe { std::ptr::write_bytes(segment.addr, 0, segment.len as usize) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gathered_is_scattered_again() {
        let mut guest = [1u8, 2, 3, 4, 5, 6];
        let base = guest.as_mut_ptr();
        // SAFETY: inside the array.
        let far = unsafe { base.add(4) };
        let segments = [Segment { addr: far, len: 2 }, Segment { addr: base, len: 3 }];
        assert_eq!(total_bytes(&segments), 5);
        let mut own = [0u8; 5];
        // SAFETY: the array holds the segments, and `own` their total.
        unsafe { gather(&segments, own.as_mut_ptr()) };
        assert_eq!(own, [5, 6, 1, 2, 3]);
        // SAFETY: as above.
        unsafe {
            zero(&segments);
            scatter([9u8, 8, 7, 6, 5].as_ptr(), &segments);
        }
        assert_eq!(guest, [7, 6, 5, 4, 9, 8]);
    }
}
