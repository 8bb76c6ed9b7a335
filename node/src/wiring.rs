//! The wiring of a node: the order in which its parts start and stop, and how they change in
//! between.
//!
//! ```text
//!   start:  directories ─ control socket ─ keys ─ volumes ─ sidecores and sessions ─ nics
//!           ─ domains ─ disks
//!   change: disks, volumes, peers, networks, nics, domains and vfs, one at a time, by the same
//!           code ([`live`])
//!   stop:   disks ─ sessions and sidecores ─ control socket ─ volumes
//! ```

mod ciphers;
mod disks;
mod domains;
mod drain;
mod handover;
mod inspect;
mod live;
mod nics;
mod objects;
mod report;
mod resize;
mod steer;
mod strangers;
mod turns;
mod volumes;
mod watchdog;

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use config::{Config, Kind};
use link::ShmListener;
use serde_json::Value;
use sessions::keys::Keys;
pub use sessions::{ConnectError, ObjectError};
use sessions::{Core, Doors, lines, links, sidecores};

use self::disks::{Disks, Shown};
use self::domains::Domains;
use self::handover::Heirlooms;
pub use self::handover::take::TakeOverError;
pub(crate) use self::inspect::problems;
use self::nics::{Nics, OpenedUplink};
use self::objects::Objects;
use self::steer::Steerer;
use self::turns::Turns;
use self::volumes::{Served, Volumes};
use self::watchdog::Watchdog;
use crate::api::{Done, Drain, HandOver, Plan, Refused, Reload};
use crate::control::{Claim, Control, ControlError, Service};
use crate::kinds::running_kind;
use crate::notify::Pings;
use crate::privilege::{Opener, PrivilegeError};
use crate::status::{DiskStatus, PeerStatus, Status, VolumeStatus};

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

/// A running node.
#[derive(Debug)]
pub struct Node {
    control: Control,
    inside: Arc<Inside>,
}

/// The state that the control thread and the main thread share.
#[derive(Debug)]
pub(crate) struct Inside {
    started: Instant,
    keys: Keys,
    volumes: Volumes,
    cores: Vec<Core>,
    /// Kept until the node goes: callers get no answer then.
    door: Option<ShmListener>,
    disks: Disks,
    /// Removed as a whole, at the end.
    nics: Mutex<Nics>,
    /// The fabric.
    domains: Domains,
    steerer: Steerer,
    watchdog: Watchdog,
    /// Works until it is dropped.
    _strangers: strangers::Watcher,
    /// A thread that changes something waits for its turn first.
    turns: Turns,
    /// Held for as long as it takes to look or to note; never while something is started.
    objects: Mutex<Objects>,
    heirlooms: Heirlooms,
}

impl Inside {
    pub(crate) fn objects(&self) -> MutexGuard<'_, Objects> {
        // A poisoned lock has whole contents: each change notes its result in one step.
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn nics(&self) -> MutexGuard<'_, Nics> {
        // The same holds here: readers only look, and the nics are removed as a whole.
        self.nics.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inside {
    pub(crate) fn disk_status(&self) -> Vec<DiskStatus> {
        report::disks(&self.objects().clone())
    }

    pub(crate) fn volume_status(&self) -> Vec<VolumeStatus> {
        report::volumes(&self.objects().clone())
    }

    pub(crate) fn peer_status(&self) -> Vec<PeerStatus> {
        report::peers(&self.objects())
    }
}

impl Service for Inside {
    fn status(&self) -> Status {
        report::status(self)
    }

    fn list(&self, kind: Kind) -> String {
        running_kind(kind).status(self)
    }

    fn show(&self, kind: Kind, name: &str) -> Option<String> {
        running_kind(kind).status_of(name, self)
    }

    fn add(&self, kind: Kind, body: &Value) -> Result<Done, Refused> {
        self.add(kind, body)
    }

    fn remove(&self, kind: Kind, name: &str, force: bool) -> Result<Done, Refused> {
        self.remove(kind, name, force)
    }

    fn set_nic(&self, name: &str, body: &Value) -> Result<Done, Refused> {
        self.set_nic(name, body)
    }

    fn set_chain(&self, volume: &str, chain: &Value) -> Result<Done, Refused> {
        self.set_chain(volume, chain)
    }

    fn resize_disk(&self, name: &str, body: &Value) -> Result<Done, Refused> {
        self.resize_disk(name, body)
    }

    fn resize_volume(&self, name: &str, body: &Value) -> Result<Done, Refused> {
        self.resize_volume(name, body)
    }

    fn move_queue(&self, disk: &str, queue: usize, body: &Value) -> Result<Done, Refused> {
        self.move_queue(disk, queue, body)
    }

