//! Where things are in a region; docs/fabric-region.md is this file in prose.

use crate::shared::WORD;

/// The first word of a region: "vriofabr".
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"vriofabr");

/// Changed with any change of what is where, or of what it means.
pub const REGION_VERSION: u32 = 4;

/// Everything begins at a page.
const PAGE: usize = 4096;

/// The header's part of the region.
pub(super) const HEADER_BYTES: usize = PAGE;

/// The header's words.
pub(super) mod header {
    pub(in crate::region) const MAGIC: usize = 0;
    /// Version (32 bits), slots (16), gateways (16).
    pub(in crate::region) const VERSION: usize = 8;
    /// Cells of a ring (32), buffers of a slab (32).
    pub(in crate::region) const CELLS: usize = 16;
    /// Bytes of a buffer (32), zero (32).
    pub(in crate::region) const BUFFER: usize = 24;
    /// Bytes that are used of the region's file.
    pub(in crate::region) const BYTES: usize = 32;
    /// This host's name; 0 where it was given none.
    pub(in crate::region) const HOST: usize = 40;
    /// Random; stands at [`MARK`](super::MARK) as well.
    pub(in crate::region) const ID: usize = 48;
    /// On a line of its own: the number of a thread of the node's, which the kernel takes out when
    /// that has ended.
    pub(in crate::region) const NODE: usize = 128;
}

/// Where the part begins that such a device shows: whole large pages.
pub(super) const DATA: usize = 2 << 20;

/// By which the two parts of a region are known to be of one: the header's random word.
pub(super) const MARK: usize = DATA;

/// The parts between the header and the slots, each from a page on.
mod before_slots {
    use super::{HOSTS_MAX, MAILBOXES_BYTES, PAGE};
    use crate::shared::WORD;

    /// A word for each host. Before it is a page that a guest's kernel writes over when it makes a
    /// device of the file (`/dev/dax0.0`).
    pub(super) const HOSTS: usize = 2 * PAGE;
    /// The mailboxes of VMs.
    pub(super) const MAILBOXES: usize = HOSTS + HOSTS_MAX * WORD;
    /// Another word for each host.
    pub(super) const HOLDS: usize = MAILBOXES + MAILBOXES_BYTES;
    pub(super) const BYTES: usize = super::DATA + PAGE;
    const _: () = assert!(HOLDS + HOSTS_MAX * WORD <= super::DATA);
}

/// Where a slot's words are in its control part; on lines of their own for each kind of writer.
mod control {
    /// The node's: state and incarnation in one word.
    pub(super) const LIFE: usize = 0;
    /// The owner's: whether it has to be woken. On the line that producers look at anyway.
    pub(super) const ASLEEP: usize = 8;
    /// The producers'.
    pub(super) const TAIL: usize = 128;
    /// The owner's.
    pub(super) const HEAD: usize = 256;
    /// The receivers' of its buffers: a word for each.
    pub(super) const RETURNED: usize = 512;
}

/// Hosts that a region knows in its life, this one among them.
pub const HOSTS_MAX: usize = 4096;

/// Stands in the table for a host that is no more; no host has this name.
pub const HOST_ENDED: u64 = u64::MAX;

/// The bytes of a region that all mailboxes of VMs take (`crate::mailbox`).
pub(crate) const MAILBOXES_BYTES: usize = 64 << 10;

/// Most gateways: each has a bit in a host's hold.
pub const GATEWAYS_MAX: u16 = 64;

/// The bytes of a cell.
pub(crate) const CELL_BYTES: usize = 256;
/// The same in words.
pub(crate) const CELL_WORDS: usize = CELL_BYTES / WORD;

/// Most slots of a region. An address could name 65,535, all but the number that means no endpoint;
/// more than a thousand processes on one host have not been seen.
pub const SLOTS_MAX: u16 = 4096;

/// Fewest and most cells of a ring: below 16 a burst does not fit, above 65,536 a ring is no longer
/// anything that a cache holds.
const CELLS: std::ops::RangeInclusive<u32> = 16..=65_536;

/// Fewest and most buffers of a slab: their words have a page.
const BUFFERS: std::ops::RangeInclusive<u32> = 2..=448;

/// Shortest and longest buffer: an injected message has to fit, and the pages of a slab are the
/// tenant's memory.
const BUFFER_BYTES: std::ops::RangeInclusive<u32> = 4096..=1 << 20;

