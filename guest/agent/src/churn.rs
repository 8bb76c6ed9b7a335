//! Write and verify, for ever, from several threads, past the page cache.
//!
//! Each thread owns every n-th extent of the disk and knows the generation of each of its blocks,
//! so what it reads has exactly one right answer, and neighbouring blocks of different threads are
//! in flight together. Threads are pinned to the processors in turn, which spreads them over the
//! disk's queues: virtio-blk gives each processor its own.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::buffer::Aligned;
use crate::pattern::{self, BLOCK_BYTES, Mismatch};
use crate::random::{Random, mix};

/// Blocks of an extent, and of the longest request: 128 KiB.
pub const EXTENT_BLOCKS: u64 = 32;
/// O_DIRECT of x86-64 Linux, which the standard library does not name.
const DIRECT: i32 = 0o40000;
/// How often progress is told: often enough to see a stall, rarely enough for a slow console.
const PROGRESS_PERIOD: Duration = Duration::from_secs(1);
/// How often the end is looked for.
const WATCH_PERIOD: Duration = Duration::from_millis(20);
const BLOCK: u64 = BLOCK_BYTES as u64;

/// The settings of a churn.
#[derive(Debug, Clone)]
pub struct Churn {
    /// The disk. Its content must be all zeros.
    pub device: PathBuf,
    /// Everything that is random follows from this.
    pub seed: u64,
    /// How many requests are outstanding at most.
    pub threads: u64,
    /// Stop after this long.
    pub duration: Duration,
    /// Stop as soon as this file exists.
    pub stop_file: Option<PathBuf>,
}

/// The reason why a churn failed.
#[derive(Debug)]
pub enum ChurnFailure {
    /// The disk answered with an error, doing this.
    Io(String, io::Error),
    /// The disk holds something else than what was written last.
    Mismatch(Mismatch),
    /// The disk or machine cannot be used for this at all.
    Unfit(String),
}

impl fmt::Display for ChurnFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(doing, error) => write!(f, "{doing}: {error}"),
            Self::Mismatch(mismatch) => write!(f, "{mismatch}"),
            Self::Unfit(why) => write!(f, "{why}"),
        }
    }
}

impl std::error::Error for ChurnFailure {}

/// The work that was done, added up over all threads.
#[derive(Debug, Default)]
pub struct ChurnReport {
    /// Blocks of the disk.
    pub blocks: u64,
    /// Requests that wrote.
    pub writes: u64,
    /// Requests that read and were verified.
    pub reads: u64,
    /// Flushes.
    pub flushes: u64,
    /// The longest time of a single request.
    pub longest: Duration,
    /// The digest of what the disk must hold now, and was read back to hold.
    pub digest: u64,
}

impl fmt::Display for ChurnReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { blocks, writes, reads, flushes, longest, digest } = self;
        let longest_ms = longest.as_millis();
        write!(
            f,
            "blocks={blocks} writes={writes} reads={reads} flushes={flushes} \
             longest_ms={longest_ms} digest={digest:016x}"
        )
    }
}

impl ChurnReport {
    fn add(&mut self, other: &Self) {
        self.blocks += other.blocks;
        self.writes += other.writes;
        self.reads += other.reads;
        self.flushes += other.flushes;
        self.longest = self.longest.max(other.longest);
        self.digest = self.digest.wrapping_add(other.digest);
    }
}

/// Opens a disk past the page cache and tells its size in blocks.
///
/// # Errors
/// That it cannot be opened, or is smaller than one extent for each of `threads` threads.
pub fn open_direct(device: &Path, threads: u64) -> Result<(File, u64), ChurnFailure> {
    let doing = |error| ChurnFailure::Io(format!("open {}", device.display()), error);
    let file = OpenOptions::new().read(true).write(true).custom_flags(DIRECT).open(device);
    let file = file.map_err(doing)?;
    let bytes = io::Seek::seek(&mut &file, io::SeekFrom::End(0)).map_err(doing)?;
    let blocks = bytes / BLOCK;
    if threads == 0 || blocks / EXTENT_BLOCKS < threads || bytes % BLOCK != 0 {
        let device = device.display();
        return Err(ChurnFailure::Unfit(format!(
            "{device}: {bytes} bytes are not some extents of 128 KiB for each of {threads} threads"
        )));
    }
    Ok((file, blocks))
}

