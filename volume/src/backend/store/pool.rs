//! A pool that is open.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rustix::rand::{GetRandomFlags, getrandom};
use sidecore::{CounterText, now_ns};
use store::block::BLOCK_BYTES;
use store::{
    Admission, CACHE_BLOCKS_MIN, ChangedBlocks, DedupOptions, PoolChange, PoolEngine, PoolError,
    PoolMoment, PoolOptions, PoolStatus, PoolVolume, PoolVolumeKind, RequestTag, ScrubPace,
    ScrubStatus, SealEntropy, VolumeId, WrappingKey,
};
use zeroize::Zeroizing;

use super::change::WatchedLeave;
use super::counts::PoolCounts;
use super::create::{self, PoolPlan};
use super::devices::PoolFiles;
use super::drive::{Drive, LaneTag};
use super::error::StorePoolError;
use super::failure::{VolumeSigns, reason_of_full};
use super::ring::{RingDevices, StoreRing};
use super::signs::PoolSigns;
use super::thread as driver;
use crate::backend::file::open::LOCK_TIMEOUT;
use crate::size::Size;
use crate::stage::VolumeKey;

/// How long a pool may take to complete its last requests and write its last checkpoint.
const STOP_TIME_MAX: Duration = Duration::from_secs(30);

/// How long a request about a scrub waits for the checkpoint that has it. Without room for one the
/// scrub does as it was asked to, until the pool is closed.
const SCRUB_SAVE_TIME_MAX: Duration = Duration::from_secs(10);

/// How long a change waits for a pool that takes none, because it has no space for a row.
const CHANGE_TIME_MAX: Duration = Duration::from_secs(30);

/// How often a control thread looks for the end of its request: far below the time of a sync.
pub(super) const LOOK_AGAIN: Duration = Duration::from_micros(200);

/// How soon the log says again that reads find damaged blocks: an operator needs one line.
const DAMAGE_TOLD_AGAIN: Duration = Duration::from_secs(600);

/// Rounds of the pool's thread before others may have the lock.
const ROUNDS_MAX: u32 = 64;

/// How a pool is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreSettings {
    /// The most memory for pages of the map.
    pub memory_bytes: u64,
    /// The length of the log after which a checkpoint begins: it bounds the time of an opening.
    pub log_bytes: u64,
    /// The most memory for the search for blocks with the same content; `None`: none are looked
    /// for.
    pub dedup_bytes: Option<u64>,
}

impl Default for StoreSettings {
    fn default() -> Self {
        Self { memory_bytes: 64 << 20, log_bytes: 1 << 30, dedup_bytes: None }
    }
}

/// A pool of devices that is open: volumes are opened in it.
#[derive(Debug)]
pub struct StorePool {
    inside: Arc<PoolInside>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The state of a pool of which its thread logs the changes.
#[derive(Clone, Copy, Default)]
pub(super) struct PoolNews {
    is_full: bool,
    /// Damaged blocks that reads found since the pool was opened, as the log has said last.
    damaged_blocks: u64,
    damage_told: Option<Instant>,
}

impl PoolNews {
    /// Whether the log says now that reads have found so many damaged blocks. Write-back reads a
    /// damaged block again each second.
    fn tells_damage(&mut self, damaged_blocks: u64, now: Instant) -> bool {
        let is_early = self.damage_told.is_some_and(|told| now - told < DAMAGE_TOLD_AGAIN);
        let tells = damaged_blocks > self.damaged_blocks && !is_early;
        if tells {
            (self.damaged_blocks, self.damage_told) = (damaged_blocks, Some(now));
        }
        tells
    }
}

/// The state that the pool's thread and the channels share.
pub(super) struct PoolInside {
    name: String,
    /// The devices, for an opening after a stop.
    pub(super) paths: Mutex<Vec<PathBuf>>,
    settings: Mutex<StoreSettings>,
    uuid: [u8; 16],
    pub(super) direct: AtomicBool,
    pub(super) signs: Arc<PoolSigns>,
    drive: Mutex<Drive>,
    /// The ring's eventfd, once more.
    ring_event: OwnedFd,
    /// Rounds of the pool's thread.
    thread_rounds: AtomicU64,
    /// Numbers of control threads' requests.
    numbers: AtomicU32,
    /// When the pass of a scrub was looked at first, and its proved pages then.
    scrub_seen: Mutex<Option<(Instant, u64)>>,
    /// When the pool's thread saw first that the pool takes no writes; none while it takes them.
    full_since: Mutex<Option<Instant>>,
    /// Devices that leave.
    pub(super) leaves: Mutex<Vec<WatchedLeave>>,
    /// The sizes of volumes that were opened.
    sizes: Mutex<HashMap<VolumeId, Size>>,
    /// The keys of encrypted volumes, for an opening after [`StorePool::stop`].
    keys: Mutex<Vec<(VolumeId, WrappingKey)>>,
    /// The volumes that are told of a failure.
    volumes: Mutex<Vec<Weak<VolumeSigns>>>,
    /// Names of volumes into which a request receives a part of a stream at this moment.
    pub(super) receiving: Mutex<BTreeSet<String>>,
}

impl fmt::Debug for PoolInside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolInside").field("name", &self.name).finish_non_exhaustive()
    }
}

