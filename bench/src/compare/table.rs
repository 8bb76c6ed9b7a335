//! Ratios with their spread, and how they look.

use std::fmt;

use serde::Serialize;

use super::goals::{self, Ratios};
use super::own::OwnOutcome;
use super::{Case, Comparison, Sample};
use crate::verdict::{Spread, Verdict};

/// A core that was shared: whoever polls had less of it than this.
const CORE_SHARE_MIN: f64 = 0.9;

/// One of ours and one of theirs, in one case.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Which requests.
    pub case: String,
    /// Who is measured.
    pub ours: String,
    /// Against whom.
    pub theirs: String,
    /// Rounds that counted: both met one level, the same in all of them.
    pub rounds: usize,
    /// Rounds that were measured.
    pub tried: usize,
    /// Our requests per second.
    pub our_iops: Spread,
    /// Theirs.
    pub their_iops: Spread,
    /// Our median latency, in microseconds.
    pub our_p50_us: Spread,
    /// Theirs.
    pub their_p50_us: Spread,
    /// What 99 of a hundred of our requests did not exceed, in microseconds.
    pub our_p99_us: Spread,
    /// Theirs.
    pub their_p99_us: Spread,
    /// Ours divided by theirs, round by round: more is better.
    pub iops_ratio: Spread,
    /// Ours divided by theirs: less is better.
    pub p50_ratio: Spread,
    /// Ours divided by theirs: less is better.
    pub p99_ratio: Spread,
    /// Processor time for each request of everybody who takes part, the driver too: less is better.
    /// None where a server's is not known.
    pub cpu_ratio: Option<Spread>,
    /// Whether cores moved in every round: then all are counted, and the numbers are of no one
    /// level.
    pub moved: bool,
    /// How long a cache line took between two cores and back, in the rounds that counted.
    pub cache_line_rtt_ns: Option<Spread>,
    /// The least share of its core that our driver had, where it had one to itself. Below one,
    /// others had it meanwhile.
    pub core_share: Option<f64>,
    /// What we mean to reach here.
    pub goals: Vec<Verdict>,
}

/// Two contestants' samples.
pub(super) struct Pair<'a> {
    /// Their places in a round.
    pub(super) ours: usize,
    pub(super) theirs: usize,
    pub(super) rounds: &'a [Vec<Sample>],
    /// The rounds of one level; none if the cores moved in each.
    pub(super) counted: &'a [usize],
}

impl Pair<'_> {
    /// Both samples of each round that counts.
    fn samples(&self) -> Vec<[Sample; 2]> {
        let both = |round: &Vec<Sample>| [round[self.ours], round[self.theirs]];
        match self.counted {
            [] => self.rounds.iter().map(both).collect(),
            counted => counted.iter().map(|&at| both(&self.rounds[at])).collect(),
        }
    }

    /// What they make together, and what the goals say of it.
    pub(super) fn row(&self, contest: &str, case: &Case, [ours, theirs]: [String; 2]) -> Row {
        let samples = self.samples();
        let of = |at: usize, number: fn(&Sample) -> f64| {
            Spread::of(samples.iter().map(|both| number(&both[at])))
        };
        let ratios = |number: fn(&Sample) -> f64| -> Vec<f64> {
            samples.iter().map(|[ours, theirs]| number(ours) / number(theirs)).collect()
        };
        let cpu = |[ours, theirs]: &[Sample; 2]| {
            Some(ours.cpu_us_per_request? / theirs.cpu_us_per_request?)
        };
        let trips = samples.iter().flatten().flat_map(|sample| sample.trips_ns).flatten();
        let trips: Vec<_> = trips.map(|trip| trip as f64).collect();
        let shares = samples.iter().flatten().filter_map(|sample| sample.core_share);
        let ratios = Ratios {
            iops: ratios(|sample| sample.iops),
            p50: ratios(|sample| sample.p50_us),
            p99: ratios(|sample| sample.p99_us),
            cpu: samples.iter().map(cpu).collect::<Option<_>>().unwrap_or_default(),
        };
        let spread = |values: &[f64]| Spread::of(values.iter().copied());
        let mut row = Row {
            case: case.name(),
            ours,
            theirs,
            rounds: self.counted.len(),
            tried: self.rounds.len(),
            our_iops: of(0, |sample| sample.iops),
            their_iops: of(1, |sample| sample.iops),
            our_p50_us: of(0, |sample| sample.p50_us),
            their_p50_us: of(1, |sample| sample.p50_us),
            our_p99_us: of(0, |sample| sample.p99_us),
            their_p99_us: of(1, |sample| sample.p99_us),
            iops_ratio: spread(&ratios.iops),
            p50_ratio: spread(&ratios.p50),
            p99_ratio: spread(&ratios.p99),
            cpu_ratio: (!ratios.cpu.is_empty()).then(|| spread(&ratios.cpu)),
            moved: self.counted.is_empty(),
            cache_line_rtt_ns: (!trips.is_empty()).then(|| spread(&trips)),
            core_share: shares.reduce(f64::min),
            goals: Vec::new(),
        };
        row.goals = goals::verdicts(contest, &row, &ratios);
        row
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
                rows.try_for_each(|row| row.line(f))?;
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

fn heading(f: &mut fmt::Formatter<'_>, (ours, theirs): (&String, &String)) -> fmt::Result {
    let ratio = "ours / theirs: median (least-most)";
    writeln!(f, "  {ours} (ours) and {theirs} (theirs)")?;
    writeln!(f, "  {:22}{:>20}{:>20}{:>20}   {ratio}", "", "IOPS", "p50 us", "p99 us")?;
    let both = format!("{:>10}{:>10}", "ours", "theirs");
    writeln!(f, "  {:22}{both}{both}{both}   {:20} {:20} CPU/request", "", "IOPS", "p50")
}

impl Row {
    fn line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cpu = self.cpu_ratio.map_or("not known".to_owned(), |ratio| ratio.to_string());
        let latencies = [self.our_p50_us, self.their_p50_us, self.our_p99_us, self.their_p99_us];
        let latencies = latencies.map(|latency| format!("{:>10.2}", latency.median)).concat();
        let line = format!(
            "  {:22}{:>10.0}{:>10.0}{latencies}   {:20} {:20} {cpu:20} {}",
            self.case,
            self.our_iops.median,
            self.their_iops.median,
            self.iops_ratio,
            self.p50_ratio,
            self.notes().join("; ")
        );
        writeln!(f, "{}", line.trim_end())
    }

    /// What the goals say, and what is to be said of the rounds.
    fn notes(&self) -> Vec<String> {
        let mut notes: Vec<_> = self.goals.iter().map(Verdict::to_string).collect();
        if self.moved {
            notes.push(format!("the cores MOVED in all {} rounds", self.tried));
        } else if self.rounds < self.tried {
            notes.push(format!("{} of {} rounds are of one level", self.rounds, self.tried));
        }
        if let Some(share) = self.core_share.filter(|share| *share < CORE_SHARE_MIN) {
            notes.push(format!("others had the driver's core: {:.0} % left", share * 100.0));
        }
        notes
    }
}

