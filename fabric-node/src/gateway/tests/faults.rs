//! Endpoints that do not receive or that die; hosts that are out of reach or may not join.

use super::*;
use fabric::doorbell::silence;
use fabric::region::gateway_of;
use fabric::ring::{Producer, RingProducer, Words};
use fabric::{Done, RequestFailure};

/// Polls so often that what is looked for rarely is looked for.
fn look_long(endpoint: &mut Endpoint) {
    (0..1 << 15).for_each(|_| endpoint.progress());
}

fn failures(endpoint: &mut Endpoint) -> Vec<Option<RequestFailure>> {
    ended(endpoint).into_iter().map(|completion| completion.failure).collect()
}

#[test]
fn a_receiver_that_does_not_receive_holds_up_no_other() {
    let mut world = World::joined(2, 2, 1);
    let [deaf, other] = [world.address(1, 0), world.address(1, 1)];
    // It never polls from here on.
    let sleeper = world.hosts[1].endpoints.remove(0);
    let bytes = content(1, 9000);
    let sent = 1000_u64;
    for number in 0..sent {
        send(&mut world.hosts[0].endpoints[0], deaf, number, &bytes).expect("it waits");
        world.step();
        ended(&mut world.hosts[0].endpoints[0]);
    }
    let waiting = world.hosts[0].endpoints[0].waiting_for(deaf);
    assert!(waiting > 500, "there is an end to what is under way: {waiting} wait");
    let counters = world.hosts[1].cores[0].room.counters();
    assert!(counters.waited > 0 && counters.full_rounds == 0, "{counters:?}");
    // From the same sender and from another one.
    for sender in 0..2 {
        let mut got = vec![0; 9000];
        ask(&mut world.hosts[1].endpoints[0], None, 5, &mut got);
        send(&mut world.hosts[0].endpoints[sender], other, 5, &bytes).expect("there is room");
        world.run_until("it arrives", |world| {
            ended(&mut world.hosts[1].endpoints[0]).iter().any(|it| it.context.0 == 5)
        });
        assert_eq!(got, bytes);
    }
    // It wakes up, and finds all of them.
    world.hosts[1].endpoints.insert(0, sleeper);
    for number in 0..sent {
        let mut got = vec![0; 9000];
        ask(&mut world.hosts[1].endpoints[0], None, number, &mut got);
        let mut tag = None;
        world.run_until("all that was sent", |world| {
            tag = ended(&mut world.hosts[1].endpoints[0]).first().map(|it| it.tag);
            tag.is_some()
        });
        assert_eq!((tag, got), (Some(number), bytes.clone()));
    }
}

#[test]
fn operations_with_dead_endpoints_end() {
    let mut world = World::joined(2, 2, 2);
    let dead = world.address(1, 0);
    let long = content(1, 300_000);
    let mut place = [0; 8];
    send(&mut world.hosts[0].endpoints[0], dead, 1, &long).expect("it is offered");
    ask(&mut world.hosts[0].endpoints[1], Some(dead), 2, &mut place);
    world.run(200);
    look_long(&mut world.hosts[0].endpoints[1]);
    drop(world.hosts[1].endpoints.remove(0));
    assert!(world.hosts[1].table.declare_dead(dead.slot));
    world.hosts[1].table.sweep();
    let mut ends = [Vec::new(), Vec::new()];
    world.run_until("both hear of it", |world| {
        for (at, ends) in ends.iter_mut().enumerate() {
            ends.extend(failures(&mut world.hosts[0].endpoints[at]));
        }
        ends.iter().all(|ends| !ends.is_empty())
    });
    assert_eq!(ends, [vec![Some(RequestFailure::Gone)], vec![Some(RequestFailure::Gone)]]);
    let again = send(&mut world.hosts[0].endpoints[0], dead, 3, b"hello");
    assert_eq!(again, Err(SendError::Gone));
    // An endpoint asks for the death only now.
    world.hosts[0].join();
    let asks = &mut world.hosts[0].endpoints[2];
    assert!(!asks.has_something());
    ask(asks, Some(dead), 4, &mut place);
    assert!(asks.has_something(), "a gateway must be asked before the endpoint may sleep");
    look_long(asks);
    assert!(!asks.has_something());
    world.run_until("it hears of it too", |world| {
        failures(&mut world.hosts[0].endpoints[2]) == [Some(RequestFailure::Gone)]
    });
    // The slot's new owner gets nothing of the old messages, and can be reached.
    let next = loop {
        let next = world.hosts[1].join();
        if next.slot == dead.slot {
            break next;
        }
        world.hosts[1].endpoints.pop();
        assert!(world.hosts[1].table.declare_dead(next.slot));
    };
    assert_eq!(next.incarnation, dead.incarnation + 1);
    ask(&mut world.hosts[1].endpoints[1], None, 7, &mut place);
    send(&mut world.hosts[0].endpoints[0], next, 7, b"anew").expect("it is there");
    world.run_until("it arrives", |world| {
        ended(&mut world.hosts[1].endpoints[1]).iter().any(|it| it.tag == 7)
    });
    assert_eq!(&place[..4], b"anew");
}

