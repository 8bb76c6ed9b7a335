//! A frame on its way through a node, and the burst that carries it.
//!
//! ```text
//!   guest memory:   [ virtio header | addresses | ... headers ... | payload .......... ]
//!                                     └──── copied once ────┘       └─ stays where it is ┘
//!   Frame:           offload           head (192 bytes at most)       body: pieces of the burst
//! ```
//!
//! A frame's *head* is its own copy: the receiver gets the bytes that were checked, even if the
//! sender writes meanwhile. Its *body* is not looked at and not copied until a receiver takes it,
//! which is the only copy on the way from guest to guest. A tag is taken off on the way in
//! ([`Frame::strip_tag`]) and kept beside the frame, so all stages and ports see untagged heads.
//!
//! A burst lives for one turn: its port fills it, receivers copy what they want, and its port gets
//! it back. So pieces need no counting, and no frame outlives the buffers that it points into.

use std::fmt;
use std::ptr;

use virtio::{SEGMENTS_MAX, Segment, gather};

use crate::ether::{self, ADDRESSES_BYTES, ETHER_BYTES, Mac, TAG_BYTES, TYPE_VLAN};
use crate::offload::Offload;
use crate::reason::Reason;

/// The most bytes of a frame that are copied to be looked at: Ethernet, IPv6, UDP, VXLAN, and
/// inside of it Ethernet, IPv6 and TCP with all its options are 188.
pub const HEAD_BYTES_MAX: usize = 192;

/// The longest frame: 64 KiB of IP behind an Ethernet header with a tag. virtio-net's largest
/// buffers are made for it.
pub const FRAME_BYTES_MAX: usize = (64 << 10) + ETHER_BYTES + TAG_BYTES;

/// The most frames of a burst: enough to share out the costs of a burst, few enough that their
/// heads stay in a first-level cache.
pub const BURST_FRAMES_MAX: usize = 64;

/// The most pieces of a burst: 64 frames of 64 KiB in pages of 4 KiB, and a hostile chain more.
pub const BURST_PIECES_MAX: usize = 17 * BURST_FRAMES_MAX + SEGMENTS_MAX;

/// With so many bytes a burst is full: a turn of large frames is not to take much longer than a
/// quarter of a millisecond of copying.
pub const BURST_BYTES_MAX: usize = 1 << 20;

/// Where the rest of a frame is: a range of the bytes of some of the burst's pieces.
#[derive(Clone, Copy, Debug, Default)]
struct FrameBody {
    first: u16,
    count: u16,
    skip: u32,
    len: u32,
}

/// One frame, without a tag.
#[derive(Clone)]
pub struct Frame {
    head: [u8; HEAD_BYTES_MAX],
    head_len: u16,
    /// The tag's control information, if there was one: VLAN in the lower 12 bits.
    tci: u16,
    dropped: bool,
    body: FrameBody,
    /// The work that is left to be done to it.
    pub offload: Offload,
}

/// The bytes of a frame that say where it goes. Equal for frames that go the same way. The 12 bytes
/// of both addresses are two numbers, since these are compared faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WayBytes {
    addresses_first: u64,
    addresses_rest: u32,
    vlan: u16,
}

impl Frame {
    /// No frame yet; for scratch space.
    pub fn empty() -> Self {
        Self {
            head: [0; HEAD_BYTES_MAX],
            head_len: 0,
            tci: 0,
            dropped: false,
            body: FrameBody::default(),
            offload: Offload::default(),
        }
    }

    /// Its first bytes, all of its headers among them.
    pub fn head(&self) -> &[u8] {
        &self.head[..usize::from(self.head_len)]
    }

    pub(crate) fn head_mut(&mut self) -> &mut [u8] {
        &mut self.head[..usize::from(self.head_len)]
    }

    /// How long it is, without a tag.
    pub fn len_bytes(&self) -> usize {
        usize::from(self.head_len) + self.body.len as usize
    }

    /// How much of it is in the burst's pieces.
    pub fn body_bytes(&self) -> usize {
        self.body.len as usize
    }

    /// The receiver and the sender. A frame in a burst has both.
    #[inline]
    pub fn addresses(&self) -> (Mac, Mac) {
        ether::addresses(&self.head).expect("the array is longer")
    }

    /// The bytes that say where it goes.
    #[inline]
    pub(crate) fn way_bytes(&self) -> WayBytes {
        let [a, b, c, d, e, f, g, h, i, j, k, l, ..] = self.head;
        WayBytes {
            addresses_first: u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
            addresses_rest: u32::from_ne_bytes([i, j, k, l]),
            vlan: self.vlan(),
        }
    }

