#[path = "dirty.rs"]
mod dirty;
#[path = "moves.rs"]
mod moves;
#[path = "rig.rs"]
mod rig;
#[path = "stops.rs"]
mod stops;

use std::ops::Range;
use std::sync::Weak;

use virtio::RingKind;
use virtio::driver::{
    Data, DriverOp as GuestOp, GuestPiece, RawDescriptor, RequestStatus as GuestStatus, RingShape,
};

use super::*;
use random::Random;
use rig::{Rig, RigPlan, SIZE};
use volume::backend::MemoryVolume;
use volume::chain::Chain as Stages;
use volume::contract::held::{HeldVolume, PollEvent};
use volume::stage::{Metering, StageConfig};

fn memory() -> MemoryVolume {
    MemoryVolume::new(SIZE).expect("memory")
}

/// A local disk copies nothing. The memory that a chain's volume fills or stores is the guest's
/// own: all of a request's data and nothing else.
#[test]
fn a_volume_is_given_the_guests_own_memory() {
    let volume = HeldVolume::new(SIZE);
    let stages = Stages::build(Arc::new(volume.clone()), &[StageConfig::Meter(Metering)], None)
        .expect("a chain");
    let mut rig = Rig::new(&*stages.volume, RigPlan::default());
    let guests = rig.memory.regions().iter().map(|region| {
        let mut place = Vec::new();
        let len = region.len_bytes() as u32;
        rig.memory.translate(region.guest_addr(), len, &mut place).expect("its own");
        let at = place[0].addr as usize;
        at..at + place[0].len as usize
    });
    let guests: Vec<_> = guests.collect();
    let len = 3 << 20;
    for data in [Data::Whole(4096), Data::Whole(len), Data::Cut { len, piece_bytes: 60_000 }] {
        for op in [GuestOp::Read, GuestOp::Write] {
            let slot = rig.submit(op, 0, data);
            let _ = rig.round();
            let mut bytes = 0;
            while volume.asked(0) > 0 {
                for (at, len) in volume.answer(Status::Done).places {
                    let end = at + len as usize;
                    let is_inside = |guest: &Range<usize>| guest.start <= at && end <= guest.end;
                    assert!(guests.iter().any(is_inside), "{op:?} of {data:?}: {at:#x}");
                    bytes += len;
                }
                let _ = rig.round();
            }
            let wanted = match data {
                Data::Whole(len) | Data::Cut { len, .. } => len,
                _ => 0,
            };
            assert_eq!(bytes, wanted, "{op:?} of {data:?}");
            assert_eq!(rig.finish(slot), GuestStatus::Ok);
            rig.rings[0].release(slot);
        }
    }
}

#[test]
fn written_data_is_read_by_every_kind_of_request() {
    let volume = memory();
    let ways = [(false, false), (true, false), (false, true), (true, true)];
    let kinds = [RingKind::Split, RingKind::Packed];
    for (kind, (event_idx, indirect)) in
        kinds.into_iter().flat_map(|kind| ways.map(|way| (kind, way)))
    {
        let mut rig =
            Rig::new(&volume, RigPlan { kind, event_idx, indirect, ..RigPlan::default() });
        let mut random = Random::new(7);
        for step in 0..100 {
            let sectors = 1 + random.below(40);
            let sector = random.below(SIZE / 512 - sectors);
            let len = (sectors * 512) as u32;
            let cut = |random: &mut Random| match random.below(2) {
                0 => Data::Whole(len),
                _ => Data::Cut { len, piece_bytes: 512 + 8 * random.below(200) as u32 },
            };
            let slot = rig.rings[0].take_slot().expect("free");
            rig.rings[0].fill(slot, len, step);
            let data = cut(&mut random);
            rig.resubmit(0, slot, GuestOp::Write, sector, data);
            assert_eq!(rig.finish(slot), GuestStatus::Ok);
            rig.rings[0].fill(slot, len, 999);
            let data = cut(&mut random);
            rig.resubmit(0, slot, GuestOp::Read, sector, data);
            assert_eq!(rig.finish(slot), GuestStatus::Ok);
            assert_eq!(rig.rings[0].mismatch(slot, len, step), None);
            rig.rings[0].release(slot);
        }
        assert_eq!(rig.run(GuestOp::Flush, 0, Data::None), GuestStatus::Ok);
        let counters = rig.core.counters(0);
        assert_eq!((counters.requests.get(), counters.errors.get()), (201, 0));
        assert_eq!(counters.read_bytes.get(), counters.written_bytes.get());
        assert_eq!(counters.flushes.get(), 1);
        for (op, count) in [(Op::Read, 100), (Op::Write, 100), (Op::Flush, 1)] {
            let mut took = volume::latency::histogram();
            counters.latencies(op).add_to(&mut took);
            assert_eq!(took.len(), count, "{op:?}");
            assert!(took.max() < rig.now_ns);
        }
    }
}

