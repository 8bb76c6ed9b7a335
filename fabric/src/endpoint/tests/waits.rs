//! Messages that wait on their sender's side.

use super::*;

/// Rings of 16 cells, and 4 buffers.
fn small() -> RegionOptions {
    RegionOptions { cells: 16, buffers: 4, ..RegionOptions::default() }
}

fn injected(to: Address, tag: u64) -> Message {
    Message { inject: true, context: None, ..message(to, tag) }
}

/// Tags of what has come, in the order in which it has, with all bytes looked at.
fn arrived(world: &mut World, at: usize, len: usize) -> Vec<u64> {
    let mut tags = Vec::new();
    loop {
        let mut got = vec![0; len];
        ask(&mut world.endpoints[at], &Receive { ignore: u64::MAX, ..receive(None, 0) }, &mut got);
        (0..40).for_each(|_| world.turn());
        let told = ended(&mut world.endpoints[at]);
        let Some(done) = told.iter().find(|done| matches!(done.done, Done::Receive { .. })) else {
            assert!(world.endpoints[at].cancel(RequestContext(0)));
            ended(&mut world.endpoints[at]);
            return tags;
        };
        assert_eq!((done.failure, got), (None, content(done.tag, len)));
        tags.push(done.tag);
    }
}

/// The pattern that MPI's programs have: many messages at once, while no receiver looks.
#[test]
fn sends_are_local_with_any_length_and_way() {
    for len in [0, 8, 217, 4096, 16_384, 50_000] {
        for inject in [false, true] {
            if inject && len > INJECT_BYTES_MAX {
                continue;
            }
            let mut world = World::new(2, small(), &EndpointOptions::default());
            let to = world.address(1);
            let mut sent: Vec<_> = (0..300).map(|tag| content(tag, len)).collect();
            for (tag, bytes) in sent.iter_mut().enumerate() {
                let message = Message { inject, ..message(to, tag as u64) };
                send(&mut world.endpoints[0], &message, bytes).expect("a send is local");
                if inject {
                    bytes.fill(0xee);
                }
            }
            assert!(world.endpoints[0].waiting_for(to) > 200, "{len}");
            let counters = *world.endpoints[0].counters();
            assert!(counters.waited_sends > 200 && counters.busy == 0, "{counters:?}");
            let told = ended(&mut world.endpoints[0]).len();
            assert!(told <= 16, "{told}: what waits has not been sent, and is not told to be");
            assert!(arrived(&mut world, 1, len).into_iter().eq(0..300), "{len}: in order");
            let told = told + ended(&mut world.endpoints[0]).len();
            assert_eq!((told, world.endpoints[0].waiting_bytes()), (300, 0));
        }
    }
}

/// Messages behind those that wait wait as well, and messages to others do not.
#[test]
fn each_receiver_has_a_line_of_its_own() {
    let mut world = World::new(3, small(), &EndpointOptions::default());
    let [deaf, other] = [world.address(1), world.address(2)];
    for tag in 0..100 {
        let len = [8, 3000][tag as usize % 2];
        send(&mut world.endpoints[0], &injected(deaf, tag), &content(tag, len)).expect("it waits");
    }
    let silent = world.endpoints.remove(1);
    for tag in 0..100 {
        send(&mut world.endpoints[0], &message(other, tag), &[1; 8]).expect("room");
        (0..2).for_each(|_| world.turn());
    }
    assert_eq!(ended(&mut world.endpoints[0]).len(), 100);
    assert_eq!((world.endpoints[0].waiting_for(other), silent.counters().messages), (0, 0));
    // A message that fits in a cell does not overtake one that finds no buffer.
    world.endpoints.insert(1, silent);
    let mut tags = Vec::new();
    for tag in 0..100 {
        let mut got = vec![0; [8, 3000][tag as usize % 2]];
        ask(&mut world.endpoints[1], &Receive { ignore: !0, ..receive(None, 0) }, &mut got);
        (0..4).for_each(|_| world.turn());
        tags.extend(ended(&mut world.endpoints[1]).iter().map(|done| done.tag));
        assert_eq!(got, content(tag, got.len()));
    }
    assert!(tags.into_iter().eq(0..100));
}

/// A program that does nothing but send, to one that takes.
#[test]
fn waiting_messages_advance_by_further_sends_alone() {
    let mut world = World::new(2, small(), &EndpointOptions::default());
    let to = world.address(1);
    for tag in 0..10_000 {
        send(&mut world.endpoints[0], &injected(to, tag), &[0; 100]).expect("room");
        if tag > 100 {
            world.endpoints[1].progress();
        }
        assert!(world.endpoints[0].waiting_for(to) <= 100);
    }
    assert!(world.endpoints[1].counters().messages > 9800);
}

