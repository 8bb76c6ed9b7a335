//! One sidecore's part in networks across nodes: it gets the frames and calls of the sidecore's
//! sessions.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use peer::{PeerId, PlaneId, PlaneQuota, Planes, Token};
use sidecore::{Poll, Progress, Services, Wake};
use transport::{BufId, CallId, Endpoint, LostReason, PeerInfo, SessionId};

use super::cable::{Cable, CableCore};
use super::client::{Clients, LateGrant, WantedNetwork};
use super::members::Members;
use super::port::CablePort;
use super::server::{JoinGate, MemberFlow, NetServer};
use super::wire::{NetCallKind, NetRequest};
use crate::port::{Port, PortCounters};

/// The cables by session and flow. Sessions are few and in order, so a frame finds its cable
/// without a search through a table of hashes.
#[derive(Default)]
struct Sorter(Vec<(SessionId, Flows)>);

/// By flow.
type Flows = Vec<Option<Rc<RefCell<Cable>>>>;

impl Sorter {
    fn find(&self, session: SessionId, flow: u16) -> Option<&Rc<RefCell<Cable>>> {
        let at = self.0.binary_search_by_key(&session, |(session, _)| *session).ok()?;
        self.0[at].1.get(usize::from(flow))?.as_ref()
    }

    fn set(&mut self, (session, flow): MemberFlow, cable: Option<Rc<RefCell<Cable>>>) {
        let at = match self.0.binary_search_by_key(&session, |(session, _)| *session) {
            Ok(at) => at,
            Err(_) if cable.is_none() => return,
            Err(at) => {
                self.0.insert(at, (session, Vec::new()));
                at
            }
        };
        let flows = &mut self.0[at].1;
        if flows.len() <= usize::from(flow) {
            flows.resize(usize::from(flow) + 1, None);
        }
        flows[usize::from(flow)] = cable;
        if flows.iter().all(Option::is_none) {
            self.0.remove(at);
        }
    }
}

/// A peer's call, which says that a membership has ended.
struct EndedCall {
    session: SessionId,
    call: CallId,
    /// `None` if the call is not in the protocol's form.
    request: Option<NetRequest>,
}

/// See the module's text. A service of its sidecore.
pub struct NetPlane {
    endpoint: Rc<RefCell<Endpoint>>,
    clients: Clients,
    server: NetServer,
    sorter: Sorter,
    /// Bodies of frames that were not taken, to be released at the next round.
    unwanted: Vec<BufId>,
    late: Vec<LateGrant>,
    /// Calls about memberships that ended, to be answered.
    ended: Vec<EndedCall>,
    /// Of the last round.
    now_ns: u64,
}

impl fmt::Debug for NetPlane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("net::Plane").field("now_ns", &self.now_ns).finish_non_exhaustive()
    }
}

impl NetPlane {
    /// Makes the plane and puts it behind the sessions of a sidecore, which is one of so many.
    /// Register it with the sidecore's services.
    pub fn new(
        planes: &mut Planes,
        sidecores: u16,
        gate: Arc<dyn JoinGate>,
        members: Arc<Members>,
        services: Services,
    ) -> Rc<RefCell<Self>> {
        let index = planes.peers().borrow().index();
        let plane = Rc::new(RefCell::new(Self {
            endpoint: Rc::clone(planes.endpoint()),
            clients: Clients::new(index, sidecores),
            server: NetServer::new(index, gate, members, services),
            sorter: Sorter::default(),
            // One frame in two at most: a frame that is not taken came for a membership that ended.
            unwanted: Vec::with_capacity(1024),
            late: Vec::new(),
            ended: Vec::new(),
            now_ns: 0,
        }));
        planes.add(Rc::clone(&plane) as _);
        plane
    }

    /// Its server.
    pub fn server(&self) -> &NetServer {
        &self.server
    }

    /// Joins a network of a peer, and stays a member of it until the returned flow is
    /// [removed](Self::remove). The port is for a network here that has the nic and nothing else.
    /// The peer's client keeps the sessions to the peer, not this plane. There is no flow, and the
    /// port leads nowhere, when this sidecore has as many memberships as a session has flows.
    pub fn join(
        &mut self,
        wanted: WantedNetwork,
        core: Arc<CableCore>,
        counters: Arc<PortCounters>,
    ) -> (Option<u16>, Box<dyn Port>) {
        let cable = Cable::new(Rc::clone(&self.endpoint), core, counters);
        let cable = Rc::new(RefCell::new(cable));
        let flow = self.clients.add(wanted, &cable);
        (flow, Box::new(CablePort(cable)))
    }

