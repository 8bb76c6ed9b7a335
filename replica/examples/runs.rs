//! Runs the world of the tests for longer than tests may.
//!
//! `cargo run --release -p replica --example runs -- seeds FILE SECONDS` runs seeds and counts them
//! by commit: FILE has a line for each commit, with its seeds and its failures, and a runner that
//! is started again goes on behind all seeds of the file.
//!
//! `cargo run --release -p replica --example runs -- states CASE SECONDS` visits the states of a
//! case (`tests/protocol/world/cases.rs`), and says how many there were.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

#[path = "../tests/protocol/world/mod.rs"]
mod world;

use world::random::{Tally, run};

/// Seeds of tests are below.
const FIRST_SEED: u64 = 1_000_000;

/// Seeds and failures by commit.
type Counts = BTreeMap<String, (u64, u64)>;

fn read(path: &str) -> Counts {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let (commit, seeds, failures) = (words.next()?, words.next()?, words.next()?);
        Some((commit.to_owned(), (seeds.parse().ok()?, failures.parse().ok()?)))
    };
    text.lines().filter_map(line).collect()
}

fn write(path: &str, counts: &Counts) -> std::io::Result<()> {
    let line = |(commit, (seeds, failures)): (&String, &(u64, u64))| {
        format!("{commit} {seeds} {failures}\n")
    };
    // A runner that is stopped in the middle leaves the old file.
    let new = format!("{path}.new");
    std::fs::write(&new, counts.iter().map(line).collect::<String>())?;
    std::fs::rename(new, path)
}

/// The commit that runs, with a mark if files differ from it.
fn commit() -> String {
    let output = Command::new("git").args(["describe", "--always", "--dirty"]).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    text.ok().filter(|text| !text.is_empty()).unwrap_or_else(|| "unknown".to_owned())
}

fn seeds(path: &str, time: Duration) -> std::io::Result<()> {
    let (commit, begin) = (commit(), Instant::now());
    let counts = read(path);
    let next = FIRST_SEED + counts.values().map(|(seeds, _)| seeds).sum::<u64>();
    println!("{commit}: from seed {next} on");
    let state = Mutex::new((counts, next, Tally::default()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while begin.elapsed() < time {
                    let seed = {
                        let mut state = state.lock().expect("nothing panics with it");
                        state.1 += 1;
                        state.1 - 1
                    };
                    let result = run(seed, None, false);
                    let mut state = state.lock().expect("nothing panics with it");
                    let entry = state.0.entry(commit.clone()).or_default();
                    entry.0 += 1;
                    match result {
                        Ok(tally) => state.2.merge(&tally),
                        Err(failure) => {
                            entry.1 += 1;
                            println!("seed {seed}: {failure}");
                        }
                    }
                    if seed % 1000 == 0 {
                        write(path, &state.0).expect("the file of the counts is writable");
                    }
                }
            });
        }
    });
    let (counts, _, tally) = state.into_inner().expect("nothing panics with it");
    println!("{tally}");
    println!("{} requests ended", tally.of("requests that ended"));
    write(path, &counts)
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
