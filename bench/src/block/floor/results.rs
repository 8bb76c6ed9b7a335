//! The parts of a remote read as results.

use results::{Axis, Empty, Measurement, Quantity, Series, Statistic, Unit};

use super::{FloorReport, FloorRound};
use crate::figures::{BenchReport, MOVED, measured, named_point_of, of_rounds};
use crate::verdict::Spread;
use testbed::machine::Machine;

/// A part's name, and its figure in a round.
type FloorPart = (&'static str, fn(&FloorRound) -> f64);

const PARTS: [FloorPart; 5] = [
    ("bare echo of its datagrams", |round| round.echo),
    ("read on the same thread", |round| round.local),
    ("direct read, in clear", |round| round.clear),
    ("direct read, sealed", |round| round.sealed),
    ("AES-256-GCM alone", |round| round.cipher),
];
const REMOTE_ADDS: &str = "remote adds to echo and local read";
const SEALING_ADDS: &str = "sealing adds, times what the cipher takes";

impl BenchReport for FloorReport {
    /// The time of each part, the cost of the way to another node, and the cost of sealing.
    fn measurements(&self, title: &str) -> Vec<Measurement> {
        let mut it = measured("floor", title, &self.asked, &["rounds"]);
        if self.counted.is_empty() {
            let all = PARTS.iter().map(|(name, _)| *name).chain([REMOTE_ADDS, SEALING_ADDS]);
            let empty = |what: &str| Empty { what: what.to_owned(), why: MOVED.to_owned() };
            it.empty = all.map(empty).collect();
            return vec![it];
        }
        let counted = self.counted.iter().map(|at| &self.rounds[*at]);
        it.cache_line_round_trips_ns =
            counted.flat_map(|round| round.cache_line_rtts_ns.iter().copied()).collect();
        let of = |(name, of): &FloorPart| (*name, Spread::of(self.of(*of)));
        let parts = PARTS.iter().map(of).chain([(REMOTE_ADDS, self.remote_adds_us)]);
        let times = parts.enumerate().map(|(at, (name, spread))| named_point_of(spread, at, name));
        let series = |name, quantity, unit, points| {
            let series = Series::new(name, quantity, unit, Axis::CATEGORY);
            let series = Series { points, statistic: Some(Statistic::Median), ..series };
            of_rounds(series, self.counted.len())
        };
        let factor = vec![named_point_of(self.sealing_adds, 0, SEALING_ADDS)];
        it.series = vec![
            series("latency", Quantity::Latency, Unit::Us, times.collect()),
            series("sealing", Quantity::Factor, Unit::Ratio, factor),
        ];
        vec![it]
    }

    fn machine(&self) -> &Machine {
        &self.machine
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{options, round};
    use super::*;
    use crate::block::LinkKind;

    #[test]
    fn each_part_has_its_figure_and_what_is_added_is_told() {
        let mut rounds = vec![round(8.0, 10.0, [107, 110]), round(9.0, 12.0, [107, 110])];
        rounds.push(round(20.0, 30.0, [107, 485]));
        let report = FloorReport::new(options(LinkKind::Shm), rounds);
        let [it] = &report.measurements("mine")[..] else { panic!("one measurement") };
        it.check().unwrap();
        assert_eq!((it.benchmark.as_str(), it.setup["link"].as_str()), ("floor", "shm"));
        assert_eq!(it.cache_line_round_trips_ns, [107, 110, 107, 110]);
        let [times, sealing] = &it.series[..] else { panic!("two series: {it:?}") };
        assert_eq!((times.points.len(), times.rounds), (PARTS.len() + 1, Some(2)));
        let clear = &times.points[2];
        assert_eq!(clear.label.as_deref(), Some("direct read, in clear"));
        assert_eq!((clear.low, clear.y, clear.high), (Some(8.0), 8.5, Some(9.0)));
        assert_eq!(times.points[5].y, report.remote_adds_us.median);
        assert_eq!(sealing.points[0].y, report.sealing_adds.median);
    }

    /// Rounds in which the cores moved belong to no level, so they give no figures.
    #[test]
    fn without_a_round_of_one_level_there_is_no_figure() {
        let rounds = vec![round(8.0, 10.0, [50, 485]); 3];
        let report = FloorReport::new(options(LinkKind::Udp), rounds);
        let it = &report.measurements("mine")[0];
        assert!(it.series.is_empty() && it.cache_line_round_trips_ns.is_empty(), "{it:?}");
        assert_eq!(it.empty.len(), PARTS.len() + 2);
        assert!(it.empty.iter().all(|empty| empty.why == MOVED));
    }
}
