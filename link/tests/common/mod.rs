//! Two endpoints that talk through their drivers and real sockets, by a clock of our own.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use link::{Link, LinkCounters, LinkDriver};
use sidecore::{Local, Services};
use transport::{BufId, CallId, Endpoint, EndpointConfig, LostReason, PeerInfo, SessionId, Sink};

/// Simulated time from round to round.
pub(crate) const ROUND_NS: u64 = 20_000;

/// Far more rounds than any of the tests needs.
pub(crate) const ROUNDS_MAX: u64 = 2_000_000;

/// Notes what happened.
#[derive(Default)]
pub(crate) struct Notes {
    pub(crate) connected: Option<SessionId>,
    pub(crate) calls: Vec<(CallId, Option<(BufId, usize)>)>,
    pub(crate) bodies: HashMap<u64, Vec<u8>>,
    pub(crate) replied: Vec<u64>,
    pub(crate) may_be_lost: bool,
    pub(crate) is_lost: bool,
}

impl Sink for Notes {
    fn connected(&mut self, session: SessionId, _peer: &PeerInfo) {
        self.connected = Some(session);
    }

    fn lost(&mut self, _session: SessionId, why: &LostReason) {
        assert!(self.may_be_lost, "the session is lost: {why}");
        self.is_lost = true;
    }

    fn reply_body(&mut self, _session: SessionId, token: u64, offset_bytes: usize, bytes: &[u8]) {
        let body = self.bodies.entry(token).or_default();
        let end = offset_bytes + bytes.len();
        body.resize(end.max(body.len()), 0);
        body[offset_bytes..end].copy_from_slice(bytes);
    }

    fn reply(&mut self, _session: SessionId, token: u64, _head: &[u8], body_bytes: usize) {
        assert_eq!(self.bodies.get(&token).map_or(0, Vec::len), body_bytes);
        self.replied.push(token);
    }

    fn call(
        &mut self,
        _session: SessionId,
        _flow: u16,
        call: CallId,
        _head: &[u8],
        body: Option<(BufId, usize)>,
    ) {
        self.calls.push((call, body));
    }
}

/// A sidecore's inside with a link, an endpoint and a driver.
pub(crate) struct Side {
    pub(crate) local: Local,
    pub(crate) endpoint: Rc<RefCell<Endpoint>>,
    pub(crate) notes: Rc<RefCell<Notes>>,
    pub(crate) counters: Arc<LinkCounters>,
    pub(crate) addr: SocketAddr,
}

impl Side {
    /// `receive_buffer_bytes` is what fits into the link's socket.
    pub(crate) fn new(name: &str, receive_buffer_bytes: usize, link: impl Link + 'static) -> Self {
        let (addr, counters) = (link.local_addr(), Arc::clone(link.counters()));
        let seed = name.len() as u64;
        let endpoint = EndpointConfig {
            datagram_bytes_max: link.datagram_max(),
            receive_window_bytes: receive_buffer_bytes as u32 / 2,
            ..EndpointConfig::new(name, seed, seed)
        };
        let endpoint = Rc::new(RefCell::new(Endpoint::new(endpoint)));
        let link = Rc::new(RefCell::new(link));
        let notes = Rc::new(RefCell::new(Notes::default()));
        let mut local = Local::detached(0, Services::new());
        let sink = Rc::clone(&notes);
        LinkDriver::install(&mut local, link, Rc::clone(&endpoint), sink);
        Self { local, endpoint, notes, counters, addr }
    }

    /// Answers every call that has arrived with its own body.
    pub(crate) fn echo(&self, now_ns: u64) {
        let mut endpoint = self.endpoint.borrow_mut();
        for (call, body) in self.notes.borrow_mut().calls.drain(..) {
            endpoint.reply(now_ns, call, b"echo", body).expect("the session lives");
            if let Some((id, _)) = body {
                endpoint.pool_mut().release(id);
            }
        }
    }
}

pub(crate) struct Pair {
    pub(crate) client: Side,
    pub(crate) server: Side,
    pub(crate) now_ns: u64,
    pub(crate) rounds: u64,
}

impl Pair {
    pub(crate) fn connect(client: Side, server: Side, addr: SocketAddr) -> (Self, SessionId) {
        client.endpoint.borrow_mut().connect(0, addr, "io-1", 0);
        let mut pair = Self { client, server, now_ns: 0, rounds: 0 };
        let notes = Rc::clone(&pair.client.notes);
        pair.run_until(|| notes.borrow().connected.is_some());
        let session = notes.borrow().connected.unwrap();
        (pair, session)
    }

    pub(crate) fn run_until(&mut self, done: impl Fn() -> bool) {
        let before = self.rounds;
        while !done() {
            assert!(self.rounds - before < ROUNDS_MAX, "it does not end");
            self.round();
            self.server.echo(self.now_ns);
        }
    }

    /// One round of each side, which answers nothing.
    pub(crate) fn round(&mut self) {
        self.now_ns += ROUND_NS;
        self.rounds += 1;
        let _ = self.client.local.round(self.now_ns);
        let _ = self.server.local.round(self.now_ns);
    }

    /// Calls with a body of `len` bytes that only `token` has.
    pub(crate) fn call(&self, session: SessionId, token: u64, len: usize) {
        let mut endpoint = self.client.endpoint.borrow_mut();
        let id = endpoint.pool_mut().alloc(len).expect("room in the pool");
        endpoint.pool_mut().bytes_mut(id).copy_from_slice(&pattern(token, len));
        let (now_ns, body) = (self.now_ns, Some((id, len)));
        endpoint.call(now_ns, session, 0, token, b"call", body).expect("room for the call");
        endpoint.pool_mut().release(id);
    }

    pub(crate) fn run_until_replied(&mut self, count: usize) {
        let notes = Rc::clone(&self.client.notes);
        self.run_until(|| notes.borrow().replied.len() == count);
    }
}

pub(crate) fn pattern(token: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(token + 7) >> 3) as u8).collect()
}
