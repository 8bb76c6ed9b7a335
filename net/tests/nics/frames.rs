//! Two guests and what passes between them, over rings as guests have them.

use net::maker::FrameMaker;
use net::nic::{NicOptions, feature, features};
use net::{Bridge, Mac, PortOptions, Reason, Stations, VlanSet, Vlans};

use virtio::driver::FramePart;
use virtio::{RingKind, feature as ring_feature};

use net::stand_in::{HEADER, NicPlan, StandInGuest};

const NONE: [u8; HEADER] = [0; HEADER];

fn mac(last: u8) -> Mac {
    Mac([0x52, 0x54, 0, 0, 0, last])
}

fn all_features() -> u64 {
    features(&NicOptions::new("nic", mac(1))) | ring_feature::VERSION_1
}

const PLAN: NicPlan = NicPlan {
    kind: RingKind::Split,
    event_idx: true,
    features: 0,
    size: 256,
    buffer_bytes: 1526,
    mtu: 1500,
};

fn plan() -> NicPlan {
    NicPlan { features: all_features(), ..PLAN }
}

fn guest(bridge: &mut Bridge, plan: NicPlan, last: u8) -> StandInGuest {
    let mut side = StandInGuest::new(bridge, plan, PortOptions::of_guest(mac(last)));
    side.post_buffers();
    side
}

fn pair(plan: NicPlan) -> (Bridge, StandInGuest, StandInGuest) {
    let mut bridge = Bridge::new(5);
    let (one, other) = (guest(&mut bridge, plan, 1), guest(&mut bridge, plan, 2));
    (bridge, one, other)
}

/// The header of a frame of TCP over IPv4 that must be cut into segments of so many bytes.
fn tso4(segment_bytes: u16) -> [u8; HEADER] {
    let mut header = NONE;
    (header[0], header[1]) = (1, 1);
    header[2..4].copy_from_slice(&54u16.to_le_bytes());
    header[4..6].copy_from_slice(&segment_bytes.to_le_bytes());
    header[6..8].copy_from_slice(&34u16.to_le_bytes());
    header[8..10].copy_from_slice(&16u16.to_le_bytes());
    header
}

fn dropped(side: &StandInGuest, reason: Reason) -> (u64, u64) {
    let counters = side.core.counters();
    (counters.drops_in.get(reason), counters.drops_out.get(reason))
}

#[test]
fn frames_of_all_sizes_arrive_as_they_were_sent() {
    for kind in [RingKind::Split, RingKind::Packed] {
        for event_idx in [false, true] {
            let (mut bridge, mut one, mut other) = pair(NicPlan { kind, event_idx, ..plan() });
            let mut sent = 0;
            for len in (0..1458).step_by(13) {
                let frame = FrameMaker::udp4().payload(len).build();
                let piece_bytes = [14, 60, 500, 2000][len % 4];
                assert!(one.stage(NONE, &frame, piece_bytes.max(len as u32 / 50)));
                one.send.publish();
                assert!(bridge.poll(len as u64).is_busy());
                assert_eq!(other.hear(), Some((header_of(1), frame)), "{kind:?}, {len} bytes");
                assert_eq!(one.reap(), 1);
                sent += 1;
            }
            assert!(!bridge.poll(9000).is_busy());
            assert_eq!(other.core.counters().frames_out.get(), sent);
            assert_eq!(one.core.counters().frames_in.get(), sent);
        }
    }
}

/// The header of a plain frame in so many buffers.
fn header_of(buffers: u16) -> [u8; HEADER] {
    let mut header = NONE;
    header[10..12].copy_from_slice(&buffers.to_le_bytes());
    header
}

#[test]
fn a_frame_of_64_kib_crosses_as_one() {
    for kind in [RingKind::Split, RingKind::Packed] {
        let (mut bridge, mut one, mut other) = pair(NicPlan { kind, ..plan() });
        let maker = FrameMaker::tcp4().payload(65_480).partial();
        let frame = maker.build();
        for _ in 0..20 {
            assert!(one.stage(tso4(1448), &frame, 4096));
            one.send.publish();
            assert!(bridge.poll(1).is_busy());
            let (header, heard) = other.hear().unwrap();
            let buffers = (HEADER + frame.len()).div_ceil(1526) as u16;
            assert_eq!(header[..10], tso4(1448)[..10]);
            assert_eq!(u16::from_le_bytes([header[10], header[11]]), buffers);
            assert!(heard == frame);
            assert_eq!(one.reap(), 1);
        }
        assert_eq!(other.core.counters().frames_out.get(), 20);
        assert_eq!(other.core.counters().cut_out.get(), 0);
    }
}

