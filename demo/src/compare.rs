//! The same disk with its volume on the VMhost itself and on the IOhost, measured in turn.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use bench::load::{Load, LoadOutcome, LoadPattern};
use bench::measure::{DriverPlan, MeasuredDisks, WaitMode};
use testbed::machine::cores;
use testbed::progress::Progress;

use super::scene::VOLUME_MIB;

/// Times that each side is measured, in turn.
const ROUNDS: usize = 3;

/// Seconds of each measurement.
const EACH: Duration = Duration::from_millis(300);

/// Bytes of each request: a page, as file systems and databases ask for.
const REQUEST_BYTES: u32 = 4096;

/// A polling driver needs a core besides those of two sidecores and of everything else.
const POLLING_CORES_MIN: usize = 4;

/// The figures of one run, or the medians of some.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Speed {
    /// Requests per second.
    pub iops: f64,
    /// The median latency in microseconds.
    pub p50_us: f64,
    /// The latency in microseconds that 1 % of the requests exceed.
    pub p99_us: f64,
}

impl From<LoadOutcome> for Speed {
    fn from(outcome: LoadOutcome) -> Self {
        Self {
            iops: outcome.iops(),
            p50_us: outcome.quantile_us(0.5),
            p99_us: outcome.quantile_us(0.99),
        }
    }
}

/// One load on both disks.
#[derive(Clone, Debug, Serialize)]
pub struct LoadRow {
    /// Reads or writes.
    pub op: &'static str,
    /// Requests outstanding.
    pub depth: u16,
    /// The volume is on the VMhost.
    pub local: Speed,
    /// The volume is on the IOhost.
    pub remote: Speed,
    /// Remote throughput divided by local.
    pub iops_ratio: f64,
    /// Remote median latency divided by local.
    pub p50_ratio: f64,
}

/// The comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Bytes of each request.
    pub request_bytes: u32,
    /// Whether the driver polled; else it slept until an interrupt.
    pub driver_polls: bool,
    /// The loads.
    pub rows: Vec<LoadRow>,
}

/// Measures both disks. They are overwritten.
///
/// # Errors
/// When a request fails.
pub(super) fn compare(near: &Path, far: &Path, progress: &Progress) -> Result<Comparison> {
    let has_room = cores().len() >= POLLING_CORES_MIN;
    let waiting = if has_room { WaitMode::Polls } else { WaitMode::Sleeps };
    let plan =
        |socket| DriverPlan { waiting, size_bytes: REQUEST_BYTES, ..DriverPlan::new(socket) };
    progress.doing("filling the two disks that are measured");
    let bytes = Some(VOLUME_MIB << 20);
    let mut near = MeasuredDisks::connect(&plan(near), bytes)?;
    let mut far = MeasuredDisks::connect(&plan(far), bytes)?;
    near.fill()?;
    far.fill()?;
    let mut rows = Vec::new();
    for (op, pattern) in [("read", LoadPattern::RandRead), ("write", LoadPattern::RandWrite)] {
        for depth in [1, 32] {
            let load = Load { pattern, depth, duration: EACH, interval: None };
            progress.doing(format!("measuring: random {op}s at depth {depth}, local and remote"));
            rows.push(row(op, load, &mut near, &mut far)?);
        }
    }
    progress.done("measured the same disk local and remote, in turn");
    let driver_polls = waiting == WaitMode::Polls;
    Ok(Comparison { request_bytes: REQUEST_BYTES, driver_polls, rows })
}

fn row(
    op: &'static str,
    load: Load,
    near: &mut MeasuredDisks,
    far: &mut MeasuredDisks,
) -> Result<LoadRow> {
    let (mut local, mut remote) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        local.push(near.run(load)?.into());
        remote.push(far.run(load)?.into());
    }
    let (local, remote) = (median(&local), median(&remote));
    Ok(LoadRow {
        op,
        depth: load.depth,
        local,
        remote,
        iops_ratio: remote.iops / local.iops,
        p50_ratio: remote.p50_us / local.p50_us,
    })
}

/// The medians of some runs, for each figure by itself.
fn median(runs: &[Speed]) -> Speed {
    let middle = |number: fn(&Speed) -> f64| {
        let mut numbers: Vec<_> = runs.iter().map(number).collect();
        numbers.sort_by(f64::total_cmp);
        numbers[numbers.len() / 2]
    };
    Speed {
        iops: middle(|run| run.iops),
        p50_us: middle(|run| run.p50_us),
        p99_us: middle(|run| run.p99_us),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_taken_of_each_number() {
        let speed = |iops, p50_us, p99_us| Speed { iops, p50_us, p99_us };
        let middle = median(&[speed(3.0, 1.0, 9.0), speed(1.0, 5.0, 7.0), speed(2.0, 3.0, 8.0)]);
        assert_eq!((middle.iops, middle.p50_us, middle.p99_us), (2.0, 3.0, 8.0));
    }
}
