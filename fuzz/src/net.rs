//! Endpoints joined by memory: the datagrams of each are taken out and put into the other by hand.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use transport::{
    BufId, CallId, Endpoint, EndpointConfig, Keyring, KnownKey, LostReason, PeerInfo, SecretKey,
    Security, SessionId, SessionState, Sink, TransmitBatch,
};

pub(crate) const MS: u64 = 1_000_000;
/// The time at which a run begins. It is not zero, as a real clock never is.
pub(crate) const START_NS: u64 = 1000 * MS;

/// Buffers of each endpoint. A hostile peer gets a quarter.
const POOL_BYTES_MAX: usize = 32 << 20;
/// A limit far above the tables of these few sessions.
const STATE_BYTES_MAX: usize = 16 << 20;

pub(crate) fn addr(number: u8) -> SocketAddr {
    (Ipv4Addr::new(10, 0, 0, number), 4870).into()
}

/// The events of an endpoint.
#[derive(Default)]
pub(crate) struct Notes {
    pub(crate) sessions: Vec<SessionId>,
    pub(crate) lost: usize,
    pub(crate) calls: Vec<NetCalled>,
    pub(crate) casts: Vec<NetCast>,
    /// Tokens of the replies that came, with their bodies' lengths.
    pub(crate) replies: Vec<(u64, usize)>,
    /// The heads of replies that no check has read, by token.
    pub(crate) heads: HashMap<u64, Vec<u8>>,
    /// Bytes of bodies that an honest node sends, and other bytes.
    pub(crate) honest_bytes: usize,
    pub(crate) odd_bytes: usize,
}

/// A call that waits for its answer.
pub(crate) struct NetCalled {
    pub(crate) session: SessionId,
    pub(crate) call: CallId,
    pub(crate) head: Vec<u8>,
    pub(crate) body: Option<(BufId, usize)>,
}

/// A cast that arrived.
pub(crate) struct NetCast {
    pub(crate) session: SessionId,
    pub(crate) flow: u16,
    pub(crate) head: Vec<u8>,
    pub(crate) body: Option<(BufId, usize)>,
}

/// The byte that fills the bodies of honest nodes.
pub(crate) const HONEST: u8 = 0x5a;

impl Sink for Notes {
    fn connected(&mut self, session: SessionId, _peer: &PeerInfo) {
        self.sessions.push(session);
    }

    fn lost(&mut self, session: SessionId, why: &LostReason) {
        assert!(!why.to_string().is_empty());
        self.sessions.retain(|&known| known != session);
        self.lost += 1;
    }

    fn reply_body(&mut self, _session: SessionId, _token: u64, _offset: usize, bytes: &[u8]) {
        let honest = bytes.iter().filter(|&&byte| byte == HONEST).count();
        self.honest_bytes += honest;
        self.odd_bytes += bytes.len() - honest;
    }

    fn reply(&mut self, _session: SessionId, token: u64, head: &[u8], body_bytes: usize) {
        self.replies.push((token, body_bytes));
        assert!(self.heads.insert(token, head.to_vec()).is_none(), "{token} answered twice");
    }

    fn call(
        &mut self,
        session: SessionId,
        _flow: u16,
        call: CallId,
        head: &[u8],
        body: Option<(BufId, usize)>,
    ) {
        assert!(head.len() <= transport::HEAD_MAX);
        self.calls.push(NetCalled { session, call, head: head.to_vec(), body });
    }

    fn cast(&mut self, session: SessionId, flow: u16, head: &[u8], body: Option<(BufId, usize)>) {
        self.casts.push(NetCast { session, flow, head: head.to_vec(), body });
    }
}

/// An endpoint with its address and its events.
pub(crate) struct NetNode {
    pub(crate) endpoint: Endpoint,
    pub(crate) notes: Notes,
    pub(crate) addr: SocketAddr,
    /// The byte that fills its bodies.
    pub(crate) fill: u8,
    batch: TransmitBatch,
}

impl NetNode {
    pub(crate) fn new(name: &str, number: u8) -> Self {
        Self::with(config(name, number), number)
    }

    pub(crate) fn with(config: EndpointConfig, number: u8) -> Self {
        Self {
            endpoint: Endpoint::new(config),
            notes: Notes::default(),
            addr: addr(number),
            fill: HONEST,
            batch: TransmitBatch::new(64),
        }
    }

    pub(crate) fn receive(&mut self, now_ns: u64, from: SocketAddr, bytes: &[u8]) {
        let before = self.endpoint.counters().clone();
        self.endpoint.receive(now_ns, now_ns, from, bytes, &mut self.notes);
        let after = self.endpoint.counters();
        assert_eq!(after.datagrams_received, before.datagrams_received + 1);
        assert!(after.dropped() <= before.dropped() + 1, "dropped twice");
    }

    /// All datagrams that it sends at this instant, up to a bound.
    pub(crate) fn transmit(&mut self, now_ns: u64) -> Vec<(SocketAddr, Vec<u8>)> {
        self.endpoint.advance(now_ns, &mut self.notes);
        let mut sent = Vec::new();
        for _ in 0..16 {
            self.endpoint.transmit(now_ns, &mut self.batch);
            if self.batch.is_empty() {
                break;
            }
            for datagram in self.batch.datagrams() {
                let mut bytes = datagram.head().to_vec();
                bytes.extend_from_slice(datagram.body(self.endpoint.pool()));
                assert_eq!(bytes.len(), datagram.len_bytes());
                sent.push((datagram.to(), bytes));
            }
            self.batch.consume(self.batch.len());
        }
        sent
    }

