//! A disk that is stopped at every store to memory that it shares: rings, status bytes and the
//! inflight region, of either kind of ring.
//!
//! A guest writes to a few blocks again and again. The disk stops at its n-th store, as a process
//! that is killed there, for every n there is; a successor goes on with the ring and the inflight
//! region. Each request is answered exactly once (the stand-in driver names each exception), and
//! acknowledged writes are on the volume.
//!
//! The same while the queue goes to and fro between two shares: it is stopped before, between and
//! after. And the same while the guest is migrated: then the marks in the log are stopping points,
//! too, and a copy that is made of nothing but marked pages is the guest's memory in the end.

use virtio::RingKind;
use virtio::driver::{
    Data, DriverOp as GuestOp, RequestSlot, RequestStatus as GuestStatus, RingShape,
};

use super::rig::{Rig, RigPlan, SIZE};
use random::Random;
use volume::backend::MemoryVolume;

const REQUESTS: usize = 40;
const BLOCKS: usize = 4;
const BLOCK_BYTES: u32 = 512;
const PAGE: usize = virtio::dirty::LOG_PAGE_BYTES as usize;
/// Far more than a run needs.
const ROUNDS_MAX: usize = 1_000;

/// The guest, and what it knows of each block: the write that is on its way, the last acknowledged.
struct GuestModel {
    random: Random,
    on_its_way: [Option<u64>; BLOCKS],
    acknowledged: [u64; BLOCKS],
    begun: usize,
    ended: usize,
}

impl GuestModel {
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
            let slot: RequestSlot = rig.submit(GuestOp::Read, sector, Data::Whole(BLOCK_BYTES));
            assert_eq!(rig.finish(slot), GuestStatus::Ok);
            if written > 0 {
                assert_eq!(rig.rings[0].mismatch(slot, BLOCK_BYTES, written), None);
            }
            rig.rings[0].release(slot);
        }
    }
}

/// The guest's memory as a migration has copied it so far.
struct MigratedMemory {
    bytes: Vec<u8>,
}

impl MigratedMemory {
    fn new(rig: &mut Rig) -> Self {
        rig.start_log();
        Self { bytes: rig.snapshot() }
    }

    /// The guest works. The pages that it stores to itself are copied at once, and now and then
    /// those that the device has marked.
    fn drive(&mut self, guest: &mut GuestModel, rig: &mut Rig) {
        let before = rig.snapshot();
        guest.drive(rig);
        let now = rig.snapshot();
        for (at, (old, new)) in before.chunks(PAGE).zip(now.chunks(PAGE)).enumerate() {
            if old != new {
                self.bytes[at * PAGE..][..PAGE].copy_from_slice(new);
            }
        }
        if guest.random.below(4) == 0 {
            self.sync(rig);
        }
    }

    /// Copies what the device has marked.
    fn sync(&mut self, rig: &Rig) {
        for page in rig.log.as_ref().expect("a log").take() {
            let at = rig.guest.memory().offset_of(page * PAGE as u64).expect("guest memory");
            rig.guest.memory().read(at, &mut self.bytes[at..at + PAGE]);
        }
    }
}

/// The troubles of a run.
#[derive(Clone, Copy, Debug, Default)]
struct RunFaults<'t> {
    /// Each life but the last ends after so many stores.
    stops: &'t [u64],
    /// The queue goes to and fro between two shares.
    moves: bool,
    /// And dies between them, at its n-th move.
    dies_at: Option<usize>,
    /// The guest is being migrated.
    migrates: bool,
}

/// Has the queue go over to a new share, now and then. `true` when it died on its way.
fn go_over(
    rig: &mut Rig,
    volume: &MemoryVolume,
    moves: &mut usize,
    dies_at: Option<usize>,
) -> bool {
    let now_ns = rig.now_ns;
    rig.disk.begin_leave(0, now_ns + 1_000_000).expect("it may leave");
    let _ = rig.round();
    let queue = rig.disk.take_left(0).expect("at once").expect("memory answers in the round");
    *moves += 1;
    if dies_at == Some(*moves) {
        return true;
    }
    let mut other = rig.share(volume, (*moves % 2) as u16);
    other.adopt(queue);
    rig.disk = other;
    false
}

