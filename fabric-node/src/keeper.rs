//! The node's side of a region: whose each slot is.

mod bells;
mod hand_over;

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

use self::bells::Bells;
use fabric::cell::{Cell, Head};
use fabric::ring::{Claim, Life, NOBODY, Producer, State, Words, is_sound};
use fabric::{HOST_ENDED, HOSTS_MAX, Region, RegionError, RegionOptions};

/// Why there is no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SlotError {
    /// All are taken.
    #[error(
        "all {slots} endpoints of the domain are taken, or left with messages that somebody has \
         not received; make the domain with more `slots`"
    )]
    Full {
        /// How many there are for processes.
        slots: u16,
    },
}

/// Why a host has no place in the region's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the domain has known {HOSTS_MAX} hosts since it was made, which is all that it can: end its \
     jobs, remove it and add it again"
)]
pub struct HostsFull;

/// Gives slots to endpoints and takes them back. May be shared between threads.
///
/// What it remembers itself is the truth; what stands in the region is told to members and never
/// read back, since any of them can write there.
#[derive(Debug)]
pub struct Keeper {
    region: Arc<Region>,
    ledger: Mutex<Ledger>,
    /// What gateways look at: not behind the lock, under which all rings may be looked through.
    seen: Seen,
    /// By which endpoints that sleep are woken.
    bells: Bells,
    /// Somebody has died or left of whom that was not told to those who sleep.
    untold: AtomicBool,
}

/// What gateways ask for and say, without a lock.
#[derive(Debug)]
struct Seen {
    /// Counts endpoints that died.
    deaths: AtomicU64,
    /// Of each slot, what was told of it last ([`Life`]).
    lives: Box<[AtomicU64]>,
    /// Of each place in the table of hosts, which gateways take nothing for it.
    holds: Box<[AtomicU64]>,
}

#[derive(Debug)]
struct Ledger {
    slots: Vec<Entry>,
    /// Counts slots that were given out; orders that against what was found spoiled.
    given: u64,
    /// Counts deaths.
    deaths: u64,
    /// How often all rings were looked through.
    sweeps: u64,
    /// Places in the table of hosts that were ever taken, this host's among them.
    hosts: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    state: State,
    /// Of the last endpoint that had it; 0 before the first.
    incarnation: u32,
    /// The process that it was given to, as the node numbers it; 0 for none that it sees.
    pid: u32,
    /// When it was given out.
    given: u64,
    /// When its last endpoint died; 0 before the first.
    died: u64,
    /// When its ring was found to break the rules. It rests until everybody who was there then is
    /// gone, for one of them may still be about to write into it.
    spoiled: Option<u64>,
}

impl Keeper {
    /// Makes a region, and the descriptor to hand to members.
    ///
    /// # Errors
    /// As [`Region::create`].
    pub fn create(options: &RegionOptions) -> Result<(Self, OwnedFd), RegionError> {
        let (region, memory) = Region::create(options)?;
        Ok((Self::new(region), memory))
    }

    fn new(region: Region) -> Self {
        let entry =
            Entry { state: State::Free, incarnation: 0, pid: 0, given: 0, died: 0, spoiled: None };
        let slots = vec![entry; usize::from(region.options().slots)];
        let words = |count| (0..count).map(|_| AtomicU64::new(0)).collect();
        let (lives, holds) = (words(slots.len()), words(HOSTS_MAX));
        let seen = Seen { deaths: AtomicU64::new(0), lives, holds };
        let (given, deaths, sweeps, hosts) = (0, 0, 0, 1);
        let bells = Bells::new(slots.len());
        let ledger = Mutex::new(Ledger { slots, given, deaths, sweeps, hosts });
        let untold = AtomicBool::new(false);
        Self { region: Arc::new(region), ledger, seen, bells, untold }
    }

