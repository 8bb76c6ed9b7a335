//! The sender's half: the way that a message goes, and the messages that are offered until they
//! were fetched, or pushed until all pieces are out.
//!
//! An offer waits for its receiver, so that the receiver does not have to keep messages that it has
//! not asked for. To another host an offer costs a round trip before anything moves, a good part of
//! the time of a message of a few buffers. So such a message is *pushed* while much of the pair's
//! window is left, and its receiver keeps it until it asks.

use super::engine::Engine;
use super::engine::sends::{ALL, FED, Feeding, Sending, Sends};
use super::errors::SendError;
use super::options::{INJECT_BYTES_MAX, PUSH_BYTES_MAX};
use crate::Address;
use crate::cell::{Cell, CellHead, CellKind, Clear, INLINE_BYTES_MAX, Local, Offer};
use crate::matcher::store::{Id, ListEnds};
use crate::message::{Completion, Done, Message, RequestContext, RequestFailure};
use crate::parts::{Given, MessageParts, PARTS_MAX};
use crate::region::Region;
use crate::ring::NoCell;

/// Messages that are offered and not taken. Only slow receivers have so many; more messages wait.
const OFFERS_MAX: usize = 1 << 16;

impl Engine {
    #[inline]
    pub(super) fn send(
        &mut self,
        region: &Region,
        message: &Message,
        given: Given<'_>,
    ) -> Result<(), SendError> {
        if let [_] = given.as_slice()
            && given.bytes() <= INLINE_BYTES_MAX
            && let Some(to) = self.near(region, message.to)
        {
            self.peers.meet(to);
            let sent = self.send_inline(region, to, message, given);
            return sent.or_else(|error| self.put_off(error, to, message, given, false));
        }
        self.send_any(region, message, given, false)
    }

    /// The endpoint of this address, if it is of this host and lives, while no message waits. None:
    /// it is another host's, it cannot be sent to, or other messages must go first.
    #[inline(always)]
    fn near(&self, region: &Region, address: Address) -> Option<Local> {
        let Address { host, incarnation, slot } = address;
        let is_near = host == self.host && u32::from(slot) >= self.backlog.short_from();
        (is_near && region.is_live(slot, incarnation)).then_some(Local {
            host: 0,
            slot,
            incarnation,
        })
    }

    /// Sends a message of any kind. A message that is complete when it `is_matched` is offered: so
    /// it ends when its receiver has fetched it.
    #[inline(never)]
    pub(super) fn send_any(
        &mut self,
        region: &Region,
        message: &Message,
        given: Given<'_>,
        is_matched: bool,
    ) -> Result<(), SendError> {
        if message.inject && given.bytes() > INJECT_BYTES_MAX {
            return Err(SendError::TooLong);
        }
        let Some(to) = self.local_of(region, message.to) else {
            return Err(SendError::Unreachable(message.to));
        };
        if to.host == 0 && to.slot < region.gateways() {
            // The slot is a gateway's, which is the node's own.
            return Err(SendError::Unreachable(message.to));
        }
        if !self.lives(region, to) {
            return Err(SendError::Gone);
        }
        self.peers.meet(to);
        self.send_in_turn(region, to, message, given, is_matched)
    }

    /// Sends a message to an endpoint that lives, if there is room for it.
    #[inline(always)]
    pub(super) fn send_now(
        &mut self,
        region: &Region,
        to: Local,
        message: &Message,
        given: Given<'_>,
        is_matched: bool,
    ) -> Result<(), SendError> {
        match given.bytes() {
            _ if !self.is_open(region, to) => Err(SendError::Busy),
            _ if is_matched => self.send_offer(region, to, message, given),
            bytes if bytes <= INLINE_BYTES_MAX => self.send_inline(region, to, message, given),
            bytes if message.inject || bytes <= self.options.eager_bytes_max => {
                self.send_eager(region, to, message, given)
            }
            bytes if self.may_push(to, bytes) => self.send_push(region, to, message, given),
            _ => self.send_offer(region, to, message, given),
        }
    }

