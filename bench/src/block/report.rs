//! The result of a measurement: one JSON object, or a table.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::options::{BlockOptions, Path, Volume};
use crate::load::LoadOutcome;
use testbed::events::{Events, POOL_BLOCKS_WRITTEN, Role};
use testbed::machine::Machine;
use testbed::pair::{PairLink, between};
use testbed::stage::NodeNetwork;

/// The version of the JSON form.
const REPORT_VERSION: u32 = 1;

/// The factor between two round trips of a cache line from which on the cores count as moved.
const MOVED: f64 = 1.5;

/// The time of requests, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Latency {
    /// The mean.
    pub mean: f64,
    /// Half of them took no longer.
    pub p50: f64,
    /// 99 of a hundred.
    pub p99: f64,
    /// 999 of a thousand.
    pub p999: f64,
    /// The longest.
    pub max: f64,
}

impl Latency {
    pub(crate) fn of(outcome: &LoadOutcome) -> Self {
        let us = |share| outcome.quantile_us(share);
        Self {
            mean: outcome.latency.mean() / 1e3,
            p50: us(0.5),
            p99: us(0.99),
            p999: us(0.999),
            max: us(1.0),
        }
    }
}

/// A measurement.
#[derive(Clone, Debug, Serialize)]
pub struct BlockReport {
    /// The version of this form.
    pub version: u32,
    /// The options of this run that mean something for its way.
    pub asked: serde_json::Value,
    #[serde(skip)]
    options: BlockOptions,
    /// The network between the nodes, where there were two.
    pub network: Option<NodeNetwork>,
    /// The time from the first submission to the last completion.
    pub seconds: f64,
    /// Requests completed.
    pub requests: u64,
    /// Requests per second.
    pub iops: f64,
    /// Bytes per second.
    pub bytes_per_s: f64,
    /// The time of requests.
    pub latency_us: Latency,
    /// Events for each request, as nodes count them.
    pub events_per_request: BTreeMap<String, f64>,
    /// Requests that each sidecore took, from guests and from peers, by role and thread.
    pub requests_by_sidecore: BTreeMap<String, u64>,
    /// Processor time by role, in seconds; none of a foreign server without `--pid`.
    pub cpu_s: BTreeMap<&'static str, Option<f64>>,
    /// The share of a core that each busy thread got, by role and thread.
    pub core_share: BTreeMap<String, f64>,
    /// The time of a cache line between the first core, a node's, and the last, the driver's, and
    /// back. It was measured twice, and the longer time is here.
    pub cache_line_rtt_ns: Option<u64>,
    /// Both round trips, before and after the measurement. Where they differ much, cores have moved
    /// meanwhile.
    pub cache_line_rtts_ns: [Option<u64>; 2],
    /// The machine.
    pub machine: Machine,
    /// The same disk while its pool collects, where that was measured as well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collecting: Option<Box<Self>>,
}

impl BlockReport {
    pub(super) fn new(
        options: &BlockOptions,
        network: Option<NodeNetwork>,
        outcome: &LoadOutcome,
        events: &Events,
        rtts_ns: [Option<u64>; 2],
        machine: Machine,
    ) -> Self {
        let requests = outcome.requests();
        let mut events_per_request = events.per_request(requests);
        if !options.is_generated() {
            let kicks = outcome.kicks as f64 / requests as f64;
            events_per_request.insert("kicks".to_owned(), kicks);
        }
        let driver: Duration = outcome.driver_cpu.iter().sum();
        let cpu_s = [
            (Role::Driver.name(), Some(driver)),
            (Role::Vmhost.name(), events.cpu(Role::Vmhost)),
            (Role::Iohost.name(), events.cpu(Role::Iohost)),
        ];
        Self {
            version: REPORT_VERSION,
            asked: asked(options),
            options: options.clone(),
            network,
            seconds: outcome.took.as_secs_f64(),
            requests,
            iops: outcome.iops(),
            bytes_per_s: outcome.iops() * f64::from(options.size_bytes),
            latency_us: Latency::of(outcome),
            events_per_request,
            requests_by_sidecore: events.by_sidecore(),
            cpu_s: cpu_s.map(|(role, time)| (role, time.map(|time| time.as_secs_f64()))).into(),
            core_share: events.core_share(&outcome.driver_cpu, outcome.took),
            cache_line_rtt_ns: rtts_ns.into_iter().flatten().max(),
            cache_line_rtts_ns: rtts_ns,
            machine,
            collecting: None,
        }
    }

