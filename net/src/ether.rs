//! Ethernet, VLAN, IP, TCP and UDP headers, read from bytes that are ours: a frame's head is copied
//! out of the guest once, and everything here looks at that copy.
//!
//! No code here trusts a length: a header that does not fit is `None`, never a panic.

use std::fmt;
use std::str::FromStr;

/// Bytes of an Ethernet header without a tag.
pub const ETHER_BYTES: usize = 14;

/// Bytes of a VLAN tag: its type and its control information.
pub const TAG_BYTES: usize = 4;

/// Bytes of the two addresses, behind which a tag is.
pub const ADDRESSES_BYTES: usize = 12;

/// The type of a VLAN tag (802.1Q).
pub const TYPE_VLAN: u16 = 0x8100;
/// The type of IPv4.
pub const TYPE_IPV4: u16 = 0x0800;
/// The type of IPv6.
pub const TYPE_IPV6: u16 = 0x86dd;
/// The type of ARP.
pub const TYPE_ARP: u16 = 0x0806;
/// The type of reverse ARP.
pub const TYPE_RARP: u16 = 0x8035;

/// ICMP's number.
pub const ICMP: u8 = 1;
/// TCP's number.
pub const TCP: u8 = 6;
/// UDP's number.
pub const UDP: u8 = 17;
/// ICMPv6's number.
pub const ICMPV6: u8 = 58;

/// The most extension headers of IPv6 that are skipped; real packets have none or one.
const EXTENSIONS_MAX: usize = 6;

/// An Ethernet address.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Everyone.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// A group's address, everyone's included.
    #[inline]
    pub fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// An address that a single station can have.
    #[inline]
    pub fn is_station(self) -> bool {
        !self.is_group() && self.0 != [0; 6]
    }

    /// As a number, for tables.
    #[inline]
    pub fn to_u64(self) -> u64 {
        let [a, b, c, d, e, f] = self.0;
        u64::from_be_bytes([0, 0, a, b, c, d, e, f])
    }

    /// The first six bytes of `bytes`.
    #[inline]
    fn read(bytes: &[u8]) -> Option<Self> {
        bytes.first_chunk().map(|bytes| Self(*bytes))
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not an Ethernet address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not an Ethernet address, such as 52:54:00:12:34:56")]
pub struct ParseMacError(String);

impl FromStr for Mac {
    type Err = ParseMacError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ParseMacError(text.to_owned());
        let mut mac = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut mac {
            let part = parts.next().filter(|part| part.len() == 2).ok_or_else(wrong)?;
            let digits = part.bytes().all(|byte| byte.is_ascii_hexdigit());
            *byte = u8::from_str_radix(part, 16).ok().filter(|_| digits).ok_or_else(wrong)?;
        }
        if parts.next().is_some() { Err(wrong()) } else { Ok(Self(mac)) }
    }
}

/// The big-endian word at `at`.
pub(crate) fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    let word = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_be_bytes(*word))
}

/// The big-endian double word at `at`.
pub(crate) fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_be_bytes(*word))
}

/// Where a frame goes and where it came from.
#[inline]
pub fn addresses(head: &[u8]) -> Option<(Mac, Mac)> {
    Some((Mac::read(head)?, Mac::read(head.get(6..)?)?))
}

/// The type of what a frame without a tag carries.
pub fn ether_type(head: &[u8]) -> Option<u16> {
    be16(head, ADDRESSES_BYTES)
}

/// An address of either kind. IPv4's are as they are in IPv6 (::ffff:a.b.c.d), so that there is one
/// kind of comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ip(pub u128);

impl Ip {
    const V4: u128 = 0xffff << 32;

    /// An IPv4 address.
    pub fn v4(address: u32) -> Self {
        Self(Self::V4 | u128::from(address))
    }

    /// Whether it is an IPv4 address.
    pub fn is_v4(self) -> bool {
        self.0 >> 32 == 0xffff
    }
}

/// The known fields of a packet's IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpHeader {
    /// IPv4, not IPv6.
    pub is_v4: bool,
    /// The sender.
    pub source: Ip,
    /// The receiver.
    pub destination: Ip,
    /// The protocol above, behind all extension headers that are known.
    pub protocol: u8,
    /// Where that begins in the frame.
    pub payload_at: usize,
    /// How many bytes of the frame the packet takes, by its own word, from the IP header on.
    pub packet_bytes: u32,
    /// A fragment that is not the first one: it goes on with data, not with a header.
    pub is_later_fragment: bool,
    /// A fragment, the first one or a later one.
    pub is_fragment: bool,
}

