//! The largest size of datagrams on the way, found without help from the hosts on it.

use crate::common::{MS, SECOND, World, addr, raw};
use crate::handshake::{connect, connected, tapped, two_nodes};
use transport::{EndpointConfig, LostReason};

/// RFC 8899's time after which a narrow way is tried again.
const RAISE_NS: u64 = 600 * SECOND;

fn size(world: &World, node: usize) -> usize {
    let status = world.nodes[node].endpoint.sessions().next().expect("a session");
    status.datagram_bytes_max
}

fn given_up(world: &World, node: usize) -> u64 {
    world.nodes[node].endpoint.counters().sizes_given_up
}

/// Calls with small and large bodies, both ways, work.
fn calls_work(world: &mut World) {
    let replies = world.nodes[0].app.replies;
    for bytes in [0, 1_000, 30_000] {
        world.nodes[0].app.order(0, bytes, bytes);
    }
    let all = |world: &mut World| world.nodes[0].app.replies == replies + 3;
    assert!(world.run_until(world.now_ns + SECOND, all), "calls were not answered");
}

#[test]
fn a_way_that_takes_jumbo_frames_is_used_at_once() {
    let mut world = two_nodes(1);
    connect(&mut world);
    assert_eq!((size(&world, 0), size(&world, 1)), (8972, 8972));
    assert_eq!(given_up(&world, 0), 0);
    let longest = |packets: Vec<Vec<u8>>| packets.iter().map(Vec::len).max();
    assert_eq!(longest(tapped(&world, 0, raw::HELLO)), Some(8972));
    assert_eq!(longest(tapped(&world, 1, raw::WELCOME)), Some(8972));
    calls_work(&mut world);
}

/// Whichever direction is the narrow one, both ends come to the same size.
#[test]
fn the_session_has_the_size_that_passes_both_ways() {
    for (there, back, agreed) in [
        (usize::MAX, 1_472, 1_472),
        (1_472, usize::MAX, 1_472),
        (8_900, 1_430, 1_422),
        (8_900, 8_900, 8_872),
        (1_200, 1_300, 1_200),
    ] {
        let mut world = two_nodes(1);
        world.path_bytes_max = [back, there];
        connect(&mut world);
        assert_eq!((size(&world, 0), size(&world, 1)), (agreed, agreed));
        assert!(given_up(&world, 0) > 0 && world.struck.too_long > 0);
        calls_work(&mut world);
        assert_eq!(world.nodes[0].app.losses(), []);
    }
}

/// On a slow way as well, where the answer to the first one takes longer than the pauses between
/// Hellos.
#[test]
fn a_long_way_is_not_taken_for_a_narrow_one() {
    for delay_ms in [1, 10, 40, 100, 200] {
        let mut world = two_nodes(1);
        world.delay_ns = delay_ms * MS;
        world.connect(0, 1, "io1");
        assert!(world.run_until(world.now_ns + 5 * SECOND, |world| connected(world, 0) == 1));
        assert_eq!((size(&world, 0), given_up(&world, 0)), (8972, 0), "{delay_ms} ms");
    }
}

#[test]
fn a_narrow_way_is_remembered_for_a_while() {
    let mut world = two_nodes(1);
    world.path_bytes_max = [1_472; 2];
    connect(&mut world);
    let first = given_up(&world, 0);
    assert!(first > 0);
    world.path_bytes_max = [usize::MAX; 2];
    for (pause_ns, agreed) in [(SECOND, 1_472), (RAISE_NS, 8_972)] {
        world.run_for(pause_ns);
        let session = world.nodes[0].endpoint.sessions().next().expect("a session").session;
        let now_ns = world.now_ns;
        world.nodes[0].endpoint.close(now_ns, session);
        world.run_for(SECOND);
        assert_eq!(connected(&world, 1), 0);
        connect(&mut world);
        assert_eq!((size(&world, 0), given_up(&world, 0)), (agreed, first));
    }
}

/// A host between the two, such as a tunnel's end, takes less from one moment to the next, without
/// a message. Small packets go on: the session is lost by name, and the next one fits.
#[test]
fn a_way_that_becomes_narrow_ends_the_session_by_name() {
    for narrow_to in [0, 1] {
        let mut world = two_nodes(1);
        world.nodes[0].app.reconnects = true;
        connect(&mut world);
        world.path_bytes_max[narrow_to] = 1_400;
        let begun_ns = world.now_ns;
        for _ in 0..20 {
            world.nodes[0].app.order(0, 30_000, 30_000);
            world.nodes[0].app.order(1, 0, 0);
        }
        let is_lost = |world: &mut World| !world.nodes[0].app.losses().is_empty();
        assert!(world.run_until(world.now_ns + 3 * SECOND, is_lost));
        let waited_ns = world.now_ns - begun_ns;
        assert!(waited_ns < SECOND, "{waited_ns} ns");
        let loser = 1 - narrow_to;
        let why = LostReason::PathShrank(8_972);
        let is_back = |world: &mut World| connected(world, 0) == 1 && connected(world, 1) == 1;
        assert!(world.run_until(world.now_ns + 2 * SECOND, is_back));
        assert_eq!(world.nodes[loser].app.losses(), [why]);
        assert_eq!(world.nodes[1 - loser].app.losses(), [LostReason::Closed]);
        assert_eq!((size(&world, 0), size(&world, 1)), (1_372, 1_372));
        world.run_for(SECOND);
        calls_work(&mut world);
    }
}

