//! A volume with write-back under faults: processes that are killed or end in order, hosts that
//! lose their power, sessions that are lost, a remote volume that fails requests, a pool that fails
//! writes, and other clients that take the volume.
//!
//! Each read is compared with all that a guest may read at that moment. At rest the dirty blocks
//! over the remote volume are what the guest may read, and after a drain the remote volume alone.
//!
//! `CACHE_SEEDS=n` runs so many seeds, `CACHE_SEED=n` one.

#[path = "world/dirty.rs"]
mod dirty;
#[path = "world/far.rs"]
mod far;
#[path = "world/guest.rs"]
mod guest;
#[path = "world/memory.rs"]
mod memory;
#[path = "world/model.rs"]
mod model;

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use block::attachment::{AttachOptions, Attachment, Phase};
use cache::{
    BLOCK_BYTES, CachedVolume, Dirty, DirtyBounds, DirtyKeeper, RoundNotes, WriteBackVolume,
};
use random::Random;
use volume::Incarnation;

use dirty::{DirtyDirectory, DirtyPool, NodeMemory, OnDevices};
use far::{Far, FarVolume};
use guest::{Guest, GuestChannel};
use model::{Model, SECTOR};

/// Blocks of the remote volume: a few regions, and a piece at the end that is no whole block.
const BLOCKS: u64 = 300;

/// Blocks that may be dirty.
const CAPACITY: u64 = 90;

/// Sidecores.
const CHANNELS: u16 = 2;

/// How old a dirty block becomes before a round begins: some hundred rounds of the test.
const AGE_NS: u64 = 20_000_000;

/// How the guest's client comes to its next attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// The node stops in order with all written back, and its next process goes on.
    Stop,
    /// The node hands over, with a dirty rest.
    HandOver,
    /// The node is killed, and the guest goes on.
    Kill,
    /// The node is killed, and the guest starts afresh.
    KillReset,
    /// The guest is reset.
    Reset,
    /// The VMhost loses its power.
    Power,
    /// Another client takes the volume.
    Taken,
    /// The node is killed, and its pool is put back to an older copy. The remote volume has all
    /// that the guest wrote.
    PutBack,
    /// The node is killed, and its pool is made anew or put back to an older copy, until the
    /// operator sees that the disk is not served.
    OtherPool,
    /// The node is killed, and its pool is away: the operator gives its writes up. The guest goes
    /// on without write-back, and then the pool comes back.
    GivenUp,
}

const TURNS: [Turn; 10] = [
    Turn::Stop,
    Turn::HandOver,
    Turn::Kill,
    Turn::KillReset,
    Turn::Reset,
    Turn::Power,
    Turn::Taken,
    Turn::PutBack,
    Turn::OtherPool,
    Turn::GivenUp,
];

/// Events that runs have seen: a run that sees nothing is noticed.
#[derive(Debug, Default)]
struct Seen {
    counters: std::collections::BTreeMap<&'static str, u64>,
    turns_with_rest: std::collections::BTreeMap<String, u64>,
    stranded: u64,
    put_back: u64,
    refused: u64,
    given_up: u64,
    failed: u64,
}

struct World {
    random: Random,
    far: Arc<Far>,
    pool: Arc<DirtyPool>,
    memory: Arc<NodeMemory>,
    volume: Arc<WriteBackVolume>,
    dirty: Arc<Dirty>,
    keeper: DirtyKeeper,
    attachment: Arc<Attachment>,
    epoch: u64,
    claimants: u64,
    guest: Guest,
    now_ns: u64,
    /// An older copy of the pool.
    copy: Option<OnDevices>,
    seen: Seen,
}

fn notes_in(memory: &Arc<NodeMemory>) -> Arc<RoundNotes> {
    RoundNotes::load(Arc::clone(memory) as _, "a", Vec::new()).expect("it is read")
}