#[test]
fn a_guest_that_cannot_cut_gets_segments_with_their_checksums() {
    let checksum = feature::CSUM | feature::GUEST_CSUM;
    let lacks = feature::GUEST_TSO4;
    for (features, completes) in
        [(all_features() & !lacks, false), (all_features() & !lacks & !checksum, true)]
    {
        let mut bridge = Bridge::new(5);
        let mut one = guest(&mut bridge, plan(), 1);
        let mut other = guest(&mut bridge, NicPlan { features, ..plan() }, 2);
        let maker = FrameMaker::tcp4().payload(30_000);
        assert!(one.stage(tso4(1448), &maker.clone().partial().build(), 4096));
        one.send.publish();
        assert!(bridge.poll(1).is_busy());
        let mut payload = Vec::<u8>::new();
        let mut frames = 0;
        while let Some((header, frame)) = other.hear() {
            assert_eq!((header[0], header[1]), (if completes { 2 } else { 1 }, 0));
            assert!(frame.len() <= 1448 + 54);
            payload.extend(&frame[54..]);
            frames += 1;
        }
        assert!(payload == maker.build()[54..]);
        assert_eq!(frames, 30_000usize.div_ceil(1448));
        let counters = other.core.counters();
        assert_eq!((counters.frames_out.get(), counters.cut_out.get()), (1, 1));
        assert_eq!(counters.checksums_out.get(), if completes { frames as u64 } else { 0 });
    }
}

#[test]
fn without_mergeable_buffers_a_frame_needs_one_that_is_large_enough() {
    let features = all_features() & !feature::MRG_RXBUF;
    let mut bridge = Bridge::new(5);
    let mut one = guest(&mut bridge, plan(), 1);
    let mut other = guest(&mut bridge, NicPlan { features, buffer_bytes: 200, ..plan() }, 2);
    let (small, large) =
        (FrameMaker::udp4().payload(100).build(), FrameMaker::udp4().payload(300).build());
    for frame in [&small, &large, &small] {
        one.say(frame);
    }
    assert!(bridge.poll(1).is_busy());
    assert_eq!(other.hear_all(), [small.clone(), small]);
    assert_eq!(dropped(&other, Reason::BufferSmall), (0, 1));
}

#[test]
fn a_guest_without_buffers_loses_frames_and_holds_up_no_other() {
    let mut bridge = Bridge::new(5);
    let mut one = guest(&mut bridge, plan(), 1);
    let deaf = StandInGuest::new(&mut bridge, plan(), PortOptions::of_guest(mac(2)));
    let mut third = guest(&mut bridge, plan(), 3);
    for _ in 0..50 {
        one.say(&FrameMaker::udp4().to(mac(2)).payload(10).build());
        one.say(&FrameMaker::udp4().to(mac(3)).payload(20).build());
    }
    while bridge.poll(1).is_busy() {}
    assert_eq!((third.hear_all().len(), one.reap()), (50, 100));
    assert_eq!(dropped(&deaf, Reason::NoRoom), (0, 50));
}