#[test]
fn a_host_that_is_out_of_reach_for_long_is_given_up_by_both() {
    let mut world = World::joined(2, 1, 3);
    let there = world.address(1, 0);
    let mut place = [0; 8];
    ask(&mut world.hosts[0].endpoints[0], Some(there), 1, &mut place);
    world.cut = true;
    world.lose_all();
    // A message sent meanwhile is kept, until the other host is given up.
    send(&mut world.hosts[0].endpoints[0], there, 2, b"lost").expect("it is not known yet");
    world.run(100);
    assert_eq!(ended(&mut world.hosts[0].endpoints[0]).len(), 1, "the send alone");
    let given_up_by = world.now_ns + 11_000_000_000;
    world.now_ns = given_up_by;
    world.run(10);
    look_long(&mut world.hosts[0].endpoints[0]);
    assert_eq!(failures(&mut world.hosts[0].endpoints[0]), [Some(RequestFailure::Gone)]);
    let again = send(&mut world.hosts[0].endpoints[0], there, 3, b"never");
    assert_eq!(again, Err(SendError::Gone));
    // The host is back: endpoints that knew it before are cut off, and others reach it.
    world.cut = false;
    world.hosts[0].join();
    world.run_until("they are joined again", |world| {
        world.hosts.iter().all(|host| host.associations.reports()[0].joined == 1)
    });
    let again = send(&mut world.hosts[0].endpoints[0], there, 4, b"never");
    assert_eq!(again, Err(SendError::Gone));
    ask(&mut world.hosts[1].endpoints[0], None, 5, &mut place);
    send(&mut world.hosts[0].endpoints[1], there, 5, b"anew").expect("it is there");
    world.run_until("it arrives", |world| {
        ended(&mut world.hosts[1].endpoints[0]).iter().any(|it| it.tag == 5)
    });
    assert_eq!(&place[..4], b"anew");
}

#[test]
fn a_node_that_is_another_one_has_other_endpoints() {
    let mut world = World::joined(2, 1, 4);
    let there = world.address(1, 0);
    let mut place = [0; 8];
    ask(&mut world.hosts[0].endpoints[0], Some(there), 1, &mut place);
    world.lose_all();
    let mut peers = world.hosts[1].associations.names();
    world.hosts[1] = Host::new(1, 999, KEY, &peers, &world.wires);
    let new = world.hosts[1].join();
    world.run_until("they are joined", |world| {
        world.hosts.iter().all(|host| host.associations.reports()[0].joined == 1)
    });
    look_long(&mut world.hosts[0].endpoints[0]);
    assert_eq!(failures(&mut world.hosts[0].endpoints[0]), [Some(RequestFailure::Gone)]);
    world.hosts[0].join();
    send(&mut world.hosts[0].endpoints[1], new, 5, b"hello").expect("it is there");
    ask(&mut world.hosts[1].endpoints[0], None, 5, &mut place);
    world.run_until("it arrives", |world| {
        ended(&mut world.hosts[1].endpoints[0]).iter().any(|it| it.tag == 5)
    });
    // The own node goes.
    world.hosts[0].doorbell.gone.store(true, std::sync::atomic::Ordering::Relaxed);
    ask(&mut world.hosts[0].endpoints[1], Some(new), 6, &mut place);
    look_long(&mut world.hosts[0].endpoints[1]);
    let completions = ended(&mut world.hosts[0].endpoints[1]);
    let last = completions.last().expect("it has ended");
    assert!(
        matches!(last.done, Done::Receive { .. }) && last.failure == Some(RequestFailure::Gone)
    );
    // No peer any more, which a sender to it finds out.
    world.hosts[0].doorbell.gone.store(false, std::sync::atomic::Ordering::Relaxed);
    world.hosts[0].join();
    peers.clear();
    world.hosts[1].associations.set_peers(&peers);
    send(&mut world.hosts[0].endpoints[2], new, 7, b"hello").expect("it is not known yet");
    world.run_until("they are not joined", |world| {
        world.hosts[0].associations.reports()[0].joined == 0
    });
}

