//! A volume in the process's memory. Fast, sparse until written, and gone with the process, unless
//! another one goes on with it: its incarnation is new for each volume that is made, and it says
//! that nothing survives one.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use rustix::rand::{GetRandomFlags, getrandom};
use sidecore::Progress;

use super::kind::{
    BackendNeeds, BackendVolume, FileAt, HandedBlocks, Opening, VolumeBackend, volume_bytes,
};
use crate::copy::{self, Prefetch};
use crate::settings::{SettingKey, Settings};
use crate::size::Size;
use crate::volume::{
    Channel, Durability, Incarnation, Io, IoId, IoTable, Op, OpenArguments, OpenError, Status,
    Topology, Volume, VolumeInfo, Zeroing,
};

/// How many lines are asked for when the first request of a burst is submitted: a processor has
/// about so many under way at a time, and waits when it is asked for more. Those of the others
/// are asked for while the one before is copied.
const LINES_AT_ONCE: usize = 16;

/// The most bytes of a request that are asked for one by one. Of a longer one the processor has
/// seen where it goes, and the first-level cache would not hold it.
const AHEAD_BYTES_MAX: u32 = 16 << 10;

/// The unit that is given back to the system. Where the system's pages are larger, it refuses.
const PAGE_BYTES: usize = 4096;

/// A huge page of x86-64, and a start at which the system can make one of any part of a mapping.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// The volume's blocks, shared by its channels on all sidecores. Only ever touched by raw copies:
/// two guests' requests that overlap give either's bytes, as on any disk.
struct Blocks {
    base: NonNull<u8>,
    len: usize,
    /// The mapped memory file: a successor's process maps it, too.
    file: OwnedFd,
}

// SAFETY: the mapping is plain memory of the process and lives as long as this value; no reference
// to it is ever made, only raw copies.
unsafe impl Send for Blocks {}
// SAFETY: as above.
unsafe impl Sync for Blocks {}

impl Blocks {
    fn new(len: usize) -> io::Result<Self> {
        let file = memfd_create("vrio-volume", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, len as u64)?;
        Self::of(file, len)
    }

    fn of(file: OwnedFd, len: usize) -> io::Result<Self> {
        if len == 0 {
            return Ok(Self { base: NonNull::dangling(), len, file });
        }
        let base = place(len)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // Not reserved: a page costs memory when it is first written.
        let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: over a mapping that was made for it, of the same length, and that no other code
        // knows; from here on the value unmaps it. A wish that is not granted changes nothing.
        unsafe {
            let blocks = Self { base, len, file };
            mmap(base.as_ptr().cast(), len, protection, flags, &blocks.file, 0)?;
            let _ = madvise(base.as_ptr().cast(), len, Advice::LinuxHugepage);
            Ok(blocks)
        }
    }

    /// The address of byte `offset`, of which `len` bytes are going to be touched.
    fn at(&self, offset: u64, len: u64) -> *mut u8 {
        let end = offset.checked_add(len).expect("checked by the volume");
        assert!(end <= self.len as u64, "checked by the volume");
        // SAFETY: inside the mapping, checked just now.
        unsafe { self.base.as_ptr().add(offset as usize) }
    }
}

impl Blocks {
    /// Zeroes a range. Whole pages go back to the system, and read as zeroes from then on: none of
    /// them was ever reserved.
    fn zero(&self, offset: u64, len: u64) {
        let start = self.at(offset, len);
        let (first, end) = (start.addr(), start.addr() + len as usize);
        let (from, to) = (first.next_multiple_of(PAGE_BYTES), end - end % PAGE_BYTES);
        let forget = |from: usize, to: usize| {
            let pages = start.wrapping_add(from - first).cast();
            // SAFETY: whole pages of our own mapping, to which no reference exists. They read as
            // zeroes from now on.
            unsafe { madvise(pages, to - from, Advice::LinuxRemove) }
        };
        if from < to && forget(from, to).is_ok() {
            self.fill(offset, from - first);
            self.fill(offset + (to - first) as u64, end - to);
        } else {
            self.fill(offset, len as usize);
        }
    }

