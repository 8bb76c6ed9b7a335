//! A packed ring without an inflight region, stopped at every store: the ring itself says where to
//! go on. A chain may be executed twice or come back with nothing in it, as frames may be sent
//! twice or lost; but each comes back once, and nothing else does.

use random::Random;

use super::ring::*;
use crate::chain::Chain;
use crate::error::RingError;
use crate::queue::Queue;
use crate::ring::RingKind;

const SIZE: u16 = 8;
/// Chains of one, two and three descriptors, by their id: together they fill the ring.
const CHAINS: [(u16, u16); 5] = [(0, 1), (1, 2), (3, 3), (6, 1), (7, 1)];
/// Five times around the ring.
const REQUESTS: usize = 24;
const ROUNDS_MAX: usize = 10_000;

struct World {
    ring: TestRing,
    dice: Random,
    free: Vec<u16>,
    /// The chains that the device has, oldest first.
    owned: std::collections::VecDeque<u16>,
    next: usize,
    done: usize,
    empty: usize,
}

impl World {
    fn new(seed: u64, several: bool) -> Self {
        let mut ring = TestRing::of_kind(RingKind::Packed, SIZE);
        for (head, count) in CHAINS {
            let count = if several { count } else { 1 };
            let piece = |index| descriptor(DATA + 8 * u64::from(index), 8, WRITE, 0);
            let pieces: Vec<_> = (head..head + count).map(piece).collect();
            ring.chain(head, &pieces);
        }
        let free = CHAINS.map(|(head, _)| head).into();
        let (dice, owned) = (Random::new(seed), std::collections::VecDeque::new());
        Self { ring, dice, free, owned, next: 0, done: 0, empty: 0 }
    }

    fn drive(&mut self) {
        while let Some((head, written)) = self.ring.reap() {
            // Chains come back in the order in which they were made, in all cases.
            assert_eq!(self.owned.pop_front(), Some(head), "a completion of nothing");
            assert!(written == 0 || written == u32::from(head) + 1, "{written} for {head}");
            self.empty += usize::from(written == 0);
            self.done += 1;
            self.free.push(head);
        }
        let wanted = self.dice.below(5) as usize;
        for _ in 0..wanted.min(self.free.len()).min(REQUESTS - self.next) {
            let at = self.dice.below(self.free.len() as u64) as usize;
            let head = self.free.swap_remove(at);
            self.next += 1;
            self.owned.push_back(head);
            self.ring.offer(head);
        }
    }

    /// A life of a device: how many stores there were, or nothing if it was stopped.
    fn live(&mut self, stores_max: u64) -> Option<u64> {
        // The base of a front end that has heard nothing since the guest started.
        let mut config = self.ring.config(None);
        config.in_order = true;
        let mut queue = Queue::new_stopping(config, stores_max).unwrap();
        let mut chain = Chain::new();
        let mut work = std::collections::VecDeque::new();
        for _ in 0..ROUNDS_MAX {
            if queue.stopped() {
                return None;
            }
            self.drive();
            if self.done == REQUESTS {
                assert_eq!(queue.base(), self.ring.base());
                return Some(queue.stores());
            }
            for _ in 0..self.dice.below(5) {
                let Some(head) = queue.take(&mut chain).unwrap() else { break };
                work.push_back(head);
            }
            for _ in 0..self.dice.below(5).min(work.len() as u64) {
                let head = work.pop_front().expect("there are as many");
                let written = u32::from(head.index()) + 1;
                queue.put(head, written);
            }
            if self.dice.one_in(2) {
                queue.publish();
            }
        }
        panic!("no end in {ROUNDS_MAX} rounds: {} done, {:?} left", self.done, self.owned);
    }
}

/// Runs until the end, with one stop after so many stores each; gives what the last life stored,
/// or nothing where a life came to the end earlier.
fn run((seed, several): (u64, bool), stops: &[u64], empty: &mut usize) -> Option<u64> {
    let mut world = World::new(seed, several);
    for &stop in stops {
        if world.live(stop).is_some() {
            return None;
        }
    }
    let stores = world.live(u64::MAX);
    *empty += world.empty;
    Some(stores.expect("nothing stops the last life"))
}

