//! Reads the descriptors of one chain and checks them.

use crate::chain::Chain;
use crate::error::RingError;
use crate::memory::{Memory, MemoryError};
use crate::shared::Area;
use crate::{DESCRIPTORS_MAX, SEGMENTS_MAX};

/// The size of a descriptor in any table.
pub(crate) const DESCRIPTOR_BYTES: usize = 16;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// A descriptor, read once.
#[derive(Clone, Copy, Debug)]
struct Descriptor {
    addr: u64,
    len: u32,
    flags: u16,
    next: u16,
}

impl Descriptor {
    fn load(table: &Area, index: u16) -> Self {
        let [addr, rest] = table.load_pair(usize::from(index) * DESCRIPTOR_BYTES);
        // The fields of the second word: length, flags, next.
        Self { addr, len: rest as u32, flags: (rest >> 32) as u16, next: (rest >> 48) as u16 }
    }
}

/// Where chains are read from.
#[derive(Debug)]
pub(crate) struct Source<'a> {
    pub(crate) memory: &'a Memory,
    /// The region of the last translation.
    pub(crate) hint: &'a mut usize,
    /// The ring's own table and its size.
    pub(crate) table: &'a Area,
    pub(crate) size: u16,
    /// Whether indirect tables were negotiated.
    pub(crate) indirect: bool,
}

impl Source<'_> {
    /// Fills `chain`, which is empty, with the chain that begins at descriptor `head`.
    ///
    /// The work is bounded: at most as many descriptors as the ring's table has, then at most
    /// [`DESCRIPTORS_MAX`] of one indirect table.
    pub(crate) fn read(&mut self, head: u16, chain: &mut Chain) -> Result<(), RingError> {
        let mut bytes = 0;
        let mut index = head;
        for _ in 0..self.size {
            if index >= self.size {
                return Err(RingError::OutOfRange { index, size: self.size });
            }
            let descriptor = Descriptor::load(self.table, index);
            if descriptor.flags & INDIRECT != 0 {
                return self.read_indirect(head, descriptor, &mut bytes, chain);
            }
            self.add(head, descriptor, &mut bytes, chain)?;
            if descriptor.flags & NEXT == 0 {
                return Ok(());
            }
            index = descriptor.next;
        }
        Err(RingError::Loop { head, limit: self.size })
    }

    /// An indirect table, which ends the chain. Its own write flag means nothing.
    fn read_indirect(
        &mut self,
        head: u16,
        outer: Descriptor,
        bytes: &mut u32,
        chain: &mut Chain,
    ) -> Result<(), RingError> {
        if !self.indirect || outer.flags & NEXT != 0 {
            return Err(RingError::IndirectMisplaced { head });
        }
        let len = outer.len as usize;
        let count = len / DESCRIPTOR_BYTES;
        if !len.is_multiple_of(DESCRIPTOR_BYTES) || !(1..=DESCRIPTORS_MAX).contains(&count) {
            return Err(RingError::IndirectLength { head, len: outer.len });
        }
        let unmapped = MemoryError::Unmapped { addr: outer.addr, len: u64::from(outer.len) };
        let table = self.memory.area(outer.addr, len).ok_or(unmapped)?;
        // At most DESCRIPTORS_MAX, as was just checked.
        let size = count as u16;
        let mut index = 0;
        for _ in 0..size {
            if index >= size {
                return Err(RingError::OutOfRange { index, size });
            }
            let descriptor = Descriptor::load(&table, index);
            if descriptor.flags & INDIRECT != 0 {
                return Err(RingError::IndirectMisplaced { head });
            }
            self.add(head, descriptor, bytes, chain)?;
            if descriptor.flags & NEXT == 0 {
                return Ok(());
            }
            index = descriptor.next;
        }
        Err(RingError::Loop { head, limit: size })
    }

    /// Adds one buffer to the chain.
    fn add(
        &mut self,
        head: u16,
        descriptor: Descriptor,
        bytes: &mut u32,
        chain: &mut Chain,
    ) -> Result<(), RingError> {
        if descriptor.len == 0 {
            return Err(RingError::ZeroLength { head });
        }
        *bytes = bytes.checked_add(descriptor.len).ok_or(RingError::TooLong { head })?;
        let segments = if descriptor.flags & WRITE != 0 {
            &mut chain.writable
        } else if chain.writable.is_empty() {
            &mut chain.readable
        } else {
            return Err(RingError::Order { head });
        };
        self.memory.translate_from(self.hint, descriptor.addr, descriptor.len, segments).map_err(
            |error| match error {
                MemoryError::TooManySegments => RingError::TooManySegments { head },
                other => RingError::Memory(other),
            },
        )?;
        if chain.readable.len() + chain.writable.len() > SEGMENTS_MAX {
            return Err(RingError::TooManySegments { head });
        }
        Ok(())
    }
}
