//! The two ways to a back end: going to its socket, or waiting for it at ours.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    socket_with,
};

use super::error::FrontEndError;

/// Which end of the socket the front end is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SocketRole {
    /// The back end listens; QEMU's `chardev socket,path=...,reconnect=...`.
    Connect(PathBuf),
    /// The front end listens and the back end comes; QEMU's `server=on`.
    Listen(PathBuf),
}

impl SocketRole {
    /// The socket's file.
    pub fn path(&self) -> &Path {
        match self {
            Self::Connect(path) | Self::Listen(path) => path,
        }
    }

    fn failed(&self, errno: Errno) -> FrontEndError {
        FrontEndError::Socket { path: self.path().to_owned(), source: errno.into() }
    }
}

/// Connects, or accepts, again and again. A listening socket stays over reconnects.
#[derive(Debug)]
pub(super) struct FrontEndSocket {
    role: SocketRole,
    listener: Option<OwnedFd>,
}

impl FrontEndSocket {
    pub(super) fn new(role: SocketRole) -> Result<Self, FrontEndError> {
        let listener = match &role {
            SocketRole::Connect(_) => None,
            SocketRole::Listen(path) => Some(open(path).map_err(|errno| role.failed(errno))?),
        };
        Ok(Self { role, listener })
    }

    pub(super) fn role(&self) -> &SocketRole {
        &self.role
    }

    /// One try, which takes at most `wait`. The stream does not block.
    pub(super) fn enter(&self, wait: Duration) -> Result<OwnedFd, FrontEndError> {
        let stream = match (&self.role, &self.listener) {
            (SocketRole::Connect(path), _) => reach(path),
            (SocketRole::Listen(_), Some(listener)) => admit(listener, wait),
            (SocketRole::Listen(_), None) => unreachable!("made with a listener"),
        };
        stream.map_err(|errno| self.role.failed(errno))
    }
}

impl Drop for FrontEndSocket {
    fn drop(&mut self) {
        if self.listener.is_some() {
            let _ = rustix::fs::unlink(self.role.path());
        }
    }
}

fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

fn reach(path: &Path) -> Result<OwnedFd, Errno> {
    // A Unix socket that does not block connects at once or not at all.
    let stream = socket()?;
    connect(&stream, &SocketAddrUnix::new(path)?)?;
    Ok(stream)
}

fn open(path: &Path) -> Result<OwnedFd, Errno> {
    let listener = socket()?;
    if let Ok(stat) = rustix::fs::lstat(path)
        && FileType::from_raw_mode(stat.st_mode) == FileType::Socket
    {
        rustix::fs::unlink(path)?;
    }
    bind(&listener, &SocketAddrUnix::new(path)?)?;
    listen(&listener, 1)?;
    Ok(listener)
}

fn admit(listener: &OwnedFd, wait: Duration) -> Result<OwnedFd, Errno> {
    let deadline = Instant::now() + wait;
    loop {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match accept_with(listener, flags) {
            Err(Errno::AGAIN) => {}
            other => return other,
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Errno::TIMEDOUT);
        }
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&left)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}
