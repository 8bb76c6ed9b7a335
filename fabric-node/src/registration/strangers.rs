//! Those who have called and not said yet who they are: how they are taken in, and how few of them
//! one user has at a time.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::io::Errno;
use rustix::net::SocketFlags;
use rustix::process::{Pid, PidfdFlags};

use super::{Client, EVENTS_MAX, House, Shared, Standing, watch};

/// Callers that have not said who they are. They are few, or somebody makes many on purpose.
pub(crate) const STRANGERS_MAX: usize = 256;

/// Those of one user: a job's processes come all at once, but each says at once who it is. Whoever
/// comes when there are so many takes the place of the one that has been silent for longest; and
/// when there are [`STRANGERS_MAX`], that of one of the user who has most.
pub(crate) const STRANGERS_PER_USER_MAX: usize = 64;

/// How long a stranger may be silent. A process says what it wants at once, but on a machine with
/// more processes than cores it may have to wait for its turn to run.
const STRANGER_PATIENCE: Duration = Duration::from_secs(5);

/// How long nobody is taken in after the system had no descriptor for a caller: not for ever, and
/// not in a circle.
const REST: Duration = Duration::from_millis(10);

/// Who is at the other end of a connection, as the kernel says.
pub(super) struct Caller {
    /// 0 where it is of a space of numbers that this process does not see.
    pub(super) pid: u32,
    uid: u32,
    /// Readable once the process has ended; none where the system does not tell.
    pub(super) process: Option<OwnedFd>,
}

impl Caller {
    pub(super) fn of(connection: &OwnedFd) -> Result<Self, Errno> {
        // SAFETY: zeroes are credentials, the kernel's answer is written over them.
        let credentials = unsafe { option::<libc::ucred>(connection, libc::SO_PEERCRED)? };
        // SAFETY: the option's value is a descriptor, which is new and nobody else's.
        let process = unsafe {
            let fd = option::<libc::c_int>(connection, libc::SO_PEERPIDFD);
            fd.map(|fd| OwnedFd::from_raw_fd(fd))
        };
        // Kernels before 6.5 tell no descriptor. By its number it may be another process's, if this
        // one has ended; its connection then ends as well.
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
    // SAFETY: there is room for `bytes` at the value, and the kernel writes no more.
    let got =
        unsafe { libc::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &raw mut bytes) };
    if got != 0 {
        let error = std::io::Error::last_os_error();
        return Err(error.raw_os_error().map_or(Errno::INVAL, Errno::from_raw_os_error));
    }
    // SAFETY: the caller's.
    Ok(unsafe { value.assume_init() })
}

/// The next caller at a listener, if one is there and there is a descriptor for it. Without one
/// callers wait for a while, at all listeners: those stay readable.
pub(super) fn take_in(listener: &OwnedFd, rests_until: &mut Option<Instant>) -> Option<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    for _ in 0..EVENTS_MAX {
        match rustix::net::accept_with(listener, flags) {
            Ok(connection) => return Some(connection),
            Err(Errno::AGAIN) => return None,
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            Err(errno) => {
                // No descriptors left, most likely.
                tracing::warn!(%errno, "a caller at the fabric's door has to wait");
                *rests_until = Some(Instant::now() + REST);
                return None;
            }
        }
    }
    None
}

impl Shared {
    /// Takes the next callers in.
    pub(super) fn let_in(&self, house: &mut House) {
        for _ in 0..EVENTS_MAX {
            if !house.answering {
                return;
            }
            let connection = take_in(&self.listener, &mut house.rests_until);
            let Some(connection) = connection else { return };
            let number = house.next_client;
            match self.meet(house, number, connection) {
                Ok(client) => {
                    self.make_room(house, client.uid);
                    house.next_client += 1;
                    house.strangers += 1;
                    house.clients.insert(number, client);
                    // Most have said something already.
                    self.hear(house, number);
                }
                Err(errno) => tracing::warn!(%errno, "a caller at the fabric's door is hung up on"),
            }
        }
    }

    fn meet(&self, house: &House, number: u64, connection: OwnedFd) -> Result<Client, Errno> {
        let Caller { pid, uid, process } = Caller::of(&connection)?;
        let process = process.filter(|_| house.watches_processes);
        watch(&self.epoll, &connection, number)?;
        if let Some(process) = &process {
            watch(&self.epoll, process, number)?;
        }
        let standing = Standing::Stranger { since: Instant::now() };
        Ok(Client { connection, process, pid, uid, standing, bells_unread: 0 })
    }

    /// Makes room for one more stranger of this user.
    fn make_room(&self, house: &mut House, uid: u32) {
        if house.strangers < STRANGERS_PER_USER_MAX {
            return;
        }
        let whose = match house.strangers_of(uid) {
            count if count >= STRANGERS_PER_USER_MAX => uid,
            _ if house.strangers >= STRANGERS_MAX => {
                let uids = house.strangers().map(|(_, client, _)| client.uid);
                uids.max_by_key(|&uid| house.strangers_of(uid)).unwrap_or(uid)
            }
            _ => return,
        };
        let of_user = house.strangers().filter(|(_, client, _)| client.uid == whose);
        let Some((number, ..)) = of_user.min_by_key(|(.., since)| *since) else { return };
        // It may have spoken meanwhile.
        self.hear(house, number);
        if house.strangers().any(|(other, ..)| other == number) {
            house.hang_up(number, "it is silent, and others wait");
        }
    }
}

