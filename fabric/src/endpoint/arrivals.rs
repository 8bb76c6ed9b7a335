//! Arrivals by the ring: each cell is read once, checked, and done with.

use super::engine::receives::{ReceivedBody, Unexpected};
use super::engine::{Engine, index};
use crate::cell::{Cell, CellHead, CellKind, Lent, Local};
use crate::matcher::{Envelope, PostedId};
use crate::message::{Class, RequestFailure};
use crate::region::Region;
use crate::slab::{give_back, is_whole};

impl Engine {
    /// Takes the cell at the ring's head, whose first word's low half was read.
    #[inline(always)]
    pub(super) fn arrival(&mut self, region: &Region, cell: Cell<'_>, low: u32) {
        match cell.short(low, self.me) {
            // A cell that differs from most ones may break a rule. The long way finds out.
            Some(head) if is_whole(region, head.source) => {
                let bytes = usize::from(head.inline_bytes);
                self.message(region, &head, cell.body_at(), bytes, None);
            }
            _ => self.arrival_of_any(region, cell, low),
        }
    }

    /// The same for a cell of any kind.
    #[inline(never)]
    fn arrival_of_any(&mut self, region: &Region, cell: Cell<'_>, low: u32) {
        let Some(head) = cell.head(low) else {
            self.counters.nonsense += 1;
            return;
        };
        // The cell is for the slot's former owner, or from a former owner of the sender's slot.
        // Parts of the messages of such a sender may be lost with its slab, so its later messages
        // must not be received.
        if head.to != self.me || !self.is_known(region, head.source) {
            self.counters.strays += 1;
            return;
        }
        let (cell, head) = (&cell, &head);
        let is_sound = match head.kind {
            CellKind::Inline => {
                let bytes = usize::from(head.inline_bytes);
                self.message(region, head, cell.body_at(), bytes, None);
                true
            }
            CellKind::Eager => self.eager(region, cell, head),
            CellKind::Offer => self.offered(region, cell, head),
            CellKind::Finish => self.finished(head.source, head.tag),
            CellKind::Clear => match cell.clear() {
                Some(clear) => self.cleared(head.source, head.tag, &clear),
                None => false,
            },
            CellKind::Piece => self.piece(region, cell, head),
            CellKind::Push => self.pushed(region, cell, head),
            CellKind::Part => self.part(region, cell, head),
            CellKind::Gone | CellKind::Credit | CellKind::Ask => self.told(head.kind, head.source),
        };
        if !is_sound {
            self.counters.nonsense += 1;
        }
    }

    /// Whether messages of a sender are received: the sender has left its slot as it was, or its
    /// host is known.
    #[inline]
    fn is_known(&mut self, region: &Region, source: Local) -> bool {
        match source.host {
            0 => is_whole(region, source),
            host => self.hosts.meet(region, host),
        }
    }

    #[inline]
    pub(super) fn envelope_of(&self, head: &CellHead) -> Envelope {
        Envelope { source: self.address_of(head.source), tag: head.tag }
    }

    fn eager(&mut self, region: &Region, cell: &Cell<'_>, head: &CellHead) -> bool {
        let Some(lent) = cell.lent(head.source) else { return false };
        let Lent { owner, buffer, bytes, .. } = lent;
        let at = region.layout().buffer(owner.slot, buffer);
        self.message(region, head, at, bytes, Some(owner));
        give_back(region, &lent);
        true
    }

    /// Takes a message whose bytes are at this place of the region, which lies in it. A place in
    /// the own ring is the message's for as long as its cell is. A place in a slab is the message's
    /// for as long as the slab is this owner's.
    #[inline(always)]
    fn message(
        &mut self,
        region: &Region,
        head: &CellHead,
        at: usize,
        bytes: usize,
        slab: Option<Local>,
    ) {
        let was_whole = || slab.is_none_or(|owner| is_whole(region, owner));
        self.counters.messages += 1;
        let (envelope, class) = (self.envelope_of(head), head.class);
        let Some(id) = self.spaces[index(class)].posted_for(&envelope) else {
            let body = ReceivedBody::copied(region, at, bytes);
            if was_whole() {
                self.keep(class, envelope, Unexpected { data: head.data, body });
            }
            return;
        };
        // Our own mistake if it fails: the matcher has just named it.
        let (context, posted) = self.spaces[index(class)].posted(id).expect("it is posted");
        if posted.multi.is_some() {
            return self.message_in_shared(region, (class, id), *head, at, bytes, slab);
        }
        let (start, room, source) = (posted.parts.start(), posted.parts.bytes(), posted.source);
        posted.parts.copy_out(0, bytes.min(room), region.mapping(), at);
        let failure = (!was_whole()).then_some(RequestFailure::Gone);
        self.spaces[index(class)].drop_posted(id);
        if let Some(source) = source {
            self.peers.settle(source);
        }
        self.arrived((context, class), &envelope, (head.data, start), (bytes, room), failure);
    }

    /// The same for a message that goes into a buffer that several messages share.
    #[cold]
    fn message_in_shared(
        &mut self,
        region: &Region,
        (class, id): (Class, PostedId),
        head: CellHead,
        at: usize,
        bytes: usize,
        slab: Option<Local>,
    ) {
        let envelope = self.envelope_of(&head);
        let place = self.place_for(class, id, bytes).expect("the receive is posted");
        let fits = bytes.min(place.parts.bytes());
        place.parts.copy_out(0, fits, region.mapping(), at);
        let was_whole = slab.is_none_or(|owner| is_whole(region, owner));
        let failure = (!was_whole).then_some(RequestFailure::Gone);
        self.received(&place, &envelope, head.data, bytes, failure);
    }

    fn offered(&mut self, region: &Region, cell: &Cell<'_>, head: &CellHead) -> bool {
        let Some(offer) = cell.offer() else { return false };
        self.counters.messages += 1;
        let (envelope, class) = (self.envelope_of(head), head.class);
        match self.spaces[index(class)].posted_for(&envelope) {
            Some(id) => {
                let place = self.place_for(class, id, offer.bytes).expect("the receive is posted");
                self.fetch(region, place, &envelope, head.data, &offer);
            }
            None => {
                let body = ReceivedBody::Offer(Box::new(offer));
                self.keep(class, envelope, Unexpected { data: head.data, body });
            }
        }
        true
    }

    /// Keeps a message without a receive that waits for it.
    #[inline(never)]
    pub(super) fn keep(&mut self, class: Class, envelope: Envelope, message: Unexpected) {
        self.counters.unexpected += 1;
        self.spaces[index(class)].arrive(envelope, message);
    }
}
