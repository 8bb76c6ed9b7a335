//! Sealing: pages of encrypted volumes are under AES-256-GCM.
//!
//! ```text
//! wrapping key   a file of the node: opens the data keys that the catalog keeps
//!      └─ data key   one for a family: a volume, its snapshots, its clones, and theirs
//!            └─ page key   one for each opening of the pool, by the opening's random salt
//!                   └─ nonce   the page's number and the sequence of the row that it is sealed in
//! ```
//!
//! A pair of key and nonce is never used twice. In an opening, a row's sequence is given once and
//! no row has a number twice. Another opening has another salt, also an opening of a copy of the
//! pool or of an older state of it. A page that is moved keeps its ciphertext, and needs no key.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Salt};
use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use zeroize::Zeroizing;

/// Bytes of a key of AES-256.
const KEY_BYTES: usize = 32;

/// Bytes of the cipher's tag.
const TAG_BYTES: usize = size_of::<SealTag>();

/// The cipher's tag of a page.
pub type SealTag = [u8; 16];

/// The longest name of a wrapping key.
const KEY_ID_CHARS_MAX: usize = 64;

/// New data keys that wait for their changes. A node makes one change after the other.
const PROPOSED_MAX: usize = 8;

/// Keys of pages that are kept ready: those of the families and openings that are in use. A key is
/// derived again in some microseconds.
const PAGE_KEYS_MAX: usize = 4096;

/// The purpose of a wrapping key, so that the same secret may have another use elsewhere.
const WRAPPING_LABEL: &[u8] = b"vrio pool wrapping key";

/// The same for the keys of pages.
const PAGE_LABEL: &[u8] = b"vrio pool page key";

/// A family of volumes as the catalog names it.
pub type FamilyUuid = [u8; 16];

/// Why a wrapped key was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum UnwrapError {
    /// It is under another wrapping key.
    #[error("it is under another key")]
    OtherKey,
    /// It is another key than was wrapped.
    #[error("it is damaged")]
    Damaged,
}

struct KeyLength;

impl KeyType for KeyLength {
    fn len(&self) -> usize {
        KEY_BYTES
    }
}

/// HKDF-SHA-256: a key of 32 bytes from a secret.
fn derive(secret: &[u8], salt: &[u8], label: &[&[u8]]) -> Zeroizing<[u8; KEY_BYTES]> {
    let mut key = Zeroizing::new([0; KEY_BYTES]);
    let material = Salt::new(HKDF_SHA256, salt).extract(secret);
    let filled = material.expand(label, KeyLength).and_then(|okm| okm.fill(&mut key[..]));
    filled.expect("HKDF gives 32 bytes");
    key
}

fn cipher(key: &[u8; KEY_BYTES]) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).expect("a key of AES-256 has 32 bytes"))
}

/// The key under which data keys are kept. It is the node's, and not in the pool.
pub struct WrappingKey {
    id: String,
    key: LessSafeKey,
}

impl fmt::Debug for WrappingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WrappingKey({})", self.id)
    }
}

impl WrappingKey {
    /// The wrapping key that follows from a secret, by the name that people know the secret by.
    pub fn new(id: &str, secret: &[u8]) -> Self {
        let key = derive(secret, &[], &[WRAPPING_LABEL]);
        Self { id: id.chars().take(KEY_ID_CHARS_MAX).collect(), key: cipher(&key) }
    }

    /// Its name.
    pub fn id(&self) -> &str {
        &self.id
    }
}

/// A data key: all that a family's volumes have is under keys that follow from it.
#[derive(Clone)]
pub struct DataKey(Box<Zeroizing<[u8; KEY_BYTES]>>);

impl fmt::Debug for DataKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DataKey")
    }
}

impl DataKey {
    /// A key of random bytes.
    pub fn new(random: &[u8; KEY_BYTES]) -> Self {
        let mut key = Box::new(Zeroizing::new([0; KEY_BYTES]));
        key.copy_from_slice(random);
        Self(key)
    }
}

/// A data key as the catalog keeps it. Its fields' names are part of the format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrappedKey {
    /// Which of the family's data keys it is, counted from 1.
    pub version: u32,
    /// The name of the wrapping key.
    pub key_id: String,
    /// The cipher's nonce, in hexadecimal digits.
    nonce: String,
    /// The data key and the cipher's tag, in hexadecimal digits.
    sealed: String,
}