/// Runs the whole workload: churn until the end is reached, flush, then verify every block.
///
/// # Errors
/// The first thing that went wrong in any thread.
pub fn run(churn: &Churn, progress: impl FnMut(&str) + Send) -> Result<ChurnReport, ChurnFailure> {
    let (file, blocks) = open_direct(&churn.device, churn.threads)?;
    let shared = ChurnShared::default();
    thread::scope(|scope| {
        let (file, shared) = (&file, &shared);
        let watch = scope.spawn(move || shared.watch(churn, progress));
        let workers: Vec<_> = (0..churn.threads)
            .map(|index| {
                scope.spawn(move || {
                    let done = Worker::new(churn, index, file, blocks).run(shared);
                    if let Err(failure) = &done {
                        shared.fail(failure);
                    }
                    done
                })
            })
            .collect();
        let mut report = ChurnReport::default();
        let mut outcome = Ok(());
        for worker in workers {
            match worker.join().expect("a worker does not panic") {
                Ok(share) => report.add(&share),
                Err(failure) => outcome = outcome.and(Err(failure)),
            }
        }
        shared.finished.store(true, Ordering::Release);
        watch.join().expect("the watch does not panic");
        outcome.map(|()| report)
    })
}

#[derive(Debug, Default)]
struct ChurnShared {
    stop: AtomicBool,
    finished: AtomicBool,
    requests: AtomicU64,
    /// Told by the watch at once: the other workers may hang for ever on the same fault.
    failure: Mutex<Option<String>>,
}

impl ChurnShared {
    /// A worker that fails ends the others. Only the first failure is kept, since the others may
    /// follow from it.
    fn fail(&self, failure: &ChurnFailure) {
        let mut first = self.failure.lock().expect("no holder panics");
        if !self.stop() {
            *first = Some(failure.to_string());
        }
        self.stop.store(true, Ordering::Release);
    }

    fn stop(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Tells progress until the workers are done, and tells them when to stop.
    fn watch(&self, churn: &Churn, mut progress: impl FnMut(&str)) {
        let started = Instant::now();
        let mut told = Instant::now();
        while !self.finished.load(Ordering::Acquire) {
            if let Some(failure) = self.failure.lock().expect("no holder panics").take() {
                progress(&format!("failing {failure}"));
            }
            let asked = churn.stop_file.as_ref().is_some_and(|file| file.exists());
            if asked || started.elapsed() >= churn.duration {
                self.stop.store(true, Ordering::Release);
            }
            if told.elapsed() >= PROGRESS_PERIOD {
                told = Instant::now();
                let phase = if self.stop() { "verify" } else { "churn" };
                let requests = self.requests.load(Ordering::Relaxed);
                progress(&format!("progress {phase} requests={requests}"));
            }
            thread::sleep(WATCH_PERIOD);
        }
    }
}

/// One thread's share of the disk.
struct Worker<'a> {
    churn: &'a Churn,
    index: u64,
    file: &'a File,
    /// The generation of each block of this worker's extents, one extent after the other.
    generations: Vec<u64>,
    random: Random,
    buffer: Aligned,
    scratch: Aligned,
    report: ChurnReport,
}

impl<'a> Worker<'a> {
    fn new(churn: &'a Churn, index: u64, file: &'a File, blocks: u64) -> Self {
        // The last extent may be a short one. It belongs to the worker whose turn is next.
        let extents = blocks.div_ceil(EXTENT_BLOCKS);
        let mine = (extents - index).div_ceil(churn.threads);
        let last = index + (mine - 1) * churn.threads;
        let last_blocks = (blocks - last * EXTENT_BLOCKS).min(EXTENT_BLOCKS);
        let owned = (mine - 1) * EXTENT_BLOCKS + last_blocks;
        Self {
            churn,
            index,
            file,
            generations: vec![0; owned as usize],
            random: Random::new(churn.seed ^ mix(index + 1)),
            buffer: Aligned::new(EXTENT_BLOCKS),
            scratch: Aligned::new(1),
            report: ChurnReport { blocks: owned, ..ChurnReport::default() },
        }
    }

