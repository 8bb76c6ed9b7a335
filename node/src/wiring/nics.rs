//! The networks of a node, and the network cards that it shows in them.
//!
//! A network lives on one sidecore, and so do the queues of its nics; networks are dealt out over
//! the sidecores in the order of the file. All of it comes from the file: to change it takes a
//! restart.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use net::nic::NicOptions;
use net::stage::{Filter, FilterCore, LimitCore, Limited, Staged};
use net::uplink::tap::{OpenTap, TapCore, TapError, TapKeeper};
use net::{Attached, Network, Nic, NicCore, Port, PortCounters, PortOptions};
use rustix::rand::{GetRandomFlags, getrandom};
use virtio::{Server, ServerState, Socket};

use super::ObjectError;
use super::sidecores::Core;
use crate::config::{Config, NetworkConfig, NicConfig, Role, Uplink};
use crate::status::{Counters, DiskState, NetworkStatus, NicStatus};

/// A tap that was opened while the process had more rights.
#[derive(Debug)]
pub(super) struct OpenedTap {
    tap: OpenTap,
    counters: Arc<PortCounters>,
}

/// Opens the uplinks of the file.
///
/// # Errors
/// Those that cannot be opened, and what to do.
pub(super) fn open_uplinks(
    config: &Config,
) -> Result<BTreeMap<String, OpenedTap>, Vec<ObjectError>> {
    let (mut opened, mut errors) = (BTreeMap::new(), Vec::new());
    for network in &config.networks {
        let Some(Uplink::Tap(interface)) = &network.uplink else { continue };
        let counters = Arc::<PortCounters>::default();
        match OpenTap::new(interface, Arc::clone(&counters)) {
            Ok(tap) => {
                opened.insert(network.name.clone(), OpenedTap { tap, counters });
            }
            Err(error) => errors.push(refused(config, network, &error)),
        }
    }
    if errors.is_empty() { Ok(opened) } else { Err(errors) }
}

fn refused(config: &Config, network: &NetworkConfig, error: &TapError) -> ObjectError {
    ObjectError {
        place: config.place(&network.lines, "uplink"),
        object: format!("network {:?}", network.name),
        text: error.to_string(),
    }
}

/// An uplink that is attached. Fields go in this order: the port before who looks after it.
#[derive(Debug)]
struct Attachment {
    _port: Attached,
    _keeper: TapKeeper,
    core: Arc<TapCore>,
    counters: Arc<PortCounters>,
}

/// A network that is there.
#[derive(Debug)]
struct Live {
    config: NetworkConfig,
    sidecore: usize,
    uplink: Option<Attachment>,
    network: Network,
}

/// A nic that is there.
#[derive(Debug)]
struct Shown {
    config: NicConfig,
    core: Arc<NicCore>,
    filter: Option<Arc<FilterCore>>,
    limit: Option<Arc<LimitCore>>,
    server: Option<Server>,
}

/// All networks and nics.
#[derive(Debug, Default)]
pub(super) struct Nics {
    // Before their networks.
    nics: Vec<Shown>,
    networks: Vec<Live>,
}

/// Makes the networks and shows the nics of the file.
///
/// # Errors
/// What cannot be served; nothing is left of the rest.
pub(super) fn start(
    config: &Config,
    cores: &[Core],
    mut uplinks: BTreeMap<String, OpenedTap>,
) -> Result<Nics, Vec<ObjectError>> {
    let (mut nics, mut errors) = (Nics::default(), Vec::new());
    for (at, network) in config.networks.iter().enumerate() {
        let object = format!("network {:?}", network.name);
        match live(network, at % cores.len(), cores, uplinks.remove(&network.name)) {
            Ok(live) => nics.networks.push(live),
            Err(text) => {
                let place = config.place(&network.lines, "name");
                errors.push(ObjectError { place, object, text });
            }
        }
    }
    for nic in &config.nics {
        match nics.show(nic) {
            Ok(shown) => nics.nics.push(shown),
            Err(text) => errors.push(ObjectError {
                place: config.place(&nic.lines, "socket"),
                object: format!("nic {:?}", nic.name),
                text,
            }),
        }
    }
    if errors.is_empty() { Ok(nics) } else { Err(errors) }
}

fn text(error: impl fmt::Display) -> String {
    error.to_string()
}