impl WrappedKey {
    /// Wraps a data key; the nonce comes from a random source.
    pub fn wrap(
        data: &DataKey,
        wrapping: &WrappingKey,
        family: &SealFamilyName,
        version: u32,
        nonce: [u8; NONCE_LEN],
    ) -> Self {
        let mut sealed = Zeroizing::new([0; KEY_BYTES + TAG_BYTES]);
        sealed[..KEY_BYTES].copy_from_slice(&data.0[..]);
        let aad = Aad::from(family.with(version));
        let once = Nonce::assume_unique_for_key(nonce);
        let tag = wrapping.key.seal_in_place_separate_tag(once, aad, &mut sealed[..KEY_BYTES]);
        sealed[KEY_BYTES..].copy_from_slice(tag.expect("a key is short").as_ref());
        let key_id = wrapping.id.clone();
        let (nonce, sealed) = (HEXLOWER.encode(&nonce), HEXLOWER.encode(&sealed[..]));
        Self { version, key_id, nonce, sealed }
    }

    /// The data key.
    ///
    /// # Errors
    /// If it is under another wrapping key, or damaged.
    pub fn unwrap(
        &self,
        wrapping: &WrappingKey,
        family: &SealFamilyName,
    ) -> Result<DataKey, UnwrapError> {
        if self.key_id != wrapping.id {
            return Err(UnwrapError::OtherKey);
        }
        let nonce = HEXLOWER.decode(self.nonce.as_bytes()).ok();
        let nonce: Option<[u8; NONCE_LEN]> = nonce.and_then(|nonce| nonce.try_into().ok());
        let sealed = HEXLOWER.decode(self.sealed.as_bytes()).ok();
        let (Some(nonce), Some(sealed)) = (nonce, sealed) else {
            return Err(UnwrapError::Damaged);
        };
        let mut sealed = Zeroizing::new(sealed);
        let aad = Aad::from(family.with(self.version));
        let once = Nonce::assume_unique_for_key(nonce);
        let opened = wrapping.key.open_in_place(once, aad, &mut sealed);
        let opened = opened.ok().and_then(|opened| opened.first_chunk());
        opened.map(DataKey::new).ok_or(UnwrapError::Damaged)
    }

    /// Whether its fields are as long as a wrapped key's.
    pub fn is_possible(&self) -> bool {
        self.version > 0
            && self.key_id.len() <= KEY_ID_CHARS_MAX
            && self.nonce.len() == 2 * NONCE_LEN
            && self.sealed.len() == 2 * (KEY_BYTES + TAG_BYTES)
    }
}

/// The name of a family over all pools: it goes into each key and each wrapped key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SealFamilyName {
    /// The pool.
    pub pool: [u8; 16],
    /// The family.
    pub family: FamilyUuid,
}

impl SealFamilyName {
    fn with(&self, version: u32) -> [u8; 36] {
        let mut name = [0; 36];
        name[..16].copy_from_slice(&self.pool);
        name[16..32].copy_from_slice(&self.family);
        name[32..].copy_from_slice(&version.to_le_bytes());
        name
    }
}

/// The key of a family's pages of one opening.
pub struct PageKey {
    key: LessSafeKey,
    /// Which of the family's data keys it follows from.
    pub version: u32,
}

impl fmt::Debug for PageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PageKey of version {}", self.version)
    }
}

/// The cipher's nonce: 40 bits of the page's number, and 56 of the row's sequence.
fn nonce(number: u64, sequence: u64) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[..5].copy_from_slice(&number.to_le_bytes()[..5]);
    bytes[5..].copy_from_slice(&sequence.to_le_bytes()[..7]);
    Nonce::assume_unique_for_key(bytes)
}

impl PageKey {
    fn new(data: &DataKey, name: &SealFamilyName, version: u32, salt: u128) -> Self {
        let label: [&[u8]; 2] = [PAGE_LABEL, &name.with(version)];
        let key = derive(&data.0[..], &salt.to_le_bytes(), &label);
        Self { key: cipher(&key), version }
    }

    /// Seals a page in its place, in the row `sequence`.
    ///
    /// # Panics
    /// If the page is longer than the cipher's longest text.
    pub fn seal(&self, number: u64, sequence: u64, page: &mut [u8]) -> SealTag {
        let nonce = nonce(number, sequence);
        let tag = self.key.seal_in_place_separate_tag(nonce, Aad::empty(), page);
        tag.expect("a page is short").as_ref().try_into().expect("a tag of 16 bytes")
    }

