//! Frames pass from nics to a network of another node, and the way comes back by itself.

use net::maker::FrameMaker;
use net::{Cut, Offload, PortOptions, Reason, Vlans};
use std::sync::Arc;

use crate::rig::{MS, Nic, SECOND, Talker, World, mac, trunk};

/// A guest of the network's own node.
fn local(world: &mut World, last: u8, options: PortOptions) -> Talker {
    let talker = Talker::default();
    let bridge = &world.hosts[0].bridges[0];
    let options = PortOptions { floods_per_s: 0, ..options };
    let _ = last;
    bridge.borrow_mut().add(options, Box::new(talker.clone()), Arc::default()).unwrap();
    talker
}

fn joined(world: &mut World, nics: &[&Nic]) {
    let cores: Vec<_> = nics.iter().map(|nic| Arc::clone(&nic.core)).collect();
    world.wait_for("joined", move |_| cores.iter().all(|core| core.is_joined()));
}

fn frame(from: u8, to: u8, bytes: usize) -> Vec<u8> {
    FrameMaker::udp4().from(mac(from)).to(mac(to)).payload(bytes).build()
}

/// A TCP segment of 64 KiB that is still to be cut.
fn large(from: u8, to: u8) -> (Vec<u8>, Offload) {
    let maker = FrameMaker::tcp4().from(mac(from)).to(mac(to)).payload(65_000).partial();
    let offload = Offload {
        needs_checksum: true,
        checksum_start: maker.above_at() as u16,
        checksum_offset: 16,
        cut: Cut::Tcp4,
        segment_bytes: 1448,
        ..Offload::default()
    };
    (maker.build(), offload)
}

#[test]
fn frames_of_all_sizes_pass_both_ways_and_large_ones_stay_whole() {
    for sealed in [false, true] {
        let mut world = World::new(1, sealed);
        let nic = world.hosts[1].nic("blue", 2, Vlans::Access(0));
        let there = local(&mut world, 1, PortOptions::of_guest(mac(1)));
        joined(&mut world, &[&nic]);
        let sizes = [0, 1, 100, 134, 135, 150, 151, 1000, 1472, 8000, 40_000];
        for bytes in sizes {
            nic.talker.say(frame(2, 1, bytes));
            there.say(frame(1, 2, bytes));
        }
        world.run(5 * MS);
        assert_eq!(there.heard(), sizes.map(|bytes| frame(2, 1, bytes)));
        assert_eq!(nic.talker.heard(), sizes.map(|bytes| frame(1, 2, bytes)));
        let (bytes, offload) = large(2, 1);
        for _ in 0..30 {
            nic.talker.0.borrow_mut().to_say.push_back((bytes.clone(), offload, 0));
        }
        world.run(50 * MS);
        let heard = std::mem::take(&mut there.0.borrow_mut().heard);
        assert_eq!(heard.len(), 30);
        assert!(heard.iter().all(|it| *it == (bytes.clone(), offload, 0)));
        let member = &world.members()[0];
        assert_eq!((member.peer.as_str(), member.nic.as_str()), ("vm1", "nic2"));
        assert_eq!(member.counters.frames_in.get(), sizes.len() as u64 + 30);
        assert_eq!(member.counters.drops_in.total(), 0);
        assert_eq!(nic.counters.drops_out.total(), 0);
    }
}

#[test]
fn frames_are_right_and_in_order_over_any_network() {
    for seed in 1..20 {
        let mut world = World::new(seed, seed % 2 == 0);
        let nic = world.hosts[1].nic("blue", 2, Vlans::Access(0));
        let there = local(&mut world, 1, PortOptions::of_guest(mac(1)));
        joined(&mut world, &[&nic]);
        world.disturb(seed % 7 * 10, seed % 5 * 20, seed % 3 * 20);
        let numbered = |number: usize| {
            let mut bytes = frame(2, 1, [20, 1400, 30_000][number % 3]);
            bytes[50..54].copy_from_slice(&(number as u32).to_le_bytes());
            bytes
        };
        for number in 0..600 {
            nic.talker.say(numbered(number));
            world.run(100_000);
        }
        world.run(SECOND);
        let heard = there.heard();
        let mut next = 0;
        for bytes in &heard {
            let number = u32::from_le_bytes(bytes[50..54].try_into().unwrap()) as usize;
            assert!(number >= next, "{number} after {next}, seed {seed}");
            assert!(*bytes == numbered(number), "as it was sent, seed {seed}");
            next = number + 1;
        }
        // Six in a hundred datagrams are lost; of frames hardly any.
        assert!(heard.len() >= 590, "{} of 600, seed {seed}", heard.len());
    }
}

