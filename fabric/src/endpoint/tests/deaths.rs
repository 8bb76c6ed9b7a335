//! Endpoints that end, or whose processes are killed between two stores.

use std::sync::atomic::Ordering::Relaxed;

use super::*;
use crate::cell::{Cell, CellHead, CellKind, INLINE_BYTES_MAX, source_word, to_word};
use crate::ring::Words;
use crate::shared::stop;

/// Leaves an endpoint as a killed process does: nothing of it runs any more.
fn kill(world: &World, endpoint: Endpoint) {
    let slot = endpoint.engine.me.slot;
    std::mem::forget(endpoint);
    assert!(world.table.declare_dead(slot));
    world.table.sweep();
}

/// Sends one message by each way, killed after each of its stores; others go on.
#[test]
fn a_sender_killed_at_any_store_holds_up_no_other() {
    let mut stops = 0;
    for (len, single_copy_bytes_min) in
        [(8, 0), (200, 0), (3000, 0), (50_000, 0), (50_000, usize::MAX)]
    {
        for stores in 0.. {
            let region = RegionOptions { cells: 16, buffers: 4, ..RegionOptions::default() };
            let options = EndpointOptions { single_copy_bytes_min, ..EndpointOptions::default() };
            let mut world = World::new(2, region, &options);
            let [other, to] = [world.address(0), world.address(1)];
            let mut doomed = world.join(&options);
            let (from, sent) = (doomed.address(), content(1, len));
            let mut got = vec![0; len];
            let mut more = [0; 8];
            ask(&mut world.endpoints[1], &receive(Some(from), 1), &mut got);
            let whole = stop::after(stores, || {
                send(&mut doomed, &message(to, 1), &sent).expect("room");
                for _ in 0..100 {
                    doomed.progress();
                    // The receiver's stores are not what stops.
                    stop::apart(|| world.endpoints[1].progress());
                }
            });
            kill(&world, doomed);
            world.settle();
            let ended_here = ended(&mut world.endpoints[1]);
            assert_eq!(ended_here.len(), 1, "{len} bytes, stopped after {stores}");
            match ended_here[0].failure {
                None => assert_eq!(got, sent, "{stores}"),
                Some(failure) => assert_eq!(failure, RequestFailure::Gone, "{stores}"),
            }
            // Often enough for the ring to go round.
            for round in 0..40 {
                ask(&mut world.endpoints[1], &receive(Some(other), 2), &mut more);
                send(&mut world.endpoints[0], &message(to, 2), &[round; 8]).expect("room");
                world.turn();
                assert_eq!(more, [round; 8], "{len} bytes, stopped after {stores}");
            }
            stops += 1;
            if whole.is_some() {
                assert_eq!(ended_here[0].failure, None);
                break;
            }
        }
    }
    println!("{stops} stops");
    assert!(stops > 60, "{stops}");
}

/// The same for a receiver, whose sender hears of it.
#[test]
fn a_receiver_killed_at_any_store_is_gone_for_its_sender() {
    let mut stops = 0;
    for (len, single_copy_bytes_min) in [(3000, 0), (50_000, 0), (50_000, usize::MAX)] {
        for stores in 0.. {
            let region = RegionOptions { cells: 16, buffers: 2, ..RegionOptions::default() };
            let options = EndpointOptions { single_copy_bytes_min, ..EndpointOptions::default() };
            let mut world = World::new(2, region, &options);
            let mut doomed = world.join(&options);
            let to = doomed.address();
            let (sent, mut got) = (content(1, len), vec![0; len]);
            ask(&mut doomed, &receive(None, 1), &mut got);
            send(&mut world.endpoints[0], &message(to, 1), &sent).expect("room");
            let whole = stop::after(stores, || {
                for _ in 0..100 {
                    doomed.progress();
                    stop::apart(|| world.endpoints[0].progress());
                }
            });
            kill(&world, doomed);
            world.settle();
            let ended_here = ended(&mut world.endpoints[0]);
            assert_eq!(ended_here.len(), 1, "{len} bytes, stopped after {stores}");
            let failure = ended_here[0].failure;
            assert!([None, Some(RequestFailure::Gone)].contains(&failure), "{failure:?}");
            let again = send(&mut world.endpoints[0], &message(to, 1), &sent);
            assert_eq!(again, Err(SendError::Gone));
            // Its buffers are the sender's again.
            let to = world.address(1);
            for _ in 0..10 {
                send(&mut world.endpoints[0], &message(to, 1), &[0; 3000]).expect("room");
                world.turn();
            }
            stops += 1;
            if whole.is_some() {
                break;
            }
        }
    }
    println!("{stops} stops");
    assert!(stops > 10, "{stops}");
}

