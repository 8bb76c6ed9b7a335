//! Pools over files.

mod configured;
mod devices;
mod faults;
#[path = "../../../../node/tests/live/fuse.rs"]
mod fuse;
mod power;
#[path = "../../../../store/tests/devices/recorded.rs"]
mod recorded;
mod sidecores;
mod streams;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use store::block::BLOCK_BYTES;
use store::{PoolChange, VolumeId};
use tempfile::TempDir;

use super::*;
use crate::backend::kind::Opening;
use crate::contract::{self, ChannelBench};
use crate::volume::{Durability, Op, Status, Topology, Volume};

/// Small segments, so that a small pool has many.
const TEST_SEGMENT_BYTES: u64 = 256 << 10;

/// The length of a pool's file in most tests.
const POOL_BYTES: u64 = 32 << 20;

/// Long enough for a lock that is let go, and short for a lock that is kept.
const LOCK_TIMEOUT: Duration = Duration::from_millis(50);

/// A directory for pools.
struct Home(TempDir);

impl Home {
    /// `None`, with a line that says why, where no io_uring can be had.
    fn new(test: &str) -> Option<Self> {
        if let Err(error) = StoreRing::new() {
            println!("SKIP {test}: no io_uring here: {error}");
            return None;
        }
        Some(Self(TempDir::new().expect("room")))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn paths(&self, names: &[&str]) -> Vec<PathBuf> {
        names.iter().map(|name| self.path(name)).collect()
    }

    /// A new pool of such files, closed.
    fn create(&self, names: &[&str], size_bytes: u64) -> Vec<PathBuf> {
        let paths = self.paths(names);
        StorePool::create(&plan(&paths, size_bytes)).unwrap_or_else(|error| panic!("{error}"));
        paths
    }
}

fn plan(paths: &[PathBuf], size_bytes: u64) -> PoolPlan {
    PoolPlan {
        paths: paths.to_vec(),
        size_bytes: Some(size_bytes),
        segment_bytes: Some(TEST_SEGMENT_BYTES),
        force: false,
    }
}

fn try_open(paths: &[PathBuf]) -> Result<Arc<StorePool>, StorePoolError> {
    let settings =
        StoreSettings { memory_bytes: 4 << 20, log_bytes: 8 << 20, ..StoreSettings::default() };
    let ring = StoreRing::new().expect("looked at before");
    StorePool::open_within("p", paths, settings, ring, LOCK_TIMEOUT)
}

fn open(paths: &[PathBuf]) -> Arc<StorePool> {
    try_open(paths).unwrap_or_else(|error| panic!("{error}"))
}

fn make_volume(pool: &StorePool, name: &str, size_bytes: u64) -> VolumeId {
    let blocks = size_bytes / BLOCK_BYTES as u64;
    pool.change(PoolChange::Create { name: name.to_owned(), blocks }).expect("a new volume")
}

fn snapshot(pool: &StorePool, volume: VolumeId, name: &str) -> VolumeId {
    let change = PoolChange::Snapshot { volumes: vec![volume], name: name.to_owned(), at_s: 7 };
    pool.change(change).expect("a new snapshot");
    let all = pool.volumes();
    let found = all.iter().find(|it| it.of == Some(volume) && it.name == name);
    found.expect("it is listed").id
}

fn volume_with(
    pool: &Arc<StorePool>,
    id: VolumeId,
    durability: Durability,
    read_only: bool,
) -> Result<StoreVolume, String> {
    let pools = Pools::default();
    let topology = Topology::default();
    let (name, is_new, key) = ("v", false, None);
    let opening = Opening { name, pools: &pools, durability, read_only, topology, is_new, key };
    StoreVolume::open(pool, id, &opening)
}

fn volume(pool: &Arc<StorePool>, id: VolumeId) -> StoreVolume {
    volume_with(pool, id, Durability::Flush, false).expect("it is there")
}

#[test]
fn a_volume_of_a_pool_keeps_the_contract() {
    let Some(home) = Home::new("a_volume_of_a_pool_keeps_the_contract") else { return };
    let pool = open(&home.create(&["a", "b"], POOL_BYTES));
    for (name, durability) in [("one", Durability::Flush), ("two", Durability::WriteThrough)] {
        let id = make_volume(&pool, name, 4 << 20);
        contract::check_all(&volume_with(&pool, id, durability, false).expect("there"));
    }
    assert_eq!(pool.status().failed, None);
    pool.close();
}

#[test]
fn written_blocks_are_there_after_a_close_and_after_a_crash() {
    let Some(home) = Home::new("written_blocks_are_there_after") else { return };
    let paths = home.create(&["a"], POOL_BYTES);
    let mut wanted = vec![0; 1 << 20];
    let mut made = None;
    for turn in 0..6_u8 {
        let pool = open(&paths);
        let id = *made.get_or_insert_with(|| make_volume(&pool, "v", 1 << 20));
        let volume = volume(&pool, id);
        let mut bench = ChannelBench::new(&volume, 8);
        assert_eq!(bench.read(0, wanted.len()).as_ref(), Ok(&wanted), "turn {turn}");
        for piece in 0..3 {
            // Also in the middle of blocks.
            let at = usize::from(turn) * 70_144 + piece * 12_800;
            let bytes = vec![turn * 8 + piece as u8 + 1; 9_728];
            assert_eq!(bench.write(at as u64, &bytes), Status::Done);
            wanted[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        assert_eq!(bench.zero(Op::Discard, false, 512 << 10, 10_240), Status::Done);
        wanted[512 << 10..][..10_240].fill(0);
        if turn % 2 == 0 {
            bench.abandon();
            drop(bench);
            pool.close();
        }
    }
}

#[test]
fn a_snapshot_stays_what_it_was_and_is_only_read() {
    let Some(home) = Home::new("a_snapshot_stays_what_it_was") else { return };
    let pool = open(&home.create(&["a"], POOL_BYTES));
    let id = make_volume(&pool, "v", 1 << 20);
    let live = volume(&pool, id);
    let mut bench = ChannelBench::new(&live, 8);
    assert_eq!(bench.write(0, &[1; 8192]), Status::Done);
    let kept = snapshot(&pool, id, "s");
    assert_eq!(bench.write(4096, &[2; 8192]), Status::Done);
    let refused = volume_with(&pool, kept, Durability::Flush, false).expect_err("not to write");
    assert!(refused.contains("read-only = true"), "{refused}");
    let old = volume_with(&pool, kept, Durability::Flush, true).expect("to read");
    let mut old = ChannelBench::new(&old, 8);
    assert_eq!(old.read(0, 8192), Ok(vec![1; 8192]));
    assert_eq!(old.read(8192, 4096), Ok(vec![0; 4096]));
    assert_eq!(old.write(0, &[3; 512]), Status::Invalid);
    let copied = pool.change(PoolChange::Clone { snapshot: kept, name: "w".to_owned() });
    let copied = volume(&pool, copied.expect("a clone"));
    let mut copied = ChannelBench::new(&copied, 8);
    assert_eq!(copied.write(0, &[4; 512]), Status::Done);
    assert_eq!(copied.read(0, 1024), Ok([[4; 512], [1; 512]].concat()));
    assert_eq!(bench.read(0, 8192), Ok([[1; 4096], [2; 4096]].concat()));
    let back = PoolChange::Rollback { volume: id, snapshot: kept };
    pool.change(back).expect("back");
    assert_eq!(bench.read(0, 8192), Ok(vec![1; 8192]));
}

#[test]
fn a_size_changes_for_all_that_look_at_it() {
    let Some(home) = Home::new("a_size_changes_for_all") else { return };
    let pool = open(&home.create(&["a"], POOL_BYTES));
    let id = make_volume(&pool, "v", 1 << 20);
    let kept = snapshot(&pool, id, "s");
    let (one, other) = (volume(&pool, id), volume(&pool, id));
    let mut bench = ChannelBench::new(&other, 4);
    assert_eq!(bench.read(1 << 20, 512), Err(Status::Invalid));
    let resizable = crate::backend::BackendVolume::as_resizable(&one).expect("it is");
    resizable.resize(2 << 20, None, false).expect("larger");
    assert_eq!((one.size().get(), other.info().size_bytes), (2 << 20, 2 << 20));
    assert_eq!(bench.write(1 << 20, &[9; 4096]), Status::Done);
    assert!(resizable.resize(1 << 20, None, false).is_err(), "data would be lost");
    assert!(resizable.resize((1 << 20) + 512, None, true).is_err(), "half a block");
    pool.change(PoolChange::Rollback { volume: id, snapshot: kept }).expect("back");
    assert_eq!(one.size().get(), 1 << 20, "a snapshot has its size");
    assert_eq!(bench.read(1 << 20, 512), Err(Status::Invalid));
}
