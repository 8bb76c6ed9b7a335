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
    /// The latest ones, the last first: a few, whatever strangers send.
    #[serde(default)]
    pub latest: Vec<StrangerStatus>,
}

/// A peer that was refused a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StrangerStatus {
    /// Where it asked from, last. Only a peer whose key was looked at has shown that it is there.
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
    /// What admits it.
    pub way_out: String,
}
