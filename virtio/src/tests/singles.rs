//! Chains of one piece that are taken many at a time are those that are taken one by one.

use super::hostile;
use random::Random;

use super::ring::*;
use crate::chain::{Chain, Segment};
use crate::queue::Queue;
use crate::ring::RingKind;

const SEEDS: u64 = 2000;
const TURNS: usize = 12;

/// A chain: its name, and its pieces as the guest has them.
type Seen = (u16, Vec<(u64, u32)>, Vec<(u64, u32)>);

/// A ring of noise, the same for each seed.
fn noise(kind: RingKind, seed: u64) -> (TestRing, Random) {
    let mut dice = Random::new(seed);
    let size = 1 << (2 + dice.below(4));
    let mut ring = TestRing::of_kind(kind, size);
    for at in (0x8000..LEN as u64).step_by(16) {
        let descriptor = hostile::roll(&mut dice, 40);
        ring.write_at(BASE + at, descriptor);
    }
    (ring, dice)
}

/// Offers a few chains, mostly good ones of one piece.
fn offer(ring: &mut TestRing, dice: &mut Random) {
    let first = dice.below(u64::from(ring.size)) as u16;
    for step in 0..dice.below(u64::from(ring.size)) as u16 {
        let id = if dice.one_in(200) { first } else { (first + step) % ring.size };
        let flags = if dice.one_in(60) { NEXT } else { [0, WRITE][dice.below(2) as usize] };
        let good = descriptor(DATA + 16 * dice.below(99), 16 + dice.below(9) as u32, flags, id);
        let piece = if dice.one_in(60) { hostile::roll(dice, ring.size.into()) } else { good };
        match ring.kind() {
            RingKind::Packed => ring.push(Descriptor { next: id, ..piece }),
            RingKind::Split => {
                ring.describe(id, piece);
                ring.offer(id);
            }
        }
    }
}

fn seen(ring: &TestRing, head: u16, readable: &[Segment], writable: &[Segment]) -> Seen {
    let guests = |pieces: &[Segment]| {
        let at = |piece: &Segment| ring.memory.guest_addr_of_host(piece.addr).expect("inside").0;
        pieces.iter().map(|piece| (at(piece), piece.len)).collect()
    };
    (head, guests(readable), guests(writable))
}

/// All that a life gives, and how it ended; how many came many at a time.
fn live(kind: RingKind, seed: u64, many: bool) -> (Vec<Seen>, Option<String>, usize) {
    let (mut ring, mut dice) = noise(kind, seed);
    let mut queue = Queue::new(ring.config(None)).unwrap();
    let (mut chain, mut singles) = (Chain::new(), Vec::new());
    let (mut all, mut together, mut luck) = (Vec::new(), 0, Random::new(!seed));
    for _ in 0..TURNS {
        offer(&mut ring, &mut dice);
        let mut heads = Vec::new();
        // Ends: chains are not put before the turn is over.
        loop {
            if many {
                let (writable, most) = (luck.one_in(2), luck.below(9) as usize);
                singles.clear();
                queue.take_singles(writable, most, luck.below(200) as usize, &mut singles);
                assert!(singles.len() <= most);
                together += singles.len();
                for single in &singles {
                    let (piece, none) = ([single.segment], []);
                    let (readable, writable): (&[_], &[_]) =
                        if writable { (&none, &piece) } else { (&piece, &none) };
                    all.push(seen(&ring, single.head.index(), readable, writable));
                    heads.push(single.head);
                }
            }
            match queue.take(&mut chain) {
                Ok(Some(head)) => {
                    all.push(seen(&ring, head.index(), &chain.readable, &chain.writable));
                    heads.push(head);
                }
                Ok(None) => break,
                Err(error) => return (all, Some(error.to_string()), together),
            }
        }
        assert_eq!(usize::from(queue.outstanding()), heads.len());
        heads.into_iter().for_each(|head| queue.put(head, 0));
        queue.publish();
    }
    (all, None, together)
}

#[test]
fn singles_are_the_chains_that_would_have_come() {
    for kind in [RingKind::Split, RingKind::Packed] {
        let (mut together, mut ends) = (0, 0);
        for seed in 0..SEEDS {
            let one_by_one = live(kind, seed, false);
            let many = live(kind, seed, true);
            assert_eq!((&one_by_one.0, &one_by_one.1), (&many.0, &many.1), "{kind:?}, seed {seed}");
            together += many.2;
            ends += usize::from(many.1.is_some());
        }
        println!("{kind:?}: {together} together, {ends} of {SEEDS} ended by an error");
        assert!(
            together > 10_000 && ends > 100 && ends < SEEDS as usize,
            "the rings say too little"
        );
    }
}
