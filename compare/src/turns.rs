//! One contest's turns: every contestant in each round, and the rounds that count.

use std::fs;

use anyhow::Result;

use super::comparison::ContestOutcome;
use super::contest::{Case, Contest, Contestant, MeasureTurn, TurnSample};
use super::goals::Subject;
use super::table::{Pair, PairRow};
use bench::verdict;
use testbed::cleanup::Cleanup;
use testbed::progress::Progress;

/// One contest's turns.
pub(super) struct Runner<'a, C: Contestant> {
    pub(super) subject: &'a Subject,
    /// The number of rounds of the options.
    pub(super) rounds: u16,
    pub(super) contest: Contest<C>,
    pub(super) turn: &'a MeasureTurn<'a, C>,
    pub(super) cleanup: &'a Cleanup,
    pub(super) progress: &'a Progress,
}

/// The samples of a case, by round, then by contestant.
type Rounds = Vec<Vec<TurnSample>>;

/// The samples of each case that shares a turn.
type RoundsOfAll = Vec<Rounds>;

impl<C: Contestant> Runner<'_, C> {
    /// All cases. A contestant that fails takes part no more, and is named.
    pub(super) fn run(&mut self, cases: &[C::Case], missing: &mut Vec<String>) -> ContestOutcome {
        let made = C::prepare(&self.contest, self.cleanup, self.progress);
        let outcome = self.all(cases, missing);
        if let Some(file) = made {
            // An interruption removes it as well.
            let _ = fs::remove_file(file);
        }
        outcome
    }

    fn all(&mut self, cases: &[C::Case], missing: &mut Vec<String>) -> ContestOutcome {
        let mut rows = Vec::new();
        for cases in cases.chunk_by(Case::shares_turn) {
            while self.contest.has_both(&cases[0]) {
                match self.rounds(cases) {
                    Ok((contestants, of_all)) => {
                        rows.extend(self.rows(cases, &contestants, &of_all));
                        break;
                    }
                    Err((failed, error)) => {
                        self.cleanup.yield_to_interruption();
                        self.contest.contestants.retain(|it| it.name() != failed);
                        let (contest, case) = (&self.contest.name, cases[0].name());
                        missing.push(format!("{failed} ({contest}), from {case} on: {error:#}"));
                        self.progress.done(missing[missing.len() - 1].clone());
                    }
                }
            }
        }
        let contest = self.contest.name.clone();
        self.progress.done(format!("{contest}: {} rows", rows.len()));
        ContestOutcome { contest, rows, setup: self.contest.setup.clone() }
    }

    /// The rows of every case: each of ours with each of theirs.
    fn rows(&self, cases: &[C::Case], contestants: &[C], of_all: &RoundsOfAll) -> Vec<PairRow> {
        let of_case = |(case, rounds): (&C::Case, &Rounds)| {
            let row = |(ours, theirs): (usize, usize)| {
                let names = [ours, theirs].map(|at| contestants[at].name());
                let counted = counted(rounds, [ours, theirs]);
                let pair = Pair { ours, theirs, rounds, counted: &counted };
                pair.row(self.subject, &self.contest.name, case, names)
            };
            pairs(contestants).into_iter().map(row).collect::<Vec<_>>()
        };
        cases.iter().zip(of_all).flat_map(of_case).collect()
    }

    /// As many rounds as were asked for, and more where too few of a pair are of one level. The
    /// error names the contestant that fails.
    fn rounds(&self, cases: &[C::Case]) -> Result<(Vec<C>, RoundsOfAll), (String, anyhow::Error)> {
        let contestants: Vec<_> = self.contest.of(&cases[0]).cloned().collect();
        let (pairs, mut of_all) = (pairs(&contestants), vec![Rounds::new(); cases.len()]);
        let fewest = |of_all: &RoundsOfAll| {
            let counts = of_all.iter().flat_map(|rounds| {
                pairs.iter().map(|&(ours, theirs)| counted(rounds, [ours, theirs]).len())
            });
            counts.min().unwrap_or_default()
        };
        while verdict::wants_more(self.rounds, of_all[0].len(), fewest(&of_all)) {
            let turn = |contestant: &C| {
                self.progress.doing(format!(
                    "{}, {}: round {} of {}, {}",
                    self.contest.name,
                    told(cases),
                    of_all[0].len() + 1,
                    self.rounds,
                    contestant.name()
                ));
                (self.turn)(cases, contestant).map_err(|error| (contestant.name(), error))
            };
            let round = contestants.iter().map(turn).collect::<Result<Vec<_>, _>>()?;
            for (at, rounds) in of_all.iter_mut().enumerate() {
                rounds.push(round.iter().map(|samples| samples[at]).collect());
            }
        }
        Ok((contestants, of_all))
    }
}

