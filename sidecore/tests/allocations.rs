//! A warm sidecore does not allocate: not in rounds, not for messages, not for sleeping.

mod counting;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc;
use std::time::Duration;

use counting::allocations;
use rustix::event::{EventfdFlags, eventfd};
use sidecore::{
    Idle, Poll, Progress, RoundStage, SidecoreConfig, Slots, Timers, Wake, mailbox, spawn,
};

/// Takes messages, keeps slots and timers busy, arms a descriptor and a deadline each time.
struct Worker {
    from: mailbox::Receiver<u64>,
    slots: Slots<Vec<u8>>,
    timers: Timers<u32>,
    fd: OwnedFd,
    warm_at: u64,
    last: u64,
    allocations_warm: u64,
    done: mpsc::SyncSender<u64>,
}

impl Poll for Worker {
    fn poll(&mut self, now_ns: u64) -> Progress {
        while self.timers.pop_due(now_ns).is_some() {}
        let Some(message) = self.from.receive() else { return Progress::Idle };
        let id = self.slots.take().expect("freed below");
        self.slots[id].clear();
        self.slots[id].extend_from_slice(&[7; 4096]);
        self.slots.free(id);
        self.timers.set(now_ns + 50_000, message as u32 % 8).expect("eight keys");
        if message == self.warm_at {
            self.allocations_warm = allocations();
        } else if message == self.last {
            self.done.send(allocations() - self.allocations_warm).unwrap();
        }
        Progress::Busy
    }

    fn arm(&mut self, wake: &mut Wake) -> Progress {
        wake.on_readable(self.fd.as_fd());
        if let Some(next_ns) = self.timers.next_ns() {
            wake.at(next_ns);
        }
        Progress::busy_if(!self.from.is_empty())
    }
}

#[test]
fn a_warm_sidecore_does_not_allocate() {
    for idle in [Idle::Sleep, Idle::Adaptive, Idle::Spin] {
        let core = spawn(SidecoreConfig { idle, ..SidecoreConfig::new(0) }).unwrap();
        let (mut sender, from) = mailbox::channel(16, core.waker());
        let (done_in, done) = mpsc::sync_channel(1);
        core.call(move |local| {
            let worker = Worker {
                from,
                slots: Slots::new(4),
                timers: Timers::new(8),
                fd: eventfd(0, EventfdFlags::NONBLOCK).unwrap(),
                warm_at: 500,
                last: 5_000,
                allocations_warm: 0,
                done: done_in,
            };
            local.add(RoundStage::Serve, Box::new(worker));
        })
        .unwrap();
        for message in 0..=5_000 {
            while sender.send(message).is_err() {
                std::thread::yield_now();
            }
        }
        assert_eq!(done.recv_timeout(Duration::from_secs(120)), Ok(0), "idle = {idle}");
    }
}
