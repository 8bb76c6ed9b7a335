//! An event of a completion queue.

use crate::abi::CqEntry;
use fabric::Address;
use std::ffi::c_int;

/// Something to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueEvent {
    pub(crate) entry: CqEntry,
    /// Of a message that came: from whom, and the vector that has a number for it.
    pub(crate) source: Option<(Address, usize)>,
    pub(crate) failed: Option<OperationFailure>,
}

/// Why it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OperationFailure {
    /// As libfabric numbers it.
    pub(crate) error: c_int,
    /// As we do: see `calls::strerror`.
    pub(crate) own: c_int,
    /// Bytes that there was no room for.
    pub(crate) missing_bytes: usize,
}
