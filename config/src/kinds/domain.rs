//! `[[domain]]` and the socket at which processes join one.

use std::path::PathBuf;

use crate::checks::Surroundings;
use crate::key_table::{SettingKey, key};
use crate::object::{InPlace, Object, keys};
use crate::reader::{Lines, Reader, TableReader, Value};
use crate::sections::Directories;
use crate::values::{absolute_path, beside_sockets, name, socket_path};

const DOMAIN_KEYS: [SettingKey; 4] = [
    key("name", "The domain's name, unique on the node."),
    key(
        "key",
        "The absolute path of a file whose only line is the domain's key: 16 to 128 \
         characters, the same for all members. The file's owner and group may read it, \
         other users must not.",
    ),
    key(
        "endpoints-max",
        "The most endpoints at once, from 1 to 4032. Default: 256. MPI needs one for each \
         process.",
    ),
    key(
        "peers",
        "The names of `[[peer]]`s whose nodes have a domain of the same name and key: \
         messages travel between these domains. Both nodes must list each other. Default: \
         none.",
    ),
];

/// Enough for a process on each of many cores, and a third of a gibibyte of addresses; memory is
/// taken as it is used.
const ENDPOINTS_DEFAULT: u16 = 256;

fn domain(value: &Value<'_, '_>) -> Option<DomainConfig> {
    let table = value.table_of(&DOMAIN_KEYS)?;
    let name = table.require("name", "name = \"science\"").and_then(|value| name(&value));
    let key = table.require("key", "key = \"/etc/vrio/science.key\"");
    let key = key.and_then(|value| absolute_path(&value));
    let range = 1..=u64::from(fabric::SLOTS_MAX - fabric::GATEWAYS_MAX);
    let endpoints = table.get("endpoints-max").and_then(|value| value.integer(range));
    let peers = table.get("peers").and_then(|value| value.array()).unwrap_or_default();
    let peers = peers.iter().filter_map(crate::values::name).collect();
    Some(DomainConfig {
        name: name?,
        key: key?,
        endpoints_max: endpoints.map_or(ENDPOINTS_DEFAULT, |count| count as u16),
        peers,
        lines: table.lines.clone(),
    })
}

/// The socket that the file names, or one beside the control socket. A whole path may lead to a
/// directory of its own: users of a domain need not reach disks' sockets.
pub(crate) fn socket(file: &TableReader<'_, '_>, name: &str, directories: &Directories) -> PathBuf {
    let said = file.get("fabric").and_then(|value| match value.str() {
        Some(text) if text.starts_with('/') => absolute_path(&value),
        _ => socket_path(&value, directories),
    });
    said.unwrap_or_else(|| beside_sockets(name, "fabric", directories))
}

/// A domain of the fabric: processes that share memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainConfig {
    /// Its name, unique on the node.
    pub name: String,
    /// The file whose only line is the key that admits processes.
    pub key: PathBuf,
    /// How many endpoints there may be at once.
    pub endpoints_max: u16,
    /// The peers that have a domain of the same name and key, to which its messages go.
    pub peers: Vec<String>,
    /// Where its keys are.
    pub lines: Lines,
}

impl Object for DomainConfig {
    const KEY: &'static str = "domain";
    const NEEDS: &'static [&'static str] = &["peer"];

    fn keys() -> &'static [SettingKey] {
        &DOMAIN_KEYS
    }

    fn read(value: &Value<'_, '_>, _directories: &Directories) -> Option<Self> {
        domain(value)
    }

    fn consistent(reader: &Reader<'_>, all: &[Self], around: &Surroundings<'_>) {
        for domain in all {
            let named = domain.peers.iter().enumerate();
            for (at, peer) in named {
                let text = match around.has("peer", peer) {
                    true if !domain.peers[..at].contains(peer) => continue,
                    true => format!("\"peers\": {peer:?} is named twice"),
                    false => format!(
                        "\"peers\": there is no [[peer]] {peer:?}; add one with its address, or \
                         remove it from the list"
                    ),
                };
                reader.note(domain.lines.of("peers"), &format!("domain {:?}", domain.name), text);
            }
        }
    }

    fn is_for_peers(&self) -> bool {
        !self.peers.is_empty()
    }

    fn replaced_for(&self, wanted: &Self) -> Vec<&'static str> {
        let different = [("endpoints-max", self.endpoints_max != wanted.endpoints_max)];
        let (lines, key, peers) = (&wanted.lines, &wanted.key, &wanted.peers);
        let (lines, key, peers) = (lines.clone(), key.clone(), peers.clone());
        let changed = Self { lines, key, peers, ..self.clone() };
        keys(&different, changed != *wanted)
    }

    fn in_place(&self, wanted: &Self) -> Vec<InPlace> {
        if (&self.key, &self.peers) == (&wanted.key, &wanted.peers) {
            return Vec::new();
        }
        let text = format!("change domain {:?}: its key or peers", self.name);
        vec![InPlace { step: "key", text }]
    }
}
