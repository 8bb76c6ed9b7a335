//! The cache of a disk as its node has it: wanted, and there or not. A disk gets its cache when its
//! volume is known and the pool is there, and works without one until then.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use api::status::{CacheStatus, WriteBackStatus};
use block::{Attach, RemoteVolume};
use parking_lot::Mutex;
use sidecore::{CounterText, Sidecore, now_ns};
use volume::VolumeInfo;
use volume::backend::store::{Pools, StorePool};
use volume::settings::show_size;

use crate::counters::{CacheCounters, DirtyCounters};
use crate::dirty::{
    Dirty, DirtyBounds, DirtyStore, GIVE_UP, OtherNote, RoundNotes, WriteBackVolume, as_written,
    attached, dirty_volume_name,
};
use crate::map::BLOCK_BYTES;
use crate::plug::{Cache, CachedVolume};
use crate::pool::{PoolStorage, cache_volume_name};

/// How long a change of a cache waits for the disk's channels, which let go of a cache when their
/// requests have ended.
const LET_GO_TIME_MAX: Duration = Duration::from_secs(5);

/// How often that is looked for.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// How soon a cache that could not be had is tried again.
const TRY_AGAIN: Duration = Duration::from_secs(10);

/// How much of a volume's content only this node may have, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteBackPlan {
    /// The most bytes.
    pub dirty_bytes: u64,
    /// When the oldest of them are sent at the latest.
    pub age_ns: u64,
}

/// A part of a pool of the node that keeps blocks of a disk's volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachePlan {
    /// The pool.
    pub pool: String,
    /// The space that it has in the pool.
    pub size_bytes: u64,
    /// Writes complete in the pool.
    pub write_back: Option<WriteBackPlan>,
}

impl fmt::Display for CachePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of pool {:?}", show_size(self.size_bytes), self.pool)?;
        match &self.write_back {
            None => Ok(()),
            Some(it) => write!(f, ", with write-back of {}", show_size(it.dirty_bytes)),
        }
    }
}

#[derive(Debug, Default)]
struct WantedCache {
    wanted: Option<CachePlan>,
    /// Why there is none yet.
    why: Option<String>,
    tried: Option<Instant>,
    /// No pool has writes of an earlier write-back that this disk would not find.
    nothing_left: bool,
}

/// See the module.
#[derive(Debug)]
pub struct CacheSlot {
    remote: Arc<RemoteVolume>,
    volume: Arc<CachedVolume>,
    /// The layer over `volume`, for a disk that begins with write-back.
    write_back: Option<Arc<WriteBackVolume>>,
    disk: String,
    /// The volume, and the volume and the attachment, by their names.
    remote_name: String,
    of: String,
    /// Where the numbers of rounds are kept.
    notes: OnceLock<Arc<RoundNotes>>,
    /// Held while the cache is made or taken away. `state` is not: the status looks at it.
    turn: Mutex<()>,
    state: Mutex<WantedCache>,
}

impl CacheSlot {
    /// The slot of a disk of a peer's volume, by the names of the volume and the attachment.
    pub fn new(
        remote: &Arc<RemoteVolume>,
        disk: &str,
        (remote_name, attachment): (&str, &str),
        wanted: Option<CachePlan>,
    ) -> Self {
        let volume = CachedVolume::new(Arc::clone(remote) as _);
        let write_back = wanted.as_ref().and_then(|it| it.write_back.as_ref());
        let over = || WriteBackVolume::new(Arc::clone(&volume) as _, Arc::clone(remote) as _);
        Self {
            remote: Arc::clone(remote),
            write_back: write_back.map(|_| over()),
            volume,
            disk: disk.to_owned(),
            of: attached(remote_name, attachment),
            remote_name: remote_name.to_owned(),
            notes: OnceLock::new(),
            turn: Mutex::default(),
            state: Mutex::new(WantedCache { wanted, ..WantedCache::default() }),
        }
    }

    /// The volume as the guest's requests find it.
    pub fn attached(&self) -> Arc<dyn Attach> {
        match &self.write_back {
            Some(volume) => Arc::clone(volume) as _,
            None => Arc::clone(&self.volume) as _,
        }
    }

