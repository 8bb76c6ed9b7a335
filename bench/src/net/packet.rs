//! The frames of a stand-in guest, made beforehand, each with the header of virtio-net before it.
//!
//! Each frame has a mark in a field of IPv4 that only fragments need. By its mark the receiver
//! knows that a frame is one of ours, and its place in the order.

use net::Mac;
use net::maker::FrameMaker;
use net::offload::{checksum_of, sum_be};

/// The header before each frame in a buffer (virtio 1.2, section 5.1.6).
pub(super) const HEADER_BYTES: usize = 12;

/// The place in it that says how many buffers the frame is in.
const BUFFERS_AT: usize = 10;

/// Flags: the checksum must be completed, and TCP over IPv4 must be cut.
const NEEDS_CSUM: u8 = 1;
const GSO_TCPV4: u8 = 1;

/// Bytes of TCP in a segment: as many as a packet of 1500 bytes has room for beside time stamps.
pub(super) const SEGMENT_BYTES: usize = 1448;

/// Where TCP's header has its checksum.
const TCP_CHECKSUM_AT: u16 = 16;

/// The longest frame that goes as it is; a longer one is left to be cut.
pub(super) const WHOLE_BYTES_MAX: usize = 1514;

/// Headers of our frames with UDP: Ethernet, IPv4, UDP.
pub(super) const UDP_HEADERS_BYTES: usize = 14 + 20 + 8;
/// The same with TCP without options.
pub const TCP_HEADERS_BYTES: usize = 14 + 20 + 20;

/// An acknowledgement is as long as Linux's, which has time stamps.
pub(super) const ACKNOWLEDGEMENT_BYTES: usize = 66;

/// Where IPv4's header is, and in it the number that all fragments of a packet share, and the
/// header's checksum.
const IP: std::ops::Range<usize> = 14..34;
const IP_NUMBER_AT: usize = 4;
const IP_CHECKSUM_AT: usize = 10;

/// The upper half of that number in our frames. The lower half is the mark.
const OURS: u8 = 0xb5;

/// The first bytes of a buffer, up to the mark of its frame.
pub(super) const LOOKED_AT_BYTES: usize = HEADER_BYTES + IP.start + IP_NUMBER_AT + 2;

/// A frame's place in its sender's order, which goes round.
pub(super) type Mark = u8;

/// The sender and the receiver of a frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameAddresses {
    pub(super) from: Mac,
    pub(super) to: Mac,
}

impl FrameAddresses {
    fn of(self, maker: FrameMaker) -> FrameMaker {
        let address = |mac: Mac| 0x0a00_0000 | u32::from(mac.0[5]);
        let Self { from, to } = self;
        maker.from(from).to(to).addresses(address(from), address(to))
    }
}

/// A frame behind its header, without a mark.
#[derive(Clone, Debug)]
pub(super) struct Packet(pub(super) Vec<u8>);

impl Packet {
    /// A frame of so many bytes: UDP, or TCP that is left to be cut if it is long.
    pub(super) fn of_bytes(ends: FrameAddresses, bytes: usize) -> Self {
        if bytes <= WHOLE_BYTES_MAX {
            return Self::datagram(ends, bytes.saturating_sub(UDP_HEADERS_BYTES));
        }
        Self::tcp(ends, bytes - TCP_HEADERS_BYTES)
    }

    /// A UDP datagram with so many bytes in it.
    pub(super) fn datagram(ends: FrameAddresses, payload: usize) -> Self {
        let frame = ends.of(FrameMaker::udp4()).payload(payload).build();
        Self([vec![0; HEADER_BYTES], frame].concat())
    }

    /// So many bytes of a TCP stream, whose checksum is not completed. It must be cut if it is
    /// longer than a segment.
    pub(super) fn tcp(ends: FrameAddresses, payload: usize) -> Self {
        let maker = ends.of(FrameMaker::tcp4()).partial();
        let (above_at, headers) = (maker.above_at() as u16, maker.header_bytes());
        let mut packet = vec![0; HEADER_BYTES];
        let is_cut = payload > SEGMENT_BYTES;
        packet[..2].copy_from_slice(&[NEEDS_CSUM, if is_cut { GSO_TCPV4 } else { 0 }]);
        let segment = if is_cut { SEGMENT_BYTES as u16 } else { 0 };
        let words = [headers as u16, segment, above_at, TCP_CHECKSUM_AT];
        for (place, word) in packet[2..10].chunks_exact_mut(2).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        packet.extend(maker.payload(payload).build());
        Self(packet)
    }

