//! The result of a measurement: one JSON object, or a table.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::traffic::TrafficResult;
use super::{Crossings, NetOp, NetOptions, Path};
use crate::block::Latency;
use crate::block::report::{Cost, bytes, number, size, without};
use testbed::events::{Events, Role};
use testbed::machine::Machine;
use testbed::pair::{PairLink, between};
use testbed::stage::NodeNetwork;

/// The version of the JSON form.
const REPORT_VERSION: u32 = 3;

/// A measurement.
#[derive(Clone, Debug, Serialize)]
pub struct NetReport {
    /// The version of this form.
    pub version: u32,
    /// The options of this run that mean something for its way.
    pub asked: serde_json::Value,
    #[serde(skip)]
    options: NetOptions,
    /// The network between the nodes, where there were two.
    pub network: Option<NodeNetwork>,
    /// The time from the first frame to the last, without waits for frames that never came.
    pub seconds: f64,
    /// Frames that arrived; of one that bounces, each way counts; of a stream, those with writes.
    pub frames: u64,
    /// Frames that were sent and did not arrive.
    pub frames_lost: u64,
    /// Frames that came twice, after all were given up, or from another sender.
    pub frames_strange: u64,
    /// The number of times that all frames under way were given up.
    pub time_outs: u64,
    /// The time spent on these waits, in seconds.
    pub waited_s: f64,
    /// The same as a share of the run, from 0 to 1.
    pub waited_share: f64,
    /// Whether that share is too large for the run to have rates.
    pub disturbed: bool,
    /// Bytes of the frames that arrived; of a stream, bytes of its writes.
    pub bytes: u64,
    /// Frames that arrived, per second; none of a run that was disturbed.
    pub frames_per_s: Option<f64>,
    /// Bytes of these frames, per second; none of a run that was disturbed.
    pub bytes_per_s: Option<f64>,
    /// Writes of a stream.
    pub writes: Option<u64>,
    /// The time of a frame there and back, where one bounces.
    pub latency_us: Option<Latency>,
    /// Events for each frame that arrived.
    pub events_per_frame: BTreeMap<String, f64>,
    /// Processor time by role, in seconds; none of a foreign server without `--pid`.
    pub cpu_s: BTreeMap<&'static str, Option<f64>>,
    /// The share of a core that each busy thread got, by role and thread.
    pub core_share: BTreeMap<String, f64>,
    /// The longer of both below.
    pub cache_line_rtt_ns: Option<u64>,
    /// The time of a cache line between the first core and the last and back, before and after.
    pub cache_line_rtts_ns: [Option<u64>; 2],
    /// The machine.
    pub machine: Machine,
}

impl NetReport {
    pub(super) fn new(
        options: &NetOptions,
        network: Option<NodeNetwork>,
        passed: &TrafficResult,
        events: &Events,
        rtts_ns: [Option<u64>; 2],
        machine: Machine,
    ) -> Self {
        let TrafficResult { outcome, tally, bytes, writes, calls, drove } = passed;
        let (seconds, frames) = (outcome.took.as_secs_f64(), tally.arrived);
        let waited_s = tally.waited_ns as f64 / 1e9;
        let waited_share = waited_s / (seconds + waited_s);
        let disturbed = super::disturbed(waited_s, seconds).is_some();
        let per_s = |count: u64| (!disturbed).then_some(count as f64 / seconds);
        let mut events_per_frame = events.per_request(frames);
        events_per_frame.insert("kicks".to_owned(), outcome.kicks as f64 / frames as f64);
        // A node does not count the calls of its nics; guests do. A guest that polls asks for no
        // calls.
        events_per_frame.insert("calls".to_owned(), *calls as f64 / frames as f64);
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
            seconds,
            frames,
            frames_lost: tally.lost,
            frames_strange: tally.strange,
            time_outs: tally.time_outs,
            waited_s,
            waited_share,
            disturbed,
            bytes: *bytes,
            frames_per_s: per_s(frames),
            bytes_per_s: per_s(*bytes),
            writes: *writes,
            latency_us: (options.op == NetOp::Bounce).then(|| Latency::of(outcome)),
            events_per_frame,
            cpu_s: cpu_s.map(|(role, time)| (role, time.map(|time| time.as_secs_f64()))).into(),
            core_share: events.core_share(&outcome.driver_cpu, *drove),
            cache_line_rtt_ns: rtts_ns.into_iter().flatten().max(),
            cache_line_rtts_ns: rtts_ns,
            machine,
        }
    }

    /// Processor time for each frame of all roles together, in microseconds; none where a server's
    /// is not known.
    pub fn cpu_us_per_frame(&self) -> Option<f64> {
        let is_foreign = matches!(self.options.path, Path::Socket(..));
        if is_foreign && self.options.pids.is_empty() {
            return None;
        }
        Some(self.cpu_s.values().flatten().sum::<f64>() * 1e6 / self.frames as f64)
    }

    /// The same of our nodes alone, without the stand-ins for guests, which poll.
    pub fn nodes_cpu_us_per_frame(&self) -> Option<f64> {
        let of = |role: Role| self.cpu_s.get(role.name()).copied().flatten();
        Some((of(Role::Vmhost)? + of(Role::Iohost)?) * 1e6 / self.frames as f64)
    }

    /// Bytes of each frame, or of the datagram there.
    pub(super) fn bytes_asked(&self) -> u32 {
        self.options.payload.map_or(self.options.size_bytes, |[ask, _]| u32::from(ask))
    }

    fn title(&self) -> String {
        let NetOptions { path, op, size_bytes, payload, idle, meeting, crossings, .. } =
            &self.options;
        let (path, idle) = match path {
            Path::Local => ("local".to_owned(), format!(", idle {idle}")),
            Path::Remote => {
                let between = between(self.network, meeting.encrypt);
                let crossings = match crossings {
                    Crossings::One => "one crossing",
                    Crossings::Two => "two crossings",
                };
                (format!("remote, {crossings}{between}"), format!(", idle {idle}"))
            }
            Path::Socket(one, two) => {
                (format!("socket {},{}", one.display(), two.display()), String::new())
            }
        };
        let (size, depth) = (size(*size_bytes), self.options.depth());
        let what = match (op, payload) {
            (NetOp::Forward, _) => format!("frames of {size}, depth {depth}"),
            (NetOp::Bounce, None) => format!("frames of {size}, one there and back"),
            (NetOp::Bounce, Some([ask, answer])) => {
                format!("UDP with {ask} B there and {answer} B back")
            }
            (NetOp::Stream, _) => format!("a stream of writes of {size}, depth {depth}"),
        };
        format!("{path}: {what}{idle}")
    }
}

