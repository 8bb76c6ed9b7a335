//! A session's packets after a correct handshake with a hostile peer: valid packets with changed
//! bytes, forged frames, old packets again, with correct checksums. In a sealed session the peer
//! has the keys, so its forgeries are sealed correctly. A second peer's session continues
//! meanwhile, and in the end no buffer is left.

use arbitrary::{Arbitrary, Unstructured};

use crate::net::{MS, NetNode, START_NS, sealed_config, settle};
use crate::packet;
use crate::steps::steps;

const STEPS_MAX: usize = 300;
/// The most packets of the hostile peer that wait, and that can be sent again.
const PACKETS_MAX: usize = 64;
/// The time within which the honest peers' last call must be answered.
const CALM_NS: u64 = 60_000 * MS;

#[derive(Arbitrary, Debug)]
enum SessionStep {
    /// The hostile peer's own endpoint makes a call, which makes packets.
    Call {
        flow: u8,
        head_bytes: u8,
        body_bytes: u16,
    },
    /// The victim calls the hostile peer.
    CallBack {
        flow: u8,
        body_bytes: u16,
    },
    /// The victim answers one of its calls.
    Answer {
        which: u8,
        body_bytes: u16,
    },
    /// The oldest packets arrive.
    Deliver {
        count: u8,
    },
    /// One of the packets that wait is changed.
    Change {
        which: u8,
        edits: [Option<(u16, u8)>; 3],
        bytes: Option<u16>,
        is_sound: bool,
    },
    Drop {
        which: u8,
    },
    /// A packet of the past arrives once more.
    Replay {
        which: u8,
    },
    /// Frames that no endpoint would write.
    Forge {
        frames: Vec<Frame>,
        payload_bytes: u16,
        number: SessionNumber,
    },
    /// A packet of the handshake in the middle of a session.
    Stray {
        kind: u8,
        number: u16,
        session: bool,
        frames: [u8; 12],
    },
    Wait {
        us: u16,
    },
    WaitLong {
        ms: u8,
    },
    /// The honest peer makes a call.
    Honest {
        flow: u8,
        body_bytes: u16,
    },
}

#[derive(Arbitrary, Debug)]
enum Frame {
    Ping,
    Ack { largest: u16, delay_us: u32, ranges: Vec<(u8, u8)>, says: Option<u8> },
    Credit { flow: u16, limit: u64 },
    Close,
    Fragment { is_reply: bool, head: u8, flow: u8, body: u16, id: u16, index: u8 },
    Raw([u8; 5]),
}

#[derive(Arbitrary, Debug)]
enum SessionNumber {
    Next,
    Past(u16),
    Any(u64),
}

impl Frame {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Ping => out.push(1),
            Self::Ack { largest, delay_us, ranges, says } => {
                let ranges = &ranges[..ranges.len().min(8)];
                out.extend_from_slice(&[2, says.unwrap_or(ranges.len() as u8), 0, 0]);
                out.extend_from_slice(&delay_us.to_le_bytes());
                out.extend_from_slice(&u64::from(*largest).to_le_bytes());
                for &(gap, length) in ranges {
                    out.extend_from_slice(&u32::from(gap).to_le_bytes());
                    out.extend_from_slice(&u32::from(length).to_le_bytes());
                }
            }
            Self::Credit { flow, limit } => {
                out.extend_from_slice(&[3, 0]);
                out.extend_from_slice(&flow.to_le_bytes());
                out.extend_from_slice(&limit.to_le_bytes());
            }
            Self::Close => out.push(4),
            Self::Fragment { is_reply, head, flow, body, id, index } => {
                // Bodies of up to 1 MiB, and a little more.
                let body = u32::from(*body) * 17;
                out.extend_from_slice(&[5 + u8::from(*is_reply), *head]);
                out.extend_from_slice(&u16::from(*flow).to_le_bytes());
                out.extend_from_slice(&body.to_le_bytes());
                out.extend_from_slice(&u64::from(*id).to_le_bytes());
                out.extend_from_slice(&u16::from(*index).to_le_bytes());
                out.extend_from_slice(&[0, 0]);
                out.extend_from_slice(&[7; 192][..usize::from(*head).min(192)]);
            }
            Self::Raw(bytes) => out.extend_from_slice(bytes),
        }
    }
}

/// The victim and its two peers.
struct SessionWorld {
    victim: NetNode,
    hostile: NetNode,
    honest: NetNode,
    now_ns: u64,
    /// Packets under way from the hostile peer.
    waiting: Vec<Vec<u8>>,
    past: Vec<Vec<u8>>,
    /// The victim's id of the session, and the last packet number in it.
    session: u64,
    version: u8,
    number: u64,
    token: u64,
    calls_of_honest: usize,
}

