//! The disk on real sidecores: by calls as a session makes them, and over a socket.

use std::collections::BTreeSet;
use std::time::Instant;

use rustix::event::{EventfdFlags, eventfd};
use sidecore::{Idle, SidecoreConfig};
use virtio::driver::{
    Data, DriverGuest, DriverOp, DriverRequest, FrontEnd, FrontEndConfig, GuestPlan, RequestStatus,
    RingDriver, RingOptions, RingShape, SocketRole, UsedFeatures,
};
use virtio::{DeviceServer, RingKind, Socket};

use super::*;
use crate::attachment::Phase;
use crate::unguarded::Unguarded;
use crate::{Export, ExportOptions, LocalVolume};
use volume::Volume;
use volume::backend::MemoryVolume;
use volume::contract::held::HeldVolume;
use volume::record::KeptRecords;

const SIZE: u64 = 16 << 20;

/// Generous: the machine may be busy. Nothing is asserted about time.
const PATIENCE: Duration = Duration::from_secs(60);

fn sidecores(count: usize) -> Vec<Sidecore> {
    (0..count)
        .map(|index| {
            let config = SidecoreConfig { idle: Idle::Sleep, ..SidecoreConfig::new(index) };
            sidecore::spawn(config).expect("a thread")
        })
        .collect()
}

fn options(queues: u16) -> DiskOptions {
    DiskOptions { queues, ..DiskOptions::new("alice") }
}

fn unguarded(volume: impl Volume + 'static) -> Arc<dyn Attach> {
    Arc::new(Unguarded(Box::new(volume)))
}

/// Looks again and again until it is so.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A guest in this process whose disk is called as a session would.
struct Rig {
    disk: Disk,
    memory: Arc<Memory>,
    rings: Vec<RingDriver>,
}

impl Rig {
    fn new(volume: Arc<dyn Attach>, queues: u16) -> Self {
        Self::of_kind(RingKind::Split, volume, queues)
    }

    fn of_kind(kind: RingKind, volume: Arc<dyn Attach>, queues: u16) -> Self {
        let disk = Disk::new(options(queues), volume, sidecores(2));
        let plan = GuestPlan { queues, ..GuestPlan::default() };
        let guest = DriverGuest::new(&plan).expect("guest memory");
        let event = || eventfd(0, EventfdFlags::NONBLOCK).map(Arc::new).expect("a descriptor");
        let rings = (0..queues)
            .map(|index| {
                let (kick, call) = (Some(event()), Some(event()));
                let (event_idx, indirect) = (true, true);
                let options =
                    RingOptions { kind, event_idx, indirect, kick, call, ..RingOptions::default() };
                guest.ring(index, options)
            })
            .collect();
        let memory = Arc::new(guest.memory().device_memory().expect("the same memory"));
        Self { disk, memory, rings }
    }

    fn start(&mut self, index: usize) {
        let config = self.rings[index].queue_config(Arc::clone(&self.memory));
        self.disk.start(config.expect("descriptors")).expect("a good ring");
    }

    fn submit(&mut self, index: usize, op: DriverOp, sector: u64) {
        let ring = &mut self.rings[index];
        let slot = ring.take_slot().expect("a free slot");
        let request = DriverRequest { slot, op, sector, data: Data::Whole(512), token: 0 };
        ring.submit(&request).expect("room");
        ring.publish();
    }

    fn complete(&mut self, index: usize) -> RequestStatus {
        let ring = &mut self.rings[index];
        assert!(ring.wait(PATIENCE).expect("no breach"), "queue {index} never answered");
        let completion = ring.complete().expect("no breach").expect("it is there");
        ring.release(completion.slot);
        completion.status
    }
}

