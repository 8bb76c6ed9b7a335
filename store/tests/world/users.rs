//! Users and their requests.

use random::Random;
use store::{Admission, PageCompression, PoolChange, PoolEngine, RequestTag, ScrubPace, VolumeId};

use super::changes::subjects;
use super::content::{Content, LAYERS_MAX, fill_part};
use super::life::{Ask, Judge, Request, World, engine_waits};
use super::{Failure, changes};

/// The most blocks of a write of the users; the engine takes 257.
const WRITE_BLOCKS_MAX: u64 = 60;

/// Places of a wide volume that users write to: with the nodes above them more pages of the map
/// than fit in memory.
const WIDE_PLACES: u64 = 400;

/// A pass that proves all pages begins once in so many rounds.
const SCRUB_ROUNDS: u64 = 200;

/// A difference of snapshots is asked for once in so many rounds.
const DIFF_ROUNDS: u64 = 12;

/// The search for pages with the same content begins again or ends once in so many rounds.
const DEDUP_ROUNDS: u64 = 300;

/// A volume gets another history, or is cloned as it was, once in so many rounds each.
const HISTORY_ROUNDS: u64 = 20;

/// The most changes under way.
const CHANGES_MAX: usize = 2;

/// Rounds without a write that was taken, after which users remove something.
const BUSY_ROUNDS_MAX: u64 = 60;

/// Rounds that a request waits in a full pool before users remove something.
const STUCK_ROUNDS: u64 = 500;

/// How users behave for some rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mood {
    /// A bit of everything.
    Mixed,
    /// Long writes of new blocks.
    Fill,
    /// Writes of the same few blocks.
    Hot,
    /// Snapshots, clones and removals.
    Changes,
    /// Single writes and flushes.
    Database,
    /// No requests until the engine is at rest.
    Rest,
}

impl Mood {
    /// Any of them.
    pub(crate) fn draw(random: &mut Random) -> Self {
        use Mood::{Changes, Database, Fill, Hot, Mixed, Rest};
        [Mixed, Mixed, Fill, Hot, Changes, Database, Rest][random.below(7) as usize]
    }

    /// How often users write, write parts, zero, read, flush, change, and ask for nonsense.
    fn weights(self) -> [u64; 7] {
        match self {
            Self::Mixed | Self::Rest => [30, 15, 8, 25, 5, 6, 1],
            Self::Fill => [80, 2, 1, 5, 2, 1, 0],
            Self::Hot => [60, 10, 5, 20, 5, 1, 0],
            Self::Changes => [30, 5, 3, 15, 3, 30, 1],
            Self::Database => [40, 20, 1, 20, 30, 1, 0],
        }
    }
}

impl World {
    /// A pass over all pages begins, goes on, rests or ends.
    fn scrub(&mut self) {
        let blocks_per_s_max = self.random.between(100_000, 10_000_000);
        let within_ns = self.random.one_in(3).then(|| self.random.between(0, 20_000_000));
        let pace = ScrubPace { blocks_per_s_max, within_ns };
        let choice = self.random.below(8);
        let engine = self.engine.as_mut().expect("the pool is open");
        match choice {
            0 => engine.pause_scrub(),
            1 => engine.stop_scrub(),
            2 if engine.status().scrub.is_running => engine.scrub(None),
            _ => engine.scrub(Some(pace)),
        }
    }

