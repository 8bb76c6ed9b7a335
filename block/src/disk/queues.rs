//! A disk's share of one sidecore: the queues that it serves, one table of requests, one channel.
//!
//! ```text
//!   take ─▶ parse ─▶ (cut into ios of at most 1 MiB) ─▶ channel ─▶ answer, put ─▶ publish
//! ```
//!
//! All of it is driven by [`DiskQueues::poll`], without threads, sockets or clock, so it runs in
//! a simulation as it runs on a sidecore.
//!
//! Three rules decide about writes to the guest. When the attachment is fenced nothing is written:
//! not a status byte, not a ring. While it is in doubt (the process stood still) nothing is written
//! either, until a claim has been answered. And a queue that was stopped is not touched again. A
//! request of such a queue that is still outstanding is an *orphan*. It ends without an answer, and
//! keeps its memory mapped until then. It also holds back every queue that starts meanwhile: the
//! guest will have the same requests done again, and must not see an old one land after the new
//! one's answer.

mod leave;

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use sidecore::{Progress, SlotId, Slots, Wake};
use virtio::{Chain, ChainHead, Memory, Queue, Retained};

pub use leave::{LEAVE, NotMoved};

use super::core::{DiskCore, ShareCounters};
use super::served::{GuestRequest, Served, UnsubmittedPart};
use crate::attach::Attached;
use crate::attachment::{self, Attachment};
use crate::request::{self, Data, RequestContent, StatusByte};
use volume::Size;
use volume::{Channel, IO_BYTES_MAX, IoId, IoTable, Op, Status, VolumeInfo, io_table};

/// The most chains that are taken from one queue in a round: enough for a deep batch, few enough
/// that a guest that always has more does not hold up the others.
pub const TAKE_MAX: usize = 32;

/// How many chains of each queue are taken, done and answered before the next ones are. Where the
/// volume answers at once, the driver works on the answers of one burst while the next one is done
/// here; with a whole batch at a time each of the two would wait for the other.
const BURST: usize = 8;

/// The same for the first burst of a round: a driver with eight requests under way, as many as one
/// burst, would get all of them back at once and stand still in between. It gets the first half
/// while the second one is done.
const FIRST_BURST: usize = 4;

/// How many bytes are read and written in a round, but for its last request: a copy of a megabyte
/// keeps a sidecore for a tenth of a millisecond, and 32 of them would keep it from its other
/// guests for three. All that a round takes of requests of 64 KiB.
const ROUND_BYTES_MAX: u64 = 2 << 20;

/// How soon to look again while something outside of this sidecore has to happen first.
const LOOK_AGAIN_NS: u64 = 1_000_000;

/// A queue that has stopped, and where to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// Which queue of the disk.
    pub index: usize,
    /// The answer to GET_VRING_BASE.
    pub base: u32,
    /// Requests that were not done; they are in the inflight region.
    pub left: u16,
}

/// A request that waits to be answered without the volume. Its io has the segments, and leads to
/// the request.
#[derive(Clone, Copy, Debug)]
struct Parked {
    io: IoId,
    answer: StatusByte,
    /// The serial number is what it asks for.
    is_id: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Serving,
    /// No queue is touched any more; the channel is about to let go.
    LettingGo,
    Gone,
}

