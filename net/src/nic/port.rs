//! A nic as a port of its network.

use std::cell::RefCell;
use std::rc::Rc;

use sidecore::{Progress, Wake};

use super::queues::NicQueues;
use crate::frame::Burst;
use crate::port::{Chosen, Port};

/// The way of a nic's frames. Its queues come and go beside it.
#[derive(Debug)]
pub struct NicPort(Rc<RefCell<NicQueues>>);

impl NicPort {
    /// The port of these queues.
    pub fn new(queues: Rc<RefCell<NicQueues>>) -> Self {
        Self(queues)
    }
}

impl Port for NicPort {
    fn receive(&mut self, burst: &mut Burst, _now_ns: u64) -> Progress {
        Progress::busy_if(self.0.borrow_mut().receive(burst))
    }

    fn release(&mut self, burst: &mut Burst) {
        self.0.borrow_mut().release(burst);
    }

    fn transmit(&mut self, burst: &Burst, chosen: &[Chosen], _now_ns: u64) {
        self.0.borrow_mut().transmit(burst, chosen);
    }

    fn flush(&mut self) {
        self.0.borrow_mut().flush();
    }

    /// Only what the guest sends is waited for: buffers for it are looked for when a frame comes.
    fn arm(&mut self, wake: &mut Wake) -> Progress {
        let mut queues = self.0.borrow_mut();
        let mut progress = Progress::Idle;
        if queues.core.is_broken() {
            return progress;
        }
        for sender in queues.senders.iter_mut().flatten() {
            sender.armed = true;
            progress |= Progress::busy_if(sender.queue.arm());
            match sender.queue.kick_fd() {
                Some(kick) => wake.on_readable(kick),
                // A driver that does not kick is polled.
                None => progress = Progress::Busy,
            }
        }
        progress
    }

    fn disarm(&mut self) {
        for sender in self.0.borrow_mut().senders.iter_mut().flatten() {
            if std::mem::take(&mut sender.armed) {
                sender.queue.disarm();
            }
        }
    }
}
