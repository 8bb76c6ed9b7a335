//! The pollers that join a link to an endpoint: one at the beginning of a round, one at its end.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use sidecore::{Local, Poll, PollerId, Progress, RoundStage, Wake};
use transport::{Endpoint, Sink, TransmitBatch};

use crate::{Arrival, Link};

/// The most datagrams that a single round sends: a quarter of a MiB over Ethernet. The wire of a
/// fast network takes as much in the time of a round.
pub const BATCH_DATAGRAMS: usize = 256;

/// When the socket refused datagrams, how long a sleeping sidecore waits until it tries again.
const RETRY_NS: u64 = 100_000;

/// A link and its endpoint at work on a sidecore: where their pollers are registered.
#[derive(Debug)]
pub struct LinkDriver {
    receive: PollerId,
    transmit: PollerId,
}

/// A link or an endpoint, which both pollers use.
type LinkShared<T> = Rc<RefCell<T>>;

impl LinkDriver {
    /// Registers the two pollers. The poller in [`RoundStage::Receive`] feeds arrived datagrams to
    /// the endpoint and hands its events to `sink`. The poller in [`RoundStage::Transmit`] sends
    /// the endpoint's datagrams.
    pub fn install(
        local: &mut Local,
        link: LinkShared<dyn Link>,
        endpoint: LinkShared<Endpoint>,
        sink: LinkShared<dyn Sink>,
    ) -> Self {
        let receiver =
            LinkReceiver { link: Rc::clone(&link), endpoint: Rc::clone(&endpoint), sink };
        let batch = TransmitBatch::new(BATCH_DATAGRAMS);
        let transmitter = Transmitter { link, endpoint, batch, last_ns: local.now_ns() };
        Self {
            receive: local.add(RoundStage::Receive, Box::new(receiver)),
            transmit: local.add(RoundStage::Transmit, Box::new(transmitter)),
        }
    }

    /// Takes the pollers out. Datagrams that were not sent are lost, like others.
    pub fn remove(self, local: &mut Local) {
        local.remove(self.receive);
        local.remove(self.transmit);
    }
}

struct LinkReceiver {
    link: LinkShared<dyn Link>,
    endpoint: LinkShared<Endpoint>,
    sink: LinkShared<dyn Sink>,
}

impl Poll for LinkReceiver {
    fn label(&self) -> String {
        "datagrams that arrive".to_owned()
    }

    fn poll(&mut self, now_ns: u64) -> Progress {
        let mut endpoint = self.endpoint.borrow_mut();
        let mut sink = self.sink.borrow_mut();
        let arrived =
            self.link.borrow_mut().receive(now_ns, &mut |Arrival { from, at_ns, bytes }| {
                endpoint.receive(now_ns, at_ns, from, bytes, &mut *sink);
            });
        let due = endpoint.next_timeout_ns().is_some_and(|at_ns| at_ns <= now_ns);
        endpoint.advance(now_ns, &mut *sink);
        Progress::busy_if(arrived > 0 || due)
    }

    fn arm(&mut self, wake: &mut Wake) -> Progress {
        let mut link = self.link.borrow_mut();
        let progress = link.arm();
        wake.on_readable(link.fd());
        let timeout_ns = self.endpoint.borrow().next_timeout_ns();
        for deadline_ns in [timeout_ns, link.next_ns()].into_iter().flatten() {
            wake.at(deadline_ns);
        }
        progress
    }
}

struct Transmitter {
    link: LinkShared<dyn Link>,
    endpoint: LinkShared<Endpoint>,
    /// Datagrams that the endpoint handed over and the link has not sent.
    batch: TransmitBatch,
    last_ns: u64,
}

impl Poll for Transmitter {
    fn label(&self) -> String {
        "datagrams to send".to_owned()
    }

    fn poll(&mut self, now_ns: u64) -> Progress {
        self.last_ns = now_ns;
        let mut endpoint = self.endpoint.borrow_mut();
        endpoint.transmit(now_ns, &mut self.batch);
        if self.batch.is_empty() {
            return Progress::Idle;
        }
        let sent = self.link.borrow_mut().send(&mut self.batch, endpoint.pool());
        Progress::busy_if(sent.datagrams > 0)
    }

    fn arm(&mut self, wake: &mut Wake) -> Progress {
        if !self.batch.is_empty() {
            wake.at(self.last_ns + RETRY_NS);
        }
        Progress::Idle
    }
}

impl fmt::Debug for Transmitter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Transmitter({} waiting)", self.batch.len())
    }
}
