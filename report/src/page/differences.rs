//! Differences between runs, so that no comparison is silent about them.

use std::collections::{BTreeMap, BTreeSet};

use results::{Run, RunOrigin};

use super::group::{Group, capital};
use super::said::own;
use crate::compare::{self, ComparedSide};

/// The differences of set-ups that are listed in full.
const SETUPS_MAX: usize = 4;

fn quoted(run: &Run) -> String {
    format!("“{}”", run.title)
}

fn sentences(found: Vec<String>) -> Vec<String> {
    found.into_iter().map(|words| capital(&words) + ".").collect()
}

/// A sentence for each difference of these runs; none if all are equal, or there is only one run.
pub(super) fn between(runs: &[&Run]) -> Vec<String> {
    let names: Vec<String> = runs.iter().map(|run| quoted(run)).collect();
    let named = runs.iter().zip(&names);
    let sides: Vec<ComparedSide<'_>> =
        named.map(|(run, name)| ComparedSide { name, run: Some(run), measurement: None }).collect();
    sentences(compare::differences(&sides))
}

/// All differences, or only their keys, if the list would be longer than the plot is high.
fn few_setups(setups: Vec<String>) -> Vec<String> {
    if setups.len() <= SETUPS_MAX {
        return setups;
    }
    let keys: BTreeSet<&str> = setups.iter().filter_map(|words| words.split(": ").next()).collect();
    let count = keys.len();
    let keys: Vec<&str> = keys.into_iter().collect();
    let keys = keys.join(", ").replace('_', " ");
    vec![format!("set-ups differ in {count} things ({keys}): each is at the page's end")]
}

/// The differences between the measurements of a plot. Within a run set-ups differ on purpose, and
/// names tell the difference. Differences between runs are told of measurements with one title, or,
/// where no two runs share a title, of all measurements.
pub(super) fn of_group(group: &Group<'_>) -> Vec<String> {
    let own = own(group);
    let runs = own.iter().filter_map(|item| Some((item.measurement, item.run?)));
    let runs: Vec<_> = runs.map(|(measurement, run)| (measurement, run, quoted(run))).collect();
    let sides: Vec<ComparedSide<'_>> = runs
        .iter()
        .map(|(measurement, run, name)| ComparedSide {
            name,
            run: Some(run),
            measurement: Some(measurement),
        })
        .collect();
    // A plan has no machine that could differ.
    let measured: Vec<ComparedSide<'_>> = sides
        .iter()
        .filter(|side| side.measurement.is_some_and(|it| it.origin != RunOrigin::Planned))
        .copied()
        .collect();
    let mut found = compare::conditions(&measured);
    let mut by_title: BTreeMap<&str, Vec<ComparedSide<'_>>> = BTreeMap::new();
    for (side, (measurement, ..)) in sides.iter().zip(&runs) {
        // The run's own words come before the words that set its measurements apart.
        let title = measurement.title.rsplit(": ").next().unwrap_or_default();
        by_title.entry(title).or_default().push(*side);
    }
    let has_several = |sides: &[ComparedSide<'_>]| {
        let runs: BTreeSet<_> =
            sides.iter().filter_map(|side| side.run).map(std::ptr::from_ref).collect();
        runs.len() > 1
    };
    let shared: Vec<_> = by_title.values().filter(|sides| has_several(sides)).collect();
    let mut known = BTreeSet::new();
    let setups: Vec<String> = if shared.is_empty() && has_several(&sides) {
        compare::setups(&sides)
    } else {
        let all = shared.into_iter().flat_map(|sides| compare::setups(sides));
        all.filter(|words| known.insert(words.clone())).collect()
    };
    found.extend(few_setups(setups));
    sentences(found)
}

#[cfg(test)]
mod tests {
    use super::super::tests::run;
    use super::*;

    #[test]
    fn only_differences_are_named() {
        let (one, mut two) = (run("one"), run("two"));
        assert!(between(&[&one, &two]).is_empty());
        two.machine.as_mut().unwrap().kernel = "6.12".to_owned();
        let found = between(&[&one, &two]);
        assert_eq!(found, ["Kernel: 6.1 (“one”), 6.12 (“two”)."]);
        two.machine = None;
        let found = between(&[&one, &two]);
        let [said] = &found[..] else { panic!("{found:?}") };
        assert!(said.contains("is not known") && said.contains("“two”"), "{said}");
    }
}
