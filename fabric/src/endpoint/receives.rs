//! Receives: requests for messages, and the place of a message that has met its receive.

use super::engine::receives::{MessagePlace, Multi, Posted, ReceivedBody, Unexpected};
use super::engine::{Engine, index};
use super::errors::ReceiveError;
use crate::matcher::store::Id;
use crate::matcher::{Envelope, Pattern, PostedId};
use crate::message::{
    Class, Completion, Done, LookOutcome, MemoryPiece, Peek, Receive, RequestContext,
    RequestFailure,
};
use crate::parts::MessageParts;
use crate::region::Region;

impl Engine {
    #[inline]
    pub(super) fn receive(
        &mut self,
        region: &Region,
        receive: &Receive,
        given: &[MemoryPiece],
    ) -> Result<(), ReceiveError> {
        let parts = MessageParts::new(given)?;
        let &Receive { class, source, tag, ignore, context, multi_min_bytes } = receive;
        let pattern = Pattern { source, tag, ignore };
        if let Some(min_bytes) = multi_min_bytes {
            if class != Class::Untagged || given.len() != 1 {
                return Err(ReceiveError::Shape);
            }
            self.receive_several(region, class, (pattern, context), parts, min_bytes);
            return Ok(());
        }
        match self.spaces[index(class)].unexpected_for(&pattern) {
            Some(id) => {
                let place = MessagePlace { context, class, parts, multi: None };
                if let Some(kept) = self.spaces[index(class)].remove_unexpected(id) {
                    self.deliver_kept(region, place, kept);
                }
            }
            None => self.post(region, class, (pattern, context), parts, None),
        }
        Ok(())
    }

    /// Posts a buffer for message after message: for those that have come, then for those that
    /// will.
    #[cold]
    fn receive_several(
        &mut self,
        region: &Region,
        class: Class,
        (pattern, context): (Pattern, RequestContext),
        parts: MessageParts,
        min_bytes: usize,
    ) {
        // At least one, or a full buffer would never end.
        let min_bytes = min_bytes.max(1);
        let multi =
            Multi { context, min_bytes, used_bytes: 0, arriving: 0, over: false, cancelled: false };
        let multi = self.multis.0.keep(multi);
        loop {
            let id = self.spaces[index(class)].unexpected_for(&pattern);
            let Some(id) = id else { break };
            let Some(kept) = self.spaces[index(class)].remove_unexpected(id) else { break };
            let bytes = kept.1.body.bytes();
            let Some((place, over)) = self.share(multi, &parts, bytes) else { break };
            self.deliver_kept(region, place, kept);
            if over {
                return;
            }
        }
        self.post(region, class, (pattern, context), parts, Some(multi));
    }

    #[inline(always)]
    fn post(
        &mut self,
        region: &Region,
        class: Class,
        (pattern, context): (Pattern, RequestContext),
        parts: MessageParts,
        multi: Option<Id>,
    ) {
        let source = pattern.source.and_then(|source| self.local_of(region, source));
        if let Some(source) = source {
            let is_live = self.lives(region, source);
            self.peers.expect(source, is_live);
        }
        self.spaces[index(class)].post(pattern, context, Posted { parts, source, multi });
    }

    /// The place in a shared buffer for a message of this length, and whether it is the last one.
    fn share(
        &mut self,
        multi: Id,
        parts: &MessageParts,
        bytes: usize,
    ) -> Option<(MessagePlace, bool)> {
        let shared = self.multis.0.get_mut(multi)?;
        let cut = parts.cut(shared.used_bytes, bytes);
        shared.used_bytes += cut.bytes();
        shared.arriving += 1;
        shared.over = parts.bytes() - shared.used_bytes < shared.min_bytes;
        let class = Class::Untagged;
        let place = MessagePlace { context: shared.context, class, parts: cut, multi: Some(multi) };
        Some((place, shared.over))
    }

    /// The place of a message of this length that a receive waited for.
    pub(super) fn place_for(
        &mut self,
        class: Class,
        id: PostedId,
        bytes: usize,
    ) -> Option<MessagePlace> {
        if let Some(multi) = self.spaces[index(class)].posted_mut(id)?.multi {
            return self.place_in_shared(class, id, multi, bytes);
        }
        let (context, posted) = self.take_posted(class, id)?;
        Some(MessagePlace { context, class, parts: posted.parts, multi: None })
    }

    #[cold]
    fn place_in_shared(
        &mut self,
        class: Class,
        id: PostedId,
        multi: Id,
        bytes: usize,
    ) -> Option<MessagePlace> {
        let parts = self.spaces[index(class)].posted_mut(id)?.parts.clone();
        let (place, over) = self.share(multi, &parts, bytes)?;
        if over {
            self.take_posted(class, id)?;
        }
        Some(place)
    }

    /// Takes a receive out that has met its message, or its last one.
    fn take_posted(&mut self, class: Class, id: PostedId) -> Option<(RequestContext, Posted)> {
        let (context, posted) = self.spaces[index(class)].remove_posted(id)?;
        if let Some(source) = posted.source {
            self.peers.settle(source);
        }
        Some((context, posted))
    }

    /// Hands over a message that was kept.
    fn deliver_kept(
        &mut self,
        region: &Region,
        place: MessagePlace,
        (envelope, Unexpected { data, body }): (Envelope, Unexpected),
    ) {
        let content = match &body {
            ReceivedBody::Short { bytes, content } => &content[..usize::from(*bytes)],
            ReceivedBody::Long(content) => content,
            ReceivedBody::Offer(offer) => return self.fetch(region, place, &envelope, data, offer),
            ReceivedBody::Push(id, _) => return self.meet_push(*id, place, envelope, data),
        };
        let fits = content.len().min(place.parts.bytes());
        place.parts.fill(&content[..fits]);
        self.received(&place, &envelope, data, content.len(), None);
    }

