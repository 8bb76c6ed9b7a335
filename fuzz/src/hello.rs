//! Datagrams from strangers: noise, handshake packets that are nearly right, real ones changed and
//! sent again. They make no session that an honest handshake did not make, and take bounded memory.
//! The answers are hardly longer than the datagrams (a Reset with its token is 7 bytes longer than
//! the shortest sealed packet): a forged source address must not multiply an attacker's traffic.

use std::collections::BTreeMap;

use arbitrary::{Arbitrary, Unstructured};
use transport::EndpointConfig;

use crate::net::{MS, NetNode, START_NS, addr, config, sealed_config, settle};
use crate::packet;
use crate::steps::steps;

const STEPS_MAX: usize = 300;
const PACKETS_MAX: usize = 64;
/// The first of eight addresses of strangers.
const STRANGER: u8 = 100;
/// The address of a node that never answers the victim.
const MUTE: u8 = 50;

#[derive(Arbitrary, Debug)]
enum HelloStep<'a> {
    Raw {
        from: u8,
        bytes: &'a [u8],
    },
    /// Any frames with correct lengths and checksums.
    Shaped {
        from: u8,
        version: bool,
        kind: u8,
        session: HelloSession,
        number: u8,
        frames: &'a [u8],
    },
    Greet {
        from: u8,
        kind: u8,
        session: HelloSession,
        number: u8,
        greeting: Greeting,
    },
    /// A real endpoint begins a handshake; its packets are kept.
    Begin {
        name: u8,
        index: u8,
    },
    /// A kept packet arrives from any address, changed or not.
    Recorded {
        from: u8,
        which: u8,
        edits: [Option<(u8, u8)>; 2],
        is_sound: bool,
    },
    /// The victim's answers reach the real endpoint that began last.
    Answer,
    Wait {
        ms: u8,
    },
    Honest {
        body_bytes: u16,
    },
}

#[derive(Arbitrary, Debug)]
enum HelloSession {
    None,
    /// The id that the victim named last.
    Told,
    /// The victim's own attempt.
    Attempt,
    Any(u64),
}

#[derive(Arbitrary, Debug)]
struct Greeting {
    versions: (u8, u8, u8),
    index: u8,
    session: u64,
    nonce: u8,
    limits: Option<(u32, u32, u32, u16)>,
    name: (u8, u8),
    bytes: u8,
}

impl Greeting {
    fn frames(&self) -> Vec<u8> {
        let (min, max, agreed) = self.versions;
        let name = [self.name.1; 64];
        let mut bytes = vec![min & 3, max & 3, agreed & 3, self.name.0 % 70];
        bytes.extend_from_slice(&u16::from(self.index % 4).to_le_bytes());
        bytes.extend_from_slice(&[1, 0]);
        bytes.extend_from_slice(&self.session.to_le_bytes());
        bytes.extend_from_slice(&u64::from(self.nonce % 4).to_le_bytes());
        let (datagram, window, credit, calls) = self.limits.unwrap_or((1472, 1 << 20, 8 << 20, 64));
        bytes.extend_from_slice(&datagram.to_le_bytes());
        bytes.extend_from_slice(&window.to_le_bytes());
        bytes.extend_from_slice(&credit.to_le_bytes());
        bytes.extend_from_slice(&calls.to_le_bytes());
        bytes.extend_from_slice(&[0, 0]);
        bytes.extend_from_slice(&name);
        // Usually all of it.
        if self.bytes < 104 {
            bytes.truncate(self.bytes.into());
        }
        bytes
    }
}

struct HelloWorld {
    victim: NetNode,
    honest: NetNode,
    /// The endpoint that began a handshake with the victim.
    begun: Option<NetNode>,
    now_ns: u64,
    recorded: Vec<Vec<u8>>,
    told: u64,
    attempt: u64,
    token: u64,
    honest_calls: usize,
    begun_count: u8,
    is_sealed: bool,
    /// Bytes that each stranger sent, minus the bytes that it received.
    balance: BTreeMap<u8, i64>,
}

/// A configuration with keys or without.
fn security(is_sealed: bool, name: &str, number: u8, known: &[(&str, u8)]) -> EndpointConfig {
    if is_sealed { sealed_config(name, number, known) } else { config(name, number) }
}

