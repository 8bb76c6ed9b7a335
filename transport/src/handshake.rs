//! How a session comes to be.
//!
//! ```text
//! connector                                acceptor
//!   Hello(attempt, my id, ...)   ------>     costs it one hash
//!                                <------   Retry(cookie)
//!   Hello(..., cookie)           ------>     half-open: drawn an id, nothing else
//!                                <------   Welcome(attempt, my id, ...)
//! connected
//!   first packet, at least a ping ----->   connected; an older session of this peer is lost
//! ```
//!
//! A Hello alone changes nothing for the acceptor's sessions, so a copy of an old one does no harm:
//! the sender of a copy cannot confirm the session. Of two attempts of one process, the one with
//! the greater number is the newer.
//!
//! A Hello with a cookie is filled up to the size of datagrams that the connector proposes, and its
//! Welcome to what was agreed on, so that the session's largest datagrams are known to pass both
//! ways. Where they do not, a new attempt proposes less (`path`).
//!
//! When sessions are sealed, Hello and Welcome carry the two messages of `noise`, and what they say
//! about a node is in there. In the clear a Hello says only what is needed to answer it.

mod connecting;

pub(crate) use connecting::{Connecting, SealedAttempt, Welcomed};

use std::mem::offset_of;
use std::net::SocketAddr;
use std::ops::RangeInclusive;

use aws_lc_rs::digest::{Context, SHA256};
use zerocopy::IntoBytes;
use zerocopy::byteorder::little_endian::{U16, U32, U64};

use crate::config::EndpointConfig;
use crate::events::{PeerInfo, SessionId, SessionState, SessionStatus};
use crate::keys::PublicKey;
use crate::limits::CALLS_MAX;
use crate::pool::BufferOwner;
use crate::seal::{HelloDigest, Seal};
use crate::session::Agreed;
use crate::transmit::DatagramSlot;
use crate::wire::{
    self, DATAGRAM_BYTES_MAX, DATAGRAM_BYTES_MIN, Entrance, Greeting, HEADER_BYTES, HelloRefusal,
    Label, MESSAGE_MAX, NAME_BYTES_MAX, PacketKind, REFUSED_EXPIRED_KEY, REFUSED_NAME,
    REFUSED_NOT_ACCEPTING, REFUSED_PLAIN_HERE, REFUSED_SEALED_HERE, REFUSED_SESSIONS_FULL,
    REFUSED_UNKNOWN_KEY, REFUSED_VERSION, REFUSED_WRONG_KEY, SEALED_VERSION_MIN, SECURITY_PLAIN,
    SECURITY_SEALED, VERSION_ANY,
};

/// How long a half-open session waits for its first packet.
const HALF_OPEN_NS: u64 = 3_000_000_000;

/// The longest message of a handshake that is read: later versions may say a little more.
const MESSAGE_BYTES_MAX: usize = 1024;

/// A greeting that makes sense.
#[derive(Clone, Debug)]
pub(crate) struct HelloPeer {
    pub(crate) greeting: Greeting,
    pub(crate) name: String,
}

impl HelloPeer {
    /// Reads a greeting; parts that later versions appended are left alone. `None` when it breaks a
    /// rule.
    pub(crate) fn read(mut frames: &[u8]) -> Option<Self> {
        let greeting: Greeting = *wire::take(&mut frames)?;
        let name_bytes = usize::from(greeting.name_bytes);
        if !(1..=NAME_BYTES_MAX).contains(&name_bytes)
            || greeting.version_min > greeting.version_max
            || greeting.version_min == VERSION_ANY
            || greeting.sidecores.get() == 0
            || greeting.session.get() == 0
            || (greeting.datagram_bytes_max.get() as usize) < DATAGRAM_BYTES_MIN
            || (greeting.flow_credit_bytes.get() as usize) < MESSAGE_MAX
            || greeting.calls_max.get() == 0
        {
            return None;
        }
        let name = std::str::from_utf8(&greeting.name[..name_bytes]).ok()?.to_owned();
        // It is shown to people: nothing of it shall move their cursor.
        if name.contains(char::is_control) {
            return None;
        }
        Some(Self { greeting, name })
    }

    pub(crate) fn versions(&self) -> RangeInclusive<u8> {
        self.greeting.version_min..=self.greeting.version_max
    }
}