    /// The blocks of a request, for prefetching; a hint, valid for any offset.
    fn ahead(&self, io: &Io) -> Prefetch {
        if !io.op.moves_data() {
            return Prefetch::NONE;
        }
        let at = self.base.as_ptr().wrapping_add(io.offset_bytes as usize);
        Prefetch::of(at, io.len_bytes.min(AHEAD_BYTES_MAX) as usize, io.op.changes())
    }

    /// Writes zeroes.
    fn fill(&self, offset: u64, len: usize) {
        // SAFETY: inside the mapping, which `at` checks; no reference to it exists.
        unsafe { std::ptr::write_bytes(self.at(offset, len as u64), 0, len) };
    }
}

/// Address space for `len` bytes, which nothing can touch yet. From a huge page on it starts at the
/// address of one, for a random page costs a walk through tables that no cache has, and of huge
/// ones there are 512 times fewer.
fn place(len: usize) -> io::Result<NonNull<u8>> {
    let spare = if len < HUGE_PAGE_BYTES { 0 } else { HUGE_PAGE_BYTES };
    let len = len.checked_next_multiple_of(PAGE_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
    let whole = len.checked_add(spare).ok_or(io::ErrorKind::OutOfMemory)?;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let mapped = unsafe { mmap_anonymous(std::ptr::null_mut(), whole, ProtFlags::empty(), flags)? };
    let mapped = mapped.cast::<u8>();
    let before = if spare == 0 { 0 } else { mapped.align_offset(HUGE_PAGE_BYTES) };
    let start = mapped.wrapping_add(before);
    // SAFETY: whole pages of the mapping just made, before and after what is kept of it.
    unsafe {
        if before > 0 {
            munmap(mapped.cast(), before)?;
        }
        if spare > before {
            munmap(start.wrapping_add(len).cast(), spare - before)?;
        }
    }
    Ok(NonNull::new(start).expect("a mapping is never at zero"))
}

impl Drop for Blocks {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: our own mapping, whose address no other code has.
            let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
            debug_assert!(unmapped.is_ok());
        }
    }
}

impl fmt::Debug for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blocks({} bytes)", self.len)
    }
}

/// A volume in memory.
#[derive(Clone, Debug)]
pub struct MemoryVolume {
    info: VolumeInfo,
    blocks: Arc<Blocks>,
}

impl MemoryVolume {
    /// A volume of `size_bytes`, a multiple of 512, all zeroes, with a random incarnation.
    ///
    /// # Errors
    /// When the system has no address space for it, or no random numbers.
    ///
    /// # Panics
    /// When the size is not a multiple of 512.
    pub fn new(size_bytes: u64) -> io::Result<Self> {
        let mut incarnation = Incarnation::default();
        getrandom(&mut incarnation.0, GetRandomFlags::empty())?;
        Self::with_incarnation(size_bytes, incarnation)
    }

    /// The same with an incarnation that the caller chooses: for simulations.
    ///
    /// # Errors
    /// When the system has no address space for it.
    ///
    /// # Panics
    /// When the size is not a multiple of 512.
    pub fn with_incarnation(size_bytes: u64, incarnation: Incarnation) -> io::Result<Self> {
        let len = usize::try_from(size_bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        Ok(Self::of(Blocks::new(len)?, size_bytes, incarnation))
    }

    /// The volume of another process that has stopped using it: the same blocks in the file that
    /// [`Self::file`] gave there, under the same incarnation.
    ///
    /// # Errors
    /// When the file has another size, or there is no address space for it.
    ///
    /// # Panics
    /// When the size is not a multiple of 512.
    pub fn adopt(size_bytes: u64, incarnation: Incarnation, file: OwnedFd) -> io::Result<Self> {
        let len = usize::try_from(size_bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        if u64::try_from(fstat(&file)?.st_size) != Ok(size_bytes) {
            return Err(io::Error::other("the memory that was handed over has another size"));
        }
        Ok(Self::of(Blocks::of(file, len)?, size_bytes, incarnation))
    }

    /// The memory file that holds the blocks.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.blocks.file.as_fd()
    }

    fn of(blocks: Blocks, size_bytes: u64, incarnation: Incarnation) -> Self {
        let info = VolumeInfo {
            size_bytes,
            block_bytes: 512,
            read_only: false,
            durability: Durability::Flush,
            volatile: true,
            incarnation,
            zeroing: Zeroing { unit_bytes: PAGE_BYTES as u32, ..Zeroing::ALL },
            topology: Topology::default(),
        };
        assert!(size_bytes.is_multiple_of(u64::from(info.block_bytes)), "whole sectors");
        Self { info, blocks: Arc::new(blocks) }
    }

    /// The same blocks, refusing writes.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.info.read_only = true;
        self.info.zeroing = Zeroing::default();
        self
    }

