//! A stand-in until the pool is here.

use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use sidecore::CounterText;
use store::{PoolChange, PoolError, PoolStatus, PoolVolume, PoolVolumeKind, VolumeId};

use crate::backend::MemoryVolume;
use crate::backend::kind::{BackendNeeds, BackendVolume, Opening};
use crate::size::Size;
use crate::volume::{Channel, OpenArguments, OpenError, Volume, VolumeInfo};

/// A ring.
#[derive(Debug)]
pub struct StoreRing;

impl StoreRing {
    /// A ring.
    ///
    /// # Errors
    /// Never.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self)
    }
}

/// Settings.
#[derive(Clone, Copy, Debug)]
pub struct StoreSettings {
    /// Memory.
    pub memory_bytes: u64,
    /// Log.
    pub log_bytes: u64,
}

/// A plan.
#[derive(Clone, Debug)]
pub struct PoolPlan {
    /// Paths.
    pub paths: Vec<PathBuf>,
    /// Size.
    pub size_bytes: Option<u64>,
    /// Segment.
    pub segment_bytes: u64,
    /// Force.
    pub force: bool,
}

/// Segment.
pub const SEGMENT_BYTES: u64 = 32 << 20;

/// Errors.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct StorePoolError(pub String);

/// A pool.
#[derive(Debug)]
pub struct StorePool {
    name: String,
    paths: Vec<PathBuf>,
    all: Mutex<Vec<PoolVolume>>,
}

impl StorePool {
    /// Needs.
    pub const NEEDS: BackendNeeds = BackendNeeds { uring: false, calls: &[libc::SYS_fallocate] };
    /// Counters.
    pub const COUNTERS: &'static [CounterText] = &[];

    /// Creates.
    ///
    /// # Errors
    /// Some.
    pub fn create(plan: &PoolPlan) -> Result<(), StorePoolError> {
        let _ = plan;
        Ok(())
    }

    /// Opens.
    ///
    /// # Errors
    /// Some.
    pub fn open(
        name: &str,
        paths: &[PathBuf],
        _settings: StoreSettings,
        _ring: StoreRing,
    ) -> Result<Arc<Self>, StorePoolError> {
        if let Some(missing) = paths.iter().find(|path| !path.exists()) {
            return Err(StorePoolError(format!("{missing:?} is not there")));
        }
        let all = Mutex::default();
        Ok(Arc::new(Self { name: name.to_owned(), paths: paths.to_vec(), all }))
    }

    /// Name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Paths.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// Status.
    pub fn status(&self) -> PoolStatus {
        PoolStatus::default()
    }

    /// Volumes.
    pub fn volumes(&self) -> Vec<PoolVolume> {
        self.all.lock().clone()
    }

    /// Counters.
    pub fn counted(&self, _put: &mut dyn FnMut(&str, u64)) {}

    /// Changes.
    ///
    /// # Errors
    /// Some.
    pub fn change(&self, change: PoolChange) -> Result<VolumeId, PoolError> {
        let mut all = self.all.lock();
        let id = VolumeId(all.len() as u32 + 1);
        let (kind, of, parent, at_s) = (PoolVolumeKind::Volume, None, None, 0);
        match change {
            PoolChange::Create { name, blocks } => {
                all.push(PoolVolume { id, name, kind, of, parent, blocks, at_s });
            }
            PoolChange::Snapshot { volumes, name, at_s } => {
                for of in volumes {
                    let id = VolumeId(all.len() as u32 + 1);
                    let blocks = all[of.0 as usize - 1].blocks;
                    let (kind, name, of) = (PoolVolumeKind::Snapshot, name.clone(), Some(of));
                    all.push(PoolVolume { id, name, kind, of, parent, blocks, at_s });
                }
            }
            PoolChange::Clone { snapshot, name } => {
                let blocks = all[snapshot.0 as usize - 1].blocks;
                let parent = Some(snapshot);
                all.push(PoolVolume { id, name, kind, of, parent, blocks, at_s });
            }
            PoolChange::Resize { volume, blocks } => all[volume.0 as usize - 1].blocks = blocks,
            PoolChange::Rename { volume, name } => all[volume.0 as usize - 1].name = name,
            PoolChange::Remove { volume } => {
                all[volume.0 as usize - 1].kind = PoolVolumeKind::Removing;
            }
            PoolChange::Rollback { .. } | PoolChange::Clear { .. } => {}
        }
        Ok(id)
    }

    /// Closes.
    pub fn close(&self) {}

    /// Stops.
    ///
    /// # Errors
    /// Some.
    pub fn stop(&self) -> Result<(), String> {
        Ok(())
    }

    /// Goes on.
    ///
    /// # Errors
    /// Some.
    pub fn go_on(&self) -> Result<(), StorePoolError> {
        Ok(())
    }
}

/// A volume.
#[derive(Debug)]
pub struct StoreVolume {
    pool: Arc<StorePool>,
    id: VolumeId,
    memory: MemoryVolume,
}

impl StoreVolume {
    /// Counters.
    pub const COUNTERS: &'static [CounterText] = &[];

    /// Opens.
    ///
    /// # Errors
    /// Some.
    pub fn open(
        pool: &Arc<StorePool>,
        id: VolumeId,
        opening: &Opening<'_>,
    ) -> Result<Self, String> {
        let _ = opening;
        let size = pool.volumes()[id.0 as usize - 1].size_bytes();
        let memory = MemoryVolume::with_incarnation(size, Default::default());
        let memory = memory.map_err(|error| error.to_string())?;
        Ok(Self { pool: Arc::clone(pool), id, memory })
    }
}

impl Volume for StoreVolume {
    fn info(&self) -> VolumeInfo {
        VolumeInfo { volatile: false, ..self.memory.info() }
    }

    fn size(&self) -> Size {
        self.memory.size()
    }

    fn open(&self, open: &OpenArguments<'_>) -> Result<Box<dyn Channel>, OpenError> {
        Volume::open(&self.memory, open)
    }
}

impl BackendVolume for StoreVolume {
    fn describe(&self) -> String {
        format!("pool {}", self.pool.name())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn in_pool(&self) -> Option<(&Arc<StorePool>, VolumeId)> {
        Some((&self.pool, self.id))
    }
}