#[test]
fn lies_and_rubbish_are_dropped_by_name_and_cost_the_others_nothing() {
    let (mut bridge, mut one, mut other) = pair(plan());
    let good = FrameMaker::tcp4().payload(100).build();
    let header = |change: &dyn Fn(&mut [u8; HEADER])| {
        let mut header = tso4(1448);
        change(&mut header);
        header
    };
    let foreign = FrameMaker::udp4().from(mac(9)).payload(10).build();
    let group = FrameMaker::udp4().from(Mac::BROADCAST).payload(10).build();
    let tagged = FrameMaker::udp4().tag(7).payload(10).build();
    let long = FrameMaker::udp4().payload(1480).build();
    let cases: [(Reason, [u8; HEADER], &[u8]); 10] = [
        (Reason::Short, NONE, &good[..13]),
        (Reason::OverMtu, NONE, &long),
        (Reason::OffloadUnknown, header(&|it| it[1] = 77), &good),
        (Reason::ChecksumPlace, header(&|it| it[6] = 200), &good),
        (Reason::ChecksumPlace, header(&|it| it[9] = 200), &good),
        (Reason::SegmentSize, header(&|it| (it[4], it[5]) = (0, 0)), &good),
        (Reason::SegmentHeaders, header(&|it| it[1] = 4), &good),
        (Reason::SourceForeign, NONE, &foreign),
        (Reason::SourceInvalid, NONE, &group),
        (Reason::VlanForeign, NONE, &tagged),
    ];
    for (reason, header, frame) in &cases {
        let before = dropped(&one, *reason).0;
        assert!(one.stage(*header, frame, 2000));
        assert!(one.stage(NONE, &good, 2000));
        one.send.publish();
        let _ = bridge.poll(1);
        assert_eq!(dropped(&one, *reason).0, before + 1, "{reason:?}");
        // The good frame beside it arrives, and all buffers come back.
        assert_eq!((other.hear_all(), one.reap()), (vec![good.clone()], 2), "{reason:?}");
    }
    assert!(!one.core.is_broken());
    assert_eq!(one.core.counters().drops_in.total(), cases.len() as u64);
}

#[test]
fn a_chain_of_a_thousand_descriptors_is_a_frame_or_a_named_drop() {
    let (mut bridge, mut one, mut other) = pair(NicPlan { size: 1024, ..plan() });
    let frame = FrameMaker::udp4().payload(1000).build();
    let total = HEADER + frame.len();
    let slot = one.send.take_slot().unwrap();
    one.send.write(slot, 0, &NONE);
    one.send.write(slot, HEADER as u32, &frame);
    // A byte each, and the rest in one.
    let mut parts: Vec<_> = (0..1000).map(|at| FramePart { offset: at, len: 1 }).collect();
    parts.push(FramePart { offset: 1000, len: (total - 1000) as u32 });
    assert!(one.send.post(slot, &parts, false));
    one.send.publish();
    assert!(bridge.poll(1).is_busy());
    assert_eq!(other.hear_all(), [frame]);
    // More than any frame has, in a thousand pieces.
    let slot = reap_slot(&mut one);
    let parts: Vec<_> = (0..1000).map(|_| FramePart { offset: 0, len: 100 }).collect();
    assert!(one.send.post(slot, &parts, false));
    one.send.publish();
    let _ = bridge.poll(1);
    assert_eq!(dropped(&one, Reason::TooLong).0, 1);
}

fn reap_slot(side: &mut StandInGuest) -> virtio::driver::RequestSlot {
    side.reap();
    side.send.take_slot().unwrap()
}

#[test]
fn a_vlan_does_not_leak() {
    let mut bridge = Bridge::new(5);
    let with = |vlans: Vlans, last: u8| PortOptions { vlans, ..PortOptions::of_guest(mac(last)) };
    let mut make = |vlans: Vlans, last: u8| {
        let mut side = StandInGuest::new(&mut bridge, plan(), with(vlans, last));
        side.post_buffers();
        side
    };
    let (mut one, mut other) = (make(Vlans::Access(10), 1), make(Vlans::Access(20), 2));
    let mut third = make(Vlans::Access(10), 3);
    let trunk = Vlans::Trunk { native: None, tagged: VlanSet::from_iter([10]) };
    let mut trunk = make(trunk, 4);
    let frame = FrameMaker::udp4().to(Mac::BROADCAST).payload(30).build();
    let tagged = FrameMaker::udp4().to(Mac::BROADCAST).payload(30).tag(10).build();
    one.say(&frame);
    let _ = bridge.poll(1);
    assert_eq!((other.hear_all(), third.hear_all()), (vec![], vec![frame]));
    assert_eq!(trunk.hear_all(), [tagged]);
    // By address neither.
    one.say(&FrameMaker::udp4().to(mac(2)).payload(30).build());
    let to_trunk = FrameMaker::udp4().to(mac(4)).payload(30);
    one.say(&to_trunk.build());
    let _ = bridge.poll(2);
    assert!(other.hear_all().is_empty());
    let from_trunk = FrameMaker::udp4().from(mac(4)).to(mac(1)).payload(9);
    trunk.say(&from_trunk.clone().tag(10).build());
    trunk.say(&from_trunk.clone().tag(20).build());
    let _ = bridge.poll(3);
    assert_eq!(one.hear_all(), [from_trunk.build()]);
    assert_eq!(dropped(&trunk, Reason::VlanForeign).0, 1);
}

