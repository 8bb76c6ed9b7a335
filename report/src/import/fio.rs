//! fio's JSON: a job, or a group of jobs, with figures of reads and writes.

use std::collections::BTreeMap;

use results::{Axis, Measurement, Point, Quantity, Series, Spread, Statistic, Unit};
use serde::Deserialize;

use super::fault::{Fault, Imported};
use super::measurement::{alone, measurement};

#[derive(Deserialize)]
struct FioFile {
    #[serde(rename = "fio version")]
    version: String,
    #[serde(rename = "global options", default)]
    global: BTreeMap<String, String>,
    jobs: Vec<FioJob>,
}

#[derive(Deserialize)]
struct FioJob {
    jobname: String,
    #[serde(default)]
    error: i64,
    #[serde(rename = "job options", default)]
    options: BTreeMap<String, String>,
    read: FioWay,
    write: FioWay,
    #[serde(default)]
    job_runtime: f64,
    #[serde(default)]
    usr_cpu: f64,
    #[serde(default)]
    sys_cpu: f64,
}

#[derive(Deserialize)]
struct FioWay {
    total_ios: u64,
    iops: f64,
    bw_bytes: f64,
    #[serde(default)]
    clat_ns: Times,
    #[serde(default)]
    lat_ns: Times,
}

/// The times of requests. Percentiles are of one of the two kinds of latency.
#[derive(Default, Deserialize)]
struct Times {
    #[serde(default)]
    mean: f64,
    #[serde(default)]
    stddev: f64,
    #[serde(default)]
    percentile: BTreeMap<String, f64>,
}

/// The options that become the set-up of a measurement.
const OPTIONS: [&str; 12] = [
    "ioengine",
    "rw",
    "bs",
    "numjobs",
    "direct",
    "rwmixread",
    "filename",
    "directory",
    "size",
    "filesize",
    "iodepth_batch",
    "runtime",
];

/// The kind of fio's latencies that is reported, for `latency` of the set-up.
const WHOLE: &str = "from the request's creation (lat)";
const COMPLETION: &str = "from the request's submission (clat)";

/// Reads the JSON, which begins in that line.
pub(super) fn read(text: &str, line: usize, title: &str) -> Imported {
    let what = "fio's JSON with its jobs";
    let file: FioFile = serde_json::from_str(text).map_err(Fault::json(text, line, what))?;
    if file.jobs.is_empty() {
        return Err(Fault::new(line, "at least one job", "none"));
    }
    let is_alone = file.jobs.len() == 1;
    let of = |job: &FioJob| {
        let title = if is_alone { title.to_owned() } else { format!("{title}: {}", job.jobname) };
        one(&file, job, &title, line)
    };
    file.jobs.iter().map(of).collect()
}

fn one(file: &FioFile, job: &FioJob, title: &str, line: usize) -> Result<Measurement, Fault> {
    if job.error != 0 {
        let found = format!("its error {}", job.error);
        return Err(Fault::new(line, format!("a job {:?} that went well", job.jobname), found));
    }
    let option = |name: &str| job.options.get(name).or_else(|| file.global.get(name));
    // An option that stands alone in fio's file has an empty value. The depth is one by default.
    let depth = option("iodepth").and_then(|words| words.parse().ok()).unwrap_or(1.0);
    let mut it = measurement("fio", title);
    it.setup.insert("version".to_owned(), file.version.clone());
    for name in OPTIONS {
        if let Some(value) = option(name) {
            it.setup.insert(name.to_owned(), value.clone());
        }
    }
    if file.jobs.len() > 1 {
        it.setup.insert("job".to_owned(), job.jobname.clone());
    }
    let ways = [("read", &job.read), ("write", &job.write)];
    let used = || ways.into_iter().filter(|(_, way)| way.total_ios > 0);
    // Both ways of a job report the same kind of latency, so that a line of a plot has one kind of
    // numbers.
    let is_whole = used().all(|(_, way)| way.has_whole());
    let latency = if is_whole { WHOLE } else { COMPLETION };
    it.setup.insert("latency".to_owned(), latency.to_owned());
    for (name, way) in used() {
        it.series.extend(series(name, way, depth, is_whole));
    }
    if it.series.is_empty() {
        let found = format!("none of job {:?}", job.jobname);
        return Err(Fault::new(line, "requests that were read or written", found));
    }
    let (requests, share) = (job.read.total_ios + job.write.total_ios, job.usr_cpu + job.sys_cpu);
    if job.job_runtime > 0.0 && share > 0.0 {
        // Processor time of fio's own threads, without the kernel's threads.
        let us = share / 100.0 * job.job_runtime * 1e3 / requests as f64;
        let series =
            Series::new("fio's threads", Quantity::CpuPerRequest, Unit::Us, Axis::QUEUE_DEPTH);
        it.series.push(alone(series, depth, us));
    }
    Ok(it)
}

impl FioWay {
    /// Whether there are percentiles of whole latencies. fio prints percentiles of one kind, and of
    /// this kind with `--lat_percentiles` alone. A job without percentiles has means of both kinds.
    fn has_whole(&self) -> bool {
        let is_there = |times: &Times| !times.percentile.is_empty();
        is_there(&self.lat_ns) || !is_there(&self.clat_ns) && self.lat_ns.mean > 0.0
    }
}

fn series(name: &str, way: &FioWay, depth: f64, is_whole: bool) -> Vec<Series> {
    let of = |quantity, unit| Series::new(name, quantity, unit, Axis::QUEUE_DEPTH);
    let mut all = vec![
        alone(of(Quantity::Iops, Unit::PerS), depth, way.iops),
        alone(of(Quantity::Bandwidth, Unit::BytesPerS), depth, way.bw_bytes),
    ];
    let times = if is_whole { &way.lat_ns } else { &way.clat_ns };
    let us = |share: &str| times.percentile.get(share).map(|ns| ns / 1e3);
    if let Some(median) = us("50.000000") {
        let ends = us("5.000000").zip(us("95.000000"));
        let spread = if ends.is_some() { Spread::P5P95 } else { Spread::None };
        let (low, high) = ends.unzip();
        let points = vec![Point { low, high, ..Point::new(depth, median) }];
        let statistic = Some(Statistic::Median);
        all.push(Series { statistic, spread, points, ..of(Quantity::Latency, Unit::Us) });
    }
    if let Some(p99) = us("99.000000") {
        let statistic = Some(Statistic::P99);
        let it = Series { statistic, ..of(Quantity::Latency, Unit::Us) };
        all.push(alone(it, depth, p99));
    }
    if times.mean > 0.0 {
        let (mean, off) = (times.mean / 1e3, times.stddev / 1e3);
        let (low, high) = (Some((mean - off).max(0.0)), Some(mean + off));
        let points = vec![Point { low, high, ..Point::new(depth, mean) }];
        let (statistic, spread) = (Some(Statistic::Mean), Spread::StandardDeviation);
        all.push(Series { statistic, spread, points, ..of(Quantity::Latency, Unit::Us) });
    }
    all
}
