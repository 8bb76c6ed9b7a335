//! A warm endpoint with its driver does not allocate: the whole way of a call and its reply.

#[path = "../../sidecore/tests/counting/mod.rs"]
mod counting;
mod hosts;

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use counting::allocations;
use hosts::{Hosts, bind};
use link::{Link, LinkDriver};
use sidecore::{Local, Services};
use transport::{BufId, CallId, Endpoint, EndpointConfig, LostReason, PeerInfo, SessionId, Sink};

/// Counts replies and keeps the last call.
#[derive(Default)]
struct Notes {
    connected: Option<SessionId>,
    call: Option<(CallId, Option<(BufId, usize)>)>,
    replies: u64,
}

impl Sink for Notes {
    fn connected(&mut self, session: SessionId, _: &PeerInfo) {
        self.connected = Some(session);
    }

    fn lost(&mut self, _: SessionId, why: &LostReason) {
        panic!("the session is lost: {why}");
    }

    fn reply_body(&mut self, _: SessionId, _: u64, _: usize, _: &[u8]) {}

    fn reply(&mut self, _: SessionId, _: u64, _: &[u8], _: usize) {
        self.replies += 1;
    }

    fn call(&mut self, _: SessionId, _: u16, call: CallId, _: &[u8], body: Option<(BufId, usize)>) {
        assert!(self.call.replace((call, body)).is_none(), "one call at a time");
    }
}

type Side = (Local, Rc<RefCell<Endpoint>>, Rc<RefCell<Notes>>);

fn side(name: &str, link: impl Link + 'static) -> (Side, SocketAddr) {
    let (addr, datagram_bytes_max) = (link.local_addr(), link.datagram_max());
    let config = EndpointConfig::new(name, 1, name.len() as u64);
    let config = EndpointConfig { datagram_bytes_max, ..config };
    let endpoint = Rc::new(RefCell::new(Endpoint::new(config)));
    let notes = Rc::new(RefCell::new(Notes::default()));
    let mut local = Local::detached(0, Services::new());
    let (link, sink) = (Rc::new(RefCell::new(link)), Rc::clone(&notes));
    LinkDriver::install(&mut local, link, Rc::clone(&endpoint), sink);
    ((local, endpoint, notes), addr)
}

/// One round on both sides; the server answers with the call's own body.
fn round(client: &mut Side, server: &mut Side, now_ns: u64) {
    let _ = client.0.round(now_ns);
    let _ = server.0.round(now_ns);
    let Some((call, body)) = server.2.borrow_mut().call.take() else { return };
    let mut endpoint = server.1.borrow_mut();
    endpoint.reply(now_ns, call, b"echo", body).expect("the session lives");
    if let Some((id, _)) = body {
        endpoint.pool_mut().release(id);
    }
}

/// Calls of a page and of other sizes, each answered with what it had: once everything was used,
/// none of them allocates on either side.
fn does_not_allocate_once_warm(mut client: Side, mut server: Side, addr: SocketAddr) {
    client.1.borrow_mut().connect(0, addr, "io-1", 0);
    let mut now_ns = 0;
    let mut next_ns = || {
        now_ns += 20_000;
        assert!(now_ns < 100_000_000_000, "it does not end");
        now_ns
    };
    while client.2.borrow().connected.is_none() {
        round(&mut client, &mut server, next_ns());
    }
    let session = client.2.borrow().connected.expect("just connected");
    let mut allocations_warm = 0;
    // Every slot of the message tables has been used once after 1024 calls, and the pool has grown.
    for token in 0..3_000 {
        if token == 1_500 {
            allocations_warm = allocations();
        }
        let body_bytes = [512, 4096, 65_536][token as usize % 3];
        let now_ns = next_ns();
        {
            let mut endpoint = client.1.borrow_mut();
            let id = endpoint.pool_mut().alloc(body_bytes).expect("room in the pool");
            let body = Some((id, body_bytes));
            endpoint.call(now_ns, session, 0, token, b"call", body).expect("room");
            endpoint.pool_mut().release(id);
        }
        while client.2.borrow().replies <= token {
            round(&mut client, &mut server, next_ns());
        }
    }
    assert_eq!(allocations() - allocations_warm, 0);
}

#[test]
fn a_warm_session_does_not_allocate() {
    let loopback = || bind(SocketAddr::from(([127, 0, 0, 1], 0)));
    let ((client, _), (server, addr)) = (side("vm1", loopback()), side("io-1", loopback()));
    does_not_allocate_once_warm(client, server, addr);
}

/// Neither where packets lie in one frame of AF_XDP, nor where they lie in several.
#[test]
fn a_warm_session_past_the_network_stack_does_not_allocate() {
    for (test, mtu) in [("warm", "1500"), ("warm-jumbo", "9000")] {
        let Some(hosts) = Hosts::new(test, mtu, [1, 1]) else { return };
        let [mut near, mut far] = [0, 1].map(|host| hosts.xdp(host, &hosts.attach(host), 1));
        let counters = Arc::clone(far[0].xdp_counters());
        let ((client, _), (server, addr)) =
            (side("vm1", near.remove(0)), side("io-1", far.remove(0)));
        does_not_allocate_once_warm(client, server, addr);
        let received = counters.datagrams_received.get();
        assert!(received > 3_000, "they came by the ring: {counters:?}");
        // A page and its heads are more than a frame has room for, where they are one packet.
        let (sent, copied) = (counters.datagrams_sent.get(), counters.bytes_copied.get());
        let mean_bytes = copied / (sent + received);
        assert_eq!(mean_bytes > 3_500, mtu == "9000", "{mean_bytes} bytes: {counters:?}");
    }
}
