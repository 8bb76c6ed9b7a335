//! The messages that are offered, or fed to their receivers piece by piece.

use std::collections::VecDeque;

use crate::cell::{CellKind, Local};
use crate::matcher::store::{Id, ListEnds, MatchStore};
use crate::message::{Class, RequestContext};
use crate::parts::MessageParts;

/// A message that is offered, or fed to its receiver piece by piece.
#[derive(Debug)]
pub(crate) struct Sending {
    pub(crate) to: Local,
    pub(crate) class: Class,
    pub(crate) tag: u64,
    pub(crate) context: Option<RequestContext>,
    pub(crate) parts: MessageParts,
    /// The copy that the parts are of, where the message must not be read in the program's own
    /// memory.
    pub(crate) _copy: Option<Vec<u8>>,
    pub(crate) feeding: Option<Feeding>,
}

#[derive(Debug)]
pub(crate) struct Feeding {
    /// The kind of its pieces, and the operation that they name: the receiver's, or the sender's
    /// for a message that is pushed.
    pub(crate) kind: CellKind,
    pub(crate) operation: u64,
    /// The bytes that the receiver wants, and those of them that it was sent.
    pub(crate) bytes: usize,
    pub(crate) sent: usize,
}

/// The lists that a message can be in: of all messages, and of those that are fed to
/// a receiver.
pub(crate) const ALL: usize = 0;
pub(crate) const FED: usize = 1;

/// The messages that are offered or fed.
#[derive(Debug)]
pub(crate) struct Sends {
    pub(crate) store: MatchStore<Sending, 2>,
    pub(crate) all: ListEnds,
    /// Receivers, in turn, each with the messages that it is fed, the oldest first: one whole
    /// message is of more use to a receiver than two halves.
    pub(crate) fed: VecDeque<(Local, ListEnds)>,
}

impl Sends {
    /// With room for so many before anything is allocated.
    pub(crate) fn new(room: usize) -> Self {
        Self { store: MatchStore::new(room), all: ListEnds::EMPTY, fed: VecDeque::new() }
    }

    /// How many receivers are being fed.
    #[inline(always)]
    pub(crate) fn feeding(&self) -> usize {
        self.fed.len()
    }

    pub(crate) fn remove(&mut self, id: Id) -> Option<Sending> {
        let is_fed = self.store.get(id)?.feeding.is_some();
        self.store.leave(&mut self.all, ALL, id);
        let sending = self.store.get(id)?;
        if is_fed && let Some(place) = self.fed.iter().position(|(to, _)| *to == sending.to) {
            let (_, list) = &mut self.fed[place];
            self.store.leave(list, FED, id);
            if list.is_empty() {
                self.fed.remove(place);
            }
        }
        self.store.give_up(id)
    }
}
