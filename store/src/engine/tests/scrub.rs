//! Scrubbing: all pages are proved, at the rate that was asked for, and damage is found.

use serde_json::json;

use super::pool::TestPool;
use crate::api::VolumeId;
use crate::engine::scrub::{ScrubState, Scrubber};
use crate::engine::{DamagedBlock, ScrubPace, ScrubStatus};

impl TestPool {
    fn scrubbed(&mut self) -> ScrubStatus {
        self.engine.scrub(Some(ScrubPace::of(1_000_000)));
        self.rest();
        self.engine.status().scrub
    }

    /// Damages each copy of the block `block` that has this word.
    fn damage(&mut self, word: u64, block: u64) {
        let mut front = word.to_le_bytes().to_vec();
        front.extend((block << 16).to_le_bytes());
        let blocks = self.devices.blocks.iter_mut().flatten();
        let mut hit = 0;
        for found in blocks.filter(|found| found.0[..16] == front) {
            found.0[99] ^= 1;
            hit += 1;
        }
        assert!(hit > 0, "the block is on a device");
    }
}

fn pool() -> (TestPool, VolumeId, VolumeId) {
    let mut pool = TestPool::new(2, 64, 64);
    let disk = pool.create("disk", 1 << 30);
    pool.write(disk, 0, 200, 1).expect("a write");
    pool.write(disk, 1 << 29, 50, 1).expect("a write");
    let snapshot = pool.snapshot(disk, "s");
    pool.write(disk, 100, 50, 2).expect("a write");
    (pool.close_and_open(2), disk, snapshot)
}

#[test]
fn a_pass_proves_all_pages_once() {
    let (mut pool, disk, snapshot) = pool();
    let status = pool.scrubbed();
    assert_eq!((status.passes, status.is_running), (1, false));
    assert_eq!((status.damaged_blocks, status.damaged_map_blocks), (0, 0));
    assert_eq!(status.checked_blocks, status.total_blocks);
    assert!(status.total_blocks > 300, "{status:?}");
    pool.damage(2, 120);
    pool.damage(1, 7);
    let status = pool.scrubbed();
    assert_eq!((status.passes, status.damaged_blocks), (2, 2));
    assert_eq!(status.checked_blocks, status.total_blocks - 2);
    let mut found = status.found;
    found.sort_by_key(|found| (found.volume, found.block));
    let at = |volume, block| DamagedBlock { volume, block };
    assert_eq!(found, [at(disk, 7), at(disk, 120), at(snapshot, 7)]);
    // Written again, it is whole; the snapshot keeps the damaged page.
    pool.write(disk, 7, 1, 3).expect("a write");
    let status = pool.scrubbed();
    assert_eq!((status.damaged_blocks, status.found.len()), (2, 2));
}

#[test]
fn a_pass_keeps_to_its_rate_and_can_be_stopped() {
    let (mut pool, disk, _) = pool();
    pool.engine.scrub(Some(ScrubPace::of(1000)));
    // A round takes a millisecond here.
    for _ in 0..100 {
        pool.round();
    }
    let status = pool.engine.status().scrub;
    assert!(status.is_running && (50..=120).contains(&status.checked_blocks), "{status:?}");
    assert_eq!(pool.read(disk, 120, 1), Ok(vec![2]));
    pool.engine.stop_scrub();
    pool.rest();
    let status = pool.engine.status().scrub;
    assert_eq!((status.is_running, status.passes), (false, 0));
    let status = pool.scrubbed();
    assert_eq!((status.passes, status.damaged_blocks), (1, 0));
}

/// Guests write, collection moves pages and removals free them: none of it looks like damage.
#[test]
fn pages_that_move_during_a_pass_are_no_damage() {
    let (mut pool, disk, snapshot) = pool();
    pool.engine.scrub(Some(ScrubPace::of(20_000)));
    for round in 0..60 {
        pool.write(disk, round * 7 % 300, 100, round + 10).expect("a write");
        if round == 20 {
            let change = crate::api::PoolChange::Remove { volume: snapshot };
            pool.change(change).expect("a removal");
        }
    }
    pool.rest();
    let status = pool.engine.status().scrub;
    assert_eq!((status.passes, status.damaged_blocks, status.damaged_map_blocks), (1, 0, 0));
}

/// A pool with some blocks of the page table beyond the first point of a pass.
fn long_pool() -> (TestPool, VolumeId) {
    let mut pool = TestPool::new(2, 128, 64);
    let disk = pool.create("disk", 1 << 30);
    for at in 0..20 {
        pool.write(disk, at * 200, 200, 1).expect("a write");
    }
    (pool.close_and_open(2), disk)
}

impl TestPool {
    /// Rounds until the pass has proved so many pages.
    fn scrub_up_to(&mut self, checked_blocks: u64) {
        for _ in 0..100_000 {
            if self.engine.status().scrub.checked_blocks >= checked_blocks {
                return;
            }
            self.round();
        }
        panic!("the pass does not get on: {:?}", self.engine.status().scrub);
    }
}

