//! AES-256-XTS in units of a sector, through aws-lc: its safe Rust face has no XTS.
//!
//! A sector's tweak is its number, 64 bits little-endian and 64 of zero; dm-crypt calls this
//! `aes-xts-plain64`. All unsafe code that ciphers is in this file. A guest may change its memory
//! while it is enciphered or deciphered here. So no Rust reference to it is made, and the C
//! function reads and writes bytes: such a guest gains only a block of its own that mixes two
//! versions.

use std::fmt;
use std::io;
use std::ptr::{self, NonNull};

use aws_lc_rs::{constant_time, hmac};
use aws_lc_sys::{
    EVP_CIPHER_CTX, EVP_CIPHER_CTX_free, EVP_CIPHER_CTX_new, EVP_Cipher, EVP_CipherInit_ex,
    EVP_aes_256_xts,
};
use data_encoding::HEXLOWER;
use store::WrappingKey;
use virtio::Segment;
use zeroize::Zeroizing;

/// The unit of ciphering, for each block size of a volume: dm-crypt's default.
const UNIT_BYTES: usize = 512;

/// The text whose code is the check value.
const CHECK_TEXT: &[u8] = b"vrio volume key check, version 1";

/// As much of that code as is kept: two keys have the same once in 2^64.
const CHECK_BYTES: usize = 8;

/// Zeroes, to be enciphered.
static ZEROES: [u8; UNIT_BYTES] = [0; UNIT_BYTES];

/// The key of a volume. It is never shown, and its bytes are overwritten when it is dropped. They
/// stay where they were made: a move copies only the pointer, while the move of a plain value would
/// leave its bytes behind.
pub struct VolumeKey(Box<Zeroizing<[u8; Self::BYTES]>>);

const _: () = assert!(size_of::<VolumeKey>() == size_of::<usize>());

/// A key whose two halves are the same: XTS promises nothing with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("its two halves are the same, which no random key has")]
pub struct SameHalves;

impl VolumeKey {
    /// Two keys of AES-256.
    pub const BYTES: usize = 64;

    /// The key of these bytes: first the half that ciphers, then the tweak's.
    ///
    /// # Errors
    /// When both halves are the same.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Result<Self, SameHalves> {
        let (data, tweak) = bytes.split_at(Self::BYTES / 2);
        if constant_time::verify_slices_are_equal(data, tweak).is_ok() {
            return Err(SameHalves);
        }
        let mut key = Box::new(Zeroizing::new([0; Self::BYTES]));
        key.copy_from_slice(bytes);
        Ok(Self(key))
    }

    /// Tells keys apart without telling a key: 16 hexadecimal digits of an HMAC-SHA-256.
    pub fn check(&self) -> String {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.0[..]);
        HEXLOWER.encode(&hmac::sign(&key, CHECK_TEXT).as_ref()[..CHECK_BYTES])
    }
}

impl VolumeKey {
    /// The key under which a pool keeps the data keys of its encrypted volumes.
    pub fn wrapping(&self) -> WrappingKey {
        WrappingKey::new(&self.check(), &self.0[..])
    }
}

impl PartialEq for VolumeKey {
    fn eq(&self, other: &Self) -> bool {
        constant_time::verify_slices_are_equal(&self.0[..], &other.0[..]).is_ok()
    }
}

impl Eq for VolumeKey {}

impl fmt::Debug for VolumeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VolumeKey({})", self.check())
    }
}

/// One direction of the cipher, with the key's schedule. aws-lc clears it when it is freed.
struct Context(NonNull<EVP_CIPHER_CTX>);

impl Context {
    fn new(key: &VolumeKey, enciphers: bool) -> io::Result<Self> {
        // SAFETY: takes nothing, and gives a fresh context or null.
        let context = unsafe { EVP_CIPHER_CTX_new() };
        let context = Self(NonNull::new(context).ok_or(io::ErrorKind::OutOfMemory)?);
        let zero = [0; 16];
        // SAFETY: the context is ours alone; the cipher is a constant of the library, there is no
        // engine, the key has the 64 bytes and the tweak the 16 that this cipher reads, and both
        // are copied before it returns.
        let made = unsafe {
            EVP_CipherInit_ex(
                context.0.as_ptr(),
                EVP_aes_256_xts(),
                ptr::null_mut(),
                key.0.as_ptr(),
                zero.as_ptr(),
                i32::from(enciphers),
            )
        };
        // Equal halves were refused before, so all that is left is memory.
        if made == 1 { Ok(context) } else { Err(io::ErrorKind::OutOfMemory.into()) }
    }

    /// Ciphers one sector; `from` and `to` may be the same place.
    ///
    /// # Safety
    /// Both have [`UNIT_BYTES`] bytes, and are the same or do not overlap.
    #[inline]
    unsafe fn unit(&mut self, number: u64, from: *const u8, to: *mut u8) {
        let mut tweak = [0; 16];
        tweak[..8].copy_from_slice(&number.to_le_bytes());
        let context = self.0.as_ptr();
        // SAFETY: the context has cipher, key and direction from `new` (-1 leaves the direction),
        // and only this thread has it; the tweak has the 16 bytes that are copied from it.
        let set = unsafe {
            EVP_CipherInit_ex(
                context,
                ptr::null(),
                ptr::null_mut(),
                ptr::null(),
                tweak.as_ptr(),
                -1,
            )
        };
        // SAFETY: the context as above, with a tweak of its own for this one unit; the caller
        // promises the bytes on both sides, and the cipher adds none.
        let done = unsafe { EVP_Cipher(context, to, from, UNIT_BYTES) };
        // It fails for a wrong length or a tweak that was used; nothing may go on with what is
        // not ciphered.
        assert!(set == 1 && done == 1, "a unit with a key and a tweak is ciphered");
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: made by `EVP_CIPHER_CTX_new`, freed once; it clears the key's schedule.
        unsafe { EVP_CIPHER_CTX_free(self.0.as_ptr()) };
    }
}

