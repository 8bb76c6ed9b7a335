//! The disks of a node: each gets its socket as soon as its volume is known, and can be removed at
//! any time.
//!
//! A volume of this node is known at once, and the caller hears of a fault of its disk. A peer's
//! volume is known when the peer has described it. One thread waits for all such volumes, and then
//! watches whether they answer.

pub(crate) mod cache;
pub(crate) mod change;
pub(crate) mod hand_over;
pub(crate) mod peers;
pub(crate) mod report;
pub(crate) mod shown;
pub(crate) mod start;
pub(crate) mod steer;
pub(crate) mod steerer;
mod watch;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use block::attachment::AttachmentSnapshot;
use block::{Plane, RemoteVolume};
use config::DiskConfig;
use parking_lot::{Mutex, MutexGuard};
use sessions::LinkedSidecore;
use virtio::AdoptError;
use virtio::hand_over::ServedDevice;
use volume::VolumeInfo;

use self::shown::{DiskSidecores, DiskView, DiskVolume, ServedDisk};
use self::watch::{WATCH_AGAIN, WatchedDisk};
use super::error::StartError;
use super::pools::PoolStock;
use super::volumes::OwnDisks;

/// How often the thread checks whether a peer has described its volume: soon enough for people. It
/// ends when all have.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// How long a disk waits before the log says for what: both nodes of a pair are often started
/// together.
const WAIT_QUIETLY: Duration = Duration::from_secs(1);

/// How often a socket that cannot be made is tried again.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// The thread that waits for volumes, and the channel that gives it disks.
type Waiter = (Sender<Arc<ServedDisk>>, JoinHandle<()>);

/// Shows disks and removes them.
#[derive(Debug)]
pub(crate) struct Disks {
    ground: DiskSidecores,
    /// The thread that waits for peers' volumes; dropping the channel ends it.
    waiter: Mutex<Option<Waiter>>,
}

