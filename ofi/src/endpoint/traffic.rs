//! An endpoint's messages: from a call to `fabric`, and from `fabric`'s completions to queues and
//! counters.

use super::failure;
use super::remote::RemoteReads;
use super::unreported::{self, ContextOwner, UnreportedOperations};
use crate::abi::{
    CqEntry, FI_COMPLETION, FI_EMSGSIZE, FI_EOPBADSTATE, FI_INJECT, FI_MATCH_COMPLETE, FI_MORE,
    FI_MSG, FI_MULTI_RECV, FI_RECV, FI_REMOTE_CQ_DATA, FI_SEND, FI_TAGGED,
};
use crate::cq::QueueEvent;
use crate::getinfo::COMPLETION_FLAGS;
use crate::log::say;
use crate::object::NOT_FOUND;
use fabric::{Address, Class, Completion, Done, INJECT_BYTES_MAX, MemoryPiece, Message};
use std::ffi::c_int;

/// Flags that a call that sends may have. `FI_MORE` is a hint that we have no use for.
pub(super) const SEND_FLAGS: u64 =
    COMPLETION_FLAGS | FI_MATCH_COMPLETE | FI_REMOTE_CQ_DATA | FI_MORE;

/// The half of an endpoint that sends, or the one that receives.
#[derive(Debug, Default)]
pub(crate) struct EndpointSide {
    pub(crate) queue: Option<usize>,
    /// Only what asks for it is told.
    pub(crate) selective: bool,
    /// Flags of calls that come without any.
    pub(crate) flags: u64,
    pub(crate) counter: Option<usize>,
}

impl EndpointSide {
    /// Whether the end of an operation is told in the queue.
    #[inline]
    pub(super) fn reports(&self, flags: u64) -> bool {
        self.queue.is_some() && (!self.selective || flags & FI_COMPLETION != 0)
    }
}

/// An endpoint.
#[derive(Debug)]
pub(crate) struct EndpointTraffic {
    pub(crate) endpoint: fabric::Endpoint,
    pub(crate) vector: Option<usize>,
    pub(crate) enabled: bool,
    /// Receives may name a source: untagged ones, tagged ones.
    pub(crate) directed: [bool; 2],
    pub(crate) send: EndpointSide,
    pub(crate) receive: EndpointSide,
    /// A buffer for several messages with less room than this is given back.
    pub(crate) multi_min_bytes: usize,
    pub(crate) unreported: UnreportedOperations,
    pub(crate) remote_reads: RemoteReads,
    /// Somebody may sleep until something of it ends.
    pub(crate) is_waited_for: bool,
}

/// A message as a call gives it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendArguments {
    pub(crate) class: Class,
    pub(crate) to: u64,
    pub(crate) tag: u64,
    pub(crate) data: Option<u64>,
    pub(crate) how: SendMode,
}

/// What becomes of its buffer, and who is told.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SendMode {
    /// A call that comes without flags; by this context.
    Plain(u64),
    /// A call with flags.
    WithFlags { context: u64, flags: u64 },
    /// A call that copies the message, and whose end nobody is told.
    Injected,
}

/// A receive as a call gives it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveArguments {
    pub(crate) class: Class,
    pub(crate) from: u64,
    pub(crate) tag: u64,
    pub(crate) ignore: u64,
    pub(crate) context: u64,
    /// None for a call that comes without any.
    pub(crate) flags: Option<u64>,
}

/// An operation has ended.
#[derive(Debug)]
pub(crate) struct EndedOperation {
    /// The counter that counts it.
    pub(crate) counter: Option<usize>,
    /// The queue that is_reported it.
    pub(crate) event: Option<(usize, QueueEvent)>,
    pub(crate) failed: bool,
    pub(crate) bytes: usize,
    /// It was ours, and there is more to do.
    pub(crate) is_internal: bool,
}

impl EndpointTraffic {
    /// Only an endpoint that is enabled carries messages.
    #[inline]
    pub(super) fn ready(&mut self) -> Result<&mut Self, c_int> {
        if self.enabled { Ok(self) } else { Err(-FI_EOPBADSTATE) }
    }

