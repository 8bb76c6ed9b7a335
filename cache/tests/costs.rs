//! A cache in a real pool: no request allocates once it is warm, data is copied as often as the
//! decision says, and a read of a cached block costs about as much as a read of the pool. And the
//! pool keeps a cache for another process exactly when that is right.

#[path = "../../sidecore/tests/counting/mod.rs"]
mod counting;
mod remote;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use block::Attach;
use block::attachment::{AttachOptions, Attachment};
use cache::{
    BLOCK_BYTES, Blocks, Cache, CacheStorage, CachedVolume, Dirty, DirtyBounds, DirtyStorage,
    DirtyStore, HeldEpoch, PoolStorage, RoundNotes, WriteBackVolume, cache_volume_name,
};
use counting::allocations;
use remote::Far;
use sidecore::{Services, now_ns};
use store::PoolChange;
use virtio::Segment;
use volume::backend::MemoryVolume;
use volume::backend::store::{PoolPlan, StorePool, StoreRing, StoreSettings};
use volume::{Channel, Durability, Incarnation, IoTable, Op, OpenArguments, Status, io_table};

const BLOCKS: u64 = 4096;

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A pool in a file; `None`, with a line that says why, where no io_uring can be had.
fn open_pool(home: &Path) -> Option<Arc<StorePool>> {
    let ring = match StoreRing::new() {
        Ok(ring) => ring,
        Err(error) => {
            println!("SKIP: no io_uring here: {error}");
            return None;
        }
    };
    let path = home.join("p.pool");
    if !path.exists() {
        let plan = PoolPlan {
            paths: vec![path.clone()],
            size_bytes: Some(64 << 20),
            segment_bytes: Some(1 << 20),
            force: false,
        };
        StorePool::create(&plan).unwrap_or_else(|error| panic!("{error}"));
    }
    let pool = StorePool::open("p", &[path], StoreSettings::default(), ring);
    Some(pool.unwrap_or_else(|error| panic!("{error}")))
}

/// One user of a channel, with one request at a time.
struct User {
    channel: Box<dyn Channel>,
    ios: IoTable,
    memory: Vec<u8>,
    done: Vec<volume::IoId>,
}

impl User {
    fn new(channel: Box<dyn Channel>, depth: u16) -> Self {
        let done = Vec::with_capacity(usize::from(depth));
        Self { channel, ios: io_table(depth), memory: vec![0; 128 << 10], done }
    }

    fn request(&mut self, op: Op, block: u64, blocks: u64) {
        let id = self.ios.take().expect("one at a time");
        let io = &mut self.ios[id];
        io.reset();
        let len = (blocks * BLOCK_BYTES) as u32;
        (io.op, io.offset_bytes, io.len_bytes) = (op, block * BLOCK_BYTES, len);
        if op.moves_data() {
            io.segments.push(Segment { addr: self.memory.as_mut_ptr(), len });
        }
        self.channel.submit(&mut self.ios, id);
        let until = Instant::now() + PATIENCE;
        while self.done.is_empty() {
            let _ = self.channel.poll(&mut self.ios, now_ns(), &mut self.done);
            assert!(Instant::now() < until, "{:?}", self.channel);
        }
        for id in self.done.drain(..) {
            assert_eq!(self.ios[id].status, Status::Done);
            self.ios.free(id);
        }
    }

    /// Lets the cache's own requests end.
    fn settle(&mut self, cache: &Cache) {
        let until = Instant::now() + PATIENCE;
        while !cache.gate.is_quiet() {
            let _ = self.channel.poll(&mut self.ios, now_ns(), &mut self.done);
            assert!(Instant::now() < until);
        }
    }
}

struct Rig {
    user: User,
    cache: Arc<Cache>,
    volume: Arc<CachedVolume>,
    pool: Arc<StorePool>,
}

