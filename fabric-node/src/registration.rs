//! The registration server: one thread that lets processes into domains and gives them slots.
//!
//! A client is *unregistered* until it has sent a domain's name and key; then it is a *member*. The
//! number of unregistered clients is bounded, in all and for each user, and so is the time that a
//! client may stay unregistered. The server disconnects a client that sends a malformed message or
//! does not read its answers. A member costs the node one or two descriptors, and each domain has a
//! bound of members. A member whose connection ends before its process does has *departed*: to
//! other members its endpoints are gone, but it keeps its slots until its process ends, because the
//! process may still store into the region.
//!
//! The kernel counts the descriptors that were sent and not received yet, for all sockets of one
//! user together. So the server looks how much a client has not read before it sends a descriptor.

mod client;
mod domain;
mod hand_over;
#[cfg(test)]
mod tests;
mod unread;
mod unregistered;
mod vf;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};

use self::client::{ClientState, RegistrationClient, Then, has_ended};
use self::domain::ServedDomain;
pub use self::domain::{DomainReport, DomainSettings, OpenError};
use self::vf::Vf;
pub use self::vf::{VfError, VfReport, VfSettings};
use crate::{GatewayDoorbell, SlotTable};
use fabric::registration::wire::{
    Foreign, MESSAGE_BYTES, RegistrationAnswer, RegistrationRefusal, RegistrationRequest,
};
use fabric::registration::{DomainKey, KEY_BYTES_MAX, SlotGrant};

/// Connections that may wait in the socket's queue.
const QUEUE_MAX: i32 = 1024;

/// Requests of one member that are answered in one turn, before other members have theirs.
const REQUESTS_AT_ONCE: usize = 16;

/// Events that a wait may return.
const EVENTS_MAX: usize = 64;

/// Shortest time between two log lines about refusals, which say how many there were: a process
/// that is refused decides how often it tries.
const LOG_AGAIN: Duration = Duration::from_secs(10);

/// Every user may connect: the key decides which client becomes a member.
const SOCKET_MODE: Mode = Mode::from_raw_mode(0o666);

/// The subject of an event: the listener, the thread's own eventfd, or a client by its number.
const LISTENER: u64 = 0;
const DOORBELL: u64 = 1;
const CLIENTS: u64 = 2;

/// A node's registration server. When it is dropped no process can join any more. Members go on
/// among themselves, but no death is noticed.
pub struct RegistrationServer {
    path: PathBuf,
    shared: Arc<RegistrationShared>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for RegistrationServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("path", &self.path).finish_non_exhaustive()
    }
}

/// The state that the thread and the callers of [`RegistrationServer`] share.
struct RegistrationShared {
    host: u64,
    epoll: Arc<OwnedFd>,
    listener: OwnedFd,
    /// Written to when the thread has to end.
    doorbell: OwnedFd,
    /// The thread holds it while it handles events, never while it waits for them.
    registry: Mutex<Registry>,
    /// Notified when the server is no longer paused.
    resumed: Condvar,
}

/// All that the server knows.
struct Registry {
    ending: bool,
    /// No event is handled: another process has taken over, or is about to.
    paused: bool,
    /// This process removes the socket's path when it ends.
    removes_path: bool,
    /// No new member is let in.
    refuses_new: bool,
    /// This process answers new connections, not its predecessor or successor.
    answering: bool,
    /// Whether connections are accepted, or wait in the queue; those of QEMU as well.
    listening: bool,
    /// Until when connections wait because there was no descriptor for one.
    rests_until: Option<Instant>,
    /// Whether the server watches for the end of a process, or only for that of its connection.
    watches_processes: bool,
    domains: Vec<ServedDomain>,
    clients: HashMap<u64, RegistrationClient>,
    unregistered: usize,
    /// Departed members that have slots, by the number that each had as a client.
    departed: HashMap<u64, DepartedMember>,
    next_client: u64,
    refusals: Refusals,
    /// The vfs: each lets one VM into a domain.
    vfs: Vec<Vf>,
    next_vf: u64,
}