/// Writes a block on each slot of each ring, reads all of them back, and compares.
fn exercise(rings: &mut [&mut RingDriver], seed: u64) {
    const BYTES: u32 = 4096;
    for op in [DriverOp::Write, DriverOp::Read] {
        for (queue, ring) in rings.iter_mut().enumerate() {
            while let Some(slot) = ring.take_slot() {
                let block = queue * 128 + slot.index();
                let fill = if op == DriverOp::Write { seed + block as u64 } else { 0 };
                ring.fill(slot, BYTES, fill);
                let (sector, data) = (block as u64 * 8, Data::Whole(BYTES));
                let request = DriverRequest { slot, op, sector, data, token: block as u64 };
                ring.submit(&request).expect("room");
            }
            ring.publish();
        }
        for ring in rings.iter_mut() {
            while ring.outstanding() > 0 {
                assert!(ring.wait(PATIENCE).expect("no breach"), "it never answered");
                while let Some(completion) = ring.complete().expect("no breach") {
                    assert_eq!(completion.status, RequestStatus::Ok);
                    let want = seed + completion.token;
                    assert_eq!(ring.mismatch(completion.slot, BYTES, want), None);
                    ring.release(completion.slot);
                }
            }
        }
    }
}

#[test]
fn queues_are_spread_over_the_sidecores_and_share_the_blocks() {
    let volume = unguarded(MemoryVolume::new(SIZE).expect("memory"));
    let mut rig = Rig::new(volume, 4);
    rig.disk.set_features(u64::MAX);
    (0..4).for_each(|index| rig.start(index));
    exercise(&mut rig.rings.iter_mut().collect::<Vec<_>>(), 1);
    let core = rig.disk.core();
    assert_eq!(core.channels(), 2, "one for each sidecore");
    for index in 0..4 {
        assert_eq!(core.counters(index).requests.get(), 256);
        assert_eq!(rig.disk.stop(index), 256);
    }
    wait_until("the channels let go", || core.channels() == 0);
    let attachment = core.attachment().expect("there was one");
    assert_eq!(attachment.view().phase, Phase::Closed);
}

#[test]
fn a_start_resumes_when_any_ring_is_not_at_its_beginning() {
    let volume = unguarded(MemoryVolume::new(SIZE).expect("memory"));
    let mut rig = Rig::new(volume, 2);
    let core = rig.disk.core();
    (0..2).for_each(|index| rig.start(index));
    rig.submit(1, DriverOp::Write, 0);
    assert_eq!(rig.complete(1), RequestStatus::Ok);
    let first = core.attachment().expect("claimed");
    assert!(!first.options().resume);
    rig.disk.disconnected();
    // The first queue was never used, and says nothing about the second.
    (0..2).for_each(|index| rig.start(index));
    rig.submit(0, DriverOp::Write, 0);
    assert_eq!(rig.complete(0), RequestStatus::Ok);
    let second = core.attachment().expect("claimed");
    assert!(second.options().resume);
    assert_ne!(first.options().claimant, second.options().claimant);
}

#[test]
fn a_single_queue_of_many_does_not_wait_for_the_others() {
    let volume = unguarded(MemoryVolume::new(SIZE).expect("memory"));
    let mut rig = Rig::new(volume, 4);
    rig.start(2);
    rig.submit(2, DriverOp::Write, 0);
    assert_eq!(rig.complete(2), RequestStatus::Ok);
    rig.start(1);
    rig.submit(1, DriverOp::Read, 0);
    assert_eq!(rig.complete(1), RequestStatus::Ok);
    assert_eq!((rig.disk.stop(2), rig.disk.stop(1)), (1, 1));
    assert_eq!(rig.disk.stop(3), 0, "it never ran");
}

#[test]
fn writes_are_durable_unless_the_guest_flushes() {
    for acked in [0, feature::FLUSH] {
        let volume = HeldVolume::new(SIZE);
        let mut rig = Rig::new(unguarded(volume.clone()), 1);
        rig.disk.set_features(acked);
        rig.start(0);
        rig.submit(0, DriverOp::Write, 0);
        wait_until("the write arrives", || volume.opened() > 0 && volume.asked(0) == 1);
        assert_eq!(volume.answer(volume::Status::Done).durable, acked == 0);
        rig.rings[0].kick();
        assert_eq!(rig.complete(0), RequestStatus::Ok);
    }
}

