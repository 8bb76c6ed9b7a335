//! The side of the node: [`Server`], one thread that answers at the socket.
//!
//! Those who call are *strangers* until they have said a domain's name and key, and *members* then.
//! Strangers are few at a time, of one user fewer still, and have a moment to speak; whoever says
//! something that makes no sense, or does not read its answers, is hung up on. Members cost a
//! descriptor or two each, and a domain has a bound of them. One that hangs up before its process
//! ends is gone to others, and keeps its slots until then: it may still store into the region.
//!
//! Descriptors that are said and not taken yet count against all that this process's user may have
//! under way, in whatever domain: so what a client has not read is looked at before it gets one.

mod domain;
mod hand_over;
mod strangers;
#[cfg(test)]
mod tests;
mod unread;
mod vf;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::Mode;
use rustix::io::{Errno, IoSlice};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};

use self::domain::Served;
pub use self::domain::{DomainReport, DomainSettings, OpenError};
use self::vf::Vf;
pub use self::vf::{VfError, VfReport, VfSettings};
use crate::{GatewayBell, Keeper};
use fabric::door::wire::{ALONG_MAX, Answer, Foreign, MESSAGE_BYTES, Refusal, Request};
use fabric::door::{KEY_BYTES_MAX, Key, Seat};

/// Callers that wait in the socket's queue.
const QUEUE_MAX: i32 = 1024;

/// Requests of one member that are answered before others have their turn.
const REQUESTS_AT_ONCE: usize = 16;

/// Events that are seen to before it is looked again.
const EVENTS_MAX: usize = 64;

/// Refusals are logged at most so often, with their number since: who may not in decides how often
/// he calls.
const LOG_AGAIN: Duration = Duration::from_secs(10);

/// Anybody may call: it is the key that lets in.
const SOCKET_MODE: Mode = Mode::from_raw_mode(0o666);

/// What an event is about: the listener, the bell, or a client by its number.
const LISTENER: u64 = 0;
const BELL: u64 = 1;
const CLIENTS: u64 = 2;

/// A node's door for processes. Dropped, it lets nobody in any more; those who are in go on among
/// themselves, but nobody notices deaths for them.
pub struct Server {
    path: PathBuf,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("path", &self.path).finish_non_exhaustive()
    }
}

/// What the thread and the others have in common.
struct Shared {
    host: u64,
    epoll: Arc<OwnedFd>,
    listener: OwnedFd,
    /// Rung to end the thread.
    bell: OwnedFd,
    /// Held by the thread while it sees to what has happened, never while it waits.
    house: Mutex<House>,
    /// Nobody stands still any more.
    moves: Condvar,
}

/// Who is there.
struct House {
    ending: bool,
    /// Nothing is seen to: another process goes on here, or is about to.
    standing: bool,
    /// The socket's path is this process's to tidy up.
    tidies: bool,
    /// Nobody new is let in.
    turning_away: bool,
    /// Callers are for this process to answer.
    answering: bool,
    /// Whether they are taken in, or wait in the queue; QEMUs as well.
    listening: bool,
    /// Until when they wait because there was no descriptor for one.
    rests_until: Option<Instant>,
    /// Whether the end of a process is looked for, or only that of its connection.
    watches_processes: bool,
    domains: Vec<Served>,
    clients: HashMap<u64, Client>,
    strangers: usize,
    /// Former members whose processes have not ended.
    leavers: HashMap<u64, Leaver>,
    next_client: u64,
    refusals: Refusals,
    /// Ways in for VMs.
    vfs: Vec<Vf>,
    next_vf: u64,
}

/// Somebody who has called.
struct Client {
    connection: OwnedFd,
    /// Readable once the process has ended; none where the system does not tell. A process's
    /// children inherit its connection, so that this one may stay open.
    process: Option<OwnedFd>,
    pid: u32,
    uid: u32,
    standing: Standing,
    /// Bells that it was given since it was seen to have read everything.
    bells_unread: u32,
}

