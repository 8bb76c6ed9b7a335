//! The caches of disks: a disk gets its cache when its volume is known and the pool is there, and
//! is served without one until then.

use std::sync::Arc;
use std::time::{Duration, Instant};

use api::status::CacheStatus;
use api::{API_VERSION, Done, Refused};
use cache::{BLOCK_BYTES, Cache, CacheCounters, PoolStorage};
use config::{CacheConfig, Config, DiskConfig, changes};
use serde_json::Value;
use sidecore::{CounterText, Sidecore};

use super::shown::{DiskVolume, ServedDisk};
use crate::kinds::Changed;
use crate::wiring::change::{bad, log};
use crate::wiring::inside::Inside;
use crate::wiring::objects::{Objects, unknown};
use crate::wiring::pools::PoolStock;

/// How long a change of a cache waits for the disk's channels, which let go of a cache when their
/// requests have ended.
const LET_GO_TIME_MAX: Duration = Duration::from_secs(5);

/// How often that is looked for.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// How soon a cache that could not be had is tried again.
const TRY_AGAIN: Duration = Duration::from_secs(10);

/// The cache of a disk, as it is wanted and as it is.
#[derive(Debug, Default)]
pub(crate) struct DiskCache {
    wanted: Option<CacheConfig>,
    /// Why there is none yet.
    why: Option<String>,
    tried: Option<Instant>,
}

impl DiskCache {
    pub(crate) fn wanted(config: &DiskConfig) -> Self {
        Self { wanted: config.cache.clone(), ..Self::default() }
    }
}

impl ServedDisk {
    /// Gives the disk the cache that it should have, if its volume is known and it has none.
    pub(crate) fn have_cache(&self, stock: &PoolStock) {
        // The slot is not locked while the pool is at work: the status looks at it.
        let _turn = self.cache_turn.lock();
        self.try_cache(stock);
    }

    /// With the turn.
    fn try_cache(&self, stock: &PoolStock) {
        let Some(cached) = self.cached.as_ref().filter(|cached| cached.cache().is_none()) else {
            return;
        };
        let wanted = {
            let mut slot = self.cache_slot();
            let is_early = slot.tried.is_some_and(|tried| tried.elapsed() < TRY_AGAIN);
            let Some(wanted) = slot.wanted.clone().filter(|_| !is_early) else { return };
            slot.tried = Some(Instant::now());
            wanted
        };
        let opened = self.open_cache(&wanted, stock);
        let plugged = opened.and_then(|cache| {
            cached.plug(cache).map_err(|error| format!("there is no thread for it: {error}"))
        });
        let why = plugged.err();
        let mut slot = self.cache_slot();
        if why != slot.why
            && let Some(why) = &why
        {
            tracing::error!(disk = self.config.name, why, "the disk is served without its cache");
        }
        slot.why = why;
    }

    fn open_cache(
        &self,
        wanted: &CacheConfig,
        stock: &PoolStock,
    ) -> Result<Arc<Cache>, String> {
        let DiskVolume::Remote(remote) = &self.volume else {
            return Err("its volume is on this node".to_owned());
        };
        let Some(info) = remote.described() else {
            return Err("its volume is not known yet".to_owned());
        };
        let pool = match stock.pools().get(&wanted.pool) {
            Some(Ok(pool)) => pool,
            Some(Err(why)) => return Err(format!("pool {:?} is not open: {why}", wanted.pool)),
            None => return Err(format!("this node has no pool {:?}", wanted.pool)),
        };
        let blocks = info.size_bytes / BLOCK_BYTES;
        if blocks == 0 {
            return Err("its volume is shorter than a block of a pool".to_owned());
        }
        let capacity = (wanted.size_bytes / BLOCK_BYTES).min(blocks);
        let of = format!("{} as {}", self.config.volume, self.config.attachment);
        let name = self.config.cache_volume();
        let (storage, local) = PoolStorage::open(&pool, &name, &of, (blocks, capacity))?;
        Ok(Cache::new((blocks, capacity), local, Box::new(storage)))
    }

