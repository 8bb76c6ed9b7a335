//! Domains with which another process goes on: their memory, the owner of each endpoint, and
//! messages on their way to and from other hosts.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;

use config::{Config, DomainConfig, VfConfig};
use fabric_node::SlotTable;
use fabric_node::gateway::{Associations, Handed};
use fabric_node::hand_over::{
    AssociationsState, ClientStates, RegistrationState, TakenRoom, VfState,
};
use fabric_node::registration::RegistrationServer;
use handover::{ReceivedDescriptors, SentDescriptors};
use sessions::{LinkedSidecore, gateways::Gateways};

use super::{DomainAssociations, Domains, named, random_host};
use crate::wiring::hand_over::state::{FabricState, JoinedState, RoomWithCargo};

/// The most bytes that may wait in a gateway, for other hosts and for endpoints that do not poll,
/// for a hand-over. They are copied while everything stands still. Well-behaved members have far
/// less waiting.
const CARGO_BYTES_MAX: u64 = 512 << 20;

impl Domains {
    /// Makes new callers wait for a successor; members are answered until [`Domains::stand_still`].
    pub(crate) fn let_wait(&self) -> Result<(), String> {
        let server = self.server();
        let Some(server) = server.as_ref() else { return Ok(()) };
        server.stop_accepting().map_err(|error| error.to_string())
    }

    /// From now on no part of the domains changes, until [`Domains::answer`]. Gateways have stopped
    /// before.
    pub(crate) fn stand_still(&self) {
        self.server().iter().for_each(RegistrationServer::pause);
    }

    /// From now on another process proves to VMs that it lives, until [`Domains::answer`].
    pub(crate) fn leave(&self) {
        self.server().iter().for_each(RegistrationServer::release_liveness);
    }

    /// The state for a successor.
    pub(crate) fn take_down(
        &self,
        cores: &[LinkedSidecore],
        sent: &mut SentDescriptors,
    ) -> io::Result<Option<FabricState>> {
        let server = self.server();
        let Some(server) = server.as_ref() else { return Ok(None) };
        let registration = server.take_down(sent)?;
        let opened = self.opened();
        let joined = opened.iter().map(|open| JoinedState {
            domain: open.name.clone(),
            associations: open.associations.take_down(),
        });
        let mut rooms = Vec::new();
        for TakenRoom { state: room, cargo } in cores.iter().flat_map(rooms_of) {
            if cargo.len() as u64 > CARGO_BYTES_MAX {
                return Err(io::Error::other(format!(
                    "more than {CARGO_BYTES_MAX} bytes wait in domain {:?}",
                    room.domain
                )));
            }
            rooms.push(RoomWithCargo { room, cargo: sent.put_bytes("messages", &cargo)? });
        }
        Ok(Some(FabricState { registration, joined: joined.collect(), rooms }))
    }

    /// The domains of the file, with the state of a predecessor. Members and VMs notice no change
    /// before [`Domains::answer`].
    ///
    /// # Errors
    /// The domain that cannot go on.
    pub(crate) fn adopt(
        config: &Config,
        state: Option<FabricState>,
        fds: &mut ReceivedDescriptors,
    ) -> Result<Self, String> {
        let system = |error: io::Error| error.to_string();
        let Some(FabricState { registration, joined, rooms }) = state else {
            let domains = Self::new(config, random_host().map_err(system)?, None);
            let Some(domain) = config.domains.first() else { return Ok(domains) };
            return Err(format!("{}: the node has it not", named(domain)));
        };
        let RegistrationState { listener, host, domains: states, callers, departed, vfs } =
            registration;
        let listener = fds.take(listener).map_err(system)?;
        let server = RegistrationServer::adopt(&config.fabric, host, listener).map_err(system)?;
        let domains = Self::new(config, host, None);
        let states = states.into_iter().map(|state| (state.name.clone(), state));
        let mut states: HashMap<_, _> = states.collect();
        let joined = joined.into_iter().map(|it| (it.domain, it.associations)).collect();
        let mut beside = PredecessorAssociations { joined, rooms };
        for domain in &config.domains {
            let failed = |text: String| format!("{}: {text}", named(domain));
            let state = states.remove(&domain.name);
            let state = state.ok_or_else(|| failed("the node has it not".to_owned()))?;
            let settings = domains.settings(domain).map_err(failed)?;
            let key = settings.key.clone();
            let adopted = server.adopt_domain(settings, state, fds);
            adopted.map_err(|error| failed(error.to_string()))?;
            let begin = |table| beside.begin(domain, table, fds);
            domains.note(&server, domain, key, begin).map_err(failed)?;
        }
        check_vfs(&config.vfs, &vfs)?;
        let adopted = server.adopt_clients(ClientStates { callers, departed, vfs }, fds);
        adopted.map_err(|error| format!("the fabric's members: {error}"))?;
        *domains.server() = Some(server);
        Ok(domains)
    }
}

