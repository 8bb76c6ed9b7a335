//! Errors of guests, with the end of their console.

use std::fmt;
use std::time::Duration;

/// The reason that a guest could not be run, or did something unexpected.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// The image is not there.
    #[error("no guest image: {0} is missing; build it with guest/build")]
    NoImage(String),
    /// An error of files or processes on the host.
    #[error("{doing}: {source}")]
    Host {
        /// The step that failed.
        doing: String,
        /// The reason.
        r#source: std::io::Error,
    },
    /// The line did not come in time.
    #[error("guest {name}: no line '{marker}' within {waited:?}; {tail}")]
    Timeout {
        /// The guest's name.
        name: String,
        /// The line that the test waited for.
        marker: String,
        /// The time that the test waited.
        waited: Duration,
        /// The end of the console.
        tail: Tail,
    },
    /// QEMU ended before the line came.
    #[error("guest {name}: QEMU ended ({status}) while '{marker}' was waited for; {tail}")]
    Ended {
        /// The guest's name.
        name: String,
        /// QEMU's exit status.
        status: String,
        /// The line that the test waited for.
        marker: String,
        /// The end of the console and of QEMU's errors.
        tail: Tail,
    },
    /// The guest reports a failure, its script failed, or its kernel panicked.
    #[error("guest {name}: {line}; {tail}")]
    Failed {
        /// The guest's name.
        name: String,
        /// The line that reports it.
        line: String,
        /// The end of the console.
        tail: Tail,
    },
}

impl GuestError {
    pub(super) fn host(doing: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Host { doing, source }
    }
}

/// The end of what a guest printed, for an error text.
#[derive(Debug)]
pub struct Tail(pub(super) String);

impl fmt::Display for Tail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.trim() {
            "" => write!(f, "its console is empty"),
            tail => write!(f, "its console ends with:\n{tail}"),
        }
    }
}
