//! Where a peer is reached.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::reader::Value;
use crate::values::{absolute, address};

/// The prefix of a path in a configuration.
const SHARED: &str = "shm:";

/// Where a peer is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerAddress {
    /// Over the network.
    Network(SocketAddr),
    /// On this machine, over shared memory: the path of the peer's `shm`.
    Shared(PathBuf),
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(address) => write!(f, "{address}"),
            Self::Shared(path) => write!(f, "{SHARED}{}", path.display()),
        }
    }
}

impl PeerAddress {
    pub(crate) fn read(value: &Value<'_, '_>) -> Option<Self> {
        match value.str()?.strip_prefix(SHARED) {
            Some(path) => absolute(value, path).map(Self::Shared),
            None => address(value).map(Self::Network),
        }
    }
}
