//! The part of a pool that is behind its lock: the engine, its devices, and the lanes in which
//! answers wait for the channels that asked.
//!
//! ```text
//!   channel of a sidecore ── lock, requests ──▶ engine ──▶ ring ──▶ devices
//!           ▲                                     │
//!           └── its lane's inbox, under the lock ─┘
//! ```
//!
//! The thread that has the lock does a round for all: a polled sidecore that waits for answers of
//! its own, or else the pool's thread. Only the channel itself gives the engine its requests and
//! takes its answers, so guest memory is touched by the sidecore that owns the request and by no
//! other thread.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use store::{PoolCompletion, PoolEngine, PoolError, PoolStatus, PoolVolume, RequestTag, VolumeId};

use super::devices::{PoolFile, PoolFiles};
use super::ring::{Answered, StoreRing};
use super::signs::{Bell, InKernel, PoolSigns};

/// The lane of requests that control threads wait for.
const CONTROL: u16 = u16::MAX;

/// Answers for a request that there is room for at first: an end for each of its parts, and the
/// pieces of a read, which are as many as its places on the devices. A volume whose blocks are in
/// more places makes the room larger once.
pub(super) const ANSWERS_USUAL: usize = 16;

/// The asker and the request: the engine's tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LaneTag {
    pub(super) lane: u16,
    /// A bit for the part of the request.
    pub(super) part: u8,
    /// The request's slot.
    pub(super) slot: u32,
}

impl LaneTag {
    /// A request of a control thread.
    pub(super) fn control(number: u32) -> Self {
        Self { lane: CONTROL, part: 0, slot: number }
    }

    pub(super) fn to_tag(self) -> RequestTag {
        let Self { lane, part, slot } = self;
        RequestTag(u64::from(lane) << 48 | u64::from(part) << 32 | u64::from(slot))
    }

    pub(super) fn of(tag: RequestTag) -> Self {
        Self { lane: (tag.0 >> 48) as u16, part: (tag.0 >> 32) as u8, slot: tag.0 as u32 }
    }
}

/// A channel's place in the pool.
#[derive(Debug)]
struct PoolLane {
    state: PoolLaneState,
    /// Requests that the engine has taken and not ended.
    outstanding: u32,
    /// Answers that the channel has not fetched yet. Bounded by its requests.
    inbox: VecDeque<PoolCompletion>,
    bell: Arc<Bell>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PoolLaneState {
    Free,
    Used,
    /// The channel is gone, and the engine still works for it.
    Left,
}

/// A pool that is open.
struct Running {
    engine: PoolEngine,
    files: PoolFiles,
}

/// The state of a pool behind its lock.
pub(super) struct Drive {
    running: Option<Running>,
    ring: StoreRing,
    lanes: Vec<PoolLane>,
    answered: Vec<Answered>,
    /// Ends of requests of control threads.
    changed: Vec<(u32, Result<VolumeId, PoolError>)>,
    signs: Arc<PoolSigns>,
    /// The ring signals its answers.
    signals: bool,
    /// The pool's state when it was stopped.
    last: (PoolStatus, Vec<PoolVolume>),
}

impl Drive {
    pub(super) fn new(
        engine: PoolEngine,
        files: PoolFiles,
        ring: StoreRing,
        signs: Arc<PoolSigns>,
    ) -> Self {
        Self {
            last: (engine.status(), engine.volumes()),
            running: Some(Running { engine, files }),
            ring,
            lanes: Vec::new(),
            answered: Vec::new(),
            changed: Vec::new(),
            signs,
            signals: false,
        }
    }

    /// The engine, unless the pool is stopped.
    pub(super) fn engine(&mut self) -> Option<&mut PoolEngine> {
        self.running.as_mut().map(|running| &mut running.engine)
    }

    /// The devices, unless the pool is stopped.
    pub(super) fn files(&self) -> Option<&PoolFiles> {
        self.running.as_ref().map(|running| &running.files)
    }

    /// The numbers and paths of the devices.
    pub(super) fn paths(&self) -> Vec<(u8, PathBuf)> {
        let files = self.files().into_iter().flat_map(PoolFiles::iter);
        files.map(|(number, file)| (number, file.path.clone())).collect()
    }

