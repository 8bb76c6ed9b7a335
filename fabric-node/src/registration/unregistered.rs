//! Unregistered clients: how connections are accepted, and how many of one user may be unregistered
//! at a time.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::io::Errno;
use rustix::net::SocketFlags;
use rustix::process::{Pid, PidfdFlags};

use super::client::{ClientState, RegistrationClient};
use super::{EVENTS_MAX, RegistrationShared, Registry, watch};

/// Most unregistered clients. There are few unless a user opens many on purpose.
pub(crate) const UNREGISTERED_MAX: usize = 256;

/// Most unregistered clients of one user: a job's processes connect all at once, but each registers
/// at once. One more client of the user takes the place of the one that has been silent for
/// longest; when there are [`UNREGISTERED_MAX`], that of the user with most unregistered clients.
pub(crate) const UNREGISTERED_PER_USER_MAX: usize = 64;

/// How long a client may stay unregistered. A process registers at once, but on a machine with more
/// processes than cores it may have to wait for its turn to run.
const UNREGISTERED_PATIENCE: Duration = Duration::from_secs(5);

/// How long no connection is accepted after there was no descriptor for one. Without a pause the
/// server would try without end.
const REST: Duration = Duration::from_millis(10);

/// The process at the other end of a connection, as the kernel tells.
pub(super) struct Caller {
    /// 0 where the process is in a PID namespace that this process does not see.
    pub(super) pid: u32,
    uid: u32,
    /// A pidfd, readable once the process has ended; none where the kernel gives none.
    pub(super) process: Option<OwnedFd>,
}

impl Caller {
    pub(super) fn of(connection: &OwnedFd) -> Result<Self, Errno> {
        // SAFETY: `ucred` is three integers, so any bytes are one, and it is what the kernel gives
        // for SO_PEERCRED.
        let credentials = unsafe { option::<libc::ucred>(connection, libc::SO_PEERCRED)? };
        // SAFETY: the kernel gives an `int` for SO_PEERPIDFD, and zero is one. Where the call
        // succeeds it is a new descriptor, which nothing else in this process knows.
        let process = unsafe {
            let fd = option::<libc::c_int>(connection, libc::SO_PEERPIDFD);
            fd.map(|fd| OwnedFd::from_raw_fd(fd))
        };
        // Kernels before 6.5 give no pidfd with the connection. One that is opened by number may be
        // another process's if this one has ended; but then its connection ends as well.
        let by_number = || {
            let pid = Pid::from_raw(credentials.pid)?;
            rustix::process::pidfd_open(pid, PidfdFlags::NONBLOCK).ok()
        };
        let process = process.ok().or_else(by_number);
        Ok(Self { pid: credentials.pid.max(0).unsigned_abs(), uid: credentials.uid, process })
    }
}

/// An option of a socket's own level.
///
/// # Safety
/// `T` is what the kernel gives for it, and zeroes are one.
unsafe fn option<T>(socket: &OwnedFd, name: libc::c_int) -> Result<T, Errno> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut bytes = size_of::<T>() as libc::socklen_t;
    let (fd, level) = (socket.as_raw_fd(), libc::SOL_SOCKET);
    // SAFETY: the socket is open while it is borrowed; `value` has room for `bytes`, which are its
    // size, and the kernel writes no more than `bytes` says and stores what it wrote there.
    let got =
        unsafe { libc::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &raw mut bytes) };
    if got != 0 {
        let error = std::io::Error::last_os_error();
        return Err(error.raw_os_error().map_or(Errno::INVAL, Errno::from_raw_os_error));
    }
    // SAFETY: the value was zeroed before the kernel wrote all or a part of it, and the caller
    // promises that zeroes and what the kernel gives for this option are a `T`.
    Ok(unsafe { value.assume_init() })
}

/// Accepts the next connection of a listener, if there is one and a descriptor for it. Without a
/// descriptor no listener is looked at for a while, since all of them stay readable.
pub(super) fn take_in(listener: &OwnedFd, rests_until: &mut Option<Instant>) -> Option<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    for _ in 0..EVENTS_MAX {
        match rustix::net::accept_with(listener, flags) {
            Ok(connection) => return Some(connection),
            Err(Errno::AGAIN) => return None,
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            Err(errno) => {
                // No descriptors left, most likely.
                tracing::warn!(%errno, "no descriptor is left for a process that joins");
                *rests_until = Some(Instant::now() + REST);
                return None;
            }
        }
    }
    None
}

