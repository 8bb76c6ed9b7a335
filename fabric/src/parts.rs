//! The caller's memory, in pieces: copies between it and the region or our own memory.

use crate::MemoryPiece;
use crate::shared::{Mapping, copy};

/// Most pieces of one message.
pub const PARTS_MAX: usize = 8;

/// Why pieces are not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadParts {
    TooMany,
    TooLong,
}

/// The memory of a message that waits, as one row of bytes.
///
/// The maker of a row promises that the pieces stay as they were described until the operation that
/// they are for has ended; the copies below rest on that.
#[derive(Clone, Debug)]
pub(crate) struct MessageParts {
    /// Where the first byte is, and how many there are; in one piece if there is no row.
    whole: MemoryPiece,
    /// Apart, since nearly all messages are one piece, and what each of them costs is moving this.
    row: Option<Box<PartsRow>>,
}

#[derive(Clone, Debug)]
struct PartsRow {
    parts: [MemoryPiece; PARTS_MAX],
    count: usize,
}

/// How many bytes pieces have that a caller gives.
#[inline]
fn check(given: &[MemoryPiece]) -> Result<usize, BadParts> {
    let bytes = match *given {
        [MemoryPiece { bytes, .. }] => bytes,
        _ if given.len() > PARTS_MAX => return Err(BadParts::TooMany),
        _ => given
            .iter()
            .try_fold(0_usize, |sum, part| sum.checked_add(part.bytes))
            .ok_or(BadParts::TooLong)?,
    };
    // No object of a program is as long; sums and offsets stay far from an overflow.
    if isize::try_from(bytes).is_err() {
        return Err(BadParts::TooLong);
    }
    Ok(bytes)
}

/// Pieces that a caller gives. They are readable as long as this lives, so its holder may copy out
/// of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Given<'a> {
    parts: &'a [MemoryPiece],
    /// Of all of them.
    bytes: usize,
}

impl<'a> Given<'a> {
    /// # Safety
    /// The memory of all of them is readable for `'a`.
    #[inline(always)]
    pub(crate) unsafe fn new(parts: &'a [MemoryPiece]) -> Result<Self, BadParts> {
        Ok(Self { parts, bytes: check(parts)? })
    }

    #[inline(always)]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    #[inline(always)]
    pub(crate) fn as_slice(&self) -> &'a [MemoryPiece] {
        self.parts
    }

    /// A copy of all of them.
    pub(crate) fn copied(&self) -> Vec<u8> {
        let mut content = vec![0; self.bytes];
        pieces(self.parts, 0, self.bytes, |start, len, done| {
            let to = &mut content[done..done + len];
            // SAFETY: the pieces are readable as long as `self` lives, and `start` and `len` lie in
            // one of them; `to` is as long, new, and our own.
            unsafe { copy(start, to.as_mut_ptr(), len) }
        });
        content
    }

    /// Copies all of them into the region.
    #[inline(always)]
    pub(crate) fn copy_in(&self, region: &Mapping, at: usize) {
        // SAFETY: the pieces are readable as long as `self` lives (its maker promised that), and
        // have just these bytes.
        unsafe { copy_in(self.parts, 0, self.bytes, region, at) };
    }
}

impl MessageParts {
    #[inline]
    pub(crate) fn new(given: &[MemoryPiece]) -> Result<Self, BadParts> {
        let bytes = check(given)?;
        Ok(match *given {
            [whole] => Self { whole, row: None },
            [] => Self { whole: MemoryPiece { start: std::ptr::null_mut(), bytes }, row: None },
            _ => Self::of_several(given, bytes),
        })
    }

    /// All of a copy of our own, which its owner keeps at least as long as these.
    pub(crate) fn of_copy(copy: &[u8]) -> Self {
        let whole = MemoryPiece { start: copy.as_ptr().cast_mut(), bytes: copy.len() };
        Self { whole, row: None }
    }

