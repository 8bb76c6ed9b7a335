//! The way from one configuration to another, as a list of changes. Pure: what is running is a
//! value, what is wanted is a value, and the difference is a value too.
//!
//! ```text
//!   revoke  ▶  remove disks ─ volumes ─ nics ─ networks ─ vfs ─ domains ─ peers
//!           ▶  add peers ─ volumes ─ allow, chains ─ disks ─ networks, allow ─ nics ─ domains
//!              ─ vfs
//! ```
//! Who may no longer in is out first, all at once and whatever becomes of the rest ([`revoked`]).
//! What goes away goes first, dependents before what they depend on, so that its names, sockets
//! and files are free for what comes. What cannot be changed in place is removed and added again.

use std::fmt;

use peer::Allow;

use super::{
    Backend, Config, DiskConfig, DomainConfig, Lines, NetworkConfig, NicConfig, PeerConfig,
    RemotePorts, StageConfig, VfConfig, VolumeConfig, show_chain, show_size,
};

/// One step. Applied in the order of [`changes`], each finds what it needs.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Takes a disk away.
    RemoveDisk {
        /// Its name.
        name: String,
        /// The keys for which it is added again; none if it is gone for good.
        again: Vec<&'static str>,
    },
    /// Takes a volume away.
    RemoveVolume {
        /// Its name.
        name: String,
        /// The keys for which it is added again; none if it is gone for good.
        again: Vec<&'static str>,
    },
    /// Forgets a peer.
    RemovePeer {
        /// Its name.
        name: String,
    },
    /// Makes a peer known.
    AddPeer(PeerConfig),
    /// Reaches a peer in another way, in place.
    ChangePeer(PeerConfig),
    /// Opens a volume.
    AddVolume(VolumeConfig),
    /// Says anew which nodes may use a volume, in place.
    ChangeAllow(VolumeConfig),
    /// Puts another chain before a volume, in place.
    ChangeChain(VolumeConfig),
    /// Makes a volume larger, in place.
    ChangeSize(VolumeConfig),
    /// Shows a disk.
    AddDisk(DiskConfig),
    /// Takes a nic away.
    RemoveNic {
        /// Its name.
        name: String,
        /// The keys for which it is added again; none if it is gone for good.
        again: Vec<&'static str>,
    },
    /// Takes a network away.
    RemoveNetwork {
        /// Its name.
        name: String,
        /// The keys for which it is added again; none if it is gone for good.
        again: Vec<&'static str>,
    },
    /// Makes a network.
    AddNetwork(NetworkConfig),
    /// Says anew which nodes may join a network, and as what, in place.
    ChangeNetwork {
        /// What it is to be.
        network: NetworkConfig,
        /// The keys that are different.
        keys: Vec<&'static str>,
    },
    /// Shows a nic.
    AddNic(NicConfig),
    /// Gives a nic other stages, or another state of its link, in place.
    ChangeNic {
        /// What it is to be.
        nic: NicConfig,
        /// The keys that are different.
        keys: Vec<&'static str>,
    },
    /// Takes a domain away.
    RemoveDomain {
        /// Its name.
        name: String,
        /// The keys for which it is added again; none if it is gone for good.
        again: Vec<&'static str>,
    },
    /// Makes a domain.
    AddDomain(DomainConfig),
    /// Lets in by the key of another file, or joins with other peers, in place.
    ChangeDomain(DomainConfig),
    /// Takes a VM's window into a domain away.
    RemoveVf {
        /// Its name.
        name: String,
        /// The keys for which it is added again; none if it is gone for good.
        again: Vec<&'static str>,
    },
    /// Gives a VM a window into a domain.
    AddVf(VfConfig),
}

