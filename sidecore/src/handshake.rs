//! The handshake between a sidecore that goes to sleep and the threads that bring it work.
//!
//! The classic bug is the lost wake-up: the sleeper looks for work and finds none, the bringer puts
//! work and sees no sleeper, the sleeper sleeps. It cannot happen when each side first writes its
//! own word and then, after a full fence, reads the other's:
//!
//! ```text
//!   sleeper                          bringer
//!   sleeping = true                  work = something
//!   fence                            fence
//!   look at work                     look at sleeping
//!   none: sleep until a signal       true: signal
//! ```
//!
//! Of two full fences one comes first. The side whose fence comes second sees the word that the
//! other side wrote.

#[cfg(all(loom, test))]
use loom::sync::atomic::{AtomicBool, Ordering, fence};
#[cfg(not(all(loom, test)))]
use std::sync::atomic::{AtomicBool, Ordering, fence};

#[derive(Debug)]
pub(crate) struct Handshake {
    sleeping: AtomicBool,
}

impl Handshake {
    pub(crate) fn new() -> Self {
        Self { sleeping: AtomicBool::new(false) }
    }

    /// Sleeper: from now on bringers signal. Look for work once more after this, then sleep.
    pub(crate) fn announce(&self) {
        self.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Sleeper: awake again.
    pub(crate) fn retract(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
    }

    /// Bringer, after the work was put: whether to signal. Of several bringers one signals, which
    /// is enough since the signal stays until it is taken.
    pub(crate) fn must_signal(&self) -> bool {
        fence(Ordering::SeqCst);
        self.sleeping.load(Ordering::Relaxed) && self.sleeping.swap(false, Ordering::Relaxed)
    }
}

#[cfg(all(loom, test))]
mod model {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicUsize;
    use loom::sync::{Condvar, Mutex};
    use loom::thread;

    /// Stands in for the eventfd: a signal stays until it is taken.
    struct Signal {
        given: Mutex<bool>,
        changed: Condvar,
    }

    struct HandshakeWorld {
        handshake: Handshake,
        work: AtomicUsize,
        signal: Signal,
    }

    fn bring(world: &HandshakeWorld) {
        world.work.fetch_add(1, Ordering::Relaxed);
        if world.handshake.must_signal() {
            *world.signal.given.lock().unwrap() = true;
            world.signal.changed.notify_one();
        }
    }

    /// Runs like the loop in `core.rs`: a lost wake-up is a deadlock, which loom reports.
    fn run_until(world: &HandshakeWorld, wanted: usize) {
        while world.work.load(Ordering::Relaxed) < wanted {
            world.handshake.announce();
            if world.work.load(Ordering::Relaxed) < wanted {
                let mut given = world.signal.given.lock().unwrap();
                while !*given {
                    given = world.signal.changed.wait(given).unwrap();
                }
                *given = false;
            }
            world.handshake.retract();
        }
    }

    /// Every interleaving for one bringer; with two, those with at most `preemptions` switches that
    /// no thread asked for, since all of them take hours.
    fn check(bringers: usize, preemptions: Option<usize>) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = preemptions;
        model.check(move || {
            let world = Arc::new(HandshakeWorld {
                handshake: Handshake::new(),
                work: AtomicUsize::new(0),
                signal: Signal { given: Mutex::new(false), changed: Condvar::new() },
            });
            let threads: Vec<_> = (0..bringers)
                .map(|_| {
                    let world = Arc::clone(&world);
                    thread::spawn(move || bring(&world))
                })
                .collect();
            run_until(&world, bringers);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }

    #[test]
    fn one_bringer_never_loses_a_wake_up() {
        check(1, None);
    }

    #[test]
    fn two_bringers_never_lose_a_wake_up() {
        check(2, Some(2));
    }
}
