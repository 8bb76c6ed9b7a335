//! Queues that leave one share for another, on one thread.

use virtio::driver::{Data, DriverCompletion, DriverOp as GuestOp, RequestStatus as GuestStatus};
use virtio::{Queue, RingKind};

use super::rig::{Rig, RigPlan, SIZE};
use super::*;
use random::Random;
use volume::backend::MemoryVolume;
use volume::contract::held::HeldVolume;

const KINDS: [RingKind; 2] = [RingKind::Split, RingKind::Packed];

/// Long enough for anything here.
const LEAVE_NS: u64 = 1_000_000;

/// Has the first queue go over from one share to the other; both are polled once.
fn go_over(now_ns: u64, from: &mut DiskQueues, to: &mut DiskQueues) {
    from.begin_leave(0, now_ns + LEAVE_NS).expect("it may leave");
    let _ = from.poll(now_ns);
    to.adopt(leaver(from));
    assert!(from.queue(0).is_none() && from.take_left(0).is_none());
}

fn leaver(from: &mut DiskQueues) -> Queue {
    from.take_left(0).expect("its time has come").expect("it has drained")
}

/// A write on the first queue that is on its way, and the other share.
fn writing(kind: RingKind, volume: &HeldVolume) -> (Rig, DiskQueues) {
    let mut rig = Rig::new(volume, RigPlan { kind, ..RigPlan::default() });
    let other = rig.share(volume, 1);
    rig.submit(GuestOp::Write, 0, Data::Whole(512));
    let _ = rig.round();
    assert_eq!(volume.asked(0), 1);
    (rig, other)
}

fn statuses(completions: &[DriverCompletion]) -> Vec<GuestStatus> {
    completions.iter().map(|completion| completion.status).collect()
}

#[test]
fn a_queue_rests_until_it_has_drained_and_then_goes_over() {
    for kind in KINDS {
        let volume = HeldVolume::new(SIZE);
        let (mut rig, mut other) = writing(kind, &volume);
        rig.disk.begin_leave(0, rig.now_ns + LEAVE_NS).expect("it may leave");
        assert_eq!(rig.disk.begin_leave(0, u64::MAX), Err(NotMoved::Unsettled), "once");
        rig.submit(GuestOp::Read, 8, Data::Whole(512));
        let _ = rig.round();
        assert_eq!(volume.asked(0), 1, "nothing more is taken");
        assert!(rig.disk.take_left(0).is_none());
        let mut wake = Wake::new();
        let _ = rig.disk.arm(&mut wake);
        assert!(wake.deadline_ns().is_some_and(|at| at <= rig.now_ns + LEAVE_NS));
        rig.disk.disarm();
        volume.answer(Status::Done);
        let _ = rig.round();
        assert_eq!(statuses(&rig.completions(0)), [GuestStatus::Ok], "it was answered here");
        other.adopt(leaver(&mut rig.disk));
        let _ = other.poll(rig.now_ns);
        assert_eq!((volume.asked(0), volume.asked(1)), (0, 1), "the read is served over there");
        volume.answer_on(1, Status::Done);
        let _ = other.poll(rig.now_ns);
        assert_eq!(statuses(&rig.completions(0)), [GuestStatus::Ok]);
        let counters = rig.core.counters(0);
        assert_eq!((counters.starts.get(), counters.sidecore.get()), (1, 1));
        assert_eq!((counters.moves.get(), counters.moves_refused.get()), (1, 1));
        let shares = rig.core.shares();
        let served = shares.iter().map(|share| (share.sidecore(), share.requests.get()));
        assert_eq!(served.collect::<Vec<_>>(), [(0, 1), (1, 1)]);
    }
}

#[test]
fn a_queue_that_does_not_drain_in_time_goes_on_where_it_was() {
    for kind in KINDS {
        let volume = HeldVolume::new(SIZE);
        let (mut rig, _other) = writing(kind, &volume);
        rig.disk.begin_leave(0, rig.now_ns + 1_500).expect("it may leave");
        rig.submit(GuestOp::Read, 8, Data::Whole(512));
        let _ = rig.round();
        assert!(rig.disk.take_left(0).is_none(), "there is time");
        assert!(rig.round().is_busy());
        assert_eq!(rig.disk.take_left(0).map(Result::err), Some(Some(NotMoved::NotDrained)));
        assert_eq!(rig.core.counters(0).moves_refused.get(), 1);
        let _ = rig.round();
        assert_eq!(volume.asked(0), 2, "it takes again");
        volume.answer(Status::Done);
        volume.answer(Status::Done);
        let _ = rig.round();
        assert_eq!(rig.completions(0).len(), 2);
    }
}

