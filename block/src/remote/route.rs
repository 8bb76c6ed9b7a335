//! Which of several peers is asked for a volume.
//!
//! The members of a replicated volume are on several peers, and one of them serves it. Every other
//! member says which member this is, as far as it knows. A client follows, and turns to the next
//! peer when its present peer is out of reach.
//!
//! The list of peers can be replaced while requests are under way. Each peer has a *place*, and
//! keeps it as long as it is in the list. A sidecore looks names up again when the number of the
//! list has changed: [`super::held::HeldRoute`].

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use parking_lot::Mutex;

/// How long a peer may be without a session before the next peer is asked. A session that breaks
/// and comes back at once, as in a hand-over, changes nothing.
pub(crate) const TURN_AFTER_NS: u64 = 200_000_000;

/// The most peers of a volume: a replicated volume's members, and room for members that change.
pub const ROUTE_PEERS_MAX: usize = 8;

/// How many bits of the route's word are the place.
const PLACE_BITS: u32 = 8;

const _: () = assert!(ROUTE_PEERS_MAX < 1 << PLACE_BITS);

/// Names by their places; a place is vacant when its peer has left the list.
pub(crate) type RoutePlaces<T> = [Option<T>; ROUTE_PEERS_MAX];

/// The peer that is asked: its place, and the number of the list in which it has this place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RouteSpot(u64);

impl RouteSpot {
    fn new(list: u64, place: usize) -> Self {
        Self(list << PLACE_BITS | place as u64)
    }

    pub(crate) fn place(self) -> usize {
        (self.0 & ((1 << PLACE_BITS) - 1)) as usize
    }

    fn list(self) -> u64 {
        self.0 >> PLACE_BITS
    }
}

#[derive(Debug, Default)]
struct PeerList {
    /// As they were given.
    names: Vec<String>,
    places: RoutePlaces<String>,
}

/// The peers of a volume, and the peer that is asked now. All channels of the volume share it, so
/// that they ask the same peer.
#[derive(Debug)]
pub(crate) struct PeerRoute {
    /// For control paths alone: a channel knows from `at` whether it must look here.
    peers: Mutex<PeerList>,
    /// A [`RouteSpot`] in one word, so that a single load says whether another peer is asked, or
    /// the list has changed. Its list changes with `peers` locked.
    at: AtomicU64,
}

impl PeerRoute {
    /// The first peer is asked first.
    pub(crate) fn new(peers: &[String]) -> Self {
        let route = Self { peers: Mutex::default(), at: AtomicU64::new(0) };
        route.set(peers);
        route
    }

    /// The peer that is asked now.
    pub(crate) fn spot(&self) -> RouteSpot {
        RouteSpot(self.at.load(SeqCst))
    }

    /// The peers' names, in the order of the list.
    pub(crate) fn names(&self) -> Vec<String> {
        self.peers.lock().names.clone()
    }

    /// The name of the peer that is asked now.
    pub(crate) fn asked(&self) -> String {
        let peers = self.peers.lock();
        peers.places[self.spot().place()].clone().expect("a peer of the list is asked")
    }

    /// Looks all names up, and gives the peer that is asked in this list.
    pub(crate) fn look_up<T>(
        &self,
        find: impl Fn(&str) -> Option<T>,
    ) -> (RouteSpot, RoutePlaces<T>) {
        let peers = self.peers.lock();
        let found = std::array::from_fn(|at| peers.places[at].as_deref().and_then(&find));
        (self.spot(), found)
    }

    /// The place of a peer of the list.
    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        self.peers.lock().places.iter().position(|it| it.as_deref() == Some(name))
    }

    /// Replaces the list. A peer of both lists keeps its place, and is asked on; if the peer that
    /// is asked has left, the first peer of the new list is asked.
    pub(crate) fn set(&self, names: &[String]) {
        assert!(
            !names.is_empty() && names.len() <= ROUTE_PEERS_MAX,
            "checked by its configuration"
        );
        let mut peers = self.peers.lock();
        peers.names = names.to_vec();
        let before = peers.places.clone();
        for place in &mut peers.places {
            place.take_if(|name| !names.contains(name));
        }
        for name in names {
            if !peers.places.iter().flatten().any(|it| it == name) {
                let vacant = peers.places.iter_mut().find(|it| it.is_none());
                *vacant.expect("as many places as a list has names") = Some(name.clone());
            }
        }
        if peers.places == before {
            return;
        }
        let first = peers.places.iter().position(|it| it.as_ref() == Some(&names[0]));
        let first = first.expect("it has just got a place");
        let next = |word: u64| {
            let (list, at) = (RouteSpot(word).list() + 1, RouteSpot(word).place());
            let is_asked_on = before[at].is_some() && before[at] == peers.places[at];
            Some(RouteSpot::new(list, if is_asked_on { at } else { first }).0)
        };
        // A channel may move the place meanwhile, within the old list.
        let _ = self.at.fetch_update(SeqCst, SeqCst, next);
    }

    /// The peer at `to` is asked, a place in the list of `from`. A caller whose `from` is an old
    /// spot changes nothing.
    pub(crate) fn go(&self, from: RouteSpot, to: usize) {
        let to = RouteSpot::new(from.list(), to);
        // If another channel was first, the peer that it has found is asked.
        let _ = self.at.compare_exchange(from.0, to.0, SeqCst, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        text.split(',').map(str::to_owned).collect()
    }

    #[test]
    fn channels_that_find_the_same_move_once() {
        let route = PeerRoute::new(&names("io1,io2,io3"));
        let from = route.spot();
        route.go(from, 1);
        route.go(from, 2);
        assert_eq!(route.asked(), "io2");
    }

    #[test]
    fn peers_of_both_lists_keep_their_places() {
        let route = PeerRoute::new(&names("io1,io2"));
        let before = route.spot();
        route.set(&names("io3,io1"));
        assert_eq!((route.asked(), route.find("io3")), ("io1".to_owned(), Some(1)));
        assert_eq!((route.find("io2"), route.find("")), (None, None));
        assert_eq!(route.names(), ["io3", "io1"]);
        // A channel that has found something in the old list moves nothing in the new list.
        route.go(before, 1);
        assert_eq!(route.asked(), "io1");
        // The same peers in another order are no other list.
        let before = route.spot();
        route.set(&names("io1,io3"));
        assert_eq!((route.spot(), route.names()), (before, names("io1,io3")));
    }

    #[test]
    fn a_peer_that_has_left_is_not_asked_on() {
        let route = PeerRoute::new(&names("io1,io2"));
        let before = route.spot();
        route.set(&names("io3"));
        assert_eq!((route.asked(), route.spot().place()), ("io3".to_owned(), 0));
        assert_ne!(route.spot(), before, "the place has another peer");
        route.set(&names("a,b,c,d,e,f,g,h"));
        assert_eq!(route.asked(), "a");
        route.go(route.spot(), route.find("h").unwrap());
        route.set(&names("h,io1"));
        assert_eq!(route.asked(), "h");
        let (spot, found) = route.look_up(|name| (name == "io1").then_some(()));
        assert_eq!((spot, found.iter().flatten().count()), (route.spot(), 1));
    }
}
