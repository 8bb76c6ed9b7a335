//! A nic with two pairs of queues.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use net::maker::FrameMaker;
use net::nic::{NicCore, NicOptions, NicPort, NicQueues, features};
use net::stand_in::{HEADER, NicPlan, StandInGuest};
use net::{Bridge, Mac, PortOptions};
use virtio::driver::{
    Backing, DriverGuest, FramePart, FrameRing, GuestPlan, Regions, RingOptions, RingShape,
};
use virtio::{Queue, RingKind, feature as ring_feature};

const QUEUES: u16 = 4;
const FLOWS: u16 = 64;
const SIZE: u16 = 64;
const BUFFER_BYTES: u32 = 2048;

const ALONE: Mac = Mac([0x52, 0x54, 0, 0, 0, 1]);
const PAIRED: Mac = Mac([0x52, 0x54, 0, 0, 0, 2]);

fn all_features() -> u64 {
    features(&NicOptions::new("nic", ALONE)) | ring_feature::VERSION_1
}

/// A guest with two pairs, all of whose rings run.
struct Paired {
    queues: Rc<RefCell<NicQueues>>,
    receive: Vec<FrameRing>,
    send: Vec<FrameRing>,
}

impl Paired {
    fn new(bridge: &mut Bridge) -> Self {
        let shape =
            RingShape { size: SIZE, slots: SIZE, transfer_bytes_max: 4096, segments_max: 4 };
        let (backing, regions) = (Backing::Memfd, Regions::One);
        let plan = GuestPlan { queues: QUEUES, shape, backing, regions };
        let (guest, queues) = (DriverGuest::new(&plan).unwrap(), usize::from(QUEUES));
        let memory = Arc::new(guest.memory().device_memory().unwrap());
        let core = NicCore::new("paired");
        let nic = Rc::new(RefCell::new(NicQueues::new(Arc::clone(&core), queues, 1500)));
        let (mut receive, mut send) = (Vec::new(), Vec::new());
        for index in 0..queues {
            let options = RingOptions::default();
            let own = &guest.queues()[index];
            let ring = FrameRing::new(Arc::clone(guest.memory()), own, options, index % 2 == 0);
            let queue = Queue::new(ring.queue_config(Arc::clone(&memory)).unwrap()).unwrap();
            nic.borrow_mut().add_queue(queue, all_features());
            if index % 2 == 0 { &mut receive } else { &mut send }.push(ring);
        }
        let port = Box::new(NicPort::new(Rc::clone(&nic)));
        bridge.add(PortOptions::of_guest(PAIRED), port, Arc::clone(core.counters())).unwrap();
        receive.iter_mut().for_each(post);
        Self { queues: nic, receive, send }
    }

    /// The frames that came by each ring, without headers.
    fn hear(&mut self) -> Vec<Vec<Vec<u8>>> {
        let of_ring = |ring: &mut FrameRing| {
            let mut frames = Vec::new();
            while let Some((slot, written)) = ring.complete().unwrap() {
                let mut bytes = vec![0; written as usize];
                ring.read(slot, 0, &mut bytes);
                ring.release(slot);
                frames.push(bytes.split_off(HEADER));
            }
            post(ring);
            frames
        };
        self.receive.iter_mut().map(of_ring).collect()
    }

    fn say(&mut self, ring: usize, frame: &[u8]) {
        let ring = &mut self.send[ring];
        let slot = ring.take_slot().unwrap();
        ring.write(slot, 0, &[0; HEADER]);
        ring.write(slot, HEADER as u32, frame);
        assert!(ring.post(
            slot,
            &[FramePart { offset: 0, len: (HEADER + frame.len()) as u32 }],
            false
        ));
        ring.publish();
    }
}

/// Gives the nic all the buffers that a ring has room for.
fn post(ring: &mut FrameRing) {
    while let Some(slot) = ring.take_slot() {
        if !ring.post(slot, &[FramePart { offset: 0, len: BUFFER_BYTES }], false) {
            ring.release(slot);
            break;
        }
    }
    ring.publish();
}

