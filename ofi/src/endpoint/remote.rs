//! Reads of registered memory of other processes (`fi_read`), made of messages: the reader asks,
//! and the other one's next call that makes progress sends what was asked for, as it sends any
//! message. So memory is read only as long as its process says by registering it.
//!
//! They are in the space of untagged messages, whose own have tag zero and meet nothing else.
//! `FI_RMA` is not offered by name: there are no writes. Intel MPI reads all the same, and MPICH if
//! it is told to.

use super::failure;
use super::quiet::MessageRole;
use super::refused::not_written;
use super::traffic::{EndedOperation, Traffic};
use super::{EndpointObject, Pieces, SEND_FLAGS, Sending, one};
use crate::abi::{
    CqEntry, FI_EBADFLAGS, FI_EINVAL, FI_ENOAV, FI_READ, FI_RMA, IoVec, MsgRma, RmaIov, RmaOps,
};
use crate::cq::{Failed, QueueEvent};
use crate::object::outcome;
use crate::state::ProviderState;
use fabric::{Address, Class, Completion, Done, MemoryPiece, Message, Receive, SendError};
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};

/// Questions that an endpoint has room for; more wait as messages that nobody has received yet.
const QUESTIONS: usize = 16;

/// Tags of questions and of answers; an answer's has its question's number.
const QUESTION: u64 = 1 << 63;
const ANSWER: u64 = 1 << 62;

/// What an answer says by its word: here it is; or it is not to be read.
const HERE: u64 = 0;
const REFUSED: u64 = 1;

/// Key, address, bytes, number: as they lie in memory, since all processes of a domain are of
/// machines of one kind.
type ReadQuestion = [u64; 4];

/// An endpoint's part in it.
#[derive(Debug)]
pub(crate) struct Remote {
    /// Where questions come to.
    questions: Box<[ReadQuestion; QUESTIONS]>,
    /// Those that are to be answered: where they are, and whose. A place is used again when its
    /// question is answered, so there are never more.
    asked: VecDeque<(usize, Address)>,
    /// Keys of the memory of answers that have ended.
    answered: Vec<u64>,
    /// Questions that this endpoint has asked.
    count: u64,
    /// The counter of reads.
    pub(crate) counter: Option<usize>,
}

/// What is read, of whom, and how its end is told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemoteReading {
    from: u64,
    address: u64,
    key: u64,
    how: Sending,
}

impl Remote {
    pub(crate) fn new() -> Self {
        let (questions, asked) = (Box::new([[0; 4]; QUESTIONS]), VecDeque::new());
        Self { questions, asked, answered: Vec::new(), count: 0, counter: None }
    }

    /// Whether something is to be answered.
    #[inline(always)]
    pub(crate) fn is_asked(&self) -> bool {
        !self.asked.is_empty()
    }
}

impl Traffic {
    /// Receives questions from now on.
    pub(crate) fn hear_questions(&mut self) {
        (0..QUESTIONS).for_each(|place| self.hear(place));
    }

    fn hear(&mut self, place: usize) {
        let Some(question) = self.remote.questions.get_mut(place) else { return };
        let parts =
            [MemoryPiece { start: question.as_mut_ptr().cast(), bytes: size_of::<ReadQuestion>() }];
        let context = self.quiet.add_ours(MessageRole::Question(place), 0);
        let (class, source, ignore) = (Class::Untagged, None, 0);
        let multi_min_bytes = None;
        let receive = Receive { class, source, tag: QUESTION, ignore, context, multi_min_bytes };
        // SAFETY: the box is this endpoint's until it is closed, and nobody writes to the place
        // but the message; it is read when that has come.
        if unsafe { self.endpoint.receive(&receive, &parts) }.is_err() {
            self.quiet.forget(context);
        }
    }

