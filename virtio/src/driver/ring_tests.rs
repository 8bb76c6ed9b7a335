//! The ring driver against our own queue, and against devices that break the rules.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use random::Random;
use rustix::event::{EventfdFlags, eventfd};

use super::*;
use crate::{
    Chain, ChainHead, InflightRegion, Memory, Queue, QueueConfig, RingKind, gather, scatter,
};

/// Generous: nothing is asserted about time.
const PATIENCE: Duration = Duration::from_secs(30);

const SHAPE: RingShape =
    RingShape { size: 16, slots: 12, transfer_bytes_max: 4096, segments_max: 4 };

/// A correct disk in memory on one queue, which holds requests back and answers in any order.
struct Disk {
    queue: Queue,
    bytes: Vec<u8>,
    chain: Chain,
    held: Vec<(ChainHead, u32)>,
}

impl Disk {
    fn new(queue: Queue, bytes: Vec<u8>) -> Self {
        Self { queue, bytes, chain: Chain::new(), held: Vec::new() }
    }

    /// Does everything that is there; answers nothing yet.
    fn work(&mut self) {
        while let Some(head) = self.queue.take(&mut self.chain).unwrap() {
            let mut header = vec![0; self.chain.readable_bytes() as usize];
            // SAFETY: a chain that was just taken from a live queue.
            unsafe { gather(&self.chain.readable, 0, &mut header) };
            let code = u32::from_le_bytes(header[..4].try_into().unwrap());
            let sector = u64::from_le_bytes(header[8..16].try_into().unwrap());
            let at = sector as usize * 512;
            let mut answer = vec![0; self.chain.writable_bytes() as usize];
            let room = answer.len() - 1;
            match code {
                0 => answer[..room].copy_from_slice(&self.bytes[at..at + room]),
                1 => self.bytes[at..at + header.len() - 16].copy_from_slice(&header[16..]),
                4 => {}
                8 => answer[..4].copy_from_slice(b"vrio"),
                _ => answer[room] = 2,
            }
            // SAFETY: as above.
            unsafe { scatter(&self.chain.writable, 0, &answer) };
            self.held.push((head, answer.len() as u32));
        }
    }

    fn answer(&mut self, at: usize) {
        let (head, written) = self.held.swap_remove(at);
        self.queue.put(head, written);
    }

    fn answer_all(&mut self) {
        self.held.drain(..).for_each(|(head, written)| self.queue.put(head, written));
        self.queue.publish();
    }
}

fn guest(regions: Regions) -> DriverGuest {
    let backing = if regions == Regions::One { Backing::Anonymous } else { Backing::Memfd };
    DriverGuest::new(&GuestPlan { queues: 1, shape: SHAPE, backing, regions }).unwrap()
}

fn device_memory(guest: &DriverGuest) -> Arc<Memory> {
    Arc::new(guest.memory().device_memory().unwrap())
}

fn ring_and_config(regions: Regions, options: RingOptions) -> (RingDriver, QueueConfig) {
    let guest = guest(regions);
    let ring = guest.ring(0, options);
    let config = ring.queue_config(device_memory(&guest)).unwrap();
    (ring, config)
}

const KINDS: [RingKind; 2] = [RingKind::Split, RingKind::Packed];

fn options(kind: RingKind, event_idx: bool, indirect: bool) -> RingOptions {
    RingOptions { kind, event_idx, indirect, ..RingOptions::default() }
}

fn submit(ring: &mut RingDriver, slot: RequestSlot, op: DriverOp, data: Data<'_>) {
    let sector = slot.index() as u64 * 8;
    ring.submit(&DriverRequest { slot, op, sector, data, token: 5 }).unwrap();
    ring.publish();
}