/// Reads the IP header of a frame without a tag, if it has one and all of it is in `head`.
pub fn ip(head: &[u8]) -> Option<IpHeader> {
    match ether_type(head)? {
        TYPE_IPV4 => ipv4(head, ETHER_BYTES),
        TYPE_IPV6 => ipv6(head, ETHER_BYTES),
        _ => None,
    }
}

/// The header that begins at `start`.
fn ipv4(head: &[u8], start: usize) -> Option<IpHeader> {
    let packet = head.get(start..)?;
    let first = *packet.first()?;
    let header = usize::from(first & 15) * 4;
    if first >> 4 != 4 || header < 20 || packet.len() < header {
        return None;
    }
    let fragment = be16(packet, 6)?;
    Some(IpHeader {
        is_v4: true,
        source: Ip::v4(be32(packet, 12)?),
        destination: Ip::v4(be32(packet, 16)?),
        protocol: packet[9],
        payload_at: start + header,
        packet_bytes: u32::from(be16(packet, 2)?),
        is_later_fragment: fragment & 0x1fff != 0,
        is_fragment: fragment & 0x3fff != 0,
    })
}

/// The header that begins at `start`.
fn ipv6(head: &[u8], start: usize) -> Option<IpHeader> {
    let packet = head.get(start..)?;
    if packet.first()? >> 4 != 6 {
        return None;
    }
    let address = |at: usize| {
        let bytes = packet.get(at..)?.first_chunk()?;
        Some(Ip(u128::from_be_bytes(*bytes)))
    };
    let (source, destination) = (address(8)?, address(24)?);
    let (mut protocol, mut at) = (packet[6], 40);
    let (mut is_fragment, mut is_later_fragment) = (false, false);
    for _ in 0..EXTENSIONS_MAX {
        let len = match protocol {
            // Hop-by-hop, routing, destination options: their length in units of 8 bytes.
            0 | 43 | 60 => (usize::from(*packet.get(at + 1)?) + 1) * 8,
            44 => {
                let fragment = be16(packet, at + 2)?;
                is_fragment = fragment & 0xfff9 != 0;
                is_later_fragment = fragment & 0xfff8 != 0;
                8
            }
            _ => break,
        };
        protocol = *packet.get(at)?;
        at += len;
    }
    (at <= packet.len()).then_some(IpHeader {
        is_v4: false,
        source,
        destination,
        protocol,
        payload_at: start + at,
        packet_bytes: 40 + u32::from(be16(packet, 4)?),
        is_later_fragment,
        is_fragment,
    })
}

/// A packet of a flow: its IP header, and what of the header above is in the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowPacket {
    /// Its IP header.
    pub ip: IpHeader,
    /// TCP's and UDP's ports, source first. None for other protocols and for later fragments.
    pub ports: Option<(u16, u16)>,
    /// TCP's flags; zero otherwise.
    pub tcp_flags: u8,
}

impl FlowPacket {
    /// Whether it begins a connection of TCP.
    pub fn is_tcp_first(&self) -> bool {
        self.ip.protocol == TCP && self.tcp_flags & (SYN | ACK | RST) == SYN
    }
}

/// TCP: no more from this side.
pub const FIN: u8 = 1;
/// TCP: the beginning.
pub const SYN: u8 = 2;
/// TCP: the end.
pub const RST: u8 = 4;
/// TCP: hand it over at once.
pub const PSH: u8 = 8;
/// TCP: an acknowledgement.
pub const ACK: u8 = 16;
/// TCP: the sender has slowed down.
pub const CWR: u8 = 128;

/// Reads what is there of a packet, if the frame is one of IP.
pub fn packet(head: &[u8]) -> Option<FlowPacket> {
    let ip = ip(head)?;
    let mut packet = FlowPacket { ip, ports: None, tcp_flags: 0 };
    if !ip.is_later_fragment && matches!(ip.protocol, TCP | UDP) {
        let above = head.get(ip.payload_at..)?;
        packet.ports = Some((be16(above, 0)?, be16(above, 2)?));
        if ip.protocol == TCP {
            packet.tcp_flags = *above.get(13)?;
        }
    }
    Some(packet)
}

