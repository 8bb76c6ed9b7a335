//! Counts allocations: once warm, a request costs none, from the guest's ring to the blocks and
//! back, on one node and over two.

#[path = "../../sidecore/tests/counting/mod.rs"]
mod counting;
mod peers;

use std::cell::RefCell;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::Arc;

use block::{AttachOptions, Attached, Attachment, DiskCore, DiskQueues};
use counting::allocations;
use peers::Peers;
use sidecore::{Progress, Services};
use store::PoolChange;
use virtio::driver::{
    Data, DriverGuest, DriverOp, DriverRequest, GuestPlan, RequestStatus, RingDriver, RingOptions,
    RingShape,
};
use virtio::{Queue, RingKind};
use volume::backend::store::{PoolPlan, Pools, StorePool, StoreRing, StoreSettings, StoreVolume};
use volume::backend::{FileOptions, FileVolume, MemoryVolume, NullVolume, Opening};
use volume::chain::Chain;
use volume::stage::{EncryptVolume, Limit, Metering, Sizes, StageConfig, VolumeKey};
use volume::uring::Uring;
use volume::{Durability, OpenArguments, Topology, Volume};

const VOLUME_BYTES: u64 = 16 << 20;
const QUEUES: u16 = 2;
const TRANSFER_BYTES_MAX: u32 = 3 << 20;

/// A guest with a disk, all on this thread.
struct Rig {
    disk: DiskQueues,
    rings: Vec<RingDriver>,
    core: Arc<DiskCore>,
    volume: Option<Arc<dyn Volume>>,
    attachment: Arc<Attachment>,
    uring: Option<Rc<RefCell<Uring>>>,
    peers: Option<Peers>,
    now_ns: u64,
    completed: u64,
    /// The volume can discard; where it cannot, zeroes are written instead.
    discards: bool,
}

/// A chain of two over a volume: a meter and a limit that holds something back now and then.
fn chain(volume: Arc<dyn Volume>) -> Chain {
    let limit = Limit {
        iops: NonZeroU64::new(500_000),
        bytes_per_second: NonZeroU64::new(4 << 30),
        burst_ns: 1_000_000,
    };
    let stages = [StageConfig::Meter(Metering), StageConfig::Limit(limit)];
    Chain::build(volume, &stages, None).expect("a good chain")
}

/// How many requests a disk's share has at once.
const DEPTH: u16 = 24;

/// A disk's share of a volume without a guard.
fn share(
    volume: &dyn Volume,
    services: &Services,
    (attachment, index): (Arc<Attachment>, u16),
) -> Attached {
    let channel = volume.open(&OpenArguments { services, depth: DEPTH }).expect("it opens");
    let (info, size) = (volume.info(), volume.size());
    Attached { channel, info, size, attachment, index, depth: DEPTH }
}

impl Rig {
    /// A disk of a volume with a chain on the same node.
    fn local(volume: Arc<dyn Volume>, services: &Services) -> Self {
        let chain = chain(volume);
        let attached = |attachment| share(&*chain.volume, services, (attachment, 0));
        let mut rig = Self::new(attached, services.get::<Uring>());
        rig.volume = Some(chain.volume);
        rig
    }

    /// The disk's share on another sidecore.
    fn other_share(&self, services: &Services) -> DiskQueues {
        let volume = self.volume.as_deref().expect("a local one");
        let attached = share(volume, services, (Arc::clone(&self.attachment), 1));
        DiskQueues::new(Arc::clone(&self.core), attached, false)
    }

    /// All queues go over to the other share, which is this disk's from then on.
    fn move_to(&mut self, other: &mut DiskQueues) {
        for queue in 0..usize::from(QUEUES) {
            self.disk.begin_leave(queue, u64::MAX).expect("it may leave");
            self.round();
            let left = self.disk.take_left(queue).expect("at once");
            other.adopt(left.expect("nothing is outstanding"));
        }
        std::mem::swap(&mut self.disk, other);
    }

