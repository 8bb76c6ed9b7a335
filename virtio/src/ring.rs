//! The parts that split and packed rings have in common: the layout's kind, addresses, and the
//! place of each chain.

use crate::error::RingError;

/// The base of a packed ring that is new: both positions at the first slot, and both wrap counters
/// (bit 15 of each half) set.
pub(crate) const BASE_FRESH: u32 = 1 << 31 | 1 << 15;

/// The layout of a ring. Negotiated by the feature `RING_PACKED`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RingKind {
    /// A descriptor table, an available and a used ring.
    #[default]
    Split,
    /// One ring of descriptors, which both sides write.
    Packed,
}

impl RingKind {
    /// The base of a ring that was never used.
    pub fn base_fresh(self) -> u32 {
        match self {
            Self::Split => 0,
            Self::Packed => BASE_FRESH,
        }
    }
}

/// Guest addresses of a ring, and its size and features.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingPlan {
    pub(crate) desc: u64,
    pub(crate) avail: u64,
    pub(crate) used: u64,
    pub(crate) size: u16,
    pub(crate) event_idx: bool,
    /// Where the log of dirty pages has the device's part; the guest address, unless told.
    pub(crate) used_logged_at: Option<u64>,
}

/// A chain that was read from a ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TakenChain {
    pub(crate) head: u16,
    /// It was found in the inflight region.
    pub(crate) redone: bool,
}

/// The place of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChainState {
    /// With the driver.
    Free,
    /// Handed out by `take`, translated by the table of this number.
    Out { table: u16 },
    /// Put, not yet published.
    Staged,
}

/// The place of each chain of a ring, by the chain's name.
#[derive(Debug)]
pub(crate) struct Chains(pub(crate) Vec<ChainState>);

impl Chains {
    /// Whether the driver may legally have made this chain available.
    #[inline]
    pub(crate) fn check_free(&self, head: u16) -> Result<(), RingError> {
        match self.0.get(usize::from(head)) {
            Some(ChainState::Free) => Ok(()),
            Some(_) => Err(RingError::HeadInUse { head }),
            None => Err(RingError::OutOfRange { index: head, size: self.0.len() as u16 }),
        }
    }
}
