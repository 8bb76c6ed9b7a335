//! One sidecore's part in domains across nodes: the rooms of its gateways, behind its sessions.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use fabric_node::GatewayDoorbell;
use fabric_node::gateway::{
    self, About, Associations, Carrier, GatewayPeer, Handed, PostCounters, Room, RoomSettings,
};
use fabric_node::hand_over::TakenRoom;
use peer::{PeerId, Peers, PlaneId, PlaneQuota, Planes, Token, flows};
use sidecore::{Poll, Progress, Wake};
use transport::{BufId, CallId, Endpoint, LostReason, PeerInfo, SessionId};

use crate::cores::LinkedSidecore;

/// How long this node waits for a peer whose name sorts before its own to ask for a session, before
/// it asks itself. Of two nodes that know each other's addresses only one should ask.
const PATIENCE_NS: u64 = 3_000_000_000;

/// How often the need for sessions is checked.
const LOOK_NS: u64 = 500_000_000;

/// The longest head of a message.
const HEAD_BYTES: usize = transport::HEAD_MAX;

/// The sessions of a sidecore, as rooms use them.
pub struct Sessions {
    endpoint: Rc<RefCell<Endpoint>>,
    now_ns: u64,
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions").finish_non_exhaustive()
    }
}

impl Carrier for Sessions {
    type Session = SessionId;
    type Call = CallId;
    type Body = BufId;

    fn body(&mut self, bytes: usize) -> Option<BufId> {
        self.endpoint.borrow_mut().pool_mut().alloc(bytes)
    }

    fn write(&mut self, body: BufId, places: Range<usize>, put: &mut dyn FnMut(&mut [u8])) {
        put(&mut self.endpoint.borrow_mut().pool_mut().bytes_mut(body)[places]);
    }

    fn read(&self, body: BufId, bytes: usize, show: &mut dyn FnMut(&[u8])) {
        show(&self.endpoint.borrow().pool().bytes(body)[..bytes]);
    }

    fn release(&mut self, body: BufId) {
        self.endpoint.borrow_mut().pool_mut().release(body);
    }

    fn call(
        &mut self,
        session: SessionId,
        token: u64,
        head: &[u8],
        body: Option<(BufId, usize)>,
    ) -> bool {
        let mut endpoint = self.endpoint.borrow_mut();
        endpoint.call(self.now_ns, session, flows::DOMAINS, token, head, body).is_ok()
    }

    fn reply(&mut self, call: CallId, head: &[u8]) {
        // An error means that the session is gone, and with it the peer.
        let _ = self.endpoint.borrow_mut().reply(self.now_ns, call, head, None);
    }
}

/// Gateways make their tokens themselves, for any carrier. They must equal those of the plane.
const _: () = assert!(gateway::TOKEN == Token::new(PlaneId::Domain, 0).raw());
const _: () = assert!(gateway::KIND_MIN == PlaneId::Domain.kind_min());

/// The events of sessions, kept until the rooms have their turn: the endpoint is borrowed
/// meanwhile.
#[derive(Debug)]
enum SessionEvent {
    Up(SessionId, GatewayPeer),
    Lost(SessionId),
    Call { session: SessionId, call: CallId, head: MessageHead, body: Option<(BufId, usize)> },
    Reply { token: u64, head: MessageHead },
}

#[derive(Debug)]
struct MessageHead([u8; HEAD_BYTES], usize);

impl MessageHead {
    fn new(head: &[u8]) -> Self {
        let mut bytes = [0; HEAD_BYTES];
        bytes[..head.len()].copy_from_slice(head);
        Self(bytes, head.len())
    }

    fn bytes(&self) -> &[u8] {
        &self.0[..self.1]
    }
}

#[derive(Debug)]
struct PlacedRoom {
    room: Room<Sessions>,
    associations: Arc<Associations>,
    /// Processes ring it while the sidecore sleeps.
    doorbell: GatewayDoorbell,
}

