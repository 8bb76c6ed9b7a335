//! One peer's flood of channels, claims, opens, proofs or calls beside another peer's disk. Both
//! are hand-written clients on raw sessions, plain and sealed; time is simulated, so what is
//! counted is the same each time.

mod keys;

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use block::wire::{Kind, Names, Outcome, Reply, Request, Title, attachment_id};
use block::{Export, ExportOptions, Exports, Plane};
use keys::{GREEDY, IOHOST, VMHOST, security};
use peer::{Allow, Planes};
use sidecore::{Poll, Services, Wake};
use transport::{
    BufId, CallId, Endpoint, EndpointConfig, LostReason, PeerInfo, SessionId, Sink, TransmitBatch,
};
use volume::Volume;
use volume::backend::NullVolume;
use volume::chain::{Swap, SwapProgress};
use volume::record::NoRecords;

const MS: u64 = 1_000_000;
const READ_BYTES: u32 = 4096;
/// The longest range of a call.
const RANGE_BYTES: u32 = 16 << 20;
/// Bytes of calls that a round of the server begins for one peer.
const PEER_BYTES_PER_ROUND: u64 = 1 << 20;

/// Replies by token.
#[derive(Default)]
struct Replies(HashMap<u64, Reply>);

impl Sink for Replies {
    fn connected(&mut self, _: SessionId, _: &PeerInfo) {}
    fn lost(&mut self, _: SessionId, why: &LostReason) {
        panic!("lost: {why:?}");
    }
    fn reply_body(&mut self, _: SessionId, _: u64, _: usize, _: &[u8]) {}
    fn reply(&mut self, _: SessionId, token: u64, head: &[u8], _: usize) {
        self.0.insert(token, Reply::decode(head).expect("a reply"));
    }
    fn call(&mut self, _: SessionId, _: u16, _: CallId, _: &[u8], _: Option<(BufId, usize)>) {}
}

struct Client {
    addr: SocketAddr,
    volume: &'static str,
    endpoint: Endpoint,
    sessions: Vec<SessionId>,
    replies: Replies,
    next_token: u64,
    batch: TransmitBatch,
}

fn endpoint_of(name: &str, number: u16, sealed: bool) -> Endpoint {
    let mut config = EndpointConfig::new(name, number.into(), number.into());
    config.datagram_bytes_max = 8972;
    config.entropy = [number as u8 + 1; 32];
    config.security = security(name, sealed);
    Endpoint::new(config)
}

fn addr(number: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 4870 + number))
}

impl Client {
    fn new(mut endpoint: Endpoint, number: u16, volume: &'static str, sessions: u16) -> Self {
        let sessions = (0..sessions).map(|index| endpoint.connect(1, addr(0), IOHOST, index));
        let sessions = sessions.collect();
        let (replies, batch) = (Replies::default(), TransmitBatch::new(64));
        Self { addr: addr(number), volume, endpoint, sessions, replies, next_token: 0, batch }
    }

    fn call(&mut self, now_ns: u64, session: usize, flow: u16, head: &[u8]) -> Option<u64> {
        self.next_token += 1;
        let session = self.sessions[session];
        let called = self.endpoint.call(now_ns, session, flow, self.next_token, head, None);
        called.ok().map(|()| self.next_token)
    }

    fn request(&self, kind: Kind, attachment: &str, epoch: u64, incarnation: Title) -> Request {
        let title =
            Title { attachment: attachment_id(self.volume, attachment), epoch, ..incarnation };
        let mut request = Request::new(kind, title, 0);
        let (volume, attachment) = (self.volume.to_owned(), attachment.to_owned());
        request.names = kind.op().is_none().then_some(Names { volume, attachment });
        request
    }
}

/// An IOhost with a volume for each of its two clients: `clients[0]` is hostile.
struct World {
    now_ns: u64,
    endpoint: Rc<RefCell<Endpoint>>,
    planes: Planes,
    plane: Rc<RefCell<Plane>>,
    batch: TransmitBatch,
    clients: [Client; 2],
    /// The hostile peer's volume.
    swap: Arc<Swap>,
    null: Arc<NullVolume>,
}

