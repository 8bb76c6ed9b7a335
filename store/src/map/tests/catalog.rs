//! Changes that are refused, and states that no map has written.

use random::Random;
use serde_json::Value;

use super::medium::Medium;
use crate::api::{PoolChange, PoolError, VolumeId};
use crate::format::{BlockPlace, LogRecord, NUMBER_MAX, PageForm, PayloadPlace, SegmentId};
use crate::map::{Applied, LiveBlocks, MapError, MapState, PoolMap};
use pool_stream::VOLUME_BLOCKS_MAX;

fn create(name: &str, blocks: u64) -> PoolChange {
    PoolChange::Create { name: name.to_owned(), blocks }
}

fn snapshot(volumes: &[VolumeId], name: &str) -> PoolChange {
    PoolChange::Snapshot { volumes: volumes.to_vec(), name: name.to_owned(), at_s: 0 }
}

#[test]
fn impossible_changes_are_refused_with_a_reason() {
    let mut medium = Medium::new(1, 512, 128);
    let a = medium.change(create("a", 10));
    let b = medium.change(create("b", 10));
    let s = medium.change(snapshot(&[a], "s"));
    let gone = VolumeId(77);
    let name = "b".to_owned();
    let refused = [
        (create("a", 1), PoolError::NameTaken("a".to_owned())),
        (PoolChange::Rename { volume: a, name: name.clone() }, PoolError::NameTaken(name.clone())),
        (PoolChange::Clone { snapshot: s, name: name.clone() }, PoolError::NameTaken(name)),
        (snapshot(&[b, a], "s"), PoolError::NameTaken("s".to_owned())),
        (snapshot(&[b, gone], "t"), PoolError::NoVolume(gone)),
        (PoolChange::Remove { volume: gone }, PoolError::NoVolume(gone)),
        (PoolChange::Clear { volume: s }, PoolError::WrongKind(s, "a snapshot: name a volume")),
        (
            PoolChange::Clone { snapshot: a, name: "c".to_owned() },
            PoolError::WrongKind(a, "a volume: name a snapshot"),
        ),
        (
            PoolChange::Rollback { volume: b, snapshot: s },
            PoolError::WrongKind(
                s,
                "a snapshot that the volume does not come from: clone it instead",
            ),
        ),
    ];
    for (change, error) in refused {
        assert_eq!(medium.map.check(&change), Err(error), "{change:?}");
    }
    for change in [
        create("", 1),
        create(".a", 1),
        create("a b", 1),
        create("ä", 1),
        create(&"a".repeat(65), 1),
        create("c", 0),
        create("c", VOLUME_BLOCKS_MAX + 1),
        PoolChange::Resize { volume: a, blocks: 0 },
        snapshot(&[], "t"),
        snapshot(&[a, a], "t"),
        snapshot(&(0..2000).map(VolumeId).collect::<Vec<_>>(), "t"),
    ] {
        let result = medium.map.check(&change);
        assert!(matches!(result, Err(PoolError::Invalid(_))), "{change:?}: {result:?}");
    }
    let longest = "a".repeat(64);
    assert_eq!(medium.map.check(&create(&longest, VOLUME_BLOCKS_MAX)), Ok(VolumeId(3)));
    // A name is free again once its volume is removed, and ids are not.
    medium.change(PoolChange::Remove { volume: a });
    assert_eq!(medium.change(create("a", 1)), VolumeId(3));
    assert_eq!(medium.map.check(&PoolChange::Remove { volume: a }), Err(PoolError::NoVolume(a)));
}

