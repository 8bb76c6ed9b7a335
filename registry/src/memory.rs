//! A registry in memory, for tests and simulations: deterministic, with the faults of a real one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::error::RegistryError;
use crate::key::Key;
use crate::registry::{EntryEvent, Found, LeaseId, Listing, Registry, RegistryWatch, Stamp};
use crate::state::{RegistryState, Tried};
use crate::swap::{Swap, SwapOutcome};

/// The most swaps that wait for [`MemoryRegistry::settle`]: more would be a mistake of a test.
const LATE_MAX: usize = 64;

/// The truth about a swap whose outcome the caller is not told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownSwap {
    /// It is never made.
    Never,
    /// It was made.
    Made,
    /// It is made later, by [`MemoryRegistry::settle`], if its conditions hold then.
    Later,
}

/// A handle on a registry in memory. Clones are handles on the same registry, each of which can
/// lose its way to it alone.
#[derive(Clone, Debug)]
pub struct MemoryRegistry {
    shared: Arc<Mutex<SharedMemory>>,
    is_away: bool,
}

#[derive(Debug)]
struct SharedMemory {
    state: RegistryState,
    now_ns: u64,
    is_away: bool,
    /// The truth about the next swaps that are not answered.
    unknown: VecDeque<UnknownSwap>,
    late: VecDeque<Swap>,
    /// Watches do not see later changes than this revision.
    watched: Option<u64>,
}

/// A registry's content at a moment.
#[derive(Clone, Debug)]
pub struct MemoryBackup(RegistryState);

impl MemoryRegistry {
    /// An empty registry with this id, at the time 0.
    pub fn new(store: u64) -> Self {
        let shared = SharedMemory {
            state: RegistryState::new(store),
            now_ns: 0,
            is_away: false,
            unknown: VecDeque::new(),
            late: VecDeque::new(),
            watched: None,
        };
        Self { shared: Arc::new(Mutex::new(shared)), is_away: false }
    }

    /// Lets time go by: leases end.
    pub fn advance(&self, by: Duration) {
        let mut shared = self.shared.lock();
        shared.now_ns += u64::try_from(by.as_nanos()).expect("a test has less than 500 years");
        let now_ns = shared.now_ns;
        shared.state.expire(now_ns);
    }

    /// Has all handles lose the registry, or find it again.
    pub fn set_away(&self, is_away: bool) {
        self.shared.lock().is_away = is_away;
    }

    /// Has this handle alone lose the registry, or find it again.
    pub fn set_cut(&mut self, is_away: bool) {
        self.is_away = is_away;
    }

    /// Has the next swap end without an answer.
    pub fn lose_answer(&self, truth: UnknownSwap) {
        self.shared.lock().unknown.push_back(truth);
    }

    /// Makes the swaps that were late, in their order, and returns how many of them were made.
    pub fn settle(&self) -> usize {
        let mut shared = self.shared.lock();
        let late: Vec<_> = shared.late.drain(..).collect();
        let made = late.iter().filter(|swap| matches!(shared.state.swap(swap), Ok(Tried::Made(_))));
        made.count()
    }

    /// Forgets all changes so far, as etcd does when it compacts.
    pub fn compact(&self) {
        let mut shared = self.shared.lock();
        let revision = shared.state.revision;
        shared.state.forget(revision);
    }

    /// Has watches see nothing new, or everything again.
    pub fn stall_watches(&self, stalls: bool) {
        let mut shared = self.shared.lock();
        shared.watched = stalls.then_some(shared.state.revision);
    }

    /// The content.
    pub fn backup(&self) -> MemoryBackup {
        MemoryBackup(self.shared.lock().state.clone())
    }

    /// Puts the content back.
    pub fn restore(&self, backup: &MemoryBackup) {
        self.shared.lock().state = backup.0.clone();
    }

    fn with<T>(
        &self,
        ask: impl FnOnce(&mut SharedMemory) -> Result<T, RegistryError>,
    ) -> Result<T, RegistryError> {
        let mut shared = self.shared.lock();
        if self.is_away || shared.is_away {
            return Err(RegistryError::Away { reason: "a test has cut it off".to_owned() });
        }
        ask(&mut shared)
    }
}

impl Registry for MemoryRegistry {
    fn stamp(&mut self) -> Result<Stamp, RegistryError> {
        self.with(|shared| Ok(shared.state.stamp()))
    }

    fn get(&mut self, key: &Key) -> Result<Found, RegistryError> {
        self.with(|shared| Ok(shared.state.get(key)))
    }

    fn list(&mut self, above: &Key) -> Result<Listing, RegistryError> {
        self.with(|shared| Ok(shared.state.list(above)))
    }

    fn watch(&mut self, above: &Key, after: u64) -> Result<Box<dyn RegistryWatch>, RegistryError> {
        let watch = MemoryWatch { registry: self.clone(), above: above.clone(), after };
        self.with(|_| Ok(Box::new(watch) as Box<dyn RegistryWatch>))
    }