impl StorePool {
    /// Its counters.
    pub const COUNTERS: &'static [CounterText] = PoolCounts::DECLARED;

    /// Makes a pool: files are made and get all of their space, block devices are taken as they
    /// are.
    ///
    /// # Errors
    /// [`StorePoolError`] says what is wrong and the way out.
    pub fn create(plan: &PoolPlan) -> Result<(), StorePoolError> {
        create::create(plan)
    }

    /// Makes a file that will join a pool, with all of its space.
    ///
    /// # Errors
    /// [`StorePoolError`] says what is wrong and the way out.
    pub fn make_device(path: &Path, size_bytes: u64) -> Result<(), StorePoolError> {
        create::make_device(path, size_bytes)
    }

    /// Opens a pool: locks its devices, which may be named in any order, and reads its log. Waits
    /// for the locks, so this is for control threads only.
    ///
    /// # Errors
    /// [`StorePoolError`] says what is wrong and the way out.
    pub fn open(
        name: &str,
        paths: &[PathBuf],
        settings: StoreSettings,
        ring: StoreRing,
    ) -> Result<Arc<Self>, StorePoolError> {
        Self::open_within(name, paths, settings, ring, LOCK_TIMEOUT)
    }

    pub(super) fn open_within(
        name: &str,
        paths: &[PathBuf],
        settings: StoreSettings,
        mut ring: StoreRing,
        lock_timeout: Duration,
    ) -> Result<Arc<Self>, StorePoolError> {
        let system =
            |what| move |source| StorePoolError::System { path: name.into(), what, source };
        let mut files = PoolFiles::open(paths, lock_timeout)?;
        let devices = &mut RingDevices { files: &mut files, ring: &mut ring };
        let engine = open_engine(name, devices, settings)?;
        let signs = Arc::new(PoolSigns::new().map_err(system("make an eventfd"))?);
        let (uuid, direct) = (files.uuid, files.direct);
        let ring_event = ring.event().try_clone_to_owned().map_err(system("copy an eventfd"))?;
        let inside = Arc::new(PoolInside {
            name: name.to_owned(),
            paths: Mutex::new(paths.to_vec()),
            settings: Mutex::new(settings),
            uuid,
            direct: AtomicBool::new(direct),
            drive: Mutex::new(Drive::new(engine, files, ring, Arc::clone(&signs))),
            signs,
            ring_event,
            thread_rounds: AtomicU64::new(0),
            numbers: AtomicU32::new(0),
            scrub_seen: Mutex::default(),
            full_since: Mutex::default(),
            leaves: Mutex::default(),
            sizes: Mutex::default(),
            keys: Mutex::default(),
            volumes: Mutex::default(),
            receiving: Mutex::default(),
        });
        let pool = Self { inside: Arc::clone(&inside), thread: Mutex::new(None) };
        let started = thread::Builder::new()
            .name(format!("pool-{name}"))
            .spawn(move || driver::run(&inside))
            .map_err(system("start the pool's thread"))?;
        *pool.thread.lock() = Some(started);
        Ok(Arc::new(pool))
    }

    /// Its name on the node.
    pub fn name(&self) -> &str {
        &self.inside.name
    }

    /// Its UUID.
    pub fn uuid(&self) -> [u8; 16] {
        self.inside.uuid
    }

