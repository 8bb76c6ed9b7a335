//! The goals of a comparison: bounds on ratios within one run and on figures of vrio alone, not on
//! absolute speeds.

use std::fmt;

use serde::Serialize;

use super::contest::LOCAL;
use super::table::PairRow;
use bench::verdict::{Bound, GoalState, Verdict};

/// The figure that a ratio is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Figure {
    /// Requests or frames per second: ours divided by theirs.
    Rate,
    /// The median latency.
    P50,
    /// Processor time for each request or frame, which are of one length.
    Cpu,
}

/// A subject of comparisons: the names of its figures, and its goals.
#[derive(Debug)]
pub(super) struct Subject {
    /// Requests or frames, per second.
    pub(super) rate: &'static str,
    /// One request, frame or message.
    pub(super) each: &'static str,
    /// All goals, in the order of their numbers, from 1.
    pub(super) texts: &'static [&'static str],
    pub(super) parts: &'static [RowBound],
    /// Goals that no peer is for, and the missing measurement where a goal has no verdict.
    pub(super) own: &'static [(u8, &'static str)],
    /// The names of all cases.
    pub(super) cases: fn() -> Vec<String>,
}

/// The bound of a goal on the rows that it fits.
#[derive(Debug)]
pub(super) struct RowBound {
    pub(super) goal: u8,
    /// Contests have this in their name, rows these words in their case.
    pub(super) contest: &'static str,
    pub(super) case: &'static str,
    pub(super) ours: &'static str,
    pub(super) theirs: &'static [&'static str],
    pub(super) figure: Figure,
    pub(super) bound: f64,
}

/// A part that is about local disks or nics.
pub(super) const fn part(
    goal: u8,
    contest: &'static str,
    case: &'static str,
    theirs: &'static [&'static str],
    figure: Figure,
    bound: f64,
) -> RowBound {
    RowBound { goal, contest, case, ours: LOCAL, theirs, figure, bound }
}

impl RowBound {
    /// The same part about another side of ours.
    pub(super) const fn by(self, ours: &'static str) -> Self {
        Self { ours, ..self }
    }

    fn has_case(&self, case: &str) -> bool {
        // "depth 1" is no part of "depth 16".
        case.ends_with(self.case) || !self.case.contains("depth") && case.contains(self.case)
    }

    fn is_of(&self, contest: &str, row: &PairRow) -> bool {
        contest.contains(self.contest)
            && self.has_case(&row.case)
            && row.ours == self.ours
            && self.theirs.iter().any(|theirs| is_called(&row.theirs, theirs))
    }

    fn bound(&self) -> Bound {
        match self.figure {
            Figure::Rate => Bound::AtLeast(self.bound),
            Figure::P50 | Figure::Cpu => Bound::AtMost(self.bound),
        }
    }

    /// Peers of the part that have no row, in those cases that it fits.
    fn missing(&self, cases: &[String], rows: &[(&str, &PairRow)]) -> Vec<String> {
        let cases: Vec<_> = cases.iter().filter(|case| self.has_case(case)).collect();
        let is_there = |case: &str, theirs: &str| {
            rows.iter().any(|(contest, row)| {
                row.case == case
                    && self.is_of(contest, row)
                    && is_called(&row.theirs, theirs)
                    && (self.figure != Figure::Cpu || row.cpu_ratio.is_some())
            })
        };
        let pairs =
            self.theirs.iter().flat_map(|their| cases.iter().map(move |case| (their, case)));
        let missing = pairs.filter(|(their, case)| !is_there(case, their));
        missing.map(|(their, case)| format!("{case}, {}, {their}", self.contest)).collect()
    }
}

/// Whether a peer has that name, which its version may follow.
fn is_called(peer: &str, name: &str) -> bool {
    peer.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
}

/// Ours divided by theirs, of each round that counts.
pub(super) struct Ratios {
    pub(super) rate: Vec<f64>,
    /// Empty where a round has no latency.
    pub(super) p50: Vec<f64>,
    pub(super) p99: Vec<f64>,
    /// Empty where the time of a server is not known.
    pub(super) cpu: Vec<f64>,
}

/// A goal, and whether all rows together reach it.
#[derive(Clone, Debug, Serialize)]
pub struct GoalOutcome {
    /// Its number.
    pub goal: u8,
    /// The goal in words.
    pub text: &'static str,
    /// Whether the goal holds.
    pub standing: GoalState,
    /// The number of verdicts on the goal.
    pub verdicts: usize,
    /// The number of verdicts that hold.
    pub hold: usize,
    /// The verdict that decides, with its case and peer: no other one has less room on the right
    /// side of its bound.
    pub decisive: Option<String>,
    /// The measurements that are still needed.
    pub missing: Vec<String>,
}

