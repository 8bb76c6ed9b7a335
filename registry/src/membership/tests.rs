//! Tests of the changes of a cluster's records.

use std::collections::BTreeMap;
use std::time::Duration;

use random::Random;

use super::*;
use crate::{MemoryRegistry, PlacedCopy, UnknownSwap};

const ID: &str = "0123456789abcdef0123456789abcdef";

fn keys() -> ClusterKeys {
    ClusterKeys::new(ID).unwrap()
}

fn cluster() -> ClusterRecord {
    ClusterRecord { id: ID.to_owned(), name: "rack".to_owned(), made_s: 1 }
}

fn token() -> TokenRecord {
    TokenRecord { made_s: 10, ends_s: 100, used_by: None, used_s: None }
}

fn node(name: &str, token: &str) -> NodeRecord {
    let key = Some(format!("key of {name}"));
    NodeRecord { name: name.to_owned(), key, joined_s: 20, token: token.to_owned() }
}

fn presence(agent: &str) -> PresenceRecord {
    PresenceRecord {
        agent: agent.to_owned(),
        addresses: vec![format!("address of {agent}")],
        program: "1".to_owned(),
        since_s: 30,
        ..PresenceRecord::default()
    }
}

/// A registry with the cluster and the token `t`.
fn registry() -> MemoryRegistry {
    let mut registry = MemoryRegistry::new(7);
    let keys = keys();
    let mut cluster_records = Membership::new(&mut registry, &keys);
    cluster_records.found(&cluster()).unwrap();
    cluster_records.issue("t", &token()).unwrap();
    registry
}

#[test]
fn a_token_is_used_once() {
    let (mut registry, keys) = (registry(), keys());
    let mut records = Membership::new(&mut registry, &keys);
    let refused = |result: Result<(), RegistryError>, wanted: &str| {
        let error = result.unwrap_err();
        assert!(matches!(error, RegistryError::Refused { .. }), "{error:?}");
        assert!(error.to_string().contains(wanted), "{error}");
    };
    refused(records.join(&node("io1", "other"), 50), "does not know this token");
    refused(records.join(&node("io1", "t"), 100), "has expired");
    records.join(&node("io1", "t"), 50).unwrap();
    // A node that is not sure asks again.
    records.join(&node("io1", "t"), 500).unwrap();
    refused(records.join(&node("io2", "t"), 50), "node \"io1\" has used this token");
    let impostor = NodeRecord { key: None, ..node("io1", "t") };
    refused(records.join(&impostor, 50), "node \"io1\" has used this token");
    records.issue("u", &token()).unwrap();
    refused(records.join(&node("io1", "u"), 50), "the cluster has a node \"io1\"");
    records.remove("io1").unwrap();
    refused(records.remove("io1"), "no node \"io1\"");
    refused(records.join(&node("io1", "t"), 50), "has used this token");
    records.join(&node("io1", "u"), 50).unwrap();
    let contents = records.contents().unwrap();
    assert_eq!(contents.cluster, Some(cluster()));
    assert_eq!(contents.nodes.len(), 1);
    assert_eq!(contents.tokens.len(), 2);
    assert_eq!(contents.unreadable, []);
    let mut empty = MemoryRegistry::new(8);
    refused(
        Membership::new(&mut empty, &keys).join(&node("io1", "t"), 50),
        "not know this cluster",
    );
    let other = ClusterRecord { name: "other".to_owned(), ..cluster() };
    refused(Membership::new(&mut registry, &keys).found(&other), "has the cluster \"rack\"");
}

