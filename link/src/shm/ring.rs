//! One direction: datagrams from one process to another through a ring of bytes.
//!
//! ```text
//! control page:    0  head: u64, bytes ever put in; the producer's
//!                128  tail: u64, bytes ever taken out; the consumer's
//!                256  asleep: u32, 1 while the consumer wants to be woken
//! record:          0  length u32 (FILLER: the rest of the ring is empty), reserved u32
//!                  8  when it was put in, nanoseconds of the monotonic clock
//!                 16  the datagram, then padding to a multiple of 16
//! ```
//!
//! The other side may be hostile. A word that it writes is read once and checked, and a datagram is
//! copied out before it is used. At worst, the other side breaks this ring.

use std::mem::offset_of;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64, fence};

use super::region::{CONTROL_BYTES, RING_BYTES, ShmRegion};

/// Length of a record that stands for the unused end of the ring.
const FILLER: u32 = u32::MAX;

const RECORD_BYTES: usize = 16;

/// The largest datagram: as much as UDP takes, so that sessions need not care.
pub(super) const DATAGRAM_BYTES_MAX: usize = 65_507;

/// The words that both sides share beside the bytes; each is on cache lines of its own.
#[repr(C, align(128))]
struct RingControl {
    head: RingLine<AtomicU64>,
    tail: RingLine<AtomicU64>,
    asleep: RingLine<AtomicU32>,
}

#[repr(C, align(128))]
struct RingLine<T>(T);

const _: () = assert!(size_of::<RingControl>() <= CONTROL_BYTES);
const _: () =
    assert!(offset_of!(RingControl, tail) == 128 && offset_of!(RingControl, asleep) == 256);
const _: () = assert!(RING_BYTES.is_power_of_two() && RING_BYTES.is_multiple_of(RECORD_BYTES));

/// The other side has broken a rule of the ring; nothing more is done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken;

/// One end's view of a ring.
#[derive(Debug)]
struct RingView {
    start: NonNull<u8>,
    /// Keeps it mapped.
    _region: Arc<ShmRegion>,
}

// SAFETY: the memory is only accessed by atomics and by copies into and out of it, and stays mapped
// as long as the view lives.
unsafe impl Send for RingView {}

impl RingView {
    fn new(region: &Arc<ShmRegion>, index: usize) -> Self {
        Self { start: region.ring(index), _region: Arc::clone(region) }
    }

    fn control(&self) -> &RingControl {
        // SAFETY: the control page is at the start, page-aligned, mapped while `self` lives, and
        // all of `RingControl` is atomics, so that the other side's stores are allowed at any time.
        unsafe { self.start.cast::<RingControl>().as_ref() }
    }

    /// The place of byte number `at` of the stream; `len` bytes from there lie in the ring.
    fn bytes(&self, at: u64, len: usize) -> NonNull<u8> {
        let at = at as usize & (RING_BYTES - 1);
        assert!(len <= RING_BYTES - at, "a record does not reach around the end");
        // SAFETY: the ring's bytes follow the control page; checked above.
        unsafe { self.start.add(CONTROL_BYTES + at) }
    }

    /// Copies into the ring.
    fn put(&self, at: u64, bytes: &[u8]) {
        let place = self.bytes(at, bytes.len());
        // SAFETY: `place` has room for them (checked by `bytes`) in memory that no reference of
        // this program points to; `bytes` is private, so the two do not overlap. That the other
        // process may read meanwhile is what the memory is for; it only sees what it may see.
        unsafe { place.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
    }

    /// Copies out of the ring.
    fn take(&self, at: u64, bytes: &mut [u8]) {
        let (place, len) = (self.bytes(at, bytes.len()), bytes.len());
        // SAFETY: as in `put`, the other way. The other process may write meanwhile; then the copy
        // holds some mixture of bytes, each of which it could have written anyway.
        unsafe { place.copy_to_nonoverlapping(NonNull::from(bytes).cast(), len) };
    }
}

fn record_bytes(len: usize) -> u64 {
    (RECORD_BYTES + len).next_multiple_of(RECORD_BYTES) as u64
}

/// The end that puts datagrams in.
#[derive(Debug)]
pub(super) struct Producer {
    view: RingView,
    /// Put in, published or not; and published.
    head: u64,
    published: u64,
    /// The tail when it was last read.
    tail: u64,
}

impl Producer {
    pub(super) fn new(region: &Arc<ShmRegion>, index: usize) -> Self {
        Self { view: RingView::new(region, index), head: 0, published: 0, tail: 0 }
    }

