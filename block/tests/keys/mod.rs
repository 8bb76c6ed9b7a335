//! Two nodes and their keys.

use std::sync::Arc;

use transport::{Keyring, KnownKey, SecretKey, Security};

pub(crate) const VMHOST: &str = "vm1";
pub(crate) const IOHOST: &str = "io1";

/// Of either: both know each other.
pub(crate) fn security(name: &str, sealed: bool) -> Security {
    if !sealed {
        return Security::Plain;
    }
    let secret = |name: &str| SecretKey::from_bytes([name.len() as u8 + name.as_bytes()[0]; 32]);
    let mut keyring = Keyring::new();
    for peer in [VMHOST, IOHOST] {
        let known = KnownKey { peer: peer.to_owned(), expires_unix_s: None };
        keyring.add(secret(peer).public(), known).expect("two keys");
    }
    Security::Sealed { secret: Arc::new(secret(name)), keyring: Arc::new(keyring) }
}
