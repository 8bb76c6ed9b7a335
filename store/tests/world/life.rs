//! The run: openings, requests, crashes, and the end.

use std::collections::{BTreeMap, VecDeque};

use random::Random;
use seeds::Tally;
use store::format::{Superblock, superblock_blocks};
use store::{
    DeviceChange, PoolChange, PoolCompletion, PoolDeviceError, PoolEngine, PoolError, PoolVolume,
    RequestTag, SegmentCounts, VolumeId, format_pool,
};

use super::Failure;
use super::diffs::DiffPart;
use super::disk::{CrashKind, SimDisk};
use super::model::Model;
use super::opening::{Opened, OpeningDisks};
use super::plan::{Plan, PlannedStop, StopAt};
use super::seals::SealWatch;
use super::users::Mood;

/// The rounds in which each request must end while the pool has room and the devices answer.
const REQUEST_ROUNDS_MAX: u64 = 4_000;

/// The rounds in which a pool without requests must come to rest.
const REST_ROUNDS_MAX: u64 = 20_000;

/// Writes in a row that an idle pool may refuse without being full.
const BUSY_ROUNDS_MAX: u64 = 200;

/// Requests to devices that a round may hand out.
const ROUND_IOS_MAX: usize = 4_096;

/// Blocks of a write to a pool at rest.
const REST_WRITE_BLOCKS: u64 = 60;

/// Segments whose blocks a pool at rest may miss of what it says that it has.
const SLACK_SEGMENTS: u64 = 2;

/// Lines of history that a failure shows.
const HISTORY_LINES: usize = 400;

/// A request under way.
pub(crate) struct Request {
    /// Its subject.
    pub(crate) ask: Ask,
    /// When it was admitted, by the model's clock.
    pub(crate) stamp: u64,
    /// When it was admitted, in rounds.
    pub(crate) since: u64,
}

/// A user's request.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    /// A write, a part of a block, or zeroes.
    Write {
        /// The volume.
        volume: VolumeId,
        /// The first block.
        block: u64,
        /// How many.
        blocks: u32,
    },
    /// A read.
    Read {
        /// The volume or snapshot.
        volume: VolumeId,
        /// The first block.
        block: u64,
        /// The blocks that came.
        came: Vec<bool>,
        /// How they are judged.
        judge: Judge,
    },
    /// A flush.
    Flush,
    /// A change of the catalog.
    Change(PoolChange),
    /// A change of the devices.
    Devices(DeviceChange),
    /// A part of a difference of snapshots.
    Diff(DiffPart),
    /// A request that must fail.
    Wrong,
}

/// How the blocks of a read are judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judge {
    /// By what was completed before.
    Live,
    /// As part of the verification after an opening.
    Opening,
    /// Not at all: the model cannot know.
    Nothing,
}

/// How a round ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The engine is alive.
    Alive,
    /// It is not.
    Crashed,
}

/// The world of one run.
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) random: Random,
    pub(crate) disks: Vec<SimDisk>,
    pub(crate) engine: Option<PoolEngine>,
    pub(crate) model: Model,
    pub(crate) seals: SealWatch,
    pub(crate) requests: BTreeMap<u64, Request>,
    pub(crate) next_tag: u64,
    pub(crate) round: u64,
    pub(crate) now_ns: u64,
    /// The time since 1970, which jumps, and the highest one that was told.
    pub(crate) utc_ns: u64,
    pub(crate) utc_ns_max: u64,
    /// The model knows which moments there are.
    pub(crate) follows_moments: bool,
    pub(crate) mood: Mood,
    /// Rounds in a row in which the engine took no write.
    pub(crate) busy_rounds: u64,
    /// Those of them in which the pool was idle and not full.
    pub(crate) busy_without_reason: u64,
    /// The last checkpoint that was found on all devices.
    checkpoint: u64,
    /// Free segments at the end of the last round.
    free_segments: (u64, u64),
    /// A crash after so many answers.
    pub(crate) crash_in: Option<(u64, CrashKind)>,
    /// A crash at this request of the next opening.
    pub(crate) stop_opening_at: Option<u64>,
    /// A crash after so many answers for superblocks.
    pub(crate) crash_superblocks: Option<u64>,
    /// Parts of differences that go on.
    pub(crate) diffs: Vec<DiffPart>,
    /// The single blocks of a verification's reads that failed.
    pub(crate) damaged: Vec<(VolumeId, u64)>,
    pub(crate) tally: Tally,
    pub(crate) history: VecDeque<String>,
    keeps_history: bool,
}

