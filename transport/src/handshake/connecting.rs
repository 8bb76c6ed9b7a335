//! An attempt of ours to have a session.

use std::net::SocketAddr;

use zerocopy::IntoBytes;
use zerocopy::byteorder::little_endian::{U16, U32, U64};

use crate::config::EndpointConfig;
use crate::door::Cookie;
use crate::events::{LostReason, PeerInfo, SessionId, SessionState, SessionStatus};
use crate::handshake::{
    HelloPeer, PeerWay, Proof, SessionNumbers, agree, blank_status, digest, greeting, prologue,
    refusal_text, version_text, versions, write_packet,
};
use crate::keys::{PublicKey, SecretKey};
use crate::noise::{Initiator, MESSAGE_1_BYTES, MESSAGE_2_BYTES, Seed};
use crate::path;
use crate::seal::{HelloDigest, ResetToken, Seal};
use crate::session::Agreed;
use crate::transmit::TransmitBatch;
use crate::wire::COOKIE_BYTES;
use crate::wire::{
    self, DATAGRAM_BYTES_MIN, Entrance, Greeting, HelloRefusal, Label, MESSAGE_MAX, NAME_BYTES_MAX,
    PacketKind, REFUSED_WRONG_KEY, SEALED_VERSION_MIN, SECURITY_PLAIN, SECURITY_SEALED,
    SealedHello, SealedWelcome, VERSION_ANY,
};

/// Time between Hellos: at first as short as a round trip may be, doubling up to what a user does
/// not notice.
const HELLO_FIRST_NS: u64 = 5_000_000;
const HELLO_LAST_NS: u64 = 100_000_000;

/// After so many Hellos without an answer from the port that the peer named, ask at its base
/// address again: it may have been restarted with other ports.
const MOVED_ATTEMPTS_MAX: u32 = 4;

/// After so many Hellos without an answer, try the next key of a peer that has several. A peer that
/// has another key says so; this is for when that is lost, again and again.
const KEY_HELLOS_MAX: u32 = 16;

/// Time between Hellos that are filled up, at first, doubling up to [`HELLO_LAST_NS`].
const FILLED_FIRST_NS: u64 = 10_000_000;

/// After so many filled-up Hellos, each is followed by a bare one.
const FILLED_ALONE: u32 = 2;

/// When the peer has answered so many bare ones, and none of the filled-up ones before them, those
/// of the next smaller size are sent. Without any answer nothing is known: it may not be there.
const BARE_ANSWERS_MAX: u32 = 2;

/// They wait for an answer at least so many times as long as the peer took to ask for a cookie, but
/// no more than a second.
const FILLED_TRIPS: u64 = 4;
const FILLED_LAST_NS: u64 = 1_000_000_000;

/// A reason why a sealed session cannot be had, told in the clear, may be anybody's invention: the
/// true peer has so long to say something better.
const HINT_NS: u64 = 1_000_000_000;

/// Forged Welcomes of which each costs operations on a curve, for each Hello that was due.
const WELCOMES_MAX: u32 = 64;

/// The name in the clear part of a sealed Hello, where a peer of any version looks for one.
const VEIL: &[u8] = b"sealed";

/// An attempt of ours.
#[derive(Debug)]
pub(crate) struct Connecting {
    pub(crate) id: SessionId,
    pub(crate) local_id: u64,
    pub(crate) attempt: u64,
    pub(crate) index: u16,
    pub(crate) expected_name: String,
    /// Where the peer's first sidecore is, and where we ask now.
    base: SocketAddr,
    target: SocketAddr,
    hello_ns: u64,
    hello_is_due: bool,
    /// Hellos since the start, and since the peer last named a port.
    hellos: u32,
    hellos_there: u32,
    /// The cookie that the target asked us to show; zeros before.
    cookie: Cookie,
    /// It asked since the last Hello that was due anyway.
    has_retried: bool,
    size: Size,
    mode: ConnectMode,
    /// Keys of the peer that were tried.
    pub(crate) keys_tried: usize,
    hint: Option<Hint>,
}

/// How large datagrams this attempt proposes.
#[derive(Debug)]
struct Size {
    bytes: usize,
    /// The first proposal.
    first_bytes: usize,
    /// Filled-up Hellos that were not answered, and bare ones after them that were.
    hellos: u32,
    bare_answers: u32,
    /// The last Hello had no cookie, although there is one, to see whether the peer is there.
    is_bare: bool,
    /// It waits for its answer.
    awaits_bare: bool,
    /// How long the peer took to ask for a cookie.
    trip_ns: u64,
    /// When the last Hello left.
    asked_ns: u64,
}

