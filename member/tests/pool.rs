//! Cuts, ways back and differences of a real pool's volume.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use member::{PoolTasks, SnapshotChange, VolumeTask, VolumeTaskEnd, VolumeTasks, is_cut_name};
use replica::{CUTS_MAX, ChangedPart, Extent, Place};
use store::{PoolChange, VolumeId};
use tempfile::TempDir;
use volume::backend::Opening;
use volume::backend::store::{PoolPlan, Pools, StorePool, StoreRing, StoreSettings, StoreVolume};
use volume::contract::ChannelBench;
use volume::{Durability, Status, Topology};

const BLOCKS: u64 = 4096;
const BLOCK: usize = 4096;

/// Sectors of a block.
const SECTORS: u64 = 8;

struct PoolBench {
    _home: TempDir,
    pool: Arc<StorePool>,
    volume: VolumeId,
    tasks: PoolTasks,
}

impl PoolBench {
    /// `None`, with a line that says why, where no io_uring can be had.
    fn new(test: &str) -> Option<Self> {
        let ring = match StoreRing::new() {
            Ok(ring) => ring,
            Err(error) => {
                println!("SKIP {test}: no io_uring here: {error}");
                return None;
            }
        };
        let home = TempDir::new().expect("room");
        let paths = vec![home.path().join("p")];
        let (size_bytes, segment_bytes) = (Some(64 << 20), Some(256 << 10));
        let plan = PoolPlan { paths: paths.clone(), size_bytes, segment_bytes, force: false };
        StorePool::create(&plan).expect("a pool");
        let pool = StorePool::open("p", &paths, StoreSettings::default(), ring).expect("it opens");
        let create = PoolChange::Create { name: "alice".to_owned(), blocks: BLOCKS };
        let volume = pool.change(create).expect("a volume");
        let tasks = PoolTasks::new(Arc::clone(&pool), volume);
        Some(Self { _home: home, pool, volume, tasks })
    }

    fn open(&self) -> ChannelBench {
        let opening = Opening {
            name: "alice",
            pools: &Pools::default(),
            durability: Durability::Flush,
            read_only: false,
            topology: Topology::default(),
            is_new: false,
            key: None,
        };
        let volume = StoreVolume::open(&self.pool, self.volume, &opening).expect("it opens");
        ChannelBench::new(&volume, 4)
    }

    fn write(&self, block: u64, byte: u8) {
        let mut bench = self.open();
        assert_eq!(bench.write(block * BLOCK as u64, &[byte; BLOCK]), Status::Done);
        assert_eq!(bench.flush(), Status::Done);
        bench.abandon();
    }

    fn read(&self, block: u64) -> u8 {
        let mut bench = self.open();
        let bytes = bench.read(block * BLOCK as u64, BLOCK).expect("inside");
        bench.abandon();
        assert!(bytes.iter().all(|byte| *byte == bytes[0]));
        bytes[0]
    }

    fn done(&mut self, task: VolumeTask) {
        assert_eq!(self.tasks.carry_out(task.clone()), VolumeTaskEnd::Done, "{task:?}");
    }

    /// All ranges that differ from a cut, and the number of parts.
    fn changed(&mut self, began: u64, cut: Option<Place>) -> (BTreeSet<u64>, u64) {
        let began = Place { reign: 9, counter: began };
        let (mut blocks, mut from, mut parts) = (BTreeSet::new(), 0, 0);
        loop {
            let end = self.tasks.carry_out(VolumeTask::Compare(1, began, cut, from));
            let VolumeTaskEnd::Changed(ChangedPart { extents, next }) = end else {
                panic!("{end:?}");
            };
            let sectors = extents.iter().flat_map(|it: &Extent| it.first()..it.end());
            blocks.extend(sectors.map(|sector| sector / SECTORS));
            parts += 1;
            let Some(next) = next else { return (blocks, parts) };
            assert!(next > from, "each part goes on");
            from = next;
        }
    }

    fn names(&self) -> Vec<String> {
        self.pool.volumes().into_iter().map(|it| it.name).filter(|name| !name.is_empty()).collect()
    }
}

fn cut(counter: u64) -> Place {
    Place { reign: 2, counter }
}

