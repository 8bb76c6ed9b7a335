//! Ratios with their spread, and how they look.

use std::fmt;

use serde::Serialize;

use super::case::MeasuredCase;
use super::contest::{Case, TurnSample};
use super::goals::{Ratios, Subject};
use bench::verdict::{Spread, Verdict};

/// The reason why a row is not judged in which the driver waited for lost frames.
const DISTURBED: &str = "turns that mostly waited for what never came";

/// The least share of its core that a driver which polls must have. Below it, the core was shared.
pub(super) const CORE_SHARE_MIN: f64 = 0.9;

/// One of our contestants and a peer, in one case.
#[derive(Clone, Debug, Serialize)]
pub struct PairRow {
    /// The name of the case.
    pub case: String,
    /// Our contestant.
    pub ours: String,
    /// The peer.
    pub theirs: String,
    /// Rounds that counted: both met one level, the same in all of them.
    pub rounds: usize,
    /// Rounds that were measured.
    pub tried: usize,
    /// Our requests or frames per second.
    pub our_rate: Spread,
    /// The peer's requests or frames per second.
    pub their_rate: Spread,
    /// Our median latency, in microseconds, where that was measured.
    pub our_p50_us: Option<Spread>,
    /// The peer's median latency, in microseconds.
    pub their_p50_us: Option<Spread>,
    /// The time that 99 of a hundred of ours did not exceed, in microseconds.
    pub our_p99_us: Option<Spread>,
    /// The time that 99 of a hundred of the peer's did not exceed, in microseconds.
    pub their_p99_us: Option<Spread>,
    /// Processor time for each of ours, of all processes that take part, the driver included, in
    /// microseconds. None where the time of a server is not known.
    pub our_cpu_us: Option<Spread>,
    /// Processor time for each of the peer's, in microseconds.
    pub their_cpu_us: Option<Spread>,
    /// Our rate divided by the peer's, round by round: more is better.
    pub rate_ratio: Spread,
    /// Our median latency divided by the peer's: less is better.
    pub p50_ratio: Option<Spread>,
    /// Our 99th percentile divided by the peer's: less is better.
    pub p99_ratio: Option<Spread>,
    /// Our processor time divided by the peer's: less is better.
    pub cpu_ratio: Option<Spread>,
    /// Whether cores moved in every round: then all are counted, and the numbers are of no one
    /// level.
    pub moved: bool,
    /// The time of a cache line between two cores and back, in the rounds that counted.
    pub cache_line_rtt_ns: Option<Spread>,
    /// The least share of its core that our driver had, where it had one to itself. Below one,
    /// other threads used the core meanwhile.
    pub core_share: Option<f64>,
    /// The largest share of a turn, of ours or theirs, that was spent waiting for frames that never
    /// came. None where it was too small to disturb the rate. Rows that have it are not judged.
    pub waited_share: Option<f64>,
    /// The verdicts of goals on the row.
    pub goals: Vec<Verdict>,
    /// The case in the words of results.
    #[serde(skip)]
    pub(super) measured: MeasuredCase,
}

/// A figure of our own.
#[derive(Clone, Debug, Serialize)]
pub struct OwnRow {
    /// The requests or frames, and their way.
    pub case: String,
    /// The name of the figure, with its unit.
    pub figure: &'static str,
    /// The values of the rounds that count.
    pub value: Spread,
    /// Rounds that counted.
    pub rounds: usize,
    /// Rounds that were measured.
    pub tried: usize,
    /// The verdict of a goal on the figure, if a goal is about it.
    pub verdict: Option<Verdict>,
}

/// The result of one kind of figures of vrio alone.
#[derive(Clone, Debug, Serialize)]
pub struct OwnOutcome {
    /// The name of the kind.
    pub contest: &'static str,
    /// Each figure.
    pub rows: Vec<OwnRow>,
    /// The time of a cache line between two cores and back meanwhile; none with one core.
    pub cache_line_rtt_ns: Option<Spread>,
}

