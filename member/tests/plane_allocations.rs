//! Once warm, a message between members allocates nothing at its sender, and at its receiver the
//! memory of its content alone, which goes to another thread with the message.

#[path = "../../sidecore/tests/counting/mod.rs"]
mod counting;
#[path = "../../peer/tests/hosts/mod.rs"]
mod hosts;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use counting::{allocations, held_bytes};
use hosts::PlaneHost;
use member::door::{MemberDoor, MemberDoors};
use member::plane::{ReplicaPlane, ReplicaPlaneCounters, ReplicaRoute};
use member::{RangeContent, VolumeForm};
use replica::{ClientId, Extent, Message, Op, RequestId};
use sidecore::{Poll, Waker};
use transport::EndpointConfig;

const NODES: [&str; 2] = ["io0", "io1"];

const SECTORS: u32 = 64;

fn addr(node: usize) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 4870 + node as u16))
}

fn form() -> VolumeForm {
    VolumeForm::of(&BTreeMap::new(), 0, &[])
}

struct Node {
    wired: PlaneHost,
    plane: Rc<RefCell<ReplicaPlane>>,
    doors: Arc<MemberDoors>,
}

impl Node {
    fn new(number: usize) -> Self {
        let life = number as u64 + 1;
        let mut config = EndpointConfig::new(NODES[number], life, life);
        config.datagram_bytes_max = 8972;
        let wired = PlaneHost::new(addr(number), config);
        let doors = Arc::<MemberDoors>::default();
        let mut planes = wired.planes.borrow_mut();
        let lines = Arc::default();
        let plane = ReplicaPlane::new(&mut planes, Arc::clone(&doors), lines, Waker::none());
        planes.peers().borrow_mut().add(NODES[1 - number], addr(1 - number));
        drop(planes);
        Self { plane, doors, wired }
    }

    /// A member with an empty mailbox, in place of an earlier one.
    fn serve(&self, other: usize) -> Arc<MemberDoor> {
        let peers = BTreeMap::from([(NODES[other].to_owned(), other as u8)]);
        let door = MemberDoor::new(peers, form(), Waker::none());
        self.doors.insert("alice", Arc::clone(&door));
        door
    }

    fn counters(&self) -> Arc<ReplicaPlaneCounters> {
        self.plane.borrow().counters()
    }
}

struct Pair {
    nodes: [Node; 2],
    route: ReplicaRoute,
    now_ns: u64,
    datagram: Vec<u8>,
}

impl Pair {
    fn round(&mut self) {
        self.now_ns += 50_000;
        let Self { nodes: [one, two], now_ns, datagram, .. } = self;
        carry(one, two, *now_ns, datagram);
        carry(two, one, *now_ns, datagram);
    }

    fn send(&mut self, message: &Message<RangeContent>) {
        let sent = self.nodes[0].plane.borrow_mut().send(self.now_ns, self.route, message.clone());
        assert!(sent.is_ok(), "there is room");
    }

    /// Sends messages, five at a time, until so many were taken.
    fn say(&mut self, message: &Message<RangeContent>, count: u64) {
        let counters = self.nodes[1].counters();
        let before = counters.taken.get();
        for _ in 0..count / 5 {
            (0..5).for_each(|_| self.send(message));
            (0..8).for_each(|_| self.round());
        }
        assert_eq!(counters.taken.get() - before, count);
    }

    /// The other node's member is replaced from now on by a member that takes messages.
    fn renew(&mut self) -> Arc<MemberDoor> {
        let door = self.nodes[1].serve(0);
        let counters = self.nodes[1].counters();
        let before = counters.taken.get();
        while counters.taken.get() < before + 2 {
            let hello = Message::Hello { life: 1, epoch: 1 };
            let _ = self.nodes[0].plane.borrow_mut().send(self.now_ns, self.route, hello);
            (0..8).for_each(|_| self.round());
        }
        door
    }
}

fn carry(from: &mut Node, to: &Node, now_ns: u64, datagram: &mut Vec<u8>) {
    from.wired.begin(now_ns);
    let _ = from.plane.borrow_mut().poll(now_ns);
    let addr = from.wired.addr;
    from.wired.send(now_ns, datagram, |_, bytes| to.wired.receive(now_ns, now_ns, addr, bytes));
}

#[test]
fn messages_allocate_nothing_but_their_content_at_the_receiver() {
    let nodes = [Node::new(0), Node::new(1)];
    let route = nodes[0].plane.borrow_mut().open("alice", form().said_by(0), NODES[1]);
    let mut pair = Pair { nodes, route, now_ns: 1, datagram: Vec::with_capacity(1 << 16) };
    let client = ClientId { attachment: 3, channel: 0, slot: 1 };
    let op = Op::Write {
        id: RequestId { client, number: 1 },
        extent: Extent::new(8, SECTORS).expect("it has sectors"),
        data: RangeContent::of(vec![7; SECTORS as usize * 512]),
    };
    let write = Message::Append { epoch: 1, life: 1, began: 0, counter: 1, op };
    let hello = Message::Hello { life: 1, epoch: 1 };
    let first = pair.renew();
    pair.say(&write, 200);
    // Most messages that are ever under way at once.
    (0..50).for_each(|_| pair.send(&hello));
    (0..20).for_each(|_| pair.round());
    let second = pair.renew();
    drop(first);
    let before = allocations();
    assert!(before > 0, "the count works");
    pair.say(&hello, 100);
    assert_eq!(allocations() - before, 0, "messages without content");
    let (before, held) = (allocations(), held_bytes());
    pair.say(&write, 100);
    assert_eq!(allocations() - before, 100, "one for each content");
    assert_eq!(held_bytes() - held, 100 * i64::from(SECTORS) * 512);
    drop(second);
}