#[test]
fn a_slot_that_is_used_again_takes_nothing_that_was_meant_for_the_one_before() {
    let options = EndpointOptions::default();
    let mut world = World::new(1, RegionOptions::default(), &options);
    let first = world.join(&options);
    let _elsewhere = world.join(&options);
    let to = first.address();
    for len in [8, 3000, 50_000] {
        send(&mut world.endpoints[0], &message(to, len as u64), &vec![0; len]).expect("room");
    }
    kill(&world, first);
    let second = world.join(&options);
    assert_eq!((second.address().slot, second.address().incarnation), (to.slot, 2));
    world.endpoints.push(second);
    world.settle();
    let counters = world.endpoints[1].counters();
    assert_eq!((counters.strays, counters.messages), (3, 0));
    let gone: Vec<_> = ended(&mut world.endpoints[0]).iter().map(|done| done.failure).collect();
    assert_eq!(gone, [None, None, Some(RequestFailure::Gone)]);
    assert_eq!(send(&mut world.endpoints[0], &message(to, 1), &[]), Err(SendError::Gone));
    let (to, mut got) = (world.address(1), [0; 3]);
    ask(&mut world.endpoints[1], &receive(None, 1), &mut got);
    send(&mut world.endpoints[0], &message(to, 1), b"new").expect("room");
    world.turn();
    assert_eq!(&got, b"new");
}

#[test]
fn messages_of_a_dead_endpoint_are_received_before_it_is_gone() {
    let options = EndpointOptions::default();
    let mut world = World::new(1, RegionOptions::default(), &options);
    let mut doomed = world.join(&options);
    let (from, to) = (doomed.address(), world.address(0));
    for len in [8, 3000] {
        send(&mut doomed, &message(to, 1), &content(4, len)).expect("room");
    }
    kill(&world, doomed);
    let mut got = [vec![0; 8], vec![0; 3000], vec![0; 8]];
    let mut anyone = [0; 8];
    ask(&mut world.endpoints[0], &receive(None, 2), &mut anyone);
    for memory in &mut got {
        ask(&mut world.endpoints[0], &receive(Some(from), 1), memory);
    }
    world.settle();
    let failures: Vec<_> = ended(&mut world.endpoints[0]).iter().map(|d| d.failure).collect();
    assert_eq!(
        failures,
        [None, None, Some(RequestFailure::Gone)],
        "who waits for anyone goes on waiting"
    );
    assert_eq!((&got[0], &got[1]), (&content(4, 8), &content(4, 3000)));
}

#[test]
fn an_offer_of_the_dead_is_gone_when_it_is_asked_for() {
    let options = EndpointOptions::default();
    let mut world = World::new(1, RegionOptions::default(), &options);
    let mut doomed = world.join(&options);
    let to = world.address(0);
    let sent = vec![0; 50_000];
    send(&mut doomed, &message(to, 1), &sent).expect("room");
    world.turn();
    kill(&world, doomed);
    let mut got = vec![0; 50_000];
    ask(&mut world.endpoints[0], &receive(None, 1), &mut got);
    assert_eq!(ended(&mut world.endpoints[0])[0].failure, Some(RequestFailure::Gone));
}

