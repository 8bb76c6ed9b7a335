//! The plane of blocks on one sidecore.
//!
//! Both halves live here because a session carries both: calls of peers for the volumes that this
//! node exports ([`crate::server`]), and answers for the volumes of peers that its disks use
//! ([`crate::remote`]).

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use peer::{PeerId, PlaneId, PlaneQuota, Planes, Token};
use sidecore::{Poll, Progress, Services, Wake};
use transport::{BufId, CallId, Endpoint, LostReason, PeerInfo, SessionId};

use crate::export::Exports;
use crate::remote::clients::Clients;
use crate::server::{ServedPeer, Server};

/// One sidecore's block plane: a service of that sidecore, and a poller of its serving stage,
/// before the disks.
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
    /// Makes the plane and puts it behind the sidecore's sessions. Register it with the sidecore's
    /// services.
    pub fn new(
        planes: &mut Planes,
        exports: Arc<Exports>,
        services: Services,
    ) -> Rc<RefCell<Self>> {
        let plane = Rc::new(RefCell::new(Self {
            endpoint: Rc::clone(planes.endpoint()),
            clients: Clients::new(Rc::clone(planes.peers())),
            server: Server::new(exports, services),
            now_ns: 0,
        }));
        planes.add(Rc::clone(&plane) as _);
        plane
    }

    /// Serves calls, and asks for descriptions.
    pub fn poll(&mut self, now_ns: u64) -> Progress {
        self.now_ns = now_ns;
        let mut endpoint = self.endpoint.borrow_mut();
        let progress = self.server.poll(now_ns, &mut endpoint);
        for (session, request) in self.server.take_heard() {
            let names = request.names.expect("decoded with its kind");
            self.clients.changed(now_ns, session, &names.volume);
        }
        progress | self.clients.poll(now_ns, &mut endpoint)
    }
}

impl peer::Plane for Plane {
    fn id(&self) -> PlaneId {
        PlaneId::Block
    }

    fn connected(&mut self, session: SessionId, peer: Option<PeerId>, info: &PeerInfo) {
        if !info.outgoing {
            self.server.connected(session, info);
        } else if let Some(peer) = peer {
            self.clients.connected(peer);
        }
    }

    fn lost(&mut self, now_ns: u64, session: SessionId, peer: Option<PeerId>, why: &LostReason) {
        if let Some(peer) = peer {
            self.clients.lost(session, peer, why);
        }
        self.server.lost(now_ns, session);
    }

    fn reply_body(&mut self, session: SessionId, token: Token, offset: usize, bytes: &[u8]) {
        self.clients.reply_body(session, token, offset, bytes);
    }

    fn reply(
        &mut self,
        now_ns: u64,
        session: SessionId,
        token: Token,
        head: &[u8],
        body_bytes: usize,
    ) {
        self.clients.reply(now_ns, session, token, head, body_bytes);
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

    fn cast(&mut self, _: SessionId, _: u16, _: &[u8], _: Option<(BufId, usize)>) {
        unreachable!("this plane has no flows of casts");
    }

    fn paused(&mut self) {
        self.clients.paused();
    }

    fn fears_pauses(&self) -> bool {
        self.clients.holds_any()
    }

    fn is_waiting(&self) -> bool {
        self.clients.is_waiting()
    }

    fn quotas(&self) -> Vec<PlaneQuota> {
        let parts = self.server.served(self.now_ns).flat_map(|served| {
            let ServedPeer { peer, channels, claims, opens, proofs } = served;
            [("channels", channels), ("claims", claims), ("opens", opens), ("proofs", proofs)]
                .map(|(resource, part)| PlaneQuota { peer: peer.clone(), resource, part })
        });
        parts.collect()
    }
}

impl Poll for Plane {
    fn label(&self) -> String {
        "peers' requests for volumes".to_owned()
    }

    fn poll(&mut self, now_ns: u64) -> Progress {
        self.poll(now_ns)
    }

    fn arm(&mut self, wake: &mut Wake) -> Progress {
        if let Some(at) = self.clients.next_ns() {
            wake.at(at);
        }
        self.server.arm(wake, self.now_ns)
    }

    fn disarm(&mut self) {
        self.server.disarm();
    }
}
