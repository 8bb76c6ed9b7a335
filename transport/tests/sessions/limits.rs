//! Limits, and the effect of reaching them; waits of one flow for another; the number of packets.

use crate::common::{Faults, MS, SECOND, World, addr, raw};
use random::Random;
use transport::{CallError, Endpoint, SessionStatus};

fn two_nodes(change: impl Fn(&mut transport::EndpointConfig)) -> World {
    let mut world = World::new(5);
    for name in ["vm1", "io1"] {
        let mut config = world.config(name);
        change(&mut config);
        world.add(config);
    }
    world.connect(0, 1, "io1");
    world.run_for(5 * MS);
    assert_eq!(world.nodes[0].app.sessions.len(), 1);
    world
}

fn status(endpoint: &Endpoint) -> SessionStatus {
    endpoint.sessions().next().expect("a session")
}

fn finish(world: &mut World, replies: u64) {
    let end_ns = world.now_ns + 60 * SECOND;
    let is_done = world.run_until(end_ns, |world| world.nodes[0].app.replies == replies);
    assert!(is_done, "{} of {replies} replies", world.nodes[0].app.replies);
    world.run_for(20 * MS);
    for node in &world.nodes {
        assert_eq!(node.endpoint.pool().in_use(), 0, "a buffer leaks");
    }
}

#[test]
fn a_full_table_says_so_and_works_on() {
    let mut world = two_nodes(|config| config.calls_max = 8);
    world.nodes[1].app.is_mute = true;
    for _ in 0..20 {
        world.nodes[0].app.order(0, 10, 10);
    }
    world.run_for(100 * MS);
    assert_eq!(world.nodes[0].app.outstanding(), 8);
    assert!(world.nodes[0].app.full > 0);
    assert_eq!(world.nodes[0].endpoint.counters().calls_full, world.nodes[0].app.full);
    assert_eq!(status(&world.nodes[0].endpoint).calls_outstanding, 8);
    assert_eq!(status(&world.nodes[1].endpoint).calls_serving, 8);
    world.nodes[1].app.is_mute = false;
    finish(&mut world, 20);
}

#[test]
fn the_smaller_table_and_datagram_of_both_ends_are_used() {
    let mut world = World::new(1);
    for (name, calls_max, datagram_bytes_max) in [("vm1", 100, 1472), ("io1", 4, 8972)] {
        let mut config = world.config(name);
        (config.calls_max, config.datagram_bytes_max) = (calls_max, datagram_bytes_max);
        world.add(config);
    }
    world.tap = Some(Vec::new());
    world.connect(0, 1, "io1");
    for _ in 0..10 {
        world.nodes[0].app.order(0, 50_000, 50_000);
    }
    world.nodes[1].app.is_mute = true;
    world.run_for(50 * MS);
    assert_eq!(world.nodes[0].app.outstanding(), 4);
    world.nodes[1].app.is_mute = false;
    finish(&mut world, 10);
    for node in &world.nodes {
        assert_eq!(status(&node.endpoint).datagram_bytes_max, 1472);
    }
    assert!(world.tap.expect("a tap").iter().all(|(.., bytes)| bytes.len() <= 1472));
}

#[test]
fn calls_without_a_session_are_not_taken() {
    let mut world = two_nodes(|_| {});
    let now_ns = world.now_ns;
    let endpoint = &mut world.nodes[0].endpoint;
    let connecting = endpoint.connect(now_ns, addr(7), "", 0);
    let called = endpoint.call(now_ns, connecting, 0, 1, b"", None);
    assert_eq!(called, Err(CallError::NotConnected));
    endpoint.close(now_ns, connecting);
    let called = endpoint.call(now_ns, connecting, 0, 1, b"", None);
    assert_eq!(called, Err(CallError::NotConnected));
}

