//! A seeded generator: the same seed gives the same run everywhere.

/// SplitMix64 (Steele, Lea and Flood 2014): one addition and one mix per number.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// A generator whose numbers depend on nothing but `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `bound`, which must not be 0. The bias is below one in 2^32 for the small
    /// bounds that are used here.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "no number is below 0");
        self.word() % bound
    }
}

/// Spreads every bit of `value` over the whole result.
pub fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers() {
        let (mut one, mut two, mut other) = (Random::new(1), Random::new(1), Random::new(2));
        for _ in 0..100 {
            let number = one.word();
            assert_eq!(number, two.word());
            assert_ne!(number, other.word());
        }
        assert!((0..100).all(|_| one.below(7) < 7));
    }
}
