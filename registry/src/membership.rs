//! The keys of a cluster, and the changes of its records.
//!
//! ```text
//!   /vrio/ID/cluster          ClusterRecord
//!   /vrio/ID/nodes/NAME       NodeRecord       a node that has joined
//!   /vrio/ID/present/NAME     PresenceRecord   a node that is there, under a lease
//!   /vrio/ID/tokens/TOKEN     TokenRecord      a right to join, used once
//!   /vrio/ID/volumes/NAME     VolumeRecord     the copies in sync of a replicated volume
//!   /vrio/ID/placements/NAME  PlacementRecord  a volume that the cluster has placed
//!   /vrio/ID/ends/NAME        EndRecord        the last process of a node that was killed
//! ```
//!
//! Each swap here has a condition on each key that it changes. So a swap whose outcome is not known
//! is tried again after its keys were read: at most one of the two is made.

mod ends;
mod presence;

pub use ends::{END_LIVES_MAX, EndRecord, EndsWatch};
pub use presence::{Kept, PRESENCE_S, PresenceKeeper};

use crate::error::RegistryError;
use crate::key::Key;
use crate::record::{
    ClusterRecord, CopyLeave, NodeRecord, PlacedCopy, PlacementRecord, PresenceRecord,
    StoredRecord, TokenRecord, VolumeRecord, read, store_text, stored,
};
use crate::registry::{Entry, Registry, Stamp};
use crate::swap::{Swap, SwapOutcome};

/// How often a change is tried again after a conflict or a lost answer.
const TRIES_MAX: usize = 8;

/// The keys of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterKeys {
    root: Key,
}

impl ClusterKeys {
    /// The keys of the cluster with this id.
    ///
    /// # Errors
    /// When the id is none.
    pub fn new(id: &str) -> Result<Self, RegistryError> {
        Ok(Self { root: Key::new(format!("/vrio/{id}"))? })
    }

    fn cluster(&self) -> Result<Key, RegistryError> {
        self.root.below("cluster")
    }

    fn of(&self, kind: &str, name: &str) -> Result<Key, RegistryError> {
        self.root.below(kind)?.below(name)
    }

    fn node(&self, name: &str) -> Result<Key, RegistryError> {
        self.of("nodes", name)
    }

    fn present(&self, name: &str) -> Result<Key, RegistryError> {
        self.of("present", name)
    }

    fn token(&self, id: &str) -> Result<Key, RegistryError> {
        self.of("tokens", id)
    }

    fn volume(&self, name: &str) -> Result<Key, RegistryError> {
        self.of("volumes", name)
    }

    fn placement(&self, name: &str) -> Result<Key, RegistryError> {
        self.of("placements", name)
    }

    fn end(&self, name: &str) -> Result<Key, RegistryError> {
        self.of("ends", name)
    }
}

/// A node as the registry knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownNode {
    /// The node.
    pub record: NodeRecord,
    /// Its presence; none while it is away.
    pub presence: Option<PresenceRecord>,
}

/// All records of a cluster at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterContents {
    /// The registry at that moment.
    pub stamp: Stamp,
    /// The cluster; none before its first token.
    pub cluster: Option<ClusterRecord>,
    /// The nodes in the order of their names.
    pub nodes: Vec<KnownNode>,
    /// The tokens with their ids.
    pub tokens: Vec<(String, TokenRecord)>,
    /// The volumes with their names.
    pub volumes: Vec<(String, VolumeRecord)>,
    /// The placed volumes with their names.
    pub placements: Vec<(String, PlacementRecord)>,
    /// Records that cannot be read.
    pub unreadable: Vec<RegistryError>,
}

/// A volume's record, and the revision that changed it last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldVolume {
    /// The record.
    pub record: VolumeRecord,
    /// The revision.
    pub revision: u64,
    /// The id of the registry.
    pub store: u64,
}

/// A volume's placement, and the revision that changed it last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldPlacement {
    /// The placement.
    pub record: PlacementRecord,
    /// The revision.
    pub revision: u64,
}