    /// A device is there from now on.
    pub(super) fn plug_in(&mut self, number: u8, file: PoolFile) {
        if let Some(running) = &mut self.running {
            running.files.put(number, file);
        }
    }

    /// A device has become longer.
    pub(super) fn set_blocks(&mut self, number: u8, blocks: u64) {
        if let Some(running) = &mut self.running {
            running.files.set_blocks(number, blocks);
        }
    }

    /// Whether the engine may have a request for a device.
    pub(super) fn uses(&self, number: u8) -> bool {
        self.running.as_ref().is_some_and(|running| running.engine.uses_device(number))
    }

    /// Takes a device out, of which the engine has no request.
    pub(super) fn unplug(&mut self, number: u8) -> Option<PoolFile> {
        debug_assert!(!self.uses(number));
        self.running.as_mut()?.files.take(number)
    }

    /// One round for all: takes the engine's work on, hands it to the devices, takes their answers
    /// and sorts the engine's into the lanes. `by` is the sidecore that does it; none is another
    /// thread. Gives whether anything has moved.
    pub(super) fn round(&mut self, now_ns: u64, by: Option<&Arc<InKernel>>) -> bool {
        let Some(Running { engine, files }) = &mut self.running else { return false };
        if engine.keeps_history() {
            engine.set_time(utc_ns());
        }
        engine.poll(now_ns);
        let mut moved = false;
        while self.ring.has_room() {
            let Some(io) = engine.next_io() else { break };
            self.ring.begin(files, io, by);
            moved = true;
        }
        moved |= self.ring.round(files, &mut self.answered, by);
        for answer in self.answered.drain(..) {
            engine.complete_io(answer.token, answer.buffer, answer.result);
        }
        moved |= self.sort();
        let busy = self.engine().is_some_and(|engine| engine.is_busy());
        self.signs.has_driven(busy);
        moved
    }

    /// Sorts the engine's answers into the lanes.
    fn sort(&mut self) -> bool {
        let Some(Running { engine, .. }) = &mut self.running else { return false };
        let mut moved = false;
        while let Some(completion) = engine.next_completion() {
            moved = true;
            let tag = match &completion {
                PoolCompletion::Data { tag, .. } => *tag,
                PoolCompletion::Done { tag, result } => {
                    if matches!(result, Err(PoolError::DeviceFailed(_))) {
                        self.signs.set_failed();
                    }
                    *tag
                }
            };
            let LaneTag { lane, slot, .. } = LaneTag::of(tag);
            if lane == CONTROL {
                if let PoolCompletion::Done { result, .. } = completion {
                    self.changed.push((slot, result));
                }
                continue;
            }
            let lane = &mut self.lanes[usize::from(lane)];
            let ends = matches!(completion, PoolCompletion::Done { .. });
            lane.outstanding -= u32::from(ends);
            if lane.state == PoolLaneState::Used {
                lane.inbox.push_back(completion);
                lane.bell.ring();
                continue;
            }
            if let PoolCompletion::Data { buffer: Some(buffer), .. } = completion {
                engine.recycle(buffer);
            }
            if lane.outstanding == 0 {
                lane.state = PoolLaneState::Free;
            }
        }
        moved
    }

    /// The end of a control thread's request, if it is there.
    pub(super) fn take_changed(&mut self, number: u32) -> Option<Result<VolumeId, PoolError>> {
        let place = self.changed.iter().position(|(ended, _)| *ended == number)?;
        Some(self.changed.swap_remove(place).1)
    }

    /// A lane for a new channel of so many requests; `None` when there are too many.
    pub(super) fn enter(&mut self, depth: u16, bell: Arc<Bell>) -> Option<u16> {
        let inbox = VecDeque::with_capacity(usize::from(depth) * ANSWERS_USUAL);
        let lane = PoolLane { state: PoolLaneState::Used, outstanding: 0, inbox, bell };
        let free = self.lanes.iter().position(|lane| lane.state == PoolLaneState::Free);
        let place = free.unwrap_or(self.lanes.len());
        let number = u16::try_from(place).ok().filter(|number| *number < CONTROL)?;
        if place == self.lanes.len() {
            self.lanes.push(lane);
        } else {
            self.lanes[place] = lane;
        }
        Some(number)
    }