/// A former member whose connection has ended and whose process has not. It keeps its slots.
struct DepartedMember {
    process: OwnedFd,
    domain: String,
    grants: Vec<SlotGrant>,
}

/// Counts refusals, for the log.
#[derive(Default)]
struct Refusals {
    since_log: u64,
    logged: Option<Instant>,
}

impl RegistrationServer {
    /// Listens at `path`, where no file may be, for a host of this (random, not zero) name.
    ///
    /// # Errors
    /// When something is at the path, or the system refuses.
    pub fn open(path: &Path, host: u64) -> io::Result<Self> {
        let kind = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = rustix::net::socket_with(kind.0, kind.1, flags, None)?;
        rustix::net::bind(&listener, &SocketAddrUnix::new(path)?)?;
        let listen = || -> io::Result<Self> {
            // Until the socket listens no process can connect.
            rustix::fs::chmod(path, SOCKET_MODE)?;
            rustix::net::listen(&listener, QUEUE_MAX)?;
            Self::adopt(path, host, listener)
        };
        let server = listen().inspect_err(|_| drop(std::fs::remove_file(path)))?;
        server.answer()?;
        Ok(server)
    }

    /// Takes over from the server of another process: `listener` is its socket, `host` the name
    /// that it gave its host. The new server is paused until [`RegistrationServer::answer`]; until
    /// then it may be dropped without any effect.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn adopt(path: &Path, host: u64, listener: OwnedFd) -> io::Result<Self> {
        assert_ne!(host, 0, "no address has host 0");
        let epoll = Arc::new(epoll::create(CreateFlags::CLOEXEC)?);
        let doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::empty())?;
        watch(&epoll, &doorbell, DOORBELL)?;
        let registry = Registry {
            ending: false,
            paused: true,
            removes_path: false,
            refuses_new: false,
            answering: false,
            listening: false,
            rests_until: None,
            watches_processes: true,
            domains: Vec::new(),
            clients: HashMap::new(),
            unregistered: 0,
            departed: HashMap::new(),
            next_client: CLIENTS,
            refusals: Refusals::default(),
            vfs: Vec::new(),
            next_vf: 0,
        };
        let (registry, resumed) = (Mutex::new(registry), Condvar::new());
        let shared =
            Arc::new(RegistrationShared { host, epoll, listener, doorbell, registry, resumed });
        let answers = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("fabric-register".to_owned())
            .spawn(move || answers.answer_all())?;
        Ok(Self { path: path.to_owned(), shared, thread: Some(thread) })
    }

    /// Answers new connections and members from now on.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn answer(&self) -> io::Result<()> {
        let registry = &mut *self.shared.registry();
        (registry.answering, registry.paused, registry.removes_path) = (true, false, true);
        registry.hold_liveness_of_all();
        registry.vfs.iter_mut().for_each(Vf::own);
        // Endpoints may have died while the server was paused.
        let _ = registry.announce_deaths();
        self.shared.resumed.notify_all();
        Ok(self.shared.listen_if_room(registry)?)
    }

    /// Accepts no new connection from now on: those wait for the process that takes over. Members
    /// are answered. [`RegistrationServer::answer`] takes it back.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn stop_accepting(&self) -> io::Result<()> {
        let registry = &mut *self.shared.registry();
        registry.answering = false;
        Ok(self.shared.listen_if_room(registry)?)
    }

    /// The listening socket.
    pub fn listener(&self) -> BorrowedFd<'_> {
        self.shared.listener.as_fd()
    }

    /// The path of the socket.
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
        let mut registry = self.shared.registry();
        if registry.domains.iter().any(|domain| domain.is_named(&settings.name)) {
            return Err(OpenError::Exists(settings.name));
        }
        registry.domains.push(ServedDomain::new(settings, self.shared.host)?);
        Ok(())
    }

    /// Ends a domain: its members are disconnected, and their endpoints are dead to each other.
    /// `false`: there is no such domain.
    pub fn remove(&self, name: &str) -> bool {
        let mut registry = self.shared.registry();
        let Some(place) = registry.domains.iter().position(|domain| domain.is_named(name)) else {
            return false;
        };
        let members: Vec<_> = registry.members_of(name).collect();
        for member in members {
            registry.hang_up(member, "its domain was removed");
        }
        registry.forget_vfs(name);
        // Those slots are never given to another owner: the domain is gone.
        registry.departed.retain(|_, departed| departed.domain != name);
        registry.domains.remove(place).announce_deaths_at_once();
        true
    }

    /// Lets processes in by another key from now on; members stay. `false`: there is no such
    /// domain.
    pub fn set_key(&self, name: &str, key: DomainKey) -> bool {
        let mut registry = self.shared.registry();
        let domain = registry.domains.iter_mut().find(|domain| domain.is_named(name));
        domain.map(|domain| domain.set_key(key)).is_some()
    }

    /// The slots of a domain, for its gateways, and the doorbell of each gateway, which members
    /// ring when it sleeps. None: there is no such domain, or no descriptor left.
    pub fn gateways(&self, name: &str) -> Option<(Arc<SlotTable>, Vec<GatewayDoorbell>)> {
        let registry = self.shared.registry();
        let (table, doorbells) = registry.domains.iter().find(|it| it.is_named(name))?.table();
        let doorbells = doorbells.iter().map(GatewayDoorbell::try_clone).collect::<io::Result<_>>();
        Some((table, doorbells.ok()?))
    }

    /// Whether new members are refused from now on. Members go on, also with new endpoints.
    pub fn set_refusing_new(&self, refuses_new: bool) {
        self.shared.registry().refuses_new = refuses_new;
    }

    /// How each domain is doing, in the order in which they were added.
    pub fn reports(&self) -> Vec<DomainReport> {
        let registry = self.shared.registry();
        let report = |domain: &ServedDomain| {
            let name = domain.name();
            domain.report(registry.members_of(name).count(), registry.vms_of(name))
        };
        registry.domains.iter().map(report).collect()
    }
}

