//! The slot table: the node's record of the owner of each slot of a region.

mod doorbells;
mod hand_over;

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};

use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;

use self::doorbells::Doorbells;
use fabric::cell::{Cell, CellHead};
use fabric::ring::{CellClaim, Life, NOBODY, Producer, SlotLife, Words, is_sound};
use fabric::{HOST_ENDED, HOSTS_MAX, Region, RegionError, RegionOptions};

/// Why there is no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SlotError {
    /// All are taken.
    #[error(
        "all {slots} endpoints of the domain are taken, or were left with messages that a receiver \
         has not taken; make the domain with more `slots`"
    )]
    Full {
        /// How many there are for processes.
        slots: u16,
    },
}

/// Why a host has no place in the region's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the domain has known {HOSTS_MAX} hosts since it was made, which is the limit: end its jobs, \
     remove it and add it again"
)]
pub struct HostsFull;

/// Gives slots to endpoints and takes them back. May be shared between threads.
///
/// The table's own memory is the truth. Words of the region are written for members and never read
/// back, since any member can write there.
#[derive(Debug)]
pub struct SlotTable {
    region: Arc<Region>,
    entries: Mutex<SlotEntries>,
    /// The part that gateways read: outside of the lock, which is held while all rings are
    /// searched.
    seen: LocklessSlots,
    /// The doorbells of endpoints that sleep.
    doorbells: Doorbells,
    /// An endpoint has died or departed, and sleepers have not been woken for it yet.
    deaths_unannounced: AtomicBool,
}

/// The part that gateways read and write without the lock.
#[derive(Debug)]
struct LocklessSlots {
    /// Counts endpoints that died.
    deaths: AtomicU64,
    /// The last published life of each slot ([`Life`]).
    lives: Box<[AtomicU64]>,
    /// Of each host's index, which gateways take nothing for it.
    holds: Box<[AtomicU64]>,
}

#[derive(Debug)]
struct SlotEntries {
    slots: Vec<SlotEntry>,
    /// Counts slots that were given out; orders that against what was found spoiled.
    given: u64,
    /// Counts deaths.
    deaths: u64,
    /// How often all rings were searched.
    sweeps: u64,
    /// Entries of the table of hosts that were ever used, this host's among them.
    hosts: usize,
}

#[derive(Clone, Copy, Debug)]
struct SlotEntry {
    state: SlotLife,
    /// Of the last endpoint that had it; 0 before the first.
    incarnation: u32,
    /// The process that it was given to, as the node numbers it; 0 for none that it sees.
    pid: u32,
    /// When it was given out.
    given: u64,
    /// When its last endpoint died; 0 before the first.
    died: u64,
    /// When its ring was found to break the rules. The slot is not given out until every owner of
    /// that time is gone, because one of them may still be about to write into the ring.
    spoiled: Option<u64>,
}

impl SlotTable {
    /// Makes a region, and the descriptor to hand to members.
    ///
    /// # Errors
    /// As [`Region::create`].
    pub fn create(options: &RegionOptions) -> Result<(Self, OwnedFd), RegionError> {
        let (region, memory) = Region::create(options)?;
        Ok((Self::new(region), memory))
    }

    fn new(region: Region) -> Self {
        let entry = SlotEntry {
            state: SlotLife::Free,
            incarnation: 0,
            pid: 0,
            given: 0,
            died: 0,
            spoiled: None,
        };
        let slots = vec![entry; usize::from(region.options().slots)];
        let words = |count| (0..count).map(|_| AtomicU64::new(0)).collect();
        let (lives, holds) = (words(slots.len()), words(HOSTS_MAX));
        let seen = LocklessSlots { deaths: AtomicU64::new(0), lives, holds };
        let (given, deaths, sweeps, hosts) = (0, 0, 0, 1);
        let doorbells = Doorbells::new(slots.len());
        let entries = Mutex::new(SlotEntries { slots, given, deaths, sweeps, hosts });
        let deaths_unannounced = AtomicBool::new(false);
        Self { region: Arc::new(region), entries, seen, doorbells, deaths_unannounced }
    }

