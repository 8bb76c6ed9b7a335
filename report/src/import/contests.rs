//! The output of `vrio bench compare` and `vrio bench mpi`: contests between programs of the same
//! purpose.
//!
//! Each contestant's figures become measurements of the benchmark that measures the same by itself
//! (`block`, `net`, or `mpi_latency` beside `osu_latency`), so that a page shows both side by side.
//! The set-up of a measurement names its contest and its MPI: another version of a peer is no other
//! benchmark.

use std::collections::BTreeMap;

use results::{
    Axis, Empty, Measurement, Point, Quantity, RunOrigin, Series, Spread, Statistic, Unit,
};
use serde::Deserialize;
use serde_json::Value;

use super::asked::word;
use super::rounds::{MOVED, Rounds};
use super::words;

/// A driver with a smaller share of its core was disturbed. The benchmarks have the same bound.
const CORE_SHARE_MIN: f64 = 0.9;

#[derive(Deserialize)]
pub(super) struct ContestComparison {
    contests: Vec<Contest>,
    #[serde(default)]
    missing: Vec<String>,
    asked: Value,
}

#[derive(Deserialize)]
struct Contest {
    contest: String,
    rows: Vec<ContestRow>,
}

#[derive(Deserialize)]
struct ContestRow {
    case: String,
    ours: String,
    theirs: String,
    #[serde(default)]
    rounds: u32,
    our_rate: Rounds,
    their_rate: Rounds,
    our_p50_us: Option<Rounds>,
    their_p50_us: Option<Rounds>,
    our_p99_us: Option<Rounds>,
    their_p99_us: Option<Rounds>,
    our_cpu_us: Option<Rounds>,
    their_cpu_us: Option<Rounds>,
    #[serde(default)]
    moved: bool,
    waited_share: Option<f64>,
    core_share: Option<f64>,
    cache_line_rtt_ns: Option<Rounds>,
}

/// The figures of a contestant in a case.
struct ContestFigures {
    rate: Rounds,
    p50_us: Option<Rounds>,
    p99_us: Option<Rounds>,
    /// Processor time of all participants, for each request, frame, message or operation.
    cpu_us: Option<Rounds>,
}

impl ContestRow {
    /// The figures of the contestant with this name.
    fn figures(&self, name: &str) -> ContestFigures {
        if self.ours == name {
            ContestFigures {
                rate: self.our_rate,
                p50_us: self.our_p50_us,
                p99_us: self.our_p99_us,
                cpu_us: self.our_cpu_us,
            }
        } else {
            ContestFigures {
                rate: self.their_rate,
                p50_us: self.their_p50_us,
                p99_us: self.their_p99_us,
                cpu_us: self.their_cpu_us,
            }
        }
    }
}

/// The unit of work that a case repeats. It decides the meaning of the case's figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ContestKind {
    /// A message there and one back, whose figures are of one of them, or a collective operation.
    Time,
    /// Windows of messages, whose rate is in 10^6 bytes a second.
    Bytes(Ways),
    /// Windows of short messages.
    Messages,
    /// Requests of a disk.
    Requests,
    /// Frames.
    Frames,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Ways {
    One,
    Both,
}

/// A case of a comparison, read from its words: `latency 8 B`, `randread 4k depth 32`, `64 B there
/// and back`.
#[derive(Clone, Debug, PartialEq)]
struct Case {
    benchmark: &'static str,
    kind: ContestKind,
    /// The settings that set it apart from others of the benchmark, besides its place.
    setup: Vec<(&'static str, String)>,
    axis: Axis,
    x: f64,
    bytes: f64,
}

/// The names of MPI cases, and the benchmark of each, which stands beside OSU's.
const MESSAGES: [(&str, &str, ContestKind); 6] = [
    ("latency ", "mpi_latency", ContestKind::Time),
    ("bandwidth ", "mpi_bandwidth", ContestKind::Bytes(Ways::One)),
    ("both ways ", "mpi_bidirectional_bandwidth", ContestKind::Bytes(Ways::Both)),
    ("message rate ", "mpi_message_rate", ContestKind::Messages),
    ("all-to-all ", "mpi_alltoall", ContestKind::Time),
    ("all-reduce ", "mpi_allreduce", ContestKind::Time),
];

/// The ways of frames in the names of cases, and in `vrio bench net`.
const FRAMES: [(&str, &str); 3] =
    [(" one way", "forward"), (" there and back", "bounce"), (" a stream", "stream")];

impl Case {
    /// None for a case that is not known here.
    fn of(words: &str) -> Option<Self> {
        Self::of_messages(words).or_else(|| Self::of_frames(words)).or_else(|| Self::of_disk(words))
    }

