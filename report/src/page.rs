//! The page: what it shows of which results, and its text.
//!
//! Everything that results say is words to it, whatever it is; see [`text::escape`]. The page asks
//! nothing of a network, and a policy of its own lets its browser run and load nothing but the one
//! script and the one style sheet in it.
//!
//! [`text::escape`]: crate::plot::text::escape

mod bars;
mod derived;
mod differences;
mod figures;
mod html;
mod names;
mod said;
mod subject;
mod thin;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use crate::plot::{Figure, PicturePlace};
use crate::result::{Measurement, Run, RunOrigin, Series};
use crate::store::Loaded;

/// Runs on one page: more would not be told apart, and the page would be heavy.
pub const RUNS_MAX: usize = 32;
/// Series in one plot. The rest is named below it.
pub const SERIES_SHOWN_MAX: usize = 40;
/// Rows of bars in one plot.
pub const ROWS_SHOWN_MAX: usize = 80;
/// Plots on one page; a whole run of `vrio bench all` has some seventy.
pub const FIGURES_MAX: usize = 90;

/// What a reader asked for.
#[derive(Clone, Debug, Default)]
pub struct PageOptions {
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
        self.measurement.origin == RunOrigin::Published
    }
}

/// What a page holds, before it is text.
#[derive(Debug)]
struct Content<'a> {
    sources: &'a [Loaded],
    /// What all runs are called, if they are called the same; then their names are when they were
    /// begun.
    title: Option<&'a str>,
    figures: Vec<Figure>,
    differences: Vec<String>,
    /// Of what was published: what is shown, and what has nothing to stand beside.
    published: Vec<&'a Measurement>,
    published_unused: Vec<&'a Measurement>,
    /// Plots that have no place on the page.
    left: usize,
}

/// Makes the page of these runs.
///
/// # Errors
/// When there is nothing to be drawn, or too much, or no such baseline.
pub fn page(sources: &[Loaded], options: &PageOptions) -> Result<Page, PageError> {
    if sources.len() > RUNS_MAX {
        return Err(PageError::Runs(sources.len()));
    }
    let title = shared_title(sources);
    let sources = &*told_apart(sources);
    let runs: Vec<&Run> = sources.iter().map(|source| &source.run).collect();
    let (figures, shown, left) = figures::all(sources, options)?;
    if figures.is_empty() {
        return Err(PageError::Nothing);
    }
    let drawn = figures.iter().filter(|figure| figure.is_drawn());
    let plots = drawn.map(|figure| (format!("{}.svg", figure.id), figure.svg(PicturePlace::File)));
    let plots = plots.collect();
    let is_unused = |it: &&Measurement| !shown.iter().any(|known| std::ptr::eq(*known, *it));
    let content = Content {
        sources,
        title,
        differences: differences::between(&runs),
        published_unused: options.published.iter().filter(is_unused).collect(),
        left,
        published: shown,
        figures,
    };
    Ok(Page { html: html::page(&content), plots })
}

/// The title of all of several runs.
fn shared_title(sources: &[Loaded]) -> Option<&str> {
    let [first, rest @ ..] = sources else { return None };
    let title = first.run.title.as_str();
    (!rest.is_empty() && rest.iter().all(|source| source.run.title == title)).then_some(title)
}

/// Runs of one title are told apart by when they were begun, or by number. If all have it, it is
/// said once, on top: it would stand in each legend and at each column of ten runs.
fn told_apart(sources: &[Loaded]) -> Cow<'_, [Loaded]> {
    let mut titles: BTreeMap<&str, usize> = BTreeMap::new();
    for source in sources {
        *titles.entry(&source.run.title).or_default() += 1;
    }
    if titles.values().all(|times| *times == 1) {
        return Cow::Borrowed(sources);
    }
    let is_shared = shared_title(sources).is_some();
    let mut known = BTreeSet::new();
    let mut all = sources.to_vec();
    for run in all.iter_mut().map(|source| &mut source.run) {
        if is_shared {
            run.title.clone_from(&run.begun);
        } else if titles[run.title.as_str()] > 1 {
            // What they share comes last: a long name loses its end.
            run.title = format!("{}, {}", run.begun, run.title);
        }
        let (title, mut number) = (run.title.clone(), 1);
        while !known.insert(run.title.clone()) {
            number += 1;
            run.title = format!("{title} ({number})");
        }
    }
    Cow::Owned(all)
}

#[cfg(test)]
#[path = "page/tests.rs"]
mod tests;