    /// The region itself.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    fn entries(&self) -> MutexGuard<'_, SlotEntries> {
        // An entry is changed as a whole.
        self.entries.lock()
    }

    /// Gives a free slot to an endpoint of the process `pid` (as the node sees it; others use it to
    /// copy out of that process): the slot, and which of its owners this is.
    ///
    /// The slot is the one that has been free for longest. Slots whose last owner's messages still
    /// lie in other rings are left out: with a new owner those messages would be dropped.
    ///
    /// # Errors
    /// When all are taken.
    pub fn take_slot(&self, pid: u32) -> Result<(u16, u32), SlotError> {
        let entries = &mut *self.entries();
        if let Some(slot) = self.find_free(entries) {
            return Ok((slot, self.give(entries, slot, pid)));
        }
        // One search of all rings frees the slots of all that have died since the last one.
        if self.sweep_all(entries) > 0
            && let Some(slot) = self.find_free(entries)
        {
            return Ok((slot, self.give(entries, slot, pid)));
        }
        let options = self.region.options();
        Err(SlotError::Full { slots: options.slots - options.gateways })
    }

    fn find_free(&self, entries: &mut SlotEntries) -> Option<u16> {
        let options = self.region.options();
        let is_free = |slot: &u16| entries.slots[usize::from(*slot)].state == SlotLife::Free;
        let mut free: Vec<u16> = (options.gateways..options.slots).filter(is_free).collect();
        free.sort_by_key(|slot| entries.slots[usize::from(*slot)].died);
        let mut lingering = None;
        free.into_iter().find(|&slot| {
            let is_new = entries.slots[usize::from(slot)].incarnation == 0;
            let lingers = !is_new
                && lingering.get_or_insert_with(|| self.lingering(entries))[usize::from(slot)];
            !lingers && self.restore(entries, slot)
        })
    }

    /// Which free slots' last owners have messages in rings of live owners that were not taken
    /// yet.
    fn lingering(&self, entries: &SlotEntries) -> Vec<bool> {
        let mut lingering = vec![false; entries.slots.len()];
        for (slot, entry) in entries.slots.iter().enumerate() {
            if entry.state != SlotLife::Live {
                continue;
            }
            let (slot, ring) = (slot as u16, self.region.ring(slot as u16));
            let head = ring.head();
            for position in (0..u64::from(ring.cells())).map(|ahead| head.wrapping_add(ahead)) {
                let turn = ring.turn(position);
                if CellClaim::from_word(ring.claim(position)).turn != turn {
                    break;
                }
                let stamp = ring.stamp(position);
                let head = Cell::new(&self.region, slot, position).head(stamp as u32);
                // Members may write anything here: only a message of a slot's last owner counts.
                if let Some(CellHead { source, .. }) = head
                    && (stamp >> 32) as u32 == turn
                    && source.host == 0
                    && let Some(entry) = entries.slots.get(usize::from(source.slot))
                    && (entry.state, entry.incarnation) == (SlotLife::Free, source.incarnation)
                {
                    lingering[usize::from(source.slot)] = true;
                }
            }
        }
        lingering
    }

    /// Gives a gateway its slot, and returns the incarnation. The gateway before is dead, and cells
    /// that were meant for it are dropped.
    ///
    /// # Panics
    /// When there is no such gateway.
    pub fn take_gateway(&self, gateway: u16) -> u32 {
        assert!(gateway < self.region.options().gateways, "gateway {gateway}");
        let entries = &mut *self.entries();
        self.give(entries, gateway, 0)
    }

    fn give(&self, entries: &mut SlotEntries, slot: u16, pid: u32) -> u32 {
        entries.given += 1;
        let entry = &mut entries.slots[usize::from(slot)];
        // Never 0, which no address has.
        let incarnation = entry.incarnation.wrapping_add(1).max(1);
        let given = entries.given;
        *entry =
            SlotEntry { state: SlotLife::Live, incarnation, pid, given, spoiled: None, ..*entry };
        self.tell(slot, entry);
        incarnation
    }

    /// Gives another host an entry of the region's table, by which members know that the host can
    /// be reached; a new entry each time.
    ///
    /// # Errors
    /// When all places were taken once.
    pub fn add_host(&self, host: u64) -> Result<u16, HostsFull> {
        let entries = &mut *self.entries();
        if entries.hosts >= HOSTS_MAX {
            return Err(HostsFull);
        }
        let index = entries.hosts as u16;
        entries.hosts += 1;
        self.region.set_host(index, host);
        Ok(index)
    }

    /// Whether an entry of the table of hosts was ever another host's.
    pub(crate) fn has_host(&self, index: u16) -> bool {
        (1..self.entries().hosts).contains(&usize::from(index))
    }

    /// Says that a host has ended, or will not be reached again: all requests of members that are
    /// outstanding with it end.
    pub fn end_host(&self, index: u16) {
        assert!(self.has_host(index), "host {index} was never added");
        self.region.set_host(index, HOST_ENDED);
        self.doorbells.ring_all(&self.region);
    }

    /// The process that an endpoint's slot was given to, while the endpoint lives, by the number
    /// that the node sees. Members must be told by the node: any of them can write into the region.
    pub fn process_of(&self, slot: u16, incarnation: u32) -> Option<u32> {
        let entries = self.entries();
        let entry = entries.slots.get(usize::from(slot))?;
        let is_live = entry.state == SlotLife::Live && entry.incarnation == incarnation;
        (is_live && entry.pid != 0).then_some(entry.pid)
    }

    /// Has producers hold back, or not, cells for a host that would go through this gateway.
    pub(crate) fn hold(&self, host: u16, gateway: u16, held: bool) {
        let Some(holds) = self.seen.holds.get(usize::from(host)) else { return };
        match held {
            true => holds.fetch_or(1 << gateway, SeqCst),
            false => holds.fetch_and(!(1 << gateway), SeqCst),
        };
        // Of gateways that change it at the same time, the last to store has seen all changes.
        loop {
            let word = holds.load(SeqCst);
            self.region.set_hold(host, word);
            if holds.load(SeqCst) == word {
                return;
            }
        }
    }

    /// Counts endpoints that have died or departed.
    pub(crate) fn deaths(&self) -> u64 {
        self.seen.deaths.load(Acquire)
    }

    /// The last owner of a slot that is dead, and with it all owners before; 0 if none is.
    pub(crate) fn last_dead(&self, slot: u16) -> u32 {
        let Some(life) = self.life(slot) else { return 0 };
        life.incarnation - u32::from(life.state == SlotLife::Live)
    }

    /// The last published life of a slot.
    fn life(&self, slot: u16) -> Option<Life> {
        Some(Life::from_word(self.seen.lives.get(usize::from(slot))?.load(Acquire)))
    }

    /// Which owner of a slot lives, if one does.
    pub fn live_in(&self, slot: u16) -> Option<u32> {
        let life = self.life(slot)?;
        (life.state == SlotLife::Live).then_some(life.incarnation)
    }

    /// Says that the slot's endpoint is dead: its process has ended, or has closed it and will not
    /// store anything into the region again. `false`: the slot had no endpoint. The slot is given
    /// out again when it is needed ([`SlotTable::take_slot`]). Sleepers are woken by
    /// [`SlotTable::announce_deaths`].
    pub fn declare_dead(&self, slot: u16) -> bool {
        let entries = &mut *self.entries();
        let Some(entry) = entries.slots.get_mut(usize::from(slot)) else { return false };
        if !matches!(entry.state, SlotLife::Live | SlotLife::Departed) {
            return false;
        }
        entries.deaths += 1;
        (entry.state, entry.died) = (SlotLife::Dead, entries.deaths);
        self.tell(slot, entry);
        self.seen.deaths.fetch_add(1, Release);
        self.doorbells.close(slot);
        self.deaths_unannounced.store(true, Release);
        true
    }

    /// Says that the slot's process is no member any more and has not ended: to other members its
    /// endpoint is gone, but cells that it has claimed stay its own until it is declared dead.
    /// Sleepers are woken by [`SlotTable::announce_deaths`]; the endpoint itself is not woken
    /// again.
    pub fn declare_departed(&self, slot: u16) {
        let entries = &mut *self.entries();
        if let Some(entry) = entries.slots.get_mut(usize::from(slot))
            && entry.state == SlotLife::Live
        {
            entry.state = SlotLife::Departed;
            self.tell(slot, entry);
            self.seen.deaths.fetch_add(1, Release);
            self.doorbells.close(slot);
            self.deaths_unannounced.store(true, Release);
        }
    }

    /// Whether an endpoint has died or departed since sleepers were last woken for that.
    pub fn has_unannounced_deaths(&self) -> bool {
        self.deaths_unannounced.load(Acquire)
    }

    /// Wakes all sleepers if an endpoint has died or departed since the last time. This is apart
    /// from [`SlotTable::declare_dead`] because each sleeper that wakes has all processors make a
    /// fence, which is too much to do for each process of a job that ends.
    pub fn announce_deaths(&self) {
        if self.deaths_unannounced.swap(false, SeqCst) {
            self.doorbells.ring_all(&self.region);
        }
    }

    /// Opens a doorbell for an endpoint that wants to sleep, and returns the read end, which the
    /// endpoint alone must have. From now on every sender wakes it, and every death.
    ///
    /// # Errors
    /// When it does not live, or no descriptor is left.
    pub fn open_doorbell(&self, slot: u16, incarnation: u32) -> Result<OwnedFd, Errno> {
        // The lock is held so that the endpoint cannot die meanwhile and keep its doorbell.
        let entries = self.entries();
        let entry = entries.slots.get(usize::from(slot)).ok_or(Errno::INVAL)?;
        if entry.state != SlotLife::Live || entry.incarnation != incarnation {
            return Err(Errno::INVAL);
        }
        self.doorbells.open(slot, incarnation)
    }

    /// The write end of an endpoint's doorbell, for another member. None: it has no doorbell.
    pub fn write_end(&self, slot: u16, incarnation: u32) -> Option<OwnedFd> {
        self.doorbells.write_end(slot, incarnation)
    }

    /// Wakes an endpoint, if it sleeps. Does not wait for the lock.
    pub fn ring(&self, slot: u16, incarnation: u32) {
        self.doorbells.ring(&self.region, slot, incarnation);
    }

    /// Wakes endpoints that sleep while messages wait in their rings.
    pub(crate) fn ring_where_messages_wait(&self) {
        self.doorbells.ring_where_messages_wait(&self.region);
    }

    /// Whether any endpoint may sleep. The caller stores its message, then makes a fence, then
    /// asks.
    pub(crate) fn has_doorbells(&self) -> bool {
        self.doorbells.is_any()
    }

    /// Frees the slots of dead endpoints: their claims in other rings are taken back. Returns how
    /// many there were. [`SlotTable::take_slot`] does it when no slot is free.
    pub fn sweep(&self) -> usize {
        self.sweep_all(&mut self.entries())
    }

    fn sweep_all(&self, entries: &mut SlotEntries) -> usize {
        let is_dead = |(_, entry): &(usize, &SlotEntry)| entry.state == SlotLife::Dead;
        let dead: HashMap<u16, u16> = (entries.slots.iter().enumerate().filter(is_dead))
            .map(|(slot, entry)| (slot as u16, entry.incarnation as u16))
            .collect();
        if dead.is_empty() {
            return 0;
        }
        entries.sweeps += 1;
        for (slot, entry) in entries.slots.iter_mut().enumerate() {
            let slot = slot as u16;
            // A slot that never had an owner has no claims; its pages stay untouched.
            if entry.incarnation > 0 {
                self.disown(slot, &dead);
            }
            if entry.state == SlotLife::Dead {
                entry.state = SlotLife::Free;
                self.tell(slot, entry);
            }
        }
        dead.len()
    }

    /// How many slots have an endpoint.
    pub fn live_count(&self) -> usize {
        let gateways = usize::from(self.region.options().gateways);
        let entries = self.entries();
        let endpoints = entries.slots.iter().skip(gateways);
        endpoints.filter(|entry| entry.state == SlotLife::Live).count()
    }

    /// Publishes what a slot is.
    fn tell(&self, slot: u16, entry: &SlotEntry) {
        let life = Life { state: entry.state, incarnation: entry.incarnation };
        self.seen.lives[usize::from(slot)].store(life.to_word(), Release);
        self.region.set_life(slot, life);
    }

    /// Takes the claims of dead owners in one ring back, so that the number of a slot that is given
    /// out again never stands for an owner of before.
    fn disown(&self, slot: u16, dead: &HashMap<u16, u16>) {
        let ring = self.region.ring(slot);
        for position in 0..u64::from(ring.cells()) {
            let word = ring.claim(position);
            let claim = CellClaim::from_word(word);
            if dead.get(&claim.producer.slot) == Some(&claim.producer.incarnation) {
                let nobodys = Producer { slot: NOBODY, incarnation: 0 };
                let claim = CellClaim { producer: nobodys, ..claim };
                // If another producer has the cell by now, nothing has to be done.
                let _ = ring.exchange_claim(position, word, claim.to_word());
            }
        }
    }

    /// Prepares a free slot's ring for the next owner. `false`: not yet.
    ///
    /// A sound ring goes on as it is: live producers may have claimed cells in it that they are
    /// about to fill; those messages are for the owner before, and the next owner drops them. A
    /// ring that a member has written over is cleared once all owners of that time are gone.
    fn restore(&self, entries: &mut SlotEntries, slot: u16) -> bool {
        let entry = entries.slots[usize::from(slot)];
        let ring = self.region.ring(slot);
        let Some(since) = entry.spoiled else {
            if is_sound(&ring) {
                return true;
            }
            entries.slots[usize::from(slot)].spoiled = Some(entries.given);
            return self.restore(entries, slot);
        };
        let was_there = |other: &SlotEntry| {
            matches!(other.state, SlotLife::Live | SlotLife::Departed) && other.given <= since
        };
        // Gateways are left out: they live as long as the node, fill a cell in the same step in
        // which they claim it, and send nothing to an owner that has died.
        let gateways = usize::from(self.region.options().gateways);
        if entries.slots.iter().skip(gateways).any(was_there) {
            return false;
        }
        for position in 0..u64::from(ring.cells()) {
            ring.set_claim(position, 0);
            ring.set_stamp(position, 0);
        }
        ring.set_tail(0);
        ring.set_head(0);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fabric::ring::RingProducer;

    fn table(slots: u16) -> SlotTable {
        let options = RegionOptions { slots, gateways: 1, cells: 16, ..RegionOptions::default() };
        SlotTable::create(&options).expect("memory").0
    }

    #[test]
    fn slots_come_and_go_and_are_told_apart() {
        let table = table(3);
        assert_eq!(table.take_slot(7), Ok((1, 1)), "the first is the node's");
        assert_eq!(table.take_slot(8), Ok((2, 1)));
        assert_eq!(table.take_slot(9), Err(SlotError::Full { slots: 2 }));
        assert_eq!((table.process_of(1, 1), table.live_count()), (Some(7), 2));
        assert_eq!([table.process_of(1, 2), table.process_of(0, 0)], [None; 2]);
        assert!(table.declare_dead(1) && !table.declare_dead(1));
        assert!(!table.declare_dead(0) && !table.declare_dead(3) && !table.declare_dead(999));
        let life = |state| Some(Life { state, incarnation: 1 });
        assert_eq!(table.region().life(1), life(SlotLife::Dead));
        assert_eq!((table.sweep(), table.sweep()), (1, 0));
        assert_eq!(table.region().life(1), life(SlotLife::Free));
        assert_eq!(table.take_slot(9), Ok((1, 2)));
        assert_eq!(table.region().life(3), None);
    }

    #[test]
    fn the_slot_that_was_free_for_longest_is_taken() {
        let table = table(5);
        let taken: Vec<u16> = (0..4).map(|pid| table.take_slot(pid).expect("room").0).collect();
        assert_eq!(taken, [1, 2, 3, 4]);
        for slot in [3, 1, 4] {
            assert!(table.declare_dead(slot));
        }
        table.sweep();
        assert!(table.declare_dead(2));
        let taken: Vec<u16> = (0..4).map(|pid| table.take_slot(pid).expect("room").0).collect();
        assert_eq!(taken, [3, 1, 4, 2]);
    }

    #[test]
    fn rings_are_swept_when_slots_are_needed_and_not_for_each_death() {
        let table = table(101);
        for _ in 0..1000 {
            let (slot, _) = table.take_slot(1).expect("room");
            assert!(table.declare_dead(slot));
        }
        assert_eq!(table.entries().sweeps, 9, "each time that a hundred were dead");
    }

    #[test]
    fn a_leaver_is_gone_and_its_claim_is_not_skipped() {
        let table = table(3);
        let (slot, incarnation) = table.take_slot(1).expect("room");
        let (reader, _) = table.take_slot(2).expect("room");
        let me = Producer { slot, incarnation: incarnation as u16 };
        let ring = table.region().ring(reader);
        assert_eq!(RingProducer::default().claim(&ring, me), Ok(0));
        table.declare_departed(slot);
        assert!(!table.region().life(slot).is_some_and(|life| life.is_live(incarnation)));
        let mut consumer = fabric::ring::Consumer::new(&ring);
        assert!(!consumer.skip_dead(&ring), "it may still fill it");
        assert_eq!(table.take_slot(3), Err(SlotError::Full { slots: 2 }), "nor is its slot free");
        assert!(table.declare_dead(slot) && !table.declare_dead(slot));
        assert!(consumer.skip_dead(&ring));
        assert_eq!(table.take_slot(3), Ok((slot, incarnation + 1)));
    }

    #[test]
    fn hosts_have_places_that_are_not_used_again() {
        let table = table(3);
        let region = table.region();
        assert_eq!((table.add_host(5), table.add_host(6)), (Ok(1), Ok(2)));
        assert_eq!((region.host(1), region.index_of_host(6)), (Some(5), Some(2)));
        table.end_host(1);
        assert_eq!((region.host(1), region.index_of_host(5)), (None, None));
        assert_eq!(region.index_of_host(6), Some(2), "behind one that is over");
        assert_eq!((table.add_host(5), region.index_of_host(5)), (Ok(3), Some(3)));
        let last = (4..HOSTS_MAX).map(|_| table.add_host(9)).last();
        assert_eq!((last, table.add_host(9)), (Some(Ok(4095)), Err(HostsFull)));
        assert_eq!(region.index_of_host(HOST_ENDED), None);
        assert_eq!((table.take_gateway(0), table.take_gateway(0)), (1, 2));
        assert_eq!((table.live_in(0), table.live_in(1)), (Some(2), None));
    }

    #[test]
    fn gateways_do_not_wait_for_readers_of_rings() {
        let table = table(3);
        let ((slot, incarnation), host) = (table.take_slot(1).expect("room"), 1);
        assert!(table.declare_dead(slot));
        assert_eq!(table.take_slot(2), Ok((2, 1)));
        // As `take_slot` has it meanwhile.
        let entries = table.entries();
        assert_eq!((table.last_dead(slot), table.last_dead(2)), (incarnation, 0));
        assert_eq!(
            (table.live_in(slot), table.live_in(2), table.live_in(9)),
            (None, Some(1), None)
        );
        let held = || table.region().hold(host);
        table.hold(host, 0, true);
        table.hold(host, 3, true);
        assert_eq!(held(), 0b1001);
        table.hold(host, 0, false);
        assert_eq!(held(), 0b1000);
        drop(entries);
    }

    #[test]
    fn claims_of_the_dead_are_nobodys() {
        let table = table(3);
        let (alive, _) = table.take_slot(1).expect("room");
        let (dead, incarnation) = table.take_slot(2).expect("room");
        let me = Producer { slot: dead, incarnation: incarnation as u16 };
        let ring = table.region().ring(alive);
        assert_eq!(RingProducer::default().claim(&ring, me), Ok(0));
        assert!(table.declare_dead(dead));
        table.sweep();
        let nobodys = Producer { slot: NOBODY, incarnation: 0 };
        assert_eq!(CellClaim::from_word(ring.claim(0)), CellClaim { turn: 1, producer: nobodys });
        assert_eq!(CellClaim::from_word(ring.claim(1)).turn, 0, "and nothing else was touched");
    }

    #[test]
    fn a_spoiled_slot_rests_until_its_observers_are_gone() {
        let table = table(4);
        table.take_gateway(0);
        let [spoiler, witness, third] = [1, 2, 3].map(|pid| table.take_slot(pid).expect("room").0);
        table.region().ring(spoiler).set_claim(5, u64::MAX);
        assert!(table.declare_dead(spoiler));
        assert!(table.take_slot(4).is_err(), "it is found to be spoiled, and rests");
        assert!(table.declare_dead(third));
        assert_eq!(table.take_slot(4), Ok((third, 2)));
        assert!(table.take_slot(5).is_err());
        assert!(table.declare_dead(witness));
        assert_eq!(table.take_slot(5), Ok((spoiler, 2)), "who came later does not matter");
        assert_eq!(table.region().ring(spoiler).claim(5), 0);
    }
}