    /// One of our own messages has ended.
    #[cold]
    pub(super) fn ended_of_ours(
        &mut self,
        completion: &Completion,
        (role, context): (MessageRole, u64),
    ) -> EndedOperation {
        self.quiet.forget(completion.context);
        let is_ours = true;
        let nothing =
            EndedOperation { counter: None, event: None, failed: false, bytes: 0, is_ours };
        let (source, data) = match completion.done {
            Done::Receive { source, data, .. } => (Some(source), data),
            Done::Send | Done::Released => (None, None),
        };
        match role {
            MessageRole::Question(place) => {
                let is_whole =
                    completion.failure.is_none() && completion.bytes == size_of::<ReadQuestion>();
                match source.filter(|_| is_whole) {
                    Some(source) => self.remote.asked.push_back((place, source)),
                    None => self.hear(place),
                }
                nothing
            }
            MessageRole::Answer { key } => {
                self.remote.answered.extend(key);
                nothing
            }
            MessageRole::Read { told, bytes } => {
                let failed = match completion.failure {
                    Some(failure) => Some(failure::failed(failure)),
                    None if data == Some(HERE) && completion.bytes == bytes => None,
                    None => Some(failure::NOT_READ),
                };
                let event = self.send.queue.filter(|_| told || failed.is_some());
                let event = event.map(|queue| (queue, read(context, completion.bytes, failed)));
                let (counter, bytes) = (self.remote.counter, completion.bytes);
                EndedOperation { counter, event, failed: failed.is_some(), bytes, is_ours: false }
            }
        }
    }
}

/// What a queue tells of a read.
fn read(op_context: u64, len: usize, failed: Option<Failed>) -> QueueEvent {
    let flags = FI_RMA | FI_READ;
    QueueEvent {
        entry: CqEntry { op_context, flags, len, buf: 0, data: 0, tag: 0 },
        source: None,
        failed,
    }
}

impl ProviderState {
    /// Goes on after a message of ours has ended.
    #[cold]
    pub(crate) fn see_to(&mut self, endpoint: usize) {
        // The memory of answers that have ended may be closed.
        let answered = self.endpoints.of(endpoint).remote.answered.drain(..);
        answered.for_each(|key| self.memory.let_go(key));
        self.answer(endpoint);
    }

    /// Answers questions, as long as there is room for answers.
    #[cold]
    pub(crate) fn answer(&mut self, endpoint: usize) {
        let Self { endpoints, memory, .. } = self;
        let traffic = endpoints.of(endpoint);
        while let Some(&(place, to)) = traffic.remote.asked.front() {
            let Some(&[key, address, bytes, number]) = traffic.remote.questions.get(place) else {
                return;
            };
            let found = memory.find(key, address, bytes);
            let held = found.is_some().then_some(key);
            let data = if held.is_some() { HERE } else { REFUSED };
            let role = MessageRole::Answer { key: held };
            let context = traffic.quiet.add_ours(role, 0);
            let (class, tag) = (Class::Untagged, ANSWER | number);
            let (data, inject) = (Some(data), false);
            let message = Message { to, class, tag, data, context: Some(context), inject };
            // SAFETY: who registers memory keeps it until that is closed, which is refused as long
            // as an answer has not ended (`hold`).
            let sent = unsafe { traffic.endpoint.send(&message, &found.unwrap_or_default()) };
            match sent {
                Ok(()) => held.into_iter().for_each(|key| memory.hold(key)),
                Err(error) => {
                    traffic.quiet.forget(context);
                    if error == SendError::Busy {
                        return;
                    }
                    // The reader is gone.
                }
            }
            traffic.remote.asked.pop_front();
            traffic.hear(place);
        }
    }

