//! Each of the disk's writes into guest memory is marked in the log of dirty pages, and nothing
//! else is.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use virtio::dirty::LOG_PAGE_BYTES;
use virtio::driver::{
    Data, DriverOp as GuestOp, GuestPiece, RequestSlot, RequestStatus as GuestStatus, RingShape,
};
use virtio::{DirtyLog, Logging, RingKind};

use super::rig::{Rig, RigPlan, SIZE};
use random::Random;
use volume::backend::MemoryVolume;
use volume::contract::held::HeldVolume;
use volume::{IO_BYTES_MAX, Status};

const PAGE: usize = LOG_PAGE_BYTES as usize;

/// Rings of several pages, and data in pages of its own.
const SHAPE: RingShape =
    RingShape { size: 1024, slots: 16, transfer_bytes_max: 64 << 10, segments_max: 32 };

fn rig(volume: &dyn volume::Volume, kind: RingKind, indirect: bool) -> Rig {
    Rig::new(volume, RigPlan { kind, shape: SHAPE, indirect, ..RigPlan::default() })
}

/// The pages of some bytes of the guest, by their offset.
fn pages(rig: &Rig, at: usize, len: usize) -> impl Iterator<Item = u64> {
    let memory = rig.guest.memory();
    let page = |at| memory.guest_address(at) / LOG_PAGE_BYTES;
    page(at)..=page(at + len - 1)
}

fn marked(rig: &Rig) -> BTreeSet<u64> {
    rig.log.as_ref().expect("a log").take()
}

/// The pages of all that the device may store into a ring.
fn ring_pages(rig: &Rig, kind: RingKind) -> BTreeSet<u64> {
    let layout = rig.rings[0].layout();
    let size = usize::from(layout.shape.size);
    match kind {
        RingKind::Split => pages(rig, layout.used, 6 + 8 * size).collect(),
        RingKind::Packed => {
            let descriptors = pages(rig, layout.descriptors, 16 * size);
            descriptors.chain(pages(rig, layout.used, 4)).collect()
        }
    }
}

/// The pages that differ.
fn changed(rig: &Rig, before: &[u8]) -> BTreeSet<u64> {
    let after = rig.snapshot();
    let differs = |at: &usize| before[*at..at + PAGE] != after[*at..at + PAGE];
    let offsets = (0..after.len()).step_by(PAGE).filter(differs);
    offsets.map(|at| rig.guest.memory().guest_address(at) / LOG_PAGE_BYTES).collect()
}

/// Any request, with its data anywhere in the slot.
fn ask(rig: &mut Rig, random: &mut Random, seed: u64) {
    let Some(slot) = rig.rings[0].take_slot() else { return };
    let len = 512 * (1 + random.below(40) as u32);
    // Nothing on the volume looks like this, so that every page that is read into changes.
    rig.rings[0].fill(slot, 64 << 10, seed << 8 | 0xff);
    let start = rig.rings[0].guest_address(slot) + random.below(20_480);
    let halves = [
        GuestPiece { guest_address: start + u64::from(len), len: len / 2 },
        GuestPiece { guest_address: start, len: len / 2 },
    ];
    let sector = random.below(SIZE / 512 - 64);
    let (op, data) = match random.below(10) {
        0 => (GuestOp::GetId, Data::Whole(20)),
        1 => (GuestOp::GetId, Data::Cut { len: 5000, piece_bytes: 7 + 4096 }),
        2 => (GuestOp::Flush, Data::None),
        3 => (GuestOp::Unknown(99), Data::Whole(len)),
        4 => (GuestOp::Write, Data::Whole(len)),
        5 => (GuestOp::Write, Data::Pieces(&halves)),
        6 => (GuestOp::Read, Data::Pieces(&halves)),
        7 => (GuestOp::Read, Data::Cut { len, piece_bytes: 700 }),
        _ => (GuestOp::Read, Data::Whole(len)),
    };
    rig.rings[0]
        .submit(&virtio::driver::DriverRequest { slot, op, sector, data, token: 0 })
        .expect("room");
}

#[test]
fn every_page_that_the_disk_writes_is_marked_and_no_other() {
    let ways = [RingKind::Split, RingKind::Packed].map(|kind| [(kind, false), (kind, true)]);
    for (kind, indirect) in ways.into_iter().flatten() {
        let volume = MemoryVolume::new(SIZE).expect("memory");
        let mut rig = rig(&volume, kind, indirect);
        let mut random = Random::new(11);
        let (mut marks, mut quiet) = (0, 0);
        for step in 0..200 {
            match random.below(4) {
                0 => rig.stop_log(),
                1 => rig.start_log(),
                _ => {}
            }
            let old_log = rig.log.take();
            if old_log.is_some() {
                rig.start_log();
            }
            (0..random.below(8)).for_each(|_| ask(&mut rig, &mut random, step));
            rig.rings[0].publish();
            let before = rig.snapshot();
            for _ in 0..3 {
                let _ = rig.round();
            }
            assert_eq!(rig.disk.outstanding(), 0);
            rig.queue().arm();
            rig.queue().disarm();
            let changed = changed(&rig, &before);
            if let Some(old) = old_log {
                assert_eq!(old.take(), BTreeSet::new(), "a log that was replaced is not used");
                let marked = marked(&rig);
                let ring = ring_pages(&rig, kind);
                assert!(changed.is_subset(&marked), "{kind:?} {step}: {changed:?} {marked:?}");
                let others: BTreeSet<_> = marked.difference(&ring).collect();
                assert!(others.iter().all(|page| changed.contains(page)), "{others:?}");
                assert!(others.len() < changed.len() || changed.is_empty(), "the ring is in it");
                marks += marked.len();
            } else {
                quiet += changed.len();
            }
            rig.completions(0);
        }
        assert!(marks > 300 && quiet > 50, "the workload shrank: {marks} {quiet}");
    }
}

