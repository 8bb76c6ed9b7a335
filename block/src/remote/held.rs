//! A volume's peers on one sidecore.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use peer::{PeerId, PeerSession, Peers};
use transport::SessionId;

use super::route::{PeerRoute, RoutePlaces, RouteSpot};

/// The peers of a volume as one sidecore knows them. It holds sessions with all of them, so that a
/// move costs no handshake. A peer that the sidecore does not know is passed over until it does.
#[derive(Debug)]
pub(crate) struct HeldRoute {
    route: Arc<PeerRoute>,
    peers: Rc<RefCell<Peers>>,
    /// The peer that is asked, and the list, as of the last look.
    spot: RouteSpot,
    /// Peers that were made known to the sidecore until then.
    known: u64,
    held: RoutePlaces<PeerId>,
}

impl HeldRoute {
    pub(crate) fn new(route: &Arc<PeerRoute>, peers: &Rc<RefCell<Peers>>) -> Self {
        let (route, peers) = (Arc::clone(route), Rc::clone(peers));
        let spot = route.spot();
        let mut it = Self { route, peers, spot, known: 0, held: RoutePlaces::default() };
        it.look();
        it
    }

    /// Whether the sidecore knows one of the peers.
    pub(crate) fn is_known(&self) -> bool {
        self.held.iter().any(Option::is_some)
    }

    /// Whether another peer may be asked since the last look. Every round comes here.
    #[inline]
    pub(crate) fn is_behind(&self) -> bool {
        self.route.spot() != self.spot || self.peers.borrow().made_known() != self.known
    }

    /// Follows the route. Whether the peer that was asked is not asked any more.
    pub(crate) fn follow(&mut self) -> bool {
        if !self.is_behind() {
            return false;
        }
        let before = self.peer();
        self.look();
        before.is_some() && self.peer() != before
    }

    /// Looks the list up. Peers that stay are held throughout.
    fn look(&mut self) {
        let mut peers = self.peers.borrow_mut();
        self.known = peers.made_known();
        let (spot, held) = self.route.look_up(|name| peers.find(name));
        held.iter().flatten().for_each(|peer| peers.hold(*peer));
        self.held.iter().flatten().for_each(|peer| peers.release(*peer));
        (self.spot, self.held) = (spot, held);
    }

    /// The peer that is asked; none while the sidecore does not know it.
    pub(crate) fn peer(&self) -> Option<PeerId> {
        self.held[self.spot.place()]
    }

    /// The session with the peer that is asked, when it is up.
    pub(crate) fn session(&self) -> Option<PeerSession> {
        self.peer().and_then(|peer| self.peers.borrow().session(peer))
    }

    /// Whether the volume has other peers.
    pub(crate) fn has_others(&self) -> bool {
        self.held.iter().enumerate().any(|(at, it)| it.is_some() && at != self.spot.place())
    }

    /// The peer with which the sidecore has opened this session.
    pub(crate) fn place_of(&self, session: SessionId) -> Option<usize> {
        let peers = self.peers.borrow();
        self.held.iter().position(|it| it.is_some_and(|peer| peers.is_session_of(peer, session)))
    }

    /// The place of the peer that is asked, as of the last look.
    pub(crate) fn place(&self) -> usize {
        self.spot.place()
    }

    /// The peer that is asked says that the peer `named` serves the volume, or an empty name if it
    /// does not know the peer.
    pub(crate) fn sent_to(&self, named: &str) {
        let to = self.route.find(named).filter(|at| self.held[*at].is_some());
        self.route.go(self.spot, to.unwrap_or_else(|| self.next()));
    }

    /// The peer that is asked is out of reach, or cannot serve: the next peer is asked.
    pub(crate) fn turn(&self) {
        self.route.go(self.spot, self.next());
    }

    /// The peer at this place says that it serves the volume.
    pub(crate) fn go(&self, place: usize) {
        self.route.go(self.spot, place);
    }

    /// The next place with a peer that the sidecore knows.
    fn next(&self) -> usize {
        let (at, count) = (self.spot.place(), self.held.len());
        let mut others = (at + 1..at + count).map(|it| it % count);
        others.find(|it| self.held[*it].is_some()).unwrap_or(at)
    }
}

impl Drop for HeldRoute {
    fn drop(&mut self) {
        let mut peers = self.peers.borrow_mut();
        self.held.iter().flatten().for_each(|peer| peers.release(*peer));
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use super::*;

    fn rig(list: &[&str], known: &[&str]) -> (Arc<PeerRoute>, Rc<RefCell<Peers>>, HeldRoute) {
        let list: Vec<String> = list.iter().map(|&it| it.to_owned()).collect();
        let route = Arc::new(PeerRoute::new(&list));
        let peers = Rc::new(RefCell::new(Peers::new(0)));
        known.iter().for_each(|name| add(&peers, name));
        let held = HeldRoute::new(&route, &peers);
        (route, peers, held)
    }

    fn add(peers: &RefCell<Peers>, name: &str) {
        peers.borrow_mut().add(name, SocketAddr::from((Ipv4Addr::LOCALHOST, 1)));
    }

    #[test]
    fn a_peer_that_is_not_in_the_list_is_no_way() {
        let (route, _peers, mut held) = rig(&["io1", "io2"], &["io1", "io2", "io9"]);
        for (named, at) in [("io9", "io2"), ("", "io1"), ("io1", "io1"), ("io2", "io2")] {
            held.sent_to(named);
            held.follow();
            assert_eq!(route.asked(), at, "{named:?}");
        }
        let (route, _peers, held) = rig(&["io1"], &["io1", "io2"]);
        held.turn();
        held.sent_to("io2");
        assert_eq!(route.asked(), "io1");
    }

    #[test]
    fn a_peer_that_the_sidecore_does_not_know_is_passed_over() {
        let (route, peers, mut held) = rig(&["io1", "io2", "io3"], &["io1", "io3"]);
        held.sent_to("io2");
        assert!(held.follow());
        assert_eq!(route.asked(), "io3");
        add(&peers, "io2");
        assert!(held.is_behind() && !held.follow(), "the same peer is asked");
        held.sent_to("io2");
        assert!(held.follow());
        assert_eq!(route.asked(), "io2");
    }

    #[test]
    fn the_peers_of_the_list_are_held_and_no_others() {
        let (route, peers, mut held) = rig(&["io1", "io2"], &["io1", "io2", "io3"]);
        let is_held = |name: &str| {
            let peers = peers.borrow();
            peers.is_held(peers.find(name).expect("known"))
        };
        assert!(is_held("io1") && is_held("io2") && !is_held("io3"));
        route.set(&["io3".to_owned()]);
        assert!(held.follow(), "the place of io1 has another peer");
        assert!(!is_held("io1") && !is_held("io2") && is_held("io3"));
        drop(held);
        assert!(!is_held("io3"));
    }
}
