//! Eventfds: kicks and calls.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Adds one to an eventfd. A full counter is as good as another one.
pub(super) fn signal(event: &OwnedFd) {
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}

/// Takes an eventfd's count; zero when it has none.
pub(super) fn drain(event: &OwnedFd) -> u64 {
    let mut count = [0; 8];
    match rustix::io::read(event, &mut count) {
        Ok(8) => u64::from_ne_bytes(count),
        _ => 0,
    }
}

/// Waits until a descriptor is readable.
pub(super) fn readable(fd: BorrowedFd<'_>, timeout: Duration) -> bool {
    let deadline = Instant::now() + timeout;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&left)) {
            Err(Errno::INTR) => {}
            Ok(count) => return count > 0,
            Err(_) => return false,
        }
    }
}
