//! Drivers on real sidecores that sleep whenever they can: arriving datagrams and the endpoint's
//! timers wake them.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::mpsc;
use std::time::Duration;

use link::{
    Callers, Faults, Faulty, Link, LinkDriver, Shm, ShmDirectory, ShmListener, Udp, UdpConfig,
};
use sidecore::{Idle, Local, Poll, Progress, RoundStage, Sidecore, SidecoreConfig, spawn};
use transport::{BufId, CallId, Endpoint, EndpointConfig, LostReason, PeerInfo, SessionId, Sink};

/// Only ever waited for in full when a wake-up was lost.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Default)]
struct Notes {
    connected: Option<SessionId>,
    calls: Vec<CallId>,
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

    fn call(&mut self, _: SessionId, _: u16, call: CallId, _: &[u8], _: Option<(BufId, usize)>) {
        self.calls.push(call);
    }
}

/// Answers calls and makes `calls_wanted` of its own, one after the other.
struct Talker {
    endpoint: Rc<RefCell<Endpoint>>,
    notes: Rc<RefCell<Notes>>,
    calls_made: u64,
    calls_wanted: u64,
    done: mpsc::Sender<()>,
}

impl Poll for Talker {
    fn poll(&mut self, now_ns: u64) -> Progress {
        let mut endpoint = self.endpoint.borrow_mut();
        let mut notes = self.notes.borrow_mut();
        let mut progress = Progress::busy_if(!notes.calls.is_empty());
        for call in notes.calls.drain(..) {
            endpoint.reply(now_ns, call, b"yes", None).expect("the session lives");
        }
        let Some(session) = notes.connected else { return progress };
        if self.calls_made == notes.replies && self.calls_made < self.calls_wanted {
            endpoint.call(now_ns, session, 0, self.calls_made, b"?", None).expect("room");
            self.calls_made += 1;
            progress = Progress::Busy;
        } else if self.calls_wanted > 0 && notes.replies == self.calls_wanted {
            self.calls_wanted = 0;
            self.done.send(()).expect("someone waits");
        }
        progress
    }
}

/// Starts a sidecore with an endpoint; `peer` is the address that it connects to, and how often it
/// calls.
fn start(
    name: &'static str,
    faults: Faults,
    peer: Option<(SocketAddr, u64)>,
    shared: (ShmDirectory, Option<Callers>),
) -> (Sidecore, SocketAddr, mpsc::Receiver<()>) {
    let udp = Udp::bind(UdpConfig::new(SocketAddr::from(([127, 0, 0, 1], 0)))).expect("loopback");
    let addr = udp.local_addr();
    let core =
        spawn(SidecoreConfig { idle: Idle::Sleep, ..SidecoreConfig::new(0) }).expect("a thread");
    let (done_in, done) = mpsc::channel();
    let build = move |local: &mut Local| {
        let mut endpoint = Endpoint::new(EndpointConfig::new(name, 1, name.len() as u64));
        if let Some((peer, _)) = peer {
            endpoint.connect(local.now_ns(), peer, "io-1", 0);
        }
        let endpoint = Rc::new(RefCell::new(endpoint));
        let notes = Rc::new(RefCell::new(Notes::default()));
        let shm = Shm::new(udp, shared.0, shared.1).expect("an epoll");
        let link = Rc::new(RefCell::new(Faulty::new(shm, faults)));
        let sink = Rc::clone(&notes);
        LinkDriver::install(local, link, Rc::clone(&endpoint), sink);
        let calls_wanted = peer.map_or(0, |(_, calls)| calls);
        let talker = Talker { endpoint, notes, calls_made: 0, calls_wanted, done: done_in };
        local.add(RoundStage::Serve, Box::new(talker));
    };
    core.call(build).expect("it runs");
    (core, addr, done)
}

fn alone() -> (ShmDirectory, Option<Callers>) {
    (ShmDirectory::default(), None)
}

/// As with sockets, but what wakes is the other side's bell.
#[test]
fn shared_memory_wakes_sleeping_sidecores() {
    let home = tempfile::tempdir().expect("a directory");
    let path = home.path().join("io1.shm");
    let (places, (_door, mut callers)) =
        (ShmDirectory::default(), ShmListener::open(&path, &[4870]).expect("a door"));
    let peer = (places.address(&path).expect("room"), 1_000);
    let (server, ..) = start("io-1", Faults::default(), None, (places.clone(), callers.pop()));
    let (client, _, done) = start("vm1", Faults::default(), Some(peer), (places, None));
    done.recv_timeout(PATIENCE).expect("all calls are answered");
    for core in [server, client] {
        core.stop();
        assert!(core.counters().wakeups.get() > 100, "{:?}", core.counters());
    }
}

#[test]
fn datagrams_wake_sleeping_sidecores() {
    let (server, addr, _) = start("io-1", Faults::default(), None, alone());
    let (client, _, done) = start("vm1", Faults::default(), Some((addr, 1_000)), alone());
    done.recv_timeout(PATIENCE).expect("all calls are answered");
    for core in [server, client] {
        core.stop();
        assert!(core.counters().wakeups.get() > 100, "{:?}", core.counters());
    }
}

/// Lost and delayed datagrams come back by timers alone: nothing else would wake a sidecore.
#[test]
fn timers_wake_sleeping_sidecores() {
    let faults = |seed| Faults {
        seed,
        loss_percent: 10.0,
        delay_percent: 20.0,
        delay_ns_max: 1_000_000,
        ..Faults::default()
    };
    let (_server, addr, _) = start("io-1", faults(1), None, alone());
    let (_client, _, done) = start("vm1", faults(2), Some((addr, 200)), alone());
    done.recv_timeout(PATIENCE).expect("all calls are answered");
}
