//! Moments in the catalog: their bounds, their table, and tables that are impossible.

use crate::api::{PoolChange, VolumeId};
use crate::format::{LogRecord, MOMENT_VOLUMES_MAX, NO_VOLUME, PayloadPlace};
use crate::history::HistoryOptions;
use crate::map::tests::medium::Medium;
use crate::map::{Applied, MapError, MapState, PoolMap};

const UUID: [u8; 16] = [7; 16];

fn moment(at_ns: u64, volumes: &[VolumeId]) -> LogRecord {
    let volumes: [u32; MOMENT_VOLUMES_MAX] =
        std::array::from_fn(|at| volumes.get(at).map_or(NO_VOLUME, |volume| volume.0));
    LogRecord::Moment { at_ns, volumes }
}

fn medium() -> (Medium, VolumeId) {
    let mut medium = Medium::new(3, 512, 128);
    let volume = medium.change(PoolChange::Create { name: "a".to_owned(), blocks: 64 });
    let history = Some(HistoryOptions { reach_ms: 7_200_000, step_ms: 200 });
    medium.change(PoolChange::History { volume, history });
    (medium, volume)
}

fn apply(medium: &mut Medium, record: LogRecord) -> Result<Applied, MapError> {
    let at =
        PayloadPlace { place: crate::format::BlockPlace::from_word(1 << 63).unwrap(), offset: 0 };
    medium.run(|map, live| map.apply(&record, at, 1, None, live))
}

/// The state after a checkpoint, with another table.
fn reopened(state: &MapState, change: impl FnOnce(&mut Vec<u32>)) -> Result<PoolMap, String> {
    use zerocopy::{FromBytes, IntoBytes};
    let bytes = state.moment_table().as_bytes();
    let word = |at: &[u8]| u32::from_le_bytes(at.try_into().unwrap());
    let mut words: Vec<u32> = bytes.chunks_exact(4).map(word).collect();
    change(&mut words);
    let bytes: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
    let table = bytes.chunks_exact(64).map(|it| FromBytes::read_from_bytes(it).unwrap()).collect();
    let json = serde_json::to_string(state).unwrap();
    let state: MapState = serde_json::from_str(&json).unwrap();
    PoolMap::from_state(UUID, 512, state.with_moments(table))
}

/// Two hours at 200 ms.
#[test]
fn thousands_of_moments_are_64_bytes_each_and_no_json() {
    let (mut medium, volume) = medium();
    for at in 0..36_000 {
        assert_eq!(apply(&mut medium, moment(at, &[volume])), Ok(Applied::Done));
    }
    let state = medium.map.state();
    assert_eq!(size_of_val(state.moment_table()), 36_000 * 64);
    let json = serde_json::to_string(&state).unwrap();
    assert!(json.len() < 1_500, "{} bytes: {json}", json.len());
    assert_eq!((medium.map.volume_count(), medium.map.volumes().len()), (1, 1));
    let again = reopened(&state, |_| {}).unwrap();
    assert_eq!(again.state(), state);
    assert_eq!(again.moments_of(volume).len(), 36_000);
}

#[test]
fn moments_end_before_the_generations_that_snapshots_need() {
    let (mut medium, volume) = medium();
    assert_eq!(apply(&mut medium, moment(1, &[volume])), Ok(Applied::Done));
    let json = serde_json::to_string(&medium.map.state()).unwrap();
    let last = (1_u64 << 28) - 1;
    for (generation, is_taken) in [(last - (1 << 20) - 1, true), (last - (1 << 20), false)] {
        let old = format!("\"generation\":{},", 2);
        let json = json.replacen(&old, &format!("\"generation\":{generation},"), 1);
        let state: MapState = serde_json::from_str(&json).unwrap();
        let table = medium.map.state().moment_table().to_vec();
        let map = PoolMap::from_state(UUID, 512, state.with_moments(table)).unwrap();
        let mut medium = Medium::new(3, 512, 128);
        medium.map = map;
        let wanted = if is_taken { Applied::Done } else { Applied::Dropped };
        assert_eq!(apply(&mut medium, moment(2, &[volume])), Ok(wanted), "{generation}");
        let rests = medium.map.volumes()[0].history.and_then(|history| history.rests);
        assert_eq!(rests, Some(crate::history::HistoryRest::Generations));
        let snapshot =
            PoolChange::Snapshot { volumes: vec![volume], name: "s".to_owned(), at_s: 1 };
        assert!(medium.map.check(&snapshot).is_ok(), "a snapshot has room");
    }
}

#[test]
fn a_moment_is_of_a_volume_that_may_have_one() {
    let (mut medium, volume) = medium();
    let other = medium.change(PoolChange::Create { name: "b".to_owned(), blocks: 64 });
    for volumes in [&[other][..], &[VolumeId(77)], &[]] {
        assert_eq!(apply(&mut medium, moment(1, volumes)), Ok(Applied::Dropped));
    }
    assert_eq!(apply(&mut medium, moment(1, &[volume, other])), Ok(Applied::Done));
    assert_eq!((medium.map.moments_of(volume).len(), medium.map.moments()), (1, 1));
    // It is no snapshot of a user. It can be cloned and read.
    let moment = medium.map.moments_of(volume)[0].id;
    let clone = PoolChange::Clone { snapshot: moment, name: "c".to_owned() };
    assert!(medium.map.check(&clone).is_ok());
    assert!(medium.map.check(&PoolChange::Remove { volume: moment }).is_err());
    medium.change(PoolChange::Remove { volume });
    assert!(medium.map.check(&clone).is_err(), "it goes with its volume");
}

#[test]
fn impossible_tables_are_refused() {
    let (mut medium, volume) = medium();
    for at in [5, 6, 7] {
        apply(&mut medium, moment(at, &[volume])).unwrap();
    }
    let state = medium.map.state();
    assert!(reopened(&state, |_| {}).is_ok());
    // The words of a moment: id, volume, parent, generation, time, root, size, pages ..
    for (at, value, what) in [
        (0, 7, "a number of a volume"),
        (0, NO_VOLUME, "no number"),
        (0, 0x8000_0001, "a number twice"),
        (1, 9, "a volume that never was"),
        (1, 0x8000_0001, "a moment of a moment"),
        (2, 5, "a parent that is not there"),
        (2, 0x8000_0002, "a parent that is younger"),
        (3, 77, "a generation of the future"),
        (3, 2, "a generation twice"),
        (4, 99, "a time behind the next one's"),
        (6, 1, "a root that is no node"),
        (8, 0, "no size"),
        (11, 1 << 20, "more pages than a pool has"),
        (15, 3, "a family that is not there"),
    ] {
        let reopened = reopened(&state, |words| words[at] = value);
        assert!(reopened.is_err(), "{what}");
    }
    let short = reopened(&state, |words| words.truncate(16));
    assert!(short.is_err(), "another count than the catalog's");
}
