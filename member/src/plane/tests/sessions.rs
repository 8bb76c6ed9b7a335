//! Sessions that come, go, are of another version, or bring no answers.

use super::*;
use crate::host::MemberMail;

#[test]
fn messages_under_way_are_lost_with_a_session_and_later_messages_arrive() {
    let mut world = World::new();
    let route = world.connect(0, "alice", 1);
    world.nodes[1].is_silent = true;
    assert_eq!(world.flood(0, route, 0..1000), CALLS_UNDER_WAY_MAX / 2);
    world.rounds(10);
    let losses = world.nodes[0].plane.borrow().losses(route);
    world.restart(1);
    world.until("the loss is seen", |world| world.nodes[0].plane.borrow().losses(route) > losses);
    let lost = world.nodes[0].counters().lost.get();
    assert_eq!(lost, CALLS_UNDER_WAY_MAX / 2);
    // Without a session, messages are dropped; with the next one, they arrive under a new number.
    let mut number = 1000;
    world.until("messages arrive again", |world| {
        number += 1;
        let _ = world.send(0, route, hello(number));
        world.rounds(5);
        world.nodes[1].counters().taken.get() > 0
    });
    let heard = numbers(&world.nodes[1].take("alice", 999));
    assert!(heard[0] > 1000 && heard.is_sorted(), "{heard:?}");
    assert!(world.nodes[0].plane.borrow().losses(route) > losses + 1, "it has a number again");
    assert_eq!(world.flood(0, route, 2000..2050), 50);
    world.rounds(20);
    assert_eq!(world.nodes[1].take("alice", 999).len(), 50);
    world.rounds(20);
    assert_eq!((world.nodes[0].buffers(), world.nodes[1].buffers()), (0, 0));
}

#[test]
fn messages_that_wait_for_room_go_with_their_session() {
    let mut world = World::new();
    let (one, two) = (world.connect(0, "alice", 1), world.connect(2, "alice", 1));
    // Both senders fill the mailbox, and both wait.
    for _ in 0..20 {
        world.flood(0, one, 0..1000);
        world.flood(2, two, 5000..6000);
        world.rounds(10);
    }
    let waits = |world: &World| world.nodes[1].plane.borrow().arrivals.quotas();
    let quotas = waits(&world);
    let has: u64 = quotas.iter().map(|quota| quota.part.has).sum();
    assert_eq!(has, 2 * (CALLS_UNDER_WAY_MAX / 2), "{quotas:?}");
    world.restart(0);
    world.until("the session is lost", |world| {
        waits(world).iter().map(|quota| quota.part.has).sum::<u64>() < has
    });
    // The messages of the other sender go on.
    let mut heard = Vec::new();
    world.until("the rest is heard", |world| {
        heard.extend(world.nodes[1].take("alice", 100));
        waits(world).iter().all(|quota| quota.part.has == 0)
    });
    heard.extend(world.nodes[1].take("alice", 999));
    assert!(heard.iter().filter(|it| it.from == 2).count() > CALLS_UNDER_WAY_MAX as usize / 2);
    world.rounds(20);
    assert_eq!(world.nodes[1].buffers(), 0);
}

#[test]
fn a_session_of_an_older_version_carries_no_message() {
    let mut world = World::of([VERSIONS, 1..=4, VERSIONS, VERSIONS]);
    let route = world.open(0, "alice", 1);
    world.until("a session is up", |world| world.has_session(0, 1));
    let sent = world.nodes[0].wired.endpoint.borrow().counters().calls_sent;
    for number in 0..500 {
        world.send(0, route, hello(number)).expect("it is dropped");
        world.round();
    }
    assert_eq!(world.nodes[0].counters().unsent.get(), 500);
    assert_eq!(world.nodes[0].wired.endpoint.borrow().counters().calls_sent, sent);
    // A peer that sends messages in such a session anyway is refused.
    let (session, now_ns) = (world.session(0, 1), world.now_ns);
    let token = Token::new(PlaneId::Block, 1).raw();
    let mut head = Vec::new();
    replica::wire::encode_name(0, FORM.said_by(0).0, "alice", &mut head);
    let mut endpoint = world.nodes[0].wired.endpoint.borrow_mut();
    endpoint.call(now_ns, session, flows::REPLICAS, token, &head, None).unwrap();
    drop(endpoint);
    world.rounds(10);
    assert_eq!(world.nodes[0].block.borrow().answered, 1);
    assert_eq!(world.nodes[1].counters().malformed.get(), 1);
}