#[test]
fn outstanding_writes_are_marked_in_the_log_at_their_end() {
    for kind in [RingKind::Split, RingKind::Packed] {
        let volume = HeldVolume::new(SIZE);
        let mut rig = rig(&volume, kind, true);
        let asked = |rig: &mut Rig, op, len| {
            let slot = rig.submit(op, 0, Data::Whole(len));
            let _ = rig.round();
            slot
        };
        let data = |rig: &Rig, slot: RequestSlot, len: u32| {
            let at = rig.rings[0].layout().data_at(slot.index() as u16);
            pages(rig, at, len as usize).collect::<BTreeSet<_>>()
        };
        let end = |rig: &mut Rig, slot, status| {
            volume.answer(status);
            let _ = rig.finish(slot);
            rig.rings[0].release(slot);
        };
        // It began before there was a log, and failed: it may have written any part of its pages.
        let slot = asked(&mut rig, GuestOp::Read, 20_480);
        rig.start_log();
        assert_eq!(marked(&rig), BTreeSet::new());
        end(&mut rig, slot, Status::Error);
        assert!(marked(&rig).is_superset(&data(&rig, slot, 20_480)));
        // The log is exchanged, and so is the memory.
        let slot = asked(&mut rig, GuestOp::Read, 20_480);
        let first = rig.log.take().expect("there is one");
        first.take();
        rig.start_log();
        let memory = rig.guest.memory().device_memory().expect("mapped anew");
        rig.disk.set_memory(&Arc::new(memory));
        end(&mut rig, slot, Status::Done);
        assert_eq!(first.take(), BTreeSet::new());
        assert!(marked(&rig).is_superset(&data(&rig, slot, 20_480)));
        // Memory from which the disk only reads is not marked.
        let slot = asked(&mut rig, GuestOp::Write, 20_480);
        end(&mut rig, slot, Status::Done);
        assert!(marked(&rig).is_disjoint(&data(&rig, slot, 20_480)));
        // It ends when there is no log any more.
        let slot = asked(&mut rig, GuestOp::Read, 512);
        let last = rig.log.take().expect("there is one");
        rig.stop_log();
        end(&mut rig, slot, Status::Done);
        assert_eq!(last.take(), BTreeSet::new());
    }
}

#[test]
fn all_parts_of_a_large_request_are_marked() {
    let volume = MemoryVolume::new(SIZE).expect("memory");
    let shape = RingShape { transfer_bytes_max: 2 << 20, ..SHAPE };
    let mut rig =
        Rig::new(&volume, RigPlan { kind: RingKind::Packed, shape, ..RigPlan::default() });
    rig.start_log();
    let len = IO_BYTES_MAX + 4096;
    let slot = rig.submit(GuestOp::Read, 0, Data::Cut { len, piece_bytes: 100_000 });
    assert_eq!(rig.finish(slot), GuestStatus::Ok);
    let at = rig.rings[0].layout().data_at(slot.index() as u16);
    let data: BTreeSet<_> = pages(&rig, at, len as usize).collect();
    let near = pages(&rig, at, 2 << 20).filter(|page| !data.contains(page));
    let marked = marked(&rig);
    assert!(marked.is_superset(&data));
    assert!(near.into_iter().all(|page| !marked.contains(&page)));
}

/// A front end that gives a log in which there is no room: its disk stops, and says why.
#[test]
fn a_log_that_is_too_short_stops_the_disk_by_name() {
    for (buffers, ring) in [(true, None), (false, Some(64 << 20)), (true, Some(u64::MAX))] {
        let volume = MemoryVolume::new(SIZE).expect("memory");
        let mut rig = rig(&volume, RingKind::Split, true);
        let file = memfd_create("log", MemfdFlags::CLOEXEC).expect("a memfd");
        ftruncate(&file, 4096).expect("room");
        // Its pages end where the guest's memory begins.
        let log = Some(DirtyLog::map(file.as_fd(), 0, 8).expect("a mapping"));
        rig.queue().set_logging(Logging { log, buffers, ring });
        let slot = rig.submit(GuestOp::Read, 0, Data::Whole(4096));
        assert_eq!(rig.finish(slot), GuestStatus::Ok);
        let _ = rig.round();
        assert!(rig.core.is_broken());
        let why = rig.core.broken_why().expect("a reason");
        assert!(why.contains("the dirty log ends before"), "{why}");
        assert_eq!(rig.core.failures(), [("log_too_short", 1)]);
        let mut bytes = [0; 4096];
        assert_eq!(rustix::io::pread(&file, &mut bytes, 0), Ok(4096));
        assert_eq!(bytes, [0; 4096], "nothing is marked elsewhere");
    }
}
