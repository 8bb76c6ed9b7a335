//! The eventfd that is a VM's doorbell.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use crate::doorbell::silence;

/// A doorbell that was rung so often within a [`SPAN`] is not watched until the span is over: so a
/// guest that rings without end leaves most of the server's time to others.
const RINGS_AT_ONCE: u32 = 8;
const SPAN: Duration = Duration::from_millis(1);

/// One VM's doorbell.
#[derive(Debug)]
pub(super) struct VmDoorbell {
    fd: OwnedFd,
    epoll: Arc<OwnedFd>,
    event: u64,
    /// The beginning of the span in which rings are counted.
    begun: Instant,
    rings: u32,
    rests: bool,
}

impl VmDoorbell {
    /// A new doorbell, whose rings are this event.
    pub(super) fn new(epoll: &Arc<OwnedFd>, event: u64) -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Self::of(fd, epoll, event)
    }

    /// Takes one over that a VM has already.
    pub(super) fn of(fd: OwnedFd, epoll: &Arc<OwnedFd>, event: u64) -> io::Result<Self> {
        epoll::add(epoll, &fd, EventData::new_u64(event), EventFlags::IN)?;
        let (epoll, begun) = (Arc::clone(epoll), Instant::now());
        Ok(Self { fd, epoll, event, begun, rings: 0, rests: false })
    }

    /// Empties it after a ring; the next ring is the next event.
    pub(super) fn hear(&mut self) {
        // QEMU has the eventfd as well.
        silence(self.fd.as_fd());
        let now = Instant::now();
        if now.duration_since(self.begun) >= SPAN {
            (self.begun, self.rings) = (now, 0);
        }
        self.rings += 1;
        if self.rings >= RINGS_AT_ONCE {
            // If it cannot be paused, it stays watched, which is right as well.
            self.rests = self.want(EventFlags::empty()).is_ok();
        }
    }

    /// Watches it again if its pause is over; else returns when it will be.
    pub(super) fn wake(&mut self) -> Result<Option<Instant>, Errno> {
        if !self.rests {
            return Ok(None);
        }
        let until = self.begun + SPAN;
        if Instant::now() < until {
            return Ok(Some(until));
        }
        self.want(EventFlags::IN)?;
        self.rests = false;
        Ok(None)
    }

    fn want(&self, wanted: EventFlags) -> Result<(), Errno> {
        epoll::modify(&self.epoll, &self.fd, EventData::new_u64(self.event), wanted)
    }
}

impl AsFd for VmDoorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for VmDoorbell {
    fn drop(&mut self) {
        // QEMU has the eventfd as well, so closing it here does not end the watch. This fails only
        // if it is not watched.
        let _ = epoll::delete(&self.epoll, &self.fd);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::buffer::spare_capacity;
    use rustix::event::Timespec;
    use rustix::event::epoll::CreateFlags;

    /// Events that are there.
    fn events(epoll: &OwnedFd) -> Vec<u64> {
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut events = Vec::with_capacity(4);
        epoll::wait(epoll, spare_capacity(&mut events), Some(&none)).expect("ours");
        events.iter().map(|event| event.data.u64()).collect()
    }

    fn ring(doorbell: impl AsFd) {
        rustix::io::write(doorbell, &1_u64.to_ne_bytes()).expect("room to count");
    }

    #[test]
    fn a_bell_of_another_vm_is_not_heard_when_its_own_vm_is_gone() {
        let epoll = Arc::new(epoll::create(CreateFlags::CLOEXEC).expect("one"));
        let doorbell = VmDoorbell::new(&epoll, 7).expect("one");
        let qemus = doorbell.as_fd().try_clone_to_owned().expect("another descriptor");
        ring(&qemus);
        assert_eq!(events(&epoll), [7]);
        drop(doorbell);
        assert!(events(&epoll).is_empty());
        ring(&qemus);
        assert!(events(&epoll).is_empty());
    }

    #[test]
    fn a_bell_that_is_rung_without_end_rests_and_is_heard_again() {
        let epoll = Arc::new(epoll::create(CreateFlags::CLOEXEC).expect("one"));
        let mut doorbell = VmDoorbell::new(&epoll, 7).expect("one");
        // All within a span, on however slow a machine.
        while !doorbell.rests {
            doorbell.begun = Instant::now();
            ring(&doorbell);
            assert_eq!(events(&epoll), [7]);
            doorbell.hear();
        }
        assert_eq!(doorbell.rings, RINGS_AT_ONCE);
        ring(&doorbell);
        assert!(events(&epoll).is_empty());
        doorbell.begun = Instant::now() + Duration::from_secs(60);
        assert_eq!(doorbell.wake(), Ok(Some(doorbell.begun + SPAN)));
        doorbell.begun = Instant::now();
        std::thread::sleep(SPAN);
        assert_eq!(doorbell.wake(), Ok(None));
        assert_eq!(events(&epoll), [7], "what was rung meanwhile");
    }
}
