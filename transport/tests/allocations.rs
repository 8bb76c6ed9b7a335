//! Once warm, nothing on a call's way allocates: not sending, not receiving, not losing packets.
//! And a session that has little to do takes little.

#[path = "../../sidecore/tests/counting/mod.rs"]
mod counting;

use std::net::{Ipv4Addr, SocketAddr};

use std::sync::Arc;

use counting::{allocations, held_bytes};
use transport::{
    BufId, CallId, Endpoint, EndpointConfig, EndpointCounters, Keyring, KnownKey, LostReason,
    PeerInfo, SecretKey, Security, SessionId, Sink, TransmitBatch,
};

/// Calls and serves out of tables that were made before.
struct Node {
    endpoint: Endpoint,
    batch: TransmitBatch,
    notes: Notes,
    addr: SocketAddr,
}

struct Notes {
    session: Option<SessionId>,
    calls: Vec<(CallId, Option<BufId>)>,
    replies: u64,
    body_bytes: u64,
    casts: u64,
    cast_bodies: Vec<BufId>,
}

impl Sink for Notes {
    fn connected(&mut self, session: SessionId, _: &PeerInfo) {
        self.session = Some(session);
    }
    fn lost(&mut self, _: SessionId, why: &LostReason) {
        panic!("lost: {why}");
    }
    fn reply_body(&mut self, _: SessionId, _: u64, _: usize, bytes: &[u8]) {
        self.body_bytes += bytes.len() as u64;
    }
    fn reply(&mut self, _: SessionId, _: u64, _: &[u8], _: usize) {
        self.replies += 1;
    }
    fn call(&mut self, _: SessionId, _: u16, id: CallId, _: &[u8], body: Option<(BufId, usize)>) {
        self.calls.push((id, body.map(|(buffer, _)| buffer)));
    }
    fn cast(&mut self, _: SessionId, _: u16, _: &[u8], body: Option<(BufId, usize)>) {
        self.casts += 1;
        self.cast_bodies.extend(body.map(|(buffer, _)| buffer));
    }
}

const NAMES: [&str; 2] = ["caller", "server"];

fn node(index: u16, is_sealed: bool) -> Node {
    let name = |index: u16| NAMES[usize::from(index)];
    let mut config = EndpointConfig::new(name(index), index.into(), index.into());
    config.datagram_bytes_max = 8972;
    config.entropy = [1; 32];
    if is_sealed {
        let secret = |index: u16| SecretKey::from_bytes([index as u8 + 1; 32]);
        let mut keyring = Keyring::new();
        let known = KnownKey { peer: name(1 - index).to_owned(), expires_unix_s: None };
        keyring.add(secret(1 - index).public(), known).expect("room");
        let secret = Arc::new(secret(index));
        config.security = Security::Sealed { secret, keyring: Arc::new(keyring) };
    }
    Node {
        endpoint: Endpoint::new(config),
        batch: TransmitBatch::new(64),
        notes: Notes {
            session: None,
            calls: Vec::with_capacity(4096),
            replies: 0,
            body_bytes: 0,
            casts: 0,
            cast_bodies: Vec::with_capacity(4096),
        },
        addr: SocketAddr::from((Ipv4Addr::LOCALHOST, 4870 + index)),
    }
}

/// Moves datagrams from one node to the other, but for every `lose_every`-th.
fn carry(from: &mut Node, to: &mut Node, now_ns: u64, datagram: &mut Vec<u8>, sent: &mut u64) {
    loop {
        from.endpoint.transmit(now_ns, &mut from.batch);
        if from.batch.is_empty() {
            return;
        }
        for outgoing in from.batch.datagrams() {
            *sent += 1;
            if sent.is_multiple_of(97) {
                continue;
            }
            datagram.clear();
            datagram.extend_from_slice(outgoing.head());
            datagram.extend_from_slice(outgoing.body(from.endpoint.pool()));
            to.endpoint.receive(now_ns, now_ns, from.addr, datagram, &mut to.notes);
        }
        let count = from.batch.len();
        from.batch.consume(count);
    }
}

struct Pair {
    caller: Node,
    server: Node,
    now_ns: u64,
    sent: u64,
    datagram: Vec<u8>,
    reply_bytes: usize,
}

impl Pair {
    fn round(&mut self) {
        self.now_ns += 50_000;
        let now_ns = self.now_ns;
        carry(&mut self.caller, &mut self.server, now_ns, &mut self.datagram, &mut self.sent);
        self.server.endpoint.advance(now_ns, &mut self.server.notes);
        while let Some((call, body)) = self.server.notes.calls.pop() {
            let endpoint = &mut self.server.endpoint;
            let bytes = self.reply_bytes;
            let buffer = endpoint.pool_mut().alloc(bytes).expect("room");
            endpoint.reply(now_ns, call, b"reply", Some((buffer, bytes))).expect("connected");
            endpoint.pool_mut().release(buffer);
            if let Some(body) = body {
                endpoint.pool_mut().release(body);
            }
        }
        while let Some(body) = self.server.notes.cast_bodies.pop() {
            self.server.endpoint.pool_mut().release(body);
        }
        carry(&mut self.server, &mut self.caller, now_ns, &mut self.datagram, &mut self.sent);
        self.caller.endpoint.advance(now_ns, &mut self.caller.notes);
    }