/// The next step of a change, after its keys were read.
enum ChangePlan<T> {
    /// Nothing has to be changed.
    Done(T),
    /// This swap makes the change.
    Try(Swap, T),
}

/// The records of a cluster in a registry.
#[derive(Debug)]
pub struct Membership<'a> {
    registry: &'a mut dyn Registry,
    keys: &'a ClusterKeys,
}

impl<'a> Membership<'a> {
    /// The records of the cluster with these keys.
    pub fn new(registry: &'a mut dyn Registry, keys: &'a ClusterKeys) -> Self {
        Self { registry, keys }
    }

    fn read<T: StoredRecord>(&mut self, key: &Key) -> Result<Option<(T, u64)>, RegistryError> {
        let Some(entry) = self.registry.get(key)?.entry else { return Ok(None) };
        Ok(Some((read(key, &entry.value)?, entry.revision)))
    }

    /// Plans a change and tries it until it is made, or is no longer needed.
    fn change<T>(
        &mut self,
        mut plan: impl FnMut(&mut Self) -> Result<ChangePlan<T>, RegistryError>,
    ) -> Result<T, RegistryError> {
        let mut last = "other changes were in its way".to_owned();
        let mut is_known = true;
        for _ in 0..TRIES_MAX {
            // After an unknown outcome an error is no proof that nothing was changed.
            let unknown = |error: RegistryError, is_known| match is_known {
                true => error,
                false => RegistryError::OutcomeUnknown { reason: error.to_string() },
            };
            let planned = match plan(self) {
                // The keys were read, so this is about what is there now.
                Err(error @ RegistryError::Refused { .. }) => return Err(error),
                planned => planned.map_err(|error| unknown(error, is_known))?,
            };
            let (swap, answer) = match planned {
                ChangePlan::Done(answer) => return Ok(answer),
                ChangePlan::Try(swap, answer) => (swap, answer),
            };
            match self.registry.swap(&swap).map_err(|error| unknown(error, is_known))? {
                SwapOutcome::Made { .. } => return Ok(answer),
                SwapOutcome::Lost => {}
                SwapOutcome::Unknown { reason } => (last, is_known) = (reason, false),
            }
        }
        Err(if is_known {
            RegistryError::Away { reason: last }
        } else {
            RegistryError::OutcomeUnknown { reason: last }
        })
    }

    /// Writes the cluster's own record if there is none.
    ///
    /// # Errors
    /// When the registry does not answer, or it has another record under this id.
    pub fn found(&mut self, wanted: &ClusterRecord) -> Result<(), RegistryError> {
        let key = self.keys.cluster()?;
        self.change(|this| match this.read::<ClusterRecord>(&key)? {
            Some((found, _)) if (&found.id, &found.name) == (&wanted.id, &wanted.name) => {
                Ok(ChangePlan::Done(()))
            }
            Some((found, _)) => Err(refused(format!(
                "the registry has the cluster {:?} under the id {}; this directory is for the \
                 cluster {:?}",
                found.name, found.id, wanted.name
            ))),
            None => Ok(ChangePlan::Try(Swap::new().absent(&key).put(&key, stored(wanted)), ())),
        })
    }

    /// Writes a token that does not exist.
    ///
    /// # Errors
    /// When the registry does not answer, or there is such a token.
    pub fn issue(&mut self, id: &str, token: &TokenRecord) -> Result<(), RegistryError> {
        let key = self.keys.token(id)?;
        self.change(|this| match this.read::<TokenRecord>(&key)? {
            Some((found, _)) if &found == token => Ok(ChangePlan::Done(())),
            Some(_) => Err(refused("there is such a token already".to_owned())),
            None => Ok(ChangePlan::Try(Swap::new().absent(&key).put(&key, stored(token)), ())),
        })
    }

