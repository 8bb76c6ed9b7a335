//! Copies between blocks and pieces of guest memory.
//!
//! All of them are made by the sidecore of the request's channel, between the request's submission
//! and its completion: in this time the user keeps the pieces mapped. The engine never has an
//! address of a guest, and no other thread uses one.

use std::ptr;

use virtio::Segment;

/// A place in the pieces of a request, which moves with what is copied.
#[derive(Debug)]
pub(super) struct GuestCursor<'a> {
    segments: &'a [Segment],
    /// The request's byte at which the cursor is.
    at: u64,
    /// The piece with this byte, and the byte's place in it.
    segment: usize,
    inside: usize,
}

impl<'a> GuestCursor<'a> {
    /// A cursor at the request's first byte.
    ///
    /// # Safety
    /// The pieces stay mapped as long as the cursor is used.
    pub(super) unsafe fn new(segments: &'a [Segment]) -> Self {
        Self { segments, at: 0, segment: 0, inside: 0 }
    }

    /// Goes to a byte of the request: cheap if it is where the last copy has ended.
    pub(super) fn go_to(&mut self, byte: u64) {
        if byte < self.at {
            (self.at, self.segment, self.inside) = (0, 0, 0);
        }
        while self.at < byte {
            let left = self.left_here();
            let step = (byte - self.at).min(left as u64) as usize;
            self.step(step);
        }
    }

    /// Copies the next bytes of the request out of the guest's memory.
    pub(super) fn read(&mut self, mut to: &mut [u8]) {
        while !to.is_empty() {
            let len = self.left_here().min(to.len());
            let (now, later) = to.split_at_mut(len);
            // SAFETY: the piece is mapped, as the cursor's maker has promised, and has so many
            // bytes behind this one; `now` is memory of this process that no guest has.
            unsafe { ptr::copy_nonoverlapping(self.address(), now.as_mut_ptr(), len) };
            self.step(len);
            to = later;
        }
    }

    /// Copies into the next bytes of the request in the guest's memory.
    pub(super) fn write(&mut self, mut from: &[u8]) {
        while !from.is_empty() {
            let len = self.left_here().min(from.len());
            let (now, later) = from.split_at(len);
            // SAFETY: as in `read`, the other way round.
            unsafe { ptr::copy_nonoverlapping(now.as_ptr(), self.address(), len) };
            self.step(len);
            from = later;
        }
    }

    /// Zeroes the next bytes of the request in the guest's memory.
    pub(super) fn zero(&mut self, mut bytes: usize) {
        while bytes > 0 {
            let len = self.left_here().min(bytes);
            // SAFETY: as in `read`.
            unsafe { ptr::write_bytes(self.address(), 0, len) };
            self.step(len);
            bytes -= len;
        }
    }

    fn address(&self) -> *mut u8 {
        self.segments[self.segment].addr.wrapping_add(self.inside)
    }

    /// The bytes of this piece from the cursor on. The index panics behind the last piece: a
    /// request is as long as its pieces.
    fn left_here(&mut self) -> usize {
        while self.inside == self.segments[self.segment].len as usize {
            (self.segment, self.inside) = (self.segment + 1, 0);
        }
        self.segments[self.segment].len as usize - self.inside
    }

    fn step(&mut self, bytes: usize) {
        self.inside += bytes;
        self.at += bytes as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_and_go_over_pieces_of_any_length() {
        let mut memory: Vec<u8> = (0..100).collect();
        let base = memory.as_mut_ptr();
        let lengths = [0u32, 7, 0, 1, 40, 52];
        let mut at = 0;
        let segments: Vec<_> = lengths
            .iter()
            .map(|&len| {
                let addr = base.wrapping_add(at);
                at += len as usize;
                Segment { addr, len }
            })
            .collect();
        // SAFETY: the pieces are of `memory`, which outlives the cursor.
        let mut cursor = unsafe { GuestCursor::new(&segments) };
        let mut read = [0; 10];
        for start in [0, 10, 5, 90] {
            cursor.go_to(start);
            cursor.read(&mut read);
            assert_eq!(read, std::array::from_fn(|at| start as u8 + at as u8));
        }
        cursor.go_to(6);
        cursor.write(&[200, 201, 202]);
        cursor.zero(2);
        cursor.go_to(4);
        cursor.read(&mut read);
        assert_eq!(read, [4, 5, 200, 201, 202, 0, 0, 11, 12, 13]);
    }
}
