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
    BLOCK_BYTES, Blocks, Cache, CacheStorage, CachedVolume, HeldEpoch, PoolStorage,
    cache_volume_name,
};
use counting::allocations;
use remote::Far;
use sidecore::{Services, now_ns};
use store::PoolChange;
use virtio::Segment;
use volume::backend::MemoryVolume;
use volume::backend::store::{PoolPlan, StorePool, StoreRing, StoreSettings};
use volume::{Channel, Incarnation, IoTable, Op, OpenArguments, Status, io_table};

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
