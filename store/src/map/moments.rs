//! Moments of histories, as the catalog, checkpoints and the engine have them.

use std::collections::BTreeMap;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The lowest number of a moment.
pub(super) const MOMENT_FIRST: u32 = 1 << 31;

pub(super) fn is_moment(id: u32) -> bool {
    id >= MOMENT_FIRST
}

/// The moments of a volume.
#[derive(Debug, Default)]
pub(super) struct VolumeMoments {
    /// Moments that can be asked for, by their generation.
    pub(super) kept: BTreeMap<u64, u32>,
    /// All moments, with moments that are being removed.
    pub(super) count: usize,
    /// Blocks that only they have.
    pub(super) held: u64,
}

/// The time as histories need it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HistoryClock {
    /// Nanoseconds since 1970.
    pub(crate) utc_ns: u64,
    /// Nanoseconds since the pool's last moment, by a clock that does not jump.
    pub(crate) since_ns: u64,
    /// The pool has little room.
    pub(crate) is_low: bool,
}

/// Moments that are removed: up to a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Forgetting {
    pub(crate) volume: u32,
    pub(crate) generation: u64,
    pub(crate) is_early: bool,
}

/// The work on histories that is due.
#[derive(Debug, Default)]
pub(crate) struct HistoryWork {
    /// Volumes of which a moment is taken.
    pub(crate) due: Vec<u32>,
    /// Moments that go.
    pub(crate) forget: Option<Forgetting>,
}

/// A moment, as a checkpoint has it.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct MomentRecord {
    pub(super) id: U32,
    /// The volume.
    pub(super) of: U32,
    /// All ones for none.
    pub(super) parent: U32,
    /// The generation in the lower 28 bits, and the bit of a moment that is being removed.
    pub(super) generation: U32,
    pub(super) at_ns: U64,
    pub(super) root: U64,
    pub(super) blocks: U64,
    pub(super) owned: U64,
    /// All ones if that is not known.
    pub(super) refers: U64,
    /// Pages that its history alone has, up to 2^32 - 1.
    pub(super) held: U32,
    /// All ones for none.
    pub(super) family: U32,
}

const _: () = assert!(size_of::<MomentRecord>() == 64);
