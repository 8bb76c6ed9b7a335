//! Marks a packet for its transport: a queue on its way is long (RFC 3168).

use crate::ether::{ETHER_BYTES, TYPE_IPV4, TYPE_IPV6, ether_type};
use crate::offload::{checksum_of, sum_be};

const ECN: u8 = 3;
/// Congestion was met.
const MET: u8 = 3;

/// Marks the packet in a frame without a tag, of which these are the first bytes. False when its
/// transport would not understand, or there is no such packet.
pub(super) fn congestion(first: &mut [u8]) -> bool {
    let Some((kind, ip)) = ether_type(first).zip(first.get_mut(ETHER_BYTES..)) else {
        return false;
    };
    match kind {
        TYPE_IPV4 if ip.len() >= 20 => {
            let header_bytes = usize::from(ip[0] & 15) * 4;
            if ip[1] & ECN == 0 || header_bytes < 20 || header_bytes > ip.len() {
                return false;
            }
            // A wrong one is not to become right by this.
            if checksum_of(sum_be(0, &ip[..header_bytes])) != 0 {
                return false;
            }
            ip[1] |= MET;
            ip[10..12].fill(0);
            let sum = checksum_of(sum_be(0, &ip[..header_bytes]));
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
            true
        }
        TYPE_IPV6 if ip.len() >= 40 => {
            // The traffic class is in the middle of the first bytes; its last two bits are these.
            if ip[1] >> 4 & ECN == 0 {
                return false;
            }
            ip[1] |= MET << 4;
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maker::FrameMaker;

    #[test]
    fn only_packets_of_capable_flows_are_marked_and_the_header_stays_right() {
        for ecn in 0..4 {
            let mut frame = FrameMaker::tcp4().payload(10).build();
            frame[ETHER_BYTES + 1] |= ecn;
            assert!(ecn == 0 || !congestion(&mut frame), "its checksum is wrong");
            let sum = u16::from_be_bytes([frame[ETHER_BYTES + 10], frame[ETHER_BYTES + 11]]);
            let right = (sum - u16::from(ecn)).to_be_bytes();
            frame[ETHER_BYTES + 10..ETHER_BYTES + 12].copy_from_slice(&right);
            let marked = congestion(&mut frame);
            assert_eq!(
                (marked, frame[ETHER_BYTES + 1] & ECN),
                (ecn > 0, if ecn > 0 { 3 } else { 0 })
            );
            if marked {
                assert_eq!(checksum_of(sum_be(0, &frame[ETHER_BYTES..ETHER_BYTES + 20])), 0);
            }
            let mut frame = FrameMaker::tcp6().payload(10).build();
            frame[ETHER_BYTES + 1] |= ecn << 4;
            assert_eq!(congestion(&mut frame), ecn > 0);
            assert_eq!(frame[ETHER_BYTES + 1] >> 4 & ECN, if ecn > 0 { 3 } else { 0 });
        }
    }

    #[test]
    fn short_and_foreign_frames_are_left_alone() {
        let whole = FrameMaker::tcp4().payload(10).build();
        for len in 0..ETHER_BYTES + 20 {
            assert!(!congestion(&mut whole[..len].to_vec()), "{len} bytes");
        }
        let mut arp = vec![0xff; 60];
        arp[12..14].copy_from_slice(&[8, 6]);
        assert!(!congestion(&mut arp));
    }
}
