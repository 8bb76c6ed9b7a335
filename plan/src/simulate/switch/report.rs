//! The report of an exchange on switches, and its text.

use std::fmt::Write;

use serde::Serialize;

use super::super::show::{LATENCY_HEAD, latency_row, share, time};
use super::super::world::{LatencySummary, summary_of};
use super::form::{ExchangePattern, Placement, Routing};
use super::link::SwitchLink;
use super::results::VariedSwitchReport;
use super::world::SwitchWorld;
use crate::money::grouped;
use crate::text::{row, table};

/// The use of links of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LinkUse {
    /// The kind.
    pub links: &'static str,
    /// Their number.
    pub count: u64,
    /// The mean share of time that they sent, in parts of a million.
    pub mean_ppm: u64,
    /// That of the idlest.
    pub least_ppm: u64,
    /// That of the busiest.
    pub most_ppm: u64,
    /// The most bytes that a link had to send at a time: a switch needs so much memory for it, or
    /// drops packets, or holds senders back.
    pub queue_bytes: u64,
}

/// The outcome of an exchange.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SwitchReport {
    /// The scenario's title.
    pub title: String,
    /// Its seed.
    pub seed: u64,
    /// The messages of a turn.
    pub pattern: ExchangePattern,
    /// The rule that gives packets their spine switch.
    pub routing: Routing,
    /// The hosts of ranks.
    pub placement: Placement,
    /// Leaf switches.
    pub leaves: u64,
    /// Hosts of all leaves.
    pub hosts: u64,
    /// Turns of each host.
    pub turns: u64,
    /// The rate of a leaf's hosts beside that of its up-links, in parts of a million; none if there
    /// is one leaf.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oversubscription_ppm: Option<u64>,
    /// Events.
    pub events: u64,
    /// The time until the last message has arrived.
    pub time_ns: u64,
    /// The time that a host's card takes for its messages if nothing holds them up.
    pub cards_ns: u64,
    /// Data of a host, sent in this time, in Mbit/s.
    pub host_mbit: u64,
    /// The share of the time in which a host's card sent, in parts of a million.
    pub card_ppm: u64,
    /// The bits that went from each half of the ranks to the other half, beside the bits that the
    /// cards of both can send in this time, in parts of a million.
    pub bisection_ppm: u64,
    /// Times of messages from their turn's beginning.
    pub messages: LatencySummary,
    /// The use of links.
    pub used: Vec<LinkUse>,
}

/// Bits beside the bits of so many links at this rate in this time, in parts of a million: the
/// product of the latter is beyond 64 bits.
fn ppm(bits: u64, (links, gbit, time_ns): (u64, u64, u64)) -> u64 {
    let all = u128::from(links * gbit) * u128::from(time_ns);
    (u128::from(bits) * 1_000_000 / all.max(1)) as u64
}

impl SwitchWorld<'_> {
    /// The report at the end.
    pub(super) fn report(&self) -> SwitchReport {
        let scenario = self.scenario;
        let (switch, uplink_gbit) = (&scenario.switch, scenario.uplink_gbit());
        let message_bits = scenario.message_bits();
        let turns = scenario.turns();
        let cards = |count: u64| (count, switch.host_gbit, self.end_ns);
        let has_uplinks = switch.leaves > 1;
        let kinds = [
            ("cards, out", &self.out, switch.host_gbit),
            ("up-links", &self.up, uplink_gbit),
            ("down-links", &self.down, uplink_gbit),
            ("cards, in", &self.into, switch.host_gbit),
        ];
        let used = kinds.iter().filter(|(_, links, _)| links.iter().any(|link| link.bits > 0));
        SwitchReport {
            title: scenario.title.clone(),
            seed: scenario.seed,
            pattern: scenario.load.pattern,
            routing: switch.routing,
            placement: scenario.load.placement,
            leaves: switch.leaves,
            hosts: scenario.hosts(),
            turns,
            oversubscription_ppm: has_uplinks
                .then(|| ppm(switch.hosts * switch.host_gbit, (switch.uplinks, uplink_gbit, 1))),
            events: self.events,
            time_ns: self.end_ns,
            cards_ns: (turns * message_bits).div_ceil(switch.host_gbit),
            host_mbit: turns * scenario.load.bytes * 8 * 1000 / self.end_ns,
            card_ppm: ppm(turns * message_bits, cards(1)),
            bisection_ppm: ppm(self.crossed * message_bits, cards(2 * (scenario.hosts() / 2))),
            messages: summary_of(&self.latencies),
            used: used.map(|(name, links, gbit)| self.used(name, links, *gbit)).collect(),
        }
    }

    fn used(&self, name: &'static str, links: &[SwitchLink], gbit: u64) -> LinkUse {
        let shares: Vec<u64> =
            links.iter().map(|link| ppm(link.bits, (1, gbit, self.end_ns))).collect();
        LinkUse {
            links: name,
            count: shares.len() as u64,
            mean_ppm: shares.iter().sum::<u64>() / shares.len() as u64,
            least_ppm: shares.iter().copied().min().unwrap_or(0),
            most_ppm: shares.iter().copied().max().unwrap_or(0),
            queue_bytes: links.iter().map(|link| link.queued_bits_max).max().unwrap_or(0) / 8,
        }
    }
}