/// Whether the windows of VMs are those of the file.
fn check_vfs(wanted: &[VfConfig], states: &[VfState]) -> Result<(), String> {
    let there: Vec<_> = states.iter().filter(|state| state.listener.is_some()).collect();
    let is_it = |vf: &VfConfig, state: &VfState| {
        (&vf.name, &vf.domain, &vf.socket) == (&state.name, &state.domain, &state.path)
    };
    let missing = wanted.iter().find(|vf| !there.iter().any(|state| is_it(vf, state)));
    match missing {
        Some(vf) => Err(format!("vf {:?}: the node has it not", vf.name)),
        None if there.len() != wanted.len() => Err("the node has other vfs".to_owned()),
        None => Ok(()),
    }
}

/// The state of the rooms of a sidecore.
fn rooms_of(core: &LinkedSidecore) -> Vec<TakenRoom> {
    let rooms = core.sidecore.call(|local| {
        let gateways = local.services().get::<Gateways>()?;
        Some(gateways.borrow_mut().take_down())
    });
    // A sidecore without sessions has no rooms.
    rooms.ok().flatten().unwrap_or_default()
}

/// A predecessor's state of the ways to other hosts.
struct PredecessorAssociations {
    /// By the domain's name.
    joined: HashMap<String, AssociationsState>,
    rooms: Vec<RoomWithCargo>,
}

impl PredecessorAssociations {
    /// A domain's ways to other hosts, and the state of each gateway.
    fn begin(
        &mut self,
        domain: &DomainConfig,
        table: Arc<SlotTable>,
        fds: &mut ReceivedDescriptors,
    ) -> Result<DomainAssociations, String> {
        let state = self.joined.remove(&domain.name).ok_or("nothing is told of its hosts")?;
        let gateways = table.region().options().gateways;
        let nodes: Vec<_> = (0..gateways).filter(|it| table.live_in(*it).is_some()).collect();
        let associations = Associations::adopt(table, state, &domain.peers);
        let associations = associations.map_err(|error| error.to_string())?;
        let mut handed = BTreeMap::new();
        let is_its = |it: &mut RoomWithCargo| it.room.domain == domain.name;
        for RoomWithCargo { room, cargo } in self.rooms.extract_if(.., is_its) {
            let gateway = room.gateway;
            let failed = |error: &dyn std::fmt::Display| format!("gateway {gateway}: {error}");
            let cargo = fds.take_bytes(cargo, CARGO_BYTES_MAX).map_err(|error| failed(&error))?;
            let room = Handed::new(TakenRoom { state: room, cargo }, &associations);
            handed.insert(gateway, room.map_err(|error| failed(&error))?);
        }
        match handed.keys().copied().eq(nodes) {
            true => Ok((associations, handed)),
            false => Err("a gateway is missing, or told of twice".to_owned()),
        }
    }
}