/// Runs the steps that `input` describes.
///
/// # Panics
/// When a stranger gets a session or more bytes than it sent, or the honest session suffers.
pub fn run(input: &[u8]) {
    let mut input = Unstructured::new(input);
    let Ok(is_sealed) = bool::arbitrary(&mut input) else { return };
    let mut world = HelloWorld::new(is_sealed);
    for step in steps(&mut input, STEPS_MAX) {
        world.step(step);
    }
    world.end();
}

impl HelloWorld {
    fn new(is_sealed: bool) -> Self {
        let mut victim = security(is_sealed, "io1", 1, &[("vm2", 3), ("vm5", 20), ("io9", MUTE)]);
        victim.ports = vec![4870, 4871];
        let honest = security(is_sealed, "vm2", 3, &[("io1", 1)]);
        let (mut victim, mut honest) = (NetNode::with(victim, 1), NetNode::with(honest, 3));
        let mut now_ns = START_NS;
        honest.endpoint.connect(now_ns, victim.addr, "io1", 0);
        settle(&mut [&mut victim, &mut honest], &mut now_ns, 100 * MS);
        victim.endpoint.connect(now_ns, addr(MUTE), "io9", 0);
        let mut world = Self {
            victim,
            honest,
            begun: None,
            now_ns,
            recorded: Vec::new(),
            told: 0,
            attempt: 0,
            token: 0,
            honest_calls: 0,
            begun_count: 0,
            is_sealed,
            balance: BTreeMap::new(),
        };
        world.carry();
        world
    }

    fn step(&mut self, step: HelloStep<'_>) {
        match step {
            HelloStep::Raw { from, bytes } => self.arrive(from, bytes),
            HelloStep::Shaped { from, version, kind, session, number, frames } => {
                let session = self.id(&session);
                let label = (version.into(), kind % 10);
                let packet = packet::packet(label, session, number.into(), frames, &[]);
                self.arrive(from, &packet);
            }
            HelloStep::Greet { from, kind, session, number, greeting } => {
                let session = self.id(&session);
                let frames = greeting.frames();
                let packet =
                    packet::packet((0, 1 + kind % 4), session, number.into(), &frames, &[]);
                self.arrive(from, &packet);
            }
            HelloStep::Begin { name, index } => self.begin(name, index),
            HelloStep::Recorded { from, which, edits, is_sound } => {
                self.record_again(from, which, edits, is_sound);
            }
            HelloStep::Answer => self.answer_begun(),
            HelloStep::Wait { ms } => self.now_ns += u64::from(ms) * MS,
            HelloStep::Honest { body_bytes } => {
                self.token += 1;
                let session = self.honest.notes.sessions[0];
                let label = (0, self.token);
                if self.honest.call(self.now_ns, session, label, &[1; 4], body_bytes.into()) {
                    self.honest_calls += 1;
                }
            }
        }
        self.carry();
        self.victim.check();
    }

    fn id(&self, session: &HelloSession) -> u64 {
        match session {
            HelloSession::None => 0,
            HelloSession::Told => self.told,
            HelloSession::Attempt => self.attempt,
            HelloSession::Any(id) => *id,
        }
    }

    fn begin(&mut self, name: u8, index: u8) {
        // There are few names, so that attempts meet.
        self.begun_count = self.begun_count.wrapping_add(1);
        let name = ["vm5", "vm6"][usize::from(name & 1)];
        let number = 20 + (self.begun_count & 15);
        let mut begun =
            NetNode::with(security(self.is_sealed, name, number, &[("io1", 1)]), number);
        begun.endpoint.connect(self.now_ns, self.victim.addr, "io1", u16::from(index & 3));
        self.keep(begun.transmit(self.now_ns));
        self.begun = Some(begun);
    }

    fn keep(&mut self, sent: Vec<(std::net::SocketAddr, Vec<u8>)>) {
        for (_, bytes) in sent {
            if self.recorded.len() < PACKETS_MAX {
                self.recorded.push(bytes);
            }
        }
    }

