//! Errors of a cluster's files and tokens, and of its registry.

use std::io;
use std::path::{Path, PathBuf};

use registry::RegistryError;

/// Why something about a cluster was not done.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The system refuses something about a file.
    #[error("{path:?}: cannot {what}: {text}")]
    File {
        /// The file.
        path: PathBuf,
        /// The act.
        what: &'static str,
        /// The system's answer.
        text: String,
    },
    /// A file of the cluster's directory, or a token, is not what it should be.
    #[error("{what}")]
    Wrong {
        /// The fault, and the way out.
        what: String,
    },
    /// The registry's answer.
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

impl ClusterError {
    pub(crate) fn file(path: &Path, what: &'static str, error: &io::Error) -> Self {
        Self::File { path: path.to_owned(), what, text: error.to_string() }
    }

    pub(crate) fn wrong(what: impl Into<String>) -> Self {
        Self::Wrong { what: what.into() }
    }
}