    /// Makes calls of all sizes, so many at a time, and waits for all replies.
    fn exchange(&mut self, calls: u64, at_a_time: u64) {
        let session = self.caller.notes.session.expect("connected");
        let first = self.caller.notes.replies;
        let mut made = 0;
        while self.caller.notes.replies < first + calls {
            while made < calls && made - (self.caller.notes.replies - first) < at_a_time {
                let endpoint = &mut self.caller.endpoint;
                let bytes = [0, 100, 4096, 65_536, 300_000, 1 << 20][made as usize % 6];
                let body = (bytes > 0).then(|| endpoint.pool_mut().alloc(bytes).expect("room"));
                let pair = body.map(|buffer| (buffer, bytes));
                let flow = (made % 5) as u16;
                endpoint.call(self.now_ns, session, flow, made, b"call", pair).expect("room");
                if let Some(buffer) = body {
                    endpoint.pool_mut().release(buffer);
                }
                made += 1;
            }
            self.round();
        }
    }
}

impl Pair {
    /// Casts frames of all sizes by three flows, a few each round.
    fn cast(&mut self, casts: u64) {
        let session = self.caller.notes.session.expect("connected");
        for number in 0..casts {
            let mut endpoint = &mut self.caller.endpoint;
            let bytes = [0, 1500, 65_000, 300, 9000][number as usize % 5];
            let body = (bytes > 0).then(|| endpoint.pool_mut().alloc(bytes).expect("room"));
            let pair = body.map(|buffer| (buffer, bytes));
            let flow = (number % 3) as u16;
            // Where there is no room there will be some.
            while endpoint.cast(self.now_ns, session, flow, b"frame", pair).is_err() {
                self.round();
                endpoint = &mut self.caller.endpoint;
            }
            if let Some(buffer) = body {
                endpoint.pool_mut().release(buffer);
            }
        }
        while self.caller.endpoint.counters().casts_sent > self.server.notes.casts {
            assert_eq!(self.caller.endpoint.counters().casts_given_up, 0);
            self.round();
        }
    }
}

#[test]
fn casts_of_a_warm_session_do_not_allocate() {
    for is_sealed in [false, true] {
        let mut pair = pair(is_sealed);
        let session = pair.server.notes.session.expect("connected");
        (0..3).for_each(|flow| pair.server.endpoint.open_casts(session, flow));
        pair.cast(3000);
        let before = allocations();
        let resent = pair.caller.endpoint.counters().fragments_resent;
        pair.cast(3000);
        assert_eq!(allocations() - before, 0, "allocations in 3000 casts");
        assert!(pair.caller.endpoint.counters().fragments_resent > resent, "some were sent again");
    }
}

#[test]
fn a_warm_session_does_not_allocate() {
    exchange_without_allocations(false);
}

#[test]
fn a_warm_sealed_session_does_not_allocate() {
    let counters = exchange_without_allocations(true);
    assert!(counters.bytes_sealed > 100 << 20 && counters.bytes_opened > 100 << 20);
    assert_eq!(counters.bytes_checksummed, 0, "the seal is the checksum");
}

/// Two nodes with a session.
fn pair(is_sealed: bool) -> Pair {
    let (caller, server) = (node(0, is_sealed), node(1, is_sealed));
    let datagram = Vec::with_capacity(1 << 16);
    let mut pair = Pair { caller, server, now_ns: 1, sent: 0, datagram, reply_bytes: 60_000 };
    pair.caller.endpoint.connect(1, pair.server.addr, NAMES[1], 0);
    while pair.caller.notes.session.is_none() || pair.server.notes.session.is_none() {
        pair.round();
    }
    pair
}

fn exchange_without_allocations(is_sealed: bool) -> EndpointCounters {
    let mut pair = pair(is_sealed);
    // More at a time than later: the pool and the tables grow to the most that was ever needed.
    pair.exchange(3000, 24);
    let before = allocations();
    assert!(before > 0, "the count works");
    let lost = pair.caller.endpoint.counters().packets_lost;
    pair.exchange(3000, 8);
    assert_eq!(allocations() - before, 0, "allocations in 3000 calls");
    assert!(pair.caller.endpoint.counters().packets_lost > lost, "some packets were lost");
    pair.caller.endpoint.counters().clone()
}

/// Sessions whose bytes are counted.
const SESSIONS: u16 = 63;

/// The memory that a session may have: when it is new; after 1 MiB each way, some of it sent twice;
/// and after seconds without messages. With its part of the endpoint's tables, but without the
/// cipher library's state of two keys.
const NEW_BYTES: i64 = 3 << 10;
const USED_BYTES: i64 = 6 << 10;
const IDLE_BYTES: i64 = 5 << 10;

