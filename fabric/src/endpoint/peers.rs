//! Who an endpoint has to do with, and what becomes of requests whose other end is gone.

use super::remote::Remotes;
use super::{Engine, index};
use crate::cell::Local;
use crate::message::{Class, RequestFailure};
use crate::region::{Region, SLOTS_MAX};
use crate::ring::RingProducer;
use crate::{Address, matcher::Envelope};

/// Whether a peer's memory can be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum MemoryAccess {
    /// Whose it is was not asked yet.
    #[default]
    Unknown,
    /// This process's, not tried or found to work.
    Of(u32),
    Refused,
}

/// What is known of a slot.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SlotPeer {
    /// Of the owner that the rest is about; 0 for none.
    pub(super) incarnation: u32,
    pub(super) way: RingProducer,
    pub(super) reading: MemoryAccess,
    /// What waits for it: sends, pulls, receives from nobody else.
    outstanding: u32,
    /// Which of its sleeps it was woken from last; [`REFUSED`](super::sleep::REFUSED) while that
    /// is kept elsewhere.
    pub(super) rung: u64,
}

/// All slots' peers.
#[derive(Debug)]
pub(super) struct SlotPeers {
    slots: Box<[SlotPeer]>,
    /// Owners of slots that others have now, or nobody, with whom something may be outstanding.
    former: Vec<Local>,
    /// Those who were found gone while cells were in the ring, and the position before which all
    /// of theirs are.
    mourned: Option<(Vec<Local>, u64)>,
    /// Those of other hosts.
    pub(super) remotes: Remotes,
}

impl SlotPeers {
    pub(super) fn new(region: &Region) -> Self {
        let slots = usize::from(region.options().slots);
        Self {
            slots: vec![SlotPeer::default(); slots].into(),
            former: Vec::new(),
            mourned: None,
            remotes: Remotes::default(),
        }
    }

    #[inline]
    pub(super) fn get(&mut self, local: Local) -> &mut SlotPeer {
        &mut self.slots[usize::from(local.slot)]
    }

    /// Turns to this owner of the slot, which lives.
    #[inline(always)]
    pub(super) fn meet(&mut self, local: Local) {
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

    /// Something waits for an owner of a slot, whether it lives or not.
    #[inline(always)]
    pub(super) fn expect(&mut self, local: Local, is_live: bool) {
        if !is_live {
            return self.former.push(local);
        }
        self.meet(local);
        match local.host {
            0 => self.get(local).outstanding += 1,
            _ => self.remotes.expect(local),
        }
    }

    /// It does not any more.
    #[inline(always)]
    pub(super) fn settle(&mut self, local: Local) {
        if local.host != 0 {
            return self.remotes.settle(local);
        }
        let peer = self.get(local);
        if peer.incarnation == local.incarnation {
            peer.outstanding = peer.outstanding.saturating_sub(1);
        }
    }

    /// Whether somebody is known to be gone of whom that is still to be told, or was not asked.
    pub(super) fn has_news(&self) -> bool {
        !self.former.is_empty() || self.mourned.is_some() || self.remotes.has_unasked()
    }

    /// Those with whom something is outstanding and who are no more.
    fn gone(&mut self, region: &Region) -> Vec<Local> {
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
fn is_live(region: &Region, local: Local) -> bool {
    region.is_live(local.slot, local.incarnation)
}

impl Engine {
    /// Whether an endpoint is still there, for all that is known here.
    #[inline(always)]
    pub(super) fn lives(&self, region: &Region, local: Local) -> bool {
        match local.host {
            0 => is_live(region, local),
            _ => self.peers.remotes.lives(region, local),
        }
    }

    /// An address as the region names it, if it is one of this host or of one that can be reached.
    #[inline(always)]
    pub(super) fn local_of(&mut self, region: &Region, address: Address) -> Option<Local> {
        let Address { host, incarnation, slot } = address;
        if host == self.host {
            let is_slot = slot < region.slots();
            return is_slot.then_some(Local { host: 0, slot, incarnation });
        }
        self.remote_of(region, address)
    }

    #[inline(never)]
    fn remote_of(&mut self, region: &Region, address: Address) -> Option<Local> {
        let Address { host, incarnation, slot } = address;
        let host = self.hosts.index(region, host)?;
        (slot < SLOTS_MAX).then_some(Local { host, slot, incarnation })
    }

    /// Ends everything whose other end is gone. What those had sent before is received first: they
    /// were gone before it is seen here that no cell of the ring is claimed, or before a whole ring
    /// of cells was taken since.
    pub(super) fn look_for_lives(&mut self, region: &Region) {
        if let Some((gone, end)) = self.peers.mourned.take() {
            self.bury_if_past(region, gone, end);
        }
        if self.peers.mourned.is_some() {
            return;
        }
        // Also after others were buried: who went since has told it, and does so only once.
        let (gone, end) = (self.peers.gone(region), self.consumer.end(&region.ring(self.me.slot)));
        if !gone.is_empty() {
            self.bury_if_past(region, gone, end);
        }
    }

    /// Buries them once all is received that was before this position; until then mourns them.
    fn bury_if_past(&mut self, region: &Region, gone: Vec<Local>, end: u64) {
        if self.consumer.is_past(&region.ring(self.me.slot), end) {
            gone.into_iter().for_each(|local| self.bury(local));
        } else {
            self.peers.mourned = Some((gone, end));
        }
    }

    pub(super) fn bury(&mut self, local: Local) {
        self.bury_waiting(local);
        self.bury_sends(local);
        self.bury_pulls(local);
        self.bury_pushes(local);
        let source = self.address_of(local);
        for class in [Class::Untagged, Class::Tagged] {
            let space = index(class);
            while let Some(id) = self.spaces[space].posted_from(source) {
                let Some((context, posted)) = self.spaces[space].remove_posted(id) else { break };
                self.peers.settle(local);
                self.counters.gone += 1;
                let envelope = Envelope { source, tag: 0 };
                let none = (None, posted.parts.start());
                self.complete_receive(
                    (context, class),
                    &envelope,
                    none,
                    0,
                    Some(RequestFailure::Gone),
                );
                if let Some(multi) = posted.multi {
                    self.multis.end(multi);
                }
            }
        }
    }
}
