//! The plane of replicas on one sidecore: the messages between the members of replicated volumes.
//!
//! ```text
//!   host ──▶ routes ──▶ session ══▶ session ──▶ arrivals ──▶ door's mailbox ──▶ host
//!                ▲                                  │
//!                └────────────── answer ◀───────────┘   (taken, or refused)
//! ```
//!
//! A message is a call. The call is answered when the member's mailbox has taken the message; a
//! full mailbox leaves it unanswered, and unanswered calls are what bounds the sender. A session
//! gives each volume a number, so that a head has room for the message ([`replica::wire`]).
//!
//! Calls overtake each other: short ones are sent first, and lost ones again. The protocol puts up
//! with that, but it sends an operation that came too early only after a while, so the messages
//! about a volume are numbered, and taken in this order.
//!
//! The host of a member sends by the plane of its own sidecore. A message may come by any sidecore:
//! its session is with the peer's sidecore, and the mailbox of the
//! [door](crate::door::MemberDoor) leads to the host.

mod arrivals;
mod counters;
mod mail;
mod routes;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use parking_lot::Mutex;
use peer::{PeerId, PeerLines, PlaneId, PlaneQuota, Planes, Token};
use replica::Message;
use replica::wire::{WIRE_BODY_MAX, WIRE_HEAD_MAX, WIRE_KIND_MIN, WIRE_NAME_MAX};
use sidecore::{Poll, Progress, Wake, Waker};
use transport::{BufId, CallId, Endpoint, HEAD_MAX, LostReason, MESSAGE_MAX, PeerInfo, SessionId};

use crate::content::RangeContent;
use crate::door::MemberDoors;
use crate::form::VolumeForm;
use arrivals::Arrivals;
use routes::Routes;

pub use arrivals::WAITING_MAX;
pub use counters::ReplicaPlaneCounters;
pub use mail::PlaneMail;
pub use routes::{BYTES_UNDER_WAY_MAX, CALLS_UNDER_WAY_MAX, ReplicaRoute};

/// Volumes that a session numbers: as many as a node's configuration has objects of a kind.
pub const NUMBERED_VOLUMES_MAX: usize = 1024;

/// The answer to a call: the first byte of its head, which has no other byte.
const TAKEN: u8 = 0;
const REFUSED: u8 = 1;

const _: () = {
    assert!(WIRE_KIND_MIN == PlaneId::Replicas.kind_min());
    assert!(WIRE_HEAD_MAX <= HEAD_MAX && WIRE_BODY_MAX <= MESSAGE_MAX, "a message is one call");
    assert!(WIRE_NAME_MAX == volume::name::NAME_BYTES_MAX);
};

/// See the module's text. A service of its sidecore, and a poller of its serving stage, before the
/// hosts of members.
pub struct ReplicaPlane {
    endpoint: Rc<RefCell<Endpoint>>,
    routes: Routes,
    arrivals: Arrivals,
    counters: Arc<ReplicaPlaneCounters>,
}

impl fmt::Debug for ReplicaPlane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplicaPlane").field("counters", &self.counters).finish_non_exhaustive()
    }
}

impl ReplicaPlane {
    /// Makes the plane and puts it behind the sessions of a sidecore, which `waker` wakes. `doors`
    /// are the node's members, and `lines` bounds the lines of its log. Register the plane with the
    /// sidecore's services.
    pub fn new(
        planes: &mut Planes,
        doors: Arc<MemberDoors>,
        lines: Arc<Mutex<PeerLines>>,
        waker: Waker,
    ) -> Rc<RefCell<Self>> {
        let counters = Arc::<ReplicaPlaneCounters>::default();
        let plane = Rc::new(RefCell::new(Self {
            endpoint: Rc::clone(planes.endpoint()),
            routes: Routes::new(Rc::clone(planes.peers()), Arc::clone(&counters)),
            arrivals: Arrivals::new(doors, lines, waker, Arc::clone(&counters)),
            counters,
        }));
        planes.add(Rc::clone(&plane) as _);
        plane
    }

