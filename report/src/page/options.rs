//! The wishes of a page's reader, the limits of a page, and the reasons that there is none.

use results::Measurement;
use thiserror::Error;

/// Runs on one page: a reader could not distinguish more, and the page would be heavy.
pub const RUNS_MAX: usize = 32;
/// Series in one plot. The others are named below it.
pub const SERIES_SHOWN_MAX: usize = 40;
/// Rows of bars in one plot.
pub const ROWS_SHOWN_MAX: usize = 80;
/// Plots on one page; a whole run of `vrio bench all` has some seventy.
pub const FIGURES_MAX: usize = 90;

/// The wishes of a page's reader.
#[derive(Clone, Debug, Default)]
pub struct PageOptions {
    /// The baseline of overheads: words in the name of a series, measurement or run. Without it,
    /// the baseline is the first series whose name has "native", else the first series of each
    /// plot.
    pub baseline: Option<String>,
    /// Published measurements of others; empty without `--with-published`.
    pub published: Vec<Measurement>,
}

/// The reasons that there is no page.
#[derive(Debug, Error)]
pub enum PageError {
    /// The results have nothing that can be drawn.
    #[error("there is not one figure in these results; 'vrio results show' lists what they hold")]
    Nothing,
    /// There are too many runs.
    #[error("{0} runs are more than {RUNS_MAX}, which no plot can tell apart: name fewer")]
    Runs(usize),
    /// No series has the name of the baseline.
    #[error("no series is called {wanted:?}, as --baseline asks; there are: {known}")]
    Baseline {
        /// The words of `--baseline`.
        wanted: String,
        /// Some of the names that there are.
        known: String,
    },
}