/// A peer of a domain, and its sessions.
#[derive(Debug)]
struct DomainPeer {
    /// Sessions with it that are up: those that this node asked for, and the peer's own.
    outgoing: usize,
    incoming: usize,
    /// This node asks it for a session.
    held: bool,
    /// The time since when there is none.
    since_ns: u64,
}

/// The counts of a gateway.
#[derive(Clone, Debug)]
pub struct GatewayCounted {
    /// Its domain.
    pub domain: String,
    /// Its counters.
    pub counters: PostCounters,
    /// The bytes of state that it keeps of other hosts.
    pub state_bytes: usize,
}

/// The plane: see the module. It is a service of its sidecore.
#[derive(Debug)]
pub struct Gateways {
    node: String,
    process_nonce: u64,
    carrier: Sessions,
    peers: Rc<RefCell<Peers>>,
    rooms: Vec<PlacedRoom>,
    room_next: u16,
    sessions: BTreeMap<SessionId, (GatewayPeer, bool)>,
    events: VecDeque<SessionEvent>,
    wanted: BTreeMap<String, DomainPeer>,
    look_at_ns: u64,
    /// The rooms stand still: another process goes on in this one's place, or may do so.
    stands: bool,
}

impl Gateways {
    /// Makes the plane, without rooms, and puts it behind the sidecore's sessions.
    pub fn new(planes: &mut Planes) -> Rc<RefCell<Self>> {
        let endpoint = planes.endpoint();
        let (node, process_nonce) = {
            let endpoint = endpoint.borrow();
            (endpoint.config().name.clone(), endpoint.config().process_nonce)
        };
        let gateways = Rc::new(RefCell::new(Self {
            node,
            process_nonce,
            carrier: Sessions { endpoint: Rc::clone(endpoint), now_ns: 0 },
            peers: Rc::clone(planes.peers()),
            rooms: Vec::new(),
            room_next: 0,
            sessions: BTreeMap::new(),
            events: VecDeque::new(),
            wanted: BTreeMap::new(),
            look_at_ns: 0,
            stands: false,
        }));
        planes.add(Rc::clone(&gateways) as _);
        gateways
    }

    /// Adds a domain's room on this sidecore, with the state of a predecessor's room if there was
    /// one. The domain's members ring `doorbell`.
    pub fn add(
        &mut self,
        (domain, gateway): (String, u16),
        prove: gateway::Prove,
        associations: Arc<Associations>,
        (doorbell, handed): (GatewayDoorbell, Option<Handed>),
    ) {
        // The number can repeat only after more rooms than are made in a node's life. A repeated
        // number could only be mistaken for a room of eight thousand domains ago.
        let number = self.room_next;
        self.room_next = (number + 1) % gateway::ROOMS_MAX;
        let settings = RoomSettings { number, domain, gateway, prove };
        let shared = Arc::clone(&associations);
        let mut room = match handed {
            Some(handed) => Room::adopt(settings, shared, handed, sidecore::now_ns()),
            None => Room::new(settings, shared),
        };
        for (session, (peer, _)) in &self.sessions {
            room.connected(*session, peer);
        }
        self.rooms.push(PlacedRoom { room, associations, doorbell });
        self.look_at_ns = 0;
    }

    /// Stops all rooms, or lets them go on.
    pub fn set_standing(&mut self, stands: bool) {
        self.stands = stands;
    }

    /// The state of each room, with its messages, for another process. This process and the other
    /// must do nothing before one of them goes on.
    pub fn take_down(&mut self) -> Vec<TakenRoom> {
        assert!(self.stands, "it moves");
        let Self { rooms, carrier, .. } = self;
        rooms.iter_mut().map(|placed| placed.room.take_down(carrier)).collect()
    }

    /// Removes a domain's room.
    pub fn remove(&mut self, domain: &str) {
        let carrier = &mut self.carrier;
        for mut placed in self.rooms.extract_if(.., |placed| placed.room.domain() == domain) {
            placed.room.end(carrier);
        }
        self.look_at_ns = 0;
    }