/// How a region is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionOptions {
    /// Endpoints that there is room for, the gateways among them; [`SLOTS_MAX`] at most.
    pub slots: u16,
    /// The first of them belong to the node, for messages of other hosts.
    pub gateways: u16,
    /// Messages that wait in one endpoint's ring; a power of two.
    pub cells: u32,
    /// Buffers of the slab of one endpoint.
    pub buffers: u32,
    /// Their length, whole pages. Messages up to this are sent through them.
    pub buffer_bytes: u32,
    /// The name of this host in addresses; 0 where there is none to give.
    pub host: u64,
}

impl Default for RegionOptions {
    /// Room for 256 endpoints; 340 MiB of addresses, of which only what is used takes memory.
    fn default() -> Self {
        Self { slots: 256, gateways: 0, cells: 1024, buffers: 64, buffer_bytes: 16 << 10, host: 0 }
    }
}

/// Why sizes are not those of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a region cannot have {what}; see docs/fabric-region.md for the limits")]
pub struct SizeError {
    /// Which size, and what it is.
    pub what: &'static str,
}

/// Which gateway has what two endpoints of two hosts say to each other, by their slots, so that
/// each pair's messages keep their order. The same both ways: a question for an endpoint's death,
/// and its answer, go where its last messages go, as long as both hosts have as many gateways.
#[inline]
pub fn gateway_of(one: u16, other: u16, gateways: u16) -> u16 {
    if gateways <= 1 {
        return 0;
    }
    let (low, high) = (one.min(other), one.max(other));
    let mixed = (u32::from(high) << 16 | u32::from(low)).wrapping_mul(0x9e37_79b1);
    ((mixed >> 16) % u32::from(gateways)) as u16
}

/// The sizes, checked once and then trusted, and what follows from them. All in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegionLayout {
    pub(crate) options: RegionOptions,
    cells: usize,
    /// How far a position's turn is above its index.
    turn_shift: u32,
    slab: usize,
    slot_bytes: usize,
    /// The bytes of the file that are used.
    pub(crate) region_bytes: usize,
}

impl RegionLayout {
    pub(super) fn new(options: RegionOptions) -> Result<Self, SizeError> {
        let RegionOptions { slots, gateways, cells, buffers, buffer_bytes, host: _ } = options;
        let refuse = |what| Err(SizeError { what });
        if !(1..=SLOTS_MAX).contains(&slots) || gateways >= slots.min(GATEWAYS_MAX + 1) {
            return refuse("this number of slots");
        }
        if !CELLS.contains(&cells) || !cells.is_power_of_two() {
            return refuse("this number of cells in a ring");
        }
        if !BUFFERS.contains(&buffers) {
            return refuse("this number of buffers");
        }
        if !BUFFER_BYTES.contains(&buffer_bytes) || !buffer_bytes.is_multiple_of(PAGE as u32) {
            return refuse("buffers of this length");
        }
        let claims = PAGE;
        let rings = claims + (cells as usize * WORD).next_multiple_of(PAGE);
        let slab = rings + cells as usize * CELL_BYTES;
        let slot_bytes = slab + buffers as usize * buffer_bytes as usize;
        let region_bytes = before_slots::BYTES + usize::from(slots) * slot_bytes;
        let turn_shift = cells.trailing_zeros();
        Ok(Self { options, cells: rings, turn_shift, slab, slot_bytes, region_bytes })
    }

    #[inline]
    fn slot(&self, slot: u16) -> usize {
        // Our own mistake if it fails: a slot's number is checked where it comes in.
        if slot >= self.options.slots {
            no_slot(slot);
        }
        before_slots::BYTES + usize::from(slot) * self.slot_bytes
    }

    /// Where the mailboxes begin.
    pub(crate) fn mailboxes(&self) -> usize {
        before_slots::MAILBOXES
    }

    /// The length of the region's file: the window of a virtual device has to be a power of two,
    /// and a memory file costs what is used of it.
    pub(crate) fn file_bytes(&self) -> usize {
        self.region_bytes.next_power_of_two()
    }

    /// The word that names a host.
    #[inline]
    pub(crate) fn host(&self, index: u16) -> usize {
        assert!(usize::from(index) < HOSTS_MAX, "host {index}");
        before_slots::HOSTS + usize::from(index) * WORD
    }

    /// The word that says which gateways take nothing for a host.
    #[inline]
    pub(crate) fn hold(&self, index: u16) -> usize {
        assert!(usize::from(index) < HOSTS_MAX, "host {index}");
        before_slots::HOLDS + usize::from(index) * WORD
    }

    #[inline]
    pub(crate) fn life(&self, slot: u16) -> usize {
        self.slot(slot) + control::LIFE
    }