impl World {
    /// A world before its beginning.
    pub(crate) fn new(plan: Plan) -> Self {
        let disks: Vec<SimDisk> =
            plan.layout.devices.iter().map(|device| SimDisk::new(device.blocks)).collect();
        Self {
            random: Random::new(plan.seed),
            disks,
            engine: None,
            model: Model::new(!plan.has_good_media(), &plan),
            seals: SealWatch::new(plan.layout.uuid),
            requests: BTreeMap::new(),
            next_tag: 1,
            round: 0,
            now_ns: 1_000_000,
            utc_ns: 1_790_000_000_000_000_000,
            utc_ns_max: 0,
            follows_moments: false,
            mood: Mood::Mixed,
            busy_rounds: 0,
            busy_without_reason: 0,
            checkpoint: 0,
            free_segments: (0, 0),
            crash_in: None,
            stop_opening_at: None,
            crash_superblocks: None,
            diffs: Vec::new(),
            damaged: Vec::new(),
            tally: Tally::default(),
            history: VecDeque::new(),
            keeps_history: plan.keeps_history,
            plan,
        }
    }

    /// A line of the history.
    pub(crate) fn note(&mut self, line: impl FnOnce() -> String) {
        if self.keeps_history {
            if self.history.len() == HISTORY_LINES {
                self.history.pop_front();
            }
            let line = format!("{:>6} {}", self.round, line());
            self.history.push_back(line);
        }
    }

    /// All of the run.
    pub(crate) fn run(&mut self) -> Result<(), Failure> {
        let layout = self.plan.layout.clone();
        let result = format_pool(&mut OpeningDisks::healthy(self), &layout);
        result.map_err(|error| Failure::new("not made", error.to_string()))?;
        for disk in &mut self.disks {
            disk.faults = self.plan.faults;
        }
        for life in 0..self.plan.lives {
            let is_last = life + 1 == self.plan.lives;
            self.stop_opening_at = match self.plan.stop {
                Some(PlannedStop { at: StopAt::Opening(at), .. }) if life == 1 => Some(at),
                _ => None,
            };
            if let Opened::Refused = self.open()? {
                return Ok(());
            }
            self.tally.add("lives", 1);
            self.choose_crash(life as usize, is_last);
            self.choose_crash_at_superblock(is_last);
            if is_last {
                self.calm();
            }
            if self.hit_tail() {
                // The model cannot know how much of the log is there.
                return self.end_without_model();
            }
            if self.verify()? == Turn::Crashed {
                self.crash_engine();
                continue;
            }
            if self.plan.stop.is_none() && self.random.one_in(2) {
                // The count of answers begins behind the verification.
                self.choose_crash(life as usize, is_last);
            }
            if self.live()? == Turn::Crashed || !is_last && self.random.one_in(2) {
                self.crash_engine();
                continue;
            }
            if self.failed() || self.close()? == Turn::Crashed {
                self.crash_engine();
            }
        }
        self.end()
    }

    pub(crate) fn hit_tail(&mut self) -> bool {
        self.disks.iter().any(|disk| disk.tail_was_hit)
    }

    /// Whether the engine takes no changes any more.
    pub(crate) fn failed(&self) -> bool {
        self.engine.as_ref().is_some_and(|engine| engine.status().failed.is_some())
    }

    pub(crate) fn calm(&mut self) {
        self.disks.iter_mut().for_each(SimDisk::calm);
    }

