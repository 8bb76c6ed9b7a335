//! Runs the world of the tests for longer than tests may.
//!
//! `cargo run --release -p replica --example runs -- seeds FILE SECONDS` runs seeds and counts them
//! by commit in FILE; a runner that is started again goes on behind all seeds of the file.
//!
//! `cargo run --release -p replica --example runs -- states CASE SECONDS` visits the states of a
//! case (`tests/protocol/world/cases.rs`), and says how many there were.

use std::time::Duration;

#[path = "../tests/protocol/world/mod.rs"]
mod world;

use ::seeds::Runner;
use world::random::run;

fn seeds(file: &str, time: Duration) -> std::io::Result<()> {
    let runner = Runner { file: file.into(), threads: None, time: Some(time) };
    let tally = runner.run(|seed| run(seed, None, false))?;
    println!("{tally}");
    println!("{} requests ended", tally.of("requests that ended"));
    Ok(())
}

fn main() -> std::io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [what, name, time] = args.as_slice() else {
        panic!("the arguments are: seeds FILE SECONDS, or: states CASE SECONDS");
    };
    let time = Duration::from_secs(time.parse().expect("SECONDS is a number"));
    match what.as_str() {
        "seeds" => seeds(name, time)?,
        "states" => {
            let case = world::cases::named(name).expect("CASE is one of cases.rs");
            let (is_all, broken) = world::model::explore(name, case, time);
            println!("all states: {is_all}; broken: {broken:?}");
        }
        other => panic!("{other} is neither seeds nor states"),
    }
    Ok(())
}
