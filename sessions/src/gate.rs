//! The nodes that may join this node's networks, and the terms of each.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use config::{NetworkConfig, RemotePorts};
use net::remote::{Admission, Join, JoinGate, MemberRight, Members, NetCallKind};
use net::stage::{Filter, FilterCore, LimitCore, Limiter, Staged, Stages};
use net::{Network, PortOptions, Stations, VlanSet, Vlans};
use parking_lot::{Mutex, MutexGuard};
use peer::{Allow, AttachmentKey, proof};
use sidecore::LogLines;
use transport::PeerInfo;

use crate::random::seed;

/// Lines that joins may cause in the log in a minute: a hostile peer must not fill it.
const LOG_LINES_MAX: u32 = 32;

/// Proofs of one peer that are checked in a second, on all sidecores together. Each check takes a
/// tenth of a millisecond, so a peer that sends nothing but proofs takes one hundredth of one
/// sidecore.
const PROOFS_PER_S: u64 = 100;

/// Proofs that a peer may send at once after a pause: as many as one of its sidecores can have
/// nics, since all of these join when a session is there again.
const PROOFS_AT_ONCE: u64 = transport::FLOWS_MAX as u64;

const PROOF_NS: u64 = 1_000_000_000 / PROOFS_PER_S;

/// A network that exists.
#[derive(Debug)]
struct OpenNetwork {
    id: u64,
    sidecore: u16,
    allow: Vec<Allow>,
    remote: RemotePorts,
    /// A number that changes with `remote`.
    terms: u64,
}

#[derive(Debug)]
struct GateState {
    networks: BTreeMap<String, OpenNetwork>,
    /// The time until which each peer has used up its proofs. A peer is in this table only while
    /// its time is ahead of the clock, and only if a network names it.
    proofs: BTreeMap<String, u64>,
    log: LogLines,
}

impl Default for GateState {
    fn default() -> Self {
        let (networks, proofs) = (BTreeMap::new(), BTreeMap::new());
        Self { networks, proofs, log: LogLines::new(LOG_LINES_MAX) }
    }
}

/// The networks that peers may join, and the members that have joined.
#[derive(Debug, Default)]
pub struct NetworkGate {
    inside: Mutex<GateState>,
    generation: AtomicU64,
    sidecores: AtomicU64,
    /// The nics of other nodes that have joined.
    pub members: Arc<Members>,
}

impl NetworkGate {
    /// The doors of a node with so many sidecores.
    pub fn new(sidecores: usize) -> Arc<Self> {
        let doors = Self::default();
        doors.sidecores.store(sidecores as u64, SeqCst);
        Arc::new(doors)
    }

    /// Opens a network to the nodes that its configuration names.
    pub fn open(&self, config: &NetworkConfig, sidecore: usize, network: &Network) {
        let open = OpenNetwork {
            id: network.id(),
            sidecore: sidecore as u16,
            allow: config.allow.clone(),
            remote: config.remote.clone(),
            terms: 0,
        };
        self.guard().networks.insert(config.name.clone(), open);
        self.generation.fetch_add(1, SeqCst);
    }

    /// Opens a network to other nodes than before, or on other terms: those that its configuration
    /// names. A member whose terms changed is removed, and joins again by itself.
    pub fn set_open(&self, config: &NetworkConfig) {
        if let Some(open) = self.guard().networks.get_mut(&config.name) {
            open.allow.clone_from(&config.allow);
            if open.remote != config.remote {
                open.remote.clone_from(&config.remote);
                open.terms += 1;
            }
        }
        self.generation.fetch_add(1, SeqCst);
    }

    /// Closes a network that is removed.
    pub fn close(&self, network: &str) {
        self.guard().networks.remove(network);
        self.generation.fetch_add(1, SeqCst);
    }

    fn guard(&self) -> MutexGuard<'_, GateState> {
        // Each change is made in one step.
        self.inside.lock()
    }
}

impl GateState {
    /// Whether a network is open to a node of this name, by itself or with a key.
    fn names(&self, network: &str, peer: &str) -> bool {
        let open = self.networks.get(network);
        open.is_some_and(|open| open.allow.iter().any(|entry| entry.node == peer))
    }

    /// Whether another proof of this peer is checked now: a token bucket, kept as a time.
    fn may_prove(&mut self, peer: &str, now_ns: u64) -> bool {
        self.proofs.retain(|_, until_ns| *until_ns > now_ns);
        let until_ns = self.proofs.get(peer).copied().unwrap_or(now_ns);
        if until_ns - now_ns > (PROOFS_AT_ONCE - 1) * PROOF_NS {
            return false;
        }
        self.proofs.insert(peer.to_owned(), until_ns + PROOF_NS);
        true
    }
}

