//! A sleeper is woken, and no other endpoint pays for it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;
use crate::endpoint::engine::sleep::{REFUSALS_MAX, Sleeping};

/// The way to a node in the same process.
#[derive(Debug)]
struct NodeHome {
    table: Arc<Node>,
    rings: Arc<AtomicU32>,
    /// It can be told nothing just now.
    deaf: Arc<AtomicU32>,
    /// How often another doorbell was asked for.
    asked: AtomicU32,
}

impl LocalNode for NodeHome {
    fn wake(&self, _gateway: u16) {}

    fn ring(&self, slot: u16, incarnation: u32) -> bool {
        let is_deaf = self.deaf.load(Relaxed) > 0;
        if !is_deaf {
            self.rings.fetch_add(1, Relaxed);
            self.table.ring(slot, incarnation);
        }
        !is_deaf
    }

    fn open_doorbell(&self, slot: u16, incarnation: u32) -> Result<OwnedFd, NoDoorbell> {
        self.table.open_doorbell(slot, incarnation).map_err(|_| NoDoorbell::NoDescriptor)
    }

    fn reopen_doorbell(&self, slot: u16, incarnation: u32) -> Option<OwnedFd> {
        // Asked for, and there the next time.
        let is_there = self.asked.fetch_add(1, Relaxed) % 2 == 1;
        is_there.then(|| self.table.open_doorbell(slot, incarnation).expect("a descriptor"))
    }

    fn is_there(&self) -> bool {
        true
    }
}

struct Sleepers {
    table: Arc<Node>,
    endpoints: Vec<Endpoint>,
    rings: Arc<AtomicU32>,
    deaf: Arc<AtomicU32>,
}

impl Sleepers {
    fn new(count: u16) -> Self {
        Self::whose_messages_wait(count, 0)
    }

    /// The same with endpoints whose messages may take so many bytes while they wait.
    fn whose_messages_wait(count: u16, waiting_bytes_max: usize) -> Self {
        let options = RegionOptions { slots: count + 1, cells: 16, ..RegionOptions::default() };
        let (table, _fd) = Node::new(&options);
        let (table, rings, deaf) = (Arc::new(table), Arc::default(), Arc::default());
        let mut all = Self { table, endpoints: Vec::new(), rings, deaf };
        let barriers = Barriers::ask_for();
        assert_eq!(barriers, Barriers::Sleepers, "membarrier(2) is refused here");
        for _ in 0..count {
            let region = Arc::clone(all.table.region());
            let (slot, incarnation) = all.table.take_slot(std::process::id()).expect("a slot");
            let usual = EndpointOptions::default();
            let options = EndpointOptions { waiting_bytes_max, ..usual };
            let mut endpoint =
                Endpoint::new(region, slot, incarnation, HOST, &options).expect("a slot");
            let (table, rings) = (Arc::clone(&all.table), Arc::clone(&all.rings));
            let (deaf, asked) = (Arc::clone(&all.deaf), AtomicU32::new(0));
            endpoint.set_home(Arc::new(NodeHome { table, rings, deaf, asked }));
            endpoint.set_barriers(barriers);
            endpoint.open_doorbell().expect("a descriptor");
            all.endpoints.push(endpoint);
        }
        all
    }

    fn send(&mut self, from: usize, to: usize) {
        let to = self.endpoints[to].address();
        send(&mut self.endpoints[from], &message(to, 1), b"x").expect("room");
    }

    /// An endpoint dies, and sleepers hear of it.
    fn bury(&self, slot: u16) {
        assert!(self.table.declare_dead(slot));
        self.table.announce_deaths();
    }

    /// A member shuts a doorbell down, as any member can that has the write end.
    fn tear_off(&self, index: usize) {
        let Local { slot, incarnation, .. } = self.endpoints[index].engine.me;
        let write_end = self.table.write_end(slot, incarnation).expect("it has a doorbell");
        rustix::net::shutdown(write_end, rustix::net::Shutdown::Both).expect("a socket");
    }

    fn rings(&self) -> u32 {
        self.rings.load(Relaxed)
    }

    fn is_rung(&self, index: usize) -> bool {
        let doorbell = self.endpoints[index].doorbell().expect("it has one");
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&doorbell.as_fd(), PollFlags::IN)], Some(&now)).expect("ours") > 0
    }

    /// Takes all that has come.
    fn drain(&mut self, index: usize) -> usize {
        let mut bytes = [0; 1];
        ask(&mut self.endpoints[index], &receive(None, 1), &mut bytes);
        (0..10).for_each(|_| self.endpoints[index].progress());
        ended(&mut self.endpoints[index]).len()
    }
}

