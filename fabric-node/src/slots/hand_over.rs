//! Hand-over of the slot table to the process that takes the region over.

use std::io;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use handover::{ReceivedDescriptors, SentDescriptors};

use super::{HOSTS_MAX, SlotEntry, SlotTable};
use crate::hand_over::{HoldState, SlotState, SlotTableState, Unfit, ensure};
use fabric::Region;
use fabric::ring::{Life, SlotLife};

impl SlotTable {
    /// The state for the next process. The table may not change meanwhile.
    pub(crate) fn take_down(&self, sent: &mut SentDescriptors) -> io::Result<SlotTableState> {
        let entries = self.entries();
        let slots = entries.slots.iter().enumerate().filter(|(_, entry)| entry.incarnation > 0);
        let slots = slots.map(|(slot, entry)| {
            let &SlotEntry { state, incarnation, pid, given, died, spoiled } = entry;
            let life = Life { state, incarnation }.to_word();
            SlotState { slot: slot as u16, life, pid, given, died, spoiled }
        });
        let holds = self.seen.holds.iter().enumerate();
        let holds = holds.map(|(host, gateways)| HoldState {
            host: host as u16,
            gateways: gateways.load(Acquire),
        });
        Ok(SlotTableState {
            slots: slots.collect(),
            given: entries.given,
            deaths: entries.deaths,
            hosts: entries.hosts,
            holds: holds.filter(|hold| hold.gateways != 0).collect(),
            doorbells: self.doorbells.take_down(sent)?,
        })
    }

    /// Takes a region over, with what the table before remembered. Nothing is written into it.
    pub(crate) fn adopt(
        region: Region,
        state: &SlotTableState,
        received: &mut ReceivedDescriptors,
    ) -> Result<Self, Unfit> {
        let mut table = Self::new(region);
        let is_one = (1..=HOSTS_MAX).contains(&state.hosts);
        ensure(is_one, "its table of hosts is longer than it can be")?;
        let entries = table.entries.get_mut();
        (entries.given, entries.deaths, entries.hosts) = (state.given, state.deaths, state.hosts);
        let mut next = 0;
        for slot in &state.slots {
            let place = usize::from(slot.slot);
            ensure(place >= next && place < entries.slots.len(), "a slot is not in its place")?;
            entries.slots[place] = entry_of(slot, state)?;
            table.seen.lives[place].store(slot.life, Relaxed);
            next = place + 1;
        }
        let gateways = usize::from(table.region.options().gateways);
        let mut nodes = entries.slots[..gateways].iter();
        let is_so =
            nodes.all(|it| it.pid == 0 && [SlotLife::Live, SlotLife::Free].contains(&it.state));
        ensure(is_so, "a gateway's slot has another owner")?;
        for &HoldState { host, gateways } in &state.holds {
            let is_one = (1..state.hosts).contains(&usize::from(host));
            ensure(is_one, "a host that does not exist is held up")?;
            table.seen.holds[usize::from(host)].store(gateways, Relaxed);
        }
        for doorbell in &state.doorbells {
            let is_its = table.live_in(doorbell.slot) == Some(doorbell.incarnation);
            let is_hung = is_its && table.doorbells.adopt(doorbell, received)?;
            ensure(is_hung, "a doorbell has no owner")?;
        }
        // An endpoint may have died before, without a wake-up of the sleepers.
        *table.deaths_unannounced.get_mut() = true;
        Ok(table)
    }

    /// The endpoints that there are, and those that were left and may still store something: slot
    /// and incarnation.
    pub(crate) fn grants(&self) -> impl Iterator<Item = (u16, u32)> {
        let gateways = usize::from(self.region.options().gateways);
        let slots = self.entries().slots.clone();
        let all = slots.into_iter().enumerate().skip(gateways);
        let there = all.filter(|(_, it)| matches!(it.state, SlotLife::Live | SlotLife::Departed));
        there.map(|(slot, it)| (slot as u16, it.incarnation))
    }
}

