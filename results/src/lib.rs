//! The form of results: a [`Run`] has [`Measurement`]s, a measurement has [`Series`] of figures,
//! and each series has a [`Quantity`] and a [`Unit`]. Benchmarks write it, and everything that
//! keeps, compares and draws results reads it. Nothing here measures or draws.

mod form;
mod planned;
pub mod schema;
mod unit;

pub use form::{
    Axis, ENTRIES_MAX, Empty, Machine, Meant, Measurement, POINTS_MAX, Point, ResultError, Run,
    RunOrigin, SCHEMA, SERIES_MAX, Series, Spread, Statistic, WORDS_MAX, file_word, is_id,
};
pub use planned::PlannedResults;
pub use unit::{Against, Dimension, Quantity, Unit};
