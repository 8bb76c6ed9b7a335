//! The reader and the engine find the same in a pool after any crash: rows that are there in part
//! or not at all, in any order, a checkpoint that is half written, and writes that a volatile
//! cache has lost.

use std::collections::BTreeMap;

use random::Random;
use store::block::{BLOCK_BYTES, BlockBuffer};
use store::{
    DeviceIo, DeviceOp, PoolCompletion, PoolDevices, PoolVolumeKind, RequestTag, VolumeId,
};

use crate::cuts::{Running, bytes_of, devices_of};
use crate::hostile::request;
use crate::memory::MemoryDevices;
use crate::pool::{MediaPool, open};
use crate::reader::{Reader, has_python};
use crate::recorded::{Kept, Recording};

/// Rounds of a life until the crash.
const ROUNDS: u64 = 120;

/// Does a request; of a write, only the first `blocks_max` blocks.
fn perform(devices: &mut MemoryDevices, io: DeviceIo, blocks_max: u32) -> Option<BlockBuffer> {
    match io.op {
        DeviceOp::Write { block, buffer, blocks } => {
            devices.write(io.device, block, &buffer, blocks.min(blocks_max)).unwrap();
            Some(buffer)
        }
        DeviceOp::Sync => {
            devices.sync(io.device).unwrap();
            None
        }
        DeviceOp::Read { block, mut buffer, blocks } => {
            devices.read(io.device, block, &mut buffer, blocks).unwrap();
            Some(buffer)
        }
    }
}

/// Requests without a rest, answers in any order, and then a crash.
fn live_and_crash(pool: MediaPool, random: &mut Random) -> MemoryDevices {
    let MediaPool { mut engine, mut devices, now_ns, .. } = pool;
    let before = Recording::new(bytes_of(&devices));
    let running = Running::watch(&mut devices, before);
    let mut under_way: Vec<DeviceIo> = Vec::new();
    let rounds = random.between(1, ROUNDS);
    for round in 1..=rounds {
        (0..random.below(6)).for_each(|_| request(&mut engine, random, round, 700));
        engine.poll(now_ns + round * 1_000_000);
        under_way.extend(std::iter::from_fn(|| engine.next_io()));
        while !under_way.is_empty() && !random.one_in(6) {
            let io = under_way.swap_remove(random.below(under_way.len() as u64) as usize);
            let token = io.token;
            let buffer = perform(&mut devices, io, u32::MAX);
            engine.complete_io(token, buffer, Ok(()));
        }
        while engine.next_completion().is_some() {}
    }
    for io in under_way {
        // A sync that was not answered promises nothing.
        if !matches!(io.op, DeviceOp::Sync) && random.one_in(2) {
            let blocks_max = random.below(60) as u32;
            perform(&mut devices, io, blocks_max);
        }
    }
    // Each block is as it was after any of the writes since the last sync, or before them.
    let kept = |_| if random.one_in(2) { Kept::All } else { Kept::Nothing };
    devices_of(&running.recording().cut(kept))
}

/// The content of all volumes and snapshots, as the engine reads it after its recovery.
pub(crate) fn contents(devices: MemoryDevices) -> (String, BTreeMap<VolumeId, Vec<u8>>) {
    let mut devices = devices;
    let engine = open(&mut devices, 1);
    let mut pool = MediaPool::with(devices, engine, 1);
    let mut contents = BTreeMap::new();
    let volumes = pool.engine.volumes();
    for volume in volumes.iter().filter(|volume| volume.kind != PoolVolumeKind::Removing) {
        let mut image = vec![0; volume.blocks as usize * BLOCK_BYTES];
        for from in (0..volume.blocks).step_by(256) {
            let blocks = (volume.blocks - from).min(256) as u32;
            let tag = RequestTag(1);
            assert!(pool.engine.read(tag, volume.id, from, blocks) == store::Admission::Taken);
            let mut is_done = false;
            while !is_done {
                for completion in pool.completions() {
                    match completion {
                        PoolCompletion::Data { first, blocks, buffer: Some(buffer), .. } => {
                            let at = (from as usize + first as usize) * BLOCK_BYTES;
                            let bytes = blocks as usize * BLOCK_BYTES;
                            image[at..at + bytes].copy_from_slice(&buffer.bytes()[..bytes]);
                        }
                        PoolCompletion::Data { .. } => {}
                        PoolCompletion::Done { result, .. } => {
                            result.unwrap();
                            is_done = true;
                        }
                    }
                }
            }
        }
        contents.insert(volume.id, image);
    }
    (pool.list(), contents)
}

#[test]
fn the_reader_and_the_engine_agree_after_any_crash() {
    if !has_python("the_reader_and_the_engine_agree_after_any_crash") {
        return;
    }
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("CRASH_FIRST").unwrap_or(1);
    for seed in first..first + number("CRASHES").unwrap_or(3) {
        let mut pool = MediaPool::new(seed);
        (0..60).for_each(|_| pool.step());
        let devices = live_and_crash(pool, &mut Random::new(seed));
        let reader = Reader::new(&devices);
        let (list, contents) = contents(devices);
        assert_eq!(reader.list(), list, "seed {seed}");
        for (volume, content) in contents {
            let image = reader.extract(volume).unwrap();
            assert!(image == content, "{volume:?} differs, seed {seed}");
        }
    }
}