/// A Hello that makes sense.
#[derive(Debug)]
pub(crate) struct Hello<'a> {
    /// The part of the Hello in the clear.
    pub(crate) peer: HelloPeer,
    pub(crate) clear: &'a [u8],
    /// `None`: of version 1.
    pub(crate) entrance: Option<Entrance>,
    /// The handshake's first message; empty when a plain session is asked for.
    pub(crate) message: &'a [u8],
}

impl<'a> Hello<'a> {
    /// Reads the frames of a Hello. `None` when it breaks a rule.
    pub(crate) fn read(frames: &'a [u8]) -> Option<Self> {
        let peer = HelloPeer::read(frames)?;
        let (clear, mut rest) = frames.split_at_checked(size_of::<Greeting>())?;
        if peer.greeting.version_max < SEALED_VERSION_MIN || rest.is_empty() {
            return Some(Self { peer, clear, entrance: None, message: &[] });
        }
        let entrance: Entrance = *wire::take(&mut rest)?;
        let message_bytes = usize::from(entrance.message_bytes.get());
        if message_bytes > MESSAGE_BYTES_MAX {
            return None;
        }
        let message = wire::take_bytes(&mut rest, message_bytes)?;
        let security = if message.is_empty() { SECURITY_PLAIN } else { SECURITY_SEALED };
        (security == entrance.security).then_some(Self {
            peer,
            clear,
            entrance: Some(entrance),
            message,
        })
    }

    pub(crate) fn is_sealed(&self) -> bool {
        !self.message.is_empty()
    }
}

/// The data on which both ends of a sealed handshake must agree, beside its messages: all fields of
/// a Hello in the clear but the cookie, which comes later.
pub(crate) fn prologue(attempt: u64, epoch_bits: u8, clear: &[u8], entrance: &Entrance) -> Vec<u8> {
    let mut bytes = b"vrio session".to_vec();
    bytes.push(epoch_bits);
    bytes.extend_from_slice(&attempt.to_le_bytes());
    bytes.extend_from_slice(clear);
    bytes.extend_from_slice(&entrance.as_bytes()[..offset_of!(Entrance, cookie)]);
    bytes
}

/// Recognises a connector's message: its hash together with that of what is said in the clear.
pub(crate) fn digest(prologue: &[u8], message: &[u8]) -> HelloDigest {
    let mut context = Context::new(&SHA256);
    context.update(prologue);
    context.update(message);
    context.finish().as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// The versions that are offered: sealed sessions came with the second.
pub(crate) fn versions(config: &EndpointConfig) -> RangeInclusive<u8> {
    let oldest = *config.versions.start();
    let oldest = if config.security.is_sealed() { oldest.max(SEALED_VERSION_MIN) } else { oldest };
    oldest..=*config.versions.end()
}

/// The newest version in both ranges.
pub(crate) fn common_version(a: &RangeInclusive<u8>, b: &RangeInclusive<u8>) -> Option<u8> {
    let newest = *a.end().min(b.end());
    (newest >= *a.start().max(b.start())).then_some(newest)
}

/// Our greeting. The caller tells the parts that do not depend on the configuration.
pub(crate) fn greeting(
    config: &EndpointConfig,
    version: u8,
    index: u16,
    local_id: u64,
) -> Greeting {
    let mut name = [0; NAME_BYTES_MAX];
    name[..config.name.len()].copy_from_slice(config.name.as_bytes());
    let versions = versions(config);
    Greeting {
        version_min: *versions.start(),
        version_max: *versions.end(),
        version,
        name_bytes: config.name.len() as u8,
        index: U16::new(index),
        sidecores: U16::new(config.ports.len() as u16),
        session: U64::new(local_id),
        process_nonce: U64::new(config.process_nonce),
        datagram_bytes_max: U32::new(config.datagram_bytes_max as u32),
        receive_window_bytes: U32::new(config.receive_window_bytes),
        flow_credit_bytes: U32::new(config.flow_window_bytes),
        calls_max: U16::new(config.calls_max),
        reserved: U16::ZERO,
        name,
    }
}

/// Writes a packet that belongs to no session.
pub(crate) fn write_packet(slot: &mut DatagramSlot, label: Label, frames: &[u8]) {
    let mut at = HEADER_BYTES;
    wire::put(&mut slot.head, &mut at, frames);
    wire::guard(&mut slot.head, at, label, &[]);
    slot.head_bytes = at;
}

/// Why a peer said no, in words that say what to do. `peer` is its name as far as we know it.
pub(crate) fn refusal_text(
    refusal: &HelloRefusal,
    config: &EndpointConfig,
    peer: &str,
    keys: Option<(PublicKey, PublicKey)>,
) -> String {
    let name = &config.name;
    match (refusal.reason, keys) {
        (REFUSED_VERSION, _) => {
            version_text(&versions(config), &(refusal.version_min..=refusal.version_max))
        }
        (REFUSED_NOT_ACCEPTING, _) => "the peer takes no sessions".to_owned(),
        (REFUSED_SEALED_HERE, _) => "the peer's sessions are sealed, ours are plain: configure a \
            key here (`vrio key new`), and the public key of each node at the other"
            .to_owned(),
        (REFUSED_PLAIN_HERE, _) => "the peer's sessions are plain, ours are sealed: configure a \
                                    key there (`vrio key new`), or remove our key"
            .to_owned(),
        (REFUSED_WRONG_KEY, Some((_, theirs))) => format!(
            "the peer has another key than {theirs}, which is configured here for \"{peer}\": \
             compare it with the key that `vrio key show` prints there"
        ),
        (REFUSED_UNKNOWN_KEY, Some((ours, _))) => format!(
            "\"{peer}\" does not know our key {ours}, or has revoked it: configure it there, for \
             the peer \"{name}\""
        ),
        (REFUSED_EXPIRED_KEY, Some((ours, _))) => format!(
            "our key {ours} has expired at \"{peer}\": make a new one (`vrio key new`) and \
             configure it at both ends"
        ),
        (REFUSED_SESSIONS_FULL, _) => format!(
            "\"{peer}\" takes no more sessions of \"{name}\": end programs that use this name, or \
             wait until sessions of ended ones are forgotten there"
        ),
        (REFUSED_NAME, Some((ours, _))) => format!(
            "\"{peer}\" knows our key {ours} as another node's than \"{name}\": the names must \
             agree"
        ),
        (reason, _) => format!(
            "the peer refused for reason {reason}, which this version does not \
                                know"
        ),
    }
}

fn version_text(ours: &RangeInclusive<u8>, theirs: &RangeInclusive<u8>) -> String {
    format!(
        "no common protocol version: this node has {} to {}, the peer {} to {}",
        ours.start(),
        ours.end(),
        theirs.start(),
        theirs.end()
    )
}

/// The identity that a peer has proved; nothing in a plain session.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Proof {
    pub(crate) key: Option<PublicKey>,
    pub(crate) binding: [u8; 32],
}

