//! A peer's large part does not keep others from theirs: a hostile peer of many sessions, written
//! by hand, beside a node that goes on working.

use crate::common::app::{ORDER_BYTES, Order};
use crate::common::{MS, World, addr, raw};
use crate::hostile::{Quiet, hostile_session_at};
use crate::strange;
use transport::{Endpoint, PeerShare};

/// Of a refusal: the connector's node has as many sessions as it may.
const SESSIONS_FULL: u8 = 9;

fn world(change: impl Fn(&mut transport::EndpointConfig)) -> World {
    let mut world = World::new(4);
    for name in ["vm1", "io1"] {
        let mut config = world.config(name);
        config.pool_bytes_max = 32 << 20;
        change(&mut config);
        world.add(config);
    }
    world
}

/// Opens sessions with these indices, as many as it gets.
fn open(world: &mut World, count: u16) -> Vec<Result<u64, Vec<u8>>> {
    let (now_ns, mut sink) = (world.now_ns, Quiet::default());
    let endpoint = &mut world.nodes[1].endpoint;
    (0..count).map(|index| hostile_session_at(endpoint, now_ns, index, &mut sink)).collect()
}

/// The hostile peer goes on being there, and acknowledges nothing.
fn stay(world: &mut World, sessions: &[u64]) {
    for &session in sessions {
        for ping in 0..40 {
            let number = 1_000_000 + ping;
            let packet = raw::packet(raw::DATA, session, number, &[1], &[]);
            world.inject(addr(6), addr(1), packet, ping * 20 * MS);
        }
    }
}

fn share_of(endpoint: &Endpoint, name: &str) -> PeerShare {
    let mut peers = endpoint.peers().filter(|share| share.peer.name == name);
    peers.next().expect("it has a session")
}

#[test]
fn half_sent_calls_of_many_sessions_take_one_peers_part() {
    let mut world = world(|_| {});
    let sessions: Vec<u64> = open(&mut world, 16).into_iter().map(Result::unwrap).collect();
    let (now_ns, mut sink) = (world.now_ns, Quiet::default());
    let endpoint = &mut world.nodes[1].endpoint;
    for &session in &sessions {
        for call in 0..100 {
            let frame = strange::fragment(5, 0, call as u16, 1 << 20, 1024 + call, 0);
            let packet = raw::packet(raw::DATA, session, 1 + call, &frame, &[0; 8920]);
            endpoint.receive(now_ns, now_ns, addr(6), &packet, &mut sink);
        }
    }
    // Half of the three quarters that are for what arrives.
    assert_eq!(endpoint.pool().in_use(), 12);
    let share = share_of(endpoint, "mallory");
    assert!(share.calls_bytes.is_at_limit() && share.calls_bytes.refused > 0, "{share:?}");
    assert_eq!((share.calls_bytes.has, share.sessions.has), (12 << 20, 16));
    stay(&mut world, &sessions);
    world.connect(0, 1, "io1");
    for flow in 0..100 {
        world.nodes[0].app.order(flow % 4, 1 << 20, 0);
    }
    let end_ns = world.now_ns + 400 * MS;
    let is_done = world.run_until(end_ns, |world| world.nodes[0].app.replies == 100);
    assert!(is_done, "{} of 100", world.nodes[0].app.replies);
    assert_eq!(share_of(&world.nodes[1].endpoint, "mallory").calls_bytes.has, 12 << 20);
}

#[test]
fn replies_that_are_not_taken_hold_one_peers_part() {
    let mut world = world(|_| {});
    let sessions: Vec<u64> = open(&mut world, 4).into_iter().map(Result::unwrap).collect();
    for (at, &session) in sessions.iter().enumerate() {
        for call in 0..64 {
            let token = 1_000_000 + 64 * at as u64 + call;
            let (head_bytes, start) = (ORDER_BYTES, 0);
            let order =
                Order { token, flow: 0, call_bytes: 0, reply_bytes: 1 << 20, head_bytes, start };
            let mut frames = strange::fragment(5, ORDER_BYTES as u8, 0, 0, 1024 + call, 0);
            frames.extend_from_slice(&order.write());
            let packet = raw::packet(raw::DATA, session, 1 + call, &frames, &[]);
            world.inject(addr(6), addr(1), packet, 0);
        }
    }
    stay(&mut world, &sessions);
    world.run_for(5 * MS);
    assert_eq!(world.nodes[1].app.executed_count, 256);
    let share = share_of(&world.nodes[1].endpoint, "mallory");
    assert!(share.replies_bytes.is_at_limit() && share.replies_bytes.refused > 0, "{share:?}");
    assert_eq!(share.replies_bytes.has, 12 << 20);
    world.connect(0, 1, "io1");
    for flow in 0..100 {
        world.nodes[0].app.order(flow % 4, 0, 1 << 20);
    }
    let end_ns = world.now_ns + 400 * MS;
    let is_done = world.run_until(end_ns, |world| world.nodes[0].app.replies == 100);
    assert!(is_done, "{} of 100", world.nodes[0].app.replies);
    let share = share_of(&world.nodes[1].endpoint, "mallory");
    assert_eq!(share.replies_bytes.has, 12 << 20);
}

#[test]
fn one_peer_has_at_most_half_of_the_sessions_and_is_told() {
    let mut world = world(|config| config.sessions_max = 64);
    let answers = open(&mut world, 200);
    let refused: Vec<&Vec<u8>> =
        answers.iter().filter_map(|answer| answer.as_ref().err()).collect();
    assert_eq!(refused.len(), 200 - 32);
    for answer in refused {
        assert_eq!((raw::kind(answer), answer.last()), (raw::REFUSED, Some(&0)));
        assert_eq!(answer[answer.len() - 4], SESSIONS_FULL);
    }
    let share = share_of(&world.nodes[1].endpoint, "mallory");
    assert!(share.sessions.is_at_limit(), "{share:?}");
    assert_eq!((share.sessions.has, share.sessions.refused), (32, 168));
    world.connect(0, 1, "io1");
    world.run_for(20 * MS);
    assert_eq!(world.nodes[0].app.sessions.len(), 1, "there is room for another peer");
}