    fn swap(&mut self, swap: &Swap) -> Result<SwapOutcome, RegistryError> {
        self.with(|shared| {
            swap.check()?;
            let Some(truth) = shared.unknown.pop_front() else {
                return Ok(match shared.state.swap(swap)? {
                    Tried::Made(revision) => SwapOutcome::Made { revision },
                    Tried::Lost => SwapOutcome::Lost,
                });
            };
            match truth {
                UnknownSwap::Never => {}
                UnknownSwap::Made => drop(shared.state.swap(swap)),
                UnknownSwap::Later => {
                    assert!(shared.late.len() < LATE_MAX, "a test settles its late swaps");
                    shared.late.push_back(swap.clone());
                }
            }
            Ok(SwapOutcome::Unknown { reason: format!("a test lost the answer: {truth:?}") })
        })
    }

    fn grant(&mut self, seconds: u64) -> Result<LeaseId, RegistryError> {
        self.with(|shared| shared.state.grant(seconds, shared.now_ns))
    }

    fn renew(&mut self, lease: LeaseId) -> Result<(), RegistryError> {
        self.with(|shared| shared.state.renew(lease, shared.now_ns))
    }

    fn revoke(&mut self, lease: LeaseId) -> Result<(), RegistryError> {
        self.with(|shared| {
            shared.state.revoke(lease);
            Ok(())
        })
    }
}

#[derive(Debug)]
struct MemoryWatch {
    registry: MemoryRegistry,
    above: Key,
    after: u64,
}

impl RegistryWatch for MemoryWatch {
    /// Never waits: the time of a test does not go by itself.
    fn next(&mut self, _patience: Duration) -> Result<Vec<EntryEvent>, RegistryError> {
        let Self { registry, above, after } = self;
        let events = registry.with(|shared| {
            let end = shared.watched.unwrap_or(u64::MAX);
            if *after >= end {
                return Ok(Vec::new());
            }
            let mut events = shared.state.events(above, *after)?;
            events.retain(|event| event.revision <= end);
            Ok(events)
        })?;
        *after = events.last().map_or(*after, |event| event.revision);
        Ok(events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract;

    fn key(text: &str) -> Key {
        Key::new(text).unwrap()
    }

    #[test]
    fn it_keeps_the_contract() {
        contract::check_all(&mut || {
            let registry = MemoryRegistry::new(7);
            let [clock, other] = [registry.clone(), registry.clone()];
            contract::Parties {
                one: Box::new(registry),
                other: Box::new(other),
                wait: Box::new(move |time| clock.advance(time)),
            }
        });
    }

    #[test]
    fn a_swap_without_an_answer_may_have_been_made_or_come_later() {
        let mut registry = MemoryRegistry::new(7);
        let a = key("/a");
        let swap = Swap::new().absent(&a).put(&a, "x");
        for (truth, is_there) in [(UnknownSwap::Never, false), (UnknownSwap::Later, false)] {
            registry.lose_answer(truth);
            assert!(matches!(registry.swap(&swap).unwrap(), SwapOutcome::Unknown { .. }));
            assert_eq!(registry.get(&a).unwrap().entry.is_some(), is_there, "{truth:?}");
        }
        assert_eq!(registry.settle(), 1);
        assert_eq!(registry.get(&a).unwrap().entry.unwrap().value, b"x");
        let b = key("/b");
        registry.lose_answer(UnknownSwap::Made);
        let swap = Swap::new().absent(&b).put(&b, "x");
        assert!(matches!(registry.swap(&swap).unwrap(), SwapOutcome::Unknown { .. }));
        assert_eq!(registry.get(&b).unwrap().entry.unwrap().value, b"x");
        // The conditions of a late swap count when it comes.
        registry.lose_answer(UnknownSwap::Later);
        let late = Swap::new().absent(&key("/c")).put(&key("/c"), "late");
        assert!(matches!(registry.swap(&late).unwrap(), SwapOutcome::Unknown { .. }));
        let first = Swap::new().absent(&key("/c")).put(&key("/c"), "first");
        assert!(matches!(registry.swap(&first).unwrap(), SwapOutcome::Made { .. }));
        assert_eq!(registry.settle(), 0);
        assert_eq!(registry.get(&key("/c")).unwrap().entry.unwrap().value, b"first");
    }

    #[test]
    fn watches_stall_and_compact_and_handles_are_cut_off_alone() {
        let registry = MemoryRegistry::new(7);
        let mut other = registry.clone();
        let a = key("/a/b");
        let mut watch = other.watch(&key("/a"), 1).unwrap();
        registry.stall_watches(true);
        let put = |value: &str| Swap::new().put(&a, value);
        assert!(matches!(other.swap(&put("1")), Ok(SwapOutcome::Made { revision: 2 })));
        assert_eq!(watch.next(Duration::ZERO).unwrap(), []);
        registry.stall_watches(false);
        assert_eq!(watch.next(Duration::ZERO).unwrap().len(), 1);
        assert!(matches!(other.swap(&put("2")), Ok(SwapOutcome::Made { revision: 3 })));
        registry.compact();
        let error = watch.next(Duration::ZERO).unwrap_err();
        assert_eq!(error, RegistryError::Compacted { oldest: 4 });
        let mut cut = registry.clone();
        cut.set_cut(true);
        assert!(matches!(cut.stamp(), Err(RegistryError::Away { .. })));
        assert!(other.stamp().is_ok());
        registry.set_away(true);
        assert!(matches!(other.swap(&put("3")), Err(RegistryError::Away { .. })));
    }
}