    /// The region itself.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        // An entry is changed as a whole.
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a free slot to an endpoint of the process `pid` (as the node sees it; others use it to
    /// copy out of that process): the slot, and which of its owners this is.
    ///
    /// It is the slot that has been nobody's for longest, and none of whose last owner's messages
    /// still lie in others' rings: with another owner they would be dropped.
    ///
    /// # Errors
    /// When all are taken.
    pub fn take_slot(&self, pid: u32) -> Result<(u16, u32), SlotError> {
        let ledger = &mut *self.ledger();
        if let Some(slot) = self.find_free(ledger) {
            return Ok((slot, self.give(ledger, slot, pid)));
        }
        // All that have died since the last time, by one look through all rings.
        if self.sweep_all(ledger) > 0
            && let Some(slot) = self.find_free(ledger)
        {
            return Ok((slot, self.give(ledger, slot, pid)));
        }
        let options = self.region.options();
        Err(SlotError::Full { slots: options.slots - options.gateways })
    }

    fn find_free(&self, ledger: &mut Ledger) -> Option<u16> {
        let options = self.region.options();
        let is_free = |slot: &u16| ledger.slots[usize::from(*slot)].state == State::Free;
        let mut free: Vec<u16> = (options.gateways..options.slots).filter(is_free).collect();
        free.sort_by_key(|slot| ledger.slots[usize::from(*slot)].died);
        let mut lingering = None;
        free.into_iter().find(|&slot| {
            let is_new = ledger.slots[usize::from(slot)].incarnation == 0;
            let lingers = !is_new
                && lingering.get_or_insert_with(|| self.lingering(ledger))[usize::from(slot)];
            !lingers && self.restore(ledger, slot)
        })
    }

    /// Of which free slots' last owners messages lie in rings of the living that were not taken
    /// yet.
    fn lingering(&self, ledger: &Ledger) -> Vec<bool> {
        let mut lingering = vec![false; ledger.slots.len()];
        for (slot, entry) in ledger.slots.iter().enumerate() {
            if entry.state != State::Live {
                continue;
            }
            let (slot, ring) = (slot as u16, self.region.ring(slot as u16));
            let head = ring.head();
            for position in (0..u64::from(ring.cells())).map(|ahead| head.wrapping_add(ahead)) {
                let turn = ring.turn(position);
                if Claim::from_word(ring.claim(position)).turn != turn {
                    break;
                }
                let stamp = ring.stamp(position);
                let head = Cell::new(&self.region, slot, position).head(stamp as u32);
                // Anything may stand there: what is of nobody who was the last one is nothing.
                if let Some(Head { source, .. }) = head
                    && (stamp >> 32) as u32 == turn
                    && source.host == 0
                    && let Some(entry) = ledger.slots.get(usize::from(source.slot))
                    && (entry.state, entry.incarnation) == (State::Free, source.incarnation)
                {
                    lingering[usize::from(source.slot)] = true;
                }
            }
        }
        lingering
    }

    /// Gives a gateway its slot: which of the gateways it is that had it. The last one is dead, and
    /// what was said to it is dropped.
    ///
    /// # Panics
    /// When there is no such gateway.
    pub fn take_gateway(&self, gateway: u16) -> u32 {
        assert!(gateway < self.region.options().gateways, "gateway {gateway}");
        let ledger = &mut *self.ledger();
        self.give(ledger, gateway, 0)
    }

    fn give(&self, ledger: &mut Ledger, slot: u16, pid: u32) -> u32 {
        ledger.given += 1;
        let entry = &mut ledger.slots[usize::from(slot)];
        // Never 0, which no address has.
        let incarnation = entry.incarnation.wrapping_add(1).max(1);
        let given = ledger.given;
        *entry = Entry { state: State::Live, incarnation, pid, given, spoiled: None, ..*entry };
        self.tell(slot, entry);
        incarnation
    }

    /// Gives another host a place in the region's table, from which members know that it can be
    /// reached; a new one each time.
    ///
    /// # Errors
    /// When all places were taken once.
    pub fn add_host(&self, host: u64) -> Result<u16, HostsFull> {
        let ledger = &mut *self.ledger();
        if ledger.hosts >= HOSTS_MAX {
            return Err(HostsFull);
        }
        let index = ledger.hosts as u16;
        ledger.hosts += 1;
        self.region.set_host(index, host);
        Ok(index)
    }

    /// Whether a place of the table of hosts was ever another host's.
    pub(crate) fn has_host(&self, index: u16) -> bool {
        (1..self.ledger().hosts).contains(&usize::from(index))
    }

    /// Says that a host is no more, or will not be reached again: what members have outstanding
    /// with it ends.
    pub fn end_host(&self, index: u16) {
        assert!(self.has_host(index), "host {index} was never added");
        self.region.set_host(index, HOST_ENDED);
        self.bells.ring_all(&self.region);
    }

    /// The process that an endpoint was given to, while it lives; as the node sees it, and told by
    /// the node alone: what stands in the region any member can write.
    pub fn process_of(&self, slot: u16, incarnation: u32) -> Option<u32> {
        let ledger = self.ledger();
        let entry = ledger.slots.get(usize::from(slot))?;
        let is_live = entry.state == State::Live && entry.incarnation == incarnation;
        (is_live && entry.pid != 0).then_some(entry.pid)
    }

    /// Has producers leave what is for a host and would go through this gateway, or not.
    pub(crate) fn hold(&self, host: u16, gateway: u16, held: bool) {
        let Some(holds) = self.seen.holds.get(usize::from(host)) else { return };
        match held {
            true => holds.fetch_or(1 << gateway, SeqCst),
            false => holds.fetch_and(!(1 << gateway), SeqCst),
        };
        // Of gateways that say something at the same time, the last to store has seen all of it.
        loop {
            let word = holds.load(SeqCst);
            self.region.set_hold(host, word);
            if holds.load(SeqCst) == word {
                return;
            }
        }
    }

    /// Another number whenever an endpoint has died.
    pub(crate) fn deaths(&self) -> u64 {
        self.seen.deaths.load(Acquire)
    }

    /// The last owner of a slot that is dead, and with it all before it; 0 if none is.
    pub(crate) fn last_dead(&self, slot: u16) -> u32 {
        let Some(life) = self.life(slot) else { return 0 };
        life.incarnation - u32::from(life.state == State::Live)
    }

    /// What was told of a slot last.
    fn life(&self, slot: u16) -> Option<Life> {
        Some(Life::from_word(self.seen.lives.get(usize::from(slot))?.load(Acquire)))
    }

    /// Which owner of a slot lives, if one does.
    pub fn live_in(&self, slot: u16) -> Option<u32> {
        let life = self.life(slot)?;
        (life.state == State::Live).then_some(life.incarnation)
    }

    /// Says that the slot's endpoint is dead: its process has ended, or has closed it and will not
    /// store anything into the region again. `false`: it had none. Its slot is another one's when
    /// it is needed ([`Keeper::take_slot`]). Who sleeps hears of it by [`Keeper::tell_deaths`].
    pub fn declare_dead(&self, slot: u16) -> bool {
        let ledger = &mut *self.ledger();
        let Some(entry) = ledger.slots.get_mut(usize::from(slot)) else { return false };
        if !matches!(entry.state, State::Live | State::Left) {
            return false;
        }
        ledger.deaths += 1;
        (entry.state, entry.died) = (State::Dead, ledger.deaths);
        self.tell(slot, entry);
        self.seen.deaths.fetch_add(1, Release);
        self.bells.take_down(slot);
        self.untold.store(true, Release);
        true
    }

    /// Says that the slot's process is no member any more, and has not ended: to others its
    /// endpoint is gone, but what it has claimed stays its own until it is declared dead. Who
    /// sleeps hears of it by [`Keeper::tell_deaths`]; it is woken by nobody itself.
    pub fn declare_left(&self, slot: u16) {
        let ledger = &mut *self.ledger();
        if let Some(entry) = ledger.slots.get_mut(usize::from(slot))
            && entry.state == State::Live
        {
            entry.state = State::Left;
            self.tell(slot, entry);
            self.seen.deaths.fetch_add(1, Release);
            self.bells.take_down(slot);
            self.untold.store(true, Release);
        }
    }

    /// Whether somebody has died, or left, since those who sleep were woken for that last.
    pub fn has_untold_deaths(&self) -> bool {
        self.untold.load(Acquire)
    }

    /// Wakes who sleeps if somebody has died, or left, since the last time. Apart from saying so:
    /// each of those who wake looks around and has all others' processors make a fence, which is
    /// too much for each process of a job that ends.
    pub fn tell_deaths(&self) {
        if self.untold.swap(false, SeqCst) {
            self.bells.ring_all(&self.region);
        }
    }

    /// Makes a bell for an endpoint that is to sleep: what it hears it by, which is its own alone.
    /// From now on it is woken by whoever sends to it, and when anybody dies.
    ///
    /// # Errors
    /// When it does not live, or no descriptor is left.
    pub fn hang_bell(&self, slot: u16, incarnation: u32) -> Result<OwnedFd, Errno> {
        // Held, so that it does not die meanwhile and keep its bell.
        let ledger = self.ledger();
        let entry = ledger.slots.get(usize::from(slot)).ok_or(Errno::INVAL)?;
        if entry.state != State::Live || entry.incarnation != incarnation {
            return Err(Errno::INVAL);
        }
        self.bells.hang(slot, incarnation)
    }

    /// By what an endpoint's bell is rung, for another one of its domain. None: it has none.
    pub fn rope(&self, slot: u16, incarnation: u32) -> Option<OwnedFd> {
        self.bells.rope(slot, incarnation)
    }

    /// Wakes an endpoint, if it sleeps. Never waits for who looks through rings.
    pub fn ring(&self, slot: u16, incarnation: u32) {
        self.bells.ring(&self.region, slot, incarnation);
    }

    /// Wakes endpoints that sleep though somebody has put something into their rings.
    pub(crate) fn ring_where_something_is(&self) {
        self.bells.ring_where_something_is(&self.region);
    }

    /// Whether endpoints may sleep; asked behind a fence that is behind what is to wake them.
    pub(crate) fn has_bells(&self) -> bool {
        self.bells.is_any()
    }

    /// Clears up after the dead: what they had claimed in others' rings is nobody's, and their
    /// slots can be taken again. How many there were. [`Keeper::take_slot`] does it when it has to.
    pub fn sweep(&self) -> usize {
        self.sweep_all(&mut self.ledger())
    }

    fn sweep_all(&self, ledger: &mut Ledger) -> usize {
        let is_dead = |(_, entry): &(usize, &Entry)| entry.state == State::Dead;
        let dead: HashMap<u16, u16> = (ledger.slots.iter().enumerate().filter(is_dead))
            .map(|(slot, entry)| (slot as u16, entry.incarnation as u16))
            .collect();
        if dead.is_empty() {
            return 0;
        }
        ledger.sweeps += 1;
        for (slot, entry) in ledger.slots.iter_mut().enumerate() {
            let slot = slot as u16;
            // Nobody sends to a slot that nobody ever had; its pages stay untouched.
            if entry.incarnation > 0 {
                self.disown(slot, &dead);
            }
            if entry.state == State::Dead {
                entry.state = State::Free;
                self.tell(slot, entry);
            }
        }
        dead.len()
    }

    /// How many slots have an endpoint.
    pub fn live_count(&self) -> usize {
        let gateways = usize::from(self.region.options().gateways);
        let ledger = self.ledger();
        let endpoints = ledger.slots.iter().skip(gateways);
        endpoints.filter(|entry| entry.state == State::Live).count()
    }

    /// Lets members see what a slot is.
    fn tell(&self, slot: u16, entry: &Entry) {
        let life = Life { state: entry.state, incarnation: entry.incarnation };
        self.seen.lives[usize::from(slot)].store(life.to_word(), Release);
        self.region.set_life(slot, life);
    }

    /// Takes the claims of the dead in one ring away from them: the number of a slot that is used
    /// again then never stands for one of those before.
    fn disown(&self, slot: u16, dead: &HashMap<u16, u16>) {
        let ring = self.region.ring(slot);
        for position in 0..u64::from(ring.cells()) {
            let word = ring.claim(position);
            let claim = Claim::from_word(word);
            if dead.get(&claim.producer.slot) == Some(&claim.producer.incarnation) {
                let nobodys = Producer { slot: NOBODY, incarnation: 0 };
                let claim = Claim { producer: nobodys, ..claim };
                // If it is another's by now, that is as good.
                let _ = ring.exchange_claim(position, word, claim.to_word());
            }
        }
    }

    /// Makes a free slot's ring fit for its next owner. `false`: not yet.
    ///
    /// A sound ring goes on as it is: living producers may have cells in it that they are about to
    /// fill, and what they send is meant for the owner before and is dropped by the next. A ring
    /// that somebody has written over is begun anew when none of those are left.
    fn restore(&self, ledger: &mut Ledger, slot: u16) -> bool {
        let entry = ledger.slots[usize::from(slot)];
        let ring = self.region.ring(slot);
        let Some(since) = entry.spoiled else {
            if is_sound(&ring) {
                return true;
            }
            ledger.slots[usize::from(slot)].spoiled = Some(ledger.given);
            return self.restore(ledger, slot);
        };
        let was_there = |other: &Entry| {
            matches!(other.state, State::Live | State::Left) && other.given <= since
        };
        // Gateways stay as long as the node, and are not waited for: they are its own, claim and
        // fill in one go, and not for somebody who has died.
        let gateways = usize::from(self.region.options().gateways);
        if ledger.slots.iter().skip(gateways).any(was_there) {
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
    use fabric::ring::Way;

    fn keeper(slots: u16) -> Keeper {
        let options = RegionOptions { slots, gateways: 1, cells: 16, ..RegionOptions::default() };
        Keeper::create(&options).expect("memory").0
    }

    #[test]
    fn slots_come_and_go_and_are_told_apart() {
        let keeper = keeper(3);
        assert_eq!(keeper.take_slot(7), Ok((1, 1)), "the first is the node's");
        assert_eq!(keeper.take_slot(8), Ok((2, 1)));
        assert_eq!(keeper.take_slot(9), Err(SlotError::Full { slots: 2 }));
        assert_eq!((keeper.process_of(1, 1), keeper.live_count()), (Some(7), 2));
        assert_eq!([keeper.process_of(1, 2), keeper.process_of(0, 0)], [None; 2]);
        assert!(keeper.declare_dead(1) && !keeper.declare_dead(1));
        assert!(!keeper.declare_dead(0) && !keeper.declare_dead(3) && !keeper.declare_dead(999));
        let life = |state| Some(Life { state, incarnation: 1 });
        assert_eq!(keeper.region().life(1), life(State::Dead));
        assert_eq!((keeper.sweep(), keeper.sweep()), (1, 0));
        assert_eq!(keeper.region().life(1), life(State::Free));
        assert_eq!(keeper.take_slot(9), Ok((1, 2)));
        assert_eq!(keeper.region().life(3), None);
    }

    #[test]
    fn the_slot_that_was_free_for_longest_is_taken() {
        let keeper = keeper(5);
        let taken: Vec<u16> = (0..4).map(|pid| keeper.take_slot(pid).expect("room").0).collect();
        assert_eq!(taken, [1, 2, 3, 4]);
        for slot in [3, 1, 4] {
            assert!(keeper.declare_dead(slot));
        }
        keeper.sweep();
        assert!(keeper.declare_dead(2));
        let taken: Vec<u16> = (0..4).map(|pid| keeper.take_slot(pid).expect("room").0).collect();
        assert_eq!(taken, [3, 1, 4, 2]);
    }

    #[test]
    fn rings_are_swept_when_slots_are_needed_and_not_for_each_death() {
        let keeper = keeper(101);
        for _ in 0..1000 {
            let (slot, _) = keeper.take_slot(1).expect("room");
            assert!(keeper.declare_dead(slot));
        }
        assert_eq!(keeper.ledger().sweeps, 9, "each time that a hundred were dead");
    }

    #[test]
    fn who_has_left_is_gone_and_what_it_claimed_is_not_passed_over() {
        let keeper = keeper(3);
        let (slot, incarnation) = keeper.take_slot(1).expect("room");
        let (reader, _) = keeper.take_slot(2).expect("room");
        let me = Producer { slot, incarnation: incarnation as u16 };
        let ring = keeper.region().ring(reader);
        assert_eq!(Way::default().claim(&ring, me), Ok(0));
        keeper.declare_left(slot);
        assert!(!keeper.region().life(slot).is_some_and(|life| life.is_live(incarnation)));
        let mut consumer = fabric::ring::Consumer::new(&ring);
        assert!(!consumer.skip_dead(&ring), "it may still fill it");
        assert_eq!(keeper.take_slot(3), Err(SlotError::Full { slots: 2 }), "nor is its slot free");
        assert!(keeper.declare_dead(slot) && !keeper.declare_dead(slot));
        assert!(consumer.skip_dead(&ring));
        assert_eq!(keeper.take_slot(3), Ok((slot, incarnation + 1)));
    }

    #[test]
    fn hosts_have_places_that_are_not_used_again() {
        let keeper = keeper(3);
        let region = keeper.region();
        assert_eq!((keeper.add_host(5), keeper.add_host(6)), (Ok(1), Ok(2)));
        assert_eq!((region.host(1), region.index_of_host(6)), (Some(5), Some(2)));
        keeper.end_host(1);
        assert_eq!((region.host(1), region.index_of_host(5)), (None, None));
        assert_eq!(region.index_of_host(6), Some(2), "behind one that is over");
        assert_eq!((keeper.add_host(5), region.index_of_host(5)), (Ok(3), Some(3)));
        let last = (4..HOSTS_MAX).map(|_| keeper.add_host(9)).last();
        assert_eq!((last, keeper.add_host(9)), (Some(Ok(4095)), Err(HostsFull)));
        assert_eq!(region.index_of_host(HOST_ENDED), None);
        assert_eq!((keeper.take_gateway(0), keeper.take_gateway(0)), (1, 2));
        assert_eq!((keeper.live_in(0), keeper.live_in(1)), (Some(2), None));
    }

    #[test]
    fn gateways_do_not_wait_for_who_looks_through_rings() {
        let keeper = keeper(3);
        let ((slot, incarnation), host) = (keeper.take_slot(1).expect("room"), 1);
        assert!(keeper.declare_dead(slot));
        assert_eq!(keeper.take_slot(2), Ok((2, 1)));
        // As `take_slot` has it meanwhile.
        let ledger = keeper.ledger();
        assert_eq!((keeper.last_dead(slot), keeper.last_dead(2)), (incarnation, 0));
        assert_eq!(
            (keeper.live_in(slot), keeper.live_in(2), keeper.live_in(9)),
            (None, Some(1), None)
        );
        let held = || keeper.region().hold(host);
        keeper.hold(host, 0, true);
        keeper.hold(host, 3, true);
        assert_eq!(held(), 0b1001);
        keeper.hold(host, 0, false);
        assert_eq!(held(), 0b1000);
        drop(ledger);
    }

    #[test]
    fn claims_of_the_dead_are_nobodys() {
        let keeper = keeper(3);
        let (alive, _) = keeper.take_slot(1).expect("room");
        let (dead, incarnation) = keeper.take_slot(2).expect("room");
        let me = Producer { slot: dead, incarnation: incarnation as u16 };
        let ring = keeper.region().ring(alive);
        assert_eq!(Way::default().claim(&ring, me), Ok(0));
        assert!(keeper.declare_dead(dead));
        keeper.sweep();
        let nobodys = Producer { slot: NOBODY, incarnation: 0 };
        assert_eq!(Claim::from_word(ring.claim(0)), Claim { turn: 1, producer: nobodys });
        assert_eq!(Claim::from_word(ring.claim(1)).turn, 0, "and nothing else was touched");
    }

    #[test]
    fn a_spoiled_slot_rests_until_those_who_saw_it_are_gone() {
        let keeper = keeper(4);
        keeper.take_gateway(0);
        let [spoiler, witness, third] = [1, 2, 3].map(|pid| keeper.take_slot(pid).expect("room").0);
        keeper.region().ring(spoiler).set_claim(5, u64::MAX);
        assert!(keeper.declare_dead(spoiler));
        assert!(keeper.take_slot(4).is_err(), "it is found to be spoiled, and rests");
        assert!(keeper.declare_dead(third));
        assert_eq!(keeper.take_slot(4), Ok((third, 2)));
        assert!(keeper.take_slot(5).is_err());
        assert!(keeper.declare_dead(witness));
        assert_eq!(keeper.take_slot(5), Ok((spoiler, 2)), "who came later does not matter");
        assert_eq!(keeper.region().ring(spoiler).claim(5), 0);
    }
}
