//! Operations that some member lacks, and how many of them a primary lets be under way.

use std::collections::BTreeMap;

use crate::message::{Counter, Op, SECTOR_BYTES, WIRE_BODY_MAX};

/// Operations of requests that some member lacks, with which a primary takes no more requests. A
/// volume has fewer requests under way unless a member is slow.
pub const FLIGHTS_MAX: usize = 4096;

/// Bytes of their content with which a primary takes no more requests: far more than a path between
/// two hosts of a rack holds. When a member that joins is admitted, the next write waits until the
/// member has all of them: over a path of 1 MB/s that is 8 s. The primary keeps the content of all
/// of them in memory, and so does each member that has not stored it.
pub const FLIGHT_BYTES_MAX: u64 = 8 << 20;

/// Operations under way that make members equal, with which no further content is fetched for them.
/// They have room of their own: neither they nor requests keep the other operations from going on.
pub const FILLS_MAX: usize = 512;

/// Bytes of their content with which none is fetched: twice what is under way to a node.
pub const FILL_BYTES_MAX: u64 = 16 << 20;

/// Operations of one purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct FlightTally {
    ops: usize,
    bytes: u64,
}

/// Operations that some member lacks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Flights<D> {
    ops: BTreeMap<Counter, Op<D>>,
    requests: FlightTally,
    fills: FlightTally,
    /// Since when there is no room for requests, and the oldest operation is the same.
    stuck_since_ns: Option<u64>,
}

impl<D> Default for Flights<D> {
    fn default() -> Self {
        Self {
            ops: BTreeMap::new(),
            requests: FlightTally::default(),
            fills: FlightTally::default(),
            stuck_since_ns: None,
        }
    }
}

impl<D> Flights<D> {
    pub(crate) fn insert(&mut self, counter: Counter, op: Op<D>) {
        let bytes = content_bytes_max(&op);
        let tally = self.tally(&op);
        tally.ops += 1;
        tally.bytes += bytes;
        self.ops.insert(counter, op);
    }

    fn tally(&mut self, op: &Op<D>) -> &mut FlightTally {
        match op {
            Op::Fill { .. } | Op::Equal { .. } | Op::Applied { .. } => &mut self.fills,
            _ => &mut self.requests,
        }
    }

    /// All members that are sent operations have those up to here.
    pub(crate) fn all_have(&mut self, now_ns: u64, sent: Counter) {
        let mut moved = false;
        while let Some(first) = self.ops.first_entry().filter(|first| *first.key() <= sent) {
            let op = first.remove();
            let bytes = content_bytes_max(&op);
            let tally = self.tally(&op);
            tally.ops -= 1;
            tally.bytes -= bytes;
            moved = true;
        }
        let since_ns = self.stuck_since_ns.filter(|_| !moved).unwrap_or(now_ns);
        self.stuck_since_ns = (!self.has_room()).then_some(since_ns);
    }

    /// Those behind an operation, in their order.
    pub(crate) fn behind(&self, counter: Counter) -> impl Iterator<Item = (Counter, &Op<D>)> {
        self.ops.range(counter + 1..).map(|(counter, op)| (*counter, op))
    }

    /// Whether a request may be taken.
    pub(crate) fn has_room(&self) -> bool {
        self.requests.ops < FLIGHTS_MAX && self.requests.bytes < FLIGHT_BYTES_MAX
    }

    /// Whether content may be sent that makes members equal.
    pub(crate) fn has_room_to_fill(&self) -> bool {
        self.fills.ops < FILLS_MAX && self.fills.bytes < FILL_BYTES_MAX
    }

    /// Whether so much is under way that a request is not taken that was on its way already when
    /// the room was used up.
    pub(crate) fn is_over(&self) -> bool {
        self.requests.ops >= 2 * FLIGHTS_MAX || self.requests.bytes >= 2 * FLIGHT_BYTES_MAX
    }

    /// Whether a member that has the operations up to `held` has kept requests waiting for so long
    /// without storing one operation.
    pub(crate) fn are_stuck(&self, now_ns: u64, held: Counter, for_ns: u64) -> bool {
        let lacks_first = self.ops.first_key_value().is_some_and(|(first, _)| held < *first);
        lacks_first && self.stuck_since_ns.is_some_and(|since_ns| now_ns >= since_ns + for_ns)
    }

    pub(crate) fn age(&mut self, by_ns: u64) {
        self.stuck_since_ns = self.stuck_since_ns.map(|since_ns| since_ns.saturating_sub(by_ns));
    }
}

/// Bytes of an operation's content, at most. Zeroes have none, and are counted as if they had: the
/// protocol does not look into content.
fn content_bytes_max<D>(op: &Op<D>) -> u64 {
    match op {
        Op::Write { extent, .. } | Op::Fill { extent, .. } | Op::Equal { extent, .. } => {
            (u64::from(extent.sectors()) * SECTOR_BYTES).min(WIRE_BODY_MAX as u64)
        }
        Op::Applied { .. } => WIRE_BODY_MAX as u64,
        Op::Note { note, .. } => note.len() as u64,
        Op::Flush { .. } | Op::Cut | Op::Nothing | Op::Forget(_) | Op::Snapshot { .. } => 0,
    }
}