    /// A channel goes. Its answers that are still to come are dropped.
    pub(super) fn leave(&mut self, lane: u16) {
        let lane = &mut self.lanes[usize::from(lane)];
        for completion in lane.inbox.drain(..) {
            if let (PoolCompletion::Data { buffer: Some(buffer), .. }, Some(running)) =
                (completion, &mut self.running)
            {
                running.engine.recycle(buffer);
            }
        }
        lane.state = if lane.outstanding > 0 { PoolLaneState::Left } else { PoolLaneState::Free };
    }

    /// The engine has taken a request of this lane.
    pub(super) fn has_taken(&mut self, lane: u16) {
        self.lanes[usize::from(lane)].outstanding += 1;
    }

    /// Moves a lane's answers into `into`, which must be empty; the two swap their room.
    pub(super) fn fetch(&mut self, lane: u16, into: &mut VecDeque<PoolCompletion>) {
        debug_assert!(into.is_empty());
        std::mem::swap(&mut self.lanes[usize::from(lane)].inbox, into);
    }

    /// Whether answers wait in a lane.
    pub(super) fn has_mail(&self, lane: u16) -> bool {
        !self.lanes[usize::from(lane)].inbox.is_empty()
    }

    /// Has the ring signal its answers; the caller does one more round afterwards.
    pub(super) fn ask_for_signals(&mut self) {
        self.signals = true;
        self.ring.ask_for_signals();
    }

    /// Has the ring signal nothing: the caller looks by itself.
    pub(super) fn stop_signals(&mut self) {
        if std::mem::take(&mut self.signals) {
            self.ring.stop_signals();
        }
    }

    /// Whether the engine has work that waits for no device.
    pub(super) fn has_own_work(&self) -> bool {
        self.signs.is_busy() && self.ring.in_use() == 0
    }

    /// Whether answers wait in any lane, for tests.
    #[cfg(test)]
    pub(super) fn has_any_mail(&self) -> bool {
        self.lanes.iter().any(|lane| !lane.inbox.is_empty())
    }

    /// The ring.
    pub(super) fn ring(&mut self) -> &mut StoreRing {
        &mut self.ring
    }

    /// The ring and the devices, unless the pool is stopped.
    #[cfg(test)]
    pub(super) fn ring_and_files(&mut self) -> Option<(&mut StoreRing, &PoolFiles)> {
        Some((&mut self.ring, &self.running.as_ref()?.files))
    }

    /// Whether everything has ended after the engine was told to close.
    pub(super) fn has_closed(&self) -> bool {
        let closed = self.running.as_ref().is_none_or(|running| running.engine.is_closed());
        closed && self.ring.in_use() == 0
    }

    /// Lets the engine and the devices go, whose locks are free then.
    pub(super) fn halt(&mut self) {
        self.sort();
        if let Some(Running { engine, .. }) = &self.running {
            self.last = (engine.status(), engine.volumes());
        }
        self.ring.drain();
        self.running = None;
        self.signs.has_driven(false);
    }

    /// Goes on with an engine that was opened anew.
    pub(super) fn resume(&mut self, engine: PoolEngine, files: PoolFiles) {
        self.running = Some(Running { engine, files });
        for lane in &self.lanes {
            lane.bell.ring();
        }
    }

    /// The engine's status, or the last one.
    pub(super) fn status(&self) -> PoolStatus {
        let running = self.running.as_ref();
        running.map_or_else(|| self.last.0.clone(), |running| running.engine.status())
    }

    /// The volumes, as they are or were.
    pub(super) fn volumes(&self) -> Vec<PoolVolume> {
        let running = self.running.as_ref();
        running.map_or_else(|| self.last.1.clone(), |running| running.engine.volumes())
    }
}

/// The time since 1970: the clock of moments, which may be set.
fn utc_ns() -> u64 {
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

impl Drop for Drive {
    fn drop(&mut self) {
        // Before the devices go, which the ring's requests name.
        self.ring.drain();
    }
}
