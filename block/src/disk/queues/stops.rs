//! A disk that is stopped at every store to memory that it shares: rings, status bytes and the
//! inflight region, of either kind of ring.
//!
//! A guest writes to a few blocks again and again. The disk stops at its n-th store, as a process
//! that is killed there, for every n there is; a successor goes on with the ring and the inflight
//! region. Each request is answered exactly once (the stand-in driver names whatever is not so),
//! and what was acknowledged is on the volume.

use virtio::RingKind;
use virtio::driver::{Data, Op as GuestOp, RingShape, Slot, Status as GuestStatus};

use super::rig::{Plan, Rig, SIZE};
use crate::backend::MemoryVolume;
use crate::contract::Random;

const REQUESTS: usize = 40;
const BLOCKS: usize = 4;
const BLOCK_BYTES: u32 = 512;
/// Far more than a run needs.
const ROUNDS_MAX: usize = 1_000;

/// The guest, and what it knows of each block: the write that is on its way, the last acknowledged.
struct Guest {
    random: Random,
    on_its_way: [Option<u64>; BLOCKS],
    acknowledged: [u64; BLOCKS],
    begun: usize,
    ended: usize,
}

impl Guest {
    fn new(seed: u64) -> Self {
        let random = Random::new(seed);
        Self { random, on_its_way: [None; BLOCKS], acknowledged: [0; BLOCKS], begun: 0, ended: 0 }
    }

    /// Takes answers, and asks for more.
    fn drive(&mut self, rig: &mut Rig) {
        let ring = &mut rig.rings[0];
        while let Some(done) = ring.complete().expect("no breach") {
            self.ended += 1;
            assert_eq!(done.status, GuestStatus::Ok);
            if done.op == GuestOp::Write {
                let written = self.on_its_way[done.token as usize].take();
                self.acknowledged[done.token as usize] = written.expect("one at a time");
            }
            ring.release(done.slot);
        }
        for _ in 0..self.random.below(4) {
            if self.begun < REQUESTS {
                self.ask(rig);
            }
        }
    }

    fn ask(&mut self, rig: &mut Rig) {
        let block = self.random.below(BLOCKS as u64) as usize;
        let Some(slot) = rig.rings[0].take_slot() else { return };
        let free = self.on_its_way[block].is_none();
        let (op, data) = match self.random.below(4) {
            0 => (GuestOp::GetId, Data::Whole(20)),
            1 => (GuestOp::Flush, Data::None),
            2 if free => (GuestOp::Write, Data::Cut { len: BLOCK_BYTES, piece_bytes: 200 }),
            _ if free => (GuestOp::Write, Data::Whole(BLOCK_BYTES)),
            _ => (GuestOp::Read, Data::Whole(BLOCK_BYTES)),
        };
        self.begun += 1;
        if op == GuestOp::Write {
            rig.rings[0].fill(slot, BLOCK_BYTES, self.begun as u64);
            self.on_its_way[block] = Some(self.begun as u64);
        }
        let indirect = self.random.below(2) == 0;
        rig.rings[0].set_indirect(indirect);
        rig.resubmit_as(0, slot, op, block as u64, data, block as u64);
    }

    /// Every block holds what was acknowledged last.
    fn check(&self, rig: &mut Rig) {
        for (sector, &written) in (0..).zip(&self.acknowledged) {
            let slot: Slot = rig.submit(GuestOp::Read, sector, Data::Whole(BLOCK_BYTES));
            assert_eq!(rig.finish(slot), GuestStatus::Ok);
            if written > 0 {
                assert_eq!(rig.rings[0].mismatch(slot, BLOCK_BYTES, written), None);
            }
            rig.rings[0].release(slot);
        }
    }
}

/// Runs to the end, with a stop after so many stores each; gives the stores of the last life.
/// Nothing where a life came to its end earlier.
fn run(kind: RingKind, seed: u64, stops: &[u64]) -> Option<u64> {
    let volume = MemoryVolume::new(SIZE).expect("memory");
    let shape = RingShape { size: 32, slots: 8, transfer_bytes_max: 4096, segments_max: 4 };
    let plan = Plan { kind, shape, ..Plan::default() };
    let mut guest = Guest::new(seed);
    let first = stops.first().copied().unwrap_or(u64::MAX);
    let mut rig = Rig::stopping(&volume, plan, first);
    for life in 0..=stops.len() {
        if life > 0 {
            rig.succeed(&volume, stops.get(life).copied().unwrap_or(u64::MAX));
        }
        for round in 0.. {
            assert!(round < ROUNDS_MAX, "no end: {} of {REQUESTS}", guest.ended);
            guest.drive(&mut rig);
            let stopped = rig.queue().stopped();
            if stopped {
                break;
            }
            if guest.ended == REQUESTS {
                if life < stops.len() {
                    return None;
                }
                let stores = rig.queue().stores();
                guest.check(&mut rig);
                return Some(stores);
            }
            let _ = rig.round();
        }
    }
    panic!("nothing stops the last life");
}

#[test]
fn a_disk_may_be_stopped_at_every_store() {
    for kind in [RingKind::Split, RingKind::Packed] {
        let mut points = 0;
        for seed in 0..12 {
            let stores = run(kind, seed, &[]).expect("nothing stops it");
            for stop in 0..stores {
                assert!(run(kind, seed, &[stop]).is_some(), "{kind:?}, seed {seed}, {stop}");
                // Now and then the successor is stopped, too.
                if stop % 7 == seed % 7 {
                    run(kind, seed, &[stop, stop / 2]);
                }
                points += 1;
            }
        }
        println!("{kind:?}: {points} stopping points");
        assert!(points > 3_000, "the workload shrank: {points}");
    }
}
