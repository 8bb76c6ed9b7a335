//! Gathers the status, on the control thread: this thread may wait for sidecores, never they for
//! it.

pub(crate) mod latency;
mod quotas;

use std::sync::atomic::Ordering::Relaxed;

use config::{Config, Kind, Trust};
use peer::Planes;
use sessions::LinkedSidecore;
use sessions::counted::{SessionCounters, of_core};
use sessions::keys::{self, SidecoreKeys};
use transport::{Endpoint, SessionState};

use self::quotas::Shares;
use super::inside::Inside;
use super::objects::Objects;
use super::strangers::{self, Refusals};
use crate::kinds::running_kind;
use api::status::{
    DiskStatus, GuestMemoryStatus, NodeStatus, STATUS_VERSION, SessionStatus, SidecoreStatus,
    Status, StrangersStatus,
};

/// The cipher of sealed packets.
const CIPHER: &str = "AES-256-GCM";

pub(crate) fn status(inside: &Inside) -> Status {
    // A copy: reading the rest may take a while, and changes must not wait for it.
    let objects = inside.objects().clone();
    let asked: Vec<_> = inside.cores.iter().map(ask).collect();
    let mut status = Status {
        version: STATUS_VERSION,
        node: node(inside, &objects),
        cluster: inside.cluster.status(),
        sidecores: sidecores(inside, &objects.config, &asked),
        sessions: sessions(&inside.keys, &asked),
        strangers: refused(inside, &objects.config, &asked),
        quotas: quotas::status(asked.iter().map(|asked| &asked.shares)),
        ..Status::default()
    };
    Kind::all().for_each(|kind| running_kind(kind).report(inside, &objects, &mut status));
    steered(inside, &status.disks, &mut status.sidecores);
    status
}

/// Peers that were refused a session; none on a node without sessions.
fn refused(inside: &Inside, config: &Config, asked: &[SidecoreReport]) -> Vec<StrangersStatus> {
    if inside.cores.iter().all(|core| core.link.is_none()) {
        return Vec::new();
    }
    let refusals = asked.iter().map(|asked| &asked.refusals);
    strangers::status(&config.name, &inside.keys.security(), refusals)
}

/// The part of the status that only a sidecore itself knows: all zero and empty without sessions.
#[derive(Default)]
struct SidecoreReport {
    sessions: Vec<transport::SessionStatus>,
    counted: SessionCounters,
    shares: Shares,
    refusals: Refusals,
}

/// Asks a sidecore, so it may wait for a round of it. A sidecore that has stopped, or is stuck,
/// gives no answer.
fn ask(core: &LinkedSidecore) -> SidecoreReport {
    let asked = core.sidecore.ask(|local| {
        let endpoint = local.services().get::<Endpoint>()?;
        let endpoint = endpoint.borrow();
        let planes = local.services().get::<Planes>();
        Some(SidecoreReport {
            sessions: endpoint.sessions().collect(),
            counted: SessionCounters::of(&endpoint),
            shares: Shares {
                sessions: endpoint.peers().collect(),
                planes: planes.map(|planes| planes.borrow().quotas()).unwrap_or_default(),
            },
            refusals: Refusals::of(&endpoint, local.now_ns()),
        })
    });
    asked.ok().flatten().unwrap_or_default()
}

fn node(inside: &Inside, objects: &Objects) -> NodeStatus {
    let config = &objects.config;
    let trust = match (&config.key, config.trust) {
        (Some(_), _) => "keys",
        (None, Trust::Loopback) => "loopback",
        (None, Trust::Network) => "network",
    };
    NodeStatus {
        name: config.name.clone(),
        release: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        uptime_s: inside.started.elapsed().as_secs(),
        listen: config.listen.map(|listen| listen.to_string()),
        shm: inside.door.as_ref().map(|door| door.path().display().to_string()),
        trust: trust.to_owned(),
        key: keys::public(&inside.keys.security()),
        file: config.path.display().to_string(),
        differs: objects.differs(),
        draining: objects.draining,
        guest_memory: guest_memory(),
    }
}

fn guest_memory() -> GuestMemoryStatus {
    let (used, rules) = (virtio::memory_used(), virtio::memory_rules());
    GuestMemoryStatus {
        addresses_bytes: used.addresses_bytes,
        addresses_bytes_max: rules.node.addresses_bytes_max,
        mappings: used.mappings,
        mappings_max: rules.node.mappings_max,
        refused: used.refused,
    }
}