    /// A disk of a volume with a chain on another node.
    fn remote(volume: Arc<dyn Volume>, sealed: bool, uring: Option<Uring>) -> Self {
        let (peers, remote) = Peers::new(chain(volume).volume, sealed, transport::VERSIONS);
        assert_eq!(peers.sealed_sessions() > 0, sealed);
        if let Some(uring) = uring {
            peers.io_services().insert(Rc::new(RefCell::new(uring)));
        }
        let uring = peers.io_services().get::<Uring>();
        let services = peers.services().clone();
        let attached = |attachment| {
            let open = OpenArguments { services: &services, depth: DEPTH };
            Attached::open(&*remote, &attachment, 0, &open).expect("it opens")
        };
        let mut rig = Self::new(attached, uring);
        // Where the sessions' clock stands.
        rig.now_ns = 10_000_000_000;
        rig.peers = Some(peers);
        rig
    }

    fn new(
        attached: impl FnOnce(Arc<Attachment>) -> Attached,
        uring: Option<Rc<RefCell<Uring>>>,
    ) -> Self {
        let options = AttachOptions::new(1);
        let attachment = Arc::new(Attachment::new("rig", options));
        let shape = RingShape {
            size: 256,
            slots: 16,
            transfer_bytes_max: TRANSFER_BYTES_MAX,
            segments_max: 126,
        };
        let plan = GuestPlan { queues: QUEUES, shape, ..GuestPlan::default() };
        let guest = DriverGuest::new(&plan).expect("guest memory");
        let memory = Arc::new(guest.memory().device_memory().expect("the same memory"));
        // One of each kind.
        let kinds = [RingKind::Split, RingKind::Packed];
        let ring = |(kind, index)| {
            let (event_idx, indirect) = (true, true);
            guest.ring(index, RingOptions { kind, event_idx, indirect, ..RingOptions::default() })
        };
        let rings: Vec<_> = kinds.into_iter().cycle().zip(0..QUEUES).map(ring).collect();
        let core = DiskCore::new("rig", QUEUES);
        let attached = attached(Arc::clone(&attachment));
        let mut disk = DiskQueues::new(Arc::clone(&core), attached, false);
        for ring in &rings {
            let config = ring.queue_config(Arc::clone(&memory)).expect("no descriptors needed");
            disk.add_queue(Queue::new(config).expect("a good ring"));
        }
        let (volume, peers) = (None, None);
        let (now_ns, completed, discards) = (1, 0, true);
        Self { disk, rings, core, volume, attachment, uring, peers, now_ns, completed, discards }
    }

    fn round(&mut self) {
        self.now_ns += 2_000;
        let (now_ns, disk) = (self.now_ns, &mut self.disk);
        let mut progress = Progress::Idle;
        match &mut self.peers {
            Some(peers) => peers.round(now_ns, || progress = disk.poll(now_ns)),
            None => progress = disk.poll(now_ns),
        }
        let reaped = self.uring.as_ref().map(|uring| uring.borrow_mut().round());
        if !progress.is_busy() && reaped.is_some_and(|reaped| !reaped.is_busy()) {
            std::thread::yield_now();
        }
    }

    /// Requests of all kinds and cuts, in batches of so many for each queue.
    fn work(&mut self, batches: u64, each: u64) {
        for batch in 0..batches {
            let mut outstanding = 0;
            for (queue, ring) in self.rings.iter_mut().enumerate() {
                for turn in 0..each {
                    let slot = ring.take_slot().expect("all are back");
                    let kind = batch + turn + queue as u64;
                    let list = if op_of_ranges(kind).is_some() { RANGES } else { &[] };
                    ring.write(slot, 0, list);
                    let (op, data) = match kind % 9 {
                        0 => (DriverOp::Flush, Data::None),
                        1 => (DriverOp::GetId, Data::Whole(20)),
                        2 => (DriverOp::Write, Data::Cut { len: 64 << 10, piece_bytes: 4096 }),
                        3 => (DriverOp::Read, Data::Cut { len: 64 << 10, piece_bytes: 4096 }),
                        4 if kind.is_multiple_of(2) => {
                            (DriverOp::Read, Data::Whole(TRANSFER_BYTES_MAX))
                        }
                        4 => (DriverOp::Write, Data::Whole(TRANSFER_BYTES_MAX)),
                        5 => (DriverOp::Read, Data::Whole(4096)),
                        6 | 7 => {
                            let op = op_of_ranges(kind).filter(|_| self.discards);
                            (op.unwrap_or(DriverOp::WriteZeroes), Data::Whole(RANGES.len() as u32))
                        }
                        _ => (DriverOp::Write, Data::Whole(4096)),
                    };
                    let request = DriverRequest { slot, op, sector: turn * 64, data, token: 0 };
                    ring.submit(&request).expect("room");
                    outstanding += 1;
                }
                ring.publish();
            }
            while outstanding > 0 {
                self.round();
                for ring in &mut self.rings {
                    while let Some(completion) = ring.complete().expect("no breach") {
                        assert_eq!(completion.status, RequestStatus::Ok);
                        ring.release(completion.slot);
                        outstanding -= 1;
                        self.completed += 1;
                    }
                }
            }
        }
    }
}

