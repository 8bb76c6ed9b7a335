//! What is wired to what, and in which order it starts and stops.
//!
//! ```text
//!   start: directories ─ control socket ─ keys ─ volumes ─ sidecores and sessions ─ disks
//!   stop:  disks ─ sessions and sidecores ─ control socket ─ volumes
//! ```

mod disks;
mod keys;
mod report;
mod sidecores;
mod volumes;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use block::Exports;

use self::disks::Disks;
use self::keys::Keys;
use self::sidecores::Core;
use self::volumes::Volumes;
use crate::config::Config;
use crate::control::{Claim, Control, ControlError};
use crate::privilege::PrivilegeError;
use crate::status::Status;

/// Why a node could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The system refused something that every node needs.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// A directory is missing or not usable.
    #[error("{place}: [directories]: cannot use {path:?}: {source}; {way_out}")]
    Directory {
        /// `file:line`.
        place: String,
        /// The directory.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
        /// What to do.
        way_out: String,
    },
    /// A sidecore cannot run.
    #[error("{place}: [sidecores]: {source}; choose other \"cores\", or only their \"count\"")]
    Sidecore {
        /// `file:line`.
        place: String,
        /// The system's answer.
        source: io::Error,
    },
    /// The address is not ours, or taken.
    #[error(
        "{place}: \"listen\": {source}; is another node running, and is the address this host's?"
    )]
    Listen {
        /// `file:line`.
        place: String,
        /// What the link says.
        source: Box<link::BindError>,
    },
    /// Prometheus's port is not to be had.
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
        source: io::Error,
    },
    /// No io_uring.
    #[error("no io_uring: {source}; {hint}")]
    Uring {
        /// The system's answer.
        source: io::Error,
        /// What to do.
        hint: &'static str,
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
}

/// A volume or disk that cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {object}: {text}")]
pub struct ObjectError {
    /// `file:line`.
    pub place: String,
    /// Such as `volume "alice-root"`.
    pub object: String,
    /// What is wrong and what to do.
    pub text: String,
}

impl From<Vec<ObjectError>> for StartError {
    fn from(errors: Vec<ObjectError>) -> Self {
        Self::Objects(errors)
    }
}

fn lines(errors: &[ObjectError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// A running node.
#[derive(Debug)]
pub struct Node {
    control: Control,
    inside: Arc<Inside>,
}

/// What the control thread and the main thread share.
#[derive(Debug)]
struct Inside {
    config: Config,
    started: Instant,
    keys: Keys,
    volumes: Volumes,
    cores: Vec<Core>,
    disks: Disks,
}

impl Node {
    /// Starts everything that the configuration asks for.
    ///
    /// # Errors
    /// The first kind of thing that cannot be started; what was started before it is stopped again.
    pub fn start(config: &Config) -> Result<Self, StartError> {
        Self::start_with(config, Opened::new(config)?)
    }

    /// The same with what was opened before, while the process had more rights.
    ///
    /// # Errors
    /// As [`Node::start`].
    pub fn start_with(config: &Config, opened: Opened) -> Result<Self, StartError> {
        let Opened { links, metrics_listener } = opened;
        directories(config)?;
        // First, so that a second node with the same configuration gets no further.
        let claim = Claim::new(&config.control)?;
        let keys = Keys::load(config)?;
        let volumes = volumes::start(config)?;
        let exports = Arc::new(Exports::default());
        for served in &volumes.all {
            exports.insert(Arc::clone(&served.export));
        }
        let cores = sidecores::start(config, &keys, links, &exports)?;
        let disks =
            disks::start(config, &volumes, &cores).inspect_err(|_| sidecores::stop(&cores))?;
        let started = Instant::now();
        let config = config.clone();
        let inside = Arc::new(Inside { config, started, keys, volumes, cores, disks });
        let node = Self::serve(claim, metrics_listener, inside)?;
        node.inside.keys.watch()?;
        Ok(node)
    }

    fn serve(
        claim: Claim,
        metrics_listener: Option<TcpListener>,
        inside: Arc<Inside>,
    ) -> Result<Self, StartError> {
        let gather = {
            let inside = Arc::clone(&inside);
            Arc::new(move || report::status(&inside))
        };
        Ok(Self { control: claim.serve(gather, metrics_listener)?, inside })
    }

    /// Reads the keys that `config` names again, and takes its peers' keys and its volumes' `allow`
    /// from it: sessions and channels of those who may no longer end, all others go on.
    ///
    /// # Errors
    /// When a key file is not in order; nothing has changed then.
    pub fn apply_keys(&self, config: &Config) -> Result<(), StartError> {
        keys::apply(config, &self.inside.keys, &self.inside.volumes, &self.inside.cores)
    }

    /// What `vrio status` shows.
    pub fn status(&self) -> Status {
        report::status(&self.inside)
    }

    /// Where the control socket is.
    pub fn control_path(&self) -> &Path {
        self.control.path()
    }

    /// Stops everything within a bound, as dropping does.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.inside.disks.stop();
        sidecores::stop(&self.inside.cores);
    }
}

/// What may need rights that a running node does not: ports below 1024, and receive buffers beyond
/// the system's limit.
#[derive(Debug)]
pub struct Opened {
    links: Vec<link::Udp>,
    metrics_listener: Option<TcpListener>,
}

impl Opened {
    /// Binds the node's sockets of the network.
    ///
    /// # Errors
    /// When an address is taken or not this host's.
    pub fn new(config: &Config) -> Result<Self, StartError> {
        let metrics_listener = listen_for_metrics(config)?;
        Ok(Self { links: sidecores::bind(config)?, metrics_listener })
    }
}

fn listen_for_metrics(config: &Config) -> Result<Option<TcpListener>, StartError> {
    let Some(address) = config.metrics_listen else { return Ok(None) };
    let bind = || -> io::Result<TcpListener> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    let place = || config.place(&config.lines, "metrics-listen");
    let refuse = |source| StartError::Metrics { place: place(), address, source };
    bind().map(Some).map_err(refuse)
}

/// Sockets' directories are made, since they are lost at every boot; volumes' ones are not, since
/// a file in a new directory would hide the real one that was not mounted.
fn directories(config: &Config) -> Result<(), StartError> {
    let table = |key: &str| config.place(&config.lines, key);
    for path in &config.directories.volumes {
        std::fs::metadata(path).and_then(is_directory).map_err(|source| StartError::Directory {
            place: table("directories"),
            path: path.clone(),
            source,
            way_out: "make it, or mount what should be there, or name another one".to_owned(),
        })?;
    }
    let sockets = config.directories.sockets.iter();
    for path in sockets {
        std::fs::create_dir_all(path).map_err(|source| StartError::Directory {
            place: table("directories"),
            path: path.clone(),
            source,
            way_out: "make it, with this process as its owner, or name another one".to_owned(),
        })?;
    }
    Ok(())
}

fn is_directory(found: std::fs::Metadata) -> io::Result<()> {
    if found.is_dir() { Ok(()) } else { Err(io::Error::from(io::ErrorKind::NotADirectory)) }
}
