//! How a session comes to be.
//!
//! ```text
//! connector                                acceptor
//!   Hello(attempt, my id, ...)   ------>     half-open: drawn an id, nothing else
//!                                <------   Welcome(attempt, my id, ...)
//! connected
//!   first packet, at least a ping ----->   connected; an older session of this peer is lost
//! ```
//!
//! A Hello alone changes nothing for the acceptor's sessions, so a copy of an old one does no harm:
//! whoever sent it does not confirm what it leads to. Of two attempts of one process, the one with
//! the greater number is the newer.

use std::net::SocketAddr;
use std::ops::RangeInclusive;

use zerocopy::IntoBytes;
use zerocopy::byteorder::little_endian::{U16, U32, U64};

use crate::config::{CALLS_MAX, EndpointConfig};
use crate::events::{LostReason, PeerInfo, SessionId, SessionState, SessionStatus};
use crate::session::Agreed;
use crate::transmit::Datagram;
use crate::wire::{
    self, DATAGRAM_BYTES_MAX, DATAGRAM_BYTES_MIN, Greeting, HEADER_BYTES, Kind, Label, MESSAGE_MAX,
    NAME_BYTES_MAX, REFUSED_NOT_ACCEPTING, REFUSED_VERSION, Refusal, VERSION_ANY,
};

/// Time between Hellos: at first as short as a round trip may be, doubling up to what a user does
/// not notice.
const HELLO_FIRST_NS: u64 = 5_000_000;
const HELLO_LAST_NS: u64 = 100_000_000;

/// After so many Hellos without an answer from the port that the peer named, ask at its base
/// address again: it may have been restarted with other ports.
const MOVED_ATTEMPTS_MAX: u32 = 4;

/// How long a half-open session waits for its first packet.
const HALF_OPEN_NS: u64 = 3_000_000_000;

/// A greeting that makes sense.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) greeting: Greeting,
    pub(crate) name: String,
}

impl Peer {
    /// Reads a greeting; what later versions appended is left alone. `None` when it breaks a rule.
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
        Some(Self { greeting, name })
    }

    pub(crate) fn versions(&self) -> RangeInclusive<u8> {
        self.greeting.version_min..=self.greeting.version_max
    }
}

/// The newest version in both ranges.
pub(crate) fn common_version(a: &RangeInclusive<u8>, b: &RangeInclusive<u8>) -> Option<u8> {
    let newest = *a.end().min(b.end());
    (newest >= *a.start().max(b.start())).then_some(newest)
}

/// The parts of a greeting that do not depend on the configuration.
#[derive(Clone, Copy, Debug)]
struct Opening {
    kind: Kind,
    /// The receiver's id for the session; 0 in a Hello.
    to_session: u64,
    attempt: u64,
    version: u8,
    index: u16,
    local_id: u64,
}

fn write_greeting(datagram: &mut Datagram, config: &EndpointConfig, opening: Opening) {
    let mut name = [0; NAME_BYTES_MAX];
    name[..config.name.len()].copy_from_slice(config.name.as_bytes());
    let greeting = Greeting {
        version_min: *config.versions.start(),
        version_max: *config.versions.end(),
        version: opening.version,
        name_bytes: config.name.len() as u8,
        index: U16::new(opening.index),
        sidecores: U16::new(config.ports.len() as u16),
        session: U64::new(opening.local_id),
        process_nonce: U64::new(config.process_nonce),
        datagram_bytes_max: U32::new(config.datagram_bytes_max as u32),
        receive_window_bytes: U32::new(config.receive_window_bytes),
        flow_credit_bytes: U32::new(config.flow_window_bytes),
        calls_max: U16::new(config.calls_max),
        reserved: U16::ZERO,
        name,
    };
    let label = Label {
        kind: opening.kind,
        version: VERSION_ANY,
        session: opening.to_session,
        number: opening.attempt,
    };
    write_packet(datagram, label, greeting.as_bytes());
}

/// Writes a packet that belongs to no session.
pub(crate) fn write_packet(datagram: &mut Datagram, label: Label, frames: &[u8]) {
    let mut at = HEADER_BYTES;
    wire::put(&mut datagram.head, &mut at, frames);
    wire::seal(&mut datagram.head, at, label, &[]);
    datagram.head_bytes = at;
}

