//! Where to go on with a packed ring of which only the ring is left: its predecessor was killed,
//! and there is no inflight region. For devices that use chains in the order in which they take
//! them.
//!
//! Such a device flips the USED bit of each slot that it comes by, also of those that a chain has
//! behind its first. So up to the place where it is the bits are this round's, and from there on
//! those of the round before:
//!
//! ```text
//!   USED   1 1 1 1 0 0 0 0        the next one to be used is the fifth, with the counter 1
//! ```
//! A batch is marked from its end, since the driver must see all of it at once. A predecessor that
//! was killed in the middle of that left marked slots behind some that are not, for which the
//! driver waits:
//!
//! ```text
//!   USED   1 1 0 1 1 0 0 0        the batch is slots three to five
//! ```
//! The batch is given back with nothing in it: its contents are lost, as frames may be. Rings that
//! were used by devices of other makers mostly look like neither, and then the front end's word
//! counts.

use super::position::{AT_LENGTH, AVAIL, PackedPosition, USED, flags_at};
use crate::descriptor::{DESCRIPTOR_BYTES, NEXT};
use crate::shared::{Area, Stores};

/// Where a predecessor was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ResumePoint {
    size: u16,
    /// The next slot that the driver waits for.
    used: PackedPosition,
    /// A batch that was not shown: so many slots that are not marked, and to the end of those that
    /// are. Zero both, usually.
    unmarked: u16,
    batch: u16,
}

/// Slots where a device may be: the first, and those whose bits are not those of the slot before.
/// That is where the device is, the two ends of a batch that was not shown, where the driver is,
/// and the two ends of the rest of a chain that it begins.
const PLACES_MAX: usize = 8;

/// Finds it, if the ring looks as one of ours does.
pub(super) fn find(ring: &Area, size: u16) -> Option<ResumePoint> {
    // Each once: the driver may go on meanwhile, and change what is behind the device.
    let flags: Vec<u16> = (0..size).map(|slot| flags_at(ring, slot)).collect();
    let bits = |slot: u16| flags[usize::from(slot)] & (AVAIL | USED);
    let mut places = vec![0];
    for slot in (1..size).filter(|slot| bits(*slot) != bits(slot - 1)) {
        places.push(slot);
        if places.len() > PLACES_MAX {
            return None;
        }
    }
    let both = |slot: u16| [false, true].map(|wrap| PackedPosition { slot, wrap });
    let mut found = places.into_iter().flat_map(both).filter_map(|used| look(&flags, used));
    let first = found.next()?;
    found.next().is_none().then_some(first)
}

/// Whether a device that is there would have left these flags.
fn look(flags: &[u16], used: PackedPosition) -> Option<ResumePoint> {
    // No ring has more than 32768.
    let size = flags.len() as u16;
    let at = |slots: u16| (used.after(slots, size), flags);
    let is_marked = |slots: &u16| {
        let (place, flags) = at(*slots);
        (flags[usize::from(place.slot)] & USED != 0) == place.wrap
    };
    let is_available = |slots: &u16| {
        let (place, flags) = at(*slots);
        (flags[usize::from(place.slot)] & AVAIL != 0) == place.wrap
    };
    let (unmarked, batch) = match (0..size).find(is_marked) {
        None => (0, 0),
        Some(0) => return None,
        Some(begin) => (begin, (begin..size).find(|it| !is_marked(it)).unwrap_or(size)),
    };
    if (batch..size).any(|it| is_marked(&it)) || !(0..batch).all(|it| is_available(&it)) {
        return None;
    }
    // Behind it is what the driver has made available, and at most the rest of one chain more: the
    // driver, too, comes to a chain's first descriptor last.
    let free = (batch..size).find(|it| !is_available(it)).unwrap_or(size);
    let behind = (free.saturating_add(1)..size).find(|it| !is_available(it)).unwrap_or(size);
    // A chain that fills the ring is none: that is a batch which fills it.
    let is_ours = !(behind..size).any(|it| is_available(&it)) && (free > 0 || behind < size);
    is_ours.then_some(ResumePoint { size, used, unmarked, batch })
}

impl ResumePoint {
    /// Gives back the batch that was not shown, and returns the place to go on. A process that is
    /// killed in here leaves a ring that looks as before. Nothing if the driver's chains are not as
    /// they were.
    pub(super) fn give_back(self, ring: &Area, stores: &mut Stores) -> Option<PackedPosition> {
        let Self { size, used, unmarked, batch } = self;
        let (mut chains, mut slots) = (Vec::new(), 0);
        while slots < unmarked {
            let first = slots;
            let place = |slots| used.after(slots, size);
            let is_last = |slots: &u16| flags_at(ring, place(*slots).slot) & NEXT == 0;
            let last = (first..batch).find(is_last)?;
            let word = ring.load_u64(at_length(place(last)));
            chains.push((first, last, (word >> 32) as u16));
            slots = last + 1;
        }
        // A frame may have begun in front of these.
        for place in (slots..batch).map(|slots| used.after(slots, size)) {
            stores.u32(ring, at_length(place), 0);
        }
        for (first, last, id) in chains.into_iter().rev() {
            for slots in (first + 1..=last).rev() {
                used.after(slots, size).mark_used(ring, stores);
            }
            let place = used.after(first, size);
            let flags = if place.wrap { AVAIL | USED } else { 0 };
            let word = u64::from(id) << 32 | u64::from(flags) << 48;
            stores.u64(ring, at_length(place), word);
        }
        Some(used.after(batch, size))
    }
}

fn at_length(place: PackedPosition) -> usize {
    usize::from(place.slot) * DESCRIPTOR_BYTES + AT_LENGTH
}