#[test]
fn a_stop_and_a_start_lose_no_buffer() {
    for kind in [RingKind::Split, RingKind::Packed] {
        let (mut bridge, mut one, mut other) = pair(NicPlan { kind, size: 32, ..plan() });
        for _ in 0..10 {
            assert!(one.stage(NONE, &FrameMaker::udp4().payload(64).build(), 200));
        }
        // All the room that is left is taken for it, and it does not fit.
        assert!(one.stage(tso4(1448), &FrameMaker::tcp4().payload(60_000).partial().build(), 4096));
        one.send.publish();
        let _ = bridge.poll(1);
        assert_eq!(dropped(&other, Reason::NoRoom), (0, 1));
        let mut frames = other.hear_all().len();
        for _ in 0..10 {
            let base = other.queues.borrow_mut().remove_queue(0).unwrap();
            let mut config = other.receive.queue_config(other.memory.clone()).unwrap();
            config.base = base;
            let queue = virtio::Queue::new(config).unwrap();
            other.queues.borrow_mut().add_queue(queue, all_features());
            // Buffers that the nic had taken come back empty, and are given again.
            frames += other.hear_all().len();
            one.reap();
            one.say(&FrameMaker::udp4().payload(64).build());
            let _ = bridge.poll(2);
            frames += other.hear_all().len();
        }
        assert_eq!((frames, other.empty), (20, 22), "{kind:?}");
        assert_eq!(other.receive.outstanding(), 32);
    }
}

#[test]
fn a_nic_that_died_with_a_split_ring_goes_on_where_it_was_used() {
    let (mut bridge, mut one, mut other) = pair(plan());
    for round in 0..10 {
        for _ in 0..7 {
            one.say(&FrameMaker::udp4().payload(round).build());
        }
        let _ = bridge.poll(1);
        assert_eq!((other.hear_all().len(), one.reap()), (7, 7));
        // Without a word: the former queues are forgotten, and the used index is believed.
        for side in [&mut one, &mut other] {
            let _ = side.queues.borrow_mut().remove_queue(0);
            let _ = side.queues.borrow_mut().remove_queue(1);
            side.start();
        }
    }
}

#[test]
fn a_broken_ring_stops_its_nic_alone() {
    let mut bridge = Bridge::new(5);
    let mut bad = guest(&mut bridge, plan(), 1);
    let (mut one, mut other) = (guest(&mut bridge, plan(), 2), guest(&mut bridge, plan(), 3));
    let slot = bad.send.take_slot().unwrap();
    // Guest memory does not go on there.
    let parts = [FramePart { offset: 0, len: 1 << 30 }];
    assert!(bad.send.post(slot, &parts, false));
    bad.send.publish();
    let frame = FrameMaker::udp4().from(mac(2)).to(mac(3)).payload(5).build();
    for _ in 0..3 {
        one.say(&frame);
        let _ = bridge.poll(1);
        assert_eq!(other.hear_all(), std::slice::from_ref(&frame));
    }
    assert!(bad.core.is_broken());
    assert_eq!(bad.core.failures(), [("unmapped", 1)]);
    one.say(&FrameMaker::udp4().from(mac(2)).to(mac(1)).payload(5).build());
    let _ = bridge.poll(1);
    assert_eq!(dropped(&bad, Reason::LinkDown).1, 1);
}

#[test]
fn a_port_that_learns_takes_guests_of_its_guest() {
    let mut bridge = Bridge::new(5);
    let learns = PortOptions { stations: Stations::Learned(4), ..PortOptions::of_guest(mac(1)) };
    let mut nested = StandInGuest::new(&mut bridge, plan(), learns);
    nested.post_buffers();
    let mut other = guest(&mut bridge, plan(), 2);
    nested.say(&FrameMaker::udp4().from(mac(77)).payload(5).build());
    let _ = bridge.poll(1);
    assert_eq!(other.hear_all().len(), 1);
    let answer = FrameMaker::udp4().from(mac(2)).to(mac(77)).payload(6).build();
    other.say(&answer);
    let _ = bridge.poll(2);
    assert_eq!(nested.hear_all(), [answer]);
}
