//! Frames from one remote port to another: the way between two nodes' networks, without a guest's
//! rings.
//!
//! ```text
//!   talker ─ bridge ─ port ═ session over a link ═ port ─ bridge ─ talker     two sidecores
//!   talker ─ bridge ─ talker                                                  one, beside it
//! ```
//!
//! Sidecores, sessions, bridges and ports are the nodes' own; both ends are threads of this
//! process, on a core each where there are two. A guest's driver would be a third busy thread.

mod talk;

use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use link::{Link, LinkDriver, Shm, ShmDirectory, ShmListener, Udp, UdpConfig};
use net::nic::MTU;
use net::remote::{
    Admission, CableCore, Join, JoinGate, MemberRight, NetPlane, WantedNetwork, join,
};
use net::{Attached, Mac, Network, PortOptions, Vlans};
use peer::Planes;
use sidecore::{Idle, RoundStage as Round, Sidecore, now_ns};
use transport::{Endpoint, EndpointConfig, PeerInfo};

use super::packet::{FrameAddresses, Packet};
use crate::block::{LinkKind, WARM_UP};
use crate::load::LoadOutcome;
use crate::measure::thread_cpu;
use testbed::cleanup::Cleanup;
use testbed::machine::{cache_line_round_trip_ns, cores};
use testbed::pair::{PairLink, RoleCores};
use testbed::progress::Progress;
use testbed::stage::inside;

use talk::{Talk, TalkPort, TalkRole};

/// The longest time that joining may take.
const JOINED_BY: Duration = Duration::from_secs(10);

/// The time between two looks at whether an end has joined.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// The two ends' addresses.
const MACS: [Mac; 2] = [Mac([0x52, 0x54, 0, 0, 0, 1]), Mac([0x52, 0x54, 0, 0, 0, 2])];

/// The traffic between the ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// Frames one way.
    Forward {
        /// The bytes of a frame.
        size_bytes: usize,
        /// The frames that are under way.
        depth: u64,
    },
    /// A UDP datagram there and back.
    Bounce {
        /// The bytes in it.
        payload: usize,
    },
}

impl Doing {
    fn packet(self, ends: FrameAddresses) -> Packet {
        match self {
            Self::Forward { size_bytes, .. } => Packet::of_bytes(ends, size_bytes),
            Self::Bounce { payload } => Packet::datagram(ends, payload),
        }
    }

    /// The parts of the first end and of the other one.
    fn parts(self) -> [TalkRole; 2] {
        match self {
            Self::Forward { depth, .. } => [TalkRole::Sends { depth }, TalkRole::Takes],
            Self::Bounce { .. } => [TalkRole::Asks, TalkRole::Answers],
        }
    }
}

/// The plan of a measurement.
#[derive(Clone, Debug)]
pub struct PortsPlan {
    /// Only for the folder that a link may need.
    pub program: PathBuf,
    /// The traffic.
    pub doing: Doing,
    /// The link between the ends.
    pub link: LinkKind,
    /// Use the loopback device also where two network namespaces would be allowed.
    pub loopback: bool,
    /// How long it is measured.
    pub seconds: f64,
}

/// The result of a measurement.
#[derive(Debug)]
pub struct PortsReport {
    /// Frames that arrived, on the way there if they bounce.
    pub frames: u64,
    /// The measured time, with all waits.
    pub took: Duration,
    /// The part of that time in which no frame came of those under way.
    pub waited: Duration,
    /// The times of frames that bounce.
    pub outcome: LoadOutcome,
    /// Processor time of the sidecores.
    pub cpu: Duration,
    /// The average length of datagrams, by end.
    pub datagram_bytes: [usize; 2],
    /// Whether the ends were in two namespaces, and not in one.
    pub has_namespaces: bool,
    /// The cache line's round trips before and after.
    pub trips_ns: [Option<u64>; 2],
}

/// A gate that lets every node join.
#[derive(Debug)]
struct Anybody {
    network: u64,
}

