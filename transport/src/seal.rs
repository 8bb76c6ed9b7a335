//! Packets sealed with AES-256-GCM, under keys that roll.
//!
//! Each direction of a session has a chain of its own. A key of the chain seals the packets of one
//! *key epoch*: those whose numbers agree above the lowest [`KEY_EPOCH_BITS`] bits. The nonce is
//! the packet number, which is never used twice.
//!
//! ```text
//! handshake ─▶ chain 0 ─▶ chain 1 ─▶ chain 2 ─▶ ...      HKDF, one way: a key that leaks
//!                │           │           │                tells nothing about earlier ones
//!              key 0       key 1       key 2
//! ```

use std::fmt;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Prk};
use aws_lc_rs::hmac;
use zeroize::Zeroizing;

use crate::keys::SecretKey;
use crate::wire::RESET_TOKEN_BYTES;

/// A key seals 2^22 packets: half of what QUIC allows for one (RFC 9001, section 6.6), and four
/// seconds of a million packets a second. With 64 KiB in each, an attacker's advantage stays below
/// 2^-60.
pub(crate) const KEY_EPOCH_BITS: u8 = 22;

/// The shortest epoch, for tests. A sender has no more packet numbers open than an epoch has, so
/// that a receiver which knows the next key can always follow.
pub(crate) const KEY_EPOCH_BITS_MIN: u8 = 12;

const _: () = assert!(1 << KEY_EPOCH_BITS >= crate::sent::SENT_MAX);

/// The memory of a key in the cipher's library, beside the handle: its `EVP_AEAD_CTX`, with the
/// rounds' keys and the powers of the hash.
const KEY_STATE_BYTES: usize = 600;

/// Proves that a Reset comes from a node that was one end of the session.
pub(crate) type ResetToken = [u8; RESET_TOKEN_BYTES];

/// A secret from which keys follow.
pub(crate) type ChainSecret = Zeroizing<[u8; 32]>;

/// The length of what HKDF gives.
struct SecretBytes;

impl KeyType for SecretBytes {
    fn len(&self) -> usize {
        size_of::<[u8; 32]>()
    }
}

/// HKDF-Expand of a secret of 32 bytes.
pub(crate) fn derived(secret: &[u8; 32], label: &[u8]) -> ChainSecret {
    let mut bytes = Zeroizing::new([0; 32]);
    Prk::new_less_safe(HKDF_SHA256, secret)
        .expand(&[label], SecretBytes)
        .and_then(|material| material.fill(&mut bytes[..]))
        .expect("HKDF gives 32 bytes");
    bytes
}

/// The keys that were not made yet.
struct KeyChain(ChainSecret);

impl KeyChain {
    /// The key of the next epoch.
    fn next_key(&mut self) -> LessSafeKey {
        let key = derived(&self.0, b"vrio key");
        self.0 = derived(&self.0, b"vrio next");
        let key = UnboundKey::new(&AES_256_GCM, &key[..]).expect("a key of AES-256 has 32 bytes");
        LessSafeKey::new(key)
    }
}

/// Makes the tokens of our own Resets. They follow from our static key and the session's id alone,
/// so that a process which was restarted and knows nothing makes the same.
pub(crate) struct ResetKey(hmac::Key);

impl ResetKey {
    pub(crate) fn new(secret: &SecretKey) -> Self {
        let key = derived(&secret.to_bytes(), b"vrio reset");
        Self(hmac::Key::new(hmac::HMAC_SHA256, &key[..]))
    }

    /// For the session that the endpoint number `endpoint` of our node calls `session`.
    pub(crate) fn token(&self, endpoint: u16, session: u64) -> ResetToken {
        let mut input = [0; 10];
        input[..2].copy_from_slice(&endpoint.to_le_bytes());
        input[2..].copy_from_slice(&session.to_le_bytes());
        let tag = hmac::sign(&self.0, &input);
        tag.as_ref()[..RESET_TOKEN_BYTES].try_into().expect("the hash is longer")
    }
}

/// The protection of one session.
pub(crate) struct Seal {
    pub(crate) sealer: Sealer,
    pub(crate) opener: Opener,
    /// The token that the peer's Reset must carry.
    pub(crate) reset_token: ResetToken,
    /// Recognises the message with which the session was asked for.
    pub(crate) hello: HelloDigest,
}

impl Seal {
    /// The memory that it takes, keys and all.
    pub(crate) fn state_bytes(&self) -> usize {
        let keys = 3 + usize::from(self.opener.previous.is_some());
        size_of::<Self>() + keys * KEY_STATE_BYTES
    }

