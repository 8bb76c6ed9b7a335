//! Nics without sockets and threads: stand-in guests, their queues, a bridge.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use net::ether::ETHER_BYTES;
use net::nic::{NicPort, NicQueues};
use net::{Bridge, NicCore, PortOptions};
use virtio::driver::{
    Backing, FrameRing, Guest, GuestPlan, Part, Regions, RingOptions, RingShape, Slot,
};
use virtio::{Memory, Queue, RingKind};

/// How long the header before a frame is.
pub(crate) const HEADER: usize = 12;

/// What is agreed on, and how large things are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) kind: RingKind,
    pub(crate) event_idx: bool,
    pub(crate) features: u64,
    pub(crate) size: u16,
    /// Bytes of a buffer for frames that come in.
    pub(crate) buffer_bytes: u32,
    pub(crate) mtu: u16,
}

/// A guest with a nic of one pair.
#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) core: Arc<NicCore>,
    pub(crate) queues: Rc<RefCell<NicQueues>>,
    pub(crate) memory: Arc<Memory>,
    pub(crate) receive: FrameRing,
    pub(crate) send: FrameRing,
    pub(crate) plan: Plan,
    /// Buffers that came back with nothing in them.
    pub(crate) empty: usize,
}

impl Side {
    pub(crate) fn new(bridge: &mut Bridge, plan: Plan, options: PortOptions) -> Self {
        let shape = RingShape {
            size: plan.size,
            slots: plan.size,
            transfer_bytes_max: 68 << 10,
            segments_max: 100,
        };
        let guest_plan =
            GuestPlan { queues: 2, shape, backing: Backing::Memfd, regions: Regions::One };
        let guest = Guest::new(&guest_plan).unwrap();
        let memory = Arc::new(guest.memory().device_memory().unwrap());
        let ring = |index: usize, inward| {
            let options = RingOptions {
                kind: plan.kind,
                event_idx: plan.event_idx,
                indirect: true,
                ..RingOptions::default()
            };
            FrameRing::new(Arc::clone(guest.memory()), &guest.queues()[index], options, inward)
        };
        let (receive, send) = (ring(0, true), ring(1, false));
        let core = NicCore::new("nic");
        let queues = Rc::new(RefCell::new(NicQueues::new(Arc::clone(&core), 2, plan.mtu)));
        let port = Box::new(NicPort::new(Rc::clone(&queues)));
        bridge.add(options, port, Arc::clone(core.counters())).unwrap();
        let mut side = Self { core, queues, memory, receive, send, plan, empty: 0 };
        side.start();
        side
    }

    /// Both queues start.
    pub(crate) fn start(&mut self) {
        for ring in [&self.receive, &self.send] {
            let mut config = ring.queue_config(Arc::clone(&self.memory)).unwrap();
            if config.base == 0 {
                config.base = self.plan.kind.base_fresh();
            }
            let queue = Queue::new(config).unwrap();
            self.queues.borrow_mut().add_queue(queue, self.plan.features);
        }
    }

    /// Gives the nic all the buffers that the ring has room for.
    pub(crate) fn post_buffers(&mut self) {
        while let Some(slot) = self.receive.take_slot() {
            let part = Part { offset: 0, len: self.plan.buffer_bytes };
            if !self.receive.post(slot, &[part], false) {
                self.receive.release(slot);
                break;
            }
        }
        self.receive.publish();
    }

    /// Stages a frame in pieces of at most so many bytes; `false` when there is no room.
    pub(crate) fn stage(&mut self, header: [u8; HEADER], frame: &[u8], piece_bytes: u32) -> bool {
        let Some(slot) = self.send.take_slot() else { return false };
        self.send.write(slot, 0, &header);
        self.send.write(slot, HEADER as u32, frame);
        let total = (HEADER + frame.len()) as u32;
        let mut parts = Vec::new();
        let mut at = 0;
        while at < total {
            let len = piece_bytes.min(total - at);
            parts.push(Part { offset: at, len });
            at += len;
        }
        let fits = self.send.post(slot, &parts, parts.len() > 2);
        if !fits {
            self.send.release(slot);
        }
        fits
    }

    /// Stages a frame with nothing left to do, and shows it.
    pub(crate) fn say(&mut self, frame: &[u8]) {
        assert!(self.stage([0; HEADER], frame, 2000), "no room");
        self.send.publish();
    }

    /// Takes back what was sent; how many.
    pub(crate) fn reap(&mut self) -> usize {
        let mut count = 0;
        while let Some((slot, written)) = self.send.complete().unwrap() {
            assert_eq!(written, 0);
            self.send.release(slot);
            count += 1;
        }
        count
    }

    /// The next frame that came, with its header. Its buffers are posted again.
    pub(crate) fn hear(&mut self) -> Option<([u8; HEADER], Vec<u8>)> {
        let (mut slot, mut written) = self.receive.complete().unwrap()?;
        while written == 0 {
            self.empty += 1;
            self.receive.release(slot);
            self.post_buffers();
            (slot, written) = self.receive.complete().unwrap()?;
        }
        let mut bytes = self.bytes(slot, written);
        let header: [u8; HEADER] = *bytes.first_chunk().expect("a header");
        for _ in 1..u16::from_le_bytes([header[10], header[11]]) {
            let (slot, written) = self.receive.complete().unwrap().expect("another buffer");
            bytes.extend(self.bytes(slot, written));
        }
        self.post_buffers();
        let frame = bytes.split_off(HEADER);
        assert!(frame.len() >= ETHER_BYTES);
        Some((header, frame))
    }

    fn bytes(&mut self, slot: Slot, written: u32) -> Vec<u8> {
        let mut bytes = vec![0; written as usize];
        self.receive.read(slot, 0, &mut bytes);
        self.receive.release(slot);
        bytes
    }

    /// All frames that came, without their headers.
    pub(crate) fn hear_all(&mut self) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| self.hear()).map(|(_, frame)| frame).collect()
    }
}
