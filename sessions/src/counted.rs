//! The counters of a sidecore and of its sessions, by the names that the status shows.

pub use api::status::Counters;
use block::RemoteVolume;
use transport::{Endpoint, EndpointCounters};

use crate::cores::LinkedSidecore;

/// Adds counters to those of the same name, by their names after a prefix.
pub fn add_counters(
    map: &mut Counters,
    prefix: &str,
    counted: impl Iterator<Item = (&'static str, u64)>,
) {
    for (name, value) in counted {
        *map.entry(format!("{prefix}{name}")).or_default() += value;
    }
}

/// The counters of the sessions of a sidecore; only the sidecore itself can say them.
#[derive(Debug, Default)]
pub struct SessionCounters {
    endpoint: EndpointCounters,
    pool: [(&'static str, u64); 4],
}

impl SessionCounters {
    /// The counters of this endpoint.
    pub fn of(endpoint: &Endpoint) -> Self {
        let pool = endpoint.pool();
        Self {
            endpoint: endpoint.counters().clone(),
            pool: [
                ("pool_bytes_now", pool.resident_bytes() as u64),
                ("pool_bytes_max_now", pool.bytes_max() as u64),
                ("pool_in_use_bytes_now", pool.in_use_bytes() as u64),
                ("pool_refused", pool.refused()),
            ],
        }
    }

    /// Asks a sidecore, so it may wait for a round of it. All zero without sessions.
    pub fn ask(core: &LinkedSidecore) -> Self {
        let asked = core.sidecore.ask(|local| {
            let endpoint = local.services().get::<Endpoint>()?;
            let counted = Self::of(&endpoint.borrow());
            Some(counted)
        });
        asked.ok().flatten().unwrap_or_default()
    }
}

/// The counters of a sidecore, of its link, and of its sessions, which were `asked`.
pub fn of_core(core: &LinkedSidecore, asked: &SessionCounters) -> Counters {
    let mut map = Counters::new();
    add_counters(&mut map, "", core.sidecore.counters().counted());
    if let Some(uring) = &core.uring {
        add_counters(&mut map, "uring_", uring.counted());
    }
    if let Some((_, link)) = &core.link {
        add_counters(&mut map, "link_", link.counted());
    }
    if let Some(xdp) = &core.xdp {
        add_counters(&mut map, "xdp_", xdp.counted());
    }
    if let Some(shm) = &core.shm {
        add_counters(&mut map, "shm_", shm.counted());
        map.insert("shm_lines_now".to_owned(), shm.lines.get());
    }
    if core.link.is_some() {
        endpoint_counters(asked, &mut map);
    }
    server_counters(core, &mut map);
    map
}

/// The counters of a sidecore's servers of volumes and of networks.
fn server_counters(core: &LinkedSidecore, map: &mut Counters) {
    if let Some(server) = &core.server {
        add_counters(map, "server_", server.counted());
    }
    if let Some(server) = &core.net_server {
        add_counters(map, "net_server_", server.counted());
    }
}

fn endpoint_counters(asked: &SessionCounters, map: &mut Counters) {
    let sessions = &asked.endpoint;
    for (name, value) in [
        ("sessions_connected", sessions.sessions_connected),
        ("sessions_lost", sessions.sessions_lost),
        ("sessions_fragments_resent", sessions.fragments_resent),
        ("sessions_probes_sent", sessions.probes_sent),
        ("sessions_dropped", sessions.dropped()),
        ("sessions_dropped_forged", sessions.dropped_forged),
        ("sessions_dropped_hello_limited", sessions.dropped_hello_limited),
        ("sessions_hellos_refused", sessions.hellos_refused),
        ("sessions_retries_sent", sessions.retries_sent),
        ("sessions_sizes_given_up", sessions.sizes_given_up),
        ("sessions_public_key_operations", sessions.public_key_operations),
        ("sessions_bytes_sealed", sessions.bytes_sealed),
        ("sessions_bytes_opened", sessions.bytes_opened),
        ("sessions_bytes_copied", sessions.bytes_copied),
        ("sessions_bytes_checksummed", sessions.bytes_checksummed),
        ("sessions_resets_sent", sessions.resets_sent),
        ("sessions_calls_full", sessions.calls_full),
        ("sessions_calls_beyond_share", sessions.calls_beyond_share),
        ("sessions_calls_waited_for_credit", sessions.calls_waited_for_credit),
    ]
    .into_iter()
    .chain(asked.pool)
    {
        map.insert(name.to_owned(), value);
    }
}

/// The counters of the channels of a volume of another node.
pub fn remote_counters(volume: &RemoteVolume, map: &mut Counters) {
    for channel in volume.counters() {
        add_counters(map, "remote_", channel.counted());
    }
}
