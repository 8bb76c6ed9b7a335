//! Messages that come piece by piece without being asked for.

use super::*;
use fabric::cell::{Cell, CellHead, CellKind, Clear, Local};
use fabric::ring::{Producer, RingProducer};
use fabric::{LookOutcome, Peek, RequestFailure};

/// The longest that is pushed, and how many pieces it has.
const LONGEST: usize = 64 << 10;
const PIECES: u64 = 4;

fn sent(world: &World, host: usize) -> u64 {
    world.hosts[host].cores[0].room.counters().sent
}

fn push(world: &mut World, tag: u64, bytes: &[u8]) {
    let to = world.address(1, 0);
    send(&mut world.hosts[0].endpoints[0], to, tag, bytes).expect("there is room");
}

fn receiver(world: &mut World) -> &mut Endpoint {
    &mut world.hosts[1].endpoints[0]
}

/// How the next receive ends.
fn next_end(world: &mut World) -> Completion {
    let mut found = None;
    world.run_until("a receive ends", |world| {
        found = ended(receiver(world)).first().copied();
        found.is_some()
    });
    found.expect("it was found")
}

/// Messages that came and went leave nothing behind.
fn is_clean(world: &mut World) -> bool {
    receiver(world).counters().nonsense == 0 && receiver(world).pushes() == 0
}

#[test]
fn a_message_of_a_few_buffers_is_not_asked_for_and_a_longer_one_is() {
    for (len, there, back) in [(LONGEST, 1 + PIECES, 0), (LONGEST + 1, 2 + PIECES, 1)] {
        let mut world = World::joined(2, 1, 1);
        let (bytes, mut got) = (content(1, len), vec![0; len]);
        ask(receiver(&mut world), None, 1, &mut got);
        push(&mut world, 1, &bytes);
        assert_eq!(next_end(&mut world).failure, None);
        assert_eq!(got, bytes);
        world.run(200);
        assert_eq!([sent(&world, 0), sent(&world, 1)], [there, back], "cells of {len} bytes");
        let counters = *world.hosts[0].endpoints[0].counters();
        assert_eq!(counters.pushed_sends, 1 - back);
        assert!(is_clean(&mut world));
    }
}

#[test]
fn while_much_is_under_way_messages_are_offered() {
    let mut world = World::joined(2, 1, 2);
    // This receiver does not look for messages.
    let silent = world.hosts[1].endpoints.remove(0);
    let (to, bytes) = (silent.address(), content(1, LONGEST));
    for tag in 0..20 {
        send(&mut world.hosts[0].endpoints[0], to, tag, &bytes).expect("a cell is free");
        world.run(100);
    }
    let counters = *world.hosts[0].endpoints[0].counters();
    assert_eq!((counters.pushed_sends, counters.rendezvous_sends), (4, 16), "{counters:?}");
    world.hosts[1].endpoints.push(silent);
    let mut got = vec![vec![0; LONGEST]; 20];
    got.iter_mut().for_each(|got| ask(receiver(&mut world), None, 1, got));
    let mut count = 0;
    world.run_until("all have come", |world| {
        count += ended(receiver(world)).len();
        count == 20
    });
    assert!(got.iter().all(|got| *got == bytes) && is_clean(&mut world));
}

#[test]
fn a_receiver_that_asks_at_any_moment_gets_the_whole_message() {
    for steps in 0..60 {
        let mut world = World::joined(2, 1, 3 + steps);
        let (bytes, mut got) = (content(steps, 60_000), vec![0; 60_000]);
        push(&mut world, 1, &bytes);
        world.run(steps as usize);
        ask(receiver(&mut world), None, 1, &mut got);
        let end = next_end(&mut world);
        assert_eq!((end.failure, end.bytes), (None, bytes.len()));
        assert!(got == bytes && is_clean(&mut world));
    }
}

#[test]
fn a_long_message_is_cut_and_reported() {
    for (room, steps) in [0, 1, 20_000, 49_999].into_iter().flat_map(|it| [(it, 0), (it, 200)]) {
        let mut world = World::joined(2, 1, 4);
        let (bytes, mut got) = (content(2, 50_000), vec![0; room]);
        push(&mut world, 1, &bytes);
        world.run(steps);
        ask(receiver(&mut world), None, 1, &mut got);
        let end = next_end(&mut world);
        let missing_bytes = bytes.len() - room;
        assert_eq!(end.failure, Some(RequestFailure::Truncated { missing_bytes }));
        assert!(got == bytes[..room] && is_clean(&mut world));
    }
}

