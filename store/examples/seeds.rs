//! Runs the simulation of pools for as long as it is left running, and counts seeds by commit.
//!
//! `cargo run --release -p store --example seeds -- FILE [THREADS] [SECONDS]`

use std::path::PathBuf;
use std::time::Duration;

#[path = "../tests/world/mod.rs"]
mod world;

use ::seeds::Runner;
use world::plan::Plan;
use world::run;

fn main() -> std::io::Result<()> {
    let mut args = std::env::args().skip(1);
    let file = PathBuf::from(args.next().expect("the first argument is the file of the counts"));
    let mut number = || args.next().map(|text| text.parse::<u64>().expect("a number"));
    let threads = number().map(|threads| threads as usize);
    let time = number().map(Duration::from_secs);
    let tally = Runner { file, threads, time }.run(|seed| run(&Plan::of_seed(seed)))?;
    println!("{tally}");
    println!("{} blocks were written", tally.of("blocks written"));
    Ok(())
}
