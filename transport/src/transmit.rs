//! The outgoing datagrams: a batch that a link sends with one system call.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;

use zerocopy::IntoBytes;

use crate::pool::{BufId, Pool};
use crate::seal::Sealer;
use crate::wire::TAG_BYTES;
use crate::wire::{DATAGRAM_BYTES_MAX, Label, SEALED_HEADER_BYTES, guard, sealed_header};

/// Room for the packet header, its frames and the heads of the messages in it. Eight calls of the
/// usual size fit, and one packet carries no more.
pub const DATAGRAM_HEAD_MAX: usize = 1024;

/// Room for sealed and filled-up datagrams that wait: some hundred over jumbo frames, and small
/// enough to stay in a core's cache between sealing and sending. A batch without room sends first.
const ARENA_BYTES: usize = 1 << 20;

/// One datagram of a batch: on the wire, `head()` followed by `body()`.
#[derive(Clone, Copy)]
pub struct Datagram<'a> {
    slot: &'a DatagramSlot,
    arena: &'a [u8],
}

impl<'a> Datagram<'a> {
    /// Where it goes.
    pub fn to(&self) -> SocketAddr {
        self.slot.to
    }

    /// The first part: header, frames and message heads; all of a sealed or filled-up one.
    pub fn head(&self) -> &'a [u8] {
        match &self.slot.stored {
            Some(range) => &self.arena[range.clone()],
            None => &self.slot.head[..self.slot.head_bytes],
        }
    }

    /// The second part, in the endpoint's pool; empty for most small datagrams.
    pub fn body(&self, pool: &'a Pool) -> &'a [u8] {
        match &self.slot.body {
            Some((id, range)) => &pool.bytes(*id)[range.clone()],
            None => &[],
        }
    }

    /// Its length on the wire, both parts, without UDP's and IP's headers.
    pub fn len_bytes(&self) -> usize {
        let body_bytes = self.slot.body.as_ref().map_or(0, |(_, range)| range.len());
        self.slot.stored.as_ref().map_or(self.slot.head_bytes, Range::len) + body_bytes
    }
}

impl fmt::Debug for Datagram<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Datagram")
            .field("to", &self.slot.to)
            .field("len_bytes", &self.len_bytes())
            .finish()
    }
}

/// The storage of one datagram. A sealed or filled-up one is put together in `head` and then lies
/// in the arena.
pub(crate) struct DatagramSlot {
    to: SocketAddr,
    pub(crate) head: [u8; DATAGRAM_HEAD_MAX],
    pub(crate) head_bytes: usize,
    pub(crate) body: Option<(BufId, Range<usize>)>,
    stored: Option<Range<usize>>,
}

impl DatagramSlot {
    fn empty() -> Self {
        Self {
            to: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            head: [0; DATAGRAM_HEAD_MAX],
            head_bytes: 0,
            body: None,
            stored: None,
        }
    }
}

/// Datagrams on their way from an endpoint to a link, in order. The storage is made once; that for
/// sealed and filled-up ones when the first one is.
///
/// A datagram holds a reference to its body's buffer until [`consume`](Self::consume)d; the
/// endpoint drops that reference when the batch is next filled.
pub struct TransmitBatch {
    /// All of them are made at the start; `first..end` are pending.
    slots: Vec<DatagramSlot>,
    first: usize,
    end: usize,
    /// Bodies of consumed datagrams, which the endpoint still has to release.
    finished: Vec<BufId>,
    arena: Arena,
}

