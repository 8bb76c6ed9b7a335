//! `vrio bench replicas`: the price of copies of a volume, and the pauses of a guest when a node
//! with a copy goes.
//!
//! ```text
//!   one copy     driver ═ virtqueue ═ VMhost ═ session ═ IOhost ─ pool
//!   n copies     driver ═ virtqueue ═ VMhost ═ session ═ primary ─ pool
//!                                                          ╚═ session ═ backup ─ pool
//! ```
//!
//! First both volumes are measured in turn. Then a checked guest works on a third volume while
//! nodes go and come, and each event is repeated. A request that fails is an error, and so is data
//! that the guest did not write.

mod events;
mod options;
mod prices;
mod rack;
mod report;
mod results;

use anyhow::{Context, Result};
use random::Random;
use testbed::cleanup::{Cleanup, tidily};
use testbed::machine::Machine;
use testbed::progress::Progress;

use crate::pace;

use rack::BenchRack;

pub use events::EventPauses;
pub use options::{BenchRegistry, ReplicaEvent, ReplicasOptions};
pub use prices::Price;
pub use report::ReplicasReport;

/// Measures. The progress goes to standard error.
///
/// # Errors
/// When the options make no sense, a request fails, data is lost, or a node does not start.
pub fn run(options: &ReplicasOptions) -> Result<ReplicasReport> {
    options.check()?;
    let progress = Progress::new();
    tidily(&progress, |cleanup| measure(options, cleanup, &progress))
}

fn measure(
    options: &ReplicasOptions,
    cleanup: &Cleanup,
    progress: &Progress,
) -> Result<ReplicasReport> {
    progress.done(pace::announced(options.takes()));
    let machine = Machine::look();
    let mut nodes = BenchRack::start(options, cleanup, progress)?;
    let prices = match options.seconds {
        0.0 => Vec::new(),
        _ => prices::measure(options, &mut nodes, progress).context("measuring requests")?,
    };
    let mut random = Random::new(u64::from(std::process::id()));
    let (pauses, counts) = match &options.events[..] {
        [] => Default::default(),
        _ => events::happen(options, &mut nodes, &mut random, progress)?,
    };
    nodes.vm.stop().context("stopping the VMhost")?;
    for node in nodes.members.into_iter().flatten() {
        node.stop().context("stopping an IOhost")?;
    }
    Ok(ReplicasReport::new(options, nodes.network, prices, pauses, counts, machine))
}
