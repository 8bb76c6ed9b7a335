//! Starts the sidecores and puts the parts of volumes and sessions onto each; takes them off again
//! in an order in which each part goes before the parts that it needs.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use block::server::ServerCounters;
use block::{Exports, Plane};
use config::{Config, PeerConfig, VolumeConfig};
use link::{
    BATCH_DATAGRAMS, Callers, Faults, Faulty, HugePages, Link, LinkDriver, Shm, ShmCounters,
    ShmDirectory, ShmListener, Udp, Wire,
};
use member::ReplicaPlane;
use member::door::MemberDoors;
use parking_lot::Mutex;
use peer::{PeerLines, Planes};
use sidecore::{EarlyWaker, Local, Poll, PollerId, RoundStage, Sidecore, Waker};
use transport::{Endpoint, EndpointConfig, LostReason, SessionId, Sink, TransmitBatch};
use volume::uring::UringCounters;

use crate::cores::LinkedSidecore;
use crate::error::ConnectError;
use crate::gate::NetworkGate;
use crate::gateways::Gateways;
use crate::keys::{SidecoreKeys, WallClock};
use crate::random::{fill_random, random};
use crate::shared::{self, ShmState};

/// The parts that were put onto a sidecore, kept for taking them off again.
struct InstalledParts {
    watch: PollerId,
    /// Only on a node with a key.
    clock: Option<PollerId>,
    /// In the order in which they are asked.
    planes: Vec<PlaneOnSidecore>,
    /// Absent while the sidecore is suspended.
    driver: Option<LinkDriver>,
    link: Rc<RefCell<dyn Link>>,
}

/// A plane of a sidecore: its poller and its service.
struct PlaneOnSidecore {
    poller: PollerId,
    remove_service: fn(&Local),
}

impl PlaneOnSidecore {
    fn new<P: Poll + 'static>(local: &mut Local, plane: &Rc<RefCell<P>>) -> Self {
        let poller = local.add(RoundStage::Serve, Box::new(Rc::clone(plane)));
        local.services().insert(Rc::clone(plane));
        Self { poller, remove_service: |local| drop(local.services().remove::<P>()) }
    }
}

/// The objects that peers reach by the sessions of all sidecores.
#[derive(Clone, Debug)]
pub struct PeerObjects {
    /// The volumes.
    pub exports: Arc<Exports>,
    /// The networks.
    pub networks: Arc<NetworkGate>,
    /// The members of replicated volumes.
    pub members: Arc<MemberDoors>,
    /// Lines of the log that messages to members cause.
    member_lines: Arc<Mutex<PeerLines>>,
}

impl PeerObjects {
    /// The objects of a node with so many sidecores. It has no networks yet.
    pub fn new(exports: &Arc<Exports>, members: &Arc<MemberDoors>, cores: usize) -> Self {
        Self {
            exports: Arc::clone(exports),
            networks: NetworkGate::new(cores),
            members: Arc::clone(members),
            member_lines: Arc::default(),
        }
    }
}

/// Starts a sidecore for each entry of the configuration, each with its link if there are any.
/// `early`: the sidecores' wakers that parts have already, or none.
///
/// # Errors
/// When a core is not there, or the system refuses a thread or an io_uring.
pub fn start(
    config: &Config,
    keys: &SidecoreKeys,
    links: Vec<Wire>,
    objects: &PeerObjects,
    early: &[EarlyWaker],
) -> Result<(Vec<LinkedSidecore>, Option<ShmListener>), ConnectError> {
    let mut cores = spawn(config, early)?;
    let ports: Vec<_> = links.iter().map(|link| link.local_addr().port()).collect();
    let ShmState { places, callers, door } = ShmState::open(config, &ports, None)?;
    let links = prepare(config, keys, &mut cores, links, (places, callers))?;
    connect(config, &mut cores, links, objects);
    Ok((cores, door))
}

/// The threads alone, without links: this part of a start takes long.
///
/// # Errors
/// As [`start`].
pub fn spawn(config: &Config, early: &[EarlyWaker]) -> Result<Vec<LinkedSidecore>, ConnectError> {
    let place = || config.place(&config.lines, "sidecores");
    let cores = config.sidecores.cores.iter().enumerate();
    let spawned = cores.map(|(index, core)| {
        let (name, early) = (format!("sidecore-{index}"), early.get(index).cloned());
        let (core, idle) = (*core, config.sidecores.idle);
        let wanted = sidecore::SidecoreConfig { name, index, core, idle, early };
        let sidecore = sidecore::spawn(wanted)
            .map_err(|source| ConnectError::Sidecore { place: place(), source })?;
        let uring = uring_for(config, &sidecore)?;
        let (link, places, shm, xdp, socket) = (None, None, None, None, None);
        let (server, net_server, refused) = (None, None, None);
        Ok(LinkedSidecore {
            sidecore,
            uring,
            link,
            places,
            shm,
            xdp,
            server,
            net_server,
            refused,
            socket,
        })
    });
    spawned.collect()
}

