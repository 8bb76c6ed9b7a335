//! What is open in a domain, behind its gate: all of it is plain data with one owner.

use crate::av::Vector;
use crate::cntr::Counter;
use crate::cq::{Event, Queue};
use crate::endpoint::Traffic;
use crate::object::Slots;

/// Everything by number.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) endpoints: Slots<Traffic>,
    pub(crate) queues: Slots<Queue>,
    pub(crate) counters: Slots<Counter>,
    pub(crate) vectors: Slots<Vector>,
}

impl State {
    pub(crate) const fn new() -> Self {
        Self {
            endpoints: Slots::new(),
            queues: Slots::new(),
            counters: Slots::new(),
            vectors: Slots::new(),
        }
    }

    /// Moves an endpoint's messages, unless so much has ended already: this is where all progress
    /// is made. Once for each call of the program, however much that asks for: what has come must
    /// not wait for a look whether more has.
    #[inline]
    pub(crate) fn progress(&mut self, endpoint: usize, wanted: usize) {
        let endpoint = &mut self.endpoints.of(endpoint).endpoint;
        if endpoint.known_completions() < wanted {
            endpoint.progress();
        }
    }

    /// The next completion of an endpoint, if one is known, and what of it a queue has to tell.
    /// What another queue tells is put there, and a counter counts.
    #[inline(always)]
    pub(crate) fn next_for(&mut self, endpoint: usize, queue: usize) -> Option<Option<Event>> {
        let ended = self.endpoints.of(endpoint).next()?;
        if let Some(number) = ended.counter {
            self.counters.of(number).count(&ended);
        }
        match ended.event {
            Some((number, event)) if number == queue => Some(Some(event)),
            Some((number, event)) => {
                self.queues.of(number).push(event);
                Some(None)
            }
            None => Some(None),
        }
    }
}
