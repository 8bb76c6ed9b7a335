//! `vrio bench block`: the throughput, latency and cost of a disk, by one of the ways to it.
//!
//! ```text
//!   local    driver ═ virtqueue ═ VMhost ─ volume
//!   remote   driver ═ virtqueue ═ VMhost ═ session ═ IOhost ─ volume
//!   direct                   client of the bench ═ session ═ IOhost ─ volume
//!   socket   driver ═ virtqueue ═ the server of that socket
//!   bare     generator of the bench ─ volume, on one thread
//! ```
//!
//! Nodes are `vrio node` processes as a user would start them; the driver is a thread of this
//! process.

mod direct;
pub mod floor;
mod options;
mod place;
mod pool;
pub(crate) mod report;
pub(crate) mod results;

use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::load::{Load, LoadOutcome};
use testbed::cleanup::{Cleanup, tidily};
use testbed::events::{Events, Side};
use testbed::machine::{Machine, cache_line_round_trip_ns};
use testbed::pair::RoleCores;
use testbed::progress::Progress;

use place::BlockSetup;

pub use options::as_text;
pub use options::{
    BlockOptions, ChainStage, DEPTH_MAX, GUESTS_MAX, JOBS_MAX, Path, SIZE_BYTES_MAX, Volume, stages,
};
pub(crate) use place::{ShownDisks, start_nodes};
pub use pool::{make as make_pool, snapshot as snapshot_pool};
pub use report::{BlockReport, Latency};
pub use testbed::pair::LinkKind;

/// The time before anything is counted: caches, round trips and clocks settle.
pub const WARM_UP: Duration = Duration::from_millis(300);

/// Processor time of all threads of a process so far.
pub fn processor_time(pid: u32) -> Result<Duration> {
    Ok(Side::of_process(pid)?.cpu())
}

/// Whether each busy thread of a measurement has a core to itself.
pub fn has_seats(options: &BlockOptions) -> bool {
    options.seats() != RoleCores::default()
}

/// Measures once. The progress goes to standard error, if that is a terminal.
///
/// # Errors
/// When the options cannot be measured, or a node, the disk or a request fails meanwhile.
pub fn run(options: &BlockOptions) -> Result<BlockReport> {
    let progress = Progress::quiet();
    tidily(&progress, |cleanup| measure(options, cleanup, &progress))
}

/// Measures a disk in a pool that has room, then one in a pool that collects: the second report is
/// in the first one.
///
/// # Errors
/// As [`run`].
pub fn run_collecting(options: &BlockOptions) -> Result<BlockReport> {
    let progress = Progress::quiet();
    let collects = BlockOptions { collects: true, ..options.clone() };
    tidily(&progress, |cleanup| {
        let mut report = measure(options, cleanup, &progress)?;
        report.collecting = Some(Box::new(measure(&collects, cleanup, &progress)?));
        Ok(report)
    })
}

/// The same as a part of a longer measurement.
pub fn measure(
    options: &BlockOptions,
    cleanup: &Cleanup,
    progress: &Progress,
) -> Result<BlockReport> {
    let [report] = measure_depths(options, [options.depth], cleanup, progress)?;
    Ok(report)
}

/// The same of one disk, with each of these numbers of requests outstanding, one measurement after
/// the other.
pub(crate) fn measure_depths<const N: usize>(
    options: &BlockOptions,
    depths: [u16; N],
    cleanup: &Cleanup,
    progress: &Progress,
) -> Result<[BlockReport; N]> {
    options.check()?;
    let deepest = depths.into_iter().fold(options.depth, u16::max);
    let options = &BlockOptions { depth: deepest, ..options.clone() };
    progress.doing("starting what is measured");
    let mut place = BlockSetup::start(options, cleanup, progress)?;
    let measured = (|| -> Result<Vec<BlockReport>> {
        progress.doing("warming up");
        if options.volume != Volume::Null && !options.filled {
            // Reads of blocks that were never written would cost nothing.
            place.fill()?;
        }
        if options.collects {
            progress.doing("writing until the pool collects");
            pool::churn(options, &mut place)?;
        }
        depths.into_iter().map(|depth| measure_once(options, depth, &mut place, progress)).collect()
    })();
    let stopped = place.stop();
    let reports = measured.context("measuring")?;
    stopped.context("stopping what was measured")?;
    Ok(reports.try_into().expect("a report of each depth"))
}

fn measure_once(
    options: &BlockOptions,
    depth: u16,
    place: &mut BlockSetup,
    progress: &Progress,
) -> Result<BlockReport> {
    let options = &BlockOptions { depth, ..options.clone() };
    let load = options.load(depth);
    place.run(Load { duration: WARM_UP, ..load })?;
    let rtt_before_ns = cache_line_round_trip_ns();
    let before = place.look()?;
    progress.doing(format!("measuring for {} s", options.seconds));
    let outcome = place.run(load)?;
    let events = place.look()?.since(&before);
    let rtts_ns = [rtt_before_ns, cache_line_round_trip_ns()];
    check(options, &outcome, &events)?;
    Ok(BlockReport::new(options, place.network(), &outcome, &events, rtts_ns, Machine::look()))
}

fn check(options: &BlockOptions, outcome: &LoadOutcome, events: &Events) -> Result<()> {
    if options.has_sessions() {
        options.meeting().check_way(events)?;
    }
    if outcome.requests() == 0 {
        bail!("not one request was completed in this time: measure for longer");
    }
    Ok(())
}
