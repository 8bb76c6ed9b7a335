//! Ratios with their spread, and how they look.

use std::fmt;

use serde::Serialize;

use super::goals::Verdict;
use super::{Comparison, Contestant, Rounds, Sample};

/// The middle of some numbers, and how far they lie apart.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
}

impl Spread {
    fn of(numbers: impl Iterator<Item = f64>) -> Self {
        let mut numbers: Vec<_> = numbers.collect();
        numbers.sort_by(f64::total_cmp);
        let (min, max) = (numbers[0], numbers[numbers.len() - 1]);
        let (below, above) = (numbers[(numbers.len() - 1) / 2], numbers[numbers.len() / 2]);
        Self { median: f64::midpoint(below, above), min, max }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{:.2} ({:.2}-{:.2})", self.median, self.min, self.max);
        f.pad(&text)
    }
}

/// One of ours and one of theirs, in one case.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Which requests.
    pub case: String,
    /// Who is measured.
    pub ours: String,
    /// Against whom.
    pub theirs: String,
    /// Rounds that counted.
    pub rounds: usize,
    /// Our requests per second.
    pub our_iops: Spread,
    /// Theirs.
    pub their_iops: Spread,
    /// Our median latency, in microseconds.
    pub our_p50_us: Spread,
    /// Theirs.
    pub their_p50_us: Spread,
    /// Ours divided by theirs, round by round: more is better.
    pub iops_ratio: Spread,
    /// Ours divided by theirs: less is better.
    pub p50_ratio: Spread,
    /// Processor time for each request of everybody who takes part, the driver too: less is better.
    /// None where a server's is not known.
    pub cpu_ratio: Option<Spread>,
    /// Whether cores moved in every round: then all are counted, and the numbers are of no one
    /// level.
    pub moved: bool,
    /// How long a cache line took between two cores and back.
    pub cache_line_rtt_ns: Option<Spread>,
    /// What we mean to reach here.
    pub goals: Vec<Verdict>,
}

/// Every pair of one of ours and one of theirs.
pub(super) fn rows(case: &str, contestants: &[Contestant], rounds: &Rounds) -> Vec<Row> {
    let (ours, theirs): (Vec<_>, Vec<_>) =
        contestants.iter().enumerate().partition(|(_, contestant)| contestant.is_ours());
    let pairs = ours.iter().flat_map(|our| theirs.iter().map(move |their| [*our, *their]));
    pairs.map(|pair| row(case, pair, rounds)).collect()
}

fn row(case: &str, pair: [(usize, &Contestant); 2], rounds: &Rounds) -> Row {
    let [(ours, our_name), (theirs, their_name)] = pair;
    let samples = &rounds.samples;
    let of = |at: usize, number: fn(&Sample) -> f64| {
        Spread::of(samples.iter().map(|round| number(&round[at])))
    };
    let ratio = |number: fn(&Sample) -> f64| {
        Spread::of(samples.iter().map(|round| number(&round[ours]) / number(&round[theirs])))
    };
    let iops = |sample: &Sample| sample.iops;
    let p50 = |sample: &Sample| sample.p50_us;
    let cpu = |round: &Vec<Sample>| {
        Some(round[ours].cpu_us_per_request? / round[theirs].cpu_us_per_request?)
    };
    let cpu: Option<Vec<_>> = samples.iter().map(cpu).collect();
    let trips: Option<Vec<_>> = samples
        .iter()
        .flatten()
        .flat_map(|sample| sample.trips_ns)
        .map(|trip| trip.map(|ns| ns as f64))
        .collect();
    Row {
        case: case.to_owned(),
        ours: our_name.name(),
        theirs: their_name.name(),
        rounds: samples.len(),
        our_iops: of(ours, iops),
        their_iops: of(theirs, iops),
        our_p50_us: of(ours, p50),
        their_p50_us: of(theirs, p50),
        iops_ratio: ratio(iops),
        p50_ratio: ratio(p50),
        cpu_ratio: cpu.map(|cpu| Spread::of(cpu.into_iter())),
        moved: rounds.has_moved,
        cache_line_rtt_ns: trips.map(|trips| Spread::of(trips.into_iter())),
        goals: Vec::new(),
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for outcome in &self.contests {
            writeln!(f, "{}", outcome.contest)?;
            let mut pairs: Vec<_> = outcome.rows.iter().map(|it| (&it.ours, &it.theirs)).collect();
            let mut seen = std::collections::HashSet::new();
            pairs.retain(|pair| seen.insert(*pair));
            for pair in pairs {
                heading(f, pair)?;
                let mut rows = outcome.rows.iter().filter(|it| (&it.ours, &it.theirs) == pair);
                rows.try_for_each(|row| row.line(f, self.asked.rounds))?;
            }
            writeln!(f)?;
        }
        self.machine(f)
    }
}

