//! A node's presence: a record under a lease that the node's agent renews.

use super::ClusterKeys;
use crate::error::RegistryError;
use crate::record::{NodeRecord, PresenceRecord, read, stored};
use crate::registry::{LeaseId, Registry};
use crate::swap::{Swap, SwapOutcome};

/// How long a node counts as present after its agent was heard last, in seconds. An election of
/// etcd's leader takes a second or two, and must not make nodes away.
pub const PRESENCE_S: u64 = 10;

/// The outcome of a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kept {
    /// The record is there.
    Present,
    /// Another agent is present under this name: this node's last agent for some seconds more, or
    /// that of another machine.
    Elsewhere(PresenceRecord),
    /// The record is not there yet; the next round tries again.
    Later,
}

/// Keeps a node present, round by round.
#[derive(Debug)]
pub struct PresenceKeeper {
    keys: ClusterKeys,
    name: String,
    lease: Option<LeaseId>,
    /// The record under the lease.
    told: Option<PresenceRecord>,
}

impl PresenceKeeper {
    /// A keeper for the node of this name.
    pub fn new(keys: ClusterKeys, name: &str) -> Self {
        Self { keys, name: name.to_owned(), lease: None, told: None }
    }

    /// One round: renews the lease, and tells what has changed. A round each third of
    /// [`PRESENCE_S`] survives a round that is lost.
    ///
    /// # Errors
    /// When the registry does not answer, or the node is not in the cluster under this key.
    pub fn keep(
        &mut self,
        registry: &mut dyn Registry,
        key: Option<&str>,
        wanted: &PresenceRecord,
    ) -> Result<Kept, RegistryError> {
        if let Some(lease) = self.lease {
            match registry.renew(lease) {
                Ok(()) if self.told.as_ref() == Some(wanted) => return Ok(Kept::Present),
                Ok(()) => {}
                Err(RegistryError::LeaseEnded) => (self.lease, self.told) = (None, None),
                Err(error) => return Err(error),
            }
        }
        self.told = None;
        let node_key = self.keys.node(&self.name)?;
        let Some(entry) = registry.get(&node_key)?.entry else {
            let what = format!(
                "the cluster has no node {:?}: it was removed, or never joined; `vrio node join` \
                 has it join",
                self.name
            );
            return Err(RegistryError::Refused { what });
        };
        let node: NodeRecord = read(&node_key, &entry.value)?;
        if node.key.as_deref() != key {
            let what = format!(
                "node {:?} has joined with another key; use that key, or remove the node by `vrio \
                 cluster remove` and have it join again",
                self.name
            );
            return Err(RegistryError::Refused { what });
        }
        self.tell(registry, Swap::new().unchanged(&node_key, entry.revision), wanted)
    }

    fn tell(
        &mut self,
        registry: &mut dyn Registry,
        swap: Swap,
        wanted: &PresenceRecord,
    ) -> Result<Kept, RegistryError> {
        let present = self.keys.present(&self.name)?;
        let swap = match registry.get(&present)?.entry {
            None => swap.absent(&present),
            Some(entry) => {
                let found: PresenceRecord = read(&present, &entry.value)?;
                if found.agent != wanted.agent {
                    return Ok(Kept::Elsewhere(found));
                }
                swap.unchanged(&present, entry.revision)
            }
        };
        let lease = match self.lease {
            Some(lease) => lease,
            None => *self.lease.insert(registry.grant(PRESENCE_S)?),
        };
        match registry.swap(&swap.put_under(&present, stored(wanted), lease)) {
            Ok(SwapOutcome::Made { .. }) => {
                self.told = Some(wanted.clone());
                Ok(Kept::Present)
            }
            Ok(SwapOutcome::Lost | SwapOutcome::Unknown { .. }) => Ok(Kept::Later),
            Err(RegistryError::LeaseEnded) => {
                self.lease = None;
                Ok(Kept::Later)
            }
            Err(error) => Err(error),
        }
    }

    /// Has the node be away at once.
    ///
    /// # Errors
    /// When the registry does not answer; the lease then ends by itself.
    pub fn leave(&mut self, registry: &mut dyn Registry) -> Result<(), RegistryError> {
        self.told = None;
        match self.lease.take() {
            Some(lease) => registry.revoke(lease),
            None => Ok(()),
        }
    }
}
