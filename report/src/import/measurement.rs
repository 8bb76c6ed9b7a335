//! The beginning of an imported measurement, and its series of one figure.

use results::{Measurement, Point, RunOrigin, Series};

/// An imported measurement without figures.
pub(super) fn measurement(benchmark: &str, title: &str) -> Measurement {
    let title = if title.is_empty() { benchmark } else { title };
    Measurement::new(RunOrigin::Imported, benchmark, title)
}

/// A series with one figure.
pub(super) fn alone(series: Series, x: f64, y: f64) -> Series {
    Series { points: vec![Point::new(x, y)], ..series }
}