#[cfg(test)]
impl RegistrationServer {
    /// From now on the end of a connection counts as that of its process: a test connects from its
    /// own process, which does not end.
    pub(super) fn believe_connections(&self) {
        self.shared.registry().watches_processes = false;
    }

    /// Watches processes again.
    pub(super) fn watch_processes(&self) {
        self.shared.registry().watches_processes = true;
    }

    /// Does something while no request is answered.
    pub(super) fn while_it_is_stopped<R>(&self, work: impl FnOnce() -> R) -> R {
        let _house = self.shared.registry();
        work()
    }

    /// Whether the server's state is free to be asked for now.
    pub(super) fn is_free(&self) -> bool {
        self.shared.registry.try_lock().is_some()
    }
}

impl Drop for RegistrationServer {
    fn drop(&mut self) {
        let removes_path = {
            let mut registry = self.shared.registry();
            registry.ending = true;
            registry.removes_path
        };
        self.shared.resumed.notify_all();
        let _ = rustix::io::write(&self.shared.doorbell, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        // The path of a successor's socket is not removed.
        if removes_path && let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(path = ?self.path, %error, "the fabric's socket cannot be removed");
        }
    }
}

fn watch(epoll: &OwnedFd, fd: impl AsFd, what: u64) -> Result<(), Errno> {
    epoll::add(epoll, fd, EventData::new_u64(what), EventFlags::IN)
}