/// Two ranges of 8 sectors, at 64 and at 128.
const RANGES: &[u8] = &[
    64, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, //
    128, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0,
];

fn op_of_ranges(kind: u64) -> Option<DriverOp> {
    match kind % 9 {
        6 => Some(DriverOp::Discard),
        7 => Some(DriverOp::WriteZeroes),
        _ => None,
    }
}

/// Moving both queues has its cost when it happens: a share that was warm is warm when they come
/// back.
#[test]
fn a_disk_whose_queues_have_moved_allocates_nothing() {
    let volume = MemoryVolume::new(VOLUME_BYTES).expect("memory");
    let services = Services::new();
    let mut rig = Rig::local(Arc::new(volume), &services);
    let mut other = rig.other_share(&services);
    check(&mut rig);
    for _ in 0..2 {
        rig.move_to(&mut other);
        // The share that they have come to.
        check(&mut rig);
    }
    assert_eq!((0..2).map(|queue| rig.core.counters(queue).moves.get()).sum::<u64>(), 4);
}

fn check(rig: &mut Rig) {
    check_for(rig, (30, 100));
}

/// On a storage device each ninth request is a flush, which takes tenths of a second where others
/// use the device as well. All kinds of requests are in nine batches.
const BATCHES_OF_FILES: (u64, u64) = (30, 9);

/// Warms up by so many batches, and counts over so many.
fn check_for(rig: &mut Rig, (warm_up, batches): (u64, u64)) {
    // More at a time than later, so that every slot of every table has been used.
    rig.work(warm_up, 16);
    let (before, warm) = (allocations(), rig.completed);
    assert!(before > 0, "allocations are counted");
    rig.work(batches, 8);
    let requests = rig.completed - warm;
    assert_eq!(requests, batches * 16);
    assert_eq!(allocations() - before, 0, "allocations for {requests} requests");
}

#[test]
fn a_warm_disk_in_memory_allocates_nothing() {
    let volume = MemoryVolume::new(VOLUME_BYTES).expect("memory");
    check(&mut Rig::local(Arc::new(volume), &Services::new()));
}

#[test]
fn a_warm_disk_of_nothing_allocates_nothing() {
    check(&mut Rig::local(Arc::new(NullVolume::new(VOLUME_BYTES)), &Services::new()));
}

#[test]
fn a_warm_disk_on_a_file_allocates_nothing() {
    check_file("a_warm_disk_on_a_file_allocates_nothing", env!("CARGO_TARGET_TMPDIR"));
}

/// Where short requests are done in place, and long ones go through the ring.
#[test]
fn a_warm_disk_on_a_file_in_memory_allocates_nothing() {
    check_file("a_warm_disk_on_a_file_in_memory_allocates_nothing", "/dev/shm");
}

fn check_file(test: &str, folder: &str) {
    let services = Services::new();
    match Uring::new() {
        Ok(uring) => services.insert(Rc::new(RefCell::new(uring))),
        Err(error) => return println!("SKIP {test}: no io_uring here: {error}"),
    }
    let directory = match tempfile::TempDir::new_in(folder) {
        Ok(directory) => directory,
        Err(error) => return println!("SKIP {test}: nothing can be made in {folder}: {error}"),
    };
    let path = directory.path().join("disk.img");
    let options = FileOptions { size_bytes: Some(VOLUME_BYTES), ..FileOptions::new(path) };
    let volume = FileVolume::open(&options).expect("a new file");
    check_for(&mut Rig::local(Arc::new(volume), &services), BATCHES_OF_FILES);
}

