//! How sessions begin and end when packets are lost, doubled or late, or come from a node that was
//! restarted.

use std::net::{Ipv4Addr, SocketAddr};

use crate::common::app::Event;
use crate::common::{Faults, MS, SECOND, World, addr, raw, secret_of};
use transport::{LostReason, PROTOCOL_VERSION, SessionState, StrangerReason};

pub(crate) fn two_nodes(seed: u64) -> World {
    let mut world = World::new(seed);
    for name in ["vm1", "io1"] {
        let config = world.config(name);
        world.add(config);
    }
    world.tap = Some(Vec::new());
    world
}

pub(crate) fn connected(world: &World, node: usize) -> usize {
    let open = |status: &transport::SessionStatus| status.state == SessionState::Connected;
    world.nodes[node].endpoint.sessions().filter(open).count()
}

pub(crate) fn connect(world: &mut World) {
    world.connect(0, 1, "io1");
    let end_ns = world.now_ns + SECOND;
    let both = |world: &mut World| connected(world, 0) == 1 && connected(world, 1) == 1;
    assert!(world.run_until(end_ns, both));
}

/// The packets of one kind from one node to another.
pub(crate) fn tapped(world: &World, from: usize, kind: u8) -> Vec<Vec<u8>> {
    let tap = world.tap.as_ref().expect("a tap");
    let is_meant = |sent: &&(u64, SocketAddr, SocketAddr, Vec<u8>)| {
        sent.1 == addr(from) && raw::kind(&sent.3) == kind
    };
    tap.iter().filter(is_meant).map(|sent| sent.3.clone()).collect()
}

#[test]
fn both_sides_learn_the_others_name() {
    let mut world = two_nodes(1);
    connect(&mut world);
    let mut bindings = Vec::new();
    for (node, name, outgoing) in [(0, "io1", true), (1, "vm1", false)] {
        let Event::Connected(session, peer) = &world.nodes[node].app.events[0].1 else {
            panic!("not connected")
        };
        assert_eq!(
            (peer.name.as_str(), peer.outgoing, peer.version),
            (name, outgoing, PROTOCOL_VERSION)
        );
        let key = crate::SEALED.then(|| secret_of(name).public());
        assert_eq!((peer.key, peer.binding == [0; 32]), (key, !crate::SEALED));
        bindings.push(peer.binding);
        assert_eq!((peer.addr, peer.index), (addr(1 - node), 0));
        let status = world.nodes[node].endpoint.sessions().next().expect("a session");
        assert_eq!((status.session, status.state), (*session, SessionState::Connected));
    }
    assert_eq!(bindings[0], bindings[1]);
}

#[test]
fn an_absent_peer_is_asked_for_ever_and_not_too_often() {
    let mut world = two_nodes(1);
    world.nodes[1].is_down = true;
    world.connect(0, 1, "io1");
    world.run_for(60 * SECOND);
    let hellos = tapped(&world, 0, raw::HELLO).len();
    assert!((600..=610).contains(&hellos), "{hellos} in a minute");
    assert!(world.nodes[0].app.events.is_empty());
    world.nodes[1].is_down = false;
    let end_ns = world.now_ns + 110 * MS;
    assert!(world.run_until(end_ns, |world| connected(world, 0) == 1));
}

#[test]
fn lost_and_doubled_greetings_make_one_session() {
    for seed in 1..200 {
        let mut world = two_nodes(seed);
        world.faults =
            Faults { loss: 300, duplicate: 500, reorder: 500, corrupt: 50, truncate: 50 };
        world.nodes[0].app.reconnects = true;
        connect(&mut world);
        world.faults = Faults::default();
        world.run_for(10 * SECOND);
        for node in 0..2 {
            assert_eq!(connected(&world, node), 1, "seed {seed}");
            assert_eq!(world.nodes[node].app.losses(), [], "seed {seed}");
            let all = world.nodes[node].endpoint.sessions().count();
            assert_eq!(all, 1, "seed {seed}: what is half open goes away");
        }
    }
}

#[test]
fn replayed_packets_of_the_past_change_nothing() {
    let mut world = two_nodes(1);
    connect(&mut world);
    world.run_for(10 * MS);
    // A second session of the same process, then one of a new process.
    let session = world.nodes[0].app.sessions[0];
    let now_ns = world.now_ns;
    world.nodes[0].endpoint.close(now_ns, session);
    connect(&mut world);
    let config = world.config("vm1");
    world.restart(0, config);
    world.run_for(10 * MS);
    connect(&mut world);
    world.run_for(10 * MS);
    let sessions: Vec<_> = world.nodes[1].endpoint.sessions().map(|s| s.session).collect();
    let losses = world.nodes[1].app.losses();
    assert_eq!(losses, [LostReason::Closed, LostReason::Reset]);

    let past = world.tap.clone().expect("a tap");
    for (_, from, to, bytes) in past.into_iter().rev() {
        world.inject(from, to, bytes, MS);
        world.run_for(3 * MS);
    }
    world.run_for(5 * SECOND);
    assert_eq!(world.nodes[1].app.losses(), losses);
    assert_eq!(world.nodes[0].app.losses(), []);
    let now: Vec<_> = world.nodes[1].endpoint.sessions().map(|s| s.session).collect();
    assert_eq!(now, sessions);
}