/// Where in some segments a walk over sectors is.
struct Walk<'a> {
    segments: &'a [Segment],
    /// Bytes of the first of them that are behind.
    at: usize,
}

impl<'a> Walk<'a> {
    fn new(segments: &'a [Segment]) -> Self {
        Self { segments, at: 0 }
    }

    /// The next piece of at most `len` bytes, if there is one.
    fn piece(&mut self, len: usize) -> Option<(*mut u8, usize)> {
        loop {
            let (first, rest) = self.segments.split_first()?;
            let left = first.len as usize - self.at;
            if left == 0 {
                (self.segments, self.at) = (rest, 0);
                continue;
            }
            let place = first.addr.wrapping_add(self.at);
            let len = len.min(left);
            self.at += len;
            return Some((place, len));
        }
    }

    /// Where the next sector is, if it lies in one piece; it is behind then.
    fn whole(&mut self) -> Option<*mut u8> {
        let (segments, at) = (self.segments, self.at);
        match self.piece(UNIT_BYTES)? {
            (place, UNIT_BYTES) => Some(place),
            _ => {
                (self.segments, self.at) = (segments, at);
                None
            }
        }
    }

    /// Copies the next sector to `to`; `false` when there is none.
    ///
    /// # Safety
    /// The segments are mapped.
    unsafe fn gather(&mut self, to: &mut [u8; UNIT_BYTES]) -> bool {
        let mut done = 0;
        while done < UNIT_BYTES
            && let Some((from, len)) = self.piece(UNIT_BYTES - done)
        {
            // SAFETY: mapped, as the caller promises, and `to` is our own with room for the rest.
            unsafe { ptr::copy_nonoverlapping(from, to[done..].as_mut_ptr(), len) };
            done += len;
        }
        assert!(done == 0 || done == UNIT_BYTES, "requests are whole sectors long");
        done == UNIT_BYTES
    }

    /// Fills the next sector from `from`.
    ///
    /// # Safety
    /// As [`Self::gather`].
    unsafe fn scatter(&mut self, from: &[u8; UNIT_BYTES]) {
        let mut done = 0;
        while done < UNIT_BYTES
            && let Some((to, len)) = self.piece(UNIT_BYTES - done)
        {
            // SAFETY: as in `gather`.
            unsafe { ptr::copy_nonoverlapping(from[done..].as_ptr(), to, len) };
            done += len;
        }
    }
}

/// Both directions, for one channel: not shared between threads.
pub(super) struct Cipher {
    enciphers: Context,
    deciphers: Context,
}

impl fmt::Debug for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cipher(aes-256-xts)")
    }
}

impl Cipher {
    /// # Errors
    /// When there is no memory for it.
    pub(super) fn new(key: &VolumeKey) -> io::Result<Self> {
        Ok(Self { enciphers: Context::new(key, true)?, deciphers: Context::new(key, false)? })
    }

    /// Enciphers the bytes in `from` into `to`, from this sector of the volume on. `from` stays as
    /// it is.
    ///
    /// # Safety
    /// All segments are mapped. `to` has as many bytes as `from`, in whole sectors, each of which
    /// is in one piece, and no other code uses `to`.
    pub(super) unsafe fn encipher(&mut self, first: u64, from: &[Segment], to: &[Segment]) {
        let (mut from, mut to) = (Walk::new(from), Walk::new(to));
        let mut number = first;
        while let Some(place) = to.whole() {
            match from.whole() {
                // SAFETY: a mapped sector on either side, as the caller promises.
                Some(sector) => unsafe { self.enciphers.unit(number, sector, place) },
                // A guest may cut its buffers anywhere.
                None => {
                    let mut sector = [0; UNIT_BYTES];
                    // SAFETY: mapped; then from our own copy.
                    let found = unsafe { from.gather(&mut sector) };
                    assert!(found, "both sides are as long");
                    // SAFETY: as above.
                    unsafe { self.enciphers.unit(number, sector.as_ptr(), place) };
                }
            }
            number += 1;
        }
    }

    /// Enciphers zeroes into `to`.
    ///
    /// # Safety
    /// As [`Self::encipher`].
    pub(super) unsafe fn encipher_zeroes(&mut self, first: u64, to: &[Segment]) {
        let mut to = Walk::new(to);
        let mut number = first;
        while let Some(place) = to.whole() {
            // SAFETY: a mapped sector, as the caller promises, and a constant one.
            unsafe { self.enciphers.unit(number, ZEROES.as_ptr(), place) };
            number += 1;
        }
    }

    /// Deciphers in place what the segments hold, from this sector of the volume on.
    ///
    /// # Safety
    /// The segments are mapped, and are whole sectors together.
    pub(super) unsafe fn decipher(&mut self, first: u64, segments: &[Segment]) {
        let mut walk = Walk::new(segments);
        let mut number = first;
        loop {
            if let Some(place) = walk.whole() {
                // SAFETY: a mapped sector, as the caller promises; one place is both sides.
                unsafe { self.deciphers.unit(number, place, place) };
            } else {
                let (mut sector, mut back) = ([0; UNIT_BYTES], Walk { ..walk });
                // SAFETY: mapped.
                if !unsafe { walk.gather(&mut sector) } {
                    return;
                }
                let place = sector.as_mut_ptr();
                // SAFETY: our own copy; and then where it came from.
                unsafe {
                    self.deciphers.unit(number, place, place);
                    back.scatter(&sector);
                }
            }
            number += 1;
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