#[test]
fn waiting_messages_are_bounded_for_each_sender() {
    let options = EndpointOptions { waiting_bytes_max: 50_000, ..EndpointOptions::default() };
    let mut world = World::new(2, small(), &options);
    let to = world.address(1);
    for len in [100, 4000] {
        let mut sent = 0;
        while send(&mut world.endpoints[0], &injected(to, sent), &content(sent, len)).is_ok() {
            assert!(world.endpoints[0].waiting_bytes() <= 50_000);
            sent += 1;
        }
        assert!(sent > 10 && sent < 200, "{sent} of {len} bytes");
        assert!(arrived(&mut world, 1, len).into_iter().eq(0..sent));
    }
    assert_eq!((world.endpoints[0].counters().busy, world.endpoints[0].waiting_bytes()), (2, 0));
}

#[test]
fn waiting_messages_end_with_their_receiver() {
    for inject in [false, true] {
        let mut world = World::new(3, small(), &EndpointOptions::default());
        let to = world.address(1);
        for tag in 0..100 {
            let message = Message { inject, ..message(to, tag) };
            send(&mut world.endpoints[0], &message, &[1; 1000]).expect("it waits");
        }
        let sent = ended(&mut world.endpoints[0]).len();
        let slot = world.endpoints[1].engine.me.slot;
        drop(world.endpoints.remove(1));
        assert!(world.table.declare_dead(slot));
        world.settle();
        let told = ended(&mut world.endpoints[0]);
        let gone = told.iter().filter(|done| done.failure == Some(RequestFailure::Gone)).count();
        assert_eq!(told.len() + sent, 100, "each ends once");
        assert!(gone > 80 && world.endpoints[0].waiting_bytes() == 0);
        // The short way is open again.
        let other = world.address(1);
        send(&mut world.endpoints[0], &message(other, 1), &[1; 8]).expect("room");
        assert_eq!(world.endpoints[0].counters().inline_sends, 1);
    }
}

#[test]
fn waiting_messages_are_taken_back() {
    let mut world = World::new(2, small(), &EndpointOptions::default());
    let to = world.address(1);
    for tag in 0..40 {
        send(&mut world.endpoints[0], &message(to, tag), &[tag as u8; 8]).expect("it waits");
    }
    let sent = ended(&mut world.endpoints[0]).len() as u64;
    assert!(!world.endpoints[0].cancel(RequestContext(3)), "it is in the ring");
    for tag in [30, 20, 39] {
        assert!(
            world.endpoints[0].cancel(RequestContext(tag))
                && !world.endpoints[0].cancel(RequestContext(tag))
        );
        let told = ended(&mut world.endpoints[0]);
        assert_eq!(
            (told[0].context, told[0].failure),
            (RequestContext(tag), Some(RequestFailure::Cancelled))
        );
    }
    (0..40).for_each(|_| world.turn());
    assert_eq!(world.endpoints[1].counters().messages, 37);
    assert_eq!(ended(&mut world.endpoints[0]).len() as u64 + sent, 37);
}

/// An injected message is sent, for its program: it goes out before the endpoint does.
#[test]
fn an_endpoint_that_ends_sends_what_was_injected() {
    let mut world = World::new(2, small(), &EndpointOptions::default());
    let to = world.address(1);
    let mut leaving = world.endpoints.remove(0);
    for tag in 0..50 {
        send(&mut leaving, &injected(to, tag), &[1; 8]).expect("it waits");
    }
    // The memory of this message may have another use by now.
    send(&mut leaving, &message(to, 50), &[1; 8]).expect("it waits");
    std::thread::scope(|scope| {
        let leaves = scope.spawn(move || drop(leaving));
        while !leaves.is_finished() {
            world.endpoints[0].progress();
            std::thread::yield_now();
        }
    });
    world.turn();
    assert_eq!(world.endpoints[0].counters().messages, 50);
}

/// A message that must be matched is not complete before, however short it is; nor if it waited.
#[test]
fn matched_messages_are_complete() {
    for (len, inject) in [(0, false), (8, false), (1000, true), (20_000, false)] {
        let mut world = World::new(2, small(), &EndpointOptions::default());
        let to = world.address(1);
        let mut sent: Vec<_> = (0..30).map(|tag| content(tag, len)).collect();
        for (tag, bytes) in sent.iter_mut().enumerate() {
            let message = Message { inject, ..message(to, tag as u64) };
            // SAFETY: it is kept to the end.
            let result =
                unsafe { world.endpoints[0].send_until_matched(&message, &[part_of(bytes)]) };
            result.expect("it waits");
            if inject {
                bytes.fill(0);
            }
        }
        (0..20).for_each(|_| world.turn());
        assert_eq!(ended(&mut world.endpoints[0]), [], "no receive was posted");
        for tag in 0..30 {
            let mut got = vec![0; len];
            ask(&mut world.endpoints[1], &receive(None, tag), &mut got);
            (0..20).for_each(|_| world.turn());
            assert_eq!((ended(&mut world.endpoints[1]).len(), got), (1, content(tag, len)));
            let told = ended(&mut world.endpoints[0]);
            assert_eq!(
                (told.len(), told[0].context, told[0].failure),
                (1, RequestContext(tag), None)
            );
        }
    }
}