impl Change {
    /// What it is about, such as `disk "alice"`.
    pub fn object(&self) -> String {
        match self {
            Self::RemoveDisk { name, .. } => format!("disk {name:?}"),
            Self::AddDisk(disk) => format!("disk {:?}", disk.name),
            Self::RemoveVolume { name, .. } => format!("volume {name:?}"),
            Self::AddVolume(volume)
            | Self::ChangeAllow(volume)
            | Self::ChangeChain(volume)
            | Self::ChangeSize(volume) => format!("volume {:?}", volume.name),
            Self::RemovePeer { name } => format!("peer {name:?}"),
            Self::AddPeer(peer) | Self::ChangePeer(peer) => format!("peer {:?}", peer.name),
            Self::RemoveNic { name, .. } => format!("nic {name:?}"),
            Self::AddNic(nic) | Self::ChangeNic { nic, .. } => format!("nic {:?}", nic.name),
            Self::RemoveNetwork { name, .. } => format!("network {name:?}"),
            Self::AddNetwork(network) | Self::ChangeNetwork { network, .. } => {
                format!("network {:?}", network.name)
            }
            Self::RemoveDomain { name, .. } => format!("domain {name:?}"),
            Self::RemoveVf { name, .. } => format!("vf {name:?}"),
            Self::AddVf(vf) => format!("vf {:?}", vf.name),
            Self::AddDomain(domain) | Self::ChangeDomain(domain) => {
                format!("domain {:?}", domain.name)
            }
        }
    }

    /// Whether a guest or a peer that uses the object notices: it waits, or needs `--force`.
    pub fn interrupts(&self) -> bool {
        matches!(
            self,
            Self::RemoveDisk { .. }
                | Self::RemoveVolume { .. }
                | Self::RemoveNic { .. }
                | Self::RemoveNetwork { .. }
                | Self::RemoveDomain { .. }
                | Self::RemoveVf { .. }
        )
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let object = self.object();
        match self {
            Self::RemoveDisk { again, .. }
            | Self::RemoveVolume { again, .. }
            | Self::RemoveNic { again, .. }
            | Self::RemoveNetwork { again, .. }
            | Self::RemoveDomain { again, .. }
            | Self::RemoveVf { again, .. } => {
                write!(f, "remove {object}")?;
                if again.is_empty() {
                    return Ok(());
                }
                write!(f, ", to add it again below ({} changed)", again.join(", "))
            }
            Self::RemovePeer { .. } => write!(f, "remove {object}"),
            Self::AddPeer(_) | Self::AddVolume(_) | Self::AddNetwork(_) | Self::AddDomain(_) => {
                write!(f, "add {object}")
            }
            Self::AddNic(nic) => write!(f, "add {object} to network {}", nic.network),
            Self::ChangeNic { keys, .. } => write!(f, "change {object}: {}", keys.join(", ")),
            Self::AddDisk(disk) => write!(f, "add {object} of volume {}", disk.volume),
            Self::AddVf(vf) => write!(f, "add {object} into domain {}", vf.domain),
            Self::ChangeDomain(_) => write!(f, "change {object}: its key or peers"),
            Self::ChangePeer(_) => write!(f, "change {object}: how it is reached"),
            Self::ChangeAllow(_) => write!(f, "change {object}: \"allow\""),
            Self::ChangeNetwork { keys, .. } => {
                write!(f, "change {object}: \"{}\"", keys.join("\", \""))
            }
            Self::ChangeSize(volume) => {
                let size = size_of(volume).map(show_size).unwrap_or_default();
                write!(f, "resize {object} to {size}")
            }
            Self::ChangeChain(volume) => {
                write!(f, "change {object}: the chain is now {}", show_chain(&volume.chain))
            }
        }
    }
}

/// A configuration in which nobody may in who may not in another.
#[derive(Clone, Debug)]
pub struct Revoked {
    /// The running one, but with the other's keys, and open to those whom both let in.
    pub config: Config,
    /// What is different in it, in words.
    pub changes: Vec<String>,
}

