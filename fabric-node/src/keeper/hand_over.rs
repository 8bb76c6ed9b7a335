//! What a keeper remembers, for the process that goes on with the region.

use std::io;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use super::{Entry, HOSTS_MAX, Keeper};
use crate::hand_over::{LedgerState, Put, SlotState, Take, Unfit, expect};
use fabric::Region;
use fabric::ring::{Life, State};

impl Keeper {
    /// Writes down what it remembers. Nobody may ask it for anything meanwhile.
    pub(crate) fn take_down(&self, put: Put<'_>) -> io::Result<LedgerState> {
        let ledger = self.ledger();
        let slots = ledger.slots.iter().enumerate().filter(|(_, entry)| entry.incarnation > 0);
        let slots = slots.map(|(slot, entry)| {
            let &Entry { state, incarnation, pid, given, died, spoiled } = entry;
            let life = Life { state, incarnation }.to_word();
            SlotState { slot: slot as u16, life, pid, given, died, spoiled }
        });
        let holds = self.seen.holds.iter().enumerate();
        let holds = holds.map(|(host, hold)| (host as u16, hold.load(Acquire)));
        Ok(LedgerState {
            slots: slots.collect(),
            given: ledger.given,
            deaths: ledger.deaths,
            hosts: ledger.hosts,
            holds: holds.filter(|(_, hold)| *hold != 0).collect(),
            bells: self.bells.copies(put)?,
        })
    }

    /// Goes on with a region and what the keeper before remembered of it. Nothing is written there.
    pub(crate) fn adopt(
        region: Region,
        state: &LedgerState,
        take: Take<'_>,
    ) -> Result<Self, Unfit> {
        let mut keeper = Self::new(region);
        let is_one = (1..=HOSTS_MAX).contains(&state.hosts);
        expect(is_one, "its table of hosts is longer than it can be")?;
        let ledger = keeper.ledger.get_mut().expect("it was just made");
        (ledger.given, ledger.deaths, ledger.hosts) = (state.given, state.deaths, state.hosts);
        let mut next = 0;
        for slot in &state.slots {
            let place = usize::from(slot.slot);
            expect(place >= next && place < ledger.slots.len(), "a slot is not in its place")?;
            ledger.slots[place] = entry_of(slot, state)?;
            keeper.seen.lives[place].store(slot.life, Relaxed);
            next = place + 1;
        }
        let gateways = usize::from(keeper.region.options().gateways);
        let mut nodes = ledger.slots[..gateways].iter();
        let is_so = nodes.all(|it| it.pid == 0 && [State::Live, State::Free].contains(&it.state));
        expect(is_so, "a gateway's slot is another one's")?;
        for &(host, hold) in &state.holds {
            let is_one = (1..state.hosts).contains(&usize::from(host));
            expect(is_one, "a host that there is not is held up")?;
            keeper.seen.holds[usize::from(host)].store(hold, Relaxed);
        }
        for bell in &state.bells {
            let is_its = keeper.live_in(bell.slot) == Some(bell.incarnation);
            let is_hung = is_its && keeper.bells.adopt(bell, take)?;
            expect(is_hung, "a bell is nobody's")?;
        }
        // Somebody may have died and nobody been told, who sleeps.
        *keeper.untold.get_mut() = true;
        Ok(keeper)
    }

    /// The endpoints that there are, and those that were left and may still store something: slot
    /// and incarnation.
    pub(crate) fn seats(&self) -> impl Iterator<Item = (u16, u32)> {
        let gateways = usize::from(self.region.options().gateways);
        let slots = self.ledger().slots.clone();
        let all = slots.into_iter().enumerate().skip(gateways);
        let there = all.filter(|(_, it)| matches!(it.state, State::Live | State::Left));
        there.map(|(slot, it)| (slot as u16, it.incarnation))
    }
}

