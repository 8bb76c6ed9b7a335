//! The output of `vrio bench ... --json`. The reports keep their form; here they become results.

use std::collections::BTreeMap;

use results::{
    Against, Axis, Empty, Machine, Measurement, Point, Quantity, Series, Spread, Statistic, Unit,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::asked::{NO_SEATS, measured, word};
use super::fault::{Fault, Imported};
use super::measurement::alone;
use super::{contests, failover, floor, models};

/// The report of a disk or of nics: the fields that are common to both.
#[derive(Deserialize)]
struct OwnReport {
    asked: BTreeMap<String, Value>,
    latency_us: Option<Latency>,
    #[serde(alias = "events_per_frame")]
    events_per_request: BTreeMap<String, f64>,
    #[serde(alias = "frames")]
    requests: f64,
    iops: Option<f64>,
    frames_per_s: Option<f64>,
    bytes_per_s: Option<f64>,
    #[serde(default)]
    bytes: f64,
    #[serde(default)]
    disturbed: bool,
    cpu_s: BTreeMap<String, Option<f64>>,
    core_share: BTreeMap<String, f64>,
    #[serde(default)]
    cache_line_rtts_ns: Vec<Option<u64>>,
    network: Option<Value>,
}

#[derive(Deserialize)]
struct Latency {
    mean: f64,
    p50: f64,
    p99: f64,
    p999: f64,
}

#[derive(Deserialize)]
struct OwnScale {
    series: Vec<Scaling>,
}

#[derive(Deserialize)]
struct Scaling {
    name: String,
    points: Vec<ScalePoint>,
}

#[derive(Deserialize)]
struct ScalePoint {
    sidecores: f64,
    guests: f64,
    seated: bool,
    report: OwnReport,
}

#[derive(Deserialize)]
struct Connections {
    asked: BTreeMap<String, Value>,
    lines: Vec<OwnLine>,
}

#[derive(Deserialize)]
struct OwnLine {
    pattern: Value,
    transport: String,
    per_process: f64,
    per_host: f64,
}

/// The machine on which a report of ours was made.
pub(super) fn machine(text: &str) -> Option<Machine> {
    #[derive(Deserialize)]
    struct Of {
        machine: Machine,
    }
    serde_json::from_str(text).ok().map(|of: Of| of.machine)
}

/// Reads the JSON, which begins in that line.
pub(super) fn read(text: &str, line: usize, title: &str) -> Imported {
    let value: BTreeMap<String, Value> =
        serde_json::from_str(text).map_err(Fault::json(text, line, "JSON"))?;
    let has = |name: &str| value.contains_key(name);
    if has("iops") {
        let report = typed(text, line, "bench block")?;
        return Ok(vec![disk(&report, title), report.parts("block", title)]);
    }
    if has("frames_per_s") {
        let report = typed(text, line, "bench net")?;
        return Ok(vec![frames(&report, title), report.parts("net", title)]);
    }
    if has("contests") {
        return Ok(contests::measurements(&typed(text, line, "bench compare")?, title));
    }
    if has("interruptions") {
        return Ok(failover::measurements(&typed(text, line, "bench failover")?, title));
    }
    if has("echo_bytes") {
        return Ok(floor::measurements(&typed(text, line, "bench floor")?, title));
    }
    if has("tables") {
        return Ok(models::measurements(&typed(text, line, "bench models")?, title));
    }
    if has("lines") {
        return Ok(connections(&typed(text, line, "bench connections")?, title));
    }
    if has("series") {
        return Ok(scale(&typed(text, line, "bench scale")?, title));
    }
    let expected = "JSON of vrio bench block, net, mpi, models, compare, connections, failover, \
        floor or scale";
    let found = "JSON of vrio's with other figures";
    Err(Fault::new(line, expected, found))
}

fn typed<T: DeserializeOwned>(text: &str, line: usize, of: &str) -> Result<T, Fault> {
    serde_json::from_str(text).map_err(Fault::json(text, line, &format!("JSON of vrio {of}")))
}

impl OwnReport {
    fn asked(&self, name: &str) -> f64 {
        self.asked.get(name).and_then(Value::as_f64).unwrap_or(0.0)
    }

    /// A measurement with its latencies, events and cores. The caller adds the rates.
    fn measurement(&self, benchmark: &str, title: &str, axis: Axis, x: f64) -> Measurement {
        let own = if axis == Axis::QUEUE_DEPTH { "depth" } else { "size_bytes" };
        let mut it = measured(benchmark, title, &self.asked, &[own]);
        it.setup.extend(self.network.iter().map(|it| ("network".to_owned(), word(it))));
        it.cache_line_round_trips_ns = self.cache_line_rtts_ns.iter().copied().flatten().collect();
        let quantity = if benchmark == "net" { Quantity::RoundTrip } else { Quantity::Latency };
        if let Some(Latency { mean, p50, p99, p999 }) = &self.latency_us {
            let of = |statistic, us| {
                let series = Series::new("latency", quantity, Unit::Us, axis);
                alone(Series { statistic: Some(statistic), ..series }, x, us)
            };
            let mut median = of(Statistic::Median, *p50);
            median.spread = Spread::P50P99;
            median.points[0].low = Some(p50.min(*p99));
            median.points[0].high = Some(p50.max(*p99));
            let others =
                [(Statistic::P99, *p99), (Statistic::P999, *p999), (Statistic::Mean, *mean)];
            it.series.push(median);
            it.series.extend(others.map(|(statistic, us)| of(statistic, us)));
        }
        if self.requests > 0.0 {
            for (role, seconds) in &self.cpu_s {
                let us = seconds.map(|seconds| seconds * 1e6 / self.requests);
                let series = Series::new(role, Quantity::CpuPerRequest, Unit::Us, axis);
                it.series.extend(us.map(|us| alone(series, x, us)));
            }
        }
        it
    }

    /// The figures that have names and no axis. They are of one depth, or of one size: figures of
    /// two depths are not parts of one sum.
    fn parts(&self, benchmark: &str, title: &str) -> Measurement {
        let mut it = measured(&format!("{benchmark}_parts"), title, &self.asked, &[]);
        it.cache_line_round_trips_ns = self.cache_line_rtts_ns.iter().copied().flatten().collect();
        it.series.extend(self.events());
        it.series.extend(categories(
            Series::new("core share", Quantity::CoreShare, Unit::Ratio, Axis::CATEGORY),
            self.core_share.iter(),
        ));
        it
    }

    /// The counted events. A counter of bytes is no event.
    fn events(&self) -> Option<Series> {
        let events = self.events_per_request.iter().filter(|(name, _)| !name.contains("bytes"));
        let axis = Axis::CATEGORY;
        let series = Series::new("events", Quantity::EventsPerRequest, Unit::Count, axis);
        categories(series, events)
    }
}

/// A series of names; none without names.
fn categories<'a>(
    series: Series,
    figures: impl Iterator<Item = (&'a String, &'a f64)>,
) -> Option<Series> {
    let point = |(place, (name, y)): (usize, (&String, &f64))| {
        Point::of_category(place, &name.replace('_', " "), *y)
    };
    let points: Vec<_> = figures.enumerate().map(point).collect();
    (!points.is_empty()).then_some(Series { points, ..series })
}

