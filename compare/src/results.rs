//! A comparison as results: each contestant's figures become measurements of the benchmark that
//! measures the same by itself. The set-up of a measurement names its contest and its MPI: another
//! version of a peer is no other benchmark.

use std::collections::BTreeMap;

use results::{Empty, Measurement, Point, Quantity, RunOrigin, Series, Spread, Statistic, Unit};
use serde_json::Value;

use super::case::{CaseKind, MeasuredCase};
use super::comparison::{Comparison, ContestOutcome};
use super::table::{CORE_SHARE_MIN, PairRow};
use bench::figures::{BenchReport, MOVED, point_of, reason, word};
use bench::verdict;
use testbed::machine::Machine;

/// Options that choose parts of the comparison are no set-up of its measurements.
const LEFT_OUT: [&str; 5] = ["case", "contest", "way", "rounds", "validate"];

/// The reason for a missing figure of a turn that mostly waited.
const WAITED: &str = "awaited frames were lost";

impl BenchReport for Comparison {
    /// The measurements of each contestant of each contest, by benchmark and set-up.
    fn measurements(&self, title: &str) -> Vec<Measurement> {
        let asked = asked(&self.asked);
        let mut all = Vec::new();
        for contest in &self.contests {
            let mut names: Vec<&String> = Vec::new();
            for name in contest.rows.iter().flat_map(|row| [&row.ours, &row.theirs]) {
                if !names.contains(&name) {
                    names.push(name);
                }
            }
            for name in names {
                all.extend(contestant(contest, name, title, &asked));
            }
        }
        if let Some(first) = all.first_mut() {
            let empty = |why: &String| Empty { what: "a peer".to_owned(), why: reason(why) };
            first.empty.extend(self.missing.iter().map(empty));
        }
        all
    }

    fn machine(&self) -> &Machine {
        &self.machine
    }
}

/// The options of the comparison in words; options for two hosts are an object inside.
fn asked(asked: &Value) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut left: Vec<(&String, &Value)> = asked.as_object().into_iter().flatten().collect();
    while let Some((name, value)) = left.pop() {
        match value {
            Value::Object(more) => left.extend(more),
            Value::Null | Value::Array(_) => {}
            _ if LEFT_OUT.contains(&name.as_str()) => {}
            value => {
                found.insert(name.clone(), word(value));
            }
        }
    }
    found
}

fn contestant(
    outcome: &ContestOutcome,
    name: &str,
    title: &str,
    asked: &BTreeMap<String, String>,
) -> Vec<Measurement> {
    let title = match title {
        "" => format!("{name}, {}", outcome.contest),
        title => format!("{name}, {} ({title})", outcome.contest),
    };
    let mut all: Vec<Measurement> = Vec::new();
    let mut seen: Vec<&str> = Vec::new();
    for row in outcome.rows.iter().filter(|row| row.ours == name || row.theirs == name) {
        // Our contestant meets every peer. Each meeting measures the same turns again, so the first
        // one counts.
        if seen.contains(&row.case.as_str()) {
            continue;
        }
        seen.push(&row.case);
        let mut setup = asked.clone();
        setup.insert("contestant".to_owned(), name.to_owned());
        let own = outcome.setup.iter().chain(&row.measured.setup);
        setup.extend(own.map(|(name, value)| ((*name).to_owned(), value.clone())));
        let benchmark = row.measured.benchmark;
        let is_it = |it: &Measurement| it.benchmark == benchmark && it.setup == setup;
        let at = all.iter().position(is_it).unwrap_or_else(|| {
            let new = Measurement::new(RunOrigin::Measured, benchmark, &title);
            all.push(Measurement { setup, ..new });
            all.len() - 1
        });
        add(&mut all[at], row, name);
    }
    for it in &mut all {
        it.series.iter_mut().for_each(|it| it.points.sort_by(|a, b| a.x.total_cmp(&b.x)));
        it.cache_line_round_trips_ns.sort_unstable();
        it.cache_line_round_trips_ns.dedup();
    }
    all
}

