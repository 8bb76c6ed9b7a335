//! Each way a message can go, and what ends it.

use super::*;

/// Lengths on both sides of each limit.
const LENGTHS: [usize; 12] = [0, 1, 8, 24, 216, 217, 4096, 8192, 8193, 16_384, 100_000, 1_000_001];

fn each_way() -> [EndpointOptions; 5] {
    let usual = EndpointOptions::default();
    [
        usual,
        EndpointOptions { eager_bytes_max: 0, single_copy_bytes_min: 0, ..usual },
        EndpointOptions { single_copy_bytes_min: 0, ..usual },
        EndpointOptions { eager_bytes_max: 8192, single_copy_bytes_min: 50_000, ..usual },
        EndpointOptions { eager_bytes_max: usize::MAX, single_copy_bytes_min: usize::MAX, ..usual },
    ]
}

#[test]
fn messages_of_all_lengths_arrive_whole_expected_or_not() {
    for options in each_way() {
        let mut world = World::new(2, RegionOptions::default(), &options);
        let (from, to) = (world.address(0), world.address(1));
        for (tag, len) in LENGTHS.into_iter().enumerate() {
            for expected in [true, false] {
                let tag = tag as u64;
                let (sent, mut got) = (content(tag, len), vec![0; len + 3]);
                let data = expected.then_some(tag << 40);
                if expected {
                    ask(&mut world.endpoints[1], &receive(Some(from), tag), &mut got);
                }
                let message = Message { data, ..message(to, tag) };
                send(&mut world.endpoints[0], &message, &sent).expect("room");
                if !expected {
                    world.turn();
                    ask(&mut world.endpoints[1], &receive(None, tag), &mut got);
                }
                world.turn();
                (0..100).for_each(|_| world.turn());
                let (context, class) = (RequestContext(tag), Class::Tagged);
                let done = Done::Receive { source: from, data, start: got.as_mut_ptr() };
                let completion =
                    Completion { context, done, class, tag, bytes: len, failure: None };
                assert_eq!(ended(&mut world.endpoints[1]), [completion], "{len} {options:?}");
                let completion = Completion { done: Done::Send, ..completion };
                assert_eq!(ended(&mut world.endpoints[0]), [completion], "{len} {options:?}");
                assert_eq!((&got[..len], &got[len..]), (&sent[..], &[0; 3][..]));
            }
        }
        let [sender, receiver] = [0, 1].map(|at| *world.endpoints[at].counters());
        assert_eq!(sender.inline_sends, 10);
        assert_eq!(sender.inline_sends + sender.eager_sends + sender.rendezvous_sends, 24);
        let fetched = receiver.single_copies + receiver.pipelines;
        assert_eq!(fetched, sender.rendezvous_sends);
        let min = options.single_copy_bytes_min;
        assert_eq!(receiver.pipelines > 0, min > 0, "{receiver:?}");
        assert_eq!(receiver.single_copies > 0, min < 1_000_000, "{receiver:?}");
        assert_eq!((receiver.messages, receiver.nonsense, sender.nonsense), (24, 0, 0));
        let lent = |at: usize| world.endpoints[at].engine.slab.lent_count();
        assert!(lent(0) <= 64 && lent(1) == 0);
    }
}

#[test]
fn pieces_are_gathered_and_scattered() {
    for options in each_way() {
        for len in [30, 3000, 90_000] {
            let mut world = World::new(2, RegionOptions::default(), &options);
            let to = world.address(1);
            let (sent, mut got) = (content(9, len), vec![0; len]);
            let parts: Vec<MemoryPiece> = sent.chunks(len.div_ceil(8)).map(part_of).collect();
            // SAFETY: both live until the end of the loop.
            unsafe { world.endpoints[0].send(&message(to, 1), &parts) }.expect("room");
            let parts: Vec<MemoryPiece> = got.chunks_mut(len.div_ceil(3)).map(part).collect();
            // SAFETY: as above.
            unsafe { world.endpoints[1].receive(&receive(None, 1), &parts) }.expect("sound");
            (0..20).for_each(|_| world.turn());
            assert_eq!(ended(&mut world.endpoints[1]).len(), 1);
            assert_eq!(got, sent);
        }
    }
}

