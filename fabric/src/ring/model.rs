//! The ring under loom: every order in which the threads' loads and stores can meet, within a bound
//! on switches. Run by `RUSTFLAGS="--cfg loom" cargo test --release -p fabric --lib ring::model`.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use loom::thread;

use super::*;

const CELLS: usize = 2;

struct Modelled {
    tail: AtomicU64,
    head: AtomicU64,
    claims: [AtomicU64; CELLS],
    stamps: [AtomicU64; CELLS],
    lives: [AtomicU64; 2],
    /// What is in a cell beside its stamp: loom finds two who use it at once.
    contents: [UnsafeCell<u32>; CELLS],
}

// SAFETY: the contents are what the ring protects; loom reports every access that it does not.
unsafe impl Sync for Modelled {}

impl Modelled {
    fn new() -> Self {
        let live = Life { state: State::Live, incarnation: 1 }.to_word();
        Self {
            tail: AtomicU64::new(0),
            head: AtomicU64::new(0),
            claims: [(); CELLS].map(|()| AtomicU64::new(0)),
            stamps: [(); CELLS].map(|()| AtomicU64::new(0)),
            lives: [(); 2].map(|()| AtomicU64::new(live)),
            contents: [(); CELLS].map(|()| UnsafeCell::new(0)),
        }
    }

    fn contents(&self, position: u64) -> &UnsafeCell<u32> {
        &self.contents[position as usize % CELLS]
    }

    /// Sends one message, waiting for room.
    fn send(&self, way: &mut Way, slot: u16, message: u32) {
        let position = self.claim_for(way, slot);
        // SAFETY: loom checks that nobody else has it.
        self.contents(position).with_mut(|contents| unsafe { *contents = message });
        publish(self, position, message);
    }

    fn claim_for(&self, way: &mut Way, slot: u16) -> u64 {
        loop {
            match way.claim(self, Producer { slot, incarnation: 1 }) {
                Ok(position) => return position,
                Err(NoCell::Full) => thread::yield_now(),
                Err(NoCell::Broken) => panic!("the ring is broken"),
            }
        }
    }

    /// Takes so many messages, skipping the dead.
    fn take(&self, count: usize) -> Vec<u32> {
        let (mut consumer, mut taken) = (Consumer::new(self), Vec::new());
        while taken.len() < count {
            if let Some(low) = consumer.look(self) {
                // SAFETY: as in `send`.
                let contents =
                    self.contents(consumer.position()).with(|contents| unsafe { *contents });
                assert_eq!(contents, low, "a cell of two messages");
                taken.push(low);
                consumer.advance(self);
            } else if !consumer.skip_dead(self) {
                thread::yield_now();
            }
        }
        taken
    }
}

impl Words for Modelled {
    fn cells(&self) -> u32 {
        CELLS as u32
    }
    fn tail(&self) -> u64 {
        self.tail.load(Relaxed)
    }
    fn set_tail(&self, position: u64) {
        self.tail.store(position, Relaxed);
    }
    fn head(&self) -> u64 {
        self.head.load(Acquire)
    }
    fn set_head(&self, position: u64) {
        self.head.store(position, Release);
    }
    fn claim(&self, position: u64) -> u64 {
        self.claims[position as usize % CELLS].load(Acquire)
    }
    fn exchange_claim(&self, position: u64, current: u64, new: u64) -> Result<(), u64> {
        self.claims[position as usize % CELLS]
            .compare_exchange(current, new, AcqRel, Acquire)
            .map(|_| ())
    }
    fn stamp(&self, position: u64) -> u64 {
        self.stamps[position as usize % CELLS].load(Acquire)
    }
    fn set_stamp(&self, position: u64, stamp: u64) {
        self.stamps[position as usize % CELLS].store(stamp, Release);
    }
    fn life(&self, slot: u16) -> Option<Life> {
        self.lives.get(usize::from(slot)).map(|life| Life::from_word(life.load(Acquire)))
    }
}

fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

#[test]
fn one_producer_goes_round_the_ring() {
    check(3, || {
        let ring = Arc::new(Modelled::new());
        let producer = Arc::clone(&ring);
        let sends = thread::spawn(move || {
            let mut way = Way::default();
            (1..=3).for_each(|message| producer.send(&mut way, 0, message));
        });
        assert_eq!(ring.take(3), [1, 2, 3]);
        sends.join().expect("it sent");
    });
}

#[test]
fn two_producers_share_the_ring() {
    check(2, || {
        let ring = Arc::new(Modelled::new());
        let threads: Vec<_> = (0..2_u16)
            .map(|slot| {
                let ring = Arc::clone(&ring);
                thread::spawn(move || {
                    let mut way = Way::default();
                    ring.send(&mut way, slot, u32::from(slot) * 10 + 1);
                    if slot == 0 {
                        ring.send(&mut way, slot, 2);
                    }
                })
            })
            .collect();
        let taken = ring.take(3);
        let place = |message| taken.iter().position(|&taken| taken == message).expect("it came");
        assert!(place(1) < place(2), "in order: {taken:?}");
        place(11);
        threads.into_iter().for_each(|thread| thread.join().expect("it sent"));
    });
}

/// One claims, or claims and publishes, and dies; the other one's messages all come.
#[test]
fn a_producer_dies_in_between() {
    for publishes in [false, true] {
        check(2, move || {
            let ring = Arc::new(Modelled::new());
            let (dying, living) = (Arc::clone(&ring), Arc::clone(&ring));
            let dies = thread::spawn(move || {
                let mut way = Way::default();
                if publishes {
                    dying.send(&mut way, 1, 7);
                }
                dying.claim_for(&mut way, 1);
                let dead = Life { state: State::Dead, incarnation: 1 };
                dying.lives[1].store(dead.to_word(), Release);
            });
            let sends = thread::spawn(move || {
                let mut way = Way::default();
                (1..=2).for_each(|message| living.send(&mut way, 0, message));
            });
            let mut taken = ring.take(2 + usize::from(publishes));
            taken.sort_unstable();
            assert_eq!(taken, if publishes { vec![1, 2, 7] } else { vec![1, 2] });
            dies.join().expect("it died");
            sends.join().expect("it sent");
        });
    }
}
