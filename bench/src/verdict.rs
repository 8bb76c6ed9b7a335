//! Whether a goal holds, judged by rounds that differ. A verdict considers how far the rounds lie
//! apart, and whether the cores kept their distance.
//!
//! Virtual cores move, and every result of two threads moves with them, by a factor of two to
//! three. So rounds count only if a cache line took about as long between the cores in all of them
//! (one *level*). A goal is decided only where its bound lies outside of the range that these
//! rounds leave open.

use std::fmt;

use serde::Serialize;

/// The fewest rounds of one level that decide anything.
pub const ROUNDS_MIN: usize = 3;

/// Round trips of a cache line are of one level if the longest is no more than this times the
/// shortest: the levels that were seen lie further apart.
pub(crate) const LEVEL: f64 = 1.5;

/// The probability that the true median lies outside of the range that a verdict is about.
const DOUBT: f64 = 0.1;

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
    /// The spread of some numbers, of which there is one at least.
    pub fn of(numbers: impl IntoIterator<Item = f64>) -> Self {
        let numbers = sorted(numbers);
        let (min, max) = (numbers[0], numbers[numbers.len() - 1]);
        let (below, above) = (numbers[(numbers.len() - 1) / 2], numbers[numbers.len() / 2]);
        Self { median: f64::midpoint(below, above), min, max }
    }
}

/// Round trips of a cache line: none, with one core.
pub fn of_trips(trips_ns: &[u64]) -> Option<Spread> {
    (!trips_ns.is_empty()).then(|| Spread::of(trips_ns.iter().map(|trip| *trip as f64)))
}

/// Round trips of a cache line, in words.
pub fn said_of(all: impl Iterator<Item = Spread>) -> String {
    let all = all.map(|trips| (trips.min, trips.max));
    match all.reduce(|one, other| (one.0.min(other.0), one.1.max(other.1))) {
        Some((least, most)) => format!("cache line round trips {least:.0} to {most:.0} ns"),
        None => "one core only".to_owned(),
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{:.2} ({:.2}-{:.2})", self.median, self.min, self.max);
        f.pad(&text)
    }
}

/// The bound of a goal on a figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// The figure must be that much, or more.
    AtLeast(f64),
    /// The figure must be that much, or less.
    AtMost(f64),
}

impl Bound {
    fn is_kept_by(self, value: f64) -> bool {
        match self {
            Self::AtLeast(bound) => value >= bound,
            Self::AtMost(bound) => value <= bound,
        }
    }

    /// How far a figure is on the right side of the bound: 1 or more keeps the bound, less does
    /// not.
    pub fn room(self, value: f64) -> f64 {
        match self {
            Self::AtLeast(bound) => value / bound,
            // A bound of zero is kept exactly or not at all.
            Self::AtMost(bound) if bound == 0.0 || value == 0.0 => {
                if value <= bound {
                    f64::INFINITY
                } else {
                    0.0
                }
            }
            Self::AtMost(bound) => bound / value,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(bound) => write!(f, ">= {bound:.2}"),
            Self::AtMost(bound) => write!(f, "<= {bound:.2}"),
        }
    }
}

/// The state of a goal after the rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GoalState {
    /// All values that the rounds leave open keep the bound.
    Holds,
    /// None of these values does.
    DoesNotHold,
    /// The bound lies between the rounds, or too few of them are of one level.
    Undecided,
    /// The goal's figure was not measured.
    NotMeasured,
}

impl fmt::Display for GoalState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Holds => "holds",
            Self::DoesNotHold => "DOES NOT HOLD",
            Self::Undecided => "undecided",
            Self::NotMeasured => "not measured",
        })
    }
}

/// A goal's bound on a figure, and whether it holds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// The goal's number.
    pub goal: u8,
    /// The name of the figure.
    pub figure: &'static str,
    /// The bound on the figure.
    pub bound: Bound,
    /// The measured values.
    pub value: Spread,
    /// Whether the bound holds.
    pub standing: GoalState,
    /// The reason why the goal is open, if it is.
    pub why: Option<String>,
}