#[test]
fn a_node_is_present_while_its_agent_is_heard_and_no_longer() {
    let (mut registry, keys) = (registry(), keys());
    Membership::new(&mut registry, &keys).join(&node("io1", "t"), 50).unwrap();
    let clock = registry.clone();
    let (key, mut keeper) = (Some("key of io1"), PresenceKeeper::new(keys.clone(), "io1"));
    let third = Duration::from_secs(PRESENCE_S / 3);
    let is_present = |registry: &mut MemoryRegistry| {
        let contents = Membership::new(registry, &keys).contents().unwrap();
        contents.nodes[0].presence.clone()
    };
    for _ in 0..9 {
        assert_eq!(keeper.keep(&mut registry, key, &presence("a")), Ok(Kept::Present));
        clock.advance(third);
        assert_eq!(is_present(&mut registry), Some(presence("a")));
    }
    let removed = Membership::new(&mut registry, &keys).remove("io1");
    assert!(removed.unwrap_err().to_string().contains("is present"));
    let before = registry.stamp().unwrap();
    assert_eq!(keeper.keep(&mut registry, key, &presence("a")), Ok(Kept::Present));
    assert_eq!(registry.stamp().unwrap(), before, "a round without news is no change");
    // Another machine with the same configuration.
    let mut twin = PresenceKeeper::new(keys.clone(), "io1");
    let kept = twin.keep(&mut registry, key, &presence("b"));
    assert_eq!(kept, Ok(Kept::Elsewhere(presence("a"))));
    let changed = PresenceRecord { addresses: Vec::new(), ..presence("a") };
    assert_eq!(keeper.keep(&mut registry, key, &changed), Ok(Kept::Present));
    assert_eq!(is_present(&mut registry), Some(changed.clone()));
    clock.advance(Duration::from_secs(PRESENCE_S));
    assert_eq!(is_present(&mut registry), None);
    assert_eq!(twin.keep(&mut registry, key, &presence("b")), Ok(Kept::Present));
    assert_eq!(keeper.keep(&mut registry, key, &changed), Ok(Kept::Elsewhere(presence("b"))));
    twin.leave(&mut registry).unwrap();
    assert_eq!(keeper.keep(&mut registry, key, &changed), Ok(Kept::Present));
    keeper.leave(&mut registry).unwrap();
    let error = keeper.keep(&mut registry, None, &changed).unwrap_err().to_string();
    assert!(error.contains("another key"), "{error}");
    Membership::new(&mut registry, &keys).remove("io1").unwrap();
    let error = keeper.keep(&mut registry, key, &changed).unwrap_err().to_string();
    assert!(error.contains("no node \"io1\""), "{error}");
}

#[test]
fn a_node_that_is_evicted_is_away_at_once_and_its_agent_is_told() {
    let (mut registry, keys) = (registry(), keys());
    Membership::new(&mut registry, &keys).join(&node("io1", "t"), 50).unwrap();
    let (key, mut keeper) = (Some("key of io1"), PresenceKeeper::new(keys.clone(), "io1"));
    assert_eq!(keeper.keep(&mut registry, key, &presence("a")), Ok(Kept::Present));
    Membership::new(&mut registry, &keys).evict("io1").unwrap();
    let contents = Membership::new(&mut registry, &keys).contents().unwrap();
    assert!(contents.nodes.is_empty());
    let error = keeper.keep(&mut registry, key, &presence("a")).unwrap_err().to_string();
    assert!(error.contains("it was removed, or never joined"), "{error}");
    // Again, as after an answer that was lost.
    Membership::new(&mut registry, &keys).evict("io1").unwrap();
    let error = Membership::new(&mut registry, &keys).node("io1").unwrap_err().to_string();
    assert!(error.contains("no node \"io1\""), "{error}");
    // Its name is free, and the agent of the node that joins by it is present.
    Membership::new(&mut registry, &keys).issue("u", &token()).unwrap();
    Membership::new(&mut registry, &keys).join(&node("io1", "u"), 50).unwrap();
    assert_eq!(keeper.keep(&mut registry, key, &presence("a")), Ok(Kept::Present));
    let contents = Membership::new(&mut registry, &keys).contents().unwrap();
    assert_eq!(contents.nodes[0].presence, Some(presence("a")));
}

#[test]
fn epochs_of_a_volume_grow_and_volumes_change_together() {
    let (mut registry, keys) = (registry(), keys());
    let record =
        |epoch| VolumeRecord { epoch, content: vec![epoch as u8], ..VolumeRecord::default() };
    let two = |epoch: u64, held: [Option<&HeldVolume>; 2]| {
        let swap = keys.next_volume(Swap::new(), "a", held[0], &record(epoch))?;
        keys.next_volume(swap, "b", held[1], &record(epoch))
    };
    let first = two(1, [None, None]).unwrap();
    assert!(matches!(registry.swap(&first), Ok(SwapOutcome::Made { .. })));
    assert_eq!(registry.swap(&first), Ok(SwapOutcome::Lost));
    let held = ["a", "b"].map(|name| {
        Membership::new(&mut registry, &keys).volume(name).unwrap().expect("it was made")
    });
    assert_eq!(held[0].record, record(1));
    assert!(two(1, [Some(&held[0]), Some(&held[1])]).is_err());
    let second = two(2, [Some(&held[0]), Some(&held[1])]).unwrap();
    assert!(matches!(registry.swap(&second), Ok(SwapOutcome::Made { .. })));
    assert_eq!(registry.swap(&second), Ok(SwapOutcome::Lost), "an old epoch");
}

