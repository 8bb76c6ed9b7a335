//! A nic whose guest writes anything into both rings, into the headers before its frames, and into
//! the frames. Two honest guests are in the same network.
//!
//! A run is of one of two kinds. In a *wild* run the rings are written descriptor by descriptor,
//! and the frames that the nic reads from them are noted. In the other kind the chains are sound,
//! and their content is not: the model decides the fate of each frame, and every drop has the
//! model's reason. In both kinds a guest receives only frames that were sent, or their segments, in
//! order.

mod model;
mod packet;

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use ::net::maker::FrameMaker;
use ::net::nic::{MTU, MTU_MAX, NicOptions, NicPort, NicQueues, feature, features};
use ::net::stand_in::{HEADER, NicPlan, StandInGuest};
use ::net::{Bridge, Burst, Chosen, Cut, Mac, NicCore, Offers, Port, PortOptions, Reason};
use arbitrary::{Arbitrary, Unstructured};
use sidecore::{Progress, Wake};
use virtio::{Queue, RingKind, feature as ring_feature};

use self::model::{HEADER_BYTES, NicSent};
use self::packet::{NicPacket, PATTERN_AT, pattern};
use crate::image::{Image, ImageShape, ImageStore, NEXT, PackedStore, TABLES_AT, WRITE};
use crate::steps::steps;

const STEPS_MAX: usize = 300;

/// The limit of rounds until all work is done: a burst takes at least one chain.
const ROUNDS_MAX: usize = 200;

/// The time between two rounds: enough that floods are never limited.
const ROUND_NS: u64 = 10_000_000;

/// The place of the hostile guest's frames to send, and its end.
const FRAMES_AT: u64 = TABLES_AT;
const FRAMES_END: u64 = TABLES_AT + (48 << 10);

/// The place of the hostile guest's buffers.
const BUFFERS_AT: u64 = TABLES_AT + 0x1000;

const HOSTILE: Mac = mac(1);
const EAR: Mac = mac(2);
const HONEST: Mac = mac(3);

const fn mac(last: u8) -> Mac {
    Mac([0x52, 0x54, 0, 0, 0, last])
}

/// The features, ring kinds and sizes of a run.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct NicSetup {
    is_packed: bool,
    is_wild: bool,
    shapes: [ImageShape; 2],
    features: Features,
    ear: Features,
    ear_buffer: u8,
    large_mtu: bool,
}

impl NicSetup {
    fn mtu(&self) -> u16 {
        if self.large_mtu { MTU_MAX } else { MTU }
    }
}

/// Some features of a nic, most often all.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct Features {
    are_some: bool,
    which: u64,
}

impl Features {
    fn bits(self) -> u64 {
        let all = features(&NicOptions::new("nic", HOSTILE)) | ring_feature::VERSION_1;
        if self.are_some { all & self.which } else { all }
    }

    /// The offloads that the driver may ask for, and the offloads that it accepts.
    fn offers(self) -> (Offers, Offers) {
        let has = |bit| self.bits() & bit != 0;
        let from = Offers {
            checksum: has(feature::CSUM),
            tcp4: has(feature::HOST_TSO4),
            tcp6: has(feature::HOST_TSO6),
            ecn: has(feature::HOST_ECN),
            udp4: has(feature::HOST_USO),
            udp6: has(feature::HOST_USO),
        };
        let to = Offers {
            checksum: has(feature::GUEST_CSUM),
            tcp4: has(feature::GUEST_TSO4),
            tcp6: has(feature::GUEST_TSO6),
            ecn: has(feature::GUEST_ECN),
            udp4: has(feature::GUEST_USO4),
            udp6: has(feature::GUEST_USO6),
        };
        (from, to)
    }

    fn header_bytes(self) -> usize {
        let longer = ring_feature::VERSION_1 | feature::MRG_RXBUF;
        if self.bits() & longer == 0 { HEADER_BYTES } else { HEADER }
    }
}

#[derive(Arbitrary, Debug)]
enum NicStep {
    /// In a wild run, a write into one of the rings, for the ring's kind.
    Store(bool, ImageStore, PackedStore),
    Send(NicPacket),
    /// A sound buffer for received frames.
    Buffer(u16),
    /// An honest guest sends to the other honest guest, or to the hostile guest.
    Say {
        to_hostile: bool,
        bytes: u16,
    },
    Poll,
    Remap(bool),
    /// The front end stops both rings and starts them again.
    Restart,
}

/// Notes what a port received.
#[derive(Debug)]
struct PortRecorder {
    port: NicPort,
    seen: Rc<RefCell<Vec<NicSent>>>,
}

