//! A peer with all that it needs to be let in, which takes what it can get of a node and gives
//! nothing back, beside a node that goes on working. The same for plain and for sealed sessions.

use crate::common::{MS, SECOND, World, addr};
use crate::handshake::connected;
use transport::{LostReason, PeerShare, QuotaPart, SessionStatus};

/// Half of the chunks of [`POOL_BYTES`] that are for calls, or for replies.
const PART_BYTES: u64 = 12 << 20;
const POOL_BYTES: usize = 32 << 20;
const GREEDY: usize = 2;

/// `vm1` works, `io1` serves, and `vm2` is greedy: it asks for this many sessions.
fn world(sessions: u16, change: impl Fn(&mut transport::EndpointConfig)) -> World {
    let mut world = World::new(4);
    for name in ["vm1", "io1", "vm2"] {
        let mut config = world.config(name);
        config.pool_bytes_max = POOL_BYTES;
        change(&mut config);
        world.add(config);
    }
    let now_ns = world.now_ns;
    for index in 0..sessions {
        let greedy = &mut world.nodes[GREEDY];
        let session = greedy.endpoint.connect(now_ns, addr(1), "io1", index);
        greedy.app.connecting(session, addr(1), "io1");
    }
    world
}

fn share(world: &World) -> PeerShare {
    let mut peers = world.nodes[1].endpoint.peers().filter(|share| share.peer.name == "vm2");
    peers.next().expect("it has a session")
}

fn connect_all(world: &mut World, sessions: usize) {
    let all = |world: &mut World| connected(world, GREEDY) == sessions;
    let end_ns = world.now_ns + 60 * SECOND;
    assert!(world.run_until(end_ns, all), "{} connected", connected(world, GREEDY));
    let of_peer = |status: &SessionStatus| status.peer.name == "vm2";
    assert_eq!(world.nodes[1].endpoint.sessions().filter(of_peer).count(), sessions);
    let who = share(world).peer;
    assert_eq!(who.claimed_at, (!crate::SEALED).then(|| addr(GREEDY).ip()), "a key proves a name");
}

/// The greedy peer sends on each session what it may at once, and is never heard of again.
fn send_and_fall_silent(world: &mut World, orders: usize, call_bytes: usize, reply_bytes: usize) {
    for order in 0..orders {
        world.nodes[GREEDY].app.order(order as u16 % 4, call_bytes, reply_bytes);
    }
    world.run_for(50_000);
    world.nodes[GREEDY].is_down = true;
    world.run_for(5 * MS);
}

/// The neighbour connects and makes a hundred calls meanwhile.
fn use_neighbour(world: &mut World, call_bytes: usize, reply_bytes: usize) {
    world.connect(0, 1, "io1");
    for flow in 0..100 {
        world.nodes[0].app.order(flow % 4, call_bytes, reply_bytes);
    }
    let end_ns = world.now_ns + SECOND;
    let is_done = world.run_until(end_ns, |world| world.nodes[0].app.replies == 100);
    assert!(is_done, "{} of 100", world.nodes[0].app.replies);
    assert_eq!(world.nodes[0].app.losses(), []);
}

fn assert_full(part: QuotaPart) {
    assert!(part.is_at_limit() && part.refused > 0, "{part:?}");
    assert_eq!((part.has, part.has_max), (PART_BYTES, PART_BYTES));
}

#[test]
fn calls_that_end_half_way_take_one_peers_part() {
    let mut world = world(64, |_| {});
    connect_all(&mut world, 64);
    send_and_fall_silent(&mut world, 64, 1 << 20, 0);
    assert_full(share(&world).calls_bytes);
    use_neighbour(&mut world, 1 << 20, 0);
    assert_full(share(&world).calls_bytes);
}

#[test]
fn replies_without_a_taker_hold_one_peers_part() {
    let mut world = world(64, |_| {});
    connect_all(&mut world, 64);
    send_and_fall_silent(&mut world, 256, 0, 1 << 20);
    assert_full(share(&world).replies_bytes);
    use_neighbour(&mut world, 0, 1 << 20);
    assert_full(share(&world).replies_bytes);
}

#[test]
fn a_peer_with_its_part_of_the_sessions_is_told_and_leaves_room() {
    let mut world = world(48, |config| config.sessions_max = 64);
    let all = |world: &mut World| world.nodes[GREEDY].app.losses().len() == 16;
    let end_ns = world.now_ns + 60 * SECOND;
    assert!(world.run_until(end_ns, all), "{:?}", world.nodes[GREEDY].app.losses());
    for why in world.nodes[GREEDY].app.losses() {
        assert!(matches!(why, LostReason::Refused(_)), "{why:?}");
        assert!(why.to_string().contains("takes no more sessions"), "{why}");
    }
    let part = share(&world).sessions;
    assert_eq!((part.has, part.has_max, part.is_at_limit()), (32, 32, true));
    assert!(part.refused >= 16, "{part:?}");
    use_neighbour(&mut world, 0, 0);
}
