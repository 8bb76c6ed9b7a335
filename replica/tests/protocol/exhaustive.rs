//! Each order of events of small cases.

use std::time::{Duration, Instant};

use replica::Rule;
use stateright::{Checker, HasDiscoveries, Model};

use crate::world::Case;
use crate::world::cases::{named, of_rule};
use crate::world::model::Explored;

/// Ends a search that hangs; no case of these tests comes near it.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Visits all states, and gives the names of the promises that are broken.
fn explore(name: &str, case: Case) -> Vec<&'static str> {
    let begin = Instant::now();
    let checker = Explored::new(case)
        .checker()
        .threads(2)
        .timeout(TIMEOUT)
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_dfs()
        .join();
    println!(
        "{name}: {} states, {} different ones, depth {}, {:.1} s",
        checker.state_count(),
        checker.unique_state_count(),
        checker.max_depth(),
        begin.elapsed().as_secs_f64()
    );
    let found = checker.discoveries();
    for (promise, path) in &found {
        let world = path.last_state();
        println!("not kept: {promise}: {:?}", world.broken);
        for action in path.clone().into_actions() {
            println!("    {action:?}");
        }
    }
    //assert!(begin.elapsed() < TIMEOUT, "{name} did not end");
    found.into_keys().collect()
}

#[test]
fn two_members_keep_the_promises() {
    for name in ["small", "delays"] {
        let case = named(name).expect("it is a case");
        assert!(explore(name, case).is_empty(), "{name}");
    }
}

#[test]
fn each_broken_rule_is_found() {
    let only = std::env::var("ONLY").ok();
    let missed: Vec<Rule> = Rule::ALL
        .into_iter()
        .filter(|rule| only.as_ref().is_none_or(|only| format!("{rule:?}") == *only))
        .filter(|rule| explore(&format!("{rule:?}"), of_rule(*rule)).is_empty())
        .collect();
    assert!(missed.is_empty(), "no state shows {missed:?}");
}
