//! Casts over a network that loses, doubles, reorders and damages. Casts arrive whole, right, and
//! in order; little is lost, and nothing is left behind.

use crate::common::frames::ToCast;
use crate::common::{Faults, MS, SECOND, World};
use crate::exchange::{for_seeds, settle, two_nodes};
use transport::{CAST_MAX, CastError, EndpointCounters};

const US: u64 = 1_000;

/// Has both ends listen to these flows, and waits for the session.
fn listening(world: &mut World, flows: &[u16]) {
    world.nodes.iter_mut().for_each(|node| node.app.frames.flows = flows.to_vec());
    let end_ns = world.now_ns + SECOND;
    let both =
        |world: &mut World| world.nodes.iter().all(|node| !node.app.frames.sessions.is_empty());
    assert!(world.run_until(end_ns, both));
    // Both have opened their flows.
    world.run_for(MS);
}

fn cast(world: &mut World, node: usize, at_ns: u64, flow: u16, body_bytes: usize) {
    let frame = ToCast { at_ns, flow, body_bytes };
    world.nodes[node].app.frames.to_cast.push_back(frame);
}

fn counters(world: &World, node: usize) -> &EndpointCounters {
    world.nodes[node].endpoint.counters()
}

fn frame_bytes(world: &mut World) -> usize {
    match world.random.below(6) {
        0 => 0,
        1 => world.random.below(200) as usize,
        2 => 1500,
        3 => world.random.below(9000) as usize,
        4 => world.random.below(CAST_MAX as u64 + 1) as usize,
        _ => CAST_MAX,
    }
}

#[test]
fn frames_of_all_sizes_arrive_in_order_and_leave_nothing() {
    for_seeds("frames_of_all_sizes_arrive_in_order_and_leave_nothing", 20, |seed| {
        let mut world = two_nodes(seed);
        listening(&mut world, &[0, 3, 255]);
        let mut at_ns = world.now_ns;
        for count in 0..600 {
            at_ns += world.random.below(200) * US;
            let body_bytes = frame_bytes(&mut world);
            let flow = [0, 3, 255][world.random.below(3) as usize];
            cast(&mut world, count % 2, at_ns, flow, body_bytes);
        }
        world.run_for(at_ns - world.now_ns + SECOND);
        settle(&mut world);
        for (node, other) in [(0, 1), (1, 0)] {
            let sent = world.nodes[node].app.frames.sent;
            assert_eq!((sent, world.nodes[other].app.frames.received), (300, 300));
            let counters = counters(&world, node);
            assert_eq!((counters.casts_given_up, counters.casts_missed), (0, 0));
        }
    });
}

#[test]
fn frames_are_whole_and_in_order_and_calls_continue_over_any_network() {
    for_seeds("whatever_the_network_does_frames_are_whole_and_in_order", 150, |seed| {
        let mut world = two_nodes(seed);
        listening(&mut world, &[0, 9]);
        let worst = world.random.below(4) * 40;
        world.faults = Faults {
            loss: world.random.below(worst + 1),
            duplicate: world.random.below(worst + 1),
            reorder: world.random.below(worst + 1),
            corrupt: world.random.below(worst / 2 + 1),
            truncate: world.random.below(worst / 4 + 1),
        };
        world.nodes[0].app.outstanding_max = 8;
        for _ in 0..30 {
            let bytes = world.random.below(100_000) as usize;
            world.nodes[0].app.order(9, bytes, bytes);
        }
        let mut at_ns = world.now_ns;
        for count in 0..500 {
            at_ns += world.random.below(100) * US;
            let body_bytes = frame_bytes(&mut world);
            let flow = [0, 9][world.random.below(2) as usize];
            cast(&mut world, count % 2, at_ns, flow, body_bytes);
        }
        let end_ns = world.now_ns + 60 * SECOND;
        assert!(world.run_until(end_ns, |world| world.nodes[0].app.replies == 30));
        world.run_for(SECOND);
        settle(&mut world);
        for (node, other) in [(0, 1), (1, 0)] {
            let (from, to) = (&world.nodes[node].app.frames, &world.nodes[other].app.frames);
            assert_eq!(from.sent + from.refused, 250);
            let given_up = counters(&world, node).casts_given_up;
            let overdue = counters(&world, node).casts_overdue;
            let lost = from.sent - to.received;
            // A cast that the sender gives up may have arrived, and a cast that came too late does
            // not count.
            let missed = counters(&world, other).casts_missed;
            assert!(lost <= given_up + overdue + missed, "{lost} of {given_up}, {missed}");
            assert!(worst > 0 || lost == 0, "nothing was lost on the way, and {lost} here");
        }
    });
}