/// A storage that does not answer: stopping takes its two seconds and no more, and what starts
/// next waits until the last request of before can no longer land.
#[test]
fn a_hanging_volume_is_left_behind_but_not_overtaken() {
    let volume = HeldVolume::new(SIZE);
    let mut rig = Rig::new(unguarded(volume.clone()), 1);
    let core = rig.disk.core();
    rig.start(0);
    rig.submit(0, DriverOp::Write, 7);
    wait_until("the write arrives", || volume.opened() > 0 && volume.asked(0) == 1);
    volume.with(0, |state| state.in_kernel = true);
    assert_eq!(rig.disk.stop(0), 1);
    assert_eq!((core.channels(), core.orphans()), (1, 1));
    let attachment = core.attachment().expect("claimed");
    assert_eq!(attachment.view().phase, Phase::Closed);
    rig.start(0);
    wait_until("the channel was asked to let go", || volume.with(0, |state| state.abandoned));
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(volume.opened(), 1, "the new start waits");
    volume.with(0, |state| state.in_kernel = false);
    wait_until("the next start", || volume.opened() == 2);
    wait_until("the old one is gone", || core.channels() == 1 && core.orphans() == 0);
    // Without an inflight region the ring goes on from its used index: the write is done again.
    wait_until("the write arrives again", || volume.asked(1) == 1);
    volume.answer_on(1, volume::Status::Done);
    rig.rings[0].kick();
    assert_eq!(rig.complete(0), RequestStatus::Ok);
}

#[test]
fn garbage_stops_the_disk_until_its_next_start() {
    let volume = unguarded(MemoryVolume::new(SIZE).expect("memory"));
    let mut rig = Rig::new(volume, 2);
    let core = rig.disk.core();
    (0..2).for_each(|index| rig.start(index));
    rig.rings[1].set_available_index(30_000);
    rig.rings[1].kick();
    wait_until("the disk stops", || core.is_broken());
    rig.disk.disconnected();
    rig.rings[1].set_available_index(0);
    (0..2).for_each(|index| rig.start(index));
    assert!(!core.is_broken() && core.broken_why().is_none());
    rig.submit(1, DriverOp::Read, 0);
    assert_eq!(rig.complete(1), RequestStatus::Ok);
}

#[test]
fn a_bad_start_is_refused_by_name() {
    let volume = unguarded(MemoryVolume::new(SIZE).expect("memory"));
    let mut rig = Rig::new(volume, 1);
    let mut config = rig.rings[0].queue_config(Arc::clone(&rig.memory)).expect("descriptors");
    config.index = 1;
    let error = rig.disk.start(config).expect_err("no such queue").to_string();
    assert_eq!(error, "disk alice has 1 queues");
    let mut config = rig.rings[0].queue_config(Arc::clone(&rig.memory)).expect("descriptors");
    config.desc = 8;
    let error = rig.disk.start(config).expect_err("not in memory").to_string();
    assert!(error.starts_with("disk alice: the descriptor table"), "{error}");
    rig.start(0);
    rig.submit(0, DriverOp::Read, 0);
    assert_eq!(rig.complete(0), RequestStatus::Ok);
}

#[test]
fn a_volume_that_cannot_be_opened_breaks_the_disk_and_keeps_the_ring() {
    let directory = tempfile::TempDir::new().expect("room");
    let options = volume::backend::FileOptions {
        size_bytes: Some(SIZE),
        ..volume::backend::FileOptions::new(directory.path().join("disk.img"))
    };
    let volume = unguarded(volume::backend::FileVolume::open(&options).expect("a new file"));
    let mut rig = Rig::new(volume, 1);
    let core = rig.disk.core();
    rig.start(0);
    // The sidecores have no io_uring.
    wait_until("the disk stops", || core.is_broken());
    assert!(core.broken_why().expect("a reason").contains("io_uring"));
    assert_eq!(rig.disk.stop(0), 0);
    assert_eq!(core.channels(), 0);
}

/// Everything sleeps between requests: kicks, completions of the kernel and calls have to wake.
#[test]
fn a_sleeping_disk_on_a_file_is_woken_by_everything_it_waits_for() {
    [RingKind::Split, RingKind::Packed].into_iter().for_each(wake_by_everything);
}