impl Port for PortRecorder {
    fn receive(&mut self, burst: &mut Burst, now_ns: u64) -> Progress {
        let progress = self.port.receive(burst, now_ns);
        for frame in burst.frames() {
            let offload = &frame.offload;
            let needs = offload.needs_checksum.then_some(offload);
            let is_cut = offload.cut != Cut::None;
            self.seen.borrow_mut().push(NicSent {
                bytes: burst.to_vec(frame),
                vlan: frame.vlan(),
                checksum: needs.map(|it| (it.checksum_start.into(), it.checksum_offset.into())),
                cut: is_cut.then_some((offload.cut, offload.has_ecn, offload.segment_bytes.into())),
            });
        }
        progress
    }

    fn release(&mut self, burst: &mut Burst) {
        self.port.release(burst);
    }

    fn transmit(&mut self, burst: &Burst, chosen: &[Chosen], now_ns: u64) {
        self.port.transmit(burst, chosen, now_ns);
    }

    fn flush(&mut self) {
        self.port.flush();
    }

    fn arm(&mut self, wake: &mut Wake) -> Progress {
        self.port.arm(wake)
    }

    fn disarm(&mut self) {
        self.port.disarm();
    }
}

struct NicWorld {
    setup: NicSetup,
    bridge: Bridge,
    now_ns: u64,
    /// The hostile guest's rings, for receiving and for sending.
    images: [Image; 2],
    queues: Rc<RefCell<NicQueues>>,
    core: Arc<NicCore>,
    seen: Rc<RefCell<Vec<NicSent>>>,
    ear: StandInGuest,
    honest: StandInGuest,
    /// The place of the next frame, and its first descriptor.
    frame_at: u64,
    descriptor: u16,
    /// Buffers that sound chains have posted. Each is used once, since returned buffers are not
    /// tracked.
    buffers: u16,
    /// The model's results for the frames that were sent since the last round.
    sent: VecDeque<Result<NicSent, Reason>>,
    /// The model's drops by reason, over all rounds.
    drops: BTreeMap<Reason, u64>,
    /// Frames that the ports of the ear and of the hostile guest were handed.
    to_ear: u64,
    to_hostile: u64,
}

/// Runs the steps that `input` describes.
///
/// # Panics
/// When a guest receives a frame that was not sent, a frame is neither delivered nor counted, or an
/// honest guest is held up.
pub fn run(input: &[u8]) {
    let mut input = Unstructured::new(input);
    let Ok(mut setup) = NicSetup::arbitrary(&mut input) else { return };
    setup.shapes.iter_mut().for_each(|shape| shape.make_plain(!setup.is_wild));
    let Some(mut world) = NicWorld::new(setup) else { return };
    for step in steps(&mut input, STEPS_MAX) {
        world.step(step);
    }
    world.end();
}

impl NicWorld {
    /// `None` where a ring is so wrong that it is not started.
    fn new(setup: NicSetup) -> Option<Self> {
        let kind = if setup.is_packed { RingKind::Packed } else { RingKind::Split };
        let mut bridge = Bridge::new(5);
        let core = NicCore::new("hostile");
        let queues = NicQueues::new(Arc::clone(&core), 2, setup.mtu());
        let queues = Rc::new(RefCell::new(queues));
        let seen = Rc::<RefCell<Vec<NicSent>>>::default();
        let port = NicPort::new(Rc::clone(&queues));
        let port = Box::new(PortRecorder { port, seen: Rc::clone(&seen) });
        let counters = Arc::clone(core.counters());
        bridge.add(PortOptions::of_guest(HOSTILE), port, counters).expect("a place");
        let plan = NicPlan {
            kind,
            event_idx: true,
            features: setup.ear.bits(),
            size: 64,
            buffer_bytes: [64, 200, 1526, 4096, 66_000][usize::from(setup.ear_buffer) % 5],
            mtu: MTU_MAX,
        };
        let mut ear = StandInGuest::new(&mut bridge, plan, PortOptions::of_guest(EAR));
        ear.post_buffers();
        let plan = NicPlan { features: Features { are_some: false, which: 0 }.bits(), ..plan };
        let plan = NicPlan { buffer_bytes: 66_000, ..plan };
        let mut honest = StandInGuest::new(&mut bridge, plan, PortOptions::of_guest(HONEST));
        honest.post_buffers();
        let mut images = setup.shapes.map(|shape| Image::new(kind, shape));
        images[1].write(PATTERN_AT, &pattern());
        let mut world = Self {
            setup,
            bridge,
            now_ns: 1,
            images,
            queues,
            core,
            seen,
            ear,
            honest,
            frame_at: FRAMES_AT,
            descriptor: 0,
            sent: VecDeque::new(),
            buffers: 0,
            drops: BTreeMap::new(),
            to_ear: 0,
            to_hostile: 0,
        };
        let both = (0..2).all(|index| world.start(index, kind.base_fresh()));
        both.then_some(world)
    }

