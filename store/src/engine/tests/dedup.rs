//! Pages with the same content share it, and can go in any order.

use super::pool::TestPool;
use crate::api::{PoolChange, PoolError, VolumeId};
use crate::contents::DedupOptions;
use crate::engine::{DamagedBlock, PoolStatus, ScrubPace};
use crate::pack::PageCompression;

const OPTIONS: DedupOptions = DedupOptions { memory_bytes: 1 << 20, hash_bits: 64 };

/// Blocks that fill the rest of a segment, with contents of their own.
const FILLER: usize = 140;

/// The block of a content: 0 is zeroes.
fn fill(content: u64, page: &mut [u8]) {
    for (at, word) in page.chunks_exact_mut(8).enumerate() {
        let value = content.wrapping_mul(0x9e37_79b9_7f4a_7c15 + at as u64 % 100);
        word.copy_from_slice(&value.to_le_bytes());
    }
}

impl TestPool {
    fn put(&mut self, volume: VolumeId, block: u64, contents: &[u64]) {
        let blocks = contents.len() as u32;
        let written = self.wait(|engine, tag| {
            engine.write(tag, volume, block, blocks, &mut |index, page| {
                fill(contents[index as usize], &mut page.0);
            })
        });
        written.1.expect("a write");
    }

    fn has(&mut self, volume: VolumeId, block: u64, content: u64) {
        let (tag, result) = self.wait(|engine, tag| engine.read(tag, volume, block, 1));
        result.unwrap_or_else(|error| panic!("block {block} of {volume:?}: {error}"));
        let mut expected = [0; 4096];
        fill(content, &mut expected);
        assert!(self.bytes(tag) == expected, "block {block} of {volume:?} is not {content}");
    }

    /// Looks for pages with the same content until none is left.
    fn shared(&mut self) -> PoolStatus {
        self.shared_with(OPTIONS)
    }

    fn shared_with(&mut self, options: DedupOptions) -> PoolStatus {
        self.fill_segments();
        self.engine.set_dedup(Some(options));
        self.rest();
        self.engine.status()
    }

    /// Fills the segment that is being written, which an idle pool does not look at.
    fn fill_segments(&mut self) {
        let volumes = self.engine.volumes();
        let known = volumes.iter().find(|volume| volume.name == "filler").map(|volume| volume.id);
        let filler = known.unwrap_or_else(|| self.create("filler", FILLER as u64));
        let first = 1 << 50 | self.engine.status().checkpoint << 40 | self.now_ns;
        let contents: Vec<u64> = (0..FILLER as u64).map(|at| first + at).collect();
        self.put(filler, 0, &contents);
    }

    fn remove_version(&mut self, volume: VolumeId) {
        self.change(PoolChange::Remove { volume }).expect("a removal");
        self.rest();
    }
}

/// Aliases, pages of zeroes, shared pages, and pages that are kept for their aliases.
fn counts(status: &PoolStatus) -> (u64, u64, u64, u64) {
    let shared = status.shared;
    (shared.aliases, shared.zeroes, shared.shared, shared.kept)
}

fn pool() -> (TestPool, VolumeId) {
    let mut pool = TestPool::new(1, 64, 64);
    let disk = pool.create("disk", 1000);
    (pool, disk)
}

#[test]
fn a_hundred_copies_of_an_image_take_the_space_of_one() {
    let mut pool = TestPool::new(2, 160, 64);
    let image: Vec<u64> = (1..=64).collect();
    let disks: Vec<VolumeId> =
        (0..100).map(|number| pool.create(&format!("disk{number}"), 64)).collect();
    for &disk in &disks {
        pool.put(disk, 0, &image);
    }
    let before = pool.engine.status();
    assert_eq!((before.counters.hashed_pages, before.data_blocks), (0, 6400));
    let after = pool.shared();
    assert_eq!(counts(&after), (6336, 0, 64, 0));
    assert_eq!((after.data_blocks, after.counters.different_pages), (6400 + 140, 0));
    let map = after.used_blocks - 64 - 140;
    assert!(map < 800, "{} blocks are used for 64, and for the map", after.used_blocks);
    // The index is empty after an opening, and all that was shared stays.
    let mut pool = pool.close_and_open(2);
    assert_eq!(counts(&pool.engine.status()), (6336, 0, 64, 0));
    assert_eq!(counts(&pool.shared()), (6336, 0, 64, 0));
    for &disk in &disks {
        (0..64).for_each(|block| pool.has(disk, block, image[block as usize]));
    }
    for (left, &disk) in (0..100).rev().zip(&disks) {
        pool.remove_version(disk);
        assert_eq!(pool.engine.status().data_blocks, 64 * left + 140);
    }
    assert!(pool.engine.status().shared.is_none());
}

