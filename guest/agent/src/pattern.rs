//! The content of a block: a header that names the block, then words that only this header gives.
//!
//! ```text
//! byte 0        8        16           24                                4096
//!      | seed   | block  | generation | words drawn from the three ...     |
//! ```
//!
//! Generation 0 is a block that was never written: all zeros, as a new image reads.

use std::fmt;
use std::io::{self, Read};
use std::path::Path;

use crate::random::{Random, mix};

/// Bytes of a block, and the unit of everything here: a page, the usual unit of file systems.
pub const BLOCK_BYTES: usize = 4096;
const WORD_BYTES: usize = 8;

/// Fills `bytes`, one block, with the content of `block` in `generation`.
///
/// # Panics
/// If `bytes` is not one block long.
pub fn fill(seed: u64, block: u64, generation: u64, bytes: &mut [u8]) {
    assert_eq!(bytes.len(), BLOCK_BYTES);
    if generation == 0 {
        bytes.fill(0);
        return;
    }
    let mut random = Random::new(mix(seed ^ mix(block ^ mix(generation))));
    let header = [seed, block, generation];
    for (index, word) in bytes.chunks_exact_mut(WORD_BYTES).enumerate() {
        let value = header.get(index).copied().unwrap_or_else(|| random.word());
        word.copy_from_slice(&value.to_le_bytes());
    }
}

/// A block that does not hold what it should.
#[derive(Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The block, counted from the start of the disk.
    pub block: u64,
    /// The generation that was expected.
    pub expected: u64,
    /// The header that was found: seed, block, generation.
    pub found: [u64; 3],
    /// The first byte that differs from what the *found* header promises, if the block is torn.
    pub torn_at: Option<usize>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { block, expected, found: [seed, found_block, generation], torn_at } = self;
        write!(
            f,
            "block {block}: expected generation {expected}, found generation {generation} of \
             block {found_block}, seed {seed}"
        )?;
        match torn_at {
            Some(at) => write!(f, ", torn at byte {at}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Mismatch {}

/// Compares one block with what it should hold. `scratch` is room for one block.
///
/// # Errors
/// What was found instead.
pub fn check(
    seed: u64,
    block: u64,
    generation: u64,
    bytes: &[u8],
    scratch: &mut [u8],
) -> Result<(), Mismatch> {
    fill(seed, block, generation, scratch);
    if bytes == scratch {
        return Ok(());
    }
    let found = [word(bytes, 0), word(bytes, 1), word(bytes, 2)];
    fill(found[0], found[1], found[2], scratch);
    let torn_at = bytes.iter().zip(scratch.iter()).position(|(found, promised)| found != promised);
    Err(Mismatch { block, expected: generation, found, torn_at })
}

fn word(bytes: &[u8], index: usize) -> u64 {
    let at = index * WORD_BYTES;
    u64::from_le_bytes(bytes[at..at + WORD_BYTES].try_into().expect("eight bytes"))
}

/// The digest of one block at its place. The digest of a disk is the wrapping sum over its blocks,
/// so that threads can add up their shares in any order.
pub fn digest(block: u64, bytes: &[u8]) -> u64 {
    let mut state = mix(block.wrapping_add(1));
    for index in 0..bytes.len() / WORD_BYTES {
        state = (state ^ word(bytes, index)).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29);
    }
    mix(state)
}

/// The digest of a whole image on the host.
///
/// # Errors
/// The image's name and why it could not be read, or that it is no whole number of blocks.
pub fn image_digest(image: &Path) -> io::Result<u64> {
    let named = |error| io::Error::other(format!("{}: {error}", image.display()));
    let mut file = std::fs::File::open(image).map_err(named)?;
    let length = file.metadata().map_err(named)?.len();
    if length % BLOCK_BYTES as u64 != 0 {
        return Err(named(io::Error::other("its size is not a multiple of 4096 bytes")));
    }
    let mut bytes = vec![0; BLOCK_BYTES];
    let mut sum = 0u64;
    for block in 0..length / BLOCK_BYTES as u64 {
        file.read_exact(&mut bytes).map_err(named)?;
        sum = sum.wrapping_add(digest(block, &bytes));
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(seed: u64, block: u64, generation: u64) -> Vec<u8> {
        let mut bytes = vec![0xff; BLOCK_BYTES];
        fill(seed, block, generation, &mut bytes);
        bytes
    }

    fn checked(expected: u64, bytes: &[u8]) -> Result<(), Mismatch> {
        check(7, 3, expected, bytes, &mut vec![0; BLOCK_BYTES])
    }

    #[test]
    fn a_block_is_known_again_and_a_new_one_is_zero() {
        assert_eq!(checked(9, &filled(7, 3, 9)), Ok(()));
        assert_eq!(checked(0, &vec![0; BLOCK_BYTES]), Ok(()));
        assert_eq!(filled(7, 3, 0), vec![0; BLOCK_BYTES]);
    }

    #[test]
    fn a_lost_a_misplaced_and_a_torn_write_are_told_apart() {
        let lost = checked(9, &filled(7, 3, 8)).unwrap_err();
        assert_eq!((lost.found, lost.torn_at), ([7, 3, 8], None));
        let misplaced = checked(9, &filled(7, 4, 9)).unwrap_err();
        assert_eq!((misplaced.found, misplaced.torn_at), ([7, 4, 9], None));
        let mut torn = filled(7, 3, 9);
        torn[512..].copy_from_slice(&filled(7, 3, 8)[512..]);
        let torn = checked(9, &torn).unwrap_err();
        assert_eq!((torn.found, torn.torn_at), ([7, 3, 9], Some(512)));
        assert!(torn.to_string().contains("torn at byte 512"), "{torn}");
    }

    #[test]
    fn a_digest_depends_on_place_and_content() {
        let bytes = filled(7, 3, 9);
        assert_eq!(digest(3, &bytes), digest(3, &bytes));
        assert_ne!(digest(3, &bytes), digest(4, &bytes));
        let mut changed = bytes.clone();
        changed[4095] ^= 1;
        assert_ne!(digest(3, &bytes), digest(3, &changed));
    }

    #[test]
    fn an_image_is_digested_as_a_whole() {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        std::fs::write(&image, [filled(7, 0, 1), filled(7, 1, 2)].concat()).unwrap();
        let wanted = digest(0, &filled(7, 0, 1)).wrapping_add(digest(1, &filled(7, 1, 2)));
        assert_eq!(image_digest(&image).unwrap(), wanted);
        std::fs::write(&image, [0; 100]).unwrap();
        let error = image_digest(&image).unwrap_err().to_string();
        assert!(error.contains("multiple of 4096"), "{error}");
    }
}
