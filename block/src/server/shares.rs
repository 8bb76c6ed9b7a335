//! What each peer may have of a server: calls of a round in turn, channels, claims in a second.

use transport::{Part, PeerIdentity, PeerInfo, Rate, Roll, SESSIONS_MAX, Share};

use super::{Called, FLOWS_MAX};

/// Claims of one peer at once: the disks of a large node, which all claim when their server comes
/// back.
pub(super) const CLAIMS_BURST: u64 = 256;

/// One more claim in each interval. A claim costs its volume a flush and a record; a hundred in a
/// second leave a disk time for other peers.
pub(super) const CLAIM_NS: u64 = 10_000_000;

/// What a server has for one peer.
#[derive(Debug, Default)]
struct Held {
    sessions: u64,
    /// Channels: open ones, and closed ones whose requests are still with the storage.
    channels: u64,
    claims: Rate,
    claims_limited: u64,
    channels_refused: u64,
}

/// What one peer has of a sidecore's server, for `vrio status`.
#[derive(Clone, Debug)]
pub struct ServedPeer {
    /// Which peer.
    pub peer: PeerIdentity,
    /// Its channels: open ones, and closed ones whose requests are still with the storage.
    pub channels: Part,
    /// Claims that count against its rate. One that brought it to its limit counts as refused: the
    /// next waits.
    pub claims: Part,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Shares {
    peers: Roll<Held>,
    channels: u64,
}

impl Shares {
    /// A session with a peer begins; gives the peer's number. `is_waited_for` says of a number that
    /// something of its peer still waits.
    pub(super) fn connected(
        &mut self,
        info: &PeerInfo,
        is_waited_for: impl Fn(usize) -> bool,
    ) -> usize {
        let identity = PeerIdentity::of(info);
        let has_nothing = |number: usize, held: &Held| {
            held.sessions + held.channels == 0 && !is_waited_for(number)
        };
        // As many as have sessions or channels, and as many again whose last calls wait.
        let max = 2 * (usize::from(SESSIONS_MAX) + FLOWS_MAX);
        let number = self.peers.enter_or_share(&identity, max, has_nothing);
        self.peers.get_mut(number).sessions += 1;
        number
    }

    pub(super) fn lost(&mut self, peer: usize) {
        self.peers.get_mut(peer).sessions -= 1;
    }

    fn channel_share(&self) -> Share {
        Share { max: FLOWS_MAX as u64, used: self.channels }
    }

    /// Takes a place for one more channel, if the peer may have it; counts it if not.
    pub(super) fn take_channel(&mut self, peer: usize) -> bool {
        let share = self.channel_share();
        let held = self.peers.get_mut(peer);
        let may = share.admits(held.channels, 1);
        held.channels_refused += u64::from(!may);
        if may {
            self.add_channel(peer);
        }
        may
    }

    /// Notes a place of a channel that a peer has.
    pub(super) fn add_channel(&mut self, peer: usize) {
        self.peers.get_mut(peer).channels += 1;
        self.channels += 1;
    }

    /// Gives a place back.
    pub(super) fn give_channel(&mut self, peer: usize) {
        self.peers.get_mut(peer).channels -= 1;
        self.channels -= 1;
    }

    /// Whether a call of a peer may be handled now: `proofs_left` is what is left of the round's
    /// proofs. The call waits if not, and with it what the same peer sent after it.
    pub(super) fn may_handle(
        &self,
        turn: Turn,
        called: &Called,
        proofs_left: usize,
        now_ns: u64,
    ) -> bool {
        let may_prove = !called.has_proof || proofs_left > 0;
        may_prove && (!called.is_claim || self.claim_ns(turn) <= now_ns)
    }

    /// When the peer may claim, at the earliest.
    pub(super) fn claim_ns(&self, turn: Turn) -> u64 {
        let held = turn.peer().map(|peer| self.peers.get(peer));
        held.map_or(0, |held| held.claims.next_ns(CLAIMS_BURST, CLAIM_NS))
    }

    /// Notes a claim of a peer.
    pub(super) fn claims(&mut self, turn: Turn, now_ns: u64) {
        let Some(peer) = turn.peer() else { return };
        let held = self.peers.get_mut(peer);
        held.claims.take(now_ns, CLAIM_NS);
        held.claims_limited += u64::from(!held.claims.admits(now_ns, CLAIMS_BURST, CLAIM_NS));
    }

    pub(super) fn served(&self, now_ns: u64) -> impl Iterator<Item = ServedPeer> {
        self.peers.iter().map(move |(_, peer, held)| ServedPeer {
            peer: peer.clone(),
            channels: Part {
                has: held.channels,
                has_max: self.channel_share().part(held.channels),
                refused: held.channels_refused,
            },
            claims: Part {
                has: held.claims.taken(now_ns, CLAIM_NS),
                has_max: CLAIMS_BURST,
                refused: held.claims_limited,
            },
        })
    }
}

/// Whose turn it is: a peer's, or of the nodes that this one asked for sessions, which send
/// notices only.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn(pub(super) usize);

impl Turn {
    pub(super) fn of(peer: Option<usize>) -> Self {
        Self(peer.map_or(0, |peer| peer + 1))
    }

    pub(super) fn peer(self) -> Option<usize> {
        self.0.checked_sub(1)
    }
}