impl World {
    fn new(hostile_sessions: u16, sealed: bool) -> Self {
        let exports = Arc::new(Exports::default());
        let null = Arc::new(NullVolume::new(1 << 30));
        let swap = Swap::new(null.clone());
        let volumes: [(_, _, Arc<dyn Volume>); 2] =
            [("a", GREEDY, swap.clone()), ("b", VMHOST, null.clone())];
        for (name, node, volume) in volumes {
            let options = ExportOptions { allow: vec![Allow::node(node)], shared: false };
            let export = Export::new(name, volume, options, Arc::new(NoRecords));
            exports.insert(export.expect("no records to read"));
        }
        let endpoint = Rc::new(RefCell::new(endpoint_of(IOHOST, 0, sealed)));
        let mut planes = Planes::new(0, Rc::clone(&endpoint));
        let plane = Plane::new(&mut planes, exports, Services::new());
        let clients = [
            Client::new(endpoint_of(GREEDY, 1, sealed), 1, "a", hostile_sessions),
            Client::new(endpoint_of(VMHOST, 2, sealed), 2, "b", 1),
        ];
        let batch = TransmitBatch::new(64);
        let mut world = Self { now_ns: 1, endpoint, planes, plane, batch, clients, swap, null };
        for _ in 0..5000 {
            world.round(MS);
            let connected = world.plane.borrow().server.served(world.now_ns).count();
            let sessions = world.endpoint.borrow().sessions().count();
            if connected == 2 && sessions == usize::from(hostile_sessions) + 1 {
                break;
            }
        }
        world.rounds(20);
        world
    }

    /// A round of everything; the IOhost serves once.
    fn round(&mut self, time_ns: u64) {
        self.now_ns += time_ns;
        let now_ns = self.now_ns;
        for client in &mut self.clients {
            client.endpoint.advance(now_ns, &mut client.replies);
            loop {
                client.endpoint.transmit(now_ns, &mut client.batch);
                if client.batch.is_empty() {
                    break;
                }
                for datagram in client.batch.datagrams() {
                    let mut bytes = datagram.head().to_vec();
                    bytes.extend_from_slice(datagram.body(client.endpoint.pool()));
                    let mut io = self.endpoint.borrow_mut();
                    io.receive(now_ns, now_ns, client.addr, &bytes, &mut self.planes);
                }
                let count = client.batch.len();
                client.batch.consume(count);
            }
        }
        let _ = self.planes.poll(now_ns);
        self.endpoint.borrow_mut().advance(now_ns, &mut self.planes);
        let _ = self.plane.borrow_mut().poll(now_ns);
        loop {
            let mut io = self.endpoint.borrow_mut();
            io.transmit(now_ns, &mut self.batch);
            if self.batch.is_empty() {
                return;
            }
            for datagram in self.batch.datagrams() {
                let mut bytes = datagram.head().to_vec();
                bytes.extend_from_slice(datagram.body(io.pool()));
                let to = self.clients.iter_mut().find(|client| client.addr == datagram.to());
                let client = to.expect("one of the two");
                let replies = &mut client.replies;
                client.endpoint.receive(now_ns, now_ns, addr(0), &bytes, replies);
            }
            let count = self.batch.len();
            self.batch.consume(count);
        }
    }

    fn rounds(&mut self, count: usize) {
        (0..count).for_each(|_| self.round(MS));
    }

    /// The neighbour's call, answered within so many rounds of the IOhost.
    fn ask(&mut self, flow: u16, request: &Request, rounds_max: usize) -> Reply {
        let head = request.encode();
        let now_ns = self.now_ns;
        let token = self.clients[1].call(now_ns, 0, flow, head.as_bytes()).expect("room");
        for _ in 0..rounds_max {
            self.round(MS);
            if let Some(reply) = self.clients[1].replies.0.remove(&token) {
                return reply;
            }
        }
        panic!("{:?} was not answered in {rounds_max} rounds", request.kind);
    }

