//! Calls and replies over a network that loses, doubles, reorders and damages: each is delivered
//! once, whole and right, and nothing is left behind.

use crate::common::{Faults, MS, SECOND, World};
use random::Random;

/// Which seeds: the first ones, as many as `SEEDS` says if it says, or the one in `SEED` to replay
/// a failure.
fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("SEED") {
        Ok(seed) => vec![seed.parse().expect("SEED is a number")],
        Err(_) => {
            let count = std::env::var("SEEDS").map_or(count, |n| n.parse().expect("a number"));
            (1..=count).collect()
        }
    }
}

/// Runs a test for many seeds, and names the one that fails.
pub(crate) fn for_seeds(test: &str, count: u64, run: impl Fn(u64) + std::panic::RefUnwindSafe) {
    for seed in seeds(count) {
        if std::panic::catch_unwind(|| run(seed)).is_err() {
            panic!("failed; replay with SEED={seed} cargo test -p transport {test}");
        }
    }
}

pub(crate) fn two_nodes(seed: u64) -> World {
    let mut world = World::new(seed);
    let sizes = [1200, 1472, 8972, 65_507];
    let datagram_bytes_max = sizes[world.random.below(4) as usize];
    for name in ["vm1", "io1"] {
        let mut config = world.config(name);
        config.datagram_bytes_max = datagram_bytes_max;
        world.add(config);
    }
    world.connect(0, 1, "io1");
    world
}

fn body_bytes(random: &mut Random) -> usize {
    match random.below(10) {
        0 => 0,
        1..=3 => random.below(64) as usize,
        4..=6 => 4096,
        7 => random.below(20_000) as usize,
        8 => random.below(200_000) as usize,
        _ => [1 << 20, (1 << 20) - 1, 65_536, random.below(1 << 20) as usize]
            [random.below(4) as usize],
    }
}

/// Nothing is outstanding, nothing is in flight, and no buffer is held.
pub(crate) fn settle(world: &mut World) {
    world.faults = Faults::default();
    // A lost ping is only noticed by the next keep-alive.
    let end_ns = world.now_ns + 12 * SECOND;
    let is_settled = world.run_until(end_ns, |world| {
        world.nodes.iter().all(|node| {
            node.app.is_done()
                && node.endpoint.pool().in_use() == 0
                && node.endpoint.sessions().all(|session| session.in_flight_bytes == 0)
        })
    });
    for node in &world.nodes {
        assert_eq!(node.endpoint.pool().in_use(), 0, "a buffer leaks");
        for session in node.endpoint.sessions() {
            assert_eq!((session.calls_outstanding, session.calls_serving), (0, 0));
        }
    }
    assert!(is_settled, "it never comes to rest");
}

#[test]
fn a_call_and_its_reply() {
    let mut world = two_nodes(1);
    world.nodes[0].app.order(0, 4096, 4096);
    let end_ns = world.now_ns + SECOND;
    assert!(world.run_until(end_ns, |world| world.nodes[0].app.replies == 1));
    settle(&mut world);
    let counters = world.nodes[0].endpoint.counters();
    assert_eq!((counters.calls_sent, counters.replies_received), (1, 1));
    assert_eq!((counters.packets_lost, counters.dropped()), (0, 0));
}

#[test]
fn faults_of_all_kinds() {
    for_seeds("faults_of_all_kinds", 200, |seed| {
        let mut world = two_nodes(seed);
        let worst = world.random.below(4) * 40;
        world.faults = Faults {
            loss: world.random.below(worst + 1),
            duplicate: world.random.below(worst + 1),
            reorder: world.random.below(worst + 1),
            corrupt: world.random.below(worst / 2 + 1),
            truncate: world.random.below(worst / 4 + 1),
        };
        world.nodes[1].app.serve_ns = 2 * MS;
        world.nodes[0].app.outstanding_max = 1 + world.random.below(40) as usize;
        let count = 60;
        for _ in 0..count {
            let flow = world.random.below(6) as u16 * 51;
            let (call, reply) = (body_bytes(&mut world.random), body_bytes(&mut world.random));
            world.nodes[0].app.order(flow, call, reply);
        }
        let end_ns = world.now_ns + 60 * SECOND;
        let is_done = world.run_until(end_ns, |world| world.nodes[0].app.replies == count);
        assert!(is_done, "{} of {count} replies", world.nodes[0].app.replies);
        assert_eq!(world.nodes[1].app.executed_count, count);
        assert!(world.nodes[0].app.losses().is_empty(), "no session was lost");
        settle(&mut world);
    });
}

