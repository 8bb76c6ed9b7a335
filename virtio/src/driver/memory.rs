//! The memory of a stand-in guest: one mapping, cut into regions.
//!
//! All unsafe code of the driver side is here. No code ever holds a Rust reference to plain bytes
//! of the mapping: fields of the rings are atomics, and data is copied in and out.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use super::elements::Reuse;
use crate::error::MemoryError;
use crate::mapping::Mapping;
use crate::memory::Memory;
use crate::prefetch;

/// Data buffers start at a page, as a guest's do, so that direct I/O needs no bounce.
pub(super) const PAGE_BYTES: usize = 4096;

/// The guest physical address of the first byte; not zero, so that a lost base shows.
pub const GUEST_BASE: u64 = 1 << 20;

/// The hole between the guest addresses of two regions that lie apart.
pub const HOLE_BYTES: u64 = 1 << 20;

/// The kinds of a guest's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Backing {
    /// A sealed memfd, which can be handed to another process.
    #[default]
    Memfd,
    /// Anonymous memory, for a device in the same process.
    Anonymous,
}

/// How a guest's memory is cut into regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Regions {
    /// Not at all.
    #[default]
    One,
    /// Into this many regions with adjoining guest addresses: buffers may lie across the seams.
    Adjoining(usize),
    /// Into at most this many regions with holes between their guest addresses.
    Apart(usize),
}

/// A stretch of guest physical addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestRegion {
    /// Its first guest physical address.
    pub guest_address: u64,
    /// Bytes.
    pub len: u64,
    /// Where it is mapped in this process.
    pub host_address: u64,
    /// Where it starts in the file, when there is one.
    pub file_offset: u64,
}

/// A guest's memory; unmapped when the last user lets go.
#[derive(Debug)]
pub struct GuestMemory {
    mapping: Arc<Mapping>,
    /// The mapping's first byte and length, at hand.
    base: NonNull<u8>,
    len: usize,
    regions: Box<[GuestRegion]>,
    file: Option<OwnedFd>,
}

// SAFETY: the mapping lives as long as the value, whichever thread holds it. All access goes
// through atomics or through copies whose two users are ordered by the rings' indexes.
unsafe impl Send for GuestMemory {}
// SAFETY: as above.
unsafe impl Sync for GuestMemory {}

impl GuestMemory {
    /// Maps `len` bytes, filled with zeroes, of which the first has the guest address `guest_base`.
    ///
    /// # Errors
    /// When the system has no memory or no descriptor left.
    pub fn new(backing: Backing, guest_base: u64, len: usize) -> io::Result<Self> {
        assert!(len > 0 && guest_base.is_multiple_of(PAGE_BYTES as u64), "{len} at {guest_base}");
        let len = len.next_multiple_of(PAGE_BYTES);
        let (mapping, file) = match backing {
            Backing::Memfd => {
                let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
                let file = memfd_create("vrio-guest", flags)?;
                ftruncate(&file, len as u64)?;
                fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
                (Mapping::of_file(file.as_fd(), 0, len as u64), Some(file))
            }
            Backing::Anonymous => (Mapping::anonymous(len), None),
        };
        let mapping = Arc::new(mapping.map_err(io::Error::other)?);
        let base = mapping.start();
        let mut memory = Self { mapping, base, len, regions: Box::default(), file };
        memory.regions = Box::new([memory.region(guest_base, 0, len)]);
        Ok(memory)
    }

    /// The same memory as a device in this process has it. A memfd is mapped once more, region by
    /// region; anonymous memory is shared, and must not be cut.
    ///
    /// # Errors
    /// When the system refuses a mapping.
    pub fn device_memory(&self) -> Result<Memory, MemoryError> {
        let map = |region: &GuestRegion| {
            let GuestRegion { guest_address, len, host_address, file_offset } = *region;
            let mapped = match &self.file {
                Some(file) => {
                    crate::Region::map(file.as_fd(), file_offset, guest_address, len, host_address)
                }
                None => {
                    assert_eq!(self.regions.len(), 1, "anonymous memory is not cut");
                    crate::Region::from_mapping(guest_address, Arc::clone(&self.mapping))
                }
            };
            mapped.map(Arc::new)
        };
        Memory::new(self.regions.iter().map(map).collect::<Result<_, _>>()?)
    }

