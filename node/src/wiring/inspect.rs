//! Problems that a start with this configuration would have on this host: `vrio node --check`.
//!
//! Nothing is opened for longer than a look, nothing is made and no lock is taken, so that the
//! configuration of a running node can be looked at, too.

mod keys;
mod pools;

use std::io;
use std::net::{IpAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};

use config::{Config, PeerConfig, VolumeConfig};
use fabric::registration::DomainKey;
use peer::Allow;
use rustix::fs::{Access, access};
use rustix::thread::{CpuSet, sched_setaffinity};
use sessions::{ObjectError, keys::unix_s};
use volume::backend::BackendFile;
use volume::backend::{FileError, FileVolume};

use super::node::is_directory;
use super::volumes;

/// Every problem of a start, and each key that keeps a peer or a tenant out.
pub(crate) fn problems(config: &Config) -> Vec<ObjectError> {
    let at = |key: &str, object: &str, text: String| ObjectError {
        place: config.place(&config.lines, key),
        object: object.to_owned(),
        text,
    };
    let mut all = keys::problems(config);
    all.extend(config.peers.iter().flat_map(|peer| peer_keys(config, peer)));
    all.extend(allowed(config));
    let addresses = [("listen", config.listen), ("metrics-listen", config.metrics_listen)];
    for (key, address) in addresses.into_iter().filter_map(|(key, it)| Some((key, it?))) {
        all.extend(not_ours(address.ip()).map(|text| at(key, key, text)));
    }
    let cores = config.sidecores.cores.iter().flatten();
    let missing = cores.filter_map(|core| no_core(*core));
    all.extend(missing.map(|text| at("sidecores", "[sidecores]", text)));
    let section = |text| at("directories", "[directories]", text);
    let homes = &config.directories;
    all.extend(homes.volumes.iter().filter_map(|path| not_there(path)).map(section));
    let made = [&homes.sockets, &homes.captures].into_iter().flatten();
    let state = homes.state.as_ref().filter(|_| !config.volumes.is_empty());
    // When a directory is missing, its own problem is enough: a path in it has no second one.
    let state = state.filter(|path| path.parent().is_some_and(Path::exists));
    all.extend(made.chain(state).filter_map(not_makeable).map(section));
    for volume in &config.volumes {
        let text = file(volume, &homes.volumes);
        all.extend(text.map(|text| ObjectError {
            place: config.place(&volume.lines, "backend"),
            object: format!("volume {:?}", volume.name),
            text,
        }));
    }
    all.extend(pools::problems(config));
    for domain in &config.domains {
        let error = DomainKey::read(&domain.key).err();
        all.extend(error.map(|error| ObjectError {
            place: config.place(&domain.lines, "key"),
            object: format!("domain {:?}", domain.name),
            text: error.to_string(),
        }));
    }
    all
}

/// Keys of a peer that admit no peer.
fn peer_keys(config: &Config, peer: &PeerConfig) -> Vec<ObjectError> {
    let now_s = unix_s();
    let problem = |line: &str, text| ObjectError {
        place: config.place(&peer.lines, line),
        object: format!("peer {:?}", peer.name),
        text,
    };
    let line = if peer.lines.has("keys") { "keys" } else { "key" };
    let mut all = Vec::new();
    for key in &peer.keys {
        if is_placeholder(&key.key.0) {
            let text = format!(
                "{line:?}: {} is a placeholder; write the key that `vrio key show` prints on {}",
                key.key, peer.name
            );
            all.push(problem(line, text));
        }
        let ended_s = key.expires_unix_s.filter(|end_s| *end_s <= now_s);
        let ended = ended_s.and_then(|end_s| i64::try_from(end_s).ok());
        if let Some(end) = ended.and_then(|end_s| jiff::Timestamp::from_second(end_s).ok()) {
            let text = format!(
                "{line:?}: {} expired at {end} and is refused; make a new key on {} and write it \
                 here, or correct \"expires\"",
                key.key, peer.name
            );
            all.push(problem(line, text));
        }
    }
    all
}

/// Attachment keys of `allow` for which no secret exists.
fn allowed(config: &Config) -> Vec<ObjectError> {
    let volumes = config.volumes.iter().map(|it| ("volume", &it.name, &it.lines, &it.allow));
    let networks = config.networks.iter().map(|it| ("network", &it.name, &it.lines, &it.allow));
    let mut all = Vec::new();
    for (kind, name, lines, allow) in volumes.chain(networks) {
        let keys = allow.iter().filter_map(|Allow { node, key }| Some((node, key.as_ref()?)));
        for (node, key) in keys.filter(|(_, key)| is_placeholder(&key.0)) {
            all.push(ObjectError {
                place: config.place(lines, "allow"),
                object: format!("{kind} {name:?}"),
                text: format!(
                    "\"allow\": the key {key} of {node:?} is a placeholder; write the key that \
                     `vrio key show` prints for the attachment key there"
                ),
            });
        }
    }
    all
}

