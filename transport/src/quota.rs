//! The part that a peer may have of what all peers share.
//!
//! One rule for buffers, sessions and flows ([`Share`]), one for work that costs time ([`Rate`]),
//! and one for the order of turns ([`FairQueue`]). A peer is a [`PeerIdentity`]; [`PeerNumbers`]
//! gives it a number, by which everything about it is found without a search.

use std::collections::VecDeque;
use std::net::IpAddr;

use crate::events::PeerInfo;

/// The peer that a quota is about.
///
/// In a sealed session the peer has proved to be the node of this name: a node with two keys is one
/// peer still. In a plain one any host may say any name, so the address belongs to it; an operator
/// that trusts the network trusts its names.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerIdentity {
    /// The node's name.
    pub name: String,
    /// Where it is, if that name is not proved.
    pub claimed_at: Option<IpAddr>,
}

impl PeerIdentity {
    /// The peer at the other end of a session.
    pub fn of(peer: &PeerInfo) -> Self {
        Self::new(&peer.name, peer.key.is_some(), peer.addr.ip())
    }

    pub(crate) fn new(name: &str, is_proved: bool, ip: IpAddr) -> Self {
        Self { name: name.to_owned(), claimed_at: (!is_proved).then_some(ip) }
    }
}

/// So many of something, for all peers.
///
/// A peer may take more as long as its new part is no larger than the free rest was before. So a
/// peer that takes all that it can get has half, and n such peers leave one part of n + 1 to a
/// newcomer. A peer is limited only in this way, and by nothing while no other peer wants anything.
/// Every peer may have one piece, as long as there is any.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// All.
    pub max: u64,
    /// The sum of all peers' parts.
    pub used: u64,
}

impl Share {
    /// Whether a peer that has `held` of it may have `more`.
    pub fn admits(&self, held: u64, more: u64) -> bool {
        let free = self.max.saturating_sub(self.used);
        more <= free && (held == 0 || held + more <= free)
    }

    /// The most that a peer that has `held` of it may have, as long as no other peer takes more.
    pub fn part(&self, held: u64) -> u64 {
        let free = self.max.saturating_sub(self.used);
        held.max((free + held).div_ceil(2))
    }
}

/// One peer's part of something that all peers share, for `vrio status`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaPart {
    /// So many, or so many bytes.
    pub has: u64,
    /// The most that it may have, as things are.
    pub has_max: u64,
    /// How often it asked for more than that.
    pub refused: u64,
}

impl QuotaPart {
    /// Whether the peer may have no more.
    pub fn is_at_limit(&self) -> bool {
        self.has > 0 && self.has >= self.has_max
    }
}

/// A limit of so many at once and one more in each interval.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rate {
    /// When all that were taken are forgiven.
    forgiven_ns: u64,
}

impl Rate {
    /// Whether one may be taken now.
    pub fn admits(&self, now_ns: u64, burst: u64, interval_ns: u64) -> bool {
        self.forgiven_ns.saturating_sub(now_ns) + interval_ns <= burst * interval_ns
    }

    /// Takes one.
    pub fn take(&mut self, now_ns: u64, interval_ns: u64) {
        self.forgiven_ns = self.forgiven_ns.max(now_ns) + interval_ns;
    }

    /// How many were taken and are not forgiven yet.
    pub fn taken(&self, now_ns: u64, interval_ns: u64) -> u64 {
        self.forgiven_ns.saturating_sub(now_ns).div_ceil(interval_ns)
    }

    /// When one may be taken, at the earliest.
    pub fn next_ns(&self, burst: u64, interval_ns: u64) -> u64 {
        (self.forgiven_ns + interval_ns).saturating_sub(burst * interval_ns)
    }
}

/// Peers by small numbers, with what is noted of each.
///
/// A number stays a peer's until it has nothing any more and another peer needs it, so that it is
/// seen for a while which peers were here.
#[derive(Debug)]
pub struct PeerNumbers<T> {
    entries: Vec<(PeerIdentity, T)>,
}

impl<T> Default for PeerNumbers<T> {
    fn default() -> Self {
        Self { entries: Vec::new() }
    }
}

