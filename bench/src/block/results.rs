//! The figures of a disk as results: rates and latencies by depth, and the events and cores of
//! which a request consists. Network cards have the same kinds of figures.

use std::collections::BTreeMap;

use results::{Axis, Measurement, Quantity, Series, Spread, Statistic, Unit};
use serde_json::Value;

use super::report::{BlockReport, Latency};
use crate::figures::{BenchReport, alone, categories, measured, word_of};
use testbed::machine::Machine;
use testbed::stage::NodeNetwork;

/// The figures of requests, or of frames, at one place on an axis.
pub(crate) struct RequestFigures<'a> {
    pub(crate) benchmark: &'static str,
    pub(crate) title: &'a str,
    pub(crate) axis: Axis,
    /// The option on the axis, and its value.
    pub(crate) own: &'static str,
    pub(crate) x: f64,
    pub(crate) asked: &'a Value,
    pub(crate) network: Option<NodeNetwork>,
    pub(crate) latency_us: Option<Latency>,
    /// Whether the latency is of a way there and back.
    pub(crate) is_round_trip: bool,
    pub(crate) count: u64,
    pub(crate) events: &'a BTreeMap<String, f64>,
    pub(crate) cpu_s: &'a BTreeMap<&'static str, Option<f64>>,
    pub(crate) core_share: &'a BTreeMap<String, f64>,
    pub(crate) rtts_ns: [Option<u64>; 2],
}

impl RequestFigures<'_> {
    /// A series with one figure, at this place on the axis.
    pub(crate) fn series(&self, name: &str, quantity: Quantity, unit: Unit, y: f64) -> Series {
        alone(Series::new(name, quantity, unit, self.axis), self.x, y)
    }

    /// A measurement with these rates, and with latencies and processor time of each role.
    pub(crate) fn measurement(&self, rates: Vec<Series>) -> Measurement {
        let mut it = measured(self.benchmark, self.title, self.asked, &[self.own]);
        it.setup.extend(self.network.iter().map(|it| ("network".to_owned(), word_of(it))));
        it.cache_line_round_trips_ns = self.rtts_ns.into_iter().flatten().collect();
        it.series = rates;
        if let Some(latency) = self.latency_us {
            it.series.extend(self.latencies(latency));
        }
        for (role, seconds) in self.cpu_s.iter().filter(|_| self.count > 0) {
            let us = seconds.map(|seconds| seconds * 1e6 / self.count as f64);
            it.series.extend(us.map(|us| self.series(role, Quantity::CpuPerRequest, Unit::Us, us)));
        }
        it
    }

    fn latencies(&self, latency: Latency) -> impl Iterator<Item = Series> {
        let Latency { mean, p50, p99, p999, .. } = latency;
        let quantity = if self.is_round_trip { Quantity::RoundTrip } else { Quantity::Latency };
        let of = move |(statistic, us)| Series {
            statistic: Some(statistic),
            ..self.series("latency", quantity, Unit::Us, us)
        };
        let mut median = of((Statistic::Median, p50));
        median.spread = Spread::P50P99;
        median.points[0].low = Some(p50.min(p99));
        median.points[0].high = Some(p50.max(p99));
        let others = [(Statistic::P99, p99), (Statistic::P999, p999), (Statistic::Mean, mean)];
        [median].into_iter().chain(others.into_iter().map(of))
    }

    /// The figures that have names and no axis. They are of one depth, or of one size: figures of
    /// two depths are not parts of one sum.
    pub(crate) fn parts(&self) -> Measurement {
        let mut it = measured(&format!("{}_parts", self.benchmark), self.title, self.asked, &[]);
        it.cache_line_round_trips_ns = self.rtts_ns.into_iter().flatten().collect();
        let of = |name, quantity, unit| Series::new(name, quantity, unit, Axis::CATEGORY);
        // A counter of bytes is no event.
        let events = self.events.iter().filter(|(name, _)| !name.contains("bytes"));
        let events = events.map(|(name, count)| (name.clone(), *count)).collect();
        let series = of("events", Quantity::EventsPerRequest, Unit::Count);
        it.series.extend(categories(series, &events));
        let series = of("core share", Quantity::CoreShare, Unit::Ratio);
        it.series.extend(categories(series, self.core_share));
        it
    }
}

