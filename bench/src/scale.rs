//! `vrio bench scale`: the effect of more sidecores, queues and guests on a node's throughput, and
//! on the cost of a request.
//!
//! The first series serves one disk with many queues by more and more sidecores. The second one
//! serves more and more guests by a fixed number of sidecores. Where there is a core for every busy
//! thread, throughput shows how far a node scales. Elsewhere it cannot: then the events and the
//! processor time of a request show that no cost grows with the number of sidecores and guests.

mod results;

use std::fmt;
use std::path::PathBuf;

use anyhow::Result;
use serde::Serialize;
use sidecore::Idle;

use crate::block::{self, BlockReport, Volume};
use crate::verdict::{self, Spread};
use testbed::cleanup::{Cleanup, tidily};
use testbed::machine::{Machine, cores};
use testbed::progress::Progress;

/// The version of the JSON form.
const SCALE_VERSION: u32 = 1;

/// Queues of the one disk: more than the sidecores of most nodes.
const QUEUES: u16 = 8;

/// Guests of the second series.
const GUESTS: [u16; 6] = [1, 2, 4, 8, 16, 32];

/// The options of `vrio bench scale`.
#[derive(Clone, Debug, Serialize)]
pub struct ScaleOptions {
    /// The `vrio` program.
    #[serde(skip)]
    pub program: PathBuf,
    /// The volumes behind the disks: null or memory.
    pub volume: Volume,
    /// Requests outstanding of each queue.
    pub depth: u16,
    /// How long each point is measured.
    pub seconds: f64,
}

impl ScaleOptions {
    /// Looks whether the options make sense.
    ///
    /// # Errors
    /// The option that makes no sense.
    pub fn check(&self) -> Result<()> {
        self.point(1, GUESTS[1], 1).check()
    }

    /// The options of one measurement: sidecores spin where each busy thread has a core.
    fn point(&self, sidecores: u16, guests: u16, jobs: u16) -> block::BlockOptions {
        let mut asked = block::BlockOptions {
            volume: self.volume.clone(),
            depth: self.depth,
            seconds: self.seconds,
            guests,
            jobs,
            sidecores,
            ..block::BlockOptions::new(self.program.clone())
        };
        if block::has_seats(&asked) {
            asked.idle = Idle::Spin;
        }
        asked
    }
}

/// A measurement of a series.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// Sidecores of the node.
    pub sidecores: u16,
    /// Disks.
    pub guests: u16,
    /// Queues of each disk.
    pub queues: u16,
    /// Whether each busy thread had a core to itself: only then IOPS say anything.
    pub seated: bool,
    /// The result.
    pub report: BlockReport,
}

/// Measurements in which one thing grows.
#[derive(Clone, Debug, Serialize)]
pub struct Series {
    /// The number that grows.
    pub name: &'static str,
    /// The measurements, from the smallest number to the largest.
    pub points: Vec<Point>,
}

/// Everything that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Scale {
    /// The version of this form.
    pub version: u32,
    /// The options of this run.
    pub asked: ScaleOptions,
    /// The series.
    pub series: Vec<Series>,
    /// The machine.
    pub machine: Machine,
}

/// Measures all points. The progress goes to standard error, if that is a terminal.
///
/// # Errors
/// When a point cannot be measured.
pub fn run(options: &ScaleOptions) -> Result<Scale> {
    let progress = Progress::quiet();
    let series = tidily(&progress, |cleanup| all(options, cleanup, &progress))?;
    let (asked, machine) = (options.clone(), Machine::look());
    Ok(Scale { version: SCALE_VERSION, asked, series, machine })
}