/// What of `running` is left when all that `wanted` no longer allows is taken back: the own key and
/// peers' keys are the wanted ones, those of peers that go are none, and each volume and network is
/// open to whom both let in. Adding to the lists is left to [`changes`].
pub fn revoked(running: &Config, wanted: &Config) -> Revoked {
    let (mut config, mut changes) = (running.clone(), Vec::new());
    config.key.clone_from(&wanted.key);
    for peer in &mut config.peers {
        let keys = wanted.peer(&peer.name).map(|wanted| wanted.keys.clone());
        let text = match &keys {
            None if peer.keys.is_empty() => continue,
            None => format!("revoke the keys of peer {:?}", peer.name),
            Some(keys) if *keys == peer.keys => continue,
            Some(_) => format!("change peer {:?}: its keys", peer.name),
        };
        peer.keys = keys.unwrap_or_default();
        changes.push(text);
    }
    for volume in &mut config.volumes {
        let Some(wanted) = wanted.volumes.iter().find(|it| it.name == volume.name) else {
            continue;
        };
        let left = common(&volume.allow, &wanted.allow);
        if left != volume.allow {
            changes
                .push(format!("revoke what \"allow\" of volume {:?} no longer says", volume.name));
            volume.allow = left;
        }
    }
    for network in &mut config.networks {
        let Some(wanted) = wanted.networks.iter().find(|it| it.name == network.name) else {
            continue;
        };
        let left = common(&network.allow, &wanted.allow);
        if left != network.allow {
            let name = &network.name;
            changes.push(format!("revoke what \"allow\" of network {name:?} no longer says"));
            network.allow = left;
        }
    }
    Revoked { config, changes }
}

/// Whom both lists let in.
fn common(one: &[Allow], other: &[Allow]) -> Vec<Allow> {
    let lets_in = |list: &[Allow], entry: &Allow| {
        list.iter().any(|it| it.node == entry.node && (it.key.is_none() || it.key == entry.key))
    };
    let mut both: Vec<_> = one.iter().filter(|entry| lets_in(other, entry)).cloned().collect();
    for entry in other.iter().filter(|entry| lets_in(one, entry)) {
        if !both.contains(entry) {
            both.push(entry.clone());
        }
    }
    both
}

/// What leads from `running` to `wanted`, in the order in which it has to be done. Nothing for two
/// configurations that say the same, wherever in the file they say it.
pub fn changes(running: &Config, wanted: &Config) -> Vec<Change> {
    let volumes = replaced_volumes(running, wanted);
    let disks = replaced_disks(running, wanted, &volumes);
    let mut changes = Vec::new();
    for disk in &running.disks {
        let again = again(&disks, &disk.name);
        if wanted.disks.iter().all(|it| it.name != disk.name) || !again.is_empty() {
            changes.push(Change::RemoveDisk { name: disk.name.clone(), again });
        }
    }
    for volume in &running.volumes {
        let again = again(&volumes, &volume.name);
        if wanted.volumes.iter().all(|it| it.name != volume.name) || !again.is_empty() {
            changes.push(Change::RemoveVolume { name: volume.name.clone(), again });
        }
    }
    let networks = replaced_networks(running, wanted);
    let nics = replaced_nics(running, wanted, &networks);
    remove_networks(running, wanted, &networks, &nics, &mut changes);
    let domains = replaced_domains(running, wanted);
    let vfs = replaced_vfs(running, wanted, &domains);
    remove_vfs(running, wanted, &vfs, &mut changes);
    remove_domains(running, wanted, &domains, &mut changes);
    let gone = running.peers.iter().filter(|peer| wanted.peer(&peer.name).is_none());
    changes.extend(gone.map(|peer| Change::RemovePeer { name: peer.name.clone() }));
    for peer in &wanted.peers {
        match running.peer(&peer.name) {
            None => changes.push(Change::AddPeer(peer.clone())),
            Some(now) if bare_peer(now) != bare_peer(peer) => {
                changes.push(Change::ChangePeer(peer.clone()));
            }
            Some(_) => {}
        }
    }
    for volume in &wanted.volumes {
        let now = running.volumes.iter().find(|it| it.name == volume.name);
        match now.filter(|_| again(&volumes, &volume.name).is_empty()) {
            None => changes.push(Change::AddVolume(volume.clone())),
            Some(now) => changes.extend(in_place(now, volume)),
        }
    }
    for disk in &wanted.disks {
        let known = running.disks.iter().any(|it| it.name == disk.name);
        if !known || !again(&disks, &disk.name).is_empty() {
            changes.push(Change::AddDisk(disk.clone()));
        }
    }
    add_networks(running, wanted, &networks, &nics, &mut changes);
    add_domains(running, wanted, &domains, &mut changes);
    add_vfs(running, wanted, &vfs, &mut changes);
    changes
}