    fn choose_crash(&mut self, life: usize, is_last: bool) {
        self.crash_in = match self.plan.stop {
            Some(PlannedStop { at: StopAt::Answer(after), kind }) if life == 0 => {
                Some((after, kind))
            }
            Some(_) => None,
            None if is_last || self.random.one_in(4) => None,
            None => {
                let most = match self.plan.is_crashy {
                    true => [10, 40, 100],
                    false => [20, 200, 2_000],
                };
                let most = most[self.random.below(3) as usize];
                Some((self.random.between(1, most), self.crash_kind()))
            }
        };
    }

    fn choose_crash_at_superblock(&mut self, is_last: bool) {
        let is_wanted = !is_last && self.plan.stop.is_none() && self.random.one_in(5);
        self.crash_superblocks = is_wanted.then(|| self.random.between(1, 16));
    }

    pub(crate) fn crash_kind(&mut self) -> CrashKind {
        if let Some(stop) = self.plan.stop {
            return stop.kind;
        }
        match self.random.one_in(2) {
            true => CrashKind::Kill,
            false => CrashKind::PowerCut,
        }
    }

    /// The users' rounds of a life.
    fn live(&mut self) -> Result<Turn, Failure> {
        let mut left = 0;
        for _ in 0..self.plan.rounds {
            if left == 0 {
                left = self.random.between(10, 120);
                self.mood = Mood::draw(&mut self.random);
                let mood = self.mood;
                self.note(|| format!("mood {mood:?}"));
                if mood == Mood::Rest && self.rest()? == Turn::Crashed {
                    return Ok(Turn::Crashed);
                }
            }
            left -= 1;
            self.use_pool()?;
            if self.turn()? == Turn::Crashed {
                return Ok(Turn::Crashed);
            }
            if self.failed() {
                self.tally.add("failed engines", 1);
                return Ok(Turn::Alive);
            }
        }
        Ok(Turn::Alive)
    }

    /// One round of the engine and of the devices.
    pub(crate) fn turn(&mut self) -> Result<Turn, Failure> {
        self.round += 1;
        self.now_ns += self.random.between(1_000, 200_000);
        self.take_ios()?;
        for at in 0..self.disks.len() {
            self.disks[at].age(&mut self.random);
            while let Some(answer) = self.disks[at].answer(self.round, &mut self.random) {
                let engine = self.engine.as_mut().expect("a turn has an engine");
                engine.complete_io(answer.token, answer.buffer, answer.result);
                if answer.is_superblock
                    && let Some(left) = &mut self.crash_superblocks
                {
                    *left -= 1;
                    if *left == 0 {
                        self.tally.add("crashes at a superblock", 1);
                        return Ok(Turn::Crashed);
                    }
                }
                if let Some((left, _)) = &mut self.crash_in {
                    *left -= 1;
                    if *left == 0 {
                        self.tally.add("crashes at an answer", 1);
                        return Ok(Turn::Crashed);
                    }
                }
            }
        }
        if self.random.one_in(2) {
            self.take_ios()?;
        }
        self.take_completions()?;
        self.check_checkpoint()?;
        self.check_time()?;
        Ok(Turn::Alive)
    }

    fn take_ios(&mut self) -> Result<(), Failure> {
        self.tell_time();
        let engine = self.engine.as_mut().expect("a turn has an engine");
        engine.poll(self.now_ns);
        self.follow_moments()?;
        let engine = self.engine.as_mut().expect("a turn has an engine");
        for _ in 0..ROUND_IOS_MAX {
            let Some(io) = engine.next_io() else { return Ok(()) };
            self.seals.watch(&io, &mut self.tally)?;
            let disk = self.disks.get_mut(usize::from(io.device));
            let disk = disk.ok_or_else(|| Failure::new("bad request", format!("{io:?}")))?;
            disk.take(io, self.round, &mut self.random)
                .map_err(|text| Failure::new("bad request", text))?;
        }
        Err(Failure::new("no end", "a round hands out requests without end".to_owned()))
    }

