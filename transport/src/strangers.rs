//! Peers that asked for a session and were refused: their operator, or ours, has to know the
//! reason.
//!
//! Any sender of datagrams can cause entries, also in the name of addresses that are not the
//! sender's. So there are a few for each reason, the oldest makes room, and what is beyond them is
//! counted.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::keys::PublicKey;
use crate::wire::{
    REFUSED_EXPIRED_KEY, REFUSED_NAME, REFUSED_NOT_ACCEPTING, REFUSED_PLAIN_HERE,
    REFUSED_SEALED_HERE, REFUSED_UNKNOWN_KEY, REFUSED_VERSION, REFUSED_WRONG_KEY,
};

/// Strangers of one reason that are remembered: enough to see that there is more than one, few
/// enough that a list of all reasons fits a screen.
pub const STRANGERS_MAX: usize = 4;

/// Why a stranger got no session. A peer that has all the sessions that it may have is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StrangerReason {
    /// No protocol version is spoken at both ends.
    Version,
    /// Nothing here is open to peers.
    NotAccepting,
    /// The stranger asks for a plain session, and ours are sealed.
    Plain,
    /// The stranger asks for a sealed session, and ours are plain.
    Sealed,
    /// The stranger has another public key for this node than its own.
    WrongKey,
    /// The stranger's key is no peer's here.
    UnknownKey,
    /// The stranger's key was a peer's here, and has expired.
    ExpiredKey,
    /// The stranger's key is that of a peer of another name.
    Name,
}

impl StrangerReason {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 8] = [
        Self::Version,
        Self::NotAccepting,
        Self::Plain,
        Self::Sealed,
        Self::WrongKey,
        Self::UnknownKey,
        Self::ExpiredKey,
        Self::Name,
    ];

    /// Of a `REFUSED_*`.
    fn of(refused: u8) -> Option<Self> {
        Some(match refused {
            REFUSED_VERSION => Self::Version,
            REFUSED_NOT_ACCEPTING => Self::NotAccepting,
            REFUSED_SEALED_HERE => Self::Plain,
            REFUSED_PLAIN_HERE => Self::Sealed,
            REFUSED_WRONG_KEY => Self::WrongKey,
            REFUSED_UNKNOWN_KEY => Self::UnknownKey,
            REFUSED_EXPIRED_KEY => Self::ExpiredKey,
            REFUSED_NAME => Self::Name,
            _ => return None,
        })
    }
}

/// A peer that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stranger {
    /// Why.
    pub reason: StrangerReason,
    /// Where the last Hello came from: for all reasons but those about keys and names the sender
    /// has not shown that it is there.
    pub addr: SocketAddr,
    /// The name that the stranger gives itself, where it could be read: any text.
    pub name: Option<String>,
    /// The key that the stranger has proved to have.
    pub key: Option<PublicKey>,
    /// The protocol versions that the stranger speaks.
    pub versions: (u8, u8),
    /// Hellos of this stranger that were refused since it is remembered.
    pub refused: u64,
    /// When the last was.
    pub last_ns: u64,
}

impl Stranger {
    /// Whether it is the same one, from any port: a key says so, or else address and name.
    pub fn is_same(&self, other: &Self) -> bool {
        self.reason == other.reason
            && self.key == other.key
            && self.name == other.name
            && (self.key.is_some() || self.addr.ip() == other.addr.ip())
    }
}

/// A stranger's claims about itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claims<'a> {
    pub(crate) name: Option<&'a str>,
    pub(crate) key: Option<PublicKey>,
    pub(crate) versions: (u8, u8),
}

/// The strangers of one endpoint.
#[derive(Debug, Default)]
pub struct Strangers {
    found: Vec<Stranger>,
    refused: [u64; StrangerReason::ALL.len()],
    /// All of them together, for a thread that looks whether there is anything new.
    total: Arc<AtomicU64>,
}

impl Strangers {
    /// Those that are remembered.
    pub fn iter(&self) -> impl Iterator<Item = &Stranger> {
        self.found.iter()
    }

    /// Hellos that were refused, by reason, in the order of [`StrangerReason::ALL`].
    pub fn refused(&self) -> [u64; StrangerReason::ALL.len()] {
        self.refused
    }

    /// A number that grows with each refusal, to be read by any thread.
    pub fn total(&self) -> &Arc<AtomicU64> {
        &self.total
    }

    /// A Hello was refused for a `REFUSED_*`. Costs a look at [`STRANGERS_MAX`] entries of each
    /// reason, and a copy of the name.
    pub(crate) fn note(&mut self, now_ns: u64, refused: u8, addr: SocketAddr, says: Claims<'_>) {
        let Some(reason) = StrangerReason::of(refused) else { return };
        self.refused[reason as usize] += 1;
        self.total.fetch_add(1, Relaxed);
        let Claims { name, key, versions } = says;
        let name = name.map(str::to_owned);
        let new = Stranger { reason, addr, name, key, versions, refused: 1, last_ns: now_ns };
        if let Some(known) = self.found.iter_mut().find(|known| known.is_same(&new)) {
            *known = Stranger { refused: known.refused + 1, ..new };
            return;
        }
        let of_reason = |known: &&mut Stranger| known.reason == reason;
        let count = self.found.iter().filter(|known| known.reason == reason).count();
        match self.found.iter_mut().filter(of_reason).min_by_key(|known| known.last_ns) {
            Some(oldest) if count >= STRANGERS_MAX => *oldest = new,
            _ => self.found.push(new),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims(name: &str) -> Claims<'_> {
        Claims { name: Some(name), key: None, versions: (1, 5) }
    }

    #[test]
    fn a_stranger_is_the_same_with_any_port() {
        let mut strangers = Strangers::default();
        for port in 1..100 {
            let from = SocketAddr::from(([10, 0, 0, 1], port));
            strangers.note(u64::from(port), REFUSED_SEALED_HERE, from, claims("vm1"));
        }
        let found: Vec<_> = strangers.iter().collect();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].refused, found[0].last_ns, found[0].addr.port()), (99, 99, 99));
    }

    #[test]
    fn a_flood_of_one_reason_leaves_the_others_and_is_counted() {
        let mut strangers = Strangers::default();
        let from = |ip: u32| SocketAddr::from((ip.to_be_bytes(), 1));
        strangers.note(1, REFUSED_VERSION, from(1), claims("old"));
        for ip in 0..100_000 {
            strangers.note(2 + u64::from(ip), REFUSED_SEALED_HERE, from(ip), claims("flood"));
        }
        let of = |reason| strangers.iter().filter(|it| it.reason == reason).collect::<Vec<_>>();
        assert_eq!(of(StrangerReason::Version)[0].name.as_deref(), Some("old"));
        let flood = of(StrangerReason::Plain);
        assert_eq!(flood.len(), STRANGERS_MAX);
        assert!(flood.iter().any(|it| it.addr == from(99_999)), "the latest is there");
        assert_eq!(strangers.refused()[StrangerReason::Plain as usize], 100_000);
        assert_eq!(strangers.total().load(Relaxed), 100_001);
    }

    #[test]
    fn a_peer_with_all_its_sessions_is_no_stranger() {
        let mut strangers = Strangers::default();
        let from = SocketAddr::from(([10, 0, 0, 1], 1));
        strangers.note(1, crate::wire::REFUSED_SESSIONS_FULL, from, claims("vm1"));
        assert_eq!((strangers.iter().count(), strangers.total().load(Relaxed)), (0, 0));
    }
}
