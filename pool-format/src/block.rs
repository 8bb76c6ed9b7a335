//! Blocks of memory: the unit of everything that the store reads and writes.

use std::fmt;

use zerocopy::{
    FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, transmute_mut, transmute_ref,
};

/// Bytes of a block: of a volume's unit, of a row's head, and of a page of the map.
pub const BLOCK_BYTES: usize = 4096;

/// One block. Its values are on stacks, so it has the alignment of a cache line and no more: LLVM
/// 22 drops the prologue of some optimised functions whose frame is aligned to a page: they crash.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(64))]
pub struct Block(pub [u8; BLOCK_BYTES]);

/// A block where a device that is opened with `O_DIRECT` takes it. It is only ever on the heap.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
struct DeviceBlock(Block);

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
pub struct BlockBuffer(Box<[DeviceBlock]>);

impl BlockBuffer {
    /// A buffer of zeroes.
    ///
    /// # Panics
    /// If there is no memory.
    pub fn new(blocks: usize) -> Self {
        match <[DeviceBlock]>::new_box_zeroed_with_elems(blocks) {
            Ok(blocks) => Self(blocks),
            Err(_) => std::alloc::handle_alloc_error(std::alloc::Layout::new::<DeviceBlock>()),
        }
    }

    /// Its blocks.
    pub fn blocks(&self) -> &[Block] {
        transmute_ref!(&*self.0)
    }

    /// Its blocks, to be changed.
    pub fn blocks_mut(&mut self) -> &mut [Block] {
        transmute_mut!(&mut *self.0)
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
