//! The contents of pages, in memory of a fixed size: by a content's hash, a page that has it.
//!
//! The hash is keyed with random bytes of the opening, so no tenant can make contents that fall
//! together on purpose. Pages are compared before they share anything: a hash proves nothing.

use std::fmt;

use blake2::Blake2bMac;
use blake2::digest::consts::U8;
use blake2::digest::{FixedOutput, KeyInit, Update};

use crate::block::Block;

/// Pages of a bucket.
const WAYS: usize = 8;

/// Bits of a page's number in a slot; the bits above are the hash's.
const NUMBER_BITS: u32 = 40;

/// Bytes that a page takes in the index.
pub const CONTENT_BYTES: usize = size_of::<u64>();

/// How pages with the same content are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DedupOptions {
    /// The most memory for the index, in bytes; at least 64 are used.
    pub memory_bytes: usize,
    /// Bits of a content's hash that count, up to 64. With fewer, more pages are compared that
    /// differ.
    pub hash_bits: u32,
}

/// The index: a table of buckets. A content has its place in one bucket, in which the page that was
/// asked for last comes first. A new one takes the place of the last of its bucket.
struct ContentIndex {
    buckets: Vec<[u64; WAYS]>,
    hash_mask: u64,
    used: usize,
}

/// Finds pages by their contents.
pub(crate) struct Contents {
    key: [u8; 16],
    index: Option<ContentIndex>,
    options: Option<DedupOptions>,
    /// Times that it was switched on or got other memory.
    changes: u64,
}

impl fmt::Debug for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contents").field("options", &self.options).finish_non_exhaustive()
    }
}

impl ContentIndex {
    fn new(options: DedupOptions) -> Self {
        let buckets = (options.memory_bytes / size_of::<[u64; WAYS]>()).max(1);
        let hash_mask = u64::MAX.checked_shr(64 - options.hash_bits.min(64)).unwrap_or(0);
        Self { buckets: vec![[0; WAYS]; buckets], hash_mask, used: 0 }
    }

    /// The bucket of a hash, and what its slots have above the number.
    fn place(&mut self, hash: u64) -> (&mut [u64; WAYS], u64) {
        let hash = hash & self.hash_mask;
        let at = hash % self.buckets.len() as u64;
        let tag = hash >> NUMBER_BITS << NUMBER_BITS;
        (&mut self.buckets[at as usize], tag)
    }

    fn find(&mut self, hash: u64) -> Option<u64> {
        let (bucket, tag) = self.place(hash);
        let has_tag = |slot: &u64| *slot != 0 && *slot >> NUMBER_BITS << NUMBER_BITS == tag;
        let at = bucket.iter().position(has_tag)?;
        bucket[..=at].rotate_right(1);
        Some(bucket[0] & ((1 << NUMBER_BITS) - 1))
    }

    /// The page `number` has the content of this hash, in place of the page that was known for it.
    fn put(&mut self, hash: u64, number: u64) {
        let is_known = self.find(hash).is_some();
        let (bucket, tag) = self.place(hash);
        let is_new = !is_known && bucket[WAYS - 1] == 0;
        if !is_known {
            bucket.rotate_right(1);
        }
        bucket[0] = tag | number;
        self.used += usize::from(is_new);
    }
}

impl Contents {
    /// Without an index. `salt` is the opening's.
    pub(crate) fn new(salt: u128) -> Self {
        Self { key: salt.to_le_bytes(), index: None, options: None, changes: 0 }
    }

    /// Has an index with these options from here on, or no index. The former index is lost.
    pub(crate) fn set(&mut self, options: Option<DedupOptions>) {
        if self.options != options {
            self.index = options.map(ContentIndex::new);
            self.options = options;
            self.changes += 1;
        }
    }

    /// Whether pages are looked for.
    pub(crate) fn is_on(&self) -> bool {
        self.index.is_some()
    }

    /// Times that it was switched.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Pages in the index, and how many it can have.
    pub(crate) fn pages(&self) -> (u64, u64) {
        let count = |index: &ContentIndex| (index.used as u64, (index.buckets.len() * WAYS) as u64);
        self.index.as_ref().map_or((0, 0), count)
    }

