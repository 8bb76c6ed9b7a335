//! The cached volume, and the cache that is plugged into it or not.
//!
//! A cache can be added while a guest runs. Changes that were sent before are not in its map, so it
//! is opened only when each channel has seen it and has none of those changes left.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread::JoinHandle;

use block::attachment::{Attachment, CHANNELS_MAX};
use block::{Attach, RemoteVolume};
use parking_lot::Mutex;
use sidecore::Padded;
use volume::{Channel, OpenArguments, OpenError, Size, Volume, VolumeInfo};

use crate::channel::CachedChannel;
use crate::counters::CacheCounters;
use crate::gate::Gate;
use crate::keeper::{self, CacheKeeper, CacheStorage};
use crate::map::CacheMap;

/// A remote volume that can have a cache.
pub trait CachedRemote: Attach {
    /// Whether its guard admits one attachment at a time, so that no other client can write while
    /// one holds it. `None`: the peer has not said, or is too old to say.
    fn is_sole(&self) -> Option<bool>;
}

impl CachedRemote for RemoteVolume {
    fn is_sole(&self) -> Option<bool> {
        Self::is_sole(self)
    }
}

/// A cache: its map, its gate, and the volume that has its blocks.
#[derive(Debug)]
pub struct Cache {
    /// Which blocks it has.
    pub map: CacheMap,
    /// When they are right.
    pub gate: Gate,
    pub(crate) local: Arc<dyn Volume>,
    /// Locked while the keeper works, and while the cache is saved.
    pub(crate) storage: Mutex<Box<dyn CacheStorage>>,
    counters: Box<[Padded<CacheCounters>]>,
    /// Times that it was emptied.
    pub(crate) emptied: AtomicU64,
}

impl Cache {
    /// A cache for the first `blocks` of a remote volume, of which it may have `capacity`. `local`
    /// is as large, and has at most what `storage` can load.
    pub fn new(
        (blocks, capacity): (u64, u64),
        local: Arc<dyn Volume>,
        storage: Box<dyn CacheStorage>,
    ) -> Arc<Self> {
        Arc::new(Self {
            map: CacheMap::new(blocks, capacity),
            gate: Gate::default(),
            local,
            storage: Mutex::new(storage),
            counters: (0..CHANNELS_MAX).map(|_| Padded::default()).collect(),
            emptied: AtomicU64::new(0),
        })
    }

    pub(crate) fn counters(&self, index: u16) -> &CacheCounters {
        &self.counters[usize::from(index)]
    }

    /// Its counters, summed over all channels.
    pub fn counted(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let names = CacheCounters::DECLARED.iter().map(|text| text.name).enumerate();
        names.map(|(at, name)| {
            let values = self.counters.iter().filter_map(|it| it.counted().nth(at));
            (name, values.map(|(_, value)| value).sum())
        })
    }

    /// How often it was emptied.
    pub fn emptied(&self) -> u64 {
        self.emptied.load(SeqCst)
    }

    /// Closes the cache and writes down what it has, for the next process of the node. The disk's
    /// channels are gone. `false`: there is nothing that is worth it.
    ///
    /// # Errors
    /// Why that failed; the next process begins with an empty cache.
    pub fn save(&self) -> Result<bool, String> {
        keeper::save(self)
    }
}

/// The cache of a cached volume, as its channels see it.
#[derive(Debug)]
pub(crate) struct Plug {
    pub(crate) remote: Arc<dyn CachedRemote>,
    /// Changes with each change of the cache.
    number: AtomicU64,
    cache: Mutex<Option<Arc<Cache>>>,
    /// A bit for each channel that is open.
    channels: AtomicU64,
    /// By channel: the number up to which it has followed.
    followed: [AtomicU64; CHANNELS_MAX],
}

impl Plug {
    fn new(remote: Arc<dyn CachedRemote>) -> Arc<Self> {
        Arc::new(Self {
            remote,
            number: AtomicU64::new(0),
            cache: Mutex::default(),
            channels: AtomicU64::new(0),
            followed: std::array::from_fn(|_| AtomicU64::new(0)),
        })
    }

