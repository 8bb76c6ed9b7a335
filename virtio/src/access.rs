//! Access to a socket: its owner, group and mode, with any umask of the process.

use std::io;
use std::os::unix::net::UnixListener;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, chmodat, chownat, fchmod};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};
use rustix::process::{Gid, Uid};

/// How many front ends may wait to be accepted, as the standard library has it.
const BACKLOG: i32 = 128;

/// The users that may open a socket. An owner, group or mode that is not set stays as the system
/// makes it, by the process's user, group and umask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// The user whose the socket is.
    pub uid: Option<u32>,
    /// The group whose the socket is.
    pub gid: Option<u32>,
    /// The permissions' nine bits; writing is what lets a front end connect.
    pub mode: Option<u32>,
}

impl Access {
    /// Makes a socket and listens. No process can connect before the access is set.
    pub(crate) fn listen(&self, path: &Path) -> io::Result<UnixListener> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        if let Some(mode) = self.mode {
            // The socket's file gets this mode, less the umask.
            fchmod(&socket, Mode::from_raw_mode(mode))?;
        }
        bind(&socket, &SocketAddrUnix::new(path)?)?;
        let listens = self.apply(path).and_then(|()| Ok(listen(&socket, BACKLOG)?));
        // A name that this process has just made.
        listens.inspect_err(|_| drop(std::fs::remove_file(path)))?;
        Ok(socket.into())
    }

    /// Sets the owner, the group and the mode of a socket that exists. The owner comes first,
    /// because the mode's bits are about the owner and the group.
    fn apply(&self, path: &Path) -> io::Result<()> {
        if self.uid.is_some() || self.gid.is_some() {
            let (uid, gid) = (self.uid.map(Uid::from_raw), self.gid.map(Gid::from_raw));
            chownat(CWD, path, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        if let Some(mode) = self.mode {
            chmodat(CWD, path, Mode::from_raw_mode(mode), AtFlags::empty())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn a_socket_has_its_granted_owner_with_any_umask() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("a.sock");
        let mode = || path.metadata().unwrap().mode() & 0o7777;
        let access = Access { mode: Some(0o660), ..Access::default() };
        let listener = access.listen(&path).unwrap();
        assert_eq!(mode(), 0o660);
        drop(listener);
        std::fs::remove_file(&path).unwrap();
        let group = rustix::process::getegid().as_raw();
        let access = Access { gid: Some(group), mode: Some(0o600), ..Access::default() };
        let _listener = access.listen(&path).unwrap();
        assert_eq!((mode(), path.metadata().unwrap().gid()), (0o600, group));
    }
}
