//! Sizes in the form of results.

use ::results::{Axis, Empty, PlannedResults, Point, Quantity, Unit};
use serde::Serialize;

use super::SizeRow;
use crate::planned::{measurement, results, series};
use crate::simulate::{Scenario, show::time};

/// The sizes, as JSON has them.
#[derive(Debug, Serialize)]
pub struct SizeForm<'a> {
    /// The scenario's title.
    pub title: &'a str,
    /// The wanted p99.
    pub p99_ns: u64,
    /// A row for each correlation.
    pub rows: &'a [SizeRow],
}

/// The sidecores of both sides, and the share that pooling leaves, by correlation. `source` is the
/// scenario's file.
pub fn size_results(
    source: &str,
    scenario: &Scenario,
    p99_ns: u64,
    rows: &[SizeRow],
) -> PlannedResults {
    let title = &scenario.title;
    let mut it = measurement("plan_size", title, None, &format!("scenario: {source}"));
    it.setup.insert("p99".to_owned(), time(p99_ns));
    let hosts = scenario.hosts_in_rack().min(scenario.hosts.count);
    it.setup.insert("hosts".to_owned(), hosts.to_string());
    it.setup.insert("guests_of_a_host".to_owned(), scenario.hosts.guests.to_string());
    let (alone, pooled) = ("each host for itself", "IOhosts' and VMhosts'");
    type Of = fn(&SizeRow) -> Option<f64>;
    let sides: [(&str, (Quantity, Unit), Of); 3] = [
        (pooled, (Quantity::SidecoreShare, Unit::Percent), |row| {
            Some(row.share_ppm? as f64 / 10_000.0)
        }),
        (alone, (Quantity::PollingCores, Unit::Count), |row| Some(row.hosts_sidecores? as f64)),
        (pooled, (Quantity::PollingCores, Unit::Count), |row| {
            let pool = row.pool?;
            Some((pool.sidecores + pool.vmhost_sidecores) as f64)
        }),
    ];
    for (name, quantity, of) in sides {
        let mut points = Vec::new();
        for row in rows {
            let percent = row.correlation_percent;
            match of(row) {
                Some(number) => points.push(Point::new(percent as f64, number)),
                None if quantity.0 == Quantity::PollingCores => {
                    let what = format!("{name}, {percent} % of the bursts in common");
                    let why = "no size that was tried holds the p99".to_owned();
                    it.empty.push(Empty { what, why });
                }
                None => {}
            }
        }
        it.series.push(series(name, quantity, Axis::CORRELATION, points));
    }
    it.notes.push(format!(
        "The fewest sidecores of a rack with a p99 of {}: {hosts} hosts of {} guests each.",
        time(p99_ns),
        scenario.hosts.guests
    ));
    if rows.len() == 1 {
        it.notes.push("The load has no bursts, so they have none in common.".to_owned());
    }
    results(title, vec![it])
}

#[cfg(test)]
mod tests {
    use super::super::PoolSize;
    use super::*;

    #[test]
    fn sizes_without_an_answer_are_empty_with_their_reason() {
        let scenario = Scenario::read("test", crate::simulate::EXAMPLE, &[]).unwrap();
        let pool = PoolSize {
            iohosts: 1,
            sidecores: 4,
            vmhost_sidecores: 2,
            card_gbit: None,
            p99_ns: 90_000,
        };
        let row = |correlation_percent, pool: Option<PoolSize>| SizeRow {
            correlation_percent,
            hosts_sidecores: Some(8),
            pool,
            share_ppm: pool.map(|_| 750_000),
        };
        let rows = [row(0, Some(pool)), row(25, None)];
        let found = size_results("scenario", &scenario, 100_000, &rows);
        found.check().unwrap();
        let it = &found.measurements[0];
        let of = |at: usize| &it.series[at].points;
        assert_eq!((of(0).len(), of(0)[0].y), (1, 75.0));
        assert_eq!((of(1).len(), of(1)[1].x, of(2)[0].y), (2, 25.0, 6.0));
        assert_eq!(it.empty.len(), 1);
        assert_eq!(it.empty[0].what, "IOhosts' and VMhosts', 25 % of the bursts in common");
        assert!(it.notes[0].contains("p99 of 100.0 us"), "{:?}", it.notes);
    }
}
