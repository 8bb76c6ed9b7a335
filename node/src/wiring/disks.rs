//! The disks of a node: each gets its socket as soon as its volume is known, and can be removed at
//! any time.
//!
//! A volume of this node is known at once, and the caller hears of a fault of its disk. A peer's
//! volume is known when the peer has described it. One thread waits for all such volumes, and then
//! watches whether they answer.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use block::attachment::{Remembered, Standing};
use block::disk::{Disk, DiskCore, DiskOptions, Placement};
use block::{Attach, LocalVolume, Plane, RemoteVolume};
use config::{Config, DiskConfig, Role, WhenLost};
use sessions::{Core, ObjectError, key_files};
use sidecore::Sidecore;
use virtio::hand_over::ServedDevice;
use virtio::{AdoptError, DeviceServer, Parking, ServerState, Socket};
use volume::VolumeInfo;

use self::watch::{WATCH_AGAIN, Watched};
use super::StartError;
use super::volumes::OwnDisks;
use peer::AttachmentSecret;

mod watch;

/// How often the thread checks whether a peer has described its volume: soon enough for people. It
/// ends when all have.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// How long a disk waits before the log says for what: both nodes of a pair are often started
/// together.
const WAIT_QUIETLY: Duration = Duration::from_secs(1);

/// How often a socket that cannot be made is tried again.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// How long attachments may take to close when their disks are taken away: a sync of each volume
/// and a round trip. A peer that is not there must not hold that up.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(4);

/// How often closing attachments are checked.
const CLOSED_LOOK_AGAIN: Duration = Duration::from_millis(2);

/// Numbers for disks; never used twice in a process.
static NUMBER_NEXT: AtomicU64 = AtomicU64::new(0);

/// A disk, and its state.
#[derive(Debug)]
pub(super) struct Shown {
    /// Tells the disk from an earlier disk of the same name.
    pub(super) number: u64,
    pub(super) config: DiskConfig,
    pub(super) volume: Source,
    state: Mutex<State>,
    /// The reason, if this node cannot remember how it holds the volume.
    forgets: Mutex<Option<String>>,
}

/// The volume behind a disk.
#[derive(Clone, Debug)]
pub(super) enum Source {
    /// A volume of this node.
    Local(Arc<LocalVolume>),
    /// A volume of a peer.
    Remote(Arc<RemoteVolume>),
}

/// The key that proves whose attachment a disk is.
///
/// # Errors
/// When its file is not a sound key file.
pub(super) fn attachment_key(
    config: &Config,
    disk: &DiskConfig,
) -> Result<Option<Arc<AttachmentSecret>>, ObjectError> {
    let Some(path) = &disk.attachment_key else { return Ok(None) };
    match key_files::read_attachment(path) {
        Ok(key) => Ok(Some(Arc::new(key))),
        Err(error) => Err(ObjectError {
            place: config.place(&disk.lines, "attachment-key"),
            object: format!("disk {:?}", disk.name),
            text: error.to_string(),
        }),
    }
}

