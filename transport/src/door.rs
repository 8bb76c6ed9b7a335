//! Limits to the costs that strangers cause: cookies, and a limit to handshakes.
//!
//! A Hello costs a stranger nothing, and its sender's address may be false. So the sender gets a
//! cookie first, which only the owner of that address receives. Until the cookie comes back,
//! nothing is kept and nothing is computed but one hash. A connector that has shown its address may
//! ask for a bounded number of handshakes, since those cost operations on a curve.

use std::collections::HashSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::hmac;

use crate::quota::Rate;
use crate::seal::HelloDigest;
use crate::wire::COOKIE_BYTES;

/// A connector's proof that it receives at its address.
pub(crate) type Cookie = [u8; COOKIE_BYTES];

/// A cookie is good in the period in which it was made and in the next one.
const PERIOD_NS: u64 = 60_000_000_000;

/// Places in the table of sources. Sources that share a place share its limit; a secret decides
/// which sources share one.
const SOURCES: usize = 1024;

/// Handshakes of one source: at once (one for each session of a large node, twice), and how long
/// each takes to be forgiven.
const SOURCE_BURST: u64 = 64;
const SOURCE_NS: u64 = 50_000_000;

/// Handshakes of all sources together: a thousand in a second are a sixth of a core.
const ALL_BURST: u64 = 256;
const ALL_NS: u64 = 1_000_000;

/// Hellos that are remembered of one period: all that the limits admit in it.
const SEEN_MAX: usize = (PERIOD_NS / ALL_NS + ALL_BURST) as usize;

/// See the module.
pub(crate) struct Door {
    secret: hmac::Key,
    sources: Vec<Rate>,
    all: Rate,
    /// Hellos that cost us a handshake in this period and in the one before: for as long as their
    /// cookies are good.
    seen: [HashSet<u128>; 2],
    seen_period: u64,
}

/// Enough of a digest that no attacker finds another Hello with the same.
fn mark(digest: &HelloDigest) -> u128 {
    u128::from_le_bytes(digest[..16].try_into().expect("a digest is longer"))
}

impl Door {
    /// `secret` is random, and this door's alone.
    pub(crate) fn new(secret: &[u8; 32]) -> Self {
        Self {
            secret: hmac::Key::new(hmac::HMAC_SHA256, secret),
            sources: vec![Rate::default(); SOURCES],
            all: Rate::default(),
            seen: Default::default(),
            seen_period: 0,
        }
    }

    /// Whether this Hello was here before, within the time that its cookie is good.
    pub(crate) fn has_seen(&mut self, now_ns: u64, digest: &HelloDigest) -> bool {
        self.turn_page(now_ns);
        self.seen.iter().any(|seen| seen.contains(&mark(digest)))
    }

    /// Remembers a Hello that was [admitted](Self::admits).
    pub(crate) fn saw(&mut self, now_ns: u64, digest: &HelloDigest) {
        self.turn_page(now_ns);
        // The limits admit no more.
        if self.seen[0].len() < SEEN_MAX {
            self.seen[0].insert(mark(digest));
        }
    }

    fn turn_page(&mut self, now_ns: u64) {
        let period = now_ns / PERIOD_NS;
        if period == self.seen_period {
            return;
        }
        self.seen.swap(0, 1);
        self.seen[0] = HashSet::new();
        if period != self.seen_period + 1 {
            self.seen[1] = HashSet::new();
        }
        self.seen_period = period;
    }

    /// The cookie for a Hello from this address for this session of the connector's.
    pub(crate) fn cookie(&self, now_ns: u64, from: SocketAddr, session: u64) -> Cookie {
        self.cookie_of(now_ns / PERIOD_NS, from, session)
    }

    /// Whether a cookie is ours, for this address and session, and not too old.
    pub(crate) fn knows(
        &self,
        now_ns: u64,
        from: SocketAddr,
        session: u64,
        cookie: &Cookie,
    ) -> bool {
        let period = now_ns / PERIOD_NS;
        let is_of = |period: u64| {
            cookie[0] == period as u8
                && verify_slices_are_equal(&self.cookie_of(period, from, session), cookie).is_ok()
        };
        is_of(period) || (period > 0 && is_of(period - 1))
    }

