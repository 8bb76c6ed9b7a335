//! `[[peer]]`.

use transport::PublicKey;

use crate::address::PeerAddress;
use crate::checks::Surroundings;
use crate::key_table::{KeyTable, SettingKey, key};
use crate::object::{InPlace, Object};
use crate::public_keys::public_key;
use crate::reader::{Lines, Reader, TableReader, Value};
use crate::sections::{Directories, KEYS_PER_PEER_MAX};
use crate::values::name;

/// Another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerConfig {
    /// Its name; a node that answers with another name is refused.
    pub name: String,
    /// Where it listens; `None` for a peer that only connects to this node.
    pub address: Option<PeerAddress>,
    /// The public keys by which it proves its identity; several while one key replaces another.
    pub keys: Vec<PeerKey>,
    /// Where its keys are.
    pub lines: Lines,
}

impl PeerConfig {
    /// Whether this is one of its keys.
    pub fn has_key(&self, key: Option<PublicKey>) -> bool {
        key.is_some_and(|key| self.keys.iter().any(|mine| mine.key == key))
    }
}

/// A peer's public key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerKey {
    /// The key.
    pub key: PublicKey,
    /// The time at which the key expires, in seconds since 1970.
    pub expires_unix_s: Option<u64>,
}

const PEER_KEYS: [SettingKey; 5] = [
    key("name", "The peer's name. A node that answers with another name is refused."),
    key(
        "address",
        "The address of the peer's `listen`, or `\"shm:/run/vrio/io1.shm\"` for a node of \
         this machine that has this `shm` ([why](decisions/012-shared-memory.md)). A peer \
         that has a key and only uses volumes of this node needs none.",
    ),
    key(
        "key",
        "The peer's public key, which `vrio key show` prints on its host. Needed when this \
         node has a `key`.",
    ),
    key("keys", "Instead of `key`, up to four: `[\"..\", { key = \"..\", expires = .. }]`."),
    key("expires", "The date at which `key` expires, for instance `2027-01-01T00:00:00Z`."),
];

/// The keys of an entry of `keys`.
const PEER_KEY_KEYS: [SettingKey; 2] = [
    key("key", "A public key."),
    key("expires", "The date at which this key expires. Default: never."),
];

/// Reads a `[[peer]]`.
fn peer(value: &Value<'_, '_>) -> Option<PeerConfig> {
    let table = value.table_of(&PEER_KEYS)?;
    let name = table.require("name", "name = \"io1\"").and_then(|value| name(&value));
    let given = table.get("address");
    let address = given.as_ref().and_then(PeerAddress::read);
    let keys = peer_keys(&table);
    if given.is_some() && address.is_none() {
        return None;
    }
    Some(PeerConfig { name: name?, address, keys, lines: table.lines.clone() })
}

fn peer_keys(table: &TableReader<'_, '_>) -> Vec<PeerKey> {
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
                let text = "\"expires\" belongs to \"key\"; with several keys write keys = [{ key \
                            = \"..\", expires = .. }]";
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
    let table = value.table_of(&PEER_KEY_KEYS)?;
    let key = table.require("key", "{ key = \"..\", expires = 2027-01-01T00:00:00Z }");
    let key = key.and_then(|value| public_key(&value));
    let expires_unix_s = match table.get("expires") {
        Some(value) => Some(value.unix_s()?),
        None => None,
    };
    Some(PeerKey { key: PublicKey(key?), expires_unix_s })
}

impl Object for PeerConfig {
    const KEY: &'static str = "peer";
    const INTERRUPTS: bool = false;

    fn keys() -> &'static [SettingKey] {
        &PEER_KEYS
    }

    fn inner_tables() -> Vec<KeyTable> {
        vec![KeyTable::new(
            "keys of a peer",
            "[[peer]]\nname = \"a\"\nkeys = [{ ? }]",
            &PEER_KEY_KEYS,
        )]
    }

    fn read(value: &Value<'_, '_>, _directories: &Directories) -> Option<Self> {
        peer(value)
    }

    fn consistent(reader: &Reader<'_>, all: &[Self], around: &Surroundings<'_>) {
        for peer in all.iter().filter(|peer| peer.name == around.node) {
            let text = "\"name\": this is the node's own name; volumes of this node are named \
                        without a peer"
                .to_owned();
            reader.note(peer.lines.of("name"), &format!("peer {:?}", peer.name), text);
        }
    }

    fn replaced_for(&self, _wanted: &Self) -> Vec<&'static str> {
        Vec::new()
    }

    fn in_place(&self, wanted: &Self) -> Vec<InPlace> {
        if (Self { lines: wanted.lines.clone(), ..self.clone() }) == *wanted {
            return Vec::new();
        }
        let text = format!("change peer {:?}: how it is reached", self.name);
        vec![InPlace { step: "address", text }]
    }
}