#[test]
fn the_serial_number_is_the_name() {
    let mut rig = Rig::new(&memory(), RigPlan::default());
    let slot = rig.submit(GuestOp::GetId, 0, Data::Whole(20));
    assert_eq!(rig.finish(slot), GuestStatus::Ok);
    let mut id = [1; 20];
    rig.rings[0].read(slot, 0, &mut id);
    assert_eq!(&id[..4], b"rig\0");
    assert_eq!(id[4..], [0; 16]);
}

#[test]
fn requests_that_make_no_sense_are_told_so_and_harm_nothing() {
    let mut rig = Rig::new(&memory(), RigPlan::default());
    let end = SIZE / 512;
    for (op, sector, len, status) in [
        (GuestOp::Read, end, 512, GuestStatus::IoError),
        (GuestOp::Write, end - 1, 1024, GuestStatus::IoError),
        (GuestOp::Read, u64::MAX / 512, 512, GuestStatus::IoError),
        (GuestOp::Read, u64::MAX, 512, GuestStatus::IoError),
        (GuestOp::Read, 0, 511, GuestStatus::IoError),
        (GuestOp::Write, 0, 513, GuestStatus::IoError),
        (GuestOp::GetId, 0, 19, GuestStatus::IoError),
        (GuestOp::Discard, 0, 512, GuestStatus::IoError),
        (GuestOp::WriteZeroes, 0, 512, GuestStatus::IoError),
        (GuestOp::Unknown(77), 0, 512, GuestStatus::Unsupported),
        (GuestOp::Read, end - 1, 512, GuestStatus::Ok),
    ] {
        assert_eq!(rig.run(op, sector, Data::Whole(len)), status, "{op:?} {sector} {len}");
    }
    assert_eq!(rig.run(GuestOp::Read, 3, Data::None), GuestStatus::Ok, "nothing is fine");
    assert_eq!(rig.core.counters(0).errors.get(), 10);
    assert!(!rig.core.is_broken());
}

#[test]
fn a_read_only_disk_refuses_writes() {
    let mut rig = Rig::new(&memory().read_only(), RigPlan::default());
    assert_eq!(rig.run(GuestOp::Write, 0, Data::Whole(512)), GuestStatus::IoError);
    assert_eq!(rig.run(GuestOp::Read, 0, Data::Whole(512)), GuestStatus::Ok);
}

#[test]
fn a_large_request_is_cut_and_answered_once() {
    let stages =
        Stages::build(Arc::new(memory()), &[StageConfig::Meter(Metering)], None).expect("a chain");
    // Fewer places than pieces, so that it takes several rounds.
    for depth in [2, 64] {
        let mut rig = Rig::new(&*stages.volume, RigPlan { depth, ..RigPlan::default() });
        let before = stages.stages.meters[0].meter().read(Op::Write).requests;
        let len = 3 * IO_BYTES_MAX + 1024;
        let slot = rig.rings[0].take_slot().expect("free");
        rig.rings[0].fill(slot, len, 5);
        let data = Data::Cut { len, piece_bytes: 100_000 };
        rig.resubmit(0, slot, GuestOp::Write, 5, data);
        assert_eq!(rig.finish(slot), GuestStatus::Ok);
        assert_eq!(stages.stages.meters[0].meter().read(Op::Write).requests - before, 4);
        rig.rings[0].fill(slot, len, 6);
        rig.resubmit(0, slot, GuestOp::Read, 5, Data::Whole(len));
        assert_eq!(rig.finish(slot), GuestStatus::Ok);
        assert_eq!(rig.rings[0].mismatch(slot, len, 5), None);
        assert_eq!(rig.disk.outstanding(), 0);
    }
}

