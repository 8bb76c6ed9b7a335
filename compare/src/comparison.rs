//! Everything that was compared: one JSON object, or tables.

use std::fmt;

use serde::Serialize;

use super::contest::ComparisonPlan;
use super::goals::{GoalOutcome, Subject};
use super::table::{OwnOutcome, PairRow};
use bench::verdict::{self, Verdict};
use testbed::machine::Machine;

/// The version of the JSON form.
pub(super) const COMPARISON_VERSION: u32 = 5;

/// A contest's outcome.
#[derive(Clone, Debug, Serialize)]
pub struct ContestOutcome {
    /// The name of the contest.
    pub contest: String,
    /// Each case and pair of contestants.
    pub rows: Vec<PairRow>,
    /// The settings by which results tell this contest from others.
    #[serde(skip)]
    pub(super) setup: Vec<(&'static str, String)>,
}

/// Everything that was compared.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The version of this form.
    pub version: u32,
    /// The options of this run.
    pub asked: serde_json::Value,
    /// The contests.
    pub contests: Vec<ContestOutcome>,
    /// Figures of vrio alone that goals are about.
    pub own: Vec<OwnOutcome>,
    /// All goals, by number.
    pub goals: Vec<GoalOutcome>,
    /// Peers that could not be measured, and why.
    pub missing: Vec<String>,
    /// The machine.
    pub machine: Machine,
    #[serde(skip)]
    pub(super) subject: &'static Subject,
    #[serde(skip)]
    pub(super) plan: ComparisonPlan,
}

/// All goals, judged by all rows together.
pub(super) fn goals_of(
    subject: &Subject,
    outcomes: &[ContestOutcome],
    own: &[OwnOutcome],
) -> Vec<GoalOutcome> {
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

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for outcome in &self.contests {
            writeln!(f, "{}", outcome.contest)?;
            let mut pairs: Vec<_> = outcome.rows.iter().map(|it| (&it.ours, &it.theirs)).collect();
            let mut seen = std::collections::HashSet::new();
            pairs.retain(|pair| seen.insert(*pair));
            let has_cpu = outcome.rows.iter().any(|row| row.cpu_ratio.is_some());
            for pair in pairs {
                heading(f, self.subject, pair, has_cpu)?;
                let mut rows = outcome.rows.iter().filter(|it| (&it.ours, &it.theirs) == pair);
                rows.try_for_each(|row| row.line(f, has_cpu))?;
            }
            writeln!(f)?;
        }
        self.own.iter().try_for_each(|outcome| own(f, outcome))?;
        writeln!(f, "goals: verdicts of rounds of one level, of how many; and the decisive one")?;
        self.goals.iter().try_for_each(|reached| write!(f, "{reached}"))?;
        writeln!(f)?;
        self.machine(f)
    }
}

fn heading(
    f: &mut fmt::Formatter<'_>,
    Subject { rate, each, .. }: &Subject,
    (ours, theirs): (&String, &String),
    has_cpu: bool,
) -> fmt::Result {
    let ratio = "ours / theirs: median (least-most)";
    writeln!(f, "  {ours} (ours) and {theirs} (theirs)")?;
    writeln!(f, "  {:22}{rate:>20}{:>20}{:>20}   {ratio}", "", "p50 us", "p99 us")?;
    let both = format!("{:>10}{:>10}", "ours", "theirs");
    let cpu = if has_cpu { format!("CPU/{each}") } else { String::new() };
    let line = format!("  {:22}{both}{both}{both}   {rate:20} {:20} {cpu}", "", "p50");
    writeln!(f, "{}", line.trim_end())
}

/// Figures of vrio alone.
fn own(f: &mut fmt::Formatter<'_>, outcome: &OwnOutcome) -> fmt::Result {
    writeln!(f, "{}", outcome.contest)?;
    for row in &outcome.rows {
        let (value, few) = (row.value.to_string(), row.rounds < row.tried);
        let few = few.then(|| format!("{} of {} rounds are of one level", row.rounds, row.tried));
        let verdict = row.verdict.iter().map(Verdict::to_string);
        let notes = verdict.chain(few).collect::<Vec<_>>().join("; ");
        let line = format!("  {:44}{:40}{value:24}{notes}", row.case, row.figure);
        writeln!(f, "{}", line.trim_end())?;
    }
    writeln!(f)
}

impl Comparison {
    fn machine(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for missing in &self.missing {
            writeln!(f, "not measured: {missing}")?;
        }
        let rows = self.contests.iter().flat_map(|outcome| &outcome.rows);
        let own = self.own.iter().filter_map(|outcome| outcome.cache_line_rtt_ns);
        let trips = verdict::said_of(rows.filter_map(|row| row.cache_line_rtt_ns).chain(own));
        let machine = &self.machine;
        let build = machine.build();
        let slow = if machine.optimised { "" } else { "; NOT OPTIMISED: build --release" };
        writeln!(
            f,
            "{} cores, {}, Linux {}; {trips}; {} rounds of {} s; vrio {build}{slow}",
            machine.cores, machine.processor, machine.kernel, self.plan.rounds, self.plan.seconds
        )
    }
}
