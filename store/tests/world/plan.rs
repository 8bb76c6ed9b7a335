//! The run that a seed decides.

use random::Random;
use store::format::DEVICE_HEADER_BLOCKS;
use store::{
    CACHE_BLOCKS_MIN, DedupOptions, DeviceLayout, HistoryOptions, PoolLayout, PoolOptions,
    SEGMENTS_MIN,
};

use super::disk::CrashKind;

/// How a device misbehaves; rates are parts of a million requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DiskFaults {
    /// The most rounds that a request takes, but for a few that take much longer.
    pub(crate) delay_max: u64,
    /// Reads that fail.
    pub(crate) read_error_ppm: u64,
    /// Writes and syncs that fail.
    pub(crate) write_error_ppm: u64,
    /// Writes that find no space, and with which a time without space begins.
    pub(crate) no_space_ppm: u64,
    /// Writes that go to another place.
    pub(crate) misdirect_ppm: u64,
    /// Rounds in which a block rots.
    pub(crate) rot_ppm: u64,
}

impl DiskFaults {
    /// A good device.
    pub(crate) const NONE: Self = Self {
        delay_max: 1,
        read_error_ppm: 0,
        write_error_ppm: 0,
        no_space_ppm: 0,
        misdirect_ppm: 0,
        rot_ppm: 0,
    };
}

/// The moment of a crash that is part of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopAt {
    /// After so many answers of devices in the first life.
    Answer(u64),
    /// At this request of the second life's opening, after a first life with a crash.
    Opening(u64),
}

/// A crash that is part of the plan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlannedStop {
    /// When.
    pub(crate) at: StopAt,
    /// Which one.
    pub(crate) kind: CrashKind,
}

/// A run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// The seed.
    pub(crate) seed: u64,
    /// Volumes are huge, and their blocks lie so far from each other that the map does not fit in
    /// memory.
    pub(crate) is_wide: bool,
    /// Users compress their volumes soon.
    pub(crate) compresses: bool,
    /// Pages with the same content share it, and contents repeat.
    pub(crate) dedup: Option<DedupOptions>,
    /// Some of these contents are zeroes.
    pub(crate) has_zeroes: bool,
    /// Volumes keep a history, or a multiple of it.
    pub(crate) history: Option<HistoryOptions>,
    /// The pool.
    pub(crate) layout: PoolLayout,
    /// How the engine is opened.
    pub(crate) options: PoolOptions,
    /// The devices' faults.
    pub(crate) faults: DiskFaults,
    /// How often the engine is opened, the last time to the end.
    pub(crate) lives: u64,
    /// Lives are short, so that many openings find what the crash before the last one left.
    pub(crate) is_crashy: bool,
    /// Rounds of a life that no crash ends.
    pub(crate) rounds: u64,
    /// The most requests under way.
    pub(crate) depth: usize,
    /// The most volumes and snapshots.
    pub(crate) volumes: usize,
    /// All volumes are encrypted, and keys change once in so many rounds. If it is 0, some are, and
    /// their keys change with all else.
    pub(crate) key_rounds: u64,
    /// Devices change once in so many rounds; never if it is 0.
    pub(crate) device_rounds: u64,
    /// The only crash of the run: in the first life, or in the second one's opening. Else chance
    /// chooses crashes.
    pub(crate) stop: Option<PlannedStop>,
    /// A failure shows the history.
    pub(crate) keeps_history: bool,
}