/// Requests of all kinds and shapes, answered out of order; every byte is compared.
fn converse(regions: Regions, options: RingOptions, requests: u64) {
    let indirect = options.indirect;
    let (mut ring, config) = ring_and_config(regions, options);
    let mut disk = Disk::new(Queue::new(config).unwrap(), vec![0; 12 * 4096]);
    let mut dice = Random::new(requests + 77);
    let mut versions = [0u64; 12];
    while ring.counters().submitted < requests {
        for _ in 0..dice.below(8) {
            let Some(slot) = ring.take_slot() else { break };
            ring.set_indirect(indirect && dice.below(4) > 0);
            let op = [DriverOp::Read, DriverOp::Write, DriverOp::Flush][dice.below(3) as usize];
            if op == DriverOp::Write {
                versions[slot.index()] += 1;
            }
            let seed = (slot.index() as u64) << 32 | versions[slot.index()];
            ring.fill(slot, 4096, if op == DriverOp::Write { seed } else { !seed });
            let piece_bytes = [4096, 2048, 1536, 1024][dice.below(4) as usize];
            let data = Data::Cut { len: 4096, piece_bytes };
            let data = if op == DriverOp::Flush { Data::None } else { data };
            let request =
                DriverRequest { slot, op, sector: slot.index() as u64 * 8, data, token: seed };
            if let Err(SubmitError::Full { .. }) = ring.submit(&request) {
                // A write that was not submitted left no version.
                versions[slot.index()] -= u64::from(op == DriverOp::Write);
                ring.release(slot);
            }
        }
        ring.publish();
        disk.work();
        for _ in 0..dice.below(disk.held.len() as u64 + 1) {
            let at = dice.below(disk.held.len() as u64) as usize;
            disk.answer(at);
        }
        disk.queue.publish();
        while let Some(done) = ring.complete().unwrap() {
            assert_eq!(done.status, RequestStatus::Ok);
            if done.op == DriverOp::Read && done.token as u32 > 0 {
                assert_eq!(ring.mismatch(done.slot, 4096, done.token), None);
            }
            ring.release(done.slot);
        }
    }
}

#[test]
fn every_way_of_asking_is_understood() {
    let ways = [Regions::One, Regions::Adjoining(5), Regions::Apart(3)];
    for kind in KINDS {
        for (round, regions) in ways.into_iter().cycle().take(12).enumerate() {
            let reuse = if round % 2 == 0 { Reuse::InOrder } else { Reuse::AsLinux };
            let options = options(kind, round & 4 != 0, round & 8 != 0);
            converse(regions, RingOptions { reuse, ..options }, 3000);
        }
    }
}

#[test]
fn a_request_is_laid_out_as_the_standard_says() {
    KINDS.into_iter().for_each(lay_out);
}

fn lay_out(kind: RingKind) {
    let (mut ring, config) = ring_and_config(Regions::One, options(kind, false, false));
    let mut queue = Queue::new(config).unwrap();
    let (slot, mut chain) = (ring.take_slot().unwrap(), Chain::new());
    let (sector, data) = (0x0102_0304, Data::Cut { len: 1000, piece_bytes: 600 });
    ring.submit(&DriverRequest { slot, op: DriverOp::GetId, sector, data, token: 0 }).unwrap();
    assert_eq!(queue.take(&mut chain), Ok(None), "not published");
    ring.publish();
    queue.take(&mut chain).unwrap().unwrap();
    let mut header = [0; 16];
    // SAFETY: a chain that was just taken from a live queue.
    assert_eq!(unsafe { gather(&chain.readable, 0, &mut header) }, 16);
    assert_eq!(header, [8, 0, 0, 0, 0, 0, 0, 0, 4, 3, 2, 1, 0, 0, 0, 0]);
    let lens: Vec<_> = chain.writable.iter().map(|piece| piece.len).collect();
    assert_eq!(lens, [600, 400, 1]);
}

#[test]
fn indexes_wrap() {
    for kind in KINDS {
        converse(Regions::One, options(kind, true, true), 70_000);
    }
}

#[test]
fn a_full_ring_refuses_and_recovers() {
    KINDS.into_iter().for_each(fill_and_recover);
}

fn fill_and_recover(kind: RingKind) {
    let (mut ring, config) = ring_and_config(Regions::One, options(kind, true, false));
    let mut disk = Disk::new(Queue::new(config).unwrap(), vec![0; 12 * 4096]);
    for _ in 0..5 {
        let slot = ring.take_slot().unwrap();
        submit(&mut ring, slot, DriverOp::Read, Data::Whole(512));
    }
    let slot = ring.take_slot().unwrap();
    let request =
        DriverRequest { slot, op: DriverOp::Read, sector: 0, data: Data::Whole(512), token: 0 };
    assert_eq!(ring.submit(&request), Err(SubmitError::Full { needed: 3, free: 1 }));
    assert_eq!(ring.counters().full, 1);
    disk.work();
    disk.answer(3);
    disk.queue.publish();
    assert!(ring.complete().unwrap().is_some());
    ring.submit(&request).unwrap();
    assert_eq!(ring.outstanding(), 5);
}

/// A ring with two requests outstanding, and its memory: a device that breaks the rules stores
/// into that by itself.
struct Rogue {
    ring: RingDriver,
    used: u16,
}

