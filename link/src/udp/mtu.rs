//! How large a datagram leaves a socket in one piece.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::ptr;

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
    let is_meant = |own: IpAddr| own == ip || (ip.is_unspecified() && !own.is_loopback());
    let names = interfaces_with(is_meant);
    let widest = names.iter().filter_map(|name| interface_mtu(name).ok()).max();
    widest.unwrap_or(MTU_COMMON).saturating_sub(header_bytes(ip))
}

/// The names of the interfaces that have such an address.
fn interfaces_with(is_meant: impl Fn(IpAddr) -> bool) -> Vec<Vec<u8>> {
    let mut first = ptr::null_mut();
    // SAFETY: `first` receives a list, or the call fails and it stays null.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut next = first;
    // SAFETY: `next` is null or an entry of the list, which lives until freeifaddrs.
    while let Some(entry) = unsafe { next.as_ref() } {
        // SAFETY: an entry's address is null or as long as its family says.
        if unsafe { interface_ip(entry.ifa_addr) }.is_some_and(&is_meant) {
            // SAFETY: an entry's name is a C string, and copied here.
            found.push(unsafe { CStr::from_ptr(entry.ifa_name) }.to_bytes().to_vec());
        }
        next = entry.ifa_next;
    }
    // SAFETY: the list came from getifaddrs, and nothing of it is used any more.
    unsafe { libc::freeifaddrs(first) };
    found
}

/// # Safety
/// `address` is null or points to an address that is as long as its family says.
unsafe fn interface_ip(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: the caller's promise.
    let family = i32::from(unsafe { address.as_ref() }?.sa_family);
    match family {
        libc::AF_INET => {
            // SAFETY: by its family it is one of these.
            let v4 = unsafe { &*address.cast::<libc::sockaddr_in>() };
            Some(IpAddr::from(v4.sin_addr.s_addr.to_ne_bytes()))
        }
        libc::AF_INET6 => {
            // SAFETY: by its family it is one of these.
            let v6 = unsafe { &*address.cast::<libc::sockaddr_in6>() };
            Some(IpAddr::from(v6.sin6_addr.s6_addr))
        }
        _ => None,
    }
}

fn interface_mtu(name: &[u8]) -> io::Result<usize> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    // SAFETY: it has integers and pointers only, for which zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (place, byte) in request.ifr_name.iter_mut().zip(name) {
        *place = *byte as libc::c_char;
    }
    // SAFETY: SIOCGIFMTU reads the name, which ends in zero, and writes `ifru_mtu`.
    let mtu = unsafe {
        if libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU, &mut request) != 0 {
            return Err(io::Error::last_os_error());
        }
        request.ifr_ifru.ifru_mtu
    };
    usize::try_from(mtu).map_err(io::Error::other)
}