    fn cookie_of(&self, period: u64, from: SocketAddr, session: u64) -> Cookie {
        let mut context = hmac::Context::with_key(&self.secret);
        context.update(b"cookie");
        context.update(&period.to_le_bytes());
        context.update(&address_bytes(from.ip()));
        context.update(&from.port().to_le_bytes());
        context.update(&session.to_le_bytes());
        let mut cookie = [0; COOKIE_BYTES];
        cookie.copy_from_slice(&context.sign().as_ref()[..COOKIE_BYTES]);
        cookie[0] = period as u8;
        cookie
    }

    /// Whether a source that has shown its address may have a handshake computed now; counts it.
    pub(crate) fn admits(&mut self, now_ns: u64, from: SocketAddr) -> bool {
        let mut context = hmac::Context::with_key(&self.secret);
        context.update(b"source");
        context.update(&network_bytes(from.ip()));
        let tag = context.sign();
        let hash = u16::from_le_bytes([tag.as_ref()[0], tag.as_ref()[1]]);
        let source = &mut self.sources[usize::from(hash) % SOURCES];
        let is_admitted = source.admits(now_ns, SOURCE_BURST, SOURCE_NS)
            && self.all.admits(now_ns, ALL_BURST, ALL_NS);
        if is_admitted {
            source.take(now_ns, SOURCE_NS);
            self.all.take(now_ns, ALL_NS);
        }
        is_admitted
    }
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Door")
    }
}

fn address_bytes(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// The addresses that have a single owner: an address of IPv4, or a network of 64 bits of IPv6.
fn network_bytes(ip: IpAddr) -> [u8; 16] {
    let mut bytes = address_bytes(ip);
    if matches!(ip, IpAddr::V6(ip) if ip.to_ipv4_mapped().is_none()) {
        bytes[8..].fill(0);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn addr(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn a_cookie_is_for_one_address_and_session_and_grows_old() {
        let door = Door::new(&[1; 32]);
        let (from, now_ns) = (addr("10.0.0.1:4870"), 59 * SECOND);
        let cookie = door.cookie(now_ns, from, 7);
        assert!(door.knows(now_ns, from, 7, &cookie));
        assert!(door.knows(now_ns + 60 * SECOND, from, 7, &cookie));
        assert!(!door.knows(now_ns + 61 * SECOND, from, 7, &cookie), "two periods later");
        assert!(!door.knows(now_ns, from, 8, &cookie));
        assert!(!door.knows(now_ns, addr("10.0.0.1:4871"), 7, &cookie));
        assert!(!door.knows(now_ns, addr("10.0.0.2:4870"), 7, &cookie));
        assert!(!Door::new(&[2; 32]).knows(now_ns, from, 7, &cookie));
        for bit in 0..COOKIE_BYTES * 8 {
            let mut forged = cookie;
            forged[bit / 8] ^= 1 << (bit % 8);
            assert!(!door.knows(now_ns, from, 7, &forged));
        }
        // The clock far ahead, where the byte of the period comes round again.
        assert!(!door.knows(now_ns + 256 * PERIOD_NS, from, 7, &cookie));
    }

    #[test]
    fn a_source_is_limited_and_leaves_room_for_others() {
        let mut door = Door::new(&[1; 32]);
        let (greedy, honest) = (addr("10.0.0.1:1"), addr("10.0.0.2:1"));
        let burst = (0..1000).filter(|_| door.admits(SECOND, greedy)).count() as u64;
        assert_eq!(burst, SOURCE_BURST);
        assert!(door.admits(SECOND, honest));
        let later = (0..1000).filter(|_| door.admits(2 * SECOND, greedy)).count() as u64;
        assert_eq!(later, SECOND / SOURCE_NS);
        assert!(!door.admits(2 * SECOND, addr("10.0.0.1:2")), "a port is no other source");
    }

    #[test]
    fn all_sources_together_are_limited() {
        let mut door = Door::new(&[1; 32]);
        let mut admitted = 0;
        for number in 0..20_000u64 {
            let ip = IpAddr::from((0x0a00_0000 + number as u32).to_be_bytes());
            let now_ns = SECOND + number * 50_000;
            admitted += u64::from(door.admits(now_ns, SocketAddr::new(ip, 1)));
        }
        assert!((1000..=1000 + ALL_BURST).contains(&admitted), "{admitted} in a second");
    }

    #[test]
    fn addresses_of_one_ipv6_network_are_one_source() {
        let mut door = Door::new(&[1; 32]);
        let count = (0..200u16)
            .filter(|number| door.admits(SECOND, addr(&format!("[2001:db8::{number:x}]:1"))))
            .count() as u64;
        assert_eq!(count, SOURCE_BURST);
    }
}