fn wake_by_everything(kind: RingKind) {
    let test = "a_sleeping_disk_on_a_file_is_woken";
    let directory = tempfile::TempDir::new().expect("room");
    let options = volume::backend::FileOptions {
        size_bytes: Some(SIZE),
        ..volume::backend::FileOptions::new(directory.path().join("disk.img"))
    };
    let volume = unguarded(volume::backend::FileVolume::open(&options).expect("a new file"));
    let mut rig = Rig::of_kind(kind, volume, 4);
    for sidecore in &rig.disk.placement.sidecores {
        let installed = sidecore.call(|local| volume::uring::install(local).map(|_| ()));
        if let Err(error) = installed.expect("it runs") {
            return println!("SKIP {test}: no io_uring here: {error}");
        }
    }
    (0..4).for_each(|index| rig.start(index));
    for round in 0..20 {
        exercise(&mut rig.rings.iter_mut().collect::<Vec<_>>(), round * 1_000);
        let slot = rig.rings[3].take_slot().expect("free");
        let flush =
            DriverRequest { slot, op: DriverOp::Flush, sector: 0, data: Data::None, token: 0 };
        rig.rings[3].submit(&flush).expect("room");
        rig.rings[3].publish();
        assert_eq!(rig.complete(3), RequestStatus::Ok);
    }
    let core = rig.disk.core();
    assert!(
        rig.disk.placement.sidecores.iter().all(|sidecore| sidecore.counters().sleeps.get() > 0)
    );
    rig.disk.disconnected();
    wait_until("the channels let go", || core.channels() == 0);
}

/// Moves a queue to and fro until it is told to stop; gives how often it moved.
fn keep_moving(placement: &Placement, queue: usize, stop: &AtomicBool) -> u64 {
    let mut moves = 0;
    while !stop.load(Relaxed) {
        let to = usize::from(moves % 2 == 0);
        match placement.try_move(queue, to) {
            Ok(()) => moves += 1,
            Err(MoveError::Stays(_) | MoveError::NotReady | MoveError::Busy) => {}
            Err(MoveError::NotRunning) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
    moves
}

/// Sidecores that sleep, a guest that waits for its calls: a kick or a call that was lost on the
/// way from one sidecore to the other would be waited for without end.
#[test]
fn a_queue_moves_to_and_fro_under_load_and_loses_nothing() {
    for kind in [RingKind::Split, RingKind::Packed] {
        let volume = unguarded(MemoryVolume::new(SIZE).expect("memory"));
        let mut rig = Rig::of_kind(kind, volume, 2);
        rig.disk.set_features(u64::MAX);
        (0..2).for_each(|index| rig.start(index));
        exercise(&mut rig.rings.iter_mut().collect::<Vec<_>>(), 1);
        let (core, placement) = (rig.disk.core(), rig.disk.placement());
        assert_eq!(placement.running(), Ok(vec![(0, 0), (1, 1)]));
        let stop = AtomicBool::new(false);
        let moves = std::thread::scope(|scope| {
            let moving = scope.spawn(|| keep_moving(&placement, 0, &stop));
            let mut seed = 2;
            while core.counters(0).moves.get() < 500 {
                exercise(&mut rig.rings.iter_mut().collect::<Vec<_>>(), seed);
                seed += 1_000;
            }
            stop.store(true, Relaxed);
            moving.join().expect("no panic")
        });
        let counters = core.counters(0);
        assert_eq!(counters.moves.get(), moves);
        assert_eq!((counters.starts.get(), counters.errors.get()), (1, 0));
        let served: u64 = core.shares().iter().map(|share| share.requests.get()).sum();
        assert_eq!(served, counters.requests.get() + core.counters(1).requests.get());
        rig.disk.disconnected();
        wait_until("the channels let go", || core.channels() == 0);
        assert_eq!(placement.try_move(0, 0), Err(MoveError::NotRunning));
    }
}

/// All that a front end may say while its queue is being moved.
#[test]
fn a_front_end_finds_its_queue_wherever_that_is() {
    let volume = unguarded(MemoryVolume::new(SIZE).expect("memory"));
    let mut rig = Rig::new(volume, 1);
    let (core, placement) = (rig.disk.core(), rig.disk.placement());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let moving = scope.spawn(|| keep_moving(&placement, 0, &stop));
        let mut requests = 0;
        for turn in 0..20 {
            rig.start(0);
            let moves = core.counters(0).moves.get() + 5;
            wait_until("it was moved under all of it", || {
                let config = rig.rings[0].queue_config(Arc::clone(&rig.memory)).expect("as before");
                rig.disk.set_call(0, config.call);
                rig.disk.set_kick(0, config.kick);
                rig.disk.set_memory(Arc::clone(&rig.memory));
                rig.submit(0, DriverOp::Read, turn);
                assert_eq!(rig.complete(0), RequestStatus::Ok);
                requests += 1;
                core.counters(0).moves.get() >= moves
            });
            if turn % 2 == 0 {
                assert_eq!(rig.disk.stop(0), requests % (1 << 16), "where the ring stands");
            } else {
                rig.disk.disconnected();
            }
            wait_until("the disk lets go", || core.channels() == 0);
        }
        stop.store(true, Relaxed);
        moving.join().expect("no panic")
    });
    let counters = core.counters(0);
    assert_eq!((counters.starts.get(), counters.errors.get(), core.orphans()), (20, 0, 0));
}