#[test]
fn a_host_with_another_key_or_no_peer_is_refused() {
    for (key, names_it) in [(KEY + 1, true), (KEY, false)] {
        let mut world = World::new(2, 1, 5);
        let peers: Vec<_> = ["h0".to_owned()].into_iter().filter(|_| names_it).collect();
        world.hosts[1] = Host::new(1, 101, key, &peers, &world.wires);
        let there = world.hosts[1].join();
        world.run(3000);
        let report = &world.hosts[0].associations.reports()[0];
        assert_eq!((report.joined, report.host), (0, None));
        let why = report.why.as_deref().expect("it is known why");
        assert!(why.contains("is not open to this node"), "{why}");
        let refused = send(&mut world.hosts[0].endpoints[0], there, 1, b"hello");
        assert_eq!(refused, Err(SendError::Unreachable(there)));
    }
    let nobody = answer_nobody(
        &Join {
            gateway: 0,
            gateways: 1,
            layout: 1,
            host: 9,
            epoch: 1,
            buffer_bytes: 16_384,
            proof: [0; PROOF_BYTES],
            domain: "blue".to_owned(),
        }
        .head(),
    );
    assert!(String::from_utf8_lossy(&nobody).contains("is not open to this node"));
}

#[test]
fn a_host_that_does_not_understand_a_question_is_named() {
    let mut world = World::new(2, 1, 9);
    for _ in 0..3000 {
        world.step();
        for flight in &mut world.wires.borrow_mut().flights {
            if let Flight::Call { head, .. } = flight
                && matches!(about(head), About::Domain(_))
            {
                // As one of before finds what has been added since.
                head.truncate(20);
            }
        }
    }
    for host in &world.hosts {
        let report = &host.associations.reports()[0];
        let why = report.why.as_deref().expect("it is known why");
        assert!(report.joined == 0 && why.contains("one release"), "{why}");
    }
}

#[test]
fn an_endpoint_that_sleeps_is_woken_by_what_comes_from_elsewhere() {
    let mut world = World::joined(2, 1, 8);
    let there = world.address(1, 0);
    let host = &world.hosts[1];
    let doorbell = host.table.open_doorbell(there.slot, there.incarnation).expect("a descriptor");
    let region = Arc::clone(host.table.region());
    for sleep in 1..=2 {
        region.ring(there.slot).set_asleep(sleep);
        world.run(100);
        assert!(!was_rung(&doorbell), "nothing has come");
        for tag in 0..3 {
            send(&mut world.hosts[0].endpoints[0], there, tag, b"hello").expect("there is room");
        }
        world.run(500);
        assert!(was_rung(&doorbell) && silence(&doorbell));
    }
}

/// Whether it was rung since it was silenced.
fn was_rung(doorbell: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(doorbell, PollFlags::IN)], Some(&now)).expect("ours") > 0
}

#[test]
fn a_room_that_sleeps_is_woken_by_senders() {
    let mut world = World::joined(2, 1, 6);
    world.run(500);
    let there = world.address(1, 0);
    let woken =
        |world: &World| world.hosts[0].doorbell.woken.load(std::sync::atomic::Ordering::Relaxed);
    let now_ns = world.now_ns;
    assert!(world.hosts[0].cores[0].room.fall_asleep(now_ns).is_some(), "there is nothing to do");
    send(&mut world.hosts[0].endpoints[0], there, 1, b"hello").expect("there is room");
    assert_eq!(woken(&world), 1);
    assert_eq!(world.hosts[0].cores[0].room.fall_asleep(now_ns), None, "there is something to do");
    world.hosts[0].cores[0].room.wake_up();
    send(&mut world.hosts[0].endpoints[0], there, 2, b"hello").expect("there is room");
    assert_eq!(woken(&world), 1);
}

