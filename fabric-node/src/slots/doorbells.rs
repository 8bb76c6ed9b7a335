//! The doorbells of a region's endpoints, as the node has them.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU64, AtomicUsize, fence};

use fabric::Region;
use fabric::doorbell::{self, DoorbellPair};
use fabric::ring::{CellClaim, Words};
use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;

use handover::{ReceivedDescriptors, SentDescriptors};

use crate::hand_over::DoorbellState;

/// The node's side of one endpoint's doorbell.
#[derive(Debug)]
struct Doorbell {
    incarnation: u32,
    write_end: OwnedFd,
    /// The sleep for which it was rung last: one ring is enough for a sleep.
    rung: AtomicU64,
}

/// The doorbells of a region, by slot.
#[derive(Debug)]
pub(super) struct Doorbells {
    /// Locked for a moment only, because sidecores ring as well.
    slots: Box<[Mutex<Option<Arc<Doorbell>>>]>,
    /// How many are open. While there are none no endpoint sleeps.
    count: AtomicUsize,
}

impl Doorbells {
    pub(super) fn new(slots: usize) -> Self {
        let slots = (0..slots).map(|_| Mutex::new(None)).collect();
        Self { slots, count: AtomicUsize::new(0) }
    }

    fn of(&self, slot: u16) -> Option<MutexGuard<'_, Option<Arc<Doorbell>>>> {
        // A doorbell is replaced as a whole.
        let doorbell = self.slots.get(usize::from(slot))?;
        Some(doorbell.lock())
    }

    fn find(&self, slot: u16) -> Option<Arc<Doorbell>> {
        self.of(slot)?.clone()
    }

    fn find_of(&self, slot: u16, incarnation: u32) -> Option<Arc<Doorbell>> {
        self.find(slot).filter(|doorbell| doorbell.incarnation == incarnation)
    }

    fn replace(&self, slot: u16, doorbell: Option<Doorbell>) -> Option<()> {
        let mut place = self.of(slot)?;
        match (place.is_some(), doorbell.is_some()) {
            // Counted before the owner gets the read end, so before it can sleep.
            (false, true) => drop(self.count.fetch_add(1, SeqCst)),
            (true, false) => drop(self.count.fetch_sub(1, SeqCst)),
            _ => {}
        }
        *place = doorbell.map(Arc::new);
        Some(())
    }

    /// Whether any doorbell is open. The caller stores its message, then makes a fence, then asks:
    /// an owner that opens a doorbell later sees the message.
    pub(super) fn is_any(&self) -> bool {
        self.count.load(SeqCst) > 0
    }

    /// Opens one for an owner of a slot, and returns the read end.
    pub(super) fn open(&self, slot: u16, incarnation: u32) -> Result<OwnedFd, Errno> {
        let DoorbellPair { write_end, read_end } = DoorbellPair::new()?;
        let doorbell = Doorbell { incarnation, write_end, rung: AtomicU64::new(0) };
        self.replace(slot, Some(doorbell)).ok_or(Errno::INVAL)?;
        Ok(read_end)
    }

    /// All of them, for the process that takes over.
    pub(super) fn take_down(&self, sent: &mut SentDescriptors) -> io::Result<Vec<DoorbellState>> {
        let mut doorbells = Vec::new();
        for slot in 0..self.slots.len() as u16 {
            if let Some(doorbell) = self.find(slot) {
                let (incarnation, rung) = (doorbell.incarnation, doorbell.rung.load(Relaxed));
                let write_end = sent.put_copy(&doorbell.write_end)?;
                doorbells.push(DoorbellState { slot, incarnation, rung, write_end });
            }
        }
        Ok(doorbells)
    }

    /// Takes one over. `false`: there is no such slot, or it has a doorbell already.
    pub(super) fn adopt(
        &self,
        state: &DoorbellState,
        received: &mut ReceivedDescriptors,
    ) -> io::Result<bool> {
        let &DoorbellState { slot, incarnation, rung, write_end } = state;
        if self.find(slot).is_some() {
            return Ok(false);
        }
        let write_end = received.take(write_end)?;
        let doorbell = Doorbell { incarnation, write_end, rung: AtomicU64::new(rung) };
        Ok(self.replace(slot, Some(doorbell)).is_some())
    }

    /// Closes the doorbell of a slot.
    pub(super) fn close(&self, slot: u16) {
        let _ = self.replace(slot, None);
    }

    /// The write end of an owner's doorbell, if it has one.
    pub(super) fn write_end(&self, slot: u16, incarnation: u32) -> Option<OwnedFd> {
        self.find_of(slot, incarnation)?.write_end.try_clone().ok()
    }

    /// Wakes an owner of a slot, if it sleeps and was not woken from this sleep yet. It sees all
    /// that was stored before this call.
    pub(super) fn ring(&self, region: &Region, slot: u16, incarnation: u32) {
        if let Some(doorbell) = self.find_of(slot, incarnation) {
            doorbell.ring(region, slot);
        }
    }

    /// Wakes all sleepers.
    pub(super) fn ring_all(&self, region: &Region) {
        self.ring_those(region, |_| true);
    }

    /// Wakes sleepers in whose rings a cell is claimed.
    pub(super) fn ring_where_messages_wait(&self, region: &Region) {
        self.ring_those(region, |slot| {
            let ring = region.ring(slot);
            // A sleeper has published its head before, and the next producer claims there.
            let head = ring.head();
            CellClaim::from_word(ring.claim(head)).turn == ring.turn(head)
        });
    }

    fn ring_those(&self, region: &Region, which: impl Fn(u16) -> bool) {
        if !self.is_any() {
            return;
        }
        for slot in 0..region.slots() {
            if let Some(doorbell) = self.find(slot).filter(|_| which(slot)) {
                doorbell.ring(region, slot);
            }
        }
    }
}

