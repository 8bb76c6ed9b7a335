//! Many requests of a control thread at once, in a lane of its own.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use sidecore::now_ns;
use store::{Admission, PoolCompletion, PoolEngine, PoolError, RequestTag};

use super::drive::LaneTag;
use super::pool::{LOOK_AGAIN, PoolInside};
use super::signs::Bell;

/// Requests under way at once: enough to keep a device at work between two looks, and few beside
/// those of guests.
const DEPTH: u32 = 4;

/// How long a pool may take none of the requests, because it has no space or is stuck. Collection
/// makes room sooner, and a caller holds a place that others wait for.
const STILL_TIME_MAX: Duration = Duration::from_secs(10);

/// A lane of a control thread.
pub(super) struct ControlLane<'a> {
    inside: &'a PoolInside,
    lane: u16,
    inbox: VecDeque<PoolCompletion>,
}

impl<'a> ControlLane<'a> {
    pub(super) fn enter(inside: &'a PoolInside) -> Result<Self, PoolError> {
        let bell = Bell::new().map_err(|error| {
            PoolError::Invalid(format!("cannot make an eventfd: {error}: too many files are open"))
        })?;
        let lane = inside.lock_drive().enter(DEPTH as u16, Arc::new(bell));
        let lane = lane.ok_or(PoolError::TooMany("65,535 channels"))?;
        Ok(Self { inside, lane, inbox: VecDeque::new() })
    }

    /// Makes `count` requests, a few at once. `begin` offers the request of a number; `data` gets
    /// the blocks that were read: the number, the first block in the request, how many, and their
    /// bytes unless they are zeroes.
    ///
    /// # Errors
    /// The first error. All requests that were begun have ended then, unless the pool was halted.
    pub(super) fn run(
        &mut self,
        count: u32,
        mut begin: impl FnMut(&mut PoolEngine, RequestTag, u32) -> Admission,
        mut data: impl FnMut(u32, u32, u32, Option<&[u8]>),
    ) -> Result<(), PoolError> {
        let (mut next, mut under_way, mut failed) = (0, 0, None);
        let (mut moved_at, mut spent) = (Instant::now(), Vec::new());
        loop {
            let mut drive = self.inside.lock_drive();
            let Some(engine) = drive.engine() else { return Err(PoolError::Closed) };
            spent.drain(..).for_each(|buffer| engine.recycle(buffer));
            while failed.is_none() && next < count && under_way < DEPTH {
                let tag = LaneTag { lane: self.lane, part: 0, slot: next }.to_tag();
                let Some(engine) = drive.engine() else { break };
                if begin(engine, tag, next) == Admission::Busy {
                    break;
                }
                drive.has_taken(self.lane);
                (next, under_way, moved_at) = (next + 1, under_way + 1, Instant::now());
            }
            drive.round(now_ns(), None);
            drive.fetch(self.lane, &mut self.inbox);
            drop(drive);
            let is_quiet = self.inbox.is_empty();
            for completion in self.inbox.drain(..) {
                match completion {
                    PoolCompletion::Data { tag, first, blocks, buffer } => {
                        let bytes = buffer.as_ref().map(|buffer| buffer.bytes());
                        data(LaneTag::of(tag).slot, first, blocks, bytes);
                        spent.extend(buffer);
                    }
                    PoolCompletion::Done { result, .. } => {
                        under_way -= 1;
                        failed = failed.or(result.err());
                    }
                }
            }
            if under_way == 0 {
                if let Some(error) = failed {
                    return Err(error);
                }
                if next == count {
                    return Ok(());
                }
                if moved_at.elapsed() >= STILL_TIME_MAX {
                    return Err(PoolError::Invalid(format!(
                        "the pool took no request within {} s: it has no space, or its devices \
                         are stuck; remove snapshots or volumes, or look at the devices",
                        STILL_TIME_MAX.as_secs()
                    )));
                }
            }
            if is_quiet {
                thread::sleep(LOOK_AGAIN);
            }
        }
    }
}

impl Drop for ControlLane<'_> {
    fn drop(&mut self) {
        self.inside.lock_drive().leave(self.lane);
    }
}
