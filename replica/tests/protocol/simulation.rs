//! Members in a world of faults, thousands of seeds: one order of all reads and writes, nothing
//! flushed is lost, and when faults end the volume is served again.
//!
//! `REPLICA_SEEDS=n` runs that many, `REPLICA_FIRST=n` starts elsewhere, `REPLICA_SEED=n` runs one
//! and prints each step.

use replica::Rule;
use seeds::{Seeds, Tally};

use crate::world::random::run;

/// Seeds when nothing else is said.
const SEEDS: u64 = 2_000;

/// Events that must have been in so many runs.
const EVENTS: [&str; 34] = [
    "ways back to own cuts",
    "swaps without an answer",
    "delays",
    "late deliveries",
    "clients that went",
    "clients that were forgotten",
    "kills",
    "losses of power",
    "stops in order",
    "starts after a stop",
    "proved ends",
    "lost disks",
    "damaged sectors",
    "mended blocks",
    "lies of devices",
    "scrubs",
    "blocks that scrubs have named",
    "reads without content",
    "pauses",
    "cuts",
    "times without registry",
    "old registries",
    "rebuilt registries",
    "lost records",
    "surveys",
    "recoveries",
    "recoveries with a loss",
    "old records",
    "moves",
    "evictions",
    "changes of the record",
    "incarnations",
    "requests that ended",
    "snapshots",
];

#[test]
fn promises_hold_under_all_faults() {
    let asked = Seeds::of("REPLICA", SEEDS);
    if let Some(seed) = asked.only {
        match run(seed, None, true) {
            Ok(tally) => println!("seed {seed} keeps the promises: {tally}"),
            Err(failure) => panic!("seed {seed}: {failure}"),
        }
        return;
    }
    let (tally, failures) = asked.run(|seed| run(seed, None, false), Tally::merge);
    let seeds = asked.count;
    println!("{tally}");
    if failures.is_empty() && seeds >= SEEDS {
        // Rare events must not have vanished from the runs.
        for what in EVENTS {
            assert!(tally.of(what) > 0, "no {what} in {seeds} runs");
        }
    }
    let some: Vec<_> = failures.iter().take(10).collect();
    assert!(failures.is_empty(), "{} of {seeds} seeds fail: {some:#?}", failures.len());
}

/// Rules whose breach needs few events. `exhaustive.rs` finds the breach of each rule.
const RULES: [Rule; 10] = [
    Rule::EqualTails,
    Rule::NewerRecordsOnly,
    Rule::RestartIsLoss,
    Rule::OnlyMembersInSyncServe,
    Rule::ReadsNeedLeases,
    Rule::LeasesCountFromSending,
    Rule::UnknownSwapsMayHaveHappened,
    Rule::RegistryNeverGoesBack,
    Rule::ProofsAreOfNow,
    Rule::RepairsAreOfNow,
];

/// Seeds that are tried for a rule.
const SEEDS_OF_A_RULE: u64 = 3_000;

#[test]
fn broken_rules_are_found_by_seeds() {
    let mut missed: Vec<Rule> = RULES.to_vec();
    missed.retain(|rule| {
        let found = (1..=SEEDS_OF_A_RULE)
            .find_map(|seed| run(seed, Some(*rule), false).err().map(|failure| (seed, failure)));
        println!("{rule:?}: {found:?}");
        found.is_none()
    });
    assert!(missed.is_empty(), "no seed finds {missed:?}");
}
