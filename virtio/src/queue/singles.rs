//! Chains of one piece, many at a time: nearly all chains of a network card are of this kind.

use super::{Queue, QueueRing, either};
use crate::chain::{ChainHead, Segment};
use crate::descriptor::SinglesWanted;
use crate::ring::ChainState;
use crate::sigbus;

/// A chain that is one piece of guest memory.
#[derive(Clone, Copy, Debug)]
pub struct Single {
    /// Its name, to put it back.
    pub head: ChainHead,
    /// All of it.
    pub segment: Segment,
}

impl Queue {
    /// Adds those of the next chains to `into` that are one piece each, readable or `writable`: at
    /// most `most` of them, and none after they have `bytes` together. As [`Queue::take`] takes
    /// chains, at a fraction of its price for each. It stops before the first chain of another kind
    /// and before the first that breaks a rule: `take` deals with those. It also takes nothing
    /// where there is an inflight region.
    pub fn take_singles(
        &mut self,
        writable: bool,
        most: usize,
        bytes: usize,
        into: &mut Vec<Single>,
    ) {
        // The loss of memory is for `take` to find.
        if self.failed.is_some() || sigbus::losses() != self.losses {
            return;
        }
        let table = self.tables.present;
        let memory = self.tables.tables[usize::from(table)].memory.as_ref();
        let memory = memory.expect("the present table is kept");
        let Some(range) = memory.range(self.tables.hint) else { return };
        let wanted = SinglesWanted { range, writable, most, bytes };
        let before = into.len();
        let chains = &mut self.chains.0[..];
        let mut take = |head: u16, segment: Segment| match chains.get_mut(usize::from(head)) {
            Some(state @ ChainState::Free) => {
                *state = ChainState::Out { table };
                into.push(Single { head: ChainHead::from_index(head), segment });
                true
            }
            _ => false,
        };
        either!(&mut self.ring, ring => ring.take_singles(&wanted, &mut take));
        let taken = into.len() - before;
        self.tables.tables[usize::from(table)].out += taken as u16;
        self.outstanding += taken as u16;
        self.counters.taken += taken as u64;
    }
}