#[test]
fn a_peer_that_never_answers_has_a_bound_and_holds_up_no_other_peer() {
    let mut world = World::new();
    let (mute, other) = (world.connect(0, "alice", 1), world.connect(0, "alice", 2));
    world.nodes[1].is_silent = true;
    let mut sent = 0;
    for number in 0..2000 {
        sent += u64::from(world.send(0, mute, write(number + 1, 1)).is_ok());
        world.send(0, other, write(number + 1, 1)).expect("the other peer takes them");
        world.rounds(2);
        assert_eq!(world.nodes[2].take("alice", 9).len(), 1);
    }
    assert_eq!(sent, CALLS_UNDER_WAY_MAX / 2);
    assert!(world.nodes[0].buffers() as u64 <= sent);
    // The host of the peer goes away as a whole: the session's silence frees all of it.
    let losses = world.nodes[0].plane.borrow().losses(mute);
    world.nodes[1].is_down = true;
    world.until("the silence is noticed", |world| {
        world.nodes[0].plane.borrow().losses(mute) > losses
    });
    world.rounds(2);
    assert_eq!(world.nodes[0].buffers(), 0);
    world.send(0, mute, hello(1)).expect("it is dropped");
}

#[test]
fn a_peer_that_becomes_known_later_gets_its_session_then() {
    let mut world = World::new();
    let removed = |world: &World| {
        let mut planes = world.nodes[0].wired.planes.borrow_mut();
        planes.remove_peer(world.now_ns, NODES[1])
    };
    assert!(removed(&world), "no route holds it");
    let route = world.open(0, "alice", 1);
    for _ in 0..20 {
        world.send(0, route, hello(1)).expect("it is dropped");
        world.rounds(10);
    }
    let planes = world.nodes[0].wired.planes.borrow_mut();
    planes.peers().borrow_mut().add(NODES[1], addr(1));
    drop(planes);
    world.until("a message arrives", |world| {
        let _ = world.send(0, route, hello(2));
        world.rounds(5);
        !world.nodes[1].take("alice", 9).is_empty()
    });
    assert!(!removed(&world), "a route holds it");
    world.nodes[0].plane.borrow_mut().close(route);
    assert!(removed(&world), "the last route has let go of it");
    // A route to it, and later a session, begin anew.
    let planes = world.nodes[0].wired.planes.borrow_mut();
    planes.peers().borrow_mut().add(NODES[1], addr(1));
    drop(planes);
    world.connect(0, "bob", 1);
}

#[test]
fn the_mail_of_a_member_goes_to_the_others_and_lets_go_of_their_nodes() {
    let mut world = World::new();
    let plane = Rc::clone(&world.nodes[0].plane);
    let peers = BTreeMap::from([(1, NODES[1].to_owned()), (2, NODES[2].to_owned())]);
    let mut mail = PlaneMail::new(plane, "alice", FORM.said_by(0), &peers);
    for to in [1, 2] {
        let losses = mail.losses(to);
        world.until("a message arrives", |world| {
            let _ = mail.send(world.now_ns, to, hello(to.into()));
            world.rounds(5);
            !world.nodes[usize::from(to)].take("alice", 9).is_empty()
        });
        assert!(mail.losses(to) > losses, "the volume has got its number");
    }
    assert_eq!((mail.send(world.now_ns, 7, hello(1)), mail.losses(7)), (Ok(()), 0));
    let removed = |world: &World| {
        let mut planes = world.nodes[0].wired.planes.borrow_mut();
        planes.remove_peer(world.now_ns, NODES[1])
    };
    assert!(!removed(&world), "a route holds the peer");
    drop(mail);
    assert!(removed(&world));
}
