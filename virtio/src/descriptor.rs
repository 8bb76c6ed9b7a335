//! Reads the descriptors of one chain and checks them.

use crate::chain::{Chain, Segment};
use crate::error::MemoryError;
use crate::error::RingError;
use crate::memory::{Memory, RegionRange};
use crate::prefetch;
use crate::shared::Pairs;
use crate::{DESCRIPTORS_MAX, SEGMENTS_MAX};

/// The size of a descriptor in any table.
pub(crate) const DESCRIPTOR_BYTES: usize = 16;

pub(crate) const NEXT: u16 = 1;
pub(crate) const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// A cache line.
const LINE_BYTES: usize = 64;

/// A descriptor, read once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Descriptor {
    pub(crate) addr: u64,
    pub(crate) len: u32,
    pub(crate) flags: u16,
    /// In a split ring's table the next descriptor; in a packed ring the buffer's id.
    pub(crate) link: u16,
}

impl Descriptor {
    /// From the table of a split ring.
    #[inline]
    pub(crate) fn load(table: Pairs<'_>, index: u16) -> Self {
        let [addr, rest] = table.load(index);
        // The fields of the second word: length, flags, next.
        Self { addr, len: rest as u32, flags: (rest >> 32) as u16, link: (rest >> 48) as u16 }
    }

    /// From a packed ring, or from an indirect table in its format.
    #[inline]
    pub(crate) fn load_packed(table: Pairs<'_>, index: u16) -> Self {
        let [addr, rest] = table.load(index);
        // The fields of the second word: length, id, flags.
        Self { addr, len: rest as u32, link: (rest >> 32) as u16, flags: (rest >> 48) as u16 }
    }
}

impl Descriptor {
    /// The one piece that it is, if it is nothing but that, of the kind that is wanted. Has its
    /// first two lines come: a network card's frames begin there, and mostly end there.
    #[inline]
    pub(crate) fn single(self, wanted: &SinglesWanted) -> Option<Segment> {
        let is_single = self.flags & (NEXT | INDIRECT) == 0 && self.len > 0;
        if !is_single || (self.flags & WRITE != 0) != wanted.writable {
            return None;
        }
        let segment = wanted.range.find(self.addr, self.len)?;
        prefetch::for_writing(segment.addr);
        prefetch::for_writing(segment.addr.wrapping_add(LINE_BYTES));
        Some(segment)
    }
}

/// The rules that a driver may break without harm to the device, and how often it broke them.
#[derive(Debug)]
pub(crate) struct Lenience {
    /// See [`crate::QueueConfig::reads_only`].
    reads_only: bool,
    /// Descriptors that were taken for it.
    pub(crate) tolerated: u64,
}

impl Lenience {
    pub(crate) fn new(reads_only: bool) -> Self {
        Self { reads_only, tolerated: 0 }
    }
}

/// Turns descriptors into checked pieces of guest memory.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    pub(crate) memory: &'a Memory,
    /// The region of the last translation.
    pub(crate) hint: &'a mut usize,
    pub(crate) lenience: &'a mut Lenience,
    /// Whether indirect tables were negotiated.
    pub(crate) indirect: bool,
}

impl<'a> Reader<'a> {
    /// Fills `chain`, which is empty, with the chain that begins at descriptor `head` of a split
    /// ring's table of `size` descriptors.
    ///
    /// The work is bounded: at most as many descriptors as the ring's table has, then at most
    /// [`DESCRIPTORS_MAX`] of one indirect table.
    #[inline]
    pub(crate) fn read_split(
        &mut self,
        table: Pairs<'_>,
        size: u16,
        head: u16,
        chain: &mut Chain,
    ) -> Result<(), RingError> {
        let mut bytes = 0;
        let mut index = head;
        for _ in 0..size {
            if index >= size {
                return Err(RingError::OutOfRange { index, size });
            }
            let descriptor = Descriptor::load(table, index);
            if descriptor.flags & INDIRECT != 0 {
                if descriptor.flags & NEXT != 0 {
                    return Err(RingError::IndirectMisplaced { head });
                }
                return self.read_split_table(head, descriptor, &mut bytes, chain);
            }
            self.add(head, descriptor, &mut bytes, chain)?;
            if descriptor.flags & NEXT == 0 {
                return Ok(());
            }
            index = descriptor.link;
        }
        Err(RingError::Loop { head, limit: size })
    }

    /// Has the line come in which the first buffer of a chain begins, a request's header: nearly
    /// always the status is in it as well, so it is asked for to be written. Nothing that is read
    /// here is believed, and nothing is said about what is wrong.
    #[inline]
    pub(crate) fn ask_for_split(&mut self, table: Pairs<'_>, head: u16) {
        let mut first = Descriptor::load(table, head);
        if first.flags & INDIRECT != 0 {
            let table = self.memory.pairs(self.hint, first.addr, DESCRIPTOR_BYTES);
            let Some(table) = table else { return };
            first = Descriptor::load(table, 0);
        }
        self.ask_for(first);
    }

    #[inline]
    fn ask_for(&mut self, first: Descriptor) {
        if let Some(header) = self.memory.host_addr(self.hint, first.addr) {
            prefetch::for_writing(header);
        }
    }

