//! A hundred thousand Hellos a second: they cost memory that is bounded, and no curve.

use std::net::{Ipv4Addr, SocketAddr};

use crate::common::{MS, SECOND, World, addr, raw};
use crate::handshake::{connect, connected, tapped, two_nodes};
use crate::packets::sealed;
use random::Random;

/// A second of Hellos from addresses that no node has, with a session at work beside them. Says how
/// many sessions the victim has while it goes on.
fn flood(
    world: &mut World,
    mut hello: impl FnMut(&mut Random, u64) -> (SocketAddr, Vec<u8>),
) -> usize {
    const PER_MS: u64 = 100;
    let mut random = Random::new(77);
    let replies = world.nodes[0].app.replies;
    let mut ordered = 0;
    for count in 0..100_000 {
        let (from, bytes) = hello(&mut random, count);
        world.inject(from, addr(1), bytes, 1 + random.below(MS));
        if count % PER_MS == 0 {
            // The tap would hold them all.
            world.tap = None;
            world.nodes[0].app.order(0, 2_000, 2_000);
            ordered += 1;
            world.run_for(MS);
            let state_bytes: usize =
                world.nodes[1].endpoint.sessions().map(|status| status.state_bytes).sum();
            assert!(state_bytes < 4 << 20, "{state_bytes} bytes of state");
        }
    }
    let sessions = connected(world, 1);
    world.run_for(100 * MS);
    assert_eq!(world.nodes[0].app.replies - replies, ordered, "every call was answered");
    assert_eq!(world.nodes[0].app.losses(), []);
    sessions
}

fn spoofed(random: &mut Random) -> SocketAddr {
    SocketAddr::from((
        Ipv4Addr::from(random.draw() as u32 | 0x8000_0000),
        1024 + random.below(60_000) as u16,
    ))
}

#[test]
fn hellos_without_a_cookie_cost_no_curve_and_no_state() {
    let mut world = two_nodes(1);
    connect(&mut world);
    let real = tapped(&world, 0, raw::HELLO).remove(0);
    let before = world.nodes[1].endpoint.counters().clone();
    flood(&mut world, |random, count| {
        let mut hello = real.clone();
        // Another session each time, and a changed message.
        hello[raw::HEADER + 8..raw::HEADER + 16].copy_from_slice(&(count + 1).to_le_bytes());
        let at = 160 + random.below(200) as usize;
        hello[at] ^= 0xff;
        raw::guard(&mut hello);
        (spoofed(random), hello)
    });
    let counters = world.nodes[1].endpoint.counters();
    assert_eq!(counters.public_key_operations, before.public_key_operations);
    assert_eq!(counters.retries_sent - before.retries_sent, 100_000);
    assert_eq!(world.nodes[1].endpoint.sessions().count(), 1);
    // And a newcomer gets in, while it goes on.
    let config = world.config("vm2");
    world.add(config);
    world.connect(2, 1, "io1");
    let sessions = flood(&mut world, |random, _| (spoofed(random), real.clone()));
    assert_eq!(sessions, 2);
}

/// A host with an address of its own gets a cookie, and replays a recorded message under it.
#[test]
fn hellos_with_a_cookie_are_limited() {
    let mut world = two_nodes(1);
    connect(&mut world);
    let real = raw::bare(tapped(&world, 0, raw::HELLO).remove(1));
    world.inject(addr(8), addr(1), real.clone(), 0);
    world.run_for(MS);
    let retry = tapped(&world, 1, raw::RETRY).pop().expect("a cookie");
    let cookie = retry[raw::HEADER..raw::HEADER + 16].to_vec();
    let before = world.nodes[1].endpoint.counters().clone();
    flood(&mut world, |random, _| {
        let mut hello = real.clone();
        let at = raw::HEADER + 104;
        hello[at + 8..at + 24].copy_from_slice(&cookie);
        // Each another message, so that none is known.
        hello[at + 24..at + 32].copy_from_slice(&random.draw().to_le_bytes());
        raw::guard(&mut hello);
        (addr(8), hello)
    });
    let counters = world.nodes[1].endpoint.counters();
    let operations = counters.public_key_operations - before.public_key_operations;
    assert!((100..=600).contains(&operations), "{operations} operations in a second");
    assert!(counters.dropped_hello_limited - before.dropped_hello_limited > 99_000);
    assert_eq!(world.nodes[1].endpoint.sessions().count(), 1);
}

/// A listener says one recorded Hello again and again, in the name of its sender's address, which
/// wants another session meanwhile.
#[test]
fn a_recorded_hello_does_not_keep_its_sender_out() {
    for per_s in [200, 5_000] {
        let mut world = two_nodes(1);
        connect(&mut world);
        let recorded = tapped(&world, 0, raw::HELLO).remove(1);
        let session = world.nodes[0].endpoint.sessions().next().expect("it is").session;
        let now_ns = world.now_ns;
        world.nodes[0].endpoint.close(now_ns, session);
        world.tap = None;
        let operations = world.nodes[1].endpoint.counters().public_key_operations;
        let say_again = |world: &mut World| {
            world.inject(addr(0), addr(1), recorded.clone(), 0);
            world.run_for(SECOND / per_s);
        };
        (0..per_s).for_each(|_| say_again(&mut world));
        let counters = world.nodes[1].endpoint.counters();
        assert_eq!(counters.public_key_operations, operations, "it is known");
        world.connect(0, 1, "io1");
        for _ in 0..per_s {
            say_again(&mut world);
        }
        assert_eq!(connected(&world, 0), 1, "while {per_s} come in a second");
        let status = world.nodes[0].endpoint.sessions().next().expect("a session");
        assert_eq!(status.datagram_bytes_max, 8_972);
    }
}

/// Hellos of a node's earlier lives, recorded and said again from addresses that have cookies: they
/// fill their node's places, and a newcomer gets in all the same.
#[test]
fn recorded_hellos_do_not_keep_a_newcomer_out() {
    let mut world = two_nodes(1);
    for life in 0..150 {
        let config = world.config("vm1");
        let node = world.add_at(config, addr(20 + life));
        world.connect(node, 1, "io1");
        let is_welcome = |world: &mut World| tapped(world, 1, raw::WELCOME).len() > life;
        assert!(world.run_until(world.now_ns + SECOND, is_welcome));
        world.nodes[node].is_down = true;
    }
    assert_eq!(world.nodes[1].endpoint.sessions().count(), 64);
    assert_eq!(world.nodes[1].endpoint.counters().dropped_hello_full, 150 - 64);
    let config = world.config("vm2");
    let node = world.add_at(config, addr(200));
    world.connect(node, 1, "io1");
    assert!(world.run_until(world.now_ns + 50 * MS, |world| connected(world, 1) == 1));
}

#[test]
fn packets_of_no_session_do_not_keep_a_newcomer_out() {
    let mut world = two_nodes(1);
    connect(&mut world);
    let config = world.config("vm2");
    world.add(config);
    world.connect(2, 1, "io1");
    let strange = |random: &mut Random| sealed(random.draw() | 1 << 63, 0, &[7; 30]);
    let sessions = flood(&mut world, |random, _| (spoofed(random), strange(random)));
    assert_eq!(sessions, 2);
    let end_ns = world.now_ns + SECOND;
    assert!(world.run_until(end_ns, |world| world.nodes[1].app.is_done()));
}
