//! Attachment keys: a client proves in a session that the owner of a volume, or of a network, lets
//! the client use it.
//!
//! A node's key says which host speaks. An attachment key (Ed25519) says for which tenant, so that
//! a thief of a host's key opens nothing of a tenant whose volumes ask for an attachment key. A
//! proof is bound to its session, to the names that it is about, and to its kind of call: a
//! recorded proof is of no use elsewhere. The reasons: `docs/decisions/008-attachment-keys.md`.

use std::fmt;
use std::str::FromStr;

use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use data_encoding::BASE64;
use zeroize::Zeroizing;

/// The two names that a proof is about: of a volume and an attachment, or of a network and a nic.
pub type Names<'a> = (&'a str, &'a str);

/// Bytes of a key, public or secret.
pub const KEY_BYTES: usize = 32;

const SIGNATURE_BYTES: usize = 64;

/// Bytes of a proof, which is the body of a describe, claim, open or close.
pub const PROOF_BYTES: usize = KEY_BYTES + SIGNATURE_BYTES;

/// Signed bytes begin with this constant, so that a signature of another program does not fit. The
/// number is the version of the protocol that introduced proofs.
const DOMAIN: &[u8; 17] = b"vrio attachment 2";

const STATEMENT_BYTES: usize = DOMAIN.len() + 32 + 16 + 1;

/// Tells a session from all others: the hash of its handshake, the same at both ends. All zeroes
/// where nothing is sealed; no proof is made there, since a listener could use it again.
pub type Binding = [u8; 32];

const PLAIN: Binding = [0; 32];

/// The public half, as a volume's `allow` lists it. Its text is Base64, 44 characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttachmentKey(pub [u8; KEY_BYTES]);

impl fmt::Display for AttachmentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&BASE64.encode(&self.0))
    }
}

/// A text that is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a key is 32 bytes in Base64: 44 characters, the last one '='")]
pub struct NotAKey;

impl FromStr for AttachmentKey {
    type Err = NotAKey;

    fn from_str(text: &str) -> Result<Self, NotAKey> {
        let bytes = BASE64.decode(text.as_bytes()).map_err(|_| NotAKey)?;
        Ok(Self(bytes.try_into().map_err(|_| NotAKey)?))
    }
}

/// The secret half, which the owner's VMhost has. Shows its public half only.
pub struct AttachmentSecret {
    pair: Ed25519KeyPair,
    public: AttachmentKey,
}

impl fmt::Debug for AttachmentSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttachmentSecret").field("public", &self.public).finish_non_exhaustive()
    }
}

impl AttachmentSecret {
    /// The key that these random bytes are the seed of.
    pub fn from_seed(seed: &Zeroizing<[u8; KEY_BYTES]>) -> Self {
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed[..]).expect("any 32 bytes are a seed");
        let public = pair.public_key().as_ref().try_into().expect("public keys have 32 bytes");
        Self { pair, public: AttachmentKey(public) }
    }

    /// Its public half.
    pub fn public(&self) -> AttachmentKey {
        self.public
    }

    /// Proves in a session that the call of this kind about these names is made with the key. Kinds
    /// of calls are unique among all planes. `None` in a session that is not sealed.
    pub fn prove(
        &self,
        binding: &Binding,
        kind: u8,
        names: Names<'_>,
    ) -> Option<[u8; PROOF_BYTES]> {
        if *binding == PLAIN {
            return None;
        }
        let signature = self.pair.sign(&statement(binding, kind, names));
        let mut proof = [0; PROOF_BYTES];
        proof[..KEY_BYTES].copy_from_slice(&self.public.0);
        proof[KEY_BYTES..].copy_from_slice(signature.as_ref());
        Some(proof)
    }
}

/// Why a body proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProofError {
    /// It is not in the protocol's form.
    #[error("a proof has {PROOF_BYTES} bytes")]
    Length,
    /// The session is not sealed.
    #[error("an attachment key cannot be proved in a plain session: give both nodes a `key`")]
    Plain,
    /// The signature is another key's, session's, attachment's or call's.
    #[error("attachment key {0}: the proof is wrong")]
    Wrong(AttachmentKey),
}

