//! Which attachments may use a volume or a network; the list changes while attachments use it.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use parking_lot::{Mutex, MutexGuard};

use crate::proof::AttachmentKey;

/// Lets a node's attachments in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allow {
    /// The node.
    pub node: String,
    /// Only those that prove that they have this key.
    pub key: Option<AttachmentKey>,
}

impl fmt::Display for Allow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.key {
            Some(key) => write!(f, "{} (key {key})", self.node),
            None => f.write_str(&self.node),
        }
    }
}

impl Allow {
    /// All attachments of a node.
    pub fn node(name: &str) -> Self {
        Self { node: name.to_owned(), key: None }
    }
}

/// Whether any entry of a list lets in a node's attachment that has proved `key`, if any.
pub fn allows(list: &[Allow], node: &str, key: Option<AttachmentKey>) -> bool {
    let mut entries = list.iter().filter(|entry| entry.node == node);
    entries.any(|entry| entry.key.is_none_or(|wanted| key == Some(wanted)))
}

/// Changes of all lists of this process.
static CHANGES: AtomicU64 = AtomicU64::new(0);

/// Another number after each change of any list of this process: a reader that has looked
/// everything up since the last change has nothing to look up again.
pub fn list_changes() -> u64 {
    CHANGES.load(SeqCst)
}

/// A list of [`Allow`]s that several threads read, with the number of changes to it.
#[derive(Debug)]
pub struct AllowList {
    list: Mutex<Vec<Allow>>,
    generation: AtomicU64,
}

impl AllowList {
    /// A list that has not changed yet.
    pub fn new(list: Vec<Allow>) -> Self {
        Self { list: Mutex::new(list), generation: AtomicU64::new(0) }
    }

    /// Whether a node's attachment that has proved `key`, if any, may attach.
    pub fn allows(&self, node: &str, key: Option<AttachmentKey>) -> bool {
        allows(&self.guard(), node, key)
    }

    /// Whether any entry is of this node, also one that asks for a key.
    pub fn names(&self, node: &str) -> bool {
        self.guard().iter().any(|entry| entry.node == node)
    }

    /// Whether any entry asks for this key.
    pub fn lists(&self, key: AttachmentKey) -> bool {
        self.guard().iter().any(|entry| entry.key == Some(key))
    }

    /// Replaces the list.
    pub fn set(&self, list: Vec<Allow>) {
        let mut held = self.guard();
        *held = list;
        // While the list is locked: a reader of the new number reads the new list.
        self.generation.fetch_add(1, SeqCst);
        // Last: a reader of this number finds the list's own number changed.
        CHANGES.fetch_add(1, SeqCst);
    }

    /// Another number after each change.
    pub fn generation(&self) -> u64 {
        self.generation.load(SeqCst)
    }

    /// A copy of the list.
    pub fn list(&self) -> Vec<Allow> {
        self.guard().clone()
    }

    fn guard(&self) -> MutexGuard<'_, Vec<Allow>> {
        self.list.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_needs_its_name_and_where_asked_for_a_key() {
        let (alice, bob) = (AttachmentKey([1; 32]), AttachmentKey([2; 32]));
        let keyed = Allow { key: Some(alice), ..Allow::node("vm1") };
        let allowed = AllowList::new(vec![keyed, Allow::node("vm2")]);
        for (node, key, may) in [
            ("vm1", None, false),
            ("vm1", Some(bob), false),
            ("vm1", Some(alice), true),
            ("vm2", None, true),
            ("vm2", Some(bob), true),
            ("vm3", Some(alice), false),
        ] {
            assert_eq!(allowed.allows(node, key), may, "{node} {key:?}");
        }
        let before = allowed.generation();
        allowed.set(vec![Allow { key: Some(bob), ..Allow::node("vm1") }]);
        assert!(allowed.generation() > before);
        assert!(allowed.allows("vm1", Some(bob)) && !allowed.allows("vm1", Some(alice)));
        assert!(!allowed.allows("vm2", None));
        assert!(allowed.names("vm1") && !allowed.names("vm2"), "the key does not matter");
    }
}
