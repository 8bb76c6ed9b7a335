//! Hosts of the simulation: the real code of a node's sidecores, without threads and sockets.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use block::{Exports, Plane};
use net::Bridge;
use net::remote::NetPlane;
use peer::Planes;
use sidecore::{Poll, Progress, Services};
use transport::{Endpoint, EndpointConfig, TransmitBatch};

use super::keys::{WorldKeys, bytes};
use super::nics::OpenNetworks;
use random::Random;
use simnet::SimNetwork;

/// The port of a host's first sidecore; the others follow.
pub(super) const PORT: u16 = 4870;

/// Rounds at one instant, at most: a sidecore that is still busy then is in a circle.
const ROUNDS_MAX: usize = 10_000;

/// How long a host whose guest went on elsewhere leaves its devices alone. Most hosts of a run are
/// such hosts: their rounds would take most of its time.
const IDLE_NS: u64 = 5_000_000;

/// One sidecore.
pub(super) struct SimCore {
    /// The services that the sidecore's parts share.
    pub(super) services: Services,
    /// Its sessions.
    pub(super) endpoint: Rc<RefCell<Endpoint>>,
    /// The planes behind the sessions, and the peers.
    pub(super) planes: Planes,
    /// Its block plane.
    pub(super) plane: Rc<RefCell<Plane>>,
    /// Its plane of networks.
    pub(super) net: Rc<RefCell<NetPlane>>,
    /// The bridges of networks, and of nics in networks of other nodes.
    pub(super) bridges: Vec<Rc<RefCell<Bridge>>>,
    addr: SocketAddr,
    /// Stands still until then, while its siblings go on.
    paused_ns: u64,
    /// The time of its last round.
    ran_ns: u64,
    /// Datagrams that arrived, and when.
    arrived: VecDeque<(u64, SocketAddr, Vec<u8>)>,
    batch: TransmitBatch,
}

impl std::fmt::Debug for SimCore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimCore").field("addr", &self.addr).finish_non_exhaustive()
    }
}

impl Drop for SimCore {
    fn drop(&mut self) {
        // The plane knows the services, and they know the plane: together they would live for ever.
        drop(self.services.remove::<Plane>());
    }
}

/// The settings of a host.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostPlan<'a> {
    /// The node's name.
    pub(super) name: &'a str,
    /// The last byte of its address.
    pub(super) number: u8,
    /// How many sidecores it has.
    pub(super) cores: u16,
    /// Random; different for each process.
    pub(super) nonce: u64,
    /// The largest datagram.
    pub(super) datagram_bytes_max: usize,
    /// The keys of all nodes.
    pub(super) keys: &'a WorldKeys,
    /// The networks that others may join.
    pub(super) open: &'a Arc<OpenNetworks>,
}

/// A host's address.
pub(super) fn host_ip(number: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, number))
}

impl SimCore {
    /// The sidecores of a host's process.
    pub(super) fn start(plan: &HostPlan<'_>, exports: &Arc<Exports>) -> Vec<Self> {
        let ports: Vec<_> = (0..plan.cores).map(|index| PORT + index).collect();
        (0..plan.cores).map(|index| Self::new(plan, index, &ports, exports)).collect()
    }

    fn new(plan: &HostPlan<'_>, index: u16, ports: &[u16], exports: &Arc<Exports>) -> Self {
        let seed = plan.nonce.wrapping_mul(0x9e37_79b9).wrapping_add(u64::from(index));
        let mut config = EndpointConfig::new(plan.name, plan.nonce, seed);
        config.index = index;
        config.ports = ports.to_vec();
        config.accept = true;
        config.datagram_bytes_max = plan.datagram_bytes_max;
        config.security = plan.keys.security(plan.name);
        config.entropy = bytes(&mut Random::new(seed));
        let endpoint = Rc::new(RefCell::new(Endpoint::new(config)));
        let services = Services::new();
        let mut planes = Planes::new(index, endpoint.clone());
        let plane = Plane::new(&mut planes, exports.clone(), services.clone());
        services.insert(plane.clone());
        let gate = Arc::<OpenNetworks>::clone(plan.open);
        let members = Arc::default();
        let net = NetPlane::new(&mut planes, plan.cores, gate, members, services.clone());
        Self {
            services,
            endpoint,
            planes,
            plane,
            net,
            bridges: Vec::new(),
            addr: SocketAddr::new(host_ip(plan.number), ports[usize::from(index)]),
            paused_ns: 0,
            ran_ns: 0,
            arrived: VecDeque::new(),
            batch: TransmitBatch::new(64),
        }
    }

