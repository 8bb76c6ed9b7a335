//! Opening a file volume: type, lock, size, alignment; and the errors that say what to do.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, SeekFrom, Stat, StatxFlags, fcntl_getfl, fcntl_setfl,
    fgetxattr, fstat, fstatfs, fsync, ftruncate, ioctl_blksszget, open as open_file, seek, stat,
    statx,
};
use rustix::io::Errno;

use super::bounce::Buffer;
use super::shared::{FileCounters, FileShared, Syncs};
use super::{format, locks, witness, zeroing};
use crate::size::Size;
use crate::volume::{Durability, PHYSICAL_BYTES_MAX, Topology, VolumeInfo, Zeroing};

/// Where the size is kept: the configured one, and the one that counts.
pub(super) const SIZE_ATTRIBUTE: &str = "user.vrio.size";

/// How long to wait for a predecessor's lock. A killed server's last requests were seen to land
/// within 100 ms; a slow disk may need seconds.
pub const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// The largest block that virtio-blk guests are known to take: a page.
const BLOCK_BYTES_MAX: u32 = 4096;

/// A file to open, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileOptions {
    /// The raw file or block device.
    pub path: PathBuf,
    /// The volume's size, unless it was resized while the configuration named the same size. The
    /// file is made (sparse) when it is missing or empty; `None` takes the file's own size.
    pub size_bytes: Option<u64>,
    /// Around the page cache.
    pub direct: bool,
    /// Refuse writes. Several servers may have a file open like this at once.
    pub read_only: bool,
    /// The failures that a completed write survives.
    pub durability: Durability,
    /// The storage's layout, for guests; 0 stands for a value that is found out.
    pub topology: Topology,
    /// How long to wait for a predecessor's lock.
    pub lock_timeout: Duration,
    /// Whether an image of another format is refused. A raw disk may begin like such an image: the
    /// operator says that it is raw, or guests have written it.
    pub refuse_formats: bool,
}

impl FileOptions {
    /// The file at `path` as it is: buffered, writable, durable by flush.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            size_bytes: None,
            direct: false,
            read_only: false,
            durability: Durability::Flush,
            topology: Topology::default(),
            lock_timeout: LOCK_TIMEOUT,
            refuse_formats: false,
        }
    }
}

/// Why a file cannot be a volume.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// There is no such file, and no size to make it with.
    #[error("{}: no such file; create it, or give the volume a size", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The file is there and has nothing in it, and there is no size to make it with.
    #[error("{}: the file is empty; give the volume a size", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The directory that the file should be made in is missing.
    #[error("{}: the directory does not exist; create it first", path.display())]
    NoDirectory {
        /// The file.
        path: PathBuf,
    },
    /// It is a directory.
    #[error("{}: is a directory; name a raw image file or a block device", path.display())]
    Directory {
        /// The file.
        path: PathBuf,
    },
    /// It is a socket, a pipe or a character device.
    #[error("{}: is neither a regular file nor a block device", path.display())]
    WrongType {
        /// The file.
        path: PathBuf,
    },
    /// The process may not write it.
    #[error("{}: not writable ({source}); change its permissions, or make the volume read-only",
            path.display())]
    NotWritable {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        r#source: io::Error,
    },
    /// The process may not read it.
    #[error("{}: not readable ({source}); change its permissions", path.display())]
    NotReadable {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        r#source: io::Error,
    },
    /// The file is shorter than the volume.
    #[error("{}: too small: {actual_bytes} bytes, but the volume needs {wanted_bytes}; extend it \
             with truncate(1), or correct the size", path.display())]
    TooSmall {
        /// The file.
        path: PathBuf,
        /// Its length.
        actual_bytes: u64,
        /// The size that was asked for.
        wanted_bytes: u64,
    },
    /// The size is not a whole number of blocks.
    #[error("{}: a size of {size_bytes} bytes is not a multiple of its blocks of {block_bytes}",
            path.display())]
    SizeNotWhole {
        /// The file.
        path: PathBuf,
        /// The size.
        size_bytes: u64,
        /// The block.
        block_bytes: u32,
    },
    /// Another process has locked it.
    #[error("{}: locked by {holder} for more than {} s; stop that server, or correct the path",
            path.display(), waited.as_secs_f32())]
    Locked {
        /// The file.
        path: PathBuf,
        /// The holder of the lock, as far as the system tells.
        holder: String,
        /// How long it was waited for.
        waited: Duration,
    },
    /// A mounted or exported device, which another user of it holds for itself.
    #[error("{}: in use by {holder} for more than {} s; unmount the device, stop that program, or \
             correct the path", path.display(), waited.as_secs_f32())]
    Held {
        /// The device.
        path: PathBuf,
        /// The user, as far as the system tells.
        holder: String,
        /// How long it was waited for.
        waited: Duration,
    },
    /// It is an image that has to be read by its format.
    #[error("{}: is a {format} image, and guests would see its header as data; convert it: \
             qemu-img convert -O raw {} {}.raw; if the file is a raw disk, give the backend format \
             = \"raw\"", path.display(), path.display(), path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The format.
        format: &'static str,
    },
    /// The file system cannot do direct I/O, or only in blocks that no guest takes.
    #[error("{}: its file system has no direct I/O in blocks of at most 4096 bytes; \
             set direct = false", path.display())]
    NoDirectIo {
        /// The file.
        path: PathBuf,
    },
    /// Anything else that the system refused.
    #[error("{}: cannot {what}: {source}", path.display())]
    System {
        /// The file.
        path: PathBuf,
        /// The step that failed.
        what: &'static str,
        /// The system's answer.
        r#source: io::Error,
    },
}