impl Size {
    /// The peer's silence so far means nothing.
    fn begin_again(&mut self) {
        (self.hellos, self.bare_answers) = (0, 0);
        (self.is_bare, self.awaits_bare) = (false, false);
    }
}

#[derive(Debug)]
enum ConnectMode {
    Plain,
    Sealed(Box<Sealing>),
    /// We know no key of the peer: nothing is sent.
    Keyless,
}

/// An attempt for a sealed session.
#[derive(Debug)]
struct Sealing {
    /// Our key and the peer's.
    keys: (PublicKey, PublicKey),
    /// Whether the peer has other keys to try.
    has_alternatives: bool,
    initiator: Initiator,
    clear: Greeting,
    message: Vec<u8>,
    hello: HelloDigest,
    hellos: u32,
    /// Welcomes since the last Hello that was due.
    welcomes: u32,
    /// A refusal in the peer's name says that the peer has another key.
    is_wrong_key: bool,
}

#[derive(Debug)]
struct Hint {
    until_ns: u64,
    why: String,
}

/// The parts of an attempt for a sealed session.
pub(crate) struct SealedAttempt<'a> {
    pub(crate) secret: &'a SecretKey,
    /// The peer's key, and how many it has.
    pub(crate) key: PublicKey,
    pub(crate) keys: usize,
    pub(crate) attempt: u64,
    pub(crate) seed: Seed,
    pub(crate) reset_token: ResetToken,
}

/// The result of a Welcome.
#[derive(Debug)]
pub(crate) enum Welcomed {
    Agreed(Box<Agreed>, Option<Box<Seal>>),
    Lost(LostReason),
    /// It breaks the rules.
    Violation,
    /// It was not sealed by the peer for this attempt.
    Forged,
}

impl Connecting {
    pub(crate) fn new(
        now_ns: u64,
        numbers: SessionNumbers,
        base: SocketAddr,
        expected_name: &str,
        (index, datagram_bytes): (u16, usize),
    ) -> Self {
        let SessionNumbers { id, local_id, attempt } = numbers;
        Self {
            id,
            local_id,
            attempt,
            index,
            expected_name: expected_name.to_owned(),
            base,
            target: base,
            hello_ns: now_ns,
            hello_is_due: false,
            hellos: 0,
            hellos_there: 0,
            cookie: [0; COOKIE_BYTES],
            has_retried: false,
            size: Size {
                bytes: datagram_bytes,
                first_bytes: datagram_bytes,
                hellos: 0,
                bare_answers: 0,
                is_bare: false,
                awaits_bare: false,
                trip_ns: 0,
                asked_ns: now_ns,
            },
            mode: ConnectMode::Plain,
            keys_tried: 0,
            hint: None,
        }
    }

    /// From now on it asks for a plain session.
    pub(crate) fn be_plain(&mut self) {
        self.mode = ConnectMode::Plain;
    }

    /// The reasons for a former refusal may be gone.
    pub(crate) fn forget_hint(&mut self) {
        self.hint = None;
    }

    /// There is no key to ask with; told as the reason of its loss.
    pub(crate) fn be_keyless(&mut self, now_ns: u64, why: String) {
        self.mode = ConnectMode::Keyless;
        self.hint = Some(Hint { until_ns: now_ns, why });
    }

    /// Begins a new attempt, for a sealed session with the peer that has a key.
    pub(crate) fn be_sealed(&mut self, config: &EndpointConfig, with: &SealedAttempt<'_>) {
        self.attempt = with.attempt;
        self.keys_tried += 1;
        let clear = veiled_greeting(config, self.index, self.local_id);
        let inside = SealedHello { reset_token: with.reset_token, greeting: self.greeting(config) };
        let entrance = entrance(SECURITY_SEALED, MESSAGE_1_BYTES + size_of::<SealedHello>());
        let prologue = prologue(self.attempt, config.key_epoch_bits, clear.as_bytes(), &entrance);
        let (initiator, message) =
            Initiator::start(&with.seed, with.secret, &with.key, &prologue, inside.as_bytes());
        self.mode = ConnectMode::Sealed(Box::new(Sealing {
            keys: (with.secret.public(), with.key),
            has_alternatives: with.keys > 1,
            initiator,
            hello: digest(&prologue, &message),
            clear,
            message,
            hellos: 0,
            welcomes: 0,
            is_wrong_key: false,
        }));
    }

