//! The side of a process: [`Domain`].

mod connection;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use self::connection::{Connection, Lost, NodeConnection, PATIENCE};
use super::key::{DomainKey, KeyError};
use super::wire::{
    NAME_BYTES_MAX, RegistrationAnswer, RegistrationRefusal, RegistrationRequest, SlotGrant,
};
use crate::endpoint::Barriers;
use crate::mailbox::{
    DeviceError, HeldSlot, Lost as Unanswered, MailboxClient, MailboxDevice, Reply,
};
use crate::region::{Region, RegionError};
use crate::{Endpoint, EndpointError, EndpointOptions, EndpointProcess, LocalNode, NoDoorbell};

/// How often a process calls if the node hangs up before it answers. When too many callers of one
/// user wait, the node hangs up on the caller that has been silent for longest.
const CALLS: u32 = 6;
/// How long it waits before it calls again; twice as long each time.
const CALL_AGAIN: Duration = Duration::from_millis(10);

/// Where the node is called; inside of a VM, its device.
const SOCKET_VARIABLE: &str = "VRIO_FABRIC";
/// Which domain is meant.
const NAME_VARIABLE: &str = "VRIO_DOMAIN";
/// Its key; or the file that has it.
const KEY_VARIABLE: &str = "VRIO_DOMAIN_KEY";
const KEY_FILE_VARIABLE: &str = "VRIO_DOMAIN_KEY_FILE";

/// The longest time of a load where memory is cached: several times that of the nearest cache, and
/// a fifth of that of a load from memory.
pub const LOAD_COST_CACHED_NS_MAX: f64 = 20.0;

/// A process's membership of a domain. It ends when this and its endpoints are dropped, or with
/// the process.
#[derive(Debug)]
pub struct Domain {
    membership: Arc<Membership>,
}

/// The common part of a domain and its endpoints.
#[derive(Debug)]
struct Membership {
    host: u64,
    region: Arc<Region>,
    /// The gateways' doorbells, in the order of their slots.
    doorbells: Vec<OwnedFd>,
    node: NodeAccess,
    /// The time of a load of the region in nanoseconds, where that is not plain memory.
    load_cost_ns: Option<f64>,
    /// How its endpoints and others see whether an endpoint sleeps.
    barriers: Barriers,
}

/// How the node is asked.
#[derive(Debug)]
enum NodeAccess {
    /// Over a socket; locked for a question and its answer.
    Socket { line: NodeConnection, connection: Mutex<Connection> },
    /// From inside of a VM.
    MailboxClient(Box<MailboxClient>),
}

