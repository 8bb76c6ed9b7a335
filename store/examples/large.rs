//! The times of large pools, on a device that is none: it keeps the map and the heads of rows, and
//! makes guests' pages up. So a volume of 1 TiB takes some GiB of memory, and the times are those
//! of the engine alone.
//!
//! ```text
//! cargo run --release -p store --example large -- snapshot             # 10^8 blocks of 1 TiB
//! cargo run --release -p store --example large -- recovery             # 64 GiB of log
//! cargo run --release -p store --example large -- steady               # 80 % full, Zipf 1.0
//! cargo run --release -p store --example large -- sealed --blocks 65536   # beside a plain volume
//! cargo run --release -p store --example large -- recovery --blocks 1000000 --log 4000000
//! ```
//!
//! Small versions of these runs, which count instead of measuring, are tests: `tests/costs.rs`.

use std::fmt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use random::Random;
use store::block::{BLOCK_BYTES, Block, BlockBuffer};
use store::{
    Admission, DeviceIo, DeviceLayout, DeviceOp, PoolChange, PoolCompletion, PoolDeviceError,
    PoolDevices, PoolEngine, PoolLayout, PoolOptions, RequestTag, SealEntropy, VolumeId,
    WrappingKey, format_pool,
};

#[path = "../tests/devices/written.rs"]
mod written;

#[path = "../tests/devices/zipf.rs"]
mod zipf;

use written::WrittenBlocks;
use zipf::Zipf;

/// Blocks of a segment, as pools are made.
const SEGMENT_BLOCKS: u32 = 8192;

/// The pool.
const UUID: [u8; 16] = [1; 16];

/// Blocks before the first segment of a device.
const HEADER_BLOCKS: u64 = 16;

/// The byte of which all guests' pages are full.
const GUEST_BYTE: u8 = 0x5a;

/// The byte of pages that the device keeps, as it keeps sealed ones.
const KEPT_BYTE: u8 = 0xa5;

/// Writes that are outstanding.
const DEPTH: u64 = 32;

/// The pretended time between two rounds.
const ROUND_NS: u64 = 1_000;

/// Snapshots, clones and the like that are timed; the slowest counts.
const REPEATS: usize = 20;

/// Writes on either side of a snapshot that are compared.
const COMPARED: u64 = 200_000;

/// The kept blocks of as many as a segment has.
type Part = Box<[Option<Box<Block>>]>;

/// A device that keeps every block that is no guest's page.
struct MadeUpDevice {
    kept: Vec<Option<Part>>,
    page: Box<Block>,
    blocks: u64,
    reads: u64,
    read_blocks: u64,
    written: WrittenBlocks,
}

impl MadeUpDevice {
    fn new(segments: u64) -> Self {
        let blocks = HEADER_BLOCKS + segments * u64::from(SEGMENT_BLOCKS);
        let parts = blocks.div_ceil(SEGMENT_BLOCKS.into()) as usize;
        let page = Box::new(Block([GUEST_BYTE; BLOCK_BYTES]));
        let kept = (0..parts).map(|_| None).collect();
        Self { kept, page, blocks, reads: 0, read_blocks: 0, written: WrittenBlocks::default() }
    }

    fn place(block: u64) -> (usize, usize) {
        let part = u64::from(SEGMENT_BLOCKS);
        ((block / part) as usize, (block % part) as usize)
    }
}

impl PoolDevices for MadeUpDevice {
    fn read(
        &mut self,
        _: u8,
        block: u64,
        buffer: &mut BlockBuffer,
        blocks: u32,
    ) -> Result<(), PoolDeviceError> {
        self.reads += 1;
        self.read_blocks += u64::from(blocks);
        for (at, into) in (block..).zip(&mut buffer.blocks_mut()[..blocks as usize]) {
            let (part, index) = Self::place(at);
            let kept = self.kept[part].as_ref().and_then(|part| part[index].as_ref());
            into.0.copy_from_slice(&kept.unwrap_or(&self.page).0);
        }
        Ok(())
    }

    fn write(
        &mut self,
        _: u8,
        block: u64,
        buffer: &BlockBuffer,
        blocks: u32,
    ) -> Result<(), PoolDeviceError> {
        self.written.note(&UUID, &buffer.blocks()[..blocks as usize]);
        for (at, from) in (block..).zip(&buffer.blocks()[..blocks as usize]) {
            let (part, index) = Self::place(at);
            let kept =
                self.kept[part].get_or_insert_with(|| (0..SEGMENT_BLOCKS).map(|_| None).collect());
            match (from.0 == self.page.0, &mut kept[index]) {
                (true, kept) => *kept = None,
                (false, Some(kept)) => kept.0.copy_from_slice(&from.0),
                (false, kept) => *kept = Some(Box::new(from.clone())),
            }
        }
        Ok(())
    }

