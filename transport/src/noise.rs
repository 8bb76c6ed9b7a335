//! The handshake of sealed sessions, and the only place that knows its library: Noise IK, in which
//! the connector knows the acceptor's key beforehand and shows its own only to the holder of that
//! key.
//!
//! Curve, cipher and hash come from the library that also seals packets: it is faster, wipes its
//! secrets, and refuses points of low order. The handshake's library brings none of its own.

use std::fmt;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::agreement::{PrivateKey, UnparsedPublicKey, X25519, agree};
use aws_lc_rs::digest::{Context, SHA256, SHA256_OUTPUT_LEN};
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::CryptoResolver;
use snow::types::{Cipher, Dh, Hash, Random};
use snow::{Builder, HandshakeState};
use zeroize::Zeroizing;

use crate::keys::{KEY_BYTES, PublicKey, SecretKey};
use crate::seal::{ChainSecret, Opener, Sealer};
use crate::wire::TAG_BYTES;

/// The protocol's name in the Noise framework.
const NAME: &str = "Noise_IK_25519_AESGCM_SHA256";

/// The length of message 1 beside its payload: an ephemeral key, a sealed static one, a tag.
pub(crate) const MESSAGE_1_BYTES: usize = KEY_BYTES + KEY_BYTES + TAG_BYTES + TAG_BYTES;

/// The length of message 2 beside its payload: an ephemeral key and a tag.
pub(crate) const MESSAGE_2_BYTES: usize = KEY_BYTES + TAG_BYTES;

/// Operations on the curve in each step, for the count of what handshakes cost.
pub(crate) const START_OPERATIONS: u64 = 4;
pub(crate) const FINISH_OPERATIONS: u64 = 2;
pub(crate) const READ_OPERATIONS: u64 = 3;
pub(crate) const ANSWER_OPERATIONS: u64 = 3;

/// 32 bytes from an endpoint's generator, from which one handshake draws.
pub(crate) type Seed = [u8; 32];

/// The result of a handshake.
#[derive(Debug)]
pub(crate) struct Agreement {
    pub(crate) sealer: Sealer,
    pub(crate) opener: Opener,
    /// The same at both ends, and in no other session.
    pub(crate) binding: [u8; 32],
}

/// The connector's side, from its message to the answer.
pub(crate) struct Initiator(HandshakeState);

impl Initiator {
    /// Writes message 1, which must be sent again as it is. `prologue` is the part of the Hello in
    /// the clear.
    pub(crate) fn start(
        seed: &Seed,
        secret: &SecretKey,
        peer: &PublicKey,
        prologue: &[u8],
        payload: &[u8],
    ) -> (Self, Vec<u8>) {
        let state = builder(seed)
            .local_private_key(&secret.to_bytes()[..])
            .and_then(|builder| builder.remote_public_key(&peer.0))
            .and_then(|builder| builder.prologue(prologue))
            .and_then(Builder::build_initiator);
        let mut state = state.expect("both keys have their lengths");
        let mut message = vec![0; payload.len() + MESSAGE_1_BYTES];
        // A key of low order in the keyring gives an error here. No node has the other half of such
        // a key, so a message that cannot be opened is as good as any.
        match state.write_message(payload, &mut message) {
            Ok(bytes) => assert_eq!(bytes, message.len(), "message 1 has its length"),
            Err(_) => message.fill(0),
        }
        (Self(state), message)
    }

    /// Reads message 2: its payload, and what was agreed. After `None` (it was not made by the peer
    /// for this attempt) another one may come.
    pub(crate) fn finish(
        &mut self,
        message: &[u8],
        epoch_bits: u8,
    ) -> Option<(Vec<u8>, Agreement)> {
        let mut payload = vec![0; message.len()];
        let bytes = self.0.read_message(message, &mut payload).ok()?;
        payload.truncate(bytes);
        let (to_peer, from_peer) = split(&mut self.0);
        Some((payload, agreement(&self.0, to_peer, from_peer, epoch_bits)))
    }
}

/// The acceptor's side, between the two messages.
pub(crate) struct Responder(HandshakeState);

/// Message 1 as the acceptor has read it.
pub(crate) struct ReadHello {
    pub(crate) responder: Responder,
    /// The connector's key.
    pub(crate) key: PublicKey,
    pub(crate) payload: Vec<u8>,
}