    /// The head of a message's cell.
    #[inline(always)]
    fn head_of(&self, kind: CellKind, to: Local, message: &Message) -> CellHead {
        let &Message { class, tag, data, .. } = message;
        CellHead { kind, class, inline_bytes: 0, source: self.me, to, tag, data, marked: false }
    }

    /// Claims a cell of the ring that leads to an endpoint.
    #[inline(always)]
    pub(super) fn claim<'a>(
        &mut self,
        region: &'a Region,
        to: Local,
    ) -> Result<Cell<'a>, SendError> {
        let (producer, ring) = (self.producer(), self.ring_to(region, to));
        let places = region.ring(ring.slot);
        match self.peers.get(ring).way.claim(&places, producer) {
            Ok(position) => Ok(Cell::of(region, places, position)),
            Err(none) => Err(self.no_cell(none)),
        }
    }

    #[cold]
    fn no_cell(&mut self, none: NoCell) -> SendError {
        match none {
            NoCell::Full => SendError::Busy,
            NoCell::Broken => {
                self.counters.nonsense += 1;
                SendError::Nonsense
            }
        }
    }

    /// Whether a cell can be claimed, for a caller that has to copy before.
    #[inline]
    pub(super) fn find_room(&mut self, region: &Region, to: Local) -> Result<(), SendError> {
        let found = self.peers.get(to).way.find_room(&region.ring(to.slot));
        found.map_err(|none| self.no_cell(none))
    }

    #[inline(always)]
    fn send_inline(
        &mut self,
        region: &Region,
        to: Local,
        message: &Message,
        given: Given<'_>,
    ) -> Result<(), SendError> {
        let cell = self.claim(region, to)?;
        given.copy_in(region.mapping(), cell.body_at());
        let (bytes, head) = (given.bytes(), self.head_of(CellKind::Inline, to, message));
        let head = CellHead { inline_bytes: bytes as u16, ..head };
        self.publish(region, &cell, &head, 0);
        self.counters.inline_sends += 1;
        self.sent(message, bytes);
        Ok(())
    }

    #[inline(never)]
    fn send_eager(
        &mut self,
        region: &Region,
        to: Local,
        message: &Message,
        given: Given<'_>,
    ) -> Result<(), SendError> {
        let ring = self.ring_to(region, to);
        self.find_room(region, ring)?;
        let Some(buffer) = self.slab.take(region, self.me.slot, ring.slot) else {
            // This receiver does not poll, or many do not. A message that need not be copied waits
            // where it is.
            return match message.inject {
                true => Err(SendError::Busy),
                false if self.may_push(to, given.bytes()) => {
                    self.send_push(region, to, message, given)
                }
                false => self.send_offer(region, to, message, given),
            };
        };
        let (at, bytes) = (region.layout().buffer(self.me.slot, buffer), given.bytes());
        // The copy comes before the claim, so that no cell behind it waits for the copy.
        given.copy_in(region.mapping(), at);
        let cell = self.claim(region, to).inspect_err(|_| self.slab.untake(buffer))?;
        cell.set_lent(&self.slab.lend(buffer, bytes, ring));
        let head = self.head_of(CellKind::Eager, to, message);
        self.publish(region, &cell, &head, bytes);
        self.slab.tidy(region, self.me.slot);
        self.counters.eager_sends += 1;
        self.sent(message, bytes);
        Ok(())
    }

    #[inline(never)]
    fn send_offer(
        &mut self,
        region: &Region,
        to: Local,
        message: &Message,
        given: Given<'_>,
    ) -> Result<(), SendError> {
        if self.sends.store.len() >= OFFERS_MAX {
            return Err(SendError::Busy);
        }
        let cell = self.claim(region, to)?;
        let copy = message.inject.then(|| given.copied());
        let kept = match &copy {
            Some(copy) => MessageParts::of_copy(copy),
            None => MessageParts::new(given.as_slice())?,
        };
        let mut offer = Offer {
            operation: 0,
            bytes: given.bytes(),
            proof_at: std::ptr::from_ref(&*self.proof) as u64,
            proof: *self.proof,
            count: kept.as_slice().len(),
            parts: [(0, 0); PARTS_MAX],
        };
        for (entry, part) in offer.parts.iter_mut().zip(kept.as_slice()) {
            *entry = (part.start as u64, part.bytes);
        }
        offer.operation = self.keep_sending(to, message, kept, copy).to_word();
        cell.set_offer(&offer);
        let head = self.head_of(CellKind::Offer, to, message);
        self.publish(region, &cell, &head, 0);
        self.counters.rendezvous_sends += 1;
        Ok(())
    }

    /// Sends a message to another host piece by piece, without being asked for it.
    #[inline(never)]
    fn send_push(
        &mut self,
        region: &Region,
        to: Local,
        message: &Message,
        given: Given<'_>,
    ) -> Result<(), SendError> {
        if self.sends.store.len() >= OFFERS_MAX {
            return Err(SendError::Busy);
        }
        let cell = self.claim(region, to)?;
        let bytes = given.bytes();
        let id = self.keep_sending(to, message, MessageParts::new(given.as_slice())?, None);
        let operation = id.to_word();
        cell.set_clear(&Clear { answer: operation, bytes });
        let head = self.head_of(CellKind::Push, to, message);
        self.publish_several(region, |engine| {
            engine.publish(region, &cell, &head, 0);
            engine.begin_to_feed(id, Feeding { kind: CellKind::Part, operation, bytes, sent: 0 });
            engine.feed_all(region, bytes.div_ceil(region.options().buffer_bytes as usize));
        });
        self.counters.pushed_sends += 1;
        Ok(())
    }

    /// Whether a message is pushed.
    fn may_push(&mut self, to: Local, bytes: usize) -> bool {
        to.host != 0 && bytes <= PUSH_BYTES_MAX && self.has_room_to_push(to)
    }

    /// Keeps a message until its receiver has it, or all its pieces are out.
    fn keep_sending(
        &mut self,
        to: Local,
        message: &Message,
        parts: MessageParts,
        copy: Option<Vec<u8>>,
    ) -> Id {
        let &Message { class, tag, context, .. } = message;
        let sending = Sending { to, class, tag, context, parts, _copy: copy, feeding: None };
        let id = self.sends.store.keep(sending);
        self.sends.store.append(&mut self.sends.all, ALL, id);
        self.peers.expect(to, true);
        id
    }

    /// Tells the program, if it wants to hear it, that a message's buffer is its own again.
    #[inline(always)]
    fn sent(&mut self, message: &Message, bytes: usize) {
        if let Some(context) = message.context {
            let &Message { class, tag, .. } = message;
            let done = Done::Send;
            self.complete(Completion { context, done, class, tag, bytes, failure: None });
        }
    }

    /// Ends an offer.
    fn end_sending(&mut self, id: Id, failure: Option<RequestFailure>) {
        let Some(sending) = self.sends.remove(id) else { return };
        self.peers.settle(sending.to);
        let Sending { class, tag, parts, context, .. } = sending;
        if context.is_some() || failure.is_some() {
            // A failure is told in any case.
            let context = context.unwrap_or(RequestContext(0));
            let (done, bytes) = (Done::Send, parts.bytes());
            self.complete(Completion { context, done, class, tag, bytes, failure });
        }
    }

    /// The offer that a cell answers, if it was made to the sender of this cell.
    fn offered_to(&self, source: Local, operation: u64) -> Option<Id> {
        let id = Id::from_word(operation);
        self.sends.store.get(id).filter(|sending| sending.to == source).map(|_| id)
    }

    /// The receiver has the message. `false`: there is no such offer.
    pub(super) fn finished(&mut self, source: Local, operation: u64) -> bool {
        let Some(id) = self.offered_to(source, operation) else { return false };
        self.end_sending(id, None);
        true
    }

    /// The receiver wants the message piece by piece. `false`: there is no such offer, or it is fed
    /// already.
    pub(super) fn cleared(&mut self, source: Local, operation: u64, clear: &Clear) -> bool {
        let Some(id) = self.offered_to(source, operation) else { return false };
        let Some(sending) = self.sends.store.get(id) else { return false };
        let &Clear { answer, bytes } = clear;
        if sending.feeding.is_some() || bytes == 0 || bytes > sending.parts.bytes() {
            return false;
        }
        self.begin_to_feed(
            id,
            Feeding { kind: CellKind::Piece, operation: answer, bytes, sent: 0 },
        );
        true
    }

    /// Begins to send a message piece by piece, behind others to the same receiver.
    fn begin_to_feed(&mut self, id: Id, feeding: Feeding) {
        let Sends { store, fed, .. } = &mut self.sends;
        let Some(sending) = store.get_mut(id) else { return };
        sending.feeding = Some(feeding);
        let receiver = sending.to;
        let place = fed.iter().position(|(to, _)| *to == receiver).unwrap_or_else(|| {
            fed.push_back((receiver, ListEnds::EMPTY));
            fed.len() - 1
        });
        store.append(&mut fed[place].1, FED, id);
    }

    /// Sends up to so many pieces, in turn to all receivers that are being fed.
    pub(super) fn feed(&mut self, region: &Region, pieces: usize) {
        self.publish_several(region, |engine| engine.feed_all(region, pieces));
    }

    fn feed_all(&mut self, region: &Region, pieces: usize) {
        for _ in 0..pieces {
            let Some(&(_, list)) = self.sends.fed.front() else { return };
            let Some(id) = self.sends.store.first(list) else { return };
            // The next receiver's turn, whether this one's ring has room or not.
            self.sends.fed.rotate_left(1);
            match self.feed_one(region, id) {
                Ok(()) | Err(SendError::Busy) => {}
                Err(_) => self.end_sending(id, Some(RequestFailure::Nonsense)),
            }
        }
    }

    /// Sends the next piece of one offer, if there is room for it.
    fn feed_one(&mut self, region: &Region, id: Id) -> Result<(), SendError> {
        let Some(sending) = self.sends.store.get(id) else { return Ok(()) };
        let (to, class) = (sending.to, sending.class);
        let Some(&Feeding { kind, operation, bytes, sent }) = sending.feeding.as_ref() else {
            return Ok(());
        };
        if !self.lives(region, to) || !self.is_open(region, to) {
            // A receiver that is gone ends the message when it is noticed.
            return Err(SendError::Busy);
        }
        let ring = self.ring_to(region, to);
        self.find_room(region, ring)?;
        let buffer = self.slab.take(region, self.me.slot, ring.slot).ok_or(SendError::Busy)?;
        let piece = (bytes - sent).min(region.options().buffer_bytes as usize);
        let at = region.layout().buffer(self.me.slot, buffer);
        if let Some(Sending { parts, .. }) = self.sends.store.get(id) {
            parts.copy_in(sent, piece, region.mapping(), at);
        }
        let cell = self.claim(region, to).inspect_err(|_| self.slab.untake(buffer))?;
        cell.set_lent(&self.slab.lend(buffer, piece, ring));
        cell.set_piece_at(sent);
        let (source, tag) = (self.me, operation);
        let (inline_bytes, data) = (0, None);
        let head = CellHead { kind, class, inline_bytes, source, to, tag, data, marked: false };
        self.publish(region, &cell, &head, piece);
        self.sleeping.moved = true;
        self.slab.tidy(region, self.me.slot);
        if let Some(sending) = self.sends.store.get_mut(id) {
            let sent = sent + piece;
            sending.feeding = Some(Feeding { kind, operation, bytes, sent });
            if sent == bytes {
                self.end_sending(id, None);
            }
        }
        Ok(())
    }

    /// Ends the offers to an endpoint that is gone.
    pub(super) fn bury_sends(&mut self, gone: Local) {
        let mut next = self.sends.store.first(self.sends.all);
        while let Some(id) = next {
            next = self.sends.store.after(ALL, id);
            if self.sends.store.get(id).is_some_and(|sending| sending.to == gone) {
                self.counters.gone += 1;
                self.end_sending(id, Some(RequestFailure::Gone));
            }
        }
    }
}
