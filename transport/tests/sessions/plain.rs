//! Handshakes of plain sessions, written by hand or replayed.

use crate::common::{MS, SECOND, World, addr, raw};
use crate::handshake::{connect, connected, tapped, two_nodes};
use crate::strange;
use transport::LostReason;

#[test]
fn the_same_hello_gets_the_same_answer() {
    let mut world = two_nodes(1);
    connect(&mut world);
    let hello = tapped(&world, 0, raw::HELLO).remove(1);
    for _ in 0..3 {
        world.inject(addr(0), addr(1), hello.clone(), MS);
        world.run_for(2 * MS);
    }
    let welcomes = tapped(&world, 1, raw::WELCOME);
    assert_eq!(welcomes.len(), 4);
    assert!(welcomes.iter().all(|welcome| *welcome == welcomes[0]));
    assert_eq!(world.nodes[0].endpoint.counters().dropped_stale_handshake, 3);
    assert_eq!((connected(&world, 0), connected(&world, 1)), (1, 1));
}

#[test]
fn another_name_than_expected_is_refused() {
    let mut world = two_nodes(1);
    world.connect(0, 1, "io2");
    world.run_for(10 * SECOND);
    let text = "the node at 10.0.0.2:4870 has the name \"io1\" instead of \"io2\"";
    assert_eq!(world.nodes[0].app.losses(), [LostReason::Refused(text.to_owned())]);
    assert!(world.nodes[1].app.events.is_empty());
    assert_eq!(world.nodes[1].endpoint.sessions().count(), 0);
}

#[test]
fn a_flood_of_hellos_is_bounded_and_harms_no_session() {
    let mut world = two_nodes(1);
    connect(&mut world);
    for stranger in 0..2_000 {
        let name = format!("stranger{stranger}");
        let frames = strange::greeting(&name, 1 + stranger, 5, (1, 1), 0);
        let hello = raw::packet(raw::HELLO, 0, 1, &frames, &[]);
        world.inject(addr(9), addr(1), hello, stranger * 1_000);
    }
    world.run_for(100 * MS);
    let counters = world.nodes[1].endpoint.counters();
    assert!(counters.dropped_hello_full >= 1_800, "{}", counters.dropped_hello_full);
    assert!(world.nodes[1].endpoint.sessions().count() <= 200);
    assert_eq!((connected(&world, 0), connected(&world, 1)), (1, 1));
    // We can still ask for sessions, and others again once the flood is over.
    world.connect(1, 0, "vm1");
    world.run_for(5 * SECOND);
    assert_eq!((connected(&world, 0), connected(&world, 1)), (2, 2));
    assert_eq!(world.nodes[1].endpoint.sessions().count(), 2);
}

#[test]
fn resets_count_only_for_packets_that_were_sent() {
    let mut world = two_nodes(1);
    connect(&mut world);
    world.nodes[1].app.is_mute = true;
    world.nodes[0].app.order(0, 0, 0);
    world.run_for(10 * MS);
    let data = tapped(&world, 0, raw::DATA);
    let (session, last) = (raw::session(&data[0]), raw::number(data.last().expect("data")));
    let stale = [(session, last + 100), (session ^ (1 << 40), last), (session, u64::MAX), (0, 0)];
    for (count, (session, number)) in (1..).zip(stale) {
        world.inject(addr(1), addr(0), raw::packet(raw::RESET, session, number, &[], &[]), 0);
        world.run_for(MS);
        assert_eq!(world.nodes[0].endpoint.counters().dropped_stale_reset, count);
        assert_eq!(world.nodes[0].app.losses(), []);
    }
    world.inject(addr(1), addr(0), raw::packet(raw::RESET, session, last, &[], &[]), 0);
    world.run_for(MS);
    assert_eq!(world.nodes[0].app.losses(), [LostReason::Reset]);
}

#[test]
fn a_hello_without_a_cookie_costs_nothing_and_a_cookie_is_for_its_address() {
    let mut world = two_nodes(1);
    connect(&mut world);
    let hellos = tapped(&world, 0, raw::HELLO);
    let retries = tapped(&world, 1, raw::RETRY);
    assert_eq!((hellos.len(), retries.len()), (2, 1));
    assert!(retries[0].len() < hellos[0].len(), "nobody can be flooded through us");
    let (sessions, sent) = (world.nodes[1].endpoint.sessions().count(), 1);
    for (hello, from) in [(&hellos[0], 0), (&hellos[0], 5), (&hellos[1], 5)] {
        world.inject(addr(from), addr(1), hello.clone(), 0);
        world.run_for(MS);
    }
    assert_eq!(world.nodes[1].endpoint.counters().retries_sent, sent + 3);
    assert_eq!(world.nodes[1].endpoint.sessions().count(), sessions);
}

#[test]
fn a_peer_of_version_1_needs_no_cookie_either_way() {
    for old in 0..2 {
        let mut world = World::new(1);
        for (node, name) in ["vm1", "io1"].into_iter().enumerate() {
            let mut config = world.config(name);
            config.versions = if node == old { 1..=1 } else { 1..=2 };
            world.add(config);
        }
        world.tap = Some(Vec::new());
        connect(&mut world);
        for node in 0..2 {
            let status = world.nodes[node].endpoint.sessions().next().expect("a session");
            assert_eq!(status.peer.version, 1);
        }
        let data = tapped(&world, 0, raw::DATA);
        assert!(data.iter().all(|packet| packet[4] == 1));
        assert_eq!(tapped(&world, 0, raw::HELLO).len(), 1);
    }
}

/// Version 1 may fill half of the places; a connector that shows a cookie finds the other half.
#[test]
fn a_flood_of_version_1_leaves_room_for_a_newcomer() {
    let mut world = two_nodes(1);
    for stranger in 0..20_000 {
        let frames = strange::greeting(&format!("stranger{stranger}"), 1 + stranger, 5, (1, 1), 0);
        world.inject(
            addr(9),
            addr(1),
            raw::packet(raw::HELLO, 0, 1, &frames, &[]),
            stranger * 10_000,
        );
    }
    world.run_for(50 * MS);
    connect(&mut world);
    assert_eq!(world.nodes[1].endpoint.sessions().count(), 65);
}
