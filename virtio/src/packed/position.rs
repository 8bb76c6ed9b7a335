//! A position in a packed ring: a slot with a wrap counter, and the flags of the slot's descriptor.

use crate::descriptor::DESCRIPTOR_BYTES;
use crate::shared::{Area, Stores};

pub(super) const AVAIL: u16 = 1 << 7;
pub(super) const USED: u16 = 1 << 15;

/// In a descriptor: length, id and flags are its second word.
pub(super) const AT_LENGTH: usize = 8;
pub(super) const AT_FLAGS: usize = 14;

/// In a base, or in an event structure: the wrap counter above the slot.
pub(super) const WRAP: u16 = 1 << 15;

/// A slot of the ring and the wrap counter of the side that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackedPosition {
    pub(crate) slot: u16,
    pub(crate) wrap: bool,
}

impl PackedPosition {
    /// From 15 bits of slot and one of wrap counter.
    pub(super) fn from_bits(bits: u16) -> Self {
        Self { slot: bits & !WRAP, wrap: bits & WRAP != 0 }
    }

    pub(super) fn bits(self) -> u16 {
        self.slot | if self.wrap { WRAP } else { 0 }
    }

    /// The place `slots` further on, at most once around.
    pub(crate) fn after(self, slots: u16, size: u16) -> Self {
        let slot = self.slot + slots;
        if slot < size {
            Self { slot, ..self }
        } else {
            Self { slot: slot - size, wrap: !self.wrap }
        }
    }

    /// Whether these are the flags of a descriptor that is available here.
    pub(crate) fn is_available(self, flags: u16) -> bool {
        (flags & AVAIL != 0) == self.wrap && (flags & USED != 0) != self.wrap
    }

    /// Marks the descriptor here as used, and leaves the rest of its flags.
    pub(super) fn mark_used(self, ring: &Area, stores: &mut Stores) {
        let mine = if self.wrap { AVAIL | USED } else { 0 };
        let flags = flags_at(ring, self.slot) & !(AVAIL | USED) | mine;
        stores.u16(ring, usize::from(self.slot) * DESCRIPTOR_BYTES + AT_FLAGS, flags);
    }

    pub(super) fn is_used(self, flags: u16) -> bool {
        (flags & AVAIL != 0) == self.wrap && (flags & USED != 0) == self.wrap
    }
}

/// The flags of a slot.
pub(crate) fn flags_at(ring: &Area, slot: u16) -> u16 {
    ring.load_u16_acquire(usize::from(slot) * DESCRIPTOR_BYTES + AT_FLAGS)
}
