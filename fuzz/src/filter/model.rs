//! The meaning of rules, from the words that they were made of. The kept conversations are a plain
//! list.

use ::net::ether::{self, FIN, FlowPacket, ICMP, ICMPV6, Ip, RST, SYN, TCP, TYPE_ARP, TYPE_IPV4};
use ::net::ether::{TYPE_IPV6, UDP};
use ::net::stage::filter::Action;
use ::net::stage::{Direction, FilterCore};
use arbitrary::Arbitrary;

const SECOND_NS: u64 = 1_000_000_000;

/// The part of a frame that the filter reads.
const HEAD_BYTES: usize = 192;

/// A rule, word by word.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) struct RuleSpec {
    is_allow: bool,
    is_sent: Option<bool>,
    kind: FilterKind,
    /// A VLAN from zero to three; none beyond 20.
    vlan: u8,
    from: FilterEnd,
    to: FilterEnd,
    keep: u8,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum FilterKind {
    Any,
    Arp,
    Ipv4,
    Ipv6,
    Tcp,
    Udp,
    Icmp,
    Icmpv6,
    Type(u16),
    Protocol(u8),
}

/// A rule's condition about one end.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum FilterEnd {
    Nothing,
    Any(Ports),
    V4 { last: u8, length: u8, ports: Ports },
    V6 { last: u8, length: u8, ports: Ports },
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Ports {
    Nothing,
    One(u8),
    Range(u8, u8),
}

impl Ports {
    fn range(self) -> Option<(u16, u16)> {
        let port = |it: u8| 998 + u16::from(it % 12);
        match self {
            Self::Nothing => None,
            Self::One(one) => Some((port(one), port(one))),
            Self::Range(first, last) => Some((port(first), port(last))),
        }
    }
}

impl FilterEnd {
    /// First address, bits, and the length of the part that counts; of IPv4 or IPv6.
    fn net(self) -> Option<(u128, u32, u32)> {
        match self {
            Self::Nothing | Self::Any(_) => None,
            Self::V4 { last, length, .. } => {
                let (last, length) = Self::cut(last, length, 32);
                Some((0x0a00_0000 | last, 32, length))
            }
            Self::V6 { last, length, .. } => {
                let (last, length) = Self::cut(last, length, 128);
                Some((0xfd << 120 | 0x0a00_0000 | last, 128, length))
            }
        }
    }

    /// The end of an address and its prefix length, which usually fits, or one host.
    fn cut(last: u8, length: u8, bits: u32) -> (u128, u32) {
        match length {
            0..64 => (u128::from(last & 7), u32::from(length) % (bits + 2)),
            64..160 => (u128::from(last & 7), bits),
            160..208 => (u128::from(last & 6), bits - 1),
            _ => (0, bits - 3),
        }
    }

    fn ports(self) -> Option<(u16, u16)> {
        match self {
            Self::Nothing => None,
            Self::Any(ports) | Self::V4 { ports, .. } | Self::V6 { ports, .. } => ports.range(),
        }
    }

    fn text(self) -> String {
        let mut text = match self.net() {
            None => "any".to_owned(),
            Some((first, 32, length)) => {
                format!("{}/{length}", std::net::Ipv4Addr::from_bits(first as u32))
            }
            Some((first, _, length)) => {
                format!("{}/{length}", std::net::Ipv6Addr::from_bits(first))
            }
        };
        match self.ports() {
            None => {}
            Some((first, last)) if first == last => text += &format!(" port {first}"),
            Some((first, last)) => text += &format!(" port {first}-{last}"),
        }
        text
    }

    /// Whether the prefix length exists, no bit is beyond it, and the ports are in order.
    fn is_right(self) -> bool {
        let net = self.net().is_none_or(|(first, bits, length)| {
            length <= bits && (0..bits - length).all(|bit| first >> bit & 1 == 0)
        });
        net && self.ports().is_none_or(|(first, last)| first <= last)
    }

    fn fits(self, ip: Option<Ip>, port: Option<u16>) -> bool {
        let net = self.net().is_none_or(|(first, bits, length)| {
            let Some(Ip(ip)) = ip else { return false };
            let is_kind = (bits == 32) == Ip(ip).is_v4();
            let ip = if bits == 32 { ip & 0xffff_ffff } else { ip };
            is_kind && (bits - length..bits).all(|bit| ip >> bit & 1 == first >> bit & 1)
        });
        let ports = self.ports();
        net && ports.is_none_or(|(first, last)| port.is_some_and(|it| first <= it && it <= last))
    }
}

impl FilterKind {
    fn text(self) -> String {
        match self {
            Self::Any => String::new(),
            Self::Arp => " arp".to_owned(),
            Self::Ipv4 => " ipv4".to_owned(),
            Self::Ipv6 => " ipv6".to_owned(),
            Self::Tcp => " tcp".to_owned(),
            Self::Udp => " udp".to_owned(),
            Self::Icmp => " icmp".to_owned(),
            Self::Icmpv6 => " icmpv6".to_owned(),
            Self::Type(number) => format!(" type {number:#x}"),
            Self::Protocol(number) => format!(" protocol {number}"),
        }
    }

