//! Figures of a model: what was counted in each round, and what is left empty.

use serde::Serialize;

use super::Figures;
use crate::verdict::Spread;

/// What happens for a request, as the slides' table has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Column {
    /// The guest leaves for its host, and waits for it: a kick that is asked for.
    SyncExits,
    /// The guest is interrupted: a call; of a client, whatever wakes it.
    GuestInterrupts,
    /// The host makes such an interrupt, for which the guest is left.
    Injections,
    /// The guest's host is interrupted: a sidecore is woken, or a device interrupts.
    HostInterrupts,
    /// The same of the IOhost.
    IohostInterrupts,
}

impl Column {
    /// All, in the slides' order.
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

/// What stands in a cell.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cell {
    /// What was counted for each request.
    Measured(Spread),
    /// It cannot be measured here, for this reason.
    Empty(&'static str),
    /// Nobody of that kind takes part.
    Nobody,
}

/// The same of one round.
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
}

/// What happened for a request, by column.
pub(super) type Counts = [Count; Column::ALL.len()];

/// What a turn gave.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    /// With one request outstanding.
    pub(super) one: Counts,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) cpu_us: f64,
    /// With [`super::DEPTH`] of them.
    pub(super) many: Counts,
    pub(super) per_s: f64,
    pub(super) cpu_us_at_depth: f64,
}

/// All that was counted.
fn sum(counts: &Counts) -> f64 {
    counts.iter().map(|count| count.number()).sum()
}

/// The same without the IOhost's.
fn near_sum(counts: &Counts) -> f64 {
    sum(counts) - counts[Column::IohostInterrupts as usize].number()
}

/// Of all rounds, of which there is one at least.
pub(super) fn figures(samples: &[Sample], seated: bool) -> Figures {
    let of = |number: fn(&Sample) -> f64| Spread::of(samples.iter().map(number));
    let cell = |at: usize| match samples[0].one[at] {
        Count::Of(_) => Cell::Measured(Spread::of(samples.iter().map(|it| it.one[at].number()))),
        Count::Empty(why) => Cell::Empty(why),
        Count::Nobody => Cell::Nobody,
    };
    let events = Column::ALL.into_iter().enumerate().map(|(at, column)| (column, cell(at)));
    Figures {
        seated,
        events: events.collect(),
        sum: of(|it| sum(&it.one)),
        p50_us: of(|it| it.p50_us),
        p99_us: of(|it| it.p99_us),
        cpu_us: of(|it| it.cpu_us),
        per_s: of(|it| it.per_s),
        cpu_us_at_depth: of(|it| it.cpu_us_at_depth),
        sum_at_depth: of(|it| sum(&it.many)),
        sums: samples.iter().map(|it| sum(&it.one)).collect(),
        near_sums: samples.iter().map(|it| near_sum(&it.one)).collect(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A sample in which only events are of interest.
    pub(in crate::models) fn sample(one: Counts) -> Sample {
        let (p50_us, p99_us, cpu_us, per_s, cpu_us_at_depth) = (1.0, 2.0, 3.0, 4.0, 5.0);
        Sample { one, p50_us, p99_us, cpu_us, many: one, per_s, cpu_us_at_depth }
    }

    #[test]
    fn what_is_empty_is_in_no_sum() {
        let counts = |calls, iohost| {
            let empty = Count::Empty("no hardware virtualisation");
            [Count::Of(0.0), Count::Of(calls), empty, Count::Nobody, Count::Of(iohost)]
        };
        let of = figures(&[sample(counts(1.0, 2.0)), sample(counts(3.0, 2.0))], true);
        assert_eq!(of.sum, Spread { median: 4.0, min: 3.0, max: 5.0 });
        assert_eq!((of.sums, of.near_sums), (vec![3.0, 5.0], vec![1.0, 3.0]));
        assert_eq!(of.events[0].1, Cell::Measured(Spread { median: 0.0, min: 0.0, max: 0.0 }));
        assert_eq!(of.events[2].1, Cell::Empty("no hardware virtualisation"));
        assert_eq!(of.events[3].1, Cell::Nobody);
    }
}
