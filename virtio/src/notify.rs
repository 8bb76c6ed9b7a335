//! Where a device signals: an eventfd of the front end's, call or error.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use sidecore::foreign::Allowance;

/// An eventfd of the front end's.
#[derive(Debug)]
pub(crate) struct Signal {
    eventfd: OwnedFd,
    /// The time that signals to this front end may take.
    allowance: Arc<Allowance>,
}

impl Signal {
    pub(crate) fn new(eventfd: OwnedFd, allowance: &Arc<Allowance>) -> Self {
        Self { eventfd, allowance: Arc::clone(allowance) }
    }

    /// Adds one to the counter, without waiting. A counter without room is a signal that is still
    /// pending.
    pub(crate) fn signal(&self) {
        // A failure is the front end's doing, and its loss.
        let _ = self.allowance.ring(self.eventfd.as_fd());
    }
}
