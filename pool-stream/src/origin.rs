//! The identity of a snapshot, over all pools and copies, and a copy that is on its way.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A volume or a snapshot of a pool. An id is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct VolumeId(pub u32);

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The most blocks of a volume: the ones that four levels of nodes have.
pub const VOLUME_BLOCKS_MAX: u64 = 1 << 36;

/// The longest name of a volume or snapshot.
pub const NAME_CHARS_MAX: usize = 64;

/// Bytes of an origin in a stream.
pub(crate) const ORIGIN_BYTES: usize = 40;

/// The identity of a snapshot: the pool where it was taken, and its number there. A copy that was
/// received has the identity of the original. Generation and time tell pools apart that were
/// copied with all their devices and went on by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotOrigin {
    /// The UUID of the pool.
    #[serde(serialize_with = "write_uuid", deserialize_with = "read_uuid")]
    pub pool: [u8; 16],
    /// The number of the snapshot there.
    pub id: u32,
    /// The pool's generation when it was taken.
    pub generation: u64,
    /// When it was taken, in seconds since 1970.
    pub at_s: u64,
}

fn write_uuid<S: Serializer>(uuid: &[u8; 16], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&format!("{:032x}", u128::from_be_bytes(*uuid)))
}

fn read_uuid<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[u8; 16], D::Error> {
    let text = String::deserialize(deserializer)?;
    let is_plain = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let uuid = u128::from_str_radix(&text, 16).ok().filter(|_| is_plain);
    let wrong = || serde::de::Error::custom("a UUID has 32 hexadecimal digits");
    uuid.map(u128::to_be_bytes).ok_or_else(wrong)
}

impl SnapshotOrigin {
    pub(crate) fn to_bytes(self) -> [u8; ORIGIN_BYTES] {
        let mut bytes = [0; ORIGIN_BYTES];
        bytes[..16].copy_from_slice(&self.pool);
        bytes[16..24].copy_from_slice(&u64::from(self.id).to_le_bytes());
        bytes[24..32].copy_from_slice(&self.generation.to_le_bytes());
        bytes[32..].copy_from_slice(&self.at_s.to_le_bytes());
        bytes
    }

    /// The origin in these bytes; `None` if the number is impossible.
    pub(crate) fn of_bytes(bytes: &[u8]) -> Option<Self> {
        let word =
            |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        Some(Self {
            pool: bytes[..16].try_into().expect("16 bytes"),
            id: u32::try_from(word(16)).ok()?,
            generation: word(24),
            at_s: word(32),
        })
    }

    /// A base, which may be missing.
    pub(crate) fn base_bytes(base: Option<Self>) -> [u8; ORIGIN_BYTES] {
        base.map_or([0; ORIGIN_BYTES], Self::to_bytes)
    }

    /// The base in these bytes. All zeroes stand for none.
    pub(crate) fn base_of(bytes: &[u8]) -> Option<Option<Self>> {
        if bytes[..ORIGIN_BYTES].iter().all(|byte| *byte == 0) {
            return Some(None);
        }
        Self::of_bytes(bytes).map(Some)
    }
}

/// A stream that is being received into a volume. The volume has neither the old content nor the
/// new content meanwhile. This is part of a checkpoint and of changes, so a field's name is part of
/// the format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeReceive {
    /// The name that the snapshot will have.
    pub name: String,
    /// The snapshot that is received.
    pub origin: SnapshotOrigin,
    /// The base, if it is a difference.
    pub base: Option<SnapshotOrigin>,
    /// The base in this pool.
    pub onto: Option<VolumeId>,
    /// The size that the volume will have.
    pub blocks: u64,
    /// All blocks below are received.
    pub next_block: u64,
}

impl VolumeReceive {
    /// Whether this is a stream of the same content.
    pub fn is_of(&self, other: &Self) -> bool {
        (self.origin, self.base, self.blocks) == (other.origin, other.base, other.blocks)
    }
}

/// Whether a volume or snapshot can have this name.
pub fn is_name(name: &str) -> bool {
    let may = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let begins = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    begins && name.len() <= NAME_CHARS_MAX && name.chars().all(may)
}
