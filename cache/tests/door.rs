//! The door of a disk: it is not served while a pool or this node's memory says that writes of its
//! volume are in another place than the disk looks at.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use block::RemoteVolume;
use cache::{BLOCK_BYTES, CachePlan, CacheSlot, DirtyOwner, DirtyStorage, DirtyStore};
use cache::{RoundNotes, WriteBackPlan};
use parking_lot::Mutex;
use sidecore::{Services, now_ns};
use virtio::Segment;
use volume::backend::store::{PoolPlan, Pools, StorePool, StoreRing, StoreSettings};
use volume::record::{Record, RecordError, RecordStore, Ticket};
use volume::{Durability, Op, OpenArguments, Status, io_table};

const BLOCKS: u64 = 64;

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The number of the last round of the pools here.
const ROUND: u64 = 5;

#[derive(Debug, Default)]
struct Memory(Mutex<HashMap<String, Record>>);

impl RecordStore for Memory {
    fn load(&self) -> Result<HashMap<String, Record>, RecordError> {
        Ok(self.0.lock().clone())
    }

    fn write(&self, attachment: &str, record: Record) -> Ticket {
        self.0.lock().insert(attachment.to_owned(), record);
        Ticket::ended(Ok(()))
    }
}

impl Memory {
    /// The memory after a round by an attachment, whose guest is there.
    fn marked(attachment: &str) -> Arc<Self> {
        let memory = Self::default();
        let record = Record { epoch: ROUND, born: 1, ..Record::default() };
        memory.write(&format!("{attachment} write-back"), record);
        Arc::new(memory)
    }

    fn is_marked(&self) -> bool {
        self.0.lock().values().any(|it| it.born != 0)
    }
}

/// A pool; `None`, with a line that says why, where no io_uring can be had.
fn pool(home: &tempfile::TempDir, name: &str) -> Option<Arc<StorePool>> {
    let ring = match StoreRing::new() {
        Ok(ring) => ring,
        Err(error) => {
            println!("SKIP: no io_uring here: {error}");
            return None;
        }
    };
    let paths = vec![home.path().join(name)];
    let plan = PoolPlan {
        paths: paths.clone(),
        size_bytes: Some(64 << 20),
        segment_bytes: Some(1 << 20),
        force: false,
    };
    StorePool::create(&plan).unwrap_or_else(|error| panic!("{error}"));
    let pool = StorePool::open(name, &paths, StoreSettings::default(), ring);
    Some(pool.unwrap_or_else(|error| panic!("{error}")))
}

/// Has a disk leave a block and its number in the pool.
fn leave_dirty(pool: &Arc<StorePool>, disk: &str, of: &str) {
    let mut store = DirtyStore::new(pool, (disk, of), (BLOCKS, BLOCKS), Durability::Flush);
    let rest = store.load().expect("it is new");
    store.own(DirtyOwner { epoch: 1, claimant: 7 }).expect("it is owned");
    store.number(ROUND).expect("it is kept");
    let open = OpenArguments { services: &Services::new(), depth: 1 };
    let mut channel = rest.volume.open(&open).expect("it opens");
    let (mut ios, mut done) = (io_table(1), Vec::new());
    let mut memory = vec![1; BLOCK_BYTES as usize];
    let id = ios.take().expect("one at a time");
    let io = &mut ios[id];
    io.reset();
    (io.op, io.offset_bytes, io.len_bytes) = (Op::Write, 0, BLOCK_BYTES as u32);
    io.segments.push(Segment { addr: memory.as_mut_ptr(), len: BLOCK_BYTES as u32 });
    channel.submit(&mut ios, id);
    let until = Instant::now() + PATIENCE;
    while done.is_empty() {
        let _ = channel.poll(&mut ios, now_ns(), &mut done);
        assert!(Instant::now() < until);
    }
    assert_eq!(ios[id].status, Status::Done);
}

/// A disk, its volume and its attachment.
type Line<'a> = (&'a str, &'a str, &'a str);

