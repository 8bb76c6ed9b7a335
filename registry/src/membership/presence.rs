//! A node's presence: a record under a lease that the node's agent renews.

use super::ClusterKeys;
use crate::error::RegistryError;
use crate::key::Key;
use crate::record::{NodeRecord, PresenceRecord, read, stored};
use crate::registry::{LeaseId, Registry};
use crate::swap::{Swap, SwapOutcome};

/// How long a node counts as present after its agent was heard last, in seconds. A member of etcd
/// that has lost its power does not answer, which a client notices after 8 s; then it asks another
/// member. That must not make nodes away.
pub const PRESENCE_S: u64 = 15;

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
    /// The record under the lease, and the revision of the node's own record then.
    told: Option<(PresenceRecord, u64)>,
}

impl PresenceKeeper {
    /// A keeper for the node of this name.
    pub fn new(keys: ClusterKeys, name: &str) -> Self {
        Self { keys, name: name.to_owned(), lease: None, told: None }
    }

    /// One round: renews the lease, and tells what has changed. A round each fifth of
    /// [`PRESENCE_S`] survives rounds that are lost.
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
                Ok(()) => {}
                Err(RegistryError::LeaseEnded) => (self.lease, self.told) = (None, None),
                Err(error) => return Err(error),
            }
        }
        let node_key = self.keys.node(&self.name)?;
        let Some(entry) = registry.get(&node_key)?.entry else {
            self.told = None;
            let what = format!(
                "the cluster has no node {:?}: it was removed, or never joined; `vrio node join` \
                 has it join",
                self.name
            );
            return Err(RegistryError::Refused { what });
        };
        // A node that was removed, and has joined again, has another revision.
        if self.told.as_ref().is_some_and(|(told, at)| (told, *at) == (wanted, entry.revision)) {
            return Ok(Kept::Present);
        }
        self.told = None;
        let node: NodeRecord = read(&node_key, &entry.value)?;
        if node.key.as_deref() != key {
            let what = format!(
                "node {:?} has joined with another key; use that key, or remove the node by `vrio \
                 cluster remove` and have it join again",
                self.name
            );
            return Err(RegistryError::Refused { what });
        }
        self.tell(registry, (&node_key, entry.revision), wanted)
    }

    fn tell(
        &mut self,
        registry: &mut dyn Registry,
        (node, revision): (&Key, u64),
        wanted: &PresenceRecord,
    ) -> Result<Kept, RegistryError> {
        let swap = Swap::new().unchanged(node, revision);
        let present = self.keys.present(&self.name)?;
        let swap = match registry.get(&present)?.entry {
            None => swap.absent(&present),
            Some(entry) => {
                match read::<PresenceRecord>(&present, &entry.value) {
                    Ok(found) if found.agent != wanted.agent => return Ok(Kept::Elsewhere(found)),
                    // No agent writes it, so it has no owner, and no lease perhaps.
                    Ok(_) | Err(RegistryError::Damaged { .. }) => {}
                    Err(error) => return Err(error),
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
                self.told = Some((wanted.clone(), revision));
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