/// Writes over the words of a slot, mostly where some are, now and then anywhere; but not over the
/// node's line, by which others know that it lives.
fn scribble(region: &Region, slot: u16, random: &mut Random) {
    let layout = region.layout();
    let slot_words = (layout.life(1) - layout.life(0)) as u64 / 8;
    let kind = random.below(4);
    for _ in 0..random.below(40) {
        let word = match kind {
            0 => random.draw(),
            1 => random.below(16),
            2 => (random.below(4) << 32) | random.below(70_000),
            _ => u64::MAX << random.below(64),
        };
        let (from, words) = if random.below(3) == 0 { (8, slot_words - 8) } else { (16, 1000) };
        let at = layout.life(slot) + 8 * (from + random.below(words)) as usize;
        region.mapping().store(at, word, Relaxed);
    }
}

/// Fills a cell of somebody's ring as only a liar would.
fn lie(hostile: &mut Endpoint, to: Local, random: &mut Random) {
    let region = Arc::clone(&hostile.region);
    hostile.engine.peers.meet(to);
    let Ok(cell) = hostile.engine.claim(&region, to) else { return };
    // All but the first three words.
    for at in (0..216).step_by(8) {
        let word = if random.below(2) == 0 { random.below(9) } else { random.draw() };
        region.mapping().store(cell.body_at() - 16 + at, word, Relaxed);
    }
    let source = hostile.engine.me;
    if random.below(2) == 0 {
        return lie_in_the_head(&cell, source, to, random);
    }
    let kind = CellKind::ALL[random.below(CellKind::ALL.len() as u64) as usize];
    let (class, data, tag) = (Class::Tagged, None, random.below(5));
    let inline_bytes = random.below(217) as u16;
    cell.publish(&CellHead { kind, class, inline_bytes, source, to, tag, data, marked: false });
}

/// Publishes a cell with words in its head, for kind, flags and length, source and receiver, that
/// no sender would write. Not under the name of another endpoint that lives: a member that takes
/// this name ruins the other's messages, which is within a domain's trust.
fn lie_in_the_head(cell: &Cell<'_>, source: Local, to: Local, random: &mut Random) {
    let max = INLINE_BYTES_MAX as u64;
    let lengths = [0, 8, max, max + 1, 1 << 15, u64::from(u16::MAX), random.below(max)];
    let (kind, flags) = (random.below(12) << 24, random.below(16) << 16);
    let length = lengths[random.below(7) as usize];
    // Mostly what looks like a message in the cell.
    let lows = [length, length, flags | length, kind | flags | length, random.draw()];
    let low = lows[random.below(5) as usize] as u32;
    let mut name = |own: Local, word: fn(Local) -> u64| {
        let wrong = [
            Local { incarnation: own.incarnation + 1, ..own },
            Local { host: 1, ..own },
            Local { slot: u16::MAX, ..own },
        ];
        let wrong = word(wrong[random.below(3) as usize]);
        [word(own), word(own), wrong, random.draw()][random.below(4) as usize]
    };
    let names = [name(source, source_word), name(to, to_word)];
    cell.publish_words(low, names);
}

/// Messages of each way from the first to the second, among all that they are sent besides.
fn talk(world: &mut World, round: u64) {
    let [one, other] = [world.address(0), world.address(1)];
    for len in [8, 4000, 30_000] {
        let (sent, mut got) = (content(round, len), vec![0; len]);
        ask(&mut world.endpoints[1], &receive(Some(one), 1 << 40), &mut got);
        let message = message(other, 1 << 40);
        while send(&mut world.endpoints[0], &message, &sent) == Err(SendError::Busy) {
            world.turn();
        }
        (0..10).for_each(|_| world.turn());
        let is_ours = |done: &&Completion| done.tag == 1 << 40 && done.failure.is_none();
        for endpoint in &mut world.endpoints {
            let count = ended(endpoint).iter().filter(is_ours).count();
            assert_eq!(count, 1, "round {round}, {len} bytes");
        }
        assert_eq!(got, sent);
    }
}

