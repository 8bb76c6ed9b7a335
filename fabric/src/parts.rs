//! The caller's memory, in pieces: copies between it and the region or our own memory.

use crate::Part;
use crate::shared::Mapping;

/// Most pieces of one message.
pub const PARTS_MAX: usize = 8;

/// Why pieces are not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadParts {
    TooMany,
    TooLong,
}

/// A message's memory, as one row of bytes.
///
/// Who makes one promises that the pieces stay as they were described until the operation that they
/// are for has ended; the copies below rest on that.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parts {
    parts: [Part; PARTS_MAX],
    count: usize,
    bytes: usize,
}

impl Parts {
    #[inline]
    pub(crate) fn new(given: &[Part]) -> Result<Self, BadParts> {
        if given.len() > PARTS_MAX {
            return Err(BadParts::TooMany);
        }
        let mut parts = [Part { start: std::ptr::null_mut(), bytes: 0 }; PARTS_MAX];
        let mut bytes = 0_usize;
        for (part, given) in parts.iter_mut().zip(given) {
            bytes = bytes.checked_add(given.bytes).ok_or(BadParts::TooLong)?;
            *part = *given;
        }
        // What no program can have as one object; sums and offsets stay far from an overflow.
        if isize::try_from(bytes).is_err() {
            return Err(BadParts::TooLong);
        }
        Ok(Self { parts, count: given.len(), bytes })
    }

    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn as_slice(&self) -> &[Part] {
        &self.parts[..self.count]
    }

    /// Where the first byte is.
    pub(crate) fn start(&self) -> *mut u8 {
        self.parts[0].start
    }

    /// The same memory from `offset` on, `bytes` of it at most.
    pub(crate) fn cut(&self, offset: usize, bytes: usize) -> Self {
        let empty = Part { start: std::ptr::null_mut(), bytes: 0 };
        let mut cut = Self { parts: [empty; PARTS_MAX], count: 0, bytes: 0 };
        self.pieces(offset, bytes.min(self.bytes.saturating_sub(offset)), |start, bytes, _| {
            cut.parts[cut.count] = Part { start, bytes };
            cut.count += 1;
            cut.bytes += bytes;
        });
        if cut.count == 0 {
            // Of a shared buffer, which has one part, also an empty message has its place.
            cut.parts[0].start = self.start().wrapping_add(offset);
        }
        cut
    }

    /// Tells each piece of `bytes` from `offset` on: where, how long, and how much was before it.
    #[inline]
    fn pieces(&self, offset: usize, bytes: usize, mut each: impl FnMut(*mut u8, usize, usize)) {
        // Our own mistake if it fails: what is copied is cut to what there is room for.
        assert!(offset <= self.bytes && bytes <= self.bytes - offset, "{offset} + {bytes}");
        let (mut skip, mut done) = (offset, 0);
        for part in self.as_slice() {
            if done == bytes {
                break;
            }
            if skip >= part.bytes {
                skip -= part.bytes;
                continue;
            }
            let len = (part.bytes - skip).min(bytes - done);
            each(part.start.wrapping_add(skip), len, done);
            (skip, done) = (0, done + len);
        }
    }

    /// Copies `bytes` from `offset` on into the region.
    #[inline]
    pub(crate) fn copy_in(&self, offset: usize, bytes: usize, region: &Mapping, at: usize) {
        self.pieces(offset, bytes, |start, len, done| {
            // SAFETY: the pieces are readable (whose they are promised it to `Endpoint::send`), and
            // `start` and `len` lie in one of them.
            unsafe { region.copy_in(at + done, start, len) }
        });
    }

    /// Copies `bytes` from the region to `offset`.
    #[inline]
    pub(crate) fn copy_out(&self, offset: usize, bytes: usize, region: &Mapping, at: usize) {
        self.pieces(offset, bytes, |start, len, done| {
            // SAFETY: the pieces are writable (promised to `Endpoint::receive`), and `start` and
            // `len` lie in one of them.
            unsafe { region.copy_out(at + done, start, len) }
        });
    }

    /// Copies from our own memory, as many as there are; there is room for them.
    pub(crate) fn fill(&self, from: &[u8]) {
        self.pieces(0, from.len(), |start, len, done| {
            let from = &from[done..done + len];
            // SAFETY: as in `copy_out`; `from` is our own and private, so the two do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), start, len) }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_one_row() {
        let mut memory = [0_u8; 64];
        let start = memory.as_mut_ptr();
        let part = |at: usize, bytes| Part { start: start.wrapping_add(at), bytes };
        let parts = Parts::new(&[part(40, 3), part(0, 0), part(10, 5), part(20, 1)]).expect("few");
        assert_eq!(parts.bytes(), 9);
        parts.fill(b"abcdefgh");
        assert_eq!((&memory[40..43], &memory[10..15]), (&b"abc"[..], &b"defgh"[..]));
        let cut = parts.cut(2, 3);
        assert_eq!(cut.as_slice(), [part(42, 1), part(10, 2)]);
        assert_eq!((cut.bytes(), parts.cut(9, 5).bytes(), parts.cut(8, 99).bytes()), (3, 0, 1));
        assert_eq!(parts.cut(2, 0).start(), part(42, 0).start);
        cut.cut(1, 2).fill(b"XY");
        assert_eq!(&memory[10..15], b"XYfgh");
    }

    #[test]
    fn too_many_and_too_long_are_refused() {
        let part = Part { start: std::ptr::null_mut(), bytes: 1 << 62 };
        assert_eq!(Parts::new(&[part; PARTS_MAX + 1]).err(), Some(BadParts::TooMany));
        assert_eq!(Parts::new(&[part; 2]).err(), Some(BadParts::TooLong));
        assert_eq!(Parts::new(&[part; 4]).err(), Some(BadParts::TooLong));
    }
}
