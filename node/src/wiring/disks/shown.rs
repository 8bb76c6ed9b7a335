//! A disk that is shown, or waits for its volume.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use block::attachment::Remembered;
use block::disk::{Disk, DiskCore, DiskOptions, Placement};
use block::{Attach, LocalVolume, RemoteVolume};
use cache::CacheSlot;
use config::{Config, DiskConfig, Role, VolumeRef, WhenLost};
use parking_lot::{Mutex, MutexGuard};
use peer::AttachmentSecret;
use sessions::{ObjectError, key_files};
use sidecore::Sidecore;
use virtio::{DeviceServer, Parking, ServerState, Socket};

use crate::wiring::pools::PoolStock;
use crate::wiring::volumes::OwnDisks;

/// How long attachments may take to close when their disks are taken away: a sync of each volume
/// and a round trip. A peer that is not there must not hold that up.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(4);

/// How often closing attachments are checked.
const CLOSED_LOOK_AGAIN: Duration = Duration::from_millis(2);

/// Numbers for disks; never used twice in a process.
static NUMBER_NEXT: AtomicU64 = AtomicU64::new(0);

/// A disk, and its state.
#[derive(Debug)]
pub(crate) struct ServedDisk {
    /// Tells the disk from an earlier disk of the same name.
    pub(crate) number: u64,
    /// As it began: its peers now are in [`Self::volume_ref`].
    pub(crate) config: DiskConfig,
    pub(crate) volume: DiskVolume,
    /// For a peer's volume: its cache, wanted or there.
    pub(crate) cache: Option<CacheSlot>,
    state: Mutex<ServedDiskState>,
    /// The reason, if this node cannot remember how it holds the volume.
    forgets: Mutex<Option<String>>,
    /// Whether its attachment was closed when the disk was removed. Held until then.
    taken: Mutex<Option<bool>>,
}

/// The volume behind a disk.
#[derive(Clone, Debug)]
pub(crate) enum DiskVolume {
    /// A volume of this node.
    Local(Arc<LocalVolume>),
    /// A volume of a peer.
    Remote(Arc<RemoteVolume>),
}

