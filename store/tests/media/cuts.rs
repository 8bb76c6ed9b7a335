//! Power cuts behind each write of a pool, in lives that follow one another: the state that is
//! found is a state that the pool had since the last flush. A cut loses, tears and keeps any of the
//! writes behind it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use random::Random;
use store::block::{BLOCK_BYTES, Block};
use store::format::{DEVICE_HEADER_BLOCKS, RowHead, SegmentId};
use store::{Admission, DeviceIo, DeviceOp, PoolChange, PoolCompletion, RequestTag, VolumeId};

use crate::crash::contents;
use crate::memory::{DeviceWatch, MemoryDevices};
use crate::pool::{Content, MediaPool, SEGMENT_BLOCKS, UUID, open};
use crate::recorded::{Kept, Moment, Recording, UnsyncedPart, find_moment};

/// Blocks of the volume of the tests that aim at one row.
const VOLUME_BLOCKS: u64 = 200;

/// The record of a pool's devices.
struct Recorder {
    recording: Recording,
    /// The steps that wrote the first of the two copies of a superblock, on each device.
    superblocks: Vec<usize>,
    /// The steps that were syncs.
    syncs: Vec<usize>,
}

impl DeviceWatch for Recorder {
    fn written(&mut self, device: u8, block: u64, blocks: &[Block]) {
        if block < DEVICE_HEADER_BLOCKS / 2 {
            self.superblocks.push(self.recording.len());
        }
        let bytes: Vec<u8> = blocks.iter().flat_map(|block| block.0).collect();
        self.recording.wrote(device.into(), block as usize * BLOCK_BYTES, &bytes);
    }

    fn synced(&mut self, device: u8) {
        self.syncs.push(self.recording.len());
        self.recording.synced(device.into());
    }
}

/// A record that goes on while the devices are used.
#[derive(Clone)]
pub(crate) struct Running(Arc<Mutex<Recorder>>);

impl Running {
    /// Records these devices from now on, as what follows `recording`.
    pub(crate) fn watch(devices: &mut MemoryDevices, recording: Recording) -> Self {
        let recorder = Recorder { recording, superblocks: Vec::new(), syncs: Vec::new() };
        let recorder = Arc::new(Mutex::new(recorder));
        devices.watch = Some(recorder.clone());
        Self(recorder)
    }

    fn lock(&self) -> MutexGuard<'_, Recorder> {
        self.0.lock().expect("no test panics with it")
    }

    fn len(&self) -> usize {
        self.lock().recording.len()
    }

    /// The record until now.
    pub(crate) fn recording(&self) -> Recording {
        self.lock().recording.clone()
    }
}

/// The content of devices.
pub(crate) fn bytes_of(devices: &MemoryDevices) -> Vec<Vec<u8>> {
    let device = |blocks: &Vec<Block>| blocks.iter().flat_map(|block| block.0).collect();
    devices.blocks.iter().map(device).collect()
}

/// Devices with this content.
pub(crate) fn devices_of(bytes: &[Vec<u8>]) -> MemoryDevices {
    let mut devices = MemoryDevices::new(0, 0);
    let block = |bytes: &[u8]| Block(bytes.try_into().expect("whole blocks"));
    devices.blocks = bytes.iter().map(|it| it.chunks(BLOCK_BYTES).map(block).collect()).collect();
    devices
}

/// The list and the contents of a pool.
#[derive(Clone)]
struct PoolState {
    list: String,
    contents: BTreeMap<VolumeId, Content>,
}

impl PoolState {
    fn of(pool: &MediaPool) -> Self {
        Self { list: pool.list(), contents: pool.model.clone() }
    }

    fn has(&self, volume: VolumeId, block: usize, content: &[u8]) -> bool {
        let wanted = self.contents.get(&volume).and_then(|content| content.get(block));
        wanted.is_some_and(|wanted| match wanted {
            Some(block) => block.0[..] == *content,
            None => content.iter().all(|&byte| byte == 0),
        })
    }
}