    /// Whether all of its devices are used around the page cache.
    pub fn is_direct(&self) -> bool {
        self.inside.direct.load(Relaxed)
    }

    /// How it is.
    pub fn status(&self) -> PoolStatus {
        self.inside.drive.lock().status()
    }

    /// How long it has taken no writes; none while it takes them.
    pub fn full_for(&self) -> Option<Duration> {
        self.inside.full_since.lock().map(|since| since.elapsed())
    }

    /// Its volumes and snapshots.
    pub fn volumes(&self) -> Vec<PoolVolume> {
        self.inside.drive.lock().volumes()
    }

    /// The last moment of a volume's history at a time, in nanoseconds since 1970, or before it.
    ///
    /// # Errors
    /// [`PoolError`]: the volume has no history, or none that reaches so far back.
    pub fn moment_at(&self, volume: VolumeId, at_ns: u64) -> Result<PoolMoment, PoolError> {
        self.inside.plan(|engine| engine.moment_at(volume, at_ns))
    }

    /// A moment of a volume's history by its number.
    pub fn moment(&self, id: VolumeId) -> Option<PoolVolume> {
        self.inside.lock_drive().engine()?.moment(id)
    }

    /// Gives its counters, by their names.
    pub fn counted(&self, put: &mut dyn FnMut(&str, u64)) {
        let rounds = [self.inside.signs.rounds(), self.inside.thread_rounds.load(Relaxed)];
        let enters = self.inside.drive.lock().ring().enters();
        let counts = PoolCounts::of(&self.status(), rounds, enters);
        counts.counted().for_each(|(name, value)| put(name, value));
    }

    /// Changes its volumes. The change is durable when this returns; waits for the devices, so this
    /// is for control threads only.
    ///
    /// # Errors
    /// [`PoolError`]: nothing was changed, unless a device has failed.
    pub fn change(&self, change: PoolChange) -> Result<VolumeId, PoolError> {
        let changed = self.inside.change(&change)?;
        self.inside.follow_sizes();
        Ok(changed)
    }

    /// Whether a change of the catalog is possible now.
    ///
    /// # Errors
    /// [`PoolError`]: why it is not.
    pub fn check(&self, change: &PoolChange) -> Result<(), PoolError> {
        self.inside.plan(|engine| engine.check(change).map(drop))
    }

    /// Makes an encrypted volume.
    ///
    /// # Errors
    /// [`PoolError`]: nothing was changed, unless a device has failed.
    pub fn create_sealed(
        &self,
        name: &str,
        blocks: u64,
        key: &VolumeKey,
    ) -> Result<VolumeId, PoolError> {
        let wrapping = key.wrapping();
        let [entropy] = entropy()?;
        let plan =
            |engine: &mut PoolEngine| Ok(engine.sealed_volume(name, blocks, &wrapping, &entropy));
        self.change(self.inside.plan(plan)?)
    }

    /// Gives it the key of an encrypted volume, which is kept until the pool is closed.
    ///
    /// # Errors
    /// [`PoolError`]: it is another volume's key.
    pub fn unlock(&self, id: VolumeId, key: &VolumeKey) -> Result<(), PoolError> {
        let wrapping = key.wrapping();
        self.inside.plan(|engine| engine.unlock(id, &wrapping))?;
        let mut keys = self.inside.keys.lock();
        keys.retain(|(known, _)| *known != id);
        keys.push((id, wrapping));
        Ok(())
    }

    /// Whether a key is that of an encrypted volume or snapshot.
    ///
    /// # Errors
    /// [`PoolError`]: it is another volume's key.
    pub fn check_key(&self, id: VolumeId, key: &VolumeKey) -> Result<(), PoolError> {
        let wrapping = key.wrapping();
        self.inside.plan(|engine| engine.unlock(id, &wrapping))
    }

    /// The volumes and snapshots that share the data key of an encrypted volume, itself among them.
    pub fn relatives(&self, id: VolumeId) -> Vec<VolumeId> {
        let all = self.volumes();
        let family = |it: &PoolVolume| it.seal.as_ref().map(|seal| seal.family);
        let of = all.iter().find(|it| it.id == id).and_then(family);
        let is_of = |it: &&PoolVolume| {
            of.is_some() && family(it) == of && it.kind != PoolVolumeKind::Removing
        };
        all.iter().filter(is_of).map(|it| it.id).collect()
    }

