//! Reads of registered memory of other processes (`fi_read`), made of messages. The reader sends a
//! request. The owner of the memory sends a response with the content, in its next call that makes
//! progress. So memory can be read as long as its owner keeps it registered, and no longer.
//!
//! Requests and responses are in the space of untagged messages and have tags. The program's
//! untagged messages have tag zero, so that receives of the two never meet. `FI_RMA` is not offered
//! by name, since there are no writes. Intel MPI reads all the same, and MPICH if it is told to.

use super::failure;
use super::traffic::{EndedOperation, EndpointTraffic, SendMode};
use super::unreported::MessageRole;
use crate::abi::{CqEntry, FI_EINVAL, FI_READ, FI_RMA};
use crate::cq::{OperationFailure, QueueEvent};
use crate::mr::Memories;
use fabric::{Address, Class, Completion, Done, MemoryPiece, Message, Receive, SendError};
use std::collections::VecDeque;
use std::ffi::c_int;

/// Requests that an endpoint has room for. Further requests wait, as messages that no receive has
/// taken.
const REQUESTS_MAX: usize = 16;

/// The tags of requests and of responses. The tag of a response has the number of its request.
const REQUEST_TAG: u64 = 1 << 63;
const RESPONSE_TAG: u64 = 1 << 62;

/// The word that comes with a response: it has the content, or the read is refused.
const READ_DONE: u64 = 0;
const READ_REFUSED: u64 = 1;

/// A request: key, address, bytes, number. It is sent as it lies in memory, since all processes of
/// a domain are on machines of one kind.
type ReadRequest = [u64; 4];

/// The part of an endpoint in reads: requests of other endpoints, and its own reads.
#[derive(Debug)]
pub(crate) struct RemoteReads {
    /// Requests are received into these places.
    requests: Box<[ReadRequest; REQUESTS_MAX]>,
    /// Requests without a response: the place and the reader of each. A place is used again when
    /// its response is sent, so there are never more requests than places.
    pending: VecDeque<(usize, Address)>,
    /// The keys of memory whose content was in responses that have ended.
    released: Vec<u64>,
    /// The number of requests that this endpoint has ever sent.
    count: u64,
    /// The counter of reads.
    pub(crate) counter: Option<usize>,
}

/// The arguments of a call that reads: the memory's owner, address and key, and the mode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadArguments {
    pub(super) from: u64,
    pub(super) address: u64,
    pub(super) key: u64,
    pub(super) how: SendMode,
}

impl RemoteReads {
    pub(crate) fn new() -> Self {
        let (requests, pending) = (Box::new([[0; 4]; REQUESTS_MAX]), VecDeque::new());
        Self { requests, pending, released: Vec::new(), count: 0, counter: None }
    }

    /// Whether there are requests without a response.
    #[inline(always)]
    pub(crate) fn has_requests(&self) -> bool {
        !self.pending.is_empty()
    }
}

impl EndpointTraffic {
    /// Receives requests from now on.
    pub(crate) fn receive_requests(&mut self) {
        (0..REQUESTS_MAX).for_each(|place| self.receive_request(place));
    }

    fn receive_request(&mut self, place: usize) {
        let Some(request) = self.remote_reads.requests.get_mut(place) else { return };
        let parts =
            [MemoryPiece { start: request.as_mut_ptr().cast(), bytes: size_of::<ReadRequest>() }];
        let context = self.unreported.add_internal(MessageRole::RequestReceive(place), 0);
        let (class, source, ignore) = (Class::Untagged, None, 0);
        let multi_min_bytes = None;
        let receive = Receive { class, source, tag: REQUEST_TAG, ignore, context, multi_min_bytes };
        // SAFETY: the box lives as long as the endpoint. Only the message writes to the place, and
        // the place is read when the message has come.
        if unsafe { self.endpoint.receive(&receive, &parts) }.is_err() {
            self.unreported.forget(context);
        }
    }

    /// A message of the provider's own has ended.
    #[cold]
    pub(super) fn ended_internal(
        &mut self,
        completion: &Completion,
        (role, context): (MessageRole, u64),
    ) -> EndedOperation {
        self.unreported.forget(completion.context);
        let is_internal = true;
        let nothing =
            EndedOperation { counter: None, event: None, failed: false, bytes: 0, is_internal };
        let (source, data) = match completion.done {
            Done::Receive { source, data, .. } => (Some(source), data),
            Done::Send | Done::Released => (None, None),
        };
        match role {
            MessageRole::RequestReceive(place) => {
                let is_whole =
                    completion.failure.is_none() && completion.bytes == size_of::<ReadRequest>();
                match source.filter(|_| is_whole) {
                    Some(source) => self.remote_reads.pending.push_back((place, source)),
                    None => self.receive_request(place),
                }
                nothing
            }
            MessageRole::ResponseSend { key } => {
                self.remote_reads.released.extend(key);
                nothing
            }
            MessageRole::ResponseReceive { is_reported, bytes } => {
                let failed = match completion.failure {
                    Some(failure) => Some(failure::failed(failure)),
                    None if data == Some(READ_DONE) && completion.bytes == bytes => None,
                    None => Some(failure::NOT_READ),
                };
                let event = self.send.queue.filter(|_| is_reported || failed.is_some());
                let event =
                    event.map(|queue| (queue, read_event(context, completion.bytes, failed)));
                let (counter, bytes) = (self.remote_reads.counter, completion.bytes);
                EndedOperation {
                    counter,
                    event,
                    failed: failed.is_some(),
                    bytes,
                    is_internal: false,
                }
            }
        }
    }