#[test]
fn a_forgotten_call_goes_on_without_events() {
    let mut world = two_nodes(|_| {});
    world.nodes[1].app.serve_ns = MS;
    let now_ns = world.now_ns;
    let node = &mut world.nodes[0];
    let session = node.app.sessions[0];
    // The application does not know this token, so an event would make it fail.
    node.app.order(0, 0, 100_000);
    let order = node.app.orders.pop_front().expect("an order");
    let head = order.write();
    node.endpoint.call(now_ns, session, 0, order.token, &head, None).expect("room");
    node.endpoint.forget(session, order.token);
    assert_eq!(status(&node.endpoint).calls_outstanding, 1);
    world.run_for(20 * MS);
    assert_eq!(status(&world.nodes[0].endpoint).calls_outstanding, 0);
    assert_eq!(world.nodes[0].endpoint.counters().replies_received, 1);
    assert_eq!(world.nodes[1].endpoint.pool().in_use(), 0);
}

#[test]
fn credit_bounds_what_a_flow_brings_and_others_go_on() {
    let mut world = two_nodes(|config| config.flow_window_bytes = 4 << 20);
    world.nodes[1].app.is_mute = true;
    for _ in 0..10 {
        world.nodes[0].app.order(1, 1 << 20, 0);
    }
    for flow in 2..6 {
        world.nodes[0].app.order(flow, 100_000, 0);
    }
    world.nodes[0].app.order(1, 0, 1 << 20);
    world.run_for(300 * MS);
    // Four of the flow that is out of credit, four of the others, and the one without a body.
    assert_eq!(status(&world.nodes[1].endpoint).calls_serving, 9);
    assert_eq!(world.nodes[1].endpoint.pool().in_use(), 8);
    assert_eq!(world.nodes[0].endpoint.counters().calls_waited_for_credit, 6);
    world.nodes[1].app.is_mute = false;
    finish(&mut world, 15);
    assert_eq!(world.nodes[1].endpoint.counters().dropped_no_buffer, 0);
}

#[test]
fn lost_credit_is_announced_again() {
    for seed in 1..40 {
        let mut world = two_nodes(|config| config.flow_window_bytes = 2 << 20);
        world.random = Random::new(seed);
        world.faults = Faults { loss: 200, ..Faults::default() };
        for _ in 0..40 {
            world.nodes[0].app.order(1, 300_000, 0);
        }
        let end_ns = world.now_ns + 60 * SECOND;
        let is_done = world.run_until(end_ns, |world| world.nodes[0].app.replies == 40);
        assert!(is_done, "seed {seed}: {} replies", world.nodes[0].app.replies);
    }
}

#[test]
fn an_exhausted_pool_delays_calls_and_loses_none() {
    let mut world = two_nodes(|config| config.pool_bytes_max = 4 << 20);
    // The caller has room; eight flows have credit for more than the receiver holds.
    let config = world.config("vm1");
    world.restart(0, config);
    world.connect(0, 1, "io1");
    world.nodes[1].app.serve_ns = 3 * MS;
    for call in 0..100 {
        world.nodes[0].app.order(call % 8, 900_000, 0);
    }
    finish(&mut world, 100);
    assert!(world.nodes[1].endpoint.counters().dropped_no_buffer > 0);
    assert!(world.nodes[1].app.buffers_max <= 3);
    assert_eq!(world.nodes[1].app.executed_count, 100);
}

#[test]
fn two_full_nodes_still_take_each_others_calls() {
    let mut world = two_nodes(|config| config.pool_bytes_max = 4 << 20);
    world.connect(1, 0, "vm1");
    for node in 0..2 {
        for _ in 0..60 {
            world.nodes[node].app.order(0, 1 << 20, 0);
        }
    }
    let end_ns = world.now_ns + 60 * SECOND;
    let done = |world: &mut World| world.nodes.iter().all(|node| node.app.replies == 60);
    assert!(world.run_until(end_ns, done));
}

