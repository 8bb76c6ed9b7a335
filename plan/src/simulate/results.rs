//! Simulations in the form of results.

use ::results::{Axis, Measurement, PlannedResults, Point, Quantity, Series, Statistic, Unit};
use serde::Serialize;

use super::Scenario;
use super::scenario::ServedAt;
use super::world::{LatencySummary, SimulationReport};
use crate::money::grouped;
use crate::planned::{categories, measurement, results, series, words};

/// Keys with values that are told by the sidecores that the rack has with them.
const KEYS_OF_SIDECORES: [&str; 3] = ["pool.sidecores", "pool.iohosts", "hosts.sidecores"];
/// One request of so many is in the farthest tail.
const TAIL: u64 = 1000;
/// The key with values that are told as shares of bursts.
const KEY_OF_CORRELATION: &str = "load.correlation";

/// The simulation of one value of a key.
#[derive(Clone, Debug, Serialize)]
pub struct VariedReport {
    /// The value.
    pub value: String,
    /// Sidecores that serve then: of all IOhosts but spare ones, and of VMhosts; or of all hosts.
    pub sidecores: u64,
    /// The share of bursts in common, in parts of a million.
    pub correlation_ppm: u64,
    /// The report.
    #[serde(flatten)]
    pub report: SimulationReport,
}

impl VariedReport {
    /// The report of a scenario with that value.
    pub fn of(value: &str, scenario: &Scenario, report: SimulationReport) -> Self {
        let (hosts, pool) = (&scenario.hosts, &scenario.pool);
        let sidecores = match scenario.served {
            ServedAt::Host => hosts.count.saturating_mul(pool.sidecores),
            ServedAt::Pool => {
                let iohosts = scenario.racks().saturating_mul(pool.iohosts);
                let of_vmhosts = hosts.count.saturating_mul(hosts.sidecores);
                iohosts.saturating_mul(pool.sidecores).saturating_add(of_vmhosts)
            }
        };
        let correlation_ppm = scenario.load.correlation.ppm();
        Self { value: value.to_owned(), sidecores, correlation_ppm, report }
    }
}

/// The simulations of all values of a key, as JSON has them.
#[derive(Debug, Serialize)]
pub struct VariedForm<'a> {
    /// The key.
    pub key: &'a str,
    /// The reports, in the order of the values.
    pub runs: &'a [VariedReport],
}

/// One scenario's latencies, around a death if it has one. `source` is the scenario's file.
pub fn report_results(source: &str, report: &SimulationReport) -> PlannedResults {
    let mut it = begun(source, report);
    let mut rows = Vec::new();
    if let Some([before, until_known, after]) = report.around_death {
        rows.push(("before the death", before));
        rows.push(("until it is known", until_known));
        rows.push(("after that", after));
    }
    rows.push(("all requests", report.latency));
    let place = |(at, (label, latency)): (usize, &(&str, LatencySummary))| {
        (Point::of_category(at, label, 0.0), *latency)
    };
    it.series = latencies(Axis::CATEGORY, rows.iter().enumerate().map(place).collect());
    for (label, latency) in &rows {
        if latency.requests == 0 {
            it.notes.push(format!("No request has a latency {label}."));
        }
    }
    it.notes.extend(without_latency("", report));
    results(&report.title, vec![it])
}

/// The latencies by the values of a key.
pub fn varied_results(source: &str, key: &str, runs: &[VariedReport]) -> PlannedResults {
    let Some(first) = runs.first() else { return results("", Vec::new()) };
    let axis = match key {
        key if KEYS_OF_SIDECORES.contains(&key) => Axis::SIDECORES,
        KEY_OF_CORRELATION => Axis::CORRELATION,
        _ => Axis::CATEGORY,
    };
    let mut it = begun(source, &first.report);
    if axis == Axis::CATEGORY {
        // Names of one key are in one picture.
        it.setup.insert("varied".to_owned(), words(key));
    }
    let labels = categories(runs.iter().map(|run| run.value.as_str()));
    let place = |(at, run): (usize, &VariedReport)| match axis {
        Axis::SIDECORES => Point::new(run.sidecores as f64, 0.0),
        Axis::CORRELATION => Point::new(run.correlation_ppm as f64 / 10_000.0, 0.0),
        _ => Point::of_category(at, &labels[at], 0.0),
    };
    let all = runs.iter().enumerate();
    let mut rows: Vec<_> = all.map(|of| (place(of), of.1.report.latency)).collect();
    rows.sort_by(|one, other| one.0.x.total_cmp(&other.0.x));
    it.series = latencies(axis, rows);
    for run in runs {
        let with = format!("With {key} = {}, ", words(&run.value));
        it.notes.extend(without_latency(&with, &run.report));
    }
    results(&first.report.title, vec![it])
}