/// A link, and the settings of its sessions.
pub type PreparedLink = (SidecoreLink, EndpointConfig);

/// Does every step that can fail before sidecores have their links. No link receives yet.
///
/// # Errors
/// When the system refuses something.
pub fn prepare(
    config: &Config,
    keys: &SidecoreKeys,
    cores: &mut [LinkedSidecore],
    links: Vec<Wire>,
    (places, callers): (Option<ShmDirectory>, Vec<Callers>),
) -> Result<Vec<PreparedLink>, ConnectError> {
    let ports: Vec<_> = links.iter().map(|link| link.local_addr().port()).collect();
    let process_nonce = random()?;
    let mut callers = callers.into_iter();
    let mut prepared = Vec::new();
    cores.iter_mut().for_each(|core| core.places.clone_from(&places));
    for (index, (core, wire)) in cores.iter_mut().zip(links).enumerate() {
        let socket = wire.udp().fd().try_clone_to_owned();
        let what = "copy a descriptor";
        core.socket = Some(socket.map_err(|source| ConnectError::System { what, source })?);
        core.xdp = wire.xdp().map(|xdp| Arc::clone(xdp.xdp_counters()));
        let way = SidecoreLink::new(wire, places.clone(), callers.next())?;
        core.shm = way.shm_counters();
        let mut wanted = EndpointConfig::new(&config.name, process_nonce, random()?);
        wanted.index = index as u16;
        wanted.pool_bytes_max = config.memory.session_buffers_bytes as usize;
        if config.memory.huge_pages {
            wanted.pool_memory = Some(Arc::new(HugePages::default()));
        }
        wanted.ports.clone_from(&ports);
        fill_random(&mut wanted.entropy)?;
        wanted.security = keys.security();
        wanted.datagram_bytes_max = way.datagram_max();
        wanted.accept = config.is_for_peers();
        wanted.receive_window_bytes =
            u32::try_from(way.udp().receive_buffer_bytes()).unwrap_or(u32::MAX);
        core.link = Some((way.udp().local_addr(), Arc::clone(way.udp().counters())));
        prepared.push((way, wanted));
    }
    Ok(prepared)
}

/// Gives sidecores their links: from now on they receive.
pub fn connect(
    config: &Config,
    cores: &mut [LinkedSidecore],
    links: Vec<PreparedLink>,
    objects: &PeerObjects,
) {
    for (core, (way, wanted)) in cores.iter_mut().zip(links) {
        let counted = connect_one(config, core, way, wanted, objects.clone());
        core.server = Some(counted.server);
        core.net_server = Some(counted.net_server);
        core.refused = Some(counted.refused);
    }
    if config.key.is_some() {
        crate::peers::add_own(cores, &config.name);
    }
}

/// The parts of a sidecore's link: with shared memory around it where the node shares any.
#[derive(Debug)]
pub enum SidecoreLink {
    /// The wire alone.
    Wire(Wire),
    /// Shared memory, and the wire for what is elsewhere.
    Shm(Box<Shm<Wire>>),
}

impl SidecoreLink {
    fn new(
        wire: Wire,
        places: Option<ShmDirectory>,
        callers: Option<Callers>,
    ) -> Result<Self, ConnectError> {
        let Some(places) = places else { return Ok(Self::Wire(wire)) };
        let shm = Shm::new(wire, places, callers);
        let what = "wait for several links at once";
        shm.map(Box::new).map(Self::Shm).map_err(|source| ConnectError::System { what, source })
    }

    fn udp(&self) -> &Udp {
        match self {
            Self::Wire(wire) => wire.udp(),
            Self::Shm(shm) => shm.inner().udp(),
        }
    }

    fn shm_counters(&self) -> Option<Arc<ShmCounters>> {
        match self {
            Self::Wire(_) => None,
            Self::Shm(shm) => Some(Arc::clone(shm.shm_counters())),
        }
    }

    fn datagram_max(&self) -> usize {
        match self {
            Self::Wire(wire) => wire.datagram_max(),
            Self::Shm(shm) => shm.datagram_max(),
        }
    }

    /// Makes the link itself, on its sidecore.
    fn shared(self, faults: Option<Faults>) -> Rc<RefCell<dyn Link>> {
        match (self, faults) {
            (Self::Wire(wire), None) => Rc::new(RefCell::new(wire)),
            (Self::Wire(wire), Some(faults)) => Rc::new(RefCell::new(Faulty::new(wire, faults))),
            (Self::Shm(shm), None) => Rc::new(RefCell::new(*shm)),
            (Self::Shm(shm), Some(faults)) => Rc::new(RefCell::new(Faulty::new(*shm, faults))),
        }
    }
}