    /// Where the node keeps the numbers of the disk's rounds. Once, and also for a disk without
    /// write-back: it may have had it.
    pub fn note_rounds_in(&self, notes: impl FnOnce() -> Result<Arc<RoundNotes>, String>) {
        if self.notes.get().is_some() {
            return;
        }
        match notes() {
            Ok(notes) => {
                let _ = self.notes.set(notes);
            }
            Err(why) => self.state.lock().why = Some(why),
        }
    }

    /// Why the disk cannot be served yet: without its dirty blocks its guest would find old ones.
    pub fn why_not_ready(&self) -> Option<String> {
        let state = self.state.lock();
        let is_known = self.write_back.as_ref().is_none_or(|it| it.dirty().is_some());
        (!is_known || !state.nothing_left).then(|| {
            let why = state.why.as_deref().unwrap_or("its pool was not asked yet");
            format!("its dirty blocks are not known: {why}")
        })
    }

    /// Whether the end of a guest may have to write much back.
    pub fn has_write_back(&self) -> bool {
        self.write_back.is_some()
    }

    /// Why the disk fails for each guest of this process: its pool has failed a change.
    pub fn why_failed(&self) -> Option<String> {
        self.write_back.as_ref()?.dirty()?.why_failed()
    }

    /// Writes that only this node's pool has.
    pub fn dirty_bytes(&self) -> u64 {
        let dirty = self.write_back.as_ref().and_then(|it| it.dirty());
        dirty.map_or(0, |dirty| dirty.dirty_bytes())
    }

    /// Whether the writes of a guest that has gone are being written back.
    pub fn is_draining(&self) -> bool {
        let dirty = self.write_back.as_ref().and_then(|it| it.dirty());
        dirty.is_some_and(|dirty| dirty.is_draining())
    }

    /// Writes that only this node's pool has, and where, for people; `None` for none.
    pub fn kept(&self) -> Option<String> {
        let bytes = self.dirty_bytes();
        let pool = self.state.lock().wanted.as_ref().map(|it| it.pool.clone())?;
        let volume = dirty_volume_name(&self.disk);
        let text = || format!("{} in volume {volume}.* of pool {pool:?}", show_size(bytes));
        (bytes > 0).then(text)
    }

    /// How many blocks of these writes cannot be read.
    pub fn damaged_blocks(&self) -> u64 {
        let dirty = self.write_back.as_ref().and_then(|it| it.dirty());
        dirty.map_or(0, |dirty| dirty.damaged().count)
    }

    /// The volume without write-back.
    pub fn volume(&self) -> &Arc<CachedVolume> {
        &self.volume
    }

    /// Gives the disk the cache that it should have, if its volume is known and it has none. Waits
    /// for the pool's devices, so this is for control threads only.
    pub fn have(&self, pools: &Pools) {
        let _turn = self.turn.lock();
        let Some(notes) = self.notes.get() else { return };
        if !self.state.lock().nothing_left {
            let found = self.look_for_left(pools, notes);
            let mut state = self.state.lock();
            state.nothing_left = found.is_ok();
            if let Err(why) = found {
                state.why = Some(why);
                return;
            }
        }
        self.try_it(pools);
    }

    /// Looks for dirty blocks where this disk does not look: its write-back was in another pool
    /// before, or there was one; or it had another name or another line.
    fn look_for_left(&self, pools: &Pools, notes: &RoundNotes) -> Result<(), String> {
        let wanted = self.state.lock().wanted.clone().filter(|it| it.write_back.is_some());
        // Clients of a shared volume write back beside each other.
        let is_shared = self.remote.is_sole() == Some(false);
        let others = if is_shared { Vec::new() } else { self.other_notes(notes)? };
        if !is_shared {
            self.look_for_other_names(pools, &others)?;
        }
        for pool in pools.opened() {
            let its = (self.disk.as_str(), self.of.as_str());
            if let Some(why) = DirtyStore::left_by_another_line(&pool, its) {
                return Err(why);
            }
            if wanted.as_ref().is_some_and(|it| it.pool == pool.name()) {
                continue;
            }
            let left = DirtyStore::left(&pool, its);
            if let Some(volume) = left.full {
                return Err(format!(
                    "volume {volume} of pool {:?} has writes of this disk that its own volume has \
                     not: give the disk write-back in that pool again; or give the writes up, and \
                     remove that volume",
                    pool.name()
                ));
            }
            if !notes.is_missing(left.number) {
                // First: without these volumes the mark would say that writes are missing.
                self.forget_mark(notes)?;
            }
            if left.is_empty {
                DirtyStore::remove_left(&pool, its)?;
            }
        }
        if wanted.is_none() && notes.is_marked() {
            return Err(format!(
                "it had write-back, and no open pool of this node has the last writes that its \
                 guest was told of. {GIVE_UP}"
            ));
        }
        let forgotten = others.iter().try_for_each(OtherNote::forget_former);
        forgotten.map_err(|why| self.not_forgotten(&why))
    }

