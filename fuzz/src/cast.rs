//! Casts of a hostile peer, with right checksums or the session's keys: any numbers, lengths and
//! fragments, in any order. A cast that is handed over is whole, as it was sent, and in order.
//! Memory is bounded and given back. A second peer's casts continue.

use std::collections::BTreeMap;

use arbitrary::{Arbitrary, Unstructured};
use transport::{CAST_MAX, CAST_WINDOW, FLOWS_MAX, SessionId};

use crate::net::{MS, NetNode, START_NS, sealed_config, settle};
use crate::steps::steps;

const STEPS_MAX: usize = 400;

/// Fragments of plain and of sealed sessions, with datagrams of 1472 bytes.
const PIECE_BYTES: [usize; 2] = [1420, 1412];

#[derive(Arbitrary, Debug)]
enum CastStep {
    /// A fragment of a cast, which usually fits the other fragments.
    Fragment {
        flow: u8,
        ahead: u8,
        behind: u16,
        size: u8,
        fragment: u8,
        lie: Option<Lie>,
    },
    /// The casts' numbers jump.
    Jump {
        flow: u8,
        by: u64,
    },
    /// All fragments of the next cast but one.
    AllBut {
        flow: u8,
        size: u8,
        missing: u8,
    },
    /// A cast by the peer's own endpoint.
    Cast {
        flow: u8,
        bytes: u16,
    },
    Open {
        flow: u8,
    },
    Close {
        flow: u8,
    },
    Wait {
        us: u16,
    },
    WaitLong {
        ms: u8,
    },
    Honest {
        bytes: u16,
    },
}

#[derive(Arbitrary, Debug)]
enum Lie {
    Body(u32),
    Head(u8),
    Flow(u16),
    Fragment(u16),
    Payload(u16),
    Number(u64),
}

struct CastWorld {
    victim: NetNode,
    hostile: NetNode,
    honest: NetNode,
    now_ns: u64,
    piece_bytes: usize,
    /// The next number of each flow.
    next: BTreeMap<u8, u64>,
    honest_sent: u64,
    honest_heard: u64,
    honest_session: SessionId,
    hostile_session: SessionId,
    /// The last number that arrived since the flow was opened, by session and flow.
    heard: BTreeMap<(SessionId, u16), u64>,
}

/// Runs the steps that `input` describes.
///
/// # Panics
/// When a cast is wrong or out of order, memory is not given back, or the honest peer loses one.
pub fn run(input: &[u8]) {
    let mut input = Unstructured::new(input);
    let Ok(is_sealed) = bool::arbitrary(&mut input) else { return };
    let mut world = CastWorld::new(is_sealed);
    for step in steps(&mut input, STEPS_MAX) {
        world.step(step);
    }
    world.end();
}

/// Eight bytes of the number, and then bytes that follow from it.
fn content(number: u64, len_bytes: usize) -> Vec<u8> {
    let tail = (0..len_bytes.saturating_sub(8))
        .map(|at| (number as usize).wrapping_mul(31).wrapping_add(at * 7) as u8);
    let mut bytes: Vec<u8> = number.to_le_bytes().into_iter().chain(tail).collect();
    bytes.truncate(len_bytes);
    bytes
}

/// The lengths of a cast's head and body.
fn lengths(size: u8) -> (usize, usize) {
    (8 + usize::from(size) % 100, usize::from(size) * CAST_MAX / 255)
}

impl CastWorld {
    fn new(is_sealed: bool) -> Self {
        let node = |name, number, known: &[(&str, u8)]| match is_sealed {
            true => NetNode::with(sealed_config(name, number, known), number),
            false => NetNode::new(name, number),
        };
        let mut victim = node("io1", 1, &[("vm1", 2), ("vm2", 3)]);
        let mut hostile = node("vm1", 2, &[("io1", 1)]);
        let mut honest = node("vm2", 3, &[("io1", 1)]);
        let mut now_ns = START_NS;
        hostile.endpoint.connect(now_ns, victim.addr, "io1", 0);
        settle(&mut [&mut victim, &mut hostile], &mut now_ns, 100 * MS);
        honest.endpoint.connect(now_ns, victim.addr, "io1", 0);
        settle(&mut [&mut victim, &mut honest], &mut now_ns, 100 * MS);
        let [hostile_session, honest_session] = victim.notes.sessions[..] else {
            panic!("no peer is hostile yet");
        };
        (0..4).for_each(|flow| victim.endpoint.open_casts(hostile_session, flow));
        victim.endpoint.open_casts(honest_session, 0);
        Self {
            victim,
            hostile,
            honest,
            now_ns,
            piece_bytes: PIECE_BYTES[usize::from(is_sealed)],
            next: BTreeMap::new(),
            honest_sent: 0,
            honest_heard: 0,
            honest_session,
            hostile_session,
            heard: BTreeMap::new(),
        }
    }

