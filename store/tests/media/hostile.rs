//! A hostile writer of a pool's devices: all checks are right, and nothing else is. The engine
//! opens such a pool or refuses it, serves it or fails requests; it does not panic, does not read
//! or write beyond a device, and does not run without end.

use std::panic::{AssertUnwindSafe, catch_unwind};

use random::Random;
use serde_json::Value;
use store::block::Block;
use store::format::{BlockPlace, LogRecord, NO_VOLUME, PageEntry, SegmentId, TableKind};
use store::{
    CACHE_BLOCKS_MIN, HistoryOptions, PoolChange, PoolEngine, PoolOptions, RequestTag, VolumeId,
};

use crate::forge::Forge;
use crate::memory::MemoryDevices;
use crate::pool::{DEVICE_BLOCKS, DEVICES, MediaPool};

/// The rounds of one life of a forged pool.
const ROUNDS: usize = 400;

/// Numbers that are at some edge, or that the pool has.
fn any_number(random: &mut Random, known: &[u64]) -> u64 {
    match random.below(5) {
        0 => [0, 1, 127, 128, 511, 512, u64::MAX, 1 << 36, (1 << 36) - 1][random.below(9) as usize],
        1 => 1 << random.below(64),
        2 => random.draw(),
        _ if known.is_empty() => 0,
        _ => known[random.below(known.len() as u64) as usize],
    }
}

fn any_place(random: &mut Random, known: BlockPlace) -> u64 {
    match random.below(6) {
        0 => 0,
        1 => PageEntry::LOST,
        2 => random.draw(),
        3 => BlockPlace { segment: SegmentId(random.draw() as u32), block: 1 }.word(),
        4 => BlockPlace { block: random.draw() as u16, ..known }.word(),
        _ => known.word(),
    }
}

fn forge_node(forge: &mut Forge, random: &mut Random) {
    let nodes = forge.numbers(TableKind::Nodes);
    let data = forge.numbers(TableKind::Data);
    if nodes.is_empty() {
        return;
    }
    let number = nodes[random.below(nodes.len() as u64) as usize];
    forge.change_node(number, |words| {
        for _ in 0..random.between(1, 8) {
            let used: Vec<_> = (0..512).filter(|&at| words[at] != 0).collect();
            let at = match used.as_slice() {
                [] => random.below(512) as usize,
                used => used[random.below(used.len() as u64) as usize],
            };
            let birth = match random.below(4) {
                0 => any_number(random, &[]) & 0xfff_ffff,
                _ => words[at] >> 36,
            };
            let page = match random.below(4) {
                0 => number,
                1 => any_number(random, &data),
                _ => any_number(random, &nodes),
            };
            words[at] = birth << 36 | page & ((1 << 36) - 1);
        }
    });
}

fn forge_entry(forge: &mut Forge, random: &mut Random) {
    let kind = if random.one_in(3) { TableKind::Data } else { TableKind::Nodes };
    let numbers = forge.numbers(kind);
    let known = any_number(random, &numbers);
    let number = any_number(random, &numbers) % (numbers.last().unwrap_or(&0) + 128);
    let (Some(old), Some(mut entry)) = (forge.entry(kind, known), forge.entry(kind, number)) else {
        return forge.set_entry(kind, number, PageEntry::lost());
    };
    match random.below(5) {
        0 => entry = old,
        // Another form of the page: its place goes on, and its check does not match.
        1 => entry.place = (entry.place.get() ^ 1 << (48 + random.below(14))).into(),
        2 => entry.place = any_place(random, old.place().unwrap()).into(),
        3 => entry.sequence = random.draw().into(),
        _ => entry = PageEntry::FREE,
    }
    forge.set_entry(kind, number, entry);
}

/// Replaces a value somewhere in the state.
fn forge_json(value: &mut Value, random: &mut Random, known: &[u64]) {
    match value {
        Value::Object(members) if !members.is_empty() => {
            let at = random.below(members.len() as u64) as usize;
            let member = members.values_mut().nth(at).unwrap();
            forge_json(member, random, known);
        }
        Value::Array(values) if !values.is_empty() => {
            let at = random.below(values.len() as u64) as usize;
            match random.below(12) {
                0 => drop(values.remove(at)),
                1 => {
                    let other = random.below(values.len() as u64) as usize;
                    values.swap(at, other);
                }
                _ => forge_json(&mut values[at], random, known),
            }
        }
        Value::String(text) => {
            let texts = ["volume", "snapshot", "removing", "", "f", "0", "a/b"];
            *text = match random.below(3) {
                0 => text.chars().map(|c| if c == '0' { 'f' } else { c }).collect(),
                1 => "f".repeat(text.len()),
                _ => texts[random.below(7) as usize].to_owned(),
            };
        }
        _ => {
            *value = match random.below(8) {
                0 => Value::Null,
                _ => any_number(random, known).into(),
            };
        }
    }
}