    /// Goes on with reads of other endpoints after a message of the provider's own has ended.
    #[cold]
    pub(crate) fn continue_reads(&mut self, memory: &mut Memories) {
        // The memory may be closed when its responses have ended.
        let released = self.remote_reads.released.drain(..);
        released.for_each(|key| memory.release(key));
        self.send_responses(memory);
    }

    /// Sends responses to requests, as long as there is room.
    #[cold]
    pub(crate) fn send_responses(&mut self, memory: &mut Memories) {
        while let Some(&(place, to)) = self.remote_reads.pending.front() {
            let Some(&[key, address, bytes, number]) = self.remote_reads.requests.get(place) else {
                return;
            };
            let found = memory.find(key, address, bytes);
            let held = found.is_some().then_some(key);
            let data = if held.is_some() { READ_DONE } else { READ_REFUSED };
            let role = MessageRole::ResponseSend { key: held };
            let context = self.unreported.add_internal(role, 0);
            let (class, tag) = (Class::Untagged, RESPONSE_TAG | number);
            let (data, inject) = (Some(data), false);
            let message = Message { to, class, tag, data, context: Some(context), inject };
            // SAFETY: a program keeps registered memory until it has closed it, and the close is
            // refused while a response has the content (`hold`).
            let sent = unsafe { self.endpoint.send(&message, &found.unwrap_or_default()) };
            match sent {
                Ok(()) => held.into_iter().for_each(|key| memory.hold(key)),
                Err(error) => {
                    self.unreported.forget(context);
                    if error == SendError::Busy {
                        return;
                    }
                    // The reader is gone, and needs no response.
                }
            }
            self.remote_reads.pending.pop_front();
            self.receive_request(place);
        }
    }

    /// Begins to read memory of another endpoint's process.
    ///
    /// # Safety
    /// The parts stay writable until the completion, and nothing else accesses them.
    pub(super) unsafe fn read(
        &mut self,
        from: Address,
        reading: ReadArguments,
        parts: &[MemoryPiece],
    ) -> Result<(), c_int> {
        let ReadArguments { address, key, how, .. } = reading;
        let (context, flags) = match how {
            SendMode::WithFlags { context, flags } => (context, flags),
            SendMode::Plain(context) => (context, self.send.flags),
            SendMode::Injected => return Err(-FI_EINVAL),
        };
        let bytes: usize = parts.iter().map(|part| part.bytes).sum();
        self.remote_reads.count += 1;
        let number = self.remote_reads.count % RESPONSE_TAG;
        let mut request: ReadRequest = [key, address, bytes as u64, number];
        let request_parts =
            [MemoryPiece { start: request.as_mut_ptr().cast(), bytes: size_of::<ReadRequest>() }];
        let (class, data, inject) = (Class::Untagged, None, true);
        let message = Message { to: from, class, tag: REQUEST_TAG, data, context: None, inject };
        // SAFETY: the request is a local, and the message is injected.
        unsafe { self.endpoint.send(&message, &request_parts) }
            .map_err(|error| failure::not_sent(&error))?;
        // The receive follows the request, since a receive could not be undone if the request were
        // refused. The response cannot come within this call.
        let is_reported = self.send.reports(flags);
        let context = self
            .unreported
            .add_internal(MessageRole::ResponseReceive { is_reported, bytes }, context);
        let (source, tag) = (Some(from), RESPONSE_TAG | number);
        let receive = Receive { class, source, tag, ignore: 0, context, multi_min_bytes: None };
        // SAFETY: the caller's.
        unsafe { self.endpoint.receive(&receive, parts) }.map_err(|error| {
            self.unreported.forget(context);
            failure::not_received(&error)
        })
    }
}

/// The event of a read.
fn read_event(op_context: u64, len: usize, failed: Option<OperationFailure>) -> QueueEvent {
    let flags = FI_RMA | FI_READ;
    QueueEvent {
        entry: CqEntry { op_context, flags, len, buf: 0, data: 0, tag: 0 },
        source: None,
        failed,
    }
}
