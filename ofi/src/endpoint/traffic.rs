//! The messages of an endpoint. Calls begin operations of a `fabric` endpoint, and its completions
//! become events of queues and counts of counters.

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

/// The flags that a call that sends may have. `FI_MORE` is a hint that is not used.
pub(super) const SEND_FLAGS: u64 =
    COMPLETION_FLAGS | FI_MATCH_COMPLETE | FI_REMOTE_CQ_DATA | FI_MORE;

/// The sending or the receiving half of an endpoint.
#[derive(Debug, Default)]
pub(crate) struct EndpointSide {
    pub(crate) queue: Option<usize>,
    /// The queue reports only operations that ask for it (`FI_SELECTIVE_COMPLETION`).
    pub(crate) selective: bool,
    /// The flags of a call that has no argument for flags.
    pub(crate) flags: u64,
    pub(crate) counter: Option<usize>,
}

impl EndpointSide {
    /// Whether the queue reports the end of an operation that has these flags.
    #[inline]
    pub(super) fn reports(&self, flags: u64) -> bool {
        self.queue.is_some() && (!self.selective || flags & FI_COMPLETION != 0)
    }
}

/// An endpoint in the state of its domain.
#[derive(Debug)]
pub(crate) struct EndpointTraffic {
    pub(crate) endpoint: fabric::Endpoint,
    pub(crate) vector: Option<usize>,
    pub(crate) enabled: bool,
    /// Whether receives may name a source: untagged receives, and tagged ones.
    pub(crate) directed: [bool; 2],
    pub(crate) send: EndpointSide,
    pub(crate) receive: EndpointSide,
    /// A buffer for several messages is given back when it has less room than this.
    pub(crate) multi_min_bytes: usize,
    pub(crate) unreported: UnreportedOperations,
    pub(crate) remote_reads: RemoteReads,
    /// A thread may sleep until the endpoint has something for it.
    pub(crate) is_waited_for: bool,
}

/// The arguments of a call that sends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendArguments {
    pub(crate) class: Class,
    pub(crate) to: u64,
    pub(crate) tag: u64,
    pub(crate) data: Option<u64>,
    pub(crate) how: SendMode,
}

/// How a call sends: with or without flags, or a copy of its buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SendMode {
    /// The call has no argument for flags. It has this context.
    Plain(u64),
    /// The call has flags.
    WithFlags { context: u64, flags: u64 },
    /// The call copies the message (`fi_inject`). No queue reports its end.
    Injected,
}

/// The arguments of a call that receives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveArguments {
    pub(crate) class: Class,
    pub(crate) from: u64,
    pub(crate) tag: u64,
    pub(crate) ignore: u64,
    pub(crate) context: u64,
    /// None: the call has no argument for flags.
    pub(crate) flags: Option<u64>,
}

/// The end of an operation.
#[derive(Debug)]
pub(crate) struct EndedOperation {
    /// The counter that counts the operation.
    pub(crate) counter: Option<usize>,
    /// The queue that reports the end, and its event.
    pub(crate) event: Option<(usize, QueueEvent)>,
    pub(crate) failed: bool,
    pub(crate) bytes: usize,
    /// It was a message of the provider's own: `continue_reads` goes on with its read.
    pub(crate) is_internal: bool,
}

impl EndpointTraffic {
    /// The endpoint, if it is enabled. Else it takes no calls for messages.
    #[inline]
    pub(super) fn ready(&mut self) -> Result<&mut Self, c_int> {
        if self.enabled { Ok(self) } else { Err(-FI_EOPBADSTATE) }
    }

    /// Begins to send.
    ///
    /// # Safety
    /// The parts stay readable until the message's completion. The parts of an injected message
    /// stay readable until this returns.
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
            // Only a counter needs its end.
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

    /// Cancels a receive; its completion says so. It is an error if there is no such receive (any
    /// more): without the error Open MPI would wait for a completion.
    pub(crate) fn cancel(&mut self, context: u64) -> Result<(), c_int> {
        let unreported = self.unreported.find(context);
        let mut contexts =
            [Some(unreported::reported_context(context)), unreported].into_iter().flatten();
        let found = contexts.any(|context| self.endpoint.cancel(context));
        if found { Ok(()) } else { Err(NOT_FOUND) }
    }

    /// The next operation that has ended, if one is known.
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
        let owner = self.unreported.owner_of(completion.context);
        if let ContextOwner::Provider(role, context) = owner {
            return self.ended_internal(completion, (role, context));
        }
        let failed = completion.failure.map(failure::failed);
        let reported = match (owner, failed) {
            (ContextOwner::Reported(context), _) | (ContextOwner::Unreported(context), Some(_)) => {
                Some(context)
            }
            (ContextOwner::Unreported(_), None) | (ContextOwner::Provider(..), _) => None,
            (ContextOwner::Injected, _) => {
                // The message has no context, so no queue can report it: Open MPI would take null
                // for a pointer to a request. The next call towards that endpoint fails anyway.
                say!("an injected message is lost: {:?}", completion.failure);
                None
            }
        };
        let event = side.queue.zip(reported).map(|(queue, context)| {
            (queue, QueueEvent { failed, ..event(completion, context, self.vector) })
        });
        let counter = side.counter.filter(|_| !released);
        if let ContextOwner::Unreported(_) = owner {
            self.unreported.completed(completion);
        }
        let failed = failed.is_some();
        EndedOperation { counter, event, failed, bytes: completion.bytes, is_internal: false }
    }
}

/// libfabric's flag of a space of messages.
pub(super) fn class_flag(class: Class) -> u64 {
    match class {
        Class::Untagged => FI_MSG,
        Class::Tagged => FI_TAGGED,
    }
}

/// An entry that has only a context and flags.
#[inline(always)]
pub(super) fn entry(op_context: u64, flags: u64) -> CqEntry {
    CqEntry { op_context, flags, len: 0, buf: 0, data: 0, tag: 0 }
}

/// The event of a completion, without its failure.
#[inline(always)]
fn event(completion: &Completion, context: u64, vector: Option<usize>) -> QueueEvent {
    let &Completion { done, class, tag, bytes, failure, .. } = completion;
    let class = class_flag(class);
    match done {
        Done::Send => {
            let entry = CqEntry { len: bytes, tag, ..entry(context, FI_SEND | class) };
            QueueEvent { entry, source: None, failed: None }
        }
        // Without further flags `FI_MULTI_RECV` says that only the buffer is given back.
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
