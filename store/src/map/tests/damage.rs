//! Damaged pages of the map: each has an answer, and no other block suffers.

use super::medium::Medium;
use crate::api::{PoolChange, VolumeId};
use crate::format::TableKind;
use crate::map::page::{TreeWord, set_node_word};
use crate::map::{Applied, MapError, MapPage};

const FAR: u64 = 1 << 30;

fn medium() -> (Medium, VolumeId) {
    let mut medium = Medium::new(1, 0, 128);
    let name = "a".to_owned();
    let volume = medium.change(PoolChange::Create { name, blocks: FAR + 1000 });
    medium.write(volume, 1, 11);
    medium.write(volume, FAR, 12);
    (medium, volume)
}

impl Medium {
    fn damage(&mut self, page: MapPage) {
        let place = self.place_of(page).expect("the page was written");
        self.damaged.insert(place);
        self.evict(0);
    }

    fn snapshot(&mut self, volume: VolumeId, name: &str) -> VolumeId {
        let (volumes, name) = (vec![volume], name.to_owned());
        self.change(PoolChange::Snapshot { volumes, name, at_s: 0 })
    }
}

/// The leaf of the first block: leaves are made before the nodes above them.
const LEAF: MapPage = MapPage::Node(1);

#[test]
fn a_damaged_leaf_costs_its_own_blocks() {
    let (mut medium, volume) = medium();
    medium.checkpoint();
    medium.damage(LEAF);
    assert_eq!(medium.read(volume, 1), Err(MapError::Damaged));
    assert_eq!(medium.read(volume, 300), Err(MapError::Damaged));
    assert_eq!(medium.try_write(volume, 1, 13), Err(MapError::Damaged));
    assert_eq!(medium.try_zero(volume, 0, 64), Err(MapError::Damaged));
    assert_eq!(medium.read(volume, FAR), Ok(Some(12)));
    medium.write(volume, 512, 14);
    assert_eq!(medium.read(volume, 512), Ok(Some(14)));
    medium.checkpoint();
    medium.open_again();
    assert_eq!(medium.read(volume, 1), Err(MapError::Damaged));
    assert_eq!(medium.read(volume, 512), Ok(Some(14)));
}

#[test]
fn a_removal_leaps_over_a_damaged_leaf_and_loses_only_its_space() {
    let (mut medium, volume) = medium();
    let snapshot = medium.snapshot(volume, "s");
    medium.write(volume, 1, 21);
    medium.write(volume, FAR, 22);
    medium.checkpoint();
    medium.damage(LEAF);
    medium.change(PoolChange::Remove { volume: snapshot });
    medium.remove_all();
    assert_eq!(medium.map.volume_count(), 1);
    assert_eq!((medium.read(volume, 1), medium.read(volume, FAR)), (Ok(Some(21)), Ok(Some(22))));
    // The page of the damaged leaf is lost space; the leaf itself is not.
    assert_eq!(medium.map.used_pages(), 3);
    medium.change(PoolChange::Remove { volume });
    medium.remove_all();
    assert_eq!((medium.map.used_pages(), medium.map.used_nodes()), (1, 0));
}

#[test]
fn a_volume_gets_smaller_over_a_damaged_leaf() {
    let (mut medium, volume) = medium();
    medium.checkpoint();
    medium.damage(LEAF);
    medium.change(PoolChange::Resize { volume, blocks: 100 });
    medium.remove_all();
    medium.change(PoolChange::Resize { volume, blocks: FAR + 1000 });
    assert_eq!(medium.read(volume, 1), Err(MapError::Damaged));
    assert_eq!(medium.read(volume, FAR), Ok(None));
    medium.change(PoolChange::Clear { volume });
    medium.write(volume, 1, 15);
    assert_eq!(medium.read(volume, 1), Ok(Some(15)));
}

#[test]
fn an_acknowledged_write_whose_number_is_damaged_reads_as_lost_and_never_as_before() {
    let (mut medium, volume) = medium();
    medium.checkpoint();
    let table = MapPage::Table { kind: TableKind::Data, level: 0, index: 0 };
    medium.write(volume, 2, 13);
    medium.write(volume, 1, 14);
    medium.damage(table);
    medium.open_again();
    // The old pages have their entries in the same block, so they are not readable either.
    for block in [1, 2] {
        assert_eq!(medium.read(volume, block), Ok(Some(0)), "a lost page");
    }
    assert_eq!(medium.read(volume, FAR), Err(MapError::Damaged));
    // Other numbers are taken from here on.
    medium.write(volume, 1, 15);
    medium.write(volume, FAR, 16);
    assert_eq!((medium.read(volume, 1), medium.read(volume, FAR)), (Ok(Some(15)), Ok(Some(16))));
    medium.checkpoint();
    medium.open_again();
    assert_eq!((medium.read(volume, 1), medium.read(volume, FAR)), (Ok(Some(15)), Ok(Some(16))));
}

#[test]
fn a_pool_with_a_damaged_table_of_nodes_still_takes_new_volumes() {
    let (mut medium, volume) = medium();
    medium.checkpoint();
    medium.damage(MapPage::Table { kind: TableKind::Nodes, level: 0, index: 0 });
    assert_eq!(medium.try_write(volume, 1, 13), Err(MapError::Damaged));
    let other = medium.change(PoolChange::Create { name: "b".to_owned(), blocks: 10 });
    medium.write(other, 1, 14);
    assert_eq!(medium.read(other, 1), Ok(Some(14)));
    medium.change(PoolChange::Remove { volume });
    medium.remove_all();
    medium.checkpoint();
    medium.open_again();
    assert_eq!(medium.read(other, 1), Ok(Some(14)));
}

#[test]
fn a_write_that_failed_does_not_give_its_number_away_before_two_checkpoints() {
    let (mut medium, volume) = medium();
    medium.checkpoint();
    medium.damage(LEAF);
    let mut next = || medium.run(|map, _| map.take_number()).unwrap();
    let first = next();
    let record =
        crate::format::LogRecord::Write { volume: volume.0, block: 1, number: first, crc: 1 };
    assert_eq!(medium.apply(record, None), Err(MapError::Damaged));
    let free = medium.map.pages.table(TableKind::Data).ready().to_vec();
    assert!(!free.contains(&first), "a replay may give it to this write");
    for _ in 0..4 {
        medium.checkpoint();
    }
    assert_eq!(medium.run(|map, _| map.take_number()), Ok(first));
    assert_eq!(medium.try_write(volume, FAR, 13), Ok(Applied::Done));
}

/// The checks of a hostile tree are right, and each page is there.
#[test]
fn a_tree_that_comes_back_to_itself_is_damaged() {
    // The first volume has the nodes 1 to 4, from its leaf to its root.
    for below in [2, 3, 4] {
        let (mut medium, volume) = medium();
        let node = medium.map.pages.change(MapPage::Node(2));
        set_node_word(node, 0, TreeWord::new(1, below));
        assert_eq!(medium.try_write(volume, 1, 13), Err(MapError::Damaged));
        assert_eq!(medium.try_zero(volume, 0, 64), Err(MapError::Damaged));
        assert_eq!(medium.try_write(volume, FAR, 13), Ok(Applied::Done));
        medium.change(PoolChange::Remove { volume });
        medium.remove_all();
    }
}
