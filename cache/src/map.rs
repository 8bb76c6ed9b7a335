//! Which blocks of the remote volume the cache has: a bit for each block, which all sidecores of
//! the disk share without a lock.
//!
//! ```text
//!            hide                       show
//!   cached ────────▶ neither, busy ────────────▶ cached
//!                         │  the blocks are discarded in the cache
//!                         └────────▶ not cached
//! ```
//!
//! Only the holder of a block's *busy* bit writes or discards the block in the cache, and only it
//! may change the block on the remote volume. A block is *present* if the cache has the content
//! that the remote volume has. So two rules keep a stale block from being served: a
//! block is hidden before a change of it is sent, and shown only by the holder of its busy bit,
//! which knows that nothing else was on its way.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

/// The cache's unit, which is that of the pool: 4 KiB.
pub const BLOCK_BYTES: u64 = store::block::BLOCK_BYTES as u64;

/// Blocks whose bits are in one word. They are given up together.
const REGION_BLOCKS: u64 = 64;

/// How many regions a search for room looks at. A search without success goes on with the next
/// request.
const REGIONS_LOOKED_AT_MAX: usize = 512;

/// The bit of a region's mark that says that it was used since the hand passed it.
const USED_LATELY: u32 = 1;

/// A run of blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Blocks {
    /// The first block.
    pub first: u64,
    /// How many.
    pub count: u64,
}

impl Blocks {
    /// The blocks of which a range of bytes has a part.
    pub fn around(offset_bytes: u64, len_bytes: u64) -> Self {
        let first = offset_bytes / BLOCK_BYTES;
        let end = (offset_bytes + len_bytes).div_ceil(BLOCK_BYTES);
        Self { first, count: if len_bytes == 0 { 0 } else { end - first } }
    }

    /// The blocks that a range of bytes has as a whole.
    pub fn inside(offset_bytes: u64, len_bytes: u64) -> Self {
        let first = offset_bytes.div_ceil(BLOCK_BYTES);
        let end = (offset_bytes + len_bytes) / BLOCK_BYTES;
        Self { first, count: end.saturating_sub(first) }
    }

    /// The block behind the last one.
    pub fn end(&self) -> u64 {
        self.first + self.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The words and bits of the blocks.
    pub(crate) fn pieces(self) -> impl Iterator<Item = (usize, u64)> {
        let mut at = self.first;
        std::iter::from_fn(move || {
            if at >= self.end() {
                return None;
            }
            let (region, bit) = (at / REGION_BLOCKS, at % REGION_BLOCKS);
            let len = (REGION_BLOCKS - bit).min(self.end() - at);
            at += len;
            let ones = if len == REGION_BLOCKS { u64::MAX } else { (1 << len) - 1 };
            Some((region as usize, ones << bit))
        })
    }
}

/// See the module.
#[derive(Debug)]
pub struct CacheMap {
    blocks: u64,
    present: Box<[AtomicU64]>,
    busy: Box<[AtomicU64]>,
    /// For each region: whether it was used lately, and the count of its discards above that bit.
    marks: Box<[AtomicU32]>,
    /// Blocks that have, or will have, space in the pool.
    used: AtomicU64,
    capacity: u64,
    hand: AtomicUsize,
}

impl CacheMap {
    /// The map of a volume of so many blocks, of which the cache may have `capacity`.
    pub fn new(blocks: u64, capacity: u64) -> Self {
        let regions = blocks.div_ceil(REGION_BLOCKS) as usize;
        let words = || (0..regions).map(|_| AtomicU64::new(0)).collect();
        Self {
            blocks,
            present: words(),
            busy: words(),
            marks: (0..regions).map(|_| AtomicU32::new(0)).collect(),
            used: AtomicU64::new(0),
            capacity,
            hand: AtomicUsize::new(0),
        }
    }

    /// The blocks that it is for.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The blocks that the cache has or is taking in.
    pub fn used(&self) -> u64 {
        // In one order with `reserve` and the marks of dirty blocks.
        self.used.load(SeqCst)
    }

    /// The most blocks that it may have.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The blocks that it covers of these: a volume that has grown is longer than its map.
    pub fn covered(&self, blocks: Blocks) -> Blocks {
        let end = blocks.end().min(self.blocks);
        Blocks { first: blocks.first, count: end.saturating_sub(blocks.first) }
    }

    /// Whether the cache has all of these blocks, each of which must be covered.
    pub fn holds(&self, blocks: Blocks) -> bool {
        blocks.pieces().all(|(at, mask)| self.present[at].load(Acquire) & mask == mask)
    }