    /// Its counters.
    pub fn counters(&self) -> Arc<ReplicaPlaneCounters> {
        Arc::clone(&self.counters)
    }

    /// The way to a volume's member on a peer; `form` is the volume's form here. The plane keeps a
    /// session with the peer until the route is [closed](Self::close), also if the peer becomes
    /// known only later.
    ///
    /// # Panics
    /// With more than [`NUMBERED_VOLUMES_MAX`] routes to one peer; the configuration has no more
    /// volumes.
    pub fn open(&mut self, volume: &str, form: VolumeForm, peer: &str) -> ReplicaRoute {
        self.routes.open(volume, form, peer)
    }

    /// Nothing more is sent by this route.
    pub fn close(&mut self, route: ReplicaRoute) {
        self.routes.close(route);
    }

    /// Sends a message. A message without a session to go by, or for a peer that has no member of
    /// the volume, is dropped, and counted: the protocol sends again.
    ///
    /// # Errors
    /// Gives the message back when as much is under way to the peer as may be, the volume has no
    /// number in the session yet, or the sidecore has no buffer. Offer it again in a later round,
    /// before newer messages of the route.
    #[expect(clippy::result_large_err, reason = "a message that is given back is only moved")]
    pub fn send(
        &mut self,
        now_ns: u64,
        route: ReplicaRoute,
        message: Message<RangeContent>,
    ) -> Result<(), Message<RangeContent>> {
        self.routes.send(now_ns, route, message, &mut self.endpoint.borrow_mut())
    }

    /// How often a session with the route's peer ended, and the volume got a number in another
    /// session.
    /// After each change, messages that were sent before it may be lost.
    pub fn losses(&self, route: ReplicaRoute) -> u64 {
        self.routes.losses(route)
    }
}

impl peer::Plane for ReplicaPlane {
    fn id(&self) -> PlaneId {
        PlaneId::Replicas
    }

    fn connected(&mut self, session: SessionId, _: Option<PeerId>, info: &PeerInfo) {
        self.arrivals.connected(session, info);
    }

    fn lost(&mut self, _: u64, session: SessionId, peer: Option<PeerId>, _: &LostReason) {
        self.arrivals.lost(session);
        self.routes.lost(session, peer);
    }

    fn reply_body(&mut self, _: SessionId, _: Token, _: usize, _: &[u8]) {
        // No answer of this plane has a body.
    }

    fn reply(&mut self, now_ns: u64, session: SessionId, token: Token, head: &[u8], _: usize) {
        self.routes.answered(now_ns, (session, token), head == [TAKEN]);
    }

    fn call(
        &mut self,
        session: SessionId,
        flow: u16,
        call: CallId,
        head: &[u8],
        body: Option<(BufId, usize)>,
    ) {
        self.arrivals.called(session, flow, call, head, body);
    }

    fn cast(&mut self, _: SessionId, _: u16, _: &[u8], _: Option<(BufId, usize)>) {
        unreachable!("this plane has no flows of casts");
    }

    fn paused(&mut self) {}

    /// The protocol's leases count from the time at which their pings were sent.
    fn fears_pauses(&self) -> bool {
        false
    }

    fn is_waiting(&self) -> bool {
        false
    }

    fn quotas(&self) -> Vec<PlaneQuota> {
        self.arrivals.quotas()
    }
}

impl Poll for ReplicaPlane {
    fn label(&self) -> String {
        "messages of replicated volumes".to_owned()
    }

    fn poll(&mut self, now_ns: u64) -> Progress {
        let endpoint = &mut self.endpoint.borrow_mut();
        self.routes.let_go(endpoint);
        self.arrivals.poll(now_ns, endpoint)
    }

    fn arm(&mut self, wake: &mut Wake) -> Progress {
        self.routes.let_go(&mut self.endpoint.borrow_mut());
        self.arrivals.arm(wake)
    }
}
