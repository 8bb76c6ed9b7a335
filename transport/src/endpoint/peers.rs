//! Each peer's part of an endpoint, and whether the peer may have more.

use crate::SESSIONS_MAX;
use crate::endpoint::{Endpoint, HALF_OPEN_MAX, TableEntry};
use crate::events::{CallError, SessionId};
use crate::pool::{BufId, BufferOwner, Share};
use crate::quota::{self, PeerIdentity, QuotaPart, RollEntry};

/// Sessions that a single peer may have opened here: one for each of the 64 sidecores that a node
/// may have, twice, since a node that was restarted asks before its old sessions are forgotten, and
/// recordings of its Hellos may take the half of [`HALF_OPEN_MAX`].
pub(super) const SESSIONS_PER_PEER_MAX: u64 = 128;

/// Peers that have anything here: as many as there are sessions of both directions, and as many
/// again whose sessions are gone while the storage still has buffers of theirs.
const PEERS_MAX: usize = 4 * SESSIONS_MAX as usize;

/// One peer's part of this endpoint.
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
        self.sessions() + self.outgoing == 0
    }

    /// Those that count against its part. Half-open ones do, or all that a peer asks for at once
    /// would be let in before the first is confirmed.
    fn sessions(&self) -> u64 {
        self.incoming + self.half_open
    }
}

/// One peer's part of an endpoint, for `vrio status`.
#[derive(Clone, Debug)]
pub struct PeerShare {
    /// Which peer.
    pub peer: PeerIdentity,
    /// Sessions that it opened, those included that it has not confirmed.
    pub sessions: QuotaPart,
    /// Sessions that it asked for and has not confirmed. Beyond its part its oldest gives way, or
    /// where sessions are plain, the new one.
    pub handshakes: QuotaPart,
    /// Memory with bodies of its calls that are being put together, or served. A call beyond its
    /// part is not acknowledged, and comes again.
    pub calls_bytes: QuotaPart,
    /// Memory with messages to the peer: replies that it has not taken, and calls of ours. A
    /// message beyond its part waits.
    pub replies_bytes: QuotaPart,
}

impl Endpoint {
    /// The number of a peer. `None`: there are too many peers.
    pub(super) fn enter_peer(&mut self, peer: &PeerIdentity) -> Option<BufferOwner> {
        let pool = &self.pool;
        let has_nothing = |number: usize, state: &PeerState| {
            state.has_nothing() && !pool.has_any(BufferOwner::peer(number))
        };
        let (number, is_new) = self.peers.enter(peer, PEERS_MAX, has_nothing)?;
        let owner = BufferOwner::peer(number);
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
        let Some(TableEntry::Open(open)) = entry else { return Err(CallError::NotConnected) };
        let owner = open.agreed().owner;
        self.pool.alloc_for(owner, Share::Own, len_bytes).ok_or(CallError::Full)
    }

    /// The peer whose turn this place has when it sends: 0 is this node itself, which asks for
    /// sessions.
    pub(super) fn turn_of(&self, place: usize) -> usize {
        let owner = match &self.places[place].entry {
            TableEntry::Vacant | TableEntry::Connecting(_) => BufferOwner::NODE,
            TableEntry::HalfOpen(half_open) => half_open.owner,
            TableEntry::Open(session) => session.agreed().owner,
        };
        owner.number().map_or(0, |number| number + 1)
    }

    /// The rest of the sessions that peers may open.
    pub(super) fn session_share(&self) -> quota::Share {
        quota::Share { max: self.config.sessions_max.into(), used: self.incoming as u64 }
    }

    fn may_open(&self, state: &PeerState) -> bool {
        let has = state.sessions();
        has < SESSIONS_PER_PEER_MAX && self.session_share().admits(has, 1)
    }

    /// Whether a peer may open one more session; counts it if not.
    pub(super) fn admits_session(&mut self, owner: BufferOwner) -> bool {
        let Some(number) = owner.number() else { return true };
        let may = self.may_open(self.peers.get(number));
        self.peers.get_mut(number).sessions_refused += u64::from(!may);
        may
    }

    /// The parts of all peers that are here, or were lately.
    pub fn peers(&self) -> impl Iterator<Item = PeerShare> {
        let half_open = quota::Share { max: HALF_OPEN_MAX as u64, used: self.half_open as u64 };
        let sessions = self.session_share();
        self.peers.iter().map(move |RollEntry { number, peer, value: state }| PeerShare {
            peer: peer.clone(),
            sessions: QuotaPart {
                has: state.sessions(),
                has_max: sessions.part(state.sessions()).min(SESSIONS_PER_PEER_MAX),
                refused: state.sessions_refused,
            },
            handshakes: QuotaPart {
                has: state.half_open,
                has_max: half_open.part(state.half_open),
                refused: state.handshakes_refused,
            },
            calls_bytes: self.pool.part(BufferOwner::peer(number), Share::Incoming),
            replies_bytes: self.pool.part(BufferOwner::peer(number), Share::Own),
        })
    }
}