    /// # Safety
    /// As for [`ProviderState::send`].
    pub(super) unsafe fn send(
        &mut self,
        to: Address,
        message: SendArguments,
        parts: &[MemoryPiece],
    ) -> Result<(), c_int> {
        let SendArguments { class, tag, data, how, .. } = message;
        let (context, flags) = match how {
            SendMode::Plain(context) => (context, self.send.flags),
            SendMode::WithFlags { context, flags } => (context, flags),
            SendMode::Injected => (0, FI_INJECT),
        };
        let inject = flags & FI_INJECT != 0;
        if inject && parts.iter().map(|part| part.bytes).sum::<usize>() > INJECT_BYTES_MAX {
            return Err(-FI_EMSGSIZE);
        }
        let context = if self.send.reports(flags) && !matches!(how, SendMode::Injected) {
            Some(unreported::reported_context(context))
        } else {
            // A counter has to hear of it, and nobody else.
            self.send.counter.map(|_| self.unreported.add(context, false))
        };
        let message = Message { to, class, tag, data, context, inject };
        // SAFETY: the caller's.
        let begun = unsafe {
            match flags & FI_MATCH_COMPLETE {
                0 => self.endpoint.send(&message, parts),
                _ => self.endpoint.send_until_matched(&message, parts),
            }
        };
        begun.map_err(|error| {
            if let Some(context) = context {
                self.unreported.forget(context);
            }
            failure::not_sent(&error)
        })
    }

    /// Takes a receive back; its completion says so. An error when there is no such receive (any
    /// more): Open MPI then does not wait for it.
    pub(crate) fn cancel(&mut self, context: u64) -> Result<(), c_int> {
        let quiet = self.unreported.find(context);
        let mut contexts =
            [Some(unreported::reported_context(context)), quiet].into_iter().flatten();
        let found = contexts.any(|context| self.endpoint.cancel(context));
        if found { Ok(()) } else { Err(NOT_FOUND) }
    }

    /// What has ended, if anything is known to.
    #[inline(always)]
    pub(crate) fn next(&mut self) -> Option<EndedOperation> {
        self.endpoint.known_completion().map(|completion| self.ended(&completion))
    }

    #[inline(always)]
    fn ended(&mut self, completion: &Completion) -> EndedOperation {
        let released = completion.done == Done::Released;
        let side = match completion.done {
            Done::Send => &self.send,
            Done::Receive { .. } | Done::Released => &self.receive,
        };
        let whose = self.unreported.owner_of(completion.context);
        if let ContextOwner::Provider(role, context) = whose {
            return self.ended_internal(completion, (role, context));
        }
        let failed = completion.failure.map(failure::failed);
        let told = match (whose, failed) {
            (ContextOwner::Reported(context), _) | (ContextOwner::Unreported(context), Some(_)) => {
                Some(context)
            }
            (ContextOwner::Unreported(_), None) | (ContextOwner::Provider(..), _) => None,
            (ContextOwner::Injected, _) => {
                // Without a context there is nobody to tell (Open MPI would take the null for a
                // request of its). The next call towards that endpoint fails by itself.
                say!("an injected message is lost: {:?}", completion.failure);
                None
            }
        };
        let event = side.queue.zip(told).map(|(queue, context)| {
            (queue, QueueEvent { failed, ..event(completion, context, self.vector) })
        });
        let counter = side.counter.filter(|_| !released);
        if let ContextOwner::Unreported(_) = whose {
            self.unreported.completed(completion);
        }
        let failed = failed.is_some();
        EndedOperation { counter, event, failed, bytes: completion.bytes, is_internal: false }
    }
}

/// Which space, as libfabric says it.
pub(super) fn class_flag(class: Class) -> u64 {
    match class {
        Class::Untagged => FI_MSG,
        Class::Tagged => FI_TAGGED,
    }
}

/// An entry with nothing in it but whose it is.
#[inline(always)]
pub(super) fn entry(op_context: u64, flags: u64) -> CqEntry {
    CqEntry { op_context, flags, len: 0, buf: 0, data: 0, tag: 0 }
}

/// What a queue is_reported of a completion, but why it failed.
#[inline(always)]
fn event(completion: &Completion, context: u64, vector: Option<usize>) -> QueueEvent {
    let &Completion { done, class, tag, bytes, failure, .. } = completion;
    let class = class_flag(class);
    match done {
        Done::Send => {
            let entry = CqEntry { len: bytes, tag, ..entry(context, FI_SEND | class) };
            QueueEvent { entry, source: None, failed: None }
        }
        // Alone it says that this is no message's, but the buffer's.
        Done::Released => {
            QueueEvent { entry: entry(context, FI_MULTI_RECV), source: None, failed: None }
        }
        Done::Receive { source, data, start } => {
            let with_data = if data.is_some() { FI_REMOTE_CQ_DATA } else { 0 };
            let entry = CqEntry {
                len: bytes,
                buf: start.addr(),
                data: data.unwrap_or(0),
                tag,
                ..entry(context, FI_RECV | class | with_data)
            };
            let source = vector.filter(|_| failure.is_none()).map(|vector| (source, vector));
            QueueEvent { entry, source, failed: None }
        }
    }
}
