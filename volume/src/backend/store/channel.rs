//! One user's way to a volume of a pool from one sidecore.
//!
//! ```text
//!   submit ──▶ waiting ── the lock is free, the pool takes it ──▶ engine
//!                 ▲                                                  │ this sidecore's rounds,
//!                 │ must be durable: a flush more                    │ others', the pool's thread
//!   done ◀── ready ◀────────── inbox: read data is copied here ◀─────┘
//! ```
//!
//! A write is copied once, from guest memory into the row that will be written; a read once, from
//! the buffer that the device has filled. Both copies are made by this sidecore, in `submit`'s
//! wake: neither the engine nor another thread ever has an address of a guest. So nothing has to be
//! waited for before the user lets its memory go.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use sidecore::{Progress, Wake};
use store::block::{BLOCK_BYTES, Block, BlockBuffer};
use store::{Admission, PoolCompletion, PoolEngine, PoolError, VolumeId};

use super::cut::{cut, part, parts_of};
use super::drive::{ANSWERS_USUAL, Drive, LaneTag};
use super::guest::GuestCursor;
use super::signs::{Bell, InKernel};
use super::volume::StoreShared;
use crate::volume::{Channel, Durability, Io, IoId, IoTable, Op, OpenError, Status};

/// How soon to offer a request again that a full pool has not taken. It gets space by collecting,
/// or by an operator.
const FULL_LOOK_NS: u64 = 1_000_000;

/// How many bytes a channel copies between two polls, but for the last request: a copy holds up all
/// other channels of the sidecore, and with the lock those of others. As much as a disk's round
/// takes.
const COPIED_BYTES_MAX: usize = 2 << 20;

/// How far one request has come; by its slot.
#[derive(Clone, Copy, Debug, Default)]
struct Step {
    id: IoId,
    /// Parts that the engine has to take.
    todo: u8,
    /// Parts that the engine has.
    begun: u8,
    /// The request ends with a flush, which is not begun yet.
    flushes: bool,
    /// The engine has had a part of it.
    begins: bool,
    waited: bool,
    /// It waited for the volume's quota.
    waited_for_quota: bool,
    status: Status,
}

/// The channel.
pub(super) struct StoreChannel {
    shared: Arc<StoreShared>,
    bell: Arc<Bell>,
    lane: u16,
    in_kernel: Arc<InKernel>,
    requests: ChannelRequests,
    inbox: VecDeque<PoolCompletion>,
    /// Buffers that go back to the engine.
    spent: Vec<BlockBuffer>,
    armed: bool,
    /// It is among the sleepers that the pool's thread works for.
    counted: bool,
    abandoned: bool,
}

/// The channel's requests.
struct ChannelRequests {
    steps: Vec<Step>,
    /// Requests with parts that the engine has to take, oldest first.
    waiting: VecDeque<IoId>,
    /// Some of them were never offered.
    fresh: bool,
    ready: Vec<IoId>,
    /// Parts that the engine has.
    outstanding: u32,
    now_ns: u64,
}

impl fmt::Debug for StoreChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreChannel")
            .field("volume", &self.shared.id)
            .field("waiting", &self.requests.waiting.len())
            .field("outstanding", &self.requests.outstanding)
            .field("abandoned", &self.abandoned)
            .finish_non_exhaustive()
    }
}

impl StoreChannel {
    pub(super) fn open(shared: Arc<StoreShared>, depth: u16) -> Result<Self, OpenError> {
        let failed = |source| OpenError::Io { what: "make an eventfd".to_owned(), source };
        let bell = Arc::new(Bell::new().map_err(failed)?);
        let lane = shared.inside().lock_drive().enter(depth, Arc::clone(&bell));
        let Some(lane) = lane else {
            let source = std::io::Error::other("there are 65535 channels already");
            let what = format!("open a channel of pool {:?}", shared.inside().name());
            return Err(OpenError::Io { what, source });
        };
        let room = usize::from(depth);
        let requests = ChannelRequests {
            steps: vec![Step::default(); room],
            waiting: VecDeque::with_capacity(room),
            fresh: false,
            ready: Vec::with_capacity(room),
            outstanding: 0,
            now_ns: 0,
        };
        Ok(Self {
            shared,
            bell,
            lane,
            in_kernel: Arc::default(),
            requests,
            inbox: VecDeque::with_capacity(room * ANSWERS_USUAL),
            spent: Vec::with_capacity(room * ANSWERS_USUAL),
            armed: false,
            counted: false,
            abandoned: false,
        })
    }