/// A file or device that is open and locked.
#[derive(Debug)]
pub(crate) struct LockedFile {
    /// The description that holds the lock.
    pub(crate) file: OwnedFd,
    /// Its type, its number and so on.
    pub(crate) stat: Stat,
    /// It is a block device, and no file.
    pub(crate) is_block_device: bool,
}

/// Opens and locks a file or a device, or locks the description that another process has locked:
/// locking that once more changes nothing.
pub(crate) fn lock(options: &FileOptions, file: Option<OwnedFd>) -> Result<LockedFile, FileError> {
    let path = &options.path;
    let system = |what| move |source: Errno| system_error(path, what, source);
    let file = file.map_or_else(|| open_description(options), Ok)?;
    let stat = fstat(&file).map_err(system("look at the file"))?;
    let is_block_device = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => false,
        FileType::BlockDevice => true,
        FileType::Directory => return Err(FileError::Directory { path: path.clone() }),
        _ => return Err(FileError::WrongType { path: path.clone() }),
    };
    // Opening must not wait for a pipe's other end; but io_uring takes the flag as a wish that
    // requests fail rather than wait.
    let flags = fcntl_getfl(&file).map_err(system("read its flags"))? - OFlags::NONBLOCK;
    fcntl_setfl(&file, flags).map_err(system("set its flags"))?;
    locks::take(&file, &stat, options)?;
    Ok(LockedFile { file, stat, is_block_device })
}

/// Opens and locks it, or goes on with what another process has locked.
pub(super) fn open(options: &FileOptions, file: Option<OwnedFd>) -> Result<FileShared, FileError> {
    let path = &options.path;
    let is_handed = file.is_some();
    let LockedFile { file, stat, is_block_device } = lock(options, file)?;
    if options.refuse_formats && !is_handed {
        format::refuse(&file, path)?;
    }
    fill_empty(&file, options)?;
    let (align_bytes, block_bytes) =
        if options.direct { direct_alignment(&file, path, is_block_device)? } else { (1, 512) };
    let size_bytes = size(&file, options, block_bytes)?;
    let topology = topology(&stat, is_block_device, block_bytes, options);
    let zeroing = if options.read_only {
        Zeroing::default()
    } else {
        zeroing::of(&file, &stat, is_block_device, topology.physical_bytes)
    };
    let witness = witness::of(&file, &stat, is_block_device).map_err(|source| {
        FileError::System { path: path.clone(), what: "read the host's boot id", source }
    })?;
    let info = VolumeInfo {
        size_bytes,
        block_bytes,
        read_only: options.read_only,
        durability: options.durability,
        volatile: false,
        incarnation: witness.plain,
        zeroing,
        topology,
    };
    Ok(FileShared {
        path: path.clone(),
        size: Size::new(info.size_bytes),
        info,
        is_block_device,
        resizing: Mutex::new(()),
        direct: options.direct,
        in_memory: is_in_memory(&file, is_block_device),
        align_bytes,
        failed: AtomicBool::new(false),
        witnessed: witness.seen,
        note: None,
        syncs: Syncs::default(),
        counters: FileCounters::default(),
        file,
        cannot_zero: AtomicBool::new(false),
        zeroes: OnceLock::new(),
        logged_ns: AtomicU64::new(0),
        unlogged: AtomicU64::new(0),
    })
}

