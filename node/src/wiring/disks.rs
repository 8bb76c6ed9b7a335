//! The disks of a node: each gets its socket as soon as its volume is known.
//!
//! A volume of this node is known at once, and what is wrong with its disk keeps the node from
//! starting. A peer's volume is known when the peer has told; one thread waits for all of those.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use block::disk::{Disk, DiskCore, DiskOptions};
use block::{LocalVolume, Plane, RemoteVolume, Volume};
use sidecore::Sidecore;
use virtio::{Server, ServerState, Socket};

use super::sidecores::Core;
use super::volumes::Volumes;
use super::{ObjectError, StartError, keys};
use crate::config::{Config, DiskConfig, Role, WhenLost};

/// How often it is looked whether a peer has told what its volume is: soon enough for people, and
/// it ends when all have.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// How long a disk waits before the log says for what: both nodes of a pair are often started
/// together.
const WAIT_QUIETLY: Duration = Duration::from_secs(1);

/// How often a socket that cannot be made is tried again.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// How long attachments may take to close when the node stops: a sync of each volume and a round
/// trip. A peer that is not there must not hold a stop up.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(4);

/// How often it is looked whether they have.
const CLOSED_LOOK_AGAIN: Duration = Duration::from_millis(2);

/// A disk and how far it is.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) config: DiskConfig,
    pub(super) volume: Source,
    state: Mutex<State>,
}

/// What stands behind a disk.
#[derive(Clone, Debug)]
pub(super) enum Source {
    /// A volume of this node.
    Local(Arc<LocalVolume>),
    /// A peer's.
    Remote(Arc<RemoteVolume>),
}

impl Source {
    fn volume(&self) -> Arc<dyn Volume> {
        match self {
            Self::Local(volume) => Arc::clone(volume) as Arc<dyn Volume>,
            Self::Remote(volume) => Arc::clone(volume) as Arc<dyn Volume>,
        }
    }

    /// Its size, once known.
    pub(super) fn size_bytes(&self) -> Option<u64> {
        match self {
            Self::Local(volume) => Some(volume.info().size_bytes),
            Self::Remote(volume) => volume.described().map(|info| info.size_bytes),
        }
    }
}

#[derive(Debug, Default)]
struct State {
    server: Option<Server>,
    core: Option<Arc<DiskCore>>,
    /// Why its socket could not be made; it is tried again.
    refused: Option<String>,
}

/// A disk for the status.
#[derive(Debug)]
pub(super) struct Look {
    pub(super) server: Option<ServerState>,
    pub(super) core: Option<Arc<DiskCore>>,
    pub(super) refused: Option<String>,
}

impl Shown {
    /// How far it is.
    pub(super) fn look(&self) -> Look {
        let state = self.state();
        Look {
            server: state.server.as_ref().map(Server::state),
            core: state.core.clone(),
            refused: state.refused.clone(),
        }
    }

