//! Nodes with sidecores that carry messages between members, on one thread and a simulated clock.

mod hostile;
#[path = "../../../peer/tests/hosts/mod.rs"]
mod hosts;
mod order;
mod sessions;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;

use peer::flows;
use random::Random;
use replica::{ClientId, Extent, MemberId, Op, Place, RequestId, VolumeRecord};
use transport::{EndpointConfig, PeerIdentity, VERSIONS};

use super::*;
use crate::content::from_wire;
use crate::door::{ArrivedMessage, DoorInbox, MemberDoor};
use hosts::PlaneHost;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

/// A round's length.
const STEP_NS: u64 = 100_000;

/// All nodes; the place in this list is the member's name.
const NODES: [&str; 4] = ["io0", "io1", "io2", "vm"];

/// The form of all volumes, where a test says nothing else.
const FORM: VolumeForm = VolumeForm([9; 16]);

/// The nodes with copies of `alice`, and the nodes with copies of `bob`.
const ALICE: [usize; 3] = [0, 1, 2];
const BOB: [usize; 2] = [0, 1];

fn addr(node: usize) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::new(10, 0, 0, node as u8 + 1), 4870))
}

fn node_at(addr: SocketAddr) -> usize {
    (0..NODES.len()).find(|node| self::addr(*node) == addr).expect("a node's address")
}

/// The plane of blocks of the rig: it notes calls, which the test answers.
#[derive(Debug, Default)]
struct BlockCalls {
    calls: Vec<CallId>,
    answered: u64,
}

impl peer::Plane for BlockCalls {
    fn id(&self) -> PlaneId {
        PlaneId::Block
    }

    fn connected(&mut self, _: SessionId, _: Option<PeerId>, _: &PeerInfo) {}

    fn lost(&mut self, _: u64, _: SessionId, _: Option<PeerId>, _: &LostReason) {}

    fn reply_body(&mut self, _: SessionId, _: Token, _: usize, _: &[u8]) {}

    fn reply(&mut self, _: u64, _: SessionId, _: Token, _: &[u8], _: usize) {
        self.answered += 1;
    }

    fn call(&mut self, _: SessionId, _: u16, call: CallId, _: &[u8], body: Option<(BufId, usize)>) {
        assert!(body.is_none(), "no test sends one");
        self.calls.push(call);
    }

    fn cast(&mut self, _: SessionId, _: u16, _: &[u8], _: Option<(BufId, usize)>) {}

    fn paused(&mut self) {}

    fn fears_pauses(&self) -> bool {
        false
    }

    fn is_waiting(&self) -> bool {
        false
    }

    fn quotas(&self) -> Vec<PlaneQuota> {
        Vec::new()
    }
}

struct Node {
    wired: PlaneHost,
    plane: Rc<RefCell<ReplicaPlane>>,
    block: Rc<RefCell<BlockCalls>>,
    doors: Arc<MemberDoors>,
    lines: Arc<Mutex<PeerLines>>,
    inboxes: BTreeMap<&'static str, DoorInbox>,
    /// Its sessions live, and nothing looks at the calls of its planes.
    is_silent: bool,
    is_down: bool,
}

impl Node {
    fn new(number: usize, life: u64, versions: RangeInclusive<u8>) -> Self {
        let mut config = EndpointConfig::new(NODES[number], life, life + 77);
        config.datagram_bytes_max = 8972;
        config.versions = versions;
        let wired = PlaneHost::new(addr(number), config);
        let (doors, lines) = (Arc::<MemberDoors>::default(), Arc::<Mutex<PeerLines>>::default());
        let block = Rc::<RefCell<BlockCalls>>::default();
        let mut planes = wired.planes.borrow_mut();
        planes.add(Rc::clone(&block) as _);
        let waker = Waker::none();
        let plane = ReplicaPlane::new(&mut planes, Arc::clone(&doors), Arc::clone(&lines), waker);
        for other in (0..NODES.len()).filter(|other| *other != number) {
            planes.peers().borrow_mut().add(NODES[other], addr(other));
        }
        drop(planes);
        let inboxes = BTreeMap::new();
        let (is_silent, is_down) = (false, false);
        let mut node = Self { plane, block, doors, lines, inboxes, is_silent, is_down, wired };
        for (volume, members) in [("alice", &ALICE[..]), ("bob", &BOB[..])] {
            if members.contains(&number) {
                node.serve(volume, members.iter().copied().filter(|it| *it != number));
            }
        }
        node
    }

    /// The node has a member of the volume from now on, beside the members of these nodes.
    fn serve(&mut self, volume: &'static str, others: impl Iterator<Item = usize>) {
        let peers = others.map(|other| (NODES[other].to_owned(), other as MemberId)).collect();
        let door = MemberDoor::new(peers, FORM, Waker::none());
        self.inboxes.insert(volume, DoorInbox::new(Arc::clone(&door)));
        self.doors.insert(volume, door);
    }

    fn take(&mut self, volume: &str, most: usize) -> Vec<ArrivedMessage> {
        let mut taken = Vec::new();
        self.inboxes.get_mut(volume).expect("a member").take(most, usize::MAX, &mut taken);
        taken
    }

    fn counters(&self) -> Arc<ReplicaPlaneCounters> {
        self.plane.borrow().counters()
    }

    fn buffers(&self) -> usize {
        self.wired.endpoint.borrow().pool().in_use()
    }
}

