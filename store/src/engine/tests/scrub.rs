//! Scrubbing: all pages are proved, at the rate that was asked for, and damage is found.

use super::pool::TestPool;
use crate::api::VolumeId;
use crate::engine::{DamagedBlock, ScrubStatus};

impl TestPool {
    fn scrubbed(&mut self) -> ScrubStatus {
        self.engine.scrub(1_000_000);
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
    pool.engine.scrub(1000);
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
    pool.engine.scrub(20_000);
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
