//! The cost of requests, in requests to devices. Times are measured elsewhere: these are counts,
//! and a change of one is a change of the design.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use random::Random;
use store::block::{BLOCK_BYTES, Block};
use store::{
    Admission, CACHE_BLOCKS_MIN, DedupOptions, DeviceLayout, PageCompression, PoolChange,
    PoolCompletion, PoolEngine, PoolLayout, PoolOptions, PoolStatus, RequestTag, VolumeId,
    format_pool,
};

#[path = "devices/memory.rs"]
mod memory;

#[path = "devices/written.rs"]
mod written;

#[path = "devices/zipf.rs"]
mod zipf;

use memory::{DeviceCounts, DeviceWatch, MemoryDevices};
use written::WrittenBlocks;
use zipf::Zipf;

/// The pool.
const UUID: [u8; 16] = [1; 16];

/// Rounds in which anything here must end.
const ROUNDS_MAX: u64 = 100_000;

/// Pages that collection moves in a round, at most.
const MOVES_PER_ROUND_MAX: u64 = 49;

/// Pages that collection moves for a page that a guest writes, in the mean of so many. A segment
/// is collected for a sixteenth of it at least, and most of them give much more.
const MOVES_PER_WRITE_MAX: u64 = 4;
const WINDOW_WRITES: u64 = 2_000;

/// A pool with one volume on devices that count.
struct CountedPool {
    disks: MemoryDevices,
    engine: PoolEngine,
    volume: VolumeId,
    now_ns: u64,
    tag: u64,
    /// The first block of the last data that came.
    came: Block,
}

impl CountedPool {
    fn new(devices: usize, segments: u64, segment_blocks: u32, volume_blocks: u64) -> Self {
        let blocks = 16 + segments * u64::from(segment_blocks);
        let device = |at: usize| DeviceLayout { uuid: [at as u8 + 2; 16], blocks };
        let devices = (0..devices).map(device).collect::<Vec<_>>();
        let mut disks = MemoryDevices::new(devices.len(), blocks);
        let layout = PoolLayout { uuid: UUID, segment_blocks, devices };
        format_pool(&mut disks, &layout).expect("a new pool");
        let engine = Self::open(&mut disks);
        let mut pool =
            Self { disks, engine, volume: VolumeId(0), now_ns: 1, tag: 0, came: Block::ZERO };
        let change = PoolChange::Create { name: "v".into(), blocks: volume_blocks };
        let tag = pool.tag();
        assert_eq!(pool.engine.change(tag, change), Admission::Taken);
        pool.volume = pool.finish(1);
        pool.rest();
        pool
    }

    fn open(disks: &mut MemoryDevices) -> PoolEngine {
        let options = PoolOptions { cache_blocks: CACHE_BLOCKS_MIN, log_blocks_max: 1_000_000_000 };
        let sizes = disks.sizes();
        PoolEngine::open(disks, &sizes, options, 7, 1).expect("the pool opens")
    }

    fn tag(&mut self) -> RequestTag {
        self.tag += 1;
        RequestTag(self.tag)
    }

    /// A round; the ends of requests, and the last one's volume.
    fn round(&mut self) -> (u64, VolumeId) {
        self.now_ns += 1_000_000;
        self.engine.poll(self.now_ns);
        self.disks.serve(&mut self.engine);
        let (mut done, mut volume) = (0, VolumeId(0));
        while let Some(completion) = self.engine.next_completion() {
            match completion {
                PoolCompletion::Data { buffer: Some(buffer), .. } => {
                    self.came.clone_from(&buffer.blocks()[0]);
                    self.engine.recycle(buffer);
                }
                PoolCompletion::Data { .. } => self.came = Block::ZERO,
                PoolCompletion::Done { result, .. } => {
                    volume = result.expect("the request ends well");
                    done += 1;
                }
            }
        }
        (done, volume)
    }

    /// Rounds until so many requests have ended.
    fn finish(&mut self, requests: u64) -> VolumeId {
        let mut left = requests;
        for _ in 0..ROUNDS_MAX {
            let (done, volume) = self.round();
            left -= done;
            if left == 0 {
                return volume;
            }
        }
        panic!("{left} of {requests} requests have no end");
    }

    fn rest(&mut self) {
        for _ in 0..ROUNDS_MAX {
            self.round();
            if !self.engine.is_busy() {
                return;
            }
        }
        panic!("the pool does not rest: {:?}", self.engine.status());
    }

