//! The networks of a node, and the network cards that it shows in them.
//!
//! A network lives on one sidecore, and so do the queues of its nics; networks are dealt out over
//! the sidecores as they come.

mod cables;
pub(crate) mod change;
pub(crate) mod hand_over;
mod remote;
pub(crate) mod report;
mod stages;
pub(crate) mod uplinks;

use std::collections::BTreeMap;
use std::sync::Arc;

use config::{Config, NetworkConfig, NicConfig, Role};
use net::nic::{NicChain, NicOptions};
use net::{Network, Nic, NicCore};
use sessions::{LinkedSidecore, NetworkGate, ObjectError, seed};
use virtio::{DeviceServer, ServerState, Socket};

use self::cables::Cables;
use self::remote::RemoteNetwork;
use self::stages::WatchedStages;
use self::uplinks::{AttachedUplink, OpenedUplink};
use privilege::Opener;

/// A network that exists.
#[derive(Debug)]
struct LiveNetwork {
    config: NetworkConfig,
    sidecore: usize,
    uplink: Option<AttachedUplink>,
    cables: Arc<Cables>,
    network: Network,
}

/// A nic that exists.
#[derive(Debug)]
struct ServedNic {
    config: NicConfig,
    core: Arc<NicCore>,
    chain: NicChain,
    watched: WatchedStages,
    cables: Arc<Cables>,
    server: DeviceServer,
    /// The way to a network of another node.
    way: Option<RemoteNetwork>,
}

/// All networks and nics.
#[derive(Debug, Default)]
pub(crate) struct Nics {
    // Dropped before their networks.
    nics: Vec<ServedNic>,
    networks: Vec<LiveNetwork>,
    doors: Arc<NetworkGate>,
    /// The process that opens interfaces of uplinks.
    opener: Opener,
}

