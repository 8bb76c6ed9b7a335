//! Work that a sender has left for later: a checksum to be completed, a frame to be cut into
//! segments. Receivers that can do it themselves get the frame as it is; for others it is done
//! here.
//!
//! A guest may lie about its frames, and [`Frame::accept`] believes nothing. A frame that it lets
//! pass has headers where the offloads need them, and a bounded number of segments.

use crate::ether::{self, CWR, ETHER_BYTES, FIN, PSH, TCP, UDP};
use crate::frame::{Burst, Frame};
use crate::reason::Reason;

/// Bytes of the header before a frame (virtio 1.2, section 5.1.6), without the number of buffers.
pub const HEADER_BYTES: usize = 10;

const NEEDS_CHECKSUM: u8 = 1;
const CHECKSUM_VALID: u8 = 2;

const GSO_NONE: u8 = 0;
const GSO_TCP4: u8 = 1;
const GSO_TCP6: u8 = 4;
const GSO_UDP: u8 = 5;
const GSO_ECN: u8 = 0x80;

/// The most segments of a frame: 64 KiB by 48 bytes, the smallest that Linux lets a peer ask for.
/// A guest that wants smaller ones would make a node work for it.
pub const SEGMENTS_PER_FRAME_MAX: usize = (64 << 10) / 48;

/// How a frame must be cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Cut {
    /// Not at all.
    #[default]
    None,
    /// As TCP over IPv4.
    Tcp4,
    /// As TCP over IPv6.
    Tcp6,
    /// As datagrams of UDP, over either.
    Udp,
}

/// The work that is left to be done to a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// The checksum is only that of the pseudo header.
    pub needs_checksum: bool,
    /// The checksum was checked already.
    pub is_valid: bool,
    /// Where summing begins, in the frame without a tag.
    pub checksum_start: u16,
    /// Where the checksum is, counted from there.
    pub checksum_offset: u16,
    /// How the frame must be cut.
    pub cut: Cut,
    /// Its TCP has the flag CWR, which only the first segment may have.
    pub has_ecn: bool,
    /// Payload of each segment but the last.
    pub segment_bytes: u16,
}

/// The work that a side can do itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offers {
    /// Complete checksums.
    pub checksum: bool,
    /// Cut TCP over IPv4.
    pub tcp4: bool,
    /// Cut TCP over IPv6.
    pub tcp6: bool,
    /// Either of them with CWR.
    pub ecn: bool,
    /// Cut UDP over IPv4.
    pub udp4: bool,
    /// Cut UDP over IPv6.
    pub udp6: bool,
}

impl Offers {
    /// Everything.
    pub const ALL: Self =
        Self { checksum: true, tcp4: true, tcp6: true, ecn: true, udp4: true, udp6: true };
}

impl Offload {
    /// Reads the header before a frame.
    ///
    /// # Errors
    /// When it asks for what is not known.
    #[inline]
    pub fn read(header: &[u8; HEADER_BYTES]) -> Result<Self, Reason> {
        if let [0, GSO_NONE, ..] = header {
            // Most frames, and what else the header says is about those that ask for something.
            return Ok(Self::default());
        }
        let word = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let cut = match header[1] & !GSO_ECN {
            GSO_NONE => Cut::None,
            GSO_TCP4 => Cut::Tcp4,
            GSO_TCP6 => Cut::Tcp6,
            GSO_UDP => Cut::Udp,
            _ => return Err(Reason::OffloadUnknown),
        };
        Ok(Self {
            needs_checksum: header[0] & NEEDS_CHECKSUM != 0,
            is_valid: header[0] & CHECKSUM_VALID != 0,
            checksum_start: word(6),
            checksum_offset: word(8),
            cut,
            has_ecn: header[1] & GSO_ECN != 0,
            segment_bytes: word(4),
        })
    }

