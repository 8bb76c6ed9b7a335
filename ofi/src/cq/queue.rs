//! The events of a completion queue, and the endpoints that are bound to it.

use super::event::{OperationFailure, QueueEvent};
use crate::idle::IdlePolls;
use crate::wait::WaitState;
use std::collections::VecDeque;

/// No queue's number: what is told is put where it belongs.
pub(crate) const NO_QUEUE: usize = usize::MAX;

/// What a queue holds. It grows only by what its endpoints had outstanding when another queue or
/// a counter was looked at.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    ready: VecDeque<QueueEvent>,
    /// Who is bound to it.
    pub(crate) endpoints: Vec<usize>,
    /// Which of them is asked first.
    pub(super) turn: usize,
    pub(crate) idle: IdlePolls,
    pub(crate) wait_state: WaitState,
}

impl CompletionQueue {
    pub(super) fn new(wait_state: WaitState) -> Self {
        let (ready, endpoints, idle) = (VecDeque::new(), Vec::new(), IdlePolls::new());
        Self { ready, endpoints, turn: 0, idle, wait_state }
    }

    pub(crate) fn push(&mut self, event: QueueEvent) {
        self.ready.push_back(event);
        self.wait_state.wake();
    }

    /// Whether it has something to tell.
    pub(crate) fn has_events(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The next event that did not fail; whether there is one that did.
    pub(super) fn next(&mut self) -> Result<Option<QueueEvent>, ()> {
        match self.ready.front() {
            None => Ok(None),
            Some(event) if event.failed.is_some() => Err(()),
            Some(_) => Ok(self.ready.pop_front()),
        }
    }

    /// The next event if it failed.
    pub(super) fn next_failed(&mut self) -> Option<(QueueEvent, OperationFailure)> {
        let event = *self.ready.front()?;
        let failed = event.failed?;
        self.ready.pop_front();
        Some((event, failed))
    }

    /// Whose turn it is to be asked at a step of a round.
    pub(super) fn endpoint(&self, step: usize) -> Option<usize> {
        let count = self.endpoints.len();
        let index = self.turn + step;
        (step < count).then(|| self.endpoints[if index < count { index } else { index - count }])
    }
}