fn rig(home: &Path, capacity: u64) -> Option<Rig> {
    let pool = open_pool(home)?;
    let room = (BLOCKS, capacity);
    let opened = PoolStorage::open(&pool, &cache_volume_name("a"), "io1/a as a", room);
    let (storage, local) = opened.unwrap_or_else(|error| panic!("{error}"));
    let far = Far(Arc::new(MemoryVolume::new(BLOCKS * BLOCK_BYTES).expect("memory")));
    let volume = CachedVolume::new(Arc::new(far));
    let cache = Cache::new(room, local, Box::new(storage));
    volume.plug(Arc::clone(&cache)).expect("a thread");
    let attachment = Arc::new(Attachment::new("a", AttachOptions::new(7)));
    assert!(attachment.hold(1, Incarnation([1; 16])));
    let open = OpenArguments { services: &Services::new(), depth: 4 };
    let channel = volume.attach(&attachment, 0, &open).expect("it opens");
    let mut user = User::new(channel, 4);
    let until = Instant::now() + PATIENCE;
    while !cache.gate.is_open() {
        let _ = user.channel.poll(&mut user.ios, now_ns(), &mut user.done);
        assert!(Instant::now() < until, "{:?}", cache.gate.why());
    }
    Some(Rig { user, cache, volume, pool })
}

fn count(cache: &Cache, name: &str) -> u64 {
    cache.counted().find(|(counter, _)| *counter == name).expect("a counter").1
}

#[test]
fn a_warm_request_allocates_nothing_and_is_copied_once_more_where_it_is_kept() {
    let home = tempfile::tempdir().expect("a directory");
    let Some(Rig { mut user, cache, volume, pool }) = rig(home.path(), 1024) else { return };
    let work = |user: &mut User, from: u64| {
        for block in from..from + 64 {
            user.request(Op::Write, block, 1);
            user.settle(&cache);
            user.request(Op::Read, block, 1);
            user.request(Op::Read, 512 + block * 4, 2);
            user.settle(&cache);
            user.request(Op::Flush, 0, 0);
        }
        user.request(Op::Discard, from, 8);
        user.settle(&cache);
    };
    // The pool's own tables are warm when it has seen these blocks some times.
    (0..8).for_each(|_| work(&mut user, 128));
    let (before, hits, copied) =
        (allocations(), count(&cache, "hits"), count(&cache, "bytes_copied"));
    work(&mut user, 128);
    // The pool's thread and the keeper allocate for themselves, which this does not count.
    assert_eq!(allocations() - before, 0, "a warm request allocates");
    assert_eq!(count(&cache, "hits") - hits, 2 * 64, "all that is read is cached");
    let kept = 64 * BLOCK_BYTES;
    assert_eq!(count(&cache, "bytes_copied") - copied, kept, "a write is copied once more");
    let (before, copied) = (count(&cache, "fills"), count(&cache, "bytes_copied"));
    user.request(Op::Read, 2000, 2);
    user.settle(&cache);
    assert_eq!(count(&cache, "fills") - before, 1);
    assert_eq!(count(&cache, "bytes_copied") - copied, 2 * BLOCK_BYTES, "and so is a miss");
    assert_eq!(count(&cache, "errors"), 0);
    drop(user);
    volume.unplug();
    pool.close();
}

/// The times are printed, and asserted only as far as no machine can miss them.
#[test]
fn a_read_of_a_cached_block_costs_about_what_the_pool_costs() {
    const READS: u64 = 5000;
    let home = tempfile::tempdir().expect("a directory");
    let Some(Rig { mut user, cache, volume, pool }) = rig(home.path(), 1024) else { return };
    for block in 0..512 {
        user.request(Op::Write, block, 1);
        user.settle(&cache);
    }
    let room = (BLOCKS, 1024);
    let opened = PoolStorage::open(&pool, &cache_volume_name("b"), "io1/b as b", room);
    let (_, direct) = opened.unwrap_or_else(|error| panic!("{error}"));
    let open = OpenArguments { services: &Services::new(), depth: 4 };
    let mut direct = User::new(direct.open(&open).expect("it opens"), 4);
    (0..512).for_each(|block| direct.request(Op::Write, block, 1));
    let time = |user: &mut User| {
        let began = Instant::now();
        (0..READS).for_each(|read| user.request(Op::Read, read * 37 % 512, 1));
        began.elapsed().as_nanos() as u64 / READS
    };
    // In turn, and the best of each: other load comes and goes.
    let (mut cached_ns, mut direct_ns) = (u64::MAX, u64::MAX);
    for _ in 0..5 {
        direct_ns = direct_ns.min(time(&mut direct));
        cached_ns = cached_ns.min(time(&mut user));
    }
    println!("a read of 4 KiB: {cached_ns} ns by the cache, {direct_ns} ns of the pool");
    assert_eq!(count(&cache, "hits"), 5 * READS);
    assert!(cached_ns < 3 * direct_ns + 20_000);
    drop((user, direct));
    volume.unplug();
    pool.close();
}

