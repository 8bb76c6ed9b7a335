//! The back-channel: what we say to a front end unasked.
//!
//! The `vhost` crate takes the channel's socket and gives nothing back that could send a change of
//! the configuration. So the message that brings the socket is looked at before the crate reads it:
//! looking at a message on a Unix socket gives a descriptor of our own for what it carries.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recvmsg, send};
use tracing::{info, warn};

/// Bytes of a message's header: request, flags, length of the body.
const HEADER_BYTES: usize = 12;

/// VHOST_USER_SET_BACKEND_REQ_FD.
const SET_BACKEND_REQ_FD: u32 = 21;

/// VHOST_USER_BACKEND_CONFIG_CHANGE_MSG.
const CONFIG_CHANGE: u32 = 2;

/// Header flag: version 1 of the protocol. No answer is asked for: QEMU gives one only after it has
/// read the configuration, and nobody here could do anything about another one.
const VERSION: u32 = 1;

/// The way to a front end that wants to be told.
#[derive(Debug)]
pub(crate) struct BackChannel {
    socket: OwnedFd,
    /// The front end does not read: told in the log once.
    is_stuck: bool,
}

impl BackChannel {
    /// Looks whether the next message on a front end's socket brings a back-channel. The message
    /// stays where it is.
    pub(crate) fn peek(front_end: BorrowedFd<'_>) -> Option<Self> {
        let mut header = [0; HEADER_BYTES];
        // Most messages end here, without a descriptor of theirs.
        let mut bytes = [IoSliceMut::new(&mut header)];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got = recvmsg(front_end, &mut bytes, &mut control, flags).ok()?;
        let request = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]);
        if got.bytes < HEADER_BYTES || request != SET_BACKEND_REQ_FD {
            return None;
        }
        let rights = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
            _ => None,
        });
        rights.map(Self::new)
    }

    /// The way that another process had.
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self { socket, is_stuck: false }
    }

    /// A descriptor of the way, for another process.
    pub(crate) fn take_down(&self) -> std::io::Result<OwnedFd> {
        self.socket.try_clone()
    }

    /// Tells the front end to read the configuration again. A front end that does not read what we
    /// say is not waited for.
    pub(crate) fn config_changed(&mut self, device: &str) {
        let mut message = [0; HEADER_BYTES];
        message[..4].copy_from_slice(&CONFIG_CHANGE.to_ne_bytes());
        message[4..8].copy_from_slice(&VERSION.to_ne_bytes());
        let sent = loop {
            match send(&self.socket, &message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Err(Errno::INTR) => {}
                sent => break sent,
            }
        };
        match sent {
            Ok(_) => info!(socket = device, "the guest is told that its device has changed"),
            Err(error) if !std::mem::replace(&mut self.is_stuck, true) => {
                warn!(
                    socket = device, %error,
                    "the front end cannot be told that its device has changed; the guest sees it \
                     when it is started anew"
                );
            }
            Err(_) => {}
        }
    }
}
