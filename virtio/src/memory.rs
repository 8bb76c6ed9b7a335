//! The guest's memory as a front end hands it over: a table of mapped regions.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::budget::Account;
use crate::chain::Segment;
use crate::error::{MemoryError, RingError};
use crate::mapping::{MapError, Mapping};
use crate::shared::{Area, Pairs};
use crate::{MEMORY_BYTES_MAX, REGIONS_MAX, SEGMENTS_MAX};

/// Where a mapping begins in this process.
#[derive(Clone, Copy, Debug)]
struct HostAddr(NonNull<u8>);

// SAFETY: an address; the code that has the mapping says how it may be used.
unsafe impl Send for HostAddr {}
// SAFETY: as above.
unsafe impl Sync for HostAddr {}

/// One mapped region of guest memory.
#[derive(Debug)]
pub struct Region {
    guest_addr: u64,
    user_addr: u64,
    /// The mapping's first byte and length, at hand.
    start: HostAddr,
    len: usize,
    mapping: Arc<Mapping>,
    /// The mapped file and the offset of the region in it: for the successor of this process.
    file: Option<(OwnedFd, u64)>,
}

impl Region {
    /// Maps a region of this process's own file: `len` bytes of it from `offset` on are the guest's
    /// memory at `guest_addr`, and the front end has them at its own `user_addr`.
    ///
    /// # Errors
    /// When the addresses overflow, the region is too large or the file cannot be mapped.
    pub fn map(
        fd: BorrowedFd<'_>,
        offset: u64,
        guest_addr: u64,
        len: u64,
        user_addr: u64,
    ) -> Result<Self, MemoryError> {
        Self::of(fd, offset, (guest_addr, user_addr), len, None)
    }

    /// The same of a front end's file, on its account, or of a file of this process's own.
    pub(crate) fn of(
        fd: BorrowedFd<'_>,
        offset: u64,
        (guest_addr, user_addr): (u64, u64),
        len: u64,
        account: Option<&Arc<Account>>,
    ) -> Result<Self, MemoryError> {
        if guest_addr.checked_add(len).is_none() || user_addr.checked_add(len).is_none() {
            return Err(MemoryError::Overflow { guest_addr, len });
        }
        if len > MEMORY_BYTES_MAX {
            return Err(MemoryError::TooLarge { len });
        }
        let refuse = |source| MemoryError::Map { guest_addr, source };
        let mapping = Mapping::of(fd, offset, len, account).map_err(refuse)?;
        let file = rustix::io::fcntl_dupfd_cloexec(fd, 0)
            .map_err(|errno| refuse(MapError::System { what: "fcntl", errno }))?;
        Ok(Self::new(guest_addr, user_addr, Arc::new(mapping), Some((file, offset))))
    }

    /// A region of memory that is already mapped, at the same address in guest and front end.
    ///
    /// # Errors
    /// When the addresses overflow.
    pub fn from_mapping(guest_addr: u64, mapping: Arc<Mapping>) -> Result<Self, MemoryError> {
        let len = mapping.len() as u64;
        if guest_addr.checked_add(len).is_none() {
            return Err(MemoryError::Overflow { guest_addr, len });
        }
        Ok(Self::new(guest_addr, guest_addr, mapping, None))
    }

    fn new(
        guest_addr: u64,
        user_addr: u64,
        mapping: Arc<Mapping>,
        file: Option<(OwnedFd, u64)>,
    ) -> Self {
        let (start, len) = (HostAddr(mapping.start()), mapping.len());
        Self { guest_addr, user_addr, start, len, mapping, file }
    }

    /// Where it begins in the guest.
    pub fn guest_addr(&self) -> u64 {
        self.guest_addr
    }

    /// Where it begins in the front end.
    pub fn user_addr(&self) -> u64 {
        self.user_addr
    }

    /// Its length in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.mapping.len() as u64
    }

    /// A descriptor of the file behind it, and where the region begins there, in bytes.
    pub(crate) fn file(&self) -> io::Result<(OwnedFd, u64)> {
        let (file, offset) = self.file.as_ref().ok_or(io::ErrorKind::NotFound)?;
        Ok((file.try_clone()?, *offset))
    }

    /// The mapping behind it.
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// How far `addr` is into the region, if it is in it.
    #[inline]
    fn offset_of(&self, addr: u64) -> Option<usize> {
        let offset = addr.checked_sub(self.guest_addr)?;
        let offset = usize::try_from(offset).ok()?;
        (offset < self.len).then_some(offset)
    }

    /// This process's address of a byte of it.
    fn host_addr(&self, offset: usize) -> *mut u8 {
        self.start.0.as_ptr().wrapping_add(offset)
    }
}

