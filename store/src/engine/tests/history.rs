//! Histories of volumes: when moments are taken, what they hold, and when they go.

use super::pool::TestPool;
use crate::api::{PoolChange, PoolError, VolumeId};
use crate::history::{HistoryOptions, HistoryRest, PoolHistory};
use seal::{SealEntropy, WrappingKey};

/// The time when a test begins, in milliseconds since 1970.
const BEGIN_MS: u64 = 1_790_000_000_000;

/// Rounds in which all is done that is due.
const ROUNDS: usize = 60;

impl TestPool {
    /// It is so many milliseconds after the beginning.
    fn time(&mut self, at_ms: u64) {
        self.engine.set_time((BEGIN_MS + at_ms) * 1_000_000);
        (0..ROUNDS).for_each(|_| self.round());
        self.rest();
    }

    fn keep(&mut self, volume: VolumeId, reach_ms: u64, step_ms: u64) {
        let history = Some(HistoryOptions { reach_ms, step_ms });
        self.change(PoolChange::History { volume, history }).expect("a history");
    }

    /// The times of a volume's moments, in milliseconds after the beginning.
    fn times(&self, volume: VolumeId) -> Vec<u64> {
        let moments = self.engine.moments_of(volume).into_iter();
        moments.map(|moment| moment.at_ns / 1_000_000 - BEGIN_MS).collect()
    }

    /// The words of the first blocks of a clone of a volume as it was.
    fn clone_at(&mut self, volume: VolumeId, at_ms: u64, name: &str) -> VolumeId {
        let found = self.engine.moment_at(volume, (BEGIN_MS + at_ms) * 1_000_000);
        let snapshot = found.expect("a moment").id;
        let change = PoolChange::Clone { snapshot, name: name.to_owned() };
        self.change(change).expect("a clone")
    }

    fn history(&self, volume: VolumeId) -> PoolHistory {
        let list = self.engine.volumes();
        let found = list.into_iter().find(|it| it.id == volume);
        found.and_then(|it| it.history).expect("a history")
    }
}

#[test]
fn a_written_volume_has_a_moment_in_each_step_and_an_idle_one_writes_nothing() {
    let mut pool = TestPool::new(1, 64, 32);
    let (a, b) = (pool.create("a", 64), pool.create("b", 64));
    pool.keep(a, 10_000, 1_000);
    pool.keep(b, 10_000, 1_000);
    pool.time(500);
    assert_eq!((pool.times(a), pool.times(b)), (vec![500], vec![500]), "it begins at once");
    let before = pool.engine.status();
    for at_ms in (1_000..5_000).step_by(100) {
        pool.time(at_ms);
    }
    let after = pool.engine.status();
    let rows = |it: &crate::PoolStatus| it.counters.guest_row_blocks;
    assert_eq!(rows(&after), rows(&before), "an idle volume costs nothing");
    // Writes within a step are one moment, of what the volume was at the step's end.
    for (at_ms, word) in [(5_000, 1), (5_300, 2), (5_600, 3), (6_000, 4), (6_100, 5)] {
        pool.write(a, 0, 1, word).expect("a write");
        pool.time(at_ms);
    }
    pool.time(9_000);
    assert_eq!(pool.times(a), [500, 5_000, 6_000, 9_000]);
    assert_eq!(pool.times(b), [500]);
    let words =
        [(4_999, 0), (5_000, 1), (5_999, 1), (6_000, 4), (8_999, 4), (9_000, 5), (99_999, 5)];
    for (at_ms, word) in words {
        let name = format!("at{at_ms}");
        let clone = pool.clone_at(a, at_ms, &name);
        assert_eq!(pool.read(clone, 0, 1), Ok(vec![word]), "{name}");
    }
    let too_early = pool.engine.moment_at(a, (BEGIN_MS + 499) * 1_000_000);
    let oldest_ns = (BEGIN_MS + 500) * 1_000_000;
    assert_eq!(too_early, Err(PoolError::BeforeHistory { oldest_ns }));
    let c = pool.create("c", 1);
    assert_eq!(pool.engine.moment_at(c, u64::MAX), Err(PoolError::NoHistory(c)));
    assert!(pool.engine.volumes().iter().all(|it| !it.name.is_empty()), "moments are not listed");
}

/// Each step of a written volume costs few blocks of the log, at any length of its history.
#[test]
fn a_step_costs_a_bounded_number_of_rows() {
    let mut pool = TestPool::new(1, 120, 64);
    let volume = pool.create("a", 64);
    pool.keep(volume, 3_000, 100);
    pool.time(0);
    let mut blocks = pool.engine.status().counters.guest_row_blocks;
    for step in 1..200 {
        pool.write(volume, step % 64, 1, step).expect("a write");
        pool.time(step * 100);
        let now = pool.engine.status().counters.guest_row_blocks;
        // The write, the moment; and when one goes, the word for it and the steps of its removal.
        assert!(now - blocks <= 2 + 1 + 1 + 4, "step {step}: {} blocks", now - blocks);
        blocks = now;
    }
    assert!(pool.times(volume).len() <= 32, "{:?}", pool.times(volume));
    assert_eq!(pool.history(volume).shortened_ns, 0);
}