impl Responder {
    /// Reads message 1. `None`: it is not for our key, or it was changed.
    pub(crate) fn read(
        seed: &Seed,
        secret: &SecretKey,
        prologue: &[u8],
        message: &[u8],
    ) -> Option<ReadHello> {
        let state = builder(seed)
            .local_private_key(&secret.to_bytes()[..])
            .and_then(|builder| builder.prologue(prologue))
            .and_then(Builder::build_responder);
        let mut state = state.expect("the key has its length");
        let mut payload = vec![0; message.len()];
        let bytes = state.read_message(message, &mut payload).ok()?;
        payload.truncate(bytes);
        let key = state.get_remote_static()?.try_into().ok()?;
        Some(ReadHello { responder: Self(state), key: PublicKey(key), payload })
    }

    /// Writes message 2. `None` when the peer's keys are points of low order.
    pub(crate) fn answer(mut self, payload: &[u8], epoch_bits: u8) -> Option<(Vec<u8>, Agreement)> {
        let mut message = vec![0; payload.len() + MESSAGE_2_BYTES];
        let bytes = self.0.write_message(payload, &mut message).ok()?;
        assert_eq!(bytes, message.len(), "message 2 has its length");
        let (from_peer, to_peer) = split(&mut self.0);
        Some((message, agreement(&self.0, to_peer, from_peer, epoch_bits)))
    }
}

impl fmt::Debug for Initiator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Initiator")
    }
}

fn builder(seed: &Seed) -> Builder<'static> {
    let params = NAME.parse().expect("a name of the framework");
    Builder::with_resolver(params, Box::new(Resolver(Zeroizing::new(*seed))))
}

/// The secrets of the two directions: from the connector, and to it.
fn split(state: &mut HandshakeState) -> (ChainSecret, ChainSecret) {
    let (from_initiator, to_initiator) = state.dangerously_get_raw_split();
    (Zeroizing::new(from_initiator), Zeroizing::new(to_initiator))
}

fn agreement(
    state: &HandshakeState,
    to_peer: ChainSecret,
    from_peer: ChainSecret,
    epoch_bits: u8,
) -> Agreement {
    Agreement {
        sealer: Sealer::new(to_peer, epoch_bits),
        opener: Opener::new(from_peer, epoch_bits),
        binding: state.get_handshake_hash().try_into().expect("SHA-256 has 32 bytes"),
    }
}

/// Gives the library our random numbers, curve, hash and cipher.
struct Resolver(Zeroizing<Seed>);

impl CryptoResolver for Resolver {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Generator(ChaCha20Rng::from_seed(*self.0))))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        matches!(choice, DHChoice::Curve25519).then(|| Box::<Curve>::default() as Box<dyn Dh>)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        matches!(choice, HashChoice::SHA256).then(|| Box::<Sha256>::default() as Box<dyn Hash>)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        let is_ours = matches!(choice, CipherChoice::AESGCM);
        is_ours.then(|| Box::<AesGcm>::default() as Box<dyn Cipher>)
    }
}

struct Generator(ChaCha20Rng);

impl Random for Generator {
    fn try_fill_bytes(&mut self, dest: &mut [u8]) -> Result<(), snow::Error> {
        self.0.fill_bytes(dest);
        Ok(())
    }
}

/// SHA-256.
struct Sha256(Context);

impl Default for Sha256 {
    fn default() -> Self {
        Self(Context::new(&SHA256))
    }
}

impl Hash for Sha256 {
    fn name(&self) -> &'static str {
        "SHA256"
    }

    fn block_len(&self) -> usize {
        64
    }

    fn hash_len(&self) -> usize {
        SHA256_OUTPUT_LEN
    }

    fn reset(&mut self) {
        *self = Self::default();
    }

    fn input(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    fn result(&mut self, out: &mut [u8]) {
        let digest = std::mem::take(self).0.finish();
        out[..SHA256_OUTPUT_LEN].copy_from_slice(digest.as_ref());
    }
}

/// AES-256-GCM as the framework uses it: the nonce is four zero bytes and a big-endian number.
#[derive(Default)]
struct AesGcm(Option<LessSafeKey>);

impl AesGcm {
    fn key(&self) -> &LessSafeKey {
        self.0.as_ref().expect("the framework sets a key before it uses one")
    }