#[test]
fn one_failed_part_fails_the_whole() {
    let volume = HeldVolume::new(SIZE);
    let mut rig = Rig::new(&volume, RigPlan::default());
    let slot = rig.submit(GuestOp::Write, 0, Data::Whole(3 * IO_BYTES_MAX));
    let _ = rig.round();
    volume.answer(Status::Done);
    volume.answer(Status::Error);
    let _ = rig.round();
    assert!(rig.completions(0).is_empty(), "a part is still on its way");
    volume.answer(Status::Done);
    assert_eq!(rig.finish(slot), GuestStatus::IoError);
}

#[test]
fn the_storages_errors_reach_the_guest() {
    let volume = HeldVolume::new(SIZE);
    let mut rig = Rig::new(&volume, RigPlan::default());
    for status in [Status::Error, Status::Invalid] {
        let slot = rig.submit(GuestOp::Read, 0, Data::Whole(512));
        let _ = rig.round();
        volume.answer(status);
        assert_eq!(rig.finish(slot), GuestStatus::IoError);
        rig.rings[0].release(slot);
    }
}

#[test]
fn without_the_flush_feature_every_write_is_durable() {
    for durable in [false, true] {
        let volume = HeldVolume::new(SIZE);
        let mut rig = Rig::new(&volume, RigPlan { durable, ..RigPlan::default() });
        rig.submit(GuestOp::Write, 0, Data::Whole(512));
        rig.submit(GuestOp::Read, 0, Data::Whole(512));
        let _ = rig.round();
        assert_eq!(volume.answer(Status::Done).durable, durable);
        assert!(!volume.answer(Status::Done).durable, "a read has nothing to be durable");
    }
}

#[test]
fn a_full_table_leaves_requests_in_the_ring() {
    let volume = HeldVolume::new(SIZE);
    let mut rig = Rig::new(&volume, RigPlan { depth: 6, ..RigPlan::default() });
    for _ in 0..10 {
        rig.submit(GuestOp::Read, 0, Data::Whole(512));
    }
    let _ = rig.round();
    assert_eq!((rig.disk.outstanding(), volume.asked(0)), (6, 6));
    assert!(rig.core.counters(0).full.get() > 0);
    // Waiting for room is no reason to stay awake.
    let mut wake = Wake::new();
    assert!(!rig.disk.arm(&mut wake).is_busy());
    rig.disk.disarm();
    let mut ended = 0;
    while ended < 10 {
        volume.answer(Status::Done);
        let _ = rig.round();
        ended += rig.completions(0).len();
    }
}

#[test]
fn a_busy_queue_does_not_hold_up_the_others() {
    let volume = HeldVolume::new(SIZE);
    let shape = RingShape { size: 256, slots: 256, ..RingShape::default() };
    let plan = RigPlan { queues: 3, depth: 128, shape, ..RigPlan::default() };
    let mut rig = Rig::new(&volume, plan);
    for _ in 0..200 {
        rig.submit_to(1, GuestOp::Read, 0, Data::Whole(512));
    }
    for queue in [0, 2] {
        rig.submit_to(queue, GuestOp::Read, 8, Data::Whole(512));
    }
    let _ = rig.round();
    let others = |from: u64| {
        volume.with(0, |state| state.asked.iter().filter(|held| held.offset_bytes >= from).count())
    };
    assert_eq!(others(8 * 512), 2, "each queue had its turn");
    assert_eq!(rig.disk.outstanding(), TAKE_MAX + 2);
    // With the table full of one queue's requests, room goes round as well.
    while rig.disk.outstanding() < 128 {
        let _ = rig.round();
    }
    for queue in [0, 2] {
        rig.submit_to(queue, GuestOp::Read, 16, Data::Whole(512));
    }
    for _ in 0..6 {
        volume.answer(Status::Done);
        let _ = rig.round();
        let _ = rig.round();
    }
    assert_eq!(others(16 * 512), 2);
}

#[test]
fn immediate_completions_are_published_in_bursts_with_one_call_for_the_round() {
    for (kind, event_idx) in [(RingKind::Split, true), (RingKind::Packed, true)]
        .into_iter()
        .chain([(RingKind::Split, false), (RingKind::Packed, false)])
    {
        let mut rig = Rig::new(&memory(), RigPlan { kind, event_idx, ..RigPlan::default() });
        assert!(!rig.rings[0].arm_calls().expect("no breach"));
        for _ in 0..20 {
            rig.submit(GuestOp::Read, 0, Data::Whole(512));
        }
        let _ = rig.round();
        assert_eq!(rig.completions(0).len(), 20);
        let counters = rig.core.counters(0);
        assert_eq!((counters.batches.get(), counters.calls.get()), (3, 1));
    }
}

