//! The receiver's half of large messages: reading them out of the sender's memory, or having them
//! come piece by piece.

use super::engine::Engine;
use super::engine::offers::{ALL, OfferAnswer, Pull};
use super::engine::peers::MemoryAccess;
use super::engine::processes::EndpointProcess;
use super::engine::receives::MessagePlace;
use super::errors::SendError;
use crate::cell::{Cell, CellHead, CellKind, Clear, Local, Offer};
use crate::matcher::Envelope;
use crate::matcher::store::Id;
use crate::message::{Class, RequestFailure};
use crate::region::Region;
use crate::single_copy::{NotCopied, read};
use crate::slab::{give_back, is_whole};

/// Answers that a call tries again: a look must not cost more when more answers wait for a full
/// ring.
pub(super) const ANSWERS: usize = 16;

impl Engine {
    /// Fetches an offered message to its place.
    #[cold]
    pub(super) fn fetch(
        &mut self,
        region: &Region,
        place: MessagePlace,
        envelope: &Envelope,
        data: Option<u64>,
        offer: &Offer,
    ) {
        let Some(source) = self.local_of(region, envelope.source) else { return };
        let (bytes, operation, class) = (offer.bytes, offer.operation, place.class);
        if !self.lives(region, source) {
            self.counters.gone += 1;
            return self.received(&place, envelope, data, bytes, Some(RequestFailure::Gone));
        }
        self.peers.meet(source);
        let wanted = bytes.min(place.parts.bytes());
        if wanted == 0 || self.read(region, source, offer, &place) {
            self.counters.single_copies += u64::from(wanted > 0);
            self.answer(region, OfferAnswer { to: source, class, operation, clear: None });
            return self.received(&place, envelope, data, bytes, None);
        }
        self.counters.pipelines += 1;
        self.peers.expect(source, true);
        let pull = Pull { source, envelope: *envelope, data, place, bytes, wanted, got: 0 };
        let id = self.pulls.store.keep(pull);
        self.pulls.store.append(&mut self.pulls.all, ALL, id);
        let clear = Some(Clear { answer: id.to_word(), bytes: wanted });
        self.answer(region, OfferAnswer { to: source, class, operation, clear });
    }

    /// Reads the message out of the sender's memory, if the kernel allows it.
    fn read(
        &mut self,
        region: &Region,
        source: Local,
        offer: &Offer,
        place: &MessagePlace,
    ) -> bool {
        // Another host's memory cannot be read.
        if offer.bytes < self.options.single_copy_bytes_min || source.host != 0 {
            return false;
        }
        let pid = match self.peers.get(source).reading {
            MemoryAccess::Refused => return false,
            MemoryAccess::Of(pid) => pid,
            MemoryAccess::Unknown => match self.processes.0(source.slot, source.incarnation) {
                EndpointProcess::Is(pid) => {
                    self.peers.get(source).reading = MemoryAccess::Of(pid);
                    pid
                }
                EndpointProcess::Nobodys => {
                    self.peers.get(source).reading = MemoryAccess::Refused;
                    return false;
                }
                EndpointProcess::NotKnown => return false,
            },
        };
        match read(pid, offer, &place.parts.cut(0, offer.bytes)) {
            // The number of a process that has ended meanwhile may be another one's by now.
            Ok(()) => self.lives(region, source),
            Err(NotCopied::Refused) => {
                self.peers.get(source).reading = MemoryAccess::Refused;
                false
            }
            Err(NotCopied::Unreadable) => false,
        }
    }

    /// Tells the sender that an offered message is not wanted.
    pub(super) fn decline(
        &mut self,
        region: &Region,
        class: Class,
        envelope: &Envelope,
        offer: &Offer,
    ) {
        let Some(to) = self.local_of(region, envelope.source) else { return };
        self.answer(region, OfferAnswer { to, class, operation: offer.operation, clear: None });
    }

    /// Answers an offer; later, if the sender's ring is full now.
    fn answer(&mut self, region: &Region, answer: OfferAnswer) {
        if !self.answers.is_empty() || !self.try_answer(region, &answer) {
            self.answers.push_back(answer);
        }
    }

