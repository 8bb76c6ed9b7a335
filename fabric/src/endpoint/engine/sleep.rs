//! How an endpoint sleeps and wakes, and which sends were refused to it for want of room.

use std::os::fd::OwnedFd;

use rustix::thread::{MembarrierCommand, membarrier};

use crate::cell::Local;

/// How this process's sleepers and those that it wakes see each other's stores in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Barriers {
    /// Whoever sends makes a fence for each cell. Nobody here sleeps.
    #[default]
    Own,
    /// Whoever falls asleep makes one for all processes that have asked for it.
    Sleepers,
}

impl Barriers {
    /// Has the kernel make fences for this process when somebody falls asleep, where it can.
    pub(crate) fn ask_for() -> Self {
        // The second is tried, which nobody is hurt by: what refuses it refuses it always.
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

/// Endpoints to which messages are refused that are kept. Of more, those that were refused last:
/// who has so many tries them all again when there is room for one.
pub(crate) const REFUSALS_MAX: usize = 64;

/// A message was not sent, and none has been to the same one since.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendRefusal {
    pub(crate) to: Local,
    /// What its peer's `rung` is.
    pub(crate) rung: u64,
    /// Nobody has slept since: whatever it was that there was no room in gets some time.
    pub(crate) is_new: bool,
    /// There is room, as the last look has found.
    pub(crate) is_due: bool,
}

/// How an endpoint sleeps, and wakes.
#[derive(Debug, Default)]
pub(crate) struct Sleeping {
    pub(crate) barriers: Barriers,
    /// Its own alone.
    pub(crate) read_end: Option<OwnedFd>,
    /// How often its doorbell was replaced.
    pub(crate) reopened: u32,
    /// The number of its last sleep.
    pub(crate) sleep: u64,
    /// Pieces and answers that waited for room have been sent since that was asked last.
    pub(crate) moved: bool,
    /// One for each that something was refused to.
    pub(crate) refusals: Vec<SendRefusal>,
    /// Endpoints that are to be woken, when that can be said.
    pub(crate) unrung: Vec<Local>,
}
