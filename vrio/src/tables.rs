//! A status as tables for people.

mod any_kind;
mod cluster;
mod layout;
mod nics;
mod pools;
mod quotas;
pub(crate) mod scrubs;
mod strangers;
pub(crate) mod verdict;

use std::collections::BTreeSet;
use std::fmt::Write;

use comfy_table::Table;
use direct::DirectStatus;
use node::config::show_size;
use node::status::{
    CacheStatus, CopyRole, CopyStatus, Counters, DiskStatus, DomainStatus, NodeStatus, PeerStatus,
    SessionStatus, SidecoreStatus, Status, VfStatus, VolumeStatus, WriteBackStatus,
};
use report::store::ListedRun;

pub(crate) use self::any_kind::{any_kind_alone, any_kind_list};
pub(crate) use self::cluster::cluster;
use self::layout::{STRING, counter_table, fit, number, section, table, words};
pub(crate) use self::layout::{fold, set_wide, uptime};
pub(crate) use self::nics::{network_alone, network_list, nic_alone, nic_list};
pub(crate) use self::pools::{pool_alone, pool_list, snapshot_list};

/// Disks in a table.
pub(crate) fn disk_list(all: &[DiskStatus]) -> String {
    let mut text = verdict::of_list("disk", all.len(), &verdict::disks(all));
    section(&mut text, "disks", disks(all));
    disk_details(&mut text, all);
    text
}

/// A line about the state of each disk that works.
fn disk_details(text: &mut String, all: &[DiskStatus]) {
    // The first lines of the list tell of the other disks.
    let fine = all.iter().filter(|disk| !verdict::is_wrong(disk.state));
    for disk in fine.filter(|disk| !disk.detail.is_empty()) {
        writeln!(text, "{}", fold(&format!("{}: {}", disk.name, disk.detail), 3)).expect(STRING);
    }
}

/// One disk with everything.
pub(crate) fn disk_alone(disk: &DiskStatus) -> String {
    let all = std::slice::from_ref(disk);
    let mut text = verdict::of_list("disk", 1, &verdict::disks(all));
    section(&mut text, "disks", disks(all));
    let line = format!("socket {}, origin {}", disk.socket, disk.origin);
    writeln!(text, "{}", fold(&line, 3)).expect(STRING);
    if let Some(pid) = disk.front_end_pid {
        writeln!(text, "   process {pid} is connected").expect(STRING);
    }
    if !disk.detail.is_empty() && !verdict::is_wrong(disk.state) {
        writeln!(text, "{}", fold(&disk.detail, 3)).expect(STRING);
    }
    if let Some(reach) = &disk.reach {
        let since = uptime(reach.for_s);
        let outages = reach.outages;
        let reach = &reach.state;
        writeln!(text, "   its volume: {reach}, for {since}; outages: {outages}").expect(STRING);
    }
    if let Some(cache) = &disk.cache {
        writeln!(text, "{}", fold(&cache_line(cache), 3)).expect(STRING);
        for line in cache.write_back.iter().flat_map(write_back_lines) {
            writeln!(text, "{}", fold(&line, 3)).expect(STRING);
        }
    }
    section(&mut text, "queues", queues(std::slice::from_ref(disk)));
    section(&mut text, "counters", counter_table(&disk.counters));
    text
}

/// The cache of a disk in a line: whether it is used, and of what use it is.
fn cache_line(cache: &CacheStatus) -> String {
    let CacheStatus { pool, size_bytes, cached_bytes, hits, misses, emptied, .. } = cache;
    let room = format!("{} of {} in pool {pool}", show_size(*cached_bytes), show_size(*size_bytes));
    let reads = hits + misses;
    let part = match reads {
        0 => "no reads yet".to_owned(),
        reads => format!("{:.0} % of {reads} reads", 100.0 * *hits as f64 / reads as f64),
    };
    let state = match &cache.why_unused {
        None => format!("used, {part}"),
        Some(why) => format!("not used: {why}"),
    };
    format!("its cache: {state}; {room}, emptied {emptied} times, {} errors", cache.errors)
}