impl RegistrationShared {
    /// Accepts the next connections.
    pub(super) fn let_in(&self, registry: &mut Registry) {
        for _ in 0..EVENTS_MAX {
            if !registry.answering {
                return;
            }
            let connection = take_in(&self.listener, &mut registry.rests_until);
            let Some(connection) = connection else { return };
            let number = registry.next_client;
            match self.meet(registry, number, connection) {
                Ok(client) => {
                    self.make_room(registry, client.uid);
                    registry.next_client += 1;
                    registry.unregistered += 1;
                    registry.clients.insert(number, client);
                    // Most clients have sent their first request already.
                    self.hear(registry, number);
                }
                Err(errno) => {
                    tracing::warn!(%errno, "a process that joins the fabric is disconnected")
                }
            }
        }
    }

    fn meet(
        &self,
        registry: &Registry,
        number: u64,
        connection: OwnedFd,
    ) -> Result<RegistrationClient, Errno> {
        let Caller { pid, uid, process } = Caller::of(&connection)?;
        let process = process.filter(|_| registry.watches_processes);
        watch(&self.epoll, &connection, number)?;
        if let Some(process) = &process {
            watch(&self.epoll, process, number)?;
        }
        let state = ClientState::Unregistered { since: Instant::now() };
        Ok(RegistrationClient { connection, process, pid, uid, state, doorbells_unread: 0 })
    }

    /// Makes room for one more unregistered client of this user.
    fn make_room(&self, registry: &mut Registry, uid: u32) {
        if registry.unregistered < UNREGISTERED_PER_USER_MAX {
            return;
        }
        let whose = match registry.unregistered_of(uid) {
            count if count >= UNREGISTERED_PER_USER_MAX => uid,
            _ if registry.unregistered >= UNREGISTERED_MAX => {
                let uids = registry.unregistered().map(|it| it.client.uid);
                uids.max_by_key(|&uid| registry.unregistered_of(uid)).unwrap_or(uid)
            }
            _ => return,
        };
        let of_user = registry.unregistered().filter(|it| it.client.uid == whose);
        let oldest = of_user.min_by_key(|it| it.since);
        let Some(UnregisteredClient { number, .. }) = oldest else { return };
        // Its first request may have come meanwhile.
        self.hear(registry, number);
        if registry.unregistered().any(|it| it.number == number) {
            registry.hang_up(number, "it is silent, and other processes wait");
        }
    }
}

/// A client that is not registered.
struct UnregisteredClient<'a> {
    number: u64,
    client: &'a RegistrationClient,
    /// When it connected.
    since: Instant,
}