    /// The same blocks, promising durability in another way. In memory each write is as durable as
    /// it will ever be, so both are true.
    #[must_use]
    pub fn with_durability(mut self, durability: Durability) -> Self {
        self.info.durability = durability;
        self
    }
}

impl Volume for MemoryVolume {
    fn info(&self) -> VolumeInfo {
        self.info.clone()
    }

    fn size(&self) -> Size {
        Size::new(self.info.size_bytes)
    }

    fn open(&self, open: &OpenArguments<'_>) -> Result<Box<dyn Channel>, OpenError> {
        Ok(Box::new(MemoryChannel {
            info: self.info.clone(),
            blocks: Arc::clone(&self.blocks),
            ready: Vec::with_capacity(usize::from(open.depth)),
        }))
    }
}

#[derive(Debug)]
struct MemoryChannel {
    info: VolumeInfo,
    blocks: Arc<Blocks>,
    ready: Vec<IoId>,
}

impl MemoryChannel {
    /// Does a request while the blocks of another one come.
    fn execute(&self, io: &Io, ahead: Prefetch) -> Status {
        if !self.info.admits(io) {
            return Status::Invalid;
        }
        if io.op == Op::Flush {
            return Status::Done;
        }
        if io.op.zeroes() {
            self.blocks.zero(io.offset_bytes, u64::from(io.len_bytes));
            return Status::Done;
        }
        let blocks = self.blocks.at(io.offset_bytes, copy::total_bytes(&io.segments));
        if io.op == Op::Read {
            // SAFETY: the user keeps the segments mapped until the completion; the blocks have
            // their total, and are a mapping of their own.
            unsafe { copy::scatter(blocks, &io.segments, ahead) };
        } else {
            // SAFETY: as above.
            unsafe { copy::gather(&io.segments, blocks, ahead) };
        }
        Status::Done
    }
}

impl Channel for MemoryChannel {
    /// Only has the first lines of a burst's blocks come: they are nearly always in no cache.
    fn submit(&mut self, ios: &mut IoTable, id: IoId) {
        if self.ready.is_empty() {
            self.blocks.ahead(&ios[id]).ask_for(LINES_AT_ONCE);
        }
        self.ready.push(id);
    }

    fn poll(&mut self, ios: &mut IoTable, _now_ns: u64, done: &mut Vec<IoId>) -> Progress {
        if let [only] = self.ready[..] {
            self.blocks.ahead(&ios[only]).ask_for(usize::MAX);
        }
        for (at, id) in self.ready.iter().enumerate() {
            let ahead =
                self.ready.get(at + 1).map_or(Prefetch::NONE, |id| self.blocks.ahead(&ios[*id]));
            ios[*id].status = self.execute(&ios[*id], ahead);
        }
        let progress = Progress::busy_if(!self.ready.is_empty());
        done.append(&mut self.ready);
        progress
    }

    fn arm(&mut self, _wake: &mut sidecore::Wake) -> Progress {
        Progress::busy_if(!self.ready.is_empty())
    }

    fn disarm(&mut self) {}

    fn is_open(&self) -> bool {
        true
    }

    /// The next poll ends all of it.
    fn recall(&mut self, _ios: &mut IoTable, _back: &mut Vec<IoId>) {}

    fn abandon(&mut self, _ios: &mut IoTable, _now_ns: u64) -> bool {
        self.ready.clear();
        true
    }
}

/// `memory = "1GiB"`: memory of this process; gone with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryBackend {
    /// Its size.
    pub size_bytes: u64,
}

