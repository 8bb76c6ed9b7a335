//! Socket addresses as the kernel has them, without unsafe code.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// The longest one of ours: `sockaddr_in6`.
pub(super) const RAW_BYTES_MAX: usize = 28;

/// Length of a `sockaddr_in`.
const RAW_V4_BYTES: usize = 16;

/// A `sockaddr_in` or `sockaddr_in6`, aligned like one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(8))]
pub(super) struct RawAddress {
    bytes: [u8; RAW_BYTES_MAX],
}

impl RawAddress {
    pub(super) const ZERO: Self = Self { bytes: [0; RAW_BYTES_MAX] };

    /// `address` as a socket of IPv4 or IPv6 wants it. An IPv6 socket reaches IPv4 peers by mapped
    /// addresses; the other way round there is no way.
    pub(super) fn new(address: SocketAddr, socket_is_v6: bool) -> Option<Self> {
        let mut raw = Self::ZERO;
        match (address, socket_is_v6) {
            (SocketAddr::V4(v4), false) => raw.write_v4(v4),
            (SocketAddr::V4(v4), true) => {
                raw.write_v6(SocketAddrV6::new(v4.ip().to_ipv6_mapped(), v4.port(), 0, 0));
            }
            (SocketAddr::V6(v6), true) => raw.write_v6(v6),
            (SocketAddr::V6(v6), false) => {
                raw.write_v4(SocketAddrV4::new(v6.ip().to_ipv4_mapped()?, v6.port()));
            }
        }
        Some(raw)
    }

    fn write_v4(&mut self, v4: SocketAddrV4) {
        self.bytes[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
        self.bytes[2..4].copy_from_slice(&v4.port().to_be_bytes());
        self.bytes[4..8].copy_from_slice(&v4.ip().octets());
    }

    fn write_v6(&mut self, v6: SocketAddrV6) {
        self.bytes[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
        self.bytes[2..4].copy_from_slice(&v6.port().to_be_bytes());
        self.bytes[4..8].copy_from_slice(&v6.flowinfo().to_be_bytes());
        self.bytes[8..24].copy_from_slice(&v6.ip().octets());
        self.bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
    }

    /// Length of the address that was written.
    pub(super) fn len_bytes(&self) -> usize {
        if self.family() == libc::AF_INET { RAW_V4_BYTES } else { RAW_BYTES_MAX }
    }

    fn family(&self) -> i32 {
        i32::from(u16::from_ne_bytes([self.bytes[0], self.bytes[1]]))
    }

    /// Reads what the kernel wrote, `len_bytes` of it. Mapped IPv4 addresses come out as IPv4.
    pub(super) fn read(&self, len_bytes: usize) -> Option<SocketAddr> {
        let bytes = &self.bytes;
        let port = u16::from_be_bytes([bytes[2], bytes[3]]);
        match self.family() {
            libc::AF_INET if len_bytes >= RAW_V4_BYTES => {
                let ip: [u8; 4] = bytes[4..8].try_into().ok()?;
                Some(SocketAddr::from((Ipv4Addr::from(ip), port)))
            }
            libc::AF_INET6 if len_bytes >= RAW_BYTES_MAX => {
                let ip: [u8; 16] = bytes[8..24].try_into().ok()?;
                let ip = Ipv6Addr::from(ip);
                let IpAddr::V6(ip) = ip.to_canonical() else {
                    return Some(SocketAddr::from((ip.to_canonical(), port)));
                };
                let flowinfo = u32::from_be_bytes(bytes[4..8].try_into().ok()?);
                let scope_id = u32::from_ne_bytes(bytes[24..28].try_into().ok()?);
                Some(SocketAddr::V6(SocketAddrV6::new(ip, port, flowinfo, scope_id)))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_trip() {
        let cases = [
            ("10.1.2.3:4870", false, 16),
            ("10.1.2.3:4870", true, 28),
            ("[fe80::1%7]:9", true, 28),
            ("[2001:db8::5]:65535", true, 28),
        ];
        for (text, socket_is_v6, len_bytes) in cases {
            let address: SocketAddr = text.parse().unwrap();
            let raw = RawAddress::new(address, socket_is_v6).unwrap();
            assert_eq!(raw.len_bytes(), len_bytes);
            assert_eq!(raw.read(len_bytes), Some(address), "{text}");
            assert_eq!(raw.read(2), None);
        }
    }

    #[test]
    fn an_ipv4_socket_reaches_only_ipv4() {
        assert_eq!(RawAddress::new("[2001:db8::5]:1".parse().unwrap(), false), None);
        let mapped = RawAddress::new("[::ffff:10.0.0.1]:1".parse().unwrap(), false).unwrap();
        assert_eq!(mapped.read(16), Some("10.0.0.1:1".parse().unwrap()));
        assert_eq!(RawAddress::ZERO.read(28), None);
    }
}
