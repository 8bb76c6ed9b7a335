//! The planes behind the sessions of one sidecore: the subjects that sessions' messages are about.
//!
//! A *plane* is one subject that nodes talk about: blocks, networks, domains. Each call's first
//! byte is its kind, whose upper two bits are the plane's number ([`PlaneId`]); each call's token,
//! which comes back with the answer, begins with the same number ([`Token`]).

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use sidecore::{Poll, Progress, Wake};
use transport::{
    BufId, CallId, Endpoint, LostReason, PeerIdentity, PeerInfo, QuotaPart, SessionId, Sink,
};

use crate::directory::{PeerId, Peers};

/// A process that did not run for this long may have been stopped and replaced by another one
/// meanwhile. Well above what a busy scheduler does to a thread. A sidecore with a plane to which
/// that matters sleeps for half as long at most.
pub const PAUSE_SUSPECT_NS: u64 = 1_000_000_000;

/// Makes the list of planes and the table of their versions from one line for each plane.
macro_rules! planes {
    ($($(#[$of:meta])* $plane:ident = $number:literal, $versions:expr;)+) => {
        /// The subject of a message. The numbers are the protocol's.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum PlaneId {
            $($(#[$of])* $plane = $number,)+
        }

        impl PlaneId {
            /// All planes, by number.
            pub const ALL: &'static [Self] = &[$(Self::$plane),+];
        }

        /// By plane, the version of its messages in sessions of version 1, 2, 3, 4, 5, 6. A version
        /// of the protocol adds a column, and a plane whose messages it changes has the next number
        /// there.
        const PLANE_VERSIONS: &[[u8; transport::PROTOCOL_VERSION as usize]] = &[$($versions),+];
    };
}

// The numbers follow each other from 0. A session of a version with a 0 carries no message of the
// plane.
planes! {
    /// Volumes, see the crate `block`. Version 2: ranges that are zeroed, and a description of
    /// them and of a volume's layout. Version 3: a volume that another node serves.
    Block = 0, [1, 1, 2, 2, 3, 3];
    /// Networks, see the crate `net`. Their frames are casts.
    Network = 1, [0, 0, 0, 1, 1, 1];
    /// Domains of MPI, see the crate `fabric`.
    Domain = 2, [1, 1, 1, 1, 1, 1];
    /// Members of replicated volumes, see the crate `member`.
    Replicas = 3, [0, 0, 0, 0, 1, 1];
}

/// How many there are.
const PLANES: usize = PlaneId::ALL.len();

// Two bits of a head and of a token say the plane, and the planes' numbers are their places.
const _: () = {
    assert!(PLANES == 1 << (8 - KIND_BITS), "two bits are enough, and each value is a plane's");
    let mut at = 0;
    while at < PLANES {
        assert!(PlaneId::ALL[at] as usize == at, "the numbers follow each other");
        at += 1;
    }
};

/// The flows of a session's calls. Calls of one flow share a credit, so that each use has flows of
/// its own. They are sent in their order, by size, and may arrive in another order.
pub mod flows {
    use std::ops::Range;

    /// Questions and requests about a peer's objects: descriptions of volumes, and joining a
    /// network. They are few and short.
    pub const CONTROL: u16 = 0;

    /// Channels of remote disks, one flow each.
    pub const CHANNELS: Range<u16> = 1..REPLICAS;

    /// Messages between members of replicated volumes.
    pub const REPLICAS: u16 = DOMAINS - 1;

    /// Messages between the hosts of domains.
    pub const DOMAINS: u16 = transport::FLOWS_MAX as u16 - 1;
}

/// Bits of a kind that are the plane's own.
const KIND_BITS: u32 = 6;

impl PlaneId {
    /// The plane of a call with this head. An empty head is for the plane of blocks, which answers
    /// that it is malformed.
    pub fn of_head(head: &[u8]) -> Self {
        let number = head.first().map_or(0, |kind| kind >> KIND_BITS);
        Self::ALL[usize::from(number)]
    }

    /// The version of the plane's messages in a session of this version of the protocol. 0: such a
    /// session carries no message of the plane. The comment where a plane asks for a version
    /// says how it differs.
    pub const fn version(self, session: u8) -> u8 {
        // A session has one of the versions that this program speaks.
        let row = &PLANE_VERSIONS[self as usize];
        if session as usize <= row.len() && session > 0 { row[session as usize - 1] } else { 0 }
    }

    /// The first of the plane's kinds of calls.
    pub const fn kind_min(self) -> u8 {
        (self as u8) << KIND_BITS
    }

    const fn of_token(token: u64) -> Self {
        Self::ALL[(token >> Token::KEY_BITS) as usize]
    }
}

/// The name of a call among all calls of a sidecore that are outstanding: the plane, and the
/// plane's own key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token {
    plane: PlaneId,
    key: u64,
}

impl Token {
    /// How many bits a plane has for its keys.
    pub const KEY_BITS: u32 = 62;

    /// The token of a plane's call.
    ///
    /// # Panics
    /// When the key is longer than [`Token::KEY_BITS`].
    pub const fn new(plane: PlaneId, key: u64) -> Self {
        assert!(key >> Self::KEY_BITS == 0, "a key has 62 bits");
        Self { plane, key }
    }

    /// As sessions carry it.
    pub const fn raw(self) -> u64 {
        (self.plane as u64) << Self::KEY_BITS | self.key
    }

    /// The plane's own key.
    pub const fn key(self) -> u64 {
        self.key
    }

    const fn of_raw(raw: u64) -> Self {
        Self { plane: PlaneId::of_token(raw), key: raw & ((1 << Self::KEY_BITS) - 1) }
    }
}

/// A plane's handlers for the events of sessions. A handler only notes an event down, because the
/// endpoint is at work meanwhile and cannot be called. `now_ns` is the round's clock.
pub trait Plane {
    /// Which it is.
    fn id(&self) -> PlaneId;

    /// A session is usable. `peer`: this sidecore has opened it.
    fn connected(&mut self, session: SessionId, peer: Option<PeerId>, info: &PeerInfo);

    /// A session is over; said once for each that was connected, and for each that was refused.
    fn lost(&mut self, now_ns: u64, session: SessionId, peer: Option<PeerId>, why: &LostReason);

    /// A piece of the body of an answer to a call of this plane; see [`Sink::reply_body`].
    fn reply_body(&mut self, session: SessionId, token: Token, offset_bytes: usize, bytes: &[u8]);

    /// The answer to a call of this plane is complete; see [`Sink::reply`].
    fn reply(
        &mut self,
        now_ns: u64,
        session: SessionId,
        token: Token,
        head: &[u8],
        body_bytes: usize,
    );

    /// A call of a peer, which the plane answers later; see [`Sink::call`].
    fn call(
        &mut self,
        session: SessionId,
        flow: u16,
        call: CallId,
        head: &[u8],
        body: Option<(BufId, usize)>,
    );

    /// A cast of a flow that the plane has opened; see [`Sink::cast`].
    fn cast(&mut self, session: SessionId, flow: u16, head: &[u8], body: Option<(BufId, usize)>);

    /// The process stood still for [`PAUSE_SUSPECT_NS`] or longer: another process may have taken
    /// its place meanwhile.
    fn paused(&mut self);

    /// Whether a pause would make what the plane holds doubtful.
    fn fears_pauses(&self) -> bool;

    /// Whether the plane waits for an answer that a pause would make doubtful.
    fn is_waiting(&self) -> bool;

    /// The parts that peers have of the resources of the plane, or had lately.
    fn quotas(&self) -> Vec<PlaneQuota>;
}

/// One peer's part of a resource that a plane divides among all peers.
#[derive(Clone, Debug)]
pub struct PlaneQuota {
    /// The peer.
    pub peer: PeerIdentity,
    /// The resource, as the status and the metrics name it.
    pub resource: &'static str,
    /// The peer's part.
    pub part: QuotaPart,
}

/// The peers and the planes of one sidecore: a service of it, the sink of its sessions, and a
/// poller that must be the first of the receiving stage.
pub struct Planes {
    endpoint: Rc<RefCell<Endpoint>>,
    peers: Rc<RefCell<Peers>>,
    /// By number.
    planes: [Option<Rc<RefCell<dyn Plane>>>; PLANES],
    now_ns: u64,
    /// Answers to calls of no plane.
    strays: u64,
}

impl fmt::Debug for Planes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Planes").field("now_ns", &self.now_ns).finish_non_exhaustive()
    }
}

