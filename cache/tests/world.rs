//! A cached volume under faults: a remote volume that loses its session, fails requests and is
//! written by other clients; a pool that fails, and is put back to an older copy; processes that
//! end in order or are killed; caches that come and go while guests work.
//!
//! Each read is compared with all that a guest may read at that moment. When nothing is under way,
//! each block that the cache has is compared with the remote volume's.
//!
//! `CACHE_SEEDS=n` runs so many seeds, `CACHE_SEED=n` one.

#[path = "world/far.rs"]
mod far;
#[path = "world/guest.rs"]
mod guest;
#[path = "world/memory.rs"]
mod memory;
#[path = "world/model.rs"]
mod model;
#[path = "world/near.rs"]
mod near;

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use block::attachment::{AttachOptions, Attachment};
use cache::{BLOCK_BYTES, Blocks, Cache, CacheKeeper, CachedVolume};
use random::Random;
use volume::Incarnation;

use far::{Far, FarVolume};
use guest::{Guest, GuestChannel};
use model::{Model, SECTOR};
use near::{Near, NearStorage, NearVolume, OnDevices};

/// Blocks of the remote volume: a few regions, and a piece at the end that is no whole block.
const BLOCKS: u64 = 300;

/// Blocks that the cache may have.
const CAPACITY: u64 = 120;

/// Sidecores.
const CHANNELS: u16 = 2;

/// A turn of the guest's client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// The guest goes on with a new process of the node, which has let go in order.
    Restart,
    /// The same after a kill.
    Kill,
    /// The guest starts afresh.
    Reset,
    /// The guest is stopped and goes on.
    Pause,
}

