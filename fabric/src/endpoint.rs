//! An endpoint: a process sends and receives by it.
//!
//! One thread at a time drives an endpoint. All that it shares with other endpoints is in the
//! region. Its own memory has what it knows of requests (messages that are offered, receives that
//! wait), and it checks against that what other endpoints write.
//!
//! ```text
//!  up to 216 bytes    in the cell                               copied in, copied out
//!  up to eager limit  in a buffer of the sender's slab          copied in, copied out
//!  longer             an offer in the cell; the receiver has    copied in, copied out,
//!                     it come in pieces through the slab        by both at once
//!                     or, to another host, up to 64 KiB: it
//!                     comes in pieces unasked
//!  megabytes          the same offer; the receiver reads the    copied once
//!                     sender's memory, if the kernel lets it
//! ```

mod arrivals;
mod backlog;
mod engine;
mod errors;
mod local_node;
mod offers;
mod options;
mod peers;
mod progress;
mod pushes;
mod receives;
mod remote;
mod sends;
mod sleep;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use self::engine::EndpointCounters;
use self::engine::Engine;
pub use self::engine::processes::EndpointProcess;
use self::engine::processes::Processes;
pub(crate) use self::engine::sleep::Barriers;
pub use self::errors::{EndpointError, ReceiveError, SendError};
pub use self::local_node::{LocalNode, NoDoorbell};
pub use self::options::{EndpointOptions, INJECT_BYTES_MAX};
pub use self::sleep::{DoorbellRequest, Doze};
use crate::Address;
use crate::cell::Local;
use crate::message::{Completion, MemoryPiece, Message, Peek, Receive, RequestContext};
use crate::parts::Given;
use crate::region::Region;
use crate::ring::Words;

/// How long an endpoint that is dropped waits for room for its last answers. A receiver that polls
/// makes room within microseconds, if it has a core.
const LAST_WORDS_TIME: Duration = Duration::from_millis(200);

/// How long an endpoint that is dropped waits for room for injected messages, as long as their
/// receivers live: for the program these messages are sent. An MPI job that ends waits for all its
/// ranks anyway, so the time is for a receiver that looks late and not for one that has stopped.
const LAST_SENDS_TIME: Duration = Duration::from_secs(2);

/// See the module. May be moved between threads, and is used by one at a time.
pub struct Endpoint {
    region: Arc<Region>,
    engine: Engine,
    at_end: Option<Box<dyn FnOnce() + Send>>,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("address", &self.address()).finish_non_exhaustive()
    }
}

impl Endpoint {
    /// An endpoint in a slot that the node has given to this process (`SlotTable::take_slot` of
    /// `fabric-node`), on the host of this name. A slot has one endpoint.
    ///
    /// # Errors
    /// When the region says that the slot is another endpoint's, or there is no randomness.
    pub fn new(
        region: Arc<Region>,
        slot: u16,
        incarnation: u32,
        host: u64,
        options: &EndpointOptions,
    ) -> Result<Self, EndpointError> {
        if !region.life(slot).is_some_and(|life| life.is_live(incarnation)) {
            return Err(EndpointError::Slot { slot });
        }
        let mut proof = [0; 8];
        rustix::rand::getrandom(&mut proof, rustix::rand::GetRandomFlags::empty())
            .map_err(EndpointError::Random)?;
        let me = Local { host: 0, slot, incarnation };
        // The former owner of the slot may have died asleep.
        region.ring(slot).set_asleep(0);
        let engine = Engine::new(&region, me, host, options, u64::from_le_bytes(proof));
        Ok(Self { region, engine, at_end: None })
    }

    /// Sets the node of this host. An endpoint without a node wakes no sleepers, and does not
    /// notice when the node goes.
    pub fn set_home(&mut self, home: Arc<dyn LocalNode>) {
        self.engine.set_home(home);
    }

    /// Sets an action for the drop of the endpoint, after its last store to the region.
    pub fn at_end(&mut self, then: Box<dyn FnOnce() + Send>) {
        self.at_end = Some(then);
    }

    /// Sets the function that says the process of another endpoint. An endpoint reads the memory of
    /// the process that it is told, so the answer must come from a source that can be trusted.
    /// Without such a function the endpoint reads no other process's memory.
    pub fn ask_processes(&mut self, ask: impl FnMut(u16, u32) -> EndpointProcess + Send + 'static) {
        self.engine.processes = Processes(Box::new(ask));
    }

    /// The bytes of this process that the tables of endpoints of other hosts take, and of those
    /// hosts. The tables have room for as many of each as the endpoint has ever met.
    pub fn remotes_bytes(&self) -> usize {
        self.engine.peers.remotes.held_bytes() + self.engine.hosts.held_bytes()
    }

    /// Whether sidecores of the node take part in its domain: for messages with other hosts.
    pub fn has_gateways(&self) -> bool {
        self.region.gateways() > 0
    }

    /// The address to which other endpoints send.
    pub fn address(&self) -> Address {
        self.engine.address_of(self.engine.me)
    }