/// Why a peer said no, in words.
pub(crate) fn refusal_text(refusal: &Refusal, ours: &RangeInclusive<u8>) -> String {
    match refusal.reason {
        REFUSED_VERSION => version_text(ours, &(refusal.version_min..=refusal.version_max)),
        REFUSED_NOT_ACCEPTING => "the peer takes no sessions".to_owned(),
        reason => format!("the peer gave reason {reason}, which is unknown here"),
    }
}

fn version_text(ours: &RangeInclusive<u8>, theirs: &RangeInclusive<u8>) -> String {
    format!(
        "no common protocol version: {} to {} are spoken here, {} to {} by the peer",
        ours.start(),
        ours.end(),
        theirs.start(),
        theirs.end()
    )
}

/// What both sides' greetings amount to.
fn agree(
    config: &EndpointConfig,
    peer: &Peer,
    (id, local_id, attempt): (SessionId, u64, u64),
    (addr, version, index, outgoing): (SocketAddr, u8, u16, bool),
) -> Agreed {
    let greeting = &peer.greeting;
    let theirs = (greeting.datagram_bytes_max.get() as usize).min(DATAGRAM_BYTES_MAX);
    Agreed {
        id,
        peer: PeerInfo {
            name: peer.name.clone(),
            process_nonce: greeting.process_nonce.get(),
            addr,
            version,
            index,
            outgoing,
            key: None,
            binding: [0; 32],
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

/// An attempt of ours.
#[derive(Debug)]
pub(crate) struct Connecting {
    pub(crate) id: SessionId,
    pub(crate) local_id: u64,
    pub(crate) attempt: u64,
    pub(crate) index: u16,
    expected_name: String,
    /// Where the peer's first sidecore is, and where we ask now.
    base: SocketAddr,
    target: SocketAddr,
    hello_ns: u64,
    hello_is_due: bool,
    /// Hellos since the start, and since the peer last named a port.
    hellos: u32,
    hellos_there: u32,
}

impl Connecting {
    pub(crate) fn new(
        now_ns: u64,
        (id, local_id, attempt): (SessionId, u64, u64),
        base: SocketAddr,
        expected_name: &str,
        index: u16,
    ) -> Self {
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
        }
    }

    pub(crate) fn deadline_ns(&self) -> u64 {
        if self.hello_is_due { u64::MAX } else { self.hello_ns }
    }

    /// Time passed. `true`: a Hello has to leave.
    pub(crate) fn advance(&mut self, now_ns: u64) -> bool {
        self.hello_is_due |= now_ns >= self.hello_ns;
        self.hello_is_due
    }

    /// Writes a Hello if it is time for one.
    pub(crate) fn hello_to(&mut self, now_ns: u64) -> Option<SocketAddr> {
        if !self.advance(now_ns) {
            return None;
        }
        if self.hellos_there == MOVED_ATTEMPTS_MAX {
            self.target = self.base;
            self.hellos_there = 0;
        }
        let pause_ns = (HELLO_FIRST_NS << self.hellos.min(8)).min(HELLO_LAST_NS);
        self.hello_ns = now_ns + pause_ns;
        self.hello_is_due = false;
        self.hellos = self.hellos.saturating_add(1);
        self.hellos_there += u32::from(self.target != self.base);
        Some(self.target)
    }

    pub(crate) fn write_hello(&self, datagram: &mut Datagram, config: &EndpointConfig) {
        let opening = Opening {
            kind: Kind::Hello,
            to_session: 0,
            attempt: self.attempt,
            version: 0,
            index: self.index,
            local_id: self.local_id,
        };
        write_greeting(datagram, config, opening);
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
    }

    /// The peer said yes. What is agreed, or why it is no session after all.
    pub(crate) fn welcomed(
        &self,
        config: &EndpointConfig,
        from: SocketAddr,
        peer: &Peer,
    ) -> Result<Agreed, LostReason> {
        let version = peer.greeting.version;
        if !config.versions.contains(&version) || !peer.versions().contains(&version) {
            let text = version_text(&config.versions, &peer.versions());
            return Err(LostReason::Refused(text));
        }
        if !self.expected_name.is_empty() && self.expected_name != peer.name {
            return Err(LostReason::Refused(format!(
                "the node at {from} calls itself \"{}\", expected was \"{}\"",
                peer.name, self.expected_name
            )));
        }
        let ids = (self.id, self.local_id, self.attempt);
        Ok(agree(config, peer, ids, (from, version, self.index, true)))
    }

    pub(crate) fn status(&self) -> SessionStatus {
        let peer = PeerInfo {
            name: self.expected_name.clone(),
            process_nonce: 0,
            addr: self.target,
            version: 0,
            index: self.index,
            outgoing: true,
            key: None,
            binding: [0; 32],
        };
        blank_status(self.id, SessionState::Connecting, peer)
    }
}

/// An attempt of a peer that we said yes to.
#[derive(Debug)]
pub(crate) struct HalfOpen {
    pub(crate) id: SessionId,
    pub(crate) local_id: u64,
    pub(crate) attempt: u64,
    pub(crate) version: u8,
    pub(crate) peer: Peer,
    from: SocketAddr,
    expires_ns: u64,
}

impl HalfOpen {
    pub(crate) fn new(
        now_ns: u64,
        (id, local_id, attempt): (SessionId, u64, u64),
        version: u8,
        peer: Peer,
        from: SocketAddr,
    ) -> Self {
        Self { id, local_id, attempt, version, peer, from, expires_ns: now_ns + HALF_OPEN_NS }
    }

    pub(crate) fn deadline_ns(&self) -> u64 {
        self.expires_ns
    }

    /// The peer confirmed, from the address where it is.
    pub(crate) fn agreed(&self, config: &EndpointConfig) -> Agreed {
        let ids = (self.id, self.local_id, self.attempt);
        let index = self.peer.greeting.index.get();
        agree(config, &self.peer, ids, (self.from, self.version, index, false))
    }

    pub(crate) fn status(&self) -> SessionStatus {
        let peer = PeerInfo {
            name: self.peer.name.clone(),
            process_nonce: self.peer.greeting.process_nonce.get(),
            addr: self.from,
            version: self.version,
            index: self.peer.greeting.index.get(),
            outgoing: false,
            key: None,
            binding: [0; 32],
        };
        blank_status(self.id, SessionState::HalfOpen, peer)
    }
}

/// Answers a Hello, the same way each time it comes.
pub(crate) fn write_welcome(
    datagram: &mut Datagram,
    config: &EndpointConfig,
    welcome: &WelcomeLabel,
) {
    let opening = Opening {
        kind: Kind::Welcome,
        to_session: welcome.remote_id,
        attempt: welcome.attempt,
        version: welcome.version,
        index: welcome.index,
        local_id: welcome.local_id,
    };
    write_greeting(datagram, config, opening);
}

/// What a Welcome says about its session.
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
    fn the_newest_common_version_wins() {
        assert_eq!(common_version(&(1..=3), &(2..=5)), Some(3));
        assert_eq!(common_version(&(2..=2), &(1..=2)), Some(2));
        assert_eq!(common_version(&(1..=1), &(2..=3)), None);
        assert_eq!(common_version(&(4..=5), &(2..=3)), None);
    }

    #[test]
    fn asks_ever_more_slowly_and_returns_to_the_base_address() {
        let base: SocketAddr = "10.0.0.1:4870".parse().expect("an address");
        let mut connecting = Connecting::new(0, (SessionId(1), 2, 3), base, "", 0);
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
        }
        let ports: Vec<u16> = asked.iter().map(|(port, _)| *port).collect();
        assert_eq!(ports[..7], [4870, 4870, 4871, 4871, 4871, 4871, 4870]);
        assert!(asked.iter().all(|&(_, pause_ns)| pause_ns <= HELLO_LAST_NS));
        assert_eq!(asked[11].1, HELLO_LAST_NS);
    }

    #[test]
    fn being_sent_to_and_fro_does_not_hurry_us() {
        let base: SocketAddr = "10.0.0.1:1".parse().expect("an address");
        let mut connecting = Connecting::new(0, (SessionId(1), 2, 3), base, "", 0);
        assert!(connecting.hello_to(0).is_some());
        connecting.moved(2);
        assert!(connecting.hello_to(0).is_some());
        connecting.moved(3);
        assert!(connecting.hello_to(0).is_none());
    }
}