    /// Keeps the data keys of an encrypted volume under another key. All volumes and snapshots
    /// that share its data keys need the new key from then on.
    ///
    /// # Errors
    /// [`PoolError`]: the present key was not given, or a device has failed.
    pub fn change_key(&self, id: VolumeId, key: &VolumeKey) -> Result<(), PoolError> {
        let wrapping = key.wrapping();
        let entropy: [SealEntropy; 2] = entropy()?;
        self.change(self.inside.plan(|engine| engine.rewrapped(id, &wrapping, &entropy))?)?;
        // The other volumes of its family have the same data keys, and are open.
        let relatives = self.relatives(id);
        self.inside.keys.lock().retain(|(of, _)| !relatives.contains(of));
        self.unlock(id, key)
    }

    /// Gives an encrypted volume another data key. Its blocks are encrypted anew in the background.
    /// `key` is the key that it is kept under, now and then.
    ///
    /// # Errors
    /// [`PoolError`]: it is another volume's key, or blocks are still encrypted anew.
    pub fn change_data_key(&self, id: VolumeId, key: &VolumeKey) -> Result<(), PoolError> {
        let wrapping = key.wrapping();
        let [entropy] = entropy()?;
        self.change(self.inside.plan(|engine| engine.rekeyed(id, &wrapping, &entropy))?)?;
        Ok(())
    }

    /// A part of the difference of two snapshots, from the block `start` on; without `from`, of all
    /// that the snapshot has. Waits for the devices, so this is for control threads only.
    ///
    /// # Errors
    /// [`PoolError`]: they are no snapshots, or the map cannot be read.
    pub fn changed(
        &self,
        from: Option<VolumeId>,
        to: VolumeId,
        start: u64,
    ) -> Result<ChangedBlocks, PoolError> {
        let (number, ended) = self.inside.ask(|engine, tag| engine.changed(tag, from, to, start));
        ended?;
        let mut drive = self.inside.lock_drive();
        let found = drive.engine().and_then(|engine| engine.take_changed(tag_of(number)));
        found.ok_or(PoolError::Closed)
    }

    /// Has the pool look for blocks with the same content from here on, with so much memory, or not
    /// any more. Blocks that share their content stay as they are.
    pub fn set_dedup(&self, dedup_bytes: Option<u64>) {
        let dedup = {
            let mut settings = self.inside.settings.lock();
            settings.dedup_bytes = dedup_bytes;
            settings.dedup()
        };
        let mut drive = self.inside.lock_drive();
        drive.engine().into_iter().for_each(|engine| engine.set_dedup(dedup));
        // The pool's thread hears of the work by this round.
        drive.round(now_ns(), None);
    }

    /// Begins to read and prove all blocks at this pace, or has a pass that is under way go on, at
    /// this pace or its own.
    pub fn scrub(&self, pace: Option<ScrubPace>) {
        self.change_scrub(|engine| engine.scrub(pace));
    }

    /// Has the reading rest until [`Self::scrub`].
    pub fn pause_scrub(&self) {
        self.change_scrub(PoolEngine::pause_scrub);
    }

    /// Ends the reading before it is through.
    pub fn stop_scrub(&self) {
        self.change_scrub(PoolEngine::stop_scrub);
    }

    /// Changes the pass, and waits for the checkpoint that has it, for a bounded time.
    fn change_scrub(&self, change: impl FnMut(&mut PoolEngine)) {
        // The time that is left is estimated anew.
        *self.inside.scrub_seen.lock() = None;
        let mut drive = self.inside.lock_drive();
        drive.engine().into_iter().for_each(change);
        let until = Instant::now() + SCRUB_SAVE_TIME_MAX;
        loop {
            // The pool's thread hears of the work by this round.
            drive.round(now_ns(), None);
            if drive.engine().is_none_or(|engine| engine.is_scrub_saved()) || Instant::now() > until
            {
                return;
            }
            drop(drive);
            thread::sleep(Duration::from_millis(1));
            drive = self.inside.lock_drive();
        }
    }

