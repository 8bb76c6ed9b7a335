//! The endpoints that an endpoint has to do with, and whether something waits for them.

use super::remotes::Remotes;
use crate::cell::Local;
use crate::region::Region;
use crate::ring::RingProducer;

/// Whether a peer's memory can be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum MemoryAccess {
    /// The node was not asked for the process yet.
    #[default]
    Unknown,
    /// The memory of this process, not tried or found to work.
    Of(u32),
    Refused,
}

/// The other endpoint in a slot, as far as it is known here.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SlotPeer {
    /// The owner of the slot that the other fields are about; 0 for none.
    pub(crate) incarnation: u32,
    pub(crate) way: RingProducer,
    pub(crate) reading: MemoryAccess,
    /// Requests that wait for it: sends, pulls, receives that name it as their source.
    outstanding: u32,
    /// The number of the sleep that it was woken from last; [`REFUSED`](super::sleep::REFUSED)
    /// while a refusal keeps this number.
    pub(crate) rung: u64,
}

/// All slots' peers.
#[derive(Debug)]
pub(crate) struct SlotPeers {
    slots: Box<[SlotPeer]>,
    /// Former owners of slots that requests may still wait for.
    former: Vec<Local>,
    /// The endpoints that were found gone while cells were in the ring, and the position before
    /// which all of their cells are.
    pub(crate) mourned: Option<(Vec<Local>, u64)>,
    /// The peers of other hosts.
    pub(crate) remotes: Remotes,
}

impl SlotPeers {
    pub(crate) fn new(region: &Region) -> Self {
        let slots = usize::from(region.options().slots);
        Self {
            slots: vec![SlotPeer::default(); slots].into(),
            former: Vec::new(),
            mourned: None,
            remotes: Remotes::default(),
        }
    }

    #[inline]
    pub(crate) fn get(&mut self, local: Local) -> &mut SlotPeer {
        &mut self.slots[usize::from(local.slot)]
    }

    /// Turns to this owner of the slot, which lives.
    #[inline(always)]
    pub(crate) fn meet(&mut self, local: Local) {
        if local.host != 0 {
            return self.meet_remote(local);
        }
        let peer = &mut self.slots[usize::from(local.slot)];
        if peer.incarnation != local.incarnation {
            self.meet_next(local);
        }
    }

    #[cold]
    fn meet_remote(&mut self, local: Local) {
        let former = self.remotes.meet(local);
        self.former.extend(former);
    }

    /// Turns to another owner of the slot than before.
    #[cold]
    fn meet_next(&mut self, local: Local) {
        let peer = &mut self.slots[usize::from(local.slot)];
        if peer.outstanding > 0 {
            let former = Local { incarnation: peer.incarnation, ..local };
            self.former.push(former);
        }
        *peer = SlotPeer { incarnation: local.incarnation, ..SlotPeer::default() };
    }

    /// A request waits for an owner of a slot, which lives or not.
    #[inline(always)]
    pub(crate) fn expect(&mut self, local: Local, is_live: bool) {
        if !is_live {
            return self.former.push(local);
        }
        self.meet(local);
        match local.host {
            0 => self.get(local).outstanding += 1,
            _ => self.remotes.expect(local),
        }
    }

    /// A request does not wait for it any more.
    #[inline(always)]
    pub(crate) fn settle(&mut self, local: Local) {
        if local.host != 0 {
            return self.remotes.settle(local);
        }
        let peer = self.get(local);
        if peer.incarnation == local.incarnation {
            peer.outstanding = peer.outstanding.saturating_sub(1);
        }
    }

    /// Whether an endpoint is known to be gone and its requests have not ended yet, or a gateway
    /// was not asked yet.
    pub(crate) fn has_news(&self) -> bool {
        !self.former.is_empty() || self.mourned.is_some() || self.remotes.has_unasked()
    }

    /// The endpoints that are gone and have requests outstanding.
    pub(crate) fn gone(&mut self, region: &Region) -> Vec<Local> {
        let mut gone = std::mem::take(&mut self.former);
        gone.extend(self.remotes.gone(region));
        for (slot, peer) in self.slots.iter().enumerate() {
            let local = Local { host: 0, slot: slot as u16, incarnation: peer.incarnation };
            if peer.outstanding > 0 && !is_live(region, local) {
                gone.push(local);
            }
        }
        gone
    }
}

/// Whether an endpoint of this host is still there.
#[inline]
pub(crate) fn is_live(region: &Region, local: Local) -> bool {
    region.is_live(local.slot, local.incarnation)
}
