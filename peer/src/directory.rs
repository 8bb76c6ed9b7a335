//! The known peers of one sidecore, and the sessions that the sidecore opens to them.
//!
//! Several planes use one session with a peer. Each *holds* the peer as long as it needs the
//! session; [`Peers::poll`] opens a session to each peer that is held, and opens another one after
//! a loss.

use std::net::SocketAddr;

use sidecore::Progress;
use transport::{Endpoint, LostReason, PeerInfo, SessionId};

use crate::proof::Binding;

/// How long a connection that a peer has refused waits before it is tried again.
pub const ASK_AGAIN_NS: u64 = 1_000_000_000;

/// A known peer. Good until the peer is removed, which is not possible while it is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(usize);

/// A session that is up.
#[derive(Clone, Copy, Debug)]
pub struct PeerSession {
    /// Its handle at the endpoint.
    pub id: SessionId,
    /// The session's binding, over which proofs are signed.
    pub binding: Binding,
    /// The protocol's version that both ends speak.
    pub version: u8,
}

#[derive(Debug)]
struct PeerEntry {
    /// Empty: a place whose peer was removed, for the next one.
    name: String,
    addr: SocketAddr,
    /// The session, connected or not.
    asked: Option<SessionId>,
    /// The same once it is connected.
    up: Option<PeerSession>,
    /// No connection is tried before this: the peer has refused one.
    connect_at_ns: u64,
    /// Why there is no session.
    why: Option<String>,
    /// How often it is held.
    holds: usize,
}

/// See the module's text.
#[derive(Debug)]
pub struct Peers {
    /// This sidecore's index: its sessions carry it.
    index: u16,
    peers: Vec<PeerEntry>,
    /// How many peers were made known until now.
    made_known: u64,
    /// The earliest of the peers' times to be connected to again.
    connect_at_ns: u64,
    /// Something happened after which a peer may need a session.
    stirred: bool,
}

impl Peers {
    /// No peers, on the sidecore with this index.
    pub fn new(index: u16) -> Self {
        Self { index, peers: Vec::new(), made_known: 0, connect_at_ns: u64::MAX, stirred: false }
    }

    /// The sidecore's index.
    pub fn index(&self) -> u16 {
        self.index
    }

    /// Makes a peer known. A peer that is known keeps its session; its address is replaced for the
    /// next one.
    pub fn add(&mut self, name: &str, addr: SocketAddr) {
        if let Some(PeerId(at)) = self.find(name) {
            self.peers[at].addr = addr;
            return;
        }
        self.stirred = true;
        self.made_known += 1;
        let peer = PeerEntry {
            name: name.to_owned(),
            addr,
            asked: None,
            up: None,
            connect_at_ns: 0,
            why: None,
            holds: 0,
        };
        match self.peers.iter_mut().find(|peer| peer.name.is_empty()) {
            Some(vacant) => *vacant = peer,
            None => self.peers.push(peer),
        }
    }

    /// A number that changes whenever a peer is made known: a name that was not found may be one.
    #[inline]
    pub fn made_known(&self) -> u64 {
        self.made_known
    }

    /// Whether a session is kept with the peer.
    pub fn is_held(&self, peer: PeerId) -> bool {
        self.peers[peer.0].holds > 0
    }

    /// Forgets a peer. `Err`, and nothing is changed, while it is held. Gives its session, which
    /// the caller must close. A peer that is not known is forgotten already.
    pub(crate) fn remove(&mut self, name: &str) -> Result<Option<SessionId>, HeldPeer> {
        let Some(PeerId(at)) = self.find(name) else { return Ok(None) };
        let peer = &mut self.peers[at];
        if peer.holds > 0 {
            return Err(HeldPeer);
        }
        peer.name.clear();
        peer.up = None;
        Ok(peer.asked.take())
    }

    /// The session with a peer, connected or not.
    pub(crate) fn asked(&self, name: &str) -> Option<SessionId> {
        self.find(name).and_then(|PeerId(at)| self.peers[at].asked)
    }

    /// The peer of this name.
    pub fn find(&self, name: &str) -> Option<PeerId> {
        // An empty name is a vacant place's.
        let at = self.peers.iter().position(|peer| peer.name == name && !name.is_empty());
        at.map(PeerId)
    }