    fn nonce(number: u64) -> Nonce {
        let mut nonce = [0; NONCE_LEN];
        nonce[NONCE_LEN - 8..].copy_from_slice(&number.to_be_bytes());
        Nonce::assume_unique_for_key(nonce)
    }
}

impl Cipher for AesGcm {
    fn name(&self) -> &'static str {
        "AESGCM"
    }

    fn set(&mut self, key: &[u8; KEY_BYTES]) {
        let key = UnboundKey::new(&AES_256_GCM, key).expect("a key has 32 bytes");
        self.0 = Some(LessSafeKey::new(key));
    }

    fn encrypt(&self, nonce: u64, authtext: &[u8], plaintext: &[u8], out: &mut [u8]) -> usize {
        let (text, rest) = out.split_at_mut(plaintext.len());
        text.copy_from_slice(plaintext);
        let sealed =
            self.key().seal_in_place_separate_tag(Self::nonce(nonce), Aad::from(authtext), text);
        let tag = sealed.expect("a handshake's message is short");
        rest[..TAG_BYTES].copy_from_slice(tag.as_ref());
        plaintext.len() + TAG_BYTES
    }

    fn decrypt(
        &self,
        nonce: u64,
        authtext: &[u8],
        ciphertext: &[u8],
        out: &mut [u8],
    ) -> Result<usize, snow::Error> {
        let len = ciphertext.len().checked_sub(TAG_BYTES).ok_or(snow::Error::Decrypt)?;
        let (text, tag) = ciphertext.split_at(len);
        let out = out.get_mut(..len).ok_or(snow::Error::Decrypt)?;
        let opened = self.key().open_separate_gather(
            Self::nonce(nonce),
            Aad::from(authtext),
            text,
            tag,
            out,
        );
        opened.map(|()| len).map_err(|_| snow::Error::Decrypt)
    }
}

/// X25519 with one private key.
#[derive(Default)]
struct Curve {
    key: Option<PrivateKey>,
    secret: Zeroizing<[u8; KEY_BYTES]>,
    public: [u8; KEY_BYTES],
}

