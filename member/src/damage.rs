//! Damage that a member has met, for people.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::Mutex;
use replica::Extent;
use replica::wire::SECTOR_BYTES;

use crate::content::bytes_of;

/// Blocks that are named: enough to see where the damage is. A scrub of the pool has the rest.
const NAMED_MAX: usize = 64;

/// Damage that a member has met since its node started.
#[derive(Debug, Default)]
pub(crate) struct DamageBook {
    repaired_bytes: AtomicU64,
    /// Blocks that no member in sync can read, and their number.
    lost: Mutex<BTreeSet<Extent>>,
    lost_now: AtomicU64,
}

impl DamageBook {
    /// The bytes that were repaired from other members.
    pub(crate) fn repaired_bytes(&self) -> u64 {
        self.repaired_bytes.load(Relaxed)
    }

    /// The offsets of the blocks that no member in sync can read, as far as they are named.
    pub(crate) fn lost(&self) -> Vec<u64> {
        let lost = self.lost.lock();
        lost.iter().map(|block| block.first() * SECTOR_BYTES).collect()
    }

    pub(crate) fn repaired(&self, block: Extent) {
        self.repaired_bytes.fetch_add(bytes_of(block), Relaxed);
        self.written(block);
    }

    pub(crate) fn is_lost(&self, block: Extent) {
        let mut lost = self.lost.lock();
        if lost.len() < NAMED_MAX {
            lost.insert(block);
        }
        self.lost_now.store(lost.len() as u64, Relaxed);
    }

    /// A range has new content, which can be read.
    pub(crate) fn written(&self, range: Extent) {
        if self.lost_now.load(Relaxed) == 0 {
            return;
        }
        let mut lost = self.lost.lock();
        lost.retain(|block| !range.covers(block));
        self.lost_now.store(lost.len() as u64, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_blocks_are_named_until_they_are_written() {
        let book = DamageBook::default();
        let block = |at: u64| Extent::new(at * 8, 8).expect("it has sectors");
        (0..100).for_each(|at| book.is_lost(block(at)));
        assert_eq!(book.lost().len(), NAMED_MAX);
        assert_eq!(book.lost()[..2], [0, 4096]);
        // A part of a block leaves the rest of it as it is.
        book.written(Extent::new(1, 15).expect("it has sectors"));
        assert_eq!(book.lost()[..2], [0, 8192]);
        book.repaired(block(0));
        assert_eq!((book.lost()[0], book.repaired_bytes()), (8192, 4096));
    }
}
