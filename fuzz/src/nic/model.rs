//! The model of a nic and its network: it treats whole frames in one piece, one rule after the
//! other.

use ::net::ether::{self, ETHER_BYTES, TCP, UDP};
use ::net::{Cut, FRAME_BYTES_MAX, Mac, Offers, Reason};

/// The bytes of the header before a frame, without the number of buffers.
pub(super) const HEADER_BYTES: usize = 10;

/// The part of a frame that is read.
const HEAD_BYTES: usize = 192;

const SEGMENTS_MAX: usize = 65_536 / 48;

/// A frame that was taken, without its tag, and the offloads that are not done yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NicSent {
    pub(super) bytes: Vec<u8>,
    /// The tag's VLAN.
    pub(super) vlan: u16,
    /// Where the sum begins, and the checksum's distance from there.
    pub(super) checksum: Option<(usize, usize)>,
    /// How it will be cut: the kind, whether CWR is set, and the bytes of payload of a segment.
    pub(super) cut: Option<(Cut, bool, usize)>,
}

/// The headers of a frame that will be cut.
struct Headers {
    is_v4: bool,
    protocol: u8,
    above_at: usize,
    bytes: usize,
}

fn word(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

fn headers(head: &[u8], cut: Cut) -> Option<Headers> {
    let ip = ether::ip(head)?;
    let protocol = if cut == Cut::Udp { UDP } else { TCP };
    let is_kind = cut == Cut::Udp || (cut == Cut::Tcp4) == ip.is_v4;
    if !is_kind || ip.is_fragment || ip.protocol != protocol {
        return None;
    }
    let above_at = ip.payload_at;
    let above_bytes =
        if protocol == UDP { 8 } else { usize::from(*head.get(above_at + 12)? >> 4) * 4 };
    let bytes = above_at + above_bytes;
    let is_whole = bytes <= head.len() && (protocol == UDP || above_bytes >= 20);
    is_whole.then_some(Headers { is_v4: ip.is_v4, protocol, above_at, bytes })
}

/// Whether the two bytes at this place belong to addresses, ports or flags.
fn changes_headers(head: &[u8], at: usize) -> bool {
    let Some(ip) = ether::ip(head) else { return false };
    let own = match ip.protocol {
        TCP => Some((16, 20)),
        UDP => Some((6, 8)),
        _ => None,
    };
    match own {
        _ if at < ip.payload_at => true,
        Some((place, end)) => at != ip.payload_at + place && at < ip.payload_at + end,
        None => false,
    }
}

/// The result for a chain with these bytes, whose driver may ask for these offloads.
pub(super) fn read(
    chain: &[u8],
    header_bytes: usize,
    offers: &Offers,
    mtu: usize,
) -> Result<NicSent, Reason> {
    let header = chain.get(..HEADER_BYTES).ok_or(Reason::Short)?;
    let cut = match header[1] & 0x7f {
        0 => None,
        1 => Some(Cut::Tcp4),
        4 => Some(Cut::Tcp6),
        5 => Some(Cut::Udp),
        _ => return Err(Reason::OffloadUnknown),
    };
    let mut bytes = chain.get(header_bytes..).unwrap_or_default().to_vec();
    if bytes.len() < ETHER_BYTES {
        return Err(Reason::Short);
    }
    if bytes.len() > FRAME_BYTES_MAX {
        return Err(Reason::TooLong);
    }
    let (needs, mut start, offset) = (header[0] & 1 == 1, word(header, 6), word(header, 8));
    let (mut head, mut tci) = (bytes.len().min(HEAD_BYTES), 0);
    if bytes[12..14] == [0x81, 0] {
        if bytes.len() < ETHER_BYTES + 4 {
            return Err(Reason::Short);
        }
        tci = u16::from_be_bytes([bytes[14], bytes[15]]);
        bytes.drain(12..16);
        head -= 4;
        if needs {
            start = start.checked_sub(4).ok_or(Reason::ChecksumPlace)?;
        }
        if tci & 0xfff == 0 && bytes[12..14] == [0x81, 0] {
            return Err(Reason::VlanForeign);
        }
    }
    let mut sent = NicSent { bytes, vlan: tci & 0xfff, checksum: None, cut: None };
    if needs || cut.is_some() {
        if !offers.checksum {
            return Err(Reason::OffloadUnknown);
        }
        if !needs || start < ETHER_BYTES || start + offset + 2 > head {
            return Err(Reason::ChecksumPlace);
        }
        if changes_headers(&sent.bytes[..head], start + offset) {
            return Err(Reason::ChecksumPlace);
        }
        sent.checksum = Some((start, offset));
    }
    let mut longest = sent.bytes.len();
    if let Some(cut) = cut {
        let cut = (cut, header[1] & 0x80 != 0, word(header, 4));
        longest = sent.check_cut(cut, head, offers)?;
    }
    if longest - ETHER_BYTES > mtu { Err(Reason::OverMtu) } else { Ok(sent) }
}

fn takes(offers: &Offers, cut: Cut, is_v4: bool, has_ecn: bool) -> bool {
    (offers.ecn || !has_ecn)
        && match cut {
            Cut::None => true,
            Cut::Tcp4 => offers.tcp4,
            Cut::Tcp6 => offers.tcp6,
            Cut::Udp => !has_ecn && if is_v4 { offers.udp4 } else { offers.udp6 },
        }
}

impl NicSent {
    /// The length of the longest segment, if the frame may be cut like this.
    fn check_cut(
        &mut self,
        (cut, has_ecn, segment): (Cut, bool, usize),
        head: usize,
        offers: &Offers,
    ) -> Result<usize, Reason> {
        let headers = headers(&self.bytes[..head], cut).ok_or(Reason::SegmentHeaders)?;
        if !takes(offers, cut, headers.is_v4, has_ecn) {
            return Err(Reason::OffloadUnknown);
        }
        let offset = if headers.protocol == TCP { 16 } else { 6 };
        if self.checksum != Some((headers.above_at, offset)) {
            return Err(Reason::ChecksumPlace);
        }
        let payload = self.bytes.len() - headers.bytes;
        if segment == 0 || payload.div_ceil(segment) > SEGMENTS_MAX {
            return Err(Reason::SegmentSize);
        }
        if payload <= segment {
            return Ok(self.bytes.len());
        }
        self.cut = Some((cut, has_ecn, segment));
        Ok(headers.bytes + segment)
    }

    /// Its addresses: the receiver's and the sender's.
    pub(super) fn addresses(&self) -> (Mac, Mac) {
        ether::addresses(&self.bytes).expect("it has both")
    }

    /// The headers and frames that arrive at a guest which accepts these offloads.
    pub(super) fn delivered(&self, offers: &Offers) -> Vec<([u8; HEADER_BYTES], Vec<u8>)> {
        let mut header = [0; HEADER_BYTES];
        let Some((start, offset)) = self.checksum else {
            return vec![(header, self.bytes.clone())];
        };
        let head = &self.bytes[..self.bytes.len().min(HEAD_BYTES)];
        let (segments, cut) = match self.cut {
            None => (vec![self.bytes.clone()], None),
            Some((cut, has_ecn, segment)) => {
                let headers = headers(head, cut).expect("they were there");
                if offers.checksum && takes(offers, cut, headers.is_v4, has_ecn) {
                    (vec![self.bytes.clone()], Some((cut, has_ecn, segment, headers.bytes)))
                } else {
                    (self.cut(&headers, segment), None)
                }
            }
        };
        if !offers.checksum {
            header[0] = 2;
            let complete = |mut bytes: Vec<u8>| {
                let sum = match !sum(&bytes[start..]) {
                    0 => 0xffff,
                    sum => sum,
                };
                bytes[start + offset..start + offset + 2].copy_from_slice(&sum.to_be_bytes());
                (header, bytes)
            };
            return segments.into_iter().map(complete).collect();
        }
        header[0] = 1;
        header[6..8].copy_from_slice(&(start as u16).to_le_bytes());
        header[8..10].copy_from_slice(&(offset as u16).to_le_bytes());
        if let Some((cut, has_ecn, segment, header_bytes)) = cut {
            header[1] = match cut {
                Cut::None => 0,
                Cut::Tcp4 => 1,
                Cut::Tcp6 => 4,
                Cut::Udp => 5,
            } | if has_ecn { 0x80 } else { 0 };
            header[2..4].copy_from_slice(&(header_bytes as u16).to_le_bytes());
            header[4..6].copy_from_slice(&(segment as u16).to_le_bytes());
        }
        segments.into_iter().map(|it| (header, it)).collect()
    }

    /// Its segments, each with the sum of the pseudo header at the checksum's place.
    fn cut(&self, headers: &Headers, segment: usize) -> Vec<Vec<u8>> {
        let payload = &self.bytes[headers.bytes..];
        let count = payload.len().div_ceil(segment);
        let pieces = payload.chunks(segment).enumerate();
        pieces
            .map(|(number, piece)| self.segment(headers, (number, count), segment, piece))
            .collect()
    }

    fn segment(
        &self,
        headers: &Headers,
        (number, count): (usize, usize),
        segment: usize,
        piece: &[u8],
    ) -> Vec<u8> {
        let Headers { is_v4, protocol, above_at, bytes: header_bytes } = *headers;
        let mut bytes = self.bytes[..header_bytes].to_vec();
        let above_bytes = header_bytes - above_at + piece.len();
        let mut put = |at: usize, word: u16| bytes[at..at + 2].copy_from_slice(&word.to_be_bytes());
        let be = |at: usize| u16::from_be_bytes([self.bytes[at], self.bytes[at + 1]]);
        if is_v4 {
            put(16, (above_at - ETHER_BYTES + above_bytes) as u16);
            put(18, be(18).wrapping_add(number as u16));
            put(24, 0);
        } else {
            put(18, (above_at - ETHER_BYTES - 40 + above_bytes) as u16);
        }
        if protocol == UDP {
            put(above_at + 4, above_bytes as u16);
        } else {
            let high = u32::from(be(above_at + 4)) << 16;
            let sequence = high | u32::from(be(above_at + 6));
            let sequence = sequence.wrapping_add((number * segment) as u32);
            put(above_at + 4, (sequence >> 16) as u16);
            put(above_at + 6, sequence as u16);
            let flags = &mut bytes[above_at + 13];
            // Only the first one has CWR, only the last one FIN and PSH.
            *flags &= if number == 0 { 0xff } else { !0x80 };
            *flags &= if number + 1 == count { 0xff } else { !0x09 };
        }
        if is_v4 {
            let sum = !sum(&bytes[ETHER_BYTES..above_at]);
            bytes[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        let mut pseudo = bytes[if is_v4 { 26..34 } else { 22..54 }].to_vec();
        pseudo.extend(u32::from(protocol).to_be_bytes());
        pseudo.extend((above_bytes as u32).to_be_bytes());
        let at = above_at + if protocol == TCP { 16 } else { 6 };
        bytes[at..at + 2].copy_from_slice(&sum(&pseudo).to_be_bytes());
        bytes.extend_from_slice(piece);
        bytes
    }
}

/// The one's complement sum of big-endian words (RFC 1071).
fn sum(bytes: &[u8]) -> u16 {
    let mut sum = 0u64;
    for pair in bytes.chunks(2) {
        sum += u64::from(pair[0]) << 8 | u64::from(pair.get(1).copied().unwrap_or_default());
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