#[test]
fn a_round_copies_few_megabytes_however_many_are_asked_for() {
    let mut rig = Rig::new(&memory(), RigPlan::default());
    for _ in 0..8 {
        rig.submit(GuestOp::Read, 0, Data::Whole(1 << 20));
    }
    for round in 1..=4 {
        assert!(rig.round().is_busy(), "round {round}");
        assert_eq!(rig.completions(0).len(), 2, "round {round}");
    }
    assert!(!rig.round().is_busy());
}

/// A disk that has not got the volume has no answers for the guest, either.
#[test]
fn requests_without_a_need_for_the_volume_wait_for_it() {
    let volume = HeldVolume::new(SIZE);
    let mut rig = Rig::new(&volume, RigPlan::default());
    volume.with(0, |state| state.paused = true);
    rig.submit(GuestOp::GetId, 0, Data::Whole(20));
    for _ in 0..3 {
        let _ = rig.round();
    }
    assert!(rig.completions(0).is_empty(), "no epoch is held");
    volume.with(0, |state| state.paused = false);
    for _ in 0..3 {
        let _ = rig.round();
    }
    assert_eq!(rig.completions(0).len(), 1);
}

#[test]
fn the_first_answers_of_a_round_come_before_the_rest_is_done() {
    let mut rig = Rig::new(&memory(), RigPlan::default());
    for _ in 0..8 {
        rig.submit(GuestOp::Read, 0, Data::Whole(512));
    }
    let _ = rig.round();
    assert_eq!(rig.completions(0).len(), 8);
    assert_eq!(rig.core.counters(0).batches.get(), 2, "four, and four");
}

#[test]
fn later_completions_are_taken_and_published_at_once() {
    for kind in [RingKind::Split, RingKind::Packed] {
        let volume = HeldVolume::new(SIZE);
        let mut rig = Rig::new(&volume, RigPlan { kind, ..RigPlan::default() });
        for _ in 0..20 {
            rig.submit(GuestOp::Read, 0, Data::Whole(512));
        }
        let _ = rig.round();
        assert_eq!(rig.disk.outstanding(), 20);
        for _ in 0..20 {
            volume.answer(Status::Done);
        }
        let _ = rig.round();
        assert_eq!(rig.completions(0).len(), 20);
        assert_eq!(rig.core.counters(0).batches.get(), 1);
    }
}

#[test]
fn a_fenced_disk_touches_nothing_of_the_guest() {
    for told_by_completion in [true, false] {
        let volume = HeldVolume::new(SIZE);
        let mut rig = Rig::new(&volume, RigPlan { queues: 2, ..RigPlan::default() });
        for queue in [0, 1] {
            for _ in 0..5 {
                rig.submit_to(queue, GuestOp::Read, 0, Data::Whole(512));
            }
        }
        let _ = rig.round();
        let before = rig.digest();
        volume.answer(Status::Done);
        volume.answer(Status::Done);
        volume.with(0, |state| state.in_kernel = true);
        if told_by_completion {
            volume.answer(Status::Fenced);
        }
        rig.attachment.fence("a successor");
        for _ in 0..10 {
            let _ = rig.round();
        }
        assert!(volume.with(0, |state| state.abandoned) && !rig.disk.is_gone());
        assert_eq!(rig.core.orphans(), 10);
        volume.with(0, |state| state.in_kernel = false);
        let _ = rig.round();
        assert!(rig.disk.is_gone());
        assert_eq!((rig.disk.outstanding(), rig.core.orphans()), (0, 0));
        let mut wake = Wake::new();
        assert!(!rig.disk.arm(&mut wake).is_busy());
        rig.disk.disarm();
        assert_eq!(rig.digest(), before, "not a byte");
        // The session still gets its answers.
        let stopped = rig.disk.take_stopped(1).expect("it stopped by itself");
        assert_eq!((stopped.base, stopped.left), (5, 5));
        assert!(!rig.disk.begin_stop(0, 0));
        assert!(rig.disk.take_stopped(0).is_some() && rig.disk.take_stopped(0).is_none());
    }
}