    fn write(&mut self, block: u64) -> Admission {
        let (tag, volume) = (self.tag(), self.volume);
        self.engine.write(tag, volume, block, 1, &mut |_, page| page.0.fill(block as u8 | 1))
    }

    fn read(&mut self, block: u64) {
        let (tag, volume) = (self.tag(), self.volume);
        assert_eq!(self.engine.read(tag, volume, block, 1), Admission::Taken);
        self.finish(1);
    }

    fn flush(&mut self) {
        let tag = self.tag();
        assert_eq!(self.engine.flush(tag), Admission::Taken);
        self.finish(1);
    }

    fn reset(&mut self) {
        self.disks.counts = DeviceCounts::default();
    }
}

#[test]
fn writes_are_one_row_for_all_that_arrive_together() {
    let mut pool = CountedPool::new(1, 64, 512, 4_000);
    let mut random = Random::new(1);
    pool.reset();
    for _ in 0..256 {
        assert_eq!(pool.write(random.below(4_000)), Admission::Taken);
        pool.finish(1);
    }
    assert_eq!(pool.disks.counts.writes, 256, "one write of the device each");
    assert_eq!(pool.disks.counts.written_blocks, 2 * 256, "a head and a block");
    assert_eq!((pool.disks.counts.reads, pool.disks.counts.syncs), (0, 0));
    pool.reset();
    for _ in 0..8 {
        for _ in 0..32 {
            assert_eq!(pool.write(random.below(4_000)), Admission::Taken);
        }
        pool.finish(32);
    }
    // One more where a segment ends.
    assert!((8..=9).contains(&pool.disks.counts.writes), "{} writes", pool.disks.counts.writes);
    assert_eq!(
        pool.disks.counts.written_blocks,
        256 + pool.disks.counts.writes,
        "a head for 32 blocks"
    );
    assert_eq!((pool.disks.counts.reads, pool.disks.counts.syncs), (0, 0));
}

#[test]
fn a_flushed_write_is_one_write_and_a_sync_of_each_device() {
    let mut pool = CountedPool::new(2, 64, 512, 4_000);
    pool.reset();
    for block in 0..64 {
        assert_eq!(pool.write(block), Admission::Taken);
        pool.finish(1);
        pool.flush();
    }
    assert_eq!((pool.disks.counts.writes, pool.disks.counts.written_blocks), (64, 2 * 64));
    assert_eq!(pool.disks.counts.syncs, 2 * 64);
    pool.reset();
    for block in 0..32 {
        assert_eq!(pool.write(block), Admission::Taken);
    }
    pool.finish(32);
    for _ in 0..32 {
        let tag = pool.tag();
        assert_eq!(pool.engine.flush(tag), Admission::Taken);
    }
    pool.finish(32);
    assert_eq!(
        (pool.disks.counts.writes, pool.disks.counts.syncs),
        (1, 2),
        "flushes share a round of syncs"
    );
    pool.rest();
    // The mark of the last flush, which an idle pool writes.
    assert!(pool.disks.counts.writes <= 2, "{} writes", pool.disks.counts.writes);
}

#[test]
fn a_read_is_one_read_of_a_device_and_a_cold_one_has_the_path_before_it() {
    let mut pool = CountedPool::new(1, 200, 512, 1 << 30);
    // 60 leaves, far from each other, so that none of their paths' lower nodes are shared.
    let blocks: Vec<u64> = (0..60).map(|at| at * ((1 << 30) / 60)).collect();
    for &block in &blocks {
        assert_eq!(pool.write(block), Admission::Taken);
        pool.finish(1);
    }
    pool.engine.close();
    while !pool.engine.is_closed() {
        pool.round();
    }
    pool.engine = CountedPool::open(&mut pool.disks);
    pool.rest();
    pool.reset();
    let mut most = 0;
    for &block in &blocks {
        let before = pool.disks.counts.reads;
        pool.read(block);
        most = most.max(pool.disks.counts.reads - before);
    }
    // Four nodes, a block of the nodes' table for each, its root, the same for data, the page.
    assert!(most <= 12, "{most} reads for the first one");
    let each = pool.disks.counts.reads as f64 / blocks.len() as f64;
    println!("{each:.2} reads for each cold one, {most} for the first");
    assert!(each <= 4.5, "{each} reads for each cold one: two nodes, blocks of tables, the page");
    pool.reset();
    for &block in &blocks {
        pool.read(block);
    }
    assert_eq!((pool.disks.counts.reads, pool.disks.counts.read_blocks), (60, 60), "warm ones");
    assert_eq!(pool.disks.counts.writes, 0, "a read writes nothing");
}

