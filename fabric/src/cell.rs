//! What stands in a cell: a head that every message has, and what its kind has beside it.
//!
//! ```text
//!  0  stamp (32 high: turn of the ring) | kind 8 | flags 8 | inline bytes 16
//!  1  source: incarnation 32 high | host 16 | slot 16
//!  2  destination: host 16 high | slot 16 | incarnation 32
//!  3  tag, or the operation that is answered
//!  4  the sender's word (with the flag)
//!  5  inline: bytes, to the cell's end; so 24 of them are in the head's line
//!     or words of the kind
//! ```

use std::sync::atomic::Ordering::Relaxed;

use crate::message::Class;
use crate::parts::PARTS_MAX;
use crate::region::{CELL_BYTES, CELL_WORDS, HOSTS_MAX, Region, Ring, SLOTS_MAX};
use crate::ring::publish;
use crate::shared::{Row, WORD};

/// Where what a kind has beside the head begins.
const BODY: usize = 5 * WORD;

/// Most bytes of a message that is sent within its cell.
pub(crate) const INLINE_BYTES_MAX: usize = CELL_BYTES - BODY;

const TAGGED: u8 = 1;
const HAS_DATA: u8 = 2;
const MARKED: u8 = 4;

/// What a cell says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A message that is in the cell.
    Inline,
    /// A message in a buffer of the sender's slab: [`Lent`].
    Eager,
    /// A message that the sender has ready: [`Offer`].
    Offer,
    /// To who offered: it has been taken.
    Finish,
    /// To who offered: send it through your slab; [`Clear`].
    Clear,
    /// To who cleared: a piece of it; [`Lent`] and where it belongs.
    Piece,
    /// From a gateway: the endpoint of another host that it is from is no more, nor are those that
    /// had its slot before.
    Gone,
    /// From a gateway: what was marked has been put into the ring of who it is from.
    Credit,
    /// To a gateway: say whether this endpoint is gone, now and when it goes.
    Ask,
}

impl Kind {
    pub(crate) const ALL: [Self; 9] = [
        Self::Inline,
        Self::Eager,
        Self::Offer,
        Self::Finish,
        Self::Clear,
        Self::Piece,
        Self::Gone,
        Self::Credit,
        Self::Ask,
    ];

    pub(crate) fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte)).copied()
    }
}

/// An endpoint as the region names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Local {
    /// The index of its host; 0 for this one.
    pub(crate) host: u16,
    pub(crate) slot: u16,
    pub(crate) incarnation: u32,
}

/// What every cell has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) kind: Kind,
    pub(crate) class: Class,
    pub(crate) inline_bytes: u16,
    pub(crate) source: Local,
    /// Who is meant: an owner of the ring's slot, or of a gateway's ring somebody elsewhere.
    pub(crate) to: Local,
    pub(crate) tag: u64,
    pub(crate) data: Option<u64>,
    /// Its gateway is to say when it is in its receiver's ring.
    pub(crate) marked: bool,
}

/// A buffer of a slab, the sender's or a gateway's, lent until its number is written into its word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lent {
    /// Whose slab.
    pub(crate) owner: Local,
    pub(crate) buffer: u16,
    pub(crate) bytes: usize,
    pub(crate) number: u64,
}

/// Where a message is in the sender's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// The sender's operation, by which it is answered.
    pub(crate) operation: u64,
    pub(crate) bytes: usize,
    /// Where the sender keeps a number that nobody can guess, and the number: who reads it there
    /// reads the right process.
    pub(crate) proof_at: u64,
    pub(crate) proof: u64,
    pub(crate) count: usize,
    /// Addresses and lengths.
    pub(crate) parts: [(u64, usize); PARTS_MAX],
}

/// An offer is to come through the slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Clear {
    /// The receiver's operation.
    pub(crate) answer: u64,
    /// So many of its bytes, from the first.
    pub(crate) bytes: usize,
}

/// What an offer has before its parts, in words.
const OFFER_WORDS: usize = 5;
const _: () = assert!(BODY + (OFFER_WORDS + 2 * PARTS_MAX) * WORD <= CELL_BYTES);