    fn take_completions(&mut self) -> Result<(), Failure> {
        while let Some(completion) =
            self.engine.as_mut().expect("a turn has an engine").next_completion()
        {
            match completion {
                PoolCompletion::Data { tag, first, blocks, buffer } => {
                    let contents = buffer.as_ref().map(|buffer| buffer.blocks());
                    for at in 0..blocks {
                        let content = contents.map(|contents| &contents[at as usize]);
                        self.take_block(tag, first + at, content)?;
                    }
                    if let Some(buffer) = buffer {
                        self.engine.as_mut().expect("it was there above").recycle(buffer);
                    }
                }
                PoolCompletion::Done { tag, result } => self.take_end(tag, result)?,
            }
        }
        Ok(())
    }

    fn take_block(
        &mut self,
        tag: RequestTag,
        at: u32,
        content: Option<&store::block::Block>,
    ) -> Result<(), Failure> {
        let text = || format!("block {at} of the request {tag:?}");
        let request = self.requests.get_mut(&tag.0);
        let Some(Request { ask: Ask::Read { volume, block, came, judge }, stamp, .. }) = request
        else {
            return Err(Failure::new("data without a read", text()));
        };
        match came.get_mut(at as usize) {
            Some(came) if !*came => *came = true,
            _ => return Err(Failure::new("data twice, or beyond the end", text())),
        }
        let (volume, block) = (*volume, *block + u64::from(at));
        if !self.model.volumes.contains_key(&volume) {
            // It was removed while the read was under way.
            return Ok(());
        }
        match *judge {
            Judge::Live => self.model.judge(*stamp, volume, block, content),
            Judge::Opening => self.model.verify(volume, block, content),
            Judge::Nothing => Ok(()),
        }
    }

    fn take_end(
        &mut self,
        tag: RequestTag,
        result: Result<VolumeId, PoolError>,
    ) -> Result<(), Failure> {
        let Some(request) = self.requests.remove(&tag.0) else {
            return Err(Failure::new("an end without a request", format!("{tag:?}")));
        };
        let Request { ask, stamp, .. } = request;
        self.note(|| match &ask {
            Ask::Read { volume, block, came, .. } => {
                format!("  done #{stamp} read {volume:?} {block}+{}: {result:?}", came.len())
            }
            ask => format!("  done #{stamp} {ask:?}: {result:?}"),
        });
        if let Ask::Wrong = ask {
            return match result {
                Err(_) => Ok(()),
                Ok(_) => Err(Failure::new("a wrong request was done", format!("#{stamp}"))),
            };
        }
        if let Err(error) = result {
            return self.take_error(&ask, stamp, &error);
        }
        match ask {
            Ask::Write { volume, block, blocks } => {
                self.model.complete(stamp, volume, block..block + u64::from(blocks));
                self.tally.add("blocks written", blocks.into());
            }
            Ask::Read { came, .. } => {
                self.model.unwatch(stamp);
                self.tally.add("blocks read", came.len() as u64);
                if came.contains(&false) {
                    let text = format!("#{stamp}: not all blocks came");
                    return Err(Failure::new("a read without its data", text));
                }
            }
            Ask::Flush => {
                self.model.durable(stamp);
                self.tally.add("flushes", 1);
            }
            Ask::Change(change) => self.take_change(stamp, &change)?,
            Ask::Devices(change) => self.devices_changed(change),
            Ask::Diff(part) => {
                let engine = self.engine.as_mut().expect("it answered");
                let found = engine.take_changed(tag);
                let missing =
                    || Failure::new("a difference without its answer", format!("#{stamp}"));
                self.take_diff(part, &found.ok_or_else(missing)?)?;
            }
            Ask::Wrong => {}
        }
        Ok(())
    }

