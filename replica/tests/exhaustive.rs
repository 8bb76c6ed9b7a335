//! Each order of events of small cases.

mod model;

use model::Case;
use model::world::{Budget, Plan};
use replica::Rule;
use stateright::{Checker, Model};

fn case() -> Case {
    Case {
        members: 2,
        in_sync: 2,
        plans: [vec![Plan::Write(1), Plan::Flush], vec![Plan::Write(2), Plan::Read]],
        budget: Budget { power: 1, ..Budget::default() },
        broken: None,
        ticks: 4,
    }
}

#[test]
fn two_members() {
    let checker = case().checker().threads(2).spawn_dfs().join();
    println!("{} states, {} unique, depth {}", checker.state_count(), checker.unique_state_count(), checker.max_depth());
    checker.assert_properties();
    let _ = Rule::KeepPromises;
}
