//! iperf3's JSON: bytes sent and bytes received, of streams one way or both ways.

use results::{Axis, Point, Quantity, Series, Statistic, Unit};
use serde::Deserialize;

use super::fault::{Fault, Imported};
use super::measurement::{alone, measurement};

#[derive(Deserialize)]
struct IperfFile {
    start: Start,
    #[serde(default)]
    intervals: Vec<Interval>,
    end: IperfEnd,
    error: Option<String>,
}

#[derive(Deserialize)]
struct Start {
    #[serde(default)]
    version: String,
    test_start: Option<Test>,
    connecting_to: Option<To>,
}

/// The server of a test.
#[derive(Deserialize)]
struct To {
    #[serde(default)]
    host: String,
}

#[derive(Deserialize)]
struct Test {
    protocol: String,
    num_streams: u32,
    blksize: f64,
    #[serde(default)]
    reverse: u8,
}

#[derive(Deserialize)]
struct Interval {
    sum: Sum,
}

#[derive(Default, Deserialize)]
struct IperfEnd {
    sum: Option<Sum>,
    sum_sent: Option<Sum>,
    sum_received: Option<Sum>,
    sum_received_bidir_reverse: Option<Sum>,
    cpu_utilization_percent: Option<Cpu>,
}

#[derive(Deserialize)]
struct Sum {
    #[serde(default)]
    start: f64,
    #[serde(default)]
    seconds: f64,
    #[serde(default)]
    bytes: f64,
    bits_per_second: f64,
    retransmits: Option<f64>,
    jitter_ms: Option<f64>,
    lost_percent: Option<f64>,
}

/// Processor time, in percent of one core.
#[derive(Deserialize)]
struct Cpu {
    host_total: f64,
    remote_total: f64,
}

/// Reads the JSON, which begins in that line.
pub(super) fn read(text: &str, line: usize, title: &str) -> Imported {
    let what = "iperf3's JSON with its start and end";
    let file: IperfFile = serde_json::from_str(text).map_err(Fault::json(text, line, what))?;
    if let Some(error) = file.error {
        return Err(Fault::new(
            line,
            "a run of iperf3 that went well",
            format!("its error: {error}"),
        ));
    }
    let missing = |name: &str| Fault::new(line, format!("iperf3's {name:?}"), "none");
    let test = file.start.test_start.as_ref().ok_or_else(|| missing("test_start"))?;
    let end = &file.end;
    let received = end.sum_received.as_ref().or(end.sum.as_ref());
    let received = received.ok_or_else(|| missing("sum_received"))?;
    let size = test.blksize;
    let of = |name, quantity, unit| Series::new(name, quantity, unit, Axis::MESSAGE_SIZE);
    let rate = |sum: &Sum| sum.bits_per_second / 8.0;

    let mut it = measurement("iperf3", title);
    let setup = [
        ("version", file.start.version.clone()),
        ("protocol", test.protocol.clone()),
        ("streams", test.num_streams.to_string()),
        ("reverse", (test.reverse != 0).to_string()),
    ];
    it.setup.extend(setup.map(|(name, value)| (name.to_owned(), value)));
    let to = file.start.connecting_to.as_ref();
    it.setup.extend(to.map(|to| ("to".to_owned(), to.host.clone())));
    let mean = |series| Series { statistic: Some(Statistic::Mean), ..series };
    let one = mean(of("received", Quantity::Bandwidth, Unit::BytesPerS));
    it.series.push(alone(one, size, rate(received)));
    if let Some(back) = &end.sum_received_bidir_reverse {
        let back_one = mean(of("received, way back", Quantity::Bandwidth, Unit::BytesPerS));
        it.series.push(alone(back_one, size, rate(back)));
        let both = mean(of("both ways", Quantity::BidirectionalBandwidth, Unit::BytesPerS));
        it.series.push(alone(both, size, rate(received) + rate(back)));
    }
    if let Some(count) = end.sum_sent.as_ref().and_then(|sum| sum.retransmits) {
        let series = of("retransmissions", Quantity::Retransmits, Unit::Count);
        it.series.push(alone(series, size, count));
    }
    if let Some(lost) = received.lost_percent {
        it.series.push(alone(of("lost", Quantity::LostShare, Unit::Percent), size, lost));
    }
    if let Some(jitter) = received.jitter_ms.filter(|_| test.protocol == "UDP") {
        it.series.push(alone(of("jitter", Quantity::Jitter, Unit::Us), size, jitter * 1e3));
    }
    if let Some(cpu) = end.cpu_utilization_percent.as_ref().filter(|_| received.bytes > 0.0) {
        let each = |percent: f64| percent / 100.0 * received.seconds * 1e9 / received.bytes;
        for (name, percent) in [("client", cpu.host_total), ("server", cpu.remote_total)] {
            let series = of(name, Quantity::CpuPerByte, Unit::NsPerByte);
            it.series.push(alone(series, size, each(percent)));
        }
    }
    it.series.extend(over_time(&file.intervals));
    Ok(vec![it])
}

/// The rate of each interval, as its sender saw it; a single interval says no more than the sum.
fn over_time(intervals: &[Interval]) -> Option<Series> {
    let point = |it: &Interval| Point::new(it.sum.start, it.sum.bits_per_second / 8.0);
    let mut points: Vec<_> = intervals.iter().map(point).collect();
    points.sort_by(|a, b| a.x.total_cmp(&b.x));
    let series = Series::new("over time", Quantity::Bandwidth, Unit::BytesPerS, Axis::SECONDS);
    (points.len() > 1).then_some(Series { points, ..series })
}
