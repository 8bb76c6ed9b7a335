//! Reads of registered memory of other processes (`fi_read`), made of messages: the reader asks,
//! and the other one's next call that makes progress sends what was asked for, as it sends any
//! message. So memory is read only as long as its process says by registering it.
//!
//! They are in the space of untagged messages, whose own have tag zero and meet nothing else.
//! `FI_RMA` is not offered by name: there are no writes. Intel MPI reads all the same, and MPICH if
//! it is told to.

use super::failure;
use super::traffic::{EndedOperation, EndpointTraffic, SendMode};
use super::unreported::MessageRole;
use crate::abi::{CqEntry, FI_EINVAL, FI_READ, FI_RMA};
use crate::cq::{OperationFailure, QueueEvent};
use crate::mr::Memories;
use fabric::{Address, Class, Completion, Done, MemoryPiece, Message, Receive, SendError};
use std::collections::VecDeque;
use std::ffi::c_int;

/// Questions that an endpoint has room for; more wait as messages that nobody has received yet.
const REQUESTS: usize = 16;

/// Tags of questions and of answers; an answer's has its question's number.
const REQUEST_TAG: u64 = 1 << 63;
const RESPONSE_TAG: u64 = 1 << 62;

/// What an answer says by its word: here it is; or it is not to be read.
const READ_DONE: u64 = 0;
const READ_REFUSED: u64 = 1;

/// Key, address, bytes, number: as they lie in memory, since all processes of a domain are of
/// machines of one kind.
type ReadRequest = [u64; 4];

/// An endpoint's part in it.
#[derive(Debug)]
pub(crate) struct RemoteReads {
    /// Where questions come to.
    requests: Box<[ReadRequest; REQUESTS]>,
    /// Those that are to be answered: where they are, and whose. A place is used again when its
    /// question is answered, so there are never more.
    pending: VecDeque<(usize, Address)>,
    /// Keys of the memory of answers that have ended.
    answered: Vec<u64>,
    /// Questions that this endpoint has pending.
    count: u64,
    /// The counter of reads.
    pub(crate) counter: Option<usize>,
}

/// What is read, of whom, and how its end is told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadArguments {
    pub(super) from: u64,
    pub(super) address: u64,
    pub(super) key: u64,
    pub(super) how: SendMode,
}

impl RemoteReads {
    pub(crate) fn new() -> Self {
        let (requests, pending) = (Box::new([[0; 4]; REQUESTS]), VecDeque::new());
        Self { requests, pending, answered: Vec::new(), count: 0, counter: None }
    }

    /// Whether something is to be answered.
    #[inline(always)]
    pub(crate) fn has_requests(&self) -> bool {
        !self.pending.is_empty()
    }
}

impl EndpointTraffic {
    /// Receives questions from now on.
    pub(crate) fn receive_requests(&mut self) {
        (0..REQUESTS).for_each(|place| self.receive_request(place));
    }

    fn receive_request(&mut self, place: usize) {
        let Some(question) = self.remote_reads.requests.get_mut(place) else { return };
        let parts =
            [MemoryPiece { start: question.as_mut_ptr().cast(), bytes: size_of::<ReadRequest>() }];
        let context = self.unreported.add_internal(MessageRole::RequestReceive(place), 0);
        let (class, source, ignore) = (Class::Untagged, None, 0);
        let multi_min_bytes = None;
        let receive = Receive { class, source, tag: REQUEST_TAG, ignore, context, multi_min_bytes };
        // SAFETY: the box is this endpoint's until it is closed, and nobody writes to the place
        // but the message; it is read when that has come.
        if unsafe { self.endpoint.receive(&receive, &parts) }.is_err() {
            self.unreported.forget(context);
        }
    }

    /// One of our own messages has ended.
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
                self.remote_reads.answered.extend(key);
                nothing
            }
            MessageRole::ResponseReceive { is_reported, bytes } => {
                let failed = match completion.failure {
                    Some(failure) => Some(failure::failed(failure)),
                    None if data == Some(READ_DONE) && completion.bytes == bytes => None,
                    None => Some(failure::NOT_READ),
                };
                let event = self.send.queue.filter(|_| is_reported || failed.is_some());
                let event = event.map(|queue| (queue, read(context, completion.bytes, failed)));
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

    /// Goes on after a message of ours has ended.
    #[cold]
    pub(crate) fn continue_reads(&mut self, memory: &mut Memories) {
        // The memory of answers that have ended may be closed.
        let answered = self.remote_reads.answered.drain(..);
        answered.for_each(|key| memory.release(key));
        self.send_responses(memory);
    }

    /// Answers questions, as long as there is room for answers.
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
            // SAFETY: who registers memory keeps it until that is closed, which is refused as long
            // as an answer has not ended (`hold`).
            let sent = unsafe { self.endpoint.send(&message, &found.unwrap_or_default()) };
            match sent {
                Ok(()) => held.into_iter().for_each(|key| memory.hold(key)),
                Err(error) => {
                    self.unreported.forget(context);
                    if error == SendError::Busy {
                        return;
                    }
                    // The reader is gone.
                }
            }
            self.remote_reads.pending.pop_front();
            self.receive_request(place);
        }
    }

    /// Begins to read.
    ///
    /// # Safety
    /// The parts stay writable, and nobody's but ours, until the completion.
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
        let mut question: ReadRequest = [key, address, bytes as u64, number];
        let request_parts =
            [MemoryPiece { start: question.as_mut_ptr().cast(), bytes: size_of::<ReadRequest>() }];
        let (class, data, inject) = (Class::Untagged, None, true);
        let message = Message { to: from, class, tag: REQUEST_TAG, data, context: None, inject };
        // SAFETY: it is ours, and injected.
        unsafe { self.endpoint.send(&message, &request_parts) }
            .map_err(|error| failure::not_sent(&error))?;
        // Only now, since nobody can answer within this call, and it could not be undone.
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

/// What a queue tells of a read.
fn read(op_context: u64, len: usize, failed: Option<OperationFailure>) -> QueueEvent {
    let flags = FI_RMA | FI_READ;
    QueueEvent {
        entry: CqEntry { op_context, flags, len, buf: 0, data: 0, tag: 0 },
        source: None,
        failed,
    }
}
