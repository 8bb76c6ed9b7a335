//! How large a datagram leaves a socket in one piece.

use std::net::IpAddr;

use crate::interface::widest_mtu;

/// Ethernet's, for addresses of which we cannot tell the interface.
const MTU_COMMON: usize = 1500;

/// The headers before a datagram's payload: IPv4 (20) or IPv6 (40), and UDP (8).
fn header_bytes(ip: IpAddr) -> usize {
    if ip.is_ipv4() { 28 } else { 48 }
}

/// The largest UDP payload that fits the interface with address `ip`, or the widest interface with
/// an address that leads out of this machine where `ip` stands for any; Ethernet's where there is
/// none.
pub(super) fn datagram_bytes_max(ip: IpAddr) -> usize {
    let ip = ip.to_canonical();
    widest_mtu(ip).unwrap_or(MTU_COMMON).saturating_sub(header_bytes(ip))
}
