//! Counters with one writer each.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A number that a single thread counts up and any thread may read.
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

/// The name of a counter and its description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterText {
    /// The counter's field. The status and the metrics use this name after a prefix.
    pub name: &'static str,
    /// The text of the metric's HELP line. Empty where the line is made from the name.
    pub help: &'static str,
}

/// A field that [`counters!`](crate::counters) can declare.
pub trait CounterField {
    /// The present value.
    fn value(&self) -> u64;
}

impl CounterField for Counter {
    fn value(&self) -> u64 {
        self.get()
    }
}

/// A counter of a structure that is copied as a whole.
impl CounterField for u64 {
    fn value(&self) -> u64 {
        *self
    }
}

/// A counter that several threads add to.
impl CounterField for AtomicU64 {
    fn value(&self) -> u64 {
        self.load(Relaxed)
    }
}

/// Declares a structure of counters: a field, its name and its description are one line. The
/// structure gets `DECLARED`, the names and descriptions, and `counted`, the names and values.
///
/// A counter without a description has a comment instead. Fields that the lists must not contain
/// follow after `and`. A counter is a [`Counter`], or of the [`CounterField`] that follows after
/// `of`.
///
/// ```
/// sidecore::counters! {
///     /// Counters of a shop.
///     pub struct ShopCounters {
///         sold: "Things that were sold.",
///         /// Things that were stolen.
///         stolen,
///     }
///     and {
///         /// The shop's number.
///         pub number: u32,
///     }
/// }
///
/// let shop = ShopCounters::default();
/// shop.sold.add(2);
/// assert_eq!(shop.counted().collect::<Vec<_>>(), [("sold", 2), ("stolen", 0)]);
/// assert_eq!(ShopCounters::DECLARED[0].help, "Things that were sold.");
///
/// sidecore::counters! {
///     /// Counters that are copied.
///     #[derive(Clone, Copy)]
///     pub struct StallCounters of u64 {
///         sold: "Things that were sold.",
///     }
/// }
///
/// assert_eq!(StallCounters { sold: 3 }.counted().collect::<Vec<_>>(), [("sold", 3)]);
/// ```
#[macro_export]
macro_rules! counters {
    (
        $(#[$attribute:meta])*
        pub struct $counters:ident {
            $($counter:tt)*
        }
        $(and { $($other:tt)* })?
    ) => {
        $crate::counters! {
            $(#[$attribute])*
            pub struct $counters of $crate::Counter {
                $($counter)*
            }
            $(and { $($other)* })?
        }
    };
    (
        $(#[$attribute:meta])*
        pub struct $counters:ident of $field:ty {
            $($(#[$comment:meta])* $name:ident $(: $help:literal)?,)*
        }
        $(and { $($(#[$other_attribute:meta])* $seen:vis $other:ident: $kind:ty,)* })?
    ) => {
        $(#[$attribute])*
        #[derive(Debug, Default)]
        pub struct $counters {
            $($(#[$comment])* $(#[doc = $help])? pub $name: $field,)*
            $($($(#[$other_attribute])* $seen $other: $kind,)*)?
        }

        impl $counters {
            /// The name and the description of each counter, in the order of the declaration.
            pub const DECLARED: &'static [$crate::CounterText] = &[$(
                $crate::CounterText { name: stringify!($name), help: concat!($($help)?) },
            )*];

            /// The name and the present value of each counter, in the same order.
            pub fn counted(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), $crate::CounterField::value(&self.$name))),*].into_iter()
            }
        }
    };
}

counters! {
    /// The counters of a sidecore. Written by its own thread only.
    ///
    /// The times are estimates: a round's whole length counts as what the round was, and the clock
    /// is read once per round.
    #[repr(align(128))]
    pub struct CoreCounters {
        rounds: "Rounds begun.",
        rounds_busy: "Rounds that found work.",
        yields: "Times that the core gave way to other threads while idle.",
        naps: "Short sleeps without notifications.",
        sleeps: "Sleeps with notifications armed.",
        sleeps_refused: "Sleeps that were skipped, because there was work after arming.",
        wakeups: "Sleeps that something other than their deadline ended.",
        /// Taking such a signal is a system call.
        bell_reads: "Of these, sleeps that another thread's signal ended.",
        mails: "Posted closures that were run.",
        /// Seen while the core was idle.
        contended: "Times that another thread wanted the core.",
        /// The poller had taken more time than its neighbours.
        turns_skipped: "Turns that pollers skipped after a long turn.",
        busy_ns: "Time in rounds that found work.",
        idle_ns: "Time awake without work.",
        asleep_ns: "Time asleep or napping.",
    }
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