/// Runs the steps that `input` describes.
///
/// # Panics
/// When memory is not bounded or not given back, or the honest peer is disturbed.
pub fn run(input: &[u8]) {
    let mut input = Unstructured::new(input);
    let Ok(is_sealed) = bool::arbitrary(&mut input) else { return };
    let mut world = SessionWorld::new(is_sealed);
    for step in steps(&mut input, STEPS_MAX) {
        world.step(step);
    }
    world.end();
}

impl SessionWorld {
    fn new(is_sealed: bool) -> Self {
        let node = |name, number, known: &[(&str, u8)]| {
            if !is_sealed {
                return NetNode::new(name, number);
            }
            NetNode::with(sealed_config(name, number, known), number)
        };
        let mut victim = node("io1", 1, &[("vm1", 2), ("vm2", 3)]);
        let mut hostile = node("vm1", 2, &[("io1", 1)]);
        let mut honest = node("vm2", 3, &[("io1", 1)]);
        let mut now_ns = START_NS;
        hostile.endpoint.connect(now_ns, victim.addr, "io1", 0);
        honest.endpoint.connect(now_ns, victim.addr, "io1", 0);
        settle(&mut [&mut victim, &mut hostile, &mut honest], &mut now_ns, 100 * MS);
        assert_eq!(victim.notes.sessions.len(), 2, "no peer is hostile yet");
        let mut world = Self {
            victim,
            hostile,
            honest,
            now_ns,
            waiting: Vec::new(),
            past: Vec::new(),
            session: 0,
            version: 0,
            number: 0,
            token: 1,
            calls_of_honest: 0,
        };
        world.learn();
        world
    }

    /// Learns the form of the session's packets from one of them.
    fn learn(&mut self) {
        self.step(SessionStep::Call { flow: 0, head_bytes: 1, body_bytes: 0 });
        let packet = self.waiting.first().expect("a call is a packet");
        (self.session, self.version) = (packet::session(packet), packet[4]);
    }

    fn step(&mut self, step: SessionStep) {
        self.token += 1;
        match step {
            SessionStep::Call { flow, head_bytes, body_bytes } => {
                let Some(&session) = self.hostile.notes.sessions.first() else { return };
                let label = (flow.into(), self.token);
                let head = &[1; 192][..usize::from(head_bytes).min(192)];
                self.hostile.call(self.now_ns, session, label, head, 4 * usize::from(body_bytes));
            }
            SessionStep::CallBack { flow, body_bytes } => {
                // If a session was lost, the other one is the honest peer's.
                let session = self.victim.notes.sessions.first().copied();
                let Some(session) = session else { return };
                let label = (flow.into(), self.token);
                self.victim.call(self.now_ns, session, label, &[2], 4 * usize::from(body_bytes));
            }
            SessionStep::Answer { which, body_bytes } => {
                let calls = self.victim.notes.calls.len();
                if calls > 0 {
                    let at = usize::from(which) % calls;
                    self.victim.answer(self.now_ns, at, body_bytes.into());
                }
            }
            SessionStep::Deliver { count } => {
                for _ in 0..usize::from(count).min(self.waiting.len()) {
                    self.arrive(0);
                }
            }
            SessionStep::Change { which, edits, bytes, is_sound } => {
                self.change(which, edits, bytes, is_sound);
            }
            SessionStep::Drop { which } => {
                if !self.waiting.is_empty() {
                    self.waiting.swap_remove(usize::from(which) % self.waiting.len());
                }
            }
            SessionStep::Replay { which } => {
                if !self.past.is_empty() {
                    let packet = self.past[usize::from(which) % self.past.len()].clone();
                    self.victim.receive(self.now_ns, self.hostile.addr, &packet);
                }
            }
            SessionStep::Forge { frames, payload_bytes, number } => {
                self.forge(&frames, payload_bytes, &number);
            }
            SessionStep::Stray { kind, number, session, frames } => {
                let session = if session { self.session } else { 0 };
                let packet =
                    packet::packet((0, 1 + kind % 7), session, number.into(), &frames, &[]);
                self.victim.receive(self.now_ns, self.hostile.addr, &packet);
            }
            SessionStep::Wait { us } => self.now_ns += u64::from(us) * 1000,
            SessionStep::WaitLong { ms } => self.now_ns += u64::from(ms) * MS,
            SessionStep::Honest { flow, body_bytes } => {
                self.honest_call(flow, body_bytes.into());
            }
        }
        self.carry();
        self.victim.check();
    }