/// The options without those that do not apply.
fn asked(options: &NetOptions) -> serde_json::Value {
    let meeting = &PairLink::OPTIONS[..];
    let size: &[&str] = if options.payload.is_some() { &["size_bytes"] } else { &["payload"] };
    match options.path {
        Path::Local => without(options, &[meeting, size, &["crossings", "pids"]]),
        Path::Remote => without(options, &[size, &["pids"]]),
        Path::Socket(..) => without(options, &[meeting, size, &["crossings", "idle"]]),
    }
}

impl fmt::Display for NetReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.title())?;
        let (arrived, lost) = (self.frames, self.frames_lost);
        let counts = format!("{arrived} frames in {:.1} s, {lost} lost", self.seconds);
        match (self.frames_per_s, self.bytes_per_s) {
            (Some(frames), Some(each)) => {
                writeln!(f, "  throughput   {frames:.0} frames/s, {}/s ({counts})", bytes(each))?;
            }
            _ => writeln!(f, "  throughput   none: DISTURBED ({counts})")?,
        }
        if self.time_outs > 0 {
            let (share, waited) = (100.0 * self.waited_share, number(self.waited_s));
            writeln!(
                f,
                "  time-outs    {}: {share:.0} % of the run, {waited} s, went by waiting for what \
                 never came, and are in no figure but processor time",
                self.time_outs,
            )?;
        }
        if self.frames_strange > 0 {
            writeln!(
                f,
                "  strange      {} frames: twice, too late or not ours",
                self.frames_strange
            )?;
        }
        if let Some(writes) = self.writes {
            let each = self.bytes as f64 / self.frames as f64;
            let per_s = writes as f64 / self.seconds;
            writeln!(f, "  stream       {per_s:.0} writes/s, {}/frame", bytes(each))?;
        }
        if let Some(Latency { mean, p50, p99, p999, max }) = self.latency_us {
            let [mean, p50, p99, p999, max] = [mean, p50, p99, p999, max].map(number);
            writeln!(
                f,
                "  round, us    mean {mean}, p50 {p50}, p99 {p99}, p99.9 {p999}, longest {max}"
            )?;
        }
        let cost = Cost {
            each: "frame",
            us: self.cpu_us_per_frame(),
            events: &self.events_per_frame,
            cpu_s: &self.cpu_s,
            core_share: &self.core_share,
            rtts_ns: self.cache_line_rtts_ns,
            machine: &self.machine,
        };
        write!(f, "{cost}")
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::load::LoadOutcome;
    use crate::net::flight::Tally;
    use testbed::events::EventsSnapshot;

    /// The report of a run that took a tenth of a second.
    pub(in crate::net) fn report(tally: Tally) -> NetReport {
        let options = NetOptions::new("vrio".into());
        let passed = TrafficResult {
            outcome: LoadOutcome { took: Duration::from_millis(100), ..LoadOutcome::new() },
            tally,
            bytes: 64 * tally.arrived,
            writes: None,
            calls: 0,
            drove: Duration::from_secs(1),
        };
        let look = EventsSnapshot::at([], &[]).unwrap();
        let events = look.since(&look);
        NetReport::new(&options, None, &passed, &events, [None; 2], Machine::look())
    }

    #[test]
    fn a_run_that_mostly_waited_has_no_rate_and_says_so() {
        let quiet = report(Tally { arrived: 1000, ..Tally::default() });
        assert_eq!((quiet.frames_per_s, quiet.bytes_per_s), (Some(1e4), Some(64e4)));
        assert_eq!((quiet.waited_share, quiet.disturbed), (0.0, false));
        let lost = Tally { arrived: 1000, lost: 256, ..Tally::default() };
        let once = report(Tally { time_outs: 1, waited_ns: 10_000_000, ..lost });
        assert!(!once.disturbed && once.frames_per_s.is_some());
        let said = once.to_string();
        assert!(said.contains("time-outs    1: 9 % of the run"), "{said}");
        let mostly = report(Tally { time_outs: 1, waited_ns: 500_000_000, ..lost });
        assert!(mostly.disturbed && mostly.frames_per_s.or(mostly.bytes_per_s).is_none());
        let said = mostly.to_string();
        assert!(said.contains("none: DISTURBED (1000 frames in 0.1 s, 256 lost)"), "{said}");
        assert!(said.contains("83 % of the run"), "{said}");
    }
}