#[test]
fn collection_moves_a_bounded_number_of_pages_in_a_round() {
    let mut pool = CountedPool::new(1, 64, 128, 3_000);
    let mut random = Random::new(3);
    let (mut most, mut writes) = (0, 0);
    let mut window = (0, 0);
    for _ in 0..ROUNDS_MAX {
        let before = pool.engine.status().counters.moved_pages;
        for _ in 0..32 {
            if pool.write(random.below(3_000)) == Admission::Taken {
                writes += 1;
            }
        }
        pool.round();
        let moved = pool.engine.status().counters.moved_pages;
        most = most.max(moved - before);
        let (since, moved_before) = window;
        if writes >= since + WINDOW_WRITES {
            let (written, moved_in) = (writes - since, moved - moved_before);
            assert!(moved_in <= MOVES_PER_WRITE_MAX * written, "{moved_in} for {written} writes");
            window = (writes, moved);
        }
        if writes > 40_000 {
            break;
        }
    }
    assert!(writes > 40_000, "only {writes} writes were taken: {:?}", pool.engine.status());
    assert!(most <= MOVES_PER_ROUND_MAX, "{most} pages in a round");
    let counters = pool.engine.status().counters;
    assert!(counters.moved_pages > 0, "nothing was collected");
    let all = counters.guest_row_blocks + counters.moved_row_blocks + counters.map_row_blocks;
    let amplification = all as f64 / counters.guest_blocks as f64;
    println!("{amplification:.2} blocks written for a block: {counters:?}");
}

/// The segments of the pool that is 80 % full. A pool of 8 GiB has as many.
const FULL_SEGMENTS: u64 = 256;
const FULL_SEGMENT_BLOCKS: u32 = 128;

/// Blocks of log that this pool has at most: an eighth of it.
const FULL_LOG_BLOCKS: u64 = FULL_SEGMENTS * FULL_SEGMENT_BLOCKS as u64 / 8;

/// Writes that such a pool does for a write of a guest by Zipf's law, at most; and those for the
/// map alone. The goal for a pool of 8 GiB is 2.2: rows under way, the heads of rows and the state
/// are a larger part of this pool.
const AMPLIFICATION_MAX: f64 = 2.3;
const MAP_AMPLIFICATION_MAX: f64 = 0.2;

impl DeviceWatch for WrittenBlocks {
    fn written(&mut self, _: u8, _: u64, blocks: &[Block]) {
        self.note(&UUID, blocks);
    }

    fn synced(&mut self, _: u8) {}
}

/// Does so many writes of Zipf's law; the moves of each round.
fn write_zipf(pool: &mut CountedPool, zipf: &mut Zipf, writes: u64) -> Vec<u64> {
    let (mut taken, mut done, mut waiting) = (0, 0, None);
    let mut moves = Vec::new();
    for _ in 0..ROUNDS_MAX {
        while taken < writes && taken - done < 32 {
            let block = waiting.take().unwrap_or_else(|| zipf.next());
            if pool.write(block) == Admission::Busy {
                waiting = Some(block);
                break;
            }
            taken += 1;
        }
        let before = pool.engine.status().counters.moved_pages;
        done += pool.round().0;
        moves.push(pool.engine.status().counters.moved_pages - before);
        if done == writes {
            return moves;
        }
    }
    panic!("{done} of {writes} writes were done: {:?}", pool.engine.status());
}

