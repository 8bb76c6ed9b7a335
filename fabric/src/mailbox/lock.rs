//! How processes of a VM see which of them are dead: the process that holds a slot holds the lock
//! of a file, its *holder lock*.
//!
//! The kernel releases a lock when the last process that has the open file is gone, and it unmaps a
//! process's memory before it closes its files. So a file whose lock is free is of a process that
//! will not store into the region again; nor will a child that has inherited the mapping, since it
//! has inherited the open file with it. A process that finds such a file reports its number to the
//! node, and then removes it.
//!
//! A file that does not exist proves nothing: another container has files of its own.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};

/// The directory of the files: every user may make files in it, and no user can remove another
/// user's. It is in memory, so no file outlives the system that it is about.
const DIRECTORY: &str = "/dev/shm";

/// Files that are looked at by one sweep.
const LOOKS_MAX: usize = 4096;

/// Random numbers that are tried until one is not taken yet.
const DRAWS_MAX: usize = 16;

/// The holder locks of one domain's region in one VM.
#[derive(Debug)]
pub(crate) struct HolderLocks {
    directory: PathBuf,
    prefix: String,
}

/// A lock that this process holds.
#[derive(Debug)]
pub(crate) struct HolderLock {
    pub(crate) number: u64,
    path: PathBuf,
    /// The lock is this open file's.
    _file: File,
}

impl HolderLocks {
    /// Those of the region with this nonce, in the usual directory.
    pub(crate) fn of_region(region: u64) -> Self {
        Self::in_directory(Path::new(DIRECTORY), region)
    }

    pub(super) fn in_directory(directory: &Path, region: u64) -> Self {
        Self { directory: directory.to_owned(), prefix: format!("vrio-vf-{region:016x}-") }
    }

    /// A new lock, held.
    pub(crate) fn take(&self) -> io::Result<HolderLock> {
        for _ in 0..DRAWS_MAX {
            let mut bytes = [0; 8];
            rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
            let number = u64::from_le_bytes(bytes);
            let path = self.directory.join(format!("{}{number:016x}", self.prefix));
            let flags = OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let mut options = OpenOptions::new();
            options.write(true).create_new(true).mode(0o644);
            let file = match options.custom_flags(flags.bits().cast_signed()).open(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(error),
            };
            // Another process may have found the file before it was locked, and removed it.
            let is_held = flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
            if is_held && file.metadata()?.nlink() > 0 {
                return Ok(HolderLock { number, path, _file: file });
            }
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }

    /// The locks of dead holders, one after the other. Each is held while the caller has it, so
    /// that a single process reports it.
    pub(crate) fn dead(&self) -> impl Iterator<Item = HolderLock> {
        let files = fs::read_dir(&self.directory).into_iter().flatten().take(LOOKS_MAX);
        files.filter_map(|file| self.dead_one(&file.ok()?.path()))
    }

    fn dead_one(&self, path: &Path) -> Option<HolderLock> {
        let number = path.file_name()?.to_str()?.strip_prefix(&self.prefix)?;
        let number = u64::from_str_radix(number, 16).ok()?;
        let flags = OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let mut options = OpenOptions::new();
        let file = options.read(true).custom_flags(flags.bits().cast_signed()).open(path).ok()?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
        Some(HolderLock { number, path: path.to_owned(), _file: file })
    }
}

impl HolderLock {
    /// Removes the file: the node knows that its holder is gone.
    pub(crate) fn give_up(self) {
        // Another user's file stays, and is reported again, which does no harm.
        let _ = fs::remove_file(&self.path);
    }
}
