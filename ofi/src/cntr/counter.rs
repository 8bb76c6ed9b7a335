//! The numbers of a counter.

use crate::endpoint::EndedOperation;
use crate::wait::WaitState;

/// A counter's two numbers.
#[derive(Debug)]
pub(crate) struct OperationCounter {
    pub(crate) value: u64,
    pub(crate) errors: u64,
    /// Bytes are counted, not operations.
    bytes: bool,
    /// Whose operations it counts; a look at it moves their messages.
    pub(crate) endpoints: Vec<usize>,
    /// Something was counted, or set, since it was looked at.
    pub(crate) changed: bool,
    pub(crate) wait_state: WaitState,
}

impl OperationCounter {
    pub(super) fn new(bytes: bool, wait_state: WaitState) -> Self {
        let (value, errors, endpoints) = (0, 0, Vec::new());
        Self { value, errors, bytes, endpoints, changed: false, wait_state }
    }

    /// Something has ended.
    pub(crate) fn count(&mut self, ended: &EndedOperation) {
        if ended.failed {
            self.errors = self.errors.wrapping_add(1);
        } else {
            let step = if self.bytes { ended.bytes as u64 } else { 1 };
            self.value = self.value.wrapping_add(step);
        }
        self.tell();
    }

    /// It says something else than before.
    pub(super) fn tell(&mut self) {
        self.changed = true;
        self.wait_state.wake();
    }
}
