//! The state of a counter.

use crate::endpoint::EndedOperation;
use crate::wait::WaitState;

/// The two numbers of a counter, and the endpoints whose operations it counts.
#[derive(Debug)]
pub(crate) struct OperationCounter {
    pub(crate) value: u64,
    pub(crate) errors: u64,
    /// It counts bytes, not operations.
    counts_bytes: bool,
    /// The endpoints that are bound to it. A read of the counter moves their messages.
    pub(crate) endpoints: Vec<usize>,
    /// A number has changed since the program has read it.
    pub(crate) changed: bool,
    pub(crate) wait_state: WaitState,
}

impl OperationCounter {
    pub(super) fn new(counts_bytes: bool, wait_state: WaitState) -> Self {
        let (value, errors, endpoints) = (0, 0, Vec::new());
        Self { value, errors, counts_bytes, endpoints, changed: false, wait_state }
    }

    /// Counts an operation that has ended.
    pub(crate) fn count(&mut self, ended: &EndedOperation) {
        if ended.failed {
            self.errors = self.errors.wrapping_add(1);
        } else {
            let step = if self.counts_bytes { ended.bytes as u64 } else { 1 };
            self.value = self.value.wrapping_add(step);
        }
        self.note_change();
    }

    /// Wakes the threads that wait for the counter, because a number has changed.
    pub(super) fn note_change(&mut self) {
        self.changed = true;
        self.wait_state.wake();
    }
}
