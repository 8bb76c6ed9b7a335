//! Power cuts behind the writes of a real pool: the test serves the file beneath it, by FUSE, and
//! records each write and each sync as they come out of the kernel. So a sync that is missing
//! anywhere between a guest's flush and the file loses data here.
//!
//! `POWER_CUTS=n` tries so many cuts, `POWER_SEED=n` takes another run.

use std::collections::BTreeMap;
use std::sync::Mutex;

use random::Random;
use store::PoolVolumeKind;

use super::fuse::{FuseContent, FuseFile};
use super::recorded::{Kept, Moment, Recording, find_moment};
use super::*;

/// A small pool, in which segments are collected.
const SMALL_POOL_BYTES: u64 = 12 << 20;

/// Blocks of the volume.
const VOLUME_BLOCKS: u64 = 512;

/// Bytes of a read; a volume has a multiple of it.
const READ_BYTES: usize = 1 << 20;

/// Openings, each behind an end without a word.
const LIVES: u64 = 4;

/// Requests of a life.
const REQUESTS: u64 = 40;

/// Snapshots that are kept.
const SNAPSHOTS_MAX: usize = 2;

const ENOSPC: i32 = 28;

/// A file whose writes are recorded.
struct RecordedFile {
    bytes: Vec<u8>,
    recording: Arc<Mutex<Recording>>,
}

impl FuseContent for RecordedFile {
    fn asked(&mut self) {}

    fn read(&mut self, offset: u64, length: usize) -> Option<Result<Vec<u8>, i32>> {
        let from = (offset as usize).min(self.bytes.len());
        let to = (from + length).min(self.bytes.len());
        Some(Ok(self.bytes[from..to].to_vec()))
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Option<Result<(), i32>> {
        let from = offset as usize;
        let Some(into) = self.bytes.get_mut(from..from + bytes.len()) else {
            return Some(Err(ENOSPC));
        };
        into.copy_from_slice(bytes);
        self.recording.lock().expect("no test panics with it").wrote(0, from, bytes);
        Some(Ok(()))
    }

    fn sync(&mut self) -> Option<Result<(), i32>> {
        self.recording.lock().expect("no test panics with it").synced(0);
        Some(Ok(()))
    }
}

/// The word in each block of each volume and snapshot; 0 for zeroes.
type PoolWords = BTreeMap<String, Vec<u64>>;

fn fill(word: u64, block: u64) -> Vec<u8> {
    let word_at = |at: u64| match word {
        0 => 0,
        word => word ^ block << 40 ^ at << 52,
    };
    (0..BLOCK_BYTES as u64 / 8).flat_map(|at| word_at(at).to_le_bytes()).collect()
}

/// The requests of all lives.
struct PowerRun {
    random: Random,
    recording: Arc<Mutex<Recording>>,
    words: PoolWords,
    next: u64,
    moments: Vec<Moment<PoolWords>>,
}

impl PowerRun {
    fn steps(&self) -> usize {
        self.recording.lock().expect("no test panics with it").len()
    }

    /// A request is done that began at this step.
    fn done(&mut self, begun: usize, is_durable: bool) {
        let (ended, state) = (self.steps(), self.words.clone());
        self.moments.push(Moment { begun, ended, is_durable, state });
    }

    /// Some writes at once.
    fn write(&mut self, bench: &mut ChannelBench) {
        let mut ids = Vec::new();
        for _ in 0..self.random.between(1, 3) {
            let block = self.random.below(VOLUME_BLOCKS - 16);
            let blocks = self.random.between(1, 16);
            let is_free =
                |range: &std::ops::Range<u64>| range.end <= block || block + blocks <= range.start;
            if !ids.iter().all(|(_, _, range)| is_free(range)) {
                continue;
            }
            self.next += 1;
            let bytes: Vec<u8> =
                (block..block + blocks).flat_map(|at| fill(self.next, at)).collect();
            let buffer = contract::Buffer::filled(&bytes, 0);
            let id = bench.submit(Op::Write, block * BLOCK_BYTES as u64, Some(&buffer));
            let words = self.words.get_mut("v").expect("the volume");
            words[block as usize..(block + blocks) as usize].fill(self.next);
            ids.push((id, buffer, block..block + blocks));
        }
        for (id, _buffer, _) in ids {
            assert_eq!(bench.wait(id), Status::Done);
        }
    }

    fn request(&mut self, pool: &StorePool, volume: VolumeId, bench: &mut ChannelBench) {
        let begun = self.steps();
        let kind = self.random.below(12);
        match kind {
            0 | 1 => {
                let id = bench.submit(Op::Flush, 0, None);
                assert_eq!(bench.wait(id), Status::Done);
            }
            2 => {
                let (block, blocks) = (self.random.below(VOLUME_BLOCKS - 64), 64);
                let (offset, len) = (block * BLOCK_BYTES as u64, blocks * BLOCK_BYTES as u64);
                assert_eq!(bench.zero(Op::Discard, false, offset, len), Status::Done);
                let words = self.words.get_mut("v").expect("the volume");
                words[block as usize..(block + blocks) as usize].fill(0);
            }
            3 => {
                let snapshots = pool.volumes().into_iter().filter(|it| it.of == Some(volume));
                let snapshots: Vec<_> =
                    snapshots.filter(|it| it.kind == PoolVolumeKind::Snapshot).collect();
                if snapshots.len() < SNAPSHOTS_MAX {
                    self.next += 1;
                    let name = format!("s{}", self.next);
                    snapshot(pool, volume, &name);
                    self.words.insert(name, self.words["v"].clone());
                } else {
                    let gone = &snapshots[0];
                    pool.change(PoolChange::Remove { volume: gone.id }).expect("it is removed");
                    self.words.remove(&gone.name);
                }
            }
            _ => self.write(bench),
        }
        self.done(begun, matches!(kind, 0 | 1 | 3));
    }