    /// Cuts the memory; `seams` are the offsets at which regions that lie apart may end.
    pub(super) fn cut(&mut self, regions: Regions, seams: &[usize]) {
        let base = self.regions[0].guest_address;
        let (count, hole) = match regions {
            Regions::One => return,
            Regions::Adjoining(count) => (count, 0),
            Regions::Apart(count) => (count, HOLE_BYTES),
        };
        let mut cuts = Vec::new();
        for piece in 1..count {
            let wanted = (self.len() / count * piece).next_multiple_of(PAGE_BYTES);
            let cut = if hole == 0 {
                Some(wanted)
            } else {
                seams.iter().copied().min_by_key(|seam| seam.abs_diff(wanted))
            };
            let after = cuts.last().copied().unwrap_or(0);
            cuts.extend(cut.filter(|at| *at > after && *at < self.len()));
        }
        let (mut regions, mut start) = (Vec::new(), 0);
        for end in cuts.into_iter().chain([self.len()]) {
            let holes = hole * regions.len() as u64;
            regions.push(self.region(base + start as u64 + holes, start, end));
            start = end;
        }
        self.regions = regions.into_boxed_slice();
    }

    fn region(&self, guest_address: u64, start: usize, end: usize) -> GuestRegion {
        GuestRegion {
            guest_address,
            len: (end - start) as u64,
            host_address: self.base.as_ptr() as u64 + start as u64,
            file_offset: start as u64,
        }
    }

    /// Its regions, by address.
    pub fn regions(&self) -> &[GuestRegion] {
        &self.regions
    }

    /// The memfd, when there is one.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// Bytes in all regions.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: there is no memory without a page.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The guest physical address of an offset.
    pub fn guest_address(&self, offset: usize) -> u64 {
        assert!(offset < self.len(), "offset {offset} of {}", self.len());
        let offset = offset as u64;
        let region = self.regions.iter().rfind(|region| region.file_offset <= offset);
        let region = region.expect("the first region starts at zero");
        region.guest_address + (offset - region.file_offset)
    }

    /// The offset of a guest physical address; nothing for one outside the memory.
    pub fn offset_of(&self, guest_address: u64) -> Option<usize> {
        self.regions.iter().find_map(|region| {
            let within = guest_address.checked_sub(region.guest_address)?;
            (within < region.len).then_some((region.file_offset + within) as usize)
        })
    }

    /// The address in this process of an offset.
    pub fn host_address(&self, offset: usize) -> u64 {
        assert!(offset < self.len(), "offset {offset} of {}", self.len());
        self.base.as_ptr() as u64 + offset as u64
    }

    /// A checksum over every byte: equal before and after means that the device stored nothing
    /// else.
    pub fn digest(&self) -> u64 {
        self.digest_of(0, self.len())
    }

    /// The checksum of a part; both numbers are multiples of eight.
    pub fn digest_of(&self, offset: usize, len: usize) -> u64 {
        assert!(offset.is_multiple_of(8) && len.is_multiple_of(8), "{len} at {offset}");
        (offset..offset + len).step_by(8).fold(0x9e37_79b9_7f4a_7c15, |digest: u64, at| {
            let word = self.u64_at(at).load(Ordering::Relaxed);
            (digest ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(29)
        })
    }

    /// Copies bytes into the memory.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let to = self.checked(offset, bytes.len(), 1);
        // SAFETY: `to` is valid for the length, and no reference to plain bytes of the mapping
        // exists anywhere, so the two do not overlap.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
    }

