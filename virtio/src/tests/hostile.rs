//! Garbage in rings, tables and inflight regions: an error with a name or a bounded chain inside
//! the guest's memory, never a panic.

use std::collections::BTreeMap;

use random::Random;

use super::ring::*;
use crate::SEGMENTS_MAX;
use crate::chain::Chain;
use crate::error::RingError;
use crate::inflight::{InflightQueue, InflightRegion};
use crate::queue::Queue;
use crate::ring::RingKind;
use crate::shared::{Area, Stores};

const SEEDS: u64 = 20_000;

/// A descriptor that is wrong only now and then, or nothing would ever be reached.
pub(super) fn roll(dice: &mut Random, size: u64) -> Descriptor {
    let addr = match dice.below(40) {
        0 => dice.draw(),
        1 => BASE + 2 * LEN as u64 - dice.below(64),
        2 => u64::MAX - dice.below(64),
        _ => BASE + dice.below(2 * LEN as u64 - 0x2000),
    };
    let len = match dice.below(40) {
        0 => 0,
        1 => dice.draw() as u32,
        2 => u32::MAX - dice.below(16) as u32,
        _ => 16 * (1 + dice.below(40)) as u32,
    };
    let flags = match dice.below(12) {
        0 => dice.draw() as u16,
        1 | 2 => INDIRECT,
        3..=6 => NEXT,
        7 | 8 => NEXT | WRITE,
        9 | 10 => WRITE,
        _ => 0,
    };
    let next = if dice.one_in(30) { dice.draw() as u16 } else { dice.below(size) as u16 };
    descriptor(addr, len, flags, next)
}

fn name(error: RingError) -> &'static str {
    match error {
        RingError::IndexJump { .. } => "index jump",
        RingError::OutOfRange { .. } => "out of range",
        RingError::HeadInUse { .. } => "head in use",
        RingError::Loop { .. } => "loop",
        RingError::ZeroLength { .. } => "zero length",
        RingError::TooLong { .. } => "too long",
        RingError::Order { .. } => "order",
        RingError::IndirectMisplaced { .. } => "indirect misplaced",
        RingError::IndirectLength { .. } => "indirect length",
        RingError::Memory(_) => "unmapped",
        RingError::Inflight(_) => "inflight",
        other => panic!("not from here: {other}"),
    }
}

fn check_inside(ring: &TestRing, chain: &Chain) {
    assert!(chain.readable.len() + chain.writable.len() <= SEGMENTS_MAX);
    for segment in chain.readable.iter().chain(&chain.writable) {
        let inside = ring.memory.regions().iter().any(|region| {
            let start = region.mapping().start().as_ptr().addr();
            let (at, len) = (segment.addr.addr(), segment.len as usize);
            at >= start && at + len <= start + LEN
        });
        assert!(inside && segment.len > 0);
    }
}

/// Drives a ring with garbage in it until it fails or enough was taken. Returns the name of the
/// failure.
fn torment(seed: u64) -> Option<&'static str> {
    let mut dice = Random::new(seed);
    let size = 1 << dice.below(6);
    let mut ring = TestRing::new(size);
    ring.event_idx = dice.one_in(2);
    for index in 0..size {
        let descriptor = roll(&mut dice, u64::from(size));
        ring.describe(index, descriptor);
    }
    // Tables that indirect descriptors may find.
    for at in (0x8000..LEN as u64).step_by(16) {
        let descriptor = roll(&mut dice, 40);
        ring.write_at(BASE + at, descriptor);
    }
    let inflight = TestInflight::new(size);
    let inflight = dice.one_in(2).then(|| inflight.queue());
    let mut queue = Queue::new(ring.config(inflight)).unwrap();
    let mut chain = Chain::new();
    let mut heads = Vec::new();
    for _ in 0..4 * size {
        for _ in 0..dice.below(3) {
            let head = if dice.one_in(50) { dice.draw() } else { dice.below(u64::from(size)) };
            ring.offer(head as u16);
        }
        if dice.one_in(200) {
            ring.set_avail_idx(dice.draw() as u16);
        }
        for _ in 0..size {
            match queue.take(&mut chain) {
                Ok(Some(head)) => heads.push(head),
                Ok(None) => break,
                Err(error) => return Some(name(error)),
            }
            check_inside(&ring, &chain);
        }
        while dice.one_in(2) && !heads.is_empty() {
            let at = dice.below(heads.len() as u64) as usize;
            queue.put(heads.swap_remove(at), dice.draw() as u32);
        }
        queue.publish();
        queue.arm();
    }
    None
}

#[test]
fn garbage_in_rings_is_an_error_with_a_name() {
    let mut ends = BTreeMap::new();
    for seed in 0..SEEDS {
        *ends.entry(torment(seed).unwrap_or("none")).or_insert(0u64) += 1;
    }
    println!("{ends:?}");
    assert!(ends.len() >= 10, "some errors are never reached: {ends:?}");
}

#[test]
fn garbage_in_inflight_regions_is_an_error_or_is_redone_once() {
    let mut ends = BTreeMap::new();
    for seed in 0..SEEDS {
        let mut dice = Random::new(seed);
        let size = 1 << dice.below(5);
        let mut ring = TestRing::new(size);
        (0..size).for_each(|head| ring.describe(head, descriptor(DATA, 8, WRITE, 0)));
        let region = TestInflight::new(size);
        let mut stores = Stores::new();
        let area: Area = region.area();
        for at in 0..area_len(size) {
            stores.u8(&area, at, dice.draw() as u8);
        }
        // These words must be right, or the rest is not looked at.
        stores.u16(&area, 8, u16::from(!dice.one_in(10)));
        stores.u16(&area, 10, if dice.one_in(10) { dice.draw() as u16 } else { size });
        stores.u16(&area, 12, dice.below(u64::from(size) + 1) as u16);
        let used = dice.draw() as u16;
        stores.u16(&area, 14, used);
        (0..size).for_each(|head| {
            let at = 16 + 16 * usize::from(head) + 6;
            stores.u16(&area, at, dice.below(u64::from(size) + 1) as u16);
        });
        let ahead = dice.below(u64::from(size) + 2) as u16;
        ring.set_used_idx(used.wrapping_add(ahead));
        ring.set_avail_idx(used.wrapping_add(ahead).wrapping_add(size));
        let end = match Queue::new(ring.config(Some(region.queue()))) {
            Ok(mut queue) => redo_all(&mut queue, &ring),
            Err(error) => name(error),
        };
        *ends.entry(end).or_insert(0u64) += 1;
    }
    println!("{ends:?}");
}

fn area_len(size: u16) -> usize {
    16 + 16 * usize::from(size)
}

fn redo_all(queue: &mut Queue, ring: &TestRing) -> &'static str {
    let mut chain = Chain::new();
    for _ in 0..=ring.size {
        match queue.take(&mut chain) {
            Ok(Some(head)) => queue.put(head, 0),
            Ok(None) => break,
            Err(error) => return name(error),
        }
    }
    assert!(queue.counters().redone <= u64::from(ring.size));
    queue.publish();
    "redone"
}

#[test]
fn regions_of_impossible_shape_are_refused() {
    for (queues, size) in [(0, 4), (257, 4), (1, 0), (1, 2048), (u16::MAX, u16::MAX)] {
        assert!(
            InflightRegion::create((RingKind::Split, queues, size)).is_err(),
            "{queues} of {size}"
        );
    }
    let none: Option<InflightQueue> = TestInflight::new(4).beyond();
    assert!(none.is_none());
}