    fn change(&self, cache: Option<Arc<Cache>>) -> Option<Arc<Cache>> {
        let mut now = self.cache.lock();
        self.number.fetch_add(1, SeqCst);
        std::mem::replace(&mut *now, cache)
    }

    #[inline]
    pub(crate) fn number(&self) -> u64 {
        self.number.load(SeqCst)
    }

    /// The cache, and the number of this state.
    pub(crate) fn now(&self) -> (u64, Option<Arc<Cache>>) {
        let now = self.cache.lock();
        (self.number(), now.clone())
    }

    pub(crate) fn enter(&self, index: u16) {
        self.followed[usize::from(index)].store(0, SeqCst);
        self.channels.fetch_or(1 << index, SeqCst);
    }

    pub(crate) fn leave(&self, index: u16) {
        self.channels.fetch_and(!(1 << index), SeqCst);
    }

    /// The channel uses the cache as of `number`, and has no change left from before.
    pub(crate) fn has_followed(&self, index: u16, number: u64) {
        self.followed[usize::from(index)].store(number, SeqCst);
    }

    /// Whether all channels have followed.
    pub(crate) fn is_followed(&self) -> bool {
        let (channels, number) = (self.channels.load(SeqCst), self.number());
        let mut open = (0..CHANNELS_MAX).filter(|at| channels >> at & 1 == 1);
        open.all(|at| self.followed[at].load(SeqCst) == number)
    }
}

/// A remote volume with room for a cache. Without one, requests pass as they are.
#[derive(Debug)]
pub struct CachedVolume {
    plug: Arc<Plug>,
    keeper: Mutex<Option<JoinHandle<()>>>,
}

impl CachedVolume {
    /// A remote volume without a cache.
    pub fn new(remote: Arc<dyn CachedRemote>) -> Arc<Self> {
        Arc::new(Self { plug: Plug::new(remote), keeper: Mutex::default() })
    }

    /// Has the volume use a cache from now on. It has none.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn plug(&self, cache: Arc<Cache>) -> std::io::Result<()> {
        let mut keeper = self.keeper.lock();
        debug_assert!(keeper.is_none());
        let thread = keeper::start(CacheKeeper::new(&cache, &self.plug))?;
        self.plug.change(Some(Arc::clone(&cache)));
        *keeper = Some(thread);
        Ok(())
    }

    /// The same without a thread: the caller does the keeper's steps.
    pub fn plug_unkept(&self, cache: &Arc<Cache>) -> CacheKeeper {
        self.plug.change(Some(Arc::clone(cache)));
        CacheKeeper::new(cache, &self.plug)
    }

    /// Takes the cache away. Channels let go of it in their next rounds: [`Self::is_followed`] says
    /// when they have.
    pub fn unplug(&self) -> Option<Arc<Cache>> {
        let cache = self.plug.change(None)?;
        cache.gate.close();
        cache.gate.story().ends = true;
        cache.gate.stir();
        if let Some(thread) = self.keeper.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of a cache panicked");
        }
        Some(cache)
    }

    /// The cache, if it has one.
    pub fn cache(&self) -> Option<Arc<Cache>> {
        self.plug.now().1
    }

    /// Whether all channels have followed the last change of the cache.
    pub fn is_followed(&self) -> bool {
        self.plug.is_followed()
    }
}

impl Drop for CachedVolume {
    fn drop(&mut self) {
        self.unplug();
    }
}

impl Attach for CachedVolume {
    fn info(&self) -> VolumeInfo {
        self.plug.remote.info()
    }

    fn size(&self) -> Size {
        self.plug.remote.size()
    }

    fn attach(
        &self,
        attachment: &Arc<Attachment>,
        index: u16,
        open: &OpenArguments<'_>,
    ) -> Result<Box<dyn Channel>, OpenError> {
        let remote = self.plug.remote.attach(attachment, index, open)?;
        let (info, size) = (self.plug.remote.info(), self.plug.remote.size());
        let services = open.services.clone();
        let channel = CachedChannel::new(
            (remote, info, size),
            (Arc::clone(attachment), index),
            (services, open.depth),
            Arc::clone(&self.plug),
        );
        Ok(Box::new(channel))
    }
}
