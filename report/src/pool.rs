//! Several runs of the same as one run of rounds. Together they show how far runs differ, which a
//! single run cannot show.

use std::collections::{BTreeMap, BTreeSet};

use results::{ENTRIES_MAX, Empty, Measurement, Point, Run, Series, Spread};
use thiserror::Error;

use crate::compare::{self, ComparedSide};
use crate::diff;
use crate::store::Loaded;

/// The reasons that runs are no rounds of one another.
#[derive(Debug, Error)]
pub enum PoolError {
    /// There is nothing to pool.
    #[error("two runs or more are rounds of one another, and this is {0}")]
    TooFew(usize),
    /// The runs were measured on several machines, or with several builds.
    #[error("these are no rounds of one another: {}", .0.join("; "))]
    Differ(Vec<String>),
    /// The runs have no figure in common.
    #[error("these runs have no figure that is in all of them; 'vrio results diff' says why")]
    Nothing,
}

/// Makes one run of several runs of one machine and build. Its figures are the medians of theirs,
/// with the least and the most. It keeps the figures that all runs have, measured in the same way.
///
/// # Errors
/// When the runs are of several machines or builds, or have nothing in common.
pub fn pool(runs: &[Loaded], title: Option<&str>) -> Result<Loaded, PoolError> {
    let [first, others @ ..] = runs else { return Err(PoolError::TooFew(0)) };
    if others.is_empty() {
        return Err(PoolError::TooFew(1));
    }
    let names: Vec<&str> = runs.iter().map(|it| it.run.id.as_str()).collect();
    let sides = runs.iter().zip(&names);
    let sides: Vec<_> = sides
        .map(|(it, name)| ComparedSide { name, run: Some(&it.run), measurement: None })
        .collect();
    let differ = compare::differences(&sides);
    let is_one = |other: &Loaded| match (&first.run.machine, &other.run.machine) {
        (Some(one), other) => one.is_same(other.as_ref()),
        (None, other) => other.is_none(),
    };
    if !others.iter().all(is_one) {
        return Err(PoolError::Differ(differ));
    }
    let mut run = Run::now("pool", title.unwrap_or(&first.run.title));
    run.begun = runs.iter().map(|it| it.run.begun.clone()).min().unwrap_or_default();
    (run.machine, run.tools) = (first.run.machine.clone(), first.run.tools.clone());
    run.notes = vec![format!("medians of {} runs: {}", runs.len(), names.join(", "))];
    // The remaining differences, such as levels of the cache line, do not forbid pooling: they
    // become notes.
    run.notes.extend(differ);
    let pairs = others.iter().map(|it| diff::pairs(&first.measurements, &it.measurements));
    let pairs: Vec<BTreeMap<usize, usize>> = pairs
        .map(|all| all.into_iter().filter_map(|[one, other]| one.zip(other)).collect())
        .collect();
    let of = |(at, one): (usize, &Measurement)| {
        let theirs = others.iter().zip(&pairs);
        let theirs: Option<Vec<&Measurement>> =
            theirs.map(|(it, pairs)| Some(&it.measurements[*pairs.get(&at)?])).collect();
        let mut same = theirs?;
        same.retain(|it| it.benchmark == one.benchmark && it.setup == one.setup);
        (same.len() == others.len()).then(|| measurement(one, &same))
    };
    let all = first.measurements.iter().enumerate().filter_map(of);
    let measurements: Vec<_> = all.filter(|it| !it.series.is_empty()).collect();
    if measurements.is_empty() {
        return Err(PoolError::Nothing);
    }
    let left = first.measurements.len() - measurements.len();
    if left > 0 {
        run.notes.push(format!("{left} measurements are not in all of them"));
    }
    Ok(Loaded { run, measurements })
}

fn measurement(one: &Measurement, others: &[&Measurement]) -> Measurement {
    let mut left = 0;
    let of = |mine: &Series| {
        let partner =
            |it: &&Measurement| compare::partner(one, mine, it).map(|at| it.series[at].clone());
        let theirs: Option<Vec<Series>> = others.iter().map(partner).collect();
        let series = theirs.map(|theirs| series(mine, &theirs));
        left += mine.points.len() - series.as_ref().map_or(0, |it| it.points.len());
        series.filter(|it| !it.points.is_empty())
    };
    let mut it = Measurement { series: one.series.iter().filter_map(of).collect(), ..one.clone() };
    if left > 0 {
        it.notes.push(format!("{left} figures are not in all of the runs"));
    }
    for other in others {
        it.cache_line_round_trips_ns.extend(&other.cache_line_round_trips_ns);
        add(&mut it.notes, &other.notes);
        let known: BTreeSet<(String, String)> =
            it.empty.iter().map(|it| (it.what.clone(), it.why.clone())).collect();
        let news =
            other.empty.iter().filter(|it| !known.contains(&(it.what.clone(), it.why.clone())));
        let news: Vec<Empty> = news.cloned().collect();
        it.empty.extend(news);
        it.empty.truncate(ENTRIES_MAX / 2);
    }
    it
}

fn add(notes: &mut Vec<String>, more: &[String]) {
    for note in more {
        if notes.len() < ENTRIES_MAX && !notes.contains(note) {
            notes.push(note.clone());
        }
    }
}

