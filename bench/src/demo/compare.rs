//! The same disk with its volume on the VMhost itself and on the IOhost, measured in turn.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use crate::measure::{Bench, Load, REQUEST_BYTES, Speed, Waiting, median};

use super::machine::cores;
use super::progress::Progress;
use super::stage::VOLUME_MIB;

/// Times that each side is measured, in turn.
const ROUNDS: usize = 3;

/// How long each time.
const EACH: Duration = Duration::from_millis(300);

/// A polling driver needs a core besides those of two sidecores and of everything else.
const POLLING_CORES_MIN: usize = 4;

/// One load on both disks.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
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
    /// Whether the driver polled; else it slept until it was called.
    pub driver_polls: bool,
    /// The loads.
    pub rows: Vec<Row>,
}

/// Measures both disks. They are overwritten.
///
/// # Errors
/// When a request fails.
pub(super) fn compare(near: &Path, far: &Path, progress: &Progress) -> Result<Comparison> {
    let driver_polls = cores().len() >= POLLING_CORES_MIN;
    let waiting = if driver_polls { Waiting::Polls } else { Waiting::Sleeps };
    let blocks = (VOLUME_MIB << 20) / u64::from(REQUEST_BYTES);
    progress.doing("filling the two disks that are measured");
    let mut near = Bench::connect(near, blocks, waiting)?;
    let mut far = Bench::connect(far, blocks, waiting)?;
    near.fill()?;
    far.fill()?;
    let mut rows = Vec::new();
    for (op, write) in [("read", false), ("write", true)] {
        for depth in [1, 32] {
            let load = Load { write, depth, duration: EACH };
            progress.doing(format!("measuring: random {op}s at depth {depth}, local and remote"));
            rows.push(row(op, load, &mut near, &mut far)?);
        }
    }
    progress.done("measured the same disk local and remote, in turn");
    Ok(Comparison { request_bytes: REQUEST_BYTES, driver_polls, rows })
}

fn row(op: &'static str, load: Load, near: &mut Bench, far: &mut Bench) -> Result<Row> {
    let (mut local, mut remote) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        local.push(near.run(load)?);
        remote.push(far.run(load)?);
    }
    let (local, remote) = (median(&local), median(&remote));
    Ok(Row {
        op,
        depth: load.depth,
        local,
        remote,
        iops_ratio: remote.iops / local.iops,
        p50_ratio: remote.p50_us / local.p50_us,
    })
}
