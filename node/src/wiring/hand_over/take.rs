//! The successor's half: it gets everything ready, asks, checks the state, and serves.

use std::io::{self, Read, Write};
use std::mem::ManuallyDrop;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use config::{Config, DiskConfig, LinkKind, Object};
use copies::ClusterView;
use handover::{DescriptorNumber, ReceivedDescriptors, STATE_VERSION};
use link::{ShmListener, Udp, Wire};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use sessions::sidecores::{self, PeerObjects, PreparedLink};
use sessions::{LinkedSidecore, keys::SidecoreKeys, shared::ShmState};

use super::fds::HandoverFds;
use super::meeting::{ANSWER_TIME_MAX, digest, meeting};
use super::state::{HandoverEnd, NodeState, Verdict};
use crate::control::{Claim, Service, Standby};
use crate::wiring::disks::hand_over::TakenDisk;
use crate::wiring::disks::steerer::Steerer;
use crate::wiring::disks::{self, Disks};
use crate::wiring::error::{StartError, TakeOverError};
use crate::wiring::fabric::Domains;
use crate::wiring::inside::Inside;
use crate::wiring::networks::Nics;
use crate::wiring::networks::hand_over::TakenNic;
use crate::wiring::node::{Node, directories};
use crate::wiring::objects::Objects;
use crate::wiring::pools::schedule::TimedSnapshots;
use crate::wiring::pools::timed;
use crate::wiring::strangers::Watcher;
use crate::wiring::turns::Turns;
use crate::wiring::volumes::{self, Volumes};
use crate::wiring::watchdog::Watchdog;
use api::{HandOver, Refused};
use handover::channel::Channel;
use privilege::Opener;

/// How long the node may take to stop, and then to send its state: the sum of its own time limits.
const STATE_TIME_MAX: Duration = Duration::from_secs(20);

/// The longest refusal.
const ANSWER_BYTES_MAX: u64 = 64 << 10;

/// The parts that take long to start, which are ready before the node is asked.
struct StartedParts {
    keys: SidecoreKeys,
    volumes: Volumes,
    cores: Vec<LinkedSidecore>,
    disks: Disks,
    steerer: Steerer,
    opener: Opener,
}

/// The parts that were made from the node's state. All steps that can fail are done.
struct TakenParts {
    control: Standby,
    handover_fds: HandoverFds,
    objects: Objects,
    door: LentDoor,
    links: Vec<PreparedLink>,
    taken_disks: Vec<TakenDisk>,
    /// Dropped before the networks.
    taken_nics: Vec<TakenNic>,
    nics: Nics,
    domains: LentDomains,
}

/// The node's socket for callers. Dropping it removes the socket, which is the node's until "yours"
/// arrives.
type LentDoor = ManuallyDrop<Option<ShmListener>>;

/// Likewise for the sockets of domains.
type LentDomains = ManuallyDrop<Domains>;

impl Node {
    /// Starts in the place of a running node of the same configuration, which ends: its guests and
    /// peers stay. Interfaces of uplinks that vanish later are opened by `opener`.
    ///
    /// # Errors
    /// Why not; the running node goes on.
    pub fn take_over(config: &Config, opener: Opener) -> Result<Self, StartError> {
        directories(config)?;
        let keys = SidecoreKeys::load(config)?;
        let volumes = volumes::start(config)?;
        let cores = sidecores::spawn(config, volumes.seats().early())?;
        let steerer = Steerer::taking_over(&config.sidecores);
        let records = (volumes.own_disks(), Arc::clone(volumes.stock()));
        let disks = disks::start(&cores, steerer.active(), records);
        let disks = disks.inspect_err(|_| sidecores::stop(&cores))?;
        let mut ready = StartedParts { keys, volumes, cores, disks, steerer, opener };
        match ask_and_take(config, &mut ready) {
            Ok(taken) => Ok(serve(config, ready, taken)),
            Err(error) => {
                ready.volumes.stock().close_all();
                ready.disks.stop(&[]);
                sidecores::stop(&ready.cores);
                Err(error.into())
            }
        }
    }
}