#[test]
fn a_sleeper_is_woken_once_by_each_sender_and_a_poller_by_none() {
    let mut all = Sleepers::new(3);
    all.send(0, 2);
    assert_eq!((all.rings(), all.endpoints[2].doze()), (0, Doze::Ready), "it is there already");
    assert_eq!(all.drain(2), 1);
    assert_eq!(all.endpoints[2].doze(), Doze::Sleep);
    assert!(!all.is_rung(2));
    (0..3).for_each(|_| all.send(0, 2));
    assert!(all.is_rung(2));
    assert_eq!(all.rings(), 1);
    all.send(1, 2);
    assert_eq!(all.rings(), 2, "who else sends cannot know of that");
    assert_eq!(all.endpoints[2].doze(), Doze::Ready);
    assert!(!all.is_rung(2), "it is silent again");
    (0..4).for_each(|_| assert_eq!(all.drain(2), 1));
    // A sleep of its own each.
    for sleep in 1..=3 {
        assert_eq!(all.endpoints[2].doze(), Doze::Sleep);
        all.send(0, 2);
        assert!(all.is_rung(2));
        assert_eq!((all.rings(), all.drain(2)), (2 + sleep, 1));
    }
}

#[test]
fn answers_and_pieces_wake_as_well() {
    let mut all = Sleepers::new(2);
    let (out, mut into) = (content(1, 1 << 20), vec![0; 1 << 20]);
    let (to, part_into) = (all.endpoints[1].address(), part(&mut into));
    assert_eq!(all.endpoints[1].doze(), Doze::Sleep);
    send(&mut all.endpoints[0], &message(to, 7), &out).expect("room");
    assert!(all.is_rung(1), "by the offer");
    assert_eq!(all.endpoints[0].doze(), Doze::Sleep, "it is the other one's turn");
    // SAFETY: it stays until the end.
    unsafe { all.endpoints[1].receive(&receive(None, 7), &[part_into]) }.expect("sound");
    all.endpoints[1].progress();
    assert!(all.is_rung(0), "by the answer");
    assert_eq!(all.endpoints[1].doze(), Doze::Sleep);
    all.endpoints[0].progress();
    all.endpoints[0].progress();
    assert!(all.endpoints[0].has_moved() && !all.endpoints[0].has_moved(), "pieces");
    assert_eq!(all.endpoints[0].doze(), Doze::Nap, "returned buffers are not announced");
    assert!(!all.endpoints[0].has_moved());
    assert!(all.is_rung(1), "by the pieces");
    for _ in 0..1000 {
        all.endpoints.iter_mut().for_each(Endpoint::progress);
    }
    assert_eq!(all.endpoints.iter_mut().map(|it| ended(it).len()).sum::<usize>(), 2);
    assert!(into == out);
    assert_eq!(all.endpoints.iter_mut().map(Endpoint::doze).collect::<Vec<_>>(), [Doze::Sleep; 2]);
}

#[test]
fn a_death_wakes_its_waiters() {
    let mut all = Sleepers::new(3);
    let (dead, mut into) = (all.endpoints[0].address(), [0; 8]);
    ask(&mut all.endpoints[2], &receive(Some(dead), 3), &mut into);
    assert_eq!(all.endpoints[2].doze(), Doze::Sleep);
    all.bury(dead.slot);
    assert!(all.is_rung(2));
    assert_eq!(all.endpoints[2].doze(), Doze::Ready);
    assert_eq!(ended(&mut all.endpoints[2])[0].failure, Some(RequestFailure::Gone));
    assert_eq!(all.endpoints[2].doze(), Doze::Sleep);
}

/// A producer says that it claims, and never fills the cell: its death wakes the sleeper, which
/// goes past the cell to the message of another producer.
#[test]
fn messages_behind_a_claim_of_the_dead_are_found() {
    let mut all = Sleepers::new(3);
    assert_eq!(all.endpoints[2].doze(), Doze::Sleep);
    let region = Arc::clone(all.table.region());
    let (to, dead) = (all.endpoints[2].engine.me, all.endpoints[0].engine.me.slot);
    all.endpoints[0].engine.claim(&region, to).expect("room");
    all.send(1, 2);
    assert!(all.is_rung(2), "by the other one");
    assert_eq!(all.endpoints[2].doze(), Doze::Sleep, "the first one may be about to fill it");
    all.bury(dead);
    assert!(all.is_rung(2));
    assert_eq!(all.endpoints[2].doze(), Doze::Ready);
    assert_eq!(all.drain(2), 1);
}