/// Why a process is no member.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// A variable of the environment is not set.
    #[error("{0} is not set; `eval \"$(vrio mpi env)\"` sets what a process needs")]
    Unset(&'static str),
    /// The name is none.
    #[error(
        "{0:?} is not a domain's name, which has 1 to {NAME_BYTES_MAX} characters; `vrio domain \
         list` lists the domains"
    )]
    Name(String),
    /// There is no key.
    #[error(transparent)]
    DomainKey(#[from] KeyError),
    /// The node is not there.
    #[error(
        "no node answers at {path:?}: {source}; is `vrio node` running, and does its configuration \
         have \"fabric\" with this path?"
    )]
    NoNode {
        /// Its socket.
        path: PathBuf,
        /// The system's answer.
        r#source: io::Error,
    },
    /// The name or the key is wrong.
    #[error(
        "the node does not let this process into domain {0:?}: there is no domain of this name, or \
         its key differs; `vrio mpi env` prints both from the node's configuration"
    )]
    Denied(String),
    /// The node is of another release.
    #[error("the node speaks another version; run programs and node of one release of vrio")]
    Version,
    /// There are as many members as there may be, or the node takes no new member.
    #[error(
        "the domain takes no new members: it has the most members (end some, or raise \
         \"endpoints-max\" in its [[domain]]), or its node is drained"
    )]
    Crowded,
    /// The node could not hand the memory over.
    #[error("the node cannot hand the domain's memory over; its log says why")]
    Broken,
    /// The process that answered is no node.
    #[error(
        "the process that answers at {0:?} is not a vrio node, or a vrio node of another \
             version"
    )]
    Foreign(PathBuf),
    /// It took too long.
    #[error("the node has not answered within {PATIENCE:?}; is it stopped, or the machine?")]
    Silent,
    /// The memory that the node handed over is not usable.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// Inside of a VM: the device is not usable.
    #[error(transparent)]
    MailboxDevice(#[from] DeviceError),
    /// Inside of a VM: the node does not answer.
    #[error(
        "the node does not answer through the VM's device; if the node was started again, unplug \
         the device of each VM and plug it in again (`vrio vf list` on the host)"
    )]
    MailboxSilent,
    /// Inside of a VM: the node whose domain the device shows is no more.
    #[error(
        "the node that this VM's device belongs to has ended, or has removed the domain: unplug \
         the device and plug it in again once the domain is back (`vrio vf list` on the host)"
    )]
    NodeEnded,
    /// Inside of a VM: this system does not provide something that is needed.
    #[error("cannot tell processes apart in this VM: {0}; it takes /proc, and a tmpfs at /dev/shm")]
    HolderLock(io::Error),
}

/// Why there is no endpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenEndpointError {
    /// All slots are taken.
    #[error(
        "all endpoints of the domain are in use, or were left with messages that a process has not \
         received; end processes that hold endpoints or do not receive, or raise \"endpoints-max\" \
         in its [[domain]]"
    )]
    Full,
    /// The node has ended the membership, or itself.
    #[error("the node has gone: {0}; join the domain again when it is back")]
    NodeGone(io::Error),
    /// It took too long.
    #[error("the node has not answered within {PATIENCE:?}; is it stopped, or the machine?")]
    Silent,
    /// The node said something that it must not.
    #[error("the node's answer is not valid; run programs and node of one release of vrio")]
    Foreign,
    /// The slot that the node gave is none.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
}

/// Where the node is asked.
#[derive(Debug)]
enum NodePlace {
    Socket(PathBuf),
    /// The only `ivshmem` device, or the one at a PCI address.
    MailboxDevice(Option<String>),
    /// The only one, with the slots through a `/dev/dax..` over the same memory.
    Cached(PathBuf),
}

/// The value of the variable for the node's socket inside of a VM that has one device.
pub const IN_VM: &str = "ivshmem";

/// How devices begin that show memory as it is.
const CACHED: &str = "/dev/dax";

impl NodePlace {
    fn new(said: &str) -> Self {
        match said {
            IN_VM => Self::MailboxDevice(None),
            path if path.starts_with(CACHED) => Self::Cached(path.into()),
            address if is_pci(address) => Self::MailboxDevice(Some(address.to_owned())),
            path => Self::Socket(path.into()),
        }
    }
}