/// The ring of a sidecore that has volumes in files, or may get some. A running node makes no new
/// ring, since an intruder's own ring would be past the filter of system calls.
fn uring_for(
    config: &Config,
    sidecore: &Sidecore,
) -> Result<Option<Arc<UringCounters>>, ConnectError> {
    if config.volumes.iter().any(needs_uring) {
        return install_uring(sidecore).map(Some);
    }
    if config.directories.volumes.is_empty() {
        return Ok(None);
    }
    let installed = install_uring(sidecore);
    if let Err(error) = &installed {
        tracing::warn!(%error, "volumes in files cannot be added while the node runs");
    }
    Ok(installed.ok())
}

/// Whether the volume's backend uses io_uring.
pub fn needs_uring(volume: &VolumeConfig) -> bool {
    volume.backend.kind().needs.uring
}

fn install_uring(sidecore: &Sidecore) -> Result<Arc<UringCounters>, ConnectError> {
    let installed = sidecore.call(|local| {
        volume::uring::install(local)?;
        let uring = local.services().get::<volume::uring::Uring>().expect("just installed");
        let counters = uring.borrow().counters();
        Ok(counters)
    });
    installed.expect("a sidecore that has just started").map_err(|source: std::io::Error| {
        let hint = match source.raw_os_error() {
            Some(libc::EPERM) => {
                "it is switched off (sysctl kernel.io_uring_disabled, or the container's seccomp \
                 filter), and volumes in files need it"
            }
            Some(libc::ENOMEM) => "raise the limit of locked memory (ulimit -l)",
            _ => "volumes in files need it",
        };
        ConnectError::Uring { source, hint }
    })
}

/// The counters of a sidecore with sessions.
struct SidecoreCounters {
    server: Arc<ServerCounters>,
    net_server: Arc<net::remote::ServerCounters>,
    refused: Arc<AtomicU64>,
}

/// Puts sessions and the planes onto a sidecore.
fn connect_one(
    config: &Config,
    core: &LinkedSidecore,
    link: SidecoreLink,
    wanted: EndpointConfig,
    objects: PeerObjects,
) -> SidecoreCounters {
    let faults = config.link.fault.map(|fault| Faults {
        // Each sidecore has its own random numbers.
        seed: fault.seed.wrapping_add(u64::from(wanted.index)),
        loss_percent: fault.loss * 100.0,
        duplication_percent: fault.duplicate * 100.0,
        reordering_percent: fault.reorder * 100.0,
        corruption_percent: fault.corrupt * 100.0,
        ..Faults::default()
    });
    let places = &core.places;
    let peers = config.peers.iter();
    let reached = |peer: &PeerConfig| {
        let address = shared::reach(places.as_ref(), peer.address.as_ref()?).ok()?;
        Some((peer.name.clone(), address))
    };
    let peers: Vec<_> = peers.filter_map(reached).collect();
    let connected = core.sidecore.call(move |local| {
        let link = link.shared(faults);
        let (index, count) = (wanted.index, wanted.ports.len() as u16);
        let sealed = wanted.security.is_sealed();
        let endpoint = Rc::new(RefCell::new(Endpoint::new(wanted)));
        let services = local.services().clone();
        let mut planes = Planes::new(index, Rc::clone(&endpoint));
        let PeerObjects { exports, networks, members, member_lines } = objects;
        let plane = Plane::new(&mut planes, exports, services.clone());
        let waker = services.get::<Waker>().expect("each sidecore has it").borrow().clone();
        let replicas = ReplicaPlane::new(&mut planes, members, member_lines, waker);
        let joined = Arc::clone(&networks.members);
        let net = net::remote::NetPlane::new(&mut planes, count, networks, joined, services);
        let gateways = Gateways::new(&mut planes);
        for (name, address) in &peers {
            planes.peers().borrow_mut().add(name, *address);
        }
        let planes = Rc::new(RefCell::new(planes));
        // Time is noted before any packet is received, and answers are sorted before disks look.
        let watch = local.add(RoundStage::Receive, Box::new(Rc::clone(&planes)));
        let clock = sealed.then(|| WallClock::install(local, &endpoint, &planes));
        let sink = Rc::clone(&planes);
        let driver = LinkDriver::install(local, Rc::clone(&link), Rc::clone(&endpoint), sink);
        let counted = SidecoreCounters {
            server: plane.borrow().server.counters(),
            net_server: net.borrow().server().counters(),
            refused: Arc::clone(endpoint.borrow().strangers().total()),
        };
        local.services().insert(planes);
        local.services().insert(endpoint);
        let planes = vec![
            PlaneOnSidecore::new(local, &plane),
            PlaneOnSidecore::new(local, &replicas),
            PlaneOnSidecore::new(local, &net),
            PlaneOnSidecore::new(local, &gateways),
        ];
        let wired = InstalledParts { watch, clock, planes, driver: Some(driver), link };
        local.services().insert(Rc::new(RefCell::new(Some(wired))));
        counted
    });
    connected.expect("a sidecore that has just started")
}

