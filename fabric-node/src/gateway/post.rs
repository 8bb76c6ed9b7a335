//! The region's side of a gateway: it takes cells for other hosts out of the gateway's ring, and
//! puts entries that come from other hosts into the rings of endpoints.
//!
//! An endpoint that does not look into its ring must not hold up other endpoints: entries for it
//! wait here, in order. Their number is bounded by what each sender may have under way to each
//! receiver (`endpoint/remote.rs`), and in all by [`WAITING_BYTES_MAX`]. Beyond that no batch of
//! another host is taken for a while.

mod hand_over;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::fence;

use super::wire::{self, entry_bytes};
use crate::SlotTable;
use fabric::Region;
use fabric::cell::{Cell, CellHead, CellKind, Clear, INLINE_BYTES_MAX, Local, Offer};
use fabric::ring::{Consumer, NoCell, Producer, RingProducer, Words};
use fabric::slab::{Slab, give_back};

/// Bytes of entries that may wait for endpoints that do not look into their rings.
pub(super) const WAITING_BYTES_MAX: usize = 64 << 20;

/// Cells that are taken out of the ring in one round.
const CELLS_PER_ROUND: usize = 256;

/// After so many looks at an empty ring, the producer that has claimed the next cell may be dead.
const LOOKS_FOR_CLAIMS: u32 = 1 << 10;

sidecore::counters! {
    /// The counters of a gateway for cells and entries, since it began.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub struct PostCounters of u64 {
        sent: "Cells of endpoints that went to other hosts.",
        delivered: "Messages and parts of other hosts that were put into rings.",
        waited: "Messages of other hosts that had to wait for their receiver.",
        undelivered: "Messages of other hosts to an endpoint that is gone.",
        nonsense: "Cells, and parts of other hosts, that broke the rules.",
        full_rounds: "Rounds in which too many messages waited to take more from other hosts.",
    }
}

/// The fate of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Put {
    /// It is in its receiver's ring, or waits for room; no answer is due.
    Done,
    /// It is in its receiver's ring, which the sender wants to know.
    Marked,
    /// Its receiver is gone, or the receiver's ring was written over, which does not change as long
    /// as the receiver lives.
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
    /// No gateway sends such an entry.
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
    table: Arc<SlotTable>,
    me: Local,
    consumer: Consumer,
    slab: Slab,
    /// To each slot's ring.
    ways: Box<[ToSlot]>,
    /// By slot.
    waiting: BTreeMap<u16, VecDeque<WaitingEntry>>,
    waiting_bytes: usize,
    /// Endpoints in whose rings an entry was put since sleepers were last woken; each once.
    touched: Vec<Local>,
    empty_looks: u32,
    pub(super) counters: PostCounters,
}

/// The owner of a slot, as the gateway knows it.
#[derive(Clone, Copy, Debug, Default)]
struct ToSlot {
    /// Of the owner that the rest is about.
    incarnation: u32,
    way: RingProducer,
    /// Which of its sleeps it was woken from last.
    rung: u64,
    /// It is in the list of endpoints that may have to be woken.
    touched: bool,
}

/// An entry, and the host that it is from.
type WaitingEntry = (u16, Box<[u8]>);

/// Writes an entry, which has just the place that it was said to take. `false`: there is none.
pub(super) type Write<'a> = &'a mut dyn FnMut(&mut [u8]) -> bool;

/// A cell that was taken out, as the entry that it becomes.
pub(super) struct TakenCell {
    pub(super) head: CellHead,
    /// Of the entry.
    pub(super) bytes: usize,
}

impl Post {
    pub(super) fn new(table: Arc<SlotTable>, slot: u16) -> Self {
        let me = Local { host: 0, slot, incarnation: table.take_gateway(slot) };
        let region = table.region();
        let consumer = Consumer::new(&region.ring(slot));
        let slab = Slab::of_gateway(region, me);
        let slots = usize::from(region.options().slots);
        let (ways, touched) = (vec![ToSlot::default(); slots].into(), Vec::with_capacity(slots));
        let (waiting, counters) = (BTreeMap::new(), PostCounters::default());
        let (waiting_bytes, empty_looks) = (0, 0);
        Self {
            table,
            me,
            consumer,
            slab,
            ways,
            waiting,
            waiting_bytes,
            touched,
            empty_looks,
            counters,
        }
    }

    fn region(&self) -> &Arc<Region> {
        self.table.region()
    }