/// Where a region is, by value. Valid as long as the region is mapped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RegionRange {
    guest_addr: u64,
    len_bytes: u64,
    start: *mut u8,
}

impl RegionRange {
    /// The guest's `len` bytes at `addr`, if all of them are in it.
    #[inline(always)]
    pub(crate) fn find(&self, addr: u64, len: u32) -> Option<Segment> {
        let offset = addr.wrapping_sub(self.guest_addr);
        // No region is so long that this overflows.
        let within = offset < self.len_bytes && offset + u64::from(len) <= self.len_bytes;
        within.then(|| Segment { addr: self.start.wrapping_add(offset as usize), len })
    }
}

/// A table of regions. It never changes: a front end that adds or removes a region gets a new
/// table, which shares the regions that stay. Shared by `Arc`. A region is unmapped when the last
/// table that has it goes, so the holder of a table's segments must keep the table.
#[derive(Debug, Default)]
pub struct Memory {
    /// Sorted by guest address, without overlaps.
    regions: Vec<Arc<Region>>,
}

impl Memory {
    /// A table of these regions.
    ///
    /// # Errors
    /// When there are too many, too much memory, or two of them overlap.
    pub fn new(mut regions: Vec<Arc<Region>>) -> Result<Self, MemoryError> {
        if regions.len() > REGIONS_MAX {
            return Err(MemoryError::TooManyRegions);
        }
        regions.sort_by_key(|region| region.guest_addr);
        for pair in regions.windows(2) {
            // The end cannot overflow: that was checked when the region was mapped.
            if pair[0].guest_addr + pair[0].len_bytes() > pair[1].guest_addr {
                let (guest_addr, other) = (pair[1].guest_addr, pair[0].guest_addr);
                return Err(MemoryError::Overlap { guest_addr, other });
            }
        }
        let len = regions.iter().fold(0u64, |sum, region| sum.saturating_add(region.len_bytes()));
        if len > MEMORY_BYTES_MAX {
            return Err(MemoryError::TooLarge { len });
        }
        Ok(Self { regions })
    }

    /// This table and one region more.
    ///
    /// # Errors
    /// As for [`Memory::new`].
    pub fn with(&self, region: Arc<Region>) -> Result<Self, MemoryError> {
        let mut regions = self.regions.clone();
        regions.push(region);
        Self::new(regions)
    }

    /// This table without the region that has exactly these addresses.
    ///
    /// # Errors
    /// When there is none.
    pub fn without(&self, guest_addr: u64, len: u64, user_addr: u64) -> Result<Self, MemoryError> {
        let same = |region: &Arc<Region>| {
            region.guest_addr == guest_addr
                && region.len_bytes() == len
                && region.user_addr == user_addr
        };
        let at = self.regions.iter().position(same);
        let at = at.ok_or(MemoryError::NoRegion { guest_addr, len })?;
        let mut regions = self.regions.clone();
        regions.remove(at);
        Ok(Self { regions })
    }

    /// The regions, sorted by guest address.
    pub fn regions(&self) -> &[Arc<Region>] {
        &self.regions
    }

    /// The byte of a region's file from which on pages were not to be had.
    pub fn lost_from(&self) -> Option<u64> {
        self.regions.iter().find_map(|region| region.mapping.lost_from())
    }

    /// Appends the pieces of this process's memory that are the guest's `len` bytes at `addr`. A
    /// range may span regions that adjoin.
    ///
    /// # Errors
    /// When a byte of it is not mapped or `segments` has [`SEGMENTS_MAX`] pieces; some pieces may
    /// have been appended.
    pub fn translate(
        &self,
        addr: u64,
        len: u32,
        segments: &mut Vec<Segment>,
    ) -> Result<(), MemoryError> {
        self.translate_from(&mut 0, addr, len, segments)
    }