    /// Looks for dirty blocks of the same remote volume by disks of other names, by other
    /// attachments and by other lists of peers, in open pools and in this node's memory.
    fn look_for_other_names(&self, pools: &Pools, others: &[OtherNote]) -> Result<(), String> {
        if let Some((pool, volume, disk)) = self.left_by_another(pools, others) {
            return Err(format!(
                "volume {volume} of pool {pool:?} has writes to the same volume by disk {disk:?}, \
                 which are not there yet: give the disk that name again; or give the writes up, \
                 and remove that volume"
            ));
        }
        // The right pool may be open under a name that is not the disk's any more.
        let is_here = |it: &OtherNote, disk: &str| {
            let of = attached(&it.volume, &it.attachment);
            let has = |pool| !it.is_missing(DirtyStore::left(&pool, (disk, &of)).number);
            pools.opened().into_iter().any(has)
        };
        let is_away = |it: &&OtherNote| {
            it.is_marked() && !is_here(it, &it.attachment) && !is_here(it, &self.disk)
        };
        let Some(away) = others.iter().find(is_away) else { return Ok(()) };
        let (volume, attachment) = (as_written(&away.volume), &away.attachment);
        Err(format!(
            "this node had write-back to {volume:?} by the attachment {attachment:?}, and no open \
             pool of it has the last writes that the guest was told of. Give the disk that volume \
             and that attachment (or name) again, and open the pool that has these writes; or give \
             them up there: `vrio disk remove DISK --force`"
        ))
    }

    fn other_notes(&self, notes: &RoundNotes) -> Result<Vec<OtherNote>, String> {
        notes.others(&self.remote_name).map_err(|error| error.to_string())
    }

    /// Writes to the same volume in an open pool, by disks of other names: the names of the pool,
    /// the pool's volume and the disk.
    fn left_by_another(
        &self,
        pools: &Pools,
        others: &[OtherNote],
    ) -> Option<(String, String, String)> {
        let mut all: Vec<_> =
            others.iter().map(|it| attached(&it.volume, &it.attachment)).collect();
        all.push(self.of.clone());
        pools.opened().into_iter().find_map(|pool| {
            let names = (self.remote_name.as_str(), &all[..]);
            let (volume, disk) = DirtyStore::left_by_another(&pool, &self.disk, names)?;
            Some((pool.name().to_owned(), volume, disk))
        })
    }

    /// The notes, if the disk is not served since no open pool has the last writes that its guest
    /// was told of.
    fn missing(&self, pools: &Pools) -> Option<&RoundNotes> {
        let marked = self.notes.get().filter(|notes| notes.is_marked());
        let notes = marked.filter(|_| self.why_not_ready().is_some())?;
        let has = |pool| {
            let left = DirtyStore::left(&pool, (&self.disk, &self.of));
            !notes.is_missing(left.number)
        };
        // A disk that was renamed has them under its former name.
        let is_renamed = self.left_by_another(pools, &[]).is_some();
        (!is_renamed && !pools.opened().into_iter().any(has)).then_some(&**notes)
    }

    /// Whether the removal of the disk, which is not served, would give writes up.
    pub fn misses_writes(&self, pools: &Pools) -> bool {
        self.missing(pools).is_some()
    }

    fn not_forgotten(&self, why: &str) -> String {
        format!("this node cannot note that nothing of disk {:?} is dirty: {why}", self.disk)
    }

    fn forget_mark(&self, notes: &RoundNotes) -> Result<(), String> {
        notes.forget_mark().map_err(|why| self.not_forgotten(&why))
    }