#[test]
fn a_record_that_cannot_be_read_hides_no_other() {
    let mut registry = registry();
    let bad = Key::new(format!("/vrio/{ID}/nodes/bad")).unwrap();
    assert!(registry.swap(&Swap::new().put(&bad, "{")).is_ok());
    let newer = Key::new(format!("/vrio/{ID}/wonders/x")).unwrap();
    assert!(registry.swap(&Swap::new().put(&newer, "{")).is_ok());
    let keys = keys();
    let contents = Membership::new(&mut registry, &keys).contents().unwrap();
    assert_eq!(contents.tokens.len(), 1);
    assert!(contents.unreadable[0].to_string().contains("nodes/bad is damaged"));
    assert_eq!(contents.unreadable.len(), 1);
}

/// Any client can write any bytes. Neither a node's record nor its presence may be stuck then.
#[test]
fn a_damaged_record_of_a_node_is_removed_and_a_damaged_presence_is_told_anew() {
    let (mut registry, keys) = (registry(), keys());
    Membership::new(&mut registry, &keys).join(&node("io1", "t"), 50).unwrap();
    let present = keys.present("io1").unwrap();
    assert!(registry.swap(&Swap::new().put(&present, "{")).is_ok());
    let mut keeper = PresenceKeeper::new(keys.clone(), "io1");
    let kept = keeper.keep(&mut registry, Some("key of io1"), &presence("a"));
    assert_eq!(kept, Ok(Kept::Present));
    let found = registry.get(&present).unwrap().entry.unwrap();
    assert!(found.lease.is_some(), "it ends with its agent");
    // A newer program's presence is left alone.
    assert!(registry.swap(&Swap::new().put(&present, r#"{"version":2}"#)).is_ok());
    let mut other = PresenceKeeper::new(keys.clone(), "io1");
    let kept = other.keep(&mut registry, Some("key of io1"), &presence("b"));
    assert!(matches!(kept, Err(RegistryError::OtherVersion { .. })), "{kept:?}");
    assert!(registry.swap(&Swap::new().delete(&present)).is_ok());
    assert!(registry.swap(&Swap::new().put(&keys.node("io1").unwrap(), "{")).is_ok());
    let mut records = Membership::new(&mut registry, &keys);
    assert!(matches!(records.node("io1"), Err(RegistryError::Damaged { .. })));
    records.remove("io1").unwrap();
    assert!(records.contents().unwrap().unreadable.is_empty());
}

/// Seeds of the simulation below.
const SEEDS: u64 = 300;

/// Nodes use tokens at once while answers are lost, swaps come late and the registry goes away. A
/// token is used by one node at most; a node that was told that it has joined is in the cluster;
/// a node that was refused never is.
#[test]
fn tokens_are_used_once_also_when_answers_are_lost() {
    for seed in 0..SEEDS {
        let mut random = Random::new(seed);
        let (registry, keys) = (registry(), keys());
        let mut told: BTreeMap<String, bool> = BTreeMap::new();
        for _ in 0..40 {
            match random.below(5) {
                0 => registry.lose_answer(match random.below(3) {
                    0 => UnknownSwap::Never,
                    1 => UnknownSwap::Made,
                    _ => UnknownSwap::Later,
                }),
                1 => registry.set_away(random.one_in(2)),
                2 => {
                    registry.settle();
                }
                _ => {
                    let name = format!("io{}", random.below(3));
                    let mut handle = registry.clone();
                    let joined = Membership::new(&mut handle, &keys).join(&node(&name, "t"), 50);
                    match joined {
                        Ok(()) => {
                            told.insert(name, true);
                        }
                        Err(RegistryError::Refused { .. }) => {
                            let before = told.insert(name, false);
                            assert_ne!(before, Some(true), "seed {seed}: it had joined");
                        }
                        // Nothing is known, or nothing was done.
                        Err(RegistryError::OutcomeUnknown { .. } | RegistryError::Away { .. }) => {}
                        Err(error) => panic!("seed {seed}: {error}"),
                    }
                }
            }
        }
        registry.set_away(false);
        registry.settle();
        let contents = Membership::new(&mut registry.clone(), &keys).contents().unwrap();
        let names: Vec<_> = contents.nodes.iter().map(|node| &*node.record.name).collect();
        let user = contents.tokens[0].1.used_by.as_deref();
        assert_eq!(names, user.into_iter().collect::<Vec<_>>(), "seed {seed}");
        for (name, joined) in told {
            assert_eq!(user == Some(&*name), joined, "seed {seed}: {name} was told {joined}");
        }
    }
}

#[test]
fn a_volume_is_placed_once_and_goes_with_its_last_copy_also_when_answers_are_lost() {
    let copy = |node: &str| PlacedCopy::new(node, "fast");
    let placement = PlacementRecord {
        size_bytes: 4096,
        copies: vec![copy("io1"), copy("io2")],
        placed_s: 7,
        ..PlacementRecord::default()
    };
    for truth in [None, Some(UnknownSwap::Made), Some(UnknownSwap::Never)] {
        let (mut registry, keys) = (registry(), keys());
        let lose = |registry: &mut MemoryRegistry| truth.map(|truth| registry.lose_answer(truth));
        lose(&mut registry);
        Membership::new(&mut registry, &keys).place_volume("alice", &placement).unwrap();
        let mut cluster = Membership::new(&mut registry, &keys);
        let other = PlacementRecord { size_bytes: 8192, ..placement.clone() };
        let error = cluster.place_volume("alice", &other).unwrap_err().to_string();
        assert!(error.contains("a volume \"alice\" already"), "{error}");
        let record = VolumeRecord { epoch: 1, ..VolumeRecord::default() };
        for name in ["alice", "by-hand"] {
            let swap = keys.next_volume(Swap::new(), name, None, &record).unwrap();
            assert!(matches!(registry.swap(&swap), Ok(SwapOutcome::Made { .. })));
        }
        let mut cluster = Membership::new(&mut registry, &keys);
        let error = cluster.place_volume("by-hand", &placement).unwrap_err().to_string();
        assert!(error.contains("in the files of its nodes"), "{error}");
        let error = cluster.remove_placed("by-hand", &[]).unwrap_err().to_string();
        assert!(error.contains("has placed no volume"), "{error}");
        // A node that is not asked to remove its copy has none to remove.
        cluster.copy_removed("alice", "io1").unwrap();
        let both = ["io1", "io2"].map(str::to_owned);
        lose(&mut registry);
        let mut cluster = Membership::new(&mut registry, &keys);
        cluster.remove_placed("alice", &both).unwrap();
        cluster.copy_removed("alice", "io1").unwrap();
        cluster.remove_placed("alice", &both).unwrap();
        let left = cluster.contents().unwrap().placements[0].1.removing.clone();
        assert_eq!(left, Some(vec!["io2".to_owned()]));
        lose(&mut registry);
        let mut cluster = Membership::new(&mut registry, &keys);
        cluster.copy_removed("alice", "io2").unwrap();
        // The answer of the last step was lost: it is told again.
        Membership::new(&mut registry, &keys).copy_removed("alice", "io2").unwrap();
        let mut cluster = Membership::new(&mut registry, &keys);
        assert!(cluster.contents().unwrap().placements.is_empty());
        assert_eq!(cluster.volume("alice").unwrap(), None);
    }
}

#[test]
fn a_copy_that_is_out_goes_from_its_place_and_the_volumes_record_guards_the_change() {
    let (mut registry, keys) = (registry(), keys());
    let placement = PlacementRecord {
        size_bytes: 4096,
        copies: ["io1", "io2"].map(|node| PlacedCopy::new(node, "fast")).into(),
        placed_s: 7,
        ..PlacementRecord::default()
    };
    let mut cluster = Membership::new(&mut registry, &keys);
    cluster.place_volume("alice", &placement).unwrap();
    let out = |it: &mut PlacementRecord, record: Option<&VolumeRecord>| {
        if record.is_none() {
            return Err("it was never served".to_owned());
        }
        it.copies[1].leaves = Some(CopyLeave::Out);
        Ok(())
    };
    let error = cluster.change_placement("alice", out).unwrap_err().to_string();
    assert!(error.contains("never served"), "{error}");
    let record = VolumeRecord { epoch: 1, ..VolumeRecord::default() };
    let swap = keys.next_volume(Swap::new(), "alice", None, &record).unwrap();
    assert!(matches!(registry.swap(&swap), Ok(SwapOutcome::Made { .. })));
    // A copy that is not out stays, also if its node says that it has removed it.
    Membership::new(&mut registry, &keys).copy_removed("alice", "io2").unwrap();
    let mut cluster = Membership::new(&mut registry, &keys);
    let held = cluster.volume("alice").unwrap().unwrap();
    let placed = cluster.placement("alice").unwrap().unwrap();
    assert_eq!(placed.record, placement);
    cluster.change_placement("alice", out).unwrap();
    // A record that was planned beside the placement of before is not written.
    let next = VolumeRecord { epoch: 2, ..record };
    let swap = keys.with_placement(Swap::new(), "alice", Some(&placed)).unwrap();
    let swap = keys.next_volume(swap, "alice", Some(&held), &next).unwrap();
    assert!(matches!(registry.swap(&swap), Ok(SwapOutcome::Lost)));
    Membership::new(&mut registry, &keys).copy_removed("alice", "io2").unwrap();
    let placed = Membership::new(&mut registry, &keys).placement("alice").unwrap().unwrap();
    assert_eq!(placed.record.copies[1], PlacedCopy::default());
    assert_eq!(placed.record.nodes(), ["io1", ""]);
    // A change that makes a record which is none is refused.
    let mut cluster = Membership::new(&mut registry, &keys);
    for bad in [
        PlacedCopy::new("io1", "fast"),
        PlacedCopy { replaces: Some(9), ..PlacedCopy::new("io3", "fast") },
    ] {
        let push = |it: &mut PlacementRecord, _: Option<&VolumeRecord>| {
            it.copies.push(bad.clone());
            Ok(())
        };
        assert!(cluster.change_placement("alice", push).is_err(), "{bad:?}");
    }
}

#[test]
fn the_end_of_a_process_is_told_to_those_that_watch_and_goes_with_its_node() {
    let (mut registry, keys) = (registry(), keys());
    let lives = |life: u64| EndRecord {
        lives: [("alice".to_owned(), format!("{life:016x}"))].into(),
        ended_s: 7,
    };
    Membership::new(&mut registry, &keys).join(&node("io1", "t"), 50).unwrap();
    Membership::new(&mut registry, &keys).tell_end("io1", &lives(1)).unwrap();
    let mut watch = EndsWatch::open(&mut registry, &keys).unwrap();
    let none = Duration::ZERO;
    assert_eq!(watch.next(none).unwrap(), [("io1".to_owned(), lives(1))], "it was there");
    assert_eq!(watch.next(none).unwrap(), []);
    let mut records = Membership::new(&mut registry, &keys);
    records.tell_end("io1", &lives(2)).unwrap();
    records.tell_end("io1", &lives(2)).unwrap();
    assert_eq!(watch.next(none).unwrap(), [("io1".to_owned(), lives(2))]);
    assert_eq!(watch.next(none).unwrap(), []);
    // Any client can write any bytes.
    let key = keys.end("io1").unwrap();
    let many: BTreeMap<_, _> =
        (0..=END_LIVES_MAX).map(|at| (format!("{at}"), "0".repeat(16))).collect();
    let many = EndRecord { lives: many, ended_s: 7 };
    let one = |volume: &str, life: &str| EndRecord {
        lives: [(volume.to_owned(), life.to_owned())].into(),
        ended_s: 7,
    };
    let (escape, none_such) = (one("\u{1b}", &"0".repeat(16)), one("alice", "1"));
    for value in [b"x".to_vec(), stored(&many), stored(&escape), stored(&none_such)] {
        assert!(registry.swap(&Swap::new().put(&key, value)).is_ok());
        assert_eq!(watch.next(none).unwrap(), []);
        let contents = Membership::new(&mut registry, &keys).contents().unwrap();
        assert_eq!(contents.unreadable.len(), 1, "the status shows it");
    }
    let mut records = Membership::new(&mut registry, &keys);
    records.tell_end("io1", &lives(3)).unwrap();
    assert_eq!(watch.next(none).unwrap().len(), 1);
    let mut records = Membership::new(&mut registry, &keys);
    records.remove("io1").unwrap();
    assert_eq!(watch.next(none).unwrap(), []);
    assert_eq!(registry.get(&key).unwrap().entry, None);
}