impl Doorbell {
    fn ring(&self, region: &Region, slot: u16) {
        // A sleeper stores the number of its sleep before it looks for the last time.
        fence(SeqCst);
        let word = region.ring(slot).asleep();
        // Two callers at once ring once or twice, and both for a sleep that they have seen.
        if word != self.rung.swap(word, Relaxed) {
            doorbell::ring(&self.write_end);
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;
    use crate::SlotTable;
    use fabric::RegionOptions;
    use fabric::doorbell::silence;
    use fabric::ring::{Producer, RingProducer};

    fn is_rung(read_end: &OwnedFd) -> bool {
        let mut fds = [PollFd::new(read_end, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).expect("it can be asked") > 0
    }

    fn table() -> (SlotTable, u16, u32) {
        let options = RegionOptions { slots: 3, cells: 16, ..RegionOptions::default() };
        let (table, _) = SlotTable::create(&options).expect("memory");
        let (slot, incarnation) = table.take_slot(1).expect("room");
        (table, slot, incarnation)
    }

    #[test]
    fn a_doorbell_of_a_vm_wakes_only_receivers_of_messages() {
        let (table, slot, incarnation) = table();
        let (other, others) = table.take_slot(2).expect("room");
        let read_ends = [(slot, incarnation), (other, others)]
            .map(|(slot, incarnation)| table.open_doorbell(slot, incarnation).expect("a pair"));
        let rings = [slot, other].map(|slot| table.region().ring(slot));
        rings.iter().for_each(|ring| ring.set_asleep(1));
        table.ring_where_messages_wait();
        assert_eq!(read_ends.each_ref().map(is_rung), [false; 2]);
        let me = Producer { slot: other, incarnation: others as u16 };
        // The first cell, and one after the ring went round: the sleeper has taken all before it.
        let mut way = RingProducer::default();
        for sleep in 2..=40 {
            let position = way.claim(&rings[0], me).expect("room");
            table.ring_where_messages_wait();
            assert!(is_rung(&read_ends[0]) && silence(&read_ends[0]) && !is_rung(&read_ends[1]));
            rings[0].set_head(position + 1);
            rings[0].set_asleep(sleep);
            table.ring_where_messages_wait();
            assert!(!is_rung(&read_ends[0]), "all was taken");
        }
    }

    #[test]
    fn a_sleep_is_rung_for_once_and_its_owner_only() {
        let (table, slot, incarnation) = table();
        let read_end = table.open_doorbell(slot, incarnation).expect("a pair");
        let ring = table.region().ring(slot);
        table.ring(slot, incarnation);
        assert!(!is_rung(&read_end), "it is awake");
        ring.set_asleep(1);
        table.ring(slot, incarnation + 1);
        assert!(!is_rung(&read_end));
        table.ring(slot, incarnation);
        assert!(is_rung(&read_end));
        assert!(silence(&read_end));
        table.ring(slot, incarnation);
        assert!(!is_rung(&read_end), "it was, for this sleep");
        ring.set_asleep(2);
        table.ring(slot, incarnation);
        assert!(is_rung(&read_end));
    }

    #[test]
    fn deaths_and_ends_of_hosts_wake_sleepers() {
        let (table, slot, incarnation) = table();
        let read_end = table.open_doorbell(slot, incarnation).expect("a pair");
        let ring = table.region().ring(slot);
        let (other, _) = table.take_slot(2).expect("room");
        let host = table.add_host(5).expect("room");
        let events: [&dyn Fn(); 3] =
            [&|| table.declare_departed(other), &|| assert!(table.declare_dead(other)), &|| {
                table.end_host(host)
            }];
        for (word, event) in (1..).zip(events) {
            ring.set_asleep(word);
            assert!(!is_rung(&read_end));
            event();
            // Once for all endpoints that have died since.
            table.announce_deaths();
            assert!(is_rung(&read_end) && silence(&read_end));
        }
        assert!(table.declare_dead(slot));
        assert!(!silence(&read_end), "nobody can ring it any more");
        assert!(table.write_end(slot, incarnation).is_none());
    }
}