    /// An indirect table of a split ring, which ends the chain. Its own write flag means nothing.
    #[inline]
    fn read_split_table(
        &mut self,
        head: u16,
        outer: Descriptor,
        bytes: &mut u32,
        chain: &mut Chain,
    ) -> Result<(), RingError> {
        let (table, size) = self.find_table(head, outer)?;
        let mut index = 0;
        for _ in 0..size {
            if index >= size {
                return Err(RingError::OutOfRange { index, size });
            }
            let descriptor = Descriptor::load(table, index);
            if descriptor.flags & INDIRECT != 0 {
                return Err(RingError::IndirectMisplaced { head });
            }
            self.add(head, descriptor, bytes, chain)?;
            if descriptor.flags & NEXT == 0 {
                return Ok(());
            }
            index = descriptor.link;
        }
        Err(RingError::Loop { head, limit: size })
    }

    /// Fills `chain`, which is empty, with a list of descriptors of a packed ring. It may be one
    /// indirect table, whose descriptors follow each other and whose only flag is the write flag.
    pub(crate) fn read_packed(
        &mut self,
        list: &[Descriptor],
        head: u16,
        chain: &mut Chain,
    ) -> Result<(), RingError> {
        let mut bytes = 0;
        if let [outer] = list
            && outer.flags & INDIRECT != 0
        {
            let (table, size) = self.find_table(head, *outer)?;
            for index in 0..size {
                let descriptor = Descriptor::load_packed(table, index);
                if descriptor.flags & INDIRECT != 0 {
                    return Err(RingError::IndirectMisplaced { head });
                }
                self.add(head, descriptor, &mut bytes, chain)?;
            }
            return Ok(());
        }
        for descriptor in list {
            if descriptor.flags & INDIRECT != 0 {
                return Err(RingError::IndirectMisplaced { head });
            }
            self.add(head, *descriptor, &mut bytes, chain)?;
        }
        Ok(())
    }

    /// The indirect table that a descriptor names, and how many descriptors it has.
    fn find_table(&mut self, head: u16, outer: Descriptor) -> Result<(Pairs<'a>, u16), RingError> {
        if !self.indirect {
            return Err(RingError::IndirectMisplaced { head });
        }
        let len = outer.len as usize;
        let count = len / DESCRIPTOR_BYTES;
        if !len.is_multiple_of(DESCRIPTOR_BYTES) || !(1..=DESCRIPTORS_MAX).contains(&count) {
            return Err(RingError::IndirectLength { head, len: outer.len });
        }
        let unmapped = MemoryError::Unmapped { addr: outer.addr, len: u64::from(outer.len) };
        let table = self.memory.pairs(self.hint, outer.addr, len).ok_or(unmapped)?;
        // At most DESCRIPTORS_MAX, as was just checked.
        Ok((table, count as u16))
    }

    /// Passes over a descriptor that breaks a rule, if that does not matter to the device.
    #[cold]
    fn pass_over(&mut self, error: RingError) -> Result<(), RingError> {
        if !self.lenience.reads_only {
            return Err(error);
        }
        self.lenience.tolerated += 1;
        Ok(())
    }

    /// Adds one buffer to the chain.
    #[inline(always)]
    fn add(
        &mut self,
        head: u16,
        descriptor: Descriptor,
        bytes: &mut u32,
        chain: &mut Chain,
    ) -> Result<(), RingError> {
        let is_writable = descriptor.flags & WRITE != 0;
        if descriptor.len == 0 {
            return self.pass_over(RingError::ZeroLength { head });
        }
        *bytes = bytes.checked_add(descriptor.len).ok_or(RingError::TooLong { head })?;
        let segments = if is_writable && self.lenience.reads_only {
            self.lenience.tolerated += 1;
            &mut chain.readable
        } else if is_writable {
            &mut chain.writable
        } else if chain.writable.is_empty() {
            &mut chain.readable
        } else {
            return Err(RingError::Order { head });
        };
        match self.memory.near(*self.hint, descriptor.addr, descriptor.len) {
            // Room for one more than there may be would have to be made.
            Some(_) if segments.len() == SEGMENTS_MAX => {
                return Err(RingError::TooManySegments { head });
            }
            Some(segment) => segments.push(segment),
            None => self
                .memory
                .translate_from(self.hint, descriptor.addr, descriptor.len, segments)
                .map_err(|error| match error {
                    MemoryError::TooManySegments => RingError::TooManySegments { head },
                    other => RingError::Memory(other),
                })?,
        }
        if chain.readable.len() + chain.writable.len() > SEGMENTS_MAX {
            return Err(RingError::TooManySegments { head });
        }
        Ok(())
    }
}

/// The chains of one piece that a burst looks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SinglesWanted {
    /// The region in which all of them have to be.
    pub(crate) range: RegionRange,
    /// Pieces that the device writes, or those that it reads.
    pub(crate) writable: bool,
    /// The most of them.
    pub(crate) most: usize,
    /// With so many bytes it is enough.
    pub(crate) bytes: usize,
}