/// The part of a disk that only this node has, and that is lost with it.
fn write_back_lines(it: &WriteBackStatus) -> Vec<String> {
    let (dirty, most) = (show_size(it.dirty_bytes), show_size(it.dirty_bytes_max));
    let age = match it.dirty_for_s {
        0 => String::new(),
        age => format!(", the oldest for {age} s"),
    };
    let mut lines = vec![format!(
        "its write-back: {dirty} of {most} are only on this host{age}, and are lost with it; sent \
         after {} s, {} errors",
        it.dirty_age_max_s, it.errors
    )];
    lines.extend(it.why_waits.iter().map(|why| format!("its write-back is held up: {why}")));
    if it.damaged_blocks > 0 {
        lines.push(format!(
            "{} of its dirty blocks cannot be read from the pool",
            it.damaged_blocks
        ));
    }
    let line =
        |name: &String| format!("writes that came too late are in volume {name} of its pool");
    lines.extend(it.stranded.iter().map(line));
    lines
}

/// The disks of this machine's direct clients.
pub(crate) fn attached(all: &[DirectStatus]) -> String {
    let mut table = table(&["disk", "volume", "size", "state", "requests", "process"], 4);
    for it in all {
        let requests = it.counters.iter().find(|(name, _)| name == "requests");
        table.add_row([
            it.device.clone(),
            it.volume.clone(),
            it.size_bytes.map_or_else(|| "-".to_owned(), show_size),
            if it.detail.is_empty() {
                it.state.clone()
            } else {
                format!("{}: {}", it.state, it.detail)
            },
            requests.map_or_else(|| "-".to_owned(), |(_, count)| count.to_string()),
            it.pid.to_string(),
        ]);
    }
    format!("{}\n", fit(table, &["requests"]))
}

/// The runs that are kept, with the damage of each that cannot be read.
pub(crate) fn results(all: &[ListedRun]) -> Table {
    let mut table = table(&["run", "begun", "title", "measurements"], 3);
    for ListedRun { id, run, measurements } in all {
        let (begun, title) = match run {
            Ok(run) => (run.begun.clone(), run.title.clone()),
            Err(error) => ("-".to_owned(), error.to_string()),
        };
        table.add_row([id.clone(), begun, title, measurements.to_string()]);
    }
    table
}

/// Volumes in a table.
pub(crate) fn volume_list(all: &[VolumeStatus]) -> String {
    let mut text = verdict::of_list("volume", all.len(), &verdict::volumes(all));
    section(&mut text, "volumes", volumes(all));
    text
}

/// One volume with everything.
pub(crate) fn volume_alone(volume: &VolumeStatus) -> String {
    let mut text = volume_list(std::slice::from_ref(volume));
    let detail = format!("{}, origin {}", volume_detail(volume), volume.origin);
    writeln!(text, "{}", fold(&detail, 3)).expect(STRING);
    if let Some(scrub) = volume.copy.as_ref().and_then(|copy| copy.scrub.as_ref()) {
        writeln!(text, "{}", fold(&scrubs::of_copies(scrub), 3)).expect(STRING);
    }
    section(&mut text, "counters", counter_table(&volume.counters));
    text
}

/// Peers in a table.
pub(crate) fn peer_list(all: &[PeerStatus]) -> String {
    let mut text = verdict::of_list("peer", all.len(), &[]);
    section(&mut text, "peers", peers(all));
    text
}

fn peers(peers: &[PeerStatus]) -> Table {
    let mut table = table(&["name", "address", "origin", "disks"], 4);
    for peer in peers {
        let origin = peer.origin.to_string();
        let address = peer.address.clone().unwrap_or_else(|| "-".to_owned());
        table.add_row(vec![peer.name.clone(), address, origin, words(&peer.disks)]);
    }
    fit(table, &["origin"])
}

