//! The page: its choice of results, and its text.
//!
//! All text in results is untrusted: it appears on the page as words only; see [`text::escape`].
//! The page asks nothing of a network, and a policy of its own lets its browser run and load
//! nothing but the one script and the one style sheet in it.
//!
//! [`text::escape`]: crate::plot::text::escape

mod bars;
mod content;
mod derived;
mod differences;
mod figures;
mod group;
mod html;
mod item;
mod names;
mod options;
mod peaks;
mod said;
mod subject;
mod thin;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use content::Content;
use figures::ShownPlots;
pub use options::{
    FIGURES_MAX, PageError, PageOptions, ROWS_SHOWN_MAX, RUNS_MAX, SERIES_SHOWN_MAX,
};
use results::{Measurement, Run, RunOrigin};

use crate::plot::PicturePlace;
use crate::store::Loaded;

/// A page and the files beside it.
#[derive(Clone, Debug)]
pub struct Page {
    /// The page's text.
    pub html: String,
    /// Names (`latency-by-message-size.svg`) and texts of the plots.
    pub plots: Vec<(String, String)>,
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
    let measured = sources.iter().filter(|source| !is_plan(source));
    let runs: Vec<&Run> = measured.map(|source| &source.run).collect();
    let ShownPlots { figures, published: shown, left } = figures::all(sources, options)?;
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

/// Whether a run is a plan: nothing of it was measured, so it has no machine.
fn is_plan(source: &Loaded) -> bool {
    let is_planned = |it: &Measurement| it.origin == RunOrigin::Planned;
    source.run.machine.is_none() && source.measurements.iter().any(is_planned)
}

/// The title of several runs, if all share one.
fn shared_title(sources: &[Loaded]) -> Option<&str> {
    let [first, rest @ ..] = sources else { return None };
    let title = first.run.title.as_str();
    (!rest.is_empty() && rest.iter().all(|source| source.run.title == title)).then_some(title)
}

/// Gives runs of one title different names: the times when they began, or numbers. If all runs
/// share the title, it stands on top once, and not in each legend and at each column.
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
            // The shared title comes last, because a long name loses its end.
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