impl TransmitBatch {
    /// A batch for `capacity` datagrams (at least one).
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity.max(1);
        Self {
            slots: (0..capacity).map(|_| DatagramSlot::empty()).collect(),
            first: 0,
            end: 0,
            finished: Vec::with_capacity(capacity),
            arena: Arena::default(),
        }
    }

    /// The datagrams that wait to be sent, oldest first.
    pub fn datagrams(&self) -> impl ExactSizeIterator<Item = Datagram<'_>> + DoubleEndedIterator {
        let arena = &self.arena.bytes[..];
        self.slots[self.first..self.end].iter().map(move |slot| Datagram { slot, arena })
    }

    /// The datagram number `index` of those that wait, which must be there.
    pub fn datagram(&self, index: usize) -> Datagram<'_> {
        Datagram { slot: &self.slots[self.first..self.end][index], arena: &self.arena.bytes }
    }

    /// Removes the first `count` datagrams: they were sent, or given up.
    pub fn consume(&mut self, count: usize) {
        assert!(count <= self.len(), "{count} of {} datagrams", self.len());
        for slot in &mut self.slots[self.first..self.first + count] {
            if let Some((id, _)) = slot.body.take() {
                self.finished.push(id);
            }
            if let Some(range) = slot.stored.take() {
                self.arena.give_back(&range);
            }
        }
        self.first += count;
        if self.first == self.end {
            self.first = 0;
            self.end = 0;
        }
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.end - self.first
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.first == self.end
    }

    /// How many fit in all.
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Whether the endpoint can add nothing before some are consumed.
    pub fn is_full(&self) -> bool {
        self.len() == self.capacity() || self.arena.place_for(DATAGRAM_BYTES_MAX).is_none()
    }

    /// Adds a datagram without a session, for a caller that measures a link by itself: `head`, then
    /// the first so many bytes of a buffer of `pool`, to which the batch takes a reference of its
    /// own.
    ///
    /// # Panics
    /// With a head of more than [`DATAGRAM_HEAD_MAX`] bytes, or when the batch is full.
    pub fn put(
        &mut self,
        pool: &mut Pool,
        to: SocketAddr,
        head: &[u8],
        body: Option<(BufId, usize)>,
    ) {
        self.prepare(pool);
        let slot = self.next(to);
        slot.head[..head.len()].copy_from_slice(head);
        slot.head_bytes = head.len();
        slot.body = body.map(|(id, len_bytes)| (id, 0..len_bytes));
        if let Some((id, _)) = body {
            pool.retain(id);
        }
    }

    /// Drops the references of consumed datagrams and moves the pending ones to the front.
    pub(crate) fn prepare(&mut self, pool: &mut Pool) {
        while let Some(id) = self.finished.pop() {
            pool.release(id);
        }
        if self.first > 0 {
            self.slots[..self.end].rotate_left(self.first);
            self.end -= self.first;
            self.first = 0;
        }
    }

    /// Adds a datagram to `to`, whose head and body the caller fills in. The reference to the
    /// body's buffer becomes the batch's.
    pub(crate) fn next(&mut self, to: SocketAddr) -> &mut DatagramSlot {
        assert!(self.end < self.slots.len(), "the batch is full");
        let slot = &mut self.slots[self.end];
        self.end += 1;
        slot.to = to;
        slot.head_bytes = 0;
        slot.body = None;
        slot.stored = None;
        slot
    }

    /// The datagram that was added last.
    pub(crate) fn last(&mut self) -> &mut DatagramSlot {
        &mut self.slots[self.end - 1]
    }

    /// Seals the datagram that was added last: its frames are in its head, behind the room for the
    /// header, up to `frames_end`. Says how long it is.
    pub(crate) fn seal_last(
        &mut self,
        sealer: &mut Sealer,
        label: Label,
        frames_end: usize,
        payload: &[u8],
    ) -> usize {
        let slot = &mut self.slots[self.end - 1];
        let frames = &slot.head[SEALED_HEADER_BYTES..frames_end];
        let len_bytes = frames_end + payload.len() + TAG_BYTES;
        let range = self.arena.take(len_bytes);
        seal_into(&mut self.arena.bytes[range.clone()], sealer, label, payload, frames);
        slot.stored = Some(range);
        len_bytes
    }

    /// Fills the datagram that was added last, a handshake packet without a payload, up to
    /// `len_bytes` with zeros, which are its payload then. Says how long it is.
    pub(crate) fn pad_last(&mut self, label: Label, len_bytes: usize) -> usize {
        let slot = &mut self.slots[self.end - 1];
        let head_bytes = slot.head_bytes;
        if len_bytes <= head_bytes {
            return head_bytes;
        }
        let range = self.arena.take(len_bytes);
        let (head, zeros) = self.arena.bytes[range.clone()].split_at_mut(head_bytes);
        head.copy_from_slice(&slot.head[..head_bytes]);
        zeros.fill(0);
        guard(head, head_bytes, label, zeros);
        slot.stored = Some(range);
        len_bytes
    }
}

/// Writes a sealed packet into `out`, which has its length.
pub(crate) fn seal_into(
    out: &mut [u8],
    sealer: &mut Sealer,
    label: Label,
    payload: &[u8],
    frames: &[u8],
) {
    let (header, sealed) = out.split_at_mut(SEALED_HEADER_BYTES);
    header.copy_from_slice(sealed_header(label, payload, frames).as_bytes());
    sealer.seal(label.number, header, payload, frames, sealed);
}

impl fmt::Debug for TransmitBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.datagrams()).finish()
    }
}

/// A ring of bytes, given out in pieces and given back in the same order.
///
/// ```text
/// |....from#######to.....|     or, after its end was reached,     |###to....from######..|
/// ```
#[derive(Debug, Default)]
struct Arena {
    /// Empty until the first piece is taken.
    bytes: Vec<u8>,
    from: usize,
    to: usize,
    pieces: usize,
}

