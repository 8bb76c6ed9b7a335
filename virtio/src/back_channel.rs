//! The back-channel: our messages to a front end that did not ask.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use tracing::{info, warn};

use crate::ahead::{HEADER_BYTES, VERSION};

/// VHOST_USER_BACKEND_CONFIG_CHANGE_MSG.
const CONFIG_CHANGE: u32 = 2;

/// The way to a front end that wants to be told.
#[derive(Debug)]
pub(crate) struct BackChannel {
    socket: OwnedFd,
    /// The front end does not read: told in the log once.
    is_stuck: bool,
}

impl BackChannel {
    /// Over this socket, which the front end gave, to us or to another process.
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self { socket, is_stuck: false }
    }

    /// A descriptor of the way, for another process.
    pub(crate) fn take_down(&self) -> std::io::Result<OwnedFd> {
        self.socket.try_clone()
    }

    /// Tells the front end to read the configuration again. No answer is asked for: QEMU answers
    /// only after it has read the configuration, and the device could not act on a bad answer. We
    /// do not wait for a front end that does not read its messages.
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
            Ok(_) => info!(socket = device, "the guest learns that its device has changed"),
            Err(error) if !std::mem::replace(&mut self.is_stuck, true) => {
                warn!(
                    socket = device, %error,
                    "the front end cannot learn that its device has changed; the guest sees the \
                     change when it is started again"
                );
            }
            Err(_) => {}
        }
    }
}
