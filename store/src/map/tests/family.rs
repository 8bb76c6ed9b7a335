//! Snapshots, clones and removals, one by one: which page is freed when, and what a change costs.

use super::medium::Medium;
use crate::api::{PoolChange, VolumeId};
use crate::format::{LogRecord, TableKind};
use crate::map::{Applied, Located};

impl Medium {
    fn create(&mut self, name: &str) -> VolumeId {
        self.change(PoolChange::Create { name: name.to_owned(), blocks: 1 << 33 })
    }

    fn take(&mut self, volumes: &[VolumeId], name: &str) -> VolumeId {
        let (volumes, name) = (volumes.to_vec(), name.to_owned());
        self.change(PoolChange::Snapshot { volumes, name, at_s: 5 })
    }

    fn clone_of(&mut self, snapshot: VolumeId, name: &str) -> VolumeId {
        self.change(PoolChange::Clone { snapshot, name: name.to_owned() })
    }

    fn remove(&mut self, volume: VolumeId) {
        self.change(PoolChange::Remove { volume });
    }

    fn used(&self) -> u64 {
        self.map.used_pages()
    }

    fn reads(&mut self, volume: VolumeId, blocks: [u64; 3]) -> [Option<u64>; 3] {
        blocks.map(|block| self.read(volume, block).unwrap())
    }
}

fn medium() -> Medium {
    Medium::new(3, 512, 128)
}

#[test]
fn an_overwritten_page_is_freed_at_once_unless_a_snapshot_has_it() {
    let mut medium = medium();
    let volume = medium.create("a");
    medium.write(volume, 0, 1);
    medium.write(volume, 0, 2);
    assert_eq!(medium.used(), 1);
    let snapshot = medium.take(&[volume], "s");
    medium.write(volume, 0, 3);
    medium.write(volume, 0, 4);
    assert_eq!(medium.used(), 2);
    assert_eq!((medium.read(snapshot, 0), medium.read(volume, 0)), (Ok(Some(2)), Ok(Some(4))));
    medium.remove(snapshot);
    medium.remove_all();
    assert_eq!(medium.used(), 1);
    medium.write(volume, 0, 5);
    assert_eq!(medium.used(), 1);
    medium.check_tables();
}

#[test]
fn the_snapshot_in_the_middle_leaves_what_its_neighbours_have() {
    let mut medium = medium();
    let volume = medium.create("a");
    medium.write(volume, 0, 1);
    medium.write(volume, 1, 2);
    medium.write(volume, 1 << 20, 3);
    medium.take(&[volume], "first");
    medium.write(volume, 1, 4);
    medium.write(volume, 1 << 20, 5);
    let middle = medium.take(&[volume], "middle");
    medium.write(volume, 1 << 20, 6);
    let last = medium.take(&[volume], "last");
    assert_eq!(medium.used(), 6);
    medium.remove(middle);
    medium.remove_all();
    assert_eq!(medium.used(), 5, "only the page 5 was the middle's alone");
    assert_eq!(medium.reads(last, [0, 1, 1 << 20]), [Some(1), Some(4), Some(6)]);
    medium.check_tables();
}

#[test]
fn a_removed_snapshot_with_two_children_goes_when_it_has_one() {
    let mut medium = medium();
    let volume = medium.create("a");
    medium.write(volume, 0, 1);
    let snapshot = medium.take(&[volume], "s");
    let copy = medium.clone_of(snapshot, "b");
    medium.write(volume, 0, 2);
    medium.remove(snapshot);
    assert!(!medium.remove_more(), "both volumes come from it");
    assert_eq!(medium.map.volumes().len(), 3);
    assert_eq!(medium.read(copy, 0), Ok(Some(1)));
    assert_eq!(medium.read(snapshot, 0), Ok(None), "a removed snapshot has no blocks");
    medium.remove(copy);
    medium.remove_all();
    assert_eq!((medium.used(), medium.map.volume_count()), (1, 1));
    medium.check_tables();
}

#[test]
fn a_volume_frees_as_its_own_what_a_half_removed_parent_has_left_to_it() {
    let mut medium = medium();
    let volume = medium.create("a");
    for leaf in 0..4 {
        for block in 0..60 {
            medium.write(volume, leaf * 512 + block, 1);
        }
    }
    let snapshot = medium.take(&[volume], "s");
    // All leaves differ from the snapshot's.
    for leaf in 0..4 {
        medium.write(volume, leaf * 512 + 63, 2);
    }
    medium.remove(snapshot);
    let before = medium.used();
    let record = LogRecord::Removal { snapshot: snapshot.0, block: 1024 };
    assert_eq!(medium.apply(record, None), Ok(Applied::Done));
    assert_eq!(medium.used(), before, "the volume has all pages of the snapshot");
    medium.write(volume, 0, 3);
    assert_eq!(medium.used(), before, "below the removal's place the old page is freed");
    medium.write(volume, 3 * 512, 3);
    assert_eq!(medium.used(), before + 1, "above it the removal will free the old page");
    medium.remove_all();
    assert_eq!(medium.used(), before);
    medium.check_tables();
}

#[test]
fn a_group_has_one_moment() {
    let mut medium = medium();
    let (a, b) = (medium.create("a"), medium.create("b"));
    medium.write(a, 0, 1);
    medium.write(b, 0, 2);
    let first = medium.take(&[b, a], "s");
    medium.write(a, 0, 3);
    medium.write(b, 0, 4);
    let second = VolumeId(first.0 + 1);
    assert_eq!((medium.read(first, 0), medium.read(second, 0)), (Ok(Some(2)), Ok(Some(1))));
    let of: Vec<_> = medium.map.volumes().iter().filter_map(|one| one.of).collect();
    assert_eq!(of, [b, a]);
}

