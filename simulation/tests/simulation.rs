//! The whole block path under simulation, thousands of seeds: nothing acknowledged is lost.
//!
//! `SIM_SEEDS=n` runs that many (500 by default), `SIM_FIRST=n` starts elsewhere, `SIM_SEED=n`
//! replays one and shows its history's end. `make sim SEED=n` does the same.

use seeds::Seeds;
use simulation::{SimFailure, SimulationReport, run};

/// Requests of one seed.
const OPERATIONS: u64 = 400;

/// Seeds when nothing else is said; CI asks for more.
const SEEDS: u64 = 500;

/// Panics inside a run are failures of its seed, too.
fn run_caught(seed: u64) -> Result<SimulationReport, SimFailure> {
    let result = std::panic::catch_unwind(|| run(seed, OPERATIONS));
    result.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text");
        let why = format!("panicked: {text}");
        Err(SimFailure { seed, now_ns: 0, why, history: Vec::new() })
    })
}

#[test]
fn nothing_acknowledged_is_lost() {
    let asked = Seeds::of("SIM", SEEDS);
    if let Some(seed) = asked.only {
        match run(seed, OPERATIONS) {
            Ok(report) => println!("seed {seed} keeps the promise\n{report}"),
            Err(failure) => panic!("{failure}"),
        }
        return;
    }
    let (report, failures) = asked.run(run_caught, SimulationReport::add);
    let seeds = asked.count;
    println!("{report}");
    assert!(failures.is_empty(), "{} of {seeds} seeds broke the promise", failures.len());
    // Rare events must not have vanished from the runs.
    assert!(report.has_frames(), "no frames passed");
    assert!(seeds < SEEDS || report.killed_between > 0, "no queue was between two sidecores");
    let elsewhere = [report.migrated, report.started_elsewhere, report.returned];
    assert!(seeds < SEEDS || elsewhere.iter().all(|count| *count > 0), "no guest went elsewhere");
    let in_the_middle = [report.put_off, report.interrupted];
    let all_met = in_the_middle.iter().all(|count| *count > 0);
    assert!(seeds < SEEDS || all_met, "no IOhost died in the middle of what is encrypted");
}