    /// Writes the header before a frame that has this head and gets a tag of so many bytes.
    #[inline]
    pub fn write(&self, head: &[u8], tag_bytes: u16, header: &mut [u8; HEADER_BYTES]) {
        *header = [0; HEADER_BYTES];
        if !self.needs_checksum {
            header[0] = if self.is_valid { CHECKSUM_VALID } else { 0 };
            return;
        }
        header[0] = NEEDS_CHECKSUM;
        header[6..8].copy_from_slice(&(self.checksum_start + tag_bytes).to_le_bytes());
        header[8..10].copy_from_slice(&self.checksum_offset.to_le_bytes());
        if self.cut == Cut::None {
            return;
        }
        let ecn = if self.has_ecn { GSO_ECN } else { 0 };
        header[1] = ecn
            | match self.cut {
                Cut::None => GSO_NONE,
                Cut::Tcp4 => GSO_TCP4,
                Cut::Tcp6 => GSO_TCP6,
                Cut::Udp => GSO_UDP,
            };
        let headers = Headers::find(head, self.cut).map_or(0, |it| it.header_bytes as u16);
        header[2..4].copy_from_slice(&(headers + tag_bytes).to_le_bytes());
        header[4..6].copy_from_slice(&self.segment_bytes.to_le_bytes());
    }

    /// The frame's beginning goes away by so many bytes.
    pub(crate) fn move_back(&mut self, bytes: u16) -> Result<(), Reason> {
        if self.needs_checksum {
            let start = self.checksum_start.checked_sub(bytes);
            self.checksum_start = start.ok_or(Reason::ChecksumPlace)?;
        }
        Ok(())
    }
}

/// The headers of a frame that must be cut.
#[derive(Clone, Copy, Debug)]
struct Headers {
    is_v4: bool,
    protocol: u8,
    /// Where TCP's or UDP's header begins.
    above_at: usize,
    /// All of them together.
    header_bytes: usize,
}

impl Headers {
    fn find(head: &[u8], cut: Cut) -> Option<Self> {
        let ip = ether::ip(head)?;
        let protocol = if cut == Cut::Udp { UDP } else { TCP };
        let is_kind = match cut {
            Cut::None => false,
            Cut::Tcp4 => ip.is_v4,
            Cut::Tcp6 => !ip.is_v4,
            Cut::Udp => true,
        };
        if !is_kind || ip.is_fragment || ip.protocol != protocol {
            return None;
        }
        let above_at = ip.payload_at;
        let above_bytes = match protocol {
            UDP => 8,
            _ => usize::from(*head.get(above_at + 12)? >> 4) * 4,
        };
        let header_bytes = above_at + above_bytes;
        let fits = header_bytes <= head.len() && (protocol == UDP || above_bytes >= 20);
        fits.then_some(Self { is_v4: ip.is_v4, protocol, above_at, header_bytes })
    }

    /// Where the checksum is in TCP's or UDP's header.
    fn checksum_offset(&self) -> u16 {
        if self.protocol == TCP { 16 } else { 6 }
    }
}

/// Whether a checksum may be written at this place: the field of TCP or UDP, or a place behind all
/// fields that a filter goes by (a tunnel's inner packet is there). The sender controls the
/// checksum's value: an address or a port that is written with it would turn the frame into another
/// packet than the filter let through.
fn may_hold_checksum(head: &[u8], at: usize) -> bool {
    // A frame without IP is known by its type alone, which is before all places.
    let Some(ip) = ether::ip(head) else { return true };
    let Some(into) = at.checked_sub(ip.payload_at) else { return false };
    match ip.protocol {
        TCP => into == 16 || into >= 20,
        UDP => into == 6 || into >= 8,
        _ => true,
    }
}

impl Frame {
    /// Checks the sender's description of the frame; the sender may ask for `offers`. After this
    /// the frame can be handed to any receiver. Its tag, if it had one, was taken off.
    ///
    /// # Errors
    /// Why the description is not believed; the frame must be dropped.
    #[inline]
    pub fn accept(&mut self, offers: &Offers) -> Result<(), Reason> {
        let offload = &mut self.offload;
        offload.is_valid = false;
        if !offload.needs_checksum && offload.cut == Cut::None {
            return Ok(());
        }
        if !offers.checksum {
            return Err(Reason::OffloadUnknown);
        }
        let start = usize::from(offload.checksum_start);
        let end = start + usize::from(offload.checksum_offset) + 2;
        let is_inside = offload.needs_checksum && start >= ETHER_BYTES && end <= self.head().len();
        if !is_inside || !may_hold_checksum(self.head(), end - 2) {
            return Err(Reason::ChecksumPlace);
        }
        if self.offload.cut == Cut::None {
            return Ok(());
        }
        self.accept_cut(offers)
    }