struct World {
    random: Random,
    far: Arc<Far>,
    near: Arc<Near>,
    volume: Arc<CachedVolume>,
    cache: Option<(Arc<Cache>, CacheKeeper)>,
    attachment: Arc<Attachment>,
    epoch: u64,
    claimants: u64,
    guest: Guest,
    now_ns: u64,
    /// A copy of the pool from some time ago.
    copy: Option<OnDevices>,
    kept_over_a_turn: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let far = Far::new((BLOCKS * BLOCK_BYTES) as usize + SECTOR, random.fork());
        let near = Near::new(BLOCKS, random.fork());
        let sectors = far.content.lock().len() / SECTOR;
        let attachment = Arc::new(Attachment::new("a", AttachOptions::new(1)));
        let mut it = Self {
            volume: CachedVolume::new(Arc::new(FarVolume(Arc::clone(&far)))),
            random: random.fork(),
            guest: Guest::new(random.fork(), Model::new(sectors)),
            far,
            near,
            cache: None,
            attachment,
            epoch: 0,
            claimants: 1,
            now_ns: 1,
            copy: None,
            kept_over_a_turn: 0,
        };
        it.claim(1);
        it.plug();
        it.open();
        it
    }

    fn claim(&mut self, further: u64) {
        self.epoch += further;
        assert!(self.attachment.hold(self.epoch, Incarnation([7; 16])));
    }

    fn plug(&mut self) {
        let storage = Box::new(NearStorage(Arc::clone(&self.near)));
        let local = Arc::new(NearVolume(Arc::clone(&self.near)));
        let cache = Cache::new((BLOCKS, CAPACITY), local, storage);
        let keeper = self.volume.plug_unkept(&cache);
        self.cache = Some((cache, keeper));
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
        if let Some((_, keeper)) = &mut self.cache
            && self.random.one_in(3)
        {
            keeper.step(self.now_ns);
        }
    }

    /// Everything that can end ends, and the cache is compared.
    fn settle(&mut self) {
        self.far.has_session.store(true, SeqCst);
        let mut rounds = 0;
        while !self.guest.is_idle() || self.volume.cache().is_some_and(|it| !it.gate.is_quiet()) {
            self.round();
            rounds += 1;
            assert!(rounds < 100_000, "{:?}", self.guest.channels);
        }
        for _ in 0..4 {
            self.round();
        }
        self.compare();
    }

    fn compare(&self) {
        let Some((cache, _)) = &self.cache else { return };
        let (far, near) = (self.far.content.lock(), self.near.devices.lock());
        if !cache.gate.is_open() {
            return;
        }
        for first in 0..BLOCKS {
            if cache.map.holds(Blocks { first, count: 1 }) {
                let bytes = (first * BLOCK_BYTES) as usize..((first + 1) * BLOCK_BYTES) as usize;
                assert!(far[bytes.clone()] == near.content[bytes], "block {first} is stale");
            }
        }
        drop(near);
        let (used, mapped) = (cache.map.used(), self.near.mapped());
        assert!(used <= CAPACITY, "{used} blocks");
        assert_eq!((used, cache.map.count(Blocks { first: 0, count: BLOCKS })), (mapped, mapped));
    }

    /// A session is lost, or the node stood still: the client asks for another epoch.
    fn reclaim(&mut self) {
        assert!(self.attachment.reclaim(self.epoch));
        for _ in 0..self.random.below(20) {
            self.round();
        }
        let others = self.random.one_in(3);
        if others {
            self.settle_without_answers();
            self.write_by_another();
        }
        self.claim(if others { 2 } else { 1 });
    }

    /// The requests of the guest stay under way while another client writes: the model takes each
    /// such request for a request that may have been done before or after. So no request may be
    /// under way.
    fn settle_without_answers(&mut self) {
        self.epoch += 1;
        assert!(self.attachment.hold(self.epoch, Incarnation([7; 16])));
        self.settle();
        assert!(self.attachment.reclaim(self.epoch));
    }

    fn write_by_another(&mut self) {
        let sectors = self.far.content.lock().len() / SECTOR;
        for _ in 0..self.random.between(1, 8) {
            let first = self.random.below(sectors as u64 - 40) as usize;
            let range = first..first + self.random.between(1, 40) as usize;
            let value = self.guest.value();
            let mut content = self.far.content.lock();
            for at in range.clone() {
                guest::stamp(&mut content[at * SECTOR..(at + 1) * SECTOR], value);
            }
            drop(content);
            self.guest.model.overwrite(range, value);
        }
    }

    /// The channels go, and come again with another attachment.
    fn turn(&mut self, turn: Turn) {
        self.settle();
        let Some(standing) = self.attachment.standing() else { panic!("it is held") };
        if turn == Turn::Kill {
            // Some requests are under way.
            self.guest.submit_some();
            for _ in 0..self.random.below(10) {
                self.round();
            }
            self.guest.forget_all();
            self.near.process_ends();
        } else {
            self.guest.let_go(self.now_ns);
        }
        self.attachment.close();
        let before = self.cache.as_ref().map_or(0, |(cache, _)| cache.map.used());
        if turn == Turn::Restart
            && let Some((cache, _)) = &self.cache
        {
            let _ = cache.save();
        }
        if turn == Turn::Kill || turn == Turn::Restart {
            self.process_begins();
        }
        let others = self.random.one_in(4);
        // A volume may be rolled back while its guest is off: no epoch tells.
        if others || (turn == Turn::Reset && self.random.one_in(2)) {
            self.write_by_another();
        }
        let options = AttachOptions::new(standing.claimant);
        let next = match turn {
            Turn::Pause => Attachment::going_on("a", options, &standing).expect("an epoch"),
            Turn::Kill | Turn::Restart => {
                let known = standing.epoch;
                let claimant = if self.random.one_in(2) { standing.claimant } else { self.draw() };
                let options = AttachOptions { resume: true, known, ..AttachOptions::new(claimant) };
                Attachment::new("a", options)
            }
            Turn::Reset => Attachment::new("a", AttachOptions::new(self.draw())),
        };
        self.attachment = Arc::new(next);
        self.claim(if others { 2 } else { 1 });
        self.open();
        // Requests come before the keeper has decided.
        let waits = self.random.one_in(2);
        if waits {
            self.guest.submit_some();
            for _ in 0..self.random.below(10) {
                self.round();
            }
        } else {
            for _ in 0..20 {
                self.round();
            }
        }
        if waits {
            return;
        }
        let after = self.cache.as_ref().filter(|(cache, _)| cache.gate.is_open());
        let after = after.map_or(0, |(cache, _)| cache.map.used());
        let may_keep = turn != Turn::Reset && turn != Turn::Kill && !others;
        assert!(after == 0 || may_keep, "{turn:?}");
        self.kept_over_a_turn += u64::from(before > 0 && after == before);
    }

    fn draw(&mut self) -> u64 {
        self.claimants += 1;
        self.claimants
    }

    /// Another process of the node: it knows only what the pool has.
    fn process_begins(&mut self) {
        if self.random.one_in(8) {
            // The pool is put back to an older copy, or one is made.
            match self.copy.take() {
                Some(copy) => *self.near.devices.lock() = copy,
                None => self.copy = Some(self.near.devices.lock().clone()),
            }
        }
        let had_cache = self.cache.take().is_some();
        self.volume = CachedVolume::new(Arc::new(FarVolume(Arc::clone(&self.far))));
        if had_cache {
            self.plug();
        }
    }

    /// A cache comes or goes while the guest works.
    fn change_cache(&mut self) {
        if self.cache.is_none() {
            return self.plug();
        }
        self.volume.unplug();
        // A channel lets go when its requests have ended, also those with the remote volume.
        self.far.has_session.store(true, SeqCst);
        for _ in 0..100_000 {
            if self.volume.is_followed() {
                break;
            }
            self.round();
        }
        assert!(self.volume.is_followed());
        self.cache = None;
        // The volume of the pool goes with it.
        let mut devices = self.near.devices.lock();
        devices.content.fill(0);
        (devices.mark, devices.mapped) = (None, vec![false; BLOCKS as usize]);
    }

    fn step(&mut self) {
        match self.random.below(1000) {
            0..=3 => self.settle(),
            4..=6 => self.reclaim(),
            7 => self.change_cache(),
            8..=10 => {
                let all = [Turn::Restart, Turn::Kill, Turn::Reset, Turn::Pause];
                let turn = all[self.random.below(4) as usize];
                self.turn(turn);
            }
            11..=20 => self.far.has_session.store(self.random.one_in(2), SeqCst),
            21 => self.far.fails.store(self.random.one_in(3), SeqCst),
            22 => self.near.fails.store(self.random.one_in(6), SeqCst),
            // Storage that has failed rests for half a minute.
            23 => self.now_ns += 31_000_000_000,
            24..=400 => self.guest.submit_some(),
            _ => self.round(),
        }
    }
}

