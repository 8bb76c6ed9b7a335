//! The specification's rules for packed rings, and guests' violations of them.

use std::collections::BTreeMap;

use random::Random;

use super::ring::*;
use crate::chain::{Chain, ChainHead};
use crate::error::InflightError;
use crate::error::RingError;
use crate::inflight::InflightRegion;
use crate::queue::{Queue, QueueConfig};
use crate::ring::RingKind;
use crate::shared::Stores;

const AVAIL: u16 = 1 << 7;
const USED: u16 = 1 << 15;

const SEEDS: u64 = 5_000;

fn piece(len: u32, flags: u16) -> Descriptor {
    descriptor(DATA, len, flags, 0)
}

/// The second word of a slot: length, id, flags.
fn slot(ring: &TestRing, slot: usize) -> (u32, u16, u16) {
    let word = ring.area.load_pair(16 * slot)[1];
    (word as u32, (word >> 32) as u16, (word >> 48) as u16)
}

fn segments(chain: &Chain) -> Vec<u32> {
    chain.readable.iter().chain(&chain.writable).map(|segment| segment.len).collect()
}

#[test]
fn used_elements_give_as_many_slots_back_as_their_chains_took() {
    let mut ring = TestRing::packed(4);
    ring.chain(2, &[piece(16, 0), piece(8, 0), piece(1, WRITE)]);
    ring.chain(3, &[piece(7, WRITE)]);
    let (mut queue, mut chain) = (ring.queue(), Chain::new());
    for round in 0..9 {
        let wrap = if round % 2 == 0 { AVAIL | USED } else { 0 };
        ring.offer(2);
        ring.offer(3);
        let first = take(&mut queue, &mut chain);
        assert_eq!((first.index(), segments(&chain)), (2, vec![16, 8, 1]));
        let second = take(&mut queue, &mut chain);
        assert_eq!((second.index(), segments(&chain)), (3, vec![7]));
        assert_eq!(queue.take(&mut chain), Ok(None));
        queue.put(second, 7);
        queue.put(first, 0);
        assert!(!ring.has_used(), "nothing was published");
        queue.publish();
        // The one that came back first is where the other was taken from.
        assert_eq!(slot(&ring, 0), (7, 3, wrap | WRITE));
        assert_eq!(slot(&ring, 1), (0, 2, wrap), "nothing was written");
        assert_eq!((ring.reap(), ring.reap(), ring.reap()), (Some((3, 7)), Some((2, 0)), None));
        assert_eq!(queue.base(), ring.base());
    }
}

#[test]
fn an_indirect_table_is_read_to_its_end() {
    let mut ring = TestRing::packed(2);
    let table = DATA + 0x100;
    for (at, (len, flags)) in (0..).zip([(16, 0), (512, WRITE), (1, WRITE)]) {
        // Id, NEXT and the wrap counters mean nothing here. (Id and flags change places.)
        ring.write_at(table + 16 * at, descriptor(DATA, len, 9, flags | NEXT));
    }
    ring.chain(1, &[descriptor(table, 48, INDIRECT, 0)]);
    let (mut queue, mut chain) = (ring.queue(), Chain::new());
    for _ in 0..5 {
        ring.offer(1);
        let head = take(&mut queue, &mut chain);
        assert_eq!((chain.readable.len(), segments(&chain)), (1, vec![16, 512, 1]));
        queue.put(head, 513);
        queue.publish();
        assert_eq!(ring.reap(), Some((1, 513)));
    }
}

/// As DPDK writes them: the header in an indirect table is marked as to be written. Its own back
/// end takes that, and a piece of no bytes.
#[test]
fn readable_buffers_need_no_mark() {
    let table = DATA + 0x100;
    let parts = [(12, WRITE), (60, 0), (0, 0), (40, 0)];
    for kind in [RingKind::Packed, RingKind::Split] {
        let mut ring = TestRing::of_kind(kind, 4);
        for (at, (len, flags)) in (0..).zip(parts) {
            let piece = match kind {
                RingKind::Packed => descriptor(DATA, len, 9, flags),
                RingKind::Split if at == 3 => descriptor(DATA, len, flags, 0),
                RingKind::Split => descriptor(DATA, len, flags | NEXT, at as u16 + 1),
            };
            ring.write_at(table + 16 * at, piece);
        }
        ring.chain(1, &[descriptor(table, 64, INDIRECT, 0)]);
        ring.offer(1);
        let mut chain = Chain::new();
        let error = ring.queue().take(&mut chain).unwrap_err();
        assert_eq!(error, RingError::Order { head: 1 });
        let mut config = ring.config(None);
        config.reads_only = true;
        let mut queue = Queue::new(config).unwrap();
        let head = take(&mut queue, &mut chain);
        let lens: Vec<_> = chain.readable.iter().map(|piece| piece.len).collect();
        assert_eq!((lens, chain.writable.len()), (vec![12, 60, 40], 0));
        assert_eq!(queue.counters().tolerated, 2);
        queue.put(head, 0);
        queue.publish();
        assert_eq!(ring.reap(), Some((1, 0)));
    }
}

