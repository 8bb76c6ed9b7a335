//! Shared memory for nodes on one machine: the socket at which other nodes call, and calls to
//! theirs.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use config::{Config, PeerAddress};
use link::{Callers, ShmDirectory, ShmListener};

use crate::cores::LinkedSidecore;
use crate::error::ConnectError;

/// The state for shared memory that all sidecores of a node use.
#[derive(Debug, Default)]
pub struct ShmState {
    /// `None` when the configuration does not ask for shared memory: links are plain then.
    pub places: Option<ShmDirectory>,
    /// One for each sidecore, when this node has a door.
    pub callers: Vec<Callers>,
    /// The door at which nodes of this machine call.
    pub door: Option<ShmListener>,
}

impl ShmState {
    /// Opens the node's socket for callers, if it has one: a predecessor's, or one of its own.
    /// `ports` are its sidecores'.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub fn open(
        config: &Config,
        ports: &[u16],
        mut door: Option<OwnedFd>,
    ) -> Result<Self, ConnectError> {
        let calls = |address: &PeerAddress| matches!(address, PeerAddress::Shared(_));
        let addresses = config.peers.iter().filter_map(|peer| peer.address.as_ref());
        if config.shm.is_none() && !addresses.into_iter().any(calls) {
            return Ok(Self::default());
        }
        let mut shared = Self { places: Some(ShmDirectory::default()), ..Self::default() };
        if let Some(path) = &config.shm {
            // A predecessor that was killed may have the socket for a moment longer.
            let opened = match door.take() {
                Some(door) => Some(ShmListener::adopt(path, ports, door)),
                None => crate::lock::patiently(|| match ShmListener::open(path, ports) {
                    Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => None,
                    opened => Some(opened),
                }),
            };
            let opened = opened.unwrap_or_else(|| ShmListener::open(path, ports));
            let (door, callers) = opened.map_err(|source| ConnectError::Shm {
                place: config.place(&config.lines, "shm"),
                path: path.clone(),
                source,
            })?;
            shared.door = Some(door);
            shared.callers = callers;
        }
        Ok(shared)
    }
}

/// The address by which sessions reach a peer, or why this node cannot.
pub fn reach(
    places: Option<&ShmDirectory>,
    address: &PeerAddress,
) -> Result<SocketAddr, &'static str> {
    match (address, places) {
        (PeerAddress::Network(address), _) => Ok(*address),
        (PeerAddress::Shared(path), Some(places)) => {
            places.address(path).map_err(|_| "the limit of peers on this machine is reached")
        }
        (PeerAddress::Shared(_), None) => Err("this node shares no memory with others yet"),
    }
}

/// The same for a running node.
pub fn reach_from(
    cores: &[LinkedSidecore],
    address: &PeerAddress,
) -> Result<SocketAddr, &'static str> {
    reach(cores.iter().find_map(|core| core.places.as_ref()), address)
}
