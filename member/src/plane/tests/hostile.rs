//! Peers that mean harm: they reach no volume of which they have no copy, hurt no other peer, and
//! each of their calls is answered.

use replica::wire::{WIRE_SEQUENCE, encode, encode_name};
use transport::CallError;

use super::*;
use crate::plane::arrivals::{MALFORMED, NO_COPY, NOT_HERE, UNLIKE};

/// A session of a node that is used past its plane.
struct RawSession {
    node: usize,
    session: SessionId,
    calls: u64,
    /// By the volume's number: the number of its next message.
    next: BTreeMap<u32, u16>,
}

impl RawSession {
    /// A node's session with another node.
    fn new(world: &mut World, node: usize, to: usize) -> Self {
        // A route keeps the session.
        world.open(node, "any", to);
        world.until("it is up", |world| world.has_session(node, to));
        Self { node, session: world.session(node, to), calls: 0, next: BTreeMap::new() }
    }

    fn call(
        &mut self,
        world: &World,
        flow: u16,
        head: &[u8],
        body: &[u8],
    ) -> Result<(), CallError> {
        let endpoint = &mut *world.nodes[self.node].wired.endpoint.borrow_mut();
        let buffer = (!body.is_empty()).then(|| {
            let buffer = endpoint.pool_mut().alloc(body.len()).expect("room");
            endpoint.pool_mut().bytes_mut(buffer).copy_from_slice(body);
            (buffer, body.len())
        });
        // The rig's plane of blocks counts the answers.
        let token = Token::new(PlaneId::Block, self.calls).raw();
        let called = endpoint.call(world.now_ns, self.session, flow, token, head, buffer);
        if let Some((buffer, _)) = buffer {
            endpoint.pool_mut().release(buffer);
        }
        self.calls += u64::from(called.is_ok());
        called
    }

    fn name(&mut self, world: &World, number: u32, volume: &str) {
        let mut head = Vec::new();
        encode_name(number, FORM.said_by(self.node as MemberId).0, volume, &mut head);
        self.call(world, flows::REPLICAS, &head, &[]).expect("room");
        self.next.insert(number, 0);
    }

    fn say(&mut self, world: &World, number: u32, life: u64) -> Result<(), CallError> {
        let (mut head, mut list) = (Vec::new(), Vec::new());
        encode(number, &Message::Hello { life, epoch: 1 }, &mut head, &mut list);
        let next = *self.next.entry(number).or_default();
        head[WIRE_SEQUENCE].copy_from_slice(&next.to_le_bytes());
        let called = self.call(world, flows::REPLICAS, &head, &list);
        self.next.insert(number, next + u16::from(called.is_ok()));
        called
    }

    fn answered(&self, world: &World) -> u64 {
        world.nodes[self.node].block.borrow().answered
    }
}

fn named(name: &str) -> PeerIdentity {
    // Sessions of the rig are plain.
    let node = NODES.iter().position(|it| *it == name).expect("a node");
    PeerIdentity { name: name.to_owned(), claimed_at: Some(addr(node).ip()) }
}

/// Whether a peer has caused this line of a node's log.
fn has_line(world: &World, node: usize, peer: &str, about: &str, why: &'static str) -> bool {
    let mut lines = world.nodes[node].lines.lock();
    lines.may(world.now_ns, &named(peer), about, why).is_none()
}

#[test]
fn a_peer_without_a_copy_reaches_no_member() {
    let mut world = World::new();
    let bystander = world.connect(0, "alice", 1);
    let mut stranger = RawSession::new(&mut world, 3, 1);
    for number in 0..200 {
        // Names are tried under the number that the honest peer has, and under other ones.
        stranger.name(&world, number % 3, ["alice", "bob", "carol"][number as usize % 3]);
        for to in 0..4 {
            stranger.say(&world, to, 666).expect("room");
        }
        world.send(0, bystander, hello(number.into())).expect("room");
        world.rounds(5);
    }
    assert_eq!(stranger.answered(&world), stranger.calls);
    assert_eq!(world.nodes[1].counters().refused.get(), stranger.calls);
    assert!(numbers(&world.nodes[1].take("alice", 999)).into_iter().eq(0..200));
    assert!(world.nodes[1].take("bob", 9).is_empty());
    // One line says each reason.
    assert!(has_line(&world, 1, "vm", "alice", NO_COPY));
    assert!(has_line(&world, 1, "vm", "carol", NOT_HERE));
    assert!(!has_line(&world, 1, "io0", "alice", NO_COPY), "the honest peer has caused none");
}