/// DPDK's front end says where its driver is, and nothing of what was used.
#[test]
fn half_a_base_is_enough_where_nothing_is_outstanding() {
    let mut ring = TestRing::packed(4);
    ring.chain(2, &[piece(8, 0)]);
    ring.offer(2);
    let half = |in_order| QueueConfig { base: 0x8000, in_order, ..ring.config(None) };
    // Of a device that answers in any order the word says that every slot is out.
    assert_eq!(Queue::new(half(false)).unwrap().base(), 0x8000);
    let mut queue = Queue::new(half(true)).unwrap();
    assert_eq!(queue.base(), RingKind::Packed.base_fresh());
    let head = take(&mut queue, &mut Chain::new());
    queue.put(head, 0);
    queue.publish();
    assert_eq!(ring.reap(), Some((2, 0)));
}

/// The queue's error for these descriptors, offered one after the other.
fn refused(size: u16, pieces: &[Descriptor]) -> RingError {
    let mut ring = TestRing::packed(size);
    pieces.iter().for_each(|piece| ring.push(*piece));
    let mut queue = ring.queue();
    let mut chain = Chain::new();
    for _ in pieces {
        if let Err(error) = queue.take(&mut chain) {
            assert_eq!((queue.take(&mut chain), queue.failed()), (Err(error), Some(error)));
            assert!(!queue.arm());
            return error;
        }
    }
    panic!("{pieces:?} were accepted");
}

#[test]
fn rings_that_break_the_rules_are_refused_by_name() {
    let at = |len, flags, id| descriptor(DATA, len, flags, id);
    for (pieces, error) in [
        (vec![at(8, 0, 4)], RingError::OutOfRange { index: 4, size: 4 }),
        (vec![at(8, 0, u16::MAX)], RingError::OutOfRange { index: u16::MAX, size: 4 }),
        (vec![at(8, 0, 1), at(8, 0, 1)], RingError::HeadInUse { head: 1 }),
        (vec![at(8, NEXT, 1); 4], RingError::Loop { head: 1, limit: 4 }),
        (
            vec![at(8, 0, 0), at(8, NEXT, 1), at(8, NEXT, 1), at(8, NEXT, 1)],
            RingError::Loop { head: 1, limit: 3 },
        ),
        (vec![at(0, 0, 1)], RingError::ZeroLength { head: 1 }),
        (vec![at(8, WRITE | NEXT, 1), at(8, 0, 1)], RingError::Order { head: 1 }),
        (vec![at(24, INDIRECT, 1)], RingError::IndirectLength { head: 1, len: 24 }),
        (vec![at(0, INDIRECT, 1)], RingError::IndirectLength { head: 1, len: 0 }),
        (vec![at(16, INDIRECT | NEXT, 1), at(8, 0, 1)], RingError::IndirectMisplaced { head: 1 }),
        (vec![at(8, NEXT, 1), at(16, INDIRECT, 1)], RingError::IndirectMisplaced { head: 1 }),
    ] {
        assert_eq!(refused(4, &pieces), error);
    }
    let outside = refused(4, &[descriptor(1, 8, 0, 0)]);
    assert_eq!(outside.name(), "unmapped");
    // Once around with nothing given back.
    let mut ring = TestRing::packed(2);
    let (mut queue, mut chain) = (ring.queue(), Chain::new());
    for id in [0, 1] {
        ring.push(at(8, 0, id));
        take(&mut queue, &mut chain);
    }
    ring.push(at(8, 0, 0));
    assert_eq!(queue.take(&mut chain), Err(RingError::Overrun { slot: 0, size: 2 }));
}

