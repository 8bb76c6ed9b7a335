//! Pools in a world of bad devices, thousands of seeds: nothing acknowledged is lost.
//!
//! `STORE_SEEDS=n` runs that many (1,000 by default), `STORE_FIRST=n` starts elsewhere,
//! `STORE_SEED=n` runs one and shows the end of its history.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

mod world;

use world::plan::Plan;
use world::{Failure, Tally, run};

/// Seeds when nothing else is said.
const SEEDS: u64 = 1_000;

/// Events that must have been in so many runs.
const EVENTS: [&str; 33] = [
    "turns with segments that the log has freed",
    "kills",
    "power cuts",
    "crashes in openings",
    "clean ends",
    "rests",
    "packed pages at rest",
    "aliases at a crash",
    "aliases at rest",
    "pages of zeroes at rest",
    "pages kept for aliases at rest",
    "pages that only seemed to be the same",
    "snapshots",
    "differences",
    "differences that go on",
    "times without room",
    "ends with a tail that was hit",
    "failed engines",
    "longer devices",
    "devices that joined",
    "devices that began to leave",
    "rests without a device that left",
    "encrypted volumes",
    "changes of a wrapping key",
    "changes of a data key",
    "pages that were sealed anew",
    "shredded volumes",
    "openings without keys",
    "moments",
    "moments that went",
    "moments that came back",
    "moments that a crash took",
    "clones of moments",
];

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text} is not a number")))
}

fn run_one(seed: u64) {
    let plan = Plan { keeps_history: true, ..Plan::of_seed(seed) };
    println!("{plan:?}");
    match run(&plan) {
        Ok(tally) => println!("seed {seed} keeps the promises: {tally}"),
        Err(failure) => panic!("seed {seed}\n{failure}"),
    }
}

/// Seeds that found a fault of the store that no seed below 1,000 finds: rows of a stream that had
/// left a device completed while only a superblock under way led to them.
const OLD_FAULTS: [u64; 1] = [1_007_880];

#[test]
fn old_faults_stay_away() {
    OLD_FAULTS.into_iter().for_each(run_one);
}

#[test]
fn nothing_acknowledged_is_lost() {
    if let Some(seed) = number("STORE_SEED") {
        return run_one(seed);
    }
    let seeds = number("STORE_SEEDS").unwrap_or(SEEDS);
    let first = number("STORE_FIRST").unwrap_or(1);
    let next = AtomicU64::new(first);
    let total = Mutex::new((Tally::default(), BTreeMap::<String, Vec<(u64, Failure)>>::new()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Relaxed);
                    if seed >= first + seeds {
                        return;
                    }
                    let result = run(&Plan::of_seed(seed));
                    let mut total = total.lock().expect("nothing panics with it");
                    match result {
                        Ok(tally) => total.0.merge(&tally),
                        Err(failure) => {
                            println!("seed {seed}: {failure}");
                            let kind = failure.kind.clone();
                            total.1.entry(kind).or_default().push((seed, failure));
                        }
                    }
                }
            });
        }
    });
    let (tally, failures) = total.into_inner().expect("nothing panics with it");
    println!("{tally}");
    if failures.is_empty() && seeds >= SEEDS {
        // Rare events must not have vanished from the runs.
        for what in EVENTS {
            assert!(tally.of(what) > 0, "no {what} in {seeds} runs");
        }
    }
    let mut summary = String::new();
    for (kind, list) in &failures {
        let some: Vec<u64> = list.iter().take(10).map(|(seed, _)| *seed).collect();
        summary +=
            &format!("\n{} x {kind}: seeds {some:?}, such as: {}", list.len(), list[0].1.text);
    }
    assert!(failures.is_empty(), "of {seeds} seeds:{summary}");
}