#[test]
fn bounds_of_a_pool_are_refused_and_removals_are_not() {
    let mut medium = Medium::new(1, 512, 128);
    for at in 0..16_384 {
        medium.change(create(&format!("v{at}"), 10));
    }
    let volume = VolumeId(1);
    let full = Err(PoolError::TooMany("16,384 volumes and snapshots"));
    for change in [
        create("a", 1),
        snapshot(&[volume], "s"),
        PoolChange::Clear { volume },
        PoolChange::Resize { volume, blocks: 1 },
    ] {
        assert_eq!(medium.map.check(&change), full);
    }
    let record = LogRecord::Change { bytes: 0, crc: 0, is_copy: false };
    assert_eq!(medium.apply(record, Some(create("a", 1))), Ok(Applied::Dropped));
    medium.change(PoolChange::Resize { volume, blocks: 20 });
    medium.change(PoolChange::Remove { volume });
    medium.remove_all();
    assert_eq!(medium.change(create("a", 1)), VolumeId(16_384));
    medium.checkpoint();
    medium.open_again();
    assert_eq!(medium.map.volume_count(), 16_384);
}

fn move_of(number: u64, from: BlockPlace) -> LogRecord {
    LogRecord::Move { number, crc: 0, from, volume: 0, form: PageForm::PLAIN }
}

#[test]
fn senseless_records_have_no_effect() {
    let mut medium = Medium::new(1, 512, 128);
    let a = medium.change(create("a", 100));
    medium.write(a, 0, 1);
    let place = BlockPlace { segment: SegmentId(9), block: 9 };
    let write = |volume, block, number| LogRecord::Write { volume, block, number, crc: 0 };
    for record in [
        write(7, 0, 5),
        write(a.0, 100, 5),
        LogRecord::Zero { volume: 7, block: 0, blocks: 1 },
        LogRecord::Zero { volume: a.0, block: 100, blocks: 1 },
        LogRecord::Zero { volume: a.0, block: 1, blocks: 64 },
        LogRecord::Removal { snapshot: a.0, block: 64 },
        LogRecord::Removal { snapshot: 7, block: 64 },
        move_of(1, place),
        LogRecord::Lost { number: 1, from: place },
        LogRecord::Node { number: 1, crc: 0 },
        LogRecord::Change { bytes: 0, crc: 0, is_copy: false },
    ] {
        assert_eq!(medium.apply(record, None), Ok(Applied::Dropped), "{record:?}");
        assert_eq!(medium.run(|map, _| map.is_live(&record, place)), Ok(false), "{record:?}");
    }
    let moved = move_of(NUMBER_MAX, place);
    assert_eq!(medium.apply(moved, None), Err(MapError::Damaged));
    assert_eq!(medium.run(|map, _| map.is_live(&moved, place)), Ok(false));
    // The number cannot be, so the block is lost; it is no number that takes memory.
    assert_eq!(medium.apply(write(a.0, 0, NUMBER_MAX), None), Err(MapError::Damaged));
    assert_eq!(medium.read(a, 0), Ok(Some(0)));
    medium.write(a, 0, 2);
    assert_eq!(medium.map.contradictions(), 0, "a lost block has no page to be freed");
    // A zero that begins within the volume ends with it.
    assert_eq!(medium.try_zero(a, 64, 64), Ok(Applied::Done));
    // A removal's place is a place that a removal can have.
    medium.change(PoolChange::Remove { volume: a });
    for block in [0, 1, VOLUME_BLOCKS_MAX + 64] {
        let record = LogRecord::Removal { snapshot: a.0, block };
        assert_eq!(medium.apply(record, None), Ok(Applied::Dropped));
    }
    medium.remove_all();
    assert_eq!((medium.map.used_pages(), medium.map.used_nodes()), (0, 0));
}

/// Counts nothing: a senseless map may lose what it never had.
struct NoLive;

impl LiveBlocks for NoLive {
    fn gain(&mut self, _: BlockPlace, _: u8) {}
    fn lose(&mut self, _: BlockPlace, _: u8) {}
}