/// See the module's text.
#[derive(Debug)]
pub struct DiskQueues {
    // The channel goes first: it may still have to wait for the kernel, which uses the memory
    // that the queues and what was retained of them keep mapped.
    channel: Box<dyn Channel>,
    retained: Vec<Retained>,
    queues: Vec<Option<Served>>,
    core: Arc<DiskCore>,
    info: VolumeInfo,
    size: Size,
    attachment: Arc<Attachment>,
    ios: IoTable,
    requests: Slots<GuestRequest>,
    /// The guest did not accept the flush feature.
    durable: bool,
    phase: Phase,
    /// Requests whose queue is gone.
    orphans: usize,
    stopped: Vec<Stopped>,
    /// Queues that had to leave and have drained, or did not.
    left: Vec<(usize, Result<Queue, NotMoved>)>,
    /// How many queues are leaving.
    leaving: usize,
    /// Requests that need no volume. They are answered when the channel is open, as all others are,
    /// and not in the round that took them: its clock may be from before this process stood still.
    parked: Vec<Parked>,
    /// After a sleep: drivers that were asked for kicks must hear that none are needed.
    kicks_due: bool,
    /// See [`Self::is_in_doubt`].
    in_doubt_since_ns: Option<u64>,
    share: Arc<ShareCounters>,
    chain: Chain,
    data: Data,
    done: Vec<IoId>,
    /// The queue that is served first in this round.
    turn: usize,
    /// Bytes of the reads and writes that this round began.
    round_bytes: u64,
    now_ns: u64,
}

impl DiskQueues {
    /// A share without queues, on this channel. `durable` says that every write must be durable,
    /// since the guest will not flush.
    pub fn new(core: Arc<DiskCore>, attached: Attached, durable: bool) -> Self {
        let Attached { channel, info, size, attachment, index, depth } = attached;
        let requests_max = usize::from(depth);
        Self {
            share: core.share(index),
            channel,
            retained: Vec::new(),
            queues: Vec::new(),
            core,
            info,
            size,
            attachment,
            ios: io_table(depth),
            requests: Slots::new(depth),
            durable,
            phase: Phase::Serving,
            orphans: 0,
            stopped: Vec::new(),
            left: Vec::new(),
            leaving: 0,
            parked: Vec::with_capacity(requests_max),
            kicks_due: false,
            in_doubt_since_ns: None,
            chain: Chain::new(),
            data: Data::new(),
            done: Vec::with_capacity(requests_max),
            turn: 0,
            round_bytes: 0,
            now_ns: 0,
        }
    }

    /// Serves a queue from the next round on.
    ///
    /// # Panics
    /// When the disk has no queue of this index, or it is being served already.
    pub fn add_queue(&mut self, queue: Queue) {
        assert!(self.phase == Phase::Serving || self.is_fenced(), "it was let go");
        let counters = self.core.counters(queue.index());
        counters.starts.add(1);
        let held = self.core.orphans.load(SeqCst) > 0;
        self.serve(queue, held);
    }

    fn serve(&mut self, mut queue: Queue, held: bool) {
        let index = queue.index();
        assert!(self.served(index).is_none(), "queue {index} is served");
        if self.phase != Phase::Serving {
            // Fenced: not to be touched at all.
            self.stopped.push(Stopped { index, base: queue.base(), left: 0 });
            return;
        }
        queue.disarm();
        let counters = self.core.counters(index);
        counters.sidecore.set(u64::from(self.share.sidecore()));
        let served = Served::new(queue, counters, held);
        match self.queues.iter().position(Option::is_none) {
            Some(place) => self.queues[place] = Some(served),
            None => self.queues.push(Some(served)),
        }
    }

    /// Takes nothing more from a queue; it is gone when its requests have ended, or at
    /// `deadline_ns`. Then [`DiskQueues::take_stopped`] gives it. `false` when it is not served
    /// here (any more).
    pub fn begin_stop(&mut self, index: usize, deadline_ns: u64) -> bool {
        let Some(served) = self.served(index) else { return false };
        served.stop_at_ns = Some(deadline_ns);
        if served.leave_at_ns.take().is_some() {
            self.stay(index, NotMoved::Unsettled);
        }
        true
    }

    /// How a queue has stopped; each stop is told once.
    pub fn take_stopped(&mut self, index: usize) -> Option<Stopped> {
        let at = self.stopped.iter().position(|stopped| stopped.index == index)?;
        Some(self.stopped.swap_remove(at))
    }

    /// Looks chains up in this memory from now on.
    pub fn set_memory(&mut self, memory: &Arc<Memory>) {
        for served in self.queues.iter_mut().flatten() {
            let index = served.queue.index();
            if let Err(error) = served.queue.set_memory(Arc::clone(memory)) {
                self.core.broke(index, error.name(), &error);
            }
        }
    }