impl Dh for Curve {
    fn name(&self) -> &'static str {
        "25519"
    }

    fn pub_len(&self) -> usize {
        KEY_BYTES
    }

    fn priv_len(&self) -> usize {
        KEY_BYTES
    }

    fn set(&mut self, privkey: &[u8]) {
        self.secret.copy_from_slice(privkey);
        let key = PrivateKey::from_private_key(&X25519, privkey).expect("a key has 32 bytes");
        let public = key.compute_public_key().expect("every key has a public half");
        self.public.copy_from_slice(public.as_ref());
        self.key = Some(key);
    }

    fn generate(&mut self, rng: &mut dyn Random) -> Result<(), snow::Error> {
        let mut secret = Zeroizing::new([0; KEY_BYTES]);
        rng.try_fill_bytes(&mut secret[..])?;
        self.set(&secret[..]);
        Ok(())
    }

    fn pubkey(&self) -> &[u8] {
        &self.public
    }

    fn privkey(&self) -> &[u8] {
        &self.secret[..]
    }

    fn dh(&self, pubkey: &[u8], out: &mut [u8]) -> Result<(), snow::Error> {
        let key = self.key.as_ref().ok_or(snow::Error::Dh)?;
        let peer = UnparsedPublicKey::new(&X25519, &pubkey[..KEY_BYTES]);
        agree(key, peer, snow::Error::Dh, |shared| {
            out[..shared.len()].copy_from_slice(shared);
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seal::{KEY_EPOCH_BITS, Unopened};

    const HELLO: &str = "\
        403e5376b7e466f103572da5ac47cab01c7226109925ffb2b20e12c3f3476a5656308d1ebffc71b1e91d7859\
        f6b4763fd2a7215e99a1de642c824cd62321ee54bb09981990d7c391f78c0666eba3fe40c4e9e6f823d33844\
        672be2a7ed61f131a0f5b2efae";
    const WELCOME: &str = "\
        325420fcc13cc3a0f84d673c85f59c6c2764afa49e256068c04025fb1855ef17b71f3f1dede07316700470a7\
        4f5af6622092b39c095292";

    fn keys() -> (SecretKey, SecretKey) {
        (SecretKey::from_bytes([1; 32]), SecretKey::from_bytes([2; 32]))
    }

    fn start(prologue: &[u8]) -> (Initiator, Vec<u8>) {
        let (connector, acceptor) = keys();
        Initiator::start(&[3; 32], &connector, &acceptor.public(), prologue, b"hello")
    }

    #[test]
    fn both_ends_come_to_the_same() {
        let (connector, acceptor) = keys();
        let (mut initiator, hello) = start(b"clear");
        let ReadHello { responder, key, payload } =
            Responder::read(&[4; 32], &acceptor, b"clear", &hello).expect("it is for us");
        assert_eq!((key, payload.as_slice()), (connector.public(), &b"hello"[..]));
        let (welcome, mut ours) = responder.answer(b"welcome", KEY_EPOCH_BITS).expect("an answer");
        let (payload, mut theirs) =
            initiator.finish(&welcome, KEY_EPOCH_BITS).expect("it is the answer");
        assert_eq!((payload.as_slice(), ours.binding), (&b"welcome"[..], theirs.binding));

        let mut sealed = [0; 5 + TAG_BYTES];
        let mut opened = [0; 5];
        ours.sealer.seal(0, b"h", b"", b"to it", &mut sealed);
        assert_eq!(theirs.opener.open(0, b"h", &sealed, &mut opened), Ok(()));
        assert_eq!(opened, *b"to it");
        assert_eq!(
            ours.opener.open(0, b"h", &sealed, &mut opened),
            Err(Unopened::Forged),
            "each direction has its own key"
        );
        theirs.sealer.seal(0, b"h", b"", b"to us", &mut sealed);
        assert_eq!(ours.opener.open(0, b"h", &sealed, &mut opened), Ok(()));
    }

    /// The bytes that the handshake had when its hash and cipher were RustCrypto's: peers of that
    /// age understand these.
    #[test]
    fn another_implementation_made_the_same_bytes() {
        let (_, acceptor) = keys();
        let (_, hello) = start(b"clear");
        let ReadHello { responder, .. } =
            Responder::read(&[4; 32], &acceptor, b"clear", &hello).expect("it is for us");
        let (welcome, _) = responder.answer(b"welcome", KEY_EPOCH_BITS).expect("an answer");
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(hex(&hello), HELLO);
        assert_eq!(hex(&welcome), WELCOME);
    }

    #[test]
    fn a_change_anywhere_is_noticed() {
        let (_, acceptor) = keys();
        let (mut initiator, hello) = start(b"clear");
        let read = |prologue: &[u8], message: &[u8]| {
            Responder::read(&[4; 32], &acceptor, prologue, message)
        };
        for bit in 0..hello.len() * 8 {
            let mut damaged = hello.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            // The highest bit of a key on this curve means nothing, but it is part of the hash.
            assert!(read(b"clear", &damaged).is_none(), "bit {bit}");
        }
        assert!(read(b"cleAr", &hello).is_none());
        let other = SecretKey::from_bytes([5; 32]);
        assert!(Responder::read(&[4; 32], &other, b"clear", &hello).is_none());

        let ReadHello { responder, .. } = read(b"clear", &hello).expect("unchanged");
        let (welcome, _) = responder.answer(b"welcome", KEY_EPOCH_BITS).expect("an answer");
        for bit in 0..welcome.len() * 8 {
            let mut damaged = welcome.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(initiator.finish(&damaged, KEY_EPOCH_BITS).is_none(), "bit {bit}");
        }
        assert!(initiator.finish(&welcome, KEY_EPOCH_BITS).is_some(), "forgeries did no harm");
    }

    #[test]
    fn points_of_low_order_are_refused() {
        let (connector, _) = keys();
        for point in [[0; 32], {
            let mut one = [0; 32];
            one[0] = 1;
            one
        }] {
            let (_, hello) =
                Initiator::start(&[3; 32], &connector, &PublicKey(point), b"", b"hello");
            assert!(hello.iter().all(|&byte| byte == 0), "nothing is sealed under such a key");
        }
    }

    #[test]
    fn each_answer_has_keys_of_its_own() {
        let (_, acceptor) = keys();
        let (_, hello) = start(b"");
        let bindings = [[4; 32], [5; 32]].map(|seed| {
            let ReadHello { responder, .. } =
                Responder::read(&seed, &acceptor, b"", &hello).expect("for us");
            responder.answer(b"", KEY_EPOCH_BITS).expect("an answer").1.binding
        });
        assert_ne!(bindings[0], bindings[1]);
    }
}
