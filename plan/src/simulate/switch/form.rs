//! The form of an exchange on switches, its checks, and the ways of its messages.

use serde::{Deserialize, Serialize};
use toml::Table;

use super::super::scenario::{BYTES_MAX, COST_NS_MAX, STATIONS_MAX, UNDER_WAY_MAX, form, one};
use super::super::variate::hash;
use crate::fault::{NAME_MAX, PlanFault, key, named, within};

/// Hosts of all leaves: the events of their cards have a number each, beside the packets'.
const HOSTS_MAX: u64 = 1 << 16;
/// Turns of a host.
const TURNS_MAX: u64 = 1 << 20;
/// Up-links of a leaf: `shortest` looks at all of them for each packet.
const UPLINKS_MAX: u64 = 1024;
/// Packets of all messages, each with five events: an hour of the simulating machine.
const PACKETS_MAX: u64 = 1 << 30;
/// The fastest link.
const GBIT_MAX: u64 = 10_000;
/// The largest packet: that of the internet protocol.
const PACKET_BYTES_MAX: u64 = 1 << 16;

/// An exchange of messages.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchScenario {
    /// The title for a reader.
    pub title: String,
    /// The seed of all randomness.
    #[serde(default = "one")]
    pub seed: u64,
    /// The hosts and the switches.
    pub switch: SwitchNetwork,
    /// The messages.
    pub load: SwitchLoad,
}

/// The rule that gives a packet its spine switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Routing {
    /// By the receiving host in turn, as the tables of InfiniBand's switches have it.
    Destination,
    /// By a hash of both hosts, for ever: Ethernet's equal-cost paths.
    Flow,
    /// Each packet any.
    Packet,
    /// Each packet by the up-link that is free first.
    Shortest,
}

/// The messages of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExchangePattern {
    /// In turn t each rank sends to the rank t places after it.
    AllToAll,
    /// Each rank of the first half has another partner in the second half in each turn, and both
    /// send.
    Bisection,
}

/// The rule that gives a rank its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// Ranks are on the hosts of the first leaf, then on the hosts of the next leaf.
    InOrder,
    /// Any: each turn is a random permutation, and the middle a random one.
    Random,
}

/// The hosts and the switches.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchNetwork {
    /// Leaf switches.
    #[serde(default = "one")]
    pub leaves: u64,
    /// Hosts of a leaf.
    pub hosts: u64,
    /// Up-links of a leaf, each to a spine switch of its own; 0 if there is one leaf.
    #[serde(default)]
    pub uplinks: u64,
    /// Gbit/s of a host's link in one direction.
    pub host_gbit: u64,
    /// The same of an up-link and a down-link; by default that of hosts.
    pub uplink_gbit: Option<u64>,
    /// The rule that gives a packet its spine switch.
    #[serde(default = "by_destination")]
    pub routing: Routing,
    /// The most data of a packet.
    #[serde(default = "packet_bytes")]
    pub packet_bytes: u64,
    /// Bytes of a packet beside its data.
    #[serde(default)]
    pub head_bytes: u64,
    /// The time of a wire and of the switch or card behind it.
    #[serde(default)]
    pub hop_ns: u64,
}

fn by_destination() -> Routing {
    Routing::Destination
}

fn packet_bytes() -> u64 {
    4096
}

/// The messages.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchLoad {
    /// The messages of a turn.
    pub pattern: ExchangePattern,
    /// The data of a message.
    pub bytes: u64,
    /// Turns, in each of which a host sends one message and gets one; by default each pair of the
    /// pattern has one.
    pub turns: Option<u64>,
    /// Whether a turn begins when all messages of the last one have arrived, as behind a barrier.
    /// Otherwise a host begins its next turn when one of its own messages has arrived.
    #[serde(default)]
    pub barrier: bool,
    /// Messages of a host under way, without a barrier.
    #[serde(default = "one")]
    pub window: u64,
    /// The hosts of ranks.
    #[serde(default = "in_order")]
    pub placement: Placement,
}

fn in_order() -> Placement {
    Placement::InOrder
}

impl SwitchScenario {
    /// Whether a scenario's text is of this form, with a table `switch`.
    pub fn is_form(text: &str) -> bool {
        toml::from_str::<Table>(text).is_ok_and(|table| table.contains_key("switch"))
    }