    /// Offers what waits, does a round for all, and takes this channel's answers. Gives whether
    /// anything of this channel has moved.
    fn drive(&mut self, mut ios: Option<&mut IoTable>, now_ns: u64) -> bool {
        self.requests.now_ns = now_ns;
        let inside = self.shared.inside();
        let Some(mut drive) = inside.try_drive() else {
            // Its holder works for all; only this channel's own requests are not offered yet.
            return self.requests.fresh;
        };
        self.spent.drain(..).for_each(|buffer| recycle(&mut drive, buffer));
        let mut moved = false;
        if let Some(ios) = &ios {
            moved = self.requests.offer_all(&mut drive, self.lane, &self.shared, ios);
        }
        if !inside.signs.has_sleepers() {
            drive.stop_signals();
        }
        drive.round(now_ns, Some(&self.in_kernel));
        drive.fetch(self.lane, &mut self.inbox);
        drop(drive);
        moved |= !self.inbox.is_empty();
        while let Some(completion) = self.inbox.pop_front() {
            self.receive(ios.as_deref_mut(), completion);
        }
        if !self.spent.is_empty()
            && let Some(mut drive) = self.shared.inside().try_drive()
        {
            self.spent.drain(..).for_each(|buffer| recycle(&mut drive, buffer));
        }
        moved
    }

    /// Takes an answer in. Without a table the channel has let go.
    fn receive(&mut self, ios: Option<&mut IoTable>, completion: PoolCompletion) {
        match completion {
            PoolCompletion::Data { tag, first, blocks, buffer } => {
                if let Some(ios) = ios {
                    let id = IoId::from_u32(LaneTag::of(tag).slot);
                    place(&ios[id], first, blocks, buffer.as_ref());
                }
                self.spent.extend(buffer);
            }
            PoolCompletion::Done { tag, result } => {
                self.requests.outstanding -= 1;
                if let Some(ios) = ios {
                    let LaneTag { part, slot, .. } = LaneTag::of(tag);
                    let id = IoId::from_u32(slot);
                    self.requests.ended(&self.shared, ios, id, part, result.err());
                }
            }
        }
    }
}

fn recycle(drive: &mut Drive, buffer: BlockBuffer) {
    if let Some(engine) = drive.engine() {
        engine.recycle(buffer);
    }
}

/// Copies blocks that were read to where the request wants them.
fn place(io: &Io, first: u32, blocks: u32, buffer: Option<&BlockBuffer>) {
    let cut = cut(io, part::MIDDLE).expect("a read has this part");
    // Bytes of the blocks that were read, from the start of the first one.
    let start = first as usize * BLOCK_BYTES;
    let from = start.max(cut.from);
    let end = (start + blocks as usize * BLOCK_BYTES).min(cut.from + cut.len);
    if from >= end {
        return;
    }
    // SAFETY: the user keeps the segments mapped until the completion, and the cursor is gone
    // before it is told.
    let mut cursor = unsafe { GuestCursor::new(&io.segments) };
    cursor.go_to((from - cut.from) as u64);
    match buffer {
        Some(buffer) => cursor.write(&buffer.bytes()[from - start..end - start]),
        None => cursor.zero(end - from),
    }
}

impl ChannelRequests {
    /// Offers what waits to the engine, in its order. After a refusal no other request of its kind
    /// is offered, so that none overtakes it for ever; reads and what frees space go on. Gives
    /// whether one was taken.
    fn offer_all(
        &mut self,
        drive: &mut Drive,
        lane: u16,
        shared: &StoreShared,
        ios: &IoTable,
    ) -> bool {
        self.fresh = false;
        let mut refused = 0;
        let mut copied_bytes = 0;
        let mut taken = false;
        for _ in 0..self.waiting.len() {
            let id = self.waiting.pop_front().expect("counted");
            let kind = kind_of(&ios[id], self.steps[id.index()].todo);
            if copied_bytes >= COPIED_BYTES_MAX {
                self.fresh = true;
            }
            if refused & kind == 0 && !self.fresh {
                let before = self.outstanding;
                self.offer(drive, lane, shared.id, ios, id);
                taken |= self.outstanding != before;
                let bytes = if ios[id].op.moves_data() { ios[id].len_bytes } else { 0 };
                copied_bytes += bytes as usize;
            }
            let step = &mut self.steps[id.index()];
            if step.todo != 0 {
                refused |= kind;
                self.waiting.push_back(id);
                if !self.fresh {
                    note_wait(drive, shared, kind, step);
                }
            }
        }
        taken
    }

