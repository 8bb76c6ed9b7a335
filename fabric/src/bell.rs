//! Bells of endpoints that sleep: how they are rung and heard.
//!
//! A bell is a pair of connected sockets. The endpoint alone has the end that is read, so that
//! nobody else can silence it; the node keeps the one that is written to, and gives it to members
//! that ask. It is written to by calls that say themselves that they do not wait: whether the
//! descriptor does is for all to change who have it.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};

/// What is heard at once, and how often for one silence: more than a socket holds. A member that
/// rings without end is heard in vain the next time, and keeps nobody here.
const HEARD_BYTES: usize = 16 << 10;
const HEARD_TIMES: usize = 16;

/// A bell's two ends.
#[derive(Debug)]
pub struct Pair {
    /// Rung by.
    pub rope: OwnedFd,
    /// Heard by.
    pub ear: OwnedFd,
}

impl Pair {
    /// A new one.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn new() -> Result<Self, Errno> {
        let (kind, flags) = (SocketType::STREAM, SocketFlags::CLOEXEC);
        let (rope, ear) = socketpair(AddressFamily::UNIX, kind, flags, None)?;
        Ok(Self { rope, ear })
    }
}

/// What has become of ringing a bell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rung {
    /// It can be heard.
    Heard,
    /// Nobody hears it by this rope, ever.
    Cut,
    /// The system could not say it now.
    NotNow,
}

/// Rings a bell, without waiting.
pub fn ring(rope: impl AsFd) -> Rung {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    match rustix::io::retry_on_intr(|| send(&rope, &[1], flags)) {
        // Full: it was rung, often, and not heard yet.
        Ok(_) | Err(Errno::AGAIN) => Rung::Heard,
        Err(errno) if is_cut(errno) => Rung::Cut,
        Err(_) => Rung::NotNow,
    }
}

/// Whether this answer of the system's means that nobody is at a socket's other end; others mean
/// that it has no memory now, say.
pub fn is_cut(errno: Errno) -> bool {
    matches!(errno, Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN)
}

/// Hears a bell; rung again, it can be read again. `false`: its rope is cut.
pub fn silence(ear: impl AsFd) -> bool {
    hear(|| {
        let mut bytes = [MaybeUninit::<u8>::uninit(); HEARD_BYTES];
        recv(&ear, &mut bytes, RecvFlags::DONTWAIT).map(|(_, length)| length)
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

    fn is_rung(ear: &OwnedFd) -> bool {
        let mut fds = [PollFd::new(ear, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).expect("it can be asked") > 0
    }

    #[test]
    fn nobody_waits_for_a_bell_whatever_others_do_to_it() {
        let Pair { rope, ear } = Pair::new().expect("two ends");
        for end in [&rope, &ear] {
            fcntl_setfl(end, OFlags::empty()).expect("who has it may");
        }
        assert!(silence(&ear) && !is_rung(&ear));
        // Each of these would wait for ever.
        let times = (0..1_000_000).take_while(|_| send(&rope, &[1], SendFlags::DONTWAIT).is_ok());
        assert!(times.count() > 64, "until it is full");
        let rings = || assert!(ring(&rope) == Rung::Heard && is_rung(&ear));
        rings();
        assert!(silence(&ear) && !is_rung(&ear));
        rings();
        drop(ear);
        assert_eq!(ring(&rope), Rung::Cut);
    }

    #[test]
    fn who_rings_without_end_keeps_nobody_and_what_is_there_is_heard() {
        let mut left = 1000;
        let endless = || {
            left -= 1;
            assert!(left > 0, "it is heard for as long as it rings");
            Ok(HEARD_BYTES)
        };
        assert!(hear(endless));
        // All that a socket holds is heard by one silence.
        let Pair { rope, ear } = Pair::new().expect("two ends");
        let much = [1; 64 << 10];
        while send(&rope, &much, SendFlags::DONTWAIT).is_ok() {}
        assert!(silence(&ear) && !is_rung(&ear));
    }

    /// Nobody hears it by a rope that was shut down; what cannot be said now is not said for ever.
    #[test]
    fn only_what_cannot_be_said_ever_is_taken_for_that() {
        let Pair { rope, ear } = Pair::new().expect("two ends");
        rustix::net::shutdown(&rope, rustix::net::Shutdown::Both).expect("ours");
        assert!(ring(&rope) == Rung::Cut && !silence(&ear));
        let passing = [Errno::NOBUFS, Errno::NOMEM, Errno::AGAIN];
        assert_eq!(passing.map(is_cut), [false; 3]);
        let no_socket = std::fs::File::open("/dev/null").expect("it is there");
        assert_eq!(ring(no_socket), Rung::NotNow);
    }
}