    /// Begins to read.
    ///
    /// # Safety
    /// The parts stay writable, and nobody's but ours, until the completion.
    unsafe fn read(
        &mut self,
        endpoint: usize,
        reading: RemoteReading,
        parts: &[MemoryPiece],
    ) -> Result<(), c_int> {
        let RemoteReading { from, address, key, how } = reading;
        let traffic = self.endpoints.of(endpoint).ready()?;
        let vector = self.vectors.of(traffic.vector.ok_or(-FI_ENOAV)?);
        let from = vector.address(from).ok_or(-FI_EINVAL)?;
        let (context, flags) = match how {
            Sending::By { context, flags } => (context, flags),
            Sending::Plainly(context) => (context, traffic.send.flags),
            Sending::Injected => return Err(-FI_EINVAL),
        };
        let bytes: usize = parts.iter().map(|part| part.bytes).sum();
        traffic.remote.count += 1;
        let number = traffic.remote.count % ANSWER;
        let mut question: ReadQuestion = [key, address, bytes as u64, number];
        let asked =
            [MemoryPiece { start: question.as_mut_ptr().cast(), bytes: size_of::<ReadQuestion>() }];
        let (class, data, inject) = (Class::Untagged, None, true);
        let message = Message { to: from, class, tag: QUESTION, data, context: None, inject };
        // SAFETY: it is ours, and injected.
        unsafe { traffic.endpoint.send(&message, &asked) }
            .map_err(|error| failure::not_sent(&error))?;
        // Only now, since nobody can answer within this call, and it could not be undone.
        let told = traffic.send.tells(flags);
        let context = traffic.quiet.add_ours(MessageRole::Read { told, bytes }, context);
        let (source, tag) = (Some(from), ANSWER | number);
        let receive = Receive { class, source, tag, ignore: 0, context, multi_min_bytes: None };
        // SAFETY: the caller's.
        unsafe { traffic.endpoint.receive(&receive, parts) }.map_err(|error| {
            traffic.quiet.forget(context);
            failure::not_received(&error)
        })
    }
}

impl EndpointObject {
    /// # Safety
    /// The parts stay writable, and nobody's but ours, until the completion.
    unsafe fn read(&self, reading: RemoteReading, parts: Option<&[MemoryPiece]>) -> isize {
        if let Sending::By { flags, .. } = reading.how
            && flags & !SEND_FLAGS != 0
        {
            return -(FI_EBADFLAGS as isize);
        }
        let Some(parts) = parts else { return -(FI_EINVAL as isize) };
        outcome(self.domain.state.with(|state| {
            // SAFETY: the caller's.
            let begun = unsafe { state.read(self.number, reading, parts) };
            state.wake(self.number);
            begun
        }))
    }
}

unsafe extern "C" fn read_one(
    endpoint: &EndpointObject,
    buffer: *mut c_void,
    bytes: usize,
    _: *mut c_void,
    from: u64,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let how = Sending::Plainly(context.addr() as u64);
    // SAFETY: libfabric's contract: the buffer is ours until the completion.
    unsafe { endpoint.read(RemoteReading { from, address, key, how }, Some(&one(buffer, bytes))) }
}

unsafe extern "C" fn read_parts(
    endpoint: &EndpointObject,
    parts: *const IoVec,
    _: *mut *mut c_void,
    count: usize,
    from: u64,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let how = Sending::Plainly(context.addr() as u64);
    // SAFETY: libfabric's contract: so many parts, each ours until the completion.
    unsafe {
        endpoint.read(RemoteReading { from, address, key, how }, Pieces::new(parts, count).parts())
    }
}

unsafe extern "C" fn read_message(
    endpoint: &EndpointObject,
    message: *const MsgRma,
    flags: u64,
) -> isize {
    // SAFETY: libfabric's contract: a message, and so many places.
    unsafe {
        let Some(message) = message.as_ref() else { return -(FI_EINVAL as isize) };
        let Some(&RmaIov { addr: address, key, len }) = message.rma_iov.as_ref() else {
            return -(FI_EINVAL as isize);
        };
        let pieces = Pieces::new(message.msg_iov, message.iov_count);
        let parts = pieces.parts();
        let wanted = parts.map(|parts| parts.iter().map(|part| part.bytes).sum::<usize>());
        // One place, of which all is read.
        if message.rma_iov_count != 1 || wanted != Some(len) {
            return -(FI_EINVAL as isize);
        }
        let how = Sending::By { context: message.context.addr() as u64, flags };
        endpoint.read(RemoteReading { from: message.addr, address, key, how }, parts)
    }
}

pub(super) static OPS: RmaOps<EndpointObject> = RmaOps {
    size: size_of::<RmaOps<EndpointObject>>(),
    read: read_one,
    readv: read_parts,
    readmsg: read_message,
    write: not_written,
    writev: not_written,
    writemsg: not_written,
    inject: not_written,
    writedata: not_written,
    injectdata: not_written,
};