    /// Puts a datagram in, in two parts. `Ok(false)`: there is no room.
    pub(super) fn push(&mut self, now_ns: u64, parts: [&[u8]; 2]) -> Result<bool, Broken> {
        let len = parts[0].len() + parts[1].len();
        assert!(len <= DATAGRAM_BYTES_MAX, "links say how long a datagram may be");
        let bytes = record_bytes(len);
        let to_end = RING_BYTES as u64 - (self.head & (RING_BYTES as u64 - 1));
        let filler = if to_end < bytes { to_end } else { 0 };
        if !self.has_room(filler + bytes)? {
            return Ok(false);
        }
        if filler > 0 {
            self.view.put(self.head, &FILLER.to_le_bytes());
            self.head += filler;
        }
        let mut record = [0; RECORD_BYTES];
        record[..4].copy_from_slice(&(len as u32).to_le_bytes());
        record[8..].copy_from_slice(&now_ns.to_le_bytes());
        self.view.put(self.head, &record);
        let at = self.head + RECORD_BYTES as u64;
        self.view.put(at, parts[0]);
        if !parts[1].is_empty() {
            self.view.put(at + parts[0].len() as u64, parts[1]);
        }
        self.head += bytes;
        Ok(true)
    }

    fn has_room(&mut self, bytes: u64) -> Result<bool, Broken> {
        let room = |tail: u64| RING_BYTES as u64 - (self.head - tail);
        if room(self.tail) >= bytes {
            return Ok(true);
        }
        let tail = self.view.control().tail.0.load(Acquire);
        // It only moves forward, and not past what was published.
        if tail < self.tail || tail > self.published {
            return Err(Broken);
        }
        self.tail = tail;
        Ok(room(tail) >= bytes)
    }

    /// Lets the other side see what was put in. `true`: it sleeps, and has to be woken.
    pub(super) fn publish(&mut self) -> bool {
        if self.head == self.published {
            return false;
        }
        self.published = self.head;
        let control = self.view.control();
        control.head.0.store(self.head, Release);
        // Either the consumer sees this head when it looks again after saying that it sleeps, or
        // its word is seen here.
        fence(SeqCst);
        control.asleep.0.load(Relaxed) == 1 && control.asleep.0.swap(0, SeqCst) == 1
    }
}

/// The end that takes datagrams out.
#[derive(Debug)]
pub(super) struct Consumer {
    view: RingView,
    head: u64,
    tail: u64,
    released: u64,
    /// The datagram that was last taken out.
    scratch: Box<[u8]>,
}

impl Consumer {
    pub(super) fn new(region: &Arc<ShmRegion>, index: usize) -> Self {
        let scratch = vec![0; DATAGRAM_BYTES_MAX].into();
        Self { view: RingView::new(region, index), head: 0, tail: 0, released: 0, scratch }
    }

    /// Takes the next datagram out: when it was put in, as its sender says, and its bytes.
    pub(super) fn pop(&mut self) -> Result<Option<(u64, &[u8])>, Broken> {
        loop {
            if self.tail == self.head && !self.look()? {
                return Ok(None);
            }
            let mut record = [0; RECORD_BYTES];
            self.view.take(self.tail, &mut record);
            let len = u32::from_le_bytes(record[..4].try_into().expect("four bytes"));
            let to_end = RING_BYTES as u64 - (self.tail & (RING_BYTES as u64 - 1));
            let there = self.head - self.tail;
            if len == FILLER {
                if to_end > there {
                    return Err(Broken);
                }
                self.tail += to_end;
                continue;
            }
            let len = len as usize;
            if len > DATAGRAM_BYTES_MAX || record_bytes(len) > there.min(to_end) {
                return Err(Broken);
            }
            self.view.take(self.tail + RECORD_BYTES as u64, &mut self.scratch[..len]);
            self.tail += record_bytes(len);
            let sent_ns = u64::from_le_bytes(record[8..].try_into().expect("eight bytes"));
            return Ok(Some((sent_ns, &self.scratch[..len])));
        }
    }

    /// Whether the producer has published more.
    fn look(&mut self) -> Result<bool, Broken> {
        let head = self.view.control().head.0.load(Acquire);
        let more = head.wrapping_sub(self.head);
        if !head.is_multiple_of(RECORD_BYTES as u64) || more > RING_BYTES as u64 {
            return Err(Broken);
        }
        self.head = head;
        Ok(more > 0)
    }

    /// Gives the room of what was taken out back to the producer.
    pub(super) fn release(&mut self) {
        if self.released != self.tail {
            self.released = self.tail;
            self.view.control().tail.0.store(self.tail, Release);
        }
    }

    /// Asks to be woken by what comes from now on. `false`: something is there already.
    pub(super) fn sleep(&mut self) -> bool {
        self.view.control().asleep.0.store(1, SeqCst);
        fence(SeqCst);
        self.tail == self.head && matches!(self.look(), Ok(false))
    }

    /// Does not want to be woken any more. `true`: the producer has taken the word, so that a
    /// signal is there or on its way.
    pub(super) fn wake(&mut self) -> bool {
        self.view.control().asleep.0.swap(0, SeqCst) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Producer, Consumer, Arc<ShmRegion>) {
        let region = Arc::new(ShmRegion::create().expect("memory").0);
        (Producer::new(&region, 0), Consumer::new(&region, 0), region)
    }

