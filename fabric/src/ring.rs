//! An endpoint's shared receive queue: many producers, one consumer, and producers that die.
//!
//! ```text
//!   claims   |7,b|7,a|6,b|6,c|      each cell's holder, and the turn of the ring
//!   cells    |full   |being  |old   |old   |
//!            |turn 7 |filled |turn 6|turn 6|
//!             ^ head          ^ tail
//! ```
//!
//! Positions count up for ever; a position's cell is its remainder, its *turn* says how often the
//! ring went round. To send, a producer
//!
//! 1. finds the first cell whose claim is of the turn before, from the tail on, which is a hint;
//! 2. makes the claim its own by compare-and-swap: one store takes the cell and records the
//!    producer, so a cell that is taken has a holder at every moment;
//! 3. moves the hint on, fills the cell, and publishes it by storing its stamp, which has the turn.
//!
//! The consumer looks at the stamp of the cell at its head and nowhere else, so the claims stay in
//! the caches of the producers. Cells are given back by moving the head, now and then: a producer
//! claims no position that is a whole ring beyond it. When nothing comes for a while the consumer
//! looks at the claim as well: if its producer is dead and the stamp is still missing, the cell is
//! skipped. Only the node says that a producer is dead, and only when no store of this producer can
//! follow. So a cell that was skipped, or whose claim goes to the next producer, never has two
//! writers.
//!
//! A consumer that wants to sleep says so, makes that seen, and looks once more; a producer
//! publishes first, and looks then whether the consumer must be woken. One of the two sees the
//! other, as long as neither processor swaps its store with its load: [`Consumer::fall_asleep`].
//!
//! This file is the algorithm; its words are behind a trait, so that loom can run it as well.

#[cfg(all(loom, test))]
mod model;
#[cfg(test)]
mod tests;

/// A claim that no endpoint has: of a producer that died.
pub const NOBODY: u16 = u16::MAX;

/// The life of a slot's owner, as others see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotLife {
    /// Nobody's; before the first endpoint, and after a dead one was cleared away.
    Free,
    /// An endpoint's.
    Live,
    /// Its endpoint will never store anything again.
    Dead,
    /// Its process is no member any more and has not ended: to other members it is gone, but it may
    /// still fill cells that it has claimed.
    Departed,
}

/// A slot's state and which of its owners it is about: one word, so that both are read at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// The state.
    pub state: SlotLife,
    /// Counts its owners.
    pub incarnation: u32,
}

impl Life {
    /// As it stands in the region.
    #[inline]
    pub fn to_word(self) -> u64 {
        let state = match self.state {
            SlotLife::Free => 0,
            SlotLife::Live => 1,
            SlotLife::Dead => 2,
            SlotLife::Departed => 3,
        };
        u64::from(self.incarnation) << 32 | state
    }

    /// A state that is none is nobody's.
    pub fn from_word(word: u64) -> Self {
        let state = match word as u32 {
            1 => SlotLife::Live,
            2 => SlotLife::Dead,
            3 => SlotLife::Departed,
            _ => SlotLife::Free,
        };
        Self { state, incarnation: (word >> 32) as u32 }
    }

    /// Whether this owner lives.
    #[inline]
    pub fn is_live(self, incarnation: u32) -> bool {
        self.state == SlotLife::Live && self.incarnation == incarnation
    }

    /// Whether the endpoint that has claimed a cell under this number may still fill it.
    fn may_store(self, incarnation: u16) -> bool {
        matches!(self.state, SlotLife::Live | SlotLife::Departed)
            && self.incarnation as u16 == incarnation
    }
}

/// A producer that claims: a slot and the low half of its incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Producer {
    /// The slot.
    pub slot: u16,
    /// The low half of its owner's number.
    pub incarnation: u16,
}

/// A claim: the holder of a cell, and the turn. The first turn is 1; memory that was never written
/// reads as turn 0, in which each cell can be claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellClaim {
    /// Of the ring.
    pub turn: u32,
    /// Whose it is.
    pub producer: Producer,
}

impl CellClaim {
    /// As it stands in the region.
    #[inline]
    pub fn to_word(self) -> u64 {
        let Producer { slot, incarnation } = self.producer;
        u64::from(self.turn) << 32 | u64::from(slot) << 16 | u64::from(incarnation)
    }

    /// The life that a word of the region says.
    #[inline]
    pub fn from_word(word: u64) -> Self {
        let producer = Producer { slot: (word >> 16) as u16, incarnation: word as u16 };
        Self { turn: (word >> 32) as u32, producer }
    }
}