/// The key that proves whose attachment a disk is.
///
/// # Errors
/// When its file is not a sound key file.
pub(crate) fn attachment_key(
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

impl DiskVolume {
    /// Its size, once known.
    pub(crate) fn size_bytes(&self) -> Option<u64> {
        match self {
            Self::Local(volume) => Some(volume.info().size_bytes),
            Self::Remote(volume) => volume.described().map(|info| info.size_bytes),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct ServedDiskState {
    pub(crate) server: Option<DeviceServer>,
    pub(crate) outside: Option<DiskView>,
    /// Why its socket could not be made; the thread tries again.
    pub(crate) refused: Option<String>,
    /// The disk was removed: it is not served any more, even if other threads still hold it.
    pub(crate) removed: bool,
    /// The node is drained: new front ends are refused.
    pub(crate) turns_away: bool,
    /// Another process may go on with the disk: it is not served meanwhile.
    pub(crate) parked: bool,
}

impl ServedDiskState {
    pub(crate) fn keep(&mut self, server: DeviceServer, outside: DiskView) {
        server.set_turning_away(self.turns_away);
        let (server, outside) = (Some(server), Some(outside));
        *self = Self { server, outside, turns_away: self.turns_away, ..Self::default() };
    }
}

/// The parts of a disk that its server does not own.
#[derive(Clone, Debug)]
pub(crate) struct DiskView {
    pub(crate) core: Arc<DiskCore>,
    pub(crate) placement: Arc<Placement>,
}

impl DiskView {
    pub(crate) fn of(disk: &Disk) -> Self {
        Self { core: disk.core(), placement: disk.placement() }
    }
}

/// A disk for the status.
#[derive(Debug)]
pub(crate) struct DiskSnapshot {
    pub(crate) server: Option<ServerState>,
    pub(crate) core: Option<Arc<DiskCore>>,
    pub(crate) placement: Option<Arc<Placement>>,
    pub(crate) refused: Option<String>,
    /// It is being removed.
    pub(crate) leaves: bool,
    /// The reason, if this node cannot remember how it holds the volume.
    pub(crate) forgets: Option<String>,
    /// The process of the connected front end.
    pub(crate) front_end: Option<u32>,
    /// Why the last front end was dropped, if it was.
    pub(crate) last_drop: Option<String>,
    /// Front ends that came while new ones were refused.
    pub(crate) turned_away: u64,
    /// Front ends that were dropped because signals to them cost too much.
    pub(crate) too_costly: u64,
}

impl ServedDisk {
    pub(crate) fn new(config: &DiskConfig, volume: DiskVolume) -> Arc<Self> {
        let number = NUMBER_NEXT.fetch_add(1, Relaxed);
        let (state, forgets, taken) = (Mutex::default(), Mutex::default(), Mutex::default());
        let cache = match &volume {
            DiskVolume::Local(_) => None,
            DiskVolume::Remote(remote) => {
                let (volume, wanted) = (config.volume.kept_as(), config.cache.clone());
                let of = (volume.as_str(), config.attachment.as_str());
                Some(CacheSlot::new(remote, &config.name, of, wanted))
            }
        };
        Arc::new(Self { number, config: config.clone(), volume, cache, state, forgets, taken })
    }

    /// The volume as the guest's requests find it.
    fn attached_volume(&self) -> Arc<dyn Attach> {
        match (&self.volume, &self.cache) {
            (_, Some(slot)) => slot.attached(),
            (DiskVolume::Local(volume), None) => Arc::clone(volume) as Arc<dyn Attach>,
            (DiskVolume::Remote(volume), None) => Arc::clone(volume) as Arc<dyn Attach>,
        }
    }

    /// The volume as the disk names it, with the peers that may serve it now.
    pub(crate) fn volume_ref(&self) -> VolumeRef {
        let mut volume = self.config.volume.clone();
        if let DiskVolume::Remote(remote) = &self.volume {
            volume.peers = remote.peers();
        }
        volume
    }

    /// Gives the disk the cache that it should have.
    pub(crate) fn have_cache(&self, ground: &DiskSidecores) {
        if let Some(slot) = &self.cache {
            let DiskConfig { volume, attachment, .. } = &self.config;
            slot.note_rounds_in(|| ground.own_disks.rounds(&volume.kept_as(), attachment));
            slot.have(ground.stock.pools());
        }
    }

    /// Why the disk must not be served yet, by its cache.
    pub(crate) fn why_not_ready(&self) -> Option<String> {
        self.cache.as_ref().and_then(CacheSlot::why_not_ready)
    }

    /// Whether the writes of a guest that has gone are being written back.
    pub(crate) fn is_draining(&self) -> bool {
        self.cache.as_ref().is_some_and(CacheSlot::is_draining)
    }

    /// Writes of the disk that its volume has not.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.cache.as_ref().map_or(0, CacheSlot::dirty_bytes)
    }

    /// Logs which writes of the disk its volume has not, at the end of the node.
    pub(crate) fn tell_kept(&self) {
        if let Some(kept) = self.cache.as_ref().and_then(CacheSlot::kept) {
            tracing::warn!(
                disk = self.config.name,
                kept,
                "the node ends, and the disk's volume has not got all writes: they stay in this \
                 node's pool; start the node again"
            );
        }
    }

    /// Writes down what the disk's cache has.
    pub(crate) fn save_cache(&self) {
        self.cache.iter().for_each(CacheSlot::save);
    }

    /// The disk's present state.
    pub(crate) fn look(&self) -> DiskSnapshot {
        let state = self.state();
        DiskSnapshot {
            server: state.server.as_ref().map(DeviceServer::state),
            core: state.outside.as_ref().map(|outside| Arc::clone(&outside.core)),
            placement: state.outside.as_ref().map(|outside| Arc::clone(&outside.placement)),
            refused: state.refused.clone(),
            leaves: state.removed,
            forgets: self.forgets.lock().clone(),
            front_end: state.server.as_ref().and_then(DeviceServer::front_end),
            last_drop: state.server.as_ref().and_then(DeviceServer::last_drop),
            turned_away: state.server.as_ref().map_or(0, DeviceServer::turned_away),
            too_costly: state.server.as_ref().map_or(0, DeviceServer::too_costly),
        }
    }

    /// Sets whether new front ends are refused from now on.
    pub(crate) fn set_turning_away(&self, turns_away: bool) {
        let mut state = self.state();
        state.turns_away = turns_away;
        if let Some(server) = &state.server {
            server.set_turning_away(turns_away);
        }
    }

    /// Makes its server stop; see [`DeviceServer::begin_park`]. `None` for a disk that is not
    /// served: it will not be served before [`Self::unpark`].
    pub(crate) fn begin_park(&self, drain: Duration) -> Option<Parking> {
        let mut state = self.state();
        state.parked = true;
        state.server.as_ref().map(|server| server.begin_park(drain))
    }

    pub(crate) fn unpark(&self) {
        self.state().parked = false;
    }

    /// Makes the socket and serves the disk, unless it was removed meanwhile.
    pub(crate) fn serve(&self, ground: &DiskSidecores) -> Result<(), virtio::SocketError> {
        // The lock is held while the socket is made, so that a thread that removes the disk removes
        // the socket, too.
        let mut state = self.state();
        if state.removed || state.parked {
            return Ok(());
        }
        let disk = self.device(ground);
        let outside = DiskView::of(&disk);
        let server = virtio::serve(self.socket(), Box::new(disk))?;
        state.keep(server, outside);
        Ok(())
    }

    pub(crate) fn socket(&self) -> Socket {
        let path = self.config.socket.clone();
        match self.config.role {
            Role::Listen => Socket::Listen(path, self.config.access),
            Role::Connect => Socket::Connect(path),
        }
    }

    pub(crate) fn device(&self, ground: &DiskSidecores) -> Disk {
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
        Disk::new(options, self.attached_volume(), ground.sidecores.clone())
    }

    /// The record of how this node held the volume. Without one the disk is still served; log and
    /// status say which promise does not hold.
    pub(crate) fn remembered(&self, ground: &DiskSidecores) -> Option<Arc<Remembered>> {
        let DiskConfig { name, volume, attachment, .. } = &self.config;
        let (remembered, forgets) = match ground.own_disks.remembered(&volume.kept_as(), attachment)
        {
            Ok(remembered) => (Some(remembered), None),
            Err(why) => (None, Some(why)),
        };
        let mut told = self.forgets.lock();
        if let Some(why) = &forgets
            && *told != forgets
        {
            tracing::warn!(disk = name, "{why}");
        }
        *told = forgets;
        remembered
    }

    /// Whether the disk is being removed, or was.
    pub(crate) fn is_leaving(&self) -> bool {
        self.state().removed
    }

    /// Removes the disk: queues drain, its socket goes, its attachment is closed. Bounded. `false`
    /// when the attachment could not be closed clean in time. A second caller waits for the first.
    pub(crate) fn take_away(&self) -> bool {
        let mut taken = self.taken.lock();
        *taken.get_or_insert_with(|| self.take_away_once())
    }

    fn take_away_once(&self) -> bool {
        let ServedDiskState { server, outside, .. } = std::mem::replace(
            &mut *self.state(),
            ServedDiskState { removed: true, ..ServedDiskState::default() },
        );
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

    pub(crate) fn state(&self) -> MutexGuard<'_, ServedDiskState> {
        self.state.lock()
    }
}

/// The parts of the node that serve disks.
#[derive(Clone, Debug)]
pub(crate) struct DiskSidecores {
    pub(crate) sidecores: Vec<Sidecore>,
    /// The number of sidecores on which queues start, from the first.
    pub(crate) active: Arc<AtomicUsize>,
    /// The records of attachments.
    pub(crate) own_disks: OwnDisks,
    /// The pools that caches are in.
    pub(crate) stock: Arc<PoolStock>,
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
                "its attachment could not be closed in time; its volume takes it for broken off"
            );
            return false;
        }
        std::thread::sleep(CLOSED_LOOK_AGAIN);
    }
    true
}
