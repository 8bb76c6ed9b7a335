//! Keys in a configuration: which peer has which, and what they do not fit together with.

use std::collections::HashMap;

use peer::{Allow, AttachmentKey};
use transport::PublicKey;

use super::read::name;
use super::reader::{Reader, Table, Value};
use super::{Config, DiskConfig, KEYS_PER_PEER_MAX, PeerAddress, PeerConfig, PeerKey, Trust};

pub(crate) const PEER_KEYS: [&str; 5] = ["name", "address", "key", "keys", "expires"];

/// Reads a `[[peer]]`.
pub(crate) fn peer(value: &Value<'_, '_>) -> Option<PeerConfig> {
    let table = value.table(&PEER_KEYS)?;
    let name = table.require("name", "name = \"io1\"").and_then(|value| name(&value));
    let given = table.get("address");
    let address = given.as_ref().and_then(PeerAddress::read);
    let keys = peer_keys(&table);
    if given.is_some() && address.is_none() {
        return None;
    }
    Some(PeerConfig { name: name?, address, keys, lines: table.lines.clone() })
}

fn peer_keys(table: &Table<'_, '_>) -> Vec<PeerKey> {
    let expires = table.get("expires");
    match (table.get("key"), table.get("keys")) {
        (Some(_), Some(_)) => {
            table.fail("keys", "\"key\" is for one key and \"keys\" for several; keep one".into());
            Vec::new()
        }
        (Some(value), None) => {
            let expires_unix_s = expires.and_then(|value| value.unix_s());
            let key = public_key(&value).map(PublicKey);
            key.map(|key| PeerKey { key, expires_unix_s }).into_iter().collect()
        }
        (None, keys) => {
            if let Some(value) = expires {
                let text = "this belongs to \"key\"; with several write keys = [{ key = \"..\", \
                            expires = .. }]";
                value.fail(text.to_owned());
            }
            keys.map_or_else(Vec::new, |value| several_keys(&value))
        }
    }
}

fn several_keys(value: &Value<'_, '_>) -> Vec<PeerKey> {
    let values = value.array().unwrap_or_default();
    if values.len() > KEYS_PER_PEER_MAX {
        value.fail(format!("{} are too many; at most {KEYS_PER_PEER_MAX}", values.len()));
        return Vec::new();
    }
    values.iter().filter_map(peer_key).collect()
}

fn peer_key(value: &Value<'_, '_>) -> Option<PeerKey> {
    if !value.is_table() {
        return Some(PeerKey { key: PublicKey(public_key(value)?), expires_unix_s: None });
    }
    let table = value.table(&["key", "expires"])?;
    let key = table.require("key", "{ key = \"..\", expires = 2027-01-01T00:00:00Z }");
    let key = key.and_then(|value| public_key(&value));
    let expires_unix_s = match table.get("expires") {
        Some(value) => Some(value.unix_s()?),
        None => None,
    };
    Some(PeerKey { key: PublicKey(key?), expires_unix_s })
}

/// Reads an entry of a volume's `allow`.
pub(crate) fn allow(value: &Value<'_, '_>) -> Option<Allow> {
    if !value.is_table() {
        return name(value).map(|node| Allow { node, key: None });
    }
    let table = value.table(&["node", "key"])?;
    let node = table.require("node", "{ node = \"vm1\", key = \"..\" }");
    let node = node.and_then(|value| name(&value));
    let key = table.require("key", "{ node = \"vm1\", key = \"..\" }");
    let key = key.and_then(|value| public_key(&value));
    Some(Allow { node: node?, key: Some(AttachmentKey(key?)) })
}

/// The bytes of a public key. What does not read as one is not repeated: it may be a secret.
fn public_key(value: &Value<'_, '_>) -> Option<[u8; 32]> {
    let key: Result<PublicKey, _> = value.str()?.parse();
    if key.is_err() {
        let text = "this is no public key, which is 32 bytes in Base64 (44 characters, the last \
                    one \"=\"); `vrio key show FILE` prints it";
        value.fail(text.to_owned());
    }
    key.ok().map(|PublicKey(bytes)| bytes)
}

/// Whether sessions are meant to be sealed, also where the key's path was refused.
pub(crate) fn is_sealed(config: &Config) -> bool {
    config.key.is_some() || config.lines.has("key")
}

/// Notes what does not fit together. `whole`: nothing was wrong with the parts.
pub(crate) fn consistent(reader: &Reader<'_>, config: &Config, whole: bool) {
    if is_sealed(config) && config.trust == Trust::Network {
        let text = "\"trust\": with \"key\" sessions are sealed, and a network need not be \
                    trusted; keep one of the two";
        reader.note(config.lines.of("trust"), "", text.to_owned());
        return;
    }
    config.peers.iter().for_each(|peer| peer_fits(reader, config, peer));
    for volume in &config.volumes {
        let object = format!("volume {:?}", volume.name);
        allow_fits(reader, config, (&object, volume.lines.of("allow")), &volume.allow, whole);
    }
    for network in &config.networks {
        let object = format!("network {:?}", network.name);
        allow_fits(reader, config, (&object, network.lines.of("allow")), &network.allow, whole);
    }
    config.disks.iter().for_each(|disk| disk_fits(reader, config, disk));
    key_of_two(reader, config);
}

