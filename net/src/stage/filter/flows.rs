//! The conversations that a filter keeps: a table of fixed size, in sets of eight.
//!
//! A flood must not push the conversations of others out. So an unanswered conversation is kept for
//! seconds and goes first when there is no room. And one address has at most half of the places of
//! a set, however many conversations it begins: more of them take the places of its own.

use super::Direction;
use crate::ether::{FIN, FlowPacket, ICMP, ICMPV6, RST, SYN, TCP};

/// The most conversations at once.
pub const FLOWS_MAX: usize = SETS * WAYS;

const SETS: usize = 2048;
const WAYS: usize = 8;

/// How many places of a set the conversations that a single address began may have. A guest that
/// begins all of them has room for 8192.
pub(super) const WAYS_OF_ONE: usize = WAYS / 2;

const SECOND_NS: u64 = 1_000_000_000;

/// How long one of TCP may be silent. Two hours is when TCP's own keep-alive begins (RFC 1122); a
/// table of this size cannot keep the dead that long.
const TCP_NS: u64 = 3600 * SECOND_NS;

/// How long after TCP's end: packets that are repeated or late still pass.
const TCP_ENDED_NS: u64 = 30 * SECOND_NS;

/// How long others may be silent.
const OTHER_NS: u64 = 60 * SECOND_NS;

/// How long an unanswered conversation is kept, or one of TCP whose beginning is not complete:
/// longer than any round trip. A later repetition (TCP waits 1, 2, 4 s and so on) begins it anew.
const UNANSWERED_NS: u64 = 10 * SECOND_NS;

/// Both ends, the smaller first, so that both directions have one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FlowKey {
    ends: [(u128, u16); 2],
    protocol: u8,
    vlan: u16,
}

impl FlowKey {
    /// None for what belongs to no conversation that can be told from others. Beside it at which
    /// place its sender is.
    fn of(packet: &FlowPacket, vlan: u16) -> Option<(Self, usize)> {
        let protocol = packet.ip.protocol;
        let ports = match packet.ports {
            Some(ports) => ports,
            None if matches!(protocol, ICMP | ICMPV6) && !packet.ip.is_fragment => (0, 0),
            None => return None,
        };
        let source = (packet.ip.source.0, ports.0);
        let mut ends = [source, (packet.ip.destination.0, ports.1)];
        ends.sort_unstable();
        Some((Self { ends, protocol, vlan }, usize::from(ends[0] != source)))
    }
}

/// How far a conversation has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FlowStage {
    /// Only the opener has sent something.
    #[default]
    Begun,
    /// It was answered. Of TCP that means little: a listener answers any address, also a made-up
    /// one whose owner will never hear it.
    Answered,
    /// The opener has heard the answer.
    Established,
    /// TCP's end was said.
    Ended,
}

#[derive(Clone, Copy, Debug)]
struct TrackedFlow {
    key: FlowKey,
    /// Until then it is kept; free where that is zero.
    until_ns: u64,
    /// Of the rules that last allowed it.
    generation: u32,
    stage: FlowStage,
    /// Which of the ends began it.
    opener: u8,
    /// The way of the frame that began it.
    direction: Direction,
}

const FREE: TrackedFlow = TrackedFlow {
    key: FlowKey { ends: [(0, 0); 2], protocol: 0, vlan: 0 },
    until_ns: 0,
    generation: 0,
    stage: FlowStage::Begun,
    opener: 0,
    direction: Direction::Sent,
};

/// The frame that began a conversation, for rules that are asked about it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FirstFrame {
    pub(super) direction: Direction,
    pub(super) vlan: u16,
    pub(super) protocol: u8,
    /// Address and port of the sender, and of the receiver.
    pub(super) ends: [(u128, u16); 2],
}

/// A conversation as another process is told of it, little-endian: until when (8), both ends (16
/// for the address, 2 for the port, each), protocol (1), VLAN (2), how far it has come (1), which
/// end began it (1), and which way (1).
const ROW_BYTES: usize = 50;

/// How far one has come, by its number in a row.
const STAGES: [FlowStage; 4] =
    [FlowStage::Begun, FlowStage::Answered, FlowStage::Established, FlowStage::Ended];

/// See the module's text.
#[derive(Debug)]
pub(super) struct Flows {
    /// Empty where no rule keeps anything.
    sets: Box<[[TrackedFlow; WAYS]]>,
    seed: u64,
    /// Of the rules that hold.
    generation: u32,
}

impl Flows {
    pub(super) fn new(seed: u64, keeps: bool) -> Self {
        let sets = if keeps { SETS } else { 0 };
        Self { sets: vec![[FREE; WAYS]; sets].into(), seed: seed | 1, generation: 0 }
    }

