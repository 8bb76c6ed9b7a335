//! Figures of vrio alone that goals are about.

use anyhow::{Context, Result};
use sidecore::Idle;

use super::goals::{EVENTS_GOAL, TWO_CORES_GOAL};
use super::options::DisksOptions;
use super::requests::Requests;
use crate::contest::Case;
use crate::table::{OwnOutcome, OwnRow};
use bench::block::floor::{self, FloorOptions, FloorReport, FloorRound};
use bench::block::{self, BlockReport, LinkKind, Path, Volume};
use bench::load::LoadPattern;
use bench::measure::WaitMode;
use bench::verdict::{self, Bound, Spread, Verdict};
use testbed::cleanup::Cleanup;
use testbed::machine::on_two_cores;
use testbed::progress::Progress;

/// Longer turns make none of these figures better.
const SECONDS_MAX: f64 = 0.5;

/// The most calls of a driver that sleeps, for each request, with 32 outstanding: "well below one".
const CALLS_MAX: f64 = 0.5;

/// The least share of the requests that the busiest role could do with a core to itself: three
/// roles share two cores.
const SHARE_MIN: f64 = 1.0 / 3.0;

/// The longest time of 99 of a hundred requests, in milliseconds, with three roles on two cores.
const P99_MS_MAX: f64 = 1.0;

/// The measurements without a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnCase {
    /// The time that remote and sealed requests add to the parts that vrio cannot avoid.
    Floor,
    /// The events of a request.
    Events,
    /// Three roles that share two cores.
    TwoCores,
}

/// Figures, and how long a cache line took meanwhile.
type OwnFigures = (Vec<OwnRow>, Option<Spread>);

/// The options and the helpers of a measurement.
pub(super) struct Measurer<'a> {
    pub(super) options: &'a DisksOptions,
    pub(super) cleanup: &'a Cleanup,
    pub(super) progress: &'a Progress,
}

impl OwnCase {
    pub(super) const ALL: [Self; 3] = [Self::Floor, Self::Events, Self::TwoCores];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Floor => "ours, what remote and sealed reads add, over shm",
            Self::Events => "ours, events of a request, idle spin",
            Self::TwoCores => "ours, three roles on two cores, idle adaptive",
        }
    }

    /// The requests that it is about.
    pub(super) fn case(self) -> Requests {
        let depth = if self == Self::Floor { 1 } else { 32 };
        Requests { op: LoadPattern::RandRead, size_bytes: 4 << 10, depth }
    }

    /// Turns of one round, for the estimate: the floor has five parts, the events have two ways
    /// with two kinds of drivers, and the two cores have two kinds of drivers.
    pub(super) fn turns(self) -> u32 {
        match self {
            Self::Floor => 5,
            Self::Events => 4,
            Self::TwoCores => 2,
        }
    }

    /// Measures it.
    pub(super) fn measure(self, measurer: &Measurer<'_>) -> Result<OwnOutcome> {
        let measured = match self {
            Self::Floor => measurer.floor(),
            Self::Events => measurer.events(),
            Self::TwoCores => measurer.two_cores(),
        };
        let (rows, cache_line_rtt_ns) = measured.with_context(|| self.name())?;
        Ok(OwnOutcome { contest: self.name(), rows, cache_line_rtt_ns })
    }
}

impl Measurer<'_> {
    fn seconds(&self) -> f64 {
        self.options.plan.seconds.min(SECONDS_MAX)
    }

    fn floor(&self) -> Result<OwnFigures> {
        let case = OwnCase::Floor.case();
        let asked = FloorOptions {
            program: self.options.plan.program.clone(),
            link: LinkKind::Shm,
            size_bytes: case.size_bytes,
            rounds: self.options.plan.rounds,
            seconds: self.seconds(),
        };
        let report = floor::measure_rounds(&asked, self.cleanup, self.progress)?;
        Ok((floor_rows(&case, &report), report.trips()))
    }

    /// One of our disks with 32 requests outstanding.
    fn disk(&self, path: Path, driver: WaitMode, idle: Idle) -> block::BlockOptions {
        let Requests { op, size_bytes, depth } = OwnCase::Events.case();
        let volume = if path == Path::Local { Volume::Null } else { Volume::Memory };
        block::BlockOptions {
            path,
            driver,
            idle,
            volume,
            op,
            size_bytes,
            depth,
            encrypt: self.options.encrypt,
            seconds: self.seconds(),
            loopback: true,
            ..block::BlockOptions::new(self.options.plan.program.clone())
        }
    }

    fn measure(&self, own: OwnCase, way: &str, asked: &block::BlockOptions) -> Result<BlockReport> {
        self.progress.doing(format!("{}: {way}", own.name()));
        block::measure(asked, self.cleanup, &Progress::silent())
    }

    fn events(&self) -> Result<OwnFigures> {
        let (mut rows, mut trips) = (Vec::new(), Vec::new());
        for path in [Path::Local, Path::Remote] {
            for driver in [WaitMode::Polls, WaitMode::Sleeps] {
                let way = way(&path, driver);
                let asked = self.disk(path.clone(), driver, Idle::Spin);
                let rounds = 0..self.options.plan.rounds;
                let reports = rounds.map(|_| self.measure(OwnCase::Events, &way, &asked));
                let reports = reports.collect::<Result<Vec<_>>>()?;
                rows.push(events_row(&way, driver, &reports));
                trips.extend(reports.iter().flat_map(trips_of));
            }
        }
        Ok((rows, verdict::of_trips(&trips)))
    }

    fn two_cores(&self) -> Result<OwnFigures> {
        let (mut rows, mut trips) = (Vec::new(), Vec::new());
        for driver in [WaitMode::Polls, WaitMode::Sleeps] {
            let way = way(&Path::Remote, driver);
            let asked = self.disk(Path::Remote, driver, Idle::Adaptive);
            let mut reports = Vec::<BlockReport>::new();
            while verdict::wants_more(
                self.options.plan.rounds,
                reports.len(),
                of_one_level(&reports).len(),
            ) {
                let measured = on_two_cores(|| self.measure(OwnCase::TwoCores, &way, &asked));
                reports.push(measured?);
            }
            rows.extend(two_cores_rows(&way, &reports));
            trips.extend(reports.iter().flat_map(trips_of));
        }
        Ok((rows, verdict::of_trips(&trips)))
    }
}