#[test]
fn a_member_of_one_volume_reaches_no_other_volume() {
    let mut world = World::new();
    // `io2` has a copy of alice and none of bob.
    let mut member = RawSession::new(&mut world, 2, 1);
    member.name(&world, 0, "alice");
    member.name(&world, 1, "bob");
    member.say(&world, 0, 1).unwrap();
    member.say(&world, 1, 2).unwrap();
    // The number of the volume that it may reach, for the other volume: it means nothing then.
    member.name(&world, 0, "bob");
    member.say(&world, 0, 3).unwrap();
    member.name(&world, 0, "alice");
    member.say(&world, 0, 4).unwrap();
    world.rounds(20);
    assert_eq!(member.answered(&world), member.calls);
    let heard = world.nodes[1].take("alice", 9);
    assert_eq!(numbers(&heard), [1, 4]);
    assert!(heard.iter().all(|arrived| arrived.from == 2), "its session says which member it is");
    assert!(world.nodes[1].take("bob", 9).is_empty());
    assert!(has_line(&world, 1, "io2", "bob", NO_COPY));
}

/// Nodes with files that differ in the list of copies, the size or the settings of a volume:
/// neither member takes a message of the other member.
#[test]
fn a_member_of_another_form_is_refused_by_name_until_the_forms_are_alike() {
    let mut world = World::new();
    // Another volume's form, and this volume's at another place than node 1 has in its list.
    for (turn, other) in [VolumeForm([8; 16]).said_by(0), FORM.said_by(2)].into_iter().enumerate() {
        let route = world.nodes[0].plane.borrow_mut().open("alice", other, NODES[1]);
        let before = world.nodes[1].counters().unlike.get();
        world.until("it was refused twice", |world| {
            let _ = world.send(0, route, hello(1));
            world.nodes[1].counters().unlike.get() > before + 1
        });
        let counters = world.nodes[1].counters();
        assert_eq!((counters.taken.get(), counters.malformed.get()), (0, 0), "{turn}");
        assert!(world.nodes[0].counters().refused_there.get() > 0);
        assert!(has_line(&world, 1, "io0", "alice", UNLIKE));
        assert!(world.nodes[1].take("alice", 9).is_empty());
        world.nodes[0].plane.borrow_mut().close(route);
        world.rounds(10);
    }
    world.connect(0, "alice", 1);
}