    /// Blocks that the pool's devices had to write for each request that was a write of a block.
    pub fn pool_amplification(&self) -> Option<f64> {
        self.events_per_request.get(POOL_BLOCKS_WRITTEN).copied()
    }

    /// Whether cores moved during the measurement: the result is of no single level.
    pub fn has_moved(&self) -> bool {
        have_moved(self.cache_line_rtts_ns)
    }

    /// Requests outstanding of each job.
    pub(super) fn depth(&self) -> u16 {
        self.options.depth
    }

    /// Processor time for each request of all roles together, in microseconds; none where a
    /// server's is not known.
    pub fn cpu_us_per_request(&self) -> Option<f64> {
        let is_foreign = matches!(self.options.path, Path::Socket(_));
        if is_foreign && self.options.pids.is_empty() {
            return None;
        }
        Some(self.cpu_s.values().flatten().sum::<f64>() * 1e6 / self.requests as f64)
    }
}

fn asked(options: &BlockOptions) -> serde_json::Value {
    let meeting = &PairLink::OPTIONS[..];
    match options.path {
        Path::Local => without(options, &[meeting, &["pids"]]),
        Path::Remote => without(options, &[&["pids"]]),
        Path::Direct => without(options, &[&["pids", "driver", "packed", "reuse"]]),
        Path::Bare => {
            without(options, &[meeting, &["pids", "driver", "packed", "reuse", "sidecores"]])
        }
        Path::Socket(_) => without(options, &[meeting, &["sidecores", "idle"]]),
    }
}

/// The options without those that do not apply.
pub(crate) fn without(options: &impl Serialize, nothing: &[&[&str]]) -> serde_json::Value {
    let mut asked = serde_json::to_value(options).expect("plain data");
    if let Some(asked) = asked.as_object_mut() {
        nothing.iter().copied().flatten().for_each(|name| drop(asked.remove(*name)));
    }
    asked
}

/// Whether cores have moved between two round trips of a cache line.
pub(crate) fn have_moved(rtts_ns: [Option<u64>; 2]) -> bool {
    match rtts_ns {
        [Some(one), Some(two)] => one.max(two) as f64 > MOVED * one.min(two) as f64,
        _ => false,
    }
}

/// Both, in words.
pub(crate) fn round_trips(rtts_ns: [Option<u64>; 2]) -> String {
    let [Some(before), Some(after)] = rtts_ns else { return "one core only".to_owned() };
    let moved = if have_moved(rtts_ns) { "; the cores have MOVED meanwhile" } else { "" };
    format!("cache line round trip {before} ns before, {after} ns after{moved}")
}

/// A byte count as people write it.
pub(crate) fn bytes(count: f64) -> String {
    let units = ["B", "kB", "MB", "GB", "TB"];
    let mut count = count;
    for unit in units {
        if count < 1000.0 || unit == "TB" {
            return format!("{count:.*} {unit}", usize::from(count < 10.0 && unit != "B"));
        }
        count /= 1000.0;
    }
    unreachable!("the last unit is never left")
}

pub(crate) fn size(bytes: u32) -> String {
    if bytes >= 1024 { format!("{} KiB", bytes / 1024) } else { format!("{bytes} B") }
}

/// A number with as many digits as mean something.
pub(crate) fn number(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str("local"),
            Self::Remote => f.write_str("remote"),
            Self::Direct => f.write_str("direct"),
            Self::Socket(path) => write!(f, "socket {}", path.display()),
            Self::Bare => f.write_str("bare"),
        }
    }
}

impl fmt::Display for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Memory => f.write_str("memory"),
            Self::File(path) => write!(f, "file:{}", path.display()),
            Self::DirectFile(path) => write!(f, "direct:{}", path.display()),
            Self::Pool(path) => write!(f, "pool:{}", path.display()),
        }
    }
}

