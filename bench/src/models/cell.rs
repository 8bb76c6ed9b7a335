//! Figures of a model: the counts of each round, and the cells that stay empty.

use serde::Serialize;

use crate::verdict::Spread;

/// Events of a request, as the slides' table has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Column {
    /// The guest leaves for its host, and waits for it: a kick that the device asked for.
    SyncExits,
    /// The guest is interrupted: a call; for a client, every wake-up.
    GuestInterrupts,
    /// The host injects such an interrupt, for which it stops the guest.
    Injections,
    /// The guest's host is interrupted: a sidecore is woken, or a device interrupts.
    HostInterrupts,
    /// The same of the IOhost.
    IohostInterrupts,
}

impl Column {
    /// All columns, in the slides' order.
    pub const ALL: [Self; 5] = [
        Self::SyncExits,
        Self::GuestInterrupts,
        Self::Injections,
        Self::HostInterrupts,
        Self::IohostInterrupts,
    ];

    /// Its name, over the column.
    pub fn name(self) -> &'static str {
        match self {
            Self::SyncExits => "sync exits",
            Self::GuestInterrupts => "guest interrupts",
            Self::Injections => "injections",
            Self::HostInterrupts => "host interrupts",
            Self::IohostInterrupts => "IOhost interrupts",
        }
    }
}

/// The content of a cell.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cell {
    /// Events for each request.
    Measured(Spread),
    /// It cannot be measured here, for this reason.
    Empty(&'static str),
    /// The model has no such part.
    Nobody,
}

/// The content of a cell in one round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Count {
    Of(f64),
    Empty(&'static str),
    Nobody,
}

impl Count {
    fn number(self) -> f64 {
        if let Self::Of(number) = self { number } else { 0.0 }
    }

    /// The difference of two counts; zero where a count is not known.
    pub(super) fn less(self, other: Self) -> f64 {
        match (self, other) {
            (Self::Empty(_), _) | (_, Self::Empty(_)) => 0.0,
            (one, other) => one.number() - other.number(),
        }
    }
}

/// The events of a request, by column.
pub(super) type Counts = [Count; Column::ALL.len()];

/// The result of a turn.
#[derive(Clone, Debug)]
pub(super) struct ModelSample {
    /// The events of a request, with one outstanding.
    pub(super) one: Counts,
    /// The times of these requests; or the reason why they are not known.
    pub(super) alone: Result<Alone, String>,
    /// The same of [`DEPTH`](super::options::DEPTH) outstanding.
    pub(super) many: Result<Many, String>,
}

/// Requests one after the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Alone {
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    /// None where the time of a server is not known.
    pub(super) cpu_us: Option<f64>,
}

/// Many at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Many {
    pub(super) counts: Counts,
    pub(super) per_s: f64,
    /// None where the time of a server is not known.
    pub(super) cpu_us: Option<f64>,
}

/// A model's figures: the median of each, and both ends of all rounds. A figure that is not known
/// in any round is none, and `unknown` has the reason.
#[derive(Clone, Debug, Serialize)]
pub struct ModelFigures {
    /// Whether each thread that polls had a core to itself. If not, only events mean something.
    pub seated: bool,
    /// Events of a request, by the slides' columns, with one request outstanding.
    pub events: Vec<(Column, Cell)>,
    /// The sum of all events that could be measured.
    pub sum: Spread,
    /// The time of a request, in microseconds, which half of the requests do not exceed. Of a
    /// frame, there and back.
    pub p50_us: Option<Spread>,
    /// The time that 99 of a hundred do not exceed.
    pub p99_us: Option<Spread>,
    /// Processor time of a request, or of a frame one way, of all processes and threads, in
    /// microseconds.
    pub cpu_us: Option<Spread>,
    /// Requests in a second, with [`DEPTH`](super::options::DEPTH) outstanding of each guest.
    pub per_s: Option<Spread>,
    /// Processor time of each of these requests.
    pub cpu_us_at_depth: Option<Spread>,
    /// The sum of all events of each of these requests.
    pub sum_at_depth: Option<Spread>,
    /// The reasons for figures that are none, each reason once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<String>,
    /// The events of each round.
    #[serde(skip)]
    pub(super) rounds: Vec<Counts>,
}

/// The sum of all counts.
fn sum(counts: &Counts) -> f64 {
    counts.iter().map(|count| count.number()).sum()
}

/// The cell of a column. A count that is missing in a round does not become a zero of that round.
fn cell(samples: &[ModelSample], at: usize) -> Cell {
    let counts = || samples.iter().map(|it| it.one[at]);
    let empty = counts().find_map(|it| if let Count::Empty(why) = it { Some(why) } else { None });
    match (empty, counts().next()) {
        (Some(why), _) => Cell::Empty(why),
        (None, Some(Count::Of(_))) => Cell::Measured(Spread::of(counts().map(Count::number))),
        (None, _) => Cell::Nobody,
    }
}

