//! The ring's promises, and each rule that a driver can break.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

use super::ring::*;
use crate::chain::{Chain, ChainHead, gather, scatter};
use crate::error::InflightError;
use crate::error::MemoryError;
use crate::error::RingError;
use crate::mapping::Mapping;
use crate::memory::{Memory, Region};
use crate::queue::Queue;
use crate::{DESCRIPTORS_MAX, QUEUE_SIZE_MAX};

fn counter() -> OwnedFd {
    eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap()
}

/// The eventfd's count, which is taken.
fn signals(fd: &OwnedFd) -> u64 {
    let mut count = [0; 8];
    match rustix::io::read(fd, &mut count) {
        Ok(_) => u64::from_ne_bytes(count),
        Err(_) => 0,
    }
}

/// One chain after another, out of order, several times around the ring.
#[test]
fn chains_go_round_and_round() {
    let mut ring = TestRing::new(4);
    let mut queue = ring.queue();
    let mut chain = Chain::new();
    for head in 0..4 {
        ring.describe(head, descriptor(DATA + 64 * u64::from(head), 8, WRITE, 0));
    }
    for round in 0..40_000u32 {
        let first = (round % 4) as u16;
        let heads = [first, (first + 1) % 4, (first + 2) % 4];
        heads.iter().for_each(|&head| ring.offer(head));
        let taken: Vec<ChainHead> = heads.iter().map(|_| take(&mut queue, &mut chain)).collect();
        assert_eq!(taken.iter().map(|head| head.index()).collect::<Vec<_>>(), heads);
        assert_eq!(queue.take(&mut chain).unwrap(), None);
        assert_eq!(queue.outstanding(), 3);
        for &head in taken.iter().rev() {
            queue.put(head, round + u32::from(head.index()));
        }
        assert_eq!(ring.reap(), None, "put is not publish");
        queue.publish();
        for &head in heads.iter().rev() {
            assert_eq!(ring.reap(), Some((head, round + u32::from(head))));
        }
        assert_eq!(ring.reap(), None);
    }
    assert_eq!(queue.outstanding(), 0);
    assert_eq!(queue.counters().taken, 120_000);
    assert_eq!(queue.counters().batches, 40_000);
    assert_eq!(queue.base(), ring.base());
}

#[test]
fn data_goes_both_ways_direct_and_indirect() {
    let mut ring = TestRing::new(8);
    let mut queue = ring.queue();
    let mut chain = Chain::new();
    // 3 -> 1 -> table at an odd place: readable 16, readable 4 over the seam, writable 32.
    let table = DATA + 0x101;
    let seam = BASE + LEN as u64 - 2;
    ring.describe(3, descriptor(DATA, 16, NEXT, 1));
    ring.describe(1, descriptor(table, 48, INDIRECT | WRITE, 0));
    ring.write_at(table, descriptor(seam, 4, NEXT, 2));
    ring.write_at(table + 32, descriptor(DATA + 0x400, 32, WRITE | NEXT, 1));
    ring.write_at(table + 16, descriptor(DATA + 0x500, 1, WRITE, 7));
    ring.bytes(0x8000, b"a header of 16 b");
    ring.bytes(LEN - 2, b"sp");
    ring.offer(3);
    let head = take(&mut queue, &mut chain);
    assert_eq!(head.index(), 3);
    assert_eq!((chain.readable_bytes(), chain.writable_bytes()), (20, 33));
    assert_eq!((chain.readable.len(), chain.writable.len()), (3, 2));
    let mut text = [0; 20];
    // SAFETY: the chain is outstanding.
    unsafe {
        assert_eq!(gather(&chain.readable, 0, &mut text), 20);
        assert_eq!(scatter(&chain.writable, 31, &[7, 9]), 2);
    }
    assert_eq!(&text, b"a header of 16 bsp\0\0");
    assert_eq!((ring.area.load_u8(0x8000 + 0x41f), ring.area.load_u8(0x8000 + 0x500)), (7, 9));
}

#[test]
fn calls_by_flag() {
    let mut ring = TestRing::new(4);
    let call = counter();
    let mut config = ring.config(None);
    config.call = Some(call.try_clone().unwrap());
    let mut queue = Queue::new(config).unwrap();
    assert_eq!(signals(&call), 1, "a predecessor's call may be missing");
    let mut chain = Chain::new();
    for (flags, expected) in [(0, 1), (1, 0), (0, 1)] {
        ring.describe(0, descriptor(DATA, 8, WRITE, 0));
        ring.offer(0);
        ring.set_avail_flags(flags);
        let head = take(&mut queue, &mut chain);
        queue.put(head, 0);
        assert_eq!(queue.publish(), expected == 1);
        assert!(!queue.publish(), "nothing new");
        assert_eq!(signals(&call), expected);
    }
    assert_eq!((queue.counters().calls, queue.counters().calls_saved), (3, 1));
}

