//! `vrio bench compare replicas`.

use super::args::TurnArgs;
use crate::failure::CommandFailure;
use crate::results;

pub(super) const EXAMPLES: &str = "Examples:
  vrio bench compare replicas --quick                  vrio, md-raid1 over NVMe/TCP, and DRBD
  vrio bench compare replicas --contest DRBD --case 'depth 1' --rounds 9
  vrio bench compare replicas --json | jq '.cases[0].figures[] | select(.is_count)'
Each side has a guest of its own, whose image `guest/build newer` and `guest/build copies` make
(without root, nothing is installed); VRIO_GUEST names the image's directory. The hosts are network
namespaces of that guest. In an emulated guest counts are right and times are not: packets, bytes on
cables and context switches for each request are compared, and ratios of times only hint.";

/// Seconds of each turn, and with --quick: an emulated guest makes few requests a second.
const TURN_SECONDS: [f64; 2] = [5.0, 2.0];

#[derive(Debug, clap::Args)]
pub(crate) struct CompareReplicasArgs {
    #[command(flatten)]
    pub(super) turns: TurnArgs,
}

impl CompareReplicasArgs {
    /// Measures, and prints or saves the report.
    pub(super) fn run(&self) -> Result<(), CommandFailure> {
        let plan = self.turns.plan(TURN_SECONDS).map_err(CommandFailure::running)?;
        let options = compare::replicas::CopiesOptions { plan };
        options.check().map_err(CommandFailure::configuration)?;
        let report = compare::replicas::run(&options).map_err(CommandFailure::running)?;
        results::report(&report, &self.turns.told)
    }
}
