//! A nic without socket and threads, and the stand-in for its guest: for tests.
//!
//! The nic is a port of a [`Bridge`] that its owner polls; the guest drives both rings of its one
//! pair by hand.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use virtio::driver::{
    Backing, DriverGuest, FramePart, FrameRing, GuestPlan, Regions, RequestSlot, RingOptions,
    RingShape,
};
use virtio::{Memory, Queue, RingKind};

use crate::bridge::Bridge;
use crate::nic::{NicCore, NicPort, NicQueues, header_bytes};
use crate::port::{Port, PortCounters};
use crate::switch::PortOptions;

/// The longest header before a frame, in bytes; see [`NicPlan::header_bytes`].
pub const HEADER: usize = 12;

/// Where the number of buffers is in it.
const AT_BUFFERS: usize = 10;

/// The agreed features, and the sizes.
#[derive(Clone, Copy, Debug)]
pub struct NicPlan {
    /// Of both rings.
    pub kind: RingKind,
    /// VIRTIO_RING_F_EVENT_IDX.
    pub event_idx: bool,
    /// The features that the driver accepted.
    pub features: u64,
    /// Descriptors in each ring.
    pub size: u16,
    /// Bytes of a buffer for frames that come in.
    pub buffer_bytes: u32,
    /// In bytes.
    pub mtu: u16,
}

impl NicPlan {
    /// How long the header before each frame is by what was agreed on.
    pub fn header_bytes(&self) -> usize {
        header_bytes(self.features)
    }
}

/// A guest with a nic of one pair.
#[derive(Debug)]
pub struct StandInGuest {
    /// The nic's counters.
    pub core: Arc<NicCore>,
    /// The nic's end of the rings.
    pub queues: Rc<RefCell<NicQueues>>,
    /// The guest's, as the nic has it.
    pub memory: Arc<Memory>,
    /// The ring by which frames come.
    pub receive: FrameRing,
    /// The ring by which frames go.
    pub send: FrameRing,
    /// The plan that it was made by.
    pub plan: NicPlan,
    /// Buffers that came back with nothing in them.
    pub empty: usize,
}

/// Puts something before a nic's port, which has these counters.
pub type Wrap<'a> = &'a dyn Fn(NicPort, &Arc<PortCounters>) -> Box<dyn Port>;

impl StandInGuest {
    /// A guest whose nic is a port of the bridge; its rings run, and no buffer is posted.
    ///
    /// # Panics
    /// As [`StandInGuest::with`].
    pub fn new(bridge: &mut Bridge, plan: NicPlan, options: PortOptions) -> Self {
        Self::with(bridge, plan, options, &|port, _| Box::new(port))
    }

    /// The same, with something before its port.
    ///
    /// # Panics
    /// When there is no memory, or the bridge does not take it.
    pub fn with(bridge: &mut Bridge, plan: NicPlan, options: PortOptions, wrap: Wrap<'_>) -> Self {
        let shape = RingShape {
            size: plan.size,
            slots: plan.size,
            transfer_bytes_max: 68 << 10,
            segments_max: 100,
        };
        let guest_plan =
            GuestPlan { queues: 2, shape, backing: Backing::Memfd, regions: Regions::One };
        let guest = DriverGuest::new(&guest_plan).expect("memory");
        let memory = Arc::new(guest.memory().device_memory().expect("memory"));
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
        let port = wrap(NicPort::new(Rc::clone(&queues)), core.counters());
        bridge.add(options, port, Arc::clone(core.counters())).expect("a place");
        let mut side = Self { core, queues, memory, receive, send, plan, empty: 0 };
        side.start();
        side
    }

    /// The nic of another process serves the guest from now on, as a port of this bridge. The rings
    /// go on where they are.
    ///
    /// # Panics
    /// When the bridge does not take it, or a ring of our own is refused.
    pub fn go_over(&mut self, bridge: &mut Bridge, options: PortOptions) {
        self.core = NicCore::new("nic");
        let queues = NicQueues::new(Arc::clone(&self.core), 2, self.plan.mtu);
        self.queues = Rc::new(RefCell::new(queues));
        let port = Box::new(NicPort::new(Rc::clone(&self.queues)));
        bridge.add(options, port, Arc::clone(self.core.counters())).expect("a place");
        self.start();
    }