    fn ether_type(self) -> Option<u16> {
        match self {
            Self::Arp => Some(TYPE_ARP),
            Self::Ipv4 => Some(TYPE_IPV4),
            Self::Ipv6 => Some(TYPE_IPV6),
            Self::Type(number) => Some(number),
            _ => None,
        }
    }

    fn protocol(self) -> Option<u8> {
        match self {
            Self::Tcp => Some(TCP),
            Self::Udp => Some(UDP),
            Self::Icmp => Some(ICMP),
            Self::Icmpv6 => Some(ICMPV6),
            Self::Protocol(number) => Some(number),
            _ => None,
        }
    }
}

impl RuleSpec {
    fn vlan(&self) -> Option<u16> {
        (self.vlan <= 20).then(|| u16::from(self.vlan % 4))
    }

    /// Set mostly where it is correct.
    fn keeps(&self) -> bool {
        self.keep < 16 || (self.keep < 160 && self.can_keep())
    }

    fn can_keep(&self) -> bool {
        let protocol = self.kind.protocol();
        self.is_allow && protocol.is_some_and(|it| [TCP, UDP, ICMP, ICMPV6].contains(&it))
    }

    pub(super) fn text(&self) -> String {
        let mut text = if self.is_allow { "allow" } else { "deny" }.to_owned();
        match self.is_sent {
            None => {}
            Some(true) => text += " sent",
            Some(false) => text += " received",
        }
        text += &self.kind.text();
        if let Some(vlan) = self.vlan() {
            text += &format!(" vlan {vlan}");
        }
        for (word, end) in [("from", self.from), ("to", self.to)] {
            if !matches!(end, FilterEnd::Nothing) {
                text += &format!(" {word} {}", end.text());
            }
        }
        text + if self.keeps() { " keep" } else { "" }
    }

    /// Whether the language has this rule.
    pub(super) fn is_right(&self) -> bool {
        let protocol = self.kind.protocol();
        let ends = [self.from, self.to];
        let has_ports = ends.iter().any(|end| end.ports().is_some());
        let has_nets = ends.iter().any(|end| end.net().is_some());
        let is_other = |kind: u16| !matches!(kind, TYPE_IPV4 | TYPE_IPV6);
        let bits = ends.map(|end| end.net().map(|(_, bits, _)| bits));
        let is_of_one_kind = bits[0].zip(bits[1]).is_none_or(|(from, to)| from == to);
        ends.iter().all(|end| end.is_right())
            && self.vlan() != Some(0)
            && (!has_ports || matches!(protocol, Some(TCP | UDP)))
            && !(has_nets && self.kind.ether_type().is_some_and(is_other))
            && is_of_one_kind
            && (!self.keeps() || self.can_keep())
    }

    fn fits(&self, facts: &FilterFacts) -> bool {
        let packet = facts.packet.as_ref();
        let ports = packet.and_then(|packet| packet.ports);
        let is_first =
            packet.is_none_or(|packet| packet.ip.protocol != TCP || packet.is_tcp_first());
        self.is_sent.is_none_or(|sent| sent == (facts.direction == Direction::Sent))
            && self.kind.ether_type().is_none_or(|it| it == facts.ether_type)
            && self
                .kind
                .protocol()
                .is_none_or(|it| packet.is_some_and(|packet| packet.ip.protocol == it))
            && self.vlan().is_none_or(|vlan| vlan == facts.vlan)
            && self.from.fits(packet.map(|it| it.ip.source), ports.map(|it| it.0))
            && self.to.fits(packet.map(|it| it.ip.destination), ports.map(|it| it.1))
            && (!self.keeps() || is_first)
    }
}

/// The facts about a frame that rules ask for.
struct FilterFacts {
    direction: Direction,
    ether_type: u16,
    vlan: u16,
    packet: Option<FlowPacket>,
}

/// The part of a filter that decided about a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FilterVerdict {
    Rule(usize),
    Default,
    Kept,
    Unreadable,
}

impl FilterVerdict {
    /// Reads the decision off the counters of a filter; `None` when the filter saw no frame.
    pub(super) fn between(before: &[u64], after: &[u64]) -> Option<Self> {
        let counted = before.iter().zip(after).map(|(before, after)| after - before);
        let counted: Vec<_> = counted.collect();
        assert!(counted.iter().sum::<u64>() <= 1, "counted twice: {counted:?}");
        let rules = counted.len() - 3;
        Some(match counted.iter().position(|it| *it == 1)? {
            at if at < rules => Self::Rule(at),
            at if at == rules => Self::Default,
            at if at == rules + 1 => Self::Kept,
            _ => Self::Unreadable,
        })
    }
}

/// A conversation: its two ends, of which the first began it.
#[derive(Clone, Copy, Debug)]
struct FilterTalk {
    ends: [(Ip, u16); 2],
    protocol: u8,
    vlan: u16,
    until_ns: u64,
    is_answered: bool,
    /// The end that began it has sent again after the answer.
    is_established: bool,
    has_ended: bool,
}