/// The key that a proof proves: see [`AttachmentSecret::prove`].
///
/// # Errors
/// When the bytes are no proof of any key for this session, kind of call and pair of names.
pub fn verify(
    proof: &[u8],
    binding: &Binding,
    kind: u8,
    names: Names<'_>,
) -> Result<AttachmentKey, ProofError> {
    if proof.len() != PROOF_BYTES {
        return Err(ProofError::Length);
    }
    if *binding == PLAIN {
        return Err(ProofError::Plain);
    }
    let (key, signature) = proof.split_at(KEY_BYTES);
    let verified =
        UnparsedPublicKey::new(&ED25519, key).verify(&statement(binding, kind, names), signature);
    let key = AttachmentKey(key.try_into().expect("split there"));
    verified.map(|()| key).map_err(|_| ProofError::Wrong(key))
}

/// Tells pairs of names apart in messages and proofs: FNV-1a over both. The id is no secret; the
/// receiver compares it with the names that it knows.
pub fn id_of((first, second): Names<'_>) -> u128 {
    let bytes = first.bytes().chain([0]).chain(second.bytes());
    bytes.fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |hash, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    })
}

/// The bytes that are signed. Their length is fixed, so that no two statements are the same bytes.
fn statement(binding: &Binding, kind: u8, names: Names<'_>) -> [u8; STATEMENT_BYTES] {
    let id = id_of(names).to_le_bytes();
    let mut bytes = [0; STATEMENT_BYTES];
    let mut at = 0;
    for part in [&DOMAIN[..], binding, &id, &[kind]] {
        bytes[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(seed: u8) -> AttachmentSecret {
        AttachmentSecret::from_seed(&Zeroizing::new([seed; KEY_BYTES]))
    }

    const CLAIM: u8 = 2;
    const OPEN: u8 = 3;
    const MINE: Names<'static> = ("root", "alice");

    #[test]
    fn a_proof_holds_for_its_session_attachment_and_call_only() {
        let alice = secret(1);
        let proof = alice.prove(&[7; 32], CLAIM, MINE).unwrap();
        let check = |binding, kind, names| verify(&proof, &binding, kind, names);
        assert_eq!(check([7; 32], CLAIM, MINE), Ok(alice.public()));
        let wrong = Err(ProofError::Wrong(alice.public()));
        assert_eq!(check([8; 32], CLAIM, MINE), wrong, "another session");
        assert_eq!(check([7; 32], OPEN, MINE), wrong, "another call");
        assert_eq!(check([7; 32], CLAIM, ("root", "bob")), wrong);
        assert_eq!(check([7; 32], CLAIM, ("home", "alice")), wrong);
    }

    #[test]
    fn every_bit_of_a_proof_counts() {
        let alice = secret(1);
        let proof = alice.prove(&[7; 32], OPEN, MINE).unwrap();
        for bit in 0..PROOF_BYTES * 8 {
            let mut bent = proof;
            bent[bit / 8] ^= 1 << (bit % 8);
            assert!(verify(&bent, &[7; 32], OPEN, MINE).is_err(), "bit {bit}");
        }
        for len in [0, 1, PROOF_BYTES - 1] {
            let cut = verify(&proof[..len], &[7; 32], OPEN, MINE);
            assert_eq!(cut, Err(ProofError::Length));
        }
    }

    #[test]
    fn a_plain_session_has_no_proofs() {
        let alice = secret(1);
        assert_eq!(alice.prove(&PLAIN, CLAIM, MINE), None);
        let verified = verify(&[0; PROOF_BYTES], &PLAIN, CLAIM, MINE);
        assert_eq!(verified, Err(ProofError::Plain));
    }

    /// The first test vector of RFC 8032: keys are what other programs call Ed25519 keys.
    #[test]
    fn a_key_is_its_seeds() {
        let hex = |text: &str| -> [u8; KEY_BYTES] {
            let bytes = data_encoding::HEXLOWER.decode(text.as_bytes()).unwrap();
            bytes.try_into().unwrap()
        };
        let seed = hex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60");
        let public = hex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a");
        assert_eq!(AttachmentSecret::from_seed(&Zeroizing::new(seed)).public().0, public);
    }

    #[test]
    fn keys_have_a_text_and_secrets_show_none() {
        let public = secret(9).public();
        assert_eq!(public.to_string().parse(), Ok(public));
        assert_eq!(public.to_string().len(), 44);
        for text in ["", "AAAA", "not base64", &"A".repeat(44), &format!("{public} ")] {
            assert_eq!(text.parse::<AttachmentKey>(), Err(NotAKey), "{text:?}");
        }
        let shown = format!("{:?}", secret(0x5a));
        assert!(!shown.contains("90, 90"), "{shown}");
    }
}