fn forge_state(forge: &mut Forge, random: &mut Random) {
    let mut known = forge.numbers(TableKind::Nodes);
    let versions = forge.json["catalog"]["versions"].as_array().unwrap();
    known.extend(versions.iter().filter_map(|version| version["root"].as_u64()));
    known.extend(0..versions.len() as u64 + 2);
    let part = ["nodes", "contexts", "catalog", "catalog"][random.below(4) as usize];
    for _ in 0..random.between(1, 2) {
        forge_json(&mut forge.json[part], random, &known);
    }
}

/// The table of moments with another value in one of its words.
fn forge_moments(forge: &mut Forge, random: &mut Random) {
    let words = forge.moments.len() as u64 / 4;
    if words == 0 {
        return;
    }
    let at = random.below(words) as usize * 4;
    let value = match random.below(3) {
        0 => any_number(random, &[0, 1, 2, 1 << 31]) as u32,
        1 => u32::MAX,
        _ => 1 << 31 | random.below(40) as u32,
    };
    forge.moments[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

fn forge_segments(forge: &mut Forge, random: &mut Random) {
    let at = random.below(forge.segments.len() as u64 / 4) as usize * 4;
    let value = [0, 1, 31, 32, 33, 256, 257, u32::MAX][random.below(8) as usize];
    forge.segments[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

fn forge_record(record: &mut LogRecord, random: &mut Random) {
    let any = any_number(random, &[0, 1, 2, 3, 64, 128]);
    match record {
        LogRecord::Write { volume, block, number, .. } => match random.below(3) {
            0 => *volume = any as u32,
            1 => *block = any,
            _ => *number = any.clamp(1, (1 << 36) - 1),
        },
        LogRecord::Zero { volume, block, blocks } => match random.below(3) {
            0 => *volume = any as u32,
            1 => *block = any & !63,
            _ => *blocks = 1,
        },
        LogRecord::Move { number, from, .. } | LogRecord::Lost { number, from } => {
            match random.below(2) {
                0 => *number = any.clamp(1, (1 << 36) - 1),
                _ => from.block = any as u16,
            }
        }
        LogRecord::Moment { at_ns, volumes } => match random.below(2) {
            0 => *at_ns = any,
            _ => volumes[0] = any.min(volumes[1].saturating_sub(1).into()) as u32,
        },
        LogRecord::Forget { volume, generation, is_early } => match random.below(3) {
            0 => *volume = any as u32,
            1 => *generation = any,
            _ => *is_early = !*is_early,
        },
        LogRecord::Removal { snapshot, block } => match random.below(2) {
            0 => *snapshot = any as u32,
            _ => *block = any,
        },
        _ => {
            let volume = random.below(4) as u32;
            let moment = std::array::from_fn(|at| if at == 0 { volume } else { NO_VOLUME });
            *record = match random.below(4) {
                2 => LogRecord::Moment { at_ns: any, volumes: moment },
                3 => LogRecord::Forget { volume, generation: any, is_early: true },
                0 => LogRecord::Removal { snapshot: volume, block: any & !63 },
                _ => LogRecord::Zero { volume, block: any & !63, blocks: 64 },
            };
        }
    }
}

fn forge_log(forge: &mut Forge, random: &mut Random) {
    let log = forge.log();
    if log.is_empty() {
        return;
    }
    let mut head = log[random.below(log.len() as u64) as usize].clone();
    let at = random.below(head.records.len().max(1) as u64) as usize;
    match (random.below(6), head.records.get(at)) {
        (0, _) => head.next = SegmentId(any_number(random, &[0, 1, 2]) as u32 & 0x0fff_ffff),
        (1, _) => head.durable = random.below(head.sequence),
        (_, Some(LogRecord::Change { .. })) => {
            let change = any_change(random, u64::MAX);
            forge.change_payload(&mut head, at, |block| {
                let json = serde_json::to_vec(&change).unwrap();
                block.0[..json.len()].copy_from_slice(&json);
                json.len() as u16
            });
        }
        (_, Some(&record)) => {
            let mut other = record;
            forge_record(&mut other, random);
            if other.has_payload() == record.has_payload() {
                head.records[at] = other;
            }
        }
        (_, None) => {}
    }
    forge.write_head(&head);
}

fn any_change(random: &mut Random, blocks_max: u64) -> PoolChange {
    let volume = VolumeId(random.below(8) as u32);
    let other = VolumeId(random.below(8) as u32);
    let name = ["x", "y", "v1", ""][random.below(4) as usize].to_owned();
    let blocks = any_number(random, &[1, 64, 513, 700]).min(blocks_max);
    match random.below(9) {
        8 => {
            let options = HistoryOptions { reach_ms: blocks, step_ms: 100 };
            PoolChange::History { volume, history: (!random.one_in(4)).then_some(options) }
        }
        0 => PoolChange::Create { name, blocks },
        1 => PoolChange::Resize { volume, blocks },
        2 => PoolChange::Rename { volume, name },
        3 => PoolChange::Snapshot { volumes: vec![volume, other], name, at_s: blocks },
        4 => PoolChange::Clone { snapshot: volume, name },
        5 => PoolChange::Rollback { volume, snapshot: other },
        6 => PoolChange::Remove { volume },
        _ => PoolChange::Clear { volume },
    }
}

fn forge_superblock(forge: &mut Forge, random: &mut Random) {
    let any = any_number(random, &[0, 1, 2, 63]);
    let stream = random.below(3) as usize;
    match random.below(7) {
        0 => forge.superblock.sequence = any.into(),
        1 => forge.superblock.streams[stream].segment = (any as u32).into(),
        2 => forge.superblock.streams[stream].block = (any as u32).into(),
        3 => forge.superblock.streams[stream].next = (any as u32).into(),
        4 => forge.superblock.opening = any.into(),
        5 => forge.superblock.streams.swap(0, 1),
        _ => forge.superblock.segment_blocks = (any as u32).into(),
    }
}

fn forged(devices: MemoryDevices, random: &mut Random) -> MemoryDevices {
    let mut forge = Forge::new(devices);
    let mut kinds: Vec<u64> = (0..random.between(1, 4)).map(|_| random.below(14)).collect();
    // The forge finds its way by the state, so the state is changed last.
    kinds.sort_unstable();
    kinds.dedup_by(|a, b| *a >= 12 && *b >= 12);
    for kind in kinds {
        match kind {
            0..4 => forge_node(&mut forge, random),
            4 | 5 => forge_entry(&mut forge, random),
            6 | 7 => forge_log(&mut forge, random),
            8 => forge_segments(&mut forge, random),
            9 => forge_superblock(&mut forge, random),
            10 | 11 => forge_moments(&mut forge, random),
            _ => forge_state(&mut forge, random),
        }
    }
    forge.seal()
}

/// A request of any kind, which may fail or wait. No volume gets more blocks than `blocks_max`.
pub(crate) fn request(engine: &mut PoolEngine, random: &mut Random, tag: u64, blocks_max: u64) {
    let tag = RequestTag(tag);
    let volumes = engine.volumes();
    let volume = match volumes.len() {
        0 => VolumeId(0),
        len => volumes[random.below(len as u64) as usize].id,
    };
    let size = volumes.iter().find(|each| each.id == volume).map_or(1, |each| each.blocks);
    let block = random.below(size.clamp(1, 800));
    let blocks = random.between(1, 64) as u32;
    let _ = match random.below(12) {
        0..4 => engine.read(tag, volume, block, blocks),
        4..8 => engine.write(tag, volume, block, blocks, &mut |at, page: &mut Block| {
            page.0.fill(at as u8);
        }),
        8 => engine.zero(tag, volume, block, blocks),
        9 => engine.write_part(tag, volume, block, 7, &[9; 9]),
        10 => engine.change(tag, any_change(random, blocks_max)),
        _ => engine.flush(tag),
    };
}

fn live(devices: MemoryDevices, random: &mut Random) {
    let mut devices = devices;
    let options = PoolOptions { cache_blocks: CACHE_BLOCKS_MIN, log_blocks_max: 300 };
    let sizes = [DEVICE_BLOCKS; DEVICES];
    let Ok(engine) = PoolEngine::open(&mut devices, &sizes, options, random.draw().into(), 0)
    else {
        return;
    };
    let mut pool = MediaPool::with(devices, engine, random.draw());
    pool.keeps_history = true;
    for round in 0..ROUNDS {
        (0..3).for_each(|_| request(&mut pool.engine, random, round as u64, u64::MAX));
        pool.round();
    }
    pool.engine.close();
    for _ in 0..ROUNDS {
        if pool.engine.is_closed() {
            return;
        }
        pool.round();
    }
}

#[test]
fn a_hostile_medium_makes_errors_and_no_panics() {
    let pools = std::env::var("HOSTILE_POOLS").ok().and_then(|text| text.parse().ok());
    let first = std::env::var("HOSTILE_FIRST").ok().and_then(|text| text.parse().ok());
    let (pools, first): (u64, u64) = (pools.unwrap_or(6), first.unwrap_or(1));
    let mut panics = Vec::new();
    for seed in first..first + pools {
        let mut pool = MediaPool::new(seed);
        pool.keeps_history = true;
        (0..120).for_each(|_| pool.step());
        for variant in 0..25 {
            let mut random = Random::new(seed << 32 | variant);
            let devices = forged(pool.devices.clone(), &mut random);
            let life = AssertUnwindSafe(|| live(devices, &mut random));
            if catch_unwind(life).is_err() {
                panics.push((seed, variant));
            }
        }
    }
    assert!(panics.is_empty(), "of these pools and variants: {panics:?}");
}