impl Verdict {
    /// Judges values of rounds of one level; with `moved`, of rounds of no level.
    pub fn of(goal: u8, figure: &'static str, bound: Bound, values: &[f64], moved: bool) -> Self {
        let value = Spread::of(values.iter().copied());
        let (standing, why) = if moved {
            (GoalState::Undecided, Some("the cores moved in every round".to_owned()))
        } else if values.len() < ROUNDS_MIN {
            let few = format!("{} of {ROUNDS_MIN} rounds of one level", values.len());
            (GoalState::Undecided, Some(few))
        } else {
            let (low, high) = likely(values);
            match (bound.is_kept_by(low), bound.is_kept_by(high)) {
                (true, true) => (GoalState::Holds, None),
                (false, false) => (GoalState::DoesNotHold, None),
                _ => (GoalState::Undecided, Some(format!("{low:.2} to {high:.2} in its rounds"))),
            }
        };
        Self { goal, figure, bound, value, standing, why }
    }

    /// Opens the goal after all, for this reason.
    pub fn open(&mut self, why: &str) {
        (self.standing, self.why) = (GoalState::Undecided, Some(why.to_owned()));
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { goal, figure, bound, standing, .. } = self;
        write!(f, "goal {goal}, {figure} {bound}: {standing}")?;
        self.why.iter().try_for_each(|why| write!(f, " ({why})"))
    }
}

/// The range in which the median of the sampled distribution lies, except with probability
/// [`DOUBT`]. As many of the outermost values are left out on either side as chance would leave
/// beyond the median. Few values are all kept.
fn likely(values: &[f64]) -> (f64, f64) {
    let values = sorted(values.iter().copied());
    let n = values.len();
    // Each of n values is below the true median with probability 1/2.
    let (mut chance, mut beyond) = (0.5_f64.powi(i32::try_from(n).unwrap_or(i32::MAX)), 0.0);
    let mut left_out = 0;
    for k in 0..n / 2 {
        beyond += chance;
        if 2.0 * beyond > DOUBT {
            break;
        }
        left_out = k;
        chance *= (n - k) as f64 / (k + 1) as f64;
    }
    (values[left_out], values[n - 1 - left_out])
}

fn sorted(numbers: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut numbers: Vec<_> = numbers.into_iter().collect();
    numbers.sort_by(f64::total_cmp);
    numbers
}

/// The rounds of one level, by the round trips that were seen during each: of the level that has
/// most rounds. None, if the cores moved in every round.
pub fn of_one_level(rounds: &[Vec<u64>]) -> Vec<usize> {
    let ends = |trips: &Vec<u64>| {
        (trips.iter().copied().min().unwrap_or(0), trips.iter().copied().max().unwrap_or(0))
    };
    let ends: Vec<_> = rounds.iter().map(ends).collect();
    let members = |from: u64| {
        let to = LEVEL * from as f64;
        let is_in = move |(low, high): &(u64, u64)| *low >= from && *high as f64 <= to;
        ends.iter().enumerate().filter(move |(_, ends)| is_in(ends)).map(|(at, _)| at)
    };
    let mut best = Vec::new();
    for (from, _) in &ends {
        let level: Vec<_> = members(*from).collect();
        if level.len() > best.len() {
            best = level;
        }
    }
    best
}

