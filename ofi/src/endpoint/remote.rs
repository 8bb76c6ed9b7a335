//! Reads of registered memory of other processes (`fi_read`), made of messages: the reader asks,
//! and the other one's next call that makes progress sends what was asked for, as it sends any
//! message. So memory is read only as long as its process says by registering it.
//!
//! They are in the space of untagged messages, whose own have tag zero and meet nothing else.
//! `FI_RMA` is not offered by name: there are no writes. Intel MPI reads all the same, and MPICH if
//! it is told to.

use super::failure;
use super::quiet::MessageRole;
use super::traffic::{EndedOperation, Sending, Traffic};
use crate::abi::{CqEntry, FI_EINVAL, FI_READ, FI_RMA};
use crate::cq::{Failed, QueueEvent};
use crate::mr::Memories;
use fabric::{Address, Class, Completion, Done, MemoryPiece, Message, Receive, SendError};
use std::collections::VecDeque;
use std::ffi::c_int;

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
    pub(super) from: u64,
    pub(super) address: u64,
    pub(super) key: u64,
    pub(super) how: Sending,
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

    /// Goes on after a message of ours has ended.
    #[cold]
    pub(crate) fn see_to(&mut self, memory: &mut Memories) {
        // The memory of answers that have ended may be closed.
        let answered = self.remote.answered.drain(..);
        answered.for_each(|key| memory.let_go(key));
        self.answer(memory);
    }

    /// Answers questions, as long as there is room for answers.
    #[cold]
    pub(crate) fn answer(&mut self, memory: &mut Memories) {
        while let Some(&(place, to)) = self.remote.asked.front() {
            let Some(&[key, address, bytes, number]) = self.remote.questions.get(place) else {
                return;
            };
            let found = memory.find(key, address, bytes);
            let held = found.is_some().then_some(key);
            let data = if held.is_some() { HERE } else { REFUSED };
            let role = MessageRole::Answer { key: held };
            let context = self.quiet.add_ours(role, 0);
            let (class, tag) = (Class::Untagged, ANSWER | number);
            let (data, inject) = (Some(data), false);
            let message = Message { to, class, tag, data, context: Some(context), inject };
            // SAFETY: who registers memory keeps it until that is closed, which is refused as long
            // as an answer has not ended (`hold`).
            let sent = unsafe { self.endpoint.send(&message, &found.unwrap_or_default()) };
            match sent {
                Ok(()) => held.into_iter().for_each(|key| memory.hold(key)),
                Err(error) => {
                    self.quiet.forget(context);
                    if error == SendError::Busy {
                        return;
                    }
                    // The reader is gone.
                }
            }
            self.remote.asked.pop_front();
            self.hear(place);
        }
    }

    /// Begins to read.
    ///
    /// # Safety
    /// The parts stay writable, and nobody's but ours, until the completion.
    pub(super) unsafe fn read(
        &mut self,
        from: Address,
        reading: RemoteReading,
        parts: &[MemoryPiece],
    ) -> Result<(), c_int> {
        let RemoteReading { address, key, how, .. } = reading;
        let (context, flags) = match how {
            Sending::By { context, flags } => (context, flags),
            Sending::Plainly(context) => (context, self.send.flags),
            Sending::Injected => return Err(-FI_EINVAL),
        };
        let bytes: usize = parts.iter().map(|part| part.bytes).sum();
        self.remote.count += 1;
        let number = self.remote.count % ANSWER;
        let mut question: ReadQuestion = [key, address, bytes as u64, number];
        let asked =
            [MemoryPiece { start: question.as_mut_ptr().cast(), bytes: size_of::<ReadQuestion>() }];
        let (class, data, inject) = (Class::Untagged, None, true);
        let message = Message { to: from, class, tag: QUESTION, data, context: None, inject };
        // SAFETY: it is ours, and injected.
        unsafe { self.endpoint.send(&message, &asked) }
            .map_err(|error| failure::not_sent(&error))?;
        // Only now, since nobody can answer within this call, and it could not be undone.
        let told = self.send.tells(flags);
        let context = self.quiet.add_ours(MessageRole::Read { told, bytes }, context);
        let (source, tag) = (Some(from), ANSWER | number);
        let receive = Receive { class, source, tag, ignore: 0, context, multi_min_bytes: None };
        // SAFETY: the caller's.
        unsafe { self.endpoint.receive(&receive, parts) }.map_err(|error| {
            self.quiet.forget(context);
            failure::not_received(&error)
        })
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
