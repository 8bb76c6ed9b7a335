//! Ratios with their spread, and how they look.

use std::fmt;

use serde::Serialize;

use super::Comparison;
use crate::block::Report;

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
}

/// Every pair of one of ours and one of theirs. Ours are called `vrio` something.
pub(super) fn rows(
    case: &str,
    names: &[String],
    (rounds, has_moved): &(Vec<Vec<Report>>, bool),
) -> Vec<Row> {
    let is_ours = |at: &usize| names[*at].starts_with("vrio ");
    let ours = (0..names.len()).filter(is_ours);
    let theirs: Vec<_> = (0..names.len()).filter(|at| !is_ours(at)).collect();
    let pairs = ours.flat_map(|our| theirs.iter().map(move |their| (our, *their)));
    let row = |(our, their)| Row {
        moved: *has_moved,
        ..row(case, [&names[our], &names[their]], [our, their], rounds)
    };
    pairs.map(row).collect()
}

fn row(case: &str, names: [&String; 2], at: [usize; 2], rounds: &[Vec<Report>]) -> Row {
    let [ours, theirs] = at;
    let of = |at: usize, number: fn(&Report) -> f64| {
        Spread::of(rounds.iter().map(|round| number(&round[at])))
    };
    let ratio = |number: fn(&Report) -> f64| {
        Spread::of(rounds.iter().map(|round| number(&round[ours]) / number(&round[theirs])))
    };
    let iops = |report: &Report| report.iops;
    let p50 = |report: &Report| report.latency_us.p50;
    let trips: Option<Vec<_>> = rounds
        .iter()
        .flatten()
        .map(|report| report.cache_line_rtt_ns.map(|ns| ns as f64))
        .collect();
    Row {
        case: case.to_owned(),
        ours: names[0].clone(),
        theirs: names[1].clone(),
        rounds: rounds.len(),
        our_iops: of(ours, iops),
        their_iops: of(theirs, iops),
        our_p50_us: of(ours, p50),
        their_p50_us: of(theirs, p50),
        iops_ratio: ratio(iops),
        p50_ratio: ratio(p50),
        cpu_ratio: cpu_ratio(at, rounds),
        moved: false,
        cache_line_rtt_ns: trips.map(|trips| Spread::of(trips.into_iter())),
    }
}

fn cpu_ratio([ours, theirs]: [usize; 2], rounds: &[Vec<Report>]) -> Option<Spread> {
    let each = rounds
        .iter()
        .map(|round| Some(round[ours].cpu_us_per_request()? / round[theirs].cpu_us_per_request()?));
    let all: Option<Vec<_>> = each.collect();
    all.map(|all| Spread::of(all.into_iter()))
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ratio = "ours / theirs: median (least-most)";
        for outcome in &self.contests {
            writeln!(f, "{}", outcome.contest)?;
            let mut pair = None;
            for row in &outcome.rows {
                let this = (&row.ours, &row.theirs);
                if pair != Some(this)
                    && outcome.rows.iter().filter(|r| r.case == row.case).count() > 1
                    || pair.is_none()
                {
                    writeln!(f, "  {} (ours) and {} (theirs)", row.ours, row.theirs)?;
                    writeln!(f, "  {:22}{:>20}{:>20}   {ratio}", "", "IOPS", "p50 us")?;
                    writeln!(
                        f,
                        "  {:22}{:>10}{:>10}{:>10}{:>10}   {:20}{:20}{:20}",
                        "", "ours", "theirs", "ours", "theirs", "IOPS", "p50", "CPU/request"
                    )?;
                }
                pair = Some(this);
                writeln!(
                    f,
                    "  {:22}{:>10.0}{:>10.0}{:>10.2}{:>10.2}   {:20}{:20}{:20}{}",
                    row.case,
                    row.our_iops.median,
                    row.their_iops.median,
                    row.our_p50_us.median,
                    row.their_p50_us.median,
                    row.iops_ratio,
                    row.p50_ratio,
                    row.cpu_ratio.map_or("not known".to_owned(), |ratio| ratio.to_string()),
                    row.note(self.asked.rounds)
                )?;
            }
            writeln!(f)?;
        }
        self.machine(f)
    }
}

impl Row {
    /// What is to be said of its rounds.
    fn note(&self, rounds: u16) -> String {
        match self.rounds {
            _ if self.moved => "the cores MOVED in every round".to_owned(),
            counted if counted < usize::from(rounds) => format!("{counted} rounds of {rounds}"),
            _ => String::new(),
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
        let commit = machine.commit.as_ref().map(|id| format!(" {id}")).unwrap_or_default();
        let slow = if machine.optimised { "" } else { "; NOT OPTIMISED: build --release" };
        writeln!(
            f,
            "{} cores, {}, Linux {}; cache line round trips {least:.0} to {most:.0} ns; {} rounds \
             of {} s; vrio {}{commit}{slow}",
            machine.cores,
            machine.processor,
            machine.kernel,
            self.asked.rounds,
            self.asked.seconds,
            machine.version
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
