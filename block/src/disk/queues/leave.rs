//! How a queue leaves for another sidecore. No more of its requests are taken, the taken ones end,
//! and then the queue goes as it is, with its place in the ring, its part of the inflight region
//! and its descriptors. A request that does not end in time keeps the queue here.
//!
//! ```text
//!   begin_leave ─▶ rests ─┬─ drained: take_left gives the queue ─▶ adopt, on another share
//!                         └─ 2 ms are over, or the channel is not open: it goes on here
//! ```
//!
//! No request of a queue is outstanding when it goes, so if a process dies then, no request must be
//! done again. The queue's ring is not armed, so no kick is lost: the adopting share looks into the
//! ring first.

use std::time::Duration;

use sidecore::Progress;
use virtio::Queue;

use super::{DiskQueues, Phase};

/// How long a leaving queue drains. It is about as long as a guest's other delays, so a guest
/// hardly notices when its queue could not leave.
pub const LEAVE: Duration = Duration::from_millis(2);

/// Why a queue stays where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotMoved {
    /// It does not run there, or no longer.
    #[error("it is not served there now")]
    NotServed,
    /// It is being stopped or moved already, or waits for the requests of an earlier start.
    #[error("it is being stopped, started or moved already")]
    Unsettled,
    /// Its channel waits for an epoch, a session or another chain, or the disk is broken.
    #[error("its volume is paused: the way to it is not open now")]
    Paused,
    /// Requests were still on their way when its time was over.
    #[error("its requests did not end within 2 ms")]
    NotDrained,
}

impl DiskQueues {
    /// Whether the channel is open and queues may come to this share and leave it.
    pub fn is_open(&self) -> bool {
        let serves = self.phase == Phase::Serving && !self.core.is_broken();
        serves && self.channel.is_open()
    }

    /// Takes nothing more from a queue; it is for [`DiskQueues::adopt`] of another share when its
    /// requests have ended, and goes on here at `deadline_ns` if they have not.
    /// [`DiskQueues::take_left`] tells.
    ///
    /// # Errors
    /// Why it stays.
    pub fn begin_leave(&mut self, index: usize, deadline_ns: u64) -> Result<(), NotMoved> {
        let open = self.is_open() && !self.attachment.is_fenced();
        let served = self.served(index).ok_or(NotMoved::NotServed)?;
        let refused = if served.held || served.rests() {
            Some(NotMoved::Unsettled)
        } else {
            (!open).then_some(NotMoved::Paused)
        };
        if let Some(why) = refused {
            served.counters.moves_refused.add(1);
            return Err(why);
        }
        served.leave_at_ns = Some(deadline_ns);
        self.leaving += 1;
        Ok(())
    }

    /// How a queue has left, or why it has not; each time is told once.
    pub fn take_left(&mut self, index: usize) -> Option<Result<Queue, NotMoved>> {
        let at = self.left.iter().position(|(left, _)| *left == index)?;
        Some(self.left.swap_remove(at).1)
    }

    /// Goes on with a queue that has left another share of the same start.
    ///
    /// # Panics
    /// When the disk has no queue of this index, or it is being served already.
    pub fn adopt(&mut self, queue: Queue) {
        assert_eq!(queue.outstanding(), 0, "it has drained");
        // A successor may have come while it was between two shares.
        if self.attachment.is_fenced() {
            self.fence();
        }
        self.core.counters(queue.index()).moves.add(1);
        self.serve(queue, false);
    }

    /// Lets those queues go that were to leave and have drained; the others go on here when their
    /// time is over.
    pub(super) fn leave_drained(&mut self) -> Progress {
        if self.leaving == 0 {
            return Progress::Idle;
        }
        let open = self.is_open();
        let mut progress = Progress::Idle;
        for place in 0..self.queues.len() {
            let Some(served) = &mut self.queues[place] else { continue };
            let Some(leave_at_ns) = served.leave_at_ns else { continue };
            let drained = served.waiting == 0 && served.queue.outstanding() == 0;
            if !drained && open && self.now_ns < leave_at_ns {
                continue;
            }
            progress = Progress::Busy;
            if drained && open {
                let served = self.queues[place].take().expect("it was just looked at");
                assert!(!served.unpublished && served.rest.is_none(), "it has drained");
                self.leaving -= 1;
                self.left.push((served.queue.index(), Ok(served.queue)));
                continue;
            }
            served.leave_at_ns = None;
            served.counters.moves_refused.add(1);
            let index = served.queue.index();
            self.stay(index, if open { NotMoved::NotDrained } else { NotMoved::Paused });
        }
        progress
    }

    /// Notes that a queue which was to leave has not.
    pub(super) fn stay(&mut self, index: usize, why: NotMoved) {
        self.leaving -= 1;
        self.left.push((index, Err(why)));
    }
}