fn remove_networks(
    running: &Config,
    wanted: &Config,
    networks: &Replaced,
    nics: &Replaced,
    changes: &mut Vec<Change>,
) {
    for nic in &running.nics {
        let again = again(nics, &nic.name);
        if wanted.nics.iter().all(|it| it.name != nic.name) || !again.is_empty() {
            changes.push(Change::RemoveNic { name: nic.name.clone(), again });
        }
    }
    for network in &running.networks {
        let again = again(networks, &network.name);
        if wanted.networks.iter().all(|it| it.name != network.name) || !again.is_empty() {
            changes.push(Change::RemoveNetwork { name: network.name.clone(), again });
        }
    }
}

fn add_networks(
    running: &Config,
    wanted: &Config,
    networks: &Replaced,
    nics: &Replaced,
    changes: &mut Vec<Change>,
) {
    for network in &wanted.networks {
        let now = running.networks.iter().find(|it| it.name == network.name);
        match now.filter(|_| again(networks, &network.name).is_empty()) {
            None => changes.push(Change::AddNetwork(network.clone())),
            Some(now) => {
                let different = [
                    ("allow", now.allow != network.allow),
                    ("remote", now.remote != network.remote),
                ];
                let keys = keys(&different, false);
                if !keys.is_empty() {
                    changes.push(Change::ChangeNetwork { network: network.clone(), keys });
                }
            }
        }
    }
    for nic in &wanted.nics {
        let now = running.nics.iter().find(|it| it.name == nic.name);
        match now.filter(|_| again(nics, &nic.name).is_empty()) {
            None => changes.push(Change::AddNic(nic.clone())),
            Some(now) if bare_nic(now) != bare_nic(nic) => {
                let keys = keys(&changeable_nic_keys(now, nic), true);
                changes.push(Change::ChangeNic { nic: nic.clone(), keys });
            }
            Some(_) => {}
        }
    }
}

fn remove_domains(
    running: &Config,
    wanted: &Config,
    domains: &Replaced,
    changes: &mut Vec<Change>,
) {
    for domain in &running.domains {
        let again = again(domains, &domain.name);
        if wanted.domains.iter().all(|it| it.name != domain.name) || !again.is_empty() {
            changes.push(Change::RemoveDomain { name: domain.name.clone(), again });
        }
    }
}

fn add_domains(running: &Config, wanted: &Config, domains: &Replaced, changes: &mut Vec<Change>) {
    for domain in &wanted.domains {
        let now = running.domains.iter().find(|it| it.name == domain.name);
        match now.filter(|_| again(domains, &domain.name).is_empty()) {
            None => changes.push(Change::AddDomain(domain.clone())),
            Some(now) if (&now.key, &now.peers) != (&domain.key, &domain.peers) => {
                changes.push(Change::ChangeDomain(domain.clone()));
            }
            Some(_) => {}
        }
    }
}

fn remove_vfs(running: &Config, wanted: &Config, vfs: &Replaced, changes: &mut Vec<Change>) {
    for vf in &running.vfs {
        let again = again(vfs, &vf.name);
        if wanted.vfs.iter().all(|it| it.name != vf.name) || !again.is_empty() {
            changes.push(Change::RemoveVf { name: vf.name.clone(), again });
        }
    }
}

