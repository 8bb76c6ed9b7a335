//! How a session's datagrams leave and arrive.
//!
//! A [`Link`] moves batches of datagrams with one system call in each direction, however many peers
//! they are for. [`Udp`] is the one that works everywhere; [`Xdp`] goes past the system's network
//! stack; [`Shm`] takes shared memory where both ends are on one machine; [`Faulty`] wraps any
//! other and loses, doubles, reorders, corrupts and delays what arrives. [`LinkDriver`] joins a
//! link to a sidecore's [`transport::Endpoint`]: two pollers, one at each end of the round.

mod counters;
mod driver;
mod faulty;
mod inside;
mod interface;
mod pages;
mod shm;
mod udp;
mod wire;
mod xdp;

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

pub use counters::LinkCounters;
pub use driver::{BATCH_DATAGRAMS, LinkDriver};
pub use faulty::{FaultCounters, Faults, Faulty};
pub use interface::{
    SIOCETHTOOL, interface_index, interface_is_running, interface_mtu, interface_receive_queues,
    set_interface_up,
};
pub use pages::{HUGE_PAGE_BYTES, HugePages};
pub use shm::{
    Callers, PlacesFull, Shm, ShmCounters, ShmDirectory, ShmListener, is_shared, make_way,
};
use sidecore::Progress;
use transport::{Pool, TransmitBatch};
pub use udp::{BindError, Udp, UdpConfig};
pub use wire::Wire;
pub use xdp::{
    Promiscuous, Xdp, XdpCard, XdpCardFds, XdpCounters, XdpError, XdpInterface, XdpPart, XdpQueue,
    XdpQueueFds, XdpSent,
};

/// The result of sending a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[must_use]
pub struct SendOutcome {
    /// Datagrams that were taken off the batch: sent, or dropped because they never can be.
    pub datagrams: usize,
    /// Datagrams that stay in the batch, for the next round.
    pub left: usize,
}

/// A datagram that arrived.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// Where it came from.
    pub from: SocketAddr,
    /// When it reached this host, by the clock of `now_ns`; not later than that, and as near to the
    /// wire as the link can tell.
    pub at_ns: u64,
    /// All of it.
    pub bytes: &'a [u8],
}

/// A way for datagrams between this sidecore and its peers. Never blocks.
pub trait Link: fmt::Debug {
    /// Sends as much of `batch` as it can with one system call. The bodies lie in `pool`. Sent
    /// datagrams are taken off the front; datagrams that the system refuses for now stay.
    fn send(&mut self, batch: &mut TransmitBatch, pool: &Pool) -> SendOutcome {
        self.send_first(batch, pool, usize::MAX)
    }

    /// As [`send`](Self::send), but only the first `count_max` datagrams: the next one is another
    /// link's.
    fn send_first(
        &mut self,
        batch: &mut TransmitBatch,
        pool: &Pool,
        count_max: usize,
    ) -> SendOutcome;

    /// Takes in what has arrived, a bounded number, with one system call; hands each datagram to
    /// `f`. Says how many it handed over.
    fn receive(&mut self, now_ns: u64, f: &mut dyn FnMut(Arrival<'_>)) -> usize;

    /// When [`Link::receive`] has something that no descriptor tells of.
    fn next_ns(&self) -> Option<u64> {
        None
    }

    /// Before a sleep: asks for [`fd`](Self::fd) to become readable where it would not by itself.
    /// Busy when something has arrived already.
    fn arm(&mut self) -> Progress {
        Progress::Idle
    }

    /// Becomes readable when something has arrived.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Where peers reach it; the port is the real one.
    fn local_addr(&self) -> SocketAddr;

    /// The largest datagram, in bytes without UDP's and IP's headers.
    fn datagram_max(&self) -> usize;

    /// The link's counters; other threads may read them.
    fn counters(&self) -> &Arc<LinkCounters>;
}