#[test]
fn both_sides_call_each_other() {
    for_seeds("both_sides_call_each_other", 30, |seed| {
        let mut world = two_nodes(seed);
        world.connect(1, 0, "vm1");
        world.faults = Faults { loss: 20, duplicate: 20, reorder: 20, ..Faults::default() };
        for node in 0..2 {
            world.nodes[node].app.outstanding_max = 16;
            for _ in 0..40 {
                let (call, reply) = (body_bytes(&mut world.random), body_bytes(&mut world.random));
                world.nodes[node].app.order(3, call, reply);
            }
        }
        let end_ns = world.now_ns + 60 * SECOND;
        let done = |world: &mut World| world.nodes.iter().all(|node| node.app.replies == 40);
        assert!(world.run_until(end_ns, done));
        settle(&mut world);
    });
}

#[test]
fn partitions_and_pauses_heal() {
    for_seeds("partitions_and_pauses_heal", 60, |seed| {
        let mut world = two_nodes(seed);
        world.faults = Faults { loss: 10, duplicate: 10, reorder: 10, ..Faults::default() };
        world.nodes[1].app.serve_ns = 5 * MS;
        world.nodes[0].app.outstanding_max = 20;
        for _ in 0..150 {
            let (call, reply) = (body_bytes(&mut world.random), body_bytes(&mut world.random));
            world.nodes[0].app.order(1, call, reply);
        }
        for _ in 0..6 {
            let time_ns = world.random.below(20 * MS);
            world.run_for(time_ns);
            let length_ns = world.random.below(2 * SECOND);
            if world.random.below(1000) < 500 {
                world.partitioned_until_ns = world.now_ns + length_ns;
            } else {
                let node = world.random.below(2) as usize;
                world.nodes[node].paused_until_ns = world.now_ns + length_ns;
            }
        }
        let end_ns = world.now_ns + 60 * SECOND;
        let is_done = world.run_until(end_ns, |world| world.nodes[0].app.replies == 150);
        assert!(is_done, "{} of 150 replies", world.nodes[0].app.replies);
        assert!(world.nodes[0].app.losses().is_empty(), "no session was lost");
        settle(&mut world);
    });
}

#[test]
fn crashes_of_either_side() {
    for_seeds("crashes_of_either_side", 60, |seed| {
        let mut world = two_nodes(seed);
        world.faults = Faults { loss: 10, duplicate: 30, reorder: 30, ..Faults::default() };
        world.nodes[1].app.serve_ns = 5 * MS;
        for crash in 0..5 {
            for node in &mut world.nodes {
                node.app.reconnects = true;
                node.app.outstanding_max = 20;
            }
            for _ in 0..30 {
                let (call, reply) = (body_bytes(&mut world.random), body_bytes(&mut world.random));
                world.nodes[0].app.order(1, call, reply);
            }
            let time_ns = world.random.below(40 * MS);
            world.run_for(time_ns);
            let node = (crash + seed as usize) % 2;
            world.nodes[node].is_down = true;
            let time_ns = world.random.below(200 * MS);
            world.run_for(time_ns);
            let config = world.config(["vm1", "io1"][node]);
            world.restart(node, config);
            if node == 0 {
                world.connect(0, 1, "io1");
            }
        }
        // Orders that were lost with a session are ordered again: no promise is broken by that
        // here.
        let end_ns = world.now_ns + 60 * SECOND;
        let is_done = world.run_until(end_ns, |world| {
            let app = &mut world.nodes[0].app;
            app.orders.extend(std::mem::take(&mut app.unknown));
            app.is_done()
        });
        assert!(is_done, "{} are outstanding", world.nodes[0].app.outstanding());
        settle(&mut world);
    });
}