impl Plan {
    /// The run of a seed.
    pub(crate) fn of_seed(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x5eed_0000_0000);
        let devices = [1, 1, 2, 3][random.below(4) as usize];
        let is_wide = random.one_in(16);
        let segment_blocks = match is_wide {
            true => 128,
            false => [16, 24, 32, 64][random.below(4) as usize],
        };
        let layout = PoolLayout {
            uuid: uuid(&mut random),
            segment_blocks,
            devices: (0..devices)
                .map(|_| {
                    let segments = random.between(SEGMENTS_MIN, 64).div_ceil(devices);
                    let blocks = DEVICE_HEADER_BLOCKS + segments * u64::from(segment_blocks);
                    DeviceLayout { uuid: uuid(&mut random), blocks: blocks + random.below(4) }
                })
                .collect(),
        };
        let options = PoolOptions {
            cache_blocks: CACHE_BLOCKS_MIN + random.below(64) as usize,
            log_blocks_max: [40, 100, 300, 1_000][random.below(4) as usize],
        };
        let stop = stop(&mut random);
        let is_crashy = !is_wide && stop.is_none() && random.one_in(8);
        let lives = match stop.is_some() || is_wide {
            true => 2,
            false if is_crashy => random.between(8, 14),
            false => random.between(1, 6),
        };
        let dedup = dedup(seed);
        Self {
            seed,
            has_zeroes: dedup.is_some() && seed.is_multiple_of(3),
            dedup,
            history: history(seed),
            compresses: random.one_in(2),
            is_wide,
            layout,
            options,
            faults: faults(&mut random),
            lives,
            is_crashy,
            rounds: if is_wide { 800 } else { random.between(100, 500) },
            depth: match is_wide || is_crashy {
                true => 32,
                false => [1, 4, 12, 32][random.below(4) as usize],
            },
            volumes: random.between(2, 14) as usize,
            stop,
            key_rounds: 0,
            device_rounds: if is_wide { 0 } else { [0, 0, 40, 150][random.below(4) as usize] },
            keeps_history: false,
        }
    }

    /// Whether media keep what they have: then no request fails.
    pub(crate) fn has_good_media(&self) -> bool {
        let DiskFaults { read_error_ppm, write_error_ppm, misdirect_ppm, rot_ppm, .. } =
            self.faults;
        [read_error_ppm, write_error_ppm, misdirect_ppm, rot_ppm].iter().all(|&ppm| ppm == 0)
    }
}

/// Half of the runs. Some indices have room for a few pages, and some hashes are the same for most
/// contents.
fn dedup(seed: u64) -> Option<DedupOptions> {
    let mut random = Random::new(seed ^ 0xdedb_0000_0000);
    let memory_bytes = [64, 1 << 10, 1 << 16][random.below(3) as usize];
    let hash_bits = [64, 64, 3, 0][random.below(4) as usize];
    random.one_in(2).then_some(DedupOptions { memory_bytes, hash_bits })
}

/// Half of the runs, with few moments: each is read after each opening.
fn history(seed: u64) -> Option<HistoryOptions> {
    let mut random = Random::new(seed ^ 0x7157_0000_0000);
    let step_ms = [100, 300, 1_000][random.below(3) as usize];
    let reach_ms = step_ms * random.between(1, 4);
    random.one_in(2).then_some(HistoryOptions { reach_ms, step_ms })
}

fn uuid(random: &mut Random) -> [u8; 16] {
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&random.draw().to_le_bytes());
    uuid[8..].copy_from_slice(&random.draw().to_le_bytes());
    uuid
}

/// Some runs have one crash, which may be early.
fn stop(random: &mut Random) -> Option<PlannedStop> {
    if !random.one_in(10) {
        return None;
    }
    let kind = if random.one_in(2) { CrashKind::Kill } else { CrashKind::PowerCut };
    let at = match random.one_in(2) {
        true => StopAt::Answer(random.between(1, 300)),
        false => StopAt::Opening(random.between(1, 100)),
    };
    Some(PlannedStop { at, kind })
}

fn faults(random: &mut Random) -> DiskFaults {
    let mut faults = DiskFaults::NONE;
    faults.delay_max = [0, 1, 3, 3, 12][random.below(5) as usize];
    match random.below(10) {
        0 => faults.rot_ppm = random.between(1_000, 20_000),
        1 => faults.misdirect_ppm = random.between(500, 5_000),
        2 => faults.read_error_ppm = random.between(500, 10_000),
        3 => faults.no_space_ppm = random.between(1_000, 10_000),
        4 if random.one_in(2) => faults.write_error_ppm = random.between(300, 3_000),
        _ => {}
    }
    faults
}