    /// The peer's key with which it asks.
    pub(crate) fn key(&self) -> Option<PublicKey> {
        match &self.mode {
            ConnectMode::Sealed(sealing) => Some(sealing.keys.1),
            ConnectMode::Plain | ConnectMode::Keyless => None,
        }
    }

    /// Whether the next Hello should try another key.
    pub(crate) fn wants_another_key(&self, now_ns: u64) -> bool {
        let is_due = now_ns >= self.hello_ns;
        match &self.mode {
            ConnectMode::Sealed(it) if it.has_alternatives && is_due => {
                it.is_wrong_key || it.hellos >= KEY_HELLOS_MAX
            }
            _ => false,
        }
    }

    /// The peer's address, wherever its sidecores are.
    pub(crate) fn base(&self) -> SocketAddr {
        self.base
    }

    /// The size that was come to, once any was tried.
    pub(crate) fn tried_bytes(&self) -> Option<usize> {
        self.has_cookie().then_some(self.size.bytes)
    }

    /// Whether the next Hello should propose another size of datagrams.
    pub(crate) fn wants_another_size(&self, now_ns: u64) -> bool {
        now_ns >= self.hello_ns && self.size.bare_answers >= BARE_ANSWERS_MAX
    }

    /// Proposes the next smaller size, in a new attempt, so that no answer to a larger one counts
    /// any more; after the least one, the first. Says how many Hellos had the key, which stays.
    pub(crate) fn take_another_size(&mut self, attempt: u64) -> u32 {
        self.attempt = attempt;
        self.size.bytes = path::smaller(self.size.bytes).unwrap_or(self.size.first_bytes);
        self.size.begin_again();
        self.keys_tried = self.keys_tried.saturating_sub(1);
        match &self.mode {
            ConnectMode::Sealed(sealing) => sealing.hellos,
            ConnectMode::Plain | ConnectMode::Keyless => 0,
        }
    }

    /// Other attempts with the same key went before this one.
    pub(crate) fn asked_with_this_key(&mut self, hellos: u32) {
        if let ConnectMode::Sealed(sealing) = &mut self.mode {
            sealing.hellos = hellos;
        }
    }

    fn has_cookie(&self) -> bool {
        self.cookie != [0; COOKIE_BYTES]
    }

    fn shows_cookie(&self) -> bool {
        self.has_cookie() && !self.size.is_bare
    }

    fn greeting(&self, config: &EndpointConfig) -> Greeting {
        let datagram_bytes_max = U32::new(self.size.bytes as u32);
        Greeting { datagram_bytes_max, ..greeting(config, 0, self.index, self.local_id) }
    }

    pub(crate) fn deadline_ns(&self) -> u64 {
        let hello_ns = if self.hello_is_due { u64::MAX } else { self.hello_ns };
        let hint_ns = self.hint.as_ref().map_or(u64::MAX, |hint| hint.until_ns);
        hello_ns.min(hint_ns)
    }

    /// Time passed. Tells why there will be no session, if so.
    pub(crate) fn advance(&mut self, now_ns: u64) -> Option<LostReason> {
        self.hello_is_due |= now_ns >= self.hello_ns;
        let hint = self.hint.as_ref().filter(|hint| now_ns >= hint.until_ns)?;
        Some(LostReason::Refused(hint.why.clone()))
    }

    /// Where to send a Hello, if it is time for one.
    pub(crate) fn hello_to(&mut self, now_ns: u64) -> Option<SocketAddr> {
        let is_due = now_ns >= self.hello_ns;
        if !(is_due || self.hello_is_due) || matches!(self.mode, ConnectMode::Keyless) {
            return None;
        }
        if is_due {
            self.has_retried = false;
        }
        if self.hellos_there == MOVED_ATTEMPTS_MAX {
            self.target = self.base;
            self.hellos_there = 0;
            self.cookie = [0; COOKIE_BYTES];
        }
        let was_filled = self.shows_cookie();
        self.size.is_bare = was_filled && self.size.hellos >= FILLED_ALONE;
        self.size.awaits_bare = self.size.is_bare;
        self.hello_ns = now_ns + self.pause_ns();
        self.size.asked_ns = now_ns;
        self.size.hellos += u32::from(self.shows_cookie());
        self.hello_is_due = false;
        self.hellos = self.hellos.saturating_add(1);
        self.hellos_there += u32::from(self.target != self.base);
        if let ConnectMode::Sealed(sealing) = &mut self.mode {
            sealing.hellos += 1;
            sealing.welcomes = if is_due { 0 } else { sealing.welcomes };
        }
        Some(self.target)
    }