/// Events that runs have seen: a run that sees nothing is noticed.
#[derive(Debug, Default)]
struct Seen {
    counters: std::collections::BTreeMap<&'static str, u64>,
    emptied: u64,
    kept_over_a_turn: u64,
}

fn run(seed: u64, seen: &mut Seen) {
    let mut world = World::new(seed);
    for _ in 0..4000 {
        world.step();
        if world.random.one_in(400)
            && let Some((cache, _)) = &world.cache
        {
            for (name, value) in cache.counted() {
                *seen.counters.entry(name).or_default() += value;
            }
            seen.emptied += cache.emptied();
        }
    }
    world.settle();
    seen.kept_over_a_turn += world.kept_over_a_turn;
}

#[test]
fn a_cached_volume_never_answers_with_an_old_block() {
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
        assert!(seen.emptied > 0 && seen.kept_over_a_turn > 0);
    }
}

/// Changes of such a channel are not in the map: a block that the other channel reads meanwhile
/// would be an old one.
#[test]
fn a_cache_that_is_added_waits_for_a_channel_that_has_not_seen_it() {
    let mut world = World::new(1);
    world.settle();
    world.change_cache();
    world.change_cache();
    let sees = |world: &mut World, channels: std::ops::Range<usize>| {
        for _ in 0..1_000 {
            world.now_ns += 50_000;
            channels.clone().for_each(|at| world.guest.poll(at, world.now_ns));
            let (_, keeper) = world.cache.as_mut().expect("it was added");
            keeper.step(world.now_ns);
        }
        world.volume.cache().expect("it was added").gate.is_open()
    };
    assert!(!sees(&mut world, 0..1), "one channel has not seen it");
    assert!(sees(&mut world, 0..CHANNELS.into()), "all of them have");
}