    fn take_change(&mut self, stamp: u64, change: &PoolChange) -> Result<(), Failure> {
        let list = self.engine.as_ref().expect("it answered").volumes();
        if let PoolChange::Receive { volume, receive } = change
            && let Some(onto) = receive.onto.filter(|_| receive.next_block == 0)
            && self.plan.has_good_media()
            && self.model.differs(*volume, onto)
        {
            let text = format!("#{stamp} {volume:?}, of {onto:?}");
            return Err(Failure::new("a changed volume is received into", text));
        }
        self.model.end_change(stamp, change, &list)?;
        self.model.durable(stamp);
        self.unlock_new()?;
        self.tally.add("changes", 1);
        match change {
            PoolChange::Snapshot { .. } => self.tally.add("snapshots", 1),
            PoolChange::Received { .. } => self.tally.add("received snapshots", 1),
            PoolChange::Receive { receive, .. } if receive.next_block == 0 => {
                self.tally.add("streams onto snapshots", 1);
            }
            _ => {}
        }
        Ok(())
    }

    /// A request failed: may it?
    fn take_error(&mut self, ask: &Ask, stamp: u64, error: &PoolError) -> Result<(), Failure> {
        if let (Ask::Change(change), PoolError::NoPromise { .. }) = (ask, error) {
            self.tally.add("refused reservations", 1);
            self.model.refused(change);
            return Ok(());
        }
        if let (Ask::Change(change), PoolError::ChangedSinceBase(_)) = (ask, error) {
            self.tally.add("refused streams", 1);
            self.model.refused(change);
            return Ok(());
        }
        let device = self.plan.faults.write_error_ppm > 0 || self.plan.faults.read_error_ppm > 0;
        let may = match error {
            PoolError::Damaged { .. } | PoolError::MapDamaged => !self.plan.has_good_media(),
            PoolError::DeviceFailed(PoolDeviceError::Failed(_)) => device,
            PoolError::NoVolume(volume) => {
                self.model.is_removed(*volume) || self.lacks_moment(*volume)
            }
            // A moment of a volume that was shredded, while it was read.
            PoolError::Locked { .. } => self.reads_gone_moment(ask),
            // Other devices may have no room.
            PoolError::Invalid(_) => matches!(ask, Ask::Devices(_)),
            PoolError::DeviceFailed(PoolDeviceError::NoSpace) => self.plan.faults.no_space_ppm > 0,
            _ => false,
        };
        if !may {
            let text = format!("#{stamp} {ask:?}: {error}");
            return Err(Failure::new("a request failed", text));
        }
        self.tally.add("failed requests", 1);
        self.model.unwatch(stamp);
        match ask {
            Ask::Read { volume, block, came, judge } if *judge != Judge::Live => {
                self.tally.add("damaged reads", 1);
                if came.len() == 1 {
                    return Ok(());
                }
                for at in (0..came.len()).filter(|&at| !came[at]) {
                    self.damaged.push((*volume, block + at as u64));
                }
            }
            // The change may have happened all the same: only an opening can tell.
            Ask::Change(change) => self.model.in_doubt(stamp, change.clone()),
            _ => {}
        }
        Ok(())
    }

    /// Segments become free only by a checkpoint, which is durable on all devices then, or by the
    /// log: those are told apart, because an opening may find them used.
    fn check_checkpoint(&mut self) -> Result<(), Failure> {
        let status = self.engine.as_ref().expect("a turn has an engine").status();
        let SegmentCounts { free, early, .. } = status.segments;
        let number = status.checkpoint;
        self.tally.add("turns with segments that the log has freed", u64::from(early > 0));
        let before = std::mem::replace(&mut self.free_segments, (free, free - early));
        // A stream that leaves a device gives a segment back, and takes one that is free by the
        // log.
        if number == self.checkpoint && free > before.0 && free - early > before.1 {
            let text =
                format!("{before:?} were free, and {free} are, {early} of them by the log alone");
            return Err(Failure::new("segments are free too early", text));
        }
        if number == self.checkpoint || !self.plan.has_good_media() {
            self.checkpoint = number;
            return Ok(());
        }
        self.checkpoint = number;
        self.tally.add("checkpoints", 1);
        let devices = self.engine.as_ref().expect("a turn has an engine").devices();
        for device in devices.iter().map(|device| usize::from(device.number)) {
            let disk = &self.disks[device];
            for block in superblock_blocks(number) {
                let found = Superblock::decode(&disk.durable_block(block));
                if found.is_ok_and(|superblock| superblock.checkpoint == number) {
                    continue;
                }
                let text = format!("{number} is not on device {device}, block {block}");
                return Err(Failure::new("a checkpoint is not durable", text));
            }
        }
        Ok(())
    }

