//! The operations that calls begin: sends, receives, peeks and claims of messages, and reads. Each
//! needs the address vector of its endpoint, or a queue, and so the whole state.

use super::failure;
use super::remote::ReadArguments;
use super::traffic::{ReceiveArguments, SendArguments, class_flag, entry};
use super::unreported;
use crate::abi::{FI_ADDR_UNSPEC, FI_EINVAL, FI_ENOAV, FI_RECV};
use crate::cq::QueueEvent;
use crate::state::ProviderState;
use fabric::{Address, LookOutcome, MemoryPiece, Peek, Receive};
use std::ffi::c_int;

impl ProviderState {
    /// Begins to send.
    ///
    /// # Safety
    /// The parts stay readable until the message's completion. The parts of an injected message
    /// stay readable until this returns.
    pub(super) unsafe fn send(
        &mut self,
        endpoint: usize,
        message: SendArguments,
        parts: &[MemoryPiece],
    ) -> Result<(), c_int> {
        let traffic = self.endpoints.of(endpoint).ready()?;
        let vector = self.vectors.of(traffic.vector.ok_or(-FI_ENOAV)?);
        let to = vector.address(message.to).ok_or(-FI_EINVAL)?;
        // SAFETY: the caller's.
        unsafe { traffic.send(to, message, parts) }
    }

    /// The only sender whose messages a receive takes. `Ok(None)`: it takes those of all senders.
    fn source(
        &mut self,
        endpoint: usize,
        incoming: &ReceiveArguments,
    ) -> Result<Option<Address>, c_int> {
        let traffic = self.endpoints.of(endpoint).ready()?;
        if incoming.from == FI_ADDR_UNSPEC || !traffic.directed[incoming.class as usize] {
            return Ok(None);
        }
        let vector = self.vectors.of(traffic.vector.ok_or(-FI_ENOAV)?);
        vector.address(incoming.from).map(Some).ok_or(-FI_EINVAL)
    }

    /// Begins to receive one message, or, if `multi`, as many messages as there is room for.
    ///
    /// # Safety
    /// The parts stay writable until the completion, and nothing else accesses them.
    pub(super) unsafe fn receive(
        &mut self,
        endpoint: usize,
        incoming: ReceiveArguments,
        multi: bool,
        parts: &[MemoryPiece],
    ) -> Result<(), c_int> {
        let source = self.source(endpoint, &incoming)?;
        let traffic = self.endpoints.of(endpoint);
        let is_reported = traffic.receive.reports(incoming.flags.unwrap_or(traffic.receive.flags));
        let context = match is_reported {
            true => unreported::reported_context(incoming.context),
            false => traffic.unreported.add(incoming.context, multi),
        };
        let receive = Receive {
            class: incoming.class,
            source,
            tag: incoming.tag,
            ignore: incoming.ignore,
            context,
            multi_min_bytes: multi.then_some(traffic.multi_min_bytes),
        };
        // SAFETY: the caller's.
        let begun = unsafe { traffic.endpoint.receive(&receive, parts) };
        begun.map_err(|error| {
            traffic.unreported.forget(context);
            failure::not_received(&error)
        })
    }

    /// Looks for a message that has come. The result is a completion. A message that is found
    /// stays, or is kept for a claim, or is discarded.
    pub(super) fn peek(
        &mut self,
        endpoint: usize,
        incoming: ReceiveArguments,
        claim: bool,
        discard: bool,
    ) -> Result<(), c_int> {
        let source = self.source(endpoint, &incoming)?;
        let traffic = self.endpoints.of(endpoint);
        let context = unreported::reported_context(incoming.context);
        let ReceiveArguments { class, tag, ignore, .. } = incoming;
        // A message that is still in the ring is found as well.
        traffic.endpoint.progress();
        let found = match (claim, discard) {
            (_, true) => LookOutcome::Discarded,
            (true, false) => LookOutcome::Claimed,
            (false, false) => LookOutcome::Stays,
        };
        traffic.endpoint.peek(&Peek { class, source, tag, ignore, context, found });
        Ok(())
    }

    /// Receives, or discards, a message that a peek has kept.
    ///
    /// # Safety
    /// As for [`Self::receive`].
    pub(super) unsafe fn claim(
        &mut self,
        endpoint: usize,
        incoming: ReceiveArguments,
        discard: bool,
        parts: &[MemoryPiece],
    ) -> Result<(), c_int> {
        let traffic = self.endpoints.of(endpoint).ready()?;
        let context = unreported::reported_context(incoming.context);
        if !discard {
            // SAFETY: the caller's.
            let begun = unsafe { traffic.endpoint.receive_claimed(context, parts) };
            return begun.map_err(|error| failure::not_received(&error));
        }
        if !traffic.endpoint.discard_claimed(context) {
            return Err(-FI_EINVAL);
        }
        let Some(queue) = traffic.receive.queue else { return Ok(()) };
        let class = class_flag(incoming.class);
        let entry = entry(incoming.context, FI_RECV | class);
        self.queues.of(queue).push(QueueEvent { entry, source: None, failed: None });
        Ok(())
    }

    /// Begins to read memory of another endpoint's process.
    ///
    /// # Safety
    /// The parts stay writable until the completion, and nothing else accesses them.
    pub(super) unsafe fn read(
        &mut self,
        endpoint: usize,
        reading: ReadArguments,
        parts: &[MemoryPiece],
    ) -> Result<(), c_int> {
        let traffic = self.endpoints.of(endpoint).ready()?;
        let vector = self.vectors.of(traffic.vector.ok_or(-FI_ENOAV)?);
        let from = vector.address(reading.from).ok_or(-FI_EINVAL)?;
        // SAFETY: the caller's.
        unsafe { traffic.read(from, reading, parts) }
    }
}