    fn record_again(&mut self, from: u8, which: u8, edits: [Option<(u8, u8)>; 2], is_sound: bool) {
        if self.recorded.is_empty() {
            return;
        }
        let mut packet = self.recorded[usize::from(which) % self.recorded.len()].clone();
        for (at, value) in edits.into_iter().flatten() {
            let at = usize::from(at) % packet.len();
            packet[at] = value;
        }
        if is_sound {
            let head_bytes = packet::head_bytes(&packet);
            packet::seal(&mut packet, head_bytes);
        }
        self.arrive(from, &packet);
    }

    /// Lets the real endpoint complete its handshake, and keeps its packets.
    fn answer_begun(&mut self) {
        let Some(mut begun) = self.begun.take() else { return };
        for _ in 0..4 {
            let sent = begun.transmit(self.now_ns);
            for (_, bytes) in &sent {
                self.victim.receive(self.now_ns, begun.addr, bytes);
            }
            self.keep(sent);
            for (to, bytes) in self.victim.transmit(self.now_ns) {
                if to == begun.addr {
                    begun.receive(self.now_ns, self.victim.addr, &bytes);
                } else {
                    self.deliver(to, bytes);
                }
            }
        }
        self.begun = Some(begun);
    }

    /// A stranger's datagram reaches the victim.
    fn arrive(&mut self, from: u8, bytes: &[u8]) {
        let from = STRANGER + (from & 7);
        *self.balance.entry(from).or_default() += bytes.len() as i64;
        self.victim.receive(self.now_ns, addr(from), bytes);
    }

    fn carry(&mut self) {
        for _ in 0..8 {
            let mut carried = 0;
            for (_, bytes) in self.honest.transmit(self.now_ns) {
                self.victim.receive(self.now_ns, self.honest.addr, &bytes);
                carried += 1;
            }
            for (to, bytes) in self.victim.transmit(self.now_ns) {
                self.deliver(to, bytes);
                carried += 1;
            }
            if carried == 0 {
                return;
            }
        }
    }

    fn deliver(&mut self, to: std::net::SocketAddr, bytes: Vec<u8>) {
        if to == self.honest.addr {
            self.honest.receive(self.now_ns, self.victim.addr, &bytes);
        } else if to == addr(MUTE) {
            // Its Hello has the id by which it wants to be addressed.
            let id = bytes.get(packet::HEADER_BYTES + 8..packet::HEADER_BYTES + 16);
            self.attempt = id.map_or(0, |id| u64::from_le_bytes(id.try_into().expect("eight")));
        } else {
            let id = bytes.get(packet::HEADER_BYTES + 8..packet::HEADER_BYTES + 16);
            self.told = id.map_or(0, |id| u64::from_le_bytes(id.try_into().expect("eight")));
            self.pay(to, bytes.len());
            self.keep(vec![(to, bytes)]);
        }
    }

    /// Checks that a stranger without a session gets no more bytes than it sent.
    fn pay(&mut self, to: std::net::SocketAddr, bytes: usize) {
        let stranger = (STRANGER..STRANGER + 8).find(|&number| addr(number) == to);
        let has_session = self.victim.notes.sessions.len() > 1;
        if let Some(stranger) = stranger.filter(|_| !has_session) {
            let balance = self.balance.entry(stranger).or_default();
            *balance -= bytes as i64;
            assert!(*balance >= 0, "{stranger} got {} bytes more than it sent", -*balance);
        }
    }

    fn end(mut self) {
        assert_eq!(self.honest.notes.lost, 0, "the honest peer lost its session");
        self.step(HelloStep::Honest { body_bytes: 3000 });
        for _ in 0..1000 {
            while !self.victim.notes.calls.is_empty() {
                self.victim.answer(self.now_ns, 0, 3000);
            }
            self.carry();
            self.now_ns += MS;
            if self.honest.notes.replies.len() == self.honest_calls {
                break;
            }
        }
        assert_eq!(self.honest.notes.replies.len(), self.honest_calls, "calls without an answer");
        assert_eq!(self.honest.notes.odd_bytes, 0);
        self.victim.end(self.now_ns);
        self.honest.end(self.now_ns);
        if let Some(begun) = self.begun {
            begun.end(self.now_ns);
        }
    }
}