/// Two contestants' samples.
pub(super) struct Pair<'a> {
    /// Their places in a round.
    pub(super) ours: usize,
    pub(super) theirs: usize,
    pub(super) rounds: &'a [Vec<TurnSample>],
    /// The rounds of one level; none if the cores moved in each.
    pub(super) counted: &'a [usize],
}

/// The numbers of all rounds that count; none where a round has no number.
fn all(numbers: impl Iterator<Item = Option<f64>>) -> Vec<f64> {
    numbers.collect::<Option<_>>().unwrap_or_default()
}

fn spread(values: &[f64]) -> Option<Spread> {
    (!values.is_empty()).then(|| Spread::of(values.iter().copied()))
}

impl Pair<'_> {
    /// Both samples of each round that counts.
    fn samples(&self) -> Vec<[TurnSample; 2]> {
        let both = |round: &Vec<TurnSample>| [round[self.ours], round[self.theirs]];
        match self.counted {
            [] => self.rounds.iter().map(both).collect(),
            counted => counted.iter().map(|&at| both(&self.rounds[at])).collect(),
        }
    }

    /// Makes a row of both, with the verdicts of the goals.
    pub(super) fn row(
        &self,
        subject: &Subject,
        contest: &str,
        case: &impl Case,
        [ours, theirs]: [String; 2],
    ) -> PairRow {
        let samples = self.samples();
        let rate = |at: usize| Spread::of(samples.iter().map(|both| both[at].rate));
        let of = |at: usize, number: fn(&TurnSample) -> Option<f64>| {
            spread(&all(samples.iter().map(|both| number(&both[at]))))
        };
        let ratios = |number: fn(&TurnSample) -> Option<f64>| {
            let ratio = |[ours, theirs]: &[TurnSample; 2]| Some(number(ours)? / number(theirs)?);
            all(samples.iter().map(ratio))
        };
        let trips = samples.iter().flatten().flat_map(|sample| sample.trips_ns).flatten();
        let trips: Vec<_> = trips.map(|trip| trip as f64).collect();
        let shares = samples.iter().flatten().filter_map(|sample| sample.core_share);
        let waited = samples.iter().flatten().filter_map(|sample| sample.waited_share);
        let ratios = Ratios {
            rate: ratios(|sample| Some(sample.rate)),
            p50: ratios(|sample| sample.p50_us),
            p99: ratios(|sample| sample.p99_us),
            cpu: ratios(|sample| sample.cpu_us),
        };
        let mut row = PairRow {
            case: case.name(),
            ours,
            theirs,
            rounds: self.counted.len(),
            tried: self.rounds.len(),
            our_rate: rate(0),
            their_rate: rate(1),
            our_p50_us: of(0, |sample| sample.p50_us),
            their_p50_us: of(1, |sample| sample.p50_us),
            our_p99_us: of(0, |sample| sample.p99_us),
            their_p99_us: of(1, |sample| sample.p99_us),
            our_cpu_us: of(0, |sample| sample.cpu_us),
            their_cpu_us: of(1, |sample| sample.cpu_us),
            rate_ratio: Spread::of(ratios.rate.iter().copied()),
            p50_ratio: spread(&ratios.p50),
            p99_ratio: spread(&ratios.p99),
            cpu_ratio: spread(&ratios.cpu),
            moved: self.counted.is_empty(),
            cache_line_rtt_ns: spread(&trips),
            core_share: shares.reduce(f64::min),
            waited_share: waited.reduce(f64::max),
            goals: Vec::new(),
            measured: case.measured(),
        };
        row.goals = subject.verdicts(contest, &row, &ratios);
        if row.waited_share.is_some() {
            row.goals.iter_mut().for_each(|verdict| verdict.open(DISTURBED));
        }
        row
    }
}

