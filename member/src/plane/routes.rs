//! The sending half: routes to members on other nodes, and the calls that are under way.
//!
//! There is no queue here. A session's calls wait in the session, and a message for which there is
//! no room goes back to its host, which knows whether it is still worth sending.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use peer::{PeerId, Peers, PlaneId, Token, flows};
use replica::Message;
use replica::wire::{WIRE_SEQUENCE, encode, encode_name, is_name};
use transport::{BufId, CLASS_BYTES, CallError, Endpoint, SessionId, Share};

use super::NUMBERED_VOLUMES_MAX;
use super::counters::ReplicaPlaneCounters;
use crate::content::{RangeContent, content_of, from_content, to_wire};
use crate::form::VolumeForm;

/// Calls to one peer without an answer: a quarter of the calls that a session has, so that a member
/// that takes nothing leaves the other calls to disks and networks.
pub const CALLS_UNDER_WAY_MAX: u64 = 256;

/// Bytes of their buffers: the credit that a flow has at first. With more of them, calls would wait
/// in the session, where a route cannot have its part.
pub const BYTES_UNDER_WAY_MAX: u64 = 8 << 20;

/// After how long a volume is named again to a peer that has refused it: as often as the protocol
/// looks at its clocks. Until then, its messages are dropped.
const NAME_AGAIN_NS: u64 = crate::TICK_NS;

/// The way to the member of a volume on a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReplicaRoute {
    peer: usize,
    /// The volume's number in sessions with the peer.
    number: u32,
    /// Tells a route from an earlier one of the same number.
    serial: u64,
}

#[derive(Debug)]
struct OpenRoute {
    serial: u64,
    volume: String,
    form: VolumeForm,
    naming: Naming,
    /// The number of the next message.
    sequence: u16,
    losses: u64,
    /// Its parts of what is under way to the peer.
    calls: u64,
    bytes: u64,
}

/// Whether a volume has its number in a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Naming {
    /// No; it may be asked for at this time.
    No { at_ns: u64 },
    /// It was asked for in this session. Messages wait: they might overtake it.
    Asked(SessionId),
    /// Yes, in this session.
    Done(SessionId),
}

#[derive(Debug)]
struct RoutedPeer {
    /// Empty: a vacant place.
    name: String,
    /// Once the peer is known, and held.
    id: Option<PeerId>,
    /// By the volume's number.
    routes: Vec<Option<OpenRoute>>,
    calls: Share,
    bytes: Share,
}

/// A call without an answer.
#[derive(Clone, Copy, Debug)]
struct CallUnderWay {
    session: SessionId,
    route: ReplicaRoute,
    bytes: u64,
    is_name: bool,
}

/// A buffer with the content of the last message. The other backups of a volume get the same
/// content next, so there is one copy for all of them.
#[derive(Debug)]
struct CopiedContent {
    /// Keeps the content's address from being another content's.
    content: Rc<Vec<u8>>,
    buffer: BufId,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Routes {
    peers: Rc<RefCell<Peers>>,
    routed: Vec<RoutedPeer>,
    serial: u64,
    /// By the key of the call's token.
    calls: Vec<Option<CallUnderWay>>,
    /// Vacant places of `calls`.
    vacant: Vec<usize>,
    copied: Option<CopiedContent>,
    /// Of the message that is sent.
    head: Vec<u8>,
    list: Vec<u8>,
    counters: Arc<ReplicaPlaneCounters>,
}

impl Routes {
    pub(super) fn new(peers: Rc<RefCell<Peers>>, counters: Arc<ReplicaPlaneCounters>) -> Self {
        Self {
            peers,
            routed: Vec::new(),
            serial: 0,
            calls: Vec::new(),
            vacant: Vec::new(),
            copied: None,
            head: Vec::new(),
            list: Vec::new(),
            counters,
        }
    }

