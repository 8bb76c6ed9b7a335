//! Why sidecores have no sessions.

use std::io;
use std::path::PathBuf;

/// Why sidecores, their links or their keys are not there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The system refused something that every node needs.
    #[error("cannot {what}: {source}")]
    System {
        /// The attempt.
        what: &'static str,
        /// The system's answer.
        r#source: io::Error,
    },
    /// A sidecore cannot run.
    #[error("{place}: [sidecores]: {source}; choose other \"cores\", or only their \"count\"")]
    Sidecore {
        /// `file:line`.
        place: String,
        /// The system's answer.
        r#source: io::Error,
    },
    /// The socket for shared memory cannot be made.
    #[error(
        "{place}: \"shm\": cannot make {path:?}: {source}; stop the process that has it, or choose \
         another path"
    )]
    Shm {
        /// `file:line`.
        place: String,
        /// The socket.
        path: PathBuf,
        /// The system's answer.
        r#source: io::Error,
    },
    /// The address is not ours, or taken.
    #[error(
        "{place}: \"listen\": {source}; is another node running, and is the address this host's?"
    )]
    Listen {
        /// `file:line`.
        place: String,
        /// The link's answer.
        r#source: Box<link::BindError>,
    },
    /// No io_uring.
    #[error("no io_uring: {source}; {hint}")]
    Uring {
        /// The system's answer.
        r#source: io::Error,
        /// The way out.
        hint: &'static str,
    },
    /// Key files that are no sound ones.
    #[error("{}", lines(_0))]
    Keys(Vec<ObjectError>),
}

/// An object of the configuration that cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {object}: {text}")]
pub struct ObjectError {
    /// `file:line`.
    pub place: String,
    /// Such as `volume "alice-root"`.
    pub object: String,
    /// The fault and the way out.
    pub text: String,
}

/// The errors, each in a line of its own.
pub fn lines(errors: &[ObjectError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}