/// A size with three digits at least and a unit.
fn size(bytes: u64) -> String {
    match bytes {
        0..10_240 => format!("{} B", grouped(bytes)),
        10_240..10_485_760 => format!("{} KiB", grouped(bytes >> 10)),
        _ => format!("{} MiB", grouped(bytes >> 20)),
    }
}

/// Mbit/s as Gbit/s.
fn rate(mbit: u64) -> String {
    format!("{}.{:02} Gbit/s", mbit / 1000, mbit % 1000 / 10)
}

/// A factor of parts of a million.
fn factor(ppm: u64) -> String {
    format!("{}.{:02}", ppm / 1_000_000, ppm % 1_000_000 / 10_000)
}

/// The report of one exchange.
pub fn switch_text(report: &SwitchReport) -> String {
    let mut text = format!("{}\n", report.title);
    let pattern = match report.pattern {
        ExchangePattern::AllToAll => "all to all",
        ExchangePattern::Bisection => "across the middle",
    };
    let _ = write!(
        text,
        "{pattern}: {} hosts on {} leaves",
        grouped(report.hosts),
        grouped(report.leaves)
    );
    if let Some(ppm) = report.oversubscription_ppm {
        let _ = write!(text, ", oversubscribed {} times", factor(ppm));
    }
    let _ = writeln!(
        text,
        "; {} turns, seed {}, {} events",
        grouped(report.turns),
        report.seed,
        grouped(report.events)
    );
    let rows = [
        row(["", ""]),
        row(["time", &time(report.time_ns)]),
        row(["time of the cards alone", &time(report.cards_ns)]),
        row(["data of a host", &rate(report.host_mbit)]),
        row(["share of its card", &share(report.card_ppm)]),
        row(["share of the full bisection", &share(report.bisection_ppm)]),
    ];
    let _ = write!(text, "\nEXCHANGE{}", table(&rows, 1));
    let mut head = LATENCY_HEAD;
    head[0] = "messages";
    let rows = [row(head), latency_row("in all", &report.messages)];
    let _ = write!(text, "\nMESSAGES\n{}", table(&rows, 1));
    let mut rows = vec![row(["busy", "number", "mean", "least", "most", "longest queue"])];
    for used in &report.used {
        let mut cells = vec![used.links.to_owned(), grouped(used.count)];
        cells.extend([used.mean_ppm, used.least_ppm, used.most_ppm].map(share));
        cells.push(size(used.queue_bytes));
        rows.push(cells);
    }
    let _ = write!(text, "\nLINKS\n{}", table(&rows, 1));
    text
}

/// Several reports, one a row, by the value that tells them apart.
pub fn switch_rows_text(key: &str, runs: &[VariedSwitchReport]) -> String {
    let Some(VariedSwitchReport { report: first, .. }) = runs.first() else {
        return String::new();
    };
    let head = [key, "time", "cards", "a host", "bisection", "p50", "p99", "up-links", "queue"];
    let mut rows = vec![row(head)];
    for VariedSwitchReport { value, report } in runs {
        let uplinks = report.used.iter().find(|used| used.links == "up-links");
        let queue = report.used.iter().map(|used| used.queue_bytes).max().unwrap_or(0);
        rows.push(row([
            value,
            &time(report.time_ns),
            &share(report.card_ppm),
            &rate(report.host_mbit),
            &share(report.bisection_ppm),
            &time(report.messages.p50_ns),
            &time(report.messages.p99_ns),
            &uplinks.map_or_else(|| "-".to_owned(), |used| share(used.most_ppm)),
            &size(queue),
        ]));
    }
    format!("{}\n\n{}", first.title, table(&rows, 1))
}