/// Answers that were published before the fence are the driver's; after it none are published.
#[test]
fn a_disk_that_is_fenced_between_bursts_publishes_nothing_more() {
    for polls in [1, 2] {
        let earlier = FIRST_BURST * (polls as usize - 1);
        let volume = HeldVolume::new(SIZE);
        let mut rig = Rig::new(&volume, RigPlan::default());
        volume.with(0, |state| state.at_once = true);
        for _ in 0..3 * FIRST_BURST {
            rig.submit(GuestOp::Read, 0, Data::Whole(512));
        }
        let attachment = Arc::clone(&rig.attachment);
        let event = PollEvent(Box::new(move || attachment.fence("a successor")));
        volume.with(0, |state| state.after_polls = Some((polls, event)));
        let _ = rig.round();
        assert!(rig.disk.is_fenced() && rig.disk.queue_count() == 0);
        assert_eq!(rig.completions(0).len(), earlier);
    }
}

#[test]
fn a_stopping_queue_takes_nothing_and_drains() {
    let volume = HeldVolume::new(SIZE);
    let mut rig = Rig::new(&volume, RigPlan::default());
    for _ in 0..3 {
        rig.submit(GuestOp::Read, 0, Data::Whole(512));
    }
    let _ = rig.round();
    rig.submit(GuestOp::Read, 0, Data::Whole(512));
    assert!(rig.disk.begin_stop(0, u64::MAX));
    for _ in 0..3 {
        let _ = rig.round();
        assert_eq!(rig.disk.take_stopped(0), None);
        volume.answer(Status::Done);
    }
    let _ = rig.round();
    let stopped = Stopped { index: 0, base: 3, left: 0 };
    assert_eq!(rig.disk.take_stopped(0), Some(stopped));
    assert_eq!((rig.completions(0).len(), rig.disk.queue_count()), (3, 0));
    rig.start(0);
    let _ = rig.round();
    assert_eq!(volume.asked(0), 1, "the fourth");
}

/// The guest restarts a queue whose requests the storage still has: they are done again, but only
/// when the first try can no longer land.
#[test]
fn left_requests_are_done_again_after_their_first_try_has_ended() {
    let volume = HeldVolume::new(SIZE);
    let mut rig = Rig::new(&volume, RigPlan { queues: 2, ..RigPlan::default() });
    for sector in [10, 20, 30] {
        rig.submit(GuestOp::Write, sector, Data::Whole(512));
    }
    let _ = rig.round();
    assert!(rig.disk.begin_stop(0, rig.now_ns + 500_000));
    assert_eq!(rig.disk.take_stopped(0), None);
    volume.answer(Status::Done);
    let _ = rig.round();
    rig.now_ns += 500_000;
    let _ = rig.round();
    let stopped = Stopped { index: 0, base: 3, left: 2 };
    assert_eq!(rig.disk.take_stopped(0), Some(stopped));
    assert_eq!((rig.core.orphans(), rig.disk.outstanding()), (2, 2));
    rig.start(0);
    let before = rig.digest();
    let _ = rig.round();
    assert_eq!(volume.asked(0), 2, "the new queue is held back");
    let mut wake = Wake::new();
    assert!(!rig.disk.arm(&mut wake).is_busy());
    assert!(wake.deadline_ns().is_some(), "and looks again");
    rig.disk.disarm();
    // The other queue goes on.
    rig.submit_to(1, GuestOp::Read, 0, Data::Whole(512));
    let _ = rig.round();
    assert_eq!(volume.asked(0), 3);
    volume.answer(Status::Done);
    volume.answer(Status::Error);
    let ends = |rig: &Rig| rig.rings[0].base();
    assert_eq!(ends(&rig), 1);
    let _ = rig.round();
    let _ = rig.round();
    assert_eq!((ends(&rig), rig.core.orphans()), (1, 0), "an orphan is not answered");
    let again: Vec<_> =
        volume.with(0, |state| state.asked.iter().map(|held| held.offset_bytes / 512).collect());
    assert_eq!(again, [0, 20, 30], "in their old order");
    assert_ne!(before, 0);
    for _ in 0..3 {
        volume.answer(Status::Done);
    }
    let _ = rig.round();
    assert_eq!((rig.completions(0).len(), rig.completions(1).len()), (3, 1));
}