    /// How long the Hello that is sent now waits for its answer.
    fn pause_ns(&self) -> u64 {
        if self.has_cookie() {
            let trips_ns = (FILLED_TRIPS * self.size.trip_ns).min(FILLED_LAST_NS);
            let doublings = if self.size.is_bare { 0 } else { self.size.hellos.min(8) };
            return (FILLED_FIRST_NS << doublings).min(HELLO_LAST_NS).max(trips_ns);
        }
        (HELLO_FIRST_NS << self.hellos.min(8)).min(HELLO_LAST_NS)
    }

    /// Adds a Hello to `out`; says how long it is.
    pub(crate) fn write_hello(
        &self,
        to: SocketAddr,
        out: &mut TransmitBatch,
        config: &EndpointConfig,
    ) -> usize {
        let label = Label {
            kind: PacketKind::Hello,
            version: VERSION_ANY,
            session: 0,
            number: self.attempt,
            flags: 0,
        };
        let (clear, message, security) = match &self.mode {
            ConnectMode::Sealed(it) => (it.clear, it.message.as_slice(), SECURITY_SEALED),
            ConnectMode::Plain | ConnectMode::Keyless => {
                (self.greeting(config), &[][..], SECURITY_PLAIN)
            }
        };
        let slot = out.next(to);
        if *config.versions.end() < SEALED_VERSION_MIN {
            write_packet(slot, label, clear.as_bytes());
            return slot.head_bytes;
        }
        let cookie = if self.shows_cookie() { self.cookie } else { [0; COOKIE_BYTES] };
        let entrance = Entrance { cookie, ..entrance(security, message.len()) };
        let mut frames = [0; HELLO_BYTES_MAX];
        let mut at = 0;
        wire::put(&mut frames, &mut at, &clear);
        wire::put(&mut frames, &mut at, &entrance);
        wire::put(&mut frames, &mut at, message);
        write_packet(slot, label, &frames[..at]);
        out.pad_last(label, if self.shows_cookie() { self.size.bytes } else { 0 })
    }

    /// The peer says that another of its sidecores is meant. Asked at once, but only the first time
    /// between two Hellos that were due anyway, so that two peers cannot send us to and fro.
    pub(crate) fn moved(&mut self, port: u16) {
        if self.target.port() == port {
            return;
        }
        self.hello_is_due = self.target == self.base;
        self.target.set_port(port);
        self.hellos_there = 0;
        self.cookie = [0; COOKIE_BYTES];
    }

    /// The peer wants to see a cookie. Shown at once, but only once between two Hellos that were
    /// due anyway, so that no host makes us send more than it does.
    pub(crate) fn retry(&mut self, now_ns: u64, cookie: &Cookie, is_busy: bool) {
        if !self.has_cookie() {
            self.size.trip_ns = now_ns.saturating_sub(self.size.asked_ns);
        } else if is_busy {
            // Our Hello arrived, so its size passes; the peer wants it later.
            self.size.begin_again();
            return;
        } else if std::mem::take(&mut self.size.awaits_bare) {
            self.size.bare_answers += 1;
        } else if self.cookie == *cookie {
            return;
        } else {
            // It is another process, or the cookie had grown old.
            self.size.begin_again();
        }
        self.cookie = *cookie;
        self.hellos_there = 0;
        self.hello_is_due |= !std::mem::replace(&mut self.has_retried, true);
    }

    /// A refusal in the clear, perhaps forged. An attempt for a plain session believes it; another
    /// attempt remembers it for the case that nothing better comes.
    pub(crate) fn refused(
        &mut self,
        now_ns: u64,
        config: &EndpointConfig,
        refusal: &HelloRefusal,
    ) -> Option<LostReason> {
        let keys = match &mut self.mode {
            ConnectMode::Sealed(sealing) => {
                sealing.is_wrong_key |= refusal.reason == REFUSED_WRONG_KEY;
                Some(sealing.keys)
            }
            ConnectMode::Plain | ConnectMode::Keyless => None,
        };
        let why = refusal_text(refusal, config, &self.expected_name, keys);
        if keys.is_none() {
            return Some(LostReason::Refused(why));
        }
        let until_ns = self.hint.as_ref().map_or(now_ns + HINT_NS, |hint| hint.until_ns);
        self.hint = Some(Hint { until_ns, why });
        None
    }