    fn sync(&mut self, _: u8) -> Result<(), PoolDeviceError> {
        Ok(())
    }
}

/// An engine with one volume.
struct LargePool {
    device: MadeUpDevice,
    engine: PoolEngine,
    options: PoolOptions,
    volume: VolumeId,
    /// The byte of its writes.
    byte: u8,
    now_ns: u64,
    outstanding: u64,
    last: VolumeId,
}

impl LargePool {
    fn new(segments: u64, volume_blocks: u64, options: PoolOptions) -> Self {
        let mut device = MadeUpDevice::new(segments);
        let layout = PoolLayout {
            uuid: UUID,
            segment_blocks: SEGMENT_BLOCKS,
            devices: vec![DeviceLayout { uuid: [2; 16], blocks: device.blocks }],
        };
        format_pool(&mut device, &layout).expect("a new pool");
        let engine = open(&mut device, options);
        let (volume, now_ns, outstanding) = (VolumeId(0), 1, 0);
        let (byte, last) = (GUEST_BYTE, volume);
        let mut pool = Self { device, engine, options, volume, byte, now_ns, outstanding, last };
        pool.volume = pool.change(PoolChange::Create { name: "v".into(), blocks: volume_blocks });
        pool
    }

    fn round(&mut self) {
        self.now_ns += ROUND_NS;
        self.engine.poll(self.now_ns);
        while let Some(DeviceIo { token, device, op }) = self.engine.next_io() {
            let (buffer, result) = match op {
                DeviceOp::Read { block, mut buffer, blocks } => {
                    let result = self.device.read(device, block, &mut buffer, blocks);
                    (Some(buffer), result)
                }
                DeviceOp::Write { block, buffer, blocks } => {
                    let result = self.device.write(device, block, &buffer, blocks);
                    (Some(buffer), result)
                }
                DeviceOp::Sync => (None, self.device.sync(device)),
            };
            self.engine.complete_io(token, buffer, result);
        }
        while let Some(completion) = self.engine.next_completion() {
            match completion {
                PoolCompletion::Data { buffer: Some(buffer), .. } => self.engine.recycle(buffer),
                PoolCompletion::Data { .. } => {}
                PoolCompletion::Done { result, .. } => {
                    self.last = result.expect("the request ends well");
                    self.outstanding -= 1;
                }
            }
        }
    }

    /// Does the writes that `blocks` names, with `DEPTH` outstanding.
    fn write(&mut self, blocks: impl Iterator<Item = u64>) {
        let (volume, byte) = (self.volume, self.byte);
        self.ask(blocks, |engine, block| {
            let fill = &mut |_, page: &mut Block| page.0.fill(byte);
            engine.write(RequestTag(block), volume, block, 1, fill)
        });
    }

    /// The same for reads.
    fn read(&mut self, blocks: impl Iterator<Item = u64>) {
        let volume = self.volume;
        self.ask(blocks, |engine, block| engine.read(RequestTag(block), volume, block, 1));
    }

    fn ask(
        &mut self,
        mut blocks: impl Iterator<Item = u64>,
        mut ask: impl FnMut(&mut PoolEngine, u64) -> Admission,
    ) {
        let mut waiting = None;
        loop {
            while self.outstanding < DEPTH {
                let Some(block) = waiting.take().or_else(|| blocks.next()) else { break };
                if ask(&mut self.engine, block) == Admission::Busy {
                    waiting = Some(block);
                    break;
                }
                self.outstanding += 1;
            }
            if self.outstanding == 0 && waiting.is_none() {
                return;
            }
            self.round();
        }
    }

    fn change(&mut self, change: PoolChange) -> VolumeId {
        while self.engine.change(RequestTag(0), change.clone()) == Admission::Busy {
            self.round();
        }
        self.outstanding += 1;
        while self.outstanding > 0 {
            self.round();
        }
        self.last
    }

    fn flush(&mut self) {
        self.outstanding += 1;
        while self.engine.flush(RequestTag(0)) == Admission::Busy {
            self.round();
        }
        while self.outstanding > 0 {
            self.round();
        }
        // The next row says what is durable.
        self.write(std::iter::once(0));
    }

    fn close(&mut self) {
        self.engine.close();
        while !self.engine.is_closed() {
            self.round();
        }
    }

    /// Opens the pool again, as after a crash unless it was closed.
    fn reopen(&mut self) -> Took {
        (self.device.reads, self.device.read_blocks) = (0, 0);
        let (engine, took) = timed(|| open(&mut self.device, self.options));
        self.engine = engine;
        took
    }

    /// Blocks written to the device for each block of a guest since these counts.
    fn amplification(&self, since: [u64; 4]) -> [f64; 4] {
        let now = self.counts();
        let [guests, rows, moved, map] = std::array::from_fn(|at| (now[at] - since[at]) as f64);
        [(rows + moved + map) / guests, rows / guests, moved / guests, map / guests]
    }

