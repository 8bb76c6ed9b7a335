//! The system's knowledge of its network interfaces.

use std::ffi::CStr;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::ptr;

use rustix::net::{AddressFamily, SocketType, socket};

/// One interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) index: u32,
    /// Its address as a card of Ethernet, if it is one.
    pub(crate) mac: Option<[u8; 6]>,
    /// The longest packet that it takes, without Ethernet's header.
    pub(crate) mtu: usize,
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Address {
    Ip(IpAddr),
    Card { index: u32, mac: Option<[u8; 6]> },
}

impl Interface {
    /// The interface that has this address.
    ///
    /// # Errors
    /// When the system does not say; it takes a descriptor to ask.
    pub(crate) fn with_address(ip: IpAddr) -> io::Result<Option<Self>> {
        let all = addresses()?;
        let has_it = all.iter().find(|(_, address)| *address == Address::Ip(ip));
        has_it.map_or(Ok(None), |(name, _)| Self::among(&all, name))
    }

    /// The interface of this name.
    ///
    /// # Errors
    /// As [`with_address`](Self::with_address).
    pub(crate) fn named(name: &str) -> io::Result<Option<Self>> {
        Self::among(&addresses()?, name.as_bytes())
    }

    fn among(all: &[(Vec<u8>, Address)], name: &[u8]) -> io::Result<Option<Self>> {
        let mut cards = all.iter().filter_map(|(of, address)| match address {
            Address::Card { index, mac } if of == name => Some((*index, *mac)),
            _ => None,
        });
        let Some((index, mac)) = cards.next() else { return Ok(None) };
        let mtu = match mtu(name) {
            // It was there a moment ago.
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(None),
            mtu => mtu?,
        };
        Ok(Some(Self { name: String::from_utf8_lossy(name).into_owned(), index, mac, mtu }))
    }
}

/// The longest packet that the interface with address `ip` takes, or the widest interface with an
/// address that leads out of this machine where `ip` stands for any.
pub(crate) fn widest_mtu(ip: IpAddr) -> Option<usize> {
    let is_meant = |own: IpAddr| own == ip || (ip.is_unspecified() && !own.is_loopback());
    let all = addresses().ok()?;
    let meant =
        all.iter().filter(|(_, address)| matches!(address, Address::Ip(ip) if is_meant(*ip)));
    meant.filter_map(|(name, _)| mtu(name).ok()).max()
}

