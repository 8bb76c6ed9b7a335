//! What came of a measurement: one JSON object, or a table.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::{Op, Options, Passed, Path};
use crate::block::Latency;
use crate::block::events::{Events, Role};
use crate::block::report::{bytes, number, round_trips, shares, size};
use crate::machine::Machine;

/// The version of the JSON form.
const REPORT_VERSION: u32 = 1;

/// A measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The version of this form.
    pub version: u32,
    /// What was asked for.
    pub asked: Options,
    /// From the first frame to the last.
    pub seconds: f64,
    /// Frames that arrived; of one that bounces, each way counts.
    pub frames: u64,
    /// Frames that were sent and did not.
    pub frames_lost: u64,
    /// Frames that arrived, per second.
    pub frames_per_s: f64,
    /// Bytes of theirs, per second.
    pub bytes_per_s: f64,
    /// How long a frame took there and back, where one bounces.
    pub latency_us: Option<Latency>,
    /// What happened for each frame that arrived.
    pub events_per_frame: BTreeMap<String, f64>,
    /// Processor time by role, in seconds; none where nobody tells.
    pub cpu_s: BTreeMap<&'static str, Option<f64>>,
    /// The share of a core that each busy thread got, by role and thread.
    pub core_share: BTreeMap<String, f64>,
    /// The longer of both below.
    pub cache_line_rtt_ns: Option<u64>,
    /// How long a cache line took between the first core and the last and back, before and after.
    pub cache_line_rtts_ns: [Option<u64>; 2],
    /// The machine.
    pub machine: Machine,
}

impl Report {
    pub(super) fn new(
        options: &Options,
        passed: &Passed,
        events: &Events,
        rtts_ns: [Option<u64>; 2],
        machine: Machine,
    ) -> Self {
        let Passed { outcome, frames, bytes, lost, drove } = passed;
        let seconds = outcome.took.as_secs_f64();
        let mut events_per_frame = events.per_request(*frames);
        events_per_frame.insert("kicks".to_owned(), outcome.kicks as f64 / *frames as f64);
        let driver: Duration = outcome.driver_cpu.iter().sum();
        let cpu_s =
            [(Role::Driver.name(), Some(driver)), (Role::Vmhost.name(), events.cpu(Role::Vmhost))];
        let frames_per_s = *frames as f64 / seconds;
        Self {
            version: REPORT_VERSION,
            asked: options.clone(),
            seconds,
            frames: *frames,
            frames_lost: *lost,
            frames_per_s,
            bytes_per_s: *bytes as f64 / seconds,
            latency_us: (options.op == Op::Bounce).then(|| Latency::of(outcome)),
            events_per_frame,
            cpu_s: cpu_s.map(|(role, time)| (role, time.map(|time| time.as_secs_f64()))).into(),
            core_share: events.core_share(&outcome.driver_cpu, *drove),
            cache_line_rtt_ns: rtts_ns.into_iter().flatten().max(),
            cache_line_rtts_ns: rtts_ns,
            machine,
        }
    }

    fn title(&self) -> String {
        let Options { path, op, size_bytes, idle, .. } = &self.asked;
        let (path, idle) = match path {
            Path::Local => ("local".to_owned(), format!(", idle {idle}")),
            Path::Socket(one, two) => {
                (format!("socket {},{}", one.display(), two.display()), String::new())
            }
        };
        let op = match op {
            Op::Forward => format!("depth {}", self.asked.depth()),
            Op::Bounce => "one there and back".to_owned(),
        };
        format!("{path}: frames of {}, {op}{idle}", size(*size_bytes))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.title())?;
        writeln!(
            f,
            "  throughput   {:.0} frames/s, {}/s ({} frames in {:.1} s, {} lost)",
            self.frames_per_s,
            bytes(self.bytes_per_s),
            self.frames,
            self.seconds,
            self.frames_lost
        )?;
        if let Some(Latency { mean, p50, p99, p999, max }) = self.latency_us {
            let [mean, p50, p99, p999, max] = [mean, p50, p99, p999, max].map(number);
            writeln!(
                f,
                "  round, us    mean {mean}, p50 {p50}, p99 {p99}, p99.9 {p999}, longest {max}"
            )?;
        }
        writeln!(f, "  per frame")?;
        for (name, count) in &self.events_per_frame {
            writeln!(f, "    {:<24} {:>10.4}", name.replace('_', " "), count)?;
        }
        let cpu = self.cpu_s.iter().filter_map(|(role, time)| Some((role, (*time)?)));
        let cpu: Vec<_> = cpu.map(|(role, time)| format!("{role} {time:.2}")).collect();
        writeln!(f, "  processor, s {}", cpu.join(", "))?;
        writeln!(f, "  core share   {}", shares(&self.core_share))?;
        let Machine { cores, processor, kernel, .. } = &self.machine;
        let trip = round_trips(self.cache_line_rtts_ns);
        writeln!(f, "  machine      {trip}; {cores} cores, {processor}, Linux {kernel}")?;
        let slow = if self.machine.optimised { "" } else { "; NOT OPTIMISED: build --release" };
        writeln!(f, "  version      vrio {}{slow}", self.machine.build())
    }
}