/// What is remembered of a slot that was given out.
fn entry_of(state: &SlotState, ledger: &LedgerState) -> Result<Entry, Unfit> {
    let &SlotState { life, pid, given, died, spoiled, .. } = state;
    let life = Life::from_word(life);
    let is_known = life.to_word() == state.life && life.incarnation > 0;
    expect(is_known, "a slot is neither somebody's nor nobody's")?;
    let is_past = given.max(spoiled.unwrap_or(0)) <= ledger.given && died <= ledger.deaths;
    expect(is_past, "a slot was given or left in the time to come")?;
    let Life { state, incarnation } = life;
    Ok(Entry { state, incarnation, pid, given, died, spoiled })
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use super::*;
    use crate::testing::Luggage;
    use fabric::RegionOptions;

    const OPTIONS: RegionOptions =
        RegionOptions { slots: 6, gateways: 1, cells: 16, buffers: 2, buffer_bytes: 4096, host: 7 };

    /// A keeper with somebody alive, one dead, one who has left, one who sleeps and a host.
    fn keeper() -> (Keeper, OwnedFd) {
        let (keeper, memory) = Keeper::create(&OPTIONS).expect("memory");
        keeper.take_gateway(0);
        let slots = [1, 2, 3, 4].map(|pid| keeper.take_slot(pid).expect("room"));
        assert!(keeper.declare_dead(slots[1].0));
        keeper.hang_bell(slots[2].0, slots[2].1).expect("a pair");
        keeper.declare_left(slots[2].0);
        keeper.hang_bell(slots[3].0, slots[3].1).expect("a pair");
        let host = keeper.add_host(9).expect("room");
        keeper.hold(host, 0, true);
        (keeper, memory)
    }

    fn adopt(memory: &OwnedFd, state: &LedgerState, luggage: Luggage) -> Result<Keeper, Unfit> {
        let region = Region::map(memory.as_fd()).expect("a region");
        let mut luggage = luggage;
        Keeper::adopt(region, state, &mut |number| luggage.take(number))
    }

    fn taken(keeper: &Keeper) -> (LedgerState, Luggage) {
        let mut luggage = Luggage::default();
        let state = keeper.take_down(&mut |fd| luggage.put(fd));
        (state.expect("descriptors"), luggage)
    }

    #[test]
    fn who_goes_on_knows_what_the_one_before_knew() {
        let (before, memory) = keeper();
        let (state, luggage) = taken(&before);
        let keeper = adopt(&memory, &state, luggage).expect("it is as it was");
        for slot in 0..OPTIONS.slots {
            assert_eq!(keeper.live_in(slot), before.live_in(slot), "{slot}");
            assert_eq!(keeper.last_dead(slot), before.last_dead(slot), "{slot}");
            assert_eq!(keeper.process_of(slot, 1), before.process_of(slot, 1), "{slot}");
        }
        assert_eq!(keeper.seats().collect::<Vec<_>>(), before.seats().collect::<Vec<_>>());
        assert!(keeper.rope(4, 1).is_some() && keeper.rope(1, 1).is_none());
        let ledger = |keeper: &Keeper| format!("{:?}", keeper.ledger());
        assert_eq!(ledger(&keeper), ledger(&before));
        assert_eq!(format!("{:?}", taken(&keeper).0), format!("{state:?}"));
        // And goes on as that one would have.
        assert_eq!(keeper.add_host(5), Ok(2));
        assert_eq!(keeper.take_slot(5), Ok((5, 1)));
        assert_eq!(keeper.take_slot(6), Ok((2, 2)), "the dead one's; not that of who has left");
        assert!(keeper.take_slot(7).is_err());
    }

    #[test]
    fn a_ledger_that_contradicts_itself_is_refused() {
        let (before, memory) = keeper();
        type Change = fn(&mut LedgerState);
        let changes: [(Change, &str); 13] = [
            (|it| it.hosts = 0, "hosts"),
            (|it| it.hosts = HOSTS_MAX + 1, "hosts"),
            (|it| it.slots[1].slot = 6, "place"),
            (|it| it.slots[1].slot = 0, "place"),
            (|it| it.slots.swap(1, 2), "place"),
            (|it| it.slots[1].life = 7 | 1 << 32, "neither"),
            (|it| it.slots[1].life = 1, "neither"),
            (|it| it.slots[1].given = 99, "time to come"),
            (|it| it.slots[1].spoiled = Some(99), "time to come"),
            (|it| it.slots[2].died = 99, "time to come"),
            (|it| it.slots[0].pid = 1, "gateway"),
            (|it| it.holds[0].0 = 2, "held up"),
            (|it| it.bells[0].incarnation = 2, "nobody's"),
        ];
        for (change, says) in changes {
            let (mut state, luggage) = taken(&before);
            change(&mut state);
            let error = adopt(&memory, &state, luggage).expect_err(says);
            assert!(error.to_string().contains(says), "{error}");
        }
        let (mut state, luggage) = taken(&before);
        state.bells[0].rope = 1;
        assert!(adopt(&memory, &state, luggage).is_err(), "no such descriptor");
    }
}