    /// Each request ends in time, and a pool that takes nothing says why.
    fn check_time(&mut self) -> Result<(), Failure> {
        let no_space = self.disks.iter().any(|disk| disk.has_no_space(self.round));
        if no_space {
            for request in self.requests.values_mut() {
                request.since = self.round;
            }
        }
        let Some(oldest) = self.requests.values().min_by_key(|request| request.since) else {
            return self.check_busy();
        };
        if self.round - oldest.since <= REQUEST_ROUNDS_MAX {
            return Ok(());
        }
        let status = self.engine.as_ref().expect("a turn has an engine").status();
        let text = format!("#{} {:?} does not end: {status:?}", oldest.stamp, oldest.ask);
        Err(Failure::new("a request hangs", text))
    }

    /// A pool without requests that takes no writes says that it is full.
    fn check_busy(&self) -> Result<(), Failure> {
        if self.busy_without_reason <= BUSY_ROUNDS_MAX {
            return Ok(());
        }
        let status = self.engine.as_ref().expect("a turn has an engine").status();
        Err(Failure::new("busy without a reason", format!("{status:?}")))
    }

    /// No requests, until the engine has nothing left to do.
    pub(crate) fn rest(&mut self) -> Result<Turn, Failure> {
        // A removal in a wide world has many steps, each with a row of its own.
        let rounds = REST_ROUNDS_MAX * if self.plan.is_wide { 10 } else { 1 };
        for _ in 0..rounds {
            if self.turn()? == Turn::Crashed {
                return Ok(Turn::Crashed);
            }
            if self.failed() {
                return Ok(Turn::Alive);
            }
            let engine = self.engine.as_ref().expect("a turn has an engine");
            let is_quiet = self.disks.iter().all(|disk| disk.pending() == 0);
            if self.requests.is_empty() && is_quiet && !engine.is_busy() {
                self.tally.add("rests", 1);
                self.check_rest()?;
                return Ok(Turn::Alive);
            }
        }
        let status = self.engine.as_ref().expect("a turn has an engine").status();
        let text = format!("{} requests, {status:?}", self.requests.len());
        Err(Failure::new("no rest", text))
    }

    /// A pool at rest takes writes, or says that it is full; and it is not full while it has room.
    fn check_room(&mut self) -> Result<(), Failure> {
        let status = self.engine.as_ref().expect("a turn has an engine").status();
        let volume = self.model.volumes.iter().find(|(_, volume)| !volume.is_snapshot);
        let Some((&id, volume)) = volume.filter(|_| status.failed.is_none()) else {
            return Ok(());
        };
        self.tally.add("writes at rest", 1);
        let blocks = volume.blocks.min(REST_WRITE_BLOCKS);
        if self.write(id, 0, blocks) {
            return Ok(());
        }
        let status = self.engine.as_ref().expect("a turn has an engine").status();
        if engine_waits(self.engine.as_ref().expect("a turn has an engine")) {
            return Ok(());
        }
        if !status.is_full {
            return Err(Failure::new("busy without a reason", format!("{status:?}")));
        }
        let slack = SLACK_SEGMENTS * u64::from(status.segment_blocks);
        let has_room = status.used_blocks + slack < status.size_blocks;
        if self.write(id, 0, 1) || !has_room {
            return Ok(());
        }
        Err(Failure::new("full without a reason", format!("{status:?}")))
    }