/// The whole status; with every counter if `all` is set.
pub(crate) fn show(status: &Status, all: bool) -> String {
    let node = &status.node;
    let listen = node.listen.as_deref().unwrap_or("nowhere");
    let mut text = verdict::of_node(status);
    let NodeStatus { release, pid, trust, .. } = node;
    let up = uptime(node.uptime_s);
    let line = format!("vrio {release}, pid {pid}, up {up}, listens on {listen} (trust: {trust})");
    writeln!(text, "{}", fold(&line, 0)).expect(STRING);
    if let Some(key) = &node.key {
        writeln!(text, "its public key is {key}").expect("to a string");
    }
    text.extend(status.cluster.iter().map(cluster::of_node));
    if !node.differs.is_empty() {
        writeln!(text, "\nThe configuration differs from the file {}:", node.file).expect(STRING);
        for what in &node.differs {
            writeln!(text, "{}", fold(what, 3)).expect(STRING);
        }
    }
    section(&mut text, "disks", disks(&status.disks));
    disk_details(&mut text, &status.disks);
    section(&mut text, "volumes", volumes(&status.volumes));
    for volume in &status.volumes {
        let line = format!("{}: {}", volume.name, volume_detail(volume));
        writeln!(text, "{}", fold(&line, 3)).expect(STRING);
    }
    section(&mut text, "pools", pools::pools(&status.pools));
    section(&mut text, "nics", nics::nics(&status.nics));
    nics::nic_details(&mut text, &status.nics);
    nics::network_section(&mut text, &status.networks);
    domain_sections(&mut text, &status.domains);
    section(&mut text, "vfs", vfs(&status.vfs));
    any_kind::sections(&mut text, status);
    section(&mut text, "peers", peers(&status.peers));
    section(&mut text, "sessions", sessions(&status.sessions));
    for line in peer_keys(&status.sessions) {
        writeln!(text, "{}", fold(&line, 3)).expect(STRING);
    }
    strangers::section(&mut text, &status.strangers);
    section(&mut text, "peers at a limit", quotas::quotas(&status.quotas));
    section(&mut text, "sidecores", sidecores(&status.sidecores, node.uptime_s));
    if all {
        section(&mut text, "queues", queues(&status.disks));
        counters(&mut text, status);
    }
    text
}

fn disks(disks: &[DiskStatus]) -> Table {
    let header = [
        "name", "state", "volume", "size", "queues", "epoch", "requests", "read", "written",
        "flushes", "errors",
    ];
    let mut table = table(&header, 3);
    for disk in disks {
        let mut row = vec![
            disk.name.clone(),
            disk.state.to_string(),
            disk.volume.clone(),
            disk.size_bytes.map_or_else(|| "?".to_owned(), show_size),
            disk.queues.to_string(),
            disk.epoch.map_or_else(|| "-".to_owned(), |epoch| epoch.to_string()),
        ];
        let bytes = |name| disk.counters.get(name).map_or_else(String::new, |b| show_size(*b));
        row.push(number(&disk.counters, "requests"));
        row.extend(["read_bytes", "written_bytes"].map(bytes));
        row.extend(["flushes", "errors"].map(|name| number(&disk.counters, name)));
        table.add_row(row);
    }
    fit(table, &["epoch", "flushes", "queues", "written", "read", "size"])
}

fn volumes(volumes: &[VolumeStatus]) -> Table {
    let header = [
        "name",
        "durability",
        "allow",
        "in use by",
        "size",
        "block",
        "reads",
        "writes",
        "flushes",
        "errors",
    ];
    let mut table = table(&header, 4);
    for volume in volumes {
        let users = volume.attachments.iter().map(|user| user.name.clone()).collect::<Vec<_>>();
        let mut row = vec![
            volume.name.clone(),
            volume.durability.clone(),
            words(&volume.allow),
            words(&users),
            show_size(volume.size_bytes),
            volume.block_bytes.to_string(),
        ];
        row.extend(traffic(&volume.counters));
        table.add_row(row);
    }
    fit(table, &["block", "durability", "flushes", "allow", "writes", "reads"])
}

/// The line about a volume below the table.
fn volume_detail(volume: &VolumeStatus) -> String {
    let flags = [("read-only", volume.read_only), ("shared", volume.shared)];
    let flags = flags.into_iter().filter(|(_, set)| *set).map(|(name, _)| name.to_owned());
    let stopped = volume.stopped.as_ref().map(|why| format!("STOPPED: {why}"));
    let parts: Vec<_> = [volume.backend.clone()]
        .into_iter()
        .chain(stopped)
        .chain(volume.copy.as_ref().map(copy_words))
        .chain(flags)
        .chain((!volume.chain.is_empty()).then(|| format!("chain {}", volume.chain.join(" > "))))
        .chain(
            (!volume.snapshots.is_empty())
                .then(|| format!("snapshots by time {}", volume.snapshots.join(" "))),
        )
        .collect();
    parts.join(", ")
}

