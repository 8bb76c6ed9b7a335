//! The peers' parts of resources that all peers of a sidecore share.

use serde::{Deserialize, Serialize};

/// One peer's part of one resource that all peers of a sidecore share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaStatus {
    /// The peer's name.
    pub peer: String,
    /// The peer's address, where its name is not proved: sessions are plain.
    #[serde(default)]
    pub address: Option<String>,
    /// The sidecore here.
    pub sidecore: usize,
    /// The resource: `sessions`, `handshakes`, `calls_bytes`, `replies_bytes`, `channels`,
    /// `claims`, `opens`, `proofs`.
    pub resource: String,
    /// How much of it the peer has.
    pub has: u64,
    /// The most that the peer may have now: the other peers leave it that much.
    pub has_max: u64,
    /// Whether the peer may have no more.
    pub at_limit: bool,
    /// How often the peer was refused more, or had to wait for it.
    pub refused: u64,
}