#[test]
fn each_order_of_frees_gives_all_back() {
    for first in 0..3 {
        for second in (0..3).filter(|&second| second != first) {
            let (mut pool, disk) = pool();
            pool.put(disk, 10, &[5, 5, 5]);
            pool.put(disk, 20, &[6]);
            assert_eq!(counts(&pool.shared()), (2, 0, 1, 0));
            pool.zero(disk, 10 + first, 1);
            pool.rest();
            let left: Vec<u64> = (0..3).filter(|&block| block != first).collect();
            left.iter().for_each(|block| pool.has(disk, 10 + block, 5));
            let kept = pool.engine.status().shared.kept;
            // A kill in between: the replay comes to the same counts.
            let mut pool = pool.reopened(2);
            assert_eq!(pool.engine.status().shared.kept, kept);
            pool.put(disk, 10 + second, &[7]);
            pool.rest();
            let last = 3 - first - second;
            pool.has(disk, 10 + last, 5);
            pool.has(disk, 10 + second, 7);
            pool.zero(disk, 10 + last, 1);
            let mut pool = pool.close_and_open(3);
            pool.has(disk, 20, 6);
            let status = pool.engine.status();
            assert_eq!((counts(&status), status.data_blocks), ((0, 0, 0, 0), 2 + 140));
        }
    }
}

/// The page that is shared, and its aliases, in a snapshot, its volume and a clone.
#[test]
fn snapshots_and_clones_of_shared_pages_go_in_any_order() {
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    for order in orders {
        let (mut pool, disk) = pool();
        pool.put(disk, 0, &[1, 2, 1, 2, 3]);
        let snapshot = pool.snapshot(disk, "s");
        pool.put(disk, 5, &[1, 2, 4]);
        let change = PoolChange::Clone { snapshot, name: "clone".into() };
        let clone = pool.change(change).expect("a clone");
        pool.put(clone, 3, &[4, 1]);
        assert_eq!(counts(&pool.shared()), (6, 0, 3, 0));
        pool.put(disk, 0, &[9]);
        pool.zero(disk, 2, 1);
        pool.rest();
        let check = |pool: &mut TestPool, version: VolumeId| {
            let contents: &[u64] = match version {
                _ if version == disk => &[9, 2, 0, 2, 3, 1, 2, 4],
                _ if version == snapshot => &[1, 2, 1, 2, 3, 0, 0, 0],
                _ => &[1, 2, 1, 4, 1, 0, 0, 0],
            };
            (0..8).for_each(|block| pool.has(version, block, contents[block as usize]));
        };
        let mut left = vec![disk, snapshot, clone];
        let gone = order.map(|at| left[at]);
        for version in gone {
            left.iter().for_each(|&version| check(&mut pool, version));
            pool.remove_version(version);
            left.retain(|&other| other != version);
            pool = pool.reopened(3);
            pool.rest();
        }
        let status = pool.engine.status();
        assert_eq!((counts(&status), status.data_blocks), ((0, 0, 0, 0), 140), "{order:?}");
        assert_eq!(pool.engine.core.map.contradictions(), 0);
    }
}