/// Returns when everything belongs to this process, and the node touches nothing any more.
fn ask_and_take(config: &Config, ready: &mut StartedParts) -> Result<TakenParts, TakeOverError> {
    let (mut channel, http) = ask(config)?;
    let received = channel.receive::<NodeState>();
    let (state, fds) = received.map_err(|error| broken_off(config, &http, error))?;
    channel.set_limit(ANSWER_TIME_MAX);
    let taken = TakenParts::new(config, ready, state, ReceivedDescriptors::new(fds));
    if taken.is_err() {
        // The node opens them again.
        ready.volumes.stock().close_all();
    }
    let verdict = match &taken {
        Ok(_) => Verdict::Have,
        Err(why) => Verdict::Cannot(why.clone()),
    };
    let told = channel.send(&verdict, &[]);
    let taken = taken.map_err(TakeOverError::Cannot)?;
    match told.and_then(|()| hear_yours(&mut channel)) {
        Ok(()) => Ok(taken),
        Err(error) => Err(broken_off(config, &http, error)),
    }
}

/// Waits for the node's last message. A stopped node may send it at any time, and ends then. So
/// before this process gives up it makes sure that the message can no longer be sent, and looks for
/// it once more.
fn hear_yours(channel: &mut Channel) -> io::Result<()> {
    let heard = channel.receive_word::<HandoverEnd>().or_else(|error| {
        channel.stop_hearing()?;
        channel.receive_word::<HandoverEnd>().map_err(|_| error)
    });
    heard.map(|HandoverEnd {}| ())
}

/// Asks the node for a hand-over, and waits for its connection.
fn ask(config: &Config) -> Result<(Channel, UnixStream), TakeOverError> {
    let pid = std::process::id();
    let path = meeting(&config.control, pid);
    let no_node = |source| TakeOverError::NoNode { control: config.control.clone(), source };
    let mut http = UnixStream::connect(&config.control).map_err(no_node)?;
    let broken = TakeOverError::BrokenOff;
    // An earlier process of this number may have left a socket.
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).map_err(broken)?;
    let wanted = HandOver {
        state_version: STATE_VERSION,
        release: env!("CARGO_PKG_VERSION").to_owned(),
        node: config.name.clone(),
        config_digest: digest(config).map_err(broken)?,
        pid,
    };
    let came = say(&mut http, &wanted).and_then(|()| wait(&listener, &http));
    let _ = std::fs::remove_file(&path);
    match came.map_err(broken)? {
        true => {
            let stream = accept(&listener).map_err(broken)?;
            let channel = Channel::new(stream, STATE_TIME_MAX).map_err(broken)?;
            Ok((channel, http))
        }
        false => Err(broken_off(config, &http, io::ErrorKind::ConnectionAborted.into())),
    }
}

fn say(http: &mut UnixStream, wanted: &HandOver) -> io::Result<()> {
    let body = serde_json::to_string(wanted).map_err(io::Error::other)?;
    let length = body.len();
    let head = "POST /v1/hand-over HTTP/1.0\r\nHost: vrio\r\nContent-Type: application/json\r\n";
    http.write_all(format!("{head}Content-Length: {length}\r\n\r\n{body}").as_bytes())
}

/// Waits for the node: `true` when it connects, `false` when it answers with a refusal.
fn wait(listener: &UnixListener, http: &UnixStream) -> io::Result<bool> {
    let mut fds = [PollFd::new(listener, PollFlags::IN), PollFd::new(http, PollFlags::IN)];
    let until = Instant::now() + STATE_TIME_MAX;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let (tv_sec, tv_nsec) = (left.as_secs() as i64, i64::from(left.subsec_nanos()));
        match poll(&mut fds, Some(&Timespec { tv_sec, tv_nsec })) {
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => return Ok(!fds[0].revents().is_empty()),
        }
    }
}

