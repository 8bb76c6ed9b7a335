//! How processes of a VM tell the living from the dead among themselves: each slot's process holds
//! the lock of a file, its *ticket*.
//!
//! The kernel lets go of a lock when the last process that has the open file is gone, and it takes
//! a process's memory away before its files. So a ticket that nobody holds is of somebody who will
//! not store into the region again; not even a child can that has inherited the mapping, since it
//! has inherited the file with it. Who finds such a ticket reports it and then takes it away.
//!
//! A ticket that is not there says nothing: another container has files of its own.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};

/// Where they are: a directory in which everybody may make files, and nobody can take another
/// one's away. It is memory, so none outlives the system that it is about.
const DIRECTORY: &str = "/dev/shm";

/// Files that are looked at by one sweep.
const LOOKS_MAX: usize = 4096;

/// Draws of a ticket that somebody has already.
const DRAWS_MAX: usize = 16;

/// Whose tickets: of one domain's region, as one VM sees it.
#[derive(Debug)]
pub(crate) struct Tickets {
    directory: PathBuf,
    prefix: String,
}

/// One that this process holds.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(crate) number: u64,
    path: PathBuf,
    /// The lock is this open file's.
    _file: File,
}

impl Tickets {
    /// Those of this region (its nonce) in the usual place.
    pub(crate) fn of_region(region: u64) -> Self {
        Self::in_directory(Path::new(DIRECTORY), region)
    }

    pub(super) fn in_directory(directory: &Path, region: u64) -> Self {
        Self { directory: directory.to_owned(), prefix: format!("vrio-vf-{region:016x}-") }
    }

    /// A new one, held.
    pub(crate) fn take(&self) -> io::Result<Ticket> {
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
            // Somebody may have found it before it was held, and taken it away as a dead one's.
            let is_held = flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
            if is_held && file.metadata()?.nlink() > 0 {
                return Ok(Ticket { number, path, _file: file });
            }
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }

    /// Tickets of the dead, one after the other; each is locked for as long as it is looked at, so
    /// that it is reported by one only.
    pub(crate) fn dead(&self) -> impl Iterator<Item = Ticket> {
        let files = fs::read_dir(&self.directory).into_iter().flatten().take(LOOKS_MAX);
        files.filter_map(|file| self.dead_one(&file.ok()?.path()))
    }

    fn dead_one(&self, path: &Path) -> Option<Ticket> {
        let number = path.file_name()?.to_str()?.strip_prefix(&self.prefix)?;
        let number = u64::from_str_radix(number, 16).ok()?;
        let flags = OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let mut options = OpenOptions::new();
        let file = options.read(true).custom_flags(flags.bits().cast_signed()).open(path).ok()?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
        Some(Ticket { number, path: path.to_owned(), _file: file })
    }
}

impl Ticket {
    /// The node knows that its holder is gone: it is not needed any more.
    pub(crate) fn give_up(self) {
        // Another user's stays, to be reported again, which does no harm.
        let _ = fs::remove_file(&self.path);
    }
}
