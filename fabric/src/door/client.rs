//! The side of a process: [`Domain`].

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, IoSliceMut};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags,
    SocketAddrUnix, SocketFlags, SocketType,
};

use super::key::{Key, KeyError};
use super::wire::{Answer, MESSAGE_BYTES, NAME_BYTES_MAX, Refusal, Request, Seat};
use crate::region::{Region, RegionError};
use crate::{Endpoint, EndpointError, EndpointOptions};

/// How long the node may take to let somebody in, and to answer. It does nothing slow meanwhile;
/// but a job may start hundreds of processes at once on few cores.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where the node is called.
const SOCKET_VARIABLE: &str = "VRIO_FABRIC";
/// Which domain is meant.
const NAME_VARIABLE: &str = "VRIO_DOMAIN";
/// Its key; or the file that has it.
const KEY_VARIABLE: &str = "VRIO_DOMAIN_KEY";
const KEY_FILE_VARIABLE: &str = "VRIO_DOMAIN_KEY_FILE";

/// A process's membership of a domain. It ends when this and its endpoints are dropped, or with
/// the process.
#[derive(Debug)]
pub struct Domain {
    membership: Arc<Membership>,
}

/// What a domain and its endpoints have in common.
#[derive(Debug)]
struct Membership {
    host: u64,
    region: Arc<Region>,
    /// Locked for a question and its answer.
    connection: Mutex<OwnedFd>,
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
        "{0:?} is no domain's name, which has 1 to {NAME_BYTES_MAX} characters; `vrio domain list` \
         says which there are"
    )]
    Name(String),
    /// There is no key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The node is not there.
    #[error(
        "no node answers at {path:?}: {source}; is `vrio node` running, and does its configuration \
         say \"fabric\" with this path?"
    )]
    NoNode {
        /// Its socket.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The name or the key is wrong.
    #[error(
        "the node does not let this process into domain {0:?}: there is none of that name, or its \
         key is another; `vrio mpi env` has both as the node's configuration says them"
    )]
    Denied(String),
    /// The node is of another release.
    #[error("the node speaks another version; run programs and node of one release of vrio")]
    Version,
    /// There are as many members as there may be, or the node takes nobody new.
    #[error(
        "the domain takes nobody new: it has as many members as there may be (end some, or raise \
         \"endpoints-max\" in its [[domain]]), or its node is drained"
    )]
    Crowded,
    /// The node could not hand the memory over.
    #[error("the node cannot hand the domain's memory over; its log says why")]
    Broken,
    /// What answered is no node.
    #[error("what answers at {0:?} is no vrio node, or one of another version")]
    Foreign(PathBuf),
    /// It took too long.
    #[error("the node has not answered within {PATIENCE:?}; is it stopped, or the machine?")]
    Silent,
    /// The memory that the node handed over is not usable.
    #[error(transparent)]
    Region(#[from] RegionError),
}

/// Why there is no endpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenEndpointError {
    /// All slots are taken.
    #[error(
        "all endpoints of the domain are in use; end what has them, or raise \"endpoints-max\" in \
         its [[domain]]"
    )]
    Full,
    /// The node has ended the membership, or itself.
    #[error("the node has gone: {0}; join the domain again when it is back")]
    NodeGone(io::Error),
    /// It took too long.
    #[error("the node has not answered within {PATIENCE:?}; is it stopped, or the machine?")]
    Silent,
    /// The node said something that it must not.
    #[error("the node's answer makes no sense; run programs and node of one release of vrio")]
    Foreign,
    /// The slot that the node gave is none.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
}

/// What it takes to join a domain; nobody was asked yet.
#[derive(Debug)]
pub struct Invitation {
    socket: PathBuf,
    name: String,
    key: Key,
}

impl Invitation {
    /// As the environment says: `VRIO_FABRIC` (the node's socket), `VRIO_DOMAIN` (the domain's
    /// name), and `VRIO_DOMAIN_KEY` or `VRIO_DOMAIN_KEY_FILE`.
    ///
    /// # Errors
    /// Which of them is missing, or what is wrong with it.
    pub fn from_environment() -> Result<Self, JoinError> {
        let said = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let need = |name| said(name).ok_or(JoinError::Unset(name));
        let socket = PathBuf::from(need(SOCKET_VARIABLE)?);
        let name = need(NAME_VARIABLE)?;
        let name = name.to_str().ok_or_else(|| JoinError::Name(name.display().to_string()))?;
        let key = match (said(KEY_VARIABLE), said(KEY_FILE_VARIABLE)) {
            (Some(key), _) => Key::new(key.to_str().ok_or(KeyError::Form)?)?,
            (None, Some(file)) => Key::read(Path::new(&file))?,
            (None, None) => return Err(JoinError::Unset(KEY_FILE_VARIABLE)),
        };
        Ok(Self { socket, name: name.to_owned(), key })
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
        Domain::join_with(&self.socket, &self.name, &self.key)
    }
}

impl Domain {
    /// Joins a domain: calls the node at its Unix socket, with the domain's name and the key that
    /// the operator gave it.
    ///
    /// # Errors
    /// Why the process is not let in; each says what to do.
    pub fn join(socket: &Path, name: &str, key: &str) -> Result<Self, JoinError> {
        Self::join_with(socket, name, &Key::new(key)?)
    }

