//! The bells that the node has hung, by slot.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU64, AtomicUsize, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fabric::Region;
use fabric::bell::{self, Pair};
use fabric::ring::{Claim, Words};
use rustix::io::Errno;

use crate::hand_over::{BellState, Put, Take};

/// What the node keeps of one.
#[derive(Debug)]
struct Bell {
    incarnation: u32,
    rope: OwnedFd,
    /// For which sleep it was rung last: it still can be heard as long as that one lasts.
    rung: AtomicU64,
}

/// The bells of a region, by slot.
#[derive(Debug)]
pub(super) struct Bells {
    /// Locked for a moment: a sidecore rings, too.
    slots: Box<[Mutex<Option<Arc<Bell>>>]>,
    /// That were hung and not taken down. While there are none nobody sleeps.
    count: AtomicUsize,
}

impl Bells {
    pub(super) fn new(slots: usize) -> Self {
        let slots = (0..slots).map(|_| Mutex::new(None)).collect();
        Self { slots, count: AtomicUsize::new(0) }
    }

    fn of(&self, slot: u16) -> Option<MutexGuard<'_, Option<Arc<Bell>>>> {
        // A bell is changed as a whole.
        let bell = self.slots.get(usize::from(slot))?;
        Some(bell.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn find(&self, slot: u16) -> Option<Arc<Bell>> {
        self.of(slot)?.clone()
    }

    fn find_of(&self, slot: u16, incarnation: u32) -> Option<Arc<Bell>> {
        self.find(slot).filter(|bell| bell.incarnation == incarnation)
    }

    fn replace(&self, slot: u16, bell: Option<Bell>) -> Option<()> {
        let mut place = self.of(slot)?;
        match (place.is_some(), bell.is_some()) {
            // Before its owner has what it hears it by, so before it can sleep.
            (false, true) => drop(self.count.fetch_add(1, SeqCst)),
            (true, false) => drop(self.count.fetch_sub(1, SeqCst)),
            _ => {}
        }
        *place = bell.map(Arc::new);
        Some(())
    }

    /// Whether there is any bell. Behind a fence that is behind what was stored for others: who
    /// hangs one after that sees it.
    pub(super) fn is_any(&self) -> bool {
        self.count.load(SeqCst) > 0
    }

    /// Makes one for an owner of a slot, who hears it by what this gives.
    pub(super) fn hang(&self, slot: u16, incarnation: u32) -> Result<OwnedFd, Errno> {
        let Pair { rope, ear } = Pair::new()?;
        let bell = Bell { incarnation, rope, rung: AtomicU64::new(0) };
        self.replace(slot, Some(bell)).ok_or(Errno::INVAL)?;
        Ok(ear)
    }

    /// All there are, for another process that rings them.
    pub(super) fn copies(&self, put: Put<'_>) -> io::Result<Vec<BellState>> {
        let mut bells = Vec::new();
        for slot in 0..self.slots.len() as u16 {
            if let Some(bell) = self.find(slot) {
                let (incarnation, rung) = (bell.incarnation, bell.rung.load(Relaxed));
                let rope = put(bell.rope.try_clone()?);
                bells.push(BellState { slot, incarnation, rung, rope });
            }
        }
        Ok(bells)
    }

    /// One of those, which `slot` has; `false`: there is no such slot, or it has one.
    pub(super) fn adopt(&self, state: &BellState, take: Take<'_>) -> io::Result<bool> {
        let &BellState { slot, incarnation, rung, rope } = state;
        if self.find(slot).is_some() {
            return Ok(false);
        }
        let bell = Bell { incarnation, rope: take(rope)?, rung: AtomicU64::new(rung) };
        Ok(self.replace(slot, Some(bell)).is_some())
    }

    /// Takes away what the owners before this one had.
    pub(super) fn take_down(&self, slot: u16) {
        let _ = self.replace(slot, None);
    }

    /// By what others ring an owner's bell, if it has one.
    pub(super) fn rope(&self, slot: u16, incarnation: u32) -> Option<OwnedFd> {
        self.find_of(slot, incarnation)?.rope.try_clone().ok()
    }

    /// Wakes an owner of a slot, if it sleeps and was not woken yet: it looks for what has happened
    /// before this.
    pub(super) fn ring(&self, region: &Region, slot: u16, incarnation: u32) {
        if let Some(bell) = self.find_of(slot, incarnation) {
            bell.ring(region, slot);
        }
    }

    /// Wakes all that sleep.
    pub(super) fn ring_all(&self, region: &Region) {
        self.ring_those(region, |_| true);
    }

    /// Wakes those who sleep though something was claimed in their rings, by whoever it was.
    pub(super) fn ring_where_something_is(&self, region: &Region) {
        self.ring_those(region, |slot| {
            let ring = region.ring(slot);
            // Who falls asleep tells how far it is, and whoever sends begins there.
            let head = ring.head();
            Claim::from_word(ring.claim(head)).turn == ring.turn(head)
        });
    }

    fn ring_those(&self, region: &Region, which: impl Fn(u16) -> bool) {
        if !self.is_any() {
            return;
        }
        for slot in 0..region.slots() {
            if let Some(bell) = self.find(slot).filter(|_| which(slot)) {
                bell.ring(region, slot);
            }
        }
    }
}

impl Bell {
    fn ring(&self, region: &Region, slot: u16) {
        // Who falls asleep says so before it looks for the last time.
        fence(SeqCst);
        let word = region.ring(slot).asleep();
        // Two that ring at once ring once or twice, and both for a sleep that they have seen.
        if word != self.rung.swap(word, Relaxed) {
            bell::ring(&self.rope);
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;
    use crate::Keeper;
    use fabric::RegionOptions;
    use fabric::bell::silence;
    use fabric::ring::{Producer, Way};

    fn is_rung(ear: &OwnedFd) -> bool {
        let mut fds = [PollFd::new(ear, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).expect("it can be asked") > 0
    }

    fn keeper() -> (Keeper, u16, u32) {
        let options = RegionOptions { slots: 3, cells: 16, ..RegionOptions::default() };
        let (keeper, _) = Keeper::create(&options).expect("memory");
        let (slot, incarnation) = keeper.take_slot(1).expect("room");
        (keeper, slot, incarnation)
    }

    #[test]
    fn a_doorbell_of_a_vm_wakes_those_alone_for_whom_something_came() {
        let (keeper, slot, incarnation) = keeper();
        let (other, others) = keeper.take_slot(2).expect("room");
        let ears = [(slot, incarnation), (other, others)]
            .map(|(slot, incarnation)| keeper.hang_bell(slot, incarnation).expect("a pair"));
        let rings = [slot, other].map(|slot| keeper.region().ring(slot));
        rings.iter().for_each(|ring| ring.set_asleep(1));
        keeper.ring_where_something_is();
        assert_eq!(ears.each_ref().map(is_rung), [false; 2]);
        let me = Producer { slot: other, incarnation: others as u16 };
        // The first cell, and one after the ring went round: who sleeps has taken all before it.
        let mut way = Way::default();
        for sleep in 2..=40 {
            let position = way.claim(&rings[0], me).expect("room");
            keeper.ring_where_something_is();
            assert!(is_rung(&ears[0]) && silence(&ears[0]) && !is_rung(&ears[1]));
            rings[0].set_head(position + 1);
            rings[0].set_asleep(sleep);
            keeper.ring_where_something_is();
            assert!(!is_rung(&ears[0]), "all was taken");
        }
    }

    #[test]
    fn a_sleep_is_rung_for_once_and_its_owner_only() {
        let (keeper, slot, incarnation) = keeper();
        let ear = keeper.hang_bell(slot, incarnation).expect("a pair");
        let ring = keeper.region().ring(slot);
        keeper.ring(slot, incarnation);
        assert!(!is_rung(&ear), "it is awake");
        ring.set_asleep(1);
        keeper.ring(slot, incarnation + 1);
        assert!(!is_rung(&ear));
        keeper.ring(slot, incarnation);
        assert!(is_rung(&ear));
        assert!(silence(&ear));
        keeper.ring(slot, incarnation);
        assert!(!is_rung(&ear), "it was, for this sleep");
        ring.set_asleep(2);
        keeper.ring(slot, incarnation);
        assert!(is_rung(&ear));
    }

    #[test]
    fn deaths_and_ends_of_hosts_wake_who_sleeps() {
        let (keeper, slot, incarnation) = keeper();
        let ear = keeper.hang_bell(slot, incarnation).expect("a pair");
        let ring = keeper.region().ring(slot);
        let (other, _) = keeper.take_slot(2).expect("room");
        let host = keeper.add_host(5).expect("room");
        let events: [&dyn Fn(); 3] =
            [&|| keeper.declare_left(other), &|| assert!(keeper.declare_dead(other)), &|| {
                keeper.end_host(host)
            }];
        for (word, event) in (1..).zip(events) {
            ring.set_asleep(word);
            assert!(!is_rung(&ear));
            event();
            // Once for all who have died since.
            keeper.tell_deaths();
            assert!(is_rung(&ear) && silence(&ear));
        }
        assert!(keeper.declare_dead(slot));
        assert!(!silence(&ear), "nobody can ring it any more");
        assert!(keeper.rope(slot, incarnation).is_none());
    }
}