/// The copy of a volume with copies on several nodes, in words.
fn copy_words(copy: &CopyStatus) -> String {
    let role = match copy.role {
        CopyRole::Primary => "served here".to_owned(),
        CopyRole::TakesOver => "about to be served here".to_owned(),
        CopyRole::Failed => "its copy here has stopped".to_owned(),
        CopyRole::Backup | CopyRole::Outside => match &copy.primary {
            Some(node) => format!("served by {node}"),
            None => "not known where it is served".to_owned(),
        },
    };
    format!("{role}, copies in sync: {}", words(&copy.in_sync))
}

/// The traffic that the volume's meter counted, if its chain has one.
fn traffic(counters: &Counters) -> [String; 4] {
    let both = |count, bytes| match counters.get(bytes) {
        Some(bytes) if *bytes > 0 => format!("{} / {}", number(counters, count), show_size(*bytes)),
        _ => number(counters, count),
    };
    [
        both("reads", "read_bytes"),
        both("writes", "written_bytes"),
        number(counters, "flushes"),
        number(counters, "errors"),
    ]
}

fn sessions(sessions: &[SessionStatus]) -> Table {
    let header = [
        "peer", "address", "state", "sealed", "core", "index", "rtt", "open", "sent", "received",
        "lost", "memory",
    ];
    let mut table = table(&header, 4);
    for session in sessions {
        let rtt = session.counters.get("rtt_ns_now");
        table.add_row(vec![
            session.peer.clone(),
            session.address.clone(),
            session.state.clone(),
            session.cipher.clone().unwrap_or_else(|| "no".to_owned()),
            session.sidecore.to_string(),
            session.index.to_string(),
            rtt.map_or_else(String::new, |ns| format!("{}us", ns / 1_000)),
            number(&session.counters, "calls_now"),
            number(&session.counters, "packets_sent"),
            number(&session.counters, "packets_received"),
            number(&session.counters, "packets_lost"),
            session.counters.get("state_bytes_now").map_or_else(String::new, |it| show_size(*it)),
        ]);
    }
    fit(table, &["memory", "index", "received", "sent", "open", "core"])
}

/// The keys by which the peers proved their names. Sessions of several sidecores have the same
/// keys.
fn peer_keys(sessions: &[SessionStatus]) -> BTreeSet<String> {
    let keys = sessions.iter().filter_map(|session| {
        let key = session.peer_key.as_ref()?;
        let end = session.key_expires.as_ref().map(|at| format!(", good until {at}"));
        Some(format!("{}: key {key}{}", session.peer, end.unwrap_or_default()))
    });
    keys.collect()
}

fn sidecores(sidecores: &[SidecoreStatus], uptime_s: u64) -> Table {
    let header = [
        "index", "core", "idle", "address", "queues", "load", "busy", "awake", "asleep", "rounds",
        "sleeps",
    ];
    let mut table = table(&header, 4);
    for core in sidecores {
        let ns = |name| core.counters.get(name).copied().unwrap_or(0);
        let (busy, awake) = (ns("busy_ns"), ns("idle_ns"));
        // A sleep is counted when it ends. The time that is missing to the whole is the sleep of
        // now.
        let whole = (busy + awake + ns("asleep_ns")).max(uptime_s * 1_000_000_000).max(1);
        let parts = [busy, awake, whole - busy - awake];
        let mut row = vec![
            core.index.to_string(),
            core.core.map_or_else(|| "any".to_owned(), |core| core.to_string()),
            core.idle.clone(),
            core.address.clone().unwrap_or_else(|| "-".to_owned()),
            queues_here(&core.counters),
            // The load of the last moments, which is known only where queues are steered. The
            // shares beside it are those since the start.
            core.counters
                .get("load_permille_now")
                .map_or_else(String::new, |load| format!("{:.1}%", *load as f64 / 10.0)),
        ];
        row.extend(parts.map(|ns| format!("{:.1}%", ns as f64 * 100.0 / whole as f64)));
        row.push(number(&core.counters, "rounds"));
        row.push(number(&core.counters, "sleeps"));
        table.add_row(row);
    }
    fit(table, &["sleeps", "rounds", "address", "awake", "asleep", "idle"])
}