    /// The users' requests of a round.
    pub(crate) fn use_pool(&mut self) -> Result<(), Failure> {
        if self.random.one_in(SCRUB_ROUNDS) {
            self.scrub();
        }
        self.change_devices();
        if self.plan.dedup.is_some() && self.random.one_in(DEDUP_ROUNDS) {
            let options = self.plan.dedup.filter(|_| self.random.one_in(2));
            self.engine.as_mut().expect("the pool is open").set_dedup(options);
        }
        if self.plan.key_rounds > 0 && self.random.one_in(self.plan.key_rounds) {
            self.change_keys();
        }
        if self.plan.history.is_some() && self.random.one_in(HISTORY_ROUNDS) {
            self.change_history();
        }
        if self.plan.history.is_some() && self.random.one_in(HISTORY_ROUNDS) {
            self.clone_at()?;
        }
        if self.random.one_in(DIFF_ROUNDS) && self.requests.len() < self.plan.depth {
            self.diff_some();
        }
        let tries = self.random.below(4);
        for _ in 0..tries {
            if self.is_stuck() && self.random.one_in(4) {
                self.make_room();
            }
            if self.requests.len() >= self.plan.depth {
                return Ok(());
            }
            if !self.model.volumes.values().any(|volume| !volume.is_snapshot) {
                self.create();
                return Ok(());
            }
            if self.plan.compresses && self.random.one_in(64) {
                self.compress();
            }
            let weights = self.mood.weights();
            let mut at = self.random.below(weights.iter().sum());
            let action = weights.iter().position(|&weight| {
                let is_it = at < weight;
                at = at.wrapping_sub(weight);
                is_it
            });
            match action {
                Some(0) => self.write_some(),
                Some(1) => self.write_part(),
                Some(2) => self.zero_some(),
                Some(3) => self.read_some(),
                Some(4) => self.flush(),
                Some(5) => self.change_something(),
                _ => self.ask_nonsense(),
            }
        }
        Ok(())
    }

    /// A tag for the next request.
    pub(crate) fn tag(&mut self) -> RequestTag {
        self.next_tag += 1;
        RequestTag(self.next_tag)
    }

    /// A volume for a request; the first ones are used most.
    pub(super) fn pick(&mut self, snapshots: bool) -> Option<VolumeId> {
        let usable = self.model.volumes.iter().filter(|(_, volume)| {
            let is_named = volume.at_ns.is_none();
            is_named && !volume.is_hidden && !volume.is_quiet && (snapshots || !volume.is_snapshot)
        });
        let usable: Vec<VolumeId> = usable.map(|(&id, _)| id).collect();
        let count = usable.len() as u64;
        if count == 0 {
            return None;
        }
        let (a, b) = (self.random.below(count), self.random.below(count));
        Some(usable[a.min(b) as usize])
    }

    /// A range of blocks of a volume.
    fn range(&mut self, id: VolumeId, blocks_max: u64) -> (u64, u64) {
        let end = self.model.volumes[&id].blocks;
        let hot = end.min(12);
        let block = match self.mood {
            _ if self.plan.is_wide && end > 4_000 => {
                let place = self.random.below(WIDE_PLACES).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                (place >> 20) % end
            }
            Mood::Hot => self.random.below(hot),
            _ if end > 4_000 => {
                // A sparse volume: a few places far from each other.
                let place = self.random.below(6) * (end / 6) + self.random.below(40);
                let place = if self.random.one_in(2) { place } else { self.random.below(700) };
                place.min(end - 1)
            }
            Mood::Database => {
                self.random.below(end).min(self.random.below(end)).min(self.random.below(end))
            }
            _ => self.random.below(end),
        };
        let most = match self.mood {
            _ if self.plan.is_wide => 3,
            Mood::Fill => blocks_max,
            Mood::Database => 2,
            _ if self.random.one_in(8) => blocks_max,
            _ => 6,
        };
        let blocks = self.random.between(1, most.min(blocks_max)).min(end - block);
        (block, blocks)
    }

    /// The engine took a request, or did not.
    pub(crate) fn admitted(
        &mut self,
        admission: Admission,
        tag: RequestTag,
        stamp: u64,
        ask: Ask,
    ) -> bool {
        let is_taken = admission == Admission::Taken;
        if is_taken {
            self.note(|| format!("#{stamp} {ask:?}"));
            self.requests.insert(tag.0, Request { ask, stamp, since: self.round });
            self.tally.add("requests", 1);
        } else {
            self.tally.add("busy", 1);
        }
        is_taken
    }

    fn write_some(&mut self) {
        let Some(volume) = self.pick(false) else { return };
        let (block, blocks) = self.range(volume, WRITE_BLOCKS_MAX);
        self.write(volume, block, blocks);
    }