/// Adds the figures of a row, or the reason that there are none.
fn add(it: &mut Measurement, row: &PairRow, name: &str) {
    let ends = row.cache_line_rtt_ns.iter().flat_map(|trips| [trips.min, trips.max]);
    it.cache_line_round_trips_ns.extend(ends.map(|ns| ns.round() as u64));
    let why = match (row.waited_share, row.moved) {
        (Some(_), _) => Some(WAITED),
        (None, true) => Some(MOVED),
        (None, false) => None,
    };
    if let Some(why) = why {
        it.empty.push(Empty { what: row.case.clone(), why: why.to_owned() });
        return;
    }
    if let Some(share) = row.core_share.filter(|share| *share < CORE_SHARE_MIN) {
        let percent = (share * 100.0).round();
        it.notes.push(format!("{}: others had the driver's core, it {percent} %", row.case));
    }
    for (series, figure) in figures(row, name) {
        let point = point_of(figure, row.measured.x);
        let at = it.series.iter().position(|known| is_one(known, &series)).unwrap_or_else(|| {
            it.series.push(series);
            it.series.len() - 1
        });
        let series = &mut it.series[at];
        if row.rounds > 1 {
            let rounds = u32::try_from(row.rounds).unwrap_or(u32::MAX);
            let least = series.rounds.map_or(rounds, |least| least.min(rounds));
            // All figures with several rounds have this number at least.
            (series.spread, series.rounds) = (Spread::Rounds, Some(least));
            series.points.push(point);
        } else {
            // After a single round both ends are the figure itself.
            series.points.push(Point { low: None, high: None, ..point });
        }
    }
}

fn is_one(one: &Series, two: &Series) -> bool {
    (&one.name, one.quantity, one.statistic, one.x)
        == (&two.name, two.quantity, two.statistic, two.x)
}

/// The figures of a contestant in a case.
struct ContestFigures {
    rate: verdict::Spread,
    p50_us: Option<verdict::Spread>,
    p99_us: Option<verdict::Spread>,
    /// Processor time of all participants, for each request, frame, message or operation.
    cpu_us: Option<verdict::Spread>,
}

impl ContestFigures {
    /// The figures of the contestant with this name.
    fn of(row: &PairRow, name: &str) -> Self {
        if row.ours == name {
            Self {
                rate: row.our_rate,
                p50_us: row.our_p50_us,
                p99_us: row.our_p99_us,
                cpu_us: row.our_cpu_us,
            }
        } else {
            Self {
                rate: row.their_rate,
                p50_us: row.their_p50_us,
                p99_us: row.their_p99_us,
                cpu_us: row.their_cpu_us,
            }
        }
    }
}

/// A figure of another quantity, which grows with this one.
fn times(figure: verdict::Spread, factor: f64) -> verdict::Spread {
    let verdict::Spread { median, min, max } = figure;
    verdict::Spread { median: median * factor, min: min * factor, max: max * factor }
}

/// The microseconds of an event, if the figure is events a second.
fn microseconds(rate: verdict::Spread) -> Option<verdict::Spread> {
    let verdict::Spread { median, min, max } = rate;
    let us = |rate: f64| 1e6 / rate;
    (min > 0.0).then(|| verdict::Spread { median: us(median), min: us(max), max: us(min) })
}