/// How many queues of guests a sidecore serves; `-` for one that has none by design.
pub(crate) fn queues_here(counters: &Counters) -> String {
    match (counters.get("active_now"), counters.get("queues_now")) {
        (Some(0), Some(0)) => "-".to_owned(),
        _ => number(counters, "queues_now"),
    }
}

fn queues(disks: &[DiskStatus]) -> Table {
    let header = ["disk", "state", "queue", "sidecore", "requests", "moves", "refused"];
    let mut table = table(&header, 2);
    for (disk, queue) in disks.iter().flat_map(|disk| disk.by_queue.iter().map(move |q| (disk, q)))
    {
        let state = if queue.running { "running" } else { "stopped" };
        let mut row = vec![disk.name.clone(), state.to_owned()];
        row.extend([queue.queue, queue.sidecore].map(|number| number.to_string()));
        let counters = ["requests", "moves", "moves_refused"];
        row.extend(counters.map(|name| number(&queue.counters, name)));
        table.add_row(row);
    }
    table
}

/// The output of `vrio domain list`.
pub(crate) fn domain_list(all: &[DomainStatus]) -> String {
    let mut text = verdict::of_list("domain", all.len(), &verdict::domains(all));
    domain_sections(&mut text, all);
    text
}

fn domain_sections(text: &mut String, all: &[DomainStatus]) {
    section(text, "domains", domains(all));
    section(text, "peers of domains", domain_peers(all));
    section(text, "gateways of domains", domain_gateways(all));
}

/// The counters of each domain's gateways. A "nonsense" that is not 0 means that a peer or a member
/// broke the protocol.
fn domain_gateways(all: &[DomainStatus]) -> Table {
    let heads = ["domain", "sent", "delivered", "waited", "undelivered", "nonsense", "state"];
    let mut table = table(&heads, 1);
    for domain in all.iter().filter(|domain| !domain.peers.is_empty()) {
        let counted = ["sent", "delivered", "waited", "undelivered", "nonsense"]
            .map(|name| number(&domain.counters, &format!("gateway_{name}")));
        let state = domain.counters.get("gateway_state_bytes_now");
        let state = state.map_or_else(String::new, |bytes| show_size(*bytes));
        table.add_row(std::iter::once(domain.name.clone()).chain(counted).chain([state]));
    }
    fit(table, &["state", "waited"])
}

fn domains(domains: &[DomainStatus]) -> Table {
    let heads = ["name", "socket", "endpoints", "of", "members", "memory", "used"];
    let mut table = table(&heads, 2);
    for domain in domains {
        table.add_row(vec![
            domain.name.clone(),
            domain.socket.clone(),
            domain.endpoints.to_string(),
            domain.endpoints_max.to_string(),
            domain.members.to_string(),
            show_size(domain.region_bytes),
            show_size(domain.used_bytes),
        ]);
    }
    fit(table, &["used", "memory", "members"])
}

/// The output of `vrio vf list`.
pub(crate) fn vf_list(all: &[VfStatus]) -> String {
    let mut text = verdict::of_list("vf", all.len(), &[]);
    section(&mut text, "vfs", vfs(all));
    text
}

fn vfs(vfs: &[VfStatus]) -> Table {
    let mut table = table(&["name", "domain", "socket", "process", "endpoints", "denied"], 3);
    for vf in vfs {
        table.add_row(vec![
            vf.name.clone(),
            vf.domain.clone(),
            vf.socket.clone(),
            vf.process.map_or_else(|| "-".to_owned(), |process| process.to_string()),
            vf.endpoints.to_string(),
            vf.denied.to_string(),
        ]);
    }
    fit(table, &["denied", "process"])
}

fn domain_peers(domains: &[DomainStatus]) -> Table {
    let mut table = table(&["domain", "peer", "joined", "host", "why not"], 5);
    for domain in domains {
        for peer in &domain.peers {
            table.add_row(vec![
                domain.name.clone(),
                peer.name.clone(),
                if peer.is_joined { "yes" } else { "no" }.to_owned(),
                peer.host.clone().unwrap_or_default(),
                peer.why.clone().unwrap_or_default(),
            ]);
        }
    }
    fit(table, &[])
}

