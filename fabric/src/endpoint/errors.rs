//! Why an endpoint cannot be made, and why it does not send or receive.

use super::options::INJECT_BYTES_MAX;
use crate::Address;
use crate::parts::{BadParts, PARTS_MAX};

/// Why there is no endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// The region says that the slot is another endpoint's.
    #[error("slot {slot} of the domain's region belongs to another endpoint, or was overwritten")]
    Slot {
        /// The slot.
        slot: u16,
    },
    /// There is no randomness to be had.
    #[error("the system has no random number: {0}")]
    Random(rustix::io::Errno),
    /// The node has no slot left, or cannot be asked.
    #[error("the node gave no slot: {0}")]
    Refused(String),
}

/// Why a message is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// As many bytes wait for receivers as may: make progress, and try again.
    #[error(
        "receivers have not taken earlier messages, and no more messages can wait; poll, and send \
         again"
    )]
    Busy,
    /// No endpoint of this host has this address, and no way leads to the other host.
    #[error(
        "no way leads to host {:#x}, slot {}: its node is not joined with this one for the domain; \
         `vrio domain list` says which are, and why others are not", .0.host, .0.slot
    )]
    Unreachable(Address),
    /// The endpoint is no more.
    #[error("the other endpoint is gone")]
    Gone,
    /// The endpoint's ring breaks the region's rules: a member has written over it.
    #[error("the other endpoint's ring was overwritten; end its process, and start the job again")]
    Nonsense,
    /// Longer than memory, or than can be injected.
    #[error("the message is too long; {INJECT_BYTES_MAX} bytes can be injected")]
    TooLong,
    /// More than [`PARTS_MAX`] pieces.
    #[error("a message has at most {PARTS_MAX} parts")]
    TooManyParts,
}

/// Why nothing is received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// Longer than memory.
    #[error("the buffer is longer than any memory")]
    TooLong,
    /// More than [`PARTS_MAX`] pieces.
    #[error("a receive has at most {PARTS_MAX} parts")]
    TooManyParts,
    /// A buffer for several messages has one part and is untagged.
    #[error("a buffer for several messages has one part and takes untagged messages")]
    Shape,
    /// No message was claimed by this context.
    #[error("no message is claimed by this context")]
    NotClaimed,
}

impl From<BadParts> for SendError {
    fn from(bad: BadParts) -> Self {
        match bad {
            BadParts::TooMany => Self::TooManyParts,
            BadParts::TooLong => Self::TooLong,
        }
    }
}

impl From<BadParts> for ReceiveError {
    fn from(bad: BadParts) -> Self {
        match bad {
            BadParts::TooMany => Self::TooManyParts,
            BadParts::TooLong => Self::TooLong,
        }
    }
}
