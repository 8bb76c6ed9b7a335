//! Writes that go to some blocks far more often than to other blocks.

use random::Random;

/// Numbers from 0 to `end`, of which the number k comes with a share of about 1 / (k + 1), spread
/// over the volume.
pub(crate) struct Zipf {
    pub(crate) end: u64,
    pub(crate) random: Random,
}

impl Zipf {
    pub(crate) fn next(&mut self) -> u64 {
        let share = self.random.draw() as f64 / u64::MAX as f64;
        let rank = ((self.end as f64 + 1.0).powf(share) - 1.0) as u64;
        // A prime number: each rank has a place of its own, unless the volume is a multiple of it.
        rank.min(self.end - 1) * 1_000_003 % self.end
    }
}