    fn counts(&self) -> [u64; 4] {
        let counts = self.engine.status().counters;
        [
            counts.guest_blocks,
            counts.guest_row_blocks,
            counts.moved_row_blocks,
            counts.map_row_blocks,
        ]
    }
}

fn open(device: &mut MadeUpDevice, options: PoolOptions) -> PoolEngine {
    let blocks = [device.blocks];
    PoolEngine::open(device, &blocks, options, 9, 1).expect("the pool opens")
}

/// How long something took: by the clock, and of processor time, which others' load does not
/// change.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Took {
    clock: Duration,
    processor: Duration,
}

impl fmt::Display for Took {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2?} ({:.2?} of processor time)", self.clock, self.processor)
    }
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, Took) {
    let (began, before) = (Instant::now(), processor_time());
    let result = work();
    (result, Took { clock: began.elapsed(), processor: processor_time() - before })
}

/// The processor time of this thread, the only thread of the process; none where the system does
/// not say it.
fn processor_time() -> Duration {
    let said = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let first = said.split_whitespace().next().and_then(|word| word.parse().ok());
    Duration::from_nanos(first.unwrap_or(0))
}

fn rate(what: &str, count: u64, took: Took) {
    let each_ns = took.processor.as_nanos() as f64 / count as f64;
    println!("{what}: {count} blocks in {took}, {each_ns:.0} ns of it each");
}

/// Snapshots and clones of a volume of 1 TiB that has so many blocks, and the writes after them.
fn snapshot(blocks: u64) {
    let volume_blocks = (1 << 40) / BLOCK_BYTES as u64;
    let options = PoolOptions { cache_blocks: 1 << 18, log_blocks_max: 1 << 24 };
    let segments = 2 * blocks.max(1 << 21) / u64::from(SEGMENT_BLOCKS) + 64;
    let mut pool = LargePool::new(segments, volume_blocks, options);
    // Runs of 64 blocks with holes between them, up to the end of the volume.
    let runs = blocks.div_ceil(64);
    let stride = (volume_blocks / runs).max(64);
    let all = (0..runs).flat_map(|run| (0..64).map(move |at| run * stride + at));
    let ((), took) = timed(|| pool.write(all));
    rate("filled", runs * 64, took);
    let mut random = Random::new(1);
    let mut some = |count: u64| {
        let blocks: Vec<u64> =
            (0..count).map(|_| random.below(runs) * stride + random.below(64)).collect();
        blocks.into_iter()
    };
    pool.write(some(COMPARED));
    let since = pool.counts();
    let ((), before) = timed(|| pool.write(some(COMPARED)));
    rate("random writes before a snapshot", COMPARED, before);
    println!(
        "  blocks written for each (all, rows, moved, map): {:.2?}",
        pool.amplification(since)
    );
    let (mut snapshots, mut clones) = (Vec::new(), Vec::new());
    for at in 0..REPEATS {
        let name = format!("s{at}");
        let change = PoolChange::Snapshot { volumes: vec![pool.volume], name, at_s: 0 };
        let (snapshot, took) = timed(|| pool.change(change));
        snapshots.push(took);
        let change = PoolChange::Clone { snapshot, name: format!("c{at}") };
        clones.push(timed(|| pool.change(change)).1);
        if at == 0 {
            let since = pool.counts();
            let ((), after) = timed(|| pool.write(some(COMPARED)));
            rate("random writes after a snapshot", COMPARED, after);
            let each = pool.amplification(since);
            println!("  blocks written for each (all, rows, moved, map): {each:.2?}");
        }
        // Dirty pages, of which a snapshot must not copy any.
        pool.write(some(1_000));
    }
    for (what, times) in [("snapshot", &mut snapshots), ("clone", &mut clones)] {
        times.sort();
        let (median, slowest) = (times[REPEATS / 2], times[REPEATS - 1]);
        println!("{what}: median {median}, slowest of {REPEATS} {slowest}");
    }
    let ((), took) = timed(|| pool.close());
    println!("close: {took}");
    let took = pool.reopen();
    println!("opening of a closed pool: {took}, {} reads", pool.device.reads);
}

