//! The wishes of a page's reader, the limits of a page, and the reasons that there is none.

use thiserror::Error;

use crate::result::Measurement;

/// Runs on one page: more would not be told apart, and the page would be heavy.
pub const RUNS_MAX: usize = 32;
/// Series in one plot. The rest is named below it.
pub const SERIES_SHOWN_MAX: usize = 40;
/// Rows of bars in one plot.
pub const ROWS_SHOWN_MAX: usize = 80;
/// Plots on one page; a whole run of `vrio bench all` has some seventy.
pub const FIGURES_MAX: usize = 90;

/// The wishes of a page's reader.
#[derive(Clone, Debug, Default)]
pub struct PageOptions {
    /// The baseline of overheads: words of a series', measurement's or run's name. None for the
    /// first that is called native, else the first of each plot.
    pub baseline: Option<String>,
    /// Published measurements of others; empty without `--with-published`.
    pub published: Vec<Measurement>,
}

/// Why there is no page.
#[derive(Debug, Error)]
pub enum PageError {
    /// Nothing in it can be drawn.
    #[error("there is not one figure in these results; 'vrio results show' lists what they hold")]
    Nothing,
    /// Too much of it.
    #[error("{0} runs are more than {RUNS_MAX}, which no plot can tell apart: name fewer")]
    Runs(usize),
    /// There is no such series.
    #[error("no series is called {wanted:?}, as --baseline asks; there are: {known}")]
    Baseline {
        /// The words of `--baseline`.
        wanted: String,
        /// Some that there are.
        known: String,
    },
}
