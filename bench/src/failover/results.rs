//! A fail-over as results: requests over time, with the names of the events, and the pauses.

use results::{Axis, Measurement, Point, Quantity, Series, Statistic, Unit};

use super::report::FailoverReport;
use crate::figures::{BenchReport, measured, word_of};
use testbed::machine::Machine;

impl BenchReport for FailoverReport {
    fn measurements(&self, title: &str) -> Vec<Measurement> {
        let mut it = measured("failover", title, &self.asked, &["seconds", "events"]);
        it.setup.insert("network".to_owned(), word_of(&self.network));
        let begins: Vec<_> = self.interruptions.iter().map(|event| event.begins).collect();
        it.setup.insert("events".to_owned(), begins.join(", "));
        it.series = vec![time_line(self), pauses(self)];
        vec![it]
    }

    fn machine(&self) -> &Machine {
        &self.machine
    }
}

fn time_line(report: &FailoverReport) -> Series {
    let slice_s = report.slice_ms as f64 / 1e3;
    let points = report.requests.iter().enumerate();
    let point =
        |(at, count): (usize, &u64)| Point::new(at as f64 * slice_s, *count as f64 / slice_s);
    let mut points: Vec<_> = points.map(point).collect();
    for event in &report.interruptions {
        for (ms, words) in [(event.begins_ms, event.begins), (event.ends_ms, event.ends)] {
            // The slice of time in which the event happened; events are always inside of the line.
            let at = points.iter_mut().rfind(|point| point.x * 1e3 <= ms);
            if let Some(point) = at {
                let before = point.label.take().map(|label| format!("{label}, "));
                point.label = Some(before.unwrap_or_default() + words);
            }
        }
    }
    Series { points, ..Series::new("requests", Quantity::Iops, Unit::PerS, Axis::SECONDS) }
}

/// The longest pause before all events, and after each.
fn pauses(report: &FailoverReport) -> Series {
    let before = [("before", report.pause_before_ms)];
    let events = report.interruptions.iter().map(|it| (it.begins, it.pause_ms));
    let all = before.into_iter().chain(events).enumerate();
    let points = all.map(|(at, (name, ms))| Point::of_category(at, name, ms * 1e3)).collect();
    let statistic = Some(Statistic::Max);
    let series = Series::new("longest pause", Quantity::Latency, Unit::Us, Axis::CATEGORY);
    Series { points, statistic, ..series }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use results::Against;

    use super::super::report::Interrupted;
    use super::super::{FailoverEvent, FailoverOptions, TimeLine};
    use super::*;
    use testbed::stage::NodeNetwork;
    use workload::WorkloadCounts;

    #[test]
    fn the_time_line_has_all_requests_and_the_names_of_what_happened() {
        let ms = Duration::from_millis;
        let options = FailoverOptions {
            program: "vrio".into(),
            seconds: 0.1,
            events: vec![FailoverEvent::Kill, FailoverEvent::HandOver],
            away_seconds: 0.0,
            encrypt: true,
        };
        let mut line = TimeLine::new(Instant::now(), 0, 2);
        line.slices = vec![5, 0, 7, 0, 0, 9];
        line.pauses = [1, 12, 25].map(ms).to_vec();
        let killed = Interrupted::new(FailoverEvent::Kill, ms(12), ms(19)).with_pause(ms(12));
        let handed = Interrupted::new(FailoverEvent::HandOver, ms(31), ms(52)).with_pause(ms(25));
        let (network, counts) = (NodeNetwork::Loopback, WorkloadCounts::default());
        let interrupted = vec![killed, handed];
        let report =
            FailoverReport::new(&options, network, line, interrupted, counts, Machine::look());
        let [it] = &report.measurements("mine")[..] else { panic!("one measurement") };
        it.check().unwrap();
        assert_eq!(it.setup["events"], "io1 killed, io1 hands over");
        assert_eq!(it.setup["network"], "loopback");
        let [line, pauses] = &it.series[..] else { panic!("two series: {it:?}") };
        assert_eq!((it.benchmark.as_str(), line.x.quantity), ("failover", Against::Time));
        let drawn: f64 = line.points.iter().map(|point| point.y * 0.01).sum();
        assert!((drawn - 21.0).abs() < 1e-9, "{drawn}");
        let labels: Vec<_> = line.points.iter().map(|it| it.label.as_deref()).collect();
        let expected = [
            None,
            Some("io1 killed, io1 runs again"),
            None,
            Some("io1 hands over"),
            None,
            Some("another io1 goes on"),
        ];
        assert_eq!(labels, expected);
        let pauses: Vec<_> =
            pauses.points.iter().map(|it| (it.label.as_deref().unwrap(), it.y)).collect();
        assert_eq!(pauses, [("before", 1e3), ("io1 killed", 12e3), ("io1 hands over", 25e3)]);
    }
}
