//! The split ring as the oracle of the packed one: the same requests go through both, step by
//! step, and both devices and both drivers must see the same.

use std::fmt::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use crate::chain::{Chain, ChainHead, Segment, gather, scatter};
use crate::driver::{
    Backing, Data, DriverGuest, DriverOp, DriverRequest, GuestPlan, Regions, RingDriver,
    RingOptions, RingShape,
};
use crate::inflight::InflightRegion;
use crate::memory::Memory;
use crate::queue::Queue;
use crate::ring::RingKind;
use random::Random;

const SEEDS: u64 = 60;
const STEPS: usize = 3_000;
const SHAPE: RingShape =
    RingShape { size: 16, slots: 12, transfer_bytes_max: 4096, segments_max: 6 };

/// The next step, on both sides.
#[derive(Clone, Copy, Debug)]
enum Step {
    Submit {
        op: DriverOp,
        sector: u64,
        len: u32,
        piece_bytes: u32,
        indirect: bool,
    },
    ShowDevice,
    Take,
    Answer {
        which: u64,
        status: u8,
    },
    ShowDriver,
    Complete,
    /// The device's process dies, and another goes on.
    Restart,
    /// The front end stops the queue and starts it where it stopped.
    Stop,
}

fn roll(dice: &mut Random) -> Step {
    let op =
        [DriverOp::Read, DriverOp::Write, DriverOp::Flush, DriverOp::GetId][dice.below(4) as usize];
    let len = if op == DriverOp::GetId { 20 } else { 512 * (1 + dice.below(8) as u32) };
    match dice.below(100) {
        0..25 => Step::Submit {
            op,
            sector: dice.below(1 << 40),
            len,
            // At most six pieces.
            piece_bytes: len.div_ceil(6) + dice.below(1000) as u32,
            indirect: dice.one_in(2),
        },
        25..40 => Step::ShowDevice,
        40..60 => Step::Take,
        60..76 => Step::Answer { which: dice.draw(), status: dice.below(3) as u8 },
        76..86 => Step::ShowDriver,
        86..98 => Step::Complete,
        98 => Step::Restart,
        _ => Step::Stop,
    }
}

/// A guest, its driver and its device.
struct Side {
    ring: RingDriver,
    kind: RingKind,
    memory: Arc<Memory>,
    region: (OwnedFd, u64),
    queue: Queue,
    chain: Chain,
    /// A chain that was taken: its answer's place, and its length.
    held: Vec<(ChainHead, Vec<Segment>, u32)>,
    token: u64,
}

impl Side {
    fn new(kind: RingKind, event_idx: bool) -> Self {
        let plan =
            GuestPlan { queues: 1, shape: SHAPE, backing: Backing::Memfd, regions: Regions::One };
        let guest = DriverGuest::new(&plan).unwrap();
        let ring =
            guest.ring(0, RingOptions { kind, event_idx, indirect: true, ..Default::default() });
        let memory = Arc::new(guest.memory().device_memory().unwrap());
        let region = InflightRegion::create((kind, 1, SHAPE.size)).unwrap();
        let queue = start(&ring, &memory, &region, kind, kind.base_fresh());
        let (chain, held) = (Chain::new(), Vec::new());
        Self { ring, kind, memory, region, queue, chain, held, token: 0 }
    }