fn add_vfs(running: &Config, wanted: &Config, vfs: &Replaced, changes: &mut Vec<Change>) {
    for vf in &wanted.vfs {
        let is_there = running.vfs.iter().any(|it| it.name == vf.name);
        if !is_there || !again(vfs, &vf.name).is_empty() {
            changes.push(Change::AddVf(vf.clone()));
        }
    }
}

fn in_place(now: &VolumeConfig, wanted: &VolumeConfig) -> Vec<Change> {
    let mut changes = Vec::new();
    if now.allow != wanted.allow {
        changes.push(Change::ChangeAllow(wanted.clone()));
    }
    if grows(now, wanted) {
        changes.push(Change::ChangeSize(wanted.clone()));
    }
    if now.chain != wanted.chain {
        changes.push(Change::ChangeChain(wanted.clone()));
    }
    changes
}

/// The size that a file is configured to have.
fn size_of(volume: &VolumeConfig) -> Option<u64> {
    match volume.backend {
        Backend::File { size_bytes, .. } => size_bytes,
        Backend::Memory { .. } | Backend::Null { .. } => None,
    }
}

/// Whether the backends differ in that the file is to be larger, and in nothing else.
fn grows(now: &VolumeConfig, wanted: &VolumeConfig) -> bool {
    let (Some(now_bytes), Some(wanted_bytes)) = (size_of(now), size_of(wanted)) else {
        return false;
    };
    let mut backend = now.backend.clone();
    if let Backend::File { size_bytes, .. } = &mut backend {
        *size_bytes = Some(wanted_bytes);
    }
    now_bytes < wanted_bytes && backend == wanted.backend
}

/// What of the file as a whole is different and takes a restart of the node.
pub fn needs_restart(running: &Config, wanted: &Config) -> Vec<&'static str> {
    let is_said = |key| running.lines.has(key) || wanted.lines.has(key);
    let different = [
        ("name", running.name != wanted.name),
        ("listen", running.listen != wanted.listen),
        ("shm", running.shm != wanted.shm),
        // What follows from another name is no key of its own.
        ("fabric", running.fabric != wanted.fabric && is_said("fabric")),
        ("trust", running.trust != wanted.trust),
        // Another file is read by a reload; whether sessions are sealed at all is for good.
        ("key", running.key.is_some() != wanted.key.is_some()),
        ("control", running.control != wanted.control),
        ("[sidecores]", running.sidecores != wanted.sidecores),
        ("[directories]", running.directories != wanted.directories),
        ("[link]", running.link != wanted.link),
        ("user", running.user != wanted.user),
        ("privileges", running.privileges != wanted.privileges),
        ("watchdog", running.watchdog != wanted.watchdog),
        ("metrics-listen", running.metrics_listen != wanted.metrics_listen),
        ("[memory]", running.memory != wanted.memory),
    ];
    different.into_iter().filter(|(_, different)| *different).map(|(key, _)| key).collect()
}

/// Names of objects that cannot be changed in place, and for which keys.
type Replaced = Vec<(String, Vec<&'static str>)>;

fn again(replaced: &Replaced, name: &str) -> Vec<&'static str> {
    let found = replaced.iter().find(|(of, _)| of == name);
    found.map(|(_, keys)| keys.clone()).unwrap_or_default()
}

fn replaced_volumes(running: &Config, wanted: &Config) -> Replaced {
    let pairs = running.volumes.iter().filter_map(|now| {
        Some((now, wanted.volumes.iter().find(|volume| volume.name == now.name)?))
    });
    let keys = pairs.map(|(now, wanted)| (now.name.clone(), volume_keys(now, wanted)));
    keys.filter(|(_, keys)| !keys.is_empty()).collect()
}

