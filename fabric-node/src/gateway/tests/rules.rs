//! Breaking the rules harms the breaker alone: members that write any bytes, peers with the key.

use super::*;
use crate::gateway::wire::push_entry;
use fabric::cell::{Cell, CellHead, CellKind, Local};
use fabric::ring::{Producer, RingProducer, Words};

/// The gateway of worlds with one.
const GATEWAY: u16 = 0;

fn local(of: Address, host: u16) -> Local {
    Local { host, slot: of.slot, incarnation: of.incarnation }
}

fn head(kind: CellKind, source: Local, to: Local) -> CellHead {
    let (class, tag, data, marked) = (Class::Tagged, 0, None, false);
    let inline_bytes = if kind == CellKind::Inline { 216 } else { 0 };
    CellHead { kind, class, inline_bytes, source, to, tag, data, marked }
}

/// Fills the gateway's ring as a member does that heeds neither holds nor windows.
fn flood(world: &World, to: Local) {
    let region = world.hosts[0].table.region();
    let (source, mut way) = (local(world.address(0, 0), 0), RingProducer::default());
    let producer = Producer { slot: source.slot, incarnation: source.incarnation as u16 };
    while let Ok(position) = way.claim(&region.ring(GATEWAY), producer) {
        Cell::new(region, GATEWAY, position).publish(&head(CellKind::Inline, source, to));
    }
}

#[test]
fn a_member_that_heeds_nothing_has_no_more_kept_than_that() {
    let mut world = World::joined(2, 1, 1);
    let to = local(world.address(1, 0), 1);
    world.cut = true;
    world.lose_all();
    for _ in 0..6000 {
        flood(&world, to);
        world.step();
    }
    assert_eq!(world.hosts[0].cores[0].room.queued(), 512);
    let now_ns = world.now_ns;
    let sleeps = world.hosts[0].cores[0].room.fall_asleep(now_ns);
    assert!(sleeps.is_some(), "who waits for a session need not look all the time");
    world.cut = false;
    world.run_until("it goes on", |world| world.hosts[0].cores[0].room.queued() < 100);
}

#[test]
fn a_domain_that_does_not_take_keeps_few_of_what_others_share() {
    let mut world = World::joined(2, 1, 7);
    let there = world.address(1, 0);
    // It does not look for long.
    let sleeper = world.hosts[1].endpoints.remove(0);
    world.run_until("too much waits", |world| {
        flood(world, local(there, 1));
        world.hosts[1].cores[0].room.counters().full_rounds > 0
    });
    for _ in 0..2000 {
        flood(&world, local(there, 1));
        world.step();
    }
    assert!(world.hosts[1].cores[0].carrier.bodies.len() <= 2, "others' as well as ours");
    assert!(world.unanswered() <= 10, "{} calls", world.unanswered());
    world.hosts[1].endpoints.push(sleeper);
    world.run_until("all is taken, and nothing twice", |world| {
        let counters = [0, 1].map(|host: usize| world.hosts[host].cores[0].room.counters());
        assert!(counters[1].delivered <= counters[0].sent);
        world.hosts[0].cores[0].room.queued() == 0 && counters[1].delivered == counters[0].sent
    });
}

#[test]
fn a_peer_that_asks_and_takes_no_answers_is_given_up() {
    let mut world = World::joined(2, 2, 2);
    let dead = world.address(1, 0);
    drop(world.hosts[1].endpoints.remove(0));
    assert!(world.hosts[1].table.declare_dead(dead.slot));
    world.run(500);
    // From here on each message to it has an answer, and host 0 says nothing to any.
    world.mute = true;
    let to = local(dead, 1);
    world.run_until("it is given up", |world| {
        flood(world, to);
        assert!(world.hosts[1].cores[0].room.queued() <= 1024);
        world.hosts[1].table.region().host(1).is_none()
    });
}

