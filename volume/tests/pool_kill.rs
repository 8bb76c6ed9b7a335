//! A process with a pool under load is killed, again and again: nothing that it has acknowledged is
//! lost, and nothing comes that it has not begun.
//!
//! The victim is this program once more. It notes in a file, for each block, the number of the last
//! write that it has begun and of the last acknowledged write. The file is in the page
//! cache, which a killed process leaves behind.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use random::Random;
use sidecore::Services;
use store::{PoolChange, VolumeId};
use tempfile::TempDir;
use virtio::Segment;
use volume::backend::Opening;
use volume::backend::store::{PoolPlan, Pools, StorePool, StoreRing, StoreSettings, StoreVolume};
use volume::{Durability, IoId, Op, OpenArguments, Status, Topology, Volume, io_table};

/// The directory of the victim's pool. Without it the victim's test has nothing to do.
const DIRECTORY: &str = "VRIO_POOL_VICTIM";

const BLOCK_BYTES: usize = 4096;
const BLOCKS: u64 = 1024;
/// The blocks of one of the victim's two threads.
const PART_BLOCKS: u64 = BLOCKS / 2;
const DEPTH: u16 = 8;
const KILLS: u64 = 20;

fn open_pool(directory: &Path) -> Arc<StorePool> {
    let settings =
        StoreSettings { memory_bytes: 2 << 20, log_bytes: 4 << 20, ..StoreSettings::default() };
    let ring = StoreRing::new().expect("there is an io_uring");
    let paths = [directory.join("b"), directory.join("a")];
    StorePool::open("p", &paths, settings, ring).unwrap_or_else(|error| panic!("{error}"))
}

fn open_volume(pool: &Arc<StorePool>, id: VolumeId) -> StoreVolume {
    let (pools, topology) = (Pools::default(), Topology::default());
    let (durability, read_only, is_new) = (Durability::Flush, false, false);
    let (name, key) = ("v", None);
    let opening = Opening { name, pools: &pools, durability, read_only, topology, is_new, key };
    StoreVolume::open(pool, id, &opening).expect("the volume is there")
}

/// The numbers of each block's last write that was begun, and of its last that was acknowledged.
struct Notes(File);

impl Notes {
    fn open(directory: &Path) -> Self {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = options.open(directory.join("notes")).expect("a file");
        file.set_len(BLOCKS * 16).expect("room");
        Self(file)
    }

    fn note(&self, block: u64, acknowledged: bool, number: u64) {
        let at = block * 16 + if acknowledged { 8 } else { 0 };
        self.0.write_all_at(&number.to_le_bytes(), at).expect("written");
    }

    /// First the number of the begun write, then that of the acknowledged write.
    fn of(&self, block: u64) -> [u64; 2] {
        let mut bytes = [0; 16];
        self.0.read_exact_at(&mut bytes, block * 16).expect("long enough");
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight"));
        [number(0), number(8)]
    }

    fn acknowledged(&self) -> u64 {
        (0..BLOCKS).map(|block| self.of(block)[1]).max().unwrap_or(0)
    }

    /// The highest number that may be on the pool.
    fn begun(&self) -> u64 {
        (0..BLOCKS).map(|block| self.of(block)[0]).max().unwrap_or(0)
    }
}

/// The content of a block after the write of this number: even numbers are discards.
fn content(block: u64, number: u64) -> Vec<u8> {
    if number.is_multiple_of(2) {
        return vec![0; BLOCK_BYTES];
    }
    let stamp = [block.to_le_bytes(), number.to_le_bytes()].concat();
    stamp.repeat(BLOCK_BYTES / stamp.len())
}

/// A request under way.
struct Begun {
    id: IoId,
    block: u64,
    blocks: u64,
    number: u64,
    /// Memory of the request.
    _data: Vec<u8>,
}

/// Writes and discards on its part of the volume, for ever.
fn load(volume: &StoreVolume, notes: &Notes, first: u64, seed: u64, mut number: u64) {
    let mut random = Random::new(seed);
    let services = Services::new();
    let open = OpenArguments { services: &services, depth: DEPTH };
    let mut channel = Volume::open(volume, &open).expect("it opens");
    let mut ios = io_table(DEPTH);
    let (mut begun, mut done): (Vec<Begun>, _) = (Vec::new(), Vec::new());
    loop {
        let blocks = 1 + random.below(20);
        let block = first + random.below(PART_BLOCKS - blocks);
        // Two writes of a block at once may come in any order.
        let is_free = |it: &Begun| it.block + it.blocks <= block || block + blocks <= it.block;
        if !ios.is_full() && begun.iter().all(is_free) {
            number += 1 + random.below(2);
            let id = ios.take().expect("not full");
            let io = &mut ios[id];
            io.reset();
            io.offset_bytes = block * BLOCK_BYTES as u64;
            io.len_bytes = (blocks as usize * BLOCK_BYTES) as u32;
            let mut data = Vec::new();
            if number.is_multiple_of(2) {
                io.op = Op::Discard;
            } else {
                io.op = Op::Write;
                (block..block + blocks).for_each(|at| data.extend(content(at, number)));
                io.segments.push(Segment { addr: data.as_mut_ptr(), len: io.len_bytes });
            }
            (block..block + blocks).for_each(|at| notes.note(at, false, number));
            begun.push(Begun { id, block, blocks, number, _data: data });
            channel.submit(&mut ios, id);
        }
        let _ = channel.poll(&mut ios, sidecore::now_ns(), &mut done);
        for id in done.drain(..) {
            assert_eq!(ios[id].status, Status::Done);
            ios.free(id);
            let place = begun.iter().position(|it| it.id == id).expect("begun");
            let it = begun.swap_remove(place);
            (it.block..it.block + it.blocks).for_each(|at| notes.note(at, true, it.number));
        }
    }
}