/// The medians at the places that all series have, in the unit of the first series.
fn series(mine: &Series, others: &[Series]) -> Series {
    let mut figures: Vec<Vec<f64>> = mine.points.iter().map(|point| vec![point.y]).collect();
    for other in others {
        for change in compare::changes(mine, other).unwrap_or_default() {
            figures[change.base].push(change.b);
        }
    }
    let runs = others.len() + 1;
    let all = mine.points.iter().zip(figures).filter(|(_, figures)| figures.len() == runs);
    let point = |(point, mut figures): (&Point, Vec<f64>)| {
        figures.sort_by(f64::total_cmp);
        let (low, high) = (figures.first().copied(), figures.last().copied());
        Point { y: median(&figures), low, high, ..point.clone() }
    };
    let rounds = u32::try_from(runs).ok();
    Series { spread: Spread::Rounds, rounds, points: all.map(point).collect(), ..mine.clone() }
}

/// The median of sorted figures; there must be one at least.
pub(crate) fn median(figures: &[f64]) -> f64 {
    let at = figures.len() / 2;
    if figures.len() % 2 == 1 { figures[at] } else { f64::midpoint(figures[at - 1], figures[at]) }
}

#[cfg(test)]
mod tests {
    use results::{Axis, Quantity, RunOrigin, Unit};

    use super::*;

    fn run(points: &[(f64, f64)]) -> Loaded {
        let points = points.iter().map(|(x, y)| Point::new(*x, *y)).collect();
        let mut it = Measurement::new(RunOrigin::Measured, "block", "a disk");
        let series = Series::new("requests", Quantity::Iops, Unit::PerS, Axis::QUEUE_DEPTH);
        it.series.push(Series { points, ..series });
        Loaded { run: Run::now("block", "a disk"), measurements: vec![it] }
    }

    #[test]
    fn runs_are_rounds() {
        let runs = [8.0, 7.0, 10.0, 20.0].map(|y| run(&[(1.0, y), (8.0, 2.0 * y)]));
        let it = pool(&runs, Some("all")).unwrap();
        it.run.check().unwrap();
        it.measurements[0].check().unwrap();
        let series = &it.measurements[0].series[0];
        assert_eq!((series.spread, series.rounds), (Spread::Rounds, Some(4)));
        let told: Vec<_> = series.points.iter().map(|it| (it.low, it.y, it.high)).collect();
        assert_eq!(told, [(Some(7.0), 9.0, Some(20.0)), (Some(14.0), 18.0, Some(40.0))]);
        assert!(it.run.notes[0].starts_with("medians of 4 runs: "), "{:?}", it.run.notes);
        // So a change has a verdict, which a single run of each would not have.
        let other = pool(&[1.0, 2.0, 3.0, 4.0].map(|y| run(&[(1.0, y)])), None).unwrap();
        let row = diff::diff(&it, &other).series[0].rows[0].clone();
        assert_eq!((row.standing, row.is_better), (compare::FigureStanding::Less, Some(false)));
        assert_eq!(diff::diff(&runs[0], &runs[1]).series[0].rows[0].is_better, None);
    }

    #[test]
    fn figures_missing_in_a_run_are_left_out_and_counted() {
        let runs = [run(&[(1.0, 1.0), (2.0, 1.0)]), run(&[(1.0, 3.0), (4.0, 1.0)])];
        let it = pool(&runs, None).unwrap();
        assert_eq!(it.measurements[0].series[0].points.len(), 1);
        assert_eq!(it.measurements[0].notes, ["1 figures are not in all of the runs"]);
        let mut other = run(&[(1.0, 3.0)]);
        other.measurements[0].setup.insert("path".to_owned(), "remote".to_owned());
        let said = pool(&[runs[0].clone(), other], None).unwrap_err().to_string();
        assert!(said.contains("no figure that is in all of them"), "{said}");
    }

    #[test]
    fn another_build_or_no_other_run_is_refused() {
        let said = pool(&[run(&[(1.0, 1.0)])], None).unwrap_err().to_string();
        assert!(said.contains("and this is 1"), "{said}");
        let mut runs = [run(&[(1.0, 1.0)]), run(&[(1.0, 1.0)])];
        let machine = |commit: &str, trip| results::Machine {
            processor: "x".to_owned(),
            cores: 2,
            kernel: "6.1".to_owned(),
            cache_line_round_trip_ns: Some(trip),
            version: None,
            commit: Some(commit.to_owned()),
            optimised: Some(true),
        };
        runs[0].run.machine = Some(machine("abc", 46));
        let said = pool(&runs, None).unwrap_err().to_string();
        assert!(said.contains("is not known"), "{said}");
        runs[1].run.machine = Some(machine("def", 46));
        let said = pool(&runs, None).unwrap_err().to_string();
        assert!(said.contains("commit: abc") && said.contains("def"), "{said}");
        // Levels come and go on one machine: they are noted.
        runs[1].run.machine = Some(machine("abc", 110));
        let it = pool(&runs, None).unwrap();
        assert!(it.run.notes[1].starts_with("level: "), "{:?}", it.run.notes);
    }
}
