//! Hosts whose node another process goes on in the place of.

use handover::SentDescriptors;

use super::*;
use crate::hand_over::{AssociationsState, GoneState, GrantState, HeardState, TakenRoom, Unfit};
use fabric::RequestFailure;

/// The state of a host's node while it stands still.
struct Taken {
    entries: crate::hand_over::SlotTableState,
    descriptors: SentDescriptors,
    associations: AssociationsState,
    rooms: Vec<TakenRoom>,
}

impl Host {
    fn take_down(&mut self) -> Taken {
        let mut descriptors = SentDescriptors::default();
        let entries = self.table.take_down(&mut descriptors).expect("descriptors");
        let associations = self.associations.take_down();
        let rooms = self.cores.iter_mut().map(|core| core.room.take_down(&core.carrier));
        Taken { entries, descriptors, associations, rooms: rooms.collect() }
    }

    /// All that can fail of going on with it.
    fn adopt(&self, taken: Taken) -> Result<(Arc<Associations>, Vec<Handed>), Unfit> {
        let Taken { entries, descriptors, associations, rooms } = taken;
        let region = fabric::Region::map(self.memory.as_fd())?;
        let table = SlotTable::adopt(region, &entries, &mut descriptors.into_received())?;
        let names = self.associations.names();
        let associations = Associations::adopt(Arc::new(table), associations, &names)?;
        let rooms = rooms.into_iter().map(|room| Handed::new(room, &associations));
        let rooms = rooms.collect::<Result<_, _>>()?;
        Ok((associations, rooms))
    }
}

impl World {
    /// Another process goes on in the place of a host's node, which the others hear of as the end
    /// of its sessions.
    pub(super) fn hand_over(&mut self, which: usize) {
        let of_it = |(session, ends): (&Session, &[End; 2])| {
            ends.iter().any(|end| end.0 == which).then_some(*session)
        };
        let sessions: Vec<_> = self.wires.borrow().up.iter().filter_map(of_it).collect();
        sessions.into_iter().for_each(|session| self.lose(session));
        let host = &mut self.hosts[which];
        let taken = host.take_down();
        let (associations, rooms) = host.adopt(taken).expect("it is as it was");
        host.table = Arc::clone(associations.table());
        for (core, handed) in host.cores.iter_mut().zip(rooms) {
            core.room.end(&mut core.carrier);
            assert!(core.carrier.bodies.is_empty(), "all that it had was its own");
            let (number, gateway) = (core.room.number(), handed.gateway());
            let prove = Box::new(move |it: &[u8]| prove(KEY, it));
            let settings = RoomSettings { number, domain: "blue".to_owned(), gateway, prove };
            core.room = Room::adopt(settings, Arc::clone(&associations), handed, self.now_ns);
            core.knows.clear();
        }
        host.associations = associations;
    }

    /// The same, but the other process is lost before it has it all.
    pub(super) fn almost_hand_over(&mut self, which: usize) {
        let host = &mut self.hosts[which];
        let taken = host.take_down();
        drop(host.adopt(taken).expect("it is as it was"));
    }
}

#[test]
fn messages_under_way_arrive_once() {
    let mut world = World::joined(2, 2, 31);
    let there = world.address(1, 0);
    let lengths = [8, 5000, 150_000];
    let mut places: Vec<_> = lengths.iter().map(|length| vec![0; *length]).collect();
    let sent: Vec<_> = (0..).zip(lengths).map(|(seed, length)| content(seed, length)).collect();
    // Nothing gets through, so that some is numbered and some is not.
    world.cut = true;
    for (number, bytes) in (0..).zip(&sent) {
        send(&mut world.hosts[0].endpoints[0], there, number, bytes).expect("there is room");
        world.run(3);
    }
    world.lose_all();
    world.hand_over(0);
    world.run(50);
    world.hand_over(0);
    world.cut = false;
    for (number, place) in (0..).zip(&mut places) {
        ask(&mut world.hosts[1].endpoints[0], None, number, place);
    }
    let mut came = 0;
    world.run_until("all has come", |world| {
        came += ended(&mut world.hosts[1].endpoints[0]).len();
        came == lengths.len()
    });
    assert!(places == sent);
}