/// The recovery of so many blocks of log, of writes to so many blocks. The guest flushes now and
/// then, or never: then each block of the log is proved.
fn recovery(blocks: u64, log: u64) {
    let options = PoolOptions { cache_blocks: 1 << 21, log_blocks_max: 4 * log };
    let segments = (2 * blocks + 2 * log) / u64::from(SEGMENT_BLOCKS) + 64;
    for (random, flushes) in [(false, true), (false, false), (true, true)] {
        let mut pool = LargePool::new(segments, blocks, options);
        let ((), took) = timed(|| pool.write(0..blocks));
        rate("filled", blocks, took);
        pool.close();
        pool.reopen();
        let mut source = Random::new(2);
        let writes = log * DEPTH / (DEPTH + 1);
        let places = (0..writes).map(|at| if random { source.below(blocks) } else { at % blocks });
        let ((), took) = timed(|| pool.write(places));
        if flushes {
            pool.flush();
        }
        let order = if random { "random" } else { "in order" };
        rate(&format!("log of writes {order}, flushed {flushes}"), writes, took);
        let status = pool.engine.status();
        println!(
            "log: {} blocks, dirty pages of the map: {}",
            status.log_blocks, status.dirty_blocks
        );
        let took = pool.reopen();
        let MadeUpDevice { reads, read_blocks, .. } = pool.device;
        println!("recovery: {took}, {reads} reads of {read_blocks} blocks");
    }
}

/// The write amplification of a pool that is 80 % full.
fn steady(blocks: u64, cache: u64) {
    let options = PoolOptions { cache_blocks: cache as usize, log_blocks_max: 1 << 18 };
    let segments = blocks / u64::from(SEGMENT_BLOCKS);
    let mut pool = LargePool::new(segments, blocks, options);
    let used = pool.engine.status().size_blocks * 8 / 10;
    pool.write(0..used);
    let status = pool.engine.status();
    println!(
        "{} of {} blocks are used, of {blocks} of the device",
        status.used_blocks, status.size_blocks
    );
    let mut zipf = Zipf { end: used, random: Random::new(3) };
    for round in 0..8 {
        let (written, counters) = (pool.device.written, pool.engine.status().counters);
        let places: Vec<u64> = (0..used / 2).map(|_| zipf.next()).collect();
        let ((), took) = timed(|| pool.write(places.into_iter()));
        rate(&format!("round {round}"), used / 2, took);
        let now = pool.engine.status().counters;
        println!(
            "  {}; {} segments collected, {} checkpoints, {} loads of the map",
            pool.device.written.since(&written),
            now.collected_segments - counters.collected_segments,
            now.checkpoints - counters.checkpoints,
            now.map_loads - counters.map_loads,
        );
    }
}

/// Writes and reads of a plain volume and of an encrypted one, of so many blocks each, after the
/// log has been everywhere on the device.
fn sealed(blocks: u64) {
    let options = PoolOptions { cache_blocks: 1 << 16, log_blocks_max: 1 << 18 };
    let segments = 2 * blocks / u64::from(SEGMENT_BLOCKS) + 40;
    let mut random = Random::new(4);
    let mut places = |count: u64| (0..count).map(|_| random.below(blocks)).collect::<Vec<_>>();
    for is_sealed in [false, true] {
        let mut pool = LargePool::new(segments, blocks, options);
        pool.byte = KEPT_BYTE;
        if is_sealed {
            let key = WrappingKey::new("k", &[3; 64]);
            let entropy = SealEntropy::new([5; SealEntropy::BYTES].into());
            let change = pool.engine.sealed_volume("s", blocks, &key, &entropy);
            pool.volume = pool.change(change);
            pool.engine.unlock(pool.volume, &key).expect("its key");
        }
        let what = if is_sealed { "sealed" } else { "plain" };
        pool.write(0..blocks);
        pool.write(places(2 * segments * u64::from(SEGMENT_BLOCKS)).into_iter());
        for _ in 0..3 {
            let ((), took) = timed(|| pool.write(places(4 * blocks).into_iter()));
            rate(&format!("{what}: random writes"), 4 * blocks, took);
            let ((), took) = timed(|| pool.read(places(4 * blocks).into_iter()));
            rate(&format!("{what}: random reads"), 4 * blocks, took);
        }
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |name: &str, default: u64| {
        let at = words.iter().position(|word| word == name);
        let value = at.and_then(|at| words.get(at + 1));
        value.map_or(Some(default), |value| value.parse().ok())
    };
    let numbers = (
        number("--blocks", 100_000_000),
        number("--log", (64 << 30) / BLOCK_BYTES as u64),
        number("--cache", 1 << 16),
    );
    match (words.first().map(String::as_str), numbers) {
        (Some("snapshot"), (Some(blocks), ..)) => snapshot(blocks),
        (Some("recovery"), (Some(blocks), Some(log), _)) => recovery(blocks.min(log), log),
        (Some("steady"), (Some(blocks), _, Some(cache))) => {
            steady(blocks.min(16 << 20), cache);
        }
        (Some("sealed"), (Some(blocks), ..)) => sealed(blocks.min(1 << 20)),
        _ => {
            eprintln!(
                "snapshot, recovery, steady or sealed, and --blocks, --log or --cache with a number"
            );
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