#[test]
fn a_move_that_cannot_be_made_says_why_and_the_queue_stays() {
    let volume = HeldVolume::new(SIZE);
    let mut rig = Rig::new(unguarded(volume.clone()), 2);
    let placement = rig.disk.placement();
    assert_eq!(placement.try_move(0, 1), Err(MoveError::NotRunning));
    rig.start(0);
    let error = placement.try_move(0, 2).expect_err("there are two");
    assert_eq!(error.to_string(), "there is no sidecore 2: there are 2");
    assert_eq!(placement.try_move(5, 1), Err(MoveError::NotRunning));
    rig.submit(0, DriverOp::Write, 0);
    wait_until("the write arrives", || volume.opened() > 0 && volume.asked(0) == 1);
    assert_eq!(placement.try_move(0, 0), Ok(()), "it is there");
    let mut moved = placement.try_move(0, 1);
    while moved == Err(MoveError::NotReady) {
        moved = placement.try_move(0, 1);
    }
    assert_eq!(moved, Err(MoveError::Stays(NotMoved::NotDrained)), "the volume does not answer");
    assert_eq!(placement.running(), Ok(vec![(0, 0)]));
    volume.answer(volume::Status::Done);
    rig.rings[0].kick();
    assert_eq!(rig.complete(0), RequestStatus::Ok);
    assert_eq!(placement.try_move(0, 1), Ok(()));
    rig.submit(0, DriverOp::Read, 0);
    wait_until("the read arrives over there", || volume.asked(1) == 1);
    volume.answer_on(1, volume::Status::Done);
    rig.rings[0].kick();
    assert_eq!(rig.complete(0), RequestStatus::Ok);
    let core = rig.disk.core();
    assert_eq!((core.counters(0).moves.get(), core.counters(0).moves_refused.get()), (1, 1));
    // It starts where it was, unless that sidecore takes no queues any more.
    rig.disk.disconnected();
    rig.start(0);
    assert_eq!(placement.running(), Ok(vec![(0, 1)]));
    rig.disk.disconnected();
    rig.disk.options.active.store(1, Relaxed);
    rig.start(0);
    assert_eq!(placement.running(), Ok(vec![(0, 0)]));
}

fn serve(disk: Disk, path: &std::path::Path) -> DeviceServer {
    virtio::serve(Socket::listen(path.to_owned()), Box::new(disk)).expect("a socket")
}

#[test]
fn a_guest_goes_on_when_its_disk_is_served_anew() {
    [RingKind::Split, RingKind::Packed].into_iter().for_each(serve_anew);
}