/// The numbers of a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionNumbers {
    pub(crate) id: SessionId,
    /// The number in the packets of the peer.
    pub(crate) local_id: u64,
    /// The number of the connector's attempt.
    pub(crate) attempt: u64,
}

/// The way to a peer with which a session is agreed.
#[derive(Clone, Copy, Debug)]
struct PeerWay {
    addr: SocketAddr,
    version: u8,
    index: u16,
    /// This side is the connector.
    outgoing: bool,
}

/// The agreement that follows from both sides' greetings.
fn agree(
    config: &EndpointConfig,
    peer: &HelloPeer,
    numbers: SessionNumbers,
    way: PeerWay,
    proof: &Proof,
) -> Agreed {
    let SessionNumbers { id, local_id, attempt } = numbers;
    let PeerWay { addr, version, index, outgoing } = way;
    let greeting = &peer.greeting;
    let theirs = (greeting.datagram_bytes_max.get() as usize).min(DATAGRAM_BYTES_MAX);
    Agreed {
        id,
        owner: BufferOwner::NODE,
        peer: PeerInfo {
            name: peer.name.clone(),
            process_nonce: greeting.process_nonce.get(),
            addr,
            version,
            index,
            outgoing,
            key: proof.key,
            binding: proof.binding,
        },
        attempt,
        local_id,
        remote_id: greeting.session.get(),
        datagram_bytes_max: config.datagram_bytes_max.min(theirs),
        calls_max: usize::from(config.calls_max.min(greeting.calls_max.get()).min(CALLS_MAX)),
        receive_window_bytes: greeting.receive_window_bytes.get().into(),
        send_credit_bytes: greeting.flow_credit_bytes.get().into(),
        receive_credit_bytes: config.flow_window_bytes.into(),
    }
}

/// An attempt of a peer that we said yes to.
#[derive(Debug)]
pub(crate) struct HalfOpen {
    pub(crate) id: SessionId,
    pub(crate) local_id: u64,
    pub(crate) attempt: u64,
    pub(crate) version: u8,
    pub(crate) peer: HelloPeer,
    pub(crate) proof: Proof,
    pub(crate) owner: BufferOwner,
    from: SocketAddr,
    expires_ns: u64,
    /// Of a sealed one: its keys, and the answer as it was given.
    pub(crate) seal: Option<Box<Seal>>,
    pub(crate) welcome: Box<[u8]>,
}