#[test]
fn small_calls_pass_large_bodies() {
    let mut world = two_nodes(|config| config.datagram_bytes_max = 1472);
    world.tap = Some(Vec::new());
    // One less than the flow has credit for.
    for _ in 0..7 {
        world.nodes[0].app.order(1, 1 << 20, 0);
    }
    world.run_for(10_000);
    // Bodies are on their way now, 5000 datagrams in all. A small call on another flow, and one on
    // the same flow, must not wait for them.
    for flow in [2, 1] {
        let before = world.tap.as_ref().map_or(0, Vec::len);
        let token = world.nodes[0].app.order(flow, 8, 8);
        let end_ns = world.now_ns + SECOND;
        let is_answered = |world: &mut World| world.nodes[0].app.finished.contains(&token);
        assert!(world.run_until(end_ns, is_answered));
        let tap = world.tap.as_ref().expect("a tap");
        let small = |bytes: &[u8]| bytes.len() < 400 && raw::frames_bytes(bytes) > 24;
        let position =
            tap[before..].iter().position(|(_, from, _, bytes)| *from == addr(0) && small(bytes));
        let position = position.expect("the small call left");
        assert!(position <= 64, "after {position} datagrams, more than one batch");
    }
    finish(&mut world, 9);
}

#[test]
fn large_flows_share_alike() {
    let mut world = two_nodes(|config| config.datagram_bytes_max = 1472);
    for flow in 0..4 {
        for _ in 0..6 {
            world.nodes[0].app.order(flow, 1 << 20, 0);
        }
    }
    finish(&mut world, 24);
    // Call n of each flow is done before call n+2 of any: no flow was delayed.
    let finished = &world.nodes[0].app.finished;
    for (position, token) in finished.iter().enumerate() {
        let rank = (token - 1) % 6;
        let ahead = finished[..position].iter().filter(|&&t| (t - 1) % 6 >= rank + 2).count();
        assert_eq!(ahead, 0, "in {finished:?}");
    }
}

#[test]
fn a_large_body_leaves_in_datagrams_of_one_size() {
    let mut world = two_nodes(|_| {});
    world.tap = Some(Vec::new());
    world.nodes[0].app.order(1, 1 << 20, 1 << 20);
    finish(&mut world, 1);
    let tap = world.tap.expect("a tap");
    for node in 0..2 {
        let large: Vec<&Vec<u8>> = tap
            .iter()
            .filter(|(_, from, _, bytes)| *from == addr(node) && bytes.len() > 500)
            .map(|(.., bytes)| bytes)
            .collect();
        assert_eq!(large.len(), 118);
        let (last, rest) = large.split_last().expect("some");
        // The least length with which there are no more, and the room for an acknowledgement.
        let length = rest[0].len();
        assert!((8930..8972).contains(&length), "{length}");
        assert!(rest.iter().all(|bytes| bytes.len() == length) && last.len() <= length);
        for pair in large.windows(2) {
            assert_eq!(raw::number(pair[0]) + 1, raw::number(pair[1]), "in sequence");
        }
        assert!(rest[1..].iter().all(|bytes| raw::frames_bytes(bytes) == 20));
    }
}

#[test]
fn a_peer_of_version_five_gets_pieces_as_long_as_they_can_be() {
    for older in ["vm1", "io1"] {
        let mut world = two_nodes(|config| {
            if config.name == older {
                config.versions = 2..=5;
            }
        });
        world.faults = Faults { loss: 100, ..Faults::default() };
        world.tap = Some(Vec::new());
        for _ in 0..20 {
            world.nodes[0].app.order(1, 100_000, 100_000);
        }
        finish(&mut world, 20);
        let tap = world.tap.expect("a tap");
        let longest = tap.iter().map(|(.., bytes)| bytes.len()).max();
        assert_eq!(longest, Some(8972));
    }
}