    /// Writes whole blocks.
    pub(crate) fn write(&mut self, volume: VolumeId, block: u64, blocks: u64) -> bool {
        let (tag, stamp) = (self.tag(), self.model.tick());
        let engine = self.engine.as_mut().expect("the pool is open");
        let admission = engine.write(tag, volume, block, blocks as u32, &mut |at, into| {
            fill_part(stamp, block + u64::from(at), 0, &mut into.0);
        });
        let ask = Ask::Write { volume, block, blocks: blocks as u32 };
        let is_taken = self.admitted(admission, tag, stamp, ask);
        if is_taken {
            let range = block..block + blocks;
            self.model.admit(stamp, volume, range, |block, _| Content::whole(stamp, block));
            (self.busy_rounds, self.busy_without_reason) = (0, 0);
        } else {
            self.busy_rounds += 1;
            let may_wait = |engine: &PoolEngine| engine.status().is_full || engine_waits(engine);
            let is_full = self.engine.as_ref().is_some_and(may_wait);
            self.busy_without_reason += u64::from(self.requests.is_empty() && !is_full);
        }
        is_taken
    }

    fn write_part(&mut self) {
        let Some(volume) = self.pick(false) else { return };
        let (block, _) = self.range(volume, 1);
        let (before, is_there) = self.model.volumes[&volume].newest(block);
        // A request that failed leaves a block in doubt, and a part above it as well.
        if before.layers() >= LAYERS_MAX || !is_there && !self.plan.has_good_media() {
            return;
        }
        let unit = if self.random.one_in(4) { 1 } else { 512 };
        let from = self.random.below(4_096 / unit) * unit;
        let length = self.random.between(1, (4_096 - from) / unit) * unit;
        let (from, to) = (from as usize, (from + length) as usize);
        let (tag, stamp) = (self.tag(), self.model.tick());
        let mut bytes = vec![0; to - from];
        fill_part(stamp, block, from, &mut bytes);
        let engine = self.engine.as_mut().expect("the pool is open");
        let admission = engine.write_part(tag, volume, block, from, &bytes);
        if self.admitted(admission, tag, stamp, Ask::Write { volume, block, blocks: 1 }) {
            self.model.admit(stamp, volume, [block], |block, before| {
                before.with_part(stamp, block, from, to)
            });
        }
    }

    fn zero_some(&mut self) {
        let Some(volume) = self.pick(false) else { return };
        let (block, blocks) = self.range(volume, 400);
        self.zero(volume, block, blocks);
    }

    fn zero(&mut self, volume: VolumeId, block: u64, blocks: u64) {
        let (tag, stamp) = (self.tag(), self.model.tick());
        let engine = self.engine.as_mut().expect("the pool is open");
        let admission = engine.zero(tag, volume, block, blocks as u32);
        let ask = Ask::Write { volume, block, blocks: blocks as u32 };
        if self.admitted(admission, tag, stamp, ask) {
            self.model.admit(stamp, volume, block..block + blocks, |_, _| Content::ZERO);
        }
    }

    fn read_some(&mut self) {
        let has_moments = self.plan.history.is_some() && self.random.one_in(3);
        let moment = if has_moments { self.pick_moment() } else { None };
        let Some(volume) = moment.or_else(|| self.pick(true)) else { return };
        let unknown = self.model.volumes[&volume].unknown();
        if self.model.volumes[&volume].is_snapshot && !unknown.is_empty() {
            let at = self.random.below(unknown.len() as u64) as usize;
            let end = self.model.volumes[&volume].blocks;
            let blocks = (end - unknown[at]).min(200) as u32;
            self.read(volume, unknown[at], blocks, Judge::Live);
            return;
        }
        let (block, blocks) = self.range(volume, 257);
        self.read(volume, block, blocks as u32, Judge::Live);
    }

    /// Reads blocks.
    pub(crate) fn read(&mut self, volume: VolumeId, block: u64, blocks: u32, judge: Judge) -> bool {
        let (tag, stamp) = (self.tag(), self.model.tick());
        let engine = self.engine.as_mut().expect("the pool is open");
        let admission = engine.read(tag, volume, block, blocks);
        let ask = Ask::Read { volume, block, came: vec![false; blocks as usize], judge };
        let is_taken = admission == Admission::Taken;
        if judge == Judge::Nothing && is_taken {
            self.requests.insert(tag.0, Request { ask, stamp, since: self.round });
            return true;
        }
        if self.admitted(admission, tag, stamp, ask) {
            self.model.watch(stamp);
        }
        is_taken
    }

    fn flush(&mut self) {
        let (tag, stamp) = (self.tag(), self.model.tick());
        let engine = self.engine.as_mut().expect("the pool is open");
        let admission = engine.flush(tag);
        self.admitted(admission, tag, stamp, Ask::Flush);
    }