/// The words of one ring, and of the lives of all that may have claims in it.
pub trait Words {
    /// How many cells it has; a power of two.
    fn cells(&self) -> u32;
    /// Acquires: a head that is looked at after it is no older than what the tail was made with.
    fn tail(&self) -> u64;
    /// Releases.
    fn set_tail(&self, position: u64);
    /// Acquires: the consumer has read all that it wants from the cells before this position.
    fn head(&self) -> u64;
    /// Releases.
    fn set_head(&self, position: u64);
    /// Acquires: the claim of a position's cell.
    fn claim(&self, position: u64) -> u64;
    /// Acquires and releases; `Err` with what is there.
    fn exchange_claim(&self, position: u64, current: u64, new: u64) -> Result<(), u64>;
    /// Acquires: turn in the upper half.
    fn stamp(&self, position: u64) -> u64;
    /// Releases: publishes the cell.
    fn set_stamp(&self, position: u64, stamp: u64);
    /// Acquires; none where there is no such slot.
    fn life(&self, slot: u16) -> Option<Life>;
    /// The consumer's last word: 0 when it looks by itself, else it must be woken.
    fn asleep(&self) -> u64;
    /// Says that; ordered by the fences of [`Consumer::fall_asleep`].
    fn set_asleep(&self, word: u64);

    /// The turn that a position is in.
    #[inline]
    fn turn(&self, position: u64) -> u32 {
        ((position >> self.cells().trailing_zeros()) as u32).wrapping_add(1)
    }
}

/// Why there is no cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoCell {
    /// The consumer has not taken what is there.
    Full,
    /// The ring's words contradict each other.
    Broken,
}

/// A producer's knowledge of a ring that it sends to.
#[derive(Clone, Copy, Debug, Default)]
pub struct RingProducer {
    /// Everything before it is claimed, for all that it knows; and it has no claim behind it, so
    /// that its messages stay in order.
    next: u64,
    /// The head, when it was last looked at.
    head: u64,
}

impl RingProducer {
    /// One that has claimed nothing from this position on.
    pub fn after(next: u64) -> Self {
        Self { next, ..Self::default() }
    }

    /// See [`RingProducer::after`].
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Claims the next cell: its position.
    #[inline(always)]
    pub fn claim(&mut self, ring: &impl Words, me: Producer) -> Result<u64, NoCell> {
        let position = self.within(ring, ahead(ring.tail(), self.next))?;
        let (turn, current) = (ring.turn(position), ring.claim(position));
        let is_free = turn.wrapping_sub(CellClaim::from_word(current).turn) == 1;
        let claim = CellClaim { turn, producer: me };
        if is_free && ring.exchange_claim(position, current, claim.to_word()).is_ok() {
            self.next = position.wrapping_add(1);
            ring.set_tail(self.next);
            return Ok(position);
        }
        // Others claim as well.
        self.claim_from(ring, me, position)
    }

    /// Claims the first cell from a position on.
    #[cold]
    fn claim_from(
        &mut self,
        ring: &impl Words,
        me: Producer,
        mut position: u64,
    ) -> Result<u64, NoCell> {
        // Each step goes one position on, and no further than a ring's length beyond the head; or
        // looks again where the node has just cleared up.
        for _ in 0..=ring.cells() {
            position = self.within(ring, position)?;
            let turn = ring.turn(position);
            let current = ring.claim(position);
            let behind = turn.wrapping_sub(CellClaim::from_word(current).turn) as i32;
            if behind > 1 {
                return Err(NoCell::Broken);
            }
            if behind == 1 {
                let claim = CellClaim { turn, producer: me };
                match ring.exchange_claim(position, current, claim.to_word()) {
                    Ok(()) => {
                        self.next = position.wrapping_add(1);
                        ring.set_tail(self.next);
                        return Ok(position);
                    }
                    // The node has just taken a dead producer's claim of the turn before away. A
                    // producer that went on would move the tail beyond a cell without a claim.
                    Err(now) if CellClaim::from_word(now).turn != turn => continue,
                    Err(_) => {}
                }
            }
            // It is somebody's, or has just become so.
            position = position.wrapping_add(1);
        }
        Err(NoCell::Full)
    }

    /// Whether there was room just now, for a producer that has work to do before it claims.
    #[inline]
    pub fn find_room(&mut self, ring: &impl Words) -> Result<(), NoCell> {
        let position = ahead(ring.tail(), self.next);
        self.within(ring, position).map(drop)
    }

    /// The position, or the head where that is further; full if there is no room for it.
    #[inline]
    fn within(&mut self, ring: &impl Words, position: u64) -> Result<u64, NoCell> {
        let cells = u64::from(ring.cells());
        if position.wrapping_sub(self.head) < cells {
            return Ok(position);
        }
        self.within_now(ring, position)
    }

