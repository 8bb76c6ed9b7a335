//! A ring that is shared with the kernel, and the memory that its entries speak of. One side writes
//! entries and its index, the other reads them and writes its own.

use std::io;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, fence};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::xdp::XdpRingOffset;

/// A mapping of ours.
#[derive(Debug)]
struct Mapped {
    at: *mut u8,
    len: usize,
}

// SAFETY: an address range that no other value unmaps; its owner is responsible for its uses.
unsafe impl Send for Mapped {}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped by us with this length. The mapping is not used any more: every value with
        // an address in it also owns this `Mapped`.
        let _ = unsafe { munmap(self.at.cast(), self.len) };
    }
}

/// An entry of a ring: plain numbers, for which any bytes are a value.
pub(super) trait RingEntry: Copy {}

/// As `struct xdp_desc`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct XdpDescriptor {
    /// Offset in the memory.
    pub(super) at: u64,
    pub(super) len: u32,
    pub(super) options: u32,
}

impl RingEntry for XdpDescriptor {}
impl RingEntry for u64 {}

/// Which side of a ring is ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RingSide {
    /// We put entries in.
    Fills,
    /// We take them out.
    Takes,
}

/// A ring of which one side is ours.
#[derive(Debug)]
pub(super) struct XdpRing<T> {
    map: Mapped,
    producer: usize,
    consumer: usize,
    flags: usize,
    entries: usize,
    size: u32,
    /// Our own index.
    own: u32,
    /// The other side's, as last seen.
    theirs: u32,
    kind: PhantomData<T>,
}

impl<T: RingEntry> XdpRing<T> {
    /// Maps a ring of `size` entries, a power of two, of a socket that has one there, and goes on
    /// where our side was: at zero, or where another process was before.
    pub(super) fn new(
        socket: BorrowedFd<'_>,
        page_offset: u64,
        offsets: &XdpRingOffset,
        size: u32,
        side: RingSide,
    ) -> io::Result<Self> {
        assert!(size.is_power_of_two(), "a ring of {size}");
        let place = |offset: u64| usize::try_from(offset).map_err(io::Error::other);
        let entries = place(offsets.desc)?;
        let len = entries + size as usize * size_of::<T>();
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping, at a place of the system's choice.
        let at = unsafe { mmap(ptr::null_mut(), len, access, flags, socket, page_offset)? };
        let mut ring = Self {
            map: Mapped { at: at.cast(), len },
            producer: place(offsets.producer)?,
            consumer: place(offsets.consumer)?,
            flags: place(offsets.flags.unwrap_or(offsets.producer))?,
            entries,
            size,
            own: 0,
            theirs: 0,
            kind: PhantomData,
        };
        let ours = if side == RingSide::Fills { ring.producer } else { ring.consumer };
        let theirs = if side == RingSide::Fills { ring.consumer } else { ring.producer };
        (ring.own, ring.theirs) = (ring.word(ours).load(Relaxed), ring.word(theirs).load(Acquire));
        Ok(ring)
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset + size_of::<u32>() <= self.map.len && offset.is_multiple_of(4));
        // SAFETY: inside the mapping, aligned, and only ever used atomically, by either side.
        unsafe { &*self.map.at.add(offset).cast::<AtomicU32>() }
    }

    fn entry(&self, index: u32) -> *mut T {
        let at = self.entries + (index & (self.size - 1)) as usize * size_of::<T>();
        // SAFETY: the mapping was made with room for `size` entries.
        unsafe { self.map.at.add(at).cast() }
    }

    /// Whether the kernel has to be called for the ring to move. To be asked after `publish`.
    pub(super) fn needs_call(&self) -> bool {
        // The kernel sets the flag and then looks at our index; here it is the other way round.
        // Were the flag read before the index is seen, both could wait for each other.
        fence(SeqCst);
        self.word(self.flags).load(Relaxed) & 1 != 0
    }

    /// For a ring that we fill: whether there is room for so many entries. The other side's index,
    /// in a line of its own, is only looked at when what was seen of it last is not enough.
    pub(super) fn has_room(&mut self, count: u32) -> bool {
        let room = |ring: &Self| ring.size - ring.own.wrapping_sub(ring.theirs).min(ring.size);
        if room(self) < count {
            self.theirs = self.word(self.consumer).load(Acquire);
        }
        room(self) >= count
    }

    /// Puts an entry in, for which there is room; seen after `publish`.
    pub(super) fn put(&mut self, entry: T) {
        debug_assert!(self.own.wrapping_sub(self.theirs) < self.size, "there is room");
        // SAFETY: an entry of ours until the index says otherwise: room was looked for.
        unsafe { self.entry(self.own).write(entry) };
        self.own = self.own.wrapping_add(1);
    }

    /// For a ring that we fill: whether the other side has taken everything.
    pub(super) fn is_taken(&self) -> bool {
        self.taken() == self.own
    }

    /// The other side's index.
    pub(super) fn taken(&self) -> u32 {
        self.word(self.consumer).load(Acquire)
    }

    /// Shows what was put in.
    pub(super) fn publish(&self) {
        self.word(self.producer).store(self.own, Release);
    }

    /// For a ring that the kernel fills: whether there is anything to take.
    pub(super) fn has_any(&self) -> bool {
        self.word(self.producer).load(Acquire) != self.own
    }

    /// For a ring that the kernel fills: the number of entries that can be taken.
    pub(super) fn count(&self) -> u32 {
        self.word(self.producer).load(Acquire).wrapping_sub(self.own)
    }

    /// How many more entries were put in here than taken out there.
    pub(super) fn ahead_of<U>(&self, other: &XdpRing<U>) -> u32 {
        self.own.wrapping_sub(other.own)
    }

    /// Takes the next entry.
    pub(super) fn take(&mut self) -> Option<T> {
        if self.own == self.theirs {
            self.theirs = self.word(self.producer).load(Acquire);
            if self.own == self.theirs {
                return None;
            }
        }
        // SAFETY: filled by the kernel, which does not touch it until our index says so.
        let entry = unsafe { self.entry(self.own).read() };
        self.own = self.own.wrapping_add(1);
        Some(entry)
    }

    /// Gives the places of what was taken back.
    pub(super) fn release(&self) {
        self.word(self.consumer).store(self.own, Release);
    }
}