    fn start(&mut self, index: usize, base: u32) -> bool {
        let image = &self.images[index];
        let mut config = image.config(base);
        (config.index, config.in_order, config.reads_only) = (index, true, index == 1);
        match Queue::new(config) {
            Ok(queue) => {
                self.queues.borrow_mut().add_queue(queue, self.setup.features.bits());
                true
            }
            Err(error) => {
                assert!(self.setup.is_wild, "a sound ring was refused: {error}");
                false
            }
        }
    }

    fn step(&mut self, step: NicStep) {
        match step {
            NicStep::Store(inward, store, packed) if self.setup.is_wild => {
                let image = &mut self.images[usize::from(!inward)];
                match self.setup.is_packed {
                    false => image.store(store),
                    true => image.store_packed(packed),
                }
            }
            NicStep::Store(..) => {}
            NicStep::Send(packet) => self.send(&packet),
            NicStep::Buffer(bytes) => {
                let image = &mut self.images[0];
                if self.buffers < image.size {
                    let bytes = u32::from(bytes >> 3) + 1;
                    image.offer_chain(self.buffers, &[((BUFFERS_AT, bytes), WRITE)]);
                    self.buffers += 1;
                }
            }
            NicStep::Say { to_hostile, bytes } => self.say(to_hostile, usize::from(bytes) % 1458),
            NicStep::Poll => self.settle(),
            NicStep::Remap(inward) => {
                let index = usize::from(!inward);
                let memory = self.images[index].mapped_again();
                if let Some(queue) = self.queues.borrow_mut().queue(index) {
                    queue.set_memory(memory).expect("the ring is still there");
                }
            }
            NicStep::Restart => {
                self.settle();
                let bases = [0, 1].map(|index| self.queues.borrow_mut().remove_queue(index));
                self.core.mend();
                for (index, base) in bases.into_iter().enumerate() {
                    base.map(|base| self.start(index, base));
                }
            }
        }
    }

    /// A frame of the hostile guest, in a sound chain.
    fn send(&mut self, packet: &NicPacket) {
        let header_bytes = self.setup.features.header_bytes();
        let size = self.images[1].size;
        let made = packet.make(header_bytes, size);
        let room = FRAMES_END - self.frame_at;
        let descriptors = self.descriptor + made.pieces.len() as u16;
        if made.own.len() as u64 > room || descriptors > size {
            self.settle();
        }
        let image = &mut self.images[1];
        image.write(self.frame_at, &made.own);
        let pieces = made.pieces.iter().map(|piece| ((piece.addr(self.frame_at), piece.len), 0));
        let mut pieces: Vec<_> = pieces.collect();
        let last = pieces.len() - 1;
        pieces[..last].iter_mut().for_each(|(_, flags)| *flags = NEXT);
        image.offer_chain(self.descriptor % size, &pieces);
        self.frame_at += made.own.len() as u64;
        self.descriptor += pieces.len() as u16;
        let mtu = self.setup.mtu();
        let (offers, _) = self.setup.features.offers();
        if !self.setup.is_wild {
            self.sent.push_back(model::read(&made.chain, header_bytes, &offers, mtu.into()));
        }
    }

    /// Sends a frame of an honest guest, which arrives unchanged at another honest guest.
    fn say(&mut self, to_hostile: bool, bytes: usize) {
        self.settle();
        let to = if to_hostile { HOSTILE } else { EAR };
        let frame = FrameMaker::udp4().from(HONEST).to(to).payload(bytes).build();
        self.honest.say(&frame);
        let _ = self.round();
        assert_eq!(self.honest.reap(), 1);
        if to_hostile {
            self.to_hostile += 1;
            return;
        }
        self.to_ear += 1;
        let heard = self.ear.hear_all();
        let room = self.ear.plan.buffer_bytes as usize;
        let merges = self.setup.ear.bits() & feature::MRG_RXBUF != 0;
        let fits = merges || frame.len() + self.ear.plan.header_bytes() <= room;
        assert_eq!(heard.len(), usize::from(fits), "an honest guest is held up");
        assert!(!fits || heard[0] == frame);
    }

