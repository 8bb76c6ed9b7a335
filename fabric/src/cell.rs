//! A cell's words: a head that every message has, and the words of its kind.
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
use crate::region::{CELL_BYTES, CELL_WORDS, HOSTS_MAX, Region, SLOTS_MAX, SlotRing};
use crate::ring::{Words, publish};
use crate::shared::{WORD, WordRow};

/// Where what a kind has beside the head begins.
const BODY: usize = 5 * WORD;

/// Most bytes of a message that is sent within its cell.
pub const INLINE_BYTES_MAX: usize = CELL_BYTES - BODY;

const TAGGED: u8 = 1;
const HAS_DATA: u8 = 2;
const MARKED: u8 = 4;

/// The kind of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellKind {
    /// A message that is in the cell.
    Inline,
    /// A message in a buffer of the sender's slab: [`Lent`].
    Eager,
    /// A message that the sender has ready: [`Offer`].
    Offer,
    /// To the sender of an offer: it has been taken.
    Finish,
    /// To the sender of an offer: send it through your slab; [`Clear`].
    Clear,
    /// To the receiver that cleared an offer: a piece of it; [`Lent`] and its place in the message.
    Piece,
    /// From a gateway: the endpoint of another host that it is from is no more, nor are those that
    /// had its slot before.
    Gone,
    /// From a gateway, about a receiver: the marked cell has been put into its ring.
    Credit,
    /// To a gateway: say whether this endpoint is gone, now and when it goes.
    Ask,
    /// To an endpoint of another host: a message whose parts follow unasked; [`Clear`], of which
    /// the answer is the sender's own operation, by which they name it.
    Push,
    /// To the same: a part of it; [`Lent`] and where it belongs.
    Part,
}

impl CellKind {
    /// All of them, by their numbers.
    pub const ALL: [Self; 11] = [
        Self::Inline,
        Self::Eager,
        Self::Offer,
        Self::Finish,
        Self::Clear,
        Self::Piece,
        Self::Gone,
        Self::Credit,
        Self::Ask,
        Self::Push,
        Self::Part,
    ];

    /// The kind with this number.
    pub fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte)).copied()
    }

    /// Whether it has a buffer, and a place in a longer message.
    pub fn is_piece(self) -> bool {
        matches!(self, Self::Piece | Self::Part)
    }
}

/// An endpoint as the region names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Local {
    /// The index of its host; 0 for this one.
    pub host: u16,
    /// Its slot there.
    pub slot: u16,
    /// Which of the slot's owners it is.
    pub incarnation: u32,
}

/// The words that every cell has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellHead {
    /// The kind of the cell.
    pub kind: CellKind,
    /// Of the message.
    pub class: Class,
    /// The length of an inline message.
    pub inline_bytes: u16,
    /// The sender.
    pub source: Local,
    /// The receiver: an owner of the ring's slot, or in a gateway's ring an endpoint of another
    /// host.
    pub to: Local,
    /// The message's tag, or the operation that is answered.
    pub tag: u64,
    /// The sender's own word beside the message.
    pub data: Option<u64>,
    /// The gateway must say when the cell is in its receiver's ring.
    pub marked: bool,
}

/// A buffer of a slab, the sender's or a gateway's, lent until its number is written into its word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lent {
    /// Whose slab.
    pub owner: Local,
    /// Which buffer.
    pub buffer: u16,
    /// The length of what is in it.
    pub bytes: usize,
    /// Of the lending.
    pub number: u64,
}

/// Where a message is in the sender's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The sender's operation, by which it is answered.
    pub operation: u64,
    /// The length of the whole message.
    pub bytes: usize,
    /// Where the sender keeps a number that cannot be guessed, and the number: a process that reads
    /// it there reads the right process.
    pub proof_at: u64,
    /// The number that stands there.
    pub proof: u64,
    /// How many parts it has.
    pub count: usize,
    /// Addresses and lengths.
    pub parts: [(u64, usize); PARTS_MAX],
}

/// The way of an offer that comes through the slab, or of a message that is pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clear {
    /// The receiver's operation.
    pub answer: u64,
    /// So many of its bytes, from the first.
    pub bytes: usize,
}

/// The words of an offer before its parts.
const OFFER_WORDS: usize = 5;
const _: () = assert!(BODY + (OFFER_WORDS + 2 * PARTS_MAX) * WORD <= CELL_BYTES);

#[inline(always)]
fn name(local: Local) -> u64 {
    u64::from(local.host) << 16 | u64::from(local.slot)
}

/// The word of a cell that names its sender.
#[inline(always)]
pub(crate) fn source_word(local: Local) -> u64 {
    u64::from(local.incarnation) << 32 | name(local)
}

/// The word of a cell that names its receiver.
#[inline(always)]
pub(crate) fn to_word(local: Local) -> u64 {
    name(local) << 32 | u64::from(local.incarnation)
}