impl JoinGate for Anybody {
    fn admit(
        &self,
        _: u64,
        peer: &PeerInfo,
        join: &Join,
        _: Option<&[u8]>,
    ) -> Result<Admission, String> {
        Ok(Admission {
            network: self.network,
            sidecore: 0,
            sidecores: 1,
            options: PortOptions::of_guest(join.mac),
            chain: Box::new(|port, _| port),
            right: MemberRight {
                peer: peer.name.clone(),
                network: join.network.clone(),
                key: None,
                terms: 0,
            },
        })
    }

    fn holds(&self, _: &MemberRight) -> bool {
        true
    }

    fn generation(&self) -> u64 {
        0
    }
}

/// An end. The order of fields matters: ports go before their network, and it before its sidecore.
struct TalkEnd {
    ports: Vec<Attached>,
    network: Network,
    sidecore: Sidecore,
}

impl Drop for TalkEnd {
    fn drop(&mut self) {
        self.ports.clear();
        self.sidecore.stop();
    }
}

impl TalkEnd {
    fn new(name: &str, index: usize, core: Option<usize>) -> Result<Self> {
        // Spinning threads that share cores only keep each other from them.
        let idle = if core.is_some() { Idle::Spin } else { Idle::Adaptive };
        let config =
            sidecore::SidecoreConfig { core, idle, ..sidecore::SidecoreConfig::new(index) };
        let sidecore = sidecore::spawn(config).context("starting a sidecore")?;
        let network = Network::new(name, sidecore.clone(), now_ns())?;
        Ok(Self { ports: Vec::new(), network, sidecore })
    }

    /// Installs sessions over this link, and a plane for networks of others.
    fn connect<L: Link + Send + 'static>(&self, name: &str, link: L, buffer_bytes: usize) {
        let gate = Arc::new(Anybody { network: self.network.id() });
        let mut config = EndpointConfig::new(name, now_ns(), now_ns() | 1);
        config.datagram_bytes_max = link.datagram_max();
        config.receive_window_bytes = u32::try_from(buffer_bytes).unwrap_or(u32::MAX);
        let connected = self.sidecore.call(move |local| {
            let endpoint = Rc::new(RefCell::new(Endpoint::new(config)));
            let services = local.services().clone();
            let mut planes = Planes::new(0, Rc::clone(&endpoint));
            let plane = NetPlane::new(&mut planes, 1, gate, Arc::default(), services.clone());
            let (link, planes) = (Rc::new(RefCell::new(link)), Rc::new(RefCell::new(planes)));
            local.add(Round::Receive, Box::new(Rc::clone(&planes)));
            LinkDriver::install(local, link, Rc::clone(&endpoint), planes);
            local.add(Round::Serve, Box::new(Rc::clone(&plane)));
            services.insert(plane);
            services.insert(endpoint);
        });
        connected.expect("a sidecore that has just started");
    }

    /// Attaches a talker to the network. With `known`, [`Self::on`] finds it again on the sidecore.
    fn add(
        &mut self,
        mac: Mac,
        talk: impl FnOnce() -> Talk + Send + 'static,
        known: bool,
    ) -> Result<()> {
        let options = PortOptions::of_guest(mac);
        let port = self.network.attach(options, Arc::default(), move |local| {
            let talk = Rc::new(RefCell::new(talk()));
            if known {
                local.services().insert(Rc::clone(&talk));
            }
            Box::new(TalkPort(talk))
        })?;
        self.ports.push(port);
        Ok(())
    }

    /// Joins the network at this address, and waits until that is done.
    fn join(&mut self, at: SocketAddr) -> Result<()> {
        let wanted = WantedNetwork {
            peer: "io1".to_owned(),
            join: join("bench", "one", MACS[0], MTU, Vlans::Access(0)),
            prove: Box::new(|_, _| None),
            told: Box::new(|_| ()),
        };
        let core = Arc::<CableCore>::default();
        let (shared, counters) = (Arc::clone(&core), Arc::default());
        let told = Arc::clone(&counters);
        let port = self.network.attach(PortOptions::of_uplink(), counters, move |local| {
            let services = local.services();
            let endpoint = services.get::<Endpoint>().expect("it was connected");
            endpoint.borrow_mut().connect(local.now_ns(), at, "io1", 0);
            let plane = services.get::<NetPlane>().expect("it was connected");
            plane.borrow_mut().join(wanted, shared, told).1
        })?;
        self.ports.push(port);
        let since = Instant::now();
        while !core.is_joined() {
            let waits = since.elapsed() < JOINED_BY;
            ensure!(waits, "the port did not join its network: {}", core.why());
            sleep(LOOK_AGAIN);
        }
        Ok(())
    }

    /// Runs `f` on the talker that is known.
    fn on<T: Send + 'static>(&self, f: impl FnOnce(&mut Talk) -> T + Send + 'static) -> Result<T> {
        let ran = self.sidecore.call(|local| {
            let talk = local.services().get::<Talk>()?;
            let mut talk = talk.borrow_mut();
            Some(f(&mut talk))
        });
        ran.ok().flatten().context("the sidecore has stopped")
    }

    /// Bytes and datagrams that were sent.
    fn sent(&self) -> Result<[u64; 2]> {
        let sent = self.sidecore.call(|local| {
            let endpoint = local.services().get::<Endpoint>()?;
            let counters = endpoint.borrow().counters().clone();
            Some([counters.bytes_sent, counters.datagrams_sent])
        });
        Ok(sent.ok().flatten().unwrap_or([0, 0]))
    }

    fn cpu(&self) -> Duration {
        self.sidecore.call(|_| thread_cpu()).unwrap_or_default()
    }
}