/// Somebody who has hung up and not ended, and still has slots.
struct Leaver {
    process: OwnedFd,
    domain: String,
    seats: Vec<Seat>,
}

enum Standing {
    Stranger { since: Instant },
    Member { domain: String, seats: Vec<Seat> },
}

/// Who was not let in.
#[derive(Default)]
struct Refusals {
    since_log: u64,
    logged: Option<Instant>,
}

/// What is done with a client after it was heard.
enum Then {
    Stay,
    HangUp(&'static str),
}

impl Server {
    /// Opens the door at `path`, where nothing may be, for a host of this (random, not zero) name.
    ///
    /// # Errors
    /// When something is at the path, or the system refuses.
    pub fn open(path: &Path, host: u64) -> io::Result<Self> {
        let kind = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = rustix::net::socket_with(kind.0, kind.1, flags, None)?;
        rustix::net::bind(&listener, &SocketAddrUnix::new(path)?)?;
        let listen = || -> io::Result<Self> {
            // Until it listens nobody can call.
            rustix::fs::chmod(path, SOCKET_MODE)?;
            rustix::net::listen(&listener, QUEUE_MAX)?;
            Self::adopt(path, host, listener)
        };
        let server = listen().inspect_err(|_| drop(std::fs::remove_file(path)))?;
        server.answer()?;
        Ok(server)
    }

    /// Goes on with the door of another process: `listener` is its socket, `host` the name that it
    /// gave its host. Everybody waits until [`Server::answer`] says that it is this one that
    /// answers; until then it may be dropped, and nothing has happened.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn adopt(path: &Path, host: u64, listener: OwnedFd) -> io::Result<Self> {
        assert_ne!(host, 0, "no address has host 0");
        let epoll = Arc::new(epoll::create(CreateFlags::CLOEXEC)?);
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::empty())?;
        watch(&epoll, &bell, BELL)?;
        let house = House {
            ending: false,
            standing: true,
            tidies: false,
            turning_away: false,
            answering: false,
            listening: false,
            rests_until: None,
            watches_processes: true,
            domains: Vec::new(),
            clients: HashMap::new(),
            strangers: 0,
            leavers: HashMap::new(),
            next_client: CLIENTS,
            refusals: Refusals::default(),
            vfs: Vec::new(),
            next_vf: 0,
        };
        let (house, moves) = (Mutex::new(house), Condvar::new());
        let shared = Arc::new(Shared { host, epoll, listener, bell, house, moves });
        let answers = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("fabric-door".to_owned())
            .spawn(move || answers.answer_all())?;
        Ok(Self { path: path.to_owned(), shared, thread: Some(thread) })
    }

    /// Answers callers and members from now on.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn answer(&self) -> io::Result<()> {
        let house = &mut *self.shared.house();
        (house.answering, house.standing, house.tidies) = (true, false, true);
        house.keep_vigils();
        house.vfs.iter_mut().for_each(Vf::own);
        // Of those who died when another process went.
        let _ = house.tell_deaths();
        self.shared.moves.notify_all();
        Ok(self.shared.listen_if_room(house)?)
    }

    /// Lets callers wait from now on, for a process that goes on with this door; who is in stays,
    /// and is answered. [`Server::answer`] takes it back.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn let_wait(&self) -> io::Result<()> {
        let house = &mut *self.shared.house();
        house.answering = false;
        Ok(self.shared.listen_if_room(house)?)
    }

    /// Its socket.
    pub fn listener(&self) -> BorrowedFd<'_> {
        self.shared.listener.as_fd()
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The host's name in addresses.
    pub fn host(&self) -> u64 {
        self.shared.host
    }

    /// Makes a domain, with memory of its own.
    ///
    /// # Errors
    /// When there is one of the name, or no memory.
    pub fn add(&self, settings: DomainSettings) -> Result<(), OpenError> {
        let mut house = self.shared.house();
        if house.domains.iter().any(|domain| domain.is_called(&settings.name)) {
            return Err(OpenError::Exists(settings.name));
        }
        house.domains.push(Served::new(settings, self.shared.host)?);
        Ok(())
    }

    /// Ends a domain: its members are hung up on, and their endpoints are dead to each other.
    /// `false`: there is none of the name.
    pub fn remove(&self, name: &str) -> bool {
        let mut house = self.shared.house();
        let Some(place) = house.domains.iter().position(|domain| domain.is_called(name)) else {
            return false;
        };
        let members: Vec<_> = house.members_of(name).collect();
        for member in members {
            house.hang_up(member, "its domain was removed");
        }
        house.forget_vfs(name);
        // Nobody else will have those slots.
        house.leavers.retain(|_, leaver| leaver.domain != name);
        house.domains.remove(place).tell_deaths_at_once();
        true
    }

    /// Lets in by another key from now on; who is in stays. `false`: there is no such domain.
    pub fn set_key(&self, name: &str, key: Key) -> bool {
        let mut house = self.shared.house();
        let domain = house.domains.iter_mut().find(|domain| domain.is_called(name));
        domain.map(|domain| domain.set_key(key)).is_some()
    }

    /// The memory of a domain, for its gateways, and a bell for each of them, which members ring
    /// when it sleeps. None: there is no such domain, or no descriptor left.
    pub fn gateways(&self, name: &str) -> Option<(Arc<Keeper>, Vec<GatewayBell>)> {
        let house = self.shared.house();
        let (keeper, bells) = house.domains.iter().find(|it| it.is_called(name))?.keeper();
        let bells = bells.iter().map(GatewayBell::try_clone).collect::<io::Result<_>>();
        Some((keeper, bells.ok()?))
    }

    /// Whether nobody new is let in from now on. Members go on, also with new endpoints.
    pub fn set_turning_away(&self, turning_away: bool) {
        self.shared.house().turning_away = turning_away;
    }

    /// What there is, in the order in which it was added.
    pub fn reports(&self) -> Vec<DomainReport> {
        let house = self.shared.house();
        let report = |domain: &Served| {
            let name = domain.name();
            domain.report(house.members_of(name).count(), house.vms_of(name))
        };
        house.domains.iter().map(report).collect()
    }
}