#[test]
fn calls_by_event_index_over_the_wrap() {
    let mut ring = TestRing::new(8);
    ring.event_idx = true;
    ring.set_avail_idx(0xfffa);
    ring.set_used_idx(0xfffa);
    let call = counter();
    let mut config = ring.config(None);
    config.base = 0xfffa;
    config.call = Some(call.try_clone().unwrap());
    let mut queue = Queue::new(config).unwrap();
    signals(&call);
    let mut chain = Chain::new();
    (0..8).for_each(|head| ring.describe(head, descriptor(DATA, 8, WRITE, 0)));
    // Batches of 3, 3, 4 end at 0xfffd, 0, 4; the driver wants to hear when 0xffff and 0 and 1
    // are passed.
    for (batch, event, expected) in [(3, 0xffff, 0), (3, 0xffff, 1), (4, 1, 1), (2, 1, 0)] {
        (0..batch).for_each(|head| ring.offer(head));
        ring.set_used_event(event);
        for _ in 0..batch {
            let head = take(&mut queue, &mut chain);
            queue.put(head, 0);
        }
        assert_eq!(queue.publish(), expected == 1, "batch {batch}, event {event}");
        assert_eq!(signals(&call), expected);
    }
}

#[test]
fn kicks_are_asked_for_and_declined() {
    for event_idx in [false, true] {
        let mut ring = TestRing::new(4);
        ring.event_idx = event_idx;
        let kick = counter();
        let mut config = ring.config(None);
        config.kick = Some(kick.try_clone().unwrap());
        let mut queue = Queue::new(config).unwrap();
        queue.disarm();
        assert_eq!(ring.used_flags(), u16::from(!event_idx));
        assert!(!queue.arm());
        assert_eq!(ring.used_flags(), 0);
        ring.describe(0, descriptor(DATA, 8, WRITE, 0));
        ring.offer(0);
        rustix::io::write(&kick, &1u64.to_ne_bytes()).unwrap();
        assert!(queue.kick_fd().is_some());
        assert!(queue.arm(), "there is work");
        queue.disarm();
        assert_eq!(signals(&kick), 0, "the kick was taken");
        take(&mut queue, &mut Chain::new());
        assert!(!queue.arm());
        assert_eq!(ring.avail_event(), u16::from(event_idx));
    }
}

/// A polled queue is kicked for its first chain at most, although the index comes round.
#[test]
fn declined_kicks_stay_declined_when_the_index_comes_round() {
    let mut ring = TestRing::new(4);
    ring.event_idx = true;
    let mut queue = ring.queue();
    assert!(!queue.arm());
    queue.disarm();
    let mut chain = Chain::new();
    (0..4).for_each(|head| ring.describe(head, descriptor(DATA, 8, WRITE, 0)));
    let (mut index, mut kicks) = (0u16, 0);
    for _ in 0..50_000 {
        // Four at once: whether the index goes past the event, as a driver looks at it.
        kicks += u32::from(ring.avail_event().wrapping_sub(index) < 4);
        index = index.wrapping_add(4);
        for head in 0..4 {
            ring.offer(head);
            let head = take(&mut queue, &mut chain);
            queue.put(head, 0);
        }
        queue.publish();
        while ring.reap().is_some() {}
    }
    assert_eq!(kicks, 1);
}

#[test]
fn nothing_is_stored_after_the_fence() {
    let mut ring = TestRing::new(4);
    let inflight = TestInflight::new(4);
    let call = counter();
    let mut config = ring.config(Some(inflight.queue()));
    config.call = Some(call.try_clone().unwrap());
    let mut queue = Queue::new(config).unwrap();
    for head in 0..3 {
        ring.describe(head, descriptor(DATA, 8, WRITE, 0));
        ring.offer(head);
    }
    let mut chain = Chain::new();
    let first = take(&mut queue, &mut chain);
    take(&mut queue, &mut chain);
    queue.put(first, 8);
    signals(&call);
    let before = ring.area.snapshot();
    let kept = queue.fence();
    assert_eq!(kept.tables.len(), 1);
    assert!(ring.area.snapshot() == before);
    assert_eq!(signals(&call), 0);
    assert_eq!(ring.reap(), None, "what was staged was not shown");
    // A successor finds both, and the third untouched.
    let mut queue = Queue::new(ring.config(Some(inflight.queue()))).unwrap();
    let heads: Vec<_> = (0..3).map(|_| take(&mut queue, &mut chain).index()).collect();
    assert_eq!(heads, [0, 1, 2]);
    assert_eq!(queue.counters().redone, 2);
}