fn begin(
    far: &Arc<Far>,
    pool: &Arc<DirtyPool>,
    memory: &Arc<NodeMemory>,
) -> (Arc<WriteBackVolume>, Arc<Dirty>, DirtyKeeper) {
    let remote = Arc::new(FarVolume(Arc::clone(far)));
    let below = CachedVolume::new(Arc::clone(&remote) as _);
    let volume = WriteBackVolume::new(below, remote);
    let bounds = DirtyBounds { blocks: BLOCKS, capacity: CAPACITY, age_ns: AGE_NS };
    let storage = Box::new(DirtyDirectory(Arc::clone(pool)));
    let dirty = Dirty::load(bounds, storage, notes_in(memory), 1).expect("it is read");
    let keeper = volume.begin_unkept(&dirty);
    (volume, dirty, keeper)
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let far = Far::new((BLOCKS * BLOCK_BYTES) as usize + SECTOR, random.fork());
        let pool = DirtyPool::new(BLOCKS, random.fork());
        let sectors = far.content.lock().len() / SECTOR;
        let memory = Arc::default();
        let (volume, dirty, keeper) = begin(&far, &pool, &memory);
        let mut it = Self {
            guest: Guest::new(random.fork(), Model::new(sectors)),
            random,
            far,
            pool,
            memory,
            volume,
            dirty,
            keeper,
            attachment: Arc::new(Attachment::new("a", AttachOptions::new(1))),
            epoch: 0,
            claimants: 1,
            now_ns: 1,
            copy: None,
            seen: Seen::default(),
        };
        it.claim(1);
        it.open();
        it
    }

    fn claim(&mut self, further: u64) {
        self.epoch += further;
        assert!(self.attachment.hold(self.epoch, Incarnation([7; 16])));
    }

    fn open(&mut self) {
        for index in 0..CHANNELS {
            let channel = GuestChannel::open(&*self.volume, &self.attachment, index);
            self.guest.channels.push(channel);
        }
    }

    fn round(&mut self) {
        self.now_ns += 50_000;
        for at in 0..self.guest.channels.len() {
            self.guest.poll(at, self.now_ns);
        }
        if self.random.one_in(3) {
            self.keeper.step(self.now_ns);
        }
        if self.random.one_in(3) {
            self.memory.settle(1);
        }
    }

    /// Everything that the guest waits for ends, and the two volumes are compared with it.
    fn settle(&mut self) {
        self.far.has_session.store(true, SeqCst);
        let mut rounds = 0;
        while !self.guest.is_idle() {
            self.round();
            rounds += 1;
            assert!(rounds < 100_000, "{:?}", self.guest.channels);
        }
        self.compare();
    }

    /// The remote volume gets everything.
    fn drain(&mut self) {
        self.far.fails.store(false, SeqCst);
        self.dirty.set_draining(true);
        self.settle();
        let mut rounds = 0;
        while !self.dirty.is_clean() {
            self.round();
            rounds += 1;
            assert!(rounds < 100_000, "{:?} {:?}", self.dirty, self.guest.channels);
        }
        self.dirty.set_draining(false);
        assert_eq!(self.pool.mapped(), 0);
        self.compare();
    }

    /// The guest would read no other content than it may.
    fn compare(&self) {
        let (far, devices) = (self.far.content.lock(), self.pool.devices.lock());
        for (at, sector) in far.chunks_exact(SECTOR).enumerate() {
            let is_dirty = devices.now.mapped.get(at / 8).is_some_and(|is_mapped| *is_mapped);
            let bytes = at * SECTOR..(at + 1) * SECTOR;
            let sector = if is_dirty { &devices.now.content[bytes] } else { sector };
            let value = guest::value_of(sector);
            let may = self.guest.model.may_have(at, value);
            assert!(may, "sector {at} has {value}, dirty: {is_dirty}");
        }
    }

    /// The pool has the owner of the present epoch. A node that ends before that, twice, may strand
    /// its rest without need.
    fn own(&mut self) {
        for _ in 0..100 {
            for at in 0..self.guest.channels.len() {
                self.now_ns += 50_000;
                self.guest.poll(at, self.now_ns);
            }
            self.keeper.step(self.now_ns);
            self.memory.settle(1);
        }
        assert!(self.dirty.is_open());
    }

    /// A session is lost, or the node stood still: the client asks for another epoch. Some of its
    /// claims may have been granted without its knowing.
    fn reclaim(&mut self) {
        self.own();
        assert!(self.attachment.reclaim(self.epoch));
        for _ in 0..self.random.below(20) {
            self.round();
        }
        let further = self.random.between(1, 3);
        self.claim(further);
    }

    /// A pool that has not the dirty blocks is in the pool's place: the disk is not served.
    fn refuse_other_pool(&mut self) {
        let had = self.pool.mapped();
        let right = self.pool.make_anew();
        if let Some(copy) = self.copy.take() {
            *self.pool.devices.lock() = copy;
        }
        self.memory.forget(&mut self.random);
        assert!(had == 0 || self.memory.is_marked(), "it was durable before they were dirty");
        // A copy from after the last round is the pool, and passes.
        let is_behind = self.pool.devices.lock().number < self.memory.number();
        let bounds = DirtyBounds { blocks: BLOCKS, capacity: CAPACITY, age_ns: AGE_NS };
        // Not once only: the first look must not make the pool one that passes.
        for _ in 0..2 {
            let storage = Box::new(DirtyDirectory(Arc::clone(&self.pool)));
            let found = Dirty::load(bounds, storage, notes_in(&self.memory), 1);
            assert!(had == 0 || !is_behind || found.is_err(), "{had} dirty blocks are missing");
            self.seen.refused += u64::from(found.is_err());
        }
        *self.pool.devices.lock() = right;
    }

    /// The writes of the pool, which is away, are given up, and the guest goes on without
    /// write-back. The pool that comes back has writes that are older than the guest's last writes.
    fn give_up(&mut self) {
        let (had, before) = (self.pool.mapped(), self.pool.devices.lock().stranded.len());
        self.memory.forget(&mut self.random);
        self.memory.is_quick.store(true, SeqCst);
        notes_in(&self.memory).forget_mark().expect("it is noted");
        self.memory.is_quick.store(false, SeqCst);
        assert!(!self.memory.is_marked());
        self.write_without_pool();
        let (_, dirty, _) = begin(&self.far, &self.pool, &self.memory);
        assert_eq!(dirty.dirty_bytes(), 0);
        let stranded = self.pool.devices.lock().stranded.len() - before;
        assert_eq!(stranded, usize::from(had > 0));
        self.seen.given_up += stranded as u64;
    }

    /// Writes that go to the remote volume and not through the pool, which has other writes.
    fn write_without_pool(&mut self) {
        // All that the guest was told of and the remote volume has not got is lost to it.
        let all: Vec<_> = {
            let content = self.far.content.lock();
            content.chunks_exact(SECTOR).map(guest::value_of).collect()
        };
        for (at, value) in all.iter().enumerate() {
            self.guest.model.overwrite(at..at + 1, *value);
        }
        for _ in 0..self.random.between(1, 8) {
            let first = self.random.below(all.len() as u64 - 40) as usize;
            let range = first..first + self.random.between(1, 40) as usize;
            let value = self.guest.value();
            let mut content = self.far.content.lock();
            for at in range.clone() {
                guest::stamp(&mut content[at * SECTOR..(at + 1) * SECTOR], value);
            }
            drop(content);
            self.guest.model.overwrite(range, value);
        }
        self.far.flush();
    }

    /// The channels of the guest go, and some of its requests are under way.
    fn tear_off(&mut self) {
        self.guest.submit_some();
        for _ in 0..self.random.below(10) {
            self.round();
        }
        self.guest.forget_all();
    }

    fn next_process(&mut self) {
        self.memory.forget(&mut self.random);
        (self.volume, self.dirty, self.keeper) = begin(&self.far, &self.pool, &self.memory);
    }

    /// The last work of the present attachment.
    fn before_turn(&mut self, turn: Turn) {
        match turn {
            Turn::Stop => {
                self.drain();
                self.note_drained();
            }
            Turn::HandOver | Turn::Reset => self.settle(),
            Turn::PutBack => self.drain_after_copy(),
            Turn::OtherPool if self.random.one_in(2) => self.work_after_copy(),
            _ => {}
        }
    }

    /// The channels go, and come again with another attachment.
    fn turn(&mut self, turn: Turn) {
        self.own();
        let standing = self.attachment.standing();
        let is_fenced = turn == Turn::Taken && self.random.one_in(2);
        self.before_turn(turn);
        self.tell_turn(turn);
        self.end_process(turn, is_fenced);
        if turn != Turn::Reset && !is_fenced {
            self.next_process();
        }
        if turn == Turn::Power {
            self.pool.lose_power();
            self.guest.model.lose_power();
            // The process has read the pool before the loss of power.
            self.next_process();
        }
        if matches!(turn, Turn::Power | Turn::Reset) && self.random.one_in(2) {
            self.far.lose_power();
            self.guest.model.lose_power();
        }
        let claimant = standing.map_or(0, |it| it.claimant);
        let (next, further) = match turn {
            Turn::Stop
            | Turn::HandOver
            | Turn::Kill
            | Turn::PutBack
            | Turn::OtherPool
            | Turn::GivenUp => {
                // The same client, by the node's memory or as it was handed over.
                let further = self.random.between(1, 3);
                let live = standing.filter(|_| self.random.one_in(2));
                let options = AttachOptions::new(claimant);
                match live.and_then(|it| Attachment::going_on("a", options, &it)) {
                    Some(it) => (it, further),
                    None => {
                        let known = self.epoch;
                        let options = AttachOptions { resume: true, known, ..options };
                        (Attachment::new("a", options), further)
                    }
                }
            }
            Turn::KillReset | Turn::Reset | Turn::Power => {
                (Attachment::new("a", AttachOptions::new(self.draw())), 1)
            }
            Turn::Taken => self.take_back(claimant),
        };
        self.attachment = Arc::new(next);
        self.claim(further);
        self.open();
        if self.random.one_in(2) {
            self.guest.submit_some();
        }
    }

    /// The process that had the disk ends in the way of a turn.
    fn end_process(&mut self, turn: Turn, is_fenced: bool) {
        match turn {
            Turn::Taken if is_fenced => {
                self.guest.submit_some();
                self.attachment.fence("taken");
                self.round();
                self.guest.let_go(self.now_ns);
            }
            Turn::Stop | Turn::HandOver | Turn::Reset => {
                self.attachment.close();
                self.guest.let_go(self.now_ns);
            }
            Turn::Kill | Turn::KillReset | Turn::Power | Turn::Taken => self.tear_off(),
            Turn::PutBack => self.put_back(),
            Turn::OtherPool => {
                self.tear_off();
                self.refuse_other_pool();
            }
            Turn::GivenUp => {
                self.tear_off();
                self.give_up();
            }
        }
    }

    /// A copy is made of the pool at any moment; then all is written back for a guest that goes.
    fn drain_after_copy(&mut self) {
        self.copy_and_drain();
        self.note_drained();
    }

    /// The same for a guest that goes on.
    fn work_after_copy(&mut self) {
        self.copy_and_drain();
        self.own();
        for _ in 0..60 {
            self.guest.submit_some();
            self.round();
        }
    }

    fn copy_and_drain(&mut self) {
        for _ in 0..self.random.below(30) {
            self.guest.submit_some();
            self.round();
        }
        self.copy = Some(self.pool.devices.lock().clone());
        for _ in 0..self.random.below(60) {
            self.guest.submit_some();
            self.round();
        }
        self.drain();
    }

    /// The guest has gone, and the node's memory says that nothing is dirty.
    fn note_drained(&mut self) {
        // The number of the last round is kept soon after it.
        self.own();
        assert!(self.memory.is_marked(), "the guest had an epoch");
        self.dirty.note_drained();
        self.own();
        assert!(!self.memory.is_marked());
    }

    fn put_back(&mut self) {
        self.guest.forget_all();
        let copy = self.copy.take().expect("it was made");
        self.seen.put_back += u64::from(copy.now.mapped.contains(&true));
        *self.pool.devices.lock() = copy;
    }

    /// Another client has had the volume, and this client takes it back.
    fn take_back(&mut self, claimant: u64) -> (Attachment, u64) {
        let rest = self.pool.devices.lock().now.clone();
        let (had, before) = (self.pool.mapped(), self.pool.devices.lock().stranded.len());
        self.write_without_pool();
        let take_over = claimant != 0 && self.random.one_in(2);
        let claimant = if take_over { claimant } else { self.draw() };
        let options = AttachOptions { take_over, ..AttachOptions::new(claimant) };
        self.attachment = Arc::new(Attachment::new("a", options));
        self.claim(2);
        self.open();
        self.own();
        let devices = self.pool.devices.lock();
        assert_eq!(devices.stranded.len() - before, usize::from(had > 0));
        assert!(had == 0 || devices.stranded.last() == Some(&rest), "all of it is kept");
        drop(devices);
        self.seen.stranded += u64::from(had > 0);
        let standing = self.attachment.standing().expect("it is held");
        self.attachment.close();
        self.guest.let_go(self.now_ns);
        let options = AttachOptions::new(claimant);
        (Attachment::going_on("a", options, &standing).expect("an epoch"), 1)
    }

    fn tell_turn(&mut self, turn: Turn) {
        if self.pool.mapped() > 0 {
            *self.seen.turns_with_rest.entry(format!("{turn:?}")).or_default() += 1;
        }
    }

    fn draw(&mut self) -> u64 {
        self.claimants += 1;
        self.claimants
    }

    /// The pool fails a write: the disk fails, and the guest starts afresh with a pool that works.
    fn fail_pool(&mut self) {
        self.own();
        self.pool.fails.store(true, SeqCst);
        for _ in 0..200 {
            self.guest.submit_some();
            self.round();
        }
        let has_failed = self.attachment.view().phase == Phase::Failed;
        self.seen.failed += u64::from(has_failed);
        self.tear_off();
        self.pool.fails.store(false, SeqCst);
        if has_failed {
            // This process does not know which blocks the pool has.
            self.attachment = Arc::new(Attachment::new("a", AttachOptions::new(self.draw())));
            self.open();
            assert_eq!(self.attachment.view().phase, Phase::Failed);
            self.tear_off();
        }
        self.next_process();
        self.attachment = Arc::new(Attachment::new("a", AttachOptions::new(self.draw())));
        self.claim(1);
        self.open();
    }

    fn step(&mut self) {
        match self.random.below(1000) {
            0..=3 => self.settle(),
            4 => self.drain(),
            5..=6 => self.reclaim(),
            7..=10 => {
                let turn = TURNS[self.random.below(TURNS.len() as u64) as usize];
                self.turn(turn);
            }
            11..=20 => self.far.has_session.store(self.random.one_in(2), SeqCst),
            21 => self.far.fails.store(self.random.one_in(3), SeqCst),
            // A batch that has failed rests for a second.
            22..=24 => self.now_ns += 1_000_000_000,
            25 if self.random.one_in(8) => self.fail_pool(),
            26..=400 => self.guest.submit_some(),
            _ => self.round(),
        }
    }
}