    /// Completes a receive: a message of this length is in its place, as much of it as fits.
    pub(super) fn received(
        &mut self,
        place: &MessagePlace,
        envelope: &Envelope,
        data: Option<u64>,
        bytes: usize,
        failure: Option<RequestFailure>,
    ) {
        let what = (place.context, place.class);
        let (start, room) = (place.parts.start(), place.parts.bytes());
        self.arrived(what, envelope, (data, start), (bytes, room), failure);
        if let Some(multi) = place.multi {
            self.received_in_shared(place, multi);
        }
    }

    /// The same for a message with this room in its place.
    #[inline(always)]
    pub(super) fn arrived(
        &mut self,
        what: (RequestContext, Class),
        envelope: &Envelope,
        start: (Option<u64>, *mut u8),
        (bytes, room): (usize, usize),
        failure: Option<RequestFailure>,
    ) {
        let fits = bytes.min(room);
        let missing_bytes = bytes - fits;
        let truncated = (missing_bytes > 0).then_some(RequestFailure::Truncated { missing_bytes });
        self.complete_receive(what, envelope, start, fits, failure.or(truncated));
    }

    #[cold]
    fn received_in_shared(&mut self, place: &MessagePlace, multi: Id) {
        let Some(shared) = self.multis.0.get_mut(multi) else { return };
        shared.arriving -= 1;
        if shared.over && shared.arriving == 0 {
            let cancelled = shared.cancelled;
            self.multis.end(multi);
            if cancelled {
                return self.cancelled((place.context, place.class), place.parts.start());
            }
            let (context, class, done) = (place.context, place.class, Done::Released);
            self.complete(Completion { context, done, class, tag: 0, bytes: 0, failure: None });
        }
    }

    pub(super) fn peek(&mut self, region: &Region, peek: &Peek) {
        let &Peek { class, source, tag, ignore, context, found: then } = peek;
        let space = &mut self.spaces[index(class)];
        let id = space.unexpected_for(&Pattern { source, tag, ignore });
        let found = id.and_then(|id| {
            let (&envelope, message) = space.unexpected_mut(id)?;
            Some((id, envelope, message.data, message.body.bytes()))
        });
        let nowhere = std::ptr::null_mut();
        match found {
            Some((id, envelope, data, bytes)) => {
                match then {
                    LookOutcome::Stays => {}
                    LookOutcome::Claimed => drop(space.claim(id, context)),
                    LookOutcome::Discarded => {
                        if let Some(kept) = space.remove_unexpected(id) {
                            self.discard(region, class, &kept);
                        }
                    }
                }
                let what = (context, class);
                self.complete_receive(what, &envelope, (data, nowhere), bytes, None);
            }
            None => {
                let source = source.unwrap_or(self.address_of(self.me));
                let envelope = Envelope { source, tag };
                let (what, failure) = ((context, class), Some(RequestFailure::NoMessage));
                self.complete_receive(what, &envelope, (None, nowhere), 0, failure);
            }
        }
    }

    fn take_claimed(&mut self, context: RequestContext) -> Option<(Class, (Envelope, Unexpected))> {
        [Class::Untagged, Class::Tagged].into_iter().find_map(|class| {
            self.spaces[index(class)].take_claimed(context).map(|kept| (class, kept))
        })
    }

    pub(super) fn receive_claimed(
        &mut self,
        region: &Region,
        context: RequestContext,
        parts: &[MemoryPiece],
    ) -> Result<(), ReceiveError> {
        let parts = MessageParts::new(parts)?;
        let (class, kept) = self.take_claimed(context).ok_or(ReceiveError::NotClaimed)?;
        self.deliver_kept(region, MessagePlace { context, class, parts, multi: None }, kept);
        Ok(())
    }

    pub(super) fn discard_claimed(&mut self, region: &Region, context: RequestContext) -> bool {
        let Some((class, kept)) = self.take_claimed(context) else { return false };
        self.discard(region, class, &kept);
        true
    }

    fn discard(&mut self, region: &Region, class: Class, kept: &(Envelope, Unexpected)) {
        let (envelope, Unexpected { body, .. }) = kept;
        match body {
            ReceivedBody::Offer(offer) => self.decline(region, class, envelope, offer),
            ReceivedBody::Push(id, _) => self.decline_push(*id),
            ReceivedBody::Short { .. } | ReceivedBody::Long(_) => {}
        }
    }

    pub(super) fn cancel(&mut self, context: RequestContext) -> bool {
        for class in [Class::Untagged, Class::Tagged] {
            let space = &mut self.spaces[index(class)];
            let Some(id) = space.posted_by(context) else { continue };
            let Some((_, posted)) = space.remove_posted(id) else { continue };
            if let Some(source) = posted.source {
                self.peers.settle(source);
            }
            if let Some(multi) = posted.multi {
                let arriving = self.multis.0.get_mut(multi).filter(|shared| shared.arriving > 0);
                if let Some(shared) = arriving {
                    (shared.over, shared.cancelled) = (true, true);
                    return true;
                }
                self.multis.end(multi);
            }
            self.cancelled((context, class), posted.parts.start());
            return true;
        }
        self.backlog.receivers() > 0 && self.cancel_waiting(context)
    }

    /// Tells that a receive was cancelled, and that its memory is the program's again.
    fn cancelled(&mut self, what: (RequestContext, Class), start: *mut u8) {
        let envelope = Envelope { source: self.address_of(self.me), tag: 0 };
        self.complete_receive(what, &envelope, (None, start), 0, Some(RequestFailure::Cancelled));
    }
}