/// Two endpoints wait for each other's deaths, and no death is told twice: the second one dies
/// after the first was found, and before all of its messages were taken.
#[test]
fn a_death_during_the_handling_of_another_is_found_as_well() {
    let mut all = Sleepers::new(3);
    let dead = [0, 1].map(|index| all.endpoints[index].address());
    let mut into = [[0; 8]; 2];
    for (tag, (source, into)) in (1..).zip(dead.into_iter().zip(&mut into)) {
        ask(&mut all.endpoints[2], &receive(Some(source), tag), into);
    }
    let to = all.endpoints[2].address();
    send(&mut all.endpoints[0], &message(to, 7), b"x").expect("room");
    all.bury(dead[0].slot);
    assert_eq!(all.endpoints[2].doze(), Doze::Ready, "its last words are there");
    all.endpoints[2].progress();
    all.bury(dead[1].slot);
    assert_eq!(all.endpoints[2].doze(), Doze::Ready);
    let failures = ended(&mut all.endpoints[2]).into_iter().map(|it| it.failure);
    assert_eq!(failures.collect::<Vec<_>>(), [Some(RequestFailure::Gone); 2]);
}

/// Another thread asks for something while one sleeps; only a look around finds it out.
#[test]
fn a_receive_from_the_dead_and_a_wake_up_that_was_not_said_are_somethings() {
    let mut all = Sleepers::new(3);
    let (dead, mut into) = (all.endpoints[0].address(), [0; 8]);
    all.bury(dead.slot);
    assert_eq!(all.endpoints[2].doze(), Doze::Sleep);
    assert!(!all.endpoints[2].has_something());
    ask(&mut all.endpoints[2], &receive(Some(dead), 3), &mut into);
    assert!(all.endpoints[2].has_something() && !all.is_rung(2), "its death has rung before");
    assert_eq!(all.endpoints[2].doze(), Doze::Ready);
    assert_eq!(ended(&mut all.endpoints[2])[0].failure, Some(RequestFailure::Gone));
    assert_eq!([all.endpoints[1].doze(), all.endpoints[2].doze()], [Doze::Sleep; 2]);
    all.deaf.store(1, Relaxed);
    all.send(2, 1);
    ended(&mut all.endpoints[2]);
    assert!(all.endpoints[2].has_something(), "a sleeper must be woken");
    all.deaf.store(0, Relaxed);
    assert_eq!(all.endpoints[2].doze(), Doze::Sleep);
    assert!(all.is_rung(1) && !all.endpoints[2].has_something());
}

#[test]
fn a_refused_sender_hears_of_room_after_any_sends_to_others() {
    let mut all = Sleepers::new(3);
    let to = all.endpoints[1].address();
    let refuse = |all: &mut Sleepers| {
        while send(&mut all.endpoints[0], &message(to, 1), b"x").is_ok() {}
        ended(&mut all.endpoints[0]);
    };
    refuse(&mut all);
    assert_eq!(all.endpoints[0].doze(), Doze::Nap, "room is not announced");
    all.send(0, 2);
    ended(&mut all.endpoints[0]);
    assert_eq!(all.endpoints[0].doze(), Doze::Nap, "that was another one's");
    (0..16).for_each(|_| assert_eq!(all.drain(1), 1));
    (0..2).for_each(|_| assert_eq!(all.endpoints[0].doze(), Doze::Refused, "until it is told"));
    all.endpoints[0].refusals_are_told();
    assert_eq!(all.endpoints[0].doze(), Doze::Sleep, "its program does not want to any more");
    refuse(&mut all);
    assert_eq!(all.endpoints[0].doze(), Doze::Nap);
    (0..16).for_each(|_| assert_eq!(all.drain(1), 1));
    all.send(0, 1);
    ended(&mut all.endpoints[0]);
    assert_eq!(all.endpoints[0].doze(), Doze::Sleep, "it could be sent since");
    refuse(&mut all);
    all.bury(to.slot);
    assert_eq!(all.endpoints[0].doze(), Doze::Nap);
    assert_eq!(all.endpoints[0].doze(), Doze::Refused, "who tries again hears that it is gone");
}

/// A sender that is refused by an endpoint that sleeps by then still wakes it, and only once, with
/// its next message.
#[test]
fn a_refused_sender_wakes_as_others_do() {
    let mut all = Sleepers::new(2);
    let to = all.endpoints[1].address();
    for round in 1..=2 {
        while send(&mut all.endpoints[0], &message(to, 1), b"x").is_ok() {}
        (0..16).for_each(|_| assert_eq!(all.drain(1), 1));
        assert_eq!(all.endpoints[1].doze(), Doze::Sleep);
        (0..2).for_each(|_| all.send(0, 1));
        assert!(all.is_rung(1));
        assert_eq!(all.rings(), round);
        (0..2).for_each(|_| assert_eq!(all.drain(1), 1));
    }
}

