//! `vrio bench compare`: vrio and its *peers*, the programs that a user would pick instead, in
//! turn.
//!
//! For each case a contestant is started, measured and ended, then the next one, for several
//! rounds: A B A B. So other load of the machine meets all contestants alike, and no contestant
//! polls during another one's turn. Our driver drives every vhost-user server. A client of its own
//! drives each of the other servers, and the contestant's name says so. Ratios are taken within a
//! round, of rounds in which the distance between the cores stayed the same. Figures of vrio alone
//! that goals are about come after the contests, and all goals come last.
//!
//! This file and those beside it know rounds, ratios and goals, for every kind of contest.
//! [`block`] knows virtual disks, [`store`] ways to keep them, [`net`] network cards, [`mpi`] the
//! messages of MPI. [`replicas`] has a report of its own: it compares counts, in guests. So has
//! [`account`], which counts the events of a unit of work.

pub mod account;
pub mod block;
mod case;
mod comparison;
mod contest;
mod goals;
mod huge;
pub mod mpi;
pub mod net;
pub mod replicas;
mod results;
mod running;
pub mod store;
mod table;
mod turns;

use std::time::Duration;

use anyhow::{Result, ensure};
use serde::Serialize;

use bench::pace;
use testbed::cleanup::Cleanup;
use testbed::machine::Machine;
use testbed::progress::Progress;

use comparison::{COMPARISON_VERSION, goals_of};
use contest::{Case, Contest, Contestant, MeasureTurn, TURN_MORE, TurnSample};
use goals::Subject;
use turns::Runner;

pub use comparison::{Comparison, ContestOutcome};
pub use contest::{ComparisonPlan, ROUNDS_MAX};
pub use goals::GoalOutcome;
pub use table::{OwnOutcome, OwnRow, PairRow};

/// All contests that the options ask for.
struct Contests<'a, C: Contestant> {
    subject: &'static Subject,
    plan: &'a ComparisonPlan,
    contests: Vec<Contest<C>>,
    cases: Vec<C::Case>,
    /// Contestants that cannot be measured, and why.
    missing: Vec<String>,
    cleanup: &'a Cleanup,
    progress: &'a Progress,
}

impl<C: Contestant> Contests<'_, C> {
    /// Leaves out cases and contests that the plan excludes, and contests without a peer.
    fn narrow(&mut self) {
        let Self { plan, contests, cases, .. } = self;
        cases.retain(|case| plan.wants_case(&case.name()));
        contests.retain(|it| plan.wants_contest(&it.name));
        contests.retain(|it| cases.iter().any(|case| it.has_both(case)));
    }

    /// Fails where neither contests nor figures of vrio alone are left.
    fn check(&self, has_own: bool) -> Result<()> {
        ensure!(
            !self.contests.is_empty() || has_own,
            "nothing to compare: no peer is installed for that (missing: {}), or --contest and \
             --case leave nothing",
            self.missing.join("; ")
        );
        Ok(())
    }

    /// Prints the contestants that are missing, and how long all turns will take. `own_turns` is
    /// the number of turns of vrio alone in each round.
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
    fn run(&mut self, turn: &dyn Fn(&C::Case, &C) -> Result<TurnSample>) -> Vec<ContestOutcome> {
        self.run_shared(&|cases, contestant| {
            cases.iter().map(|case| turn(case, contestant)).collect()
        })
    }

    /// Runs all contests. A turn is of all cases that share it, and gives a sample of each.
    fn run_shared(&mut self, turn: &MeasureTurn<'_, C>) -> Vec<ContestOutcome> {
        let Self { subject, plan, cleanup, progress, .. } = *self;
        let contests = std::mem::take(&mut self.contests);
        let run = |contest| {
            let rounds = plan.rounds;
            let mut runner = Runner { subject, rounds, contest, turn, cleanup, progress };
            runner.run(&self.cases, &mut self.missing)
        };
        contests.into_iter().map(run).collect()
    }

    /// Puts all results together.
    fn result(
        self,
        asked: &impl Serialize,
        contests: Vec<ContestOutcome>,
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

/// Figures of vrio alone, one after the other. A figure that cannot be measured is named in
/// `missing`.
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
