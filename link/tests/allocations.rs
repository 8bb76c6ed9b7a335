//! A warm endpoint with its driver does not allocate: the whole way of a call and its reply.

#[path = "../../sidecore/tests/counting/mod.rs"]
mod counting;

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use counting::allocations;
use link::{Driver, Link, Udp, UdpConfig};
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

fn side(name: &str) -> (Side, SocketAddr) {
    let udp = Udp::bind(UdpConfig::new(SocketAddr::from(([127, 0, 0, 1], 0)))).expect("loopback");
    let addr = udp.local_addr();
    let config = EndpointConfig::new(name, 1, name.len() as u64);
    let endpoint = Rc::new(RefCell::new(Endpoint::new(config)));
    let notes = Rc::new(RefCell::new(Notes::default()));
    let mut local = Local::detached(0, Services::new());
    let (link, sink) = (Rc::new(RefCell::new(udp)), Rc::clone(&notes));
    Driver::install(&mut local, link, Rc::clone(&endpoint), sink);
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

#[test]
fn a_warm_session_does_not_allocate() {
    let (mut client, _) = side("vm1");
    let (mut server, addr) = side("io-1");
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
