//! What a client was told and has not read: how many descriptors of ours that may be.
//!
//! The kernel bounds what one user has under way in all sockets (by the number of descriptors that
//! a process may have), and then no process of that user can give anybody anything. So a few
//! hundred members of one domain that do not read must not come near that.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd};

use super::Client;
use fabric::door::wire::MESSAGE_BYTES;

/// Ropes that all clients together may have to read, and each of them.
const ROPES_MAX: usize = 8192;
const ROPES_OF_EACH_MAX: usize = 8;

/// Bells that a client may have to read: it waits for each before it asks for the next.
const BELLS_MAX: u32 = 8;

/// Of so many clients.
pub(super) fn ropes_of_each(clients: usize) -> usize {
    (ROPES_MAX / clients.max(1)).clamp(1, ROPES_OF_EACH_MAX)
}

impl Client {
    /// Whether fewer ropes than this are unread, whatever else may be.
    pub(super) fn has_room_for_rope(&self, most: usize) -> bool {
        // A message takes more than its bytes there.
        unread_bytes(&self.connection).is_some_and(|bytes| bytes < most * MESSAGE_BYTES)
    }

    /// Whether it may be given one more bell; it is then.
    pub(super) fn has_room_for_bell(&mut self) -> bool {
        if unread_bytes(&self.connection) == Some(0) {
            self.bells_unread = 0;
        }
        self.bells_unread += 1;
        self.bells_unread <= BELLS_MAX
    }
}

/// What was said over a socket and not read at its other end, in the bytes that the system counts
/// for it. None: it does not tell.
pub(crate) fn unread_bytes(socket: &OwnedFd) -> Option<usize> {
    let mut bytes: c_int = 0;
    let to = std::ptr::from_mut(&mut bytes);
    // SAFETY: the descriptor is open while it is borrowed, and for this request the kernel writes
    // one `int`, which is what is given.
    let answer = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, to) };
    usize::try_from(bytes).ok().filter(|_| answer == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_many_clients_there_are_each_may_have_one_rope() {
        assert_eq!([0, 1, 1024, 4096, 100_000].map(ropes_of_each), [8, 8, 8, 2, 1]);
    }
}