    /// The control information of the tag that it came with; zero where there was none.
    pub fn tci(&self) -> u16 {
        self.tci
    }

    /// Gives it the tag that was taken off elsewhere.
    pub(crate) fn set_tci(&mut self, tci: u16) {
        self.tci = tci;
    }

    /// Puts it into a VLAN; the priority is kept.
    pub fn set_vlan(&mut self, vlan: u16) {
        self.tci = self.tci & 0xf000 | vlan & 0xfff;
    }

    /// The VLAN of the tag that it came with; zero where there was none.
    pub fn vlan(&self) -> u16 {
        self.tci & 0xfff
    }

    /// Goes no further; the caller counts the drop.
    pub fn drop_here(&mut self) {
        self.dropped = true;
    }

    /// Whether it goes no further.
    pub fn is_dropped(&self) -> bool {
        self.dropped
    }

    /// Takes the tag off, if there is one. The places of the left-over work are counted from the
    /// frame's beginning, and move with it.
    ///
    /// # Errors
    /// When such a place would have been inside of the tag, or the rest is no frame.
    #[inline]
    pub fn strip_tag(&mut self) -> Result<(), Reason> {
        if ether::ether_type(self.head()) != Some(TYPE_VLAN) {
            return Ok(());
        }
        let len = usize::from(self.head_len);
        if len < ETHER_BYTES + TAG_BYTES {
            return Err(Reason::Short);
        }
        self.tci = u16::from_be_bytes([self.head[14], self.head[15]]);
        self.head.copy_within(ADDRESSES_BYTES + TAG_BYTES..len, ADDRESSES_BYTES);
        self.head_len -= TAG_BYTES as u16;
        self.offload.move_back(TAG_BYTES as u16)?;
        self.check_tag()
    }

    /// A tag that names no VLAN and hides a second tag would be taken for the frame's own where the
    /// frame goes out without a tag. So the frame would reach a VLAN into which its sender may not
    /// send.
    pub(crate) fn check_tag(&self) -> Result<(), Reason> {
        let hides = self.vlan() == 0 && ether::ether_type(self.head()) == Some(TYPE_VLAN);
        if hides { Err(Reason::VlanForeign) } else { Ok(()) }
    }

    /// Copies its first bytes, with a tag if `tci` is not zero, into `into`, which has room for
    /// [`HEAD_BYTES_MAX`] and a tag; gives how many there are. The body follows.
    pub fn write_head(&self, tci: u16, into: &mut [u8]) -> usize {
        let head = self.head();
        if tci == 0 {
            into[..head.len()].copy_from_slice(head);
            return head.len();
        }
        into[..ADDRESSES_BYTES].copy_from_slice(&head[..ADDRESSES_BYTES]);
        into[12..14].copy_from_slice(&TYPE_VLAN.to_be_bytes());
        into[14..16].copy_from_slice(&tci.to_be_bytes());
        into[16..head.len() + TAG_BYTES].copy_from_slice(&head[ADDRESSES_BYTES..]);
        head.len() + TAG_BYTES
    }

    /// Makes `into` the frame that has the first `head_len` bytes of this one's head, and `len`
    /// bytes of what follows them, from `skip` on.
    pub(crate) fn slice(&self, head_len: usize, skip: usize, len: usize, into: &mut Self) {
        let in_head = usize::from(self.head_len) - head_len;
        assert!(skip + len <= in_head + self.body_bytes(), "it is a part of the frame");
        // The part of it in the old head goes to the new head again.
        let from_head = len.min(in_head.saturating_sub(skip));
        into.head[..head_len].copy_from_slice(&self.head[..head_len]);
        let at = head_len + skip.min(in_head);
        into.head[head_len..head_len + from_head].copy_from_slice(&self.head[at..at + from_head]);
        into.head_len = (head_len + from_head) as u16;
        into.body = self.body;
        into.body.skip += skip.saturating_sub(in_head) as u32;
        into.body.len = (len - from_head) as u32;
        (into.tci, into.dropped) = (self.tci, self.dropped);
        into.offload = self.offload;
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (to, from) = self.addresses();
        f.debug_struct("Frame")
            .field("to", &to)
            .field("from", &from)
            .field("len_bytes", &self.len_bytes())
            .field("tci", &self.tci)
            .field("offload", &self.offload)
            .finish_non_exhaustive()
    }
}

/// Some frames of one port. Made once; it never grows.
pub struct Burst {
    /// Frames are overwritten, not made: they are large.
    frames: Vec<Frame>,
    count: usize,
    bytes: usize,
    pieces: Vec<Segment>,
}