    fn live(&mut self, paths: &[PathBuf]) {
        let begun = self.steps();
        let pool = open(paths);
        // The state that an opening has found is durable.
        self.done(begun, true);
        let found = pool.volumes().into_iter().find(|it| it.name == "v").map(|it| it.id);
        let id = found.unwrap_or_else(|| {
            let begun = self.steps();
            let id = make_volume(&pool, "v", VOLUME_BLOCKS * BLOCK_BYTES as u64);
            self.words.insert("v".to_owned(), vec![0; VOLUME_BLOCKS as usize]);
            self.done(begun, true);
            id
        });
        let volume = volume(&pool, id);
        let mut bench = ChannelBench::new(&volume, 8);
        for _ in 0..REQUESTS {
            self.request(&pool, id, &mut bench);
        }
    }
}

/// All that a pool has, read through its backend.
fn read_pool(paths: &[PathBuf]) -> BTreeMap<String, Vec<u8>> {
    let pool = open(paths);
    let mut found = BTreeMap::new();
    for it in pool.volumes() {
        if it.kind == PoolVolumeKind::Removing {
            continue;
        }
        let is_snapshot = it.kind == PoolVolumeKind::Snapshot;
        let volume = volume_with(&pool, it.id, Durability::Flush, is_snapshot).expect("there");
        let mut bench = ChannelBench::new(&volume, 8);
        let mut bytes = Vec::new();
        for _ in 0..it.blocks * BLOCK_BYTES as u64 / READ_BYTES as u64 {
            let read = bench.read(bytes.len() as u64, READ_BYTES);
            bytes.extend(read.expect("no block is damaged"));
        }
        found.insert(it.name, bytes);
    }
    found
}

fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().map_or(usual, |text| text.parse().expect("a number"))
}

#[test]
fn any_power_cut_of_a_real_pool_leaves_what_was_flushed() {
    const TEST: &str = "any_power_cut_of_a_real_pool_leaves_what_was_flushed";
    let Some(home) = Home::new(TEST) else { return };
    let bytes = std::fs::read(&home.create(&["new"], SMALL_POOL_BYTES)[0]).expect("its file");
    let recording = Arc::new(Mutex::new(Recording::new(vec![bytes.clone()])));
    let paths = home.paths(&["recorded"]);
    let file = RecordedFile { bytes, recording: Arc::clone(&recording) };
    let Some(fuse) = FuseFile::mount(TEST, &paths[0], SMALL_POOL_BYTES, file) else { return };
    let random = Random::new(number("POWER_SEED", 1));
    let (words, moments) = (PoolWords::new(), Vec::new());
    let mut run = PowerRun { random, recording, words, next: 0, moments };
    run.done(0, true);
    (0..LIVES).for_each(|_| run.live(&paths));
    drop(fuse);

    let recording = run.recording.lock().expect("no test panics with it").clone();
    let cut_path = home.paths(&["cut"]);
    let (cuts, mut tried) = (number("POWER_CUTS", 24) as usize, 0);
    for at in (1..=recording.len()).step_by(recording.len().div_ceil(cuts)) {
        let kept_ppm = [0, 300_000, 900_000][run.random.below(3) as usize];
        let torn_ppm = [0, 0, 200_000][run.random.below(3) as usize];
        let image = recording.up_to(at).cut(|_| {
            match (run.random.hits(torn_ppm), run.random.hits(kept_ppm)) {
                (true, _) => Kept::Sectors(run.random.draw() as u8),
                (false, true) => Kept::All,
                (false, false) => Kept::Nothing,
            }
        });
        std::fs::write(&cut_path[0], &image[0]).expect("room");
        let found = read_pool(&cut_path);
        let moment = find_moment(&run.moments, at, |before, after| {
            let has = |state: &PoolWords, name: &String, block: usize, bytes: &[u8]| {
                let word = state.get(name).and_then(|words| words.get(block));
                word.is_some_and(|&word| fill(word, block as u64) == bytes)
            };
            (found.keys().eq(after.keys()) || found.keys().eq(before.keys()))
                && found.iter().all(|(name, bytes)| {
                    let mut blocks = bytes.chunks(BLOCK_BYTES).enumerate();
                    blocks.all(|(at, it)| has(after, name, at, it) || has(before, name, at, it))
                })
        });
        let names: Vec<_> = found.keys().collect();
        assert!(moment.is_some(), "step {at} of {}: {names:?}", recording.len());
        tried += 1;
    }
    println!("{tried} cuts of {} writes and syncs of {LIVES} lives", recording.len());
}
