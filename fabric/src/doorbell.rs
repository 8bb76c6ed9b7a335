//! Doorbells: how an endpoint that sleeps is woken.
//!
//! A doorbell is a pair of connected sockets. The endpoint alone has the read end, so that no other
//! process can empty it. The node keeps the write end and gives copies to members that ask. Both
//! ends are used by calls that are non-blocking by their own flag: the flag of the descriptor can
//! be changed by every process that has a copy.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};

/// Bytes of one read, and reads of one [`silence`]: more than a socket holds. So a member that
/// rings without end cannot keep the reader here.
const HEARD_BYTES: usize = 16 << 10;
const HEARD_TIMES: usize = 16;

/// A doorbell's two ends.
#[derive(Debug)]
pub struct DoorbellPair {
    /// RingOutcome by.
    pub write_end: OwnedFd,
    /// For the endpoint that sleeps.
    pub read_end: OwnedFd,
}

impl DoorbellPair {
    /// A new one.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn new() -> Result<Self, Errno> {
        let (kind, flags) = (SocketType::STREAM, SocketFlags::CLOEXEC);
        let (write_end, read_end) = socketpair(AddressFamily::UNIX, kind, flags, None)?;
        Ok(Self { write_end, read_end })
    }
}

/// The outcome of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingOutcome {
    /// The read end is readable.
    Heard,
    /// The read end is closed.
    Closed,
    /// The kernel could not deliver it now; a later ring may succeed.
    NotNow,
}

/// Rings a doorbell. Does not block.
pub fn ring(write_end: impl AsFd) -> RingOutcome {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match rustix::io::retry_on_intr(|| send(&write_end, &[1], flags)) {
        // Full: the doorbell was rung often, and the rings were not read yet.
        Ok(_) | Err(Errno::AGAIN) => RingOutcome::Heard,
        Err(errno) if is_closed(errno) => RingOutcome::Closed,
        Err(_) => RingOutcome::NotNow,
    }
}

/// Whether this error means that a socket's other end is closed; other errors pass, such as that
/// the kernel has no memory now.
pub fn is_closed(errno: Errno) -> bool {
    matches!(errno, Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN)
}

/// Empties the read end; the next ring makes it readable again. `false`: the write end is closed.
pub fn silence(read_end: impl AsFd) -> bool {
    hear(|| {
        let mut bytes = [MaybeUninit::<u8>::uninit(); HEARD_BYTES];
        recv(&read_end, &mut bytes, RecvFlags::DONTWAIT).map(|(_, length)| length)
    })
}

fn hear(mut some: impl FnMut() -> Result<usize, Errno>) -> bool {
    for _ in 0..HEARD_TIMES {
        match some() {
            Ok(HEARD_BYTES) | Err(Errno::INTR) => {}
            Ok(length) => return length > 0,
            Err(errno) => return errno == Errno::AGAIN,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::fs::{OFlags, fcntl_setfl};

    use super::*;

    fn is_rung(read_end: &OwnedFd) -> bool {
        let mut fds = [PollFd::new(read_end, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).expect("it can be asked") > 0
    }

    #[test]
    fn a_bell_never_makes_its_ringer_wait() {
        let DoorbellPair { write_end, read_end } = DoorbellPair::new().expect("two ends");
        for end in [&write_end, &read_end] {
            fcntl_setfl(end, OFlags::empty()).expect("who has it may");
        }
        assert!(silence(&read_end) && !is_rung(&read_end));
        // Each of these would wait for ever.
        let times =
            (0..1_000_000).take_while(|_| send(&write_end, &[1], SendFlags::DONTWAIT).is_ok());
        assert!(times.count() > 64, "until it is full");
        let rings = || assert!(ring(&write_end) == RingOutcome::Heard && is_rung(&read_end));
        rings();
        assert!(silence(&read_end) && !is_rung(&read_end));
        rings();
        drop(read_end);
        assert_eq!(ring(&write_end), RingOutcome::Closed);
    }

    #[test]
    fn an_endless_ringer_keeps_no_caller_waiting_and_messages_are_heard() {
        let mut left = 1000;
        let endless = || {
            left -= 1;
            assert!(left > 0, "it is heard for as long as it rings");
            Ok(HEARD_BYTES)
        };
        assert!(hear(endless));
        // All that a socket holds is heard by one silence.
        let DoorbellPair { write_end, read_end } = DoorbellPair::new().expect("two ends");
        let much = [1; 64 << 10];
        while send(&write_end, &much, SendFlags::DONTWAIT).is_ok() {}
        assert!(silence(&read_end) && !is_rung(&read_end));
    }

    /// A write end that was shut down is closed; an error that passes is not taken for that.
    #[test]
    fn only_what_cannot_be_said_ever_is_taken_for_that() {
        let DoorbellPair { write_end, read_end } = DoorbellPair::new().expect("two ends");
        rustix::net::shutdown(&write_end, rustix::net::Shutdown::Both).expect("ours");
        assert!(ring(&write_end) == RingOutcome::Closed && !silence(&read_end));
        let passing = [Errno::NOBUFS, Errno::NOMEM, Errno::AGAIN];
        assert_eq!(passing.map(is_closed), [false; 3]);
        let no_socket = std::fs::File::open("/dev/null").expect("it is there");
        assert_eq!(ring(no_socket), RingOutcome::NotNow);
    }
}
