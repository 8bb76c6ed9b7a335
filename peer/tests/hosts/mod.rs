//! One sidecore of a node for the tests of planes: its sessions and its planes. The test carries
//! its datagrams; nothing of it allocates once it is warm.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use peer::Planes;
use sidecore::Poll;
use transport::{Endpoint, EndpointConfig, TransmitBatch};

/// Datagrams that a sidecore gives at a time.
const BATCH_DATAGRAMS: usize = 64;

pub(crate) struct PlaneHost {
    pub(crate) addr: SocketAddr,
    pub(crate) endpoint: Rc<RefCell<Endpoint>>,
    pub(crate) planes: RefCell<Planes>,
    batch: TransmitBatch,
}

impl PlaneHost {
    /// Without planes.
    pub(crate) fn new(addr: SocketAddr, config: EndpointConfig) -> Self {
        let index = config.index;
        let endpoint = Rc::new(RefCell::new(Endpoint::new(config)));
        let planes = RefCell::new(Planes::new(index, Rc::clone(&endpoint)));
        Self { addr, endpoint, planes, batch: TransmitBatch::new(BATCH_DATAGRAMS) }
    }

    /// The beginning of a round: time passes. The test polls the planes next.
    pub(crate) fn begin(&self, now_ns: u64) {
        let planes = &mut *self.planes.borrow_mut();
        let _ = planes.poll(now_ns);
        self.endpoint.borrow_mut().advance(now_ns, planes);
    }

    /// The end of a round: each datagram that waits goes to `carry`, with its receiver's address.
    pub(crate) fn send(
        &mut self,
        now_ns: u64,
        datagram: &mut Vec<u8>,
        mut carry: impl FnMut(SocketAddr, &[u8]),
    ) {
        loop {
            let mut endpoint = self.endpoint.borrow_mut();
            endpoint.transmit(now_ns, &mut self.batch);
            if self.batch.is_empty() {
                return;
            }
            for outgoing in self.batch.datagrams() {
                datagram.clear();
                datagram.extend_from_slice(outgoing.head());
                datagram.extend_from_slice(outgoing.body(endpoint.pool()));
                carry(outgoing.to(), datagram);
            }
            let count = self.batch.len();
            self.batch.consume(count);
        }
    }

    /// A datagram has arrived.
    pub(crate) fn receive(&self, now_ns: u64, arrived_ns: u64, from: SocketAddr, bytes: &[u8]) {
        let planes = &mut *self.planes.borrow_mut();
        self.endpoint.borrow_mut().receive(now_ns, arrived_ns, from, bytes, planes);
    }
}