/// A row's figures, each with the series that it belongs to.
fn figures(row: &PairRow, name: &str) -> Vec<(Series, verdict::Spread)> {
    let MeasuredCase { kind, axis, bytes, .. } = row.measured;
    let ContestFigures { rate, p50_us, p99_us, cpu_us } = ContestFigures::of(row, name);
    let of = |name, quantity, unit, statistic| Series {
        statistic,
        ..Series::new(name, quantity, unit, axis)
    };
    let (mean, median, tail) =
        (Some(Statistic::Mean), Some(Statistic::Median), Some(Statistic::P99));
    let latencies = |quantity| {
        let of = |statistic, figure: Option<verdict::Spread>| {
            Some((of("latency", quantity, Unit::Us, statistic), figure?))
        };
        [of(median, p50_us), of(tail, p99_us)].into_iter().flatten()
    };
    let mut found: Vec<(Series, verdict::Spread)> = match kind {
        CaseKind::Time => {
            // OSU's programs print the whole time by the number of messages, which is a mean.
            let mean = of("latency", Quantity::Latency, Unit::Us, mean);
            let mean = microseconds(rate).map(|figure| (mean, figure));
            mean.into_iter().chain(latencies(Quantity::Latency)).collect()
        }
        // The times of these cases are of windows, so they are left out.
        CaseKind::Bytes => {
            vec![(of("bandwidth", Quantity::Bandwidth, Unit::MbPerS, mean), rate)]
        }
        CaseKind::BytesBothWays => {
            vec![(of("bandwidth", Quantity::BidirectionalBandwidth, Unit::MbPerS, mean), rate)]
        }
        CaseKind::Messages => {
            vec![(of("messages", Quantity::MessageRate, Unit::PerS, mean), rate)]
        }
        CaseKind::Requests => {
            let requests = of("requests", Quantity::Iops, Unit::PerS, None);
            let moved = of("bytes", Quantity::Bandwidth, Unit::BytesPerS, None);
            let rates = [(requests, rate), (moved, times(rate, bytes))];
            rates.into_iter().chain(latencies(Quantity::Latency)).collect()
        }
        CaseKind::Frames => {
            let frames = of("frames", Quantity::MessageRate, Unit::PerS, None);
            // The time of frames is there and back, as in `vrio bench net`.
            [(frames, rate)].into_iter().chain(latencies(Quantity::RoundTrip)).collect()
        }
    };
    let cpu = |quantity, unit, factor: f64| {
        cpu_us.map(|us| (of("all", quantity, unit, None), times(us, factor)))
    };
    let each = cpu(Quantity::CpuPerRequest, Unit::Us, 1.0);
    let per_byte = cpu(Quantity::CpuPerByte, Unit::NsPerByte, 1e3 / bytes);
    // Processor time is counted by bytes where bytes are moved, and by messages elsewhere. For
    // short messages both would be the same figure.
    let (of_each, of_bytes) = match kind {
        CaseKind::Bytes | CaseKind::BytesBothWays => (None, per_byte),
        CaseKind::Frames => (each, per_byte),
        CaseKind::Time | CaseKind::Messages | CaseKind::Requests => (each, None),
    };
    found.extend([of_each, of_bytes].into_iter().flatten());
    found
}

#[cfg(test)]
mod tests {
    use results::Axis;
    use serde_json::json;

    use super::super::comparison::COMPARISON_VERSION;
    use super::super::contest::{Case, ComparisonPlan, TurnSample};
    use super::super::table::Pair;
    use super::super::table::tests::{SUBJECT, sample};
    use super::*;

    const OURS: &str = "vrio";
    const THEIRS: &str = "libfabric tcp (net)";

    struct TestCase(CaseKind, f64);

    impl Case for TestCase {
        fn name(&self) -> String {
            // Cases of one contest have names of their own, as in each comparison.
            format!("{:?} of {}", self.0, self.1)
        }

        fn measured(&self) -> MeasuredCase {
            let benchmark = match self.0 {
                CaseKind::Time => "mpi_latency",
                CaseKind::Bytes => "mpi_bandwidth",
                CaseKind::BytesBothWays => "mpi_bidirectional_bandwidth",
                CaseKind::Messages => "mpi_message_rate",
                CaseKind::Requests => "block",
                CaseKind::Frames => "net",
            };
            let (axis, x) = match self.0 {
                CaseKind::Requests => (Axis::QUEUE_DEPTH, 1.0),
                _ => (Axis::MESSAGE_SIZE, self.1),
            };
            MeasuredCase { benchmark, kind: self.0, setup: Vec::new(), axis, x, bytes: self.1 }
        }
    }