fn heading(f: &mut fmt::Formatter<'_>, (ours, theirs): (&String, &String)) -> fmt::Result {
    let ratio = "ours / theirs: median (least-most)";
    writeln!(f, "  {ours} (ours) and {theirs} (theirs)")?;
    writeln!(f, "  {:22}{:>20}{:>20}   {ratio}", "", "IOPS", "p50 us")?;
    writeln!(
        f,
        "  {:22}{:>10}{:>10}{:>10}{:>10}   {:20}{:20}CPU/request",
        "", "ours", "theirs", "ours", "theirs", "IOPS", "p50"
    )
}

impl Row {
    fn line(&self, f: &mut fmt::Formatter<'_>, rounds: u16) -> fmt::Result {
        let cpu = self.cpu_ratio.map_or("not known".to_owned(), |ratio| ratio.to_string());
        let goals = self.goals.iter().map(Verdict::to_string);
        let notes: Vec<_> = goals.chain(self.note(rounds)).collect();
        let line = format!(
            "  {:22}{:>10.0}{:>10.0}{:>10.2}{:>10.2}   {:20}{:20}{cpu:20}{}",
            self.case,
            self.our_iops.median,
            self.their_iops.median,
            self.our_p50_us.median,
            self.their_p50_us.median,
            self.iops_ratio,
            self.p50_ratio,
            notes.join("; ")
        );
        writeln!(f, "{}", line.trim_end())
    }

    /// What is to be said of its rounds.
    fn note(&self, rounds: u16) -> Option<String> {
        match self.rounds {
            _ if self.moved => Some("the cores MOVED in every round".to_owned()),
            counted if counted < usize::from(rounds) => {
                Some(format!("{counted} rounds of {rounds}"))
            }
            _ => None,
        }
    }
}

impl Comparison {
    fn machine(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for missing in &self.missing {
            writeln!(f, "not measured: {missing}")?;
        }
        let rows = self.contests.iter().flat_map(|outcome| &outcome.rows);
        let trips: Vec<_> = rows.filter_map(|row| row.cache_line_rtt_ns).collect();
        let least = trips.iter().map(|trip| trip.min).fold(f64::INFINITY, f64::min);
        let most = trips.iter().map(|trip| trip.max).fold(0.0, f64::max);
        let machine = &self.machine;
        let build = machine.build();
        let slow = if machine.optimised { "" } else { "; NOT OPTIMISED: build --release" };
        writeln!(
            f,
            "{} cores, {}, Linux {}; cache line round trips {least:.0} to {most:.0} ns; {} rounds \
             of {} s; vrio {build}{slow}",
            machine.cores, machine.processor, machine.kernel, self.asked.rounds, self.asked.seconds
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_the_middle_and_both_ends() {
        let spread = Spread::of([3.0, 1.0, 2.0].into_iter());
        assert_eq!(spread, Spread { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(spread.to_string(), "2.00 (1.00-3.00)");
    }
}