fn second_memory() -> Arc<Memory> {
    let mapping = Arc::new(Mapping::anonymous(LEN).unwrap());
    Arc::new(Memory::new(vec![Arc::new(Region::from_mapping(BASE, mapping).unwrap())]).unwrap())
}

#[test]
fn old_memory_is_kept_for_outstanding_chains_and_no_longer() {
    let mut ring = TestRing::new(4);
    let mut queue = ring.queue();
    let mut chain = Chain::new();
    (0..4).for_each(|head| ring.describe(head, descriptor(DATA, 8, WRITE, 0)));
    let same = || Memory::new(ring.memory.regions().to_vec()).map(Arc::new).unwrap();
    let tables: Vec<_> = (0..4).map(|_| same()).collect();
    let weak: Vec<_> = tables.iter().map(Arc::downgrade).collect();
    let alive = || weak.iter().map(|table| table.strong_count()).collect::<Vec<_>>();
    let mut ring = ring;
    let mut heads = Vec::new();
    for (head, table) in (0..4).zip(tables) {
        queue.set_memory(table).unwrap();
        ring.offer(head);
        heads.push(take(&mut queue, &mut chain));
    }
    assert_eq!(alive(), [1, 1, 1, 1]);
    queue.put(heads[2], 0);
    assert_eq!(alive(), [1, 1, 0, 1]);
    queue.put(heads[3], 0);
    assert_eq!(alive(), [1, 1, 0, 1], "the present one stays");
    queue.put(heads[0], 0);
    queue.publish();
    assert_eq!(alive(), [0, 1, 0, 1]);
    queue.set_memory(second_memory()).unwrap();
    assert_eq!(alive(), [0, 1, 0, 0]);
    assert_eq!(queue.fence().tables.len(), 2);
    assert_eq!(alive(), [0, 0, 0, 0]);
}

#[test]
fn a_ring_that_leaves_the_memory_fails() {
    let ring = TestRing::new(4);
    let mut queue = ring.queue();
    let error = queue.set_memory(Arc::new(Memory::default())).unwrap_err();
    assert!(matches!(error, RingError::Unmapped { part: "descriptor table", .. }));
    assert_eq!(queue.take(&mut Chain::new()), Err(error));
    assert!(!queue.arm());
}

#[test]
fn bad_rings_are_refused() {
    let ring = TestRing::new(4);
    let refuse = |change: &dyn Fn(&mut crate::QueueConfig)| {
        let mut config = ring.config(None);
        change(&mut config);
        Queue::new(config).unwrap_err()
    };
    for size in [0, 3, QUEUE_SIZE_MAX * 2] {
        assert_eq!(refuse(&|config| config.size = size), RingError::Size(u32::from(size)));
    }
    let part = "used ring";
    let end = BASE + 2 * LEN as u64;
    let seam = BASE + LEN as u64 - 4;
    for addr in [0, u64::MAX, u64::MAX - 7, end, end - 8, seam] {
        assert_eq!(refuse(&|config| config.used = addr), RingError::Unmapped { part, addr });
    }
    let addr = BASE + 0x5002;
    assert_eq!(refuse(&|config| config.used = addr), RingError::Misaligned { part, addr });
    let (part, addr) = ("descriptor table", BASE + 8);
    assert_eq!(refuse(&|config| config.desc = addr), RingError::Misaligned { part, addr });
    let (part, addr) = ("available ring", BASE + 0x4001);
    assert_eq!(refuse(&|config| config.avail = addr), RingError::Misaligned { part, addr });
}

/// Sets up a ring of 4 and gives the error of the first take.
fn broken(prepare: impl FnOnce(&mut TestRing)) -> RingError {
    let mut ring = TestRing::new(4);
    prepare(&mut ring);
    let err = counter();
    let mut config = ring.config(None);
    config.err = Some(err.try_clone().unwrap());
    let mut queue = Queue::new(config).unwrap();
    let mut chain = Chain::new();
    let error = queue.take(&mut chain).unwrap_err();
    assert!(chain.readable.is_empty() && chain.writable.is_empty());
    assert_eq!(queue.take(&mut chain), Err(error), "it stays failed");
    assert_eq!(queue.failed(), Some(error));
    assert_eq!(signals(&err), 1, "the front end is told once");
    error
}