#[test]
fn a_stream_to_a_silent_receiver_is_not_flooded() {
    let mut world = World::new(10, false);
    let nic = world.hosts[1].nic("blue", 2, Vlans::Access(0));
    let there = local(&mut world, 1, PortOptions::of_guest(mac(1)));
    joined(&mut world, &[&nic]);
    // A hundred thousand a second, to addresses that no station has.
    for _ in 0..60 {
        (0..100).for_each(|_| nic.talker.say(frame(2, 1, 10)));
        world.run(MS);
    }
    world.run(5 * MS);
    assert_eq!(there.heard().len(), 6000);
    // Frames to everyone are few, on both nodes.
    let everyone = FrameMaker::udp4().from(mac(2)).to(net::Mac::BROADCAST).payload(9).build();
    for _ in 0..60 {
        (0..100).for_each(|_| nic.talker.say(everyone.clone()));
        world.run(MS);
    }
    assert!(there.heard().len() < 2000);
}

#[test]
fn two_nodes_meet_in_a_network_and_no_other_node_hears_them() {
    let mut world = World::new(3, true);
    world.add_vm2();
    world.hosts[0].network("red", 2);
    let one = world.hosts[1].nic("blue", 2, Vlans::Access(0));
    let two = world.hosts[2].nic("blue", 3, Vlans::Access(0));
    let red = world.hosts[2].nic("red", 2, Vlans::Access(0));
    let other = world.hosts[2].nic("blue", 4, Vlans::Access(7));
    let tagged = world.hosts[1].nic("blue", 5, trunk(&[7, 8]));
    joined(&mut world, &[&one, &two, &red, &other, &tagged]);
    let everyone = FrameMaker::udp4().from(mac(2)).to(net::Mac::BROADCAST).payload(9).build();
    one.talker.say(everyone.clone());
    two.talker.say(frame(3, 2, 500));
    // A frame of a VLAN that it is not in, and with an address that is not its own.
    other.talker.say(frame(9, 2, 10));
    world.run(5 * MS);
    assert_eq!(two.talker.heard(), [everyone]);
    assert_eq!(one.talker.heard(), [frame(3, 2, 500)]);
    other.talker.say(frame(4, 5, 60));
    world.run(5 * MS);
    assert_eq!(tagged.talker.0.borrow().heard, [(frame(4, 5, 60), Offload::default(), 7)]);
    let reply = FrameMaker::udp4().from(mac(5)).to(mac(4)).payload(8).tag(7).build();
    tagged.talker.say(reply);
    world.run(5 * MS);
    let plain = FrameMaker::udp4().from(mac(5)).to(mac(4)).payload(8).build();
    assert_eq!(other.talker.heard(), [plain]);
    assert_eq!((red.talker.heard().len(), one.talker.heard().len()), (0, 0));
}

#[test]
fn a_restart_of_either_node_is_a_pause() {
    let mut world = World::new(4, true);
    let mut nic = world.hosts[1].nic("blue", 2, Vlans::Access(0));
    let mut there = local(&mut world, 1, PortOptions::of_guest(mac(1)));
    for round in 0..6 {
        joined(&mut world, &[&nic]);
        nic.talker.say(frame(2, 1, 100 + round));
        there.say(frame(1, 2, 200 + round));
        world.run(5 * MS);
        assert_eq!(there.heard(), [frame(2, 1, 100 + round)]);
        assert_eq!(nic.talker.heard(), [frame(1, 2, 200 + round)]);
        world.hosts[round % 2].is_down = true;
        world.run(if round < 3 { 100 * MS } else { 5 * SECOND });
        world.restart(round % 2);
        if round % 2 == 0 {
            world.hosts[0].network("blue", 1);
            there = local(&mut world, 1, PortOptions::of_guest(mac(1)));
            // No station sends anything, and the loss is noticed all the same.
            let core = Arc::clone(&nic.core);
            let joins = core.joins.get();
            world.wait_for("joined again", move |_| core.joins.get() > joins);
        } else {
            nic = world.hosts[1].nic("blue", 2, Vlans::Access(0));
        }
    }
    assert_eq!(world.members().len(), 1);
}