    /// Reads and checks a scenario, with values of keys in place of the file's.
    ///
    /// # Errors
    /// When the text is not of this form, or a value cannot be used.
    pub fn read(name: &str, text: &str, set: &[(String, String)]) -> Result<Self, PlanFault> {
        let scenario: Self = form(name, text, set, "vrio plan example switch")?;
        scenario.check()?;
        Ok(scenario)
    }

    /// Hosts of all leaves.
    pub fn hosts(&self) -> u64 {
        self.switch.leaves * self.switch.hosts
    }

    /// Gbit/s of an up-link.
    pub fn uplink_gbit(&self) -> u64 {
        self.switch.uplink_gbit.unwrap_or(self.switch.host_gbit)
    }

    /// Turns of a host.
    pub fn turns(&self) -> u64 {
        let all = match self.load.pattern {
            ExchangePattern::AllToAll => self.hosts() - 1,
            ExchangePattern::Bisection => self.hosts() / 2,
        };
        self.load.turns.unwrap_or(all)
    }

    /// The receiver of a rank's message in a turn. In each turn a rank has one message to get.
    pub fn receiver(&self, rank: u64, turn: u64) -> u64 {
        let (ranks, half) = (self.hosts(), self.hosts() / 2);
        match self.load.pattern {
            ExchangePattern::AllToAll => (rank + 1 + turn % (ranks - 1)) % ranks,
            ExchangePattern::Bisection if rank < half => half + (rank + turn) % half,
            ExchangePattern::Bisection => (rank - half + half - turn % half) % half,
        }
    }

    /// The spine switch of all packets from a host to another host; none if packets have their own.
    pub fn spine(&self, from: u64, to: u64) -> Option<u64> {
        match self.switch.routing {
            Routing::Destination => Some(to % self.switch.uplinks),
            Routing::Flow => Some(hash(self.seed, from, to) % self.switch.uplinks),
            Routing::Packet | Routing::Shortest => None,
        }
    }

    /// Packets of a message.
    pub(super) fn packets(&self) -> u64 {
        self.load.bytes.div_ceil(self.switch.packet_bytes)
    }

    /// Bits of a message on a link.
    pub(super) fn message_bits(&self) -> u64 {
        8 * (self.load.bytes + self.packets() * self.switch.head_bytes)
    }

    fn check(&self) -> Result<(), PlanFault> {
        named("title", &self.title, NAME_MAX)?;
        self.check_switch()?;
        let load = &self.load;
        within("load.bytes", load.bytes, 1, BYTES_MAX)?;
        within("load.turns", self.turns(), 1, TURNS_MAX)?;
        within("load.window", load.window, 1, UNDER_WAY_MAX)?;
        if load.pattern == ExchangePattern::Bisection && !self.hosts().is_multiple_of(2) {
            let cause = format!("{} hosts have no two halves", self.hosts());
            return Err(key("load.pattern", cause, "give an even number of hosts"));
        }
        if load.barrier && load.window > 1 {
            let cause = "behind a barrier each host has one message under way";
            return Err(key("load.window", cause, "set load.barrier = false"));
        }
        let under_way = self.hosts().saturating_mul(self.packets()).saturating_mul(load.window);
        let name = "hosts x load.window x packets of a message";
        within(name, under_way, 1, UNDER_WAY_MAX)?;
        let packets = self.hosts().saturating_mul(self.packets()).saturating_mul(self.turns());
        within("hosts x turns x packets of a message", packets, 1, PACKETS_MAX)
    }

    fn check_switch(&self) -> Result<(), PlanFault> {
        let switch = &self.switch;
        within("switch.leaves", switch.leaves, 1, HOSTS_MAX)?;
        within("switch.hosts", switch.hosts, 1, HOSTS_MAX)?;
        within("switch.leaves x switch.hosts", self.hosts(), 2, HOSTS_MAX)?;
        let least = u64::from(switch.leaves > 1);
        within("switch.uplinks", switch.uplinks, least, UPLINKS_MAX)?;
        let links = 2 * (self.hosts() + switch.leaves * switch.uplinks);
        within("links of hosts and leaves", links, 1, STATIONS_MAX)?;
        within("switch.host_gbit", switch.host_gbit, 1, GBIT_MAX)?;
        within("switch.uplink_gbit", self.uplink_gbit(), 1, GBIT_MAX)?;
        within("switch.packet_bytes", switch.packet_bytes, 64, PACKET_BYTES_MAX)?;
        within("switch.head_bytes", switch.head_bytes, 0, PACKET_BYTES_MAX)?;
        within("switch.hop_ns", switch.hop_ns, 0, COST_NS_MAX)
    }
}