/// A receiver that does not look: its messages that wait in the gateway go over, in their order.
#[test]
fn messages_that_wait_for_a_receiver_keep_waiting() {
    const MANY: u64 = 200;
    let mut world = World::joined(2, 1, 32);
    let there = world.address(1, 0);
    let sleeper = world.hosts[1].endpoints.remove(0);
    let mut sent = 0;
    world.run_until("much waits", |world| {
        if sent < MANY {
            let bytes = content(sent, 3000);
            let end = &mut world.hosts[0].endpoints[0];
            sent += u64::from(send(end, there, sent, &bytes).is_ok());
            // Its bytes are gone from here on.
            world.run(20);
        }
        world.hosts[1].cores[0].room.counters().waited > 20
    });
    world.hand_over(1);
    world.run(100);
    world.almost_hand_over(1);
    world.hand_over(0);
    world.hosts[1].endpoints.push(sleeper);
    let mut place = vec![0; 3000];
    for number in 0..sent {
        ask(&mut world.hosts[1].endpoints[0], None, number, &mut place);
        world.run_until("the next one comes", |world| {
            let ended = ended(&mut world.hosts[1].endpoints[0]);
            ended.iter().for_each(|it| assert_eq!((it.tag, it.failure), (number, None)));
            !ended.is_empty()
        });
        assert!(place == content(number, 3000), "{number}");
    }
}

#[test]
fn deaths_that_were_not_told_are_told_by_the_successor() {
    let mut world = World::joined(2, 2, 33);
    let [dead, other] = [0, 1].map(|endpoint| world.address(0, endpoint));
    let mut places = [[0; 8]; 2];
    let [one, two] = &mut places;
    ask(&mut world.hosts[1].endpoints[0], Some(dead), 1, one);
    ask(&mut world.hosts[1].endpoints[1], Some(other), 2, two);
    world.run(100);
    world.cut = true;
    drop(world.hosts[0].endpoints.remove(0));
    assert!(world.hosts[0].table.declare_dead(dead.slot));
    world.hand_over(0);
    // And one more, whose death was not seen yet.
    drop(world.hosts[0].endpoints.remove(0));
    assert!(world.hosts[0].table.declare_dead(other.slot));
    world.hand_over(0);
    world.cut = false;
    for endpoint in 0..2 {
        world.run_until("it is told", |world| {
            let ended = ended(&mut world.hosts[1].endpoints[endpoint]);
            ended.iter().for_each(|it| assert_eq!(it.failure, Some(RequestFailure::Gone)));
            !ended.is_empty()
        });
    }
}

/// A gateway has not heard yet that another gateway has met the host in its next run. Batches for
/// the run before do not go over.
#[test]
fn messages_to_a_restarted_host_stay_behind() {
    let mut world = World::joined(2, 1, 36);
    let there = world.address(1, 0);
    world.cut = true;
    send(&mut world.hosts[0].endpoints[0], there, 1, b"to the one before").expect("room");
    world.run(20);
    let host = &mut world.hosts[0];
    let taken = host.take_down();
    let [link] = &taken.rooms[0].state.links[..] else { panic!("one other host") };
    assert!(link.name == "h1" && link.first + (link.sent.len() + link.queue.len()) as u64 > 0);
    let before =
        host.associations.look("h1").and_then(|(there, _)| there).expect("they are joined");
    host.associations.give_up("h1", before);
    assert!(host.take_down().rooms[0].state.links.is_empty());
    host.associations.meet("h1", before.host, before.epoch + 1).expect("nobody else is it");
    let taken = host.take_down();
    assert!(taken.rooms[0].state.links.is_empty());
    host.adopt(taken).expect("who goes on begins anew");
}