    /// The hash of a content.
    pub(crate) fn hash(&self, page: &Block) -> u64 {
        let key = Blake2bMac::<U8>::new_from_slice(&self.key);
        let mut hash = key.expect("the key is shorter than 64 bytes");
        hash.update(&page.0);
        u64::from_le_bytes(hash.finalize_fixed().into())
    }

    /// A page that may have the content of this hash.
    pub(crate) fn find(&mut self, hash: u64) -> Option<u64> {
        self.index.as_mut()?.find(hash)
    }

    /// This page has the content of this hash.
    pub(crate) fn put(&mut self, hash: u64, number: u64) {
        if let Some(index) = &mut self.index {
            index.put(hash, number);
        }
    }
}

#[cfg(test)]
mod tests {
    use random::Random;

    use super::*;

    fn contents(memory_bytes: usize, hash_bits: u32) -> Contents {
        let mut contents = Contents::new(7);
        contents.set(Some(DedupOptions { memory_bytes, hash_bits }));
        contents
    }

    #[test]
    fn a_hash_depends_on_the_opening_and_on_each_byte() {
        let page = Block([3; 4096]);
        let mut other = page.clone();
        other.0[4095] = 4;
        let hash = Contents::new(7).hash(&page);
        assert_eq!(hash, Contents::new(7).hash(&page));
        assert_ne!(hash, Contents::new(7).hash(&other));
        assert_ne!(hash, Contents::new(8).hash(&page));
    }

    #[test]
    fn pages_are_found_until_others_take_their_place() {
        let mut index = contents(4096, 64);
        assert_eq!(index.pages(), (0, 512));
        let mut random = Random::new(1);
        let hashes: Vec<u64> = (0..200).map(|_| random.draw()).collect();
        for (number, &hash) in (1..).zip(&hashes) {
            assert_eq!(index.find(hash), None);
            index.put(hash, number);
            assert_eq!(index.find(hash), Some(number));
        }
        for (number, &hash) in (1..).zip(&hashes) {
            assert!(index.find(hash).is_none_or(|found| found == number));
        }
        index.put(hashes[0], 1 << 39);
        assert_eq!(index.find(hashes[0]), Some(1 << 39));
    }

    /// The rule of the replacement: of a full bucket, the page goes that was not asked for longest.
    #[test]
    fn a_full_bucket_forgets_the_page_that_was_asked_for_longest_ago() {
        let mut index = contents(1, 64);
        assert_eq!(index.pages(), (0, 8));
        let hash = |number: u64| number << 40 | number;
        for number in 1..=8 {
            index.put(hash(number), number);
        }
        assert_eq!(index.pages(), (8, 8));
        assert_eq!(index.find(hash(1)), Some(1));
        index.put(hash(9), 9);
        let found: Vec<u64> =
            (1..=9).filter(|&number| index.find(hash(number)).is_some()).collect();
        assert_eq!(found, [1, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(index.pages(), (8, 8));
    }

    #[test]
    fn few_bits_of_a_hash_make_other_contents_fall_together() {
        let mut index = contents(4096, 2);
        for number in 1..=100_u64 {
            index.put(number.wrapping_mul(0x9e37_79b9_7f4a_7c15), number);
        }
        assert!(index.pages().0 <= 4);
        let mut none = contents(4096, 0);
        none.put(1, 1);
        assert_eq!(none.find(u64::MAX), Some(1));
    }

    #[test]
    fn without_an_index_nothing_is_found_and_a_change_is_noted() {
        let mut contents = Contents::new(1);
        contents.put(5, 5);
        assert_eq!((contents.find(5), contents.is_on(), contents.pages()), (None, false, (0, 0)));
        contents.set(Some(DedupOptions { memory_bytes: 64, hash_bits: 64 }));
        contents.put(5, 5);
        contents.set(Some(DedupOptions { memory_bytes: 64, hash_bits: 64 }));
        assert_eq!((contents.find(5), contents.changes()), (Some(5), 1));
        contents.set(None);
        assert_eq!((contents.find(5), contents.changes()), (None, 2));
    }
}