#[test]
fn a_rollback_keeps_the_snapshots_and_frees_the_rest() {
    let mut medium = medium();
    let volume = medium.create("a");
    medium.write(volume, 0, 1);
    let first = medium.take(&[volume], "first");
    medium.write(volume, 0, 2);
    let second = medium.take(&[volume], "second");
    medium.write(volume, 0, 3);
    medium.change(PoolChange::Resize { volume, blocks: 4 });
    medium.change(PoolChange::Rollback { volume, snapshot: first });
    assert_eq!(medium.map.volume_blocks(volume), Some(1 << 33), "the size is the snapshot's");
    assert_eq!((medium.read(volume, 0), medium.read(second, 0)), (Ok(Some(1)), Ok(Some(2))));
    medium.remove_all();
    assert_eq!(medium.used(), 2);
    let back = PoolChange::Rollback { volume, snapshot: second };
    assert!(medium.map.check(&back).is_err(), "the second is not in the volume's line now");
    medium.check_tables();
}

/// Neither the time nor the memory of a change depends on the size of a volume.
#[test]
fn changes_of_the_catalog_touch_no_page() {
    let mut medium = medium();
    let volume = medium.create("a");
    for block in 0..3000 {
        medium.write(volume, block * 700, 1);
    }
    let at_start = medium.take(&[volume], "start");
    medium.checkpoint();
    let loads = medium.loads;
    medium.evict(0);
    let snapshot = medium.take(&[volume], "s");
    let copy = medium.clone_of(snapshot, "b");
    medium.change(PoolChange::Rollback { volume, snapshot: at_start });
    medium.change(PoolChange::Clear { volume: copy });
    medium.remove(snapshot);
    medium.change(PoolChange::Resize { volume, blocks: 1 << 34 });
    medium.change(PoolChange::Rename { volume, name: "c".to_owned() });
    assert_eq!((medium.loads, medium.map.dirty_blocks()), (loads, 0));
    // A smaller size copies the nodes on the way to its end, and needs their entries.
    medium.change(PoolChange::Resize { volume, blocks: 700 * 1500 });
    assert!(medium.loads - loads <= 12, "{} loads", medium.loads - loads);
    assert!(medium.map.dirty_blocks() <= 12, "{} dirty blocks", medium.map.dirty_blocks());
    medium.remove_all();
    medium.check_tables();
}

/// A removal leaps over what is shared: its cost is that of the difference.
#[test]
fn the_removal_of_a_snapshot_reads_only_what_differs() {
    let mut medium = medium();
    let volume = medium.create("a");
    for block in 0..3000 {
        medium.write(volume, block * 700, 1);
    }
    let snapshot = medium.take(&[volume], "s");
    medium.write(volume, 700, 2);
    medium.checkpoint();
    medium.evict(0);
    let loads = medium.loads;
    medium.remove(snapshot);
    medium.remove_all();
    assert!(medium.loads - loads <= 24, "{} loads", medium.loads - loads);
    assert_eq!(medium.used(), 3000);
    medium.check_tables();
}

#[test]
fn a_smaller_volume_that_grows_again_has_zeroes_in_its_tail() {
    let mut medium = medium();
    let volume = medium.create("a");
    for block in [0, 99, 100, 511, 512, 1 << 19, 1 << 32] {
        medium.write(volume, block, 1);
    }
    medium.change(PoolChange::Resize { volume, blocks: 100 });
    medium.change(PoolChange::Resize { volume, blocks: 1 << 33 });
    let read = |medium: &mut Medium, block| medium.read(volume, block).unwrap();
    assert_eq!([0, 99].map(|block| read(&mut medium, block)), [Some(1); 2]);
    assert_eq!([100, 511, 512, 1 << 19, 1 << 32].map(|block| read(&mut medium, block)), [None; 5]);
    medium.remove_all();
    assert_eq!(medium.used(), 2);
    medium.check_tables();
}

#[test]
fn a_zeroed_volume_has_no_node_left() {
    let mut medium = medium();
    let volume = medium.create("a");
    medium.write(volume, 5, 1);
    medium.write(volume, 1 << 32, 1);
    assert_eq!(medium.try_zero(volume, 0, 64), Ok(Applied::Done));
    assert_eq!(medium.try_zero(volume, 1 << 32, 1), Ok(Applied::Done));
    assert_eq!((medium.used(), medium.map.used_nodes()), (0, 0));
    let located = medium.run(|map, _| map.locate(volume, 5));
    assert_eq!(located, Ok(Located::Hole));
}

#[test]
fn numbers_of_freed_pages_are_used_again() {
    let mut medium = Medium::new(3, 512, 6);
    let volume = medium.create("a");
    let size = |medium: &Medium| medium.map.pages.table(TableKind::Data).numbers();
    for round in 0..300 {
        (0..20).for_each(|block| medium.write(volume, block * 600, round));
    }
    assert!(size(&medium) < 60, "{} numbers for 20 pages", size(&medium));
    for block in 0..600 {
        medium.write(volume, block, 1);
    }
    let full = size(&medium);
    for _ in 0..3 {
        medium.change(PoolChange::Clear { volume });
        medium.remove_all();
        medium.checkpoint();
        medium.open_again();
        for block in 0..600 {
            medium.write(volume, block, 2);
        }
    }
    assert!(size(&medium) <= full + full / 4, "{full} numbers became {}", size(&medium));
    medium.check_tables();
}
