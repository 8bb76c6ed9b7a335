//! Nodes and their keys.

use std::sync::Arc;

use transport::{Keyring, KnownKey, SecretKey, Security};

pub(crate) const VMHOST: &str = "vm1";
pub(crate) const IOHOST: &str = "io1";
/// Has a key too, and takes what it can get.
pub(crate) const GREEDY: &str = "mallory";

/// Of any: all know each other.
pub(crate) fn security(name: &str, sealed: bool) -> Security {
    if !sealed {
        return Security::Plain;
    }
    let secret = |name: &str| SecretKey::from_bytes([name.len() as u8 + name.as_bytes()[0]; 32]);
    let mut keyring = Keyring::new();
    for peer in [VMHOST, IOHOST, GREEDY] {
        let known = KnownKey { peer: peer.to_owned(), expires_unix_s: None };
        keyring.add(secret(peer).public(), known).expect("three keys");
    }
    Security::Sealed { secret: Arc::new(secret(name)), keyring: Arc::new(keyring) }
}