fn serve_anew(kind: RingKind) {
    let directory = tempfile::TempDir::new().expect("room");
    let path = directory.path().join("alice.sock");
    let volume = unguarded(MemoryVolume::new(SIZE).expect("memory"));
    let disk = || Disk::new(options(4), volume.clone(), sidecores(2));
    let first = disk();
    let core = first.core();
    let server = serve(first, &path);
    let shape = RingShape { size: 256, slots: 128, ..RingShape::default() };
    let guest = GuestPlan { queues: 4, shape, ..GuestPlan::default() };
    let wanted = UsedFeatures { packed: kind == RingKind::Packed, ..UsedFeatures::default() };
    let config =
        FrontEndConfig { guest, wanted, ..FrontEndConfig::new(SocketRole::Connect(path.clone())) };
    let mut guest = FrontEnd::connect(config, PATIENCE).expect("a disk");
    assert_eq!(guest.ring_kind(), kind);
    assert_eq!(guest.disk().capacity_sectors, SIZE / 512);
    assert_eq!((guest.disk().block_bytes, guest.disk().queues), (512, 4));
    assert!(guest.disk().flush && !guest.disk().read_only && guest.has_inflight());
    let mut rings: Vec<_> = (0..4).map(|index| guest.take_ring(index)).collect();
    exercise(&mut rings.iter_mut().collect::<Vec<_>>(), 1_000);
    for index in 0..4 {
        let base = guest.stop_ring(index).expect("an answer");
        // 256 chains of a slot each: once around a packed ring.
        assert_eq!(base, if kind == RingKind::Split { 256 } else { 0 });
        guest.start_ring(index).expect("an answer");
    }
    exercise(&mut rings.iter_mut().collect::<Vec<_>>(), 2_000);
    guest.hang_up();
    wait_until("the disk lets go", || core.channels() == 0);
    guest.reconnect(PATIENCE).expect("the same disk");
    exercise(&mut rings.iter_mut().collect::<Vec<_>>(), 3_000);
    drop(server);
    assert_eq!(core.queues_max(), 4);
    let second = disk();
    let core = second.core();
    let _server = serve(second, &path);
    guest.reconnect(PATIENCE).expect("another disk");
    exercise(&mut rings.iter_mut().collect::<Vec<_>>(), 4_000);
    assert!(core.attachment().expect("claimed").options().resume);
}

/// The pages that a log must have after `exercise`: the data of all slots, which were read into,
/// and the rings' used parts.
fn pages_of(guest: &FrontEnd, rings: &[RingDriver]) -> BTreeSet<u64> {
    let memory = guest.memory();
    let page = |at| memory.guest_address(at) / virtio::dirty::LOG_PAGE_BYTES;
    let mut pages = BTreeSet::new();
    for ring in rings {
        let layout = ring.layout();
        pages.insert(page(layout.used));
        pages.extend((0..layout.shape.slots).map(|slot| page(layout.data_at(slot))));
    }
    pages
}

#[test]
fn a_front_end_is_told_of_every_page_while_it_wants_to_know() {
    for packed in [false, true] {
        let directory = tempfile::TempDir::new().expect("room");
        let path = directory.path().join("alice.sock");
        let volume = unguarded(MemoryVolume::new(SIZE).expect("memory"));
        let _server = serve(Disk::new(options(4), volume, sidecores(2)), &path);
        let shape = RingShape { size: 256, slots: 128, ..RingShape::default() };
        let guest = GuestPlan { queues: 4, shape, ..GuestPlan::default() };
        let wanted = UsedFeatures { packed, ..UsedFeatures::default() };
        let config =
            FrontEndConfig { guest, wanted, ..FrontEndConfig::new(SocketRole::Connect(path)) };
        let mut guest = FrontEnd::connect(config, PATIENCE).expect("a disk");
        let mut rings: Vec<_> = (0..4).map(|index| guest.take_ring(index)).collect();
        let wanted = pages_of(&guest, &rings);
        let work = |rings: &mut Vec<RingDriver>| {
            exercise(&mut rings.iter_mut().collect::<Vec<_>>(), 1_000);
        };
        work(&mut rings);
        let first = guest.start_log().expect("an answer");
        assert!(!first.take().is_superset(&wanted), "what was before is not in it");
        work(&mut rings);
        assert!(first.take().is_superset(&wanted));
        let event = eventfd(0, EventfdFlags::NONBLOCK).expect("a descriptor");
        guest.set_log_signal(&event).expect("an answer");
        // A log that takes the place of another: the old one is quiet at once.
        let second = guest.start_log().expect("an answer");
        first.take();
        work(&mut rings);
        assert!(second.take().is_superset(&wanted) && first.take().is_empty());
        assert_eq!(rustix::io::read(&event, &mut [0; 8]), Ok(8), "it is told of marks");
        guest.stop_log().expect("an answer");
        second.take();
        work(&mut rings);
        assert_eq!(second.take(), BTreeSet::new());
        // A disk that is served anew goes on with the log.
        let third = guest.start_log().expect("an answer");
        guest.hang_up();
        guest.reconnect(PATIENCE).expect("the same disk");
        work(&mut rings);
        for index in 0..4 {
            guest.stop_ring(index).expect("an answer");
        }
        assert!(third.take().is_superset(&wanted));
        std::thread::sleep(Duration::from_millis(10));
        assert_eq!(third.take(), BTreeSet::new(), "a ring that was stopped marks nothing");
    }
}

