//! Each order of events of small cases.

use std::time::Duration;

use replica::Rule;

use crate::world::cases::{named, of_rule};
use crate::world::model::explore;

/// Ends a search that hangs; no case of these tests comes near it.
const TIME: Duration = Duration::from_secs(1000);

#[test]
fn small_cases_keep_the_promises() {
    for name in [
        "small",
        "delays",
        "joins",
        "claims",
        "stops",
        "joins and stops",
        "proofs",
        "proofs and stops",
        "recoveries",
        "recoveries and restarts",
        "snapshots",
        "damages",
        "damages and joins",
        "scrubs",
        "scrubs and damages",
        "slow scrubs",
    ] {
        let case = named(name).expect("it is a case");
        assert_eq!(explore(name, case, TIME), (true, vec![]), "{name}");
    }
}

/// Rules whose breach takes more states than a test may visit: the runner of `examples/` takes
/// their names. `take_over.rs` has one order of events for the first, `recovery.rs` for each of the
/// last five.
const LARGE: [Rule; 10] = [
    Rule::HalfEqualMembersGoBack,
    Rule::AnswersOfOneAdmission,
    Rule::EqualTails,
    Rule::AdmittedWithAll,
    Rule::FillsAreTail,
    Rule::FillsAreMarked,
    Rule::RemadeReignsLetLeasesEnd,
    Rule::AttemptsAreUnheard,
    Rule::OlderPrimariesMayGoOn,
    Rule::OlderCopiesByEpoch,
];

#[test]
fn broken_rules_are_found_in_all_states() {
    let mut missed: Vec<Rule> = Rule::ALL.to_vec();
    missed.retain(|rule| !LARGE.contains(rule));
    missed.retain(|rule| explore(&format!("{rule:?}"), of_rule(*rule), TIME).1.is_empty());
    assert!(missed.is_empty(), "no state shows {missed:?}");
}