#[cfg(test)]
impl Server {
    /// From now on a connection's end is its process's: what a test does in its own process.
    pub(super) fn believe_connections(&self) {
        self.shared.house().watches_processes = false;
    }

    /// And the other way.
    pub(super) fn watch_processes(&self) {
        self.shared.house().watches_processes = true;
    }

    /// Nobody is answered meanwhile.
    pub(super) fn while_it_is_stopped<R>(&self, work: impl FnOnce() -> R) -> R {
        let _house = self.shared.house();
        work()
    }

    /// Whether somebody could ask now without waiting.
    pub(super) fn is_free(&self) -> bool {
        self.shared.house.try_lock().is_ok()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let tidies = {
            let mut house = self.shared.house();
            house.ending = true;
            house.tidies
        };
        self.shared.moves.notify_all();
        let _ = rustix::io::write(&self.shared.bell, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        // Of another process's door nothing is taken away.
        if tidies && let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(path = ?self.path, %error, "the fabric's socket stays behind");
        }
    }
}

fn watch(epoll: &OwnedFd, fd: impl AsFd, what: u64) -> Result<(), Errno> {
    epoll::add(epoll, fd, EventData::new_u64(what), EventFlags::IN)
}

impl Shared {
    fn house(&self) -> MutexGuard<'_, House> {
        // Each client is changed as a whole.
        self.house.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread.
    fn answer_all(&self) {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        let mut patience = None;
        loop {
            self.wait_while_standing();
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), patience.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => panic!("waiting for our own descriptors: {errno}"),
            }
            let house = &mut *self.house();
            if house.ending {
                return;
            }
            if house.standing {
                continue;
            }
            for event in &events {
                match event.data.u64() {
                    LISTENER => self.let_in(house),
                    BELL => {}
                    event if event & vf::EVENTS != 0 => self.see_to_vf(house, event),
                    client => self.hear(house, client),
                }
            }
            let woken = self.listen_if_room(house).and_then(|()| house.wake_bells());
            if let Err(errno) = woken {
                tracing::error!(%errno, "the fabric's door is stuck");
            }
            let bell = woken.ok().flatten();
            let deaths = house.tell_deaths();
            patience = house.hang_up_on_silence(bell.into_iter().chain(deaths).min());
        }
    }

    fn wait_while_standing(&self) {
        let is_to_wait = |house: &mut House| house.standing && !house.ending;
        let moves = self.moves.wait_while(self.house(), is_to_wait);
        drop(moves.unwrap_or_else(PoisonError::into_inner));
    }

    /// Hears what a client has to say, if it is still there.
    fn hear(&self, house: &mut House, number: u64) {
        if house.leavers.get(&number).is_some_and(|leaver| has_ended(&leaver.process)) {
            return house.bury(number);
        }
        for _ in 0..REQUESTS_AT_ONCE {
            let Some(client) = house.clients.get(&number) else { return };
            let mut bytes = [0; MESSAGE_BYTES + 1];
            let heard = rustix::net::recv(&client.connection, &mut bytes, RecvFlags::DONTWAIT);
            let then = match heard {
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) if client.has_ended() => Then::HangUp("it has ended"),
                Err(Errno::AGAIN) => return,
                Err(_) | Ok((_, 0)) => Then::HangUp("it has hung up"),
                Ok((_, length)) => {
                    let length = length.min(bytes.len());
                    self.answer(house, number, &bytes[..length])
                }
            };
            if let Then::HangUp(why) = then {
                house.hang_up(number, why);
                return;
            }
        }
    }

    fn answer(&self, house: &mut House, number: u64, bytes: &[u8]) -> Then {
        let request = Request::from_bytes(bytes);
        if let Ok(Request::Hello { name, key }) = &request {
            return self.greet(house, number, name, key);
        }
        let House { domains, clients, .. } = house;
        let ropes = unread::ropes_of_each(clients.len());
        let Some(client) = clients.get_mut(&number) else { return Then::Stay };
        match request {
            Ok(Request::NewEndpoint) => client.new_endpoint(domains),
            Ok(Request::CloseEndpoint(seat)) => client.close_endpoint(domains, seat),
            Ok(Request::Process(seat)) => client.process_of(domains, seat),
            Ok(Request::HangBell(seat)) => client.hang_bell(domains, seat),
            Ok(Request::Ring { seat, wants_rope }) => {
                client.ring(domains, seat, wants_rope.then_some(ropes))
            }
            Ok(Request::Hello { .. }) | Err(Foreign::Bytes) => Then::HangUp("it makes no sense"),
            Err(Foreign::Version) => {
                client.say(&Answer::Refused(Refusal::Version), &[]);
                Then::HangUp("it speaks another version")
            }
        }
    }

    /// Lets a stranger in, or not.
    fn greet(&self, house: &mut House, number: u64, name: &str, key: &[u8; KEY_BYTES_MAX]) -> Then {
        let members = house.members_of(name).count();
        let admitted = match house.turning_away {
            true => Err(Refusal::Crowded),
            false => domain::admit(&house.domains, name, key, members),
        };
        let Some(client) = house.clients.get_mut(&number) else { return Then::Stay };
        if matches!(client.standing, Standing::Member { .. }) {
            return Then::HangUp("it says hello twice");
        }
        match admitted {
            Ok(memory) => {
                if !client.say(&Answer::Welcome { host: self.host }, &memory) {
                    return Then::HangUp("it does not listen");
                }
                house.strangers -= 1;
                let (domain, seats) = (name.to_owned(), Vec::new());
                client.standing = Standing::Member { domain, seats };
                Then::Stay
            }
            Err(refusal) => {
                house.refusals.note(client.pid, refusal);
                client.say(&Answer::Refused(refusal), &[]);
                Then::HangUp("it is not let in")
            }
        }
    }

    /// Callers wait in the queue while there is no room for them.
    fn listen_if_room(&self, house: &mut House) -> Result<(), Errno> {
        house.rests_until = house.rests_until.filter(|until| *until > Instant::now());
        let has_room = house.answering && house.rests_until.is_none();
        if has_room != house.listening {
            let wanted = if has_room { EventFlags::IN } else { EventFlags::empty() };
            let data = EventData::new_u64(LISTENER);
            epoll::modify(&self.epoll, &self.listener, data, wanted)?;
            self.answer_vfs(house, has_room)?;
            house.listening = has_room;
        }
        Ok(())
    }
}

