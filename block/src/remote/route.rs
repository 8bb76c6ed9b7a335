//! Which of several peers is asked for a volume.
//!
//! The members of a replicated volume are on several peers, and one of them serves it. Every other
//! member says which member this is, as far as it knows. A client follows, and turns to the next
//! peer when its present peer is out of reach.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// How long a peer may be without a session before the next peer is asked. A session that breaks
/// and comes back at once, as in a hand-over, changes nothing.
pub(crate) const TURN_AFTER_NS: u64 = 200_000_000;

/// The most peers of a volume: a replicated volume's members, and room for members that change.
pub const ROUTE_PEERS_MAX: usize = 8;

/// The peers of a volume, and the peer that is asked now. All channels of the volume share it, so
/// that they ask the same peer.
#[derive(Debug)]
pub(crate) struct PeerRoute {
    peers: Box<[String]>,
    at: AtomicUsize,
}

impl PeerRoute {
    /// The first peer is asked first.
    pub(crate) fn new(peers: Box<[String]>) -> Self {
        assert!(
            !peers.is_empty() && peers.len() <= ROUTE_PEERS_MAX,
            "checked by its configuration"
        );
        Self { peers, at: AtomicUsize::new(0) }
    }

    /// The place in the list of the peer that is asked now.
    pub(crate) fn at(&self) -> usize {
        self.at.load(SeqCst)
    }

    /// The peers' names.
    pub(crate) fn peers(&self) -> &[String] {
        &self.peers
    }

    /// The peer at `from` says that the peer `named` serves the volume, or an empty name if it does
    /// not know the peer. A caller whose `from` is an old place changes nothing.
    pub(crate) fn follow(&self, from: usize, named: &str) {
        let to = self.peers.iter().position(|peer| peer == named);
        self.go(from, to.unwrap_or_else(|| self.next(from)));
    }

    /// The peer at `from` is out of reach: the next peer is asked. A caller whose `from` is an old
    /// place changes nothing.
    pub(crate) fn turn(&self, from: usize) {
        self.go(from, self.next(from));
    }

    fn next(&self, from: usize) -> usize {
        (from + 1) % self.peers.len()
    }

    /// The peer at `to` says that it serves the volume. A caller whose `from` is an old place
    /// changes nothing.
    pub(crate) fn go(&self, from: usize, to: usize) {
        // If another channel was first, the peer that it has found is asked.
        let _ = self.at.compare_exchange(from, to, SeqCst, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_that_find_the_same_turn_once() {
        let route = PeerRoute::new(["io1", "io2", "io3"].map(str::to_owned).into());
        route.turn(0);
        route.turn(0);
        assert_eq!(route.at(), 1);
        route.follow(1, "io1");
        route.follow(1, "io3");
        assert_eq!(route.at(), 0);
    }

    #[test]
    fn a_peer_that_is_not_in_the_list_is_no_way() {
        let route = PeerRoute::new(["io1", "io2"].map(str::to_owned).into());
        for (named, at) in [("io9", 1), ("", 0), ("io1", 0), ("io2", 1)] {
            route.follow(route.at(), named);
            assert_eq!(route.at(), at, "{named:?}");
        }
        let alone = PeerRoute::new(["io1".to_owned()].into());
        alone.turn(0);
        alone.follow(0, "io2");
        assert_eq!(alone.at(), 0);
    }
}
