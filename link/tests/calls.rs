//! Two endpoints that talk through their drivers, real sockets and a clock of our own: how many
//! system calls it takes, and what faults on the way cost.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use link::{Driver, Faults, Faulty, Link, LinkCounters, Udp, UdpConfig};
use sidecore::{Local, Services};
use transport::{BufId, CallId, Endpoint, EndpointConfig, LostReason, PeerInfo, SessionId, Sink};

/// Simulated time from round to round.
const ROUND_NS: u64 = 20_000;

/// Far more rounds than any of the tests needs.
const ROUNDS_MAX: u64 = 2_000_000;

/// Notes what happened.
#[derive(Default)]
struct Notes {
    connected: Option<SessionId>,
    calls: Vec<(CallId, Option<(BufId, usize)>)>,
    bodies: HashMap<u64, Vec<u8>>,
    replied: Vec<u64>,
}

impl Sink for Notes {
    fn connected(&mut self, session: SessionId, _peer: &PeerInfo) {
        self.connected = Some(session);
    }

    fn lost(&mut self, _session: SessionId, why: &LostReason) {
        panic!("the session is lost: {why}");
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
struct Side {
    local: Local,
    endpoint: Rc<RefCell<Endpoint>>,
    notes: Rc<RefCell<Notes>>,
    counters: Arc<LinkCounters>,
    addr: SocketAddr,
}

impl Side {
    fn new(name: &str, faults: Option<Faults>) -> Self {
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let config = UdpConfig { datagram_bytes_max: Some(1472), ..UdpConfig::new(listen) };
        let udp = Udp::bind(config).expect("loopback");
        let (addr, counters) = (udp.local_addr(), Arc::clone(udp.counters()));
        let seed = name.len() as u64;
        let endpoint = EndpointConfig {
            datagram_bytes_max: udp.datagram_max(),
            receive_window_bytes: udp.receive_buffer_bytes() as u32 / 2,
            ..EndpointConfig::new(name, seed, seed)
        };
        let endpoint = Rc::new(RefCell::new(Endpoint::new(endpoint)));
        let link: Rc<RefCell<dyn Link>> = match faults {
            Some(faults) => Rc::new(RefCell::new(Faulty::new(udp, faults))),
            None => Rc::new(RefCell::new(udp)),
        };
        let notes = Rc::new(RefCell::new(Notes::default()));
        let mut local = Local::detached(0, Services::new());
        let sink = Rc::clone(&notes);
        Driver::install(&mut local, link, Rc::clone(&endpoint), sink);
        Self { local, endpoint, notes, counters, addr }
    }

    /// Answers every call that has arrived with its own body.
    fn echo(&self, now_ns: u64) {
        let mut endpoint = self.endpoint.borrow_mut();
        for (call, body) in self.notes.borrow_mut().calls.drain(..) {
            endpoint.reply(now_ns, call, b"echo", body).expect("the session lives");
            if let Some((id, _)) = body {
                endpoint.pool_mut().release(id);
            }
        }
    }
}

struct Pair {
    client: Side,
    server: Side,
    now_ns: u64,
    rounds: u64,
}

impl Pair {
    fn connected(faults: Option<Faults>) -> (Self, SessionId) {
        let (client, server) = (Side::new("vm1", faults), Side::new("io-1", faults));
        client.endpoint.borrow_mut().connect(0, server.addr, "io-1", 0);
        let mut pair = Self { client, server, now_ns: 0, rounds: 0 };
        let notes = Rc::clone(&pair.client.notes);
        pair.run_until(|| notes.borrow().connected.is_some());
        let session = notes.borrow().connected.unwrap();
        (pair, session)
    }

    fn run_until(&mut self, done: impl Fn() -> bool) {
        let before = self.rounds;
        while !done() {
            self.now_ns += ROUND_NS;
            self.rounds += 1;
            assert!(self.rounds - before < ROUNDS_MAX, "it does not end");
            let _ = self.client.local.round(self.now_ns);
            let _ = self.server.local.round(self.now_ns);
            self.server.echo(self.now_ns);
        }
    }

    /// Calls with a body of `len` bytes that only `token` has.
    fn call(&self, session: SessionId, token: u64, len: usize) {
        let mut endpoint = self.client.endpoint.borrow_mut();
        let id = endpoint.pool_mut().alloc(len).expect("room in the pool");
        endpoint.pool_mut().bytes_mut(id).copy_from_slice(&pattern(token, len));
        let (now_ns, body) = (self.now_ns, Some((id, len)));
        endpoint.call(now_ns, session, 0, token, b"call", body).expect("room for the call");
        endpoint.pool_mut().release(id);
    }

    fn run_until_replied(&mut self, count: usize) {
        let notes = Rc::clone(&self.client.notes);
        self.run_until(|| notes.borrow().replied.len() == count);
    }
}

fn pattern(token: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(token + 7) >> 3) as u8).collect()
}

#[test]
fn a_mebibyte_each_way_takes_one_call_a_round_and_few_trips_through_the_stack() {
    let (mut pair, session) = Pair::connected(None);
    let len = 1 << 20;
    pair.call(session, 1, len);
    pair.run_until_replied(1);
    assert!(pair.client.notes.borrow().bodies[&1] == pattern(1, len));
    for side in [&pair.client, &pair.server] {
        let counters = &side.counters;
        assert_eq!(counters.receive_calls.get(), pair.rounds, "one receiving call a round");
        assert!(counters.send_calls.get() <= pair.rounds, "at most one sending call a round");
        assert_eq!(counters.send_dropped.get() + counters.errors_other.get(), 0);
        let (datagrams, messages) = (counters.datagrams_sent.get(), counters.send_messages.get());
        println!("{counters:?}");
        assert!(datagrams >= 720, "{counters:?}");
        if counters.receive_groups.get() == 0 {
            println!("SKIP few_trips_through_the_stack: this kernel does not group datagrams");
        } else {
            assert!(messages * 4 < datagrams, "{messages} messages for {datagrams} datagrams");
        }
    }
}

#[test]
fn a_small_call_is_one_datagram_each_way_plus_acknowledgements() {
    let (mut pair, session) = Pair::connected(None);
    let before = pair.client.counters.datagrams_sent.get();
    for token in 0..100 {
        pair.call(session, token, 512);
        pair.run_until_replied(token as usize + 1);
    }
    let sent = pair.client.counters.datagrams_sent.get() - before;
    println!("{sent} datagrams for 100 calls");
    assert!((100..=220).contains(&sent), "{sent} datagrams for 100 calls");
}

#[test]
fn faults_on_both_ends_cost_time_but_no_byte() {
    let faults = Faults {
        seed: 11,
        loss_percent: 3.0,
        duplication_percent: 3.0,
        reordering_percent: 3.0,
        corruption_percent: 3.0,
        delay_percent: 3.0,
        delay_ns_max: 2_000_000,
    };
    let (mut pair, session) = Pair::connected(Some(faults));
    let len = |token: u64| [100, 4096, 65_536, 300_000][token as usize % 4];
    for token in 0..40 {
        pair.call(session, token, len(token));
    }
    pair.run_until_replied(40);
    let notes = pair.client.notes.borrow();
    for token in 0..40 {
        assert!(notes.bodies[&token] == pattern(token, len(token)), "call {token}");
    }
    let mut replied = notes.replied.clone();
    replied.sort_unstable();
    assert_eq!(replied, (0..40).collect::<Vec<_>>(), "each once");
}
