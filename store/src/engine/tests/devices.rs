//! Devices that become longer, join and leave.

use super::pool::TestPool;
use crate::api::{PoolError, VolumeId};
use crate::block::Block;
use crate::engine::{DeviceChange, PoolDevice};
use crate::format::Superblock;
use crate::layout::PoolOpenError;

const SEGMENT_BLOCKS: u32 = 32;

fn blocks(segments: u64) -> u64 {
    16 + segments * u64::from(SEGMENT_BLOCKS)
}

/// Blocks that each test writes, and their words.
const BLOCKS: u64 = 400;

/// A pool with a volume that has words.
fn pool(devices: usize, segments: u64) -> (TestPool, VolumeId) {
    let mut pool = TestPool::new(devices, segments, SEGMENT_BLOCKS);
    let disk = pool.create("disk", 10_000);
    write(&mut pool, disk, 1);
    (pool, disk)
}

fn write(pool: &mut TestPool, disk: VolumeId, word: u64) {
    for block in (0..BLOCKS).step_by(20) {
        pool.write(disk, block, 20, word).expect("a write");
    }
}

fn check(pool: &mut TestPool, disk: VolumeId, word: u64) {
    for block in (0..BLOCKS).step_by(40) {
        assert_eq!(pool.read(disk, block, 40), Ok(vec![word; 40]));
    }
    pool.engine.core.segments.check(pool.engine.core.applied);
}

fn change(pool: &mut TestPool, change: DeviceChange) -> Result<(), String> {
    let ended = pool.wait(|engine, tag| engine.change_devices(tag, change)).1;
    ended.map(drop).map_err(|error| error.to_string())
}

/// A device of so many segments joins.
fn add(pool: &mut TestPool, segments: u64) -> u8 {
    let device = pool.engine.free_device().expect("a place");
    let place = usize::from(device);
    pool.devices.blocks.resize(pool.devices.blocks.len().max(place + 1), Vec::new());
    pool.devices.blocks[place] = vec![Block::ZERO; blocks(segments) as usize];
    let uuid = [device + 100; 16];
    let add = DeviceChange::Add { device, uuid, blocks: blocks(segments) };
    change(pool, add).expect("a device");
    device
}

fn device(pool: &TestPool, number: u8) -> Option<PoolDevice> {
    pool.engine.devices().into_iter().find(|device| device.number == number)
}

#[test]
fn a_longer_device_is_used() {
    let (mut pool, disk) = pool(2, 40);
    let before = pool.engine.status().size_blocks;
    let grow = |segments| DeviceChange::Grow { device: 0, blocks: blocks(segments) };
    let error = change(&mut pool, grow(40)).expect_err("it is no longer");
    assert!(error.contains("make it longer first"), "{error}");
    pool.devices.blocks[0].resize(blocks(400) as usize, Block::ZERO);
    change(&mut pool, grow(400)).expect("it is longer");
    let status = pool.engine.status();
    assert_eq!(status.segments.total, 440);
    assert!(status.size_blocks > before + 300 * 30, "{status:#?}");
    write(&mut pool, disk, 2);
    for block in (1_000..8_000).step_by(20) {
        pool.write(disk, block, 20, 3).expect("there was no room for it before");
    }
    let mut pool = pool.reopened(2);
    check(&mut pool, disk, 2);
    assert_eq!(pool.read(disk, 7_000, 1), Ok(vec![3]));
    let mut pool = pool.close_and_open(3);
    check(&mut pool, disk, 2);
    // A device that is cut off is named.
    pool.devices.blocks[0].truncate(blocks(200) as usize);
    let error = TestPool::open(pool.devices, 4).expect_err("it is shorter");
    assert!(error.to_string().contains("it was cut off"), "{error}");
}

#[test]
fn a_device_joins_and_is_missed_when_it_is_away() {
    let (mut pool, disk) = pool(1, 64);
    assert_eq!(add(&mut pool, 40), 1);
    write(&mut pool, disk, 2);
    pool.rest();
    assert!(device(&pool, 1).is_some_and(|it| it.live_blocks > 0), "{:?}", pool.engine.devices());
    let mut pool = pool.reopened(2);
    check(&mut pool, disk, 2);
    // Twice the same.
    let uuid = [101; 16];
    let again = DeviceChange::Add { device: 2, uuid, blocks: blocks(40) };
    assert!(change(&mut pool, again).expect_err("it is known").contains("of its own"));
    let mut alone = pool.devices.clone();
    alone.blocks.truncate(1);
    let error = TestPool::open(alone, 3).expect_err("a device is missing");
    assert!(error.to_string().contains("number 1 is missing"), "{error}");
}

