//! A contest: who takes part, in which cases, and what a turn gives.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde::Serialize;

use testbed::cleanup::Cleanup;
use testbed::progress::Progress;

/// Rounds, at most.
pub const ROUNDS_MAX: u16 = 99;

/// What a turn takes besides what is measured: to start and end, to fill a disk, to warm up. Only
/// for the estimate.
pub(super) const TURN_MORE: Duration = Duration::from_millis(1_500);
const SLOW_TURN_MORE: Duration = Duration::from_secs(5);

/// What our own disks and nics are called, which goals refer to.
pub(super) const LOCAL: &str = "vrio local";

/// How much is measured.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// How often each contestant is measured.
    pub rounds: u16,
    /// How long each time.
    pub seconds: f64,
    /// Only contests whose name has this in it.
    pub contest: Option<String>,
    /// Only cases whose name has this in it.
    pub case: Option<String>,
}

impl Plan {
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

    /// Whether a turn that measures this one measures the other one as well, which follows it.
    fn shares_turn(&self, other: &Self) -> bool {
        let _ = other;
        false
    }
}

/// Who is measured.
pub(super) trait Contestant: Clone {
    type Case: Case;

    fn name(&self) -> String;

    fn is_ours(&self) -> bool;

    /// Whether it can do that.
    fn takes_part(&self, case: &Self::Case) -> bool;

    /// Whether it takes long to start.
    fn is_slow(&self) -> bool;

    /// Makes what all turns of a contest use, if there is such a thing: a file, which is removed
    /// after the last of them.
    fn prepare(contest: &Contest<Self>, cleanup: &Cleanup, progress: &Progress) -> Option<PathBuf> {
        let _ = (contest, cleanup, progress);
        None
    }

    /// How long its turn will take, with so much that is measured.
    fn takes(&self, seconds: f64) -> Duration {
        let more = if self.is_slow() { SLOW_TURN_MORE } else { TURN_MORE };
        Duration::from_secs_f64(seconds) + more
    }
}

/// What a turn gave, whoever drove.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// Requests or frames, per second.
    pub(super) rate: f64,
    /// How long each took, where that was measured: half of them no longer, 99 of a hundred.
    pub(super) p50_us: Option<f64>,
    pub(super) p99_us: Option<f64>,
    /// Processor time for each, of everybody who takes part; none where a server's is not known.
    pub(super) cpu_us: Option<f64>,
    /// What our driver had of its core, where it is ours and has one.
    pub(super) core_share: Option<f64>,
    /// The share of the turn that went by waiting for what never came, where that was so much that
    /// its rate is none.
    pub(super) waited_share: Option<f64>,
    /// The cache line's round trips before and after.
    pub(super) trips_ns: [Option<u64>; 2],
}

impl Sample {
    /// A turn whose processor time is not known, nor anything else but its rate and latencies.
    pub(super) fn without_processor_time(
        rate: f64,
        p50_us: Option<f64>,
        p99_us: Option<f64>,
    ) -> Self {
        let (cpu_us, core_share, waited_share) = (None, None, None);
        Self { rate, p50_us, p99_us, cpu_us, core_share, waited_share, trips_ns: [None; 2] }
    }
}

/// Starts somebody, measures them in cases that share a turn, and ends them: a sample of each.
pub(super) type Turn<'a, C> = dyn Fn(&[<C as Contestant>::Case], &C) -> Result<Vec<Sample>> + 'a;

/// Contestants for the same thing.
#[derive(Clone, Debug)]
pub(super) struct Contest<C> {
    pub(super) name: String,
    pub(super) contestants: Vec<C>,
}

impl<C: Contestant> Contest<C> {
    /// Who takes part in a case.
    pub(super) fn of(&self, case: &C::Case) -> impl Iterator<Item = &C> {
        self.contestants.iter().filter(|it| it.takes_part(case))
    }

    /// Whether there is anything to compare.
    pub(super) fn has_both(&self, case: &C::Case) -> bool {
        self.of(case).any(C::is_ours) && !self.of(case).all(C::is_ours)
    }
}