/// Whether a word is a PCI address such as 0000:00:03.0.
fn is_pci(word: &str) -> bool {
    let is_hex = |part: &str, digits: usize| {
        part.len() == digits && part.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let parts: Vec<_> = word.split([':', '.']).collect();
    matches!(parts[..], [domain, bus, slot, function]
        if is_hex(domain, 4) && is_hex(bus, 2) && is_hex(slot, 2) && is_hex(function, 1))
}

/// Everything that joining a domain takes; the node was not asked yet.
#[derive(Debug)]
pub struct Invitation {
    place: NodePlace,
    name: String,
    key: DomainKey,
}

impl Invitation {
    /// As the environment says: `VRIO_FABRIC` (the node's socket; inside of a VM "ivshmem", or the
    /// PCI address of the device where there are several, or a `/dev/dax..` over the same memory),
    /// `VRIO_DOMAIN` (the domain's name), and `VRIO_DOMAIN_KEY` or `VRIO_DOMAIN_KEY_FILE`.
    ///
    /// # Errors
    /// Which of them is missing, or what is wrong with it.
    pub fn from_environment() -> Result<Self, JoinError> {
        let said = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let need = |name| said(name).ok_or(JoinError::Unset(name));
        let place = need(SOCKET_VARIABLE)?;
        let place =
            place.to_str().map_or_else(|| NodePlace::Socket((&place).into()), NodePlace::new);
        let name = need(NAME_VARIABLE)?;
        let name = name.to_str().ok_or_else(|| JoinError::Name(name.display().to_string()))?;
        let key = match (said(KEY_VARIABLE), said(KEY_FILE_VARIABLE)) {
            (Some(key), _) => DomainKey::new(key.to_str().ok_or(KeyError::Form)?)?,
            (None, Some(file)) => DomainKey::read(Path::new(&file))?,
            (None, None) => return Err(JoinError::Unset(KEY_FILE_VARIABLE)),
        };
        Ok(Self { place, name: name.to_owned(), key })
    }

    /// The domain's name.
    pub fn domain(&self) -> &str {
        &self.name
    }

    /// Joins.
    ///
    /// # Errors
    /// As [`Domain::join`].
    pub fn accept(&self) -> Result<Domain, JoinError> {
        match &self.place {
            NodePlace::Socket(socket) => Domain::join_with(socket, &self.name, &self.key),
            NodePlace::MailboxDevice(address) => {
                Domain::join_by_device((address.as_deref(), None), &self.name, &self.key)
            }
            NodePlace::Cached(data) => {
                Domain::join_by_device((None, Some(data)), &self.name, &self.key)
            }
        }
    }
}

impl Domain {
    /// Joins a domain: calls the node at its Unix socket, with the domain's name and the key that
    /// the operator gave it.
    ///
    /// # Errors
    /// Why the process is not let in; each says what to do.
    pub fn join(socket: &Path, name: &str, key: &str) -> Result<Self, JoinError> {
        Self::join_with(socket, name, &DomainKey::new(key)?)
    }

    fn join_with(socket: &Path, name: &str, key: &DomainKey) -> Result<Self, JoinError> {
        check_name(name)?;
        let hello =
            RegistrationRequest::Hello { name: name.to_owned(), key: Box::new(*key.bytes()) };
        let (connection, answer, along) = greet(socket, &hello)?;
        let host = match answer {
            RegistrationAnswer::Welcome { host } => host,
            RegistrationAnswer::Refused(RegistrationRefusal::Denied) => {
                return Err(JoinError::Denied(name.to_owned()));
            }
            RegistrationAnswer::Refused(RegistrationRefusal::Version) => {
                return Err(JoinError::Version);
            }
            RegistrationAnswer::Refused(RegistrationRefusal::Crowded) => {
                return Err(JoinError::Crowded);
            }
            RegistrationAnswer::Refused(RegistrationRefusal::Broken) => {
                return Err(JoinError::Broken);
            }
            _ => return Err(JoinError::Foreign(socket.to_owned())),
        };
        let mut along = along.into_iter();
        let memory = along.next().ok_or_else(|| JoinError::Foreign(socket.to_owned()))?;
        let region = Arc::new(Region::map(memory.as_fd())?);
        let node =
            NodeAccess::Socket { line: connection.line(), connection: Mutex::new(connection) };
        let (doorbells, barriers) = (along.collect(), Barriers::ask_for());
        let membership = Membership { host, region, doorbells, node, load_cost_ns: None, barriers };
        Ok(Self { membership: Arc::new(membership) })
    }

    /// Joins from inside of a VM.
    fn join_by_device(
        (address, data): (Option<&str>, Option<&Path>),
        name: &str,
        key: &DomainKey,
    ) -> Result<Self, JoinError> {
        check_name(name)?;
        let device = Arc::new(MailboxDevice::find(address, data)?);
        let (region, number) = (Arc::clone(&device.region), device.number);
        let load_cost_ns = Some(region.load_cost_ns());
        let doorbell = Box::new(move || device.ring());
        Self::join_by_mailbox(region, number, (name, key), doorbell, load_cost_ns)
    }

    /// Joins by a mailbox of a region.
    ///
    /// # Errors
    /// As [`Domain::join`].
    pub fn join_by_mailbox(
        region: Arc<Region>,
        number: u8,
        (name, key): (&str, &DomainKey),
        doorbell: crate::mailbox::RingNode,
        load_cost_ns: Option<f64>,
    ) -> Result<Self, JoinError> {
        let lost = |lost| match lost {
            Unanswered::Gone => JoinError::NodeEnded,
            Unanswered::Silent | Unanswered::Foreign => JoinError::MailboxSilent,
            Unanswered::System(error) => JoinError::HolderLock(error),
        };
        let mailbox =
            MailboxClient::new(Arc::clone(&region), number, (name, key), doorbell).map_err(lost)?;
        match mailbox.hello().map_err(lost)? {
            Reply::Done => {}
            Reply::Denied => return Err(JoinError::Denied(name.to_owned())),
            Reply::Crowded => return Err(JoinError::Crowded),
            Reply::Granted(_) | Reply::Full => return Err(JoinError::MailboxSilent),
        }
        let host = region.options().host;
        let (node, doorbells) = (NodeAccess::MailboxClient(Box::new(mailbox)), Vec::new());
        // Fences that the host's kernel makes are none for this one's processors.
        let barriers = Barriers::Own;
        let membership = Membership { host, region, doorbells, node, load_cost_ns, barriers };
        Ok(Self { membership: Arc::new(membership) })
    }

    /// Joins the domain that the environment names: see [`Invitation::from_environment`].
    ///
    /// # Errors
    /// Which variable is missing; else as [`Domain::join`].
    pub fn from_environment() -> Result<Self, JoinError> {
        Invitation::from_environment()?.accept()
    }

    /// The node's random name of this host: in the address of every endpoint here.
    pub fn host(&self) -> u64 {
        self.membership.host
    }

    /// The time of a load of the region, in nanoseconds, where it is seen through a device. More
    /// than [`LOAD_COST_CACHED_NS_MAX`] means that it is mapped uncached.
    pub fn load_cost_ns(&self) -> Option<f64> {
        self.membership.load_cost_ns
    }

    /// Whether this process is inside of a VM.
    pub fn is_in_vm(&self) -> bool {
        matches!(self.membership.node, NodeAccess::MailboxClient(_))
    }

    /// An endpoint: asks the node for a slot of the region, which is the endpoint's until it is
    /// dropped.
    ///
    /// # Errors
    /// When there is no slot left, or no node.
    pub fn endpoint(&self, options: EndpointOptions) -> Result<Endpoint, OpenEndpointError> {
        let membership = &self.membership;
        let (grant, process, held) = match &membership.node {
            NodeAccess::Socket { connection, .. } => {
                let (grant, process) = grant_by_socket(connection)?;
                (grant, process, None)
            }
            NodeAccess::MailboxClient(mailbox) => {
                let held = grant_by_mailbox(mailbox)?;
                // Whose memory it would be, this kernel does not know.
                (held.grant, 0, Some(held))
            }
        };
        let lease = Lease { membership: Arc::clone(membership), grant, held };
        let SlotGrant { slot, incarnation } = grant;
        let region = Arc::clone(&membership.region);
        let mut endpoint = Endpoint::new(region, slot, incarnation, membership.host, &options)?;
        // Where the node knows this process by another number than it has itself, it would know
        // other processes by numbers that mean different ones here.
        if process == std::process::id() {
            let membership = Arc::clone(membership);
            endpoint.ask_processes(move |slot, incarnation| {
                let NodeAccess::Socket { connection, .. } = &membership.node else {
                    return EndpointProcess::Nobodys;
                };
                // Not to wait for another thread, which may be waiting for the node.
                let connection = connection.try_lock();
                connection.map_or(EndpointProcess::NotKnown, |mut connection| {
                    connection.process_of(SlotGrant { slot, incarnation })
                })
            });
        }
        endpoint.set_barriers(membership.barriers);
        endpoint.set_home(Arc::<Membership>::clone(membership));
        endpoint.at_end(Box::new(move || drop(lease)));
        Ok(endpoint)
    }

    /// A descriptor that is hung up once the node is gone, if that can be seen: not from inside of
    /// a VM.
    pub(crate) fn line(&self) -> Option<BorrowedFd<'_>> {
        match &self.membership.node {
            NodeAccess::Socket { line, .. } => Some(line.as_fd()),
            NodeAccess::MailboxClient(_) => None,
        }
    }

    /// The memory that the members share.
    #[cfg(any(test, feature = "testing"))]
    pub fn region(&self) -> &Region {
        &self.membership.region
    }

    /// Whether the node is, as far as endpoints know.
    #[cfg(any(test, feature = "testing"))]
    pub fn is_node_there(&self) -> bool {
        self.membership.is_there()
    }
}