    /// Gives the disk another cache, or none, while a guest may use it.
    ///
    /// # Errors
    /// What is left of the old cache in its pool, and why.
    pub(crate) fn set_cache(
        &self,
        wanted: Option<&CacheConfig>,
        (stock, sidecores): (&PoolStock, &[Sidecore]),
    ) -> Result<(), String> {
        let _turn = self.cache_turn.lock();
        let before = std::mem::take(&mut *self.cache_slot()).wanted;
        let let_go = before.as_ref().map_or(Ok(()), |it| self.drop_cache(it, stock, sidecores));
        self.cache_slot().wanted = wanted.cloned();
        self.try_cache(stock);
        sidecores.iter().for_each(|sidecore| sidecore.waker().wake());
        let_go
    }

    /// Takes the cache away, and its volume out of the pool.
    fn drop_cache(
        &self,
        config: &CacheConfig,
        stock: &PoolStock,
        sidecores: &[Sidecore],
    ) -> Result<(), String> {
        if let Some(cached) = &self.cached
            && cached.unplug().is_some()
        {
            let until = Instant::now() + LET_GO_TIME_MAX;
            while !cached.is_followed() && Instant::now() < until {
                sidecores.iter().for_each(|sidecore| sidecore.waker().wake());
                std::thread::sleep(LOOK_AGAIN);
            }
        }
        // A channel that has not let go yet gives its cache nothing more that counts.
        match stock.pools().get(&config.pool) {
            Some(Ok(pool)) => PoolStorage::remove(&pool, &self.config.cache_volume()),
            Some(Err(_)) | None => Ok(()),
        }
    }

    /// The disk goes for good: so does its cache.
    pub(crate) fn remove_cache(&self, stock: &PoolStock, sidecores: &[Sidecore]) {
        let _turn = self.cache_turn.lock();
        let wanted = std::mem::take(&mut *self.cache_slot()).wanted;
        let Some(wanted) = wanted else { return };
        if let Err(why) = self.drop_cache(&wanted, stock, sidecores) {
            let (disk, volume) = (&self.config.name, self.config.cache_volume());
            tracing::warn!(disk, volume, why, "a volume of a cache is left in its pool");
        }
    }

    /// The node's pool goes: the disk is served without its cache, which it gets again with the
    /// pool.
    pub(crate) fn lose_pool(&self, pool: &str, stock: &PoolStock, sidecores: &[Sidecore]) -> bool {
        let _turn = self.cache_turn.lock();
        let wanted = self.cache_slot().wanted.clone();
        let Some(wanted) = wanted.filter(|it| it.pool == pool) else { return false };
        if let Err(why) = self.drop_cache(&wanted, stock, sidecores) {
            tracing::warn!(disk = self.config.name, why, "a cache is left in its pool");
        }
        true
    }

    /// Writes down what the cache has, for the next process of the node. The disk's channels are
    /// gone.
    pub(crate) fn save_cache(&self) {
        let Some(cache) = self.cached.as_ref().and_then(|cached| cached.cache()) else { return };
        if let Err(why) = cache.save() {
            tracing::warn!(disk = self.config.name, why, "the next process's cache is empty");
        }
    }

