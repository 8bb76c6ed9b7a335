//! A queue that brings frames to the guest: finds room in its buffers, and copies.

use std::ptr;

use virtio::{Chain, ChainHead, Queue, RingError, Segment, Single};

use crate::ether::TAG_BYTES;
use crate::frame::{BURST_FRAMES_MAX, Burst, Frame, HEAD_BYTES_MAX};
use crate::offload::HEADER_BYTES;
use crate::reason::Reason;

/// The most pieces that chains that were taken for a frame may have. The largest frame takes 43
/// buffers of a page's third, or 17 pages; a guest whose buffers are in crumbs gets small frames.
const PIECES_MAX: usize = 2 * virtio::SEGMENTS_MAX;

/// Where the number of buffers is in the header.
const AT_BUFFERS: usize = 10;

/// Why a frame was not placed.
pub(super) enum PlaceError {
    /// It is dropped.
    Drop(Reason),
    /// The guest broke the rules of the ring.
    Ring(RingError),
    /// The guest gave a buffer that nothing can be written to.
    NotWritable,
}

/// A chain that was taken and not used yet.
#[derive(Clone, Copy, Debug)]
struct HeldChain {
    head: ChainHead,
    pieces: usize,
    bytes: usize,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct FrameReceiver {
    queue: Queue,
    /// Chains of one piece that were taken for the frames of a burst, from `next` on. They are used
    /// in that order, after those that are held.
    ready: Vec<Single>,
    next: usize,
    /// Chains that were taken, in order; they are used in that order.
    held: Vec<HeldChain>,
    held_bytes: usize,
    /// Their pieces.
    pieces: Vec<Segment>,
    chain: Chain,
    /// Header, tag and the frame's head, to be copied in one go.
    first: [u8; FIRST_BYTES_MAX],
}

/// The longest header, the longest head and a tag.
const FIRST_BYTES_MAX: usize = 12 + HEAD_BYTES_MAX + TAG_BYTES;

impl FrameReceiver {
    pub(super) fn new(queue: Queue) -> Self {
        let held = Vec::with_capacity(usize::from(queue.size()));
        Self {
            queue,
            ready: Vec::with_capacity(BURST_FRAMES_MAX),
            next: 0,
            held,
            held_bytes: 0,
            pieces: Vec::with_capacity(PIECES_MAX + virtio::SEGMENTS_MAX),
            chain: Chain::new(),
            first: [0; FIRST_BYTES_MAX],
        }
    }

    pub(super) fn queue(&mut self) -> &mut Queue {
        &mut self.queue
    }

    /// Gives the ring up. Chains that were taken for a frame that did not come to fit go back
    /// empty: the guest counts a frame that is too short.
    pub(super) fn stop(mut self) -> u32 {
        for held in std::mem::take(&mut self.held) {
            self.queue.put(held.head, 0);
        }
        for single in &self.ready[self.next..] {
            self.queue.put(single.head, 0);
        }
        self.queue.publish();
        self.queue.base()
    }

    /// Takes chains for so many frames, where they are of one piece each.
    pub(super) fn prepare(&mut self, frames: usize) {
        let left = self.ready.len() - self.next;
        if left >= frames || frames > BURST_FRAMES_MAX {
            return;
        }
        self.ready.drain(..self.next);
        self.next = 0;
        self.queue.take_singles(true, frames - left, usize::MAX, &mut self.ready);
    }

    /// Copies a frame into the guest's buffers.
    #[inline]
    pub(super) fn place(
        &mut self,
        frame: &Frame,
        tci: u16,
        burst: &Burst,
        header_bytes: usize,
        mergeable: bool,
    ) -> Result<(), PlaceError> {
        let tag_bytes = if tci == 0 { 0 } else { TAG_BYTES };
        let total = header_bytes + tag_bytes + frame.len_bytes();
        if self.held.is_empty() {
            // Nearly always the next chain is one piece that the frame fits in, and nothing has to
            // be kept of it.
            if let Some(Single { head, segment }) = self.ready.get(self.next).copied()
                && tci == 0
                && segment.len as usize >= total
            {
                self.next += 1;
                fill(segment, frame, burst, header_bytes);
                self.queue.wrote(&[segment]);
                self.queue.put(head, total as u32);
                return Ok(());
            }
            self.take()?;
        }
        let buffers = self.find_room(total, mergeable)?;
        let header: &mut [u8; HEADER_BYTES] =
            self.first.first_chunk_mut().expect("the array is longer");
        frame.offload.write(frame.head(), tag_bytes as u16, header);
        if header_bytes > AT_BUFFERS {
            let number = (buffers as u16).to_le_bytes();
            self.first[AT_BUFFERS..AT_BUFFERS + 2].copy_from_slice(&number);
        }
        let first = header_bytes + frame.write_head(tci, &mut self.first[header_bytes..]);
        let mut cursor = Cursor { pieces: &self.pieces, at: 0, skip: 0 };
        // SAFETY: the sources are our own array, then pieces of the burst, which are valid while it
        // has the frame; the targets are pieces of chains that are outstanding.
        unsafe {
            cursor.write(self.first.as_ptr(), first);
            burst.each_piece(frame, |piece| cursor.write(piece.addr, piece.len as usize));
        }
        self.put(buffers, total);
        Ok(())
    }

