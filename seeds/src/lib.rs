//! A simulation over many seeds, for tests: the loop over the seeds, and counts of events.
//!
//! A simulation is a function of a seed that gives what happened in it, or the promise that it
//! found broken. [`Seeds`] is about a test that runs some thousands of seeds; [`Runner`] goes on
//! for hours, and adds what it ran to a file.

mod runner;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub use runner::Runner;

/// Numbers of events, by their names.
#[derive(Clone, Debug, Default)]
pub struct Tally(BTreeMap<&'static str, u64>);

impl Tally {
    /// The event happened so many times more.
    pub fn add(&mut self, what: &'static str, times: u64) {
        *self.0.entry(what).or_default() += times;
    }

    /// How often the event happened.
    pub fn of(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }

    /// Adds another run.
    pub fn merge(&mut self, other: &Self) {
        for (what, times) in &other.0 {
            self.add(what, *times);
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list: Vec<String> =
            self.0.iter().map(|(what, times)| format!("{times} {what}")).collect();
        f.write_str(&list.join(", "))
    }
}

/// The number in an environment variable; none if there is no such variable or it is empty.
///
/// # Panics
/// If the variable has something else.
pub fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text} is not a number")))
}

/// The seeds of a test.
#[derive(Clone, Copy, Debug)]
pub struct Seeds {
    /// The only seed, which the caller of the test asked for.
    pub only: Option<u64>,
    /// The first of many.
    pub first: u64,
    /// How many.
    pub count: u64,
}

impl Seeds {
    /// The seeds that the environment asks for: `PREFIX_SEED` is one seed, `PREFIX_SEEDS` a number
    /// of seeds from `PREFIX_FIRST` on (1, if it is not said).
    ///
    /// # Panics
    /// If such a variable has no number.
    pub fn of(prefix: &str, default_count: u64) -> Self {
        let of = |what: &str| number(&format!("{prefix}_{what}"));
        Self {
            only: of("SEED"),
            first: of("FIRST").unwrap_or(1),
            count: of("SEEDS").unwrap_or(default_count),
        }
    }

    /// Runs all of them on all processors. `merge` adds the result of a seed to the sum. A failure
    /// is printed at once. Gives the sum, and the seeds that failed.
    pub fn run<T, S, E>(
        &self,
        run: impl Fn(u64) -> Result<T, E> + Sync,
        merge: impl Fn(&mut S, &T) + Sync,
    ) -> (S, BTreeMap<u64, E>)
    where
        S: Default + Send,
        E: fmt::Display + Send,
    {
        let (next, end) = (AtomicU64::new(self.first), self.first.saturating_add(self.count));
        let total = Mutex::new((S::default(), BTreeMap::new()));
        let work = || {
            loop {
                let seed = next.fetch_add(1, Relaxed);
                if seed >= end {
                    return;
                }
                let result = run(seed);
                let (sum, failures) = &mut *total.lock().expect("nothing panics with it");
                match result {
                    Ok(result) => merge(sum, &result),
                    Err(failure) => {
                        println!("seed {seed}: {failure}");
                        failures.insert(seed, failure);
                    }
                }
            }
        };
        on_threads(processors(), work);
        total.into_inner().expect("nothing panics with it")
    }
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn on_threads(threads: usize, work: impl Fn() + Sync) {
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(&work);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn odd_fails(seed: u64) -> Result<Tally, String> {
        if seed % 2 == 1 {
            return Err(format!("{seed} is odd"));
        }
        let mut tally = Tally::default();
        tally.add("seeds", 1);
        Ok(tally)
    }

    #[test]
    fn each_seed_runs_once() {
        let seeds = Seeds { only: None, first: 5, count: 10 };
        let (tally, failures) = seeds.run(odd_fails, Tally::merge);
        assert_eq!(tally.to_string(), "5 seeds");
        assert_eq!(failures.keys().copied().collect::<Vec<_>>(), [5, 7, 9, 11, 13]);
        assert_eq!(failures[&7], "7 is odd");
    }
}