/// The found state is a state that the pool had, or a state in the middle of a request.
fn check(found: &(String, BTreeMap<VolumeId, Vec<u8>>), moments: &[Moment<PoolState>], at: usize) {
    let moment = find_moment(moments, at, |before, after| {
        (found.0 == after.list || found.0 == before.list)
            && found.1.iter().all(|(&volume, bytes)| {
                let mut blocks = bytes.chunks(BLOCK_BYTES).enumerate();
                blocks.all(|(at, block)| {
                    after.has(volume, at, block) || before.has(volume, at, block)
                })
            })
    });
    assert!(
        moment.is_some(),
        "behind step {at} the pool has no state that it may have: {}",
        found.0
    );
}

/// The record of a life.
struct Life {
    recording: Recording,
    moments: Vec<Moment<PoolState>>,
    /// The steps that wrote the first of the two copies of a superblock, on each device.
    superblocks: Vec<usize>,
}

/// The pool that a life begins with: its devices, and what they hold.
struct Born {
    devices: MemoryDevices,
    state: PoolState,
    /// Writes of the lives before that no sync covers.
    unsynced: Recording,
}

impl Born {
    fn new(seed: u64) -> Self {
        let mut pool = MediaPool::new(seed);
        (0..40).for_each(|_| pool.step());
        pool.flush();
        let state = PoolState::of(&pool);
        let unsynced = Recording::new(bytes_of(&pool.devices));
        Self { devices: pool.devices, state, unsynced }
    }

    /// Opens the pool and uses it: the record and the moments of the life.
    fn live(mut self, steps: u64, random: &mut Random) -> Life {
        let running = Running::watch(&mut self.devices, self.unsynced);
        let moment = |begun, is_durable, pool: &MediaPool| Moment {
            begun,
            ended: running.len(),
            is_durable,
            state: PoolState::of(pool),
        };
        let engine = open(&mut self.devices, random.draw());
        let mut pool = MediaPool::with(self.devices, engine, random.draw());
        pool.model = self.state.contents;
        // Names are counted, and those of the lives before are used.
        pool.tags = random.below(1 << 40);
        // The opening has made durable what it found.
        let mut moments = vec![moment(0, true, &pool)];
        for _ in 0..steps {
            let begun = running.len();
            let is_flush = random.one_in(8);
            if is_flush {
                pool.flush()
            } else {
                pool.step()
            }
            moments.push(moment(begun, is_flush, &pool));
        }
        let superblocks = running.lock().superblocks.clone();
        Life { recording: running.recording(), moments, superblocks }
    }
}

/// The remains of a cut: often all or nothing of most, and sectors of some.
fn chance(random: &mut Random) -> impl FnMut(UnsyncedPart) -> Kept {
    let mut random = random.fork();
    let kept_ppm = [0, 200_000, 500_000, 900_000, 1_000_000][random.below(5) as usize];
    let torn_ppm = [0, 0, 100_000, 500_000][random.below(4) as usize];
    move |_| match (random.hits(torn_ppm), random.hits(kept_ppm)) {
        (true, _) => Kept::Sectors(random.draw() as u8),
        (false, true) => Kept::All,
        (false, false) => Kept::Nothing,
    }
}