#[test]
fn a_guest_sees_that_its_network_is_away_when_that_lasts_and_not_before_it_was_there() {
    let mut world = World::new(9, true);
    let nic = world.hosts[1].nic("blue", 2, Vlans::Access(0));
    let never = world.hosts[1].nic("nowhere", 3, Vlans::Access(0));
    let told = |nic: &Nic| nic.link.lock().unwrap().clone();
    let again = |world: &mut World| {
        world.restart(0);
        world.hosts[0].network("blue", 1);
        joined(world, &[&nic]);
    };
    joined(&mut world, &[&nic]);
    // It is noticed, and over before a guest would have to know.
    world.hosts[0].is_down = true;
    world.run(100 * MS);
    again(&mut world);
    assert!(told(&nic).is_empty());
    for times in 1..=2 {
        world.hosts[0].is_down = true;
        let mut seconds = 0;
        while nic.core.is_joined() {
            world.idle(1);
            seconds += 1;
            assert!(seconds < 60, "never noticed");
        }
        world.idle(3);
        assert_eq!(told(&nic).len(), 2 * times - 1, "once, however long it lasts");
        world.idle(5);
        assert_eq!(told(&nic)[2 * times - 2..], [false]);
        again(&mut world);
        assert_eq!(told(&nic)[2 * times - 2..], [false, true]);
    }
    assert!(told(&never).is_empty());
}

#[test]
fn a_revoked_member_is_out_at_once_and_in_again_when_allowed() {
    let mut world = World::new(5, true);
    let nic = world.hosts[1].nic("blue", 2, Vlans::Access(0));
    let there = local(&mut world, 1, PortOptions::of_guest(mac(1)));
    joined(&mut world, &[&nic]);
    world.hosts[0].gate.allow("blue", &["vm2"]);
    world.run(5 * MS);
    assert!(!nic.core.is_joined() && world.members().is_empty());
    world.run(SECOND);
    assert_eq!(nic.core.why(), "peer io1: not open");
    nic.talker.say(frame(2, 1, 10));
    world.run(5 * MS);
    assert_eq!((there.heard().len(), nic.counters.drops_out.get(Reason::LinkDown)), (0, 1));
    world.hosts[0].gate.allow("blue", &["vm1"]);
    joined(&mut world, &[&nic]);
    nic.talker.say(frame(2, 1, 11));
    world.run(5 * MS);
    assert_eq!(there.heard(), [frame(2, 1, 11)]);
}

#[test]
fn a_nic_that_goes_leaves_and_its_address_is_free_at_once() {
    let mut world = World::new(6, false);
    for number in 0..5 {
        let nic = world.hosts[1].nic("blue", 2, Vlans::Access(0));
        joined(&mut world, &[&nic]);
        assert_eq!((nic.flow, world.members().len()), (Some(0), 1), "time {number}");
        let now_ns = world.now_ns;
        world.hosts[1].unplug(now_ns, nic);
        world.run(2 * MS);
        assert!(world.members().is_empty());
    }
    for host in &world.hosts {
        assert_eq!(host.endpoint.borrow().pool().in_use(), 0);
    }
}

#[test]
fn a_network_on_another_sidecore_is_found_there() {
    let mut world = World::new(7, true);
    world.add_second_sidecore("green", 9);
    let nic = world.hosts[1].nic("green", 2, Vlans::Access(0));
    joined(&mut world, &[&nic]);
    let sessions = world.hosts[1].endpoint.borrow().sessions().count();
    assert_eq!(sessions, 2, "one of them is with the other sidecore");
    assert_eq!(world.hosts[2].members.list().len(), 1);
    let now_ns = world.now_ns;
    world.hosts[1].unplug(now_ns, nic);
    world.run(MS);
    assert_eq!(world.hosts[1].endpoint.borrow().sessions().count(), 1);
}

#[test]
fn a_queue_that_is_long_marks_and_then_drops() {
    let mut world = World::new(8, false);
    let nic = world.hosts[1].nic("blue", 2, Vlans::Access(0));
    let there = local(&mut world, 1, PortOptions::of_guest(mac(1)));
    joined(&mut world, &[&nic]);
    let (mut bytes, offload) = large(2, 1);
    // Its transport understands marks; the checksum of its header says so as well.
    bytes[15] |= 2;
    let sum = u16::from_be_bytes([bytes[24], bytes[25]]) - 2;
    bytes[24..26].copy_from_slice(&sum.to_be_bytes());
    for _ in 0..200 {
        nic.talker.0.borrow_mut().to_say.push_back((bytes.clone(), offload, 0));
    }
    world.run(200 * MS);
    let heard = std::mem::take(&mut there.0.borrow_mut().heard);
    let marked = heard.iter().filter(|(bytes, _, _)| bytes[15] & 3 == 3).count() as u64;
    let dropped = nic.counters.drops_out.get(Reason::NoRoom);
    assert_eq!(heard.len() as u64 + dropped, 200);
    assert!(marked > 10 && dropped > 10, "{marked} marked, {dropped} dropped");
    assert!(nic.core.marked.get() >= marked);
}