#[test]
fn deaths_of_a_whole_batch_are_told_a_few_at_a_time() {
    let mut world = World::joined(2, 4, 3);
    let (me, there) = (world.address(0, 0), world.address(1, 0));
    send(&mut world.hosts[0].endpoints[0], there, 1, b"hello").expect("there is room");
    let Host { cores, .. } = &mut world.hosts[0];
    let Core { room, carrier, .. } = &mut cores[0];
    while !world.wires.borrow().flights.iter().any(is_batch) {
        world.now_ns += STEP_NS;
        room.poll(world.now_ns, carrier);
    }
    // Its bytes are others now.
    const DEATHS: u32 = 1000;
    let mut entries = Vec::new();
    for incarnation in 1..=DEATHS {
        let source = Local { incarnation, ..local(me, 0) };
        push_entry(&mut entries, &head(CellKind::Gone, source, local(there, 0)), &[]);
        let at = entries.len() - 40 + 16;
        entries[at..at + 4].fill(0);
    }
    let mut wires = world.wires.borrow_mut();
    let place = wires.flights.iter().position(is_batch).expect("it is there");
    let Flight::Call { to, call, mut head, .. } = wires.flights.remove(place) else { return };
    drop(wires);
    head.truncate(16);
    let delivered = |world: &World| world.hosts[1].cores[0].room.counters().delivered;
    let before = delivered(&world);
    world.arrive(Flight::Call { to, call, head, body: Some(entries) });
    assert_eq!(delivered(&world), before, "none by the call itself");
    world.step();
    assert!((1..=16).contains(&(delivered(&world) - before)), "four, to each of four");
    world.run_until("all are told", |world| delivered(world) - before >= 4 * u64::from(DEATHS));
}

fn is_batch(flight: &Flight) -> bool {
    matches!(flight, Flight::Call { head, .. } if matches!(about(head), About::Room(_)))
}

#[test]
fn whose_ring_is_written_over_is_gone_to_others() {
    let mut world = World::joined(2, 1, 4);
    let there = world.address(1, 0);
    let ring = world.hosts[1].table.region().ring(there.slot);
    ring.set_tail(ring.head() + u64::from(ring.cells()) + 1);
    world.run_until("its sender hears of it", |world| {
        send(&mut world.hosts[0].endpoints[0], there, 1, b"hello") == Err(SendError::Gone)
    });
}

#[test]
fn idle_receivers_leave_a_buffer_for_others() {
    let mut world = World::joined(2, 5, 5);
    let to: Vec<_> = (0..5).map(|at| world.address(1, at)).collect();
    // Four of five are at work from here on.
    let mut silent: Vec<_> = world.hosts[1].endpoints.drain(..4).collect();
    let bytes = content(1, 9000);
    for (sender, to) in to[..4].iter().enumerate() {
        let mut sent = 0;
        while sent < 8 {
            let result = send(&mut world.hosts[0].endpoints[sender], *to, sent, &bytes);
            sent += u64::from(result.is_ok());
            world.step();
        }
    }
    world.run(500);
    let mut got = vec![0; 9000];
    ask(&mut world.hosts[1].endpoints[0], None, 1, &mut got);
    send(&mut world.hosts[0].endpoints[4], to[4], 1, &bytes).expect("there is room");
    world.run_until("it arrives", |world| !ended(&mut world.hosts[1].endpoints[0]).is_empty());
    assert_eq!(got, bytes);
    world.hosts[1].endpoints.append(&mut silent);
    world.run(500);
}

#[test]
fn a_peer_that_is_put_back_is_not_taken_for_what_it_was() {
    let world = World::joined(2, 1, 6);
    let [mine, other] = [0, 1].map(|host: usize| Arc::clone(&world.hosts[host].associations));
    let epoch = || mine.look("h1").expect("it is a peer");
    let (before, names) = (epoch(), mine.names());
    mine.set_peers(&[]);
    mine.set_peers(&names);
    let (there, again) = epoch();
    assert!(there.is_none() && again != before.1);
    // Nor is one that was given up and then put back.
    let there = other.look("h0").and_then(|(there, _)| there).expect("it was met");
    other.give_up("h0", there);
    let given_up = other.look("h0").expect("it is a peer").1;
    other.set_peers(&[]);
    other.set_peers(&["h0".to_owned()]);
    assert_ne!(other.look("h0").expect("it is a peer").1, given_up);
}