fn broken_chain(descriptors: &[Descriptor]) -> RingError {
    broken(|ring| {
        for (index, &descriptor) in (0..).zip(descriptors) {
            ring.describe(index, descriptor);
        }
        ring.offer(0);
    })
}

#[test]
fn a_driver_that_breaks_a_rule_is_told_which() {
    let jump = RingError::IndexJump { seen: 0, found: 5, size: 4 };
    assert_eq!(broken(|ring| ring.set_avail_idx(5)), jump);
    let back = RingError::IndexJump { seen: 0, found: 0xffff, size: 4 };
    assert_eq!(broken(|ring| ring.set_avail_idx(0xffff)), back);
    let range = RingError::OutOfRange { index: 4, size: 4 };
    assert_eq!(broken(|ring| ring.offer(4)), range);
    assert_eq!(broken_chain(&[descriptor(DATA, 8, NEXT, 4)]), range);
    let circle = [descriptor(DATA, 8, NEXT, 1), descriptor(DATA, 8, NEXT, 0)];
    assert_eq!(broken_chain(&circle), RingError::Loop { head: 0, limit: 4 });
    let empty = RingError::ZeroLength { head: 0 };
    assert_eq!(broken_chain(&[descriptor(DATA, 0, 0, 0)]), empty);
    let order = [descriptor(DATA, 8, WRITE | NEXT, 1), descriptor(DATA, 8, 0, 0)];
    assert_eq!(broken_chain(&order), RingError::Order { head: 0 });
    for (addr, len) in [(DATA, u32::MAX), (0, 1), (u64::MAX, 1), (u64::MAX - 7, 16)] {
        let unmapped = MemoryError::Unmapped { addr, len: u64::from(len) };
        assert_eq!(broken_chain(&[descriptor(addr, len, 0, 0)]), RingError::Memory(unmapped));
    }
}

#[test]
fn a_chain_twice_at_once_is_refused() {
    let mut ring = TestRing::new(4);
    let mut queue = ring.queue();
    ring.describe(1, descriptor(DATA, 8, WRITE, 0));
    ring.offer(1);
    ring.offer(1);
    let head = take(&mut queue, &mut Chain::new());
    let error = Err(RingError::HeadInUse { head: 1 });
    assert_eq!(queue.take(&mut Chain::new()), error);
    queue.put(head, 8);
    queue.publish();
    assert_eq!(ring.reap(), Some((1, 8)), "what was outstanding can still be given back");
    assert_eq!(queue.take(&mut Chain::new()), error);
}

#[test]
fn indirect_tables_that_break_a_rule() {
    let table = DATA + 0x1000;
    let misplaced = RingError::IndirectMisplaced { head: 0 };
    assert_eq!(broken_chain(&[descriptor(table, 16, INDIRECT | NEXT, 1)]), misplaced);
    for len in [0, 8, 17, 16 * (DESCRIPTORS_MAX as u32 + 1), u32::MAX, u32::MAX - 15] {
        let error = RingError::IndirectLength { head: 0, len };
        assert_eq!(broken_chain(&[descriptor(table, len, INDIRECT, 0)]), error);
    }
    let addr = BASE + LEN as u64 - 16;
    let seam = MemoryError::Unmapped { addr, len: 32 };
    assert_eq!(broken_chain(&[descriptor(addr, 32, INDIRECT, 0)]), RingError::Memory(seam));
    let inside = |entry: Descriptor| {
        broken(|ring| {
            ring.describe(0, descriptor(table, 16, INDIRECT, 0));
            ring.write_at(table, entry);
            ring.offer(0);
        })
    };
    assert_eq!(inside(descriptor(table, 16, INDIRECT, 0)), misplaced);
    assert_eq!(inside(descriptor(DATA, 8, NEXT, 0)), RingError::Loop { head: 0, limit: 1 });
    let outside = broken(|ring| {
        ring.describe(0, descriptor(table, 32, INDIRECT, 0));
        ring.write_at(table, descriptor(DATA, 8, NEXT, 2));
        ring.offer(0);
    });
    assert_eq!(outside, RingError::OutOfRange { index: 2, size: 2 });
}