/// Tells peers that their sessions end, takes everything off and stops the threads.
pub fn stop(cores: &[LinkedSidecore]) {
    for core in cores {
        // A sidecore that has stopped already has nothing left to take off.
        let _ = core.sidecore.call(take_off);
        core.sidecore.stop();
    }
}

/// Takes all parts off at once. Receiving stops as well: otherwise a peer that hears the end of its
/// session would get a new one, from a node that is ending.
fn take_off(local: &mut Local) {
    if let Some(wired) = local.services().get::<Option<InstalledParts>>()
        && let Some(wired) = wired.borrow_mut().take()
    {
        if let Some(driver) = wired.driver {
            driver.remove(local);
        }
        for plane in &wired.planes {
            local.remove(plane.poller);
        }
        local.remove(wired.watch);
        if let Some(clock) = wired.clock {
            local.remove(clock);
        }
        close_sessions(local, &wired.link);
        drop(local.services().remove::<Planes>());
        wired.planes.iter().rev().for_each(|plane| (plane.remove_service)(local));
    }
    // The lanes of the block plane go before the buffers that the kernel may still fill for them:
    // dropping a file's channel waits for the kernel, and the buffers are the endpoint's.
    drop(local.services().remove::<Endpoint>());
}

/// Stops receiving, sending and taking messages out of domains. Requests of disks that have arrived
/// are still served.
pub fn suspend(cores: &[LinkedSidecore]) {
    for core in cores {
        // A sidecore without sessions has nothing to suspend.
        let _ = core.sidecore.call(|local| {
            let wired = local.services().get::<Option<InstalledParts>>()?;
            let driver = wired.borrow_mut().as_mut()?.driver.take()?;
            driver.remove(local);
            local.services().get::<Gateways>()?.borrow_mut().set_standing(true);
            Some(())
        });
    }
}

/// Whether no request of a peer is under way.
pub fn is_quiet(cores: &[LinkedSidecore]) -> bool {
    let busy = cores.iter().filter(|core| {
        let quiet = core.sidecore.call(|local| {
            let plane = local.services().get::<Plane>();
            plane.is_none_or(|plane| plane.borrow().server.is_quiet())
        });
        !quiet.unwrap_or(true)
    });
    busy.count() == 0
}

/// Ends the sessions of suspended sidecores and tells the peers, which ask for new ones at once.
/// Their requests go on only where the storage has begun them.
pub fn hang_up(cores: &[LinkedSidecore]) {
    for core in cores {
        let _ = core.sidecore.call(|local| {
            let wired = local.services().get::<Option<InstalledParts>>()?;
            let plane = local.services().get::<Plane>()?;
            if let Some(wired) = &*wired.borrow() {
                let ended = close_sessions(local, &wired.link);
                let planes = local.services().get::<Planes>()?;
                let mut planes = planes.borrow_mut();
                ended.into_iter().for_each(|it| planes.lost(it, &LostReason::Closed));
                plane.borrow_mut().server.let_go();
            }
            Some(())
        });
    }
}

/// Undoes [`suspend`].
pub fn resume(cores: &[LinkedSidecore]) {
    for core in cores {
        let _ = core.sidecore.call(|local| {
            let wired = local.services().get::<Option<InstalledParts>>()?;
            let (plane, endpoint) =
                (local.services().get::<Planes>()?, local.services().get::<Endpoint>()?);
            let mut wired = wired.borrow_mut();
            let wired = wired.as_mut().filter(|wired| wired.driver.is_none())?;
            wired.driver =
                Some(LinkDriver::install(local, Rc::clone(&wired.link), endpoint, plane));
            local.services().get::<Gateways>()?.borrow_mut().set_standing(false);
            Some(())
        });
    }
}

/// Ends all sessions and tells each peer once. A peer that misses the message finds out by itself.
fn close_sessions(local: &Local, link: &RefCell<dyn Link>) -> Vec<SessionId> {
    let Some(endpoint) = local.services().get::<Endpoint>() else { return Vec::new() };
    let mut endpoint = endpoint.borrow_mut();
    let sessions: Vec<SessionId> = endpoint.sessions().map(|status| status.session).collect();
    let mut batch = TransmitBatch::new(BATCH_DATAGRAMS);
    for &session in &sessions {
        endpoint.close(local.now_ns(), session);
        endpoint.transmit(local.now_ns(), &mut batch);
        // Datagrams that the socket does not take at once are lost, as any datagram may be.
        let _ = link.borrow_mut().send(&mut batch, endpoint.pool());
    }
    sessions
}