struct World {
    nodes: Vec<Node>,
    now_ns: u64,
    lives: u64,
    datagram: Vec<u8>,
    /// One datagram in twenty is lost, if there are random numbers.
    loss: Option<Random>,
}

impl World {
    fn new() -> Self {
        Self::of([VERSIONS; NODES.len()])
    }

    /// With the versions of the protocol that each node speaks.
    fn of(versions: [RangeInclusive<u8>; NODES.len()]) -> Self {
        let nodes =
            (0..).zip(versions).map(|(at, versions)| Node::new(at, at as u64 + 1, versions));
        Self {
            nodes: nodes.collect(),
            now_ns: SECOND,
            lives: 100,
            datagram: Vec::new(),
            loss: None,
        }
    }

    /// A new process in a node's place.
    fn restart(&mut self, node: usize) {
        self.lives += 1;
        self.nodes[node] = Node::new(node, self.lives, VERSIONS);
    }

    fn round(&mut self) {
        self.now_ns += STEP_NS;
        let now_ns = self.now_ns;
        for at in 0..self.nodes.len() {
            let node = &mut self.nodes[at];
            if node.is_down {
                continue;
            }
            node.wired.begin(now_ns);
            if !node.is_silent {
                let _ = node.plane.borrow_mut().poll(now_ns);
                for call in std::mem::take(&mut node.block.borrow_mut().calls) {
                    let _ = node.wired.endpoint.borrow_mut().reply(now_ns, call, &[0], None);
                }
            }
            let Self { nodes, datagram, loss, .. } = self;
            let (before, rest) = nodes.split_at_mut(at);
            let (node, after) = rest.split_first_mut().expect("it is there");
            let from = node.wired.addr;
            node.wired.send(now_ns, datagram, |to, bytes| {
                let to = node_at(to);
                let to = if to < at { &before[to] } else { &after[to - at - 1] };
                let is_lost = loss.as_mut().is_some_and(|random| random.one_in(20));
                if !to.is_down && !is_lost {
                    to.wired.receive(now_ns, now_ns, from, bytes);
                }
            });
        }
    }

    fn rounds(&mut self, count: usize) {
        (0..count).for_each(|_| self.round());
    }

    /// Rounds until something is so; simulated time has a bound.
    fn until(&mut self, what: &str, mut is_so: impl FnMut(&mut Self) -> bool) {
        for _ in 0..300_000 {
            if is_so(self) {
                return;
            }
            self.round();
        }
        panic!("never: {what}");
    }

    fn open(&mut self, from: usize, volume: &str, to: usize) -> ReplicaRoute {
        self.nodes[from].plane.borrow_mut().open(volume, FORM.said_by(from as MemberId), NODES[to])
    }

    /// A route with a session, and the node of the other end knows the volume's number.
    fn connect(&mut self, from: usize, volume: &'static str, to: usize) -> ReplicaRoute {
        let route = self.open(from, volume, to);
        let before = self.nodes[to].counters().taken.get();
        self.until("a message arrives", |world| {
            let _ = world.send(from, route, hello(0));
            world.rounds(3);
            world.nodes[to].counters().taken.get() > before
        });
        self.rounds(10);
        self.nodes[to].take(volume, usize::MAX);
        route
    }

    #[expect(clippy::result_large_err, reason = "a message that is given back is only moved")]
    fn send(
        &mut self,
        from: usize,
        route: ReplicaRoute,
        message: Message<RangeContent>,
    ) -> Result<(), Message<RangeContent>> {
        let now_ns = self.now_ns;
        self.nodes[from].plane.borrow_mut().send(now_ns, route, message)
    }

    /// Sends as many as there is room for now, of these numbers.
    fn flood(&mut self, from: usize, route: ReplicaRoute, numbers: std::ops::Range<u64>) -> u64 {
        let mut sent = 0;
        for number in numbers {
            if self.send(from, route, hello(number)).is_err() {
                break;
            }
            sent += 1;
        }
        sent
    }

    /// The session that a node has asked another node for.
    fn session(&self, from: usize, to: usize) -> SessionId {
        self.find_session(from, to).expect("a session")
    }

    fn has_session(&self, from: usize, to: usize) -> bool {
        self.find_session(from, to).is_some()
    }

    fn find_session(&self, from: usize, to: usize) -> Option<SessionId> {
        let planes = self.nodes[from].wired.planes.borrow();
        let peers = planes.peers().borrow();
        peers.session(peers.find(NODES[to])?).map(|up| up.id)
    }
}

/// A message with a number.
fn hello(number: u64) -> Message<RangeContent> {
    Message::Hello { life: number, epoch: 1 }
}

fn numbers(taken: &[ArrivedMessage]) -> Vec<u64> {
    let number = |arrived: &ArrivedMessage| match arrived.message {
        Message::Hello { life, .. } => life,
        _ => panic!("{arrived:?}"),
    };
    taken.iter().map(number).collect()
}

fn append(counter: u64, op: Op<RangeContent>) -> Message<RangeContent> {
    Message::Append { epoch: 1, life: 2, began: 0, counter, op }
}

/// A write of so many sectors.
fn write(counter: u64, sectors: u32) -> Message<RangeContent> {
    let client = ClientId { attachment: 3, channel: 0, slot: 1 };
    let content = vec![counter as u8; sectors as usize * 512];
    append(
        counter,
        Op::Write {
            id: RequestId { client, number: counter },
            extent: Extent::new(counter * 8, sectors).expect("it has sectors"),
            data: RangeContent::of(content),
        },
    )
}
