//! Bells that others have, too.
//!
//! Whether a call for an eventfd waits is said by a flag of what all who have it share: any of them
//! may clear it, and empty or fill the counter. So one that members or a VMM have is read by a call
//! that says itself that it does not wait, and is never written to; who has something to say
//! without them rings another one.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use crate::hand_over::{Number, Put, Take};

/// "Where the file stands", for files that have no place.
const NO_OFFSET: u64 = u64::MAX;

/// Empties a bell that others have. A kernel that knows no such call for eventfds (before 5.8)
/// leaves it as it is: who waits for it then does not sleep, which is better than for ever.
pub(crate) fn silence(bell: BorrowedFd<'_>) {
    let mut count = [0; 8];
    let _ = preadv2(bell, &mut [IoSliceMut::new(&mut count)], NO_OFFSET, ReadWriteFlags::NOWAIT);
}

/// What wakes a gateway of a domain.
#[derive(Debug)]
pub struct GatewayBell {
    /// Members have it.
    shared: OwnedFd,
    /// Nobody else has it: rung for members that have none, in VMs.
    own: OwnedFd,
}

impl GatewayBell {
    pub(crate) fn new() -> Result<Self, Errno> {
        let [shared, own] =
            [(); 2].map(|()| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK));
        Ok(Self { shared: shared?, own: own? })
    }

    /// The same bell.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { shared: self.shared.try_clone()?, own: self.own.try_clone()? })
    }

    /// The same in another process: what members ring, and what the node does.
    pub(crate) fn take_down(&self, put: Put<'_>) -> io::Result<(Number, Number)> {
        let Self { shared, own } = self.try_clone()?;
        Ok((put(shared), put(own)))
    }

    /// The one that another process had.
    pub(crate) fn adopt((shared, own): (Number, Number), take: Take<'_>) -> io::Result<Self> {
        Ok(Self { shared: take(shared)?, own: take(own)? })
    }

    /// What is to be waited for: one of them can be read when it was rung.
    pub fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.shared.as_fd(), self.own.as_fd()]
    }

    /// It was heard; rung again, it is heard again. Never waits.
    pub fn silence(&self) {
        silence(self.shared.as_fd());
        let _ = rustix::io::read(&self.own, &mut [0_u8; 8]);
    }

    /// What members ring.
    pub(crate) fn shared(&self) -> BorrowedFd<'_> {
        self.shared.as_fd()
    }

    /// Rings it. Never waits.
    pub(crate) fn ring(&self) {
        // It can only fail when the counter is full, and then it can be read anyhow.
        let _ = rustix::io::write(&self.own, &1_u64.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::fs::{OFlags, fcntl_setfl};

    use super::*;

    fn is_rung(bell: &GatewayBell) -> bool {
        let [shared, own] = bell.fds();
        let mut fds = [PollFd::new(&shared, PollFlags::IN), PollFd::new(&own, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).expect("they can be asked") > 0
    }

    #[test]
    fn nobody_waits_for_a_bell_that_a_member_has_bent() {
        let bell = GatewayBell::new().expect("a bell");
        let members = bell.shared().try_clone_to_owned().expect("a descriptor");
        fcntl_setfl(&members, OFlags::empty()).expect("any member may do that");
        // Each of these would wait for ever.
        bell.silence();
        assert!(!is_rung(&bell));
        rustix::io::write(&members, &(u64::MAX - 1).to_ne_bytes()).expect("there is room");
        bell.ring();
        bell.silence();
        assert!(!is_rung(&bell));
        bell.ring();
        assert!(is_rung(&bell.try_clone().expect("a descriptor")));
    }
}