/// Beyond those that are kept, too, what is refused is told at last.
#[test]
fn refusals_are_bounded() {
    let count = REFUSALS_MAX as u16 + 4;
    let mut all = Sleepers::new(count);
    for index in 1..count.into() {
        let to = all.endpoints[index].address();
        while send(&mut all.endpoints[0], &message(to, 1), b"x").is_ok() {}
    }
    ended(&mut all.endpoints[0]);
    assert_eq!(all.endpoints[0].doze(), Doze::Nap);
    let last = usize::from(count) - 1;
    (0..16).for_each(|_| assert_eq!(all.drain(last), 1));
    assert_eq!(all.endpoints[0].doze(), Doze::Refused);
    all.endpoints[0].refusals_are_told();
    assert_eq!(all.endpoints[0].doze(), Doze::Nap, "for the others");
}

#[test]
fn a_member_that_lost_its_bell_gets_a_bounded_number_of_new_ones() {
    let mut all = Sleepers::new(2);
    assert_eq!(all.endpoints[1].doze(), Doze::Sleep);
    for _ in 0..16 {
        all.tear_off(1);
        assert!(all.is_rung(1), "it hears that");
        assert_eq!(all.endpoints[1].doze(), Doze::Deaf);
        assert!(!all.endpoints[1].reopen_doorbell(), "it was not waited for");
        assert_eq!(all.endpoints[1].doze(), Doze::Deaf);
        assert!(all.endpoints[1].reopen_doorbell());
        assert_eq!(all.endpoints[1].doze(), Doze::Sleep);
        all.send(0, 1);
        assert!(all.is_rung(1));
        assert_eq!(all.drain(1), 1);
        assert_eq!(all.endpoints[1].doze(), Doze::Sleep);
    }
    all.tear_off(1);
    all.send(0, 1);
    assert_eq!(all.endpoints[1].doze(), Doze::Deaf);
    assert_eq!(all.drain(1), 1, "it has to look by itself");
    assert!((0..10).all(|_| !all.endpoints[1].reopen_doorbell()), "as often as it wants");
}

/// A program that computes after one send does not leave the wake-up to the next look around.
#[test]
fn a_postponed_bell_rings_with_the_next_one() {
    let mut all = Sleepers::new(4);
    (1..4).for_each(|index| assert_eq!(all.endpoints[index].doze(), Doze::Sleep));
    all.deaf.store(1, Relaxed);
    (1..3).for_each(|index| all.send(0, index));
    assert!(!all.is_rung(1) && !all.is_rung(2));
    all.deaf.store(0, Relaxed);
    all.send(0, 3);
    assert!(all.is_rung(3) && all.is_rung(1) != all.is_rung(2), "one at each send");
    assert_eq!(all.drain(3), 1);
    assert_eq!(all.endpoints[3].doze(), Doze::Sleep);
    all.send(0, 3);
    assert!(all.is_rung(1) && all.is_rung(2));
}

#[test]
fn a_bell_that_cannot_ring_now_rings_later() {
    let mut all = Sleepers::new(2);
    assert_eq!(all.endpoints[1].doze(), Doze::Sleep);
    all.deaf.store(1, Relaxed);
    all.send(0, 1);
    ended(&mut all.endpoints[0]);
    assert!(!all.is_rung(1));
    assert_eq!(all.endpoints[0].doze(), Doze::Nap, "a sleeper must be woken");
    all.deaf.store(0, Relaxed);
    assert_eq!(all.endpoints[0].doze(), Doze::Sleep);
    assert!(all.is_rung(1));
}

#[test]
fn an_endpoint_without_a_bell_or_a_barrier_does_not_sleep() {
    let mut world = World::usual(1);
    assert_eq!(world.endpoints[0].doze(), Doze::Never);
    assert!(matches!(world.endpoints[0].open_doorbell(), Err(NoDoorbell::NoNode)));
    let mut all = Sleepers::new(2);
    let to = all.endpoints[1].address();
    assert_eq!(all.endpoints[1].doze(), Doze::Sleep);
    all.endpoints[0].engine.sleeping = Sleeping::default();
    assert!(matches!(all.endpoints[0].open_doorbell(), Err(NoDoorbell::NoBarrier)));
    assert_eq!(
        (all.endpoints[0].doorbell().is_none(), all.endpoints[0].doze()),
        (true, Doze::Never)
    );
    send(&mut all.endpoints[0], &message(to, 1), b"x").expect("room");
    assert!(all.is_rung(1), "but it wakes others");
}