    /// Where a slot's words are: its control part and its ring, and how many that is.
    #[inline]
    pub(super) fn words(&self, slot: u16) -> (usize, usize) {
        (self.slot(slot), self.slab / WORD)
    }

    /// The word by which a buffer is given back.
    #[inline]
    pub(crate) fn returned(&self, slot: u16, buffer: u16) -> usize {
        assert!(u32::from(buffer) < self.options.buffers, "buffer {buffer}");
        self.slot(slot) + control::RETURNED + usize::from(buffer) * WORD
    }

    #[inline]
    pub(crate) fn buffer(&self, slot: u16, buffer: u16) -> usize {
        assert!(u32::from(buffer) < self.options.buffers, "buffer {buffer}");
        self.slot(slot) + self.slab + usize::from(buffer) * self.options.buffer_bytes as usize
    }
}

#[cold]
fn no_slot(slot: u16) -> ! {
    panic!("the region has no slot {slot}");
}

/// Where the words of a ring are among its slot's, by their number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingPlaces {
    pub(super) cells: u32,
    turn_shift: u32,
    rings: usize,
}

impl RingPlaces {
    pub(super) const TAIL: usize = control::TAIL / WORD;
    pub(super) const HEAD: usize = control::HEAD / WORD;
    pub(super) const ASLEEP: usize = control::ASLEEP / WORD;

    #[inline]
    pub(super) fn new(layout: &RegionLayout) -> Self {
        let &RegionLayout {
            cells: rings, turn_shift, options: RegionOptions { cells, .. }, ..
        } = layout;
        Self { cells, turn_shift, rings: rings / WORD }
    }

    #[inline]
    fn index(&self, position: u64) -> usize {
        (position & u64::from(self.cells - 1)) as usize
    }

    #[inline]
    pub(super) fn claim(&self, position: u64) -> usize {
        PAGE / WORD + self.index(position)
    }

    #[inline]
    pub(super) fn cell(&self, position: u64) -> usize {
        self.rings + self.index(position) * CELL_WORDS
    }

    /// See `ring::Words::turn`.
    #[inline]
    pub(super) fn turn(&self, position: u64) -> u32 {
        ((position >> self.turn_shift) as u32).wrapping_add(1)
    }
}

const _: () = assert!(control::RETURNED + *BUFFERS.end() as usize * WORD <= PAGE);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_default_region_is_as_its_page_says() {
        let layout = RegionLayout::new(RegionOptions::default()).expect("sound");
        assert_eq!((layout.host(1), layout.hold(1)), (8192 + 8, 106_496 + 8));
        assert_eq!(layout.mailboxes(), 40_960);
        let slot = 2_101_248;
        assert_eq!(layout.life(0), slot);
        let ring = RingPlaces::new(&layout);
        assert_eq!(layout.words(0), (slot, (12_288 + 262_144) / 8));
        let words = [RingPlaces::ASLEEP, RingPlaces::TAIL, RingPlaces::HEAD];
        assert_eq!(words.map(|word| word * 8), [8, 128, 256]);
        assert_eq!(ring.claim(1024 + 3) * 8, 4096 + 24);
        assert_eq!(ring.cell(1) * 8, 12_288 + 256);
        assert_eq!(layout.buffer(0, 1), slot + 12_288 + 262_144 + 16_384);
        assert_eq!(layout.life(1) - layout.life(0), 12_288 + 262_144 + 1_048_576);
        assert_eq!(layout.region_bytes, slot + 256 * 1_323_008);
        assert_eq!(layout.file_bytes(), 512 << 20);
    }

    #[test]
    fn sizes_that_are_none_are_refused() {
        let sound = RegionOptions::default();
        let refused = [
            RegionOptions { slots: 0, ..sound },
            RegionOptions { slots: SLOTS_MAX + 1, ..sound },
            RegionOptions { gateways: GATEWAYS_MAX + 1, ..sound },
            RegionOptions { slots: 3, gateways: 3, ..sound },
            RegionOptions { cells: 1000, ..sound },
            RegionOptions { cells: 8, ..sound },
            RegionOptions { cells: 1 << 17, ..sound },
            RegionOptions { buffers: 1, ..sound },
            RegionOptions { buffers: 449, ..sound },
            RegionOptions { buffer_bytes: 4095, ..sound },
            RegionOptions { buffer_bytes: 4097, ..sound },
            RegionOptions { buffer_bytes: 2 << 20, ..sound },
        ];
        for options in refused {
            assert!(RegionLayout::new(options).is_err(), "{options:?}");
        }
    }
}