    /// Asks for a change, if nothing under way forbids it.
    pub(crate) fn change(&mut self, change: PoolChange) -> bool {
        let model = &self.model;
        let is_free = subjects(&change).iter().all(|id| !model.volumes[id].is_changing);
        if !is_free || self.changes_under_way() >= CHANGES_MAX {
            return false;
        }
        let (tag, stamp) = (self.tag(), self.model.tick());
        let engine = self.engine.as_mut().expect("the pool is open");
        let admission = engine.change(tag, change.clone());
        let is_taken = self.admitted(admission, tag, stamp, Ask::Change(change.clone()));
        if is_taken {
            self.model.begin_change(stamp, &change);
        }
        is_taken
    }

    fn changes_under_way(&self) -> usize {
        self.requests.values().filter(|request| matches!(request.ask, Ask::Change(_))).count()
    }

    fn create(&mut self) {
        let blocks = match self.random.below(6) {
            _ if self.plan.is_wide => 1 << self.random.between(24, 30),
            0 => self.random.between(1, 16),
            1..3 => self.random.between(16, 120),
            3 => 1 << self.random.between(13, 27),
            _ => self.random.between(100, 700),
        };
        let name = self.free_name("v");
        let change = self.creation(name, blocks);
        self.change(change);
    }

    /// A name that nothing has, and that nothing under way will have.
    pub(super) fn free_name(&mut self, letter: &str) -> String {
        loop {
            let name = format!("{letter}{}", self.random.below(60));
            let is_used = self.model.volumes.values().any(|volume| volume.name == name);
            let is_wanted = self.requests.values().any(|request| match &request.ask {
                Ask::Change(change) => changes::new_name(change) == Some(&name),
                _ => false,
            });
            if !is_used && !is_wanted {
                return name;
            }
        }
    }

    fn change_something(&mut self) {
        let count = self.model.volumes.values().filter(|volume| !volume.is_hidden).count();
        let may_add = count < self.plan.volumes;
        match self.random.below(15) {
            12..15 => self.receive(may_add),
            0..2 if may_add => self.create(),
            2..6 if may_add => self.snapshot(),
            6..8 if may_add => {
                if let Some(snapshot) = self.known_snapshot() {
                    let name = self.free_name("v");
                    self.change(PoolChange::Clone { snapshot, name });
                }
            }
            8 => self.rollback(),
            9 if self.random.one_in(2) => self.compress(),
            9 => self.resize_or_rename(),
            10 if self.random.one_in(3) => self.change_keys(),
            10 if self.random.one_in(2) => {
                if let Some(volume) = self.pick(false) {
                    self.change(PoolChange::Clear { volume });
                }
            }
            _ => {
                if let Some(volume) = self.pick(true)
                    && (!may_add || self.random.one_in(2))
                {
                    self.change(PoolChange::Remove { volume });
                }
            }
        }
    }

    fn snapshot(&mut self) {
        let mut volumes: Vec<VolumeId> = Vec::new();
        for _ in 0..self.random.between(1, 3) {
            volumes.extend(self.pick(false));
        }
        volumes.retain(|volume| self.model.volumes[volume].receive.is_none());
        volumes.sort_unstable();
        volumes.dedup();
        if !volumes.is_empty() {
            let (name, at_s) = (self.free_name("s"), self.now_ns / 1_000_000_000);
            self.change(PoolChange::Snapshot { volumes, name, at_s });
        }
    }

    /// A snapshot whose content is known in full: its copies are judged by it.
    pub(super) fn known_snapshot(&mut self) -> Option<VolumeId> {
        let known = self.model.volumes.iter().filter(|(_, volume)| {
            let is_named = volume.is_snapshot && volume.at_ns.is_none();
            is_named && !volume.is_hidden && volume.unknown().is_empty()
        });
        let known: Vec<VolumeId> = known.map(|(&id, _)| id).collect();
        let at = self.random.below(known.len().max(1) as u64) as usize;
        known.get(at).copied()
    }

    fn rollback(&mut self) {
        let Some(snapshot) = self.known_snapshot() else { return };
        // Its own line: the volume that it was taken of, while that descends from it.
        let Some(volume) = self.model.volumes[&snapshot].of else { return };
        if self.model.descends(volume, snapshot) {
            self.change(PoolChange::Rollback { volume, snapshot });
        }
    }

