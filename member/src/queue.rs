//! The work of a member on its own volume, in the protocol's order.
//!
//! Operations of different ranges are under way at the same time; of operations that overlap, the
//! later one waits. A flush waits for all that came before it, and nothing waits for a flush.
//! A change of the volume as a whole (a cut, the way back to one) waits for all that came before,
//! and all that comes later waits for it. The protocol hears of stored operations in their order.

use std::collections::VecDeque;

use replica::{ChangedPart, Extent, Fetch, Input, MemberId, Op, Place, SnapshotChange};
use sidecore::{Progress, Wake};
use virtio::Segment;
use volume::{Channel, Io, IoId, IoTable, Size, Status, io_table};

use crate::content::{RangeContent, bytes_of};
use crate::scrub::ProofWork;

/// Requests on the volume of a member at once.
pub const MEMBER_DEPTH: u16 = 128;

/// The oldest works of a queue that are looked at in a round, so that a round is short. Later ones
/// wait for their turn.
const WINDOW: usize = 256;

/// A change of the volume as a whole, or a question about it, which a thread that may wait does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeTask {
    /// A snapshot under the place's name, durably.
    Cut(Place),
    /// The snapshot goes.
    Drop(Place),
    /// The content becomes the snapshot's, or empty. Snapshots that are newer than it go.
    GoBack(Option<Place>),
    /// The ranges that differ from the snapshot, from this sector on; without a snapshot all that
    /// were ever written.
    Compare(MemberId, Place, Option<Place>, u64),
    /// No further part of that difference is asked for.
    EndCompare(MemberId, Place),
    /// A snapshot for people is taken, durably, at this place, or goes.
    Snapshot(Place, SnapshotChange),
}

/// The end of a [`VolumeTask`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeTaskEnd {
    /// It is done.
    Done,
    /// A part of the difference.
    Changed(ChangedPart),
    /// There is no difference: the snapshot is gone.
    CutGone,
    /// The snapshot could not be taken or removed, for this reason. The member goes on without the
    /// change: it is no part of the content.
    LeftOut(String),
    /// It cannot be done now, for this reason: it is tried again later.
    Waits(String),
    /// It cannot be done, for this reason: the member stops.
    Failed(String),
}

/// The first pause before a task is tried again, and the longest one: each is twice as long as the
/// one before. A pool that takes no changes waits for an operator, or for its own collection.
const RETRY_NS_MIN: u64 = 1_000_000_000;
const RETRY_NS_MAX: u64 = 16_000_000_000;

/// A task that is tried again.
#[derive(Debug)]
struct TaskRetry {
    why: String,
    pause_ns: u64,
    /// The time of the next try; none while a thread tries.
    at_ns: Option<u64>,
}

/// A volume that is smaller than a work needs.
#[derive(Debug)]
struct ShortVolume {
    has_bytes: u64,
    why: String,
}

#[derive(Debug)]
enum MemberWork {
    /// A range gets this content.
    Write(Extent, RangeContent),
    /// A range is read.
    Fetch(Fetch, Extent),
    /// The blocks of a range are proved.
    Prove(ProofWork),
    /// All before it becomes durable.
    Flush,
    Volume(VolumeTask),
    /// An operation without work on the volume.
    Nothing,
}