#[test]
fn a_queue_moves_neither_from_nor_by_a_paused_volume() {
    let volume = HeldVolume::new(SIZE);
    let (mut rig, other) = writing(RingKind::Split, &volume);
    volume.with(0, |state| state.paused = true);
    assert!(!rig.disk.is_open() && other.is_open());
    assert_eq!(rig.disk.begin_leave(0, u64::MAX), Err(NotMoved::Paused));
    volume.with(0, |state| state.paused = false);
    // Paused while it drains: its time is over at once, drained or not.
    rig.disk.begin_leave(0, u64::MAX).expect("it may leave");
    volume.with(0, |state| state.paused = true);
    volume.answer(Status::Done);
    let _ = rig.round();
    assert_eq!(rig.disk.take_left(0).map(Result::err), Some(Some(NotMoved::Paused)));
    assert!(rig.disk.queue(0).is_some());
    assert_eq!(rig.core.counters(0).moves_refused.get(), 2);
}

#[test]
fn a_queue_that_is_stopped_does_not_leave() {
    let volume = HeldVolume::new(SIZE);
    let (mut rig, _other) = writing(RingKind::Split, &volume);
    assert_eq!(rig.disk.begin_leave(7, u64::MAX), Err(NotMoved::NotServed));
    rig.disk.begin_leave(0, u64::MAX).expect("it may leave");
    assert!(rig.disk.begin_stop(0, u64::MAX));
    assert_eq!(rig.disk.take_left(0).map(Result::err), Some(Some(NotMoved::Unsettled)));
    assert_eq!(rig.disk.begin_leave(0, u64::MAX), Err(NotMoved::Unsettled));
    volume.answer(Status::Done);
    let _ = rig.round();
    let stopped = rig.disk.take_stopped(0).expect("it has drained");
    assert_eq!((stopped.base, stopped.left), (1, 0));
}

/// Requests of an earlier start hold a queue back, and so keep it where it is.
#[test]
fn a_queue_that_waits_for_the_past_stays() {
    let volume = HeldVolume::new(SIZE);
    let (mut rig, _other) = writing(RingKind::Split, &volume);
    assert!(rig.disk.begin_stop(0, 0));
    let _ = rig.round();
    assert_eq!(rig.core.orphans(), 1);
    rig.start(0);
    assert_eq!(rig.disk.begin_leave(0, u64::MAX), Err(NotMoved::Unsettled));
    volume.answer(Status::Done);
    let _ = rig.round();
    let _ = rig.round();
    rig.disk.begin_leave(0, u64::MAX).expect("the past is over");
}

/// A successor that comes while a queue is between two shares finds a ring that no share touches.
#[test]
fn a_queue_that_was_fenced_on_its_way_is_not_touched() {
    for kind in KINDS {
        let volume = HeldVolume::new(SIZE);
        let mut rig = Rig::new(&volume, RigPlan { kind, event_idx: false, ..RigPlan::default() });
        let mut other = rig.share(&volume, 1);
        rig.disk.begin_leave(0, u64::MAX).expect("it may leave");
        let _ = rig.round();
        let queue = leaver(&mut rig.disk);
        // The successor sleeps, and the guest writes.
        let config = rig.rings[0].queue_config(Arc::clone(&rig.memory)).expect("descriptors");
        let mut successor = Queue::new(config).expect("the same ring");
        assert!(!successor.arm());
        rig.submit(GuestOp::Write, 0, Data::Whole(512));
        rig.attachment.fence("a successor");
        let before = rig.digest();
        other.adopt(queue);
        let _ = rig.round();
        let _ = other.poll(rig.now_ns);
        assert_eq!(rig.digest(), before);
        assert_eq!((volume.asked(0), volume.asked(1)), (0, 0));
        assert!(other.take_stopped(0).is_some(), "the stopper is told");
    }
}

#[test]
fn data_written_before_a_move_is_read_after_it() {
    for kind in KINDS {
        let volume = MemoryVolume::new(SIZE).expect("memory");
        let mut rig = Rig::new(&volume, RigPlan { kind, ..RigPlan::default() });
        let mut other = rig.share(&volume, 1);
        let mut random = Random::new(11);
        for step in 1..2_000 {
            let slot = rig.rings[0].take_slot().expect("free");
            rig.rings[0].fill(slot, 512, step);
            let sector = random.below(8);
            rig.resubmit(0, slot, GuestOp::Write, sector, Data::Whole(512));
            assert_eq!(rig.finish(slot), GuestStatus::Ok);
            if random.below(2) == 0 {
                go_over(rig.now_ns, &mut rig.disk, &mut other);
                std::mem::swap(&mut rig.disk, &mut other);
            }
            rig.rings[0].fill(slot, 512, 0);
            rig.resubmit(0, slot, GuestOp::Read, sector, Data::Whole(512));
            assert_eq!(rig.finish(slot), GuestStatus::Ok);
            assert_eq!(rig.rings[0].mismatch(slot, 512, step), None);
            rig.rings[0].release(slot);
        }
        let shares = rig.core.shares();
        assert_eq!(shares.iter().map(|share| share.requests.get()).sum::<u64>(), 2 * 1_999);
        assert!(shares.iter().all(|share| share.requests.get() > 500));
        assert!(rig.core.counters(0).moves.get() > 800);
    }
}