impl PairRow {
    /// Writes the row, with a column for processor time if any row has it.
    pub(super) fn line(&self, f: &mut fmt::Formatter<'_>, has_cpu: bool) -> fmt::Result {
        let cpu = self.cpu_ratio.map_or("not known".to_owned(), |ratio| ratio.to_string());
        let cpu = if has_cpu { format!("{cpu:20} ") } else { String::new() };
        let p50 = self.p50_ratio.map_or("-".to_owned(), |ratio| ratio.to_string());
        let latencies = [self.our_p50_us, self.their_p50_us, self.our_p99_us, self.their_p99_us];
        let latencies = latencies.map(|latency| match latency {
            Some(latency) => format!("{:>10.2}", latency.median),
            None => format!("{:>10}", "-"),
        });
        let line = format!(
            "  {:22}{:>10.0}{:>10.0}{}   {:20} {p50:20} {cpu}{}",
            self.case,
            self.our_rate.median,
            self.their_rate.median,
            latencies.concat(),
            self.rate_ratio,
            self.notes().join("; ")
        );
        writeln!(f, "{}", line.trim_end())
    }

    /// The verdicts of the goals, and notes on the rounds.
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
        if let Some(share) = self.waited_share {
            notes.push(format!("DISTURBED: {:.0} % of a turn waited in vain", share * 100.0));
        }
        notes
    }
}

#[cfg(test)]
pub(super) mod tests {
    use results::Axis;

    use super::*;
    use crate::case::CaseKind;
    use crate::contest::LOCAL;
    use crate::goals::{Figure, RowBound, part};
    use bench::verdict::GoalState;

    /// A case by its name, of messages of a kilobyte.
    impl Case for &str {
        fn name(&self) -> String {
            (*self).to_owned()
        }

        fn measured(&self) -> MeasuredCase {
            MeasuredCase {
                benchmark: "mpi_latency",
                kind: CaseKind::Time,
                setup: Vec::new(),
                axis: Axis::MESSAGE_SIZE,
                x: 1000.0,
                bytes: 1000.0,
            }
        }
    }

    /// A quiet turn with so many thousand a second, one at a time.
    pub(crate) fn sample(thousands: f64) -> TurnSample {
        TurnSample {
            rate: thousands * 1e3,
            p50_us: Some(1e3 / thousands),
            p99_us: Some(2e3 / thousands),
            cpu_us: Some(2e3 / thousands),
            core_share: Some(0.99),
            waited_share: None,
            trips_ns: [Some(105), Some(110)],
        }
    }

    /// A row of rounds with so many thousand of ours and of theirs.
    pub(crate) fn row(
        subject: &Subject,
        contest: &str,
        case: &str,
        names: [&str; 2],
        rounds: &[[f64; 2]],
    ) -> PairRow {
        let rounds: Vec<_> = rounds.iter().map(|both| both.map(sample).to_vec()).collect();
        let counted: Vec<_> = (0..rounds.len()).collect();
        let pair = Pair { ours: 0, theirs: 1, rounds: &rounds, counted: &counted };
        pair.row(subject, contest, &case, names.map(str::to_owned))
    }

    const PARTS: [RowBound; 3] = [
        part(1, "", "deep", &["peer"], Figure::Rate, 1.5),
        part(2, "", "deep", &["peer"], Figure::Cpu, 1.0),
        part(3, "", "shallow", &["peer"], Figure::P50, 1.0),
    ];

    pub(crate) static SUBJECT: Subject = Subject {
        rate: "things/s",
        each: "thing",
        texts: &["a rate", "its price", "a latency"],
        parts: &PARTS,
        own: &[],
        cases: || ["deep", "shallow"].map(str::to_owned).to_vec(),
    };