    /// Opens a page in its place; whether it is what was sealed. If not, its content is undefined.
    pub fn open(&self, number: u64, sequence: u64, tag: &SealTag, page: &mut [u8]) -> bool {
        let nonce = nonce(number, sequence);
        self.key.open_in_place_separate_tag(nonce, Aad::empty(), tag, page).is_ok()
    }
}

/// The keys that the engine was given, and those that follow from them.
#[derive(Debug, Default)]
pub struct SealKeys {
    data: HashMap<(u32, u32), (SealFamilyName, DataKey)>,
    pages: HashMap<(u32, u32, u128), Arc<PageKey>>,
    /// New data keys of families whose changes are not applied. Nothing is sealed with one: a
    /// change may be refused, and the catalog then keeps another key of the same version.
    proposed: Vec<(u32, WrappedKey, SealFamilyName, DataKey)>,
}

impl SealKeys {
    /// A family's data key of a version.
    pub fn insert(&mut self, family: u32, version: u32, name: SealFamilyName, key: DataKey) {
        self.pages.retain(|&(of, old, _), _| (of, old) != (family, version));
        self.data.insert((family, version), (name, key));
    }

    /// A family's next data key, which is used once its change is applied.
    pub fn propose(
        &mut self,
        family: u32,
        wrapped: WrappedKey,
        name: SealFamilyName,
        key: DataKey,
    ) {
        if self.proposed.len() >= PROPOSED_MAX {
            self.proposed.remove(0);
        }
        self.proposed.push((family, wrapped, name, key));
    }

    /// A family has this data key from here on, and no other that was proposed for it.
    pub fn adopt(&mut self, family: u32, wrapped: &WrappedKey) {
        let (of, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.proposed).into_iter().partition(|it| it.0 == family);
        self.proposed = others;
        let found = of.into_iter().find(|(_, known, ..)| known == wrapped);
        if let Some((_, _, name, key)) = found {
            self.insert(family, wrapped.version, name, key);
        }
    }

    /// The data key of a version, if it was given.
    pub fn data(&self, family: u32, version: u32) -> Option<&DataKey> {
        self.data.get(&(family, version)).map(|(_, key)| key)
    }

    /// Forgets all keys but those of families that `keeps` wants.
    pub fn retain(&mut self, keeps: impl Fn(u32, u32) -> bool) {
        self.data.retain(|&(family, version), _| keeps(family, version));
        self.pages.retain(|&(family, version, _), _| keeps(family, version));
    }

    /// The key of a family's pages of an opening; `None` if its data key was not given.
    pub fn page(&mut self, family: u32, version: u32, salt: u128) -> Option<&Arc<PageKey>> {
        let at = (family, version, salt);
        if !self.pages.contains_key(&at) {
            let (name, data) = self.data.get(&(family, version))?;
            if self.pages.len() >= PAGE_KEYS_MAX {
                self.pages.clear();
            }
            self.pages.insert(at, Arc::new(PageKey::new(data, name, version, salt)));
        }
        self.pages.get(&at)
    }
}

/// Random bytes for a family's new data key; they come from a random source and are used once.
pub struct SealEntropy(Zeroizing<[u8; Self::BYTES]>);

impl fmt::Debug for SealEntropy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealEntropy")
    }
}

impl SealEntropy {
    /// How many bytes it needs: a name, a key and a nonce.
    pub const BYTES: usize = 16 + KEY_BYTES + NONCE_LEN;

    /// Takes the bytes.
    pub fn new(bytes: Zeroizing<[u8; Self::BYTES]>) -> Self {
        Self(bytes)
    }

    /// The name of a new family.
    pub fn name(&self) -> FamilyUuid {
        self.0[..16].try_into().expect("16 bytes")
    }

    /// The data key.
    pub fn key(&self) -> &[u8; KEY_BYTES] {
        self.0[16..][..KEY_BYTES].try_into().expect("32 bytes")
    }

    /// The nonce for wrapping it.
    pub fn nonce(&self) -> [u8; NONCE_LEN] {
        self.0[16 + KEY_BYTES..].try_into().expect("12 bytes")
    }
}

#[cfg(test)]
mod tests;
