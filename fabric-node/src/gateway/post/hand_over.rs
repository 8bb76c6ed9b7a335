//! Hand-over of the region's side of a gateway. It stays the same gateway to every receiver that
//! has one of its buffers, and messages that wait for receivers go on waiting.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{Post, PostCounters, ToSlot, WaitingEntry};
use crate::SlotTable;
use crate::gateway::wire;
use crate::hand_over::{Cargo, GrantState, LentState, PostState, Unfit, WayState, ensure};
use fabric::cell::Local;
use fabric::ring::{Consumer, RingProducer};
use fabric::slab::{Lending, LendingError, Slab};

impl Post {
    /// The state for the next process; the messages are appended to `cargo`. The gateway may not
    /// work again until one of the two processes goes on.
    pub(in crate::gateway) fn take_down(&mut self, cargo: &mut Vec<u8>) -> PostState {
        let region = Arc::clone(self.region());
        // Otherwise cells that were taken would be taken again.
        self.consumer.rest(&region.ring(self.me.slot));
        let ways = self.ways.iter().enumerate().filter(|(_, to)| to.incarnation != 0);
        let ways = ways.map(|(slot, &ToSlot { incarnation, way, rung, .. })| WayState {
            slot: slot as u16,
            incarnation,
            next: way.next(),
            rung,
        });
        for (host, entry) in self.waiting.values().flatten() {
            cargo.extend_from_slice(&u64::from(*host).to_le_bytes());
            cargo.extend_from_slice(entry);
        }
        let (lent, lending) = self.slab.lent();
        let lent = lent.map(|Lending { buffer, number, to }| {
            let to = GrantState { slot: to.slot, incarnation: to.incarnation };
            LentState { buffer, number, to }
        });
        PostState {
            incarnation: self.me.incarnation,
            position: self.consumer.position(),
            ways: ways.collect(),
            lent: lent.collect(),
            lending,
            waiting: self.waiting.values().map(VecDeque::len).sum(),
        }
    }

    /// Takes it over. Nothing is written into the region.
    pub(in crate::gateway) fn adopt(
        table: Arc<SlotTable>,
        slot: u16,
        state: PostState,
        cargo: &mut Cargo<'_>,
    ) -> Result<Self, Unfit> {
        let PostState { incarnation, position, ways: known, lent, lending, waiting } = state;
        let region = Arc::clone(table.region());
        let is_it = slot < region.gateways() && table.live_in(slot) == Some(incarnation);
        ensure(is_it, "it is not a gateway")?;
        let me = Local { host: 0, slot, incarnation };
        let lent = lent.into_iter().map(|LentState { buffer, number, to }| {
            let GrantState { slot, incarnation } = to;
            Lending { buffer, number, to: Local { host: 0, slot, incarnation } }
        });
        let slab = Slab::resume(&region, me, lent, lending).map_err(|error| match error {
            LendingError::NotFree => {
                Unfit::Contradiction("a buffer is lent twice, or does not exist")
            }
            _ => Unfit::Contradiction("a buffer is lent to no receiver"),
        })?;
        let slots = usize::from(region.slots());
        let mut ways: Box<[ToSlot]> = vec![ToSlot::default(); slots].into();
        for WayState { slot, incarnation, next, rung } in known {
            let to = ways.get_mut(usize::from(slot));
            let to = to.ok_or(Unfit::Contradiction("it knows a slot that does not exist"))?;
            *to = ToSlot { incarnation, way: RingProducer::after(next), rung, touched: false };
        }
        let consumer = Consumer::at(position);
        let (counters, empty_looks) = (PostCounters::default(), 0);
        let (queues, waiting_bytes) = (Default::default(), 0);
        let mut post = Self {
            table,
            me,
            consumer,
            slab,
            ways,
            waiting: queues,
            waiting_bytes,
            touched: Vec::with_capacity(slots),
            empty_looks,
            counters,
        };
        (0..waiting).try_for_each(|_| post.go_on_waiting(cargo))?;
        Ok(post)
    }

    /// The next message that waits.
    fn go_on_waiting(&mut self, cargo: &mut Cargo<'_>) -> Result<(), Unfit> {
        let host = cargo.take(8)?.try_into().expect("so many");
        let host = u16::try_from(u64::from_le_bytes(host)).ok();
        let host = host.filter(|host| self.table.has_host(*host));
        let host = host.ok_or(Unfit::Contradiction("a message has no host"))?;
        let slot_and_rest = wire::split_entry(cargo.rest(), host).ok();
        let slot_and_rest = slot_and_rest.map(|entry| (entry.head.to.slot, entry.rest.len()));
        let (slot, rest) =
            slot_and_rest
                .filter(|(slot, _)| self.endpoint_slots().contains(slot))
                .ok_or(Unfit::Contradiction("a message is missing, or has no receiver"))?;
        let entry = cargo.take(cargo.rest().len() - rest)?;
        let waiting: WaitingEntry = (host, entry.into());
        self.waiting.entry(slot).or_default().push_back(waiting);
        self.waiting_bytes += entry.len();
        Ok(())
    }
}