/// All addresses with the names of their interfaces.
fn addresses() -> io::Result<Vec<(Vec<u8>, Address)>> {
    let mut first = ptr::null_mut();
    // SAFETY: `first` receives a list, or the call fails and it stays null.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut next = first;
    // SAFETY: `next` is null or an entry of the list, which lives until freeifaddrs.
    while let Some(entry) = unsafe { next.as_ref() } {
        // SAFETY: an entry's address is null or as long as its family says.
        if let Some(address) = unsafe { read(entry.ifa_addr) } {
            // SAFETY: an entry's name is a C string, and copied here.
            let name = unsafe { CStr::from_ptr(entry.ifa_name) }.to_bytes().to_vec();
            found.push((name, address));
        }
        next = entry.ifa_next;
    }
    // SAFETY: the list came from getifaddrs, and nothing of it is used any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}

/// # Safety
/// `address` is null or points to an address that is as long as its family says.
unsafe fn read(address: *const libc::sockaddr) -> Option<Address> {
    // SAFETY: the caller's promise.
    let family = i32::from(unsafe { address.as_ref() }?.sa_family);
    match family {
        libc::AF_INET => {
            // SAFETY: by its family it is one of these.
            let v4 = unsafe { &*address.cast::<libc::sockaddr_in>() };
            Some(Address::Ip(v4.sin_addr.s_addr.to_ne_bytes().into()))
        }
        libc::AF_INET6 => {
            // SAFETY: by its family it is one of these.
            let v6 = unsafe { &*address.cast::<libc::sockaddr_in6>() };
            Some(Address::Ip(v6.sin6_addr.s6_addr.into()))
        }
        libc::AF_PACKET => {
            // SAFETY: by its family it is one of these.
            let card = unsafe { &*address.cast::<libc::sockaddr_ll>() };
            let is_ethernet = card.sll_hatype == libc::ARPHRD_ETHER && card.sll_halen == 6;
            let mac = card.sll_addr.first_chunk().copied().filter(|_| is_ethernet);
            Some(Address::Card { index: u32::try_from(card.sll_ifindex).ok()?, mac })
        }
        _ => None,
    }
}

fn mtu(name: &[u8]) -> io::Result<usize> {
    let request = ask(name, libc::SIOCGIFMTU, |_| ())?;
    // SAFETY: SIOCGIFMTU has written it.
    usize::try_from(unsafe { request.ifr_ifru.ifru_mtu }).map_err(io::Error::other)
}

/// The number of an interface: one that is made again under the same name has another.
///
/// # Errors
/// When there is none of this name.
pub fn interface_index(name: &str) -> io::Result<u32> {
    let request = ask(name.as_bytes(), libc::SIOCGIFINDEX, |_| ())?;
    // SAFETY: SIOCGIFINDEX has written it.
    u32::try_from(unsafe { request.ifr_ifru.ifru_ifindex }).map_err(io::Error::other)
}

/// Whether an interface is up and has a carrier.
///
/// # Errors
/// When there is none of this name.
pub fn interface_is_running(name: &str) -> io::Result<bool> {
    let wanted = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    Ok(flags(name)? & wanted == wanted)
}

fn flags(name: &str) -> io::Result<libc::c_short> {
    let request = ask(name.as_bytes(), libc::SIOCGIFFLAGS, |_| ())?;
    // SAFETY: SIOCGIFFLAGS has written them.
    Ok(unsafe { request.ifr_ifru.ifru_flags })
}

/// Sets an interface up, if it is not.
///
/// # Errors
/// Without the right to (CAP_NET_ADMIN), or when there is none of this name.
pub fn set_interface_up(name: &str) -> io::Result<()> {
    let (flags, up) = (flags(name)?, libc::IFF_UP as libc::c_short);
    if flags & up == up {
        return Ok(());
    }
    let fill = |request: &mut libc::ifreq| request.ifr_ifru.ifru_flags = flags | up;
    ask(name.as_bytes(), libc::SIOCSIFFLAGS, fill).map(drop)
}

/// As `struct ethtool_channels`.
#[repr(C)]
#[derive(Default)]
struct Channels {
    command: u32,
    max: [u32; 4],
    receive: u32,
    send: u32,
    other: u32,
    combined: u32,
}

/// `<linux/ethtool.h>`: how many queues there are.
const ETHTOOL_GCHANNELS: u32 = 0x3c;

/// By how many queues an interface receives. A driver that does not say has one.
///
/// # Errors
/// When this cannot be asked.
pub fn interface_receive_queues(name: &str) -> io::Result<u32> {
    let mut channels = Channels { command: ETHTOOL_GCHANNELS, ..Channels::default() };
    match ethtool(name, &mut channels) {
        Ok(()) => Ok((channels.receive + channels.combined).max(1)),
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(1),
        Err(error) => Err(error),
    }
}

/// The longest packet that an interface takes now, in bytes without Ethernet's header.
///
/// # Errors
/// When there is none of this name.
pub fn interface_mtu(name: &str) -> io::Result<usize> {
    mtu(name.as_bytes())
}

/// As `struct ethtool_value`.
#[repr(C)]
#[derive(Default)]
struct Value {
    command: u32,
    value: u32,
}

/// `<linux/ethtool.h>`: some things that a driver does, a bit for each.
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETHTOOL_SFLAGS: u32 = 0x26;
/// It takes the tags of VLANs off what comes, and says them beside it.
const ETH_FLAG_RXVLAN: u32 = 1 << 8;

fn takes_tags_off(name: &str) -> io::Result<(bool, u32)> {
    let mut value = Value { command: ETHTOOL_GFLAGS, ..Value::default() };
    match ethtool(name, &mut value) {
        Ok(()) => Ok((value.value & ETH_FLAG_RXVLAN != 0, value.value)),
        // A driver that cannot be asked cannot do it.
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok((false, 0)),
        Err(error) => Err(error),
    }
}

/// Has an interface leave VLAN tags in what comes: whether it does now.
///
/// # Errors
/// Without the right to (CAP_NET_ADMIN), or when there is none of this name.
pub(crate) fn leave_tags(name: &str) -> io::Result<bool> {
    let (takes, flags) = takes_tags_off(name)?;
    if takes {
        let value = flags & !ETH_FLAG_RXVLAN;
        match ethtool(name, &mut Value { command: ETHTOOL_SFLAGS, value }) {
            // The flag cannot be switched. The question below shows whether the driver takes tags
            // off.
            Err(error)
                if !matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) =>
            {
                return Err(error);
            }
            _ => {}
        }
    }
    Ok(!takes_tags_off(name)?.0)
}

