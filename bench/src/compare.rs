//! `vrio bench compare`: ourselves and what a user would pick instead, in turn.
//!
//! For each case every contestant is started, measured and ended, then the next one, several rounds
//! of it: A B A B. So whatever else the machine does meets all alike, and nobody polls while it is
//! another one's turn. Whoever speaks vhost-user is driven by our driver, the others by a client of
//! their own, which their name says. Ratios are taken within a round, of rounds in which the cores
//! kept their distance. Figures of our own that goals are about come last, and then all goals.
//!
//! This file and those beside it know rounds, ratios and goals, of whatever it is; [`block`] knows
//! virtual disks, [`net`] network cards, [`mpi`] the messages of MPI.

pub mod block;
mod goals;
mod huge;
pub mod mpi;
pub mod net;
mod running;
mod table;
mod turns;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde::Serialize;

use crate::pace;
use testbed::cleanup::Cleanup;
use testbed::machine::Machine;
use testbed::progress::Progress;

use goals::Subject;
use turns::Runner;

pub use goals::Reached;
pub use table::{OwnOutcome, OwnRow, Row};

/// The version of the JSON form.
const COMPARISON_VERSION: u32 = 5;

/// Rounds, at most.
pub const ROUNDS_MAX: u16 = 99;

/// What a turn takes besides what is measured: to start and end, to fill a disk, to warm up. Only
/// for the estimate.
const TURN_MORE: Duration = Duration::from_millis(1_500);
const SLOW_TURN_MORE: Duration = Duration::from_secs(5);

/// What our own disks and nics are called, which goals refer to.
const LOCAL: &str = "vrio local";

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
    fn check(&self) -> Result<()> {
        let rounds = self.rounds;
        ensure!((1..=ROUNDS_MAX).contains(&rounds), "--rounds {rounds}: from 1 to {ROUNDS_MAX}");
        Ok(())
    }

    fn wants_contest(&self, name: &str) -> bool {
        self.contest.as_ref().is_none_or(|words| name.contains(words.as_str()))
    }

    fn wants_case(&self, name: &str) -> bool {
        self.case.as_ref().is_none_or(|words| name.contains(words.as_str()))
    }
}

/// One kind of requests, of frames, or of messages.
trait Case {
    fn name(&self) -> String;

    /// Whether a turn that measures this one measures the other one as well, which follows it.
    fn shares_turn(&self, other: &Self) -> bool {
        let _ = other;
        false
    }
}

/// Who is measured.
trait Contestant: Clone {
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
struct Sample {
    /// Requests or frames, per second.
    rate: f64,
    /// How long each took, where that was measured: half of them no longer, 99 of a hundred.
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    /// Processor time for each, of everybody who takes part; none where a server's is not known.
    cpu_us: Option<f64>,
    /// What our driver had of its core, where it is ours and has one.
    core_share: Option<f64>,
    /// The share of the turn that went by waiting for what never came, where that was so much that
    /// its rate is none.
    waited_share: Option<f64>,
    /// The cache line's round trips before and after.
    trips_ns: [Option<u64>; 2],
}

/// Starts somebody, measures them in cases that share a turn, and ends them: a sample of each.
type Turn<'a, C> = dyn Fn(&[<C as Contestant>::Case], &C) -> Result<Vec<Sample>> + 'a;

/// Contestants for the same thing.
#[derive(Clone, Debug)]
struct Contest<C> {
    name: String,
    contestants: Vec<C>,
}

impl<C: Contestant> Contest<C> {
    /// Who takes part in a case.
    fn of(&self, case: &C::Case) -> impl Iterator<Item = &C> {
        self.contestants.iter().filter(|it| it.takes_part(case))
    }

    /// Whether there is anything to compare.
    fn has_both(&self, case: &C::Case) -> bool {
        self.of(case).any(C::is_ours) && !self.of(case).all(C::is_ours)
    }
}

/// A contest's outcome.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// What it was about.
    pub contest: String,
    /// Each case and pair of contestants.
    pub rows: Vec<Row>,
}

/// Everything that was compared.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The version of this form.
    pub version: u32,
    /// What was asked for.
    pub asked: serde_json::Value,
    /// The contests.
    pub contests: Vec<Outcome>,
    /// Figures of our own that goals are about.
    pub own: Vec<OwnOutcome>,
    /// All goals, by number.
    pub goals: Vec<Reached>,
    /// Peers that could not be measured, and why.
    pub missing: Vec<String>,
    /// The machine.
    pub machine: Machine,
    #[serde(skip)]
    subject: &'static Subject,
    #[serde(skip)]
    plan: Plan,
}

/// All contests that are left of what was asked for.
struct Field<'a, C: Contestant> {
    subject: &'static Subject,
    plan: &'a Plan,
    contests: Vec<Contest<C>>,
    cases: Vec<C::Case>,
    /// Who cannot be measured, and why.
    missing: Vec<String>,
    cleanup: &'a Cleanup,
    progress: &'a Progress,
}