    #[test]
    fn datagrams_of_all_lengths_go_round_and_round() {
        let (mut producer, mut consumer, _region) = pair();
        let content: Vec<u8> = (0..DATAGRAM_BYTES_MAX).map(|at| (at * 7) as u8).collect();
        let mut len = 0;
        for round in 0..400 {
            let mut lengths = Vec::new();
            for _ in 0..16 {
                len = (len * 5 + 4_711) % (DATAGRAM_BYTES_MAX + 1);
                let parts = [&content[..len / 3], &content[len / 3..len]];
                assert!(producer.push(round, parts).expect("a sound ring"));
                lengths.push(len);
            }
            assert_eq!(consumer.pop(), Ok(None), "not published");
            producer.publish();
            for len in lengths {
                assert_eq!(consumer.pop(), Ok(Some((round, &content[..len]))));
            }
            assert_eq!(consumer.pop(), Ok(None));
            consumer.release();
        }
    }

    #[test]
    fn a_full_ring_says_so_and_goes_on() {
        let (mut producer, mut consumer, _region) = pair();
        let content = vec![7; 60_000];
        let fill = |producer: &mut Producer| {
            (0..).take_while(|_| producer.push(0, [&content, &[]]).expect("sound")).count()
        };
        let first = fill(&mut producer);
        assert_eq!(first, RING_BYTES / 60_016, "what fits, and no more");
        producer.publish();
        assert_eq!(fill(&mut producer), 0);
        assert!(consumer.pop().expect("sound").is_some());
        assert_eq!(fill(&mut producer), 0, "the room was not given back");
        while consumer.pop().expect("sound").is_some() {}
        consumer.release();
        // The end of the ring is too short for the next one: as many fit beside the filler.
        assert_eq!(fill(&mut producer), first);
        producer.publish();
        let taken = std::iter::from_fn(|| consumer.pop().expect("sound").map(|_| ())).count();
        assert_eq!(taken, first);
    }

    #[test]
    fn a_sleeper_is_woken_once_and_misses_nothing() {
        let (mut producer, mut consumer, _region) = pair();
        assert!(consumer.sleep());
        assert!(producer.push(0, [b"x", &[]]).expect("sound"));
        assert!(producer.publish(), "it sleeps");
        assert!(producer.push(0, [b"y", &[]]).expect("sound"));
        assert!(!producer.publish(), "the word is taken");
        assert!(consumer.wake(), "a signal is there");
        assert!(!consumer.sleep(), "something is there");
        assert!(!consumer.wake(), "and nobody was asked to signal");
        while consumer.pop().expect("sound").is_some() {}
        assert!(consumer.sleep());
        assert!(!consumer.wake());
    }

    #[test]
    fn a_hostile_peer_breaks_only_the_ring() {
        let word = |region: &Arc<ShmRegion>, at: usize, value: u64| {
            let view = RingView::new(region, 0);
            match at {
                0 => view.control().head.0.store(value, SeqCst),
                128 => view.control().tail.0.store(value, SeqCst),
                _ => view.put(at as u64 - CONTROL_BYTES as u64, &value.to_le_bytes()),
            }
        };
        // A head that is beyond the ring, odd, or behind.
        for head in [u64::MAX, RING_BYTES as u64 + 16, 8, 1] {
            let (_, mut consumer, region) = pair();
            word(&region, 0, head);
            assert_eq!(consumer.pop(), Err(Broken), "head {head}");
        }
        // Lengths beyond what is there, beyond a datagram, and a filler without a ring's end.
        for len in [17, 65_508, u32::MAX - 1, FILLER] {
            let (_, mut consumer, region) = pair();
            word(&region, CONTROL_BYTES, len.into());
            word(&region, 0, 32);
            assert_eq!(consumer.pop(), Err(Broken), "length {len}");
        }
        // A tail that runs ahead or back.
        for tails in [[u64::MAX, 0], [1 << 20, 0], [65_536, 16]] {
            let (mut producer, _, region) = pair();
            let content = vec![0; DATAGRAM_BYTES_MAX];
            let mut broken = false;
            for tail in tails {
                while producer.push(0, [&content, &[]]) == Ok(true) {
                    producer.publish();
                }
                word(&region, 128, tail);
                broken |= producer.push(0, [&content, &[]]) == Err(Broken);
            }
            assert!(broken, "tails {tails:?}");
        }
    }

    #[test]
    fn two_threads_agree() {
        let (mut producer, mut consumer, _region) = pair();
        let count = 200_000_u64;
        let sender = std::thread::spawn(move || {
            for number in 0..count {
                let content = number.to_le_bytes();
                while producer.push(number, [&content, &content[..number as usize % 9]]) != Ok(true)
                {
                    std::thread::yield_now();
                }
                producer.publish();
            }
        });
        let mut expected = 0;
        while expected < count {
            match consumer.pop().expect("sound") {
                Some((at, bytes)) => {
                    assert_eq!(at, expected);
                    assert_eq!(bytes.len(), 8 + expected as usize % 9);
                    assert_eq!(bytes[..8], expected.to_le_bytes());
                    expected += 1;
                }
                None => {
                    consumer.release();
                    std::thread::yield_now();
                }
            }
        }
        sender.join().expect("the sender");
    }
}