/// An endpoint writes over all of its own slot and lies to others, while these talk to each other
/// and to it.
#[test]
fn garbage_in_a_slot_costs_others_nothing() {
    let mut random = Random::new(1);
    for single_copy_bytes_min in [0, usize::MAX] {
        let usual = RegionOptions::default();
        let region = RegionOptions { cells: 16, buffers: 4, buffer_bytes: 4096, ..usual };
        let options = EndpointOptions { single_copy_bytes_min, ..EndpointOptions::default() };
        let mut world = World::new(2, region, &options);
        let mut hostile = world.join(&options);
        let (bad, sent, mut outcomes) = (hostile.address(), [1; 3000], [0; 3]);
        for round in 0..3000_u64 {
            scribble(world.table.region(), bad.slot, &mut random);
            let to = world.endpoints[round as usize % 2].engine.me;
            lie(&mut hostile, to, &mut random);
            for (at, len) in [(0, 3000), (1, 8)] {
                // Each send has an answer, and none has to wait for ever.
                match send(&mut world.endpoints[at], &message(bad, 1), &sent[..len]) {
                    Ok(()) => outcomes[0] += 1,
                    Err(SendError::Busy) => outcomes[1] += 1,
                    Err(SendError::Nonsense) => outcomes[2] += 1,
                    Err(other) => panic!("{other}"),
                }
            }
            talk(&mut world, round);
        }
        let counted = |count: fn(&EndpointCounters) -> u64| -> u64 {
            world.endpoints.iter().map(|at| count(at.counters())).sum()
        };
        let (nonsense, strays) = (counted(|it| it.nonsense), counted(|it| it.strays));
        assert!(nonsense > 100 && strays > 20, "{nonsense}, {strays}");
        assert!(outcomes[2] > 100, "a broken ring is told: {outcomes:?}");
    }
}

/// A message of each way to an endpoint whose ring was written over fails, and is not tried again
/// for ever; a message that was being fed to it ends.
#[test]
fn an_overwritten_ring_is_an_error_for_its_senders() {
    let options =
        EndpointOptions { single_copy_bytes_min: usize::MAX, ..EndpointOptions::default() };
    let region = RegionOptions { buffers: 2, ..RegionOptions::default() };
    let mut world = World::new(2, region, &options);
    let to = world.address(1);
    let (long, mut got) = (content(1, 200_000), vec![0; 200_000]);
    ask(&mut world.endpoints[1], &receive(None, 1), &mut got);
    send(&mut world.endpoints[0], &message(to, 1), &long).expect("room");
    // Cleared, and some of it fed.
    world.endpoints[1].progress();
    world.endpoints[0].progress();
    world.table.region().ring(to.slot).set_tail(1 << 40);
    for len in [8, 3000, 200_000] {
        let refused = send(&mut world.endpoints[0], &message(to, 2), &long[..len]);
        assert_eq!(refused, Err(SendError::Nonsense), "{len} bytes");
    }
    (0..100).for_each(|_| world.endpoints[0].progress());
    let failures: Vec<_> = ended(&mut world.endpoints[0]).iter().map(|d| d.failure).collect();
    assert_eq!(failures, [Some(RequestFailure::Nonsense)]);
}

/// The receiver cannot say that it wants an offer, and does not wait for it for ever.
#[test]
fn an_offer_of_an_unreachable_sender_fails() {
    let mut world = World::usual(2);
    let [from, to] = [world.address(0), world.address(1)];
    let (sent, mut got) = (vec![1; 50_000], vec![0; 50_000]);
    ask(&mut world.endpoints[1], &receive(None, 1), &mut got);
    send(&mut world.endpoints[0], &message(to, 1), &sent).expect("room");
    world.table.region().ring(from.slot).set_tail(1 << 40);
    world.endpoints[1].progress();
    assert_eq!(ended(&mut world.endpoints[1])[0].failure, Some(RequestFailure::Nonsense));
}