#[test]
fn a_large_request_is_not_continued_after_its_queue_stopped() {
    let volume = HeldVolume::new(SIZE);
    let mut rig = Rig::new(&volume, RigPlan { depth: 2, ..RigPlan::default() });
    rig.submit(GuestOp::Write, 0, Data::Whole(4 * IO_BYTES_MAX));
    let _ = rig.round();
    assert_eq!(volume.asked(0), 2);
    rig.disk.begin_stop(0, rig.now_ns);
    let _ = rig.round();
    let stopped = Stopped { index: 0, base: 1, left: 1 };
    assert_eq!(rig.disk.take_stopped(0), Some(stopped));
    volume.answer(Status::Done);
    volume.answer(Status::Done);
    let _ = rig.round();
    assert_eq!((volume.asked(0), rig.disk.outstanding()), (0, 0));
    rig.start(0);
    let _ = rig.round();
    assert_eq!(volume.with(0, |state| state.asked[0].offset_bytes), 0, "from its beginning");
}

#[test]
fn letting_go_waits_for_the_kernel_and_keeps_its_memory() {
    let volume = HeldVolume::new(SIZE);
    let mut rig = Rig::new(&volume, RigPlan::default());
    rig.submit(GuestOp::Read, 0, Data::Whole(512));
    let _ = rig.round();
    volume.with(0, |state| state.in_kernel = true);
    rig.disk.let_go();
    let memory = Arc::downgrade(&rig.memory);
    rig.memory = Arc::default();
    for _ in 0..5 {
        let _ = rig.round();
        assert!(Weak::upgrade(&memory).is_some(), "the kernel may still write there");
    }
    volume.with(0, |state| state.in_kernel = false);
    let _ = rig.round();
    assert!(rig.disk.is_gone() && Weak::upgrade(&memory).is_none());
}

#[test]
fn old_memory_stays_until_its_requests_have_ended() {
    let volume = HeldVolume::new(SIZE);
    let mut rig = Rig::new(&volume, RigPlan::default());
    let slot = rig.submit(GuestOp::Read, 0, Data::Whole(512));
    let _ = rig.round();
    let old = Arc::downgrade(&rig.memory);
    rig.memory = Arc::new(rig.guest.memory().device_memory().expect("the same again"));
    rig.disk.set_memory(&rig.memory);
    let _ = rig.round();
    assert!(Weak::upgrade(&old).is_some());
    volume.answer(Status::Done);
    assert_eq!(rig.finish(slot), GuestStatus::Ok);
    assert!(Weak::upgrade(&old).is_none());
    rig.disk.set_memory(&Arc::default());
    assert!(rig.core.is_broken(), "a ring must be in the guest's memory");
}

#[test]
fn garbage_stops_the_disk_and_what_was_taken_is_still_answered() {
    let volume = HeldVolume::new(SIZE);
    let mut rig = Rig::new(&volume, RigPlan { queues: 2, ..RigPlan::default() });
    rig.submit_to(1, GuestOp::Read, 0, Data::Whole(512));
    let _ = rig.round();
    rig.rings[0].set_available_index(5_000);
    let _ = rig.round();
    assert!(rig.core.is_broken());
    assert!(rig.core.broken_why().expect("a reason").contains("queue 0"));
    rig.submit_to(1, GuestOp::Read, 0, Data::Whole(512));
    let _ = rig.round();
    assert_eq!(volume.asked(0), 1, "nothing is taken any more");
    let mut wake = Wake::new();
    assert!(!rig.disk.arm(&mut wake).is_busy(), "and nobody waits for it");
    rig.disk.disarm();
    volume.answer(Status::Done);
    let _ = rig.round();
    assert_eq!(rig.completions(1).len(), 1);
    rig.disk.begin_stop(0, u64::MAX);
    rig.disk.begin_stop(1, u64::MAX);
    let _ = rig.round();
    assert!(rig.disk.take_stopped(0).is_some() && rig.disk.take_stopped(1).is_some());
}

#[test]
fn a_request_without_room_for_an_answer_is_garbage() {
    let mut rig = Rig::new(&memory(), RigPlan::default());
    let slot = rig.rings[0].take_slot().expect("free");
    let guest_address = rig.rings[0].guest_address(slot);
    let readable = RawDescriptor { guest_address, len: 512, flags: 0, next: 0 };
    rig.rings[0].place_descriptor(3, readable);
    rig.rings[0].place_available(0, 3);
    rig.rings[0].set_available_index(1);
    let _ = rig.round();
    let why = rig.core.broken_why().expect("garbage");
    assert!(why.contains("without room for its status byte"), "{why}");
    // There is nothing to wait for.
    rig.disk.begin_stop(0, u64::MAX);
    let _ = rig.round();
    assert_eq!(rig.disk.take_stopped(0).map(|stopped| stopped.left), Some(1));
}

