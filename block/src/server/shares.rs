//! The share that each peer may have of a server: calls and bytes of a round in turn, channels, and
//! so many claims, opens and proofs in a second.

use transport::{
    PeerIdentity, PeerInfo, PeerNumbers, QuotaPart, Rate, RollEntry, SESSIONS_MAX, Share,
};

/// Bytes that the calls of one round read, write and zero, but for its last one: a copy of a
/// megabyte keeps a sidecore for a tenth of a millisecond or more.
const BYTES_PER_ROUND_MAX: u64 = 4 << 20;

/// The same of one peer. A longer call is paid in the rounds after it, so that a peer whose calls
/// are a thousand times as long as a neighbour's has as much of the sidecore, and not more.
const PEER_BYTES_PER_ROUND_MAX: u64 = 1 << 20;

/// Proofs looked at in one round: each costs some 100 us, which other peers' requests wait for.
const PROOFS_PER_ROUND_MAX: usize = 1;

/// Claims, opens, closes and descriptions in one round: an open costs some 30 us by estimate,
/// with the end of the channel that it replaces, and other peers' requests wait meanwhile.
const ATTACHMENTS_PER_ROUND_MAX: usize = 4;

/// Flows of all sessions of one sidecore, with those that drain: each costs a table of requests.
pub(super) const FLOWS_MAX: usize = 4096;

/// How many of something a peer may have at once, and one more in each interval.
#[derive(Clone, Copy, Debug)]
struct Allowance {
    burst: u64,
    interval_ns: u64,
}

/// The disks of a large node, which all claim when their server comes back. A claim costs its
/// volume a flush and a record; a hundred in a second leave a disk time for other peers.
const CLAIMS: Allowance = Allowance { burst: 256, interval_ns: 10_000_000 };

/// All channels that a single peer may have, which it opens when their server comes back. By
/// estimate an open costs some ten requests; a thousand in a second are a few hundredths of a
/// sidecore.
const OPENS: Allowance = Allowance { burst: FLOWS_MAX as u64 / 2, interval_ns: 1_000_000 };

/// Proofs: those of the disks of a large node with keys, for a description, a claim and two
/// channels of each. A proof costs a tenth of a millisecond, so a peer that sends nothing else has
/// two hundredths of a sidecore; the 256 disks confirm their descriptions with 51 in a second.
const PROOFS: Allowance = Allowance { burst: 1024, interval_ns: 5_000_000 };

/// Something that a peer has an allowance of.
#[derive(Debug)]
struct Limited {
    allowance: Allowance,
    rate: Rate,
    /// How often the next one had to wait.
    limited: u64,
}

impl Limited {
    fn new(allowance: Allowance) -> Self {
        Self { allowance, rate: Rate::default(), limited: 0 }
    }

    fn next_ns(&self) -> u64 {
        self.rate.next_ns(self.allowance.burst, self.allowance.interval_ns)
    }

    fn take(&mut self, now_ns: u64) {
        let Allowance { burst, interval_ns } = self.allowance;
        self.rate.take(now_ns, interval_ns);
        self.limited += u64::from(!self.rate.admits(now_ns, burst, interval_ns));
    }

    fn part(&self, now_ns: u64) -> QuotaPart {
        let Allowance { burst, interval_ns } = self.allowance;
        QuotaPart {
            has: self.rate.taken(now_ns, interval_ns),
            has_max: burst,
            refused: self.limited,
        }
    }
}

/// The costs of a call beyond a request about the volume.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Costs {
    pub(super) claim: bool,
    /// Everything else about an attachment or a volume: an open, a close, a description.
    pub(super) open: bool,
    pub(super) proof: bool,
    /// Bytes that it reads, writes or zeroes, or that would take as long to copy.
    pub(super) bytes: u64,
}

/// The rest of a round's budget, for all peers.
#[derive(Debug)]
pub(super) struct Left {
    attachments: usize,
    proofs: usize,
    bytes: u64,
}

impl Default for Left {
    fn default() -> Self {
        Self {
            attachments: ATTACHMENTS_PER_ROUND_MAX,
            proofs: PROOFS_PER_ROUND_MAX,
            bytes: BYTES_PER_ROUND_MAX,
        }
    }
}

impl Left {
    fn admits(&self, costs: Costs) -> bool {
        self.bytes > 0
            && (!costs.proof || self.proofs > 0)
            && (!costs.is_of_attachment() || self.attachments > 0)
    }

    pub(super) fn take(&mut self, costs: Costs) {
        self.attachments -= usize::from(costs.is_of_attachment());
        self.proofs -= usize::from(costs.proof);
        self.bytes = self.bytes.saturating_sub(costs.bytes);
    }
}

/// Bytes that a peer has had and not paid for: each round pays [`PEER_BYTES_PER_ROUND_MAX`].
#[derive(Clone, Copy, Debug, Default)]
struct Debt {
    bytes: u64,
    /// The round until which it is paid.
    round: u64,
}

impl Debt {
    fn at(self, round: u64) -> u64 {
        self.bytes.saturating_sub((round - self.round).saturating_mul(PEER_BYTES_PER_ROUND_MAX))
    }