fn live(
    config: &NetworkConfig,
    sidecore: usize,
    cores: &[Core],
    uplink: Option<OpenedTap>,
) -> Result<Live, String> {
    let network = Network::new(&config.name, cores[sidecore].sidecore.clone(), seed());
    let network = network.map_err(text)?;
    let attach = |OpenedTap { tap, counters }| -> Result<Attachment, String> {
        let (make, core, keeper) = tap.into_parts();
        let shared = Arc::clone(&counters);
        let port =
            network.attach(PortOptions::of_uplink(), shared, move |_| make()).map_err(text)?;
        Ok(Attachment { _port: port, _keeper: keeper, core, counters })
    };
    let uplink = uplink.map(attach).transpose()?;
    Ok(Live { config: config.clone(), sidecore, uplink, network })
}

/// Nobody outside is to know it. Without random numbers the clock will do.
fn seed() -> u64 {
    let mut bytes = [0; 8];
    match getrandom(&mut bytes, GetRandomFlags::empty()) {
        Ok(8) => u64::from_ne_bytes(bytes),
        _ => sidecore::now_ns(),
    }
}

impl Nics {
    fn show(&self, config: &NicConfig) -> Result<Shown, String> {
        let live = self.networks.iter().find(|live| live.config.name == config.network);
        let live = live.ok_or_else(|| format!("network {:?} is not there", config.network))?;
        let mut options = NicOptions::new(&config.name, config.mac);
        (options.mtu, options.pairs) = (config.mtu, config.pairs);
        options.port.vlans.clone_from(&config.vlans);
        options.port.isolated = config.isolated;
        let filter = config.filter.as_ref().map(FilterCore::new);
        let limit = config.limit.map(|_| Arc::<LimitCore>::default());
        let chain = chain(config, filter.clone(), limit.clone());
        let nic = Nic::with_chain(options, &live.network, chain).map_err(text)?;
        let core = nic.core();
        let path = config.socket.clone();
        let socket = match config.role {
            Role::Listen => Socket::Listen(path),
            Role::Connect => Socket::Connect(path),
        };
        let server = Some(virtio::serve(socket, Box::new(nic)).map_err(text)?);
        Ok(Shown { config: config.clone(), core, filter, limit, server })
    }

    /// Whether there are any.
    pub(super) fn is_empty(&self) -> bool {
        self.nics.is_empty() && self.networks.is_empty()
    }

    /// Whether front ends that come from now on are turned away.
    pub(super) fn set_turning_away(&self, turns_away: bool) {
        for server in self.nics.iter().filter_map(|shown| shown.server.as_ref()) {
            server.set_turning_away(turns_away);
        }
    }

    /// The nics that somebody uses, and who.
    pub(super) fn users(&self) -> Vec<String> {
        let used = self.nics.iter().filter(|shown| shown.state() == DiskState::Running);
        let pid = |shown: &Shown| {
            let pid = shown.server.as_ref().and_then(Server::front_end);
            pid.map_or_else(|| "a guest".to_owned(), |pid| format!("process {pid}"))
        };
        used.map(|shown| format!("nic {:?}: {}", shown.config.name, pid(shown))).collect()
    }

    /// The networks, in the order of the file.
    pub(super) fn networks(&self) -> Vec<NetworkStatus> {
        self.networks.iter().map(|live| live.status(&self.nics)).collect()
    }

    /// The nics, in the order of the file.
    pub(super) fn nics(&self) -> Vec<NicStatus> {
        self.nics.iter().map(Shown::status).collect()
    }

    /// Takes all of them away.
    pub(super) fn stop(&mut self) {
        for shown in self.nics.drain(..) {
            if let Some(server) = shown.server {
                server.stop();
            }
            if shown.config.role == Role::Listen {
                // Nothing of this process touches the guest any more.
                virtio::release(&shown.config.socket);
            }
        }
        self.networks.clear();
    }
}

/// The stages of a nic, in the order in which the guest's frames pass them: what may not out need
/// not be paid for.
fn chain(
    config: &NicConfig,
    filter: Option<Arc<FilterCore>>,
    limit: Option<Arc<LimitCore>>,
) -> impl FnOnce(Box<dyn Port>, &Arc<PortCounters>) -> Box<dyn Port> + Send + use<> {
    let (rules, rate, seed) = (config.filter.clone(), config.limit, seed());
    move |mut port, counters| {
        if let (Some(rate), Some(core)) = (rate, limit) {
            let counters = Arc::clone(counters);
            port = Box::new(Limited::new((rate, rate), core, port, counters));
        }
        if let (Some(rules), Some(core)) = (rules, filter) {
            let stage = Filter::new(rules, core, seed);
            port = Box::new(Staged::new(stage, port, Arc::clone(counters)));
        }
        port
    }
}

