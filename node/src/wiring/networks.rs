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
use sessions::{Core, Doors, ObjectError, seed};
use virtio::{DeviceServer, ServerState, Socket};

use self::cables::Cables;
use self::remote::Way;
use self::stages::Watched;
use self::uplinks::{Attachment, OpenedUplink};
use crate::privilege::Opener;

/// A network that exists.
#[derive(Debug)]
struct Live {
    config: NetworkConfig,
    sidecore: usize,
    uplink: Option<Attachment>,
    cables: Arc<Cables>,
    network: Network,
}

/// A nic that exists.
#[derive(Debug)]
struct Shown {
    config: NicConfig,
    core: Arc<NicCore>,
    chain: NicChain,
    watched: Watched,
    cables: Arc<Cables>,
    server: DeviceServer,
    /// The way to a network of another node.
    way: Option<Way>,
}

/// All networks and nics.
#[derive(Debug, Default)]
pub(crate) struct Nics {
    // Dropped before their networks.
    nics: Vec<Shown>,
    networks: Vec<Live>,
    doors: Arc<Doors>,
    /// The process that opens interfaces of uplinks.
    opener: Opener,
}

/// Makes the networks and shows the nics of the file.
///
/// # Errors
/// The networks and nics that cannot be served; none of the others is left.
pub(crate) fn start(
    config: &Config,
    cores: &[Core],
    mut uplinks: BTreeMap<String, OpenedUplink>,
    (doors, opener): (Arc<Doors>, Opener),
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
    cores: &[Core],
    uplink: Option<OpenedUplink>,
) -> Result<Live, String> {
    let network = Network::new(&config.name, cores[sidecore].sidecore.clone(), seed());
    let network = network.map_err(|error| error.to_string())?;
    let cables = Arc::<Cables>::default();
    let attach = |uplink| Attachment::new(uplink, &network, &cables);
    let uplink = uplink.map(attach).transpose()?;
    Ok(Live { config: config.clone(), sidecore, uplink, cables, network })
}

/// A nic before it has a socket.
#[derive(Debug)]
struct Made {
    core: Arc<NicCore>,
    chain: NicChain,
    watched: Watched,
    cables: Arc<Cables>,
    way: Option<Way>,
}

impl Made {
    /// The nic with its socket.
    fn shown(self, config: &NicConfig, server: DeviceServer) -> Shown {
        let Self { core, chain, watched, cables, way } = self;
        cables.set(&config.name, config.link, server.closer());
        Shown { config: config.clone(), core, chain, watched, cables, server, way }
    }
}

fn make(config: &NicConfig, place: Place) -> Result<(Nic, Made), String> {
    let Place { network, cables, way } = place;
    let mut options = NicOptions::new(&config.name, config.mac);
    (options.mtu, options.pairs) = (config.mtu, config.pairs);
    options.port.vlans = match &way {
        None => config.vlans.clone(),
        Some(_) => remote::vlans_here(&config.vlans),
    };
    options.port.isolated = config.isolated;
    let nic = Nic::new(options, &network).map_err(|error| error.to_string())?;
    let (core, chain) = (nic.core(), nic.chain());
    let mut watched = Watched::default();
    watched.change(&chain, None, config)?;
    Ok((nic, Made { core, chain, watched, cables, way }))
}

fn socket(config: &NicConfig) -> Socket {
    let path = config.socket.clone();
    match config.role {
        Role::Listen => Socket::Listen(path, config.access),
        Role::Connect => Socket::Connect(path),
    }
}

/// Shows a nic.
fn show(config: &NicConfig, place: Place) -> Result<Shown, String> {
    let (nic, made) = make(config, place)?;
    let server = virtio::serve(socket(config), Box::new(nic)).map_err(|error| error.to_string())?;
    Ok(made.shown(config, server))
}

impl Shown {
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
struct Place {
    network: Network,
    cables: Arc<Cables>,
    way: Option<Way>,
}

impl Nics {
    /// The same, with doors by which peers may join its networks.
    pub(crate) fn with_doors(mut self, doors: Arc<Doors>) -> Self {
        for live in &self.networks {
            doors.open(&live.config, live.sidecore, &live.network);
        }
        self.doors = doors;
        self
    }

    /// Adds a network, which peers may join from now on.
    fn add_network(&mut self, live: Live) {
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
    fn place(&self, nic: &NicConfig, cores: &[Core]) -> Result<Place, String> {
        match nic.peer() {
            None => {
                let (network, cables) = self.network(&nic.network)?;
                Ok(Place { network, cables, way: None })
            }
            Some(_) => {
                let (sidecore, cables) = (self.sidecore_for_next(cores.len()), Arc::default());
                let way = Way::new(nic, sidecore, cores, &cables)?;
                Ok(Place { network: way.network.clone(), cables, way: Some(way) })
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

    fn shown(&mut self, name: &str) -> Option<&mut Shown> {
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
        shown.and_then(Shown::user).into_iter().collect()
    }

    /// Removes all of them.
    pub(crate) fn stop(&mut self) {
        self.nics.drain(..).for_each(Shown::stop);
        self.networks.iter().for_each(|live| self.doors.close(&live.config.name));
        self.networks.clear();
    }
}
