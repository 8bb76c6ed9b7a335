//! Packets that belong to no session and wait to be sent.
//!
//! Strangers can cause as many as they like. So answers to a flood have queues of their own. They
//! push out neither this node's own packets nor answers to connectors that have shown their
//! addresses.

use std::collections::VecDeque;
use std::net::SocketAddr;

use crate::door::Cookie;
use crate::handshake::WelcomeLabel;
use crate::wire::{HelloRefusal, Label, Redirection};

/// Answers of one class that wait. More in one round is a flood, and dropped: an honest peer asks
/// again.
const ANSWERS_MAX: usize = 64;

/// The receiver of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerReceiver {
    /// A peer of a session of ours, or one that has shown its address by a cookie.
    Known,
    /// A sender of a Hello that has shown nothing.
    Stranger,
    /// A sender of a packet for a session that we do not know.
    Lost,
}

/// A packet that belongs to no session.
#[derive(Clone, Debug)]
pub(super) struct SessionlessReply {
    pub(super) to: SocketAddr,
    pub(super) label: Label,
    pub(super) content: Content,
    /// Filled up to so many bytes with zeros; 0: as long as it is.
    pub(super) pad_bytes: usize,
}

impl SessionlessReply {
    pub(super) fn new(to: SocketAddr, label: Label, content: Content) -> Self {
        Self { to, label, content, pad_bytes: 0 }
    }
}

#[derive(Clone, Debug)]
pub(super) enum Content {
    Nothing,
    Refusal(HelloRefusal),
    Redirection(Redirection),
    Close,
    Welcome(WelcomeLabel),
    /// And whether the connector must show it later, since we have too much to do.
    Cookie(Cookie, bool),
    /// The token of the session in the label, which is made when there is room to send it.
    Token,
    /// Frames that were written before.
    Frames(Box<[u8]>),
    /// A whole packet of a session, sealed before the session went.
    Packet(Box<[u8]>),
}

/// All that wait.
#[derive(Debug)]
pub(super) struct Answers {
    known: VecDeque<SessionlessReply>,
    strangers: VecDeque<SessionlessReply>,
    lost: VecDeque<SessionlessReply>,
}

impl Answers {
    pub(super) fn new() -> Self {
        let queue = || VecDeque::with_capacity(ANSWERS_MAX);
        Self { known: queue(), strangers: queue(), lost: queue() }
    }

    /// `false`: too many of its class wait, so it is dropped.
    pub(super) fn push(&mut self, class: AnswerReceiver, answer: SessionlessReply) -> bool {
        let queue = match class {
            AnswerReceiver::Known => &mut self.known,
            AnswerReceiver::Stranger => &mut self.strangers,
            AnswerReceiver::Lost => &mut self.lost,
        };
        let has_room = queue.len() < ANSWERS_MAX;
        if has_room {
            queue.push_back(answer);
        }
        has_room
    }

    /// The next to be sent: the known first, since they are few.
    pub(super) fn pop(&mut self) -> Option<SessionlessReply> {
        let queues = [&mut self.known, &mut self.lost, &mut self.strangers];
        queues.into_iter().find_map(VecDeque::pop_front)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty() && self.strangers.is_empty() && self.lost.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{PacketKind, VERSION_ANY};

    fn answer(number: u64) -> SessionlessReply {
        let label =
            Label { kind: PacketKind::Reset, version: VERSION_ANY, session: 1, number, flags: 0 };
        SessionlessReply::new(SocketAddr::from(([10, 0, 0, 1], 1)), label, Content::Nothing)
    }

    #[test]
    fn a_flood_of_one_class_leaves_room_for_the_others() {
        let mut answers = Answers::new();
        for flood in [AnswerReceiver::Stranger, AnswerReceiver::Lost] {
            let taken = (0..1000).filter(|&number| answers.push(flood, answer(number))).count();
            assert_eq!(taken, ANSWERS_MAX);
        }
        assert!(answers.push(AnswerReceiver::Known, answer(7)));
        assert_eq!(answers.pop().map(|answer| answer.label.number), Some(7));
        let rest = std::iter::from_fn(|| answers.pop()).count();
        assert_eq!((rest, answers.is_empty()), (2 * ANSWERS_MAX, true));
    }
}
