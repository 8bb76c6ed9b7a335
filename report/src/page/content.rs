//! A page before it is text.

use results::Measurement;

use crate::plot::Figure;
use crate::store::Loaded;

/// The content of a page, before it is text.
#[derive(Debug)]
pub(super) struct Content<'a> {
    pub(super) sources: &'a [Loaded],
    /// The title that all runs share, if they share one. The names of the runs are then the times
    /// when they began.
    pub(super) title: Option<&'a str>,
    pub(super) figures: Vec<Figure>,
    pub(super) differences: Vec<String>,
    /// Published measurements that are shown, and published measurements without figures of their
    /// subject.
    pub(super) published: Vec<&'a Measurement>,
    pub(super) published_unused: Vec<&'a Measurement>,
    /// The number of plots for which the page has no room.
    pub(super) left: usize,
}