impl Burst {
    /// An empty burst with all the room that it will ever have.
    pub fn new() -> Self {
        Self {
            frames: (0..BURST_FRAMES_MAX).map(|_| Frame::empty()).collect(),
            count: 0,
            bytes: 0,
            pieces: Vec::with_capacity(BURST_PIECES_MAX),
        }
    }

    /// Whether another frame in as many pieces as there can be would not fit.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.count == BURST_FRAMES_MAX
            || self.pieces.len() + SEGMENTS_MAX > BURST_PIECES_MAX
            || self.bytes >= BURST_BYTES_MAX
    }

    /// How many frames of one piece each fit, and how many bytes until it is full.
    #[inline]
    pub(crate) fn room(&self) -> (usize, usize) {
        let pieces = (BURST_PIECES_MAX - SEGMENTS_MAX + 1).saturating_sub(self.pieces.len());
        let bytes = BURST_BYTES_MAX.saturating_sub(self.bytes);
        ((BURST_FRAMES_MAX - self.count).min(pieces), bytes)
    }

    /// Nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Forgets its frames. Their pieces must not be used any more.
    pub fn clear(&mut self) {
        (self.count, self.bytes) = (0, 0);
        self.pieces.clear();
    }

    /// Its frames, dropped ones among them.
    pub fn frames(&self) -> &[Frame] {
        &self.frames[..self.count]
    }

    /// Its frames, to change.
    pub fn frames_mut(&mut self) -> &mut [Frame] {
        &mut self.frames[..self.count]
    }

    /// Adds the frame that is in `segments`, from `skip` bytes after their beginning to their end.
    /// Its head is read now, once.
    ///
    /// # Errors
    /// When it is shorter than an Ethernet header or longer than [`FRAME_BYTES_MAX`]; nothing was
    /// added.
    ///
    /// # Panics
    /// When the burst is full.
    ///
    /// # Safety
    /// The segments must stay valid until [`Burst::clear`], or until the burst is dropped.
    #[inline]
    pub unsafe fn push(&mut self, segments: &[Segment], skip: usize) -> Result<&mut Frame, Reason> {
        assert!(!self.is_full(), "the burst is full");
        let have = match segments {
            [only] => only.len as usize,
            _ => segments.iter().fold(0, |sum, segment| sum + segment.len as usize),
        };
        let len = have.saturating_sub(skip);
        if len < ETHER_BYTES {
            return Err(Reason::Short);
        }
        if len > FRAME_BYTES_MAX {
            return Err(Reason::TooLong);
        }
        let frame = &mut self.frames[self.count];
        let head_len = len.min(HEAD_BYTES_MAX);
        let head = &mut frame.head[..head_len];
        if let [only] = segments {
            // SAFETY: the caller's promise; the piece has `len` bytes behind `skip`, of which these
            // are the first, and guest memory is not ours.
            unsafe {
                ptr::copy_nonoverlapping(only.addr.wrapping_add(skip), head.as_mut_ptr(), head_len);
            }
        } else {
            // SAFETY: the caller's promise.
            let read = unsafe { gather(segments, skip, head) };
            assert_eq!(read, head_len, "the segments are that long");
        }
        frame.head_len = head_len as u16;
        (frame.tci, frame.dropped) = (0, false);
        frame.offload = Offload::default();
        frame.body = FrameBody::default();
        if len > head_len {
            let first = self.pieces.len() as u16;
            self.pieces.extend_from_slice(segments);
            let (count, skip) = (segments.len() as u16, (skip + head_len) as u32);
            frame.body = FrameBody { first, count, skip, len: (len - head_len) as u32 };
        }
        self.count += 1;
        self.bytes += len;
        Ok(frame)
    }

    /// Takes the last frame back, which turned out to be none.
    pub fn pop(&mut self) {
        self.count -= 1;
    }

    /// Calls `piece` with each piece of a frame's body, in order. They are valid as long as the
    /// burst is not cleared, and may change at any time.
    pub fn each_piece(&self, frame: &Frame, mut piece: impl FnMut(Segment)) {
        let FrameBody { first, count, skip, len } = frame.body;
        let (mut skip, mut left) = (skip, len);
        for segment in &self.pieces[usize::from(first)..usize::from(first) + usize::from(count)] {
            if skip >= segment.len {
                skip -= segment.len;
                continue;
            }
            if left == 0 {
                return;
            }
            let part = left.min(segment.len - skip);
            piece(Segment { addr: segment.addr.wrapping_add(skip as usize), len: part });
            left -= part;
            skip = 0;
        }
    }

    /// Copies bytes of a frame's body, from `skip` on, into `into`; gives how many there were.
    pub fn read_body(&self, frame: &Frame, skip: usize, into: &mut [u8]) -> usize {
        let FrameBody { first, count, skip: before, len } = frame.body;
        let len = (len as usize).saturating_sub(skip).min(into.len());
        let pieces = &self.pieces[usize::from(first)..usize::from(first) + usize::from(count)];
        // SAFETY: the caller that pushed the frame promised that its pieces are valid until the
        // burst is cleared, and a cleared burst has none.
        unsafe { gather(pieces, before as usize + skip, &mut into[..len]) }
    }

    /// All bytes of a frame, for tests and for uses beside the hot path.
    pub fn to_vec(&self, frame: &Frame) -> Vec<u8> {
        let mut bytes = frame.head().to_vec();
        let head = bytes.len();
        bytes.resize(frame.len_bytes(), 0);
        let read = self.read_body(frame, 0, &mut bytes[head..]);
        bytes.truncate(head + read);
        bytes
    }
}

