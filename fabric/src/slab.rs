//! The buffers that an endpoint sends from, and when they are its own again.
//!
//! A buffer is lent with a number that no other lending of it had. Its receiver writes the number
//! into the buffer's word when it has copied; no other process has to look at anything. The owner
//! looks at the words of the buffers it lent, oldest first, after a send: at this moment no
//! receiver waits for it.
//!
//! A receiver that does not give back must not cost others anything: each receiver has at most as
//! many buffers at once as are left. One that keeps all it gets leaves half of them, two leave a
//! third. A gateway has many more receivers, most of which may be at work and not look for long. Of
//! its slab ([`Slab::of_gateway`]) a receiver that has given nothing back lately gets two buffers,
//! and only a receiver without a buffer gets the last one.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::atomic::fence;

use crate::cell::{Lent, Local};
use crate::region::Region;

/// How many lent buffers are looked at after each that was lent: two, so that those come back
/// sooner than they go, and few are in use that a cache has to hold.
const LOOKS: usize = 2;

/// How many of a gateway's buffers a receiver may have that has given none of them back lately.
const UNPROVEN_MAX: u16 = 2;

/// Lately: in the time of so many lendings for each buffer that there is. One that shares its core
/// with the gateway gives back all that it has at once, between two turns of the gateway.
const PROOF_LENDINGS: u64 = 4;

/// A buffer that is lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lending {
    /// Which.
    pub buffer: u16,
    /// Of the lending: no other one of this buffer had it.
    pub number: u64,
    /// The receiver.
    pub to: Local,
}

/// Why a slab cannot go on with what was lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LendingError {
    /// A buffer is there twice, or not in the region.
    #[error("a buffer is lent twice, or does not exist")]
    NotFree,
    /// There is no such receiver, or its lending is one to come.
    #[error("a buffer is lent to no receiver")]
    NoReceiver,
}

/// The owner's side.
#[derive(Debug)]
pub struct Slab {
    owner: Local,
    /// The last one that came back is first, since it may still be in a cache.
    free: Vec<u16>,
    out: VecDeque<Lending>,
    /// How many each slot has.
    held: Box<[u16]>,
    /// A gateway's: of each slot, which lending was the next when it was last seen to give back.
    /// Nothing for others.
    proven: Option<Box<[u64]>>,
    /// The next lending's number.
    next: u64,
}

impl Slab {
    pub(crate) fn new(region: &Region, owner: Local) -> Self {
        let buffers = region.options().buffers as u16;
        // No owner before had this incarnation, so a receiver that gives back late gives nothing
        // of ours.
        let next = u64::from(owner.incarnation) << 32 | 1;
        let out = VecDeque::with_capacity(usize::from(buffers));
        let held = vec![0; usize::from(region.options().slots)].into();
        Self { owner, free: (0..buffers).rev().collect(), out, held, proven: None, next }
    }

    /// The slab of a gateway, for messages to all endpoints; see the module.
    pub fn of_gateway(region: &Region, owner: Local) -> Self {
        let proven = vec![0; usize::from(region.options().slots)].into();
        Self { proven: Some(proven), ..Self::new(region, owner) }
    }

    /// A gateway's slab as it was in the process before: the buffers that were lent, and the number
    /// of the next lending.
    ///
    /// # Errors
    /// When the two contradict each other or the region.
    pub fn resume(
        region: &Region,
        owner: Local,
        lent: impl IntoIterator<Item = Lending>,
        next: u64,
    ) -> Result<Self, LendingError> {
        let mut slab = Self { next, ..Self::of_gateway(region, owner) };
        for lending in lent {
            let Lending { buffer, number, to } = lending;
            let place = slab.free.iter().position(|free| *free == buffer);
            let place = place.ok_or(LendingError::NotFree)?;
            if number >= next || to.slot >= region.slots() {
                return Err(LendingError::NoReceiver);
            }
            slab.free.remove(place);
            slab.held[usize::from(to.slot)] += 1;
            slab.out.push_back(lending);
        }
        Ok(slab)
    }