    fn round(&mut self) -> Progress {
        self.now_ns += ROUND_NS;
        self.bridge.poll(self.now_ns)
    }

    /// Runs rounds until no frame waits.
    fn settle(&mut self) {
        for round in 0.. {
            assert!(round < ROUNDS_MAX, "frames are left after the last round");
            let progress = self.round();
            let seen = std::mem::take(&mut *self.seen.borrow_mut());
            self.look(seen);
            if !progress.is_busy() {
                break;
            }
        }
        self.check_sent();
        (self.frame_at, self.descriptor) = (FRAMES_AT, 0);
        self.check_counters();
    }

    /// Checks that each frame that was seen in one round has reached the ports that it is for.
    fn look(&mut self, seen: Vec<NicSent>) {
        let (_, offers) = self.setup.ear.offers();
        let mut expected = VecDeque::new();
        for sent in seen {
            if !self.setup.is_wild {
                self.check_next(&sent);
            }
            match goes(&sent) {
                Ok(to_ear) if to_ear => {
                    self.to_ear += 1;
                    expected.extend(sent.delivered(&offers));
                }
                Ok(_) => {}
                Err(reason) => *self.drops.entry(reason).or_default() += 1,
            }
        }
        while let Some((header, bytes)) = self.ear.hear() {
            let header: [u8; HEADER_BYTES] = *header.first_chunk().expect("it is longer");
            let is_it = |it: &([u8; HEADER_BYTES], Vec<u8>)| *it == (header, bytes.clone());
            let at = expected.iter().position(is_it);
            let at =
                at.unwrap_or_else(|| panic!("a frame that was not sent: {header:?} {bytes:?}"));
            expected.drain(..=at);
        }
        while self.honest.hear().is_some() {}
    }

    /// Checks that this frame is the next one that the model lets through.
    fn check_next(&mut self, seen: &NicSent) {
        while let Some(sent) = self.sent.pop_front() {
            match sent {
                Err(reason) => *self.drops.entry(reason).or_default() += 1,
                Ok(sent) => return assert_eq!(*seen, sent, "not what was sent"),
            }
        }
        panic!("a frame that was not sent: {seen:?}");
    }

    /// Checks that each frame that was not seen was dropped.
    fn check_sent(&mut self) {
        for sent in self.sent.drain(..) {
            match sent {
                Err(reason) => *self.drops.entry(reason).or_default() += 1,
                Ok(sent) => panic!("neither taken nor dropped: {sent:?}"),
            }
        }
    }

    /// Checks that each frame was delivered, or counted by its reason.
    fn check_counters(&self) {
        let counters = self.core.counters();
        if !self.setup.is_wild {
            for reason in Reason::ALL {
                let expected = self.drops.get(reason).copied().unwrap_or_default();
                assert_eq!(counters.drops_in.get(*reason), expected, "{reason:?}");
            }
            assert!(!self.core.is_broken(), "{:?}", self.core.broken_why());
        }
        assert_eq!(counters.frames_out.get() + counters.drops_out.total(), self.to_hostile);
        let ear = self.ear.core.counters();
        assert_eq!(ear.frames_out.get() + ear.drops_out.total(), self.to_ear);
        let room = [Reason::NoRoom, Reason::BufferSmall].map(|it| ear.drops_out.get(it));
        assert_eq!(ear.drops_out.total(), room.iter().sum::<u64>());
    }

    fn end(mut self) {
        self.settle();
        for bytes in [0, 1000] {
            self.say(false, bytes);
        }
        self.settle();
        if self.core.is_broken() {
            assert!(self.core.broken_why().is_some_and(|why| !why.is_empty()));
            assert!(!self.core.failures().is_empty());
        }
    }
}

/// Whether a frame goes to the ear, if the network passes it on at all.
fn goes(sent: &NicSent) -> Result<bool, Reason> {
    let (to, from) = sent.addresses();
    if sent.vlan != 0 {
        return Err(Reason::VlanForeign);
    }
    if !from.is_station() {
        return Err(Reason::SourceInvalid);
    }
    if from != HOSTILE {
        return Err(Reason::SourceForeign);
    }
    match to {
        HOSTILE => Err(Reason::Returning),
        EAR => Ok(true),
        HONEST => Ok(false),
        Mac([0x01, 0x80, 0xc2, 0, 0, last]) if last < 16 => Err(Reason::Reserved),
        to if to.is_group() => Ok(true),
        _ => Err(Reason::Nowhere),
    }
}
