//! A driver on a sidecore's inside, round by round, over real sockets and with a clock of our own.

use std::cell::RefCell;
use std::net::UdpSocket;
use std::rc::Rc;

use link::{Faults, Faulty, Link, LinkDriver, Udp, UdpConfig};
use sidecore::{Local, Services};
use transport::{BufId, CallId, Endpoint, EndpointConfig, LostReason, PeerInfo, SessionId, Sink};

/// Notes nothing.
struct Deaf;

impl Sink for Deaf {
    fn connected(&mut self, _: SessionId, _: &PeerInfo) {}
    fn lost(&mut self, _: SessionId, _: &LostReason) {}
    fn reply_body(&mut self, _: SessionId, _: u64, _: usize, _: &[u8]) {}
    fn reply(&mut self, _: SessionId, _: u64, _: &[u8], _: usize) {}
    fn call(&mut self, _: SessionId, _: u16, _: CallId, _: &[u8], _: Option<(BufId, usize)>) {}
}

fn bind() -> Udp {
    Udp::bind(UdpConfig::new("127.0.0.1:0".parse().unwrap())).expect("loopback")
}

fn endpoint() -> Rc<RefCell<Endpoint>> {
    Rc::new(RefCell::new(Endpoint::new(EndpointConfig::new("here", 1, 2))))
}

#[test]
fn a_link_can_be_bound_on_one_thread_and_used_on_another() {
    fn movable<T: Send + 'static>(_: &T) {}
    movable(&bind());
    movable(&Faulty::new(bind(), Faults::default()));
}

#[test]
fn datagrams_reach_the_endpoint_with_one_call_a_round() {
    let mut local = Local::detached(0, Services::new());
    let link = Rc::new(RefCell::new(bind()));
    let (to, counters) = (link.borrow().local_addr(), link.borrow().counters().clone());
    let endpoint = endpoint();
    let sink = Rc::new(RefCell::new(Deaf));
    let driver = LinkDriver::install(&mut local, link, endpoint.clone(), sink);
    assert!(!local.round(0).is_busy(), "nothing has arrived");

    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    for length in [1, 100, 1400] {
        stranger.send_to(&vec![0xee; length], to).unwrap();
    }
    assert!(local.round(1_000).is_busy());
    assert_eq!(endpoint.borrow().counters().datagrams_received, 3);
    assert!(!local.round(2_000).is_busy());
    assert_eq!((counters.receive_calls.get(), counters.send_calls.get()), (3, 0));

    driver.remove(&mut local);
    stranger.send_to(b"late", to).unwrap();
    assert!(!local.round(3_000).is_busy());
    assert_eq!(counters.receive_calls.get(), 3);
}