/// Each write of the checkpoint with which a device joins may be the last one.
#[test]
fn a_pool_is_whole_at_each_write_of_a_join() {
    for stop in 0.. {
        let (mut pool, disk) = pool(1, 64);
        pool.devices.blocks.push(vec![Block::ZERO; blocks(40) as usize]);
        let tag = pool.tag();
        let add = DeviceChange::Add { device: 1, uuid: [9; 16], blocks: blocks(40) };
        assert_eq!(pool.engine.change_devices(tag, add), crate::api::Admission::Taken);
        let mut left = stop;
        while left > 0 && pool.end(tag).is_none() {
            // One request of a device, then the engine again.
            pool.engine.poll(pool.now_ns);
            pool.now_ns += 1;
            if let Some(io) = pool.engine.next_io() {
                pool.devices.answer(&mut pool.engine, io);
                left -= 1;
            }
            pool.take_completions();
        }
        let is_done = pool.end(tag).is_some() || left > 0;
        let mut with = TestPool::open(pool.devices.clone(), 2).expect("it opens with the device");
        check(&mut with, disk, 1);
        let mut devices = pool.devices;
        devices.blocks.truncate(1);
        let joined = with.engine.devices().len() == 2;
        match TestPool::open(devices, 3) {
            Ok(mut without) => {
                assert!(!joined, "at {stop}");
                check(&mut without, disk, 1);
            }
            Err(PoolOpenError::Devices(text)) => assert!(joined, "at {stop}: {text}"),
            Err(error) => panic!("at {stop}: {error}"),
        }
        if is_done {
            assert!(joined && stop > 10, "{stop}");
            return;
        }
    }
}

fn remove(pool: &mut TestPool, device: u8) -> Result<(), String> {
    change(pool, DeviceChange::Remove { device })
}

#[test]
fn a_device_is_emptied_and_leaves() {
    for number in [0, 1] {
        let (mut pool, disk) = pool(2, 64);
        remove(&mut pool, number).expect("the other has room");
        assert!(device(&pool, number).is_some_and(|it| it.is_leaving));
        for word in 2..30 {
            write(&mut pool, disk, word);
        }
        pool.rest();
        assert_eq!(device(&pool, number), None, "{:#?}", pool.engine.status());
        assert!(!pool.engine.uses_device(number));
        let status = pool.engine.status();
        assert_eq!(status.segments.total, 64);
        check(&mut pool, disk, 29);
        // It knows that it has left, and is of no interest.
        let own = Superblock::decode(&pool.devices.blocks[usize::from(number)][0]).expect("whole");
        assert!(own.has_left());
        let mut pool = pool.reopened(2);
        check(&mut pool, disk, 29);
        pool.devices.blocks[usize::from(number)].clear();
        let mut pool = pool.reopened(3);
        check(&mut pool, disk, 29);
        // Another device takes its place.
        assert_eq!(add(&mut pool, 80), number);
        write(&mut pool, disk, 30);
        let mut pool = pool.reopened(4);
        check(&mut pool, disk, 30);
        assert_eq!(pool.engine.status().segments.total, 144);
    }
}

/// A checkpoint's cut has streams go away from a device that is left. Until its superblock is there
/// no other one leads to their next rows, so no write completes by them.
#[test]
fn completed_writes_are_there_after_a_kill_at_each_request_of_a_leave() {
    for stop in 0.. {
        let (mut pool, disk) = pool(2, 64);
        let tag = pool.tag();
        let leave = pool.engine.change_devices(tag, DeviceChange::Remove { device: 1 });
        assert_eq!(leave, crate::api::Admission::Taken);
        let mut asked = Vec::new();
        for step in 0..stop {
            // A stream goes only while none of its rows waits.
            if step % 16 == 0 {
                let (tag, block) = (pool.tag(), 2_000 + step);
                let write = pool.engine.write(tag, disk, block, 1, &mut |_, page| page.0.fill(1));
                assert_eq!(write, crate::api::Admission::Taken);
                asked.push((tag, block));
            }
            // One request of a device, then the engine again.
            pool.engine.poll(pool.now_ns);
            pool.now_ns += 1_000_000;
            if let Some(io) = pool.engine.next_io() {
                pool.devices.answer(&mut pool.engine, io);
            }
            pool.take_completions();
        }
        let has_left = device(&pool, 1).is_none();
        asked.retain(|&(tag, _)| pool.end(tag) == Some(Ok(disk)));
        let mut pool = pool.reopened(2);
        for (_, block) in asked {
            let (tag, read) = pool.wait(|engine, tag| engine.read(tag, disk, block, 1));
            read.expect("a read");
            assert!(pool.bytes(tag).iter().all(|byte| *byte == 1), "at {stop}: {block}");
        }
        if has_left {
            return assert!(stop > 10, "{stop}");
        }
    }
}