impl Registry {
    fn unregistered(&self) -> impl Iterator<Item = UnregisteredClient<'_>> {
        self.clients.iter().filter_map(|(number, client)| match client.state {
            ClientState::Unregistered { since } => {
                Some(UnregisteredClient { number: *number, client, since })
            }
            ClientState::Member { .. } => None,
        })
    }

    fn unregistered_of(&self, uid: u32) -> usize {
        self.unregistered().filter(|it| it.client.uid == uid).count()
    }

    /// Disconnects clients that have been unregistered for too long. Returns how long the thread
    /// may wait for events: at the latest until `other`.
    pub(super) fn hang_up_on_silence(&mut self, other: Option<Instant>) -> Option<Timespec> {
        let now = Instant::now();
        let rest = self.rests_until.into_iter().chain(other).min();
        let rest = rest.map(|until| until.saturating_duration_since(now));
        if self.unregistered == 0 && rest.is_none() {
            return None;
        }
        let patience =
            |since: Instant| (since + UNREGISTERED_PATIENCE).saturating_duration_since(now);
        let is_over = |it: &UnregisteredClient<'_>| patience(it.since).is_zero();
        let silent: Vec<_> = self.unregistered().filter(is_over).map(|it| it.number).collect();
        for number in silent {
            self.hang_up(number, "it is silent");
        }
        let soonest = self.unregistered().map(|it| patience(it.since)).chain(rest).min()?;
        // Rounded up, so that the thread does not wake a moment too early again and again.
        Timespec::try_from(soonest + Duration::from_millis(1)).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registration::{DomainSettings, RegistrationServer, VfSettings};
    use fabric::registration::DomainKey;
    use rustix::buffer::spare_capacity;

    /// A listener with a connection in its queue stays readable: if it were watched meanwhile the
    /// thread would never wait.
    #[test]
    fn without_descriptors_no_listener_is_polled() {
        let home = tempfile::tempdir().expect("a directory");
        let server =
            RegistrationServer::open(&home.path().join("fabric"), 1).expect("nothing is there");
        let domain = "blue".to_owned();
        let key = DomainKey::new("0123456789abcdef").expect("long enough");
        let settings = DomainSettings { name: domain.clone(), key, endpoints_max: 1, gateways: 0 };
        server.add(settings).expect("it is new");
        let (name, path) = ("one".to_owned(), home.path().join("one.vf"));
        server.add_vf(VfSettings { name, domain, path: path.clone() }).expect("it is new");
        let shared = &server.shared;
        let registry = &mut *shared.registry();
        // A file that is no socket gives no caller, and is not merely empty.
        let none = take_in(&shared.doorbell, &mut registry.rests_until);
        assert!(none.is_none() && registry.rests_until.is_some());
        registry.rests_until = Some(Instant::now() + Duration::from_secs(60));
        shared.listen_if_room(registry).expect("ours");
        let _qemu = std::os::unix::net::UnixStream::connect(&path).expect("it is there");
        let look = || {
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            let mut events = Vec::with_capacity(EVENTS_MAX);
            let found =
                rustix::event::epoll::wait(&shared.epoll, spare_capacity(&mut events), Some(&now));
            found.expect("ours");
            events.len()
        };
        assert_eq!(look(), 0);
        registry.rests_until = None;
        shared.listen_if_room(registry).expect("ours");
        assert_eq!(look(), 1);
    }

    #[test]
    fn a_late_client_gets_a_place_of_the_user_with_most() {
        let home = tempfile::tempdir().expect("a directory");
        let server =
            RegistrationServer::open(&home.path().join("fabric"), 1).expect("nothing is there");
        let shared = &server.shared;
        let registry = &mut *shared.registry();
        let mut ends = Vec::new();
        for number in 0..UNREGISTERED_MAX as u64 {
            let (kind, flags) = (rustix::net::SocketType::SEQPACKET, SocketFlags::CLOEXEC);
            let family = rustix::net::AddressFamily::UNIX;
            let (end, connection) =
                rustix::net::socketpair(family, kind, flags, None).expect("two ends");
            ends.push(end);
            // Users 0 to 4; of the third there are most.
            let uid = if number < 60 { 2 } else { (number % 5) as u32 };
            let state = ClientState::Unregistered { since: Instant::now() };
            let (process, pid, doorbells_unread) = (None, 0, 0);
            let client =
                RegistrationClient { connection, process, pid, uid, state, doorbells_unread };
            registry.clients.insert(1000 + number, client);
            registry.unregistered += 1;
        }
        assert!(registry.unregistered_of(2) > UNREGISTERED_PER_USER_MAX);
        let counts = |registry: &Registry| [0, 1, 2, 3, 4].map(|uid| registry.unregistered_of(uid));
        let before = counts(registry);
        shared.make_room(registry, 9);
        let expected = [before[0], before[1], before[2] - 1, before[3], before[4]];
        assert_eq!(counts(registry), expected);
        assert!(!registry.clients.contains_key(&1000), "the one that was silent for longest");
        // There is room for one of another user, without another client being disconnected.
        shared.make_room(registry, 9);
        assert_eq!(counts(registry), expected);
        shared.make_room(registry, 2);
        assert_eq!(registry.unregistered_of(2), before[2] - 2, "one of its own");
        assert_eq!(registry.unregistered, UNREGISTERED_MAX - 2);
    }
}