/// The table's memory of a slot that was given out.
fn entry_of(state: &SlotState, entries: &SlotTableState) -> Result<SlotEntry, Unfit> {
    let &SlotState { life, pid, given, died, spoiled, .. } = state;
    let life = Life::from_word(life);
    let is_known = life.to_word() == state.life && life.incarnation > 0;
    ensure(is_known, "a slot is neither free nor owned")?;
    let is_past = given.max(spoiled.unwrap_or(0)) <= entries.given && died <= entries.deaths;
    ensure(is_past, "a slot's time is in the future")?;
    let Life { state, incarnation } = life;
    Ok(SlotEntry { state, incarnation, pid, given, died, spoiled })
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use super::*;
    use handover::DescriptorNumber;

    use fabric::RegionOptions;

    const OPTIONS: RegionOptions =
        RegionOptions { slots: 6, gateways: 1, cells: 16, buffers: 2, buffer_bytes: 4096, host: 7 };

    /// A slot table with a live, a dead, a departed and a sleeping endpoint, and a host.
    fn table() -> (SlotTable, OwnedFd) {
        let (table, memory) = SlotTable::create(&OPTIONS).expect("memory");
        table.take_gateway(0);
        let slots = [1, 2, 3, 4].map(|pid| table.take_slot(pid).expect("room"));
        assert!(table.declare_dead(slots[1].0));
        table.open_doorbell(slots[2].0, slots[2].1).expect("a pair");
        table.declare_departed(slots[2].0);
        table.open_doorbell(slots[3].0, slots[3].1).expect("a pair");
        let host = table.add_host(9).expect("room");
        table.hold(host, 0, true);
        (table, memory)
    }

    fn adopt(
        memory: &OwnedFd,
        state: &SlotTableState,
        descriptors: SentDescriptors,
    ) -> Result<SlotTable, Unfit> {
        let region = Region::map(memory.as_fd()).expect("a region");
        SlotTable::adopt(region, state, &mut descriptors.into_received())
    }

    fn taken(table: &SlotTable) -> (SlotTableState, SentDescriptors) {
        let mut descriptors = SentDescriptors::default();
        let state = table.take_down(&mut descriptors);
        (state.expect("descriptors"), descriptors)
    }

    #[test]
    fn a_successor_knows_its_predecessors_state() {
        let (before, memory) = table();
        let (state, descriptors) = taken(&before);
        let table = adopt(&memory, &state, descriptors).expect("it is as it was");
        for slot in 0..OPTIONS.slots {
            assert_eq!(table.live_in(slot), before.live_in(slot), "{slot}");
            assert_eq!(table.last_dead(slot), before.last_dead(slot), "{slot}");
            assert_eq!(table.process_of(slot, 1), before.process_of(slot, 1), "{slot}");
        }
        assert_eq!(table.grants().collect::<Vec<_>>(), before.grants().collect::<Vec<_>>());
        assert!(table.write_end(4, 1).is_some() && table.write_end(1, 1).is_none());
        let entries = |table: &SlotTable| format!("{:?}", table.entries());
        assert_eq!(entries(&table), entries(&before));
        assert_eq!(format!("{:?}", taken(&table).0), format!("{state:?}"));
        // And goes on as the earlier table would have.
        assert_eq!(table.add_host(5), Ok(2));
        assert_eq!(table.take_slot(5), Ok((5, 1)));
        assert_eq!(table.take_slot(6), Ok((2, 2)), "the dead one's; not that of who has left");
        assert!(table.take_slot(7).is_err());
    }

    #[test]
    fn a_slot_table_that_contradicts_itself_is_refused() {
        let (before, memory) = table();
        type Change = fn(&mut SlotTableState);
        let changes: [(Change, &str); 13] = [
            (|it| it.hosts = 0, "hosts"),
            (|it| it.hosts = HOSTS_MAX + 1, "hosts"),
            (|it| it.slots[1].slot = 6, "place"),
            (|it| it.slots[1].slot = 0, "place"),
            (|it| it.slots.swap(1, 2), "place"),
            (|it| it.slots[1].life = 7 | 1 << 32, "neither"),
            (|it| it.slots[1].life = 1, "neither"),
            (|it| it.slots[1].given = 99, "in the future"),
            (|it| it.slots[1].spoiled = Some(99), "in the future"),
            (|it| it.slots[2].died = 99, "in the future"),
            (|it| it.slots[0].pid = 1, "gateway"),
            (|it| it.holds[0].host = 2, "held up"),
            (|it| it.doorbells[0].incarnation = 2, "no owner"),
        ];
        for (change, says) in changes {
            let (mut state, descriptors) = taken(&before);
            change(&mut state);
            let error = adopt(&memory, &state, descriptors).expect_err(says);
            assert!(error.to_string().contains(says), "{error}");
        }
        let (mut state, descriptors) = taken(&before);
        state.doorbells[0].write_end = DescriptorNumber::new(1);
        assert!(adopt(&memory, &state, descriptors).is_err(), "no such descriptor");
    }
}