#[inline(always)]
fn name(local: Local) -> u64 {
    u64::from(local.host) << 16 | u64::from(local.slot)
}

/// The word by which a cell says who is meant.
#[inline(always)]
fn to_word(local: Local) -> u64 {
    name(local) << 32 | u64::from(local.incarnation)
}

/// A cell of a slot's ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell<'a> {
    region: &'a Region,
    ring: Ring<'a>,
    position: u64,
    row: Row<'a, CELL_WORDS>,
}

impl<'a> Cell<'a> {
    #[inline]
    pub(crate) fn new(region: &'a Region, slot: u16, position: u64) -> Self {
        Self::of(region, region.ring(slot), position)
    }

    #[inline]
    pub(crate) fn of(region: &'a Region, ring: Ring<'a>, position: u64) -> Self {
        Self { region, ring, position, row: ring.cell(position) }
    }

    #[inline]
    fn word(&self, index: usize) -> u64 {
        self.row.load(index, Relaxed)
    }

    #[inline]
    fn set_word(&self, index: usize, word: u64) {
        self.row.store(index, word, Relaxed);
    }

    /// Where the bytes of an inline message are in the region.
    #[inline]
    pub(crate) fn body_at(&self) -> usize {
        self.ring.cell_at(self.position) + BODY
    }

    /// Writes all but the body, and with the last store lets the receiver see the cell.
    #[inline(always)]
    pub(crate) fn publish(&self, head: &Head) {
        let Head { kind, class, inline_bytes, source, to, tag, data, marked } = *head;
        self.set_word(1, u64::from(source.incarnation) << 32 | name(source));
        self.set_word(2, to_word(to));
        self.set_word(3, tag);
        if let Some(data) = data {
            self.set_word(4, data);
        }
        let tagged = if class == Class::Tagged { TAGGED } else { 0 };
        let flag = |is: bool, bit| if is { bit } else { 0 };
        let flags = tagged | flag(data.is_some(), HAS_DATA) | flag(marked, MARKED);
        let low = u32::from(kind as u8) << 24 | u32::from(flags) << 16 | u32::from(inline_bytes);
        publish(&self.ring, self.position, low);
    }

    /// Reads the head of what most cells have: a message of this host that is in the cell, for who
    /// has this name. None: it is something else, which [`Cell::head`] reads.
    #[inline(always)]
    pub(crate) fn short(&self, low: u32, to: Local) -> Option<Head> {
        const OTHERS: u32 = !(((TAGGED | HAS_DATA) as u32) << 16 | u16::MAX as u32);
        const _: () = assert!(Kind::Inline as u8 == 0);
        let (flags, inline_bytes) = ((low >> 16) as u8, low as u16);
        let source = self.word(1);
        let is_short = low & OTHERS == 0
            && usize::from(inline_bytes) <= INLINE_BYTES_MAX
            && self.word(2) == to_word(to)
            && (source >> 16) as u16 == 0;
        is_short.then(|| Head {
            kind: Kind::Inline,
            class: if flags & TAGGED != 0 { Class::Tagged } else { Class::Untagged },
            inline_bytes,
            source: Local { host: 0, slot: source as u16, incarnation: (source >> 32) as u32 },
            to,
            tag: self.word(3),
            data: (flags & HAS_DATA != 0).then(|| self.word(4)),
            marked: false,
        })
    }

    /// Reads the head, whose first word's low half was read already. None: it is no head.
    pub(crate) fn head(&self, low: u32) -> Option<Head> {
        let (flags, inline_bytes) = ((low >> 16) as u8, low as u16);
        let kind = Kind::from_byte((low >> 24) as u8)?;
        let [source, to] = [self.word(1), self.word(2)];
        if usize::from(inline_bytes) > INLINE_BYTES_MAX || flags > (TAGGED | HAS_DATA | MARKED) {
            return None;
        }
        let source = self.named(source as u32, (source >> 32) as u32)?;
        let to = self.named((to >> 32) as u32, to as u32)?;
        Some(Head {
            kind,
            class: if flags & TAGGED != 0 { Class::Tagged } else { Class::Untagged },
            inline_bytes,
            source,
            to,
            tag: self.word(3),
            data: (flags & HAS_DATA != 0).then(|| self.word(4)),
            marked: flags & MARKED != 0,
        })
    }