#[test]
fn heads_and_bodies_of_any_content_are_answered_and_hurt_no_other_peer() {
    let mut random = Random::new(5);
    let mut world = World::new();
    let bystander = world.connect(0, "alice", 1);
    let mut hostile = RawSession::new(&mut world, 2, 1);
    hostile.name(&world, 7, "alice");
    let (mut said, mut heard) = (0, Vec::new());
    let (mut honest, mut list) = (Vec::new(), Vec::new());
    for count in 0..6_000_u64 {
        let mut head: Vec<u8> = (0..random.below(193)).map(|_| random.draw() as u8).collect();
        let sectors = random.between(1, 9) as u32;
        match random.below(3) {
            // A whole message, with a byte changed.
            0 => {
                let message = crate::content::to_wire(write(count, sectors)).0;
                encode(7, &message, &mut honest, &mut list);
                head.clone_from(&honest);
                let at = random.below(head.len() as u64 - 1) as usize + 1;
                head[at] ^= random.draw() as u8;
            }
            // The right number, and a kind that is one or nearly.
            1 if head.len() >= 8 => {
                head[..8].copy_from_slice(&[0, 0, 0, 0, 7, 0, 0, 0]);
                head[0] = WIRE_KIND_MIN + random.below(14) as u8;
            }
            _ => head.insert(0, WIRE_KIND_MIN | random.draw() as u8),
        }
        if head.len() > WIRE_SEQUENCE.end && random.below(9) > 0 {
            // Most messages come behind few that are missing.
            head[WIRE_SEQUENCE].copy_from_slice(&(random.below(4) as u16).to_le_bytes());
        }
        head.truncate(HEAD_MAX);
        let sectors = if random.one_in(2) { sectors.into() } else { random.below(10) };
        let body = vec![count as u8; sectors as usize * 512];
        let flow = if random.below(9) == 0 { random.below(255) as u16 } else { flows::REPLICAS };
        let _ = hostile.call(&world, flow, &head, &body);
        if count % 10 == 0 {
            said += world.flood(0, bystander, said..said + 1);
            world.rounds(3);
            // A name of no volume has taken the number away, or a message is missing.
            hostile.name(&world, 7, "alice");
        }
        heard.extend(world.nodes[1].take("alice", 99));
    }
    hostile.name(&world, 7, "alice");
    world.until("all are answered", |world| hostile.answered(world) == hostile.calls);
    heard.extend(world.nodes[1].take("alice", 99));
    let counters = world.nodes[1].counters();
    assert!(counters.malformed.get() > 2_000, "{counters:?}");
    let (honest, hostile): (Vec<_>, Vec<_>) = heard.into_iter().partition(|it| it.from == 0);
    assert!(hostile.iter().all(|arrived| arrived.from == 2) && hostile.len() > 100);
    assert!(numbers(&honest).into_iter().eq(0..said) && said > 500);
    assert!(has_line(&world, 1, "io2", "", MALFORMED));
    world.rounds(20);
    assert_eq!((world.nodes[1].buffers(), world.nodes[2].buffers()), (0, 0));
}

#[test]
fn messages_that_wait_have_a_bound_for_each_session_which_quotas_show() {
    let mut world = World::new();
    let mut hostile = RawSession::new(&mut world, 2, 1);
    hostile.name(&world, 0, "alice");
    let mut said = 0;
    for _ in 0..100 {
        while said < 900 && hostile.say(&world, 0, said).is_ok() {
            said += 1;
        }
        world.rounds(5);
    }
    assert_eq!(said, 900, "a session has room for as many");
    let quotas = world.nodes[1].plane.borrow().arrivals.quotas();
    let quota = quotas.iter().find(|quota| quota.peer.name == "io2").expect("it is listed");
    let door = crate::door::DOOR_MESSAGES_MAX as u64;
    assert_eq!((quota.part.has, quota.part.has_max), (WAITING_MAX as u64, WAITING_MAX as u64));
    assert_eq!(quota.part.refused, 900 - door - WAITING_MAX as u64);
    assert!(quota.part.is_at_limit());
    assert_eq!(world.nodes[1].counters().overflowed.get(), quota.part.refused);
    // Its calls that were refused are answered, and calls that wait are not.
    assert_eq!(hostile.answered(&world), hostile.calls - WAITING_MAX as u64);
    // They go on when the host takes messages, and another peer's volume was never held up.
    let bob = world.connect(0, "bob", 1);
    world.send(0, bob, hello(3)).expect("room");
    world.rounds(5);
    assert_eq!(numbers(&world.nodes[1].take("bob", 9)), [3]);
    let mut heard = Vec::new();
    world.until("the rest is heard", |world| {
        heard.extend(numbers(&world.nodes[1].take("alice", 64)));
        hostile.answered(world) == hostile.calls
    });
    heard.extend(numbers(&world.nodes[1].take("alice", 999)));
    assert!(heard.into_iter().eq(0..door + WAITING_MAX as u64));
}