#[test]
fn a_newer_attempt_replaces_the_session() {
    let mut world = two_nodes(1);
    connect(&mut world);
    world.run_for(10 * MS);
    let session = world.nodes[0].app.sessions.remove(0);
    // The farewell is lost, so only the new Hello tells.
    world.partitioned_until_ns = world.now_ns + 10 * MS;
    let now_ns = world.now_ns;
    world.nodes[0].endpoint.close(now_ns, session);
    world.run_for(10 * MS);
    world.connect(0, 1, "io1");
    let end_ns = world.now_ns + 200 * MS;
    assert!(world.run_until(end_ns, |world| world.nodes[1].app.connected_count() == 2));
    assert_eq!(world.nodes[1].app.losses(), [LostReason::Replaced]);
    assert_eq!((connected(&world, 0), connected(&world, 1)), (1, 1));
    // The older attempt is recognised, and not even half-open again.
    let hello = tapped(&world, 0, raw::HELLO).remove(1);
    world.inject(addr(0), addr(1), hello, 0);
    world.run_for(MS);
    let endpoint = &world.nodes[1].endpoint;
    assert_eq!((endpoint.counters().dropped_stale_handshake, endpoint.sessions().count()), (1, 1));
}

#[test]
fn versions_without_overlap_are_refused_by_name() {
    let mut world = World::new(1);
    let mut config = world.config("vm1");
    config.versions = 1..=2;
    world.add(config);
    let mut config = world.config("io1");
    config.versions = 3..=3;
    world.add(config);
    world.connect(0, 1, "io1");
    world.run_for(3 * SECOND);
    let oldest = if crate::SEALED { 2 } else { 1 };
    let text = format!("no common protocol version: this node has {oldest} to 2, the peer 3 to 3");
    assert_eq!(world.nodes[0].app.losses(), [LostReason::Refused(text)]);
    assert_eq!(world.nodes[0].endpoint.sessions().count(), 0);
    assert_eq!(world.nodes[1].endpoint.sessions().count(), 0);
    let strangers = world.nodes[1].endpoint.strangers();
    let found: Vec<_> = strangers.iter().map(|it| (it.reason, it.addr, it.versions)).collect();
    assert_eq!(found, [(StrangerReason::Version, addr(0), (oldest, 2))]);
}

#[test]
fn the_newest_common_version_is_spoken() {
    let mut world = World::new(1);
    for (name, versions) in [("vm1", 1..=4), ("io1", 2..=3)] {
        let mut config = world.config(name);
        config.versions = versions;
        world.add(config);
    }
    connect(&mut world);
    for node in 0..2 {
        let status = world.nodes[node].endpoint.sessions().next().expect("a session");
        assert_eq!(status.peer.version, 3);
    }
}

#[test]
fn a_node_that_takes_no_sessions_says_so() {
    let mut world = World::new(1);
    let config = world.config("vm1");
    world.add(config);
    let mut config = world.config("vm2");
    config.accept = false;
    world.add(config);
    world.connect(0, 1, "vm2");
    world.run_for(SECOND);
    let text = "the peer takes no sessions".to_owned();
    assert_eq!(world.nodes[0].app.losses(), [LostReason::Refused(text)]);
}

#[test]
fn an_index_of_another_sidecore_is_redirected() {
    let mut world = World::new(1);
    let config = world.config("vm1");
    world.add(config);
    let host = Ipv4Addr::new(10, 0, 0, 2);
    for index in 0..3 {
        let mut config = world.config("io1");
        config.process_nonce = 7;
        config.index = index;
        config.ports = vec![4870, 4871, 4872];
        world.add_at(config, SocketAddr::from((host, 4870 + index)));
    }
    let now_ns = world.now_ns;
    let base = world.nodes[1].addr;
    for index in 0..6 {
        world.nodes[0].endpoint.connect(now_ns, base, "io1", index);
    }
    world.run_for(50 * MS);
    let mut ports: Vec<(u16, u16)> = world.nodes[0]
        .endpoint
        .sessions()
        .map(|status| (status.peer.index, status.peer.addr.port()))
        .collect();
    ports.sort_unstable();
    let expected: Vec<(u16, u16)> = (0..6).map(|index| (index, 4870 + index % 3)).collect();
    assert_eq!(ports, expected);
    assert_eq!(connected(&world, 0), 6);
    // The redirections cost no waiting.
    assert_eq!(world.nodes[1].endpoint.counters().hellos_redirected, 4);
}

