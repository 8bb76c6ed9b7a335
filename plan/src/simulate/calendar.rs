//! The queue of events: a ring of buckets, each of a short span of time, a ring of wider spans
//! behind it, and a heap for all that lies beyond both.
//!
//! ```text
//!   taken ─▶ │ sorted │ bucket │ bucket │ ...      │ span │ span │ ...      heap
//! ```
//!
//! Most events lie a few microseconds ahead, so a push is an append, and a bucket is sorted once,
//! when its time has come. A heap alone has log(n) cache misses for each event of some 65,000
//! pending ones, and so has one ring that spans the time between two requests of a guest: all its
//! buckets are gone through before the first of them is used again.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Buckets of the near ring, a power of two: a processor's cache holds them, and most steps of a
/// request end within them.
const BUCKETS: u64 = 1 << 12;
/// Spans of the wide ring, each as long as the near one: most guests' next requests are in them.
const SPANS: u64 = 1 << 8;
/// The most events that a bucket holds if they come at the expected rate: few to sort.
const EVENTS_PER_BUCKET: u64 = 16;
/// The widest bucket, as a power of two of nanoseconds: 16 ms.
const SHIFT_MAX: u32 = 24;

/// An event: its time, and the number of its owner. An owner has one pending event at most at a
/// time, so the order of events is total, and does not depend on the order of pushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Event {
    /// Its time in nanoseconds.
    pub time_ns: u64,
    /// Its owner.
    pub owner: u32,
}

/// Pending events in the order of time.
#[derive(Debug)]
pub struct Calendar {
    shift: u32,
    /// The number of the bucket that is being taken.
    current: u64,
    /// Its events, the next one last.
    sorted: Vec<Event>,
    /// Further buckets of the present span.
    near: Vec<Vec<Event>>,
    in_near: usize,
    /// Further spans.
    wide: Vec<Vec<Event>>,
    in_wide: usize,
    far: BinaryHeap<Reverse<Event>>,
}

impl Calendar {
    /// A queue for so many events a second.
    pub fn new(events_per_second: u64) -> Self {
        let width_ns = EVENTS_PER_BUCKET * 1_000_000_000 / events_per_second.max(1);
        Self {
            shift: width_ns.max(1).ilog2().min(SHIFT_MAX),
            current: 0,
            sorted: Vec::new(),
            near: vec![Vec::new(); BUCKETS as usize],
            in_near: 0,
            wide: vec![Vec::new(); SPANS as usize],
            in_wide: 0,
            far: BinaryHeap::new(),
        }
    }

    /// Adds an event, which is not before the last that was taken.
    #[inline]
    pub fn push(&mut self, event: Event) {
        let bucket = event.time_ns >> self.shift;
        if bucket <= self.current {
            let at = self.sorted.partition_point(|later| *later > event);
            self.sorted.insert(at, event);
        } else {
            self.put(event, bucket);
        }
    }

    /// Adds an event behind the current bucket, or to the current one before it is sorted.
    #[inline]
    fn put(&mut self, event: Event, bucket: u64) {
        let spans = bucket / BUCKETS - self.current / BUCKETS;
        if spans == 0 {
            self.near[(bucket % BUCKETS) as usize].push(event);
            self.in_near += 1;
        } else if spans < SPANS {
            self.wide[(bucket / BUCKETS % SPANS) as usize].push(event);
            self.in_wide += 1;
        } else {
            self.far.push(Reverse(event));
        }
    }

    /// Takes the next event.
    #[inline]
    pub fn pop(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.sorted.pop() {
                return Some(event);
            }
            self.advance()?;
        }
    }

    /// Goes on to the next bucket that may have events; none if no event is left.
    fn advance(&mut self) -> Option<()> {
        if self.in_near > 0 {
            // The span has such a bucket, so the next one is in it.
            self.current += 1;
        } else {
            self.next_span()?;
        }
        let place = (self.current % BUCKETS) as usize;
        self.in_near -= self.near[place].len();
        std::mem::swap(&mut self.sorted, &mut self.near[place]);
        self.sorted.sort_unstable_by(|one, other| other.cmp(one));
        Some(())
    }

    /// Goes to the start of the next span that has events, and spreads its events over its buckets.
    fn next_span(&mut self) -> Option<()> {
        let span = self.current / BUCKETS;
        let next = if self.in_wide > 0 {
            let mut ahead = span + 1..span + SPANS;
            ahead.find(|span| !self.wide[(span % SPANS) as usize].is_empty())?
        } else {
            (self.far.peek()?.0.time_ns >> self.shift) / BUCKETS
        };
        self.current = next * BUCKETS;
        let mut events = std::mem::take(&mut self.wide[(next % SPANS) as usize]);
        self.in_wide -= events.len();
        for event in events.drain(..) {
            self.put(event, event.time_ns >> self.shift);
        }
        // Its memory serves a later span.
        self.wide[(next % SPANS) as usize] = events;
        // Far events come into a ring as soon as one reaches them.
        while let Some(Reverse(event)) = self.far.peek().copied() {
            let bucket = event.time_ns >> self.shift;
            if bucket / BUCKETS - next >= SPANS {
                break;
            }
            self.far.pop();
            self.put(event, bucket);
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use random::Random;

    use super::*;

    /// The last bucket of all is as any other.
    #[test]
    fn the_end_of_all_numbers_is_no_end_of_the_queue() {
        let mut calendar = Calendar::new(u64::MAX);
        let events = [u64::MAX, u64::MAX - 1, 7].map(|time_ns| Event { time_ns, owner: 1 });
        events.into_iter().for_each(|event| calendar.push(event));
        let taken = [calendar.pop(), calendar.pop(), calendar.pop(), calendar.pop()];
        assert_eq!(taken, [Some(events[2]), Some(events[1]), Some(events[0]), None]);
    }

    /// A heap is the oracle, with steps from a nanosecond to minutes.
    #[test]
    fn events_come_in_the_order_of_a_heap() {
        for seed in 0..8 {
            let mut random = Random::new(seed);
            let mut calendar = Calendar::new(1 << random.below(30));
            let mut heap = BinaryHeap::new();
            let mut now = 0;
            let mut owner = 0;
            for _ in 0..20_000 {
                for _ in 0..random.below(3) {
                    let ahead = random.draw() >> random.between(26, 63);
                    let event = Event { time_ns: now + ahead, owner };
                    owner += 1;
                    calendar.push(event);
                    heap.push(Reverse(event));
                }
                let expected = heap.pop().map(|Reverse(event)| event);
                assert_eq!(calendar.pop(), expected, "seed {seed}");
                now = expected.map_or(now, |event| event.time_ns);
            }
        }
    }
}
