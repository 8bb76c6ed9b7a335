//! Where a device signals: an eventfd of the front end's, call or error.

use std::os::fd::{AsFd, OwnedFd};

use sidecore::foreign;

/// An eventfd of the front end's.
#[derive(Debug)]
pub(crate) struct Signal(OwnedFd);

impl Signal {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Adds one to the counter, without waiting. A counter without room is a signal that is still
    /// pending.
    pub(crate) fn signal(&self) {
        // What can go wrong is the front end's doing, and its loss.
        let _ = foreign::ring(self.0.as_fd());
    }
}
