//! The faults of the control socket.

use std::io;
use std::path::PathBuf;

/// Why there is no control socket.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// Another process has it.
    #[error(
        "the control socket {path:?} is in use: another node runs with it. Stop that node, or give \
         this node another control = \"..\""
    )]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// Something else is where the socket should be.
    #[error(
        "{path:?} exists and is not a socket; move it away, or choose another control = \"..\""
    )]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// The system refused.
    #[error(
        "the control socket {path:?}: cannot {what}: {source}; write control = \"..\" with a path \
         where this process may make it"
    )]
    Io {
        /// The socket.
        path: PathBuf,
        /// The step that failed.
        what: &'static str,
        /// The system's answer.
        r#source: io::Error,
    },
}