impl<C: Contestant> Field<'_, C> {
    /// Leaves out what was not asked for, and what nobody is there to be compared in.
    fn narrow(&mut self) {
        let Self { plan, contests, cases, .. } = self;
        cases.retain(|case| plan.wants_case(&case.name()));
        contests.retain(|it| plan.wants_contest(&it.name));
        contests.retain(|it| cases.iter().any(|case| it.has_both(case)));
    }

    /// Fails where neither a contest nor figures of our own are left.
    fn check(&self, has_own: bool) -> Result<()> {
        ensure!(
            !self.contests.is_empty() || has_own,
            "nothing to compare: no peer is installed for that (missing: {}), or --contest and \
             --case leave nothing",
            self.missing.join("; ")
        );
        Ok(())
    }

    /// Says who is not there, and how long it will take, with so many turns of our own each round.
    fn announce(&self, own_turns: u32) {
        for missing in &self.missing {
            self.progress.done(format!("not measured: {missing}"));
        }
        let (rounds, seconds) = (u32::from(self.plan.rounds), self.plan.seconds);
        let turns = self.contests.iter().flat_map(|contest| {
            let groups = self.cases.chunk_by(C::Case::shares_turn);
            let groups = groups.filter(|cases| contest.has_both(&cases[0]));
            groups.flat_map(|cases| contest.of(&cases[0]).map(move |it| (it, cases.len() as f64)))
        });
        let turns: Vec<_> = turns.map(|(it, cases)| it.takes(seconds * cases)).collect();
        let own_turn = TURN_MORE + Duration::from_secs_f64(seconds);
        let all = (turns.iter().sum::<Duration>() + own_turn * own_turns) * rounds;
        let takes = pace::announced(all);
        let turns = (turns.len() as u32 + own_turns) * rounds;
        self.progress
            .done(format!("{turns} turns, {takes}; up to twice as many where the cores move"));
    }

    /// Runs all contests, one case in a turn.
    fn run(&mut self, turn: &dyn Fn(&C::Case, &C) -> Result<Sample>) -> Vec<Outcome> {
        self.run_shared(&|cases, contestant| {
            cases.iter().map(|case| turn(case, contestant)).collect()
        })
    }

    /// Runs all contests. A turn is of all cases that share it, and gives a sample of each.
    fn run_shared(&mut self, turn: &Turn<'_, C>) -> Vec<Outcome> {
        let Self { subject, plan, cleanup, progress, .. } = *self;
        let contests = std::mem::take(&mut self.contests);
        let run = |contest| {
            let rounds = plan.rounds;
            let mut runner = Runner { subject, rounds, contest, turn, cleanup, progress };
            runner.run(&self.cases, &mut self.missing)
        };
        contests.into_iter().map(run).collect()
    }

    /// Puts it all together.
    fn result(
        self,
        asked: &impl Serialize,
        contests: Vec<Outcome>,
        own: Vec<OwnOutcome>,
    ) -> Result<Comparison> {
        let is_nothing = contests.iter().all(|it| it.rows.is_empty()) && own.is_empty();
        ensure!(!is_nothing, "{}", self.missing.join("; "));
        Ok(Comparison {
            version: COMPARISON_VERSION,
            asked: serde_json::to_value(asked)?,
            goals: goals_of(self.subject, &contests, &own),
            contests,
            own,
            missing: self.missing,
            machine: Machine::look(),
            subject: self.subject,
            plan: self.plan.clone(),
        })
    }
}

/// Figures of our own, one after the other; what cannot be measured is named.
fn own_outcomes(
    measured: impl Iterator<Item = Result<OwnOutcome>>,
    cleanup: &Cleanup,
    progress: &Progress,
    missing: &mut Vec<String>,
) -> Vec<OwnOutcome> {
    let mut outcomes = Vec::new();
    for measured in measured {
        match measured {
            Ok(outcome) => {
                progress.done(format!("{}: {} rows", outcome.contest, outcome.rows.len()));
                outcomes.push(outcome);
            }
            Err(error) => {
                cleanup.yield_to_interruption();
                missing.push(format!("{error:#}"));
                progress.done(format!("not measured: {error:#}"));
            }
        }
    }
    outcomes
}

/// What all rows together say of the goals.
fn goals_of(subject: &Subject, outcomes: &[Outcome], own: &[OwnOutcome]) -> Vec<Reached> {
    let rows: Vec<_> = outcomes
        .iter()
        .flat_map(|outcome| outcome.rows.iter().map(|row| (outcome.contest.as_str(), row)))
        .collect();
    let own: Vec<_> = own
        .iter()
        .flat_map(|outcome| &outcome.rows)
        .filter_map(|row| Some((row.case.as_str(), row.verdict.as_ref()?)))
        .collect();
    subject.reached(&rows, &own)
}