impl Default for Burst {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Burst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.frames()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maker::FrameMaker;
    use crate::testing::pushed;

    #[test]
    fn a_frame_is_its_head_and_the_rest_in_pieces() {
        let bytes = FrameMaker::tcp4().payload(5000).build();
        let mut burst = Burst::new();
        let frame = pushed(&mut burst, &bytes, 777);
        assert_eq!((frame.len_bytes(), frame.head().len()), (bytes.len(), HEAD_BYTES_MAX));
        assert_eq!(burst.to_vec(&burst.frames()[0]), bytes);
        let mut part = [0; 10];
        assert_eq!(burst.read_body(&burst.frames()[0], 4000, &mut part), 10);
        assert_eq!(part, bytes[HEAD_BYTES_MAX + 4000..HEAD_BYTES_MAX + 4010]);
    }

    #[test]
    fn a_tag_is_taken_off_and_put_on_again() {
        let bytes = FrameMaker::udp4().payload(20).tag(0x6123).build();
        let mut burst = Burst::new();
        pushed(&mut burst, &bytes, 1000).strip_tag().unwrap();
        let frame = &burst.frames()[0];
        assert_eq!((frame.tci(), frame.vlan()), (0x6123, 0x123));
        assert_eq!(burst.to_vec(frame), FrameMaker::udp4().payload(20).build());
        let mut head = [0; HEAD_BYTES_MAX + TAG_BYTES];
        let len = frame.write_head(0x6123, &mut head);
        assert_eq!(head[..len], bytes);
    }

    #[test]
    fn a_tag_behind_one_that_names_no_vlan_is_foreign() {
        let inner = FrameMaker::udp4().payload(20).tag(5).build();
        for (tci, passes) in [(0x2000, false), (0x2007, true)] {
            let mut bytes = inner.clone();
            bytes.splice(12..12, [0x81, 0x00, (tci >> 8) as u8, tci as u8]);
            let mut burst = Burst::new();
            let stripped = pushed(&mut burst, &bytes, 1000).strip_tag();
            assert_eq!(stripped, if passes { Ok(()) } else { Err(Reason::VlanForeign) });
        }
    }

    #[test]
    fn malformed_frames_are_refused_by_name() {
        let mut burst = Burst::new();
        let mut bytes = vec![0; FRAME_BYTES_MAX + 1];
        let segment =
            |bytes: &mut [u8]| Segment { addr: bytes.as_mut_ptr(), len: bytes.len() as u32 };
        let all = [segment(&mut bytes)];
        // SAFETY: the bytes live longer than the burst is used.
        unsafe {
            assert_eq!(burst.push(&all, 0).unwrap_err(), Reason::TooLong);
            assert_eq!(burst.push(&all, FRAME_BYTES_MAX - 12).unwrap_err(), Reason::Short);
            assert_eq!(burst.push(&[], 12).unwrap_err(), Reason::Short);
            assert!(burst.push(&all, 1).is_ok() && burst.frames().len() == 1);
        }
    }

    #[test]
    fn a_full_burst_says_so() {
        let mut burst = Burst::new();
        let bytes = FrameMaker::tcp4().payload(500).build();
        while !burst.is_full() {
            pushed(&mut burst, &bytes, 1);
        }
        // Each in as many pieces as it has bytes: the pieces are what ends first.
        assert!(burst.frames().len() < BURST_FRAMES_MAX);
        burst.clear();
        while !burst.is_full() {
            pushed(&mut burst, &bytes, 100);
        }
        assert_eq!(burst.frames().len(), BURST_FRAMES_MAX);
    }
}
