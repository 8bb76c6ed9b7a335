//! Why privileges could not be given up.

use std::io;
use std::path::PathBuf;

/// Why privileges could not be given up. The node does not start then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrivilegeError {
    /// The user is not known here.
    #[error(
        "{place}: \"user\": there is no user {user:?}; make it (useradd --system {user}), or name \
         another"
    )]
    NoUser {
        /// `file:line`.
        place: String,
        /// The name.
        user: String,
    },
    /// The configured user is root, which would be no drop.
    #[error("{place}: \"user\": {user:?} is root; name a user with fewer rights")]
    Root {
        /// `file:line`.
        place: String,
        /// The name.
        user: String,
    },
    /// A directory cannot be made or used.
    #[error("cannot use the directory {path:?} as {who}: {source}; {way_out}")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The user that was refused.
        who: String,
        /// The system's answer.
        r#source: io::Error,
        /// The way out.
        way_out: String,
    },
    /// The system refused a step that every system has.
    #[error("cannot {what}: {source}; to run with all privileges, write privileges = \"keep\"")]
    System {
        /// The step.
        what: &'static str,
        /// The system's answer.
        r#source: io::Error,
    },
}

/// The error of a step that every system has.
pub(super) fn system<E: Into<io::Error>>(what: &'static str) -> impl Fn(E) -> PrivilegeError {
    move |source| PrivilegeError::System { what, source: source.into() }
}
