//! A registry as a value, which memory and file have in common. Time is an argument.

use std::collections::{BTreeMap, VecDeque};

use crate::error::RegistryError;
use crate::key::Key;
use crate::limits::{ENTRIES_MAX, HISTORY_MAX, LEASE_S, LEASES_MAX, LIST_BYTES_MAX};
use crate::registry::{Entry, EntryChange, EntryEvent, Found, LeaseId, Listing, Stamp};
use crate::swap::{Condition, KeyChange, Swap};

const NS_PER_S: u64 = 1_000_000_000;

/// The value of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeldValue {
    pub(crate) value: Vec<u8>,
    pub(crate) revision: u64,
    pub(crate) lease: Option<LeaseId>,
}

/// A lease that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeaseTerm {
    pub(crate) seconds: u64,
    pub(crate) ends_ns: u64,
}

/// All of a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RegistryState {
    pub(crate) store: u64,
    pub(crate) revision: u64,
    pub(crate) entries: BTreeMap<Key, HeldValue>,
    pub(crate) leases: BTreeMap<LeaseId, LeaseTerm>,
    pub(crate) last_lease: u64,
    /// The last changes, the oldest first.
    pub(crate) history: VecDeque<EntryEvent>,
    /// The last revision that the history has forgotten.
    pub(crate) forgotten: u64,
}

/// The outcome of a swap that was tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tried {
    Made(u64),
    Lost,
}

impl RegistryState {
    /// An empty registry. Its first revision is 1, as etcd's is, so that 0 is before everything.
    pub(crate) fn new(store: u64) -> Self {
        Self {
            store,
            revision: 1,
            entries: BTreeMap::new(),
            leases: BTreeMap::new(),
            last_lease: 0,
            history: VecDeque::new(),
            forgotten: 0,
        }
    }

    pub(crate) fn stamp(&self) -> Stamp {
        Stamp { store: self.store, revision: self.revision }
    }

    /// Ends the leases whose time is over, and says whether there was one.
    pub(crate) fn expire(&mut self, now_ns: u64) -> bool {
        let over: Vec<_> = self.leases.iter().filter(|(_, term)| term.ends_ns <= now_ns).collect();
        let over: Vec<_> = over.into_iter().map(|(id, _)| *id).collect();
        over.iter().for_each(|id| self.revoke(*id));
        !over.is_empty()
    }

    pub(crate) fn get(&self, key: &Key) -> Found {
        let entry = self.entries.get(key).map(|held| entry(key, held));
        Found { stamp: self.stamp(), entry }
    }

    pub(crate) fn list(&self, above: &Key) -> Listing {
        let all = self.entries.iter().filter(|(key, _)| key.is_below(above));
        let entries = all.map(|(key, held)| entry(key, held)).collect();
        Listing { stamp: self.stamp(), entries }
    }

    /// The changes below a key after a revision.
    pub(crate) fn events(&self, above: &Key, after: u64) -> Result<Vec<EntryEvent>, RegistryError> {
        if after < self.forgotten {
            return Err(RegistryError::Compacted { oldest: self.forgotten + 1 });
        }
        let is_new = |event: &&EntryEvent| event.revision > after && event.key.is_below(above);
        Ok(self.history.iter().filter(is_new).cloned().collect())
    }

    pub(crate) fn swap(&mut self, swap: &Swap) -> Result<Tried, RegistryError> {
        swap.check()?;
        let holds = |condition: &Condition| {
            self.entries.get(&condition.key).map(|held| held.revision) == condition.revision
        };
        if !swap.conditions.iter().all(holds) {
            return Ok(Tried::Lost);
        }
        self.has_room(swap)?;
        let leases = swap.changes.iter().filter_map(|(_, change)| match change {
            KeyChange::Put { lease, .. } => *lease,
            KeyChange::Delete => None,
        });
        if leases.into_iter().any(|lease| !self.leases.contains_key(&lease)) {
            return Err(RegistryError::LeaseEnded);
        }
        let changes = swap.changes.iter().filter(|(key, change)| match change {
            KeyChange::Put { .. } => true,
            KeyChange::Delete => self.entries.contains_key(key),
        });
        let changes: Vec<_> = changes.cloned().collect();
        self.change(&changes);
        Ok(Tried::Made(self.revision))
    }

    fn has_room(&self, swap: &Swap) -> Result<(), RegistryError> {
        let is_put = |change: &KeyChange| matches!(change, KeyChange::Put { .. });
        let puts: Vec<_> = swap.changes.iter().filter(|(_, change)| is_put(change)).collect();
        let more = puts.iter().filter(|(key, _)| !self.entries.contains_key(key)).count();
        let entries = self.entries.len() + more;
        let held = self.entries.iter().map(|(key, held)| key.as_str().len() + held.value.len());
        let new = puts.iter().map(|(key, change)| key.as_str().len() + change.value_bytes());
        let bytes = held.sum::<usize>() + new.sum::<usize>();
        if !puts.is_empty() && (entries > ENTRIES_MAX || bytes > LIST_BYTES_MAX) {
            return Err(RegistryError::OutOfSpace {
                reason: format!("{entries} keys of {bytes} bytes"),
                way_out: format!(
                    "it takes {ENTRIES_MAX} keys and {LIST_BYTES_MAX} bytes: remove tokens and \
                     nodes that are gone"
                ),
            });
        }
        Ok(())
    }

