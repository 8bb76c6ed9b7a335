//! An event of a completion queue.

use crate::abi::CqEntry;
use fabric::Address;
use std::ffi::c_int;

/// The end of an operation, as a queue reports it to the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueEvent {
    pub(crate) entry: CqEntry,
    /// The sender of a received message, and the vector that has a number for it.
    pub(crate) source: Option<(Address, usize)>,
    pub(crate) failed: Option<OperationFailure>,
}

/// Why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OperationFailure {
    /// libfabric's number of the error.
    pub(crate) error: c_int,
    /// Our own number of it: `fi_cq_strerror` gives its text.
    pub(crate) own: c_int,
    /// Bytes of the message that there was no room for.
    pub(crate) missing_bytes: usize,
}
