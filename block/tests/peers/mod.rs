//! Two nodes' sidecores on one thread, and the wire between them: nothing of it allocates once it
//! is warm, so that what is counted is the product's.

#[path = "../keys/mod.rs"]
mod keys;

use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::sync::Arc;

use block::{Export, ExportOptions, Exports, Plane, RemoteVolume};
use keys::{IOHOST, VMHOST, security};
use peer::{Allow, Planes};
use sidecore::{Poll, Services};
use transport::{Endpoint, EndpointConfig, Security, TransmitBatch, VERSIONS};
use volume::Volume;
use volume::record::NoRecords;

const VOLUME: &str = "a";

/// Datagrams of one round of a sidecore.
const BATCH_DATAGRAMS: usize = 64;

/// Jumbo frames: fewer datagrams for the same requests.
const DATAGRAM_BYTES: usize = 8972;

struct Host {
    addr: SocketAddr,
    services: Services,
    endpoint: Rc<RefCell<Endpoint>>,
    planes: RefCell<Planes>,
    plane: Rc<RefCell<Plane>>,
    batch: TransmitBatch,
}

impl Host {
    fn new(
        name: &str,
        number: u16,
        security: Security,
        exports: Arc<Exports>,
        versions: RangeInclusive<u8>,
    ) -> Self {
        let mut config = EndpointConfig::new(name, number.into(), number.into());
        config.datagram_bytes_max = DATAGRAM_BYTES;
        config.security = security;
        config.versions = versions;
        config.entropy = [number as u8 + 1; 32];
        let endpoint = Rc::new(RefCell::new(Endpoint::new(config)));
        let services = Services::new();
        let mut planes = Planes::new(0, Rc::clone(&endpoint));
        let plane = Plane::new(&mut planes, exports, services.clone());
        services.insert(Rc::clone(&plane));
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, 4870 + number));
        let batch = TransmitBatch::new(BATCH_DATAGRAMS);
        let planes = RefCell::new(planes);
        Self { addr, services, endpoint, planes, plane, batch }
    }

    /// The beginning of a round: time passes, then calls and answers are looked at.
    fn serve(&mut self, now_ns: u64) {
        let planes = self.planes.get_mut();
        let _ = planes.poll(now_ns);
        self.endpoint.borrow_mut().advance(now_ns, planes);
        let _ = self.plane.borrow_mut().poll(now_ns);
    }

    /// The end of a round: everything that waits to be sent arrives.
    fn send(&mut self, to: &Self, now_ns: u64, datagram: &mut Vec<u8>) {
        let mut planes = to.planes.borrow_mut();
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
                let mut there = to.endpoint.borrow_mut();
                there.receive(now_ns, now_ns, self.addr, datagram, &mut *planes);
            }
            let count = self.batch.len();
            self.batch.consume(count);
        }
    }
}

/// A VMhost and an IOhost.
pub(crate) struct Peers {
    vm: Host,
    io: Host,
    datagram: Vec<u8>,
}

impl Peers {
    /// The IOhost exports `volume` and speaks these versions; sealed or not, the VMhost has heard
    /// what it is.
    pub(crate) fn new(
        volume: Arc<dyn Volume>,
        sealed: bool,
        versions: RangeInclusive<u8>,
    ) -> (Self, Arc<RemoteVolume>) {
        let options = ExportOptions { allow: vec![Allow::node(VMHOST)], shared: false };
        let export = Export::new(VOLUME, volume, options, Arc::new(NoRecords));
        let exports = Arc::new(Exports::default());
        exports.insert(export.expect("no records to read"));
        let vm = Host::new(VMHOST, 0, security(VMHOST, sealed), Arc::default(), VERSIONS);
        let io = Host::new(IOHOST, 1, security(IOHOST, sealed), exports, versions);
        vm.planes.borrow().peers().borrow_mut().add(IOHOST, io.addr);
        let remote = RemoteVolume::new(IOHOST, VOLUME);
        assert!(vm.plane.borrow_mut().clients.describe(Arc::clone(&remote)));
        let mut peers = Self { vm, io, datagram: Vec::with_capacity(1 << 16) };
        let mut now_ns = 1;
        while remote.described().is_none() {
            now_ns += 1_000_000;
            peers.round(now_ns, || {});
            assert!(now_ns < 10_000_000_000, "never described: {:?}", remote.why());
        }
        (peers, remote)
    }

    /// The services of the VMhost's disks.
    pub(crate) fn services(&self) -> &Services {
        &self.vm.services
    }

    /// The services of the IOhost's backends.
    pub(crate) fn io_services(&self) -> &Services {
        &self.io.services
    }

    /// A round of both; `work` is what the VMhost does besides its sessions.
    pub(crate) fn round(&mut self, now_ns: u64, work: impl FnOnce()) {
        self.vm.serve(now_ns);
        work();
        self.vm.send(&self.io, now_ns, &mut self.datagram);
        self.io.serve(now_ns);
        self.io.send(&self.vm, now_ns, &mut self.datagram);
    }

    /// Calls that were made and answered in a sealed session, for a check that it was one.
    pub(crate) fn sealed_sessions(&self) -> usize {
        let endpoint = self.vm.endpoint.borrow();
        endpoint.sessions().filter(|session| session.peer.key.is_some()).count()
    }
}
