//! The one test suite that every registry passes: all that [`Registry`] promises.

use std::time::Duration;

use crate::error::RegistryError;
use crate::key::Key;
use crate::limits::{SWAP_KEYS_MAX, VALUE_BYTES_MAX};
use crate::registry::{EntryChange, EntryEvent, Registry, RegistryWatch};
use crate::swap::{Swap, SwapOutcome};

/// How often a test waits for a second until a watch or a lease has done its part. A busy machine
/// takes a while, and a registry may make a lease longer.
const WAITS_MAX: usize = 120;

/// The additions of each of two handles to one number.
const ADDITIONS: usize = 20;

/// Two handles on one registry that is empty, and the way to let time go by.
pub struct Parties {
    /// A handle.
    pub one: Box<dyn Registry>,
    /// Another handle.
    pub other: Box<dyn Registry>,
    /// Lets so much time go by for the registry.
    pub wait: Box<dyn FnMut(Duration)>,
}

impl std::fmt::Debug for Parties {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parties").field("one", &self.one).finish_non_exhaustive()
    }
}

/// A part of the suite, below a key of its own.
type ContractCheck = fn(&Key, &mut Parties);

/// Runs the whole suite; `make` gives two handles on a registry in which nothing is below the key
/// that the test uses: keys are below `/contract-N`.
pub fn check_all(make: &mut dyn FnMut() -> Parties) {
    let checks: [(&str, ContractCheck); 7] = [
        ("values", values),
        ("swaps", swaps),
        ("lists", lists),
        ("watches", watches),
        ("leases", leases),
        ("limits", limits),
        ("additions", additions),
    ];
    for (name, check) in checks {
        let above = key(&format!("/contract-{name}"));
        check(&above, &mut make());
    }
}

fn key(text: &str) -> Key {
    Key::new(text).expect("a key of a test")
}

fn below(above: &Key, name: &str) -> Key {
    above.below(name).expect("a key of a test")
}

fn made(registry: &mut dyn Registry, swap: &Swap) -> u64 {
    match registry.swap(swap).expect("the registry answers") {
        SwapOutcome::Made { revision } => revision,
        outcome => panic!("{swap:?}: {outcome:?}"),
    }
}

fn lost(registry: &mut dyn Registry, swap: &Swap) {
    assert_eq!(registry.swap(swap).expect("the registry answers"), SwapOutcome::Lost, "{swap:?}");
}

fn value_of(registry: &mut dyn Registry, key: &Key) -> Option<Vec<u8>> {
    registry.get(key).expect("the registry answers").entry.map(|entry| entry.value)
}

fn values(above: &Key, parties: &mut Parties) {
    let Parties { one, other, .. } = parties;
    let a = below(above, "a");
    let before = one.stamp().expect("it answers");
    assert!(before.revision > 0, "0 is before every revision");
    assert_eq!(one.get(&a).expect("it answers").entry, None);
    let bytes: Vec<u8> = (0..=255).collect();
    let revision = made(&mut **one, &Swap::new().put(&a, bytes.clone()));
    assert!(revision > before.revision);
    let found = other.get(&a).expect("it answers");
    assert_eq!(found.stamp.store, before.store);
    assert!(found.stamp.revision >= revision);
    let entry = found.entry.expect("it was put");
    assert_eq!((entry.revision, entry.value, entry.lease), (revision, bytes, None));
    assert_eq!(entry.key, a);
    let again = made(&mut **other, &Swap::new().put(&a, ""));
    assert!(again > revision);
    assert_eq!(value_of(&mut **one, &a), Some(Vec::new()));
    made(&mut **one, &Swap::new().delete(&a));
    assert_eq!(value_of(&mut **other, &a), None);
    // A key that is not there can be removed, which changes nothing.
    let stamp = one.stamp().expect("it answers");
    made(&mut **one, &Swap::new().delete(&a));
    assert_eq!(other.stamp().expect("it answers"), stamp);
}