#[test]
fn a_moment_goes_when_the_next_one_is_too_old_and_its_pages_with_it() {
    let mut pool = TestPool::new(1, 64, 32);
    let volume = pool.create("a", 64);
    pool.keep(volume, 3_000, 1_000);
    for second in 0..10 {
        pool.write(volume, 0, 1, second + 1).expect("a write");
        pool.time(second * 1_000);
    }
    assert_eq!(pool.times(volume), [6_000, 7_000, 8_000, 9_000]);
    let PoolHistory { moments, blocks, .. } = pool.history(volume);
    assert_eq!((moments, blocks), (4, 3), "the newest moment has what the volume has");
    assert_eq!(pool.engine.status().data_blocks, 4);
    // An idle volume keeps its last moment, however old it is.
    pool.time(1_000_000);
    assert_eq!(pool.times(volume), [9_000]);
    assert_eq!((pool.engine.status().data_blocks, pool.history(volume).blocks), (1, 0));
    pool.change(PoolChange::History { volume, history: None }).expect("no history");
    pool.time(1_000_001);
    assert_eq!((pool.times(volume), pool.engine.status().moments), (vec![], 0));
    assert!(!pool.engine.keeps_history(), "nothing is left to look after");
}

#[test]
fn histories_are_there_after_a_kill_and_after_a_checkpoint() {
    let mut pool = TestPool::new(1, 64, 32);
    let volume = pool.create("a", 64);
    pool.keep(volume, 60_000, 1_000);
    for second in 0..5 {
        pool.write(volume, 0, 2, second + 1).expect("a write");
        pool.time(second * 1_000);
    }
    let (times, history) = (pool.times(volume), pool.history(volume));
    pool.flush();
    let pool = pool.reopened(2);
    assert_eq!((pool.times(volume), pool.history(volume)), (times.clone(), history));
    let mut pool = pool.close_and_open(3);
    assert_eq!((pool.times(volume), pool.history(volume)), (times, history));
    let clone = pool.clone_at(volume, 2_500, "b");
    assert_eq!(pool.read(clone, 0, 2), Ok(vec![3, 3]));
    pool.change(PoolChange::Remove { volume }).expect("it goes");
    pool.time(6_000);
    assert_eq!(
        (pool.times(volume), pool.engine.status().moments),
        (vec![], 0),
        "b has what is left"
    );
    assert_eq!(pool.read(clone, 0, 2), Ok(vec![3, 3]));
    pool.change(PoolChange::Remove { volume: clone }).expect("it goes");
    pool.time(7_000);
    let status = pool.engine.status();
    assert_eq!((status.moments, status.data_blocks), (0, 0));
}

#[test]
fn a_clock_that_jumps_leaves_moments_in_their_order() {
    let mut pool = TestPool::new(1, 64, 32);
    let volume = pool.create("a", 64);
    pool.keep(volume, 100_000, 1_000);
    pool.write(volume, 0, 1, 1).expect("a write");
    pool.time(50_000);
    // Back by 40 s: a step by the other clock must pass, which is a millisecond in each round.
    pool.write(volume, 0, 1, 2).expect("a write");
    pool.time(10_000);
    (0..1_100).for_each(|_| pool.round());
    assert_eq!(pool.times(volume), [50_000, 50_000]);
    let clone = pool.clone_at(volume, 50_000, "b");
    assert_eq!(pool.read(clone, 0, 1), Ok(vec![2]), "the later one of the same time");
    pool.write(volume, 0, 1, 3).expect("a write");
    pool.time(51_000);
    assert_eq!(pool.times(volume), [50_000, 50_000, 51_000]);
    // Forward: all but the last one are old.
    pool.time(500_000);
    assert_eq!(pool.times(volume), [51_000]);
    pool.rest();
}

#[test]
fn a_history_gives_way_before_writes_wait() {
    let mut pool = TestPool::new(1, 100, 32);
    let volume = pool.create("a", 400);
    pool.keep(volume, 7_000_000, 100);
    let refusals = |pool: &TestPool| pool.engine.status().counters.full_refusals;
    let mut first_short = None;
    for step in 0..600 {
        pool.write(volume, step * 32 % 400, 16, step + 1).expect("a write");
        pool.time(step * 100);
        let history = pool.history(volume);
        if first_short.is_none() && history.shortened_ns > 0 {
            first_short = Some(step);
            assert!(!pool.engine.status().is_full);
        }
    }
    let first_short = first_short.expect("the pool is too small for it");
    assert!(first_short > 50, "{first_short}");
    assert_eq!(refusals(&pool), 0, "no write has waited");
    let history = pool.history(volume);
    assert!(history.oldest_ns > history.shortened_ns, "{history:?}");
    // The last write of each block is there.
    let has = |step: u64, block: u64| (step * 32 % 400..).take(16).any(|at| at == block);
    for block in [0, 15, 200] {
        let word = (0..600).rfind(|&step| has(step, block)).map_or(0, |step| step + 1);
        assert_eq!(pool.read(volume, block, 1), Ok(vec![word]));
    }
}

