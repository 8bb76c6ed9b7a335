//! The receiving side of packet numbers: which arrived, and when to say so.

use zerocopy::byteorder::little_endian::{U16, U32, U64};

use crate::tables::append;
use crate::wire::{self, ACK_FLAG_NO_ROOM, AckFrame, AckRange, FRAME_ACK};

/// Ranges of received numbers that are remembered. Each gap is a loss that the peer does not yet
/// know we know of; with more, the oldest ones count as received, and their content comes again.
const RANGES_MAX: usize = 32;

/// Ranges in one frame: the newest are what the peer needs.
const FRAME_RANGES_MAX: usize = 16;

/// The longest that an acknowledgement waits for a packet to ride on. A reply from memory or flash
/// comes sooner and carries it.
pub(crate) const ACK_DELAY_NS: u64 = 1_000_000;

/// After so many packets, or so many bytes, it waits no longer: the peer's window must move.
const ACK_PACKETS: u32 = 32;
const ACK_BYTES: u64 = 256 << 10;

/// Numbers beyond this are no honest peer's: 2^62 packets take ten thousand years.
pub(crate) const NUMBER_MAX: u64 = 1 << 62;

/// Whether the packet with this number was received before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freshness {
    Fresh,
    /// It was received.
    Duplicate,
    /// It may have been received: the record of it is gone.
    Old,
}

/// A packet's wish for an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AckWish {
    /// Nothing: it carries nothing but an acknowledgement.
    None,
    /// An acknowledgement, some time soon.
    Soon,
    /// One that waits for nothing: the sender's window is full.
    AtOnce,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AckSpan {
    first: u64,
    last: u64,
}

/// The numbers received in one session.
#[derive(Debug)]
pub(crate) struct Received {
    /// Disjoint, not touching, ascending.
    spans: Vec<AckSpan>,
    /// Smaller numbers are forgotten.
    floor: u64,
    largest_at_ns: u64,
    /// Packets and bytes that want an acknowledgement and had none.
    waiting_packets: u32,
    waiting_bytes: u64,
    /// When it has to be sent by itself; `u64::MAX` when nothing waits.
    due_ns: u64,
    /// When a packet was last refused for lack of a buffer.
    refused_ns: Option<u64>,
}

/// For so long after a refusal, acknowledgements say that there is no room: one may be lost, and
/// the sender asks again within that time.
const NO_ROOM_NS: u64 = 250_000_000;

impl Received {
    pub(crate) fn new() -> Self {
        Self {
            spans: Vec::new(),
            floor: 0,
            largest_at_ns: 0,
            waiting_packets: 0,
            waiting_bytes: 0,
            due_ns: u64::MAX,
            refused_ns: None,
        }
    }

    pub(crate) fn state_bytes(&self) -> usize {
        self.spans.capacity() * size_of::<AckSpan>()
    }

    /// A packet was not taken, for lack of a buffer.
    pub(crate) fn refused(&mut self, now_ns: u64) {
        self.refused_ns = Some(now_ns);
    }

    pub(crate) fn freshness(&self, number: u64) -> Freshness {
        if number < self.floor {
            return Freshness::Old;
        }
        for span in self.spans.iter().rev() {
            if number > span.last {
                return Freshness::Fresh;
            }
            if number >= span.first {
                return Freshness::Duplicate;
            }
        }
        Freshness::Fresh
    }

    /// Notes a fresh packet, and whether its sender waits for the acknowledgement.
    pub(crate) fn record(&mut self, now_ns: u64, number: u64, wish: AckWish, bytes: usize) {
        let in_order = match self.spans.last_mut() {
            Some(span) if number == span.last + 1 => {
                span.last = number;
                true
            }
            None => {
                append(&mut self.spans, AckSpan { first: number, last: number });
                number == 0
            }
            Some(_) => {
                self.insert(number);
                false
            }
        };
        if self.spans.last().is_some_and(|span| span.last == number) {
            self.largest_at_ns = now_ns;
        }
        if wish == AckWish::None {
            return;
        }
        self.waiting_packets += 1;
        self.waiting_bytes += bytes as u64;
        let is_due = wish == AckWish::AtOnce
            || !in_order
            || self.waiting_packets >= ACK_PACKETS
            || self.waiting_bytes >= ACK_BYTES;
        self.due_ns = self.due_ns.min(if is_due { now_ns } else { now_ns + ACK_DELAY_NS });
    }

    fn insert(&mut self, number: u64) {
        // As long as nothing is lost or overtaken there is one span, and no room for more.
        self.spans.reserve_exact(RANGES_MAX + 1 - self.spans.len());
        let at = self.spans.partition_point(|span| span.last < number);
        let joins_next = self.spans.get(at).is_some_and(|next| number + 1 == next.first);
        let joins_previous = at > 0 && self.spans[at - 1].last + 1 == number;
        match (joins_previous, joins_next) {
            (true, true) => {
                self.spans[at - 1].last = self.spans[at].last;
                self.spans.remove(at);
            }
            (true, false) => self.spans[at - 1].last = number,
            (false, true) => self.spans[at].first = number,
            (false, false) => self.spans.insert(at, AckSpan { first: number, last: number }),
        }
        if self.spans.len() > RANGES_MAX {
            self.floor = self.spans.remove(0).last + 1;
        }
    }

    /// When an acknowledgement must leave even alone; `u64::MAX` when none waits.
    pub(crate) fn due_ns(&self) -> u64 {
        self.due_ns
    }

    /// Whether there is something to acknowledge that was not, so that it rides on any packet.
    pub(crate) fn is_waiting(&self) -> bool {
        self.due_ns != u64::MAX
    }