impl Source {
    fn volume(&self) -> Arc<dyn Attach> {
        match self {
            Self::Local(volume) => Arc::clone(volume) as Arc<dyn Attach>,
            Self::Remote(volume) => Arc::clone(volume) as Arc<dyn Attach>,
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
    server: Option<DeviceServer>,
    outside: Option<Outside>,
    /// Why its socket could not be made; the thread tries again.
    refused: Option<String>,
    /// The disk was removed: it is not served any more, even if other threads still hold it.
    removed: bool,
    /// The node is drained: new front ends are refused.
    turns_away: bool,
    /// Another process may go on with the disk: it is not served meanwhile.
    parked: bool,
}

impl State {
    fn keep(&mut self, server: DeviceServer, outside: Outside) {
        server.set_turning_away(self.turns_away);
        let (server, outside) = (Some(server), Some(outside));
        *self = Self { server, outside, turns_away: self.turns_away, ..Self::default() };
    }
}

/// The parts of a disk that its server does not own.
#[derive(Clone, Debug)]
pub(super) struct Outside {
    core: Arc<DiskCore>,
    placement: Arc<Placement>,
}

impl Outside {
    fn of(disk: &Disk) -> Self {
        Self { core: disk.core(), placement: disk.placement() }
    }
}

/// A disk for the status.
#[derive(Debug)]
pub(super) struct Look {
    pub(super) server: Option<ServerState>,
    pub(super) core: Option<Arc<DiskCore>>,
    pub(super) placement: Option<Arc<Placement>>,
    pub(super) refused: Option<String>,
    /// The reason, if this node cannot remember how it holds the volume.
    pub(super) forgets: Option<String>,
    /// The process of the connected front end.
    pub(super) front_end: Option<u32>,
    /// Why the last front end was dropped, if it was.
    pub(super) last_drop: Option<String>,
    /// Front ends that came while new ones were refused.
    pub(super) turned_away: u64,
    /// Front ends that were dropped because signals to them cost too much.
    pub(super) too_costly: u64,
}

impl Shown {
    pub(super) fn new(config: &DiskConfig, volume: Source) -> Arc<Self> {
        let number = NUMBER_NEXT.fetch_add(1, Relaxed);
        let (state, forgets) = (Mutex::default(), Mutex::default());
        Arc::new(Self { number, config: config.clone(), volume, state, forgets })
    }

    /// The disk's present state.
    pub(super) fn look(&self) -> Look {
        let state = self.state();
        Look {
            server: state.server.as_ref().map(DeviceServer::state),
            core: state.outside.as_ref().map(|outside| Arc::clone(&outside.core)),
            placement: state.outside.as_ref().map(|outside| Arc::clone(&outside.placement)),
            refused: state.refused.clone(),
            forgets: self.forgets.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            front_end: state.server.as_ref().and_then(DeviceServer::front_end),
            last_drop: state.server.as_ref().and_then(DeviceServer::last_drop),
            turned_away: state.server.as_ref().map_or(0, DeviceServer::turned_away),
            too_costly: state.server.as_ref().map_or(0, DeviceServer::too_costly),
        }
    }

    /// Sets whether new front ends are refused from now on.
    pub(super) fn set_turning_away(&self, turns_away: bool) {
        let mut state = self.state();
        state.turns_away = turns_away;
        if let Some(server) = &state.server {
            server.set_turning_away(turns_away);
        }
    }

    /// Makes its server stop; see [`DeviceServer::begin_park`]. `None` for a disk that is not
    /// served: it will not be served before [`Self::unpark`].
    pub(super) fn begin_park(&self, drain: Duration) -> Option<Parking> {
        let mut state = self.state();
        state.parked = true;
        state.server.as_ref().map(|server| server.begin_park(drain))
    }

    pub(super) fn unpark(&self) {
        self.state().parked = false;
    }

    /// Makes the socket and serves the disk, unless it was removed meanwhile.
    fn serve(&self, ground: &Ground) -> Result<(), virtio::SocketError> {
        // The lock is held while the socket is made, so that a thread that removes the disk removes
        // the socket, too.
        let mut state = self.state();
        if state.removed || state.parked {
            return Ok(());
        }
        let disk = self.device(ground);
        let outside = Outside::of(&disk);
        let server = virtio::serve(self.socket(), Box::new(disk))?;
        state.keep(server, outside);
        Ok(())
    }

    fn socket(&self) -> Socket {
        let path = self.config.socket.clone();
        match self.config.role {
            Role::Listen => Socket::Listen(path, self.config.access),
            Role::Connect => Socket::Connect(path),
        }
    }

    fn device(&self, ground: &Ground) -> Disk {
        let mut options = DiskOptions::new(&self.config.name);
        options.attachment.clone_from(&self.config.attachment);
        options.queues = self.config.queues;
        options.accept_loss = self.config.accept_loss;
        options.error_after_ns = match self.config.when_lost {
            WhenLost::Wait => None,
            WhenLost::ErrorAfterNs(ns) => Some(ns),
        };
        options.active = Arc::clone(&ground.active);
        options.remembered = self.remembered(ground);
        Disk::new(options, self.volume.volume(), ground.sidecores.clone())
    }

    /// The record of how this node held the volume. Without one the disk is still served; log and
    /// status say which promise does not hold.
    fn remembered(&self, ground: &Ground) -> Option<Arc<Remembered>> {
        let DiskConfig { name, volume, attachment, .. } = &self.config;
        let (remembered, forgets) =
            match ground.own_disks.remembered(&volume.to_string(), attachment) {
                Ok(remembered) => (Some(remembered), None),
                Err(why) => (None, Some(why)),
            };
        let mut told = self.forgets.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(why) = &forgets
            && *told != forgets
        {
            tracing::warn!(disk = name, "{why}");
        }
        *told = forgets;
        remembered
    }

    /// Removes the disk: queues drain, its socket goes, its attachment is closed. Bounded. `false`
    /// when the attachment could not be closed clean in time.
    fn take_away(&self) -> bool {
        let State { server, outside, .. } =
            std::mem::replace(&mut *self.state(), State { removed: true, ..State::default() });
        if let Some(server) = server {
            server.stop();
        }
        let closed = outside.is_none_or(|outside| wait_until_closed(outside.core));
        if closed && self.config.role == Role::Listen {
            // This process does not touch the guest's memory any more, so another process may serve
            // it.
            virtio::release(&self.config.socket);
        }
        closed
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread that waits for volumes, and the channel that gives it disks.
type Waiter = (Sender<Arc<Shown>>, JoinHandle<()>);

/// The parts of the node that serve disks.
#[derive(Clone, Debug)]
struct Ground {
    sidecores: Vec<Sidecore>,
    /// The number of sidecores on which queues start, from the first.
    active: Arc<AtomicUsize>,
    /// The records of attachments.
    own_disks: OwnDisks,
}

/// Shows disks and removes them.
#[derive(Debug)]
pub(super) struct Disks {
    ground: Ground,
    /// The thread that waits for peers' volumes; dropping the channel ends it.
    waiter: Mutex<Option<Waiter>>,
}

/// Starts the parts that disks share, without a disk. Queues start on the first `active` sidecores.
///
/// # Errors
/// When the system refuses a thread.
pub(super) fn start(
    cores: &[Core],
    active: &Arc<AtomicUsize>,
    own_disks: OwnDisks,
) -> Result<Disks, StartError> {
    let sidecores: Vec<_> = cores.iter().map(|core| core.sidecore.clone()).collect();
    let ground = Ground { sidecores, active: Arc::clone(active), own_disks };
    let (disk_in, disks) = channel();
    let wait = {
        let ground = ground.clone();
        move || wait_for(&disks, &ground)
    };
    let thread = std::thread::Builder::new().name("disks".to_owned()).spawn(wait);
    let thread =
        thread.map_err(|source| StartError::System { what: "start a thread for disks", source })?;
    Ok(Disks { ground, waiter: Mutex::new(Some((disk_in, thread))) })
}

/// Serves each disk when its volume is known, until the sender is gone.
fn wait_for(disks: &Receiver<Arc<Shown>>, ground: &Ground) {
    let mut waiting: Vec<Waiting> = Vec::new();
    let mut watched: Vec<Watched> = Vec::new();
    let mut watch_at = Instant::now();
    loop {
        let next = match (waiting.is_empty(), watched.is_empty()) {
            (true, true) => disks.recv().map_err(|_| RecvTimeoutError::Disconnected),
            (true, false) => disks.recv_timeout(watch_at.saturating_duration_since(Instant::now())),
            (false, _) => disks.recv_timeout(LOOK_AGAIN),
        };
        match next {
            Ok(disk) => waiting.push(Waiting { disk, since: Instant::now(), said: None }),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        waiting.retain_mut(|waiting| {
            let is_over = waiting.step(ground);
            if is_over && !waiting.disk.state().removed {
                watched.push(Watched::new(Arc::clone(&waiting.disk)));
            }
            !is_over
        });
        if Instant::now() >= watch_at {
            watch_at = Instant::now() + WATCH_AGAIN;
            watched.retain_mut(|watched| !watched.step(&ground.sidecores));
        }
    }
}

impl Disks {
    /// Shows a disk: at once if its volume is on this node, else when the peer has described the
    /// volume. The peer must be known.
    ///
    /// # Errors
    /// Why a disk of this node cannot be served, and the way out; nothing of the disk is left.
    pub(super) fn show(&self, config: &DiskConfig, volume: Source) -> Result<Arc<Shown>, String> {
        let shown = Shown::new(config, volume);
        self.begin(&shown)?;
        Ok(shown)
    }

    /// The same for a disk that exists already.
    pub(super) fn begin(&self, shown: &Arc<Shown>) -> Result<(), String> {
        match &shown.volume {
            Source::Local(_) => shown.serve(&self.ground).map_err(|error| error.to_string())?,
            Source::Remote(volume) => {
                // A promise that does not hold is reported now, not when the volume's node answers.
                shown.remembered(&self.ground);
                self.ask_for(volume);
                self.give_to_waiter(shown);
            }
        }
        Ok(())
    }

    /// Gets everything ready to serve a disk in the place of another process: the description of
    /// its volume by a peer, and the state of its attachment.
    ///
    /// # Errors
    /// Why this process cannot go on with the disk.
    pub(super) fn adopt(
        &self,
        shown: &Shown,
        (described, standing): (Option<VolumeInfo>, Option<Standing>),
        served: ServedDevice<OwnedFd>,
    ) -> Result<(virtio::Adopted, Outside), AdoptError> {
        if let Source::Remote(volume) = &shown.volume {
            let described = described.ok_or(AdoptError::Missing("description of its volume"))?;
            volume.assume(sidecore::now_ns(), described);
        }
        let disk = shown.device(&self.ground);
        if !standing.is_none_or(|standing| disk.go_on(&standing)) {
            return Err(AdoptError::Missing("epoch that its attachment can have"));
        }
        let outside = Outside::of(&disk);
        Ok((virtio::adopt(shown.socket(), Box::new(disk), served)?, outside))
    }

    /// Serves a disk that was made ready by [`Self::adopt`].
    pub(super) fn go_on(&self, shown: &Arc<Shown>, adopted: virtio::Adopted, outside: Outside) {
        shown.state().keep(adopted.serve(), outside);
        if let Source::Remote(volume) = &shown.volume {
            self.ask_for(volume);
            self.give_to_waiter(shown);
        }
    }

    /// Has the thread serve the disk when its volume is known, and watch it.
    fn give_to_waiter(&self, shown: &Arc<Shown>) {
        if let Some((disks, _)) = &*self.waiter() {
            // The thread ends only after this sender is dropped.
            let _ = disks.send(Arc::clone(shown));
        }
    }

    /// Makes a sidecore ask the peer for the volume's description, until the peer answers.
    fn ask_for(&self, volume: &Arc<RemoteVolume>) {
        let volume = Arc::clone(volume);
        self.on_first(move |plane| {
            let known = plane.clients.describe(volume);
            assert!(known, "peers are made known before disks");
        });
    }

    /// Removes a disk. Bounded. `false` when its attachment could not be closed clean in time: its
    /// volume sees it as torn off.
    pub(super) fn remove(&self, shown: &Shown) -> bool {
        let closed = shown.take_away();
        if let Source::Remote(volume) = &shown.volume {
            let volume = Arc::clone(volume);
            self.on_first(move |plane| plane.clients.forget(&volume));
        }
        closed
    }

    /// Removes all disks at once: each drains for up to two seconds. A second call has no effect.
    pub(super) fn stop(&self, all: &[Arc<Shown>]) {
        let waiter = self.waiter().take();
        if let Some((disks, thread)) = waiter {
            drop(disks);
            if thread.join().is_err() {
                tracing::error!("the thread that waits for peers' volumes panicked");
            }
        }
        std::thread::scope(|scope| {
            for shown in all {
                scope.spawn(|| shown.take_away());
            }
        });
    }

    /// Runs `f` on the first sidecore's plane, which asks for descriptions.
    fn on_first(&self, f: impl FnOnce(&mut Plane) + Send + 'static) {
        // A sidecore that has stopped asks no peer; without an address there are no peers.
        let _ = self.ground.sidecores[0].call(move |local| {
            if let Some(plane) = local.services().get::<Plane>() {
                f(&mut plane.borrow_mut());
            }
        });
    }

    fn waiter(&self) -> MutexGuard<'_, Option<Waiter>> {
        self.waiter.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A disk that cannot be served yet.
struct Waiting {
    disk: Arc<Shown>,
    /// The time since when it waits, or at which its socket was last tried.
    since: Instant,
    /// The latest line in the log.
    said: Option<String>,
}

impl Waiting {
    /// Checks the disk: `true` when it is served. The log gets changes only.
    fn step(&mut self, ground: &Ground) -> bool {
        let disk = Arc::clone(&self.disk);
        let Source::Remote(remote) = &disk.volume else { return true };
        let (removed, parked, served) = {
            let state = disk.state();
            (state.removed, state.parked, state.server.is_some())
        };
        if removed || parked {
            return removed;
        }
        if served {
            // Another process has served it until now.
            return true;
        }
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
        match disk.serve(ground) {
            Ok(()) => {
                let socket = disk.config.socket.display();
                let state = disk.state();
                if state.removed || state.parked {
                    return state.removed;
                }
                drop(state);
                tracing::info!(disk = name, %volume, %socket, "the disk is ready");
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

    /// Whether this differs from the latest line; remembers it.
    fn is_news(&mut self, why: &Option<String>) -> bool {
        let news = why.is_some() && *why != self.said;
        if news {
            self.said.clone_from(why);
        }
        news
    }
}

/// Waits until the sidecores have let go of a disk whose device is gone. Then this caller is the
/// only holder of the disk's common state, and its attachment is closed. `false` when that takes
/// too long.
fn wait_until_closed(core: Arc<DiskCore>) -> bool {
    let until = Instant::now() + CLOSE_TIME_MAX;
    while Arc::strong_count(&core) > 1 {
        if Instant::now() >= until {
            tracing::warn!(
                disk = core.name(),
                "its attachment could not be closed in time; its volume will see it as torn off"
            );
            return false;
        }
        std::thread::sleep(CLOSED_LOOK_AGAIN);
    }
    true
}