    fn change(
        &mut self,
        which: u8,
        edits: [Option<(u16, u8)>; 3],
        bytes: Option<u16>,
        is_sound: bool,
    ) {
        if self.waiting.is_empty() {
            return;
        }
        let at = usize::from(which) % self.waiting.len();
        let packet = &mut self.waiting[at];
        if let Some(bytes) = bytes {
            packet.resize(usize::from(bytes).min(2000), 0);
        }
        for (at, value) in edits.into_iter().flatten() {
            // Usually in the header and the frames.
            let place = usize::from(at) % packet.len().clamp(1, 160);
            if let Some(byte) = packet.get_mut(place) {
                *byte = value;
            }
        }
        if is_sound {
            let head_bytes = packet::head_bytes(packet);
            packet::seal(packet, head_bytes);
        }
    }

    fn forge(&mut self, frames: &[Frame], payload_bytes: u16, number: &SessionNumber) {
        let mut bytes = Vec::new();
        frames.iter().take(4).for_each(|frame| frame.write(&mut bytes));
        let payload = vec![7; usize::from(payload_bytes) % 1500];
        let packet = match number {
            SessionNumber::Next => {
                // A peer with the session's keys could do this.
                let Some(&session) = self.hostile.notes.sessions.first() else { return };
                self.hostile.endpoint.forge(self.now_ns, session, &bytes, &payload)
            }
            SessionNumber::Past(by) => {
                Some(self.packet(self.number.saturating_sub((*by).into()), &bytes))
            }
            SessionNumber::Any(number) => Some(self.packet(*number, &bytes)),
        };
        if let Some(packet) = packet {
            self.victim.receive(self.now_ns, self.hostile.addr, &packet);
        }
    }

    /// Sends a packet with any number, which therefore has no seal.
    fn packet(&self, number: u64, frames: &[u8]) -> Vec<u8> {
        packet::packet((self.version, packet::DATA), self.session, number, frames, &[])
    }

    fn honest_call(&mut self, flow: u8, body_bytes: usize) {
        self.token += 1;
        let session = self.honest.notes.sessions[0];
        let label = (flow.into(), self.token);
        if self.honest.call(self.now_ns, session, label, &[3; 16], body_bytes) {
            self.calls_of_honest += 1;
        }
    }

    /// The packet at this place reaches the victim.
    fn arrive(&mut self, at: usize) {
        let packet = self.waiting.remove(at);
        if packet.len() >= packet::HEADER_BYTES {
            self.number = self.number.max(packet::number(&packet).min(u64::from(u32::MAX)));
        }
        self.victim.receive(self.now_ns, self.hostile.addr, &packet);
        if self.past.len() < PACKETS_MAX {
            self.past.push(packet);
        }
    }

    /// Delivers everything at once, except the hostile peer's own packets.
    fn carry(&mut self) {
        for _ in 0..8 {
            let mut carried = 0;
            for (to, bytes) in self.victim.transmit(self.now_ns) {
                let node =
                    if to == self.honest.addr { &mut self.honest } else { &mut self.hostile };
                if to == node.addr {
                    node.receive(self.now_ns, self.victim.addr, &bytes);
                    carried += 1;
                }
            }
            for (_, bytes) in self.honest.transmit(self.now_ns) {
                self.victim.receive(self.now_ns, self.honest.addr, &bytes);
                carried += 1;
            }
            for (_, bytes) in self.hostile.transmit(self.now_ns) {
                if self.waiting.len() < PACKETS_MAX {
                    self.waiting.push(bytes);
                }
            }
            if carried == 0 {
                return;
            }
        }
    }

    fn end(mut self) {
        assert_eq!(self.honest.notes.lost, 0, "the honest peer lost its session");
        // All calls are answered, then one more call is made and answered.
        let at_once = self.now_ns + CALM_NS;
        self.honest_call(1, 5000);
        let calls = self.calls_of_honest;
        while self.honest.notes.replies.len() < calls {
            assert!(self.now_ns < at_once, "the honest peer waits for ever");
            while !self.victim.notes.calls.is_empty() {
                self.victim.answer(self.now_ns, 0, 3000);
            }
            let (victim, honest) = (&mut self.victim, &mut self.honest);
            settle(&mut [victim, honest], &mut self.now_ns, MS);
            self.now_ns += 20 * MS;
        }
        assert_eq!(self.honest.notes.odd_bytes, 0);
        self.victim.end(self.now_ns);
        self.honest.end(self.now_ns);
        self.hostile.end(self.now_ns);
    }
}