/// Runs to the end; gives the stores of the last life and the moves of all. Nothing where a life
/// came to its end earlier.
fn run(kind: RingKind, seed: u64, trouble: RunFaults<'_>) -> Option<(u64, usize)> {
    let RunFaults { stops, dies_at, .. } = trouble;
    let volume = MemoryVolume::new(SIZE).expect("memory");
    let shape = RingShape { size: 32, slots: 8, transfer_bytes_max: 4096, segments_max: 4 };
    let plan = RigPlan { kind, shape, ..RigPlan::default() };
    let (mut guest, mut dice, mut moves) = (GuestModel::new(seed), Random::new(seed + 1_000), 0);
    let stop = |life: usize| stops.get(life).copied().unwrap_or(u64::MAX);
    let mut rig = Rig::stopping(&volume, plan, stop(0));
    let mut copy = trouble.migrates.then(|| MigratedMemory::new(&mut rig));
    for life in 0..=stops.len() {
        if life > 0 {
            rig.succeed(&volume, stop(life));
        }
        for round in 0.. {
            assert!(round < ROUNDS_MAX, "no end: {} of {REQUESTS}", guest.ended);
            match &mut copy {
                Some(copy) => copy.drive(&mut guest, &mut rig),
                None => guest.drive(&mut rig),
            }
            if rig.queue().stopped() {
                break;
            }
            if guest.ended == REQUESTS {
                if life < stops.len() {
                    return None;
                }
                let stores = rig.queue().stores();
                if let Some(copy) = &mut copy {
                    copy.sync(&rig);
                    assert!(copy.bytes == rig.snapshot(), "a page was written and not marked");
                }
                guest.check(&mut rig);
                return Some((stores, moves));
            }
            let _ = rig.round();
            if trouble.moves
                && dice.below(3) == 0
                && go_over(&mut rig, &volume, &mut moves, dies_at)
            {
                rig.succeed(&volume, stop(life));
            }
        }
    }
    panic!("nothing stops the last life");
}

/// Stops at every store, for every seed; gives how many there are and how often the queue moved.
fn stop_everywhere(kind: RingKind, seeds: u64, trouble: RunFaults<'_>) -> (u64, usize) {
    let (mut points, mut moved) = (0, 0);
    for seed in 0..seeds {
        let (stores, _) = run(kind, seed, trouble).expect("nothing stops it");
        for stop in 0..stores {
            let once = run(kind, seed, RunFaults { stops: &[stop], ..trouble });
            let (_, moves) = once.unwrap_or_else(|| panic!("{kind:?}, seed {seed}, {stop}"));
            // Now and then the successor is stopped, too.
            if stop % 7 == seed % 7 {
                run(kind, seed, RunFaults { stops: &[stop, stop / 2], ..trouble });
            }
            points += 1;
            moved += moves;
        }
    }
    (points, moved)
}

#[test]
fn a_disk_may_be_stopped_at_every_store() {
    for kind in [RingKind::Split, RingKind::Packed] {
        let (points, _) = stop_everywhere(kind, 12, RunFaults::default());
        println!("{kind:?}: {points} stopping points");
        assert!(points > 3_000, "the workload shrank: {points}");
    }
}

#[test]
fn a_disk_whose_queue_moves_may_be_stopped_at_every_store() {
    for kind in [RingKind::Split, RingKind::Packed] {
        let trouble = RunFaults { moves: true, ..RunFaults::default() };
        let (points, moves) = stop_everywhere(kind, 12, trouble);
        println!("{kind:?}: {points} stopping points, {moves} moves");
        assert!(points > 3_000 && moves > 10_000, "the workload shrank: {points}, {moves}");
    }
}

#[test]
fn a_disk_may_be_stopped_at_every_store_while_its_guest_is_migrated() {
    for kind in [RingKind::Split, RingKind::Packed] {
        for moves in [false, true] {
            let trouble = RunFaults { moves, migrates: true, ..RunFaults::default() };
            let (points, _) = stop_everywhere(kind, 1, trouble);
            println!("{kind:?}, moves {moves}: {points} stopping points");
            assert!(points > 400, "the workload shrank: {points}");
        }
    }
}

/// Nothing is outstanding between two shares: a successor has nothing to do again.
#[test]
fn a_disk_may_die_while_its_queue_is_between_two_sidecores() {
    for kind in [RingKind::Split, RingKind::Packed] {
        let mut deaths = 0;
        for seed in 0..24 {
            let trouble = RunFaults { moves: true, ..RunFaults::default() };
            let (_, moves) = run(kind, seed, trouble).expect("nothing stops it");
            for at in 1..=moves {
                run(kind, seed, RunFaults { dies_at: Some(at), ..trouble }).expect("it goes on");
                deaths += 1;
            }
        }
        assert!(deaths > 100, "the workload shrank: {deaths}");
    }
}
