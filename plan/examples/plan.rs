//! `vrio plan` without the rest of vrio: the same arguments, the same output.

use std::process::ExitCode;

use clap::Parser;
use plan::command::{PLAN_EXAMPLES, PlanCommand};

#[derive(Debug, Parser)]
#[command(name = "plan", after_help = PLAN_EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: PlanCommand,
}

fn main() -> ExitCode {
    match Cli::parse().command.run() {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(fault) => {
            eprintln!("plan: {fault}");
            ExitCode::from(2)
        }
    }
}
