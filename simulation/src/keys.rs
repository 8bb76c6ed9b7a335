//! The keys of nodes in a simulated world, when its sessions are sealed.

use std::sync::Arc;

use peer::{Allow, AttachmentSecret};
use transport::{Keyring, KnownKey, SecretKey, Security};

use random::Random;

/// The keys of all nodes of a world.
#[derive(Clone, Debug)]
pub(super) struct WorldKeys(Option<Arc<Sealed>>);

#[derive(Debug)]
struct Sealed {
    keyring: Arc<Keyring>,
    secrets: Vec<(String, Arc<SecretKey>)>,
    /// The secret that opens the volume.
    tenant: Arc<AttachmentSecret>,
}

impl WorldKeys {
    /// No node has a key.
    pub(super) fn none() -> Self {
        Self(None)
    }

    /// Every node has a key, and knows the keys of all others.
    pub(super) fn for_all<'a>(names: impl Iterator<Item = &'a str>, random: &mut Random) -> Self {
        let mut keyring = Keyring::new();
        let mut secrets = Vec::new();
        for name in names {
            let secret = SecretKey::from_bytes(bytes(random));
            let known = KnownKey { peer: name.to_owned(), expires_unix_s: None };
            keyring.add(secret.public(), known).expect("room for a world's keys");
            secrets.push((name.to_owned(), Arc::new(secret)));
        }
        let seed = SecretKey::from_bytes(bytes(random)).to_bytes();
        let tenant = Arc::new(AttachmentSecret::from_seed(&seed));
        Self(Some(Arc::new(Sealed { keyring: Arc::new(keyring), secrets, tenant })))
    }

    /// The users that the volume admits: these nodes and, with keys, only the tenant on them.
    pub(super) fn allow(&self, nodes: &[String]) -> Vec<Allow> {
        let key = self.0.as_ref().map(|sealed| sealed.tenant.public());
        nodes.iter().map(|node| Allow { node: node.clone(), key }).collect()
    }

    /// The secret with which a client proves its right to the volume.
    pub(super) fn tenant(&self) -> Option<Arc<AttachmentSecret>> {
        self.0.as_ref().map(|sealed| sealed.tenant.clone())
    }

    /// The keys that a node's sidecores get.
    pub(super) fn security(&self, name: &str) -> Security {
        let Some(sealed) = &self.0 else { return Security::Plain };
        let mine = sealed.secrets.iter().find(|(of, _)| of == name);
        let (_, secret) = mine.expect("every node of the world has a key");
        Security::Sealed { secret: secret.clone(), keyring: sealed.keyring.clone() }
    }
}

/// As many random bytes as a key or an endpoint's entropy has.
pub(super) fn bytes(random: &mut Random) -> [u8; 32] {
    let mut bytes = [0; 32];
    for word in bytes.chunks_exact_mut(8) {
        word.copy_from_slice(&random.draw().to_le_bytes());
    }
    bytes
}
