//! One damaged block, anywhere.

use super::pool::TestPool;
use crate::api::{PoolChange, PoolError};
use crate::block::Block;
use crate::format::superblock_blocks;
use crate::layout::PoolOpenError;

#[test]
fn no_damage_of_one_block_gives_wrong_data_or_loses_another_block() {
    let mut pool = TestPool::new(1, 48, 32);
    let disk = pool.create("disk", 600);
    pool.write(disk, 0, 200, 1).expect("a write");
    let snapshot = pool.snapshot(disk, "s");
    pool.write(disk, 100, 200, 2).expect("a write");
    // A checkpoint, and rows behind it that are flushed.
    let mut pool = pool.close_and_open(2);
    pool.write(disk, 150, 20, 3).expect("a write");
    pool.snapshot(disk, "t");
    pool.write(disk, 160, 20, 4).expect("a write");
    pool.flush();
    pool.write(disk, 599, 1, 5).expect("a write");
    pool.flush();
    // The flush is marked when the pool has been idle for a while.
    pool.rest();
    let expected = (0..600)
        .map(|block| match block {
            599 => 5,
            160..180 => 4,
            150..160 => 3,
            100..300 => 2,
            0..100 => 1,
            _ => 0,
        })
        .collect::<Vec<u64>>();
    let whole = pool.devices;
    let (mut refused, mut cost_several) = (0, 0);
    for block in 0..whole.blocks[0].len() {
        if whole.blocks[0][block].0.iter().all(|&byte| byte == 0) {
            continue;
        }
        let mut devices = whole.clone();
        devices.blocks[0][block].0[100] ^= 0x40;
        let Ok(mut pool) = TestPool::open(devices, 9) else {
            refused += 1;
            continue;
        };
        let mut wrong = 0;
        for (at, &word) in expected.iter().enumerate() {
            match pool.read(disk, at as u64, 1) {
                Ok(found) => assert_eq!(found, [word], "block {at} after damage of {block}"),
                Err(PoolError::Damaged { .. }) => wrong += 1,
                Err(PoolError::MapDamaged) => wrong += 1,
                Err(error) => panic!("{error} for block {at} after damage of {block}"),
            }
        }
        if let Ok(found) = pool.read(snapshot, 0, 100) {
            assert_eq!(found, [1; 100], "the snapshot after damage of {block}");
        }
        cost_several += usize::from(wrong > 1);
        // The pool goes on.
        pool.change(PoolChange::Create { name: "more".into(), blocks: 9 }).expect("a volume");
    }
    assert_eq!(refused, 0, "no damage of one block refuses the pool");
    // The map of a volume of 600 blocks: four levels of nodes and some blocks of the tables.
    assert!((1..=12).contains(&cost_several), "{cost_several} blocks cost more than themselves");
}

/// The superblock before it names a state whose segments may be used again, or that of a new pool.
#[test]
fn a_superblock_that_is_lost_is_named() {
    let mut pool = TestPool::new(2, 48, 32);
    for salt in 2..6 {
        let disk = pool.create(&format!("disk{salt}"), 9);
        pool.write(disk, 0, 1, salt).expect("a write");
        pool.flush();
        let newest = pool.engine.status().checkpoint;
        for is_zeroed in [false, true] {
            let mut devices = pool.devices.clone();
            let lost = superblock_blocks(newest).map(|block| block as usize);
            for device in &mut devices.blocks {
                for at in lost {
                    match is_zeroed {
                        true => device[at] = Block::ZERO,
                        false => device[at].0[100] ^= 1,
                    }
                }
            }
            let refused = TestPool::open(devices, 9).err();
            assert!(matches!(refused, Some(PoolOpenError::Damaged(_))), "{refused:?}");
        }
        pool = pool.close_and_open(salt);
    }
}
