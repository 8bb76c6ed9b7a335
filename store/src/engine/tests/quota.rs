//! Limits and reservations of volumes, and the counts of their pages.

use super::pool::TestPool;
use crate::api::{PoolChange, PoolError, QuotaWait, VolumeId};
use crate::map::PoolVolume;

fn quota(
    pool: &mut TestPool,
    volume: VolumeId,
    reservation: u64,
    limit: Option<u64>,
) -> Result<VolumeId, PoolError> {
    pool.change(PoolChange::Quota { volume, reservation, limit })
}

/// Writes new blocks until a write is refused for a long time; how many were taken.
fn fill(pool: &mut TestPool, disk: VolumeId, from: u64) -> u64 {
    let end = from + 100_000;
    let refused = pool.fill(disk, from, end);
    assert!(refused < end, "it is never refused");
    refused - from
}

fn listed(pool: &TestPool, volume: VolumeId) -> PoolVolume {
    let found = pool.engine.volumes().into_iter().find(|it| it.id == volume);
    found.expect("it is there")
}

#[test]
fn a_volume_at_its_limit_waits_and_no_other_does() {
    let mut pool = TestPool::new(1, 200, 32);
    let (alice, ben) = (pool.create("alice", 9_000), pool.create("ben", 1_000));
    quota(&mut pool, alice, 0, Some(1_000)).expect("a limit");
    let taken = fill(&mut pool, alice, 0);
    assert!((1_000..=2_024).contains(&taken), "{taken}");
    assert_eq!(listed(&pool, alice).wait, Some(QuotaWait::Limit));
    assert_eq!(pool.engine.quota_wait(alice), Some(QuotaWait::Limit));
    assert_eq!(pool.engine.quota_wait(ben), None);
    assert!(!pool.engine.status().is_full, "the pool has room");
    for block in 0..900 {
        pool.write(ben, block, 1, 5).expect("a neighbour goes on");
    }
    assert_eq!(listed(&pool, ben).wait, None);
    // After a kill all is the same.
    let mut pool = pool.reopened(2);
    let before = listed(&pool, alice);
    assert_eq!((before.owned_blocks, before.limit_blocks), (taken, Some(1_000)));
    assert_eq!(fill(&mut pool, alice, 5_000), 0);
    // Space that it gives back it can have again, and a higher limit is there at once.
    for at in (0..1_536).step_by(64) {
        pool.zero(alice, at, 64);
    }
    // No write has come meanwhile.
    assert_eq!(listed(&pool, alice).wait, None);
    assert!(fill(&mut pool, alice, 5_000) > 0);
    quota(&mut pool, alice, 0, None).expect("no limit");
    pool.write(alice, 8_000, 1, 5).expect("it goes on");
    assert_eq!(listed(&pool, alice).wait, None);
}

/// A volume that is as large as its limit can be overwritten for ever.
#[test]
fn a_full_volume_is_overwritten_at_its_limit() {
    let mut pool = TestPool::new(1, 200, 32);
    let disk = pool.create("disk", 500);
    quota(&mut pool, disk, 0, Some(500)).expect("a limit");
    for word in 1..6 {
        for block in (0..500).step_by(20) {
            pool.write(disk, block, 20, word).expect("it has that already");
        }
    }
    assert_eq!(listed(&pool, disk).owned_blocks, 500);
    // With a snapshot the old blocks count as well.
    pool.snapshot(disk, "s");
    let taken = fill(&mut pool, disk, 0).min(500);
    assert!(taken < 500 || listed(&pool, disk).account_blocks <= 500 + 1_024);
}