#[test]
fn acknowledgements_ride_along() {
    let mut world = two_nodes(|_| {});
    world.run_for(50 * MS);
    world.tap = Some(Vec::new());
    world.nodes[0].app.outstanding_max = 1;
    for _ in 0..1000 {
        world.nodes[0].app.order(0, 0, 4096);
    }
    finish(&mut world, 1000);
    // One datagram each way, and one acknowledgement at the end.
    assert!((2000..=2003).contains(&world.tap.as_ref().map_or(0, Vec::len)));
    let acks: u64 = world.nodes.iter().map(|node| node.endpoint.counters().acks_sent).sum();
    assert!(acks <= 4, "{acks} datagrams with nothing but an acknowledgement");
}

#[test]
fn small_calls_share_datagrams() {
    let mut world = two_nodes(|_| {});
    world.run_for(50 * MS);
    world.tap = Some(Vec::new());
    for _ in 0..200 {
        world.nodes[0].app.order(0, 0, 0);
    }
    finish(&mut world, 200);
    let sent = world.tap.as_ref().map_or(0, Vec::len);
    assert!(sent < 130, "{sent} datagrams for 200 calls and replies");
}

#[test]
fn persistent_loss_shrinks_the_window_and_its_end_opens_it() {
    let mut world = two_nodes(|_| {});
    let load = |world: &mut World| {
        for _ in 0..100 {
            world.nodes[0].app.order(0, 1 << 20, 0);
        }
        world.run_for(30 * MS);
        status(&world.nodes[0].endpoint).window_bytes
    };
    let before_bytes = load(&mut world);
    world.faults = Faults { loss: 150, ..Faults::default() };
    let during_bytes = load(&mut world);
    world.faults = Faults::default();
    let after_bytes = load(&mut world);
    assert!(during_bytes < before_bytes / 4, "{during_bytes} of {before_bytes}");
    assert!(after_bytes > before_bytes / 2, "{after_bytes} of {before_bytes}");
    finish(&mut world, 300);
}

/// Our own process did not run, so packets that came meanwhile may not have been taken in. A
/// process that is late each time asks all the same.
#[test]
fn a_late_look_at_a_timer_is_no_loss() {
    let mut world = two_nodes(|_| {});
    world.nodes[1].is_down = true;
    world.nodes[0].app.order(0, 100, 100);
    world.run_for(10_000);
    let node = &mut world.nodes[0];
    let due_ns = node.endpoint.next_timeout_ns().expect("a probe");
    let probes = |node: &crate::common::Node| node.endpoint.counters().probes_sent;
    assert_eq!(probes(node), 0);
    node.endpoint.advance(due_ns + 10 * MS, &mut node.app);
    assert_eq!(probes(node), 0);
    assert_eq!(node.endpoint.next_timeout_ns(), Some(due_ns + 11 * MS));
    node.endpoint.advance(due_ns + 30 * MS, &mut node.app);
    assert_eq!(probes(node), 1);
}

/// Time-outs are found without a look at each session.
#[test]
fn a_thousand_idle_sessions_keep_their_times() {
    let mut world = two_nodes(|_| {});
    for _ in 0..1000 {
        let now_ns = world.now_ns;
        world.nodes[0].endpoint.connect(now_ns, addr(9), "io1", 0);
        world.run_for(20_000);
    }
    world.run_for(SECOND);
    let sent = world.nodes[0].endpoint.counters().datagrams_sent;
    world.run_for(SECOND);
    // Each asks ten times a second.
    let more = world.nodes[0].endpoint.counters().datagrams_sent - sent;
    assert!((9_900..10_100).contains(&more), "{more}");
}

#[test]
fn the_window_is_kept() {
    let mut world = two_nodes(|config| config.receive_window_bytes = 512 << 10);
    for _ in 0..8 {
        world.nodes[0].app.order(0, 1 << 20, 0);
    }
    let end_ns = world.now_ns + SECOND;
    let is_over = |world: &mut World| {
        let status = status(&world.nodes[0].endpoint);
        assert!(status.in_flight_bytes <= status.window_bytes + 10_000);
        world.nodes[0].app.replies == 8
    };
    assert!(world.run_until(end_ns, is_over));
}