impl<T: Default> PeerNumbers<T> {
    /// The number of a peer, and whether it is new. `None`: all of `max` numbers are of peers that
    /// have something, by what `has_nothing` says. Looks through the table: for handshakes, not
    /// for requests.
    pub fn enter(
        &mut self,
        peer: &PeerIdentity,
        max: usize,
        has_nothing: impl Fn(usize, &T) -> bool,
    ) -> Option<(usize, bool)> {
        if let Some(known) = self.entries.iter().position(|(known, _)| known == peer) {
            return Some((known, false));
        }
        let fresh = self.entries.len();
        let mut numbered = self.entries.iter().take(max).enumerate().filter(|_| fresh >= KNOWN_MAX);
        let of_nobody = numbered.find(|(number, (_, state))| has_nothing(*number, state));
        let number = of_nobody.map_or(fresh, |(number, _)| number);
        let entry = (peer.clone(), T::default());
        match self.entries.get_mut(number) {
            Some(place) => *place = entry,
            None if number < max => self.entries.push(entry),
            None => return None,
        }
        Some((number, true))
    }

    /// The number of a peer, but peers for which there is none share the number `max`: a flood of
    /// names costs its sender, which has names to spare, and peers that come late.
    pub fn enter_or_share(
        &mut self,
        peer: &PeerIdentity,
        max: usize,
        has_nothing: impl Fn(usize, &T) -> bool,
    ) -> usize {
        if let Some((number, _)) = self.enter(peer, max, has_nothing) {
            return number;
        }
        if self.entries.len() == max {
            let others = PeerIdentity { name: OTHERS.to_owned(), claimed_at: None };
            self.entries.push((others, T::default()));
        }
        max
    }
}

/// How the peers are called that share a number: no node has this name.
const OTHERS: &str = "(others)";

/// Places of a queue that are kept when it is empty: as many as a session has calls. A flood is not
/// paid for with memory for ever.
const WAITING_KEPT: usize = 1024;

/// Places of a peer's queue from its first item on: a round's work, so that a warm peer's queue
/// does not grow because one round was late.
const WAITING_FIRST: usize = 256;

/// Peers that are remembered although they have nothing any more.
const KNOWN_MAX: usize = 64;

/// A peer of a [`PeerNumbers`].
#[derive(Clone, Copy, Debug)]
pub struct RollEntry<'a, T> {
    /// Its number.
    pub number: usize,
    /// The peer.
    pub peer: &'a PeerIdentity,
    /// Its value.
    pub value: &'a T,
}

impl<T> PeerNumbers<T> {
    /// The value of a peer.
    pub fn get(&self, number: usize) -> &T {
        &self.entries[number].1
    }

    /// The value of a peer.
    pub fn get_mut(&mut self, number: usize) -> &mut T {
        &mut self.entries[number].1
    }

    /// All that are known.
    pub fn iter(&self) -> impl Iterator<Item = RollEntry<'_, T>> {
        let entries = self.entries.iter().enumerate();
        entries.map(|(number, (peer, value))| RollEntry { number, peer, value })
    }
}

/// The items of one peer that wait.
#[derive(Debug)]
struct PeerQueue<T> {
    items: VecDeque<T>,
    /// When there are more, items that are not wanted any more are dropped.
    tidy_at: usize,
}

impl<T> Default for PeerQueue<T> {
    fn default() -> Self {
        Self { items: VecDeque::new(), tidy_at: WAITING_KEPT }
    }
}

/// Waiting items, by peer: each peer gets its turn, however many items the others have waiting.
/// Once warm, nothing allocates.
#[derive(Debug)]
pub struct FairQueue<T> {
    /// By the peer's number.
    queues: Vec<PeerQueue<T>>,
    /// The peers with waiting items, each once; the first has the next turn.
    turns: VecDeque<usize>,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self { queues: Vec::new(), turns: VecDeque::new() }
    }
}