#[test]
fn a_reservation_is_kept_free_for_its_volume() {
    let mut pool = TestPool::new(1, 200, 32);
    let (alice, ben) = (pool.create("alice", 9_000), pool.create("ben", 9_000));
    let size = pool.engine.status().size_blocks;
    let half = size / 2;
    let refused = quota(&mut pool, alice, size, None);
    assert!(matches!(refused, Err(PoolError::NoPromise { .. })), "{refused:?}");
    quota(&mut pool, alice, half, None).expect("there is room");
    let refused = quota(&mut pool, ben, half, None);
    assert!(matches!(refused, Err(PoolError::NoPromise { .. })), "{refused:?}");
    let taken = fill(&mut pool, ben, 0);
    assert!(taken < size - half, "{taken} of {size}");
    assert_eq!(listed(&pool, ben).wait, Some(QuotaWait::Reserved));
    for block in 0..half - 64 {
        pool.write(alice, block, 1, 7).expect("it is reserved");
    }
    // A device cannot leave if a promise would be broken; a removal gives the promise back.
    pool.change(PoolChange::Remove { volume: alice }).expect("a removal");
    pool.rest();
    assert!(fill(&mut pool, ben, taken) > half / 2);
}

#[test]
fn wrong_quotas_are_refused() {
    let mut pool = TestPool::new(1, 64, 32);
    let disk = pool.create("disk", 100);
    let snapshot = pool.snapshot(disk, "s");
    let refused = quota(&mut pool, snapshot, 0, Some(5));
    assert!(matches!(refused, Err(PoolError::WrongKind(..))), "{refused:?}");
    let refused = quota(&mut pool, disk, 10, Some(5)).expect_err("it contradicts itself");
    assert!(refused.to_string().contains("make it larger"), "{refused}");
    let refused = quota(&mut pool, disk, 0, Some(u64::MAX)).expect_err("it is too much");
    assert!(refused.to_string().contains("no pool has so many"), "{refused}");
    assert_eq!(quota(&mut pool, VolumeId(9), 0, None), Err(PoolError::NoVolume(VolumeId(9))));
}

#[test]
fn pages_are_owned_by_the_oldest_version_that_has_them() {
    let mut pool = TestPool::new(1, 200, 32);
    let disk = pool.create("disk", 1_000);
    pool.write(disk, 0, 100, 1).expect("a write");
    let first = pool.snapshot(disk, "first");
    pool.write(disk, 0, 30, 2).expect("a write");
    let second = pool.snapshot(disk, "second");
    pool.zero(disk, 90, 10);
    let space = |pool: &TestPool, id| {
        let PoolVolume { owned_blocks, referred_blocks, account_blocks, .. } = listed(pool, id);
        (owned_blocks, referred_blocks, account_blocks)
    };
    assert_eq!(space(&pool, first), (100, Some(100), 130));
    assert_eq!(space(&pool, second), (30, Some(100), 130));
    assert_eq!(space(&pool, disk), (0, Some(90), 130));
    let clone = PoolChange::Clone { snapshot: second, name: "clone".into() };
    let clone = pool.change(clone).expect("a clone");
    pool.write(clone, 0, 1, 3).expect("a write");
    assert_eq!(space(&pool, clone), (1, Some(100), 1));
    // The pages of a removed snapshot go on to the version that comes from it.
    pool.change(PoolChange::Remove { volume: first }).expect("a removal");
    pool.rest();
    assert_eq!(space(&pool, second), (100, Some(100), 100));
    // With two versions that come from it, it stays hidden until one is left.
    pool.change(PoolChange::Remove { volume: second }).expect("a removal");
    pool.rest();
    assert_eq!(space(&pool, disk), (0, Some(90), 100));
    pool.change(PoolChange::Remove { volume: disk }).expect("a removal");
    pool.rest();
    assert_eq!(space(&pool, clone), (100, Some(100), 100));
    assert_eq!(pool.engine.status().data_blocks, 100);
    pool.change(PoolChange::Resize { volume: clone, blocks: 50 }).expect("smaller");
    pool.rest();
    assert_eq!(space(&pool, clone), (50, None, 50));
    let pool = pool.reopened(2);
    assert_eq!(space(&pool, clone), (50, None, 50));
}
