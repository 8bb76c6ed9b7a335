//! The headers around a datagram: Ethernet, IPv4 and UDP, made and read.

use std::net::{Ipv4Addr, SocketAddrV4};

/// A card's address.
pub(super) type Mac = [u8; 6];

/// Ethernet (14), IPv4 without options (20), UDP (8).
pub(super) const HEADER_BYTES: usize = 42;

const IP_AT: usize = 14;
const UDP_AT: usize = 34;
const IP_HEADER_BYTES: usize = 20;
const UDP_HEADER_BYTES: usize = 8;
const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const PROTOCOL_UDP: u8 = 17;
const TIME_TO_LIVE: u8 = 64;
const DO_NOT_FRAGMENT: u8 = 0x40;

/// From where to where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PacketRoute {
    pub(super) from_mac: Mac,
    pub(super) to_mac: Mac,
    pub(super) from: SocketAddrV4,
    pub(super) to: SocketAddrV4,
}

/// Writes the headers of a datagram of `payload_bytes`. UDP's checksum is left out, which IPv4
/// permits (RFC 768): every datagram of a session has a checksum or a seal of its own.
pub(super) fn write(way: &PacketRoute, payload_bytes: usize, into: &mut [u8]) {
    let header: &mut [u8; HEADER_BYTES] = into.first_chunk_mut().expect("room for the headers");
    let udp_bytes = (UDP_HEADER_BYTES + payload_bytes) as u16;
    let ip_bytes = IP_HEADER_BYTES as u16 + udp_bytes;
    header.fill(0);
    header[0..6].copy_from_slice(&way.to_mac);
    header[6..12].copy_from_slice(&way.from_mac);
    header[12..14].copy_from_slice(&ETHERTYPE_IPV4);
    let ip = &mut header[IP_AT..UDP_AT];
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&ip_bytes.to_be_bytes());
    ip[6] = DO_NOT_FRAGMENT;
    ip[8] = TIME_TO_LIVE;
    ip[9] = PROTOCOL_UDP;
    ip[12..16].copy_from_slice(&way.from.ip().octets());
    ip[16..20].copy_from_slice(&way.to.ip().octets());
    let sum = checksum(ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let udp = &mut header[UDP_AT..];
    udp[0..2].copy_from_slice(&way.from.port().to_be_bytes());
    udp[2..4].copy_from_slice(&way.to.port().to_be_bytes());
    udp[4..6].copy_from_slice(&udp_bytes.to_be_bytes());
}

/// Reads the headers of a packet that is whole; gives the way that it came and its payload, without
/// what Ethernet may have filled up. `None` for what is not of our kind, or shorter than it says.
pub(super) fn read(packet: &[u8]) -> Option<(PacketRoute, &[u8])> {
    let (header, rest) = packet.split_first_chunk::<HEADER_BYTES>()?;
    let ip = &header[IP_AT..UDP_AT];
    let udp = &header[UDP_AT..];
    let whole = ip[0] == 0x45 && ip[9] == PROTOCOL_UDP && ip[6] & 0x3f == 0 && ip[7] == 0;
    if header[12..14] != ETHERTYPE_IPV4 || !whole {
        return None;
    }
    let be16 = |at: &[u8]| usize::from(u16::from_be_bytes([at[0], at[1]]));
    let payload_bytes = be16(&udp[4..6]).checked_sub(UDP_HEADER_BYTES)?;
    if be16(&ip[2..4]) != IP_HEADER_BYTES + UDP_HEADER_BYTES + payload_bytes {
        return None;
    }
    let payload = rest.get(..payload_bytes)?;
    let address = |at: &[u8], port: &[u8]| {
        SocketAddrV4::new(Ipv4Addr::new(at[0], at[1], at[2], at[3]), be16(port) as u16)
    };
    let mac = |at: &[u8]| Mac::try_from(at).expect("six bytes");
    let way = PacketRoute {
        from_mac: mac(&header[6..12]),
        to_mac: mac(&header[0..6]),
        from: address(&ip[12..16], &udp[0..2]),
        to: address(&ip[16..20], &udp[2..4]),
    };
    Some((way, payload))
}

/// The sum of an IPv4 header whose checksum is zero (RFC 1071).
fn checksum(header: &[u8]) -> u16 {
    let words =
        header.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way() -> PacketRoute {
        PacketRoute {
            from_mac: [2, 0, 0, 0, 0, 1],
            to_mac: [2, 0, 0, 0, 0, 2],
            from: "10.0.0.1:4870".parse().unwrap(),
            to: "10.0.0.9:4871".parse().unwrap(),
        }
    }

    fn packet(payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0xff; HEADER_BYTES];
        write(&way(), payload.len(), &mut packet);
        packet.extend_from_slice(payload);
        packet
    }

    #[test]
    fn written_text_is_read_back() {
        let mut filled_up = packet(b"hello");
        filled_up.resize(60, 0);
        assert_eq!(read(&filled_up), Some((way(), &b"hello"[..])));
        // With its checksum the header sums up to nothing.
        assert_eq!(checksum(&filled_up[14..34]), 0);
    }

    #[test]
    fn the_checksum_is_that_of_the_standard() {
        let header = [
            0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0,
            0xc7,
        ];
        assert_eq!(checksum(&header), 0xb861);
    }

    #[test]
    fn lies_about_lengths_are_noticed() {
        let good = packet(b"hello");
        for len in 0..good.len() {
            assert_eq!(read(&good[..len]), None, "cut to {len}");
        }
        for (at, value) in [(12, 0x86), (14, 0x46), (17, 0xff), (20, 0x20), (21, 1), (23, 6)] {
            let mut wrong = good.clone();
            wrong[at] = value;
            assert_eq!(read(&wrong), None, "byte {at}");
        }
        for length in [0u16, 7, 12, 14, 0xffff] {
            let mut wrong = good.clone();
            wrong[38..40].copy_from_slice(&length.to_be_bytes());
            assert_eq!(read(&wrong), None, "UDP's length {length}");
        }
    }
}
