//! A contest: its contestants, its cases, and the result of a turn.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde::Serialize;

use super::case::MeasuredCase;
use testbed::cleanup::Cleanup;
use testbed::progress::Progress;

/// Rounds, at most.
pub const ROUNDS_MAX: u16 = 99;

/// The time of a turn beside the measurement: to start and end, to fill a disk, to warm up. Only
/// the estimate uses it.
pub(super) const TURN_MORE: Duration = Duration::from_millis(1_500);
const SLOW_TURN_MORE: Duration = Duration::from_secs(5);

/// The name of our own disks and nics, which goals refer to.
pub(super) const LOCAL: &str = "vrio local";

/// The options that every comparison has: its program and its extent.
#[derive(Clone, Debug, Serialize)]
pub struct ComparisonPlan {
    /// The `vrio` program.
    #[serde(skip)]
    pub program: PathBuf,
    /// How often each contestant is measured.
    pub rounds: u16,
    /// How long each measurement takes.
    pub seconds: f64,
    /// Only contests whose name contains this text.
    pub contest: Option<String>,
    /// Only cases whose name contains this text.
    pub case: Option<String>,
}

impl ComparisonPlan {
    pub(super) fn check(&self) -> Result<()> {
        let rounds = self.rounds;
        ensure!((1..=ROUNDS_MAX).contains(&rounds), "--rounds {rounds}: from 1 to {ROUNDS_MAX}");
        Ok(())
    }

    pub(super) fn wants_contest(&self, name: &str) -> bool {
        self.contest.as_ref().is_none_or(|words| name.contains(words.as_str()))
    }

    pub(super) fn wants_case(&self, name: &str) -> bool {
        self.case.as_ref().is_none_or(|words| name.contains(words.as_str()))
    }
}

/// One kind of requests, of frames, or of messages.
pub(super) trait Case {
    fn name(&self) -> String;

    /// The case in the words of results.
    fn measured(&self) -> MeasuredCase;

    /// Whether a turn that measures this case measures the other one as well, which follows it.
    fn shares_turn(&self, other: &Self) -> bool {
        let _ = other;
        false
    }
}

/// A contestant of a contest.
pub(super) trait Contestant: Clone {
    type Case: Case;

    fn name(&self) -> String;

    fn is_ours(&self) -> bool;

    /// Whether it can do this case.
    fn takes_part(&self, case: &Self::Case) -> bool;

    /// Whether it takes long to start.
    fn is_slow(&self) -> bool;

    /// Makes a file that all turns of a contest use, if the contest needs one. It is removed after
    /// the last turn.
    fn prepare(contest: &Contest<Self>, cleanup: &Cleanup, progress: &Progress) -> Option<PathBuf> {
        let _ = (contest, cleanup, progress);
        None
    }

    /// How long its turn will take, with so many measured seconds.
    fn takes(&self, seconds: f64) -> Duration {
        let more = if self.is_slow() { SLOW_TURN_MORE } else { TURN_MORE };
        Duration::from_secs_f64(seconds) + more
    }
}

/// The result of a turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct TurnSample {
    /// Requests or frames, per second.
    pub(super) rate: f64,
    /// How long each took, where that was measured: half of them no longer, 99 of a hundred.
    pub(super) p50_us: Option<f64>,
    pub(super) p99_us: Option<f64>,
    /// Processor time for each, of all processes that take part; none where the time of a server is
    /// not known.
    pub(super) cpu_us: Option<f64>,
    /// The share of its core that our driver had, where it is ours and has one.
    pub(super) core_share: Option<f64>,
    /// The share of the turn that was spent waiting for frames that never came. None where it was
    /// too small to disturb the rate.
    pub(super) waited_share: Option<f64>,
    /// The cache line's round trips before and after.
    pub(super) trips_ns: [Option<u64>; 2],
}

impl TurnSample {
    /// A turn of which only the rate and the latencies are known.
    pub(super) fn without_processor_time(
        rate: f64,
        p50_us: Option<f64>,
        p99_us: Option<f64>,
    ) -> Self {
        let (cpu_us, core_share, waited_share) = (None, None, None);
        Self { rate, p50_us, p99_us, cpu_us, core_share, waited_share, trips_ns: [None; 2] }
    }
}

/// Starts a contestant, measures it in cases that share a turn, and ends it: the result has a
/// sample of each case.
pub(super) type MeasureTurn<'a, C> =
    dyn Fn(&[<C as Contestant>::Case], &C) -> Result<Vec<TurnSample>> + 'a;

/// Contestants for the same thing.
#[derive(Clone, Debug)]
pub(super) struct Contest<C> {
    pub(super) name: String,
    /// The settings by which results tell this contest from others.
    pub(super) setup: Vec<(&'static str, String)>,
    pub(super) contestants: Vec<C>,
}

impl<C: Contestant> Contest<C> {
    /// A contest that results tell from others by its name.
    pub(super) fn new(name: &str, contestants: Vec<C>) -> Self {
        let setup = vec![("contest", name.to_owned())];
        Self { name: name.to_owned(), setup, contestants }
    }

    /// The contestants of a case.
    pub(super) fn of(&self, case: &C::Case) -> impl Iterator<Item = &C> {
        self.contestants.iter().filter(|it| it.takes_part(case))
    }

    /// Whether the case has one of ours and a peer.
    pub(super) fn has_both(&self, case: &C::Case) -> bool {
        self.of(case).any(C::is_ours) && !self.of(case).all(C::is_ours)
    }
}