    /// Does it, and says what was seen.
    fn step(&mut self, step: Step) -> String {
        let mut seen = String::new();
        let _ = match step {
            Step::Submit { op, sector, len, piece_bytes, indirect } => {
                let Some(slot) = self.ring.take_slot() else { return "no slot".to_owned() };
                self.ring.set_indirect(indirect);
                let data =
                    if op == DriverOp::Flush { Data::None } else { Data::Cut { len, piece_bytes } };
                self.token += 1;
                let request = DriverRequest { slot, op, sector, data, token: self.token };
                let submitted = self.ring.submit(&request);
                if submitted.is_err() {
                    self.ring.release(slot);
                }
                write!(seen, "{slot:?} {submitted:?}")
            }
            Step::ShowDevice => {
                self.ring.publish();
                Ok(())
            }
            Step::Take => self.take(&mut seen),
            Step::Answer { which, status } if !self.held.is_empty() => {
                let at = which as usize % self.held.len();
                let (head, room, len) = self.held.remove(at);
                // SAFETY: the chain is outstanding.
                let status_at = unsafe { scatter(&room, len as usize - 1, &[status]) };
                assert_eq!(status_at, 1);
                self.queue.put(head, if status == 0 { len } else { 1 });
                Ok(())
            }
            Step::Answer { .. } => Ok(()),
            Step::ShowDriver => {
                self.queue.publish();
                Ok(())
            }
            Step::Complete => {
                let done = self.ring.complete().unwrap();
                done.iter().for_each(|done| self.ring.release(done.slot));
                write!(seen, "{done:?}")
            }
            Step::Restart => {
                self.held.clear();
                let base = self.kind.base_fresh();
                self.queue = start(&self.ring, &self.memory, &self.region, self.kind, base);
                write!(seen, "arms {} resumes {}", self.queue.arm(), self.queue.resumes())
            }
            Step::Stop => {
                self.held.clear();
                let base = self.queue.base();
                self.queue = start(&self.ring, &self.memory, &self.region, self.kind, base);
                assert_eq!(self.queue.base(), base);
                write!(seen, "resumes {}", self.queue.resumes())
            }
        };
        let counts =
            (self.ring.outstanding(), self.ring.held_by_device(), self.queue.outstanding());
        write!(seen, " {counts:?}").unwrap();
        seen
    }

    fn take(&mut self, seen: &mut String) -> std::fmt::Result {
        let Some(head) = self.queue.take(&mut self.chain).unwrap() else {
            return write!(seen, "nothing");
        };
        let mut header = [0; 16];
        // SAFETY: the chain was just taken.
        assert_eq!(unsafe { gather(&self.chain.readable, 0, &mut header) }, 16);
        let base = self.memory.regions()[0].mapping().start().as_ptr().addr();
        let places = |segments: &[Segment]| -> Vec<_> {
            segments.iter().map(|piece| (piece.addr.addr() - base, piece.len)).collect()
        };
        let (readable, writable) = (places(&self.chain.readable), places(&self.chain.writable));
        let len = self.chain.writable_bytes();
        self.held.push((head, self.chain.writable.clone(), len));
        write!(seen, "{header:?} {readable:?} {writable:?}")
    }
}

fn start(
    ring: &RingDriver,
    memory: &Arc<Memory>,
    region: &(OwnedFd, u64),
    kind: RingKind,
    base: u32,
) -> Queue {
    let shape = (kind, 1, SHAPE.size);
    let mapped = InflightRegion::map(region.0.as_fd(), 0, region.1, shape).unwrap();
    let mut config = ring.queue_config(Arc::clone(memory)).unwrap();
    (config.base, config.inflight) = (base, mapped.queue(0));
    Queue::new(config).unwrap()
}

#[test]
fn both_rings_show_the_same_to_device_and_driver() {
    let (mut completed, mut redone) = (0, 0);
    for seed in 0..SEEDS {
        let mut dice = Random::new(seed);
        let event_idx = dice.one_in(2);
        let mut split = Side::new(RingKind::Split, event_idx);
        let mut packed = Side::new(RingKind::Packed, event_idx);
        for count in 0..STEPS {
            let step = roll(&mut dice);
            let wanted = split.step(step);
            assert_eq!(packed.step(step), wanted, "seed {seed}, step {count}: {step:?}");
            redone += u64::from(packed.queue.counters().redone > 0 && matches!(step, Step::Take));
        }
        completed += packed.ring.counters().completed;
    }
    println!("{completed} requests, {redone} takes in lives that began with a death");
    assert!(completed > 5_000 && redone > 1_000, "the workload shrank: {completed}, {redone}");
}