    fn take_disk(&self, disk: &str) -> Result<Done, Refused> {
        self.take_disk(disk)
    }

    fn plan(&self) -> Result<Plan, Refused> {
        self.plan()
    }

    fn reload(&self, wanted: &Reload) -> Result<Done, Refused> {
        self.reload(wanted)
    }

    fn drain(&self) -> Drain {
        self.drain()
    }

    fn set_draining(&self, draining: bool) -> Result<Drain, Refused> {
        self.set_draining(draining)
    }

    fn hand_over(&self, wanted: &HandOver) -> Result<(), Refused> {
        self.hand_over(wanted)
    }
}

impl Node {
    /// Starts everything that the configuration asks for.
    ///
    /// # Errors
    /// The first kind of objects that cannot be started. Those that were started before it are
    /// stopped again.
    pub fn start(config: &Config) -> Result<Self, StartError> {
        Self::start_with(config, Opened::new(config)?)
    }

    /// The same with sockets that were opened before, while the process had more rights.
    ///
    /// # Errors
    /// As [`Node::start`].
    pub fn start_with(config: &Config, opened: Opened) -> Result<Self, StartError> {
        let Opened { links, metrics_listener, uplinks, opener } = opened;
        directories(config)?;
        virtio::set_memory_rules(config.memory.guests);
        // First, so that a second node with the same configuration gets no further.
        let claim = Claim::new(&config.control)?;
        let heirlooms = heirlooms(&claim, metrics_listener.as_ref())?;
        let keys = Keys::load(config)?;
        let volumes = volumes::start(config)?;
        let served = open_volumes(config, &volumes)?;
        let doors = Doors::new(config.sidecores.cores.len());
        let exports = volumes.exports();
        let (cores, door) = sidecores::start(config, &keys, links, exports, &doors)?;
        let watchdog = Watchdog::start(&cores);
        let strangers = strangers::Watcher::start(&config.name, &keys, &cores);
        let steerer = Steerer::new(&config.sidecores);
        let disks = disks::start(&cores, steerer.active(), volumes.own_disks());
        let disks = disks.inspect_err(|_| sidecores::stop(&cores))?;
        let nics = nics::start(config, &cores, uplinks, (doors, opener));
        let nics = Mutex::new(nics.inspect_err(|_| sidecores::stop(&cores))?);
        let domains = Domains::start(config).inspect_err(|_| sidecores::stop(&cores))?;
        domains.open_gateways(&cores);
        let (started, turns) = (Instant::now(), Turns::default());
        let objects = Mutex::new(Objects::new(config, served, Vec::new()));
        let inside = Arc::new(Inside {
            started,
            keys,
            volumes,
            cores,
            door,
            disks,
            nics,
            domains,
            steerer,
            watchdog,
            _strangers: strangers,
            turns,
            objects,
            heirlooms,
        });
        inside.show_disks(config).inspect_err(|_| inside.stop())?;
        let steered = inside.steerer.start(&inside, &config.sidecores);
        steered.inspect_err(|_| inside.stop())?;
        let control = claim.serve(Arc::clone(&inside) as Arc<dyn Service>, metrics_listener);
        let control = control.inspect_err(|_| inside.stop())?;
        let node = Self { control, inside };
        node.inside.keys.watch()?;
        Ok(node)
    }

    /// The status, as `vrio status` shows it.
    pub fn status(&self) -> Status {
        report::status(&self.inside)
    }

    /// Reads the configuration's file again and makes the node what it says.
    ///
    /// # Errors
    /// The change that failed. Changes that were made before it stay.
    pub fn reload(&self) -> Result<Done, Refused> {
        self.inside.reload(&Reload::default())
    }

    /// Tells the service manager from now on that the node lives.
    pub(crate) fn tie_watchdog(&self, pings: Pings) {
        self.inside.watchdog.tie(pings);
    }

    /// Reloads on a thread of its own, which calls `told` with the answer. The calling thread can
    /// hear of a stop meanwhile, also when a sidecore is stuck.
    pub(crate) fn reload_apart(&self, told: impl FnOnce(Result<Done, Refused>) + Send + 'static) {
        let inside = Arc::clone(&self.inside);
        let reload = move || told(inside.reload(&Reload::default()));
        let thread = std::thread::Builder::new().name("reload".to_owned()).spawn(reload);
        if let Err(error) = thread {
            tracing::error!(%error, "not reloaded: no thread for it; try again");
        }
    }

    /// Waits until another process has taken everything over, and returns its number.
    pub async fn handed_over(&self) -> u32 {
        self.inside.heirlooms.gone().await
    }

