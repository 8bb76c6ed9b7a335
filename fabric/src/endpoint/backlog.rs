//! Messages that wait on their sender's side for room: in a ring, the slab, a window, or on the way
//! to a host that is held up.
//!
//! A send is local: MPI lets no program see by it whether the receiver looks for its messages. So a
//! message without room waits here, in order for each receiver, and so does every later message to
//! the same receiver. Each call for progress sends the messages that have room by then. Each
//! further send does so too, for its own receiver: a program that only sends would fill the backlog
//! otherwise while its receiver takes messages. An injected message waits as a copy, other messages
//! where they are. Each message is complete when it would have been without waiting.
//!
//! A message that goes the short way does not look here. While something waits, the short way is
//! barred by a word that each message compares its receiver's slot with anyway (`short_from`).

use std::collections::VecDeque;

use super::engine::Engine;
use super::engine::backlog::WaitingMessage;
use super::errors::SendError;
use super::progress::BATCH;
use crate::cell::Local;
use crate::message::{Completion, Done, Message, RequestContext, RequestFailure};
use crate::parts::Given;
use crate::region::Region;

/// Receivers that a call for progress tries: a receiver without room costs a look at its ring's
/// line.
const RECEIVERS: usize = 16;

/// Waiting messages that are sent before a further one to the same receiver. More than one, so that
/// the messages of a program that only sends do not wait longer than the receiver takes.
const AHEAD: usize = 2;

impl Engine {
    /// Sends a message behind all that waits for the same receiver, or has it wait as well.
    #[inline(always)]
    pub(super) fn send_in_turn(
        &mut self,
        region: &Region,
        to: Local,
        message: &Message,
        given: Given<'_>,
        is_matched: bool,
    ) -> Result<(), SendError> {
        let is_free = self.backlog.receivers() == 0 || self.is_next_of(region, to);
        let sent = match is_free {
            true => self.send_now(region, to, message, given, is_matched),
            false => Err(SendError::Busy),
        };
        sent.or_else(|error| self.put_off(error, to, message, given, is_matched))
    }

    /// Sends a few messages that wait for a receiver, and says whether none is left.
    #[cold]
    fn is_next_of(&mut self, region: &Region, to: Local) -> bool {
        self.send_waiting_for(region, to, AHEAD);
        !self.backlog.waits_for(to)
    }

    /// Keeps a message without room until there is some.
    #[cold]
    pub(super) fn put_off(
        &mut self,
        error: SendError,
        to: Local,
        message: &Message,
        given: Given<'_>,
        is_matched: bool,
    ) -> Result<(), SendError> {
        if error != SendError::Busy {
            return Err(error);
        }
        if !self.backlog.keep(to, message, given, is_matched)? {
            self.counters.busy += 1;
            self.note_refused(to);
            return Err(SendError::Busy);
        }
        self.peers.expect(to, true);
        self.counters.waited_sends += 1;
        Ok(())
    }

    /// Sends some of the messages that wait, to a few receivers in turn.
    pub(super) fn send_waiting(&mut self, region: &Region) {
        let mut left = BATCH;
        for _ in 0..self.backlog.receivers().min(RECEIVERS) {
            let Some(to) = self.backlog.next() else { return };
            left -= self.send_waiting_for(region, to, left);
            if left == 0 {
                return;
            }
        }
    }

    /// Sends up to so many messages that wait for one receiver; returns how many.
    fn send_waiting_for(&mut self, region: &Region, to: Local, count: usize) -> usize {
        if !self.backlog.waits_for(to) {
            return 0;
        }
        if !self.lives(region, to) {
            self.bury_waiting(to);
            return 0;
        }
        let Some(mut line) = self.backlog.take(to) else { return 0 };
        let (mut sent, mut bytes) = (0, 0);
        while sent < count
            && let Some(waiting) = line.front()
        {
            let WaitingMessage { message, is_matched, parts, .. } = waiting;
            let result = self.send_now(region, to, message, parts.given(), *is_matched);
            if result == Err(SendError::Busy) {
                break;
            }
            let Some(waiting) = line.pop_front() else { break };
            (sent, bytes) = (sent + 1, bytes + waiting.held_bytes());
            self.peers.settle(to);
            self.sleeping.moved = true;
            if result.is_err() {
                // The receiver's ring was sound when the program gave the message. It is the only
                // thing that can be broken now.
                self.not_sent_after_all(&waiting, RequestFailure::Nonsense);
            }
        }
        self.backlog.put_back(to, line, bytes);
        sent
    }

    /// Tells that a message which has waited is not sent, also to a program that wanted no
    /// completion.
    fn not_sent_after_all(&mut self, waiting: &WaitingMessage, failure: RequestFailure) {
        let &Message { class, tag, context, .. } = &waiting.message;
        let (context, bytes) = (context.unwrap_or(RequestContext(0)), waiting.parts.bytes());
        let (done, failure) = (Done::Send, Some(failure));
        self.complete(Completion { context, done, class, tag, bytes, failure });
    }

    /// Ends the messages that wait for an endpoint that is gone.
    pub(super) fn bury_waiting(&mut self, gone: Local) {
        let Some(line) = self.backlog.take(gone) else { return };
        for waiting in &line {
            self.counters.gone += 1;
            self.peers.settle(gone);
            self.not_sent_after_all(waiting, RequestFailure::Gone);
        }
        let bytes = line.iter().map(WaitingMessage::held_bytes).sum();
        self.backlog.put_back(gone, VecDeque::new(), bytes);
    }

    /// Cancels the oldest message that waits with this context. `false`: there is none.
    #[cold]
    pub(super) fn cancel_waiting(&mut self, context: RequestContext) -> bool {
        let is_it = |waiting: &WaitingMessage| waiting.message.context == Some(context);
        let mut lines = self.backlog.lines.iter();
        let found = lines.find_map(|(to, line)| Some((*to, line.iter().position(is_it)?)));
        let Some((to, place)) = found else { return false };
        let Some(mut line) = self.backlog.take(to) else { return false };
        let waiting = line.remove(place);
        self.backlog.put_back(to, line, waiting.as_ref().map_or(0, WaitingMessage::held_bytes));
        if let Some(waiting) = waiting {
            self.peers.settle(to);
            self.not_sent_after_all(&waiting, RequestFailure::Cancelled);
        }
        true
    }

    /// Forgets messages in the program's own memory when the endpoint ends, but for those in front
    /// of a copy. A copied message is complete for the program, and still goes out if it can.
    pub(super) fn forget_uncopied(&mut self) {
        for to in self.backlog.turns.clone() {
            let Some(mut line) = self.backlog.take(to) else { continue };
            let mut bytes = 0;
            while line.back().is_some_and(|last| last.copy.is_none()) {
                bytes += line.pop_back().map_or(0, |last| last.held_bytes());
                self.peers.settle(to);
            }
            self.backlog.put_back(to, line, bytes);
        }
    }
}

#[cfg(any(test, feature = "testing"))]
impl super::Endpoint {
    /// How many messages wait for an endpoint.
    pub fn waiting_for(&self, to: crate::Address) -> usize {
        let lines = self.engine.backlog.lines.iter();
        let to = (to.host != self.engine.host, to.slot, to.incarnation);
        let line = lines.filter(|(it, _)| (it.host != 0, it.slot, it.incarnation) == to);
        line.map(|(_, line)| line.len()).sum()
    }
}