impl Planes {
    /// Without planes and peers, on the sidecore with this index.
    pub fn new(index: u16, endpoint: Rc<RefCell<Endpoint>>) -> Self {
        let peers = Rc::new(RefCell::new(Peers::new(index)));
        Self { endpoint, peers, planes: [const { None }; PLANES], now_ns: 0, strays: 0 }
    }

    /// The sidecore's peers.
    pub fn peers(&self) -> &Rc<RefCell<Peers>> {
        &self.peers
    }

    /// The sidecore's sessions.
    pub fn endpoint(&self) -> &Rc<RefCell<Endpoint>> {
        &self.endpoint
    }

    /// The parts that peers have of the planes' resources, by plane.
    pub fn quotas(&self) -> Vec<PlaneQuota> {
        self.all().flat_map(|plane| plane.borrow().quotas()).collect()
    }

    /// Puts a plane behind the sessions.
    ///
    /// # Panics
    /// When there is one of this number.
    pub fn add(&mut self, plane: Rc<RefCell<dyn Plane>>) {
        let id = plane.borrow().id();
        let before = self.planes[id as usize].replace(plane);
        assert!(before.is_none(), "one plane of each number");
    }

    /// Reaches a known peer at another address from now on, or makes the peer known: the session
    /// ends, and each plane that needs one gets another.
    pub fn move_peer(&mut self, now_ns: u64, name: &str, addr: std::net::SocketAddr) {
        self.peers.borrow_mut().add(name, addr);
        let session = self.peers.borrow().asked(name);
        if let Some(session) = session {
            self.close(now_ns, session);
        }
    }