    fn of_messages(words: &str) -> Option<Self> {
        let (size, benchmark, kind) = MESSAGES.iter().find_map(|(what, benchmark, kind)| {
            Some((words.strip_prefix(what)?, benchmark, kind))
        })?;
        let bytes = bytes(size)?;
        let (setup, axis) = (Vec::new(), Axis::MESSAGE_SIZE);
        Some(Self { benchmark, kind: *kind, setup, axis, x: bytes, bytes })
    }

    fn of_frames(words: &str) -> Option<Self> {
        let (size, op) =
            FRAMES.iter().find_map(|(what, op)| Some((words.strip_suffix(what)?, *op)))?;
        let bytes = bytes(size)?;
        let (setup, axis) = (vec![("op", op.to_owned())], Axis::MESSAGE_SIZE);
        Some(Self { benchmark: "net", kind: ContestKind::Frames, setup, axis, x: bytes, bytes })
    }

    fn of_disk(words: &str) -> Option<Self> {
        let (requests, depth) = words.split_once(" depth ")?;
        let (op, size) = requests.split_once(' ')?;
        let (digits, unit) = size.split_at_checked(size.len().checked_sub(1)?)?;
        let bytes = bytes(&format!("{digits} {unit}"))?;
        let setup = vec![("op", op.to_owned()), ("size_bytes", bytes.to_string())];
        let (axis, x) = (Axis::QUEUE_DEPTH, words::number(depth)?);
        Some(Self { benchmark: "block", kind: ContestKind::Requests, setup, axis, x, bytes })
    }
}

/// The bytes of `64 KiB`, or `64 k`.
fn bytes(words: &str) -> Option<f64> {
    let (count, unit) = words.split_once(' ')?;
    let factor = match unit {
        "B" => 1.0,
        "KiB" | "k" => 1024.0,
        "MiB" | "m" => 1_048_576.0,
        _ => return None,
    };
    Some(words::number(count)? * factor)
}

/// The measurements of each contestant of each contest, by benchmark and set-up.
pub(super) fn measurements(report: &ContestComparison, title: &str) -> Vec<Measurement> {
    let asked = asked(&report.asked);
    let mut all = Vec::new();
    for contest in &report.contests {
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
        let empty =
            |missing: &String| Empty { what: "a peer".to_owned(), why: words::reason(missing) };
        first.empty.extend(report.missing.iter().map(empty));
    }
    all
}

/// The options of the comparison in words; options for two hosts are an object inside. Options that
/// choose parts of the comparison (`--case` and so on) are no set-up of the measurements.
fn asked(asked: &Value) -> BTreeMap<String, String> {
    const LEFT_OUT: [&str; 5] = ["case", "contest", "way", "rounds", "validate"];
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
    Contest { contest, rows }: &Contest,
    name: &str,
    title: &str,
    asked: &BTreeMap<String, String>,
) -> Vec<Measurement> {
    let title = match title {
        "" => format!("{name}, {contest}"),
        title => format!("{name}, {contest} ({title})"),
    };
    let mut all: Vec<Measurement> = Vec::new();
    let mut seen: Vec<&str> = Vec::new();
    for row in rows.iter().filter(|row| row.ours == name || row.theirs == name) {
        // Our contestant meets every peer. Each meeting measures the same turns again, so the first
        // one counts.
        if seen.contains(&row.case.as_str()) {
            continue;
        }
        seen.push(&row.case);
        let case = Case::of(&row.case);
        let mut setup = asked.clone();
        setup.insert("contestant".to_owned(), name.to_owned());
        match contest.split_once(", ").filter(|_| is_mpi(case.as_ref())) {
            Some((hosts, mpi)) => {
                setup.insert("hosts".to_owned(), hosts.to_owned());
                let (mpi, version) = mpi.rsplit_once(' ').unwrap_or((mpi, "not told"));
                setup.insert("mpi".to_owned(), mpi.to_owned());
                setup.insert("version".to_owned(), version.to_owned());
            }
            None => {
                setup.insert("contest".to_owned(), contest.clone());
            }
        }
        let own = case.iter().flat_map(|case| &case.setup);
        setup.extend(own.map(|(name, value)| ((*name).to_owned(), value.clone())));
        let benchmark = case.as_ref().map_or("compare", |case| case.benchmark);
        let is_it = |it: &Measurement| it.benchmark == benchmark && it.setup == setup;
        let at = all.iter().position(is_it).unwrap_or_else(|| {
            let new = Measurement::new(RunOrigin::Measured, benchmark, &title);
            all.push(Measurement { setup, ..new });
            all.len() - 1
        });
        add(&mut all[at], row, case.as_ref(), name);
    }
    for it in &mut all {
        it.series.iter_mut().for_each(|it| it.points.sort_by(|a, b| a.x.total_cmp(&b.x)));
        it.cache_line_round_trips_ns.sort_unstable();
        it.cache_line_round_trips_ns.dedup();
    }
    all
}

fn is_mpi(case: Option<&Case>) -> bool {
    case.is_some_and(|case| case.benchmark.starts_with("mpi_"))
}

/// Adds the figures of a row, or the reason that there are none.
fn add(it: &mut Measurement, row: &ContestRow, case: Option<&Case>, name: &str) {
    let trip = row.cache_line_rtt_ns.map(|trips| trips.at(0.0));
    let ends = trip.iter().flat_map(|trip| [trip.low, trip.high]).flatten();
    it.cache_line_round_trips_ns.extend(ends.map(|ns| ns.round() as u64));
    let why = match (row.waited_share, row.moved) {
        (Some(_), _) => Some("frames were lost that somebody waited for"),
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
    for (series, figure) in figures(row, case, name) {
        let figure = match case {
            Some(case) => figure.at(case.x),
            None => {
                let is_it = |known: &&Series| is_one(known, &series);
                let place = it.series.iter().find(is_it).map_or(0, |known| known.points.len());
                figure.of_category(place, &row.case)
            }
        };
        let at = it.series.iter().position(|known| is_one(known, &series)).unwrap_or_else(|| {
            it.series.push(series);
            it.series.len() - 1
        });
        let series = &mut it.series[at];
        if row.rounds > 1 {
            let least = series.rounds.map_or(row.rounds, |least| least.min(row.rounds));
            // All figures with several rounds have this number at least.
            (series.spread, series.rounds) = (Spread::Rounds, Some(least));
            series.points.push(figure);
        } else {
            // After a single round both ends are the figure itit.
            series.points.push(Point { low: None, high: None, ..figure });
        }
    }
}

fn is_one(one: &Series, two: &Series) -> bool {
    (&one.name, one.quantity, one.statistic, one.x)
        == (&two.name, two.quantity, two.statistic, two.x)
}

/// A row's figures, each with the series that it belongs to.
fn figures(row: &ContestRow, case: Option<&Case>, name: &str) -> Vec<(Series, Rounds)> {
    let ContestFigures { rate, p50_us, p99_us, cpu_us } = row.figures(name);
    let Some(case) = case else {
        let of = |quantity, unit| Series::new("cases", quantity, unit, Axis::CATEGORY);
        return vec![(of(Quantity::TransactionRate, Unit::PerS), rate)];
    };
    let of = |name, quantity, unit, statistic| Series {
        statistic,
        ..Series::new(name, quantity, unit, case.axis)
    };
    let (mean, median, tail) =
        (Some(Statistic::Mean), Some(Statistic::Median), Some(Statistic::P99));
    let times = |quantity| {
        let of = |statistic, figure: Option<Rounds>| {
            Some((of("latency", quantity, Unit::Us, statistic), figure?))
        };
        [of(median, p50_us), of(tail, p99_us)].into_iter().flatten()
    };
    let cpu = |quantity, unit, of_us: f64| {
        let figure = cpu_us.map(|us| us.map(|us| us * of_us));
        figure.map(|figure| (of("all", quantity, unit, None), figure))
    };
    let each = cpu(Quantity::CpuPerRequest, Unit::Us, 1.0);
    let per_byte = cpu(Quantity::CpuPerByte, Unit::NsPerByte, 1e3 / case.bytes);
    let mut found: Vec<(Series, Rounds)> = match case.kind {
        ContestKind::Time => {
            // OSU's programs print the whole time by the number of messages, which is a mean.
            let mean = of("latency", Quantity::Latency, Unit::Us, mean);
            let mean = rate.microseconds().map(|figure| (mean, figure));
            mean.into_iter().chain(times(Quantity::Latency)).collect()
        }
        // The times of these cases are of windows, so they are left out.
        ContestKind::Bytes(Ways::One) => {
            vec![(of("bandwidth", Quantity::Bandwidth, Unit::MbPerS, mean), rate)]
        }
        ContestKind::Bytes(Ways::Both) => {
            vec![(of("bandwidth", Quantity::BidirectionalBandwidth, Unit::MbPerS, mean), rate)]
        }
        ContestKind::Messages => {
            vec![(of("messages", Quantity::MessageRate, Unit::PerS, mean), rate)]
        }
        ContestKind::Requests => {
            let bytes = of("bytes", Quantity::Bandwidth, Unit::BytesPerS, None);
            let requests = of("requests", Quantity::Iops, Unit::PerS, None);
            let rates = [(requests, rate), (bytes, rate.map(|rate| rate * case.bytes))];
            rates.into_iter().chain(times(Quantity::Latency)).collect()
        }
        ContestKind::Frames => {
            let frames = of("frames", Quantity::MessageRate, Unit::PerS, None);
            // The time of frames is there and back, as in `vrio bench net`.
            [(frames, rate)].into_iter().chain(times(Quantity::RoundTrip)).collect()
        }
    };
    // Processor time is counted by bytes where bytes are moved, and by messages elsewhere. For
    // short messages both would be the same figure.
    let (of_each, of_bytes) = match case.kind {
        ContestKind::Bytes(_) => (None, per_byte),
        ContestKind::Frames => (each, per_byte),
        ContestKind::Time | ContestKind::Messages | ContestKind::Requests => (each, None),
    };
    found.extend([of_each, of_bytes].into_iter().flatten());
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_say_what_they_are() {
        let of = |words| {
            let it = Case::of(words).unwrap_or_else(|| panic!("{words}"));
            (it.benchmark, it.kind, it.x, it.bytes)
        };
        assert_eq!(of("latency 8 B"), ("mpi_latency", ContestKind::Time, 8.0, 8.0));
        let both =
            ("mpi_bidirectional_bandwidth", ContestKind::Bytes(Ways::Both), 65_536.0, 65_536.0);
        assert_eq!(of("both ways 64 KiB"), both);
        assert_eq!(of("64 B there and back"), ("net", ContestKind::Frames, 64.0, 64.0));
        assert_eq!(of("randread 4k depth 32"), ("block", ContestKind::Requests, 32.0, 4096.0));
        assert_eq!(of("write 1m depth 4"), ("block", ContestKind::Requests, 4.0, 1_048_576.0));
        for unknown in ["", "latency", "latency 8 parsecs", "read é depth 1", "read depth 4", " k"]
        {
            assert_eq!(Case::of(unknown), None, "{unknown}");
        }
    }
}
