//! Checks of the file as a whole: names that collide, addresses, directories.

mod keys;

use net::uplink::TapUplink;
use volume::backend::BackendFile;

use crate::address::PeerAddress;
use crate::checks::{Surroundings, socket_length};
use crate::config::Config;
use crate::kinds::Kind;
use crate::kinds::nic::MirrorConfig;
use crate::reader::Reader;
use crate::sections::Trust;

/// Notes every contradiction.
pub(crate) fn consistent(reader: &Reader<'_>, config: &Config) {
    let is_whole = reader.is_clean();
    listening(reader, config);
    own_sockets(reader, config);
    keys::consistent(reader, config, is_whole);
    let surroundings = surroundings(config, is_whole);
    for kind in Kind::all() {
        kind.row().consistent(reader, &config.objects, &surroundings);
    }
    mirrors(reader, config);
    pools(reader, config);
    disks_of_copies(reader, config);
}

/// A disk of this node would lose a volume that another node serves.
fn disks_of_copies(reader: &Reader<'_>, config: &Config) {
    for disk in config.disks.iter().filter(|disk| disk.volume.is_here()) {
        let mut volumes = config.volumes.iter().filter(|it| it.name == disk.volume.volume);
        if volumes.any(|volume| !volume.replicas.is_empty()) {
            let text = format!(
                "\"volume\": {:?} has copies on several nodes, and a disk of such a node cannot \
                 use it yet; have another node's disk name all of them: volume = \"io1,io2/{}\"",
                disk.volume.volume, disk.volume.volume
            );
            reader.note(disk.lines.of("volume"), &format!("disk {:?}", disk.name), text);
        }
    }
}

/// A pool's device has a format of its own: it is no volume's file.
fn pools(reader: &Reader<'_>, config: &Config) {
    for pool in &config.pools {
        for volume in &config.volumes {
            let Some(BackendFile { path, .. }) = volume.backend.file() else { continue };
            if pool.devices.iter().any(|device| device == path) {
                let text = format!(
                    "\"devices\": {path:?} is the file of volume {:?}; a pool needs files or \
                     devices of its own",
                    volume.name
                );
                reader.note(pool.lines.of("devices"), &format!("pool {:?}", pool.name), text);
            }
        }
    }
}

/// The configuration, as an object of it sees it.
fn surroundings(config: &Config, is_whole: bool) -> Surroundings<'_> {
    let names = |kind: Kind| (kind.key(), kind.row().names(&config.objects));
    let sockets = |kind: Kind| (kind.key(), kind.row().sockets(&config.objects));
    Surroundings {
        node: &config.name,
        is_whole,
        is_listening: config.listen.is_some(),
        is_sealed: keys::is_sealed(config),
        is_in_cluster: config.cluster.is_some(),
        control: &config.control,
        fabric: &config.fabric,
        shm: config.shm.as_deref(),
        names: Kind::all().map(names).chain([reached(config)]).collect(),
        sockets: Kind::all().map(sockets).collect(),
    }
}

/// The peers that this node can open sessions to.
fn reached(config: &Config) -> (&'static str, Vec<&str>) {
    let reached = config.peers.iter().filter(|peer| peer.address.is_some());
    ("reached", reached.map(|peer| &*peer.name).collect())
}

/// A tap gets frames from one side: it is a network's uplink, or a mirror's target.
fn mirrors(reader: &Reader<'_>, config: &Config) {
    for nic in &config.nics {
        let Some(MirrorConfig::Tap(tap)) = &nic.mirror else { continue };
        let uplink = Some(TapUplink::new(tap).into());
        if let Some(other) = config.networks.iter().rfind(|it| it.uplink == uplink) {
            let other = &other.name;
            let text = format!("\"mirror\": network {other:?} has {tap:?} as its uplink");
            reader.note(nic.lines.of("mirror"), &format!("nic {:?}", nic.name), text);
        }
    }
}

/// In plain sessions each host that reaches the address can read and write the volumes.
fn listening(reader: &Reader<'_>, config: &Config) {
    let Some(listen) = config.listen else {
        let exported = config.volumes.iter().find(|volume| !volume.allow.is_empty());
        let why = match exported {
            Some(volume) => format!("volume {:?} allows other nodes", volume.name),
            None if !config.peers.is_empty() => "peers answer to an address".to_owned(),
            None if config.shm.is_some() => "\"shm\" is for other nodes".to_owned(),
            None => return,
        };
        let text = format!(
            "the key \"listen\" is missing ({why}); write for instance \
                            listen = \"10.0.0.9:4870\""
        );
        return reader.note(0, "", text);
    };
    let line = config.lines.of("listen");
    let plain = config.key.is_none() && config.trust == Trust::Loopback;
    if !listen.ip().is_loopback() && plain && !config.lines.has("key") {
        let text = format!(
            "\"listen\": {listen} is not a loopback address, and without a key every host that \
             reaches it can read and write the volumes. Make a key with `vrio key new FILE` and \
             write key = \"FILE\"; or, if you trust everything that reaches the address, write \
             trust = \"network\"; or listen on 127.0.0.1:{}",
            listen.port()
        );
        reader.note(line, "", text);
    }
    if listen.ip().is_unspecified() {
        let text = format!(
            "\"listen\": {listen} means every address, and peers need a single one; write the \
             address that they reach"
        );
        reader.note(line, "", text);
    }
    if listen.port() == 0 && config.volumes.iter().any(|volume| !volume.allow.is_empty()) {
        let text = "\"listen\": port 0 is another port at each start, and other nodes could not \
                    find this one again; write a port, such as 4870";
        reader.note(line, "", text.to_owned());
    }
}

/// The sockets of the node itself, and those of other nodes that it connects to.
fn own_sockets(reader: &Reader<'_>, config: &Config) {
    let control = ("control", Some(&config.control));
    let fabric = ("fabric", Some(&config.fabric));
    for (key, path) in [control, ("shm", config.shm.as_ref()), fabric] {
        let (Some(path), line) = (path, config.lines.of(key)) else { continue };
        socket_length(reader, path, "", line);
        if config.disks.iter().any(|disk| disk.socket == *path) {
            reader.note(line, "", format!("the {key} socket {path:?} is a disk's as well"));
        }
    }
    if config.shm.as_ref() == Some(&config.control) {
        let text = format!("the shm socket {:?} is the control socket as well", config.control);
        reader.note(config.lines.of("shm"), "", text);
    }
    if config.fabric == config.control || config.shm.as_ref() == Some(&config.fabric) {
        let text = format!("the fabric socket {:?} is another socket of the node", config.fabric);
        reader.note(config.lines.of("fabric"), "", text);
    }
    for peer in &config.peers {
        if let Some(PeerAddress::Shared(path)) = &peer.address {
            let object = format!("peer {:?}", peer.name);
            socket_length(reader, path, &object, peer.lines.of("address"));
        }
    }
}