/// Bytes of an ICMP error before the packet that it is about, of either kind of IP.
const ICMP_ERROR_BYTES: usize = 8;

/// The packet that an ICMP error quotes, if this is an error and goes to that packet's sender: its
/// IP header and its ports. The quoted packet need not be whole.
pub fn quoted(head: &[u8], error: &IpHeader) -> Option<FlowPacket> {
    if error.is_fragment {
        return None;
    }
    let (kind, at) = (*head.get(error.payload_at)?, error.payload_at + ICMP_ERROR_BYTES);
    // Unreachable, source quench, time exceeded, a wrong parameter; of ICMPv6 too big instead of
    // the second, and all errors come first.
    let ip = match (error.protocol, kind) {
        (ICMP, 3 | 4 | 11 | 12) if error.is_v4 => ipv4(head, at)?,
        (ICMPV6, 1..=4) if !error.is_v4 => ipv6(head, at)?,
        _ => return None,
    };
    if ip.source != error.destination {
        return None;
    }
    let mut packet = FlowPacket { ip, ports: None, tcp_flags: 0 };
    if !ip.is_later_fragment && matches!(ip.protocol, TCP | UDP) {
        packet.ports = Some((be16(head, ip.payload_at)?, be16(head, ip.payload_at + 2)?));
    }
    Some(packet)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maker::FrameMaker;
    use random::Random;

    #[test]
    fn an_address_is_read_and_written() {
        let mac: Mac = "52:54:00:12:34:5F".parse().unwrap();
        assert_eq!(mac.to_string(), "52:54:00:12:34:5f");
        assert!(mac.is_station() && !Mac::BROADCAST.is_station() && !Mac::default().is_station());
        for wrong in ["", "52:54:00:12:34", "52:54:00:12:34:56:78", "+2:54:00:12:34:56", "a:b"] {
            assert!(wrong.parse::<Mac>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn headers_are_found() {
        let frame = FrameMaker::tcp4().payload(100).build();
        let packet = packet(&frame).unwrap();
        assert_eq!((packet.ip.is_v4, packet.ip.protocol, packet.ip.payload_at), (true, TCP, 34));
        assert_eq!(packet.ports, Some((1000, 2000)));
        assert_eq!(packet.ip.packet_bytes as usize, frame.len() - ETHER_BYTES);
        let frame = FrameMaker::udp6().payload(9).build();
        let packet = super::packet(&frame).unwrap();
        assert_eq!((packet.ip.is_v4, packet.ip.protocol, packet.ip.payload_at), (false, UDP, 54));
        assert_eq!(packet.ip.packet_bytes as usize, frame.len() - ETHER_BYTES);
    }

    #[test]
    fn an_extension_header_is_skipped_and_a_later_fragment_has_no_ports() {
        let mut frame = FrameMaker::udp6().payload(9).build();
        // A fragment header in between, not the first fragment.
        frame.splice(54..54, [UDP, 0, 0, 8, 0, 0, 0, 1]);
        frame[20] = 44;
        let packet = packet(&frame).unwrap();
        assert_eq!((packet.ip.protocol, packet.ip.payload_at), (UDP, 62));
        assert!(packet.ip.is_later_fragment && packet.ports.is_none());
        let mut frame = FrameMaker::tcp4().payload(9).build();
        frame[21] = 1;
        assert_eq!(super::packet(&frame).unwrap().ports, None);
    }

    #[test]
    fn no_bytes_make_a_reader_panic() {
        let mut dice = Random::new(1);
        let makers = [FrameMaker::tcp4(), FrameMaker::tcp6(), FrameMaker::udp4()];
        for _ in 0..20_000 {
            let mut frame = makers[dice.below(3) as usize].clone().payload(40).build();
            frame.truncate(dice.below(frame.len() as u64 + 1) as usize);
            for _ in 0..dice.below(4) {
                if !frame.is_empty() {
                    let at = dice.below(frame.len() as u64) as usize;
                    frame[at] = dice.draw() as u8;
                }
            }
            if let Some(packet) = packet(&frame) {
                let _ = quoted(&frame, &packet.ip);
            }
            let _ = addresses(&frame);
        }
    }
}