#[test]
fn a_volume_goes_back_to_a_cut_and_the_cuts_behind_it_go() {
    let Some(mut bench) = PoolBench::new("a_volume_goes_back") else { return };
    bench.write(3, 1);
    bench.done(VolumeTask::Cut(cut(1)));
    bench.write(3, 2);
    bench.done(VolumeTask::Cut(cut(2)));
    // A process that ended behind the snapshot makes it once more.
    bench.write(3, 3);
    bench.done(VolumeTask::Cut(cut(2)));
    bench.write(3, 4);
    bench.done(VolumeTask::GoBack(Some(cut(2))));
    assert_eq!(bench.read(3), 3);
    bench.done(VolumeTask::GoBack(Some(cut(1))));
    assert_eq!(bench.read(3), 1);
    assert_eq!(bench.tasks.cuts(), Ok(BTreeSet::from([cut(1)])));
    let end = bench.tasks.carry_out(VolumeTask::GoBack(Some(cut(2))));
    assert!(matches!(&end, VolumeTaskEnd::Failed(why) if why.contains("cut.2.2")), "{end:?}");
    bench.done(VolumeTask::GoBack(None));
    assert_eq!((bench.read(3), bench.tasks.cuts()), (0, Ok(BTreeSet::new())));
    bench.done(VolumeTask::Drop(cut(7)));
}

#[test]
fn snapshots_for_people_stay_and_are_no_cuts() {
    let Some(mut bench) = PoolBench::new("snapshots_for_people") else { return };
    let named = |name: &str| name.to_owned();
    let take = |name: &str| SnapshotChange::Take { name: named(name), at_s: 9 };
    let take = |name: &str| VolumeTask::Snapshot(cut(7), take(name));
    let remove = |name: &str| SnapshotChange::Remove { name: named(name) };
    let remove = |name: &str| VolumeTask::Snapshot(cut(8), remove(name));
    bench.write(3, 1);
    bench.done(VolumeTask::Cut(cut(1)));
    bench.write(3, 2);
    bench.done(take("monday"));
    bench.write(3, 3);
    bench.done(VolumeTask::GoBack(Some(cut(1))));
    assert_eq!((bench.read(3), bench.tasks.cuts()), (1, Ok(BTreeSet::from([cut(1)]))));
    let taken: Vec<_> = bench.names().into_iter().filter(|name| name == "monday.2.7").collect();
    assert_eq!(taken.len(), 1);
    // Names that a hostile node may send.
    let taken = ["cut", "cut.9", "a@b", "p:7", "../a", ""].map(|name| (name, take(name)));
    let removed = ["cut.2.1", "cut.now", "a@b", "p:7", "../a", ""].map(|name| (name, remove(name)));
    for (name, task) in taken.into_iter().chain(removed) {
        let end = bench.tasks.carry_out(task);
        assert!(matches!(&end, VolumeTaskEnd::LeftOut(why) if why.contains(name)), "{end:?}");
    }
    bench.done(remove("monday.2.7"));
    bench.done(remove("monday.2.7"));
    assert!(!bench.names().contains(&"monday.2.7".to_owned()));
}

#[test]
fn differences_come_in_parts_and_leave_nothing_behind() {
    let Some(mut bench) = PoolBench::new("differences_come_in_parts") else { return };
    bench.write(0, 1);
    bench.write(4095, 1);
    bench.done(VolumeTask::Cut(cut(1)));
    // Blocks that lie apart, so that there are several parts.
    let written: BTreeSet<u64> = (0..900).map(|at| at * 4 + 1).collect();
    let mut channel = bench.open();
    for block in &written {
        assert_eq!(channel.write(block * BLOCK as u64, &[7; BLOCK]), Status::Done);
    }
    assert_eq!(channel.flush(), Status::Done);
    channel.abandon();
    drop(channel);
    let (found, parts) = bench.changed(1, Some(cut(1)));
    assert!(found == written && parts > 1, "{} blocks in {parts} parts", found.len());
    let (all, _) = bench.changed(2, None);
    let with_first: BTreeSet<u64> = written.iter().copied().chain([0, 4095]).collect();
    assert_eq!(all, with_first);
    // A difference that was given up is begun anew by the next one.
    let began = Place { reign: 9, counter: 3 };
    let end = bench.tasks.carry_out(VolumeTask::Compare(1, began, None, 0));
    assert!(matches!(end, VolumeTaskEnd::Changed(ChangedPart { next: Some(_), .. })), "{end:?}");
    bench.write(2, 9);
    assert!(bench.changed(4, Some(cut(1))).0.contains(&2));
    assert_eq!(bench.names(), ["alice", "cut.2.1"]);
    // The attempt to join may end in the middle.
    let began = Place { reign: 9, counter: 5 };
    let end = bench.tasks.carry_out(VolumeTask::Compare(1, began, Some(cut(1)), 0));
    assert!(matches!(end, VolumeTaskEnd::Changed(ChangedPart { next: Some(_), .. })), "{end:?}");
    assert!(bench.names().contains(&"cut.now".to_owned()));
    bench.done(VolumeTask::EndCompare(2, began));
    assert!(bench.names().contains(&"cut.now".to_owned()), "that is another one");
    bench.done(VolumeTask::EndCompare(1, began));
    assert_eq!(bench.names(), ["alice", "cut.2.1"]);
    bench.done(VolumeTask::EndCompare(1, began));
    // A cut that an operator has removed is no failure of the member.
    let end = bench.tasks.carry_out(VolumeTask::Compare(1, began, Some(cut(7)), 0));
    assert_eq!(end, VolumeTaskEnd::CutGone);
}