    /// The hostile peer's disk `x` is claimed: its epoch and title.
    fn claim_hostile(&mut self) -> (u64, Title) {
        let claim = self.clients[0].request(Kind::Claim, "x", 0, Title::default());
        let now_ns = self.now_ns;
        let token = self.clients[0].call(now_ns, 0, 0, claim.encode().as_bytes()).expect("room");
        self.rounds(20);
        let claimed = self.clients[0].replies.0.remove(&token).expect("answered");
        let incarnation = claimed.volume.expect("told with a claim").incarnation;
        (claimed.epoch, Title { incarnation, ..Title::default() })
    }

    /// The neighbour's disk starts and reads; each step takes so many rounds at most.
    fn use_neighbour(&mut self, reads: usize, rounds_max: usize) {
        let none = Title::default();
        let claim = self.clients[1].request(Kind::Claim, "disk", 0, none);
        let claimed = self.ask(0, &claim, rounds_max);
        assert_eq!(claimed.outcome, Outcome::Done, "{}", claimed.text);
        let incarnation = claimed.volume.expect("told with a claim").incarnation;
        let title = Title { incarnation, ..none };
        let open = self.clients[1].request(Kind::Open, "disk", claimed.epoch, title);
        let opened = self.ask(0, &open, rounds_max);
        assert_eq!(opened.outcome, Outcome::Done, "{}", opened.text);
        let mut read = self.clients[1].request(Kind::Read, "disk", claimed.epoch, title);
        read.len_bytes = READ_BYTES;
        for _ in 0..reads {
            assert_eq!(self.ask(0, &read, rounds_max).outcome, Outcome::Done);
        }
    }
}

#[test]
fn flows_by_the_thousand_leave_channels_to_a_neighbour() {
    [false, true].into_iter().for_each(take_channels);
}

fn take_channels(sealed: bool) {
    let mut world = World::new(18, sealed);
    // Each is a channel that was never claimed, on a flow of its own.
    for session in 0..18 {
        for flow in 0..256 {
            let hostile = &mut world.clients[0];
            let open = hostile.request(Kind::Open, "x", 7, Title::default());
            hostile.call(world.now_ns, session, flow, open.encode().as_bytes()).expect("room");
        }
    }
    // They are opened at their rate: one burst, then one each millisecond.
    world.rounds(3_500);
    let served = |world: &World| {
        let plane = world.plane.borrow();
        let mut peers = plane.server.served(world.now_ns);
        peers.find(|served| served.peer.name == GREEDY).expect("it has sessions")
    };
    let hostile = served(&world);
    assert_eq!((hostile.channels.has, hostile.channels.refused), (2048, 18 * 256 - 2048));
    assert!(hostile.channels.is_at_limit());
    let told = world.clients[0].replies.0.values().filter(|reply| reply.text.contains("channels"));
    assert_eq!(told.count(), 18 * 256 - 2048, "by name");
    world.use_neighbour(100, 3);
}

#[test]
fn claims_by_the_thousand_are_taken_at_their_rate() {
    [false, true].into_iter().for_each(claim);
}

fn claim(sealed: bool) {
    let mut world = World::new(4, sealed);
    let mut sent = 0;
    for round in 0..2000u32 {
        for session in 0..4 {
            for flow in 0..8 {
                let hostile = &mut world.clients[0];
                let name = format!("x{}", sent % 500);
                let claim = hostile.request(Kind::Claim, &name, 0, Title::default());
                let called = hostile.call(world.now_ns, session, flow, claim.encode().as_bytes());
                sent += u32::from(called.is_some());
            }
        }
        if round == 1000 {
            world.use_neighbour(100, 3);
        }
        world.round(MS);
    }
    let served = world.plane.borrow().server.served(world.now_ns).collect::<Vec<_>>();
    let hostile = served.iter().find(|served| served.peer.name == GREEDY).expect("served");
    assert!(hostile.claims.is_at_limit() && hostile.claims.refused > 0, "{hostile:?}");
    let neighbour = served.iter().find(|served| served.peer.name == VMHOST).expect("served");
    assert!(!neighbour.claims.is_at_limit() && neighbour.claims.refused == 0, "{neighbour:?}");
    // The burst, and one each 10 ms of the two seconds and of the neighbour's 100 rounds.
    let answered = world.clients[0].replies.0.len();
    assert!((256..=256 + 230).contains(&answered), "{answered} of {sent}");
}