    fn accept_cut(&mut self, offers: &Offers) -> Result<(), Reason> {
        let offload = self.offload;
        let headers = Headers::find(self.head(), offload.cut).ok_or(Reason::SegmentHeaders)?;
        if !offers.takes_cut(&offload, headers.is_v4) {
            return Err(Reason::OffloadUnknown);
        }
        let is_placed = usize::from(offload.checksum_start) == headers.above_at
            && offload.checksum_offset == headers.checksum_offset();
        if !is_placed {
            return Err(Reason::ChecksumPlace);
        }
        let payload = self.len_bytes() - headers.header_bytes;
        let segment = usize::from(offload.segment_bytes);
        if segment == 0 || payload.div_ceil(segment) > SEGMENTS_PER_FRAME_MAX {
            return Err(Reason::SegmentSize);
        }
        if payload <= segment {
            // Nothing to cut.
            self.offload = Offload { cut: Cut::None, has_ecn: false, segment_bytes: 0, ..offload };
        }
        Ok(())
    }

    /// Whether it must be cut for a side that can do this much.
    pub fn must_be_cut(&self, offers: &Offers) -> bool {
        let cut = self.offload.cut;
        // The addresses' kind is only looked for where it matters.
        let is_v4 = cut != Cut::Udp || ether::ether_type(self.head()) == Some(ether::TYPE_IPV4);
        cut != Cut::None && !(offers.checksum && offers.takes_cut(&self.offload, is_v4))
    }

    /// How long it is, or the longest of its segments.
    #[inline]
    pub fn longest_bytes(&self) -> usize {
        if self.offload.cut == Cut::None {
            return self.len_bytes();
        }
        let headers = Headers::find(self.head(), self.offload.cut);
        let header_bytes = headers.map_or(0, |headers| headers.header_bytes);
        header_bytes + usize::from(self.offload.segment_bytes)
    }

    /// The number of segments into which it must be cut; 1 for a frame that stays whole.
    pub fn segments(&self) -> usize {
        let Some(headers) = Headers::find(self.head(), self.offload.cut) else { return 1 };
        let payload = self.len_bytes() - headers.header_bytes;
        payload.div_ceil(usize::from(self.offload.segment_bytes)).max(1)
    }

    /// Makes `into` the segment of this number: a frame of its own, whose checksum is still to be
    /// completed, as this one's is.
    pub fn segment(&self, number: usize, into: &mut Self) {
        let Some(headers) = Headers::find(self.head(), self.offload.cut) else {
            into.clone_from(self);
            return;
        };
        let segment = usize::from(self.offload.segment_bytes);
        let payload = self.len_bytes() - headers.header_bytes;
        let begin = number * segment;
        let len = segment.min(payload - begin);
        self.slice(headers.header_bytes, begin, len, into);
        into.offload.cut = Cut::None;
        into.offload.has_ecn = false;
        into.offload.segment_bytes = 0;
        let above_bytes = headers.header_bytes - headers.above_at + len;
        let is_last = begin + len == payload;
        let head = into.head_mut();
        fix_ip(head, &headers, number, above_bytes);
        if headers.protocol == TCP {
            fix_tcp(&mut head[headers.above_at..], begin, number == 0, is_last);
        } else {
            let at = headers.above_at + 4;
            head[at..at + 2].copy_from_slice(&(above_bytes as u16).to_be_bytes());
        }
        let pseudo = pseudo_sum(ip_ends(head, headers.is_v4), headers.protocol, above_bytes as u32);
        let at = headers.above_at + usize::from(headers.checksum_offset());
        head[at..at + 2].copy_from_slice(&(!checksum_of(pseudo)).to_be_bytes());
    }