fn with_contents(found: &(String, BTreeMap<VolumeId, Vec<u8>>)) -> PoolState {
    let block = |bytes: &[u8]| {
        let is_zero = bytes.iter().all(|&byte| byte == 0);
        (!is_zero).then(|| Block(bytes.try_into().expect("whole blocks")).into())
    };
    let contents = found.1.iter();
    PoolState {
        list: found.0.clone(),
        contents: contents
            .map(|(&id, bytes)| (id, bytes.chunks(BLOCK_BYTES).map(block).collect()))
            .collect(),
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

#[test]
fn any_power_cut_leaves_a_state_since_the_last_flush() {
    let (mut cuts, lives) = (0, number("CUT_LIVES").unwrap_or(4));
    let first = number("CUT_FIRST").unwrap_or(1);
    for seed in first..first + number("CUT_SEEDS").unwrap_or(2) {
        let mut random = Random::new(seed);
        let mut born = Born::new(seed);
        for life in 0..lives {
            let steps = random.between(1, 40);
            let Life { recording, moments, .. } = born.live(steps, &mut random);
            // A few cuts of each life, and the next life begins behind the last one.
            let mut next = None;
            for _ in 0..number("CUTS").unwrap_or(6) {
                let at = random.between(moments[0].ended as u64, recording.len() as u64) as usize;
                let image = recording.up_to(at).cut(chance(&mut random));
                let found = contents(devices_of(&image));
                check(&found, &moments, at);
                cuts += 1;
                next = Some((image, found));
            }
            let (image, found) = next.expect("a life has cuts");
            let (devices, state) = (devices_of(&image), with_contents(&found));
            born = Born { devices, state, unsynced: Recording::new(image) };
            println!("seed {seed}, life {life}: {} steps", recording.len());
        }
    }
    println!("{cuts} cuts");
}

/// A life of writes in a pool that uses its segments again soon.
fn small_life(seed: u64) -> Life {
    let mut random = Random::new(seed);
    let mut pool = MediaPool::small(seed);
    let volume = pool.create(VOLUME_BLOCKS);
    pool.flush();
    let before = Recording::new(bytes_of(&pool.devices));
    let running = Running::watch(&mut pool.devices, before);
    let state = PoolState::of(&pool);
    let mut moments = vec![Moment { begun: 0, ended: 0, is_durable: true, state }];
    for _ in 0..120 {
        let begun = running.len();
        let is_durable = random.one_in(8);
        if is_durable {
            pool.flush();
        } else {
            let block = random.below(VOLUME_BLOCKS - 20);
            pool.write(volume, block, random.between(1, 20));
        }
        let (ended, state) = (running.len(), PoolState::of(&pool));
        moments.push(Moment { begun, ended, is_durable, state });
    }
    let superblocks = running.lock().superblocks.clone();
    Life { recording: running.recording(), moments, superblocks }
}

/// A process ends, the next one opens the pool, and the power fails: superblocks that no sync
/// covers are lost, and all else is kept.
#[test]
fn an_opening_makes_durable_the_checkpoint_that_it_found() {
    let is_header = |at: usize| at < DEVICE_HEADER_BLOCKS as usize * BLOCK_BYTES;
    let (mut checkpoints, mut tried) = (0, 0);
    for seed in 1..=number("CUT_SEEDS").unwrap_or(6) {
        let Life { recording, moments, superblocks } = small_life(seed);
        checkpoints += superblocks.len();
        for written in superblocks {
            // The kill comes behind the write of a checkpoint's first superblock, before its sync.
            let first = recording.up_to(written + 1);
            let mut devices = devices_of(&first.cut(|_| Kept::All));
            let running = Running::watch(&mut devices, first.clone());
            drop(open(&mut devices, 99));
            let opening = running.recording();
            // Before each sync most is lost.
            for &at in &running.lock().syncs {
                let image = opening.up_to(at).cut(|part| match is_header(part.offset) {
                    true => Kept::Nothing,
                    false => Kept::All,
                });
                check(&contents(devices_of(&image)), &moments, written + 1);
                tried += 1;
            }
        }
    }
    println!("{tried} cuts of openings behind {checkpoints} checkpoints");
    assert!(tried > 40, "{tried} cuts of openings");
}

/// Rounds that a sync takes in [`SlowLife`]: rows of some segments are written meanwhile.
const SYNC_ROUNDS: u64 = 30;

/// A life of writes without a flush in a pool that is nearly full, on devices whose syncs are slow.
struct SlowLife {
    pool: MediaPool,
    /// Syncs, by the round of their answers.
    held: VecDeque<(u64, DeviceIo)>,
    rounds: u64,
    /// Segments that the log had freed, and that were taken before a checkpoint.
    taken_early: u64,
}

impl SlowLife {
    /// A round, and whether the request is done.
    fn round(&mut self, wanted: RequestTag) -> bool {
        let MediaPool { engine, devices, now_ns, .. } = &mut self.pool;
        let before = engine.status();
        self.rounds += 1;
        *now_ns += 1_000_000;
        engine.poll(*now_ns);
        let after = engine.status();
        if after.checkpoint == before.checkpoint {
            self.taken_early += before.segments.early.saturating_sub(after.segments.early);
        }
        while let Some(io) = engine.next_io() {
            match io.op {
                DeviceOp::Sync => self.held.push_back((self.rounds + SYNC_ROUNDS, io)),
                _ => devices.answer(engine, io),
            }
        }
        while let Some((_, io)) = self.held.pop_front_if(|(due, _)| *due <= self.rounds) {
            devices.answer(engine, io);
        }
        let mut is_done = false;
        while let Some(completion) = engine.next_completion() {
            is_done |= matches!(completion, PoolCompletion::Done { tag, .. } if tag == wanted);
        }
        is_done
    }

    fn write(&mut self, volume: VolumeId, block: u64) {
        let page = self.pool.new_block();
        self.pool.tags += 1;
        let tag = RequestTag(self.pool.tags);
        let fill = &mut |_: u32, into: &mut Block| into.clone_from(&page);
        while self.pool.engine.write(tag, volume, block, 1, fill) == Admission::Busy {
            self.round(tag);
        }
        while !self.round(tag) {}
        let content = self.pool.model.get_mut(&volume).expect("the only volume");
        content[block as usize] = Some(page);
    }
}

/// Segments that the log has freed are written before a checkpoint, and no cut needs what they had.
#[test]
fn a_cut_needs_nothing_of_a_segment_that_the_log_has_freed() {
    let (mut cuts, mut taken_early) = (0, 0);
    for seed in 1..=number("CUT_SEEDS").unwrap_or(3) {
        let mut random = Random::new(seed);
        let mut pool = MediaPool::small(seed);
        let blocks = pool.engine.status().size_blocks * 8 / 10;
        let volume = pool.create(blocks);
        (0..blocks / 20).for_each(|at| pool.write(volume, 20 * at, 20));
        pool.flush();
        pool.settle();
        let before = Recording::new(bytes_of(&pool.devices));
        let running = Running::watch(&mut pool.devices, before);
        let state = PoolState::of(&pool);
        let mut moments = vec![Moment { begun: 0, ended: 0, is_durable: true, state }];
        let mut life = SlowLife { pool, held: VecDeque::new(), rounds: 0, taken_early: 0 };
        for _ in 0..3 * blocks {
            let begun = running.len();
            life.write(volume, random.below(blocks));
            let (ended, state) = (running.len(), PoolState::of(&life.pool));
            moments.push(Moment { begun, ended, is_durable: false, state });
        }
        taken_early += life.taken_early;
        let recording = running.recording();
        for _ in 0..number("CUTS").unwrap_or(40) {
            let at = random.between(recording.len() as u64 / 2, recording.len() as u64) as usize;
            // The newest writes are kept, and those before them lost; or any of them.
            let newest = at.saturating_sub(random.below(60) as usize);
            let image = recording.up_to(at).cut(|part| match part.step >= newest {
                true => Kept::All,
                false => Kept::Nothing,
            });
            check(&contents(devices_of(&image)), &moments, at);
            let image = recording.up_to(at).cut(chance(&mut random));
            check(&contents(devices_of(&image)), &moments, at);
            cuts += 2;
        }
    }
    println!("{cuts} cuts; {taken_early} segments that the log had freed were taken");
    assert!(taken_early > 100, "{taken_early} segments");
}

/// A pool with a volume, flushed, and its record.
fn pool_with_volume(seed: u64) -> (MediaPool, VolumeId, Running) {
    let mut pool = MediaPool::new(seed);
    let volume = pool.create(VOLUME_BLOCKS);
    (0..VOLUME_BLOCKS).step_by(20).for_each(|block| pool.write(volume, block, 20));
    pool.flush();
    pool.settle();
    // Streams begin in new segments: the next row is not cut by the end of one.
    pool.crash_and_open();
    let before = Recording::new(bytes_of(&pool.devices));
    let running = Running::watch(&mut pool.devices, before);
    (pool, volume, running)
}

/// Where the row that was recorded begins; it has so many blocks.
fn head_of(recording: &Recording, blocks: usize) -> usize {
    let mut parts = Vec::new();
    recording.cut(|part| {
        parts.push(part.offset);
        Kept::All
    });
    assert_eq!(parts.len(), blocks, "the row is one write");
    parts[0]
}

/// A row with seven pages, whose head is there: it counts if each page is there.
#[test]
fn a_row_that_is_there_in_part_has_no_effect() {
    let (mut pool, volume, running) = pool_with_volume(1);
    let before = pool.model[&volume].clone();
    pool.write(volume, 3, 7);
    let recording = running.recording().up_to(1);
    let head = head_of(&recording, 8);
    for kept in 0_u32..1 << 7 {
        for torn in [Kept::Nothing, Kept::Sectors(0x0f), Kept::Sectors(0xfe)] {
            let image = recording.cut(|part| match (part.offset - head) / BLOCK_BYTES {
                0 => Kept::All,
                page if kept >> (page - 1) & 1 == 1 => Kept::All,
                _ => torn,
            });
            let found = with_contents(&contents(devices_of(&image))).contents;
            let wanted = if kept == (1 << 7) - 1 { &pool.model[&volume] } else { &before };
            let is_same = found[&volume].iter().zip(wanted).all(|(found, wanted)| {
                found.as_ref().map(|block| block.0) == wanted.as_ref().map(|block| block.0)
            });
            assert!(is_same, "pages {kept:#09b} of 7 were there, the rest {torn:?}");
        }
    }
}

/// The same for a change of the catalog, which is in its row twice.
#[test]
fn a_change_that_is_there_in_part_has_no_effect() {
    let (mut pool, volume, running) = pool_with_volume(2);
    let before = pool.list();
    pool.change(&PoolChange::Rename { volume, name: "another".into() }).expect("a new name");
    let recording = running.recording().up_to(1);
    let head = head_of(&recording, 3);
    for kept in 0..4 {
        let image = recording.cut(|part| match (part.offset - head) / BLOCK_BYTES {
            0 => Kept::All,
            page if kept >> (page - 1) & 1 == 1 => Kept::All,
            _ => Kept::Nothing,
        });
        let list = contents(devices_of(&image)).0;
        let wanted = if kept == 3 { pool.list() } else { before.clone() };
        assert_eq!(list, wanted, "{kept:#b} of the two pages were there");
    }
}

/// The end of the guests' stream: the place at which a replay looks for its next row.
fn end_of_stream(devices: &mut MemoryDevices) -> Option<(RowHead, RowHead)> {
    let last = devices.log().pop()?;
    let mut place = last.place;
    place.block += 1 + u16::from(last.payload);
    if SEGMENT_BLOCKS - u32::from(place.block) < 2 {
        (place.segment, place.block) = (SegmentId(last.next.0), 0);
    }
    let stale = RowHead::decode(&UUID, devices.at(place)).ok()?;
    Some((last, stale))
}

/// Writes without a flush; each is a row.
fn write_rows(pool: &mut MediaPool, volume: VolumeId, rows: &[u64]) {
    rows.iter().for_each(|&blocks| pool.write(volume, 40, blocks));
}

/// The first of some rows is lost by a power cut, so that all are, and the next opening writes one
/// of its own with the same sequence. Behind it, where the stream goes on, lies the old opening's
/// next row: whole, with the sequence that comes next, and of no meaning.
#[test]
fn rows_of_the_opening_before_stay_forgotten() {
    let mut met = 0;
    for rows_before in 0..20_usize {
        for second_life in [&[1][..], &[31, 1], &[30, 1]] {
            let (mut pool, volume, _) = pool_with_volume(3);
            write_rows(&mut pool, volume, &vec![1; rows_before]);
            pool.flush();
            let before = Recording::new(bytes_of(&pool.devices));
            let running = Running::watch(&mut pool.devices, before);
            write_rows(&mut pool, volume, &[1; 6]);
            let image = running.recording().cut(|part| match part.step {
                0 => Kept::Nothing,
                _ => Kept::All,
            });
            let mut devices = devices_of(&image);
            let found = with_contents(&contents(devices.clone()));
            let engine = open(&mut devices, 77);
            let mut pool = MediaPool::with(devices, engine, 5);
            pool.model = found.contents;
            write_rows(&mut pool, volume, second_life);
            let state = PoolState::of(&pool);
            if let Some((last, stale)) = end_of_stream(&mut pool.devices) {
                let is_next = stale.stream == 0 && stale.sequence == last.sequence + 1;
                met += u32::from(is_next && stale.opening != last.opening);
            }
            let moments = [Moment { begun: 0, ended: 0, is_durable: true, state }];
            check(&contents(pool.devices), &moments, 0);
        }
    }
    println!("{met} times the old opening's row lay where the next one was looked for");
    assert!(met > 0, "the rows of the two openings never met");
}