/// The type of tmpfs in fstatfs(2): TMPFS_MAGIC.
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// Whether the file's bytes are in memory. The name of a device may be in tmpfs while its bytes are
/// not, so a device is never taken for memory.
fn is_in_memory(file: &OwnedFd, is_block_device: bool) -> bool {
    !is_block_device && fstatfs(file).is_ok_and(|stat| stat.f_type == TMPFS_MAGIC)
}

pub(super) fn system_error(path: &Path, what: &'static str, source: Errno) -> FileError {
    FileError::System { path: path.to_owned(), what, source: source.into() }
}

fn open_description(options: &FileOptions) -> Result<OwnedFd, FileError> {
    let path = &options.path;
    // A file is made only where there is none, so that this is about the file that is opened.
    let is_device =
        stat(path).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice);
    if is_device {
        return locks::open_device(options);
    }
    open_as(options, OFlags::empty()).map_err(|error| open_error(options, error))
}

/// Opens it, with some flags more.
pub(super) fn open_as(options: &FileOptions, more: OFlags) -> Result<OwnedFd, Errno> {
    let mut flags = OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    flags |= if options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
    let creates = options.size_bytes.is_some() && !options.read_only;
    flags.set(OFlags::CREATE, creates && !more.contains(OFlags::EXCL));
    flags.set(OFlags::DIRECT, options.direct);
    open_file(&options.path, flags | more, Mode::RUSR | Mode::WUSR)
}

/// The error that the system's answer to opening the file stands for.
pub(super) fn open_error(options: &FileOptions, error: Errno) -> FileError {
    let (path, source) = (options.path.clone(), error.into());
    let creates = options.size_bytes.is_some() && !options.read_only;
    match error {
        Errno::NOENT if creates => FileError::NoDirectory { path },
        Errno::NOENT => FileError::Missing { path },
        Errno::ISDIR => FileError::Directory { path },
        Errno::NXIO | Errno::NODEV => FileError::WrongType { path },
        Errno::INVAL if options.direct => FileError::NoDirectIo { path },
        Errno::ACCESS | Errno::PERM | Errno::ROFS if options.read_only => {
            FileError::NotReadable { path, source }
        }
        Errno::ACCESS | Errno::PERM | Errno::ROFS => FileError::NotWritable { path, source },
        _ => FileError::System { path, what: "open the file", source },
    }
}

/// Gives a file that was just made, or never had a size, the size that was asked for. The lock is
/// held, so that no other process does it at once. The size is durable before the first write.
fn fill_empty(file: &OwnedFd, options: &FileOptions) -> Result<(), FileError> {
    let path = &options.path;
    let system = |what| move |source: Errno| system_error(path, what, source);
    let Some(size_bytes) = options.size_bytes else { return Ok(()) };
    let is_empty = seek(file, SeekFrom::End(0)).map_err(system("find its size"))? == 0;
    if !is_empty || options.read_only {
        return Ok(());
    }
    ftruncate(file, size_bytes).map_err(system("extend the file"))?;
    fsync(file).map_err(system("sync the file"))?;
    sync_directory(path).map_err(system("sync its directory"))?;
    tracing::info!(file = %path.display(), size_bytes, "made the file");
    Ok(())
}