#[test]
fn members_that_come_and_go_are_found_again() {
    let mut world = World::new();
    let route = world.connect(0, "alice", 1);
    // Messages wait for a member that goes.
    for _ in 0..20 {
        world.flood(0, route, 0..1000);
        world.rounds(10);
    }
    world.nodes[1].doors.remove("alice");
    world.rounds(10);
    let refused = world.nodes[0].counters().refused_there.get();
    assert_eq!(refused, CALLS_UNDER_WAY_MAX / 2, "those that waited");
    for number in 0..20 {
        let _ = world.send(0, route, hello(number));
        world.rounds(5);
    }
    let again = world.nodes[0].counters().refused_there.get() - refused;
    assert!((0..3).contains(&again), "the volume is named again now and then: {again}");
    // Another member comes in its place: the volume is named again.
    world.nodes[1].serve("alice", [0].into_iter());
    let mut number = 100;
    world.until("messages arrive", |world| {
        number += 1;
        let _ = world.send(0, route, hello(number));
        world.rounds(5);
        !world.nodes[1].take("alice", 9).is_empty()
    });
    // The list of members changes: the peer has no copy any more.
    let taken = world.nodes[1].counters().taken.get();
    world.nodes[1].serve("alice", [2].into_iter());
    for number in 0..100 {
        let _ = world.send(0, route, hello(number));
        world.rounds(50);
    }
    assert!(world.nodes[1].take("alice", 9).is_empty());
    assert_eq!(world.nodes[1].counters().taken.get(), taken);
    assert!(has_line(&world, 1, "io0", "alice", NO_COPY));
    // A host that has ended without a word hears nothing, and its messages do not wait for it.
    world.nodes[1].serve("bob", [0].into_iter());
    let bob = world.connect(0, "bob", 1);
    world.nodes[1].inboxes.remove("bob");
    let refused = world.nodes[0].counters().refused_there.get();
    world.send(0, bob, hello(1)).expect("room");
    world.rounds(5);
    assert_eq!(world.nodes[0].counters().refused_there.get(), refused + 1);
}

#[test]
fn a_session_numbers_so_many_volumes_and_no_more() {
    let mut world = World::new();
    let mut hostile = RawSession::new(&mut world, 2, 1);
    for number in (NUMBERED_VOLUMES_MAX as u32 - 5..).take(10) {
        hostile.name(&world, number, "alice");
        hostile.say(&world, number, number.into()).expect("room");
    }
    hostile.name(&world, u32::MAX, "alice");
    world.rounds(20);
    assert_eq!(hostile.answered(&world), hostile.calls);
    let most = NUMBERED_VOLUMES_MAX as u64;
    assert!(numbers(&world.nodes[1].take("alice", 99)).into_iter().eq(most - 5..most));
    assert_eq!(world.nodes[1].counters().malformed.get(), 6);
}

#[test]
fn messages_do_not_wait_for_ever_for_an_earlier_one() {
    let mut world = World::new();
    let mut hostile = RawSession::new(&mut world, 2, 1);
    hostile.name(&world, 0, "alice");
    world.rounds(10);
    assert_eq!(hostile.answered(&world), 1);
    hostile.next.insert(0, 1);
    for life in 0..50 {
        hostile.say(&world, 0, life).expect("room");
    }
    world.rounds(1000);
    assert_eq!(hostile.answered(&world), 1, "they wait for the first one");
    world.until("the number is over", |world| hostile.answered(world) == hostile.calls);
    assert!(world.nodes[1].take("alice", 9).is_empty());
    // The message that was missing comes too late, and a new number begins anew.
    hostile.next.insert(0, 0);
    hostile.say(&world, 0, 7).expect("room");
    hostile.name(&world, 0, "alice");
    hostile.say(&world, 0, 8).expect("room");
    world.rounds(10);
    assert_eq!(numbers(&world.nodes[1].take("alice", 9)), [8]);
    assert_eq!(world.nodes[1].counters().waited.get(), 50);
}