#[test]
fn a_start_finds_the_newest_cuts_and_leaves_other_snapshots_alone() {
    let Some(mut bench) = PoolBench::new("a_start_finds_the_newest") else { return };
    let count = CUTS_MAX as u64 + 3;
    (1..=count).for_each(|counter| bench.done(VolumeTask::Cut(cut(counter))));
    for name in ["cut.2.01", "cut.x.1", "monday", "cut.now"] {
        let (volumes, name) = (vec![bench.volume], name.to_owned());
        bench.pool.change(PoolChange::Snapshot { volumes, name, at_s: 1 }).expect("a snapshot");
    }
    let mut tasks = PoolTasks::new(Arc::clone(&bench.pool), bench.volume);
    let newest = (4..=count).map(cut).collect();
    assert_eq!(tasks.cuts(), Ok(newest));
    let names = bench.names();
    assert!(is_cut_name("cut.2.1") && is_cut_name("cut.now") && !is_cut_name("cuts"));
    assert!(["cut.2.01", "cut.x.1", "monday"].iter().all(|it| names.contains(&it.to_string())));
    assert!(!names.contains(&"cut.now".to_owned()) && !names.contains(&"cut.2.1".to_owned()));
}

/// Another release, or another member, must not take it for a cut that it has as well.
#[test]
fn an_own_cut_has_a_name_of_its_own_and_the_way_back_to_it_is_one() {
    let Some(mut bench) = PoolBench::new("an_own_cut_has_a_name") else { return };
    let own = Place::own_cut(7);
    bench.write(3, 1);
    bench.done(VolumeTask::Cut(cut(1)));
    bench.done(VolumeTask::Cut(own));
    bench.write(3, 2);
    assert_eq!(bench.names(), ["alice", "cut.2.1", "cut.own.7"]);
    let mut tasks = PoolTasks::new(Arc::clone(&bench.pool), bench.volume);
    assert_eq!(tasks.cuts(), Ok([cut(1), own].into()));
    bench.done(VolumeTask::GoBack(Some(own)));
    assert_eq!(bench.read(3), 1);
    bench.done(VolumeTask::Drop(own));
    assert_eq!(bench.names(), ["alice", "cut.2.1"]);
}

/// A volume has grown since a cut: it keeps its size on the way back, and the difference has the
/// new blocks.
#[test]
fn a_volume_that_has_grown_keeps_its_size_on_the_way_back() {
    let Some(mut bench) = PoolBench::new("a_volume_that_has_grown") else { return };
    bench.write(3, 1);
    bench.done(VolumeTask::Cut(cut(1)));
    let (volume, blocks) = (bench.volume, 1000 * BLOCKS);
    bench.pool.change(PoolChange::Resize { volume, blocks }).expect("larger");
    bench.write(3, 2);
    bench.write(blocks - 1, 2);
    let (found, _) = bench.changed(1, Some(cut(1)));
    assert_eq!(found, BTreeSet::from([3, blocks - 1]));
    bench.done(VolumeTask::Cut(cut(2)));
    for (back, first, last) in [(Some(cut(2)), 2, 2), (Some(cut(1)), 1, 0), (None, 0, 0)] {
        bench.done(VolumeTask::GoBack(back));
        assert_eq!((bench.read(3), bench.read(blocks - 1)), (first, last));
        let size = bench.pool.volumes().into_iter().find(|it| it.id == volume);
        assert_eq!(size.map(|it| it.blocks), Some(blocks), "{back:?}");
    }
    // A growth by a command comes during the way back, which would undo it.
    bench.tasks.wanted_bytes().fetch_max((blocks + 1) * BLOCK as u64, SeqCst);
    bench.done(VolumeTask::GoBack(None));
    let size = bench.pool.volumes().into_iter().find(|it| it.id == volume);
    assert_eq!(size.map(|it| it.blocks), Some(blocks + 1));
}