    /// Whether a Welcome to a sealed attempt is looked into; counts it.
    pub(crate) fn admits_welcome(&mut self) -> bool {
        let ConnectMode::Sealed(sealing) = &mut self.mode else { return false };
        sealing.welcomes += 1;
        sealing.welcomes <= WELCOMES_MAX
    }

    /// A Welcome from the peer, or from a host that pretends to be the peer.
    pub(crate) fn welcomed(
        &mut self,
        config: &EndpointConfig,
        from: SocketAddr,
        frames: &[u8],
    ) -> Welcomed {
        let ConnectMode::Sealed(sealing) = &mut self.mode else {
            return match HelloPeer::read(frames) {
                Some(peer) => self.agreed(config, from, &peer, &Proof::default(), None),
                None => Welcomed::Violation,
            };
        };
        let Some((inside, agreement)) = sealing.initiator.finish(frames, config.key_epoch_bits)
        else {
            return Welcomed::Forged;
        };
        // From here on it is the peer that speaks, so what it says ends the attempt.
        let nonsense = || LostReason::Refused("the peer's Welcome is not valid".to_owned());
        let mut inside = &inside[..];
        let Some(welcome) = wire::take::<SealedWelcome>(&mut inside) else {
            return Welcomed::Lost(nonsense());
        };
        let keys = sealing.keys;
        if welcome.refusal.reason != 0 {
            let text = refusal_text(&welcome.refusal, config, &self.expected_name, Some(keys));
            return Welcomed::Lost(LostReason::Refused(text));
        }
        let seal = Box::new(Seal {
            sealer: agreement.sealer,
            opener: agreement.opener,
            reset_token: welcome.reset_token,
            hello: sealing.hello,
        });
        let proof = Proof { key: Some(keys.1), binding: agreement.binding };
        let Some(peer) = HelloPeer::read(welcome.greeting.as_bytes()) else {
            return Welcomed::Lost(nonsense());
        };
        match self.agreed(config, from, &peer, &proof, Some(seal)) {
            Welcomed::Violation => Welcomed::Lost(nonsense()),
            other => other,
        }
    }

    fn agreed(
        &self,
        config: &EndpointConfig,
        from: SocketAddr,
        peer: &HelloPeer,
        proof: &Proof,
        seal: Option<Box<Seal>>,
    ) -> Welcomed {
        if peer.greeting.index.get() != self.index {
            return Welcomed::Violation;
        }
        let (version, ours) = (peer.greeting.version, versions(config));
        if !ours.contains(&version) || !peer.versions().contains(&version) {
            let text = version_text(&ours, &peer.versions());
            return Welcomed::Lost(LostReason::Refused(text));
        }
        if !self.expected_name.is_empty() && self.expected_name != peer.name {
            return Welcomed::Lost(LostReason::Refused(format!(
                "the node at {from} has the name \"{}\" instead of \"{}\"",
                peer.name, self.expected_name
            )));
        }
        let Self { id, local_id, attempt, index, .. } = *self;
        let numbers = SessionNumbers { id, local_id, attempt };
        let way = PeerWay { addr: from, version, index, outgoing: true };
        let mut agreed = agree(config, peer, numbers, way, proof);
        agreed.datagram_bytes_max = agreed.datagram_bytes_max.min(self.size.bytes);
        Welcomed::Agreed(Box::new(agreed), seal)
    }

    pub(crate) fn status(&self) -> SessionStatus {
        let peer = PeerInfo {
            name: self.expected_name.clone(),
            process_nonce: 0,
            addr: self.target,
            version: 0,
            index: self.index,
            outgoing: true,
            key: self.key(),
            binding: [0; 32],
        };
        blank_status(self.id, SessionState::Connecting, peer)
    }
}

/// The longest Hello, without its header.
const HELLO_BYTES_MAX: usize =
    size_of::<Greeting>() + size_of::<Entrance>() + size_of::<SealedHello>() + MESSAGE_1_BYTES;