    /// Keeps a session with a peer, until as many calls of [`release`](Self::release) as of this.
    pub fn hold(&mut self, peer: PeerId) {
        self.peers[peer.0].holds += 1;
        self.stirred = true;
    }

    /// See [`hold`](Self::hold).
    pub fn release(&mut self, peer: PeerId) {
        let holds = &mut self.peers[peer.0].holds;
        *holds = holds.saturating_sub(1);
    }

    /// [`hold`](Self::hold) by name. A peer that is not known is left alone.
    pub fn hold_named(&mut self, name: &str) {
        if let Some(peer) = self.find(name) {
            self.hold(peer);
        }
    }

    /// [`release`](Self::release) by name. A peer that is not known is left alone.
    pub fn release_named(&mut self, name: &str) {
        if let Some(peer) = self.find(name) {
            self.release(peer);
        }
    }

    /// The peer's session, when it is up.
    pub fn session(&self, peer: PeerId) -> Option<PeerSession> {
        self.peers[peer.0].up
    }

    /// Whether the session is the one that this sidecore has opened to the peer.
    pub fn is_session_of(&self, peer: PeerId, session: SessionId) -> bool {
        self.peers[peer.0].asked == Some(session)
    }

    /// The peer's name.
    pub fn name(&self, peer: PeerId) -> &str {
        &self.peers[peer.0].name
    }

    /// Name and address, for people.
    pub fn describe(&self, peer: PeerId) -> String {
        let PeerEntry { name, addr, .. } = &self.peers[peer.0];
        format!("peer {name} at {addr}")
    }

    /// Why there is no session with the peer, for people.
    pub fn why_down(&self, peer: PeerId) -> &str {
        self.peers[peer.0].why.as_deref().unwrap_or("it does not answer")
    }

    /// Opens a session to each peer that is held and has none.
    pub fn poll(&mut self, now_ns: u64, endpoint: &mut Endpoint) -> Progress {
        // Almost every round ends here.
        if !self.stirred && now_ns < self.connect_at_ns {
            return Progress::Idle;
        }
        self.stirred = false;
        self.connect_at_ns = u64::MAX;
        let mut progress = Progress::Idle;
        for peer in self.peers.iter_mut().filter(|peer| peer.holds > 0 && peer.asked.is_none()) {
            if now_ns < peer.connect_at_ns {
                self.connect_at_ns = self.connect_at_ns.min(peer.connect_at_ns);
            } else {
                peer.asked = Some(endpoint.connect(now_ns, peer.addr, &peer.name, self.index));
                progress = Progress::Busy;
            }
        }
        progress
    }

    /// When [`poll`](Self::poll) must look again, if it must.
    pub fn next_ns(&self) -> Option<u64> {
        Some(self.connect_at_ns).filter(|&at_ns| at_ns != u64::MAX)
    }

    /// Whether [`poll`](Self::poll) has something to do now.
    pub(crate) fn is_stirred(&self) -> bool {
        self.stirred
    }

    /// A session is up. The peer, if this sidecore has opened the session to it.
    pub(crate) fn connected(&mut self, id: SessionId, info: &PeerInfo) -> Option<PeerId> {
        let at = self.peers.iter().position(|peer| peer.asked == Some(id))?;
        let peer = &mut self.peers[at];
        peer.up = Some(PeerSession { id, binding: info.binding, version: info.version });
        peer.why = None;
        Some(PeerId(at))
    }

    /// A session is over. The peer, if this sidecore had opened the session to it.
    pub(crate) fn lost(&mut self, now_ns: u64, id: SessionId, why: &LostReason) -> Option<PeerId> {
        let at = self.peers.iter().position(|peer| peer.asked == Some(id))?;
        self.stirred = true;
        let peer = &mut self.peers[at];
        (peer.asked, peer.up) = (None, None);
        if matches!(why, LostReason::Refused(_)) {
            peer.connect_at_ns = now_ns + ASK_AGAIN_NS;
        }
        peer.why = Some(why.to_string());
        Some(PeerId(at))
    }
}

/// The peer is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeldPeer;
