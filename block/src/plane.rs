//! The block plane of one sidecore: what its sessions hand their messages to.
//!
//! Both halves live here because a session carries both: calls of peers for the volumes that this
//! node exports ([`crate::server`]), and answers for the volumes of peers that its disks use
//! ([`crate::remote`]).

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use sidecore::{Poll, Progress, Services, Wake};
use transport::{BufId, CallId, Endpoint, LostReason, PeerInfo, SessionId, Sink};

use crate::export::Exports;
use crate::remote::clients::Clients;
use crate::server::{ServedPeer, Server};

/// A process that did not run for this long, while it held an epoch, may have been stopped and
/// replaced: it asks before it believes. Well above what a busy scheduler does to a thread. A
/// sidecore that holds one sleeps for half as long at most.
pub const PAUSE_SUSPECT_NS: u64 = 1_000_000_000;

/// One sidecore's block plane; a service of that sidecore, and its sessions' sink.
pub struct Plane {
    /// The sidecore's sessions.
    pub endpoint: Rc<RefCell<Endpoint>>,
    /// Volumes of peers.
    pub clients: Clients,
    /// Volumes for peers.
    pub server: Server,
    now_ns: u64,
}

impl fmt::Debug for Plane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plane").field("now_ns", &self.now_ns).finish_non_exhaustive()
    }
}

impl Plane {
    /// The plane of the sidecore with this index. Register it with the sidecore's services, its
    /// [`Watch`] before the link's receiver and its [`PlanePoll`] before the disks.
    pub fn new(
        index: u16,
        endpoint: Rc<RefCell<Endpoint>>,
        exports: Arc<Exports>,
        services: Services,
    ) -> Rc<RefCell<Self>> {
        Rc::new(RefCell::new(Self {
            endpoint,
            clients: Clients::new(index),
            server: Server::new(exports, services),
            now_ns: 0,
        }))
    }

    /// Notes the time, before anything of this round arrives.
    pub fn watch(&mut self, now_ns: u64) {
        let gap_ns = now_ns.saturating_sub(self.now_ns);
        if self.now_ns != 0 && gap_ns >= PAUSE_SUSPECT_NS {
            self.clients.paused();
        }
        self.now_ns = now_ns;
    }

    /// Serves calls and keeps sessions.
    pub fn poll(&mut self, now_ns: u64) -> Progress {
        let mut endpoint = self.endpoint.borrow_mut();
        let progress = self.server.poll(now_ns, &mut endpoint);
        for (session, request) in self.server.take_heard() {
            let names = request.names.expect("decoded with its kind");
            self.clients.changed(session, &names.volume);
        }
        progress | self.clients.poll(now_ns, &mut endpoint)
    }

    /// What each peer has of the server that is here, or was lately.
    pub fn served(&self) -> impl Iterator<Item = ServedPeer> {
        self.server.served(self.now_ns)
    }

    fn arm(&mut self, wake: &mut Wake) -> Progress {
        if let Some(at) = self.clients.next_ns() {
            wake.at(at);
        }
        // A sleep is never as long as what counts as a pause.
        if self.clients.holds_any() {
            wake.at(self.now_ns + PAUSE_SUSPECT_NS / 2);
        }
        self.server.arm(wake, self.now_ns)
    }
}

impl Sink for Plane {
    fn connected(&mut self, session: SessionId, peer: &PeerInfo) {
        if peer.outgoing {
            self.clients.connected(session, peer);
        } else {
            self.server.connected(session, peer);
        }
    }

    fn lost(&mut self, session: SessionId, why: &LostReason) {
        self.clients.lost(self.now_ns, session, why);
        self.server.lost(self.now_ns, session);
    }

    fn reply_body(&mut self, session: SessionId, token: u64, offset: usize, bytes: &[u8]) {
        self.clients.reply_body(session, token, offset, bytes);
    }

    fn reply(&mut self, session: SessionId, token: u64, head: &[u8], body_len: usize) {
        self.clients.reply(self.now_ns, session, token, head, body_len);
    }

    fn call(
        &mut self,
        session: SessionId,
        flow: u16,
        call: CallId,
        head: &[u8],
        body: Option<(BufId, usize)>,
    ) {
        self.server.called(session, flow, call, head, body);
    }
}

/// [`Plane::watch`] as a poller: first of the receiving stage.
#[derive(Debug)]
pub struct Watch(pub Rc<RefCell<Plane>>);

impl Poll for Watch {
    fn poll(&mut self, now_ns: u64) -> Progress {
        self.0.borrow_mut().watch(now_ns);
        Progress::Idle
    }

    /// A pause has to be seen before an answer that arrived meanwhile is.
    fn needs_clock(&self) -> bool {
        self.0.borrow().clients.is_waiting()
    }
}

/// [`Plane::poll`] as a poller: first of the serving stage.
#[derive(Debug)]
pub struct PlanePoll(pub Rc<RefCell<Plane>>);

impl Poll for PlanePoll {
    fn label(&self) -> String {
        "peers' requests for volumes".to_owned()
    }

    fn poll(&mut self, now_ns: u64) -> Progress {
        self.0.borrow_mut().poll(now_ns)
    }

    fn arm(&mut self, wake: &mut Wake) -> Progress {
        self.0.borrow_mut().arm(wake)
    }

    fn disarm(&mut self) {
        self.0.borrow_mut().server.disarm();
    }
}
