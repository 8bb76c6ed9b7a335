//! Counts allocations: once warm, a frame costs none, with any work that is done to it.

use net::maker::FrameMaker;
use net::nic::{NicOptions, feature, features};
use net::{Bridge, Mac, PortOptions};
use virtio::RingKind;
use virtio::driver::FramePart;

use crate::counting::allocations;
use net::stand_in::{HEADER, NicPlan, StandInGuest};

fn mac(last: u8) -> Mac {
    Mac([0x52, 0x54, 0, 0, 0, last])
}

/// Sends `parts` once and takes back all frames and buffers.
fn round(bridge: &mut Bridge, sides: &mut [StandInGuest], parts: &[FramePart], now_ns: u64) {
    for _ in 0..20 {
        let slot = sides[0].send.take_slot().expect("all came back");
        assert!(sides[0].send.post(slot, parts, true));
    }
    sides[0].send.publish();
    while bridge.poll(now_ns).is_busy() {}
    while let Some((slot, _)) = sides[0].send.complete().unwrap() {
        sides[0].send.release(slot);
    }
    for side in sides {
        while let Some((slot, _)) = side.receive.complete().unwrap() {
            let part = FramePart { offset: 0, len: side.plan.buffer_bytes };
            assert!(side.receive.post(slot, &[part], false));
        }
        side.receive.publish();
    }
}

#[test]
fn a_frame_allocates_nothing() {
    let all = features(&NicOptions::new("nic", mac(1))) | virtio::feature::VERSION_1;
    let weak = all & !(feature::GUEST_CSUM | feature::GUEST_TSO4);
    let plan = NicPlan {
        kind: RingKind::Split,
        event_idx: true,
        features: all,
        size: 1024,
        buffer_bytes: 1526,
        mtu: 1500,
    };
    let mut tso = [0; HEADER];
    tso[..10].copy_from_slice(&[1, 1, 54, 0, 0xa8, 5, 34, 0, 16, 0]);
    let small = FrameMaker::udp4().payload(18).build();
    let large = FrameMaker::tcp4().payload(20_000).partial().build();
    let everyone = FrameMaker::udp4().to(Mac::BROADCAST).payload(400).build();
    for kind in [RingKind::Split, RingKind::Packed] {
        for (receiver, header, frame) in [
            (all, [0; HEADER], &small),
            (all, tso, &large),
            (weak, tso, &large),
            (all, [0; HEADER], &everyone),
        ] {
            let mut bridge = Bridge::new(1);
            let mut sides: Vec<_> = [(1, all), (2, receiver)]
                .map(|(last, features)| {
                    let plan = NicPlan { kind, features, ..plan };
                    let options = PortOptions::of_guest(mac(last));
                    let mut side = StandInGuest::new(&mut bridge, plan, options);
                    side.post_buffers();
                    side
                })
                .into();
            // The same bytes in every slot, to be sent again and again.
            let mut slots = Vec::new();
            while let Some(slot) = sides[0].send.take_slot() {
                sides[0].send.write(slot, 0, &header);
                sides[0].send.write(slot, HEADER as u32, frame);
                slots.push(slot);
            }
            slots.into_iter().for_each(|slot| sides[0].send.release(slot));
            let total = (HEADER + frame.len()) as u32;
            let parts =
                [FramePart { offset: 0, len: 40 }, FramePart { offset: 40, len: total - 40 }];
            let mut now_ns = 0;
            let mut rounds = |many: u64| {
                for _ in 0..many {
                    now_ns += 10_000_000;
                    round(&mut bridge, &mut sides, &parts, now_ns);
                }
            };
            rounds(20);
            let before = allocations();
            rounds(100);
            let after = allocations();
            let (sent, arrived) = (
                sides[0].core.counters().frames_in.get(),
                sides[1].core.counters().frames_out.get(),
            );
            assert_eq!((sent, arrived), (120 * 20, 120 * 20), "{:?}", sides[1].core.counters());
            assert_eq!(after - before, 0, "{kind:?}, {} bytes", frame.len());
        }
    }
}
