//! The page: what it shows of which results, and its text.
//!
//! Everything that results say is words to it, whatever it is; see [`text::escape`]. The page asks
//! nothing of a network, and a policy of its own lets its browser run and load nothing but the one
//! script and the one style sheet in it.
//!
//! [`text::escape`]: crate::plot::text::escape

mod derived;
mod differences;
mod figures;
mod html;
mod names;
mod thin;

use thiserror::Error;

use crate::plot::{Figure, Place};
use crate::result::{Measurement, Origin, Run, Series};
use crate::store::Loaded;

/// Runs on one page: more would not be told apart, and the page would be heavy.
pub const RUNS_MAX: usize = 32;
/// Series in one plot. The rest is named below it.
pub const SERIES_SHOWN_MAX: usize = 40;
/// Rows of bars in one plot.
pub const ROWS_SHOWN_MAX: usize = 80;
/// Plots on one page.
pub const FIGURES_MAX: usize = 60;

/// What a reader asked for.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// What overheads are told against: words of a series', measurement's or run's name. None for
    /// the first that is called native, else the first of each plot.
    pub baseline: Option<String>,
    /// What others published; empty without `--with-published`.
    pub published: Vec<Measurement>,
}

/// A page and the files beside it.
#[derive(Clone, Debug)]
pub struct Page {
    /// The page's text.
    pub html: String,
    /// Names (`latency-by-message-size.svg`) and texts of the plots.
    pub plots: Vec<(String, String)>,
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
        /// What was asked for.
        wanted: String,
        /// Some that there are.
        known: String,
    },
}

/// A series and where it comes from.
#[derive(Clone, Copy, Debug)]
struct Item<'a> {
    /// None of what was published.
    run: Option<&'a Run>,
    measurement: &'a Measurement,
    series: &'a Series,
}

impl Item<'_> {
    fn is_published(&self) -> bool {
        self.measurement.origin == Origin::Published
    }
}

/// What a page holds, before it is text.
#[derive(Debug)]
struct Content<'a> {
    sources: &'a [Loaded],
    figures: Vec<Figure>,
    differences: Vec<String>,
    /// Of what was published: what is shown, and how many measurements are not.
    published: Vec<&'a Measurement>,
    published_unused: usize,
}

/// Makes the page of these runs.
///
/// # Errors
/// When there is nothing to be drawn, or too much, or no such baseline.
pub fn page(sources: &[Loaded], options: &Options) -> Result<Page, PageError> {
    if sources.len() > RUNS_MAX {
        return Err(PageError::Runs(sources.len()));
    }
    let runs: Vec<&Run> = sources.iter().map(|source| &source.run).collect();
    let (figures, shown) = figures::all(sources, options)?;
    if figures.is_empty() {
        return Err(PageError::Nothing);
    }
    let plots =
        figures.iter().map(|figure| (format!("{}.svg", figure.id), figure.svg(Place::File)));
    let plots = plots.collect();
    let content = Content {
        sources,
        differences: differences::between(&runs),
        published_unused: options.published.len() - shown.len(),
        published: shown,
        figures,
    };
    Ok(Page { html: html::page(&content), plots })
}

#[cfg(test)]
#[path = "page/tests.rs"]
mod tests;
