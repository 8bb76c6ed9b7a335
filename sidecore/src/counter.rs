//! Counters with one writer each.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A number that one thread counts up and anyone may read.
///
/// With a single writer a plain load and store will do, which is as cheap as an ordinary integer;
/// a locked add is ten times that. Two writers would lose counts but nothing worse.
#[derive(Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Zero.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds `n`. Only ever from one thread.
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Sets the value, for gauges. Only ever from one thread.
    pub fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    /// The present value, from any thread.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

/// Keeps `T` on cache lines of its own, so that two threads' data do not bounce one line. Two lines
/// of 64 bytes, because processors fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Padded<T>(pub T);

impl<T> Deref for Padded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Padded<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// What one sidecore did. Written by its own thread only.
///
/// The times are estimates: a round's whole length counts as what the round was, and the clock is
/// read once per round.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct CoreCounters {
    /// Rounds begun.
    pub rounds: Counter,
    /// Rounds that found work.
    pub rounds_busy: Counter,
    /// Times that the core gave way to other threads while idle.
    pub yields: Counter,
    /// Short sleeps without notifications.
    pub naps: Counter,
    /// Sleeps with notifications armed.
    pub sleeps: Counter,
    /// Times that the core had armed and then found work, so that it did not sleep.
    pub sleeps_refused: Counter,
    /// Sleeps that something other than their deadline ended.
    pub wakeups: Counter,
    /// Of these, sleeps that another thread's signal ended, which it took with a system call.
    pub bell_reads: Counter,
    /// Posted closures that were run.
    pub mails: Counter,
    /// Times that another thread was seen to want this core while it was idle.
    pub contended: Counter,
    /// Turns that pollers let go by, since they had taken more time than their neighbours.
    pub turns_skipped: Counter,
    /// Time in rounds that found work.
    pub busy_ns: Counter,
    /// Time awake without work.
    pub idle_ns: Counter,
    /// Time asleep or napping.
    pub asleep_ns: Counter,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_read_from_another_thread() {
        let counter = Counter::new();
        counter.add(2);
        counter.add(40);
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(counter.get(), 42));
        });
        counter.set(7);
        assert_eq!(format!("{counter:?}"), "7");
    }

    #[test]
    fn padding_keeps_neighbours_apart() {
        let pair = [Padded(Counter::new()), Padded(Counter::new())];
        let distance = &raw const pair[1] as usize - &raw const pair[0] as usize;
        assert_eq!(distance, 128);
    }
}
