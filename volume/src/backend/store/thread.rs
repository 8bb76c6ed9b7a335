//! The pool's thread. It works when no sidecore does: for sidecores that sleep, for control threads
//! and for the pool's own work. While sidecores poll it only looks now and then whether they do.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::pool::{PoolInside, PoolNews};

/// How often to look whether others do the work. A pool whose sidecores all do something else
/// stands still for so long at most.
const WATCH: Duration = Duration::from_millis(2);

/// Looks without work before the thread sleeps until it is called. Calling it costs a system call,
/// so a pool that is used now and then is watched in between.
const WATCHES_IDLE: u32 = 25;

/// How long the thread sleeps if it is not called.
const SLEEP: Duration = Duration::from_secs(1);

/// Turns at once in which nothing went to a device or came from one, although the engine has work:
/// each frees some thousand pages, for instance.
const TURNS_MAX: u32 = 1000;

/// How often the thread looks for news that an operator must hear.
const NEWS: Duration = Duration::from_secs(1);

/// The thread's loop, until the pool is closed.
pub(super) fn run(inside: &PoolInside) {
    let signs = &inside.signs;
    let (mut looked, mut news) = (Instant::now(), PoolNews::default());
    let (mut seen, mut idle, mut turns) = (signs.rounds(), 0, 0);
    while !signs.is_closed() {
        let had_sleepers = signs.has_sleepers();
        let others_work = signs.rounds() != seen;
        let works = had_sleepers || signs.is_busy() && !others_work || idle > WATCHES_IDLE;
        let again = works && inside.work();
        seen = signs.rounds();
        if looked.elapsed() >= NEWS {
            looked = Instant::now();
            news = inside.tell_news(news);
        }
        inside.note_failure();
        turns = if again { turns + 1 } else { 0 };
        if again && turns < TURNS_MAX {
            // Threads that wait for the lock have it first.
            std::thread::yield_now();
            continue;
        }
        idle = if signs.is_busy() || signs.has_sleepers() { 0 } else { idle + 1 };
        let deep = idle > WATCHES_IDLE;
        if signs.thread_sleeps(deep, had_sleepers) {
            wait(inside, works, if deep { SLEEP } else { WATCH });
        }
        signs.thread_wakes();
        // A deep sleep begins anew after each look.
        idle = idle.min(WATCHES_IDLE + 1);
    }
}

/// Waits for a call, and for the devices if the thread has asked them to signal.
fn wait(inside: &PoolInside, on_devices: bool, timeout: Duration) {
    let event = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
    let call = inside.signs.thread_event();
    let mut both = [event(call), event(inside.ring_event())];
    let fds = if on_devices { &mut both[..] } else { &mut both[..1] };
    let timeout =
        Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
    // An interrupted wait is a short one.
    let _ = poll(fds, Some(&timeout));
}