    /// Gives up writes that no open pool has, of a disk that is not served without them and goes.
    /// Gives whether there may have been any.
    ///
    /// # Errors
    /// Why the disk will still not be served.
    pub fn give_up_missing(&self, pools: &Pools) -> Result<bool, String> {
        let _turn = self.turn.lock();
        self.missing(pools).map_or(Ok(false), |notes| self.forget_mark(notes).map(|()| true))
    }

    fn try_it(&self, pools: &Pools) {
        let has_dirty = self.write_back.as_ref().is_none_or(|it| it.dirty().is_some());
        if self.volume.cache().is_some() && has_dirty {
            return;
        }
        let wanted = {
            let mut state = self.state.lock();
            let is_early = state.tried.is_some_and(|tried| tried.elapsed() < TRY_AGAIN);
            let Some(wanted) = state.wanted.clone().filter(|_| !is_early) else { return };
            state.tried = Some(Instant::now());
            wanted
        };
        let no_thread = |error| format!("there is no thread for it: {error}");
        let begun = if has_dirty { Ok(()) } else { self.begin_dirty(&wanted, pools) };
        let plugged = begun.and_then(|()| {
            let cache = self.open(&wanted, pools)?;
            self.volume.plug(cache).map_err(no_thread)
        });
        let (why, mut state) = (plugged.err(), self.state.lock());
        if why != state.why
            && let Some(why) = &why
            && self.write_back.as_ref().is_none_or(|it| it.dirty().is_some())
        {
            tracing::error!(disk = self.disk, why, "the disk works without its cache");
        }
        state.why = why;
    }

    /// Finds the dirty blocks.
    fn begin_dirty(&self, wanted: &CachePlan, pools: &Pools) -> Result<(), String> {
        let (Some(over), Some(plan)) = (&self.write_back, &wanted.write_back) else {
            return Ok(());
        };
        let notes = self.notes.get().ok_or("the node's memory was not asked yet")?;
        let (info, pool) = self.ground(wanted, pools)?;
        let (blocks, capacity) =
            (info.size_bytes / BLOCK_BYTES, (plan.dirty_bytes / BLOCK_BYTES).max(1));
        let names = (self.disk.as_str(), self.of.as_str());
        let store = DirtyStore::new(&pool, names, (blocks, capacity), info.durability);
        let bounds = DirtyBounds { blocks, capacity, age_ns: plan.age_ns };
        let dirty = Dirty::load(bounds, Box::new(store), Arc::clone(notes), now_ns())?;
        tracing::warn!(
            disk = self.disk,
            pool = wanted.pool,
            dirty_bytes = dirty.dirty_bytes(),
            dirty_bytes_max = plan.dirty_bytes,
            "write-back: a write completes when this node's pool has it. If this host is lost with \
             its pool, such writes are lost, and the volume is no moment of the disk"
        );
        over.begin(dirty).map_err(|error| format!("there is no thread for it: {error}"))
    }

    /// The remote volume, and the pool.
    fn ground(
        &self,
        wanted: &CachePlan,
        pools: &Pools,
    ) -> Result<(VolumeInfo, Arc<StorePool>), String> {
        let info = self.remote.described().ok_or("its volume is not known yet")?;
        if info.size_bytes < BLOCK_BYTES {
            return Err("its volume is shorter than a block of a pool".to_owned());
        }
        match pools.get(&wanted.pool) {
            Some(Ok(pool)) => Ok((info, pool)),
            Some(Err(why)) => Err(format!("pool {:?} is not open: {why}", wanted.pool)),
            None => Err(format!("this node has no pool {:?}", wanted.pool)),
        }
    }

    fn open(&self, wanted: &CachePlan, pools: &Pools) -> Result<Arc<Cache>, String> {
        let (info, pool) = self.ground(wanted, pools)?;
        let blocks = info.size_bytes / BLOCK_BYTES;
        let room = (blocks, (wanted.size_bytes / BLOCK_BYTES).min(blocks));
        let name = cache_volume_name(&self.disk);
        let (storage, local) = PoolStorage::open(&pool, &name, &self.of, room)?;
        Ok(Cache::new(room, local, Box::new(storage)))
    }