#[test]
fn opens_by_the_thousand_are_taken_at_their_rate() {
    [false, true].into_iter().for_each(open_anew);
}

/// Always the same 64 channels of its own disk, opened anew; with closes and descriptions between.
fn open_anew(sealed: bool) {
    let mut world = World::new(8, sealed);
    let (epoch, title) = world.claim_hostile();
    let answered = |world: &World| world.clients[0].replies.0.len();
    let (mut sent, mut most) = (0u32, 0);
    for round in 0..2000u32 {
        for session in 0..8 {
            for _ in 0..16 {
                let hostile = &mut world.clients[0];
                let kind = match sent % 8 {
                    6 => Kind::Describe,
                    // Of an attachment that it does not hold.
                    7 => Kind::Close,
                    _ => Kind::Open,
                };
                let epoch = epoch + u64::from(kind == Kind::Close);
                let mut request = hostile.request(kind, "x", epoch, title);
                request.channel = (sent % 64) as u16;
                let head = request.encode();
                let called =
                    hostile.call(world.now_ns, session, (sent % 64) as u16, head.as_bytes());
                sent += u32::from(called.is_some());
            }
        }
        if round == 1000 {
            world.use_neighbour(100, 3);
        }
        let before = answered(&world);
        world.round(MS);
        most = most.max(answered(&world) - before);
    }
    // The channels that a round of the server opens, and those that were under way.
    assert!(most <= 2 * 4, "{most} in one round");
    let served = world.plane.borrow().server.served(world.now_ns).collect::<Vec<_>>();
    let hostile = served.iter().find(|served| served.peer.name == GREEDY).expect("served");
    assert!(hostile.opens.is_at_limit() && hostile.opens.refused > 0, "{hostile:?}");
    let neighbour = served.iter().find(|served| served.peer.name == VMHOST).expect("served");
    assert!(!neighbour.opens.is_at_limit() && neighbour.opens.refused == 0, "{neighbour:?}");
    // The burst, and one each millisecond of the two seconds and of the neighbour's rounds.
    let answered = answered(&world);
    assert!((2048..=2048 + 2300).contains(&answered), "{answered} of {sent}");
    // Nothing is left of channels that were replaced.
    assert!(hostile.channels.has <= 2 * 64 * 8, "{hostile:?}");
}

#[test]
fn proofs_by_the_thousand_are_looked_at_at_their_rate() {
    [false, true].into_iter().for_each(prove);
}

/// Bogus proofs, each with a question for its volume.
fn prove(sealed: bool) {
    let mut world = World::new(4, sealed);
    let counters = world.plane.borrow().server.counters();
    let (mut sent, mut most) = (0, 0);
    for round in 0..2000u32 {
        for session in 0..4 {
            for flow in 0..8 {
                let hostile = &mut world.clients[0];
                let describe = hostile.request(Kind::Describe, "x", 0, Title::default());
                let head = describe.encode();
                let body = hostile.endpoint.pool_mut().alloc(96).expect("room");
                hostile.endpoint.pool_mut().bytes_mut(body)[..96].fill(3);
                let to = hostile.sessions[session];
                hostile.next_token += 1;
                let (token, body) = (hostile.next_token, Some((body, 96)));
                let head = head.as_bytes();
                let called = hostile.endpoint.call(world.now_ns, to, flow, token, head, body);
                // Its memory is the endpoint's either way.
                hostile.endpoint.pool_mut().release(body.expect("set above").0);
                sent += u32::from(called.is_ok());
            }
        }
        if round == 1000 {
            world.use_neighbour(100, 3);
        }
        let before = counters.proofs.get();
        world.round(MS);
        most = most.max(counters.proofs.get() - before);
    }
    assert_eq!(most, 1, "in one round");
    let served = world.plane.borrow().server.served(world.now_ns).collect::<Vec<_>>();
    let hostile = served.iter().find(|served| served.peer.name == GREEDY).expect("served");
    assert!(hostile.proofs.is_at_limit() && hostile.proofs.refused > 0, "{hostile:?}");
    let neighbour = served.iter().find(|served| served.peer.name == VMHOST).expect("served");
    assert_eq!((neighbour.proofs.has, neighbour.proofs.refused), (0, 0));
    // The burst, and one each 5 ms of the two seconds and of the neighbour's rounds.
    let proofs = counters.proofs.get();
    assert!((1024..=1024 + 460).contains(&proofs), "{proofs} of {sent}");
}

