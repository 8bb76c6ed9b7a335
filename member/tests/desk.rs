//! A member's private file, and its record in a registry.

use std::collections::BTreeMap;
use std::fs;

use member::{RecordDesk, StateFile, StateFileError};
use registry::membership::ClusterKeys;
use registry::{MemoryRegistry, RegistryError, UnknownSwap};
use replica::{Durable, SwapOutcome, VolumeRecord};

fn first() -> VolumeRecord {
    VolumeRecord::first(1, BTreeMap::from([(1, 11), (2, 22)]))
}

fn desk() -> RecordDesk {
    RecordDesk::new(ClusterKeys::new("ab12").unwrap(), "alice")
}

#[test]
fn a_record_is_replaced_by_the_next_one_alone() {
    let (mut registry, desk) = (MemoryRegistry::new(7), desk());
    assert!(matches!(desk.look(&mut registry), Err(RegistryError::Damaged { .. })));
    desk.create(&mut registry, &first()).unwrap();
    // Once more is no harm, and another volume is another matter.
    desk.create(&mut registry, &first()).unwrap();
    let other = VolumeRecord::first(2, BTreeMap::from([(2, 22)]));
    assert!(desk.create(&mut registry, &other).is_err());
    let next = first().taken_by(2);
    assert_eq!(desk.swap(&mut registry, &next), SwapOutcome::Done);
    assert_eq!(desk.swap(&mut registry, &next), SwapOutcome::Done, "it was asked for again");
    assert_eq!(desk.look(&mut registry).unwrap(), next);
    let late = first().without(2);
    assert_eq!(desk.swap(&mut registry, &late), SwapOutcome::Conflict(next.clone()));
    let early = next.with(1, 5).with(3, 6);
    assert_eq!(desk.swap(&mut registry, &early), SwapOutcome::Conflict(next));
}

#[test]
fn a_swap_without_an_answer_is_unknown_until_it_is_asked_for_again() {
    for truth in [UnknownSwap::Made, UnknownSwap::Never, UnknownSwap::Later] {
        let (mut registry, desk) = (MemoryRegistry::new(7), desk());
        desk.create(&mut registry, &first()).unwrap();
        let next = first().without(2);
        registry.lose_answer(truth);
        assert_eq!(desk.swap(&mut registry, &next), SwapOutcome::Unknown);
        registry.set_away(true);
        assert_eq!(desk.swap(&mut registry, &next), SwapOutcome::Unknown);
        assert!(matches!(desk.look(&mut registry), Err(RegistryError::Away { .. })));
        registry.set_away(false);
        assert_eq!(desk.swap(&mut registry, &next), SwapOutcome::Done);
        assert_eq!(desk.look(&mut registry).unwrap(), next);
    }
}

#[test]
fn a_state_comes_back_as_it_was_kept_and_damage_has_a_name() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("alice.member");
    let file = StateFile::new(&path);
    assert_eq!(file.load().unwrap(), None, "a new member has promised nothing");
    let durable = Durable { promised: 9, record: Some(first()), note: vec![1, 2, 3] };
    file.keep(&durable).unwrap();
    assert_eq!(file.load().unwrap(), Some(durable.clone()));
    let mut bytes = fs::read(&path).unwrap();
    bytes[0] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let error = file.load().unwrap_err();
    assert!(matches!(error, StateFileError::Damaged { .. }));
    assert!(error.to_string().contains("alice.member"), "{error}");
    let missing = StateFile::new(&home.path().join("none/alice.member"));
    assert!(matches!(missing.keep(&durable), Err(StateFileError::System { .. })));
}
