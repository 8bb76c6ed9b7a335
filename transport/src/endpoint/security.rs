//! Whose sessions may be: keys that come, go and expire.

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::config::EndpointConfig;
use crate::endpoint::{Endpoint, TableEntry};
use crate::events::{LostReason, Sink};
use crate::handshake::SealedAttempt;
use crate::keys::{PublicKey, Security};
use crate::noise::START_OPERATIONS;
use crate::seal::ResetKey;

/// The generator of an endpoint's secrets. The other random parts of the configuration go in too,
/// so that sidecores which were given the same entropy by mistake still differ.
pub(super) fn generator(config: &EndpointConfig) -> ChaCha20Rng {
    let mut seed = config.entropy;
    let parts = [config.seed, config.process_nonce, u64::from(config.index)];
    for (byte, part) in seed.iter_mut().zip(parts.into_iter().flat_map(u64::to_le_bytes)) {
        *byte ^= part;
    }
    ChaCha20Rng::from_seed(seed)
}

/// Put in place of the entropy once it was used, because the entropy must lie in one place only.
pub(super) const SPENT: [u8; 32] = [1; 32];

/// 32 secret bytes.
pub(super) fn draw(secrets: &mut ChaCha20Rng) -> [u8; 32] {
    let mut bytes = [0; 32];
    secrets.fill_bytes(&mut bytes);
    bytes
}

/// The key of our Resets.
pub(super) fn reset_key(security: &Security) -> Option<ResetKey> {
    match security {
        Security::Plain => None,
        Security::Sealed { secret, .. } => Some(ResetKey::new(secret)),
    }
}

impl Endpoint {
    /// Changes the keys, or whether there are any. Sessions whose peer's key is not known any more,
    /// or is another node's now, are lost; the others go on, under the keys that they have.
    /// Attempts that are not connected yet begin anew. `unix_s` as in
    /// [`set_wall_clock`](Self::set_wall_clock).
    pub fn set_security(
        &mut self,
        now_ns: u64,
        unix_s: u64,
        security: Security,
        sink: &mut dyn Sink,
    ) {
        self.config.check_security(&security);
        self.reset_key = reset_key(&security);
        self.config.security = security;
        self.unix_s = self.unix_s.max(unix_s);
        for place in 0..self.places.len() {
            if let TableEntry::Connecting(connecting) = &mut self.places[place].entry {
                connecting.forget_hint();
                self.begin_attempt(now_ns, place);
                self.touched(place);
            }
        }
        self.revoke(now_ns, sink);
    }

    /// Tells what time it is, in seconds of Unix time: sessions whose peer's key has expired are
    /// lost. About once a second is enough. It only goes forward here: a clock that jumps back
    /// revives no key. Before it is first told, no key has expired.
    pub fn set_wall_clock(&mut self, now_ns: u64, unix_s: u64, sink: &mut dyn Sink) {
        if unix_s > self.unix_s {
            self.unix_s = unix_s;
            self.revoke(now_ns, sink);
        }
    }

    /// Begins an attempt of ours anew, as things are now: plain, or with the next key that the peer
    /// is known to have.
    pub(super) fn begin_attempt(&mut self, now_ns: u64, place: usize) {
        let local_id = self.places[place].local_id;
        let TableEntry::Connecting(connecting) = &mut self.places[place].entry else { return };
        let Security::Sealed { secret, keyring } = &self.config.security else {
            connecting.be_plain();
            return;
        };
        let peer = &connecting.expected_name;
        let is_good =
            |key: &PublicKey| keyring.get(key).is_some_and(|known| !known.is_expired(self.unix_s));
        let keys = keyring.keys_of(peer).filter(is_good).count();
        if keys == 0 {
            let why = if keyring.keys_of(peer).next().is_some() {
                format!("every key of \"{peer}\" that is configured here has expired")
            } else {
                format!("no key of \"{peer}\" is configured here, and sessions are sealed")
            };
            connecting.be_keyless(now_ns, why);
            return;
        }
        let nth = connecting.keys_tried % keys;
        let key = keyring.keys_of(peer).filter(is_good).nth(nth).expect("they were counted");
        let reset_key = self.reset_key.as_ref().expect("sealed sessions have one");
        self.last_attempt = now_ns.max(self.last_attempt + 1);
        self.counters.public_key_operations += START_OPERATIONS;
        let ingredients = SealedAttempt {
            secret,
            key,
            keys,
            attempt: self.last_attempt,
            seed: draw(&mut self.secrets),
            reset_token: reset_key.token(self.config.index, local_id),
        };
        connecting.be_sealed(&self.config, &ingredients);
    }

    /// Ends the sessions that may not be any more, and says so to both sides.
    fn revoke(&mut self, now_ns: u64, sink: &mut dyn Sink) {
        for place in 0..self.places.len() {
            let why = match &self.places[place].entry {
                TableEntry::Vacant => None,
                // An attempt with a key that is not good any more goes on with another.
                TableEntry::Connecting(connecting) => {
                    let name = &connecting.expected_name;
                    let key = connecting.key();
                    if key.is_some() && self.objection(key.as_ref(), name).is_some() {
                        self.begin_attempt(now_ns, place);
                        self.touched(place);
                    }
                    None
                }
                TableEntry::HalfOpen(it) => self.objection(it.proof.key.as_ref(), &it.peer.name),
                TableEntry::Open(session) => {
                    let peer = &session.agreed().peer;
                    self.objection(peer.key.as_ref(), &peer.name)
                }
            };
            if let Some(why) = why {
                self.say_farewell(place);
                self.lose(place, &LostReason::Revoked(why), sink);
            }
        }
    }

    /// Why there should be no session with the peer `name` that has proved to have `key`.
    fn objection(&self, key: Option<&PublicKey>, name: &str) -> Option<String> {
        let (keyring, key) = match (&self.config.security, key) {
            (Security::Plain, None) => return None,
            (Security::Plain, Some(_)) => return Some("sessions are plain here now".to_owned()),
            (Security::Sealed { .. }, None) => {
                return Some("sessions are sealed here now".to_owned());
            }
            (Security::Sealed { keyring, .. }, Some(key)) => (keyring, key),
        };
        match keyring.get(key) {
            None => Some(format!("the key {key} of \"{name}\" was removed")),
            Some(known) if known.peer != name => {
                Some(format!("the key {key} of \"{name}\" belongs to \"{}\" now", known.peer))
            }
            Some(known) if known.is_expired(self.unix_s) => {
                Some(format!("the key {key} of \"{name}\" has expired"))
            }
            Some(_) => None,
        }
    }
}