#[test]
fn a_room_that_sleeps_is_woken_once_for_many_pieces() {
    for (len, is_pushed) in [(64 << 10, true), ((64 << 10) + 1, false)] {
        let mut world = World::joined(2, 1, 6);
        let there = world.address(1, 0);
        let (bytes, mut place) = (content(1, len), vec![0; len]);
        ask(&mut world.hosts[1].endpoints[0], None, 1, &mut place);
        let woken = |host: &Host| host.doorbell.woken.load(std::sync::atomic::Ordering::Relaxed);
        let (mut rings, mut is_sent) = (Vec::new(), false);
        world.run_until("it has come", |world| {
            let Host { cores, endpoints, doorbell: _, .. } = &mut world.hosts[0];
            // An offer goes and is answered; the receiver asks for the message while the gateway
            // sleeps.
            if is_sent || is_pushed {
                let _ = cores[0].room.fall_asleep(world.now_ns);
            }
            let before = cores[0].room.counters().sent;
            if !std::mem::replace(&mut is_sent, true) {
                send(&mut endpoints[0], there, 1, &bytes).expect("there is room");
            }
            endpoints[0].progress();
            cores[0].room.wake_up();
            let Core { room, carrier, .. } = &mut cores[0];
            room.poll(world.now_ns, carrier);
            rings.push((room.counters().sent - before, woken(&world.hosts[0])));
            !ended(&mut world.hosts[1].endpoints[0]).is_empty()
        });
        assert_eq!(place, bytes);
        let most = rings.iter().map(|(cells, _)| *cells).max().expect("it was sent");
        assert!(most >= 4, "four pieces are there at once: {rings:?}");
        assert_eq!(woken(&world.hosts[0]), 1, "{rings:?}");
    }
}

#[test]
fn long_messages_are_written_to_their_final_place() {
    let mut world = World::joined(2, 1, 9);
    let there = world.address(1, 0);
    let (bytes, mut place) = (content(2, 1 << 20), vec![0; 1 << 20]);
    ask(&mut world.hosts[1].endpoints[0], None, 1, &mut place);
    send(&mut world.hosts[0].endpoints[0], there, 1, &bytes).expect("there is room");
    world.run_until("it has come", |world| !ended(&mut world.hosts[1].endpoints[0]).is_empty());
    assert_eq!(place, bytes);
    // Gathered batches come into buffers as one.
    let carrier = &world.hosts[0].cores[0].carrier;
    let piece = 16_384 + 40;
    assert!(carrier.written >= bytes.len(), "{}", carrier.written);
    assert!(carrier.longest <= piece, "{} bytes were copied twice", carrier.longest);
}

#[test]
fn messages_of_the_dead_come_before_their_death() {
    let mut world = World::joined(2, 1, 8);
    let [dead, there] = [world.address(0, 0), world.address(1, 0)];
    let mut places = vec![[0_u8; 8]; 41];
    for (number, place) in places.iter_mut().enumerate() {
        ask(&mut world.hosts[1].endpoints[0], Some(dead), number as u64, place);
    }
    let bytes = [7; 8];
    for number in 0..40 {
        let sent = send(&mut world.hosts[0].endpoints[0], there, number, &bytes);
        sent.expect("the ring has room");
    }
    drop(world.hosts[0].endpoints.remove(0));
    assert!(world.hosts[0].table.declare_dead(dead.slot));
    let mut ends = Vec::new();
    world.run_until("all have ended", |world| {
        ends.extend(failures(&mut world.hosts[1].endpoints[0]));
        ends.len() == 41
    });
    assert!(
        ends[..40].iter().all(Option::is_none) && ends[40] == Some(RequestFailure::Gone),
        "{ends:?}"
    );
}

