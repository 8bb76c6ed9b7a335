//! The output of `vrio bench floor --json`: the parts of which a remote read consists.

use std::collections::BTreeMap;

use results::{Axis, Empty, Measurement, Point, Quantity, Series, Statistic, Unit};
use serde::Deserialize;
use serde_json::Value;

use super::asked::measured;
use super::rounds::{MOVED, Rounds, of_rounds};

#[derive(Deserialize)]
pub(super) struct Floor {
    asked: BTreeMap<String, Value>,
    rounds: Vec<FloorRound>,
    counted: Vec<usize>,
    remote_adds_us: Rounds,
    sealing_adds: Rounds,
}

/// Medians of one round, in microseconds.
#[derive(Deserialize)]
struct FloorRound {
    echo: f64,
    cipher: f64,
    local: f64,
    clear: f64,
    sealed: f64,
    cache_line_rtts_ns: Vec<u64>,
}

/// A part's name, and its figure in a round.
type FloorPart = (&'static str, fn(&FloorRound) -> f64);

const PARTS: [FloorPart; 5] = [
    ("bare echo of its datagrams", |round| round.echo),
    ("read on the same thread", |round| round.local),
    ("direct read, in clear", |round| round.clear),
    ("direct read, sealed", |round| round.sealed),
    ("AES-256-GCM alone", |round| round.cipher),
];
const REMOTE_ADDS: &str = "remote adds to echo and local read";
const SEALING_ADDS: &str = "sealing adds, times what the cipher takes";

/// The time of each part, the cost of the way to another node, and the cost of sealing.
pub(super) fn measurements(report: &Floor, title: &str) -> Vec<Measurement> {
    let mut it = measured("floor", title, &report.asked, &["rounds"]);
    let counted = || report.counted.iter().filter_map(|at| report.rounds.get(*at));
    it.cache_line_round_trips_ns =
        counted().flat_map(|round| round.cache_line_rtts_ns.iter().copied()).collect();
    if counted().next().is_none() {
        let all = PARTS.iter().map(|(name, _)| *name).chain([REMOTE_ADDS, SEALING_ADDS]);
        let empty = |what: &str| Empty { what: what.to_owned(), why: MOVED.to_owned() };
        it.empty = all.map(empty).collect();
        return vec![it];
    }
    let rounds = u32::try_from(counted().count()).unwrap_or(u32::MAX);
    let of = |(name, of): &FloorPart| Some((*name, Rounds::of(counted().map(of))?));
    let parts = PARTS.iter().filter_map(of).chain([(REMOTE_ADDS, report.remote_adds_us)]);
    let point = |(at, (name, figure)): (usize, (&str, Rounds))| figure.of_category(at, name);
    let times: Vec<Point> = parts.enumerate().map(point).collect();
    let series = |name, quantity, unit, points| {
        let series = Series::new(name, quantity, unit, Axis::CATEGORY);
        of_rounds(Series { points, statistic: Some(Statistic::Median), ..series }, rounds)
    };
    let factor = vec![report.sealing_adds.of_category(0, SEALING_ADDS)];
    it.series = vec![
        series("latency", Quantity::Latency, Unit::Us, times),
        series("sealing", Quantity::Factor, Unit::Ratio, factor),
    ];
    vec![it]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::import;

    const TEXT: &str = include_str!("../../tests/data/vrio-floor.json");

    #[test]
    fn each_part_has_its_figure_and_what_is_added_is_told() {
        let all = import("vrio-floor.json", TEXT).unwrap();
        let [it] = &all[..] else { panic!("one measurement: {all:?}") };
        let report: Value = serde_json::from_str(TEXT).unwrap();
        assert_eq!((it.benchmark.as_str(), it.setup["link"].as_str()), ("floor", "shm"));
        let [times, sealing] = &it.series[..] else { panic!("two series: {it:?}") };
        assert_eq!(times.points.len(), PARTS.len() + 1);
        let counted = report["counted"].as_array().unwrap().len();
        assert_eq!(times.rounds, u32::try_from(counted).ok());
        let echo = &times.points[0];
        let of_rounds = report["rounds"].as_array().unwrap().iter();
        let of_rounds: Vec<f64> = of_rounds.map(|it| it["echo"].as_f64().unwrap()).collect();
        assert!(of_rounds.contains(&echo.low.unwrap()) && of_rounds.contains(&echo.high.unwrap()));
        assert!(echo.low.unwrap() <= echo.y && echo.y <= echo.high.unwrap(), "{echo:?}");
        let adds = times.points.last().unwrap();
        assert_eq!(Some(adds.y), report["remote_adds_us"]["median"].as_f64());
        assert_eq!(Some(sealing.points[0].y), report["sealing_adds"]["median"].as_f64());
    }

    /// Rounds in which the cores moved belong to no level, so they give no figures.
    #[test]
    fn without_a_round_of_one_level_there_is_no_figure() {
        let mut report: Value = serde_json::from_str(TEXT).unwrap();
        report["counted"] = Value::Array(Vec::new());
        let it = import("x.json", &report.to_string()).unwrap().remove(0);
        assert!(it.series.is_empty() && it.cache_line_round_trips_ns.is_empty(), "{it:?}");
        assert_eq!(it.empty.len(), PARTS.len() + 2);
        assert!(it.empty.iter().all(|empty| empty.why == MOVED));
    }
}