fn disk(report: &OwnReport, title: &str) -> Measurement {
    let depth = report.asked("depth");
    let mut it = report.measurement("block", title, Axis::QUEUE_DEPTH, depth);
    let of = |name, quantity, unit| Series::new(name, quantity, unit, Axis::QUEUE_DEPTH);
    let iops = report.iops.map(|y| alone(of("requests", Quantity::Iops, Unit::PerS), depth, y));
    let bytes = report.bytes_per_s;
    let bytes = bytes.map(|y| alone(of("bytes", Quantity::Bandwidth, Unit::BytesPerS), depth, y));
    it.series.splice(0..0, iops.into_iter().chain(bytes));
    it
}

fn frames(report: &OwnReport, title: &str) -> Measurement {
    let payload = report.asked.get("payload").and_then(|it| it.get(0)).and_then(Value::as_f64);
    let size = payload.unwrap_or_else(|| report.asked("size_bytes"));
    let mut it = report.measurement("net", title, Axis::MESSAGE_SIZE, size);
    let of = |name, quantity, unit| Series::new(name, quantity, unit, Axis::MESSAGE_SIZE);
    let rate = report.frames_per_s;
    let rate = rate.map(|y| alone(of("frames", Quantity::MessageRate, Unit::PerS), size, y));
    let bytes = report.bytes_per_s;
    let bytes = bytes.map(|y| alone(of("bytes", Quantity::Bandwidth, Unit::BytesPerS), size, y));
    it.series.splice(0..0, rate.into_iter().chain(bytes));
    let cpu: f64 = report.cpu_s.values().flatten().sum();
    if report.bytes > 0.0 && cpu > 0.0 {
        let series = of("all", Quantity::CpuPerByte, Unit::NsPerByte);
        it.series.push(alone(series, size, cpu * 1e9 / report.bytes));
    }
    if report.disturbed {
        let why = "most of the run was spent waiting for frames that never came".to_owned();
        it.empty.push(Empty { what: "frames and bytes per second".to_owned(), why });
    }
    it
}