    /// Both queues start.
    ///
    /// # Panics
    /// When a ring of our own is refused.
    pub fn start(&mut self) {
        for ring in [&self.receive, &self.send] {
            let mut config = ring.queue_config(Arc::clone(&self.memory)).expect("descriptors");
            // As for a real nic: the ring says where its chains go on.
            config.in_order = true;
            if config.base == 0 {
                config.base = self.plan.kind.base_fresh();
            }
            let queue = Queue::new(config).expect("a good ring");
            self.queues.borrow_mut().add_queue(queue, self.plan.features);
        }
    }

    /// Gives the nic all the buffers that the ring has room for.
    pub fn post_buffers(&mut self) {
        while let Some(slot) = self.receive.take_slot() {
            let part = FramePart { offset: 0, len: self.plan.buffer_bytes };
            if !self.receive.post(slot, &[part], false) {
                self.receive.release(slot);
                break;
            }
        }
        self.receive.publish();
    }

    /// Stages a frame in pieces of at most so many bytes; `false` when there is no room.
    pub fn stage(&mut self, header: [u8; HEADER], frame: &[u8], piece_bytes: u32) -> bool {
        let Some(slot) = self.send.take_slot() else { return false };
        let header = &header[..self.plan.header_bytes()];
        self.send.write(slot, 0, header);
        self.send.write(slot, header.len() as u32, frame);
        let total = (header.len() + frame.len()) as u32;
        let mut parts = Vec::new();
        let mut at = 0;
        while at < total {
            let len = piece_bytes.min(total - at);
            parts.push(FramePart { offset: at, len });
            at += len;
        }
        let fits = self.send.post(slot, &parts, parts.len() > 2);
        if !fits {
            self.send.release(slot);
        }
        fits
    }

    /// Stages a frame with nothing left to do, and shows it.
    ///
    /// # Panics
    /// When there is no room.
    pub fn say(&mut self, frame: &[u8]) {
        assert!(self.stage([0; HEADER], frame, 2000), "no room");
        self.send.publish();
    }

    /// Takes back what was sent; how many.
    ///
    /// # Panics
    /// When the nic breaks the rules.
    pub fn reap(&mut self) -> usize {
        let mut count = 0;
        while let Some((slot, written)) = self.send.complete().expect("an honest device") {
            assert_eq!(written, 0);
            self.send.release(slot);
            count += 1;
        }
        count
    }

    /// The next frame that came, with its header, which zeroes fill up. Its buffers are posted
    /// again.
    ///
    /// # Panics
    /// When the nic breaks the rules.
    pub fn hear(&mut self) -> Option<([u8; HEADER], Vec<u8>)> {
        let (mut slot, mut written) = self.next_buffer()?;
        while written == 0 {
            self.empty += 1;
            self.receive.release(slot);
            self.post_buffers();
            (slot, written) = self.next_buffer()?;
        }
        let mut bytes = self.bytes(slot, written);
        let header_bytes = self.plan.header_bytes();
        let mut buffers = 1;
        if header_bytes > AT_BUFFERS {
            buffers = u16::from_le_bytes([bytes[AT_BUFFERS], bytes[AT_BUFFERS + 1]]);
        }
        for _ in 1..buffers {
            let (slot, written) = self.next_buffer().expect("another buffer");
            bytes.extend(self.bytes(slot, written));
        }
        self.post_buffers();
        let frame = bytes.split_off(header_bytes);
        bytes.resize(HEADER, 0);
        Some((bytes.try_into().expect("that long"), frame))
    }

    fn next_buffer(&mut self) -> Option<(RequestSlot, u32)> {
        self.receive.complete().expect("an honest device")
    }

    fn bytes(&mut self, slot: RequestSlot, written: u32) -> Vec<u8> {
        let mut bytes = vec![0; written as usize];
        self.receive.read(slot, 0, &mut bytes);
        self.receive.release(slot);
        bytes
    }

    /// All frames that came, without their headers.
    ///
    /// # Panics
    /// When the nic breaks the rules.
    pub fn hear_all(&mut self) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| self.hear()).map(|(_, frame)| frame).collect()
    }
}