fn run(seed: u64, seen: &mut Seen) {
    let mut world = World::new(seed);
    for _ in 0..4000 {
        world.step();
        if world.random.one_in(400) {
            for (name, value) in world.dirty.counted() {
                *seen.counters.entry(name).or_default() += value;
            }
        }
    }
    world.drain();
    seen.stranded += world.seen.stranded;
    seen.failed += world.seen.failed;
    seen.put_back += world.seen.put_back;
    seen.refused += world.seen.refused;
    seen.given_up += world.seen.given_up;
    for (turn, count) in world.seen.turns_with_rest {
        *seen.turns_with_rest.entry(turn).or_default() += count;
    }
}

#[test]
fn acknowledged_writes_are_there_after_each_kind_of_end() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let one = number("CACHE_SEED");
    let seeds = one.map_or(0..number("CACHE_SEEDS").unwrap_or(60), |seed| seed..seed + 1);
    let mut seen = Seen::default();
    for seed in seeds {
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed, &mut seen)));
        assert!(ended.is_ok(), "CACHE_SEED={seed}");
    }
    println!("{seen:?}");
    if one.is_none() {
        let never = seen.counters.iter().filter(|(_, value)| **value == 0);
        assert_eq!(never.collect::<Vec<_>>(), [], "each of these should have happened");
        assert!(seen.stranded > 0 && seen.failed > 0 && seen.put_back > 0 && seen.refused > 0);
        assert!(seen.given_up > 0);
        // After a stop in order there is no rest, and none before a pool is put back.
        assert_eq!(seen.turns_with_rest.len(), TURNS.len() - 2, "{:?}", seen.turns_with_rest);
    }
}