    #[test]
    fn ratios_are_taken_within_a_round() {
        let rounds = [[30.0, 10.0], [40.0, 20.0], [50.0, 20.0]];
        let row = row(&SUBJECT, "contest", "deep", [LOCAL, "peer"], &rounds);
        assert_eq!(row.rate_ratio, Spread { median: 2.5, min: 2.0, max: 3.0 });
        assert_eq!((row.our_rate.median, row.their_rate.median), (40e3, 20e3));
        assert!((row.p99_ratio.unwrap().median - 0.4).abs() < 1e-9, "{row:?}");
        assert!((row.cpu_ratio.unwrap().max - 0.5).abs() < 1e-9, "{row:?}");
        assert_eq!([row.our_cpu_us, row.their_cpu_us].map(|it| it.unwrap().median), [50.0, 100.0]);
        let [rate, cpu] = &row.goals[..] else { panic!("{row:?}") };
        assert_eq!((rate.goal, rate.standing), (1, GoalState::Holds));
        assert_eq!((cpu.goal, cpu.standing), (2, GoalState::Holds));
        assert_eq!(row.notes()[0], "goal 1, things/s >= 1.50: holds");
    }

    #[test]
    fn excluded_and_disturbed_rounds_are_named() {
        let quiet = sample(10.0);
        let far = TurnSample { trips_ns: [Some(485), Some(480)], core_share: Some(0.5), ..quiet };
        let rounds = [vec![quiet, quiet], vec![far, quiet], vec![far, far]];
        let of = |counted: &[usize]| {
            let pair = Pair { ours: 0, theirs: 1, rounds: &rounds, counted };
            pair.row(&SUBJECT, "contest", &"shallow", [LOCAL, "peer"].map(str::to_owned))
        };
        let few = of(&[0]);
        assert_eq!((few.rounds, few.tried, few.moved), (1, 3, false));
        let notes = few.notes();
        assert_eq!(notes[0], "goal 3, p50 <= 1.00: undecided (1 of 3 rounds of one level)");
        assert_eq!(notes[1], "1 of 3 rounds are of one level");
        let notes = of(&[]).notes();
        assert!(notes[0].contains("moved in every round"), "{notes:?}");
        assert_eq!(notes[1], "the cores MOVED in all 3 rounds");
        assert_eq!(notes[2], "others had the driver's core: 50 % left");
    }

    #[test]
    fn a_turn_that_mostly_waited_is_said_and_judges_nothing() {
        let quiet = sample(10.0);
        let waited = TurnSample { waited_share: Some(0.8), ..quiet };
        let rounds = [vec![quiet, quiet], vec![waited, quiet], vec![quiet, quiet]];
        let of = |counted: &[usize]| {
            let pair = Pair { ours: 0, theirs: 1, rounds: &rounds, counted };
            pair.row(&SUBJECT, "contest", &"deep", [LOCAL, "peer"].map(str::to_owned))
        };
        let notes = of(&[0, 1, 2]).notes();
        let said = "goal 2, CPU <= 1.00: undecided (turns that mostly waited for what never came)";
        assert_eq!(notes[1], said);
        assert_eq!(notes[2], "DISTURBED: 80 % of a turn waited in vain");
        assert_eq!(of(&[0, 2]).waited_share, None, "the round does not count");
    }

    #[test]
    fn unknown_figures_have_no_ratio_and_are_not_judged() {
        let unknown = TurnSample { cpu_us: None, ..sample(10.0) };
        let rounds = [vec![sample(10.0), unknown]];
        let pair = Pair { ours: 0, theirs: 1, rounds: &rounds, counted: &[0] };
        let row = pair.row(&SUBJECT, "contest", &"deep", [LOCAL, "peer"].map(str::to_owned));
        assert_eq!((row.cpu_ratio, row.p50_ratio.is_some()), (None, true));
        let judged: Vec<_> = row.goals.iter().map(|verdict| verdict.figure).collect();
        assert_eq!(judged, ["things/s"]);
        let silent = TurnSample { p50_us: None, ..sample(10.0) };
        let rounds = [vec![silent, silent]];
        let pair = Pair { ours: 0, theirs: 1, rounds: &rounds, counted: &[0] };
        let row = pair.row(&SUBJECT, "contest", &"shallow", [LOCAL, "peer"].map(str::to_owned));
        assert_eq!((row.our_p50_us, row.p50_ratio), (None, None));
        assert!(row.goals.is_empty(), "{row:?}");
    }
}
