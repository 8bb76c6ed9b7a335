//! Driver and device on two threads, each asleep whenever it has nothing to do: a notification
//! that is lost hangs the test.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::thread;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use sidecore::foreign;

use random::Random;

use super::ring::*;
use crate::chain::Chain;
use crate::queue::Queue;

const SIZE: u16 = 16;
const REQUESTS: u32 = 100_000;
/// Only a lost notification takes this long.
const PATIENCE: Timespec = Timespec { tv_sec: 120, tv_nsec: 0 };

fn counter() -> OwnedFd {
    eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap()
}

fn sleep_on(fd: &impl AsFd, who: &str) {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    assert_eq!(poll(&mut fds, Some(&PATIENCE)), Ok(1), "{who} was never woken");
}

fn device(mut queue: Queue, done: &AtomicBool) {
    let mut chain = Chain::new();
    while !done.load(Ordering::Acquire) {
        let mut busy = false;
        while let Some(head) = queue.take(&mut chain).unwrap() {
            queue.put(head, 8);
            busy = true;
        }
        queue.publish();
        if !busy && !queue.arm() && !done.load(Ordering::Acquire) {
            sleep_on(&queue.kick_fd().unwrap(), "the device");
            queue.disarm();
        }
    }
}

/// The driver's half: offers what fits, sleeps until something comes back.
fn driver(ring: &mut TestRing, kick: &OwnedFd, call: &OwnedFd) {
    let (mut offered, mut reaped) = (0u32, 0u32);
    let mut free: Vec<u16> = (0..SIZE).collect();
    let mut dice = Random::new(7);
    while reaped < REQUESTS {
        let old = ring.avail_idx;
        for _ in 0..=dice.below(3) {
            if offered < REQUESTS
                && let Some(head) = free.pop()
            {
                ring.offer(head);
                offered += 1;
            }
        }
        fence(Ordering::SeqCst);
        let wanted = if ring.event_idx {
            let passed = ring.avail_idx.wrapping_sub(ring.avail_event()).wrapping_sub(1);
            passed < ring.avail_idx.wrapping_sub(old)
        } else {
            ring.used_flags() & 1 == 0 && ring.avail_idx != old
        };
        if wanted {
            rustix::io::write(kick, &1u64.to_ne_bytes()).unwrap();
        }
        let before = reaped;
        while let Some((head, written)) = ring.reap() {
            assert_eq!(written, 8);
            free.push(head);
            reaped += 1;
        }
        if reaped > before || (offered < REQUESTS && !free.is_empty()) {
            continue;
        }
        ring.set_used_event(ring.used_seen);
        ring.set_avail_flags(0);
        fence(Ordering::SeqCst);
        if ring.used_idx() == ring.used_seen && reaped < REQUESTS {
            sleep_on(call, "the driver");
            foreign::silence(call.as_fd());
        }
        ring.set_avail_flags(1);
    }
}

#[test]
fn no_notification_is_lost() {
    for event_idx in [false, true] {
        let mut ring = TestRing::new(SIZE);
        ring.event_idx = event_idx;
        (0..SIZE).for_each(|head| ring.describe(head, descriptor(DATA, 8, WRITE, 0)));
        let (kick, call) = (counter(), counter());
        let mut config = ring.config(None);
        config.kick = Some(kick.try_clone().unwrap());
        config.call = Some(call.try_clone().unwrap());
        let queue = Queue::new(config).unwrap();
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| device(queue, &done));
            driver(&mut ring, &kick, &call);
            done.store(true, Ordering::Release);
            rustix::io::write(&kick, &1u64.to_ne_bytes()).unwrap();
        });
    }
}