#[test]
fn messages_discarded_or_claimed_under_way_do_no_harm() {
    for then in [LookOutcome::Discarded, LookOutcome::Claimed] {
        let mut world = World::joined(2, 1, 5);
        let (first, second) = (content(1, 60_000), content(2, 40_000));
        push(&mut world, 1, &first);
        push(&mut world, 2, &second);
        let (class, source, context) = (Class::Tagged, None, RequestContext(9));
        let peek = Peek { class, source, tag: 1, ignore: 0, context, found: then };
        world.run_until("it is seen", |world| {
            receiver(world).peek(&peek);
            ended(receiver(world))[0].failure != Some(RequestFailure::NoMessage)
        });
        let mut got = [vec![0; 60_000], vec![0; 60_000]];
        ask(receiver(&mut world), None, 1, &mut got[0]);
        assert_eq!((next_end(&mut world).tag, &got[0][..40_000]), (2, &second[..]));
        if then == LookOutcome::Claimed {
            let part = part_of(&got[1]);
            // SAFETY: it lives until the end of the loop.
            unsafe { receiver(&mut world).receive_claimed(context, &[part]) }.expect("claimed");
            assert_eq!((next_end(&mut world).tag, &got[1]), (1, &first));
        }
        world.run(200);
        assert!(is_clean(&mut world));
    }
}

#[test]
fn a_sender_that_dies_half_way_fails_what_is_not_whole() {
    for asked_before in [true, false] {
        let mut world = World::joined(2, 1, 6);
        let bytes = content(1, LONGEST);
        (1..=3).for_each(|tag| push(&mut world, tag, &bytes));
        // It has four buffers out, which are the first one's.
        let dead = world.hosts[0].endpoints.remove(0);
        let slot = dead.address().slot;
        drop(dead);
        assert!(world.hosts[0].table.declare_dead(slot));
        let mut got = vec![vec![0; LONGEST]; 3];
        if !asked_before {
            world.run(1000);
        }
        got.iter_mut().for_each(|got| ask(receiver(&mut world), None, 1, got));
        let mut ends = Vec::new();
        // The node is asked for living endpoints once in many looks.
        for _ in 0..40_000 {
            world.step();
            ends.extend(ended(receiver(&mut world)).iter().map(|end| (end.tag, end.failure)));
            (0..8).for_each(|_| receiver(&mut world).progress());
            if ends.len() == 3 {
                break;
            }
        }
        let gone = Some(RequestFailure::Gone);
        assert_eq!(ends, [(1, None), (2, gone), (3, gone)], "asked before: {asked_before}");
        assert!(got[0] == bytes && is_clean(&mut world));
    }
}

/// Puts a cell into the gateway's ring as no endpoint of ours would.
fn lie(world: &World, kind: CellKind, tag: u64, (answer, bytes): (u64, usize)) {
    let region = world.hosts[0].table.region();
    let local = |of: Address, host| Local { host, slot: of.slot, incarnation: of.incarnation };
    let (source, to) = (local(world.address(0, 0), 0), local(world.address(1, 0), 1));
    let producer = Producer { slot: source.slot, incarnation: source.incarnation as u16 };
    let position = RingProducer::default().claim(&region.ring(0), producer).expect("there is room");
    let cell = Cell::new(region, 0, position);
    match kind {
        CellKind::Push => cell.set_clear(&Clear { answer, bytes }),
        _ => {
            let (owner, buffer, number) = (source, 7, answer);
            cell.set_lent(&fabric::cell::Lent { owner, buffer, bytes, number });
            cell.set_piece_at(0);
        }
    }
    let (class, inline_bytes, data, marked) = (Class::Tagged, 0, None, false);
    cell.publish(&CellHead { kind, class, inline_bytes, source, to, tag, data, marked });
}

#[test]
fn a_member_that_pushes_what_it_likes_costs_its_receiver_nothing() {
    let mut world = World::joined(2, 1, 7);
    let nonsense = |world: &mut World| receiver(world).counters().nonsense;
    // Too long, empty, a part of nothing.
    lie(&world, CellKind::Push, 0, (1, LONGEST + 1));
    lie(&world, CellKind::Push, 0, (1, usize::MAX));
    lie(&world, CellKind::Push, 0, (1, 0));
    lie(&world, CellKind::Part, 1, (1, 100));
    world.run_until("all are refused", |world| nonsense(world) == 4);
    assert_eq!(receiver(&mut world).pushes(), 0);
    // One under a name twice, and of the first one more than it is long.
    lie(&world, CellKind::Push, 5, (1, 1000));
    lie(&world, CellKind::Push, 6, (1, 1000));
    world.run_until("it is refused", |world| nonsense(world) == 5);
    lie(&world, CellKind::Part, 1, (1, 1001));
    world.run_until("it is refused", |world| nonsense(world) == 6);
    let mut got = vec![0; 1000];
    ask(receiver(&mut world), None, 1, &mut got);
    assert_eq!(next_end(&mut world).failure, Some(RequestFailure::Nonsense));
    assert_eq!(receiver(&mut world).pushes(), 0);
}