    /// The cache for the status.
    pub(crate) fn cache_status(&self) -> Option<CacheStatus> {
        let slot = self.cache_slot();
        let wanted = slot.wanted.as_ref()?;
        let cache = self.cached.as_ref().and_then(|cached| cached.cache());
        let mut status = CacheStatus {
            pool: wanted.pool.clone(),
            size_bytes: wanted.size_bytes,
            why_unused: slot.why.clone(),
            ..CacheStatus::default()
        };
        let Some(cache) = cache else {
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

    /// The counters of the cache.
    pub(crate) fn count_cache(&self, put: &mut dyn FnMut(String, u64)) {
        let Some(cache) = self.cached.as_ref().and_then(|cached| cached.cache()) else { return };
        for (name, value) in cache.counted() {
            put(format!("cache_{name}"), value);
        }
        put("cache_emptied".to_owned(), cache.emptied());
        put("cache_used_now".to_owned(), u64::from(cache.gate.is_open()));
        put("cache_cached_bytes_now".to_owned(), cache.map.used() * BLOCK_BYTES);
    }
}

/// The metrics of caches, besides their counters.
const CACHE_METRICS: &[CounterText] = &[
    CounterText { name: "cache_emptied", help: "Times that the disk's cache was emptied." },
    CounterText {
        name: "cache_used",
        help: "Whether the disk's cache answers reads; the status says why it does not.",
    },
    CounterText { name: "cache_cached_bytes", help: "Bytes that the disk's cache has." },
];

/// The metrics of a disk's cache.
pub(crate) fn cache_metrics() -> impl Iterator<Item = CounterText> {
    let counted = crate::kinds::with_prefix("cache_", CacheCounters::DECLARED);
    counted.chain(CACHE_METRICS.iter().copied())
}

impl Inside {
    /// Gives a disk another cache, or none, until the node's restart or reload.
    pub(crate) fn set_disk_cache(&self, name: &str, body: &Value) -> Result<Done, Refused> {
        let cache = Config::cache(body).map_err(|problems| bad(&problems))?;
        let _turn = self.turn()?;
        let running = self.objects().config.clone();
        let mut wanted = running.clone();
        let Some(disk) = wanted.disks.iter_mut().find(|disk| disk.name == name) else {
            return Err(unknown::<DiskConfig>(name, &running));
        };
        disk.cache = cache;
        let problems = wanted.problems();
        if !problems.is_empty() {
            return Err(bad(&problems));
        }
        let mut done = Done { version: API_VERSION, ..Done::default() };
        for change in changes(&running, &wanted) {
            done.notes.extend(self.apply(&change, false)?);
            done.applied.push(change.to_string());
            done.notes.push(
                "this is lost at a restart or a reload of the node; write it into the file to \
                 keep it"
                    .to_owned(),
            );
        }
        log(&done);
        Ok(done)
    }

    /// Makes the cache of a disk what this configuration says.
    pub(crate) fn change_disk_cache(&self, disk: &DiskConfig) -> Changed {
        let shown = self.objects().disk(&disk.name).cloned().expect("the caller has looked");
        let around = (self.volumes.stock(), self.sidecores());
        let left = shown.set_cache(disk.cache.as_ref(), (around.0, &around.1)).err();
        self.objects().replace(disk);
        let why = shown.cache_status().and_then(|status| status.why_unused);
        let is_there = shown.cached.as_ref().is_some_and(|cached| cached.cache().is_some());
        let missing = why.filter(|_| disk.cache.is_some() && !is_there);
        let missing = missing.map(|why| format!("the cache is not there yet: {why}"));
        Ok(left.into_iter().chain(missing).collect())
    }

    /// Gives disks their caches in a pool that is there now.
    pub(crate) fn have_caches(&self, pool: &str) {
        for disk in self.disks_with_cache(pool) {
            disk.have_cache(self.volumes.stock());
        }
    }

    /// The disks that have, or should have, a cache in a pool.
    pub(crate) fn disks_with_cache(&self, pool: &str) -> Vec<Arc<ServedDisk>> {
        let objects = self.objects();
        let is_in = |disk: &&Arc<ServedDisk>| {
            disk.cache_status().is_some_and(|status| status.pool == pool)
        };
        objects.disks.iter().filter(is_in).cloned().collect()
    }

    pub(crate) fn sidecores(&self) -> Vec<Sidecore> {
        self.cores.iter().map(|core| core.sidecore.clone()).collect()
    }
}

/// Writes down what the caches of all disks have.
pub(crate) fn save_all(objects: &Objects) {
    objects.disks.iter().for_each(|disk| disk.save_cache());
}
