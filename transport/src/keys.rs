//! The identity of a node and of the nodes that it knows: X25519 keys, as people hand them to each
//! other.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use aws_lc_rs::agreement::{PrivateKey, X25519};
use data_encoding::BASE64;
use zeroize::Zeroizing;

/// Bytes of a key, secret or public.
pub const KEY_BYTES: usize = 32;

/// The most keys in a keyring: four keys for each of the most peers of an endpoint, since rotation
/// needs two, and the node's own. Bounds the search of a revocation.
pub const KEYS_MAX: usize = 4 * crate::limits::SESSIONS_MAX as usize + 1;

/// A node's secret key. It is wiped from memory when it is dropped, and never printed.
pub struct SecretKey {
    bytes: Zeroizing<[u8; KEY_BYTES]>,
    public: PublicKey,
}

impl SecretKey {
    /// Any 32 random bytes are a key.
    pub fn from_bytes(bytes: [u8; KEY_BYTES]) -> Self {
        let bytes = Zeroizing::new(bytes);
        let public = PrivateKey::from_private_key(&X25519, &bytes[..])
            .and_then(|key| key.compute_public_key().map_err(Into::into))
            .expect("32 bytes are a key of X25519");
        let public = public.as_ref().try_into().expect("a public key has 32 bytes");
        Self { bytes, public: PublicKey(public) }
    }

    /// The bytes, to write them to a file that only the node's user may read.
    pub fn to_bytes(&self) -> Zeroizing<[u8; KEY_BYTES]> {
        self.bytes.clone()
    }

    /// The key that others know the node by.
    pub fn public(&self) -> PublicKey {
        self.public
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretKey(of {})", self.public)
    }
}

/// A node's public key: its identity. Written in base64, 44 characters, as WireGuard does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey(pub [u8; KEY_BYTES]);

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&BASE64.encode(&self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

/// A text is not a public key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a public key is 44 characters of base64, the last one \"=\" (`vrio key show` prints it)")]
pub struct NotAKey;

impl FromStr for PublicKey {
    type Err = NotAKey;

    fn from_str(text: &str) -> Result<Self, NotAKey> {
        let bytes = BASE64.decode(text.as_bytes()).map_err(|_| NotAKey)?;
        Ok(Self(bytes.try_into().map_err(|_| NotAKey)?))
    }
}

/// The entry of a public key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownKey {
    /// The name of the node that has the secret half; it must call itself so.
    pub peer: String,
    /// From this second of Unix time on the key is good for nothing; `None`: until it is removed.
    pub expires_unix_s: Option<u64>,
}

impl KnownKey {
    /// Whether the key is of no use any more.
    pub(crate) fn is_expired(&self, unix_s: u64) -> bool {
        self.expires_unix_s.is_some_and(|expires_unix_s| expires_unix_s <= unix_s)
    }
}

/// A keyring has [`KEYS_MAX`] keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("more than {KEYS_MAX} keys of peers: remove some that are not used")]
pub struct KeyringFull;

/// The keys of all nodes that this one speaks with. A peer may have several, for as long as one
/// takes over from another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keyring {
    keys: BTreeMap<PublicKey, KnownKey>,
}

impl Keyring {
    /// An empty keyring.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a key, or says something else about one that is there: a key has one peer.
    ///
    /// # Errors
    /// When there are [`KEYS_MAX`] already; nothing changed then.
    pub fn add(&mut self, key: PublicKey, known: KnownKey) -> Result<(), KeyringFull> {
        if self.keys.len() == KEYS_MAX && !self.keys.contains_key(&key) {
            return Err(KeyringFull);
        }
        self.keys.insert(key, known);
        Ok(())
    }

    /// The entry of a key.
    pub fn get(&self, key: &PublicKey) -> Option<&KnownKey> {
        self.keys.get(key)
    }

    /// The keys of a peer, expired ones too, always in the same order.
    pub fn keys_of(&self, peer: &str) -> impl Iterator<Item = PublicKey> {
        self.iter().filter(move |(_, known)| known.peer == peer).map(|(key, _)| key)
    }

    /// All keys, always in the same order.
    pub fn iter(&self) -> impl Iterator<Item = (PublicKey, &KnownKey)> {
        self.keys.iter().map(|(key, known)| (*key, known))
    }
}

/// How an endpoint protects its sessions.
#[derive(Clone, Debug, Default)]
pub enum Security {
    /// None: a peer's claim about its name is believed, and checksums find damage, not malice.
    #[default]
    Plain,
    /// Both ends prove their identities, and packets are encrypted.
    Sealed {
        /// This node's identity.
        secret: Arc<SecretKey>,
        /// The identities of the others.
        keyring: Arc<Keyring>,
    },
}

impl Security {
    /// Whether sessions are encrypted.
    pub fn is_sealed(&self) -> bool {
        matches!(self, Self::Sealed { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The public halves are what curve25519-dalek makes of these.
    #[test]
    fn two_implementations_agree_about_the_public_half() {
        let others = [
            (1, "pOCSkrZRwni5dyxWn1+puxPZBrRqtoyd+dwrRAn4ogk="),
            (19, "GX/CxWfcA+4qrfDthmgdrCTap26DylVYdd075zduUwY="),
        ];
        for (byte, public) in others {
            assert_eq!(SecretKey::from_bytes([byte; KEY_BYTES]).public().to_string(), public);
        }
    }

    #[test]
    fn keys_are_read_as_they_are_written() {
        let key = SecretKey::from_bytes([7; KEY_BYTES]).public();
        let text = key.to_string();
        assert_eq!(text.len(), 44);
        assert_eq!(text.parse(), Ok(key));
        for bad in ["", "AAAA", &text[..43], &format!("{text}="), &format!("{text}\n")] {
            assert_eq!(bad.parse::<PublicKey>(), Err(NotAKey), "{bad:?}");
        }
    }

    #[test]
    fn a_secret_is_not_printed() {
        let secret = SecretKey::from_bytes([7; KEY_BYTES]);
        let printed = format!("{secret:?}");
        assert_eq!(printed, format!("SecretKey(of {})", secret.public()));
        assert!(!printed.contains(&BASE64.encode(&[7; KEY_BYTES])));
    }

    #[test]
    fn a_keyring_is_bounded_and_a_key_has_one_peer() {
        let mut keyring = Keyring::new();
        let known = |peer: &str| KnownKey { peer: peer.to_owned(), expires_unix_s: None };
        let key = |number: usize| {
            let mut bytes = [0; KEY_BYTES];
            bytes[..8].copy_from_slice(&number.to_le_bytes());
            PublicKey(bytes)
        };
        for number in 0..KEYS_MAX {
            assert_eq!(keyring.add(key(number), known("a")), Ok(()));
        }
        assert_eq!(keyring.add(key(KEYS_MAX), known("a")), Err(KeyringFull));
        assert_eq!(keyring.add(key(7), known("b")), Ok(()));
        assert_eq!(keyring.keys_of("b").collect::<Vec<_>>(), [key(7)]);
        assert_eq!(keyring.keys_of("a").count(), KEYS_MAX - 1);
    }

    #[test]
    fn a_key_expires_at_its_second() {
        let known = KnownKey { peer: "a".to_owned(), expires_unix_s: Some(100) };
        assert!(!known.is_expired(99) && known.is_expired(100));
        assert!(!KnownKey { expires_unix_s: None, ..known }.is_expired(u64::MAX));
    }
}