    /// Has a node join by a token, which no other node can use then. A node that has joined by this
    /// token already has joined.
    ///
    /// # Errors
    /// Why the node may not join, or when the registry does not answer.
    pub fn join(&mut self, node: &NodeRecord, now_s: u64) -> Result<(), RegistryError> {
        let [token_key, node_key, cluster] =
            [self.keys.token(&node.token)?, self.keys.node(&node.name)?, self.keys.cluster()?];
        self.change(|this| {
            if this.read::<ClusterRecord>(&cluster)?.is_none() {
                let text = "the registry does not know this cluster; it may have been made anew";
                return Err(refused(text.to_owned()));
            }
            let joined = this.read::<NodeRecord>(&node_key)?.map(|(found, _)| found);
            let Some((mut token, revision)) = this.read::<TokenRecord>(&token_key)? else {
                let text =
                    "the registry does not know this token; make one by `vrio cluster token`";
                return Err(refused(text.to_owned()));
            };
            if let Some(user) = &token.used_by {
                let is_this = |found: &NodeRecord| {
                    (&found.name, &found.key, &found.token) == (&node.name, &node.key, &node.token)
                };
                if joined.as_ref().is_some_and(is_this) {
                    return Ok(ChangePlan::Done(()));
                }
                return Err(refused(format!(
                    "node {user:?} has used this token, and a token is for one node; make one by \
                     `vrio cluster token`"
                )));
            }
            if now_s >= token.ends_s {
                let text = "this token has expired; make one by `vrio cluster token`";
                return Err(refused(text.to_owned()));
            }
            if joined.is_some() {
                return Err(refused(format!(
                    "the cluster has a node {:?}; choose another name, or run `vrio cluster remove \
                     {}` if that node is gone for good",
                    node.name, node.name
                )));
            }
            (token.used_by, token.used_s) = (Some(node.name.clone()), Some(now_s));
            let swap = Swap::new().unchanged(&token_key, revision).absent(&node_key);
            let swap = swap.put(&token_key, stored(&token)).put(&node_key, stored(node));
            Ok(ChangePlan::Try(swap, ()))
        })
    }

    /// A node that has joined.
    ///
    /// # Errors
    /// When there is no such node, or the registry does not answer.
    pub fn node(&mut self, name: &str) -> Result<NodeRecord, RegistryError> {
        let key = self.keys.node(name)?;
        let found = self.read::<NodeRecord>(&key)?.map(|(found, _)| found);
        found.ok_or_else(|| refused(format!("the cluster has no node {name:?}")))
    }

    /// Removes a node for good, also if it is present. Its agent is refused from then on.
    ///
    /// # Errors
    /// When the registry does not answer.
    pub fn evict(&mut self, name: &str) -> Result<(), RegistryError> {
        let [node, present] = [self.keys.node(name)?, self.keys.present(name)?];
        let end = self.keys.end(name)?;
        self.change(|this| {
            let mut swap = Swap::new();
            for key in [&node, &present, &end] {
                swap = match this.registry.get(key)?.entry {
                    Some(entry) => swap.unchanged(key, entry.revision).delete(key),
                    None => swap.absent(key),
                };
            }
            match swap.changes().is_empty() {
                true => Ok(ChangePlan::Done(())),
                false => Ok(ChangePlan::Try(swap, ())),
            }
        })
    }

    /// Removes a node that is away, so that its name is free.
    ///
    /// # Errors
    /// When there is no such node, it is present, or the registry does not answer.
    pub fn remove(&mut self, name: &str) -> Result<(), RegistryError> {
        let [node, present] = [self.keys.node(name)?, self.keys.present(name)?];
        let end = self.keys.end(name)?;
        let mut tried = false;
        self.change(|this| {
            // The record is not read: a damaged one must go as well.
            let Some(revision) = this.registry.get(&node)?.entry.map(|entry| entry.revision) else {
                if tried {
                    return Ok(ChangePlan::Done(()));
                }
                return Err(refused(format!("the cluster has no node {name:?}")));
            };
            if this.registry.get(&present)?.entry.is_some() {
                let text =
                    format!("node {name:?} is present; stop it first, or evict it by `--revoke`");
                return Err(refused(text));
            }
            tried = true;
            let swap = Swap::new().unchanged(&node, revision).absent(&present).delete(&node);
            let swap = match this.registry.get(&end)?.entry {
                Some(entry) => swap.unchanged(&end, entry.revision).delete(&end),
                None => swap.absent(&end),
            };
            Ok(ChangePlan::Try(swap, ()))
        })
    }