    /// Copies bytes out of the memory.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) {
        let from = self.checked(offset, bytes.len(), 1);
        // SAFETY: `from` is valid for the length, and no reference to plain bytes of the mapping
        // exists anywhere, so the two do not overlap.
        unsafe { ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) }
    }

    /// Stores two words. Unless `reuse` is as Linux's, words that are there already are not stored
    /// again, so that a line that both sides only read stays with both.
    #[inline]
    pub(super) fn put_pair(&self, offset: usize, values: [u64; 2], reuse: Reuse) {
        let first = self.checked(offset, 16, 8).cast::<u64>();
        for (at, value) in values.into_iter().enumerate() {
            // SAFETY: as for u8_at, checked for both words.
            let word = unsafe { AtomicU64::from_ptr(first.add(at)) };
            if reuse == Reuse::AsLinux || word.load(Ordering::Relaxed) != value {
                word.store(value, Ordering::Relaxed);
            }
        }
    }

    /// Stores a short word, unless it is there already.
    #[inline]
    pub(super) fn settle_u16(&self, offset: usize, value: u16) {
        let word = self.u16_at(offset);
        if word.load(Ordering::Relaxed) != value {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Has the line of this offset come to this core, to be written.
    #[inline]
    pub(super) fn ask_for(&self, offset: usize) {
        prefetch::for_writing(self.base.as_ptr().wrapping_add(offset));
    }

    pub(super) fn u8_at(&self, offset: usize) -> &AtomicU8 {
        // SAFETY: checked for room and alignment; the mapping outlives the borrow of self; all
        // accesses of this process go through atomics or ordered copies.
        unsafe { AtomicU8::from_ptr(self.checked(offset, 1, 1)) }
    }

    pub(super) fn u16_at(&self, offset: usize) -> &AtomicU16 {
        // SAFETY: as for u8_at.
        unsafe { AtomicU16::from_ptr(self.checked(offset, 2, 2).cast()) }
    }

    pub(super) fn u32_at(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: as for u8_at.
        unsafe { AtomicU32::from_ptr(self.checked(offset, 4, 4).cast()) }
    }

    pub(super) fn u64_at(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: as for u8_at.
        unsafe { AtomicU64::from_ptr(self.checked(offset, 8, 8).cast()) }
    }

    /// A pointer to `len` bytes of the mapping.
    fn checked(&self, offset: usize, len: usize, align: usize) -> *mut u8 {
        assert!(
            offset.is_multiple_of(align) && len <= self.len() && offset <= self.len() - len,
            "{len} bytes at {offset} of {}",
            self.len()
        );
        // SAFETY: within the mapping, as just checked.
        unsafe { self.base.as_ptr().add(offset) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(backing: Backing, regions: Regions, seams: &[usize]) -> GuestMemory {
        let mut memory = GuestMemory::new(backing, GUEST_BASE, 10 * PAGE_BYTES).unwrap();
        memory.cut(regions, seams);
        memory
    }

    #[test]
    fn addresses_go_both_ways() {
        let seams = [0, 3 * PAGE_BYTES, 8 * PAGE_BYTES];
        for regions in [Regions::One, Regions::Adjoining(3), Regions::Apart(3)] {
            let memory = memory(Backing::Memfd, regions, &seams);
            for offset in (0..memory.len()).step_by(1000) {
                assert_eq!(memory.offset_of(memory.guest_address(offset)), Some(offset));
            }
            assert_eq!(memory.offset_of(GUEST_BASE - 1), None);
            let total: u64 = memory.regions().iter().map(|region| region.len).sum();
            assert_eq!(total, memory.len() as u64);
        }
    }

    #[test]
    fn regions_apart_end_at_seams() {
        let memory = memory(Backing::Anonymous, Regions::Apart(3), &[0, 3 * PAGE_BYTES]);
        let lens: Vec<_> = memory.regions().iter().map(|region| region.len).collect();
        assert_eq!(lens, [3 * 4096, 7 * 4096]);
        let second = GUEST_BASE + 3 * 4096 + HOLE_BYTES;
        assert_eq!(memory.regions()[1].guest_address, second);
        assert_eq!(memory.offset_of(second - 1), None);
        assert!(memory.file().is_none());
    }

    #[test]
    fn a_digest_sees_one_bit() {
        let memory = memory(Backing::Memfd, Regions::One, &[]);
        let before = memory.digest();
        memory.write(33_333, &[1]);
        assert_ne!(memory.digest(), before);
        let mut byte = [9];
        memory.read(33_333, &mut byte);
        assert_eq!(byte, [1]);
        let below = memory.digest_of(0, 32_768);
        memory.write(33_333, &[0]);
        assert_eq!((memory.digest(), memory.digest_of(0, 32_768)), (before, below));
    }

    #[test]
    #[should_panic(expected = "bytes at")]
    fn beyond_the_end_is_our_own_mistake() {
        memory(Backing::Anonymous, Regions::One, &[]).write(10 * PAGE_BYTES - 1, &[0, 0]);
    }
}
