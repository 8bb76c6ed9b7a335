//! The way from one configuration to another, as a list of changes. It is a pure function: the
//! running configuration, the wanted one and the difference are values.
//!
//! ```text
//!   revoke  ▶  remove disks ─ volumes ─ nics ─ networks ─ vfs ─ domains ─ peers
//!           ▶  add peers ─ volumes ─ disks ─ networks ─ nics ─ domains ─ vfs,
//!              or change in place
//! ```
//! Nodes that are no longer allowed lose their access first, all at once, and also where a later
//! step fails ([`revoked`]). Removals come before additions, so that names, sockets and files are
//! free again, and an object is removed before the objects that it needs. An object that cannot be
//! changed in place is removed and added again. [`crate::kinds`] has the kinds and their needs.

use std::fmt;
use std::sync::Arc;

use peer::Allow;

use super::{Config, Kind};
use crate::kinds::{AnyObject, Changed, InPlace, Replaced, adding, removing};
use crate::wiring::Inside;

/// One step. In the order of [`changes`], each step finds the objects that it needs.
#[derive(Clone, Debug)]
pub struct Change {
    kind: Kind,
    name: String,
    step: ChangeStep,
}

/// The fate of the object.
#[derive(Clone, Debug)]
enum ChangeStep {
    /// The object is removed. The keys are the reasons why it is added again; none if it is gone
    /// for good.
    Remove(Vec<&'static str>),
    /// The object is started; the text names the object that it becomes a part of.
    Add(Arc<dyn AnyObject>, String),
    /// The object is changed while it is used.
    InPlace(Arc<dyn AnyObject>, InPlace),
}

impl Change {
    pub(crate) fn remove(kind: Kind, name: &str, again: Vec<&'static str>) -> Self {
        Self { kind, name: name.to_owned(), step: ChangeStep::Remove(again) }
    }

    pub(crate) fn add(kind: Kind, name: &str, object: Arc<dyn AnyObject>, to: String) -> Self {
        Self { kind, name: name.to_owned(), step: ChangeStep::Add(object, to) }
    }

    pub(crate) fn in_place(
        kind: Kind,
        name: &str,
        object: Arc<dyn AnyObject>,
        part: InPlace,
    ) -> Self {
        Self { kind, name: name.to_owned(), step: ChangeStep::InPlace(object, part) }
    }

    /// The object of the change, such as `disk "alice"`.
    pub fn object(&self) -> String {
        format!("{} {:?}", self.kind.key(), self.name)
    }

    /// Whether the change removes an object, for good or to add it again.
    pub fn removes(&self) -> bool {
        matches!(self.step, ChangeStep::Remove(_))
    }

    /// Whether a guest or a peer that uses the object notices: it waits, or needs `--force`.
    pub fn interrupts(&self) -> bool {
        self.removes() && self.kind.row().interrupts()
    }

    /// Makes the change on a running node, or leaves everything as it was. `force`: also where the
    /// object is in use.
    pub(crate) fn apply(&self, node: &Inside, force: bool) -> Changed {
        match &self.step {
            ChangeStep::Remove(_) => self.kind.row().remove(&self.name, node, force),
            ChangeStep::Add(object, _) => object.add(node),
            ChangeStep::InPlace(object, part) => object.change(part, node),
        }
    }

    /// The users that the change would interrupt on a running node; `goes` says which objects are
    /// removed before this one.
    pub(crate) fn users(&self, node: &Inside, goes: &dyn Fn(&str) -> bool) -> Vec<String> {
        match self.removes() {
            true => self.kind.row().users(&self.name, node, goes),
            false => Vec::new(),
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let object = self.object();
        match &self.step {
            ChangeStep::Remove(again) if again.is_empty() => write!(f, "remove {object}"),
            ChangeStep::Remove(again) => {
                let again = again.join(", ");
                write!(f, "remove {object}, to add it again below ({again} changed)")
            }
            ChangeStep::Add(_, to) => write!(f, "add {object}{to}"),
            ChangeStep::InPlace(_, part) => f.write_str(&part.text),
        }
    }
}

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

/// The nodes that both lists allow.
pub(crate) fn common(one: &[Allow], other: &[Allow]) -> Vec<Allow> {
    let lets_in = |list: &[Allow], entry: &Allow| {
        list.iter().any(|it| it.node == entry.node && (it.key.is_none() || it.key == entry.key))
    };
    let mut both: Vec<_> = one.iter().filter(|entry| lets_in(other, entry)).cloned().collect();
    for entry in other.iter().filter(|entry| lets_in(one, entry)) {
        if !both.contains(entry) {
            both.push(entry.clone());
        }
    }
    both
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
        ("user", running.user != wanted.user),
        ("privileges", running.privileges != wanted.privileges),
        ("watchdog", running.watchdog != wanted.watchdog),
        ("metrics-listen", running.metrics_listen != wanted.metrics_listen),
        ("[memory]", running.memory != wanted.memory),
    ];
    different.into_iter().filter(|(_, different)| *different).map(|(key, _)| key).collect()
}

/// The keys that are different. `any`: something differs, perhaps in a key that the list does not
/// have.
pub(crate) fn keys(different: &[(&'static str, bool)], any: bool) -> Vec<&'static str> {
    let keys = different.iter().filter(|(_, different)| *different);
    let keys: Vec<_> = keys.map(|(key, _)| *key).collect();
    if keys.is_empty() && any { vec!["other keys"] } else { keys }
}