    /// The counts of each gateway here.
    pub fn counted(&self) -> Vec<GatewayCounted> {
        let of_room = |PlacedRoom { room, .. }: &PlacedRoom| GatewayCounted {
            domain: room.domain().to_owned(),
            counters: room.counters(),
            state_bytes: room.state_bytes(),
        };
        self.rooms.iter().map(of_room).collect()
    }

    fn happened(&mut self, now_ns: u64, event: SessionEvent) {
        let Self { rooms, carrier, .. } = self;
        match event {
            SessionEvent::Up(session, peer) => {
                rooms.iter_mut().for_each(|placed| placed.room.connected(session, &peer));
            }
            SessionEvent::Lost(session) => {
                rooms.iter_mut().for_each(|placed| placed.room.lost(now_ns, session, carrier));
            }
            SessionEvent::Call { session, call, head, body } => {
                let about = gateway::about(head.bytes());
                let is_meant = |placed: &&mut PlacedRoom| match &about {
                    About::Domain(domain) => placed.room.domain() == domain,
                    About::Room(number) => placed.room.number() == *number,
                    About::Nothing => false,
                };
                if let Some(placed) = rooms.iter_mut().find(is_meant) {
                    placed.room.called(now_ns, session, call, head.bytes(), body, carrier);
                    return;
                }
                if let Some((body, _)) = body {
                    carrier.release(body);
                }
                carrier.reply(call, &gateway::answer_nobody(head.bytes()));
            }
            SessionEvent::Reply { token, head } => {
                let number = gateway::room_of_token(token);
                let meant = rooms.iter_mut().find(|placed| placed.room.number() == number);
                if let Some(placed) = meant {
                    placed.room.replied(now_ns, token, head.bytes(), carrier);
                }
            }
        }
    }

    /// Asks for sessions with the peers of domains.
    fn look_for_sessions(&mut self, now_ns: u64) {
        self.look_at_ns = now_ns + LOOK_NS;
        // The plane of networks closes sessions that it has opened itself, and no event tells of
        // it.
        let endpoint = self.carrier.endpoint.borrow();
        let up: Vec<_> = endpoint.sessions().map(|status| status.session).collect();
        for (session, _) in self.sessions.extract_if(.., |session, _| !up.contains(session)) {
            self.events.push_back(SessionEvent::Lost(session));
        }
        drop(endpoint);
        let names: Vec<_> = self.rooms.iter().flat_map(|it| it.associations.names()).collect();
        let peers = &mut self.peers.borrow_mut();
        for (name, gone) in self.wanted.extract_if(.., |name, _| !names.contains(name)) {
            if gone.held {
                peers.release_named(&name);
            }
        }
        for name in names {
            let is_ours = self.node < name;
            let wanted = self.wanted.entry(name.clone()).or_insert(DomainPeer {
                outgoing: 0,
                incoming: 0,
                held: false,
                since_ns: now_ns,
            });
            let of_peer = self.sessions.values().filter(|(peer, _)| peer.name == name);
            let (outgoing, incoming): (Vec<_>, Vec<_>) = of_peer.partition(|(_, out)| *out);
            (wanted.outgoing, wanted.incoming) = (outgoing.len(), incoming.len());
            if wanted.outgoing + wanted.incoming > 0 {
                wanted.since_ns = now_ns;
            }
            let is_late = now_ns.saturating_sub(wanted.since_ns) >= PATIENCE_NS;
            if wanted.held && is_late {
                // The request may have gone with a peer that was removed and added again: it is
                // made anew.
                peers.release_named(&name);
                wanted.held = false;
            }
            let wants = wanted.incoming == 0 && (is_ours || wanted.held || is_late);
            if wants != wanted.held {
                wanted.held = wants;
                if wants {
                    peers.hold_named(&name);
                } else {
                    peers.release_named(&name);
                }
            }
        }
    }
}

impl peer::Plane for Gateways {
    fn id(&self) -> PlaneId {
        PlaneId::Domain
    }

