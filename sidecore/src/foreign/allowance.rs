//! A bound for the time that a sidecore spends on signals to one process.
//!
//! The kernel tells each watcher of an eventfd while the signalling call lasts, and the holder of
//! the eventfd makes as many watchers as it likes: 300,000 epolls are tens of milliseconds for each
//! signal, and for each read that empties the counter. So the time of these calls is charged to the
//! process that holds the eventfd, and a process that has spent its [`Allowance`] is not signalled
//! any more.
//!
//! Looking at a clock before and after each signal would make it half as dear again. A sidecore
//! reads its clock once in a round anyway, and a signal that harms makes its round long. So a round
//! that took long has the signals of the time after it measured, and without one nothing is. It is
//! the thread's own processor time: while the system gives the core to others it stands still, so a
//! busy machine makes no signal slow.

use std::cell::Cell;
use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::ThreadId;

use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;

use crate::turns::thread_cpu_ns;

/// After a round that took longer than this, signals are measured. Neighbours that wait for such
/// rounds are served two thousand times a second.
const LONG_ROUND_NS: u64 = 500_000;

/// For how long, in times of what the round took: a process that makes one signal in this time slow
/// is not found out, and takes an eleventh of the sidecore's time.
const MEASURED_FOR: u64 = 10;

/// The longest round that counts as such, so that a process that was stopped for an hour does not
/// measure for ten.
const ROUND_NS_MAX: u64 = 1_000_000_000;

/// A signal that takes more processor time than this is slow: a hundred times what one takes that
/// a single epoll watches.
const SLOW_NS: u64 = 100_000;

/// The processor time that slow signals to one process may take, in each second of a sidecore's
/// processor time. The time that a hypervisor takes from a processor counts as the thread's own, so
/// one slow signal proves nothing. Signals are a small part of a sidecore's time, so such a pause
/// seldom falls on one.
pub const SPENT_NS_MAX: u64 = 100_000_000;

/// That second.
const WINDOW_NS: u64 = 1_000_000_000;

thread_local! {
    /// Signals of this thread are measured.
    static MEASURES: Cell<bool> = const { Cell::new(false) };
    /// Until then.
    static MEASURES_UNTIL_NS: Cell<u64> = const { Cell::new(0) };
}

/// A round of this thread took so long, until `now_ns`.
pub(crate) fn round_took(took_ns: u64, now_ns: u64) {
    if took_ns > LONG_ROUND_NS {
        let until_ns = now_ns + MEASURED_FOR * took_ns.min(ROUND_NS_MAX);
        MEASURES_UNTIL_NS.set(until_ns.max(MEASURES_UNTIL_NS.get()));
        MEASURES.set(true);
    } else if MEASURES.get() && now_ns >= MEASURES_UNTIL_NS.get() {
        MEASURES.set(false);
    }
}

/// The time that slow signals have cost one sidecore.
#[derive(Clone, Copy, Debug)]
struct Spent {
    /// When the present window began, by the thread's processor time.
    began_ns: u64,
    spent_ns: u64,
}

/// The time that slow signals to one process have cost, and an eventfd that becomes readable when
/// they have cost too much.
#[derive(Debug, Default)]
pub struct Allowance {
    /// By sidecore, for each has a clock of its own. Touched for slow signals only.
    spent: Mutex<HashMap<ThreadId, Spent>>,
    is_spent: AtomicBool,
    /// Readable once it is spent: an eventfd of this process's own.
    bell: Option<Arc<OwnedFd>>,
}

impl Allowance {
    /// A fresh one, which writes to `bell` when it is spent.
    pub fn new(bell: Arc<OwnedFd>) -> Self {
        Self { bell: Some(bell), ..Self::default() }
    }

    /// Whether the process is not signalled any more.
    #[inline]
    pub fn is_spent(&self) -> bool {
        self.is_spent.load(Relaxed)
    }

    /// It belongs to another process from now on.
    pub fn renew(&self) {
        self.spent().clear();
        self.is_spent.store(false, Relaxed);
    }