#[test]
fn a_lost_datagram_does_not_cost_its_frame_and_holds_up_no_other_flow() {
    for_seeds("a_lost_datagram_does_not_cost_its_frame", 50, |seed| {
        let mut world = two_nodes(seed);
        listening(&mut world, &[0]);
        world.faults = Faults { loss: 5, ..Faults::default() };
        let mut at_ns = world.now_ns;
        for _ in 0..2000 {
            at_ns += 150 * US;
            cast(&mut world, 0, at_ns, 0, CAST_MAX);
        }
        world.run_for(at_ns - world.now_ns + SECOND);
        settle(&mut world);
        let lost = world.nodes[0].app.frames.sent - world.nodes[1].app.frames.received;
        assert!(world.struck.lost > 10, "{:?}", world.struck);
        assert_eq!((world.nodes[0].app.frames.refused, lost), (0, 0));
        let resent = counters(&world, 0).fragments_resent;
        // A probe sends two at once, and what is late is sent twice.
        assert!(resent < 3 * world.struck.lost, "{resent} for {}", world.struck.lost);
    });
}

/// A peer acknowledges packets, of which short frames share one; but each takes a place in its
/// flow's window until then.
#[test]
fn bursts_of_short_frames_do_not_fill_their_window_while_the_peer_listens() {
    for_seeds("bursts_of_short_frames_do_not_fill_their_window", 10, |seed| {
        let mut world = two_nodes(seed);
        world.nodes.iter_mut().for_each(|node| node.app.frames.has_short_heads = true);
        listening(&mut world, &[0]);
        let mut at_ns = world.now_ns;
        for _ in 0..100 {
            // Sooner than a peer acknowledges what does not hurry.
            at_ns += 400 * US;
            (0..380).for_each(|_| cast(&mut world, 0, at_ns, 0, 0));
        }
        world.run_for(at_ns - world.now_ns + SECOND);
        settle(&mut world);
        let (from, to) = (&world.nodes[0].app.frames, &world.nodes[1].app.frames);
        assert_eq!((from.refused, to.received), (0, 100 * 380));
    });
}

#[test]
fn a_frame_that_cannot_arrive_is_given_up_and_those_behind_it_follow() {
    let mut world = two_nodes(2);
    listening(&mut world, &[0]);
    let now_ns = world.now_ns;
    (0..3).for_each(|_| cast(&mut world, 0, now_ns, 0, 500));
    world.run_for(MS);
    assert_eq!(world.nodes[1].app.frames.received, 3);
    world.run_for(5 * MS);
    world.partitioned_until_ns = world.now_ns + 50 * MS;
    let now_ns = world.now_ns;
    cast(&mut world, 0, now_ns, 0, 20_000);
    world.run_for(60 * MS);
    let now_ns = world.now_ns;
    cast(&mut world, 0, now_ns, 0, 0);
    world.run_for(5 * MS);
    assert_eq!(world.nodes[1].app.frames.received, 4, "the one behind it");
    assert_eq!((counters(&world, 0).casts_given_up, counters(&world, 1).casts_missed), (1, 1));
    settle(&mut world);
}

#[test]
fn a_peer_that_stands_still_costs_what_was_sent_meanwhile_and_no_more() {
    let mut world = two_nodes(3);
    listening(&mut world, &[0, 1]);
    world.nodes[1].paused_until_ns = world.now_ns + 2 * SECOND;
    let mut at_ns = world.now_ns;
    for _ in 0..20_000 {
        at_ns += 100 * US;
        cast(&mut world, 0, at_ns, 0, 3_000);
    }
    world.run_for(2 * SECOND + 500 * MS);
    let in_use_max = world.nodes[0].app.buffers_max;
    assert!(in_use_max <= 2 * transport::CAST_WINDOW, "{in_use_max} buffers");
    let counters = counters(&world, 0).clone();
    assert!(counters.casts_overdue > 10 && counters.casts_refused > 1_000, "{counters:?}");
    let received = world.nodes[1].app.frames.received;
    let now_ns = world.now_ns;
    (0..10).for_each(|_| cast(&mut world, 0, now_ns, 0, 3_000));
    world.run_for(50 * MS);
    assert_eq!(world.nodes[1].app.frames.received, received + 10);
    assert!(world.nodes[0].app.losses().is_empty());
    settle(&mut world);
}