#[test]
fn a_long_message_is_cut_and_reported() {
    for options in each_way() {
        for len in [100, 5000, 50_000] {
            for room in [0, 1, 99, len - 1] {
                let mut world = World::new(2, RegionOptions::default(), &options);
                let to = world.address(1);
                let (sent, mut got) = (content(3, len), vec![0; room]);
                ask(&mut world.endpoints[1], &receive(None, 5), &mut got);
                send(&mut world.endpoints[0], &message(to, 5), &sent).expect("room");
                (0..20).for_each(|_| world.turn());
                let ended_there = ended(&mut world.endpoints[1]);
                let missing_bytes = len - room;
                assert_eq!(
                    ended_there[0].failure,
                    Some(RequestFailure::Truncated { missing_bytes })
                );
                assert_eq!((ended_there[0].bytes, ended_there.len()), (room, 1));
                assert_eq!(got, sent[..room]);
                let ended_here = ended(&mut world.endpoints[0]);
                assert_eq!((ended_here[0].failure, ended_here.len()), (None, 1));
            }
        }
    }
}

#[test]
fn a_receiver_that_does_not_poll_makes_busy_and_loses_nothing() {
    for len in [8, 1000, 20_000] {
        let region = RegionOptions { cells: 32, buffers: 8, ..RegionOptions::default() };
        let options = EndpointOptions::default();
        let mut world = World::impatient(3, region, &options);
        let to = world.address(2);
        let sent = content(1, len);
        let mut counts = [0_u64; 2];
        for (at, count) in counts.iter_mut().enumerate() {
            while send(&mut world.endpoints[at], &message(to, *count), &sent).is_ok() {
                *count += 1;
                assert!(*count <= 32, "no more than there are cells");
            }
            assert_eq!(world.endpoints[at].counters().busy, 1);
        }
        assert!(counts[0] >= 8, "{counts:?} of {len} bytes");
        world.turn();
        for (at, &count) in counts.iter().enumerate() {
            send(&mut world.endpoints[at], &message(to, count), &sent).expect("room again");
        }
        world.turn();
        let counters = *world.endpoints[2].counters();
        assert_eq!(counters.unexpected, counts[0] + counts[1] + 2);
        for (at, &count) in counts.iter().enumerate() {
            let from = world.address(at);
            for tag in 0..=count {
                let mut got = vec![0; len];
                ask(&mut world.endpoints[2], &receive(Some(from), tag), &mut got);
                world.turn();
                assert_eq!(ended(&mut world.endpoints[2])[0].tag, tag);
                assert_eq!(got, sent);
            }
        }
    }
}

#[test]
fn an_answer_that_finds_a_full_ring_waits() {
    for single_copy_bytes_min in [0, usize::MAX] {
        let region = RegionOptions { cells: 16, ..RegionOptions::default() };
        let options = EndpointOptions { single_copy_bytes_min, ..EndpointOptions::default() };
        let mut world = World::impatient(2, region, &options);
        let [one, other] = [world.address(0), world.address(1)];
        let (sent, mut got) = (content(1, 50_000), vec![0; 50_000]);
        ask(&mut world.endpoints[1], &receive(None, 1), &mut got);
        send(&mut world.endpoints[0], &message(other, 1), &sent).expect("room");
        // The ring of the endpoint that must be answered is flooded.
        while send(&mut world.endpoints[1], &message(one, 9), &[0; 8]).is_ok() {}
        world.endpoints[1].progress();
        assert_eq!(world.endpoints[1].engine.answers.len(), 1);
        (0..20).for_each(|_| world.turn());
        assert_eq!(world.endpoints[1].engine.answers.len(), 0);
        let is_sent = |completion: &Completion| completion.done == Done::Send;
        assert_eq!(ended(&mut world.endpoints[0]).iter().filter(|done| is_sent(done)).count(), 1);
        assert_eq!(got, sent);
    }
}

#[test]
fn a_shared_buffer_takes_message_after_message() {
    for options in each_way() {
        let mut world = World::new(2, RegionOptions::default(), &options);
        let (from, to) = (world.address(0), world.address(1));
        let untagged = |tag| Message { class: Class::Untagged, ..message(to, tag) };
        let sent: Vec<_> = [300, 20_000, 10, 900].iter().map(|&len| content(5, len)).collect();
        // The first comes before the buffer.
        send(&mut world.endpoints[0], &untagged(0), &sent[0]).expect("room");
        world.turn();
        let mut buffer = vec![0; 21_000];
        let several = Receive {
            class: Class::Untagged,
            multi_min_bytes: Some(700),
            context: RequestContext(77),
            ..receive(None, 0)
        };
        ask(&mut world.endpoints[1], &several, &mut buffer);
        for bytes in &sent[1..] {
            send(&mut world.endpoints[0], &untagged(0), bytes).expect("room");
        }
        (0..20).for_each(|_| world.turn());
        let start = buffer.as_mut_ptr();
        let mut at = 0;
        let ended = ended(&mut world.endpoints[1]);
        let (last, messages) = ended.split_last().expect("some");
        assert_eq!((last.done, last.context), (Done::Released, RequestContext(77)));
        assert_eq!(messages.len(), 3, "{ended:?}");
        let mut starts: Vec<_> = messages.iter().map(|done| (done.bytes, done.done)).collect();
        // Messages that come piece by piece end later.
        starts.sort_by_key(|&(bytes, _)| sent.iter().position(|sent| sent.len() == bytes));
        for (bytes, done) in starts {
            let start = start.wrapping_add(at);
            assert_eq!(done, Done::Receive { source: from, data: None, start });
            assert_eq!(buffer[at..at + bytes], content(5, bytes));
            at += bytes;
        }
        assert_eq!(at, 20_310);
        assert_eq!(world.endpoints[1].counters().unexpected, 2, "the last one waits");
    }
}

