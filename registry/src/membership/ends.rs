//! The ends of nodes' processes, as the nodes' agents have proved them: other nodes wait for no
//! lease of a process that answers nothing any more.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{ChangePlan, ClusterKeys, Membership};
use crate::error::RegistryError;
use crate::key::Key;
use crate::record::{StoredRecord, fault_of_texts, read, stored};
use crate::registry::{EntryChange, Registry, RegistryWatch};
use crate::swap::Swap;

/// The most lives of a record: with names of 64 bytes they are below a value's limit.
pub const END_LIVES_MAX: usize = 512;

/// The last process of a node that was killed, at `/vrio/ID/ends/NAME`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndRecord {
    /// The lives of its copies, in hexadecimal digits, by volume. No other process goes on with
    /// one of them.
    pub lives: BTreeMap<String, String>,
    /// When it ended, in seconds since 1970.
    pub ended_s: u64,
}

impl StoredRecord for EndRecord {
    fn fault(&self, _: &str) -> Option<&'static str> {
        if self.lives.len() > END_LIVES_MAX {
            return Some("it has more lives than a node tells");
        }
        let is_life = |life: &String| life.len() == 16 && u64::from_str_radix(life, 16).is_ok();
        if !self.lives.values().all(is_life) {
            return Some("a life has not 16 hexadecimal digits");
        }
        fault_of_texts(self.lives.keys())
    }
}

impl Membership<'_> {
    /// Tells that a process of a node has ended, in place of the node's process before.
    ///
    /// # Errors
    /// When the registry does not answer.
    pub fn tell_end(&mut self, node: &str, ended: &EndRecord) -> Result<(), RegistryError> {
        let key = self.keys.end(node)?;
        self.change(|this| {
            // The last record is not read: a damaged one must go as well.
            let Some(entry) = this.registry.get(&key)?.entry else {
                let swap = Swap::new().absent(&key).put(&key, stored(ended));
                return Ok(ChangePlan::Try(swap, ()));
            };
            if read(&key, &entry.value).is_ok_and(|found: EndRecord| found == *ended) {
                return Ok(ChangePlan::Done(()));
            }
            let swap = Swap::new().unchanged(&key, entry.revision).put(&key, stored(ended));
            Ok(ChangePlan::Try(swap, ()))
        })
    }
}

/// The ends of the processes of a cluster's nodes, as they come.
#[derive(Debug)]
pub struct EndsWatch {
    /// The records of the beginning.
    first: Vec<(String, EndRecord)>,
    watch: Box<dyn RegistryWatch>,
}

impl EndsWatch {
    /// All ends that are there, and from then on each end that is told.
    ///
    /// # Errors
    /// When the registry does not answer.
    pub fn open(registry: &mut dyn Registry, keys: &ClusterKeys) -> Result<Self, RegistryError> {
        let above = keys.root.below("ends")?;
        let listing = registry.list(&above)?;
        let entries = listing.entries.iter();
        let first = entries.filter_map(|it| readable(&it.key, &it.value)).collect();
        Ok(Self { first, watch: registry.watch(&above, listing.stamp.revision)? })
    }

    /// The next ones with their nodes; none if there are none for so long. A record that cannot be
    /// read is left out: the status of the cluster has its fault.
    ///
    /// # Errors
    /// When the watch has ended, and is of no use any more.
    pub fn next(&mut self, patience: Duration) -> Result<Vec<(String, EndRecord)>, RegistryError> {
        if !self.first.is_empty() {
            return Ok(std::mem::take(&mut self.first));
        }
        let events = self.watch.next(patience)?;
        Ok(events
            .iter()
            .filter_map(|event| match &event.change {
                EntryChange::Put(value) => readable(&event.key, value),
                EntryChange::Deleted => None,
            })
            .collect())
    }
}

fn readable(key: &Key, value: &[u8]) -> Option<(String, EndRecord)> {
    Some((key.name().to_owned(), read(key, value).ok()?))
}
