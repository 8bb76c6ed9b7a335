//! Requests to endpoints, and their completions.

use crate::Address;

/// Which of an endpoint's two spaces of messages: a receive takes from its own one only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// `fi_send` and `fi_recv`: any receive fits.
    Untagged,
    /// `fi_tsend` and `fi_trecv`: tags decide.
    Tagged,
}

/// The program's own name for a request, such as a pointer: its completion gives it back, and the
/// endpoint does not look at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestContext(pub u64);

/// A piece of the caller's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPiece {
    /// Where it begins.
    pub start: *mut u8,
    /// How long it is.
    pub bytes: usize,
}

// SAFETY: a part is an address and a length. Code that dereferences it answers for that
// (`Endpoint::send` and `Endpoint::receive` say what they need).
unsafe impl Send for MemoryPiece {}

/// A message to send; its bytes are given beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The receiver.
    pub to: Address,
    /// Its space.
    pub class: Class,
    /// Its tag; zero where there are none.
    pub tag: u64,
    /// A word for the receiver's completion.
    pub data: Option<u64>,
    /// The context of its completion. None: the program does not want a completion, but for a
    /// failure, which has context zero.
    pub context: Option<RequestContext>,
    /// The bytes are copied before the call returns, however long the message takes
    /// (`INJECT_BYTES_MAX` at most).
    pub inject: bool,
}

/// A message to receive; its place is given beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receive {
    /// Its space.
    pub class: Class,
    /// From this endpoint only.
    pub source: Option<Address>,
    /// The tag, but for the bits of `ignore`.
    pub tag: u64,
    /// Bits of the tag that do not matter.
    pub ignore: u64,
    /// By which its completion is known.
    pub context: RequestContext,
    /// Taken by message after message until fewer bytes than this are left of the buffer (one part,
    /// untagged); none for one message.
    pub multi_min_bytes: Option<usize>,
}

/// A look for a message that has come and that no receive has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peek {
    /// Its space.
    pub class: Class,
    /// From this endpoint only.
    pub source: Option<Address>,
    /// The tag, but for the bits of `ignore`.
    pub tag: u64,
    /// Bits of the tag that do not matter.
    pub ignore: u64,
    /// By which its completion is known; and the message, if it is claimed.
    pub context: RequestContext,
    /// The fate of the message, if there is one.
    pub found: LookOutcome,
}

/// The fate of a message that was found by a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookOutcome {
    /// It stays.
    Stays,
    /// It is kept for a receive that claims it by the look's context.
    Claimed,
    /// It is done away with.
    Discarded,
}

/// The operation that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// A message was sent: its buffer is the caller's again.
    Send,
    /// A message was received, or looked for.
    Receive {
        /// The sender.
        source: Address,
        /// The word that came along.
        data: Option<u64>,
        /// Where in the caller's memory it begins (differs from the buffer's start in buffers that
        /// several messages share).
        start: *mut u8,
    },
    /// A buffer that several messages shared is the caller's again.
    Released,
}

// SAFETY: the address in it is only told, as in `MemoryPiece`.
unsafe impl Send for Done {}

/// Something has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Whose.
    pub context: RequestContext,
    /// The operation.
    pub done: Done,
    /// The space it was in.
    pub class: Class,
    /// The message's tag.
    pub tag: u64,
    /// How many bytes it has; of a truncated one, how many arrived.
    pub bytes: usize,
    /// Why it failed, if it did.
    pub failure: Option<RequestFailure>,
}

/// Why a request ended without what it was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestFailure {
    /// The message was longer than the buffer.
    #[error("the message is {missing_bytes} bytes longer than the buffer")]
    Truncated {
        /// How many did not fit.
        missing_bytes: usize,
    },
    /// It was taken back.
    #[error("cancelled")]
    Cancelled,
    /// A look found nothing.
    #[error("no such message has arrived")]
    NoMessage,
    /// The other endpoint is no more: its process ended, or its slot has another owner.
    #[error("the other endpoint is gone")]
    Gone,
    /// The other endpoint broke the rules of the region.
    #[error("the other endpoint wrote invalid data into the region")]
    Nonsense,
}
