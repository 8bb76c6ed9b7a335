//! Figures of plans in the form of results, which `--json` prints beside a report's own fields and
//! `vrio report` draws. The tests of each command check them against the rules of that form.

use ::results::{Axis, Measurement, PlannedResults, Point, Quantity, RunOrigin, Series, Unit};
use serde::Serialize;

use crate::money::Cents;

/// Bytes of a title or a source in results: a title of the planner's is shorter, and names of files
/// need not be.
const WORDS_MAX: usize = 1024;

/// A report as JSON: its own fields, and `results`.
#[derive(Debug, Serialize)]
pub(crate) struct ReportJson<'a, T> {
    #[serde(flatten)]
    pub(crate) report: &'a T,
    pub(crate) results: PlannedResults,
}

/// Words of a file or of a name on the command line, so that results can have them.
pub(crate) fn words(of: &str) -> String {
    let short: String = of.chars().take(WORDS_MAX / 4).collect();
    if short.trim().is_empty() { "a plan".to_owned() } else { short }
}

/// A planned measurement without figures. `part` sets it apart from other ones with its title. The
/// title is a part of its source as well: a page has the file's name in the place of the title.
pub(crate) fn measurement(
    benchmark: &str,
    of: &str,
    part: Option<&str>,
    source: &str,
) -> Measurement {
    let title = match part {
        Some(part) => format!("{}: {part}", words(of)),
        None => words(of),
    };
    let mut it = Measurement::new(RunOrigin::Planned, benchmark, &title);
    it.source = Some(words(&format!("“{}”; {source}", words(of))));
    it
}

/// The results with these measurements. Measurements without figures are left out.
pub(crate) fn results(title: &str, mut measurements: Vec<Measurement>) -> PlannedResults {
    measurements.retain(|it| it.series.iter().any(|series| !series.points.is_empty()));
    PlannedResults { title: words(title), measurements }
}

/// A series with these points.
pub(crate) fn series(
    name: &str,
    (quantity, unit): (Quantity, Unit),
    x: Axis,
    points: Vec<Point>,
) -> Series {
    Series { points, ..Series::new(name, quantity, unit, x) }
}

/// Cents as US dollars.
pub(crate) fn usd(cents: Cents) -> f64 {
    cents.0 as f64 / 100.0
}

/// Hundredths of a percent as percent.
pub(crate) fn percent(hundredths: i64) -> f64 {
    hundredths as f64 / 100.0
}

/// The names of categories, all of them different.
pub(crate) fn categories<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let mut known: Vec<String> = Vec::new();
    for name in names {
        let mut label = words(name);
        let mut time = 1;
        while known.contains(&label) {
            time += 1;
            label = format!("{} ({time})", words(name));
        }
        known.push(label);
    }
    known
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn categories_are_different_and_never_empty() {
        assert_eq!(categories(["a", "a", "", "a"]), ["a", "a (2)", "a plan", "a (3)"]);
        assert!(words(&"é".repeat(5000)).len() < WORDS_MAX);
        let of = measurement("plan_size", "a rack", None, "scenario: x.toml");
        assert_eq!(of.source.as_deref(), Some("“a rack”; scenario: x.toml"));
    }

    #[test]
    fn a_measurement_without_figures_is_left_out() {
        let mut full = measurement("plan_cost", "rack", Some("part"), "a list");
        let empty = full.clone();
        let point = Point::of_category(0, "a", 1.0);
        full.series =
            vec![series("parts", (Quantity::PartPrice, Unit::Usd), Axis::CATEGORY, vec![point])];
        let of = results("rack", vec![empty, full]);
        of.check().unwrap();
        assert_eq!((of.measurements.len(), &*of.measurements[0].title), (1, "rack: part"));
    }
}