impl HalfOpen {
    pub(crate) fn new(
        now_ns: u64,
        numbers: SessionNumbers,
        version: u8,
        peer: HelloPeer,
        (from, owner): (SocketAddr, BufferOwner),
    ) -> Self {
        let SessionNumbers { id, local_id, attempt } = numbers;
        Self {
            id,
            owner,
            local_id,
            attempt,
            version,
            peer,
            proof: Proof::default(),
            from,
            expires_ns: now_ns + HALF_OPEN_NS,
            seal: None,
            welcome: Box::default(),
        }
    }

    /// Makes it a sealed one.
    pub(crate) fn seal_with(&mut self, proof: Proof, seal: Box<Seal>, welcome: Box<[u8]>) {
        (self.proof, self.seal, self.welcome) = (proof, Some(seal), welcome);
    }

    pub(crate) fn deadline_ns(&self) -> u64 {
        self.expires_ns
    }

    /// The peer confirmed, from the address where it is.
    pub(crate) fn agreed(&self, config: &EndpointConfig) -> Agreed {
        let Self { id, local_id, attempt, version, from: addr, .. } = *self;
        let numbers = SessionNumbers { id, local_id, attempt };
        let index = self.peer.greeting.index.get();
        let way = PeerWay { addr, version, index, outgoing: false };
        let agreed = agree(config, &self.peer, numbers, way, &self.proof);
        Agreed { owner: self.owner, ..agreed }
    }

    pub(crate) fn status(&self) -> SessionStatus {
        let peer = PeerInfo {
            name: self.peer.name.clone(),
            process_nonce: self.peer.greeting.process_nonce.get(),
            addr: self.from,
            version: self.version,
            index: self.peer.greeting.index.get(),
            outgoing: false,
            key: self.proof.key,
            binding: self.proof.binding,
        };
        let state_bytes = size_of::<Self>()
            + self.seal.as_ref().map_or(0, |_| size_of::<Seal>())
            + self.welcome.len();
        SessionStatus { state_bytes, ..blank_status(self.id, SessionState::HalfOpen, peer) }
    }
}

/// Answers a Hello for a plain session, the same way each time it comes.
pub(crate) fn write_welcome(
    slot: &mut DatagramSlot,
    config: &EndpointConfig,
    welcome: &WelcomeLabel,
) {
    let greeting = greeting(config, welcome.version, welcome.index, welcome.local_id);
    let label = Label {
        kind: PacketKind::Welcome,
        version: VERSION_ANY,
        session: welcome.remote_id,
        number: welcome.attempt,
        flags: 0,
    };
    write_packet(slot, label, greeting.as_bytes());
}

/// The label of a Welcome, for its session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WelcomeLabel {
    pub(crate) attempt: u64,
    pub(crate) version: u8,
    pub(crate) index: u16,
    pub(crate) local_id: u64,
    pub(crate) remote_id: u64,
}

fn blank_status(session: SessionId, state: SessionState, peer: PeerInfo) -> SessionStatus {
    SessionStatus {
        session,
        state,
        peer,
        round_trip_ns: 0,
        in_flight_bytes: 0,
        window_bytes: 0,
        datagram_bytes_max: 0,
        calls_outstanding: 0,
        calls_serving: 0,
        packets_sent: 0,
        packets_received: 0,
        packets_lost: 0,
        state_bytes: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_moves_a_cursor_is_none() {
        let mut config = EndpointConfig::new("vm1", 1, 1);
        config.ports = vec![4870];
        let mut greeting = greeting(&config, 1, 0, 7);
        assert_eq!(HelloPeer::read(greeting.as_bytes()).expect("it is sound").name, "vm1");
        greeting.name[1] = 0x1b;
        assert!(HelloPeer::read(greeting.as_bytes()).is_none());
    }

    #[test]
    fn the_newest_common_version_wins() {
        assert_eq!(common_version(&(1..=3), &(2..=5)), Some(3));
        assert_eq!(common_version(&(2..=2), &(1..=2)), Some(2));
        assert_eq!(common_version(&(1..=1), &(2..=3)), None);
        assert_eq!(common_version(&(4..=5), &(2..=3)), None);
    }
}
