//! The messages that wait on their sender's side, in order for each receiver.

use std::collections::{HashMap, VecDeque};

use crate::cell::Local;
use crate::message::Message;
use crate::parts::{BadParts, Given, MessageParts};
use crate::region::Region;

/// The memory of an entry: its list doubles when it grows, so half of it may be empty.
const ENTRY_BYTES: usize = 2 * size_of::<WaitingMessage>();

/// No slot is as high, so no message goes the short way.
const BARRED: u32 = u32::MAX;

/// A message that waits for room.
#[derive(Debug)]
pub(crate) struct WaitingMessage {
    pub(crate) message: Message,
    pub(crate) is_matched: bool,
    /// Its memory: the program's, or all of the copy.
    pub(crate) parts: MessageParts,
    pub(crate) copy: Option<Vec<u8>>,
}

impl WaitingMessage {
    /// The memory that this message takes while it waits.
    pub(crate) fn held_bytes(&self) -> usize {
        ENTRY_BYTES + self.parts.held_bytes() + self.copy.as_ref().map_or(0, Vec::capacity)
    }
}

/// All messages that wait.
#[derive(Debug)]
pub(crate) struct Backlog {
    /// Receivers, each with the messages that wait for it, the oldest first; at least one message.
    pub(crate) lines: HashMap<Local, VecDeque<WaitingMessage>>,
    /// The same receivers, in turn.
    pub(crate) turns: VecDeque<Local>,
    /// The memory that all messages take, and may take.
    bytes: usize,
    bytes_max: usize,
    gateways: u16,
    short_from: u32,
}

impl Backlog {
    pub(crate) fn new(region: &Region, bytes_max: usize) -> Self {
        let gateways = region.gateways();
        Self {
            lines: HashMap::new(),
            turns: VecDeque::new(),
            bytes: 0,
            bytes_max,
            gateways,
            short_from: gateways.into(),
        }
    }

    /// The first slot of this host to which a message goes the short way; no slot while a message
    /// waits for any receiver.
    #[inline(always)]
    pub(crate) fn short_from(&self) -> u32 {
        self.short_from
    }

    /// How many receivers messages wait for.
    #[inline(always)]
    pub(crate) fn receivers(&self) -> usize {
        self.turns.len()
    }

    pub(crate) fn waits_for(&self, to: Local) -> bool {
        self.lines.contains_key(&to)
    }

    /// The memory that all messages take.
    pub(crate) fn held_bytes(&self) -> usize {
        self.bytes
    }

    /// Whether a message with a copy of so many bytes can wait.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        let needed = self.bytes.saturating_add(bytes).saturating_add(ENTRY_BYTES);
        needed <= self.bytes_max
    }

    /// Keeps a message behind those that wait for the same receiver. `false`: there is no room.
    pub(crate) fn keep(
        &mut self,
        to: Local,
        message: &Message,
        given: Given<'_>,
        is_matched: bool,
    ) -> Result<bool, BadParts> {
        let copied = if message.inject { given.bytes() } else { 0 };
        if !self.has_room(copied) {
            return Ok(false);
        }
        let copy = message.inject.then(|| given.copied());
        let parts = match &copy {
            Some(copy) => MessageParts::of_copy(copy),
            None => MessageParts::new(given.as_slice())?,
        };
        let waiting = WaitingMessage { message: *message, is_matched, parts, copy };
        self.bytes += waiting.held_bytes();
        let line = self.lines.entry(to).or_insert_with(|| {
            self.turns.push_back(to);
            VecDeque::new()
        });
        line.push_back(waiting);
        self.short_from = BARRED;
        Ok(true)
    }

    /// Takes a receiver's line out; it must be put back.
    pub(crate) fn take(&mut self, to: Local) -> Option<VecDeque<WaitingMessage>> {
        self.lines.get_mut(&to).map(std::mem::take)
    }

    /// Puts a line back. Messages were taken from it that have held so many bytes.
    pub(crate) fn put_back(&mut self, to: Local, line: VecDeque<WaitingMessage>, bytes: usize) {
        self.bytes -= bytes;
        if !line.is_empty() {
            self.lines.insert(to, line);
            return;
        }
        self.lines.remove(&to);
        self.turns.retain(|other| *other != to);
        if self.turns.is_empty() {
            self.short_from = self.gateways.into();
        }
    }

    /// The next receiver's turn.
    pub(crate) fn next(&mut self) -> Option<Local> {
        let next = *self.turns.front()?;
        self.turns.rotate_left(1);
        Some(next)
    }
}