impl<T> FairQueue<T> {
    /// Adds something of a peer behind what it has waiting.
    pub fn push(&mut self, peer: usize, item: T) {
        if self.queues.len() <= peer {
            self.queues.resize_with(peer + 1, PeerQueue::default);
        }
        let queue = &mut self.queues[peer].items;
        if queue.capacity() == 0 {
            queue.reserve(WAITING_FIRST);
        }
        if queue.is_empty() {
            self.turns.push_back(peer);
        }
        queue.push_back(item);
    }

    /// The same. Once twice as many wait as were wanted the last time, items that are not wanted
    /// any more are dropped: nothing else bounds the items of sessions that a peer ends. That looks
    /// at each item twice at most, on average.
    pub fn push_tidily(&mut self, peer: usize, item: T, is_wanted: impl FnMut(&T) -> bool) {
        self.push(peer, item);
        let queue = &mut self.queues[peer];
        if queue.items.len() > queue.tidy_at {
            queue.items.retain(is_wanted);
            queue.tidy_at = (2 * queue.items.len()).max(WAITING_KEPT);
            if queue.items.is_empty() {
                self.turns.retain(|listed| *listed != peer);
            }
        }
    }

    /// Takes the oldest of the peer whose turn it is.
    pub fn pop(&mut self) -> Option<(usize, T)> {
        self.pop_of(|_, _| true)
    }

    /// The same, but passes over peers whose oldest may not be taken now, and keeps their place.
    pub fn pop_of(&mut self, mut may: impl FnMut(usize, &T) -> bool) -> Option<(usize, T)> {
        let queues = &self.queues;
        let oldest = |peer: usize| queues[peer].items.front().expect("a listed peer has something");
        let at = self.turns.iter().position(|&peer| may(peer, oldest(peer)))?;
        let peer = self.turns.remove(at).expect("just found");
        let queue = &mut self.queues[peer];
        let item = queue.items.pop_front().expect("a listed peer has something");
        if queue.items.is_empty() {
            queue.items.shrink_to(WAITING_KEPT);
            queue.tidy_at = WAITING_KEPT;
        } else {
            self.turns.push_back(peer);
        }
        Some((peer, item))
    }

    /// How many a peer has waiting.
    pub fn waiting(&self, peer: usize) -> usize {
        self.queues.get(peer).map_or(0, |queue| queue.items.len())
    }

    /// The oldest of each peer that has any.
    pub fn oldest(&self) -> impl Iterator<Item = (usize, &T)> {
        self.turns.iter().filter_map(|&peer| Some((peer, self.queues[peer].items.front()?)))
    }

    /// Whether no peer has an item waiting.
    pub fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greedy_peers_leave_a_part_to_a_newcomer() {
        for greedy in 1..20u64 {
            let mut share = Share { max: 1000, used: 0 };
            let mut held = vec![0u64; greedy as usize];
            let mut has_grown = true;
            while has_grown {
                has_grown = false;
                for held in &mut held {
                    if share.admits(*held, 1) {
                        (*held, share.used, has_grown) = (*held + 1, share.used + 1, true);
                    }
                }
            }
            assert!(held.iter().all(|&held| share.part(held) == held), "{share:?} {held:?}");
            let free = share.max - share.used;
            assert!(free >= 1000 / (greedy + 1) - 1, "{free} beside {greedy}");
            assert!(free <= 1000 / (greedy + 1) + greedy, "{free} beside {greedy}: too little");
        }
    }

    #[test]
    fn each_peer_may_have_one_piece_while_there_is_any() {
        let share = Share { max: 10, used: 9 };
        assert!(share.admits(0, 1) && !share.admits(0, 2) && !share.admits(1, 1));
        assert!(!Share { max: 10, used: 10 }.admits(0, 1));
    }

    #[test]
    fn a_part_is_what_is_admitted_piece_by_piece() {
        for max in 0..40 {
            for used in 0..=max {
                for held in 0..=used {
                    let mut share = Share { max, used };
                    let (part, mut has) = (share.part(held), held);
                    while share.admits(has, 1) {
                        (has, share.used) = (has + 1, share.used + 1);
                    }
                    assert_eq!(part, has, "{held} of {used} of {max}");
                }
            }
        }
    }

