//! A whole interface past the network stack. All packets that come to it go to its holder, to any
//! address, and none reaches the system's own stack.

use std::io;
use std::mem::size_of_val;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::program::Program;
use super::{PACKET_BYTES_MAX, QUEUES_MAX, XdpError, XdpQueue, XdpQueueFds, in_pieces, system};
use crate::interface::{self, Interface};

/// The descriptors of an open interface, for the process that goes on with it.
#[derive(Debug)]
pub struct XdpCardFds {
    /// The interface's number.
    pub index: u32,
    /// The longest packet that it took when it was opened, in bytes without Ethernet's header.
    pub mtu: u32,
    /// Keeps the program attached.
    pub program: OwnedFd,
    /// Its receive queues, in their order.
    pub queues: Vec<XdpQueueFds>,
}

impl XdpCardFds {
    /// The same descriptors again.
    ///
    /// # Errors
    /// When the system has no more of them.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            index: self.index,
            mtu: self.mtu,
            program: self.program.try_clone()?,
            queues: self.queues.iter().map(XdpQueueFds::try_clone).collect::<io::Result<_>>()?,
        })
    }
}

/// See the module's text.
#[derive(Debug)]
pub struct XdpCard {
    index: u32,
    mtu: u32,
    // Before the program, which would lead to nothing.
    queues: Vec<XdpQueue>,
    program: OwnedFd,
}

impl XdpCard {
    /// Takes the interface of this name, and sets it up. Frames to any address come, and only to
    /// this process. The interface is released when its last descriptor is closed. The second
    /// result keeps the interface promiscuous and must live as long. A process without rights must
    /// not hold it, so another process may.
    ///
    /// # Errors
    /// The obstacle, and how to remove it.
    pub fn open(name: &str) -> Result<(Self, Promiscuous), XdpError> {
        let found = Interface::named(name).map_err(system("looking for the interface"))?;
        let found = found.filter(|found| found.mac.is_some());
        let found = found.ok_or_else(|| XdpError::Interface(name.to_owned()))?;
        let Interface { index, mtu, .. } = found;
        if mtu + 14 > PACKET_BYTES_MAX {
            return Err(XdpError::Mtu { interface: found.name, mtu });
        }
        let count = interface::interface_receive_queues(name);
        let count = count.map_err(system("asking for the receive queues"))?;
        if count > QUEUES_MAX {
            return Err(XdpError::Queues { interface: found.name, queues: count });
        }
        let up = interface::set_interface_up(name);
        up.map_err(system("setting the interface up"))?;
        // Data that a card reports beside a packet does not come with the packet. Its tag would be
        // lost, and the packet would be in another VLAN than the one it was sent in.
        let left = interface::leave_tags(name);
        if !left.map_err(system("having VLAN tags left in packets"))? {
            return Err(XdpError::Tags(found.name));
        }
        let pieces = in_pieces(mtu);
        let program = Program::for_all(index, pieces);
        let program = program.map_err(system("attaching the program to the interface"))?;
        let open = |number| {
            let queue = XdpQueue::open(index, number, pieces)?;
            let served = program.serve_queue(number, queue.fd());
            served.map_err(system("telling the program of the socket"))?;
            Ok(queue)
        };
        let queues = (0..count).map(open).collect::<Result<_, XdpError>>()?;
        let promiscuous = Promiscuous::on(index)?;
        Ok((Self { index, mtu: mtu as u32, queues, program: program.into_link() }, promiscuous))
    }

    /// Goes on with an interface that another process has opened.
    ///
    /// # Errors
    /// When its queues cannot be mapped.
    ///
    /// # Safety
    /// That of [`XdpQueue::adopt`], for each of its queues.
    pub unsafe fn adopt(fds: XdpCardFds) -> Result<Self, XdpError> {
        let XdpCardFds { index, mtu, program, queues } = fds;
        // SAFETY: the caller's promise.
        let adopt = |fds| unsafe { XdpQueue::adopt(fds) };
        let queues = queues.into_iter().map(adopt).collect::<Result<Vec<_>, _>>()?;
        if queues.is_empty() {
            let none = io::Error::from(io::ErrorKind::InvalidInput);
            return Err(system("going on with an interface without queues")(none));
        }
        Ok(Self { index, mtu, queues, program })
    }

    /// Duplicates of its descriptors.
    ///
    /// # Errors
    /// When the system has no more descriptors.
    pub fn fds(&self) -> io::Result<XdpCardFds> {
        let queues = self.queues.iter().map(|queue| queue.fds().try_clone());
        Ok(XdpCardFds {
            index: self.index,
            mtu: self.mtu,
            program: self.program.try_clone()?,
            queues: queues.collect::<io::Result<_>>()?,
        })
    }

    /// The interface's number: one that is made again under the same name has another.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The longest packet that it takes, in bytes without Ethernet's header.
    pub fn mtu(&self) -> usize {
        self.mtu as usize
    }

    /// Its receive queues; there is one at least.
    pub fn queues(&self) -> &[XdpQueue] {
        &self.queues
    }

    /// The queue by which packets go out.
    pub fn sender(&mut self) -> &mut XdpQueue {
        &mut self.queues[0]
    }

    /// Its receive queues, to be polled.
    pub fn queues_mut(&mut self) -> &mut [XdpQueue] {
        &mut self.queues
    }
}

/// Has an interface take what is for other addresses as well, for as long as this is there.
///
/// Inside is a packet socket. The kernel asks for rights when one is made, and not when it is bound
/// to another interface or written to: a process that gives its rights up must not have it.
#[derive(Debug)]
pub struct Promiscuous {
    _socket: OwnedFd,
}

impl Promiscuous {
    /// The same for an interface that another process has opened under this name: frames to any
    /// address still come when that process has released it.
    ///
    /// # Errors
    /// Without the right to (CAP_NET_RAW), or when the name is no more, or another interface's.
    pub fn beside(name: &str, index: u32) -> Result<Self, XdpError> {
        let found = interface::interface_index(name);
        let found = found.map_err(system("looking for the interface"))?;
        if found != index {
            return Err(XdpError::Another(name.to_owned()));
        }
        Self::on(index)
    }

    fn on(index: u32) -> Result<Self, XdpError> {
        let joined = join(index).map_err(system("asking for frames to other addresses"))?;
        Ok(Self { _socket: joined })
    }
}

fn join(index: u32) -> io::Result<OwnedFd> {
    // Without a protocol it hears nothing itself.
    let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    let request = libc::packet_mreq {
        mr_ifindex: index as libc::c_int,
        mr_type: libc::PACKET_MR_PROMISC as libc::c_ushort,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    // SAFETY: the option reads a `packet_mreq`, which is as long as said.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_ADD_MEMBERSHIP,
            std::ptr::from_ref(&request).cast(),
            size_of_val(&request) as libc::socklen_t,
        )
    };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(socket) }
}
