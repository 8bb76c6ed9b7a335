//! How long requests take: a histogram that a sidecore writes without locks or read-modify-writes,
//! to 3 %, and that anyone may read into an HDR histogram.

use std::fmt;

use hdrhistogram::Histogram;
use sidecore::Counter;

/// Cells per power of two: values are kept to one part in 32, 3 %.
const CELLS_PER_OCTAVE: usize = 32;

/// log2 of [`CELLS_PER_OCTAVE`].
const PRECISION_BITS: u32 = CELLS_PER_OCTAVE.ilog2();

/// Longer than any request that is not lost: an hour and more, in nanoseconds.
const LATENCY_BITS: u32 = 42;

/// The longest latency that is told apart from longer ones.
pub const LATENCY_NS_MAX: u64 = (1 << LATENCY_BITS) - 1;

const CELLS: usize = (LATENCY_BITS - PRECISION_BITS + 1) as usize * CELLS_PER_OCTAVE;

/// The cell of a value: exact below 32, then 32 cells per power of two.
fn cell_of(value: u64) -> usize {
    let value = value.min(LATENCY_NS_MAX);
    let octave = (u64::BITS - value.leading_zeros()).saturating_sub(PRECISION_BITS + 1);
    let within = (value >> octave) as usize;
    octave as usize * CELLS_PER_OCTAVE + within
}

/// The middle of a cell.
fn value_of(cell: usize) -> u64 {
    let octave = (cell / CELLS_PER_OCTAVE).saturating_sub(1);
    let first = ((cell - octave * CELLS_PER_OCTAVE) as u64) << octave;
    first + (1 << octave) / 2
}

/// A histogram of latencies with one writer, which any thread may read.
pub struct Latencies {
    cells: Box<[Counter]>,
}

impl Latencies {
    /// Counts a latency; those beyond [`LATENCY_NS_MAX`] as that. Only ever from one thread.
    pub fn record(&self, latency_ns: u64) {
        self.cells[cell_of(latency_ns)].add(1);
    }

    /// Adds what was counted to a histogram that was made by [`histogram`].
    pub fn add_to(&self, histogram: &mut Histogram<u64>) {
        for (cell, count) in self.cells.iter().enumerate() {
            let count = count.get();
            if count > 0 {
                histogram.saturating_record_n(value_of(cell), count);
            }
        }
    }
}

impl Default for Latencies {
    fn default() -> Self {
        Self { cells: (0..CELLS).map(|_| Counter::new()).collect() }
    }
}

impl fmt::Debug for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count: u64 = self.cells.iter().map(Counter::get).sum();
        write!(f, "Latencies({count})")
    }
}

/// An empty histogram to read latencies into, in nanoseconds.
pub fn histogram() -> Histogram<u64> {
    // Two significant digits are finer than the cells are.
    let histogram = Histogram::new_with_bounds(1, LATENCY_NS_MAX, 2);
    histogram.expect("constant bounds that are in order")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_exact_to_three_percent_and_in_order() {
        let mut last = 0;
        for value in (0..100_000).chain((17..LATENCY_BITS).map(|bit| (1 << bit) + 12_345)) {
            let cell = cell_of(value);
            assert!(cell >= last && cell < CELLS, "{value} is in cell {cell}");
            last = cell;
            let error = value_of(cell).abs_diff(value);
            assert!(error <= value / 32, "{value} reads as {}", value_of(cell));
        }
        assert_eq!(cell_of(u64::MAX), CELLS - 1);
    }

    #[test]
    fn counted_latencies_are_read() {
        let latencies = Latencies::default();
        (0..90).for_each(|_| latencies.record(1_000_000));
        (0..10).for_each(|_| latencies.record(u64::MAX));
        let mut read = histogram();
        latencies.add_to(&mut read);
        assert_eq!(read.len(), 100);
        assert!(read.value_at_quantile(0.5).abs_diff(1_000_000) < 40_000);
        assert!(read.max() > LATENCY_NS_MAX / 32 * 31);
        assert_eq!(format!("{latencies:?}"), "Latencies(100)");
    }
}