    /// Takes no more changes and waits for the one that is under way. When that was a hand-over and
    /// another process has taken everything over, it returns the number of that process; the caller
    /// must call [`Node::leave`] then.
    pub fn close(&self) -> Option<u32> {
        let is_ours = self.inside.turns.close();
        (!is_ours).then(|| self.inside.heirlooms.successor())
    }

    /// Leaves everything to the process that has taken the node over. This process must end, and
    /// touches nothing any more, not even to clean up.
    pub fn leave(self) {
        std::mem::forget(self);
    }

    /// Moves a queue of a disk to another sidecore, as `vrio disk move` does.
    ///
    /// # Errors
    /// Why the queue stays where it was.
    pub fn move_queue(&self, disk: &str, queue: usize, to: usize) -> Result<Done, Refused> {
        self.inside.move_queue(disk, queue, &serde_json::json!({ "sidecore": to }))
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
        self.inside.stop();
    }
}

/// Sockets that may need rights that a running node does not have: ports below 1024, receive
/// buffers beyond the system's limit, a way past its network stack.
#[derive(Debug)]
pub struct Opened {
    links: Vec<link::Wire>,
    metrics_listener: Option<TcpListener>,
    uplinks: BTreeMap<String, OpenedUplink>,
    opener: Opener,
}

impl Opened {
    /// Binds the node's sockets of the network.
    ///
    /// # Errors
    /// When an address is taken or not this host's.
    pub fn new(config: &Config) -> Result<Self, StartError> {
        Self::with_opener(config, Opener::default())
    }

    /// The same for a node that gives rights up: `opener` opens the interfaces of uplinks, also
    /// later.
    ///
    /// # Errors
    /// As [`Opened::new`].
    pub fn with_opener(config: &Config, opener: Opener) -> Result<Self, StartError> {
        let metrics_listener = listen_for_metrics(config)?;
        let uplinks = nics::open_uplinks(config, &opener)?;
        Ok(Self { links: links::open(config)?, metrics_listener, uplinks, opener })
    }
}

/// Descriptors of the control socket and of the metrics port, for a successor.
fn heirlooms(claim: &Claim, metrics: Option<&TcpListener>) -> Result<Heirlooms, StartError> {
    let metrics = metrics.map(|it| it.try_clone().map(Into::into)).transpose();
    let copies = claim.copies().and_then(|control| Ok((control, metrics?)));
    let what = "copy a descriptor";
    let (control, metrics) = copies.map_err(|source| StartError::System { what, source })?;
    Ok(Heirlooms::new(control, metrics))
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

impl Inside {
    /// Shows the disks of the file.
    fn show_disks(&self, config: &Config) -> Result<(), StartError> {
        let mut errors = Vec::new();
        for disk in &config.disks {
            let source = self.objects().source(disk);
            let shown = source.and_then(|source| {
                self.disks.show(disk, source).map_err(|text| ObjectError {
                    place: config.place(&disk.lines, "socket"),
                    object: format!("disk {:?}", disk.name),
                    text,
                })
            });
            match shown {
                Ok(shown) => self.objects().disks.push(shown),
                Err(error) => errors.push(error),
            }
        }
        if errors.is_empty() { Ok(()) } else { Err(errors.into()) }
    }

    /// Refuses further changes, and ends disks, sessions and sidecores.
    fn stop(&self) {
        if !self.turns.close() {
            return;
        }
        self.watchdog.stop();
        self.steerer.stop();
        let disks: Vec<Arc<Shown>> = self.objects().disks.clone();
        self.disks.stop(&disks);
        self.nics().stop();
        self.domains.stop();
        sidecores::stop(&self.cores);
    }
}

/// Opens the volumes of the file.
fn open_volumes(config: &Config, volumes: &Volumes) -> Result<Vec<Arc<Served>>, StartError> {
    if !config.volumes.is_empty() {
        volumes.lock_state().map_err(|error| StartError::Directory {
            place: config.place(&config.lines, "directories"),
            path: error.path,
            source: error.source,
            way_out: error.way_out.to_owned(),
        })?;
    }
    let (mut all, mut errors) = (Vec::new(), Vec::new());
    for volume in &config.volumes {
        let opened = volumes
            .open(volume)
            .and_then(|served| volumes::same_key(&served, &all).map_or(Ok(served), Err));
        match opened {
            Ok(served) => all.push(Arc::new(served)),
            Err(text) => errors.push(ObjectError {
                place: config.place(&volume.lines, "backend"),
                object: format!("volume {:?}", volume.name),
                text,
            }),
        }
    }
    if !errors.is_empty() {
        return Err(errors.into());
    }
    all.iter().for_each(|served| volumes.publish(served));
    Ok(all)
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
        crate::privilege::make_shown(path).map_err(|source| StartError::Directory {
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