impl Rogue {
    fn new() -> Self {
        let mut ring = guest(Regions::One).ring(0, options(RingKind::Split, true, false));
        for op in [DriverOp::Read, DriverOp::Write] {
            let slot = ring.take_slot().unwrap();
            submit(&mut ring, slot, op, Data::Whole(512));
        }
        Self { ring, used: 0 }
    }

    fn element(&mut self, id: u32, written: u32) {
        let at = self.ring.layout().used_entry_at(self.used);
        self.ring.memory().u32_at(at).store(id, Ordering::Relaxed);
        self.ring.memory().u32_at(at + 4).store(written, Ordering::Relaxed);
        self.used = self.used.wrapping_add(1);
        self.index(self.used);
    }

    fn index(&self, index: u16) {
        let at = self.ring.layout().used_index_at();
        self.ring.memory().u16_at(at).store(index, Ordering::Release);
    }

    fn status(&self, slot: u16, status: u8) {
        let at = self.ring.layout().status_at(slot);
        self.ring.memory().u8_at(at).store(status, Ordering::Relaxed);
    }

    /// The breach; the ring stays broken.
    fn breach(mut self) -> Breach {
        let breach = self.ring.complete().unwrap_err();
        assert_eq!(self.ring.complete(), Err(breach));
        assert_eq!(self.ring.breach(), Some(breach));
        let slot = self.ring.take_slot().unwrap();
        let request =
            DriverRequest { slot, op: DriverOp::Flush, sector: 0, data: Data::None, token: 0 };
        assert_eq!(self.ring.submit(&request), Err(SubmitError::Broken(breach)));
        breach
    }
}

#[test]
fn an_index_that_jumps_is_named() {
    for (before, now, seen, outstanding) in [(0, 3, 0, 2), (0, 0xffff, 0, 2), (1, 0, 1, 1)] {
        let mut rogue = Rogue::new();
        if before == 1 {
            rogue.status(0, 0);
            rogue.element(0, 513);
            assert!(rogue.ring.complete().unwrap().is_some());
        }
        rogue.index(now);
        let wanted = Breach::UsedIndexJump { queue: 0, seen, now, outstanding };
        assert_eq!(rogue.breach(), wanted);
    }
}

#[test]
fn an_index_that_goes_back_is_named() {
    let mut rogue = Rogue::new();
    rogue.status(0, 0);
    rogue.element(0, 513);
    rogue.status(1, 0);
    rogue.element(3, 1);
    assert!(rogue.ring.complete().unwrap().is_some());
    rogue.index(0);
    assert!(rogue.ring.complete().unwrap().is_some(), "already read");
    let wanted = Breach::UsedIndexJump { queue: 0, seen: 2, now: 0, outstanding: 0 };
    assert_eq!(rogue.breach(), wanted);
}

#[test]
fn a_descriptor_that_is_not_outstanding_is_named() {
    let mut rogue = Rogue::new();
    rogue.element(16, 1);
    assert_eq!(rogue.breach(), Breach::UsedIdUnknown { queue: 0, position: 0, id: 16 });
    for id in [1, 9] {
        let mut rogue = Rogue::new();
        rogue.element(id, 1);
        let wanted = Breach::UsedIdNotOutstanding { queue: 0, position: 0, id: id as u16 };
        assert_eq!(rogue.breach(), wanted);
    }
}

#[test]
fn a_second_completion_is_named() {
    let mut rogue = Rogue::new();
    rogue.status(0, 0);
    rogue.element(0, 513);
    assert!(rogue.ring.complete().unwrap().is_some());
    rogue.element(0, 513);
    assert_eq!(rogue.breach(), Breach::CompletedTwice { queue: 0, position: 1, id: 0 });
}

#[test]
fn a_wrong_length_is_named() {
    for (slot, id, status, written) in
        [(0, 0, 0, 512), (0, 0, 0, 514), (0, 0, 1, 514), (1, 3, 0, 513), (1, 3, 0, 0)]
    {
        let mut rogue = Rogue::new();
        rogue.status(slot, status);
        rogue.element(id, written);
        let breach = rogue.breach();
        assert!(matches!(breach, Breach::UsedLengthWrong { .. }), "{breach}");
    }
    let mut rogue = Rogue::new();
    rogue.status(0, 1);
    rogue.element(0, 1);
    let done = rogue.ring.complete().unwrap().unwrap();
    assert_eq!((done.status, done.written_bytes), (RequestStatus::IoError, 1));
}