#[test]
fn hostile_rings_lose_their_own_disk_and_nothing_else() {
    let volume = memory();
    let mut broken = 0;
    for seed in 0..300 {
        let mut random = Random::new(seed * 77 + 1);
        let shape = RingShape { size: 64, slots: 8, ..RingShape::default() };
        let plan = RigPlan { indirect: seed % 2 == 0, shape, ..RigPlan::default() };
        let mut rig = Rig::new(&volume, plan);
        let slots: Vec<_> = (0..4).map(|_| rig.rings[0].take_slot().expect("free")).collect();
        for at in 0..64 {
            let slot = slots[random.below(4) as usize];
            // Mostly real addresses and lengths, so that some chains go deep.
            let guest_address = match random.below(8) {
                0 => random.below(u64::MAX),
                _ => rig.rings[0].guest_address(slot) + random.below(4096),
            };
            let len = match random.below(6) {
                0 => random.below(1 << 32) as u32,
                1 => 0,
                2 => 16,
                _ => random.below(8192) as u32,
            };
            let next_max = if random.below(8) == 0 { 1 << 16 } else { 64 };
            let next = random.below(next_max) as u16;
            let flags = random.below(if seed % 2 == 0 { 8 } else { 4 }) as u16;
            rig.rings[0].place_descriptor(at, RawDescriptor { guest_address, len, flags, next });
            rig.rings[0].place_available(at, random.below(64) as u16);
            let header: [u8; 24] = std::array::from_fn(|_| random.below(14) as u8 / 3 * 4);
            rig.rings[0].write(slot, random.below(4096) as u32, &header);
        }
        rig.rings[0].set_available_index(random.below(65) as u16);
        for _ in 0..8 {
            let _ = rig.round();
        }
        broken += u64::from(rig.core.is_broken());
        rig.disk.begin_stop(0, rig.now_ns + 10_000);
        for _ in 0..12 {
            let _ = rig.round();
        }
        assert_eq!(rig.disk.queue_count(), 0);
    }
    assert!((100..300).contains(&broken), "{broken} of 300 were found out");
}

#[test]
fn pieces_across_regions_and_odd_places_are_served() {
    let mut rig = Rig::new(&memory(), RigPlan::default());
    let seam = rig.guest.memory().regions()[1].guest_address;
    let slot = rig.rings[0].take_slot().expect("free");
    // The bytes around the seam belong to the rings or to slots that are unused now.
    let pieces = [GuestPiece { guest_address: seam - 300, len: 1024 }];
    rig.resubmit(0, slot, GuestOp::Write, 0, Data::Pieces(&pieces));
    assert_eq!(rig.finish(slot), GuestStatus::Ok);
    let at = rig.rings[0].guest_address(slot) + 3;
    let odd = [(at, 1), (at + 2000, 510), (at + 5000, 513)];
    let odd = odd.map(|(guest_address, len)| GuestPiece { guest_address, len });
    rig.resubmit(0, slot, GuestOp::Read, 0, Data::Pieces(&odd));
    assert_eq!(rig.finish(slot), GuestStatus::Ok);
    let [mut wrote, mut read] = [vec![0; 1024], vec![0; 1024]];
    let memory = rig.guest.memory();
    let offset = |address| memory.offset_of(address).expect("guest memory");
    memory.read(offset(seam - 300), &mut wrote);
    let mut done = 0;
    for piece in odd {
        let len = piece.len as usize;
        memory.read(offset(piece.guest_address), &mut read[done..done + len]);
        done += len;
    }
    assert_eq!(wrote, read);
}

#[test]
fn a_sleeping_disk_is_woken_by_a_kick() {
    let ways = [(false, true), (true, true), (true, false)];
    let kinds = [RingKind::Split, RingKind::Packed];
    for (kind, (event_idx, kick)) in kinds.into_iter().flat_map(|kind| ways.map(|way| (kind, way)))
    {
        let mut rig = Rig::new(&memory(), RigPlan { kind, event_idx, kick, ..RigPlan::default() });
        let _ = rig.round();
        let mut wake = Wake::new();
        let progress = rig.disk.arm(&mut wake);
        // A ring whose driver cannot kick has to be polled.
        assert_eq!((progress.is_busy(), wake.fd_count()), (!kick, usize::from(kick)));
        let slot = rig.submit(GuestOp::Read, 0, Data::Whole(512));
        assert_eq!(rig.rings[0].counters().kicks, 1, "an armed queue is kicked");
        rig.disk.disarm();
        assert_eq!(rig.finish(slot), GuestStatus::Ok);
        rig.rings[0].release(slot);
        let slot = rig.submit(GuestOp::Read, 0, Data::Whole(512));
        assert_eq!(rig.rings[0].counters().kicks, 1, "but not one that is being polled");
        assert!(rig.disk.arm(&mut Wake::new()).is_busy(), "which looks before it sleeps");
        rig.disk.disarm();
        assert_eq!(rig.finish(slot), GuestStatus::Ok);
    }
}

