//! What this crate's tests share.

use virtio::Segment;

use crate::frame::{Burst, Frame};

/// Random numbers from a seed (xorshift64*).
#[derive(Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn roll(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `limit`, which is not zero.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        (self.roll() >> 11) % limit
    }

    pub(crate) fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }
}

/// Adds a copy of these bytes to the burst, in pieces. The copy is never freed: a test ends soon.
pub(crate) fn pushed<'a>(burst: &'a mut Burst, bytes: &[u8], piece_bytes: usize) -> &'a mut Frame {
    let bytes: &'static mut [u8] = Box::leak(bytes.to_vec().into_boxed_slice());
    let cut = bytes.chunks_mut(piece_bytes);
    let pieces = cut.map(|piece| Segment { addr: piece.as_mut_ptr(), len: piece.len() as u32 });
    let pieces: Vec<_> = pieces.collect();
    // SAFETY: the bytes are never freed.
    unsafe { burst.push(&pieces, 0) }.expect("a frame")
}
