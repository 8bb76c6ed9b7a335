//! Messages between members that keep to the protocol: their order, and how much may be under way.

use super::*;
use crate::door::DOOR_MESSAGES_MAX;
use replica::{Applied, ExtentSet};

/// A message of any kind.
fn any(random: &mut Random, counter: u64) -> Message<RangeContent> {
    let record = VolumeRecord::first(0, BTreeMap::from([(0, 1), (1, counter + 1)]));
    let id = RequestId { client: ClientId { attachment: 1, channel: 2, slot: 3 }, number: counter };
    let extent = Extent::new(random.below(1000), random.between(1, 200) as u32).expect("sectors");
    match random.below(9) {
        0 => Message::Ping { record, life: 1, sent_ns: counter, held: 7 },
        1 => Message::Seal { record },
        2 => {
            let tail: ExtentSet = (0..random.below(9)).map(|_| extent).collect();
            Message::Sealed { epoch: 1, life: counter, tail }
        }
        3 => write(counter, random.between(1, 300) as u32),
        4 => append(counter, Op::Equal { extent, data: RangeContent::Discarded }),
        5 => append(counter, Op::Fill { to: 1, extent, data: RangeContent::Zeroes }),
        6 => {
            let mut applied = Applied::default();
            applied.note(id);
            append(counter, Op::Applied { applied, note: vec![9; random.below(3000) as usize] })
        }
        7 => Message::Held { life: 1, began: Place { reign: 1, counter }, counter, left_out: 0 },
        _ => append(counter, Op::Note { id, note: vec![counter as u8; 5] }),
    }
}

#[test]
fn messages_arrive_once_in_their_order_with_their_content() {
    for seed in 0..4 {
        let mut random = Random::new(seed);
        let mut world = World::new();
        let route = world.connect(0, "alice", 1);
        world.loss = (seed % 2 == 1).then(|| Random::new(seed));
        let messages: Vec<_> = (0..1500).map(|counter| any(&mut random, counter)).collect();
        let (mut at, mut heard) = (0, Vec::new());
        world.until("all are heard", |world| {
            while at < messages.len() && random.below(30) > 0 {
                match world.send(0, route, messages[at].clone()) {
                    Ok(()) => at += 1,
                    Err(back) => {
                        assert_eq!(back, messages[at], "it comes back as it was");
                        break;
                    }
                }
            }
            // A host that is late now and then: its mailbox is full, and messages wait.
            if random.below(40) == 0 {
                heard.extend(world.nodes[1].take("alice", random.below(600) as usize));
            }
            heard.len() >= messages.len()
        });
        assert_eq!(heard.len(), messages.len());
        for (arrived, message) in heard.into_iter().zip(&messages) {
            assert_eq!(arrived.from, 0);
            let arrived = from_wire(arrived.message, arrived.body);
            assert!(arrived == *message, "{:?}", arrived.map(|data| data.wire()));
        }
        world.loss = None;
        world.until("all are answered", |world| world.nodes[0].buffers() == 0);
        let (here, there) = (world.nodes[0].counters(), world.nodes[1].counters());
        assert!(there.waited.get() > 0 && here.held_back.get() > 0, "{here:?} {there:?}");
        assert_eq!(
            (here.lost.get(), here.refused_there.get(), here.unsent.get() > 0),
            (0, 0, true)
        );
        assert_eq!((world.nodes[0].buffers(), world.nodes[1].buffers()), (0, 0));
    }
}