    /// Makes changes by one revision, if there is any.
    fn change(&mut self, changes: &[(Key, KeyChange)]) {
        if changes.is_empty() {
            return;
        }
        self.revision += 1;
        let revision = self.revision;
        for (key, change) in changes {
            let reported = match change {
                KeyChange::Put { value, lease } => {
                    let held = HeldValue { value: value.clone(), revision, lease: *lease };
                    self.entries.insert(key.clone(), held);
                    EntryChange::Put(value.clone())
                }
                KeyChange::Delete => {
                    self.entries.remove(key);
                    EntryChange::Deleted
                }
            };
            self.history.push_back(EntryEvent { key: key.clone(), change: reported, revision });
        }
        let surplus = self.history.len().saturating_sub(HISTORY_MAX);
        // A revision is forgotten as a whole, so that a watch never sees half of a swap.
        if let Some(last) = surplus.checked_sub(1) {
            self.forget(self.history[last].revision);
        }
    }

    /// Forgets the changes up to a revision.
    pub(crate) fn forget(&mut self, revision: u64) {
        self.history.retain(|event| event.revision > revision);
        self.forgotten = self.forgotten.max(revision.min(self.revision));
    }

    pub(crate) fn grant(&mut self, seconds: u64, now_ns: u64) -> Result<LeaseId, RegistryError> {
        check_lease(seconds)?;
        if self.leases.len() >= LEASES_MAX {
            return Err(RegistryError::OutOfSpace {
                reason: format!("{LEASES_MAX} leases"),
                way_out: "wait until leases of processes that are gone have ended".to_owned(),
            });
        }
        self.last_lease += 1;
        let (id, ends_ns) = (LeaseId(self.last_lease), now_ns + seconds * NS_PER_S);
        self.leases.insert(id, LeaseTerm { seconds, ends_ns });
        Ok(id)
    }

    pub(crate) fn renew(&mut self, lease: LeaseId, now_ns: u64) -> Result<(), RegistryError> {
        let term = self.leases.get_mut(&lease).ok_or(RegistryError::LeaseEnded)?;
        term.ends_ns = now_ns + term.seconds * NS_PER_S;
        Ok(())
    }

    pub(crate) fn revoke(&mut self, lease: LeaseId) {
        self.leases.remove(&lease);
        let keys = self.entries.iter().filter(|(_, held)| held.lease == Some(lease));
        let gone: Vec<_> = keys.map(|(key, _)| (key.clone(), KeyChange::Delete)).collect();
        self.change(&gone);
    }
}

/// Checks that a lease may last that long. Each registry does so first.
///
/// # Errors
/// The limit that it breaks.
pub fn check_lease(seconds: u64) -> Result<(), RegistryError> {
    if LEASE_S.contains(&seconds) {
        return Ok(());
    }
    let [least, most] = [LEASE_S.start(), LEASE_S.end()];
    Err(RegistryError::invalid(format!("a lease lasts from {least} to {most} s, not {seconds}")))
}

fn entry(key: &Key, held: &HeldValue) -> Entry {
    let HeldValue { value, revision, lease } = held.clone();
    Entry { key: key.clone(), value, revision, lease }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        Key::new(text).unwrap()
    }

    #[test]
    fn history_forgets_whole_swaps_and_says_so() {
        let mut state = RegistryState::new(1);
        let two = Swap::new().put(&key("/a/x"), "1").put(&key("/a/y"), "1");
        for _ in 0..HISTORY_MAX {
            state.swap(&two).unwrap();
        }
        assert!(state.history.len() <= HISTORY_MAX);
        let first = state.history.front().unwrap().revision;
        assert_eq!(first, state.forgotten + 1);
        assert_eq!(state.history.iter().filter(|it| it.revision == first).count(), 2);
        let error = state.events(&key("/a"), state.forgotten - 1).unwrap_err();
        assert_eq!(error, RegistryError::Compacted { oldest: first });
        assert_eq!(state.events(&key("/a"), state.revision).unwrap(), []);
        assert_eq!(state.events(&key("/a"), state.revision - 1).unwrap().len(), 2);
    }

    #[test]
    fn a_full_registry_refuses_more_and_lets_keys_go() {
        let mut state = RegistryState::new(1);
        for at in 0..ENTRIES_MAX {
            let held = HeldValue { value: Vec::new(), revision: 1, lease: None };
            state.entries.insert(key(&format!("/a/{at}")), held);
        }
        let more = Swap::new().put(&key("/b"), "x");
        assert!(matches!(state.swap(&more), Err(RegistryError::OutOfSpace { .. })));
        assert!(matches!(state.swap(&Swap::new().delete(&key("/a/1"))), Ok(Tried::Made(2))));
        assert!(matches!(state.swap(&more), Ok(Tried::Made(3))));
    }

    #[test]
    fn leases_are_bounded_and_end_with_their_keys() {
        let mut state = RegistryState::new(1);
        assert!(state.grant(1, 0).is_err() && state.grant(601, 0).is_err());
        let lease = state.grant(2, 0).unwrap();
        assert_eq!(state.swap(&Swap::new().put_under(&key("/a"), "x", lease)), Ok(Tried::Made(2)));
        state.renew(lease, NS_PER_S).unwrap();
        assert!(!state.expire(3 * NS_PER_S - 1));
        assert!(state.expire(3 * NS_PER_S));
        assert_eq!(state.get(&key("/a")).entry, None);
        assert_eq!(state.renew(lease, 0), Err(RegistryError::LeaseEnded));
        let late = Swap::new().put_under(&key("/a"), "x", lease);
        assert_eq!(state.swap(&late), Err(RegistryError::LeaseEnded));
        for _ in 0..LEASES_MAX {
            state.grant(2, 0).unwrap();
        }
        assert!(matches!(state.grant(2, 0), Err(RegistryError::OutOfSpace { .. })));
    }
}
