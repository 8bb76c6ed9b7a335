//! Which peer has which key, and what keys do not fit together with.

use std::collections::HashMap;

use peer::AttachmentKey;
use transport::PublicKey;

use crate::config::Config;
use crate::kinds::Kind;
use crate::kinds::disk::DiskConfig;
use crate::kinds::peer::{PeerConfig, PeerKey};
use crate::kinds::row::Allowed;
use crate::reader::Reader;
use crate::sections::Trust;

/// Whether sessions are meant to be sealed, also where the key's path was refused.
pub(crate) fn is_sealed(config: &Config) -> bool {
    config.key.is_some() || config.lines.has("key")
}

/// Notes contradictions. `whole`: the parts had no fault.
pub(crate) fn consistent(reader: &Reader<'_>, config: &Config, whole: bool) {
    if is_sealed(config) && config.trust == Trust::Network {
        let text = "\"trust\": with \"key\" sessions are sealed, and the network need not be \
                    trusted; keep one of the two";
        reader.note(config.lines.of("trust"), "", text.to_owned());
        return;
    }
    config.peers.iter().for_each(|peer| peer_fits(reader, config, peer));
    for kind in Kind::all() {
        for allowed in kind.row().allowed(config) {
            allow_fits(reader, config, &allowed, whole);
        }
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
            "the key \"key\" is missing, by which the peer proves its name; write key = \"..\" \
             with the public key that `vrio key show` prints there",
        ),
        (false, true) => note(
            if peer.lines.has("keys") { "keys" } else { "key" },
            "a peer's key has no use while this node has no key: sessions are plain; make a key \
             with `vrio key new FILE` and write key = \"FILE\" at the top",
        ),
        (true, true) | (false, false) => {}
    }
    let needed = config.disks.iter().any(|disk| disk.volume.may_be_on(&peer.name))
        || config.nics.iter().any(|nic| nic.peer() == Some(&peer.name));
    if peer.address.is_none() && (needed || !is_sealed(config)) {
        note(
            "address",
            "the key \"address\" is missing; write for instance address = \"10.0.0.9:4870\" (a \
             peer without an address must have a key, and no disk or nic of this node may use it)",
        );
    }
}

fn allow_fits(reader: &Reader<'_>, config: &Config, allowed: &Allowed<'_>, whole: bool) {
    let Allowed { object, lines, allow, may_be_own } = allowed;
    let note = |text: String| reader.note(lines.of("allow"), object, text);
    for (index, entry) in allow.iter().enumerate() {
        let node = &entry.node;
        let is_own = *node == config.name;
        if is_own && !may_be_own {
            note(
                "\"allow\": disks and nics of this node are always allowed; name other nodes here"
                    .to_owned(),
            );
        } else if !is_sealed(config) && entry.key.is_some() {
            note(format!(
                "\"allow\": an attachment key of {node:?} can only be proved in sealed sessions; \
                 make a node key with `vrio key new FILE` and write key = \"FILE\" at the top"
            ));
        } else if whole && is_sealed(config) && !is_own && config.peer(node).is_none() {
            note(format!(
                "\"allow\": there is no [[peer]] {node:?}, so no key proves this name; add \
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
                "\"allow\": {node:?} is allowed without a key, so its entry with a key has no \
                 effect; keep one of the two"
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
    if disk.volume.is_here() {
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

/// A key proves a peer's identity, so it belongs to one peer.
fn key_of_two(reader: &Reader<'_>, config: &Config) {
    let mut seen: HashMap<PublicKey, &str> = HashMap::new();
    for peer in &config.peers {
        for PeerKey { key, .. } in &peer.keys {
            let Some(first) = seen.insert(*key, &peer.name) else { continue };
            let text = if first == peer.name {
                format!("{key} is given twice; keep one")
            } else {
                format!(
                    "{key} is the key of peer {first:?} as well; each node needs a key of its \
                         own"
                )
            };
            let line = if peer.lines.has("keys") { "keys" } else { "key" };
            let object = format!("peer {:?}", peer.name);
            reader.note(peer.lines.of(line), &object, format!("{line:?}: {text}"));
        }
    }
}
