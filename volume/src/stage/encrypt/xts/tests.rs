use aes::cipher::generic_array::GenericArray;
use aes::cipher::{BlockEncrypt, KeyInit};
use aes::{Aes256, Block};

use super::*;
use random::Random;

use crate::contract::Buffer;

fn bytes<const N: usize>(hex: &str) -> [u8; N] {
    let bytes = HEXLOWER.decode(hex.as_bytes()).expect("hexadecimal");
    bytes.try_into().expect("of this length")
}

fn key(bytes: [u8; VolumeKey::BYTES]) -> VolumeKey {
    VolumeKey::from_bytes(&bytes).expect("two different halves")
}

/// XTS as IEEE 1619 writes it down, over the AES of other people: a sector, enciphered.
pub(in super::super) fn by_the_book(
    key: &[u8; VolumeKey::BYTES],
    number: u64,
    plain: &[u8],
) -> Vec<u8> {
    let [data, tweak] = [0, 32].map(|at| Aes256::new(GenericArray::from_slice(&key[at..at + 32])));
    let mut mask = Block::default();
    mask[..8].copy_from_slice(&number.to_le_bytes());
    tweak.encrypt_block(&mut mask);
    let mut sector = plain.to_vec();
    for block in sector.chunks_exact_mut(16) {
        block.iter_mut().zip(mask).for_each(|(byte, mask)| *byte ^= mask);
        data.encrypt_block(GenericArray::from_mut_slice(block));
        block.iter_mut().zip(mask).for_each(|(byte, mask)| *byte ^= mask);
        // Times x in GF(2^128), the lowest bit first.
        let carry = mask[15] >> 7;
        for at in (1..16).rev() {
            mask[at] = (mask[at] << 1) | (mask[at - 1] >> 7);
        }
        mask[0] = (mask[0] << 1) ^ (carry * 0x87);
    }
    sector
}

fn enciphered(key: &VolumeKey, first: u64, plain: &[u8]) -> Vec<u8> {
    let (from, to) = (Buffer::filled(plain, 0), Buffer::new(plain.len(), 0));
    let mut cipher = Cipher::new(key).expect("memory");
    // SAFETY: both buffers live, have the same whole sectors, and the target is one piece.
    unsafe { cipher.encipher(first, &from.segments(plain.len()), &to.segments(plain.len())) };
    assert_eq!(from.bytes(), plain, "what is enciphered stays as it is");
    to.bytes()
}

fn deciphered(key: &VolumeKey, first: u64, cipher_text: &[u8], piece: usize) -> Vec<u8> {
    let buffer = Buffer::filled(cipher_text, 3);
    let mut cipher = Cipher::new(key).expect("memory");
    // SAFETY: the buffer lives and has whole sectors.
    unsafe { cipher.decipher(first, &buffer.segments(piece)) };
    buffer.bytes()
}

/// IEEE 1619-2007, appendix B: vectors 10 to 14 are those of XTS-AES-256.
#[test]
fn the_standards_vectors_come_out() {
    let mut secret = [0; VolumeKey::BYTES];
    secret[..32].copy_from_slice(&bytes::<32>(
        "2718281828459045235360287471352662497757247093699959574966967627",
    ));
    secret[32..].copy_from_slice(&bytes::<32>(
        "3141592653589793238462643383279502884197169399375105820974944592",
    ));
    let plain: Vec<u8> = (0..UNIT_BYTES).map(|at| at as u8).collect();
    // The number of the unit, and the first and last 32 bytes of what it becomes.
    let vectors = [
        (
            0xff,
            "1c3b3a102f770386e4836c99e370cf9bea00803f5e482357a4ae12d414a3e63b",
            "773dad38014bd2092fa755c824bb5e54c4f36ffda9fcea70b9c6e693e148c151",
        ),
        (
            0xffff,
            "77a31251618a15e6b92d1d66dffe7b50b50bad552305ba0217a610688eff7e11",
            "54fbff89eeaeea791f4a7ab1f9868294a4f9e27b42af8100cb9d59cef9645803",
        ),
        (
            0xff_ffff,
            "e387aaa58ba483afa7e8eb469778317ecf4cf573aa9d4eac23f2cdf914e4e200",
            "ed242c8900dd1fa965bc950dfce09b132263a1eef52dd6888c309f5a7d712826",
        ),
        (
            0xffff_ffff,
            "bf53d2dade78e822a4d949a9bc6766b01b06a8ef70d26748c6a7fc36d80ae4c5",
            "f6516139420fcff3b7361d86322c4bd84c82f335abb152c4a93411373aaa8220",
        ),
        (
            0xff_ffff_ffff,
            "64497e5a831e4a932c09be3e5393376daa599548b816031d224bbf50a818ed23",
            "6975be5e0b4efce51cd3e70c25a1fbbbd609d273ad5b0d59631c531f6a0a57b9",
        ),
    ];
    for (number, first, last) in vectors {
        let found = enciphered(&key(secret), number, &plain);
        assert_eq!(found[..32], bytes::<32>(first), "unit {number:x}");
        assert_eq!(found[UNIT_BYTES - 32..], bytes::<32>(last), "unit {number:x}");
        assert_eq!(found, by_the_book(&secret, number, &plain), "unit {number:x}");
        assert_eq!(deciphered(&key(secret), number, &found, UNIT_BYTES), plain);
    }
}

#[test]
fn another_implementation_says_the_same_of_many_sectors_however_they_are_cut() {
    let mut random = Random::new(0x1619);
    for turn in 0..40 {
        let secret = std::array::from_fn(|_| random.below(256) as u8);
        let sectors = 1 + random.below(9) as usize;
        let first = random.below(u64::MAX) >> random.below(64);
        let plain: Vec<u8> = (0..sectors * UNIT_BYTES).map(|_| random.below(256) as u8).collect();
        let numbered = plain.chunks_exact(UNIT_BYTES).zip(first..);
        let book: Vec<u8> =
            numbered.flat_map(|(unit, number)| by_the_book(&secret, number, unit)).collect();
        assert_eq!(enciphered(&key(secret), first, &plain), book, "turn {turn}");
        let piece = [1, 7, 100, 511, 512, 513, 1024, 4096][turn % 8];
        assert_eq!(deciphered(&key(secret), first, &book, piece), plain, "pieces of {piece}");
    }
}

#[test]
fn equal_halves_are_refused_and_a_key_is_told_by_its_check_value_alone() {
    assert_eq!(VolumeKey::from_bytes(&[7; 64]).err(), Some(SameHalves));
    let mut secret: [u8; 64] = std::array::from_fn(|at| at as u8);
    let one = key(secret);
    assert_eq!(one.check().len(), 2 * CHECK_BYTES);
    assert_eq!(format!("{one:?}"), format!("VolumeKey({})", one.check()));
    for at in 0..secret.len() {
        secret[at] ^= 0x40;
        assert!(key(secret) != one && key(secret).check() != one.check(), "byte {at}");
        secret[at] ^= 0x40;
    }
    assert!(key(secret) == one && key(secret).check() == one.check());
}