    /// The time that the rest of a pass takes, by the pages that were proved since the first look
    /// at it.
    pub fn scrub_left(&self, status: &ScrubStatus) -> Option<Duration> {
        let mut seen = self.inside.scrub_seen.lock();
        if !status.is_running || status.is_paused {
            *seen = None;
            return None;
        }
        let (since, before) = *seen.get_or_insert((Instant::now(), status.checked_blocks));
        let checked = status.checked_blocks.checked_sub(before).filter(|checked| *checked > 0)?;
        let left = status.total_blocks.saturating_sub(status.checked_blocks);
        Some(since.elapsed().mul_f64(left as f64 / checked as f64))
    }

    /// Stops it for a successor or another opening: requests that were taken are completed, a last
    /// checkpoint is written, and the devices are unlocked. Requests of channels wait until
    /// [`Self::go_on`].
    ///
    /// # Errors
    /// When the devices do not complete in time. Then it takes no requests either.
    pub fn stop(&self) -> Result<(), String> {
        self.inside.stop().map_err(|error| error.to_string())
    }

    /// Goes on after [`Self::stop`].
    ///
    /// # Errors
    /// As [`Self::open`], also when a device has failed before: acknowledged writes may be lost,
    /// so its volumes must be opened anew as well.
    pub fn go_on(&self) -> Result<(), StorePoolError> {
        self.inside.go_on()
    }

    /// Closes it for good, with a last checkpoint. Requests are errors from then on. Without this
    /// call, as after a crash, the next opening reads the log instead.
    pub fn close(&self) {
        if let Err(error) = self.inside.stop() {
            tracing::error!(pool = self.name(), %error, "the pool is closed without a checkpoint; \
                its next opening reads the log and loses nothing that was flushed");
        }
        self.end();
    }

    fn end(&self) {
        self.inside.signs.set_closed();
        if let Some(thread) = self.thread.lock().take() {
            // The thread has no code that panics for others' mistakes.
            let _ = thread.join();
        }
    }

    pub(super) fn inside(&self) -> &Arc<PoolInside> {
        &self.inside
    }
}

impl Drop for StorePool {
    fn drop(&mut self) {
        self.end();
    }
}

/// The engine's word for a control thread's request.
fn tag_of(number: u32) -> RequestTag {
    LaneTag::control(number).to_tag()
}

/// Random bytes for new data keys.
fn entropy<const N: usize>() -> Result<[SealEntropy; N], PoolError> {
    let mut all = Vec::with_capacity(N);
    for _ in 0..N {
        let mut bytes = Zeroizing::new([0; SealEntropy::BYTES]);
        getrandom(&mut bytes[..], GetRandomFlags::empty()).map_err(|error| {
            PoolError::Invalid(format!("cannot draw random numbers for a key: {error}"))
        })?;
        all.push(SealEntropy::new(bytes));
    }
    Ok(all.try_into().expect("so many were drawn"))
}

fn open_engine(
    name: &str,
    devices: &mut RingDevices<'_>,
    settings: StoreSettings,
) -> Result<PoolEngine, StorePoolError> {
    let mut salt = [0; 16];
    getrandom(&mut salt, GetRandomFlags::empty()).map_err(|error| StorePoolError::System {
        path: name.into(),
        what: "get random numbers",
        r#source: error.into(),
    })?;
    let block_bytes = BLOCK_BYTES as u64;
    let cache_blocks = usize::try_from(settings.memory_bytes / block_bytes).unwrap_or(usize::MAX);
    let options = PoolOptions {
        cache_blocks: cache_blocks.max(CACHE_BLOCKS_MIN),
        log_blocks_max: (settings.log_bytes / block_bytes).max(1),
    };
    let sizes_blocks = devices.files.sizes_blocks();
    let engine =
        PoolEngine::open(devices, &sizes_blocks, options, u128::from_le_bytes(salt), now_ns());
    let mut engine =
        engine.map_err(|error| StorePoolError::Engine { pool: name.to_owned(), error })?;
    engine.set_dedup(settings.dedup());
    Ok(engine)
}

impl StoreSettings {
    fn dedup(&self) -> Option<DedupOptions> {
        self.dedup_bytes.map(|bytes| DedupOptions {
            memory_bytes: usize::try_from(bytes).unwrap_or(usize::MAX),
            hash_bits: u64::BITS,
        })
    }
}