    /// Takes chains until there is room for `total` bytes; gives how many of those held that takes.
    fn find_room(&mut self, total: usize, mergeable: bool) -> Result<usize, PlaceError> {
        if !mergeable {
            let fits = self.held[0].bytes >= total;
            return if fits { Ok(1) } else { Err(PlaceError::Drop(Reason::BufferSmall)) };
        }
        while self.held_bytes < total {
            self.take()?;
        }
        let (mut bytes, mut buffers) = (0, 0);
        while bytes < total {
            bytes += self.held[buffers].bytes;
            buffers += 1;
        }
        Ok(buffers)
    }

    /// Holds one more chain.
    fn take(&mut self) -> Result<(), PlaceError> {
        if self.pieces.len() > PIECES_MAX {
            return Err(PlaceError::Drop(Reason::BufferSmall));
        }
        if let Some(Single { head, segment }) = self.ready.get(self.next).copied() {
            self.next += 1;
            self.pieces.push(segment);
            self.hold(head, 1, segment.len as usize);
            return Ok(());
        }
        let taken = self.queue.take(&mut self.chain).map_err(PlaceError::Ring)?;
        let head = taken.ok_or(PlaceError::Drop(Reason::NoRoom))?;
        if self.chain.writable.is_empty() {
            self.queue.put(head, 0);
            return Err(PlaceError::NotWritable);
        }
        self.pieces.extend_from_slice(&self.chain.writable);
        self.hold(head, self.chain.writable.len(), self.chain.writable_bytes() as usize);
        Ok(())
    }

    /// Holds a chain whose pieces were just added.
    fn hold(&mut self, head: ChainHead, pieces: usize, bytes: usize) {
        self.held.push(HeldChain { head, pieces, bytes });
        self.held_bytes += bytes;
    }

    /// The first `buffers` chains go back, with `total` bytes in them.
    fn put(&mut self, buffers: usize, total: usize) {
        let (mut left, mut pieces) = (total, 0);
        for held in &self.held[..buffers] {
            let written = left.min(held.bytes);
            self.queue.wrote(&self.pieces[pieces..pieces + held.pieces]);
            self.queue.put(held.head, written as u32);
            left -= written;
            pieces += held.pieces;
            self.held_bytes -= held.bytes;
        }
        if buffers == self.held.len() {
            self.held.clear();
            self.pieces.clear();
        } else {
            self.held.drain(..buffers);
            self.pieces.drain(..pieces);
        }
    }
}

/// Copies a frame without a tag into a piece that has room for it.
#[inline]
fn fill(piece: Segment, frame: &Frame, burst: &Burst, header_bytes: usize) {
    let mut header = [0; HEADER_BYTES + 2];
    let (offload, buffers) = header.split_first_chunk_mut().expect("the array is longer");
    frame.offload.write(frame.head(), 0, offload);
    buffers.copy_from_slice(&1u16.to_le_bytes());
    let head = frame.head();
    // SAFETY: the piece is of a chain that is outstanding, and has room for all of it (the
    // caller looked); header and head are our own, and a header has 10 or 12 bytes. Pieces of
    // the body are valid while the burst has the frame; they may be the guest's same page.
    unsafe {
        ptr::copy_nonoverlapping(header.as_ptr(), piece.addr, header_bytes);
        let mut at = piece.addr.wrapping_add(header_bytes);
        ptr::copy_nonoverlapping(head.as_ptr(), at, head.len());
        at = at.wrapping_add(head.len());
        if frame.body_bytes() > 0 {
            burst.each_piece(frame, |piece| {
                ptr::copy(piece.addr, at, piece.len as usize);
                at = at.wrapping_add(piece.len as usize);
            });
        }
    }
}

/// A place in the buffers.
struct Cursor<'a> {
    pieces: &'a [Segment],
    at: usize,
    skip: usize,
}

impl Cursor<'_> {
    /// Copies `len` bytes, for which there is room.
    ///
    /// # Safety
    /// `from` must be valid for reading `len` bytes, and the pieces for writing.
    unsafe fn write(&mut self, mut from: *const u8, mut len: usize) {
        while len > 0 {
            let piece = self.pieces[self.at];
            let part = len.min(piece.len as usize - self.skip);
            // SAFETY: the caller's promise; the part lies in the piece. Source and destination may
            // overlap: a guest may have given one page to two of its nics.
            unsafe { ptr::copy(from, piece.addr.wrapping_add(self.skip), part) };
            from = from.wrapping_add(part);
            len -= part;
            self.skip += part;
            if self.skip == piece.len as usize {
                (self.at, self.skip) = (self.at + 1, 0);
            }
        }
    }
}