    /// Gives the disk another cache, or none, while a guest may use it.
    ///
    /// # Errors
    /// What is left of the old cache in its pool, and why.
    pub fn set(
        &self,
        wanted: Option<&CachePlan>,
        pools: &Pools,
        sidecores: &[Sidecore],
    ) -> Result<(), String> {
        let _turn = self.turn.lock();
        let before = {
            let mut state = self.state.lock();
            (state.why, state.tried) = (None, None);
            state.wanted.take()
        };
        let let_go = before.map_or(Ok(()), |before| self.drop_it(&before, pools, sidecores));
        self.state.lock().wanted = wanted.cloned();
        self.try_it(pools);
        wake(sidecores);
        let_go
    }

    /// Whether a pool has, or may have, writes that the remote volume has not.
    pub fn writes_back_from(&self, pool: &str) -> bool {
        let state = self.state.lock();
        self.write_back.is_some() && state.wanted.as_ref().is_some_and(|it| it.pool == pool)
    }

    /// Whether a volume of a pool, by its name, has the disk's cache or its dirty blocks now.
    pub fn is_in(&self, pool: &str, volume: &str) -> bool {
        let is_cache = self.volume.cache().is_some() && volume == cache_volume_name(&self.disk);
        let is_dirty = self.write_back.as_ref().is_some_and(|it| it.dirty().is_some())
            && DirtyStore::is_of(volume, &self.disk);
        let state = self.state.lock();
        (is_cache || is_dirty) && state.wanted.as_ref().is_some_and(|it| it.pool == pool)
    }

    /// A pool of the node goes. Gives whether the cache was in it: the disk works without its
    /// cache, and gets it again with the pool.
    pub fn lose_pool(&self, pool: &str, pools: &Pools, sidecores: &[Sidecore]) -> bool {
        let _turn = self.turn.lock();
        let wanted = self.state.lock().wanted.clone().filter(|wanted| wanted.pool == pool);
        let Some(wanted) = wanted else { return false };
        if let Err(why) = self.drop_it(&wanted, pools, sidecores) {
            tracing::warn!(disk = self.disk, why, "a cache is left in its pool");
        }
        true
    }

    /// A pool is there now: a cache in it is made at once.
    pub fn find_pool(&self, pool: &str, pools: &Pools) {
        let _turn = self.turn.lock();
        if self.state.lock().wanted.as_ref().is_some_and(|wanted| wanted.pool == pool) {
            self.state.lock().tried = None;
            self.try_it(pools);
        }
    }

    /// Takes the cache away, and its volume out of the pool.
    fn drop_it(
        &self,
        wanted: &CachePlan,
        pools: &Pools,
        sidecores: &[Sidecore],
    ) -> Result<(), String> {
        if self.volume.unplug().is_some() {
            let until = Instant::now() + LET_GO_TIME_MAX;
            while !self.volume.is_followed() && Instant::now() < until {
                wake(sidecores);
                std::thread::sleep(LOOK_AGAIN);
            }
        }
        // A channel that has not let go yet gives its cache nothing more that counts.
        let Some(Ok(pool)) = pools.get(&wanted.pool) else { return Ok(()) };
        PoolStorage::remove(&pool, &cache_volume_name(&self.disk))?;
        let Some(dirty) = self.write_back.as_ref().and_then(|it| it.dirty()) else { return Ok(()) };
        match dirty.is_clean() {
            true => {
                self.notes.get().map_or(Ok(()), |notes| self.forget_mark(notes))?;
                DirtyStore::remove(&pool, &self.disk)
            }
            false => Err(format!(
                "{} were not written back, and stay in volume {}.* of the pool: add the disk again \
                 with the same \"volume\" and \"attachment\" to have them written back; with \
                 others it is not served",
                show_size(dirty.dirty_bytes()),
                dirty_volume_name(&self.disk)
            )),
        }
    }

    /// Writes down what the cache has, for the next process of the node. The disk's channels are
    /// gone.
    pub fn save(&self) {
        let Some(cache) = self.volume.cache() else { return };
        if let Err(why) = cache.save() {
            tracing::warn!(disk = self.disk, why, "the cache of the next process begins empty");
        }
    }

