//! The way to the network that a sidecore was given.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use sidecore::Progress;
use transport::{Pool, TransmitBatch};

use crate::{Arrival, Link, LinkCounters, SendOutcome, Udp, Xdp};

/// Through the system's network stack, or past it.
#[derive(Debug)]
pub enum Wire {
    /// Through it.
    Udp(Box<Udp>),
    /// Past it, with a socket beside.
    Xdp(Box<Xdp>),
}

impl From<Udp> for Wire {
    fn from(udp: Udp) -> Self {
        Self::Udp(Box::new(udp))
    }
}

impl From<Xdp> for Wire {
    fn from(xdp: Xdp) -> Self {
        Self::Xdp(Box::new(xdp))
    }
}

impl Wire {
    /// Its socket.
    pub fn udp(&self) -> &Udp {
        match self {
            Self::Udp(udp) => udp,
            Self::Xdp(xdp) => xdp.inner(),
        }
    }

    /// Its socket alone.
    pub fn into_udp(self) -> Udp {
        match self {
            Self::Udp(udp) => *udp,
            Self::Xdp(xdp) => xdp.into_inner(),
        }
    }

    /// The way past the stack, if it is one.
    pub fn xdp(&self) -> Option<&Xdp> {
        match self {
            Self::Udp(_) => None,
            Self::Xdp(xdp) => Some(xdp),
        }
    }
}

/// The same on either.
macro_rules! either {
    ($wire:expr, $link:ident => $do:expr) => {
        match $wire {
            Wire::Udp($link) => $do,
            Wire::Xdp($link) => $do,
        }
    };
}

impl Link for Wire {
    fn send_first(
        &mut self,
        batch: &mut TransmitBatch,
        pool: &Pool,
        count_max: usize,
    ) -> SendOutcome {
        either!(self, link => link.send_first(batch, pool, count_max))
    }

    fn receive(&mut self, now_ns: u64, f: &mut dyn FnMut(Arrival<'_>)) -> usize {
        either!(self, link => link.receive(now_ns, f))
    }

    fn next_ns(&self) -> Option<u64> {
        either!(self, link => link.next_ns())
    }

    fn arm(&mut self) -> Progress {
        either!(self, link => link.arm())
    }

    fn fd(&self) -> BorrowedFd<'_> {
        either!(self, link => link.fd())
    }

    fn local_addr(&self) -> SocketAddr {
        either!(self, link => link.local_addr())
    }

    fn datagram_max(&self) -> usize {
        either!(self, link => link.datagram_max())
    }

    fn counters(&self) -> &Arc<LinkCounters> {
        either!(self, link => link.counters())
    }
}