    /// The queue of this index, to change where it signals.
    pub fn queue(&mut self, index: usize) -> Option<&mut Queue> {
        self.served(index).map(|served| &mut served.queue)
    }

    /// How many queues are served.
    pub fn queue_count(&self) -> usize {
        self.queues.iter().flatten().count()
    }

    /// Requests that were taken and have not ended, orphans among them.
    pub fn outstanding(&self) -> usize {
        self.requests.len()
    }

    /// Lets go of the channel: queues that are left are not touched again. Done when
    /// [`DiskQueues::is_gone`]; go on polling.
    pub fn let_go(&mut self) {
        if self.phase != Phase::Serving {
            return;
        }
        self.phase = Phase::LettingGo;
        for place in 0..self.queues.len() {
            if let Some(served) = self.queues[place].take() {
                self.orphan(place, served);
            }
        }
    }

    /// Whether the channel has let go of everything.
    pub fn is_gone(&self) -> bool {
        self.phase == Phase::Gone
    }

    /// Whether the attachment was lost to a successor.
    pub fn is_fenced(&self) -> bool {
        self.attachment.is_fenced()
    }

    /// One bounded batch of work.
    pub fn poll(&mut self, now_ns: u64) -> Progress {
        self.now_ns = now_ns;
        if self.phase == Phase::Serving && self.attachment.is_fenced() {
            self.fence();
        }
        match self.phase {
            Phase::Serving => {}
            Phase::LettingGo => return self.abandon(),
            Phase::Gone => return Progress::Idle,
        }
        if self.is_in_doubt() {
            let since_ns = *self.in_doubt_since_ns.get_or_insert(now_ns);
            let limit_ns = self.attachment.options().error_after_ns.unwrap_or(u64::MAX);
            // The time is over: the guest gets errors, as the operator wants.
            if now_ns.saturating_sub(since_ns) < limit_ns {
                return self.wait_for_claim();
            }
        } else {
            self.in_doubt_since_ns = None;
        }
        if std::mem::take(&mut self.kicks_due) {
            self.refuse_kicks();
        }
        self.info.size_bytes = self.size.get();
        self.answer_parked();
        let mut progress = self.serve_bursts();
        if self.phase == Phase::Serving {
            self.call_all();
            progress |= self.stop_drained();
            progress |= self.leave_drained();
        }
        progress
    }

    /// Whether another node may serve the guest by now, so that nothing of it is touched until a
    /// claim has been answered: this process stood still, or the guest resumes with it and has not
    /// been granted anything yet. A volume that takes no claims is open from the beginning.
    fn is_in_doubt(&self) -> bool {
        let resumes = || {
            let view = self.attachment.view();
            let is_asked_for = view.phase == attachment::Phase::Unclaimed && view.epoch == 0;
            is_asked_for && self.attachment.options().resume && !self.channel.is_open()
        };
        self.attachment.is_doubtful() || resumes()
    }

    /// Has the channel ask for an epoch, and touches nothing of the guest.
    fn wait_for_claim(&mut self) -> Progress {
        let progress = self.channel.poll(&mut self.ios, self.now_ns, &mut self.done);
        if self.attachment.is_fenced() {
            self.fence();
            return Progress::Busy;
        }
        progress | self.stop_drained()
    }

    fn refuse_kicks(&mut self) {
        for served in self.queues.iter_mut().flatten() {
            if std::mem::take(&mut served.armed) {
                served.queue.refuse_kicks();
            }
        }
    }

