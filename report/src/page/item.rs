//! A series of one of the runs on a page.

use results::{Measurement, Run, RunOrigin, Series};

/// A series, its measurement and its run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item<'a> {
    /// The run; published series have none.
    pub(super) run: Option<&'a Run>,
    pub(super) measurement: &'a Measurement,
    pub(super) series: &'a Series,
}

impl Item<'_> {
    pub(super) fn is_published(&self) -> bool {
        self.measurement.origin == RunOrigin::Published
    }

    pub(super) fn is_planned(&self) -> bool {
        self.measurement.origin == RunOrigin::Planned
    }
}