fn allows(allow: &[Allow], peer: &str, key: Option<[u8; 32]>) -> bool {
    peer::allows(allow, peer, key.map(AttachmentKey))
}

/// One text for a stranger: it does not tell a missing network from one that is not open.
fn not_open(network: &str, peer: &str) -> String {
    format!(
        "network {network} is not open to {peer}: check its name and `allow` there, and \
         `attachment-key` here"
    )
}

impl NetworkGate {
    /// The key that a join proves, if it proves one.
    fn proved(
        &self,
        now_ns: u64,
        peer: &PeerInfo,
        join: &Join,
        proof: Option<&[u8]>,
    ) -> Result<Option<[u8; 32]>, String> {
        let Some(proof) = proof else { return Ok(None) };
        {
            let mut inside = self.guard();
            // Checking a proof takes a tenth of a millisecond: too much for a peer that is not
            // named.
            if !inside.names(&join.network, &peer.name) {
                return Ok(None);
            }
            if !inside.may_prove(&peer.name, now_ns) {
                return Err(format!(
                    "more than {PROOFS_AT_ONCE} proofs at once, or {PROOFS_PER_S} in a second, are \
                     not checked: the nic tries again"
                ));
            }
        }
        let names = (join.network.as_str(), join.nic.as_str());
        let verified = proof::verify(proof, &peer.binding, NetCallKind::Join as u8, names);
        verified.map(|AttachmentKey(key)| Some(key)).map_err(|error| error.to_string())
    }
}

impl JoinGate for NetworkGate {
    fn admit(
        &self,
        now_ns: u64,
        peer: &PeerInfo,
        join: &Join,
        proof: Option<&[u8]>,
    ) -> Result<Admission, String> {
        let key = self.proved(now_ns, peer, join, proof)?;
        let mut inside = self.guard();
        let found = inside.networks.get(&join.network);
        let Some(open) = found.filter(|open| allows(&open.allow, &peer.name, key)) else {
            let why = if found.is_some() { "its `allow` has no entry for it" } else { "none such" };
            if inside.log.may(now_ns) {
                let (peer, network, nic) = (&peer.name, &join.network, &join.nic);
                tracing::warn!(peer, network, nic, why, "a network was refused");
            }
            return Err(not_open(&join.network, &peer.name));
        };
        if !vlans_fit(&open.remote.vlans, &join.vlans) {
            let network = &join.network;
            return Err(format!("network {network}: see \"vlans\" in its \"remote\" on that node"));
        }
        let options = PortOptions {
            vlans: join.vlans.clone(),
            stations: Stations::Own(join.mac),
            isolated: open.remote.isolated,
            ..PortOptions::of_guest(join.mac)
        };
        Ok(Admission {
            network: open.id,
            sidecore: open.sidecore,
            sidecores: self.sidecores.load(SeqCst) as u16,
            options,
            chain: chain(&open.remote),
            right: MemberRight {
                peer: peer.name.clone(),
                network: join.network.clone(),
                key,
                terms: open.terms,
            },
        })
    }

    fn holds(&self, right: &MemberRight) -> bool {
        let inside = self.guard();
        let open = inside.networks.get(&right.network);
        open.is_some_and(|open| {
            open.terms == right.terms && allows(&open.allow, &right.peer, right.key)
        })
    }

    fn generation(&self) -> u64 {
        self.generation.load(SeqCst)
    }
}

/// Whether a member may be in these VLANs; the untagged segment is open to all members.
fn vlans_fit(open: &VlanSet, wanted: &Vlans) -> bool {
    match wanted {
        Vlans::Access(0) => true,
        Vlans::Access(vlan) => open.has(*vlan),
        Vlans::Trunk { tagged, .. } => open.covers(tagged),
    }
}

/// The stages that the network's own node puts before another node's port.
fn chain(remote: &RemotePorts) -> net::remote::PortMaker {
    let (limit, rules, seed) = (remote.limit, remote.filter.clone(), seed());
    Box::new(move |port, counters| {
        let limit = limit.map(|it| Limiter::new((it, it), Arc::<LimitCore>::default()));
        let filter = rules.map(|rules| {
            let core = FilterCore::new(&rules);
            Filter::new(rules, core, seed)
        });
        let stages = Stages { limit, filter, ..Stages::default() };
        let stages = Rc::new(RefCell::new(stages));
        Box::new(Staged::new(port, stages, Arc::clone(counters)))
    })
}

#[cfg(test)]
mod tests;