    /// A row of turns with so many thousand a second of ours, and twice as many of theirs.
    fn row(case: &TestCase, rounds: &[f64]) -> PairRow {
        let rounds: Vec<_> =
            rounds.iter().map(|ours| vec![sample(*ours), sample(2.0 * ours)]).collect();
        row_of(case, &rounds)
    }

    fn row_of(case: &TestCase, rounds: &[Vec<TurnSample>]) -> PairRow {
        let counted: Vec<_> = (0..rounds.len()).collect();
        let pair = Pair { ours: 0, theirs: 1, rounds, counted: &counted };
        pair.row(&SUBJECT, "contest", case, [OURS, THEIRS].map(str::to_owned))
    }

    fn comparison(rows: Vec<PairRow>) -> Comparison {
        let setup = [("hosts", "one host"), ("mpi", "Open MPI"), ("version", "4.1.4")];
        let setup = setup.map(|(name, value)| (name, value.to_owned())).into();
        let contest = "one host, Open MPI 4.1.4".to_owned();
        Comparison {
            version: COMPARISON_VERSION,
            asked: json!({
                "rounds": 2, "seconds": 0.1, "case": null, "way": "tcp", "prefixes": [],
                "hosts": { "two": { "link": "udp", "mtu": null } }
            }),
            contests: vec![ContestOutcome { contest, rows, setup }],
            own: Vec::new(),
            goals: Vec::new(),
            missing: vec!["DPDK: no huge pages".to_owned()],
            machine: Machine::look(),
            subject: &SUBJECT,
            plan: ComparisonPlan {
                program: "vrio".into(),
                rounds: 2,
                seconds: 0.1,
                contest: None,
                case: None,
            },
        }
    }