impl VolumeBackend for MemoryBackend {
    const NAME: &'static str = "memory";
    const EXAMPLE: &'static str = "memory = \"1GiB\"";
    const KEYS: &'static [SettingKey] = &[SettingKey::new(
        "memory",
        "A size: the volume is in the node's memory, and its content ends with the process. See \
         [memory volumes](#memory-volumes).",
    )];
    const NEEDS: BackendNeeds = BackendNeeds {
        uring: false,
        calls: &[libc::SYS_memfd_create, libc::SYS_ftruncate, libc::SYS_madvise],
    };

    fn read(settings: &dyn Settings, _: FileAt<'_>) -> Option<Self> {
        Some(Self { size_bytes: volume_bytes(settings, "memory")? })
    }

    fn open(
        &self,
        opening: &Opening<'_>,
        handed: Option<HandedBlocks>,
    ) -> Result<Box<dyn BackendVolume>, String> {
        let volume = match handed.filter(|blocks| blocks.volatile) {
            Some(blocks) => {
                MemoryVolume::adopt(self.size_bytes, blocks.incarnation, blocks.descriptor)
            }
            None => MemoryVolume::new(self.size_bytes),
        };
        let volume =
            volume.map_err(|error| format!("no memory for it: {error}; choose a smaller size"))?;
        let volume = volume.with_durability(opening.durability);
        Ok(Box::new(if opening.read_only { volume.read_only() } else { volume }))
    }
}

impl BackendVolume for MemoryVolume {
    fn describe(&self) -> String {
        "memory".to_owned()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::{self, ChannelBench};

    fn volume() -> MemoryVolume {
        MemoryVolume::new(1 << 20).expect("a megabyte is there")
    }

    #[test]
    fn keeps_the_contract() {
        contract::check_all(&volume());
        contract::check_all(&volume().with_durability(Durability::WriteThrough));
    }

    #[test]
    fn channels_share_the_blocks() {
        let volume = volume();
        let (mut one, mut two) = (ChannelBench::new(&volume, 4), ChannelBench::new(&volume, 4));
        assert_eq!(one.write(512, &[3; 1024]), Status::Done);
        assert_eq!(two.read(1024, 512), Ok(vec![3; 512]));
    }

    #[test]
    fn another_process_goes_on_with_the_blocks() {
        let volume = volume();
        let mut bench = ChannelBench::new(&volume, 4);
        assert_eq!(bench.write(512, &[3; 8192]), Status::Done);
        let (incarnation, file) = (volume.info().incarnation, volume.file());
        let copy = || file.try_clone_to_owned().expect("a descriptor");
        let again = MemoryVolume::adopt(1 << 20, incarnation, copy()).expect("the same file");
        assert!(MemoryVolume::adopt(1 << 21, incarnation, copy()).is_err());
        drop((bench, volume.clone()));
        assert_eq!(ChannelBench::new(&again, 4).read(512, 8192), Ok(vec![3; 8192]));
        assert_eq!(again.info(), volume.info());
    }

    #[test]
    fn a_read_only_one_refuses_writes() {
        let volume = volume();
        ChannelBench::new(&volume, 4).write(0, &[3; 512]);
        let mut bench = ChannelBench::new(&volume.read_only(), 4);
        assert_eq!(bench.write(0, &[4; 512]), Status::Invalid);
        assert_eq!(bench.read(0, 512), Ok(vec![3; 512]));
    }

    #[test]
    fn each_has_an_incarnation_of_its_own() {
        assert_ne!(volume().info().incarnation, volume().info().incarnation);
        assert!(volume().info().volatile);
    }

    #[test]
    fn a_large_one_starts_where_a_huge_page_can() {
        for len in [512, 4096, HUGE_PAGE_BYTES, 3 * HUGE_PAGE_BYTES + 512] {
            let blocks = Blocks::new(len).expect("some megabytes");
            let start = blocks.base.as_ptr().addr();
            assert!(len < HUGE_PAGE_BYTES || start.is_multiple_of(HUGE_PAGE_BYTES));
            blocks.fill(0, len);
            // SAFETY: inside the mapping; only this thread has its address.
            assert_eq!(unsafe { blocks.at(len as u64 - 1, 1).read() }, 0);
        }
    }

    #[test]
    fn an_impossible_size_is_an_error() {
        assert!(MemoryVolume::new(1 << 60).is_err());
    }
}
