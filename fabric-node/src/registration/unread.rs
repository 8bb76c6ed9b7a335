//! Bounds on the descriptors that were sent to a client and that it has not received yet.
//!
//! The kernel bounds the descriptors that a user has under way in all sockets (by the number of
//! descriptors that a process may have). At the bound no process of the user can send descriptors
//! at all. So a few hundred members that do not read must not come near it.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd};

use super::client::RegistrationClient;
use fabric::registration::wire::MESSAGE_BYTES;

/// Most write ends of doorbells that all clients together, and each of them, have not received yet.
const WRITE_ENDS_MAX: usize = 8192;
const WRITE_ENDS_OF_EACH_MAX: usize = 8;

/// Most doorbells that a client has not received yet: it waits for each before it asks for the
/// next.
const DOORBELLS_MAX: u32 = 8;

/// The bound for each of so many clients.
pub(super) fn write_ends_of_each(clients: usize) -> usize {
    (WRITE_ENDS_MAX / clients.max(1)).clamp(1, WRITE_ENDS_OF_EACH_MAX)
}

impl RegistrationClient {
    /// Whether fewer write ends than this are unread, if all that is unread were write ends.
    pub(super) fn has_room_for_write_end(&self, most: usize) -> bool {
        // The kernel counts more than a message's bytes.
        unread_bytes(&self.connection).is_some_and(|bytes| bytes < most * MESSAGE_BYTES)
    }

    /// Whether the client may be sent one more doorbell; counts it.
    pub(super) fn has_room_for_doorbell(&mut self) -> bool {
        if unread_bytes(&self.connection) == Some(0) {
            self.doorbells_unread = 0;
        }
        self.doorbells_unread += 1;
        self.doorbells_unread <= DOORBELLS_MAX
    }
}

/// The bytes that were sent over a socket and not received at its other end, as the kernel counts
/// them. None: the kernel does not tell.
pub(crate) fn unread_bytes(socket: &OwnedFd) -> Option<usize> {
    let mut bytes: c_int = 0;
    let to = std::ptr::from_mut(&mut bytes);
    // SAFETY: the descriptor is open while it is borrowed. For TIOCOUTQ the kernel writes one `int`
    // to the address, which is that of `bytes`, a live `c_int` of this function.
    let answer = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, to) };
    usize::try_from(bytes).ok().filter(|_| answer == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_many_clients_there_are_each_may_have_one_rope() {
        assert_eq!([0, 1, 1024, 4096, 100_000].map(write_ends_of_each), [8, 8, 8, 2, 1]);
    }
}
