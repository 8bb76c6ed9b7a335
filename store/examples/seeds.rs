//! Runs the simulation of pools for as long as it is left running, and counts seeds by commit.
//!
//! `cargo run --release -p store --example seeds -- FILE [THREADS] [SECONDS]`
//!
//! FILE has a line for each commit: the commit, its seeds, and its failures. No seed is run twice:
//! a runner that is started again goes on behind all seeds of the file. FILE.failures has what
//! failed.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

#[path = "../tests/world/mod.rs"]
mod world;

use world::plan::Plan;
use world::{Tally, run};

/// Seeds of tests are below.
const FIRST_SEED: u64 = 1_000_000;

/// Seeds between two writes of the file.
const SEEDS_PER_WRITE: u64 = 200;

/// The content of the file.
#[derive(Default)]
struct Counts {
    /// Seeds and failures, by commit.
    commits: BTreeMap<String, (u64, u64)>,
    tally: Tally,
}

impl Counts {
    fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap_or_default();
        let line = |line: &str| {
            let mut words = line.split_whitespace();
            let commit = words.next()?.to_owned();
            Some((commit, (words.next()?.parse().ok()?, words.next()?.parse().ok()?)))
        };
        Self { commits: text.lines().filter_map(line).collect(), tally: Tally::default() }
    }

    fn seeds(&self) -> u64 {
        self.commits.values().map(|(seeds, _)| seeds).sum()
    }

    /// A runner that is stopped in the middle leaves the old file.
    fn write(&self, path: &Path) -> std::io::Result<()> {
        let line = |(commit, (seeds, failures)): (&String, &(u64, u64))| {
            format!("{commit} {seeds} {failures}\n")
        };
        let text: String = self.commits.iter().map(line).collect();
        let new = with_suffix(path, "new");
        fs::write(&new, text)?;
        fs::rename(new, path)
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    PathBuf::from(name)
}

/// The commit that runs, with a mark if files differ from it.
fn commit() -> String {
    let output = Command::new("git").args(["describe", "--always", "--dirty"]).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    text.ok().filter(|text| !text.is_empty()).unwrap_or_else(|| "unknown".to_owned())
}

fn main() -> std::io::Result<()> {
    let mut args = std::env::args().skip(1);
    let path = PathBuf::from(args.next().expect("the first argument is the file of the counts"));
    let number = |text: Option<String>| text.map(|text| text.parse::<u64>().expect("a number"));
    let threads = number(args.next()).unwrap_or(2);
    let seconds = number(args.next()).unwrap_or(u64::MAX / 4);
    let commit = commit();
    let counts = Counts::read(&path);
    let first = FIRST_SEED + counts.seeds();
    println!("{commit}: from seed {first} on");
    let state = Mutex::new((counts, first, 0_u64));
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while begin.elapsed() < Duration::from_secs(seconds) {
                    let seed = {
                        let mut state = state.lock().expect("nothing panics with it");
                        state.1 += 1;
                        state.1 - 1
                    };
                    let result = run(&Plan::of_seed(seed));
                    let mut state = state.lock().expect("nothing panics with it");
                    let (counts, _, done) = &mut *state;
                    let entry = counts.commits.entry(commit.clone()).or_default();
                    entry.0 += 1;
                    *done += 1;
                    match result {
                        Ok(tally) => counts.tally.merge(&tally),
                        Err(failure) => {
                            entry.1 += 1;
                            println!("seed {seed}: {failure}");
                            let failures = with_suffix(&path, "failures");
                            let file =
                                fs::OpenOptions::new().create(true).append(true).open(failures);
                            let line = format!("{commit} {seed} {failure}\n");
                            let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
                            written.expect("the file of the failures is writable");
                        }
                    }
                    if *done % SEEDS_PER_WRITE == 0 {
                        counts.write(&path).expect("the file of the counts is writable");
                    }
                }
            });
        }
    });
    let (counts, ..) = state.into_inner().expect("nothing panics with it");
    println!("{}", counts.tally);
    println!("{} blocks were written", counts.tally.of("blocks written"));
    counts.write(&path)
}