#[test]
fn contents_whose_hashes_fall_together_are_never_shared() {
    for hash_bits in [0, 1, 4] {
        let (mut pool, disk) = pool();
        let contents: Vec<u64> = (0..200).map(|at| 1 + at % 120).collect();
        pool.put(disk, 0, &contents);
        let status = pool.shared_with(DedupOptions { memory_bytes: 1 << 16, hash_bits });
        assert!(status.counters.different_pages > 50, "{:?}", status.counters);
        assert!(status.dedup.index_pages <= 1 << hash_bits);
        (0..200).for_each(|block| pool.has(disk, block, contents[block as usize]));
    }
}

#[test]
fn a_full_index_finds_what_it_has_room_for() {
    let (mut pool, disk) = pool();
    let near: Vec<u64> = (0..200).map(|at| 1 + at / 2).collect();
    pool.put(disk, 0, &near);
    pool.put(disk, 200, &near);
    let status = pool.shared_with(DedupOptions { memory_bytes: 64, hash_bits: 64 });
    assert_eq!((status.dedup.index_pages, status.dedup.index_pages_max), (8, 8));
    // Each of two neighbours is found, and not the blocks that are 200 blocks away.
    assert_eq!(counts(&status), (200, 0, 200, 0));
    (0..400).for_each(|block| pool.has(disk, block, near[block as usize % 200]));
}

#[test]
fn zeroes_that_were_written_are_stored_nowhere() {
    let (mut pool, disk) = pool();
    pool.put(disk, 0, &[0; 100]);
    pool.put(disk, 100, &[1]);
    let snapshot = pool.snapshot(disk, "s");
    let before = pool.engine.status();
    let after = pool.shared();
    assert_eq!(counts(&after), (0, 100, 0, 0));
    assert_eq!((after.data_blocks, before.data_blocks), (101 + 140, 101));
    assert!(after.used_blocks <= before.used_blocks + 50);
    pool.put(disk, 50, &[2]);
    pool.has(disk, 50, 2);
    pool.has(snapshot, 50, 0);
    pool.has(disk, 51, 0);
    pool.remove_version(snapshot);
    assert_eq!(counts(&pool.engine.status()), (0, 99, 0, 0));
    pool.zero(disk, 0, 100);
    let pool = pool.reopened(2);
    assert!(pool.engine.status().shared.is_none());
}

#[test]
fn shared_pages_stay_when_the_search_is_switched_off() {
    let (mut pool, disk) = pool();
    pool.put(disk, 0, &[1, 1, 2]);
    assert_eq!(counts(&pool.shared()), (1, 0, 1, 0));
    pool.engine.set_dedup(None);
    pool.put(disk, 3, &[2, 2, 1]);
    pool.fill_segments();
    pool.rest();
    let status = pool.engine.status();
    assert_eq!((counts(&status), status.dedup.is_on), ((1, 0, 1, 0), false));
    // Switched on again, it looks at all pages.
    assert_eq!(counts(&pool.shared()), (4, 0, 2, 0));
}

/// A shared page is compressed once, and its aliases with it.
#[test]
fn a_shared_page_is_packed_for_all() {
    let (mut pool, disk) = pool();
    let compression = Some(PageCompression::Lz4);
    pool.change(PoolChange::Compression { volume: disk, compression }).expect("a change");
    let contents: Vec<u64> = (0..300).map(|at| 1 + at % 30).collect();
    pool.put(disk, 0, &contents[..200]);
    pool.put(disk, 200, &contents[200..]);
    let status = pool.shared();
    assert_eq!(counts(&status), (270, 0, 30, 0));
    assert_eq!(status.packed_pages, 30);
    (0..300).for_each(|block| pool.has(disk, block, contents[block as usize]));
    // Those that are written later find the packed pages.
    pool.put(disk, 400, &contents[..200]);
    pool.put(disk, 600, &contents[200..]);
    let status = pool.shared();
    assert_eq!((counts(&status), status.packed_pages), ((570, 0, 30, 0), 30));
    (0..300).for_each(|block| pool.has(disk, 400 + block, contents[block as usize]));
}

