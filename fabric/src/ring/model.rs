//! The ring under loom: every order in which the threads' loads and stores can meet, within a bound
//! on switches. Run by `RUSTFLAGS="--cfg loom" cargo test --release -p fabric --lib ring::model`.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
    fence,
};
use loom::thread;

use super::*;

/// All claims in the beginning: of a producer that died in the turn before the first.
const OLD: CellClaim = CellClaim { turn: 0, producer: Producer { slot: 2, incarnation: 1 } };

struct Modelled {
    tail: AtomicU64,
    head: AtomicU64,
    claims: Vec<AtomicU64>,
    stamps: Vec<AtomicU64>,
    lives: [AtomicU64; 2],
    asleep: AtomicU64,
    /// Rung by a producer that found the consumer asleep; of use to the next look only.
    doorbell: AtomicU64,
    /// The content of cells beside their stamps: loom finds two users at once.
    contents: Vec<UnsafeCell<u32>>,
}

// SAFETY: the contents are what the ring protects; loom reports every access that it does not.
unsafe impl Sync for Modelled {}

impl Modelled {
    fn new(cells: usize) -> Self {
        let zeroes = || (0..cells).map(|_| AtomicU64::new(0)).collect();
        let live = Life { state: SlotLife::Live, incarnation: 1 }.to_word();
        Self {
            tail: AtomicU64::new(0),
            head: AtomicU64::new(0),
            claims: (0..cells).map(|_| AtomicU64::new(OLD.to_word())).collect(),
            stamps: zeroes(),
            lives: [(); 2].map(|()| AtomicU64::new(live)),
            asleep: AtomicU64::new(0),
            doorbell: AtomicU64::new(0),
            contents: (0..cells).map(|_| UnsafeCell::new(0)).collect(),
        }
    }

    fn index(&self, position: u64) -> usize {
        position as usize % self.claims.len()
    }

    fn contents(&self, position: u64) -> &UnsafeCell<u32> {
        &self.contents[self.index(position)]
    }

    /// Sends one message, waiting for room.
    fn send(&self, way: &mut RingProducer, slot: u16, message: u32) {
        let position = self.claim_for(way, slot);
        // SAFETY: loom checks that no other thread has it.
        self.contents(position).with_mut(|contents| unsafe { *contents = message });
        publish(self, position, message);
    }

    fn claim_for(&self, way: &mut RingProducer, slot: u16) -> u64 {
        loop {
            match way.claim(self, Producer { slot, incarnation: 1 }) {
                Ok(position) => return position,
                Err(NoCell::Full) => thread::yield_now(),
                Err(NoCell::Broken) => panic!("the ring is broken"),
            }
        }
    }

    /// Takes a message if there is one, or passes over one of the dead.
    fn take(&self, consumer: &mut Consumer, taken: &mut Vec<u32>) -> bool {
        let Some(low) = consumer.look(self) else { return consumer.skip_dead(self) };
        // SAFETY: as in `send`.
        let contents = self.contents(consumer.position()).with(|contents| unsafe { *contents });
        assert_eq!(contents, low, "a cell of two messages");
        taken.push(low);
        consumer.advance(self);
        true
    }
}

impl Words for Modelled {
    fn cells(&self) -> u32 {
        self.claims.len() as u32
    }
    fn tail(&self) -> u64 {
        self.tail.load(Acquire)
    }
    fn set_tail(&self, position: u64) {
        self.tail.store(position, Release);
    }
    fn head(&self) -> u64 {
        self.head.load(Acquire)
    }
    fn set_head(&self, position: u64) {
        self.head.store(position, Release);
    }
    fn claim(&self, position: u64) -> u64 {
        self.claims[self.index(position)].load(Acquire)
    }
    fn exchange_claim(&self, position: u64, current: u64, new: u64) -> Result<(), u64> {
        self.claims[self.index(position)]
            .compare_exchange(current, new, AcqRel, Acquire)
            .map(|_| ())
    }
    fn stamp(&self, position: u64) -> u64 {
        self.stamps[self.index(position)].load(Acquire)
    }
    fn set_stamp(&self, position: u64, stamp: u64) {
        self.stamps[self.index(position)].store(stamp, Release);
    }
    fn life(&self, slot: u16) -> Option<Life> {
        self.lives.get(usize::from(slot)).map(|life| Life::from_word(life.load(Acquire)))
    }
    fn asleep(&self) -> u64 {
        self.asleep.load(Relaxed)
    }
    fn set_asleep(&self, word: u64) {
        self.asleep.store(word, Relaxed);
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
        let ring = Arc::new(Modelled::new(2));
        let producer = Arc::clone(&ring);
        let sends = thread::spawn(move || {
            let mut way = RingProducer::default();
            (1..=3).for_each(|message| producer.send(&mut way, 0, message));
        });
        let (mut consumer, mut taken) = (Consumer::new(&*ring), Vec::new());
        while taken.len() < 3 {
            if !ring.take(&mut consumer, &mut taken) {
                thread::yield_now();
            }
        }
        assert_eq!(taken, [1, 2, 3]);
        sends.join().expect("it sent");
    });
}

