//! The output of `vrio bench failover --json`: requests over time, with the names of the events.

use std::collections::BTreeMap;

use results::{Axis, Measurement, Point, Quantity, Series, Statistic, Unit};
use serde::Deserialize;
use serde_json::Value;

use super::asked::measured;

#[derive(Deserialize)]
pub(super) struct Failover {
    asked: BTreeMap<String, Value>,
    network: String,
    slice_ms: f64,
    requests: Vec<f64>,
    interruptions: Vec<Interrupted>,
    pause_before_ms: f64,
}

#[derive(Deserialize)]
struct Interrupted {
    begins: String,
    ends: String,
    begins_ms: f64,
    ends_ms: f64,
    pause_ms: f64,
}

/// The time line, and the longest pause after each event.
pub(super) fn measurements(report: &Failover, title: &str) -> Vec<Measurement> {
    let mut it = measured("failover", title, &report.asked, &["seconds", "events"]);
    it.setup.insert("network".to_owned(), report.network.clone());
    let begins: Vec<_> = report.interruptions.iter().map(|event| event.begins.clone()).collect();
    it.setup.insert("events".to_owned(), begins.join(", "));
    it.series = vec![time_line(report), pauses(report)];
    vec![it]
}

fn time_line(report: &Failover) -> Series {
    let slice_s = report.slice_ms / 1e3;
    let points = report.requests.iter().enumerate();
    let points = points.map(|(at, requests)| Point::new(at as f64 * slice_s, requests / slice_s));
    let mut points: Vec<_> = points.collect();
    for event in &report.interruptions {
        for (ms, words) in [(event.begins_ms, &event.begins), (event.ends_ms, &event.ends)] {
            // The slice of time in which the event happened; a report's own events are always
            // inside.
            let at = points.iter_mut().rfind(|point| point.x * 1e3 <= ms);
            if let Some(point) = at {
                let before = point.label.take().map(|label| format!("{label}, "));
                point.label = Some(before.unwrap_or_default() + words);
            }
        }
    }
    Series { points, ..Series::new("requests", Quantity::Iops, Unit::PerS, Axis::SECONDS) }
}

fn pauses(report: &Failover) -> Series {
    let before = [("before", report.pause_before_ms)];
    let events = report.interruptions.iter().map(|it| (it.begins.as_str(), it.pause_ms));
    let all = before.into_iter().chain(events).enumerate();
    let points = all.map(|(at, (name, ms))| Point::of_category(at, name, ms * 1e3)).collect();
    let statistic = Some(Statistic::Max);
    let series = Series::new("longest pause", Quantity::Latency, Unit::Us, Axis::CATEGORY);
    Series { points, statistic, ..series }
}

#[cfg(test)]
mod tests {
    use results::Against;

    use crate::import::import;

    #[test]
    fn the_time_line_has_all_requests_and_the_names_of_what_happened() {
        let text = include_str!("../../tests/data/vrio-failover.json");
        let all = import("vrio-failover.json", text).unwrap();
        let [it] = &all[..] else { panic!("one measurement: {all:?}") };
        let [line, pauses] = &it.series[..] else { panic!("two series: {it:?}") };
        assert_eq!((it.benchmark.as_str(), line.x.quantity), ("failover", Against::Time));
        assert_eq!(it.setup["events"], "io1 killed, io1 hands over");
        let report: serde_json::Value = serde_json::from_str(text).unwrap();
        let counts = report["requests"].as_array().unwrap().iter();
        let all: f64 = counts.map(|count| count.as_f64().unwrap()).sum();
        let drawn: f64 = line.points.iter().map(|point| point.y * 0.01).sum();
        assert!((all - drawn).abs() < 1e-3, "{all} {drawn}");
        let labels: Vec<_> = line.points.iter().filter_map(|it| it.label.as_deref()).collect();
        let happened = ["io1 killed", "io1 runs again", "io1 hands over", "another io1 goes on"];
        assert_eq!(labels.join(", "), happened.join(", "));
        let killed = line.points.iter().find(|it| it.label.as_deref() == Some("io1 killed"));
        let after = report["interruptions"][0]["begins_ms"].as_f64().unwrap() / 1e3 - 0.01;
        assert!((after..=after + 0.01).contains(&killed.unwrap().x), "{killed:?}");
        let pause = &pauses.points[1];
        assert_eq!(pause.label.as_deref(), Some("io1 killed"));
        assert_eq!(Some(pause.y / 1e3), report["interruptions"][0]["pause_ms"].as_f64());
    }
}