    /// How many of these blocks the cache has.
    pub fn count(&self, blocks: Blocks) -> u64 {
        let ones = |(at, mask): (usize, u64)| (self.present[at].load(Acquire) & mask).count_ones();
        blocks.pieces().map(ones).map(u64::from).sum()
    }

    /// The first of these blocks that the cache has.
    pub(crate) fn first_present(&self, among: Blocks) -> Option<u64> {
        among.pieces().find_map(|(at, mask)| {
            let present = self.present[at].load(Acquire) & mask;
            let bit = u64::from(present.trailing_zeros());
            (present != 0).then_some(at as u64 * REGION_BLOCKS + bit)
        })
    }

    /// Takes the busy bits of these blocks: all of them or none.
    pub fn acquire(&self, blocks: Blocks) -> bool {
        for (done, (at, mask)) in blocks.pieces().enumerate() {
            let before = self.busy[at].fetch_or(mask, SeqCst);
            if before & mask == 0 {
                continue;
            }
            self.busy[at].fetch_and(!(mask & !before), SeqCst);
            for (at, mask) in blocks.pieces().take(done) {
                self.busy[at].fetch_and(!mask, SeqCst);
            }
            return false;
        }
        true
    }

    /// Gives the busy bits back.
    pub fn release(&self, blocks: Blocks) {
        for (at, mask) in blocks.pieces() {
            let before = self.busy[at].fetch_and(!mask, SeqCst);
            debug_assert_eq!(before & mask, mask, "held by the caller");
        }
    }

    /// Hides blocks whose busy bits the caller holds. Gives how many were present: they still have
    /// their space.
    pub fn hide(&self, blocks: Blocks) -> u64 {
        let hidden = |(at, mask): (usize, u64)| {
            (self.present[at].fetch_and(!mask, SeqCst) & mask).count_ones()
        };
        blocks.pieces().map(hidden).map(u64::from).sum()
    }

    /// Shows blocks that the cache has now, and whose busy bits the caller holds.
    pub fn show(&self, blocks: Blocks) {
        for (at, mask) in blocks.pieces() {
            debug_assert_eq!(self.busy[at].load(SeqCst) & mask, mask, "held by the caller");
            self.present[at].fetch_or(mask, SeqCst);
            self.marks[at].fetch_or(USED_LATELY, Relaxed);
        }
    }

    /// Notes that blocks were used, so that other blocks go first.
    pub fn touch(&self, blocks: Blocks) {
        for (at, _) in blocks.pieces() {
            if self.marks[at].load(Relaxed) & USED_LATELY == 0 {
                self.marks[at].fetch_or(USED_LATELY, Relaxed);
            }
        }
    }

    /// A number that changes with each discard of a block near these. A read that is under way
    /// while it changes may have found zeroes.
    pub fn discards(&self, blocks: Blocks) -> u32 {
        let count = |(at, _): (usize, u64)| self.marks[at].load(SeqCst) & !USED_LATELY;
        blocks.pieces().map(count).fold(0, u32::wrapping_add)
    }

    /// Notes that blocks are about to be discarded in the cache. They are hidden already.
    pub fn note_discard(&self, blocks: Blocks) {
        for (at, _) in blocks.pieces() {
            self.marks[at].fetch_add(USED_LATELY << 1, SeqCst);
        }
    }

    /// Takes space for so many more blocks, if there is so much.
    pub fn reserve(&self, count: u64) -> bool {
        let capacity = self.capacity();
        let taken = self.used.fetch_update(SeqCst, Relaxed, |used| {
            used.checked_add(count).filter(|sum| *sum <= capacity)
        });
        taken.is_ok()
    }

    /// Gives space back.
    pub fn give_back(&self, count: u64) {
        let before = self.used.fetch_sub(count, Relaxed);
        debug_assert!(before >= count, "{count} blocks of {before}");
    }

    /// Whether room should be made before it is needed.
    pub fn is_tight(&self) -> bool {
        let capacity = self.capacity();
        self.used() > capacity - (capacity / 64).min(1024)
    }