/// Asks a driver, or tells it, by one of `<linux/ethtool.h>`'s structures.
fn ethtool<T: Ethtool>(name: &str, data: &mut T) -> io::Result<()> {
    let data = ptr::from_mut(data).cast();
    ask(name.as_bytes(), SIOCETHTOOL, |request| request.ifr_ifru.ifru_data = data).map(drop)
}

/// A structure that begins with the number of an ethtool command, and has the length that the
/// kernel expects for that command.
trait Ethtool {}
impl Ethtool for Channels {}
impl Ethtool for Value {}

/// `<linux/sockios.h>`: an ethtool command. Its structure says which one.
pub const SIOCETHTOOL: libc::Ioctl = 0x8946;

/// Asks the system about an interface.
fn ask(
    name: &[u8],
    what: libc::Ioctl,
    fill: impl FnOnce(&mut libc::ifreq),
) -> io::Result<libc::ifreq> {
    // Any socket will do, and one of this kind a running node may make.
    let socket = socket(AddressFamily::UNIX, SocketType::DGRAM, None)?;
    // SAFETY: it has integers and pointers only, for which zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (place, byte) in request.ifr_name.iter_mut().zip(name) {
        *place = *byte as libc::c_char;
    }
    fill(&mut request);
    // SAFETY: every request made here reads the name, which ends in zero, and reads or writes one
    // value beside the name or the structure behind its address. Such a structure is `Ethtool`, so
    // it is as long as the kernel expects.
    if unsafe { libc::ioctl(socket.as_raw_fd(), what, &mut request) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_device_is_no_card_of_ethernet() {
        let found = Interface::with_address([127, 0, 0, 1].into()).unwrap().unwrap();
        assert_eq!((found.name.as_str(), found.mac), ("lo", None));
        assert_eq!(widest_mtu([127, 0, 0, 1].into()), Some(found.mtu));
        assert_eq!(Interface::with_address([192, 0, 2, 1].into()).unwrap(), None);
        assert_eq!(Interface::named("lo").unwrap(), Some(found.clone()));
        assert_eq!(Interface::named("no-such").unwrap(), None);
        assert_eq!(interface_index("lo").unwrap(), found.index);
        assert_eq!(interface_receive_queues("lo").unwrap(), 1);
        assert_eq!(interface_mtu("lo").unwrap(), found.mtu);
        assert!(leave_tags("lo").unwrap(), "it has none");
        assert!(interface_receive_queues("no-such").is_err() && leave_tags("no-such").is_err());
        assert!(interface_index("no-such").is_err() && interface_is_running("no-such").is_err());
    }
}