#[test]
fn a_flow_without_a_listener_is_dropped_and_a_late_one_is_heard() {
    let mut world = two_nodes(4);
    listening(&mut world, &[]);
    let now_ns = world.now_ns;
    (0..20).for_each(|_| cast(&mut world, 0, now_ns, 7, 5_000));
    world.run_for(5 * MS);
    assert!(counters(&world, 1).casts_unwanted >= 20);
    assert_eq!(world.nodes[1].endpoint.pool().in_use(), 0);
    world.nodes[1].app.frames.flows = vec![7];
    world.run_for(MS);
    let now_ns = world.now_ns;
    (0..20).for_each(|_| cast(&mut world, 0, now_ns + 1, 7, 5_000));
    world.run_for(5 * MS);
    assert_eq!(world.nodes[1].app.frames.received, 20);
    let session = world.nodes[1].app.frames.sessions[0];
    world.nodes[1].endpoint.close_casts(session, 7);
    let now_ns = world.now_ns;
    (0..20).for_each(|_| cast(&mut world, 0, now_ns + 1, 7, 5_000));
    world.run_for(5 * MS);
    assert_eq!(world.nodes[1].app.frames.received, 20);
    settle(&mut world);
}

#[test]
fn an_older_session_carries_none() {
    let mut world = World::new(6);
    for (name, versions) in [("vm1", 2..=4), ("io1", 2..=3)] {
        let mut config = world.config(name);
        config.versions = versions;
        world.add(config);
    }
    world.connect(0, 1, "io1");
    listening(&mut world, &[0]);
    let node = &mut world.nodes[0];
    let cast = node.endpoint.cast(world.now_ns, node.app.frames.sessions[0], 0, b"head", None);
    assert_eq!(cast, Err(CastError::Version));
    assert_eq!(node.endpoint.counters().casts_refused, 1);
}

/// The price of lost datagrams for a stream of large frames: printed; only the figures that do not
/// depend on chance are asserted.
#[test]
fn a_thousandth_of_lost_datagrams_costs_a_stream_of_large_frames_little() {
    println!("64 KiB every 60 us (8.7 Gbit/s), 40 us there and back, 20000 frames:");
    for (datagram_bytes_max, loss) in [(8972, 0), (8972, 1), (1472, 0), (1472, 1)] {
        let mut world = World::new(7);
        for name in ["vm1", "io1"] {
            let mut config = world.config(name);
            config.datagram_bytes_max = datagram_bytes_max;
            world.add(config);
        }
        world.connect(0, 1, "io1");
        listening(&mut world, &[0]);
        world.faults = Faults { loss, ..Faults::default() };
        let mut at_ns = world.now_ns;
        for _ in 0..20_000 {
            at_ns += 60 * US;
            cast(&mut world, 0, at_ns, 0, CAST_MAX - 1024);
        }
        world.run_for(at_ns - world.now_ns + SECOND);
        let counters = counters(&world, 0).clone();
        let (datagrams, resent) = (counters.datagrams_sent, counters.fragments_resent);
        let frames = &mut world.nodes[1].app.frames;
        frames.delays_ns.sort_unstable();
        let delay_us = |per_mille: usize| {
            frames.delays_ns[(frames.delays_ns.len() - 1) * per_mille / 1000] / US
        };
        println!(
            "  datagrams of {datagram_bytes_max}, {} % lost: {} of {datagrams}, {resent} fragments \
             again, {} frames lost; a frame takes {} us (median), {} (p99), {} (longest)",
            loss as f64 / 10.0,
            world.struck.lost,
            20_000 - frames.received,
            delay_us(500),
            delay_us(990),
            delay_us(1000),
        );
        assert_eq!(frames.received, 20_000);
        // Each that was lost, and those for which the proof came late.
        assert!(resent <= 2 * world.struck.lost, "{resent} for {}", world.struck.lost);
        settle(&mut world);
    }
}

#[test]
fn an_owner_that_keeps_what_it_gets_loses_frames_and_nothing_else() {
    let mut world = World::new(5);
    for name in ["vm1", "io1"] {
        let mut config = world.config(name);
        config.pool_bytes_max = 8 << 20;
        world.add(config);
    }
    world.connect(0, 1, "io1");
    listening(&mut world, &[0]);
    world.nodes[1].app.frames.holds = true;
    let mut at_ns = world.now_ns;
    for _ in 0..400 {
        at_ns += 200 * US;
        cast(&mut world, 0, at_ns, 0, CAST_MAX);
    }
    world.nodes[0].app.order(1, 100, 100);
    world.run_for(at_ns - world.now_ns + SECOND);
    let received = world.nodes[1].app.frames.received;
    // Three quarters of the pool are for what arrives, and half of that for one peer: also of what
    // the owner has and does not give back.
    assert!((40..=48).contains(&received), "{received}");
    assert_eq!(counters(&world, 1).casts_no_buffer, 400 - received);
    assert_eq!(world.nodes[0].endpoint.pool().in_use(), 0);
}