/// The name of a turn's cases.
fn told(cases: &[impl Case]) -> String {
    let name = cases[0].name();
    if cases.len() == 1 { name } else { format!("{name} and {} more", cases.len() - 1) }
}

/// The pairs of one of ours and a peer.
fn pairs<C: Contestant>(contestants: &[C]) -> Vec<(usize, usize)> {
    let of = |is_ours: bool| {
        let all = contestants.iter().enumerate();
        all.filter(move |(_, it)| it.is_ours() == is_ours).map(|(at, _)| at)
    };
    of(true).flat_map(|ours| of(false).map(move |theirs| (ours, theirs))).collect()
}

/// The rounds in which both met the same level, which the most of them met.
fn counted(rounds: &[Vec<TurnSample>], pair: [usize; 2]) -> Vec<usize> {
    let trips = |round: &Vec<TurnSample>| {
        pair.iter().flat_map(|&at| round[at].trips_ns).flatten().collect::<Vec<_>>()
    };
    verdict::of_one_level(&rounds.iter().map(trips).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use anyhow::bail;

    use super::*;
    use crate::case::MeasuredCase;
    use crate::goals::Subject;
    use crate::table::tests::sample;

    static SUBJECT: Subject = Subject {
        rate: "things/s",
        each: "thing",
        texts: &[],
        parts: &[],
        own: &[],
        cases: || vec!["thing".to_owned()],
    };

    pub(crate) struct TestCase;

    impl Case for TestCase {
        fn name(&self) -> String {
            "thing".to_owned()
        }

        fn measured(&self) -> MeasuredCase {
            "thing".measured()
        }

        fn shares_turn(&self, _: &Self) -> bool {
            true
        }
    }

    /// Contestants whose name has "our" in it are ours.
    impl Contestant for &'static str {
        type Case = TestCase;

        fn name(&self) -> String {
            (*self).to_owned()
        }

        fn is_ours(&self) -> bool {
            self.contains("our")
        }

        fn takes_part(&self, _: &TestCase) -> bool {
            *self != "guest"
        }

        fn is_slow(&self) -> bool {
            false
        }
    }

    #[test]
    fn a_pair_keeps_its_rounds_when_cores_move_during_another_ones_turn() {
        let moved = |trips_ns| TurnSample { trips_ns, ..sample(1.0) };
        let level = || moved([Some(105), Some(110)]);
        let rounds = [
            vec![level(), level(), moved([Some(110), Some(480)])],
            vec![level(), level(), level()],
            vec![moved([Some(50), Some(52)]), level(), level()],
        ];
        assert_eq!(counted(&rounds, [0, 1]), [0, 1]);
        assert_eq!(counted(&rounds, [0, 2]), [1]);
    }

    #[test]
    fn each_of_ours_meets_each_of_theirs() {
        let all = ["ours", "one", "also ours", "two"];
        assert_eq!(pairs(&all), [(0, 1), (0, 3), (2, 1), (2, 3)]);
    }

    #[test]
    fn turns_alternate_and_a_failing_contestant_is_named_and_left_out() {
        let (cleanup, progress, took) =
            (Cleanup::default(), Progress::silent(), RefCell::new(Vec::new()));
        let turn = |things: &[TestCase], who: &&'static str| {
            took.borrow_mut().push(*who);
            if *who == "broken" {
                bail!("it is broken");
            }
            Ok(things.iter().enumerate().map(|(at, _)| sample(10.0 + at as f64)).collect())
        };
        let contestants = vec!["ours", "broken", "guest", "one"];
        let contest = Contest::new("contest", contestants);
        let mut runner = Runner {
            subject: &SUBJECT,
            rounds: 2,
            contest,
            turn: &turn,
            cleanup: &cleanup,
            progress: &progress,
        };
        let mut missing = Vec::new();
        let outcome = runner.run(&[TestCase, TestCase], &mut missing);
        assert_eq!(*took.borrow(), ["ours", "broken", "ours", "one", "ours", "one"]);
        let [row, with] = &outcome.rows[..] else { panic!("{outcome:?}") };
        assert_eq!((row.theirs.as_str(), row.tried), ("one", 2));
        assert_eq!((row.our_rate.median, with.our_rate.median), (10e3, 11e3));
        assert_eq!(missing, ["broken (contest), from thing on: it is broken"]);
    }
}
