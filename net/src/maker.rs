//! Makes frames: for tests and measurements, and for what a node says itself.

use crate::ether::{Mac, TAG_BYTES, TCP, TYPE_IPV4, TYPE_IPV6, TYPE_VLAN, UDP};
use crate::offload::{checksum_of, pseudo_sum, sum_be};

/// A frame to be built: addresses, headers, a payload that counts up.
#[derive(Clone, Debug)]
pub struct FrameMaker {
    to: Mac,
    from: Mac,
    tci: u16,
    is_v4: bool,
    protocol: u8,
    ports: (u16, u16),
    tcp_flags: u8,
    addresses: (u32, u32),
    payload: Vec<u8>,
    partial: bool,
}

impl FrameMaker {
    fn new(is_v4: bool, protocol: u8) -> Self {
        Self {
            to: Mac([0x52, 0x54, 0, 0, 0, 2]),
            from: Mac([0x52, 0x54, 0, 0, 0, 1]),
            tci: 0,
            is_v4,
            protocol,
            ports: (1000, 2000),
            tcp_flags: crate::ether::ACK,
            addresses: (0x0a00_0001, 0x0a00_0002),
            payload: Vec::new(),
            partial: false,
        }
    }

    /// TCP over IPv4.
    pub fn tcp4() -> Self {
        Self::new(true, TCP)
    }

    /// TCP over IPv6.
    pub fn tcp6() -> Self {
        Self::new(false, TCP)
    }

    /// UDP over IPv4.
    pub fn udp4() -> Self {
        Self::new(true, UDP)
    }

    /// UDP over IPv6.
    pub fn udp6() -> Self {
        Self::new(false, UDP)
    }

    /// The receiver.
    #[must_use]
    pub fn to(mut self, to: Mac) -> Self {
        self.to = to;
        self
    }

    /// The sender.
    #[must_use]
    pub fn from(mut self, from: Mac) -> Self {
        self.from = from;
        self
    }

    /// With a tag.
    #[must_use]
    pub fn tag(mut self, tci: u16) -> Self {
        self.tci = tci;
        self
    }

    /// The ports of the sender and the receiver.
    #[must_use]
    pub fn ports(mut self, from: u16, to: u16) -> Self {
        self.ports = (from, to);
        self
    }

    /// The IPv4 addresses of the sender and the receiver; of IPv6 they are the last 32 bits.
    #[must_use]
    pub fn addresses(mut self, from: u32, to: u32) -> Self {
        self.addresses = (from, to);
        self
    }

    /// With these flags of TCP.
    #[must_use]
    pub fn tcp_flags(mut self, flags: u8) -> Self {
        self.tcp_flags = flags;
        self
    }

    /// With so many bytes, each the last one plus seven.
    #[must_use]
    pub fn payload(mut self, len: usize) -> Self {
        self.payload = (0..len).map(|at| (at * 7 + at / 256) as u8).collect();
        self
    }

    /// With a checksum that is still to be completed: only of the pseudo header.
    #[must_use]
    pub fn partial(mut self) -> Self {
        self.partial = true;
        self
    }

    /// Where TCP's or UDP's header begins, without a tag.
    pub fn above_at(&self) -> usize {
        if self.is_v4 { 34 } else { 54 }
    }

    /// How long its headers are, without a tag.
    pub fn header_bytes(&self) -> usize {
        self.above_at() + if self.protocol == TCP { 20 } else { 8 }
    }

    fn above(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(self.ports.0.to_be_bytes());
        bytes.extend(self.ports.1.to_be_bytes());
        if self.protocol == TCP {
            bytes.extend([1, 2, 3, 4, 5, 6, 7, 8, 5 << 4, self.tcp_flags, 0x40, 0, 0, 0, 0, 0]);
        } else {
            bytes.extend(((8 + self.payload.len()) as u16).to_be_bytes());
            bytes.extend([0, 0]);
        }
        bytes.extend(&self.payload);
        bytes
    }

    fn ip(&self, above_bytes: usize) -> Vec<u8> {
        let mut ip = Vec::new();
        if self.is_v4 {
            ip.extend([0x45, 0]);
            ip.extend(((20 + above_bytes) as u16).to_be_bytes());
            ip.extend([0x12, 0x34, 0x40, 0, 64, self.protocol, 0, 0]);
            ip.extend(self.addresses.0.to_be_bytes());
            ip.extend(self.addresses.1.to_be_bytes());
            let sum = checksum_of(sum_be(0, &ip));
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
        } else {
            ip.extend([0x60, 0, 0, 0]);
            ip.extend((above_bytes as u16).to_be_bytes());
            ip.extend([self.protocol, 64]);
            for address in [self.addresses.0, self.addresses.1] {
                ip.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
                ip.extend(address.to_be_bytes());
            }
        }
        ip
    }

    /// Its bytes.
    pub fn build(&self) -> Vec<u8> {
        let mut above = self.above();
        let ip = self.ip(above.len());
        let mut frame = Vec::with_capacity(14 + TAG_BYTES + ip.len() + above.len());
        frame.extend(self.to.0);
        frame.extend(self.from.0);
        if self.tci != 0 {
            frame.extend(TYPE_VLAN.to_be_bytes());
            frame.extend(self.tci.to_be_bytes());
        }
        frame.extend(if self.is_v4 { TYPE_IPV4 } else { TYPE_IPV6 }.to_be_bytes());
        let ends = if self.is_v4 { &ip[12..20] } else { &ip[8..40] };
        let pseudo = pseudo_sum(ends, self.protocol, above.len() as u32);
        let field = if self.protocol == TCP { 16 } else { 6 };
        let word =
            if self.partial { !checksum_of(pseudo) } else { checksum_of(sum_be(pseudo, &above)) };
        above[field..field + 2].copy_from_slice(&word.to_be_bytes());
        frame.extend(ip);
        frame.extend(above);
        frame
    }
}