/// Whether the key is a placeholder: a text, or all zeroes. Of real keys one in 10^13 looks like
/// this.
fn is_placeholder(key: &[u8]) -> bool {
    key.iter().all(|byte| (b' '..=b'~').contains(byte)) || key.iter().all(|byte| *byte == 0)
}

fn not_ours(address: IpAddr) -> Option<String> {
    let udp = UdpSocket::bind((address, 0)).map(drop);
    let error = udp.and_then(|()| TcpListener::bind((address, 0)).map(drop)).err()?;
    Some(format!("{address} cannot be used: {error}; name an address of this host"))
}

/// A thread of its own tries the core, and ends with the attempt.
fn no_core(core: usize) -> Option<String> {
    let pin = move || {
        let mut only = CpuSet::new();
        if core >= CpuSet::MAX_CPU {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        only.set(core);
        sched_setaffinity(None, &only).map_err(io::Error::from)
    };
    let error: io::Error = std::thread::spawn(pin).join().ok()?.err()?;
    let there = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let there = there.trim();
    Some(format!(
        "no sidecore can run on core {core}: {error}; the host has {there}, and this process may \
         be restricted to fewer"
    ))
}

/// A directory that must exist: it is not made, since it may not be mounted yet.
fn not_there(path: &Path) -> Option<String> {
    let found = std::fs::metadata(path).and_then(is_directory);
    let error = match found {
        Ok(()) => access(path, Access::READ_OK | Access::EXEC_OK).err().map(io::Error::from),
        Err(error) => Some(error),
    };
    error.map(|error| format!("cannot use {path:?}: {error}; make it, or mount its file system"))
}

/// A directory that the node makes if it is missing, and writes into.
fn not_makeable(path: &PathBuf) -> Option<String> {
    let found = path.ancestors().find(|it| it.exists()).unwrap_or(Path::new("/"));
    let usable = std::fs::metadata(found).and_then(is_directory);
    let usable = usable
        .and_then(|()| access(found, Access::WRITE_OK | Access::EXEC_OK).map_err(io::Error::from));
    let error = usable.err()?;
    Some(match found == path {
        true => format!("cannot write into {path:?}: {error}; make it the node's user's"),
        false => format!("cannot make {path:?}: {found:?}: {error}; make it by hand"),
    })
}

/// The problem with the file of a volume.
fn file(volume: &VolumeConfig, homes: &[PathBuf]) -> Option<String> {
    let BackendFile { path, size_bytes } = volume.backend.file()?;
    let path = path.to_path_buf();
    if let Err(text) = volumes::inside(&path, homes) {
        return Some(text);
    }
    let found = match std::fs::metadata(&path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // A directory that is missing has been named already if it is one of the volumes'.
            let home = path.parent().unwrap_or(Path::new("/"));
            return match (home.is_dir(), size_bytes) {
                (true, Some(_)) => not_makeable(&path),
                (true, None) => Some(FileError::Missing { path }.to_string()),
                (false, _) if homes.iter().any(|it| it == home) => None,
                (false, _) => Some(FileError::NoDirectory { path }.to_string()),
            };
        }
        Err(source) => {
            return Some(FileError::NotReadable { path, source }.to_string());
        }
    };
    if found.is_dir() {
        return Some(FileError::Directory { path }.to_string());
    }
    if let Err(error) = access(&path, Access::READ_OK) {
        return Some(FileError::NotReadable { path, source: error.into() }.to_string());
    }
    if !volume.read_only
        && let Err(error) = access(&path, Access::WRITE_OK)
    {
        return Some(FileError::NotWritable { path, source: error.into() }.to_string());
    }
    let actual_bytes = found.len();
    match size_bytes {
        None if found.is_file() && actual_bytes == 0 => Some(FileError::Empty { path }.to_string()),
        Some(wanted_bytes) if found.is_file() && actual_bytes > 0 => {
            let wanted_bytes = FileVolume::remembered_bytes(&path, wanted_bytes);
            (actual_bytes < wanted_bytes)
                .then(|| FileError::TooSmall { path, actual_bytes, wanted_bytes }.to_string())
        }
        _ => None,
    }
}