    fn set_quota(&mut self, volume: VolumeId) {
        let reservation = self.random.between(1, 400) * self.random.below(2);
        let limit = self.random.one_in(2).then(|| reservation + self.random.between(0, 600));
        self.change(PoolChange::Quota { volume, reservation, limit });
    }

    fn compress(&mut self) {
        let Some(volume) = self.pick(false) else { return };
        let compression = match self.random.below(4) {
            0 => None,
            1 => Some(PageCompression::Zstd(self.random.between(1, 9) as u8)),
            _ => Some(PageCompression::Lz4),
        };
        // Whether a change happened, the list must tell.
        if self.model.volumes[&volume].compression != compression {
            self.change(PoolChange::Compression { volume, compression });
        }
    }

    fn resize_or_rename(&mut self) {
        let Some(volume) = self.pick(false) else { return };
        if self.random.one_in(2) {
            let name = self.free_name("v");
            self.change(PoolChange::Rename { volume, name });
            return;
        }
        if self.random.one_in(2) {
            self.set_quota(volume);
            return;
        }
        // The size of a volume that is received is the stream's.
        if self.model.volumes[&volume].receive.is_some() {
            return;
        }
        let before = self.model.volumes[&volume].blocks;
        let blocks = match self.random.one_in(2) {
            true => before + self.random.between(1, 300),
            false => self.random.between(1, before),
        };
        if blocks != before {
            self.change(PoolChange::Resize { volume, blocks });
        }
    }

    /// Whether a write has waited long for room, before its admission or behind it.
    fn is_stuck(&self) -> bool {
        let since = self.requests.values().map(|request| request.since).min();
        self.busy_rounds > BUSY_ROUNDS_MAX
            || since.is_some_and(|since| self.round - since > STUCK_ROUNDS)
                && self.engine.as_ref().is_some_and(|engine| engine.status().is_full)
    }

    /// A full pool: users remove something.
    fn make_room(&mut self) {
        self.tally.add("times without room", 1);
        let Some(volume) = self.pick(true) else { return };
        let is_snapshot = self.model.volumes[&volume].is_snapshot;
        if is_snapshot || self.random.one_in(3) {
            self.change(PoolChange::Remove { volume });
        } else {
            let blocks = self.model.volumes[&volume].blocks.min(4_097);
            self.zero(volume, 0, blocks);
        }
    }

    /// Requests that must fail with an error.
    fn ask_nonsense(&mut self) {
        let Some(volume) = self.pick(true) else { return };
        let blocks = self.model.volumes[&volume].blocks;
        let is_snapshot = self.model.volumes[&volume].is_snapshot;
        let (tag, stamp) = (self.tag(), self.model.tick());
        let engine = self.engine.as_mut().expect("the pool is open");
        let admission = match self.random.below(7) {
            0 => engine.read(tag, volume, blocks, 1),
            1 => engine.read(tag, VolumeId(1_000_000), 0, 1),
            2 => engine.zero(tag, volume, blocks - 1, 2),
            3 if is_snapshot => engine.write(tag, volume, 0, 1, &mut |_, _| {}),
            4 if is_snapshot => engine.write_part(tag, volume, 0, 7, &[1, 2, 3]),
            5 => {
                let name = self.model.volumes[&volume].name.clone();
                let of = self.model.volumes[&volume].of;
                if of.is_some() || self.changes_of(volume) {
                    return;
                }
                let engine = self.engine.as_mut().expect("the pool is open");
                engine.change(tag, PoolChange::Create { name, blocks: 1 })
            }
            6 => engine.change(tag, PoolChange::Remove { volume: VolumeId(1_000_001) }),
            _ => engine.write(tag, volume, blocks, 1, &mut |_, _| {}),
        };
        self.admitted(admission, tag, stamp, Ask::Wrong);
    }

    /// A request that must fail.
    pub(crate) fn ask_wrong(&mut self, ask: impl FnOnce(&mut PoolEngine, RequestTag) -> Admission) {
        let (tag, stamp) = (self.tag(), self.model.tick());
        let admission = ask(self.engine.as_mut().expect("the pool is open"), tag);
        self.admitted(admission, tag, stamp, Ask::Wrong);
    }

    fn changes_of(&self, volume: VolumeId) -> bool {
        self.model.volumes[&volume].is_changing
    }
}