impl MemberWork {
    fn extent(&self) -> Option<Extent> {
        match self {
            Self::Write(extent, _) | Self::Fetch(_, extent) => Some(*extent),
            Self::Prove(work) => Some(work.range),
            Self::Flush | Self::Volume(_) | Self::Nothing => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorkState {
    Waiting,
    Begun,
    Ended,
}

#[derive(Debug)]
struct QueuedWork {
    work: MemberWork,
    /// The operation that is stored with it.
    place: Option<Place>,
    state: WorkState,
}

/// The works of a member, and its channel. The channel goes before the memory of requests.
#[derive(Debug)]
pub(crate) struct WorkQueue {
    channel: Box<dyn Channel>,
    ios: IoTable,
    /// By slot: the number of the work, and the memory that is read into.
    slots: Vec<(u64, Vec<u8>)>,
    works: VecDeque<QueuedWork>,
    /// The number of the first work.
    first: u64,
    /// Something came or ended since the works were looked at.
    is_fresh: bool,
    ended: Vec<IoId>,
    /// Ranges of works before the present one that have not ended.
    busy: Vec<Extent>,
    /// The task that was given to a thread, and why it is tried again.
    task: Option<VolumeTask>,
    retry: Option<TaskRetry>,
    /// Why the last change of the snapshots was left out; none if it was not.
    left_out: Option<String>,
    /// The size of a volume that may be smaller than a work needs, and then will grow.
    own: Option<Size>,
    short: Option<ShortVolume>,
}

impl WorkQueue {
    /// The channel was opened for [`MEMBER_DEPTH`] requests. Works beyond the end of a volume with
    /// a size wait until it has grown.
    pub(crate) fn new(channel: Box<dyn Channel>, own: Option<Size>) -> Self {
        let depth = usize::from(MEMBER_DEPTH);
        Self {
            own,
            short: None,
            channel,
            ios: io_table(MEMBER_DEPTH),
            slots: vec![(0, Vec::new()); depth],
            works: VecDeque::new(),
            first: 0,
            is_fresh: false,
            ended: Vec::with_capacity(depth),
            busy: Vec::new(),
            task: None,
            retry: None,
            left_out: None,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.works.len()
    }

    fn push(&mut self, work: MemberWork, place: Option<Place>) {
        self.works.push_back(QueuedWork { work, place, state: WorkState::Waiting });
        self.is_fresh = true;
    }

    pub(crate) fn store(&mut self, place: Place, op: Op<RangeContent>) {
        let work = match op {
            Op::Write { extent, data, .. }
            | Op::Fill { extent, data, .. }
            | Op::Equal { extent, data } => MemberWork::Write(extent, data),
            Op::Flush { .. } | Op::Applied { .. } => MemberWork::Flush,
            Op::Cut => {
                self.push(MemberWork::Flush, None);
                MemberWork::Volume(VolumeTask::Cut(place))
            }
            Op::Snapshot { change, .. } => {
                self.push(MemberWork::Flush, None);
                MemberWork::Volume(VolumeTask::Snapshot(place, change))
            }
            // Their effect is in the durable state that the member has kept.
            Op::Nothing | Op::Note { .. } | Op::Forget(_) => MemberWork::Nothing,
        };
        self.push(work, Some(place));
    }

    pub(crate) fn fetch(&mut self, fetch: Fetch, extent: Extent) {
        self.push(MemberWork::Fetch(fetch, extent), None);
    }

    pub(crate) fn prove(&mut self, work: ProofWork) {
        self.push(MemberWork::Prove(work), None);
    }

    /// A range gets the content that it has, since it cannot be read.
    pub(crate) fn mend(&mut self, extent: Extent, content: RangeContent) {
        self.push(MemberWork::Write(extent, content), None);
    }

    /// The sectors of a volume that may grow.
    pub(crate) fn sectors(&self) -> Option<u64> {
        self.own.as_ref().map(|own| own.get() / replica::wire::SECTOR_BYTES)
    }

    pub(crate) fn flush(&mut self) {
        self.push(MemberWork::Flush, None);
    }

    pub(crate) fn change(&mut self, task: VolumeTask) {
        self.push(MemberWork::Volume(task), None);
    }

    /// Moves on. `inputs` get what the protocol must hear, `task` a task for a thread.
    ///
    /// # Errors
    /// When the volume failed: the reason.
    pub(crate) fn poll(
        &mut self,
        now_ns: u64,
        inputs: &mut Vec<Input<RangeContent>>,
        task: &mut Option<VolumeTask>,
    ) -> Result<Progress, String> {
        let mut progress = self.channel.poll(&mut self.ios, now_ns, &mut self.ended);
        while let Some(id) = self.ended.pop() {
            self.end_io(id, inputs)?;
            progress = Progress::Busy;
        }
        let now_bytes = self.own.as_ref().map_or(u64::MAX, Size::get);
        let has_grown = self.short.as_ref().is_some_and(|short| short.has_bytes != now_bytes);
        if std::mem::take(&mut self.is_fresh) || has_grown {
            self.begin(task);
            self.tell(inputs);
            progress = Progress::Busy;
        }
        Ok(progress)
    }

    fn end_io(&mut self, id: IoId, inputs: &mut Vec<Input<RangeContent>>) -> Result<(), String> {
        let status = self.ios[id].status;
        self.ios.free(id);
        let (number, memory) = &mut self.slots[id.index()];
        let memory = std::mem::take(memory);
        let at = usize::try_from(*number - self.first).expect("works are in memory");
        let queued = &mut self.works[at];
        if let MemberWork::Prove(work) = &mut queued.work
            && matches!(status, Status::Done | Status::Error)
        {
            work.read((status == Status::Done).then_some(&memory));
            self.is_fresh = true;
            if work.next().is_some() {
                queued.state = WorkState::Waiting;
                return Ok(());
            }
            inputs.push(Input::Proved(work.question, work.proofs()));
            (queued.state, queued.work) = (WorkState::Ended, MemberWork::Nothing);
            return Ok(());
        }
        // The protocol has the range from another member. It has no way for content that must be
        // made equal: another member takes over then.
        let unread = match queued.work {
            MemberWork::Fetch(fetch, extent) if !matches!(fetch, Fetch::Equal(_)) => {
                (status == Status::Error).then_some(Input::Unread(fetch, extent))
            }
            _ => None,
        };
        if status != Status::Done && unread.is_none() {
            return Err(match queued.work.extent() {
                Some(extent) => format!("{status:?} at sector {}", extent.first()),
                None => format!("{status:?} of a flush"),
            });
        }
        queued.state = WorkState::Ended;
        if let Some(unread) = unread {
            inputs.push(unread);
        } else if let MemberWork::Fetch(fetch, extent) = queued.work {
            inputs.push(Input::Fetched(fetch, extent, RangeContent::of(memory)));
        }
        // Its content goes as soon as the volume has it.
        queued.work = MemberWork::Nothing;
        self.is_fresh = true;
        Ok(())
    }

    /// A thread has done the task.
    ///
    /// # Errors
    /// When it could not: the reason.
    pub(crate) fn end_task(
        &mut self,
        now_ns: u64,
        end: VolumeTaskEnd,
        inputs: &mut Vec<Input<RangeContent>>,
    ) -> Result<(), String> {
        let Some(task) = self.task.clone() else { return Ok(()) };
        let before = self.retry.take();
        if let VolumeTaskEnd::Waits(why) = end {
            let pause_ns = before.map_or(RETRY_NS_MIN, |it| (2 * it.pause_ns).min(RETRY_NS_MAX));
            self.retry = Some(TaskRetry { why, pause_ns, at_ns: Some(now_ns + pause_ns) });
            return Ok(());
        }
        self.task = None;
        match (end, task) {
            (VolumeTaskEnd::Failed(why), _) => return Err(why),
            (VolumeTaskEnd::Changed(part), VolumeTask::Compare(member, began, ..)) => {
                inputs.push(Input::Changed(member, began, part));
            }
            (VolumeTaskEnd::CutGone, VolumeTask::Compare(member, began, ..)) => {
                inputs.push(Input::CutGone(member, began));
            }
            (VolumeTaskEnd::LeftOut(why), VolumeTask::Snapshot(place, _)) => {
                inputs.push(Input::LeftOut(place));
                self.left_out = Some(why);
            }
            (VolumeTaskEnd::Done, VolumeTask::Snapshot(..)) => self.left_out = None,
            (_, VolumeTask::Compare(..)) => return Err("a difference has no parts".to_owned()),
            (VolumeTaskEnd::CutGone, _) => return Err("a change needs no snapshot".to_owned()),
            (VolumeTaskEnd::LeftOut(why), _) => return Err(why),
            _ => {}
        }
        // A task is begun when all before it have ended.
        let first = self.works.front_mut().expect("the task's work is the first one");
        first.state = WorkState::Ended;
        self.is_fresh = true;
        Ok(())
    }

    /// The task that must be tried again now.
    pub(crate) fn retry(&mut self, now_ns: u64) -> Option<VolumeTask> {
        let retry = self.retry.as_mut()?;
        retry.at_ns.take_if(|at_ns| now_ns >= *at_ns)?;
        self.task.clone()
    }

    /// Why this member has left the last change of the snapshots out, if it has.
    pub(crate) fn left_out(&self) -> Option<&str> {
        self.left_out.as_deref()
    }

    /// Why a task is tried again, and all behind it waits, or a work waits for a larger volume.
    pub(crate) fn waits(&self) -> Option<&str> {
        let short = self.short.as_ref().map(|short| &*short.why);
        self.retry.as_ref().map(|retry| &*retry.why).or(short)
    }

    /// Whether the volume is too small for a work, which it will not be for ever.
    fn is_too_small(&mut self, extent: Extent) -> bool {
        let has_bytes = self.own.as_ref().map_or(u64::MAX, Size::get);
        let end_bytes = extent.end().saturating_mul(replica::wire::SECTOR_BYTES);
        if end_bytes <= has_bytes {
            return false;
        }
        self.short.get_or_insert_with(|| {
            let why = format!(
                "its volume in the pool has {has_bytes} bytes, and an operation needs {end_bytes}: \
                 the node's agent has it grow"
            );
            ShortVolume { has_bytes, why }
        });
        true
    }

    /// Begins the works that wait for no other one.
    fn begin(&mut self, task: &mut Option<VolumeTask>) {
        self.busy.clear();
        self.short = None;
        let mut all_ended = true;
        for at in 0..self.works.len().min(WINDOW) {
            let QueuedWork { work, state, .. } = &mut self.works[at];
            match (&*work, *state) {
                (_, WorkState::Ended) => continue,
                (MemberWork::Nothing, _) => *state = WorkState::Ended,
                (MemberWork::Volume(wanted), WorkState::Waiting) => {
                    if all_ended {
                        *state = WorkState::Begun;
                        *task = Some(wanted.clone());
                        self.task = Some(wanted.clone());
                    }
                    return;
                }
                (MemberWork::Volume(_), WorkState::Begun) => return,
                (MemberWork::Flush, WorkState::Waiting) => {
                    if all_ended && !self.submit(at) {
                        return;
                    }
                    all_ended = false;
                }
                (
                    MemberWork::Write(extent, _)
                    | MemberWork::Fetch(_, extent)
                    | MemberWork::Prove(ProofWork { range: extent, .. }),
                    WorkState::Waiting,
                ) => {
                    let extent = *extent;
                    let waits = self.busy.iter().any(|busy| busy.overlaps(&extent));
                    if !waits && !self.is_too_small(extent) && !self.submit(at) {
                        return;
                    }
                    self.busy.push(extent);
                    all_ended = false;
                }
                (work, WorkState::Begun) => {
                    self.busy.extend(work.extent());
                    all_ended = false;
                }
            }
        }
    }

    /// Submits a request of a work. `false` if the table is full.
    fn submit(&mut self, at: usize) -> bool {
        let Some(id) = self.ios.take() else { return false };
        let queued = &mut self.works[at];
        queued.state = WorkState::Begun;
        let (number, memory) = &mut self.slots[id.index()];
        *number = self.first + at as u64;
        let io = &mut self.ios[id];
        io.reset();
        set_request(io, &queued.work, memory);
        self.channel.submit(&mut self.ios, id);
        true
    }

    /// Says which operations are stored, in their order.
    fn tell(&mut self, inputs: &mut Vec<Input<RangeContent>>) {
        let mut last = None;
        while self.works.front().is_some_and(|queued| queued.state == WorkState::Ended) {
            let queued = self.works.pop_front().expect("it was looked at");
            self.first += 1;
            last = queued.place.or(last);
            // Works behind the window have come into it.
            self.is_fresh = true;
        }
        inputs.extend(last.map(Input::Stored));
    }

    pub(crate) fn arm(&mut self, wake: &mut Wake) -> Progress {
        self.channel.arm(wake) | Progress::busy_if(self.is_fresh)
    }

    pub(crate) fn disarm(&mut self) {
        self.channel.disarm();
    }

    /// Lets go of the volume: no request touches it afterwards, once this is `true`.
    pub(crate) fn abandon(&mut self, now_ns: u64) -> bool {
        self.channel.abandon(&mut self.ios, now_ns)
    }
}

/// Makes the request of a work. `memory` is what is read into.
fn set_request(io: &mut Io, work: &MemberWork, memory: &mut Vec<u8>) {
    let extent = match work {
        MemberWork::Prove(work) => work.next(),
        work => work.extent(),
    };
    if let Some(extent) = extent {
        io.offset_bytes = extent.first() * replica::wire::SECTOR_BYTES;
        io.len_bytes = u32::try_from(bytes_of(extent)).expect("a range of at most 16 MiB");
    }
    io.own_memory = true;
    io.op = match work {
        MemberWork::Write(_, RangeContent::Bytes(bytes)) => {
            // The channel only reads it. The work keeps the bytes until the request has ended.
            let addr = bytes.as_ptr().cast_mut();
            io.segments.push(Segment { addr, len: io.len_bytes });
            volume::Op::Write
        }
        MemberWork::Write(_, RangeContent::Zeroes) => volume::Op::WriteZeroes,
        MemberWork::Write(_, RangeContent::Discarded) => volume::Op::Discard,
        MemberWork::Fetch(..) | MemberWork::Prove(_) => {
            memory.resize(io.len_bytes as usize, 0);
            io.segments.push(Segment { addr: memory.as_mut_ptr(), len: io.len_bytes });
            volume::Op::Read
        }
        MemberWork::Flush | MemberWork::Volume(_) | MemberWork::Nothing => volume::Op::Flush,
    };
}