    /// Makes the socket and serves the disk.
    fn serve(&self, sidecores: &[Sidecore]) -> Result<(), virtio::SocketError> {
        let mut options = DiskOptions::new(&self.config.name);
        options.attachment.clone_from(&self.config.attachment);
        options.queues = self.config.queues;
        options.accept_loss = self.config.accept_loss;
        options.error_after_ns = match self.config.when_lost {
            WhenLost::Wait => None,
            WhenLost::ErrorAfterNs(ns) => Some(ns),
        };
        let disk = Disk::new(options, self.volume.volume(), sidecores.to_vec());
        let core = disk.core();
        let path = self.config.socket.clone();
        let socket = match self.config.role {
            Role::Listen => Socket::Listen(path),
            Role::Connect => Socket::Connect(path),
        };
        let server = virtio::serve(socket, Box::new(disk))?;
        *self.state() = State { server: Some(server), core: Some(core), refused: None };
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All disks of a node.
#[derive(Debug)]
pub(super) struct Disks {
    /// In the configuration's order.
    pub(super) all: Vec<Arc<Shown>>,
    /// Waits for peers' volumes; hanging up ends it.
    waiter: Mutex<Option<(Sender<()>, JoinHandle<()>)>>,
}

/// Serves every disk whose volume is here, and waits for the others.
///
/// # Errors
/// All local disks that cannot be served, each by line and name.
pub(super) fn start(
    config: &Config,
    volumes: &Volumes,
    cores: &[Core],
) -> Result<Disks, StartError> {
    let sidecores: Vec<_> = cores.iter().map(|core| core.sidecore.clone()).collect();
    let (mut all, mut errors) = (Vec::new(), Vec::new());
    for disk in &config.disks {
        match shown(config, disk, volumes) {
            Ok(disk) => all.push(disk),
            Err(error) => errors.push(error),
        }
    }
    let (local, remote): (Vec<_>, Vec<_>) =
        all.iter().cloned().partition(|disk| matches!(disk.volume, Source::Local(_)));
    for disk in local {
        if let Err(error) = disk.serve(&sidecores) {
            errors.push(ObjectError {
                place: config.place(&disk.config.lines, "socket"),
                object: format!("disk {:?}", disk.config.name),
                text: error.to_string(),
            });
        }
    }
    let disks = Disks { all, waiter: Mutex::default() };
    if !errors.is_empty() {
        disks.stop();
        return Err(errors.into());
    }
    if !remote.is_empty() {
        describe(&remote, &sidecores[0]);
        let waiter = wait_for(remote, sidecores)
            .map_err(|source| StartError::System { what: "start a thread for disks", source })?;
        *disks.waiter.lock().unwrap_or_else(PoisonError::into_inner) = Some(waiter);
    }
    Ok(disks)
}

fn shown(config: &Config, disk: &DiskConfig, volumes: &Volumes) -> Result<Arc<Shown>, ObjectError> {
    let volume = match &disk.volume.peer {
        Some(peer) => {
            let key = keys::attachment(config, disk)?;
            Source::Remote(RemoteVolume::with_key(peer, &disk.volume.volume, key))
        }
        None => {
            let mut all = volumes.all.iter();
            let served = all.find(|served| served.export.name() == disk.volume.volume);
            let export = &served.expect("the configuration was checked").export;
            Source::Local(LocalVolume::new(Arc::clone(export)))
        }
    };
    Ok(Arc::new(Shown { config: disk.clone(), volume, state: Mutex::default() }))
}

/// Has a sidecore ask the peers what their volumes are, for as long as it takes.
fn describe(disks: &[Arc<Shown>], sidecore: &Sidecore) {
    let volumes = disks.iter().filter_map(|disk| match &disk.volume {
        Source::Remote(volume) => Some(Arc::clone(volume)),
        Source::Local(_) => None,
    });
    let volumes: Vec<_> = volumes.collect();
    let asked = sidecore.call(move |local| {
        let plane = local.services().get::<Plane>().expect("peers need an address: checked");
        for volume in volumes {
            let known = plane.borrow_mut().clients.describe(volume);
            assert!(known, "peers were made known when the sidecore started");
        }
    });
    asked.expect("a sidecore that runs");
}

/// Serves each disk when its volume is known, on a thread that ends when all are served.
fn wait_for(
    disks: Vec<Arc<Shown>>,
    sidecores: Vec<Sidecore>,
) -> std::io::Result<(Sender<()>, JoinHandle<()>)> {
    let (stop, stopped) = channel();
    let now = Instant::now();
    let mut waiting: Vec<_> =
        disks.into_iter().map(|disk| Waiting { disk, since: now, said: None }).collect();
    let wait = move || {
        loop {
            waiting.retain_mut(|waiting| !waiting.step(&sidecores));
            if waiting.is_empty() || stopped.recv_timeout(LOOK_AGAIN) != TIMED_OUT {
                return;
            }
        }
    };
    let thread = std::thread::Builder::new().name("disks".to_owned()).spawn(wait)?;
    Ok((stop, thread))
}

const TIMED_OUT: Result<(), RecvTimeoutError> = Err(RecvTimeoutError::Timeout);

/// A disk that cannot be served yet.
struct Waiting {
    disk: Arc<Shown>,
    /// Since when, or when its socket was last tried.
    since: Instant,
    /// What the log was told last.
    said: Option<String>,
}

impl Waiting {
    /// Looks at it: `true` when it is served. Says in the log what has changed.
    fn step(&mut self, sidecores: &[Sidecore]) -> bool {
        let disk = Arc::clone(&self.disk);
        let Source::Remote(remote) = &disk.volume else { return true };
        let (name, volume) = (&disk.config.name, &disk.config.volume);
        if remote.described().is_none() {
            let why = remote.why();
            if self.since.elapsed() >= WAIT_QUIETLY && self.is_news(&why) {
                tracing::warn!(disk = name, %volume, why, "waiting for the volume");
            }
            return false;
        }
        if disk.look().refused.is_some() && self.since.elapsed() < TRY_AGAIN {
            return false;
        }
        self.since = Instant::now();
        match disk.serve(sidecores) {
            Ok(()) => {
                let socket = &disk.config.socket;
                tracing::info!(disk = name, %volume, ?socket, "the disk is ready");
                true
            }
            Err(error) => {
                let why = Some(error.to_string());
                if self.is_news(&why) {
                    tracing::error!(disk = name, %error, "the disk cannot be served; trying on");
                }
                disk.state().refused = why;
                false
            }
        }
    }

    /// Whether this was not said last; remembers it.
    fn is_news(&mut self, why: &Option<String>) -> bool {
        let news = why.is_some() && *why != self.said;
        if news {
            self.said.clone_from(why);
        }
        news
    }
}

impl Disks {
    /// Takes all disks away: queues drain, sockets go, attachments are closed. Bounded. A second
    /// call finds nothing to do.
    pub(super) fn stop(&self) {
        let waiter = self.waiter.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((stop, thread)) = waiter {
            drop(stop);
            if thread.join().is_err() {
                tracing::error!("the thread that waits for peers' volumes panicked");
            }
        }
        let taken: Vec<_> =
            self.all.iter().map(|disk| std::mem::take(&mut *disk.state())).collect();
        let mut cores = Vec::new();
        // All at once: each drains for up to two seconds.
        std::thread::scope(|scope| {
            for State { server, core, .. } in taken {
                cores.extend(core);
                if let Some(server) = server {
                    scope.spawn(move || server.stop());
                }
            }
        });
        wait_until_closed(&cores);
    }
}

/// Waits until the sidecores have let go of disks whose devices are gone: then nobody but us holds
/// on to what their shares had in common, and their attachments are closed.
fn wait_until_closed(cores: &[Arc<DiskCore>]) {
    let until = Instant::now() + CLOSE_TIME_MAX;
    for core in cores {
        while Arc::strong_count(core) > 1 {
            if Instant::now() >= until {
                tracing::warn!(
                    disk = core.name(),
                    "its attachment could not be closed in time; its volume will see it as torn off"
                );
                break;
            }
            std::thread::sleep(CLOSED_LOOK_AGAIN);
        }
    }
}