#[test]
fn a_pool_that_is_80_percent_full_writes_little_more_than_its_guests() {
    let volume_blocks = FULL_SEGMENTS * u64::from(FULL_SEGMENT_BLOCKS);
    let mut pool = CountedPool::new(1, FULL_SEGMENTS, FULL_SEGMENT_BLOCKS, volume_blocks);
    let used = pool.engine.status().size_blocks * 8 / 10;
    pool.engine.close();
    while !pool.engine.is_closed() {
        pool.round();
    }
    let sizes = pool.disks.sizes();
    let options = PoolOptions { cache_blocks: CACHE_BLOCKS_MIN, log_blocks_max: FULL_LOG_BLOCKS };
    pool.engine = PoolEngine::open(&mut pool.disks, &sizes, options, 7, 1).expect("it opens");
    for block in 0..used {
        while pool.write(block) == Admission::Busy {
            pool.round();
        }
    }
    pool.rest();
    let mut zipf = Zipf { end: used, random: Random::new(3) };
    let watch = Arc::new(Mutex::new(WrittenBlocks::default()));
    pool.disks.watch = Some(watch.clone());
    write_zipf(&mut pool, &mut zipf, 2 * used);
    let (written, before) = (*watch.lock().unwrap(), pool.engine.status().counters);
    let mut moves = write_zipf(&mut pool, &mut zipf, 3 * used);
    let PoolStatus { used_blocks, size_blocks, counters, .. } = pool.engine.status();
    moves.sort_unstable();
    let part = |percent: usize| moves[(moves.len() - 1) * percent / 100];
    let written = watch.lock().unwrap().since(&written);
    println!(
        "{used_blocks} of {size_blocks} blocks are used; {written}; {} checkpoints, {} segments \
         collected; moves in a round: {} in the median, {} in the 99th percentile",
        counters.checkpoints - before.checkpoints,
        counters.collected_segments - before.collected_segments,
        part(50),
        part(99),
    );
    assert!(moves.iter().all(|&moves| moves <= MOVES_PER_ROUND_MAX));
    let (all, map) = (written.amplification(), written.map_amplification());
    assert!(all <= AMPLIFICATION_MAX, "{all:.3} blocks written for a block");
    assert!(map <= MAP_AMPLIFICATION_MAX, "{map:.3} blocks of the map written for a block");
}

/// The segments of the pool that packs.
const PACKED_SEGMENT_BLOCKS: u32 = 64;

/// The blocks of a file, or of all files of a folder as a file system has them: each begins in a
/// block of its own.
fn blocks_of(path: &Path, into: &mut Vec<Block>) {
    if path.is_dir() {
        let mut entries: Vec<_> =
            std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        entries.iter().for_each(|entry| blocks_of(entry, into));
        return;
    }
    for chunk in std::fs::read(path).unwrap().chunks(BLOCK_BYTES) {
        let mut block = Block::ZERO;
        block.0[..chunk.len()].copy_from_slice(chunk);
        into.push(block);
    }
}

/// A pool whose volume has these blocks, all acknowledged and none of them packed. Blocks of zeroes
/// are left out, as a guest's discards leave them out.
fn pool_with(content: &[Block], compression: PageCompression) -> CountedPool {
    let segments = 2 * content.len() as u64 / 60 + 80;
    let mut pool = CountedPool::new(1, segments, PACKED_SEGMENT_BLOCKS, content.len() as u64);
    let (tag, volume) = (pool.tag(), pool.volume);
    let change = PoolChange::Compression { volume, compression: Some(compression) };
    assert_eq!(pool.engine.change(tag, change), Admission::Taken);
    pool.finish(1);
    let mut under_way = 0;
    for (block, page) in (0..).zip(content).filter(|(_, page)| page.0 != Block::ZERO.0) {
        let tag = pool.tag();
        let fill = &mut |_: u32, into: &mut Block| into.clone_from(page);
        while pool.engine.write(tag, volume, block, 1, fill) == Admission::Busy {
            under_way -= pool.round().0;
        }
        under_way += 1;
        if under_way == 49 {
            under_way -= pool.round().0;
        }
    }
    while under_way > 0 {
        under_way -= pool.round().0;
    }
    pool
}

/// `STORE_CONTENT` names a file or a folder whose content is packed; without it, the documents.
/// `STORE_COMPRESSION` names the compression.
#[test]
fn pages_are_packed_behind_their_acknowledgement_and_a_read_takes_two_blocks_at_most() {
    let path = std::env::var_os("STORE_CONTENT").filter(|path| !path.is_empty());
    let documents = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let path = path.map_or(documents, PathBuf::from);
    let compression = std::env::var("STORE_COMPRESSION").unwrap_or_else(|_| "lz4".into());
    let compression = compression.parse().expect("STORE_COMPRESSION is a compression");
    let mut content = Vec::new();
    blocks_of(&path, &mut content);
    let mut pool = pool_with(&content, compression);
    let before = pool.engine.status();
    assert_eq!((before.counters.compressed_pages, before.counters.incompressible_pages), (0, 0));
    assert_eq!((before.packed_pages, before.used_blocks >= before.data_blocks), (0, true));
    let started = std::time::Instant::now();
    pool.rest();
    let (took, after) = (started.elapsed(), pool.engine.status());
    let PoolStatus { data_blocks, packed_pages, packed_blocks, counters, .. } = after;
    let tried = counters.compressed_pages + counters.incompressible_pages;
    // The last segment of the guests' stream is still open, and half a segment is not worth a walk.
    let most_left = 2 * u64::from(PACKED_SEGMENT_BLOCKS);
    assert!(tried + most_left > data_blocks, "{tried} of {data_blocks} pages were tried");
    let rows = counters.moved_row_blocks;
    let pages = counters.moved_pages;
    println!(
        "{compression}: {data_blocks} pages, {packed_pages} packed in {packed_blocks} blocks; \
         {pages} moved in rows of {rows} blocks, {:.3} of the pages' own size or {:.3} of that of \
         their rows; {:.1} us for a page",
        pages as f64 / rows as f64,
        pages as f64 * 50.0 / 49.0 / rows as f64,
        took.as_secs_f64() * 1e6 / pages as f64,
    );
    assert!(pages > rows + rows / 4, "text is packed to four fifths or less");
    let mut random = Random::new(5);
    pool.reset();
    for _ in 0..1000 {
        let block = random.below(content.len() as u64);
        let before = pool.disks.counts.read_blocks;
        pool.read(block);
        assert!(pool.came.0 == content[block as usize].0, "block {block} differs");
        assert!(pool.disks.counts.read_blocks - before <= 2 + 8, "a page, and the map");
    }
    println!("{:?} for 1,000 reads", pool.disks.counts);
}