    /// [`Memory::translate`] that begins its search where the last one ended: `hint` is the index
    /// of a region, any number will do.
    #[cold]
    pub(crate) fn translate_from(
        &self,
        hint: &mut usize,
        addr: u64,
        len: u32,
        segments: &mut Vec<Segment>,
    ) -> Result<(), MemoryError> {
        let unmapped = MemoryError::Unmapped { addr, len: u64::from(len) };
        let (mut addr, mut left) = (addr, len as usize);
        // Each turn uses up a region, of which there are at most REGIONS_MAX.
        while left > 0 {
            let (region, offset) = self.find(hint, addr).ok_or(unmapped)?;
            if segments.len() >= SEGMENTS_MAX {
                return Err(MemoryError::TooManySegments);
            }
            let part = left.min(region.len - offset);
            let start = region.host_addr(offset);
            // `part` is at most `left`, which came from 32 bits.
            segments.push(Segment { addr: start, len: part as u32 });
            left -= part;
            addr = addr.checked_add(part as u64).ok_or(unmapped)?;
        }
        Ok(())
    }

    fn find(&self, hint: &mut usize, addr: u64) -> Option<(&Region, usize)> {
        if let Some(region) = self.regions.get(*hint)
            && let Some(offset) = region.offset_of(addr)
        {
            return Some((region, offset));
        }
        let after = self.regions.partition_point(|region| region.guest_addr <= addr);
        let at = after.checked_sub(1)?;
        let region = &self.regions[at];
        let offset = region.offset_of(addr)?;
        *hint = at;
        Some((region, offset))
    }

    /// The guest address of what the front end has at `user_addr`, if it is guest memory.
    pub fn guest_addr_of(&self, user_addr: u64) -> Option<u64> {
        self.regions.iter().find_map(|region| {
            let offset = user_addr.checked_sub(region.user_addr)?;
            (offset < region.len_bytes()).then(|| region.guest_addr + offset)
        })
    }

    /// The guest address of what this process has at `host`, if it is guest memory, and how many
    /// bytes of its region there are from there on.
    pub(crate) fn guest_addr_of_host(&self, host: *const u8) -> Option<(u64, u64)> {
        self.regions.iter().find_map(|region| {
            let start = region.mapping.start().addr().get();
            let offset = host.addr().checked_sub(start)? as u64;
            let left = region.len_bytes().checked_sub(offset).filter(|left| *left > 0)?;
            Some((region.guest_addr + offset, left))
        })
    }

    /// The table of descriptors that is the guest's `len` bytes at `addr`, which must lie in one
    /// region.
    pub(crate) fn pairs(&self, hint: &mut usize, addr: u64, len: usize) -> Option<Pairs<'_>> {
        let (region, offset) = self.find(hint, addr)?;
        Pairs::new(&region.mapping, offset, len)
    }

    /// Where this process has the guest's byte at `addr`.
    pub(crate) fn host_addr(&self, hint: &mut usize, addr: u64) -> Option<*const u8> {
        let (region, offset) = self.find(hint, addr)?;
        Some(region.host_addr(offset))
    }

    /// The guest's `len` bytes at `addr`, if all of them are in the region of the last search, as
    /// they nearly always are.
    #[inline(always)]
    pub(crate) fn near(&self, hint: usize, addr: u64, len: u32) -> Option<Segment> {
        self.range(hint)?.find(addr, len)
    }

    /// The region of the last search, for many of them.
    #[inline(always)]
    pub(crate) fn range(&self, hint: usize) -> Option<RegionRange> {
        let region = self.regions.get(hint)?;
        let start = region.host_addr(0);
        Some(RegionRange { guest_addr: region.guest_addr, len_bytes: region.len as u64, start })
    }

    /// A view of the guest's `len` bytes at `addr`, which must lie in one region.
    pub(crate) fn area(&self, addr: u64, len: usize) -> Option<Area> {
        let (region, offset) = self.find(&mut 0, addr)?;
        Area::new(&region.mapping, offset, len).map(|area| area.logged_at(addr))
    }

    /// A view of a ring's part, which must lie in one region and be aligned.
    pub(crate) fn ring_part(
        &self,
        part: &'static str,
        addr: u64,
        len: usize,
        align: usize,
    ) -> Result<Area, RingError> {
        let area = self.area(addr, len).ok_or(RingError::Unmapped { part, addr })?;
        let fine = area.is_aligned_to(align);
        if fine { Ok(area) } else { Err(RingError::Misaligned { part, addr }) }
    }
}