#[test]
fn a_pass_goes_on_when_the_pool_is_opened_again() {
    let (mut pool, disk) = long_pool();
    pool.damage(1, 100);
    pool.damage(1, 3900);
    pool.engine.scrub(Some(ScrubPace::of(20_000)));
    pool.scrub_up_to(3000);
    let before = pool.engine.status().scrub;
    assert_eq!((before.damaged_blocks, before.is_running), (1, true));
    let mut pool = pool.close_and_open(3);
    let after = pool.engine.status().scrub;
    assert!((1000..3000).contains(&after.checked_blocks), "at its last point: {after:?}");
    assert_eq!((after.total_blocks, after.damaged_blocks), (before.total_blocks, 1));
    assert!(after.is_running && !after.is_paused);
    pool.rest();
    let status = pool.engine.status().scrub;
    assert_eq!((status.passes, status.is_running, status.damaged_blocks), (1, false, 2));
    assert!(status.checked_blocks >= status.total_blocks - 2, "{status:?}");
    let mut found = status.found.clone();
    found.sort_by_key(|found| found.block);
    assert_eq!(found, [100, 3900].map(|block| DamagedBlock { volume: disk, block }));
    // The result of a pass stays.
    let pool = pool.close_and_open(4);
    assert_eq!(pool.engine.status().scrub, status);
}

#[test]
fn a_pass_begins_again_after_a_crash_and_a_stopped_pass_does_not() {
    let (mut pool, _) = long_pool();
    pool.engine.scrub(Some(ScrubPace::of(20_000)));
    pool.scrub_up_to(3000);
    let mut pool = pool.reopened(3);
    let status = pool.engine.status().scrub;
    assert!(status.is_running && status.checked_blocks < 3000, "{status:?}");
    pool.scrub_up_to(3000);
    pool.engine.stop_scrub();
    pool.rest();
    let mut pool = pool.reopened(4);
    assert!(!pool.engine.status().scrub.is_running);
    pool.rest();
    assert_eq!(pool.engine.status().scrub.passes, 0);
}

#[test]
fn a_pass_saves_its_point_from_time_to_time() {
    let (mut pool, _) = long_pool();
    pool.engine.scrub(Some(ScrubPace::of(60)));
    pool.scrub_up_to(3700);
    let pool = pool.reopened(3);
    let status = pool.engine.status().scrub;
    assert!(status.is_running && status.checked_blocks > 1000, "{status:?}");
}

#[test]
fn a_pass_rests_and_goes_on_at_its_own_pace() {
    let (mut pool, _) = long_pool();
    pool.engine.scrub(Some(ScrubPace::of(20_000)));
    pool.scrub_up_to(500);
    pool.engine.pause_scrub();
    pool.rest();
    let mut pool = pool.close_and_open(3);
    let status = pool.engine.status().scrub;
    assert!(status.is_running && status.is_paused, "{status:?}");
    pool.rest();
    assert_eq!(pool.engine.status().scrub.checked_blocks, status.checked_blocks);
    pool.engine.scrub(None);
    let began_ns = pool.now_ns;
    pool.rest();
    let status = pool.engine.status().scrub;
    assert_eq!((status.passes, status.is_paused, status.damaged_blocks), (1, false, 0));
    assert!(pool.now_ns - began_ns >= 4000 * 50_000 / 2, "it keeps its pace");
}

#[test]
fn a_pass_with_a_deadline_is_as_slow_as_it_can_be() {
    let (mut pool, _) = long_pool();
    let within_ns = 8_000_000_000;
    let pace = ScrubPace { blocks_per_s_max: 1_000_000, within_ns: Some(within_ns) };
    pool.engine.scrub(Some(pace));
    let began_ns = pool.now_ns;
    pool.scrub_up_to(2000);
    let half_ns = pool.now_ns - began_ns;
    assert!((within_ns / 3..within_ns * 2 / 3).contains(&half_ns), "half of it: {half_ns} ns");
    // The time in which the pool is closed does not count.
    let mut pool = pool.close_and_open(3);
    let began_ns = pool.now_ns;
    pool.rest();
    let all_ns = half_ns + (pool.now_ns - began_ns);
    assert!((within_ns * 4 / 5..within_ns + 200_000_000).contains(&all_ns), "all: {all_ns} ns");
    assert_eq!(pool.engine.status().scrub.passes, 1);
}

/// A pool's devices may come from anywhere: whole checks say nothing of what is written there.
#[test]
fn a_state_that_is_not_possible_is_forgotten() {
    let state = |count: u64, block: u64, numbers: usize| {
        let status = json!({ "is_running": true, "passes": count, "checked_blocks": 1,
            "total_blocks": 2, "damaged_blocks": 0, "damaged_map_blocks": 0, "found": [] });
        let pace = json!({ "blocks_per_s_max": 0, "within_ns": u64::MAX });
        let state = json!({ "status": status, "pace": pace, "in_nodes": false, "block": block,
            "damaged": vec![u64::MAX; numbers] });
        serde_json::from_value::<ScrubState>(state).expect("it has all members")
    };
    let works = |state| Scrubber::resumed(Some(state), u64::MAX / 2).works();
    assert!(works(state(1, 1 << 40, 64)));
    assert!(!works(state(u64::MAX, 0, 0)));
    assert!(!works(state(1, u64::MAX, 0)));
    assert!(!works(state(1, 0, 65)));
}