fn volume_keys(now: &VolumeConfig, wanted: &VolumeConfig) -> Vec<&'static str> {
    let different = [
        ("backend", now.backend != wanted.backend && !grows(now, wanted)),
        ("durability", now.write_through != wanted.write_through),
        ("read-only", now.read_only != wanted.read_only),
        ("shared", now.shared != wanted.shared),
        ("physical-block-size", now.topology.physical_bytes != wanted.topology.physical_bytes),
        ("optimal-io-size", now.topology.optimal_bytes != wanted.topology.optimal_bytes),
    ];
    let mut now = bare_volume(now);
    if grows(&now, wanted) {
        now.backend.clone_from(&wanted.backend);
    }
    keys(&different, now != bare_volume(wanted))
}

fn replaced_disks(running: &Config, wanted: &Config, volumes: &Replaced) -> Replaced {
    let pairs = running
        .disks
        .iter()
        .filter_map(|now| Some((now, wanted.disks.iter().find(|disk| disk.name == now.name)?)));
    let keys = pairs.map(|(now, wanted)| {
        let mut keys = disk_keys(now, wanted);
        let local = now.volume.peer.is_none();
        if keys.is_empty() && local && !again(volumes, &now.volume.volume).is_empty() {
            keys.push("its volume");
        }
        (now.name.clone(), keys)
    });
    keys.filter(|(_, keys)| !keys.is_empty()).collect()
}

fn disk_keys(now: &DiskConfig, wanted: &DiskConfig) -> Vec<&'static str> {
    let different = [
        ("socket", now.socket != wanted.socket),
        ("role", now.role != wanted.role),
        ("socket-user", now.access.uid != wanted.access.uid),
        ("socket-group", now.access.gid != wanted.access.gid),
        ("socket-mode", now.access.mode != wanted.access.mode),
        ("volume", now.volume != wanted.volume),
        ("queues", now.queues != wanted.queues),
        ("when-lost", now.when_lost != wanted.when_lost),
        ("attachment", now.attachment != wanted.attachment),
        ("accept-loss", now.accept_loss != wanted.accept_loss),
        ("attachment-key", now.attachment_key != wanted.attachment_key),
    ];
    keys(&different, bare_disk(now) != bare_disk(wanted))
}

fn replaced_networks(running: &Config, wanted: &Config) -> Replaced {
    let pairs = running.networks.iter().filter_map(|now| {
        Some((now, wanted.networks.iter().find(|network| network.name == now.name)?))
    });
    let keys = pairs.map(|(now, wanted)| {
        let different = [("uplink", now.uplink != wanted.uplink)];
        (now.name.clone(), keys(&different, bare_network(now) != bare_network(wanted)))
    });
    keys.filter(|(_, keys)| !keys.is_empty()).collect()
}

fn replaced_domains(running: &Config, wanted: &Config) -> Replaced {
    let pairs = running.domains.iter().filter_map(|now| {
        Some((now, wanted.domains.iter().find(|domain| domain.name == now.name)?))
    });
    let keys = pairs.map(|(now, wanted)| {
        let different = [("endpoints-max", now.endpoints_max != wanted.endpoints_max)];
        (now.name.clone(), keys(&different, bare_domain(now) != bare_domain(wanted)))
    });
    keys.filter(|(_, keys)| !keys.is_empty()).collect()
}

fn replaced_vfs(running: &Config, wanted: &Config, domains: &Replaced) -> Replaced {
    let pairs = running
        .vfs
        .iter()
        .filter_map(|now| Some((now, wanted.vfs.iter().find(|vf| vf.name == now.name)?)));
    let keys = pairs.map(|(now, wanted)| {
        let mut keys = keys(
            &[("domain", now.domain != wanted.domain), ("socket", now.socket != wanted.socket)],
            bare_vf(now) != bare_vf(wanted),
        );
        if keys.is_empty() && !again(domains, &now.domain).is_empty() {
            keys.push("its domain");
        }
        (now.name.clone(), keys)
    });
    keys.filter(|(_, keys)| !keys.is_empty()).collect()
}