    /// Takes up to [`TAKE_MAX`] chains from every queue, and answers what is done.
    fn serve_bursts(&mut self) -> Progress {
        let (mut progress, mut taken, mut burst) = (Progress::Idle, 0, FIRST_BURST);
        self.round_bytes = 0;
        self.turn = if self.turn + 1 < self.queues.len() { self.turn + 1 } else { 0 };
        loop {
            let took = self.take_all(burst);
            taken += burst;
            let mut answered = self.channel.poll(&mut self.ios, self.now_ns, &mut self.done);
            // The channel may have learnt of a successor just now, or another sidecore's channel
            // may have.
            if self.attachment.is_fenced() {
                // Answers that earlier bursts have published are the driver's already.
                self.call_all();
                self.fence();
                return Progress::Busy;
            }
            answered |= self.finish_all();
            progress |= took | answered;
            if self.phase != Phase::Serving {
                return progress;
            }
            self.publish_all();
            let is_full = taken == TAKE_MAX || self.round_bytes >= ROUND_BYTES_MAX;
            if !took.is_busy() || is_full || !self.has_room() {
                return progress;
            }
            burst = BURST.min(TAKE_MAX - taken);
            if !answered.is_busy() {
                // The volume takes its time: it gets the rest of the batch at once.
                burst = TAKE_MAX - taken;
            }
        }
    }

    /// Before the sidecore sleeps.
    pub fn arm(&mut self, wake: &mut Wake) -> Progress {
        match self.phase {
            Phase::Gone => return Progress::Idle,
            Phase::LettingGo => {
                wake.at(self.now_ns + LOOK_AGAIN_NS);
                return self.channel.arm(wake);
            }
            Phase::Serving => {}
        }
        if !self.parked.is_empty() {
            wake.at(self.now_ns + LOOK_AGAIN_NS);
        }
        // While it is in doubt drivers are not asked for kicks: that is a store into their rings.
        let room = self.has_room() && !self.core.is_broken() && !self.is_in_doubt();
        let mut progress = self.channel.arm(wake);
        for served in self.queues.iter_mut().flatten() {
            if let Some(until_ns) = served.stop_at_ns.or(served.leave_at_ns) {
                wake.at(until_ns);
            } else if served.held {
                wake.at(self.now_ns + LOOK_AGAIN_NS);
            } else if room {
                // Without room a kick would be of no use: a completion is what to wait for.
                served.armed = true;
                progress |= Progress::busy_if(served.queue.arm());
                match served.queue.kick_fd() {
                    Some(kick) => wake.on_readable(kick),
                    // A driver that does not kick is polled.
                    None => progress = Progress::Busy,
                }
            }
        }
        progress
    }

    /// After the sidecore slept. The next [`Self::poll`] stores the words for drivers: this process
    /// may have been stopped while it slept, and has not looked at the clock yet.
    pub fn disarm(&mut self) {
        self.channel.disarm();
        for served in self.queues.iter_mut().flatten().filter(|served| served.armed) {
            let reads = u64::from(served.queue.kick_fd().is_some());
            served.counters.kick_reads.add(reads);
            served.queue.forget_kicks();
            self.kicks_due = true;
        }
    }

    fn served(&mut self, index: usize) -> Option<&mut Served> {
        self.queues.iter_mut().flatten().find(|served| served.queue.index() == index)
    }

    fn has_room(&self) -> bool {
        !self.ios.is_full() && !self.requests.is_full()
    }

    /// Takes up to so many chains from every queue in turn.
    fn take_all(&mut self, take_max: usize) -> Progress {
        let count = self.queues.len();
        let mut progress = Progress::Idle;
        if self.core.is_broken() {
            return progress;
        }
        for place in (self.turn..count).chain(0..self.turn.min(count)) {
            if let Some(served) = &mut self.queues[place] {
                if served.held && self.core.orphans.load(SeqCst) == 0 {
                    served.held = false;
                }
                if !served.held {
                    progress |= self.take(place, take_max);
                }
            }
        }
        progress
    }

