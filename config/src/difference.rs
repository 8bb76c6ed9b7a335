//! The way from one configuration to another, as a list of changes. It is a pure function: the
//! running configuration, the wanted one and the difference are values.
//!
//! ```text
//!   revoke  ▶  remove disks ─ volumes ─ pools ─ nics ─ networks ─ vfs ─ domains ─ peers
//!           ▶  add peers ─ pools ─ volumes ─ disks ─ networks ─ nics ─ domains ─ vfs,
//!              or change in place
//! ```
//! Nodes that are no longer allowed lose their access first, all at once, and also where a later
//! step fails ([`revoked`]). Removals come before additions, so that names, sockets and files are
//! free again, and an object is removed before the objects that it needs. An object that cannot be
//! changed in place is removed and added again. [`crate::kinds`] has the kinds and their needs.

use crate::change::Change;
use crate::config::Config;
use crate::kinds::Kind;
use crate::kinds::order::{adding, removing};
use crate::kinds::row::Replaced;

/// A configuration that allows no node that another configuration does not allow.
#[derive(Clone, Debug)]
pub struct Revoked {
    /// The running configuration, but with the keys of the other one. Each object is open to the
    /// nodes that both configurations allow.
    pub config: Config,
    /// The differences from the running configuration, in words.
    pub changes: Vec<String>,
}

/// The running configuration without the access that `wanted` no longer allows. The own key and
/// peers' keys are the wanted ones, a peer that goes has no keys, and each volume and network is
/// open to the nodes that both allow. Additions to the lists are left to [`changes`].
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
    for kind in Kind::all() {
        changes.extend(kind.row().revoke(&mut config.objects, &wanted.objects));
    }
    Revoked { config, changes }
}

/// The changes that lead from `running` to `wanted`, in the order in which they must be made. There
/// are none between configurations that differ only in the order of the file.
pub fn changes(running: &Config, wanted: &Config) -> Vec<Change> {
    let (running, wanted) = (&running.objects, &wanted.objects);
    let mut replaced = Replaced::new();
    for kind in adding() {
        kind.row().replaced(running, wanted, &mut replaced);
    }
    let removing = removing().into_iter();
    let adding = adding().into_iter();
    let removals = removing.flat_map(|kind| kind.row().removals(running, wanted, &replaced));
    let additions = adding.flat_map(|kind| kind.row().additions(running, wanted, &replaced));
    removals.chain(additions).collect()
}

/// The keys of the file as a whole that differ and take a restart of the node.
pub fn needs_restart(running: &Config, wanted: &Config) -> Vec<&'static str> {
    let is_said = |key| running.lines.has(key) || wanted.lines.has(key);
    let different = [
        ("name", running.name != wanted.name),
        ("listen", running.listen != wanted.listen),
        ("shm", running.shm != wanted.shm),
        // A default that follows from another name is not a key that differs.
        ("fabric", running.fabric != wanted.fabric && is_said("fabric")),
        ("trust", running.trust != wanted.trust),
        // A reload reads another key file; whether sessions are sealed is decided at the start.
        ("key", running.key.is_some() != wanted.key.is_some()),
        ("control", running.control != wanted.control),
        ("[sidecores]", running.sidecores != wanted.sidecores),
        ("[directories]", running.directories != wanted.directories),
        ("[link]", running.link != wanted.link),
        ("[cluster]", running.cluster != wanted.cluster),
        ("user", running.user != wanted.user),
        ("privileges", running.privileges != wanted.privileges),
        ("watchdog", running.watchdog != wanted.watchdog),
        ("metrics-listen", running.metrics_listen != wanted.metrics_listen),
        ("[memory]", running.memory != wanted.memory),
    ];
    different.into_iter().filter(|(_, different)| *different).map(|(key, _)| key).collect()
}
