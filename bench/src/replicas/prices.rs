//! Requests of a volume with copies beside requests of a volume without copies, in turn.

use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;
use testbed::events::{EventsSnapshot, Role};
use testbed::progress::Progress;

use super::options::{LOADS as LOADS_COUNT, ReplicasOptions};
use super::rack::{ALONE, BenchRack, MEASURED};
use crate::load::{Load, LoadPattern};
use crate::measure::{DriverPlan, MeasuredDisks, WaitMode};
use crate::verdict::Spread;

/// The kinds of requests, with the numbers of them that are outstanding.
const LOADS: [(LoadPattern, u16); LOADS_COUNT] = [
    (LoadPattern::RandWrite, 1),
    (LoadPattern::RandWrite, 32),
    (LoadPattern::RandRead, 1),
    (LoadPattern::RandRead, 32),
];

/// The time before each first measurement, in which caches, round trips and clocks settle.
const WARM_UP: Duration = Duration::from_millis(300);

/// The requests of one kind: of a volume with one copy, and of a volume with several.
#[derive(Clone, Debug, Serialize)]
pub struct Price {
    /// The kind of requests, of 4 KiB.
    pub pattern: LoadPattern,
    /// Requests outstanding.
    pub depth: u16,
    /// The median latencies of the rounds, in microseconds: with one copy, and with all.
    pub p50_us: [Spread; 2],
    /// With all copies for with one, in each round.
    pub p50_ratio: Spread,
    /// Requests a second.
    pub iops: [Spread; 2],
    /// Datagrams of all nodes for each request, acknowledgements included.
    pub datagrams: [Spread; 2],
}

/// One round of one volume.
struct Turn {
    p50_us: f64,
    iops: f64,
    datagrams: f64,
}

/// Measures all kinds of requests, both volumes in turn in each round.
pub(super) fn measure(
    options: &ReplicasOptions,
    nodes: &mut BenchRack,
    progress: &Progress,
) -> Result<Vec<Price>> {
    let mut disks = Vec::new();
    for name in [ALONE, MEASURED] {
        let socket = nodes.vm.wait_for_disk(name)?;
        let mut plan = DriverPlan::new(&socket);
        // A guest sleeps, and the nodes need the cores.
        plan.waiting = WaitMode::Sleeps;
        let mut disk = MeasuredDisks::connect(&plan, None)?;
        progress.doing(format!("writing all of {name}"));
        disk.fill().with_context(|| format!("filling {name}"))?;
        disks.push(disk);
    }
    let each = |(pattern, depth): (LoadPattern, u16)| {
        let mut turns = [Vec::new(), Vec::new()];
        for round in 0..options.rounds {
            progress.doing(format!(
                "{} at depth {depth}, round {} of {}",
                pattern.name(),
                round + 1,
                options.rounds
            ));
            for (disk, turns) in disks.iter_mut().zip(&mut turns) {
                let duration = Duration::from_secs_f64(options.seconds);
                let load = Load { pattern, depth, duration, interval: None };
                if round == 0 {
                    disk.run(Load { duration: WARM_UP, ..load })?;
                }
                turns.push(turn(nodes, disk, load)?);
            }
        }
        Ok(Price::new(pattern, depth, &turns))
    };
    LOADS.into_iter().map(each).collect()
}

fn turn(nodes: &BenchRack, disk: &mut MeasuredDisks, load: Load) -> Result<Turn> {
    let look = || {
        let members = nodes.members.iter().flatten().map(|node| (Role::Iohost, node));
        EventsSnapshot::at(members.chain([(Role::Vmhost, &nodes.vm)]), &[])
    };
    let before = look()?;
    let outcome = disk.run(load)?;
    let events = look()?.since(&before).per_request(outcome.requests().max(1));
    let sent = |role: &str| events.get(&format!("{role}_datagrams_sent")).copied();
    let datagrams = sent("vmhost").zip(sent("iohost")).context("nodes count datagrams")?;
    Ok(Turn {
        p50_us: outcome.quantile_us(0.5),
        iops: outcome.iops(),
        datagrams: datagrams.0 + datagrams.1,
    })
}

impl Price {
    fn new(pattern: LoadPattern, depth: u16, turns: &[Vec<Turn>; 2]) -> Self {
        let both = |of: fn(&Turn) -> f64| turns.each_ref().map(|it| Spread::of(it.iter().map(of)));
        let [one, all] = turns;
        let ratios = one.iter().zip(all).map(|(one, all)| all.p50_us / one.p50_us);
        Self {
            pattern,
            depth,
            p50_us: both(|turn| turn.p50_us),
            p50_ratio: Spread::of(ratios),
            iops: both(|turn| turn.iops),
            datagrams: both(|turn| turn.datagrams),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_of_the_two_turns_of_one_round() {
        let turn = |p50_us| Turn { p50_us, iops: 1e6 / p50_us, datagrams: 4.0 };
        // The machine was twice as slow in the second round: the ratio does not notice.
        let turns = [vec![turn(10.0), turn(20.0)], vec![turn(15.0), turn(30.0)]];
        let price = Price::new(LoadPattern::RandWrite, 1, &turns);
        assert_eq!(price.p50_ratio, Spread { median: 1.5, min: 1.5, max: 1.5 });
        assert_eq!(price.p50_us.map(|it| it.median), [15.0, 22.5]);
        assert_eq!(price.datagrams[1].max, 4.0);
    }
}