    /// Whether the peer may have another call in this round: it pays for the round itself last.
    fn admits(self, round: u64) -> bool {
        self.at(round) < PEER_BYTES_PER_ROUND_MAX
    }

    fn take(&mut self, round: u64, bytes: u64) {
        *self = Self { bytes: self.at(round) + bytes, round };
    }
}

impl Costs {
    fn is_of_attachment(self) -> bool {
        self.claim || self.open
    }
}

/// The state that a server has for one peer.
#[derive(Debug)]
struct PeerHoldings {
    sessions: u64,
    /// Channels: open ones, and closed ones whose requests are still with the storage.
    channels: u64,
    channels_refused: u64,
    claims: Limited,
    opens: Limited,
    proofs: Limited,
    debt: Debt,
}

impl Default for PeerHoldings {
    fn default() -> Self {
        Self {
            sessions: 0,
            channels: 0,
            channels_refused: 0,
            claims: Limited::new(CLAIMS),
            opens: Limited::new(OPENS),
            proofs: Limited::new(PROOFS),
            debt: Debt::default(),
        }
    }
}

impl PeerHoldings {
    /// The limits against which a call with these costs counts.
    fn limits(&self, costs: Costs) -> impl Iterator<Item = &Limited> {
        let all =
            [(costs.claim, &self.claims), (costs.open, &self.opens), (costs.proof, &self.proofs)];
        all.into_iter().filter_map(|(counts, limited)| counts.then_some(limited))
    }

    /// The same, to count it.
    fn limits_mut(&mut self, costs: Costs) -> impl Iterator<Item = &mut Limited> {
        let all = [
            (costs.claim, &mut self.claims),
            (costs.open, &mut self.opens),
            (costs.proof, &mut self.proofs),
        ];
        all.into_iter().filter_map(|(counts, limited)| counts.then_some(limited))
    }
}

/// One peer's use of a sidecore's server, for `vrio status`.
#[derive(Clone, Debug)]
pub struct ServedPeer {
    /// Which peer.
    pub peer: PeerIdentity,
    /// Its channels: open ones, and closed ones whose requests are still with the storage.
    pub channels: QuotaPart,
    /// Claims that count against its rate. One that brought it to its limit counts as refused: the
    /// next waits.
    pub claims: QuotaPart,
    /// The same of its opens, closes and descriptions.
    pub opens: QuotaPart,
    /// The same of the proofs of keys in its calls.
    pub proofs: QuotaPart,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Shares {
    peers: PeerNumbers<PeerHoldings>,
    channels: u64,
    /// Rounds so far.
    round: u64,
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
        let has_nothing = |number: usize, held: &PeerHoldings| {
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

    /// A round begins, which pays a part of what each peer has had.
    pub(super) fn begin_round(&mut self) {
        self.round += 1;
    }

    /// Whether a call of a peer may be handled now: `left` is what is left of the round. The call
    /// waits if not, and with it what the same peer sent after it.
    pub(super) fn may_handle(
        &self,
        turn: TurnOwner,
        costs: Costs,
        left: &Left,
        now_ns: u64,
    ) -> bool {
        left.admits(costs) && self.pays(turn) && self.next_ns(turn, costs) <= now_ns
    }

    /// Whether the peer has not had more bytes than the rounds until now pay for.
    fn pays(&self, turn: TurnOwner) -> bool {
        turn.peer().is_none_or(|peer| self.peers.get(peer).debt.admits(self.round))
    }

    /// When the peer may send a call with these costs, at the earliest.
    pub(super) fn next_ns(&self, turn: TurnOwner, costs: Costs) -> u64 {
        let Some(peer) = turn.peer() else { return 0 };
        let limits = self.peers.get(peer).limits(costs);
        limits.map(Limited::next_ns).max().unwrap_or(0)
    }

    /// Notes a call of a peer that is handled.
    pub(super) fn take(&mut self, turn: TurnOwner, costs: Costs, now_ns: u64) {
        let Some(peer) = turn.peer() else { return };
        let round = self.round;
        let held = self.peers.get_mut(peer);
        held.debt.take(round, costs.bytes);
        held.limits_mut(costs).for_each(|limited| limited.take(now_ns));
    }

    pub(super) fn served(&self, now_ns: u64) -> impl Iterator<Item = ServedPeer> {
        self.peers.iter().map(move |RollEntry { peer, value: held, .. }| ServedPeer {
            peer: peer.clone(),
            channels: QuotaPart {
                has: held.channels,
                has_max: self.channel_share().part(held.channels),
                refused: held.channels_refused,
            },
            claims: held.claims.part(now_ns),
            opens: held.opens.part(now_ns),
            proofs: held.proofs.part(now_ns),
        })
    }
}

/// Whose turn it is: a peer's, or of the nodes that this one asked for sessions, which send
/// notices only.
#[derive(Clone, Copy, Debug)]
pub(super) struct TurnOwner(pub(super) usize);

impl TurnOwner {
    pub(super) fn of(peer: Option<usize>) -> Self {
        Self(peer.map_or(0, |peer| peer + 1))
    }

    pub(super) fn peer(self) -> Option<usize> {
        self.0.checked_sub(1)
    }
}