impl Subject {
    /// The verdicts of the goals on a row.
    pub(super) fn verdicts(&self, contest: &str, row: &PairRow, ratios: &Ratios) -> Vec<Verdict> {
        let of = self.parts.iter().filter(|part| part.is_of(contest, row));
        of.filter_map(|part| {
            let (name, values) = match part.figure {
                Figure::Rate => (self.rate, &ratios.rate),
                Figure::P50 => ("p50", &ratios.p50),
                Figure::Cpu => ("CPU", &ratios.cpu),
            };
            let is_known = !values.is_empty();
            is_known.then(|| Verdict::of(part.goal, name, part.bound(), values, row.moved))
        })
        .collect()
    }

    /// The result of every goal. `rows` have the contest's name, `own` has the name of the figures
    /// of vrio alone that a verdict is about.
    pub(super) fn reached(
        &self,
        rows: &[(&str, &PairRow)],
        own: &[(&str, &Verdict)],
    ) -> Vec<GoalOutcome> {
        let numbers = 1..=u8::try_from(self.texts.len()).expect("a dozen");
        numbers.zip(self.texts).map(|(goal, text)| self.one(goal, text, rows, own)).collect()
    }

    fn one(
        &self,
        goal: u8,
        text: &'static str,
        rows: &[(&str, &PairRow)],
        own: &[(&str, &Verdict)],
    ) -> GoalOutcome {
        let of_rows = rows.iter().flat_map(|(_, row)| {
            row.goals.iter().map(move |it| (format!("{}, {}", row.case, row.theirs), it))
        });
        let of_own = own.iter().map(|(about, verdict)| ((*about).to_owned(), *verdict));
        let mut all: Vec<_> = of_rows.chain(of_own).collect();
        all.retain(|(_, verdict)| verdict.goal == goal);
        let (parts, cases) = (self.parts.iter().filter(|part| part.goal == goal), (self.cases)());
        let mut missing: Vec<_> = parts.flat_map(|part| part.missing(&cases, rows)).collect();
        missing.dedup();
        if all.is_empty() {
            let own = self.own.iter().filter(|(number, _)| *number == goal);
            missing.extend(own.map(|(_, what)| (*what).to_owned()));
        }
        let with = |standing| all.iter().filter(move |(_, verdict)| verdict.standing == standing);
        let standing = if with(GoalState::DoesNotHold).next().is_some() {
            GoalState::DoesNotHold
        } else if with(GoalState::Undecided).next().is_some() {
            GoalState::Undecided
        } else if !missing.is_empty() {
            GoalState::NotMeasured
        } else {
            GoalState::Holds
        };
        let room = |verdict: &Verdict| verdict.bound.room(verdict.value.median);
        // A verdict that decides nothing for want of rounds matters less than one that fails.
        let decisive = all
            .iter()
            .filter(|(_, it)| standing == GoalState::NotMeasured || it.standing == standing)
            .min_by(|(_, one), (_, two)| room(one).total_cmp(&room(two)));
        GoalOutcome {
            goal,
            text,
            standing,
            verdicts: all.len(),
            hold: with(GoalState::Holds).count(),
            decisive: decisive.map(|(about, it)| {
                let open = it.why.as_deref().map_or(String::new(), |why| format!("; {why}"));
                format!("{about}: {} {} {}{open}", it.figure, it.value, it.bound)
            }),
            missing,
        }
    }
}

impl fmt::Display for GoalOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { goal, text, standing, verdicts, hold, .. } = self;
        writeln!(f, "  {goal:>2}  {standing:14}{hold:>3} of {verdicts:<3}  {text}")?;
        self.decisive.iter().try_for_each(|it| writeln!(f, "{:32}{it}", ""))?;
        match &self.missing[..] {
            [] => Ok(()),
            [one] => writeln!(f, "{:32}not measured: {one}", ""),
            [one, more @ ..] => {
                writeln!(f, "{:32}not measured: {one}, and {} more", "", more.len())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_may_follow_a_name() {
        assert!(is_called("server", "server") && is_called("server 7.2.22", "server"));
        for other in ["server, by its own driver", "servers", "a server", ""] {
            assert!(!is_called(other, "server"), "{other}");
        }
    }
}