fn check_name(name: &str) -> Result<(), JoinError> {
    let is_name = (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.contains('\0');
    if is_name { Ok(()) } else { Err(JoinError::Name(name.to_owned())) }
}

/// Registers this process, and tries again where other clients were in the way.
fn greet(
    socket: &Path,
    hello: &RegistrationRequest,
) -> Result<(Connection, RegistrationAnswer, Vec<OwnedFd>), JoinError> {
    let refuse = |source| JoinError::NoNode { path: socket.to_owned(), source };
    let mut pause = CALL_AGAIN;
    for call in 1.. {
        let mut connection = Connection::call(socket).map_err(refuse)?;
        match connection.ask(hello) {
            Ok((answer, along)) => return Ok((connection, answer, along)),
            Err(Lost::Silent) => return Err(JoinError::Silent),
            Err(Lost::Foreign) => return Err(JoinError::Foreign(socket.to_owned())),
            Err(Lost::Gone(source)) if call == CALLS => return Err(refuse(source)),
            Err(Lost::Gone(_)) => std::thread::sleep(pause),
        }
        pause *= 2;
    }
    unreachable!("the last call has an answer or an error")
}

fn lock(connection: &Mutex<Connection>) -> MutexGuard<'_, Connection> {
    // A question and its answer do not panic.
    connection.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A slot, and the number that the node knows this process by.
fn grant_by_socket(connection: &Mutex<Connection>) -> Result<(SlotGrant, u32), OpenEndpointError> {
    let (answer, _) =
        lock(connection).ask(&RegistrationRequest::NewEndpoint).map_err(|lost| match lost {
            Lost::Silent => OpenEndpointError::Silent,
            Lost::Foreign => OpenEndpointError::Foreign,
            Lost::Gone(error) => OpenEndpointError::NodeGone(error),
        })?;
    match answer {
        RegistrationAnswer::Endpoint { grant, process } => Ok((grant, process)),
        RegistrationAnswer::Full => Err(OpenEndpointError::Full),
        _ => Err(OpenEndpointError::Foreign),
    }
}

fn grant_by_mailbox(mailbox: &MailboxClient) -> Result<HeldSlot, OpenEndpointError> {
    let held = mailbox.open().map_err(|lost| match lost {
        Unanswered::Gone => OpenEndpointError::NodeGone(io::ErrorKind::NotConnected.into()),
        Unanswered::Silent => OpenEndpointError::Silent,
        Unanswered::Foreign => OpenEndpointError::Foreign,
        Unanswered::System(error) => OpenEndpointError::NodeGone(error),
    })?;
    held.map_err(|reply| match reply {
        Reply::Full => OpenEndpointError::Full,
        _ => OpenEndpointError::Foreign,
    })
}

impl LocalNode for Membership {
    fn wake(&self, gateway: u16) {
        match (&self.node, self.doorbells.get(usize::from(gateway))) {
            // It can only fail when the counter is full, and then it is readable anyhow.
            (NodeAccess::Socket { .. }, Some(doorbell)) => {
                let _ = rustix::io::write(doorbell, &1_u64.to_ne_bytes());
            }
            (NodeAccess::Socket { .. }, None) => {}
            // The node's end of the VM's doorbell wakes the gateways.
            (NodeAccess::MailboxClient(mailbox), _) => mailbox.ring(),
        }
    }

    fn ring(&self, slot: u16, incarnation: u32) -> bool {
        let grant = SlotGrant { slot, incarnation };
        match &self.node {
            NodeAccess::Socket { line, connection } => {
                // Not to wait for another thread, which may be waiting for the node.
                let mut connection = connection.try_lock().ok();
                if connection.as_mut().is_some_and(|connection| connection.ring(grant)) {
                    return true;
                }
                let lives = |it: SlotGrant| self.region.is_live(it.slot, it.incarnation);
                let wants_write_end = connection
                    .is_some_and(|mut connection| connection.wants_write_end(grant, lives));
                line.say(&RegistrationRequest::Ring { grant, wants_write_end })
            }
            // The node wakes all that sleep.
            NodeAccess::MailboxClient(mailbox) => {
                mailbox.ring();
                true
            }
        }
    }

    fn open_doorbell(&self, slot: u16, incarnation: u32) -> Result<OwnedFd, NoDoorbell> {
        let NodeAccess::Socket { connection, .. } = &self.node else {
            return Err(NoDoorbell::InVm);
        };
        let grant = SlotGrant { slot, incarnation };
        match lock(connection).ask(&RegistrationRequest::OpenDoorbell(grant)) {
            Ok((_, mut along)) => along.pop().ok_or(NoDoorbell::NoDescriptor),
            Err(Lost::Foreign) => Err(NoDoorbell::NoDescriptor),
            Err(Lost::Silent | Lost::Gone(_)) => Err(NoDoorbell::NoNode),
        }
    }

    fn reopen_doorbell(&self, slot: u16, incarnation: u32) -> Option<OwnedFd> {
        let NodeAccess::Socket { connection, .. } = &self.node else { return None };
        // Not to wait for another thread, which may be waiting for the node.
        connection.try_lock().ok()?.reopen_doorbell(SlotGrant { slot, incarnation })
    }

    fn is_there(&self) -> bool {
        // Inside of a VM it is the region that says so.
        let NodeAccess::Socket { connection, .. } = &self.node else {
            return !self.region.is_orphaned();
        };
        // A thread that is asking the node notices it by itself.
        connection.try_lock().map_or(true, |connection| connection.is_up())
    }
}

/// A slot that the node has given to this process. Dropped, it is the node's again: the endpoint
/// has touched it for the last time.
#[derive(Debug)]
struct Lease {
    membership: Arc<Membership>,
    grant: SlotGrant,
    /// Where it was granted by a mailbox, its holder lock.
    held: Option<HeldSlot>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        // The slot is the parent's, in a child that has inherited this.
        if !self.membership.region.is_here() {
            return;
        }
        match (&self.membership.node, self.held.take()) {
            // Not answered. A node that is not there has nothing to be told, and one that does not
            // read is told by the connection's end.
            (NodeAccess::Socket { connection, .. }, _) => {
                let _ = lock(connection).say(&RegistrationRequest::CloseEndpoint(self.grant));
            }
            (NodeAccess::MailboxClient(mailbox), Some(held)) => mailbox.close(held),
            (NodeAccess::MailboxClient(_), None) => {}
        }
    }
}