/// Else writes would wait for a mark that is not asked for any more.
#[test]
fn a_wish_that_comes_while_a_note_is_on_its_way_has_a_note_of_its_own() {
    let far = Far::new(BLOCKS as usize * BLOCK_BYTES as usize, Random::new(1));
    let pool = DirtyPool::new(BLOCKS, Random::new(2));
    let memory = Arc::default();
    let (_volume, dirty, mut keeper) = begin(&far, &pool, &memory);
    dirty.note_drained();
    keeper.step(1);
    // Another guest has come and gone before the note is durable.
    dirty.note_drained();
    memory.settle(1);
    keeper.step(2);
    keeper.step(3);
    memory.settle(1);
    assert_eq!(memory.number(), 2, "the second note");
    keeper.step(4);
    keeper.step(5);
    memory.settle(1);
    assert_eq!(memory.number(), 2, "and no other one");
}

/// A damaged block stays dirty, and holds up no other block.
#[test]
fn all_blocks_but_the_damaged_ones_are_written_back() {
    for every in [1, 2, 7, 40] {
        let mut world = World::new(every);
        let mut mapped = Vec::new();
        while mapped.len() < 30 {
            world.guest.submit_some();
            world.round();
            let devices = world.pool.devices.lock();
            let is_mapped = |block: &u64| devices.now.mapped[*block as usize];
            mapped = (0..BLOCKS).filter(is_mapped).collect();
        }
        world.settle();
        world.own();
        let devices = world.pool.devices.lock().now.clone();
        mapped.retain(|block| devices.mapped[*block as usize]);
        assert!(mapped.len() > 4, "{mapped:?}");
        let damaged: Vec<_> = mapped.into_iter().step_by(every as usize).collect();
        world.pool.damaged.lock().clone_from(&damaged);
        world.dirty.set_draining(true);
        let mut rounds = 0;
        while world.pool.mapped() > damaged.len() as u64
            || world.dirty.damaged().count < damaged.len() as u64
        {
            world.round();
            rounds += 1;
            assert!(rounds < 200_000, "{:?}", world.dirty);
        }
        let named = world.dirty.damaged().places_bytes();
        assert_eq!(named.len(), damaged.len().min(8), "the operator is told");
        let is_damaged = |at_bytes: &u64| damaged.contains(&(at_bytes / BLOCK_BYTES));
        assert!(named.iter().all(is_damaged), "{named:?} {damaged:?}");
        // They can be read again, as after the guest has written them.
        world.pool.damaged.lock().clear();
        world.drain();
        assert_eq!(world.dirty.damaged().count, 0);
    }
}
