//! Pollers, and the wishes that a poller may have before its sidecore sleeps.

use std::cell::RefCell;
use std::fmt;
use std::ops::{BitOr, BitOrAssign};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::rc::Rc;

use rustix::event::{PollFd, PollFlags};

/// Whether a batch of work found any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[must_use]
pub enum Progress {
    /// There was nothing to do.
    #[default]
    Idle,
    /// Something was done, or is known to be waiting.
    Busy,
}

impl Progress {
    /// `Busy` when `busy`.
    pub fn busy_if(busy: bool) -> Self {
        if busy { Self::Busy } else { Self::Idle }
    }

    /// Something was done.
    pub fn is_busy(self) -> bool {
        self == Self::Busy
    }
}

impl BitOr for Progress {
    type Output = Self;

    /// Busy when either is.
    fn bitor(self, other: Self) -> Self {
        Self::busy_if(self.is_busy() || other.is_busy())
    }
}

impl BitOrAssign for Progress {
    fn bitor_assign(&mut self, other: Self) {
        *self = *self | other;
    }
}

/// Something that a sidecore polls. Built on its sidecore, so it need not be `Send`.
pub trait Poll {
    /// Does one bounded batch of work. `now_ns` is the round's clock.
    ///
    /// Never blocks, and stays `Busy` only while it finds work: a poller that always says `Busy`
    /// keeps its sidecore from ever sleeping.
    fn poll(&mut self, now_ns: u64) -> Progress;

    /// Called before the sidecore sleeps. The poller enables its notifications, tells `wake` the
    /// descriptors and deadlines to wake for, and then looks for work again. `Busy` means that
    /// there is work and the sidecore must not sleep.
    ///
    /// The order matters: work that arrives before notifications are on is seen by the second look,
    /// and work that arrives afterwards is notified. Each call is followed by one of
    /// [`Poll::disarm`].
    fn arm(&mut self, wake: &mut Wake) -> Progress {
        let _ = wake;
        Progress::Idle
    }

    /// After the sidecore slept, or decided not to: turn notifications off again.
    fn disarm(&mut self) {}

    /// Whether the next round needs a look at the clock of its own, also when it follows at once on
    /// a round that found nothing. Only pollers of [`RoundStage::Receive`] are asked: they judge
    /// datagrams by the time of their arrival.
    fn needs_clock(&self) -> bool {
        false
    }

    /// The poller's name for an operator, such as `disk "alice"`. The log has it when a round hangs
    /// in this poller. Asked once, when the poller is added.
    fn label(&self) -> String {
        let name = std::any::type_name::<Self>();
        name.rsplit("::").next().unwrap_or(name).to_owned()
    }
}

/// A poller that others on its sidecore use as well. It must not be borrowed when a round comes to
/// it, which holds as long as no code keeps a borrow from one round to the next.
impl<T: Poll + ?Sized> Poll for Rc<RefCell<T>> {
    fn poll(&mut self, now_ns: u64) -> Progress {
        self.borrow_mut().poll(now_ns)
    }

    fn arm(&mut self, wake: &mut Wake) -> Progress {
        self.borrow_mut().arm(wake)
    }

    fn disarm(&mut self) {
        self.borrow_mut().disarm();
    }

    fn needs_clock(&self) -> bool {
        self.borrow().needs_clock()
    }

    fn label(&self) -> String {
        self.borrow().label()
    }
}

/// The part of a round in which a poller runs. Pollers of an earlier stage are polled first, so
/// that a request that arrives goes through the whole sidecore within one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RoundStage {
    /// Take in what has arrived from other hosts.
    Receive,
    /// Serve queues: the work proper.
    Serve,
    /// Hand what was gathered to the kernel, and reap what it finished.
    Submit,
    /// Send what was gathered to other hosts.
    Transmit,
}

impl RoundStage {
    /// All stages in the order of a round.
    pub const ALL: [Self; 4] = [Self::Receive, Self::Serve, Self::Submit, Self::Transmit];
}

/// Room made at once: the queues and links of most sidecores. With more descriptors the list grows
/// the first time they are armed.
const FDS_COMMON: usize = 64;

/// The descriptors and the deadline that end a sidecore's sleep, gathered from all pollers by
/// [`Poll::arm`].
pub struct Wake {
    fds: Vec<PollFd<'static>>,
    deadline_ns: Option<u64>,
}

impl Wake {
    /// Nothing to wake for yet.
    pub fn new() -> Self {
        Self { fds: Vec::with_capacity(FDS_COMMON), deadline_ns: None }
    }

    /// Wake when `fd` can be read (or has failed). The caller keeps it open until
    /// [`Poll::disarm`].
    pub fn on_readable(&mut self, fd: BorrowedFd<'_>) {
        // SAFETY: the descriptor is only ever handed to ppoll while its poller is armed, and the
        // poller keeps it open until it is disarmed (the doc comment above; the sidecore runs
        // nothing else in between). `clear` forgets it before the next arming.
        let fd = unsafe { BorrowedFd::borrow_raw(fd.as_raw_fd()) };
        self.fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
    }

    /// Wake at `deadline_ns` of the monotonic clock at the latest.
    pub fn at(&mut self, deadline_ns: u64) {
        self.deadline_ns = Some(self.deadline_ns.map_or(deadline_ns, |at| at.min(deadline_ns)));
    }

    /// The earliest deadline that was asked for.
    pub fn deadline_ns(&self) -> Option<u64> {
        self.deadline_ns
    }

    /// How many descriptors were asked for.
    pub fn fd_count(&self) -> usize {
        self.fds.len()
    }

    /// The descriptors in the order they were asked for, for one ppoll.
    pub(crate) fn poll_fds(&mut self) -> &mut [PollFd<'static>] {
        &mut self.fds
    }

    /// Forgets everything and keeps the room.
    pub fn clear(&mut self) {
        self.fds.clear();
        self.deadline_ns = None;
    }
}

impl Default for Wake {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Wake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wake")
            .field("fd_count", &self.fds.len())
            .field("deadline_ns", &self.deadline_ns)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn progress_combines_to_busy_when_either_is() {
        for (a, b) in [(false, false), (false, true), (true, false), (true, true)] {
            let both = Progress::busy_if(a) | Progress::busy_if(b);
            assert_eq!(both.is_busy(), a || b);
            let mut sum = Progress::busy_if(a);
            sum |= Progress::busy_if(b);
            assert_eq!(sum, both);
        }
    }

    #[test]
    fn wake_keeps_the_earliest_deadline_until_cleared() {
        let mut wake = Wake::new();
        assert_eq!(wake.deadline_ns(), None);
        for deadline_ns in [30, 10, 20] {
            wake.at(deadline_ns);
        }
        wake.on_readable(std::io::stdin().as_fd());
        assert_eq!((wake.deadline_ns(), wake.fd_count()), (Some(10), 1));
        wake.clear();
        assert_eq!((wake.deadline_ns(), wake.fd_count()), (None, 0));
    }
}
