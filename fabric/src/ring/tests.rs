//! A ring in memory of this process: the rules one by one.

use std::cell::Cell;
use std::collections::VecDeque;

use super::*;

const CELLS: u32 = 16;
const LIVE: Life = Life { state: SlotLife::Live, incarnation: 1 };

/// A ring without shared memory; all lives are in it, too.
struct Local {
    tail: Cell<u64>,
    head: Cell<u64>,
    claims: Vec<Cell<u64>>,
    stamps: Vec<Cell<u64>>,
    lives: Vec<Cell<Life>>,
    /// The next exchange of a claim meets another that was made just before it.
    swept: Cell<bool>,
    asleep: Cell<u64>,
}

impl Local {
    /// As if so many positions had been used before.
    fn at(position: u64) -> Self {
        let ring = Self {
            tail: Cell::new(position),
            head: Cell::new(position),
            claims: vec![Cell::new(0); CELLS as usize],
            stamps: vec![Cell::new(0); CELLS as usize],
            lives: vec![Cell::new(LIVE); 4],
            swept: Cell::new(false),
            asleep: Cell::new(0),
        };
        for past in (1..=u64::from(CELLS)).map(|back| position.wrapping_sub(back)) {
            let producer = Producer { slot: NOBODY, incarnation: 0 };
            ring.claims[ring.index(past)]
                .set(CellClaim { turn: ring.turn(past), producer }.to_word());
            publish(&ring, past, 0);
        }
        ring
    }

    fn index(&self, position: u64) -> usize {
        (position % u64::from(CELLS)) as usize
    }
}

impl Words for Local {
    fn cells(&self) -> u32 {
        CELLS
    }
    fn tail(&self) -> u64 {
        self.tail.get()
    }
    fn set_tail(&self, position: u64) {
        self.tail.set(position);
    }
    fn head(&self) -> u64 {
        self.head.get()
    }
    fn set_head(&self, position: u64) {
        self.head.set(position);
    }
    fn claim(&self, position: u64) -> u64 {
        self.claims[self.index(position)].get()
    }
    fn exchange_claim(&self, position: u64, current: u64, new: u64) -> Result<(), u64> {
        let claim = &self.claims[self.index(position)];
        if self.swept.take() {
            let producer = Producer { slot: NOBODY, incarnation: 0 };
            claim.set(CellClaim { producer, ..CellClaim::from_word(claim.get()) }.to_word());
        }
        if claim.get() != current {
            return Err(claim.get());
        }
        claim.set(new);
        Ok(())
    }
    fn stamp(&self, position: u64) -> u64 {
        self.stamps[self.index(position)].get()
    }
    fn set_stamp(&self, position: u64, stamp: u64) {
        self.stamps[self.index(position)].set(stamp);
    }
    fn life(&self, slot: u16) -> Option<Life> {
        self.lives.get(usize::from(slot)).map(Cell::get)
    }
    fn asleep(&self) -> u64 {
        self.asleep.get()
    }
    fn set_asleep(&self, word: u64) {
        self.asleep.set(word);
    }
}

fn producer(slot: u16) -> Producer {
    Producer { slot, incarnation: 1 }
}

/// Starts of positions: the first, and some whose turns or positions are about to overflow.
fn starts() -> [u64; 3] {
    [0, (u64::from(CELLS) << 32) - 40, u64::MAX - 40]
}

#[test]
fn cells_go_round_in_order_and_full_is_full() {
    for start in starts() {
        let ring = Local::at(start);
        let mut consumer = Consumer::new(&ring);
        let mut ways = [RingProducer { next: start, head: start }; 3];
        let mut sent = VecDeque::new();
        let (mut number, mut full) = (0_u32, 0);
        for step in 0..4_000_u32 {
            let which = (step * 7 / 3) as usize % 3;
            if step / 50 % 2 == 0 || step % 3 == 0 {
                match ways[which].claim(&ring, producer(which as u16)) {
                    Ok(position) => {
                        number += 1;
                        publish(&ring, position, number);
                        sent.push_back(number);
                    }
                    Err(reason) => {
                        assert_eq!(reason, NoCell::Full);
                        let unseen = CELLS as usize - sent.len();
                        assert!(unseen < CELLS as usize / 8, "{unseen} were free");
                        full += 1;
                    }
                }
            } else {
                assert_eq!(consumer.look(&ring), sent.pop_front(), "step {step} from {start}");
                if consumer.look(&ring).is_some() {
                    consumer.advance(&ring);
                }
            }
        }
        assert!(full > 10 && number > 1_000, "{full} times full, {number} sent");
    }
}

