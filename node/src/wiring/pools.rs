//! The pools of a node: opening them, closing them, and their rings.

pub(crate) mod change;
mod compression;
mod devices;
mod history;
mod keys;
mod quota;
pub(crate) mod report;
pub(crate) mod schedule;
pub(crate) mod scrub;
pub(crate) mod snapshots;
mod streams;
pub(crate) mod timed;

use std::path::PathBuf;
use std::sync::Arc;

use config::{Config, PoolConfig};
use parking_lot::Mutex;
use volume::backend::store::{OpenedPool, Pools, StorePool, StoreRing, StoreSettings};

use super::volumes::inside;

/// Rings for pools that are added later. A running node makes no ring, since its filter of system
/// calls would not let it; each waits for its pool at the price of some memory and descriptors.
const SPARE_RINGS: usize = 4;

/// The pools of a node, and rings for others.
#[derive(Debug)]
pub(crate) struct PoolStock {
    pools: Pools,
    rings: Mutex<Vec<StoreRing>>,
    /// Where devices may be.
    homes: Vec<PathBuf>,
}

impl PoolStock {
    /// A stock with rings for the pools of this configuration and for some more; none is opened.
    pub(crate) fn new(config: &Config) -> Self {
        let mut rings = Vec::new();
        for _ in 0..config.pools.len() + SPARE_RINGS {
            match StoreRing::new() {
                Ok(ring) => rings.push(ring),
                Err(error) if config.pools.is_empty() => {
                    tracing::info!(%error, "no io_uring: pools cannot be added");
                    break;
                }
                Err(error) => {
                    tracing::warn!(%error, "no io_uring: pools cannot be opened");
                    break;
                }
            }
        }
        let homes = config.directories.volumes.clone();
        Self { pools: Pools::default(), rings: Mutex::new(rings), homes }
    }

    /// Opens the pools of a configuration. A pool that cannot be opened is logged and noted; its
    /// volumes are not served, and the others are.
    pub(crate) fn open_all(&self, config: &Config) {
        for pool in &config.pools {
            let opened = self.open(pool);
            if let Err(error) = &opened {
                let place = config.place(&pool.lines, "devices");
                tracing::error!(pool = pool.name, place, error, "the pool is not served");
            }
            self.pools.insert(&pool.name, opened);
        }
    }

    /// Opens a pool. It is not noted.
    pub(crate) fn open(&self, pool: &PoolConfig) -> OpenedPool {
        self.check(pool)?;
        let Some(ring) = self.rings.lock().pop() else {
            return Err(format!(
                "there is no io_uring for it: this system has none (the log says so), or \
                 {SPARE_RINGS} pools were added since the node's start; restart the node"
            ));
        };
        let settings = StoreSettings {
            memory_bytes: pool.memory_bytes,
            log_bytes: pool.log_bytes,
            dedup_bytes: pool.dedup_bytes(),
        };
        let opened = StorePool::open(&pool.name, &pool.devices, settings, ring);
        opened.map_err(|error| error.to_string())
    }

    /// Whether the node may open these devices, as it was started.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn check(&self, pool: &PoolConfig) -> Result<(), String> {
        pool.devices.iter().try_for_each(|device| inside(device, &self.homes))
    }

    /// The directories in which devices may be.
    pub(crate) fn homes(&self) -> &[PathBuf] {
        &self.homes
    }

    /// The pools by their names.
    pub(crate) fn pools(&self) -> &Pools {
        &self.pools
    }

    /// Names of the pools that are open.
    pub(crate) fn names(&self) -> Vec<String> {
        self.pools.opened().iter().map(|pool| pool.name().to_owned()).collect()
    }

    /// The pools of another process that must be open here as well, if one of them is not.
    ///
    /// # Errors
    /// The first of them, and why.
    pub(crate) fn check_open(&self, names: &[String]) -> Result<(), String> {
        for name in names {
            if let Some(Err(why)) = self.pools.get(name) {
                return Err(format!("pool {name:?}: {why}"));
            }
        }
        Ok(())
    }

    /// Checks that all open pools take changes, and so can be closed in order.
    ///
    /// # Errors
    /// The first pool that does not, and the reason.
    pub(crate) fn check_sound(&self) -> Result<(), String> {
        let failed = |pool: &Arc<StorePool>| {
            let why = pool.status().failed?;
            Some(format!("pool {:?} has failed: {why}", pool.name()))
        };
        self.pools.opened().iter().find_map(failed).map_or(Ok(()), Err)
    }

    /// Closes all pools: nothing uses them any more.
    pub(crate) fn close_all(&self) {
        self.pools.opened().iter().for_each(|pool| pool.close());
    }

    /// Makes all pools let their devices go, for a successor. Requests wait from now on.
    ///
    /// # Errors
    /// The pool that cannot, and why; the others have let go.
    pub(crate) fn stop_all(&self) -> Result<(), String> {
        let stop = |pool: &Arc<StorePool>| {
            pool.stop().map_err(|error| format!("pool {:?}: {error}", pool.name()))
        };
        self.pools.opened().iter().try_for_each(stop)
    }

    /// Goes on after [`Self::stop_all`].
    pub(crate) fn go_on(&self) {
        for pool in self.pools.opened() {
            if let Err(error) = pool.go_on() {
                let pool = pool.name();
                tracing::error!(pool, %error, "the pool cannot be opened again; restart the node");
            }
        }
    }
}