    /// The cache for the status; `None` if the disk should have none.
    pub fn status(&self) -> Option<CacheStatus> {
        let (wanted, why_unused) = {
            let state = self.state.lock();
            (state.wanted.clone()?, state.why.clone())
        };
        let CachePlan { pool, size_bytes, write_back } = wanted;
        let write_back = write_back.map(|plan| self.dirty_status(&plan));
        let mut status =
            CacheStatus { pool, size_bytes, why_unused, write_back, ..CacheStatus::default() };
        let Some(cache) = self.volume.cache() else {
            status.why_unused.get_or_insert_with(|| "its volume is not known yet".to_owned());
            return Some(status);
        };
        status.why_unused = cache.gate.why();
        status.is_used = status.why_unused.is_none();
        status.cached_bytes = cache.map.used() * BLOCK_BYTES;
        status.emptied = cache.emptied();
        for (name, value) in cache.counted() {
            match name {
                "hits" => status.hits = value,
                "misses" => status.misses = value,
                "errors" => status.errors = value,
                _ => {}
            }
        }
        Some(status)
    }

    fn dirty_status(&self, plan: &WriteBackPlan) -> WriteBackStatus {
        let dirty = self.write_back.as_ref().and_then(|it| it.dirty());
        let mut status = WriteBackStatus {
            dirty_bytes_max: plan.dirty_bytes,
            dirty_age_max_s: plan.age_ns / 1_000_000_000,
            ..WriteBackStatus::default()
        };
        let Some(dirty) = dirty else {
            status.why_waits = self.why_not_ready();
            return status;
        };
        status.dirty_bytes = dirty.dirty_bytes();
        status.dirty_for_s = dirty.oldest_ns(now_ns()) / 1_000_000_000;
        status.why_waits = dirty.why();
        status.stranded = dirty.stranded();
        let damaged = dirty.damaged();
        (status.damaged_blocks, status.damaged_at_bytes) = (damaged.count, damaged.places_bytes());
        status.errors = dirty.counted().find(|it| it.0 == "errors").map_or(0, |it| it.1);
        status
    }

    /// Gives the counters of write-back, by their names in the status of the disk.
    pub fn count_dirty(&self, put: &mut dyn FnMut(String, u64)) {
        let Some(dirty) = self.write_back.as_ref().and_then(|it| it.dirty()) else { return };
        dirty.counted().for_each(|(name, value)| put(format!("write_back_{name}"), value));
        put("write_back_dirty_bytes_now".to_owned(), dirty.dirty_bytes());
        put("write_back_dirty_for_ns_now".to_owned(), dirty.oldest_ns(now_ns()));
        put("write_back_stranded_now".to_owned(), dirty.stranded().len() as u64);
    }

    /// The descriptions of these counters, by their names without `write_back_`.
    pub fn dirty_counters() -> impl Iterator<Item = &'static [CounterText]> {
        [DirtyCounters::DECLARED, DIRTY_COUNTS].into_iter()
    }

    /// Gives the counters of the cache, by their names in the status of the disk.
    pub fn count(&self, put: &mut dyn FnMut(String, u64)) {
        let Some(cache) = self.volume.cache() else { return };
        cache.counted().for_each(|(name, value)| put(format!("cache_{name}"), value));
        put("cache_emptied".to_owned(), cache.emptied());
        put("cache_used_now".to_owned(), u64::from(cache.gate.is_open()));
        put("cache_cached_bytes_now".to_owned(), cache.map.used() * BLOCK_BYTES);
    }

    /// The descriptions of these counters, by their names without `cache_`.
    pub fn counters() -> impl Iterator<Item = &'static [CounterText]> {
        [CacheCounters::DECLARED, CACHE_COUNTS].into_iter()
    }
}

/// The counts of a cache that are not those of its channels.
const CACHE_COUNTS: &[CounterText] = &[
    CounterText { name: "emptied", help: "Times that the disk's cache was emptied." },
    CounterText {
        name: "used",
        help: "Whether the disk's cache answers reads; the status says why it does not.",
    },
    CounterText { name: "cached_bytes", help: "Bytes that the disk's cache has." },
];

/// The counts of write-back beside the counts of its channels.
const DIRTY_COUNTS: &[CounterText] = &[
    CounterText { name: "dirty_bytes", help: "Bytes of the disk that only this node's pool has." },
    CounterText { name: "dirty_for", help: "For how long the oldest of these bytes wait." },
    CounterText {
        name: "stranded",
        help: "Volumes of the pool with writes that came too late for the disk's volume.",
    },
];

fn wake(sidecores: &[Sidecore]) {
    sidecores.iter().for_each(|sidecore| sidecore.waker().wake());
}