impl RegistrationShared {
    fn registry(&self) -> MutexGuard<'_, Registry> {
        // Each client is changed as a whole.
        self.registry.lock()
    }

    /// The thread.
    fn answer_all(&self) {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        let mut patience = None;
        loop {
            self.wait_while_paused();
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), patience.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => panic!("waiting for our own descriptors: {errno}"),
            }
            let registry = &mut *self.registry();
            if registry.ending {
                return;
            }
            if registry.paused {
                continue;
            }
            for event in &events {
                match event.data.u64() {
                    LISTENER => self.let_in(registry),
                    DOORBELL => {}
                    event if event & vf::EVENTS != 0 => self.see_to_vf(registry, event),
                    client => self.hear(registry, client),
                }
            }
            let woken = self.listen_if_room(registry).and_then(|()| registry.wake_doorbells());
            if let Err(errno) = woken {
                tracing::error!(%errno, "the fabric's server cannot watch its sockets");
            }
            let doorbell = woken.ok().flatten();
            let deaths = registry.announce_deaths();
            patience = registry.hang_up_on_silence(doorbell.into_iter().chain(deaths).min());
        }
    }

    fn wait_while_paused(&self) {
        let must_wait = |registry: &mut Registry| registry.paused && !registry.ending;
        self.resumed.wait_while(&mut self.registry(), must_wait);
    }

    /// Reads and answers a client's requests, if it is still connected.
    fn hear(&self, registry: &mut Registry, number: u64) {
        if registry.departed.get(&number).is_some_and(|departed| has_ended(&departed.process)) {
            return registry.declare_dead(number);
        }
        for _ in 0..REQUESTS_AT_ONCE {
            let Some(client) = registry.clients.get(&number) else { return };
            let mut bytes = [0; MESSAGE_BYTES + 1];
            let heard = rustix::net::recv(&client.connection, &mut bytes, RecvFlags::DONTWAIT);
            let then = match heard {
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) if client.has_ended() => Then::HangUp("it has ended"),
                Err(Errno::AGAIN) => return,
                Err(_) | Ok((_, 0)) => Then::HangUp("its connection has ended"),
                Ok((_, length)) => {
                    let length = length.min(bytes.len());
                    self.answer(registry, number, &bytes[..length])
                }
            };
            if let Then::HangUp(why) = then {
                registry.hang_up(number, why);
                return;
            }
        }
    }

    fn answer(&self, registry: &mut Registry, number: u64, bytes: &[u8]) -> Then {
        let request = RegistrationRequest::from_bytes(bytes);
        if let Ok(RegistrationRequest::Hello { name, key }) = &request {
            return self.greet(registry, number, name, key);
        }
        let Registry { domains, clients, .. } = registry;
        let write_ends = unread::write_ends_of_each(clients.len());
        let Some(client) = clients.get_mut(&number) else { return Then::Stay };
        match request {
            Ok(RegistrationRequest::NewEndpoint) => client.new_endpoint(domains),
            Ok(RegistrationRequest::CloseEndpoint(grant)) => client.close_endpoint(domains, grant),
            Ok(RegistrationRequest::Process(grant)) => client.process_of(domains, grant),
            Ok(RegistrationRequest::OpenDoorbell(grant)) => client.open_doorbell(domains, grant),
            Ok(RegistrationRequest::Ring { grant, wants_write_end }) => {
                client.ring(domains, grant, wants_write_end.then_some(write_ends))
            }
            Ok(RegistrationRequest::Hello { .. }) | Err(Foreign::Bytes) => {
                Then::HangUp("its message is malformed")
            }
            Err(Foreign::Version) => {
                client.say(&RegistrationAnswer::Refused(RegistrationRefusal::Version), &[]);
                Then::HangUp("it speaks another version")
            }
        }
    }

    /// Registers a client as a member, or refuses it.
    fn greet(
        &self,
        registry: &mut Registry,
        number: u64,
        name: &str,
        key: &[u8; KEY_BYTES_MAX],
    ) -> Then {
        let members = registry.members_of(name).count();
        let admitted = match registry.refuses_new {
            true => Err(RegistrationRefusal::Crowded),
            false => domain::admit(&registry.domains, name, key, members),
        };
        let Some(client) = registry.clients.get_mut(&number) else { return Then::Stay };
        if matches!(client.state, ClientState::Member { .. }) {
            return Then::HangUp("it says hello twice");
        }
        match admitted {
            Ok(memory) => {
                if !client.say(&RegistrationAnswer::Welcome { host: self.host }, &memory) {
                    return Then::HangUp("it does not read its answers");
                }
                registry.unregistered -= 1;
                let (domain, grants) = (name.to_owned(), Vec::new());
                client.state = ClientState::Member { domain, grants };
                Then::Stay
            }
            Err(refusal) => {
                registry.refusals.note(client.pid, refusal);
                client.say(&RegistrationAnswer::Refused(refusal), &[]);
                Then::HangUp("it is refused")
            }
        }
    }

    /// Accepts connections while there are descriptors for them; else they wait in the queue.
    fn listen_if_room(&self, registry: &mut Registry) -> Result<(), Errno> {
        registry.rests_until = registry.rests_until.filter(|until| *until > Instant::now());
        let has_room = registry.answering && registry.rests_until.is_none();
        if has_room != registry.listening {
            let wanted = if has_room { EventFlags::IN } else { EventFlags::empty() };
            let data = EventData::new_u64(LISTENER);
            epoll::modify(&self.epoll, &self.listener, data, wanted)?;
            self.answer_vfs(registry, has_room)?;
            registry.listening = has_room;
        }
        Ok(())
    }
}

