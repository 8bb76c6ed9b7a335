//! The pools of a node, by their names.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::pool::StorePool;

/// A pool that is open, or the reason why it is not.
pub type OpenedPool = Result<Arc<StorePool>, String>;

/// The pools of a node, by their names. Volumes find theirs here when they are opened.
#[derive(Debug, Default)]
pub struct Pools {
    all: Mutex<BTreeMap<String, OpenedPool>>,
}

impl Pools {
    /// Notes a pool, or why it could not be opened.
    pub fn insert(&self, name: &str, opened: OpenedPool) {
        self.all.lock().insert(name.to_owned(), opened);
    }

    /// Forgets a pool. Volumes that are open keep it.
    pub fn remove(&self, name: &str) -> Option<OpenedPool> {
        self.all.lock().remove(name)
    }

    /// The pool of this name.
    pub fn get(&self, name: &str) -> Option<OpenedPool> {
        self.all.lock().get(name).cloned()
    }

    /// The pools that are open.
    pub fn opened(&self) -> Vec<Arc<StorePool>> {
        self.all.lock().values().filter_map(|pool| pool.as_ref().ok().cloned()).collect()
    }
}
