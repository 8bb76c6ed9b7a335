//! The receiver's half of messages that other hosts push. They come piece by piece before the
//! program asks for them, and are kept as far as they have come.

use super::engine::pushes::{Goal, Push, Pushes, UNDER_WAY};
use super::engine::receives::{MessagePlace, ReceivedBody, Unexpected};
use super::engine::{Engine, index};
use super::options::PUSH_BYTES_MAX;
use crate::cell::{Cell, CellHead, Clear, Local};
use crate::matcher::Envelope;
use crate::matcher::store::Id;
use crate::message::RequestFailure;
use crate::region::Region;
use crate::slab::give_back;

impl Engine {
    /// A message begins to come. `false`: no sender pushes such a message.
    pub(super) fn pushed(&mut self, region: &Region, cell: &Cell<'_>, head: &CellHead) -> bool {
        let Some(Clear { answer: operation, bytes }) = cell.clear() else { return false };
        let (source, class, data) = (head.source, head.class, head.data);
        let is_new = !self.pushes.by_name.contains_key(&(source, operation));
        if source.host == 0 || !(1..=PUSH_BYTES_MAX).contains(&bytes) || !is_new {
            return false;
        }
        self.counters.messages += 1;
        // The death of the sender ends the message if parts of it are missing.
        let is_live = self.lives(region, source);
        self.peers.expect(source, is_live);
        let envelope = self.envelope_of(head);
        let goal = match self.spaces[index(class)].posted_for(&envelope) {
            Some(id) => {
                let place = self.place_for(class, id, bytes).expect("the receive is posted");
                Goal::MessagePlace { place, envelope, data }
            }
            None => Goal::Kept(Vec::new()),
        };
        let is_kept = matches!(goal, Goal::Kept(_));
        let Pushes { store, under_way, by_name } = &mut self.pushes;
        let id = store.keep(Push { source, operation, bytes, got: 0, goal });
        store.append(under_way, UNDER_WAY, id);
        by_name.insert((source, operation), id);
        if is_kept {
            self.keep(class, envelope, Unexpected { data, body: ReceivedBody::Push(id, bytes) });
        }
        true
    }

    /// Takes a part of a message. `false`: no message misses it.
    pub(super) fn part(&mut self, region: &Region, cell: &Cell<'_>, head: &CellHead) -> bool {
        let Some(lent) = cell.lent(head.source) else { return false };
        let id = self.pushes.by_name.get(&(head.source, head.tag)).copied();
        let push = id.and_then(|id| Some((id, self.pushes.store.get_mut(id)?)));
        let sound = push.map(|(id, push)| {
            let fits = cell.piece_at() == push.got as u64
                && (1..=push.bytes - push.got).contains(&lent.bytes);
            if fits {
                push.take(region, &lent);
            }
            (id, fits, push.got == push.bytes)
        });
        give_back(region, &lent);
        match sound {
            Some((id, true, true)) => self.end_push(id, None),
            Some((_, true, false)) => {}
            Some((id, false, _)) => self.end_push(id, Some(RequestFailure::Nonsense)),
            None => {}
        }
        sound.is_some_and(|(_, fits, _)| fits)
    }

    /// Ends a message: it is whole, or it failed.
    fn end_push(&mut self, id: Id, failure: Option<RequestFailure>) {
        let Pushes { store, under_way, by_name } = &mut self.pushes;
        let Some(push) = store.get_mut(id) else { return };
        let source = push.source;
        by_name.remove(&(source, push.operation));
        let is_kept = matches!(push.goal, Goal::Kept(_));
        if is_kept && let Some(failure) = failure {
            push.goal = Goal::Lost(failure);
        }
        store.leave(under_way, UNDER_WAY, id);
        self.peers.settle(source);
        if is_kept {
            return;
        }
        if let Some(Push { goal: Goal::MessagePlace { place, envelope, data }, bytes, .. }) =
            self.pushes.store.give_up(id)
        {
            self.received(&place, &envelope, data, bytes, failure);
        }
    }

    /// A receive meets a message that was kept, as far as it has come.
    pub(super) fn meet_push(
        &mut self,
        id: Id,
        place: MessagePlace,
        envelope: Envelope,
        data: Option<u64>,
    ) {
        let Some(push) = self.pushes.store.get_mut(id) else { return };
        let (bytes, is_whole) = (push.bytes, push.got == push.bytes);
        let failure = match &push.goal {
            Goal::Lost(failure) => Some(*failure),
            Goal::Kept(content) => {
                let fits = content.len().min(place.parts.bytes());
                place.parts.fill(&content[..fits]);
                None
            }
            // A message leaves the kept ones when it meets its receive, so it does not meet a
            // second one.
            Goal::MessagePlace { .. } | Goal::Nothing => return,
        };
        if failure.is_none() && !is_whole {
            push.goal = Goal::MessagePlace { place, envelope, data };
            return;
        }
        self.pushes.store.give_up(id);
        self.received(&place, &envelope, data, bytes, failure);
    }

    /// The program does not want a message that was kept.
    pub(super) fn decline_push(&mut self, id: Id) {
        let Some(push) = self.pushes.store.get_mut(id) else { return };
        if push.got == push.bytes || matches!(push.goal, Goal::Lost(_)) {
            self.pushes.store.give_up(id);
        } else {
            push.goal = Goal::Nothing;
        }
    }

    /// Ends the messages that an endpoint was pushing when it went.
    pub(super) fn bury_pushes(&mut self, gone: Local) {
        let mut next = self.pushes.store.first(self.pushes.under_way);
        while let Some(id) = next {
            next = self.pushes.store.after(UNDER_WAY, id);
            if self.pushes.store.get(id).is_some_and(|push| push.source == gone) {
                self.counters.gone += 1;
                self.end_push(id, Some(RequestFailure::Gone));
            }
        }
    }
}

#[cfg(any(test, feature = "testing"))]
impl super::Endpoint {
    /// How many messages of others are under way, or kept.
    pub fn pushes(&self) -> usize {
        self.engine.pushes.store.len()
    }
}