/// Its memory is the program's again when that is told, and not while a message comes into it.
#[test]
fn a_shared_buffer_that_is_cancelled_ends_after_what_is_on_its_way() {
    let pieces =
        EndpointOptions { single_copy_bytes_min: usize::MAX, ..EndpointOptions::default() };
    let mut world = World::new(2, RegionOptions::default(), &pieces);
    let mut buffer = vec![0; 2_000_000];
    let several = Receive {
        class: Class::Untagged,
        multi_min_bytes: Some(1),
        context: RequestContext(7),
        ..receive(None, 0)
    };
    ask(&mut world.endpoints[1], &several, &mut buffer);
    let sent = content(3, 1_000_000);
    let untagged = Message { class: Class::Untagged, ..message(world.address(1), 0) };
    send(&mut world.endpoints[0], &untagged, &sent).expect("room");
    // The offer is seen and answered, and nothing else.
    world.endpoints[1].progress();
    assert!(world.endpoints[1].cancel(RequestContext(7)));
    assert!(!world.endpoints[1].cancel(RequestContext(7)), "once");
    assert_eq!(ended(&mut world.endpoints[1]), [], "the message is on its way");
    (0..50).for_each(|_| world.turn());
    let told = ended(&mut world.endpoints[1]);
    let what: Vec<_> = told.iter().map(|done| (done.context, done.bytes, done.failure)).collect();
    let whole = (RequestContext(7), sent.len(), None);
    assert_eq!(what, [whole, (RequestContext(7), 0, Some(RequestFailure::Cancelled))]);
    assert_eq!(buffer[..sent.len()], sent);
}

#[test]
fn a_shared_buffer_has_one_part_without_tags() {
    let mut world = World::usual(1);
    let mut memory = [0; 8];
    let several = Receive { multi_min_bytes: Some(1), ..receive(None, 0) };
    let untagged = Receive { class: Class::Untagged, ..several };
    let one = part(&mut memory);
    for (receive, parts) in [(several, &[one][..]), (untagged, &[one, one]), (untagged, &[])] {
        // SAFETY: it is refused.
        let refused = unsafe { world.endpoints[0].receive(&receive, parts) };
        assert_eq!(refused, Err(ReceiveError::Shape));
    }
}

#[test]
fn a_look_finds_claims_and_leaves() {
    for len in [8, 50_000] {
        let reading = EndpointOptions { single_copy_bytes_min: 0, ..EndpointOptions::default() };
        let mut world = World::new(2, RegionOptions::default(), &reading);
        let (from, to) = (world.address(0), world.address(1));
        let (class, source, ignore) = (Class::Tagged, Some(from), 0);
        let look = |tag, claim| {
            let context = RequestContext(1);
            let found = if claim { LookOutcome::Claimed } else { LookOutcome::Stays };
            Peek { class, source, tag, ignore, context, found }
        };
        let sent = content(2, len);
        for tag in [4, 4, 5] {
            send(&mut world.endpoints[0], &message(to, tag), &sent).expect("room");
        }
        world.turn();
        let receiver = &mut world.endpoints[1];
        receiver.peek(&look(6, true));
        assert_eq!(ended(receiver)[0].failure, Some(RequestFailure::NoMessage));
        for _ in 0..2 {
            receiver.peek(&look(5, false));
            let found = ended(receiver);
            assert_eq!((found[0].bytes, found[0].tag, found[0].failure), (len, 5, None));
        }
        receiver.peek(&look(4, true));
        ended(receiver);
        assert!(
            receiver.discard_claimed(RequestContext(1))
                && !receiver.discard_claimed(RequestContext(1))
        );
        receiver.peek(&look(4, true));
        let mut got = vec![0; len];
        // SAFETY: it lives until the end.
        unsafe { receiver.receive_claimed(RequestContext(1), &[part(&mut got)]) }.expect("claimed");
        assert_eq!(ended(receiver).len(), 2);
        assert_eq!(got, sent);
        // SAFETY: it is refused.
        let again = unsafe { receiver.receive_claimed(RequestContext(1), &[]) };
        assert_eq!(again, Err(ReceiveError::NotClaimed));
        receiver.peek(&look(4, true));
        assert_eq!(ended(receiver)[0].failure, Some(RequestFailure::NoMessage), "both are taken");
        world.turn();
        let done = ended(&mut world.endpoints[0]).len();
        assert_eq!(done, if len == 8 { 3 } else { 2 }, "what was discarded was sent, too");
    }
}