    /// The arguments of [`Slab::resume`]: the buffers that are lent, and the number of the next
    /// lending.
    pub fn lent(&self) -> (impl Iterator<Item = Lending>, u64) {
        (self.out.iter().copied(), self.next)
    }

    /// A free buffer for a slot, which is not lent yet. None: there is none, or it has enough.
    #[inline]
    pub fn take(&mut self, region: &Region, me: u16, to: u16) -> Option<u16> {
        if !self.may_have(to) {
            self.look(region, me, self.out.len(), true);
            if !self.may_have(to) {
                return None;
            }
        }
        self.free.pop()
    }

    fn may_have(&self, to: u16) -> bool {
        let (held, free) = (self.held[usize::from(to)], self.free.len());
        if self.proven.is_some()
            && held > 0
            && (free == 1 || (held >= UNPROVEN_MAX && !self.is_proven(to)))
        {
            return false;
        }
        usize::from(held) < free
    }

    /// Whether a receiver gives back, as far as was seen lately.
    fn is_proven(&self, to: u16) -> bool {
        let buffers = (self.free.len() + self.out.len()) as u64;
        self.proven.as_ref().is_none_or(|proven| {
            let seen = proven[usize::from(to)];
            seen > 0 && self.next - seen <= PROOF_LENDINGS * buffers
        })
    }

    /// Gives a buffer back that was taken and not lent.
    pub fn untake(&mut self, buffer: u16) {
        self.free.push(buffer);
    }

    /// Lends a buffer that was taken.
    #[inline]
    pub fn lend(&mut self, buffer: u16, bytes: usize, to: Local) -> Lent {
        let number = self.next;
        self.next += 1;
        self.held[usize::from(to.slot)] += 1;
        self.out.push_back(Lending { buffer, number, to });
        Lent { owner: self.owner, buffer, bytes, number }
    }

    /// Takes a few back whose receivers are done; after a send.
    #[inline]
    pub fn tidy(&mut self, region: &Region, me: u16) {
        self.look(region, me, LOOKS.min(self.out.len()), false);
    }

    /// Looks at the oldest so many that are lent; also whether their receivers still live.
    fn look(&mut self, region: &Region, me: u16, count: usize, lives: bool) {
        for _ in 0..count {
            let Some(out) = self.out.pop_front() else { return };
            let word = region.mapping().load(region.layout().returned(me, out.buffer), Acquire);
            let is_gone =
                |to: Local| region.life(to.slot).is_none_or(|life| !life.is_live(to.incarnation));
            if word == out.number || (lives && is_gone(out.to)) {
                let held = &mut self.held[usize::from(out.to.slot)];
                *held -= 1;
                if let Some(proven) = &mut self.proven {
                    // An endpoint that is gone has proven nothing for the slot's next owner.
                    proven[usize::from(out.to.slot)] =
                        if word == out.number { self.next } else { 0 };
                }
                self.free.push(out.buffer);
            } else {
                self.out.push_back(out);
            }
        }
    }

    /// How many are lent, as far as was looked.
    #[cfg(test)]
    pub(crate) fn lent_count(&self) -> usize {
        self.out.len()
    }
}

/// The receiver's side: has copied what it wants, the buffer is its owner's again.
#[inline]
pub fn give_back(region: &Region, lent: &Lent) {
    let word = region.layout().returned(lent.owner.slot, lent.buffer);
    region.mapping().store(word, lent.number, Release);
}