#[test]
fn idle_channels_by_the_thousand_cost_a_round_nothing() {
    [false, true].into_iter().for_each(hold);
}

fn hold(sealed: bool) {
    const SESSIONS: usize = 4;
    let mut world = World::new(SESSIONS as u16, sealed);
    let (epoch, title) = world.claim_hostile();
    for session in 0..SESSIONS {
        for flow in 0..256 {
            let hostile = &mut world.clients[0];
            let open = hostile.request(Kind::Open, "x", epoch, title);
            hostile.call(world.now_ns, session, flow, open.encode().as_bytes()).expect("room");
        }
    }
    world.rounds(SESSIONS * 256);
    let replies = world.clients[0].replies.0.drain();
    let opened = replies.filter(|(_, reply)| reply.outcome == Outcome::Done).count();
    assert_eq!(opened, SESSIONS * 256);
    let counters = world.plane.borrow().server.counters();
    let (before, began_ns) = (counters.looked_at.get(), world.now_ns);
    world.use_neighbour(100, 3);
    // The neighbour's channel while it has something under way, and two of the idle ones.
    let rounds = (world.now_ns - began_ns) / MS;
    let looked_at = counters.looked_at.get() - before;
    assert!(looked_at <= 3 * rounds, "{looked_at} in {rounds} rounds");
    // Each of them gets its turn all the same: the volume's chain is replaced under them.
    world.swap.begin(world.null.clone());
    assert_eq!(world.swap.turning(), SwapProgress::Left(SESSIONS * 256));
    world.rounds(SESSIONS * 256);
    assert_eq!(world.swap.turning(), SwapProgress::Done);
    assert!(world.swap.settle());
    // And before the sidecore sleeps, every one is asked.
    let mut wake = Wake::new();
    assert!(world.plane.borrow_mut().arm(&mut wake).is_busy(), "they have the old chain's spares");
    world.plane.borrow_mut().disarm();
    world.rounds(2);
    wake.clear();
    assert!(!world.plane.borrow_mut().arm(&mut wake).is_busy());
    world.plane.borrow_mut().disarm();
}

#[test]
fn long_calls_leave_rounds_to_a_neighbour() {
    for sealed in [false, true] {
        work(Kind::WriteZeroes, RANGE_BYTES, sealed);
        work(Kind::Discard, RANGE_BYTES, sealed);
    }
}