/// The other host is given up as if this host had no successor.
#[test]
fn a_host_that_stays_away_is_given_up_by_the_successor() {
    let mut world = World::joined(2, 1, 34);
    let there = world.address(1, 0);
    let mut place = [0; 8];
    ask(&mut world.hosts[0].endpoints[0], Some(there), 1, &mut place);
    world.cut = true;
    world.lose_all();
    world.hand_over(0);
    world.run(100);
    world.now_ns += 11_000_000_000;
    world.run(10);
    let again = send(&mut world.hosts[0].endpoints[0], there, 3, b"never");
    assert_eq!(again, Err(SendError::Gone));
}

#[test]
fn a_state_that_contradicts_itself_or_its_messages_is_refused() {
    let mut world = World::joined(2, 2, 35);
    // Something of everything: batches, messages that wait, buffers that are lent.
    let there = world.address(1, 0);
    let _sleeper = world.hosts[1].endpoints.remove(0);
    let mut sent = 0;
    world.run_until("something waits", |world| {
        let bytes = content(sent, 5000);
        sent += u64::from(send(&mut world.hosts[0].endpoints[0], there, sent, &bytes).is_ok());
        world.run(20);
        world.hosts[1].cores[0].room.counters().waited > 0
    });
    world.cut = true;
    world.lose_all();
    let back = world.address(0, 0);
    send(&mut world.hosts[1].endpoints[0], back, 1, &content(1, 3000)).expect("there is room");
    world.run(20);
    type Change = fn(&mut Taken);
    let changes: [(Change, &str); 23] = [
        (|it| it.rooms[0].state.gateway = 1, "not a gateway"),
        (|it| it.rooms[0].state.post.incarnation += 1, "not a gateway"),
        (|it| it.rooms[0].state.post.ways[0].slot = 12, "does not exist"),
        (|it| it.rooms[0].state.post.lent[0].buffer = 8, "or does not exist"),
        (
            |it| it.rooms[0].state.post.lent[1].buffer = it.rooms[0].state.post.lent[0].buffer,
            "twice",
        ),
        (|it| it.rooms[0].state.post.lent[0].number = u64::MAX, "to no receiver"),
        (|it| it.rooms[0].state.post.lent[0].to.slot = 12, "to no receiver"),
        (|it| it.rooms[0].cargo[0] = 9, "has no host"),
        (|it| it.rooms[0].cargo[8] = 77, "has no receiver"),
        (|it| it.rooms[0].cargo[18] = 0, "has no receiver"),
        (|it| it.rooms[0].state.post.waiting += 1, "a message "),
        (
            |it| it.rooms[0].state.told.push(GrantState { slot: 12, incarnation: 1 }),
            "does not exist",
        ),
        (|it| it.rooms[0].state.links[0].name = "h7".to_owned(), "not a peer"),
        (|it| it.rooms[0].state.links[0].first = u64::MAX, "sent than the limit"),
        (
            |it| {
                it.rooms[0].state.links[0].heard.push(HeardState { gateway: 0, batches: u64::MAX })
            },
            "sent than the limit",
        ),
        (|it| it.rooms[0].state.links[0].sent = vec![0; 33], "wait than the limit"),
        (|it| it.rooms[0].state.links[0].queue = vec![0; 5000], "wait than the limit"),
        (|it| it.rooms[0].state.links[0].queue.push(1 << 20), "too long"),
        (
            |it| it.rooms[0].state.links[0].gones.push(GoneState { gateway: 0, gateways: 1 }),
            "is missing",
        ),
        (|it| it.rooms[0].cargo.push(0), "without a sender"),
        (|it| it.rooms[0].cargo.truncate(8), "is missing"),
        (|it| it.associations.peers[0].name = "h7".to_owned(), "not its peer"),
        (|it| it.associations.peers[0].there.as_mut().expect("known").index = 7, "no place"),
    ];
    for (change, says) in changes {
        let mut taken = world.hosts[1].take_down();
        change(&mut taken);
        let error = world.hosts[1].adopt(taken).map(drop).expect_err(says);
        assert!(error.to_string().contains(says), "{says}: {error}");
    }
    let taken = world.hosts[1].take_down();
    world.hosts[1].adopt(taken).expect("it is as it was");
}
