//! The result of a measurement of replicas, for people and for programs.

use std::fmt;

use serde::Serialize;
use testbed::machine::Machine;
use testbed::pair::between;
use testbed::stage::NodeNetwork;
use workload::WorkloadCounts;

use super::events::EventPauses;
use super::options::{BenchRegistry, ReplicaEvent, ReplicasOptions};
use super::prices::Price;
use crate::load::LoadPattern;
use crate::verdict::{Bound, Spread, Verdict};

/// The version of the JSON form.
const REPLICAS_VERSION: u32 = 1;

/// The goals: the longest pause at a move, the pause of 99 of 100 deaths that an agent proves, and
/// the longest one where leases alone tell of a death, in milliseconds; and the factors of a write
/// and a read at depth 1. A write to memory has no storage beside which a second way over the
/// network would be short.
const MOVE_MS: f64 = 50.0;
const PROVED_DEATH_MS: f64 = 400.0;
const DEATH_MS: f64 = 3000.0;
const WRITE_RATIO: f64 = 1.3;
const WRITE_RATIO_MEMORY: f64 = 2.2;
const READ_RATIO: f64 = 1.05;

/// The kind of a file system in memory (statfs(2), TMPFS_MAGIC).
const TMPFS: i64 = 0x0102_1994;

/// Everything that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct ReplicasReport {
    /// The version of this form.
    pub version: u32,
    /// The options of this run.
    pub asked: ReplicasOptions,
    /// The network between the nodes.
    pub network: NodeNetwork,
    /// Whether the pools' files are in memory (tmpfs).
    pub is_in_memory: bool,
    /// Requests with one copy and with several.
    pub prices: Vec<Price>,
    /// The guest's pauses by event.
    pub pauses: Vec<EventPauses>,
    /// The goals of the measured figures.
    pub goals: Vec<Verdict>,
    /// Acknowledged writes, all found again.
    pub writes_verified: u64,
    /// Blocks that were read and compared with the data that was written before.
    pub blocks_verified: u64,
    /// The machine.
    pub machine: Machine,
}

impl ReplicasReport {
    pub(super) fn new(
        options: &ReplicasOptions,
        network: NodeNetwork,
        prices: Vec<Price>,
        pauses: Vec<EventPauses>,
        counts: WorkloadCounts,
        machine: Machine,
    ) -> Self {
        // No kind of storage is known for a folder that has gone: then the bound is the narrow one.
        let folder = rustix::fs::statfs(&options.folder);
        let is_in_memory = folder.is_ok_and(|it| it.f_type == TMPFS);
        Self {
            version: REPLICAS_VERSION,
            asked: options.clone(),
            network,
            is_in_memory,
            goals: goals(&prices, &pauses, is_in_memory),
            prices,
            pauses,
            writes_verified: counts.writes,
            blocks_verified: counts.blocks_checked,
            machine,
        }
    }
}

/// The goals of the measured figures.
fn goals(prices: &[Price], pauses: &[EventPauses], is_in_memory: bool) -> Vec<Verdict> {
    let of_event = |event| pauses.iter().find(|it| it.event == event);
    let at_depth_1 = |pattern| prices.iter().find(|it| it.pattern == pattern && it.depth == 1);
    let ends = |it: Spread| [it.min, it.median, it.max];
    let pause = |goal, figure, event, (share, most_ms)| {
        let values = &of_event(event)?.pauses_ms;
        // The verdict is about this one figure of all rounds.
        let values = vec![quantile(values, share); values.len()];
        Some(Verdict::of(goal, figure, Bound::AtMost(most_ms), &values, false))
    };
    let price = |goal, figure, pattern, most| {
        let values = ends(at_depth_1(pattern)?.p50_ratio);
        Some(Verdict::of(goal, figure, Bound::AtMost(most), &values, false))
    };
    let write_ratio = if is_in_memory { WRITE_RATIO_MEMORY } else { WRITE_RATIO };
    let (proved, untold) = ((0.99, PROVED_DEATH_MS), (1.0, DEATH_MS));
    let all = [
        pause(1, "p99 of the pause at a kill, ms", ReplicaEvent::KillPrimary, proved),
        pause(2, "longest pause at a move, ms", ReplicaEvent::Move, (1.0, MOVE_MS)),
        price(3, "p50 of a write, ratio", LoadPattern::RandWrite, write_ratio),
        price(4, "p50 of a read, ratio", LoadPattern::RandRead, READ_RATIO),
        pause(5, "longest pause at a host's end, ms", ReplicaEvent::KillHost, untold),
        pause(6, "the same with etcd's leader, ms", ReplicaEvent::KillHostWithLeader, untold),
    ];
    all.into_iter().flatten().collect()
}

/// The value that a share of the values does not exceed.
pub(super) fn quantile(values: &[f64], share: f64) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let rank = (share * values.len() as f64).ceil() as usize;
    values[rank.clamp(1, values.len()) - 1]
}