impl House {
    fn members_of(&self, name: &str) -> impl Iterator<Item = u64> {
        let is_member = move |(number, client): (&u64, &Client)| match &client.standing {
            Standing::Member { domain, .. } if domain == name => Some(*number),
            _ => None,
        };
        self.clients.iter().filter_map(is_member)
    }

    /// Ends a client: its endpoints are dead, or gone if its process has not ended.
    fn hang_up(&mut self, number: u64, why: &'static str) {
        let Some(client) = self.clients.remove(&number) else { return };
        match client.standing {
            Standing::Stranger { .. } => self.strangers -= 1,
            Standing::Member { domain, seats } => {
                tracing::debug!(pid = client.pid, domain, why, "a process has left the fabric");
                let Some(served) = self.domains.iter().find(|it| it.is_called(&domain)) else {
                    return;
                };
                match client.process {
                    Some(process) if !seats.is_empty() && !has_ended(&process) => {
                        served.leave(&seats);
                        self.leavers.insert(number, Leaver { process, domain, seats });
                    }
                    // It has ended, or nothing else will say so.
                    _ => served.bury(&seats),
                }
            }
        }
    }

    /// Has those who sleep hear of who died; when that is to be done where it cannot be now.
    fn tell_deaths(&mut self) -> Option<Instant> {
        let now = Instant::now();
        self.domains.iter_mut().filter_map(|domain| domain.tell_deaths(now)).min()
    }