    /// The same, after a look at the head.
    #[cold]
    fn within_now(&mut self, ring: &impl Words, position: u64) -> Result<u64, NoCell> {
        let cells = u64::from(ring.cells());
        self.head = ring.head();
        let position = ahead(position, self.head);
        match position.wrapping_sub(self.head) {
            used if used < cells => Ok(position),
            used if used == cells => Err(NoCell::Full),
            // No producer can have claimed a position that is a whole ring beyond the head: head or
            // tail was written over, and the ring would seem full for ever.
            _ => Err(NoCell::Broken),
        }
    }
}

/// The later of two positions.
#[inline]
fn ahead(one: u64, other: u64) -> u64 {
    if one.wrapping_sub(other) as i64 >= 0 { one } else { other }
}

/// The stamp that publishes a position's cell, with the low half of its first word.
#[inline]
pub fn publish(ring: &impl Words, position: u64, low: u32) {
    ring.set_stamp(position, u64::from(ring.turn(position)) << 32 | u64::from(low));
}

/// The end that takes out.
#[derive(Debug)]
pub struct Consumer {
    head: u64,
    published: u64,
}

impl Consumer {
    /// Goes on where the owner before stood, or a little before that.
    pub fn new(ring: &impl Words) -> Self {
        let head = ring.head();
        Self { head, published: head }
    }

    /// Goes on at this position, which was told to producers.
    pub fn at(position: u64) -> Self {
        Self { head: position, published: position }
    }

    /// The position of the next cell.
    #[inline]
    pub fn position(&self) -> u64 {
        self.head
    }

    /// The low half of the next cell's first word, if it is there.
    #[inline]
    pub fn look(&self, ring: &impl Words) -> Option<u32> {
        let stamp = ring.stamp(self.head);
        ((stamp >> 32) as u32 == ring.turn(self.head)).then_some(stamp as u32)
    }

    /// Has taken the next cell. Producers hear of it an eighth of a ring at a time.
    #[inline]
    pub fn advance(&mut self, ring: &impl Words) {
        self.head = self.head.wrapping_add(1);
        let batch = u64::from(ring.cells() / 8).max(1);
        if self.head.wrapping_sub(self.published) >= batch {
            self.published = self.head;
            ring.set_head(self.head);
        }
    }

    /// Tells how far it is, if that was not told: nothing has come for a while.
    pub fn rest(&mut self, ring: &impl Words) {
        if self.head != self.published {
            self.published = self.head;
            ring.set_head(self.head);
        }
    }

    /// Goes past the next cell if its producer died between the claim and publishing.
    pub fn skip_dead(&mut self, ring: &impl Words) -> bool {
        let claim = CellClaim::from_word(ring.claim(self.head));
        if claim.turn != ring.turn(self.head) {
            return false;
        }
        let Producer { slot, incarnation } = claim.producer;
        // Before the stamp is looked at: a producer that was dead by then has made its last store.
        let is_alive =
            slot != NOBODY && ring.life(slot).is_some_and(|life| life.may_store(incarnation));
        if is_alive || self.look(ring).is_some() {
            return false;
        }
        self.advance(ring);
        true
    }

    /// Has producers wake the consumer from now on, and says whether it can sleep: nothing is
    /// there.
    ///
    /// `barrier` makes the store visible before the look. It also keeps each producer's looks for
    /// the store behind the cells that this producer has published: it makes a fence for producers
    /// that have no fence of their own in between.
    pub fn fall_asleep(&self, ring: &impl Words, word: u64, barrier: impl FnOnce()) -> bool {
        ring.set_asleep(word);
        barrier();
        self.look(ring).is_none()
    }

    /// A position before which everything is that has been claimed until now.
    pub fn end(&self, ring: &impl Words) -> u64 {
        self.head.wrapping_add(u64::from(ring.cells()))
    }

    /// Whether all has been taken that had been claimed when that was [`Consumer::end`]: a ring's
    /// length was since, or nothing is claimed now.
    pub fn is_past(&self, ring: &impl Words, end: u64) -> bool {
        let is_empty = CellClaim::from_word(ring.claim(self.head)).turn != ring.turn(self.head);
        is_empty || self.head.wrapping_sub(end) as i64 >= 0
    }
}

/// Whether a ring can be handed to its slot's next owner: nothing in it contradicts the rules, so
/// each producer gets through. The tail is set anew.
pub fn is_sound(ring: &impl Words) -> bool {
    let head = ring.head();
    let mut claimed = true;
    for position in (0..u64::from(ring.cells())).map(|ahead| head.wrapping_add(ahead)) {
        let turn = ring.turn(position);
        let behind = turn.wrapping_sub(CellClaim::from_word(ring.claim(position)).turn);
        claimed &= behind == 0;
        let is_full = (ring.stamp(position) >> 32) as u32 == turn;
        // All that is claimed comes before all that is not, and nothing is there that is not
        // claimed.
        if !(claimed || (behind == 1 && !is_full)) {
            return false;
        }
    }
    ring.set_tail(head);
    true
}