#[test]
fn a_missing_or_odd_status_is_named() {
    let mut rogue = Rogue::new();
    rogue.element(0, 513);
    assert_eq!(rogue.breach(), Breach::StatusUnwritten { queue: 0, slot: 0 });
    let mut rogue = Rogue::new();
    rogue.status(1, 9);
    rogue.element(3, 1);
    assert_eq!(rogue.breach(), Breach::StatusUnknown { queue: 0, slot: 1, status: 9 });
}

#[test]
fn a_late_status_is_named() {
    let mut rogue = Rogue::new();
    rogue.status(0, 0);
    rogue.element(0, 513);
    let slot = rogue.ring.complete().unwrap().unwrap().slot;
    rogue.status(0, 0);
    let request =
        DriverRequest { slot, op: DriverOp::Flush, sector: 0, data: Data::None, token: 0 };
    let wanted = Breach::StatusLate { queue: 0, slot: 0, status: 0 };
    assert_eq!(rogue.ring.submit(&request), Err(SubmitError::Broken(wanted)));
    assert_eq!(rogue.breach(), wanted);
}

#[test]
#[should_panic(expected = "not the caller's")]
fn using_a_slot_of_the_device_is_our_own_mistake() {
    let rogue = Rogue::new();
    rogue.ring.fill(RequestSlot(0), 8, 1);
}

#[test]
fn kicks_come_only_when_the_device_sleeps() {
    for (kind, event_idx) in KINDS.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
        let (mut ring, config) = ring_and_config(Regions::One, options(kind, event_idx, true));
        let mut disk = Disk::new(Queue::new(config).unwrap(), vec![0; 12 * 4096]);
        disk.queue.disarm();
        let mut due = Vec::new();
        for sleeps in [false, true, false, false, true, true] {
            if sleeps {
                assert!(!disk.queue.arm());
            }
            let slot = ring.take_slot().unwrap();
            let request =
                DriverRequest { slot, op: DriverOp::Flush, sector: 0, data: Data::None, token: 0 };
            ring.submit(&request).unwrap();
            due.push(ring.publish());
            disk.queue.disarm();
            disk.work();
            disk.answer_all();
            ring.complete().unwrap().unwrap();
        }
        // By index, the first one passes the event index of zero. A packed ring can say no.
        let first = event_idx && kind == RingKind::Split;
        assert_eq!(due, [first, true, false, false, true, true], "{kind:?}, {event_idx}");
        assert!(!ring.publish(), "nothing staged");
    }
}

#[test]
fn a_polling_driver_is_never_called() {
    for (kind, event_idx) in KINDS.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
        let call = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
        let call = Some(Arc::new(call));
        let options = RingOptions { call, ..options(kind, event_idx, true) };
        let (mut ring, config) = ring_and_config(Regions::One, options);
        let mut disk = Disk::new(Queue::new(config).unwrap(), vec![0; 12 * 4096]);
        let at_start = disk.queue.counters().calls;
        let slot = ring.take_slot().unwrap();
        for _ in 0..70_000 {
            submit(&mut ring, slot, DriverOp::Flush, Data::None);
            disk.work();
            disk.answer_all();
            ring.complete().unwrap().unwrap();
        }
        assert_eq!(disk.queue.counters().calls, at_start, "event_idx {event_idx}");
        ring.drain_calls();
        for calls in 1..4 {
            assert!(!ring.arm_calls().unwrap());
            submit(&mut ring, slot, DriverOp::Flush, Data::None);
            disk.work();
            disk.answer_all();
            assert_eq!((ring.drain_calls(), disk.queue.counters().calls), (1, at_start + calls));
            assert!(ring.arm_calls().unwrap(), "it is there");
            ring.complete().unwrap().unwrap();
        }
    }
}

#[test]
fn two_sleepers_wake_each_other() {
    let event = || Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap());
    for (kind, event_idx) in KINDS.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
        let (kick, call) = (Some(event()), Some(event()));
        let options = RingOptions { kick: kick.clone(), call, ..options(kind, event_idx, true) };
        let (mut ring, config) = ring_and_config(Regions::One, options);
        let total = 500;
        let device = std::thread::spawn(move || {
            let mut disk = Disk::new(Queue::new(config).unwrap(), vec![0; 12 * 4096]);
            let kick = kick.unwrap();
            while disk.queue.counters().used < total {
                if !disk.queue.arm() {
                    assert!(event::readable(kick.as_fd(), PATIENCE), "no kick");
                }
                disk.queue.disarm();
                disk.work();
                disk.answer_all();
            }
        });
        let slot = ring.take_slot().unwrap();
        for _ in 0..total {
            submit(&mut ring, slot, DriverOp::Read, Data::Whole(512));
            assert!(ring.wait(PATIENCE).unwrap(), "no call");
            ring.complete().unwrap().unwrap();
        }
        assert_eq!(ring.counters().calls_missed, 0);
        device.join().unwrap();
    }
}