#[test]
fn damage_of_a_shared_page_costs_all_of_its_blocks_and_a_scrub_names_them() {
    let (mut pool, disk) = pool();
    let other = pool.create("other", 10);
    pool.put(disk, 0, &[1, 2, 3]);
    pool.put(other, 4, &[2, 2]);
    pool.put(other, 8, &[4]);
    assert_eq!(counts(&pool.shared()), (2, 0, 1, 0));
    let mut page = [0; 4096];
    fill(2, &mut page);
    let copies = pool.devices.blocks.iter_mut().flatten().filter(|block| block.0 == page);
    // Old copies of aliases are on the device as well, and nothing reads them.
    assert_eq!(copies.map(|block| block.0[7] ^= 1).count(), 3);
    for (volume, block) in [(disk, 1), (other, 4), (other, 5)] {
        let read = pool.wait(|engine, tag| engine.read(tag, volume, block, 1)).1;
        assert_eq!(read, Err(PoolError::Damaged { block }));
    }
    pool.has(disk, 0, 1);
    pool.has(other, 8, 4);
    pool.engine.scrub(Some(ScrubPace::of(1_000_000)));
    pool.rest();
    let status = pool.engine.status().scrub;
    assert_eq!((status.damaged_blocks, status.checked_blocks), (1, status.total_blocks - 1));
    let mut found = status.found;
    found.sort_by_key(|found| (found.volume, found.block));
    let at = |volume, block| DamagedBlock { volume, block };
    assert_eq!(found, [at(disk, 1), at(other, 4), at(other, 5)]);
    // Written again, a block is whole; its aliases stay damaged, until they are written as well.
    pool.put(disk, 1, &[2]);
    pool.has(disk, 1, 2);
    let read = pool.wait(|engine, tag| engine.read(tag, other, 4, 1)).1;
    assert_eq!(read, Err(PoolError::Damaged { block: 4 }));
    // A damaged page is shared with no other, and is not found any more.
    assert_eq!(counts(&pool.shared()), (2, 0, 1, 1));
    pool.put(other, 4, &[2, 2]);
    pool.engine.set_dedup(None);
    assert_eq!(counts(&pool.shared()), (2, 0, 1, 0));
    [4, 5].into_iter().for_each(|block| pool.has(other, block, 2));
}

/// A block whose place has another page's content is damaged, and must not become its alias.
#[test]
fn a_page_that_was_exchanged_is_damage_and_no_alias() {
    let (mut pool, disk) = pool();
    pool.put(disk, 0, &[1, 2, 3]);
    pool.rest();
    let (mut one, mut two) = ([0; 4096], [0; 4096]);
    fill(1, &mut one);
    fill(2, &mut two);
    let mut blocks = pool.devices.blocks.iter_mut().flatten();
    blocks.find(|block| block.0 == two).expect("it is there").0 = one;
    assert_eq!(counts(&pool.shared()), (0, 0, 0, 0));
    pool.has(disk, 0, 1);
    let read = pool.wait(|engine, tag| engine.read(tag, disk, 1, 1)).1;
    assert_eq!(read, Err(PoolError::Damaged { block: 1 }));
}

/// The savings of a volume with a reservation stay free for this volume.
#[test]
fn a_reservation_keeps_room_for_pages_that_are_shared() {
    let (mut pool, disk) = pool();
    let quota = PoolChange::Quota { volume: disk, reservation: 400, limit: None };
    pool.change(quota).expect("a reservation");
    pool.put(disk, 0, &[5; 200]);
    pool.put(disk, 200, &[6; 200]);
    assert_eq!(counts(&pool.shared()), (398, 0, 2, 0));
    pool.engine.set_dedup(None);
    let other = pool.create("other", 4000);
    let end = pool.fill(other, 0, 4000);
    assert!(end < 4000, "the pool is full");
    let status = pool.engine.status();
    assert!(status.size_blocks - status.used_blocks >= 390, "{status:?}");
    // The volume with the reservation writes all of its blocks anew.
    for block in 0..400 {
        pool.put(disk, block, &[1000 + block]);
    }
    (0..400).for_each(|block| pool.has(disk, block, 1000 + block));
}
