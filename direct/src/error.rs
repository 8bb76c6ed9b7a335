//! Why a direct client has no disk, or its disk does not go.

use std::io;
use std::path::PathBuf;

use block::ublk::ControlError;
use sessions::{ConnectError, key_files};

use crate::plan::PlanError;

/// Why there is no disk, or why it cannot be detached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirectError {
    /// The command line makes no sense.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// ublk cannot be used.
    #[error(transparent)]
    Ublk(#[from] ControlError),
    /// A fault of keys, sockets or sidecores.
    #[error(transparent)]
    Start(Box<ConnectError>),
    /// The attachment key is not a sound one.
    #[error(transparent)]
    Key(#[from] key_files::KeyError),
    /// A client of this machine has the volume.
    #[error(
        "{volume} is attached on this machine already: process {pid} serves {device} (attachment \
         {attachment}); `vrio detach {volume}` ends it"
    )]
    Here {
        /// The volume.
        volume: String,
        /// Its disk.
        device: String,
        /// Its client.
        pid: u32,
        /// Its attachment.
        attachment: String,
    },
    /// A client of this machine has the name. A name must belong to one process only, since peers
    /// take it for one node.
    #[error(
        "the client {name} has {volume} attached here already, and one client attaches one volume: \
         give another --name, with a --key of its own"
    )]
    Name {
        /// The client's name.
        name: String,
        /// Its volume.
        volume: String,
    },
    /// A client of this machine is starting.
    #[error("another `vrio attach` or `vrio detach` of {0} is running on this machine")]
    Busy(String),
    /// The peer does not answer. A peer with other keys than ours does not answer either.
    #[error(
        "{volume}: {why}. Is the node running, is --peer its address, is --peer-key its key (`vrio \
         key show` there), and does its configuration have a [[peer]] with this client's name and \
         key?"
    )]
    NotDescribed {
        /// The volume.
        volume: String,
        /// The known part of the reason.
        why: String,
    },
    /// The peer refuses the volume.
    #[error("{volume}: {why}{}", hint(.why))]
    Refused {
        /// The volume.
        volume: String,
        /// The peer's reason.
        why: String,
    },
    /// A device cannot be opened or mapped.
    #[error("{path}: {source}")]
    Device {
        /// The device.
        path: String,
        /// The system's answer.
        r#source: io::Error,
    },
    /// The disk is in use.
    #[error("{device} is in use{}; unmount it first", mounted(.mounts))]
    InUse {
        /// The disk.
        device: String,
        /// Where it is mounted.
        mounts: Vec<String>,
    },
    /// There is no such disk.
    #[error("{0} is not attached on this machine; `vrio attach --list` lists the attached disks")]
    NotAttached(String),
    /// The files of clients cannot be used.
    #[error("{path:?}: {source}")]
    Files {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        r#source: io::Error,
    },
    /// The client did not carry out the command.
    #[error("{0}")]
    Client(String),
}

impl From<ConnectError> for DirectError {
    fn from(error: ConnectError) -> Self {
        Self::Start(Box::new(error))
    }
}

fn hint(why: &str) -> &'static str {
    if why.contains("is in use by attachment") {
        " there, or take the volume over with --take-over, which ends that attachment"
    } else {
        ""
    }
}

fn mounted(mounts: &[String]) -> String {
    if mounts.is_empty() { String::new() } else { format!(" (mounted on {})", mounts.join(", ")) }
}