/// The mark in a pool for the next process, with its blocks.
fn load(pool: &Arc<StorePool>, of: &str, room: (u64, u64)) -> Option<(HeldEpoch, Vec<Blocks>)> {
    let opened = PoolStorage::open(pool, &cache_volume_name("a"), of, room);
    let (mut storage, _) = opened.unwrap_or_else(|error| panic!("{error}"));
    storage.load().unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_pool_has_a_cache_for_the_next_process_after_a_clean_end_alone() {
    let home = tempfile::tempdir().expect("a directory");
    let Some(Rig { mut user, cache, volume, pool }) = rig(home.path(), 1024) else { return };
    let (of, room) = ("io1/a as a", (BLOCKS, 1024));
    user.memory.fill(5);
    user.request(Op::Write, 10, 3);
    user.settle(&cache);
    assert_eq!(load(&pool, of, room), None, "a cache that is used has no mark");
    drop(user);
    assert_eq!(cache.save(), Ok(true));
    assert_eq!(cache.save(), Ok(false), "once");
    volume.unplug();
    pool.close();
    drop((cache, volume, pool));

    let pool = open_pool(home.path()).expect("as before");
    let (held, blocks) = load(&pool, of, room).expect("the mark");
    assert_eq!((held.epoch, held.claimant, held.incarnation), (1, 7, Incarnation([1; 16])));
    assert_eq!(blocks, [Blocks { first: 10, count: 3 }]);
    let other = load(&pool, "io1/b as a", room).expect("a mark").0;
    assert_ne!(other.incarnation, held.incarnation, "of another volume");
    let opened = PoolStorage::open(&pool, &cache_volume_name("a"), of, room);
    let (mut storage, _) = opened.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(storage.unmark(), Ok(()));
    assert_eq!(load(&pool, of, room), None);
    // The pool removes a mark in the background, and the cache is opened meanwhile.
    for _ in 0..100 {
        assert_eq!(storage.mark(&held), Ok(()));
        assert_eq!(storage.unmark(), Ok(()));
        assert_eq!(load(&pool, of, room), None);
    }
    assert_eq!(storage.mark(&held), Ok(()));
    assert_eq!(load(&pool, of, (BLOCKS / 2, 512)), None, "another size");
    assert_eq!(storage.clear(), Ok(()));
    let found = pool.volumes().into_iter().find(|it| it.name == "cache.a").expect("the volume");
    assert_eq!((found.reservation_blocks, found.limit_blocks), (512, None));
    let all = PoolStorage::open(&pool, &cache_volume_name("c"), of, (1 << 20, 1 << 20));
    let error = all.expect_err("more than the pool has");
    assert!(error.contains("make it smaller"), "{error}");
    for name in ["a", "c"] {
        assert_eq!(PoolStorage::remove(&pool, &cache_volume_name(name)), Ok(()));
        assert_eq!(PoolStorage::remove(&pool, &cache_volume_name(name)), Ok(()), "again");
    }
    assert!(pool.volumes().iter().all(|it| !it.name.starts_with("cache.")));
    a_users_volume_is_no_cache(&pool, of, room);
    pool.close();
}

/// An older release let users make volumes with the names of caches.
fn a_users_volume_is_no_cache(pool: &Arc<StorePool>, of: &str, room: (u64, u64)) {
    let name = cache_volume_name("d");
    let id = pool.change(PoolChange::Create { name: name.clone(), blocks: BLOCKS }).expect("it");
    let precious = "precious".to_owned();
    let snapshot = PoolChange::Snapshot { volumes: vec![id], name: precious, at_s: 1 };
    pool.change(snapshot).expect("a snapshot");
    let before = pool.volumes();
    let error = PoolStorage::open(pool, &name, of, room).expect_err("it has a snapshot of a user");
    assert!(error.contains("is no cache") && error.contains("volume clone"), "{error}");
    assert_eq!(PoolStorage::remove(pool, &name), Ok(()));
    assert_eq!(pool.volumes(), before, "all of it stays");
}

/// A disk with write-back, whose remote volume is in memory.
struct DirtyRig {
    user: User,
    dirty: Arc<Dirty>,
    volume: Arc<WriteBackVolume>,
}

fn dirty_rig(
    pool: &Arc<StorePool>,
    far: &Arc<MemoryVolume>,
    (claimant, epoch): (u64, u64),
) -> DirtyRig {
    let store = DirtyStore::new(pool, ("a", "io1/a as a"), (BLOCKS, 1024), Durability::Flush);
    let bounds = DirtyBounds { blocks: BLOCKS, capacity: 1024, age_ns: u64::MAX };
    let dirty = Dirty::load(bounds, Box::new(store), RoundNotes::nowhere(), now_ns());
    let dirty = dirty.unwrap_or_else(|error| panic!("{error}"));
    let far = Arc::new(Far(Arc::clone(far)));
    let volume = WriteBackVolume::new(CachedVolume::new(Arc::clone(&far) as _), far);
    volume.begin(Arc::clone(&dirty)).expect("a thread");
    let attachment = Arc::new(Attachment::new("a", AttachOptions::new(claimant)));
    assert!(attachment.hold(epoch, Incarnation([1; 16])));
    let open = OpenArguments { services: &Services::new(), depth: 4 };
    let mut user = User::new(volume.attach(&attachment, 0, &open).expect("it opens"), 4);
    user.until(|| dirty.is_open());
    DirtyRig { user, dirty, volume }
}

impl User {
    fn until(&mut self, is: impl Fn() -> bool) {
        let until = Instant::now() + PATIENCE;
        while !is() {
            let _ = self.channel.poll(&mut self.ios, now_ns(), &mut self.done);
            assert!(Instant::now() < until, "{:?}", self.channel);
        }
    }

    fn write(&mut self, block: u64, value: u8) {
        self.memory.fill(value);
        self.request(Op::Write, block, 1);
    }

    fn read(&mut self, block: u64) -> u8 {
        self.memory.fill(0xee);
        self.request(Op::Read, block, 1);
        self.memory[BLOCK_BYTES as usize - 1]
    }
}

#[test]
fn a_pool_has_dirty_blocks_for_the_next_process_and_keeps_those_that_came_too_late() {
    let home = tempfile::tempdir().expect("a directory");
    let Some(pool) = open_pool(home.path()) else { return };
    let far = Arc::new(MemoryVolume::new(BLOCKS * BLOCK_BYTES).expect("memory"));
    let mut remote = User::new(
        volume::Volume::open(&*far, &OpenArguments { services: &Services::new(), depth: 4 })
            .expect("it opens"),
        4,
    );
    (10..16).for_each(|block| remote.write(block, 9));
    let DirtyRig { mut user, dirty, volume } = dirty_rig(&pool, &far, (7, 1));
    user.write(10, 5);
    user.write(11, 0);
    user.write(12, 6);
    user.request(Op::Discard, 12, 1);
    assert_eq!((dirty.dirty_bytes(), remote.read(10)), (2 * BLOCK_BYTES, 9));
    // The process ends without a word.
    drop((user, dirty, volume));
    pool.close();
    drop(pool);

    let pool = open_pool(home.path()).expect("as before");
    let DirtyRig { mut user, dirty, volume } = dirty_rig(&pool, &far, (8, 2));
    assert_eq!(dirty.dirty_bytes(), 2 * BLOCK_BYTES, "zeroes are content as any");
    let read = [10, 11, 12, 13].map(|block| user.read(block));
    assert_eq!(read, [5, 0, 0, 9]);
    user.write(14, 7);
    drop((user, dirty, volume));

    // A disk of that name with another line in the file: nothing is taken over or put aside.
    let names = || pool.volumes().into_iter().map(|it| it.name).collect::<Vec<_>>();
    let before = names();
    for of in ["io1,io2/a as a", "io2/a as a", "io1/b as a", "io1/a as b"] {
        let mut store = DirtyStore::new(&pool, ("a", of), (BLOCKS, 512), Durability::Flush);
        let error = store.load().expect_err(of);
        assert!(error.contains("writes of this disk to another volume"), "{error}");
        assert!(error.contains("--data --force`"), "{error}");
        assert_eq!(names(), before, "{of}");
    }

    // Another client had epoch 3.
    let DirtyRig { mut user, dirty, volume } = dirty_rig(&pool, &far, (9, 4));
    assert_eq!((dirty.dirty_bytes(), dirty.stranded()), (0, vec!["rest.a.1".to_owned()]));
    let read = [10, 11, 12, 14].map(|block| user.read(block));
    assert_eq!(read, [9, 9, 0, 9], "the remote volume is as that client left it");
    let kept = pool.volumes().into_iter().find(|it| it.name == "rest.a.1").expect("it is kept");
    assert_eq!((kept.referred_blocks, kept.reservation_blocks), (Some(3), 0));
    user.write(10, 4);
    dirty.set_draining(true);
    user.until(|| dirty.is_clean());
    assert_eq!(remote.read(10), 4);
    drop((user, dirty, volume));
    assert_eq!(dirty_rig(&pool, &far, (9, 5)).dirty.dirty_bytes(), 0, "nothing comes back");
    assert_eq!(DirtyStore::remove(&pool, "a"), Ok(()));
    assert!(pool.volumes().iter().all(|it| !it.name.starts_with("dirty.")));
    pool.close();
}

#[test]
fn a_warm_request_with_write_back_allocates_nothing() {
    const TURNS: u64 = 16;
    /// Nodes of the tree of a dirty volume with 64 blocks in a row, and their places in the pool's
    /// memory of its map.
    const NODES_MAX: u64 = 8;
    let home = tempfile::tempdir().expect("a directory");
    let Some(pool) = open_pool(home.path()) else { return };
    let far = Arc::new(MemoryVolume::new(BLOCKS * BLOCK_BYTES).expect("memory"));
    let DirtyRig { mut user, dirty, volume } = dirty_rig(&pool, &far, (7, 1));
    let work = |user: &mut User| {
        for block in 128..192 {
            user.request(Op::Write, block, 1);
            user.request(Op::Read, block, 1);
            user.request(Op::Read, block, 2);
            user.request(Op::Flush, 0, 0);
        }
        user.request(Op::Discard, 128, 8);
    };
    let drain = |user: &mut User| {
        dirty.set_draining(true);
        user.until(|| dirty.is_clean());
        dirty.set_draining(false);
    };
    // Each slot of the channel's tables has room for pieces when it was used once.
    for _ in 0..TURNS {
        work(&mut user);
        drain(&mut user);
    }
    // The dirty volume is empty, and so the pool has no tree of it. The first writes make its nodes
    // again, each once.
    let before = allocations();
    work(&mut user);
    let made = allocations() - before;
    assert!(made <= NODES_MAX, "{made} allocations for the tree of an empty volume");
    // The pool's own work in the background may fall into a turn. A request that allocates would do
    // so in each of them.
    let allocates = |_: &u64| {
        let before = allocations();
        work(&mut user);
        allocations() > before
    };
    assert_ne!((0..TURNS).take_while(allocates).count() as u64, TURNS, "a warm request allocates");
    let before = allocations();
    drain(&mut user);
    assert!(allocations() - before <= NODES_MAX, "a round allocates");
    let counted = |name| dirty.counted().find(|it| it.0 == name).expect("a counter").1;
    assert_eq!(counted("errors"), 0);
    assert!(counted("kept") >= (TURNS + 2) * 64, "no write went to the remote volume");
    assert_eq!(counted("passed"), counted("kept") / 64, "a discard of each turn did");
    drop((user, volume));
    pool.close();
}
