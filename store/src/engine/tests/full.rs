//! Pools that are full, and get room again.

use super::pool::TestPool;
use crate::api::{Admission, PoolChange};

#[test]
fn a_full_pool_lets_writes_wait_and_is_cleaned_up_by_zeroes() {
    let mut pool = TestPool::new(1, 64, 32);
    let disk = pool.create("disk", 10_000);
    let taken = pool.fill(disk, 0, 10_000);
    let status = pool.engine.status();
    assert!(status.is_full, "{status:#?}");
    assert!(taken * 2 > status.size_blocks, "{taken} of {}", status.size_blocks);
    pool.rest();
    for at in (0..taken).step_by(64) {
        pool.zero(disk, at, 64);
    }
    pool.rest();
    assert!(!pool.engine.status().is_full);
    let again = pool.fill(disk, 0, 10_000);
    assert!(again * 10 > taken * 9, "{again} blocks, and {taken} before");
}

#[test]
fn a_removed_snapshot_makes_room() {
    let mut pool = TestPool::new(1, 64, 32);
    let disk = pool.create("disk", 10_000);
    let half = pool.engine.status().size_blocks / 2;
    assert_eq!(pool.fill(disk, 0, half), half);
    let snapshot = pool.snapshot(disk, "s");
    let taken = pool.fill(disk, 0, half);
    assert!(taken < half, "the snapshot keeps the old blocks");
    pool.change(PoolChange::Remove { volume: snapshot }).expect("a removal in a full pool");
    assert_eq!(pool.fill(disk, taken, half), half);
}

#[test]
fn overwriting_goes_on_for_ever_and_the_pool_comes_to_rest() {
    let mut pool = TestPool::new(2, 40, 32);
    let disk = pool.create("disk", 10_000);
    let most = pool.engine.status().size_blocks * 7 / 10;
    let mut at = 1;
    for round in 0..20_000_u64 {
        at = (at * 1_103_515_245 + 12_345) % 0x8000_0000;
        let block = at / 7 % most;
        pool.write(disk, block, 1, round + 1).expect("a write");
    }
    pool.rest();
    let status = pool.engine.status();
    assert!(status.counters.collected_segments > 0, "{status:#?}");
    let mut pool = pool.reopened(2);
    pool.rest();
    pool.write(disk, 0, 1, 77).expect("a write");
}

#[test]
fn a_host_without_space_stops_writes_and_not_reads() {
    let mut pool = TestPool::new(1, 64, 32);
    let disk = pool.create("disk", 100);
    pool.write(disk, 0, 1, 1).expect("a write");
    pool.devices.no_space = true;
    let tag = pool.tag();
    assert_eq!(pool.engine.write(tag, disk, 1, 1, &mut |_, page| page.0.fill(0)), Admission::Taken);
    for _ in 0..1_000 {
        pool.round();
    }
    assert_eq!(pool.end(tag), None);
    assert!(pool.engine.status().is_full && pool.engine.status().no_space);
    assert_eq!(pool.read(disk, 0, 1), Ok(vec![1]));
    pool.devices.no_space = false;
    for _ in 0..1_000 {
        pool.round();
    }
    assert_eq!(pool.end(tag), Some(Ok(disk)));
    assert!(!pool.engine.status().is_full);
}

#[test]
fn a_failed_device_ends_all_changes_with_its_error() {
    let mut pool = TestPool::new(1, 64, 32);
    let disk = pool.create("disk", 100);
    pool.write(disk, 0, 1, 1).expect("a write");
    pool.devices.fails = true;
    pool.write(disk, 1, 1, 2).expect_err("the device fails");
    pool.wait(crate::engine::PoolEngine::flush).1.expect_err("the pool has failed");
    assert_eq!(pool.read(disk, 0, 1), Ok(vec![1]));
    assert!(pool.engine.status().failed.is_some());
    pool.devices.fails = false;
    let mut pool = pool.reopened(2);
    assert_eq!(pool.read(disk, 0, 1), Ok(vec![1]));
}

/// A recovery may find such segments used, if pages of the map are damaged: the rows that emptied
/// them count for nothing then.
#[test]
fn segments_that_the_log_has_freed_are_no_reserve_of_an_opening() {
    let mut pool = TestPool::new(1, 200, 32);
    let disk = pool.create("disk", 1_000);
    pool.write(disk, 0, 1, 1).expect("a write");
    pool.rest();
    let core = &mut pool.engine.core;
    assert!(core.has_room(1));
    // Segments that the log has emptied behind the checkpoint take the place of free ones, until
    // an opening would not have enough.
    let mut emptied = Vec::new();
    while core.segments.sure_count() >= core.moved_floor() {
        let id = core.segments.take().expect("a free segment");
        core.segments.note_row(id, 32, core.checkpointed);
        core.segments.note_ordered(id);
        core.segments.close(id);
        emptied.push(id);
    }
    core.segments.release_early(&emptied, core.checkpointed);
    assert!(core.segments.free_count() > core.guest_floor() + 1, "there are enough free ones");
    assert!(core.segments.sure_count() < core.moved_floor());
    let tag = pool.tag();
    let refused = pool.engine.write(tag, disk, 1, 1, &mut |_, page| page.0.fill(2));
    assert_eq!(refused, Admission::Busy);
    // A checkpoint has them as free ones, and the write goes on.
    let before = pool.engine.status().counters.checkpoints;
    pool.write(disk, 1, 1, 2).expect("it goes on");
    assert_eq!(pool.engine.status().counters.checkpoints, before + 1);
}

/// Each kill leaves segments behind that are written in part. Collection alone gets them back, and
/// it needs segments itself.
#[test]
fn a_full_pool_that_is_killed_again_and_again_is_cleaned_up() {
    let mut pool = TestPool::new(1, 300, 64);
    let disk = pool.create("disk", 40_000);
    let half = pool.engine.status().size_blocks / 2;
    pool.fill(disk, 0, half);
    let snapshot = pool.snapshot(disk, "s");
    let mut at = 1;
    let mut next = |below: u64| {
        at = (at * 1_103_515_245 + 12_345) % 0x8000_0000_u64;
        at / 7 % below
    };
    for life in 0..300_u64 {
        for _ in 0..next(60) {
            // The guest goes on as soon as it may.
            for _ in 0..16 {
                let (tag, block) = (pool.tag(), next(half));
                let _ = pool.engine.write(tag, disk, block, 1, &mut |_, page| page.0.fill(2));
            }
            pool.round();
        }
        pool = pool.reopened(2 + life);
    }
    pool.rest();
    pool.change(PoolChange::Remove { volume: snapshot }).expect("a removal in a full pool");
    assert_eq!(pool.fill(disk, half, half + half / 2), half + half / 2);
}