impl BlockReport {
    fn title(&self) -> String {
        let BlockOptions { path, volume, op, depth, guests, jobs, idle, encrypt, iops, .. } =
            &self.options;
        let chain = match self.options.chain.as_slice() {
            [] => String::new(),
            chain => format!(
                " behind {}",
                chain.iter().map(|stage| stage.name).collect::<Vec<_>>().join(" > ")
            ),
        };
        let behind = match path {
            Path::Socket(_) => String::new(),
            _ => format!(", {volume} volume{chain}"),
        };
        let between = between(self.network, *encrypt);
        let idle = match path {
            Path::Socket(_) => String::new(),
            _ => format!(", idle {idle}"),
        };
        let paced = iops.map(|iops| format!("{iops} IOPS asked for, ")).unwrap_or_default();
        let guests = if *guests == 1 { String::new() } else { format!("guests {guests}, ") };
        format!(
            "{path}{behind}{between}: {} of {}, depth {depth}, {paced}{guests}jobs {jobs}{idle}",
            op.name(),
            size(self.options.size_bytes)
        )
    }
}

impl fmt::Display for BlockReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Latency { mean, p50, p99, p999, max } = self.latency_us;
        writeln!(f, "{}", self.title())?;
        writeln!(
            f,
            "  throughput   {:.0} IOPS, {}/s ({} requests in {:.1} s)",
            self.iops,
            bytes(self.bytes_per_s),
            self.requests,
            self.seconds
        )?;
        let [mean, p50, p99, p999, max] = [mean, p50, p99, p999, max].map(number);
        writeln!(
            f,
            "  latency, us  mean {mean}, p50 {p50}, p99 {p99}, p99.9 {p999}, longest {max}"
        )?;
        let cost = Cost {
            each: "request",
            us: self.cpu_us_per_request(),
            events: &self.events_per_request,
            cpu_s: &self.cpu_s,
            core_share: &self.core_share,
            rtts_ns: self.cache_line_rtts_ns,
            machine: &self.machine,
        };
        write!(f, "{cost}")?;
        let Some(collecting) = &self.collecting else { return Ok(()) };
        writeln!(f, "while the pool collects, 80 % full:\n{collecting}")?;
        let ratio = collecting.latency_us.p99 / self.latency_us.p99;
        writeln!(
            f,
            "  p99 while the pool collects: {} us, {} times the {p99} us without",
            number(collecting.latency_us.p99),
            number(ratio),
        )
    }
}

/// The end of a report: the cost of each request or frame, and the machine.
pub(crate) struct Cost<'a> {
    /// The unit of work: a request or a frame.
    pub(crate) each: &'a str,
    /// Processor time of each, in microseconds; none where a server's is not known.
    pub(crate) us: Option<f64>,
    pub(crate) events: &'a BTreeMap<String, f64>,
    pub(crate) cpu_s: &'a BTreeMap<&'static str, Option<f64>>,
    pub(crate) core_share: &'a BTreeMap<String, f64>,
    pub(crate) rtts_ns: [Option<u64>; 2],
    pub(crate) machine: &'a Machine,
}

impl fmt::Display for Cost<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each = format!("per {}", self.each);
        match self.us {
            Some(us) => writeln!(f, "  {each:<12} {us:.2} us of processor time")?,
            None => writeln!(f, "  {each:<12} (--pid says whose processor time counts)")?,
        }
        for (name, count) in self.events {
            writeln!(f, "    {:<28} {:>10.4}", name.replace('_', " "), count)?;
        }
        let cpu = self.cpu_s.iter().filter_map(|(role, time)| Some((role, (*time)?)));
        let cpu: Vec<_> = cpu.map(|(role, time)| format!("{role} {time:.2}")).collect();
        writeln!(f, "  processor, s {}", cpu.join(", "))?;
        let words = |(thread, share): (&String, &f64)| format!("{thread} {:.0} %", share * 100.0);
        let shares: Vec<_> = self.core_share.iter().map(words).collect();
        writeln!(f, "  core share   {}", shares.join(", "))?;
        let trip = round_trips(self.rtts_ns);
        let Machine { cores, processor, kernel, .. } = self.machine;
        writeln!(f, "  machine      {trip}; {cores} cores, {processor}, Linux {kernel}")?;
        let build = self.machine.build();
        let slow = if self.machine.optimised { "" } else { "; NOT OPTIMISED: build --release" };
        writeln!(f, "  version      vrio {build}{slow}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!([5.0, 999.0, 4_096e6].map(bytes), ["5 B", "999 B", "4.1 GB"]);
        assert_eq!([0.987, 12.34, 1234.5].map(number), ["0.99", "12.3", "1234"]);
        assert_eq!((size(512), size(65536)), ("512 B".to_owned(), "64 KiB".to_owned()));
    }
}
