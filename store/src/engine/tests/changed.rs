//! The difference of two snapshots, part by part.

use super::pool::TestPool;
use crate::api::{PoolChange, PoolError, VolumeId};
use pool_stream::ChangedRun;

impl TestPool {
    /// All runs of a difference, and how many parts it took.
    fn changed(
        &mut self,
        from: Option<VolumeId>,
        to: VolumeId,
    ) -> Result<(Vec<ChangedRun>, usize), PoolError> {
        let (mut runs, mut start, mut parts) = (Vec::new(), 0, 0);
        loop {
            let (tag, result) = self.wait(|engine, tag| engine.changed(tag, from, to, start));
            result?;
            let part = self.engine.take_changed(tag).expect("a request that is done has a part");
            assert_eq!(self.engine.take_changed(tag), None, "it is taken once");
            runs.extend(part.runs);
            parts += 1;
            match part.next_block {
                Some(next) => start = next,
                None => return Ok((runs, parts)),
            }
        }
    }
}

fn run(block: u64, blocks: u64, is_hole: bool) -> ChangedRun {
    ChangedRun { block, blocks, is_hole }
}

#[test]
fn a_difference_has_the_blocks_that_differ_and_the_holes() {
    let mut pool = TestPool::new(1, 64, 64);
    let disk = pool.create("disk", 1 << 30);
    pool.write(disk, 0, 10, 1).expect("a write");
    pool.write(disk, 600, 20, 1).expect("a write");
    pool.write(disk, 1 << 20, 1, 1).expect("a write");
    let first = pool.snapshot(disk, "first");
    pool.write(disk, 3, 2, 2).expect("a write");
    pool.zero(disk, 610, 5);
    pool.zero(disk, 1 << 20, 1);
    pool.write(disk, (1 << 30) - 1, 1, 2).expect("a write");
    let second = pool.snapshot(disk, "second");
    pool.write(disk, 0, 10, 3).expect("a write");
    // Pages of the map have to be read.
    let mut pool = pool.close_and_open(2);
    let (runs, _) = pool.changed(Some(first), second).expect("a difference");
    let tail = runs.iter().find(|run| run.is_hole && run.block > 1000).expect("a leaf that went");
    assert!((tail.block..tail.block + tail.blocks).contains(&(1 << 20)));
    let others: Vec<_> = runs.iter().filter(|run| *run != tail).copied().collect();
    assert_eq!(others, [run(3, 2, false), run(610, 5, true), run((1 << 30) - 1, 1, false)]);
    let (runs, _) = pool.changed(None, first).expect("the whole snapshot");
    assert_eq!(runs, [run(0, 10, false), run(600, 20, false), run(1 << 20, 1, false)]);
    assert_eq!(pool.changed(Some(second), second), Ok((Vec::new(), 1)));
    // Backwards it is what a rollback would change.
    let (runs, _) = pool.changed(Some(second), first).expect("a difference");
    assert!(runs.contains(&run(610, 5, false)) && runs.contains(&run(3, 2, false)));
}

#[test]
fn a_long_difference_comes_in_parts() {
    let mut pool = TestPool::new(1, 96, 64);
    let disk = pool.create("disk", 100_000);
    for block in 0..600 {
        pool.write(disk, block * 150, 1, 1).expect("a write");
    }
    let first = pool.snapshot(disk, "first");
    let mut pool = pool.close_and_open(2);
    let (runs, parts) = pool.changed(None, first).expect("the whole snapshot");
    assert_eq!(runs, (0..600).map(|block| run(block * 150, 1, false)).collect::<Vec<_>>());
    assert!(parts > 2, "{parts} parts");
}

#[test]
fn only_snapshots_have_a_difference() {
    let mut pool = TestPool::new(1, 48, 32);
    let disk = pool.create("disk", 100);
    let snapshot = pool.snapshot(disk, "s");
    let gone = VolumeId(9);
    let volume = "a volume: take a snapshot of it, and name that";
    assert_eq!(pool.changed(None, disk), Err(PoolError::WrongKind(disk, volume)));
    assert_eq!(pool.changed(Some(disk), snapshot), Err(PoolError::WrongKind(disk, volume)));
    assert_eq!(pool.changed(Some(gone), snapshot), Err(PoolError::NoVolume(gone)));
    assert_eq!(pool.changed(None, snapshot), Ok((Vec::new(), 1)));
    pool.change(PoolChange::Remove { volume: snapshot }).expect("a removal");
    assert_eq!(pool.changed(None, snapshot), Err(PoolError::NoVolume(snapshot)));
}
