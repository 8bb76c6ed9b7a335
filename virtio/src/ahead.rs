//! Messages that are looked at before the crate `vhost` reads them: its session takes the socket of
//! a back-channel and gives nothing back that could send a change of the configuration, it does not
//! know SET_LOG_FD at all, and it refuses SET_VRING_ENABLE before SET_FEATURES, which QEMU says for
//! nics. Looking at a message on a Unix socket leaves it there, and gives
//! descriptors of our own for what it carries.
//!
//! The crate waits for the rest of a message that it has begun to read, and then nothing else is
//! heard. So it begins when the message is there as a whole.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::{Errno, ioctl_fionread};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags, recv, recvmsg,
    send,
};
use vhost::vhost_user::message::FrontendReq;

/// Bytes of a message's header: request, flags, length of the body.
pub(crate) const HEADER_BYTES: usize = 12;

/// The longest body of a message that is waited for: the crate refuses longer ones by their header.
const BODY_BYTES_MAX: usize = 4096;

/// Header flag: version 1 of the protocol.
pub(crate) const VERSION: u32 = 1;
/// Header flag: an answer.
const REPLY: u32 = 1 << 2;
/// Header flag: an answer is wanted.
const NEED_REPLY: u32 = 1 << 3;

/// VHOST_USER_SET_LOG_FD.
const SET_LOG_FD: u32 = 7;
/// VHOST_USER_SET_VRING_ENABLE.
const SET_VRING_ENABLE: u32 = 18;
/// Bytes of its body: the ring, and whether.
const ENABLE_BYTES: usize = 8;
/// VHOST_USER_SET_BACKEND_REQ_FD.
const SET_BACKEND_REQ_FD: u32 = 21;

/// Whether the next message can be read without waiting for the rest of it. Also `true` for a
/// message that the crate refuses, and at the end of the conversation. The bytes stay in the
/// socket.
///
/// # Errors
/// When the system refuses, or the header comes in pieces with descriptors between them: nothing of
/// it can be looked at beyond the first of those, and no front end does that.
pub(crate) fn is_whole(front_end: BorrowedFd<'_>) -> io::Result<bool> {
    let mut header = [0; HEADER_BYTES];
    let bytes = match recv(front_end, &mut header[..], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((_, bytes)) => bytes,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
        Err(errno) => return Err(errno.into()),
    };
    if bytes == 0 {
        return Ok(true);
    }
    // Of all that waits in the socket, also beyond a descriptor, where looking ahead ends.
    let come = ioctl_fionread(front_end)?;
    if bytes < HEADER_BYTES {
        return match come < HEADER_BYTES as u64 {
            true => Ok(false),
            false => Err(io::Error::other("descriptors in the middle of a message's header")),
        };
    }
    let body = u32::from_ne_bytes([8, 9, 10, 11].map(|at| header[at])) as usize;
    Ok(body > BODY_BYTES_MAX || come >= (HEADER_BYTES + body) as u64)
}

/// So much of a message is looked at ahead of taking it. Descriptors behind that are never
/// received.
pub(crate) const LOOK_BYTES: usize = HEADER_BYTES + ENABLE_BYTES;

/// The header of a message, by which the message gets its name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageHeader {
    request: u32,
    flags: u32,
    body_bytes: u32,
    /// Whether descriptors come with it.
    has_descriptors: bool,
}

impl MessageHeader {
    /// The header of the next message, which stays where it is; none of its descriptors is
    /// received. None at the end of the conversation.
    pub(crate) fn peek(front_end: BorrowedFd<'_>) -> Option<Self> {
        let mut message = [0; LOOK_BYTES];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let mut bytes = [IoSliceMut::new(&mut message)];
        // Without room for descriptors, the kernel says that there were some, and lets them go.
        let got = recvmsg(front_end, &mut bytes, &mut RecvAncillaryBuffer::default(), flags);
        let got = got.ok().filter(|got| got.bytes > 0)?;
        let word = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|byte| message[at + byte]));
        Some(Self {
            request: word(0),
            flags: word(4),
            body_bytes: word(8),
            has_descriptors: got.flags.contains(ReturnFlags::CTRUNC),
        })
    }
}

/// Such as `SET_VRING_NUM (message 8, 4 bytes, flags 0x9, with descriptors)`.
impl fmt::Display for MessageHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { request, flags, body_bytes, has_descriptors } = *self;
        match FrontendReq::try_from(request) {
            Ok(name) => write!(f, "{name:?} (message {request}")?,
            Err(_) => write!(f, "an unknown message ({request}")?,
        }
        let along = if has_descriptors { "with" } else { "without" };
        write!(f, ", {body_bytes} bytes, flags {flags:#x}, {along} descriptors)")
    }
}