fn begun(source: &str, report: &SimulationReport) -> Measurement {
    let source = format!("scenario: {source}");
    let mut it = measurement("plan_simulate", &report.title, None, &source);
    let hosts = [("hosts", report.hosts), ("guests", report.guests), ("seed", report.seed)];
    for (name, number) in hosts {
        it.setup.insert(name.to_owned(), number.to_string());
    }
    it
}

/// The median and the tails at these places. Requests that are none have no latency.
pub(super) fn latencies(axis: Axis, rows: Vec<(Point, LatencySummary)>) -> Vec<Series> {
    type Of = fn(&LatencySummary) -> u64;
    let kinds: [(Statistic, Of); 3] = [
        (Statistic::Median, |it| it.p50_ns),
        (Statistic::P99, |it| it.p99_ns),
        (Statistic::P999, |it| it.p999_ns),
    ];
    let of_kind = |(statistic, of): (Statistic, Of)| {
        let known = rows.iter().filter(|(_, latency)| latency.requests > 0);
        let points =
            known.map(|(place, latency)| Point { y: of(latency) as f64 / 1000.0, ..place.clone() });
        let quantity = (Quantity::Latency, Unit::Us);
        let all = series("latency", quantity, axis, points.collect());
        Series { statistic: Some(statistic), ..all }
    };
    kinds.map(of_kind).into()
}

/// A warning that requests which had no answer are in no latency, if they are so many that the
/// tails would differ.
fn without_latency(with: &str, report: &SimulationReport) -> Option<String> {
    let count = report.unanswered + report.refused;
    let is_many = count.saturating_mul(TAIL) > report.latency.requests;
    is_many.then(|| {
        let count = grouped(count);
        let text = format!("{with}{count} requests had no answer at the end or were refused.");
        let mut letters = text.chars();
        letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect()
    })
}

#[cfg(test)]
mod tests {
    use ::results::Against;

    use super::super::simulate;
    use super::*;

    fn varied(key: &str, values: &[&str]) -> PlannedResults {
        let run = |value: &&str| {
            let set = [
                ("milliseconds".to_owned(), "20".to_owned()),
                ("warm_up_ms".to_owned(), "0".to_owned()),
                (key.to_owned(), (*value).to_owned()),
            ];
            let scenario = Scenario::read("test", super::super::EXAMPLE, &set).unwrap();
            VariedReport::of(value, &scenario, simulate(&scenario).unwrap())
        };
        let runs: Vec<VariedReport> = values.iter().map(run).collect();
        let found = varied_results("test", key, &runs);
        found.check().unwrap();
        found
    }

    #[test]
    fn sidecores_are_an_axis_in_order_and_other_keys_are_names() {
        let of = varied("pool.sidecores", &["8", "4"]);
        assert!(!of.measurements[0].setup.contains_key("varied"));
        let p99 = &of.measurements[0].series[1];
        assert_eq!((p99.statistic, p99.x.quantity), (Some(Statistic::P99), Against::Sidecores));
        let places: Vec<f64> = p99.points.iter().map(|point| point.x).collect();
        assert_eq!(places, [4.0, 8.0]);
        assert!(p99.points[0].y >= p99.points[1].y, "{p99:?}");
        // Four VMhosts with a sidecore each.
        let of = varied("hosts.sidecores", &["1"]);
        assert_eq!(of.measurements[0].series[0].points[0].x, 8.0);
        let of = varied("pool.steering", &["two", "two"]);
        assert_eq!(of.measurements[0].setup["varied"], "pool.steering");
        let labels: Vec<_> =
            of.measurements[0].series[0].points.iter().map(|it| it.label.clone()).collect();
        assert_eq!(labels, [Some("two".to_owned()), Some("two (2)".to_owned())]);
    }

    #[test]
    fn a_death_has_a_row_for_each_time() {
        let scenario = Scenario::read("death", super::super::DEATH, &[]).unwrap();
        let found = report_results("death", &simulate(&scenario).unwrap());
        found.check().unwrap();
        let labels = found.measurements[0].series[0].points.iter();
        let labels: Vec<&str> = labels.filter_map(|it| it.label.as_deref()).collect();
        assert_eq!(labels[..2], ["before the death", "until it is known"]);
        assert_eq!(labels.last(), Some(&"all requests"));
    }
}
