//! How large datagrams may be on the way to a peer.
//!
//! A session keeps the size that its handshake agreed on, since it cuts messages by it. So the
//! handshake tries the way: Hello and Welcome are filled up to the size that the connector
//! proposes, and where they do not arrive, a new attempt proposes the next smaller one. The
//! endpoint believes no report of a third party about the way, such as ICMP's "fragmentation
//! needed".

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::limits::SESSIONS_MAX;
use crate::wire::DATAGRAM_BYTES_MIN;

/// The sizes that are tried below a link's own size, with IPv4's and UDP's headers (28 bytes) off:
/// jumbo frames; those within a tunnel or over IPv6; Ethernet; Ethernet in VXLAN or over IPv6; in
/// WireGuard or IPsec; the size that IPv6 promises.
const SIZES: [usize; 6] = [8972, 8872, 1472, 1422, 1372, DATAGRAM_BYTES_MIN];

/// How long a way that was found narrow is taken for narrow (RFC 8899, PMTU_RAISE_TIMER).
const RAISE_NS: u64 = 600_000_000_000;

/// As many ways as there are peers.
const WAYS_MAX: usize = SESSIONS_MAX as usize;

/// The next size to try after one that did not arrive.
pub(crate) fn smaller(bytes: usize) -> Option<usize> {
    SIZES.into_iter().find(|&size| size < bytes)
}

/// The result of probing a way.
#[derive(Clone, Copy, Debug)]
struct ProbeResult {
    bytes: usize,
    at_ns: u64,
}

/// The ways that are narrower than our link.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    narrow: BTreeMap<IpAddr, ProbeResult>,
}

impl Paths {
    /// The size to propose to a peer, by a link that takes `link_bytes_max`.
    pub(crate) fn proposal(&mut self, now_ns: u64, to: IpAddr, link_bytes_max: usize) -> usize {
        let Some(found) = self.narrow.get(&to) else { return link_bytes_max };
        if now_ns >= found.at_ns + RAISE_NS {
            self.narrow.remove(&to);
            return link_bytes_max;
        }
        found.bytes.min(link_bytes_max)
    }

    /// Datagrams of `bytes` came through, both ways; or no answer to them was missed yet, while
    /// larger ones had none.
    pub(crate) fn tried(&mut self, now_ns: u64, to: IpAddr, bytes: usize, link_bytes_max: usize) {
        if bytes >= link_bytes_max {
            self.narrow.remove(&to);
        } else if self.narrow.get(&to).is_none_or(|found| found.bytes != bytes) {
            self.note(to, ProbeResult { bytes, at_ns: now_ns });
        }
    }

    /// Datagrams of `bytes` do not come through any more.
    pub(crate) fn shrank(&mut self, now_ns: u64, to: IpAddr, bytes: usize) {
        let bytes = smaller(bytes).unwrap_or(DATAGRAM_BYTES_MIN);
        self.note(to, ProbeResult { bytes, at_ns: now_ns });
    }

    fn note(&mut self, to: IpAddr, found: ProbeResult) {
        if self.narrow.len() == WAYS_MAX && !self.narrow.contains_key(&to) {
            let oldest = self.narrow.iter().min_by_key(|(_, found)| found.at_ns);
            let oldest = *oldest.expect("it is full").0;
            self.narrow.remove(&oldest);
        }
        self.narrow.insert(to, found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(number: u32) -> IpAddr {
        IpAddr::V4(number.into())
    }

    #[test]
    fn every_size_has_a_smaller_one_down_to_the_least() {
        let mut sizes = vec![65_507];
        while let Some(next) = smaller(sizes[sizes.len() - 1]) {
            sizes.push(next);
        }
        assert_eq!(sizes, [65_507, 8972, 8872, 1472, 1422, 1372, 1200]);
    }

    #[test]
    fn a_narrow_way_is_remembered_and_tried_again_later() {
        let mut paths = Paths::default();
        paths.tried(5, ip(1), 1472, 8972);
        assert_eq!(paths.proposal(6, ip(1), 8972), 1472);
        assert_eq!(paths.proposal(6, ip(2), 8972), 8972);
        paths.tried(RAISE_NS, ip(1), 1472, 8972);
        assert_eq!(paths.proposal(RAISE_NS + 4, ip(1), 8972), 1472);
        assert_eq!(paths.proposal(RAISE_NS + 5, ip(1), 8972), 8972, "since it was first found");
        paths.shrank(7, ip(1), 8972);
        assert_eq!(paths.proposal(8, ip(1), 8972), 8872);
        paths.tried(9, ip(1), 8972, 8972);
        assert_eq!(paths.proposal(9, ip(1), 8972), 8972);
    }

    #[test]
    fn there_is_a_bound_and_the_oldest_goes() {
        let mut paths = Paths::default();
        for number in 0..=WAYS_MAX as u32 {
            paths.tried(number.into(), ip(number), 1472, 8972);
        }
        assert_eq!(paths.narrow.len(), WAYS_MAX);
        assert_eq!(paths.proposal(2000, ip(0), 8972), 8972);
        assert_eq!(paths.proposal(2000, ip(1), 8972), 1472);
    }
}
