//! Doorbells of gateways, which are eventfds that members have as well.
//!
//! Every process that has an eventfd can change whether calls for it block, and can empty or fill
//! its counter. So the node reads an eventfd that members or a VMM have by a call that is
//! non-blocking by its own flag, and never writes to it. For rings of its own the node has a second
//! eventfd.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use handover::{ReceivedDescriptors, SentDescriptors};

use crate::hand_over::GatewayDoorbellState;

/// The offset that means "the current position": an eventfd has none.
const NO_OFFSET: u64 = u64::MAX;

/// Empties an eventfd that other processes have. Kernels before 5.8 have no such call for eventfds
/// and leave it readable: then its waiter does not sleep at all, which is better than to block.
pub(crate) fn silence(doorbell: BorrowedFd<'_>) {
    let mut count = [0; 8];
    let _ =
        preadv2(doorbell, &mut [IoSliceMut::new(&mut count)], NO_OFFSET, ReadWriteFlags::NOWAIT);
}

/// Wakes a gateway of a domain.
#[derive(Debug)]
pub struct GatewayDoorbell {
    /// Members ring it.
    shared: OwnedFd,
    /// The node alone has it, and rings it for members in VMs, which have no eventfd.
    own: OwnedFd,
}

impl GatewayDoorbell {
    pub(crate) fn new() -> Result<Self, Errno> {
        let [shared, own] =
            [(); 2].map(|()| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK));
        Ok(Self { shared: shared?, own: own? })
    }

    /// The same doorbell, by descriptors of its own.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { shared: self.shared.try_clone()?, own: self.own.try_clone()? })
    }

    /// For the process that takes over: the eventfd of members, and the node's own.
    pub(crate) fn take_down(&self, sent: &mut SentDescriptors) -> io::Result<GatewayDoorbellState> {
        let (shared, own) = (sent.put_copy(&self.shared)?, sent.put_copy(&self.own)?);
        Ok(GatewayDoorbellState { shared, own })
    }

    /// Takes it over from another process.
    pub(crate) fn adopt(
        state: GatewayDoorbellState,
        received: &mut ReceivedDescriptors,
    ) -> io::Result<Self> {
        let GatewayDoorbellState { shared, own } = state;
        Ok(Self { shared: received.take(shared)?, own: received.take(own)? })
    }

    /// The descriptors to wait for: one of them is readable after a ring.
    pub fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.shared.as_fd(), self.own.as_fd()]
    }

    /// Empties it; the next ring makes it readable again. Does not block.
    pub fn silence(&self) {
        silence(self.shared.as_fd());
        let _ = rustix::io::read(&self.own, &mut [0_u8; 8]);
    }

    /// The eventfd that members ring.
    pub(crate) fn shared(&self) -> BorrowedFd<'_> {
        self.shared.as_fd()
    }

    /// Rings it. Does not block.
    pub(crate) fn ring(&self) {
        // It fails only if the counter is full, and then the eventfd is readable anyway.
        let _ = rustix::io::write(&self.own, &1_u64.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::fs::{OFlags, fcntl_setfl};

    use super::*;

    fn is_rung(doorbell: &GatewayDoorbell) -> bool {
        let [shared, own] = doorbell.fds();
        let mut fds = [PollFd::new(&shared, PollFlags::IN), PollFd::new(&own, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).expect("they can be asked") > 0
    }

    #[test]
    fn a_bell_that_a_member_has_bent_is_not_waited_for() {
        let doorbell = GatewayDoorbell::new().expect("a doorbell");
        let members = doorbell.shared().try_clone_to_owned().expect("a descriptor");
        fcntl_setfl(&members, OFlags::empty()).expect("any member may do that");
        // Each of these would wait for ever.
        doorbell.silence();
        assert!(!is_rung(&doorbell));
        rustix::io::write(&members, &(u64::MAX - 1).to_ne_bytes()).expect("there is room");
        doorbell.ring();
        doorbell.silence();
        assert!(!is_rung(&doorbell));
        doorbell.ring();
        assert!(is_rung(&doorbell.try_clone().expect("a descriptor")));
    }
}