#[test]
fn indirect_tables_that_were_not_negotiated() {
    let mut ring = TestRing::new(4);
    ring.describe(0, descriptor(DATA, 16, INDIRECT, 0));
    ring.offer(0);
    let mut config = ring.config(None);
    config.indirect = false;
    let mut queue = Queue::new(config).unwrap();
    let error = Err(RingError::IndirectMisplaced { head: 0 });
    assert_eq!(queue.take(&mut Chain::new()), error);
}

#[test]
fn the_longest_chain_fits_and_too_many_bytes_do_not() {
    let mut ring = TestRing::new(4);
    let table = BASE + LEN as u64 - 16 * DESCRIPTORS_MAX as u64;
    ring.describe(0, descriptor(table, 16 * DESCRIPTORS_MAX as u32, INDIRECT, 0));
    for index in 0..DESCRIPTORS_MAX as u16 {
        let last = usize::from(index) + 1 == DESCRIPTORS_MAX;
        let flags = if last { WRITE } else { NEXT };
        let at = table + 16 * u64::from(index);
        ring.write_at(at, descriptor(DATA, 1, flags, index + 1));
    }
    ring.offer(0);
    let mut chain = Chain::new();
    let room = (chain.readable.capacity(), chain.writable.capacity());
    let mut queue = ring.queue();
    take(&mut queue, &mut chain);
    assert_eq!(chain.readable_bytes() as usize, DESCRIPTORS_MAX - 1);
    assert_eq!((chain.readable.capacity(), chain.writable.capacity()), room);
}

#[test]
fn an_inflight_region_that_contradicts_the_ring_is_refused() {
    let mut ring = TestRing::new(4);
    let inflight = TestInflight::new(8);
    ring.set_used_idx(7);
    ring.set_avail_idx(7);
    let mut config = ring.config(Some(inflight.queue()));
    config.base = 7;
    drop(Queue::new(config).unwrap());
    let refused = |ring: &TestRing| Queue::new(ring.config(Some(inflight.queue()))).unwrap_err();
    ring.set_used_idx(12);
    let error = InflightError::UsedIndex { recorded: 7, ring: 12 };
    assert_eq!(refused(&ring), RingError::Inflight(error));
    ring.set_used_idx(6);
    let error = InflightError::UsedIndex { recorded: 7, ring: 6 };
    assert_eq!(refused(&ring), RingError::Inflight(error));
    ring.size = 8;
    let error = InflightError::DescNum { found: 4, size: 8 };
    assert_eq!(refused(&ring), RingError::Inflight(error));
    ring.size = 16;
    let error = InflightError::DescNum { found: 8, size: 16 };
    assert_eq!(refused(&ring), RingError::Inflight(error));
}

#[test]
fn the_inflight_region_outranks_the_base() {
    let mut ring = TestRing::new(4);
    let inflight = TestInflight::new(4);
    let mut queue = Queue::new(ring.config(Some(inflight.queue()))).unwrap();
    (0..4).for_each(|head| ring.describe(head, descriptor(DATA, 8, WRITE, 0)));
    (0..3).for_each(|head| ring.offer(head));
    let mut chain = Chain::new();
    let heads: Vec<_> = (0..3).map(|_| take(&mut queue, &mut chain)).collect();
    queue.put(heads[1], 8);
    queue.publish();
    assert_eq!(queue.base(), 3);
    drop(queue);
    let mut config = ring.config(Some(inflight.queue()));
    // QEMU that lost its back end falls back to the used index.
    config.base = 1;
    let mut queue = Queue::new(config).unwrap();
    assert_eq!(queue.base(), 3);
    assert!(queue.arm(), "what is to be done again is work");
    assert_eq!(take(&mut queue, &mut chain).index(), 0);
    assert_eq!(take(&mut queue, &mut chain).index(), 2);
    assert_eq!(queue.take(&mut chain).unwrap(), None);
}

#[test]
#[should_panic(expected = "was not outstanding")]
fn putting_a_chain_twice_is_our_own_mistake() {
    let mut ring = TestRing::new(4);
    let mut queue = ring.queue();
    ring.describe(0, descriptor(DATA, 8, WRITE, 0));
    ring.offer(0);
    let head = take(&mut queue, &mut Chain::new());
    queue.put(head, 0);
    queue.put(head, 0);
}

#[test]
fn queues_and_segments_can_change_threads() {
    fn send<T: Send>() {}
    send::<Queue>();
    send::<crate::QueueConfig>();
    send::<crate::Segment>();
    send::<Chain>();
    let _ = counter().as_fd();
}
