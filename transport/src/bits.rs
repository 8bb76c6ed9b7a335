//! One bit per fragment of a message.

use crate::wire::FRAGMENTS_MAX;

const WORDS: usize = FRAGMENTS_MAX / u64::BITS as usize;

/// A set of fragment numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bits([u64; WORDS]);

impl Bits {
    /// Empties the part of the set that a message of `count` fragments uses.
    pub(crate) fn clear(&mut self, count: usize) {
        self.0[..count.div_ceil(u64::BITS as usize)].fill(0);
    }

    /// Adds a number; `false` when it was in already.
    pub(crate) fn insert(&mut self, number: usize) -> bool {
        let (word, bit) = (number / u64::BITS as usize, 1 << (number % u64::BITS as usize));
        let is_new = self.0[word] & bit == 0;
        self.0[word] |= bit;
        is_new
    }

    pub(crate) fn remove(&mut self, number: usize) {
        self.0[number / u64::BITS as usize] &= !(1 << (number % u64::BITS as usize));
    }

    pub(crate) fn contains(&self, number: usize) -> bool {
        self.0[number / u64::BITS as usize] & (1 << (number % u64::BITS as usize)) != 0
    }

    /// The smallest number.
    pub(crate) fn first(&self) -> Option<usize> {
        let word = self.0.iter().position(|&word| word != 0)?;
        Some(word * u64::BITS as usize + self.0[word].trailing_zeros() as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inserts_removes_and_finds() {
        let mut bits = Bits::default();
        assert_eq!(bits.first(), None);
        assert!(bits.insert(FRAGMENTS_MAX - 1) && bits.insert(64) && !bits.insert(64));
        assert_eq!(bits.first(), Some(64));
        assert!(bits.contains(64) && !bits.contains(63));
        bits.remove(64);
        assert_eq!(bits.first(), Some(FRAGMENTS_MAX - 1));
        bits.clear(FRAGMENTS_MAX);
        assert_eq!(bits.first(), None);
    }
}