    /// Tries some of the answers that wait again, each in its turn.
    pub(super) fn answer_again(&mut self, region: &Region) {
        for _ in 0..self.answers.len().min(ANSWERS) {
            let Some(answer) = self.answers.pop_front() else { return };
            if self.try_answer(region, &answer) {
                self.sleeping.moved = true;
            } else {
                self.answers.push_back(answer);
            }
        }
    }

    /// Tries each of the last answers, but for those that ask for pieces, which are void now.
    /// Returns whether some are left.
    pub(super) fn answer_last(&mut self, region: &Region) -> bool {
        self.answers.retain(|answer| answer.clear.is_none());
        for _ in 0..self.answers.len().div_ceil(ANSWERS) {
            self.answer_again(region);
        }
        !self.answers.is_empty()
    }

    /// `false`: the sender's ring is full. A sender that is gone, or whose ring is broken, needs no
    /// answer.
    fn try_answer(&mut self, region: &Region, answer: &OfferAnswer) -> bool {
        let &OfferAnswer { to, class, operation, clear } = answer;
        if !self.lives(region, to) {
            return true;
        }
        self.peers.meet(to);
        let cell = match self.claim(region, to) {
            Ok(cell) => cell,
            Err(SendError::Busy) => return false,
            Err(_) => {
                // The sender will not send the pieces that this answer asks for.
                if let Some(Clear { answer, .. }) = clear {
                    self.end_pull(Id::from_word(answer), Some(RequestFailure::Nonsense));
                }
                return true;
            }
        };
        if let Some(clear) = &clear {
            cell.set_clear(clear);
        }
        let kind = if clear.is_some() { CellKind::Clear } else { CellKind::Finish };
        let (source, tag) = (self.me, operation);
        let (inline_bytes, data) = (0, None);
        let head = CellHead { kind, class, inline_bytes, source, to, tag, data, marked: false };
        self.publish(region, &cell, &head, 0);
        true
    }

    /// Takes a piece of a message. `false`: no message misses it.
    pub(super) fn piece(&mut self, region: &Region, cell: &Cell<'_>, head: &CellHead) -> bool {
        let Some(lent) = cell.lent(head.source) else { return false };
        let (id, at) = (Id::from_word(head.tag), cell.piece_at());
        let sound = match self.pulls.store.get_mut(id) {
            Some(pull) if pull.source == head.source => {
                let fits = (1..=pull.wanted - pull.got).contains(&lent.bytes);
                let fits = fits && at == pull.got as u64;
                if fits {
                    let from = region.layout().buffer(lent.owner.slot, lent.buffer);
                    pull.place.parts.copy_out(pull.got, lent.bytes, region.mapping(), from);
                    // A slab with another owner means that the sender is gone. That ends the
                    // message when it is noticed.
                    if is_whole(region, lent.owner) {
                        pull.got += lent.bytes;
                    }
                }
                Some((fits, pull.got == pull.wanted))
            }
            _ => None,
        };
        give_back(region, &lent);
        match sound {
            Some((true, true)) => self.end_pull(id, None),
            Some((true, false)) => {}
            Some((false, _)) => self.end_pull(id, Some(RequestFailure::Nonsense)),
            None => {}
        }
        sound.is_some_and(|(fits, _)| fits)
    }

    fn end_pull(&mut self, id: Id, failure: Option<RequestFailure>) {
        if self.pulls.store.get(id).is_none() {
            return;
        }
        self.pulls.store.leave(&mut self.pulls.all, ALL, id);
        let Some(pull) = self.pulls.store.give_up(id) else { return };
        self.peers.settle(pull.source);
        self.received(&pull.place, &pull.envelope, pull.data, pull.bytes, failure);
    }

    /// Ends the messages that an endpoint was sending when it went.
    pub(super) fn bury_pulls(&mut self, gone: Local) {
        let mut next = self.pulls.store.first(self.pulls.all);
        while let Some(id) = next {
            next = self.pulls.store.after(ALL, id);
            if self.pulls.store.get(id).is_some_and(|pull| pull.source == gone) {
                self.counters.gone += 1;
                self.end_pull(id, Some(RequestFailure::Gone));
            }
        }
    }
}
