//! The two system calls, and all that is unsafe about them.

use std::mem;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use rustix::io::Errno;

use super::address::{RAW_BYTES_MAX, RawAddress};
use super::control::{self, ReceiveControl, ReceivedControl, SendControl};
use super::group::{CALL_DATAGRAMS_MAX, Group, Outgoing};

/// The most messages taken in at once. Each may be a group of 64 KiB, so that a call takes in at
/// most 2 MiB: two of the transport's largest messages, and a fraction of a millisecond's work.
pub(super) const RECEIVE_MESSAGES_MAX: usize = 32;

/// Room for one message: the largest that UDP has, group or not.
const MESSAGE_BYTES_MAX: usize = 1 << 16;

/// Head and body.
const PARTS: usize = 2;

fn zero_message() -> libc::mmsghdr {
    // SAFETY: it has integers and pointers only, for which zero is a value.
    unsafe { mem::zeroed() }
}

/// The result of a system call that counts.
fn counted(result: libc::c_int) -> Result<usize, Errno> {
    usize::try_from(result).map_err(|_| {
        let error = std::io::Error::last_os_error();
        Errno::from_io_error(&error).unwrap_or(Errno::IO)
    })
}

/// sendmmsg, with the room for its arguments.
pub(super) struct SendCall {
    iovecs: Vec<libc::iovec>,
    addresses: Vec<RawAddress>,
    controls: Vec<SendControl>,
    messages: Vec<libc::mmsghdr>,
    /// How many iovecs each group has.
    parts: Vec<usize>,
}

// SAFETY: the pointers in it are written and used within one `run` and mean nothing outside.
unsafe impl Send for SendCall {}

impl SendCall {
    pub(super) fn new() -> Self {
        Self {
            iovecs: Vec::with_capacity(PARTS * CALL_DATAGRAMS_MAX),
            addresses: Vec::with_capacity(CALL_DATAGRAMS_MAX),
            controls: Vec::with_capacity(CALL_DATAGRAMS_MAX),
            messages: Vec::with_capacity(CALL_DATAGRAMS_MAX),
            parts: Vec::with_capacity(CALL_DATAGRAMS_MAX),
        }
    }

    /// Sends `groups` of `outgoing`, each as one message, without copying in user space. Says how
    /// many groups went; an error is about the first one.
    ///
    /// A group whose address the socket cannot reach ends the call before it, or fails it with
    /// `AFNOSUPPORT` when it is the first.
    pub(super) fn run(
        &mut self,
        fd: BorrowedFd<'_>,
        socket_is_v6: bool,
        outgoing: &impl Outgoing,
        groups: &[Group],
    ) -> Result<usize, Errno> {
        let sendable = self.gather(socket_is_v6, outgoing, groups);
        if sendable == 0 {
            return Err(Errno::AFNOSUPPORT);
        }
        self.point(&groups[..sendable]);
        // SAFETY: every message points to an address, a control message and iovecs in our vectors,
        // none of which changes or moves before the call returns (`point` ran after `gather` had
        // filled them, and only `messages` grew then, within its capacity). The iovecs point into
        // slices borrowed from `outgoing`, which outlives the call, and the kernel only reads them.
        let result = unsafe {
            libc::sendmmsg(
                fd.as_raw_fd(),
                self.messages.as_mut_ptr(),
                sendable as libc::c_uint,
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            )
        };
        self.messages.clear();
        self.iovecs.clear();
        counted(result)
    }

    /// Fills the addresses, control messages and iovecs; says of how many groups.
    fn gather(&mut self, socket_is_v6: bool, outgoing: &impl Outgoing, groups: &[Group]) -> usize {
        assert!(groups.len() <= CALL_DATAGRAMS_MAX);
        self.addresses.clear();
        self.controls.clear();
        self.iovecs.clear();
        self.parts.clear();
        for (done, group) in groups.iter().enumerate() {
            let Some(address) = RawAddress::new(outgoing.to(group.first), socket_is_v6) else {
                return done;
            };
            self.addresses.push(address);
            self.controls.push(control::segment(group.segment_bytes as u16));
            let before = self.iovecs.len();
            for index in group.first..group.first + group.count {
                // The kernel has a short way for a message in one piece, such as a call to read.
                let parts = [outgoing.head(index), outgoing.body(index)];
                for part in parts.into_iter().filter(|part| !part.is_empty()) {
                    let iov_base = part.as_ptr().cast_mut().cast();
                    self.iovecs.push(libc::iovec { iov_base, iov_len: part.len() });
                }
            }
            self.parts.push(self.iovecs.len() - before);
        }
        groups.len()
    }

    /// Makes the messages, which point to what was gathered.
    fn point(&mut self, groups: &[Group]) {
        self.messages.clear();
        let mut iovecs_used = 0;
        for (index, group) in groups.iter().enumerate() {
            let mut message = zero_message();
            let header = &mut message.msg_hdr;
            header.msg_name = self.addresses.as_mut_ptr().wrapping_add(index).cast();
            header.msg_namelen = self.addresses[index].len_bytes() as libc::socklen_t;
            header.msg_iov = self.iovecs.as_mut_ptr().wrapping_add(iovecs_used);
            header.msg_iovlen = self.parts[index];
            iovecs_used += self.parts[index];
            if group.count > 1 {
                header.msg_control = self.controls.as_mut_ptr().wrapping_add(index).cast();
                header.msg_controllen = size_of::<SendControl>();
            }
            self.messages.push(message);
        }
        assert_eq!(iovecs_used, self.iovecs.len(), "every part has its place");
    }
}