fn swaps(above: &Key, parties: &mut Parties) {
    let Parties { one, other, .. } = parties;
    let [a, b] = ["a", "b"].map(|name| below(above, name));
    let first = made(&mut **one, &Swap::new().absent(&a).put(&a, "1"));
    lost(&mut **other, &Swap::new().absent(&a).put(&a, "2"));
    assert_eq!(value_of(&mut **other, &a).as_deref(), Some(&b"1"[..]));
    let second = made(&mut **other, &Swap::new().unchanged(&a, first).put(&a, "2"));
    lost(&mut **one, &Swap::new().unchanged(&a, first).put(&a, "3"));
    // One condition of several does not hold, so neither key is changed.
    let both = |revision| Swap::new().unchanged(&a, revision).absent(&b).put(&a, "4").put(&b, "4");
    lost(&mut **one, &both(first));
    assert_eq!(value_of(&mut **one, &b), None);
    let third = made(&mut **one, &both(second));
    for key in [&a, &b] {
        let entry = other.get(key).expect("it answers").entry.expect("both were put");
        assert_eq!((entry.revision, &*entry.value), (third, &b"4"[..]));
    }
    // A condition on a key that is not there does not hold.
    lost(&mut **one, &Swap::new().unchanged(&below(above, "c"), third).put(&a, "5"));
    // Conditions may be about keys that are not changed.
    lost(&mut **one, &Swap::new().absent(&b).delete(&a));
    made(&mut **one, &Swap::new().unchanged(&b, third).delete(&a));
    assert_eq!(value_of(&mut **other, &a), None);
}

fn lists(above: &Key, parties: &mut Parties) {
    let Parties { one, other, .. } = parties;
    assert_eq!(one.list(above).expect("it answers").entries, []);
    let names: Vec<_> = (0..SWAP_KEYS_MAX).map(|at| format!("k{at:03}")).collect();
    for value in ["1", "2"] {
        let all = names.iter().fold(Swap::new(), |swap, name| swap.put(&below(above, name), value));
        made(&mut **one, &all);
    }
    // More than any answer has at once.
    let deeper = below(&below(above, "k000"), "deeper");
    made(&mut **one, &Swap::new().put(&deeper, "3").put(&key(&format!("{above}x")), "no"));
    let listing = other.list(above).expect("it answers");
    assert_eq!(listing.entries.len(), names.len() + 1);
    assert!(listing.entries.is_sorted_by(|one, next| one.key < next.key));
    assert!(listing.entries.iter().all(|entry| entry.key.is_below(above)));
    assert!(listing.entries.iter().all(|entry| entry.revision <= listing.stamp.revision));
    let is_deeper = |value: &[u8]| value == b"3";
    assert_eq!(listing.entries.iter().filter(|entry| is_deeper(&entry.value)).count(), 1);
    assert_eq!(other.list(&below(above, "k000")).expect("it answers").entries.len(), 1);
}

/// The next `count` changes of a watch.
fn next(
    watch: &mut dyn RegistryWatch,
    wait: &mut dyn FnMut(Duration),
    count: usize,
) -> Vec<EntryEvent> {
    let mut events = Vec::new();
    for _ in 0..WAITS_MAX {
        events.extend(watch.next(Duration::from_secs(1)).expect("the watch goes on"));
        if events.len() >= count {
            break;
        }
        wait(Duration::from_millis(100));
    }
    assert_eq!(events.len(), count, "{events:?}");
    events
}

fn watches(above: &Key, parties: &mut Parties) {
    let Parties { one, other, wait } = parties;
    let [a, b] = ["a", "b"].map(|name| below(above, name));
    let after = made(&mut **one, &Swap::new().put(&a, "1"));
    let mut watch = other.watch(above, after).expect("it answers");
    let mut early = other.watch(above, after - 1).expect("it answers");
    let outside = key(&format!("{above}x"));
    made(&mut **one, &Swap::new().put(&outside, "no"));
    let second = made(&mut **one, &Swap::new().put(&a, "2").put(&b, "2"));
    let third = made(&mut **one, &Swap::new().delete(&a));
    let events = next(&mut *watch, wait, 3);
    let revisions: Vec<_> = events.iter().map(|event| event.revision).collect();
    assert_eq!(revisions, [second, second, third]);
    assert_eq!((&events[2].key, &events[2].change), (&a, &EntryChange::Deleted));
    assert_eq!(events[1].change, EntryChange::Put(b"2".to_vec()));
    let events = next(&mut *early, wait, 4);
    assert_eq!((&events[0].key, events[0].revision), (&a, after));
    assert_eq!(watch.next(Duration::ZERO).expect("the watch goes on"), []);
}