fn sidecores(inside: &Inside, config: &Config, asked: &[SidecoreReport]) -> Vec<SidecoreStatus> {
    let cores = inside.cores.iter().zip(&config.sidecores.cores);
    let cores = cores.zip(asked).enumerate();
    cores
        .map(|(index, ((core, pinned), asked))| SidecoreStatus {
            index,
            core: *pinned,
            idle: config.sidecores.idle.to_string(),
            address: core.link.as_ref().map(|(address, _)| address.to_string()),
            stuck: inside.watchdog.stuck(index),
            counters: {
                let mut counters = of_core(core, &asked.counted);
                inside.watchdog.counters(index, &mut counters);
                counters
            },
        })
        .collect()
}

/// Notes which sidecores have queues, or may get some, and how busy they were lately where steering
/// looks at their load.
fn steered(inside: &Inside, disks: &[DiskStatus], sidecores: &mut [SidecoreStatus]) {
    let (active, loads) = (inside.steerer.active().load(Relaxed), inside.steerer.loads());
    for core in sidecores {
        let queues = disks.iter().flat_map(|disk| &disk.by_queue);
        let here = queues.filter(|queue| queue.running && queue.sidecore == core.index);
        let counters = [
            ("active_now", Some(u64::from(core.index < active))),
            ("queues_now", Some(here.count() as u64)),
            ("load_permille_now", loads.get(core.index).map(|load| u64::from(*load))),
        ];
        for (name, value) in counters {
            core.counters.extend(value.map(|value| (name.to_owned(), value)));
        }
    }
}

/// Every sidecore's sessions.
fn sessions(keys: &SidecoreKeys, asked: &[SidecoreReport]) -> Vec<SessionStatus> {
    let found = asked.iter().enumerate().flat_map(|(sidecore, asked)| {
        asked.sessions.iter().map(move |found| session(keys, sidecore, found))
    });
    let mut all: Vec<_> = found.collect();
    all.sort_by(|a, b| (&a.peer, a.sidecore, a.index).cmp(&(&b.peer, b.sidecore, b.index)));
    all
}

fn session(
    keys: &SidecoreKeys,
    sidecore: usize,
    found: &transport::SessionStatus,
) -> SessionStatus {
    let state = match found.state {
        SessionState::Connecting => "connecting",
        SessionState::HalfOpen => "half-open",
        SessionState::Connected => "connected",
    };
    let counters = [
        ("rtt_ns_now", found.round_trip_ns),
        ("in_flight_bytes_now", found.in_flight_bytes),
        ("window_bytes_now", found.window_bytes),
        ("datagram_bytes_max_now", found.datagram_bytes_max as u64),
        ("calls_now", found.calls_outstanding as u64),
        ("calls_serving_now", found.calls_serving as u64),
        ("packets_sent", found.packets_sent),
        ("packets_received", found.packets_received),
        ("packets_lost", found.packets_lost),
        ("state_bytes_now", found.state_bytes as u64),
    ];
    SessionStatus {
        peer: found.peer.name.clone(),
        address: match link::is_shared(found.peer.addr) {
            true => "shm".to_owned(),
            false => found.peer.addr.to_string(),
        },
        sidecore,
        index: found.peer.index,
        state: state.to_owned(),
        outgoing: found.peer.outgoing,
        protocol: u32::from(found.peer.version),
        sealed: found.peer.key.is_some(),
        cipher: found.peer.key.map(|_| CIPHER.to_owned()),
        peer_key: found.peer.key.map(|key| key.to_string()),
        key_expires: key_expires(keys, found),
        counters: counters.map(|(name, value)| (name.to_owned(), value)).into(),
    }
}

/// The time at which the peer's key expires.
fn key_expires(keys: &SidecoreKeys, found: &transport::SessionStatus) -> Option<String> {
    let expires_unix_s = keys.known(&found.peer.key?)?.expires_unix_s?;
    // Each time that a configuration can give can be shown.
    let instant = jiff::Timestamp::from_second(i64::try_from(expires_unix_s).ok()?).ok()?;
    Some(instant.to_string())
}