/// One message that arrived: a datagram, or several from the same peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReceivedMessage<'a> {
    pub(super) from: SocketAddr,
    pub(super) bytes: &'a [u8],
    pub(super) told: ReceivedControl,
}

/// recvmmsg, with the room for what arrives.
pub(super) struct ReceiveCall {
    buffer: Vec<u8>,
    addresses: Vec<RawAddress>,
    controls: Vec<ReceiveControl>,
    iovecs: Vec<libc::iovec>,
    messages: Vec<libc::mmsghdr>,
    /// The first so many messages were used by the last call, which has changed them.
    used: usize,
}

// SAFETY: the pointers in it are into its own vectors, which it keeps and never changes the place
// or length of.
unsafe impl Send for ReceiveCall {}

impl ReceiveCall {
    pub(super) fn new() -> Self {
        let empty = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
        Self {
            buffer: vec![0; RECEIVE_MESSAGES_MAX * MESSAGE_BYTES_MAX],
            addresses: vec![RawAddress::ZERO; RECEIVE_MESSAGES_MAX],
            controls: vec![[0; 7]; RECEIVE_MESSAGES_MAX],
            iovecs: vec![empty; RECEIVE_MESSAGES_MAX],
            messages: vec![zero_message(); RECEIVE_MESSAGES_MAX],
            used: RECEIVE_MESSAGES_MAX,
        }
    }

    /// Takes in what is there; says how many messages.
    pub(super) fn run(&mut self, fd: BorrowedFd<'_>) -> Result<usize, Errno> {
        let buffer = self.buffer.as_mut_ptr();
        // A call that finds nothing, as most do that poll, leaves all as it was.
        for index in 0..self.used {
            self.iovecs[index] = libc::iovec {
                iov_base: buffer.wrapping_add(index * MESSAGE_BYTES_MAX).cast(),
                iov_len: MESSAGE_BYTES_MAX,
            };
            let header = &mut self.messages[index].msg_hdr;
            header.msg_name = self.addresses.as_mut_ptr().wrapping_add(index).cast();
            header.msg_namelen = RAW_BYTES_MAX as libc::socklen_t;
            header.msg_iov = self.iovecs.as_mut_ptr().wrapping_add(index);
            header.msg_iovlen = 1;
            header.msg_control = self.controls.as_mut_ptr().wrapping_add(index).cast();
            header.msg_controllen = size_of::<ReceiveControl>();
            header.msg_flags = 0;
        }
        // SAFETY: every message points to its own address, control message, iovec and piece of the
        // buffer, each with its true length: all were made so before the first call, and those that
        // a call has used before the next. None of the vectors changes its place, ever, and any
        // bytes are valid values for all of them.
        let result = unsafe {
            libc::recvmmsg(
                fd.as_raw_fd(),
                self.messages.as_mut_ptr(),
                RECEIVE_MESSAGES_MAX as libc::c_uint,
                libc::MSG_DONTWAIT,
                ptr::null_mut(),
            )
        };
        let received = counted(result);
        self.used = received.map_or(1, |messages| (messages + 1).min(RECEIVE_MESSAGES_MAX));
        received
    }

    /// The message at `index` of the last call; `None` when it was cut short or is from nowhere.
    pub(super) fn message(&self, index: usize) -> Option<ReceivedMessage<'_>> {
        let message = &self.messages[index];
        let header = &message.msg_hdr;
        if header.msg_flags & libc::MSG_TRUNC != 0 {
            return None;
        }
        let from = self.addresses[index].read(header.msg_namelen as usize)?;
        let first = index * MESSAGE_BYTES_MAX;
        let bytes = &self.buffer[first..first + message.msg_len as usize];
        let told = control::read(&self.controls[index], header.msg_controllen);
        Some(ReceivedMessage { from, bytes, told })
    }
}

/// Asks the kernel to hand over groups as they arrived (UDP_GRO).
pub(super) fn enable_groups(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    set(fd, libc::SOL_UDP, libc::UDP_GRO, 1)
}

/// Asks the kernel to say when each message arrived.
pub(super) fn enable_stamps(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    set(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)
}

/// Never cuts a datagram into fragments of IP, of which one lost would lose all. The kernel
/// believes no report about the way either: the transport finds out which sizes pass. A datagram
/// that the interface itself does not take is refused at once.
pub(super) fn forbid_fragments(fd: BorrowedFd<'_>, socket_is_v6: bool) -> Result<(), Errno> {
    if socket_is_v6 {
        set(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)?;
        // For peers with IPv4 addresses; a socket for IPv6 alone has no such option.
        let _ = set(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE);
        return Ok(());
    }
    set(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)
}

fn set(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> Result<(), Errno> {
    // SAFETY: the option's value is an int, which lives beyond the call.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    counted(result).map(|_| ())
}