/// The volume's size, checked against the file's.
fn size(file: &OwnedFd, options: &FileOptions, block_bytes: u32) -> Result<u64, FileError> {
    let path = &options.path;
    let system = |what| move |source: Errno| system_error(path, what, source);
    let block = u64::from(block_bytes);
    // For block devices as well as for files.
    let actual_bytes = seek(file, SeekFrom::End(0)).map_err(system("find its size"))?;
    let Some(configured_bytes) = options.size_bytes else {
        if actual_bytes < block {
            return Err(FileError::Empty { path: path.clone() });
        }
        let odd_bytes = actual_bytes % block;
        if odd_bytes > 0 {
            tracing::warn!(
                file = %path.display(),
                odd_bytes,
                "the file is not a whole number of blocks; its last bytes are not in the volume"
            );
        }
        return Ok(actual_bytes - odd_bytes);
    };
    // A resize by command counts for as long as the configuration says what it said then.
    let wanted_bytes = remembered(file, configured_bytes).unwrap_or(configured_bytes);
    if !wanted_bytes.is_multiple_of(block) || wanted_bytes == 0 {
        let path = path.clone();
        return Err(FileError::SizeNotWhole { path, size_bytes: wanted_bytes, block_bytes });
    }
    if actual_bytes < wanted_bytes {
        return Err(FileError::TooSmall { path: path.clone(), actual_bytes, wanted_bytes });
    }
    Ok(wanted_bytes)
}

/// The layout of the storage: as the operator says, or else the unit of the file system or the
/// device. A file system's block may be larger than its unit of writing; a guest that believes it
/// loses nothing.
fn topology(
    stat: &Stat,
    is_block_device: bool,
    block_bytes: u32,
    options: &FileOptions,
) -> Topology {
    let sane = |bytes: u32| bytes.is_power_of_two() && bytes <= PHYSICAL_BYTES_MAX;
    let told = if is_block_device {
        zeroing::queue_value(stat, "physical_block_size").and_then(|it| u32::try_from(it).ok())
    } else {
        u32::try_from(stat.st_blksize).ok()
    };
    let physical_bytes = options.topology.physical_bytes;
    let physical_bytes =
        if physical_bytes == 0 { told.filter(|told| sane(*told)) } else { Some(physical_bytes) };
    Topology {
        physical_bytes: physical_bytes.unwrap_or(block_bytes).max(block_bytes),
        optimal_bytes: options.topology.optimal_bytes,
    }
}

/// Makes the name of a new file durable.
fn sync_directory(path: &Path) -> Result<(), Errno> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    fsync(open_file(parent, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// The demands of direct I/O on the file: the alignment of buffers, and the size of a block.
fn direct_alignment(
    file: &OwnedFd,
    path: &Path,
    is_block_device: bool,
) -> Result<(u32, u32), FileError> {
    let unable = || FileError::NoDirectIo { path: path.to_owned() };
    let told = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)
        .ok()
        .filter(|told| told.stx_mask & StatxFlags::DIOALIGN.bits() != 0);
    let (align_bytes, block_bytes) = match told {
        Some(told) => (told.stx_dio_mem_align, told.stx_dio_offset_align),
        // An older kernel does not tell.
        None if is_block_device => {
            let block_bytes = ioctl_blksszget(file).map_err(|_| unable())?;
            (block_bytes, block_bytes)
        }
        None => {
            let block_bytes = probe_block_bytes(file).ok_or_else(unable)?;
            (block_bytes, block_bytes)
        }
    };
    let usable = align_bytes.is_power_of_two()
        && align_bytes <= BLOCK_BYTES_MAX
        && block_bytes.is_power_of_two()
        && block_bytes <= BLOCK_BYTES_MAX;
    if usable { Ok((align_bytes, block_bytes.max(512))) } else { Err(unable()) }
}

/// The smallest direct read that the file takes.
fn probe_block_bytes(file: &OwnedFd) -> Option<u32> {
    let buffer = Buffer::new().ok()?;
    [512, 1024, 2048, 4096].into_iter().find(|&block_bytes| {
        // SAFETY: the buffer is ours alone, zeroed, and longer than any of these.
        let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.start(), block_bytes as usize) };
        rustix::io::pread(file.as_fd(), bytes, u64::from(block_bytes)).is_ok()
    })
}

/// The size that counts instead of the configured one, if there is one.
pub(super) fn remembered(file: &OwnedFd, configured_bytes: u64) -> Option<u64> {
    let mut bytes = [0; 16];
    let len = fgetxattr(file, SIZE_ATTRIBUTE, &mut bytes).ok()?;
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    (len == bytes.len() && word(0) == configured_bytes).then(|| word(8))
}