#[test]
fn a_member_that_takes_nothing_holds_up_neither_other_volumes_nor_other_planes() {
    let mut world = World::new();
    let (alice, bob) = (world.connect(0, "alice", 1), world.connect(0, "bob", 1));
    let mut sent = 0;
    world.until("the mailbox is full, and the route has its part under way", |world| {
        sent += world.flood(0, alice, sent..u64::MAX);
        world.rounds(10);
        sent += world.flood(0, alice, sent..u64::MAX);
        sent == DOOR_MESSAGES_MAX as u64 + CALLS_UNDER_WAY_MAX / 2
    });
    world.rounds(100);
    assert_eq!(world.flood(0, alice, 0..1), 0, "no more");
    // The other volume's messages and the calls of other planes come through at once.
    let session = world.session(0, 1);
    for number in 0..500 {
        world.send(0, bob, hello(number)).expect("the other volume has a part");
        let token = Token::new(PlaneId::Block, number).raw();
        let now_ns = world.now_ns;
        let mut endpoint = world.nodes[0].wired.endpoint.borrow_mut();
        endpoint.call(now_ns, session, 0, token, &[0], None).expect("room for a call");
        drop(endpoint);
        world.rounds(4);
        assert_eq!(numbers(&world.nodes[1].take("bob", 9)), [number]);
        assert_eq!(world.nodes[0].block.borrow().answered, number + 1);
    }
    // With the first room the messages that wait go on, in their order.
    let mut heard = Vec::new();
    world.until("all are heard", |world| {
        heard.extend(numbers(&world.nodes[1].take("alice", 50)));
        heard.len() as u64 == sent
    });
    assert!(heard.iter().copied().eq(0..sent), "{heard:?}");
}

#[test]
fn each_route_has_its_part_in_bytes_and_the_largest_message_always_goes() {
    let mut world = World::new();
    let (alice, bob) = (world.connect(0, "alice", 1), world.connect(0, "bob", 1));
    world.nodes[1].is_silent = true;
    let flood = |world: &mut World, route| {
        let sent = (1..100).take_while(|at| world.send(0, route, write(*at, 2048)).is_ok());
        sent.count() as u64
    };
    let most = BYTES_UNDER_WAY_MAX >> 20;
    assert_eq!(flood(&mut world, alice), most / 2);
    assert_eq!(flood(&mut world, bob), most / 4, "half of the rest");
    assert_eq!((flood(&mut world, alice), flood(&mut world, bob)), (0, 0));
    world.nodes[1].is_silent = false;
    let mut heard = [0, 0];
    world.until("all arrive", |world| {
        let taken = ["alice", "bob"].map(|volume| world.nodes[1].take(volume, 99).len() as u64);
        heard = [heard[0] + taken[0], heard[1] + taken[1]];
        heard == [most / 2, most / 4]
    });
    world.rounds(5);
    assert_eq!(flood(&mut world, alice), most / 2, "answers have made room");
}

#[test]
fn backups_get_one_copy_of_the_content() {
    let mut world = World::new();
    let routes = [world.connect(0, "alice", 1), world.connect(0, "alice", 2)];
    let copied = world.nodes[0].counters().copied_bytes.get();
    for counter in 1..=100 {
        let message = write(counter, 8);
        for route in routes {
            world.send(0, route, message.clone()).expect("room");
        }
        world.rounds(3);
    }
    assert_eq!(world.nodes[0].counters().copied_bytes.get() - copied, 100 * 4096);
    for backup in [1, 2] {
        let heard = world.nodes[backup].take("alice", 999);
        assert_eq!(heard.len(), 100);
        let is_right = |(arrived, counter): (&ArrivedMessage, u8)| arrived.body == [counter; 4096];
        assert!(heard.iter().zip(1..).all(is_right));
    }
    world.rounds(10);
    assert_eq!(world.nodes.iter().map(Node::buffers).sum::<usize>(), 0);
}

#[test]
fn two_members_send_to_each_other_and_a_number_is_another_volumes_later() {
    let mut world = World::new();
    let there = world.connect(0, "alice", 1);
    let back = world.connect(1, "alice", 0);
    world.send(0, there, hello(5)).unwrap();
    world.send(1, back, hello(6)).unwrap();
    world.rounds(5);
    assert_eq!(numbers(&world.nodes[1].take("alice", 9)), [5]);
    let heard = world.nodes[0].take("alice", 9);
    assert_eq!((numbers(&heard), heard[0].from), (vec![6], 1));
    // Messages are under way when the route is closed, and its number is given out again.
    world.send(0, there, hello(7)).unwrap();
    world.nodes[0].plane.borrow_mut().close(there);
    let bob = world.connect(0, "bob", 1);
    world.send(0, bob, hello(9)).expect("room");
    world.rounds(10);
    assert_eq!(numbers(&world.nodes[1].take("alice", 9)), [7]);
    assert_eq!(numbers(&world.nodes[1].take("bob", 9)), [9]);
}