/// The figures of all rounds, of which there is one at least.
pub(super) fn figures(samples: &[ModelSample], seated: bool) -> ModelFigures {
    let spread = |numbers: Vec<f64>| (!numbers.is_empty()).then(|| Spread::of(numbers));
    let alone = |number: fn(&Alone) -> Option<f64>| {
        spread(samples.iter().filter_map(|it| number(it.alone.as_ref().ok()?)).collect())
    };
    let many = |number: fn(&Many) -> Option<f64>| {
        spread(samples.iter().filter_map(|it| number(it.many.as_ref().ok()?)).collect())
    };
    let events = Column::ALL.into_iter().enumerate();
    let mut figures = ModelFigures {
        seated,
        events: events.map(|(at, column)| (column, cell(samples, at))).collect(),
        sum: Spread::of(samples.iter().map(|it| sum(&it.one))),
        p50_us: alone(|it| Some(it.p50_us)),
        p99_us: alone(|it| Some(it.p99_us)),
        cpu_us: alone(|it| it.cpu_us),
        per_s: many(|it| Some(it.per_s)),
        cpu_us_at_depth: many(|it| it.cpu_us),
        sum_at_depth: many(|it| Some(sum(&it.counts))),
        unknown: Vec::new(),
        rounds: samples.iter().map(|it| it.one).collect(),
    };
    let mut note = |what: &str, why: Option<&String>| {
        figures.unknown.extend(why.map(|why| format!("{what}: {why}")));
    };
    if figures.p50_us.is_none() {
        note("latency", samples.iter().find_map(|it| it.alone.as_ref().err()));
    }
    if figures.per_s.is_none() {
        note("throughput", samples.iter().find_map(|it| it.many.as_ref().err()));
    }
    figures
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A sample in which only events are of interest.
    pub(in crate::models) fn sample(one: Counts) -> ModelSample {
        let alone = Ok(Alone { p50_us: 1.0, p99_us: 2.0, cpu_us: Some(3.0) });
        ModelSample { one, alone, many: Ok(Many { counts: one, per_s: 4.0, cpu_us: Some(5.0) }) }
    }

    #[test]
    fn empty_cells_are_in_no_sum() {
        let counts = |calls, iohost| {
            let empty = Count::Empty("no hardware virtualisation");
            [Count::Of(0.0), Count::Of(calls), empty, Count::Nobody, Count::Of(iohost)]
        };
        let of = figures(&[sample(counts(1.0, 2.0)), sample(counts(3.0, 2.0))], true);
        assert_eq!(of.sum, Spread { median: 4.0, min: 3.0, max: 5.0 });
        assert_eq!(of.events[0].1, Cell::Measured(Spread { median: 0.0, min: 0.0, max: 0.0 }));
        assert_eq!(of.events[2].1, Cell::Empty("no hardware virtualisation"));
        assert_eq!(of.events[3].1, Cell::Nobody);
    }

    #[test]
    fn a_round_that_counted_nothing_is_no_zero() {
        let of = |first| [first, Count::Nobody, Count::Nobody, Count::Nobody, Count::Nobody];
        let samples = [sample(of(Count::Of(2.0))), sample(of(Count::Empty("it stopped")))];
        assert_eq!(figures(&samples, true).events[0].1, Cell::Empty("it stopped"));
    }

    #[test]
    fn unknown_processor_time_is_no_zero() {
        let known = sample([Count::Nobody; Column::ALL.len()]);
        let mut unknown = known.clone();
        unknown.alone.as_mut().unwrap().cpu_us = None;
        unknown.many.as_mut().unwrap().cpu_us = None;
        let of = figures(&[known, unknown.clone()], true);
        assert_eq!(of.cpu_us.map(|it| (it.min, it.max)), Some((3.0, 3.0)));
        let of = figures(&[unknown], true);
        assert_eq!((of.cpu_us, of.cpu_us_at_depth), (None, None));
        assert_eq!(of.p50_us.map(|it| it.median), Some(1.0));
    }

    #[test]
    fn a_disturbed_round_is_in_no_rate_and_if_all_are_there_is_none() {
        let good = sample([Count::Nobody; Column::ALL.len()]);
        let bad = ModelSample { many: Err("it waited".to_owned()), ..good.clone() };
        let of = figures(&[bad.clone(), good], true);
        assert_eq!(of.per_s, Some(Spread { median: 4.0, min: 4.0, max: 4.0 }));
        assert!(of.unknown.is_empty());
        let of = figures(&[bad.clone(), bad], true);
        assert_eq!((of.per_s, of.cpu_us_at_depth, of.sum_at_depth), (None, None, None));
        assert_eq!(of.unknown, ["throughput: it waited"]);
        assert_eq!(of.p50_us.map(|it| it.median), Some(1.0));
    }
}