/// Starts the parts that disks share, without a disk. Queues start on the first `active` sidecores.
///
/// # Errors
/// When the system refuses a thread.
pub(crate) fn start(
    cores: &[LinkedSidecore],
    active: &Arc<AtomicUsize>,
    (own_disks, stock): (OwnDisks, Arc<PoolStock>),
) -> Result<Disks, StartError> {
    let sidecores: Vec<_> = cores.iter().map(|core| core.sidecore.clone()).collect();
    let ground = DiskSidecores { sidecores, active: Arc::clone(active), own_disks, stock };
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
fn wait_for(disks: &Receiver<Arc<ServedDisk>>, ground: &DiskSidecores) {
    let mut waiting: Vec<WaitingDisk> = Vec::new();
    let mut watched: Vec<WatchedDisk> = Vec::new();
    let mut watch_at = Instant::now();
    loop {
        let next = match (waiting.is_empty(), watched.is_empty()) {
            (true, true) => disks.recv().map_err(|_| RecvTimeoutError::Disconnected),
            (true, false) => disks.recv_timeout(watch_at.saturating_duration_since(Instant::now())),
            (false, _) => disks.recv_timeout(LOOK_AGAIN),
        };
        match next {
            Ok(disk) => waiting.push(WaitingDisk { disk, since: Instant::now(), said: None }),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        waiting.retain_mut(|waiting| {
            let is_over = waiting.step(ground);
            if is_over && !waiting.disk.state().removed {
                watched.push(WatchedDisk::new(Arc::clone(&waiting.disk)));
            }
            !is_over
        });
        if Instant::now() >= watch_at {
            watch_at = Instant::now() + WATCH_AGAIN;
            watched.retain_mut(|watched| !watched.step(ground));
        }
    }
}

impl Disks {
    /// Shows a disk: at once if its volume is on this node, else when the peer has described the
    /// volume. The peer must be known.
    ///
    /// # Errors
    /// Why a disk of this node cannot be served, and the way out; nothing of the disk is left.
    pub(crate) fn show(
        &self,
        config: &DiskConfig,
        volume: DiskVolume,
    ) -> Result<Arc<ServedDisk>, String> {
        let shown = ServedDisk::new(config, volume);
        self.begin(&shown)?;
        Ok(shown)
    }

    /// The same for a disk that exists already.
    pub(crate) fn begin(&self, shown: &Arc<ServedDisk>) -> Result<(), String> {
        match &shown.volume {
            DiskVolume::Local(_) => shown.serve(&self.ground).map_err(|error| error.to_string())?,
            DiskVolume::Remote(volume) => {
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
    pub(crate) fn adopt(
        &self,
        shown: &ServedDisk,
        (described, standing): (Option<VolumeInfo>, Option<AttachmentSnapshot>),
        served: ServedDevice<OwnedFd>,
    ) -> Result<(virtio::Adopted, DiskView), AdoptError> {
        if let DiskVolume::Remote(volume) = &shown.volume {
            let described = described.ok_or(AdoptError::Missing("description of its volume"))?;
            volume.assume(sidecore::now_ns(), described);
        }
        shown.have_cache(&self.ground);
        if shown.why_not_ready().is_some() {
            return Err(AdoptError::Missing("record of the writes that only this node has"));
        }
        let disk = shown.device(&self.ground);
        if !standing.is_none_or(|standing| disk.go_on(&standing)) {
            return Err(AdoptError::Missing("epoch that its attachment can have"));
        }
        let outside = DiskView::of(&disk);
        Ok((virtio::adopt(shown.socket(), Box::new(disk), served)?, outside))
    }

    /// Serves a disk that was made ready by [`Self::adopt`].
    pub(crate) fn go_on(
        &self,
        shown: &Arc<ServedDisk>,
        adopted: virtio::Adopted,
        outside: DiskView,
    ) {
        shown.state().keep(adopted.serve(), outside);
        if let DiskVolume::Remote(volume) = &shown.volume {
            self.ask_for(volume);
            self.give_to_waiter(shown);
        }
    }

    /// Has the thread serve the disk when its volume is known, and watch it.
    fn give_to_waiter(&self, shown: &Arc<ServedDisk>) {
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

    /// Removes a disk. Bounded. Gives notes: its attachment could not be closed clean in time, so
    /// that its volume sees it as torn off; or something of it is left in a pool.
    pub(crate) fn remove(&self, shown: &ServedDisk) -> Vec<String> {
        let closed = shown.take_away();
        let (name, volume) = (&shown.config.name, shown.volume_ref());
        let mut notes = Vec::new();
        if !closed {
            notes.push(format!(
                "disk {name:?} was removed, but its attachment could not be closed in time: its \
                 volume {volume} takes it for broken off"
            ));
        }
        if let Some(slot) = &shown.cache {
            let pools = self.ground.stock.pools();
            if let Err(why) = slot.set(None, pools, &self.ground.sidecores) {
                tracing::warn!(disk = name, why, "a cache is left in its pool");
                notes.push(format!("disk {name:?}: {why}"));
            }
        }
        if let DiskVolume::Remote(volume) = &shown.volume {
            let volume = Arc::clone(volume);
            self.on_first(move |plane| plane.clients.forget(&volume));
        }
        notes
    }

    /// Removes all disks at once: each drains for up to two seconds. A second call has no effect.
    pub(crate) fn stop(&self, all: &[Arc<ServedDisk>]) {
        let waiter = self.waiter().take();
        if let Some((disks, thread)) = waiter {
            drop(disks);
            if thread.join().is_err() {
                tracing::error!("the thread that waits for peers' volumes panicked");
            }
        }
        std::thread::scope(|scope| {
            for shown in all {
                scope.spawn(|| {
                    shown.take_away();
                    shown.save_cache();
                    shown.tell_kept();
                });
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
        self.waiter.lock()
    }
}

/// A disk that cannot be served yet.
struct WaitingDisk {
    disk: Arc<ServedDisk>,
    /// The time since when it waits, or at which its socket was last tried.
    since: Instant,
    /// The latest line in the log.
    said: Option<String>,
}

impl WaitingDisk {
    /// Checks the disk: `true` when it is served. The log gets changes only.
    fn step(&mut self, ground: &DiskSidecores) -> bool {
        let disk = Arc::clone(&self.disk);
        let DiskVolume::Remote(remote) = &disk.volume else { return true };
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
        let (name, volume) = (&disk.config.name, disk.volume_ref());
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
        disk.have_cache(ground);
        if let Some(why) = disk.why_not_ready() {
            let why = Some(why);
            if self.is_news(&why) {
                tracing::error!(
                    disk = name,
                    why,
                    "the disk cannot be served; the node keeps trying"
                );
            }
            disk.state().refused = why;
            return false;
        }
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
                    tracing::error!(disk = name, %error,
                        "the disk cannot be served; the node keeps trying");
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
