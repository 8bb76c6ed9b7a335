//! Blocks of memory: the unit of everything that the store reads and writes.

use std::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a block: of a volume's unit, of a row's head, and of a page of the map.
pub const BLOCK_BYTES: usize = 4096;

/// One block, aligned so that a device that is opened with `O_DIRECT` takes it.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
pub struct Block(pub [u8; BLOCK_BYTES]);

impl Block {
    /// A block of zeroes.
    pub const ZERO: Self = Self([0; BLOCK_BYTES]);
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({:02x?}..)", &self.0[..16])
    }
}

/// Blocks that lie one behind the other in memory. A buffer goes with a request to the device and
/// comes back with its answer, so neither side needs a pointer into the other.
pub struct BlockBuffer(Box<[Block]>);

impl BlockBuffer {
    /// A buffer of zeroes.
    ///
    /// # Panics
    /// If there is no memory.
    pub fn new(blocks: usize) -> Self {
        Self(vec![Block::ZERO; blocks].into_boxed_slice())
    }

    /// Its blocks.
    pub fn blocks(&self) -> &[Block] {
        &self.0
    }

    /// Its blocks, to be changed.
    pub fn blocks_mut(&mut self) -> &mut [Block] {
        &mut self.0
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// Its bytes, to be changed.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.as_mut_bytes()
    }
}

impl fmt::Debug for BlockBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockBuffer({} blocks)", self.0.len())
    }
}