#[test]
fn a_leave_goes_on_after_a_kill_and_can_be_taken_back() {
    let (mut pool, disk) = pool(2, 64);
    write(&mut pool, disk, 2);
    remove(&mut pool, 1).expect("the other has room");
    let old = pool.devices.blocks[1].clone();
    let mut pool = pool.reopened(2);
    assert!(device(&pool, 1).is_some_and(|it| it.is_leaving), "the superblock says so");
    change(&mut pool, DeviceChange::Keep { device: 1 }).expect("it is still there");
    let mut pool = pool.reopened(3);
    assert!(device(&pool, 1).is_some_and(|it| !it.is_leaving));
    check(&mut pool, disk, 2);
    remove(&mut pool, 1).expect("the other has room");
    let mut pool = pool.reopened(4);
    pool.rest();
    assert_eq!(device(&pool, 1), None);
    check(&mut pool, disk, 2);
    // An old copy of a device that has left is not used.
    pool.devices.blocks[1] = old;
    let mut pool = pool.reopened(5);
    check(&mut pool, disk, 2);
    assert_eq!(pool.engine.devices().len(), 1);
}

#[test]
fn a_device_stays_if_the_others_have_no_room() {
    let (mut pool, disk) = pool(2, 64);
    for block in (1_000..3_000).step_by(20) {
        pool.write(disk, block, 20, 3).expect("there is room");
    }
    let error = remove(&mut pool, 0).expect_err("the other one is too small");
    assert!(error.contains("have room for"), "{error}");
    let error = remove(&mut pool, 7).expect_err("there is none");
    assert!(error.contains("no device 7"), "{error}");
    let (mut alone, _) = self::pool(1, 64);
    let error = remove(&mut alone, 0).expect_err("it is the last one");
    assert!(error.contains("a pool needs 32"), "{error}");
    // A full pool gets room by a device, and the first one can go then.
    add(&mut pool, 200);
    remove(&mut pool, 0).expect("there is room now");
    pool.rest();
    assert_eq!(device(&pool, 0), None, "{:#?}", pool.engine.status());
    check(&mut pool, disk, 1);
    assert_eq!(pool.read(disk, 2_990, 1), Ok(vec![3]));
}

/// Guests fill the rest of the pool while it leaves a device: they wait, and it gets empty.
#[test]
fn guests_do_not_hold_a_device_back() {
    let (mut pool, disk) = pool(2, 64);
    remove(&mut pool, 1).expect("the other has room");
    let mut refused = 0;
    let mut block = 1_000;
    while refused < 3_000 && block < 9_000 {
        let tag = pool.tag();
        let taken = pool.engine.write(tag, disk, block, 1, &mut |_, page| page.0.fill(1));
        pool.round();
        let is_taken = taken == crate::api::Admission::Taken;
        (block, refused) = if is_taken { (block + 1, 0) } else { (block, refused + 1) };
    }
    assert!(refused > 0, "it was never full");
    pool.rest();
    assert_eq!(device(&pool, 1), None, "{:#?}", pool.engine.status());
    check(&mut pool, disk, 1);
}

#[test]
fn a_failed_device_ends_a_change_of_devices() {
    let (mut pool, _) = pool(2, 64);
    pool.devices.fails = true;
    let ended =
        pool.wait(|engine, tag| engine.change_devices(tag, DeviceChange::Remove { device: 1 }));
    assert!(matches!(ended.1, Err(PoolError::DeviceFailed(_))), "{ended:?}");
}
