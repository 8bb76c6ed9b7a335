//! Tells a service manager that the node is ready, or about to stop: one datagram to the socket
//! that `NOTIFY_SOCKET` names (`Type=notify` of systemd).

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

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

    /// The same manager, for another thread.
    pub(crate) fn another(&self) -> Self {
        Self(self.0.as_ref().and_then(|socket| socket.try_clone().ok()))
    }

    /// Tells it something, such as `READY=1`.
    pub(crate) fn tell(&self, what: &str) {
        if let Some(Err(error)) = self.0.as_ref().map(|socket| socket.send(what.as_bytes())) {
            tracing::warn!(what, %error, "the service manager was not told");
        }
    }
}

/// The limit that a node which wants to be restarted gives a manager that has named none
/// (`WatchdogSec=`): ten times what it takes to find a sidecore stuck.
const LIMIT_DEFAULT_USEC: u64 = 10_000_000;

/// Tells a service manager again and again that the node lives (`WatchdogSec=` of systemd).
#[derive(Debug)]
pub(crate) struct Pings {
    manager: Manager,
    what: String,
    every: Duration,
    /// Only while all sidecores move.
    only_moving: bool,
    last: Option<Instant>,
}

impl Manager {
    /// The way to tell it, if it wants to be told, which it says by the environment, or if it shall
    /// restart a node of which a sidecore is stuck: then it takes the limit from the node. So does
    /// the manager of a successor, which it starts without a word about its limit.
    pub(crate) fn pings(&self, restarts: bool) -> Option<Pings> {
        let socket = self.0.as_ref()?.try_clone().ok()?;
        let variable = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
        let is_ours =
            variable("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let limit = variable("WATCHDOG_USEC").filter(|usec| is_ours && *usec > 0);
        let what = match limit {
            Some(_) => "WATCHDOG=1".to_owned(),
            None if restarts => format!("WATCHDOG_USEC={LIMIT_DEFAULT_USEC}\nWATCHDOG=1"),
            None => return None,
        };
        let every = Duration::from_micros(limit.unwrap_or(LIMIT_DEFAULT_USEC) / 4);
        let manager = Self(Some(socket));
        Some(Pings { manager, what, every, only_moving: restarts, last: None })
    }
}

impl Pings {
    /// Called often: tells the manager when it is time, unless a sidecore is stuck and the manager
    /// shall act on that.
    pub(crate) fn look(&mut self, now: Instant, all_move: bool) {
        let is_time = self.last.is_none_or(|last| now.duration_since(last) >= self.every);
        if is_time && (all_move || !self.only_moving) {
            self.last = Some(now);
            self.manager.tell(&self.what);
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
    fn a_manager_hears_that_a_node_lives_unless_it_shall_act_on_a_stuck_sidecore() {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let told = || theirs.recv(&mut [0; 64]).is_ok();
        let mut pings = Pings {
            manager: Manager(Some(ours)),
            what: "WATCHDOG=1".to_owned(),
            every: Duration::from_secs(1),
            only_moving: true,
            last: None,
        };
        let now = Instant::now();
        pings.look(now, false);
        assert!(!told());
        pings.look(now, true);
        assert!(told());
        pings.look(now + Duration::from_millis(900), true);
        assert!(!told(), "it is not time yet");
        pings.look(now + Duration::from_secs(1), true);
        assert!(told());
        pings.only_moving = false;
        pings.look(now + Duration::from_secs(2), false);
        assert!(told(), "it is reported only");
    }

    #[test]
    fn a_missing_service_manager_is_no_error() {
        Manager(None).tell("READY=1");
        assert!(connect(OsStr::new("/nonexistent/notify")).is_err());
    }
}