    /// Holds a pool at rest to its promises.
    fn check_rest(&mut self) -> Result<(), Failure> {
        self.check_room()?;
        let engine = self.engine.as_ref().expect("a turn has an engine");
        let list = engine.volumes();
        self.model.check_list(&list)?;
        let is_late = |volume: PoolVolume| volume.seal.is_some_and(|seal| seal.is_resealing);
        if self.plan.has_good_media()
            && !engine.status().is_full
            && engine.volumes().into_iter().any(is_late)
        {
            let text = format!("{:?}", engine.volumes());
            return Err(Failure::new("an old data key stays", text));
        }
        let status = engine.status();
        if self.plan.has_good_media() && !status.is_removing {
            self.model.check_space(&list)?;
            self.tally.add("counts of pages at rest", 1);
        }
        self.check_devices_at_rest(&status)?;
        let (used, scrub) = (status.data_blocks, status.scrub);
        self.tally.add("scrubs", scrub.passes);
        self.tally.add("packed pages at rest", status.packed_pages);
        self.tally.add("aliases at rest", status.shared.aliases);
        self.tally.add("pages of zeroes at rest", status.shared.zeroes);
        self.tally.add("pages kept for aliases at rest", status.shared.kept);
        self.tally.add("pages shared by a life", status.counters.shared_pages);
        self.tally.add("pages that only seemed to be the same", status.counters.different_pages);
        let damaged = scrub.damaged_blocks + scrub.damaged_map_blocks;
        if damaged > 0 && self.plan.has_good_media() {
            return Err(Failure::new("damage on a good medium", format!("{scrub:?}")));
        }
        match self.model.used_blocks() {
            Some(wanted) if wanted != used && self.plan.has_good_media() => {
                let text = format!("{used} blocks are used, and {wanted} are needed");
                Err(Failure::new("a leak", text))
            }
            _ => Ok(()),
        }
    }

    /// A clean end of a life.
    pub(crate) fn close(&mut self) -> Result<Turn, Failure> {
        self.note(|| "close".to_owned());
        self.engine.as_mut().expect("it lives").close();
        for _ in 0..REST_ROUNDS_MAX {
            if self.turn()? == Turn::Crashed {
                return Ok(Turn::Crashed);
            }
            if self.failed() {
                self.crash_in = None;
                return Ok(Turn::Crashed);
            }
            if self.engine.as_ref().expect("it lives").is_closed() {
                if !self.requests.is_empty() {
                    let text = format!("{} requests have no end", self.requests.len());
                    return Err(Failure::new("closed too early", text));
                }
                self.engine = None;
                self.tally.add("clean ends", 1);
                // Nothing that a power cut takes may be needed.
                let kind = self.crash_kind();
                let now = self.model.tick();
                self.model.durable(now);
                self.crash_disks(kind);
                return Ok(Turn::Alive);
            }
        }
        let status = self.engine.as_ref().expect("it lives").status();
        Err(Failure::new("not closed", format!("{status:?}")))
    }

    /// The engine is gone in the middle of its work.
    pub(crate) fn crash_engine(&mut self) {
        let kind = match self.crash_in.take() {
            Some((_, kind)) => kind,
            None => self.crash_kind(),
        };
        if let Some(engine) = self.engine.take() {
            self.tally.add("aliases at a crash", engine.status().shared.aliases);
        }
        let requests = std::mem::take(&mut self.requests);
        self.note(|| format!("{kind:?} with {} requests under way", requests.len()));
        self.tally.add(if kind == CrashKind::Kill { "kills" } else { "power cuts" }, 1);
        let changes = requests.into_values().filter_map(|request| match request.ask {
            Ask::Change(change) => Some((request.stamp, change)),
            _ => None,
        });
        for (stamp, change) in changes {
            self.model.in_doubt(stamp, change);
        }
        self.crash_disks(kind);
    }
}

/// Whether a volume waits for its limit, or for what others have reserved.
pub(crate) fn engine_waits(engine: &PoolEngine) -> bool {
    engine.volumes().iter().any(|volume| volume.wait.is_some())
}
