//! The region's side of a gateway: what lies in its ring is taken out for other hosts, and what
//! comes from those is put into the rings of endpoints.
//!
//! An endpoint that does not look into its ring must not hold up the others: what is for it waits
//! here, in order. How much that can be is bounded by what each sender may have under way to each
//! receiver (`endpoint/remote.rs`); and in all by [`WAITING_BYTES_MAX`], beyond which nothing is
//! taken from other hosts for a while.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::fence;

use super::wire::{self, entry_bytes};
use crate::cell::{Cell, Clear, Head, INLINE_BYTES_MAX, Kind, Local, Offer};
use crate::region::{Keeper, Region};
use crate::ring::{Consumer, NoCell, Producer, Way};
use crate::slab::{Slab, give_back};

/// What may wait for endpoints that do not look into their rings.
pub(super) const WAITING_BYTES_MAX: usize = 64 << 20;

/// Cells that are taken out of the ring in one round.
const CELLS_PER_ROUND: usize = 256;

/// After so many empty looks somebody may have died who had claimed the next cell.
const LOOKS_FOR_CLAIMS: u32 = 1 << 10;

/// What a gateway counts of cells and entries; since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PostCounters {
    /// Cells that went to other hosts.
    pub sent: u64,
    /// Entries of other hosts that were put into rings.
    pub delivered: u64,
    /// Entries that had to wait for their receivers first.
    pub waited: u64,
    /// Entries for who is no more.
    pub undelivered: u64,
    /// Cells and entries that broke the rules.
    pub nonsense: u64,
    /// Rounds in which nothing was taken from other hosts, since too much waited.
    pub full: u64,
}

/// What became of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Put {
    /// It is in its receiver's ring, or waits for that; nobody has to be told.
    Done,
    /// It is in its receiver's ring, which the sender wants to know.
    Marked,
    /// Its receiver is no more, or its ring was written over, which stays so as long as it lives.
    NoReceiver,
    Nonsense,
}

/// Why an entry is not in its receiver's ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NotPut {
    /// There is no room now.
    Full,
    /// The ring contradicts itself.
    Broken,
    /// Nothing that a gateway says.
    Malformed,
}