impl Registry {
    fn members_of(&self, name: &str) -> impl Iterator<Item = u64> {
        let is_member = move |(number, client): (&u64, &RegistrationClient)| match &client.state {
            ClientState::Member { domain, .. } if domain == name => Some(*number),
            _ => None,
        };
        self.clients.iter().filter_map(is_member)
    }

    /// Disconnects a client. Its endpoints are dead, or departed if its process has not ended.
    fn hang_up(&mut self, number: u64, why: &'static str) {
        let Some(client) = self.clients.remove(&number) else { return };
        match client.state {
            ClientState::Unregistered { .. } => self.unregistered -= 1,
            ClientState::Member { domain, grants } => {
                tracing::debug!(pid = client.pid, domain, why, "a process has left the fabric");
                let Some(served) = self.domains.iter().find(|it| it.is_named(&domain)) else {
                    return;
                };
                match client.process {
                    Some(process) if !grants.is_empty() && !has_ended(&process) => {
                        served.declare_departed(&grants);
                        self.departed.insert(number, DepartedMember { process, domain, grants });
                    }
                    // The process has ended, or there is no pidfd that could tell.
                    _ => served.declare_dead(&grants),
                }
            }
        }
    }

    /// Wakes sleepers for endpoints that have died; or says when that will be due.
    fn announce_deaths(&mut self) -> Option<Instant> {
        let now = Instant::now();
        self.domains.iter_mut().filter_map(|domain| domain.announce_deaths(now)).min()
    }

    /// The process of a departed member has ended.
    fn declare_dead(&mut self, number: u64) {
        let Some(departed) = self.departed.remove(&number) else { return };
        if let Some(domain) = self.domains.iter().find(|it| it.is_named(&departed.domain)) {
            domain.declare_dead(&departed.grants);
        }
    }
}

impl Refusals {
    fn note(&mut self, pid: u32, refusal: RegistrationRefusal) {
        if let Some(count) = self.due() {
            tracing::warn!(pid, ?refusal, count, "processes are refused by the fabric");
        }
    }

    fn note_vm(&mut self, vf: &str) {
        if let Some(count) = self.due() {
            tracing::warn!(vf, count, "processes of a VM are refused by the fabric");
        }
    }

    /// Counts a refusal. If it is time to log one, returns how many there were since the last log.
    fn due(&mut self) -> Option<u64> {
        self.since_log += 1;
        let is_time = self.logged.is_none_or(|logged| logged.elapsed() >= LOG_AGAIN);
        is_time.then(|| {
            self.logged = Some(Instant::now());
            std::mem::take(&mut self.since_log)
        })
    }
}