    /// A region that was not used lately, hidden, with its busy bits taken; and how many of its
    /// blocks have space. The caller discards it.
    pub fn take_victim(&self) -> Option<(Blocks, u64)> {
        let regions = self.present.len();
        for _ in 0..REGIONS_LOOKED_AT_MAX.min(2 * regions) {
            let at = self.hand.fetch_add(1, Relaxed) % regions;
            if self.present[at].load(Relaxed) == 0 {
                continue;
            }
            if self.marks[at].fetch_and(!USED_LATELY, Relaxed) & USED_LATELY != 0 {
                continue;
            }
            let first = at as u64 * REGION_BLOCKS;
            let region = self.covered(Blocks { first, count: REGION_BLOCKS });
            if self.acquire(region) {
                return Some((region, self.hide(region)));
            }
        }
        None
    }

    /// Forgets all blocks, for a cache that is being emptied. Busy bits stay: changes of the remote
    /// volume that are under way are still under way.
    pub fn clear(&self) {
        self.present.iter().for_each(|word| word.store(0, SeqCst));
        self.used.store(0, Release);
    }

    /// Notes blocks that the cache has from an earlier process. Nothing uses the map yet.
    pub fn restore(&self, blocks: Blocks) {
        for (at, mask) in self.covered(blocks).pieces() {
            let before = self.present[at].fetch_or(mask, AcqRel);
            self.used.fetch_add(u64::from((mask & !before).count_ones()), Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(first: u64, count: u64) -> Blocks {
        Blocks { first, count }
    }

    #[test]
    fn ranges_become_blocks() {
        assert_eq!(Blocks::around(0, 4096), blocks(0, 1));
        assert_eq!(Blocks::around(512, 4096), blocks(0, 2));
        assert_eq!(Blocks::around(8192, 0), blocks(2, 0));
        assert_eq!(Blocks::inside(512, 8192), blocks(1, 1));
        assert!(Blocks::inside(512, 1024).is_empty());
        let pieces: Vec<_> = blocks(62, 68).pieces().collect();
        assert_eq!(pieces, [(0, 0b11 << 62), (1, u64::MAX), (2, 0b11)]);
    }

    #[test]
    fn busy_bits_are_taken_whole_or_not() {
        let map = CacheMap::new(200, 100);
        assert!(map.acquire(blocks(60, 100)));
        assert!(!map.acquire(blocks(0, 61)));
        assert!(map.acquire(blocks(0, 60)), "the attempt has left nothing");
        map.release(blocks(60, 100));
        assert!(!map.acquire(blocks(59, 2)) && map.acquire(blocks(60, 1)));
    }

    #[test]
    fn a_block_is_held_while_it_is_shown() {
        let map = CacheMap::new(200, 100);
        assert!(map.acquire(blocks(10, 4)));
        map.show(blocks(10, 4));
        assert!(map.holds(blocks(11, 3)) && !map.holds(blocks(11, 4)));
        assert_eq!(map.count(blocks(0, 200)), 4);
        assert_eq!((map.hide(blocks(12, 100)), map.count(blocks(0, 200))), (2, 2));
    }

    #[test]
    fn the_bound_holds_and_old_regions_go_first() {
        let map = CacheMap::new(64 * 4, 128);
        for region in [0, 2] {
            assert!(map.reserve(64) && map.acquire(blocks(region * 64, 64)));
            map.show(blocks(region * 64, 64));
            map.release(blocks(region * 64, 64));
        }
        assert!(!map.reserve(1) && map.is_tight());
        // Both were used; the hand takes that mark away, and one is used again.
        let (victim, count) = map.take_victim().expect("after a turn");
        assert_eq!((victim, count), (blocks(0, 64), 64));
        map.touch(blocks(128, 1));
        map.give_back(count);
        assert!(map.reserve(64) && !map.reserve(1));
        assert_eq!(map.take_victim().expect("after another turn").0, blocks(128, 64));
        assert!(map.take_victim().is_none(), "no more is there");
    }

    #[test]
    fn discards_are_seen() {
        let map = CacheMap::new(200, 100);
        let before = map.discards(blocks(60, 10));
        map.touch(blocks(60, 10));
        assert_eq!(map.discards(blocks(60, 10)), before);
        map.note_discard(blocks(64, 1));
        assert_ne!(map.discards(blocks(60, 10)), before);
        assert_eq!(map.discards(blocks(0, 10)), 0);
    }

    #[test]
    fn a_map_that_is_cleared_leaves_changes_that_are_under_way() {
        let map = CacheMap::new(100, 100);
        map.restore(blocks(90, 20));
        assert_eq!((map.used(), map.count(blocks(0, 100))), (10, 10));
        assert!(map.acquire(blocks(95, 1)));
        map.clear();
        assert_eq!((map.used(), map.count(blocks(0, 100))), (0, 0));
        assert!(!map.acquire(blocks(95, 1)));
    }
}
