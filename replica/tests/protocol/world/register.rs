//! The promise for one sector: a linearizable register whose flushed content is never lost.
//!
//! The register keeps all states in which it may be, as far as clients can tell. A state is a value
//! and the outcomes of requests that took effect and have not been answered yet.

use std::collections::{BTreeMap, BTreeSet};

use super::Value;

/// A request that was sent and not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Pending {
    Write(Value),
    Read,
}

/// A client, or one that has gone and left a request behind.
pub(crate) type Caller = u16;

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Possible {
    value: Value,
    outcomes: BTreeMap<Caller, Value>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Register {
    states: BTreeSet<Possible>,
    pending: BTreeMap<Caller, Pending>,
    /// The values that it may have had since the start of the last flush that completed.
    unflushed: BTreeSet<Value>,
    /// The same for flushes under way.
    flushes: BTreeMap<Caller, BTreeSet<Value>>,
}

impl Register {
    pub(crate) fn new() -> Self {
        Self {
            states: BTreeSet::from([Possible { value: 0, outcomes: BTreeMap::new() }]),
            pending: BTreeMap::new(),
            unflushed: BTreeSet::from([0]),
            flushes: BTreeMap::new(),
        }
    }

    pub(crate) fn write(&mut self, caller: Caller, value: Value) {
        self.pending.insert(caller, Pending::Write(value));
        self.unflushed.insert(value);
        for values in self.flushes.values_mut() {
            values.insert(value);
        }
    }

    pub(crate) fn read(&mut self, caller: Caller) {
        self.pending.insert(caller, Pending::Read);
    }

    pub(crate) fn flush(&mut self, caller: Caller) {
        let values = self.reachable().into_iter().map(|state| state.value).collect();
        self.flushes.insert(caller, values);
    }

    /// All states to which requests under way can lead.
    fn reachable(&self) -> BTreeSet<Possible> {
        let mut found = self.states.clone();
        let mut new: Vec<Possible> = found.iter().cloned().collect();
        while let Some(state) = new.pop() {
            for (caller, pending) in &self.pending {
                if state.outcomes.contains_key(caller) {
                    continue;
                }
                let mut next = state.clone();
                if let Pending::Write(value) = pending {
                    next.value = *value;
                }
                next.outcomes.insert(*caller, next.value);
                if found.insert(next.clone()) {
                    new.push(next);
                }
            }
        }
        found
    }

    /// A write was answered, or a read with this value. Says whether that can be.
    pub(crate) fn answered(&mut self, caller: Caller, read: Option<Value>) -> bool {
        let Some(pending) = self.pending.get(&caller) else { return true };
        let expected = match pending {
            Pending::Write(value) => *value,
            Pending::Read => read.unwrap_or_default(),
        };
        let mut states = self.reachable();
        states.retain(|state| state.outcomes.get(&caller) == Some(&expected));
        let without = |mut state: Possible| {
            state.outcomes.remove(&caller);
            state
        };
        self.states = states.into_iter().map(without).collect();
        self.pending.remove(&caller);
        !self.states.is_empty()
    }

    pub(crate) fn flushed(&mut self, caller: Caller) {
        if let Some(values) = self.flushes.remove(&caller) {
            self.unflushed = values;
        }
    }

    /// The request had no effect and never will.
    pub(crate) fn refused(&mut self, caller: Caller) {
        self.pending.remove(&caller);
        self.flushes.remove(&caller);
        self.rename(caller, None);
    }

    /// The client has gone; its write may take effect at any time.
    pub(crate) fn left(&mut self, caller: Caller, ghost: Caller) {
        self.flushes.remove(&caller);
        let pending = self.pending.remove(&caller);
        let is_write = matches!(pending, Some(Pending::Write(_)));
        self.pending.extend(pending.filter(|_| is_write).map(|pending| (ghost, pending)));
        self.rename(caller, is_write.then_some(ghost));
    }

    fn rename(&mut self, caller: Caller, to: Option<Caller>) {
        let renamed = |mut state: Possible| {
            let outcome = state.outcomes.remove(&caller);
            state.outcomes.extend(to.zip(outcome));
            state
        };
        self.states = std::mem::take(&mut self.states).into_iter().map(renamed).collect();
    }

    /// Volatile state of members is lost, and this is there; the next loss of power may take it
    /// back to another value. A copy that runs on may also have the writes under way. Says whether
    /// that can be.
    pub(crate) fn lost(
        &mut self,
        value: Value,
        may_become: BTreeSet<Value>,
        runs_on: bool,
    ) -> bool {
        let may_be = self.unflushed.contains(&value);
        let under_way = self.pending.values().filter_map(|pending| match pending {
            Pending::Write(value) => Some(*value),
            Pending::Read => None,
        });
        let values: BTreeSet<_> = under_way.filter(|_| runs_on).chain([value]).collect();
        self.unflushed = may_become.into_iter().chain(values.iter().copied()).collect();
        let possible = |value| Possible { value, outcomes: BTreeMap::new() };
        self.states = values.into_iter().map(possible).collect();
        self.pending.clear();
        self.flushes.clear();
        may_be
    }
}