    /// Forgets a peer and ends its session. `false`, and nothing is changed, while a plane holds
    /// it. A peer that is not known is forgotten already.
    pub fn remove_peer(&mut self, now_ns: u64, name: &str) -> bool {
        let removed = self.peers.borrow_mut().remove(name);
        let Ok(session) = removed else { return false };
        if let Some(session) = session {
            self.close(now_ns, session);
        }
        true
    }

    /// Closes a session, and tells the planes.
    fn close(&mut self, now_ns: u64, session: SessionId) {
        self.endpoint.borrow_mut().close(now_ns, session);
        self.now_ns = self.now_ns.max(now_ns);
        self.lost(session, &LostReason::Closed);
    }

    /// Notes the time, before anything of this round arrives.
    pub fn watch(&mut self, now_ns: u64) {
        let gap_ns = now_ns.saturating_sub(self.now_ns);
        if self.now_ns != 0 && gap_ns >= PAUSE_SUSPECT_NS {
            self.all().for_each(|plane| plane.borrow_mut().paused());
        }
        self.now_ns = now_ns;
    }

    fn all(&self) -> impl Iterator<Item = &Rc<RefCell<dyn Plane>>> {
        self.planes.iter().flatten()
    }

    fn plane(&self, id: PlaneId) -> Option<&Rc<RefCell<dyn Plane>>> {
        self.planes[id as usize].as_ref()
    }
}

impl Sink for Planes {
    fn connected(&mut self, session: SessionId, info: &PeerInfo) {
        let peer = self.peers.borrow_mut().connected(session, info);
        self.all().for_each(|plane| plane.borrow_mut().connected(session, peer, info));
    }

    fn lost(&mut self, session: SessionId, why: &LostReason) {
        let now_ns = self.now_ns;
        let peer = self.peers.borrow_mut().lost(now_ns, session, why);
        self.all().for_each(|plane| plane.borrow_mut().lost(now_ns, session, peer, why));
    }