fn leases(above: &Key, parties: &mut Parties) {
    let Parties { one, other, wait } = parties;
    let [short, long, own] = ["short", "long", "own"].map(|name| below(above, name));
    let [brief, lasting] = [2, 600].map(|seconds| one.grant(seconds).expect("it answers"));
    made(&mut **one, &Swap::new().put_under(&short, "x", brief).put_under(&long, "x", lasting));
    made(&mut **one, &Swap::new().put(&own, "x"));
    let entry = other.get(&long).expect("it answers").entry.expect("it was put");
    assert_eq!(entry.lease, Some(lasting));
    for _ in 0..WAITS_MAX {
        wait(Duration::from_secs(1));
        if value_of(&mut **other, &short).is_none() {
            break;
        }
        other.renew(lasting).expect("it has not ended");
    }
    assert_eq!(value_of(&mut **other, &short), None, "the lease is over");
    assert_eq!(one.renew(brief), Err(RegistryError::LeaseEnded));
    let late = one.swap(&Swap::new().put_under(&short, "x", brief));
    assert_eq!(late, Err(RegistryError::LeaseEnded));
    assert!(value_of(&mut **other, &long).is_some());
    // A value that is put without the lease does not go with it.
    made(&mut **other, &Swap::new().put_under(&own, "x", lasting));
    made(&mut **other, &Swap::new().put(&own, "y"));
    other.revoke(lasting).expect("it answers");
    assert_eq!(value_of(&mut **one, &long), None, "it went with the lease");
    assert_eq!(value_of(&mut **one, &own).as_deref(), Some(&b"y"[..]));
    assert_eq!(one.renew(lasting), Err(RegistryError::LeaseEnded));
    other.revoke(lasting).expect("it has ended, which is no error");
}

fn limits(above: &Key, parties: &mut Parties) {
    let Parties { one, .. } = parties;
    let a = below(above, "a");
    let invalid = |result: Result<_, RegistryError>| {
        assert!(matches!(result, Err(RegistryError::Invalid { .. })), "{result:?}");
    };
    made(&mut **one, &Swap::new().put(&a, vec![7; VALUE_BYTES_MAX]));
    assert_eq!(value_of(&mut **one, &a), Some(vec![7; VALUE_BYTES_MAX]));
    invalid(one.swap(&Swap::new().put(&a, vec![7; VALUE_BYTES_MAX + 1])));
    invalid(one.swap(&Swap::new()));
    invalid(one.swap(&Swap::new().put(&a, "x").delete(&a)));
    for seconds in [0, 1, 601] {
        let granted = one.grant(seconds);
        assert!(matches!(granted, Err(RegistryError::Invalid { .. })), "{granted:?}");
    }
}

/// Two handles add to one number by swaps, in turn and against each other. No addition is lost.
fn additions(above: &Key, parties: &mut Parties) {
    let Parties { one, other, .. } = parties;
    let number = below(above, "number");
    made(&mut **one, &Swap::new().absent(&number).put(&number, "0"));
    let add = |registry: &mut dyn Registry| {
        let mut added = 0;
        while added < ADDITIONS {
            let entry = registry.get(&number).expect("it answers").entry.expect("it is there");
            let value: usize =
                std::str::from_utf8(&entry.value).expect("text").parse().expect("a number");
            let swap = Swap::new().unchanged(&number, entry.revision);
            match registry.swap(&swap.put(&number, (value + 1).to_string())).expect("it answers") {
                SwapOutcome::Made { .. } => added += 1,
                SwapOutcome::Lost => {}
                SwapOutcome::Unknown { reason } => panic!("{reason}"),
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| add(&mut **one));
        scope.spawn(|| add(&mut **other));
    });
    let sum = (2 * ADDITIONS).to_string();
    assert_eq!(value_of(&mut **one, &number), Some(sum.into_bytes()));
}