impl fmt::Display for ReplicasReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ReplicasOptions { copies, volumes, rounds, mtu, .. } = self.asked;
        let between = between(Some(self.network), true);
        let mtu = match self.network {
            NodeNetwork::Namespaces => format!(", MTU {mtu}"),
            NodeNetwork::Loopback => String::new(),
        };
        writeln!(
            f,
            "a disk of another node{between}{mtu}: 1 copy and {copies} copies in pools {}; \
             {volumes} volumes with copies; {rounds} rounds; the registry is {}",
            if self.is_in_memory { "in memory" } else { "on a disk" },
            match self.asked.registry {
                BenchRegistry::File => "a file",
                BenchRegistry::Etcd => "on three members of etcd",
            }
        )?;
        if !self.prices.is_empty() {
            self.prices(f)?;
        }
        if !self.pauses.is_empty() {
            self.pauses(f)?;
        }
        writeln!(f)?;
        self.goals.iter().try_for_each(|goal| writeln!(f, "  {goal}"))?;
        let Machine { cores, processor, kernel, .. } = &self.machine;
        let build = self.machine.build();
        let slow = if self.machine.optimised { "" } else { "; NOT OPTIMISED: build --release" };
        writeln!(f, "  {cores} cores, {processor}, Linux {kernel}; vrio {build}{slow}")
    }
}

impl ReplicasReport {
    fn prices(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let copies = format!("{} copies", self.asked.copies);
        writeln!(f, "\n  {:<24}{:>10}{copies:>12}   ratio (rounds)", "4 KiB, p50 us", "1 copy")?;
        for it in &self.prices {
            let (name, [one, all]) = (it.pattern.name(), it.p50_us);
            let name = format!("{name}, depth {}", it.depth);
            writeln!(f, "  {name:<24}{:>10.1}{:>12.1}   {}", one.median, all.median, it.p50_ratio)?;
        }
        writeln!(f, "\n  {:<24}{:>10}{copies:>12}", "datagrams of all nodes", "1 copy")?;
        for it in &self.prices {
            let (name, [one, all]) = (it.pattern.name(), it.datagrams);
            let name = format!("{name}, depth {}", it.depth);
            writeln!(f, "  {name:<24}{:>10.1}{:>12.1}", one.median, all.median)?;
        }
        Ok(())
    }

    fn pauses(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = ["p50 ms", "p99 ms", "longest ms", "in sync ms"];
        let [p50, p99, longest, in_sync] = words;
        writeln!(f, "\n  {:<26}{p50:>8}{p99:>8}{longest:>12}{in_sync:>12}", "pauses of the guest")?;
        for it in &self.pauses {
            let [p50, p99, longest] = [0.5, 0.99, 1.0].map(|share| quantile(&it.pauses_ms, share));
            let in_sync = quantile(&it.in_sync_ms, 0.5);
            let name = it.event.words();
            writeln!(f, "  {name:<26}{p50:>8.0}{p99:>8.0}{longest:>12.0}{in_sync:>12.0}")?;
        }
        writeln!(
            f,
            "\n  nothing failed, nothing lost: {} acknowledged writes, {} blocks compared",
            self.writes_verified, self.blocks_verified
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::GoalState;

    fn pauses(event: ReplicaEvent, pauses_ms: &[f64]) -> EventPauses {
        EventPauses { event, pauses_ms: pauses_ms.to_vec(), in_sync_ms: vec![100.0] }
    }

    #[test]
    fn a_quantile_is_one_of_the_values() {
        let values = [4.0, 1.0, 3.0, 2.0];
        assert_eq!([0.5, 0.99, 1.0].map(|share| quantile(&values, share)), [2.0, 4.0, 4.0]);
        assert_eq!(quantile(&[7.0], 0.5), 7.0);
        let hundred: Vec<_> = (1..=100).map(f64::from).collect();
        assert_eq!(quantile(&hundred, 0.99), 99.0);
    }

    #[test]
    fn one_long_pause_breaks_the_goal() {
        let proved = pauses(ReplicaEvent::KillPrimary, &[200.0, 300.0, 390.0]);
        let moved = pauses(ReplicaEvent::Move, &[10.0, 20.0, 60.0]);
        let host = pauses(ReplicaEvent::KillHost, &[2600.0, 2700.0, 2800.0]);
        let [kill, moved, host] = &goals(&[], &[proved, moved, host], true)[..] else {
            panic!("three goals")
        };
        assert_eq!((kill.goal, kill.standing), (1, GoalState::Holds));
        assert_eq!((moved.goal, moved.standing), (2, GoalState::DoesNotHold));
        assert_eq!((host.goal, host.standing), (5, GoalState::Holds));
        // Of a hundred deaths one may take longer.
        let mut many = vec![300.0; 100];
        many[7] = 2000.0;
        let all = |values: &[f64]| goals(&[], &[pauses(ReplicaEvent::KillPrimary, values)], true);
        assert_eq!(all(&many)[0].standing, GoalState::Holds);
        many[8] = 2000.0;
        assert_eq!(all(&many)[0].standing, GoalState::DoesNotHold);
        let few = pauses(ReplicaEvent::Move, &[10.0]);
        assert_eq!(goals(&[], &[few], true)[0].standing, GoalState::Undecided);
    }
}