    fn take(&mut self, place: usize, take_max: usize) -> Progress {
        let mut taken = 0;
        while taken < take_max && self.round_bytes < ROUND_BYTES_MAX {
            let room = self.has_room();
            let served = self.queues[place].as_mut().expect("the caller looked");
            if !room {
                served.counters.full.add(1);
                break;
            }
            if served.rest.is_some() {
                self.submit_next(place);
                taken += 1;
                continue;
            }
            if served.rests() {
                break;
            }
            match served.queue.take(&mut self.chain) {
                Ok(Some(head)) => {
                    taken += 1;
                    self.begin(place, head);
                }
                Ok(None) => break,
                Err(error) => {
                    self.core.broke(served.queue.index(), error.name(), &error);
                    break;
                }
            }
            if self.core.is_broken() {
                break;
            }
        }
        Progress::busy_if(taken > 0)
    }

    /// Begins the request that is in `self.chain`.
    fn begin(&mut self, place: usize, head: ChainHead) {
        let served = self.queues[place].as_mut().expect("it was just taken from");
        // SAFETY: the chain was just taken, and nothing of it was put.
        let parsed = match unsafe { request::parse(&self.chain, &self.info, &mut self.data) } {
            Ok(parsed) => parsed,
            Err(error) => {
                return self.core.broke(served.queue.index(), "no_room_for_status", &error);
            }
        };
        served.counters.requests.add(1);
        self.share.requests.add(1);
        match parsed.asked {
            RequestContent::Nonsense(answer) => {
                self.park(place, head, parsed.answer, answer, false)
            }
            RequestContent::GetId => self.park(place, head, parsed.answer, StatusByte::Ok, true),
            RequestContent::Flush => self.submit(place, head, parsed.answer, Op::Flush, 0, 0),
            RequestContent::Zero { len_bytes: 0, .. } => {
                self.park(place, head, parsed.answer, StatusByte::Ok, false);
            }
            RequestContent::Zero { op, len_bytes } => {
                self.zero(place, head, parsed.answer, op, len_bytes)
            }
            RequestContent::Transfer { op, offset_bytes, len_bytes } => {
                let end = offset_bytes.checked_add(u64::from(len_bytes));
                let fits = end.is_some_and(|end| end <= self.info.size_bytes);
                if !fits || (op == Op::Write && self.info.read_only) {
                    self.park(place, head, parsed.answer, StatusByte::IoError, false);
                } else if len_bytes == 0 {
                    self.park(place, head, parsed.answer, StatusByte::Ok, false);
                } else {
                    self.submit(place, head, parsed.answer, op, offset_bytes, len_bytes);
                }
            }
        }
    }

    /// Keeps a request that needs no volume until it may be answered; there is room for one.
    fn park(
        &mut self,
        place: usize,
        head: ChainHead,
        at: *mut u8,
        answer: StatusByte,
        is_id: bool,
    ) {
        let id = self.new_request(place, head, at, Op::Read, 0);
        let io = self.new_io(id, Op::Read, 0, 0);
        if is_id {
            std::mem::swap(&mut self.ios[io].segments, &mut self.data.segments);
        }
        self.parked.push(Parked { io, answer, is_id });
    }

    /// Answers what was parked, if the channel is open now, or will not be.
    fn answer_parked(&mut self) {
        if self.parked.is_empty() {
            return;
        }
        let is_over = self.attachment.view().phase == attachment::Phase::Failed;
        let limit_ns = self.attachment.options().error_after_ns.unwrap_or(u64::MAX);
        let (is_open, now_ns) = (self.channel.is_open(), self.now_ns);
        let mut at = 0;
        while let Some(&Parked { io, answer, is_id }) = self.parked.get(at) {
            let waited_ns = now_ns.saturating_sub(self.ios[io].submitted_ns);
            if !(is_open || is_over || waited_ns >= limit_ns) {
                at += 1;
                continue;
            }
            self.parked.remove(at);
            let answer = if is_open { answer } else { StatusByte::IoError };
            let id = SlotId::from_u32(self.ios[io].owner as u32);
            let request = self.requests[id];
            let place = usize::from(request.place.expect("orphans are not parked"));
            let served = self.queues[place].as_mut().expect("it has a request");
            served.waiting -= 1;
            let mut inward = 0;
            if is_id && answer == StatusByte::Ok {
                let (segments, serial) = (&self.ios[io].segments, &self.core.serial);
                // SAFETY: the chain was taken from this queue and is put only now.
                inward = unsafe { served.queue.answer_bytes(segments, serial) } as u32;
            }
            self.ios.free(io);
            self.requests.free(id);
            self.answer(place, request.head, request.answer, answer, inward);
        }
    }