/// Others send all the time; a death is noticed all the same, and after all messages of the dead.
#[test]
fn a_death_is_noticed_in_a_flood_of_others_messages() {
    let options = EndpointOptions::default();
    let mut world = World::new(2, RegionOptions::default(), &options);
    let mut doomed = world.join(&options);
    let (from, to) = (doomed.address(), world.address(1));
    let mut got = [[0; 8], [0; 8]];
    for memory in &mut got {
        ask(&mut world.endpoints[1], &receive(Some(from), 1), memory);
    }
    // A cell is always there before the ring is looked at, and one more after.
    send(&mut world.endpoints[0], &message(to, 2), &[0; 8]).expect("room");
    send(&mut doomed, &message(to, 1), &[7; 8]).expect("room");
    kill(&world, doomed);
    let mut ended_there = Vec::new();
    for round in 0..4 * LOOKS_FOR_LIVES {
        for _ in 0..2 {
            send(&mut world.endpoints[0], &message(to, 2), &[0; 8]).expect("room");
        }
        assert!(world.endpoints[1].engine.empty_looks <= 1, "never empty for long: {round}");
        world.endpoints[1].progress();
        ended(&mut world.endpoints[0]);
        ended_there.extend(ended(&mut world.endpoints[1]));
    }
    let outcomes: Vec<_> = ended_there.iter().map(|done| (done.tag, done.failure)).collect();
    assert_eq!(outcomes, [(1, None), (0, Some(RequestFailure::Gone))]);
    assert_eq!(got[0], [7; 8]);
}

/// A receiver that has taken what was offered and ends at once, while the sender's ring is full.
#[test]
fn an_endpoint_that_ends_says_its_last_words() {
    let region = RegionOptions { cells: 16, ..RegionOptions::default() };
    let usual = EndpointOptions::default();
    let options = EndpointOptions { single_copy_bytes_min: 0, waiting_bytes_max: 0, ..usual };
    let mut world = World::new(1, region, &options);
    let (from, mut leaving) = (world.address(0), world.join(&options));
    let (to, slot) = (leaving.address(), leaving.engine.me.slot);
    let (sent, mut got) = (content(1, 50_000), vec![0; 50_000]);
    ask(&mut leaving, &receive(None, 1), &mut got);
    send(&mut world.endpoints[0], &message(to, 1), &sent).expect("room");
    while send(&mut leaving, &message(from, 9), &[0; 8]).is_ok() {}
    leaving.progress();
    assert_eq!((leaving.engine.answers.len(), &got), (1, &sent));
    std::thread::scope(|scope| {
        let leaves = scope.spawn(move || drop(leaving));
        while !leaves.is_finished() {
            world.endpoints[0].progress();
            std::thread::yield_now();
        }
    });
    assert!(world.table.declare_dead(slot));
    world.settle();
    let ended_here = ended(&mut world.endpoints[0]);
    let outcomes: Vec<_> = ended_here.iter().map(|done| (done.tag, done.failure)).collect();
    assert_eq!(outcomes, [(1, None)], "what was taken is told to be sent, not lost");
}

/// Many answers that wait for one full ring cost each look the same few tries.
#[test]
fn answers_that_wait_are_tried_a_few_at_a_time() {
    let region = RegionOptions { cells: 16, ..RegionOptions::default() };
    let options = EndpointOptions { single_copy_bytes_min: 0, ..EndpointOptions::default() };
    let mut world = World::impatient(2, region, &options);
    let [from, to] = [world.address(0), world.address(1)];
    let (sent, mut got) = (vec![1; 20_000], vec![0; 20_000]);
    let mut offers = 0;
    while send(&mut world.endpoints[1], &message(from, 9), &[0; 8]).is_ok() {}
    while offers < 8 * ANSWERS {
        let message = Message { context: None, ..message(to, 1) };
        match send(&mut world.endpoints[0], &message, &sent) {
            Ok(()) => offers += 1,
            Err(error) => assert_eq!(error, SendError::Busy),
        }
        ask(&mut world.endpoints[1], &receive(None, 1), &mut got);
        // Its ring is not looked at: only the other one takes.
        world.endpoints[1].progress();
    }
    let waiting: Vec<_> = world.endpoints[1].engine.answers.iter().map(|a| a.operation).collect();
    assert!(waiting.len() > 4 * ANSWERS, "{}", waiting.len());
    world.endpoints[1].engine.answer_again(&Arc::clone(world.table.region()));
    let after: Vec<_> = world.endpoints[1].engine.answers.iter().map(|a| a.operation).collect();
    let (first, rest) = waiting.split_at(ANSWERS);
    assert_eq!(after, [rest, first].concat(), "so many had their turn");
    (0..200).for_each(|_| world.turn());
    assert!(world.endpoints[1].engine.answers.is_empty());
}