    pub(super) fn open(&mut self, volume: &str, form: VolumeForm, peer: &str) -> ReplicaRoute {
        let at = self.place_of(peer);
        let routes = &mut self.routed[at].routes;
        let number = routes.iter().position(Option::is_none).unwrap_or(routes.len());
        assert!(number < NUMBERED_VOLUMES_MAX, "more volumes than a node has");
        self.serial += 1;
        let route = OpenRoute {
            serial: self.serial,
            volume: volume.to_owned(),
            form,
            naming: Naming::No { at_ns: 0 },
            sequence: 0,
            losses: 0,
            calls: 0,
            bytes: 0,
        };
        if number == routes.len() {
            routes.push(None);
        }
        routes[number] = Some(route);
        self.look_for(at);
        ReplicaRoute { peer: at, number: number as u32, serial: self.serial }
    }

    /// The place of a peer, which gets one if it has none.
    fn place_of(&mut self, peer: &str) -> usize {
        if let Some(at) = self.routed.iter().position(|it| it.name == peer) {
            return at;
        }
        // Calls of the place's earlier peer may still be under way: they are this place's until
        // they have ended, so the place stays theirs as well.
        let vacant = |it: &RoutedPeer| it.name.is_empty() && it.calls.used == 0;
        let at = self.routed.iter().position(vacant).unwrap_or(self.routed.len());
        let routed = RoutedPeer {
            name: peer.to_owned(),
            id: None,
            routes: Vec::new(),
            calls: Share { max: CALLS_UNDER_WAY_MAX, used: 0 },
            bytes: Share { max: BYTES_UNDER_WAY_MAX, used: 0 },
        };
        match self.routed.get_mut(at) {
            Some(place) => *place = routed,
            None => self.routed.push(routed),
        }
        at
    }

    /// Holds the peer if it is known by now.
    fn look_for(&mut self, at: usize) {
        let routed = &mut self.routed[at];
        if routed.id.is_none() {
            let mut peers = self.peers.borrow_mut();
            routed.id = peers.find(&routed.name);
            routed.id.iter().for_each(|id| peers.hold(*id));
        }
    }

    pub(super) fn close(&mut self, route: ReplicaRoute) {
        let peer = &mut self.routed[route.peer];
        let place = &mut peer.routes[route.number as usize];
        assert!(place.as_ref().is_some_and(|it| it.serial == route.serial), "it is open");
        *place = None;
        if peer.routes.iter().all(Option::is_none) {
            peer.name.clear();
            peer.id.take().into_iter().for_each(|id| self.peers.borrow_mut().release(id));
        }
    }

    pub(super) fn losses(&self, route: ReplicaRoute) -> u64 {
        let place = self.routed[route.peer].routes[route.number as usize].as_ref();
        place.filter(|it| it.serial == route.serial).expect("it is open").losses
    }

    #[expect(clippy::result_large_err, reason = "a message that is given back is only moved")]
    pub(super) fn send(
        &mut self,
        now_ns: u64,
        route: ReplicaRoute,
        message: Message<RangeContent>,
        endpoint: &mut Endpoint,
    ) -> Result<(), Message<RangeContent>> {
        let Some(session) = self.session(route.peer) else {
            self.counters.unsent.add(1);
            return Ok(());
        };
        match self.name(now_ns, route, session, endpoint) {
            Ok(true) => {}
            Ok(false) => {
                self.counters.unsent.add(1);
                return Ok(());
            }
            Err(_) => {
                self.counters.held_back.add(1);
                return Err(message);
            }
        }
        // A message that must wait is offered again in each round, and is not worth encoding then.
        let content_bytes = match content_of(&message) {
            Some(RangeContent::Bytes(bytes)) => bytes.len(),
            _ => 0,
        };
        if !self.admits(route, content_bytes) {
            self.counters.held_back.add(1);
            return Err(message);
        }
        let (form, content) = to_wire(message);
        encode(route.number, &form, &mut self.head, &mut self.list);
        let sequence = self.route(route).sequence;
        self.head[WIRE_SEQUENCE].copy_from_slice(&sequence.to_le_bytes());
        match self.say(now_ns, route, session, content.as_ref(), endpoint) {
            Ok(()) => {
                self.route(route).sequence = sequence.wrapping_add(1);
                Ok(())
            }
            Err(CallError::NotConnected) => {
                self.counters.unsent.add(1);
                Ok(())
            }
            Err(CallError::Full) => {
                self.counters.held_back.add(1);
                Err(from_content(form, content))
            }
        }
    }