/// Frames for packets. A frame belongs to the side that has its address: the kernel or this
/// process.
#[derive(Debug)]
pub(super) struct XdpFrames {
    map: Mapped,
    frame_bytes: usize,
}

impl XdpFrames {
    /// Maps a file of so many bytes.
    pub(super) fn new(file: BorrowedFd<'_>, len: usize, frame_bytes: usize) -> io::Result<Self> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping, at a place of the system's choice.
        let at = unsafe { mmap(ptr::null_mut(), len, access, flags, file, 0)? };
        Ok(Self { map: Mapped { at: at.cast(), len }, frame_bytes })
    }

    pub(super) fn address(&self) -> u64 {
        self.map.at as u64
    }

    pub(super) fn len(&self) -> u64 {
        self.map.len as u64
    }

    /// The frame in which a place lies.
    pub(super) fn frame_of(&self, at: u64) -> u64 {
        at - at % self.frame_bytes as u64
    }

    fn check(&self, at: u64, len: usize) -> Option<usize> {
        let at = usize::try_from(at).ok()?;
        let in_frame = at % self.frame_bytes + len <= self.frame_bytes;
        (in_frame && at + len <= self.map.len).then_some(at)
    }

    /// Where a piece lies; none if that is not inside a frame.
    pub(super) fn pointer(&self, piece: XdpDescriptor) -> Option<*mut u8> {
        let at = self.check(piece.at, piece.len as usize)?;
        // SAFETY: inside the mapping.
        Some(unsafe { self.map.at.add(at) })
    }

    /// The bytes of a piece; none if it is not inside a frame.
    pub(super) fn bytes(&self, piece: XdpDescriptor) -> Option<&[u8]> {
        let at = self.pointer(piece)?;
        // SAFETY: inside the mapping. The piece was taken from a ring and its frame is not in use
        // again before the kernel is shown that it was given back, which takes a mutable borrow.
        Some(unsafe { std::slice::from_raw_parts(at, piece.len as usize) })
    }

    /// Room for a packet to be sent, in a frame of ours.
    pub(super) fn bytes_mut(&mut self, at: u64, len: usize) -> &mut [u8] {
        let at = self.check(at, len).expect("a frame of ours");
        // SAFETY: inside the mapping; the frame was on our list of free ones, so nothing else uses
        // it.
        unsafe { std::slice::from_raw_parts_mut(self.map.at.add(at), len) }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    /// With packets of one piece and of two it is not always the last place that is asked about.
    #[test]
    fn room_is_seen_for_requests_of_any_size() {
        let file = memfd_create("ring", MemfdFlags::CLOEXEC).expect("a memory file");
        ftruncate(&file, 4096).expect("a page");
        let offsets = XdpRingOffset { producer: 0, consumer: 64, desc: 128, flags: Some(8) };
        let mut ring =
            XdpRing::<u64>::new(file.as_fd(), 0, &offsets, 8, RingSide::Fills).expect("a ring");
        for taken in 1..=20 {
            while ring.has_room(1) && ring.own < 7 * taken {
                ring.put(0);
            }
            assert!(!ring.has_room(2), "seven of eight are used");
            // The other side takes them all.
            ring.word(64).store(ring.own, Release);
            assert!(ring.has_room(2) && ring.has_room(8) && !ring.has_room(9));
        }
    }

    /// Another process maps the same ring, and finds what the first one left.
    #[test]
    fn a_producer_that_maps_a_ring_again_continues_at_its_place() {
        let file = memfd_create("ring", MemfdFlags::CLOEXEC).expect("a memory file");
        ftruncate(&file, 4096).expect("a page");
        let offsets = XdpRingOffset { producer: 0, consumer: 64, desc: 128, flags: Some(8) };
        let map = |side| XdpRing::<u64>::new(file.as_fd(), 0, &offsets, 8, side).expect("a ring");
        let mut first = map(RingSide::Fills);
        for entry in 0..5 {
            first.put(entry);
        }
        first.publish();
        let mut taker = map(RingSide::Takes);
        assert_eq!((taker.count(), taker.take(), taker.take()), (5, Some(0), Some(1)));
        taker.release();
        let mut second = map(RingSide::Fills);
        assert_eq!((second.ahead_of(&taker), second.taken()), (3, 2));
        assert!(second.has_room(5) && !second.has_room(6));
        second.put(5);
        second.publish();
        let mut taker = map(RingSide::Takes);
        let rest: Vec<_> = std::iter::from_fn(|| taker.take()).collect();
        assert_eq!(rest, [2, 3, 4, 5]);
    }
}