impl From<NoCell> for NotPut {
    fn from(none: NoCell) -> Self {
        match none {
            NoCell::Full => Self::Full,
            NoCell::Broken => Self::Broken,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Post {
    keeper: Arc<Keeper>,
    me: Local,
    consumer: Consumer,
    slab: Slab,
    /// To each slot's ring, and to which of its owners.
    ways: Box<[(u32, Way)]>,
    /// By slot.
    waiting: BTreeMap<u16, VecDeque<Waiting>>,
    waiting_bytes: usize,
    empty_looks: u32,
    pub(super) counters: PostCounters,
}

/// An entry, and the host that it is from.
type Waiting = (u16, Box<[u8]>);

/// A cell that was taken out, as the entry that it becomes.
pub(super) struct Taken {
    pub(super) head: Head,
    /// Of the entry.
    pub(super) bytes: usize,
}

impl Post {
    pub(super) fn new(keeper: Arc<Keeper>, slot: u16) -> Self {
        let me = Local { host: 0, slot, incarnation: keeper.take_gateway(slot) };
        let region = keeper.region();
        let consumer = Consumer::new(&region.ring(slot));
        let slab = Slab::of_gateway(region, me);
        let ways = vec![(0, Way::default()); usize::from(region.options().slots)].into();
        let (waiting, counters) = (BTreeMap::new(), PostCounters::default());
        let (waiting_bytes, empty_looks) = (0, 0);
        Self { keeper, me, consumer, slab, ways, waiting, waiting_bytes, empty_looks, counters }
    }

    fn region(&self) -> &Arc<Region> {
        self.keeper.region()
    }

    /// Takes cells out; `room` is shown the position of one and what it says, and has it filled
    /// into the batch that it goes into, if its host can be reached. It stops at one for which
    /// that says `false`, and begins with it the next time. Whether any was taken.
    pub(super) fn collect(
        &mut self,
        mut room: impl FnMut(u64, &Head, usize, &mut dyn FnMut(&mut Vec<u8>) -> bool) -> bool,
    ) -> bool {
        let region = Arc::clone(self.region());
        let ring = region.ring(self.me.slot);
        for count in 0..CELLS_PER_ROUND {
            let Some(low) = self.consumer.look(&ring) else {
                self.empty_looks = self.empty_looks.wrapping_add(1);
                if self.empty_looks.is_multiple_of(LOOKS_FOR_CLAIMS) {
                    self.pass_dead();
                }
                return count > 0;
            };
            let position = self.consumer.position();
            let cell = Cell::new(&region, self.me.slot, position);
            match self.read(&cell, low) {
                Some(Taken { head, bytes }) => {
                    let mut fill = |batch: &mut Vec<u8>| copy(&region, &cell, &head, bytes, batch);
                    if !room(position, &head, entry_bytes(bytes), &mut fill) {
                        return count > 0;
                    }
                    if let Some(lent) = lent_of(&cell, &head) {
                        give_back(&region, &lent);
                    }
                    self.counters.sent += 1;
                }
                None => self.counters.nonsense += 1,
            }
            self.consumer.advance(&ring);
        }
        true
    }

    /// Goes past cells that were claimed by those who have died since, and tells how far it is.
    pub(super) fn pass_dead(&mut self) {
        let region = Arc::clone(self.region());
        let ring = region.ring(self.me.slot);
        while self.consumer.skip_dead(&ring) {}
        self.consumer.rest(&ring);
    }

    /// A position of the ring before which all that was said until now is.
    pub(super) fn end(&self) -> u64 {
        self.consumer.end(&self.region().ring(self.me.slot))
    }

    /// Whether all was taken out that had been said when that was [`Post::end`].
    pub(super) fn is_past(&self, end: u64) -> bool {
        self.consumer.is_past(&self.region().ring(self.me.slot), end)
    }

    /// What a cell says, if it is one for another host.
    fn read(&self, cell: &Cell<'_>, low: u32) -> Option<Taken> {
        let head = cell.head(low)?;
        if head.source.host != 0 || head.to.host == 0 {
            return None;
        }
        let (mut bytes, mut data) = (0, head.data);
        match head.kind {
            Kind::Inline => bytes = usize::from(head.inline_bytes),
            Kind::Eager => bytes = cell.lent(head.source)?.bytes,
            Kind::Piece => {
                bytes = cell.lent(head.source)?.bytes;
                data = Some(cell.piece_at());
            }
            Kind::Offer => bytes = cell.offer().map(|_| 16)?,
            Kind::Clear => bytes = cell.clear().map(|_| 16)?,
            Kind::Finish | Kind::Ask => {}
            Kind::Gone | Kind::Credit => return None,
        }
        Some(Taken { head: Head { data, ..head }, bytes })
    }

    /// Puts an entry of another host into its receiver's ring, or lets it wait for that.
    pub(super) fn put(&mut self, head: &Head, bytes: &[u8]) -> Put {
        let slot = head.to.slot;
        if !self.is_endpoint(head.to) {
            self.counters.undelivered += 1;
            return Put::NoReceiver;
        }
        if !self.waiting.contains_key(&slot) {
            match self.try_put(head, bytes) {
                Ok(()) => return if head.marked { Put::Marked } else { Put::Done },
                Err(NotPut::Full) => {}
                Err(NotPut::Broken) => {
                    self.counters.undelivered += 1;
                    return Put::NoReceiver;
                }
                Err(NotPut::Malformed) => {
                    self.counters.nonsense += 1;
                    return Put::Nonsense;
                }
            }
        }
        let mut entry = Vec::with_capacity(entry_bytes(bytes.len()));
        wire::push_entry(&mut entry, head, bytes);
        self.waiting_bytes += entry.len();
        let entry = (head.source.host, entry.into_boxed_slice());
        self.waiting.entry(slot).or_default().push_back(entry);
        self.counters.waited += 1;
        Put::Done
    }

    /// Whether nothing more is to be taken from other hosts for now.
    pub(super) fn is_full(&self) -> bool {
        self.waiting_bytes >= WAITING_BYTES_MAX
    }

    /// Whether something waits for its receiver.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Puts what waits into rings that have room again; tells what became of each.
    pub(super) fn put_waiting(&mut self, mut told: impl FnMut(&Head, Put)) {
        let mut next = self.waiting.keys().next().copied();
        while let Some(slot) = next {
            next = self.waiting.range(slot + 1..).next().map(|(slot, _)| *slot);
            while let Some((host, entry)) =
                self.waiting.get_mut(&slot).and_then(|it| it.pop_front())
            {
                let (head, bytes, _) = wire::split_entry(&entry, host).expect("we made it");
                let put = match self.is_endpoint(head.to) {
                    false => Put::NoReceiver,
                    true => match self.try_put(&head, bytes) {
                        Ok(()) if head.marked => Put::Marked,
                        Ok(()) => Put::Done,
                        Err(NotPut::Full) => {
                            let waiting = self.waiting.get_mut(&slot).expect("it was there");
                            waiting.push_front((host, entry));
                            break;
                        }
                        Err(NotPut::Broken) => Put::NoReceiver,
                        Err(NotPut::Malformed) => Put::Nonsense,
                    },
                };
                self.waiting_bytes -= entry.len();
                told(&head, put);
            }
            if self.waiting.get(&slot).is_some_and(VecDeque::is_empty) {
                self.waiting.remove(&slot);
            }
        }
    }

    fn is_endpoint(&self, to: Local) -> bool {
        let is_slot = to.slot >= self.region().options().gateways;
        is_slot && self.region().life(to.slot).is_some_and(|life| life.is_live(to.incarnation))
    }

    /// To somebody's ring, which may have been begun anew since the slot's owner before.
    fn way(&mut self, to: Local) -> &mut Way {
        let (incarnation, way) = &mut self.ways[usize::from(to.slot)];
        if *incarnation != to.incarnation {
            (*incarnation, *way) = (to.incarnation, Way::default());
        }
        way
    }

    fn try_put(&mut self, head: &Head, bytes: &[u8]) -> Result<(), NotPut> {
        let region = Arc::clone(self.region());
        let slot = head.to.slot;
        let ring = region.ring(slot);
        let producer = Producer { slot: self.me.slot, incarnation: self.me.incarnation as u16 };
        let is_message = matches!(head.kind, Kind::Inline | Kind::Eager);
        let buffer = match head.kind {
            Kind::Inline | Kind::Eager if bytes.len() <= INLINE_BYTES_MAX => None,
            Kind::Inline | Kind::Eager | Kind::Piece => {
                if bytes.len() > region.options().buffer_bytes as usize {
                    return Err(NotPut::Malformed);
                }
                self.way(head.to).find_room(&ring)?;
                let buffer = self.slab.take(&region, self.me.slot, slot).ok_or(NotPut::Full)?;
                copy_in(&region, region.layout().buffer(self.me.slot, buffer), bytes);
                Some(buffer)
            }
            _ => None,
        };
        let claimed = self.way(head.to).claim(&ring, producer);
        let position = match claimed {
            Ok(position) => position,
            Err(none) => {
                if let Some(buffer) = buffer {
                    self.slab.untake(buffer);
                }
                return Err(none.into());
            }
        };
        let cell = Cell::new(&region, slot, position);
        let (mut kind, mut inline_bytes) = (head.kind, 0);
        if is_message {
            kind = if buffer.is_some() { Kind::Eager } else { Kind::Inline };
        }
        if let Some(buffer) = buffer {
            cell.set_lent(&self.slab.lend(buffer, bytes.len(), head.to));
        }
        if kind == Kind::Inline {
            copy_in(&region, cell.body_at(), bytes);
            inline_bytes = bytes.len() as u16;
        }
        set_words(&cell, kind, head.data, bytes);
        let data = head.data.filter(|_| kind != Kind::Piece);
        cell.publish(&Head { kind, inline_bytes, data, marked: false, ..*head });
        self.slab.tidy(&region, self.me.slot);
        self.counters.delivered += 1;
        Ok(())
    }

    /// Lets producers ring from now on. `false`: something is there already.
    pub(super) fn fall_asleep(&mut self) -> bool {
        // While it sleeps nothing comes that would show how long one has been waited for.
        self.pass_dead();
        let region = self.region();
        region.mapping().store(region.layout().asleep(self.me.slot), 1, Relaxed);
        // A producer that does not see it has stored its cell before this look.
        fence(SeqCst);
        self.consumer.look(&region.ring(self.me.slot)).is_none()
    }

    /// Producers need not ring any more.
    pub(super) fn wake_up(&self) {
        let region = self.region();
        region.mapping().store(region.layout().asleep(self.me.slot), 0, Relaxed);
    }

    /// Lets producers leave what is for this host, or not.
    pub(super) fn hold(&self, host: u16, held: bool) {
        self.keeper.hold(host, self.me.slot, held);
    }

    /// Which slots of endpoints there are.
    pub(super) fn endpoint_slots(&self) -> std::ops::Range<u16> {
        let options = self.region().options();
        options.gateways..options.slots
    }

    /// The last owner of a slot who is dead, if there was one.
    pub(super) fn last_dead(&self, slot: u16) -> u32 {
        self.keeper.last_dead(slot)
    }

    /// The endpoint that has a slot now.
    pub(super) fn live_in(&self, slot: u16) -> Option<Local> {
        let incarnation = self.keeper.live_in(slot)?;
        Some(Local { host: 0, slot, incarnation })
    }

    /// Another number whenever somebody died.
    pub(super) fn deaths(&self) -> u64 {
        self.keeper.deaths()
    }
}

/// Writes what an entry of this kind has beside its head and its bytes.
fn set_words(cell: &Cell<'_>, kind: Kind, data: Option<u64>, bytes: &[u8]) {
    let word = |at: usize| {
        bytes.get(at..at + 8).map_or(0, |it| u64::from_le_bytes(it.try_into().expect("eight")))
    };
    match kind {
        Kind::Offer => cell.set_offer(&Offer {
            operation: word(0),
            bytes: word(8) as usize,
            proof_at: 0,
            proof: 0,
            // Somewhere: nobody reads the memory of another host.
            count: 1,
            parts: std::array::from_fn(|at| (0, if at == 0 { word(8) as usize } else { 0 })),
        }),
        Kind::Clear => {
            let bytes = usize::try_from(word(8)).unwrap_or(usize::MAX);
            cell.set_clear(&Clear { answer: word(0), bytes });
        }
        Kind::Piece => cell.set_piece_at(data.unwrap_or_default() as usize),
        Kind::Inline | Kind::Eager | Kind::Finish | Kind::Gone | Kind::Credit | Kind::Ask => {}
    }
}

fn lent_of(cell: &Cell<'_>, head: &Head) -> Option<crate::cell::Lent> {
    matches!(head.kind, Kind::Eager | Kind::Piece).then(|| cell.lent(head.source)).flatten()
}

/// Adds a cell's entry to a batch. `false`, and nothing was added: the sender's buffer is another
/// one's already.
fn copy(region: &Region, cell: &Cell<'_>, head: &Head, bytes: usize, batch: &mut Vec<u8>) -> bool {
    let before = batch.len();
    let two = |one: u64, other: usize| {
        let mut both = [0; 16];
        both[..8].copy_from_slice(&one.to_le_bytes());
        both[8..].copy_from_slice(&(other as u64).to_le_bytes());
        both
    };
    let from = match head.kind {
        Kind::Offer => {
            let Some(offer) = cell.offer() else { return false };
            wire::push_entry(batch, head, &two(offer.operation, offer.bytes));
            return true;
        }
        Kind::Clear => {
            let Some(clear) = cell.clear() else { return false };
            wire::push_entry(batch, head, &two(clear.answer, clear.bytes));
            return true;
        }
        Kind::Inline => cell.body_at(),
        Kind::Eager | Kind::Piece => {
            let Some(lent) = cell.lent(head.source).filter(|lent| lent.bytes == bytes) else {
                return false;
            };
            region.layout().buffer(lent.owner.slot, lent.buffer)
        }
        Kind::Finish | Kind::Ask | Kind::Gone | Kind::Credit => {
            wire::push_entry(batch, head, &[]);
            return true;
        }
    };
    wire::push_header(batch, head, bytes);
    let (at, whole) = (batch.len(), before + entry_bytes(bytes));
    batch.reserve(whole - at);
    // SAFETY: the batch is our own and has just got room up to `whole`. All of it is written: the
    // message, and what fills the entry up behind it.
    unsafe {
        let to = batch.as_mut_ptr().add(at);
        region.mapping().copy_out(from, to, bytes);
        to.add(bytes).write_bytes(0, whole - at - bytes);
        batch.set_len(whole);
    }
    let is_whole = head.kind == Kind::Inline || crate::endpoint::is_whole(region, head.source);
    if !is_whole {
        batch.truncate(before);
    }
    is_whole
}

fn copy_in(region: &Region, at: usize, bytes: &[u8]) {
    // SAFETY: the bytes are readable and our own.
    unsafe { region.mapping().copy_in(at, bytes.as_ptr(), bytes.len()) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RegionOptions;
    use crate::message::Class;

    #[test]
    fn a_ring_that_was_begun_anew_is_filled_from_its_beginning() {
        let options =
            RegionOptions { slots: 2, gateways: 1, cells: 16, ..RegionOptions::default() };
        let (keeper, _) = Region::create(&options).expect("memory");
        let keeper = Arc::new(keeper);
        let region = Arc::clone(keeper.region());
        let mut post = Post::new(Arc::clone(&keeper), 0);
        let source = Local { host: 1, slot: 5, incarnation: 1 };
        let mut put = || {
            let (slot, incarnation) = keeper.take_slot(1).expect("room");
            let head = Head {
                kind: Kind::Inline,
                class: Class::Tagged,
                inline_bytes: 0,
                source,
                to: Local { host: 0, slot, incarnation },
                tag: 0,
                data: None,
                marked: false,
            };
            (0..3).for_each(|_| assert_eq!(post.try_put(&head, b""), Ok(())));
            let ring = region.ring(slot);
            assert!(Consumer::new(&ring).look(&ring).is_some(), "the first cell");
            slot
        };
        let slot = put();
        region.ring(slot).set_claim(5, u64::MAX);
        assert!(keeper.declare_dead(slot));
        assert_eq!(put(), slot);
    }
}