impl PoolInside {
    /// The lock, if no other thread has it.
    pub(super) fn try_drive(&self) -> Option<MutexGuard<'_, Drive>> {
        self.drive.try_lock()
    }

    /// The lock, for control threads.
    pub(super) fn lock_drive(&self) -> MutexGuard<'_, Drive> {
        self.drive.lock()
    }

    pub(super) fn ring_event(&self) -> BorrowedFd<'_> {
        self.ring_event.as_fd()
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn uuid(&self) -> &[u8; 16] {
        &self.uuid
    }

    /// Some rounds of the pool's thread. Gives whether it should go on at once; if not, the devices
    /// signal their answers.
    pub(super) fn work(&self) -> bool {
        let Some(mut drive) = self.try_drive() else { return true };
        drive.stop_signals();
        for _ in 0..ROUNDS_MAX {
            self.thread_rounds.fetch_add(1, Relaxed);
            if drive.round(now_ns(), None) {
                continue;
            }
            drive.ask_for_signals();
            return drive.round(now_ns(), None) || drive.has_own_work();
        }
        true
    }

    /// Logs that the pool has become full, or has space again, and finds a failure of which no
    /// request tells. Gives whether the pool is full.
    pub(super) fn tell_news(&self, before: PoolNews) -> PoolNews {
        let Some(drive) = self.try_drive() else { return before };
        let status = drive.status();
        drop(drive);
        self.let_devices_go();
        self.watch_leaves();
        if let Some(error) = &status.failed
            && !self.signs.has_failed()
        {
            tracing::error!(
                pool = self.name,
                error,
                "a device of the pool failed; the pool takes \
                no changes until it is opened again: check the device, and restart the node"
            );
            self.signs.set_failed();
        }
        let pool = &self.name;
        let mut now = PoolNews { is_full: status.is_full, ..before };
        if now.tells_damage(status.counters.damaged_blocks, Instant::now()) {
            tracing::error!(
                pool,
                damaged_blocks = now.damaged_blocks,
                "reads found damaged blocks; `vrio pool scrub` names all that are damaged"
            );
        }
        match (before.is_full, now.is_full) {
            (false, true) => {
                let reason = reason_of_full(&status);
                tracing::warn!(pool, reason, "the pool takes no writes");
                *self.full_since.lock() = Some(Instant::now());
            }
            (true, false) => {
                tracing::info!(pool, "the pool has space again");
                *self.full_since.lock() = None;
            }
            _ => {}
        }
        now
    }

    /// Tells the volumes of a device that has failed.
    pub(super) fn note_failure(&self) {
        if self.signs.has_failed() {
            let volumes: Vec<_> = self.volumes.lock().drain(..).collect();
            volumes.into_iter().filter_map(|it| it.upgrade()).for_each(|it| it.fail(&self.name));
        }
    }

    /// The size of a volume, which all that open it share; `None` when it is not there.
    pub(super) fn size_of(&self, id: VolumeId) -> Option<(PoolVolume, Size)> {
        let volume = self.lock_drive().volumes().into_iter().find(|volume| volume.id == id)?;
        let bytes = volume.blocks * BLOCK_BYTES as u64;
        let size = self.sizes.lock().entry(id).or_insert_with(|| Size::new(bytes)).clone();
        size.set(bytes);
        Some((volume, size))
    }

    /// A volume that is told when a device fails.
    pub(super) fn watch(&self, signs: &Arc<VolumeSigns>) {
        let mut volumes = self.volumes.lock();
        volumes.retain(|volume| volume.strong_count() > 0);
        volumes.push(Arc::downgrade(signs));
    }

    fn follow_sizes(&self) {
        let volumes = self.lock_drive().volumes();
        let mut sizes = self.sizes.lock();
        sizes.retain(|id, _| volumes.iter().any(|volume| volume.id == *id));
        for volume in volumes {
            if let Some(size) = sizes.get(&volume.id) {
                size.set(volume.blocks * BLOCK_BYTES as u64);
            }
        }
    }

    /// Asks the engine for something that needs no device.
    fn plan<T>(
        &self,
        plan: impl FnOnce(&mut PoolEngine) -> Result<T, PoolError>,
    ) -> Result<T, PoolError> {
        let mut drive = self.lock_drive();
        let planned = drive.engine().map_or(Err(PoolError::Closed), plan);
        // The pool's thread hears of the work by this round.
        drive.round(now_ns(), None);
        planned
    }

    pub(super) fn change(&self, change: &PoolChange) -> Result<VolumeId, PoolError> {
        self.ask(|engine, tag| engine.change(tag, change.clone())).1
    }

    /// A request of a control thread: its number, and its end.
    pub(super) fn ask(
        &self,
        mut begin: impl FnMut(&mut PoolEngine, RequestTag) -> Admission,
    ) -> (u32, Result<VolumeId, PoolError>) {
        self.ask_drive(|drive, tag| drive.engine().map(|engine| begin(engine, tag)))
    }

    /// The same with the devices; `begin` gives nothing if the pool is stopped.
    pub(super) fn ask_drive(
        &self,
        mut begin: impl FnMut(&mut Drive, RequestTag) -> Option<Admission>,
    ) -> (u32, Result<VolumeId, PoolError>) {
        let number = self.numbers.fetch_add(1, Relaxed);
        let began = Instant::now();
        loop {
            let mut drive = self.lock_drive();
            match begin(&mut drive, tag_of(number)) {
                None => return (number, Err(PoolError::Closed)),
                Some(Admission::Taken) => break,
                Some(Admission::Busy) => {}
            }
            drive.round(now_ns(), None);
            drop(drive);
            if began.elapsed() >= CHANGE_TIME_MAX {
                let error = PoolError::Invalid(format!(
                    "the pool took no request within {} s: it has no space, or its devices are \
                     stuck; remove snapshots or volumes, or look at the devices",
                    CHANGE_TIME_MAX.as_secs()
                ));
                return (number, Err(error));
            }
            thread::sleep(LOOK_AGAIN);
        }
        loop {
            let mut drive = self.lock_drive();
            drive.round(now_ns(), None);
            if let Some(ended) = drive.take_changed(number) {
                return (number, ended);
            }
            drop(drive);
            thread::sleep(LOOK_AGAIN);
        }
    }

    fn stop(&self) -> Result<(), StorePoolError> {
        self.signs.set_stopped(true);
        let began = Instant::now();
        if let Some(engine) = self.lock_drive().engine() {
            engine.close();
        }
        loop {
            let mut drive = self.lock_drive();
            let moved = drive.round(now_ns(), None);
            if drive.has_closed() {
                drive.halt();
                return Ok(());
            }
            drop(drive);
            if began.elapsed() >= STOP_TIME_MAX {
                let (pool, waited_s) = (self.name.clone(), STOP_TIME_MAX.as_secs());
                return Err(StorePoolError::Stuck { pool, waited_s });
            }
            if !moved {
                thread::sleep(LOOK_AGAIN);
            }
        }
    }

    fn go_on(&self) -> Result<(), StorePoolError> {
        if self.signs.has_failed() {
            return Err(StorePoolError::Failed { pool: self.name.clone() });
        }
        if self.lock_drive().engine().is_some() {
            // It did not stop in time, and its engine takes no more requests.
            self.stop()?;
        }
        let paths = self.paths.lock().clone();
        let mut files = PoolFiles::open(&paths, LOCK_TIMEOUT)?;
        let mut drive = self.lock_drive();
        let devices = &mut RingDevices { files: &mut files, ring: drive.ring() };
        let mut engine = open_engine(&self.name, devices, *self.settings.lock())?;
        for (id, key) in &*self.keys.lock() {
            // A volume that was removed needs no key.
            if let Err(error) = engine.unlock(*id, key)
                && !matches!(error, PoolError::NoVolume(_))
            {
                tracing::error!(pool = self.name, volume = id.0, %error, "the volume stays locked");
            }
        }
        drive.resume(engine, files);
        drop(drive);
        self.signs.set_stopped(false);
        self.follow_sizes();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_is_found_damaged_each_second_is_told_once_in_a_while() {
        let (mut news, began) = (PoolNews::default(), Instant::now());
        assert!(!news.tells_damage(0, began));
        for second in 0..DAMAGE_TOLD_AGAIN.as_secs() {
            let is_told = news.tells_damage(second + 1, began + Duration::from_secs(second));
            assert_eq!(is_told, second == 0, "after {second} s");
        }
        let later = began + DAMAGE_TOLD_AGAIN;
        assert!(news.tells_damage(1000, later), "what was found meanwhile is told");
        assert!(!news.tells_damage(1000, later + DAMAGE_TOLD_AGAIN), "there is nothing new");
    }
}