    /// Writes the placement of a volume that the cluster does not know.
    ///
    /// # Errors
    /// When the cluster knows such a volume, or the registry does not answer.
    pub fn place_volume(
        &mut self,
        name: &str,
        placement: &PlacementRecord,
    ) -> Result<(), RegistryError> {
        let [placed, volume] = [self.keys.placement(name)?, self.keys.volume(name)?];
        self.change(|this| {
            match this.read::<PlacementRecord>(&placed)? {
                Some((found, _)) if &found == placement => return Ok(ChangePlan::Done(())),
                Some(_) => {
                    return Err(refused(format!("the cluster has a volume {name:?} already")));
                }
                None => {}
            }
            if this.registry.get(&volume)?.entry.is_some() {
                return Err(refused(format!(
                    "the cluster has a record of a volume {name:?}, which is in the files of its \
                     nodes; choose another name"
                )));
            }
            let swap = Swap::new().absent(&placed).absent(&volume);
            Ok(ChangePlan::Try(swap.put(&placed, stored(placement)), ()))
        })
    }

    /// The placement of a volume, with the revision of its last change; none of a volume that the
    /// cluster has not placed.
    ///
    /// # Errors
    /// When the registry does not answer, or the record cannot be read.
    pub fn placement(&mut self, name: &str) -> Result<Option<HeldPlacement>, RegistryError> {
        let key = self.keys.placement(name)?;
        Ok(self.read(&key)?.map(|(record, revision)| HeldPlacement { record, revision }))
    }

    /// Changes the placement of a volume. `change` is given the volume's record as well, which
    /// stays as it is if the change is made; it says why there is no change.
    ///
    /// # Errors
    /// When the cluster has not placed it, `change` refuses, or the registry does not answer.
    pub fn change_placement(
        &mut self,
        name: &str,
        change: impl Fn(&mut PlacementRecord, Option<&VolumeRecord>) -> Result<(), String>,
    ) -> Result<(), RegistryError> {
        self.change_placed(name, true, change)
    }

    /// The same. Without `beside_record` the volume's record is not looked at, and may be damaged.
    /// When no node is left that must remove its copy, the placement goes with that record.
    fn change_placed(
        &mut self,
        name: &str,
        beside_record: bool,
        change: impl Fn(&mut PlacementRecord, Option<&VolumeRecord>) -> Result<(), String>,
    ) -> Result<(), RegistryError> {
        let [placed, volume] = [self.keys.placement(name)?, self.keys.volume(name)?];
        let mut tried = false;
        self.change(|this| {
            let Some((found, revision)) = this.read::<PlacementRecord>(&placed)? else {
                return match tried {
                    true => Ok(ChangePlan::Done(())),
                    false => Err(refused(format!("the cluster has placed no volume {name:?}"))),
                };
            };
            let found_record = this.registry.get(&volume)?;
            let (entry, store) = (found_record.entry, found_record.stamp.store);
            let read_record = |entry: &Entry| read::<VolumeRecord>(&volume, &entry.value);
            let record = entry.as_ref().filter(|_| beside_record).map(read_record).transpose()?;
            if record.as_ref().is_some_and(|record| record.was_put_back(store)) {
                return Err(refused(format!(
                    "the registry was restored since the record of volume {name:?} was written, so \
                     a copy may have newer writes: docs/cluster.md, \"Restore\", and then `vrio \
                     cluster trust --volumes`"
                )));
            }
            let mut next = found.clone();
            change(&mut next, record.as_ref()).map_err(refused)?;
            if next == found {
                return Ok(ChangePlan::Done(()));
            }
            if let Some(fault) = next.fault(name) {
                return Err(refused(format!("the placement of volume {name:?}: {fault}")));
            }
            tried = true;
            let is_gone = next.removing.as_ref().is_some_and(Vec::is_empty);
            let swap = Swap::new().unchanged(&placed, revision);
            let swap = match &entry {
                Some(entry) => swap.unchanged(&volume, entry.revision),
                None => swap.absent(&volume),
            };
            let swap = match (is_gone, entry) {
                (false, _) => swap.put(&placed, stored(&next)),
                // No node has anything of it any more.
                (true, Some(_)) => swap.delete(&placed).delete(&volume),
                (true, None) => swap.delete(&placed),
            };
            Ok(ChangePlan::Try(swap, ()))
        })
    }

