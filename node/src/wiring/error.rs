//! Why a node does not run.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use sessions::{ConnectError, ObjectError, lines};

use crate::control::ControlError;
use api::Refused;
use privilege::PrivilegeError;

/// Why a node could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The system refused something that every node needs.
    #[error("cannot {what}: {source}")]
    System {
        /// The step that failed.
        what: &'static str,
        /// The system's answer.
        r#source: io::Error,
    },
    /// Sidecores, links or keys are not there.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A directory is missing or not usable.
    #[error("{place}: [directories]: cannot use {path:?}: {source}; {way_out}")]
    Directory {
        /// `file:line`.
        place: String,
        /// The directory.
        path: PathBuf,
        /// The system's answer.
        r#source: io::Error,
        /// The way out.
        way_out: String,
    },
    /// The port for Prometheus cannot be had.
    #[error(
        "{place}: \"metrics-listen\": cannot listen on {address}: {source}; is it in use, and is \
         the address this host's?"
    )]
    Metrics {
        /// `file:line`.
        place: String,
        /// The address.
        address: SocketAddr,
        /// The system's answer.
        r#source: io::Error,
    },
    /// Volumes or disks cannot be served.
    #[error("{}", lines(_0))]
    Objects(Vec<ObjectError>),
    /// No control socket.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// Rights that could not be given up.
    #[error(transparent)]
    Privilege(#[from] PrivilegeError),
    /// A running node could not be taken over.
    #[error(transparent)]
    TakeOver(#[from] TakeOverError),
}

impl From<Vec<ObjectError>> for StartError {
    fn from(errors: Vec<ObjectError>) -> Self {
        Self::Objects(errors)
    }
}

/// Why a running node could not be taken over. The node goes on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TakeOverError {
    /// There is no node.
    #[error("no node answers at {control:?} ({source}); start one without --take-over")]
    NoNode {
        /// Its control socket.
        control: PathBuf,
        /// The system's answer.
        r#source: io::Error,
    },
    /// The node has refused, or has failed to hand over.
    #[error("the node at {control:?} does not hand over: {refused}")]
    Refused {
        /// Its control socket.
        control: PathBuf,
        /// Its words.
        refused: Box<Refused>,
    },
    /// The state cannot be used.
    #[error("the handed-over state cannot be used: {0}; the old node continues")]
    Cannot(String),
    /// The conversation broke off.
    #[error("the hand-over broke off: {0}; the old node continues, or must be started again")]
    BrokenOff(io::Error),
}
