//! The eventfd that a VM's doorbell rings.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use crate::bell::silence;

/// A bell that was rung so often within a [`SPAN`] rests until that is over: whatever a guest does,
/// most of the door's time is for others.
const RINGS_AT_ONCE: u32 = 8;
const SPAN: Duration = Duration::from_millis(1);

/// One VM's.
#[derive(Debug)]
pub(super) struct Bell {
    fd: OwnedFd,
    epoll: Arc<OwnedFd>,
    event: u64,
    /// Of the span that is counted in.
    begun: Instant,
    rings: u32,
    rests: bool,
}

impl Bell {
    /// A new one, whose rings are this event.
    pub(super) fn new(epoll: &Arc<OwnedFd>, event: u64) -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Self::of(fd, epoll, event)
    }

    /// One that a VM has already.
    pub(super) fn of(fd: OwnedFd, epoll: &Arc<OwnedFd>, event: u64) -> io::Result<Self> {
        epoll::add(epoll, &fd, EventData::new_u64(event), EventFlags::IN)?;
        let (epoll, begun) = (Arc::clone(epoll), Instant::now());
        Ok(Self { fd, epoll, event, begun, rings: 0, rests: false })
    }

    /// It was rung; what is rung after this is the next event.
    pub(super) fn hear(&mut self) {
        // QEMU has it, too.
        silence(self.fd.as_fd());
        let now = Instant::now();
        if now.duration_since(self.begun) >= SPAN {
            (self.begun, self.rings) = (now, 0);
        }
        self.rings += 1;
        if self.rings >= RINGS_AT_ONCE {
            // If it cannot be made to rest it is heard, which is right as well.
            self.rests = self.want(EventFlags::empty()).is_ok();
        }
    }

    /// Lets it be heard again if it has rested for long enough. Until when it rests.
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

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        // QEMU has the eventfd as well: it is not taken out by being closed here, and its rings
        // would be events for ever. It can only fail if it is not in.
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

    fn ring(bell: impl AsFd) {
        rustix::io::write(bell, &1_u64.to_ne_bytes()).expect("room to count");
    }

    #[test]
    fn a_bell_that_somebody_else_has_is_not_heard_when_its_vm_is_gone() {
        let epoll = Arc::new(epoll::create(CreateFlags::CLOEXEC).expect("one"));
        let bell = Bell::new(&epoll, 7).expect("one");
        let qemus = bell.as_fd().try_clone_to_owned().expect("another descriptor");
        ring(&qemus);
        assert_eq!(events(&epoll), [7]);
        drop(bell);
        assert!(events(&epoll).is_empty());
        ring(&qemus);
        assert!(events(&epoll).is_empty());
    }

    #[test]
    fn a_bell_that_is_rung_without_end_rests_and_is_heard_again() {
        let epoll = Arc::new(epoll::create(CreateFlags::CLOEXEC).expect("one"));
        let mut bell = Bell::new(&epoll, 7).expect("one");
        // All within a span, on however slow a machine.
        while !bell.rests {
            bell.begun = Instant::now();
            ring(&bell);
            assert_eq!(events(&epoll), [7]);
            bell.hear();
        }
        assert_eq!(bell.rings, RINGS_AT_ONCE);
        ring(&bell);
        assert!(events(&epoll).is_empty());
        bell.begun = Instant::now() + Duration::from_secs(60);
        assert_eq!(bell.wake(), Ok(Some(bell.begun + SPAN)));
        bell.begun = Instant::now();
        std::thread::sleep(SPAN);
        assert_eq!(bell.wake(), Ok(None));
        assert_eq!(events(&epoll), [7], "what was rung meanwhile");
    }
}