/// Makes the networks and shows the nics of the file.
///
/// # Errors
/// The networks and nics that cannot be served; none of the others is left.
pub(crate) fn start(
    config: &Config,
    cores: &[LinkedSidecore],
    mut uplinks: BTreeMap<String, OpenedUplink>,
    (doors, opener): (Arc<NetworkGate>, Opener),
) -> Result<Nics, Vec<ObjectError>> {
    let (mut nics, mut errors) = (Nics { doors, opener, ..Nics::default() }, Vec::new());
    for network in &config.networks {
        let object = format!("network {:?}", network.name);
        let sidecore = nics.sidecore_for_next(cores.len());
        match live(network, sidecore, cores, uplinks.remove(&network.name)) {
            Ok(live) => nics.add_network(live),
            Err(text) => {
                let place = config.place(&network.lines, "name");
                errors.push(ObjectError { place, object, text });
            }
        }
    }
    for nic in &config.nics {
        match nics.place(nic, cores).and_then(|place| show(nic, place)) {
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

fn live(
    config: &NetworkConfig,
    sidecore: usize,
    cores: &[LinkedSidecore],
    uplink: Option<OpenedUplink>,
) -> Result<LiveNetwork, String> {
    let network = Network::new(&config.name, cores[sidecore].sidecore.clone(), seed());
    let network = network.map_err(|error| error.to_string())?;
    let cables = Arc::<Cables>::default();
    let attach = |uplink| AttachedUplink::new(uplink, &network, &cables);
    let uplink = uplink.map(attach).transpose()?;
    Ok(LiveNetwork { config: config.clone(), sidecore, uplink, cables, network })
}

/// A nic before it has a socket.
#[derive(Debug)]
struct PreparedNic {
    core: Arc<NicCore>,
    chain: NicChain,
    watched: WatchedStages,
    cables: Arc<Cables>,
    way: Option<RemoteNetwork>,
}

impl PreparedNic {
    /// The nic with its socket.
    fn shown(self, config: &NicConfig, server: DeviceServer) -> ServedNic {
        let Self { core, chain, watched, cables, way } = self;
        cables.set(&config.name, config.link, server.closer());
        ServedNic { config: config.clone(), core, chain, watched, cables, server, way }
    }
}

fn make(config: &NicConfig, place: NicPlace) -> Result<(Nic, PreparedNic), String> {
    let NicPlace { network, cables, way } = place;
    let mut options = NicOptions::new(&config.name, config.mac);
    (options.mtu, options.pairs) = (config.mtu, config.pairs);
    options.port.vlans = match &way {
        None => config.vlans.clone(),
        Some(_) => remote::vlans_here(&config.vlans),
    };
    options.port.isolated = config.isolated;
    let nic = Nic::new(options, &network).map_err(|error| error.to_string())?;
    let (core, chain) = (nic.core(), nic.chain());
    let mut watched = WatchedStages::default();
    watched.change(&chain, None, config)?;
    Ok((nic, PreparedNic { core, chain, watched, cables, way }))
}

fn socket(config: &NicConfig) -> Socket {
    let path = config.socket.clone();
    match config.role {
        Role::Listen => Socket::Listen(path, config.access),
        Role::Connect => Socket::Connect(path),
    }
}

/// Shows a nic.
fn show(config: &NicConfig, place: NicPlace) -> Result<ServedNic, String> {
    let (nic, made) = make(config, place)?;
    let server = virtio::serve(socket(config), Box::new(nic)).map_err(|error| error.to_string())?;
    Ok(made.shown(config, server))
}

impl ServedNic {
    /// Removes the nic. It waits until its guest's memory is released.
    fn stop(self) {
        self.cables.remove(&self.config.name);
        self.server.stop();
        if self.config.role == Role::Listen {
            // This process does not touch the guest's memory any more.
            virtio::release(&self.config.socket);
        }
    }

    /// The guest that uses the nic, if there is one.
    fn user(&self) -> Option<String> {
        let is_used = self.server.state() == ServerState::Connected;
        is_used.then(|| match self.server.front_end() {
            Some(pid) => format!("a guest (process {pid})"),
            None => "a guest".to_owned(),
        })
    }
}

/// The place of a nic: a network here, which may have a way to a network of another node.
struct NicPlace {
    network: Network,
    cables: Arc<Cables>,
    way: Option<RemoteNetwork>,
}

impl Nics {
    /// The same, with doors by which peers may join its networks.
    pub(crate) fn with_doors(mut self, doors: Arc<NetworkGate>) -> Self {
        for live in &self.networks {
            doors.open(&live.config, live.sidecore, &live.network);
        }
        self.doors = doors;
        self
    }

    /// Adds a network, which peers may join from now on.
    fn add_network(&mut self, live: LiveNetwork) {
        self.doors.open(&live.config, live.sidecore, &live.network);
        self.networks.push(live);
    }

    /// Sets which peers may join a network from now on, as this configuration says.
    fn set_open(&mut self, network: &NetworkConfig) {
        let live = self.networks.iter_mut().find(|live| live.config.name == network.name);
        let live = live.expect("the caller has looked");
        live.config.allow.clone_from(&network.allow);
        live.config.remote.clone_from(&network.remote);
        self.doors.set_open(network);
    }

    /// The network of a nic, or the way to it.
    fn place(&self, nic: &NicConfig, cores: &[LinkedSidecore]) -> Result<NicPlace, String> {
        match nic.peer() {
            None => {
                let (network, cables) = self.network(&nic.network)?;
                Ok(NicPlace { network, cables, way: None })
            }
            Some(_) => {
                let (sidecore, cables) = (self.sidecore_for_next(cores.len()), Arc::default());
                let way = RemoteNetwork::new(nic, sidecore, cores, &cables)?;
                Ok(NicPlace { network: way.network.clone(), cables, way: Some(way) })
            }
        }
    }

    /// The sidecore with the fewest networks.
    fn sidecore_for_next(&self, sidecores: usize) -> usize {
        let load = |at: &usize| {
            let ways = self.nics.iter().filter_map(|shown| shown.way.as_ref());
            self.networks.iter().filter(|live| live.sidecore == *at).count()
                + ways.filter(|way| way.sidecore == *at).count()
        };
        (0..sidecores).min_by_key(load).expect("a node has at least one")
    }

    fn network(&self, name: &str) -> Result<(Network, Arc<Cables>), String> {
        let live = self.networks.iter().find(|live| live.config.name == name);
        let network = live.map(|live| (live.network.clone(), Arc::clone(&live.cables)));
        network.ok_or_else(|| format!("there is no network {name:?}"))
    }

    fn shown(&mut self, name: &str) -> Option<&mut ServedNic> {
        self.nics.iter_mut().find(|shown| shown.config.name == name)
    }

    /// Sets whether new front ends are refused from now on.
    pub(crate) fn set_turning_away(&self, turns_away: bool) {
        self.nics.iter().for_each(|shown| shown.server.set_turning_away(turns_away));
    }

    /// The nics in use, with their guests.
    pub(crate) fn users(&self) -> Vec<String> {
        let used = self.nics.iter().filter_map(|shown| Some((shown, shown.user()?)));
        used.map(|(shown, user)| format!("nic {:?}: {user}", shown.config.name)).collect()
    }

    /// The guest that uses one nic.
    pub(crate) fn user_of(&self, name: &str) -> Vec<String> {
        let shown = self.nics.iter().find(|shown| shown.config.name == name);
        shown.and_then(ServedNic::user).into_iter().collect()
    }

    /// Removes all of them.
    pub(crate) fn stop(&mut self) {
        self.nics.drain(..).for_each(ServedNic::stop);
        self.networks.iter().for_each(|live| self.doors.close(&live.config.name));
        self.networks.clear();
    }
}