    /// The session with a peer, if it carries such messages.
    fn session(&mut self, at: usize) -> Option<SessionId> {
        self.look_for(at);
        let up = self.peers.borrow().session(self.routed[at].id?)?;
        (PlaneId::Replicas.version(up.version) > 0).then_some(up.id)
    }

    fn route(&mut self, route: ReplicaRoute) -> &mut OpenRoute {
        let place = self.routed[route.peer].routes[route.number as usize].as_mut();
        place.filter(|it| it.serial == route.serial).expect("it is open")
    }

    /// Whether the route may have one more call under way beside the peer's other routes.
    fn admits(&mut self, route: ReplicaRoute, body_bytes: usize) -> bool {
        let OpenRoute { calls, bytes, .. } = *self.route(route);
        let peer = &self.routed[route.peer];
        peer.calls.admits(calls, 1) && peer.bytes.admits(bytes, buffer_bytes(body_bytes))
    }

    /// Whether the volume has its number in the session; `Ok(false)` if the peer has refused it
    /// lately. Asks for the number if it may.
    ///
    /// # Errors
    /// When the messages must wait for the number.
    fn name(
        &mut self,
        now_ns: u64,
        route: ReplicaRoute,
        session: SessionId,
        endpoint: &mut Endpoint,
    ) -> Result<bool, CallError> {
        let place = self.routed[route.peer].routes[route.number as usize].as_mut();
        let open = place.filter(|it| it.serial == route.serial).expect("it is open");
        match open.naming {
            Naming::Done(of) if of == session => return Ok(true),
            Naming::Asked(of) if of == session => return Err(CallError::Full),
            Naming::No { at_ns } if now_ns < at_ns => return Ok(false),
            _ => {}
        }
        // A message under the earlier number must not be taken for one of the new number.
        if open.calls > 0 {
            return Err(CallError::Full);
        }
        encode_name(route.number, open.form.0, &open.volume, &mut self.head);
        self.call(now_ns, route, session, None, endpoint)?;
        self.route(route).naming = Naming::Asked(session);
        Err(CallError::Full)
    }

    /// Sends the message that is encoded.
    fn say(
        &mut self,
        now_ns: u64,
        route: ReplicaRoute,
        session: SessionId,
        content: Option<&RangeContent>,
        endpoint: &mut Endpoint,
    ) -> Result<(), CallError> {
        if let Some(RangeContent::Bytes(bytes)) = content {
            let buffer = self.copy_of(bytes, endpoint)?;
            return self.call(now_ns, route, session, Some((buffer, bytes.len())), endpoint);
        }
        if self.list.is_empty() {
            return self.call(now_ns, route, session, None, endpoint);
        }
        let len_bytes = self.list.len();
        if !self.admits(route, len_bytes) {
            return Err(CallError::Full);
        }
        let buffer = endpoint.pool_mut().alloc(len_bytes).ok_or(CallError::Full)?;
        endpoint.pool_mut().bytes_mut(buffer).copy_from_slice(&self.list);
        self.counters.copied_bytes.add(len_bytes as u64);
        let sent = self.call(now_ns, route, session, Some((buffer, len_bytes)), endpoint);
        endpoint.pool_mut().release(buffer);
        sent
    }

    /// A buffer with this content. The endpoint sends from its own pool and from nothing else, so
    /// there is one copy.
    fn copy_of(
        &mut self,
        bytes: &Rc<Vec<u8>>,
        endpoint: &mut Endpoint,
    ) -> Result<BufId, CallError> {
        if let Some(copied) = &self.copied
            && Rc::ptr_eq(&copied.content, bytes)
        {
            return Ok(copied.buffer);
        }
        self.let_go(endpoint);
        let buffer = endpoint.pool_mut().alloc(bytes.len()).ok_or(CallError::Full)?;
        endpoint.pool_mut().bytes_mut(buffer).copy_from_slice(bytes);
        self.counters.copied_bytes.add(bytes.len() as u64);
        self.copied = Some(CopiedContent { content: Rc::clone(bytes), buffer });
        Ok(buffer)
    }

