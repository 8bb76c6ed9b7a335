//! What each peer has of an endpoint, and whether it may have more.

use crate::SESSIONS_MAX;
use crate::endpoint::{Endpoint, Entry, HALF_OPEN_MAX};
use crate::events::{CallError, SessionId};
use crate::pool::{BufId, Owner, Share};
use crate::quota::{self, PeerIdentity};

/// Sessions that one peer may have opened here: one for each of the 64 sidecores that a node may
/// have, twice, since a node that was restarted asks before its old sessions are forgotten.
pub(super) const SESSIONS_PER_PEER_MAX: u64 = 128;

/// Peers that have anything here: as many as there are sessions of both directions, and as many
/// again whose sessions are gone while the storage still has buffers of theirs.
const PEERS_MAX: usize = 4 * SESSIONS_MAX as usize;

/// What one peer has here.
#[derive(Debug, Default)]
pub(super) struct PeerState {
    /// Sessions that it opened, and that we did.
    pub(super) incoming: u64,
    pub(super) outgoing: u64,
    /// Sessions that it asked for and has not confirmed.
    pub(super) half_open: u64,
    pub(super) sessions_refused: u64,
    pub(super) handshakes_refused: u64,
}

impl PeerState {
    fn has_nothing(&self) -> bool {
        self.incoming + self.outgoing + self.half_open == 0
    }
}

/// What one peer has of an endpoint, for `vrio status`.
#[derive(Clone, Debug)]
pub struct PeerShare {
    /// Which peer.
    pub peer: PeerIdentity,
    /// Sessions that it opened.
    pub sessions: u64,
    /// It may have no more.
    pub sessions_at_limit: bool,
    /// How often it asked for one more.
    pub sessions_refused: u64,
    /// Sessions that it asked for and has not confirmed.
    pub handshakes: u64,
    /// It may have no more of them: its oldest gives way, or where sessions are plain, the new one.
    pub handshakes_at_limit: bool,
    /// How often that was so.
    pub handshakes_refused: u64,
    /// Memory with bodies of its calls: being put together, or served.
    pub calls_bytes: u64,
    /// It may have no more.
    pub calls_at_limit: bool,
    /// Times that it began one more. It was not acknowledged, and comes again.
    pub calls_refused: u64,
    /// Memory with what is for it: replies that it has not taken, and calls of ours.
    pub replies_bytes: u64,
    /// It may have no more.
    pub replies_at_limit: bool,
    /// Times that something for it had to wait for that.
    pub replies_refused: u64,
}

impl Endpoint {
    /// The number of a peer. `None`: there are too many peers.
    pub(super) fn enter_peer(&mut self, peer: &PeerIdentity) -> Option<Owner> {
        let pool = &self.pool;
        let has_nothing = |number: usize, state: &PeerState| {
            state.has_nothing() && !pool.has_any(Owner::peer(number))
        };
        let (number, is_new) = self.peers.enter(peer, PEERS_MAX, has_nothing)?;
        let owner = Owner::peer(number);
        if is_new {
            self.pool.begin_holding(owner);
        }
        Some(owner)
    }

    /// Takes a buffer for a message to the peer of a session, of that peer's part of the pool.
    ///
    /// # Errors
    /// [`CallError::Full`]: the peer has its part already, since it does not take what is for it,
    /// or there is no buffer at all. [`CallError::NotConnected`]: the session is gone.
    pub fn buffer_for(&mut self, session: SessionId, len_bytes: usize) -> Result<BufId, CallError> {
        let entry = self.find(session).map(|place| &self.places[place].entry);
        let Some(Entry::Open(open)) = entry else { return Err(CallError::NotConnected) };
        let owner = open.agreed().owner;
        self.pool.alloc_for(owner, Share::Own, len_bytes).ok_or(CallError::Full)
    }

    /// Whose turn it is when this place is to send: 0 is this node itself, which asks for sessions.
    pub(super) fn turn_of(&self, place: usize) -> usize {
        let owner = match &self.places[place].entry {
            Entry::Vacant | Entry::Connecting(_) => Owner::NODE,
            Entry::HalfOpen(half_open) => half_open.owner,
            Entry::Open(session) => session.agreed().owner,
        };
        owner.number().map_or(0, |number| number + 1)
    }

    /// What is left of the sessions that peers may open.
    pub(super) fn session_share(&self) -> quota::Share {
        quota::Share { max: self.config.sessions_max.into(), used: self.incoming as u64 }
    }

    fn may_open(&self, state: &PeerState) -> bool {
        state.incoming < SESSIONS_PER_PEER_MAX && self.session_share().admits(state.incoming, 1)
    }

    /// Whether a peer may open one more session; counts it if not.
    pub(super) fn admits_session(&mut self, owner: Owner) -> bool {
        let Some(number) = owner.number() else { return true };
        let may = self.may_open(self.peers.get(number));
        self.peers.get_mut(number).sessions_refused += u64::from(!may);
        may
    }

    /// What each peer has here that is here, or was lately.
    pub fn peers(&self) -> impl Iterator<Item = PeerShare> {
        let half_open = quota::Share { max: HALF_OPEN_MAX as u64, used: self.half_open as u64 };
        self.peers.iter().map(move |(number, peer, state)| {
            let owner = Owner::peer(number);
            let bytes = |share| self.pool.held_bytes(owner, share);
            let at_limit = |share| bytes(share) > 0 && self.pool.is_at_limit(owner, share);
            PeerShare {
                peer: peer.clone(),
                sessions: state.incoming,
                sessions_at_limit: state.incoming > 0 && !self.may_open(state),
                sessions_refused: state.sessions_refused,
                handshakes: state.half_open,
                handshakes_at_limit: state.half_open > 0 && !half_open.admits(state.half_open, 1),
                handshakes_refused: state.handshakes_refused,
                calls_bytes: bytes(Share::Incoming),
                calls_at_limit: at_limit(Share::Incoming),
                calls_refused: self.pool.refused_to(owner, Share::Incoming),
                replies_bytes: bytes(Share::Own),
                replies_at_limit: at_limit(Share::Own),
                replies_refused: self.pool.refused_to(owner, Share::Own),
            }
        })
    }
}
