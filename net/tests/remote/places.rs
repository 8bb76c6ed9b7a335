//! Places for members, and a peer that wants all of them.

use std::rc::Rc;
use std::sync::Arc;

use net::maker::FrameMaker;
use net::remote::{MemberInfo, join};
use net::switch::{COPY_BURST_NS, COPY_NS};
use net::{Mac, PortOptions, Reason, Vlans};
use transport::SessionId;

use crate::rig::{MS, Nic, Talker, World, mac};

/// A join without the help of anything that would hold it back.
fn raw_join(world: &World, session: SessionId, network: &str) {
    let join = join(network, "one more", mac(9), 1500, Vlans::Access(0));
    let mut endpoint = world.hosts[1].endpoint.borrow_mut();
    endpoint.call(world.now_ns, session, 0, 3 << 60, &join.head(false), None).expect("room");
}

#[test]
fn a_peer_that_wants_all_places_leaves_others_theirs() {
    let mut world = World::new(2, false);
    world.add_vm2();
    world.hosts[0].network("red", 2);
    world.hosts[0].network("green", 3);
    let server = world.hosts[0].plane.borrow().server().counters();
    // Half of a network's ports.
    let mut nics: Vec<_> =
        (0..130).map(|last| world.hosts[1].nic("blue", last, Vlans::Access(0))).collect();
    world.wait_for("full", |world| world.members().len() == 128 && server.full.get() >= 2);
    let is_in = |nic: &Nic| nic.core.is_joined();
    world.run(5 * MS);
    assert!(nics[..128].iter().all(is_in) && !nics[128..].iter().any(is_in));
    let why = nics[129].core.why();
    assert!(why.starts_with("peer io1: a network has at most 128 members of one node"), "{why}");
    let other = world.hosts[2].nic("blue", 200, Vlans::Access(0));
    world.wait_for("joined", |_| other.core.is_joined());
    // A quarter of the sidecore's places, over all networks.
    for nic in nics.drain(128..) {
        world.hosts[1].unplug(world.now_ns, nic);
    }
    nics.extend((128..=255).map(|last| world.hosts[1].nic("red", last, Vlans::Access(0))));
    world.wait_for("all flows", |world| world.members().len() == 256 + 1);
    let addr = world.hosts[0].addr;
    let second = world.hosts[1].endpoint.borrow_mut().connect(world.now_ns, addr, "io1", 1);
    world.run(20 * MS);
    let full = server.full.get();
    raw_join(&world, second, "green");
    world.run(5 * MS);
    assert_eq!((server.full.get(), world.members().len()), (full + 1, 257));
    let other = world.hosts[2].nic("green", 201, Vlans::Access(0));
    world.wait_for("joined", |_| other.core.is_joined());
    // A place that is given up is another nic's.
    world.hosts[1].unplug(world.now_ns, nics.remove(0));
    world.run(5 * MS);
    raw_join(&world, second, "green");
    world.wait_for("one more", |world| world.members().iter().any(|it| it.nic == "one more"));
}

/// The node of 128 members pays for all their frames to everyone: however many these are, a round
/// copies a bounded part of them, and every round has room for the others.
#[test]
fn a_peer_whose_members_all_speak_to_everyone_leaves_others_their_rounds() {
    const ROUND_NS: u64 = 10_000;
    const ROUNDS: u64 = 3_000;
    let mut world = World::new(2, false);
    world.add_vm2();
    let here = Talker::default();
    let blue = Rc::clone(&world.hosts[0].bridges[0]);
    let options = PortOptions::of_guest(mac(250));
    blue.borrow_mut().add(options, Box::new(here.clone()), Arc::default()).unwrap();
    let nics: Vec<_> =
        (0..128).map(|last| world.hosts[1].nic("blue", last, Vlans::Access(0))).collect();
    let other = world.hosts[2].nic("blue", 200, Vlans::Access(0));
    world.wait_for("joined", |world| world.members().len() == 129 && other.core.is_joined());
    world.run(50 * MS);
    let members = world.members();
    let is_other = |member: &MemberInfo| member.peer == "vm2";
    let calm = members.iter().find(|member| is_other(member)).expect("it has joined");
    let storm = |last: u8| FrameMaker::udp4().from(mac(last)).to(Mac([0xff; 6])).payload(9).build();
    let word = FrameMaker::udp4().from(mac(250)).to(mac(200)).payload(9).build();
    // Copies for members, also those that find no room, and for the guest that is here.
    let copied = |heard: usize| {
        let out = |it: &MemberInfo| it.counters.frames_out.get() + it.counters.drops_out.total();
        members.iter().map(out).sum::<u64>() + heard as u64
    };
    let at_once = COPY_BURST_NS / COPY_NS + 129;
    let (mut heard, mut said) = (0, 0);
    let first = copied(0);
    for round in 1..=ROUNDS {
        for (last, nic) in nics.iter().enumerate() {
            nic.talker.say(storm(last as u8));
        }
        here.say(word.clone());
        said += 1;
        let (before, calm_before) = (copied(heard), calm.counters.frames_out.get());
        world.run(ROUND_NS);
        heard += here.heard().len();
        let after = copied(heard);
        // The word that was said, beside the storm.
        assert!(after - before <= at_once + 1, "{} copies in round {round}", after - before);
        let passed = calm.counters.frames_out.get() + calm.counters.drops_out.total();
        assert!(passed > calm_before, "round {round} had no place for another guest's frame");
        other.talker.heard();
        nics.iter().for_each(|nic| drop(nic.talker.heard()));
    }
    let all = copied(heard) - first - said;
    assert!(all <= at_once + ROUNDS * ROUND_NS / COPY_NS, "{all} copies in all");
    assert!(all > ROUNDS * ROUND_NS / COPY_NS, "{all} copies: its part it has");
    let limited = |it: &MemberInfo| it.counters.drops_in.get(Reason::CopyLimit);
    assert!(members.iter().map(limited).sum::<u64>() > 1000);
    assert_eq!(limited(calm), 0);
}