#[test]
fn a_history_is_part_of_its_volume_s_limit_and_gives_way_to_it() {
    let mut pool = TestPool::new(1, 200, 32);
    let (alice, ben) = (pool.create("alice", 400), pool.create("ben", 400));
    pool.keep(alice, 7_000_000, 100);
    pool.keep(ben, 7_000_000, 100);
    pool.change(PoolChange::Quota { volume: alice, reservation: 0, limit: Some(800) }).unwrap();
    pool.write(ben, 0, 8, 1).expect("a write");
    for step in 0..300 {
        pool.write(alice, step * 16 % 384, 16, step + 1).expect("a write");
        pool.time(step * 100);
    }
    let list = pool.engine.volumes();
    let entry = list.iter().find(|it| it.id == alice).expect("alice");
    assert!(entry.account_blocks <= 800, "{entry:?}");
    assert_eq!(pool.engine.status().counters.quota_refusals, 0);
    let history = pool.history(alice);
    assert!(history.shortened_ns > 0 && history.moments > 0, "{history:?}");
    assert_eq!(pool.history(ben).shortened_ns, 0, "a neighbour's history stays");
    // A limit that the volume itself fills leaves no room for a history.
    pool.change(PoolChange::Quota { volume: alice, reservation: 0, limit: Some(400) }).unwrap();
    pool.time(40_000);
    assert_eq!(pool.history(alice).rests, Some(HistoryRest::Limit));
}

#[test]
fn a_history_is_left_by_a_rollback_and_a_clear_and_resizes() {
    let mut pool = TestPool::new(1, 64, 32);
    let volume = pool.create("a", 64);
    pool.keep(volume, 1_000_000, 1_000);
    pool.write(volume, 0, 4, 1).expect("a write");
    let snapshot = pool.snapshot(volume, "s");
    pool.write(volume, 0, 4, 2).expect("a write");
    pool.time(1_000);
    pool.change(PoolChange::Rollback { volume, snapshot }).expect("a rollback");
    pool.time(2_000);
    pool.change(PoolChange::Clear { volume }).expect("a clear");
    pool.time(3_000);
    pool.change(PoolChange::Resize { volume, blocks: 2 }).expect("a resize");
    pool.write(volume, 0, 2, 3).expect("a write");
    pool.time(4_000);
    pool.change(PoolChange::Resize { volume, blocks: 100 }).expect("a resize");
    pool.time(5_000);
    assert_eq!(pool.times(volume), [1_000, 2_000, 3_000, 4_000, 5_000]);
    for (at_ms, words) in [
        (1_000, vec![2, 2, 2, 2]),
        (2_000, vec![1, 1, 1, 1]),
        (3_000, vec![0, 0, 0, 0]),
        (4_000, vec![3, 3]),
        (5_000, vec![3, 3, 0, 0]),
    ] {
        let clone = pool.clone_at(volume, at_ms, &format!("at{at_ms}"));
        assert_eq!(pool.read(clone, 0, words.len() as u32), Ok(words));
    }
    // The snapshot keeps its place, and lists know nothing of moments.
    let list = pool.engine.volumes();
    let parent = list.iter().find(|it| it.id == volume).and_then(|it| it.parent);
    assert_eq!(parent, Some(snapshot));
}

#[test]
fn moments_of_an_encrypted_volume_have_its_keys_and_go_with_them() {
    let mut pool = TestPool::new(1, 64, 32);
    let key = WrappingKey::new("key", &[5; 64]);
    let entropy = SealEntropy::new([6; SealEntropy::BYTES].into());
    let change = pool.engine.sealed_volume("a", 64, &key, &entropy);
    let volume = pool.change(change).expect("a volume");
    pool.engine.unlock(volume, &key).expect("its key");
    pool.keep(volume, 1_000_000, 1_000);
    for second in 1..4 {
        pool.write(volume, 0, 2, second).expect("a write");
        pool.time(second * 1_000);
    }
    let clone = pool.clone_at(volume, 2_000, "b");
    assert_eq!(pool.read(clone, 0, 2), Ok(vec![2, 2]));
    pool.change(PoolChange::Remove { volume: clone }).expect("it goes");
    pool.time(5_000);
    // Moments are no relatives that must be named.
    pool.change(PoolChange::Shred { volume, all: false }).expect("it is alone");
    pool.time(6_000);
    let status = pool.engine.status();
    assert_eq!((status.moments, status.data_blocks), (0, 0));
    assert!(pool.engine.volumes().is_empty());
}
