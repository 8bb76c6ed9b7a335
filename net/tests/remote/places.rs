//! Places for members, and a peer that wants all of them.

use net::Vlans;
use net::remote::join;
use transport::SessionId;

use crate::rig::{MS, Nic, World, mac};

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
    // A quarter of the sidecore's places, in whatever networks.
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
