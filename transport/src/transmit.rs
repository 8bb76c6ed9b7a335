//! What leaves: a batch of datagrams that a link sends with one system call.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;

use crate::pool::{BufId, Pool};

/// Room for the packet header, its frames and the heads of the messages in it. Eight calls of the
/// usual size fit, which is also the most that one packet carries.
pub const DATAGRAM_HEAD_MAX: usize = 1024;

/// One datagram: on the wire, `head()` followed by `body()`.
pub struct Datagram {
    to: SocketAddr,
    pub(crate) head: [u8; DATAGRAM_HEAD_MAX],
    pub(crate) head_bytes: usize,
    pub(crate) body: Option<(BufId, Range<usize>)>,
}

impl fmt::Debug for Datagram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Datagram")
            .field("to", &self.to)
            .field("head_bytes", &self.head_bytes)
            .field("body", &self.body)
            .finish()
    }
}

impl Datagram {
    fn empty() -> Self {
        Self {
            to: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            head: [0; DATAGRAM_HEAD_MAX],
            head_bytes: 0,
            body: None,
        }
    }

    /// Where it goes.
    pub fn to(&self) -> SocketAddr {
        self.to
    }

    /// The first part: header, frames and message heads.
    pub fn head(&self) -> &[u8] {
        &self.head[..self.head_bytes]
    }

    /// The second part, in the endpoint's pool; empty for most small datagrams.
    pub fn body<'a>(&self, pool: &'a Pool) -> &'a [u8] {
        match &self.body {
            Some((id, range)) => &pool.bytes(*id)[range.clone()],
            None => &[],
        }
    }

    /// Its length on the wire, both parts, without UDP's and IP's headers.
    pub fn len_bytes(&self) -> usize {
        self.head_bytes + self.body.as_ref().map_or(0, |(_, range)| range.len())
    }
}

/// Datagrams on their way from an endpoint to a link, in order. The storage is made once.
///
/// A datagram holds a reference to its body's buffer until [`consume`](Self::consume)d; the
/// endpoint drops that reference when the batch is next filled.
#[derive(Debug)]
pub struct TransmitBatch {
    /// All of them are made at the start; `first..end` are pending.
    datagrams: Vec<Datagram>,
    first: usize,
    end: usize,
    /// Bodies of consumed datagrams, which the endpoint still has to release.
    finished: Vec<BufId>,
}

impl TransmitBatch {
    /// A batch for `capacity` datagrams (at least one).
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity.max(1);
        Self {
            datagrams: (0..capacity).map(|_| Datagram::empty()).collect(),
            first: 0,
            end: 0,
            finished: Vec::with_capacity(capacity),
        }
    }

    /// The datagrams that wait to be sent, oldest first.
    pub fn datagrams(&self) -> &[Datagram] {
        &self.datagrams[self.first..self.end]
    }

    /// Removes the first `count` datagrams: they were sent, or given up.
    pub fn consume(&mut self, count: usize) {
        assert!(count <= self.len(), "{count} of {} datagrams", self.len());
        for datagram in &mut self.datagrams[self.first..self.first + count] {
            if let Some((id, _)) = datagram.body.take() {
                self.finished.push(id);
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
        self.datagrams.len()
    }

    /// Whether the endpoint can add nothing before some are consumed.
    pub fn is_full(&self) -> bool {
        self.len() == self.capacity()
    }

    /// Drops the references of consumed datagrams and moves the pending ones to the front.
    pub(crate) fn prepare(&mut self, pool: &mut Pool) {
        while let Some(id) = self.finished.pop() {
            pool.release(id);
        }
        if self.first > 0 {
            self.datagrams[..self.end].rotate_left(self.first);
            self.end -= self.first;
            self.first = 0;
        }
    }

    /// Adds a datagram to `to`, whose head and body the caller fills in. The reference to the
    /// body's buffer becomes the batch's.
    pub(crate) fn next(&mut self, to: SocketAddr) -> &mut Datagram {
        assert!(self.end < self.datagrams.len(), "the batch is full");
        let datagram = &mut self.datagrams[self.end];
        self.end += 1;
        datagram.to = to;
        datagram.head_bytes = 0;
        datagram.body = None;
        datagram
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(batch: &mut TransmitBatch, byte: u8, body: Option<(BufId, Range<usize>)>) {
        let datagram = batch.next(SocketAddr::from((Ipv4Addr::LOCALHOST, 1)));
        datagram.head[0] = byte;
        datagram.head_bytes = 1;
        datagram.body = body;
    }

    #[test]
    fn what_is_not_consumed_stays_in_order() {
        let mut pool = Pool::new(0);
        let mut batch = TransmitBatch::new(3);
        for byte in 1..=3 {
            push(&mut batch, byte, None);
        }
        assert!(batch.is_full());
        batch.consume(2);
        batch.prepare(&mut pool);
        push(&mut batch, 4, None);
        let heads: Vec<u8> = batch.datagrams().iter().map(|datagram| datagram.head()[0]).collect();
        assert_eq!(heads, [3, 4]);
    }

    #[test]
    fn a_body_is_held_until_the_batch_is_filled_again() {
        let mut pool = Pool::new(0);
        let mut batch = TransmitBatch::new(2);
        let id = pool.alloc(100).expect("room");
        pool.bytes_mut(id)[10..12].copy_from_slice(b"ab");
        push(&mut batch, 9, Some((id, 10..12)));
        assert_eq!(batch.datagrams()[0].body(&pool), b"ab");
        assert_eq!(batch.datagrams()[0].len_bytes(), 3);
        batch.consume(1);
        assert_eq!(pool.in_use(), 1);
        batch.prepare(&mut pool);
        assert_eq!(pool.in_use(), 0);
    }
}