/// A cell of a slot's ring.
#[derive(Clone, Copy, Debug)]
pub struct Cell<'a> {
    region: &'a Region,
    ring: SlotRing<'a>,
    position: u64,
    row: WordRow<'a, CELL_WORDS>,
}

impl<'a> Cell<'a> {
    /// The cell of a position in a slot's ring.
    #[inline]
    pub fn new(region: &'a Region, slot: u16, position: u64) -> Self {
        Self::of(region, region.ring(slot), position)
    }

    #[inline]
    pub(crate) fn of(region: &'a Region, ring: SlotRing<'a>, position: u64) -> Self {
        Self { region, ring, position, row: ring.cell(position) }
    }

    /// Of which of its sleeps the ring's owner has to be woken; 0 for none.
    #[inline(always)]
    pub(crate) fn asleep(&self) -> u64 {
        self.ring.asleep()
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
    pub fn body_at(&self) -> usize {
        self.ring.cell_at(self.position) + BODY
    }

    /// Writes all but the body, and with the last store lets the receiver see the cell.
    #[inline(always)]
    pub fn publish(&self, head: &CellHead) {
        let CellHead { kind, class, inline_bytes, source, to, tag, data, marked } = *head;
        self.set_word(3, tag);
        if let Some(data) = data {
            self.set_word(4, data);
        }
        let tagged = if class == Class::Tagged { TAGGED } else { 0 };
        let flag = |is: bool, bit| if is { bit } else { 0 };
        let flags = tagged | flag(data.is_some(), HAS_DATA) | flag(marked, MARKED);
        let low = u32::from(kind as u8) << 24 | u32::from(flags) << 16 | u32::from(inline_bytes);
        self.publish_words(low, [source_word(source), to_word(to)]);
    }

    /// The same with the first three words as they are, of the first one its low half.
    #[inline(always)]
    pub(crate) fn publish_words(&self, low: u32, [source, to]: [u64; 2]) {
        self.set_word(1, source);
        self.set_word(2, to);
        publish(&self.ring, self.position, low);
    }

    /// Reads the head that most cells have: of a message of this host that is in the cell, for the
    /// receiver of this name. None: it is another cell, which [`Cell::head`] reads. The caller has
    /// to check that the sender's slot exists and is the sender's (`is_whole`).
    #[inline(always)]
    pub(crate) fn short(&self, low: u32, to: Local) -> Option<CellHead> {
        const OTHERS: u32 = !(((TAGGED | HAS_DATA) as u32) << 16 | u16::MAX as u32);
        const _: () = assert!(CellKind::Inline as u8 == 0);
        let (flags, inline_bytes) = ((low >> 16) as u8, low as u16);
        let source = self.word(1);
        let is_short = low & OTHERS == 0
            && usize::from(inline_bytes) <= INLINE_BYTES_MAX
            && self.word(2) == to_word(to)
            && (source >> 16) as u16 == 0;
        is_short.then(|| CellHead {
            kind: CellKind::Inline,
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
    pub fn head(&self, low: u32) -> Option<CellHead> {
        let (flags, inline_bytes) = ((low >> 16) as u8, low as u16);
        let kind = CellKind::from_byte((low >> 24) as u8)?;
        let [source, to] = [self.word(1), self.word(2)];
        if usize::from(inline_bytes) > INLINE_BYTES_MAX || flags > (TAGGED | HAS_DATA | MARKED) {
            return None;
        }
        let source = self.named(source as u32, (source >> 32) as u32)?;
        let to = self.named((to >> 32) as u32, to as u32)?;
        Some(CellHead {
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

    /// Writes which buffer the message is in.
    pub fn set_lent(&self, lent: &Lent) {
        let Local { slot, incarnation, .. } = lent.owner;
        let owner = u64::from(incarnation) << 32 | u64::from(slot) << 16;
        self.set_word(5, owner | u64::from(lent.buffer));
        self.set_word(6, lent.bytes as u64);
        self.set_word(7, lent.number);
    }

    /// The buffer that this sender lends. None: there is no such buffer, it is not as long, or it
    /// is neither the sender's own nor, from another host, a gateway's.
    pub fn lent(&self, source: Local) -> Option<Lent> {
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

    /// Writes where in the message a piece belongs.
    pub fn set_piece_at(&self, offset: usize) {
        self.set_word(4, offset as u64);
    }

    /// Where in the message a piece belongs.
    pub fn piece_at(&self) -> u64 {
        self.word(4)
    }

    /// Writes where the message is.
    pub fn set_offer(&self, offer: &Offer) {
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

    /// Where the message is. None: it is no offer.
    pub fn offer(&self) -> Option<Offer> {
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

    /// Writes the way that an offer must be sent.
    pub fn set_clear(&self, clear: &Clear) {
        self.set_word(5, clear.answer);
        self.set_word(6, clear.bytes as u64);
    }

    /// The way that an offer must be sent. None: it has no such length.
    pub fn clear(&self) -> Option<Clear> {
        let [answer, bytes] = [self.word(5), self.word(6)];
        Some(Clear { answer, bytes: usize::try_from(bytes).ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RegionOptions;
    use random::Random;

    #[test]
    fn heads_and_bodies_are_read_as_they_were_written() {
        let (region, _fd) = Region::create(&RegionOptions::default()).expect("memory");
        let cell = Cell::new(&region, 3, 9);
        for (at, kind) in CellKind::ALL.into_iter().enumerate() {
            let head = CellHead {
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
            let low = Words::stamp(&region.ring(3), 9) as u32;
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
        let (region, _fd) = Region::create(&RegionOptions::default()).expect("memory");
        let cell = Cell::new(&region, 3, 9);
        cell.set_word(1, 1 << 32);
        assert!(cell.head(0).is_some());
        assert_eq!(cell.head(11 << 24), None, "a kind");
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

    /// The receiver that looks into its ring, of the usual region.
    const ME: Local = Local { host: 0, slot: 3, incarnation: 7 };

    /// Reads a cell's words both ways, and says whether the short way took them. The short way must
    /// take nothing but what the long way takes for the same, from any sender of this region; and
    /// it must take all cells that it is for.
    fn both_ways(cell: &Cell<'_>, low: u32, [source, to]: [u64; 2]) -> bool {
        cell.set_word(1, source);
        cell.set_word(2, to);
        let (short, long) = (cell.short(low, ME), cell.head(low));
        let said = format!("{low:#x}, {source:#x}, {to:#x}: {short:?}, {long:?}");
        if let Some(head) = short {
            assert_eq!(head.to, ME, "{said}");
            // A receiver finds by `is_whole` that a slot does not exist here.
            assert!(head.source.slot >= cell.region.slots() || long == short, "{said}");
            assert!(usize::from(head.inline_bytes) <= INLINE_BYTES_MAX, "{said}");
        }
        let is_plain = |head: &CellHead| {
            head.kind == CellKind::Inline && head.source.host == 0 && head.to == ME && !head.marked
        };
        assert!(!long.is_some_and(|head| is_plain(&head)) || short == long, "{said}");
        short.is_some()
    }

    #[test]
    fn the_short_way_takes_what_the_long_one_takes_for_the_same() {
        let (region, _fd) = Region::create(&RegionOptions::default()).expect("memory");
        let cell = Cell::new(&region, ME.slot, 9);
        cell.set_word(3, 5);
        cell.set_word(4, 77);
        let (slots, max) = (region.slots(), INLINE_BYTES_MAX as u16);
        let lengths = [0, 1, 24, 48, max - 1, max, max + 1, 1 << 15, u16::MAX];
        let flags: Vec<_> = (0..=8).chain((4..8).map(|bit| 1 << bit)).chain([u8::MAX]).collect();
        let sender = Local { slot: 4, incarnation: 1, ..ME };
        let sound = [source_word(sender), to_word(ME)];
        let low = |kind: u8, flags: u8, bytes: u16| {
            u32::from(kind) << 24 | u32::from(flags) << 16 | u32::from(bytes)
        };
        let (mut taken, mut left) = (0, 0);
        let mut look = |low: u32, words: [u64; 2]| match both_ways(&cell, low, words) {
            true => taken += 1,
            false => left += 1,
        };
        for kind in 0..=u8::MAX {
            for &flags in &flags {
                lengths.iter().for_each(|&bytes| look(low(kind, flags, bytes), sound));
            }
        }
        let hosts = [0, 1, HOSTS_MAX as u16 - 1, HOSTS_MAX as u16, u16::MAX];
        let slots = [0, ME.slot, slots - 1, slots, SLOTS_MAX - 1, SLOTS_MAX, u16::MAX];
        let incarnations = [0, 1, ME.incarnation, u32::MAX];
        let mut names = Vec::new();
        for host in hosts {
            for slot in slots {
                names.extend(incarnations.map(|incarnation| Local { host, slot, incarnation }));
            }
        }
        for &name in &names {
            for flags in 0..8 {
                look(low(0, flags, 8), [source_word(name), sound[1]]);
                look(low(0, flags, 8), [sound[0], to_word(name)]);
                look(low(0, flags, 8), [source_word(name), to_word(name)]);
            }
        }
        // Each word sound, of a boundary, or anything.
        let mut random = Random::new(3);
        for _ in 0..100_000 {
            let at = random.below(lengths.len() as u64) as usize;
            let near = low(0, random.below(8) as u8, lengths[at]);
            let low = [near, near, random.draw() as u32][random.below(3) as usize];
            let mut word = |sound: u64, named: fn(Local) -> u64| {
                let name = names[random.below(names.len() as u64) as usize];
                [sound, sound, named(name), random.draw()][random.below(4) as usize]
            };
            look(low, [word(sound[0], source_word), word(sound[1], to_word)]);
        }
        assert!(taken > 1000 && left > 1000, "{taken} taken, {left} left to the long way");
    }
}
