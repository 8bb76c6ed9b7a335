//! The events of a completion queue, and the endpoints that are bound to it.

use super::event::{OperationFailure, QueueEvent};
use crate::idle::IdlePolls;
use crate::wait::WaitState;
use std::collections::VecDeque;

/// The number of no queue, for a caller that reads none: each event is put into its own queue.
pub(crate) const NO_QUEUE: usize = usize::MAX;

/// The events of a queue that the program has not read, and its endpoints. An event is kept
/// here if it came while the program read another queue or a counter, or if it is a failure. So
/// there are never more events than operations that the program has begun.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    ready: VecDeque<QueueEvent>,
    /// The endpoints that are bound to it.
    pub(crate) endpoints: Vec<usize>,
    /// The place of the endpoint that the next read asks first.
    pub(super) first: usize,
    pub(crate) idle: IdlePolls,
    pub(crate) wait_state: WaitState,
}

impl CompletionQueue {
    pub(super) fn new(wait_state: WaitState) -> Self {
        let (ready, endpoints, idle) = (VecDeque::new(), Vec::new(), IdlePolls::new());
        Self { ready, endpoints, first: 0, idle, wait_state }
    }

    pub(crate) fn push(&mut self, event: QueueEvent) {
        self.ready.push_back(event);
        self.wait_state.wake();
    }

    /// Whether the program has events to read.
    pub(crate) fn has_events(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Takes the next event, unless it is a failure, which the program must read as an error.
    pub(super) fn next(&mut self) -> Result<Option<QueueEvent>, ()> {
        match self.ready.front() {
            None => Ok(None),
            Some(event) if event.failed.is_some() => Err(()),
            Some(_) => Ok(self.ready.pop_front()),
        }
    }

    /// Takes the next event if it is a failure.
    pub(super) fn next_failed(&mut self) -> Option<(QueueEvent, OperationFailure)> {
        let event = *self.ready.front()?;
        let failed = event.failed?;
        self.ready.pop_front();
        Some((event, failed))
    }

    /// The endpoint that a read asks at this step: each once, in turn.
    pub(super) fn endpoint(&self, step: usize) -> Option<usize> {
        let count = self.endpoints.len();
        let index = self.first + step;
        (step < count).then(|| self.endpoints[if index < count { index } else { index - count }])
    }
}