    /// Offers the parts of a request.
    fn offer(&mut self, drive: &mut Drive, lane: u16, volume: VolumeId, ios: &IoTable, id: IoId) {
        let step = &mut self.steps[id.index()];
        for which in part::ALL {
            if step.todo & which == 0 {
                continue;
            }
            let Some(engine) = drive.engine() else { return };
            let tag = LaneTag { lane, part: which, slot: id.to_u32() };
            if offer_part(engine, tag, volume, &ios[id]) == Admission::Busy {
                return;
            }
            drive.has_taken(lane);
            (step.todo, step.begun) = (step.todo & !which, step.begun | which);
            step.begins = true;
            self.outstanding += 1;
        }
    }

    /// A part of a request has ended.
    fn ended(
        &mut self,
        shared: &StoreShared,
        ios: &mut IoTable,
        id: IoId,
        which: u8,
        error: Option<PoolError>,
    ) {
        let step = &mut self.steps[id.index()];
        debug_assert!(step.id == id && step.begun & which != 0, "an answer for each part");
        step.begun &= !which;
        match error {
            None => {}
            // The pool is stopped for a successor, or opened again: it is done then.
            Some(PoolError::Closed) if !shared.inside().signs.is_closed() => {
                if step.todo == 0 {
                    self.waiting.push_back(id);
                }
                step.todo |= which;
            }
            Some(error) => {
                shared.note(&ios[id], &error, self.now_ns);
                if step.status == Status::Done {
                    step.status = status_of(&error);
                }
            }
        }
        if step.begun != 0 || step.todo != 0 {
            return;
        }
        if step.flushes && step.status == Status::Done {
            (step.flushes, step.todo, self.fresh) = (false, part::FLUSH, true);
            self.waiting.push_back(id);
            return;
        }
        ios[id].status = step.status;
        self.ready.push(id);
    }

    fn finish(&mut self, ios: &mut IoTable, id: IoId, status: Status) {
        ios[id].status = status;
        self.ready.push(id);
    }
}

/// The kind of request that a refusal is about, as a bit. The flush at the end of a durable write
/// needs no space.
fn kind_of(io: &Io, todo: u8) -> u8 {
    kind_bit(if todo == part::FLUSH { Op::Flush } else { io.op })
}

fn kind_bit(op: Op) -> u8 {
    match op {
        Op::Read => 1,
        Op::Write => 2,
        Op::Flush => 4,
        Op::Discard | Op::WriteZeroes => 8,
    }
}

/// Counts a request that waits, once for each reason.
fn note_wait(drive: &mut Drive, shared: &StoreShared, kind: u8, step: &mut Step) {
    if !std::mem::replace(&mut step.waited, true) {
        shared.counters.waited.fetch_add(1, Relaxed);
    }
    // Only writes take space. A request may wait for the pool first, and for the quota later.
    let asks = kind == kind_bit(Op::Write) && !step.waited_for_quota;
    let waits = |engine: &mut PoolEngine| engine.quota_wait(shared.id).is_some();
    if asks && drive.engine().is_some_and(waits) {
        step.waited_for_quota = true;
        shared.counters.waited_for_quota.fetch_add(1, Relaxed);
    }
}

/// Offers one part of a request.
fn offer_part(engine: &mut PoolEngine, tag: LaneTag, volume: VolumeId, io: &Io) -> Admission {
    let tag_word = tag.to_tag();
    if tag.part == part::FLUSH {
        return engine.flush(tag_word);
    }
    let cut = cut(io, tag.part).expect("a part of the request");
    let is_whole = tag.part == part::MIDDLE;
    match io.op {
        Op::Read => engine.read(tag_word, volume, cut.block, cut.blocks),
        Op::Write => {
            // SAFETY: the user keeps the segments mapped until the completion, which comes after
            // this function has returned.
            let mut cursor = unsafe { GuestCursor::new(&io.segments) };
            if is_whole {
                let mut fill = |at: u32, block: &mut Block| {
                    cursor.go_to(cut.at + u64::from(at) * BLOCK_BYTES as u64);
                    cursor.read(&mut block.0);
                };
                engine.write(tag_word, volume, cut.block, cut.blocks, &mut fill)
            } else {
                let mut bytes = [0; BLOCK_BYTES];
                let bytes = &mut bytes[..cut.len];
                cursor.go_to(cut.at);
                cursor.read(bytes);
                engine.write_part(tag_word, volume, cut.block, cut.from, bytes)
            }
        }
        Op::Discard | Op::WriteZeroes if is_whole => {
            engine.zero(tag_word, volume, cut.block, cut.blocks)
        }
        Op::Discard | Op::WriteZeroes => {
            let bytes = &Block::ZERO.0[..cut.len];
            engine.write_part(tag_word, volume, cut.block, cut.from, bytes)
        }
        Op::Flush => engine.flush(tag_word),
    }
}

