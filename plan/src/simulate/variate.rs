//! Random times, the same on each machine: a logarithm of the basic operations alone, which IEEE
//! 754 defines to the bit, where that of a system's library may differ in the last place.

use random::Random;

/// The natural logarithm of a number above 0.
fn logarithm(number: f64) -> f64 {
    let bits = number.to_bits();
    let mut exponent = ((bits >> 52) & 0x7ff) as i64 - 1023;
    let mut mantissa = f64::from_bits((bits & 0x000f_ffff_ffff_ffff) | (1023 << 52));
    if mantissa > std::f64::consts::SQRT_2 {
        mantissa *= 0.5;
        exponent += 1;
    }
    // ln m = 2 artanh((m - 1) / (m + 1)), whose argument is below 0.172: eight terms suffice.
    let z = (mantissa - 1.0) / (mantissa + 1.0);
    let square = z * z;
    let mut sum = 1.0 / 15.0;
    for odd in [13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
        sum = sum * square + 1.0 / odd;
    }
    2.0 * z * sum + exponent as f64 * std::f64::consts::LN_2
}

/// An exponential time with this mean, in whole nanoseconds.
#[inline]
pub fn exponential(random: &mut Random, mean_ns: f64) -> u64 {
    // From 2^-53 to 1: the logarithm is finite, and the longest time 37 means.
    let uniform = ((random.draw() >> 11) + 1) as f64 / 9_007_199_254_740_992.0;
    (-logarithm(uniform) * mean_ns + 0.5) as u64
}

/// A hash of numbers, for draws that must not depend on the order of events.
pub fn hash(seed: u64, one: u64, other: u64) -> u64 {
    let mixed = seed ^ one.wrapping_mul(0xa076_1d64_78bd_642f);
    Random::new(mixed.rotate_left(31) ^ other.wrapping_mul(0xe703_7ed1_a0b4_28db)).draw()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_logarithm_is_right() {
        let mut random = Random::new(1);
        for _ in 0..100_000 {
            let number = (random.draw() >> 11) as f64 / 9e15 + 1e-300;
            let off = logarithm(number) - number.ln();
            assert!(off.abs() < 1e-13 * number.ln().abs().max(1.0), "{number}: {off}");
        }
        assert_eq!(logarithm(1.0), 0.0);
    }

    #[test]
    fn times_have_the_mean_and_the_variance_of_their_distribution() {
        let mut random = Random::new(2);
        let (mut sum, mut squares) = (0.0, 0.0);
        for _ in 0..1_000_000 {
            let time = exponential(&mut random, 1e6) as f64;
            sum += time;
            squares += time * time;
        }
        let mean = sum / 1e6;
        let deviation = (squares / 1e6 - mean * mean).sqrt();
        assert!((mean / 1e6 - 1.0).abs() < 0.005, "{mean}");
        assert!((deviation / 1e6 - 1.0).abs() < 0.01, "{deviation}");
    }
}
