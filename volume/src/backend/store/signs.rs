//! The part of a pool's state that its threads look at without its lock, and the bells that wake
//! them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use rustix::event::{EventfdFlags, eventfd};

/// An eventfd and whether its owner sleeps on it.
#[derive(Debug)]
pub(super) struct Bell {
    event: OwnedFd,
    asleep: AtomicBool,
}

impl Bell {
    pub(super) fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { event, asleep: AtomicBool::new(false) })
    }

    /// The descriptor to sleep on.
    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// The owner is going to sleep, and looks for work once more afterwards.
    pub(super) fn arm(&self) {
        self.asleep.store(true, SeqCst);
    }

    /// The owner is awake.
    pub(super) fn disarm(&self) {
        self.asleep.store(false, SeqCst);
        // Nothing to take is fine: the descriptor does not block.
        let _ = rustix::io::read(&self.event, &mut [0u8; 8]);
    }

    /// Wakes the owner if it sleeps: one system call for each of its sleeps.
    pub(super) fn ring(&self) {
        if self.asleep.load(SeqCst) && self.asleep.swap(false, SeqCst) {
            // It fails only when the counter is full, and then it is readable already.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }
}

/// How many requests of a channel's sidecore the kernel has. It ends them in the thread that began
/// them, when that thread enters the kernel next. So the sidecore goes on with the pool's rounds
/// until there are none, since requests of other sidecores are among them.
#[derive(Debug, Default)]
pub(super) struct InKernel(AtomicU32);

impl InKernel {
    /// Whether there are any.
    pub(super) fn has_some(&self) -> bool {
        self.0.load(Relaxed) > 0
    }

    /// One was begun. Only the holder of the pool's lock calls this and [`Self::ended`].
    pub(super) fn begun(&self) {
        self.0.store(self.0.load(Relaxed) + 1, Relaxed);
    }

    /// One has ended.
    pub(super) fn ended(&self) {
        self.0.store(self.0.load(Relaxed) - 1, Relaxed);
    }
}

/// The knowledge that the threads of a pool have of each other.
#[derive(Debug)]
pub(super) struct PoolSigns {
    /// Wakes the pool's thread.
    bell: Bell,
    /// The pool's thread does not even look now and then.
    deep: AtomicBool,
    /// Rounds of the engine, by whichever thread.
    rounds: AtomicU64,
    /// The engine has work under way.
    busy: AtomicBool,
    /// Sidecores that sleep and wait for answers, so that the pool's thread works for them.
    sleepers: AtomicU32,
    /// No requests are taken for a while; they wait.
    stopped: AtomicBool,
    /// The pool is closed for good.
    closed: AtomicBool,
    /// A device has failed.
    failed: AtomicBool,
}

impl PoolSigns {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            bell: Bell::new()?,
            deep: AtomicBool::new(false),
            rounds: AtomicU64::new(0),
            busy: AtomicBool::new(false),
            sleepers: AtomicU32::new(0),
            stopped: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            failed: AtomicBool::new(false),
        })
    }

    /// After a round. Only the holder of the pool's lock calls it.
    pub(super) fn has_driven(&self, busy: bool) {
        self.rounds.store(self.rounds.load(Relaxed) + 1, Relaxed);
        if self.busy.load(Relaxed) != busy {
            // The thread says that it sleeps and then looks at this; here it is the other way
            // round, and so one of the two sees the other.
            self.busy.store(busy, SeqCst);
        }
        // It watches as long as there is work, in case that a sidecore stops doing it.
        if busy && self.deep.load(SeqCst) && self.deep.swap(false, SeqCst) {
            self.bell.ring();
        }
    }

    /// The pool's thread is going to sleep, deeply or until it looks again soon. `false` when there
    /// is a reason not to.
    pub(super) fn thread_sleeps(&self, deep: bool, had_sleepers: bool) -> bool {
        self.deep.store(deep, SeqCst);
        self.bell.arm();
        !(self.is_closed()
            || deep && self.busy.load(SeqCst)
            || !had_sleepers && self.has_sleepers())
    }

    /// The pool's thread is awake.
    pub(super) fn thread_wakes(&self) {
        self.deep.store(false, SeqCst);
        self.bell.disarm();
    }

    /// The descriptor that the pool's thread sleeps on.
    pub(super) fn thread_event(&self) -> BorrowedFd<'_> {
        self.bell.event()
    }

    pub(super) fn rounds(&self) -> u64 {
        self.rounds.load(Relaxed)
    }

    pub(super) fn is_busy(&self) -> bool {
        self.busy.load(Relaxed)
    }

    /// A sidecore sleeps, and the pool's thread works for it.
    pub(super) fn fall_asleep(&self) {
        self.sleepers.fetch_add(1, SeqCst);
        self.bell.ring();
    }

    pub(super) fn wake_up(&self) {
        self.sleepers.fetch_sub(1, SeqCst);
    }

    pub(super) fn has_sleepers(&self) -> bool {
        self.sleepers.load(SeqCst) > 0
    }

    pub(super) fn set_stopped(&self, stopped: bool) {
        self.stopped.store(stopped, SeqCst);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(SeqCst)
    }

    pub(super) fn set_closed(&self) {
        self.closed.store(true, SeqCst);
        self.bell.ring();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(SeqCst)
    }

    pub(super) fn set_failed(&self) {
        self.failed.store(true, SeqCst);
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(SeqCst)
    }
}