impl House {
    fn strangers(&self) -> impl Iterator<Item = (u64, &Client, Instant)> {
        self.clients.iter().filter_map(|(number, client)| match client.standing {
            Standing::Stranger { since } => Some((*number, client, since)),
            Standing::Member { .. } => None,
        })
    }

    fn strangers_of(&self, uid: u32) -> usize {
        self.strangers().filter(|(_, client, _)| client.uid == uid).count()
    }

    /// Hangs up on strangers who have been silent for too long, and says when there is something to
    /// look for again: at the latest at `other`.
    pub(super) fn hang_up_on_silence(&mut self, other: Option<Instant>) -> Option<Timespec> {
        let now = Instant::now();
        let rest = self.rests_until.into_iter().chain(other).min();
        let rest = rest.map(|until| until.saturating_duration_since(now));
        if self.strangers == 0 && rest.is_none() {
            return None;
        }
        let patience = |since: Instant| (since + STRANGER_PATIENCE).saturating_duration_since(now);
        let is_over = |(_, _, since): &(u64, &Client, Instant)| patience(*since).is_zero();
        let silent: Vec<_> = self.strangers().filter(is_over).map(|(number, ..)| number).collect();
        for number in silent {
            self.hang_up(number, "it is silent");
        }
        let soonest = self.strangers().map(|(.., since)| patience(since)).chain(rest).min()?;
        // Rounded up, so as not to look a moment too early again and again.
        Timespec::try_from(soonest + Duration::from_millis(1)).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registration::{DomainSettings, Server, VfSettings};
    use fabric::door::Key;
    use rustix::buffer::spare_capacity;

    /// A listener with a caller stays readable: one that is looked at meanwhile is looked at in a
    /// circle.
    #[test]
    fn without_a_descriptor_nobody_is_looked_for_at_any_listener() {
        let home = tempfile::tempdir().expect("a directory");
        let server = Server::open(&home.path().join("fabric"), 1).expect("nothing is there");
        let domain = "blue".to_owned();
        let key = Key::new("0123456789abcdef").expect("long enough");
        let settings = DomainSettings { name: domain.clone(), key, endpoints_max: 1, gateways: 0 };
        server.add(settings).expect("it is new");
        let (name, path) = ("one".to_owned(), home.path().join("one.vf"));
        server.add_vf(VfSettings { name, domain, path: path.clone() }).expect("it is new");
        let shared = &server.shared;
        let house = &mut *shared.house();
        // What is no socket gives no caller, and is not merely empty.
        let none = take_in(&shared.bell, &mut house.rests_until);
        assert!(none.is_none() && house.rests_until.is_some());
        house.rests_until = Some(Instant::now() + Duration::from_secs(60));
        shared.listen_if_room(house).expect("ours");
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
        house.rests_until = None;
        shared.listen_if_room(house).expect("ours");
        assert_eq!(look(), 1);
    }

    #[test]
    fn who_comes_when_all_places_are_taken_gets_one_of_the_user_with_most() {
        let home = tempfile::tempdir().expect("a directory");
        let server = Server::open(&home.path().join("fabric"), 1).expect("nothing is there");
        let shared = &server.shared;
        let house = &mut *shared.house();
        let mut ends = Vec::new();
        for number in 0..STRANGERS_MAX as u64 {
            let (kind, flags) = (rustix::net::SocketType::SEQPACKET, SocketFlags::CLOEXEC);
            let family = rustix::net::AddressFamily::UNIX;
            let (end, connection) =
                rustix::net::socketpair(family, kind, flags, None).expect("two ends");
            ends.push(end);
            // Users 0 to 4; of the third there are most.
            let uid = if number < 60 { 2 } else { (number % 5) as u32 };
            let standing = Standing::Stranger { since: Instant::now() };
            let (process, pid, bells_unread) = (None, 0, 0);
            let client = Client { connection, process, pid, uid, standing, bells_unread };
            house.clients.insert(1000 + number, client);
            house.strangers += 1;
        }
        assert!(house.strangers_of(2) > STRANGERS_PER_USER_MAX);
        let counts = |house: &House| [0, 1, 2, 3, 4].map(|uid| house.strangers_of(uid));
        let before = counts(house);
        shared.make_room(house, 9);
        let expected = [before[0], before[1], before[2] - 1, before[3], before[4]];
        assert_eq!(counts(house), expected);
        assert!(!house.clients.contains_key(&1000), "the one that was silent for longest");
        // There is room now for somebody else, who costs nobody anything.
        shared.make_room(house, 9);
        assert_eq!(counts(house), expected);
        shared.make_room(house, 2);
        assert_eq!(house.strangers_of(2), before[2] - 2, "one of its own");
        assert_eq!(house.strangers, STRANGERS_MAX - 2);
    }
}