/// A partition, and many losses, are no narrow way.
#[test]
fn other_losses_do_not_end_the_session() {
    let mut world = two_nodes(1);
    connect(&mut world);
    for _ in 0..30 {
        world.nodes[0].app.order(0, 100_000, 100_000);
        world.nodes[0].app.order(1, 0, 0);
        world.run_for(MS / 10);
        world.partitioned_until_ns = world.now_ns + 200 * MS;
        world.run_for(300 * MS);
    }
    world.faults.loss = 200;
    for _ in 0..300 {
        world.nodes[0].app.order(0, 100_000, 100_000);
        world.nodes[0].app.order(1, 0, 0);
    }
    world.run_for(20 * SECOND);
    assert_eq!(world.nodes[0].app.losses(), []);
    assert_eq!(world.nodes[0].app.replies, 660);
}

/// The peer restarts while sizes are tried: that nothing came back says nothing about the way.
#[test]
fn a_peer_that_was_not_there_is_no_narrow_way() {
    let mut world = two_nodes(1);
    world.connect(0, 1, "io1");
    let has_cookie = |world: &mut World| !tapped(world, 1, raw::RETRY).is_empty();
    assert!(world.run_until(world.now_ns + SECOND, has_cookie));
    world.nodes[1].is_down = true;
    world.run_for(10 * SECOND);
    assert_eq!(given_up(&world, 0), 0);
    let config = world.config("io1");
    world.restart(1, config);
    assert!(world.run_until(world.now_ns + 2 * SECOND, |world| connected(world, 0) == 1));
    assert_eq!(size(&world, 0), 8_972);
}

/// An acceptor's answer is never longer than the question, and it is not filled up for a sender
/// that has not shown its address.
#[test]
fn a_stranger_is_sent_no_more_than_it_sends() {
    let mut world = World::new(3);
    for (name, bytes) in [("vm1", 8_972), ("io1", 1_472)] {
        let config = world.config(name);
        world.add(EndpointConfig { datagram_bytes_max: bytes, ..config });
    }
    world.tap = Some(Vec::new());
    connect(&mut world);
    let hellos = tapped(&world, 0, raw::HELLO);
    assert!(hellos[0].len() < 1_000 && hellos[1].len() == 8_972);
    assert!(tapped(&world, 1, raw::WELCOME).iter().all(|welcome| welcome.len() == 1_472));
    assert_eq!(size(&world, 0), 1_472);
    // A Hello with a cookie, cut to its frames on the way: so is the answer.
    let mut world = two_nodes(7);
    world.path_bytes_max[1] = 1_000;
    world.connect(0, 1, "io1");
    world.run_for(5 * MS);
    let hello = tapped(&world, 0, raw::HELLO).pop().expect("one with a cookie");
    assert_eq!(hello.len(), 8_972);
    world.inject(addr(0), addr(1), raw::bare(hello), 0);
    world.run_for(MS);
    let welcomes = tapped(&world, 1, raw::WELCOME);
    assert!(welcomes.len() == 1 && welcomes[0].len() < 1_000);
}

/// Nor is one that is held up for as long as schedulers do that.
#[test]
fn a_peer_that_is_paused_is_no_narrow_way() {
    for pause_ms in [100, 200, 400, 700, 1000, 2000] {
        let mut world = two_nodes(1);
        world.connect(0, 1, "io1");
        let has_cookie = |world: &mut World| !tapped(world, 1, raw::RETRY).is_empty();
        assert!(world.run_until(world.now_ns + SECOND, has_cookie));
        world.nodes[1].paused_until_ns = world.now_ns + pause_ms * MS;
        world.run_for(pause_ms * MS + SECOND);
        assert_eq!((size(&world, 0), given_up(&world, 0)), (8_972, 0), "{pause_ms} ms");
    }
}

/// More handshakes at once than one source may have: the others wait for their turn.
#[test]
fn a_peer_that_has_too_much_to_do_is_no_narrow_way() {
    let mut world = two_nodes(1);
    world.tap = None;
    let now_ns = world.now_ns;
    for index in 0..120 {
        let node = &mut world.nodes[0];
        let session = node.endpoint.connect(now_ns, addr(1), "io1", index);
        node.app.connecting(session, addr(1), "io1");
    }
    let all = |world: &mut World| connected(world, 0) == 120;
    assert!(world.run_until(world.now_ns + 20 * SECOND, all));
    let sizes = world.nodes[0].endpoint.sessions().map(|status| status.datagram_bytes_max);
    assert!(sizes.into_iter().all(|bytes| bytes == 8_972));
    assert_eq!(given_up(&world, 0), 0);
}

/// A pool that is full refuses large packets, and acknowledges small ones.
#[test]
fn a_peer_without_buffers_is_no_narrow_way() {
    let mut world = World::new(1);
    for name in ["vm1", "io1", "vm2"] {
        let mut config = world.config(name);
        if name == "io1" {
            config.pool_bytes_max = 16 << 20;
        }
        world.add(config);
    }
    world.connect(0, 1, "io1");
    world.connect(2, 1, "io1");
    world.run_for(SECOND);
    world.nodes[1].app.is_mute = true;
    for (node, flows) in [(0, 32), (2, 8)] {
        for flow in 0..flows {
            world.nodes[node].app.order(flow, 1 << 20, 0);
        }
    }
    world.run_for(10 * SECOND);
    assert!(world.nodes[1].endpoint.counters().dropped_no_buffer > 100);
    let is_narrow = |why: &LostReason| matches!(why, LostReason::PathShrank(_));
    assert!(world.nodes.iter().all(|node| !node.app.losses().iter().any(is_narrow)));
}