/// Measures frames between two nodes' ports, in clear.
pub fn measure(plan: &PortsPlan, cleanup: &Cleanup) -> Result<PortsReport> {
    let meeting = PairLink {
        link: plan.link,
        encrypt: false,
        loopback: plan.loopback,
        ..PairLink::default()
    };
    let trip_before_ns = cache_line_round_trip_ns();
    let stage = meeting.stage(plan.program.clone(), cleanup, &Progress::silent())?;
    let seats = RoleCores::new(&cores(), 0, 1, 1);
    let mut near = TalkEnd::new("near", 0, seats.driver())?;
    let mut far = TalkEnd::new("far", 1, seats.iohost())?;
    let bind = |node: &str, listen: &str| -> Result<Udp> {
        let address = listen.parse().context("an address of the stage")?;
        Ok(inside(stage.namespace_of(node).as_deref(), || Udp::bind(UdpConfig::new(address)))??)
    };
    let one = bind("vm1", &stage.vm_listen)?;
    let two = bind("io1", &stage.io_listen)?;
    let buffers = [&one, &two].map(Udp::receive_buffer_bytes);
    let (mut at, mut door) = (two.local_addr(), None);
    if plan.link == LinkKind::Shm {
        let path = stage.path("ports.shm");
        let (opened, mut callers) =
            ShmListener::open(&path, &[at.port()]).context("opening a door")?;
        let places = ShmDirectory::default();
        at = places.address(&path)?;
        door = Some(opened);
        near.connect("vm1", Shm::new(one, places.clone(), None)?, buffers[0]);
        far.connect("io1", Shm::new(two, places, callers.pop())?, buffers[1]);
    } else {
        near.connect("vm1", one, buffers[0]);
        far.connect("io1", two, buffers[1]);
    }
    let arrived = talk::Arrived::default();
    let [here, there] = talks(plan.doing, &arrived);
    near.add(MACS[0], here, true)?;
    far.add(MACS[1], there, true)?;
    near.join(at)?;
    let report = pass(plan, &near, Some(&far), &arrived);
    drop((near, far, door));
    let report = PortsReport { has_namespaces: stage.has_namespaces(), ..report? };
    Ok(report.between(trip_before_ns))
}

/// The same between two ports of one bridge, on one sidecore.
pub fn measure_local(plan: &PortsPlan) -> Result<PortsReport> {
    let trip_before_ns = cache_line_round_trip_ns();
    let mut only = TalkEnd::new("near", 0, RoleCores::new(&cores(), 0, 1, 1).driver())?;
    let arrived = talk::Arrived::default();
    let [here, there] = talks(plan.doing, &arrived);
    only.add(MACS[0], here, true)?;
    only.add(MACS[1], there, false)?;
    let report = pass(plan, &only, None, &arrived);
    drop(only);
    Ok(report?.between(trip_before_ns))
}

