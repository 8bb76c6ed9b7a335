//! The lock beside a socket, and what may be found at a socket's path.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

use crate::access::Access;

/// The longest path of a Unix socket, in bytes (`sun_path` less its final zero).
const PATH_BYTES_MAX: usize = 107;

/// Why a socket cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SocketError {
    /// Longer than the system allows.
    #[error("socket path {path} has {len} bytes, at most {max} are possible; choose a shorter one",
        path = path.display(), max = PATH_BYTES_MAX)]
    TooLong {
        /// The path.
        path: PathBuf,
        /// Its length in bytes.
        len: usize,
    },
    /// Its directory cannot be used.
    #[error("the directory of socket {path}: {source}; create it, or choose another path",
        path = path.display())]
    Directory {
        /// The socket's path.
        path: PathBuf,
        /// The system's answer.
        r#source: io::Error,
    },
    /// Another program listens there.
    #[error("socket {path} is in use by another program; stop it, or choose another path",
        path = path.display())]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// This process serves it already.
    #[error("socket {path} is served twice by this process; give each disk a path of its own",
        path = path.display())]
    Twice {
        /// The path.
        path: PathBuf,
    },
    /// Something else is there.
    #[error("{path} exists and is not a socket; move it away, or choose another path",
        path = path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// The lock file cannot be used.
    #[error("lock file {path}: {source}", path = path.display())]
    Lock {
        /// The lock file.
        path: PathBuf,
        /// The system's answer.
        r#source: io::Error,
    },
    /// The socket cannot be made.
    #[error("socket {path}: {source}", path = path.display())]
    Bind {
        /// The path.
        path: PathBuf,
        /// The system's answer.
        r#source: io::Error,
    },
    /// The socket's owner or group cannot be set.
    #[error(
        "{path:?} cannot have its socket-user or socket-group: {source}; a node that does not run \
         as root gives sockets to its own user alone, and to groups that its user is in (usermod \
         -aG)"
    )]
    Access {
        /// The path.
        path: PathBuf,
        /// The system's answer.
        r#source: io::Error,
    },
    /// The system refused a thread or a descriptor.
    #[error("serving a socket: {0}")]
    Thread(io::Error),
}

/// A lock that this process holds, and goes on holding until it dies.
#[derive(Debug)]
struct HeldLock {
    path: PathBuf,
    file: File,
    in_use: bool,
}

/// All of them.
static HELD: Mutex<Vec<HeldLock>> = Mutex::new(Vec::new());

fn with_held<T>(f: impl FnOnce(&mut Vec<HeldLock>) -> T) -> T {
    f(&mut HELD.lock())
}

pub(crate) fn check_length(path: &Path) -> Result<(), SocketError> {
    let len = path.as_os_str().len();
    if len > PATH_BYTES_MAX {
        return Err(SocketError::TooLong { path: path.into(), len });
    }
    Ok(())
}

/// Connects without ever waiting: a listener with a full backlog is "not now".
pub(crate) fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(UnixStream::from(socket))
}

/// The wish to listen at a path.
#[derive(Debug)]
pub(crate) struct SocketClaim {
    /// The socket's path in its real directory, so that a socket has only one name.
    path: PathBuf,
    access: Access,
    lock_path: PathBuf,
    lock: Mutex<Option<File>>,
    /// Whether this claim is the one that uses the lock.
    taken: AtomicBool,
}

impl SocketClaim {
    /// Looks at the path's directory and opens the lock file beside the socket.
    pub(crate) fn new(path: PathBuf, access: Access) -> Result<Self, SocketError> {
        check_length(&path)?;
        let Some(name) = path.file_name() else {
            return Err(SocketError::NotASocket { path });
        };
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory = fs::canonicalize(parent.unwrap_or(Path::new(".")));
        let directory =
            directory.map_err(|source| SocketError::Directory { path: path.clone(), source })?;
        let real = directory.join(name);
        let mut lock_path = real.clone().into_os_string();
        lock_path.push(".lock");
        let lock_path = PathBuf::from(lock_path);
        let (lock, taken) = (Mutex::new(None), AtomicBool::new(false));
        Ok(Self { path: real, access, lock_path, lock, taken })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn lock_error(&self, source: io::Error) -> SocketError {
        SocketError::Lock { path: self.lock_path.clone(), source }
    }

    /// Takes the lock if no process has it. It is then held until this process dies. A later claim
    /// of the same process finds it held already.
    pub(crate) fn try_lock(&self) -> Result<bool, SocketError> {
        with_held(|all| {
            if let Some(held) = all.iter_mut().find(|held| held.path == self.path) {
                if held.in_use {
                    return Err(SocketError::Twice { path: self.path.clone() });
                }
                held.in_use = true;
                self.taken.store(true, Ordering::Relaxed);
                return Ok(true);
            }
            let mut lock = self.lock.lock();
            if lock.is_none() {
                let opened = OpenOptions::new()
                    .read(true)
                    .write(true)
                    .create(true)
                    .truncate(false)
                    .mode(0o600)
                    .custom_flags(OFlags::NOFOLLOW.bits() as i32)
                    .open(&self.lock_path);
                *lock = Some(opened.map_err(|source| self.lock_error(source))?);
            }
            let file = lock.as_ref().expect("opened above");
            match flock(file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK | Errno::INTR) => return Ok(false),
                Err(errno) => return Err(self.lock_error(errno.into())),
            }
            let mut file = lock.take().expect("opened above");
            sign(&mut file);
            self.taken.store(true, Ordering::Relaxed);
            all.push(HeldLock { path: self.path.clone(), file, in_use: true });
            Ok(true)
        })
    }