impl Live {
    fn status(&self, nics: &[Shown]) -> NetworkStatus {
        let mut counters = Counters::new();
        if let Some(uplink) = &self.uplink {
            port_counters(&uplink.counters, "uplink_", &mut counters);
        }
        let looked = self.network.look(|bridge| bridge.switch().counters());
        if let Some(looked) = looked {
            counters.insert("addresses_moved".to_owned(), looked.moved);
            counters.insert("addresses_unlearned".to_owned(), looked.unlearned);
        }
        let ports = nics.iter().filter(|shown| shown.config.network == self.config.name);
        NetworkStatus {
            name: self.config.name.clone(),
            uplink: self.config.uplink.as_ref().map(ToString::to_string),
            uplink_up: self.uplink.as_ref().map(|uplink| uplink.core.is_up()),
            sidecore: self.sidecore,
            nics: ports.map(|shown| shown.config.name.clone()).collect(),
            counters,
        }
    }
}

impl Shown {
    fn state(&self) -> DiskState {
        match self.server.as_ref().map(Server::state) {
            _ if self.core.is_broken() => DiskState::Failed,
            Some(ServerState::Failed(_)) => DiskState::Failed,
            Some(ServerState::Connected) => DiskState::Running,
            Some(ServerState::Waiting) => DiskState::Ready,
            _ => DiskState::Waiting,
        }
    }

    fn detail(&self) -> String {
        if let Some(why) = self.core.broken_why() {
            return format!("the guest broke the rules of its rings: {why}");
        }
        match self.server.as_ref().map(Server::state) {
            Some(ServerState::Failed(why)) => why,
            Some(ServerState::Predecessor(holder)) => {
                let holder = holder.map_or_else(String::new, |pid| format!(" (pid {pid})"));
                format!("another process{holder} serves its socket; waiting for its end")
            }
            _ => String::new(),
        }
    }

    fn status(&self) -> NicStatus {
        let mut counters = Counters::new();
        port_counters(self.core.counters(), "", &mut counters);
        for (name, count) in self.core.failures() {
            counters.insert(format!("ring_{name}"), count);
        }
        if let Some(limit) = &self.limit {
            counters.insert("limit_held_rounds".to_owned(), limit.held_rounds.get());
        }
        if let Some(filter) = &self.filter {
            filter_counters(filter, &mut counters);
        }
        NicStatus {
            name: self.config.name.clone(),
            socket: self.config.socket.display().to_string(),
            network: self.config.network.clone(),
            mac: self.config.mac.to_string(),
            pairs: self.config.pairs,
            mtu: self.config.mtu,
            state: self.state(),
            detail: self.detail(),
            front_end_pid: self.server.as_ref().and_then(Server::front_end),
            counters,
        }
    }
}

fn port_counters(from: &PortCounters, prefix: &str, into: &mut Counters) {
    let plain = [
        ("frames_in", &from.frames_in),
        ("bytes_in", &from.bytes_in),
        ("frames_out", &from.frames_out),
        ("bytes_out", &from.bytes_out),
        ("cut_out", &from.cut_out),
        ("checksums_out", &from.checksums_out),
    ];
    for (name, counter) in plain {
        into.insert(format!("{prefix}{name}"), counter.get());
    }
    for (direction, drops) in [("in", &from.drops_in), ("out", &from.drops_out)] {
        into.insert(format!("{prefix}drops_{direction}"), drops.total());
        for (name, count) in drops.by_name() {
            into.insert(format!("{prefix}drops_{direction}_{name}"), count);
        }
    }
}

fn filter_counters(filter: &FilterCore, into: &mut Counters) {
    for (at, rule) in filter.rules.iter().enumerate() {
        into.insert(format!("filter_rule_{}_frames", at + 1), rule.frames.get());
    }
    let others =
        [("default", &filter.default), ("kept", &filter.kept), ("unreadable", &filter.unreadable)];
    for (name, rule) in others {
        into.insert(format!("filter_{name}_frames"), rule.frames.get());
    }
    into.insert("filter_flows_begun".to_owned(), filter.flows_begun.get());
    into.insert("filter_flows_lost".to_owned(), filter.flows_lost.get());
}