    /// Lets go of the last message's content.
    pub(super) fn let_go(&mut self, endpoint: &mut Endpoint) {
        if let Some(copied) = self.copied.take() {
            endpoint.pool_mut().release(copied.buffer);
        }
    }

    fn call(
        &mut self,
        now_ns: u64,
        route: ReplicaRoute,
        session: SessionId,
        body: Option<(BufId, usize)>,
        endpoint: &mut Endpoint,
    ) -> Result<(), CallError> {
        let key = self.vacant.last().copied().unwrap_or(self.calls.len());
        let token = Token::new(PlaneId::Replicas, key as u64);
        endpoint.call(now_ns, session, flows::REPLICAS, token.raw(), &self.head, body)?;
        let body_bytes = body.map_or(0, |(_, len_bytes)| len_bytes);
        let bytes = buffer_bytes(body_bytes);
        let call = Some(CallUnderWay { session, route, bytes, is_name: is_name(&self.head) });
        match self.vacant.pop() {
            Some(place) => self.calls[place] = call,
            None => self.calls.push(call),
        }
        let peer = &mut self.routed[route.peer];
        peer.calls.used += 1;
        peer.bytes.used += bytes;
        let open = self.route(route);
        open.calls += 1;
        open.bytes += bytes;
        self.counters.sent.add(1);
        self.counters.sent_bytes.add(body_bytes as u64);
        Ok(())
    }

    /// A call has its answer.
    pub(super) fn answered(
        &mut self,
        now_ns: u64,
        (session, token): (SessionId, Token),
        is_taken: bool,
    ) {
        // Tokens come from the session's table and not from the peer.
        let Some(call) = self.end(token.key() as usize, session) else { return };
        self.counters.refused_there.add(u64::from(!is_taken));
        let Some(open) = self.open_route(call.route) else { return };
        match open.naming {
            Naming::Asked(of) if of == session && call.is_name && is_taken => {
                open.naming = Naming::Done(session);
                open.sequence = 0;
                open.losses += 1;
            }
            // The peer has no such member, or none any more.
            Naming::Asked(of) | Naming::Done(of) if of == session && !is_taken => {
                open.naming = Naming::No { at_ns: now_ns + NAME_AGAIN_NS };
            }
            _ => {}
        }
    }

    /// The route, unless it was closed meanwhile.
    fn open_route(&mut self, route: ReplicaRoute) -> Option<&mut OpenRoute> {
        let open = self.routed[route.peer].routes.get_mut(route.number as usize)?.as_mut()?;
        (open.serial == route.serial).then_some(open)
    }

    /// A call of a session is not under way any more.
    fn end(&mut self, key: usize, session: SessionId) -> Option<CallUnderWay> {
        let call = self.calls.get_mut(key)?.take_if(|call| call.session == session)?;
        self.vacant.push(key);
        let peer = &mut self.routed[call.route.peer];
        peer.calls.used -= 1;
        peer.bytes.used -= call.bytes;
        if let Some(open) = self.open_route(call.route) {
            open.calls -= 1;
            open.bytes -= call.bytes;
        }
        Some(call)
    }

    /// A session has ended.
    pub(super) fn lost(&mut self, session: SessionId, peer: Option<PeerId>) {
        for key in 0..self.calls.len() {
            if self.end(key, session).is_some() {
                self.counters.lost.add(1);
            }
        }
        let routed = self.routed.iter_mut().filter(|it| peer.is_some() && it.id == peer);
        let open = routed.flat_map(|routed| routed.routes.iter_mut().flatten());
        open.for_each(|open| open.losses += 1);
    }
}

/// The cost of a body: the buffer that it takes at both ends.
fn buffer_bytes(body_bytes: usize) -> u64 {
    let class = CLASS_BYTES.iter().find(|class| body_bytes <= **class);
    if body_bytes == 0 { 0 } else { class.map_or(BYTES_UNDER_WAY_MAX, |class| *class as u64) }
}