/// A volume of this node, with its guard.
fn guarded() -> Arc<dyn Attach> {
    let (memory, options) = (MemoryVolume::new(SIZE).expect("memory"), ExportOptions::default());
    let records = Arc::new(KeptRecords::default());
    LocalVolume::new(Export::new("v", Arc::new(memory), options, records).expect("no records"))
}

fn pause(rig: &mut Rig) {
    let core = rig.disk.core();
    rig.disk.pause(&[0], Duration::from_secs(1));
    wait_until("all is let go", || core.channels() == 0);
}

fn write(rig: &mut Rig) -> Arc<Attachment> {
    rig.submit(0, DriverOp::Write, 0);
    assert_eq!(rig.complete(0), RequestStatus::Ok);
    rig.disk.core().attachment().expect("there is one")
}

/// As a hand-over that is taken back.
#[test]
fn a_pause_is_no_new_start() {
    let mut rig = Rig::new(guarded(), 1);
    let (core, placement) = (rig.disk.core(), rig.disk.placement());
    rig.disk.pause(&[], Duration::ZERO);
    assert_eq!(placement.standing(), Ok(None), "nothing ran");
    rig.start(0);
    let first = write(&mut rig);
    pause(&mut rig);
    let standing = placement.standing().expect("it has not ended");
    assert_eq!(standing, first.standing());
    rig.start(0);
    let second = write(&mut rig);
    assert_eq!(second.options(), first.options());
    assert!(second.view().epoch > first.view().epoch);
    // An end is final.
    core.broke(0, "garbage", &"garbage");
    second.fence("a successor");
    pause(&mut rig);
    assert_eq!(placement.standing(), Err(Ended));
    rig.start(0);
    wait_until("it goes on", || core.channels() > 0);
    assert!(core.is_broken() && Arc::ptr_eq(&core.attachment().expect("one"), &second));
    // Until its rings are stopped and started: then the server is asked. The guest resumes, so the
    // claimant stays the same.
    rig.disk.stop(0);
    rig.start(0);
    let third = write(&mut rig);
    assert_eq!(third.options().claimant, second.options().claimant);
    // The front end goes while nothing runs: the next one serves another guest.
    pause(&mut rig);
    rig.disk.disconnected();
    assert_eq!(placement.standing(), Ok(None));
}

/// Another process serves the rings: it goes on as the holder of the epoch, and has none if the
/// holder was replaced.
#[test]
fn another_process_continues_as_the_holder_of_the_epoch() {
    let volume = guarded();
    let hand_over = |rig: &mut Rig| {
        pause(rig);
        let standing = rig.disk.placement().standing().expect("not over").expect("one");
        rig.disk = Disk::new(options(1), Arc::clone(&volume), sidecores(2));
        assert!(rig.disk.go_on(&standing));
        standing
    };
    let mut rig = Rig::new(Arc::clone(&volume), 1);
    rig.start(0);
    let first = write(&mut rig);
    // It has not even begun before it is handed over again.
    let standing = hand_over(&mut rig);
    assert_eq!(Some(standing), rig.disk.placement().standing().expect("not over"));
    rig.start(0);
    let second = write(&mut rig);
    assert_eq!(second.options(), first.options());
    assert!(second.view().epoch > standing.epoch);
    // While it stands still a guest begins elsewhere, under the same name.
    let standing = hand_over(&mut rig);
    let mut other = Rig::new(Arc::clone(&volume), 1);
    other.start(0);
    let held = write(&mut other).view();
    rig.start(0);
    rig.submit(0, DriverOp::Write, 0);
    let core = rig.disk.core();
    wait_until("it is fenced", || core.attachment().is_some_and(|it| it.is_fenced()));
    assert_eq!(write(&mut other).view(), held, "nobody takes it away");
    assert!(rig.rings[0].complete().expect("no breach").is_none());
    let impossible = AttachmentSnapshot { epoch: u64::MAX, ..standing };
    assert!(!rig.disk.go_on(&impossible));
}