#[test]
fn a_ring_goes_on_from_its_base_or_is_refused() {
    let start = |base| {
        let ring = TestRing::packed(4);
        let mut config = ring.config(None);
        config.base = base;
        Queue::new(config).map(|queue| (queue.base(), queue.resumes()))
    };
    assert_eq!(start(0x8000_8000), Ok((0x8000_8000, false)));
    assert_eq!(start(0x0001_0001), Ok((0x0001_0001, true)));
    // From the last slot of one round to the first but one of the next.
    assert_eq!(start(0x8003_0001), Ok((0x8003_0001, true)));
    for base in [0x8004_8000, 0x8000_8004, 0x8001_8000, 0x8000_0001, 0xffff_ffff] {
        assert_eq!(start(base), Err(RingError::Base { base, size: 4 }));
    }
    let ring = TestRing::packed(4);
    let refused = |change: &dyn Fn(&mut QueueConfig)| {
        let mut config = ring.config(None);
        change(&mut config);
        Queue::new(config).unwrap_err()
    };
    assert_eq!(refused(&|config| config.desc += 8).name(), "misaligned");
    assert_eq!(refused(&|config| config.avail += 2).name(), "misaligned");
    assert_eq!(refused(&|config| config.used = 0).name(), "ring_unmapped");
    let region = TestInflight::of_kind(RingKind::Split, 4);
    let error = Queue::new(ring.config(Some(region.queue()))).unwrap_err();
    let (found, kind) = (RingKind::Split, RingKind::Packed);
    assert_eq!(error, RingError::Inflight(InflightError::Kind { found, kind }));
}

/// After two rounds the ring is where a new one is, and yet a guest has had answers.
#[test]
fn a_used_ring_is_told_from_a_new_one() {
    let mut ring = TestRing::packed(2);
    let region = TestInflight::of_kind(RingKind::Packed, 2);
    ring.chain(0, &[piece(8, WRITE)]);
    let mut queue = Queue::new(ring.config(Some(region.queue()))).unwrap();
    assert!(!queue.resumes());
    let mut chain = Chain::new();
    for _ in 0..4 {
        ring.offer(0);
        let head = take(&mut queue, &mut chain);
        queue.put(head, 8);
        queue.publish();
        ring.reap().unwrap();
    }
    assert_eq!(queue.base(), RingKind::Packed.base_fresh());
    drop(queue);
    assert!(Queue::new(ring.config(None)).unwrap().resumes());
}

#[test]
fn an_inflight_region_knows_that_requests_were_completed() {
    let shape = (RingKind::Packed, 1, 2);
    let (file, len) = InflightRegion::create(shape).unwrap();
    let map = || InflightRegion::map(std::os::fd::AsFd::as_fd(&file), 0, len, shape).unwrap();
    let mut ring = TestRing::packed(2);
    ring.chain(0, &[piece(8, WRITE)]);
    let mut chain = Chain::new();
    for completed in 0..8 {
        let region = map();
        let queue = region.queue(0).unwrap();
        assert_eq!(queue.resumes(), completed > 0, "{completed}");
        let mut queue = Queue::new(ring.config(Some(queue))).unwrap();
        ring.offer(0);
        take(&mut queue, &mut chain);
        drop(queue);
        assert_eq!(map().queue(0).unwrap().resumes(), completed > 0, "{completed}, one is out");
        let mut queue = Queue::new(ring.config(map().queue(0))).unwrap();
        let head = take(&mut queue, &mut chain);
        assert_eq!(queue.counters().redone, 1);
        queue.put(head, 8);
        queue.publish();
        assert_eq!(ring.reap(), Some((0, 8)));
    }
}

#[test]
fn kicks_are_asked_for_where_the_next_descriptor_will_be() {
    for event_idx in [false, true] {
        let mut ring = TestRing::packed(2);
        ring.event_idx = event_idx;
        ring.chain(0, &[piece(8, WRITE)]);
        let (mut queue, mut chain) = (ring.queue(), Chain::new());
        for place in [1 << 15, 1 << 15 | 1, 0, 1, 1 << 15] {
            queue.disarm();
            assert_eq!(ring.device_events().1, 1);
            assert!(!queue.arm());
            let wanted = if event_idx { 2 } else { 0 };
            assert_eq!(ring.device_events(), (place, wanted));
            ring.offer(0);
            assert!(queue.arm(), "there is work");
            let head = take(&mut queue, &mut chain);
            queue.put(head, 8);
            queue.publish();
            ring.reap().unwrap();
        }
    }
}