#[test]
fn a_device_killed_at_any_store_is_not_noticed() {
    KINDS.into_iter().for_each(kill_at_any_store);
}

fn kill_at_any_store(kind: RingKind) {
    for stores_max in 0..400 {
        let (mut ring, config) = ring_and_config(Regions::One, options(kind, true, true));
        let shape = (kind, 1, SHAPE.size);
        let (file, len) = InflightRegion::create(shape).unwrap();
        let with_region = |mut config: QueueConfig| {
            let map = InflightRegion::map(file.as_fd(), 0, len, shape).unwrap();
            config.inflight = map.queue(0);
            config
        };
        let memory = Arc::clone(&config.memory);
        let first = with_region(config);
        let queue = Queue::new_stopping(first, stores_max).unwrap();
        let mut disk = Disk::new(queue, vec![0; 12 * 4096]);
        let mut dice = Random::new(stores_max + 1);
        let slots: Vec<_> = std::iter::from_fn(|| ring.take_slot()).collect();
        for slot in slots {
            ring.fill(slot, 4096, slot.index() as u64);
            submit(&mut ring, slot, DriverOp::Write, Data::Whole(4096));
            disk.work();
            if dice.below(2) == 0 {
                let at = dice.below(disk.held.len() as u64) as usize;
                disk.answer(at);
                disk.queue.publish();
            }
        }
        let mut done = 0;
        while let Some(completion) = ring.complete().unwrap() {
            assert_eq!(completion.status, RequestStatus::Ok);
            done += 1;
        }
        let Disk { queue, bytes, .. } = disk;
        drop(queue);
        let second = with_region(ring.queue_config(memory).unwrap());
        let mut disk = Disk::new(Queue::new(second).unwrap(), bytes);
        disk.work();
        disk.answer_all();
        while ring.complete().unwrap().is_some() {
            done += 1;
        }
        assert_eq!((done, ring.outstanding()), (12, 0), "{kind:?} stopped after {stores_max}");
    }
}

/// Apart from statuses and data. Where requests end in order, used elements and descriptors are
/// what they were a round of the ring ago: of a split ring only the index is stored.
#[test]
fn a_ring_that_has_gone_round_costs_one_store_a_batch() {
    for (kind, stores) in KINDS.into_iter().zip([1, 4]) {
        let (mut ring, config) = ring_and_config(Regions::One, options(kind, true, true));
        let mut disk = Disk::new(Queue::new(config).unwrap(), vec![0; 12 * 4096]);
        let mut batch = || {
            for _ in 0..4 {
                let slot = ring.take_slot().unwrap();
                submit(&mut ring, slot, DriverOp::Read, Data::Whole(512));
            }
            disk.work();
            let before = disk.queue.stores();
            disk.answer_all();
            while let Some(done) = ring.complete().unwrap() {
                ring.release(done.slot);
            }
            disk.queue.stores() - before
        };
        let counts: Vec<_> = (0..12).map(|_| batch()).collect();
        assert_eq!(counts[4..], [stores; 8], "{kind:?}");
    }
}

#[test]
fn the_latest_free_slot_is_taken_first_where_linux_is_imitated() {
    for kind in KINDS {
        let options = RingOptions { reuse: Reuse::AsLinux, ..options(kind, true, true) };
        let (mut ring, config) = ring_and_config(Regions::One, options);
        let mut disk = Disk::new(Queue::new(config).unwrap(), vec![0; 12 * 4096]);
        let slots: Vec<_> = (0..3).map(|_| ring.take_slot().unwrap()).collect();
        for slot in slots {
            submit(&mut ring, slot, DriverOp::Read, Data::Whole(4096));
        }
        disk.work();
        [1, 0, 0].into_iter().for_each(|at| disk.answer(at));
        disk.queue.publish();
        let mut back = Vec::new();
        while let Some(done) = ring.complete().unwrap() {
            back.push(done.slot.index());
            ring.release(done.slot);
        }
        let next: Vec<_> = (0..3).map(|_| ring.take_slot().unwrap().index()).collect();
        back.reverse();
        assert_eq!(next, back);
    }
}