impl FilterTalk {
    fn of(packet: &FlowPacket, vlan: u16) -> Option<Self> {
        let ip = &packet.ip;
        let has_none = [ICMP, ICMPV6].contains(&ip.protocol) && !ip.is_fragment;
        let ports = packet.ports.or(has_none.then_some((0, 0)))?;
        let ends = [(ip.source, ports.0), (ip.destination, ports.1)];
        Some(Self {
            ends,
            protocol: ip.protocol,
            vlan,
            until_ns: 0,
            is_answered: false,
            is_established: false,
            has_ended: false,
        })
    }

    fn is(&self, other: &Self) -> bool {
        let [one, two] = other.ends;
        (self.ends == [one, two] || self.ends == [two, one])
            && (self.protocol, self.vlan) == (other.protocol, other.vlan)
    }

    fn hear(&mut self, packet: &FlowPacket, now_ns: u64) {
        let flag = |flags: u8| packet.tcp_flags & flags != 0;
        let source = (packet.ip.source, packet.ports.map_or(0, |ports| ports.0));
        let seconds = if self.protocol != TCP {
            self.is_answered |= source != self.ends[0];
            if self.is_answered { 60 } else { 10 }
        } else {
            if self.is_answered && source == self.ends[0] && !flag(SYN | RST) {
                self.is_established = true;
            }
            self.is_answered |= source != self.ends[0] && !flag(RST);
            self.has_ended |= self.is_established && flag(FIN | RST);
            match (self.has_ended, self.is_established) {
                (true, _) => 30,
                (false, true) => 3600,
                (false, false) => 10,
            }
        };
        self.until_ns = now_ns + seconds * SECOND_NS;
    }

    /// Whether the rules decide about this packet: it begins a conversation at the ports of an
    /// earlier one that has ended.
    fn is_over(&self, packet: &FlowPacket) -> bool {
        self.has_ended && packet.is_tcp_first()
    }
}

/// The rules and the conversations.
pub(super) struct Model {
    rules: Vec<RuleSpec>,
    default: Action,
    talks: Vec<FilterTalk>,
}

impl Model {
    pub(super) fn new(rules: Vec<RuleSpec>, default: Action) -> Self {
        Self { rules, default, talks: Vec::new() }
    }

    /// The counters of a filter with these rules: of each rule, and of frames without a rule.
    pub(super) fn counted(&self, core: &FilterCore) -> Vec<u64> {
        assert_eq!(core.flows_lost.get(), 0, "a table of thousands was full of a hundred");
        let others = [&core.default, &core.kept, &core.unreadable];
        core.rules.iter().chain(others).map(|it| it.frames.get()).collect()
    }

    /// The decision about a frame: the part that decides, and whether the frame passes.
    pub(super) fn decide(
        &mut self,
        direction: Direction,
        frame: &[u8],
        now_ns: u64,
    ) -> (FilterVerdict, bool) {
        let mut head = frame[..frame.len().min(HEAD_BYTES)].to_vec();
        let mut vlan = 0;
        if head[12..14] == [0x81, 0] {
            vlan = u16::from_be_bytes([head[14], head[15]]) & 0xfff;
            head.drain(12..16);
        }
        let ether_type = ether::ether_type(&head).unwrap_or_default();
        let packet = ether::packet(&head);
        if packet.is_none() && matches!(ether_type, TYPE_IPV4 | TYPE_IPV6) {
            return (FilterVerdict::Unreadable, false);
        }
        let talk = packet.as_ref().and_then(|packet| FilterTalk::of(packet, vlan));
        if let (Some(talk), Some(packet)) = (&talk, &packet)
            && let Some(known) =
                self.talks.iter_mut().find(|it| it.until_ns > now_ns && it.is(talk))
            && !known.is_over(packet)
        {
            known.hear(packet, now_ns);
            return (FilterVerdict::Kept, true);
        }
        let quoted = packet.and_then(|packet| ether::quoted(&head, &packet.ip));
        if let Some(quoted) = quoted.and_then(|quoted| FilterTalk::of(&quoted, vlan))
            && self.talks.iter().any(|it| it.until_ns > now_ns && it.is(&quoted))
        {
            return (FilterVerdict::Kept, true);
        }
        let facts = FilterFacts { direction, ether_type, vlan, packet };
        let Some(at) = self.rules.iter().position(|rule| rule.fits(&facts)) else {
            return (FilterVerdict::Default, self.default == Action::Allow);
        };
        let rule = &self.rules[at];
        if rule.keeps()
            && let (Some(mut talk), Some(packet)) = (talk, &facts.packet)
        {
            talk.hear(packet, now_ns);
            self.talks.retain(|it| it.until_ns > now_ns && !it.is(&talk));
            self.talks.push(talk);
        }
        (FilterVerdict::Rule(at), rule.is_allow)
    }
}