    fn run(mut self, shared: &ChurnShared) -> Result<ChurnReport, ChurnFailure> {
        self.pin()?;
        while !shared.stop() {
            self.step()?;
            shared.requests.fetch_add(1, Ordering::Relaxed);
        }
        self.flush()?;
        let mut at = 0;
        while at < self.report.blocks {
            let count = EXTENT_BLOCKS.min(self.report.blocks - at);
            self.read(at, count)?;
            for (index, bytes) in (at..at + count).zip(self.buffer.blocks(count)) {
                let block = place(self.churn.threads, self.index, index);
                let digest = pattern::digest(block, bytes);
                self.report.digest = self.report.digest.wrapping_add(digest);
            }
            at += count;
            shared.requests.fetch_add(1, Ordering::Relaxed);
        }
        Ok(self.report)
    }

    fn pin(&self) -> Result<(), ChurnFailure> {
        let doing =
            |error: rustix::io::Errno| ChurnFailure::Io("pin a thread".to_owned(), error.into());
        let allowed = sched_getaffinity(None).map_err(doing)?;
        let nth = self.index as usize % allowed.count() as usize;
        let processor = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).nth(nth);
        let mut only = CpuSet::new();
        only.set(processor.expect("a thread runs on some processor"));
        sched_setaffinity(None, &only).map_err(doing)
    }

    /// One request of a random kind: mostly writes, so that much is at stake at every moment.
    fn step(&mut self) -> Result<(), ChurnFailure> {
        let at = self.random.below(self.report.blocks);
        let extent_left = EXTENT_BLOCKS - at % EXTENT_BLOCKS;
        let longest = extent_left.min(self.report.blocks - at);
        // Half of the requests are single blocks, as databases send them.
        let count = if self.random.below(2) == 0 { 1 } else { 1 + self.random.below(longest) };
        match self.random.below(20) {
            0 => self.flush(),
            1..=12 => self.write(at, count),
            _ => self.read(at, count),
        }
    }

    fn write(&mut self, at: u64, count: u64) -> Result<(), ChurnFailure> {
        let first = place(self.churn.threads, self.index, at);
        let generations = &mut self.generations[at as usize..(at + count) as usize];
        for (index, bytes) in self.buffer.blocks(count).enumerate() {
            generations[index] += 1;
            pattern::fill(self.churn.seed, first + index as u64, generations[index], bytes);
        }
        let bytes = &self.buffer[..count as usize * BLOCK_BYTES];
        let started = Instant::now();
        let done = self.file.write_all_at(bytes, first * BLOCK);
        self.report.writes += 1;
        self.took(started, done, || format!("write {count} blocks at block {first}"))
    }

    fn read(&mut self, at: u64, count: u64) -> Result<(), ChurnFailure> {
        let first = place(self.churn.threads, self.index, at);
        let bytes = &mut self.buffer[..count as usize * BLOCK_BYTES];
        let started = Instant::now();
        let done = self.file.read_exact_at(bytes, first * BLOCK);
        self.report.reads += 1;
        self.took(started, done, || format!("read {count} blocks at block {first}"))?;
        let generations = &self.generations[at as usize..(at + count) as usize];
        for (index, bytes) in self.buffer.blocks(count).enumerate() {
            let block = first + index as u64;
            let scratch = &mut self.scratch;
            pattern::check(self.churn.seed, block, generations[index], bytes, scratch)
                .map_err(ChurnFailure::Mismatch)?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ChurnFailure> {
        let started = Instant::now();
        let done = self.file.sync_data();
        self.report.flushes += 1;
        self.took(started, done, || "flush".to_owned())
    }

    fn took(
        &mut self,
        started: Instant,
        done: io::Result<()>,
        doing: impl FnOnce() -> String,
    ) -> Result<(), ChurnFailure> {
        self.report.longest = self.report.longest.max(started.elapsed());
        done.map_err(|error| ChurnFailure::Io(doing(), error))
    }
}

/// The block of the disk that is block `at` of worker `index`'s share. Blocks of one extent are
/// neighbours on the disk as well.
fn place(threads: u64, index: u64, at: u64) -> u64 {
    let extent = at / EXTENT_BLOCKS * threads + index;
    extent * EXTENT_BLOCKS + at % EXTENT_BLOCKS
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A zeroed file as the disk, on the file system of the temporary folder.
    fn churn(folder: &Path, blocks: u64, threads: u64) -> Churn {
        let device = folder.join("disk");
        File::create(&device).unwrap().set_len(blocks * BLOCK).unwrap();
        let duration = Duration::from_secs(3600);
        Churn { device, seed: 5, threads, duration, stop_file: None }
    }

    #[test]
    fn every_block_has_exactly_one_owner() {
        for (blocks, threads) in [(32, 1), (100, 3), (97, 3), (4096, 16), (129, 4)] {
            let folder = tempfile::tempdir().unwrap();
            let churn = churn(folder.path(), blocks, threads);
            let file = File::open(&churn.device).unwrap();
            let mut owned: Vec<u64> = (0..threads)
                .flat_map(|index| {
                    let share = Worker::new(&churn, index, &file, blocks).report.blocks;
                    (0..share).map(move |at| place(threads, index, at))
                })
                .collect();
            owned.sort_unstable();
            assert!(owned.iter().copied().eq(0..blocks), "{blocks} blocks, {threads} threads");
        }
    }

    #[test]
    fn a_faithful_disk_passes_and_its_digest_is_the_images() {
        let folder = tempfile::tempdir().unwrap();
        let churn = churn(folder.path(), 300, 2);
        let (file, blocks) = open_plain(&churn);
        let shared = ChurnShared::default();
        let mut sum = ChurnReport::default();
        for index in 0..2 {
            let mut worker = Worker::new(&churn, index, &file, blocks);
            for _ in 0..200 {
                worker.step().unwrap();
            }
            shared.stop.store(true, Ordering::Release);
            sum.add(&worker.run(&shared).unwrap());
        }
        assert_eq!(sum.blocks, 300);
        assert_eq!(sum.digest, pattern::image_digest(&churn.device).unwrap());
        let line = sum.to_string();
        assert!(line.contains(&format!("digest={:016x}", sum.digest)), "{line}");
    }

    #[test]
    fn a_block_that_changed_behind_the_disk_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let churn = churn(folder.path(), 64, 1);
        let (file, blocks) = open_plain(&churn);
        let mut worker = Worker::new(&churn, 0, &file, blocks);
        worker.write(0, 32).unwrap();
        worker.write(7, 1).unwrap();
        let mut stale = vec![0; BLOCK_BYTES];
        pattern::fill(5, 7, 1, &mut stale);
        file.write_all_at(&stale, 7 * BLOCK).unwrap();
        let failure = worker.read(0, 32).unwrap_err();
        let ChurnFailure::Mismatch(mismatch) = failure else { panic!("{failure}") };
        assert_eq!((mismatch.block, mismatch.expected, mismatch.found), (7, 2, [5, 7, 1]));
    }

    #[test]
    fn a_disk_too_small_for_the_threads_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let churn = churn(folder.path(), 64, 1);
        let Err(failure) = open_direct(&churn.device, 3) else { panic!("64 blocks for 3") };
        // A file system without direct I/O refuses earlier: also right.
        assert!(matches!(failure, ChurnFailure::Unfit(_) | ChurnFailure::Io(..)), "{failure}");
    }

    /// Not every temporary folder knows direct I/O; the logic is the same without.
    fn open_plain(churn: &Churn) -> (File, u64) {
        let file = OpenOptions::new().read(true).write(true).open(&churn.device).unwrap();
        let blocks = file.metadata().unwrap().len() / BLOCK;
        (file, blocks)
    }
}