    /// The pieces, to be sent.
    pub(crate) fn given(&self) -> Given<'_> {
        // Readable as long as `self` lives, see there.
        Given { parts: self.as_slice(), bytes: self.bytes() }
    }

    /// The memory that it takes beside itself.
    pub(crate) fn held_bytes(&self) -> usize {
        self.row.as_ref().map_or(0, |_| size_of::<PartsRow>())
    }

    /// They were checked.
    #[cold]
    fn of_several(given: &[MemoryPiece], bytes: usize) -> Self {
        let nothing = MemoryPiece { start: std::ptr::null_mut(), bytes: 0 };
        let start = given.first().map_or(nothing.start, |part| part.start);
        let mut parts = [nothing; PARTS_MAX];
        parts[..given.len()].copy_from_slice(given);
        let row = Some(Box::new(PartsRow { parts, count: given.len() }));
        Self { whole: MemoryPiece { start, bytes }, row }
    }

    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.whole.bytes
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[MemoryPiece] {
        match &self.row {
            None => std::slice::from_ref(&self.whole),
            Some(row) => &row.parts[..row.count],
        }
    }

    /// Where the first byte is.
    #[inline]
    pub(crate) fn start(&self) -> *mut u8 {
        self.whole.start
    }

    /// The same memory from `offset` on, `bytes` of it at most. Of a shared buffer, which has one
    /// part, also an empty message has its place.
    pub(crate) fn cut(&self, offset: usize, bytes: usize) -> Self {
        let bytes = bytes.min(self.bytes().saturating_sub(offset));
        if self.row.is_none() {
            let start = self.start().wrapping_add(offset);
            return Self { whole: MemoryPiece { start, bytes }, row: None };
        }
        let (mut parts, mut count) =
            ([MemoryPiece { start: std::ptr::null_mut(), bytes: 0 }; PARTS_MAX], 0);
        pieces(self.as_slice(), offset, bytes, |start, bytes, _| {
            parts[count] = MemoryPiece { start, bytes };
            count += 1;
        });
        Self::of_several(&parts[..count], bytes)
    }

    /// Copies `bytes` from `offset` on into the region.
    #[inline(always)]
    pub(crate) fn copy_in(&self, offset: usize, bytes: usize, region: &Mapping, at: usize) {
        // Our own mistake if it fails: copies are cut to the room that there is.
        assert!(bytes <= self.bytes() && offset <= self.bytes() - bytes);
        // SAFETY: the pieces are readable until the message that they are for has ended, and with
        // it `self` (promised to `Endpoint::send`); they have as many bytes from `offset` on.
        unsafe { copy_in(self.as_slice(), offset, bytes, region, at) };
    }

    /// Copies `bytes` from the region to `offset`.
    #[inline(always)]
    pub(crate) fn copy_out(&self, offset: usize, bytes: usize, region: &Mapping, at: usize) {
        // As in `copy_in`.
        assert!(bytes <= self.bytes() && offset <= self.bytes() - bytes);
        pieces(self.as_slice(), offset, bytes, |start, len, done| {
            // SAFETY: the pieces are writable (promised to `Endpoint::receive`), and `start` and
            // `len` lie in one of them.
            unsafe { region.copy_out(at + done, start, len) }
        });
    }

    /// Copies from our own memory, as many as there are; there is room for them.
    #[inline]
    pub(crate) fn fill(&self, from: &[u8]) {
        // As in `copy_in`.
        assert!(from.len() <= self.bytes());
        pieces(self.as_slice(), 0, from.len(), |start, len, done| {
            let from = &from[done..done + len];
            // SAFETY: as in `copy_out`; `from` is our own and private, so the two do not overlap.
            unsafe { copy(from.as_ptr(), start, len) }
        });
    }
}

/// Copies `bytes` of pieces from `offset` on into the region.
///
/// # Safety
/// The pieces are readable. They have `bytes` from `offset` on: of fewer, what was in the region
/// before would be told as part of the message.
#[inline(always)]
unsafe fn copy_in(parts: &[MemoryPiece], offset: usize, bytes: usize, region: &Mapping, at: usize) {
    pieces(parts, offset, bytes, |start, len, done| {
        // SAFETY: `start` and `len` lie in one of the pieces, which are readable (the caller's
        // word).
        unsafe { region.copy_in(at + done, start, len) }
    });
}

/// Tells each piece of `bytes` from `offset` on, as far as there are: where, how long, and how much
/// was before it.
#[inline(always)]
fn pieces(
    parts: &[MemoryPiece],
    offset: usize,
    bytes: usize,
    mut each: impl FnMut(*mut u8, usize, usize),
) {
    if let [MemoryPiece { start, bytes: whole }] = *parts {
        let len = bytes.min(whole.saturating_sub(offset));
        if len > 0 {
            each(start.wrapping_add(offset), len, 0);
        }
        return;
    }
    pieces_of_several(parts, offset, bytes, &mut each);
}

#[cold]
fn pieces_of_several(
    parts: &[MemoryPiece],
    offset: usize,
    bytes: usize,
    each: &mut impl FnMut(*mut u8, usize, usize),
) {
    let (mut skip, mut done) = (offset, 0);
    for part in parts {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_one_row() {
        let mut memory = [0_u8; 64];
        let start = memory.as_mut_ptr();
        let part = |at: usize, bytes| MemoryPiece { start: start.wrapping_add(at), bytes };
        let parts =
            MessageParts::new(&[part(40, 3), part(0, 0), part(10, 5), part(20, 1)]).expect("few");
        assert_eq!(parts.bytes(), 9);
        parts.fill(b"abcdefgh");
        assert_eq!((&memory[40..43], &memory[10..15]), (&b"abc"[..], &b"defgh"[..]));
        let cut = parts.cut(2, 3);
        assert_eq!(cut.as_slice(), [part(42, 1), part(10, 2)]);
        assert_eq!((cut.bytes(), parts.cut(9, 5).bytes(), parts.cut(8, 99).bytes()), (3, 0, 1));
        let alone = MessageParts::new(&[part(40, 3)]).expect("one");
        assert_eq!(alone.cut(2, 0).start(), part(42, 0).start);
        assert_eq!((alone.cut(3, 9).bytes(), alone.cut(2, 9).as_slice()), (0, &[part(42, 1)][..]));
        cut.cut(1, 2).fill(b"XY");
        assert_eq!(&memory[10..15], b"XYfgh");
    }

    #[test]
    fn too_many_and_too_long_are_refused() {
        let part = MemoryPiece { start: std::ptr::null_mut(), bytes: 1 << 62 };
        assert_eq!(MessageParts::new(&[part; PARTS_MAX + 1]).err(), Some(BadParts::TooMany));
        assert_eq!(MessageParts::new(&[part; 2]).err(), Some(BadParts::TooLong));
        assert_eq!(MessageParts::new(&[part; 4]).err(), Some(BadParts::TooLong));
    }
}
