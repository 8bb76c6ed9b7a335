//! Two nodes' sidecores on one thread, and the wire between them: nothing of it allocates once it
//! is warm, so that what is counted is the product's.

#[path = "../../../peer/tests/hosts/mod.rs"]
mod hosts;
#[path = "../keys/mod.rs"]
mod keys;

use std::cell::{Cell, RefCell};
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::sync::Arc;

use block::{Export, ExportOptions, Exports, Plane, RemoteVolume};
use hosts::PlaneHost;
use keys::{IOHOST, VMHOST, security};
use peer::Allow;
use sidecore::Services;
use transport::{EndpointConfig, Security, VERSIONS};
use volume::Volume;
use volume::record::NoRecords;

const VOLUME: &str = "a";

/// Jumbo frames: fewer datagrams for the same requests.
const DATAGRAM_BYTES: usize = 8972;

/// The guard of a volume that the VMhost may use.
pub(crate) fn export(volume: Arc<dyn Volume>) -> Arc<Export> {
    let options = ExportOptions { allow: vec![Allow::node(VMHOST)], shared: false };
    let export = Export::new(VOLUME, volume, options, Arc::new(NoRecords));
    export.expect("no records to read")
}

pub(crate) struct Host {
    pub(crate) wired: PlaneHost,
    services: Services,
    plane: Rc<RefCell<Plane>>,
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
        let wired = PlaneHost::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 4870 + number)), config);
        let services = Services::new();
        let plane = Plane::new(&mut wired.planes.borrow_mut(), exports, services.clone());
        services.insert(Rc::clone(&plane));
        Self { wired, services, plane }
    }

    /// The beginning of a round: time passes, then calls and answers are looked at.
    fn serve(&mut self, now_ns: u64) {
        self.wired.begin(now_ns);
        let _ = self.plane.borrow_mut().poll(now_ns);
    }

    /// The end of a round: everything that waits to be sent arrives.
    /// `to` gives the host with an address; a datagram for no host is lost.
    fn send<'a>(
        &mut self,
        to: impl Fn(SocketAddr) -> Option<&'a Self>,
        now_ns: u64,
        datagram: &mut Vec<u8>,
    ) {
        let from = self.wired.addr;
        self.wired.send(now_ns, datagram, |addr, bytes| {
            if let Some(to) = to(addr) {
                to.wired.receive(now_ns, now_ns, from, bytes);
            }
        });
    }
}

/// The names of IOhosts, by their number. Only the first has a key.
const IOHOSTS: [&str; 3] = [IOHOST, "io2", "io3"];

/// A VMhost, and one to three IOhosts.
pub(crate) struct Peers {
    pub(crate) vm: Host,
    ios: Vec<Host>,
    /// Of each IOhost: whether nothing reaches it or leaves it.
    pub(crate) are_away: Vec<bool>,
    /// Each such datagram is lost; 0 for none.
    pub(crate) lost_each: u64,
    datagrams: u64,
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
        Self::listed(&[export(volume)], (&[IOHOST], 1), sealed, versions)
    }

    /// The same, with an IOhost for each export of the same volume, and this list of the volume's
    /// peers. The VMhost knows so many of the IOhosts.
    pub(crate) fn listed(
        exports: &[Arc<Export>],
        (names, known): (&[&str], usize),
        sealed: bool,
        versions: RangeInclusive<u8>,
    ) -> (Self, Arc<RemoteVolume>) {
        let vm = Host::new(VMHOST, 0, security(VMHOST, sealed), Arc::default(), VERSIONS);
        let ios = exports.iter().zip(IOHOSTS).zip(1..).map(|((export, name), number)| {
            let exported = Arc::new(Exports::default());
            exported.insert(Arc::clone(export));
            Host::new(name, number, security(name, sealed), exported, versions.clone())
        });
        let ios: Vec<Host> = ios.collect();
        let are_away = vec![false; ios.len()];
        let (lost_each, datagrams, datagram) = (0, 0, Vec::with_capacity(1 << 16));
        let mut peers = Self { vm, ios, are_away, lost_each, datagrams, datagram };
        (0..known).for_each(|at| peers.know(at));
        let names: Vec<String> = names.iter().map(|&it| it.to_owned()).collect();
        let remote = RemoteVolume::of_peers(&names, VOLUME, None);
        assert!(peers.vm.plane.borrow_mut().clients.describe(Arc::clone(&remote)));
        let mut now_ns = 1;
        while remote.described().is_none() {
            now_ns += 1_000_000;
            peers.round(now_ns, || {});
            assert!(now_ns < 10_000_000_000, "never described: {:?}", remote.why());
        }
        (peers, remote)
    }

    /// Makes an IOhost known to the VMhost.
    pub(crate) fn know(&self, at: usize) {
        let planes = self.vm.wired.planes.borrow();
        planes.peers().borrow_mut().add(IOHOSTS[at], self.ios[at].wired.addr);
    }

    /// The services of the VMhost's disks.
    pub(crate) fn services(&self) -> &Services {
        &self.vm.services
    }

    /// The services of the IOhost's backends.
    pub(crate) fn io_services(&self) -> &Services {
        &self.ios[0].services
    }

    /// A round of all; `work` is what the VMhost does besides its sessions.
    pub(crate) fn round(&mut self, now_ns: u64, work: impl FnOnce()) {
        self.vm.serve(now_ns);
        work();
        let Self { vm, ios, are_away, lost_each, datagrams, datagram } = self;
        let count = Cell::new(*datagrams);
        let arrives = || {
            count.set(count.get() + 1);
            *lost_each == 0 || !count.get().is_multiple_of(*lost_each)
        };
        let all = |addr: SocketAddr| {
            let at = ios.iter().position(|io| io.wired.addr == addr);
            at.filter(|at| !are_away[*at] && arrives()).map(|at| &ios[at])
        };
        vm.send(all, now_ns, datagram);
        for (io, is_away) in ios.iter_mut().zip(are_away) {
            io.serve(now_ns);
            io.send(|_| (!*is_away && arrives()).then_some(&*vm), now_ns, datagram);
        }
        *datagrams = count.get();
    }

    /// Calls that were made and answered in a sealed session, for a check that it was one.
    pub(crate) fn sealed_sessions(&self) -> usize {
        let endpoint = self.vm.wired.endpoint.borrow();
        endpoint.sessions().filter(|session| session.peer.key.is_some()).count()
    }
}