/// A process sends, is told that all has arrived, and ends; another one comes before the receiver
/// looks. Its slot is not the one that the messages are of.
#[test]
fn messages_before_an_end_are_not_given_to_the_slots_next_owner() {
    let options = EndpointOptions::default();
    let region = RegionOptions { slots: 3, ..RegionOptions::default() };
    let (table, _fd) = Node::new(&region);
    let mut world = World { table, endpoints: Vec::new() };
    for _ in 0..2 {
        let endpoint = world.join(&options);
        world.endpoints.push(endpoint);
    }
    let (to, mut doomed) = (world.address(0), world.join(&options));
    let (from, sent) = (doomed.address(), content(1, 3000));
    for len in [8, 3000] {
        send(&mut doomed, &message(to, 1), &sent[..len]).expect("room");
    }
    assert_eq!(ended(&mut doomed).len(), 2, "it was told so");
    kill(&world, doomed);
    let refused = world.table.take_slot(1);
    assert!(refused.is_err(), "there is no other slot than the one that the messages are of");
    let mut got = [vec![0; 8], vec![0; 3000]];
    for memory in &mut got {
        ask(&mut world.endpoints[0], &receive(Some(from), 1), memory);
    }
    // Long enough for it to say that it has taken them.
    (0..LOOKS_FOR_CLAIMS + 2).for_each(|_| world.endpoints[0].progress());
    assert_eq!((&got[0][..], &got[1][..]), (&sent[..8], &sent[..]));
    assert_eq!(world.table.take_slot(1), Ok((from.slot, 2)));
}

/// Ten thousand times a producer dies with a cell that it has claimed and not published, at each
/// store in between; the receiver goes on, and so do the senders beside it.
#[test]
fn ten_thousand_deaths_between_reserving_and_publishing_hold_up_no_other() {
    const DEATHS: u64 = 10_000;
    let region = RegionOptions { cells: 64, buffers: 4, ..RegionOptions::default() };
    let options = EndpointOptions::default();
    let mut world = World::new(2, region, &options);
    let (other, to) = (world.address(0), world.address(1));
    let long = content(1, 50_000);
    let (mut kills, mut at_store) = (0_u64, [0_u64; 16]);
    while world.endpoints[1].counters().skipped_cells < DEATHS {
        let mut doomed = world.join(&options);
        let len = [8, 3000, 50_000][kills as usize % 3];
        // From the claim on; how many there are differs by way.
        let stores = 1 + kills / 3 % (at_store.len() as u64 - 1);
        let before = world.endpoints[1].counters().skipped_cells;
        let message_to = |tag| Message { context: None, ..message(to, tag) };
        let whole = stop::after(stores, || send(&mut doomed, &message_to(7), &long[..len]));
        kill(&world, doomed);
        // Behind the cell of the dead.
        let (tag, mut got) = (kills << 8, [0; 8]);
        ask(&mut world.endpoints[1], &receive(Some(other), tag), &mut got);
        let sent = tag.to_le_bytes();
        send(&mut world.endpoints[0], &message_to(tag), &sent).expect("room");
        (0..2 * LOOKS_FOR_CLAIMS + 2).for_each(|_| world.endpoints[1].progress());
        assert_eq!(got, sent, "{len} bytes, stopped after {stores}");
        let skipped = world.endpoints[1].counters().skipped_cells - before;
        assert!(skipped <= 1 && (skipped == 0 || whole.is_none()));
        at_store[stores as usize] += skipped;
        if whole.is_some() {
            // Messages that it did send are not kept.
            let (class, source, context) = (Class::Tagged, None, RequestContext(7));
            let found = LookOutcome::Discarded;
            let look = Peek { class, source, tag: 7, ignore: 0, context, found };
            world.endpoints[1].peek(&look);
        }
        ended(&mut world.endpoints[1]);
        kills += 1;
    }
    println!("{kills} kills, {DEATHS} of them with a cell in hand, by store: {at_store:?}");
    let stores = at_store.iter().filter(|deaths| **deaths > 0).count();
    assert!(stores >= 10, "{at_store:?}");
    assert_eq!(world.endpoints[1].counters().nonsense, 0);
}