impl BenchReport for BlockReport {
    fn measurements(&self, title: &str) -> Vec<Measurement> {
        let figures = RequestFigures {
            benchmark: "block",
            title,
            axis: Axis::QUEUE_DEPTH,
            own: "depth",
            x: f64::from(self.depth()),
            asked: &self.asked,
            network: self.network,
            latency_us: Some(self.latency_us),
            is_round_trip: false,
            count: self.requests,
            events: &self.events_per_request,
            cpu_s: &self.cpu_s,
            core_share: &self.core_share,
            rtts_ns: self.cache_line_rtts_ns,
        };
        let rates = vec![
            figures.series("requests", Quantity::Iops, Unit::PerS, self.iops),
            figures.series("bytes", Quantity::Bandwidth, Unit::BytesPerS, self.bytes_per_s),
        ];
        vec![figures.measurement(rates), figures.parts()]
    }

    fn machine(&self) -> &Machine {
        &self.machine
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use results::Point;

    use super::super::options::{BlockOptions, Path};
    use super::*;
    use crate::load::LoadOutcome;
    use testbed::events::EventsSnapshot;

    /// The report of a second with three requests.
    pub(crate) fn report(depth: u16) -> BlockReport {
        let options =
            BlockOptions { depth, path: Path::Remote, ..BlockOptions::new("vrio".into()) };
        let mut outcome = LoadOutcome { took: Duration::from_secs(1), ..LoadOutcome::new() };
        [1_000, 2_000, 9_000].into_iter().for_each(|ns| outcome.note(ns));
        let look = EventsSnapshot::at([], &[]).unwrap();
        let events = look.since(&look);
        let rtts_ns = [Some(100), Some(110)];
        let machine = Machine::look();
        BlockReport::new(&options, Some(NodeNetwork::Loopback), &outcome, &events, rtts_ns, machine)
    }

    #[test]
    fn a_disk_has_its_figures_at_its_depth() {
        let report = report(8);
        let [whole, parts] = &report.measurements("mine")[..] else { panic!("two") };
        whole.check().unwrap();
        parts.check().unwrap();
        assert_eq!((whole.benchmark.as_str(), whole.title.as_str()), ("block", "mine"));
        assert_eq!(whole.cache_line_round_trips_ns, [100, 110]);
        let has = |key: &str| whole.setup.get(key).map(String::as_str);
        assert_eq!((has("path"), has("network")), (Some("remote"), Some("loopback")));
        assert_eq!((has("depth"), parts.setup["depth"].as_str()), (None, "8"));
        assert_eq!(parts.benchmark, "block_parts");
        let of = |quantity, statistic| -> &Point {
            let is_it = |it: &&Series| (it.quantity, it.statistic) == (quantity, statistic);
            &whole.series.iter().find(is_it).unwrap().points[0]
        };
        assert_eq!((of(Quantity::Iops, None).x, of(Quantity::Iops, None).y), (8.0, 3.0));
        assert_eq!(of(Quantity::Bandwidth, None).y, 3.0 * 4096.0);
        let median = of(Quantity::Latency, Some(Statistic::Median));
        assert_eq!((median.y, median.high), (report.latency_us.p50, Some(report.latency_us.p99)));
        let tail = of(Quantity::Latency, Some(Statistic::P99));
        assert_eq!(tail.y, report.latency_us.p99);
    }

    /// Bytes are counted beside the events of a request, but are no events.
    #[test]
    fn a_counter_of_bytes_is_no_event() {
        let mut report = report(1);
        let events = [("kicks", 1.0), ("vmhost_sent_bytes", 4096.0), ("vmhost_wakeups", 0.5)];
        report.events_per_request =
            events.into_iter().map(|(name, count)| (name.to_owned(), count)).collect();
        let parts = &report.measurements("mine")[1];
        let labels: Vec<_> =
            parts.series[0].points.iter().filter_map(|it| it.label.as_deref()).collect();
        assert_eq!(labels, ["kicks", "vmhost wakeups"]);
    }
}
