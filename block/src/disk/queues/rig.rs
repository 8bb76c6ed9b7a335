//! What the tests of a disk's queues are made of: a stand-in guest and its disk on one thread.

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use sidecore::{Progress, Services};
use virtio::driver::{
    Backing, Completion, Data, Guest, GuestPlan, Op as GuestOp, Regions, Request, RingDriver,
    RingOptions, RingShape, Slot, Status as GuestStatus,
};
use virtio::{InflightRegion, Memory, Queue};

use super::*;
use crate::contract::attachment;

/// Bytes of the volumes here.
pub(super) const SIZE: u64 = 8 << 20;

/// A guest and its disk on one thread.
pub(super) struct Rig {
    pub(super) disk: DiskQueues,
    pub(super) core: Arc<DiskCore>,
    pub(super) attachment: Arc<Attachment>,
    pub(super) guest: Guest,
    pub(super) rings: Vec<RingDriver>,
    pub(super) memory: Arc<Memory>,
    pub(super) inflight: InflightRegion,
    pub(super) now_ns: u64,
}

/// How a rig is put together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) queues: u16,
    pub(super) depth: u16,
    pub(super) shape: RingShape,
    pub(super) event_idx: bool,
    pub(super) indirect: bool,
    /// The guest kicks; else its rings have to be polled.
    pub(super) kick: bool,
    pub(super) durable: bool,
}

impl Default for Plan {
    fn default() -> Self {
        let shape =
            RingShape { transfer_bytes_max: 4 << 20, segments_max: 64, size: 64, slots: 32 };
        Self {
            queues: 1,
            depth: 64,
            shape,
            event_idx: true,
            indirect: true,
            kick: true,
            durable: false,
        }
    }
}

impl Rig {
    pub(super) fn new(volume: &dyn Volume, plan: Plan) -> Self {
        let guest = Guest::new(&GuestPlan {
            queues: plan.queues,
            shape: plan.shape,
            backing: Backing::Memfd,
            regions: Regions::Adjoining(3),
        })
        .expect("guest memory");
        let memory = Arc::new(guest.memory().device_memory().expect("the same memory"));
        let (event_idx, indirect) = (plan.event_idx, plan.indirect);
        let event = || Arc::new(eventfd(0, EventfdFlags::NONBLOCK).expect("a descriptor"));
        let options =
            || RingOptions { event_idx, indirect, kick: plan.kick.then(event), call: None };
        let rings = (0..plan.queues).map(|index| guest.ring(index, options())).collect();
        let (file, len) = InflightRegion::create(plan.queues, plan.shape.size).expect("a memfd");
        let inflight = InflightRegion::map(file.as_fd(), 0, len, plan.queues, plan.shape.size);
        let core = DiskCore::new("rig", plan.queues);
        let attachment = attachment();
        let services = Services::new();
        let open =
            Open { services: &services, attachment: &attachment, index: 0, depth: plan.depth };
        let disk = DiskQueues::new(core.clone(), volume, &open, plan.durable).expect("it opens");
        let inflight = inflight.expect("fresh");
        let mut rig = Self { disk, core, attachment, guest, rings, memory, inflight, now_ns: 1 };
        (0..plan.queues).for_each(|index| rig.start(index));
        rig
    }

    /// Starts a queue where it stands, with its part of the inflight region.
    pub(super) fn start(&mut self, index: u16) {
        let ring = &self.rings[usize::from(index)];
        let mut config = ring.queue_config(Arc::clone(&self.memory)).expect("a descriptor");
        config.inflight = self.inflight.queue(usize::from(index));
        self.disk.add_queue(Queue::new(config).expect("a good ring"));
    }

    pub(super) fn round(&mut self) -> Progress {
        self.now_ns += 1_000;
        self.disk.poll(self.now_ns)
    }

    /// Stages and publishes a request on the first queue.
    pub(super) fn submit(&mut self, op: GuestOp, sector: u64, data: Data<'_>) -> Slot {
        self.submit_to(0, op, sector, data)
    }

    pub(super) fn submit_to(
        &mut self,
        queue: usize,
        op: GuestOp,
        sector: u64,
        data: Data<'_>,
    ) -> Slot {
        let ring = &mut self.rings[queue];
        let slot = ring.take_slot().expect("a free slot");
        self.resubmit(queue, slot, op, sector, data);
        slot
    }

    /// The same on a slot that the test holds and has filled.
    pub(super) fn resubmit(
        &mut self,
        queue: usize,
        slot: Slot,
        op: GuestOp,
        sector: u64,
        data: Data<'_>,
    ) {
        let ring = &mut self.rings[queue];
        let request = Request { slot, op, sector, data, token: slot.index() as u64 };
        ring.submit(&request).expect("room in the ring");
        ring.publish();
    }

    /// What has come back on a queue; slots are released.
    pub(super) fn completions(&mut self, queue: usize) -> Vec<Completion> {
        let ring = &mut self.rings[queue];
        let completions: Vec<_> =
            std::iter::from_fn(|| ring.complete().expect("no breach")).collect();
        completions.iter().for_each(|completion| ring.release(completion.slot));
        completions
    }

    /// Runs until one request of the first queue has ended; its slot stays taken.
    pub(super) fn finish(&mut self, slot: Slot) -> GuestStatus {
        for _ in 0..10_000 {
            let _ = self.round();
            if let Some(completion) = self.rings[0].complete().expect("no breach") {
                assert_eq!(completion.slot, slot);
                return completion.status;
            }
        }
        panic!("the request never ended");
    }

    /// A whole request on the first queue.
    pub(super) fn run(&mut self, op: GuestOp, sector: u64, data: Data<'_>) -> GuestStatus {
        let slot = self.submit(op, sector, data);
        let status = self.finish(slot);
        self.rings[0].release(slot);
        status
    }

    pub(super) fn digest(&self) -> u64 {
        self.guest.memory().digest()
    }
}