    /// Answers a request.
    fn answer(
        &mut self,
        place: usize,
        head: ChainHead,
        at: *mut u8,
        answer: StatusByte,
        inward: u32,
    ) {
        let served = self.queues[place].as_mut().expect("its request is being answered");
        served.counters.errors.add(u64::from(answer != StatusByte::Ok));
        // SAFETY: `at` is in a segment of a chain that was taken from this queue and is put only
        // now.
        unsafe { served.queue.answer(at, answer as u8) };
        served.queue.put(head, inward + 1);
        served.unpublished = true;
    }

    /// Hands a request to the channel; its data is in `self.data`.
    fn submit(
        &mut self,
        place: usize,
        head: ChainHead,
        answer: *mut u8,
        op: Op,
        offset_bytes: u64,
        len_bytes: u32,
    ) {
        let id = self.new_request(place, head, answer, op, len_bytes);
        if len_bytes <= IO_BYTES_MAX {
            let io = self.new_io(id, op, offset_bytes, len_bytes);
            std::mem::swap(&mut self.ios[io].segments, &mut self.data.segments);
            return self.channel.submit(&mut self.ios, io);
        }
        let served = self.queues[place].as_mut().expect("its request is begun");
        served.rest =
            Some(UnsubmittedPart { request: id, op, done_bytes: 0, len_bytes, offset_bytes });
        std::mem::swap(&mut served.rest_segments, &mut self.data.segments);
        self.submit_rest(place);
    }

    /// Hands the ranges in `self.data`, of which there is one at least, to the channel.
    fn zero(&mut self, place: usize, head: ChainHead, answer: *mut u8, op: Op, len_bytes: u32) {
        let id = self.new_request(place, head, answer, op, len_bytes);
        let served = self.queues[place].as_mut().expect("its request is begun");
        served.rest =
            Some(UnsubmittedPart { request: id, op, done_bytes: 0, len_bytes, offset_bytes: 0 });
        std::mem::swap(&mut served.rest_ranges, &mut self.data.ranges);
        served.rest_ranges.reverse();
        self.submit_range(place);
    }

    fn new_request(
        &mut self,
        place: usize,
        head: ChainHead,
        answer: *mut u8,
        op: Op,
        len_bytes: u32,
    ) -> SlotId {
        let id = self.requests.take().expect("there was room");
        self.requests[id] = GuestRequest {
            place: Some(place as u16),
            head,
            answer,
            inward_bytes: if op == Op::Read { len_bytes } else { 0 },
            len_bytes,
            op,
            begun_ns: self.now_ns,
            pending: 1,
            failed: false,
            unsupported: false,
        };
        self.queues[place].as_mut().expect("its request is begun").waiting += 1;
        id
    }

    /// Hands what comes next of a request that is cut to the channel; there is room for one.
    fn submit_next(&mut self, place: usize) {
        let rest = self.queues[place].as_ref().and_then(|served| served.rest);
        if rest.expect("the caller looked").op.zeroes() {
            self.submit_range(place);
        } else {
            self.submit_rest(place);
        }
    }

    /// Hands the next range to the channel; there is room for one.
    fn submit_range(&mut self, place: usize) {
        let served = self.queues[place].as_mut().expect("the caller looked");
        let rest = served.rest.expect("as above");
        let range = served.rest_ranges.pop().expect("a rest has ranges");
        if served.rest_ranges.is_empty() {
            served.rest = None;
        } else {
            self.requests[rest.request].pending += 1;
        }
        let io = self.new_io(rest.request, range.op, range.offset_bytes, range.len_bytes);
        self.channel.submit(&mut self.ios, io);
    }