fn replaced_nics(running: &Config, wanted: &Config, networks: &Replaced) -> Replaced {
    let pairs = running
        .nics
        .iter()
        .filter_map(|now| Some((now, wanted.nics.iter().find(|nic| nic.name == now.name)?)));
    let keys = pairs.map(|(now, wanted)| {
        let mut keys = nic_keys(now, wanted);
        if keys.is_empty() && !again(networks, &now.network).is_empty() {
            keys.push("its network");
        }
        (now.name.clone(), keys)
    });
    keys.filter(|(_, keys)| !keys.is_empty()).collect()
}

fn nic_keys(now: &NicConfig, wanted: &NicConfig) -> Vec<&'static str> {
    let different = [
        ("socket", now.socket != wanted.socket),
        ("role", now.role != wanted.role),
        ("socket-user", now.access.uid != wanted.access.uid),
        ("socket-group", now.access.gid != wanted.access.gid),
        ("socket-mode", now.access.mode != wanted.access.mode),
        ("network", now.network != wanted.network),
        ("attachment-key", now.attachment_key != wanted.attachment_key),
        ("mac", now.mac != wanted.mac),
        ("queues", now.pairs != wanted.pairs),
        ("mtu", now.mtu != wanted.mtu),
        ("vlan", now.vlans != wanted.vlans),
        ("isolated", now.isolated != wanted.isolated),
    ];
    // All but what can be changed in place.
    let mut same = bare_nic(now);
    (same.link, same.meter, same.limit) = (wanted.link, wanted.meter, wanted.limit);
    (same.mirror, same.filter) = (wanted.mirror.clone(), wanted.filter.clone());
    keys(&different, same != bare_nic(wanted))
}

/// What can be changed while the guest uses it.
fn changeable_nic_keys(now: &NicConfig, wanted: &NicConfig) -> [(&'static str, bool); 5] {
    [
        ("link", now.link != wanted.link),
        ("meter", now.meter != wanted.meter),
        ("mirror", now.mirror != wanted.mirror),
        ("limit", now.limit != wanted.limit),
        ("filter", now.filter != wanted.filter),
    ]
}

/// The keys that are different. A key that is not listed is not overlooked for that.
fn keys(different: &[(&'static str, bool)], any: bool) -> Vec<&'static str> {
    let keys = different.iter().filter(|(_, different)| *different);
    let keys: Vec<_> = keys.map(|(key, _)| *key).collect();
    if keys.is_empty() && any { vec!["other keys"] } else { keys }
}

/// Where an object stands in the file is no difference.
fn bare_disk(disk: &DiskConfig) -> DiskConfig {
    DiskConfig { lines: Lines::default(), ..disk.clone() }
}

/// Without what can be changed in place.
fn bare_network(network: &NetworkConfig) -> NetworkConfig {
    let (allow, remote) = (Vec::new(), RemotePorts::default());
    NetworkConfig { lines: Lines::default(), allow, remote, ..network.clone() }
}

/// Without what can be changed in place.
fn bare_domain(domain: &DomainConfig) -> DomainConfig {
    let (key, peers) = (std::path::PathBuf::new(), Vec::new());
    DomainConfig { lines: Lines::default(), key, peers, ..domain.clone() }
}

fn bare_vf(vf: &VfConfig) -> VfConfig {
    VfConfig { lines: Lines::default(), ..vf.clone() }
}

fn bare_nic(nic: &NicConfig) -> NicConfig {
    NicConfig { lines: Lines::default(), ..nic.clone() }
}

fn bare_peer(peer: &PeerConfig) -> PeerConfig {
    PeerConfig { lines: Lines::default(), ..peer.clone() }
}

/// Without what can be changed in place.
fn bare_volume(volume: &VolumeConfig) -> VolumeConfig {
    let (allow, chain) = (Vec::new(), Vec::<StageConfig>::new());
    VolumeConfig { lines: Lines::default(), allow, chain, ..volume.clone() }
}