#[test]
fn cells_of_the_dead_are_skipped_and_those_of_the_living_are_not() {
    for start in starts() {
        let ring = Local::at(start);
        let mut consumer = Consumer::new(&ring);
        let mut ways = [RingProducer { next: start, head: start }; 2];
        for round in 0..100 {
            ways[0].claim(&ring, producer(0)).expect("room");
            let second = ways[1].claim(&ring, producer(1)).expect("room");
            publish(&ring, second, round);
            assert_eq!(consumer.look(&ring), None, "the one before is not there");
            assert!(!consumer.skip_dead(&ring), "it may still come");
            let another = Life { state: SlotLife::Live, incarnation: 2 };
            let dead = Life { state: SlotLife::Dead, incarnation: 1 };
            ring.lives[0].set(if round % 2 == 0 { dead } else { another });
            assert!(consumer.skip_dead(&ring));
            assert_eq!(consumer.look(&ring), Some(round));
            assert!(!consumer.skip_dead(&ring), "it is there");
            consumer.advance(&ring);
            assert!(!consumer.skip_dead(&ring), "no sender owns the cell yet");
            ring.lives[0].set(LIVE);
        }
    }
}

#[test]
fn published_entries_of_a_dead_producer_are_taken() {
    let ring = Local::at(0);
    let mut consumer = Consumer::new(&ring);
    let position = RingProducer::default().claim(&ring, producer(2)).expect("room");
    publish(&ring, position, 9);
    ring.lives[2].set(Life { state: SlotLife::Dead, incarnation: 1 });
    assert!(!consumer.skip_dead(&ring));
    assert_eq!(consumer.look(&ring), Some(9));
}

#[test]
fn a_producer_that_dies_with_the_tail_in_hand_holds_up_no_other() {
    let ring = Local::at(0);
    let mut other = RingProducer::default();
    RingProducer::default().claim(&ring, producer(0)).expect("room");
    // It died between the claim and the hint.
    ring.set_tail(0);
    assert_eq!(other.claim(&ring, producer(1)), Ok(1));
    assert_eq!(ring.tail(), 2);
}

#[test]
fn a_claim_that_is_taken_from_the_dead_meanwhile_leaves_no_cell_behind() {
    for start in starts() {
        let ring = Local::at(start);
        let before = ring.turn(start).wrapping_sub(1);
        let old = CellClaim { turn: before, producer: producer(3) };
        ring.claims[ring.index(start)].set(old.to_word());
        ring.swept.set(true);
        let mut way = RingProducer { next: start, head: start };
        assert_eq!(way.claim(&ring, producer(0)), Ok(start), "and not the one behind it");
        assert_eq!(ring.tail(), start.wrapping_add(1));
    }
}

#[test]
fn words_that_make_no_sense_end_in_no_cell() {
    let me = producer(0);
    for word in [u64::MAX, 77 << 32, (u64::from(u32::MAX) - 3) << 32] {
        let ring = Local::at(0);
        ring.claims.iter().for_each(|claim| claim.set(word));
        assert!(RingProducer::default().claim(&ring, me).is_err(), "claims {word:#x}");
        assert!(!is_sound(&ring), "claims {word:#x}");
    }
}

/// A head and a tail that no member can have stored: neither room nor "full", which would mean to
/// try again for ever.
#[test]
fn a_head_or_tail_that_was_written_over_is_broken() {
    for (tail, head) in [(1 << 40, 0), (17, 0), (u64::MAX >> 1, 3)] {
        let ring = Local::at(0);
        ring.set_tail(tail);
        ring.set_head(head);
        let mut way = RingProducer::default();
        assert_eq!(way.find_room(&ring), Err(NoCell::Broken), "tail {tail}");
        assert_eq!(way.claim(&ring, producer(0)), Err(NoCell::Broken), "tail {tail}");
    }
    // Positions that a producer stored late, or never.
    for tail in [0, 3] {
        let ring = Local::at(0);
        let mut way = RingProducer::default();
        (0..4).for_each(|at| assert_eq!(way.claim(&ring, producer(0)), Ok(at)));
        ring.set_tail(tail);
        assert_eq!(RingProducer::default().claim(&ring, producer(1)), Ok(4));
    }
}

#[test]
fn a_sound_ring_is_one_in_any_honest_state() {
    for start in starts() {
        let ring = Local::at(start);
        let (mut consumer, mut way) =
            (Consumer::new(&ring), RingProducer { next: start, head: start });
        for step in 0..200_u32 {
            assert!(is_sound(&ring), "step {step} from {start}");
            match way.claim(&ring, producer(0)) {
                Ok(position) if step % 5 != 0 => publish(&ring, position, step),
                Ok(_) => ring.lives[0].set(Life { state: SlotLife::Dead, incarnation: 1 }),
                Err(reason) => panic!("{reason:?} at {step}"),
            }
            if step % 2 == 1 {
                while consumer.look(&ring).is_some() || consumer.skip_dead(&ring) {
                    if consumer.look(&ring).is_some() {
                        consumer.advance(&ring);
                    }
                }
                ring.lives[0].set(LIVE);
            }
        }
        let unclaimed = ring.tail();
        publish(&ring, unclaimed, 1);
        assert!(!is_sound(&ring), "a stamp without a claim");
    }
}