/// A map with a bit of everything, as a checkpoint has it.
fn some_state() -> (Medium, Value) {
    let mut medium = Medium::new(1, 0, 6);
    let a = medium.change(create("a", 2000));
    for block in 0..40 {
        medium.write(a, block * 50, 1);
    }
    let s = medium.change(snapshot(&[a], "s"));
    medium.change(PoolChange::Clone { snapshot: s, name: "b".to_owned() });
    let t = medium.change(snapshot(&[a], "t"));
    for block in 0..40 {
        medium.write(a, block * 50, 2);
    }
    medium.change(PoolChange::Remove { volume: t });
    medium.remove_more();
    medium.checkpoint();
    let state = serde_json::to_value(medium.map.state()).unwrap();
    (medium, state)
}

fn leaves<'a>(value: &'a mut Value, found: &mut Vec<&'a mut Value>) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(|value| leaves(value, found)),
        Value::Object(fields) => fields.values_mut().for_each(|value| leaves(value, found)),
        value => found.push(value),
    }
}

fn change_one(value: &mut Value, random: &mut Random) {
    let mut found = Vec::new();
    leaves(value, &mut found);
    let at = random.below(found.len() as u64) as usize;
    let leaf = &mut *found[at];
    let number = leaf.as_u64().unwrap_or(0);
    *leaf = match random.below(8) {
        0 => Value::Null,
        1 => Value::from(0),
        2 => Value::from(number.wrapping_add(1)),
        3 => Value::from(number.wrapping_sub(1)),
        4 => Value::from(number ^ 1 << random.below(64)),
        5 => Value::from(u64::MAX),
        6 => Value::from(random.below(8)),
        _ => Value::from("removing"),
    };
}

#[test]
fn a_senseless_state_is_refused_or_does_no_harm() {
    let (mut medium, whole) = some_state();
    let state: MapState = serde_json::from_value(whole.clone()).unwrap();
    assert_eq!(serde_json::to_value(medium.open(state).unwrap().state()).unwrap(), whole);
    let mut random = Random::new(4);
    let (mut refused, mut taken) = (0, 0);
    for _ in 0..3000 {
        let mut value = whole.clone();
        for _ in 0..random.between(1, 3) {
            change_one(&mut value, &mut random);
        }
        let state = serde_json::from_value(value).ok();
        let Some(map) = state.and_then(|state| medium.open(state).ok()) else {
            refused += 1;
            continue;
        };
        taken += 1;
        use_all(&mut medium, map);
    }
    assert!(refused > 1000 && taken > 300, "{refused} were refused, {taken} not");
}

/// Reads, writes and removes everything that a map says it has.
fn use_all(medium: &mut Medium, map: PoolMap) {
    medium.map = map;
    for version in medium.map.volumes() {
        for block in [0, 50, 1999] {
            let _ = medium.run(|map, _| map.locate(version.id, block));
        }
        let at = PayloadPlace { place: BlockPlace { segment: SegmentId(9), block: 9 }, offset: 0 };
        if let Ok(number) = medium.run(|map, _| map.take_number()) {
            let record = LogRecord::Write { volume: version.id.0, block: 50, number, crc: 1 };
            let _ = medium.run(|map, _| map.apply(&record, at, 1, None, &mut NoLive));
        }
        let volume = version.id;
        for change in [
            PoolChange::Resize { volume, blocks: 60 },
            PoolChange::Clear { volume },
            PoolChange::Remove { volume },
        ] {
            let record = LogRecord::Change { bytes: 0, crc: 0, is_copy: false };
            let _ = medium.run(|map, _| map.apply(&record, at, 1, Some(&change), &mut NoLive));
        }
    }
    while let Ok(Some(record)) = medium.run(|map, _| map.removal_step()) {
        let at = PayloadPlace { place: BlockPlace { segment: SegmentId(9), block: 9 }, offset: 0 };
        let _ = medium.run(|map, _| map.apply(&record, at, 1, None, &mut NoLive));
    }
    assert_eq!(medium.map.volume_count(), 0, "all removals come to their end");
}
