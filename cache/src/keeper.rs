//! The thread of a cache: it reads what an earlier process left, empties the cache where its
//! content is in doubt, and opens it. Everything that waits for the pool's devices is here.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use sidecore::now_ns;

use crate::gate::HeldEpoch;
use crate::map::Blocks;
use crate::plug::{Cache, Plug};

/// How soon the thread looks again for the end of requests, or for what the peer says of the
/// volume.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// How often it looks while there is nothing to do: a change wakes it.
const REST: Duration = Duration::from_secs(1);

/// How soon a cache whose storage failed is tried again.
const TRY_AGAIN_NS: u64 = 30_000_000_000;

/// The storage of a cache, beside the volume that channels use.
///
/// A *mark* says that the storage has exactly the blocks that it had when the cache was closed, and
/// under which epoch they were right. There is a mark only while the cache is closed.
pub trait CacheStorage: Send + fmt::Debug {
    /// The epoch of the mark and the blocks that are there, if there is a mark.
    ///
    /// # Errors
    /// Why it cannot be read.
    fn load(&mut self) -> Result<Option<(HeldEpoch, Vec<Blocks>)>, String>;

    /// Makes a mark, which is durable when this returns.
    ///
    /// # Errors
    /// Why not.
    fn mark(&mut self, held: &HeldEpoch) -> Result<(), String>;

    /// Takes the mark away, which is durable when this returns.
    ///
    /// # Errors
    /// Why not.
    fn unmark(&mut self) -> Result<(), String>;

    /// Takes the mark away and then all blocks.
    ///
    /// # Errors
    /// Why not.
    fn clear(&mut self) -> Result<(), String>;
}

/// Starts the thread.
pub(crate) fn start(mut keeper: CacheKeeper) -> std::io::Result<JoinHandle<()>> {
    thread::Builder::new().name("cache".to_owned()).spawn(move || keeper.run())
}

/// The work of the thread, for a caller that does it itself.
#[derive(Debug)]
pub struct CacheKeeper {
    cache: Arc<Cache>,
    plug: Arc<Plug>,
    is_loaded: bool,
    /// After a failure of the storage, the earliest next try.
    try_at_ns: u64,
}

impl CacheKeeper {
    pub(crate) fn new(cache: &Arc<Cache>, plug: &Arc<Plug>) -> Self {
        let (cache, plug) = (Arc::clone(cache), Arc::clone(plug));
        Self { cache, plug, is_loaded: false, try_at_ns: 0 }
    }

    fn run(&mut self) {
        while !self.cache.gate.story().ends {
            let pause = self.step(now_ns());
            self.cache.gate.wait(pause);
        }
    }

    /// Does what can be done now, and says when to look again.
    pub fn step(&mut self, now_ns: u64) -> Duration {
        if now_ns < self.try_at_ns {
            return REST;
        }
        let cache = Arc::clone(&self.cache);
        let mut storage = cache.storage.lock();
        if !self.is_loaded {
            self.is_loaded = true;
            match storage.load() {
                Ok(Some((held, all))) => {
                    all.into_iter().for_each(|blocks| cache.map.restore(blocks));
                    cache.gate.loaded(Some(held));
                }
                Ok(None) => cache.gate.loaded(None),
                Err(why) => {
                    tracing::warn!(why, "a cache begins empty: its mark is not readable");
                    cache.gate.loaded(None);
                }
            }
        }
        let (asked, has_failed) = {
            let story = cache.gate.story();
            (story.asked, story.has_failed)
        };
        let Some(held) = asked.filter(|_| !cache.gate.is_open()) else { return REST };
        if let Some(why) = self.waits_for() {
            cache.gate.story().why = Some(why.to_owned());
            return LOOK_AGAIN;
        }
        if has_failed {
            // Not at once: storage that fails every request would be tried all the time.
            self.try_at_ns = now_ns + TRY_AGAIN_NS;
            cache.gate.story().has_failed = false;
            return REST;
        }
        let follows = cache.gate.content().filter(|before| held.follows(before));
        let done = match follows {
            Some(_) => storage.unmark(),
            None => {
                cache.gate.empty();
                cache.map.clear();
                cache.emptied.fetch_add(1, SeqCst);
                storage.clear()
            }
        };
        match done {
            Ok(()) => {
                cache.gate.open(held, follows);
                REST
            }
            Err(why) => {
                self.try_at_ns = now_ns + TRY_AGAIN_NS;
                tracing::error!(why, "a cache is not used: its pool did not do its work");
                cache.gate.story().why = Some(why);
                REST
            }
        }
    }

    /// The reason why the cache cannot be opened yet, or at all.
    fn waits_for(&self) -> Option<&'static str> {
        match self.plug.remote.is_sole() {
            None => {
                return Some(
                    "the volume's node has not said that a single attachment uses the volume at a \
                     time; a node of an older version cannot say it",
                );
            }
            Some(false) => {
                return Some(
                    "the volume is shared: other attachments may write to it at any time, so \
                     nothing of it is cached",
                );
            }
            Some(true) => {}
        }
        if !self.plug.is_followed() || !self.cache.gate.is_quiet() {
            return Some("requests from before are still under way");
        }
        None
    }
}

/// See [`Cache::save`].
pub(crate) fn save(cache: &Cache) -> Result<bool, String> {
    // The thread is at rest while this holds the storage.
    let mut storage = cache.storage.lock();
    let is_open = cache.gate.is_open();
    cache.gate.end();
    let content = cache.gate.content();
    let Some(held) = content.filter(|_| is_open && cache.gate.is_quiet()) else { return Ok(false) };
    storage.mark(&held).map(|()| true)
}