    fn reply_body(&mut self, session: SessionId, token: u64, offset_bytes: usize, bytes: &[u8]) {
        let token = Token::of_raw(token);
        match self.plane(token.plane) {
            Some(plane) => plane.borrow_mut().reply_body(session, token, offset_bytes, bytes),
            None => self.strays += 1,
        }
    }

    fn reply(&mut self, session: SessionId, token: u64, head: &[u8], body_bytes: usize) {
        let token = Token::of_raw(token);
        match self.plane(token.plane) {
            Some(plane) => {
                plane.borrow_mut().reply(self.now_ns, session, token, head, body_bytes);
            }
            None => self.strays += 1,
        }
    }

    fn call(
        &mut self,
        session: SessionId,
        flow: u16,
        call: CallId,
        head: &[u8],
        body: Option<(BufId, usize)>,
    ) {
        let plane = self.plane(PlaneId::of_head(head)).or_else(|| self.all().next());
        let plane = plane.expect("sessions of a node without a plane");
        plane.borrow_mut().call(session, flow, call, head, body);
    }

    fn cast(&mut self, session: SessionId, flow: u16, head: &[u8], body: Option<(BufId, usize)>) {
        // Flows of casts are opened by the plane of networks and by no other so far.
        let plane = self.plane(PlaneId::Network).expect("it has opened the flow");
        plane.borrow_mut().cast(session, flow, head, body);
    }
}

impl Poll for Planes {
    fn label(&self) -> String {
        "peers and their sessions".to_owned()
    }

    /// Notes the time and opens sessions.
    fn poll(&mut self, now_ns: u64) -> Progress {
        self.watch(now_ns);
        self.peers.borrow_mut().poll(now_ns, &mut self.endpoint.borrow_mut())
    }

    fn arm(&mut self, wake: &mut Wake) -> Progress {
        let peers = self.peers.borrow();
        if let Some(at_ns) = peers.next_ns() {
            wake.at(at_ns);
        }
        if self.all().any(|plane| plane.borrow().fears_pauses()) {
            wake.at(self.now_ns + PAUSE_SUSPECT_NS / 2);
        }
        Progress::busy_if(peers.is_stirred())
    }

    /// A pause has to be seen before an answer that arrived meanwhile is.
    fn needs_clock(&self) -> bool {
        self.all().any(|plane| plane.borrow().is_waiting())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_and_tokens_say_their_plane() {
        for (kind, plane) in [
            (0, PlaneId::Block),
            (63, PlaneId::Block),
            (64, PlaneId::Network),
            (127, PlaneId::Network),
            (128, PlaneId::Domain),
            (191, PlaneId::Domain),
            (192, PlaneId::Replicas),
            (255, PlaneId::Replicas),
        ] {
            assert_eq!(PlaneId::of_head(&[kind, 1]), plane, "{kind}");
        }
        assert_eq!(PlaneId::of_head(&[]), PlaneId::Block);
        for plane in PlaneId::ALL.iter().copied() {
            assert_eq!(PlaneId::of_head(&[plane.kind_min()]), plane);
            for key in [0, 1, (1 << Token::KEY_BITS) - 1] {
                let token = Token::new(plane, key);
                assert_eq!(Token::of_raw(token.raw()), token);
            }
        }
    }

    #[test]
    fn versions_of_planes_only_grow_with_the_versions_of_the_protocol() {
        for plane in PlaneId::ALL {
            let versions: Vec<_> = transport::VERSIONS.map(|of| plane.version(of)).collect();
            assert!(versions.is_sorted(), "{plane:?}: {versions:?}");
            assert!(versions.last() > Some(&0), "{plane:?} is spoken");
            assert_eq!(plane.version(0), 0);
            assert_eq!(plane.version(transport::PROTOCOL_VERSION + 1), 0);
        }
        assert_eq!([2, 3].map(|of| PlaneId::Block.version(of)), [1, 2]);
        assert_eq!([3, 4].map(|of| PlaneId::Network.version(of)), [0, 1]);
        assert_eq!([4, 5].map(|of| PlaneId::Replicas.version(of)), [0, 1]);
    }
}
