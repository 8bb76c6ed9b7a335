//! A buffer that the kernel accepts for direct I/O.

use std::ops::{Deref, DerefMut};

use crate::pattern::BLOCK_BYTES;

/// Bytes that start at a multiple of the block size in memory.
#[derive(Debug)]
pub struct Aligned {
    /// One block longer than asked for, so that an aligned part of the wanted length is inside.
    bytes: Vec<u8>,
    start: usize,
}

impl Aligned {
    /// Room for `blocks` blocks, all zeros.
    pub fn new(blocks: u64) -> Self {
        let length = (blocks as usize + 1) * BLOCK_BYTES;
        let bytes = vec![0; length];
        let start = bytes.as_ptr().align_offset(BLOCK_BYTES);
        assert!(start < BLOCK_BYTES, "a byte pointer can always be aligned");
        Self { bytes, start }
    }

    /// The first `blocks` blocks, one after the other.
    pub fn blocks(&mut self, blocks: u64) -> impl Iterator<Item = &mut [u8]> {
        self[..blocks as usize * BLOCK_BYTES].chunks_exact_mut(BLOCK_BYTES)
    }
}

impl Deref for Aligned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.bytes.len() - BLOCK_BYTES]
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        let length = self.bytes.len() - BLOCK_BYTES;
        &mut self.bytes[self.start..self.start + length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_aligned_and_as_long_as_asked() {
        for blocks in 1..40 {
            let mut buffer = Aligned::new(blocks);
            assert_eq!(buffer.as_ptr().align_offset(BLOCK_BYTES), 0);
            assert_eq!(buffer.len(), blocks as usize * BLOCK_BYTES);
            assert_eq!(buffer.blocks(blocks).count(), blocks as usize);
        }
    }
}
