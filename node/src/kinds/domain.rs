//! `[[domain]]` and the socket at which processes join one.

use std::path::PathBuf;

use toml::Spanned;
use toml::de::DeTable;

use crate::config::read::{absolute_path, alone, beside_sockets, name, objects, socket_path};
use crate::config::reader::{Reader, Table, Value};
use crate::config::{Config, Directories, DomainConfig, check};

pub(crate) const DOMAIN_KEYS: [&str; 4] = ["name", "key", "endpoints-max", "peers"];

/// Enough for a process on each of many cores, and a third of a gibibyte of addresses; memory is
/// taken as it is used.
const ENDPOINTS_DEFAULT: u16 = 256;

pub(crate) fn domains(file: &Table<'_, '_>) -> Vec<DomainConfig> {
    objects(file, "domain", |value| domain(&value))
}

/// The `[[domain]]`s of a document that has nothing else.
pub(crate) fn domains_alone(
    reader: &Reader<'_>,
    document: &Spanned<DeTable<'_>>,
) -> Vec<DomainConfig> {
    domains(&alone(reader, document, &["domain"]))
}

fn domain(value: &Value<'_, '_>) -> Option<DomainConfig> {
    let table = value.table(&DOMAIN_KEYS)?;
    let name = table.require("name", "name = \"science\"").and_then(|value| name(&value));
    let key = table.require("key", "key = \"/etc/vrio/science.key\"");
    let key = key.and_then(|value| absolute_path(&value));
    let range = 1..=u64::from(fabric::SLOTS_MAX - fabric::GATEWAYS_MAX);
    let endpoints = table.get("endpoints-max").and_then(|value| value.integer(range));
    let peers = table.get("peers").and_then(|value| value.array()).unwrap_or_default();
    let peers = peers.iter().filter_map(crate::config::read::name).collect();
    Some(DomainConfig {
        name: name?,
        key: key?,
        endpoints_max: endpoints.map_or(ENDPOINTS_DEFAULT, |count| count as u16),
        peers,
        lines: table.lines.clone(),
    })
}

/// The socket that the file names, or one beside the control socket. One with a whole path may be
/// in a directory of its own: users who may join a domain need not get at disks' sockets.
pub(crate) fn socket(file: &Table<'_, '_>, name: &str, directories: &Directories) -> PathBuf {
    let said = file.get("fabric").and_then(|value| match value.str() {
        Some(text) if text.starts_with('/') => absolute_path(&value),
        _ => socket_path(&value, directories),
    });
    said.unwrap_or_else(|| beside_sockets(name, "fabric", directories))
}

/// What does not fit together.
pub(crate) fn consistent(reader: &Reader<'_>, config: &Config) {
    let domains = config.domains.iter().map(|it| (it.name.as_str(), &it.lines));
    check::unique(reader, "domain", "name", domains);
    for domain in &config.domains {
        let named = domain.peers.iter().enumerate();
        for (at, peer) in named {
            let text = match config.peer(peer) {
                Some(_) if !domain.peers[..at].contains(peer) => continue,
                Some(_) => format!("\"peers\": {peer:?} is there twice"),
                None => format!(
                    "\"peers\": there is no [[peer]] {peer:?}; write one with its address, or \
                     take it out of the list"
                ),
            };
            reader.note(domain.lines.of("peers"), &format!("domain {:?}", domain.name), text);
        }
    }
}