    /// Has these nodes remove their copies of a volume that the cluster has placed.
    ///
    /// # Errors
    /// When the cluster has not placed it, or the registry does not answer.
    pub fn remove_placed(&mut self, name: &str, nodes: &[String]) -> Result<(), RegistryError> {
        self.change_placed(name, false, |it, _| {
            let left = it.removing.take().unwrap_or_else(|| nodes.to_vec());
            it.removing = Some(left.into_iter().filter(|node| nodes.contains(node)).collect());
            Ok(())
        })
    }

    /// Notes that a node has removed its copy, of a volume that is being removed, or a copy that is
    /// out. With the last copy the placement and the volume's record go.
    ///
    /// # Errors
    /// As [`Self::remove_placed`].
    pub fn copy_removed(&mut self, name: &str, node: &str) -> Result<(), RegistryError> {
        let noted = self.change_placed(name, false, |it, _| {
            if let Some(left) = &mut it.removing {
                left.retain(|other| other != node);
            }
            for copy in &mut it.copies {
                if copy.node == node && copy.leaves == Some(CopyLeave::Out) {
                    *copy = PlacedCopy::default();
                }
            }
            Ok(())
        });
        // A placement that is gone has nothing left to note: the answer of an earlier try was lost.
        match noted {
            Err(RegistryError::Refused { .. }) => Ok(()),
            noted => noted,
        }
    }

    /// Removes a volume's record. Members that know it stop when they would change it, and members
    /// of a later volume of the name begin anew.
    ///
    /// # Errors
    /// When there is no such record, or the registry does not answer.
    pub fn forget_volume(&mut self, name: &str) -> Result<(), RegistryError> {
        let key = self.keys.volume(name)?;
        let mut tried = false;
        self.change(|this| {
            // The record is not read: a damaged one must go as well.
            match this.registry.get(&key)?.entry.map(|entry| entry.revision) {
                None if tried => Ok(ChangePlan::Done(())),
                None => Err(refused(format!("the cluster has no record of a volume {name:?}"))),
                Some(revision) => {
                    tried = true;
                    Ok(ChangePlan::Try(Swap::new().unchanged(&key, revision).delete(&key), ()))
                }
            }
        })
    }

    /// Adds to a swap the condition that nodes are away.
    ///
    /// # Errors
    /// When one of them is present, or the registry does not answer.
    pub fn with_nodes_away(
        &mut self,
        mut swap: Swap,
        nodes: &[String],
    ) -> Result<Swap, RegistryError> {
        for name in nodes {
            let key = self.keys.present(name)?;
            if self.registry.get(&key)?.entry.is_some() {
                return Err(refused(format!(
                    "node {name:?} is present, and its copy has not answered: it may have newer \
                     writes, or serve. Have it answer, or stop the node; a node that was killed is \
                     present for 15 s more"
                )));
            }
            swap = swap.absent(&key);
        }
        Ok(swap)
    }

    /// All records.
    ///
    /// # Errors
    /// When the registry does not answer.
    pub fn contents(&mut self) -> Result<ClusterContents, RegistryError> {
        let listing = self.registry.list(&self.keys.root)?;
        let mut contents = ClusterContents {
            stamp: listing.stamp,
            cluster: None,
            nodes: Vec::new(),
            tokens: Vec::new(),
            volumes: Vec::new(),
            placements: Vec::new(),
            unreadable: Vec::new(),
        };
        let mut present = Vec::new();
        let rest = |key: &Key| {
            key.as_str().strip_prefix(&self.keys.root.prefix()).unwrap_or_default().to_owned()
        };
        for entry in &listing.entries {
            let (key, value) = (&entry.key, &entry.value);
            let name = key.name().to_owned();
            let added = match rest(key).split_once('/').map_or("cluster", |(kind, _)| kind) {
                "cluster" => read(key, value).map(|it| contents.cluster = Some(it)),
                "nodes" => read(key, value)
                    .map(|record| contents.nodes.push(KnownNode { record, presence: None })),
                "present" => read(key, value).map(|it| present.push((name, it))),
                "tokens" => read(key, value).map(|it| contents.tokens.push((name, it))),
                "volumes" => read(key, value).map(|it| contents.volumes.push((name, it))),
                "placements" => read(key, value).map(|it| contents.placements.push((name, it))),
                "ends" => read::<EndRecord>(key, value).map(drop),
                // Of a newer program.
                _ => Ok(()),
            };
            contents.unreadable.extend(added.err());
        }
        for (name, presence) in present {
            if let Some(node) = contents.nodes.iter_mut().find(|node| node.record.name == name) {
                node.presence = Some(presence);
            }
        }
        Ok(contents)
    }