impl PortsReport {
    /// Adds the cache line's round trips before and now, when no thread spins any more.
    fn between(self, before_ns: Option<u64>) -> Self {
        Self { trips_ns: [before_ns, cache_line_round_trip_ns()], ..self }
    }
}

/// The makers of both talkers, which run on their sidecores.
fn talks(doing: Doing, arrived: &talk::Arrived) -> [impl FnOnce() -> Talk + Send + 'static; 2] {
    let parts = doing.parts();
    [0, 1].map(|end| {
        let packet = doing.packet(FrameAddresses { from: MACS[end], to: MACS[1 - end] });
        let (part, arrived) = (parts[end], arrived.clone());
        move || Talk::new(part, &packet, arrived)
    })
}

fn pass(
    plan: &PortsPlan,
    near: &TalkEnd,
    far: Option<&TalkEnd>,
    arrived: &talk::Arrived,
) -> Result<PortsReport> {
    near.on(|talk| talk.is_on = true)?;
    sleep(WARM_UP);
    let ends = || [Some(near), far].into_iter().flatten();
    let cpu = || ends().map(TalkEnd::cpu).sum::<Duration>();
    let sent = || ends().map(TalkEnd::sent).collect::<Result<Vec<_>>>();
    let (cpu_before, sent_before) = (cpu(), sent()?);
    let waited_before_ns = near.on(Talk::begin)?;
    let (before, since) = (arrived.get(), Instant::now());
    sleep(Duration::from_secs_f64(plan.seconds));
    let (frames, took) = (arrived.get() - before, since.elapsed());
    let (outcome, waited_ns) = near.on(Talk::end)?;
    let cpu = cpu().saturating_sub(cpu_before);
    let average = |(now, before): (&[u64; 2], &[u64; 2])| {
        let [bytes, datagrams] = [0, 1].map(|at| now[at] - before[at]);
        bytes.checked_div(datagrams).unwrap_or(0) as usize
    };
    let averages: Vec<_> = sent()?.iter().zip(&sent_before).map(average).collect();
    near.on(|talk| talk.is_on = false)?;
    ensure!(frames > 0, "not one frame arrived between the ports");
    Ok(PortsReport {
        frames,
        took,
        waited: Duration::from_nanos(waited_ns - waited_before_ns),
        outcome,
        cpu,
        datagram_bytes: [averages[0], averages.get(1).copied().unwrap_or(0)],
        has_namespaces: false,
        trips_ns: [None; 2],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(doing: Doing, link: LinkKind) -> PortsPlan {
        PortsPlan { program: "vrio".into(), doing, link, loopback: true, seconds: 0.05 }
    }

    #[test]
    fn frames_go_from_port_to_port_over_any_link_and_one_there_and_back() {
        let forward = Doing::Forward { size_bytes: 64 << 10, depth: 15 };
        let bounce = Doing::Bounce { payload: 1 };
        let cleanup = Cleanup::default();
        for link in [LinkKind::Udp, LinkKind::Shm] {
            let report = measure(&plan(forward, link), &cleanup).unwrap();
            assert!(report.cpu > Duration::ZERO && report.outcome.requests() == 0);
            let [out, back] = report.datagram_bytes;
            assert!(out > back, "{out} bytes and {back}");
            let report = measure(&plan(bounce, link), &cleanup).unwrap();
            assert!(report.outcome.requests() > 0);
            // A frame of 43 bytes with its headers; acknowledgements alone are shorter.
            let bytes = report.datagram_bytes;
            assert!(bytes.iter().all(|it| (60..250).contains(it)), "{bytes:?}");
        }
        let local = measure_local(&plan(bounce, LinkKind::Shm)).unwrap();
        assert!(local.outcome.requests() > 0);
        assert_eq!(local.datagram_bytes, [0; 2]);
        cleanup.remove();
    }
}