/// The memory of this volume, and of volumes of its name by other lists of peers.
type Memories<'a> = (Arc<Memory>, &'a [(&'a str, Arc<Memory>)]);

fn slot(
    (disk, volume, attachment): Line<'_>,
    wanted: Option<CachePlan>,
    (own, kin): Memories<'_>,
    pools: &Pools,
) -> CacheSlot {
    let remote = RemoteVolume::new("io1", "root");
    let slot = CacheSlot::new(&remote, disk, (volume, attachment), wanted);
    let kin = kin.iter().map(|(of, it)| ((*of).to_owned(), Arc::clone(it) as _)).collect();
    let notes = RoundNotes::load(own as _, attachment, kin);
    slot.note_rounds_in(|| notes.map_err(|error| error.to_string()));
    slot.have(pools);
    slot
}

fn why(line: Line<'_>, wanted: Option<CachePlan>, of: Memories<'_>, pools: &Pools) -> String {
    slot(line, wanted, of, pools).why_not_ready().unwrap_or_default()
}

/// No cache, a cache and write-back, in the pool that has the writes and in the other pool.
fn plans() -> [Option<CachePlan>; 5] {
    let plan = |pool: &str, write_back| {
        Some(CachePlan { pool: pool.to_owned(), size_bytes: 1 << 20, write_back })
    };
    let write_back = Some(WriteBackPlan { dirty_bytes: 1 << 18, age_ns: 1 });
    [None, plan("p", None), plan("q", None), plan("p", write_back.clone()), plan("q", write_back)]
}

#[test]
fn a_disk_with_another_line_is_not_served_without_the_writes_of_its_former_one() {
    let home = tempfile::tempdir().expect("a directory");
    let Some((p, q)) = pool(&home, "p").zip(pool(&home, "q")) else { return };
    leave_dirty(&p, "alice", "io1/root as alice");
    let pools = Pools::default();
    pools.insert("p", Ok(Arc::clone(&p)));
    pools.insert("q", Ok(Arc::clone(&q)));
    let new = || (Arc::default(), &[][..]);
    for wanted in plans() {
        for line in [
            ("alice", "io1,io9/root", "alice"),
            ("alice", "io9/root", "alice"),
            ("alice", "io1/other", "alice"),
            ("alice", "io1/root", "att"),
        ] {
            let why = why(line, wanted.clone(), new(), &pools);
            assert!(why.contains("of this disk to another volume, by another list"), "{why}");
        }
    }
    let [plain, .., own, other] = plans();
    let line = ("alice", "io1/root", "alice");
    for wanted in [plain, other] {
        let why = why(line, wanted, new(), &pools);
        assert!(why.contains("that its own volume has not"), "{why}");
    }
    let why = why(line, own, new(), &pools);
    assert!(why.contains("its volume is not known yet"), "the door is open: {why}");
    p.close();
    q.close();
}

#[test]
fn a_disk_that_was_renamed_is_known_by_the_attachments_that_the_node_remembers() {
    let home = tempfile::tempdir().expect("a directory");
    let Some(p) = pool(&home, "p") else { return };
    leave_dirty(&p, "alice", "io1/root as att");
    let pools = Pools::default();
    pools.insert("p", Ok(Arc::clone(&p)));
    let line = ("bob", "io1/root", "bob");
    let found = why(line, None, (Memory::marked("att"), &[]), &pools);
    assert!(found.contains("by disk \"alice\""), "{found}");
    let kin = [("io1/root", Memory::marked("att"))];
    let listed = ("bob", "io1,io9/root", "bob");
    let found = why(listed, None, (Arc::default(), &kin), &pools);
    assert!(found.contains("by disk \"alice\""), "{found}");
    p.close();
}

#[test]
fn a_disk_is_not_served_while_the_pool_of_a_marked_note_of_its_volume_is_away() {
    let home = tempfile::tempdir().expect("a directory");
    let Some((p, q)) = pool(&home, "p").zip(pool(&home, "q")) else { return };
    let (away, right) = (Pools::default(), Pools::default());
    // It was made anew.
    away.insert("p", Ok(Arc::clone(&q)));
    right.insert("p", Ok(Arc::clone(&p)));
    let of = ("alice", "io1/root as alice");
    let mut store = DirtyStore::new(&p, of, (BLOCKS, BLOCKS), Durability::Flush);
    store.number(ROUND).expect("it is kept");
    let line = ("bob", "io1/root", "bob");
    let own = Memory::marked("alice");
    let found = why(line, None, (Arc::clone(&own), &[]), &away);
    assert!(found.contains("by the attachment \"alice\", and no open pool"), "{found}");
    // The right pool has nothing of it.
    assert_eq!(why(line, None, (Arc::clone(&own), &[]), &right), "");
    assert!(own.is_marked(), "its guest may be there");

    // By other lists of peers: one that has a peer in common, or the same attachment.
    for (former, line, is_served) in [
        ("io1/root", ("bob", "io1,io9/root", "bob"), false),
        ("io1/root", ("alice", "io9/root", "alice"), false),
        ("io1/root", ("bob", "io9/root", "bob"), true),
    ] {
        let kin = [(former, Memory::marked("alice"))];
        let found = why(line, None, (Arc::default(), &kin), &away);
        assert_eq!(found.is_empty(), is_served, "{line:?}: {found}");
        assert!(is_served || found.contains("had write-back to \"io1/root\""), "{found}");
        assert!(kin[0].1.is_marked());
    }
    // A disk that goes on with another list leaves no mark that would hold it up later.
    let kin = [("io1/root", Memory::marked("alice"))];
    let line = ("alice", "io1,io9/root", "alice");
    assert_eq!(why(line, None, (Arc::default(), &kin), &right), "");
    assert!(!kin[0].1.is_marked());
    p.close();
    q.close();
}

#[test]
fn a_removal_gives_up_writes_that_no_open_pool_has_and_no_others() {
    let home = tempfile::tempdir().expect("a directory");
    let Some((p, q)) = pool(&home, "p").zip(pool(&home, "q")) else { return };
    leave_dirty(&p, "alice", "io1/root as alice");
    let (away, right) = (Pools::default(), Pools::default());
    away.insert("q", Ok(Arc::clone(&q)));
    right.insert("p", Ok(Arc::clone(&p)));
    for line in [("alice", "io1/root", "alice"), ("al", "io1/root", "alice")] {
        let own = Memory::marked("alice");
        let found = slot(line, None, (Arc::clone(&own), &[]), &right);
        assert!(found.why_not_ready().is_some() && !found.misses_writes(&right), "{line:?}");
        assert_eq!(found.give_up_missing(&right), Ok(false));
        assert!(own.is_marked(), "{line:?}");
        let found = slot(line, None, (Arc::clone(&own), &[]), &away);
        assert!(found.misses_writes(&away), "{line:?}");
        assert_eq!(found.give_up_missing(&away), Ok(true));
        assert!(!own.is_marked());
        // The pool that comes back is an older one.
        let last = own.find("alice write-back").expect("it is read").expect("it is there").epoch;
        assert!(last > ROUND + 1, "a kill may have left the pool one ahead: {last}");
    }
    p.close();
    q.close();
}