    /// None: no region has such a slot, or not this one.
    #[inline(always)]
    fn named(&self, name: u32, incarnation: u32) -> Option<Local> {
        let (host, slot) = ((name >> 16) as u16, name as u16);
        let slots = if host == 0 { self.region.slots() } else { SLOTS_MAX };
        (slot < slots && usize::from(host) < HOSTS_MAX).then_some(Local { host, slot, incarnation })
    }

    pub(crate) fn set_lent(&self, lent: &Lent) {
        let Local { slot, incarnation, .. } = lent.owner;
        let owner = u64::from(incarnation) << 32 | u64::from(slot) << 16;
        self.set_word(5, owner | u64::from(lent.buffer));
        self.set_word(6, lent.bytes as u64);
        self.set_word(7, lent.number);
    }

    /// What this sender lends. None: there is no such buffer, it is not as long, or it is neither
    /// the sender's own nor, from another host, a gateway's.
    pub(crate) fn lent(&self, source: Local) -> Option<Lent> {
        let [buffer, bytes, number] = [self.word(5), self.word(6), self.word(7)];
        let options = self.region.options();
        let owner = self.named((buffer as u32) >> 16, (buffer >> 32) as u32)?;
        let buffer = buffer as u16;
        let is_owner = owner == source || (source.host != 0 && owner.slot < options.gateways);
        let is_sound = is_owner
            && u32::from(buffer) < options.buffers
            && bytes <= u64::from(options.buffer_bytes);
        is_sound.then_some(Lent { owner, buffer, bytes: bytes as usize, number })
    }

    pub(crate) fn set_piece_at(&self, offset: usize) {
        self.set_word(4, offset as u64);
    }

    /// Where in the message a piece belongs.
    pub(crate) fn piece_at(&self) -> u64 {
        self.word(4)
    }

    pub(crate) fn set_offer(&self, offer: &Offer) {
        let Offer { operation, bytes, proof_at, proof, count, parts } = offer;
        let words = [*operation, *bytes as u64, *proof_at, *proof, *count as u64];
        for (index, word) in words.into_iter().enumerate() {
            self.set_word(5 + index, word);
        }
        for (index, &(start, bytes)) in parts[..*count].iter().enumerate() {
            self.set_word(5 + OFFER_WORDS + 2 * index, start);
            self.set_word(6 + OFFER_WORDS + 2 * index, bytes as u64);
        }
    }

    /// None: it is no offer.
    pub(crate) fn offer(&self) -> Option<Offer> {
        let [operation, bytes, proof_at, proof, count] = [5, 6, 7, 8, 9].map(|at| self.word(at));
        let count = usize::try_from(count).ok().filter(|&count| count <= PARTS_MAX)?;
        let mut parts = [(0, 0); PARTS_MAX];
        let mut sum = 0_u64;
        for (index, part) in parts[..count].iter_mut().enumerate() {
            let start = self.word(5 + OFFER_WORDS + 2 * index);
            let bytes = self.word(6 + OFFER_WORDS + 2 * index);
            sum = sum.checked_add(bytes)?;
            *part = (start, usize::try_from(bytes).ok()?);
        }
        // The largest that a slice of bytes can be, so that sums of what was checked do not
        // overflow later on.
        let is_sound = sum == bytes && isize::try_from(bytes).is_ok();
        let bytes = bytes as usize;
        is_sound.then_some(Offer { operation, bytes, proof_at, proof, count, parts })
    }

    pub(crate) fn set_clear(&self, clear: &Clear) {
        self.set_word(5, clear.answer);
        self.set_word(6, clear.bytes as u64);
    }