/// Runs two producers, which have room, beside a consumer that looks twice, and then, when both
/// have ended, as often as it finds something. (A producer that waits has no end that loom can
/// see.)
fn race(
    one: impl FnOnce(&Modelled) + Send + 'static,
    other: impl FnOnce(&Modelled) + Send + 'static,
) -> Vec<u32> {
    let ring = Arc::new(Modelled::new(4));
    let (first, second) = (Arc::clone(&ring), Arc::clone(&ring));
    let threads = [thread::spawn(move || one(&first)), thread::spawn(move || other(&second))];
    let (mut consumer, mut taken) = (Consumer::new(&*ring), Vec::new());
    (0..2).for_each(|_| {
        ring.take(&mut consumer, &mut taken);
    });
    threads.into_iter().for_each(|thread| thread.join().expect("it ended"));
    while ring.take(&mut consumer, &mut taken) {}
    taken
}

#[test]
fn two_producers_share_the_ring() {
    check(2, || {
        let taken = race(
            |ring| {
                let mut way = RingProducer::default();
                (1..=2).for_each(|message| ring.send(&mut way, 0, message));
            },
            |ring| ring.send(&mut RingProducer::default(), 1, 11),
        );
        let place = |message| taken.iter().position(|&taken| taken == message).expect("it came");
        assert!(place(1) < place(2), "in order: {taken:?}");
        assert_eq!((place(11) < 3, taken.len()), (true, 3), "{taken:?}");
    });
}

/// One claims, or publishes and claims, and dies; the other one's messages all come.
#[test]
fn a_producer_dies_in_between() {
    for publishes in [false, true] {
        check(2, move || {
            let mut taken = race(
                move |ring| {
                    let mut way = RingProducer::default();
                    if publishes {
                        ring.send(&mut way, 1, 7);
                    }
                    ring.claim_for(&mut way, 1);
                    let dead = Life { state: SlotLife::Dead, incarnation: 1 };
                    ring.lives[1].store(dead.to_word(), Release);
                },
                |ring| {
                    let mut way = RingProducer::default();
                    (1..=2).for_each(|message| ring.send(&mut way, 0, message));
                },
            );
            taken.sort_unstable();
            assert_eq!(taken, if publishes { vec![1, 2, 7] } else { vec![1, 2] });
        });
    }
}

/// The node takes a dead producer's old claims away while another one sends: all its messages come.
#[test]
fn old_claims_are_swept_meanwhile() {
    check(3, || {
        let taken = race(
            |ring| {
                let mut way = RingProducer::default();
                (1..=2).for_each(|message| ring.send(&mut way, 0, message));
            },
            |ring| {
                let nobodys = Producer { slot: NOBODY, incarnation: 0 };
                let swept = CellClaim { producer: nobodys, ..OLD }.to_word();
                (0..2).for_each(|position| {
                    // If it is another's by now, that is as good.
                    let _ = ring.exchange_claim(position, OLD.to_word(), swept);
                });
            },
        );
        assert_eq!(taken, [1, 2]);
    });
}

impl Modelled {
    /// Sends, and wakes. Members have no fence of their own here: the sleeper's barrier makes one
    /// for them, at a moment that it chooses; one that is always there is what loom knows.
    fn send_and_wake(&self, way: &mut RingProducer, slot: u16, message: u32, rung: &mut u64) {
        self.send(way, slot, message);
        fence(SeqCst);
        let word = self.asleep();
        if word != *rung {
            self.doorbell.fetch_add(1, AcqRel);
            *rung = word;
        }
    }
}

/// A consumer that sleeps twice, with a message taken in between or not, is woken for each message
/// that it has not seen before it slept, though no producer rings twice for the same sleep.
#[test]
fn a_sleeper_is_woken() {
    check(3, || {
        let ring = Arc::new(Modelled::new(4));
        let producer = Arc::clone(&ring);
        let sends = thread::spawn(move || {
            let (mut way, mut rung) = (RingProducer::default(), 0);
            (1..=2).for_each(|message| producer.send_and_wake(&mut way, 0, message, &mut rung));
        });
        let (mut consumer, mut taken) = (Consumer::new(&*ring), Vec::new());
        let mut sleeps = false;
        for word in 1..=2 {
            // As an endpoint does: the doorbell is emptied before the sleep is announced.
            ring.doorbell.store(0, Release);
            sleeps = consumer.fall_asleep(&*ring, word, || fence(SeqCst));
            if !sleeps {
                ring.take(&mut consumer, &mut taken);
            }
        }
        sends.join().expect("it sent");
        let is_rung = ring.doorbell.load(Acquire) > 0;
        let is_there = consumer.look(&*ring).is_some();
        assert!(!(sleeps && is_there) || is_rung, "asleep for ever, with {taken:?} taken");
    });
}
