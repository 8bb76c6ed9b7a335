//! The inflight region, stopped at every store.
//!
//! A scripted workload runs against a queue that stops after its n-th store (or signal), as a
//! killed process would, for every n there is. A successor is made from the ring and the inflight
//! region and finishes the work. In a second test the successor is stopped as well, at every one
//! of its own stores, and a third one finishes.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use rustix::event::{EventfdFlags, eventfd};

use random::Random;

use super::ring::*;
use crate::chain::{Chain, ChainHead};
use crate::queue::Queue;
use crate::ring::RingKind;

const SIZE: u16 = 8;
/// Chains of one, two and three descriptors, by their first one or their id: together they fill a
/// ring of either kind.
const CHAINS: [(u16, u16); 5] = [(0, 1), (1, 2), (3, 3), (6, 1), (7, 1)];
/// Five times around the ring.
const REQUESTS: usize = 24;
/// Far more rounds than any run needs.
const ROUNDS_MAX: usize = 10_000;

/// The state of the driver and of the storage; both outlive the device.
struct World {
    ring: TestRing,
    inflight: TestInflight,
    dice: Random,
    /// Some: the driver looks at the used ring only when it was called.
    call: Option<OwnedFd>,
    looked: bool,
    free: Vec<u16>,
    /// Which request a head is.
    owner: BTreeMap<u16, usize>,
    next: usize,
    done: [u32; REQUESTS],
    executed: [u32; REQUESTS],
    /// The place of each request in the order in which they were first taken.
    sequence: [u64; REQUESTS],
    taken: u64,
    last_redone: u64,
    redone: u64,
}

impl World {
    fn new(kind: RingKind, seed: u64, sleeps: bool) -> Self {
        let mut ring = TestRing::of_kind(kind, SIZE);
        ring.event_idx = true;
        if kind == RingKind::Split {
            // Begin where indices wrap within the run.
            ring.set_avail_idx(0xfff8);
            ring.set_used_idx(0xfff8);
        }
        ring.ask_for_calls();
        for (head, count) in CHAINS {
            let piece = |index| descriptor(DATA + 8 * u64::from(index), 8, WRITE, 0);
            let pieces: Vec<_> = (head..head + count).map(piece).collect();
            ring.chain(head, &pieces);
        }
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        Self {
            ring,
            inflight: TestInflight::of_kind(kind, SIZE),
            dice: Random::new(seed),
            call: sleeps.then(|| eventfd(0, flags).unwrap()),
            looked: false,
            free: CHAINS.map(|(head, _)| head).into(),
            owner: BTreeMap::new(),
            next: 0,
            done: [0; REQUESTS],
            executed: [0; REQUESTS],
            sequence: [0; REQUESTS],
            taken: 0,
            last_redone: 0,
            redone: 0,
        }
    }

    fn called(&self) -> bool {
        let mut count = [0; 8];
        self.call.as_ref().is_none_or(|call| rustix::io::read(call, &mut count).is_ok())
    }

    /// The driver: takes completions, says when it wants to hear again, makes requests.
    fn drive(&mut self) {
        if !self.looked || self.called() {
            self.looked = true;
            loop {
                while let Some((head, written)) = self.ring.reap() {
                    let id = self.owner.remove(&head).expect("a completion of nothing");
                    assert_eq!(written as usize, id, "another request's completion");
                    self.done[id] += 1;
                    self.free.push(head);
                }
                self.ring.ask_for_calls();
                if !self.ring.has_used() {
                    break;
                }
            }
        }
        let wanted = self.dice.below(4) as usize;
        for _ in 0..wanted.min(self.free.len()).min(REQUESTS - self.next) {
            let at = self.dice.below(self.free.len() as u64) as usize;
            let head = self.free.swap_remove(at);
            self.owner.insert(head, self.next);
            self.next += 1;
            self.ring.offer(head);
        }
    }

    fn all_done(&self) -> bool {
        self.done.iter().all(|&times| times == 1)
    }

    /// The storage: a request is done, perhaps again, but never once the driver can see it
    /// complete; and what is done again comes in its old order, before anything new.
    fn execute(&mut self, head: ChainHead, redo: bool) -> usize {
        let id = *self.owner.get(&head.index()).expect("a request that the driver has not made");
        let visible = self.ring.unreaped().contains(&head.index());
        assert!(self.done[id] == 0 && !visible, "{id} is done again after it was completed");
        self.executed[id] += 1;
        if redo {
            assert!(self.sequence[id] > self.last_redone, "{id} is done again out of order");
            self.last_redone = self.sequence[id];
            self.redone += 1;
        } else {
            self.taken += 1;
            self.sequence[id] = self.taken;
        }
        id
    }