    fn step(&mut self, step: CastStep) {
        match step {
            CastStep::Fragment { flow, ahead, behind, size, fragment, lie } => {
                let number = self.next.get(&flow).copied().unwrap_or_default() + u64::from(ahead);
                let behind = u64::from(behind % CAST_WINDOW as u16).min(number) as u16;
                self.fragment(flow, number, behind, size, fragment, lie);
            }
            CastStep::Jump { flow, by } => {
                let next = self.next.entry(flow).or_default();
                *next = (*next + by % (1 << 61)).min((1 << 62) - 1);
            }
            CastStep::AllBut { flow, size, missing } => {
                let next = self.next.entry(flow).or_default();
                let number = *next;
                *next += 1;
                let (head, body) = lengths(size);
                let count = (head + body).div_ceil(self.piece_bytes) as u8;
                for fragment in (0..count).filter(|it| *it != missing) {
                    self.fragment(flow, number, 0, size, fragment, None);
                }
            }
            CastStep::Cast { flow, bytes } => {
                let Some(&session) = self.hostile.notes.sessions.first() else { return };
                let head = content(0, 8);
                let flow = u16::from(flow) | 128;
                self.hostile.cast(self.now_ns, session, flow, &head, bytes.into());
            }
            CastStep::Open { flow } => {
                self.victim.endpoint.open_casts(self.hostile_session, flow.into());
            }
            CastStep::Close { flow } => {
                self.victim.endpoint.close_casts(self.hostile_session, flow.into());
                self.heard.remove(&(self.hostile_session, flow.into()));
            }
            CastStep::Wait { us } => self.now_ns += u64::from(us) * 1000,
            CastStep::WaitLong { ms } => self.now_ns += u64::from(ms) * MS,
            CastStep::Honest { bytes } => self.honest_cast(bytes.into()),
        }
        self.carry();
        self.victim.check();
    }

    fn fragment(
        &mut self,
        flow: u8,
        number: u64,
        behind: u16,
        size: u8,
        fragment: u8,
        lie: Option<Lie>,
    ) {
        let (head_bytes, body_bytes) = lengths(size);
        let count = (head_bytes + body_bytes).div_ceil(self.piece_bytes);
        let fragment = usize::from(fragment) % count;
        let whole = content(number, head_bytes + body_bytes);
        let end = ((fragment + 1) * self.piece_bytes).min(whole.len());
        let piece = &whole[fragment * self.piece_bytes..end];
        let (head, payload) = piece.split_at(if fragment == 0 { head_bytes } else { 0 });
        let mut payload = payload.to_vec();
        let (mut flow, mut fragment) = (u16::from(flow), fragment as u16);
        let (mut says_head, mut says_body, mut number) =
            (head_bytes as u8, body_bytes as u32, number);
        match lie {
            None => {}
            Some(Lie::Body(bytes)) => says_body = bytes,
            Some(Lie::Head(bytes)) => says_head = bytes,
            Some(Lie::Flow(other)) => flow = other,
            Some(Lie::Fragment(other)) => fragment = other,
            Some(Lie::Payload(bytes)) => payload.resize(usize::from(bytes) % 1400, 0),
            Some(Lie::Number(other)) => number = other,
        }
        if matches!(lie, Some(Lie::Body(_) | Lie::Head(_) | Lie::Fragment(_) | Lie::Number(_))) {
            // Its content does not follow from its number. The check fails if it is believed.
            payload.clear();
        }
        let mut frame = vec![7, says_head];
        frame.extend(flow.to_le_bytes());
        frame.extend(says_body.to_le_bytes());
        frame.extend(number.to_le_bytes());
        frame.extend(fragment.to_le_bytes());
        frame.extend(behind.to_le_bytes());
        frame.extend_from_slice(head);
        let Some(&session) = self.hostile.notes.sessions.first() else { return };
        let packet = self.hostile.endpoint.forge(self.now_ns, session, &frame, &payload);
        if let Some(packet) = packet {
            self.victim.receive(self.now_ns, self.hostile.addr, &packet);
            self.hear();
        }
    }

    fn honest_cast(&mut self, bytes: usize) {
        let session = self.honest.notes.sessions[0];
        let head = content(self.honest_sent, 20);
        self.honest_sent += u64::from(self.honest.cast(self.now_ns, session, 0, &head, bytes));
    }

    /// Delivers everything at once.
    fn carry(&mut self) {
        let nodes = &mut [&mut self.victim, &mut self.hostile, &mut self.honest];
        settle(nodes, &mut self.now_ns, 0);
        self.hear();
    }

    /// Checks the casts that were handed over.
    fn hear(&mut self) {
        for cast in std::mem::take(&mut self.victim.notes.casts) {
            let body = cast.body.map(|(buffer, len_bytes)| {
                let bytes = self.victim.endpoint.pool().bytes(buffer)[..len_bytes].to_vec();
                self.victim.endpoint.pool_mut().release(buffer);
                bytes
            });
            let Some(number) = cast.head.first_chunk() else { continue };
            let number = u64::from_le_bytes(*number);
            let way = (cast.session, cast.flow);
            if cast.session == self.honest_session {
                // Casts that waited too long while the clock jumped are not sent.
                assert!(number >= self.honest_heard, "{number} comes late");
                self.honest_heard = number + 1;
                continue;
            }
            assert!(cast.flow < FLOWS_MAX as u16);
            if cast.flow >= 128 {
                continue;
            }
            let before = self.heard.insert(way, number);
            assert!(before.is_none_or(|before| before < number), "{number} after {before:?}");
            let whole = content(number, cast.head.len() + body.as_ref().map_or(0, Vec::len));
            let came: Vec<u8> = cast.head.iter().chain(body.iter().flatten()).copied().collect();
            assert!(came == whole, "cast {number} is not what was sent");
        }
    }

    fn end(mut self) {
        assert_eq!(self.honest.notes.lost, 0, "the honest peer lost its session");
        for _ in 0..3 {
            self.honest_cast(60_000);
            self.carry();
        }
        for _ in 0..100 {
            self.now_ns += MS;
            self.carry();
        }
        assert_eq!(self.honest_heard, self.honest_sent, "the last one arrives");
        self.victim.end(self.now_ns);
        self.honest.end(self.now_ns);
        self.hostile.end(self.now_ns);
    }
}