    /// [`super::ring`], on this account.
    ///
    /// # Errors
    /// As there; and `EDQUOT`, without a signal: the allowance is spent.
    #[inline]
    pub fn ring(&self, eventfd: BorrowedFd<'_>) -> Result<(), Errno> {
        if self.is_spent() {
            return Err(Errno::DQUOT);
        }
        self.charged(|| super::ring(eventfd))
    }

    /// [`super::silence`], on this account. Nothing is taken once it is spent.
    #[inline]
    pub fn silence(&self, eventfd: BorrowedFd<'_>) -> bool {
        !self.is_spent() && self.charged(|| super::silence(eventfd))
    }

    #[inline]
    fn charged<T>(&self, call: impl FnOnce() -> T) -> T {
        if !MEASURES.get() {
            return call();
        }
        let began_ns = thread_cpu_ns();
        let done = call();
        let ended_ns = thread_cpu_ns();
        if ended_ns.saturating_sub(began_ns) > SLOW_NS {
            self.spend(began_ns, ended_ns);
        }
        done
    }

    /// A slow signal took from then to then, by this thread's processor time.
    #[cold]
    fn spend(&self, began_ns: u64, ended_ns: u64) {
        let spent_ns = {
            let mut spent = self.spent();
            let fresh = Spent { began_ns, spent_ns: 0 };
            let spent = spent.entry(std::thread::current().id()).or_insert(fresh);
            if ended_ns.saturating_sub(spent.began_ns) > WINDOW_NS {
                *spent = fresh;
            }
            spent.spent_ns += ended_ns - began_ns;
            spent.spent_ns
        };
        if spent_ns > SPENT_NS_MAX
            && !self.is_spent.swap(true, Relaxed)
            && let Some(bell) = &self.bell
        {
            // It does not block, and a full counter is readable as well.
            let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
        }
    }

    fn spent(&self) -> MutexGuard<'_, HashMap<ThreadId, Spent>> {
        self.spent.lock()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    const MS: u64 = 1_000_000;

    fn event() -> OwnedFd {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
    }

    #[test]
    fn a_tenth_of_the_time_may_be_spent_and_what_is_over_is_told_once() {
        let bell = Arc::new(event());
        let allowance = Allowance::new(Arc::clone(&bell));
        // As much as it may, second by second.
        let mut now_ns = 5_000 * MS;
        for _ in 0..10 {
            now_ns += 1_001 * MS;
            (0..4).for_each(|part| {
                allowance.spend(now_ns + 25 * part * MS, now_ns + 25 * (part + 1) * MS)
            });
            assert!(!allowance.is_spent());
        }
        assert!(!super::super::silence(std::os::fd::AsFd::as_fd(&*bell)), "nothing was told");
        (0..2).for_each(|_| allowance.spend(now_ns + 998 * MS, now_ns + 999 * MS));
        assert!(allowance.is_spent());
        let mut told = [0; 8];
        rustix::io::read(&*bell, &mut told).unwrap();
        assert_eq!(u64::from_ne_bytes(told), 1);
        let other = event();
        let other = std::os::fd::AsFd::as_fd(&other);
        super::super::ready().unwrap();
        assert_eq!(allowance.ring(other), Err(Errno::DQUOT));
        allowance.renew();
        assert_eq!(allowance.ring(other), Ok(()));
        assert!(allowance.silence(other) && !allowance.silence(other));
    }

    #[test]
    fn only_what_follows_a_long_round_is_measured() {
        round_took(LONG_ROUND_NS, 10 * MS);
        assert!(!MEASURES.get());
        round_took(4 * MS, 20 * MS);
        assert!(MEASURES.get());
        round_took(1_000, 59 * MS);
        assert!(MEASURES.get());
        round_took(1_000, 60 * MS);
        assert!(!MEASURES.get());
        // A process that stood still for an hour.
        round_took(3_600_000 * MS, 4_000_000 * MS);
        round_took(1_000, 4_010_000 * MS);
        assert!(!MEASURES.get());
    }
}