    /// The process of a former member has ended.
    fn bury(&mut self, number: u64) {
        let Some(leaver) = self.leavers.remove(&number) else { return };
        if let Some(domain) = self.domains.iter().find(|it| it.is_called(&leaver.domain)) {
            domain.bury(&leaver.seats);
        }
    }
}

/// Whether the process of a descriptor has.
fn has_ended(process: &OwnedFd) -> bool {
    let mut look = [PollFd::new(process, PollFlags::IN)];
    let none = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut look, Some(&none)), Ok(1))
}

impl Client {
    fn has_ended(&self) -> bool {
        self.process.as_ref().is_some_and(has_ended)
    }

    /// Says something, without waiting. `false`: it does not read.
    fn say(&self, answer: &Answer, along: &[BorrowedFd<'_>]) -> bool {
        let bytes = answer.to_bytes();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(ALONG_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !along.is_empty() {
            let rights = SendAncillaryMessage::ScmRights(along);
            assert!(ancillary.push(rights), "room was made for it");
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let parts = [IoSlice::new(&bytes)];
        rustix::io::retry_on_intr(|| {
            rustix::net::sendmsg(&self.connection, &parts, &mut ancillary, flags)
        })
        .is_ok()
    }

    fn new_endpoint(&mut self, domains: &[Served]) -> Then {
        let Standing::Member { domain, seats } = &mut self.standing else {
            return Then::HangUp("it has not said who it is");
        };
        let Some(domain) = domains.iter().find(|it| it.is_called(domain)) else {
            return Then::HangUp("its domain was removed");
        };
        let answer = match domain.seat(self.pid) {
            Some(seat) => {
                seats.push(seat);
                Answer::Endpoint { seat, process: self.pid }
            }
            None => Answer::Full,
        };
        if self.say(&answer, &[]) { Then::Stay } else { Then::HangUp("it does not listen") }
    }

    /// Whose an endpoint is, for who is to read that process's memory.
    fn process_of(&self, domains: &[Served], seat: Seat) -> Then {
        let Standing::Member { domain, .. } = &self.standing else {
            return Then::HangUp("it has not said who it is");
        };
        let Some(domain) = domains.iter().find(|it| it.is_called(domain)) else {
            return Then::HangUp("its domain was removed");
        };
        let answer = Answer::Process { seat, process: domain.process_of(seat) };
        if self.say(&answer, &[]) { Then::Stay } else { Then::HangUp("it does not listen") }
    }

    /// Makes a bell for an endpoint of this process.
    fn hang_bell(&mut self, domains: &[Served], seat: Seat) -> Then {
        let Standing::Member { domain, seats } = &self.standing else {
            return Then::HangUp("it has not said who it is");
        };
        if !seats.contains(&seat) {
            return Then::HangUp("it wants a bell for what it has not");
        }
        let Some(domain) = domains.iter().find(|it| it.is_called(domain)) else {
            return Then::HangUp("its domain was removed");
        };
        let said = match domain.hang_bell(seat) {
            _ if !self.has_room_for_bell() => self.say(&Answer::NoBell(seat), &[]),
            Ok(ear) => self.say(&Answer::Bell(seat), &[ear.as_fd()]),
            Err(errno) => {
                tracing::warn!(%errno, pid = self.pid, "an endpoint cannot sleep: no descriptors");
                self.say(&Answer::NoBell(seat), &[])
            }
        };
        if said { Then::Stay } else { Then::HangUp("it does not listen") }
    }

    /// Wakes an endpoint for somebody, who does it himself from now on if he wants to, and has not
    /// as many ropes to read.
    fn ring(&self, domains: &[Served], seat: Seat, unread_max: Option<usize>) -> Then {
        let Standing::Member { domain, .. } = &self.standing else {
            return Then::HangUp("it has not said who it is");
        };
        let Some(domain) = domains.iter().find(|it| it.is_called(domain)) else {
            return Then::HangUp("its domain was removed");
        };
        domain.ring(seat);
        // It may have other things to do than to listen; then it asks again.
        if unread_max.is_some_and(|most| self.has_room_for_rope(most))
            && let Some(rope) = domain.rope(seat)
        {
            self.say(&Answer::Rope(seat), &[rope.as_fd()]);
        }
        Then::Stay
    }

    fn close_endpoint(&mut self, domains: &[Served], seat: Seat) -> Then {
        let Standing::Member { domain, seats } = &mut self.standing else {
            return Then::HangUp("it has not said who it is");
        };
        let Some(place) = seats.iter().position(|mine| *mine == seat) else {
            return Then::HangUp("it closes what it has not");
        };
        seats.swap_remove(place);
        if let Some(domain) = domains.iter().find(|it| it.is_called(domain)) {
            domain.bury(&[seat]);
        }
        Then::Stay
    }
}

impl Refusals {
    fn note(&mut self, pid: u32, refusal: Refusal) {
        if let Some(count) = self.due() {
            tracing::warn!(pid, ?refusal, count, "processes are not let into the fabric");
        }
    }

    fn note_vm(&mut self, vf: &str) {
        if let Some(count) = self.due() {
            tracing::warn!(vf, count, "processes of a VM are not let into the fabric");
        }
    }

    /// How many there were since one was logged, if this one is to be.
    fn due(&mut self) -> Option<u64> {
        self.since_log += 1;
        let is_time = self.logged.is_none_or(|logged| logged.elapsed() >= LOG_AGAIN);
        is_time.then(|| {
            self.logged = Some(Instant::now());
            std::mem::take(&mut self.since_log)
        })
    }
}