/// Figures of our own.
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
pub(super) mod tests {
    use super::*;
    use crate::compare::{DIRECT, LOCAL, peers::name};
    use crate::verdict::Standing;

    /// A quiet turn with so many thousand requests per second, one at a time.
    pub(in crate::compare) fn sample(kiops: f64) -> Sample {
        Sample {
            iops: kiops * 1e3,
            p50_us: 1e3 / kiops,
            p99_us: 2e3 / kiops,
            cpu_us_per_request: Some(2e3 / kiops),
            core_share: Some(0.99),
            trips_ns: [Some(105), Some(110)],
        }
    }

    /// A row of rounds with these kIOPS of ours and of theirs.
    pub(in crate::compare) fn row(
        contest: &str,
        case: &str,
        names: [&str; 2],
        rounds: &[[f64; 2]],
    ) -> Row {
        let rounds: Vec<_> = rounds.iter().map(|both| both.map(sample).to_vec()).collect();
        let counted: Vec<_> = (0..rounds.len()).collect();
        let pair = Pair { ours: 0, theirs: 1, rounds: &rounds, counted: &counted };
        let case = Case::all().into_iter().find(|it| it.name() == case).unwrap();
        pair.row(contest, &case, names.map(str::to_owned))
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        let rounds = [[30.0, 10.0], [40.0, 20.0], [50.0, 20.0]];
        let names = [DIRECT, name::SPDK_NVME];
        let row = row("direct, memory", "randread 4k depth 32", names, &rounds);
        assert_eq!(row.iops_ratio, Spread { median: 2.5, min: 2.0, max: 3.0 });
        assert_eq!((row.our_iops.median, row.their_iops.median), (40e3, 20e3));
        assert!((row.p99_ratio.median - 0.4).abs() < 1e-9, "{row:?}");
        assert!((row.cpu_ratio.unwrap().max - 0.5).abs() < 1e-9, "{row:?}");
        let [verdict] = &row.goals[..] else { panic!("{row:?}") };
        assert_eq!((verdict.goal, verdict.standing), (7, Standing::Holds));
        assert_eq!(row.notes(), ["goal 7, IOPS >= 1.50: holds"]);
    }

    #[test]
    fn what_does_not_count_and_what_disturbs_is_said() {
        let quiet = sample(10.0);
        let far = Sample { trips_ns: [Some(485), Some(480)], core_share: Some(0.5), ..quiet };
        let rounds = [vec![quiet, quiet], vec![far, quiet], vec![far, far]];
        let case = Case::all()[0];
        let of = |counted: &[usize]| {
            let pair = Pair { ours: 0, theirs: 1, rounds: &rounds, counted };
            pair.row("local, null volume", &case, [LOCAL, name::SPDK_VHOST].map(str::to_owned))
        };
        let few = of(&[0]);
        assert_eq!((few.rounds, few.tried, few.moved), (1, 3, false));
        let notes = few.notes();
        assert_eq!(notes[0], "goal 2, p50 <= 1.00: undecided (1 of 3 rounds of one level)");
        assert_eq!(notes[1], "1 of 3 rounds are of one level");
        let notes = of(&[]).notes();
        assert!(notes[0].contains("moved in every round"), "{notes:?}");
        assert_eq!(notes[1], "the cores MOVED in all 3 rounds");
        assert_eq!(notes[2], "others had the driver's core: 50 % left");
    }

    #[test]
    fn processor_time_that_nobody_knows_has_no_ratio() {
        let unknown = Sample { cpu_us_per_request: None, ..sample(10.0) };
        let rounds = [vec![sample(10.0), unknown]];
        let pair = Pair { ours: 0, theirs: 1, rounds: &rounds, counted: &[0] };
        let names = [DIRECT, name::NBDKIT].map(str::to_owned);
        let row = pair.row("direct, memory", &Case::all()[6], names);
        assert_eq!(row.cpu_ratio, None);
        let judged: Vec<_> = row.goals.iter().map(|verdict| verdict.figure).collect();
        assert_eq!(judged, ["IOPS"], "what is not known is not judged");
    }
}
