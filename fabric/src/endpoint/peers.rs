//! The other endpoints of requests, and the end of requests whose other endpoint is gone.

use super::engine::peers::is_live;
use super::engine::{Engine, index};
use crate::cell::Local;
use crate::message::{Class, RequestFailure};
use crate::region::{Region, SLOTS_MAX};
use crate::{Address, matcher::Envelope};

impl Engine {
    /// Whether an endpoint is still there, as far as it is known here.
    #[inline(always)]
    pub(super) fn lives(&self, region: &Region, local: Local) -> bool {
        match local.host {
            0 => is_live(region, local),
            _ => self.peers.remotes.lives(region, local),
        }
    }

    /// The name in the region of an address of this host, or of a host that can be reached.
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

    /// Ends everything whose other endpoint is gone. The messages that it had sent before are
    /// received first: the endpoint was gone before the look that finds no claimed cell in the
    /// ring, or before a whole ring of cells was taken since.
    pub(super) fn look_for_lives(&mut self, region: &Region) {
        if let Some((gone, end)) = self.peers.mourned.take() {
            self.bury_if_past(region, gone, end);
        }
        if self.peers.mourned.is_some() {
            return;
        }
        // Also after others were buried: an endpoint that went since then has told it, and tells it
        // only once.
        let (gone, end) = (self.peers.gone(region), self.consumer.end(&region.ring(self.me.slot)));
        if !gone.is_empty() {
            self.bury_if_past(region, gone, end);
        }
    }

    /// Ends requests with these endpoints once all cells before this position are taken; until then
    /// keeps the endpoints in `mourned`.
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
