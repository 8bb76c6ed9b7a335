//! What can only be said of the file as a whole: names that meet, addresses, directories.

use std::collections::HashMap;
use std::path::Path;

use super::reader::{Lines, Reader};
use super::{
    Backend, Config, DiskConfig, PeerAddress, SOCKET_PATH_BYTES_MAX, Trust, VolumeConfig, keys,
};
use crate::kinds::{domain, nic as network, vf};

/// Notes everything that does not fit together.
pub(crate) fn consistent(reader: &Reader<'_>, config: &Config) {
    let whole = reader.is_clean();
    listening(reader, config);
    let volumes = config.volumes.iter().map(|volume| (volume.name.as_str(), &volume.lines));
    unique(reader, "volume", "name", volumes);
    unique(
        reader,
        "peer",
        "name",
        config.peers.iter().map(|peer| (peer.name.as_str(), &peer.lines)),
    );
    unique(
        reader,
        "disk",
        "name",
        config.disks.iter().map(|disk| (disk.name.as_str(), &disk.lines)),
    );
    let sockets = config.disks.iter().filter_map(|disk| Some((disk.socket.to_str()?, &disk.lines)));
    unique(reader, "disk", "socket", sockets);
    own_sockets(reader, config);
    domain::consistent(reader, config);
    vf::consistent(reader, config, whole);
    keys::consistent(reader, config, whole);
    network::consistent(reader, config, whole);
    for peer in config.peers.iter().filter(|peer| peer.name == config.name) {
        let text = "\"name\": this is the node's own name; a volume of this node is written \
                    without a peer"
            .to_owned();
        reader.note(peer.lines.of("name"), &format!("peer {:?}", peer.name), text);
    }
    let lengths =
        config.disks.iter().map(|disk| (&disk.socket, &disk.name, disk.lines.of("socket")));
    lengths.for_each(|(path, name, line)| {
        socket_length(reader, path, &format!("disk {name:?}"), line);
    });
    // A volume or peer that could not be read is missing here; it has had its message.
    if whole {
        config.disks.iter().for_each(|disk| disk_volume(reader, config, disk));
    }
    same_attachment(reader, config);
    same_file(reader, config);
    same_encryption(reader, config);
}

/// In plain sessions whoever reaches the address can read and write the volumes.
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
            "\"listen\": {listen} is not a loopback address, and without a key whoever reaches it \
             can read and write the volumes. Make a key with `vrio key new FILE` and write key = \
             \"FILE\"; or, if you trust everything that reaches the address, write trust = \
             \"network\"; or listen on 127.0.0.1:{}",
            listen.port()
        );
        reader.note(line, "", text);
    }
    if listen.ip().is_unspecified() {
        let text = format!(
            "\"listen\": {listen} is every address at once, and peers answer to \
                            one; name the address that they reach"
        );
        reader.note(line, "", text);
    }
    if listen.port() == 0 && config.volumes.iter().any(|volume| !volume.allow.is_empty()) {
        let text = "\"listen\": port 0 is another port at each start, and the nodes that use the \
                    volumes could not find it again; write a port, such as 4870";
        reader.note(line, "", text.to_owned());
    }
}

pub(crate) fn unique<'c>(
    reader: &Reader<'_>,
    kind: &str,
    key: &str,
    objects: impl Iterator<Item = (&'c str, &'c Lines)>,
) {
    let mut seen: HashMap<&str, usize> = HashMap::new();
    for (word, lines) in objects {
        if let Some(first) = seen.insert(word, lines.of(key)) {
            let text = match first {
                // It came by a command.
                0 => format!("{key:?}: another {kind} has the same {key}"),
                first => format!("{key:?}: the {kind} of line {first} has the same {key}"),
            };
            reader.note(lines.of(key), &format!("{kind} {word:?}"), text);
        }
    }
}

fn disk_volume(reader: &Reader<'_>, config: &Config, disk: &DiskConfig) {
    let object = format!("disk {:?}", disk.name);
    let line = disk.lines.of("volume");
    let known = |names: Vec<&str>| match &names[..] {
        [] => "there is none".to_owned(),
        names => format!("there are {}", names.join(", ")),
    };
    match &disk.volume.peer {
        Some(peer) if config.peer(peer).is_none() => {
            let peers = known(config.peers.iter().map(|peer| peer.name.as_str()).collect());
            let text = format!(
                "\"volume\": no [[peer]] is called {peer:?} ({peers}); add [[peer]] name = \
                 {peer:?}, address = \"..\""
            );
            reader.note(line, &object, text);
        }
        Some(_) => {}
        None if config.volumes.iter().all(|volume| volume.name != disk.volume.volume) => {
            let volumes = known(config.volumes.iter().map(|v| v.name.as_str()).collect());
            let text = format!(
                "\"volume\": this node has no volume {name:?} ({volumes}); add a [[volume]] of \
                 that name, or write \"peer/{name}\" for another node's",
                name = disk.volume.volume
            );
            reader.note(line, &object, text);
        }
        None => {}
    }
}

/// Two disks with one attachment would fence each other off for ever.
fn same_attachment(reader: &Reader<'_>, config: &Config) {
    let mut seen: HashMap<(String, &str), &str> = HashMap::new();
    for disk in &config.disks {
        let key = (disk.volume.to_string(), disk.attachment.as_str());
        if let Some(other) = seen.insert(key, &disk.name).filter(|other| *other != disk.name) {
            let text = format!(
                "\"attachment\": disk {other:?} is the same attachment {:?} of volume {}, and \
                 each would take it from the other; give them different names",
                disk.attachment, disk.volume
            );
            reader.note(disk.lines.of("attachment"), &format!("disk {:?}", disk.name), text);
        }
    }
}

/// Two volumes on one file would wait for each other's lock.
fn same_file(reader: &Reader<'_>, config: &Config) {
    let mut seen: HashMap<&Path, &VolumeConfig> = HashMap::new();
    for volume in &config.volumes {
        let Backend::File { path, .. } = &volume.backend else { continue };
        let other = seen.insert(path, volume);
        let Some(other) = other.filter(|other| !(other.read_only && volume.read_only)) else {
            continue;
        };
        let text = format!(
            "\"backend\": volume {:?} has the same file {path:?}; a file that is written belongs \
             to one volume (several disks may use that, if it is \"shared\")",
            other.name
        );
        reader.note(volume.lines.of("backend"), &format!("volume {:?}", volume.name), text);
    }
}

/// Two volumes under one key show where they are alike to whoever sees both files.
fn same_encryption(reader: &Reader<'_>, config: &Config) {
    let mut seen: HashMap<&Path, &VolumeConfig> = HashMap::new();
    for volume in &config.volumes {
        let Some(key) = super::encryption(&volume.chain) else { continue };
        let Some(other) = seen.insert(key, volume) else { continue };
        let text = format!(
            "\"chain\": volume {:?} has the same key {key:?}; each has one of its own: `vrio key \
             new --volume FILE`",
            other.name
        );
        reader.note(volume.lines.of("chain"), &format!("volume {:?}", volume.name), text);
    }
}

/// The sockets of the node itself, and those of others that it calls.
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

pub(crate) fn socket_length(reader: &Reader<'_>, path: &Path, object: &str, line: usize) {
    let length = path.as_os_str().len();
    if length > SOCKET_PATH_BYTES_MAX {
        let text = format!(
            "the socket's path {path:?} has {length} bytes, and the system takes at most \
             {SOCKET_PATH_BYTES_MAX}; use a shorter directory or name"
        );
        reader.note(line, object, text);
    }
}