/// The name of a way in rows.
fn way(path: &Path, driver: WaitMode) -> String {
    let driver = match driver {
        WaitMode::Polls => "polls",
        WaitMode::Sleeps => "sleeps",
    };
    format!("{}, {path}, driver {driver}", OwnCase::Events.case().name())
}

fn floor_rows(case: &Requests, report: &FloorReport) -> Vec<OwnRow> {
    let counted = report.counted.len();
    let row = |figure, value, verdict| OwnRow {
        case: case.name(),
        figure,
        value,
        rounds: counted,
        tried: report.rounds.len(),
        verdict,
    };
    let part = |figure, of: fn(&FloorRound) -> f64| row(figure, Spread::of(report.of(of)), None);
    let parts = [
        part("bare echo, us", |round| round.echo),
        part("local read, us", |round| round.local),
        part("direct read in clear, us", |round| round.clear),
        part("direct read sealed, us", |round| round.sealed),
        part("AES-256-GCM alone, us", |round| round.cipher),
    ];
    let goals = report.goals.iter().map(|it| row(it.figure, it.value, Some(it.clone())));
    parts.into_iter().chain(goals).collect()
}

/// Events that a driver which polls never needs, or that a driver which sleeps needs rarely. Counts
/// do not depend on levels.
fn events_row(way: &str, driver: WaitMode, reports: &[BlockReport]) -> OwnRow {
    let (figure, names, bound): (_, &[&str], _) = match driver {
        WaitMode::Polls => (
            "kicks and wake-ups",
            &["kicks", "vmhost_wakeups", "iohost_wakeups"],
            Bound::AtMost(0.0),
        ),
        WaitMode::Sleeps => ("calls", &["calls"], Bound::AtMost(CALLS_MAX)),
    };
    // A role that does not take part has no events. But an event that is never counted would always
    // be zero, so at least two names must be counted.
    let counted = |name: &&&str| reports[0].events_per_request.contains_key(**name);
    assert!(names.iter().filter(counted).count() >= names.len().min(2), "{names:?} are counted");
    let events = |report: &BlockReport| {
        names.iter().filter_map(|name| report.events_per_request.get(*name)).sum::<f64>()
    };
    let values: Vec<_> = reports.iter().map(events).collect();
    let verdict = Verdict::of(EVENTS_GOAL, figure, bound, &values, false);
    let (case, rounds) = (way.to_owned(), reports.len());
    OwnRow { case, figure, value: verdict.value, rounds, tried: rounds, verdict: Some(verdict) }
}

fn trips_of(report: &BlockReport) -> Vec<u64> {
    report.cache_line_rtts_ns.into_iter().flatten().collect()
}

fn of_one_level(reports: &[BlockReport]) -> Vec<usize> {
    verdict::of_one_level(&reports.iter().map(trips_of).collect::<Vec<_>>())
}

fn two_cores_rows(way: &str, reports: &[BlockReport]) -> [OwnRow; 2] {
    let counted = of_one_level(reports);
    let of = |number: fn(&BlockReport) -> f64| match &counted[..] {
        [] => reports.iter().map(number).collect::<Vec<_>>(),
        counted => counted.iter().map(|&at| number(&reports[at])).collect(),
    };
    let row = |figure, bound, number| {
        let verdict = Verdict::of(TWO_CORES_GOAL, figure, bound, &of(number), counted.is_empty());
        let (case, value) = (way.to_owned(), verdict.value);
        let (rounds, tried) = (counted.len(), reports.len());
        OwnRow { case, figure, value, rounds, tried, verdict: Some(verdict) }
    };
    [
        row("IOPS, of 1 / the busiest role's CPU s", Bound::AtLeast(SHARE_MIN), busiest),
        row("p99, ms", Bound::AtMost(P99_MS_MAX), |report| report.latency_us.p99 / 1e3),
    ]
}

/// Requests per second, as a share of those that the busiest role could do with a core to itself.
/// The busiest role has the most processor time for each request.
fn busiest(report: &BlockReport) -> f64 {
    let most = report.cpu_s.values().flatten().copied().fold(0.0, f64::max);
    report.iops * most / report.requests as f64
}
