//! The peers' parts of each sidecore's resources, and their limits.

use std::net::SocketAddr;

use peer::PlaneQuota;
use transport::{PeerIdentity, PeerShare, QuotaPart};

use api::status::QuotaStatus;

/// A sidecore's report about its peers.
#[derive(Default)]
pub(crate) struct Shares {
    pub(crate) sessions: Vec<PeerShare>,
    pub(crate) planes: Vec<PlaneQuota>,
}

/// The quotas of all sidecores, by peer: each resource of each peer that the sidecore knows, also
/// while the peer has none of it. A series of the metrics that came and went would lose its count.
pub(crate) fn status<'a>(asked: impl Iterator<Item = &'a Shares>) -> Vec<QuotaStatus> {
    let found = asked.enumerate().flat_map(|(sidecore, shares)| {
        let sessions = shares.sessions.iter().flat_map(|share| {
            [
                (&share.peer, "sessions", share.sessions),
                (&share.peer, "handshakes", share.handshakes),
                (&share.peer, "calls_bytes", share.calls_bytes),
                (&share.peer, "replies_bytes", share.replies_bytes),
            ]
        });
        let planes = shares.planes.iter().map(|of| (&of.peer, of.resource, of.part));
        (sessions.chain(planes))
            .map(move |(peer, resource, part)| quota(sidecore, peer, resource, part))
    });
    let mut all: Vec<_> = found.collect();
    all.sort_by(|a, b| (&a.peer, &a.address, a.sidecore).cmp(&(&b.peer, &b.address, b.sidecore)));
    all
}

fn quota(sidecore: usize, peer: &PeerIdentity, resource: &str, part: QuotaPart) -> QuotaStatus {
    QuotaStatus {
        peer: peer.name.clone(),
        address: peer.claimed_at.map(|ip| match link::is_shared(SocketAddr::new(ip, 0)) {
            true => "shm".to_owned(),
            false => ip.to_string(),
        }),
        sidecore,
        resource: resource.to_owned(),
        has: part.has,
        has_max: part.has_max,
        at_limit: part.is_at_limit(),
        refused: part.refused,
    }
}
