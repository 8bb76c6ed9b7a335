//! Checks of the file as a whole: names that collide, addresses, directories.

use std::collections::HashMap;
use std::path::Path;

use super::reader::{Lines, Reader};
use super::{Config, PeerAddress, SOCKET_PATH_BYTES_MAX, Trust, keys};
use crate::kinds::Kind;

/// Notes every contradiction.
pub(crate) fn consistent(reader: &Reader<'_>, config: &Config) {
    let whole = reader.is_clean();
    listening(reader, config);
    own_sockets(reader, config);
    keys::consistent(reader, config, whole);
    Kind::all().for_each(|kind| kind.row().consistent(reader, config, whole));
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
                // The object was added by a command.
                0 => format!("{key:?}: another {kind} has the same {key}"),
                first => format!("{key:?}: the {kind} of line {first} has the same {key}"),
            };
            reader.note(lines.of(key), &format!("{kind} {word:?}"), text);
        }
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