    pub(crate) fn clear(&self) -> Option<Clear> {
        let [answer, bytes] = [self.word(5), self.word(6)];
        Some(Clear { answer, bytes: usize::try_from(bytes).ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RegionOptions;

    #[test]
    fn heads_and_bodies_are_read_as_they_were_written() {
        let (keeper, _fd) = Region::create(&RegionOptions::default()).expect("memory");
        let region = keeper.region();
        let cell = Cell::new(region, 3, 9);
        for (at, kind) in Kind::ALL.into_iter().enumerate() {
            let head = Head {
                kind,
                class: if at % 2 == 0 { Class::Tagged } else { Class::Untagged },
                inline_bytes: 7 * at as u16,
                source: Local { host: 4095, slot: 4095, incarnation: u32::MAX },
                to: Local { host: 0, slot: 255, incarnation: u32::MAX - 1 },
                tag: u64::MAX - 2,
                data: (at % 3 == 0).then_some(77),
                marked: at % 4 == 0,
            };
            cell.publish(&head);
            let low = crate::ring::Words::stamp(&region.ring(3), 9) as u32;
            assert_eq!(cell.head(low), Some(head));
        }
        let owner = Local { host: 0, slot: 255, incarnation: u32::MAX };
        let lent = Lent { owner, buffer: 63, bytes: 16_384, number: 5 };
        cell.set_lent(&lent);
        assert_eq!(cell.lent(owner), Some(lent));
        assert_eq!(cell.lent(Local { slot: 254, ..owner }), None, "another one's");
        assert_eq!(cell.lent(Local { host: 1, ..owner }), None, "no gateway's");
        let parts = std::array::from_fn(|at| (at as u64 * 4096, at));
        let offer =
            Offer { operation: 1, bytes: 28, proof_at: 2, proof: 3, count: PARTS_MAX, parts };
        cell.set_offer(&offer);
        assert_eq!(cell.offer(), Some(offer));
        let clear = Clear { answer: 1 << 40, bytes: 12 };
        cell.set_clear(&clear);
        assert_eq!(cell.clear(), Some(clear));
    }

    #[test]
    fn nonsense_is_nothing() {
        let (keeper, _fd) = Region::create(&RegionOptions::default()).expect("memory");
        let cell = Cell::new(keeper.region(), 3, 9);
        cell.set_word(1, 1 << 32);
        assert!(cell.head(0).is_some());
        assert_eq!(cell.head(9 << 24), None, "a kind");
        assert_eq!(cell.head(8 << 16), None, "a flag");
        assert_eq!(cell.head(INLINE_BYTES_MAX as u32 + 1), None, "a length");
        for source in [256, 4096 << 16, 1 << 16 | 4096, u64::MAX] {
            cell.set_word(1, source);
            assert_eq!(cell.head(0), None, "source {source:#x}");
            cell.set_word(1, 1 << 32);
            cell.set_word(2, source << 32);
            assert_eq!(cell.head(0), None, "destination {source:#x}");
            cell.set_word(2, 0);
        }
        for [buffer, bytes] in [[64, 0], [256 << 16, 0], [u64::MAX, 0], [0, 16_385], [0, u64::MAX]]
        {
            cell.set_word(5, buffer);
            cell.set_word(6, bytes);
            assert_eq!(
                cell.lent(Local { host: 0, slot: 0, incarnation: 0 }),
                None,
                "{bytes} in {buffer}"
            );
        }
        let parts = std::array::from_fn(|_| (0, 1 << 40));
        let offer = Offer { operation: 1, bytes: 1, proof_at: 2, proof: 3, count: 2, parts };
        cell.set_offer(&offer);
        assert_eq!(cell.offer(), None, "parts are longer than the whole");
        cell.set_word(9, 9);
        assert_eq!(cell.offer(), None, "nine parts");
        cell.set_offer(&Offer { parts: [(0, usize::MAX); PARTS_MAX], ..offer });
        assert_eq!(cell.offer(), None, "an overflow");
    }
}
