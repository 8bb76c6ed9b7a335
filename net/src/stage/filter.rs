//! Lets through what its rules allow, and the answers to it where they say so.
//!
//! The rules are text ([`Rules::parse`]). The first one that fits a frame decides; where none does,
//! the default. A rule with `keep` also lets through what belongs to the same conversation, in both
//! directions, until that has been silent for long or has ended: those frames are looked up in a
//! table of bounded size before any rule is asked.

mod flows;
mod parse;

use std::sync::Arc;

use sidecore::Counter;

use super::{Direction, FrameStage};
use crate::ether::{self, FlowPacket, Ip, IpHeader, TYPE_IPV4, TYPE_IPV6};
use crate::frame::{Burst, Frame};
use crate::reason::Reason;
use flows::{FirstFrame, Flows};

pub use flows::FLOWS_MAX;
pub use parse::{RULES_MAX, RuleError};

/// The treatment of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It goes on.
    Allow,
    /// It is dropped.
    Deny,
}

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Net {
    first: Ip,
    /// Bits that count.
    mask: u128,
}

impl Net {
    fn has(&self, ip: Ip) -> bool {
        ip.0 & self.mask == self.first.0
    }
}

/// The part of a rule that asks for the kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KindMatch {
    Any,
    Type(u16),
    /// IP's protocol, over either kind of IP.
    Protocol(u8),
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    action: Action,
    /// Either, where none is given.
    direction: Option<Direction>,
    kind: KindMatch,
    vlan: Option<u16>,
    source: Option<Net>,
    source_ports: Option<(u16, u16)>,
    destination: Option<Net>,
    destination_ports: Option<(u16, u16)>,
    keep: bool,
}

/// The known fields of a frame; read once.
#[derive(Clone, Copy, Debug)]
struct FrameFacts {
    direction: Direction,
    ether_type: u16,
    vlan: u16,
    packet: Option<FlowPacket>,
}

impl FirstFrame {
    fn facts(&self) -> FrameFacts {
        let [source, destination] = self.ends;
        let (from, to) = (Ip(source.0), Ip(destination.0));
        let ip = IpHeader {
            is_v4: from.is_v4(),
            source: from,
            destination: to,
            protocol: self.protocol,
            // Rules look at nothing else of it.
            payload_at: 0,
            packet_bytes: 0,
            is_later_fragment: false,
            is_fragment: false,
        };
        let has_ports = matches!(self.protocol, ether::TCP | ether::UDP);
        let ports = has_ports.then_some((source.1, destination.1));
        let tcp_flags = if self.protocol == ether::TCP { ether::SYN } else { 0 };
        FrameFacts {
            direction: self.direction,
            ether_type: if ip.is_v4 { TYPE_IPV4 } else { TYPE_IPV6 },
            vlan: self.vlan,
            packet: Some(FlowPacket { ip, ports, tcp_flags }),
        }
    }
}

impl Rule {
    fn fits(&self, facts: &FrameFacts) -> bool {
        let is_kind = match self.kind {
            KindMatch::Any => true,
            KindMatch::Type(ether_type) => facts.ether_type == ether_type,
            KindMatch::Protocol(protocol) => {
                facts.packet.is_some_and(|packet| packet.ip.protocol == protocol)
            }
        };
        is_kind
            && self.direction.is_none_or(|direction| direction == facts.direction)
            && self.vlan.is_none_or(|vlan| vlan == facts.vlan)
            && self.fits_ends(facts.packet.as_ref())
    }

    fn fits_ends(&self, packet: Option<&FlowPacket>) -> bool {
        let net = |net: Option<Net>, ip: fn(&FlowPacket) -> Ip| {
            net.is_none_or(|net| packet.is_some_and(|packet| net.has(ip(packet))))
        };
        let ports = packet.and_then(|packet| packet.ports);
        let port = |range: Option<(u16, u16)>, port: fn((u16, u16)) -> u16| {
            range.is_none_or(|(first, last)| {
                ports.is_some_and(|ports| (first..=last).contains(&port(ports)))
            })
        };
        net(self.source, |packet| packet.ip.source)
            && net(self.destination, |packet| packet.ip.destination)
            && port(self.source_ports, |(source, _)| source)
            && port(self.destination_ports, |(_, destination)| destination)
    }

    /// A conversation is kept from its beginning on: a rule that keeps is about TCP's first packet.
    fn begins(&self, facts: &FrameFacts) -> bool {
        let Some(packet) = facts.packet else { return !self.keep };
        !self.keep || packet.ip.protocol != ether::TCP || packet.is_tcp_first()
    }
}

/// A list of rules, and what holds where none fits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    rules: Vec<Rule>,
    default: Action,
}

impl Rules {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// None: the default holds for all.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    fn first_that_fits(&self, facts: &FrameFacts) -> Option<usize> {
        self.rules.iter().position(|rule| rule.fits(facts) && rule.begins(facts))
    }

    /// Whether a conversation that began like this would be kept.
    fn would_keep(&self, first: FirstFrame) -> bool {
        let at = self.first_that_fits(&first.facts());
        at.is_some_and(|at| self.rules[at].keep)
    }
}