/// The next message, where it is one of ours.
#[derive(Debug)]
pub(crate) enum NextMessage {
    /// It brings a back-channel; the crate has to see it, too.
    BackChannel(OwnedFd),
    /// It brings the descriptor to which changes of the dirty log are told. To be taken.
    LogSignal(LogSignal),
    /// It enables a ring. To be taken, where the crate would refuse it.
    Enable(Enable),
}

/// A SET_VRING_ENABLE that is still to be taken from the socket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Enable {
    pub(crate) index: u32,
    pub(crate) enable: bool,
    wants_reply: bool,
}

/// A SET_LOG_FD that is still to be taken from the socket.
#[derive(Debug)]
pub(crate) struct LogSignal {
    pub(crate) fd: OwnedFd,
    wants_reply: bool,
}

impl NextMessage {
    /// Looks at the next message on a front end's socket, which stays where it is.
    pub(crate) fn peek(front_end: BorrowedFd<'_>) -> Option<Self> {
        let mut message = [0; LOOK_BYTES];
        let (bytes, fd) = receive(front_end, &mut message, RecvFlags::PEEK)?;
        let word = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|byte| message[at + byte]));
        if bytes < HEADER_BYTES {
            return None;
        }
        let wants_reply = word(4) & NEED_REPLY != 0;
        match (word(0), word(8) as usize, fd) {
            (SET_BACKEND_REQ_FD, _, Some(fd)) => Some(Self::BackChannel(fd)),
            // With a body it is not what the specification says, and the crate refuses it.
            (SET_LOG_FD, 0, Some(fd)) => Some(Self::LogSignal(LogSignal { fd, wants_reply })),
            // Another number than these two is refused by the crate.
            (SET_VRING_ENABLE, ENABLE_BYTES, None)
                if bytes == message.len() && word(HEADER_BYTES + 4) <= 1 =>
            {
                let (index, enable) = (word(HEADER_BYTES), word(HEADER_BYTES + 4) == 1);
                Some(Self::Enable(Enable { index, enable, wants_reply }))
            }
            _ => None,
        }
    }
}

impl LogSignal {
    /// Takes the message from the socket: it was seen whole. Its descriptor is closed with that,
    /// and ours is another.
    pub(crate) fn take(&self, front_end: BorrowedFd<'_>) {
        receive(front_end, &mut [0; HEADER_BYTES], RecvFlags::empty());
    }

    /// Says that it was done, where that is wanted.
    ///
    /// # Errors
    /// When the front end does not take the answer.
    pub(crate) fn answer(&self, front_end: BorrowedFd<'_>) -> io::Result<()> {
        if self.wants_reply { done(front_end, SET_LOG_FD) } else { Ok(()) }
    }
}

impl Enable {
    /// Takes the message from the socket: it was seen whole.
    pub(crate) fn take(&self, front_end: BorrowedFd<'_>) {
        receive(front_end, &mut [0; HEADER_BYTES + ENABLE_BYTES], RecvFlags::empty());
    }

    /// Says that it was done, where that is wanted.
    ///
    /// # Errors
    /// When the front end does not take the answer.
    pub(crate) fn answer(&self, front_end: BorrowedFd<'_>) -> io::Result<()> {
        if self.wants_reply { done(front_end, SET_VRING_ENABLE) } else { Ok(()) }
    }
}

/// Says that this request was done.
fn done(front_end: BorrowedFd<'_>, request: u32) -> io::Result<()> {
    let header = [request, VERSION | REPLY, 8].map(u32::to_ne_bytes).concat();
    let answer = [&header[..], &0u64.to_ne_bytes()].concat();
    loop {
        match send(front_end, &answer, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            sent => return Ok(sent.map(|_| ())?),
        }
    }
}

/// How many bytes there were, and the first descriptor among them.
fn receive(
    front_end: BorrowedFd<'_>,
    message: &mut [u8],
    flags: RecvFlags,
) -> Option<(usize, Option<OwnedFd>)> {
    let mut bytes = [IoSliceMut::new(message)];
    let flags = flags | RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(front_end, &mut bytes, &mut control, flags).ok()?;
    // Most messages carry none.
    let fd = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
        _ => None,
    });
    Some((got.bytes, fd))
}