fn accept(listener: &UnixListener) -> io::Result<UnixStream> {
    let (stream, _) = listener.accept()?;
    let uid = socket_peercred(&stream)?.uid;
    if uid != rustix::process::geteuid() && !uid.is_root() {
        let text = format!("a process of user {} answered instead of the node", uid.as_raw());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    Ok(stream)
}

/// Why the node broke off, in its own words where it gives some.
fn broken_off(config: &Config, http: &UnixStream, error: io::Error) -> TakeOverError {
    let limit = http.set_read_timeout(Some(ANSWER_TIME_MAX));
    let mut answer = String::new();
    let read = limit.and_then(|()| http.take(ANSWER_BYTES_MAX).read_to_string(&mut answer));
    let body = read.ok().and_then(|_| Some(answer.split_once("\r\n\r\n")?.1));
    match body.and_then(|body| serde_json::from_str::<Refused>(body).ok()) {
        Some(refused) => {
            let (control, refused) = (config.control.clone(), Box::new(refused));
            TakeOverError::Refused { control, refused }
        }
        None => TakeOverError::BrokenOff(error),
    }
}

impl TakenParts {
    /// Does all steps that can fail. No part of the node is touched.
    fn new(
        config: &Config,
        ready: &mut StartedParts,
        state: NodeState,
        mut fds: ReceivedDescriptors,
    ) -> Result<Self, String> {
        if state.version != STATE_VERSION {
            return Err(format!("its state has version {}, ours {STATE_VERSION}", state.version));
        }
        // A member's promises are in its own process, and its file is behind them.
        if let Some(volume) = config.volumes.iter().find(|volume| !volume.replicas.is_empty()) {
            return Err(format!(
                "a node with copies of replicated volumes, such as {:?}, is not handed over; \
                 restart it: the nodes of the other copies serve meanwhile",
                volume.name
            ));
        }
        let system = |error: io::Error| error.to_string();
        let control = fds.take(state.control).map_err(system)?;
        let lock = fds.take(state.control_lock).map_err(system)?;
        let claim = Claim::adopt(&config.control, control, lock);
        let metrics = fds.take_any(state.metrics).map_err(system)?.map(TcpListener::from);
        let copy = metrics.as_ref().map(|it| it.as_fd().try_clone_to_owned());
        let copy = copy.transpose().map_err(system)?;
        let handover_fds = HandoverFds::new(claim.copies().map_err(system)?, copy);
        if let Some(lock) = fds.take_any(state.state_lock).map_err(system)? {
            ready.volumes.adopt_state_lock(lock);
        }
        let door = fds.take_any(state.door).map_err(system)?;
        let (door, links) = links(config, ready, door, &state.links, &mut fds)?;
        ready.volumes.stock().open_all(config);
        ready.volumes.stock().check_open(&state.pools)?;
        let volumes = volumes::hand_over::adopt(config, &ready.volumes, state.volumes, &mut fds)?;
        let objects = Objects::new(config, volumes, Vec::new());
        let taken_disks =
            disks::hand_over::adopt(config, &ready.disks, &objects, state.disks, &mut fds)?;
        let nets = (state.uplinks, state.nics);
        let adopted = Nics::adopt(config, &ready.cores, nets, &mut fds, &ready.opener);
        let (nics, taken_nics) = adopted?;
        let domains = ManuallyDrop::new(Domains::adopt(config, state.fabric, &mut fds)?);
        let control = claim.prepare(metrics).map_err(|error| error.to_string())?;
        Ok(Self {
            control,
            handover_fds,
            objects,
            door,
            links,
            taken_disks,
            taken_nics,
            nics,
            domains,
        })
    }
}

/// The node's sockets for datagrams, as links.
fn links(
    config: &Config,
    ready: &mut StartedParts,
    door: Option<OwnedFd>,
    numbers: &[DescriptorNumber],
    fds: &mut ReceivedDescriptors,
) -> Result<(LentDoor, Vec<PreparedLink>), String> {
    let count = if config.listen.is_some() { ready.cores.len() } else { 0 };
    if numbers.len() != count {
        return Err(format!("it has {} sockets, {count} are needed", numbers.len()));
    }
    let links = numbers.iter().enumerate().map(|(index, number)| {
        let adopted = fds.take(*number).and_then(Udp::adopt);
        adopted.map_err(|error| format!("the socket of sidecore {index}: {error}"))
    });
    let links = links.collect::<Result<Vec<_>, String>>()?;
    let ports: Vec<_> = links.iter().map(|it| link::Link::local_addr(it).port()).collect();
    let shared = ShmState::open(config, &ports, door).map_err(|error| error.to_string())?;
    let ShmState { places, callers, door } = shared;
    let door = ManuallyDrop::new(door);
    let cores = &mut ready.cores;
    if !links.is_empty() && config.link.kind != LinkKind::Udp {
        let why = "AF_XDP is not handed over";
        tracing::warn!(why, "datagrams go by UDP until the node is restarted");
    }
    let links = links.into_iter().map(Wire::from).collect();
    let links = sidecores::prepare(config, &ready.keys, cores, links, (places, callers));
    Ok((door, links.map_err(|error| error.to_string())?))
}

/// Starts all parts, which belong to this process now. A step that fails here is logged: it is not
/// a reason to stop guests.
fn serve(config: &Config, ready: StartedParts, taken: TakenParts) -> Node {
    let StartedParts { keys, volumes, mut cores, disks, steerer, .. } = ready;
    let TakenParts { control, handover_fds, objects, door, links, taken_disks, .. } = taken;
    let TakenParts { taken_nics, nics, domains, .. } = taken;
    let (door, domains) = (ManuallyDrop::into_inner(door), ManuallyDrop::into_inner(domains));
    objects.volumes.iter().for_each(|served| volumes.publish(served));
    let reached = PeerObjects::new(volumes.exports(), volumes.seats().doors(), cores.len());
    sidecores::connect(config, &mut cores, links, &reached);
    door.iter().for_each(|door| door.answer(true));
    domains.open_gateways(&cores);
    domains.answer();
    let mut nics = nics.with_doors(reached.networks);
    nics.go_on(taken_nics, &cores);
    let (started, turns) = (Instant::now(), Turns::default());
    let watchdog = Watchdog::start(&cores);
    let strangers = Watcher::start(&objects.config.name, &keys, &cores);
    let objects = Mutex::new(objects);
    let inside = Arc::new(Inside {
        started,
        keys,
        volumes,
        cores,
        door,
        disks,
        nics: Mutex::new(nics),
        domains,
        steerer,
        watchdog,
        timed: TimedSnapshots::default(),
        cluster: ClusterView::default(),
        _strangers: strangers,
        turns,
        objects,
        handover_fds,
    });
    for (shown, adopted) in taken_disks {
        let name = &shown.config.name;
        let served = match adopted {
            Some((adopted, outside)) => {
                inside.disks.go_on(&shown, adopted, outside);
                Ok(())
            }
            None => inside.disks.begin(&shown),
        };
        // A node with one disk less is better than none.
        if let Err(error) = served {
            tracing::error!(disk = name, error, "the disk is not served");
        }
        inside.objects().disks.push(shown);
    }
    // Without steering, queues stay where they are.
    if let Err(error) = disks::steer::start(&inside, &config.sidecores) {
        tracing::error!(%error, "queues are not steered");
    }
    timed::start(&inside);
    if let Err(error) = inside.keys.watch() {
        tracing::error!(%error, "the log will not warn of keys that expire");
    }
    let control = control.serve(Arc::clone(&inside) as Arc<dyn Service>);
    let node = Node { control, inside };
    let disks = config.disks.len();
    tracing::info!(node = config.name, kind = DiskConfig::KEY, disks, "taken over");
    node
}
