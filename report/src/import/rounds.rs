//! Figures of several rounds, as `vrio bench compare`, `mpi` and `models` print them: the median,
//! the least and the most.

use results::{Point, Series, Spread};
use serde::Deserialize;

use crate::pool::median;

/// The reason for missing figures: the cores moved in every round.
pub(super) const MOVED: &str = "the cores moved in every round, so its figures are of no level";

/// A figure of the rounds that count.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Rounds {
    median: f64,
    min: f64,
    max: f64,
}

impl Rounds {
    /// The figure of one number from each round; none without rounds.
    pub(super) fn of(numbers: impl Iterator<Item = f64>) -> Option<Self> {
        let mut all: Vec<f64> = numbers.collect();
        all.sort_by(f64::total_cmp);
        Some(Self { min: *all.first()?, max: *all.last()?, median: median(&all) })
    }

    /// The point at a place.
    pub(super) fn at(self, x: f64) -> Point {
        let Self { median, min, max } = self;
        Point { low: Some(min), high: Some(max), ..Point::new(x, median) }
    }

    /// The point of a named category.
    pub(super) fn of_category(self, place: usize, label: &str) -> Point {
        Point { label: Some(label.to_owned()), ..self.at(place as f64) }
    }

    /// The figure of another quantity, which must grow with this one.
    pub(super) fn map(self, of: impl Fn(f64) -> f64) -> Self {
        let Self { median, min, max } = self;
        Self { median: of(median), min: of(min), max: of(max) }
    }

    /// The microseconds of an event, if this figure is events a second.
    pub(super) fn microseconds(self) -> Option<Self> {
        let Self { median, min, max } = self;
        let us = |rate: f64| 1e6 / rate;
        (min > 0.0).then(|| Self { median: us(median), min: us(max), max: us(min) })
    }
}

/// Notes the number of rounds in a series. After a single round both ends are the figure itself,
/// which is no spread, so they are removed.
pub(super) fn of_rounds(series: Series, rounds: u32) -> Series {
    if rounds > 1 {
        return Series { spread: Spread::Rounds, rounds: Some(rounds), ..series };
    }
    let bare = |point: Point| Point { low: None, high: None, ..point };
    Series { points: series.points.into_iter().map(bare).collect(), ..series }
}