    #[test]
    fn a_rate_has_a_burst_and_forgives() {
        let mut rate = Rate::default();
        let mut taken = |now_ns: u64| {
            (0..1000)
                .filter(|_| {
                    rate.admits(now_ns, 8, 100) && {
                        rate.take(now_ns, 100);
                        true
                    }
                })
                .count()
        };
        assert_eq!([taken(5000), taken(5000), taken(5299), taken(1 << 40)], [8, 0, 2, 8]);
        assert_eq!(rate.next_ns(8, 100), (1 << 40) + 100);
    }

    #[test]
    fn each_peer_gets_its_turn() {
        let mut turns = FairQueue::default();
        (0..100).for_each(|item| turns.push(7, item));
        turns.push(2, 1000);
        turns.push(7, 100);
        turns.push(2, 1001);
        let got: Vec<_> = std::iter::from_fn(|| turns.pop()).collect();
        assert_eq!(got[..4], [(7, 0), (2, 1000), (7, 1), (2, 1001)]);
        assert!(got[4..].iter().map(|(_, item)| *item).eq(2..=100), "in order");
        assert!(turns.is_empty() && turns.waiting(7) == 0 && turns.waiting(99) == 0);
    }

    #[test]
    fn unwanted_shares_do_not_pile_up() {
        let mut turns = FairQueue::default();
        let (mut longest, mut dropped) = (0, 0);
        // Of each session's hundred calls the first is a live one's.
        for item in 0..1_000_000u64 {
            turns.push_tidily(3, item, |item| {
                let is_wanted = item % 100_000 == 0;
                dropped += u64::from(!is_wanted);
                is_wanted
            });
            longest = longest.max(turns.waiting(3));
        }
        assert!(longest <= WAITING_KEPT + 1, "{longest}");
        assert_eq!(dropped + turns.waiting(3) as u64, 1_000_000);
        turns.push_tidily(4, 7, |_| false);
        (0..WAITING_KEPT as u64).for_each(|item| turns.push_tidily(4, item, |_| false));
        assert_eq!((turns.waiting(4), turns.oldest().count()), (0, 1));
        let got: Vec<_> = std::iter::from_fn(|| turns.pop()).map(|(_, item)| item).collect();
        assert!(got.is_sorted() && got.iter().filter(|item| **item % 100_000 == 0).count() == 10);
    }

    #[test]
    fn a_peer_that_must_wait_keeps_its_place() {
        let mut turns = FairQueue::default();
        for item in [1, 2] {
            turns.push(0, item);
            turns.push(1, item);
        }
        assert_eq!(turns.pop_of(|peer, _| peer == 1), Some((1, 1)));
        assert_eq!(turns.pop_of(|_, item| *item > 2), None);
        assert_eq!(turns.pop(), Some((0, 1)));
        assert_eq!(turns.oldest().collect::<Vec<_>>(), [(1, &2), (0, &2)]);
    }

    #[test]
    fn a_number_is_anothers_once_its_peer_has_nothing() {
        let peer = |number: u8| PeerIdentity::new("x", false, IpAddr::from([10, 0, 0, number]));
        let mut roll = PeerNumbers::<u32>::default();
        let max = 100;
        let enter = |roll: &mut PeerNumbers<u32>, number: u8| {
            roll.enter(&peer(number), max.into(), |_, had| *had == 0)
        };
        for number in 0..max {
            assert_eq!(enter(&mut roll, number), Some((number.into(), true)));
            *roll.get_mut(number.into()) = 1;
        }
        assert_eq!(enter(&mut roll, 200), None);
        for late in 201..=203 {
            assert_eq!(roll.enter_or_share(&peer(late), max.into(), |_, had| *had == 0), 100);
        }
        *roll.get_mut(100) = 3;
        assert_eq!(enter(&mut roll, 7), Some((7, false)), "it is known");
        *roll.get_mut(50) = 0;
        assert_eq!(enter(&mut roll, 200), Some((50, true)));
        assert_eq!(roll.iter().filter(|entry| *entry.peer == peer(200)).count(), 1);
    }
}
