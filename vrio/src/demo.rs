//! `vrio demo`.

use std::path::PathBuf;

use ::demo::DemoOptions;
use anyhow::Context;

use crate::failure::CommandFailure;
use crate::{mpi, output};

#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {
    /// Use a stand-in for a guest, which needs neither root nor QEMU.
    #[arg(long)]
    no_guest: bool,
    /// Keep logs, configurations and the guest's console in this directory.
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Print the outcome as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the demo and prints its outcome.
pub(crate) fn demo(args: &DemoArgs) -> Result<(), CommandFailure> {
    let program = std::env::current_exe().context("finding this program");
    let program = program.map_err(CommandFailure::running)?;
    let options = DemoOptions {
        provider: mpi::provider(&program).map_err(|why| why.to_string()),
        program,
        guest: !args.no_guest,
        keep: args.keep.clone(),
    };
    let report = ::demo::run(&options).map_err(CommandFailure::running)?;
    if args.json {
        let json = serde_json::to_string_pretty(&report).context("the report as JSON");
        return output::print(&format!("{}\n", json.map_err(CommandFailure::running)?));
    }
    output::print(&format!("\n{report}"))
}