    /// Sends a message: the parts one after the other. Returns before the message has arrived, and
    /// whether its receiver looks for messages or not. Messages to one receiver arrive in order.
    ///
    /// # Errors
    /// When it cannot be sent now ([`SendError::Busy`]), or not at all.
    ///
    /// # Safety
    /// The parts stay readable and unchanged until the completion; with `inject`, until this
    /// returns. Without a context they stay so until the receiver has the message, which only the
    /// program can know.
    pub unsafe fn send(
        &mut self,
        message: &Message,
        parts: &[MemoryPiece],
    ) -> Result<(), SendError> {
        // SAFETY: they are readable until this returns, and longer (the caller's word).
        let given = unsafe { Given::new(parts) }?;
        self.engine.send(&self.region, message, given)
    }

    /// The same for a message that is complete when a receive has met it, and has it.
    ///
    /// # Errors
    /// As [`Endpoint::send`].
    ///
    /// # Safety
    /// As for [`Endpoint::send`].
    pub unsafe fn send_until_matched(
        &mut self,
        message: &Message,
        parts: &[MemoryPiece],
    ) -> Result<(), SendError> {
        // SAFETY: they are readable until this returns, and longer (the caller's word).
        let given = unsafe { Given::new(parts) }?;
        self.engine.send_any(&self.region, message, given, true)
    }

    /// The bytes of this process that messages take which wait for room.
    pub fn waiting_bytes(&self) -> usize {
        self.engine.backlog.held_bytes()
    }

    /// Asks for a message, or for several; takes one that has come already.
    ///
    /// # Errors
    /// When the receive and its buffer do not fit each other.
    ///
    /// # Safety
    /// The parts stay writable until the completion, and nothing else accesses them. With
    /// `multi_min_bytes` the completion is [`crate::Done::Released`] or
    /// [`crate::RequestFailure::Cancelled`], or [`crate::RequestFailure::Gone`] where a source was
    /// named: failures of single messages before it are about these messages only.
    pub unsafe fn receive(
        &mut self,
        receive: &Receive,
        parts: &[MemoryPiece],
    ) -> Result<(), ReceiveError> {
        self.engine.receive(&self.region, receive, parts)
    }

    /// Looks for a message among those that have come (make progress before). The answer is a
    /// completion; [`crate::RequestFailure::NoMessage`] if there is none.
    pub fn peek(&mut self, peek: &Peek) {
        self.engine.peek(&self.region, peek);
    }

    /// Receives the message that was claimed by this context. The completion has the same context.
    ///
    /// # Errors
    /// When no message is claimed by this context, or the buffer does not fit.
    ///
    /// # Safety
    /// As for [`Endpoint::receive`].
    pub unsafe fn receive_claimed(
        &mut self,
        context: RequestContext,
        parts: &[MemoryPiece],
    ) -> Result<(), ReceiveError> {
        self.engine.receive_claimed(&self.region, context, parts)
    }

    /// Discards the message that was claimed by this context. `false`: there is none.
    pub fn discard_claimed(&mut self, context: RequestContext) -> bool {
        self.engine.discard_claimed(&self.region, context)
    }

    /// Cancels a receive that has met no message, or a message that waits for room; its completion
    /// says so. `false`: no request has this context.
    pub fn cancel(&mut self, context: RequestContext) -> bool {
        self.engine.cancel(context)
    }

    /// Moves a bounded number of messages. When there is nothing to do, it loads a line that is in
    /// the cache, stores nothing that is shared, and makes no system call.
    #[inline]
    pub fn progress(&mut self) {
        self.engine.progress(&self.region);
    }

    /// The next completion. The endpoint makes progress first when it has none.
    #[inline]
    pub fn completion(&mut self) -> Option<Completion> {
        if self.engine.completions.is_empty() {
            self.engine.progress(&self.region);
        }
        self.engine.completions.pop()
    }

    /// The next completion, without progress.
    #[inline]
    pub fn known_completion(&mut self) -> Option<Completion> {
        self.engine.completions.pop()
    }

    /// How many completions are known.
    #[inline]
    pub fn known_completions(&self) -> usize {
        self.engine.completions.len()
    }

    /// The counters since the endpoint began.
    pub fn counters(&self) -> &EndpointCounters {
        &self.engine.counters
    }
}

impl Drop for Endpoint {
    /// Sends injected messages that wait, if they find room soon. Then answers the last offers, if
    /// their senders have room soon: without the answer a sender would see this endpoint gone, and
    /// not know that its message was taken.
    fn drop(&mut self) {
        // In a child of its process the endpoint is the parent's, which goes on.
        if !self.region.is_here() {
            return;
        }
        self.engine.forget_uncopied();
        let end = Instant::now() + LAST_SENDS_TIME;
        while self.engine.backlog.receivers() > 0 && Instant::now() < end {
            // Progress does all work, since the receivers may wait for this endpoint as well.
            self.engine.progress(&self.region);
            std::thread::yield_now();
        }
        let end = Instant::now() + LAST_WORDS_TIME;
        while self.engine.answer_last(&self.region) && Instant::now() < end {
            std::thread::yield_now();
        }
        if let Some(then) = self.at_end.take() {
            then();
        }
    }
}