/// A list of ranges on a slot: sector, sectors, flags.
fn ranges(
    rig: &mut Rig,
    ranges: &[(u64, u32, u32)],
) -> (virtio::driver::RequestSlot, Data<'static>) {
    let slot = rig.rings[0].take_slot().expect("a free slot");
    let mut list = Vec::new();
    for (sector, sectors, flags) in ranges {
        list.extend(sector.to_le_bytes());
        list.extend(sectors.to_le_bytes());
        list.extend(flags.to_le_bytes());
    }
    rig.rings[0].write(slot, 0, &list);
    (slot, Data::Whole(list.len() as u32))
}

#[test]
fn each_range_of_a_discard_is_a_request_to_the_volume() {
    let volume = HeldVolume::new(SIZE);
    let mut rig = Rig::new(&volume, RigPlan { depth: 2, durable: true, ..RigPlan::default() });
    let (slot, data) = ranges(&mut rig, &[(8, 8, 0), (32, 16, 0), (64, 8, 0)]);
    rig.resubmit(0, slot, GuestOp::Discard, 0, data);
    let _ = rig.round();
    assert_eq!(volume.asked(0), 2, "there is no room for more");
    let first = volume.answer(Status::Done);
    assert_eq!((first.op, first.offset_bytes, first.len_bytes), (Op::Discard, 4096, 4096));
    assert!(first.durable, "as durable as a write");
    for _ in 0..3 {
        let _ = rig.round();
    }
    assert_eq!(volume.asked(0), 2);
    assert_eq!(volume.answer(Status::Done).offset_bytes, 16384);
    let _ = rig.round();
    assert!(rig.completions(0).is_empty(), "one is left");
    assert_eq!(volume.answer(Status::Done).offset_bytes, 32768);
    assert_eq!(rig.finish(slot), GuestStatus::Ok);
    let counters = rig.core.counters(0);
    assert_eq!((counters.discarded_bytes.get(), counters.requests.get()), (32 * 512, 1));
}

#[test]
fn a_range_beyond_the_end_spoils_all_of_its_request() {
    let volume = HeldVolume::new(SIZE);
    let mut rig = Rig::new(&volume, RigPlan::default());
    for op in [GuestOp::Discard, GuestOp::WriteZeroes] {
        let (slot, data) = ranges(&mut rig, &[(0, 8, 0), (SIZE / 512 - 4, 8, 0)]);
        rig.resubmit(0, slot, op, 0, data);
        assert_eq!(rig.finish(slot), GuestStatus::IoError);
        rig.rings[0].release(slot);
        let (slot, data) = ranges(&mut rig, &[(0, 8, 0), (8, 8, 6)]);
        rig.resubmit(0, slot, op, 0, data);
        assert_eq!(rig.finish(slot), GuestStatus::Unsupported, "unknown flags");
        rig.rings[0].release(slot);
    }
    assert_eq!(volume.asked(0), 0, "nothing was done of any of them");
    assert_eq!(rig.core.counters(0).errors.get(), 4);
}

#[test]
fn a_volume_that_cannot_after_all_is_told_to_the_guest_as_such() {
    let volume = HeldVolume::new(SIZE);
    let mut rig = Rig::new(&volume, RigPlan::default());
    for (status, told) in [
        (Status::Unsupported, GuestStatus::Unsupported),
        (Status::Error, GuestStatus::IoError),
        (Status::Done, GuestStatus::Ok),
    ] {
        let (slot, data) = ranges(&mut rig, &[(8, 8, 1), (16, 8, 0)]);
        rig.resubmit(0, slot, GuestOp::WriteZeroes, 0, data);
        let _ = rig.round();
        assert_eq!(volume.answer(status).op, Op::Discard, "it may be unmapped");
        assert_eq!(volume.answer(Status::Done).op, Op::WriteZeroes);
        assert_eq!(rig.finish(slot), told);
        rig.rings[0].release(slot);
    }
}