    /// Takes cells out; `room` is shown the position of one and what it says, and has it written
    /// at its place in the batch that it goes into, if its host can be reached. It stops at one
    /// for which that says `false`, and begins with it the next time. Whether any was taken.
    pub(super) fn collect(
        &mut self,
        mut room: impl FnMut(u64, &CellHead, usize, Write<'_>) -> bool,
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
                Some(TakenCell { head, bytes }) => {
                    let mut write = |entry: &mut [u8]| copy(&region, &cell, &head, bytes, entry);
                    if !room(position, &head, entry_bytes(bytes), &mut write) {
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

    /// Skips cells whose producers have died, and publishes the head.
    pub(super) fn pass_dead(&mut self) {
        let region = Arc::clone(self.region());
        let ring = region.ring(self.me.slot);
        while self.consumer.skip_dead(&ring) {}
        self.consumer.rest(&ring);
    }

    /// A position of the ring before which all cells are that were published until now.
    pub(super) fn end(&self) -> u64 {
        self.consumer.end(&self.region().ring(self.me.slot))
    }

    /// Whether all cells were taken out that had been published when this was [`Post::end`].
    pub(super) fn is_past(&self, end: u64) -> bool {
        self.consumer.is_past(&self.region().ring(self.me.slot), end)
    }

    /// The message of a cell, if it is one for another host.
    fn read(&self, cell: &Cell<'_>, low: u32) -> Option<TakenCell> {
        let head = cell.head(low)?;
        if head.source.host != 0 || head.to.host == 0 {
            return None;
        }
        let (mut bytes, mut data) = (0, head.data);
        match head.kind {
            CellKind::Inline => bytes = usize::from(head.inline_bytes),
            CellKind::Eager => bytes = cell.lent(head.source)?.bytes,
            CellKind::Piece | CellKind::Part => {
                bytes = cell.lent(head.source)?.bytes;
                data = Some(cell.piece_at());
            }
            CellKind::Offer => bytes = cell.offer().map(|_| 16)?,
            CellKind::Clear | CellKind::Push => bytes = cell.clear().map(|_| 16)?,
            CellKind::Finish | CellKind::Ask => {}
            CellKind::Gone | CellKind::Credit => return None,
        }
        Some(TakenCell { head: CellHead { data, ..head }, bytes })
    }

    /// Puts an entry of another host into its receiver's ring, or lets it wait for that. Behind
    /// the last one of those that have come together is [`Post::wake_touched`].
    pub(super) fn put(&mut self, head: &CellHead, bytes: &[u8]) -> Put {
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

    /// Whether no more may be taken from other hosts for now.
    pub(super) fn is_full(&self) -> bool {
        self.waiting_bytes >= WAITING_BYTES_MAX
    }

    /// Whether something waits for its receiver.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Puts what waits into rings that have room again; tells what became of each. Then too is
    /// [`Post::wake_touched`].
    pub(super) fn put_waiting(&mut self, mut told: impl FnMut(&CellHead, Put)) {
        let mut next = self.waiting.keys().next().copied();
        while let Some(slot) = next {
            next = self.waiting.range(slot + 1..).next().map(|(slot, _)| *slot);
            while let Some((host, entry)) =
                self.waiting.get_mut(&slot).and_then(|it| it.pop_front())
            {
                let split = wire::split_entry(&entry, host).expect("we made it");
                let wire::SplitEntry { head, content, .. } = split;
                let put = match self.is_endpoint(head.to) {
                    false => Put::NoReceiver,
                    true => match self.try_put(&head, content) {
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

    /// The gateway's place in an endpoint's ring, which may have been cleared since the owner
    /// before.
    fn way(&mut self, to: Local) -> &mut RingProducer {
        let known = &mut self.ways[usize::from(to.slot)];
        if known.incarnation != to.incarnation {
            *known = ToSlot { incarnation: to.incarnation, ..ToSlot::default() };
        }
        &mut known.way
    }

    /// An entry was put into its ring: it may have to be woken.
    #[inline]
    fn touch(&mut self, to: Local) {
        if !std::mem::replace(&mut self.ways[usize::from(to.slot)].touched, true) {
            self.touched.push(to);
        }
    }

    /// Wakes sleepers in whose rings an entry was put since the last time: one fence for all of
    /// them, and nothing more while no doorbell is open.
    pub(super) fn wake_touched(&mut self) {
        if self.touched.is_empty() {
            return;
        }
        // An endpoint opens its doorbell, and stores that it sleeps, before it looks for the last
        // time.
        fence(SeqCst);
        let has_doorbells = self.table.has_doorbells();
        for to in self.touched.drain(..) {
            let known = &mut self.ways[usize::from(to.slot)];
            // The slot has a new owner, which is in this list too.
            if known.incarnation != to.incarnation {
                continue;
            }
            known.touched = false;
            if !has_doorbells {
                continue;
            }
            let word = self.table.region().ring(to.slot).asleep();
            if word != std::mem::replace(&mut known.rung, word) {
                self.table.ring(to.slot, to.incarnation);
            }
        }
    }

    fn try_put(&mut self, head: &CellHead, bytes: &[u8]) -> Result<(), NotPut> {
        let region = Arc::clone(self.region());
        let slot = head.to.slot;
        let ring = region.ring(slot);
        let producer = Producer { slot: self.me.slot, incarnation: self.me.incarnation as u16 };
        let is_message = matches!(head.kind, CellKind::Inline | CellKind::Eager);
        let buffer = match head.kind {
            CellKind::Inline | CellKind::Eager if bytes.len() <= INLINE_BYTES_MAX => None,
            CellKind::Inline | CellKind::Eager | CellKind::Piece | CellKind::Part => {
                if bytes.len() > region.options().buffer_bytes as usize {
                    return Err(NotPut::Malformed);
                }
                self.way(head.to).find_room(&ring)?;
                let buffer = self.slab.take(&region, self.me.slot, slot).ok_or(NotPut::Full)?;
                region.write(region.buffer(self.me.slot, buffer), bytes);
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
            kind = if buffer.is_some() { CellKind::Eager } else { CellKind::Inline };
        }
        if let Some(buffer) = buffer {
            cell.set_lent(&self.slab.lend(buffer, bytes.len(), head.to));
        }
        if kind == CellKind::Inline {
            region.write(cell.body_at(), bytes);
            inline_bytes = bytes.len() as u16;
        }
        set_words(&cell, kind, head.data, bytes);
        let data = head.data.filter(|_| !kind.is_piece());
        cell.publish(&CellHead { kind, inline_bytes, data, marked: false, ..*head });
        self.touch(head.to);
        self.slab.tidy(&region, self.me.slot);
        self.counters.delivered += 1;
        Ok(())
    }

    /// Lets producers ring from now on. `false`: something is there already.
    pub(super) fn fall_asleep(&mut self) -> bool {
        // While it sleeps nothing comes that would show how long one has been waited for.
        self.pass_dead();
        // A producer that does not see it has stored its cell before the look.
        self.consumer.fall_asleep(&self.region().ring(self.me.slot), 1, || fence(SeqCst))
    }

    /// Producers need not ring any more.
    pub(super) fn wake_up(&self) {
        self.region().ring(self.me.slot).set_asleep(0);
    }

    /// Lets producers leave what is for this host, or not.
    pub(super) fn hold(&self, host: u16, held: bool) {
        self.table.hold(host, self.me.slot, held);
    }

    /// Which slots of endpoints there are.
    pub(super) fn endpoint_slots(&self) -> std::ops::Range<u16> {
        let options = self.region().options();
        options.gateways..options.slots
    }

    /// The last dead owner of a slot; 0 if there is none.
    pub(super) fn last_dead(&self, slot: u16) -> u32 {
        self.table.last_dead(slot)
    }

    /// The endpoint that has a slot now.
    pub(super) fn live_in(&self, slot: u16) -> Option<Local> {
        let incarnation = self.table.live_in(slot)?;
        Some(Local { host: 0, slot, incarnation })
    }

    /// Counts endpoints that have died or departed.
    pub(super) fn deaths(&self) -> u64 {
        self.table.deaths()
    }
}

/// Writes what an entry of this kind has beside its head and its bytes.
fn set_words(cell: &Cell<'_>, kind: CellKind, data: Option<u64>, bytes: &[u8]) {
    let word = |at: usize| {
        bytes.get(at..at + 8).map_or(0, |it| u64::from_le_bytes(it.try_into().expect("eight")))
    };
    match kind {
        CellKind::Offer => cell.set_offer(&Offer {
            operation: word(0),
            bytes: word(8) as usize,
            proof_at: 0,
            proof: 0,
            // Any address: no process reads the memory of another host.
            count: 1,
            parts: std::array::from_fn(|at| (0, if at == 0 { word(8) as usize } else { 0 })),
        }),
        CellKind::Clear | CellKind::Push => {
            let bytes = usize::try_from(word(8)).unwrap_or(usize::MAX);
            cell.set_clear(&Clear { answer: word(0), bytes });
        }
        CellKind::Piece | CellKind::Part => cell.set_piece_at(data.unwrap_or_default() as usize),
        CellKind::Inline
        | CellKind::Eager
        | CellKind::Finish
        | CellKind::Gone
        | CellKind::Credit
        | CellKind::Ask => {}
    }
}

fn lent_of(cell: &Cell<'_>, head: &CellHead) -> Option<fabric::cell::Lent> {
    (head.kind == CellKind::Eager || head.kind.is_piece()).then(|| cell.lent(head.source)).flatten()
}

/// Writes a cell's entry into a place of its length. `false`: the sender's buffer has been lent
/// again meanwhile, and the entry is invalid.
fn copy(region: &Region, cell: &Cell<'_>, head: &CellHead, bytes: usize, entry: &mut [u8]) -> bool {
    let place = wire::put_entry(entry, head, bytes);
    let words = |place: &mut [u8], one: u64, other: usize| {
        place[..8].copy_from_slice(&one.to_le_bytes());
        place[8..].copy_from_slice(&(other as u64).to_le_bytes());
    };
    let from = match head.kind {
        CellKind::Offer => {
            let Some(offer) = cell.offer() else { return false };
            words(place, offer.operation, offer.bytes);
            return true;
        }
        CellKind::Clear | CellKind::Push => {
            let Some(clear) = cell.clear() else { return false };
            words(place, clear.answer, clear.bytes);
            return true;
        }
        CellKind::Inline => cell.body_at(),
        CellKind::Eager | CellKind::Piece | CellKind::Part => {
            let Some(lent) = cell.lent(head.source).filter(|lent| lent.bytes == bytes) else {
                return false;
            };
            region.buffer(lent.owner.slot, lent.buffer)
        }
        CellKind::Finish | CellKind::Ask | CellKind::Gone | CellKind::Credit => return true,
    };
    region.read(from, place);
    head.kind == CellKind::Inline || fabric::is_whole(region, head.source)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fabric::Class;
    use fabric::RegionOptions;

    fn head(to: Local) -> CellHead {
        CellHead {
            kind: CellKind::Inline,
            class: Class::Tagged,
            inline_bytes: 0,
            source: Local { host: 1, slot: 5, incarnation: 1 },
            to,
            tag: 0,
            data: None,
            marked: false,
        }
    }

    #[test]
    fn a_sleeper_is_woken_behind_a_batch_after_any_earlier_owner() {
        let options =
            RegionOptions { slots: 2, gateways: 1, cells: 16, ..RegionOptions::default() };
        let (table, _) = SlotTable::create(&options).expect("memory");
        let table = Arc::new(table);
        let mut post = Post::new(Arc::clone(&table), 0);
        let owner = || {
            let (slot, incarnation) = table.take_slot(1).expect("room");
            Local { host: 0, slot, incarnation }
        };
        let fall_asleep = |to: Local| {
            let read_end = table.open_doorbell(to.slot, to.incarnation).expect("a pair");
            table.region().ring(to.slot).set_asleep(1);
            read_end
        };
        let is_rung = |read_end: &std::os::fd::OwnedFd| {
            rustix::net::recv(read_end, &mut [0; 8], rustix::net::RecvFlags::DONTWAIT).is_ok()
        };
        let first = owner();
        (0..3).for_each(|_| assert_eq!(post.put(&head(first), b""), Put::Done));
        assert_eq!(post.touched, [first], "once");
        post.wake_touched();
        assert!(post.touched.is_empty(), "no sender can sleep");
        let read_end = fall_asleep(first);
        (0..2).for_each(|_| assert_eq!(post.put(&head(first), b""), Put::Done));
        assert!(!is_rung(&read_end));
        post.wake_touched();
        assert!(is_rung(&read_end));
        // One batch has something for an owner of the slot, and for the next.
        table.region().ring(first.slot).set_asleep(2);
        assert_eq!(post.put(&head(first), b""), Put::Done);
        assert!(table.declare_dead(first.slot));
        let (second, to) = (owner(), |it: Local| (it.slot, it.incarnation));
        assert_eq!(to(second), (first.slot, first.incarnation + 1));
        let read_end = fall_asleep(second);
        assert_eq!(post.put(&head(second), b""), Put::Done);
        post.wake_touched();
        assert!(is_rung(&read_end) && post.touched.is_empty());
    }

    #[test]
    fn a_ring_that_was_begun_anew_is_filled_from_its_beginning() {
        let options =
            RegionOptions { slots: 2, gateways: 1, cells: 16, ..RegionOptions::default() };
        let (table, _) = SlotTable::create(&options).expect("memory");
        let table = Arc::new(table);
        let region = Arc::clone(table.region());
        let mut post = Post::new(Arc::clone(&table), 0);
        let mut put = || {
            let (slot, incarnation) = table.take_slot(1).expect("room");
            let head = head(Local { host: 0, slot, incarnation });
            (0..3).for_each(|_| assert_eq!(post.try_put(&head, b""), Ok(())));
            let ring = region.ring(slot);
            assert!(Consumer::new(&ring).look(&ring).is_some(), "the first cell");
            slot
        };
        let slot = put();
        region.ring(slot).set_claim(5, u64::MAX);
        assert!(table.declare_dead(slot));
        assert_eq!(put(), slot);
    }
}
