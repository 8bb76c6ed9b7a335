//! Files of a node's records, byte by byte, each with a code that only this node can make.
//!
//! The code covers what the file is about, so that a record does not pass for another one's. It is
//! made with a secret of the directory, which goes where the records go (`home.rs`). An old record
//! in the place of a newer one of the same name has a good code: that it is old is noticed only by
//! what its client knows (`export/judge.rs`).

use aws_lc_rs::hmac;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{REPLACED_MAX, Record, plain};
use crate::name::{NAME_BYTES_MAX, Name};
use crate::volume::Incarnation;
use peer::AttachmentKey;

/// Bytes of the secret.
pub(super) const SECRET_BYTES: usize = 32;

/// The secret that the codes are made with.
pub(super) struct Secret {
    key: hmac::Key,
    /// Tells a record of another directory from a damaged one.
    id: [u8; 8],
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secret").finish_non_exhaustive()
    }
}

impl Secret {
    pub(super) fn new(bytes: &[u8; SECRET_BYTES]) -> Self {
        let key = hmac::Key::new(hmac::HMAC_SHA256, bytes);
        let mut id = [0; 8];
        id.copy_from_slice(&hmac::sign(&key, b"vrio records: which secret").as_ref()[..8]);
        Self { key, id }
    }

    /// Of a file of this kind, about these names. Lengths first, so that no two are the same bytes.
    fn statement(&self, kind: &[u8; 4], names: [&str; 2], body: &[u8]) -> hmac::Context {
        let mut context = hmac::Context::with_key(&self.key);
        context.update(b"vrio record 3");
        context.update(kind);
        for part in [names[0].as_bytes(), names[1].as_bytes(), body] {
            context.update(&(part.len() as u64).to_le_bytes());
            context.update(part);
        }
        context
    }
}

/// Why a file is not believed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NotSealed {
    Damaged,
    /// Of an older program, without a code.
    Plain,
    OtherSecret,
    Newer(u32),
}

/// The head before a body.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct SealedHead {
    magic: [u8; 4],
    version: U32,
    secret: [u8; 8],
}

const CODE_BYTES: usize = 32;

/// The present format of all of them. Records before it had no code (`plain.rs`).
const VERSION: u32 = 3;

/// A body of a kind.
pub(super) trait Body: FromBytes + IntoBytes + KnownLayout + Immutable {
    /// The first bytes of its file.
    const KIND: [u8; 4];
}

/// The file that says this about these names.
pub(super) fn seal<B: Body>(secret: &Secret, names: [&str; 2], body: &B) -> Vec<u8> {
    let head = SealedHead { magic: B::KIND, version: VERSION.into(), secret: secret.id };
    let mut bytes = [head.as_bytes(), body.as_bytes()].concat();
    let code = secret.statement(&B::KIND, names, &bytes).sign();
    bytes.extend_from_slice(code.as_ref());
    bytes
}

/// The body of a file that was sealed for these names.
pub(super) fn open<B: Body>(
    secret: &Secret,
    names: [&str; 2],
    bytes: &[u8],
) -> Result<B, NotSealed> {
    let (head, _) = SealedHead::read_from_prefix(bytes).map_err(|_| NotSealed::Damaged)?;
    if head.magic != B::KIND {
        return Err(NotSealed::Damaged);
    }
    if plain::read(bytes).is_some() {
        return Err(NotSealed::Plain);
    }
    if bytes.len() != size_of::<SealedHead>() + size_of::<B>() + CODE_BYTES
        || head.version.get() != VERSION
    {
        let newer = head.version.get() > VERSION && head.secret == secret.id;
        return Err(if newer { NotSealed::Newer(head.version.get()) } else { NotSealed::Damaged });
    }
    let (said, code) = bytes.split_at(bytes.len() - CODE_BYTES);
    let right = secret.statement(&B::KIND, names, said).sign();
    if aws_lc_rs::constant_time::verify_slices_are_equal(right.as_ref(), code).is_err() {
        let other = head.secret != secret.id;
        return Err(if other { NotSealed::OtherSecret } else { NotSealed::Damaged });
    }
    B::read_from_bytes(&said[size_of::<SealedHead>()..]).map_err(|_| NotSealed::Damaged)
}

/// A record.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct RecordBody {
    epoch: U64,
    claimant: U64,
    incarnation: [u8; 16],
    replaced: [U64; REPLACED_MAX],
    clean: U64,
    born: U64,
    node: [u8; NAME_BYTES_MAX + 1],
    key: [u8; 32],
    has_key: U64,
}

impl Body for RecordBody {
    const KIND: [u8; 4] = *b"vrAT";
}

impl From<&Record> for RecordBody {
    fn from(record: &Record) -> Self {
        Self {
            epoch: record.epoch.into(),
            claimant: record.claimant.into(),
            incarnation: record.incarnation.0,
            replaced: record.replaced.map(U64::new),
            clean: u64::from(record.clean).into(),
            born: record.born.into(),
            node: *record.node.bytes(),
            key: record.key.map_or([0; 32], |key| key.0),
            has_key: u64::from(record.key.is_some()).into(),
        }
    }
}

impl RecordBody {
    pub(super) fn record(&self) -> Record {
        Record {
            epoch: self.epoch.get(),
            claimant: self.claimant.get(),
            incarnation: Incarnation(self.incarnation),
            replaced: self.replaced.map(U64::get),
            clean: self.clean.get() != 0,
            born: self.born.get(),
            node: Name::from_bytes(self.node).unwrap_or_default(),
            key: (self.has_key.get() != 0).then_some(AttachmentKey(self.key)),
        }
    }
}

/// The floor of a volume's records, which stays when records are forgotten.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct FloorBody {
    /// No forgotten record has a later epoch.
    pub(super) epoch: U64,
}

impl Body for FloorBody {
    const KIND: [u8; 4] = *b"vrFL";
}

/// Which incarnation a file is.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct IncarnationBody {
    /// The state of the host under the file when it was opened. Zeroes over it make the file
    /// unsound.
    pub(super) seen: [u8; 16],
    pub(super) incarnation: [u8; 16],
}

/// The place of [`IncarnationBody::seen`] in the file.
pub(super) const AT_SEEN: u64 = size_of::<SealedHead>() as u64;

impl Body for IncarnationBody {
    const KIND: [u8; 4] = *b"vrIN";
}