/// Nothing is hashed before an acknowledgement, and a block that shares its content is read as any
/// other.
#[test]
fn a_shared_block_is_one_read_and_is_found_behind_its_acknowledgement() {
    const BLOCKS: u64 = 800;
    let mut pool = CountedPool::new(1, 96, 64, BLOCKS);
    let options = DedupOptions { memory_bytes: 1 << 16, hash_bits: 64 };
    pool.engine.set_dedup(Some(options));
    for first in (0..BLOCKS).step_by(40) {
        (first..first + 40).for_each(|block| assert_eq!(pool.write(block), Admission::Taken));
        pool.finish(40);
    }
    let before = pool.engine.status();
    assert_eq!((before.counters.hashed_pages, before.shared.is_none()), (0, true));
    pool.rest();
    let after = pool.engine.status();
    // There are 128 contents, and the last segment of the guests' stream is still open.
    assert!(after.shared.aliases > BLOCKS - 128 - 128, "{:?}", after.shared);
    assert!(after.counters.compared_pages <= after.counters.hashed_pages);
    (0..BLOCKS).for_each(|block| pool.read(block));
    for block in 0..BLOCKS {
        pool.reset();
        pool.read(block);
        assert!(pool.came.0.iter().all(|&byte| byte == block as u8 | 1), "block {block}");
        let DeviceCounts { reads, read_blocks, .. } = pool.disks.counts;
        assert_eq!((reads, read_blocks), (1, 1), "block {block}");
    }
}

/// Where rows are long, their heads are read alone; where they are short, or behind the durable
/// mark, where their payload is proved, the log is read in long pieces.
#[test]
fn a_recovery_reads_each_part_of_the_log_once() {
    /// Reads of an opening beside the log: superblocks, the state, and the map's pages.
    const BESIDE: u64 = 160;
    const BATCHES: u64 = 300;
    for (batch, is_flushed, reads_max) in [
        (32, true, BATCHES),
        // Seven whole rows of 33 blocks are in 256.
        (32, false, BATCHES / 7),
        (1, true, 2 * BATCHES / 256),
        (1, false, 2 * BATCHES / 256),
    ] {
        let mut pool = CountedPool::new(1, 64, 512, 4_000);
        let mut random = Random::new(4);
        for _ in 0..BATCHES {
            for _ in 0..batch {
                assert_eq!(pool.write(random.below(4_000)), Admission::Taken);
            }
            pool.finish(batch);
        }
        if is_flushed {
            pool.flush();
            pool.rest();
        }
        let log = pool.engine.status().log_blocks;
        assert!(log >= BATCHES * (batch + 1), "a checkpoint was written, and {log} blocks left");
        pool.reset();
        pool.engine = CountedPool::open(&mut pool.disks);
        let DeviceCounts { reads, read_blocks, .. } = pool.disks.counts;
        println!("{batch} together, flushed {is_flushed}: {reads} reads of {read_blocks} blocks");
        // A read more at each of the segments' ends.
        assert!(reads <= reads_max + log / 128 + BESIDE, "{reads} reads of {log} blocks");
        if is_flushed && batch > 1 {
            assert!(read_blocks <= 2 * BATCHES + 4 * 256 + BESIDE, "{read_blocks} of {log}");
        } else {
            assert!(read_blocks <= log + log / 4 + 4 * 256 + BESIDE, "{read_blocks} of {log}");
        }
    }
}
