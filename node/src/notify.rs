//! Tells a service manager that the node is ready, or about to stop: one datagram to the socket
//! that `NOTIFY_SOCKET` names (`Type=notify` of systemd).

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// A service manager, if there is one.
#[derive(Debug)]
pub(crate) struct Manager(Option<UnixDatagram>);

impl Manager {
    /// The one that the environment names. One that cannot be reached is said so and left alone:
    /// it will notice by itself.
    pub(crate) fn from_environment() -> Self {
        let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return Self(None) };
        match connect(&name) {
            Ok(socket) => Self(Some(socket)),
            Err(error) => {
                tracing::warn!(?name, %error, "NOTIFY_SOCKET cannot be reached");
                Self(None)
            }
        }
    }

    /// Tells it something, such as `READY=1`.
    pub(crate) fn tell(&self, what: &str) {
        if let Some(Err(error)) = self.0.as_ref().map(|socket| socket.send(what.as_bytes())) {
            tracing::warn!(what, %error, "the service manager was not told");
        }
    }
}

/// A path, or an abstract name after an `@`.
fn connect(name: &OsStr) -> std::io::Result<UnixDatagram> {
    let address = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        path => SocketAddr::from_pathname(OsStr::from_bytes(path))?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    // A manager that does not read must not hold the node up.
    socket.set_nonblocking(true)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manager_is_told_by_path_and_by_abstract_name() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("notify");
        let listener = UnixDatagram::bind(&path).unwrap();
        let mut read = [0; 32];
        Manager(Some(connect(path.as_os_str()).unwrap())).tell("READY=1");
        let length = listener.recv(&mut read).unwrap();
        assert_eq!(&read[..length], b"READY=1");
        let name = format!("vrio-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let listener = UnixDatagram::bind_addr(&address).unwrap();
        let manager = Manager(Some(connect(OsStr::new(&format!("@{name}"))).unwrap()));
        manager.tell("STOPPING=1");
        let length = listener.recv(&mut read).unwrap();
        assert_eq!(&read[..length], b"STOPPING=1");
    }

    #[test]
    fn nobody_to_tell_is_no_error() {
        Manager(None).tell("READY=1");
        assert!(connect(OsStr::new("/nonexistent/notify")).is_err());
    }
}