    /// Hands the next megabyte of a large request to the channel; there is room for one.
    fn submit_rest(&mut self, place: usize) {
        let rest = self.queues[place].as_ref().and_then(|served| served.rest);
        let mut rest = rest.expect("the caller looked");
        let len_bytes = (rest.len_bytes - rest.done_bytes).min(IO_BYTES_MAX);
        let offset_bytes = rest.offset_bytes + u64::from(rest.done_bytes);
        let io = self.new_io(rest.request, rest.op, offset_bytes, len_bytes);
        let served = self.queues[place].as_mut().expect("as above");
        let segments = &mut self.ios[io].segments;
        request::cut(&served.rest_segments, rest.done_bytes, len_bytes, segments);
        rest.done_bytes += len_bytes;
        served.rest = (rest.done_bytes < rest.len_bytes).then_some(rest);
        if served.rest.is_some() {
            self.requests[rest.request].pending += 1;
        }
        self.channel.submit(&mut self.ios, io);
    }

    fn new_io(&mut self, request: SlotId, op: Op, offset_bytes: u64, len_bytes: u32) -> IoId {
        let id = self.ios.take().expect("there was room");
        if matches!(op, Op::Read | Op::Write) {
            self.round_bytes += u64::from(len_bytes);
        }
        let io = &mut self.ios[id];
        io.reset();
        io.op = op;
        io.offset_bytes = offset_bytes;
        io.len_bytes = len_bytes;
        io.durable = op.changes() && self.durable;
        // The guest's.
        io.own_memory = true;
        io.owner = u64::from(request.to_u32());
        io.submitted_ns = self.now_ns;
        id
    }

    /// Ends what the channel has completed.
    fn finish_all(&mut self) -> Progress {
        if self.done.is_empty() {
            return Progress::Idle;
        }
        // Before anything is written: one that was fenced speaks for all of them.
        let fenced = self.done.iter().any(|id| self.ios[*id].status == Status::Fenced);
        if fenced || self.attachment.is_fenced() {
            self.fence();
            return Progress::Busy;
        }
        let mut done = std::mem::take(&mut self.done);
        for id in done.drain(..) {
            let io = &self.ios[id];
            let request_id = SlotId::from_u32(io.owner as u32);
            let status = io.status;
            let request = &mut self.requests[request_id];
            if let (Op::Read, Some(place)) = (io.op, request.place) {
                // Failed or not: some of it may have been written.
                let served = self.queues[usize::from(place)].as_mut();
                served.expect("it has a request").queue.wrote(&io.segments);
            }
            self.ios.free(id);
            request.unsupported |= status == Status::Unsupported;
            request.failed |= !matches!(status, Status::Done | Status::Unsupported);
            request.pending -= 1;
            if request.pending == 0 {
                let request = *request;
                self.requests.free(request_id);
                self.finish(&request);
            }
        }
        self.done = done;
        Progress::Busy
    }

    fn finish(&mut self, request: &GuestRequest) {
        let Some(place) = request.place else {
            self.orphans -= 1;
            self.core.orphans.fetch_sub(1, SeqCst);
            if self.orphans == 0 {
                self.retained.clear();
            }
            return;
        };
        let place = usize::from(place);
        let served = self.queues[place].as_mut().expect("it has a request");
        served.waiting -= 1;
        let counters = &served.counters;
        let latency_ns = self.now_ns.saturating_sub(request.begun_ns);
        counters.latencies(request.op).record(latency_ns);
        if request.failed {
            return self.answer(place, request.head, request.answer, StatusByte::IoError, 0);
        }
        if request.unsupported {
            return self.answer(place, request.head, request.answer, StatusByte::Unsupported, 0);
        }
        match request.op {
            Op::Read => counters.read_bytes.add(u64::from(request.len_bytes)),
            Op::Write => counters.written_bytes.add(u64::from(request.len_bytes)),
            Op::Flush => counters.flushes.add(1),
            Op::Discard => counters.discarded_bytes.add(u64::from(request.len_bytes)),
            Op::WriteZeroes => counters.zeroed_bytes.add(u64::from(request.len_bytes)),
        }
        self.answer(place, request.head, request.answer, StatusByte::Ok, request.inward_bytes);
    }

