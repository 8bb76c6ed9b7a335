//! The file behind memory that a front end hands over.
//!
//! A page fault in another process's file is answered by its file system. Those of the kernel's own
//! memory (memfd, tmpfs, hugetlbfs) and device-dax answer at once. Any other can take as long as it
//! likes: FUSE is a program of the attacker's, a network file system is as far away as its server.
//! A sidecore that waits for it serves no guest, and its process cannot be killed. So only the
//! first ones are taken, unless the operator says otherwise.
//!
//! A question to a file system about its kind may wait just as well (fstat and fstatfs are requests
//! to a FUSE server), so it is not asked before it is known. `F_GET_SEALS` is answered without it:
//! the kernel compares the file's operations, and knows seals only of memfd, tmpfs and hugetlbfs.
//! The type of any other file comes from a call that takes the kernel's present knowledge of it.

use std::os::fd::BorrowedFd;

use rustix::fs::{
    AtFlags, FileType, SealFlags, StatxFlags, fcntl_get_seals, fstat, fstatfs, statx,
};
use rustix::io::Errno;

use crate::mapping::MapError;

/// The smallest page; mappings begin at multiples of it.
const PAGE_BYTES: u64 = 4096;

/// The largest huge page that Linux has on x86.
const HUGE_PAGE_BYTES_MAX: u64 = 1 << 30;

/// The alignment of device-dax's mappings, unless the device was made with another alignment.
const DAX_PAGE_BYTES: u64 = 2 << 20;

/// The type that `statfs` reports for hugetlbfs, and for memory files with huge pages
/// (HUGETLBFS_MAGIC).
const HUGETLBFS: u64 = 0x958458f6;

/// Which files guests' memory may be in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GuestFiles {
    /// Memory files, tmpfs, hugetlbfs and device-dax.
    #[default]
    Memory,
    /// Any: the operator knows that no front end has a file system that can stall.
    Any,
}

/// A file that can be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Backing {
    /// Its length; none for a device, which says by a fault where it ends.
    pub(crate) bytes: Option<u64>,
    /// The alignment that a mapping of it must have, in bytes.
    pub(crate) page_bytes: u64,
    /// Sealed against shrinking.
    pub(crate) is_sealed: bool,
}

impl Backing {
    /// Looks at a file, which is one that guests' memory may be in, or else refused.
    pub(crate) fn of(fd: BorrowedFd<'_>, files: GuestFiles) -> Result<Self, MapError> {
        if let Ok(seals) = fcntl_get_seals(fd) {
            let is_sealed = seals.contains(SealFlags::SHRINK);
            return Self::of_regular(fd, huge_page_bytes(fd)?, is_sealed);
        }
        match file_type(fd)? {
            (FileType::CharacterDevice, device) if is_dax(device) => {
                Ok(Self { bytes: None, page_bytes: DAX_PAGE_BYTES, is_sealed: false })
            }
            (FileType::RegularFile, _) if files == GuestFiles::Any => {
                Self::of_regular(fd, PAGE_BYTES, false)
            }
            (FileType::RegularFile, _) => Err(MapError::FileSystem),
            _ => Err(MapError::NotAFile),
        }
    }

    fn of_regular(fd: BorrowedFd<'_>, page_bytes: u64, is_sealed: bool) -> Result<Self, MapError> {
        let stat = fstat(fd).map_err(|errno| MapError::System { what: "fstat", errno })?;
        let bytes = Some(u64::try_from(stat.st_size).unwrap_or(0));
        Ok(Self { bytes, page_bytes, is_sealed })
    }
}

/// The page size of a memory file. On hugetlbfs the block size is the huge page's. The block size
/// of other file systems has nothing to do with pages.
fn huge_page_bytes(fd: BorrowedFd<'_>) -> Result<u64, MapError> {
    let stat = fstatfs(fd).map_err(|errno| MapError::System { what: "fstatfs", errno })?;
    if stat.f_type.cast_unsigned() != HUGETLBFS {
        return Ok(PAGE_BYTES);
    }
    let bytes = stat.f_bsize.cast_unsigned();
    let usable = bytes.is_power_of_two() && (PAGE_BYTES..=HUGE_PAGE_BYTES_MAX).contains(&bytes);
    Ok(if usable { bytes } else { PAGE_BYTES })
}

/// The file's type as far as the kernel knows it already, and the number of the device.
fn file_type(fd: BorrowedFd<'_>) -> Result<(FileType, (u32, u32)), MapError> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let wanted = StatxFlags::TYPE;
    let refused = |errno: Errno| MapError::System { what: "statx", errno };
    let stat = statx(fd, c"", flags, wanted).map_err(refused)?;
    let device = (stat.stx_rdev_major, stat.stx_rdev_minor);
    Ok((FileType::from_raw_mode(stat.stx_mode.into()), device))
}

/// Whether a character device is persistent or other memory that processes map.
fn is_dax((major, minor): (u32, u32)) -> bool {
    let link = format!("/sys/dev/char/{major}:{minor}/subsystem");
    std::fs::read_link(link).is_ok_and(|subsystem| subsystem.ends_with("dax"))
}