    /// The same conversations under other rules, which are asked about each of them once, when it
    /// is heard of again. Nothing where either has no table.
    pub(super) fn inherit(&mut self, before: &mut Self) {
        if !self.sets.is_empty() && !before.sets.is_empty() {
            std::mem::swap(self, before);
            self.generation = self.generation.wrapping_add(1);
        }
    }

    /// All that are kept now, for [`Flows::go_on_with`] in another process of this host.
    pub(super) fn rows(&self, now_ns: u64) -> Vec<u8> {
        let live = self.sets.iter().flatten().filter(|flow| flow.until_ns > now_ns);
        live.flat_map(TrackedFlow::row).collect()
    }

    /// Keeps what another process kept. The rules are asked about each, for they may be others.
    pub(super) fn go_on_with(&mut self, rows: &[u8], now_ns: u64) {
        let generation = self.generation.wrapping_sub(1);
        if self.sets.is_empty() {
            return;
        }
        let (rows, _) = rows.as_chunks::<ROW_BYTES>();
        for flow in rows.iter().filter_map(TrackedFlow::read).take(FLOWS_MAX) {
            if flow.until_ns > now_ns {
                let from = usize::from(flow.opener);
                let (place, _) = place(self.set(&flow.key), &flow.key, from, now_ns);
                *place = TrackedFlow { generation, ..flow };
            }
        }
    }

    fn set(&mut self, key: &FlowKey) -> &mut [TrackedFlow; WAYS] {
        let mut hash = self.seed;
        let mut mix = |word: u64| {
            let product = u128::from(hash ^ word) * 0x9e37_79b9_7f4a_7c15;
            hash = (product >> 64) as u64 ^ product as u64;
        };
        for (ip, port) in key.ends {
            mix(ip as u64);
            mix((ip >> 64) as u64);
            mix(u64::from(port));
        }
        mix(u64::from(key.protocol) << 16 | u64::from(key.vlan));
        &mut self.sets[(hash >> 20) as usize & (SETS - 1)]
    }

    /// The conversation with this key, if the rules still allow it.
    fn find(
        &mut self,
        key: &FlowKey,
        now_ns: u64,
        is_allowed: impl FnOnce(FirstFrame) -> bool,
    ) -> Option<&mut TrackedFlow> {
        if self.sets.is_empty() {
            return None;
        }
        let generation = self.generation;
        let set = self.set(key);
        let flow = set.iter_mut().find(|flow| flow.until_ns > now_ns && flow.key == *key)?;
        if flow.generation != generation {
            if !is_allowed(flow.first()) {
                *flow = FREE;
                return None;
            }
            flow.generation = generation;
        }
        Some(flow)
    }

    /// Whether this belongs to a conversation that is kept, which then goes on being. The rules are
    /// asked about its first frame if they are others than those that allowed it.
    pub(super) fn follow(
        &mut self,
        packet: &FlowPacket,
        vlan: u16,
        now_ns: u64,
        is_allowed: impl FnOnce(FirstFrame) -> bool,
    ) -> bool {
        let Some((key, from)) = FlowKey::of(packet, vlan) else { return false };
        let Some(flow) = self.find(&key, now_ns, is_allowed) else { return false };
        // The same two ports begin another one: that is for the rules to say.
        if flow.stage == FlowStage::Ended && packet.is_tcp_first() {
            return false;
        }
        flow.hear(from, packet, now_ns);
        true
    }

    /// Whether this packet, which an error of ICMP quotes, belongs to one that is kept. That does
    /// not become longer by it.
    pub(super) fn has(
        &mut self,
        quoted: &FlowPacket,
        vlan: u16,
        now_ns: u64,
        is_allowed: impl FnOnce(FirstFrame) -> bool,
    ) -> bool {
        let Some((key, _)) = FlowKey::of(quoted, vlan) else { return false };
        self.find(&key, now_ns, is_allowed).is_some()
    }

    /// Keeps a conversation. True when another one had to go that was more than a beginning.
    pub(super) fn begin(
        &mut self,
        direction: Direction,
        packet: &FlowPacket,
        vlan: u16,
        now_ns: u64,
    ) -> bool {
        let Some((key, from)) = FlowKey::of(packet, vlan) else { return false };
        let generation = self.generation;
        let (flow, has_pushed_out) = place(self.set(&key), &key, from, now_ns);
        *flow = TrackedFlow { key, generation, opener: from as u8, direction, ..FREE };
        flow.hear(from, packet, now_ns);
        has_pushed_out
    }
}

