//! The rig for tests of a disk's queues: a stand-in guest and its disk on one thread.

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use sidecore::{Progress, Services};
use virtio::driver::{
    Backing, Data, DirtyPages, DriverCompletion, DriverGuest, DriverOp as GuestOp, DriverRequest,
    GuestPlan, Regions, RequestSlot, RequestStatus as GuestStatus, RingDriver, RingOptions,
    RingShape,
};
use virtio::{InflightRegion, Logging, Memory, Queue, RingKind};

use super::*;
use crate::unguarded::{Unguarded, attachment};
use volume::{OpenArguments, Volume};

/// Bytes of the volumes here.
pub(super) const SIZE: u64 = 8 << 20;

/// A guest and its disk on one thread.
pub(super) struct Rig {
    pub(super) disk: DiskQueues,
    pub(super) core: Arc<DiskCore>,
    pub(super) attachment: Arc<Attachment>,
    pub(super) guest: DriverGuest,
    pub(super) rings: Vec<RingDriver>,
    pub(super) memory: Arc<Memory>,
    pub(super) inflight: InflightRegion,
    pub(super) now_ns: u64,
    /// Where the disk marks what it writes.
    pub(super) log: Option<DirtyPages>,
    plan: RigPlan,
    /// Stores that each queue makes before nothing reaches shared memory any more.
    stores_max: u64,
}

/// How a rig is put together.
#[derive(Clone, Copy, Debug)]
pub(super) struct RigPlan {
    pub(super) queues: u16,
    pub(super) depth: u16,
    pub(super) kind: RingKind,
    pub(super) shape: RingShape,
    pub(super) event_idx: bool,
    pub(super) indirect: bool,
    /// The guest kicks; else its rings have to be polled.
    pub(super) kick: bool,
    pub(super) durable: bool,
}

impl Default for RigPlan {
    fn default() -> Self {
        let shape =
            RingShape { transfer_bytes_max: 4 << 20, segments_max: 64, size: 64, slots: 32 };
        Self {
            queues: 1,
            depth: 64,
            kind: RingKind::Split,
            shape,
            event_idx: true,
            indirect: true,
            kick: true,
            durable: false,
        }
    }
}

impl Rig {
    pub(super) fn new(volume: &dyn Volume, plan: RigPlan) -> Self {
        Self::stopping(volume, plan, u64::MAX)
    }

    /// As `new`, and each queue stops after so many stores to shared memory.
    pub(super) fn stopping(volume: &dyn Volume, plan: RigPlan, stores_max: u64) -> Self {
        let guest = DriverGuest::new(&GuestPlan {
            queues: plan.queues,
            shape: plan.shape,
            backing: Backing::Memfd,
            regions: Regions::Adjoining(3),
        })
        .expect("guest memory");
        let memory = Arc::new(guest.memory().device_memory().expect("the same memory"));
        let RigPlan { event_idx, indirect, kind, .. } = plan;
        let event = || Arc::new(eventfd(0, EventfdFlags::NONBLOCK).expect("a descriptor"));
        let options = || RingOptions {
            kind,
            event_idx,
            indirect,
            kick: plan.kick.then(event),
            ..RingOptions::default()
        };
        let rings = (0..plan.queues).map(|index| guest.ring(index, options())).collect();
        let shape = (kind, plan.queues, plan.shape.size);
        let (file, len) = InflightRegion::create(shape).expect("a memfd");
        let inflight = InflightRegion::map(file.as_fd(), 0, len, shape);
        let core = DiskCore::new("rig", plan.queues);
        let attachment = attachment();
        let disk = open(volume, plan, &core, (&attachment, 0));
        let mut rig = Self {
            disk,
            core,
            attachment,
            guest,
            rings,
            memory,
            inflight: inflight.expect("fresh"),
            now_ns: 1,
            log: None,
            plan,
            stores_max,
        };
        (0..plan.queues).for_each(|index| rig.start(index));
        rig
    }

    /// The disk's process is gone; another serves the same guest.
    pub(super) fn succeed(&mut self, volume: &dyn Volume, stores_max: u64) {
        self.stores_max = stores_max;
        self.disk = open(volume, self.plan, &self.core, (&self.attachment, 0));
        (0..self.plan.queues).for_each(|index| self.start(index));
    }

