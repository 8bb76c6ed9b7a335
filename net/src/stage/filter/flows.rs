//! The conversations that a filter keeps: a table of fixed size, in sets of eight.

use crate::ether::{FIN, ICMP, ICMPV6, Packet, RST, TCP};

/// The most conversations at once.
pub const FLOWS_MAX: usize = SETS * WAYS;

const SETS: usize = 1024;
const WAYS: usize = 8;

const SECOND_NS: u64 = 1_000_000_000;

/// How long one of TCP may be silent. Two hours is when TCP's own keep-alive begins (RFC 1122); a
/// table of this size cannot keep the dead that long.
const TCP_NS: u64 = 3600 * SECOND_NS;

/// How long after TCP's end: what is repeated and late still passes.
const TCP_ENDED_NS: u64 = 30 * SECOND_NS;

/// How long others may be silent.
const OTHER_NS: u64 = 60 * SECOND_NS;

/// Both ends, the smaller first, so that both directions have one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Key {
    ends: [(u128, u16); 2],
    protocol: u8,
    vlan: u16,
}

impl Key {
    /// None for what belongs to no conversation that can be told from others.
    fn of(packet: &Packet, vlan: u16) -> Option<Self> {
        let protocol = packet.ip.protocol;
        let ports = match packet.ports {
            Some(ports) => ports,
            None if matches!(protocol, ICMP | ICMPV6) && !packet.ip.is_fragment => (0, 0),
            None => return None,
        };
        let mut ends = [(packet.ip.source.0, ports.0), (packet.ip.destination.0, ports.1)];
        ends.sort_unstable();
        Some(Self { ends, protocol, vlan })
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    key: Key,
    /// Until then it is kept; free where that is zero.
    until_ns: u64,
    /// It has ended, or is about to.
    has_ended: bool,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Flows {
    /// Empty where no rule keeps anything.
    sets: Box<[[Flow; WAYS]]>,
    seed: u64,
}

impl Flows {
    pub(super) fn new(seed: u64, keeps: bool) -> Self {
        let sets = if keeps { SETS } else { 0 };
        Self { sets: vec![[Flow::default(); WAYS]; sets].into(), seed: seed | 1 }
    }

    fn set(&mut self, key: &Key) -> &mut [Flow; WAYS] {
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

    /// Whether this belongs to a conversation that is kept, which then goes on being.
    pub(super) fn follow(&mut self, packet: &Packet, vlan: u16, now_ns: u64) -> bool {
        if self.sets.is_empty() {
            return false;
        }
        let Some(key) = Key::of(packet, vlan) else { return false };
        let set = self.set(&key);
        let found = set.iter_mut().find(|flow| flow.until_ns > now_ns && flow.key == key);
        let Some(flow) = found else { return false };
        flow.hear(packet, now_ns);
        true
    }

    /// Keeps a conversation. True when another one had to go that had not ended.
    pub(super) fn begin(&mut self, packet: &Packet, vlan: u16, now_ns: u64) -> bool {
        let Some(key) = Key::of(packet, vlan) else { return false };
        let set = self.set(&key);
        // A free one, or the one that would be the first to go.
        let flow = set.iter_mut().min_by_key(|flow| flow.until_ns).expect("a set has ways");
        let has_pushed_out = flow.until_ns > now_ns;
        *flow = Flow { key, until_ns: 0, has_ended: false };
        flow.hear(packet, now_ns);
        has_pushed_out
    }
}

impl Flow {
    fn hear(&mut self, packet: &Packet, now_ns: u64) {
        let is_tcp = self.key.protocol == TCP;
        self.has_ended |= is_tcp && packet.tcp_flags & (FIN | RST) != 0;
        let length_ns = match (is_tcp, self.has_ended) {
            (true, false) => TCP_NS,
            (true, true) => TCP_ENDED_NS,
            (false, _) => OTHER_NS,
        };
        self.until_ns = now_ns.saturating_add(length_ns).max(1);
    }
}
