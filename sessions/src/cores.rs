//! A sidecore, and what is seen of it from outside.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use block::server::ServerCounters;
use link::{LinkCounters, ShmCounters, ShmDirectory, XdpCounters};
use sidecore::Sidecore;
use volume::uring::UringCounters;

/// A sidecore, and its counters for other threads.
#[derive(Debug)]
pub struct LinkedSidecore {
    /// The sidecore itself.
    pub sidecore: Sidecore,
    /// The counters of its io_uring, if it has one.
    pub uring: Option<Arc<UringCounters>>,
    /// The address of its sessions, if it has one, and its link's counters.
    pub link: Option<(SocketAddr, Arc<LinkCounters>)>,
    /// Peers on this machine, if the sidecore shares memory with any.
    pub places: Option<ShmDirectory>,
    /// The counters of that memory.
    pub shm: Option<Arc<ShmCounters>>,
    /// Counters of datagrams that go past the network stack, if its link goes that way.
    pub xdp: Option<Arc<XdpCounters>>,
    /// The counters of volumes that it serves to peers.
    pub server: Option<Arc<ServerCounters>>,
    /// The counters of networks that it serves to peers.
    pub net_server: Option<Arc<net::remote::ServerCounters>>,
    /// How often it refused a peer a session.
    pub refused: Option<Arc<AtomicU64>>,
    /// A descriptor of its link's socket, for a successor.
    pub socket: Option<OwnedFd>,
}