    /// The disk's share on another sidecore, without queues.
    pub(super) fn share(&self, volume: &dyn Volume, index: u16) -> DiskQueues {
        open(volume, self.plan, &self.core, (&self.attachment, index))
    }

    /// A log for queues that are started from now on, and for those that run.
    pub(super) fn start_log(&mut self) {
        self.log = Some(DirtyPages::new([&**self.guest.memory()]).expect("a memfd"));
        self.tell_log();
    }

    pub(super) fn stop_log(&mut self) {
        self.log = None;
        self.tell_log();
    }

    fn tell_log(&mut self) {
        for index in 0..self.rings.len() {
            let logging = self.logging(index);
            if let Some(queue) = self.disk.queue(index) {
                queue.set_logging(logging);
            }
        }
    }

    fn logging(&self, index: usize) -> Logging {
        let log = self.log.as_ref().map(|log| log.device_log().expect("a mapping"));
        let memory = self.guest.memory();
        let used = self.rings[index].layout().guest_addresses(memory).used;
        Logging { log, buffers: true, ring: Some(used) }
    }

    /// All bytes of the guest.
    pub(super) fn snapshot(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.guest.memory().len()];
        self.guest.memory().read(0, &mut bytes);
        bytes
    }

    /// The first queue.
    pub(super) fn queue(&mut self) -> &mut Queue {
        self.disk.queue(0).expect("it is served")
    }

    /// Starts a queue where it stands, with its part of the inflight region.
    pub(super) fn start(&mut self, index: u16) {
        let ring = &self.rings[usize::from(index)];
        let mut config = ring.queue_config(Arc::clone(&self.memory)).expect("a descriptor");
        config.inflight = self.inflight.queue(usize::from(index));
        config.logging = self.logging(usize::from(index));
        let queue = Queue::new_stopping(config, self.stores_max);
        self.disk.add_queue(queue.expect("a good ring"));
    }

    pub(super) fn round(&mut self) -> Progress {
        self.now_ns += 1_000;
        self.disk.poll(self.now_ns)
    }

    /// Stages and publishes a request on the first queue.
    pub(super) fn submit(&mut self, op: GuestOp, sector: u64, data: Data<'_>) -> RequestSlot {
        self.submit_to(0, op, sector, data)
    }

    pub(super) fn submit_to(
        &mut self,
        queue: usize,
        op: GuestOp,
        sector: u64,
        data: Data<'_>,
    ) -> RequestSlot {
        let ring = &mut self.rings[queue];
        let slot = ring.take_slot().expect("a free slot");
        self.resubmit(queue, slot, op, sector, data);
        slot
    }

    /// The same on a slot that the test holds and has filled.
    pub(super) fn resubmit(
        &mut self,
        queue: usize,
        slot: RequestSlot,
        op: GuestOp,
        sector: u64,
        data: Data<'_>,
    ) {
        self.resubmit_as(queue, slot, op, sector, data, slot.index() as u64);
    }

    /// The same with a token.
    pub(super) fn resubmit_as(
        &mut self,
        queue: usize,
        slot: RequestSlot,
        op: GuestOp,
        sector: u64,
        data: Data<'_>,
        token: u64,
    ) {
        let ring = &mut self.rings[queue];
        ring.submit(&DriverRequest { slot, op, sector, data, token }).expect("room in the ring");
        ring.publish();
    }

    /// The completions on a queue; slots are released.
    pub(super) fn completions(&mut self, queue: usize) -> Vec<DriverCompletion> {
        let ring = &mut self.rings[queue];
        let completions: Vec<_> =
            std::iter::from_fn(|| ring.complete().expect("no breach")).collect();
        completions.iter().for_each(|completion| ring.release(completion.slot));
        completions
    }

    /// Runs until one request of the first queue has ended; its slot stays taken.
    pub(super) fn finish(&mut self, slot: RequestSlot) -> GuestStatus {
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

fn open(
    volume: &dyn Volume,
    plan: RigPlan,
    core: &Arc<DiskCore>,
    (attachment, index): (&Arc<Attachment>, u16),
) -> DiskQueues {
    let open = OpenArguments { services: &Services::new(), depth: plan.depth };
    let volume = Unguarded(volume);
    let attached = Attached::open(&volume, attachment, index, &open).expect("it opens");
    DiskQueues::new(core.clone(), attached, plan.durable)
}
