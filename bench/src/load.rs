//! The load on a disk that is measured, and its outcome, for every kind of driver.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use random::Random;

/// The time without a completion after which a disk counts as stuck.
pub const STUCK: Duration = Duration::from_secs(60);

/// Significant decimal digits: finer than any run repeats.
const HISTOGRAM_DIGITS: u8 = 3;

/// The kind of requests, and the order of their places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LoadPattern {
    /// Reads of random places.
    RandRead,
    /// Writes to random places.
    RandWrite,
    /// Writes to random places, of which some come far more often than others: the k-th of them
    /// with a share of 1 / k (Zipf's law with the exponent 1).
    ZipfWrite,
    /// Reads, one place after the other.
    Read,
    /// Writes, one place after the other.
    Write,
}

impl LoadPattern {
    /// Whether it writes.
    pub fn writes(self) -> bool {
        matches!(self, Self::RandWrite | Self::ZipfWrite | Self::Write)
    }

    /// Whether it goes through the disk in order.
    pub fn is_sequential(self) -> bool {
        matches!(self, Self::Read | Self::Write)
    }

    /// Its name, as fio has it; fio calls the writes by Zipf's law a distribution of `randwrite`.
    pub fn name(self) -> &'static str {
        match self {
            Self::RandRead => "randread",
            Self::RandWrite => "randwrite",
            Self::ZipfWrite => "zipfwrite",
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// The load of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// The kind of requests.
    pub pattern: LoadPattern,
    /// Requests outstanding, of each job.
    pub depth: u16,
    /// The time of the measurement.
    pub duration: Duration,
    /// The time between two requests of a job; none: as fast as the depth lets it.
    pub interval: Option<Duration>,
}

/// The places of one job's requests, in requests' lengths.
#[derive(Clone, Debug)]
pub struct Places {
    random: Random,
    /// Where it begins, and how many places it has.
    first: u64,
    count: u64,
    next: u64,
}

impl Places {
    /// The places of job `job` of `jobs`, on a disk that has `places` of them. Each job has a share
    /// of its own, so that it does not read blocks that another job has just brought into a cache.
    ///
    /// # Panics
    /// When a job would have no place.
    pub fn new(job: u16, jobs: u16, places: u64) -> Self {
        let count = places / u64::from(jobs);
        assert!(count > 0, "a place for each of {jobs} jobs");
        Self {
            random: Random::new(u64::from(job) + 1),
            first: u64::from(job) * count,
            count,
            next: 0,
        }
    }

    /// The number of places.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The next one.
    pub fn next(&mut self, pattern: LoadPattern) -> u64 {
        if pattern.is_sequential() {
            let next = self.next;
            self.next = if next + 1 == self.count { 0 } else { next + 1 };
            return self.first + next;
        }
        if pattern == LoadPattern::ZipfWrite {
            return self.first + self.next_by_zipf();
        }
        self.first + self.random.below(self.count)
    }

    /// The inverse of the distribution, which is continuous here; the ranks are spread over the
    /// disk by a prime number.
    fn next_by_zipf(&mut self) -> u64 {
        let share = self.random.draw() as f64 / u64::MAX as f64;
        let rank = ((self.count as f64 + 1.0).powf(share) - 1.0) as u64;
        (u128::from(rank.min(self.count - 1)) * 1_000_003 % u128::from(self.count)) as u64
    }
}

/// The outcome of a load.
#[derive(Clone, Debug)]
pub struct LoadOutcome {
    /// The time that each request took, in nanoseconds.
    pub latency: Histogram<u64>,
    /// The time from the first submission to the last completion.
    pub took: Duration,
    /// Kicks that the device asked for.
    pub kicks: u64,
    /// Processor time of each driving thread.
    pub driver_cpu: Vec<Duration>,
}

impl LoadOutcome {
    /// An outcome without requests.
    pub fn new() -> Self {
        let max_ns = u64::try_from(STUCK.as_nanos()).expect("a minute fits");
        let latency = Histogram::new_with_bounds(1, max_ns, HISTOGRAM_DIGITS);
        Self {
            latency: latency.expect("bounds that make sense"),
            took: Duration::ZERO,
            kicks: 0,
            driver_cpu: Vec::new(),
        }
    }

    /// Adds another job's, which ran at the same time.
    pub fn add(&mut self, other: &Self) {
        self.latency.add(&other.latency).expect("the same bounds");
        self.took = self.took.max(other.took);
        self.kicks += other.kicks;
        self.driver_cpu.extend(&other.driver_cpu);
    }

    /// Notes a request that took so long.
    pub fn note(&mut self, took_ns: u64) {
        self.latency.saturating_record(took_ns.max(1));
    }

    /// Requests done.
    pub fn requests(&self) -> u64 {
        self.latency.len()
    }

    /// Requests per second.
    pub fn iops(&self) -> f64 {
        self.requests() as f64 / self.took.as_secs_f64()
    }

    /// The latency in microseconds that a share (0 to 1) of the requests did not exceed.
    pub fn quantile_us(&self, share: f64) -> f64 {
        self.latency.value_at_quantile(share) as f64 / 1e3
    }
}

impl Default for LoadOutcome {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_have_places_of_their_own() {
        let mut second = Places::new(1, 3, 10);
        let all: Vec<_> = (0..4).map(|_| second.next(LoadPattern::Read)).collect();
        assert_eq!(all, [3, 4, 5, 3]);
        assert!((0..100).all(|_| (3..6).contains(&second.next(LoadPattern::RandWrite))));
    }

    #[test]
    fn a_tenth_of_the_places_has_most_of_the_writes_by_zipf() {
        let mut places = Places::new(1, 2, 20_000);
        let mut counts = std::collections::BTreeMap::<u64, u64>::new();
        for _ in 0..100_000 {
            *counts.entry(places.next(LoadPattern::ZipfWrite)).or_default() += 1;
        }
        assert!(counts.keys().all(|place| (10_000..20_000).contains(place)));
        let mut counts: Vec<_> = counts.into_values().collect();
        counts.sort_by(|one, two| two.cmp(one));
        let most: u64 = counts.iter().take(1_000).sum();
        // ln(1000) / ln(10000) is three quarters.
        assert!((70_000..80_000).contains(&most), "{most} writes of 100000");
    }

    #[test]
    fn outcomes_of_jobs_add_up() {
        let mut one = LoadOutcome { took: Duration::from_secs(1), kicks: 1, ..LoadOutcome::new() };
        one.note(1_000);
        let mut all = LoadOutcome { took: Duration::from_secs(2), kicks: 2, ..LoadOutcome::new() };
        all.note(3_000);
        all.add(&one);
        assert_eq!((all.requests(), all.kicks, all.took), (2, 3, Duration::from_secs(2)));
        assert_eq!(all.iops(), 1.0);
        assert!((0.99..1.01).contains(&all.quantile_us(0.5)));
    }
}