    /// A volume's record.
    ///
    /// # Errors
    /// When the registry does not answer, or the record cannot be read.
    pub fn volume(&mut self, name: &str) -> Result<Option<HeldVolume>, RegistryError> {
        let key = self.keys.volume(name)?;
        let found = self.registry.get(&key)?;
        let Some(entry) = found.entry else { return Ok(None) };
        let record = read(&key, &entry.value)?;
        Ok(Some(HeldVolume { record, revision: entry.revision, store: found.stamp.store }))
    }

    /// Has the records of volumes count that were written before the registry was restored, as an
    /// operator has found them to be the newest. Gives the names of the volumes.
    ///
    /// # Errors
    /// When the registry does not answer, or a record changes meanwhile.
    pub fn trust_volumes(&mut self) -> Result<Vec<String>, RegistryError> {
        let mut trusted = Vec::new();
        for (name, _) in self.contents()?.volumes {
            let Some(held) = self.volume(&name)? else { continue };
            if !held.record.was_put_back(held.store) {
                continue;
            }
            let key = self.keys.volume(&name)?;
            let next = VolumeRecord { store: store_text(held.store), ..held.record };
            let swap = Swap::new().unchanged(&key, held.revision).put(&key, stored(&next));
            match self.registry.swap(&swap)? {
                SwapOutcome::Made { .. } => trusted.push(name),
                SwapOutcome::Lost => {
                    let text = format!("the record of volume {name:?} has changed meanwhile");
                    return Err(refused(text));
                }
                SwapOutcome::Unknown { reason } => {
                    return Err(RegistryError::OutcomeUnknown { reason });
                }
            }
        }
        Ok(trusted)
    }
}

impl ClusterKeys {
    /// Adds to a swap that the placement of a volume is unchanged, or that there is none.
    ///
    /// # Errors
    /// When the name is none of a volume.
    pub fn with_placement(
        &self,
        swap: Swap,
        name: &str,
        held: Option<&HeldPlacement>,
    ) -> Result<Swap, RegistryError> {
        let key = self.placement(name)?;
        Ok(match held {
            Some(held) => swap.unchanged(&key, held.revision),
            None => swap.absent(&key),
        })
    }

    /// Adds the next record of a volume to a swap: several volumes change together. The volume must
    /// have no record, or the one that is given.
    ///
    /// # Errors
    /// When the epoch does not grow: each change of a volume has an epoch of its own.
    pub fn next_volume(
        &self,
        swap: Swap,
        name: &str,
        held: Option<&HeldVolume>,
        next: &VolumeRecord,
    ) -> Result<Swap, RegistryError> {
        let key = self.volume(name)?;
        let epoch = held.map_or(0, |held| held.record.epoch);
        if next.epoch <= epoch {
            return Err(RegistryError::invalid(format!(
                "volume {name:?} is at epoch {epoch}, so its next record cannot have epoch {}",
                next.epoch
            )));
        }
        let swap = match held {
            Some(held) => swap.unchanged(&key, held.revision),
            None => swap.absent(&key),
        };
        Ok(swap.put(&key, stored(next)))
    }
}

fn refused(what: String) -> RegistryError {
    RegistryError::Refused { what }
}

#[cfg(test)]
mod tests;