#[test]
fn calls_are_made_when_the_batch_passes_the_slot() {
    const SIZE: u16 = 4;
    // By the batch's first slot, its length, and the event's slot and wrap counter.
    for (begin, batch) in [(0, 1), (0, 4), (1, 2), (3, 1), (3, 2), (2, 4)] {
        for (event, wrap) in (0..SIZE).flat_map(|slot| [(slot, true), (slot, false)]) {
            let mut ring = TestRing::packed(SIZE);
            ring.event_idx = true;
            (0..SIZE).for_each(|id| ring.chain(id, &[piece(8, WRITE)]));
            let (mut queue, mut chain) = (ring.queue(), Chain::new());
            let mut round = |ring: &mut TestRing, count: u16| {
                (0..count).for_each(|id| ring.offer(id));
                let heads: Vec<ChainHead> =
                    (0..count).map(|_| take(&mut queue, &mut chain)).collect();
                heads.into_iter().for_each(|head| queue.put(head, 8));
                let called = queue.publish();
                (0..count).for_each(|_| assert!(ring.reap().is_some()));
                called
            };
            if begin > 0 {
                round(&mut ring, begin);
            }
            ring.set_driver_events(event, wrap, 2);
            let at = if wrap { event } else { event + SIZE };
            let passed = (begin..begin + batch).contains(&at);
            assert_eq!(round(&mut ring, batch), passed, "{begin} {batch} {event} {wrap}");
            ring.set_driver_events(event, wrap, 1);
            assert!(!round(&mut ring, 1));
            ring.set_driver_events(event, wrap, 0);
            assert!(round(&mut ring, 1));
        }
    }
}

/// The second of a batch is marked as used, the first is not, and there the device dies.
#[test]
fn marks_from_before_a_death_are_not_believed() {
    let mut ring = TestRing::packed(4);
    let region = TestInflight::of_kind(RingKind::Packed, 4);
    ring.chain(0, &[piece(8, WRITE)]);
    ring.chain(1, &[piece(8, WRITE)]);
    ring.offer(0);
    ring.offer(1);
    let mut chain = Chain::new();
    let before = {
        let mut queue = Queue::new(ring.config(Some(region.queue()))).unwrap();
        let heads = [take(&mut queue, &mut chain), take(&mut queue, &mut chain)];
        (queue.stores(), heads)
    };
    assert_eq!(before.1.map(ChainHead::index), [0, 1]);
    drop(chain);
    // Links of two chains, the list's head, the used fields, then the second used element.
    let mut stores = Stores::new();
    let used = u64::from(AVAIL | USED | WRITE) << 48 | 1 << 32 | 8;
    stores.u64(&ring.area, 16 + 8, used);
    let mut queue = Queue::new(ring.config(Some(region.queue()))).unwrap();
    let mut chain = Chain::new();
    let first = take(&mut queue, &mut chain);
    queue.put(first, 8);
    queue.publish();
    assert_eq!((ring.reap(), ring.reap()), (Some((0, 8)), None), "the other is not done");
    let second = take(&mut queue, &mut chain);
    queue.put(second, 8);
    queue.publish();
    assert_eq!((ring.reap(), ring.reap()), (Some((1, 8)), None));
}