#[test]
fn a_restart_is_noticed_within_50_ms() {
    for seed in 1..200 {
        let mut world = two_nodes(seed);
        connect(&mut world);
        world.nodes[1].app.is_mute = true;
        let body_bytes = world.random.below(100_000) as usize;
        world.nodes[0].app.order(0, body_bytes, 0);
        let phase_ns = world.random.below(100 * MS);
        world.run_for(phase_ns);
        let config = world.config("io1");
        world.restart(1, config);
        let restarted_ns = world.now_ns;
        let is_lost = |world: &mut World| !world.nodes[0].app.losses().is_empty();
        assert!(world.run_until(restarted_ns + 50 * MS, is_lost), "seed {seed}");
        assert_eq!(world.nodes[0].app.losses(), [LostReason::Reset]);
        assert_eq!(world.nodes[0].app.unknown.len(), 1);
        assert_eq!(world.nodes[0].endpoint.pool().in_use(), 0);
    }
}

#[test]
fn silence_is_a_loss_sooner_when_something_is_outstanding() {
    for (is_calling, least_ns, most_ns) in [(true, 2900, 3100), (false, 14_900, 20_100)] {
        let mut world = two_nodes(1);
        connect(&mut world);
        world.nodes[1].app.is_mute = true;
        world.run_for(7 * SECOND);
        if is_calling {
            world.nodes[0].app.order(0, 10, 10);
            world.run_for(10 * MS);
        }
        world.nodes[1].is_down = true;
        let down_ns = world.now_ns;
        let is_lost = |world: &mut World| !world.nodes[0].app.losses().is_empty();
        assert!(world.run_until(down_ns + 30 * SECOND, is_lost));
        assert_eq!(world.nodes[0].app.losses(), [LostReason::Silent]);
        let after_ns = world.now_ns - down_ns;
        assert!((least_ns * MS..=most_ns * MS).contains(&after_ns), "after {after_ns} ns");
    }
}

#[test]
fn an_idle_session_lives_and_costs_little() {
    let mut world = two_nodes(1);
    connect(&mut world);
    let before = world.tap.as_ref().map_or(0, Vec::len);
    world.run_for(600 * SECOND);
    let sent = world.tap.as_ref().map_or(0, Vec::len) - before;
    assert!(sent <= 4 * 600 / 5, "{sent} datagrams in ten minutes");
    assert_eq!((connected(&world, 0), connected(&world, 1)), (1, 1));
}

#[test]
fn a_paused_process_does_not_call_its_peer_silent() {
    for pause_ms in [100, 2_900, 3_100, 10_000] {
        let mut world = two_nodes(1);
        connect(&mut world);
        world.nodes[1].app.is_mute = true;
        world.nodes[0].app.order(0, 10, 10);
        world.run_for(10 * MS);
        world.nodes[0].paused_until_ns = world.now_ns + pause_ms * MS;
        world.run_for(pause_ms * MS + 2_500 * MS);
        assert_eq!(world.nodes[0].app.losses(), []);
    }
}

#[test]
fn closing_is_told_to_the_peer_only() {
    let mut world = two_nodes(1);
    connect(&mut world);
    world.nodes[0].app.order(0, 100_000, 0);
    world.nodes[1].app.is_mute = true;
    world.run_for(10 * MS);
    let session = world.nodes[0].app.sessions[0];
    let now_ns = world.now_ns;
    world.nodes[0].endpoint.close(now_ns, session);
    world.nodes[0].endpoint.close(now_ns, session);
    world.run_for(10 * MS);
    assert_eq!(world.nodes[0].app.losses(), []);
    assert_eq!(world.nodes[1].app.losses(), [LostReason::Closed]);
    assert_eq!(world.nodes[0].endpoint.pool().in_use(), 0);
    assert_eq!(world.nodes[0].endpoint.sessions().count(), 0);
    let body = world.nodes[1].endpoint.pool().in_use();
    assert_eq!(body, 1, "the body of the call that is served is its server's");
}

/// A lone reply to a peer that is gone is sent again and again: that must not look like a wait
/// that has just begun (simulation seed 3627).
#[test]
fn a_reply_without_a_taker_ends_the_session() {
    let mut world = two_nodes(1);
    connect(&mut world);
    world.nodes[1].app.is_mute = true;
    world.nodes[0].app.order(0, 0, 1000);
    world.run_for(50 * MS);
    world.nodes[0].is_down = true;
    world.nodes[1].app.is_mute = false;
    let down_ns = world.now_ns;
    let is_lost = |world: &mut World| !world.nodes[1].app.losses().is_empty();
    assert!(world.run_until(down_ns + 4 * SECOND, is_lost), "it is sent for ever");
    assert_eq!(world.nodes[1].app.losses(), [LostReason::Silent]);
    assert_eq!(world.nodes[1].endpoint.pool().in_use(), 0);
}
