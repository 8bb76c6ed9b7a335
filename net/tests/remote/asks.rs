//! Joins that are not answered.

use std::sync::Arc;

use net::Vlans;
use net::maker::FrameMaker;

use crate::rig::{MS, World, mac};

#[test]
fn a_join_that_is_never_answered_is_asked_again_ever_more_seldom() {
    let mut world = World::new(1, true);
    world.hosts[0].is_silent = true;
    let nics = [2, 3].map(|last| world.hosts[1].nic("blue", last, Vlans::Access(0)));
    let cores = [Arc::clone(&nics[0].core), Arc::clone(&nics[1].core)];
    world.run(50 * MS);
    assert_eq!(cores[0].why(), "peer io1 was not reached yet");
    // At the beginning, and after 2, 6 and 14 seconds.
    world.idle(20);
    assert_eq!(cores[0].why(), "peer io1: no answer for 8 s; asked again");
    assert!(!cores[0].is_joined() && world.members().is_empty());
    world.hosts[0].is_silent = false;
    world.wait_for("joined", move |_| cores.iter().all(|core| core.is_joined()));
    // All are answered, late as they are; the last one is what counts.
    world.run(50 * MS);
    let server = world.hosts[0].plane.borrow().server().counters();
    assert_eq!((server.joined.get(), world.members().len()), (8, 2));
    let frame = FrameMaker::udp4().from(mac(2)).to(mac(3)).payload(9).build();
    nics[0].talker.say(frame.clone());
    world.run(5 * MS);
    assert_eq!(nics[1].talker.heard(), [frame]);
    assert!(nics.iter().all(|nic| nic.core.is_joined()));
    assert_eq!(world.hosts[0].endpoint.borrow().pool().in_use(), 0);
}
