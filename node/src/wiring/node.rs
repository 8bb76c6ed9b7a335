//! A node: starting it, and what its process does with it.

use std::collections::BTreeMap;
use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Instant;

use config::{Config, Kind};
use copies::ClusterView;
use parking_lot::Mutex;
use sessions::{keys::SidecoreKeys, links, sidecores, sidecores::PeerObjects};

use super::disks::shown::ServedDisk;
use super::disks::steerer::Steerer;
use super::error::StartError;
use super::fabric::Domains;
use super::hand_over::fds::HandoverFds;
use super::inside::Inside;
use super::networks::uplinks::OpenedUplink;
use super::objects::Objects;
use super::pools::schedule::TimedSnapshots;
use super::pools::timed;
use super::strangers::Watcher;
use super::turns::Turns;
use super::volumes::copy_commands;
use super::watchdog::Watchdog;
use super::{disks, networks, report, volumes};
use crate::control::{Claim, Control, Service};
use crate::kinds::running_kind;
use crate::notify::Pings;
use api::status::Status;
use api::{Done, Refused, Reload};
use privilege::Opener;

/// A running node.
#[derive(Debug)]
pub struct Node {
    pub(crate) control: Control,
    pub(crate) inside: Arc<Inside>,
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
        let handover_fds = handover_fds(&claim, metrics_listener.as_ref())?;
        let keys = SidecoreKeys::load(config)?;
        let volumes = volumes::start(config)?;
        volumes.stock().open_all(config);
        let served = volumes::start::open_all(config, &volumes)?;
        let count = config.sidecores.cores.len();
        let reached = PeerObjects::new(volumes.exports(), volumes.seats().doors(), count);
        let (cores, door) =
            sidecores::start(config, &keys, links, &reached, volumes.seats().early())?;
        let watchdog = Watchdog::start(&cores);
        let strangers = Watcher::start(&config.name, &keys, &cores);
        let steerer = Steerer::new(&config.sidecores);
        let records = (volumes.own_disks(), Arc::clone(volumes.stock()));
        let disks = disks::start(&cores, steerer.active(), records);
        let disks = disks.inspect_err(|_| sidecores::stop(&cores))?;
        let nics = networks::start(config, &cores, uplinks, (reached.networks, opener));
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
            timed: TimedSnapshots::default(),
            cluster: ClusterView::default(),
            _strangers: strangers,
            turns,
            objects,
            handover_fds,
        });
        let mut rows = Kind::all().map(running_kind);
        copy_commands::start_all(&inside);
        let shown = rows.try_for_each(|row| row.start(&inside, config));
        shown.inspect_err(|_| inside.stop())?;
        let steered = disks::steer::start(&inside, &config.sidecores);
        steered.inspect_err(|_| inside.stop())?;
        timed::start(&inside);
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

    /// Shows from now on what the node's agent tells about the cluster.
    pub(crate) fn listen_to_agent(&self, node: &str, agent: UnixStream) {
        self.inside.cluster.listen(node, agent);
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
        self.inside.handover_fds.gone().await
    }

    /// Takes no more changes and waits for the one that is under way. When that was a hand-over and
    /// another process has taken everything over, it returns the number of that process; the caller
    /// must call [`Node::leave`] then.
    pub fn close(&self) -> Option<u32> {
        let is_ours = self.inside.turns.close();
        (!is_ours).then(|| self.inside.handover_fds.successor())
    }

    /// The disks' writes that a stop sends to their volumes.
    pub(crate) fn dirty_disks(&self) -> DirtyDisks {
        DirtyDisks(self.inside.objects().disks.iter().map(Arc::downgrade).collect())
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

/// The disks of a node, for the watch over its stop. They are not kept alive by it.
#[derive(Debug)]
pub(crate) struct DirtyDisks(Vec<Weak<ServedDisk>>);

impl DirtyDisks {
    /// Bytes that their volumes have not.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.iter().filter_map(Weak::upgrade).map(|disk| disk.dirty_bytes()).sum()
    }

    /// Logs where these bytes are.
    pub(crate) fn tell_kept(&self) {
        self.0.iter().filter_map(Weak::upgrade).for_each(|disk| disk.tell_kept());
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
        let uplinks = networks::uplinks::open_uplinks(config, &opener)?;
        Ok(Self { links: links::open(config)?, metrics_listener, uplinks, opener })
    }
}

/// Descriptors of the control socket and of the metrics port, for a successor.
fn handover_fds(claim: &Claim, metrics: Option<&TcpListener>) -> Result<HandoverFds, StartError> {
    let metrics = metrics.map(|it| it.try_clone().map(Into::into)).transpose();
    let copies = claim.copies().and_then(|control| Ok((control, metrics?)));
    let what = "copy a descriptor";
    let (control, metrics) = copies.map_err(|source| StartError::System { what, source })?;
    Ok(HandoverFds::new(control, metrics))
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
pub(crate) fn directories(config: &Config) -> Result<(), StartError> {
    let table = |key: &str| config.place(&config.lines, key);
    for path in &config.directories.volumes {
        std::fs::metadata(path).and_then(is_directory).map_err(|source| StartError::Directory {
            place: table("directories"),
            path: path.clone(),
            source,
            way_out: "make it, mount its file system, or name another directory".to_owned(),
        })?;
    }
    let sockets = config.directories.sockets.iter();
    for path in sockets {
        privilege::make_shown(path).map_err(|source| StartError::Directory {
            place: table("directories"),
            path: path.clone(),
            source,
            way_out: "make it, with this process's user as its owner, or name another directory"
                .to_owned(),
        })?;
    }
    Ok(())
}

pub(crate) fn is_directory(found: std::fs::Metadata) -> io::Result<()> {
    if found.is_dir() { Ok(()) } else { Err(io::Error::from(io::ErrorKind::NotADirectory)) }
}