/// Whether a slot is still its sender's, or was left by it as it was. After a copy out of its slab:
/// whether that was the sender's content.
#[inline]
pub fn is_whole(region: &Region, sender: Local) -> bool {
    // The copy before this has loaded its bytes by now.
    fence(Acquire);
    region.life(sender.slot).is_some_and(|life| life.incarnation == sender.incarnation)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RegionOptions;
    use crate::testing::Node;

    #[test]
    fn buffers_are_lent_once_and_come_back() {
        let options = RegionOptions { slots: 3, buffers: 4, ..RegionOptions::default() };
        let (table, _fd) = Node::new(&options);
        let region = table.region();
        let [me, other, third] = [0; 3].map(|pid| {
            let (slot, incarnation) = table.take_slot(pid).expect("room");
            Local { host: 0, slot, incarnation }
        });
        let mut slab = Slab::new(region, me);
        let take = |slab: &mut Slab, to: Local| slab.take(region, me.slot, to.slot);
        let mut lent = Vec::new();
        for to in [other, other, third] {
            let buffer = take(&mut slab, to).expect("a free one");
            lent.push(slab.lend(buffer, 100, to));
            assert_eq!(
                take(&mut slab, other).map(|buffer| slab.untake(buffer)).is_some(),
                lent.len() < 2
            );
        }
        assert_eq!(
            (take(&mut slab, third), slab.lent_count()),
            (None, 3),
            "it has one, as is left"
        );
        give_back(region, &Lent { number: 77, ..lent[0] });
        assert_eq!(take(&mut slab, other), None, "a number of another time");
        give_back(region, &lent[1]);
        let buffer = take(&mut slab, other).expect("two are left");
        assert_eq!(buffer, lent[1].buffer);
        slab.untake(buffer);
        assert!(table.declare_dead(third.slot));
        give_back(region, &lent[0]);
        slab.tidy(region, me.slot);
        assert_eq!((slab.lent_count(), slab.free.len()), (1, 3), "a look for words alone");
        slab.look(region, me.slot, 1, true);
        assert_eq!((slab.lent_count(), slab.free.len()), (0, 4), "its owner is dead");
        assert!(slab.held.iter().all(|&held| held == 0));
    }

    #[test]
    fn receivers_that_return_nothing_do_not_have_a_gateways_last_buffer() {
        let options = RegionOptions { slots: 6, buffers: 8, ..RegionOptions::default() };
        let (table, _fd) = Node::new(&options);
        let region = table.region();
        let all = [0; 6].map(|pid| {
            let (slot, incarnation) = table.take_slot(pid).expect("room");
            Local { host: 0, slot, incarnation }
        });
        let [me, silent @ .., last] = all;
        let mut slab = Slab::of_gateway(region, me);
        let mut lend = |to: Local| {
            let buffer = slab.take(region, me.slot, to.slot)?;
            Some(slab.lend(buffer, 100, to))
        };
        let had = silent.map(|to| std::iter::from_fn(|| lend(to)).count());
        assert_eq!(had, [2, 2, 2, 1]);
        let lent = lend(last).expect("it has none");
        assert_eq!(lend(last), None, "none is left");
        give_back(region, &lent);
        assert!(lend(last).is_some());
    }

    #[test]
    fn a_receiver_that_returned_all_buffers_is_known_for_a_while() {
        let options = RegionOptions { slots: 4, buffers: 8, ..RegionOptions::default() };
        let (table, _fd) = Node::new(&options);
        let region = table.region();
        let [me, one, other] = [0; 3].map(|pid| {
            let (slot, incarnation) = table.take_slot(pid).expect("room");
            Local { host: 0, slot, incarnation }
        });
        let mut slab = Slab::of_gateway(region, me);
        let mut turn = |to: Local| {
            let mut lent = Vec::new();
            while let Some(buffer) = slab.take(region, me.slot, to.slot) {
                lent.push(slab.lend(buffer, 100, to));
            }
            lent.iter().for_each(|lent| give_back(region, lent));
            lent.len()
        };
        assert_eq!([turn(one), turn(one), turn(one)], [2, 4, 4], "two until it gave back");
        // Others have had so many since that it may be at work elsewhere.
        let others: usize = (0..9).map(|_| turn(other)).sum();
        assert!(others > 4 * 8, "{others}");
        assert_eq!(turn(one), 2);
    }
}