    /// Goes on with the lock of another process, which has stopped using it and is about to end.
    pub(crate) fn adopt(&self, lock: OwnedFd) -> Result<(), SocketError> {
        with_held(|all| {
            if all.iter().any(|held| held.path == self.path) {
                return Err(SocketError::Twice { path: self.path.clone() });
            }
            self.taken.store(true, Ordering::Relaxed);
            all.push(HeldLock { path: self.path.clone(), file: lock.into(), in_use: true });
            Ok(())
        })
    }

    /// A descriptor of the locked description, for another process.
    pub(crate) fn take_down(&self) -> io::Result<OwnedFd> {
        with_held(|all| {
            let held = all.iter().find(|held| held.path == self.path && held.in_use);
            Ok(held.ok_or(io::ErrorKind::NotFound)?.file.try_clone()?.into())
        })
    }

    /// Says in the lock's file whose it is now.
    pub(crate) fn sign(&self) {
        with_held(|all| {
            if let Some(held) = all.iter_mut().find(|held| held.path == self.path) {
                sign(&mut held.file);
            }
        });
    }

    /// The process that has the lock, where the file says so.
    pub(crate) fn holder(&self) -> Option<u32> {
        let mut text = String::new();
        File::open(&self.lock_path).ok()?.take(16).read_to_string(&mut text).ok()?;
        text.trim().parse().ok()
    }

    /// Makes the socket, in the place of one that a dead process left. The lock must be held.
    pub(crate) fn listen(&self) -> Result<UnixListener, SocketError> {
        self.clear_path()?;
        let path = self.path.clone();
        self.access.listen(&self.path).map_err(|source| match source.kind() {
            // Its owner and group are the only ones that can be refused in a directory that serves.
            io::ErrorKind::PermissionDenied if self.access != Access::default() => {
                SocketError::Access { path, source }
            }
            _ => SocketError::Bind { path, source },
        })
    }

    fn clear_path(&self) -> Result<(), SocketError> {
        let path = || self.path.clone();
        let bind = |source| SocketError::Bind { path: self.path.clone(), source };
        let found = match fs::symlink_metadata(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other.map_err(bind)?,
        };
        if !found.file_type().is_socket() {
            return Err(SocketError::NotASocket { path: path() });
        }
        match connect(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                fs::remove_file(&self.path).map_err(bind)
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(bind(error)),
            // It answers, or would if it were not so busy, or speaks datagrams.
            _ => Err(SocketError::InUse { path: path() }),
        }
    }

    pub(crate) fn remove_socket(&self) {
        // The file may have been removed already.
        let _ = fs::remove_file(&self.path);
    }
}

/// Writes the holder of a lock into its file, for the log line of a successor; not worth failing
/// for.
fn sign(file: &mut File) {
    let _ = file.set_len(0);
    let _ = file.rewind();
    let _ = writeln!(file, "{}", std::process::id());
}

/// Gives up the lock of a socket that this process has stopped serving, so that another process
/// may serve it while this one lives. `false` while it is still served here, or was never.
///
/// Only for a device that is gone as a whole: nothing of this process may touch the rings or the
/// memory of a guest that came by this socket any more. The lock's file stays, as it does when a
/// process dies. If a process removed it, two later processes could each lock a file of this name.
pub fn release(socket: &Path) -> bool {
    let Some(name) = socket.file_name() else { return false };
    let parent = socket.parent().filter(|parent| !parent.as_os_str().is_empty());
    let Ok(directory) = fs::canonicalize(parent.unwrap_or(Path::new("."))) else { return false };
    let real = directory.join(name);
    with_held(|all| {
        let before = all.len();
        all.retain(|held| held.path != real || held.in_use);
        all.len() < before
    })
}

impl Drop for SocketClaim {
    fn drop(&mut self) {
        if *self.taken.get_mut() {
            with_held(|all| {
                if let Some(held) = all.iter_mut().find(|held| held.path == self.path) {
                    held.in_use = false;
                }
            });
        }
    }
}
