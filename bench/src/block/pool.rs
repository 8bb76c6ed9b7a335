//! The pool of a measurement: one file, and a volume of the usual size in it.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use ::store::{PoolChange, PoolVolumeKind};
use anyhow::{Context, Result, ensure};
use volume::backend::store::{PoolPlan, StorePool, StorePoolError, StoreRing, StoreSettings};

use super::options::BlockOptions;
use super::place::{BlockSetup, FILL_DEPTH};
use crate::load::Load;
use crate::measure::DISK_BYTES;

/// The length of the file: the volume has a third of its room, so that a measurement of some
/// seconds ends before the pool collects.
const ROOMY_BYTES: u64 = 4 * DISK_BYTES;
const ROOMY_SEGMENT_BYTES: u64 = DISK_BYTES / 64;

/// The same of a pool of which the volume has four fifths.
const TIGHT_BYTES: u64 = DISK_BYTES / 8 * 13;
const TIGHT_SEGMENT_BYTES: u64 = if cfg!(debug_assertions) { 1 << 20 } else { 4 << 20 };

/// A pool's device is written this often before it counts as collecting: its free segments are
/// used up, and what is left of old ones has been moved.
const ROUNDS_BEFORE: u64 = 3;

/// The longest time for that.
const ROUNDS_PATIENCE: Duration = Duration::from_secs(300);

/// The time of a part of it.
const PART: Duration = Duration::from_millis(500);

/// The time between two looks at the removal of a snapshot.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

const POOL: &str = "bench";

/// Makes a pool in a file that has none. A file that is not there is written first: blocks that a
/// file system has reserved and never written cost a change of its own tables with each first
/// write.
///
/// # Errors
/// When the file cannot be written, or holds something else.
pub fn make(path: &Path, is_tight: bool) -> Result<()> {
    let (bytes, segment_bytes) = match is_tight {
        true => (TIGHT_BYTES, TIGHT_SEGMENT_BYTES),
        false => (ROOMY_BYTES, ROOMY_SEGMENT_BYTES),
    };
    if !path.exists() {
        write(path, bytes).with_context(|| format!("writing {}", path.display()))?;
    }
    let plan = PoolPlan {
        paths: vec![path.to_owned()],
        size_bytes: None,
        segment_bytes: Some(segment_bytes),
        force: false,
    };
    match StorePool::create(&plan) {
        Ok(()) | Err(StorePoolError::InUse { what: "a pool", .. }) => Ok(()),
        Err(error) => Err(error).context("making the pool"),
    }
}

fn write(path: &Path, bytes: u64) -> std::io::Result<()> {
    static ZEROES: [u8; 1 << 20] = [0; 1 << 20];
    let mut file = File::create(path)?;
    for _ in 0..bytes / ZEROES.len() as u64 {
        file.write_all(&ZEROES)?;
    }
    file.sync_all()
}

/// Takes a snapshot of the pool's volume, in place of the last one, while no node has the pool.
///
/// # Errors
/// When the pool cannot be opened or changed, or its space does not come back in time.
pub fn snapshot(path: &Path) -> Result<()> {
    let ring = StoreRing::new().context("setting io_uring up")?;
    let pool = StorePool::open(POOL, &[path.to_owned()], StoreSettings::default(), ring)?;
    let (mut volume, mut at_s) = (None, 0);
    for it in pool.volumes() {
        if it.kind == PoolVolumeKind::Snapshot {
            pool.change(PoolChange::Remove { volume: it.id })?;
            at_s = it.at_s + 1;
        } else {
            volume = Some(it.id);
        }
    }
    let volume = volume.context("the pool has no volume yet")?;
    let began = Instant::now();
    while pool.volumes().len() > 1 || pool.status().is_removing {
        ensure!(began.elapsed() < ROUNDS_PATIENCE, "a snapshot is not removed in time");
        thread::sleep(LOOK_AGAIN);
    }
    pool.change(PoolChange::Snapshot { volumes: vec![volume], name: "before".to_owned(), at_s })?;
    pool.close();
    Ok(())
}

/// The keys of the volume's backend.
pub(super) fn backend() -> String {
    format!("pool = {POOL:?}, size = {:?}", format!("{}MiB", DISK_BYTES >> 20))
}

/// The pool's table. All of its map fits in the default memory.
pub(super) fn table(path: &Path) -> String {
    format!("[[pool]]\nname = {POOL:?}\ndevices = [{path:?}]\n")
}

/// Writes until the pool collects as it will from then on.
pub(super) fn churn(options: &BlockOptions, place: &mut BlockSetup) -> Result<()> {
    let load =
        Load { depth: FILL_DEPTH, duration: PART, interval: None, ..options.load(FILL_DEPTH) };
    let path = options.volume.file().context("a pool is in a file")?;
    let wanted = ROUNDS_BEFORE * fs::metadata(path)?.len() / 4096;
    let began = Instant::now();
    while place.pool_blocks_written()? < wanted {
        place.run(load)?;
        ensure!(
            began.elapsed() < ROUNDS_PATIENCE,
            "the pool does not get {wanted} blocks in {ROUNDS_PATIENCE:?}: use a faster disk"
        );
    }
    Ok(())
}