    fn join_with(socket: &Path, name: &str, key: &Key) -> Result<Self, JoinError> {
        let is_name = (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.contains('\0');
        if !is_name {
            return Err(JoinError::Name(name.to_owned()));
        }
        let connection =
            call(socket).map_err(|source| JoinError::NoNode { path: socket.to_owned(), source })?;
        let hello = Request::Hello { name: name.to_owned(), key: Box::new(*key.bytes()) };
        let (answer, memory) = ask(&connection, &hello).map_err(|lost| match lost {
            Lost::Silent => JoinError::Silent,
            Lost::Foreign => JoinError::Foreign(socket.to_owned()),
            Lost::Gone(source) => JoinError::NoNode { path: socket.to_owned(), source },
        })?;
        let host = match answer {
            Answer::Welcome { host } => host,
            Answer::Refused(Refusal::Denied) => return Err(JoinError::Denied(name.to_owned())),
            Answer::Refused(Refusal::Version) => return Err(JoinError::Version),
            Answer::Refused(Refusal::Crowded) => return Err(JoinError::Crowded),
            Answer::Refused(Refusal::Broken) => return Err(JoinError::Broken),
            Answer::Endpoint(_) | Answer::Full => {
                return Err(JoinError::Foreign(socket.to_owned()));
            }
        };
        let memory = memory.ok_or_else(|| JoinError::Foreign(socket.to_owned()))?;
        let region = Arc::new(Region::map(memory.as_fd())?);
        let membership = Membership { host, region, connection: Mutex::new(connection) };
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

    /// An endpoint: asks the node for a slot of the region, which is the endpoint's until it is
    /// dropped.
    ///
    /// # Errors
    /// When there is no slot left, or no node.
    pub fn endpoint(&self, options: EndpointOptions) -> Result<Endpoint, OpenEndpointError> {
        let membership = &self.membership;
        let (answer, _) =
            ask(&membership.connection(), &Request::NewEndpoint).map_err(|lost| match lost {
                Lost::Silent => OpenEndpointError::Silent,
                Lost::Foreign => OpenEndpointError::Foreign,
                Lost::Gone(error) => OpenEndpointError::NodeGone(error),
            })?;
        let seat = match answer {
            Answer::Endpoint(seat) => seat,
            Answer::Full => return Err(OpenEndpointError::Full),
            Answer::Welcome { .. } | Answer::Refused(_) => return Err(OpenEndpointError::Foreign),
        };
        let lease = Lease { membership: Arc::clone(membership), seat };
        let Seat { slot, incarnation } = seat;
        let region = Arc::clone(&membership.region);
        let mut endpoint = Endpoint::new(region, slot, incarnation, membership.host, &options)?;
        endpoint.at_end(Box::new(move || drop(lease)));
        Ok(endpoint)
    }

    /// The memory that the members share.
    #[cfg(test)]
    pub(super) fn region(&self) -> &Region {
        &self.membership.region
    }
}

impl Membership {
    fn connection(&self) -> MutexGuard<'_, OwnedFd> {
        // A question and its answer do not panic. An answer that came too late for its question
        // is as good for the next: slots are all the same.
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A slot that the node has given to this process. Dropped, it is the node's again: the endpoint
/// has touched it for the last time.
#[derive(Debug)]
struct Lease {
    membership: Arc<Membership>,
    seat: Seat,
}

impl Drop for Lease {
    fn drop(&mut self) {
        // Not answered. A node that is not there has nothing to be told, and one that does not read
        // is told by the connection's end.
        let _ = say(&self.membership.connection(), &Request::CloseEndpoint(self.seat));
    }
}

/// Why a question has no answer.
#[derive(Debug)]
enum Lost {
    Silent,
    Foreign,
    Gone(io::Error),
}

fn call(path: &Path) -> io::Result<OwnedFd> {
    let kind = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let connection = rustix::net::socket_with(kind.0, kind.1, SocketFlags::CLOEXEC, None)?;
    // Also bounds how long it waits for room in the listener's queue.
    set_socket_timeout(&connection, Timeout::Send, Some(PATIENCE))?;
    loop {
        match rustix::net::connect(&connection, &SocketAddrUnix::new(path)?) {
            Err(Errno::INTR) => {}
            answer => return Ok(answer.map(|()| connection)?),
        }
    }
}

fn say(connection: &OwnedFd, request: &Request) -> Result<(), Errno> {
    rustix::io::retry_on_intr(|| {
        rustix::net::send(connection, &request.to_bytes(), SendFlags::NOSIGNAL).map(drop)
    })
}

/// A question and its answer, with the memory that may come along.
fn ask(connection: &OwnedFd, request: &Request) -> Result<(Answer, Option<OwnedFd>), Lost> {
    let gone = |errno: Errno| Lost::Gone(errno.into());
    say(connection, request).map_err(gone)?;
    let end = Instant::now() + PATIENCE;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(|_| Lost::Silent)?;
        match poll(&mut [PollFd::new(connection, PollFlags::IN)], Some(&left)) {
            Err(Errno::INTR) => {}
            Err(errno) => return Err(gone(errno)),
            Ok(0) => return Err(Lost::Silent),
            Ok(_) => break,
        }
    }
    let mut bytes = [0; MESSAGE_BYTES + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let parts = &mut [IoSliceMut::new(&mut bytes)];
    let got = rustix::net::recvmsg(connection, parts, &mut ancillary, flags).map_err(gone)?;
    let mut memory = None;
    for part in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = part {
            memory = rights.last();
        }
    }
    match got.bytes {
        0 => Err(Lost::Gone(io::ErrorKind::UnexpectedEof.into())),
        _ if got.flags.contains(ReturnFlags::CTRUNC) => Err(Lost::Foreign),
        length => {
            let answer = Answer::from_bytes(&bytes[..length]).map_err(|_| Lost::Foreign)?;
            Ok((answer, memory))
        }
    }
}