    /// Appends an acknowledgement of at most `room` bytes at `*at`, and tells the largest number in
    /// it; `None` when there is no room.
    pub(crate) fn write(
        &mut self,
        now_ns: u64,
        head: &mut [u8],
        at: &mut usize,
        room: usize,
    ) -> Option<u64> {
        let ranges_room = room.checked_sub(size_of::<AckFrame>())? / size_of::<AckRange>();
        let newest = *self.spans.last()?;
        if ranges_room == 0 {
            return None;
        }
        let frame_at = *at;
        *at += size_of::<AckFrame>();
        let mut ranges = 0;
        let mut above = newest.last;
        for span in self.spans.iter().rev().take(ranges_room.min(FRAME_RANGES_MAX)) {
            let gap = if ranges == 0 { 0 } else { above - span.last - 1 };
            let (Ok(gap), Ok(length)) =
                (u32::try_from(gap), u32::try_from(span.last - span.first + 1))
            else {
                break;
            };
            wire::put(head, at, &AckRange { gap: U32::new(gap), length: U32::new(length) });
            above = span.first;
            ranges += 1;
        }
        if ranges == 0 {
            // A span of four thousand million packets: acknowledge its newest ones.
            wire::put(head, at, &AckRange { gap: U32::ZERO, length: U32::new(u32::MAX) });
            ranges = 1;
        }
        let lacks_room = self.refused_ns.is_some_and(|at_ns| now_ns < at_ns + NO_ROOM_NS);
        let delay_us = (now_ns.saturating_sub(self.largest_at_ns) / 1000).min(u32::MAX.into());
        let frame = AckFrame {
            kind: FRAME_ACK,
            ranges,
            flags: U16::new(if lacks_room { ACK_FLAG_NO_ROOM } else { 0 }),
            delay_us: U32::new(delay_us as u32),
            largest: U64::new(newest.last),
        };
        wire::put(head, &mut { frame_at }, &frame);
        self.waiting_packets = 0;
        self.waiting_bytes = 0;
        self.due_ns = u64::MAX;
        Some(newest.last)
    }

    /// The peer got an acknowledgement up to `largest`, so lower numbers need not be acknowledged
    /// again.
    pub(crate) fn forget_below(&mut self, largest: u64) {
        if largest <= self.floor {
            return;
        }
        self.floor = largest;
        let keep_from = self.spans.partition_point(|span| span.last < largest);
        self.spans.drain(..keep_from);
        if let Some(span) = self.spans.first_mut() {
            span.first = span.first.max(largest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use random::Random;

    fn written(received: &mut Received) -> (u64, Vec<(u32, u32)>) {
        let mut head = [0; 512];
        let mut at = 0;
        let largest = received.write(5_000, &mut head, &mut at, 512).expect("ranges");
        let mut bytes = &head[..at];
        let frame: &AckFrame = wire::take(&mut bytes).expect("frame");
        assert_eq!((frame.kind, frame.largest.get()), (FRAME_ACK, largest));
        let ranges = (0..frame.ranges)
            .map(|_| {
                let range: &AckRange = wire::take(&mut bytes).expect("range");
                (range.gap.get(), range.length.get())
            })
            .collect();
        assert!(bytes.is_empty());
        (largest, ranges)
    }

    #[test]
    fn ranges_are_written_newest_first() {
        let mut received = Received::new();
        for number in [0, 1, 2, 5, 6, 9] {
            assert_eq!(received.freshness(number), Freshness::Fresh);
            received.record(1_000, number, AckWish::Soon, 100);
        }
        assert_eq!(written(&mut received), (9, vec![(0, 1), (2, 2), (2, 3)]));
        assert!(!received.is_waiting());
        for number in [0, 2, 5, 9] {
            assert_eq!(received.freshness(number), Freshness::Duplicate);
        }
        received.forget_below(6);
        assert_eq!(received.freshness(4), Freshness::Old);
        assert_eq!(written(&mut received), (9, vec![(0, 1), (2, 1)]));
    }

    #[test]
    fn waits_in_order_and_hurries_when_something_is_missing() {
        let mut received = Received::new();
        received.record(1_000, 0, AckWish::Soon, 100);
        assert_eq!(received.due_ns(), 1_000 + ACK_DELAY_NS);
        received.record(2_000, 2, AckWish::Soon, 100);
        assert_eq!(received.due_ns(), 2_000);
        written(&mut received);
        received.record(3_000, 3, AckWish::None, 100);
        assert!(!received.is_waiting());
        for number in 4..4 + u64::from(ACK_PACKETS) {
            received.record(4_000, number, AckWish::Soon, 10);
        }
        assert_eq!(received.due_ns(), 4_000);
    }

    #[test]
    fn agrees_with_a_plain_set_and_stays_bounded() {
        let mut random = Random::new(7);
        for _ in 0..200 {
            let mut received = Received::new();
            let mut model = std::collections::BTreeSet::new();
            for _ in 0..300 {
                let number = random.draw() % 200;
                match received.freshness(number) {
                    Freshness::Fresh => {
                        assert!(model.insert(number));
                        received.record(0, number, AckWish::Soon, 1);
                    }
                    Freshness::Duplicate => assert!(model.contains(&number)),
                    Freshness::Old => assert!(number < received.floor),
                }
                assert!(received.spans.len() <= RANGES_MAX);
                if random.draw().is_multiple_of(50) {
                    received.forget_below(random.draw() % 200);
                }
            }
        }
    }

    #[test]
    fn numbers_at_the_end_do_no_harm() {
        let mut received = Received::new();
        received.record(0, 0, AckWish::Soon, 1);
        received.record(0, NUMBER_MAX - 1, AckWish::Soon, 1);
        assert_eq!(written(&mut received), (NUMBER_MAX - 1, vec![(0, 1)]));
    }
}