/// The lengths of messages 1 and 2 are part of the protocol (docs/protocol.md, "Sealed sessions").
const _: () = assert!(
    MESSAGE_1_BYTES + size_of::<SealedHello>() == 216
        && MESSAGE_2_BYTES + size_of::<SealedWelcome>() == 172
);

/// An entrance before there is a cookie.
fn entrance(security: u8, message_bytes: usize) -> Entrance {
    Entrance {
        security,
        reserved: 0,
        message_bytes: U16::new(message_bytes as u16),
        reserved_too: U32::ZERO,
        cookie: [0; COOKIE_BYTES],
    }
}

/// The greeting in the clear of an attempt for a sealed session: enough to be answered by any
/// version, and nothing about the node.
fn veiled_greeting(config: &EndpointConfig, index: u16, local_id: u64) -> Greeting {
    let versions = versions(config);
    let mut name = [0; NAME_BYTES_MAX];
    name[..VEIL.len()].copy_from_slice(VEIL);
    Greeting {
        version_min: *versions.start(),
        version_max: *versions.end(),
        version: 0,
        name_bytes: VEIL.len() as u8,
        index: U16::new(index),
        sidecores: U16::new(1),
        session: U64::new(local_id),
        process_nonce: U64::ZERO,
        datagram_bytes_max: U32::new(DATAGRAM_BYTES_MIN as u32),
        receive_window_bytes: U32::ZERO,
        flow_credit_bytes: U32::new(MESSAGE_MAX as u32),
        calls_max: U16::new(1),
        reserved: U16::ZERO,
        name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NUMBERS: SessionNumbers = SessionNumbers { id: SessionId(1), local_id: 2, attempt: 3 };

    #[test]
    fn asks_ever_more_slowly_and_returns_to_the_base_address() {
        let base: SocketAddr = "10.0.0.1:4870".parse().expect("an address");
        let mut connecting = Connecting::new(0, NUMBERS, base, "", (0, 1472));
        let mut now_ns = 0;
        let mut asked = Vec::new();
        while asked.len() < 12 {
            if let Some(to) = connecting.hello_to(now_ns) {
                asked.push((to.port(), connecting.deadline_ns() - now_ns));
                if asked.len() == 2 {
                    connecting.moved(4871);
                    assert_eq!(connecting.deadline_ns(), u64::MAX, "asks there at once");
                    continue;
                }
            }
            now_ns = connecting.deadline_ns();
            assert_eq!(connecting.advance(now_ns), None);
        }
        let ports: Vec<u16> = asked.iter().map(|(port, _)| *port).collect();
        assert_eq!(ports[..7], [4870, 4870, 4871, 4871, 4871, 4871, 4870]);
        assert!(asked.iter().all(|&(_, pause_ns)| pause_ns <= HELLO_LAST_NS));
        assert_eq!(asked[11].1, HELLO_LAST_NS);
    }

    #[test]
    fn being_sent_to_and_fro_does_not_hurry_us() {
        let base: SocketAddr = "10.0.0.1:1".parse().expect("an address");
        let mut connecting = Connecting::new(0, NUMBERS, base, "", (0, 1472));
        assert!(connecting.hello_to(0).is_some());
        connecting.moved(2);
        assert!(connecting.hello_to(0).is_some());
        connecting.moved(3);
        assert!(connecting.hello_to(0).is_none());
    }
    #[test]
    fn a_cookie_is_shown_at_once_and_answers_are_not_longer_than_questions() {
        let base: SocketAddr = "10.0.0.1:1".parse().expect("an address");
        let mut connecting = Connecting::new(0, NUMBERS, base, "", (0, 1472));
        assert!(connecting.hello_to(0).is_some());
        connecting.retry(0, &[1; COOKIE_BYTES], false);
        assert!(connecting.hello_to(0).is_some());
        for byte in 2..200 {
            connecting.retry(0, &[byte; COOKIE_BYTES], false);
            assert!(connecting.hello_to(1).is_none());
        }
        assert_eq!(connecting.cookie, [199; COOKIE_BYTES], "the last one is the one to show");
        let due_ns = connecting.deadline_ns();
        assert!(connecting.hello_to(due_ns).is_some());
        connecting.moved(2);
        assert_eq!(connecting.cookie, [0; COOKIE_BYTES], "another sidecore has other cookies");
    }
}