    /// Completes its checksum. The body is read for that, and once more when it is copied: a guest
    /// that changes it in between has a frame with a wrong checksum, as it would have made itself.
    pub fn complete_checksum(&mut self, burst: &Burst) {
        if !self.offload.needs_checksum {
            return;
        }
        let start = usize::from(self.offload.checksum_start);
        let head_len = self.head().len();
        let sum = sum_be(0, &self.head()[start..]);
        let body = sum_body(burst, self);
        // A byte of the body is at an odd place if the bytes before it are odd in number.
        let is_odd = (head_len - start) % 2 == 1;
        let sum = sum + u64::from(if is_odd { fold(body).swap_bytes() } else { fold(body) });
        let checksum = match checksum_of(sum) {
            // Zero would mean that there is none.
            0 => 0xffff,
            sum => sum,
        };
        let at = start + usize::from(self.offload.checksum_offset);
        self.head_mut()[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
        self.offload.needs_checksum = false;
        self.offload.is_valid = true;
    }
}

impl Offers {
    fn takes_cut(&self, offload: &Offload, is_v4: bool) -> bool {
        let takes = match offload.cut {
            Cut::None => true,
            Cut::Tcp4 => self.tcp4,
            Cut::Tcp6 => self.tcp6,
            Cut::Udp => (if is_v4 { self.udp4 } else { self.udp6 }) && !offload.has_ecn,
        };
        takes && (self.ecn || !offload.has_ecn)
    }
}

/// The addresses of a packet, as the pseudo header has them.
fn ip_ends(head: &[u8], is_v4: bool) -> &[u8] {
    let (at, len) = if is_v4 { (12, 8) } else { (8, 32) };
    &head[ETHER_BYTES + at..ETHER_BYTES + at + len]
}

/// Lengths, number and checksum of a segment's IP header.
fn fix_ip(head: &mut [u8], headers: &Headers, number: usize, above_bytes: usize) {
    let ip = &mut head[ETHER_BYTES..headers.above_at];
    if !headers.is_v4 {
        let len = (ip.len() - 40 + above_bytes) as u16;
        ip[4..6].copy_from_slice(&len.to_be_bytes());
        return;
    }
    let len = (ip.len() + above_bytes) as u16;
    ip[2..4].copy_from_slice(&len.to_be_bytes());
    let id = u16::from_be_bytes([ip[4], ip[5]]).wrapping_add(number as u16);
    ip[4..6].copy_from_slice(&id.to_be_bytes());
    ip[10..12].fill(0);
    let sum = checksum_of(sum_be(0, ip));
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// Sequence number and flags of a segment's TCP header.
fn fix_tcp(tcp: &mut [u8], begin: usize, is_first: bool, is_last: bool) {
    let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
    let sequence = sequence.wrapping_add(begin as u32);
    tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
    if !is_first {
        tcp[13] &= !CWR;
    }
    if !is_last {
        tcp[13] &= !(FIN | PSH);
    }
}

/// The sum of a frame's body, as if it began at an even place.
fn sum_body(burst: &Burst, frame: &Frame) -> u64 {
    // Even, so that each part begins at an even place.
    let mut part = [0; 2048];
    let (mut sum, mut at) = (0, 0);
    // Ends after FRAME_BYTES_MAX.
    loop {
        let read = burst.read_body(frame, at, &mut part);
        if read == 0 {
            return sum;
        }
        sum = u64::from(fold(sum)) + sum_be(0, &part[..read]);
        at += read;
    }
}

/// Adds up big-endian words; a last odd byte is the upper half of one. Not folded: there is room
/// for 2^48 words.
pub fn sum_be(begin: u64, bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    let mut sum = begin;
    for word in words {
        sum += u64::from(u32::from_be_bytes(*word));
    }
    match *rest {
        [] => sum,
        [a] => sum + u64::from(u16::from_be_bytes([a, 0])),
        [a, b] => sum + u64::from(u16::from_be_bytes([a, b])),
        [a, b, c, ..] => sum + u64::from(u32::from_be_bytes([a, b, c, 0])),
    }
}

/// Carries all that is beyond 16 bits back in.
fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The checksum of words that add up to this.
pub fn checksum_of(sum: u64) -> u16 {
    !fold(sum)
}

/// The sum of the pseudo header of TCP and UDP: both addresses (one kind or the other), the
/// protocol, the length of what the checksum is about.
pub fn pseudo_sum(addresses: &[u8], protocol: u8, len_bytes: u32) -> u64 {
    sum_be(0, addresses) + u64::from(protocol) + u64::from(len_bytes)
}

#[cfg(test)]
mod tests;
