//! The locks that keep the file from others: other nodes and other programs.
//!
//! | lock | on | seen by |
//! | --- | --- | --- |
//! | `flock` | both | other nodes; a killed one has it until its last request has landed |
//! | OFD byte ranges | both | QEMU (its image locking), and programs that use `lockf` or `fcntl` |
//! | `O_EXCL` | devices | mounts, LVM, md, other device nodes of the same device |
//!
//! All of them belong to the open file description, so they end with it and go where it is handed.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags, Stat, flock, major, minor};
use rustix::io::Errno;

use super::open::{FileError, FileOptions, open_as, open_error, system_error};

/// How often to look whether a lock is free.
const LOCK_RETRY: Duration = Duration::from_millis(20);

/// The bytes that a writer locks: the whole file.
const WRITES: &[(i64, i64)] = &[(0, 0)];

/// The ranges that a reader locks (first byte, length), and that others may read beside it: the
/// whole file but QEMU's bytes, and three of these. QEMU says with the bytes from 100 on what it
/// does to an image, and with those from 200 on what others must not do. A reader reads
/// consistently (100), and suffers neither writes (201) nor another size (203).
const READS: &[(i64, i64)] = &[(0, 101), (201, 1), (203, 1), (300, 0)];

/// Takes the locks: alone to write, with others to read. A predecessor that was killed holds them
/// until its last request has landed.
///
/// # Errors
/// When they are not free in time.
pub(super) fn take(file: &OwnedFd, stat: &Stat, options: &FileOptions) -> Result<(), FileError> {
    let (operation, kind, ranges) = if options.read_only {
        (FlockOperation::NonBlockingLockShared, libc::F_RDLCK, READS)
    } else {
        (FlockOperation::NonBlockingLockExclusive, libc::F_WRLCK, WRITES)
    };
    let waiting = LockWait::new(options);
    loop {
        match flock(file, operation) {
            Ok(()) => break,
            Err(Errno::WOULDBLOCK | Errno::INTR) => {}
            Err(error) => return Err(system_error(&options.path, "lock the file", error)),
        }
        waiting.go_on().map_err(|waited| locked(options, holder(stat, "FLOCK"), waited))?;
    }
    for range in ranges {
        loop {
            match lock_range(file, kind, *range) {
                Ok(()) => break,
                Err(Errno::AGAIN | Errno::ACCESS | Errno::INTR) => {}
                // A file system that has none, where the first lock has to do.
                Err(error @ (Errno::NOLCK | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS)) => {
                    let file = options.path.display();
                    tracing::warn!(%file, %error, "locks of other programs are not visible there");
                    return Ok(());
                }
                Err(error) => return Err(system_error(&options.path, "lock the file", error)),
            }
            let other = || holder(stat, "OFDLCK").or_else(|| holder(stat, "POSIX"));
            waiting.go_on().map_err(|waited| locked(options, other(), waited))?;
        }
    }
    Ok(())
}

/// Opens a block device that no other program uses. A writer holds it alone. A reader only needs
/// that no holder, such as a mount, has it alone when it is opened.
///
/// # Errors
/// When it is not free in time, or cannot be opened.
pub(super) fn open_device(options: &FileOptions) -> Result<OwnedFd, FileError> {
    let waiting = LockWait::new(options);
    loop {
        match open_as(options, OFlags::EXCL) {
            // Others may read it, too.
            Ok(alone) if options.read_only => {
                drop(alone);
                return open_as(options, OFlags::empty())
                    .map_err(|error| open_error(options, error));
            }
            Ok(alone) => return Ok(alone),
            Err(Errno::BUSY) => {}
            Err(error) => return Err(open_error(options, error)),
        }
        waiting.go_on().map_err(|waited| {
            let (path, holder) = (options.path.clone(), mount_of(options));
            FileError::Held { path, holder, waited }
        })?;
    }
}

/// A wait for a predecessor's end.
struct LockWait {
    began: Instant,
    timeout: Duration,
}

impl LockWait {
    fn new(options: &FileOptions) -> Self {
        Self { began: Instant::now(), timeout: options.lock_timeout }
    }

    /// Waits a little; `Err` when it was long enough.
    fn go_on(&self) -> Result<(), Duration> {
        let waited = self.began.elapsed();
        if waited >= self.timeout {
            return Err(waited);
        }
        std::thread::sleep(LOCK_RETRY.min(self.timeout - waited));
        Ok(())
    }
}

fn locked(options: &FileOptions, holder: Option<String>, waited: Duration) -> FileError {
    let holder = holder.unwrap_or_else(|| "another process".to_owned());
    FileError::Locked { path: options.path.clone(), holder, waited }
}

/// A lock of the description on a range of bytes; a length of 0 goes to the end.
fn lock_range(file: &OwnedFd, kind: i32, (start, len): (i64, i64)) -> Result<(), Errno> {
    // SAFETY: a plain C structure, for which zeroes are valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    (lock.l_start, lock.l_len) = (start, len);
    // SAFETY: the descriptor is open, and the structure is what this command reads.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    if done == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// The process that holds a lock of this kind on the file, as `/proc/locks` has it.
fn holder(stat: &Stat, kind: &str) -> Option<String> {
    let place = format!("{:02x}:{:02x}:{}", major(stat.st_dev), minor(stat.st_dev), stat.st_ino);
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    let pid = locks.lines().find_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        (words.get(1) == Some(&kind) && words.get(5) == Some(&place.as_str()))
            .then(|| words[4].to_owned())
    })?;
    Some(match pid {
        pid if pid == std::process::id().to_string() => "another volume of this node".to_owned(),
        // Of a lock that belongs to a description the system does not tell.
        pid if pid == "-1" => "another program (fuser(1) names it)".to_owned(),
        pid => {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            format!("process {pid} ({})", name.trim())
        }
    })
}

/// The user that holds a device for itself, as far as the system tells.
fn mount_of(options: &FileOptions) -> String {
    let device = rustix::fs::stat(&options.path).map(|stat| stat.st_rdev).unwrap_or_default();
    let number = format!("{}:{}", major(device), minor(device));
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let place = mounts.lines().find_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        (words.get(2) == Some(&number.as_str())).then(|| words[4].to_owned())
    });
    match place {
        Some(place) => format!("a mount at {place}"),
        None => "a mount, another volume or another program".to_owned(),
    }
}