/// Whether to measure another round. There are as many rounds as asked for, and up to as many again
/// while too few are of one level.
pub fn wants_more(asked: u16, done: usize, counted: usize) -> bool {
    let asked = usize::from(asked);
    done < asked || done < 2 * asked && counted < ROUNDS_MIN.min(asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_are_those_that_were_taken() {
        let spread = |min, max| Spread { median: min, min, max };
        let said = said_of([spread(47.0, 50.0), spread(46.2, 384.0)].into_iter());
        assert_eq!(said, "cache line round trips 46 to 384 ns");
        assert!(!said_of(std::iter::empty()).contains("ns"));
    }

    #[test]
    fn a_spread_is_the_middle_and_both_ends() {
        let spread = Spread::of([3.0, 1.0, 2.0]);
        assert_eq!(spread, Spread { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(spread.to_string(), "2.00 (1.00-3.00)");
        assert_eq!(Spread::of([4.0, 1.0]).median, 2.5);
    }

    fn standing(bound: Bound, values: &[f64]) -> GoalState {
        Verdict::of(1, "IOPS", bound, values, false).standing
    }

    #[test]
    fn a_goal_is_open_where_its_bound_lies_between_the_rounds() {
        let least = Bound::AtLeast(1.5);
        assert_eq!(standing(least, &[1.5, 1.6, 1.9]), GoalState::Holds);
        assert_eq!(standing(least, &[1.1, 1.2, 1.49]), GoalState::DoesNotHold);
        assert_eq!(standing(least, &[1.4, 1.6, 1.9]), GoalState::Undecided);
        let most = Bound::AtMost(1.0);
        assert_eq!(standing(most, &[0.5, 0.7, 1.0]), GoalState::Holds);
        assert_eq!(standing(most, &[1.2, 1.7, 1.1]), GoalState::DoesNotHold);
        assert_eq!(standing(most, &[0.5, 0.7, 1.1]), GoalState::Undecided);
        let open = Verdict::of(3, "p50", most, &[0.5, 0.7, 1.1], false);
        let said = "goal 3, p50 <= 1.00: undecided (0.50 to 1.10 in its rounds)";
        assert_eq!(open.to_string(), said);
    }

    #[test]
    fn few_rounds_and_rounds_of_no_level_decide_nothing() {
        let bound = Bound::AtLeast(1.0);
        assert_eq!(standing(bound, &[9.0, 9.0]), GoalState::Undecided);
        let few = Verdict::of(1, "IOPS", bound, &[9.0], false);
        assert_eq!(few.why.unwrap(), "1 of 3 rounds of one level");
        let moved = Verdict::of(1, "IOPS", bound, &[9.0; 5], true);
        assert_eq!(moved.standing, GoalState::Undecided);
        assert!(moved.why.unwrap().contains("moved"));
    }

    #[test]
    fn a_stray_round_among_many_decides_nothing() {
        // Chance leaves all of five on one side of the median in 6 of 100 cases, seven of eight in
        // 7, six of seven in 12.
        assert_eq!(likely(&[1.0, 2.0, 3.0, 4.0, 5.0]), (1.0, 5.0));
        assert_eq!(likely(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]), (1.0, 7.0));
        assert_eq!(likely(&[8.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]), (2.0, 7.0));
        let many: Vec<_> = (1..=20).map(f64::from).collect();
        assert_eq!(likely(&many), (6.0, 15.0));
        assert_eq!(likely(&[1.0]), (1.0, 1.0));
    }

    #[test]
    fn rounds_of_the_level_that_most_have_count() {
        let rounds = [vec![50, 60], vec![110, 100], vec![50, 480], vec![105, 140], vec![480, 500]];
        assert_eq!(of_one_level(&rounds), [1, 3]);
        assert_eq!(of_one_level(&[vec![50, 107], vec![107, 485]]), [] as [usize; 0]);
        // One core has no round trips.
        assert_eq!(of_one_level(&[vec![], vec![]]), [0, 1]);
    }

    #[test]
    fn rounds_that_do_not_count_are_made_up_for_within_a_bound() {
        assert!(wants_more(5, 4, 4));
        assert!(!wants_more(5, 5, 3));
        assert!(wants_more(5, 5, 2));
        assert!(!wants_more(5, 10, 2), "not for ever");
        assert!(!wants_more(1, 1, 1), "who asks for one round gets one");
        assert!(wants_more(1, 1, 0));
    }

    #[test]
    fn the_figure_nearest_to_its_bound_is_told() {
        assert_eq!(Bound::AtLeast(2.0).room(3.0), 1.5);
        assert_eq!(Bound::AtMost(2.0).room(4.0), 0.5);
        assert_eq!(Bound::AtMost(0.0).room(0.0), f64::INFINITY);
        assert_eq!(Bound::AtMost(0.0).room(0.1), 0.0);
    }
}
