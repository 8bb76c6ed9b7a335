//! The figures of network cards as results: rates and latencies by the size of frames, and the
//! events and cores of which a frame consists.

use results::{Axis, Empty, Measurement, Quantity, Unit};

use super::report::NetReport;
use crate::block::results::RequestFigures;
use crate::figures::BenchReport;
use testbed::machine::Machine;

impl BenchReport for NetReport {
    fn measurements(&self, title: &str) -> Vec<Measurement> {
        let figures = RequestFigures {
            benchmark: "net",
            title,
            axis: Axis::MESSAGE_SIZE,
            own: "size_bytes",
            x: f64::from(self.bytes_asked()),
            asked: &self.asked,
            network: self.network,
            latency_us: self.latency_us,
            is_round_trip: true,
            count: self.frames,
            events: &self.events_per_frame,
            cpu_s: &self.cpu_s,
            core_share: &self.core_share,
            rtts_ns: self.cache_line_rtts_ns,
        };
        let of = |name, quantity, unit, y| figures.series(name, quantity, unit, y);
        let frames = self.frames_per_s;
        let frames = frames.map(|y| of("frames", Quantity::MessageRate, Unit::PerS, y));
        let bytes = self.bytes_per_s;
        let bytes = bytes.map(|y| of("bytes", Quantity::Bandwidth, Unit::BytesPerS, y));
        let rates = frames.into_iter().chain(bytes).collect();
        let mut it = figures.measurement(rates);
        let cpu_s: f64 = self.cpu_s.values().flatten().sum();
        if self.bytes > 0 && cpu_s > 0.0 {
            let ns = cpu_s * 1e9 / self.bytes as f64;
            it.series.push(of("all", Quantity::CpuPerByte, Unit::NsPerByte, ns));
        }
        if self.disturbed {
            let why = "most of the run was spent waiting for frames that never came".to_owned();
            it.empty.push(Empty { what: "frames and bytes per second".to_owned(), why });
        }
        vec![it, figures.parts()]
    }

    fn machine(&self) -> &Machine {
        &self.machine
    }
}

#[cfg(test)]
mod tests {
    use results::Series;

    use super::super::flight::Tally;
    use super::super::report::tests::report;
    use super::*;

    #[test]
    fn frames_have_their_figures_at_their_size() {
        let report = report(Tally { arrived: 1000, ..Tally::default() });
        let [whole, parts] = &report.measurements("mine")[..] else { panic!("two") };
        whole.check().unwrap();
        parts.check().unwrap();
        assert_eq!((whole.benchmark.as_str(), parts.benchmark.as_str()), ("net", "net_parts"));
        let rates: Vec<_> =
            whole.series.iter().map(|it| (it.quantity, it.points[0].x, it.points[0].y)).collect();
        assert_eq!(rates[0], (Quantity::MessageRate, 64.0, 1e4));
        assert_eq!(rates[1], (Quantity::Bandwidth, 64.0, 64e4));
        assert!(!whole.setup.contains_key("size_bytes"), "{:?}", whole.setup);
        assert_eq!(whole.setup["op"], "forward");
        assert!(whole.empty.is_empty());
    }

    #[test]
    fn a_run_that_mostly_waited_has_no_rate_and_says_why() {
        let tally =
            Tally { arrived: 1000, time_outs: 1, waited_ns: 500_000_000, ..Tally::default() };
        let whole = &report(tally).measurements("mine")[0];
        let is_rate =
            |it: &Series| [Quantity::MessageRate, Quantity::Bandwidth].contains(&it.quantity);
        assert!(!whole.series.iter().any(is_rate), "{whole:?}");
        assert_eq!(whole.empty[0].what, "frames and bytes per second");
    }
}