impl Pair {
    fn until(&mut self, is: impl Fn(&Self) -> bool) {
        for _ in 0..10_000 {
            if is(self) {
                return;
            }
            self.round();
        }
        panic!("it does not come to be");
    }

    fn connect_another(&mut self, index: u16) -> SessionId {
        let addr = self.server.addr;
        let session = self.caller.endpoint.connect(self.now_ns, addr, NAMES[1], index);
        self.until(|pair| pair.caller.notes.session == Some(session));
        session
    }

    /// 1 MiB each way.
    fn exchange_by(&mut self, session: SessionId) {
        let endpoint = &mut self.caller.endpoint;
        let buffer = endpoint.pool_mut().alloc(1 << 20).expect("room");
        endpoint.call(self.now_ns, session, 255, 1, b"call", Some((buffer, 1 << 20))).expect("up");
        endpoint.pool_mut().release(buffer);
        let replies = self.caller.notes.replies + 1;
        self.until(|pair| pair.caller.notes.replies == replies);
    }
}

#[test]
fn a_session_that_has_little_to_do_takes_little() {
    for is_sealed in [false, true] {
        let mut pair = pair(is_sealed);
        pair.reply_bytes = 1 << 20;
        // The buffers, which all sessions share.
        let first = pair.caller.notes.session.expect("connected");
        pair.exchange_by(first);
        let before = held_bytes();
        // Of both ends, which are in this thread.
        let each = |bytes: i64| (bytes - before) / (2 * i64::from(SESSIONS));
        let sessions: Vec<_> = (1..=SESSIONS).map(|index| pair.connect_another(index)).collect();
        let new_bytes = each(held_bytes());
        sessions.iter().for_each(|session| pair.exchange_by(*session));
        let used_bytes = each(held_bytes());
        let told = |node: &Node| node.endpoint.sessions().map(|it| it.state_bytes).sum::<usize>();
        let told_bytes = (told(&pair.caller) + told(&pair.server)) as i64 / 2 / 64;
        let lost = pair.caller.endpoint.counters().packets_lost;
        // No more than so long at once, or it looks like a pause.
        (0..100).for_each(|_| {
            pair.now_ns += 100_000_000;
            pair.round();
        });
        let idle_bytes = each(held_bytes());
        println!("sealed {is_sealed}: {new_bytes} {used_bytes} {told_bytes} {idle_bytes}");
        assert!(lost > 0, "some packets were lost");
        assert!(new_bytes <= NEW_BYTES, "{new_bytes} bytes of a new one");
        assert!(used_bytes <= USED_BYTES, "{used_bytes} bytes of one that was used");
        assert!(idle_bytes <= IDLE_BYTES, "{idle_bytes} bytes of an idle one");
        assert!(idle_bytes < used_bytes, "{used_bytes} bytes, {idle_bytes} after a rest");
        assert!(told_bytes * 10 >= used_bytes * 9, "{told_bytes} bytes told of {used_bytes}");
        // It goes on.
        sessions.iter().for_each(|session| pair.exchange_by(*session));
    }
}

impl Pair {
    /// So many calls at once, whose replies are long.
    fn burst(&mut self, calls: u64) {
        let session = self.caller.notes.session.expect("connected");
        let replies = self.caller.notes.replies + calls;
        for token in 0..calls {
            let now_ns = self.now_ns;
            self.caller.endpoint.call(now_ns, session, 1, token, b"call", None).expect("room");
        }
        self.until(|pair| pair.caller.notes.replies == replies);
    }

    /// Seconds in which nothing is said, by steps that do not look like a pause.
    fn pass(&mut self) {
        (0..100).for_each(|_| {
            self.now_ns += 100_000_000;
            self.round();
        });
    }

    /// The memory of the session, as both nodes report it.
    fn state_bytes(&self) -> [usize; 2] {
        [&self.caller, &self.server]
            .map(|node| node.endpoint.sessions().map(|session| session.state_bytes).sum())
    }
}

/// The memory that a session may have after it once had many calls outstanding: eight bytes for
/// each of them.
const RESTED_BYTES: usize = IDLE_BYTES as usize + 8 * BURST as usize;
/// Calls of a burst.
const BURST: u64 = 256;

#[test]
fn after_a_burst_and_a_rest_a_call_makes_tables_for_itself_only() {
    let mut pair = pair(false);
    let is_small = |pair: &Pair, limit| pair.state_bytes().into_iter().all(|it| it < limit);
    for round in 0..3 {
        pair.burst(BURST);
        assert!(!is_small(&pair, 2 * RESTED_BYTES), "{:?}", pair.state_bytes());
        pair.pass();
        assert!(is_small(&pair, RESTED_BYTES), "{round}: {:?} idle", pair.state_bytes());
        pair.burst(1);
        pair.pass();
        let before = allocations();
        pair.burst(1);
        let made = allocations() - before;
        assert!(made < 40, "{made} allocations for a call after a rest");
        assert!(is_small(&pair, RESTED_BYTES), "{round}: {:?} busy", pair.state_bytes());
    }
}
