//! The failure of a command.

use std::fmt;

/// An error and the exit code that it means.
#[derive(Debug)]
pub(crate) struct CommandFailure {
    pub(crate) code: u8,
    error: anyhow::Error,
}

impl CommandFailure {
    pub(crate) fn running(error: impl Into<anyhow::Error>) -> Self {
        Self { code: 1, error: error.into() }
    }

    pub(crate) fn configuration(error: impl Into<anyhow::Error>) -> Self {
        Self { code: 2, error: error.into() }
    }

    pub(crate) fn no_answer(error: impl Into<anyhow::Error>) -> Self {
        Self { code: 3, error: error.into() }
    }
}

impl fmt::Display for CommandFailure {
    /// The error with its causes in one paragraph, outermost first.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#}", self.error)
    }
}