fn status_of(error: &PoolError) -> Status {
    match error {
        PoolError::BeyondEnd | PoolError::WrongKind(..) | PoolError::Invalid(_) => Status::Invalid,
        _ => Status::Error,
    }
}

impl Channel for StoreChannel {
    fn submit(&mut self, ios: &mut IoTable, id: IoId) {
        let (io, shared) = (&ios[id], &self.shared);
        let requests = &mut self.requests;
        if !shared.info.admits_within(shared.size.get(), io) {
            return requests.finish(ios, id, Status::Invalid);
        }
        if io.op != Op::Flush && io.len_bytes == 0 {
            return requests.finish(ios, id, Status::Done);
        }
        let todo = parts_of(io);
        let ends = io.offset_bytes | u64::from(io.len_bytes);
        if io.op != Op::Flush && !ends.is_multiple_of(BLOCK_BYTES as u64) {
            shared.counters.unaligned.fetch_add(1, Relaxed);
        }
        let durable = io.durable || shared.info.durability == Durability::WriteThrough;
        requests.steps[id.index()] = Step {
            id,
            todo,
            flushes: io.op.changes() && durable,
            status: Status::Done,
            ..Step::default()
        };
        requests.waiting.push_back(id);
        requests.fresh = true;
    }

    fn poll(&mut self, ios: &mut IoTable, now_ns: u64, done: &mut Vec<IoId>) -> Progress {
        let mut moved = false;
        let waits = self.requests.outstanding > 0 || !self.requests.waiting.is_empty();
        if waits || self.in_kernel.has_some() {
            let table = if self.abandoned { None } else { Some(&mut *ios) };
            moved = self.drive(table, now_ns);
        }
        if self.shared.inside().signs.is_closed() {
            while let Some(id) = self.requests.waiting.pop_front() {
                let step = &mut self.requests.steps[id.index()];
                (step.todo, step.status, step.flushes) = (0, Status::Error, false);
                if step.begun == 0 {
                    self.requests.finish(ios, id, Status::Error);
                }
            }
        }
        moved |= !self.requests.ready.is_empty();
        done.append(&mut self.requests.ready);
        Progress::busy_if(moved)
    }

    fn arm(&mut self, wake: &mut Wake) -> Progress {
        let requests = &self.requests;
        if !requests.ready.is_empty() || requests.fresh {
            return Progress::Busy;
        }
        if requests.outstanding == 0 && requests.waiting.is_empty() {
            return Progress::Idle;
        }
        if !requests.waiting.is_empty() {
            wake.at(requests.now_ns + FULL_LOOK_NS);
        }
        self.armed = true;
        self.bell.arm();
        wake.on_readable(self.bell.event());
        // An earlier answer is here, and a later answer rings the bell.
        let mail = self.shared.inside().try_drive().map(|drive| drive.has_mail(self.lane));
        if mail != Some(false) {
            return Progress::Busy;
        }
        if requests.outstanding > 0 {
            self.counted = true;
            self.shared.inside().signs.fall_asleep();
        }
        Progress::Idle
    }

    fn disarm(&mut self) {
        if std::mem::take(&mut self.armed) {
            self.bell.disarm();
        }
        if std::mem::take(&mut self.counted) {
            self.shared.inside().signs.wake_up();
        }
    }

    fn is_open(&self) -> bool {
        !self.shared.inside().signs.is_stopped()
    }

    /// Requests of which the engine has nothing: the pool is full or stopped.
    fn recall(&mut self, _ios: &mut IoTable, back: &mut Vec<IoId>) {
        let ChannelRequests { steps, waiting, .. } = &mut self.requests;
        waiting.retain(|id| {
            let keeps = steps[id.index()].begins;
            if !keeps {
                back.push(*id);
            }
            keeps
        });
    }

    /// Answers that are under way are waited for, so that nothing is written afterwards.
    fn abandon(&mut self, _ios: &mut IoTable, now_ns: u64) -> bool {
        self.abandoned = true;
        self.requests.waiting.clear();
        self.requests.ready.clear();
        self.requests.fresh = false;
        if self.requests.outstanding > 0 || self.in_kernel.has_some() {
            self.drive(None, now_ns);
        }
        self.requests.outstanding == 0 && !self.in_kernel.has_some()
    }
}

impl Drop for StoreChannel {
    fn drop(&mut self) {
        self.disarm();
        let mut drive = self.shared.inside().lock_drive();
        self.spent.drain(..).for_each(|buffer| recycle(&mut drive, buffer));
        drive.leave(self.lane);
    }
}
