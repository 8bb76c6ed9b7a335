//! What is wired to what, and in which order it starts and stops.
//!
//! ```text
//!   start: directories ─ control socket ─ sidecores ─ volumes ─ sessions ─ disks
//!   stop:  disks ─ volumes ─ sidecores ─ control socket
//! ```

mod report;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use sidecore::Sidecore;

use crate::config::Config;
use crate::control::{Control, ControlError};
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
    /// No control socket.
    #[error(transparent)]
    Control(#[from] ControlError),
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
    sidecores: Vec<Sidecore>,
}

impl Node {
    /// Starts everything that the configuration asks for.
    ///
    /// # Errors
    /// The first thing that cannot be started; what was started before it is stopped again.
    pub fn start(config: &Config) -> Result<Self, StartError> {
        directories(config)?;
        let sidecores = sidecores(config)?;
        let inside =
            Arc::new(Inside { config: config.clone(), started: Instant::now(), sidecores });
        let gather = {
            let inside = Arc::clone(&inside);
            Arc::new(move || report::status(&inside))
        };
        let control = Control::start(&config.control, gather)?;
        Ok(Self { control, inside })
    }

    /// What `vrio status` shows.
    pub fn status(&self) -> Status {
        report::status(&self.inside)
    }

    /// Where the control socket is.
    pub fn control_path(&self) -> &Path {
        self.control.path()
    }

    /// Stops everything within a bound.
    pub fn stop(self) {
        self.inside.sidecores.iter().for_each(Sidecore::stop);
    }
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

fn sidecores(config: &Config) -> Result<Vec<Sidecore>, StartError> {
    let spawn = |(index, core): (usize, &Option<usize>)| {
        let name = format!("sidecore-{index}");
        let wanted = sidecore::Config { name, index, core: *core, idle: config.sidecores.idle };
        sidecore::spawn(wanted).map_err(|source| StartError::Sidecore {
            place: config.place(&config.lines, "sidecores"),
            source,
        })
    };
    config.sidecores.cores.iter().enumerate().map(spawn).collect()
}