    /// Where it listens.
    pub(super) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Its thread does not get to run before `until_ns`.
    pub(super) fn pause(&mut self, until_ns: u64) {
        self.paused_ns = until_ns;
    }

    /// A datagram reaches its socket.
    pub(super) fn arrive(&mut self, at_ns: u64, from: SocketAddr, bytes: Vec<u8>) {
        self.arrived.push_back((at_ns, from, bytes));
    }

    /// Rounds until there is nothing more to do at this instant. `work` is what the sidecore does
    /// besides its sessions: its disks.
    pub(super) fn run(
        &mut self,
        now_ns: u64,
        network: &mut SimNetwork,
        mut work: impl FnMut(u64) -> Progress,
    ) {
        if now_ns < self.paused_ns {
            return;
        }
        self.ran_ns = now_ns;
        for _ in 0..ROUNDS_MAX {
            let mut progress = self.receive(now_ns);
            progress |= self.plane.borrow_mut().poll(now_ns);
            progress |= self.net.borrow_mut().poll(now_ns);
            for bridge in &self.bridges {
                progress |= bridge.borrow_mut().poll(now_ns);
            }
            progress |= work(now_ns);
            progress |= self.transmit(now_ns, network);
            if !progress.is_busy() {
                return;
            }
        }
        panic!("{} is busy for ever at {now_ns} ns", self.addr);
    }

    fn receive(&mut self, now_ns: u64) -> Progress {
        let progress = Progress::busy_if(!self.arrived.is_empty());
        let opened = self.planes.poll(now_ns);
        let mut endpoint = self.endpoint.borrow_mut();
        while let Some((at_ns, from, bytes)) = self.arrived.pop_front() {
            endpoint.receive(now_ns, at_ns, from, &bytes, &mut self.planes);
        }
        endpoint.advance(now_ns, &mut self.planes);
        progress | opened
    }

    fn transmit(&mut self, now_ns: u64, network: &mut SimNetwork) -> Progress {
        let mut endpoint = self.endpoint.borrow_mut();
        endpoint.transmit(now_ns, &mut self.batch);
        let count = self.batch.len();
        for datagram in self.batch.datagrams() {
            let mut bytes = datagram.head().to_vec();
            bytes.extend_from_slice(datagram.body(endpoint.pool()));
            network.send(now_ns, self.addr, datagram.to(), &bytes);
        }
        self.batch.consume(count);
        Progress::busy_if(count > 0)
    }

    /// Whether it has something to do: a datagram or a timer of its sessions, or nothing for
    /// [`IDLE_NS`].
    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        let is_late = now_ns >= self.ran_ns + IDLE_NS;
        is_late || !self.arrived.is_empty() || self.next_ns().is_some_and(|at_ns| at_ns <= now_ns)
    }

    /// When its sessions want to be polled next.
    pub(super) fn next_ns(&self) -> Option<u64> {
        let timeout_ns = self.endpoint.borrow().next_timeout_ns();
        timeout_ns.map(|at_ns| at_ns.max(self.paused_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_of_a_core_ends_with_it() {
        let keys = WorldKeys::none();
        let plan = HostPlan {
            name: "a",
            number: 1,
            cores: 1,
            nonce: 1,
            datagram_bytes_max: 1472,
            keys: &keys,
            open: &Arc::default(),
        };
        let cores = SimCore::start(&plan, &Arc::new(Exports::default()));
        let (plane, endpoint) = (Rc::downgrade(&cores[0].plane), Rc::downgrade(&cores[0].endpoint));
        drop(cores);
        assert!(plane.upgrade().is_none() && endpoint.upgrade().is_none());
    }
}