fn alone(bridge: &mut Bridge) -> StandInGuest {
    let plan = NicPlan {
        kind: RingKind::Split,
        event_idx: true,
        features: all_features(),
        size: 256,
        buffer_bytes: BUFFER_BYTES,
        mtu: 1500,
    };
    let mut side = StandInGuest::new(bridge, plan, PortOptions::of_guest(ALONE));
    side.post_buffers();
    side
}

/// By ring the flows that came, each with how many frames; all of them in order.
fn flows(rings: Vec<Vec<Vec<u8>>>, next: &mut BTreeMap<u16, u8>) -> Vec<BTreeMap<u16, usize>> {
    let of_ring = |frames: Vec<Vec<u8>>| {
        let mut found = BTreeMap::new();
        for frame in frames {
            let port = u16::from_be_bytes([frame[34], frame[35]]);
            let expected = next.entry(port).or_default();
            assert_eq!(frame[frame.len() - 1], *expected, "flow {port} is out of order");
            *expected += 1;
            *found.entry(port).or_default() += 1;
        }
        found
    };
    rings.into_iter().map(of_ring).collect()
}

/// One frame of each flow, with this number at its end.
fn say_all(bridge: &mut Bridge, side: &mut StandInGuest, number: u8) {
    for port in 0..FLOWS {
        let mut frame = FrameMaker::udp4().to(PAIRED).from(ALONE).ports(port, 9).payload(9).build();
        *frame.last_mut().unwrap() = number;
        side.say(&frame);
        // A burst has less than all of them.
        if port % 32 == 31 {
            let _ = bridge.poll(u64::from(port));
            side.reap();
        }
    }
}

#[test]
fn flows_spread_over_the_pairs_and_each_stays_in_one() {
    let mut bridge = Bridge::new(5);
    let (mut side, mut paired) = (alone(&mut bridge), Paired::new(&mut bridge));
    let mut next = BTreeMap::new();
    let mut places: Option<Vec<Vec<u16>>> = None;
    for number in 0..10 {
        say_all(&mut bridge, &mut side, number);
        let found = flows(paired.hear(), &mut next);
        let ports: Vec<Vec<u16>> = found.iter().map(|it| it.keys().copied().collect()).collect();
        assert_eq!(ports.iter().map(Vec::len).sum::<usize>(), usize::from(FLOWS), "all came");
        assert!(ports.iter().all(|it| it.len() >= usize::from(FLOWS) / 4), "{ports:?}");
        assert_eq!(*places.get_or_insert_with(|| ports.clone()), ports, "each stays where it is");
    }
    // With one of them stopped all go by the other one.
    paired.queues.borrow_mut().remove_queue(0).unwrap();
    say_all(&mut bridge, &mut side, 10);
    let found = flows(paired.hear(), &mut next);
    assert_eq!((found[0].len(), found[1].len()), (0, usize::from(FLOWS)));
}

#[test]
fn frames_of_either_pair_arrive() {
    let mut bridge = Bridge::new(5);
    let (mut side, mut paired) = (alone(&mut bridge), Paired::new(&mut bridge));
    for round in 0..50 {
        let frames = [0, 1].map(|ring| {
            let maker = FrameMaker::udp4().to(ALONE).from(PAIRED).ports(ring, 9);
            maker.payload(60 + round).build()
        });
        frames.iter().enumerate().for_each(|(ring, frame)| paired.say(ring, frame));
        let _ = bridge.poll(round as u64);
        let mut heard = side.hear_all();
        heard.sort_unstable();
        assert_eq!(heard, frames, "round {round}");
        for ring in &mut paired.send {
            let (slot, _) = ring.complete().unwrap().expect("its chain comes back");
            ring.release(slot);
        }
    }
}