    /// The measurement of a benchmark and a contestant.
    fn of<'a>(all: &'a [Measurement], benchmark: &str, contestant: &str) -> &'a Measurement {
        let is_it =
            |it: &&Measurement| it.benchmark == benchmark && it.setup["contestant"] == contestant;
        all.iter().find(is_it).unwrap_or_else(|| panic!("{benchmark} of {contestant}: {all:?}"))
    }

    fn series(it: &Measurement, quantity: Quantity, statistic: Option<Statistic>) -> &Series {
        let is_it = |it: &&Series| (it.quantity, it.statistic) == (quantity, statistic);
        it.series.iter().find(is_it).unwrap_or_else(|| panic!("no {quantity:?} in {it:?}"))
    }

    #[test]
    fn each_contestant_has_a_measurement_of_each_benchmark() {
        let rows = vec![
            row(&TestCase(CaseKind::Time, 1024.0), &[10.0, 12.0]),
            row(&TestCase(CaseKind::Time, 8.0), &[20.0]),
            row(&TestCase(CaseKind::Bytes, 1024.0), &[5.0, 6.0]),
        ];
        let all = comparison(rows).measurements("mine");
        assert_eq!(all.len(), 4, "{all:?}");
        all.iter().for_each(|it| it.check().unwrap());
        let latency = of(&all, "mpi_latency", THEIRS);
        assert_eq!(latency.title, "libfabric tcp (net), one host, Open MPI 4.1.4 (mine)");
        let setup: Vec<_> =
            latency.setup.iter().map(|(name, value)| format!("{name} {value}")).collect();
        let contestant = format!("contestant {THEIRS}");
        let expected = [
            &*contestant,
            "hosts one host",
            "link udp",
            "mpi Open MPI",
            "seconds 0.1",
            "version 4.1.4",
        ];
        assert_eq!(setup, expected);
        // Half of the cases has one round, which has no spread.
        let mean = series(latency, Quantity::Latency, Some(Statistic::Mean));
        let places: Vec<_> = mean.points.iter().map(|it| (it.x, it.low.is_some())).collect();
        assert_eq!(places, [(8.0, false), (1024.0, true)]);
        assert_eq!((mean.spread, mean.rounds), (Spread::Rounds, Some(2)));
        assert_eq!(mean.points[0].y, 1e6 / 40e3);
        let median = series(latency, Quantity::Latency, Some(Statistic::Median));
        assert_eq!(median.points[0].y, 1e3 / 40.0);
        let cpu = series(latency, Quantity::CpuPerRequest, None);
        assert_eq!(cpu.points[0].y, 50.0);
        let bandwidth = of(&all, "mpi_bandwidth", OURS);
        let quantities: Vec<_> = bandwidth.series.iter().map(|it| it.quantity).collect();
        assert_eq!(quantities, [Quantity::Bandwidth, Quantity::CpuPerByte], "no times of windows");
        let empty: Vec<_> = all.iter().flat_map(|it| &it.empty).collect();
        assert_eq!((empty.len(), empty[0].why.as_str()), (1, "DPDK: no huge pages"));
    }

    #[test]
    fn disks_have_both_rates_and_frames_their_way_there_and_back() {
        let rows = vec![
            row(&TestCase(CaseKind::Requests, 4096.0), &[10.0]),
            row(&TestCase(CaseKind::Frames, 64.0), &[10.0]),
            row(&TestCase(CaseKind::BytesBothWays, 64.0), &[10.0]),
            row(&TestCase(CaseKind::Messages, 8.0), &[10.0]),
        ];
        let all = comparison(rows).measurements("");
        let disk = of(&all, "block", OURS);
        assert_eq!(disk.title, "vrio, one host, Open MPI 4.1.4");
        assert_eq!(series(disk, Quantity::Iops, None).points[0].y, 10e3);
        assert_eq!(series(disk, Quantity::Bandwidth, None).points[0].y, 10e3 * 4096.0);
        assert_eq!(series(disk, Quantity::Latency, Some(Statistic::P99)).points[0].x, 1.0);
        let frames = of(&all, "net", OURS);
        assert_eq!(series(frames, Quantity::RoundTrip, Some(Statistic::Median)).points[0].y, 100.0);
        series(frames, Quantity::CpuPerByte, None);
        let both = of(&all, "mpi_bidirectional_bandwidth", OURS);
        series(both, Quantity::BidirectionalBandwidth, Some(Statistic::Mean));
        let messages = of(&all, "mpi_message_rate", OURS);
        assert_eq!(messages.series.len(), 2, "a rate and its processor time: {messages:?}");
    }

    /// A case has no figures if the cores moved in each round, or if most of its time was waiting.
    #[test]
    fn cases_that_a_comparison_refuses_have_no_figure() {
        let mut moved = row(&TestCase(CaseKind::Time, 8.0), &[10.0]);
        moved.moved = true;
        let mut waited = row(&TestCase(CaseKind::Time, 16.0), &[10.0]);
        waited.waited_share = Some(0.9);
        let shared = vec![vec![TurnSample { core_share: Some(0.5), ..sample(10.0) }; 2]];
        let shared = row_of(&TestCase(CaseKind::Time, 32.0), &shared);
        let all = comparison(vec![moved, waited, shared]).measurements("mine");
        let ours = of(&all, "mpi_latency", OURS);
        let places: Vec<_> = ours.series[0].points.iter().map(|it| it.x).collect();
        assert_eq!(places, [32.0]);
        let said: Vec<_> =
            ours.empty.iter().map(|it| (it.what.as_str(), it.why.as_str())).collect();
        assert_eq!(said[..2], [("Time of 8", MOVED), ("Time of 16", WAITED)]);
        assert_eq!(ours.notes, ["Time of 32: others had the driver's core, it 50 %"]);
    }
}
