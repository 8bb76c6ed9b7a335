//! Made-up runs, with everything that a page can show.

use std::collections::BTreeMap;

use report::store::Loaded;
use results::{
    Axis, Empty, Machine, Measurement, Point, Quantity, Run, RunOrigin, SCHEMA, Series, Spread,
    Statistic, Unit,
};

/// A text for every place that can have words. No part of it may become anything but text.
pub(crate) const HOSTILE: &str =
    "</script></style><script>document.title='broken'</script><img src=x onerror=alert(1)>\"'";

const PROCESSORS: [&str; 2] = ["AMD EPYC 9B14", "Intel Xeon Platinum 8481C"];

/// The run with this number. Its figures are a little larger than those of the run before.
pub(crate) fn run(number: usize) -> Loaded {
    let times = 1.0 + 0.22 * number as f64;
    let run = Run {
        schema: SCHEMA,
        id: format!("run-{number}"),
        begun: format!("2026-11-22T22:51:{number:02}Z"),
        title: format!("run {number}"),
        command: ["vrio", "bench", "all", "--seconds", "1"].map(str::to_owned).to_vec(),
        machine: Some(Machine {
            processor: PROCESSORS[number % 2].to_owned(),
            cores: 2,
            kernel: "6.18.5".to_owned(),
            cache_line_round_trip_ns: Some(46 + 200 * (number as u64 % 2)),
            version: Some("0.1.0".to_owned()),
            commit: Some("3ea30ba".to_owned()),
            optimised: Some(true),
        }),
        tools: BTreeMap::from([("QEMU".to_owned(), "10.0.2".to_owned())]),
        notes: Vec::new(),
    };
    let measurements =
        vec![messages("shared memory", times), disks(times), events(), failover(times)];
    Loaded { run, measurements }
}

/// A published measurement of messages.
pub(crate) fn published() -> Measurement {
    let mut it = Measurement::new(RunOrigin::Published, "osu_latency", "native QDR InfiniBand");
    it.source = Some("a blog, December 2013".to_owned());
    it.quotations = vec!["the extra latency is less than 10%".to_owned()];
    it.misprints = vec!["milliseconds where microseconds are meant".to_owned()];
    let points = (0..22).map(|power| {
        let size = f64::from(1 << power);
        Point::new(size, 1.6 + size / 3800.0)
    });
    it.series = vec![Series {
        points: points.collect(),
        ..Series::new("latency", Quantity::Latency, Unit::Us, Axis::MESSAGE_SIZE)
    }];
    it
}

fn messages(title: &str, times: f64) -> Measurement {
    let mut it = Measurement::new(RunOrigin::Measured, "mpi_latency", title);
    it.setup.insert("provider".to_owned(), "vrio".to_owned());
    let sizes = || (0..23).map(|power| f64::from(1_u32 << power));
    let latency = sizes().map(|size| {
        let y = times * (0.45 + size / 4000.0);
        Point { low: Some(y * 0.8), high: Some(y * 1.9), ..Point::new(size, y) }
    });
    let rate = |most: f64| {
        sizes().map(move |size| Point::new(size, most / times * size / (size + 9000.0))).collect()
    };
    let new = |name: &str, quantity, unit, points: Vec<Point>| Series {
        points,
        ..Series::new(name, quantity, unit, Axis::MESSAGE_SIZE)
    };
    let cost = sizes().map(|size| Point::new(size, times * (0.08 + 300.0 / size))).collect();
    it.series = vec![
        Series {
            spread: Spread::P1P99,
            statistic: Some(Statistic::Median),
            ..new("latency", Quantity::Latency, Unit::Us, latency.collect())
        },
        Series {
            line_rate: Some(1250.0),
            ..new("bandwidth", Quantity::Bandwidth, Unit::MbPerS, rate(1100.0))
        },
        new("both ways", Quantity::BidirectionalBandwidth, Unit::MbPerS, rate(1900.0)),
        new("sender", Quantity::CpuPerByte, Unit::NsPerByte, cost),
    ];
    it
}

fn disks(times: f64) -> Measurement {
    let mut it = Measurement::new(RunOrigin::Measured, "block", "remote, 4 KiB reads");
    let points = (0..7).map(|power| {
        let depth = f64::from(1 << power);
        let y = 480_000.0 / times * depth / (depth + 11.0);
        Point { low: Some(y * 0.93), high: Some(y * 1.05), ..Point::new(depth, y) }
    });
    it.series = vec![Series {
        points: points.collect(),
        spread: Spread::MinMax,
        ..Series::new("IOPS", Quantity::Iops, Unit::PerS, Axis::QUEUE_DEPTH)
    }];
    it
}

/// Events in the order of the slides, without those that cannot be measured without KVM.
fn events() -> Measurement {
    let mut it = Measurement::new(RunOrigin::Measured, "models", "a guest's requests");
    let models = ["optimum", "vRIO direct", "Elvis", "vRIO without polling", "baseline"];
    let columns: [(&str, [Option<f64>; 5]); 4] = [
        ("guest interrupts", [Some(2.0); 5]),
        ("host interrupts", [Some(0.0), Some(0.0), Some(2.0), Some(0.0), Some(2.0)]),
        ("IOhost interrupts", [Some(0.0), Some(0.0), Some(0.0), Some(4.0), Some(0.0)]),
        ("synchronous exits", [Some(0.0), Some(0.0), Some(0.0), Some(0.0), None]),
    ];
    for (name, counts) in columns {
        let points = (0..5).filter_map(|at| Some(Point::of_category(at, models[at], counts[at]?)));
        it.series.push(Series {
            points: points.collect(),
            ..Series::new(name, Quantity::EventsPerRequest, Unit::Count, Axis::CATEGORY)
        });
    }
    let why = "there is no KVM here, so nothing exits".to_owned();
    it.empty = vec![Empty { what: "synchronous exits, baseline".to_owned(), why }];
    it
}

/// Ten seconds of requests, with one second without answers.
fn failover(times: f64) -> Measurement {
    let mut it = Measurement::new(RunOrigin::Measured, "demo", "a killed IOhost");
    let mut points: Vec<Point> = (0..1000)
        .map(|at| {
            let time = f64::from(at) / 100.0;
            let is_away = (4.0..5.1).contains(&time);
            let noise = f64::from(at * 7919 % 100) * 30.0;
            Point::new(time, if is_away { 0.0 } else { 16_000.0 / times + noise })
        })
        .collect();
    points[400].label = Some("io1 killed".to_owned());
    points[510].label = Some("io1 answers again".to_owned());
    it.series = vec![Series {
        points,
        ..Series::new("requests", Quantity::Iops, Unit::PerS, Axis::SECONDS)
    }];
    it
}