/// Channels of the hostile peer ask for the longest ranges, as often as they may.
fn work(kind: Kind, len_bytes: u32, sealed: bool) {
    const FLOWS: u16 = 8;
    let mut world = World::new(2, sealed);
    let (epoch, title) = world.claim_hostile();
    for session in 0..2 {
        for flow in 0..FLOWS {
            let mut open = world.clients[0].request(Kind::Open, "x", epoch, title);
            open.channel = session as u16 * FLOWS + flow;
            let now_ns = world.now_ns;
            world.clients[0].call(now_ns, session, flow, open.encode().as_bytes()).expect("room");
        }
    }
    world.rounds(20);
    world.clients[0].replies.0.clear();
    let counters = world.plane.borrow().server.counters();
    let (mut sent, mut rounds, mut before) = (0u64, 0u64, counters.bytes.get());
    for round in 0..400 {
        for session in 0..2 {
            for flow in (0..FLOWS).cycle().take(64) {
                let mut request = world.clients[0].request(kind, "x", epoch, title);
                request.len_bytes = len_bytes;
                let (now_ns, head) = (world.now_ns, request.encode());
                let called = world.clients[0].call(now_ns, session, flow, head.as_bytes());
                sent += u64::from(called.is_some());
            }
        }
        if round == 200 {
            world.use_neighbour(100, 3);
            (rounds, before) = (0, counters.bytes.get());
        }
        world.round(MS);
        rounds += 1;
    }
    // The rounds pay for so much, and the call that was begun last comes on top.
    let bytes = counters.bytes.get() - before;
    let most = (rounds + 1) * PEER_BYTES_PER_ROUND + u64::from(len_bytes);
    assert!(bytes <= most, "{kind:?}: {bytes} bytes in {rounds} rounds, of {sent} calls");
    let least = rounds / 2 * PEER_BYTES_PER_ROUND;
    assert!(bytes >= least, "{kind:?}: {bytes} bytes in {rounds} rounds, of {sent} calls");
}

#[test]
fn a_flood_of_calls_delays_its_own_peer_first() {
    [false, true].into_iter().for_each(flood);
}

fn flood(sealed: bool) {
    let mut world = World::new(16, sealed);
    for session in 0..16 {
        for call in 0..1000 {
            let head = [0xee; 64];
            let hostile = &mut world.clients[0];
            hostile.call(world.now_ns, session, call % 256, &head).expect("room");
        }
    }
    // Until the flood is there; a round serves far fewer calls.
    world.round(MS);
    world.use_neighbour(10, 3);
    let answered = world.clients[0].replies.0.len();
    assert!(answered < 16_000, "the flood goes on meanwhile");
}

/// The node's own writes to a peer keep the buffers that are for that peer until they are answered,
/// and so does the peer. A read that waits for a buffer must hold back no request that frees some.
#[test]
fn a_read_that_waits_for_a_buffer_holds_back_no_flush() {
    let mut world = World::new(1, true);
    world.use_neighbour(1, 3);
    let claim = world.clients[1].request(Kind::Claim, "disk", 1, Title::default());
    let claimed = world.ask(0, &claim, 3);
    let incarnation = claimed.volume.expect("told with a claim").incarnation;
    let title = Title { incarnation, ..Title::default() };
    let open = world.clients[1].request(Kind::Open, "disk", claimed.epoch, title);
    assert_eq!(world.ask(0, &open, 3).outcome, Outcome::Done);
    let mut kept = Vec::new();
    {
        let mut io = world.endpoint.borrow_mut();
        let session = io.sessions().find(|it| it.peer.name == VMHOST).expect("connected").session;
        for bytes in [1 << 20, READ_BYTES as usize] {
            while let Ok(buffer) = io.buffer_for(session, bytes) {
                kept.push(buffer);
            }
        }
    }
    assert!(!kept.is_empty());
    let mut read = world.clients[1].request(Kind::Read, "disk", claimed.epoch, title);
    read.len_bytes = READ_BYTES;
    let (now_ns, head) = (world.now_ns, read.encode());
    let read = world.clients[1].call(now_ns, 0, 0, head.as_bytes()).expect("room");
    world.rounds(3);
    let flush = world.clients[1].request(Kind::Flush, "disk", claimed.epoch, title);
    assert_eq!(world.ask(0, &flush, 10).outcome, Outcome::Done);
    assert!(!world.clients[1].replies.0.contains_key(&read), "there is no buffer for it");
    for buffer in kept {
        world.endpoint.borrow_mut().pool_mut().release(buffer);
    }
    world.rounds(10);
    let answered = world.clients[1].replies.0.remove(&read).expect("it is answered now");
    assert_eq!(answered.outcome, Outcome::Done);
}
