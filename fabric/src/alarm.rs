//! An alarm: a thread sleeps on it until one of its endpoints has something to do.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::{Domain, Endpoint};

/// Why there is no alarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AlarmError {
    /// Inside of a VM.
    #[error(
        "a process inside of a VM cannot be woken, because its device has no interrupts; let \
             it poll"
    )]
    InVm,
    /// The system refused.
    #[error("cannot make descriptors to sleep on: {0}")]
    System(Errno),
}

impl From<Errno> for AlarmError {
    fn from(errno: Errno) -> Self {
        Self::System(errno)
    }
}

/// A descriptor (an epoll of several) that can be read when one of the endpoints that it watches
/// was woken, when it was rung itself, when a nap is over, or for good when the node is gone. May
/// be used by several threads at once.
pub struct Alarm {
    all: OwnedFd,
    /// Rung by threads of this process.
    doorbell: OwnedFd,
    timer: OwnedFd,
}

impl fmt::Debug for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Alarm").finish_non_exhaustive()
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.all.as_fd()
    }
}

impl Alarm {
    /// For endpoints of this domain.
    ///
    /// # Errors
    /// Inside of a VM, and when no descriptor is left.
    pub fn new(domain: &Domain) -> Result<Self, AlarmError> {
        let line = domain.line().ok_or(AlarmError::InVm)?;
        let all = epoll::create(CreateFlags::CLOEXEC)?;
        let doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        for fd in [&doorbell, &timer] {
            epoll::add(&all, fd, EventData::new_u64(0), EventFlags::IN)?;
        }
        // That it is hung up is told without being asked for; answers are others' to read.
        epoll::add(&all, line, EventData::new_u64(0), EventFlags::empty())?;
        Ok(Self { all, doorbell, timer })
    }

    /// Watches an endpoint from now on, if it has a doorbell.
    ///
    /// # Errors
    /// When the system has no memory for it.
    pub fn watch(&self, endpoint: &Endpoint) -> Result<(), AlarmError> {
        let Some(doorbell) = endpoint.doorbell().filter(|_| endpoint.is_here()) else {
            return Ok(());
        };
        match epoll::add(&self.all, doorbell, EventData::new_u64(0), EventFlags::IN) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Watches it no more. In a child of its process the parent goes on: there both have the same
    /// epoll.
    pub fn forget(&self, endpoint: &Endpoint) {
        if let Some(doorbell) = endpoint.doorbell().filter(|_| endpoint.is_here()) {
            let _ = epoll::delete(&self.all, doorbell);
        }
    }

    /// Rings it, from any thread.
    pub fn ring(&self) {
        // It can only fail when the counter is full, and then it can be read anyhow.
        let _ = rustix::io::write(&self.doorbell, &1_u64.to_ne_bytes());
    }

    /// The reasons of its rings are seen to: it can be read again when it is rung again, or when
    /// one of its endpoints is woken.
    pub fn silence(&self) {
        let _ = rustix::io::read(&self.doorbell, &mut [0_u8; 8]);
    }

    /// Has it be readable after so long; not by itself, if `None`.
    pub fn set(&self, nap: Option<Duration>) {
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let it_value = nap.map_or(none, |nap| Timespec::try_from(nap).unwrap_or(none));
        let times = Itimerspec { it_interval: none, it_value };
        let set = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &times);
        debug_assert!(set.is_ok(), "our own timer");
    }

    /// Waits until it can be read, or for so long; or less, if a signal comes.
    pub fn wait(&self, time: Option<Duration>) {
        let time = time.and_then(|time| Timespec::try_from(time).ok());
        let _ = poll(&mut [PollFd::new(&self.all, PollFlags::IN)], time.as_ref());
    }

    /// Whether it can be read now.
    pub fn is_ringing(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut events = Vec::with_capacity(1);
        epoll::wait(&self.all, spare_capacity(&mut events), Some(&now)).is_ok_and(|count| count > 0)
    }
}