fn scale(scale: &OwnScale, title: &str) -> Vec<Measurement> {
    let one = |scaling: &Scaling| {
        let first = scaling.points.first()?;
        let grows =
            |of: fn(&ScalePoint) -> f64| scaling.points.iter().any(|it| of(it) != of(first));
        let by_guests = grows(|it| it.guests) && !grows(|it| it.sidecores);
        let quantity = if by_guests { Against::Guests } else { Against::Sidecores };
        let axis = Axis { quantity, unit: Unit::Count };
        let axes = ["guests", "sidecores", "jobs"];
        let mut it =
            measured("scale", &format!("{title}: {}", scaling.name), &first.report.asked, &axes);
        // With threads that share cores, a rate is the scheduler's work. Processor time is still
        // the threads' own.
        let rate = |it: &ScalePoint| it.report.iops.filter(|_| it.seated);
        let cpu = |it: &ScalePoint| {
            let seconds: f64 = it.report.cpu_s.values().flatten().sum();
            (it.report.requests > 0.0).then(|| seconds * 1e6 / it.report.requests)
        };
        let of = |name, quantity, unit, y: &dyn Fn(&ScalePoint) -> Option<f64>| {
            let x = |it: &ScalePoint| if by_guests { it.guests } else { it.sidecores };
            let point = |it: &ScalePoint| Some(Point::new(x(it), y(it)?));
            let points = scaling.points.iter().filter_map(point).collect();
            Series { points, ..Series::new(name, quantity, unit, axis) }
        };
        it.series = vec![
            of("requests", Quantity::Iops, Unit::PerS, &rate),
            of("all", Quantity::CpuPerRequest, Unit::Us, &cpu),
        ];
        it.series.retain(|series| !series.points.is_empty());
        for one in scaling.points.iter().filter(|it| !it.seated) {
            let ScalePoint { sidecores, guests, .. } = one;
            let what = format!("IOPS with {sidecores} sidecores and {guests} guests");
            it.empty.push(Empty { what, why: NO_SEATS.to_owned() });
        }
        Some(it)
    };
    scale.series.iter().filter_map(one).collect()
}

fn connections(report: &Connections, title: &str) -> Vec<Measurement> {
    let mut it = measured("connections", title, &report.asked, &[]);
    let of = |name, y: fn(&OwnLine) -> f64| {
        let label = |line: &OwnLine| format!("{}, {}", word(&line.pattern), line.transport);
        let points = report.lines.iter().enumerate();
        let point =
            |(place, line): (usize, &OwnLine)| Point::of_category(place, &label(line), y(line));
        let series = Series::new(name, Quantity::Connections, Unit::Count, Axis::CATEGORY);
        Series { points: points.map(point).collect(), ..series }
    };
    it.series = vec![of("of a process", |it| it.per_process), of("of a host", |it| it.per_host)];
    vec![it]
}