    fn publish_all(&mut self) {
        for served in self.queues.iter_mut().flatten() {
            if std::mem::take(&mut served.unpublished) {
                served.queue.show();
                served.counters.batches.add(1);
                served.uncalled = true;
            }
        }
    }

    /// Calls the drivers that want to be, once for all that was published in this round.
    fn call_all(&mut self) {
        for served in self.queues.iter_mut().flatten() {
            if std::mem::take(&mut served.uncalled) {
                let called = served.queue.call();
                served.counters.calls.add(u64::from(called));
            }
        }
    }

    /// Lets those queues go that were to stop and have drained, or whose time is over.
    fn stop_drained(&mut self) -> Progress {
        let mut progress = Progress::Idle;
        for place in 0..self.queues.len() {
            let Some(served) = &self.queues[place] else { continue };
            let Some(stop_at_ns) = served.stop_at_ns else { continue };
            if served.waiting > 0 && self.now_ns < stop_at_ns {
                continue;
            }
            let served = self.queues[place].take().expect("it was there");
            self.orphan(place, served);
            progress = Progress::Busy;
        }
        progress
    }

    /// Gives a queue up without touching it again; its requests have no queue from now on.
    fn orphan(&mut self, place: usize, served: Served) {
        let (index, base) = (served.queue.index(), served.queue.base());
        let left = served.queue.outstanding();
        if served.leave_at_ns.is_some() {
            self.stay(index, NotMoved::NotServed);
        }
        if let Some(rest) = served.rest {
            // The rest of a cut request is not submitted any more.
            self.requests[rest.request].pending -= 1;
            if self.requests[rest.request].pending == 0 {
                self.requests.free(rest.request);
            }
        }
        let (ios, requests) = (&mut self.ios, &mut self.requests);
        self.parked.retain(|parked| {
            let id = SlotId::from_u32(ios[parked.io].owner as u32);
            let is_its = requests[id].place == Some(place as u16);
            if is_its {
                ios.free(parked.io);
                requests.free(id);
            }
            !is_its
        });
        let retained = served.queue.fence();
        for slot in 0..self.requests.capacity() {
            let Some(id) = self.requests.id_at(slot) else { continue };
            let request = &mut self.requests[id];
            if request.place == Some(place as u16) {
                request.place = None;
                self.orphans += 1;
                self.core.orphans.fetch_add(1, SeqCst);
            }
        }
        if self.orphans > 0 {
            self.retained.push(retained);
        }
        self.stopped.push(Stopped { index, base, left });
    }

    /// The attachment is lost: nothing of the guest is touched from here on.
    fn fence(&mut self) {
        if self.queue_count() > 0 {
            let why = self.attachment.why().unwrap_or_default();
            tracing::warn!(disk = %self.core.name, why, "the disk was fenced: its rings are left");
        }
        self.let_go();
    }

    fn abandon(&mut self) -> Progress {
        if !self.channel.abandon(&mut self.ios, self.now_ns) {
            return Progress::Idle;
        }
        self.done.clear();
        self.parked.clear();
        for slot in 0..self.ios.capacity() {
            if let Some(id) = self.ios.id_at(slot) {
                self.ios.free(id);
            }
        }
        for slot in 0..self.requests.capacity() {
            if let Some(id) = self.requests.id_at(slot) {
                self.requests.free(id);
            }
        }
        self.core.orphans.fetch_sub(self.orphans, SeqCst);
        self.orphans = 0;
        self.retained.clear();
        self.phase = Phase::Gone;
        Progress::Busy
    }
}

impl Drop for DiskQueues {
    fn drop(&mut self) {
        self.core.orphans.fetch_sub(self.orphans, SeqCst);
    }
}

#[cfg(test)]
mod tests;