fn peer_fits(reader: &Reader<'_>, config: &Config, peer: &PeerConfig) {
    let note = |key: &str, text: &str| {
        reader.note(peer.lines.of(key), &format!("peer {:?}", peer.name), text.to_owned());
    };
    // A key that was refused is there as well; a peer that came by a command has no lines.
    let is_written = peer.lines.has("key") || peer.lines.has("keys");
    let has_keys = is_written || !peer.keys.is_empty();
    match (is_sealed(config), has_keys) {
        (true, false) => note(
            "key",
            "the key \"key\" is missing, by which it proves who it is; write key = \"..\" with \
             what `vrio key show` prints there",
        ),
        (false, true) => note(
            if peer.lines.has("keys") { "keys" } else { "key" },
            "a peer's key says nothing while this node has none: sessions are plain; make one \
             with `vrio key new FILE` and write key = \"FILE\" at the top",
        ),
        (true, true) | (false, false) => {}
    }
    let needed = config.disks.iter().any(|disk| disk.volume.peer.as_ref() == Some(&peer.name))
        || config.nics.iter().any(|nic| nic.peer() == Some(&peer.name));
    if peer.address.is_none() && (needed || !is_sealed(config)) {
        note(
            "address",
            "the key \"address\" is missing; write for instance address = \"10.0.0.9:4870\" (only \
             a peer that has a key, and whose volumes and networks nothing here uses, \
             needs none)",
        );
    }
}

fn allow_fits(
    reader: &Reader<'_>,
    config: &Config,
    (object, line): (&str, usize),
    allow: &[Allow],
    whole: bool,
) {
    let note = |text: String| reader.note(line, object, text);
    for (index, entry) in allow.iter().enumerate() {
        let node = &entry.node;
        if *node == config.name {
            note(
                "\"allow\": what is on this node itself always may; name other nodes here"
                    .to_owned(),
            );
        } else if !is_sealed(config) && entry.key.is_some() {
            note(format!(
                "\"allow\": an attachment key of {node:?} can only be proved in sealed sessions; \
                 make a node key with `vrio key new FILE` and write key = \"FILE\" at the top"
            ));
        } else if whole && is_sealed(config) && config.peer(node).is_none() {
            note(format!(
                "\"allow\": no [[peer]] is called {node:?}, so no key proves who that is; add \
                 [[peer]] name = {node:?}, key = \"..\""
            ));
        }
        let before = &allow[..index];
        if before.contains(entry) {
            note(format!("\"allow\": {node:?} is named twice; keep one"));
        } else if before
            .iter()
            .any(|it| it.node == *node && it.key.is_none() != entry.key.is_none())
        {
            note(format!(
                "\"allow\": {node:?} is allowed without a key, so its entry with one keeps nobody \
                 out; keep one of the two"
            ));
        }
        let node_key = entry.key.map(|AttachmentKey(bytes)| PublicKey(bytes));
        let owner = config.peers.iter().find(|peer| peer.has_key(node_key));
        if let Some(owner) = owner {
            let owner = &owner.name;
            note(format!(
                "\"allow\": the key of {node:?} is the node key of {owner:?}; an attachment key \
                 is made with `vrio key new --attachment FILE`"
            ));
        }
    }
}

fn disk_fits(reader: &Reader<'_>, config: &Config, disk: &DiskConfig) {
    let note = |text: &str| {
        let object = format!("disk {:?}", disk.name);
        reader.note(disk.lines.of("attachment-key"), &object, text.to_owned());
    };
    if disk.attachment_key.is_none() {
        return;
    }
    if disk.volume.peer.is_none() {
        note(
            "\"attachment-key\": this node's own disks need none; it is for volumes of a peer, \
             \"peer/volume\"",
        );
    } else if !is_sealed(config) {
        note(
            "\"attachment-key\": it can only be proved in sealed sessions; make a node key with \
             `vrio key new FILE` and write key = \"FILE\" at the top",
        );
    }
}

/// A key says who a peer is, so it belongs to one.
fn key_of_two(reader: &Reader<'_>, config: &Config) {
    let mut seen: HashMap<PublicKey, &str> = HashMap::new();
    for peer in &config.peers {
        for PeerKey { key, .. } in &peer.keys {
            let Some(first) = seen.insert(*key, &peer.name) else { continue };
            let text = if first == peer.name {
                format!("{key} is given twice; keep one")
            } else {
                format!("{key} is the key of peer {first:?} as well; every node has its own")
            };
            let line = if peer.lines.has("keys") { "keys" } else { "key" };
            let object = format!("peer {:?}", peer.name);
            reader.note(peer.lines.of(line), &object, format!("{line:?}: {text}"));
        }
    }
}