    /// Makes a call with a body of so many bytes; `false` when there is no room.
    pub(crate) fn call(
        &mut self,
        now_ns: u64,
        session: SessionId,
        (flow, token): (u16, u64),
        head: &[u8],
        body_bytes: usize,
    ) -> bool {
        let Some(body) = self.body(body_bytes) else { return false };
        let taken = self.endpoint.call(now_ns, session, flow, token, head, body).is_ok();
        self.release(body);
        taken
    }

    /// Casts a body of so many bytes; `false` when there is no room.
    pub(crate) fn cast(
        &mut self,
        now_ns: u64,
        session: SessionId,
        flow: u16,
        head: &[u8],
        body_bytes: usize,
    ) -> bool {
        let Some(body) = self.body(body_bytes) else { return false };
        let taken = self.endpoint.cast(now_ns, session, flow, head, body).is_ok();
        self.release(body);
        taken
    }

    /// Answers the call at this place of the events.
    pub(crate) fn answer(&mut self, now_ns: u64, at: usize, body_bytes: usize) {
        self.answer_with(now_ns, at, &[HONEST; 8], body_bytes);
    }

    /// Answers the call at this place of the events, with this head.
    pub(crate) fn answer_with(&mut self, now_ns: u64, at: usize, head: &[u8], body_bytes: usize) {
        let called = self.notes.calls.swap_remove(at);
        let body = self.body(body_bytes).flatten();
        let answered = self.endpoint.reply(now_ns, called.call, head, body);
        let is_open = self.notes.sessions.contains(&called.session);
        assert_eq!(answered.is_ok(), is_open, "{answered:?}");
        self.release(body);
        self.release(called.body);
    }

    /// A filled buffer; an empty answer for no bytes; `None` when the pool is empty.
    fn body(&mut self, bytes: usize) -> Option<Option<(BufId, usize)>> {
        if bytes == 0 {
            return Some(None);
        }
        let buffer = self.endpoint.pool_mut().alloc(bytes)?;
        self.endpoint.pool_mut().bytes_mut(buffer)[..bytes].fill(self.fill);
        Some(Some((buffer, bytes)))
    }

    fn release(&mut self, body: Option<(BufId, usize)>) {
        if let Some((buffer, _)) = body {
            self.endpoint.pool_mut().release(buffer);
        }
    }

    /// Checks the conditions that hold at any time.
    pub(crate) fn check(&self) {
        assert!(self.endpoint.pool().resident_bytes() <= POOL_BYTES_MAX);
        let state_bytes: usize = self.endpoint.sessions().map(|status| status.state_bytes).sum();
        assert!(state_bytes <= STATE_BYTES_MAX, "{state_bytes} bytes of state");
        let connected = |status: &transport::SessionStatus| status.state == SessionState::Connected;
        let connected = self.endpoint.sessions().filter(connected).count();
        assert_eq!(connected, self.notes.sessions.len());
    }

    /// Closes everything: no buffer may be left.
    pub(crate) fn end(mut self, now_ns: u64) {
        for called in std::mem::take(&mut self.notes.calls) {
            self.release(called.body);
        }
        for cast in std::mem::take(&mut self.notes.casts) {
            self.release(cast.body);
        }
        let sessions: Vec<_> = self.endpoint.sessions().map(|status| status.session).collect();
        sessions.iter().for_each(|&session| self.endpoint.close(now_ns, session));
        self.transmit(now_ns);
        self.transmit(now_ns);
        assert_eq!(self.endpoint.pool().in_use(), 0, "buffers are left behind");
        assert_eq!(self.endpoint.sessions().count(), 0);
        assert_eq!(self.endpoint.next_timeout_ns(), None);
    }
}

pub(crate) fn config(name: &str, number: u8) -> EndpointConfig {
    let mut config = EndpointConfig::new(name, u64::from(number) + 1, u64::from(number) + 1);
    config.pool_bytes_max = POOL_BYTES_MAX;
    config.calls_max = 64;
    config.sessions_max = 32;
    config
}

/// The secret key of the node with this number.
fn secret(number: u8) -> SecretKey {
    SecretKey::from_bytes([number + 1; 32])
}

/// A configuration with keys, and with the keys of the nodes that are named.
pub(crate) fn sealed_config(name: &str, number: u8, known: &[(&str, u8)]) -> EndpointConfig {
    let mut keyring = Keyring::new();
    for &(peer, number) in known {
        let known = KnownKey { peer: peer.to_owned(), expires_unix_s: None };
        keyring.add(secret(number).public(), known).expect("few keys");
    }
    let mut config = config(name, number);
    config.security =
        Security::Sealed { secret: Arc::new(secret(number)), keyring: Arc::new(keyring) };
    config.entropy = [number + 1; 32];
    // Keys are replaced early.
    config.key_epoch_bits = 12;
    config
}

/// Carries the honest nodes' datagrams until they have no more, or until the time limit.
pub(crate) fn settle(nodes: &mut [&mut NetNode], now_ns: &mut u64, limit_ns: u64) {
    let end_ns = *now_ns + limit_ns;
    loop {
        let mut carried = 0;
        for at in 0..nodes.len() {
            let from = nodes[at].addr;
            for (to, bytes) in nodes[at].transmit(*now_ns) {
                carried += 1;
                if let Some(node) = nodes.iter_mut().find(|node| node.addr == to) {
                    node.receive(*now_ns, from, &bytes);
                }
            }
        }
        if carried > 0 {
            continue;
        }
        let due = nodes.iter().filter_map(|node| node.endpoint.next_timeout_ns()).min();
        match due {
            Some(at_ns) if at_ns <= end_ns => *now_ns = at_ns.max(*now_ns),
            _ => return,
        }
    }
}