/// Where in its set a conversation goes that `from` of its ends begins, and whether one has to go
/// for it that was more than a beginning.
fn place<'s>(
    set: &'s mut [TrackedFlow; WAYS],
    key: &FlowKey,
    from: usize,
    now_ns: u64,
) -> (&'s mut TrackedFlow, bool) {
    let is_live = |flow: &TrackedFlow| flow.until_ns > now_ns;
    let address = key.ends[from].0;
    let is_own = |flow: &TrackedFlow| is_live(flow) && flow.opener_address() == address;
    let has_its_share = set.iter().filter(|flow| is_own(flow)).count() >= WAYS_OF_ONE;
    // It takes its own place where it was here before; else a free one, one that is no more than a
    // beginning, or an end, or the one that would be the first to go.
    let rank = |flow: &TrackedFlow| match () {
        () if is_live(flow) && flow.key == *key => (0, 0),
        () if has_its_share && !is_own(flow) => (4, 0),
        () if !is_live(flow) => (1, 0),
        () if flow.stage != FlowStage::Established => (2, flow.until_ns),
        () => (3, flow.until_ns),
    };
    let flow = set.iter_mut().min_by_key(|flow| rank(flow)).expect("a set has ways");
    let has_pushed_out = rank(flow).0 == 3;
    (flow, has_pushed_out)
}

impl TrackedFlow {
    fn row(&self) -> [u8; ROW_BYTES] {
        let mut row = [0; ROW_BYTES];
        row[..8].copy_from_slice(&self.until_ns.to_le_bytes());
        for ((ip, port), into) in self.key.ends.iter().zip(row[8..].chunks_exact_mut(18)) {
            into[..16].copy_from_slice(&ip.to_le_bytes());
            into[16..].copy_from_slice(&port.to_le_bytes());
        }
        row[44] = self.key.protocol;
        row[45..47].copy_from_slice(&self.key.vlan.to_le_bytes());
        let stage = STAGES.iter().position(|stage| *stage == self.stage).expect("one of all");
        row[47..].copy_from_slice(&[
            stage as u8,
            self.opener,
            u8::from(self.direction == Direction::Received),
        ]);
        row
    }

    fn read(row: &[u8; ROW_BYTES]) -> Option<Self> {
        let end = |at: usize| {
            let ip = u128::from_le_bytes(*row[at..].first_chunk()?);
            Some((ip, u16::from_le_bytes([row[at + 16], row[at + 17]])))
        };
        let vlan = u16::from_le_bytes([row[45], row[46]]);
        Some(Self {
            key: FlowKey { ends: [end(8)?, end(26)?], protocol: row[44], vlan },
            until_ns: u64::from_le_bytes(*row.first_chunk()?),
            generation: 0,
            stage: *STAGES.get(usize::from(row[47]))?,
            opener: Some(row[48]).filter(|opener| *opener < 2)?,
            direction: if row[49] == 0 { Direction::Sent } else { Direction::Received },
        })
    }

    fn opener_address(&self) -> u128 {
        self.key.ends[usize::from(self.opener)].0
    }

    fn first(&self) -> FirstFrame {
        let FlowKey { ends, protocol, vlan } = self.key;
        let from = usize::from(self.opener);
        FirstFrame { direction: self.direction, vlan, protocol, ends: [ends[from], ends[1 - from]] }
    }

    /// A frame of it, which this one of its ends sent.
    fn hear(&mut self, from: usize, packet: &FlowPacket, now_ns: u64) {
        let is_tcp = self.key.protocol == TCP;
        let is_answer = from != usize::from(self.opener);
        let flags = packet.tcp_flags;
        self.stage = match self.stage {
            FlowStage::Begun if is_tcp && flags & RST != 0 => FlowStage::Begun,
            FlowStage::Begun if is_answer && !is_tcp => FlowStage::Established,
            FlowStage::Begun if is_answer => FlowStage::Answered,
            FlowStage::Answered if !is_answer && flags & (SYN | RST) == 0 => FlowStage::Established,
            stage => stage,
        };
        if self.stage == FlowStage::Established && is_tcp && flags & (FIN | RST) != 0 {
            self.stage = FlowStage::Ended;
        }
        let length_ns = match self.stage {
            FlowStage::Begun | FlowStage::Answered => UNANSWERED_NS,
            FlowStage::Established if is_tcp => TCP_NS,
            FlowStage::Established => OTHER_NS,
            FlowStage::Ended => TCP_ENDED_NS,
        };
        self.until_ns = now_ns.saturating_add(length_ns).max(1);
    }
}