/// A ring of noise: bounded chains inside the guest's memory, or an error with a name.
#[test]
fn garbage_in_a_packed_ring_is_an_error_with_a_name() {
    let mut ends = BTreeMap::new();
    for seed in 0..SEEDS {
        let mut dice = Random::new(seed);
        let size = 1 << dice.below(6);
        let mut ring = TestRing::packed(size);
        for at in (0x8000..LEN as u64).step_by(16) {
            let flags = if dice.one_in(20) { dice.draw() as u16 } else { dice.below(4) as u16 };
            let addr = BASE + dice.below(2 * LEN as u64 - 0x1000);
            ring.write_at(BASE + at, descriptor(addr, dice.below(600) as u32, 0, flags));
        }
        let region = TestInflight::of_kind(RingKind::Packed, size);
        let inflight = dice.one_in(2).then(|| region.queue());
        let mut queue = Queue::new(ring.config(inflight)).unwrap();
        let (mut chain, mut heads) = (Chain::new(), Vec::new());
        let mut end = "none";
        'life: for _ in 0..4 * size {
            for _ in 0..dice.below(4) {
                let flags = [0, NEXT, WRITE, INDIRECT, NEXT | WRITE, WRITE][dice.below(6) as usize];
                let flags = if dice.one_in(50) { dice.draw() as u16 } else { flags };
                let id = if dice.one_in(50) { dice.draw() } else { dice.below(size.into()) };
                let len = if dice.one_in(50) { dice.draw() as u32 } else { 16 };
                ring.push(descriptor(DATA + 16 * dice.below(99), len, flags, id as u16));
            }
            for _ in 0..=size {
                match queue.take(&mut chain) {
                    Ok(Some(head)) => heads.push(head),
                    Ok(None) => break,
                    Err(error) => {
                        end = error.name();
                        break 'life;
                    }
                }
            }
            while dice.one_in(2) && !heads.is_empty() {
                let at = dice.below(heads.len() as u64) as usize;
                queue.put(heads.swap_remove(at), dice.draw() as u32);
            }
            queue.publish();
            queue.arm();
        }
        *ends.entry(end).or_insert(0u64) += 1;
    }
    println!("{ends:?}");
    assert!(ends.len() >= 8, "some errors are never reached: {ends:?}");
}

/// A region of noise, of which what leads to more noise is right.
#[test]
fn garbage_in_a_packed_inflight_region_is_an_error_or_is_redone_once() {
    let mut ends = BTreeMap::new();
    for seed in 0..SEEDS {
        let mut dice = Random::new(seed);
        let size = 1 << dice.below(4);
        let ring = TestRing::packed(size);
        let region = TestInflight::of_kind(RingKind::Packed, size);
        let (mut stores, area) = (Stores::new(), region.area());
        let small = |dice: &mut Random| dice.below(u64::from(size) + 1) as u16;
        for at in 0..32 + 32 * usize::from(size) {
            stores.u8(&area, at, dice.draw() as u8);
        }
        stores.u16(&area, 8, u16::from(!dice.one_in(10)));
        stores.u16(&area, 10, if dice.one_in(10) { dice.draw() as u16 } else { size });
        for at in [12, 14, 16, 18] {
            stores.u16(&area, at, small(&mut dice));
        }
        // A list of all entries from some on, and chains of one entry before: mostly sound.
        let free = small(&mut dice);
        stores.u16(&area, 14, free);
        for index in 0..size {
            let at = 32 + 32 * usize::from(index);
            let next = if dice.one_in(30) { small(&mut dice) } else { index + 1 };
            stores.u8(&area, at, u8::from(index < free || dice.one_in(20)));
            stores.u16(&area, at + 2, next);
            stores.u16(&area, at + 4, if dice.one_in(30) { small(&mut dice) } else { index });
            stores.u16(&area, at + 6, if dice.one_in(30) { small(&mut dice) } else { 1 });
            stores.u16(&area, at + 16, if dice.one_in(30) { small(&mut dice) } else { index });
            stores.u16(&area, at + 18, if dice.one_in(10) { dice.draw() as u16 } else { 0 });
            stores.u32(&area, at + 20, 8);
            stores.u64(&area, at + 24, DATA);
        }
        let mut config = ring.config(Some(region.queue()));
        config.base = RingKind::Packed.base_fresh();
        let end = match Queue::new(config) {
            Ok(mut queue) => {
                let mut chain = Chain::new();
                let mut end = "redone";
                for _ in 0..=size {
                    match queue.take(&mut chain) {
                        Ok(Some(head)) => queue.put(head, 0),
                        Ok(None) => break,
                        Err(error) => end = error.name(),
                    }
                }
                assert!(queue.counters().redone <= u64::from(size));
                queue.publish();
                end
            }
            Err(RingError::Inflight(InflightError::FreeList(_))) => "free list",
            Err(RingError::Inflight(InflightError::BrokenChain(_))) => "broken chain",
            Err(RingError::Inflight(InflightError::LostEntry(_))) => "lost entry",
            Err(RingError::Inflight(InflightError::UsedSlot(_))) => "used slot",
            Err(error) => error.name(),
        };
        *ends.entry(end).or_insert(0u64) += 1;
    }
    println!("{ends:?}");
    for end in ["redone", "free list", "broken chain", "lost entry", "used slot", "inflight"] {
        assert!(ends.contains_key(end), "'{end}' is never reached: {ends:?}");
    }
}
