//! Figures in the form of results: the parts that all benchmarks have in common.

use std::collections::BTreeMap;
use std::fmt;

use results::{Measurement, Point, RunOrigin, Series, Spread};
use serde::Serialize;
use serde_json::Value;

use crate::verdict;
use testbed::machine::Machine;

/// The reason that a speed is missing where more threads poll than there are cores.
pub(crate) const NO_SEATS: &str = "more polling threads than cores";

/// The reason for missing figures: the cores moved in every round.
pub const MOVED: &str = "the cores moved in every round, so its figures are of no level";

/// The longest reason for a missing figure that is kept: a reason may hold the whole log of a peer.
const REASON_MAX: usize = 600;

/// The report of a benchmark: a text for people, JSON for programs, and measurements for a store.
pub trait BenchReport: fmt::Display + Serialize {
    /// The figures as results. The titles of the measurements begin with `title`, or end with it in
    /// brackets.
    fn measurements(&self, title: &str) -> Vec<Measurement>;

    /// The machine of the measurement.
    fn machine(&self) -> &Machine;
}

/// The machine in the form of results.
pub fn machine(machine: &Machine) -> results::Machine {
    results::Machine {
        processor: machine.processor.clone(),
        cores: u32::try_from(machine.cores).unwrap_or(u32::MAX),
        kernel: machine.kernel.clone(),
        cache_line_round_trip_ns: machine.cache_line_round_trip_ns,
        version: Some(machine.version.to_owned()),
        commit: Some(machine.commit.to_owned()),
        optimised: Some(machine.optimised),
    }
}

/// A value of the options in a word.
pub fn word(value: &Value) -> String {
    match value {
        Value::String(word) => word.clone(),
        other => other.to_string(),
    }
}

/// The same for a value of any type.
pub fn word_of(value: &impl Serialize) -> String {
    word(&serde_json::to_value(value).expect("plain data"))
}

/// A measurement of vrio without figures. Its set-up is the options that do not stand on an axis.
pub fn measured(
    benchmark: &str,
    title: &str,
    options: &impl Serialize,
    axes: &[&str],
) -> Measurement {
    let options = serde_json::to_value(options).expect("plain data");
    let options = options.as_object().into_iter().flatten();
    let said = options.filter(|(name, value)| !axes.contains(&name.as_str()) && !value.is_null());
    let setup = said.map(|(name, value)| (name.clone(), word(value))).collect();
    Measurement { setup, ..Measurement::new(RunOrigin::Measured, benchmark, title) }
}

/// A reason, short enough to be read: its beginning and its end, where logs name the failure.
pub fn reason(words: &str) -> String {
    let count = words.chars().count();
    if count <= REASON_MAX {
        return words.to_owned();
    }
    let half = REASON_MAX / 2;
    let first: String = words.chars().take(half).collect();
    let last: String = words.chars().skip(count - half).collect();
    format!("{first} ... {last}")
}

/// A series with one figure.
pub(crate) fn alone(series: Series, x: f64, y: f64) -> Series {
    Series { points: vec![Point::new(x, y)], ..series }
}

/// A series of named figures; none without names.
pub(crate) fn categories(series: Series, figures: &BTreeMap<String, f64>) -> Option<Series> {
    let point = |(place, (name, y)): (usize, (&String, &f64))| {
        Point::of_category(place, &name.replace('_', " "), *y)
    };
    let points: Vec<_> = figures.iter().enumerate().map(point).collect();
    (!points.is_empty()).then_some(Series { points, ..series })
}

/// The point of several rounds at a place: their median, the least and the most.
pub fn point_of(rounds: verdict::Spread, x: f64) -> Point {
    let verdict::Spread { median, min, max } = rounds;
    Point { low: Some(min), high: Some(max), ..Point::new(x, median) }
}

/// The point of a named category.
pub(crate) fn named_point_of(rounds: verdict::Spread, place: usize, label: &str) -> Point {
    Point { label: Some(label.to_owned()), ..point_of(rounds, place as f64) }
}

/// Notes the number of rounds in a series. After a single round both ends are the figure itself,
/// which is no spread, so they are removed.
pub(crate) fn of_rounds(series: Series, rounds: usize) -> Series {
    if rounds > 1 {
        let rounds = Some(u32::try_from(rounds).unwrap_or(u32::MAX));
        return Series { spread: Spread::Rounds, rounds, ..series };
    }
    let bare = |point: Point| Point { low: None, high: None, ..point };
    Series { points: series.points.into_iter().map(bare).collect(), ..series }
}

#[cfg(test)]
mod tests {
    use results::{Axis, Quantity, Unit};

    use super::*;

    #[test]
    fn a_single_round_is_no_spread() {
        let spread = verdict::Spread { median: 2.0, min: 1.0, max: 3.0 };
        let series = Series::new("s", Quantity::Latency, Unit::Us, Axis::SECONDS);
        let series = Series { points: vec![point_of(spread, 0.0)], ..series };
        let several = of_rounds(series.clone(), 3);
        assert_eq!((several.spread, several.rounds), (Spread::Rounds, Some(3)));
        assert_eq!((several.points[0].low, several.points[0].high), (Some(1.0), Some(3.0)));
        let single = of_rounds(series, 1);
        assert_eq!((single.spread, single.rounds), (Spread::None, None));
        assert_eq!((single.points[0].low, single.points[0].high), (None, None));
    }

    #[test]
    fn options_become_words_without_axes_and_unknown_values() {
        let options = serde_json::json!({
            "path": "remote", "depth": 8, "mtu": null, "seconds": 3.0, "volume": { "file": "/x" }
        });
        let it = measured("block", "t", &options, &["depth"]);
        let said: Vec<_> = it.setup.iter().map(|(name, it)| format!("{name} {it}")).collect();
        assert_eq!(said, ["path remote", "seconds 3.0", "volume {\"file\":\"/x\"}"]);
    }

    #[test]
    fn a_log_is_cut_in_its_middle() {
        let log = format!("begin{}end", "é".repeat(2000));
        let short = reason(&log);
        assert!(short.starts_with("begin") && short.ends_with("end"), "{short}");
        assert_eq!(short.chars().count(), REASON_MAX + " ... ".len());
        assert_eq!(reason("short"), "short");
    }
}
