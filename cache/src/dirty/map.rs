//! Which blocks are dirty: the VMhost's pool has their content, and the remote volume does not.
//!
//! ```text
//!   clean ── a write is in the pool ──▶ dirty ── read, and on its way ──▶ dirty, sent
//!     ▲                                   ▲                                   │
//!     │                                   └── it was written meanwhile ───────┤
//!     └────────────── the remote volume has it, durably ◀─────────────────────┘
//! ```
//!
//! A block becomes clean or dirty, and its content in the pool changes, only by the holder of its
//! *busy* bit. A block that is clean is not in the pool's volume, so the volume's own map says
//! after any end of the process which blocks are dirty.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use crate::map::{Blocks, CacheMap};

/// See the module.
#[derive(Debug)]
pub(crate) struct DirtyMap {
    /// Dirty blocks are the present ones of this map.
    pub(crate) blocks: CacheMap,
    sent: Box<[AtomicU64]>,
    /// Blocks that were written since they were read for the remote volume.
    rewritten: Box<[AtomicU64]>,
}

fn has(words: &[AtomicU64], blocks: Blocks) -> bool {
    blocks.pieces().any(|(at, mask)| words[at].load(SeqCst) & mask != 0)
}

fn set(words: &[AtomicU64], blocks: Blocks) {
    for (at, mask) in blocks.pieces() {
        words[at].fetch_or(mask, SeqCst);
    }
}

fn unset(words: &[AtomicU64], blocks: Blocks) {
    for (at, mask) in blocks.pieces() {
        words[at].fetch_and(!mask, SeqCst);
    }
}

impl DirtyMap {
    /// The map of a volume of so many blocks, of which `capacity` may be dirty.
    pub(crate) fn new(blocks: u64, capacity: u64) -> Self {
        let words = || (0..blocks.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Self { blocks: CacheMap::new(blocks, capacity), sent: words(), rewritten: words() }
    }

    /// The pool has these blocks of a write, and their busy bits are the caller's.
    pub(crate) fn written(&self, blocks: Blocks) {
        set(&self.rewritten, blocks);
        self.blocks.show(blocks);
    }

    /// The remote volume's content of these blocks is about to be changed, to something else than
    /// what was sent; their busy bits are the caller's. Those that are dirty are sent again.
    pub(crate) fn overtake(&self, blocks: Blocks) {
        set(&self.rewritten, blocks);
    }

    /// Dirty blocks are about to be read for the remote volume; their busy bits are the caller's.
    pub(crate) fn begin_send(&self, blocks: Blocks) {
        unset(&self.rewritten, blocks);
        set(&self.sent, blocks);
    }

    /// They are no longer on their way.
    pub(crate) fn end_send(&self, blocks: Blocks) {
        unset(&self.sent, blocks);
    }

    /// Whether one of the blocks is on its way to the remote volume.
    pub(crate) fn is_sent(&self, blocks: Blocks) -> bool {
        has(&self.sent, blocks)
    }

    /// Whether one of the blocks was written since it was read for the remote volume.
    pub(crate) fn is_rewritten(&self, blocks: Blocks) -> bool {
        has(&self.rewritten, blocks)
    }

    /// The first dirty blocks among these, at most so many in a row.
    pub(crate) fn first_dirty(&self, among: Blocks, most: u64) -> Option<Blocks> {
        let is_dirty = |block| self.blocks.holds(Blocks { first: block, count: 1 });
        let first = self.blocks.first_present(among)?;
        let end = among.end().min(first.saturating_add(most));
        let end = (first..end).find(|block| !is_dirty(*block)).unwrap_or(end);
        Some(Blocks { first, count: end - first })
    }

    /// These blocks are clean from now on, and about to be discarded in the pool. Their busy bits
    /// are the caller's, and they keep their space until the pool has discarded them.
    pub(crate) fn clean(&self, blocks: Blocks) -> u64 {
        let count = self.blocks.hide(blocks);
        self.blocks.note_discard(blocks);
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_is_written_while_it_is_sent_is_told() {
        let map = DirtyMap::new(200, 100);
        let blocks = Blocks { first: 60, count: 10 };
        assert!(map.blocks.acquire(blocks) && map.blocks.reserve(10));
        map.written(blocks);
        assert!(map.is_rewritten(blocks) && !map.is_sent(blocks));
        map.begin_send(blocks);
        assert!(!map.is_rewritten(blocks) && map.is_sent(Blocks { first: 69, count: 5 }));
        map.written(Blocks { first: 64, count: 1 });
        assert!(map.is_rewritten(blocks) && !map.is_rewritten(Blocks { first: 65, count: 5 }));
        map.end_send(blocks);
        assert!(!map.is_sent(blocks));
        assert_eq!(map.clean(Blocks { first: 60, count: 4 }), 4);
        let all = Blocks { first: 0, count: 200 };
        assert_eq!(map.first_dirty(all, 4), Some(Blocks { first: 64, count: 4 }));
        assert_eq!(map.first_dirty(all, 100), Some(Blocks { first: 64, count: 6 }));
        assert_eq!(map.first_dirty(Blocks { first: 70, count: 130 }, 9), None);
    }
}
