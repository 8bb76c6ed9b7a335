//! A nic whose network is on another node: here it has a network of its own, with a port that leads
//! there.

use std::sync::Arc;

use config::NicConfig;
use net::remote::{CableCore, NetCallKind, NetPlane, WantedNetwork, join};
use net::{Attached, Network, PortCounters, PortOptions, Vlans};
use peer::Planes;
use sessions::{LinkedSidecore, key_files, seed};

use super::cables::Cables;

/// The way to a network of another node.
#[derive(Debug)]
pub(crate) struct RemoteNetwork {
    pub(crate) core: Arc<CableCore>,
    /// Counters of the port that leads there.
    pub(crate) counters: Arc<PortCounters>,
    pub(crate) network: Network,
    pub(crate) sidecore: usize,
    _port: Attached,
    peer: String,
    flow: Option<u16>,
}

impl RemoteNetwork {
    /// Makes the way of a nic, and asks for its network from now on. The nic's cable is pulled
    /// while the network is out of reach.
    ///
    /// # Errors
    /// When its key cannot be read, or the sidecore is gone.
    pub(crate) fn new(
        config: &NicConfig,
        sidecore: usize,
        cores: &[LinkedSidecore],
        cables: &Arc<Cables>,
    ) -> Result<Self, String> {
        let cables = Arc::clone(cables);
        let (peer, name) = config.network.split_once('/').expect("a network of another node");
        let on = &cores[sidecore].sidecore;
        let key = config.attachment_key.as_deref().map(key_files::read_attachment);
        let key = key.transpose().map_err(|error| error.to_string())?;
        let network =
            Network::new(&config.network, on.clone(), seed()).map_err(|error| error.to_string())?;
        let (core, counters) = (Arc::<CableCore>::default(), Arc::<PortCounters>::default());
        let wanted = WantedNetwork {
            peer: peer.to_owned(),
            join: join(name, &config.name, config.mac, config.mtu, config.vlans.clone()),
            prove: Box::new(move |binding, join| {
                let names = (join.network.as_str(), join.nic.as_str());
                key.as_ref().and_then(|key| key.prove(binding, NetCallKind::Join as u8, names))
            }),
            told: Box::new(move |is_there| cables.set_uplink(is_there)),
        };
        let (sender, made) = std::sync::mpsc::channel();
        let (shared, told, held) = (Arc::clone(&core), Arc::clone(&counters), peer.to_owned());
        let make = move |local: &mut sidecore::Local| {
            let services = local.services();
            let plane = services.get::<NetPlane>().expect("a node that listens");
            if let Some(planes) = services.get::<Planes>() {
                planes.borrow().peers().borrow_mut().hold_named(&held);
            }
            let (flow, port) = plane.borrow_mut().join(wanted, shared, told);
            // The caller waits for it.
            let _ = sender.send(flow);
            port
        };
        let port = network.attach(PortOptions::of_uplink(), Arc::clone(&counters), make);
        let port = port.map_err(|error| error.to_string())?;
        let flow = made.try_recv().ok().flatten();
        Ok(Self { core, counters, _port: port, network, sidecore, peer: peer.to_owned(), flow })
    }
}

impl Drop for RemoteNetwork {
    /// Leaves the network.
    fn drop(&mut self) {
        let (flow, peer) = (self.flow, std::mem::take(&mut self.peer));
        // A sidecore that has stopped has left.
        let _ = self.network.sidecore().call(move |local| {
            let now_ns = local.now_ns();
            if let (Some(plane), Some(flow)) = (local.services().get::<NetPlane>(), flow) {
                plane.borrow_mut().remove(now_ns, flow);
            }
            if let Some(planes) = local.services().get::<Planes>() {
                planes.borrow().peers().borrow_mut().release_named(&peer);
            }
        });
    }
}

/// A guest that is in one VLAN sees no tags here: the other node adds the VLAN.
pub(crate) fn vlans_here(vlans: &Vlans) -> Vlans {
    match vlans {
        Vlans::Access(_) => Vlans::Access(0),
        trunk => trunk.clone(),
    }
}