    fn start(&self, stores_max: u64) -> Queue {
        let mut config = self.ring.config(Some(self.inflight.queue()));
        // After a death the base is unknown; the front end's base must not matter.
        if self.ring.kind() == RingKind::Split {
            config.base = 0xfff8;
        }
        config.call = self.call.as_ref().map(|call| call.try_clone().unwrap());
        Queue::new_stopping(config, stores_max).unwrap()
    }

    /// A life of a device: how many stores there were, or nothing if it was stopped.
    fn live(&mut self, stores_max: u64) -> Option<u64> {
        self.last_redone = 0;
        let mut queue = self.start(stores_max);
        let mut chain = Chain::new();
        let mut work: Vec<(ChainHead, usize)> = Vec::new();
        for _ in 0..ROUNDS_MAX {
            self.drive();
            if queue.stopped() {
                return None;
            }
            if self.all_done() {
                self.check_end(&queue);
                return Some(queue.stores());
            }
            for _ in 0..self.dice.below(4) {
                let redone = queue.counters().redone;
                let Some(head) = queue.take(&mut chain).unwrap() else { break };
                if queue.stopped() {
                    return None;
                }
                let id = self.execute(head, queue.counters().redone > redone);
                work.push((head, id));
            }
            for _ in 0..self.dice.below(4).min(work.len() as u64) {
                let at = self.dice.below(work.len() as u64) as usize;
                let (head, id) = work.remove(at);
                queue.put(head, id as u32);
            }
            if self.dice.one_in(2) {
                queue.publish();
            }
        }
        panic!("no end in {ROUNDS_MAX} rounds: {:?} {:?}", self.done, self.owner);
    }

    fn check_end(&self, queue: &Queue) {
        assert_eq!(queue.outstanding(), 0);
        assert!(self.executed.iter().all(|&times| times >= 1));
        assert_eq!(queue.base(), self.ring.base());
        let left = Queue::new(self.ring.config(Some(self.inflight.queue()))).unwrap();
        assert_eq!(left.base(), self.ring.base());
    }
}

/// Runs until the end, with one stop after so many stores each; gives what the last life stored,
/// or nothing where a life came to the end earlier.
fn run(
    (kind, seed, sleeps): (RingKind, u64, bool),
    stops: &[u64],
    redone: &mut u64,
) -> Option<u64> {
    let mut world = World::new(kind, seed, sleeps);
    for &stop in stops {
        if world.live(stop).is_some() {
            return None;
        }
    }
    let stores = world.live(u64::MAX);
    *redone += world.redone;
    Some(stores.expect("nothing stops the last life"))
}

fn stop_at_every_store(kind: RingKind) {
    let (mut points, mut redone) = (0, 0);
    for sleeps in [false, true] {
        for seed in 0..64 {
            let world = (kind, seed, sleeps);
            let stores = run(world, &[], &mut redone).unwrap();
            for stop in 0..stores {
                assert!(run(world, &[stop], &mut redone).is_some(), "seed {seed}, {stop}");
                points += 1;
            }
        }
    }
    println!("{kind:?}: {points} stopping points, {redone} requests done again");
    assert!(points > 10_000 && redone > points, "the workload shrank");
}

#[test]
fn every_store_can_be_the_last() {
    stop_at_every_store(RingKind::Split);
}

#[test]
fn every_store_of_a_packed_ring_can_be_the_last() {
    stop_at_every_store(RingKind::Packed);
}

fn stop_at_every_pair(kind: RingKind) {
    let (mut points, mut redone) = (0, 0);
    for seed in 100..102 {
        let world = (kind, seed, false);
        let stores = run(world, &[], &mut redone).unwrap();
        for first in 0..stores {
            let Some(stores) = run(world, &[first], &mut redone) else { continue };
            for second in 0..stores {
                run(world, &[first, second], &mut redone);
                points += 1;
            }
        }
    }
    println!("{kind:?}: {points} pairs of stopping points, {redone} requests done again");
    assert!(points > 10_000, "the workload shrank");
}

#[test]
fn every_store_of_a_successor_can_be_its_last() {
    stop_at_every_pair(RingKind::Split);
}

#[test]
fn every_store_of_a_successor_of_a_packed_ring_can_be_its_last() {
    stop_at_every_pair(RingKind::Packed);
}