/// Writes go into rows, reads come from buffers of the engine, and the map is in memory. The pool
/// is large enough for all that the test writes, so that no collection and no checkpoint begins.
#[test]
fn a_warm_disk_of_a_pool_allocates_nothing() {
    let ring = match StoreRing::new() {
        Ok(ring) => ring,
        Err(error) => {
            let test = "a_warm_disk_of_a_pool_allocates_nothing";
            return println!("SKIP {test}: no io_uring here: {error}");
        }
    };
    let directory = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("room");
    let paths = vec![directory.path().join("p")];
    let (size_bytes, segment_bytes) = (Some(1 << 30), Some(8 << 20));
    let plan = PoolPlan { paths: paths.clone(), size_bytes, segment_bytes, force: false };
    StorePool::create(&plan).expect("a new pool");
    let pool = StorePool::open("p", &paths, StoreSettings::default(), ring).expect("it opens");
    let change = PoolChange::Create { name: "v".to_owned(), blocks: VOLUME_BYTES / 4096 };
    let id = pool.change(change).expect("a new volume");
    let pools = Pools::default();
    let opening = Opening {
        name: "v",
        pools: &pools,
        durability: Durability::Flush,
        read_only: false,
        topology: Topology::default(),
        is_new: true,
        key: None,
    };
    let volume = StoreVolume::open(&pool, id, &opening).expect("it is there");
    let mut rig = Rig::local(Arc::new(volume), &Services::new());
    rig.work(200, 16);
    // The device decides how many pieces of reads are under way together. When there are more than
    // ever before, buffers are made for them, and kept. A request that allocates would do so in
    // each of these turns.
    let allocates = |_: &u32| {
        let before = allocations();
        rig.work(BATCHES_OF_FILES.1, 8);
        allocations() > before
    };
    assert_ne!((0..20).take_while(allocates).count(), 20, "a request allocates");
}

/// A volume that is kept encrypted, with memory for one of the longest writes, and a page for each
/// piece of zeroes.
fn encrypted() -> Arc<EncryptVolume> {
    let secret = std::array::from_fn(|at| at as u8);
    let key = VolumeKey::from_bytes(&secret).expect("two different halves");
    let memory = MemoryVolume::new(VOLUME_BYTES).expect("memory");
    let sizes = Sizes { pool_bytes: 1 << 20, zeroes_bytes: 1024, round_bytes: 64 << 10 };
    Arc::new(EncryptVolume::new(Arc::new(memory), Arc::new(key)).with_sizes(sizes))
}

/// Ciphertext is in memory that was there before, also when there is less than is asked for, and
/// when a round has ciphered enough.
#[test]
fn a_warm_disk_that_is_encrypted_allocates_nothing_here_and_elsewhere() {
    let volume = encrypted();
    check(&mut Rig { discards: false, ..Rig::local(volume.clone(), &Services::new()) });
    let counted = volume.counted();
    assert!(counted.waited > 0 && counted.put_off > 0, "{counted:?}");
    let volume = encrypted();
    check(&mut Rig { discards: false, ..Rig::remote(volume.clone(), true, None) });
    let counted = volume.counted();
    assert!(counted.waited > 0 && counted.put_off > 0, "{counted:?}");
}

/// Plain and sealed: sealing works in place.
#[test]
fn a_warm_disk_of_another_nodes_memory_allocates_nothing() {
    for sealed in [false, true] {
        let volume = MemoryVolume::new(VOLUME_BYTES).expect("memory");
        check(&mut Rig::remote(Arc::new(volume), sealed, None));
    }
}

#[test]
fn a_warm_disk_of_another_nodes_file_allocates_nothing() {
    let directory = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("room");
    for sealed in [false, true] {
        let uring = match Uring::new() {
            Ok(uring) => uring,
            Err(error) => {
                let test = "a_warm_disk_of_another_nodes_file_allocates_nothing";
                return println!("SKIP {test}: no io_uring here: {error}");
            }
        };
        let path = directory.path().join(format!("sealed-{sealed}.img"));
        let options = FileOptions { size_bytes: Some(VOLUME_BYTES), ..FileOptions::new(path) };
        let volume = FileVolume::open(&options).expect("a new file");
        check_for(&mut Rig::remote(Arc::new(volume), sealed, Some(uring)), BATCHES_OF_FILES);
    }
}