#[test]
fn a_packed_ring_alone_says_where_to_go_on() {
    let (mut points, mut empty) = (0, 0);
    for several in [false, true] {
        for seed in 0..200 {
            let world = (seed, several);
            let stores = run(world, &[], &mut empty).unwrap();
            for stop in 0..stores {
                assert!(run(world, &[stop], &mut empty).is_some(), "seed {seed}, {stop}");
                points += 1;
            }
        }
    }
    println!("{points} stopping points, {empty} chains came back empty");
    assert!(points > 5_000 && empty > 1_000, "the workload shrank: {points} {empty}");
}

#[test]
fn a_second_stop_while_the_first_is_mended_changes_nothing() {
    let (mut points, mut empty) = (0, 0);
    for seed in 1000..1012 {
        let world = (seed, seed % 3 != 0);
        let stores = run(world, &[], &mut empty).unwrap();
        for first in 0..stores {
            let Some(stores) = run(world, &[first], &mut empty) else { continue };
            for second in 0..stores {
                run(world, &[first, second], &mut empty);
                points += 1;
            }
        }
    }
    println!("{points} pairs of stopping points, {empty} chains came back empty");
    assert!(points > 5_000, "the workload shrank: {points}");
}

/// The ring of a device that marks the first slot of each chain only: the front end's word counts.
#[test]
fn a_ring_that_others_used_goes_on_where_the_front_end_says() {
    let mut world = World::new(7, true);
    world.dice = Random::new(3);
    let mut queue = world.ring.queue();
    let mut chain = Chain::new();
    for head in [3, 1, 0] {
        world.ring.offer(head);
        let taken = queue.take(&mut chain).unwrap().unwrap();
        queue.put(taken, 1);
        queue.publish();
        world.ring.reap().unwrap();
    }
    world.ring.offer(6);
    let mut config = world.ring.config(None);
    config.in_order = true;
    config.base = queue.base();
    let mut next = Queue::new(config).unwrap();
    assert_eq!(next.take(&mut chain).unwrap().unwrap().index(), 6);
}

/// A front end that serves the socket says of a split ring what it likes when it starts it again:
/// DPDK's and Open vSwitch's zero, others the available index. The used index is right.
#[test]
fn a_split_ring_alone_says_where_to_go_on() {
    let mut ring = TestRing::new(SIZE);
    (0..SIZE).for_each(|head| ring.describe(head, descriptor(DATA, 8, WRITE, 0)));
    let mut chain = Chain::new();
    let (mut offered, mut used) = (0_u32, 0_u32);
    // Beyond the index's end and around.
    for life in 0..30_000 {
        while offered - used < u32::from(SIZE) {
            ring.offer((offered % u32::from(SIZE)) as u16);
            offered += 1;
        }
        let mut config = ring.config(None);
        config.in_order = true;
        config.base = [0, u32::from(ring.avail_idx), 7][life % 3];
        let mut queue = Queue::new(config).unwrap();
        let head = |number: u32| (number % u32::from(SIZE)) as u16;
        // It dies with the rest, which is taken again.
        let mut taken = std::iter::from_fn(|| queue.take(&mut chain).unwrap());
        let taken: Vec<_> = taken.by_ref().collect();
        assert_eq!(taken.len(), usize::from(SIZE), "life {life}");
        for taken in &taken[..3] {
            assert_eq!(taken.index(), head(used), "life {life}");
            queue.put(*taken, 8);
            used += 1;
        }
        queue.publish();
        for number in used - 3..used {
            assert_eq!(ring.reap(), Some((head(number), 8)), "life {life}");
        }
    }
    assert!(used > u32::from(u16::MAX));
}

/// Of chains that end in any order, those before the used index are not done again.
#[test]
fn a_base_before_the_used_index_is_refused() {
    let mut ring = TestRing::new(SIZE);
    ring.set_used_idx(3);
    ring.set_avail_idx(5);
    for (base, is_sound) in [(0, false), (2, false), (3, true), (5, true), (12, false)] {
        let mut config = ring.config(None);
        config.base = base;
        let wrong = RingError::Base { base, size: SIZE };
        assert_eq!(Queue::new(config).err(), (!is_sound).then_some(wrong), "{base}");
    }
}
