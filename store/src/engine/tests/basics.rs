//! Requests, snapshots and openings without faults.

use super::pool::TestPool;
use crate::api::{PoolChange, PoolError, VolumeId};

#[test]
fn a_write_reads_back_also_after_a_kill_and_after_a_close() {
    let mut pool = TestPool::new(2, 40, 64);
    let disk = pool.create("disk", 1000);
    assert_eq!(pool.read(disk, 0, 257), Ok(vec![0; 257]));
    pool.write(disk, 3, 200, 5).expect("a write");
    pool.write(disk, 10, 2, 6).expect("a write");
    let mut expected = vec![5; 200];
    expected[7..9].fill(6);
    assert_eq!(pool.read(disk, 3, 200), Ok(expected.clone()));
    let mut pool = pool.reopened(2);
    assert_eq!(pool.read(disk, 3, 200), Ok(expected.clone()));
    pool.zero(disk, 0, 4);
    expected[0] = 0;
    let mut pool = pool.close_and_open(3);
    assert_eq!(pool.engine.status().log_blocks, 0, "a closed pool has no log to read");
    assert_eq!(pool.read(disk, 3, 200), Ok(expected));
}

#[test]
fn a_part_of_a_block_is_merged() {
    let mut pool = TestPool::new(1, 40, 64);
    let disk = pool.create("disk", 10);
    pool.wait(|engine, tag| engine.write_part(tag, disk, 1, 512, &[9; 512])).1.expect("a part");
    pool.wait(|engine, tag| engine.write_part(tag, disk, 1, 0, &[8; 1024])).1.expect("a part");
    let (tag, result) = pool.wait(|engine, tag| engine.read(tag, disk, 1, 1));
    assert_eq!(result, Ok(disk));
    let bytes = pool.bytes(tag);
    assert!(bytes[..1024].iter().all(|&byte| byte == 8));
    assert!(bytes[1024..].iter().all(|&byte| byte == 0));
}

#[test]
fn snapshots_and_clones_keep_what_they_were_made_of() {
    let mut pool = TestPool::new(1, 60, 64);
    let disk = pool.create("disk", 100);
    pool.write(disk, 0, 50, 1).expect("a write");
    let first = pool.snapshot(disk, "first");
    pool.write(disk, 25, 50, 2).expect("a write");
    let change = PoolChange::Clone { snapshot: first, name: "clone".into() };
    let clone = pool.change(change).expect("a clone");
    pool.write(clone, 0, 1, 3).expect("a write");
    let mut pool = pool.reopened(2);
    assert_eq!(pool.read(first, 0, 51).expect("reads")[..50], [1; 50]);
    assert_eq!(pool.read(disk, 25, 1), Ok(vec![2]));
    assert_eq!(pool.read(clone, 0, 2), Ok(vec![3, 1]));
    pool.change(PoolChange::Rollback { volume: disk, snapshot: first }).expect("a rollback");
    assert_eq!(pool.read(disk, 25, 1), Ok(vec![1]));
    for volume in [first, disk, clone] {
        pool.change(PoolChange::Remove { volume }).expect("a removal");
    }
    pool.rest();
    assert_eq!(pool.engine.status().data_blocks, 0, "all pages are free");
    let mut pool = pool.close_and_open(3);
    pool.rest();
    let status = pool.engine.status();
    assert_eq!(status.data_blocks, 0);
    assert!(status.segments.free >= status.segments.total - 10, "{status:#?}");
}

#[test]
fn wrong_requests_are_errors_with_names() {
    let mut pool = TestPool::new(1, 40, 64);
    let disk = pool.create("disk", 10);
    assert_eq!(pool.write(disk, 10, 1, 1), Err(PoolError::BeyondEnd));
    assert_eq!(pool.read(disk, u64::MAX, 1), Err(PoolError::BeyondEnd));
    let none = VolumeId(99);
    assert_eq!(pool.read(none, 0, 1), Err(PoolError::NoVolume(none)));
    let snapshot = pool.snapshot(disk, "s");
    let refused = pool.write(snapshot, 0, 1, 1);
    assert!(matches!(refused, Err(PoolError::WrongKind(..))), "{refused:?}");
    let twice = pool.change(PoolChange::Create { name: "disk".into(), blocks: 1 });
    assert_eq!(twice, Err(PoolError::NameTaken("disk".into())));
}

#[test]
fn devices_that_are_not_the_pool_are_refused_by_name() {
    let pool = TestPool::new(2, 40, 64);
    let text = |devices: super::memory::MemoryDevices| {
        TestPool::open(devices, 5).expect_err("not the pool").to_string()
    };
    let whole = pool.devices;
    let mut missing = whole.clone();
    missing.blocks.pop();
    assert_eq!(text(missing), "the pool has 2 devices, and 1 are given: number 1 is missing");
    let mut swapped = whole.clone();
    swapped.blocks.swap(0, 1);
    assert!(text(swapped).contains("listed twice or in the wrong order"));
    let mut twice = whole.clone();
    twice.blocks[1] = twice.blocks[0].clone();
    assert!(text(twice).contains("listed twice or in the wrong order"));
    let mut short = whole.clone();
    short.blocks[1].pop();
    assert!(text(short).contains("it was cut off"));
    let mut blank = whole.clone();
    blank.blocks[0].fill(crate::block::Block::ZERO);
    assert!(text(blank).contains("no device of a pool"));
    let mut old = whole.clone();
    let after = TestPool::open(whole.clone(), 6).expect("opens").close_and_open(7).devices;
    old.blocks[0] = after.blocks[0].clone();
    assert!(text(old).contains("old copy"));
    TestPool::open(whole, 8).expect("the pool itself opens");
}
