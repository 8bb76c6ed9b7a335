//! Exchanges in the form of results.

use ::results::{Axis, Measurement, PlannedResults, Point};
use serde::Serialize;

use super::super::results::latencies;
use super::report::SwitchReport;
use crate::planned::{categories, measurement, results, words};

/// The exchange with one value of a key.
#[derive(Clone, Debug, Serialize)]
pub struct VariedSwitchReport {
    /// The value.
    pub value: String,
    /// The report.
    #[serde(flatten)]
    pub report: SwitchReport,
}

/// The exchanges with all values of a key, as JSON has them.
#[derive(Debug, Serialize)]
pub struct VariedSwitchForm<'a> {
    /// The key.
    pub key: &'a str,
    /// The reports, in the order of the values.
    pub runs: &'a [VariedSwitchReport],
}

/// One exchange's times of messages. `source` is the scenario's file.
pub fn switch_results(source: &str, report: &SwitchReport) -> PlannedResults {
    let mut it = begun(source, report);
    let place = Point::of_category(0, "all messages", 0.0);
    it.series = latencies(Axis::CATEGORY, vec![(place, report.messages)]);
    results(&report.title, vec![it])
}

/// The times of messages by the values of a key.
pub fn varied_switch_results(
    source: &str,
    key: &str,
    runs: &[VariedSwitchReport],
) -> PlannedResults {
    let Some(first) = runs.first() else { return results("", Vec::new()) };
    let mut it = begun(source, &first.report);
    // Names of one key are in one picture.
    it.setup.insert("varied".to_owned(), words(key));
    let labels = categories(runs.iter().map(|run| run.value.as_str()));
    let place = |(at, run): (usize, &VariedSwitchReport)| {
        (Point::of_category(at, &labels[at], 0.0), run.report.messages)
    };
    it.series = latencies(Axis::CATEGORY, runs.iter().enumerate().map(place).collect());
    results(&first.report.title, vec![it])
}

fn begun(source: &str, report: &SwitchReport) -> Measurement {
    let source = format!("scenario: {source}");
    let part = Some("messages on switches");
    let mut it = measurement("plan_simulate", &report.title, part, &source);
    for (name, number) in
        [("hosts", report.hosts), ("leaves", report.leaves), ("seed", report.seed)]
    {
        it.setup.insert(name.to_owned(), number.to_string());
    }
    it
}