fn counters(text: &mut String, status: &Status) {
    let disks = status.disks.iter().map(|disk| (format!("disk {}", disk.name), &disk.counters));
    let volumes = status.volumes.iter().map(|v| (format!("volume {}", v.name), &v.counters));
    let sessions = status
        .sessions
        .iter()
        .map(|session| (format!("session {} {}", session.peer, session.index), &session.counters));
    let nics = status.nics.iter().map(|nic| (format!("nic {}", nic.name), &nic.counters));
    let networks = status.networks.iter().map(|it| (format!("network {}", it.name), &it.counters));
    let cores =
        status.sidecores.iter().map(|core| (format!("sidecore {}", core.index), &core.counters));
    let domains = status.domains.iter().map(|it| (format!("domain {}", it.name), &it.counters));
    let pools = status.pools.iter().map(|it| (format!("pool {}", it.name), &it.counters));
    let volumes = volumes.chain(pools);
    let mut table = table(&["object", "counter", "value"], 2);
    let nets = nics.chain(networks).chain(domains);
    let all = disks.chain(volumes).chain(nets).chain(sessions).chain(cores);
    for (object, counters) in all {
        for (name, value) in counters {
            table.add_row(vec![object.clone(), name.clone(), value.to_string()]);
        }
    }
    for (object, name, count) in any_kind::counted(status) {
        table.add_row(vec![object, name.clone(), count.to_string()]);
    }
    section(text, "counters", table);
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use node::status::{AttachmentStatus, DiskState, DomainPeerStatus};

    use super::*;

    fn counted(pairs: &[(&str, u64)]) -> Counters {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    fn status() -> Status {
        let text = |text: &str| text.to_owned();
        let traffic =
            [("reads", 12), ("requests", 19), ("read_bytes", 49152), ("writes", 7), ("errors", 0)];
        Status {
            version: 1,
            node: NodeStatus {
                name: text("vm1"),
                release: text("0.1.0"),
                pid: 42,
                uptime_s: 3 * 3600 + 125,
                listen: Some(text("10.0.0.1:4870")),
                shm: None,
                trust: text("keys"),
                key: Some(text("kEy0")),
                ..NodeStatus::default()
            },
            sidecores: vec![SidecoreStatus {
                index: 0,
                core: Some(1),
                idle: text("adaptive"),
                address: Some(text("10.0.0.1:4870")),
                stuck: None,
                counters: counted(&[
                    ("busy_ns", 3_031_250_000_000),
                    ("idle_ns", 0),
                    ("queues_now", 5),
                    ("load_permille_now", 277),
                ]),
            }],
            volumes: vec![VolumeStatus {
                name: text("scratch"),
                backend: text("memory"),
                size_bytes: 1 << 30,
                block_bytes: 512,
                durability: text("flush"),
                read_only: true,
                chain: vec![text("meter")],
                attachments: vec![AttachmentStatus { name: text("bob") }],
                counters: counted(&traffic),
                ..VolumeStatus::default()
            }],
            disks: vec![
                DiskStatus {
                    name: text("alice"),
                    socket: text("/run/vrio/alice.sock"),
                    volume: text("io1/alice-root"),
                    queues: 4,
                    state: DiskState::Waiting,
                    detail: text("waits for io1 at 10.0.0.9:4870 to answer"),
                    ..DiskStatus::default()
                },
                DiskStatus {
                    name: text("bob"),
                    socket: text("/run/vrio/bob.sock"),
                    volume: text("scratch"),
                    queues: 1,
                    state: DiskState::Running,
                    size_bytes: Some(1 << 30),
                    epoch: Some(3),
                    counters: counted(&traffic),
                    ..DiskStatus::default()
                },
            ],
            sessions: vec![session()],
            peers: vec![peer()],
            ..Status::default()
        }
    }

    fn session() -> SessionStatus {
        let text = |text: &str| text.to_owned();
        SessionStatus {
            peer: text("io1"),
            address: text("10.0.0.9:4870"),
            state: text("connecting"),
            outgoing: true,
            sealed: true,
            cipher: Some(text("AES-256-GCM")),
            peer_key: Some(text("kEy1")),
            key_expires: Some(text("2027-01-01T00:00:00Z")),
            counters: counted(&[("rtt_ns_now", 45_000)]),
            ..SessionStatus::default()
        }
    }

    fn peer() -> PeerStatus {
        PeerStatus {
            name: "io1".to_owned(),
            address: Some("10.0.0.9:4870".to_owned()),
            origin: node::status::Origin::Command,
            disks: vec!["alice".to_owned()],
        }
    }

    #[test]
    fn a_status_is_readable() {
        // Columns are two blanks apart; here one blank is enough to compare them.
        let text = show(&status(), false).replace("  ", " ");
        expect![[r#"
            node vm1: 1 problem
             disk alice is waiting: waits for io1 at 10.0.0.9:4870 to answer
            vrio 0.1.0, pid 42, up 3h 2min, listens on 10.0.0.1:4870 (trust: keys)
            its public key is kEy0

            DISKS (more columns: --wide)
             name  state  volume     size queues requests  read written errors
             alice waiting io1/alice-root   ?    4
             bob  running scratch     1GiB    1    19 48KiB        0

            VOLUMES (more columns: --wide)
             name   allow in use by size    reads writes flushes errors
             scratch -   bob    1GiB 12 / 48KiB    7        0
              scratch: memory, read-only, chain meter

            PEERS
             name address    origin  disks
             io1  10.0.0.9:4870 command alice

            SESSIONS (more columns: --wide)
             peer address    state    sealed    core  rtt open sent lost
             io1  10.0.0.9:4870 connecting AES-256-GCM   0 45us
              io1: key kEy1, good until 2027-01-01T00:00:00Z

            SIDECORES (more columns: --wide)
             index core idle   address    queues  load  busy awake asleep
             0   1   adaptive 10.0.0.1:4870    5 27.7% 27.7%  0.0%  72.3%
        "#]]
        .assert_eq(&text);
    }

    #[test]
    fn domains_say_what_their_gateways_do() {
        let text = |text: &str| text.to_owned();
        let peer = |name: &str, is_joined, why: Option<&str>| DomainPeerStatus {
            name: text(name),
            is_joined,
            host: None,
            why: why.map(text),
        };
        let blue = DomainStatus {
            name: text("blue"),
            socket: text("/run/vrio/n1.fabric"),
            endpoints: 16,
            endpoints_max: 64,
            members: 16,
            region_bytes: 80 << 20,
            used_bytes: 20 << 20,
            peers: vec![peer("n2", true, None), peer("n3", false, Some("no session with n3 yet"))],
            counters: counted(&[
                ("gateway_sent", 7),
                ("gateway_delivered", 5),
                ("gateway_waited", 1),
                ("gateway_undelivered", 0),
                ("gateway_nonsense", 0),
                ("gateway_state_bytes_now", 4096),
            ]),
            ..DomainStatus::default()
        };
        let alone = DomainStatus { name: text("alone"), ..DomainStatus::default() };
        expect![[r#"
            2 domains: 1 problem
             domain blue: n3 is not joined: no session with n3 yet

            DOMAINS
             name  socket        endpoints of members memory  used
             blue  /run/vrio/n1.fabric     16 64    16  80MiB 20MiB
             alone                0  0    0   0B   0B

            PEERS OF DOMAINS
             domain peer joined host why not
             blue  n2  yes
             blue  n3  no      no session with n3 yet

            GATEWAYS OF DOMAINS
             domain sent delivered waited undelivered nonsense state
             blue    7     5    1      0     0  4KiB
        "#]]
        .assert_eq(&domain_list(&[blue, alone]).replace("  ", " "));
    }

    #[test]
    fn all_counters_are_listed_when_asked() {
        let text = show(&status(), true);
        assert!(text.contains("COUNTERS"), "{text}");
        assert!(text.contains("sidecore 0"), "{text}");
    }

    #[test]
    fn an_empty_node_has_no_tables() {
        let text = show(&Status { version: 1, ..Status::default() }, true);
        assert_eq!(text.lines().count(), 2, "{text}");
    }

    #[test]
    fn times_are_short() {
        let cases = [(59, "59s"), (61, "1min 1s"), (7300, "2h 1min"), (90000, "1d 1h")];
        for (seconds, text) in cases {
            assert_eq!(uptime(seconds), text);
        }
    }
}