fn all(options: &ScaleOptions, cleanup: &Cleanup, progress: &Progress) -> Result<Vec<Series>> {
    let sidecores = sidecores(cores().len());
    // Half of the cores serve guests; the guests' driver has the others.
    let serving = (cores().len() as u16 / 2).max(1);
    let plans = [
        (
            "one disk with many queues, more sidecores",
            sidecores.into_iter().map(|count| options.point(count, 1, QUEUES)).collect::<Vec<_>>(),
        ),
        (
            "more guests than sidecores",
            GUESTS.into_iter().map(|guests| options.point(serving, guests, 1)).collect(),
        ),
    ];
    let series = plans.into_iter().map(|(name, plans)| {
        let points = plans.into_iter().map(|asked| {
            let (sidecores, guests, queues) = (asked.sidecores, asked.guests, asked.jobs);
            progress.doing(format!("{name}: {sidecores} sidecores, {guests} guests"));
            let report = block::measure(&asked, cleanup, &Progress::silent())?;
            let seated = block::has_seats(&asked);
            Ok(Point { sidecores, guests, queues, seated, report })
        });
        Ok(Series { name, points: points.collect::<Result<_>>()? })
    });
    series.collect()
}

/// One, two, four and so on, as long as the driver keeps a core; two in any case.
fn sidecores(cores: usize) -> Vec<u16> {
    let most = cores.saturating_sub(1).clamp(2, usize::from(QUEUES));
    [1, 2, 4, QUEUES].into_iter().filter(|count| usize::from(*count) <= most).collect()
}

impl Point {
    /// A role's processor time for each request, in microseconds.
    fn cpu_us(&self, role: &str) -> f64 {
        let time = self.report.cpu_s.get(role).copied().flatten();
        time.unwrap_or(0.0) * 1e6 / self.report.requests as f64
    }

    fn event(&self, name: &str) -> f64 {
        self.report.events_per_request.get(name).copied().unwrap_or(0.0)
    }
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ScaleOptions { volume, depth, seconds, .. } = &self.asked;
        writeln!(f, "{volume} volumes, randread of 4 KiB, depth {depth} of each queue")?;
        for series in &self.series {
            writeln!(f, "\n{}", series.name)?;
            writeln!(
                f,
                "  {:>9}{:>8}{:>8}{:>12}{:>8}{:>12}{:>12}{:>9}{:>10}{:>9}",
                "sidecores",
                "guests",
                "queues",
                "IOPS",
                "ratio",
                "node us/rq",
                "driver us",
                "kicks",
                "wake-ups",
                "syscalls"
            )?;
            let first = series.points.first().map_or(1.0, |point| point.report.iops);
            for point in &series.points {
                writeln!(
                    f,
                    "  {:>9}{:>8}{:>8}{:>12.0}{:>8.2}{:>12.3}{:>12.3}{:>9.4}{:>10.4}{:>9.4}{}",
                    point.sidecores,
                    point.guests,
                    point.queues,
                    point.report.iops,
                    point.report.iops / first,
                    point.cpu_us("vmhost"),
                    point.cpu_us("driver"),
                    point.event("kicks"),
                    point.event("vmhost_wakeups"),
                    point.event("vmhost_system_calls"),
                    if point.seated { "" } else { "  cores are SHARED" }
                )?;
            }
        }
        let trips = self.series.iter().flat_map(|series| &series.points);
        let trips = trips.filter_map(|point| point.report.cache_line_rtt_ns);
        let trips = verdict::said_of(trips.map(|ns| Spread::of([ns as f64])));
        let Machine { cores, processor, kernel, .. } = &self.machine;
        let build = self.machine.build();
        let slow = if self.machine.optimised { "" } else { "; NOT OPTIMISED: build --release" };
        writeln!(
            f,
            "\n{cores} cores, {processor}, Linux {kernel}; {trips}; {seconds} s each; vrio \
             {build}{slow}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_keeps_a_core() {
        assert_eq!(sidecores(1), [1, 2]);
        assert_eq!(sidecores(2), [1, 2]);
        assert_eq!(sidecores(4), [1, 2]);
        assert_eq!(sidecores(5), [1, 2, 4]);
        assert_eq!(sidecores(64), [1, 2, 4, 8]);
    }
}
