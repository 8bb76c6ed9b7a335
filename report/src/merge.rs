//! The merging of measurements of one subject.

use std::cmp::Ordering;

use results::{ENTRIES_MAX, Measurement, Series, WORDS_MAX};

/// Merges the measurements of several files about one subject. Measurements of one benchmark with
/// one set-up become one measurement if their series have no place in common (if each file has
/// another depth, say). The first title stays; notes and sources are those of all.
pub fn merge(measurements: Vec<Measurement>) -> Vec<Measurement> {
    let mut merged: Vec<Measurement> = Vec::new();
    for it in measurements {
        merge_into(&mut merged, it);
    }
    merged
}

/// Merges one more measurement into the list, and gives the place of the result.
pub(crate) fn merge_into(merged: &mut Vec<Measurement>, it: Measurement) -> usize {
    let Some(place) = merged.iter().position(|one| are_alike(one, &it)) else {
        merged.push(it);
        return merged.len() - 1;
    };
    let one = &mut merged[place];
    for (mine, theirs) in one.series.iter_mut().zip(it.series) {
        mine.points.extend(theirs.points);
        mine.points.sort_by(|a, b| a.x.total_cmp(&b.x));
    }
    for note in it.notes {
        if one.notes.len() < ENTRIES_MAX && !one.notes.contains(&note) {
            one.notes.push(note);
        }
    }
    one.empty.extend(it.empty);
    one.cache_line_round_trips_ns.extend(it.cache_line_round_trips_ns);
    one.source = both(one.source.take(), it.source);
    place
}

/// Two sources as `a.json, b.json`, within the limit of words.
fn both(one: Option<String>, two: Option<String>) -> Option<String> {
    let (one, two) = match (one, two) {
        (Some(one), Some(two)) => (one, two),
        (one, two) => return one.or(two),
    };
    let is_there = one.split(", ").any(|known| known == two);
    let fits = one.len() + two.len() + 2 <= WORDS_MAX;
    Some(if fits && !is_there { format!("{one}, {two}") } else { one })
}

/// Whether two measurements are of one subject, and have no place in common.
fn are_alike(one: &Measurement, two: &Measurement) -> bool {
    let is_one = |(mine, theirs): (&Series, &Series)| {
        let of = |it: &Series| (it.quantity, it.unit, it.statistic, it.x, it.spread, it.rounds);
        mine.name == theirs.name && of(mine) == of(theirs) && are_apart(mine, theirs)
    };
    one.origin == two.origin
        && one.benchmark == two.benchmark
        && one.setup == two.setup
        && one.series.len() == two.series.len()
        && one.series.iter().zip(&two.series).all(is_one)
        && one.empty.len() + two.empty.len() <= ENTRIES_MAX / 2
}

/// Whether the two have no place in common. Both are in the order of x.
fn are_apart(one: &Series, two: &Series) -> bool {
    let (mut mine, mut theirs) = (one.points.iter().peekable(), two.points.iter().peekable());
    while let (Some(one), Some(two)) = (mine.peek(), theirs.peek()) {
        match one.x.total_cmp(&two.x) {
            Ordering::Less => drop(mine.next()),
            Ordering::Greater => drop(theirs.next()),
            Ordering::Equal => return false,
        }
    }
    true
}
