//! A page before it is text.

use crate::plot::Figure;
use crate::result::Measurement;
use crate::store::Loaded;

/// The content of a page, before it is text.
#[derive(Debug)]
pub(super) struct Content<'a> {
    pub(super) sources: &'a [Loaded],
    /// The title that all runs share, if they share one; then their names are the times of their
    /// beginnings.
    pub(super) title: Option<&'a str>,
    pub(super) figures: Vec<Figure>,
    pub(super) differences: Vec<String>,
    /// Published measurements that are shown, and those that have nothing to stand beside.
    pub(super) published: Vec<&'a Measurement>,
    pub(super) published_unused: Vec<&'a Measurement>,
    /// Plots that have no place on the page.
    pub(super) left: usize,
}
