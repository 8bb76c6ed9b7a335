//! Memory that a device shares with us, and the registers of a device: the one place in the agent
//! that needs unsafe code.
#![allow(unsafe_code)]

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::ptr;

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};

/// One huge page: memory whose physical addresses are in a row.
pub(super) const PAGE_BYTES: usize = 2 << 20;

/// A mapped range that others read and write at the same time. It lives as long as the process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    start: *mut u8,
    len: usize,
}

macro_rules! readers {
    ($($read:ident $type:ty),*) => { $(
        /// Reads the little-endian number at `at`.
        pub(super) fn $read(&self, at: usize) -> $type {
            let place = self.place(at, size_of::<$type>()).cast::<$type>();
            // SAFETY: the place lies in the mapping, which is never unmapped, and is aligned; any
            // bytes are a number. Volatile, since it is a register or others write it too.
            unsafe { ptr::read_volatile(place) }
        }
    )* };
}

macro_rules! writers {
    ($($write:ident $type:ty),*) => { $(
        /// Writes the number at `at`.
        pub(super) fn $write(&self, at: usize, value: $type) {
            let place = self.place(at, size_of::<$type>()).cast::<$type>();
            // SAFETY: as for reading.
            unsafe { ptr::write_volatile(place, value) }
        }
    )* };
}

impl Window {
    /// Maps the device's registers from its `resource` file.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(super) fn registers(resource: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(resource)?;
        let len = usize::try_from(file.metadata()?.len()).expect("a 64-bit machine");
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice harms nothing that is there.
        let start = unsafe { mmap(ptr::null_mut(), len, prot, flags, &file, 0)? };
        Ok(Self { start: start.cast(), len })
    }

    /// A huge page of our own, and its physical address.
    ///
    /// # Errors
    /// When there is none, or its address is not told.
    pub(super) fn memory() -> io::Result<(Self, u64)> {
        fs::write("/proc/sys/vm/nr_hugepages", "2")?;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::POPULATE;
        // SAFETY: as above.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), PAGE_BYTES, prot, flags)? };
        let window = Self { start: start.cast(), len: PAGE_BYTES };
        window.write_u64(0, 0);
        Ok((window, physical(start.addr())?))
    }

    /// A part of it.
    pub(super) fn part(&self, at: usize, len: usize) -> Self {
        Self { start: self.place(at, len), len }
    }

    fn place(&self, at: usize, len: usize) -> *mut u8 {
        let fits = at.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(fits && at.is_multiple_of(len.clamp(1, 8)), "{len} bytes at {at} of {}", self.len);
        self.start.wrapping_add(at)
    }

    readers!(read_u8 u8, read_u16 u16, read_u64 u64);
    writers!(write_u8 u8, write_u16 u16, write_u32 u32, write_u64 u64);
}

/// The physical address behind an address of this process; `pagemap` in proc(5).
fn physical(addr: usize) -> io::Result<u64> {
    const PAGE: u64 = 4096;
    let mut entry = [0; 8];
    File::open("/proc/self/pagemap")?.read_exact_at(&mut entry, addr as u64 / PAGE * 8)?;
    let frame = u64::from_le_bytes(entry) & ((1 << 55) - 1);
    if frame == 0 {
        return Err(io::Error::other("the kernel does not tell physical addresses"));
    }
    Ok(frame * PAGE)
}