    fn connected(&mut self, session: SessionId, _: Option<PeerId>, info: &PeerInfo) {
        let mut binding = info.binding;
        if binding == [0; 32] {
            // In a plain session, the identity is the two processes' numbers.
            let mut both = [self.process_nonce, info.process_nonce];
            both.sort_unstable();
            binding[..8].copy_from_slice(&both[0].to_le_bytes());
            binding[8..16].copy_from_slice(&both[1].to_le_bytes());
        }
        let peer = GatewayPeer { name: info.name.clone(), binding };
        self.sessions.insert(session, (peer.clone(), info.outgoing));
        self.events.push_back(SessionEvent::Up(session, peer));
    }

    fn lost(&mut self, _: u64, session: SessionId, _: Option<PeerId>, _: &LostReason) {
        if self.sessions.remove(&session).is_some() {
            self.events.push_back(SessionEvent::Lost(session));
            self.look_at_ns = 0;
        }
    }

    fn reply_body(&mut self, _: SessionId, _: Token, _: usize, _: &[u8]) {
        // An answer of this plane never has a body.
    }

    fn reply(&mut self, _: u64, _: SessionId, token: Token, head: &[u8], _: usize) {
        self.events
            .push_back(SessionEvent::Reply { token: token.raw(), head: MessageHead::new(head) });
    }

    fn call(
        &mut self,
        session: SessionId,
        _: u16,
        call: CallId,
        head: &[u8],
        body: Option<(BufId, usize)>,
    ) {
        // Bounded: the transport accepts only so many calls before they are answered.
        self.events.push_back(SessionEvent::Call {
            session,
            call,
            head: MessageHead::new(head),
            body,
        });
    }

    fn cast(&mut self, _: SessionId, _: u16, _: &[u8], _: Option<(BufId, usize)>) {
        unreachable!("this plane has no flows of casts");
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

/// Makes all sidecores close at once the sessions that no domain needs any more.
pub fn look_for_sessions(cores: &[LinkedSidecore]) {
    for core in cores {
        // A sidecore that has stopped has no gateways.
        let _ = core.sidecore.call(|local| {
            let now_ns = local.now_ns();
            if let Some(gateways) = local.services().get::<Gateways>() {
                gateways.borrow_mut().look_for_sessions(now_ns);
            }
        });
    }
}

/// It runs in the stage that serves.
impl Poll for Gateways {
    fn label(&self) -> String {
        "gateways of domains".to_owned()
    }

    fn poll(&mut self, now_ns: u64) -> Progress {
        self.carrier.now_ns = now_ns;
        if self.stands {
            return Progress::busy_if(false);
        }
        let mut busy = false;
        while let Some(event) = self.events.pop_front() {
            self.happened(now_ns, event);
            busy = true;
        }
        for placed in &mut self.rooms {
            busy |= placed.room.poll(now_ns, &mut self.carrier);
        }
        if now_ns >= self.look_at_ns {
            self.look_for_sessions(now_ns);
        }
        Progress::busy_if(busy)
    }

    fn arm(&mut self, wake: &mut Wake) -> Progress {
        if self.stands {
            return Progress::busy_if(false);
        }
        let mut idle = self.events.is_empty();
        let now_ns = self.carrier.now_ns;
        if !self.rooms.is_empty() {
            wake.at(self.look_at_ns);
        }
        for placed in &mut self.rooms {
            match placed.room.fall_asleep(now_ns) {
                Some(at_ns) => {
                    placed.doorbell.fds().into_iter().for_each(|fd| wake.on_readable(fd));
                    if at_ns != u64::MAX {
                        wake.at(at_ns);
                    }
                }
                None => idle = false,
            }
        }
        Progress::busy_if(!idle)
    }

    fn disarm(&mut self) {
        // The doorbell is not read during a hand-over: the successor must hear it.
        if !self.stands {
            for placed in &mut self.rooms {
                placed.room.wake_up();
                placed.doorbell.silence();
            }
        }
    }
}