/// Snapshots that come and go, for ever.
fn snapshots(pool: &StorePool, volume: VolumeId) {
    for turn in 0.. {
        let (volumes, name) = (vec![volume], format!("s{}-{turn}", std::process::id()));
        pool.change(PoolChange::Snapshot { volumes, name, at_s: 0 }).expect("a snapshot");
        let snapshots: Vec<_> = pool.volumes().into_iter().filter(|it| it.of.is_some()).collect();
        if let Some(oldest) = snapshots.iter().min_by_key(|it| it.id)
            && snapshots.len() > 3
        {
            // It may be on its way out already.
            let _ = pool.change(PoolChange::Remove { volume: oldest.id });
        }
        thread::sleep(Duration::from_millis(3));
    }
}

/// The program that is killed.
#[test]
fn the_victim_works_until_it_is_killed() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let directory = Path::new(&directory);
    let notes = Notes::open(directory);
    let pool = open_pool(directory);
    let found = pool.volumes().into_iter().find(|it| it.name == "v");
    let id = found.map_or_else(
        || pool.change(PoolChange::Create { name: "v".to_owned(), blocks: BLOCKS }).expect("new"),
        |found| found.id,
    );
    let volume = open_volume(&pool, id);
    let (number, seed) = (notes.begun(), u64::from(std::process::id()));
    thread::scope(|scope| {
        for part in 0..2 {
            let (volume, notes) = (&volume, &notes);
            scope.spawn(move || load(volume, notes, part * PART_BLOCKS, seed + part, number));
        }
        snapshots(&pool, id);
    });
}

fn read_all(volume: &StoreVolume) -> Vec<u8> {
    let services = Services::new();
    let open = OpenArguments { services: &services, depth: 1 };
    let mut channel = Volume::open(volume, &open).expect("it opens");
    let mut ios = io_table(1);
    let mut all = vec![0; BLOCKS as usize * BLOCK_BYTES];
    for (at, piece) in all.chunks_mut(1 << 20).enumerate() {
        let id = ios.take().expect("empty");
        ios[id].reset();
        (ios[id].op, ios[id].offset_bytes) = (Op::Read, (at as u64) << 20);
        ios[id].len_bytes = piece.len() as u32;
        let segment = Segment { addr: piece.as_mut_ptr(), len: piece.len() as u32 };
        ios[id].segments.push(segment);
        channel.submit(&mut ios, id);
        let mut done = Vec::new();
        while done.is_empty() {
            let _ = channel.poll(&mut ios, sidecore::now_ns(), &mut done);
        }
        assert_eq!(ios[id].status, Status::Done);
        ios.free(id);
    }
    all
}

/// Whether the block's content is that of the write that was acknowledged last, or of one begun
/// since.
fn is_right(block: u64, found: &[u8], [begun, acknowledged]: [u64; 2]) -> bool {
    if found.iter().all(|byte| *byte == 0) {
        let even = acknowledged.next_multiple_of(2);
        return acknowledged == 0 || even <= begun;
    }
    let number = u64::from_le_bytes(found[8..16].try_into().expect("eight"));
    (acknowledged..=begun).contains(&number) && found == content(block, number)
}

#[test]
fn a_killed_process_loses_nothing_that_it_has_acknowledged() {
    if let Err(error) = StoreRing::new() {
        let test = "a_killed_process_loses_nothing_that_it_has_acknowledged";
        return println!("SKIP {test}: no io_uring here: {error}");
    }
    let home = TempDir::new().expect("room");
    let directory = home.path();
    let paths = vec![directory.join("a"), directory.join("b")];
    let size_bytes = Some(32 << 20);
    let plan = PoolPlan { paths, size_bytes, segment_bytes: Some(256 << 10), force: false };
    StorePool::create(&plan).unwrap_or_else(|error| panic!("{error}"));
    let notes = Notes::open(directory);
    let mut random = Random::new(u64::from(std::process::id()));
    for kill in 0..KILLS {
        let before = notes.acknowledged();
        let mut victim = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "the_victim_works_until_it_is_killed", "--nocapture"])
            .env(DIRECTORY, directory)
            .stdout(Stdio::null())
            .spawn()
            .expect("it starts");
        let began = Instant::now();
        while notes.acknowledged() == before {
            assert!(began.elapsed() < Duration::from_secs(60), "the victim does not begin");
            assert!(victim.try_wait().expect("ours").is_none(), "the victim ended by itself");
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_millis(random.below(200)));
        victim.kill().expect("it runs");
        let status = victim.wait().expect("it has ended");
        assert_eq!(status.code(), None, "the victim ended by itself: {status}");
        let pool = open_pool(directory);
        let id = pool.volumes().into_iter().find(|it| it.name == "v").expect("made before").id;
        let all = read_all(&open_volume(&pool, id));
        for (block, found) in all.chunks(BLOCK_BYTES).enumerate() {
            let (block, noted) = (block as u64, notes.of(block as u64));
            assert!(is_right(block, found, noted), "kill {kill}, block {block}: {noted:?}");
        }
        assert_eq!(pool.status().counters.damaged_blocks, 0);
        if kill % 5 == 4 {
            pool.close();
        }
    }
    println!("numbers up to {} were used", notes.begun());
}
