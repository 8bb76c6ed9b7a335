//! A time that is known within a range.

use std::cmp::{max, min};

use serde::Serialize;

use crate::fault::PlanFault;

/// A time in nanoseconds, with the least and the most that it may be. Sums of a run are wide, and
/// stay at the largest number rather than begin again: [`WideSpan::narrow`] refuses them then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WideSpan {
    /// The least.
    pub least_ns: u128,
    /// The likely one.
    pub likely_ns: u128,
    /// The most.
    pub most_ns: u128,
}

/// A time of a result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TimeSpan {
    /// The least.
    pub least_ns: u64,
    /// The likely one.
    pub likely_ns: u64,
    /// The most.
    pub most_ns: u64,
}

impl WideSpan {
    /// A time without a range.
    pub const fn exact(ns: u128) -> Self {
        Self { least_ns: ns, likely_ns: ns, most_ns: ns }
    }

    fn with(self, other: Self, both: impl Fn(u128, u128) -> u128) -> Self {
        Self {
            least_ns: both(self.least_ns, other.least_ns),
            likely_ns: both(self.likely_ns, other.likely_ns),
            most_ns: both(self.most_ns, other.most_ns),
        }
    }

    /// The sum.
    pub fn plus(self, other: Self) -> Self {
        self.with(other, u128::saturating_add)
    }

    /// So many times the time.
    pub fn times(self, number: u64) -> Self {
        self.with(Self::exact(u128::from(number)), u128::saturating_mul)
    }

    /// A part of the time, rounded to the nearest.
    pub fn part(self, part: u64, whole: u64) -> Self {
        let whole = u128::from(whole.max(1));
        self.times(part).with(Self::exact(whole), |ns, whole| ns.saturating_add(whole / 2) / whole)
    }

    /// The longer one, end by end.
    pub fn longer(self, other: Self) -> Self {
        self.with(other, max)
    }

    /// The shorter one, end by end.
    pub fn shorter(self, other: Self) -> Self {
        self.with(other, min)
    }

    /// By how much it is longer, end by end; the ends are put in their order.
    pub fn beyond(self, other: Self) -> Self {
        let it = self.with(other, u128::saturating_sub);
        Self {
            least_ns: min(it.likely_ns, min(it.least_ns, it.most_ns)),
            likely_ns: it.likely_ns,
            most_ns: max(it.likely_ns, max(it.least_ns, it.most_ns)),
        }
    }

    /// The same with `ppm` millionths more and less as its ends.
    pub fn widened(self, ppm: u64) -> Self {
        let off = |ns: u128| ns.saturating_mul(u128::from(ppm)) / 1_000_000;
        Self {
            least_ns: min(self.least_ns, self.likely_ns.saturating_sub(off(self.likely_ns))),
            likely_ns: self.likely_ns,
            most_ns: max(self.most_ns, self.likely_ns.saturating_add(off(self.likely_ns))),
        }
    }

    /// The time of a result.
    ///
    /// # Errors
    /// When it is beyond 584 years.
    pub fn narrow(self, sum: &'static str) -> Result<TimeSpan, PlanFault> {
        let narrow = |ns: u128| u64::try_from(ns).map_err(|_| PlanFault::Overflow { sum });
        Ok(TimeSpan {
            least_ns: narrow(self.least_ns)?,
            likely_ns: narrow(self.likely_ns)?,
            most_ns: narrow(self.most_ns)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_go_with_their_sums() {
        let span = WideSpan::exact(1000).widened(100_000);
        assert_eq!((span.least_ns, span.likely_ns, span.most_ns), (900, 1000, 1100));
        let sum = span.times(3).plus(WideSpan::exact(7));
        assert_eq!((sum.least_ns, sum.most_ns), (2707, 3307));
        assert_eq!(sum.longer(WideSpan::exact(3000)).least_ns, 3000);
        assert_eq!(WideSpan::exact(10).part(1, 4).likely_ns, 3);
        let years = WideSpan::exact(u128::MAX).plus(span).narrow("the run");
        assert_eq!(years, Err(PlanFault::Overflow { sum: "the run" }));
    }
}