/// How often a rule decided.
#[derive(Debug, Default)]
pub struct RuleCounters {
    /// Frames.
    pub frames: Counter,
    /// Their bytes.
    pub bytes: Counter,
}

impl RuleCounters {
    fn count(&self, frame: &Frame) {
        self.frames.add(1);
        self.bytes.add(frame.len_bytes() as u64);
    }
}

/// The counters of a filter. Written by its sidecore only.
#[derive(Debug)]
pub struct FilterCore {
    /// In the rules' order.
    pub rules: Vec<RuleCounters>,
    /// Frames that no rule fitted.
    pub default: RuleCounters,
    /// Frames of a conversation that is kept.
    pub kept: RuleCounters,
    /// IP packets whose headers cannot be read, which no rule is asked about: dropped.
    pub unreadable: RuleCounters,
    /// Conversations that were kept.
    pub flows_begun: Counter,
    /// Of these, how many had to go for others although they were established.
    pub flows_lost: Counter,
}

impl FilterCore {
    /// Counters for these rules.
    pub fn new(rules: &Rules) -> Arc<Self> {
        Arc::new(Self {
            rules: rules.rules.iter().map(|_| RuleCounters::default()).collect(),
            default: RuleCounters::default(),
            kept: RuleCounters::default(),
            unreadable: RuleCounters::default(),
            flows_begun: Counter::new(),
            flows_lost: Counter::new(),
        })
    }
}

/// See the module's text.
#[derive(Debug)]
pub struct Filter {
    rules: Rules,
    core: Arc<FilterCore>,
    flows: Flows,
}

impl Filter {
    /// A filter by these rules. `seed` keeps others from knowing which conversations share a place
    /// in its table.
    ///
    /// # Panics
    /// When the counters are of other rules.
    pub fn new(rules: Rules, core: Arc<FilterCore>, seed: u64) -> Self {
        assert_eq!(rules.rules.len(), core.rules.len(), "counters for each rule");
        let keeps = rules.rules.iter().any(|rule| rule.keep);
        Self { rules, core, flows: Flows::new(seed, keeps) }
    }

    /// Goes on with the conversations of the filter before: those that these rules would have kept
    /// as well. They are asked when a conversation is heard of again.
    pub fn inherit(&mut self, before: &mut Self) {
        self.flows.inherit(&mut before.flows);
    }

    /// The conversations that are kept now, for [`Filter::go_on_with`] in another process of this
    /// host, as long as the clock (monotonic, ns) is the same. Empty where nothing is kept.
    pub fn conversations(&self, now_ns: u64) -> Vec<u8> {
        self.flows.rows(now_ns)
    }

    /// Keeps the conversations that another process kept, as far as these rules would; entries that
    /// are no conversations are left out.
    pub fn go_on_with(&mut self, conversations: &[u8], now_ns: u64) {
        self.flows.go_on_with(conversations, now_ns);
    }

    /// Whether this frame is part of a conversation that is kept, or an error about one.
    fn is_kept(&mut self, facts: &FrameFacts, frame: &Frame, now_ns: u64) -> bool {
        let Self { rules, flows, .. } = self;
        let Some(packet) = &facts.packet else { return false };
        let is_allowed = |first| rules.would_keep(first);
        if flows.follow(packet, facts.vlan, now_ns, is_allowed) {
            return true;
        }
        let quoted = ether::quoted(frame.head(), &packet.ip);
        quoted.is_some_and(|quoted| flows.has(&quoted, facts.vlan, now_ns, is_allowed))
    }

    fn decide(&mut self, facts: &FrameFacts, frame: &Frame, now_ns: u64) -> Action {
        if self.is_kept(facts, frame, now_ns) {
            self.core.kept.count(frame);
            return Action::Allow;
        }
        let Some(at) = self.rules.first_that_fits(facts) else {
            self.core.default.count(frame);
            return self.rules.default;
        };
        self.core.rules[at].count(frame);
        let rule = &self.rules.rules[at];
        if rule.keep
            && let Some(packet) = &facts.packet
        {
            let has_pushed_out = self.flows.begin(facts.direction, packet, facts.vlan, now_ns);
            self.core.flows_begun.add(1);
            self.core.flows_lost.add(u64::from(has_pushed_out));
        }
        rule.action
    }
}

impl FrameStage for Filter {
    fn pass(
        &mut self,
        direction: Direction,
        frame: &Frame,
        _burst: &Burst,
        now_ns: u64,
    ) -> Result<(), Reason> {
        let head = frame.head();
        let ether_type = ether::ether_type(head).unwrap_or_default();
        let packet = ether::packet(head);
        // A packet that hides its headers (a first fragment that ends in them) is not guessed at.
        if packet.is_none() && matches!(ether_type, TYPE_IPV4 | TYPE_IPV6) {
            self.core.unreadable.count(frame);
            return Err(Reason::Filtered);
        }
        let facts = FrameFacts { direction, ether_type, vlan: frame.vlan(), packet };
        match self.decide(&facts, frame, now_ns) {
            Action::Allow => Ok(()),
            Action::Deny => Err(Reason::Filtered),
        }
    }
}

#[cfg(test)]
mod tests;
