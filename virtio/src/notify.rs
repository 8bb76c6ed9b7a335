//! Eventfds of the front end: kick (driver to device), call and error (device to driver).
//!
//! A descriptor comes from outside, so nothing here may block. Reading says so to the kernel with
//! each call. Writing cannot: an eventfd that the front end made without `O_NONBLOCK` is asked
//! first whether there is room. Its flags are left alone, for the front end shares them and may
//! want to wait in its own reads. A front end that fills the counter of its own call descriptor
//! between the question and the write can still hold the writer up; only the VMM itself can do
//! that, not its guest.

use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fstat};
use rustix::io::{Errno, ReadWriteFlags, preadv2, read, write};

/// The file type bits of a mode.
const TYPE_BITS: u32 = 0o170_000;

/// "Where the file stands", for files that have no place.
const NO_OFFSET: u64 = u64::MAX;

/// Whether this is an anonymous descriptor as eventfds are. Pipes, sockets, terminals and files
/// may block in ways that an eventfd cannot; the other anonymous ones refuse the write.
pub(crate) fn is_anonymous(fd: BorrowedFd<'_>) -> bool {
    fstat(fd).is_ok_and(|stat| stat.st_mode & TYPE_BITS == 0)
}

fn is_ready(fd: BorrowedFd<'_>, flags: PollFlags) -> bool {
    let mut fds = [PollFd::new(&fd, flags)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&at_once)).is_ok_and(|ready| ready > 0)
}

/// Where the device signals.
#[derive(Debug)]
pub(crate) struct Signal {
    fd: OwnedFd,
    may_block: bool,
}

impl Signal {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        let may_block = !fcntl_getfl(&fd).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK));
        Self { fd, may_block }
    }

    /// Adds one to the counter. A counter without room is a signal that is still pending.
    pub(crate) fn signal(&self) {
        if self.may_block && !is_ready(self.fd.as_fd(), PollFlags::OUT) {
            return;
        }
        // What else can go wrong is the front end's doing, and its loss.
        let _ = write(&self.fd, &1u64.to_ne_bytes());
    }
}

/// Empties the counter, so that a sleeper does not wake up for it again.
pub(crate) fn drain(fd: BorrowedFd<'_>) {
    let mut count = [0u8; 8];
    let slices = &mut [IoSliceMut::new(&mut count)];
    if let Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) =
        preadv2(fd, slices, NO_OFFSET, ReadWriteFlags::NOWAIT)
        && is_ready(fd, PollFlags::IN)
    {
        let _ = read(fd, &mut count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::pipe::pipe;

    #[test]
    fn a_full_or_an_empty_counter_never_blocks() {
        for flags in [EventfdFlags::empty(), EventfdFlags::NONBLOCK] {
            let fd = eventfd(0, flags | EventfdFlags::CLOEXEC).unwrap();
            assert!(is_anonymous(fd.as_fd()));
            drain(fd.as_fd());
            write(&fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
            let signal = Signal::new(fd);
            signal.signal();
            assert!(is_ready(signal.fd.as_fd(), PollFlags::IN));
            drain(signal.fd.as_fd());
            assert!(!is_ready(signal.fd.as_fd(), PollFlags::IN));
            signal.signal();
            assert!(is_ready(signal.fd.as_fd(), PollFlags::IN));
        }
    }

    #[test]
    fn a_pipe_is_no_eventfd() {
        let (from, to) = pipe().unwrap();
        assert!(!is_anonymous(from.as_fd()));
        assert!(!is_anonymous(to.as_fd()));
    }
}