    /// Whether a Reset comes from the peer.
    pub(crate) fn believes(&self, token: &[u8]) -> bool {
        verify_slices_are_equal(&self.reset_token, token).is_ok()
    }
}

/// SHA-256 of a connector's message.
pub(crate) type HelloDigest = [u8; 32];

fn nonce(number: u64) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[NONCE_LEN - size_of::<u64>()..].copy_from_slice(&number.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

/// Seals what we send.
pub(crate) struct Sealer {
    epoch_bits: u8,
    epoch: u64,
    current: LessSafeKey,
    chain: KeyChain,
    /// No number from here on was sealed.
    unused_from: u64,
}

impl Sealer {
    pub(crate) fn new(secret: ChainSecret, epoch_bits: u8) -> Self {
        let mut chain = KeyChain(secret);
        let current = chain.next_key();
        Self { epoch_bits, epoch: 0, current, chain, unused_from: 0 }
    }

    /// Packets in an epoch.
    pub(crate) fn epoch_packets(&self) -> usize {
        1 << self.epoch_bits
    }

    /// Seals a packet into `out`, which is as long as payload, frames and tag, and lays them there
    /// in this order: the long part first, where the cipher is fastest. `header` is authenticated
    /// with it.
    pub(crate) fn seal(
        &mut self,
        number: u64,
        header: &[u8],
        payload: &[u8],
        frames: &[u8],
        out: &mut [u8],
    ) {
        // Two packets under one nonce would give both away: our own mistake, and a grave one.
        assert!(number >= self.unused_from, "packet number {number} is sealed twice");
        self.unused_from = number + 1;
        let epoch = number >> self.epoch_bits;
        if epoch > self.epoch {
            assert_eq!(epoch, self.epoch + 1, "a key epoch is left out");
            self.epoch = epoch;
            self.current = self.chain.next_key();
        }
        let (first, second) =
            if payload.is_empty() { (frames, payload) } else { (payload, frames) };
        let (sealed_first, sealed_second) = out.split_at_mut(first.len());
        self.current
            .seal_out_of_place_scatter(
                nonce(number),
                Aad::from(header),
                first,
                sealed_first,
                second,
                sealed_second,
            )
            .expect("the lengths fit and are within the cipher's limits");
    }
}

/// Why a packet was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unopened {
    /// Its key is of the past, or too far ahead.
    Epoch,
    /// It was not sealed by the peer for us, or it was changed.
    Forged,
}

/// Opens what we receive.
pub(crate) struct Opener {
    epoch_bits: u8,
    epoch: u64,
    /// For packets that were overtaken by the first of the current epoch.
    previous: Option<LessSafeKey>,
    current: LessSafeKey,
    /// Ready before it is needed: to make one is more work than to open a forgery.
    next: LessSafeKey,
    chain: KeyChain,
}

impl Opener {
    pub(crate) fn new(secret: ChainSecret, epoch_bits: u8) -> Self {
        let mut chain = KeyChain(secret);
        let (current, next) = (chain.next_key(), chain.next_key());
        Self { epoch_bits, epoch: 0, previous: None, current, next, chain }
    }

    /// Opens what `seal` made. `out` is as long as `sealed` without its tag; it holds the payload
    /// and then the frames, or nothing of meaning after an error.
    pub(crate) fn open(
        &mut self,
        number: u64,
        header: &[u8],
        sealed: &[u8],
        out: &mut [u8],
    ) -> Result<(), Unopened> {
        let epoch = number >> self.epoch_bits;
        let key = if epoch == self.epoch {
            &self.current
        } else if epoch == self.epoch + 1 {
            &self.next
        } else if epoch + 1 == self.epoch {
            self.previous.as_ref().ok_or(Unopened::Epoch)?
        } else {
            return Err(Unopened::Epoch);
        };
        let (ciphertext, tag) = sealed.split_at(out.len());
        key.open_separate_gather(nonce(number), Aad::from(header), ciphertext, tag, out)
            .map_err(|_| Unopened::Forged)?;
        if epoch > self.epoch {
            let next = std::mem::replace(&mut self.next, self.chain.next_key());
            self.epoch = epoch;
            self.previous = Some(std::mem::replace(&mut self.current, next));
        }
        Ok(())
    }
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Seal({:?}, {:?})", self.sealer, self.opener)
    }
}

