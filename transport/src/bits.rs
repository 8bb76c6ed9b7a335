//! One bit per fragment of a message, or per flow.

use crate::wire::FRAGMENTS_MAX;

const WORD_BITS: usize = u64::BITS as usize;

/// Words for the numbers that the first one has no room for.
const MORE_WORDS: usize = FRAGMENTS_MAX / WORD_BITS - 1;

/// Whether a message of so many fragments is a long one.
pub(crate) fn is_long(fragments: usize) -> bool {
    fragments > WORD_BITS
}

/// A set of fragment numbers. Most messages have few fragments, and a session has hundreds of
/// these.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bits {
    first: u64,
    /// Made for the first message that is long.
    more: Option<Box<[u64; MORE_WORDS]>>,
}

impl Bits {
    /// Makes room for long messages.
    pub(crate) fn make_room(&mut self) {
        self.more();
    }

    /// Empties it, for a message of `count` fragments. Allocates when it is the first long one and
    /// no room was made.
    pub(crate) fn reset(&mut self, count: usize) {
        self.first = 0;
        let words = count.div_ceil(WORD_BITS).saturating_sub(1);
        if words > 0 {
            self.more()[..words].fill(0);
        }
    }

    /// Adds a number; `false` when it was in already.
    pub(crate) fn insert(&mut self, number: usize) -> bool {
        let (word, bit) = self.word(number);
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    pub(crate) fn remove(&mut self, number: usize) {
        let (word, bit) = self.word(number);
        *word &= !bit;
    }

    pub(crate) fn contains(&self, number: usize) -> bool {
        let word = match number / WORD_BITS {
            0 => self.first,
            at => self.more.as_ref().map_or(0, |more| more[at - 1]),
        };
        word & (1 << (number % WORD_BITS)) != 0
    }

    /// The smallest number.
    pub(crate) fn first(&self) -> Option<usize> {
        if self.first != 0 {
            return Some(self.first.trailing_zeros() as usize);
        }
        let more = self.more.as_ref()?;
        let at = more.iter().position(|&word| word != 0)?;
        Some((at + 1) * WORD_BITS + more[at].trailing_zeros() as usize)
    }

    /// The memory that it takes beside itself.
    pub(crate) fn more_bytes(&self) -> usize {
        self.more.as_deref().map_or(0, size_of_val)
    }

    fn word(&mut self, number: usize) -> (&mut u64, u64) {
        let bit = 1 << (number % WORD_BITS);
        match number / WORD_BITS {
            0 => (&mut self.first, bit),
            at => (&mut self.more()[at - 1], bit),
        }
    }

    fn more(&mut self) -> &mut [u64; MORE_WORDS] {
        self.more.get_or_insert_with(|| Box::new([0; MORE_WORDS]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inserts_removes_and_finds() {
        let mut bits = Bits::default();
        assert_eq!(bits.first(), None);
        assert!(!bits.contains(FRAGMENTS_MAX - 1));
        assert!(bits.insert(FRAGMENTS_MAX - 1) && bits.insert(64) && !bits.insert(64));
        assert_eq!(bits.first(), Some(64));
        assert!(bits.contains(64) && !bits.contains(63));
        assert!(bits.insert(63) && bits.contains(63));
        assert_eq!(bits.first(), Some(63));
        bits.remove(63);
        bits.remove(64);
        assert_eq!(bits.first(), Some(FRAGMENTS_MAX - 1));
        bits.reset(FRAGMENTS_MAX);
        assert_eq!(bits.first(), None);
    }

    #[test]
    fn few_take_nothing_beside_it() {
        let mut bits = Bits::default();
        bits.reset(WORD_BITS);
        assert!((0..WORD_BITS).all(|number| bits.insert(number)));
        assert_eq!(bits.more_bytes(), 0);
        bits.reset(WORD_BITS + 1);
        assert_eq!((bits.first(), bits.more_bytes()), (None, MORE_WORDS * 8));
    }
}
