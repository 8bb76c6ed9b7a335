//! Opens tap interfaces: tun(4)'s ioctls, which no crate of ours wraps.

use std::ffi::{c_int, c_short, c_uint, c_ulong};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::fs::{Mode, OFlags, open as open_file};

use super::OpenedTap;
use crate::offload::HEADER_BYTES;

/// Attaches a descriptor to an interface.
pub(super) const TUNSETIFF: libc::Ioctl = 0x4004_54ca;
/// Says which offloads frames may come with.
pub(super) const TUNSETOFFLOAD: libc::Ioctl = 0x4004_54d0;
/// Says how long the header before each frame is.
pub(super) const TUNSETVNETHDRSZ: libc::Ioctl = 0x4004_54d8;

const IFF_TAP: c_short = 0x0002;
const IFF_NO_PI: c_short = 0x1000;
const IFF_VNET_HDR: c_short = 0x4000;

const TUN_F_CSUM: c_uint = 0x01;
const TUN_F_TSO4: c_uint = 0x02;
const TUN_F_TSO6: c_uint = 0x04;
const TUN_F_TSO_ECN: c_uint = 0x08;
const TUN_F_USO4: c_uint = 0x20;
const TUN_F_USO6: c_uint = 0x40;

/// The longest name of an interface, without the zero at its end.
const NAME_BYTES_MAX: usize = 15;

/// Why a tap could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TapError {
    /// No interface can have this name.
    #[error(
        "'{0}' is not an interface's name: 1 to {NAME_BYTES_MAX} characters without / and \
             blanks"
    )]
    Name(String),
    /// There are no taps here.
    #[error("/dev/net/tun: {0}; load the module tun, or give the node that device")]
    Device(io::Error),
    /// It is another kind of interface, another process has it, or it may not be made.
    #[error(
        "interface {name}: {source}; make it beforehand by `ip tuntap add {name} mode tap user \
         USER`, or give the node CAP_NET_ADMIN; no other process may have it open"
    )]
    Interface {
        /// The interface.
        name: String,
        /// The kernel's error.
        r#source: io::Error,
    },
    /// The kernel does not have what is needed.
    #[error("interface {name}: {what}: {source}")]
    Feature {
        /// The interface.
        name: String,
        /// The request.
        what: &'static str,
        /// The kernel's error.
        r#source: io::Error,
    },
}

/// `struct ifreq` as tun(4) reads it.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; NAME_BYTES_MAX + 1],
    flags: c_short,
    rest: [u8; 22],
}

impl InterfaceRequest {
    fn new(name: &str, flags: c_short) -> Option<Self> {
        let is_name = (1..=NAME_BYTES_MAX).contains(&name.len())
            && name != "."
            && name != ".."
            && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/' && byte != b'%');
        let mut request = Self { name: [0; NAME_BYTES_MAX + 1], flags, rest: [0; 22] };
        request.name.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
        is_name.then_some(request)
    }
}

fn checked(result: c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn control_request(
    fd: BorrowedFd<'_>,
    what: libc::Ioctl,
    request: &mut InterfaceRequest,
) -> io::Result<()> {
    // SAFETY: these ioctls read and write an `ifreq`, which `request` is as long as.
    checked(unsafe { libc::ioctl(fd.as_raw_fd(), what, request) })
}

/// Opens the interface of this name.
pub(super) fn open(name: &str) -> Result<OpenedTap, TapError> {
    let flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
    let wrong_name = || TapError::Name(name.to_owned());
    let mut request = InterfaceRequest::new(name, flags).ok_or_else(wrong_name)?;
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = open_file(super::DEVICE, flags, Mode::empty())
        .map_err(|errno| TapError::Device(errno.into()))?;
    control_request(fd.as_fd(), TUNSETIFF, &mut request)
        .map_err(|source| TapError::Interface { name: name.to_owned(), source })?;
    let failed = |what| move |source| TapError::Feature { name: name.to_owned(), what, source };
    let mut header_bytes = HEADER_BYTES as c_int;
    // SAFETY: this ioctl reads an int.
    let set = unsafe { libc::ioctl(fd.as_raw_fd(), TUNSETVNETHDRSZ, &raw mut header_bytes) };
    checked(set).map_err(failed("headers of ten bytes before frames"))?;
    let tcp = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN;
    let offload = |offloads: c_uint| {
        // SAFETY: this ioctl takes a number.
        checked(unsafe { libc::ioctl(fd.as_raw_fd(), TUNSETOFFLOAD, c_ulong::from(offloads)) })
    };
    // UDP since Linux 6.2.
    let udp = offload(tcp | TUN_F_USO4 | TUN_F_USO6).is_ok();
    if !udp {
        offload(tcp).map_err(failed("offloads"))?;
    }
    if let Err(error) = link::set_interface_up(name) {
        tracing::warn!(interface = name, %error, "the interface cannot be set up; set it up by \
                                                  hand (ip link set)");
    }
    Ok(OpenedTap { fd, udp })
}