impl fmt::Debug for ResetKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResetKey")
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sealer(epoch {})", self.epoch)
    }
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opener(epoch {})", self.epoch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::TAG_BYTES;

    const BITS: u8 = KEY_EPOCH_BITS_MIN;
    const EPOCH: u64 = 1 << BITS;

    fn pair() -> (Sealer, Opener) {
        let secret = Zeroizing::new([9; 32]);
        (Sealer::new(secret.clone(), BITS), Opener::new(secret, BITS))
    }

    fn sealed(sealer: &mut Sealer, number: u64, payload: &[u8], frames: &[u8]) -> Vec<u8> {
        let mut out = vec![0; payload.len() + frames.len() + TAG_BYTES];
        sealer.seal(number, b"header", payload, frames, &mut out);
        out
    }

    fn opened(opener: &mut Opener, number: u64, sealed: &[u8]) -> Result<Vec<u8>, Unopened> {
        let mut out = vec![0; sealed.len() - TAG_BYTES];
        opener.open(number, b"header", sealed, &mut out).map(|()| out)
    }

    #[test]
    fn sealed_packets_are_opened_with_any_parts() {
        let (mut sealer, mut opener) = pair();
        let bytes: Vec<u8> = (0..70_000u32).map(|i| i as u8).collect();
        let parts = [(0, 1), (0, 900), (1, 20), (15, 17), (16, 16), (4096, 20), (65_000, 52)];
        for (number, (payload, frames)) in (0..).zip(parts) {
            let packet = sealed(&mut sealer, number, &bytes[..payload], &bytes[..frames]);
            let expected = [&bytes[..payload], &bytes[..frames]].concat();
            assert_eq!(opened(&mut opener, number, &packet), Ok(expected));
        }
    }

    #[test]
    fn a_change_anywhere_is_noticed() {
        let (mut sealer, mut opener) = pair();
        let packet = sealed(&mut sealer, 5, b"payload", b"frames");
        for bit in 0..packet.len() * 8 {
            let mut damaged = packet.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(opened(&mut opener, 5, &damaged), Err(Unopened::Forged));
        }
        let mut out = [0; 13];
        assert_eq!(opener.open(5, b"hEader", &packet, &mut out), Err(Unopened::Forged));
        assert_eq!(opened(&mut opener, 6, &packet), Err(Unopened::Forged));
        assert!(opened(&mut opener, 5, &packet).is_ok());
    }

    #[test]
    fn the_same_content_is_never_sealed_to_the_same_bytes() {
        let (mut sealer, _) = pair();
        let packets: std::collections::HashSet<Vec<u8>> =
            (0..3 * EPOCH).map(|number| sealed(&mut sealer, number, b"", b"again")).collect();
        assert_eq!(packets.len() as u64, 3 * EPOCH);
    }

    #[test]
    fn the_receiver_follows_over_epochs_and_knows_the_one_before() {
        let (mut sealer, mut opener) = pair();
        let packets: Vec<Vec<u8>> =
            (0..4 * EPOCH).map(|number| sealed(&mut sealer, number, b"", b"x")).collect();
        let mut open = |number: u64| opened(&mut opener, number, &packets[number as usize]);
        assert_eq!(open(2 * EPOCH), Err(Unopened::Epoch), "too far ahead");
        assert!(open(EPOCH).is_ok());
        assert!(open(EPOCH - 1).is_ok(), "overtaken");
        assert!(open(2 * EPOCH).is_ok());
        assert!(open(EPOCH + 7).is_ok());
        assert_eq!(open(EPOCH - 2), Err(Unopened::Epoch), "two epochs ago");
        assert!(open(4 * EPOCH - 1).is_ok());
    }

    #[test]
    fn a_forgery_of_the_next_epoch_moves_nothing() {
        let (mut sealer, mut opener) = pair();
        let packet = sealed(&mut sealer, 0, b"", b"x");
        assert_eq!(opened(&mut opener, EPOCH, &packet), Err(Unopened::Forged));
        assert_eq!(opener.epoch, 0);
        assert!(opened(&mut opener, 0, &packet).is_ok());
    }

    #[test]
    fn a_reset_token_is_the_same_after_a_restart_and_for_one_session_only() {
        let secret = |byte| ResetKey::new(&SecretKey::from_bytes([byte; 32]));
        let token = secret(1).token(2, 3);
        assert_eq!(secret(1).token(2, 3), token);
        for other in [secret(2).token(2, 3), secret(1).token(3, 3), secret(1).token(2, 4)] {
            assert_ne!(other, token);
        }
    }

    #[test]
    #[should_panic(expected = "sealed twice")]
    fn a_number_is_not_sealed_twice() {
        let (mut sealer, _) = pair();
        sealed(&mut sealer, 1, b"", b"x");
        sealed(&mut sealer, 1, b"", b"y");
    }
}