#[test]
fn a_receive_is_taken_back_once() {
    let mut world = World::usual(1);
    let mut memory = [0; 8];
    let endpoint = &mut world.endpoints[0];
    ask(endpoint, &receive(None, 3), &mut memory);
    assert!(endpoint.cancel(RequestContext(3)) && !endpoint.cancel(RequestContext(3)));
    assert_eq!(ended(endpoint)[0].failure, Some(RequestFailure::Cancelled));
    let me = endpoint.address();
    send(endpoint, &message(me, 3), &[1; 8]).expect("room");
    world.turn();
    assert_eq!((memory, world.endpoints[0].counters().unexpected), ([0; 8], 1));
}

#[test]
fn an_endpoint_sends_to_itself() {
    for options in each_way() {
        let mut world = World::new(1, RegionOptions::default(), &options);
        let me = world.address(0);
        for (tag, len) in LENGTHS.into_iter().enumerate() {
            let (sent, mut got) = (content(7, len), vec![0; len]);
            ask(&mut world.endpoints[0], &receive(Some(me), tag as u64), &mut got);
            send(&mut world.endpoints[0], &message(me, tag as u64), &sent).expect("room");
            (0..40).for_each(|_| world.turn());
            assert_eq!(ended(&mut world.endpoints[0]).len(), 2);
            assert_eq!(got, sent);
        }
    }
}

#[test]
fn impossible_sends_are_refused_by_name() {
    let mut world = World::usual(2);
    let to = world.address(1);
    let sender = &mut world.endpoints[0];
    let nobody = Address { slot: 4, ..to };
    assert_eq!(send(sender, &message(nobody, 0), &[]), Err(SendError::Gone));
    let outside = Address { slot: 5, ..to };
    assert_eq!(send(sender, &message(outside, 0), &[]), Err(SendError::Unreachable(outside)));
    let far = Address { host: 8, ..to };
    assert_eq!(send(sender, &message(far, 0), &[]), Err(SendError::Unreachable(far)));
    let inject = Message { inject: true, ..message(to, 0) };
    assert_eq!(send(sender, &inject, &[0; 4097]), Err(SendError::TooLong));
    assert_eq!(send(sender, &inject, &[0; 4096]), Ok(()));
    let none = MemoryPiece { start: std::ptr::null_mut(), bytes: 0 };
    // SAFETY: there are no bytes.
    let many = unsafe { sender.send(&message(to, 0), &[none; 9]) };
    assert_eq!(many, Err(SendError::TooManyParts));
}

/// The memory of a receive is not the program's again before the message that is fed into it is
/// whole.
#[test]
fn a_receive_whose_message_is_under_way_is_not_taken_back() {
    let region = RegionOptions { buffers: 2, ..RegionOptions::default() };
    let mut world = World::new(2, region, &EndpointOptions::default());
    let to = world.address(1);
    let (sent, mut got) = (content(1, 1_000_000), vec![0; 1_000_000]);
    ask(&mut world.endpoints[1], &receive(None, 1), &mut got);
    send(&mut world.endpoints[0], &message(to, 1), &sent).expect("room");
    let mut tries = 0;
    while world.endpoints[1].engine.completions.is_empty() {
        world.turn();
        tries += 1;
        let is_over = !world.endpoints[1].engine.completions.is_empty();
        assert!(!world.endpoints[1].cancel(RequestContext(1)), "too late, or over: {is_over}");
    }
    assert!(tries > 3, "{tries}");
    let ended_there = ended(&mut world.endpoints[1]);
    assert_eq!((ended_there.len(), ended_there[0].failure), (1, None));
    assert_eq!(got, sent);
}
