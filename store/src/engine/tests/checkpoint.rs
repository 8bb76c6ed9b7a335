//! Guests go on while a checkpoint is written.

use super::pool::TestPool;
use crate::api::{Admission, DeviceOp};

/// Rounds in which a write ends if nothing holds it up.
const ROUNDS: usize = 50;

/// Syncs of a checkpoint: of its pages, and of each half of the superblocks.
const SYNCS: u64 = 3;

#[test]
fn writes_complete_while_a_checkpoint_waits_for_its_syncs() {
    let mut pool = TestPool::new(1, 64, 32);
    let disk = pool.create("disk", 100);
    pool.write(disk, 0, 1, 1).expect("a write");
    pool.rest();
    let before = pool.engine.status().counters.checkpoints;
    pool.engine.checkpointer.want();
    let mut held = None;
    for sync in 1..=SYNCS {
        // All but the next sync is done.
        for _ in 0..ROUNDS {
            step(&mut pool, &mut held);
        }
        assert!(held.is_some(), "sync {sync} is under way");
        let tag = pool.tag();
        let write = pool.engine.write(tag, disk, sync, 1, &mut |_, page| page.0.fill(sync as u8));
        assert_eq!(write, Admission::Taken);
        for _ in 0..ROUNDS {
            step(&mut pool, &mut held);
        }
        assert_eq!(pool.end(tag), Some(Ok(disk)), "the write waits for sync {sync}");
        assert_eq!(pool.engine.status().counters.checkpoints, before);
        let io = held.take().expect("it is held");
        pool.devices.answer(&mut pool.engine, io);
    }
    pool.rest();
    assert_eq!(pool.engine.status().counters.checkpoints, before + 1);
    // The log behind the cut has them.
    let mut pool = pool.reopened(2);
    for sync in 1..=SYNCS {
        let (tag, result) = pool.wait(|engine, tag| engine.read(tag, disk, sync, 1));
        result.expect("a read");
        assert!(pool.bytes(tag).iter().all(|byte| *byte == sync as u8));
    }
}

/// A round in which a device does everything but a sync.
fn step(pool: &mut TestPool, held: &mut Option<crate::api::DeviceIo>) {
    pool.now_ns += 1_000_000;
    pool.engine.poll(pool.now_ns);
    while let Some(io) = pool.engine.next_io() {
        match io.op {
            DeviceOp::Sync => *held = Some(io),
            _ => pool.devices.answer(&mut pool.engine, io),
        }
    }
    pool.take_completions();
}
