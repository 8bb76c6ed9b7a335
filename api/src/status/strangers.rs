//! Peers that were refused a session.

use serde::{Deserialize, Serialize};

/// The peers that were refused for one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StrangersStatus {
    /// `version`, `not-accepting`, `plain`, `sealed`, `wrong-key`, `unknown-key`, `expired-key` or
    /// `name`.
    pub reason: String,
    /// How often a peer was refused for it since the node started.
    pub refused: u64,
    /// The latest of these peers, the last one first. Their number is bounded, however many ask.
    #[serde(default)]
    pub latest: Vec<StrangerStatus>,
}

/// A peer that was refused a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StrangerStatus {
    /// The address of its latest request. Only a peer whose key was checked has shown that it
    /// receives there.
    pub address: String,
    /// The name that it gives itself, where that could be read: any text.
    #[serde(default)]
    pub name: Option<String>,
    /// The public key that it proved to have.
    #[serde(default)]
    pub key: Option<String>,
    /// How often it was refused.
    pub refused: u64,
    /// How long ago the last time was.
    pub ago_s: u64,
    /// The change that would admit the peer.
    pub way_out: String,
}