impl Arena {
    /// Where a piece would go.
    fn place_for(&self, len_bytes: usize) -> Option<usize> {
        let Self { from, to, .. } = *self;
        if self.pieces == 0 {
            return Some(0);
        }
        if from < to && ARENA_BYTES - to >= len_bytes {
            return Some(to);
        }
        let (place, end) = if from < to { (0, from) } else { (to, from) };
        // Never all of it, so that `from` and `to` tell full from empty.
        (end - place > len_bytes).then_some(place)
    }

    fn take(&mut self, len_bytes: usize) -> Range<usize> {
        let place = self.place_for(len_bytes).expect("the batch was not full");
        if self.bytes.is_empty() {
            self.bytes = vec![0; ARENA_BYTES];
        }
        if self.pieces == 0 {
            self.from = place;
        }
        self.pieces += 1;
        self.to = place + len_bytes;
        place..self.to
    }

    fn give_back(&mut self, piece: &Range<usize>) {
        self.pieces -= 1;
        self.from = piece.end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use random::Random;

    fn push(batch: &mut TransmitBatch, byte: u8, body: Option<(BufId, Range<usize>)>) {
        let slot = batch.next(SocketAddr::from((Ipv4Addr::LOCALHOST, 1)));
        slot.head[0] = byte;
        slot.head_bytes = 1;
        slot.body = body;
    }

    #[test]
    fn unconsumed_packets_stay_in_order() {
        let mut pool = Pool::new(0);
        let mut batch = TransmitBatch::new(3);
        for byte in 1..=3 {
            push(&mut batch, byte, None);
        }
        assert!(batch.is_full());
        batch.consume(2);
        batch.prepare(&mut pool);
        push(&mut batch, 4, None);
        let heads: Vec<u8> = batch.datagrams().map(|datagram| datagram.head()[0]).collect();
        assert_eq!(heads, [3, 4]);
    }

    #[test]
    fn a_datagram_of_ones_own_holds_its_body_too() {
        let mut pool = Pool::new(0);
        let mut batch = TransmitBatch::new(1);
        let id = pool.alloc(3).expect("room");
        pool.bytes_mut(id).copy_from_slice(b"abc");
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        for _ in 0..2 {
            batch.put(&mut pool, to, b"head", Some((id, 2)));
            let datagram = batch.datagram(0);
            assert_eq!((datagram.head(), datagram.body(&pool)), (&b"head"[..], &b"ab"[..]));
            batch.consume(1);
        }
        pool.release(id);
        assert_eq!(pool.in_use(), 1, "until it is filled again");
        batch.put(&mut pool, to, b"", None);
        assert_eq!(pool.in_use(), 0);
    }

    #[test]
    fn a_body_is_held_until_the_batch_is_filled_again() {
        let mut pool = Pool::new(0);
        let mut batch = TransmitBatch::new(2);
        let id = pool.alloc(100).expect("room");
        pool.bytes_mut(id)[10..12].copy_from_slice(b"ab");
        push(&mut batch, 9, Some((id, 10..12)));
        assert_eq!(batch.datagram(0).body(&pool), b"ab");
        assert_eq!(batch.datagram(0).len_bytes(), 3);
        batch.consume(1);
        assert_eq!(pool.in_use(), 1);
        batch.prepare(&mut pool);
        assert_eq!(pool.in_use(), 0);
    }

    #[test]
    fn pieces_of_the_arena_do_not_overlap_and_the_end_is_used_again() {
        let mut random = Random::new(3);
        let mut arena = Arena::default();
        let mut live: std::collections::VecDeque<Range<usize>> = std::collections::VecDeque::new();
        let (mut wraps, mut fulls) = (0, 0);
        for _ in 0..20_000 {
            let len_bytes = 1 + random.draw() as usize % DATAGRAM_BYTES_MAX;
            if arena.place_for(DATAGRAM_BYTES_MAX).is_some() && !random.draw().is_multiple_of(4) {
                let piece = arena.take(len_bytes);
                assert!(piece.end <= ARENA_BYTES);
                let is_apart =
                    |other: &Range<usize>| piece.end <= other.start || other.end <= piece.start;
                assert!(live.iter().all(is_apart), "{piece:?} among {live:?}");
                wraps += u32::from(live.back().is_some_and(|last| last.start > piece.start));
                live.push_back(piece);
            } else {
                fulls += u32::from(arena.place_for(DATAGRAM_BYTES_MAX).is_none());
                if let Some(piece) = live.pop_front() {
                    arena.give_back(&piece);
                }
            }
        }
        assert!(wraps > 100 && fulls > 100, "{wraps} wraps, {fulls} times full");
    }
}