    /// The acknowledgement of a TCP for data that it received.
    pub(super) fn acknowledgement(ends: FrameAddresses) -> Self {
        Self::tcp(ends, ACKNOWLEDGEMENT_BYTES - TCP_HEADERS_BYTES)
    }
}

/// Writes a mark into the first bytes of a packet.
pub(super) fn write_mark(packet: &mut [u8], mark: Mark) {
    let ip = &mut packet[HEADER_BYTES..][IP];
    ip[IP_NUMBER_AT..IP_NUMBER_AT + 2].copy_from_slice(&[OURS, mark]);
    ip[IP_CHECKSUM_AT..IP_CHECKSUM_AT + 2].fill(0);
    let sum = checksum_of(sum_be(0, ip));
    ip[IP_CHECKSUM_AT..IP_CHECKSUM_AT + 2].copy_from_slice(&sum.to_be_bytes());
}

/// The first bytes of a buffer that a frame came in.
pub(super) struct ArrivedBuffers {
    /// The number of buffers that the frame is in.
    pub(super) buffers: u16,
    /// None for a frame that is not one of ours.
    pub(super) mark: Option<Mark>,
}

impl ArrivedBuffers {
    pub(super) fn read(bytes: &[u8; LOOKED_AT_BYTES]) -> Self {
        let buffers = u16::from_le_bytes([bytes[BUFFERS_AT], bytes[BUFFERS_AT + 1]]).max(1);
        Self { buffers, mark: mark_of(&bytes[HEADER_BYTES..]) }
    }
}

/// The mark of a frame, without a header before it; none if it is not one of ours.
pub(super) fn mark_of(frame: &[u8]) -> Option<Mark> {
    let at = IP.start + IP_NUMBER_AT;
    let is_ours = frame.get(12..14)? == [0x08, 0] && *frame.get(at)? == OURS;
    frame.get(at + 1).copied().filter(|_| is_ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends() -> FrameAddresses {
        let mac = |last| Mac([0x52, 0x54, 0, 0, 0, last]);
        FrameAddresses { from: mac(1), to: mac(2) }
    }

    #[test]
    fn a_frame_is_as_long_as_was_asked_for() {
        for bytes in [64, 1500, 1514, 1515, 64 << 10] {
            let Packet(packet) = Packet::of_bytes(ends(), bytes);
            assert_eq!(packet.len(), HEADER_BYTES + bytes);
            assert_eq!(packet[12..24], [0x52, 0x54, 0, 0, 0, 2, 0x52, 0x54, 0, 0, 0, 1]);
            assert_eq!(packet[0] == NEEDS_CSUM, bytes > WHOLE_BYTES_MAX);
        }
        assert_eq!(Packet::datagram(ends(), 1).0.len(), HEADER_BYTES + 43, "netperf's UDP_RR");
        let Packet(said) = Packet::acknowledgement(ends());
        assert_eq!((said.len(), said[0], said[1]), (HEADER_BYTES + 66, NEEDS_CSUM, 0));
        let one = Packet::tcp(ends(), SEGMENT_BYTES).0;
        let more = Packet::tcp(ends(), SEGMENT_BYTES + 1).0;
        assert_eq!((one[1], more[1]), (0, GSO_TCPV4), "only what is longer is to be cut");
    }

    #[test]
    fn a_mark_is_read_where_it_was_written_and_headers_stay_right() {
        for mark in [0, 1, 255] {
            let Packet(mut packet) = Packet::of_bytes(ends(), 64);
            assert!(
                ArrivedBuffers::read(packet.first_chunk().unwrap()).mark.is_none(),
                "not one of ours"
            );
            write_mark(&mut packet, mark);
            packet[BUFFERS_AT] = 17;
            let came = ArrivedBuffers::read(packet.first_chunk().unwrap());
            assert_eq!((came.mark, came.buffers), (Some(mark), 17));
            assert_eq!(checksum_of(sum_be(0, &packet[HEADER_BYTES..][IP])), 0);
        }
    }
}