    /// Leaves a network.
    pub fn remove(&mut self, now_ns: u64, flow: u16) {
        let Self { clients, sorter, endpoint, .. } = self;
        let endpoint = &mut endpoint.borrow_mut();
        clients.remove(now_ns, flow, endpoint, &mut |way, cable| sorter.set(way, cable));
    }

    /// Answers joins, and asks for what is wanted.
    pub fn poll(&mut self, now_ns: u64) -> Progress {
        self.now_ns = now_ns;
        let Self { clients, server, sorter, endpoint, .. } = self;
        let mut ways = |way: MemberFlow, cable| sorter.set(way, cable);
        let mut progress = server.poll(now_ns, endpoint, &mut ways);
        let endpoint = &mut endpoint.borrow_mut();
        for body in self.unwanted.drain(..) {
            endpoint.pool_mut().release(body);
        }
        for LateGrant { way, membership } in self.late.drain(..) {
            clients.give_back(now_ns, way, membership, endpoint);
        }
        for EndedCall { session, call, request } in self.ended.drain(..) {
            if let Some(request) = request {
                clients.ended(now_ns, session, &request, &mut ways);
            }
            // On a session that is gone, the answer goes nowhere.
            let _ = endpoint.reply(now_ns, call, &[0; 16], None);
        }
        progress |= clients.poll(now_ns, endpoint);
        progress
    }
}

impl peer::Plane for NetPlane {
    fn id(&self) -> PlaneId {
        PlaneId::Network
    }

    fn connected(&mut self, session: SessionId, _: Option<PeerId>, info: &PeerInfo) {
        if info.outgoing {
            self.clients.connected(session, info);
        } else {
            self.server.connected(session, info);
        }
    }

    fn lost(&mut self, now_ns: u64, session: SessionId, _: Option<PeerId>, why: &LostReason) {
        let Self { clients, server, sorter, .. } = self;
        let mut ways = |way: MemberFlow, cable| sorter.set(way, cable);
        clients.lost(now_ns, session, why, &mut ways);
        server.lost(session);
    }

    fn reply_body(&mut self, _: SessionId, _: Token, _: usize, _: &[u8]) {
        // No answer of this plane has a body.
    }

    fn reply(&mut self, now_ns: u64, session: SessionId, token: Token, head: &[u8], _: usize) {
        if token == super::TOKEN_UNHEARD {
            return;
        }
        let Self { clients, sorter, late, .. } = self;
        let mut ways = |way: MemberFlow, cable| sorter.set(way, cable);
        clients.reply(now_ns, session, token, head, late, &mut ways);
    }

    fn call(
        &mut self,
        session: SessionId,
        _: u16,
        call: CallId,
        head: &[u8],
        body: Option<(BufId, usize)>,
    ) {
        if head.first() == Some(&(NetCallKind::Ended as u8)) {
            let request = NetRequest::decode(head, &[]).ok().map(|(request, _)| request);
            self.ended.push(EndedCall { session, call, request });
            self.unwanted.extend(body.map(|(buffer, _)| buffer));
        } else {
            self.server.called(session, call, head, body);
        }
    }

    fn cast(&mut self, session: SessionId, flow: u16, head: &[u8], body: Option<(BufId, usize)>) {
        let unwanted = match self.sorter.find(session, flow) {
            Some(cable) => cable.borrow_mut().arrived(head, body).flatten(),
            None => body.map(|(buffer, _)| buffer),
        };
        self.unwanted.extend(unwanted);
    }

    fn paused(&mut self) {}

    fn fears_pauses(&self) -> bool {
        false
    }

    fn is_waiting(&self) -> bool {
        false
    }

    fn quotas(&self) -> Vec<PlaneQuota> {
        Vec::new()
    }
}

/// Of the serving stage, before the networks.
impl Poll for NetPlane {
    fn label(&self) -> String {
        "peers' frames".to_owned()
    }

    fn poll(&mut self, now_ns: u64) -> Progress {
        self.poll(now_ns)
    }

    fn arm(&mut self, wake: &mut Wake) -> Progress {
        if let Some(at_ns) = self.clients.next_ns() {
            wake.at(at_ns);
        }
        let is_idle = self.server.is_idle()
            && self.unwanted.is_empty()
            && self.late.is_empty()
            && self.ended.is_empty();
        Progress::busy_if(!is_idle)
    }
}