/// By any of several gateways, and while the gateway of the messages has no session.
#[test]
fn a_death_that_is_asked_for_overtakes_nothing() {
    for (one, other) in (0..4).flat_map(|one| (0..4).map(move |other| (one, other))) {
        let mut world = World::with_cores(2, 2, 4, 23);
        world.join();
        let [dead, there] = [world.address(0, one), world.address(1, other)];
        let mut places = [[0_u8; 8]; 6];
        for (number, place) in places.iter_mut().enumerate() {
            ask(&mut world.hosts[1].endpoints[other], Some(dead), number as u64, place);
        }
        let way = usize::from(gateway_of(dead.slot, there.slot, 2));
        world.cut = true;
        let is_way = |(_, ends): &(&Session, &[End; 2])| ends[0].1 == way;
        let session = world.wires.borrow().up.iter().find(is_way).map(|(session, _)| *session);
        world.lose(session.expect("it is up"));
        for number in 0..5 {
            let sent = send(&mut world.hosts[0].endpoints[one], there, number, &[7; 8]);
            sent.expect("the ring has room");
        }
        drop(world.hosts[0].endpoints.remove(one));
        assert!(world.hosts[0].table.declare_dead(dead.slot));
        world.run(200);
        look_long(&mut world.hosts[1].endpoints[other]);
        world.run(500);
        assert_eq!(failures(&mut world.hosts[1].endpoints[other]), [], "from {one} to {other}");
        world.cut = false;
        let mut ends = Vec::new();
        world.run_until("all have ended", |world| {
            ends.extend(failures(&mut world.hosts[1].endpoints[other]));
            ends.len() == 6
        });
        assert!(ends[..5].iter().all(Option::is_none) && ends[5] == Some(RequestFailure::Gone));
    }
}

#[test]
fn a_removed_peer_gets_no_further_message() {
    for takes_out in [true, false] {
        let mut world = World::joined(2, 1, 9);
        let (there, mut place) = (world.address(1, 0), [0; 8]);
        ask(&mut world.hosts[0].endpoints[0], Some(there), 1, &mut place);
        world.run(200);
        if takes_out {
            world.hosts[1].associations.set_peers(&[]);
        }
        world.run(200);
        world.now_ns += 3_000_000_000;
        world.run(200);
        let joined = world.hosts[0].associations.reports()[0].joined;
        assert_eq!(joined == 0, takes_out, "looked at again, though no endpoint sends");
        world.now_ns += 11_000_000_000;
        world.run(200);
        look_long(&mut world.hosts[0].endpoints[0]);
        let gone = failures(&mut world.hosts[0].endpoints[0]);
        assert_eq!(gone == [Some(RequestFailure::Gone)], takes_out, "{gone:?}");
    }
}

#[test]
fn calls_of_a_peer_that_is_taken_out_are_answered() {
    for seed in 10..20 {
        let mut world = World::joined(2, 1, seed);
        let (there, bytes) = (world.address(1, 0), content(1, 9000));
        for number in 0..30 {
            // A message without room does not matter.
            let _ = send(&mut world.hosts[0].endpoints[0], there, number, &bytes);
            world.step();
        }
        world.hosts[1].associations.set_peers(&[]);
        world.run(500);
        assert_eq!(world.unanswered(), 0, "of a session that lives");
        let bodies = world.hosts[1].cores[0].carrier.bodies.len();
        assert_eq!(bodies, 0, "buffers of what nobody takes");
    }
}

#[test]
fn a_claim_of_a_dead_sender_holds_up_no_other() {
    let mut world = World::joined(2, 2, 21);
    let (there, dead) = (world.address(1, 0), world.address(0, 1));
    let region = Arc::clone(world.hosts[0].table.region());
    let producer = Producer { slot: dead.slot, incarnation: dead.incarnation as u16 };
    RingProducer::default().claim(&region.ring(0), producer).expect("there is room");
    drop(world.hosts[0].endpoints.remove(1));
    assert!(world.hosts[0].table.declare_dead(dead.slot));
    world.run(5);
    let mut place = [0; 8];
    ask(&mut world.hosts[1].endpoints[0], None, 1, &mut place);
    send(&mut world.hosts[0].endpoints[0], there, 1, b"hello").expect("there is room");
    world.run(40);
    assert_eq!(failures(&mut world.hosts[1].endpoints[0]), [None]);
}

#[test]
fn a_question_costs_nothing_of_the_window() {
    let mut world = World::joined(2, 1, 22);
    let (there, mut place) = (world.address(1, 0), [0; 8]);
    // A cell less than what is marked.
    for number in 0..255 {
        send(&mut world.hosts[0].endpoints[0], there, number, b"hello").expect("there is room");
        world.run(3);
    }
    ask(&mut world.hosts[0].endpoints[0], Some(there), 1, &mut place);
    look_long(&mut world.hosts[0].endpoints[0]);
    world.run(500);
    assert_eq!(world.hosts[0].endpoints[0].unanswered_marks(), 0);
}
