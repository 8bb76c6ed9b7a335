//! How an endpoint sleeps and wakes, and which sends were refused to it for want of room.

use std::os::fd::OwnedFd;

use rustix::thread::{MembarrierCommand, membarrier};

use crate::cell::Local;

/// How this process's sleepers and those that it wakes see each other's stores in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Barriers {
    /// Each sender makes a fence for each cell. No endpoint of this process sleeps.
    #[default]
    Own,
    /// An endpoint that falls asleep makes a fence for all processes that have asked for it.
    Sleepers,
}

impl Barriers {
    /// Asks the kernel to make fences for this process when an endpoint falls asleep, if it can.
    pub(crate) fn ask_for() -> Self {
        // The second call is a trial, which hurts no process: a kernel or filter that refuses it
        // always does.
        let asked = membarrier(MembarrierCommand::RegisterGlobalExpedited)
            .and_then(|()| membarrier(MembarrierCommand::GlobalExpedited));
        if asked.is_ok() { Self::Sleepers } else { Self::Own }
    }
}

/// The value of a peer's [`rung`](super::peers::SlotPeer::rung) while a message to this peer is
/// refused. No sleep has this number. So the next cell for the peer takes the way that wakes
/// sleepers, and there the sender sees whether the cell is a message. A sender without refusals
/// does not have to look for that.
pub(crate) const REFUSED: u64 = u64::MAX;

/// The most endpoints whose refusals are kept, the last ones. A program with more refusals tries
/// all of them again when one of them has room.
pub(crate) const REFUSALS_MAX: usize = 64;

/// A message that was refused. No message was sent to its receiver since.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendRefusal {
    pub(crate) to: Local,
    /// The `rung` of the peer, which [`REFUSED`] stands in place of.
    pub(crate) rung: u64,
    /// The endpoint has not slept since: its receiver gets some time to make room.
    pub(crate) is_new: bool,
    /// The last look has found room.
    pub(crate) is_due: bool,
}

/// How an endpoint sleeps, and wakes.
#[derive(Debug, Default)]
pub(crate) struct Sleeping {
    pub(crate) barriers: Barriers,
    /// The read end of its doorbell, which it alone has.
    pub(crate) read_end: Option<OwnedFd>,
    /// How often its doorbell was replaced.
    pub(crate) reopened: u32,
    /// The number of its last sleep.
    pub(crate) sleep: u64,
    /// Pieces and answers that waited for room have been sent since the last question.
    pub(crate) moved: bool,
    /// The last refusal for each receiver.
    pub(crate) refusals: Vec<SendRefusal>,
    /// Endpoints that must be woken, once the node can be told.
    pub(crate) unrung: Vec<Local>,
}
